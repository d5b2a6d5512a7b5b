//! Connection tracking: which flow a packet belongs to, and in which state that flow is.
//!
//! ```text
//!   first packet ──► unconfirmed (known to this packet only) ──last hook──► in the table ──► over
//!                        └ dropped: gone                          │ each packet: state, timeout, counts
//! ```
//! A flow is found by the tuple of either direction. It enters the table when its first
//! packet has passed the last hook; until then a drop leaves no trace. Memory is bounded:
//! the table holds [`Config::flows_max`]; when it is full, flows that are over leave
//! first, then one that never saw an answer (found among the next [`SCAN_MAX`]), else the
//! new packet is dropped. Timeouts are those of Linux.
//!
//! Fragments: rules that ask for connections see whole packets only in Linux, which
//! reassembles them first. Here the caller does that; a fragment that comes all the same
//! is invalid, not new.

mod nat;
mod tcp;
mod tuple;

use alloc::vec::Vec;
use hashbrown::HashMap;

use crate::hash::Seed;
use crate::packet::{Layer, PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP, Packet};
use crate::state::Counter;
pub(crate) use nat::{Binding, Zero, adjust, transport_checksum};
use tcp::TcpState;
pub use tuple::Tuple;

const SECOND_NS: u64 = 1_000_000_000;
/// Linux forgets a flow of UDP or ICMP after so long without a packet, and one of another protocol that has no states (linux:
/// nf_conntrack_udp_timeout_stream, nf_conntrack_generic_timeout).
const FORGET_UDP_NS: u64 = 120 * SECOND_NS;
const FORGET_OTHERS_NS: u64 = 600 * SECOND_NS;
/// How many flows are looked at for one that may go when the table is full.
const SCAN_MAX: usize = 64;

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub flows_max: usize,
    /// A packet from outside whose transport checksum is wrong belongs to no flow. Off
    /// where checksums are made after the filter, or checked by hardware before it.
    pub verify_checksums: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            flows_max: 65_536,
            verify_checksums: true,
        }
    }
}

/// Bits of `ct status` (linux/netfilter/nf_conntrack_common.h).
pub(crate) mod status {
    pub(crate) const SEEN_REPLY: u32 = 1 << 1;
    pub(crate) const ASSURED: u32 = 1 << 2;
    pub(crate) const CONFIRMED: u32 = 1 << 3;
    pub(crate) const SRC_NAT: u32 = 1 << 4;
    pub(crate) const DST_NAT: u32 = 1 << 5;
    pub(crate) const SRC_NAT_DONE: u32 = 1 << 7;
    pub(crate) const DST_NAT_DONE: u32 = 1 << 8;
    /// Out of the table; the packet that ended it still belongs.
    pub(crate) const DYING: u32 = 1 << 9;
}

/// Bits of `ct state`.
pub(crate) mod ct_state {
    pub(crate) const INVALID: u32 = 1;
    pub(crate) const ESTABLISHED: u32 = 2;
    pub(crate) const RELATED: u32 = 4;
    pub(crate) const NEW: u32 = 8;
    pub(crate) const UNTRACKED: u32 = 64;
}

/// What is known of a packet's flow, from hook to hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Tracking {
    /// Not looked at yet, or nothing asks for connections.
    #[default]
    None,
    Invalid,
    Untracked,
    Flow {
        number: u64,
        reply: bool,
        relation: Relation,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    New,
    Established,
    /// An error message about a flow.
    Related,
}

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// Slot, and above it how often the slot was used before.
    pub number: u64,
    pub original: Tuple,
    pub reply: Tuple,
    pub status: u32,
    pub mark: u32,
    tcp: tcp::Tcp,
    pub expires_ns: u64,
    born_ns: u64,
    /// Its first packet here was the first there was.
    has_seen_begin: bool,
    pub counts: [Counter; 2],
}

/// The table of flows.
#[derive(Debug)]
pub struct Conntrack {
    config: Config,
    seed: Seed,
    slots: Vec<Option<Flow>>,
    free: Vec<u32>,
    uses: Vec<u32>,
    /// Both tuples of each confirmed flow, and whether it is the reply's.
    index: HashMap<Tuple, (u32, bool), Seed>,
    scan_at: usize,
    /// Since when each packet was looked at.
    since_ns: Option<u64>,
}

impl Conntrack {
    pub fn new(config: Config, seed: u64) -> Conntrack {
        let seed = Seed(seed);
        Conntrack {
            config,
            seed,
            slots: Vec::new(),
            free: Vec::new(),
            uses: Vec::new(),
            index: HashMap::with_hasher(seed),
            scan_at: 0,
            since_ns: None,
        }
    }

