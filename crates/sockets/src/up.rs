//! The way up: from the broker's word to a ring that the peer may use.

use crate::{End, Half, down};
use core::sync::atomic::Ordering;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{rx_state, tx_flags};

/// Whether a refusal of the broker stands: the connection is not offered again.
pub fn is_for_good(reason: u32) -> bool {
    !matches!(
        Reason::from_u32(reason),
        Some(Reason::Shared | Reason::NoMemory | Reason::Waiting)
    )
}

/// The connection gets a channel (another one, perhaps): what was true of a former one is
/// forgotten. Before [`End::has_channel`] becomes true.
pub fn begin(end: &impl End) {
    end.state().forget_peer();
    end.state().calm.store(0, Ordering::Relaxed);
    end.state().channels.fetch_add(1, Ordering::SeqCst);
}

/// The connection has its channel. One that must not have one by now (its offer was under
/// way when it was passed on, or forked: `shared`) goes straight back.
pub fn set_out(end: &impl End, shared: bool) {
    if shared {
        // A child that was forked after the offer knows of no channel.
        down::bar(end, Reason::Forked);
    }
    match Reason::from_u32(end.state().barred.load(Ordering::Relaxed)) {
        Some(reason) => down::downgrade(end, reason, false),
        None => try_ready(end),
    }
}

/// A receive of the program was seen.
#[cold]
pub fn reads(end: &impl End) {
    end.state().reads.store(true, Ordering::SeqCst);
    if end.has_channel() {
        try_ready(end);
    }
}

/// Tells the peer that it may use the ring, unless a thread sleeps in the kernel
/// that would not notice; the last such thread calls this when it comes back. Nor
/// before a receive was seen: a program may read by bare system calls alone.
pub fn try_ready(end: &impl End) {
    let reads = end.state().reads.load(Ordering::SeqCst);
    if !reads || end.state().unaware.load(Ordering::SeqCst) != 0 {
        return;
    }
    let Ok(_guard) = end.lock(Half::Receiving) else {
        return;
    };
    if end.own().wait.rx_state.load(Ordering::Relaxed) != rx_state::OFF {
        return;
    }
    match end.received_position() {
        Some(position) => {
            if !end.may_send() {
                // Our sending half was shut before there was a channel: before the peer may
                // have bytes in its ring, it must know that this end of file is clean.
                let flags = &end.own().cold.tx_flags;
                flags.fetch_or(tx_flags::SHUT, Ordering::Release);
            }
            let counted = &end.own().rx_own.kernel_position;
            counted.store(position, Ordering::Relaxed);
            end.consumer().get_ready();
        }
        // The peer has sent its FIN already: nothing will come.
        None => end.consumer().stop(),
    }
}
