//! What the rules say about a connection, once and for all its packets.
//!
//! Asked when two programs want to move bytes without packets. Of the packets that there
//! would have been some bits are known (addresses, ports, interfaces, that a segment of an
//! established connection has ACK and no SYN) and others are not (lengths, TTL; of UDP also whether
//! a packet is a fragment, for nobody knows how long a datagram will be). The same
//! program is carried out on the known bits; if every hook in both directions lets the
//! packets pass whatever the unknown bits are, the connection is allowed. If a rule needs
//! a bit that is not known, or does something with each packet (a limit, a log), the
//! answer names that rule. The counters that the packets would have gone through come
//! back with the answer, to be credited with what the fast path carries.
//!
//! A rule's effect on marks counts as something done to each packet unless it leaves the
//! mark as it was: routing may follow the mark, and the fast path has no routes.

mod answer;

use alloc::vec::Vec;

use answer::Credit;
pub use answer::{Answer, Decision};

use crate::conntrack::{Tuple, ct_state, status};
use crate::environment::{Environment, FibQuery};
use crate::exec::{self, EachPacket, End, Facts, Mapped, Mode, Next, Number, Seen};
use crate::filter::{Filter, PRIORITY_CONNTRACK};
use crate::live::{TraceStep, Traced};
use crate::packet::{ETHERTYPE_IP, ETHERTYPE_IP6, Iface, Layer, PROTO_TCP, PROTO_UDP};
use crate::program::{
    CtKey, FibResult, Load, MangleCode, MangleTarget, MetaKey, NatCode, NumgenCode, Program,
    RuleId, UpdateCode,
};
use crate::rules::{ChainKind, Hook, PayloadBase};
use crate::sets::{ElementStatement, SetStore};
use crate::state::State;

/// A hook that the packets of one direction cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// [`Layer::Bridge`] or [`Layer::Netdev`]; `None` for the connection's own.
    pub layer: Option<Layer>,
    pub hook: Hook,
    pub iif: Option<Iface>,
    pub oif: Option<Iface>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The packets of the handshake are asked about too: the first of the connecting end,
    /// and the answer to it (RFC 9293, 3.5). Of UDP these are its first datagram, and the first one back.
    New,
    /// Only what comes after the handshake: the kernel has let that pass, or it has been
    /// asked about before.
    Established,
}

#[derive(Clone, Debug)]
pub struct Question<'q> {
    /// As the connecting end sees it.
    pub tuple: Tuple,
    pub phase: Phase,
    /// What packets from the connecting end cross, in order.
    pub forward: &'q [Crossing],
    /// What packets to it cross.
    pub backward: &'q [Crossing],
    /// Marks of the packets and of the flow, as far as something outside set them.
    pub mark: u32,
    pub ct_mark: u32,
    pub skuid: Option<u32>,
}

/// A rule that matched when a connection was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedStep {
    pub hook: Hook,
    /// A packet of the handshake; else one of those that follow.
    pub opens: bool,
    /// To the connecting end.
    pub reply: bool,
    pub step: TraceStep,
}

impl Filter {
    /// What the rules in force say about a connection.
    pub fn ask(
        &self,
        question: &Question,
        now_ns: u64,
        environment: &mut dyn Environment,
    ) -> Answer {
        self.ask_and_note(question, now_ns, environment, None)
    }

    /// As [`Filter::ask`], with each rule that matched on the way, in order.
    pub fn ask_traced(
        &self,
        question: &Question,
        now_ns: u64,
        environment: &mut dyn Environment,
    ) -> (Answer, Vec<AskedStep>) {
        let mut steps = Vec::new();
        let answer = self.ask_and_note(question, now_ns, environment, Some(&mut steps));
        (answer, steps)
    }

    /// Whether packets at this hook are looked at by a chain or tracked. Where they are not, asking
    /// [`Filter::hook`] changes nothing.
    pub fn acts_at(&self, layer: Layer, hook: Hook) -> bool {
        self.program.tracks[layer as usize]
            || !self.program.hooks[layer as usize][hook as usize].is_empty()
    }

