//! Rules in force: compiled, with their counts, and with the flows that they track.
//!
//! ```text
//!   replace(rules) ─► compiled ─► takes the place of what was in force
//!   hook(packet) ─► track (-200) · base chains by priority · NAT (-100 / 100) · confirm (last) ─► verdict
//! ```
//! Counts begin with what the rules say. Buckets that stand in rules which stay, and all flows, live on
//! across changes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::compile::{compile, unknown_expr};
use crate::conntrack::{Config, Conntrack, Tracking};
use crate::environment::Environment;
use crate::exec::{self, End, Facts};
use crate::live::{Live, Logged, TraceStep};
use crate::packet::{Layer, Packet};
use crate::program::{BaseCode, Program, Reject, RejectCode, RuleId};
use crate::rules::{Chain, ChainKind, Family, Hook, Log, Rule, Rules, Table};
use crate::state::{Counter, Place, State};

/// Where connection tracking sits among the priorities of a hook, and where NAT.
pub(crate) const PRIORITY_CONNTRACK: i32 = -200;
const PRIORITY_NAT_DST: i32 = -100;
const PRIORITY_NAT_SRC: i32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    /// Dropped, and the sender is to be told so.
    Reject(Reject),
}

/// What became of a packet on one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The rule (or the policy) that dropped it. `None` if it passed, or if no rule but
    /// the filter itself dropped it: a table of flows that is full, no free port for NAT.
    pub decided_by: Option<RuleId>,
    pub logs: Vec<Logged>,
    /// The rules that matched, if the packet is traced.
    pub trace: Vec<TraceStep>,
}

/// The rules that the kernel alone can decide: each by its place, with the expression that is not
/// known here.
pub fn unknown_in(rules: &Rules) -> Vec<String> {
    let (program, _) = compile(rules, 0, 0);
    let unknown = rules.ids().filter(|(id, _)| program.unknown.contains(id));
    let told =
        unknown.map(|(id, rule)| format!("{}: {}", describe(rules, id), unknown_expr(&rule.exprs)));
    told.collect()
}

fn describe(rules: &Rules, id: RuleId) -> String {
    let table = rules.tables.get(usize::from(id.table));
    let chain = table.and_then(|table| table.chains.get(usize::from(id.chain)));
    let (Some(table), Some(chain)) = (table, chain) else {
        return "a chain that is gone".into();
    };
    let name = format!("chain {} {} {}", table.family, table.name, chain.name);
    match id.rule {
        Some(at) => format!("rule {} of {name}", at + 1),
        None => format!("policy of {name}"),
    }
}

/// Rules in force.
#[derive(Debug)]
pub struct Filter {
    rules: Rules,
    /// Moves with each change.
    pub(crate) epoch: u64,
    pub(crate) program: Program,
    pub(crate) state: State,
    conntrack: Conntrack,
    /// Room for what is read of a packet.
    facts: Facts,
    seed: u64,
    trace: bool,
}

impl Filter {
    /// No rules: everything passes. `seed` is secret and random, so that no sender can
    /// aim at one bucket of a hash table.
    pub fn new(config: Config, seed: u64) -> Filter {
        Filter {
            rules: Rules::default(),
            epoch: 0,
            program: Program::default(),
            state: State::default(),
            conntrack: Conntrack::new(config, seed),
            facts: Facts::new(),
            seed,
            trace: false,
        }
    }

    /// The rules in force, with the counts that they had when they were put in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Which change they are of.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Puts these rules in force in place of those before, as those of another epoch.
    pub fn replace(&mut self, rules: Rules, epoch: u64, now_ns: u64) {
        let (program, mut state) = compile(&rules, self.seed, now_ns);
        state.inherit(&rules, &self.state, &self.rules);
        (self.rules, self.program, self.state) = (rules, program, state);
        self.epoch = epoch;
        if !self.tracks_connections() {
            self.conntrack.look_away();
        }
    }

    /// What carries a packet through the rules.
    pub(crate) fn parts(&mut self) -> (&Program, &mut State, &mut Conntrack, &mut Facts) {
        let Filter {
            program,
            state,
            conntrack,
            facts,
            ..
        } = self;
        (program, state, conntrack, facts)
    }

    /// What a rule's counters have counted, in their order in it.
    pub fn counts(&self, id: RuleId) -> impl Iterator<Item = Counter> {
        self.state
            .counters
            .iter()
            .filter_map(move |(counter, place)| match *place {
                Place::Expr {
                    table, chain, rule, ..
                } if id.rule == Some(rule) && (id.table, id.chain) == (table, chain) => {
                    Some(*counter)
                }
                _ => None,
            })
    }

    /// When the first element leaves its set, on the clock of `replace`.
    pub fn first_expiry_ns(&self) -> Option<u64> {
        let sets = self.state.sets.iter();
        let elements = sets.flat_map(|set| set.elements.iter().flatten());
        let timed = elements.filter(|element| element.timeout_ns > 0);
        timed.map(|element| element.expires_ns).min()
    }

