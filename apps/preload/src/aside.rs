//! Two programs that talk all the time and share a CPU while they could have one each: the
//! scheduler leaves them there. Each wakes the other where it runs itself, none is ever
//! waiting when CPUs are balanced, and as soon as more pairs than CPUs are at work no CPU is idle
//! either. A message then costs two changes of task where a spin would cost none.
//!
//! So the thread that finds itself in this state steps aside: it forbids itself the CPU, which
//! moves it at once, and allows it again (sched_setaffinity(2)). Only one of the two
//! moves: the other sleeps meanwhile, and finds its peer elsewhere when it wakes. Pairs that
//! are spread like this run in turns of the scheduler's slices, since who spins in vain for a peer that does
//! not run sleeps, and gives its CPU to a pair whose other half does.
//!
//! A program and its stack are left together: the stack is put where its program runs (`apps/fordwayd/src/groups.rs`).
//!
//! Limits: not in a process that ran under a seccomp filter when it started (the calls may be
//! forbidden). A change of the thread's affinity by somebody else in these few
//! microseconds is lost.

use crate::process::PROCESS;
use crate::sys::{self, sys};
use crate::thread::Shield;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Sleeps beside the peer, in a row and each short, before one of the two moves. They take
/// about a millisecond, so that a pair that is put together again at once loses little by moving.
const SLEEPS_MIN: u32 = 256;
/// Words of a set of CPUs: 8,192 of them, the most that Linux can be built for (x86: NR_CPUS).
const SET_WORDS: usize = 128;

type Set = [u64; SET_WORDS];

/// Of the process: whether threads may step aside.
pub struct Aside {
    /// Whether the scheduler's calls are certain to be allowed.
    pub may_call: AtomicBool,
    sleeps: AtomicU32,
}

impl Aside {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            may_call: AtomicBool::new(false),
            sleeps: AtomicU32::new(0),
        }
    }
}

/// To be called when the process starts: what its parent has forbidden it, it cannot try.
pub fn set_up() {
    let mode = sys!(SYS_prctl, libc::PR_GET_SECCOMP);
    PROCESS
        .aside
        .may_call
        .store(mode == Ok(0), Ordering::Relaxed);
}

/// Whether calls of the scheduler's that the program does not make itself are allowed.
pub fn may_call() -> bool {
    PROCESS.aside.may_call.load(Ordering::Relaxed)
}

/// A thread has slept beside its peer, on one CPU; `was_short`: for no longer than a spin may take.
pub fn slept_together(was_short: bool) {
    let before = PROCESS.aside.sleeps.load(Ordering::Relaxed);
    let after = match was_short {
        true => before.saturating_add(1),
        false => before / 2,
    };
    PROCESS.aside.sleeps.store(after, Ordering::Relaxed);
}

/// The calling thread is about to wait for a peer that was last seen on `peer_cpu`, and moves if
/// it is time. To be called before it shows the peer its CPU: who moved second would follow the first.
#[inline(always)]
pub fn step(peer_cpu: impl Fn() -> u32) {
    let sleeps = PROCESS.aside.sleeps.load(Ordering::Relaxed);
    if sleeps != 0 {
        step_behind(sleeps, peer_cpu());
    }
}

#[inline(never)]
fn step_behind(sleeps: u32, peer_cpu: u32) {
    let cpu = sys::current_cpu();
    if peer_cpu != cpu {
        PROCESS.aside.sleeps.store(0, Ordering::Relaxed);
    } else if sleeps >= SLEEPS_MIN {
        PROCESS.aside.sleeps.store(0, Ordering::Relaxed);
        if may_call() {
            move_away(cpu as usize);
        }
    }
}

/// Has the calling thread leave `cpu`, if it may use another.
#[cold]
fn move_away(cpu: usize) {
    // A handler that jumps would leave the thread without one of its CPUs.
    let _shield = Shield::new();
    let Some(allowed) = allowed() else { return };
    let mut others = allowed;
    match others.get_mut(cpu / 64) {
        Some(word) => *word &= !(1 << (cpu % 64)),
        None => return,
    }
    if others.iter().all(|word| *word == 0) || !allow(&others) {
        return;
    }
    // Who was allowed every CPU of its cpuset shall be so again when the cpuset grows: such a
    // thread has asked for none in particular (sched_setaffinity(2), cpuset(7)).
    if !allow(&[u64::MAX; SET_WORDS]) || self::allowed() != Some(allowed) {
        allow(&allowed);
    }
}

fn allowed() -> Option<Set> {
    let mut set = [0; SET_WORDS];
    sys!(SYS_sched_getaffinity, 0, size_of::<Set>(), set.as_mut_ptr()).ok()?;
    Some(set)
}

fn allow(set: &Set) -> bool {
    sys!(SYS_sched_setaffinity, 0, size_of::<Set>(), set.as_ptr()).is_ok()
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// Keeps the calling thread on the first CPU that it may use.
    pub fn stay_on_first() {
        let mut set = allowed().expect("the thread's CPUs");
        let mut is_found = false;
        for word in &mut set {
            let first = *word & word.wrapping_neg();
            *word = if is_found { 0 } else { first };
            is_found |= first != 0;
        }
        assert!(allow(&set));
    }
}
