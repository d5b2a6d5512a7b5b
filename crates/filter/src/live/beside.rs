//! A second enforcer of one ruleset: another one sees each packet as well, before this one or behind it.
//!
//! ```text
//!   a packet of ours ──► beside() ──► link ──► the other one ──► its way
//!   one for us       ◄── beside() ◄── link ◄── the other one ◄──
//! ```
//! What both would say of a packet, this one says too: it is refused here, with all that its rules say. What only one may
//! decide, passes here, and the other one decides:
//!
//! - rules that act on each packet (limit, quota, log, nat, marks, sets that packets add to), for there they act on the packets of
//!   all, and here they would act a second time,
//! - what is known there alone: routes, marks, the link's header, the day's time, elements with timeouts or counts,
//! - packets of ours where chains of the bridge or of a port act: they would never see what is refused here,
//! - connections of which this one has not seen the first packet ([`Conntrack::has_seen_begin`]).
//!
//! So this one refuses nothing that the other one lets pass. Flows are followed whatever is decided.
//!
//! **Counts.** The other one counts what it sees. Counted here is only what it never sees: packets of ours that are refused, by all
//! the rules that they met. The sum of both counts each packet once.

use alloc::vec::Vec;

use super::Live;
use crate::conntrack::Tracking;
use crate::environment::Environment;
use crate::exec::{self, EachPacket, End, Mapped, Mode, Next, Number, Seen};
use crate::filter::{Filter, PRIORITY_CONNTRACK, Verdict};
use crate::packet::{Layer, Packet};
use crate::program::{
    CtKey, Load, MangleCode, MetaKey, NatCode, NumgenCode, Program, RuleId, UpdateCode,
};
use crate::question::Crossing;
use crate::rules::{ChainKind, Hook, PayloadBase};
use crate::sets::SetStore;
use crate::state::Counter;

/// How a packet is looked at that another enforcer sees as well.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'c> {
    /// The hooks of IP that it crosses there, in order; those of other layers are the other one's.
    pub crossings: &'c [Crossing],
    /// It is ours: the other one has not seen it, and never does if it is refused.
    pub leaves: bool,
    /// The other one sees it in another form (in pieces): its flow is followed, and nothing is decided.
    pub is_other: bool,
}

impl Filter {
    /// What the rules say of a packet that another enforcer of them sees as well; see the module.
    pub fn beside(
        &mut self,
        look: &Beside<'_>,
        packet: &mut Packet,
        now_ns: u64,
        environment: &mut dyn Environment,
    ) -> Verdict {
        let Some(layer) = packet.ip_layer().filter(|layer| layer.is_ip()) else {
            return Verdict::Accept;
        };
        if !packet.enter(layer) {
            return Verdict::Accept;
        }
        let (program, state, conntrack, facts) = self.parts();
        let tracks = program.tracks[layer as usize];
        // What the chains of the bridge and its ports do with a packet, they do before one of IP refuses it.
        let others = [Layer::Netdev, Layer::Bridge].map(|layer| &program.hooks[layer as usize]);
        let acts_elsewhere = others
            .into_iter()
            .flatten()
            .any(|chains| !chains.is_empty());
        let is_bridges = look.is_other || look.leaves && acts_elsewhere;
        let mut decides = !is_bridges && !program.translates.contains(&true);
        let mut second = Second {
            live: Live {
                packet,
                state,
                conntrack,
                environment,
                now_ns,
                nfproto: layer.nfproto(),
                mapped: Mapped::default(),
                logs: Vec::new(),
                trace: None,
            },
            counters: Vec::new(),
        };
        let mut end = End::Accept;
        'way: for crossing in look.crossings {
            let meta = &mut second.live.packet.meta;
            (meta.iif, meta.oif) = (crossing.iif, crossing.oif);
            let begins = matches!(crossing.hook, Hook::Prerouting | Hook::Output);
            for base in &program.hooks[layer as usize][crossing.hook as usize] {
                if tracks && begins && base.priority >= PRIORITY_CONNTRACK {
                    decides &= second.track();
                }
                if !decides || base.kind == ChainKind::Nat {
                    continue;
                }
                (end, _) = exec::run(program, &mut second, facts, base);
                match end {
                    End::Accept => {}
                    End::EachPacket(_) => (decides, end) = (false, End::Accept),
                    End::Drop | End::Reject(_) => break 'way,
                }
            }
            if tracks && begins {
                decides &= second.track();
            }
        }
        let Second { live, counters } = second;
        if end == End::Accept {
            if tracks {
                // Where another flow took the same names meanwhile, the other enforcer sees it too.
                live.conntrack.confirm(live.packet);
            }
            return Verdict::Accept;
        }
        live.conntrack.forget(live.packet);
        if look.leaves {
            let bytes = live.packet.len() as u64;
            for at in counters {
                let counter = &mut live.state.counters[at as usize].0;
                counter.packets += 1;
                counter.bytes += bytes;
            }
        }
        match end {
            End::Reject(code) => match code.known(layer == Layer::Ip6) {
                Some(reject) => Verdict::Reject(reject),
                None => Verdict::Drop,
            },
            _ => Verdict::Drop,
        }
    }

    /// How many counters the rules have, in rules and with names.
    pub fn counter_count(&self) -> usize {
        self.state.counters.len()
    }

    /// What the counters have counted since the last call, each by its number. They go on from nothing.
    pub fn take_counts(&mut self) -> Vec<(u32, Counter)> {
        let counters = self.state.counters.iter_mut().enumerate();
        let counted = counters.filter(|(_, (counter, _))| *counter != Counter::default());
        counted
            .map(|(at, (counter, _))| (at as u32, core::mem::take(counter)))
            .collect()
    }

    /// Adds what another enforcer of these rules has counted. A number that no counter has is left out.
    pub fn add_count(&mut self, at: u32, more: Counter) {
        if let Some((counter, _)) = self.state.counters.get_mut(at as usize) {
            counter.packets = counter.packets.saturating_add(more.packets);
            counter.bytes = counter.bytes.saturating_add(more.bytes);
        }
    }
}

