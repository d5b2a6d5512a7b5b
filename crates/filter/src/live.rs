//! A program's questions, answered from a packet.

mod beside;
mod write;

pub use beside::Beside;

use alloc::vec::Vec;

use crate::conntrack::{Binding, Conntrack, Tracking, Tuple};
use crate::environment::{Environment, FibAnswer, FibQuery};
use crate::exec::{End, Mapped, Mode, Next, Number, Seen, load, make_key};
use crate::packet::{Layer, Packet, number};
use crate::program::{
    CtKey, FibFlags, FibResult, Load, MangleCode, MangleTarget, MetaKey, NatCode, NumgenCode,
    Program, RuleId, Term, UpdateCode, VerdictCode,
};
use crate::rules::{NatKind, PayloadBase, SetOp};
use crate::sets::{Data, Element, ElementStatement, SetStore};
use crate::state::{Counter, State};

/// NF_NAT_RANGE_* (linux/netfilter/nf_nat.h).
const NAT_RANDOM: u32 = 4 | 16;
const NAT_PERSISTENT: u32 = 8;
const NAT_NETMAP: u32 = 64;

/// A rule's wish to have the packet logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    pub rule: RuleId,
    /// Which log statement of the program, see [`crate::Filter::log_statement`].
    pub(crate) log: u32,
}

/// What a packet met on its way, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceStep {
    pub rule: RuleId,
    pub what: Traced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// All statements were carried out and none ended anything.
    Matched,
    Accept,
    Drop,
    Reject,
    Return,
    Jump,
    Goto,
    /// It has to see each packet (only of a connection that is asked about).
    EachPacket,
}

impl Traced {
    pub(crate) fn of(next: Next) -> Traced {
        match next {
            Next::Go | Next::Break | Next::Verdict(VerdictCode::Continue) => Traced::Matched,
            Next::Verdict(VerdictCode::Accept) | Next::End(End::Accept) => Traced::Accept,
            Next::Verdict(VerdictCode::Drop) | Next::End(End::Drop) => Traced::Drop,
            Next::Verdict(VerdictCode::Return) => Traced::Return,
            Next::Verdict(VerdictCode::Jump(_)) => Traced::Jump,
            Next::Verdict(VerdictCode::Goto(_)) => Traced::Goto,
            Next::End(End::Reject(_)) => Traced::Reject,
            Next::End(End::EachPacket(_)) => Traced::EachPacket,
        }
    }

    /// What a listing of steps says.
    pub fn name(self) -> &'static str {
        match self {
            Traced::Matched => "continue",
            Traced::Accept => "accept",
            Traced::Drop => "drop",
            Traced::Reject => "reject",
            Traced::Return => "return",
            Traced::Jump => "jump",
            Traced::Goto => "goto",
            Traced::EachPacket => "needs each packet",
        }
    }
}

pub(crate) struct Live<'s, 'p, 'a> {
    pub packet: &'p mut Packet<'a>,
    pub state: &'s mut State,
    pub conntrack: &'s mut Conntrack,
    pub environment: &'s mut dyn Environment,
    pub now_ns: u64,
    pub nfproto: u8,
    pub mapped: Mapped,
    pub logs: Vec<Logged>,
    pub trace: Option<Vec<TraceStep>>,
}

