//! IPv6 by itself: addresses asked for and made, routers found and lost, groups reported,
//! extension headers; and what a hostile neighbor gets from all that.
#![cfg(feature = "autoconf")]

mod common;

use std::net::{IpAddr, Ipv6Addr};

use common::wire::{frame, icmpv6, packet};
use common::{Conditions, MAC, World, config, ip};
use fordway_netstack::{
    AddressState, Cidr, Drop, Event, Ipv6Options, Micros, Route, TcpOptions, UdpOptions,
};

const SECOND: Micros = 1_000_000;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0);
const FOREVER: u32 = u32::MAX;

fn link_local(side: usize) -> Ipv6Addr {
    match Cidr::link_local(&MAC[side]).address {
        IpAddr::V6(six) => six,
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
    }
}

/// What the side makes of a prefix.
fn made(prefix: Ipv6Addr) -> Ipv6Addr {
    let host = link_local(0).to_bits() & u128::from(u64::MAX);
    Ipv6Addr::from_bits(prefix.to_bits() | host)
}

fn advertisement(lifetime_s: u16, flags: u8, options: &[u8]) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 50, flags];
    message.extend_from_slice(&lifetime_s.to_be_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(options);
    message
}

fn prefix(prefix: Ipv6Addr, flags: u8, valid_s: u32, preferred_s: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend_from_slice(&valid_s.to_be_bytes());
    option.extend_from_slice(&preferred_s.to_be_bytes());
    option.extend_from_slice(&[0; 4]);
    option.extend_from_slice(&prefix.octets());
    option
}

fn advertise(world: &mut World, router: Ipv6Addr, message: &[u8]) {
    world.inject(0, &frame(0, &icmpv6(router, ALL_NODES, 255, message)));
}

/// Both ways of a prefix: on the link, and for addresses.
const BOTH: u8 = 0xc0;

/// A side that has begun; the other has no address of IPv6.
fn begun(options: Ipv6Options) -> World {
    let mut world = World::new(Conditions::default());
    world.keeps_sent = true;
    for side in 0..2 {
        world.sides[side].set_addresses(&[Cidr::new(ip(side), 24)]);
    }
    let now = world.now;
    world.sides[0].ipv6_start(now, options);
    world
}

fn without_questions() -> Ipv6Options {
    Ipv6Options {
        detects_duplicates: false,
        ..Ipv6Options::default()
    }
}

/// Type, source, hop limit and message of what the side has sent by ICMPv6.
fn messages(world: &World) -> Vec<(u8, Ipv6Addr, u8, Vec<u8>)> {
    let sent = world
        .sent
        .iter()
        .filter(|s| s.0 == 0 && s.1[12..14] == [0x86, 0xdd]);
    sent.map(|(_, frame, _)| {
        let ip = &frame[14..];
        let at = if ip[6] == 0 { 48 } else { 40 };
        let source: [u8; 16] = ip[8..24].try_into().expect("16 bytes");
        (ip[at], Ipv6Addr::from(source), ip[7], ip[at..].to_vec())
    })
    .collect()
}

fn kinds(world: &World) -> Vec<u8> {
    messages(world).iter().map(|message| message.0).collect()
}

fn state_of(world: &World, address: Ipv6Addr) -> Option<AddressState> {
    let mut all = world.sides[0].ipv6_addresses();
    all.find(|(own, _)| own.address == address)
        .map(|(_, state)| state)
}

fn has(world: &World, address: Ipv6Addr) -> bool {
    let own = world.sides[0].addresses();
    own.iter().any(|own| own.address == address)
}

fn discovery(world: &World) -> u64 {
    world.sides[0].counters().drops[Drop::Discovery as usize]
}

