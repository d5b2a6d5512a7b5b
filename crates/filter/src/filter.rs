//! A ruleset in force: compiled, with its counts, and with the flows it tracks.
//!
//! ```text
//!   apply(ops) ─► ruleset with live counts ─► changed copy ─► compiled ─► takes the old one's place
//!   hook(packet) ─► track (-200) · base chains by priority · NAT (-100 / 100) · confirm (last) ─► verdict
//! ```
//! A change is taken whole or not at all: what cannot be compiled changes nothing. What
//! rules have counted, buckets that stand in unchanged rules, elements that packets added
//! and all flows live on across changes.

use alloc::vec::Vec;

use crate::compile::{CompileError, compile, rule_name};
use crate::conntrack::{Config, Conntrack, Tracking};
use crate::environment::Environment;
use crate::exec::{self, End, Facts};
use crate::live::{Live, Logged, TraceStep};
use crate::model::{ApplyError, ChainKind, Family, Hook, Log, ObjectState, Op, Ruleset, Statement};
use crate::packet::{Layer, Packet};
use crate::program::{BaseCode, Program, Reject, RejectCode, RuleId};
use crate::state::{Place, SetPlace, State};

/// Where connection tracking sits among the priorities of a hook, and where NAT.
const PRIORITY_CONNTRACK: i32 = -200;
const PRIORITY_NAT_DST: i32 = -100;
const PRIORITY_NAT_SRC: i32 = 100;

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterError {
    Apply(ApplyError),
    Compile(CompileError),
}

impl core::fmt::Display for FilterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FilterError::Apply(error) => error.fmt(f),
            FilterError::Compile(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FilterError {}

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

/// A ruleset in force.
#[derive(Debug)]
pub struct Filter {
    pub(crate) ruleset: Ruleset,
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
            ruleset: Ruleset::default(),
            program: Program::default(),
            state: State::default(),
            conntrack: Conntrack::new(config, seed),
            facts: Facts::new(),
            seed,
            trace: false,
        }
    }

    /// The rules in force, with the counts that they had when they were put in force;
    /// [`Filter::listing`] has those of now.
    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// The rules in force, with what they have counted and what packets have added.
    pub fn listing(&self, now_ns: u64) -> Ruleset {
        let mut ruleset = self.ruleset.clone();
        self.state.write_back(&mut ruleset, now_ns);
        ruleset
    }

    /// Carries out all of `ops`, or none of them.
    pub fn apply(&mut self, ops: &[Op], now_ns: u64) -> Result<(), FilterError> {
        let mut ruleset = self.listing(now_ns);
        ruleset.apply(ops).map_err(FilterError::Apply)?;
        self.replace(ruleset, now_ns).map_err(FilterError::Compile)
    }

    /// Puts this ruleset in force in place of the one before.
    pub fn replace(&mut self, ruleset: Ruleset, now_ns: u64) -> Result<(), CompileError> {
        let (program, mut state) = compile(&ruleset, self.seed, now_ns)?;
        state.inherit(&ruleset, &self.state, &self.ruleset);
        (self.ruleset, self.program, self.state) = (ruleset, program, state);
        Ok(())
    }

    /// Whether every packet's way is to be written down (`nftrace` does it for one).
    pub fn set_trace(&mut self, trace: bool) {
        self.trace = trace;
    }

    pub fn conntrack(&self) -> &Conntrack {
        &self.conntrack
    }

    pub fn conntrack_mut(&mut self) -> &mut Conntrack {
        &mut self.conntrack
    }

    /// The log statement that asked for a packet to be logged.
    pub fn log_statement(&self, logged: &Logged) -> Option<&Log> {
        self.program.logs.get(logged.log as usize)
    }

    /// `rule with handle 4 in chain inet filter input`, or the chain whose policy it was.
    pub fn describe(&self, id: RuleId) -> alloc::string::String {
        let Some(table) = self.ruleset.tables.get(usize::from(id.table)) else {
            return "a rule that is gone".into();
        };
        let Some(chain) = table.chains.get(usize::from(id.chain)) else {
            return "a chain that is gone".into();
        };
        match id.rule {
            Some(at) => match chain.rules.get(at as usize) {
                Some(rule) => rule_name(table, chain, rule),
                None => "a rule that is gone".into(),
            },
            None => alloc::format!(
                "policy of chain {} {} {}",
                table.family,
                table.name,
                chain.name
            ),
        }
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
            ruleset,
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
            let family = ruleset.tables[usize::from(base.id.table)].family;
            if !applies(base, family, hook, &mut live) {
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
            RejectCode::Icmpx(code) if six => Reject::Icmpv6(*[0, 4, 3, 1].get(usize::from(code))?),
            RejectCode::Icmpx(code) => Reject::Icmp(*[0, 3, 1, 13].get(usize::from(code))?),
        })
    }
}

