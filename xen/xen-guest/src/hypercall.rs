//! Calls into the hypervisor. One function for each number of arguments; what a call means
//! stands where it is made.
//!
//! The hypercall page is a page of ours that Xen fills with code before the guest starts (PV)
//! or when it is asked to (PVH); entry `n` lies at `n * 32`. A call may change rcx, r11 and
//! the registers of its arguments.

#[cfg(not(test))]
use core::arch::asm;
use fordway_xen_abi::hypercall as number;

/// The page that Xen fills. Never read here: it is code, reached by `call`.
#[repr(C, align(4096))]
pub struct HypercallPage([u8; fordway_xen_abi::PAGE_SIZE]);

#[unsafe(link_section = ".text.hypercall_page")]
pub static HYPERCALL_PAGE: HypercallPage = HypercallPage([0xcc; fordway_xen_abi::PAGE_SIZE]);

/// A negative answer of the hypervisor: the negated errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the hypervisor answered errno {}", self.0)
    }
}

fn answer(raw: usize) -> Result<usize, Refused> {
    let signed = raw as isize;
    if (-4095..0).contains(&signed) {
        Err(Refused(-signed as i32))
    } else {
        Ok(raw)
    }
}

/// A test has no hypervisor: whatever it is asked is done.
///
/// # Safety
/// Of the hypervisor's own kind.
#[cfg(test)]
unsafe fn done() -> usize {
    0
}

#[cfg(test)]
macro_rules! call {
    ($number:expr, $($argument:expr),*) => {{
        const { assert!($number * number::ENTRY_SIZE < fordway_xen_abi::PAGE_SIZE) };
        let _ = ($($argument,)*);
        answer(done())
    }};
}

#[cfg(not(test))]
macro_rules! call {
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {{
        let raw: usize;
        asm!(
            "call {page} + {offset}",
            page = sym HYPERCALL_PAGE,
            offset = const $number * number::ENTRY_SIZE,
            inlateout("rdi") $a => _,
            inlateout("rsi") $b => _,
            inlateout("rdx") $c => _,
            inlateout("r10") $d => _,
            lateout("rax") raw,
            lateout("rcx") _,
            lateout("r11") _,
        );
        answer(raw)
    }};
}

/// Hypercall `NUMBER` with a command and a pointer to its argument.
///
/// # Safety
/// `argument` is what the command takes, and what the command does to memory is accounted for.
#[inline]
pub unsafe fn command<const NUMBER: usize, T>(
    command: usize,
    argument: *mut T,
) -> Result<usize, Refused> {
    // SAFETY: the caller vouches for the command and its argument.
    unsafe { call!(NUMBER, command, argument, 0usize, 0usize) }
}

/// Hypercall `NUMBER` with four plain arguments.
///
/// # Safety
/// As for [`command`].
#[inline]
pub unsafe fn words<const NUMBER: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> Result<usize, Refused> {
    // SAFETY: the caller vouches for the arguments.
    unsafe { call!(NUMBER, a, b, c, d) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_an_errno_only_at_the_very_top() {
        assert_eq!(answer(0), Ok(0));
        assert_eq!(answer((-22isize) as usize), Err(Refused(22)));
        assert_eq!(answer(usize::MAX - 4095), Ok(usize::MAX - 4095));
    }
}