#[test]
fn an_address_is_asked_for_and_then_routers() {
    let mut world = begun(Ipv6Options::default());
    let own = link_local(0);
    assert_eq!(state_of(&world, own), Some(AddressState::Tentative));
    assert!(!has(&world, own));
    world.run(2_500_000);
    assert!(has(&world, own));
    assert_eq!(world.events(0), [Event::Ipv6]);
    let sent = messages(&world);
    // The group first, without a source; then the question to it; then the router's turn.
    let report = &sent[0];
    assert_eq!(
        (report.0, report.1, report.2),
        (143, Ipv6Addr::UNSPECIFIED, 1)
    );
    let question = sent.iter().position(|m| m.0 == 135).expect("a question");
    assert_eq!(sent[question].1, Ipv6Addr::UNSPECIFIED);
    assert_eq!(sent[question].3[8..24], own.octets());
    world.run(2 * SECOND);
    let sent = messages(&world);
    let solicitation = sent.iter().find(|m| m.0 == 133).expect("a solicitation");
    assert_eq!((solicitation.1, solicitation.2), (own, 255));
    let reports: Vec<Ipv6Addr> = sent.iter().filter(|m| m.0 == 143).map(|m| m.1).collect();
    let none = Ipv6Addr::UNSPECIFIED;
    assert_eq!(reports, [none, none, own], "twice, and once with a source");
}

#[test]
fn a_router_brings_an_address_a_way_and_the_link_s_size() {
    let mut world = begun(Ipv6Options::default());
    world.run(3 * SECOND);
    let mut options = prefix(PREFIX, BOTH, 7200, 1800);
    options.extend_from_slice(&[5, 1, 0, 0, 0, 0, 5, 120]);
    options.extend_from_slice(&[1, 1]);
    options.extend_from_slice(&MAC[1]);
    advertise(&mut world, ROUTER, &advertisement(1800, 0, &options));
    assert_eq!(
        state_of(&world, made(PREFIX)),
        Some(AddressState::Tentative)
    );
    world.run(3 * SECOND);
    assert!(has(&world, made(PREFIX)));
    assert_eq!(world.sides[0].ipv6_routers(), [IpAddr::V6(ROUTER)]);
    let far: IpAddr = "2001:db8:ffff::1".parse().expect("an address");
    assert_eq!(world.sides[0].path_mtu(&far), 1400);
    assert_eq!(world.sides[0].path_mtu(&ip(1)), 1500);
    assert_eq!(world.sides[0].source_for(&far), Some(made(PREFIX).into()));
    // To the router's Ethernet address, which its word has told; no hop limit but the router's.
    world.sent.clear();
    world.sides[0].ping(far, 1, 1, &[]).expect("pings");
    // On the link: asked for itself.
    let near = Ipv6Addr::from_bits(PREFIX.to_bits() | 0x77);
    world.sides[0].ping(near.into(), 1, 1, &[]).expect("pings");
    world.run(100_000);
    let sent = messages(&world);
    assert_eq!((sent[0].0, sent[0].2), (128, 50));
    assert_eq!(world.sent[0].1[..6], MAC[1]);
    assert_eq!((sent[1].0, &sent[1].3[8..24]), (135, &near.octets()[..]));
    // Nobody is asked any more.
    world.sent.clear();
    world.run(100 * SECOND);
    assert!(!kinds(&world).contains(&133));
}

#[test]
fn what_sockets_send_has_the_router_s_hop_limit_unless_they_say_one() {
    let mut world = begun(without_questions());
    let option = prefix(PREFIX, BOTH, 7200, 1800);
    advertise(&mut world, link_local(1), &advertisement(1800, 0, &option));
    let link = [1, 1, 2, 0, 0, 0, 0, 2];
    advertise(&mut world, link_local(1), &advertisement(1800, 0, &link));
    let far: IpAddr = "2001:db8:ffff::1".parse().expect("an address");
    let far = std::net::SocketAddr::new(far, 9);
    for (set, shown) in [(None, 50), (Some(7), 7)] {
        world.sent.clear();
        let udp = UdpOptions {
            hop_limit: set,
            ..UdpOptions::default()
        };
        let tcp = TcpOptions {
            hop_limit: set,
            ..TcpOptions::default()
        };
        let now = world.now;
        let side = &mut world.sides[0];
        let id = side.udp_bind_with(None, 0, udp).expect("binds");
        side.udp_send(id, far, b"x").expect("sends");
        side.tcp_connect(now, far, None, tcp).expect("begins");
        world.run(1_000);
        let sent: Vec<_> = world.sent.iter().filter(|sent| sent.0 == 0).collect();
        // Of UDP, of TCP: next header and hop limit.
        for protocol in [17, 6] {
            let found = sent.iter().find(|sent| sent.1[20] == protocol);
            assert_eq!(found.map(|sent| sent.1[21]), Some(shown), "{protocol}");
        }
    }
}

