//! From steps to instructions, and runs of rules to one lookup.
//!
//! Rules that follow one another form a run if each asks the same questions in the same
//! order, the answers asked for are numbers (values, prefixes, ranges) that may differ,
//! nothing between the questions has an effect, and what follows ends the rule for every
//! packet that gets there: then at most one of them acts on a packet, the first whose
//! numbers fit. A run becomes the questions with equal answers, then one lookup of the
//! others; the index keeps the order where numbers overlap.

use alloc::vec::Vec;

use super::Compiler;
use super::lower::{LoweredRule, Step};
use crate::program::{
    Bitop, Insn, KeyCode, Load, MetaKey, Program, Run, Term, Test, VerdictCode, low_bits,
};
use crate::rules::PayloadBase;
use crate::sets::{FIELDS_MAX, Index, form_of};

/// Shorter runs are quicker one by one.
const RUN_MIN: usize = 4;

/// The number of steps that ask, if the rest acts and ends the rule.
fn questions(compiler: &Compiler, rule: &LoweredRule) -> Option<usize> {
    let asked = rule
        .steps
        .iter()
        .take_while(|s| !matches!(s, Step::Insn(_)))
        .count();
    let (asks, acts) = rule.steps.split_at(asked);
    let pure = asks.iter().all(|step| match step {
        Step::Test(term, _) => is_pure(term),
        Step::Lookup { key, .. } => {
            key.parts.iter().all(|(term, _)| is_pure(term)) && compiler.is_pure_lookup(step)
        }
        Step::Insn(_) => false,
    });
    let (last, before) = acts.split_last()?;
    let ends = matches!(
        last,
        Step::Insn(
            Insn::Reject(_)
                | Insn::Verdict(
                    VerdictCode::Accept
                        | VerdictCode::Drop
                        | VerdictCode::Return
                        | VerdictCode::Goto(_)
                )
        )
    );
    let passes = before
        .iter()
        .all(|s| matches!(s, Step::Insn(Insn::Counter(_) | Insn::Log(_))));
    (pure && ends && passes).then_some(asked)
}

/// Loading it changes nothing, and twice in one packet yields the same.
fn is_pure(term: &Term) -> bool {
    !matches!(
        term.load,
        Load::Numgen(_) | Load::Data { .. } | Load::Meta(MetaKey::Random | MetaKey::Nftrace)
    )
}

/// The same question, whatever numbers are asked for; with whether the numbers differ.
fn same_question(a: &Step, b: &Step) -> Option<bool> {
    match (a, b) {
        (Step::Test(a, ta), Step::Test(b, tb)) if a == b => match (ta, tb) {
            _ if ta == tb => Some(false),
            (Test::Range { negate: false, .. }, Test::Range { negate: false, .. }) => Some(true),
            _ => None,
        },
        (
            Step::Lookup {
                key: ka,
                set: sa,
                negate: na,
            },
            Step::Lookup {
                key: kb,
                set: sb,
                negate: nb,
            },
        ) => (ka == kb && sa == sb && na == nb).then_some(false),
        _ => None,
    }
}