impl Mode for Live<'_, '_, '_> {
    const IS_PARTLY_KNOWN: bool = false;

    #[inline]
    fn payload(&self, base: PayloadBase, offset: u16, len: u8) -> Option<Seen<u64>> {
        let start = match base {
            PayloadBase::Network => self.packet.network_at(),
            PayloadBase::Transport => self.packet.transport_at()?,
            other => self.start(other)?,
        };
        let bytes = self
            .packet
            .slice(start + usize::from(offset), usize::from(len))?;
        let value = match *bytes {
            [a] => a.into(),
            [a, b] => u16::from_be_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
            _ => number(bytes) as u64,
        };
        Some(Seen {
            value,
            known: u64::MAX,
        })
    }

    #[inline]
    fn nfproto(&self) -> u8 {
        self.nfproto
    }

    #[inline]
    fn l4proto(&self) -> Option<u8> {
        self.packet.transport().map(|t| t.protocol)
    }

    fn load(&mut self, load: &Load) -> Option<Number> {
        Some(Number::known(match load {
            Load::Payload {
                base,
                offset,
                len,
                shift,
            } => {
                let at = self.start(*base)? + usize::from(*offset);
                number(self.packet.slice(at, (*len).into())?) >> shift
            }
            Load::Meta(MetaKey::Random) => self.environment.random().into(),
            Load::Meta(key) => self.meta(*key)?,
            Load::Ct { key, reply } => self.ct(*key, *reply)?,
            Load::Exthdr {
                tcp,
                kind,
                offset,
                len,
            } => {
                let (offset, len) = (usize::from(*offset), usize::from(*len));
                let at = if *tcp {
                    let (at, length) = self.packet.find_tcp_option(*kind)?;
                    (offset + len <= length).then_some(at)?
                } else {
                    self.packet.find_extension(*kind)?
                };
                number(self.packet.slice(at + offset, len)?)
            }
            Load::ExthdrExists { tcp: true, kind } => {
                self.packet.find_tcp_option(*kind).is_some().into()
            }
            Load::ExthdrExists { tcp: false, kind } => {
                self.packet.find_extension(*kind).is_some().into()
            }
            Load::Fib { flags, result } => {
                let answer = self.fib(*flags)?;
                match result {
                    FibResult::Oif | FibResult::Oifname if flags.present => {
                        answer.interface.is_some().into()
                    }
                    FibResult::Oif => answer.interface.map_or(0, |i| i.index.into()),
                    FibResult::Oifname => answer.interface.map_or(0, |i| i.name_number()),
                    FibResult::Type => answer.kind.into(),
                }
            }
            Load::Numgen(_) | Load::Jhash(_) | Load::Data { .. } | Load::Constant(_) => {
                return None;
            }
        }))
    }

    fn numgen(&mut self, at: u32, code: &NumgenCode) -> Number {
        let value = if code.random {
            ((u64::from(self.environment.random()) * u64::from(code.modulus)) >> 32) as u32
        } else {
            let last = &mut self.state.numgens[at as usize];
            *last = if *last + 1 < code.modulus {
                *last + 1
            } else {
                0
            };
            *last
        };
        Number::known(value.wrapping_add(code.offset).into())
    }

    #[inline]
    fn mapped(&mut self) -> &mut Mapped {
        &mut self.mapped
    }

    #[inline]
    fn set(&self, at: u32) -> &SetStore {
        &self.state.sets[at as usize]
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn hit(&mut self, set: u32, slot: u32) -> Next {
        let bytes = self.packet.len();
        let Some(element) = self.state.sets[set as usize].element_mut(slot) else {
            return Next::Break;
        };
        for statement in &mut element.statements {
            let passes = match statement {
                ElementStatement::Counter(counter) => {
                    counter.packets += 1;
                    counter.bytes += bytes as u64;
                    true
                }
                ElementStatement::Limit(bucket) => bucket.pass(bytes, self.now_ns),
                ElementStatement::Quota(quota) => quota.pass(bytes),
                ElementStatement::ConnLimit { count, over, flows } => {
                    count_flow(self.conntrack, self.packet.tracking, flows, *count, *over)
                }
            };
            if !passes {
                return Next::Break;
            }
        }
        Next::Go
    }

    #[inline]
    fn counter(&mut self, at: u32) {
        let counter = &mut self.state.counters[at as usize].0;
        counter.packets += 1;
        counter.bytes += self.packet.len() as u64;
    }

    fn limit(&mut self, at: u32) -> Next {
        go_if(
            self.state.limits[at as usize]
                .0
                .pass(self.packet.len(), self.now_ns),
        )
    }

    fn quota(&mut self, at: u32) -> Next {
        go_if(self.state.quotas[at as usize].0.pass(self.packet.len()))
    }

    fn conn_limit(&mut self, at: u32) -> Next {
        let state = &mut self.state.conn_limits[at as usize].0;
        let tracking = self.packet.tracking;
        go_if(count_flow(
            self.conntrack,
            tracking,
            &mut state.flows,
            state.count,
            state.over,
        ))
    }

    fn log(&mut self, at: u32, rule: RuleId) -> Next {
        self.logs.push(Logged { rule, log: at });
        Next::Go
    }

    fn nat(&mut self, program: &Program, code: &NatCode) -> Next {
        let Tracking::Flow { .. } = self.packet.tracking else {
            return Next::Break;
        };
        let six = self.packet.layer() == Layer::Ip6;
        if code.six.is_some_and(|only| only != six) {
            return Next::Break;
        }
        let destination = matches!(code.kind, NatKind::Dnat | NatKind::Redirect);
        let mut address = None;
        let mut port = None;
        match code.kind {
            NatKind::Snat | NatKind::Dnat => {}
            NatKind::Masquerade | NatKind::Redirect => {
                let interface = match code.kind {
                    NatKind::Masquerade => self.packet.meta.oif,
                    _ => self.packet.meta.iif,
                };
                let towards = Tuple::of(self.packet).map_or(0, |t| t.destination);
                match self
                    .environment
                    .local_address(interface.as_ref(), six, towards)
                {
                    Some(own) => address = Some((own, own)),
                    None => return Next::End(End::Drop),
                }
            }
        }
        if let Some(range) = &code.address {
            match self.range(program, range) {
                Ok(range) => address = Some(range),
                Err(next) => return next,
            }
        }
        if let Some(range) = &code.port {
            match self.range(program, range) {
                Ok((low, high)) => port = Some((low as u16, high as u16)),
                Err(next) => return next,
            }
        }
        let wish = Binding {
            destination,
            address,
            port,
            netmap: code.flags & NAT_NETMAP != 0,
            random: code.flags & NAT_RANDOM != 0,
            persistent: code.flags & NAT_PERSISTENT != 0,
        };
        let random = self.environment.random();
        match self
            .conntrack
            .bind(self.packet, destination, Some(wish), random, self.now_ns)
        {
            true => Next::Verdict(VerdictCode::Accept),
            false => Next::End(End::Drop),
        }
    }

    fn update(&mut self, program: &Program, code: &UpdateCode) -> Next {
        let (key, parts) = match make_key(program, self, &program.keys[code.key as usize]) {
            Ok(made) => made,
            Err(next) => return next,
        };
        if code.op == SetOp::Delete {
            self.state.sets[code.set as usize].remove(&key);
            return Next::Go;
        }
        let data = match &code.data {
            None => Data::None,
            Some((term, host)) => match load(program, self, term) {
                Ok(Some(seen)) => {
                    let len = usize::from(term.bits / 8);
                    Data::Bytes(match host {
                        true => seen.value.to_le_bytes()[..len].into(),
                        false => seen.value.to_be_bytes()[16 - len..].into(),
                    })
                }
                Ok(None) => return Next::Break,
                Err(next) => return next,
            },
        };
        let now_ns = self.now_ns;
        let store = &mut self.state.sets[code.set as usize];
        let timeout_ns = code.timeout_ns.unwrap_or(store.timeout_ns);
        let template = if code.statements.is_empty() {
            &store.template
        } else {
            &code.statements
        };
        let fields = program.keys[code.key as usize].parts.len();
        let element = Element {
            key: parts[..fields].iter().map(|p| (*p, *p)).collect(),
            data,
            timeout_ns,
            expires_ns: now_ns.saturating_add(timeout_ns),
            statements: template.clone(),
        };
        let Some((slot, fresh)) = store.add(&key, element, now_ns) else {
            return Next::Break;
        };
        if !fresh
            && code.op == SetOp::Update
            && let Some(element) = store.element_mut(slot).filter(|e| e.timeout_ns > 0)
        {
            let timeout_ns = code.timeout_ns.unwrap_or(element.timeout_ns);
            element.expires_ns = now_ns.saturating_add(timeout_ns);
        }
        self.hit(code.set, slot)
    }

    fn mangle(&mut self, program: &Program, code: &MangleCode) -> Next {
        let value = match load(program, self, &code.value) {
            Ok(Some(seen)) => seen.value,
            Ok(None) => return Next::Break,
            Err(next) => return next,
        };
        match code.target {
            MangleTarget::Meta(MetaKey::Mark) => self.packet.meta.mark = value as u32,
            MangleTarget::Meta(MetaKey::Priority) => self.packet.meta.priority = value as u32,
            MangleTarget::Meta(MetaKey::Pkttype) => self.packet.meta.pkttype = value as u8,
            MangleTarget::Meta(MetaKey::Nftrace) => self.packet.meta.nftrace = value != 0,
            MangleTarget::Meta(_) => {}
            MangleTarget::CtMark => {
                if let Tracking::Flow { number, .. } = self.packet.tracking
                    && let Some(flow) = self.conntrack.flow_mut(number)
                {
                    flow.mark = value as u32;
                }
            }
            MangleTarget::Payload {
                base,
                offset,
                len,
                checksum,
                pseudo,
            } => {
                let Some(start) = self.start(base) else {
                    return Next::Break;
                };
                let field = write::Field {
                    start,
                    offset,
                    len,
                    checksum,
                    pseudo,
                };
                if self.write(base, &field, value).is_none() {
                    return Next::Break;
                }
            }
        }
        Next::Go
    }

    fn notrack(&mut self) -> Next {
        if self.packet.tracking == Tracking::None {
            self.packet.tracking = Tracking::Untracked;
        }
        Next::Go
    }

    #[inline]
    fn passed(&mut self, rule: RuleId, next: Next) {
        if let Some(trace) = &mut self.trace {
            trace.push(TraceStep {
                rule,
                what: Traced::of(next),
            });
        }
    }
}

