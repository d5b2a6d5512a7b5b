//! One test for each way a backend is known to hurt a frontend, or one like it the other side.

use fordway_netfront::{Config, Reason, State, TxFrame, Wait};
use fordway_test_netfront::{Bench, FRONT, Offer, Packet, World, frame};
use fordway_xen_abi::netif::{EXTRA_FLAG_MORE, Extra, GSO_TCPV4, RxResponse, rx_flag};

/// Everything that the driver reads of slots and buffers changes right after it was read.
#[test]
fn xsa_155_nothing_is_fetched_twice() {
    let mut bench = Bench::up();
    bench.world.poison = true;
    for round in 0..600 {
        let bytes = frame(20 + round * 29, round as u8);
        let packet = Packet {
            gso: (round % 2 == 0).then_some(fordway_netfront::Gso {
                ipv6: false,
                size: 1448,
            }),
            ..Packet::plain(&bytes)
        };
        bench.backend.deliver(&mut bench.world, 0, &packet);
        bench.send(&bytes).expect("room");
        bench.settle();
        let received = bench.received.pop().expect("a frame");
        assert!(received.bytes == bytes && received.gso == packet.gso);
        assert!(bench.backend.sent.pop().expect("a frame").bytes == bytes);
    }
    let drops: u64 = Reason::ALL.iter().map(|reason| bench.drops(*reason)).sum();
    assert_eq!(drops, 0);
}

/// An event without anything to do, again and again.
#[test]
fn xsa_391_an_event_storm_is_masked() {
    for split in [true, false] {
        let offer = Offer {
            split,
            ..Offer::default()
        };
        let mut bench = Bench::up_as(offer, Config::default());
        let port = bench.backend.queues[0].rx_port;
        let mut events = 0;
        let mut masked_for_ns = Vec::new();
        for _ in 0..5 {
            while bench.world.is_awake() || !bench.world.is_masked(port) {
                bench.world.send_event(port);
                bench.poll();
                events += 1;
                assert!(events < 1000, "a storm goes on for ever");
            }
            let Wait::Event(Some(until)) = bench.netfront.rearm(&mut bench.world) else {
                panic!("the mask has an end");
            };
            masked_for_ns.push(until - bench.now_ns);
            bench.world.send_event(port);
            assert!(!bench.world.is_awake(), "a masked channel wakes nobody");
            // Frames are looked at by the clock.
            let bytes = frame(70, 1);
            bench
                .backend
                .deliver(&mut bench.world, 0, &Packet::plain(&bytes));
            bench.now_ns = until;
            bench.poll();
            assert_eq!(bench.received.pop().map(|frame| frame.bytes), Some(bytes));
            assert!(!bench.world.is_masked(port));
        }
        assert!(
            masked_for_ns.windows(2).all(|two| two[0] < two[1]),
            "{masked_for_ns:?}"
        );
        assert_eq!(bench.drops(Reason::EventStorm), 5);
        bench.assert_works();
    }
}

/// Honest traffic, with an event for each response, is no storm.
#[test]
fn xsa_391_traffic_is_no_storm() {
    let mut bench = Bench::up_with(Offer::default(), |switches| switches.suppression = false);
    for _ in 0..2000 {
        bench
            .backend
            .deliver(&mut bench.world, 0, &Packet::plain(&frame(60, 1)));
        bench.send(&frame(60, 1)).expect("room");
        bench.settle();
    }
    assert_eq!(bench.drops(Reason::EventStorm), 0);
}

/// A backend that answers no more costs a ring's worth of memory and no time.
#[test]
fn xsa_392_a_stalled_ring_is_a_full_ring() {
    let mut bench = Bench::up();
    bench.backend.stalled = true;
    for _ in 0..10_000 {
        let _ = bench.send(&frame(5000, 1));
        bench.netfront.flush(&mut bench.world);
        bench.backend.step(&mut bench.world);
        bench.poll();
    }
    assert_eq!(bench.drops(Reason::RingFull), 10_000 - 128);
    assert!(bench.world.pages_in_use() <= 512 + 3);
    assert_eq!(bench.netfront.rearm(&mut bench.world), Wait::Event(None));
    bench
        .backend
        .deliver(&mut bench.world, 0, &Packet::plain(&frame(60, 1)));
    bench.poll();
    assert_eq!(bench.received.len(), 1, "the other direction goes on");
    bench.backend.stalled = false;
    bench.settle();
    bench.assert_works();
    // And one that never connects holds nothing up either.
    let mut bench = Bench::new(Offer::default(), Config::default());
    bench.poll();
    assert_eq!(bench.send(&[0; 60]), Err(Reason::LinkDown));
    assert_eq!(bench.netfront.rearm(&mut bench.world), Wait::Event(None));
}

