//! What the shim knows of the calling thread, and the moments in which no handler may run.
//!
//! # Held
//! A signal handler may use the very connection whose call it interrupted. It would
//! find the connection's lock taken by the frame below it, which cannot go on before
//! the handler has returned. So while a thread holds a lock (or a [`Shield`]), `held` is
//! not 0, and [`crate::signals`] lets no handler of the program run: the signal is
//! queued to the thread again and all others are blocked; the last [`leave`] gives the
//! thread its signals back, and the handler runs there. Nobody pays for this but a
//! thread that is interrupted within those few instructions.
//!
//! # Never coming back
//! A thread that sleeps may be cancelled, and a handler may jump out of a sleep
//! (siglongjmp). What such a sleep or call had taken is given back by a routine that libc calls
//! in both cases ([`Guard`]). musl does so for a cancelled thread only; with it, the library
//! stands in front of the jumps as well ([`before_jump`]). A thread that may be cancelled at any instruction
//! (PTHREAD_CANCEL_ASYNCHRONOUS) may not while it holds something.

use crate::sys::{self, sys};
use crate::{libcs, real};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Bytes of [`Thread`], for the assembler.
const BYTES: usize = if cfg!(debug_assertions) { 56 } else { 48 };

/// One for each thread, in the program's static TLS block.
#[repr(C)]
pub struct Thread {
    /// Locks and shields that it holds, [`DEFERRED`] and [`ANY_TIME`]. Changed by one
    /// instruction each time: handlers run in between.
    held: AtomicU32,
    /// The doorbell behind which it is about to sleep, plus one.
    pub door: AtomicU32,
    /// Handlers that have run, in the low half; in the high half those that end a blocking call.
    pub counts: AtomicU64,
    /// Its signal mask, while signals wait.
    mask: AtomicU64,
    /// When it began to wait, in ticks; 0: not known ([`crate::spin`]).
    pub spin_since: AtomicU64,
    /// Whether it has knocked for a sleeping peer since its last wait.
    pub knocked: AtomicU32,
    /// Link of the peer for which it waits, plus one; 0: for none in particular.
    pub spin_link: AtomicU32,
    /// Its innermost [`guarded`] frame, where libc leaves those that a jump ends to us.
    guards: AtomicPtr<Guard>,
    /// Ranks of the locks that it holds ([`crate::lock`]).
    #[cfg(debug_assertions)]
    ranks: AtomicU64,
}

/// Signals wait until the thread holds nothing.
const DEFERRED: u32 = 1 << 30;
/// The program lets the thread be cancelled at any instruction. The sign, for [`enter`].
const ANY_TIME: u32 = 1 << 31;
const COUNT: u32 = DEFERRED - 1;

const _: () = assert!(size_of::<Thread>() == BYTES);

core::arch::global_asm!(
    ".pushsection .tbss.fordway_thread,\"awT\",@nobits",
    ".globl fordway_thread",
    ".hidden fordway_thread",
    ".type fordway_thread, @object",
    ".size fordway_thread, {bytes}",
    ".p2align 3",
    "fordway_thread:",
    ".zero {bytes}",
    ".popsection",
    bytes = const BYTES,
);

/// The calling thread's.
#[inline(always)]
pub fn current() -> &'static Thread {
    let at: usize;
    // SAFETY: the initial-exec access of the x86-64 TLS ABI: the table holds the distance of
    // the block from the thread pointer, which is also the word at fs:0.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + fordway_thread@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at, options(nostack, pure, readonly));
        &*(at as *const Thread)
    }
}

/// From here on no handler of the program runs in this thread.
#[inline(always)]
pub fn enter() {
    // SAFETY: `held` is the first word; see `current`.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + fordway_thread@GOTTPOFF]",
            "add dword ptr fs:[{at}], 1",
            "js {any_time}",
            at = out(reg) _,
            any_time = label { calm() },
            options(nostack));
    }
}

/// The opposite of [`enter`]. Handlers that had to wait run here.
#[inline(always)]
pub fn leave() {
    // SAFETY: as in `enter`.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + fordway_thread@GOTTPOFF]",
            "sub dword ptr fs:[{at}], 1",
            "jnz {not_all}",
            at = out(reg) _,
            not_all = label { catch_up() },
            options(nostack));
    }
}