    /// Whether anything of the rules counts what passes.
    pub fn counts_anything(&self) -> bool {
        let in_sets = || {
            let mut sets = self.state.sets.iter();
            sets.any(|set| set.counts())
        };
        !self.state.counters.is_empty() || in_sets()
    }

    /// What a counter with a name has counted: of which table and which of its objects.
    pub fn object_counts(&self) -> impl Iterator<Item = (u16, u32, Counter)> {
        self.state
            .counters
            .iter()
            .filter_map(|(counter, place)| match *place {
                Place::Object { table, object } => Some((table, object, *counter)),
                Place::Expr { .. } => None,
            })
    }

    /// Whether every packet's way is to be written down (`nftrace` does it for one).
    pub fn set_trace(&mut self, trace: bool) {
        self.trace = trace;
    }

    pub fn conntrack(&self) -> &Conntrack {
        &self.conntrack
    }

    /// The log statement that asked for a packet to be logged.
    pub fn log_statement(&self, logged: &Logged) -> Option<&Log> {
        self.program.logs.get(logged.log as usize)
    }

    /// Table, chain and rule that an answer names; no rule for a chain's policy.
    pub fn place(&self, id: RuleId) -> Option<(&Table, &Chain, Option<&Rule>)> {
        let table = self.rules.tables.get(usize::from(id.table))?;
        let chain = table.chains.get(usize::from(id.chain))?;
        let rule = id.rule.and_then(|at| chain.rules.get(at as usize));
        Some((table, chain, rule))
    }

    /// `rule 3 of chain inet filter input`, or the chain whose policy it was.
    pub fn describe(&self, id: RuleId) -> String {
        describe(&self.rules, id)
    }

    /// Takes a packet through one hook of one layer.
    pub fn hook(
        &mut self,
        layer: Layer,
        hook: Hook,
        packet: &mut Packet,
        now_ns: u64,
        environment: &mut dyn Environment,
    ) -> Outcome {
        let Filter {
            program,
            state,
            conntrack,
            facts,
            ..
        } = self;
        let tracing = self.trace || packet.meta.nftrace;
        let mut outcome = Outcome {
            verdict: Verdict::Accept,
            decided_by: None,
            logs: Vec::new(),
            trace: Vec::new(),
        };
        if !packet.enter(layer) {
            outcome.verdict = Verdict::Drop;
            return outcome;
        }
        let tracks = layer.is_ip() && program.tracks[layer as usize];
        let mut pass = Pass {
            hook,
            tracks,
            translates: tracks && program.translates[layer as usize],
            is_tracked: false,
            is_translated: false,
        };
        let mut live = Live {
            packet,
            state,
            conntrack,
            environment,
            now_ns,
            nfproto: layer.nfproto(),
            mapped: exec::Mapped::default(),
            logs: Vec::new(),
            trace: tracing.then(Vec::new),
        };
        let mut ended = (End::Accept, None);
        for base in &program.hooks[layer as usize][hook as usize] {
            if let Err(end) = pass.before(program, &mut live, facts, base.priority) {
                ended = end;
                break;
            }
            if base.kind == ChainKind::Nat {
                continue;
            }
            if !applies(base, hook, &mut live) {
                continue;
            }
            let (end, id) = exec::run(program, &mut live, facts, base);
            if !matches!(end, End::Accept) {
                ended = (end, Some(id));
                break;
            }
        }
        if ended.0 == End::Accept
            && let Err(end) = pass.before(program, &mut live, facts, i32::MAX)
        {
            ended = end;
        }
        let is_last = matches!(hook, Hook::Input | Hook::Postrouting);
        if ended.0 == End::Accept && pass.tracks && is_last && !live.conntrack.confirm(live.packet)
        {
            ended = (End::Drop, None);
        }
        if ended.0 != End::Accept {
            live.conntrack.forget(live.packet);
        }
        outcome.logs = live.logs;
        outcome.trace = live.trace.unwrap_or_default();
        outcome.decided_by = ended.1;
        outcome.verdict = match ended.0 {
            End::Accept => Verdict::Accept,
            End::Drop | End::EachPacket(_) => Verdict::Drop,
            End::Reject(code) => match code.known(packet.ip_layer() == Some(Layer::Ip6)) {
                Some(reject) => Verdict::Reject(reject),
                None => Verdict::Drop,
            },
        };
        outcome
    }
}

impl RejectCode {
    /// The wire's codes for the packet's family; `None` if it can have no answer.
    pub(crate) fn known(self, six: bool) -> Option<Reject> {
        Some(match self {
            RejectCode::Known(reject) => reject,
            RejectCode::ByFamily(code) if six => Reject::Icmpv6(code),
            RejectCode::ByFamily(code) => Reject::Icmp(code),
            RejectCode::Icmpx(code) if six => Reject::Icmpv6(*[0, 4, 3, 1].get(usize::from(code))?),
            RejectCode::Icmpx(code) => Reject::Icmp(*[0, 3, 1, 13].get(usize::from(code))?),
        })
    }
}

