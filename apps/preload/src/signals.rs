//! Signal handlers of the program: when they may run, and what a blocking call makes
//! of it that one ran.
//!
//! # In front of every handler
//! The library puts [`fordway_handler`] in front of each handler that the program
//! installs, with the program's flags and mask, and tells the program only of its own.
//! It counts what ran in which thread and jumps to the program's handler, which finds
//! registers and stack as the kernel made them. In a thread that holds a lock of the
//! library the handler has to wait ([`crate::thread`]).
//!
//! # What a blocking call makes of it
//! Linux restarts recv and send after handlers with SA_RESTART, ends them after
//! others, and ends poll and epoll_wait in any case (man 7 signal). The shim's own
//! sleeps are ppoll and epoll_pwait2, which know none of this; but a call that has noted
//! the counts ([`Call`]) when it began knows which kind has run since, whether it
//! slept then or not. A handler that runs between the last look at the counts and the
//! kernel's sleep rings the thread's own doorbell.
//!
//! Handlers that came past the library (an inlined rt_sigaction; libc's own, for
//! cancellation and setuid) are not counted. If a sleep ends with EINTR and no count has
//! changed, the kernel is asked for their flags.

use crate::sys::{self, sys};
use crate::{config, faults, identity, libcs, real, thread, wait};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Signals of Linux are 1 to 64.
const SIGNALS: usize = 65;

/// What a fault raises: its handler cannot wait, the faulting instruction would not go on.
const BY_FAULTS: u64 = bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGSYS);
/// The signals that libc keeps for itself.
fn of_libc() -> u64 {
    ((1 << libcs::signals_of_its_own()) - 1) * bit(32)
}

const SA_RESTART: u32 = libc::SA_RESTART as u32;
const SA_SIGINFO: u32 = libc::SA_SIGINFO as u32;

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// What the program has installed.
struct Action {
    handler: AtomicUsize,
    flags: AtomicU32,
}

static ACTIONS: [Action; SIGNALS] = [const {
    Action {
        handler: AtomicUsize::new(0),
        flags: AtomicU32::new(0),
    }
}; SIGNALS];

/// Signals for which siginterrupt was called, as glibc's signal() heeds it; musl's does not.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

impl Action {
    fn get(&self) -> (usize, u32) {
        let handler = self.handler.load(Ordering::Relaxed);
        (handler, self.flags.load(Ordering::Relaxed))
    }

    fn set(&self, (handler, flags): (usize, u32)) {
        self.flags.store(flags, Ordering::Relaxed);
        self.handler.store(handler, Ordering::Relaxed);
    }
}

