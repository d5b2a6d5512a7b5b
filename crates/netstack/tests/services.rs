//! UDP, ICMP, fragments, DHCP, DNS and loopback between two stacks, one of which plays the
//! server where a server is needed.
#![cfg(all(feature = "dhcp", feature = "dns", feature = "fragments"))]

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::{Conditions, IP, MAC, World, at, ip};
use fordway_netstack::{
    Cidr, DnsError, Drop, Error, Event, RxChecksum, RxFrame, Stack, TcpOptions, UdpId,
};

const DHCP_SERVER: u16 = 67;

fn receive(stack: &mut Stack, id: UdpId) -> Option<(Vec<u8>, SocketAddr, IpAddr)> {
    let mut buffer = vec![0; 65_536];
    let (len, _, from, to) = stack.udp_receive(id, &mut buffer).ok()?;
    Some((buffer[..len].to_vec(), from, to))
}

#[test]
fn datagrams_go_to_the_port_that_wants_them() {
    let mut world = World::new(Conditions::default());
    let any = world.sides[1].udp_bind(None, 53).expect("binds");
    let exact = world.sides[1].udp_bind(Some(ip(1)), 54).expect("binds");
    assert_eq!(world.sides[1].udp_bind(None, 53), Err(Error::AddressInUse));
    let client = world.sides[0].udp_bind(None, 0).expect("binds");
    for (port, len) in [(53, 10), (54, 9000), (53, 0)] {
        world.sides[0]
            .udp_send(client, at(1, port), &vec![7; len])
            .expect("sends");
    }
    world.run(10_000);
    let port = world.sides[0].udp_port(client).expect("a port");
    let events = world.events(1);
    assert_eq!(events, [Event::Udp(any), Event::Udp(exact)]);
    assert_eq!(
        receive(&mut world.sides[1], any),
        Some((vec![7; 10], at(0, port), ip(1)))
    );
    assert_eq!(
        receive(&mut world.sides[1], any),
        Some((vec![], at(0, port), ip(1)))
    );
    assert_eq!(
        receive(&mut world.sides[1], exact).expect("in fragments").0,
        vec![7; 9000]
    );
    world.sides[1].udp_close(any).expect("closes");
    assert_eq!(world.sides[1].udp_close(any), Err(Error::NoSuch));
}

#[test]
fn a_full_queue_drops_and_counts() {
    let mut world = World::new(Conditions::default());
    let server = world.sides[1].udp_bind(None, 53).expect("binds");
    let client = world.sides[0].udp_bind(None, 0).expect("binds");
    for _ in 0..1000 {
        world.sides[0]
            .udp_send(client, at(1, 53), &[1; 1000])
            .expect("sends");
        world.run(1_000);
    }
    let kept = std::iter::from_fn(|| receive(&mut world.sides[1], server)).count();
    assert_eq!(kept, 256 * 1024 / 1064);
    assert_eq!(
        world.sides[1].counters().drops[Drop::Full as usize],
        1000 - kept as u64
    );
}

/// Of the IPv4 header.
fn fill_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|p| u32::from(p[0]) << 8 | u32::from(p[1]))
        .sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

#[test]
fn fragments_that_overlap_or_never_end_are_given_up() {
    let mut world = World::new(Conditions::default());
    world.sides[1].udp_bind(None, 53).expect("binds");
    let client = world.sides[0].udp_bind(None, 0).expect("binds");
    world.keeps_sent = true;
    world.sides[0]
        .udp_send(client, at(1, 53), &[1; 4000])
        .expect("sends");
    world.run(10_000);
    assert_eq!(world.events(1).len(), 1);
    let pieces: Vec<Vec<u8>> = world
        .sent
        .iter()
        .filter(|s| s.1[23] == 17)
        .map(|s| s.1.clone())
        .collect();
    assert_eq!(pieces.len(), 3);
    // The first twice: the second counts for nothing.
    for piece in [&pieces[0], &pieces[0], &pieces[1], &pieces[1], &pieces[2]] {
        world.inject(1, piece);
    }
    world.run(10_000);
    assert_eq!(world.events(1).len(), 1);
    // One that begins eight bytes too early: an overlap, and the packet is lost.
    let mut early = pieces[1].clone();
    early[21] -= 1;
    fill_checksum(&mut early);
    for piece in [&pieces[0], &early, &pieces[1], &pieces[2]] {
        world.inject(1, piece);
    }
    world.run(10_000);
    assert_eq!(world.events(1), []);
    world.run(31_000_000);
    // Thousands of beginnings: bounded, and forgotten.
    for id in 0..10_000u16 {
        let mut piece = pieces[0].clone();
        piece[18..20].copy_from_slice(&id.to_be_bytes());
        fill_checksum(&mut piece);
        world.inject(1, &piece);
    }
    world.run(31_000_000);
    assert_eq!(world.sides[1].poll_at(), None);
    // In order again, it arrives.
    for piece in pieces.iter().rev() {
        world.inject(1, piece);
    }
    assert_eq!(world.events(1).len(), 1);
}

