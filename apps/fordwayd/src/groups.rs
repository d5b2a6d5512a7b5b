//! A stack and its driver are put on the CPU where their program runs: they are *grouped*.
//!
//! The scheduler wakes each where there is room, and parts what belongs together: a request then goes over two or three CPUs, a
//! frame at a time. On one CPU frames come in batches (docs/stack.md). The program runs where it likes, and its stack follows. One that
//! sends much in large trains ([`BULK_BYTES_PER_S`]) has its batches anyway, and work for more than a CPU: it is left alone.
//!
//! ```text
//! any CPU ──(at work, and one thread has most of the program's time)──► that thread's CPU ──(it runs elsewhere)──► there
//!    ▲──────────────────(at rest for a while, sends much, or no thread has most)──────────┘
//! ```
//! Who has used how much time, and where it ran last, is read from /proc at each look ([`LOOK_NS`]). Use before the last look counts half as much,
//! because the kernel tells time in ticks of 10 ms. While no stack is at work or grouped the looks are seldom ([`IDLE_LOOK_NS`]) and at the stacks alone.
//! Without stacks there are none.
//!
//! A broker that finds a stack of an earlier one on a single CPU takes that for the earlier one's choice, and begins anew.
//!
//! Limits: a stack that was given CPUs (`run --cpu`), or whose CPUs somebody else has changed meanwhile, is left alone. Each look
//! is at [`THREADS_MAX`] threads, and begins with another stack. While stacks are heard, each of which is to say that it has new rules, none is grouped; nor when
//! the broker has ended.

use crate::broker::Broker;
use fordway_platform::process::{self, Use};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;

const LOOK_NS: u64 = 100_000_000;
const IDLE_LOOK_NS: u64 = 500_000_000;
/// A stack and its driver that have used so much, as above, are at work: a fifth of a CPU, by looks of [`LOOK_NS`].
const AT_WORK_TICKS: f32 = 4.0;
/// So long a stack stays where it was put without work: work comes in bursts.
const REST_NS: u64 = 2_000_000_000;
/// What stack and driver write by system calls: frames, and what a program without rings gets.
const BULK_BYTES_PER_S: u64 = 200_000_000;
/// Of all programs, in one look.
const THREADS_MAX: usize = 256;

/// A stack whose CPUs are the broker's to choose.
pub(crate) struct Groupable {
    pub(crate) id: u32,
    /// Of its programs.
    pub(crate) netns_cookie: u64,
    pub(crate) pids: Vec<i32>,
}

/// What looks have shown.
#[derive(Default)]
pub(crate) struct Groups {
    look_at_ns: u64,
    looked_at_ns: u64,
    looks: usize,
    threads: Weights,
    places: BTreeMap<u32, Place>,
}

/// Of a stack.
#[derive(Clone, Copy, Default)]
struct Place {
    /// That it was put on.
    cpu: Option<usize>,
    /// When it was at work last.
    at_work_ns: u64,
    written_bytes: u64,
}

/// What all stacks of a look share.
struct Look {
    any: CpuSet,
    now_ns: u64,
    /// From the look before.
    since_ns: u64,
    threads_left: usize,
}

/// How much each thread has used lately, in ticks.
#[derive(Default)]
struct Weights(BTreeMap<i32, Weight>);

#[derive(Clone, Copy)]
struct Weight {
    total_ticks: u64,
    lately: f32,
    is_new: bool,
}

impl Weights {
    fn add(&mut self, thread: i32, used: &Use) -> f32 {
        let new = Weight {
            total_ticks: used.ticks,
            lately: 0.0,
            is_new: true,
        };
        let weight = self.0.entry(thread).or_insert(new);
        // A number that another thread has by now begins at less.
        let more = used.ticks.saturating_sub(weight.total_ticks);
        *weight = Weight {
            total_ticks: used.ticks,
            lately: weight.lately / 2.0 + more as f32,
            is_new: true,
        };
        weight.lately
    }

    /// Those that were not added since the last time are gone.
    fn forget_gone(&mut self) {
        self.0
            .retain(|_, weight| std::mem::take(&mut weight.is_new));
    }
}

/// The CPU of a stack that is at work: `lately` of each thread of its programs, with the CPU where it ran.
fn chosen(threads: &[(f32, usize)], now: Option<usize>) -> Option<usize> {
    let all: f32 = threads.iter().map(|(lately, _)| lately).sum();
    let most = threads.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    match most {
        Some((lately, cpu)) if *lately >= 1.0 => (lately * 2.0 > all).then_some(*cpu),
        // None, or it uses less than a tick.
        _ => now,
    }
}

