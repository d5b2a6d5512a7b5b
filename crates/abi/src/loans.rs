//! Loans of ring memory, which the native library asks the shim for, in one process. The shim exports
//! [`SYMBOL`]; who finds another version there, or nothing, goes without loans.

use core::ffi::{c_int, c_void};

/// The name of a static [`Loans`].
pub const SYMBOL: &core::ffi::CStr = c"fordway_loans";

/// Of [`Loans`] and [`Loan`], for equality.
pub const VERSION: u32 = 1;

/// Ring memory of a connection.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// Where it begins.
    pub place: *mut c_void,
    /// How much it is.
    pub bytes: usize,
    /// What it is given back by.
    pub id: u64,
}

/// What the shim can be asked for. `version` stays in front.
#[repr(C)]
#[derive(Debug)]
pub struct Loans {
    /// [`VERSION`].
    pub version: u32,
    /// Room for so many bytes behind all that was sent by descriptor `fd`; 0: there is none, or no ring.
    /// It is to be sent from there (send(2)), in one call, and given back. Other sends give EBUSY meanwhile.
    pub reserve: unsafe extern "C" fn(fd: c_int, bytes: usize, loan: *mut Loan) -> c_int,
    /// The next bytes to be received by `fd`, as far as they lie in one piece; 0: none, or no ring. They
    /// stay to be received (recv(2) with MSG_TRUNC copies none), and the loan is to be given back then.
    /// The far end can write them at any time.
    pub peek: unsafe extern "C" fn(fd: c_int, loan: *mut Loan) -> c_int,
    /// Gives a loan back by its id. `reserved`: it is one of `reserve`.
    pub give_back: unsafe extern "C" fn(id: u64, reserved: c_int),
}
