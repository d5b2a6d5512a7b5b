//! What /proc says of processes: trees, CPU time, listening sockets, wake-ups.
//!
//! A program under test is a tree: the launcher, the program, its workers. The
//! tree's CPU time is the sum over its living members of their own time and that
//! of the children they have reaped (proc(5), `stat` fields 14 to 17), so nothing
//! is lost when a worker ends. The root must be a child of ours that is not
//! reaped yet: a zombie still has its times, and its number cannot be reused.
//! Processes that left the tree (daemons) come to us as orphans, because the lab
//! is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER).
//!
//! Every look is a snapshot; a process may end between two reads, which then say
//! nothing of it. All answers are `Option`s or leave such processes out.

use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process at one moment.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// First 15 bytes of the program's name.
    pub name: String,
    /// `R`, `S`, `Z`, ... as in ps(1).
    pub state: char,
    /// User and system time, its own and its reaped children's.
    pub cpu_ticks: u64,
    /// When it started, in ticks since boot: tells a reused number apart.
    pub start_ticks: u64,
}

/// One process, if it is there.
pub fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain blanks and parentheses; the last parenthesis ends it.
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Field 3 of proc(5) is fields[0].
    Some(Stat {
        pid,
        parent: number(1)? as u32,
        name,
        state: fields.first()?.chars().next()?,
        cpu_ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        start_ticks: number(19)?,
    })
}

/// Every process of the machine that we may see.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .collect()
}

/// The root and all its descendants, parents before children.
pub fn tree(root: u32) -> Vec<Stat> {
    let mut children: BTreeMap<u32, Vec<Stat>> = BTreeMap::new();
    let mut members = Vec::new();
    for process in all() {
        if process.pid == root {
            members.push(process);
        } else {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut next = 0;
    while next < members.len() {
        if let Some(found) = children.remove(&members[next].pid) {
            members.extend(found);
        }
        next += 1;
    }
    members
}

/// User and system time of a tree, in seconds.
pub fn tree_cpu_s(root: u32) -> f64 {
    let ticks: u64 = tree(root).iter().map(|process| process.cpu_ticks).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Whether a process that was seen earlier still runs (a zombie does not).
pub fn is_alive(process: &Stat) -> bool {
    stat(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks && now.state != 'Z')
}

/// Sends a signal to a process, unless its number now belongs to another one.
pub fn signal(process: &Stat, signal: Signal) {
    let same = stat(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks);
    if let (true, Some(pid)) = (same, Pid::from_raw(process.pid as i32)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Whether the process holds a TCP socket that listens on this port.
pub fn listens(pid: u32, port: u16) -> bool {
    holds(pid, ["tcp", "tcp6"], port, Some("0A"))
}

/// Whether the process holds a UDP socket that is bound to this port.
pub fn is_bound(pid: u32, port: u16) -> bool {
    holds(pid, ["udp", "udp6"], port, None)
}

/// Whether the process holds a socket of these tables of /proc/PID/net with this local port, and in
/// this state, if one is given.
fn holds(pid: u32, tables: [&str; 2], port: u16, state: Option<&str>) -> bool {
    let mut inodes = BTreeSet::new();
    for table in tables {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/{table}")) else {
            continue;
        };
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // proc_net_tcp: 1 local address, 3 state (0A is LISTEN), 9 inode; udp has the same fields.
            let local_port = fields
                .get(1)
                .and_then(|address| address.rsplit_once(':'))
                .and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            let in_state = state.is_none_or(|state| fields.get(3) == Some(&state));
            if local_port == Some(port) && in_state {
                inodes.extend(fields.get(9).map(|inode| format!("socket:[{inode}]")));
            }
        }
    }
    !inodes.is_empty()
        && descriptors(pid)
            .iter()
            .any(|target| inodes.contains(target))
}

/// What each open descriptor of a process points to (`socket:[1]`, `/memfd:...`, a path).
pub fn descriptors(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// How often the threads of a process went to sleep of their own will, so far.
/// An idle process that is woken for nothing counts up.
pub fn sleeps(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter_map(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        })
        .sum()
}

/// Inode of the network namespace of a process.
pub fn network_namespace(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// Where something is mounted in our own mount namespace, in order of their making.
pub fn mount_points() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_itself_and_its_listener() {
        let me = std::process::id();
        assert!(tree(me).iter().any(|process| process.pid == me));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(me, port));
        drop(listener);
        assert!(!listens(me, port));
        assert!(network_namespace(me).is_some());
    }

    #[test]
    fn counts_a_childs_time_in_the_tree() {
        let mut child = std::process::Command::new("sh")
            .args([
                "-c",
                "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); read x",
            ])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while tree_cpu_s(child.id()) < 0.05 {
            assert!(std::time::Instant::now() < until, "no CPU time was seen");
            std::thread::yield_now();
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