/// Whether the base chain looks at this packet at all; sets what `meta nfproto` says.
fn applies(base: &BaseCode, family: Family, hook: Hook, live: &mut Live) -> bool {
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
    if family == Family::Inet && layer == Layer::Netdev {
        // The ingress hook of family inet sees IP only, and calls it by its name.
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
    /// Writes counts and elements into the ruleset that was compiled.
    fn write_back(&self, ruleset: &mut Ruleset, now_ns: u64) {
        for (counter, place) in &self.counters {
            match place {
                Place::Object { .. } => {
                    if let Some(ObjectState::Counter(c)) = object_mut(ruleset, *place) {
                        *c = *counter;
                    }
                }
                Place::Statement { .. } => {
                    if let Some(Statement::Counter(c)) = statement_mut(ruleset, *place) {
                        *c = *counter;
                    }
                }
            }
        }
        for (quota, place) in &self.quotas {
            if let Some(ObjectState::Quota(q)) = object_mut(ruleset, *place) {
                *q = quota.quota;
            }
            if let Some(Statement::Quota(q)) = statement_mut(ruleset, *place) {
                *q = quota.quota;
            }
        }
        for (store, place) in &self.sets {
            let SetPlace::Named { table, set } = *place else {
                continue;
            };
            let Some(table) = ruleset.tables.get_mut(usize::from(table)) else {
                continue;
            };
            if let Some(set) = table.sets.get_mut(set as usize) {
                store.write_back(set, now_ns);
            }
        }
    }

    /// Takes over what is not in the listing: buckets and counted flows of rules that
    /// stayed, and the turn of `numgen`.
    fn inherit(&mut self, ruleset: &Ruleset, old: &State, old_ruleset: &Ruleset) {
        for (bucket, place) in &mut self.limits {
            let same = old.limits.iter().find(|(other, other_place)| {
                other.limit == bucket.limit && is_same(ruleset, *place, old_ruleset, *other_place)
            });
            if let Some((other, _)) = same {
                *bucket = *other;
            }
        }
        for (state, place) in &mut self.conn_limits {
            let same = old
                .conn_limits
                .iter()
                .find(|(_, other)| is_same(ruleset, *place, old_ruleset, *other));
            if let Some((other, _)) = same {
                state.flows.clone_from(&other.flows);
            }
        }
    }
}

/// The two places are one thing, by handles.
fn is_same(new: &Ruleset, at: Place, old: &Ruleset, old_at: Place) -> bool {
    match (handles(new, at), handles(old, old_at)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

fn handles(ruleset: &Ruleset, place: Place) -> Option<(u64, u64, u16)> {
    match place {
        Place::Statement {
            table,
            chain,
            rule,
            statement,
        } => {
            let table = ruleset.tables.get(usize::from(table))?;
            let rule = table
                .chains
                .get(usize::from(chain))?
                .rules
                .get(rule as usize)?;
            Some((table.handle, rule.handle, statement))
        }
        Place::Object { table, object } => {
            let table = ruleset.tables.get(usize::from(table))?;
            Some((
                table.handle,
                table.objects.get(object as usize)?.handle,
                u16::MAX,
            ))
        }
    }
}

fn object_mut(ruleset: &mut Ruleset, place: Place) -> Option<&mut ObjectState> {
    let Place::Object { table, object } = place else {
        return None;
    };
    let table = ruleset.tables.get_mut(usize::from(table))?;
    Some(&mut table.objects.get_mut(object as usize)?.state)
}

fn statement_mut(ruleset: &mut Ruleset, place: Place) -> Option<&mut Statement> {
    let Place::Statement {
        table,
        chain,
        rule,
        statement,
    } = place
    else {
        return None;
    };
    let table = ruleset.tables.get_mut(usize::from(table))?;
    let rule = table
        .chains
        .get_mut(usize::from(chain))?
        .rules
        .get_mut(rule as usize)?;
    rule.statements.get_mut(usize::from(statement))
}