fn is_handler(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

fn ours() -> usize {
    fordway_handler as *const () as usize
}

/// Runs in front of each handler; the stack and the three registers of arguments are
/// the program's handler's when it gets them.
#[unsafe(naked)]
extern "C" fn fordway_handler() {
    core::arch::naked_asm!(
        // Three pushes also align the stack for the call.
        "push rdi", "push rsi", "push rdx",
        "call {before}",
        "pop rdx", "pop rsi", "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        before = sym before_handler,
    );
}

/// The handler to jump to; 0: not now.
extern "C" fn before_handler(
    signal: c_int,
    info: *const c_void,
    context: *mut libc::ucontext_t,
) -> usize {
    let (handler, flags) = ACTIONS[signal as usize % SIGNALS].get();
    if BY_FAULTS & bit(signal) != 0 {
        // SAFETY: the kernel's record and frame of this signal.
        if unsafe { faults::answer(info.cast(), context) } {
            keep_once(signal, flags);
            return 0;
        }
        if handler == libc::SIG_DFL {
            // SAFETY: as above.
            unsafe { faults::die(signal, info.cast()) };
            return 0;
        }
    }
    let thread = thread::current();
    if thread.holds() && BY_FAULTS & bit(signal) == 0 {
        // SAFETY: the kernel's frame of this signal.
        unsafe { defer(thread, signal, flags, info, &mut *context) };
        return 0;
    }
    let ends = u64::from(flags & SA_RESTART == 0);
    let counts = thread.counts.load(Ordering::Relaxed);
    let handled = (counts as u32).wrapping_add(1);
    let ended = (counts >> 32).wrapping_add(ends);
    thread
        .counts
        .store(ended << 32 | u64::from(handled), Ordering::Relaxed);
    if let Some(door) = thread.door.load(Ordering::Relaxed).checked_sub(1) {
        wait::knock_own(door as usize);
    }
    if is_handler(handler) { handler } else { 0 }
}

/// Queues the signal to this thread once more, to come when the thread holds nothing.
unsafe fn defer(
    thread: &thread::Thread,
    signal: c_int,
    flags: u32,
    info: *const c_void,
    context: &mut libc::ucontext_t,
) {
    let all = !(BY_FAULTS | of_libc());
    let _ = sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, 0, 8);
    keep_once(signal, flags);
    let (pid, id) = (sys!(SYS_getpid), sys!(SYS_gettid));
    let (pid, id) = (pid.unwrap_or(0), id.unwrap_or(0));
    if sys!(SYS_rt_tgsigqueueinfo, pid, id, signal, info).is_err() {
        let _ = sys!(SYS_tgkill, pid, id, signal);
    }
    // The kernel's mask is the first 64 bits of libc's. Of two frames on top of each other
    // the lower one comes here last, and its mask is the thread's.
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    // SAFETY: inside the frame.
    unsafe {
        thread.defer(mask.read());
        mask.write(mask.read() | all);
    }
}

/// A handler that is to run once has yet to run, but the kernel has removed it.
fn keep_once(signal: c_int, flags: u32) {
    if flags & libc::SA_RESETHAND as u32 != 0 {
        let action = KernelAction {
            handler: ours(),
            ..kernel_action(signal)
        };
        let _ = sys!(SYS_rt_sigaction, signal, &raw const action, 0, 8);
    }
}

/// How many handlers had run in this thread when a call began.
#[derive(Clone, Copy, Debug)]
pub struct Call(u64);

impl Call {
    /// It begins now.
    #[inline(always)]
    pub fn begin() -> Self {
        Self(thread::current().counts.load(Ordering::Relaxed))
    }

    /// The same, or now where the program gives a mask for the wait (ppoll, epoll_pwait): its
    /// own mask has held until here, so that what was handled came before the call.
    pub fn behind<M>(self, mask: *const M) -> Self {
        if mask.is_null() { self } else { Self::begin() }
    }

    /// Whether a handler has run since that ends it; `by_any`: all do.
    pub fn is_interrupted(self, by_any: bool) -> bool {
        let now = Self::begin().0;
        self.0 >> 32 != now >> 32 || by_any && self.0 != now
    }

    /// The same after a sleep that ended with EINTR: some handler has run.
    pub fn is_ended(self, by_any: bool) -> bool {
        if self.0 == Self::begin().0 {
            by_any || unseen_interrupt()
        } else {
            self.is_interrupted(by_any)
        }
    }
}

/// The kernel's own layout (linux: include/linux/signal_types.h).
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