/// [`World`] sees to it that a page is empty and shared by nobody when it is granted. Besides:
/// around a frame there is nothing, what is for reading cannot be written, and what one
/// backend has seen is not shown to the next.
#[test]
fn xsa_403_a_page_has_no_neighbours() {
    let mut bench = Bench::up();
    bench.backend.stalled = true;
    bench.send(&[0xaa; 100]).expect("room");
    bench.netfront.flush(&mut bench.world);
    let queue = &bench.backend.queues[0];
    let [gref, ..] = queue.tx.words::<3>(&bench.world, queue.tx.req_cons);
    let mut page = [0xff; 4096];
    assert!(bench.world.peek(gref, 0, &mut page));
    assert!(page[..100].iter().all(|byte| *byte == 0xaa));
    assert!(page[100..].iter().all(|byte| *byte == 0));
    assert_eq!(bench.world.is_writable(gref), Some(false));
    let rings = [queue.tx.grant, queue.rx.grant];
    for ring in rings {
        let mut tail = [0xff; 48];
        assert!(bench.world.peek(ring, 16, &mut tail));
        assert!(tail.iter().all(|byte| *byte == 0));
    }
    bench.backend.disconnect(&mut bench.world);
    bench.backend.stalled = false;
    bench.world.put(&format!("{FRONT}/backend-id"), "3");
    bench.backend.enter(&mut bench.world, State::InitWait);
    bench.settle();
    bench.assert_works();
}

/// Headers cut anywhere: the user sees one frame in one piece.
#[test]
fn xsa_423_headers_may_be_split() {
    let mut bench = Bench::up();
    let bytes = frame(15, 8);
    let packet = Packet {
        fragments: vec![1; 15],
        ..Packet::plain(&bytes)
    };
    assert!(bench.backend.deliver(&mut bench.world, 0, &packet));
    bench.poll();
    assert_eq!(bench.received.pop().map(|frame| frame.bytes), Some(bytes));
    // And ours never are, however the user cuts them.
    let bytes = frame(5000, 2);
    let parts: Vec<&[u8]> = bytes.chunks(1).collect();
    let sent = TxFrame {
        parts: &parts,
        ..TxFrame::default()
    };
    bench.netfront.send(&mut bench.world, &sent).expect("room");
    bench.settle();
    let packet = bench.backend.sent.pop().expect("a frame");
    assert_eq!(packet.fragments, [4096, 904]);
    assert!(packet.bytes == bytes);
}

/// More fragments than a packet may have: 19, or no end at all.
#[test]
fn xsa_432_too_many_fragments() {
    let mut bench = Bench::up();
    let mut most = vec![(0, rx_flag::MORE_DATA, 4096); 17];
    most.push((0, 0, 4096));
    bench.receive(&[7; 4096], &most);
    assert_eq!(
        bench.received.pop().map(|frame| frame.bytes.len()),
        Some(18 * 4096)
    );

    let mut one_more = vec![(0, rx_flag::MORE_DATA, 4096); 18];
    one_more.push((0, 0, 4096));
    bench.receive(&[7; 4096], &one_more);
    bench.assert_dropped(Reason::TooManyFragments);

    let mut bench = Bench::up();
    for _ in 0..100 {
        bench.receive(&[7; 4096], &[(0, rx_flag::MORE_DATA, 4096); 200]);
        assert_eq!(bench.netfront.rearm(&mut bench.world), Wait::Event(None));
    }
    bench.receive(&[], &[(0, 0, 1)]);
    bench.assert_dropped(Reason::TooManyFragments);
}

