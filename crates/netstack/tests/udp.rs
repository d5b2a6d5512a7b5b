//! UDP sockets as Linux has them: connected ones, shared ports, groups, errors that ICMP
//! brings, the size of packets on their way.

mod common;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::wire::{frame, packet};
use common::{Conditions, World, at, config, ip};
use fordway_netstack::{Cidr, Drop, Error, Event, Stack, UdpId, UdpOptions};

const SHARED: UdpOptions = UdpOptions {
    shares_port: true,
    spreads: true,
    hop_limit: None,
    group_hop_limit: 1,
    group_sources: [None; 2],
    loops_groups: true,
    hears_all_groups: true,
    class: 0,
};

fn world() -> World {
    World::new(Conditions::default())
}

fn bind(stack: &mut Stack, port: u16) -> UdpId {
    stack.udp_bind(None, port).expect("binds")
}

fn receive(stack: &mut Stack, id: UdpId) -> Result<Vec<u8>, Error> {
    let mut buffer = [0; 2000];
    let (len, ..) = stack.udp_receive(id, &mut buffer)?;
    Ok(buffer[..len].to_vec())
}

fn drops(world: &World, side: usize, why: Drop) -> u64 {
    world.sides[side].counters().drops[why as usize]
}

/// The last packet that a side has sent, from its IP header on.
fn last_sent(world: &World, side: usize) -> Vec<u8> {
    let sent = world.sent.iter().rfind(|sent| sent.0 == side);
    sent.expect("something was sent").1[14..].to_vec()
}

/// An ICMP error about it, from a router.
fn error(kind: u8, code: u8, rest: [u8; 4], quote: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&rest);
    message.extend_from_slice(&quote[..quote.len().min(548)]);
    let router: IpAddr = Ipv4Addr::new(10, 0, 0, 99).into();
    frame(0, &packet(router, ip(0), 1, 64, message, 2))
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let mut world = world();
    let any = world.sides[1]
        .udp_bind_with(None, 53, SHARED)
        .expect("binds");
    let one = world.sides[1]
        .udp_bind_with(None, 53, SHARED)
        .expect("binds");
    let (peer, other) = (
        bind(&mut world.sides[0], 1000),
        bind(&mut world.sides[0], 1001),
    );
    world.sides[1]
        .udp_connect(one, Some(at(0, 1000)))
        .expect("connects");
    let names = world.sides[1].udp_names(one);
    assert_eq!(names, Ok((Some(ip(1)), 53, Some(at(0, 1000)))));
    world.sides[0]
        .udp_send(peer, at(1, 53), b"peer")
        .expect("sends");
    world.sides[0]
        .udp_send(other, at(1, 53), b"other")
        .expect("sends");
    world.run(1_000);
    assert_eq!(receive(&mut world.sides[1], one), Ok(b"peer".to_vec()));
    assert_eq!(receive(&mut world.sides[1], one), Err(Error::WouldBlock));
    assert_eq!(receive(&mut world.sides[1], any), Ok(b"other".to_vec()));
    // Disconnected it hears all again, with the other.
    world.sides[1].udp_close(any).expect("closes");
    world.sides[1].udp_connect(one, None).expect("disconnects");
    world.sides[0]
        .udp_send(other, at(1, 53), b"other")
        .expect("sends");
    world.run(1_000);
    assert_eq!(receive(&mut world.sides[1], one), Ok(b"other".to_vec()));
}

#[test]
fn of_two_with_the_same_names_the_newer_hears_and_then_the_older() {
    let mut world = world();
    let peer = bind(&mut world.sides[0], 1000);
    let both = [(); 2].map(|()| {
        let id = world.sides[1]
            .udp_bind_with(None, 53, SHARED)
            .expect("binds");
        world.sides[1]
            .udp_connect(id, Some(at(0, 1000)))
            .expect("connects");
        id
    });
    for (heard, closed) in [(both[1], true), (both[0], false)] {
        world.sides[0]
            .udp_send(peer, at(1, 53), b"x")
            .expect("sends");
        world.run(1_000);
        assert_eq!(receive(&mut world.sides[1], heard), Ok(b"x".to_vec()));
        if closed {
            world.sides[1].udp_close(heard).expect("closes");
        }
    }
}

