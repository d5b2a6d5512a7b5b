//! TCP: a table of flows, each with one smoltcp socket; listeners, half-open connections and
//! TIME_WAIT around them.
//!
//! ```text
//!   segment ──► key ──hash──► Flow      smoltcp takes it; `settle` sees what changed
//!                       ├───► HalfOpen  our SYN-ACK is out: the ACK makes a flow
//!                       ├───► TimeWait  40 bytes that answer a late FIN
//!                       └───► nothing   SYN: listener or RST; ACK: SYN cookie or RST
//!
//!   send, recv, timer, neighbor ──► dirty ──► tcp_transmit: smoltcp writes one segment
//! ```
//! **Who may do what when.** A flow is *dirty* while smoltcp wants to send now, or may want to
//! because a segment came (*heard*); it then stands in `dirty` once. Otherwise its timer is set,
//! or it waits for its neighbor. It is *attached*
//! while the table leads to it; afterwards only its reader looks at it. It is freed when it is
//! detached and its owner has closed it.
//!
//! **Sequence numbers.** The SYN-ACK of a half-open connection is ours, with an initial sequence
//! number that nobody can guess (RFC 6528) or that is a cookie. When the ACK comes, smoltcp is
//! led through the same handshake with packets made here; it chooses a number of its own, and
//! the difference (`delta`) is added and taken away on the way out and in. Connections that we
//! begin get such a number in the same way, so that names can be used again at once.
//!
//! **Large segments.** smoltcp may write segments up to 64 KB; the true MSS goes with them as
//! `gso_bytes` where the link cuts, else `cut` does it.

mod api;
mod cookie;
mod cut;
mod device;
mod flow;
mod handshake;
mod input;
mod output;
mod recovery;
mod settle;
mod time_wait;
mod timers;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;
use smoltcp::iface::{Config as InterfaceConfig, Interface};
use smoltcp::time::Instant;
use smoltcp::wire::HardwareAddress;

use crate::Micros;
use crate::config::{Limits, Link, TcpOptions};
use crate::hash::{Keyed, Random};
use crate::stack::Event;

pub use flow::{Ready, TcpState};

use cut::Cut;
use device::OneShot;
use flow::{Flow, Idle};
use handshake::{HalfOpen, Listener};
use time_wait::TimeWaits;
use timers::Timers;

/// A listening port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Sockets without a connection that are kept for the next ones.
const IDLE_MAX: usize = 64;

/// Both buffers of a connection when memory is short.
const SMALL_BUFFERS_BYTES: usize = 8 * 1024;

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
    interface: Interface,
    table: HashMap<Key, Slot, Keyed>,
    flows: Vec<FlowSlot>,
    free_flows: Vec<u32>,
    /// Sockets for the next connections, and the length of their buffers.
    idle: Vec<Idle>,
    idle_bytes: usize,
    dirty: VecDeque<u32>,
    timers: Timers,
    listeners: Vec<Listener>,
    ports: BTreeMap<u16, Vec<u32>>,
    half_open: Vec<Option<HalfOpen>>,
    free_half_open: Vec<u32>,
    half_open_timers: Timers,
    time_waits: TimeWaits,
    cookies: cookie::Cookies,
    cut: Cut,
    secret: u64,
    next_port: u64,
    flows_max: usize,
    buffer_bytes: usize,
    buffer_bytes_max: usize,
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

fn instant(now: Micros) -> Instant {
    Instant::from_micros(i64::try_from(now).unwrap_or(i64::MAX))
}

fn new_interface(link: &Link, random: &mut Random) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = random.next();
    let mut nowhere = [];
    let mut device = OneShot::new(None, &mut nowhere, device::segment_bytes_max(link));
    let mut interface = Interface::new(config, &mut device, Instant::ZERO);
    // Which addresses are ours was seen before a packet comes here.
    interface.set_any_ip(true);
    interface
}

