//! The shim's loans of ring memory (`fordway_abi::loans`), looked up once.

use fordway_abi::loans::{Loan, Loans, SYMBOL, VERSION};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Ring memory, until it is given back.
#[derive(Debug)]
pub(crate) struct Lent {
    pub place: *mut u8,
    pub bytes: usize,
    id: u64,
    reserved: bool,
}

// SAFETY: memory of the process, which may be used and given back by any thread.
unsafe impl Send for Lent {}

impl Lent {
    /// Room for `bytes` behind what was sent.
    pub fn room(fd: i32, bytes: usize) -> Option<Self> {
        // SAFETY: a place for a loan.
        Self::of(true, |loans, loan| unsafe {
            (loans.reserve)(fd, bytes, loan)
        })
    }

    /// The next bytes to be received.
    pub fn next(fd: i32) -> Option<Self> {
        // SAFETY: a place for a loan.
        Self::of(false, |loans, loan| unsafe { (loans.peek)(fd, loan) })
    }

    fn of(reserved: bool, ask: impl FnOnce(&Loans, *mut Loan) -> i32) -> Option<Self> {
        let mut loan = MaybeUninit::<Loan>::uninit();
        if ask(shim()?, loan.as_mut_ptr()) == 0 {
            return None;
        }
        // SAFETY: the shim has written it.
        let Loan { place, bytes, id } = unsafe { loan.assume_init() };
        Some(Self {
            place: place.cast(),
            bytes,
            id,
            reserved,
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(loans) = shim() {
            // SAFETY: nobody uses the memory any more.
            unsafe { (loans.give_back)(self.id, self.reserved.into()) }
        }
    }
}

fn shim() -> Option<&'static Loans> {
    static FOUND: OnceLock<Option<&Loans>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: a name; what has it begins with a version, whichever it is.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()).cast::<Loans>();
            (!found.is_null() && (&raw const (*found).version).read() == VERSION).then(|| &*found)
        }
    })
}
