//! Bad pointers of the program: EFAULT where the kernel would have said it.
//!
//! The library looks at what the program passes to calls on stream sockets and on epoll
//! instances, and makes the copies of the fast path. Before each, a leaf routine touches one
//! byte of every page that the copy will touch. It loads before a read, and stores before a
//! write, atomically where the byte is to stay what it is. If such an access faults, the
//! library's handler ([`crate::signals`]) finds it by the instruction's address and lets the
//! routine return "fault" ([`answer`]).
//!
//! From the first such look in a process on, that handler stands in for the default
//! dispositions of SIGSEGV and SIGBUS as well. A fault elsewhere goes to the program's
//! own handler; if it has none, the default is put back and the instruction faults again,
//! exactly as without us.
//!
//! # Limits
//! While the program ignores the signal, has it blocked, or has installed a handler by an
//! inlined system call, a bad pointer that the library looks at ends it as it would in a copy of its own. So does a
//! page that another thread unmaps between the touch and the copy.

use crate::sys::{self, sys};
use crate::{identity, real, signals};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Where a program's addresses end (asm/page_64_types.h: TASK_SIZE_MAX).
const USER_END: usize = (1 << 47) - PAGE_BYTES;
/// The same with five-level page tables.
const USER_END_FIVE_LEVELS: usize = (1 << 56) - PAGE_BYTES;
const PAGE_BYTES: usize = 4096;
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

core::arch::global_asm!(
    // rdi: first byte, rsi: last byte. Returns 0, or 1 after a fault. No frame: the
    // handler goes on at `fordway_touch_fault`.
    ".pushsection .text.fordway_touch, \"ax\", @progbits",
    ".globl fordway_touch_to_read, fordway_touch_to_write, fordway_touch_to_keep, fordway_touch_to_refill, fordway_touch_fault",
    ".hidden fordway_touch_to_read, fordway_touch_to_write, fordway_touch_to_keep, fordway_touch_to_refill, fordway_touch_fault",
    "fordway_touch_to_read:",
    "2: movzx eax, byte ptr [rdi]",
    "or rdi, 4095",
    "inc rdi",
    "cmp rdi, rsi",
    "jbe 2b",
    "xor eax, eax",
    "ret",
    "fordway_touch_to_write:",
    "3: mov byte ptr [rdi], 0",
    "or rdi, 4095",
    "inc rdi",
    "cmp rdi, rsi",
    "jbe 3b",
    "xor eax, eax",
    "ret",
    "fordway_touch_to_keep:",
    "4: lock or byte ptr [rdi], 0",
    "or rdi, 4095",
    "inc rdi",
    "cmp rdi, rsi",
    "jbe 4b",
    "xor eax, eax",
    "ret",
    "fordway_touch_to_refill:",
    "5: mov al, byte ptr [rdi]",
    "mov byte ptr [rdi], al",
    "or rdi, 4095",
    "inc rdi",
    "cmp rdi, rsi",
    "jbe 5b",
    "xor eax, eax",
    "ret",
    "fordway_touch_fault:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn fordway_touch_to_read();
    fn fordway_touch_to_write();
    fn fordway_touch_to_keep();
    fn fordway_touch_to_refill();
    fn fordway_touch_fault();
}

/// Calls a routine for `$count` bytes, at least one, at `$base`; false: a fault. Not as C would: the routine leaves all registers
/// but three alone.
macro_rules! touch {
    ($routine:ident, $base:expr, $count:expr) => {{
        let first: usize = $base.addr();
        let fault: u32;
        core::arch::asm!(
            "call {routine}",
            routine = sym $routine,
            inout("rdi") first => _,
            in("rsi") first + $count - 1,
            out("eax") fault,
        );
        fault == 0
    }};
}

/// Whether `count` bytes at `base` may be addresses of a program at all (linux: access_ok).
pub fn is_user_range(base: *const u8, count: usize) -> bool {
    base.addr()
        .checked_add(count)
        .is_some_and(|end| end <= LIMIT.load(Ordering::Relaxed))
}

