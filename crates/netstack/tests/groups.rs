//! Groups of multicast: who hears them, what of them comes back, and how they are reported.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::wire::{frame, packet};
use common::{Conditions, MAC, World, at, config, ip};
use fordway_netstack::{Cidr, Drop, Error, Membership, Micros, Stack, UdpId, UdpOptions};

const SECOND: Micros = 1_000_000;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const PORT: u16 = 5000;

fn of_link(group: impl Into<IpAddr>) -> Membership {
    Membership {
        group: group.into(),
        is_loopback: false,
    }
}

fn to_group() -> SocketAddr {
    SocketAddr::new(GROUP.into(), PORT)
}

fn world() -> World {
    let mut world = World::new(Conditions::default());
    world.keeps_sent = true;
    world
}

/// A socket at the port that shares it; whether it takes all groups.
fn bind(stack: &mut Stack, bound: Option<IpAddr>, hears_all_groups: bool) -> UdpId {
    let options = UdpOptions {
        shares_port: true,
        hears_all_groups,
        ..UdpOptions::default()
    };
    stack.udp_bind_with(bound, PORT, options).expect("binds")
}

fn join(stack: &mut Stack, id: UdpId, wanted: Membership) {
    stack.join_group(wanted).expect("joins");
    stack.udp_set_groups(id, &[wanted]).expect("is there");
}

/// How many datagrams lie there.
fn count(stack: &mut Stack, id: UdpId) -> usize {
    std::iter::from_fn(|| stack.udp_receive(id, &mut [0; 100]).ok()).count()
}

fn drops(world: &World, why: Drop) -> u64 {
    world.sides[1].counters().drops[why as usize]
}

/// What a side has sent by this protocol, from the IP header on.
fn sent_by(world: &World, side: usize, protocol: u8) -> Vec<Vec<u8>> {
    let of_side = world.sent.iter().filter(|sent| sent.0 == side);
    let packets = of_side.map(|sent| sent.1[14..].to_vec());
    packets
        .filter(|packet| packet[0] >> 4 == 4 && packet[9] == protocol)
        .collect()
}

#[test]
fn who_is_in_a_group_hears_it_and_who_takes_all() {
    let mut world = world();
    let sender = world.sides[0].udp_bind(None, 1000).expect("binds");
    let far = &mut world.sides[1];
    let member = bind(far, None, false);
    let other = bind(far, None, false);
    let all = bind(far, None, true);
    let named = bind(far, Some(GROUP.into()), true);
    let own = bind(far, Some(ip(1)), true);
    let send = |world: &mut World, to: SocketAddr| {
        world.sides[0].udp_send(sender, to, b"x").expect("sends");
        world.run(1_000);
        [member, other, all, named, own].map(|id| count(&mut world.sides[1], id))
    };
    assert_eq!(send(&mut world, to_group()), [0; 5]);
    assert_eq!(drops(&world, Drop::NotForUs), 1);
    join(&mut world.sides[1], member, of_link(GROUP));
    assert_eq!(send(&mut world, to_group()), [1, 0, 1, 1, 0]);
    // Another group, and our own address: who is bound to a group has neither.
    let another = SocketAddr::new(Ipv4Addr::new(239, 1, 2, 4).into(), PORT);
    assert_eq!(send(&mut world, another), [0; 5]);
    assert_eq!(send(&mut world, at(1, PORT)), [0, 0, 0, 0, 1]);
    // Two want it: the first to leave takes it from nobody.
    join(&mut world.sides[1], other, of_link(GROUP));
    world.sides[1].leave_group(of_link(GROUP));
    world.sides[1]
        .udp_set_groups(member, &[])
        .expect("is there");
    assert_eq!(send(&mut world, to_group()), [0, 1, 1, 1, 0]);
    world.sides[1].leave_group(of_link(GROUP));
    assert_eq!(send(&mut world, to_group()), [0; 5]);
    // One that is joined at the loop is not heard by the link.
    let looped = Membership {
        is_loopback: true,
        ..of_link(GROUP)
    };
    join(&mut world.sides[1], member, looped);
    assert_eq!(send(&mut world, to_group()), [0; 5]);
}