    /// Whether a rule in force looks at connections, so that packets are tracked.
    pub fn tracks_connections(&self) -> bool {
        self.program.tracks.contains(&true)
    }

    fn ask_and_note(
        &self,
        question: &Question,
        now_ns: u64,
        environment: &mut dyn Environment,
        steps: Option<&mut Vec<AskedStep>>,
    ) -> Answer {
        let mut answer = Answer {
            decision: Decision::Allowed,
            epoch: self.epoch,
            forward: Vec::new(),
            backward: Vec::new(),
        };
        let mut asked = Asked {
            question,
            state: &self.state,
            environment,
            now_ns,
            layer: if question.tuple.six {
                Layer::Ip6
            } else {
                Layer::Ip
            },
            six: question.tuple.six,
            crossing: None,
            reply: false,
            opens: false,
            untracked: false,
            nfproto: 0,
            has_flow: false,
            mapped: Mapped::default(),
            credits: Vec::new(),
            steps,
        };
        let ways = [
            (true, false, question.forward),
            (true, true, question.backward),
            (false, false, question.forward),
            (false, true, question.backward),
        ];
        let first = match question.phase {
            Phase::New => 0,
            Phase::Established => 2,
        };
        for (opens, reply, crossings) in ways.into_iter().skip(first) {
            (asked.opens, asked.reply, asked.untracked) = (opens, reply, false);
            asked.credits.clear();
            let decision = asked.cross(&self.program, crossings);
            if decision != Decision::Allowed {
                answer.decision = decision;
                return answer;
            }
            match (opens, reply) {
                (false, false) => answer.forward = asked.credits.clone(),
                (false, true) => answer.backward = asked.credits.clone(),
                _ => {}
            }
        }
        answer
    }
}

struct Asked<'s> {
    question: &'s Question<'s>,
    state: &'s State,
    environment: &'s mut dyn Environment,
    now_ns: u64,
    layer: Layer,
    six: bool,
    crossing: Option<Crossing>,
    reply: bool,
    opens: bool,
    untracked: bool,
    /// What `meta nfproto` says in this chain.
    nfproto: u8,
    /// The packet has met connection tracking.
    has_flow: bool,
    mapped: Mapped,
    credits: Vec<Credit>,
    steps: Option<&'s mut Vec<AskedStep>>,
}