/// Whether `count` bytes at `base`, a user range, can be read.
#[inline(always)]
pub fn is_readable(base: *const u8, count: usize) -> bool {
    // SAFETY: a fault in the routine is answered; loads change nothing.
    count == 0 || unsafe { touch!(fordway_touch_to_read, base, count) }
}

/// Whether `count` bytes at `base`, a user range that the caller is about to overwrite, can be written.
#[inline(always)]
pub fn is_writable(base: *mut u8, count: usize) -> bool {
    // SAFETY: a fault in the routine is answered; the caller overwrites the bytes anyway.
    count == 0 || unsafe { touch!(fordway_touch_to_write, base, count) }
}

/// As [`is_writable`] for bytes that may stay what they are, and that another thread may be
/// writing: a store of what was loaded before would undo that.
#[inline]
fn could_be_written(base: *mut u8, count: usize) -> bool {
    // SAFETY: a fault in the routine is answered; it changes nothing.
    count == 0 || unsafe { touch!(fordway_touch_to_keep, base, count) }
}

/// As [`is_writable`] for a place of results that may stay what it is, but that nobody else writes
/// while the call runs: the kernel might do so at any time in it. Without a locked instruction,
/// which would wait for what was stored into rings before.
#[inline]
pub fn may_be_filled<T>(place: *mut T) -> bool {
    // SAFETY: a fault in the routine is answered; it stores what was there.
    unsafe { touch!(fordway_touch_to_refill, place, size_of::<T>()) }
}

/// Whether a value of the program can be read.
#[inline]
pub fn can_read<T>(value: *const T) -> bool {
    can_read_all(value, 1)
}

/// Whether `count` values of the program can be read.
#[inline]
pub fn can_read_all<T>(values: *const T, count: usize) -> bool {
    arm();
    count.checked_mul(size_of::<T>()).is_some_and(|bytes| {
        is_user_range(values.cast(), bytes) && is_readable(values.cast(), bytes)
    })
}

/// Whether `count` values of the program can be written. They stay what they are.
#[inline]
pub fn can_write_all<T>(values: *mut T, count: usize) -> bool {
    arm();
    count.checked_mul(size_of::<T>()).is_some_and(|bytes| {
        is_user_range(values.cast(), bytes) && could_be_written(values.cast(), bytes)
    })
}

/// Tries the pages of an array of results one by one, as they are come to.
pub struct Results {
    /// Behind the last byte of the pages that can be written.
    until: usize,
}

impl Results {
    /// Of an array whose first value was found writable.
    pub fn of<T>(first: *mut T) -> Self {
        let end = first.addr() + size_of::<T>();
        Self {
            until: end.next_multiple_of(PAGE_BYTES),
        }
    }

    /// Whether this value, of a user range and behind those asked about before, can be written.
    #[inline]
    pub fn may_take<T>(&mut self, value: *mut T) -> bool {
        let end = value.addr() + size_of::<T>();
        if end > self.until {
            if !may_be_filled(value) {
                return false;
            }
            self.until = end.next_multiple_of(PAGE_BYTES);
        }
        true
    }
}

/// Writes a small result where the program wants it; false: EFAULT.
pub fn give<T>(target: *mut T, value: T) -> bool {
    let can = can_write_all(target, 1);
    if can {
        // SAFETY: the program's own argument, which was just found writable.
        unsafe { target.write_unaligned(value) };
    }
    can
}

/// Writes a result of some bytes, as many as there is room for, and how long the whole is (linux: move_addr_to_user).
pub fn give_bytes(target: *mut c_void, length: *mut u32, given: &[u8]) -> sys::Result<()> {
    check(can_read(length))?;
    // SAFETY: found readable.
    let room = unsafe { length.read_unaligned() };
    if room > i32::MAX as u32 {
        return Err(libc::EINVAL);
    }
    let count = given.len().min(room as usize);
    check(can_write_all(target.cast::<u8>(), count))?;
    // SAFETY: found writable.
    unsafe { core::ptr::copy_nonoverlapping(given.as_ptr(), target.cast(), count) };
    check(give(length, given.len() as u32))
}