#[cold]
fn calm() {
    if current().held.load(Ordering::Relaxed) & COUNT == 1 {
        set_cancel_type(libc_cancel::DEFERRED);
    }
}

#[cold]
fn catch_up() {
    let thread = current();
    let held = thread.held.load(Ordering::Relaxed);
    if held & COUNT != 0 {
        return;
    }
    if held & DEFERRED != 0 {
        let mask = thread.mask.load(Ordering::Relaxed);
        thread.held.fetch_and(!DEFERRED, Ordering::Relaxed);
        let _ = sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8);
    }
    if held & ANY_TIME != 0 {
        // A thread that was cancelled meanwhile ends here.
        set_cancel_type(libc_cancel::ASYNCHRONOUS);
    }
}

/// No handler of the program runs while it lives.
pub struct Shield(());

impl Shield {
    /// From here on.
    pub fn new() -> Self {
        enter();
        Self(())
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        leave();
    }
}

impl Thread {
    /// Whether its handlers have to wait.
    pub fn holds(&self) -> bool {
        self.held.load(Ordering::Relaxed) & COUNT != 0
    }

    /// Whether a signal waits for its shields to be dropped.
    #[inline(always)]
    pub fn has_deferred(&self) -> bool {
        self.held.load(Ordering::Relaxed) & DEFERRED != 0
    }

    /// Ranks of the locks that it holds, in debug builds.
    #[cfg(debug_assertions)]
    pub fn ranks(&self) -> &AtomicU64 {
        &self.ranks
    }

    /// Its signals wait from now on; `mask` is what they wait for to come back.
    pub fn defer(&self, mask: u64) {
        self.mask.store(mask, Ordering::Relaxed);
        self.held.fetch_or(DEFERRED, Ordering::Relaxed);
    }
}

/// libc's record of a routine to call when a frame is left for good (pthread.h): a routine, an argument, and two words more.
/// musl's has one.
type CleanupBuffer = [*mut c_void; 4];

/// What is called if the thread never comes back to the frame that has it.
#[repr(C)]
pub struct Guard {
    buffer: CleanupBuffer,
    /// The next one around it.
    outer: *mut Guard,
    routine: extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

extern "C" fn nothing(_: *mut c_void) {}

/// The frame of `guard` is left for good. libc takes a guard off its list behind the routine: a handler that jumps out of the
/// routine would have libc call that once more.
extern "C" fn left(guard: *mut c_void) {
    let _shield = Shield::new();
    // SAFETY: a jump ends the frames above it, and this one is still there.
    unsafe {
        let guard = guard.cast::<Guard>();
        (*guard).pop();
        ((*guard).routine)((*guard).argument);
    }
}

impl Guard {
    /// Of nothing yet.
    pub const fn new() -> Self {
        Self {
            buffer: [core::ptr::null_mut(); 4],
            outer: core::ptr::null_mut(),
            routine: nothing,
            argument: core::ptr::null_mut(),
        }
    }

    /// If the thread leaves the frame for good from now on, `routine` gives back what it had taken. Both are under a shield.
    ///
    /// # Safety
    /// The guard stays where it is until [`Guard::pop`], in the same thread; of several, the last one goes first.
    pub unsafe fn push(&mut self, routine: extern "C" fn(*mut c_void), argument: *mut c_void) {
        let guards = &current().guards;
        self.outer = guards.load(Ordering::Relaxed);
        (self.routine, self.argument) = (routine, argument);
        let place: *mut Self = self;
        // SAFETY: the buffer outlives its use, by the caller's word.
        unsafe { real::_pthread_cleanup_push(place.cast(), left, place.cast()) };
        if libcs::is_musl() {
            guards.store(place, Ordering::Relaxed);
        }
    }

