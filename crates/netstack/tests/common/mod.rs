//! Two stacks and a link between them that can lose, reorder, double and delay frames, with a
//! clock that jumps from one event to the next. The same seed gives the same run.
#![allow(dead_code)]

pub mod behind;
pub mod wire;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fordway_netstack::{Cidr, Config, Event, Micros, RxChecksum, RxFrame, Stack, TxFrame};

pub const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
pub const IP: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

pub fn ip(side: usize) -> IpAddr {
    IpAddr::V4(IP[side])
}

pub fn at(side: usize, port: u16) -> SocketAddr {
    SocketAddr::new(ip(side), port)
}

/// What the link does to frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    pub loss_per_mille: u32,
    pub double_per_mille: u32,
    /// Frames that are held back so that later ones overtake them.
    pub reorder_per_mille: u32,
    pub delay_us: Micros,
    /// 0: infinitely fast.
    pub bits_per_us: u64,
}

type InFlight = Reverse<(Micros, u64, usize, Vec<u8>, u8)>;

pub struct World {
    pub sides: [Stack; 2],
    pub now: Micros,
    pub conditions: Conditions,
    pub rng: fastrand::Rng,
    in_flight: BinaryHeap<InFlight>,
    order: u64,
    free_at: [Micros; 2],
    /// Frames as they left, with their metadata, if wanted.
    pub sent: Vec<(usize, Vec<u8>, TxFrame)>,
    pub keeps_sent: bool,
    idle_steps: u32,
    buffer: Vec<u8>,
}

pub fn config(side: usize) -> Config {
    Config::new(MAC[side], 0x5eed + side as u64)
}

impl World {
    pub fn new(conditions: Conditions) -> World {
        World::with([config(0), config(1)], conditions)
    }

    pub fn with(configs: [Config; 2], conditions: Conditions) -> World {
        let mut sides = configs.map(Stack::new);
        for (side, stack) in sides.iter_mut().enumerate() {
            stack.set_addresses(&[Cidr::new(ip(side), 24), Cidr::link_local(&MAC[side])]);
        }
        World {
            sides,
            now: 1_000_000,
            conditions,
            rng: fastrand::Rng::with_seed(1),
            in_flight: BinaryHeap::new(),
            order: 0,
            free_at: [0; 2],
            sent: Vec::new(),
            keeps_sent: false,
            idle_steps: 0,
            buffer: vec![0; 70_000],
        }
    }

    /// Puts frames that both sides want to send on the link.
    pub fn flush(&mut self) {
        for side in 0..2 {
            while let Some(frame) = self.sides[side].transmit(self.now, &mut self.buffer) {
                let bytes = self.buffer[..frame.len_bytes].to_vec();
                if self.keeps_sent {
                    self.sent.push((side, bytes.clone(), frame));
                }
                self.put(side, bytes, &frame);
            }
        }
    }

    fn put(&mut self, from: usize, bytes: Vec<u8>, frame: &TxFrame) {
        let c = self.conditions;
        let mut hits = |per_mille: u32| self.rng.u32(..1000) < per_mille;
        if hits(c.loss_per_mille) {
            return;
        }
        let start = self.now.max(self.free_at[from]);
        let duration = (bytes.len() as u64 * 8)
            .checked_div(c.bits_per_us)
            .unwrap_or(0);
        self.free_at[from] = start + duration;
        let copies = 1 + u32::from(hits(c.double_per_mille));
        for _ in 0..copies {
            let extra = if hits(c.reorder_per_mille) {
                c.delay_us / 2 + 300
            } else {
                0
            };
            self.order += 1;
            let checksum = u8::from(frame.checksum.is_some());
            let arrives = start + duration + c.delay_us + extra;
            self.in_flight.push(Reverse((
                arrives,
                self.order,
                1 - from,
                bytes.clone(),
                checksum,
            )));
        }
    }

    /// Takes one step: frames that are due arrive, else the clock jumps. False if nothing will
    /// ever happen again before `until`.
    pub fn step(&mut self, until: Micros) -> bool {
        self.flush();
        let frame_at = self.in_flight.peek().map(|Reverse(f)| f.0);
        let polls = self.sides.iter().filter_map(Stack::poll_at);
        let Some(next) = polls.chain(frame_at).min().filter(|next| *next <= until) else {
            self.now = until;
            return false;
        };
        // A side that is called again and again at one time has to come to an end.
        let is_idle = next <= self.now && frame_at.is_none_or(|at| at > self.now);
        self.idle_steps = if is_idle { self.idle_steps + 1 } else { 0 };
        assert!(self.idle_steps < 10, "{next} is over and nothing is done");
        self.now = self.now.max(next);
        while let Some(Reverse(first)) = self.in_flight.peek()
            && first.0 <= self.now
        {
            let Some(Reverse((_, order, to, mut bytes, blank))) = self.in_flight.pop() else {
                break;
            };
            let checksum = if blank == 1 {
                RxChecksum::Blank
            } else {
                RxChecksum::Unchecked
            };
            // Half of them by either way, which makes no difference.
            if order % 2 == 0 {
                let checksum = match checksum {
                    RxChecksum::Unchecked => RxChecksum::Good,
                    other => other,
                };
                behind::receive(&mut self.sides[to], self.now, &bytes, checksum);
                continue;
            }
            let mut frame = RxFrame {
                bytes: &mut bytes,
                checksum,
            };
            self.sides[to].receive(self.now, &mut frame);
        }
        true
    }

    pub fn run(&mut self, us: Micros) {
        let until = self.now + us;
        while self.step(until) {}
    }

    pub fn events(&mut self, side: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.sides[side].event()).collect()
    }

    /// Gives a frame to a side, as if it came from the link.
    pub fn inject(&mut self, side: usize, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let mut frame = RxFrame {
            bytes: &mut bytes,
            checksum: RxChecksum::Unchecked,
        };
        self.sides[side].receive(self.now, &mut frame);
    }
}