static IS_ARMED: AtomicBool = AtomicBool::new(false);
static LIMIT: AtomicUsize = AtomicUsize::new(USER_END);

/// Gets the signals of faults, once; before the first look.
#[inline]
pub fn arm() {
    if !IS_ARMED.load(Ordering::Relaxed) {
        arm_now();
    }
}

#[cold]
fn arm_now() {
    // A vfork child's dispositions are its own, the rest is its parent's.
    if identity::in_borrowed_memory() || IS_ARMED.swap(true, Ordering::AcqRel) {
        return;
    }
    if has_five_levels() {
        LIMIT.store(USER_END_FIVE_LEVELS, Ordering::Relaxed);
    }
    SIGNALS.into_iter().for_each(signals::stand_in);
}

/// A mapping beyond 47 bits has to be asked for, and can be had only there
/// (linux: Documentation/arch/x86/x86_64/5level-paging.rst).
fn has_five_levels() -> bool {
    let mapped = sys!(
        SYS_mmap,
        1usize << 47,
        PAGE_BYTES,
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        -1isize,
        0
    );
    if let Ok(address) = mapped {
        let _ = sys!(SYS_munmap, address, PAGE_BYTES);
    }
    mapped.is_ok() || mapped == Err(libc::EEXIST)
}

/// Whether [`crate::signals`] is to stand in for the default disposition of `signal`.
pub fn wants(signal: i32) -> bool {
    SIGNALS.contains(&signal) && IS_ARMED.load(Ordering::Acquire)
}

/// Answers a fault of the touching routine; false: the signal is the program's.
///
/// # Safety
/// The kernel's record and frame of a signal.
pub unsafe fn answer(info: *const libc::siginfo_t, context: *mut libc::ucontext_t) -> bool {
    // SAFETY: by contract.
    let (code, registers) = unsafe { ((*info).si_code, &mut (*context).uc_mcontext.gregs) };
    let place = &mut registers[libc::REG_RIP as usize];
    let begin = fordway_touch_to_read as *const () as i64;
    let end = fordway_touch_fault as *const () as i64;
    // That of a fault is positive; a signal that was sent means no instruction (man 2 sigaction).
    let ours = code > 0 && (begin..end).contains(place);
    if ours {
        *place = end;
    }
    ours
}

/// A signal that the program does not handle: the default is back, and ends it as if it
/// had never been away.
///
/// # Safety
/// The kernel's record of a signal.
pub unsafe fn die(signal: i32, info: *const libc::siginfo_t) {
    // SAFETY: zeros are a valid action: SIG_DFL, no flags.
    let default: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: a whole action.
    unsafe { real::sigaction(signal, &raw const default, core::ptr::null_mut()) };
    // SAFETY: by contract.
    if unsafe { (*info).si_code } <= 0 {
        // No instruction will fault again: it is sent anew, for when this one is over.
        let (pid, thread) = (sys!(SYS_getpid), sys!(SYS_gettid));
        let (pid, thread) = (pid.unwrap_or(0), thread.unwrap_or(0));
        let _ = sys!(SYS_tgkill, pid, thread, signal);
    }
}