#[test]
fn errors_are_limited_per_second() {
    let mut world = World::new(Conditions::default());
    let client = world.sides[0].udp_bind(None, 0).expect("binds");
    world.sides[0]
        .udp_send(client, at(1, 9), b"x")
        .expect("sends");
    world.run(1_000);
    world.keeps_sent = true;
    for _ in 0..1000 {
        world.sides[0]
            .udp_send(client, at(1, 9), b"x")
            .expect("sends");
        world.run(100);
    }
    let errors = world
        .sent
        .iter()
        .filter(|s| s.0 == 1 && s.1[23] == 1)
        .count();
    assert!((90..=101).contains(&errors), "{errors}");
}

#[test]
fn a_ping_comes_back_over_both_families_and_to_ourselves() {
    let mut world = World::new(Conditions::default());
    let six = Cidr::link_local(&MAC[1]).address;
    for (sequence, to) in [ip(1), six, ip(0), Ipv4Addr::LOCALHOST.into()]
        .into_iter()
        .enumerate()
    {
        world.sides[0]
            .ping(to, 9, sequence as u16, &[3; 100])
            .expect("pings");
    }
    world.run(100_000);
    assert_eq!(world.events(0), [Event::Ping]);
    let mut replies: Vec<_> = std::iter::from_fn(|| world.sides[0].ping_reply()).collect();
    replies.sort_by_key(|reply| reply.sequence);
    let from: Vec<IpAddr> = replies.iter().map(|reply| reply.from).collect();
    assert_eq!(from, [ip(1), six, ip(0), Ipv4Addr::LOCALHOST.into()]);
    assert!(
        replies
            .iter()
            .all(|reply| reply.payload_bytes == 100 && reply.ident == 9)
    );
}

#[test]
fn loopback_connections_need_no_link() {
    let mut world = World::new(Conditions {
        loss_per_mille: 1000,
        ..Conditions::default()
    });
    let local: SocketAddr = "127.0.0.1:80".parse().expect("an address");
    let now = world.now;
    let stack = &mut world.sides[0];
    let listener = stack
        .tcp_listen(None, 80, 4, TcpOptions::default())
        .expect("listens");
    let client = stack
        .tcp_connect(now, local, None, TcpOptions::default())
        .expect("begins");
    world.run(10_000);
    let (server, _) = world.sides[0].tcp_accept(listener).expect("accepts");
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i / 3) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    let mut buffer = [0; 10_000];
    while got.len() < bytes.len() {
        if sent < bytes.len()
            && let Ok(len) = world.sides[0].tcp_send(client, &bytes[sent..])
        {
            sent += len;
        }
        assert!(world.step(world.now + 10_000_000));
        while let Ok(len) = world.sides[0].tcp_receive(server, &mut buffer) {
            got.extend_from_slice(&buffer[..len]);
        }
    }
    assert!(got == bytes);
    assert_eq!(world.sides[0].counters().tx_frames, 0);
    // From outside nobody speaks for 127.0.0.1.
    let mut frame = vec![0; 54];
    frame[..6].copy_from_slice(&MAC[0]);
    frame[12..34].copy_from_slice(&[
        8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0x7c, 0xce, 127, 0, 0, 1, 127, 0, 0, 1,
    ]);
    world.inject(0, &frame);
    assert_eq!(world.sides[0].counters().drops[Drop::Source as usize], 1);
}