impl Tcp {
    pub(crate) fn new(link: &Link, limits: &Limits, random: &mut Random) -> Tcp {
        Tcp {
            interface: new_interface(link, random),
            table: HashMap::with_hasher(Keyed(random.next())),
            flows: Vec::new(),
            free_flows: Vec::new(),
            idle: Vec::new(),
            idle_bytes: 0,
            dirty: VecDeque::new(),
            timers: Timers::default(),
            listeners: Vec::new(),
            ports: BTreeMap::new(),
            half_open: Vec::new(),
            free_half_open: Vec::new(),
            half_open_timers: Timers::default(),
            time_waits: TimeWaits::new(limits.time_wait_max),
            cookies: cookie::Cookies::new(random.next()),
            cut: Cut::default(),
            secret: random.next(),
            next_port: random.next(),
            flows_max: limits.flows_max,
            buffer_bytes: 0,
            buffer_bytes_max: limits.tcp_buffer_bytes_max,
            half_open_max: limits.half_open_max,
        }
    }

    pub(crate) fn set_link(&mut self, link: &Link, random: &mut Random) {
        self.interface = new_interface(link, random);
        self.cut.clear();
    }

    /// Whether the limits have room for one more connection.
    fn has_room_for(&self, options: &TcpOptions) -> bool {
        self.flows.len() - self.free_flows.len() < self.flows_max
            && self.buffer_bytes + options.buffer_bytes() <= self.buffer_bytes_max
    }

    /// The options of a new connection: the buffers that were asked for, as long as each of the
    /// connections that may still come could have small ones.
    fn fitting(&self, mut options: TcpOptions) -> TcpOptions {
        let used = self.flows.len() - self.free_flows.len();
        let reserved = self.flows_max.saturating_sub(used) * SMALL_BUFFERS_BYTES;
        let left = self.buffer_bytes_max.saturating_sub(self.buffer_bytes);
        if options.buffer_bytes() > left.saturating_sub(reserved) {
            options.receive_bytes = options.receive_bytes.min(SMALL_BUFFERS_BYTES / 4);
            options.send_bytes = options.send_bytes.min(SMALL_BUFFERS_BYTES * 3 / 4);
        }
        options
    }

    /// A socket for a connection with these options; those that are kept make room for it.
    fn take_idle(&mut self, options: &TcpOptions) -> Idle {
        if let Some(at) = self.idle.iter().rposition(|idle| idle.fits(options)) {
            let idle = self.idle.swap_remove(at);
            self.idle_bytes -= idle.bytes();
            return idle;
        }
        let wanted = self.buffer_bytes + options.buffer_bytes();
        while wanted + self.idle_bytes > self.buffer_bytes_max
            && let Some(idle) = self.idle.pop()
        {
            self.idle_bytes -= idle.bytes();
        }
        Idle::new(options)
    }

    /// Keeps the socket of a connection that is over, within the bound of all buffers.
    fn keep_idle(&mut self, idle: Idle) {
        let all = self.buffer_bytes + self.idle_bytes + idle.bytes();
        if self.idle.len() < IDLE_MAX && all <= self.buffer_bytes_max {
            self.idle_bytes += idle.bytes();
            self.idle.push(idle);
        }
    }

    fn flow(&mut self, index: u32) -> Option<&mut Flow> {
        self.flows.get_mut(index as usize)?.flow.as_deref_mut()
    }

    fn flow_of(&mut self, id: TcpId) -> Option<&mut Flow> {
        let slot = self.flows.get_mut(id.index as usize)?;
        slot.flow
            .as_deref_mut()
            .filter(|f| slot.generation == id.generation && !f.is_orphan)
    }

    fn id(&self, index: u32) -> TcpId {
        let generation = self.flows[index as usize].generation;
        TcpId { index, generation }
    }

    fn mark_dirty(&mut self, index: u32) {
        self.mark(index, false);
    }

    /// A segment has come for a flow.
    fn mark_heard(&mut self, index: u32) {
        self.mark(index, true);
    }

    fn mark(&mut self, index: u32, is_heard: bool) {
        let Some(flow) = self.flows[index as usize].flow.as_deref_mut() else {
            return;
        };
        flow.is_heard = is_heard && (flow.is_heard || !flow.is_dirty);
        if !flow.is_dirty {
            flow.is_dirty = true;
            self.dirty.push_back(index);
        }
    }

    pub(crate) fn poll_at(&self, now: Micros) -> Option<Micros> {
        if !self.dirty.is_empty() || !self.cut.is_empty() {
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
        let ready = core::mem::take(&mut flow.ready);
        let is_silent = flow.is_orphan || flow.listener.is_some() || ready == Ready::default();
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
