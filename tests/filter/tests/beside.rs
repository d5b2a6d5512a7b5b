//! A second enforcer beside the first one, with random rules and packets: it refuses nothing that the first one lets pass, says the
//! same where it refuses, and counts exactly what the first one would have counted of it.

use fordway_filter::rules::{Family, Hook};
use fordway_filter::{Beside, Config, Crossing, Filter, Iface, Meta, Packet, Verdict};
use fordway_test_filter::Nft;
use fordway_test_filter::generate::{self, Side};
use fordway_test_filter::router::Nothing;

const RULESETS: u64 = 600;
const PACKETS: usize = 60;
/// Packets that the first one has seen alone: the second was started later.
const BEFORE: usize = 15;

fn crossings() -> [Crossing; 5] {
    let bridge = Iface::new(0, "fw0");
    [
        Hook::Prerouting,
        Hook::Output,
        Hook::Forward,
        Hook::Input,
        Hook::Postrouting,
    ]
    .map(|hook| Crossing {
        layer: None,
        hook,
        iif: (hook != Hook::Postrouting).then_some(bridge),
        oif: (hook != Hook::Prerouting).then_some(bridge),
    })
}

/// What the first one says, which sees each packet on all hooks.
fn alone(filter: &mut Filter, bytes: &mut [u8], now_ns: u64) -> Verdict {
    let Some(mut packet) = Packet::ip(bytes, Meta::default()) else {
        return Verdict::Accept;
    };
    let Some(layer) = packet.ip_layer() else {
        return Verdict::Accept;
    };
    for crossing in crossings() {
        (packet.meta.iif, packet.meta.oif) = (crossing.iif, crossing.oif);
        let around = &mut Nothing::default();
        let said = filter.hook(layer, crossing.hook, &mut packet, now_ns, around);
        if said.verdict != Verdict::Accept {
            return said.verdict;
        }
    }
    Verdict::Accept
}

#[test]
fn a_second_enforcer_refuses_and_counts_what_the_first_one_would() {
    let Ok(nft) = Nft::new() else {
        eprintln!("not root: nft was not asked");
        return;
    };
    let (mut refused, mut by_second, mut counted) = (0, 0, 0);
    for number in 0..RULESETS {
        let case = generate::case(7, number, PACKETS);
        if !matches!(case.family, Family::Inet | Family::Ip | Family::Ip6) {
            continue;
        }
        let text = case.text();
        // Some are not to nft's taste.
        let Ok(mut rules) = nft.rules(&text) else {
            continue;
        };
        rules.forget_counts();
        let mut filters = [1, 2].map(|seed| Filter::new(Config::default(), seed));
        for filter in &mut filters {
            filter.replace(rules.clone(), 1, 1);
        }
        let [first, second] = &mut filters;
        for (at, (side, ip, _)) in case.packets.iter().enumerate() {
            // Who has begun is known to the first one alone; the second looks from then on.
            let now_ns = 1 + at as u64 * 1_000_000;
            let leaves = *side == Side::Left;
            let said = alone(first, &mut ip.bytes(), now_ns);
            let counts = first.take_counts();
            refused += usize::from(said != Verdict::Accept);
            let arrives = leaves || said == Verdict::Accept;
            if at < BEFORE || ip.fragment.is_some() || !arrives {
                continue;
            }
            let look = Beside {
                crossings: &crossings(),
                leaves,
                is_other: false,
            };
            let mut bytes = ip.bytes();
            let mut packet = Packet::ip(&mut bytes, Meta::default()).expect("a packet");
            let own = second.beside(&look, &mut packet, now_ns, &mut Nothing::default());
            let place = format!("ruleset {number}, packet {at}: {ip:?}\n{text}");
            assert_eq!(bytes, ip.bytes(), "{place}");
            let own_counts = second.take_counts();
            if own == Verdict::Accept {
                assert!(own_counts.is_empty(), "{place}");
                continue;
            }
            assert_eq!(own, said, "{place}");
            assert_eq!(own_counts, counts, "{place}");
            by_second += 1;
            counted += usize::from(!counts.is_empty());
        }
    }
    println!("{refused} refused, of which {by_second} by the second; {counted} counted");
    assert!(by_second > 1000 && counted > 300, "{by_second}, {counted}");
}