#[test]
fn what_we_send_to_our_own_group_comes_back_if_it_is_to() {
    let mut world = world();
    let side = &mut world.sides[0];
    let id = bind(side, None, false);
    join(side, id, of_link(GROUP));
    // Loops, hop limit; copies to us, and on the wire.
    for (loops_groups, group_hop_limit, wanted) in
        [(true, 3, [1, 1]), (false, 3, [0, 1]), (true, 0, [1, 0])]
    {
        let options = UdpOptions {
            shares_port: true,
            loops_groups,
            group_hop_limit,
            ..UdpOptions::default()
        };
        let side = &mut world.sides[0];
        side.udp_set_options(id, options).expect("is there");
        side.udp_send(id, to_group(), b"x").expect("sends");
        world.run(1_000);
        let on_wire = sent_by(&world, 0, 17);
        world.sent.clear();
        assert!(on_wire.iter().all(|packet| packet[8] == 3));
        let came = world.sides[0].udp_take(id, &mut [0; 100]);
        if let Ok(came) = came {
            assert_eq!((came.to, came.from), (GROUP.into(), at(0, PORT)));
            assert_eq!(came.hop_limit, group_hop_limit);
        }
        assert_eq!([usize::from(came.is_ok()), on_wire.len()], wanted);
    }
    // By the loop: to nobody else, whoever is in it at the link.
    let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let options = UdpOptions {
        shares_port: true,
        group_sources: [Some(own), None],
        hears_all_groups: false,
        ..UdpOptions::default()
    };
    let looped = Membership {
        is_loopback: true,
        ..of_link(GROUP)
    };
    world.sides[0]
        .udp_set_options(id, options)
        .expect("is there");
    for (groups, wanted) in [(&[of_link(GROUP)][..], 0), (&[looped][..], 1)] {
        let side = &mut world.sides[0];
        side.join_group(looped).expect("joins");
        side.udp_set_groups(id, groups).expect("is there");
        side.udp_send(id, to_group(), b"x").expect("sends");
        world.run(1_000);
        assert_eq!(sent_by(&world, 0, 17), Vec::<Vec<u8>>::new());
        let came = world.sides[0].udp_receive(id, &mut [0; 100]);
        assert_eq!(usize::from(came.is_ok()), wanted);
        if let Ok((.., from, to)) = came {
            assert_eq!((from.ip(), to), (own, GROUP.into()));
        }
    }
}

/// A question of a router: with what follows the head, of version 3.
fn query(source: IpAddr, hops: u8, code: u8, group: Ipv4Addr, more: &[u8]) -> Vec<u8> {
    let mut message = vec![0x11, code, 0, 0];
    message.extend_from_slice(&group.octets());
    message.extend_from_slice(more);
    let sum: u32 = message
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    let sum = !((sum >> 16) + (sum & 0xffff)) as u16;
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame(1, &packet_of_igmp(source, hops, message))
}

fn packet_of_igmp(source: IpAddr, hops: u8, message: Vec<u8>) -> Vec<u8> {
    // A checksum of the whole message, at 2, as ICMP has it.
    let mut bytes = packet(source, ALL_HOSTS.into(), 1, hops, message, 2);
    let sum = u16::from_be_bytes([bytes[10], bytes[11]]);
    bytes[9] = 2;
    // One more in a word of the header is one less in its sum.
    bytes[10..12].copy_from_slice(&(sum - 1).to_be_bytes());
    bytes
}

/// Version 3: kind and group of each record of the reports since.
fn records(world: &mut World) -> Vec<(u8, Ipv4Addr)> {
    let mut all = Vec::new();
    for packet in sent_by(world, 1, 2) {
        assert_eq!((packet[0], packet[8]), (0x46, 1));
        assert_eq!(packet[16..24], [224, 0, 0, 22, 0x94, 4, 0, 0]);
        let message = &packet[24..];
        assert_eq!(message[0], 0x22);
        let count = usize::from(message[7]);
        assert_eq!(message.len(), 8 + 8 * count);
        for record in message[8..].chunks(8) {
            all.push((
                record[0],
                Ipv4Addr::new(record[4], record[5], record[6], record[7]),
            ));
        }
    }
    world.sent.clear();
    all
}

