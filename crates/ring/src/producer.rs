//! The sending half of a channel. The caller holds the endpoint's tx lock for
//! every `&self` call, except where a call says otherwise.

use crate::arena::Arena;
use crate::copy::{Copier, Kernel};
use crate::{Geometry, Host, Layout, Mine, Ordering, Segment, Violation, fence};
use fordway_abi::shm::{
    Endpoint, Purse, SEGMENT_COUNT, SEGMENT_LOG2_MIN, rx_state, tx_flags, tx_state,
};

/// Times a ring is found full before it grows.
const FULL_BEFORE_GROWTH: u32 = 2;
/// Large writes before a ring grows, though it is never found full.
const LARGE_BEFORE_GROWTH: u32 = 8;
/// log2 of the factor of one growth.
const GROWTH_LOG2: u32 = 4;
/// log2 of the largest segment that growth takes: 2 MB, the best of those measured.
const GROWN_LOG2_MAX: u32 = 21;
/// Tries to leave a ring that the consumer drains, before the rest is left to it.
const WITHDRAW_TRIES: u32 = if cfg!(loom) { 1 } else { 1000 };

/// View of the sending half: own endpoint and arena (written), peer's endpoint (read).
#[derive(Clone, Copy, Debug)]
pub struct Producer<L = Host> {
    own: *const Endpoint,
    own_base: *mut u8,
    peer: *const Endpoint,
    purses: fn() -> [*const Purse; 2],
    layout: L,
}

/// Result of [`Producer::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// Bytes go through the ring from now on.
    Yes,
    /// The consumer is not ready; try again at the next send.
    NotYet,
    /// The consumer wants the kernel path: the direction is over.
    Never,
    /// There is no ring memory: the direction is over.
    NoMemory,
}

impl Producer {
    /// # Safety
    /// `own` lies in the writable region of [`Geometry::HOST`] mapped at `own_base`, or of the one that
    /// [`Producer::within`] is given before any use; `peer` lies in the peer's region, mapped read-only; both stay mapped as long as this is used.
    pub unsafe fn new(own: *const Endpoint, own_base: *mut u8, peer: *const Endpoint) -> Self {
        Self {
            own,
            own_base,
            peer,
            purses: || [core::ptr::null(); 2],
            layout: Host,
        }
    }
}

impl<L: Layout> Producer<L> {
    /// The same, in a region of our own of this geometry.
    ///
    /// # Safety
    /// The region is at least as large as that says.
    pub unsafe fn within(self, geometry: Geometry) -> Producer<Geometry> {
        Producer {
            own: self.own,
            own_base: self.own_base,
            peer: self.peer,
            purses: self.purses,
            layout: geometry,
        }
    }

    /// The same, with ring memory that each of the purses pays for; null: one that need not.
    /// They are asked for when a ring grows.
    ///
    /// # Safety
    /// A purse stays mapped as long as this is used.
    pub unsafe fn paid_from(self, purses: fn() -> [*const Purse; 2]) -> Self {
        Self { purses, ..self }
    }

    fn own(&self) -> &Endpoint {
        // SAFETY: our own region; all fields are atomics.
        unsafe { &*self.own }
    }

    fn peer(&self) -> &Endpoint {
        // SAFETY: mapped; all fields are atomics, loaded once each and checked.
        unsafe { &*self.peer }
    }

    fn arena(&self) -> Arena {
        // SAFETY: by the contract of `new`.
        unsafe { Arena::new(self.own_base, self.layout.geometry()) }
    }

    fn purses(&self) -> [Option<&Purse>; 2] {
        // SAFETY: by the contract of `paid_from`; all their fields are atomics.
        (self.purses)().map(|purse| unsafe { purse.as_ref() })
    }

    fn take_memory(&self, log2: u32) -> Option<usize> {
        self.arena().take(log2, self.purses())
    }

    /// The segment that takes new bytes.
    #[inline(always)]
    fn segment(&self) -> Segment {
        let own = self.own();
        let count = own.cold.segment_count.mine();
        self.segment_at(count.wrapping_sub(1))
    }