#[test]
fn where_only_given_addresses_pass_none_is_made() {
    let mut world = begun(Ipv6Options {
        makes_addresses: false,
        ..without_questions()
    });
    let option = prefix(PREFIX, BOTH, 7200, 1800);
    advertise(&mut world, ROUTER, &advertisement(1800, 0, &option));
    assert_eq!(state_of(&world, made(PREFIX)), None);
    assert!(!has(&world, made(PREFIX)));
    // The rest is heard: the way, and what is on the link.
    assert_eq!(world.sides[0].ipv6_routers(), [IpAddr::V6(ROUTER)]);
    let near = Ipv6Addr::from_bits(PREFIX.to_bits() | 0x77);
    world.sent.clear();
    world.sides[0].ping(near.into(), 1, 1, &[]).expect("pings");
    world.run(1_000);
    let asked = messages(&world).into_iter().find(|m| m.0 == 135);
    let asked = asked.expect("asked for itself");
    assert_eq!(asked.3[8..24], near.octets());
}

#[test]
fn a_network_that_a_router_tells_of_stands_behind_the_owner_s_routes_unless_it_is_longer() {
    let gateway = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
    let near = Ipv6Addr::from_bits(PREFIX.to_bits() | 0x77);
    // How long the owner's prefix is, and whose Ethernet address is asked for then.
    for (prefix_len, asked) in [(32, near), (64, gateway), (80, gateway)] {
        let mut world = begun(without_questions());
        let option = prefix(PREFIX, 0x80, 7200, 1800);
        advertise(&mut world, ROUTER, &advertisement(1800, 0, &option));
        world.sides[0].set_routes(&[Route {
            destination: Cidr::new(PREFIX.into(), prefix_len),
            gateway: gateway.into(),
        }]);
        world.sent.clear();
        world.sides[0].ping(near.into(), 1, 1, &[]).expect("pings");
        world.run(1_000);
        let question = messages(&world).into_iter().find(|m| m.0 == 135);
        let question = question.expect("a question");
        assert_eq!(question.3[8..24], asked.octets(), "{prefix_len}");
    }
}

/// A packet of IPv6 in two fragments, the first of `first` bytes behind the header.
#[cfg(feature = "fragments")]
fn in_fragments(packet: &[u8], first: usize) -> [Vec<u8>; 2] {
    let (header, payload) = packet.split_at(40);
    [(0, &payload[..first]), (first, &payload[first..])].map(|(at, piece)| {
        let more = u16::from(at == 0);
        let mut all = header.to_vec();
        all[4..6].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
        let protocol = std::mem::replace(&mut all[6], 44);
        all.extend_from_slice(&[protocol, 0]);
        all.extend_from_slice(&(at as u16 | more).to_be_bytes());
        all.extend_from_slice(&[0, 0, 0, 9]);
        all.extend_from_slice(piece);
        all
    })
}

#[test]
#[cfg(feature = "fragments")]
fn a_router_s_word_in_fragments_is_not_believed() {
    let mut world = begun(without_questions());
    let word = advertisement(1800, 0, &prefix(PREFIX, BOTH, 7200, 1800));
    let word = icmpv6(ROUTER, ALL_NODES, 255, &word);
    for piece in in_fragments(&word, 24) {
        world.inject(0, &frame(0, &piece));
    }
    assert!(world.sides[0].ipv6_routers().is_empty());
    assert!(!has(&world, made(PREFIX)));
    assert_eq!(discovery(&world), 1);
    // What is no word of discovery comes in fragments as ever.
    let id = world.sides[0].udp_bind(None, 53).expect("binds");
    let mut datagram = vec![0, 9, 0, 53, 0, 40, 0, 0];
    datagram.extend_from_slice(&[7; 32]);
    let datagram = packet(ROUTER.into(), link_local(0).into(), 17, 64, datagram, 6);
    for piece in in_fragments(&datagram, 24) {
        world.inject(0, &frame(0, &piece));
    }
    assert!(world.sides[0].udp_receive(id, &mut [0; 64]).is_ok());
}