#[test]
fn a_shared_port_divides_peers_and_keeps_each() {
    let mut world = world();
    let servers = [(); 4].map(|()| world.sides[1].udp_bind_with(None, 53, SHARED));
    let servers = servers.map(|id| id.expect("binds"));
    assert_eq!(world.sides[1].udp_bind(None, 53), Err(Error::AddressInUse));
    let clients: Vec<UdpId> = (1000..1064)
        .map(|port| bind(&mut world.sides[0], port))
        .collect();
    let mut chosen: Vec<HashSet<usize>> = vec![HashSet::new(); clients.len()];
    for _ in 0..3 {
        for (which, client) in clients.iter().enumerate() {
            world.sides[0]
                .udp_send(*client, at(1, 53), &[which as u8])
                .expect("sends");
        }
        world.run(1_000);
        for (server, id) in servers.iter().enumerate() {
            while let Ok(bytes) = receive(&mut world.sides[1], *id) {
                chosen[usize::from(bytes[0])].insert(server);
            }
        }
    }
    assert!(
        chosen.iter().all(|servers| servers.len() == 1),
        "{chosen:?}"
    );
    let all: HashSet<usize> = chosen.iter().flatten().copied().collect();
    assert_eq!(all.len(), 4, "all of them work");
}

#[test]
fn what_could_be_for_both_is_in_use() {
    let mut world = world();
    let stack = &mut world.sides[1];
    let any_v4 = Some(Ipv4Addr::UNSPECIFIED.into());
    let any_v6 = Some(std::net::Ipv6Addr::UNSPECIFIED.into());
    stack.udp_bind(Some(ip(1)), 53).expect("binds");
    assert_eq!(stack.udp_bind(None, 53), Err(Error::AddressInUse));
    assert_eq!(stack.udp_bind(any_v4, 53), Err(Error::AddressInUse));
    stack.udp_bind(any_v6, 53).expect("of the other family");
    // Only who shares may share.
    stack.udp_bind_with(None, 54, SHARED).expect("binds");
    assert_eq!(stack.udp_bind(Some(ip(1)), 54), Err(Error::AddressInUse));
    stack
        .udp_bind_with(Some(ip(1)), 54, SHARED)
        .expect("shares");
    let foreign = Some(ip(0));
    assert_eq!(stack.udp_bind(foreign, 55), Err(Error::AddressNotAvailable));
}

#[test]
fn a_broadcast_goes_to_every_socket_that_it_fits() {
    let mut world = world();
    let all = [(); 3].map(|()| {
        world.sides[1]
            .udp_bind_with(None, 53, SHARED)
            .expect("binds")
    });
    let exact = world.sides[1]
        .udp_bind_with(Some(ip(1)), 53, SHARED)
        .expect("binds");
    let elsewhere = world.sides[1]
        .udp_bind_with(None, 53, SHARED)
        .expect("binds");
    world.sides[1]
        .udp_connect(elsewhere, Some(at(0, 7)))
        .expect("connects");
    let client = bind(&mut world.sides[0], 1000);
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 255).into(), 53);
    world.sides[0].udp_send(client, to, b"all").expect("sends");
    world.run(1_000);
    for id in all {
        assert_eq!(receive(&mut world.sides[1], id), Ok(b"all".to_vec()));
    }
    for id in [exact, elsewhere] {
        assert_eq!(receive(&mut world.sides[1], id), Err(Error::WouldBlock));
    }
}

#[test]
fn queues_have_one_bound_together() {
    let mut limited = config(1);
    limited.limits.udp_bytes_max = 10_000;
    let mut world = World::with([config(0), limited], Conditions::default());
    let client = bind(&mut world.sides[0], 1000);
    let ids: Vec<UdpId> = (0..20)
        .map(|n| bind(&mut world.sides[1], 100 + n))
        .collect();
    world.sides[0]
        .udp_send(client, at(1, 7), &[])
        .expect("asks who is there");
    world.run(1_000);
    for port in 100..120 {
        world.sides[0]
            .udp_send(client, at(1, port), &[0; 1000])
            .expect("sends");
    }
    world.run(10_000);
    let got = |world: &mut World| {
        let stack = &mut world.sides[1];
        ids.iter().filter(|id| receive(stack, **id).is_ok()).count()
    };
    assert_eq!(got(&mut world), 9);
    assert_eq!(drops(&world, 1, Drop::Full), 11);
    // What was read, or closed, makes room.
    world.sides[0]
        .udp_send(client, at(1, 100), &[0; 1000])
        .expect("sends");
    world.run(10_000);
    assert_eq!(got(&mut world), 1);
}

