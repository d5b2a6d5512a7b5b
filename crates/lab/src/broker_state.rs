//! What the broker holds on to: its descriptors and its mappings of shared memory.
//!
//! Sockets and namespaces are compared by kind and number, not by inode: the broker
//! may well close one and open another. A leak of a program's socket, memfd, eventfd
//! or pidfd shows as one more of its kind.

use crate::proc;
use std::collections::BTreeMap;
use std::fs;

/// How many of each kind of thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerState(BTreeMap<String, usize>);

impl BrokerState {
    /// Now.
    pub fn of(pid: u32) -> BrokerState {
        let mut counts = BTreeMap::new();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mappings = maps
            .lines()
            .filter(|line| line.contains("/memfd:"))
            .map(|_| "mapping of a memfd".to_owned());
        let descriptors = proc::descriptors(pid)
            .into_iter()
            .map(|target| kind(&target));
        for what in descriptors.chain(mappings) {
            *counts.entry(what).or_default() += 1;
        }
        BrokerState(counts)
    }

    /// The same but for one of a kind, which the one who looks has made.
    pub(crate) fn but_one(mut self, kind: &str) -> BrokerState {
        if let Some(count) = self.0.get_mut(kind) {
            *count -= 1;
        }
        self.0.retain(|_, count| *count > 0);
        self
    }

    /// What has become more or less, in words.
    pub fn differences(&self, before: &BrokerState) -> String {
        let kinds = self.0.keys().chain(before.0.keys());
        let mut parts: Vec<String> = kinds
            .map(|kind| {
                let count = |state: &BrokerState| state.0.get(kind).copied().unwrap_or(0);
                (kind, count(self), count(before))
            })
            .filter(|(_, now, before)| now != before)
            .map(|(kind, now, before)| format!("{now} x {kind} (before: {before})"))
            .collect();
        parts.sort();
        parts.dedup();
        parts.join(", ")
    }
}

/// `socket:[1234]` is `socket`; a file is itself, but for those that the lab has a
/// program write to, which another broker of the same lab has under other names.
fn kind(target: &str) -> String {
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None if target.ends_with(".stdout") || target.ends_with(".stderr") => {
            "output file".to_owned()
        }
        None => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Opens a descriptor at the first line it reads, closes it at the second, and says
    /// so. A process of the test's own: in this one other tests open what they like.
    const PROGRAM: &str = "echo; read _; exec 9</dev/zero; echo; read _; exec 9<&-; echo; read _";

    #[test]
    fn sees_what_was_kept() {
        let mut child = Command::new("sh")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut orders = child.stdin.take().unwrap();
        let mut at_next_word = || {
            said.read_line(&mut String::new()).unwrap();
            let now = BrokerState::of(child.id());
            orders.write_all(b"\n").unwrap();
            now
        };
        let before = at_next_word();
        let kept = at_next_word();
        let after = at_next_word();
        child.wait().unwrap();
        assert_eq!(kept.differences(&before), "1 x /dev/zero (before: 0)");
        assert_eq!(after.differences(&before), "");
        assert_eq!(kept.but_one("/dev/zero"), before);
    }
}
