//! Guests of Xen as places: whose word counts for which address.

use super::*;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 8);
const OTHER: (u16, Ipv4Addr) = (5, Ipv4Addr::new(10, 0, 0, 9));
const THIRD: (u16, Ipv4Addr) = (6, Ipv4Addr::new(10, 0, 0, 10));

/// What dom0 says: OWN, and these others.
fn set_guests(registry: &mut Registry, others: &[(u16, Ipv4Addr)]) -> Vec<Action> {
    let others = others.iter().map(|&(domid, ip)| (domid, ip.into()));
    registry.set_guests(Some(OWN.into()), others)
}

/// Our process, one of guest 5, and one of guest 6.
fn meeting() -> (Registry, ProcessId, [ProcessId; 2]) {
    let mut registry = registry();
    assert_eq!(set_guests(&mut registry, &[OTHER, THIRD]), []);
    let (ours, _) = registry.add_process(HOST, PathPolicy::Auto);
    let afar = [OTHER, THIRD].map(|(domid, _)| {
        let place = place_of_guest(domid);
        registry.add_process(place, PathPolicy::Auto).0
    });
    (registry, ours, afar)
}

fn ours(port: u16) -> SocketFacts {
    facts(
        port.into(),
        HOST,
        "10.0.0.8:6379",
        &format!("10.0.0.9:{port}"),
    )
}

/// The other end of it, in the place of this guest.
fn theirs(port: u16, domid: u16) -> SocketFacts {
    let cookie = 1 << 63 | u64::from(port);
    let local = format!("10.0.0.9:{port}");
    facts(cookie, place_of_guest(domid), &local, "10.0.0.8:6379")
}

#[test]
fn what_waits_for_a_guest_is_taken_to_its_broker() {
    let (mut registry, here, [there, _]) = meeting();
    registry.offer(there, 7, theirs(4000, 5));
    registry.offer(here, 1, ours(4001));
    registry.offer(here, 2, facts(9, HOST, "10.0.0.8:6379", "10.0.0.10:4002"));
    registry.offer(here, 3, facts(10, HOST, "127.0.0.1:6379", "127.0.0.1:4003"));
    assert_eq!(registry.take_offers_to(5), [(here, 1, ours(4001))]);
    assert_eq!(registry.take_offers_to(5), [], "once");
    // Its partner finds nobody here, and the guest's own offer waits on.
    assert_eq!(links(&registry.offer(there, 8, theirs(4001, 5))), []);
    assert_eq!(links(&registry.offer(here, 4, ours(4000))).len(), 2);
}

#[test]
fn a_guests_socket_is_paired_with_ours() {
    let (mut registry, here, [there, _]) = meeting();
    assert_eq!(registry.offer(there, 7, theirs(4000, 5)), []);
    let asked = registry.offer(here, 1, ours(4000));
    let sides = links(&asked);
    let [(first, one), (second, two)] = sides[..] else {
        panic!("{sides:?}");
    };
    let far = registry.far_side(first, one.link_id);
    let (process, link_id) = (second, two.link_id);
    assert_eq!(far, Some(LinkSide { process, link_id }));
    assert!(registry.is_of_guest(there) && !registry.is_of_guest(here));
    for (process, link) in sides {
        let (_, actions) = registry.region(process, link.link_id).expect("a side");
        let told = pairs(&actions);
        assert_eq!(told.len(), if process == second { 2 } else { 0 });
    }
}

#[test]
fn a_guest_lies_about_itself_alone() {
    let (mut registry, here, [_, third]) = meeting();
    // It says that it has another guest's address, and that it has ours.
    assert_eq!(pairs(&registry.offer(third, 7, theirs(4000, 6))), []);
    let mut as_ours = ours(4000);
    as_ours.netns_cookie = place_of_guest(6);
    registry.offer(third, 8, as_ours);
    let answers = registry.offer(here, 1, ours(4000));
    assert_eq!((pairs(&answers), links(&answers)), (vec![], vec![]));
    // A namespace of ours that is not the host's has not the host's address.
    let (mut registry, _, [there, _]) = meeting();
    let (stranger, _) = registry.add_process(STRANGER, PathPolicy::Auto);
    let mut of_stranger = ours(4000);
    of_stranger.netns_cookie = STRANGER;
    registry.offer(there, 7, theirs(4000, 5));
    assert_eq!(links(&registry.offer(stranger, 1, of_stranger)), []);
}

