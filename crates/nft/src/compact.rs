//! Long runs of like rules as one lookup, for nf_tables, which walks a chain rule by rule.
//!
//! ```text
//!   ip saddr 10.0.0.1 tcp dport 80 counter accept         ip saddr . tcp dport {
//!   ip saddr 10.0.0.2 tcp dport 81 counter accept   ──►       10.0.0.1 . 80 counter,
//!   ...                                                       10.0.0.2 . 81 counter, ... } accept
//! ```
//! Rules that follow one another form a run if
//! - each asks the same questions in the same order and then does the same, or ends with a
//!   verdict of its own;
//! - only the addresses and ports asked for differ, and no packet can have those of two of
//!   them. So at most one of them acts on a packet, whichever stands first;
//! - asking changes nothing, and what they do is counting, logging, and one ending that does
//!   not come back (`jump` does, and the rules behind would be asked then).
//!
//! Each rule's counter becomes its element's, and [`counters`] finds it there again.
//! The administrator never sees the short form: it is made of the rules whenever it is
//! needed, so nothing has to be remembered about what the kernel was given.
//!
//! What is known of the kernel (6.18) and nft (1.0.6): `vmap { KEY counter : VERDICT }` is not
//! taken, so where verdicts differ the counters stand in a set before it; counters of a set
//! whose only key is of 16 bits are never counted (nft_set_bitmap gives no element back), so such
//! a key stands there twice; ranges are merged with their neighbours unless they are
//! joined with something.
use crate::prelude::*;

use core::ops::Range;
use fordway_filter::model::{
    Chain, Counter, DataType, Element, ElementData, Expr, MetaKey, RelOp, Rule, Ruleset, SetRef,
    Statement, Table, Verdict,
};
use hashbrown::{HashMap, HashSet};

/// Shorter runs are as quick rule by rule.
pub const RUN_MIN: usize = 16;
/// Rules of a run with ranges: each is compared with all before it.
const RANGED_MAX: usize = 4096;
/// The kernel's registers (NFT_REG32_COUNT of four bytes each).
const KEY_BYTES_MAX: usize = 64;

/// Lowest and highest number asked for, part by part.
type Key = Vec<(u128, u128)>;

/// Puts one rule in the place of each run of at least so many.
pub fn compact(ruleset: &mut Ruleset, run_min: usize) {
    for table in &mut ruleset.tables {
        let short: Vec<Vec<Rule>> = table
            .chains
            .iter()
            .map(|chain| {
                let runs = runs(table, chain, run_min);
                runs.into_iter()
                    .map(|run| joined(&chain.rules[run]))
                    .collect()
            })
            .collect();
        for (chain, rules) in table.chains.iter_mut().zip(short) {
            chain.rules = rules;
        }
    }
}

