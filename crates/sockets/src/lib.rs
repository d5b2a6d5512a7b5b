//! What a connection with a channel is: how its two directions come to the ring, what a
//! receive and a send do meanwhile, how they go back to the kernel, and how they end.
//!
//! Nothing here makes a system call, sleeps, or copies a byte. Whoever runs a connection
//! (the shim in a program, the simulation in the tests) is an [`End`]: it lends its
//! endpoint and its [`State`], and does what it is asked to do with the kernel's socket.
//! The order of those steps, and what is made of their results, is decided here alone.
//!
//! # The way of the bytes
//! A direction is first the kernel's, then the ring's from `switch_at` on, then perhaps the
//! kernel's again (`fordway_ring`). The receiver reads each part to its end before the next
//! ([`receive`]); the sender enters the ring, and leaves it, under its lock and only after
//! what must go before has gone ([`send`]). Both ends of a part are known from shared
//! memory, so no byte is lost, doubled or swapped, whatever the two programs do meanwhile.
//!
//! # Past the library
//! A program may send in a way that its library does not see. While its ring is in use, the
//! receiver then finds bytes in the kernel that nobody announced. It looks for them whenever
//! the kernel shows something, and now and then on a busy ring. If nothing was published since
//! a look that found none, their place is known: they are received there, and the connection
//! goes to the kernel path. Else the order may be wrong, and the connection is lost.
//!
//! # Up
//! [`up::begin`] when the broker has paired the connection. [`up::try_ready`] tells the peer
//! that this end looks at the ring, once no thread sleeps in the kernel unaware of it. Each
//! end then puts its own sending direction on the ring at its next send.
//!
//! # Down
//! An end that must be on the kernel path leaves the ring with its own direction, stops
//! taking from the other, and knocks at the peer's doors; the peer sends by the kernel what was not
//! taken, before anything else ([`down::downgrade`]). Nobody else has to act, and no byte
//! depends on timing. When both directions are back, the connection gives its channel up
//! ([`down::give_up_if_over`]). [`phase`] has the table of all its steps.
//!
//! # Loans
//! A program may be lent ring memory ([`loan`]): as long as it is, the channel stays, with both
//! directions back perhaps, and nobody else writes to the ring.
//!
//! # A pair of AF_UNIX sockets
//! The kernel's connection may be a pair ([`End::is_unix`]). It counts no bytes, but it delivers at once: what
//! one end has sent lies in the other's queue when send(2) is back. So a direction enters its ring when nothing of
//! it lies there ([`End::is_drained`]), at position 0 of both ends, and the receiver counts from there. A close is known
//! at once, too, and nobody can have the kernel say that it was a reset: that bytes lie unread in the ring says so ([`ends`]).
//!
//! # Locks
//! Each half of an endpoint has a lock ([`Half`]). What is done under it never sleeps. Where
//! both are held, the sending half's was taken first. The peer looks at the receiving half's.
//!
//! A channel is given up under both. So under either of them it stays this connection's, and
//! what was looked at before is looked at again: another thread may have given the channel up
//! meanwhile, whose place in memory is then another connection's. Without a lock the
//! endpoint says nothing for sure: it is looked at ([`ready`]) to see whether a call is worth a
//! try, and no word of it is written but the bits by which a waiter is woken.
#![no_std]
#![forbid(unsafe_code)]

mod carried;
pub mod down;
pub mod ends;
mod flush;
pub mod loan;
mod patience;
pub mod phase;
pub mod ready;
mod receive;
mod send;
mod short;
mod state;
mod transfer;
pub mod up;

pub use carried::{Carried, carried};
pub use patience::Patience;
pub use phase::{Event, Phase};
pub use receive::{NotCopied, Target, has_end, is_at_mark, is_owed, receive};
pub use send::{Source, flush_back, send, sends_by_kernel};
pub use short::{receive_short, send_short};
pub use state::{Last, State, attention};
pub use transfer::{Caller, Done, Receive, Transfer, attend, receive_enough, send_all};

