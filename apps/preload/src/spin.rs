//! The spin before a sleep. It pays only if the peer answers from another CPU within what a
//! wake-up costs. Not at all if the peer was last seen on this CPU ([`aside`] may part them); less and less after
//! spins that did not pay; again now and then, to see whether times have changed. Longer
//! while sleeps end soon after they began: then a peer is at work on our request (redis on
//! 16 pipelines: 40 us), and the sleep would cost both sides more than the rest of the wait.
//! Longest if this thread has just woken its peer, and the like ended soon before: a CPU that
//! halted takes its time (a virtual one 70 us), and would take it once more for the answer.
//!
//! A long spin is for a CPU that nobody else wants. It begins as an ordinary one, and then gives way once
//! (sched_yield(2)): alone, it is back at once. If another thread has run meanwhile, the spin ends, and the next waits of the
//! process are without long ones.
//!
//! A wait may be for the kernel's as well (a listener, a client without rings): a spin asks the kernel now and then.
//! What the kernel has ends the spin, and counts as one that did not pay, as does a sleep that no peer ended: beside
//! a peer that is silent, a busy socket of the kernel's is waited for as without the library.
//!
//! What was learnt holds for one peer, that is for one [`Link`](link::Link) ([`Spins`]): a slow peer
//! says nothing of a fast one.

use crate::process::PROCESS;
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::thread;
use crate::{aside, config, link};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fordway_abi::shm::Endpoint;

/// Spins in a row that did not pay before spinning is given up.
const SPIN_FAILURES_MAX: u32 = 8;
/// One spin in so many is tried although spinning is given up. Odd: of two waits that take turns, each
/// is tried.
const SPIN_RETRY: u32 = 31;
/// A long spin is so many ordinary ones.
const LONG: u64 = 3;
/// So many is one for a peer that was woken.
const WAKING: u64 = 12;
/// Who is away for longer than this, in microseconds, has lent its CPU to another thread.
const LENT_US_MIN: u64 = 5;
/// So many waits then do without long spins. Giving way beside a program that computes costs a slice of the scheduler's (3 ms).
const CROWDED_WAITS: u32 = 64;
/// The kernel is first asked after this part of an ordinary spin, then each time twice as late: seldom enough to
/// keep what a ring's reader waits for it below a tenth of the spin.
const FIRST_ASKED: u64 = 8;
/// Bit of `spin_since`: the thread and its peer share a CPU.
const TOGETHER: u64 = 1;
/// Bit of `spin_since`: the thread has knocked for its peer.
const KNOCKED: u64 = 2;
/// Short sleeps in a row before long spins are tried, and twice that is the most that counts.
const SHORT_SLEEPS_MIN: u32 = 4;

/// What waits for one peer have shown. A lost update costs a spin, or a sleep.
#[derive(Debug, Default)]
pub struct Spins {
    /// Waits in a row in which no spin paid: those whose spin was in vain, and those without one.
    failures: AtomicU32,
    /// Sleeps in a row that ended so soon that a long spin would have spared them; half of them are
    /// forgotten with each that did not.
    short_sleeps: AtomicU32,
    /// The same of sleeps after the peer was woken.
    short_wakes: AtomicU32,
}

/// Of waits for nobody in particular: an epoll instance that has told of no connection yet.
static NOBODY: Spins = Spins::new();
/// Of receives by the kernel, on connections that may still get rings.
static KERNEL: Spins = Spins::new();

impl Spins {
    const fn new() -> Self {
        Self {
            failures: AtomicU32::new(0),
            short_sleeps: AtomicU32::new(0),
            short_wakes: AtomicU32::new(0),
        }
    }

    /// Another peer.
    pub fn forget(&self) {
        for number in [&self.failures, &self.short_sleeps, &self.short_wakes] {
            number.store(0, Ordering::Relaxed);
        }
    }

