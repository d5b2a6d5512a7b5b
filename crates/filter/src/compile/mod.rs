//! From a ruleset to a program and its first state.
//!
//! ```text
//!   rule ──► terms (what is loaded) ──► steps (tests, then actions) ──► runs ──► instructions
//!             └ implied dependencies        (rules that differ in numbers only: one lookup)
//! ```
//! The implied dependencies are those that nft writes into a rule before it hands it to
//! the kernel: `tcp dport 22` asks for `meta l4proto tcp` first. What the kernel would
//! refuse, or what this engine cannot do, is refused here with the rule's name.

mod guards;
mod rule;
mod runs;
mod sets;
mod statements;
mod terms;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::hash::Seed;
use crate::limits::{Bucket, QuotaState};
use crate::model::{
    BaseChain, Chain, ChainKind, Family, Hook, ObjectKind, ObjectState, Rule, Ruleset, SetRef,
    Table, Verdict,
};
use crate::packet::{Iface, Layer};
use crate::program::{BaseCode, ChainCode, Insn, Program, RuleCode, RuleId, VerdictCode};
use crate::state::{Place, State};
use guards::Choice;
use rule::{LoweredRule, Step};

/// Why a ruleset cannot be put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Where: a rule (`rule with handle 4 in chain inet filter input`) or a set.
    pub object: String,
    pub why: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)
    }
}

impl core::error::Error for CompileError {}

/// The reason alone; whoever knows the object adds it.
type Why = String;

pub(crate) struct Compiler<'r> {
    ruleset: &'r Ruleset,
    pub program: Program,
    pub state: State,
    seed: Seed,
    now_ns: u64,
    /// Position in the program of each table's first chain, and of each table's sets.
    first_chain: Vec<u32>,
    first_set: Vec<u32>,
    /// Which counter, limit or quota each object of each table is.
    objects: Vec<Vec<u32>>,
    /// Sets that stand in rules, to use equal ones once.
    anonymous: Vec<(SetRef, Vec<u16>, u32)>,
    /// One for each of the program's rules.
    choices: Vec<Option<Choice>>,
}

/// Compiles all tables. `now_ns` is when buckets are full and timeouts begin.
pub(crate) fn compile(
    ruleset: &Ruleset,
    seed: u64,
    now_ns: u64,
) -> Result<(Program, State), CompileError> {
    let mut compiler = Compiler {
        ruleset,
        program: Program::default(),
        state: State::default(),
        seed: Seed(seed),
        now_ns,
        first_chain: Vec::new(),
        first_set: Vec::new(),
        objects: Vec::new(),
        anonymous: Vec::new(),
        choices: Vec::new(),
    };
    compiler.number();
    compiler.named_sets()?;
    for (at, table) in ruleset.tables.iter().enumerate() {
        for (chain_at, chain) in table.chains.iter().enumerate() {
            compiler.chain(at, table, chain_at, chain)?;
        }
    }
    compiler.hooks();
    compiler.program.set_guards(&compiler.choices);
    let writes = |insn: &Insn| matches!(insn, Insn::Mangle(_) | Insn::Notrack);
    compiler.program.writes = compiler.program.insns.iter().any(writes);
    Ok((compiler.program, compiler.state))
}

impl<'r> Compiler<'r> {
    /// Gives chains and objects their positions.
    fn number(&mut self) {
        let mut chains = 0;
        for (at, table) in self.ruleset.tables.iter().enumerate() {
            self.first_chain.push(chains);
            chains += table.chains.len() as u32;
            let mut numbers = Vec::new();
            for (object_at, object) in table.objects.iter().enumerate() {
                let place = Place::Object {
                    table: at as u16,
                    object: object_at as u32,
                };
                numbers.push(match &object.state {
                    ObjectState::Counter(counter) => {
                        self.state.counters.push((*counter, place));
                        self.state.counters.len() - 1
                    }
                    ObjectState::Quota(quota) => {
                        self.state.quotas.push((QuotaState::new(quota), place));
                        self.state.quotas.len() - 1
                    }
                    ObjectState::Limit(limit) => {
                        self.state
                            .limits
                            .push((Bucket::new(limit, self.now_ns), place));
                        self.state.limits.len() - 1
                    }
                } as u32);
            }
            self.objects.push(numbers);
        }
        self.program.chains = alloc::vec![ChainCode::default(); chains as usize];
    }

    fn chain(
        &mut self,
        table_at: usize,
        table: &'r Table,
        chain_at: usize,
        chain: &'r Chain,
    ) -> Result<(), CompileError> {
        let mut lowered = Vec::with_capacity(chain.rules.len());
        for (at, rule) in chain.rules.iter().enumerate() {
            let id = RuleId {
                table: table_at as u16,
                chain: chain_at as u16,
                rule: Some(at as u32),
            };
            let rule = self.rule(table_at, table, chain, rule, id)?;
            lowered.push(rule);
        }
        let start = self.program.rules.len() as u32;
        self.emit_chain(lowered);
        let end = self.program.rules.len() as u32;
        let number = self.first_chain[table_at] + chain_at as u32;
        self.program.chains[number as usize] = ChainCode { start, end };
        Ok(())
    }