    #[inline(always)]
    fn segment_at(&self, index: u32) -> Segment {
        let words = &self.own().cold.segments[index as usize % SEGMENT_COUNT];
        let place = words.place.mine();
        Segment {
            start: words.start.mine(),
            offset: (place >> 8) as usize,
            log2: (place & 0xff) as u32,
        }
    }

    /// Publishes `segment` as the one that takes bytes from its `start` on.
    fn publish_segment(&self, segment: Segment) {
        let own = self.own();
        let count = own.cold.segment_count.mine();
        let words = &own.cold.segments[count as usize % SEGMENT_COUNT];
        words.start.store(segment.start, Ordering::Relaxed);
        words.place.store(segment.pack(), Ordering::Relaxed);
        own.cold
            .segment_count
            .store(count.wrapping_add(1), Ordering::Release);
    }

    /// Moves this direction onto the ring. `kernel_position()` gives the bytes that
    /// the kernel has taken from this end since the connection began.
    pub fn enter(&self, kernel_position: impl FnOnce() -> Option<u64>) -> Entered {
        let own = self.own();
        match self.peer().wait.rx_state.load(Ordering::Acquire) {
            rx_state::OFF => return Entered::NotYet,
            rx_state::READY => {}
            _ => return self.refuse(),
        }
        let Some(position) = kernel_position() else {
            return self.refuse();
        };
        let Some(offset) = self.take_memory(SEGMENT_LOG2_MIN) else {
            self.refuse();
            return Entered::NoMemory;
        };
        self.publish_segment(Segment {
            start: 0,
            offset,
            log2: SEGMENT_LOG2_MIN,
        });
        own.cold.switch_at.store(position, Ordering::Relaxed);
        own.cold.tx_state.store(tx_state::RING, Ordering::Release);
        Entered::Yes
    }

    fn refuse(&self) -> Entered {
        self.own()
            .cold
            .tx_state
            .store(tx_state::BACK, Ordering::Release);
        Entered::Never
    }