    /// Those of a link, by [`Thread::spin_link`](thread::Thread).
    fn of(link: u32) -> &'static Self {
        match link.checked_sub(1) {
            Some(index) => &link::at(index).spins,
            None => &NOBODY,
        }
    }

    /// How many ordinary spins the next one is; `None`: there is none.
    fn times(&self, knocked: bool) -> Option<u64> {
        let crowded = PROCESS.crowded.load(Ordering::Relaxed);
        if crowded != 0 {
            PROCESS.crowded.store(crowded - 1, Ordering::Relaxed);
            return self.ordinary();
        }
        if knocked && are_usual(&self.short_wakes) {
            return Some(WAKING);
        }
        if are_usual(&self.short_sleeps) {
            return Some(LONG);
        }
        self.ordinary()
    }

    /// The same, but that long ones are none: a short sleep speaks for one only if the peer can run meanwhile, and
    /// two guests may share a CPU without either knowing.
    fn ordinary(&self) -> Option<u64> {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures < SPIN_FAILURES_MAX {
            return Some(1);
        }
        let is_retried = (failures - SPIN_FAILURES_MAX).is_multiple_of(SPIN_RETRY);
        if !is_retried {
            self.fails();
        }
        is_retried.then_some(1)
    }

    fn pays(&self) {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures != 0 {
            let half = failures.min(SPIN_FAILURES_MAX) / 2;
            self.failures.store(half, Ordering::Relaxed);
        }
    }

    /// The kernel ended a wait, and no peer.
    fn was_kernels(&self, knocked: bool) {
        count(&self.short_sleeps, false);
        if knocked {
            count(&self.short_wakes, false);
        }
    }

    fn fails(&self) {
        let failures = self.failures.load(Ordering::Relaxed);
        // Beyond any count spinning is tried anew.
        self.failures
            .store(failures.wrapping_add(1), Ordering::Relaxed);
    }
}

/// Of the process: the clock that spins go by.
pub struct Clock {
    start_ticks: AtomicU64,
    start_ns: AtomicU64,
    /// Ticks of a microsecond, once they are measured.
    rate: AtomicU64,
}

impl Clock {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            start_ticks: AtomicU64::new(0),
            start_ns: AtomicU64::new(0),
            rate: AtomicU64::new(0),
        }
    }
}

/// Notes the time, so that ticks can be turned into microseconds later.
pub fn start_clock() {
    PROCESS
        .clock
        .start_ticks
        .store(sys::ticks(), Ordering::Relaxed);
    PROCESS
        .clock
        .start_ns
        .store(sys::now_ns(), Ordering::Relaxed);
}

/// How many ticks a microsecond has.
#[inline]
pub fn ticks_per_us() -> u64 {
    match PROCESS.clock.rate.load(Ordering::Relaxed) {
        0 => measure_rate(),
        rate => rate,
    }
}

#[cold]
fn measure_rate() -> u64 {
    let ticks = sys::ticks() - PROCESS.clock.start_ticks.load(Ordering::Relaxed);
    // Before a millisecond has passed the quotient is rough; any modern rate will do.
    if ticks < 10_000_000 {
        return 2500;
    }
    let elapsed_ns = (sys::now_ns() - PROCESS.clock.start_ns.load(Ordering::Relaxed)).max(1);
    let rate = ((ticks as u128 * 1000 / elapsed_ns as u128) as u64).max(100);
    PROCESS.clock.rate.store(rate, Ordering::Relaxed);
    rate
}

/// The two ends of a channel whose peer may end a wait.
#[derive(Clone, Copy)]
pub struct Peer {
    /// The link.
    pub link: u32,
    /// Our endpoint.
    pub own: *const Endpoint,
    /// The peer's.
    pub peer: *const Endpoint,
    /// A program's stack, or the program of one: the broker says whether they are on one CPU ([`aside`]).
    pub is_grouped: bool,
    /// How long the first look is put off, in quarters of a microsecond ([`crate::pace`]).
    pub pause: u32,
}

