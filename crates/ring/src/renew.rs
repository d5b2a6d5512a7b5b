//! An endpoint for the next channel.

use core::mem::offset_of;
use core::sync::atomic::Ordering;
use fordway_abi::shm::{Endpoint, RxOwnLine, TxOwnLine};

const LOCK_BYTES: usize = size_of::<u32>();
const TX_LOCK: usize = offset_of!(Endpoint, tx_own) + offset_of!(TxOwnLine, lock);
const RX_LOCK: usize = offset_of!(Endpoint, rx_own) + offset_of!(RxOwnLine, lock);

/// Makes an own endpoint as new, without a generation yet. The locks stay as they are: a
/// thread that came too late for the former channel may hold one, only to see that it is
/// gone, and would free one that by then another thread holds.
///
/// # Safety
/// `own` lies in a writable region; no channel uses it, on either side.
pub unsafe fn renew(own: *mut Endpoint) {
    // SAFETY: by contract. The peer looks at nothing else before it sees the generation.
    unsafe { (*own).cold.generation.store(0, Ordering::SeqCst) };
    let (first, second) = (TX_LOCK.min(RX_LOCK), TX_LOCK.max(RX_LOCK));
    let parts = [
        (0, first),
        (first + LOCK_BYTES, second),
        (second + LOCK_BYTES, size_of::<Endpoint>()),
    ];
    for (begin, end) in parts {
        // SAFETY: inside the endpoint; zeros are a new one.
        unsafe { own.cast::<u8>().add(begin).write_bytes(0, end - begin) };
    }
    // SAFETY: as above.
    unsafe { (*own).wait.cpu.store(u32::MAX, Ordering::Relaxed) };
}