impl Asked<'_> {
    /// Writes down that a rule matched, or that a chain's policy decided.
    fn note(&mut self, rule: RuleId, what: Traced) {
        let (hook, opens, reply) = (self.crossing.map(|c| c.hook), self.opens, self.reply);
        if let (Some(steps), Some(hook)) = (&mut self.steps, hook) {
            steps.push(AskedStep {
                hook,
                opens,
                reply,
                step: TraceStep { rule, what },
            });
        }
    }

    fn cross(&mut self, program: &Program, crossings: &[Crossing]) -> Decision {
        let own = if self.six { Layer::Ip6 } else { Layer::Ip };
        let mut facts = Facts::new();
        for crossing in crossings {
            self.layer = crossing.layer.unwrap_or(own);
            self.crossing = Some(*crossing);
            for base in &program.hooks[self.layer as usize][crossing.hook as usize] {
                // An established flow is bound already, or it is not.
                if base.kind == ChainKind::Nat && !self.is_first() {
                    continue;
                }
                let device = match crossing.hook {
                    Hook::Egress => crossing.oif,
                    _ => crossing.iif,
                };
                let is_there = |d: Iface| base.devices.contains(&d.name_number());
                if !base.devices.is_empty() && !device.is_some_and(is_there) {
                    continue;
                }
                self.nfproto = match base.calls_ip_by_name {
                    true => own.nfproto(),
                    false => self.layer.nfproto(),
                };
                let begins = matches!(crossing.hook, Hook::Prerouting | Hook::Output);
                self.has_flow =
                    self.layer.is_ip() && !(begins && base.priority < PRIORITY_CONNTRACK);
                let (end, rule) = exec::run(program, self, &mut facts, base);
                if rule.rule.is_none() {
                    self.note(rule, Traced::of(Next::End(end)));
                }
                match end {
                    End::Accept => {}
                    End::Drop => return Decision::Refused { reject: None, rule },
                    End::Reject(code) => {
                        return Decision::Refused {
                            reject: code.known(self.six),
                            rule,
                        };
                    }
                    End::EachPacket(why) => return Decision::EachPacket { rule, why },
                }
            }
        }
        Decision::Allowed
    }

    /// Whether the first packet of the connection is asked about.
    fn is_first(&self) -> bool {
        self.opens && !self.reply
    }

    /// TCP's segments fit; a datagram is as long as the program likes.
    fn may_be_fragment(&self) -> bool {
        self.question.tuple.protocol == PROTO_UDP
    }

    /// The tuple of the direction that is asked about.
    fn tuple(&self) -> Tuple {
        match self.reply {
            true => self.question.tuple.inverted(),
            false => self.question.tuple,
        }
    }

    /// The header's bytes and which bits of them are known.
    fn header(&self, base: PayloadBase) -> Header {
        let tuple = self.tuple();
        let mut header = Header::default();
        match (base, self.six) {
            (PayloadBase::Network, false) => {
                header.put(0, &[0x45]);
                if !self.may_be_fragment() {
                    // Whether it may become one is not known.
                    header.put_bits(6, 0, 0xbf);
                    header.put(7, &[0]);
                }
                header.put(9, &[tuple.protocol]);
                header.put(12, &(tuple.source as u32).to_be_bytes());
                header.put(16, &(tuple.destination as u32).to_be_bytes());
                header.len = 20;
            }
            (PayloadBase::Network, true) => {
                header.put_bits(0, 0x60, 0xf0);
                let known = match self.may_be_fragment() {
                    true => !(tuple.protocol ^ NEXT_IS_FRAGMENT),
                    false => 0xff,
                };
                header.put_bits(6, tuple.protocol & known, known);
                header.put(8, &tuple.source.to_be_bytes());
                header.put(24, &tuple.destination.to_be_bytes());
                header.len = 40;
            }
            (PayloadBase::Transport, _) => {
                header.put(0, &tuple.source_port.to_be_bytes());
                header.put(2, &tuple.destination_port.to_be_bytes());
                match (tuple.protocol, self.opens, self.reply) {
                    // SYN and nothing else but what negotiates ECN (RFC 3168).
                    (PROTO_TCP, true, false) => header.put_bits(13, 0x02, 0x3f),
                    (PROTO_TCP, true, true) => header.put_bits(13, 0x12, 0x3f),
                    // ACK, no SYN; data and the end of it come as they come.
                    (PROTO_TCP, false, _) => header.put_bits(13, 0x10, 0x12),
                    _ => {}
                }
                header.len = if tuple.protocol == PROTO_UDP { 8 } else { 20 };
            }
            _ => header.len = HEADER_MAX,
        }
        header
    }
}

const HEADER_MAX: usize = 40;
/// The next header of a fragment (RFC 8200, 4.5).
const NEXT_IS_FRAGMENT: u8 = 44;

struct Header {
    bytes: [u8; HEADER_MAX],
    known: [u8; HEADER_MAX],
    /// What lies behind may be there or not.
    len: usize,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            bytes: [0; HEADER_MAX],
            known: [0; HEADER_MAX],
            len: 0,
        }
    }
}

impl Header {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.known[at..at + bytes.len()].fill(0xff);
    }

    fn put_bits(&mut self, at: usize, byte: u8, known: u8) {
        self.bytes[at] = byte;
        self.known[at] = known;
    }

    fn number(&self, offset: u16, len: u8) -> Number {
        let (offset, len) = (usize::from(offset), usize::from(len));
        match (
            self.bytes.get(offset..offset + len),
            self.known.get(offset..offset + len),
        ) {
            (Some(bytes), Some(known)) if offset + len <= self.len => Seen {
                value: crate::packet::number(bytes),
                known: crate::packet::number(known) | !crate::program::low_bits(len as u16 * 8),
            },
            _ => Number::unknown(),
        }
    }
}