    /// Bytes published so far.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.own().tx.tail.mine()
    }

    /// Loads and checks the peer's head.
    #[inline]
    fn head(&self) -> Result<u64, Violation> {
        let own = self.own();
        let head = self.peer().rx.head.load(Ordering::Acquire);
        let seen = own.tx_own.head_seen.mine();
        let tail = own.tx.tail.mine();
        if head.wrapping_sub(seen) > tail.wrapping_sub(seen) {
            return Err(Violation::Head);
        }
        own.tx_own.head_seen.store(head, Ordering::Relaxed);
        Ok(head)
    }

    /// Bytes that the peer has not taken yet.
    pub fn unread_bytes(&self) -> Result<u64, Violation> {
        Ok(self.tail().wrapping_sub(self.head()?))
    }

    /// Free bytes; the peer's index is looked at only if fewer than `wanted` are known.
    #[inline(always)]
    pub fn room_bytes(&self, wanted: usize) -> Result<usize, Violation> {
        let segment = self.segment();
        let known = self.room_after(segment, self.own().tx_own.head_seen.mine());
        if known >= wanted {
            return Ok(known);
        }
        Ok(self.room_after(segment, self.head()?))
    }

    #[inline(always)]
    fn room_after(&self, segment: Segment, head: u64) -> usize {
        // Bytes before the segment's start lie in the former one.
        let from = head.max(segment.start);
        (segment.capacity_bytes() - self.tail().wrapping_sub(from)) as usize
    }

    /// Free bytes as they seem, without lock and check: only good for deciding whether to look.
    pub fn room_hint(&self) -> usize {
        let segment = self.segment();
        let head = self.peer().rx.head.load(Ordering::Relaxed);
        let used = self.tail().wrapping_sub(head.max(segment.start));
        segment.capacity_bytes().saturating_sub(used) as usize
    }

    /// Bytes that the peer seems not to have taken, without lock and check.
    pub fn unread_hint(&self) -> u64 {
        self.tail()
            .wrapping_sub(self.peer().rx.head.load(Ordering::Relaxed))
    }

    /// What the peer seems to have taken, from the ring and from the kernel before it,
    /// without lock and check: only good to see whether it moved.
    pub fn peer_taken_hint(&self) -> u64 {
        let peer = self.peer();
        let by_ring = peer.rx.head.load(Ordering::Relaxed);
        by_ring.wrapping_add(peer.rx_own.kernel_position.load(Ordering::Relaxed))
    }

    /// State of this direction (a [`tx_state`]). Who has no lock sees WITHDRAWN also while that is tried.
    #[inline]
    pub fn state(&self) -> u32 {
        match self.own().cold.tx_state.mine() {
            tx_state::WITHDRAWING => tx_state::WITHDRAWN,
            state => state,
        }
    }

    /// Why the peer's side says that it wants the kernel path (a word of the peer's), or 0.
    pub fn peer_left_for(&self) -> u32 {
        self.peer().cold.left_for.load(Ordering::Relaxed)
    }

    /// Whether the consumer has stopped while this direction is still on the ring. Needs no lock.
    pub fn must_leave(&self) -> bool {
        self.state() == tx_state::RING && self.peer_has_stopped()
    }

    /// Capacity of the current segment.
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.segment().capacity_bytes() as usize
    }

    /// To be called when a send of `wanted` bytes found too little room: takes a
    /// larger segment if the ring is busy. It does not wait for the reader, so that a
    /// program can send about 2 MB ahead, as with TCP's buffers. True if there is new room.
    pub fn grow(&self, wanted: usize) -> bool {
        let own = self.own();
        let full = own.tx_own.full_count.mine() + 1;
        own.tx_own.full_count.store(full, Ordering::Relaxed);
        let segment = self.segment();
        if segment.log2 >= GROWN_LOG2_MAX
            || (full < FULL_BEFORE_GROWTH && wanted < segment.capacity_bytes() as usize)
        {
            return false;
        }
        let fits = wanted.next_power_of_two().trailing_zeros();
        self.grow_to(self.grown_log2().max(fits).min(GROWN_LOG2_MAX))
    }

    /// log2 of the next segment.
    fn grown_log2(&self) -> u32 {
        (self.segment().log2 + GROWTH_LOG2).min(GROWN_LOG2_MAX)
    }

    /// Whether sends that find the ring full seem to make it larger.
    #[cold]
    pub fn may_grow(&self) -> bool {
        let segments = self.own().cold.segment_count.mine() as usize;
        self.segment().log2 < GROWN_LOG2_MAX
            && segments < SEGMENT_COUNT
            && self.arena().has(self.grown_log2(), self.purses())
    }

    /// To be called before a large write that had better go around the caches, for which a
    /// ring has to be larger than the peer's: after some of them it grows once.
    pub fn grow_for_large(&self) {
        let own = self.own();
        if self.segment().log2 >= SEGMENT_LOG2_MIN + GROWTH_LOG2 {
            return;
        }
        let large = own.tx_own.full_count.mine() + 1;
        own.tx_own.full_count.store(large, Ordering::Relaxed);
        if large >= LARGE_BEFORE_GROWTH {
            self.grow_to(SEGMENT_LOG2_MIN + GROWTH_LOG2);
        }
    }

    /// The peer's index, without lock and check: only good to see whether it moved.
    #[inline]
    pub fn head_hint(&self) -> u64 {
        self.peer().rx.head.load(Ordering::Acquire)
    }

    /// Takes a segment of `1 << log2` bytes, within what the ABI allows; false if there is
    /// no memory for it, or the ring has grown often enough.
    pub fn grow_to(&self, log2: u32) -> bool {
        let own = self.own();
        if own.cold.segment_count.mine() as usize == SEGMENT_COUNT {
            return false;
        }
        let Some(offset) = self.take_memory(log2) else {
            return false;
        };
        self.publish_segment(Segment {
            start: self.tail(),
            offset,
            log2,
        });
        own.tx_own.full_count.store(0, Ordering::Relaxed);
        true
    }

    /// Copies `count` bytes to stream index `at` (at or behind `tail`), unpublished.
    ///
    /// # Safety
    /// `source` is readable for `count` bytes; `at + count - tail` is within the room.
    #[inline(always)]
    pub unsafe fn write(
        &self,
        copier: &Copier,
        kernel: Kernel,
        at: u64,
        source: *const u8,
        count: usize,
    ) {
        let segment = self.segment();
        let (offset, length) = segment.run(at);
        // SAFETY: `run` stays inside a segment of our own arena; `source` by contract.
        unsafe {
            if count <= length {
                self.copy(copier, kernel, offset, source, count);
            } else {
                self.copy(copier, kernel, offset, source, length);
                let rest = source.add(length);
                self.copy(copier, kernel, segment.offset, rest, count - length);
            }
        }
    }

    /// # Safety
    /// `[offset, offset + count)` lies inside a segment; `source` is readable for `count` bytes.
    #[inline(always)]
    unsafe fn copy(
        &self,
        copier: &Copier,
        kernel: Kernel,
        offset: usize,
        source: *const u8,
        count: usize,
    ) {
        #[cfg(loom)]
        crate::shadow::write(offset, count);
        // SAFETY: by contract.
        unsafe { copier.copy(self.own_base.add(offset), source, count, kernel) };
    }

    /// Where `count` bytes at `tail` would lie: pointers and lengths (for preadv).
    /// `count` must be within the room.
    pub fn runs(&self, count: usize) -> [(*mut u8, usize); 2] {
        self.segment()
            .runs(self.tail(), count)
            .map(|(offset, length)| {
                // SAFETY: inside our own region.
                (unsafe { self.own_base.add(offset) }, length)
            })
    }

    /// Hands `count` written bytes to the peer.
    #[inline(always)]
    pub fn publish(&self, count: usize) {
        let own = self.own();
        let tail = own.tx.tail.mine();
        // Who waits for one ring alone asks for no order, and the clock costs as much as a copy.
        #[cfg(not(loom))]
        if self.peer().wait.rx_doors.load(Ordering::Relaxed) != 0 {
            crate::moment::note(own, tail);
        }
        own.tx
            .tail
            .store(tail.wrapping_add(count as u64), Ordering::Release);
        // SYNC POINT with `Sleeper::announce` and `Consumer::stop`: bytes before the look
        // at who sleeps, and at whether the peer has stopped.
        fence(Ordering::SeqCst);
    }

    /// After `publish`: doors of the peer that want to know of new bytes, and
    /// whether the peer has stopped taking from the ring. Needs no lock.
    #[inline]
    pub fn peer_waits(&self) -> (u64, bool) {
        let wait = &self.peer().wait;
        (
            wait.rx_doors.load(Ordering::Relaxed),
            self.peer_has_stopped(),
        )
    }

    /// Before a sleep for room: asks for a ring once half the ring is free.
    pub fn ask_for_room(&self) {
        let mark = self
            .tail()
            .wrapping_sub(self.segment().capacity_bytes() / 2);
        self.own().wait.space_mark.store(mark, Ordering::Relaxed);
    }

    /// Ends the ring: `tail` is final. If the consumer has asked for that, `[back_at, tail)`
    /// is still to be sent by the kernel, and its length is returned; else (or if a consumer
    /// that drains is just taking) the consumer drains the ring, also if it asks only now.
    /// The decision is this side's alone. The doors of the peer are to be knocked at.
    pub fn leave(&self) -> Result<u64, Violation> {
        let own = self.own();
        match self.state() {
            tx_state::KERNEL => own.cold.tx_state.store(tx_state::BACK, Ordering::Release),
            tx_state::RING if self.may_resend() && self.peer_rx() == rx_state::STOP => {
                self.take_back()?;
            }
            tx_state::RING if self.peer_rx() == rx_state::DRAIN && self.withdraw_soon()? => {}
            tx_state::RING => {
                own.tx_own.back_at.store(self.tail(), Ordering::Relaxed);
                own.cold.tx_state.store(tx_state::BACK, Ordering::Release);
            }
            _ => {}
        }
        Ok(self.back_bytes())
    }

    /// Takes back what the consumer has not taken, to send it by the kernel; false if
    /// that cannot be: the direction is not on the ring, its sending half is shut, or
    /// the consumer is just taking. Afterwards, whatever came of it, the doors of the
    /// peer are to be knocked at as after `publish`: it may have seen the ring taken away.
    pub fn withdraw(&self) -> Result<bool, Violation> {
        if self.state() != tx_state::RING || !self.may_resend() {
            return Ok(false);
        }
        let state = &self.own().cold.tx_state;
        state.store(tx_state::WITHDRAWING, Ordering::SeqCst);
        // SYNC POINT with `Consumer::producer_state`, behind the consumer's lock:
        // either it sees WITHDRAWING, or its lock is seen here.
        fence(Ordering::SeqCst);
        if self.peer().rx_own.lock.load(Ordering::SeqCst) != 0 {
            state.store(tx_state::RING, Ordering::SeqCst);
            // SYNC POINT with `Sleeper::announce`: RING before the look at who sleeps.
            fence(Ordering::SeqCst);
            return Ok(false);
        }
        self.take_back()?;
        Ok(true)
    }

    /// As `withdraw`, in a few tries: the consumer has its lock for a copy at most.
    fn withdraw_soon(&self) -> Result<bool, Violation> {
        for _ in 0..WITHDRAW_TRIES {
            if self.withdraw()? {
                return Ok(true);
            }
            core::hint::spin_loop();
        }
        Ok(false)
    }

    /// The consumer takes nothing any more: what it has not taken is ours again.
    fn take_back(&self) -> Result<(), Violation> {
        let own = self.own();
        own.tx_own.back_at.store(self.head()?, Ordering::Relaxed);
        own.cold
            .tx_state
            .store(tx_state::WITHDRAWN, Ordering::Release);
        Ok(())
    }

    /// Behind the kernel's FIN nothing can be sent again: the consumer has to drain the ring.
    fn may_resend(&self) -> bool {
        self.own().cold.tx_flags.mine() & (tx_flags::SHUT | tx_flags::CLOSED) == 0
    }

    #[inline]
    fn peer_has_stopped(&self) -> bool {
        matches!(self.peer_rx(), rx_state::STOP | rx_state::DRAIN)
    }

    #[inline]
    fn peer_rx(&self) -> u32 {
        self.peer().wait.rx_state.load(Ordering::Acquire)
    }

    /// Bytes that `leave` left to be sent by the kernel.
    pub fn back_bytes(&self) -> u64 {
        self.tail().wrapping_sub(self.own().tx_own.back_at.mine())
    }

    /// As `back_bytes`, and 0 while the ring is in use.
    pub fn back_bytes_or_zero(&self) -> u64 {
        if matches!(self.state(), tx_state::BACK | tx_state::WITHDRAWN) {
            self.back_bytes()
        } else {
            0
        }
    }

    /// The next run of bytes that `leave` left (contiguous, in our own memory).
    pub fn back_run(&self) -> (*const u8, usize) {
        let at = self.own().tx_own.back_at.mine();
        let left = self.back_bytes();
        let mut segment = self.segment();
        let mut end = self.tail();
        for index in (0..self.own().cold.segment_count.mine().saturating_sub(1)).rev() {
            if at >= segment.start {
                break;
            }
            end = segment.start;
            segment = self.segment_at(index);
        }
        let count = left.min(end.wrapping_sub(at)) as usize;
        let (offset, length) = segment.runs(at, count)[0];
        // SAFETY: inside our own region.
        (unsafe { self.own_base.add(offset) }, length)
    }

    /// `count` bytes of `back_run` were taken by the kernel.
    pub fn back_sent(&self, count: usize) {
        self.own()
            .tx_own
            .back_at
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Gives the ring memory back. Only when the channel is over on both sides.
    pub fn release_memory(&self) {
        let own = self.own();
        let count = own.cold.segment_count.swap(0, Ordering::Relaxed);
        for index in 0..count.min(SEGMENT_COUNT as u32) {
            let segment = self.segment_at(index);
            self.arena().give(segment.offset, segment.log2);
        }
    }
}