use fordway_abi::shm::Endpoint;
use fordway_ring::{Consumer, Layout, Producer, Violation};

/// What a step came to; the error is an errno.
pub type Result<T> = core::result::Result<T, i32>;

/// A half of an endpoint, with a lock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The producer's: `Endpoint::tx_own`.
    Sending,
    /// The consumer's: `Endpoint::rx_own`.
    Receiving,
}

/// Why a half was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLock {
    /// The connection has no channel (any more).
    NoChannel,
    /// The caller itself has interrupted the lock's holder: it is in a signal handler.
    Interrupted,
}

impl NoLock {
    /// What it means for an attempt to move bytes.
    pub(crate) fn moved(self) -> Result<Moved> {
        match self {
            Self::NoChannel => Ok(Moved::Kernel),
            Self::Interrupted => Err(libc::EAGAIN),
        }
    }
}

/// Runs `look` while nobody gives the channel up; `None`: there is none. What is read of an
/// endpoint without that may be another connection's by then.
pub fn holding<E: End, T>(end: &E, half: Half, look: impl FnOnce() -> T) -> Option<T> {
    if !end.has_channel() {
        return None;
    }
    let guard = end.lock(half);
    // Whoever has interrupted the lock's holder is as good as the holder.
    (!matches!(guard, Err(NoLock::NoChannel))).then(look)
}

/// What one attempt to move bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes (received: 0 is the end of file).
    Bytes(usize),
    /// Nothing can be moved now.
    Nothing,
    /// It is the kernel's to do: the connection has no channel (any more).
    Kernel,
}

/// Why a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The peer broke the protocol.
    Broken(Violation),
    /// The peer's program has sent past the library, and where in the stream is not known.
    Unseen,
    /// The peer is gone for good, and what became of bytes of ours is not known.
    Alone,
}

/// One end of a connection, as whoever runs it lends it to this crate. What is said of the
/// channel holds while it has one. No call sleeps but for those that say so.
pub trait End {
    /// Frees the lock.
    type Guard<'a>
    where
        Self: 'a;
    /// The link that a channel belongs to.
    type Link;
    /// While it lives, no handler of the program's runs in this thread.
    type Shield;
    /// Where ring memory lies in the peer's region.
    type Layout: Layout;

    /// What this end remembers.
    fn state(&self) -> &State;
    /// Whether it has a channel.
    fn has_channel(&self) -> bool;
    /// Whether the endpoint is still that of its channel: one that a forked parent has given
    /// up may belong to another by now.
    fn is_bound(&self) -> bool;
    /// Whether the peer has made its endpoint for this channel; before that, the endpoint
    /// there belongs to nobody or to an older channel.
    fn peer_is_there(&self) -> bool;
    /// The own endpoint.
    fn own(&self) -> &Endpoint;
    /// The sending half of the channel.
    fn producer(&self) -> Producer;
    /// The receiving half of the channel.
    fn consumer(&self) -> Consumer<Self::Layout>;
    /// Takes the lock of a half of the channel that the connection has now, by a sequentially
    /// consistent exchange. Under it the connection keeps that channel. Another one may have
    /// come while the lock was waited for: it is to be looked at again with the lock taken.
    fn lock(&self, half: Half) -> core::result::Result<Self::Guard<'_>, NoLock>;
    /// A handler that jumps, or waits for the peer, may not come between what a peer is shown and what wakes it.
    fn shield(&self) -> Self::Shield;

    /// Bytes were published: marks the channel, if the peer wants that, and knocks at those of
    /// `doors` that sleep.
    fn tell(&self, doors: u64);
    /// Room was made: knocks at those of `doors` that sleep.
    fn knock(&self, doors: u64);
    /// Wakes every waiter of the peer that has to do with this connection.
    fn knock_all(&self);
    /// Wakes every waiter of this end's own process that has to do with this connection: what
    /// it waits for will come another way.
    fn wake_own(&self);
    /// Whether a waiter of the peer sleeps behind one of `doors`.
    fn peer_sleeps(&self, doors: u64) -> bool;