#[test]
fn groups_of_ipv4_are_reported_when_joined_asked_for_and_left() {
    let mut world = world();
    let other = Ipv4Addr::new(239, 9, 9, 9);
    for group in [GROUP, other] {
        world.sides[1].join_group(of_link(group)).expect("joins");
    }
    // These two, nobody reports.
    world.sides[1]
        .join_group(of_link(ALL_HOSTS))
        .expect("joins");
    let looped = Membership {
        is_loopback: true,
        ..of_link(Ipv4Addr::new(239, 7, 7, 7))
    };
    world.sides[1].join_group(looped).expect("joins");
    world.run(2 * SECOND);
    let mut all = records(&mut world);
    all.sort_unstable();
    assert_eq!(all, [(4, GROUP), (4, GROUP), (4, other), (4, other)]);
    // Asked within a second: for all, for one; not from behind a router, nor for another's.
    let version_3 = [0; 4];
    // A switch may have no address.
    let (router, switch) = (ip(0), Ipv4Addr::UNSPECIFIED.into());
    for (source, hops, about, answers) in [
        (router, 1, Ipv4Addr::UNSPECIFIED, true),
        (switch, 1, Ipv4Addr::UNSPECIFIED, true),
        (router, 1, GROUP, true),
        (router, 64, GROUP, false),
        (router, 1, Ipv4Addr::new(239, 8, 8, 8), false),
    ] {
        world.inject(1, &query(source, hops, 10, about, &version_3));
        world.run(SECOND + 1);
        let mut all = records(&mut world);
        all.sort_unstable();
        let wanted: &[_] = if answers {
            &[(2, GROUP), (2, other)]
        } else {
            &[]
        };
        assert_eq!(all, wanted, "{hops} {about}");
    }
    world.sides[1].leave_group(of_link(other));
    world.run(SECOND);
    assert_eq!(records(&mut world), [(3, other)]);
    // A router that knows version 2 only.
    world.inject(1, &query(router, 1, 10, Ipv4Addr::UNSPECIFIED, &[]));
    world.run(SECOND + 1);
    world.sides[1].leave_group(of_link(GROUP));
    world.run(SECOND);
    let sent = sent_by(&world, 1, 2);
    let shown: Vec<_> = sent
        .iter()
        .map(|p| (p[24], &p[16..20], &p[28..32]))
        .collect();
    let (group, routers) = (&GROUP.octets()[..], &[224, 0, 0, 2][..]);
    assert_eq!(shown, [(0x16, group, group), (0x17, routers, group)]);
    assert_eq!(drops(&world, Drop::Checksum), 0);
}

#[test]
fn whoever_asks_is_answered_every_tenth_of_a_second_at_most() {
    let mut world = world();
    world.sides[1].join_group(of_link(GROUP)).expect("joins");
    world.run(2 * SECOND);
    world.sent.clear();
    // For all, at once, a thousand times in a second.
    let question = query(ip(0), 1, 0, Ipv4Addr::UNSPECIFIED, &[0; 4]);
    for _ in 0..1000 {
        world.inject(1, &question);
        world.run(1_000);
    }
    let count = records(&mut world).len();
    assert!((9..=11).contains(&count), "{count}");
}

#[test]
fn a_join_does_not_put_off_the_second_report_of_others() {
    const PAUSE: Micros = 50_000;
    let mut world = world();
    let mut reports = [0; 200];
    for joined in 0..reports.len() {
        let group = Ipv4Addr::new(239, 0, 0, joined as u8);
        world.sides[1].join_group(of_link(group)).expect("joins");
        world.run(PAUSE);
        for (_, group) in records(&mut world) {
            reports[usize::from(group.octets()[3])] += 1;
        }
        // Those that were joined more than a second ago.
        let old = (joined + 1).saturating_sub((SECOND / PAUSE) as usize + 1);
        assert!(reports[..old].iter().all(|count| *count == 2), "{joined}");
    }
}

#[test]
fn groups_are_bounded() {
    let mut config = config(0);
    config.limits.groups_max = 16;
    let mut stack = Stack::new(config);
    for n in 0..16 {
        let wanted = of_link(Ipv4Addr::new(239, 0, 0, n));
        for _ in 0..3 {
            stack.join_group(wanted).expect("joins");
        }
    }
    let one_more = of_link(GROUP);
    assert_eq!(stack.join_group(one_more), Err(Error::Full));
    for _ in 0..3 {
        stack.leave_group(of_link(Ipv4Addr::new(239, 0, 0, 7)));
    }
    stack.join_group(one_more).expect("joins");
    let none = of_link(Ipv4Addr::new(10, 0, 0, 1));
    assert_eq!(stack.join_group(none), Err(Error::AddressNotAvailable));
}