fn kernel_action(signal: c_int) -> KernelAction {
    let mut action = KernelAction {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let _ = sys!(SYS_rt_sigaction, signal, 0, &raw mut action, 8);
    action
}

/// Whether a handler that was installed past the library ends calls.
fn unseen_interrupt() -> bool {
    let of_libc = of_libc();
    (1..SIGNALS as c_int)
        .filter(|signal| of_libc & bit(*signal) == 0)
        .map(kernel_action)
        .any(|action| {
            let unseen = is_handler(action.handler) && action.handler != ours();
            unseen && action.flags & u64::from(SA_RESTART) == 0
        })
}

/// Whether handlers installed now are ours to stand in front of: not by a vfork child,
/// whose table is its parent's.
fn takes_part(signal: c_int) -> bool {
    config::is_active()
        && (1..SIGNALS as c_int).contains(&signal)
        && !identity::in_borrowed_memory()
}

/// Handlers that other libraries' constructors have installed before ours ran.
pub fn set_up() {
    let of_libc = of_libc();
    for signal in 1..SIGNALS as c_int {
        let found = kernel_action(signal);
        if of_libc & bit(signal) == 0 && is_handler(found.handler) {
            let flags = found.flags as u32;
            ACTIONS[signal as usize].set((found.handler, flags));
            let action = KernelAction {
                handler: ours(),
                flags: found.flags | u64::from(SA_SIGINFO),
                ..found
            };
            let _ = sys!(SYS_rt_sigaction, signal, &raw const action, 0, 8);
        }
    }
}

/// Stands in for the default disposition of a signal, for [`crate::faults`].
pub fn stand_in(signal: c_int) {
    let found = kernel_action(signal);
    if found.handler != libc::SIG_DFL || !takes_part(signal) {
        return;
    }
    ACTIONS[signal as usize].set((libc::SIG_DFL, found.flags as u32));
    // SAFETY: plain data: an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = ours();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a whole action; libc adds what brings the handler back.
    unsafe { real::sigaction(signal, &raw const action, core::ptr::null_mut()) };
}

/// Installs what the program asks for by `install`, which takes the new action's handler
/// and flags and gives the old one's; translated both ways.
fn exchange(
    signal: c_int,
    new: Option<(usize, u32)>,
    install: impl FnOnce(Option<(usize, u32)>) -> Option<(usize, u32)>,
) -> Option<(usize, u32)> {
    let known = &ACTIONS[signal as usize % SIGNALS];
    let before = known.get();
    let new = match new {
        Some((handler, flags)) if is_handler(handler) && takes_part(signal) => {
            known.set((handler, flags));
            Some((ours(), flags | SA_SIGINFO))
        }
        other => other,
    };
    let old = install(new);
    match old {
        None => {
            known.set(before);
            None
        }
        Some((handler, _)) if handler == ours() && !is_handler(before.0) => Some(before),
        Some((handler, flags)) if handler == ours() => {
            Some((before.0, flags & !SA_SIGINFO | before.1 & SA_SIGINFO))
        }
        other => other,
    }
}

/// # Safety
/// As sigaction(2).
pub unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's own argument.
    let wanted = unsafe { new.as_ref() };
    // SAFETY: plain data; libc fills it in.
    let mut was: libc::sigaction = unsafe { core::mem::zeroed() };
    let asked = wanted.map(|action| (action.sa_sigaction, action.sa_flags as u32));
    let found = exchange(signal, asked, |action| {
        let copy = wanted.zip(action).map(|(wanted, (handler, flags))| {
            let mut copy = *wanted;
            copy.sa_sigaction = handler;
            copy.sa_flags = flags as c_int;
            copy
        });
        let copy = copy
            .as_ref()
            .map_or(core::ptr::null(), |copy| &raw const *copy);
        // SAFETY: ours both.
        let result = unsafe { real::sigaction(signal, copy, &raw mut was) };
        (result == 0).then_some((was.sa_sigaction, was.sa_flags as u32))
    });
    let Some((handler, flags)) = found else {
        return -1;
    };
    if faults::wants(signal) && wanted.is_some() {
        stand_in(signal);
    }
    // SAFETY: the program's own argument.
    if let Some(old) = unsafe { old.as_mut() } {
        was.sa_sigaction = handler;
        was.sa_flags = flags as c_int;
        *old = was;
    }
    0
}