    /// Moves whenever a thread of the peer's process begins to wait in the library.
    fn peer_beat(&self) -> u32;
    /// What the kernel shows of the connection's end: POLLRDHUP, POLLHUP, POLLERR. What was known
    /// before, if it cannot be asked.
    fn kernel_shows(&self) -> u32;
    /// Whether the next byte that the kernel has is the urgent one: a receive stops before it.
    fn is_at_mark(&self) -> bool;
    /// Receives nothing, and says what a receive of one byte would give (MSG_PEEK).
    fn peek_kernel(&self) -> Result<usize>;
    /// Sends a run of our own ring memory by the kernel, without SIGPIPE.
    fn send_run(&self, base: *const u8, length: usize) -> Result<usize>;
    /// Bytes that the kernel's connection takes at once, by a careful guess.
    fn kernel_room(&self) -> u64;
    /// Whether this end gives its channel up without the far end's answer: that one is gone; or, if it lives, finds all that it
    /// has to know in memory of ours, which stays as it is for as long as it looks at it.
    fn parts_alone(&self) -> bool {
        false
    }
    /// Whether the kernel's connection is a pair of AF_UNIX sockets.
    fn is_unix(&self) -> bool;
    /// Of such a pair: whether the far end is a stack, which reads by the library or not at all, and nothing while it has no room.
    fn is_to_stack(&self) -> bool {
        false
    }
    /// Of such a pair: whether the far end has received all that this end has sent by the kernel. The caller keeps others
    /// from sending.
    fn is_drained(&self) -> bool;
    /// Bytes that the kernel has taken from this end since the connection began; `None` if
    /// they cannot be told. Of a pair 0, or `None` if nothing can be sent. The caller keeps others from sending.
    fn sent_position(&self) -> Option<u64>;
    /// Whether the program has not shut its sending half, nor the kernel for it.
    fn may_send(&self) -> bool {
        self.sent_position().is_some()
    }
    /// The stream goes on by the ring: what the kernel holds back in the hope of more is to
    /// go now.
    fn push_kernel_tail(&self);
    /// Bytes that this end has read from the kernel since the connection began; `None` once
    /// the peer's end of file is there. Of a pair 0.
    fn received_position(&self) -> Option<u64>;
    /// Has the close of the socket reset the connection (SO_LINGER of 0). Of a pair nothing: its peer sees that by itself.
    fn reset_at_close(&self);

    /// The connection is lost, and the kernel's with it.
    fn lost(&self, why: Lost);
    /// Both directions are back, under both locks: it has no channel from here on. `reason`:
    /// why, or 0. It may get another channel at once; the link is that of this one.
    fn give_up(&self, reason: u32) -> Self::Link;
    /// Lets go of the channel's memory, behind `give_up` and without a lock.
    fn unbind(&self, link: Self::Link);

    /// Lets go of a channel that is a parent's, and perhaps another connection's by now.
    fn disown(&self);

    /// Shuts the sending half by the kernel.
    fn shut_sending(&self);

    /// Whether the program wants no call on it to sleep (O_NONBLOCK).
    fn is_nonblocking(&self) -> bool;
    /// What all connections of the process may wait although they are non-blocking.
    fn patience(&self) -> &Patience;
    /// The monotonic clock.
    fn now_ns(&self) -> u64;
    /// Sleeps a little, and acts on the broker's mail.
    fn pause(&self);
    /// Sleeps a little, until the kernel can take bytes.
    fn await_room(&self);
    /// Sleeps until the kernel has bytes, within a bound and so long at most; whether it has.
    fn await_bytes(&self, most_ns: u64) -> bool;
}