#[test]
fn a_refusal_is_told_once_and_only_to_who_is_connected() {
    let mut world = world();
    let (plain, connected) = (
        bind(&mut world.sides[0], 1000),
        bind(&mut world.sides[0], 1001),
    );
    world.sides[0]
        .udp_connect(connected, Some(at(1, 9)))
        .expect("connects");
    for id in [plain, connected] {
        world.sides[0].udp_send(id, at(1, 9), b"x").expect("sends");
    }
    world.run(1_000);
    assert_eq!(world.events(0), [Event::Udp(connected)]);
    assert_eq!(receive(&mut world.sides[0], plain), Err(Error::WouldBlock));
    assert_eq!(receive(&mut world.sides[0], connected), Err(Error::Refused));
    assert_eq!(
        receive(&mut world.sides[0], connected),
        Err(Error::WouldBlock)
    );
    world.sides[0]
        .udp_send(connected, at(1, 9), b"x")
        .expect("sends");
    world.run(1_000);
    let sent = world.sides[0].udp_send(connected, at(1, 9), b"x");
    assert_eq!(sent, Err(Error::Refused));
    assert_eq!(world.sides[0].udp_error(connected), Ok(None));
}

#[test]
fn a_path_takes_less_and_is_tried_anew_after_ten_minutes() {
    let mut world = world();
    world.keeps_sent = true;
    let id = bind(&mut world.sides[0], 1000);
    world.sides[0]
        .udp_send(id, at(1, 9), &[0; 1400])
        .expect("sends");
    world.run(1_000);
    let quote = world
        .sent
        .iter()
        .find(|sent| sent.0 == 0 && sent.1[23] == 17);
    let quote = quote.expect("a datagram").1[14..].to_vec();
    let too_big = |mtu: u16| error(3, 4, [0, 0, (mtu >> 8) as u8, mtu as u8], &quote);
    world.inject(0, &too_big(1000));
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 1000);
    world.sent.clear();
    world.sides[0]
        .udp_send(id, at(1, 9), &[0; 1400])
        .expect("sends");
    world.flush();
    let pieces = world.sent.iter().filter(|sent| sent.0 == 0).count();
    assert_eq!(pieces, 2);
    // It only shrinks, and never below what each link takes.
    world.inject(0, &too_big(1200));
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 1000);
    world.inject(0, &too_big(0));
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 552);
    world.run(601_000_000);
    world.flush();
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 1500);
}

#[test]
fn errors_about_what_we_did_not_send_are_counted_and_nothing_else() {
    let mut world = world();
    world.keeps_sent = true;
    let id = bind(&mut world.sides[0], 1000);
    world.sides[0]
        .udp_connect(id, Some(at(1, 9)))
        .expect("connects");
    bind(&mut world.sides[1], 9);
    world.sides[0]
        .udp_send(id, at(1, 9), &[0; 1400])
        .expect("sends");
    world.run(1_000);
    let good = last_sent(&world, 0);
    assert_eq!(good[9], 17);
    let forged = |at: usize, by: u8| {
        let mut quote = good.clone();
        quote[at] ^= by;
        quote
    };
    let too_big = |quote: &[u8]| error(3, 4, [0, 0, 3, 232], quote);
    // Another source address, another port of ours, no first fragment, no larger than claimed.
    let mut small = good.clone();
    small[2..4].copy_from_slice(&900u16.to_be_bytes());
    let foreign = [forged(12, 1), forged(20, 1), forged(7, 1), small];
    for (count, quote) in foreign.iter().enumerate() {
        world.inject(0, &too_big(quote));
        let stray = drops(&world, 0, Drop::Stray) + drops(&world, 0, Drop::Malformed);
        assert_eq!(stray, count as u64 + 1, "quote {count}");
    }
    // Too short to name both ports.
    for len in 0..24 {
        world.inject(0, &too_big(&good[..len]));
    }
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 1500);
    assert_eq!(world.sides[0].udp_error(id), Ok(None));
    world.inject(0, &too_big(&good));
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 1000);
    assert_eq!(world.sides[0].udp_error(id), Ok(Some(Error::TooLong)));
}

