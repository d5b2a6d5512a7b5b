//! TCP: a table of flows; listeners, half-open connections and TIME_WAIT around them.
//!
//! ```text
//!   segment ──► key ──hash──► Flow      its Connection takes it; `settle` sees what changed
//!                       ├───► HalfOpen  our SYN-ACK is out: the ACK makes a flow
//!                       ├───► TimeWait  96 bytes that answer a late FIN
//!                       └───► nothing   SYN: listener or RST; ACK: SYN cookie or RST
//!
//!   send, recv, timer, neighbor ──► dirty ──► tcp_transmit: the Connection writes one segment
//! ```
//! The inside of a connection knows nothing of the stack: `connection` is the state machine,
//! `sender` has what was sent and what is lost of it, `receiver` what has arrived; below them
//! `congestion`, `rtt` and `ring`.
//!
//! **Who may do what when.** A flow is *dirty* while it wants to send now; it then stands in
//! `dirty` once. Otherwise its timer is set, or it waits for its neighbor, or for nothing. It is
//! *attached* while the table leads to it; afterwards only its reader looks at it. It is freed
//! when it is detached and its owner has closed it.
//!
//! **Large segments.** Where the link cuts, a flow writes segments up to 64 KB, and the MSS goes
//! with them as `gso_bytes`. Else it writes one of the MSS at each call.

mod api;
mod congestion;
mod connection;
mod cookie;
mod flow;
mod handshake;
mod input;
mod output;
mod payload;
mod receiver;
mod ring;
mod rtt;
mod sender;
mod settle;
#[cfg(test)]
mod tests;
mod time_wait;
mod timers;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::Micros;
use crate::config::Limits;
use crate::hash::{Keyed, Random};
use crate::stack::Event;

pub use flow::{Ready, TcpCounts, TcpInfo, TcpState};

use flow::Flow;
use handshake::{HalfOpen, Listener};
use ring::Pool;
use time_wait::TimeWaits;
use timers::Timers;

/// A listening port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The position in a stream that these 32 bits of it stand for: the one next to `near`.
fn position(near: u64, wire: u32) -> u64 {
    near.wrapping_add_signed(wire.wrapping_sub(near as u32).cast_signed().into())
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl TcpId {
    /// A small number that no other connection has at the same time, for a table of one's own.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// A connection's two names; IPv4 addresses as IPv6 maps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    remote: u128,
    local: u128,
    ports: u32,
}

impl Key {
    pub(crate) fn new(local: &SocketAddr, remote: &SocketAddr) -> Key {
        Key {
            remote: address_bits(&remote.ip()),
            local: address_bits(&local.ip()),
            ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
        }
    }
}

fn address_bits(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => 0xffff_0000_0000 | u128::from(four.to_bits()),
        IpAddr::V6(six) => six.to_bits(),
    }
}

/// What the table leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Flow(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

#[derive(Debug, Default)]
struct FlowSlot {
    generation: u32,
    flow: Option<Box<Flow>>,
}

pub(crate) struct Tcp {
    table: HashMap<Key, Slot, Keyed>,
    flows: Vec<FlowSlot>,
    free_flows: Vec<u32>,
    dirty: VecDeque<u32>,
    /// Connections without a program, the oldest first, and some that are over.
    left: VecDeque<TcpId>,
    left_max: usize,
    timers: Timers,
    listeners: Vec<Listener>,
    ports: BTreeMap<u16, Vec<u32>>,
    half_open: Vec<Option<HalfOpen>>,
    free_half_open: Vec<u32>,
    half_open_timers: Timers,
    time_waits: TimeWaits,
    cookies: cookie::Cookies,
    /// Where packets to ourselves are written.
    scratch: Vec<u8>,
    pool: Pool,
    secret: u64,
    next_port: u64,
    flows_max: usize,
    half_open_max: usize,
}

impl core::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tcp")
            .field("table", &self.table.len())
            .field("dirty", &self.dirty.len())
            .finish_non_exhaustive()
    }
}