impl Mode for Asked<'_> {
    const IS_PARTLY_KNOWN: bool = true;

    fn payload(&self, base: PayloadBase, offset: u16, len: u8) -> Option<Seen<u64>> {
        let seen = self.header(base).number(offset, len);
        Some(Seen {
            value: seen.value as u64,
            known: seen.known as u64,
        })
    }

    fn nfproto(&self) -> u8 {
        self.nfproto
    }

    fn l4proto(&self) -> Option<u8> {
        Some(self.question.tuple.protocol)
    }

    fn load(&mut self, load: &Load) -> Option<Number> {
        Some(match load {
            Load::Payload {
                base,
                offset,
                len,
                shift,
            } => {
                let seen = self.header(*base).number(*offset, *len);
                Seen {
                    value: seen.value >> shift,
                    known: !(!seen.known >> shift),
                }
            }
            Load::Meta(key) => self.meta(*key)?,
            Load::Ct { key, reply } => self.ct(*key, *reply)?,
            Load::Exthdr { tcp: false, .. } if !self.may_be_fragment() => return None,
            Load::ExthdrExists { tcp: false, .. } if !self.may_be_fragment() => Number::known(0),
            Load::Exthdr { .. } | Load::ExthdrExists { .. } => Number::unknown(),
            Load::Fib { flags, result } => {
                let tuple = self.tuple();
                let crossing = self.crossing?;
                let answer = self.environment.fib(&FibQuery {
                    address: if flags.saddr {
                        tuple.source
                    } else {
                        tuple.destination
                    },
                    six: self.six,
                    iif: crossing.iif.filter(|_| flags.iif),
                    oif: crossing.oif.filter(|_| flags.oif),
                    mark: flags.mark.then_some(self.question.mark),
                    is_source: flags.saddr,
                });
                Number::known(match result {
                    FibResult::Oif | FibResult::Oifname if flags.present => {
                        answer.interface.is_some().into()
                    }
                    FibResult::Oif => return Some(index(answer.interface)),
                    FibResult::Oifname => answer.interface.map_or(0, |i| i.name_number()),
                    FibResult::Type => answer.kind.into(),
                })
            }
            Load::Numgen(_) | Load::Jhash(_) | Load::Data { .. } | Load::Constant(_) => {
                return None;
            }
        })
    }

    fn numgen(&mut self, _: u32, _: &NumgenCode) -> Number {
        Number::unknown()
    }

    fn mapped(&mut self) -> &mut Mapped {
        &mut self.mapped
    }

    fn set(&self, at: u32) -> &SetStore {
        &self.state.sets[at as usize]
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What packets add to a set is known where packets are, and changes with each.
    fn undecided(&self, program: &Program, set: u32) -> Option<Next> {
        let changes = program.changing_sets.contains(&set);
        changes.then_some(each(EachPacket::SetUpdate))
    }

    fn hit(&mut self, set: u32, slot: u32) -> Next {
        let Some(element) = self.set(set).element(slot) else {
            return Next::Break;
        };
        for statement in &element.statements {
            match statement {
                ElementStatement::Counter(_) => {}
                ElementStatement::Limit(_) => return each(EachPacket::Limit),
                ElementStatement::Quota(_) => return each(EachPacket::Quota),
                ElementStatement::ConnLimit { .. } => return each(EachPacket::ConnectionCount),
            }
        }
        self.credits.push(Credit::Element { set, slot });
        Next::Go
    }

    fn counter(&mut self, at: u32) {
        self.credits.push(Credit::Counter(at));
    }

    fn limit(&mut self, _: u32) -> Next {
        each(EachPacket::Limit)
    }

    fn quota(&mut self, _: u32) -> Next {
        each(EachPacket::Quota)
    }

    fn conn_limit(&mut self, _: u32) -> Next {
        each(EachPacket::ConnectionCount)
    }

    fn log(&mut self, _: u32, _: RuleId) -> Next {
        each(EachPacket::Log)
    }

    fn nat(&mut self, _: &Program, _: &NatCode) -> Next {
        each(EachPacket::Nat)
    }

    fn update(&mut self, _: &Program, _: &UpdateCode) -> Next {
        each(EachPacket::SetUpdate)
    }

    fn mangle(&mut self, program: &Program, code: &MangleCode) -> Next {
        let now = match code.target {
            MangleTarget::Meta(MetaKey::Mark) => self.question.mark,
            MangleTarget::CtMark => self.question.ct_mark,
            MangleTarget::Meta(_) => return each(EachPacket::Mark),
            MangleTarget::Payload { .. } => return each(EachPacket::Mangle),
        };
        match exec::load(program, self, &code.value) {
            Ok(None) => Next::Break,
            Ok(Some(seen)) if seen.known == u128::MAX && seen.value == now.into() => Next::Go,
            Ok(Some(_)) => each(EachPacket::Mark),
            Err(next) => next,
        }
    }

    fn notrack(&mut self) -> Next {
        self.untracked = true;
        Next::Go
    }

    fn passed(&mut self, rule: RuleId, next: Next) {
        self.note(rule, Traced::of(next));
    }
}