/// What a DHCP server would say; `kind` is the message type.
fn dhcp_answer(request: &[u8], kind: u8, lease_s: u32) -> Vec<u8> {
    let mut m = vec![0; 240];
    m[..3].copy_from_slice(&[2, 1, 6]);
    m[4..8].copy_from_slice(&request[4..8]);
    m[16..20].copy_from_slice(&[10, 0, 0, 77]);
    m[28..34].copy_from_slice(&request[28..34]);
    m[236..240].copy_from_slice(&[99, 130, 83, 99]);
    m.extend_from_slice(&[
        53, 1, kind, 54, 4, 10, 0, 0, 2, 1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 2,
    ]);
    m.extend_from_slice(&[6, 4, 10, 0, 0, 2, 51, 4]);
    m.extend_from_slice(&lease_s.to_be_bytes());
    m.push(255);
    m
}

/// Answers what waits at the server; gives the kinds that were asked.
fn serve_dhcp(world: &mut World, server: UdpId, lease_s: u32, is_willing: bool) -> Vec<u8> {
    let mut asked = Vec::new();
    while let Some((request, from, _)) = receive(&mut world.sides[1], server) {
        let kind = request[242];
        asked.push(kind);
        let answer = match (kind, is_willing) {
            (1, true) => dhcp_answer(&request, 2, lease_s),
            (3, true) => dhcp_answer(&request, 5, lease_s),
            (3, false) => dhcp_answer(&request, 6, 0),
            _ => continue,
        };
        let to = if from.ip().is_unspecified() {
            SocketAddr::new(Ipv4Addr::BROADCAST.into(), 68)
        } else {
            SocketAddr::new(from.ip(), 68)
        };
        world.sides[1]
            .udp_send(server, to, &answer)
            .expect("answers");
    }
    asked
}

#[test]
fn dhcp_lends_renews_and_takes_back() {
    let mut world = World::new(Conditions::default());
    world.sides[0].set_addresses(&[]);
    let server = world.sides[1].udp_bind(None, DHCP_SERVER).expect("binds");
    let now = world.now;
    world.sides[0].dhcp_start(now);
    for _ in 0..4 {
        world.run(5_000);
        serve_dhcp(&mut world, server, 1000, true);
    }
    assert_eq!(world.events(0), [Event::Lease]);
    let lease = world.sides[0].dhcp_lease().expect("a lease").clone();
    assert_eq!(
        lease.address,
        Cidr::new(Ipv4Addr::new(10, 0, 0, 77).into(), 24)
    );
    assert_eq!(lease.router, Some(IP[1]));
    assert_eq!(lease.name_servers, [IP[1]]);
    assert_eq!(world.sides[0].addresses(), [lease.address]);
    assert_eq!(world.sides[0].routes().len(), 1);
    // Half the time later it asks that server, without a word to the owner.
    world.run(501_000_000);
    assert_eq!(serve_dhcp(&mut world, server, 1000, true), [3]);
    world.run(5_000);
    assert!(world.sides[0].dhcp_lease().expect("a lease").ends_at > lease.ends_at);
    assert_eq!(world.events(0), []);
    // Nobody answers: it ends.
    world.run(1_100_000_000);
    assert_eq!(world.events(0), [Event::Lease]);
    assert_eq!(world.sides[0].dhcp_lease(), None);
    assert!(world.sides[0].addresses().is_empty() && world.sides[0].routes().is_empty());
    while receive(&mut world.sides[1], server).is_some() {}
    // And begins again.
    for _ in 0..40 {
        world.run(5_000_000);
        serve_dhcp(&mut world, server, 1000, true);
    }
    assert!(world.sides[0].dhcp_lease().is_some());
    // A refusal when it is renewed takes the address at once.
    world.run(450_000_000);
    serve_dhcp(&mut world, server, 1000, false);
    world.run(5_000);
    assert_eq!(world.sides[0].dhcp_lease(), None);
}

fn dns_answer(query: &[u8], flags: u16, addresses: &[[u8; 4]]) -> Vec<u8> {
    let mut m = query.to_vec();
    m[2..4].copy_from_slice(&flags.to_be_bytes());
    m[6..8].copy_from_slice(&(addresses.len() as u16 + 1).to_be_bytes());
    // An alias first, whose name is a pointer to the question's.
    m.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 4, 1, b'x', 0xc0, 12]);
    for address in addresses {
        m.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
        m.extend_from_slice(address);
    }
    m
}

