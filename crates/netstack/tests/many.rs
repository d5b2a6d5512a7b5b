//! Many connections, and those who want too many: what is touched for a packet does not grow
//! with connections, and what a foreign host can make us keep is bounded.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::{Conditions, IP, MAC, World, at, config};
use fordway_netstack::{Config, Drop, Error, Event, TcpId, TcpOptions};

fn small() -> TcpOptions {
    TcpOptions {
        receive_bytes: 2048,
        send_bytes: 2048,
        ..TcpOptions::default()
    }
}

/// `count` connections from side 0 to side 1, accepted, in both sides' order.
fn connections(world: &mut World, count: usize) -> (Vec<TcpId>, Vec<TcpId>) {
    let listener = world.sides[1]
        .tcp_listen(None, 80, 64, small())
        .expect("listens");
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    while clients.len() < count {
        for _ in 0..32.min(count - clients.len()) {
            let now = world.now;
            clients.push(
                world.sides[0]
                    .tcp_connect(now, at(1, 80), None, small())
                    .expect("begins"),
            );
        }
        world.run(20_000);
        while let Ok((id, _)) = world.sides[1].tcp_accept(listener) {
            servers.push(id);
        }
    }
    world.run(50_000);
    world.events(0);
    world.events(1);
    assert_eq!(servers.len(), count);
    (clients, servers)
}

/// Flows visited on side 1 while a request and its reply pass on one connection.
fn visits_for_one_request(count: usize) -> (u64, u64) {
    let mut world = World::new(Conditions {
        delay_us: 50,
        ..Conditions::default()
    });
    let (clients, servers) = connections(&mut world, count);
    let before = world.sides[1].counters().clone();
    let middle = count / 2;
    world.sides[0]
        .tcp_send(clients[middle], b"question")
        .expect("sends");
    world.run(1_000);
    let mut served = 0;
    for event in world.events(1) {
        let Event::Tcp(id, _) = event else {
            panic!("{event:?}")
        };
        let mut buffer = [0; 64];
        assert_eq!(world.sides[1].tcp_receive(id, &mut buffer), Ok(8));
        assert_eq!(world.sides[1].tcp_send(id, b"answer"), Ok(6));
        served += 1;
    }
    assert_eq!(served, 1, "one event for one request");
    world.run(1_000);
    let mut buffer = [0; 64];
    assert_eq!(
        world.sides[0].tcp_receive(clients[middle], &mut buffer),
        Ok(6)
    );
    world.run(100_000);
    let after = world.sides[1].counters().clone();
    assert_eq!(servers.len(), world.sides[1].tcp_counts().0);
    (
        after.flow_visits - before.flow_visits,
        after.rx_frames - before.rx_frames,
    )
}

#[test]
fn ten_thousand_connections_cost_a_packet_no_more_than_ten() {
    let few = visits_for_one_request(10);
    let many = visits_for_one_request(10_000);
    assert_eq!(few, many, "(flows visited, frames)");
    assert!(many.0 <= 3 * many.1, "{many:?}: in, its delayed ACK, out");
}

#[test]
fn ten_thousand_idle_connections_are_left_alone() {
    let mut world = World::new(Conditions::default());
    let _kept = connections(&mut world, 10_000);
    let before = world.sides[1].counters().flow_visits;
    world.run(600_000_000);
    assert_eq!(world.sides[1].counters().flow_visits, before);
    assert_eq!(world.sides[1].poll_at(), None, "nothing to wait for");
}

/// A SYN from a host that may not exist.
fn syn(from: Ipv4Addr, port: u16, seq: u32) -> Vec<u8> {
    segment(SocketAddr::new(from.into(), port), 80, seq, 0, 2)
}