#[test]
fn routers_have_no_say_in_the_owner_s_addresses() {
    let mut world = begun(Ipv6Options::default());
    let now = world.now;
    // As many as the owner wants.
    for n in 0..20 {
        let own = Ipv6Addr::from_bits(PREFIX.to_bits() | (0x100 + n));
        let own = Cidr::new(own.into(), 64);
        world.sides[0].ipv6_add(now, own).expect("adds");
    }
    let own = Cidr::new(made(PREFIX).into(), 64);
    world.sides[0].ipv6_add(now, own).expect("adds");
    world.run(3 * SECOND);
    assert_eq!(world.sides[0].ipv6_addresses().count(), 22);
    let option = prefix(PREFIX, BOTH, 100, 50);
    advertise(&mut world, ROUTER, &advertisement(1800, 0, &option));
    world.run(3 * 3600 * SECOND);
    assert_eq!(state_of(&world, made(PREFIX)), Some(AddressState::Good));
}

#[test]
fn solicitations_become_rare() {
    let mut world = begun(without_questions());
    world.run(3600 * SECOND);
    let count = kinds(&world).iter().filter(|kind| **kind == 133).count();
    // 4, 8, 16 ... seconds apart, each a tenth more or less.
    assert!((9..=11).contains(&count), "{count}");
    world.run(24 * 3600 * SECOND);
    let later = kinds(&world).iter().filter(|kind| **kind == 133).count() - count;
    assert!((20..=28).contains(&later), "{later}");
}

#[test]
fn without_questions_an_address_is_ours_at_once() {
    let mut world = begun(without_questions());
    assert!(has(&world, link_local(0)));
    advertise(
        &mut world,
        ROUTER,
        &advertisement(0, 0, &prefix(PREFIX, BOTH, 100, 50)),
    );
    assert!(has(&world, made(PREFIX)));
    world.run(3 * SECOND);
    assert!(!kinds(&world).contains(&135));
}

#[test]
fn what_somebody_else_has_is_not_used() {
    // One answers, one asks as we do.
    let own = link_local(0);
    let mut answer = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    answer.extend_from_slice(&own.octets());
    answer.extend_from_slice(&[2, 1, 2, 0, 0, 0, 0, 9]);
    let answer = icmpv6(ROUTER, ALL_NODES, 255, &answer);
    let mut question = vec![135, 0, 0, 0, 0, 0, 0, 0];
    question.extend_from_slice(&own.octets());
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
    let question = icmpv6(Ipv6Addr::UNSPECIFIED, group, 255, &question);
    for bytes in [answer, question] {
        let mut world = begun(Ipv6Options::default());
        world.run(1_200_000);
        assert_eq!(state_of(&world, own), Some(AddressState::Tentative));
        world.inject(0, &frame(0, &bytes));
        assert_eq!(state_of(&world, own), Some(AddressState::Duplicate));
        assert_eq!(world.events(0), [Event::Ipv6]);
        assert_eq!(world.sides[0].counters().duplicate_addresses, 1);
        world.run(20 * SECOND);
        assert!(!has(&world, own));
        assert!(!kinds(&world).contains(&133), "nothing to ask with");
        assert!(world.sides[0].poll_at().is_none(), "it rests");
    }
    // The other stack answers by itself.
    let mut world = begun(Ipv6Options::default());
    world.sides[1].set_addresses(&[Cidr::new(own.into(), 64)]);
    world.run(5 * SECOND);
    assert_eq!(state_of(&world, own), Some(AddressState::Duplicate));
}

#[test]
fn our_own_question_that_comes_back_is_nobody_else_s() {
    let mut world = begun(Ipv6Options::default());
    world.run(1_200_000);
    let question = world
        .sent
        .iter()
        .find(|s| s.0 == 0 && s.1[14..].get(40) == Some(&135));
    let question = question.expect("a question").1.clone();
    world.inject(0, &question);
    world.run(2 * SECOND);
    assert_eq!(state_of(&world, link_local(0)), Some(AddressState::Good));
    // With another nonce it is somebody's.
    let mut world = begun(Ipv6Options::default());
    world.run(1_200_000);
    let mut other = question[14..].to_vec();
    other[40 + 26] ^= 1;
    let message = other[40..].to_vec();
    let group: [u8; 16] = other[24..40].try_into().expect("16 bytes");
    let other = packet(
        Ipv6Addr::UNSPECIFIED.into(),
        Ipv6Addr::from(group).into(),
        58,
        255,
        message,
        2,
    );
    world.inject(0, &frame(0, &other));
    assert_eq!(
        state_of(&world, link_local(0)),
        Some(AddressState::Duplicate)
    );
}