/// No bytes in a frame, in its first fragment, or in a later one.
#[test]
fn xsa_448_empty_fragments() {
    let more = rx_flag::MORE_DATA;
    for fragments in [
        &[(0, 0, 0)][..],
        &[(0, more, 0), (0, 0, 60)],
        &[(0, more, 60), (0, 0, 0)],
        &[(0, more, 60), (0, more, 0), (0, 0, 60)],
    ] {
        let mut bench = Bench::up();
        bench.receive(&[7; 60], fragments);
        bench.assert_dropped(Reason::EmptyFragment);
    }
}

/// The ends of fragments, outside the page or before its beginning.
#[test]
fn fragments_outside_the_page() {
    for (offset, size) in [
        (4096, 1),
        (1, 4096),
        (65535, 1),
        (65535, i16::MAX),
        (0, 4097),
        (0, i16::MAX),
    ] {
        let mut bench = Bench::up();
        bench.receive(&[], &[(offset, 0, size)]);
        bench.assert_dropped(Reason::OutsidePage);
    }
    for size in [-1, -2, i16::MIN] {
        let mut bench = Bench::up();
        bench.receive(&[], &[(0, rx_flag::MORE_DATA, 60), (0, 0, size)]);
        bench.assert_dropped(Reason::RxRefused);
    }
    let mut bench = Bench::up();
    bench.receive(&[], &[(0, 0, 13)]);
    bench.assert_dropped(Reason::Runt);
}

#[test]
fn extra_infos_without_sense() {
    let gso = Extra::gso(GSO_TCPV4, 1448);
    for extras in [
        vec![Extra { kind: 0, ..gso }],
        vec![Extra { kind: 6, ..gso }],
        vec![Extra { gso_size: 0, ..gso }],
        vec![Extra { gso_kind: 3, ..gso }],
        vec![
            Extra {
                flags: EXTRA_FLAG_MORE,
                ..gso
            },
            gso,
        ],
        vec![
            Extra {
                kind: 255,
                flags: EXTRA_FLAG_MORE,
                ..gso
            };
            50
        ],
    ] {
        let mut bench = Bench::up();
        let Bench { world, backend, .. } = &mut bench;
        let queue = &mut backend.queues[0];
        let request = queue.fill(world, 0, &[7; 60]).expect("a buffer");
        let first = RxResponse {
            id: request.id,
            offset: 0,
            flags: rx_flag::EXTRA_INFO,
            status: 60,
        };
        queue.respond(world, first.word());
        let last = extras.last().copied().unwrap_or(gso);
        let end = (last.flags != 0).then_some(Extra { kind: 2, ..gso });
        for extra in extras.into_iter().chain(end) {
            queue.fill(world, 0, &[]).expect("a buffer");
            queue.respond(world, extra.word());
        }
        queue.show_rx(world);
        bench.poll();
        bench.assert_dropped(Reason::BadExtra);
    }
}

/// A kind of extra info that is known, but not ours, does no harm.
#[test]
fn other_extra_infos_are_skipped() {
    let mut bench = Bench::up();
    let Bench { world, backend, .. } = &mut bench;
    let queue = &mut backend.queues[0];
    let request = queue.fill(world, 0, &[7; 60]).expect("a buffer");
    let first = RxResponse {
        id: request.id,
        offset: 0,
        flags: rx_flag::EXTRA_INFO,
        status: 60,
    };
    queue.respond(world, first.word());
    for extra in [
        Extra {
            kind: 4,
            flags: EXTRA_FLAG_MORE,
            gso_size: 0,
            gso_kind: 0,
        },
        Extra::gso(GSO_TCPV4, 1448),
    ] {
        queue.fill(world, 0, &[]).expect("a buffer");
        queue.respond(world, extra.word());
    }
    queue.show_rx(world);
    bench.poll();
    assert_eq!(
        bench
            .received
            .pop()
            .and_then(|frame| frame.gso)
            .map(|gso| gso.size),
        Some(1448)
    );
}