fn segment(from: SocketAddr, to: u16, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let IpAddr::V4(source) = from.ip() else {
        panic!()
    };
    let mut f = Vec::new();
    f.extend_from_slice(&MAC[1]);
    f.extend_from_slice(&MAC[0]);
    f.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    f.extend_from_slice(&source.octets());
    f.extend_from_slice(&IP[1].octets());
    f.extend_from_slice(&from.port().to_be_bytes());
    f.extend_from_slice(&to.to_be_bytes());
    f.extend_from_slice(&seq.to_be_bytes());
    f.extend_from_slice(&ack.to_be_bytes());
    f.extend_from_slice(&[0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    let sum = |bytes: &[u8], start: u32| {
        let mut sum = start;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    };
    let ip = sum(&f[14..34], 0);
    f[24..26].copy_from_slice(&ip.to_be_bytes());
    let pseudo = 6
        + 20
        + f[26..34]
            .chunks(2)
            .map(|p| u32::from(p[0]) << 8 | u32::from(p[1]))
            .sum::<u32>();
    let tcp = sum(&f[34..54], pseudo);
    f[50..52].copy_from_slice(&tcp.to_be_bytes());
    f
}

#[test]
fn a_flood_of_syns_is_bounded_and_shuts_nobody_out() {
    let mut world = World::new(Conditions::default());
    let listener = world.sides[1]
        .tcp_listen(None, 80, 128, small())
        .expect("listens");
    for i in 0..100_000u32 {
        let from = Ipv4Addr::new(10, 0, 0, (3 + i % 200) as u8);
        world.inject(1, &syn(from, (1024 + i / 200) as u16, i));
        if i % 64 == 0 {
            let mut buffer = vec![0; 2000];
            while world.sides[1].transmit(world.now, &mut buffer).is_some() {}
        }
    }
    let (flows, half_open, _) = world.sides[1].tcp_counts();
    assert_eq!(flows, 0);
    assert_eq!(half_open, 128, "the backlog");
    assert!(world.sides[1].counters().syn_cookies > 90_000);
    assert!(world.sides[1].neighbor_count() <= 512);
    // An honest host still gets through, by a cookie.
    let now = world.now;
    let client = world.sides[0]
        .tcp_connect(now, at(1, 80), None, small())
        .expect("begins");
    world.run(100_000);
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    world.sides[0].tcp_send(client, b"through").expect("sends");
    world.run(100_000);
    let mut buffer = [0; 16];
    assert_eq!(world.sides[1].tcp_receive(server, &mut buffer), Ok(7));
    world.sides[1].tcp_send(server, &[5; 2000]).expect("sends");
    world.run(100_000);
    assert_eq!(world.sides[0].tcp_receive(client, &mut [0; 2000]), Ok(2000));
    // And all is forgotten in time.
    world.run(200_000_000);
    assert_eq!(world.sides[1].tcp_counts(), (1, 0, 0));
}

#[test]
fn a_guessed_cookie_makes_no_connection() {
    let mut world = World::new(Conditions::default());
    let listener = world.sides[1]
        .tcp_listen(None, 80, 1, small())
        .expect("listens");
    for port in 1024..1100 {
        world.inject(1, &syn(Ipv4Addr::new(10, 0, 0, 9), port, 1));
    }
    assert!(world.sides[1].counters().syn_cookies > 50);
    for guess in 0..50_000u32 {
        let from = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 9).into(), 2000);
        world.inject(
            1,
            &segment(from, 80, 2, guess.wrapping_mul(2_654_435_761), 16),
        );
        let mut buffer = vec![0; 2000];
        while world.sides[1].transmit(world.now, &mut buffer).is_some() {}
    }
    assert_eq!(world.sides[1].tcp_accept(listener), Err(Error::WouldBlock));
    assert_eq!(world.sides[1].tcp_counts().0, 0);
}

#[test]
fn a_full_accept_queue_takes_no_more_until_there_is_room() {
    let mut world = World::new(Conditions::default());
    let listener = world.sides[1]
        .tcp_listen(None, 80, 4, small())
        .expect("listens");
    let begin = |world: &mut World, count: usize| {
        let now = world.now;
        for _ in 0..count {
            world.sides[0]
                .tcp_connect(now, at(1, 80), None, small())
                .expect("begins");
        }
        world.run(500_000);
    };
    let take = |world: &mut World| -> usize {
        std::iter::from_fn(|| world.sides[1].tcp_accept(listener).ok()).count()
    };
    // Two wait, four come at once: two of those stay half open. Then four SYNs find it full.
    begin(&mut world, 2);
    begin(&mut world, 4);
    begin(&mut world, 4);
    let mut accepted = take(&mut world);
    assert_eq!(accepted, 4);
    assert!(world.sides[1].counters().drops[Drop::Backlog as usize] >= 6);
    // The rest come when they, or we, try again.
    for _ in 0..20 {
        world.run(2_000_000);
        accepted += take(&mut world);
    }
    assert_eq!(accepted, 10);
}