impl Live<'_, '_, '_> {
    fn start(&self, base: PayloadBase) -> Option<usize> {
        match base {
            PayloadBase::Link => self.packet.has_link().then_some(0),
            PayloadBase::Network => Some(self.packet.network_at()),
            PayloadBase::Transport => self.packet.transport_at(),
            PayloadBase::Inner => self.packet.inner_at(),
        }
    }

    fn meta(&self, key: MetaKey) -> Option<u128> {
        let meta = &self.packet.meta;
        Some(match key {
            MetaKey::Length => self.packet.len() as u128,
            MetaKey::Protocol => self.packet.ethertype().into(),
            MetaKey::Nfproto => self.nfproto.into(),
            MetaKey::L4proto => self.l4proto()?.into(),
            MetaKey::Mark => meta.mark.into(),
            MetaKey::Priority => meta.priority.into(),
            MetaKey::Nftrace => meta.nftrace.into(),
            // Without an interface the number is 0 and the name empty.
            MetaKey::Iif => meta.iif.map_or(0, |i| i.index.into()),
            MetaKey::Oif => meta.oif.map_or(0, |i| i.index.into()),
            MetaKey::Iifname => meta.iif.map_or(0, |i| i.name_number()),
            MetaKey::Oifname => meta.oif.map_or(0, |i| i.name_number()),
            MetaKey::Iiftype => meta.iif?.kind.into(),
            MetaKey::Oiftype => meta.oif?.kind.into(),
            MetaKey::Iifgroup => meta.iif?.group.into(),
            MetaKey::Oifgroup => meta.oif?.group.into(),
            MetaKey::Ibrname => meta.iif_bridge?.name_number(),
            MetaKey::Obrname => meta.oif_bridge?.name_number(),
            MetaKey::Pkttype => meta.pkttype.into(),
            MetaKey::Cpu => meta.cpu.into(),
            MetaKey::Skuid => meta.skuid?.into(),
            MetaKey::Skgid => meta.skgid?.into(),
            MetaKey::Time => self.environment.wall_ns().into(),
            MetaKey::Hour => (self.environment.wall_ns() / 1_000_000_000 % 86_400).into(),
            // 1 January 1970 was a Thursday.
            MetaKey::Day => ((self.environment.wall_ns() / 86_400_000_000_000 + 4) % 7).into(),
            MetaKey::Random => return None,
        })
    }

    fn ct(&self, key: CtKey, of_reply: Option<bool>) -> Option<u128> {
        let tracking = self.packet.tracking;
        if key == CtKey::State {
            return Some(tracking.state().into());
        }
        let Tracking::Flow { number, reply, .. } = tracking else {
            return None;
        };
        let flow = self.conntrack.flow(number)?;
        let tuple = match of_reply {
            Some(true) => &flow.reply,
            _ => &flow.original,
        };
        let counts = match of_reply {
            Some(of_reply) => flow.counts[usize::from(of_reply)],
            None => Counter {
                packets: flow.counts[0].packets + flow.counts[1].packets,
                bytes: flow.counts[0].bytes + flow.counts[1].bytes,
            },
        };
        let only = |six: bool, address: u128| (tuple.six == six).then_some(address);
        Some(match key {
            CtKey::Direction => reply.into(),
            CtKey::Status => flow.status.into(),
            CtKey::Mark => flow.mark.into(),
            CtKey::Expiration => (flow.expires_ns.saturating_sub(self.now_ns) / 1_000_000).into(),
            CtKey::L3proto => {
                if tuple.six {
                    10
                } else {
                    2
                }
            }
            CtKey::Protocol => tuple.protocol.into(),
            CtKey::Saddr => tuple.source,
            CtKey::Daddr => tuple.destination,
            CtKey::IpSaddr => only(false, tuple.source)?,
            CtKey::IpDaddr => only(false, tuple.destination)?,
            CtKey::Ip6Saddr => only(true, tuple.source)?,
            CtKey::Ip6Daddr => only(true, tuple.destination)?,
            CtKey::ProtoSrc => tuple.source_port.into(),
            CtKey::ProtoDst => tuple.destination_port.into(),
            CtKey::Bytes => counts.bytes.into(),
            CtKey::Packets => counts.packets.into(),
            CtKey::Avgpkt => (counts.bytes / counts.packets.max(1)).into(),
            CtKey::Id => (flow.number as u32).into(),
            CtKey::State => return None,
        })
    }

    fn fib(&self, flags: FibFlags) -> Option<FibAnswer> {
        let layer = self.packet.ip_layer()?;
        let at = self.packet.network_at();
        let (six, from, len) = match (layer, flags.saddr) {
            (Layer::Ip, true) => (false, 12, 4),
            (Layer::Ip, false) => (false, 16, 4),
            (Layer::Ip6, true) => (true, 8, 16),
            (Layer::Ip6, false) => (true, 24, 16),
            _ => return None,
        };
        let query = FibQuery {
            address: number(self.packet.slice(at + from, len)?),
            six,
            iif: self.packet.meta.iif.filter(|_| flags.iif),
            oif: self.packet.meta.oif.filter(|_| flags.oif),
            mark: flags.mark.then_some(self.packet.meta.mark),
            is_source: flags.saddr,
        };
        Some(self.environment.fib(&query))
    }

    /// The lowest and the highest number.
    fn range(&mut self, program: &Program, terms: &[Term; 2]) -> Result<(u128, u128), Next> {
        let mut number = |term| match load(program, self, term)? {
            Some(seen) => Ok(seen.value),
            None => Err(Next::Break),
        };
        Ok((number(&terms[0])?, number(&terms[1])?))
    }
}

fn go_if(holds: bool) -> Next {
    if holds { Next::Go } else { Next::Break }
}

/// Counts the packet's flow among those that are still there, and says whether the
/// statement matches.
fn count_flow(
    conntrack: &Conntrack,
    tracking: Tracking,
    flows: &mut Vec<u64>,
    count: u32,
    over: bool,
) -> bool {
    let Tracking::Flow { number, .. } = tracking else {
        // A packet of no flow counts for itself, and no longer than it is looked at.
        flows.retain(|n| conntrack.flow(*n).is_some_and(|f| !f.is_closed()));
        return (flows.len() as u64 + 1 > count.into()) == over;
    };
    if !flows.contains(&number) {
        flows.retain(|n| conntrack.flow(*n).is_some_and(|f| !f.is_closed()));
        flows.push(number);
    }
    (flows.len() as u64 > count.into()) == over
}