impl Peer {
    /// Of a connection with a channel.
    pub fn of(conn: &Conn) -> Self {
        Self {
            link: conn.link.load(Ordering::Relaxed),
            own: conn.own.load(Ordering::Relaxed),
            peer: conn.peer.load(Ordering::Relaxed),
            is_grouped: conn.is_unix() && conn.cuts_through.load(Ordering::Relaxed) == 0,
            pause: 0,
        }
    }

    /// Publishes our CPU; the peer's.
    fn exchange_cpus(self) -> u32 {
        // SAFETY: what was mapped for a channel stays so, be it with other memory ([`link`]); atomics.
        let (own, peer) = unsafe { (&(*self.own).wait.cpu, &(*self.peer).wait.cpu) };
        let peer_cpu = || link::cpu_by(self.link, peer);
        note(own, peer_cpu);
        peer_cpu()
    }
}

/// Where a spin looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// At what peers write.
    Rings,
    /// At what only the kernel knows: a system call. `false` where the wait is for rings alone.
    Kernel,
}

/// Looks again and again, for as long as that is likely to be cheaper than a
/// sleep. `peer`: the one that is most likely to end the wait. Returns when the clock was last
/// looked at before `ready`, in ticks. After `None` the caller sleeps, and says so when it wakes
/// ([`woke`]).
pub fn spin_for(peer: Option<Peer>, ready: impl FnMut(Look) -> bool) -> Option<u64> {
    let peer_cpu = peer.map_or(u32::MAX, Peer::exchange_cpus);
    let limit_us = u64::from(config::spin_us());
    let thread = thread::current();
    let (since, knocked) = (
        &thread.spin_since,
        thread.knocked.load(Ordering::Relaxed) != 0,
    );
    thread.knocked.store(0, Ordering::Relaxed);
    if limit_us == 0 {
        since.store(0, Ordering::Relaxed);
        return None;
    }
    if peer_cpu == sys::current_cpu() && peer_cpu != u32::MAX {
        let counts = peer.is_some_and(|peer| !peer.is_grouped);
        let now = if counts { sys::ticks() | TOGETHER } else { 0 };
        since.store(now, Ordering::Relaxed);
        return None;
    }
    let begun = sys::ticks() & !(TOGETHER | KNOCKED);
    since.store(begun | if knocked { KNOCKED } else { 0 }, Ordering::Relaxed);
    let link = peer.map_or(0, |peer| peer.link.wrapping_add(1));
    thread.spin_link.store(link, Ordering::Relaxed);
    let spins = Spins::of(link);
    let is_guest = peer.is_some_and(|peer| link::is_guests(peer.link));
    let times = match is_guest {
        true => spins.ordinary()?,
        false => spins.times(knocked)?,
    };
    let end = begun + times * limit_us * ticks_per_us();
    let pause = peer.map_or(0, |peer| u64::from(peer.pause));
    while pause != 0 && sys::ticks() < begun + pause * ticks_per_us() / 4 {
        core::hint::spin_loop();
    }
    look((spins, knocked), begun, end, ready)
}

/// The same of a receive by the kernel. Nobody knows the peer's CPU, and how long sleeps last says
/// nothing: on one CPU they are short, and no spin pays. Nor does one that finds bytes at once.
pub fn spin_for_kernel(mut ready: impl FnMut() -> bool) {
    let limit_us = u64::from(config::spin_us());
    if limit_us == 0 {
        return;
    }
    let Some(times) = KERNEL.times(false) else {
        return;
    };
    if ready() {
        return KERNEL.fails();
    }
    let begun = sys::ticks();
    let end = begun + times * limit_us * ticks_per_us();
    let rings = |what| what == Look::Rings && ready();
    look((&KERNEL, false), begun, end, rings);
}