#[test]
fn an_accept_queue_is_as_long_as_was_said_last() {
    let mut world = World::new(Conditions::default());
    let listener = world.sides[1]
        .tcp_listen(None, 80, 16, small())
        .expect("listens");
    let waiting = |world: &mut World, queue_max: usize| {
        assert_eq!(world.sides[1].tcp_set_queue(listener, queue_max), Ok(()));
        let now = world.now;
        for _ in 0..3 {
            world.sides[0]
                .tcp_connect(now, at(1, 80), None, small())
                .expect("begins");
            world.run(20_000);
        }
        world.sides[1].tcp_counts().0
    };
    assert_eq!(waiting(&mut world, 0), 0);
    assert_eq!(waiting(&mut world, 2), 2);
    // Those that wait stay.
    assert_eq!(waiting(&mut world, 1), 2);
    assert_eq!(world.sides[1].tcp_unlisten(listener), Ok(()));
    assert_eq!(
        world.sides[1].tcp_set_queue(listener, 1),
        Err(Error::NoSuch)
    );
}

#[test]
fn flows_beyond_the_limit_are_refused() {
    let limited = |side: usize| -> Config {
        let mut config = config(side);
        config.limits.flows_max = 10;
        config
    };
    let mut world = World::with([limited(0), limited(1)], Conditions::default());
    world.sides[1]
        .tcp_listen(None, 80, 64, small())
        .expect("listens");
    let now = world.now;
    for _ in 0..10 {
        world.sides[0]
            .tcp_connect(now, at(1, 80), None, small())
            .expect("begins");
    }
    assert_eq!(
        world.sides[0].tcp_connect(now, at(1, 80), None, small()),
        Err(Error::Full)
    );
}

#[test]
fn arp_from_everyone_leaves_a_bounded_table() {
    let mut world = World::new(Conditions::default());
    for i in 0..10_000u32 {
        let mut frame = vec![0xff; 6];
        let mac = [
            2,
            9,
            (i >> 24) as u8,
            (i >> 16) as u8,
            (i >> 8) as u8,
            i as u8,
        ];
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&[10, 0, 0, (3 + i % 250) as u8]);
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&IP[1].octets());
        world.inject(1, &frame);
        let mut buffer = vec![0; 2000];
        while world.sides[1].transmit(world.now, &mut buffer).is_some() {}
    }
    assert!(world.sides[1].neighbor_count() <= 512);
}

#[test]
fn closed_connections_wait_in_bounded_number_and_ports_are_used_again() {
    let limited = |side: usize| -> Config {
        let mut config = config(side);
        config.limits.time_wait_max = 100;
        config
    };
    let mut world = World::with([limited(0), limited(1)], Conditions::default());
    let listener = world.sides[1]
        .tcp_listen(None, 80, 64, small())
        .expect("listens");
    for _ in 0..300 {
        let now = world.now;
        let client = world.sides[0]
            .tcp_connect(now, at(1, 80), None, small())
            .expect("begins");
        world.run(5_000);
        let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
        world.sides[0].tcp_close(client).expect("closes");
        world.run(5_000);
        world.sides[1].tcp_close(server).expect("closes");
        world.run(5_000);
        world.events(0);
        world.events(1);
    }
    assert_eq!(world.sides[0].tcp_counts(), (0, 0, 100));
    assert_eq!(world.sides[1].tcp_counts(), (0, 0, 0));
    // The same names again: the SYN is newer than what waits on the other side.
    let local = Some(at(0, 40_000));
    for _ in 0..2 {
        let now = world.now;
        let client = world.sides[0]
            .tcp_connect(now, at(1, 80), local, small())
            .expect("begins");
        world.run(5_000);
        let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
        world.sides[1].tcp_close(server).expect("closes");
        world.run(5_000);
        world.sides[0].tcp_close(client).expect("closes");
        world.run(5_000);
        assert_eq!(world.sides[1].tcp_counts().2, 1);
    }
}
