//! What a run is made of: drawn from the seed before anything runs.

use crate::choices::Choices;
use crate::end::RECEIVE_BYTES_MAX;
use crate::kernel::Socket;
use crate::process::{Conn, DOORS, Process};
use crate::world::{Fault, FaultKind};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;

const CONNECTIONS_MAX: u64 = 5;
// Two ends, each of two threads.
const _: () = assert!(DOORS as u64 > 2 * 2 * CONNECTIONS_MAX);

/// How an end's program works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A thread that sends and one that receives, with blocking calls.
    Threads,
    /// One thread that polls.
    Polls,
}

/// What one end of a connection does.
#[derive(Debug)]
pub struct Script {
    pub style: Style,
    /// Bytes that it sends.
    pub total: u64,
    /// Longest piece of one call.
    pub piece: u64,
    /// Once in so many calls it computes, up to so long.
    pub idles: u64,
    pub idle_ns: u64,
    /// After so many bytes sent or received, an image without the shim goes on.
    pub hands_over_at: Option<u64>,
    /// Closes when it has sent, whatever the other one does.
    pub closes_early: bool,
    /// Threads that are still at it.
    pub threads: Cell<u32>,
    /// An image without the shim has the connection.
    pub raw: Cell<bool>,
    /// ... which does not get what was left in a ring.
    pub gap: Cell<bool>,
    /// It shuts its sending half, and does not wait.
    pub hurries: Cell<bool>,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub ended: Cell<bool>,
    pub error: Cell<i32>,
}

/// What a run is made of.
pub struct Plan {
    pub grain: u64,
    pub sockets: Vec<Socket>,
    pub processes: Vec<Process>,
    pub conns: Vec<Conn>,
    pub faults: Vec<Fault>,
}

impl Plan {
    pub fn draw(choices: &mut Choices) -> Self {
        let mut below = |count: u64| choices.below(count);
        let processes = 2 + below(2);
        let connections = 1 + below(CONNECTIONS_MAX);
        let (mut sockets, mut conns, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        let sizes = [2_000, 20_000, 200_000];
        for number in 0..connections as usize {
            let a = below(processes) as usize;
            let b = if below(8) == 0 {
                a
            } else {
                (a + 1 + below(processes - 1) as usize) % processes as usize
            };
            let at_step = if number == 0 { 0 } else { below(3000) };
            let kind = FaultKind::Connect(number);
            faults.push(Fault { at_step, kind });
            for (end, process) in [a, b].into_iter().enumerate() {
                let socket = 2 * number + end;
                let size = sizes[below(3) as usize] as usize;
                sockets.push(Socket::new(socket ^ 1, size, size));
                let streams = (socket, socket ^ 1);
                let mut conn = Conn::new(socket, process, socket, streams, below(4));
                conn.script = Script::draw(&mut below);
                conns.push(conn);
            }
        }
        let count = below(6);
        let step = |below: &mut dyn FnMut(u64) -> u64| {
            let range = [300, 3000, 20_000][below(3) as usize];
            below(range)
        };
        for _ in 0..count {
            let at_step = step(&mut below);
            let kind = match below(12) {
                0..3 => FaultKind::Ask,
                3 if below(2) == 0 => FaultKind::BrokerDies(1 + step(&mut below)),
                3 => FaultKind::BrokerDiesAtPair(1 + step(&mut below)),
                4..6 => FaultKind::Stop(below(processes) as usize, 1 + below(400) * 1_000_000),
                6 => FaultKind::Kill(below(processes) as usize),
                7..9 => FaultKind::Fork(below(2 * connections) as usize),
                9 => FaultKind::Exhaust(below(processes) as usize),
                _ => FaultKind::Shuffle,
            };
            faults.push(Fault { at_step, kind });
        }
        for pair in sockets.chunks_mut(2) {
            let unix = below(3) == 0;
            pair.iter_mut().for_each(|socket| socket.unix = unix);
        }
        faults.sort_by_key(|fault| std::cmp::Reverse(fault.at_step));
        Self {
            grain: [1, 1, 2, 4, 16][below(5) as usize],
            sockets,
            processes: (0..processes as usize).map(Process::new).collect(),
            conns,
            faults,
        }
    }
}

impl Script {
    pub fn draw(below: &mut impl FnMut(u64) -> u64) -> Self {
        let total = match below(8) {
            0 => 0,
            1..4 => below(2_000),
            4..7 => below(100_000),
            _ => below(600_000),
        };
        let style = if below(2) == 0 {
            Style::Threads
        } else {
            Style::Polls
        };
        let may_hand_over = style == Style::Polls && below(4) == 0;
        Self {
            style,
            total,
            piece: [100, 2_000, 20_000, RECEIVE_BYTES_MAX as u64][below(4) as usize],
            idles: [4, 20, 1 << 40][below(3) as usize],
            idle_ns: [10_000, 1_000_000, 200_000_000][below(3) as usize],
            hands_over_at: may_hand_over.then(|| below(total + 2000)),
            closes_early: below(12) == 0,
            threads: Cell::new(0),
            raw: Cell::new(false),
            gap: Cell::new(false),
            hurries: Cell::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            ended: Cell::new(false),
            error: Cell::new(0),
        }
    }

    pub fn empty() -> Self {
        Self::draw(&mut |_| 0)
    }
}