/// Looks again and again from `begun` to `end`, and notes whether it has paid.
#[inline(always)]
fn look(
    (spins, knocked): (&Spins, bool),
    begun: u64,
    end: u64,
    mut ready: impl FnMut(Look) -> bool,
) -> Option<u64> {
    let mut now = begun;
    let ordinary = u64::from(config::spin_us()) * ticks_per_us();
    let mut after = ordinary / FIRST_ASKED;
    let mut lends_at = begun + ordinary;
    loop {
        for _ in 0..8 {
            if ready(Look::Rings) {
                spins.pays();
                return Some(now);
            }
            core::hint::spin_loop();
        }
        now = sys::ticks();
        if now >= end {
            spins.fails();
            return None;
        }
        // The program's handler waits.
        if thread::current().has_deferred() {
            return None;
        }
        if now >= lends_at {
            lends_at = u64::MAX;
            if let Some(now) = lend() {
                PROCESS.crowded.store(CROWDED_WAITS, Ordering::Relaxed);
                if ready(Look::Rings) {
                    spins.pays();
                    return Some(now);
                }
                spins.fails();
                return None;
            }
        }
        if now - begun >= after {
            after *= 2;
            if ready(Look::Kernel) {
                spins.fails();
                spins.was_kernels(knocked);
                return Some(now);
            }
        }
    }
}

/// Gives way to other threads of this CPU. If one has run: the time, in ticks.
#[cold]
fn lend() -> Option<u64> {
    if !aside::may_call() {
        return None;
    }
    let begun = sys::ticks();
    // Linux knows no error of this call.
    let _ = sys!(SYS_sched_yield);
    let now = sys::ticks();
    (now - begun > LENT_US_MIN * ticks_per_us()).then_some(now)
}

/// The calling thread has slept, after a spin that was in vain or not made at all. `by_peer`: a
/// doorbell ended the sleep.
pub fn woke(by_peer: bool) {
    let thread = thread::current();
    let since = thread.spin_since.swap(0, Ordering::Relaxed);
    if since == 0 {
        return;
    }
    let waited_ticks = sys::ticks() - since;
    // The wake-up itself took about an ordinary spin's time.
    let limit = |times: u64| (times + 1) * u64::from(config::spin_us()) * ticks_per_us();
    let was_short = by_peer && waited_ticks <= limit(LONG);
    if since & TOGETHER != 0 {
        return aside::slept_together(was_short);
    }
    let spins = Spins::of(thread.spin_link.load(Ordering::Relaxed));
    let knocked = since & KNOCKED != 0;
    if !by_peer {
        return spins.was_kernels(knocked);
    }
    count(&spins.short_sleeps, was_short);
    if knocked {
        count(&spins.short_wakes, waited_ticks <= limit(WAKING));
    }
}

fn count(sleeps: &AtomicU32, was_short: bool) {
    let before = sleeps.load(Ordering::Relaxed);
    let after = match was_short {
        true => (before + 1).min(2 * SHORT_SLEEPS_MIN),
        false => before / 2,
    };
    sleeps.store(after, Ordering::Relaxed);
}

fn are_usual(sleeps: &AtomicU32) -> bool {
    sleeps.load(Ordering::Relaxed) >= SHORT_SLEEPS_MIN
}

/// Publishes on which CPU this side runs, if that has changed; before that, it may step aside.
#[inline(always)]
pub fn note_cpu(conn: &Conn) {
    note(&conn.own().wait.cpu, || conn.peer_cpu());
}