/// Answers from the packet, so far as the other enforcer would answer the same.
struct Second<'s, 'p, 'a> {
    live: Live<'s, 'p, 'a>,
    /// What counts the packet if it is refused.
    counters: Vec<u32>,
}

impl Second<'_, '_, '_> {
    /// False if there is no room for its flow.
    fn track(&mut self) -> bool {
        let live = &mut self.live;
        live.conntrack.track(live.packet, false, live.now_ns)
    }

    fn ct(&self, key: CtKey, of_reply: Option<bool>) -> Option<Number> {
        let is_known = match self.live.packet.tracking {
            Tracking::None | Tracking::Untracked => true,
            Tracking::Invalid => false,
            Tracking::Flow { number, .. } => self.live.conntrack.has_seen_begin(number),
        };
        let differs = matches!(
            key,
            CtKey::Mark
                | CtKey::Status
                | CtKey::Expiration
                | CtKey::Packets
                | CtKey::Bytes
                | CtKey::Avgpkt
                | CtKey::Id
        );
        match is_known && !differs {
            true => self.live.ct(key, of_reply).map(Number::known),
            false => Some(Number::unknown()),
        }
    }
}

fn each(why: EachPacket) -> Next {
    Next::End(End::EachPacket(why))
}

impl Mode for Second<'_, '_, '_> {
    const IS_PARTLY_KNOWN: bool = true;
    const HEEDS_ALL_GUARDS: bool = true;

    #[inline]
    fn payload(&self, base: PayloadBase, offset: u16, len: u8) -> Option<Seen<u64>> {
        match base {
            PayloadBase::Link => Some(Seen { value: 0, known: 0 }),
            other => self.live.payload(other, offset, len),
        }
    }

    #[inline]
    fn nfproto(&self) -> u8 {
        self.live.nfproto()
    }

    #[inline]
    fn l4proto(&self) -> Option<u8> {
        self.live.l4proto()
    }

    fn load(&mut self, load: &Load) -> Option<Number> {
        match load {
            Load::Payload {
                base: PayloadBase::Link,
                ..
            }
            | Load::Fib { .. } => Some(Number::unknown()),
            Load::Ct { key, reply } => self.ct(*key, *reply),
            Load::Meta(
                MetaKey::Length
                | MetaKey::Protocol
                | MetaKey::Nfproto
                | MetaKey::L4proto
                | MetaKey::Iifname
                | MetaKey::Oifname,
            )
            | Load::Payload { .. }
            | Load::Exthdr { .. }
            | Load::ExthdrExists { .. } => self.live.load(load),
            Load::Meta(_) => Some(Number::unknown()),
            Load::Numgen(_) | Load::Jhash(_) | Load::Data { .. } | Load::Constant(_) => None,
        }
    }

    fn numgen(&mut self, _: u32, _: &NumgenCode) -> Number {
        Number::unknown()
    }

    #[inline]
    fn mapped(&mut self) -> &mut Mapped {
        self.live.mapped()
    }

    #[inline]
    fn set(&self, at: u32) -> &SetStore {
        self.live.set(at)
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.live.now_ns
    }

    fn undecided(&self, program: &Program, set: u32) -> Option<Next> {
        let differs = program.changing_sets.contains(&set) || self.set(set).look_at_hits;
        differs.then_some(each(EachPacket::SetUpdate))
    }

    fn hit(&mut self, _: u32, _: u32) -> Next {
        each(EachPacket::SetUpdate)
    }

    #[inline]
    fn counter(&mut self, at: u32) {
        self.counters.push(at);
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

    fn mangle(&mut self, _: &Program, _: &MangleCode) -> Next {
        each(EachPacket::Mangle)
    }

    fn notrack(&mut self) -> Next {
        each(EachPacket::Unknown)
    }

    fn passed(&mut self, _: RuleId, _: Next) {}
}
