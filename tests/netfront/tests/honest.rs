//! What an honest backend and the driver do together.

use fordway_netfront::{Checksum, Config, Gso, Reason, TxFrame, Wait};
use fordway_test_netfront::{Bench, FRONT, Offer, Packet, frame};

const GSO4: Option<Gso> = Some(Gso {
    ipv6: false,
    size: 1448,
});
const GSO6: Option<Gso> = Some(Gso {
    ipv6: true,
    size: 1428,
});

fn key(bench: &Bench, name: &str) -> Option<u32> {
    bench.world.number(&format!("{FRONT}/{name}"))
}

#[test]
fn frames_go_both_ways() {
    let mut bench = Bench::up();
    bench.assert_works();
    assert_eq!(bench.netfront.mac(), Some([0, 0x16, 0x3e, 1, 2, 3]));
    let asked = ["request-rx-copy", "feature-rx-notify", "feature-sg"];
    assert_eq!(asked.map(|name| key(&bench, name)), [Some(1); 3]);
}

/// Many times around the rings, frames of all sizes, a backlog in both directions.
#[test]
fn every_size_comes_through_whole_and_in_order() {
    let mut bench = Bench::up();
    let mut sizes = (14..65536).step_by(613).cycle();
    for round in 0..200 {
        let sent: Vec<Vec<u8>> = (0..4)
            .map(|index| frame(sizes.next().unwrap_or(60), round + index))
            .collect();
        for bytes in &sent {
            assert!(
                bench
                    .backend
                    .deliver(&mut bench.world, 0, &Packet::plain(bytes))
            );
            bench.send(bytes).expect("room");
        }
        bench.settle();
        let received: Vec<_> = bench.received.drain(..).map(|frame| frame.bytes).collect();
        assert!(received == sent, "round {round}");
        let left: Vec<_> = bench
            .backend
            .sent
            .drain(..)
            .map(|packet| packet.bytes)
            .collect();
        assert!(left == sent, "round {round}");
    }
}

#[test]
fn checksum_and_gso_are_told_both_ways() {
    let mut bench = Bench::up();
    let bytes = frame(9000, 1);
    for (checksum, gso) in [
        (Checksum::Unknown, None),
        (Checksum::Good, None),
        (Checksum::Blank, None),
        (Checksum::Blank, GSO4),
        (Checksum::Blank, GSO6),
    ] {
        let packet = Packet {
            checksum,
            gso,
            ..Packet::plain(&bytes)
        };
        bench.backend.deliver(&mut bench.world, 0, &packet);
        let sent = TxFrame {
            parts: &[&bytes[..54], &[], &bytes[54..60], &bytes[60..]],
            checksum_blank: checksum == Checksum::Blank,
            gso,
        };
        bench.netfront.send(&mut bench.world, &sent).expect("room");
        bench.settle();
        let received = bench.received.pop().expect("a frame");
        assert_eq!((received.checksum, received.gso), (checksum, gso));
        assert!(received.bytes == bytes);
        let packet = bench.backend.sent.pop().expect("a frame");
        let blank = packet.checksum == Checksum::Blank;
        assert_eq!((blank, packet.gso), (sent.checksum_blank, gso));
        assert!(packet.bytes == bytes);
        assert_eq!(
            packet.fragments,
            [4096, 4096, 808],
            "headers in the first page"
        );
    }
}

#[test]
fn split_channels_where_offered_and_one_elsewhere() {
    for (offered, wanted) in [(true, true), (true, false), (false, true)] {
        let offer = Offer {
            split: offered,
            ..Offer::default()
        };
        let mut bench = Bench::up_with(offer, |switches| switches.split = wanted);
        let keys = ["event-channel-tx", "event-channel-rx", "event-channel"];
        let there = keys.map(|name| key(&bench, name).is_some());
        let split = offered && wanted;
        assert_eq!(there, [split, split, !split]);
        bench.assert_works();
    }
}

