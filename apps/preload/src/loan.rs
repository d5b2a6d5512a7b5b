//! Ring memory that is lent to the program: what the native library finds here by a name
//! ([`fordway_abi::loans`]). `fordway_sockets::loan` says what makes that safe.
//!
//! A loan keeps its socket as a sleeping call does ([`crate::stay`]): a close leaves it to the loan. A
//! forked child has none of its parent's: it must not use their memory, and what it gives back is nothing.

use crate::end::At;
use crate::state::{self, Conn};
use crate::thread::Shield;
use crate::{broker, config, stay};
use core::ffi::c_int;
use fordway_abi::loans::{Loan, Loans, VERSION};
use fordway_sockets::{attend, loan};

#[cfg_attr(not(test), unsafe(export_name = "fordway_loans"))]
pub static LOANS: Loans = Loans {
    version: VERSION,
    reserve,
    peek,
    give_back,
};

unsafe extern "C" fn reserve(fd: c_int, bytes: usize, target: *mut Loan) -> c_int {
    let lent = lend(fd, |end| Some((loan::reserve(end, bytes)?, bytes)));
    // SAFETY: the caller's.
    unsafe { give(lent, target) }
}

unsafe extern "C" fn peek(fd: c_int, target: *mut Loan) -> c_int {
    let lent = lend(fd, |end| {
        loan::peek(end).map(|(place, bytes)| (place.cast_mut(), bytes))
    });
    // SAFETY: the caller's.
    unsafe { give(lent, target) }
}

/// # Safety
/// `target` is a place for a loan.
unsafe fn give(lent: Option<Loan>, target: *mut Loan) -> c_int {
    let Some(lent) = lent else { return 0 };
    // SAFETY: by contract.
    unsafe { target.write(lent) };
    1
}

fn lend(fd: c_int, take: impl FnOnce(&At<'_>) -> Option<(*mut u8, usize)>) -> Option<Loan> {
    if !config::is_active() {
        return None;
    }
    broker::check_mail();
    let conn = state::conn(fd).filter(|conn| conn.is_paired())?;
    let _shield = Shield::new();
    stay::enter(conn);
    let lent = At::called(conn, fd)
        .filter(|end| attend(end).is_ok())
        .and_then(|end| take(&end));
    let Some((place, bytes)) = lent else {
        stay::leave(conn);
        return None;
    };
    Some(Loan {
        place: place.cast(),
        bytes,
        id: conn.id(),
    })
}

unsafe extern "C" fn give_back(id: u64, reserved: c_int) {
    let Some(conn) = Conn::by_id(id) else { return };
    let _shield = Shield::new();
    if loan::give_back(&conn.end(), reserved != 0) {
        stay::leave(conn);
    }
}