/// Whether the base chain looks at this packet at all; sets what `meta nfproto` says.
fn applies(base: &BaseCode, hook: Hook, live: &mut Live) -> bool {
    let device = match hook {
        Hook::Ingress => live.packet.meta.iif,
        Hook::Egress => live.packet.meta.oif,
        _ => None,
    };
    if !base.devices.is_empty() && !device.is_some_and(|d| base.devices.contains(&d.name_number()))
    {
        return false;
    }
    let layer = live.packet.layer();
    live.nfproto = layer.nfproto();
    if base.calls_ip_by_name {
        match live.packet.ip_layer().filter(|l| l.is_ip()) {
            Some(ip) if live.packet.transport().is_some() => live.nfproto = ip.nfproto(),
            _ => return false,
        }
    }
    true
}

/// What happens on a hook between base chains.
struct Pass {
    hook: Hook,
    tracks: bool,
    translates: bool,
    is_tracked: bool,
    is_translated: bool,
}

impl Pass {
    /// Does what is due before base chains of this priority.
    fn before(
        &mut self,
        program: &Program,
        live: &mut Live,
        facts: &mut Facts,
        priority: i32,
    ) -> Result<(), (End, Option<RuleId>)> {
        let begins = matches!(self.hook, Hook::Prerouting | Hook::Output);
        if self.tracks && begins && !self.is_tracked && priority >= PRIORITY_CONNTRACK {
            self.is_tracked = true;
            let from_outside = self.hook == Hook::Prerouting;
            if !live.conntrack.track(live.packet, from_outside, live.now_ns) {
                return Err((End::Drop, None));
            }
        }
        let nat_priority = if begins {
            PRIORITY_NAT_DST
        } else {
            PRIORITY_NAT_SRC
        };
        let has_nat = self.hook != Hook::Forward && self.translates;
        if has_nat && !self.is_translated && priority >= nat_priority {
            self.is_translated = true;
            self.translate(program, live, facts, begins)?;
        }
        Ok(())
    }

    /// Binds a flow at its first packet, as the first NAT rule that matches wishes, and
    /// rewrites the packet as its flow is bound.
    fn translate(
        &self,
        program: &Program,
        live: &mut Live,
        facts: &mut Facts,
        destination: bool,
    ) -> Result<(), (End, Option<RuleId>)> {
        if live.is_new_flow() {
            let layer = live.packet.layer();
            let bases = &program.hooks[layer as usize][self.hook as usize];
            for base in bases.iter().filter(|b| b.kind == ChainKind::Nat) {
                live.nfproto = layer.nfproto();
                let (end, id) = exec::run(program, live, facts, base);
                if end != End::Accept {
                    return Err((end, Some(id)));
                }
                if live.is_bound(destination) {
                    break;
                }
            }
            if !live.is_bound(destination) {
                let random = live.environment.random();
                if !live
                    .conntrack
                    .bind(live.packet, destination, None, random, live.now_ns)
                {
                    return Err((End::Drop, None));
                }
            }
        }
        live.conntrack.translate(live.packet, destination);
        Ok(())
    }
}

impl Live<'_, '_, '_> {
    fn is_new_flow(&self) -> bool {
        let Tracking::Flow { number, .. } = self.packet.tracking else {
            return false;
        };
        self.conntrack.is_unconfirmed(number)
    }

    fn is_bound(&self, destination: bool) -> bool {
        let Tracking::Flow { number, .. } = self.packet.tracking else {
            return false;
        };
        self.conntrack.is_bound(number, destination)
    }
}

impl State {
    /// Takes over what the rules do not say: buckets and counted flows of rules that stayed.
    fn inherit(&mut self, rules: &Rules, old: &State, old_rules: &Rules) {
        let is_same = |place: Place, old_place: Place| {
            let here = name_of(rules, place);
            here.is_some() && here == name_of(old_rules, old_place)
        };
        for (bucket, place) in &mut self.limits {
            let mut others = old.limits.iter();
            let same = others.find(|(other, old_place)| {
                other.limit == bucket.limit && is_same(*place, *old_place)
            });
            if let Some((other, _)) = same {
                *bucket = *other;
            }
        }
        for (state, place) in &mut self.conn_limits {
            let mut others = old.conn_limits.iter();
            let same = others.find(|(other, old_place)| {
                (other.count, other.over) == (state.count, state.over)
                    && is_same(*place, *old_place)
            });
            if let Some((other, _)) = same {
                state.flows.clone_from(&other.flows);
            }
        }
    }
}

/// What a place is called, whatever comes before it in other tables.
type Name<'r> = (Family, &'r str, &'r str, Option<(u32, u16)>);

fn name_of(rules: &Rules, place: Place) -> Option<Name<'_>> {
    match place {
        Place::Expr {
            table,
            chain,
            rule,
            expr,
        } => {
            let table = rules.tables.get(usize::from(table))?;
            let chain = table.chains.get(usize::from(chain))?;
            Some((table.family, &table.name, &chain.name, Some((rule, expr))))
        }
        Place::Object { table, object } => {
            let table = rules.tables.get(usize::from(table))?;
            let object = table.objects.get(object as usize)?;
            Some((table.family, &table.name, &object.name, None))
        }
    }
}
