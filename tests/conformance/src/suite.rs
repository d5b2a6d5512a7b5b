//! The cases, and the table of what came of them.

use crate::{Bed, Between};
use anyhow::{Result, ensure};
use std::fmt;

/// Programs of cases: `programs/NAME.c` with the framework. `build.rs` compiles them.
pub const PROGRAMS: &[&str] = &include!("../programs/list.in");

/// How the names of the same programs end that are linked to musl.
pub const MUSL_END: &str = "-musl";

/// How the names of programs begin that are about datagrams. Many of their cases are over before a ring is entered.
const DATAGRAMS_BEGIN: &str = "udp_";
/// Cases of datagrams in which rings differ from Linux (docs/semantics.md, section 8): played with the library,
/// which leaves the datagrams to the kernel.
const WITHOUT_RINGS: [(&str, &str); 24] = [
    // Between senders there is no order.
    ("udp_many", "by_turns"),
    ("udp_peer", "queued_before"),
    // An error that waits is told when the kernel is asked.
    ("udp_refused", "before_data"),
    ("udp_refused", "peer_closes"),
    ("udp_refused", "queue"),
    ("udp_refused", "queue_and_data"),
    // SO_RCVBUF does not bound a ring.
    ("udp_many", "full"),
    ("udp_many", "full_count"),
    ("udp_many", "full_and_others"),
    // Whom of a group the kernel would choose now is seen after some time.
    ("udp_bind", "member_leaves"),
    ("udp_bind", "member_joins"),
    // A send, or a receive, is no edge of room.
    ("udp_ready", "by_edge_own"),
    ("udp_ready", "by_edge_both"),
    // What lies in a ring can be read by nobody but the process, and by no splice.
    ("udp_plain", "spliced"),
    ("udp_share", "child_takes"),
    ("udp_share", "child_keeps"),
    ("udp_share", "executed"),
    ("udp_share", "executed_alone"),
    ("udp_share", "spawned"),
    ("udp_share", "vforked"),
    ("udp_share", "passed"),
    ("udp_share", "passed_away"),
    // A receive ends when another thread closes the socket.
    ("udp_share", "closed_meanwhile"),
    // No error is left behind by a recvmmsg that got something.
    ("udp_bad", "some_bad"),
];

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Which program holds it.
    pub program: String,
    /// Its name there.
    pub name: String,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.program, self.name)
    }
}

/// What came of a case.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    /// The roles ended as they should on kernel TCP.
    pub oracle_is_good: bool,
    /// The other side showed the same.
    pub same: bool,
    /// It did, or is known not to ([`Known`]).
    pub as_known: bool,
    /// Bytes through rings, both directions, both ends counted once.
    pub ring_bytes: u64,
}

/// All programs of cases, with glibc or with musl.
pub fn programs(musl: bool) -> Vec<String> {
    let end = if musl { MUSL_END } else { "" };
    let named = PROGRAMS.iter().map(|name| format!("{name}{end}"));
    named.collect()
}

/// The cases of a program, in its own order.
pub fn cases(program: &str) -> Result<Vec<Case>> {
    let listing = std::process::Command::new(Bed::program(program)).output()?;
    let names = String::from_utf8(listing.stdout)?;
    ensure!(!names.is_empty(), "{program} lists no case");
    let case = |name: &str| Case {
        program: program.to_owned(),
        name: name.to_owned(),
    };
    Ok(names.lines().map(case).collect())
}

/// Cases of which a role knows where the other one is, beside what `place` of `try.c` says: on loopback, in
/// its own network, in an address of IPv4, or by an environment that it clears.
/// Of datagrams, also those that are refused more often than a kernel tells of to other hosts (icmp_ratelimit).
const NEAR: [(&str, &str); 15] = [
    ("connect", "mapped_at_the_client"),
    ("connect", "to_itself"),
    ("connect", "names_match"),
    ("connect", "bound_before_connect"),
    ("listen", "backlog_full"),
    ("listen", "send_time_out_of_connect"),
    ("listen", "reuseport_workers"),
    ("fds", "wiped"),
    ("eintr", "connect_ends"),
    ("eintr", "connect_restarts"),
    ("udp_peer", "one_sided"),
    ("udp_share", "copies"),
    ("udp_share", "put_over"),
    ("udp_share", "executed_alone"),
    ("udp_share", "passed_away"),
];
/// Programs of which that is true for all cases.
const NEAR_PROGRAMS: [&str; 4] = ["udp_refused", "udp_bind", "udp_control", "udp_family"];

/// Whether a case is played without rings for datagrams.
pub(crate) fn is_without_rings(program: &str, case: &str) -> bool {
    WITHOUT_RINGS.contains(&(program.trim_end_matches(MUSL_END), case))
}

impl Case {
    /// Whether its roles may lie in two domains.
    pub(crate) fn may_be_far(&self) -> bool {
        let program = self.program.trim_end_matches(MUSL_END);
        !NEAR_PROGRAMS.contains(&program) && !NEAR.contains(&(program, self.name.as_str()))
    }
}

/// Plays all cases of a program: a test of its own.
pub fn hold(program: &str) -> Result<()> {
    hold_some(program, &[""])
}