#[test]
fn an_added_address_is_asked_for_too() {
    let mut world = begun(Ipv6Options::default());
    world.run(3 * SECOND);
    let own = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);
    let now = world.now;
    world.sides[0]
        .ipv6_add(now, Cidr::new(own.into(), 64))
        .expect("adds");
    assert!(!has(&world, own));
    world.run(3 * SECOND);
    assert!(has(&world, own));
    // The administrator's list stands beside what is looked after.
    world.sides[0].set_addresses(&[Cidr::new(ip(0), 24)]);
    assert!(has(&world, own) && has(&world, link_local(0)));
    world.sides[0].ipv6_stop();
    assert_eq!(world.sides[0].addresses(), [Cidr::new(ip(0), 24)]);
    world.run(SECOND);
    assert_eq!(world.sides[0].poll_at(), None);
}

#[test]
fn lifetimes_end() {
    let mut world = begun(without_questions());
    let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 0);
    let far: IpAddr = "2001:db8:0:1:ffff::1".parse().expect("an address");
    let mut options = prefix(PREFIX, BOTH, 200, 100);
    options.extend(prefix(other, BOTH, FOREVER, FOREVER));
    advertise(&mut world, ROUTER, &advertisement(300, 0, &options));
    assert_eq!(world.sides[0].source_for(&far), Some(made(PREFIX).into()));
    world.run(101 * SECOND);
    assert_eq!(
        state_of(&world, made(PREFIX)),
        Some(AddressState::Deprecated)
    );
    assert_eq!(world.sides[0].source_for(&far), Some(made(other).into()));
    world.events(0);
    world.run(100 * SECOND);
    assert!(!has(&world, made(PREFIX)));
    assert_eq!(world.events(0), [Event::Ipv6]);
    assert!(!world.sides[0].ipv6_routers().is_empty());
    world.run(100 * SECOND);
    assert!(world.sides[0].ipv6_routers().is_empty());
    world.sent.clear();
    world.run(10 * SECOND);
    assert!(kinds(&world).contains(&133), "others are asked for");
    assert!(has(&world, made(other)));
}

#[test]
fn one_forged_word_takes_no_address_away() {
    let mut world = begun(without_questions());
    let advertise = |world: &mut World, valid: u32| {
        let option = prefix(PREFIX, BOTH, valid, valid.min(10));
        advertise(world, ROUTER, &advertisement(1800, 0, &option));
    };
    advertise(&mut world, 86_400);
    // Two hours are left, whatever is said, and not more after it is said again.
    advertise(&mut world, 0);
    world.run(3600 * SECOND);
    advertise(&mut world, 1);
    world.run(3590 * SECOND);
    assert!(has(&world, made(PREFIX)));
    world.run(20 * SECOND);
    assert!(!has(&world, made(PREFIX)));
}

#[test]
fn routers_are_taken_by_preference_and_left_when_silent() {
    let mut world = begun(without_questions());
    let routers = [1u16, 2, 3].map(|n| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n));
    let [low, medium, high] = routers;
    for (router, flags) in [(medium, 0), (low, 0x18), (high, 0x08)] {
        advertise(&mut world, router, &advertisement(1800, flags, &[]));
    }
    let order = |world: &World| world.sides[0].ipv6_routers().to_vec();
    assert_eq!(order(&world), [high, medium, low].map(IpAddr::V6));
    // Nobody answers for the first: the next gets the packets.
    let far: IpAddr = "2001:db8:ffff::1".parse().expect("an address");
    world.sides[0].ping(far, 1, 1, &[]).expect("pings");
    world.run(5 * SECOND);
    assert_eq!(order(&world), [medium, low, high].map(IpAddr::V6));
    // No router any more, by its own word; by its neighbor's.
    advertise(&mut world, low, &advertisement(0, 0, &[]));
    assert_eq!(order(&world), [medium, high].map(IpAddr::V6));
    let mut host = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    host.extend_from_slice(&medium.octets());
    host.extend_from_slice(&[2, 1, 2, 0, 0, 0, 0, 9]);
    world.inject(0, &frame(0, &icmpv6(medium, ALL_NODES, 255, &host)));
    assert_eq!(order(&world), [high].map(IpAddr::V6));
}