/// The flow that its owner calls so.
fn flow_in(flows: &mut [FlowSlot], id: TcpId) -> Option<&mut Flow> {
    let slot = flows.get_mut(id.index as usize)?;
    let flow = slot.flow.as_deref_mut();
    flow.filter(|flow| slot.generation == id.generation && !flow.tcp.is_orphan)
}

impl Tcp {
    pub(crate) fn new(limits: &Limits, random: &mut Random) -> Tcp {
        Tcp {
            table: HashMap::with_hasher(Keyed(random.next())),
            flows: Vec::new(),
            free_flows: Vec::new(),
            dirty: VecDeque::new(),
            left: VecDeque::new(),
            left_max: limits.left_max,
            timers: Timers::default(),
            listeners: Vec::new(),
            ports: BTreeMap::new(),
            half_open: Vec::new(),
            free_half_open: Vec::new(),
            half_open_timers: Timers::default(),
            time_waits: TimeWaits::new(limits.time_wait_max),
            cookies: cookie::Cookies::new(random.next()),
            scratch: Vec::new(),
            pool: Pool::new(limits.tcp_buffer_bytes_max),
            secret: random.next(),
            next_port: random.next(),
            flows_max: limits.flows_max,
            half_open_max: limits.half_open_max,
        }
    }

    /// Whether the limits have room for one more connection.
    fn has_room(&self) -> bool {
        self.flows.len() - self.free_flows.len() < self.flows_max
            && self.pool.has_room_for_connection()
    }

    fn flow(&mut self, index: u32) -> Option<&mut Flow> {
        self.flows.get_mut(index as usize)?.flow.as_deref_mut()
    }

    fn flow_of(&mut self, id: TcpId) -> Option<&mut Flow> {
        flow_in(&mut self.flows, id)
    }

    fn id(&self, index: u32) -> TcpId {
        let generation = self.flows[index as usize].generation;
        TcpId { index, generation }
    }

    fn mark_dirty(&mut self, index: u32) {
        if let Some(flow) = self.flows[index as usize].flow.as_deref_mut()
            && !flow.is_dirty
        {
            flow.is_dirty = true;
            self.dirty.push_back(index);
        }
    }

    pub(crate) fn poll_at(&self, now: Micros) -> Option<Micros> {
        if !self.dirty.is_empty() {
            return Some(now);
        }
        self.next_timer_at()
    }

    #[inline]
    pub(crate) fn next_timer_at(&self) -> Option<Micros> {
        let times = [
            self.timers.next_at(),
            self.half_open_timers.next_at(),
            self.time_waits.next_at(),
        ];
        times.into_iter().flatten().min()
    }

    pub(crate) fn listener_event(&mut self, index: u32) -> Option<Event> {
        let listener = self.listeners.get_mut(index as usize)?;
        listener.is_queued = false;
        let generation = listener.generation;
        (!listener.accepted.is_empty()).then_some(Event::Accept(ListenerId { index, generation }))
    }

    pub(crate) fn flow_event(&mut self, index: u32) -> Option<Event> {
        let flow = self.flow(index)?;
        flow.is_queued = false;
        let ready = core::mem::take(&mut flow.tcp.ready);
        let is_silent = flow.tcp.is_orphan || flow.listener.is_some() || ready == Ready::default();
        (!is_silent).then(|| Event::Tcp(self.id(index), ready))
    }
}

impl crate::Stack {
    /// Marks what is due.
    pub(crate) fn tcp_advance(&mut self) {
        let now = self.now;
        while let Some(index) = self.tcp.timers.pop_due(now) {
            self.flow_timer(index);
        }
        while let Some(index) = self.tcp.half_open_timers.pop_due(now) {
            self.half_open_timer(index);
        }
        let Tcp {
            time_waits, table, ..
        } = &mut self.tcp;
        time_waits.expire(now, |key| {
            table.remove(key);
        });
    }
}