#[test]
fn names_are_asked_for_and_only_the_right_answer_counts() {
    let mut world = World::new(Conditions::default());
    let server = world.sides[1].udp_bind(None, 53).expect("binds");
    let liar = world.sides[1].udp_bind(None, 54).expect("binds");
    world.sides[0].dns_set_servers(&[ip(1)]);
    let now = world.now;
    let id = world.sides[0]
        .dns_query(now, "www.Example.org", false)
        .expect("asks");
    assert_eq!(
        world.sides[0].dns_query(now, "a..b", false),
        Err(Error::TooLong)
    );
    world.run(5_000);
    let (query, from, _) = receive(&mut world.sides[1], server).expect("a question");
    assert_eq!(&query[12..29], b"\x03www\x07example\x03org\0");
    let good = dns_answer(&query, 0x8180, &[[1, 2, 3, 4], [5, 6, 7, 8]]);
    // From the wrong port, with the wrong identifier, for another name.
    world.sides[1].udp_send(liar, from, &good).expect("sends");
    let mut wrong = good.clone();
    wrong[0] ^= 1;
    world.sides[1]
        .udp_send(server, from, &wrong)
        .expect("sends");
    let mut other = good.clone();
    other[13] = b'v';
    world.sides[1]
        .udp_send(server, from, &other)
        .expect("sends");
    world.run(5_000);
    assert_eq!(world.sides[0].dns_answer(), None);
    world.sides[1].udp_send(server, from, &good).expect("sends");
    world.run(5_000);
    let addresses = [
        Ipv4Addr::new(1, 2, 3, 4).into(),
        Ipv4Addr::new(5, 6, 7, 8).into(),
    ];
    assert_eq!(world.events(0), [Event::Dns]);
    assert_eq!(
        world.sides[0].dns_answer(),
        Some((id, Ok(addresses.to_vec())))
    );
    // A record whose length is not that of its kind is no address.
    let now = world.now;
    let six = world.sides[0]
        .dns_query(now, "six.example.org", true)
        .expect("asks");
    world.run(5_000);
    let (query, from, _) = receive(&mut world.sides[1], server).expect("a question");
    let mut short = query.clone();
    short[2..4].copy_from_slice(&0x8180u16.to_be_bytes());
    short[6..8].copy_from_slice(&1u16.to_be_bytes());
    short.extend_from_slice(&[0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4]);
    world.sides[1]
        .udp_send(server, from, &short)
        .expect("sends");
    world.run(5_000);
    assert_eq!(
        world.sides[0].dns_answer(),
        Some((six, Err(DnsError::NoName)))
    );
    // No such name; no answer at all.
    let now = world.now;
    let none = world.sides[0]
        .dns_query(now, "no.example.org", true)
        .expect("asks");
    world.run(5_000);
    let (query, from, _) = receive(&mut world.sides[1], server).expect("a question");
    world.sides[1]
        .udp_send(server, from, &dns_answer(&query, 0x8183, &[]))
        .expect("sends");
    world.run(5_000);
    assert_eq!(
        world.sides[0].dns_answer(),
        Some((none, Err(DnsError::NoName)))
    );
    let now = world.now;
    let late = world.sides[0]
        .dns_query(now, "late.example.org", false)
        .expect("asks");
    world.run(20_000_000);
    assert_eq!(
        world.sides[0].dns_answer(),
        Some((late, Err(DnsError::TimedOut)))
    );
    assert_eq!(
        std::iter::from_fn(|| receive(&mut world.sides[1], server)).count(),
        3
    );
}

#[test]
fn frames_for_others_and_broken_ones_are_counted() {
    let mut world = World::new(Conditions::default());
    let give = |world: &mut World, bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let mut frame = RxFrame {
            bytes: &mut bytes,
            checksum: RxChecksum::Unchecked,
        };
        world.sides[0].receive(world.now, &mut frame);
    };
    for len in 0..60 {
        give(&mut world, &vec![0xff; len]);
        give(&mut world, &vec![0; len]);
    }
    assert_eq!(world.sides[0].counters().drops.iter().sum::<u64>(), 120);
}
