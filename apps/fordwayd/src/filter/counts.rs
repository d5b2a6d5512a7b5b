//! What rules with a counter have counted, by their verdict: sums that go on when rules change.

use crate::admin::{CountedBy, FilterCount};
use fordway_filter::rules::{Expr, Rule, Rules, Stateful, Verdict};
use fordway_filter::{Counter, Filter};

/// By [`CountedBy`].
pub(super) type Sums = [Counter; CountedBy::ALL.len()];

fn add(to: &mut Sums, rule: &Rule, counter: Counter) {
    let sum = &mut to[verdict(rule) as usize];
    sum.packets = sum.packets.saturating_add(counter.packets);
    sum.bytes = sum.bytes.saturating_add(counter.bytes);
}

/// Rules end with what they do.
fn verdict(rule: &Rule) -> CountedBy {
    match rule.exprs.last() {
        Some(Expr::Verdict(Verdict::Accept)) => CountedBy::Accept,
        Some(Expr::Verdict(Verdict::Drop)) => CountedBy::Drop,
        Some(Expr::Reject { .. }) => CountedBy::Reject,
        _ => CountedBy::Other,
    }
}

fn counters(rule: &Rule) -> impl Iterator<Item = Counter> {
    rule.exprs.iter().filter_map(|expr| match expr {
        Expr::Stateful(Stateful::Counter { packets, bytes }) => Some((*packets, *bytes).into()),
        _ => None,
    })
}

/// As the kernel has them, or as they are written.
pub(super) fn sums(rules: &Rules) -> Sums {
    let mut sums = Sums::default();
    for (_, rule) in rules.ids() {
        counters(rule).for_each(|counter| add(&mut sums, rule, counter));
    }
    sums
}

/// What happened since the broker began.
#[derive(Debug, Default)]
pub(super) struct Tally {
    total: Sums,
    /// What the rules in force had counted at the last look.
    seen: Sums,
}

impl Tally {
    /// Other rules come into force, which have counted this much.
    pub(super) fn begin(&mut self, written: Sums) {
        self.seen = written;
    }

    /// Looks at the rules in force: at the kernel's counts, and at those by rings.
    pub(super) fn look(&mut self, kernel: &Rules, rings: &Filter) {
        let mut now = sums(kernel);
        let counting = rings
            .rules()
            .ids()
            .filter(|(_, rule)| counters(rule).next().is_some());
        for (id, rule) in counting {
            rings
                .counts(id)
                .for_each(|counter| add(&mut now, rule, counter));
        }
        for ((total, seen), now) in self.total.iter_mut().zip(&self.seen).zip(&now) {
            let more = |now: u64, seen: u64| now.saturating_sub(seen);
            total.packets = total
                .packets
                .saturating_add(more(now.packets, seen.packets));
            total.bytes = total.bytes.saturating_add(more(now.bytes, seen.bytes));
        }
        self.seen = now;
    }

    pub(super) fn told(&self) -> Vec<FilterCount> {
        let all = CountedBy::ALL.into_iter().zip(self.total);
        let all = all.map(|(verdict, Counter { packets, bytes })| FilterCount {
            verdict,
            packets,
            bytes,
        });
        all.collect()
    }
}