    fn rule(
        &mut self,
        table_at: usize,
        table: &'r Table,
        chain: &'r Chain,
        rule: &'r Rule,
        id: RuleId,
    ) -> Result<LoweredRule, CompileError> {
        self.lower(table_at, table, chain, rule, id)
            .map_err(|why| CompileError {
                object: rule_name(table, chain, rule),
                why,
            })
    }

    fn verdict(&self, table_at: usize, verdict: &Verdict) -> Result<VerdictCode, Why> {
        let chain = |name: &str| {
            let at = self.ruleset.tables[table_at]
                .chains
                .iter()
                .position(|c| c.name == name);
            at.map(|at| self.first_chain[table_at] + at as u32)
                .ok_or_else(|| alloc::format!("no chain {name} in the table"))
        };
        Ok(match verdict {
            Verdict::Accept => VerdictCode::Accept,
            Verdict::Drop => VerdictCode::Drop,
            Verdict::Continue => VerdictCode::Continue,
            Verdict::Return => VerdictCode::Return,
            Verdict::Jump(name) => VerdictCode::Jump(chain(name)?),
            Verdict::Goto(name) => VerdictCode::Goto(chain(name)?),
        })
    }

    fn object(&self, table_at: usize, kind: ObjectKind, name: &str) -> Result<u32, Why> {
        let objects = &self.ruleset.tables[table_at].objects;
        let at = objects
            .iter()
            .position(|o| o.name == name && o.state.kind() == kind);
        at.map(|at| self.objects[table_at][at])
            .ok_or_else(|| alloc::format!("no {} {name} in the table", kind.name()))
    }

    /// Puts the base chains in order. Of equal priorities the one that came last runs
    /// first, as the kernel's list of hooks has it.
    fn hooks(&mut self) {
        for (at, table) in self.ruleset.tables.iter().enumerate() {
            for (chain_at, chain) in table.chains.iter().enumerate() {
                let Some(base) = chain.base.as_ref().filter(|_| !table.dormant) else {
                    continue;
                };
                let code = BaseCode {
                    chain: self.first_chain[at] + chain_at as u32,
                    id: RuleId {
                        table: at as u16,
                        chain: chain_at as u16,
                        rule: None,
                    },
                    kind: base.kind,
                    priority: base.priority,
                    policy: base.policy,
                    devices: base
                        .devices
                        .iter()
                        .map(|d| Iface::new(0, d).name_number())
                        .collect(),
                };
                for layer in layers(table.family, base) {
                    let list = &mut self.program.hooks[*layer as usize][base.hook as usize];
                    list.insert(0, code.clone());
                    if base.kind == ChainKind::Nat {
                        self.program.tracks[*layer as usize] = true;
                        self.program.translates[*layer as usize] = true;
                    }
                }
            }
        }
        for list in self.program.hooks.iter_mut().flatten() {
            list.sort_by_key(|base| base.priority);
        }
    }
}

/// Where a base chain of this family is run.
fn layers(family: Family, base: &BaseChain) -> &'static [Layer] {
    match (family, base.hook) {
        (Family::Inet, Hook::Ingress) => &[Layer::Netdev],
        (Family::Inet, _) => &[Layer::Ip, Layer::Ip6],
        (Family::Ip, _) => &[Layer::Ip],
        (Family::Ip6, _) => &[Layer::Ip6],
        (Family::Arp, _) => &[Layer::Arp],
        (Family::Bridge, _) => &[Layer::Bridge],
        (Family::Netdev, _) => &[Layer::Netdev],
    }
}

pub(crate) fn rule_name(table: &Table, chain: &Chain, rule: &Rule) -> String {
    let Rule { handle, .. } = rule;
    alloc::format!(
        "rule with handle {handle} in chain {} {} {}",
        table.family,
        table.name,
        chain.name
    )
}

impl Compiler<'_> {
    /// A rule whose first instructions are these questions.
    fn push_rule(&mut self, id: RuleId, questions: &[Step], insns: Vec<Insn>) {
        let choice = guards::choose(questions);
        let mut code = self.push_insns(id, insns);
        code.answered = choice.as_ref().map_or(0, |choice| choice.answered);
        self.program.rules.push(code);
        self.choices.push(choice);
    }

    fn push_insns(&mut self, id: RuleId, insns: Vec<Insn>) -> RuleCode {
        let start = self.program.insns.len() as u32;
        self.program.insns.extend(insns);
        RuleCode {
            start,
            end: self.program.insns.len() as u32,
            answered: 0,
            id,
        }
    }
}