/// Plays those cases of a program whose names begin with one of these.
pub fn hold_some(program: &str, begins: &[&str]) -> Result<()> {
    hold_in(Bed::start()?, program, begins)
}

/// Plays all cases of a program that can be played between two domains.
pub fn hold_between(family: Between, program: &str) -> Result<()> {
    match Bed::between(family)? {
        Some(bed) => hold_in(bed, program, &[""]),
        None => Ok(()),
    }
}

/// Plays the cases of a program under a stack of its own, but for those whose names begin with one of these.
pub fn hold_under_a_stack(program: &str, left_out: &[&str]) -> Result<()> {
    let Some(mut bed) = Bed::with_stack()? else {
        return Ok(());
    };
    let mut cases = bed.cases(program)?;
    cases.retain(|case| !left_out.iter().any(|begin| case.name.starts_with(begin)));
    for case in cases {
        bed.play(&case)?;
    }
    bed.finish()
}

fn hold_in(mut bed: Bed, program: &str, begins: &[&str]) -> Result<()> {
    let mut ring_bytes = 0;
    let wanted = |case: &Case| begins.iter().any(|begin| case.name.starts_with(begin));
    for case in bed.cases(program)?.into_iter().filter(wanted) {
        ring_bytes += bed.play(&case)?.ring_bytes;
    }
    bed.finish()?;
    let by_rings = !program.starts_with(DATAGRAMS_BEGIN);
    ensure!(
        !by_rings || ring_bytes > 0,
        "{program}: nothing went through rings"
    );
    Ok(())
}

/// Where the cases stand that differ under a stack of the program's own, with their reasons: nowhere else.
const STACK_SOCKETS: &str = include_str!("../../../docs/stack-sockets.md");
const DIFFER: &str = "## Cases that differ";
/// What a row begins with whose cases differ at times.
const AT_TIMES: &str = "| at times: ";

/// Cases that are known to differ from the oracle: one that newly does fails, and one that no longer does fails as well.
#[derive(Clone, Debug, Default)]
pub struct Known {
    differ: Vec<String>,
    may_differ: Vec<String>,
}

impl Known {
    /// Of a stack: the cases in backticks behind each reason of its table.
    pub fn of_stacks() -> Known {
        let mut known = Known::default();
        let section = STACK_SOCKETS.split_once(DIFFER).map_or("", |both| both.1);
        let section = section.split("\n## ").next().unwrap_or_default();
        for row in section.lines().filter(|line| line.starts_with('|')) {
            let cases = match row.starts_with(AT_TIMES) {
                true => &mut known.may_differ,
                false => &mut known.differ,
            };
            let column = row.split('|').nth(2).unwrap_or_default();
            cases.extend(column.split('`').skip(1).step_by(2).map(str::to_owned));
        }
        known
    }

    pub(crate) fn differs(&self, label: &str) -> bool {
        self.differ.iter().any(|known| known == label)
    }

    pub(crate) fn may_differ(&self, label: &str) -> bool {
        self.may_differ.iter().any(|known| known == label)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &String> {
        self.differ.iter().chain(&self.may_differ)
    }
}

/// With what the kernel's sockets are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// Rings, in one network.
    FastPath,
    /// Rings between two domains.
    Between(Between),
    /// A stack of the program's own.
    Stack,
}

/// How often all cases were played, and with what result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Same on all backends.
    pub passed: usize,
    /// The rest.
    pub failed: usize,
}

/// Plays what `wanted` picks, in one network or between two domains, and prints the table, a row as
/// soon as it is known.
pub fn table(
    programs: &[String],
    against: Against,
    wanted: impl Fn(&Case) -> bool,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let bed = match against {
        Against::FastPath => Some(Bed::start()?),
        Against::Between(family) => Bed::between(family)?,
        Against::Stack => Bed::with_stack()?,
    };
    let Some(mut bed) = bed else {
        return Ok(tally);
    };
    println!(
        "{:<34} {:<8} {:<10} {:>12}",
        "case", "kernel", "fast path", "ring bytes"
    );
    for program in programs {
        for case in bed.cases(program)?.into_iter().filter(&wanted) {
            let played = bed.play(&case)?;
            println!(
                "{:<34} {:<8} {:<10} {:>12}",
                case.to_string(),
                if played.oracle_is_good {
                    "ok"
                } else {
                    "FAILED"
                },
                match (played.same, played.as_known) {
                    (true, true) => "same",
                    (false, true) => "known",
                    (true, false) => "SAME",
                    (false, false) => "DIFFERS",
                },
                played.ring_bytes
            );
            match played.as_known {
                true => tally.passed += 1,
                false => tally.failed += 1,
            }
        }
    }
    tally.close(bed.finish());
    Ok(tally)
}

impl Tally {
    /// The bed is gone; what it left behind, or could not do, fails the run.
    fn close(&mut self, finished: Result<()>) {
        if let Err(error) = finished {
            println!("{error}");
            self.failed = self.failed.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_fails_the_run() {
        let mut tally = Tally::default();
        tally.close(Ok(()));
        assert_eq!(tally.failed, 0);
        tally.close(Err(anyhow::anyhow!("left behind: a process")));
        assert_eq!(tally.failed, 1);
    }
}
