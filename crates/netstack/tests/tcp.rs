//! Connections between two stacks: made, used, ended, each way.

mod common;

use common::{Conditions, World, at};
use fordway_netstack::{Error, Event, ListenerId, TcpId, TcpOptions, TcpState};

fn listen(world: &mut World, port: u16) -> ListenerId {
    world.sides[1]
        .tcp_listen(None, port, 16, TcpOptions::default())
        .expect("listens")
}

fn connect(world: &mut World, port: u16) -> TcpId {
    let now = world.now;
    world.sides[0]
        .tcp_connect(now, at(1, port), None, TcpOptions::default())
        .expect("begins")
}

/// A connected pair: client on side 0, server on side 1.
fn pair(world: &mut World) -> (TcpId, TcpId) {
    let listener = listen(world, 80);
    let client = connect(world, 80);
    world.run(10_000);
    let events = world.events(1);
    assert!(events.contains(&Event::Accept(listener)), "{events:?}");
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    let ready = world.events(0);
    assert!(
        matches!(&ready[..], [Event::Tcp(id, ready)] if *id == client && ready.is_connected),
        "{ready:?}"
    );
    (client, server)
}

#[test]
fn a_reader_sees_all_that_waits_at_once() {
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world);
    let mut in_two = 0;
    // The buffer has 2 KB: some of these lie across its end.
    for round in 0..8u8 {
        let sent = [round; 1000];
        assert_eq!(world.sides[0].tcp_send(client, &sent), Ok(sent.len()));
        world.run(50_000);
        let seen = world.sides[1].tcp_receive_with(server, |pieces| {
            in_two += usize::from(!pieces[1].is_empty());
            assert_eq!(pieces.concat(), sent);
            sent.len()
        });
        assert_eq!(seen, Ok(sent.len()));
    }
    assert!((1..8).contains(&in_two), "{in_two}");
}

#[test]
fn a_request_and_its_reply() {
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world);
    assert_eq!(world.sides[0].tcp_send(client, b"GET /"), Ok(5));
    world.run(50_000);
    let events = world.events(1);
    assert!(matches!(&events[..], [Event::Tcp(id, r)] if *id == server && r.is_readable));
    let mut buffer = [0; 100];
    assert_eq!(world.sides[1].tcp_receive(server, &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"GET /");
    assert_eq!(
        world.sides[1].tcp_receive(server, &mut buffer),
        Err(Error::WouldBlock)
    );
    assert_eq!(world.sides[1].tcp_send(server, b"200"), Ok(3));
    assert_eq!(world.sides[1].tcp_close(server), Ok(()));
    world.run(50_000);
    assert_eq!(world.sides[0].tcp_receive(client, &mut buffer), Ok(3));
    assert_eq!(world.sides[0].tcp_receive(client, &mut buffer), Ok(0));
    assert_eq!(world.sides[0].tcp_state(client), Ok(TcpState::CloseWait));
    assert_eq!(world.sides[0].tcp_close(client), Ok(()));
    world.run(100_000);
    assert_eq!(world.sides[0].tcp_counts(), (0, 0, 0));
    assert_eq!(
        world.sides[1].tcp_counts(),
        (0, 0, 1),
        "who closed first waits"
    );
    world.run(61_000_000);
    assert_eq!(world.sides[1].tcp_counts(), (0, 0, 0));
}

#[test]
fn a_closed_port_refuses() {
    let mut world = World::new(Conditions::default());
    let client = connect(&mut world, 81);
    world.run(10_000);
    let events = world.events(0);
    assert!(
        matches!(&events[..], [Event::Tcp(_, ready)] if ready.is_closed),
        "{events:?}"
    );
    assert_eq!(
        world.sides[0].tcp_receive(client, &mut [0; 4]),
        Err(Error::Refused)
    );
    assert_eq!(world.sides[0].tcp_close(client), Ok(()));
    assert_eq!(world.sides[0].tcp_counts(), (0, 0, 0));
}

#[test]
fn nobody_there_is_told() {
    let mut world = World::new(Conditions {
        loss_per_mille: 1000,
        ..Conditions::default()
    });
    let client = connect(&mut world, 80);
    world.run(10_000_000);
    assert_eq!(
        world.sides[0].tcp_receive(client, &mut [0; 4]),
        Err(Error::Unreachable)
    );
}

#[test]
fn an_abort_resets() {
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world);
    assert_eq!(world.sides[1].tcp_abort(server), Ok(()));
    world.run(10_000);
    assert_eq!(
        world.sides[0].tcp_receive(client, &mut [0; 4]),
        Err(Error::Reset)
    );
    assert_eq!(world.sides[1].tcp_counts(), (0, 0, 0));
}

