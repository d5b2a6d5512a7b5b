//! What became of each test of a run: the lines that `scripts/run_tests.py` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// By the test's name; a name that came twice has both words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts(BTreeMap<String, Vec<Verdict>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl Verdicts {
    /// `None`: the run did not come to its end, or something else stands there.
    pub fn read(text: &str) -> Option<Verdicts> {
        let mut verdicts = Verdicts::default();
        let mut ended = false;
        for line in text.lines() {
            ended = line == "end";
            let verdict = match line.split_once(' ') {
                Some(("passed", name)) => (Verdict::Passed, name),
                Some(("failed", name)) => (Verdict::Failed, name),
                Some(("skipped", name)) => (Verdict::Skipped, name),
                Some(("started", _)) => continue,
                None if ended => continue,
                _ => return None,
            };
            let of_name = verdicts.0.entry(verdict.1.to_owned()).or_default();
            of_name.push(verdict.0);
            of_name.sort();
        }
        ended.then_some(verdicts)
    }

    /// Names whose verdicts are not the same in both, or that one of them lacks.
    pub fn differing(&self, other: &Verdicts) -> Vec<String> {
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        names
            .into_iter()
            .filter(|name| self.0.get(*name) != other.0.get(*name))
            .cloned()
            .collect()
    }

    /// In words.
    pub fn of(&self, name: &str) -> String {
        match self.0.get(name) {
            Some(verdicts) => format!("{verdicts:?}"),
            None => "missing".to_owned(),
        }
    }

    /// How many passed.
    pub fn passed(&self) -> usize {
        self.count(Verdict::Passed)
    }

    fn count(&self, wanted: Verdict) -> usize {
        let all = self.0.values().flatten();
        all.filter(|verdict| **verdict == wanted).count()
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [passed, failed, skipped] =
            [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|verdict| self.count(verdict));
        out.pad(&format!("{passed}/{failed}/{skipped}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_compares_by_name() {
        let text = "started a\npassed a\nstarted b\nfailed b\nskipped c\nend\n";
        let one = Verdicts::read(text).expect("whole");
        assert_eq!(one.to_string(), "1/1/1");
        let other = Verdicts::read("passed a\npassed b\nskipped d\nend\n").expect("whole");
        assert_eq!(one.differing(&other), ["b", "c", "d"]);
        assert_eq!(one.differing(&one.clone()), [""; 0]);
    }

    #[test]
    fn takes_no_half_results() {
        assert_eq!(Verdicts::read("passed a\nstarted b\n"), None);
        assert_eq!(Verdicts::read("nonsense\nend\n"), None);
        assert_eq!(Verdicts::read(""), None);
    }
}
