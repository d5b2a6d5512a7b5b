//! Bytes that went by rings, which the kernel's own counts lack.
//!
//! What is published lies in the peer's reach whatever becomes of this end: it counts as
//! sent, acknowledged and received at once, as far as a receive buffer would hold it. What
//! goes beyond counts as queued and not sent, as TCP has it when a peer does not read.

use crate::{End, Half, holding};
use core::sync::atomic::Ordering;
use fordway_abi::shm::tx_state;

/// Unread bytes that count as if they lay in the peer's receive buffer: the window of a new
/// TCP connection (linux: the half of tcp_rmem's default).
const WINDOW_BYTES: u64 = 64 * 1024;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that went out and have arrived.
    pub sent: u64,
    /// Bytes that the program has sent and that wait for the peer to read.
    pub queued: u64,
    /// Bytes that came.
    pub received: u64,
}

/// Since the connection began, by all of its channels.
pub fn carried(end: &impl End) -> Carried {
    let state = end.state();
    let now = || end.peer_is_there().then(|| of_channel(end));
    let mut all = holding(end, Half::Sending, now)
        .flatten()
        .unwrap_or_default();
    all.sent += state.sent_by_rings.load(Ordering::Relaxed);
    all.received += state.received_by_rings.load(Ordering::Relaxed);
    all
}

fn of_channel(end: &impl End) -> Carried {
    let (producer, consumer) = (end.producer(), end.consumer());
    let unread = producer.unread_hint();
    let back = producer.back_bytes_or_zero();
    let (sent, queued) = match producer.state() {
        // What was not taken is the kernel's to send, and counts there once it has it.
        tx_state::WITHDRAWN => (producer.tail().wrapping_sub(unread), back),
        _ => {
            let queued = unread.saturating_sub(WINDOW_BYTES);
            (producer.tail().wrapping_sub(queued), queued)
        }
    };
    let received = match consumer.producer_state() {
        tx_state::RING | tx_state::BACK => consumer.head().wrapping_add(consumer.fill_hint()),
        _ => consumer.head(),
    };
    Carried {
        sent,
        queued,
        received,
    }
}

/// The channel is about to be given up: its bytes are kept in mind.
pub(crate) fn keep(end: &impl End) {
    let last = of_channel(end);
    let state = end.state();
    state.sent_by_rings.fetch_add(last.sent, Ordering::Relaxed);
    let received = &state.received_by_rings;
    received.fetch_add(last.received, Ordering::Relaxed);
}