/// Moves `total` bytes from side 0 to side 1 and compares each.
fn transfer(world: &mut World, client: TcpId, server: TcpId, total: usize, limit_us: u64) -> u64 {
    let byte = |i: usize| (i * 31 + i / 251) as u8;
    let (mut sent, mut received) = (0, 0);
    let start = world.now;
    let mut chunk = vec![0; 20_000];
    while received < total {
        while sent < total {
            let len = chunk.len().min(total - sent);
            for (i, b) in chunk[..len].iter_mut().enumerate() {
                *b = byte(sent + i);
            }
            match world.sides[0].tcp_send(client, &chunk[..len]) {
                Ok(len) => sent += len,
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(
            world.step(start + limit_us),
            "stuck: {sent} sent, {received} received"
        );
        loop {
            match world.sides[1].tcp_receive(server, &mut chunk) {
                Ok(len) => {
                    assert!(len > 0, "ended early");
                    for (i, b) in chunk[..len].iter().enumerate() {
                        assert_eq!(*b, byte(received + i), "byte {}", received + i);
                    }
                    received += len;
                }
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    world.now - start
}

#[test]
fn a_megabyte_arrives_whole() {
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world);
    transfer(&mut world, client, server, 1 << 20, 10_000_000);
}

#[test]
fn a_megabyte_arrives_whole_over_a_bad_link() {
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world);
    world.conditions = Conditions {
        loss_per_mille: 20,
        double_per_mille: 20,
        reorder_per_mille: 50,
        delay_us: 1000,
        bits_per_us: 0,
    };
    transfer(&mut world, client, server, 1 << 20, 1_000_000_000);
}

#[test]
fn the_own_loopback_goes_on_when_no_frame_can_leave() {
    let mut world = World::new(Conditions::default());
    let (outer, far) = pair(&mut world);
    // They wait for the link.
    assert_eq!(world.sides[0].tcp_send(outer, b"outwards"), Ok(8));
    let own = &mut world.sides[0];
    let listener = own
        .tcp_listen(None, 90, 16, TcpOptions::default())
        .expect("listens");
    let now = world.now;
    let client = own
        .tcp_connect(now, at(0, 90), None, TcpOptions::default())
        .expect("begins");
    own.turn(now);
    let mut events = Vec::new();
    events.extend(std::iter::from_fn(|| own.event()));
    assert!(events.contains(&Event::Accept(listener)), "{events:?}");
    let (server, _) = own.tcp_accept(listener).expect("accepts");
    assert_eq!(own.tcp_send(client, b"inwards"), Ok(7));
    own.turn(now);
    let mut buffer = [0; 9];
    assert_eq!(own.tcp_receive(server, &mut buffer), Ok(7));
    // With the clock alone a connection comes to its end.
    assert_eq!(own.tcp_close(client), Ok(()));
    assert_eq!(own.tcp_close(server), Ok(()));
    own.turn(now);
    let before = own.tcp_counts();
    own.turn(now + 120_000_000);
    assert_ne!(own.tcp_counts(), before);
    // There is a link again.
    world.now = now + 120_000_000;
    world.run(100_000);
    assert_eq!(world.sides[1].tcp_receive(far, &mut buffer), Ok(8));
}

#[test]
fn an_urgent_byte_stands_where_it_was_sent_over_a_bad_link() {
    for seed in 0..8 {
        let mut world = World::new(Conditions {
            delay_us: 1_000,
            ..Conditions::default()
        });
        let (client, server) = pair(&mut world);
        world.rng = fastrand::Rng::with_seed(seed);
        world.conditions.loss_per_mille = 100;
        world.conditions.reorder_per_mille = 100;
        let long = vec![b'-'; 30_000];
        for bytes in [&long[..], b"!", &long[..]] {
            assert_eq!(world.sides[0].tcp_send(client, bytes), Ok(bytes.len()));
            if bytes == b"!" {
                assert_eq!(world.sides[0].tcp_mark_urgent(client), Ok(()));
            }
        }
        let (mut got, mut urgent) = (Vec::new(), None);
        for _ in 0..10_000 {
            world.run(10_000);
            let before = world.sides[1].tcp_before_urgent(server);
            let most = before.filter(|before| *before > 0).unwrap_or(usize::MAX);
            if before == Some(0) {
                urgent = Some(got.len());
            }
            let _ = world.sides[1].tcp_receive_with(server, |pieces| {
                let all = pieces.concat();
                let count = all.len().min(most);
                got.extend_from_slice(&all[..count]);
                count
            });
            if got.len() == 60_001 {
                break;
            }
        }
        assert_eq!((got.len(), urgent), (60_001, Some(30_000)), "seed {seed}");
        assert_eq!(got[30_000], b'!');
    }
}