    /// Packets pass from now on that are not looked at.
    pub(crate) fn look_away(&mut self) {
        self.since_ns = None;
    }

    /// Whether somebody who sees the same packets, and may have begun to sooner, knows no more of a flow: it began with the
    /// first packet of a connection, or, where no packet says so, when everybody had forgotten what was before.
    pub(crate) fn has_seen_begin(&self, number: u64) -> bool {
        self.flow(number).is_some_and(|flow| flow.has_seen_begin)
    }

    /// How many flows there are, unconfirmed ones included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn flow(&self, number: u64) -> Option<&Flow> {
        let flow = self.slots.get(number as u32 as usize)?.as_ref()?;
        (flow.number == number).then_some(flow)
    }

    pub(crate) fn flow_mut(&mut self, number: u64) -> Option<&mut Flow> {
        let flow = self.slots.get_mut(number as u32 as usize)?.as_mut()?;
        (flow.number == number).then_some(flow)
    }

    fn find(&self, tuple: &Tuple, now_ns: u64) -> Option<(u64, bool)> {
        let (slot, reply) = *self.index.get(tuple)?;
        let flow = self.slots[slot as usize].as_ref()?;
        (!flow.is_over(now_ns)).then_some((flow.number, reply))
    }

    /// Finds or begins the packet's flow. False if the packet must be dropped because
    /// the table is full.
    pub(crate) fn track(&mut self, packet: &mut Packet, from_outside: bool, now_ns: u64) -> bool {
        if packet.tracking != Tracking::None {
            return true;
        }
        packet.tracking = Tracking::Invalid;
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if from_outside && self.config.verify_checksums && !nat::is_sum_right(packet) {
            return true;
        }
        let Some(tuple) = Tuple::of(packet) else {
            return true;
        };
        if let Some((number, reply)) = self.related(packet, now_ns) {
            packet.tracking = Tracking::Flow {
                number,
                reply,
                relation: Relation::Related,
            };
            return true;
        }
        if is_icmp_error(&tuple) {
            return true;
        }
        // A segment that begins a connection anew is looked up twice at most.
        for _ in 0..2 {
            let found = self.find(&tuple, now_ns);
            let (number, reply) = match found {
                Some(found) => found,
                None if !tuple.may_begin() => return true,
                None => match self.begin(tuple, now_ns) {
                    Some(number) => (number, false),
                    None => return false,
                },
            };
            match self.advance(number, reply, packet, now_ns) {
                Advance::Belongs => {
                    if found.is_none()
                        && let Some(flow) = self.flow_mut(number)
                    {
                        flow.has_seen_begin = match tuple.protocol {
                            PROTO_TCP => flow.has_seen_syn(),
                            PROTO_UDP | PROTO_ICMP | PROTO_ICMPV6 => {
                                now_ns >= since_ns + FORGET_UDP_NS
                            }
                            _ => now_ns >= since_ns + FORGET_OTHERS_NS,
                        };
                    }
                    let seen = self
                        .flow(number)
                        .is_some_and(|f| f.status & status::SEEN_REPLY != 0);
                    let relation = match reply || seen {
                        true => Relation::Established,
                        false => Relation::New,
                    };
                    packet.tracking = Tracking::Flow {
                        number,
                        reply,
                        relation,
                    };
                    return true;
                }
                Advance::Invalid => {
                    if found.is_none() {
                        self.remove(number);
                    }
                    return true;
                }
                Advance::Again => self.remove(number),
            }
        }
        true
    }

    /// The flow that an ICMP error is about: its inner header, the other way round.
    fn related(&self, packet: &Packet, now_ns: u64) -> Option<(u64, bool)> {
        let inner = nat::inner_tuple(packet)?.0;
        let (number, reply) = self.find(&inner.inverted(), now_ns)?;
        Some((number, reply))
    }

    fn begin(&mut self, tuple: Tuple, now_ns: u64) -> Option<u64> {
        if self.len() >= self.config.flows_max && !self.make_room(now_ns) {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.uses.push(0);
                self.slots.len() as u32 - 1
            }
        };
        let number = u64::from(self.uses[slot as usize]) << 32 | u64::from(slot);
        self.slots[slot as usize] = Some(Flow {
            number,
            original: tuple,
            reply: tuple.inverted(),
            status: 0,
            mark: 0,
            tcp: tcp::Tcp::default(),
            expires_ns: now_ns + 60 * SECOND_NS,
            born_ns: now_ns,
            has_seen_begin: false,
            counts: [Counter::default(); 2],
        });
        Some(number)
    }

    /// Looks at the next few flows; removes what is over, else one without an answer.
    fn make_room(&mut self, now_ns: u64) -> bool {
        let mut candidate = None;
        let mut is_over = false;
        for _ in 0..SCAN_MAX.min(self.slots.len()) {
            self.scan_at = (self.scan_at + 1) % self.slots.len();
            let Some(flow) = &self.slots[self.scan_at] else {
                continue;
            };
            if flow.is_over(now_ns) {
                candidate = Some(flow.number);
                is_over = true;
                break;
            }
            if flow.status & status::ASSURED == 0 && candidate.is_none() {
                candidate = Some(flow.number);
            }
        }
        if candidate.is_some() && !is_over {
            // Its next packet will look like the first one.
            self.since_ns = Some(now_ns);
        }
        candidate.map(|number| self.remove(number)).is_some()
    }

    /// Removes all flows that are over. For a caller with time to spare.
    pub fn sweep(&mut self, now_ns: u64) {
        for slot in 0..self.slots.len() {
            if let Some(flow) = &self.slots[slot]
                && flow.is_over(now_ns)
            {
                self.remove(flow.number);
            }
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        let slot = number as u32;
        if self.flow(number).is_none() {
            return;
        }
        if let Some(flow) = self.slots[slot as usize].take() {
            for tuple in [flow.original, flow.reply] {
                if self.index.get(&tuple).is_some_and(|(at, _)| *at == slot) {
                    self.index.remove(&tuple);
                }
            }
            self.uses[slot as usize] = self.uses[slot as usize].wrapping_add(1);
            self.free.push(slot);
        }
    }

    fn advance(&mut self, number: u64, reply: bool, packet: &Packet, now_ns: u64) -> Advance {
        let Some(flow) = self.flow_mut(number) else {
            return Advance::Invalid;
        };
        let protocol = flow.original.protocol;
        let timeout_s = match protocol {
            PROTO_TCP => {
                let Some(at) = packet.transport_at() else {
                    return Advance::Invalid;
                };
                let Some(head) = packet.slice(at, 20) else {
                    return Advance::Invalid;
                };
                let (flags, header) = (head[13], usize::from(head[12] >> 4) * 4);
                if header < 20 || packet.slice(at, header).is_none() {
                    return Advance::Invalid;
                }
                match flow.tcp_segment(flags, reply) {
                    Ok(timeout_s) => timeout_s,
                    Err(Advance::Belongs) => {
                        if reply {
                            flow.status |= status::SEEN_REPLY;
                        }
                        return Advance::Belongs;
                    }
                    Err(other) => return other,
                }
            }
            PROTO_UDP => {
                let Some(at) = packet.transport_at() else {
                    return Advance::Invalid;
                };
                let Some(head) = packet.slice(at, 8) else {
                    return Advance::Invalid;
                };
                let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
                if length < 8 || packet.slice(at, length).is_none() {
                    return Advance::Invalid;
                }
                // A stream: answered, and older than two seconds.
                let seen = reply || flow.status & status::SEEN_REPLY != 0;
                if seen && now_ns >= flow.born_ns + 2 * SECOND_NS {
                    flow.status |= status::ASSURED;
                }
                if flow.status & status::ASSURED != 0 {
                    120
                } else {
                    30
                }
            }
            PROTO_ICMP | PROTO_ICMPV6 => 30,
            _ => 600,
        };
        if reply {
            flow.status |= status::SEEN_REPLY;
        }
        if flow.status & status::DYING == 0 {
            flow.expires_ns = now_ns + timeout_s * SECOND_NS;
        }
        let count = &mut flow.counts[usize::from(reply)];
        count.packets += 1;
        count.bytes += packet.len() as u64;
        Advance::Belongs
    }

    /// The packet has passed its last hook: its flow may stand in the table. False if
    /// another flow took the same names meanwhile; the packet is then dropped.
    pub(crate) fn confirm(&mut self, packet: &Packet) -> bool {
        let Tracking::Flow { number, .. } = packet.tracking else {
            return true;
        };
        let Some(flow) = self.flow_mut(number) else {
            return true;
        };
        if flow.status & status::CONFIRMED != 0 {
            return true;
        }
        flow.status |= status::CONFIRMED;
        let (original, reply, slot) = (flow.original, flow.reply, number as u32);
        if self.index.contains_key(&original) || self.index.contains_key(&reply) {
            // An entry that is over gives way.
            let taken = [original, reply].map(|t| self.index.get(&t).map(|(at, _)| *at));
            let born_ns = self.slots[slot as usize].as_ref().map_or(0, |f| f.born_ns);
            let now_over = |at: u32| {
                let flow = self.slots[at as usize].as_ref();
                flow.is_none_or(|flow| flow.is_over(born_ns))
            };
            if !taken.iter().flatten().all(|at| now_over(*at)) {
                self.remove(number);
                return false;
            }
            for at in taken.into_iter().flatten() {
                if let Some(number) = self.slots[at as usize].as_ref().map(|f| f.number) {
                    self.remove(number);
                }
            }
        }
        self.index.insert(reply, (slot, true));
        self.index.insert(original, (slot, false));
        true
    }

    /// The packet was dropped: a flow that only it knew is gone.
    pub(crate) fn forget(&mut self, packet: &mut Packet) {
        if let Tracking::Flow { number, .. } = packet.tracking
            && self
                .flow(number)
                .is_some_and(|f| f.status & status::CONFIRMED == 0)
        {
            self.remove(number);
            packet.tracking = Tracking::None;
        }
    }

    pub(crate) fn is_unconfirmed(&self, number: u64) -> bool {
        self.flow(number)
            .is_some_and(|f| f.status & status::CONFIRMED == 0)
    }

    pub(crate) fn is_bound(&self, number: u64, destination: bool) -> bool {
        let done = if destination {
            status::DST_NAT_DONE
        } else {
            status::SRC_NAT_DONE
        };
        self.flow(number).is_some_and(|f| f.status & done != 0)
    }

    pub(crate) fn seed(&self) -> Seed {
        self.seed
    }
}

