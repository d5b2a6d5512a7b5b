//! The filter engine on the same packets, hook by hook as a router calls it.

use super::rules::{self, RULES_ASKED, Rules};
use crate::pairs::median;
use anyhow::Result;
use fordway_filter::rules::{Hook, read};
use fordway_filter::{
    Config, Crossing, Environment, Filter, Iface, Layer, Meta, Packet, Phase, Question, Tuple,
};
use fordway_platform::nftables::{Scratch, Source};
use std::hint::black_box;
use std::time::Instant;

const BATCHES: usize = 20;
/// How often all packets pass in a batch.
const TURNS: usize = 4;

#[derive(Debug)]
struct Nothing;

impl Environment for Nothing {
    fn random(&mut self) -> u32 {
        4
    }
}

/// A filter with rules and packets.
#[derive(Debug)]
pub struct Engine {
    filter: Filter,
    packets: Vec<Vec<u8>>,
    hooks: &'static [Hook],
}

/// Rules of nft's text, as the broker and the switch have them.
fn filter(rules: &Rules) -> Result<Filter> {
    let scratch = Scratch::new()?;
    scratch.load(Source::text(&rules.text))?;
    let mut filter = Filter::new(Config::default(), 7);
    filter.replace(read(&scratch.dump()?)?, 1, 0);
    Ok(filter)
}

fn meta() -> Meta {
    Meta {
        iif: Some(Iface::new(2, "b0")),
        oif: Some(Iface::new(3, "c0")),
        ..Meta::default()
    }
}

impl Engine {
    /// With its flows, if the rules track.
    pub fn new(rules: &Rules) -> Result<Engine> {
        let mut engine = Engine {
            filter: filter(rules)?,
            packets: rules::packets(),
            hooks: match rules.tracks {
                true => &[Hook::Prerouting, Hook::Forward, Hook::Postrouting],
                false => &[Hook::Forward],
            },
        };
        if rules.tracks {
            for mut packet in rules::flows() {
                engine.pass(&mut packet);
            }
        }
        Ok(engine)
    }

    fn pass(&mut self, bytes: &mut [u8]) {
        let Some(mut packet) = Packet::ip(bytes, meta()) else {
            return;
        };
        for hook in self.hooks {
            black_box(
                self.filter
                    .hook(Layer::Ip, *hook, &mut packet, 1, &mut Nothing),
            );
        }
    }

    /// Nanoseconds of a packet.
    pub fn sample_ns(&mut self) -> f64 {
        let mut packets = std::mem::take(&mut self.packets);
        let mut batches = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let start = Instant::now();
            for _ in 0..TURNS {
                for packet in &mut packets {
                    self.pass(packet);
                }
            }
            let count = (TURNS * packets.len()) as f64;
            batches.push(start.elapsed().as_nanos() as f64 / count);
        }
        self.packets = packets;
        median(batches)
    }
}

/// Nanoseconds of the broker's question whether a connection may have rings.
pub fn ask_ns(rules: &Rules) -> Result<f64> {
    let filter = filter(rules)?;
    let (a, b) = (Some(Iface::new(2, "b0")), Some(Iface::new(3, "c0")));
    let crossing = |iif, oif| Crossing {
        layer: None,
        hook: Hook::Forward,
        iif,
        oif,
    };
    let batches = (0..BATCHES).map(|_| {
        let start = Instant::now();
        for n in 0..RULES_ASKED {
            let question = Question {
                tuple: Tuple {
                    source: rules::sender(n).into(),
                    destination: 0xac10_0001,
                    source_port: 40_000,
                    destination_port: 6379,
                    protocol: 6,
                    six: false,
                },
                phase: Phase::New,
                forward: &[crossing(a, b)],
                backward: &[crossing(b, a)],
                mark: 0,
                ct_mark: 0,
                skuid: None,
            };
            black_box(filter.ask(&question, 1, &mut Nothing));
        }
        start.elapsed().as_nanos() as f64 / f64::from(RULES_ASKED)
    });
    Ok(median(batches))
}
