//! The packet filter's two inputs: what an administrator writes, and what anybody sends.

use crate::Bytes;
use fordway_filter::model::{Hook, Ruleset};
use fordway_filter::{Config, Filter, Iface, Layer, Meta, Packet};
use fordway_nft::list::{self, Style};
use fordway_nft::{Env, NoFiles};
use fordway_test_filter::{generate, router::Nothing};
use std::sync::LazyLock;

/// Rulesets that packets are put to.
const RULESETS: u64 = 32;
const FRAMES_MAX: usize = 64;

/// A file of rules, in either language. What is taken must be taken again as it is listed, in
/// both languages, and be the same; and it compiles or is refused.
pub fn rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let env = Env::default();
    let read = |text: &str| fordway_nft::load(&Ruleset::default(), &env, &NoFiles, "rules", text);
    let Ok(taken) = read(text) else {
        return;
    };
    let listed = list::text(&taken.ruleset, &env, Style::default());
    for again in [listed.clone(), list::json(&taken.ruleset, &env).to_string()] {
        match read(&again) {
            Ok(outcome) => {
                let twice = list::text(&outcome.ruleset, &env, Style::default());
                assert_eq!(listed, twice, "listed and read again: {again}");
            }
            Err(faults) => panic!("its own listing is refused: {faults}\n{again}"),
        }
    }
    let _ = Filter::new(config(), 1).replace(taken.ruleset, 1);
}

/// Frames of any content through generated rulesets, at any hook.
pub fn packet(bytes: &[u8]) {
    static FILTERS: LazyLock<Vec<Ruleset>> = LazyLock::new(|| {
        let rulesets = (0..RULESETS).map(|number| {
            let mut filter = Filter::new(config(), 1);
            let taken = filter.apply(&generate::case(5, number, 1).ops(), 1);
            taken.map_or_else(|_| Ruleset::default(), |()| filter.listing(1))
        });
        rulesets.collect()
    });
    let mut bytes = Bytes(bytes);
    let ruleset = &FILTERS[usize::from(bytes.byte()) % FILTERS.len()];
    let mut filter = Filter::new(config(), 1);
    if filter.replace(ruleset.clone(), 1).is_err() {
        return;
    }
    let mut now_ns = 1;
    for _ in 0..FRAMES_MAX {
        if bytes.is_empty() {
            return;
        }
        let layers = [
            Layer::Netdev,
            Layer::Bridge,
            Layer::Ip,
            Layer::Ip6,
            Layer::Arp,
        ];
        let layer = layers[usize::from(bytes.byte()) % layers.len()];
        let hook = Hook::ALL[usize::from(bytes.byte()) % Hook::ALL.len()];
        now_ns += bytes.number(2) << 20;
        let length = bytes.number(2) as usize;
        let mut frame = bytes.take(length).to_vec();
        let meta = Meta {
            iif: Some(Iface::new(1, "b0")),
            ..Meta::default()
        };
        let packet = match layer {
            Layer::Netdev | Layer::Bridge => Packet::ethernet(&mut frame, meta),
            _ => Packet::ip(&mut frame, meta),
        };
        if let Some(mut packet) = packet {
            filter.hook(layer, hook, &mut packet, now_ns, &mut Nothing::default());
        }
    }
}

fn config() -> Config {
    Config {
        flows_max: 16,
        ..Config::default()
    }
}