#[test]
fn several_queues_where_offered() {
    for (offered, wanted, count) in [
        (Some(4), 2, 2),
        (Some(2), 4, 2),
        (Some(3), 1, 1),
        (None, 4, 1),
    ] {
        let offer = Offer {
            queues: offered,
            ..Offer::default()
        };
        let config = Config {
            queues_max: wanted,
            ..Config::default()
        };
        let mut bench = Bench::up_as(offer, config);
        assert_eq!(bench.backend.queues.len(), count);
        assert_eq!(key(&bench, "tx-ring-ref").is_some(), count == 1);
        assert_eq!(key(&bench, "queue-1/tx-ring-ref").is_some(), count > 1);
        for queue in 0..count {
            let bytes = frame(100, queue as u8);
            bench
                .backend
                .deliver(&mut bench.world, queue, &Packet::plain(&bytes));
            bench.settle();
            assert_eq!(bench.received.pop().map(|frame| frame.bytes), Some(bytes));
        }
        // A flow keeps to one queue; many flows take all. IPv4's and IPv6's, known by a port number; fragments have none.
        let four = (&[8, 0, 0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 6][..], 35);
        let six = (&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 6, 17][..], 55);
        let more = (&[8, 0, 0x45, 0, 0, 46, 0, 1, 0x20, 0, 64, 17][..], 35);
        let other = (&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 6, 44][..], 55);
        for ((header, flow_at), flows) in [(four, true), (six, true), (more, false), (other, false)]
        {
            let mut used = vec![0; count];
            for flow in 0..64_u8 {
                let mut bytes = frame(60, 0);
                bytes[12..12 + header.len()].copy_from_slice(header);
                bytes[flow_at] = flow;
                for _ in 0..2 {
                    bench.send(&bytes).expect("room");
                    bench.netfront.flush(&mut bench.world);
                    let (busy, queue) = (0..count)
                        .map(|queue| (bench.backend.queues[queue].tx.requests(&bench.world), queue))
                        .max()
                        .expect("a queue");
                    assert_eq!(busy, 1);
                    used[queue] += 1;
                    bench.settle();
                }
            }
            assert!(used.iter().all(|frames| frames % 2 == 0), "{used:?}");
            let busy = used.iter().filter(|frames| **frames > 0).count();
            assert_eq!(busy, if flows { count } else { 1 }, "{used:?}");
        }
    }
}

/// One event for a batch; none for what nobody waits for.
#[test]
fn events_are_suppressed() {
    let mut bench = Bench::up();
    let (tx, rx) = (
        bench.backend.queues[0].tx_port,
        bench.backend.queues[0].rx_port,
    );
    assert_eq!(bench.netfront.rearm(&mut bench.world), Wait::Event(None));
    let before = bench.world.notified(tx);
    for _ in 0..32 {
        bench.send(&frame(60, 1)).expect("room");
    }
    assert_eq!(bench.world.notified(tx), before, "not before the flush");
    bench.netfront.flush(&mut bench.world);
    assert_eq!(bench.world.notified(tx), before + 1);
    bench.send(&frame(60, 1)).expect("room");
    bench.netfront.flush(&mut bench.world);
    let told = bench.world.notified(tx) - before;
    assert_eq!(told, 1, "the backend is at work and moved no mark");
    bench.backend.step(&mut bench.world);
    assert!(
        !bench.world.is_awake(),
        "nobody waits for answers to sent frames"
    );
    bench.poll();

    assert_eq!(bench.netfront.rearm(&mut bench.world), Wait::Event(None));
    let before = (bench.netfront.counters().events, bench.world.notified(rx));
    for _ in 0..32 {
        bench
            .backend
            .deliver(&mut bench.world, 0, &Packet::plain(&frame(60, 1)));
        assert!(bench.world.is_awake());
    }
    bench.poll();
    assert_eq!(bench.received.len(), 32);
    let after = (bench.netfront.counters().events, bench.world.notified(rx));
    assert_eq!(after.0, before.0 + 1, "one event for all");
    assert!(after.1 <= before.1 + 1, "one notification for all buffers");
    // Awake, the driver asks for no events.
    bench
        .backend
        .deliver(&mut bench.world, 0, &Packet::plain(&frame(60, 1)));
    assert!(!bench.world.is_awake());
    assert_eq!(
        bench.netfront.rearm(&mut bench.world),
        Wait::No,
        "look again first"
    );
}

/// What the table of optimisations compares with.
#[test]
fn without_suppression_and_batching_everything_is_told() {
    let mut bench = Bench::up_with(Offer::default(), |switches| {
        switches.suppression = false;
        switches.batching = false;
    });
    let tx = bench.backend.queues[0].tx_port;
    let (events, notified) = (bench.netfront.counters().events, bench.world.notified(tx));
    for index in 0..10 {
        bench.send(&frame(60, 1)).expect("room");
        assert_eq!(bench.world.notified(tx), notified + 1 + index);
        bench.backend.step(&mut bench.world);
        bench
            .backend
            .deliver(&mut bench.world, 0, &Packet::plain(&frame(60, 1)));
        bench.poll();
    }
    assert_eq!(
        bench.netfront.counters().events,
        events + 20,
        "both directions, each time"
    );
}

/// A sleeper whose frame found no room is woken when half of the ring is free again.
#[test]
fn room_for_sending_is_told_to_who_waits() {
    let mut bench = Bench::up();
    bench.backend.stalled = true;
    while bench.send(&frame(60, 1)).is_ok() {}
    assert_eq!(bench.drops(Reason::RingFull), 1);
    bench.netfront.flush(&mut bench.world);
    bench.poll();
    assert_eq!(bench.netfront.rearm(&mut bench.world), Wait::Event(None));
    assert!(!bench.world.is_awake());
    bench.backend.stalled = false;
    bench.backend.step(&mut bench.world);
    assert!(bench.world.is_awake());
    bench.poll();
    bench.assert_works();
}