/// `EFAULT` unless it can be.
pub fn check(can: bool) -> sys::Result<()> {
    if can { Ok(()) } else { Err(libc::EFAULT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PAGE, Pages, tables};

    const READ: i32 = libc::PROT_READ;
    const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn byte(pages: &Pages, at: usize) -> u8 {
        // SAFETY: of a page that can be read.
        unsafe { pages.at(at).read() }
    }

    #[test]
    fn each_page_is_tried_and_none_behind_the_last_byte() {
        let _turn = tables();
        arm();
        let pages = Pages::of(&[WRITE, READ, libc::PROT_NONE]);
        assert!(is_readable(pages.at(0), 2 * PAGE));
        assert!(!is_readable(pages.at(0), 2 * PAGE + 1));
        assert!(is_readable(pages.at(2 * PAGE - 1), 1));
        assert!(!is_readable(pages.at(2 * PAGE - 1), 2));
        // A range that begins in the last byte of a page has to try the next one.
        let begins_late = Pages::of(&[READ, libc::PROT_NONE, READ]);
        assert!(!is_readable(begins_late.at(PAGE - 1), PAGE + 2));
        assert!(is_readable(pages.at(2 * PAGE), 0));
        assert!(is_writable(pages.at(0), PAGE));
        assert!(!is_writable(pages.at(0), PAGE + 1));
        assert!(could_be_written(pages.at(0), PAGE));
        assert!(!could_be_written(pages.at(1), PAGE));
    }

    #[test]
    fn what_is_only_tried_stays_what_it_is() {
        let _turn = tables();
        let pages = Pages::of(&[WRITE, WRITE]);
        assert!(can_write_all(pages.at(0), 2 * PAGE));
        assert!(can_read_all(pages.at(0), 2 * PAGE));
        assert_eq!([byte(&pages, 0), byte(&pages, PAGE)], *b"xx");
    }

    #[test]
    fn a_page_behind_the_end_of_its_file_is_none() {
        let _turn = tables();
        arm();
        let pages = Pages::of_file(PAGE + 1, 3);
        assert!(is_readable(pages.at(0), 2 * PAGE));
        assert!(!is_readable(pages.at(0), 2 * PAGE + 1));
        assert!(!is_writable(pages.at(2 * PAGE), 1));
        assert!(!could_be_written(pages.at(2 * PAGE), 1));
    }

    #[test]
    fn addresses_that_no_program_has_are_not_touched() {
        let _turn = tables();
        arm();
        let end = LIMIT.load(Ordering::Relaxed);
        assert!(is_user_range((end - 1) as *const u8, 1));
        assert!(!is_user_range((end - 1) as *const u8, 2));
        assert!(!is_user_range(usize::MAX as *const u8, 2));
        assert!(!can_read((usize::MAX - 3) as *const u64));
        assert!(!can_read(64 as *const u64));
        assert!(!can_write_all(core::ptr::null_mut::<u64>(), 1));
        // A count of which the bytes cannot be told.
        let pages = Pages::of(&[WRITE]);
        let (value, count) = (pages.at(0).cast::<u64>(), usize::MAX / 8 + 2);
        assert!(!can_read_all(value, count));
        assert!(!can_write_all(value, count));
    }

    #[test]
    fn a_result_across_pages_comes_whole_or_not_at_all() {
        let _turn = tables();
        let pages = Pages::of(&[WRITE, READ]);
        assert!(!give(pages.at(PAGE - 4).cast::<u64>(), 0));
        assert_eq!([byte(&pages, PAGE - 4), byte(&pages, PAGE)], *b"xx");
        assert!(give(pages.at(PAGE - 8).cast::<u64>(), 0));
        assert_eq!(byte(&pages, PAGE - 8), 0);
    }

    #[test]
    fn results_are_tried_page_by_page() {
        let _turn = tables();
        arm();
        let pages = Pages::of(&[WRITE, WRITE, READ]);
        let value = |at: usize| pages.at(at).cast::<[u8; 12]>();
        let mut results = Results::of(value(0));
        assert!(results.may_take(value(PAGE - 12)));
        assert!(results.may_take(value(PAGE - 4)));
        assert!(results.may_take(value(2 * PAGE - 12)));
        assert!(!results.may_take(value(2 * PAGE - 11)));
        assert!(!results.may_take(value(2 * PAGE)));
    }
}