#[inline(always)]
fn note(shown: &AtomicU32, peer_cpu: impl Fn() -> u32) {
    aside::step(peer_cpu);
    let cpu = sys::current_cpu();
    if shown.load(Ordering::Relaxed) != cpu {
        shown.store(cpu, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_that_do_not_pay_are_given_up_and_tried_now_and_then() {
        let spins = Spins::new();
        for _ in 0..SPIN_FAILURES_MAX {
            assert_eq!(spins.times(false), Some(1));
            spins.fails();
        }
        // Those that are made are in vain, too.
        let made = (0..10 * SPIN_RETRY).filter(|_| {
            let is_made = spins.times(false).is_some();
            if is_made {
                spins.fails();
            }
            is_made
        });
        assert_eq!(made.count(), 10);
        spins.pays();
        assert_eq!(spins.times(false), Some(1));
    }

    #[test]
    fn what_the_kernel_has_ends_a_spin_and_speaks_against_the_next() {
        let _turn = crate::testing::tables();
        PROCESS.crowded.store(0, Ordering::Relaxed);
        // Other tests want the CPU.
        PROCESS.aside.may_call.store(false, Ordering::Relaxed);
        let spins = Spins::new();
        for _ in 0..2 * SHORT_SLEEPS_MIN {
            count(&spins.short_sleeps, true);
            count(&spins.short_wakes, true);
        }
        assert_eq!(spins.times(true), Some(WAKING));
        for _ in 0..=SPIN_FAILURES_MAX {
            let mut asked = 0;
            let begun = sys::ticks();
            let found = look((&spins, true), begun, u64::MAX, |what| {
                asked += u32::from(what == Look::Kernel);
                asked == 2
            });
            assert!(found.is_some_and(|at| at > begun));
        }
        assert_eq!(spins.times(true), None);
        // A sleep that the kernel ended was no peer's, however short.
        let thread = thread::current();
        for _ in 0..2 * SHORT_SLEEPS_MIN {
            thread
                .spin_since
                .store(sys::ticks() & !(TOGETHER | KNOCKED), Ordering::Relaxed);
            thread.spin_link.store(0, Ordering::Relaxed);
            woke(false);
        }
        assert!(!are_usual(&NOBODY.short_sleeps));
    }

    #[test]
    fn a_long_spin_ends_where_another_thread_wants_the_cpu() {
        let _turn = crate::testing::tables();
        let spins = Spins::new();
        let [runs, over] = [AtomicU32::new(0), AtomicU32::new(0)];
        let asked_max = 12;
        PROCESS.aside.may_call.store(true, Ordering::Relaxed);
        // A spin that is not ended asks the kernel 12 times: 2^12 eighths of an ordinary one are 10 ms.
        let spin = || {
            let mut asked = 0;
            look((&spins, false), sys::ticks(), u64::MAX, |what| {
                asked += u32::from(what == Look::Kernel);
                asked == asked_max
            })
        };
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                aside::testing::stay_on_first();
                while runs.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                // Whether the other thread is due is the scheduler's word.
                let ended = (0..200).any(|_| spin().is_none());
                over.store(1, Ordering::Relaxed);
                ended
            });
            scope.spawn(|| {
                aside::testing::stay_on_first();
                runs.store(1, Ordering::Relaxed);
                while over.load(Ordering::Relaxed) == 0 {
                    core::hint::spin_loop();
                }
            });
            assert!(looker.join().expect("the looker"));
        });
        for _ in 0..SHORT_SLEEPS_MIN {
            count(&spins.short_wakes, true);
        }
        // Tests beside this one wait, too.
        let is_ordinary = |_| {
            PROCESS.crowded.store(CROWDED_WAITS, Ordering::Relaxed);
            spins.times(true) != Some(WAKING)
        };
        assert!((0..100).any(is_ordinary));
        let is_long = |_| {
            PROCESS.crowded.store(0, Ordering::Relaxed);
            spins.times(true) == Some(WAKING)
        };
        assert!((0..100).any(is_long));
    }

    #[test]
    fn a_peer_is_judged_by_itself() {
        let _turn = crate::testing::tables();
        PROCESS.crowded.store(0, Ordering::Relaxed);
        let [slow, fast] = [2, 3].map(Spins::of);
        for _ in 0..SPIN_FAILURES_MAX {
            count(&fast.short_sleeps, true);
            count(&slow.short_sleeps, false);
            slow.fails();
        }
        slow.fails();
        assert_eq!(slow.times(true), None);
        assert_eq!(fast.times(true), Some(LONG));
        assert_eq!(fast.ordinary(), Some(1), "for another guest's process");
        slow.forget();
        fast.forget();
    }
}