#[test]
fn a_lying_neighbor_is_bounded_and_counted() {
    let mut world = begun(without_questions());
    let good = advertisement(1800, 0, &prefix(PREFIX, BOTH, 100, 100));
    let give = |world: &mut World, source: Ipv6Addr, hops: u8, message: &[u8]| {
        let before = world.sides[0].counters().drops.iter().sum::<u64>();
        world.inject(0, &frame(0, &icmpv6(source, ALL_NODES, hops, message)));
        let after = world.sides[0].counters().drops.iter().sum::<u64>();
        assert_eq!(after, before + 1, "it is dropped");
    };
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 9, 0, 0, 0, 1);
    give(&mut world, ROUTER, 64, &good);
    give(&mut world, global, 255, &good);
    for cut in [4, 15, 20, 40] {
        give(&mut world, ROUTER, 255, &good[..cut]);
    }
    let mut endless = good.clone();
    endless.extend_from_slice(&[3, 0]);
    give(&mut world, ROUTER, 255, &endless);
    assert!(world.sides[0].ipv6_routers().is_empty() && !has(&world, made(PREFIX)));
    // A thousand of everything.
    for n in 0..1000u16 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
        let net = Ipv6Addr::new(0x2001, 0xdb8, 1, n, 0, 0, 0, 0);
        advertise(
            &mut world,
            router,
            &advertisement(1800, 0x08, &prefix(net, BOTH, 9999, 9999)),
        );
    }
    assert_eq!(world.sides[0].ipv6_routers().len(), 8);
    assert!(world.sides[0].ipv6_addresses().count() <= 9);
    assert!(discovery(&world) >= 992, "{}", discovery(&world));
    // A link cannot be made narrower than IPv6 allows, nor wider than it is.
    for mtu in [0u32, 1279, 1501, u32::MAX] {
        let mut option = vec![5, 1, 0, 0];
        option.extend_from_slice(&mtu.to_be_bytes());
        advertise(&mut world, ROUTER, &advertisement(0, 0, &option));
        assert_eq!(world.sides[0].path_mtu(&global.into()), 1500);
    }
    // Off, nothing of it is believed.
    let quiet = Ipv6Options {
        asks_routers: false,
        makes_addresses: true,
        detects_duplicates: false,
    };
    let mut world = begun(quiet);
    give(&mut world, ROUTER, 255, &good);
    assert!(!has(&world, made(PREFIX)));
    world.run(20 * SECOND);
    assert!(!kinds(&world).contains(&133));
}

/// Record types and groups of the last report.
fn records(world: &World) -> Vec<(u8, Ipv6Addr)> {
    let sent = messages(world);
    let report = sent.iter().rfind(|m| m.0 == 143).expect("a report");
    let count = usize::from(u16::from_be_bytes([report.3[6], report.3[7]]));
    let records: Vec<_> = report.3[8..].chunks(20).collect();
    assert_eq!(records.len(), count);
    let group = |record: &&[u8]| {
        let octets: [u8; 16] = record[4..20].try_into().expect("16 bytes");
        (record[0], Ipv6Addr::from(octets))
    };
    records.iter().map(group).collect()
}

#[test]
fn groups_are_reported_when_joined_asked_for_and_left() {
    let mut world = begun(Ipv6Options {
        asks_routers: false,
        makes_addresses: true,
        detects_duplicates: false,
    });
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
    let other = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 5);
    world.run(2 * SECOND);
    assert_eq!(records(&world), [(4, group)]);
    let own = Cidr::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5).into(), 64);
    world.sides[0].set_addresses(&[own]);
    world.run(2 * SECOND);
    assert_eq!(records(&world), [(4, other)]);
    // Asked: all, within the time that the query gives.
    let query = |hops: u8, about: Ipv6Addr| {
        let mut message = vec![130, 0, 0, 0, 0x03, 0xe8, 0, 0];
        message.extend_from_slice(&about.octets());
        message.extend_from_slice(&[0; 4]);
        frame(0, &icmpv6(ROUTER, ALL_NODES, hops, &message))
    };
    for about in [Ipv6Addr::UNSPECIFIED, group] {
        world.sent.clear();
        world.inject(0, &query(1, about));
        world.run(SECOND + 1);
        let mut all = records(&world);
        all.sort_unstable();
        assert_eq!(all, [(2, group), (2, other)]);
        assert_eq!(kinds(&world), [143]);
    }
    world.sent.clear();
    world.inject(0, &query(64, Ipv6Addr::UNSPECIFIED));
    world.inject(0, &query(1, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x77)));
    world.run(10 * SECOND);
    assert_eq!(kinds(&world), []);
    assert_eq!(discovery(&world), 1);
    world.sides[0].set_addresses(&[]);
    world.run(SECOND);
    assert_eq!(records(&world), [(3, other)]);
}

