//! The packet filter's two inputs: rules as the kernel's messages, which a guest reads from whoever has
//! made them, and what anybody sends.

use crate::Bytes;
use fordway_filter::rules::{Hook, Rules, read, unpacked};
use fordway_filter::{Config, Filter, Iface, Layer, Meta, Packet, unknown_in};
use fordway_test_filter::{Nft, generate, router::Nothing};
use std::sync::LazyLock;

/// Rulesets that packets are put to.
const RULESETS: u64 = 32;
const FRAMES_MAX: usize = 64;
const LAYERS: [Layer; 5] = [
    Layer::Netdev,
    Layer::Bridge,
    Layer::Ip,
    Layer::Ip6,
    Layer::Arp,
];
const HOOKS: [Hook; 7] = [
    Hook::Prerouting,
    Hook::Input,
    Hook::Forward,
    Hook::Output,
    Hook::Postrouting,
    Hook::Ingress,
    Hook::Egress,
];

/// Compiled rules with and without their header. What is read is put in force, and packets meet it.
pub fn rules(bytes: &[u8]) {
    let Ok(rules) = read(unpacked(bytes).unwrap_or(bytes)) else {
        return;
    };
    let _ = unknown_in(&rules);
    let mut filter = Filter::new(config(), 1);
    filter.replace(rules, 1, 1);
    for layer in LAYERS {
        for hook in HOOKS {
            let mut frame = FRAME;
            let meta = Meta {
                iif: Some(Iface::new(1, "b0")),
                ..Meta::default()
            };
            let packet = match layer {
                Layer::Netdev | Layer::Bridge => Packet::ethernet(&mut frame, meta),
                _ => Packet::ip(&mut frame[14..], meta),
            };
            if let Some(mut packet) = packet {
                filter.hook(layer, hook, &mut packet, 2, &mut Nothing::default());
            }
        }
    }
}

/// A segment from 10.0.0.1:40000 to 10.0.0.2:80.
const FRAME: [u8; 54] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0x26, 0xcd, 10,
    0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0,
    0,
];

/// Frames of any content through generated rulesets, at any hook. Without root there are none.
pub fn packet(bytes: &[u8]) {
    static RULES: LazyLock<Vec<Rules>> = LazyLock::new(|| {
        let Ok(nft) = Nft::new() else {
            return vec![Rules::default()];
        };
        let texts = (0..RULESETS).map(|number| generate::case(5, number, 1).text());
        texts
            .map(|text| nft.rules(&text).unwrap_or_default())
            .collect()
    });
    let mut bytes = Bytes(bytes);
    let rules = &RULES[usize::from(bytes.byte()) % RULES.len()];
    let mut filter = Filter::new(config(), 1);
    filter.replace(rules.clone(), 1, 1);
    let mut now_ns = 1;
    for _ in 0..FRAMES_MAX {
        if bytes.is_empty() {
            return;
        }
        let layer = LAYERS[usize::from(bytes.byte()) % LAYERS.len()];
        let hook = HOOKS[usize::from(bytes.byte()) % HOOKS.len()];
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