/// rt_sigaction by syscall(2), in the kernel's layout.
///
/// # Safety
/// As rt_sigaction(2).
pub unsafe fn raw_sigaction(
    signal: c_int,
    new: *const c_void,
    old: *mut c_void,
    mask_bytes: usize,
) -> sys::Result<usize> {
    let new = new.cast::<KernelAction>();
    if mask_bytes == size_of::<u64>() {
        faults::check(new.is_null() || faults::can_read(new))?;
    }
    // SAFETY: the program's own argument, found readable; the kernel takes no other size of masks.
    let wanted = unsafe { new.as_ref() }.filter(|_| mask_bytes == size_of::<u64>());
    let mut was = KernelAction {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let mut result = Ok(0);
    let asked = wanted.map(|action| (action.handler, action.flags as u32));
    let found = exchange(signal, asked, |action| {
        let copy = wanted
            .zip(action)
            .map(|(wanted, (handler, flags))| KernelAction {
                handler,
                flags: u64::from(flags),
                ..*wanted
            });
        let copy = copy
            .as_ref()
            .map_or(core::ptr::null(), |copy| &raw const *copy);
        result = sys!(SYS_rt_sigaction, signal, copy, &raw mut was, mask_bytes);
        result.is_ok().then_some((was.handler, was.flags as u32))
    });
    let old = old.cast::<KernelAction>();
    if let Some((handler, flags)) = found
        && !old.is_null()
    {
        let flags = u64::from(flags);
        let known = KernelAction {
            handler,
            flags,
            ..was
        };
        faults::check(faults::give(old, known))?;
    }
    result
}

/// Installs a handler as the older functions do; gives the one before, or SIG_ERR.
fn install(signal: c_int, handler: usize, flags: c_int, masks_itself: bool) -> usize {
    // SAFETY: plain data: no flags, an empty mask, no handler.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    if handler == libc::SIG_ERR || !(1..SIGNALS as c_int).contains(&signal) {
        return sys::give(Err(libc::EINVAL)) as usize;
    }
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if masks_itself {
        // SAFETY: the kernel's mask is the first 64 bits of libc's.
        unsafe { (&raw mut new.sa_mask).cast::<u64>().write(bit(signal)) };
    }
    // SAFETY: ours both.
    match unsafe { sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// # Safety
/// As signal(2): BSD semantics, that is with SA_RESTART.
pub unsafe fn signal(signal: c_int, handler: usize) -> usize {
    let interrupts = (1..SIGNALS as c_int).contains(&signal)
        && INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
    let flags = if interrupts { 0 } else { libc::SA_RESTART };
    install(signal, handler, flags, !libcs::is_musl())
}

/// # Safety
/// As signal(2) in System V: once, and not masked meanwhile.
pub unsafe fn sysv_signal(signal: c_int, handler: usize) -> usize {
    install(
        signal,
        handler,
        libc::SA_RESETHAND | libc::SA_NODEFER,
        false,
    )
}

/// # Safety
/// As sigset(3).
pub unsafe fn sigset(signal: c_int, disposition: usize) -> usize {
    const SIG_HOLD: usize = 2;
    if !(1..SIGNALS as c_int).contains(&signal) {
        return sys::give(Err(libc::EINVAL)) as usize;
    }
    let (holds, mut before) = (disposition == SIG_HOLD, 0u64);
    let handler = if holds {
        // SAFETY: plain data; ours.
        let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: ours.
        match unsafe { sigaction(signal, core::ptr::null(), &raw mut old) } {
            0 => old.sa_sigaction,
            _ => return libc::SIG_ERR,
        }
    } else {
        match install(signal, disposition, 0, false) {
            libc::SIG_ERR => return libc::SIG_ERR,
            old => old,
        }
    };
    let how = if holds {
        libc::SIG_BLOCK
    } else {
        libc::SIG_UNBLOCK
    };
    let set = bit(signal);
    let _ = sys!(SYS_rt_sigprocmask, how, &raw const set, &raw mut before, 8);
    if before & set != 0 { SIG_HOLD } else { handler }
}

/// As siginterrupt(3).
pub fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: plain data; ours.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: ours.
    if unsafe { sigaction(signal, core::ptr::null(), &raw mut action) } != 0 {
        return -1;
    }
    if interrupts == 0 {
        INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
        action.sa_flags |= libc::SA_RESTART;
    } else {
        if !libcs::is_musl() {
            INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
        }
        action.sa_flags &= !libc::SA_RESTART;
    }
    // SAFETY: ours.
    unsafe { sigaction(signal, &raw const action, core::ptr::null_mut()) }
}