#[test]
fn the_table_of_paths_is_bounded() {
    let mut limited = config(0);
    limited.limits.paths_max = 8;
    let mut world = World::with([limited, config(1)], Conditions::default());
    let id = bind(&mut world.sides[0], 1000);
    let from = ip(0);
    for host in 1..100 {
        let to: IpAddr = Ipv4Addr::new(10, 1, 0, host).into();
        let mut body = vec![0; 1400];
        body[..4].copy_from_slice(&[3, 232, 0, 9]);
        let quote = packet(from, to, 17, 64, body, 6);
        world.inject(0, &error(3, 4, [0, 0, 3, 232], &quote));
        assert_eq!(world.sides[0].path_mtu(&to), 1000);
        assert!(world.sides[0].path_count() <= 8);
    }
    world.sides[0].udp_close(id).expect("closes");
}

#[test]
fn who_was_bound_last_gets_all_unless_each_spreads() {
    let mut world = world();
    let options = UdpOptions {
        spreads: false,
        ..SHARED
    };
    let mut bind = |options| {
        world.sides[0]
            .udp_bind_with(None, 1000, options)
            .expect("binds")
    };
    let (first, last) = (bind(SHARED), bind(options));
    for port in 1..9 {
        let id = world.sides[1].udp_bind(None, port).expect("binds");
        world.sides[1]
            .udp_send(id, at(0, 1000), b"x")
            .expect("sends");
    }
    world.run(100_000);
    let mut count = |id| {
        (0..20)
            .filter(|_| receive(&mut world.sides[0], id).is_ok())
            .count()
    };
    assert_eq!((count(first), count(last)), (0, 8));
}

#[test]
fn room_is_asked_for_before_a_datagram_is_lost() {
    let mut world = world();
    let id = world.sides[0].udp_bind(None, 1000).expect("binds");
    world.sides[0].udp_send(id, at(1, 9), b"x").expect("sends");
    world.run(100_000);
    let lost = drops(&world, 0, Drop::Full);
    // To the far end, whose answer is one fragment after the other, and to itself.
    for to in [at(1, 9), at(0, 9)] {
        let mut count = 0;
        while world.sides[0].udp_room() > 0 {
            for _ in 0..world.sides[0].udp_room() {
                let sent = world.sides[0].udp_send(id, to, &[0; 65_507]);
                sent.expect("sends");
                count += 1;
            }
        }
        assert!(count > 4, "{count}");
        assert_eq!(drops(&world, 0, Drop::Full), lost);
        world.run(100_000);
        assert!(world.sides[0].udp_room() > 0);
    }
}

#[test]
fn marks_go_with_each_packet() {
    let mut world = world();
    world.keeps_sent = true;
    let options = UdpOptions {
        hop_limit: Some(7),
        class: 0xb8,
        ..UdpOptions::default()
    };
    let id = world.sides[0]
        .udp_bind_with(None, 1000, options)
        .expect("binds");
    world.sides[0].udp_send(id, at(1, 9), b"x").expect("sends");
    let six = Cidr::link_local(&common::MAC[1]).address;
    for port in [9, 9, 10] {
        world.sides[0]
            .udp_send(id, SocketAddr::new(six, port), b"x")
            .expect("sends");
    }
    world.run(10_000);
    let sent: Vec<&[u8]> = world
        .sent
        .iter()
        .filter(|s| s.0 == 0)
        .map(|s| &s.1[14..])
        .collect();
    let four: Vec<_> = sent.iter().filter(|p| p[0] == 0x45 && p[9] == 17).collect();
    assert_eq!((four[0][1], four[0][8]), (0xb8, 7));
    let six: Vec<_> = sent
        .iter()
        .filter(|p| p[0] >> 4 == 6 && p[6] == 17)
        .collect();
    assert!(
        six.iter()
            .all(|p| p[0..2] == [0x6b, 0x80 | p[1] & 15] && p[7] == 7)
    );
    let label = |p: &[u8]| u32::from_be_bytes([0, p[1] & 15, p[2], p[3]]);
    assert_ne!(label(six[0]), 0);
    assert_eq!(
        label(six[0]),
        label(six[1]),
        "a conversation keeps its label"
    );
    assert_ne!(label(six[0]), label(six[2]));
    // The other side took them all: the checksums are right.
    assert_eq!(drops(&world, 1, Drop::Checksum), 0);
}
