//! TCP_CORK (man 7 tcp) of a connection that sends by its ring. Servers cork and uncork
//! around each answer; what goes by a ring is in no segment, so neither needs the kernel.
//!
//! | `Conn::cork` | meaning |
//! |---|---|
//! | [`ASK`] | the kernel's socket may be corked: each call is the kernel's |
//! | [`OFF`] | it is not |
//! | [`WANTED`] | it is not, but the program believes so |
//!
//! A connection that comes back to the kernel while the program believes it corked sends
//! what follows at once, in more segments than it might have.

use crate::state::Conn;
use core::sync::atomic::Ordering;
use fordway_abi::shm::tx_state;

const ASK: u32 = 0;
const OFF: u32 = 1;
const WANTED: u32 = 2;

/// The program corks or uncorks; false: the kernel has to know.
pub fn set(conn: &Conn, on: bool) -> bool {
    let by_ring = conn.is_paired() && conn.producer().state() == tx_state::RING;
    if !by_ring || conn.cork.load(Ordering::Relaxed) == ASK {
        return false;
    }
    conn.cork
        .store(if on { WANTED } else { OFF }, Ordering::Relaxed);
    true
}

/// The kernel knows.
pub fn was_set(conn: &Conn, on: bool) {
    conn.cork
        .store(if on { ASK } else { OFF }, Ordering::Relaxed);
}

/// Whether the program believes it corked, and the kernel knows nothing of it.
pub fn is_wanted(conn: &Conn) -> bool {
    conn.cork.load(Ordering::Relaxed) == WANTED
}