    /// The opposite. Under a shield.
    ///
    /// # Safety
    /// As of [`Guard::push`].
    pub unsafe fn pop(&mut self) {
        let place: *mut Self = self;
        // SAFETY: by the caller's word.
        unsafe { real::_pthread_cleanup_pop(place.cast(), 0) };
        current().guards.store(self.outer, Ordering::Relaxed);
    }
}

/// Sleeps by `body`, without the shield that the caller holds; if the thread does not
/// come back from it, `routine` gives back what it had taken.
pub fn guarded<R>(
    shield: Shield,
    routine: extern "C" fn(*mut c_void),
    argument: *mut c_void,
    body: impl FnOnce() -> R,
) -> (R, Shield) {
    let mut guard = Guard::new();
    // SAFETY: every way out of this frame takes it off the list.
    unsafe { guard.push(routine, argument) };
    drop(shield);
    let result = body();
    let shield = Shield::new();
    // SAFETY: as above.
    unsafe { guard.pop() };
    (result, shield)
}

/// Where handlers of this thread run that want a stack of their own.
fn other_stack() -> core::ops::Range<usize> {
    // SAFETY: plain data.
    let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
    match sys!(SYS_sigaltstack, 0, &raw mut stack) {
        Ok(_) if stack.ss_flags & libc::SS_DISABLE == 0 => {
            let base = stack.ss_sp.addr();
            base..base + stack.ss_size
        }
        _ => 0..0,
    }
}

/// Where musl keeps the stack pointer in a jmp_buf (src/setjmp/x86_64/setjmp.s).
const JUMP_STACK: usize = 6;

/// The calling thread is about to jump to where `buffer` was filled: the sleeps in frames
/// below, the innermost first, end for good. With glibc there are none here.
///
/// A handler may run, and jump, on a stack of its own (man 2 sigaltstack), which lies anywhere: it is
/// above the frames that it interrupted.
pub fn before_jump(buffer: usize) {
    let guards = &current().guards;
    loop {
        let guard = guards.load(Ordering::Relaxed);
        if guard.is_null() {
            return;
        }
        // SAFETY: the program's own argument, filled by musl's setjmp.
        let target = unsafe { (buffer as *const usize).add(JUMP_STACK).read() };
        let other = other_stack();
        let is_left = match (other.contains(&guard.addr()), other.contains(&target)) {
            (false, true) => false,
            (true, false) => true,
            _ => guard.addr() < target,
        };
        if !is_left {
            return;
        }
        left(guard.cast());
    }
}

/// Values of PTHREAD_CANCEL_* (pthread.h).
mod libc_cancel {
    pub const DEFERRED: i32 = 0;
    pub const ASYNCHRONOUS: i32 = 1;
}

static CANCELLING: AtomicBool = AtomicBool::new(false);

/// Every call that may sleep begins with this: a thread that was cancelled ends there,
/// even if the call would not sleep (man 7 pthreads). One load in programs that never cancel.
#[inline(always)]
pub fn cancellation_point() {
    if CANCELLING.load(Ordering::Relaxed) {
        test_cancel();
    }
}

#[cold]
fn test_cancel() {
    if current().holds() {
        // Within a call that has begun with this.
        return;
    }
    let errno = sys::errno();
    real::pthread_testcancel();
    sys::set_errno(errno);
}

fn set_cancel_type(kind: c_int) {
    // SAFETY: the type before is not asked for.
    unsafe { real::pthread_setcanceltype(kind, core::ptr::null_mut()) };
}

/// # Safety
/// As pthread_setcanceltype(3).
pub unsafe fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    let before = current().held.fetch_and(!ANY_TIME, Ordering::Relaxed);
    // SAFETY: the program's own arguments.
    let result = unsafe { real::pthread_setcanceltype(kind, old) };
    let asynchronous = match result {
        0 => kind == libc_cancel::ASYNCHRONOUS,
        _ => before & ANY_TIME != 0,
    };
    if asynchronous {
        current().held.fetch_or(ANY_TIME, Ordering::Relaxed);
    }
    result
}

/// # Safety
/// As pthread_cancel(3).
pub unsafe fn pthread_cancel(thread: usize) -> c_int {
    CANCELLING.store(true, Ordering::SeqCst);
    // SAFETY: the program's own argument.
    unsafe { real::pthread_cancel(thread) }
}
