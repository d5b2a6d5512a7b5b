//! From rules as the kernel keeps them to a program and its first state.
//!
//! ```text
//!   rule ──► expressions (lower) ──► steps (tests, then actions) ──► runs ──► instructions
//!                └ registers: what each holds      (rules that differ in numbers only: one lookup)
//! ```
//! Nothing is refused: an expression that is not known here becomes [`Insn::Unknown`], behind which nothing
//! of the rule is carried out. [`crate::Filter::unknown`] names such rules; who has packets to decide about,
//! and no kernel behind that decides, does not put them in force.

mod guards;
mod keys;
mod lower;
mod runs;
mod sets;

use alloc::string::String;
use alloc::vec::Vec;

use crate::hash::Seed;
use crate::limits::{Bucket, QuotaState};
use crate::packet::{Iface, Layer};
use crate::program::{
    BaseCode, ChainCode, Insn, NumgenCode, Program, RuleCode, RuleId, VerdictCode,
};
use crate::rules::{Base, ChainKind, Expr, Family, Hook, ObjectState, Rules, Stateful, Verdict};
use crate::state::{ConnLimitState, Place, State};
use guards::Choice;
use lower::{LoweredRule, Step};

pub(crate) struct Compiler<'r> {
    rules: &'r Rules,
    pub program: Program,
    pub state: State,
    seed: Seed,
    now_ns: u64,
    /// Position in the program of each table's first chain.
    first_chain: Vec<u32>,
    /// Which of the state's sets each set of each table is; `None` before a rule asks for it.
    set_numbers: Vec<Vec<Option<u32>>>,
    /// The instruction that each object of each table is.
    objects: Vec<Vec<Option<Insn>>>,
    /// One for each of the program's rules.
    choices: Vec<Option<Choice>>,
}

/// Compiles all tables. `now_ns` is when buckets are full and timeouts begin.
pub(crate) fn compile(rules: &Rules, seed: u64, now_ns: u64) -> (Program, State) {
    let mut compiler = Compiler {
        rules,
        program: Program::default(),
        state: State::default(),
        seed: Seed(seed),
        now_ns,
        first_chain: Vec::new(),
        set_numbers: Vec::new(),
        objects: Vec::new(),
        choices: Vec::new(),
    };
    compiler.number();
    for (at, table) in rules.tables.iter().enumerate() {
        for (chain_at, chain) in table.chains.iter().enumerate() {
            let lowered = chain.rules.iter().enumerate().map(|(rule_at, rule)| {
                let id = RuleId {
                    table: at as u16,
                    chain: chain_at as u16,
                    rule: Some(rule_at as u32),
                };
                compiler.lower(at, table, rule, id)
            });
            let lowered: Vec<LoweredRule> = lowered.collect();
            let start = compiler.program.rules.len() as u32;
            compiler.emit_chain(lowered);
            let end = compiler.program.rules.len() as u32;
            let number = compiler.first_chain[at] + chain_at as u32;
            compiler.program.chains[number as usize] = ChainCode { start, end };
        }
    }
    compiler.note_changing_sets();
    compiler.hooks();
    compiler.program.set_guards(&compiler.choices);
    let writes = |insn: &Insn| matches!(insn, Insn::Mangle(_) | Insn::Notrack);
    compiler.program.writes = compiler.program.insns.iter().any(writes);
    (compiler.program, compiler.state)
}

impl<'r> Compiler<'r> {
    /// Gives chains and objects their positions. Sets get theirs when a rule asks for one.
    fn number(&mut self) {
        let mut chains = 0;
        for (at, table) in self.rules.tables.iter().enumerate() {
            self.first_chain.push(chains);
            chains += table.chains.len() as u32;
            let mut numbers = Vec::new();
            for (object_at, object) in table.objects.iter().enumerate() {
                let place = Place::Object {
                    table: at as u16,
                    object: object_at as u32,
                };
                numbers.push(match &object.state {
                    ObjectState::Stateful(Stateful::ConnLimit { .. }) => None,
                    ObjectState::Stateful(one) => self.state_of(one, place),
                    ObjectState::Unknown(_) => None,
                });
            }
            self.objects.push(numbers);
            self.set_numbers.push(alloc::vec![None; table.sets.len()]);
        }
        self.program.chains = alloc::vec![ChainCode::default(); chains as usize];
    }

    fn note_changing_sets(&mut self) {
        for (table, numbers) in self.rules.tables.iter().zip(&self.set_numbers) {
            let rules = table.chains.iter().flat_map(|chain| &chain.rules);
            for expr in rules.flat_map(|rule| &rule.exprs) {
                if let Expr::Dynset { set, .. } = expr
                    && let Some(at) = table.sets.iter().position(|of| of.name == *set)
                    && let Some(number) = numbers[at]
                {
                    self.program.changing_sets.push(number);
                }
            }
        }
    }

