//! Which question of a rule becomes its guard ([`crate::guard`]).
//!
//! Of the questions that a rule begins with the one is taken that fewest packets answer; what a
//! packet carries tells packets apart better than what many have in common (interface,
//! state). The protocols asked for before it are part of it.

use alloc::vec::Vec;

use super::lower::Step;
use super::runs::as_masked;
use crate::guard::{FACTS_MAX, Fact, Guard, Value, fold, pack};
use crate::program::{CtKey, Load, MetaKey, Program, Term, Test, low_bits};

/// A guard, its fact, and how many of the rule's first questions it answers for good.
pub(super) struct Choice {
    fact: Fact,
    low: u64,
    span: u32,
    pub(super) answered: u32,
    leads: bool,
}

/// Protocols that were asked for so far.
#[derive(Clone, Copy, Default)]
struct Protocols {
    nfproto: Option<u8>,
    l4proto: Option<u8>,
}

impl Protocols {
    /// Takes the question in, if it asks for one protocol.
    fn take(&mut self, term: &Term, test: &Test) -> bool {
        let Test::Range {
            low,
            high,
            negate: false,
        } = *test
        else {
            return false;
        };
        let place = match term.load {
            Load::Meta(MetaKey::Nfproto) => &mut self.nfproto,
            Load::Meta(MetaKey::L4proto) => &mut self.l4proto,
            _ => return false,
        };
        match u8::try_from(low) {
            Ok(number) if low == high && term.ops.is_empty() && place.is_none() => {
                *place = Some(number);
                true
            }
            _ => false,
        }
    }

    fn choice(self, value: Option<Asked>, answered: usize, leads: bool) -> Choice {
        let low = value.as_ref().map(|value| value.low);
        Choice {
            low: pack(self.nfproto, self.l4proto, low),
            span: value.as_ref().map_or(0, |value| value.span),
            fact: Fact {
                nfproto: self.nfproto.is_some(),
                l4proto: self.l4proto.is_some(),
                value: value.map_or(Value::Nothing, |value| value.of),
            },
            answered: answered as u32,
            leads,
        }
    }
}

/// A question as a range of 32 bits.
struct Asked {
    of: Value,
    low: u32,
    span: u32,
    /// It says as much as the question.
    is_exact: bool,
    /// How few packets it lets through.
    rank: u32,
}

impl Asked {
    fn of(term: &Term, test: &Test) -> Option<Asked> {
        let all = low_bits(term.bits);
        let (mask, low, high) = match *test {
            Test::Range {
                low,
                high,
                negate: false,
            } if low <= high && all <= u32::MAX.into() => (all, low, high),
            // Some bit of these is set.
            Test::Masked {
                mask,
                want: 0,
                negate: true,
            } if mask != 0 && mask & all <= u32::MAX.into() => (mask & all, 1, mask & all),
            _ => match as_masked(test, term.bits)? {
                (mask, want, false) if want & !mask == 0 => (mask & all, want, want),
                _ => return None,
            },
        };
        let is_exact = mask <= u32::MAX.into();
        let (low, high) = match is_exact {
            true => (low as u32, u32::try_from(high).ok()?),
            false => (fold(low), fold(high)),
        };
        let span = high.checked_sub(low)?;
        let carried = matches!(term.load, Load::Payload { .. });
        let bits = mask.count_ones().min(32) + span.leading_zeros();
        Some(Asked {
            of: Value::of(term, mask),
            low,
            span,
            is_exact,
            rank: bits + if carried { 64 } else { 0 },
        })
    }
}

/// The guard of a rule with these steps, if it can have one.
pub(super) fn choose(steps: &[Step]) -> Option<Choice> {
    let mut protocols = Protocols::default();
    let mut best: Option<(u32, Choice)> = None;
    // So far nothing but protocols was asked for.
    let mut leads = true;
    let (mut first, mut taken) = (0, 0);
    for (at, step) in steps.iter().enumerate() {
        let Step::Test(term, test) = step else { break };
        if !is_settled(term) {
            break;
        }
        if protocols.take(term, test) {
            taken += 1;
            first += usize::from(leads);
            continue;
        }
        if let Some(asked) = Asked::of(term, test)
            && best.as_ref().is_none_or(|(rank, _)| *rank < asked.rank)
        {
            let answered = if leads && asked.is_exact { at + 1 } else { 0 };
            best = Some((asked.rank, protocols.choice(Some(asked), answered, leads)));
        }
        leads = false;
    }
    match best {
        Some((_, choice)) => Some(choice),
        None => (taken > 0).then(|| protocols.choice(None, first, first == taken)),
    }
}

/// Reading it has no effect, and yields the same until a rule writes to the packet.
fn is_settled(term: &Term) -> bool {
    match term.load {
        Load::Payload { .. } | Load::Exthdr { .. } | Load::ExthdrExists { .. } => true,
        Load::Meta(key) => !matches!(
            key,
            MetaKey::Random | MetaKey::Nftrace | MetaKey::Time | MetaKey::Day | MetaKey::Hour
        ),
        Load::Ct { key, .. } => matches!(key, CtKey::State | CtKey::Direction | CtKey::Mark),
        Load::Fib { .. }
        | Load::Numgen(_)
        | Load::Jhash(_)
        | Load::Data { .. }
        | Load::Constant(_) => false,
    }
}

impl Program {
    /// Gives each rule the guard that was chosen for it, and keeps the facts that most ask for.
    pub(super) fn set_guards(&mut self, choices: &[Option<Choice>]) {
        let mut facts: Vec<(&Fact, usize)> = Vec::new();
        let mut wanted = Vec::with_capacity(choices.len());
        for choice in choices {
            wanted.push(choice.as_ref().map(|choice| {
                let known = facts.iter().rposition(|(fact, _)| **fact == choice.fact);
                let at = known.unwrap_or(facts.len());
                match facts.get_mut(at) {
                    Some((_, uses)) => *uses += 1,
                    None => facts.push((&choice.fact, 1)),
                }
                at
            }));
        }
        let mut order: Vec<usize> = (0..facts.len()).collect();
        order.sort_by_key(|at| core::cmp::Reverse(facts[*at].1));
        order.truncate(FACTS_MAX);
        let mut place = alloc::vec![None; facts.len()];
        for (to, from) in order.iter().enumerate() {
            place[*from] = Some(to as u16);
        }
        self.facts = order.iter().map(|at| facts[*at].0.clone()).collect();
        let guards = choices.iter().zip(wanted).map(|(choice, wanted)| {
            let (choice, fact) = (choice.as_ref()?, place[wanted?]?);
            Some(Guard {
                low: choice.low,
                span: choice.span,
                fact,
                leads: choice.leads,
            })
        });
        self.guards = guards.map(|guard| guard.unwrap_or(Guard::ANY)).collect();
    }
}