#[test]
#[cfg(feature = "autoconf")]
fn groups_of_ipv6_are_reported_with_those_of_our_addresses() {
    use fordway_netstack::Ipv6Options;
    let mut world = world();
    let now = world.now;
    let quiet = Ipv6Options {
        detects_duplicates: false,
        asks_routers: false,
        makes_addresses: false,
    };
    world.sides[1].ipv6_start(now, quiet);
    world.run(2 * SECOND);
    world.sent.clear();
    for group in ["ff05::77", "ff01::77", "ff02::1"] {
        let group: IpAddr = group.parse().expect("a group");
        world.sides[1].join_group(of_link(group)).expect("joins");
    }
    world.run(2 * SECOND);
    let group: IpAddr = "ff05::77".parse().expect("a group");
    world.sides[1].leave_group(of_link(group));
    world.run(SECOND);
    // Behind 40 bytes of a header and 8 of an option: kind 143, how many, and the one record.
    let reports = world.sent.iter().filter(|sent| sent.1[14..][48] == 143);
    let records: Vec<_> = reports.map(|sent| sent.1[14 + 48 + 7..].to_vec()).collect();
    let IpAddr::V6(six) = group else {
        return;
    };
    let record = |kind: u8| [&[1, kind, 0, 0, 0][..], &six.octets()].concat();
    assert_eq!(records, [record(4), record(4), record(3)]);
}

#[test]
#[cfg(feature = "autoconf")]
fn a_group_whose_reports_had_no_source_is_reported_once_more() {
    use fordway_netstack::Ipv6Options;
    let mut world = world();
    world.sides[1].set_addresses(&[Cidr::new(ip(1), 24)]);
    let now = world.now;
    let alone = Ipv6Options {
        detects_duplicates: true,
        asks_routers: false,
        makes_addresses: false,
    };
    world.sides[1].ipv6_start(now, alone);
    let group: IpAddr = "ff05::77".parse().expect("a group");
    world.sides[1].join_group(of_link(group)).expect("joins");
    world.run(5 * SECOND);
    let IpAddr::V6(six) = group else {
        return;
    };
    let names_it = |packet: &[u8]| packet.windows(16).any(|at| at == six.octets());
    let packets = world.sent.iter().map(|sent| &sent.1[14..]);
    let reports = packets.filter(|packet| packet.get(48) == Some(&143) && names_it(packet));
    let have_source: Vec<bool> = reports.map(|packet| packet[8..24] != [0; 16]).collect();
    assert_eq!(have_source, [false, false, true]);
}

#[test]
#[cfg(feature = "ipv6")]
fn a_group_of_one_host_is_heard_from_that_host_alone() {
    let mut world = world();
    let [inner, outer] =
        ["ff01::77", "ff05::77"].map(|group| of_link(group.parse::<IpAddr>().expect("a group")));
    let id = bind(&mut world.sides[1], None, false);
    for wanted in [inner, outer] {
        world.sides[1].join_group(wanted).expect("joins");
    }
    world.sides[1]
        .udp_set_groups(id, &[inner, outer])
        .expect("is there");
    let source = Cidr::link_local(&MAC[0]).address;
    for (to, heard) in [(outer, 1), (inner, 0)] {
        let [high, low] = PORT.to_be_bytes();
        let datagram = vec![0, 9, high, low, 0, 9, 0, 0, b'x'];
        let datagram = packet(source, to.group, 17, 64, datagram, 6);
        world.inject(1, &frame(1, &datagram));
        assert_eq!(count(&mut world.sides[1], id), heard, "{to:?}");
    }
    assert_eq!(drops(&world, Drop::Source), 1);
    let to = SocketAddr::new(inner.group, PORT);
    world.sides[1].udp_send(id, to, b"x").expect("sends");
    world.run(1_000);
    assert_eq!(count(&mut world.sides[1], id), 1);
}