impl Compiler<'_> {
    pub(super) fn emit_chain(&mut self, rules: Vec<LoweredRule>) {
        let mut rest = &rules[..];
        while let Some(first) = rest.first() {
            let length = self.run_length(rest);
            let (run, after) = rest.split_at(length.max(1));
            if length < RUN_MIN || !self.emit_run(run) {
                for rule in run {
                    let insns = rule.steps.iter().map(|step| self.insn(step)).collect();
                    self.push_rule(rule.id, &rule.steps, insns);
                }
            }
            debug_assert_eq!(run[0].id, first.id);
            rest = after;
        }
    }

    /// How many rules from the first on form a run.
    fn run_length(&self, rules: &[LoweredRule]) -> usize {
        let Some(asked) = questions(self, &rules[0]) else {
            return 1;
        };
        let fits = |rule: &&LoweredRule| {
            questions(self, rule) == Some(asked)
                && rules[0].steps[..asked]
                    .iter()
                    .zip(&rule.steps)
                    .all(|(a, b)| same_question(a, b).is_some())
        };
        1 + rules[1..].iter().take_while(fits).count()
    }

    fn emit_run(&mut self, rules: &[LoweredRule]) -> bool {
        let Some(asked) = questions(self, &rules[0]) else {
            return false;
        };
        let first = &rules[0].steps[..asked];
        let differs = |at: usize| {
            rules
                .iter()
                .any(|r| same_question(&first[at], &r.steps[at]) == Some(true))
        };
        let (other, same): (Vec<usize>, Vec<usize>) = (0..asked).partition(|at| differs(*at));
        if other.is_empty() || other.len() > FIELDS_MAX {
            return false;
        }
        let mut parts = Vec::new();
        for at in &other {
            let Step::Test(term, _) = &first[*at] else {
                return false;
            };
            parts.push((term.clone(), term.bits));
        }
        let bits: Vec<u16> = parts.iter().map(|(_, bits)| *bits).collect();
        let body_first = self.program.bodies.len() as u32;
        let mut keys = Vec::with_capacity(rules.len());
        for (number, rule) in rules.iter().enumerate() {
            let key = other.iter().map(|at| match &rule.steps[*at] {
                Step::Test(_, Test::Range { low, high, .. }) => (*low, *high),
                _ => (1, 0),
            });
            keys.push((key.collect::<Vec<_>>(), body_first + number as u32));
        }
        let ranges = keys
            .iter()
            .any(|(key, _)| key.iter().any(|(low, high)| low != high));
        let form = form_of(&bits, ranges);
        let (Some(form), Some(index)) = (form, Index::new(&bits, &keys, ranges, self.seed)) else {
            return false;
        };
        let same: Vec<Step> = same.iter().map(|at| first[*at].clone()).collect();
        let mut insns: Vec<Insn> = same.iter().map(|step| self.insn(step)).collect();
        let key = KeyCode::new(parts.into(), form);
        self.program.runs.push(Run { key, index });
        insns.push(Insn::Run(self.program.runs.len() as u32 - 1));
        self.push_rule(rules[0].id, &same, insns);
        for rule in rules {
            let insns = rule.steps[asked..]
                .iter()
                .map(|step| self.insn(step))
                .collect();
            let body = self.push_insns(rule.id, insns);
            self.program.bodies.push(body);
        }
        true
    }

    fn insn(&mut self, step: &Step) -> Insn {
        match step {
            Step::Insn(insn) => *insn,
            Step::Lookup { key, set, negate } => Insn::Lookup {
                key: self.intern_key(key.clone()),
                set: *set,
                negate: *negate,
            },
            Step::Test(term, test) => {
                short_test(term, test).unwrap_or_else(|| self.program.long_test(term, test))
            }
        }
    }
}

/// A range that is a prefix (a single number is one), as mask and value.
pub(super) fn as_masked(test: &Test, bits: u16) -> Option<(u128, u128, bool)> {
    match *test {
        Test::Masked { mask, want, negate } => Some((mask, want, negate)),
        Test::Range { low, high, negate } => {
            let rest = low ^ high;
            let is_prefix = low <= high && rest & rest.wrapping_add(1) == 0 && low & rest == 0;
            is_prefix.then_some((low_bits(bits) & !rest, low, negate))
        }
    }
}

/// The instructions for what is asked most.
fn short_test(term: &Term, test: &Test) -> Option<Insn> {
    let (mut mask, want, negate) = as_masked(test, term.bits)?;
    match (term.load, want) {
        (Load::Meta(MetaKey::Nfproto), 0..=255)
            if !negate && mask == 255 && term.ops.is_empty() =>
        {
            return Some(Insn::Nfproto(want as u8));
        }
        (Load::Meta(MetaKey::L4proto), 0..=255)
            if !negate && mask == 255 && term.ops.is_empty() =>
        {
            return Some(Insn::L4proto(want as u8));
        }
        _ => {}
    }
    let Load::Payload {
        base,
        offset,
        len: len @ 1..=8,
        shift,
    } = term.load
    else {
        return None;
    };
    if base == PayloadBase::Inner {
        return None;
    }
    for op in &term.ops {
        let Bitop::And(bits) = op else { return None };
        mask &= bits;
    }
    // What is masked away can never be wanted; the general test says so.
    if want & !mask != 0 {
        return None;
    }
    let (mask, want) = ((mask << shift) as u64, (want << shift) as u64);
    Some(Insn::Payload {
        base,
        len,
        negate,
        offset,
        mask,
        want,
    })
}

impl Program {
    fn long_test(&mut self, term: &Term, test: &Test) -> Insn {
        let term_at = match self.terms.iter().rposition(|t| t == term) {
            Some(at) => at,
            None => {
                self.terms.push(term.clone());
                self.terms.len() - 1
            }
        };
        let test_at = match self.tests.iter().rposition(|t| t == test) {
            Some(at) => at,
            None => {
                self.tests.push(*test);
                self.tests.len() - 1
            }
        };
        Insn::Test {
            term: term_at as u32,
            test: test_at as u32,
        }
    }
}