/// The backend goes at a moment when it has work of ours, and events come after its end.
#[test]
fn xsa_374_teardown_with_work_in_flight() {
    for state in [State::Closing, State::Closed, State::Unknown] {
        let mut bench = Bench::up();
        let queue = &bench.backend.queues[0];
        let (tx_port, rx_port) = (queue.tx_port, queue.rx_port);
        bench.send(&frame(9000, 1)).expect("room");
        let half = [(0, rx_flag::MORE_DATA, 60)];
        bench.receive(&[7; 60], &half);
        bench
            .backend
            .deliver(&mut bench.world, 0, &Packet::plain(&frame(60, 2)));
        bench.backend.disconnect(&mut bench.world);
        bench.backend.enter(&mut bench.world, state);
        bench.netfront.flush(&mut bench.world);
        assert!(
            bench.send(&frame(60, 1)).is_ok(),
            "the state was not looked at yet"
        );
        bench.poll();
        for port in [tx_port, rx_port] {
            bench.world.send_event(port);
        }
        bench.netfront.flush(&mut bench.world);
        let _ = bench.netfront.rearm(&mut bench.world);
        bench.poll();
        assert_eq!(
            (bench.world.grants_in_use(), bench.world.channels_in_use()),
            (0, 0)
        );
        bench.received.clear();
        if state == State::Unknown {
            bench.backend.begin(&mut bench.world);
        }
        bench.settle();
        bench.assert_works();
        assert!(bench.received.is_empty(), "half a frame of before");
    }
}

/// Pages that the backend still has mapped are neither freed nor used, until it lets go.
#[test]
fn xsa_396_pages_held_beyond_the_end() {
    let mut bench = Bench::up();
    bench.settle();
    bench.backend.holds_on = true;
    let mut held = 2 + 1;
    for grant in 40..60 {
        bench.backend.hold(&mut bench.world, grant);
        held += 1;
    }
    bench.backend.disconnect(&mut bench.world);
    bench.backend.enter(&mut bench.world, State::Closing);
    bench.poll();
    assert_eq!(
        bench.netfront.states().0,
        State::Closed,
        "that holds nothing up"
    );
    for _ in 0..10 {
        bench.poll();
        assert_eq!(bench.world.pages_in_use(), held);
    }
    bench.settle();
    bench.assert_works();
    let pages = bench.world.pages_in_use();
    bench.backend.let_go(&mut bench.world);
    for _ in 0..10 {
        bench.poll();
    }
    assert_eq!(bench.world.pages_in_use(), pages - held);
    bench.assert_works();
}

/// Without a persistent pool each buffer is taken back; who keeps all gets no more of them.
#[test]
fn xsa_396_pages_held_one_by_one() {
    let mut bench = Bench::up_with(Offer::default(), |switches| switches.persistent = false);
    let mut pages_max = 0;
    for _ in 0..100 {
        for _ in 0..16 {
            let Bench { world, backend, .. } = &mut bench;
            let Some(queue) = backend.queues.get_mut(0) else {
                break;
            };
            let [_, gref] = queue.rx.words::<2>(world, queue.rx.req_cons);
            backend.hold(world, gref);
            backend.deliver(world, 0, &Packet::plain(&frame(60, 1)));
        }
        bench.poll();
        pages_max = pages_max.max(bench.world.pages_in_use());
    }
    assert_eq!(bench.drops(Reason::GrantsHeld), 1);
    assert!(pages_max < 512 + 512 + 64, "{pages_max} pages");
    bench.backend.let_go(&mut bench.world);
    bench.settle();
    bench.assert_works();
}

/// The rings' rules hold for [`World`], too: it notices what the driver must not do.
#[test]
fn the_judge_is_awake() {
    use fordway_netfront::Guest;
    let caught = |act: fn(&mut World)| std::panic::catch_unwind(|| act(&mut World::new())).is_err();
    assert!(caught(|world| {
        let page = world.page_new().expect("a page");
        world.write(&page, 4095, &[1]);
        world.grant(0, &page, true);
    }));
    assert!(caught(|world| {
        let page = world.page_new().expect("a page");
        world.grant(0, &page, true);
        world.page_free(page);
    }));
    assert!(caught(|world| {
        let port = world.port_new(0).expect("a port");
        world.port_close(port);
        world.notify(port);
    }));
}