    fn verdict(&self, table_at: usize, verdict: &Verdict) -> Option<VerdictCode> {
        let chain = |name: &String| {
            let chains = &self.rules.tables[table_at].chains;
            let at = chains.iter().position(|chain| chain.name == *name)?;
            Some(self.first_chain[table_at] + at as u32)
        };
        Some(match verdict {
            Verdict::Accept => VerdictCode::Accept,
            Verdict::Drop => VerdictCode::Drop,
            Verdict::Continue => VerdictCode::Continue,
            Verdict::Return => VerdictCode::Return,
            Verdict::Jump(name) => VerdictCode::Jump(chain(name)?),
            Verdict::Goto(name) => VerdictCode::Goto(chain(name)?),
            Verdict::Break | Verdict::Other => return None,
        })
    }

    /// The instruction that an object is, by its type (NFT_OBJECT_*) and name.
    fn object(&self, table_at: usize, kind: u32, name: &str) -> Option<Insn> {
        let objects = &self.rules.tables[table_at].objects;
        let is_it = |object: &crate::rules::Object| {
            let own = match &object.state {
                ObjectState::Stateful(Stateful::Counter { .. }) => 1,
                ObjectState::Stateful(Stateful::Quota(_)) => 2,
                ObjectState::Stateful(Stateful::Limit(_)) => 4,
                ObjectState::Stateful(_) => 5,
                ObjectState::Unknown(own) => *own,
            };
            object.name == name && own == kind
        };
        let at = objects.iter().position(is_it)?;
        self.objects[table_at][at]
    }

    /// Gives what is kept for a statement or an object its place; `None`: nothing is kept.
    fn state_of(&mut self, one: &Stateful, place: Place) -> Option<Insn> {
        let state = &mut self.state;
        Some(match one {
            Stateful::Counter { packets, bytes } => {
                let counter = (*packets, *bytes).into();
                Insn::Counter(push(&mut state.counters, (counter, place)))
            }
            Stateful::Limit(limit) => {
                let bucket = Bucket::new(limit, self.now_ns);
                Insn::Limit(push(&mut state.limits, (bucket, place)))
            }
            Stateful::Quota(quota) => {
                let quota = QuotaState::new(quota);
                Insn::Quota(push(&mut state.quotas, (quota, place)))
            }
            Stateful::ConnLimit { count, over } => {
                let limit = ConnLimitState {
                    count: *count,
                    over: *over,
                    flows: Vec::new(),
                };
                Insn::ConnLimit(push(&mut state.conn_limits, (limit, place)))
            }
            Stateful::Last => return None,
        })
    }

    fn numgen(&mut self, code: NumgenCode) -> u32 {
        self.state.numgens.push(code.modulus - 1);
        push(&mut self.program.numgens, code)
    }

    /// A rule of this family asks for connections; `None` where they are not tracked here.
    fn track(&mut self, family: Family) -> Option<()> {
        let layers: &[Layer] = match family {
            Family::Ip => &[Layer::Ip],
            Family::Ip6 => &[Layer::Ip6],
            Family::Inet => &[Layer::Ip, Layer::Ip6],
            Family::Arp | Family::Bridge | Family::Netdev => return None,
        };
        for layer in layers {
            self.program.tracks[*layer as usize] = true;
        }
        Some(())
    }

    /// Puts the base chains in order. Of equal priorities the one that came last runs
    /// first, as the kernel's list of hooks has it.
    fn hooks(&mut self) {
        for (at, table) in self.rules.tables.iter().enumerate() {
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
                    drops: base.drops,
                    devices: base
                        .devices
                        .iter()
                        .map(|name| Iface::new(0, name).name_number())
                        .collect(),
                    calls_ip_by_name: table.family == Family::Inet && base.hook == Hook::Ingress,
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

fn push<T>(list: &mut Vec<T>, one: T) -> u32 {
    list.push(one);
    list.len() as u32 - 1
}

/// Where a base chain of this family is run.
fn layers(family: Family, base: &Base) -> &'static [Layer] {
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

/// Which expression of a rule is not known here, as far as one has another name.
pub(crate) fn unknown_expr(exprs: &[Expr]) -> &str {
    let named = exprs.iter().find_map(|expr| match expr {
        Expr::Unknown(name) => Some(name.as_str()),
        _ => None,
    });
    named.unwrap_or("an expression that is used in a way that is not known")
}