/// What dom0 says of two guests with namespaces behind them, of which WEB and DB are domains here.
fn with_namespaces() -> Registry {
    let mut registry = registry();
    let addresses = |text: &str| text.parse().expect("addresses");
    let other = (5, addresses("10.0.0.9,10.0.0.16/28"));
    let own = addresses("10.0.0.8,10.77.0.0/24,192.0.2.1");
    assert_eq!(registry.set_guests(Some(own), [other].into_iter()), []);
    registry
}

#[test]
fn namespaces_of_two_guests_are_paired() {
    let own = |ip: Ipv4Addr| format!("{ip}:6379");
    let host = ["10.0.0.8:6379", "192.0.2.1:6379"].map(|name| (HOST, name.to_owned()));
    let places = [(DB, own(DB_IP)), (WEB, own(WEB_IP))];
    for (netns, local) in places.into_iter().chain(host) {
        for remote in ["10.0.0.9:4000", "10.0.0.16:4000", "10.0.0.31:4000"] {
            let mut registry = with_namespaces();
            let (here, _) = registry.add_process(netns, PathPolicy::Auto);
            let place = place_of_guest(5);
            let (there, _) = registry.add_process(place, PathPolicy::Auto);
            let near = facts(1, netns, &local, remote);
            let far = facts(1 << 63, place, remote, &local);
            assert!(registry.is_of_this_guest(&near) && registry.is_for_this_guest(&far));
            assert_eq!(registry.guest_with(near.remote.ip()), Some(5));
            assert_eq!(registry.guest_with(far.remote.ip()), None);
            registry.offer(there, 7, far);
            let asked = registry.offer(here, 1, near);
            assert_eq!(links(&asked).len(), 2, "{local} {remote}");
        }
    }
}

#[test]
fn a_namespace_has_its_own_address_alone() {
    let mut registry = with_namespaces();
    let remote = "10.0.0.17:4000";
    let place = place_of_guest(5);
    let (there, _) = registry.add_process(place, PathPolicy::Auto);
    let local = format!("{DB_IP}:6379");
    registry.offer(there, 7, facts(1 << 63, place, remote, &local));
    // Neither another namespace, nor the host, nor one that nobody knows.
    for netns in [WEB, HOST, STRANGER] {
        let false_end = facts(1, netns, &local, remote);
        assert!(!registry.is_of_this_guest(&false_end));
        let (here, _) = registry.add_process(netns, PathPolicy::Auto);
        assert_eq!(links(&registry.offer(here, 1, false_end)), []);
    }
    // What is no domain's is the host's, and not a stranger's.
    let nobodys = |netns| facts(1, netns, "10.77.0.77:6379", remote);
    assert!(registry.is_of_this_guest(&nobodys(HOST)));
    assert!(!registry.is_of_this_guest(&nobodys(STRANGER)));
    // An address that dom0 has not said.
    let unsaid = facts(1, HOST, "10.0.0.7:6379", remote);
    assert!(!registry.is_of_this_guest(&unsaid));
}