/// Buffers are granted when first used and never again.
#[test]
fn the_pool_is_granted_once() {
    for persistent in [true, false] {
        let mut bench = Bench::up_with(Offer::default(), |switches| {
            switches.persistent = persistent
        });
        let traffic = |bench: &mut Bench| {
            for _ in 0..300 {
                bench
                    .backend
                    .deliver(&mut bench.world, 0, &Packet::plain(&frame(9000, 1)));
                bench.send(&frame(9000, 1)).expect("room");
                bench.settle();
            }
        };
        traffic(&mut bench);
        let before = bench.netfront.grants_made();
        traffic(&mut bench);
        let more = bench.netfront.grants_made() - before;
        assert_eq!(more, if persistent { 0 } else { 300 * 2 * 3 });
        assert!(bench.world.pages_in_use() <= 512 + 3);
    }
}

#[test]
fn staging_grants_where_the_backend_keeps_them() {
    for (max, staged) in [
        (Some(512), 512),
        (Some(100), 100),
        (Some(9999), 512),
        (Some(0), 0),
        (None, 0),
    ] {
        let offer = Offer {
            ctrl: max,
            queues: Some(2),
            ..Offer::default()
        };
        let config = Config {
            queues_max: 2,
            ..Config::default()
        };
        let mut bench = Bench::up_as(offer, config);
        assert_eq!(bench.backend.staged(), 2 * staged);
        bench.assert_works();
        bench.netfront.close(&mut bench.world);
        bench.settle();
        assert_eq!(bench.world.grants_in_use(), 0);
    }
}

/// A frame asks for no more than was offered.
#[test]
fn what_is_not_offered_is_refused() {
    let poor = Offer {
        sg: false,
        gso: false,
        no_csum: true,
        csum_ipv6: false,
        ..Offer::default()
    };
    let mut bench = Bench::up_as(poor, Config::default());
    let bytes = frame(4097, 1);
    let all = TxFrame {
        parts: &[&bytes[..1000]],
        checksum_blank: false,
        gso: None,
    };
    for (sent, answer) in [
        (all, Ok(())),
        (
            TxFrame {
                parts: &[&bytes],
                ..all
            },
            Err(Reason::NotOffered),
        ),
        (
            TxFrame {
                checksum_blank: true,
                ..all
            },
            Err(Reason::NotOffered),
        ),
        (TxFrame { gso: GSO4, ..all }, Err(Reason::NotOffered)),
        (TxFrame { gso: GSO6, ..all }, Err(Reason::NotOffered)),
        (
            TxFrame {
                parts: &[&bytes[..13]],
                ..all
            },
            Err(Reason::Runt),
        ),
        (TxFrame { parts: &[], ..all }, Err(Reason::Runt)),
    ] {
        assert_eq!(bench.netfront.send(&mut bench.world, &sent), answer);
    }
    bench.settle();
    assert_eq!(bench.backend.sent.len(), 1);
    let mut bench = Bench::up();
    assert_eq!(bench.send(&frame(65535, 1)), Ok(()));
    assert_eq!(bench.send(&frame(65536, 1)), Err(Reason::TooLong));
    bench.settle();
    assert_eq!(bench.backend.sent[0].fragments.len(), 16);
}

/// Switched off, neither side is asked for it.
#[test]
fn switches_turn_offloads_off() {
    let mut bench = Bench::up_with(Offer::default(), |switches| switches.csum = false);
    assert_eq!(key(&bench, "feature-no-csum-offload"), Some(1));
    assert_eq!(
        key(&bench, "feature-gso-tcpv4"),
        Some(0),
        "GSO needs checksum offload"
    );
    assert!(!bench.netfront.offers().csum_ipv4 && !bench.netfront.offers().gso_ipv4);
    bench.assert_works();
    let bench = Bench::up_with(Offer::default(), |switches| switches.gso = false);
    assert_eq!(key(&bench, "feature-no-csum-offload"), Some(0));
    assert_eq!(key(&bench, "feature-gso-tcpv6"), Some(0));
    assert!(bench.netfront.offers().csum_ipv4 && !bench.netfront.offers().gso_ipv6);
}

/// A frame that the backend shows in pieces is given when it is whole, in whatever steps.
#[test]
fn a_frame_may_arrive_in_pieces() {
    use fordway_xen_abi::netif::{RxResponse, rx_flag};
    let mut bench = Bench::up();
    let bytes = frame(3000, 5);
    for (index, part) in bytes.chunks(1000).enumerate() {
        let Bench { world, backend, .. } = &mut bench;
        let queue = &mut backend.queues[0];
        let request = queue.fill(world, 96, part).expect("a buffer");
        let response = RxResponse {
            id: request.id,
            offset: 96,
            flags: if index < 2 { rx_flag::MORE_DATA } else { 0 },
            status: 1000,
        };
        queue.respond(world, response.word());
        queue.show_rx(world);
        assert!(bench.received.is_empty());
        bench.poll();
        assert!(index == 2 || bench.netfront.rearm(&mut bench.world) == Wait::Event(None));
    }
    assert_eq!(bench.received.pop().map(|frame| frame.bytes), Some(bytes));
}