fn set_of(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// Changes the CPUs of a part, if nobody else has. It may be gone, or its cpuset may be another: then it stays as it is.
fn change(pid: i32, is_ours: impl Fn(&CpuSet) -> bool, after: CpuSet) {
    let pid = Pid::from_raw(pid);
    if sched_getaffinity(pid).is_ok_and(|now| now != after && is_ours(&now)) {
        let _ = sched_setaffinity(pid, &after);
    }
}

impl Broker {
    /// How long the loop may sleep, in nanoseconds, if it is not as long as it likes.
    pub(crate) fn groups_patience_ns(&self) -> Option<u64> {
        let due = self.groups.look_at_ns;
        let may_be = !self.stacks.is_empty() && !self.loads.is_heard();
        may_be.then(|| due.saturating_sub(self.now_ns()))
    }

    /// All may run anywhere, until the next look.
    pub(crate) fn free_groups(&mut self) {
        let Ok(any) = sched_getaffinity(None) else {
            return;
        };
        for stack in self.stacks.groupable(&self.parts) {
            let place = self.groups.places.get_mut(&stack.id);
            let Some(cpu) = place.and_then(|place| place.cpu.take()) else {
                continue;
            };
            let pids = stack.pids.iter();
            pids.for_each(|pid| change(*pid, |now| *now == set_of(cpu), any));
        }
    }

    /// Puts each stack where its program runs.
    pub(crate) fn look_at_groups(&mut self) {
        if self.groups_patience_ns() != Some(0) {
            return;
        }
        let now_ns = self.now_ns();
        self.groups.look_at_ns = now_ns + IDLE_LOOK_NS;
        // What a part was started with. Of more CPUs than a set has the kernel tells nothing.
        let Ok(any) = sched_getaffinity(None) else {
            return;
        };
        let mut stacks: Vec<Groupable> = self.stacks.groupable(&self.parts).collect();
        let groups = &mut self.groups;
        groups.looks = groups.looks.wrapping_add(1);
        let first = groups.looks % stacks.len().max(1);
        stacks.rotate_left(first);
        let mut look = Look {
            any,
            now_ns,
            since_ns: now_ns - std::mem::replace(&mut groups.looked_at_ns, now_ns),
            threads_left: THREADS_MAX,
        };
        let mut is_idle = true;
        for stack in &stacks {
            is_idle &= self.look_at_stack(stack, &mut look);
        }
        let groups = &mut self.groups;
        groups.threads.forget_gone();
        groups
            .places
            .retain(|id, _| stacks.iter().any(|stack| stack.id == *id));
        let pause = if is_idle { IDLE_LOOK_NS } else { LOOK_NS };
        self.groups.look_at_ns = self.now_ns() + pause;
    }

    /// Puts one stack where its program runs, or lets it run anywhere; whether it is neither at work nor grouped.
    fn look_at_stack(&mut self, stack: &Groupable, look: &mut Look) -> bool {
        let threads = &mut self.groups.threads;
        let used = stack.pids.iter().filter_map(|pid| {
            let used = process::thread_use(*pid, *pid)?;
            Some(threads.add(*pid, &used))
        });
        let is_at_work = used.sum::<f32>() >= AT_WORK_TICKS;
        let threads = match is_at_work {
            true => self.threads_of_programs(stack, look.threads_left),
            false => Vec::new(),
        };
        look.threads_left -= threads.len();
        let written = stack.pids.iter().map(|pid| process::written_bytes(*pid));
        let written_bytes: u64 = written.sum();
        let known = self.groups.places.get(&stack.id).copied();
        let before = known.unwrap_or(Place {
            written_bytes,
            ..Place::default()
        });
        let sent = u128::from(written_bytes.saturating_sub(before.written_bytes));
        let is_bulk =
            sent * 1_000_000_000 > u128::from(BULK_BYTES_PER_S) * u128::from(look.since_ns);
        let any = look.any;
        let after = match is_at_work {
            true if is_bulk => None,
            true => chosen(&threads, before.cpu)
                .filter(|cpu| *cpu < CpuSet::MAX_CPU && any.is_set(*cpu)),
            false => (before.cpu).filter(|_| look.now_ns - before.at_work_ns < REST_NS),
        };
        let set = |cpu: Option<usize>| cpu.map_or(any, set_of);
        for pid in &stack.pids {
            let was_earlier_brokers = |now: &CpuSet| known.is_none() && now.count() == 1;
            // A part that was started again has any CPU.
            let is_ours =
                |now: &CpuSet| *now == set(before.cpu) || *now == any || was_earlier_brokers(now);
            change(*pid, is_ours, set(after));
        }
        let place = Place {
            cpu: after,
            at_work_ns: if is_at_work {
                look.now_ns
            } else {
                before.at_work_ns
            },
            written_bytes,
        };
        self.groups.places.insert(stack.id, place);
        !is_at_work && after.is_none()
    }

    /// The threads of the programs that a stack serves, at most so many: how much each has used lately, and the CPU where it ran.
    fn threads_of_programs(&mut self, stack: &Groupable, most: usize) -> Vec<(f32, usize)> {
        let programs = self.connections.values();
        let programs = programs.map(|connection| &connection.peer);
        let programs = programs.filter(|peer| {
            peer.netns_cookie == stack.netns_cookie && !stack.pids.contains(&peer.pid)
        });
        let threads = programs.flat_map(|peer| {
            let threads = process::threads(peer.pid);
            threads.map(move |thread| (peer.pid, thread))
        });
        let weights = &mut self.groups.threads;
        let used = threads.take(most).filter_map(|(pid, thread)| {
            let used = process::thread_use(pid, thread)?;
            Some((weights.add(thread, &used), used.cpu))
        });
        used.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_follows_the_thread_that_works_most() {
        assert_eq!(chosen(&[(2.0, 1), (1.0, 0)], None), Some(1));
        assert_eq!(chosen(&[(2.0, 1), (2.0, 0)], Some(1)), None);
        // Too little to be seen: where it was.
        assert_eq!(chosen(&[(0.5, 1)], Some(0)), Some(0));
        assert_eq!(chosen(&[], None), None);
    }

    #[test]
    fn use_fades_and_the_gone_are_forgotten() {
        let mut weights = Weights::default();
        let used = |ticks| Use { ticks, cpu: 0 };
        assert_eq!(weights.add(7, &used(100)), 0.0);
        assert_eq!(weights.add(7, &used(104)), 4.0);
        assert_eq!(weights.add(7, &used(105)), 3.0);
        // Another thread of the same number.
        assert_eq!(weights.add(7, &used(1)), 1.5);
        weights.forget_gone();
        weights.forget_gone();
        assert_eq!(weights.add(7, &used(50)), 0.0);
    }
}
