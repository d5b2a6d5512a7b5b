//! A backend that answers what nobody asked: indices, ids, control messages, keys.

use fordway_netfront::{Config, Reason, State};
use fordway_test_netfront::{BACK, Bench, FRONT, Offer, frame};
use fordway_xen_abi::netif::{REQ_PROD, RSP_PROD, RxResponse, status};

/// More answers than questions, in both rings, forwards and backwards.
#[test]
fn ring_indices_are_garbage() {
    for off in [1_u32, 257, 1 << 16, 1 << 31, u32::MAX - 300, u32::MAX] {
        for transmit in [true, false] {
            let mut bench = Bench::up();
            bench.assert_works();
            let queue = &bench.backend.queues[0];
            let ring = if transmit { &queue.tx } else { &queue.rx };
            let asked = bench.world.peek32(ring.grant, REQ_PROD);
            let (grant, from) = match off >> 31 {
                0 => (ring.grant, asked),
                _ => (ring.grant, ring.rsp_prod),
            };
            bench.world.poke32(grant, RSP_PROD, from.wrapping_add(off));
            bench.received.clear();
            bench.poll();
            assert!(bench.received.is_empty());
            bench.assert_broken(Reason::RingGarbage);
        }
    }
}

/// What we wrote into the ring is not asked for again, so it may be overwritten.
#[test]
fn our_own_indices_are_private() {
    let mut bench = Bench::up();
    let grants = [
        bench.backend.queues[0].tx.grant,
        bench.backend.queues[0].rx.grant,
    ];
    for round in 0..50 {
        bench.assert_works();
        for grant in grants {
            let real = bench.world.peek32(grant, REQ_PROD);
            bench.world.poke32(grant, REQ_PROD, real ^ 0x5a5a_5a5a);
            bench.poll();
            bench.world.poke32(grant, REQ_PROD, real);
        }
        assert_eq!(bench.drops(Reason::RingGarbage), 0, "round {round}");
    }
}

#[test]
fn a_receive_response_has_a_wrong_id() {
    for wrong in [1, 255, 256, 65535] {
        let mut bench = Bench::up();
        let Bench { world, backend, .. } = &mut bench;
        let queue = &mut backend.queues[0];
        let request = queue.fill(world, 0, &[7; 60]).expect("a buffer");
        let response = RxResponse {
            id: request.id.wrapping_add(wrong),
            offset: 0,
            flags: 0,
            status: 60,
        };
        queue.respond(world, response.word());
        queue.show_rx(world);
        bench.poll();
        assert!(bench.received.is_empty());
        bench.assert_broken(Reason::BadId);
    }
}

/// Ids of nobody, of a buffer that is not out, and the same one twice.
#[test]
fn a_transmit_response_has_a_wrong_id() {
    for responses in [
        &[(65535, status::OKAY)][..],
        &[(256, status::OKAY)],
        &[(200, status::OKAY)],
        &[(0, status::OKAY), (0, status::OKAY)],
        &[(0, status::ERROR), (0, status::OKAY)],
        &[(0, status::NULL)],
    ] {
        let mut bench = Bench::up();
        bench.backend.stalled = true;
        for _ in 0..4 {
            bench.send(&frame(60, 1)).expect("room");
        }
        bench.netfront.flush(&mut bench.world);
        let shown = bench.netfront.counters().tx_frames;
        assert_eq!(shown, 4);
        bench.respond_tx(responses);
        bench.backend.stalled = false;
        bench.assert_broken(Reason::BadId);
    }
}

/// Any order is right, and an error is an answer.
#[test]
fn transmit_responses_in_any_order() {
    let mut bench = Bench::up();
    bench.backend.stalled = true;
    for _ in 0..4 {
        bench.send(&frame(60, 1)).expect("room");
    }
    bench.netfront.flush(&mut bench.world);
    let queue = &mut bench.backend.queues[0];
    while queue.tx.take::<3>(&mut bench.world).is_some() {}
    bench.respond_tx(&[(2, 0), (0, status::ERROR), (3, 0), (1, status::DROPPED)]);
    assert_eq!(bench.drops(Reason::TxRefused), 2);
    bench.backend.stalled = false;
    bench.assert_works();
}

/// The control ring is a ring like the others.
#[test]
fn the_control_ring_lies() {
    for (index, id, kind, reason) in [
        (2, 0, 8, Reason::RingGarbage),
        (1, 1, 8, Reason::BadId),
        (1, 0, 9, Reason::BadId),
    ] {
        let offer = Offer {
            ctrl: Some(64),
            ..Offer::default()
        };
        let mut bench = Bench::new(offer, Config::default());
        bench.poll();
        bench.backend.spoilt = true;
        let grant = bench
            .world
            .number(&format!("{FRONT}/ctrl-ring-ref"))
            .expect("a ring");
        bench.backend.enter(&mut bench.world, State::Connected);
        bench.poll();
        assert!(bench.netfront.is_up());
        bench.world.poke32(grant, 64, id | kind << 16);
        bench.world.poke32(grant, 64 + 4, 0);
        bench.world.poke32(grant, 64 + 8, u32::MAX);
        bench.world.poke32(grant, RSP_PROD, index);
        bench.poll();
        assert_eq!(bench.drops(reason), 1);
        assert_eq!(bench.netfront.states().0, State::Closing);
    }
}

/// A toolstack or backend that writes nonsense where numbers should be.
#[test]
fn xenstore_holds_nonsense() {
    for (name, value) in [
        ("multi-queue-max-queues", "4294967296"),
        ("multi-queue-max-queues", "-1"),
        ("multi-queue-max-queues", "0"),
        ("feature-split-event-channels", "yes"),
        ("feature-ctrl-ring", "\u{fffd}"),
    ] {
        let mut bench = Bench::new(Offer::default(), Config::default());
        bench.world.put(&format!("{BACK}/{name}"), value);
        bench.settle();
        bench.assert_works();
    }
    for value in ["7", "99999999999999999999", "-4", "", "four"] {
        let mut bench = Bench::up();
        bench.world.put(&format!("{BACK}/state"), value);
        bench.poll();
        assert_eq!(bench.netfront.states().1, State::Unknown, "{value}");
        assert!(!bench.netfront.is_up());
    }
}