enum Advance {
    Belongs,
    Invalid,
    Again,
}

impl Flow {
    /// Over, though its names are kept a while longer: `ct count` does not count it.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.tcp.state, TcpState::TimeWait | TcpState::Close)
    }

    /// Its first segment was one that begins a connection.
    fn has_seen_syn(&self) -> bool {
        self.tcp.state == TcpState::SynSent
    }

    /// Its names are free.
    fn is_over(&self, now_ns: u64) -> bool {
        self.status & status::DYING != 0 || self.expires_ns <= now_ns
    }

    /// The timeout in seconds, or what else the segment is; one that belongs and renews
    /// nothing is `Err(Advance::Belongs)`.
    fn tcp_segment(&mut self, flags: u8, reply: bool) -> Result<u64, Advance> {
        let was = self.tcp.state;
        let next = match self.tcp.take(flags, reply) {
            tcp::Step::To(next) => next,
            tcp::Step::Ignored => return Err(Advance::Belongs),
            tcp::Step::Invalid => return Err(Advance::Invalid),
            tcp::Step::Again => return Err(Advance::Again),
        };
        if self.status & status::SEEN_REPLY == 0 {
            // Refused, or given up, before there was an answer.
            if flags & tcp::RST != 0 {
                self.status |= status::DYING;
            }
            // A SYN sent twice, or one from either end.
            if was == TcpState::SynSent && matches!(next, TcpState::SynSent | TcpState::SynSentBoth)
            {
                return Err(Advance::Belongs);
            }
        } else if next == TcpState::Established
            && matches!(was, TcpState::SynReceived | TcpState::Established)
        {
            self.status |= status::ASSURED;
        }
        Ok(match next {
            TcpState::None | TcpState::SynSent | TcpState::SynSentBoth => 120,
            TcpState::SynReceived => 60,
            // Data that nobody has acknowledged yet.
            TcpState::Established if self.status & status::ASSURED == 0 => 300,
            TcpState::Established => 432_000,
            TcpState::FinWait => 120,
            TcpState::CloseWait => 60,
            TcpState::LastAck => 30,
            TcpState::TimeWait => 120,
            TcpState::Close => 10,
        })
    }
}

fn is_icmp_error(tuple: &Tuple) -> bool {
    let kind = (tuple.destination_port >> 8) as u8;
    match tuple.protocol {
        PROTO_ICMP if !tuple.six => matches!(kind, 3 | 4 | 5 | 11 | 12),
        PROTO_ICMPV6 if tuple.six => kind < 128,
        _ => false,
    }
}

impl Tracking {
    /// `ct state`.
    pub(crate) fn state(&self) -> u32 {
        match self {
            Tracking::None | Tracking::Invalid => ct_state::INVALID,
            Tracking::Untracked => ct_state::UNTRACKED,
            Tracking::Flow { relation, .. } => match relation {
                Relation::New => ct_state::NEW,
                Relation::Established => ct_state::ESTABLISHED,
                Relation::Related => ct_state::RELATED,
            },
        }
    }
}

impl Layer {
    pub(crate) fn is_ip(self) -> bool {
        matches!(self, Layer::Ip | Layer::Ip6)
    }
}