/// What has counted in a chain, for each rule of its long form. `counted` is either form.
pub fn counters<'c>(
    table: &Table,
    chain: &Chain,
    counted: &'c Chain,
    run_min: usize,
) -> Vec<(usize, &'c [Statement])> {
    let runs = runs(table, chain, run_min);
    let whole = |(at, rule): (usize, &'c Rule)| (at, &rule.statements[..]);
    if counted.rules.len() != runs.len() {
        return counted.rules.iter().enumerate().map(whole).collect();
    }
    let mut found = Vec::with_capacity(chain.rules.len());
    for (run, rule) in runs.into_iter().zip(&counted.rules) {
        if run.len() == 1 {
            found.push(whole((run.start, rule)));
            continue;
        }
        let elements: HashMap<Key, &'c Element> = rule
            .statements
            .iter()
            .filter_map(|s| match s {
                Statement::Match {
                    right: Expr::Set(SetRef::Anonymous(elements)),
                    ..
                } if counts(elements) => Some(elements),
                _ => None,
            })
            .flatten()
            .filter_map(|element| Some((key_of_element(&element.key)?, element)))
            .collect();
        let differing = differing(&chain.rules[run.clone()]);
        for at in run {
            let asked = &chain.rules[at].statements;
            let key: Key = set_key(&differing)
                .iter()
                .filter_map(|part| literal(&asked[*part]))
                .collect();
            let element = elements.get(&key);
            found.extend(element.map(|element| (at, &element.statements[..])));
        }
    }
    found
}

fn counts(elements: &[Element]) -> bool {
    elements.iter().any(|e| !e.statements.is_empty())
}

/// The chain's rules in order: runs of at least `run_min`, and single ones.
fn runs(table: &Table, chain: &Chain, run_min: usize) -> Vec<Range<usize>> {
    let rules = &chain.rules;
    let mut runs = Vec::new();
    let mut start = 0;
    while start < rules.len() {
        let length = run_length(table, &rules[start..]);
        match length >= run_min.max(2) {
            true => runs.push(start..start + length),
            false => runs.extend((start..start + length).map(|at| at..at + 1)),
        }
        start += length;
    }
    runs
}

fn run_length(table: &Table, rules: &[Rule]) -> usize {
    let Some(asked) = questions(table, &rules[0]) else {
        return 1;
    };
    let Some(first) = key_of(&rules[0], asked) else {
        return 1;
    };
    let mut ranged = is_ranged(&first);
    let mut keys = vec![first.clone()];
    let mut seen: HashSet<_> = [first].into_iter().collect();
    for rule in &rules[1..] {
        if !is_like(&rules[0], rule, asked) {
            break;
        }
        let Some(key) = key_of(rule, asked) else {
            break;
        };
        ranged |= is_ranged(&key);
        let meets = match ranged {
            true => keys.len() >= RANGED_MAX || keys.iter().any(|other| overlap(other, &key)),
            false => !seen.insert(key.clone()),
        };
        if meets {
            break;
        }
        keys.push(key);
    }
    let run = &rules[..keys.len()];
    let width = |at: &usize| field_type(&run[0].statements[*at]).map_or(0, DataType::width);
    let bytes: usize = set_key(&differing(run))
        .iter()
        .map(|at| width(at).next_multiple_of(4))
        .sum();
    match bytes <= KEY_BYTES_MAX {
        true => run.len(),
        false => 1,
    }
}

fn is_ranged(key: &Key) -> bool {
    key.iter().any(|(low, high)| low != high)
}

fn overlap(a: &Key, b: &Key) -> bool {
    a.iter().zip(b).all(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
}

/// The number of questions that the rule begins with, if the rest may follow a lookup.
fn questions(table: &Table, rule: &Rule) -> Option<usize> {
    let is_question = |s: &&Statement| matches!(s, Statement::Match { .. });
    let asked = rule.statements.iter().take_while(is_question).count();
    let (asks, acts) = rule.statements.split_at(asked);
    let mut exprs_are_pure = true;
    for ask in asks {
        ask.for_each_expr(&mut |expr| exprs_are_pure &= is_pure(table, expr));
    }
    let counters = acts.iter().filter(|s| matches!(s, Statement::Counter(_)));
    let ends_late = acts.iter().rev().skip(1).all(is_passing);
    let last_is_known = acts.last().is_none_or(|s| is_passing(s) || is_end(s));
    (exprs_are_pure && counters.count() <= 1 && ends_late && last_is_known).then_some(asked)
}

fn is_passing(statement: &Statement) -> bool {
    matches!(statement, Statement::Counter(_) | Statement::Log(_))
}

fn is_end(statement: &Statement) -> bool {
    matches!(statement, Statement::Reject(_)) || own_verdict(statement).is_some()
}

/// A verdict that may stand in a verdict map.
fn own_verdict(statement: &Statement) -> Option<&Verdict> {
    match statement {
        Statement::Verdict(
            verdict @ (Verdict::Accept | Verdict::Drop | Verdict::Return | Verdict::Goto(_)),
        ) => Some(verdict),
        _ => None,
    }
}

/// Asking once is as good as asking for each rule.
fn is_pure(table: &Table, expr: &Expr) -> bool {
    match expr {
        Expr::Numgen { .. } | Expr::Map { .. } => false,
        Expr::Meta(MetaKey::Random | MetaKey::Nftrace | MetaKey::Time | MetaKey::Hour) => false,
        Expr::Set(SetRef::Named(name)) => table.set(name).is_some_and(|set| {
            let changes = set.flags.dynamic || set.flags.timeout || set.timeout_ms.is_some();
            !changes && set.statements.is_empty() && !counts(&set.elements)
        }),
        Expr::Set(SetRef::Anonymous(elements)) => !counts(elements),
        Expr::Range(a, b) => is_pure(table, a) && is_pure(table, b),
        Expr::Binary { left, right, .. } => is_pure(table, left) && is_pure(table, right),
        Expr::Prefix(inner, _) => is_pure(table, inner),
        Expr::Jhash { input, .. } => is_pure(table, input),
        Expr::List(parts) | Expr::Concat(parts) => parts.iter().all(|p| is_pure(table, p)),
        Expr::Value(_)
        | Expr::Any
        | Expr::Payload(_)
        | Expr::PayloadRaw { .. }
        | Expr::Exthdr(_)
        | Expr::ExthdrExists(_)
        | Expr::Meta(_)
        | Expr::Ct { .. }
        | Expr::Fib { .. } => true,
    }
}

/// The same questions but for numbers, and the same acts but for counts and the verdict.
fn is_like(first: &Rule, other: &Rule, asked: usize) -> bool {
    let (a, b) = (&first.statements, &other.statements);
    let same_question = |a: &Statement, b: &Statement| {
        a == b || literal(a).is_some() && literal(b).is_some() && left(a) == left(b)
    };
    let same_act = |a: &Statement, b: &Statement| match (a, b) {
        (Statement::Counter(_), Statement::Counter(_)) => true,
        _ => a == b || own_verdict(a).is_some() && own_verdict(b).is_some(),
    };
    a.len() == b.len()
        && a[..asked].iter().zip(b).all(|(a, b)| same_question(a, b))
        && a[asked..]
            .iter()
            .zip(&b[asked..])
            .all(|(a, b)| same_act(a, b))
}

fn left(statement: &Statement) -> Option<&Expr> {
    match statement {
        Statement::Match { left, .. } => Some(left),
        _ => None,
    }
}

/// The type of an address or a port of the packet that is compared for being equal.
fn field_type(statement: &Statement) -> Option<DataType> {
    match statement {
        Statement::Match {
            op: RelOp::Implicit | RelOp::Eq,
            left: Expr::Payload(field),
            ..
        } => Some(field.def().data_type).filter(|t| {
            matches!(
                t,
                DataType::Ipv4Addr | DataType::Ipv6Addr | DataType::InetService
            )
        }),
        _ => None,
    }
}

/// What numbers such a question asks for.
fn literal(statement: &Statement) -> Option<(u128, u128)> {
    let bits = field_type(statement)?.bits();
    match statement {
        Statement::Match { right, .. } => range_of(right, bits),
        _ => None,
    }
}

fn range_of(expr: &Expr, bits: u16) -> Option<(u128, u128)> {
    let number = |expr: &Expr| match expr {
        Expr::Value(value) => Some(value.as_number()),
        _ => None,
    };
    let (low, high) = match expr {
        Expr::Value(value) => (value.as_number(), value.as_number()),
        Expr::Range(low, high) => (number(low)?, number(high)?),
        Expr::Prefix(value, len) => {
            let rest = (bits.checked_sub((*len).into())?).into();
            let hosts = 1u128.checked_shl(rest).unwrap_or(0).wrapping_sub(1);
            let low = number(value)?;
            (low & hosts == 0).then_some((low, low | hosts))?
        }
        _ => return None,
    };
    (low <= high).then_some((low, high))
}

/// All numbers that the rule asks for.
fn key_of(rule: &Rule, asked: usize) -> Option<Key> {
    let key: Key = rule.statements[..asked]
        .iter()
        .filter_map(literal)
        .collect();
    (!key.is_empty()).then_some(key)
}

fn key_of_element(expr: &Expr) -> Option<Key> {
    let one = |expr: &Expr| {
        let value = match expr {
            Expr::Range(value, _) | Expr::Prefix(value, _) => value,
            other => other,
        };
        match value {
            Expr::Value(value) => range_of(expr, value.bytes().len() as u16 * 8),
            _ => None,
        }
    };
    match expr {
        Expr::Concat(parts) => parts.iter().map(one).collect(),
        other => Some(vec![one(other)?]),
    }
}

/// Positions of the questions whose numbers are not the same in all rules.
fn differing(run: &[Rule]) -> Vec<usize> {
    let differs = |at: &usize| {
        let first = &run[0].statements[*at];
        run.iter()
            .any(|r| literal(&r.statements[*at]) != literal(first))
    };
    (0..run[0].statements.len()).filter(differs).collect()
}

/// The parts of the set's key. Alone, a port's counters would not be counted, and ranges
/// would be merged.
fn set_key(differing: &[usize]) -> Vec<usize> {
    match differing {
        [one] => vec![*one, *one],
        many => many.to_vec(),
    }
}

/// One rule for a run.
fn joined(run: &[Rule]) -> Rule {
    let [first, _, ..] = run else {
        return run[0].clone();
    };
    let differing = differing(run);
    let key_parts = set_key(&differing);
    let key = Expr::Concat(
        key_parts
            .iter()
            .filter_map(|at| left(&first.statements[*at]).cloned())
            .collect(),
    );
    let element_key = |rule: &Rule| {
        let part = |at: &usize| exact(&rule.statements[*at]);
        Expr::Concat(key_parts.iter().filter_map(part).collect())
    };
    let is_match = |s: &&Statement| matches!(s, Statement::Match { .. });
    let asked = first.statements.iter().take_while(is_match).count();
    let acts = &first.statements[asked..];
    let one_ending = run
        .iter()
        .all(|r| r.statements.last().and_then(own_verdict) == acts.last().and_then(own_verdict));
    let counted = acts.iter().any(|s| matches!(s, Statement::Counter(_)));

    let mut statements: Vec<Statement> = (0..asked)
        .filter(|at| !differing.contains(at))
        .map(|at| first.statements[at].clone())
        .collect();
    if counted || one_ending {
        let elements = run.iter().map(|rule| Element {
            statements: match counted {
                true => vec![Statement::Counter(Counter::default())],
                false => Vec::new(),
            },
            ..Element::new(element_key(rule))
        });
        let set = Expr::Set(SetRef::Anonymous(elements.collect()));
        statements.push(Statement::is(key.clone(), set));
    }
    let others = acts.iter().filter(|s| !matches!(s, Statement::Counter(_)));
    if one_ending {
        statements.extend(others.cloned());
    } else {
        statements.extend(others.filter(|s| own_verdict(s).is_none()).cloned());
        let elements = run.iter().filter_map(|rule| {
            let verdict = rule.statements.last().and_then(own_verdict)?.clone();
            let data = ElementData::Verdict(verdict);
            Some(Element::with_data(element_key(rule), data))
        });
        statements.push(Statement::VerdictMap {
            key,
            map: SetRef::Anonymous(elements.collect()),
        });
    }
    Rule {
        handle: first.handle,
        comment: None,
        statements,
    }
}

/// What is asked for, as an element of a set has it: a range of one number is that number.
fn exact(statement: &Statement) -> Option<Expr> {
    let (low, high) = literal(statement)?;
    match statement {
        Statement::Match { right, .. } if low != high => Some(right.clone()),
        _ => Some(Expr::number(field_type(statement)?, low)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, NoFiles, list, load_text};

    fn ruleset(rules: &str) -> Ruleset {
        let text = format!(
            "table inet t {{\nset dyn {{ type ipv4_addr; flags dynamic; }}\nset fix {{ type ipv4_addr; }}\n\
             chain other {{ }}\nchain c {{\n{rules}\n}}\n}}\n"
        );
        let (nothing, env) = (Ruleset::default(), Env::default());
        load_text(&nothing, &env, &NoFiles, "test", &text, &[])
            .expect("rules")
            .ruleset
    }

    /// The rules of the short form.
    fn short(rules: &str) -> Vec<String> {
        let mut ruleset = ruleset(rules);
        compact(&mut ruleset, 2);
        let chain = ruleset.tables[0].chain("c").expect("chain");
        let env = Env::default();
        chain.rules.iter().map(|r| list::rule(r, &env)).collect()
    }

    #[test]
    fn a_run_is_one_lookup() {
        for (long, expected) in [
            (
                "ip saddr 10.0.0.1 tcp dport 80 accept\nip saddr 10.0.0.2 tcp dport 80 accept",
                "tcp dport 80 ip saddr . ip saddr { 10.0.0.1 . 10.0.0.1, 10.0.0.2 . 10.0.0.2 } accept",
            ),
            (
                "ip saddr 10.0.0.1 tcp dport 80 accept\nip saddr 10.0.0.2 tcp dport 81 drop",
                "ip saddr . tcp dport vmap { 10.0.0.1 . 80 : accept, 10.0.0.2 . 81 : drop }",
            ),
            (
                "ct state new udp dport 5-9 log drop\nct state new udp dport 10 log drop",
                "ct state new udp dport . udp dport { 5-9 . 5-9, 10 . 10 } log drop",
            ),
        ] {
            assert_eq!(short(long), [expected], "{long}");
        }
    }

    #[test]
    fn what_would_not_be_the_same_stays() {
        for long in [
            // The second must not hide behind the first.
            "ip saddr 10.0.0.0/8 drop\nip saddr 10.0.0.1 accept",
            "ip saddr 10.0.0.1 drop\nip saddr 10.0.0.1 accept",
            // The rules behind are asked after a jump has come back.
            "ip saddr 10.0.0.1 jump other\nip saddr 10.0.0.2 jump other",
            "ip saddr 10.0.0.1 limit rate 1/second accept\nip saddr 10.0.0.2 limit rate 1/second accept",
            "counter ip saddr 10.0.0.1 drop\ncounter ip saddr 10.0.0.2 drop",
            "ip saddr != 10.0.0.1 drop\nip saddr != 10.0.0.2 drop",
            "ip saddr 10.0.0.1 drop\nip daddr 10.0.0.2 drop",
            "ip daddr @dyn ip saddr 10.0.0.1 drop\nip daddr @dyn ip saddr 10.0.0.2 drop",
            "ip saddr 10.0.0.1 meta mark set 1\nip saddr 10.0.0.2 meta mark set 1",
        ] {
            assert_eq!(short(long).len(), 2, "{long}");
        }
        let fixed = "ip daddr @fix ip saddr 10.0.0.1 drop\nip daddr @fix ip saddr 10.0.0.2 drop";
        assert_eq!(short(fixed).len(), 1);
    }

    #[test]
    fn counters_come_back_to_their_rules() {
        let long = ruleset(
            "tcp dport 1 counter\nip saddr 10.0.0.1 counter accept\nip saddr 10.0.0.2 counter drop\n\
             ip saddr 10.1.0.0/16 counter drop\ntcp dport 2 counter",
        );
        let counted = |rules: &str| -> Vec<(usize, u64)> {
            let kernel = ruleset(rules);
            let table = &long.tables[0];
            let chain = |r: &Ruleset| r.tables[0].chain("c").expect("chain").clone();
            let kernel = chain(&kernel);
            counters(table, &chain(&long), &kernel, 2)
                .into_iter()
                .filter_map(|(at, statements)| {
                    statements.iter().find_map(|s| match s {
                        Statement::Counter(counter) => Some((at, counter.packets)),
                        _ => None,
                    })
                })
                .collect()
        };
        let all = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)];
        // As nft lists it: in another order, and prefixes as it likes.
        let set = "{ 10.1.0.0-10.1.255.255 . 10.1.0.0/16 counter packets 4 bytes 0, \
            10.0.0.2 . 10.0.0.2 counter packets 3 bytes 0, 10.0.0.1 . 10.0.0.1 counter packets 2 bytes 0 }";
        let map = "{ 10.0.0.1 . 10.0.0.1 : accept, 10.0.0.2 . 10.0.0.2 : drop, 10.1.0.0/16 . 10.1.0.0/16 : drop }";
        let short = format!(
            "tcp dport 1 counter packets 1 bytes 0\n\
             ip saddr . ip saddr {set} ip saddr . ip saddr vmap {map}\n\
             tcp dport 2 counter packets 5 bytes 0"
        );
        assert_eq!(counted(&short), all);
        // An earlier broker may have given the kernel the rules one by one.
        let one_by_one = "tcp dport 1 counter packets 1 bytes 0\n\
            ip saddr 10.0.0.1 counter packets 2 bytes 0 accept\n\
            ip saddr 10.0.0.2 counter packets 3 bytes 0 drop\n\
            ip saddr 10.1.0.0/16 counter packets 4 bytes 0 drop\ntcp dport 2 counter packets 5 bytes 0";
        assert_eq!(counted(one_by_one), all);
    }
}
