//! The way from rule to rule: past those whose guards deny the packet.

use super::{Mode, field, load};
use crate::guard::{FACTS_MAX, Fact, Value, fold, fold_half, pack};
use crate::program::{ChainCode, Program, RuleCode};

/// What has been read of a packet, while a base chain runs.
#[derive(Debug)]
pub(crate) struct Facts {
    numbers: [u64; FACTS_MAX],
    /// A bit for each fact: its number is here; it was looked for.
    known: u64,
    looked_for: u64,
}

impl Facts {
    pub(crate) fn new() -> Facts {
        Facts {
            numbers: [0; FACTS_MAX],
            known: 0,
            looked_for: 0,
        }
    }

    /// A rule may have written what was read.
    pub(super) fn forget(&mut self) {
        (self.known, self.looked_for) = (0, 0);
    }

    /// The chain's next rule that is to be carried out, and how many of its instructions its
    /// guard has answered. `at` is then behind it.
    #[inline]
    pub(super) fn next_rule<'p, M: Mode>(
        &mut self,
        program: &'p Program,
        mode: &mut M,
        at: &mut ChainCode,
    ) -> Option<(&'p RuleCode, u32)> {
        for guard in &program.guards[at.start as usize..at.end as usize] {
            let is_known = (self.known >> guard.fact & 1 != 0
                || self.look_for(program, mode, guard.fact.into()))
                && (guard.leads || M::HEEDS_ALL_GUARDS);
            let number = self.numbers[guard.fact as usize % FACTS_MAX];
            if is_known && guard.denies(number) {
                at.start += 1;
                continue;
            }
            let rule = &program.rules[at.start as usize];
            at.start += 1;
            return Some((rule, if is_known { rule.answered } else { 0 }));
        }
        None
    }

    /// Reads a fact, once. False if not all of it is known.
    #[inline(never)]
    fn look_for<M: Mode>(&mut self, program: &Program, mode: &mut M, at: usize) -> bool {
        let Some(fact) = program.facts.get(at) else {
            return false;
        };
        let bit = 1 << at;
        if self.looked_for & bit == 0 {
            self.looked_for |= bit;
            if let Some(number) = number(program, mode, fact) {
                self.numbers[at % FACTS_MAX] = number;
                self.known |= bit;
            }
        }
        self.known & bit != 0
    }
}

fn number<M: Mode>(program: &Program, mode: &mut M, fact: &Fact) -> Option<u64> {
    let value = if let Value::Field(code) = &fact.value {
        match field(mode, code) {
            Some((_, false)) => return None,
            seen => seen.map(|(value, _)| fold_half(value)),
        }
    } else {
        other_value(program, mode, &fact.value)?
    };
    let nfproto = fact.nfproto.then(|| mode.nfproto());
    let l4proto = fact.l4proto.then(|| mode.l4proto()).flatten();
    Some(pack(nfproto, l4proto, value))
}

/// What is not a field, which is rarer: apart, as it would cost fields registers.
#[inline(never)]
fn other_value<M: Mode>(program: &Program, mode: &mut M, value: &Value) -> Option<Option<u32>> {
    match value {
        Value::Nothing | Value::Field(_) => Some(None),
        Value::Term { term, mask } => match load(program, mode, term) {
            Ok(Some(seen)) if mask & !(seen.known as u64) != 0 => None,
            Ok(seen) => Some(seen.map(|seen| fold_half(seen.value as u64 & mask))),
            Err(_) => None,
        },
        Value::Wide { term, mask } => match load(program, mode, term) {
            Ok(Some(seen)) if mask & !seen.known != 0 => None,
            Ok(seen) => Some(seen.map(|seen| fold(seen.value & mask))),
            Err(_) => None,
        },
    }
}