#[test]
fn a_guest_speaks_of_its_own_addresses_alone() {
    let registry = with_namespaces();
    let place = place_of_guest(5);
    let said = |netns, local: &str, remote: &str| {
        registry.is_for_this_guest(&facts(1 << 63, netns, local, remote))
    };
    assert!(said(place, "10.0.0.17:4000", "10.77.0.3:6379"));
    for (netns, local, remote) in [
        (place_of_guest(6), "10.0.0.17:4000", "10.77.0.3:6379"),
        (place, "10.0.0.32:4000", "10.77.0.3:6379"),
        (place, "10.77.0.2:4000", "10.77.0.3:6379"),
        (place, "10.0.0.17:4000", "10.0.0.7:6379"),
        (place, "10.0.0.17:4000", "10.0.0.9:6379"),
        (HOST, "10.0.0.17:4000", "10.77.0.3:6379"),
    ] {
        assert!(!said(netns, local, remote), "{netns} {local} {remote}");
    }
}

#[test]
fn a_namespace_that_is_behind_a_guest_no_more_loses_its_channels() {
    let mut registry = with_namespaces();
    let (here, _) = registry.add_process(DB, PathPolicy::Auto);
    let place = place_of_guest(5);
    let (there, _) = registry.add_process(place, PathPolicy::Auto);
    let (local, remote) = (format!("{DB_IP}:6379"), "10.0.0.17:4000");
    registry.offer(there, 7, facts(1 << 63, place, remote, &local));
    let asked = registry.offer(here, 1, facts(1, DB, &local, remote));
    for (process, link) in links(&asked) {
        registry.region(process, link.link_id).expect("a side");
    }
    let cut = downgrades(&set_guests(&mut registry, &[OTHER]));
    let told: Vec<_> = cut.iter().map(|(to, _, reason)| (*to, *reason)).collect();
    for process in [here, there] {
        assert!(told.contains(&(process, Reason::Unassigned)), "{told:?}");
    }
}

#[test]
fn a_guest_that_may_not_be_met_any_more_loses_its_channels() {
    let (mut registry, here, [there, _]) = meeting();
    registry.offer(there, 7, theirs(4000, 5));
    let asked = registry.offer(here, 1, ours(4000));
    for (process, link) in links(&asked) {
        registry.region(process, link.link_id).expect("a side");
    }
    assert_eq!(set_guests(&mut registry, &[OTHER]), []);
    let cut = downgrades(&set_guests(&mut registry, &[THIRD]));
    let told: Vec<_> = cut.iter().map(|(to, _, reason)| (*to, *reason)).collect();
    for process in [here, there] {
        assert!(told.contains(&(process, Reason::Unassigned)), "{told:?}");
    }
}

#[test]
fn a_link_between_guests_has_few_slots() {
    let (mut registry, here, [there, _]) = meeting();
    let count = fordway_abi::shm::GUEST_SLOT_COUNT as u16;
    let mut made = Vec::new();
    for at in 0..=count {
        let port = 4000 + at;
        registry.offer(there, port.into(), theirs(port, 5));
        made.extend(links(&registry.offer(here, port.into(), ours(port))));
    }
    assert_eq!(made.len(), 2 * 2, "two links, of two sides each");
}

#[test]
fn a_link_without_memory_is_given_up_and_made_anew() {
    let (mut registry, here, [there, _]) = meeting();
    for first in [here, there] {
        registry.offer(there, 7, theirs(4000, 5));
        let asked = registry.offer(here, 1, ours(4000));
        let sides = links(&asked);
        let of = |process| {
            sides
                .iter()
                .find(|(to, _)| *to == process)
                .expect("a side")
                .1
        };
        // One side has memory, the other one has not.
        let other = if first == here { there } else { here };
        let (_, actions) = registry.region(other, of(other).link_id).expect("a side");
        assert_eq!(pairs(&actions), []);
        let actions = registry.link_failed(first, of(first).link_id);
        let told = rejects(&actions);
        for process in [here, there] {
            assert!(told.contains(&(process, Reason::NoMemory, 0)), "{told:?}");
        }
        assert_eq!(registry.channel_count(), 0);
        let closed = |action: &&Action| matches!(action, Action::LinkClosed { .. });
        assert_eq!(actions.iter().filter(closed).count(), 2);
        assert_eq!(registry.link_failed(first, of(first).link_id), []);
    }
}