#[test]
fn whoever_asks_for_groups_is_answered_every_tenth_of_a_second_at_most() {
    let mut world = begun(Ipv6Options {
        asks_routers: false,
        ..without_questions()
    });
    world.run(2 * SECOND);
    world.sent.clear();
    // For all, at once, a thousand times in a second.
    let mut question = vec![130];
    question.resize(28, 0);
    let question = frame(0, &icmpv6(ROUTER, ALL_NODES, 1, &question));
    for _ in 0..1000 {
        world.inject(0, &question);
        world.run(1_000);
    }
    let count = kinds(&world).iter().filter(|kind| **kind == 143).count();
    assert!((9..=11).contains(&count), "{count}");
}

#[test]
fn extension_headers_are_walked_so_far_and_no_farther() {
    let mut world = World::new(Conditions::default());
    let id = world.sides[0].udp_bind(None, 53).expect("binds");
    let (src, dst) = (link_local(1), link_local(0));
    // `chain`: type and body of each header; the body follows the next header's number.
    let mut give = |chain: &[(u8, &[u8])]| {
        let datagram = packet(
            src.into(),
            dst.into(),
            17,
            64,
            vec![0, 9, 0, 53, 0, 8, 0, 0],
            6,
        );
        let mut payload = datagram[40..].to_vec();
        let mut next = 17;
        for (kind, body) in chain.iter().rev() {
            let mut header = vec![next, (body.len() as u8 + 2) / 8 - 1];
            header.extend_from_slice(body);
            header.extend_from_slice(&payload);
            (payload, next) = (header, *kind);
        }
        let mut bytes = datagram[..40].to_vec();
        bytes[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        bytes[6] = next;
        bytes.extend_from_slice(&payload);
        world.inject(0, &frame(0, &bytes));
        world.sides[0].udp_receive(id, &mut []).is_ok()
    };
    const PAD: &[u8] = &[1, 4, 0, 0, 0, 0];
    let (unknown, must) = (&[0x1e, 4, 0, 0, 0, 0][..], &[0xde, 4, 0, 0, 0, 0][..]);
    assert!(give(&[]));
    assert!(give(&[(0, PAD), (60, PAD), (43, &[0, 0, 0, 0, 0, 0])]));
    assert!(give(&[(60, unknown)]), "an option that may be skipped");
    assert!(!give(&[(60, must)]), "an option that must be understood");
    assert!(!give(&[(0, must)]));
    assert!(
        !give(&[(60, PAD), (0, PAD)]),
        "for every router, but not first"
    );
    assert!(!give(&[(43, &[0, 1, 0, 0, 0, 0])]), "we are to send it on");
    assert!(
        !give(&[(60, &[1, 200, 0, 0, 0, 0])]),
        "an option beyond its header"
    );
    assert!(give(&[(60, PAD); 8]));
    assert!(!give(&[(60, PAD); 9]), "too many");
    assert!(give(&[(60, &[0, 0, 0, 0, 0, 0])]));
}

#[test]
fn both_sides_find_each_other() {
    let mut world = World::with([config(0), config(1)], Conditions::default());
    for side in 0..2 {
        world.sides[side].set_addresses(&[]);
        let now = world.now;
        world.sides[side].ipv6_start(now, Ipv6Options::default());
    }
    world.run(5 * SECOND);
    world.sides[0]
        .ping(link_local(1).into(), 1, 1, b"x")
        .expect("pings");
    world.run(SECOND);
    assert_eq!(
        world.sides[0].ping_reply().map(|reply| reply.from),
        Some(link_local(1).into())
    );
}