/// An interface's number, which only the namespace knows that it is in.
fn index(interface: Option<Iface>) -> Number {
    match interface {
        Some(interface) if interface.index == 0 => Number::unknown(),
        found => Number::known(found.map_or(0, |found| found.index.into())),
    }
}

fn each(why: EachPacket) -> Next {
    Next::End(End::EachPacket(why))
}

impl Asked<'_> {
    fn meta(&self, key: MetaKey) -> Option<Number> {
        let crossing = self.crossing?;
        let (iif, oif) = (crossing.iif, crossing.oif);
        match key {
            MetaKey::Iif => return Some(index(iif)),
            MetaKey::Oif => return Some(index(oif)),
            _ => {}
        }
        Some(Number::known(match key {
            MetaKey::Protocol => if self.six {
                ETHERTYPE_IP6
            } else {
                ETHERTYPE_IP
            }
            .into(),
            MetaKey::Nfproto => self.nfproto.into(),
            MetaKey::L4proto => self.question.tuple.protocol.into(),
            MetaKey::Mark => self.question.mark.into(),
            MetaKey::Nftrace => 0,
            MetaKey::Iifname => iif.map_or(0, |i| i.name_number()),
            MetaKey::Oifname => oif.map_or(0, |i| i.name_number()),
            MetaKey::Iiftype => iif?.kind.into(),
            MetaKey::Oiftype => oif?.kind.into(),
            MetaKey::Iifgroup => iif?.group.into(),
            MetaKey::Oifgroup => oif?.group.into(),
            MetaKey::Skuid => self.question.skuid?.into(),
            _ => return Some(Number::unknown()),
        }))
    }

    fn ct(&self, key: CtKey, of_reply: Option<bool>) -> Option<Number> {
        if !self.has_flow {
            return (key == CtKey::State).then_some(Number::known(ct_state::INVALID.into()));
        }
        if self.untracked {
            return (key == CtKey::State).then_some(Number::known(ct_state::UNTRACKED.into()));
        }
        let tuple = match of_reply {
            Some(true) => self.question.tuple.inverted(),
            _ => self.question.tuple,
        };
        let only = |six: bool, address: u128| (tuple.six == six).then_some(address);
        Some(Number::known(match key {
            CtKey::State if self.is_first() => ct_state::NEW.into(),
            CtKey::State => ct_state::ESTABLISHED.into(),
            CtKey::Direction => self.reply.into(),
            CtKey::Status => {
                let nat = status::SRC_NAT | status::DST_NAT;
                return Some(Seen {
                    value: 0,
                    known: !0xffff_ffff | u128::from(nat),
                });
            }
            CtKey::Mark => self.question.ct_mark.into(),
            CtKey::L3proto => {
                if self.six {
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
            _ => return Some(Number::unknown()),
        }))
    }
}
