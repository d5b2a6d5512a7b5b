//! The receiving half of a channel. The caller holds the endpoint's rx lock for
//! every `&self` call, except where a call says otherwise.

use crate::copy::{Copier, Kernel};
use crate::{Geometry, Host, Layout, Mine, Ordering, Segment, Violation, fence};
use fordway_abi::shm::{Endpoint, SEGMENT_COUNT, SEGMENT_LOG2_MAX, rx_state, tx_state};

/// `RxOwnLine::drains`: up to where the ring is drained is known, ...
const ONCE: u32 = 1;
/// ... and is not asked again.
const FINAL: u32 = 2;

/// View of the receiving half: own endpoint (written), peer's endpoint and region (read).
#[derive(Clone, Copy, Debug)]
pub struct Consumer<L = Host> {
    own: *const Endpoint,
    peer: *const Endpoint,
    peer_base: *const u8,
    layout: L,
}

/// Where a stream index lies.
struct Reached {
    segment: Segment,
    /// Where the segment ends, if a newer one has been published.
    end: Option<u64>,
    /// `segment_seen` once it is entered.
    entered: u32,
}

impl Consumer {
    /// # Safety
    /// `own` lies in our writable region; `peer` lies in the peer's region, mapped
    /// read-only as a whole at `peer_base`; both stay mapped as long as this is used. The region is of
    /// [`Geometry::HOST`], or of the one that [`Consumer::within`] is given before any use.
    pub unsafe fn new(own: *const Endpoint, peer: *const Endpoint, peer_base: *const u8) -> Self {
        Self {
            own,
            peer,
            peer_base,
            layout: Host,
        }
    }
}

impl<L: Layout> Consumer<L> {
    /// The same, with a peer's region of this geometry.
    ///
    /// # Safety
    /// The region is at least as large as that says.
    pub unsafe fn within(self, geometry: Geometry) -> Consumer<Geometry> {
        Consumer {
            own: self.own,
            peer: self.peer,
            peer_base: self.peer_base,
            layout: geometry,
        }
    }

    fn own(&self) -> &Endpoint {
        // SAFETY: our own region; all fields are atomics.
        unsafe { &*self.own }
    }

    fn peer(&self) -> &Endpoint {
        // SAFETY: mapped; all fields are atomics, loaded once each and checked.
        unsafe { &*self.peer }
    }

    /// What the producer says of this direction (a [`tx_state`]). Needs no lock; but only
    /// under the rx lock, taken by a sequentially consistent exchange, is it sure that
    /// the ring is not being withdrawn meanwhile. WITHDRAWN may be RING again: the producer tries.
    #[inline]
    pub fn producer_state(&self) -> u32 {
        match self.producer_state_now() {
            tx_state::WITHDRAWING => tx_state::WITHDRAWN,
            state => state,
        }
    }

    #[inline]
    fn producer_state_now(&self) -> u32 {
        // SYNC POINT with `Producer::withdraw`: the lock before the look at the state.
        #[cfg(loom)]
        // loom takes sequentially consistent accesses for acquire and release.
        fence(Ordering::SeqCst);
        self.peer().cold.tx_state.load(Ordering::SeqCst)
    }

    /// What the producer says of its side besides (`tx_flags`). Needs no lock.
    pub fn producer_flags(&self) -> u32 {
        self.peer().cold.tx_flags.load(Ordering::Acquire)
    }

    /// Stream position in the kernel's connection at which the ring begins; valid
    /// once the producer has left `tx_state::KERNEL`.
    #[inline]
    pub fn switch_at(&self) -> u64 {
        self.peer().cold.switch_at.load(Ordering::Relaxed)
    }

    /// Bytes taken so far.
    #[inline]
    pub fn head(&self) -> u64 {
        self.own().rx.head.mine()
    }

    /// A hint, without lock and check: are there bytes that may be taken?
    pub fn looks_readable(&self) -> bool {
        self.has_unread() && (!self.has_asked() || self.may_take(self.tail_hint()) != 0)
    }

    /// A hint, without lock and check: are there bytes that were not taken, be it that
    /// the producer is to send them again?
    #[inline]
    pub fn has_unread(&self) -> bool {
        self.peer().tx.tail.load(Ordering::Relaxed) != self.own().rx.head.mine()
    }

    /// A hint, without lock and check: in `tx_state::WITHDRAWN`, has the producer still to send by
    /// the kernel what it took back?
    pub fn is_still_to_send(&self) -> bool {
        self.tail_hint() != self.peer().tx_own.back_at.load(Ordering::Relaxed)
    }

    /// Bytes that seem to be there to be taken, without lock and check.
    pub fn fill_hint(&self) -> u64 {
        let tail = self.tail_hint();
        if self.has_asked() {
            self.may_take(tail)
        } else {
            tail.wrapping_sub(self.head())
        }
    }

    /// Whether this side has asked for the kernel path.
    #[inline]
    pub fn has_asked(&self) -> bool {
        let state = self.own().wait.rx_state.mine();
        state == rx_state::STOP || state == rx_state::DRAIN
    }

    /// Bytes that may still be taken, up to `tail`, after this side has asked for the kernel
    /// path: never more than there were then, or when the producer left the ring, for a peer
    /// that publishes on and on would be read from for ever. What lies behind is the
    /// producer's to send again, or may become so at any moment.
    fn may_take(&self, tail: u64) -> u64 {
        let own = self.own();
        let fill = tail.wrapping_sub(self.head());
        let bound = || own.rx_own.drain_to.mine().wrapping_sub(self.head());
        match (own.wait.rx_state.mine(), self.producer_state()) {
            (_, tx_state::BACK) if own.rx_own.drains.mine() != FINAL => fill,
            // Under the lock that a withdrawal respects, WITHDRAWN is one that is undone.
            (_, tx_state::BACK) | (rx_state::DRAIN, _) => fill.min(bound()),
            _ => 0,
        }
    }

    /// The producer can publish nothing more: what there is now is all that is drained.
    fn drain_for_good(&self) {
        let own = &self.own().rx_own;
        if own.drains.mine() != FINAL {
            own.drain_to.store(self.tail_hint(), Ordering::Relaxed);
            own.drains.store(FINAL, Ordering::Relaxed);
        }
    }

    /// The producer's tail, unchecked: only good to see whether it moved. Needs no lock.
    pub fn tail_hint(&self) -> u64 {
        self.peer().tx.tail.load(Ordering::Acquire)
    }

    /// When the first byte at or behind stream index `from` was published, in [`crate::ticks`] and
    /// not after `now`, by what the peer says; `None`: there is none. Needs no lock: only good for
    /// the order in which rings are told of.
    #[cfg(not(loom))]
    pub fn published_at(&self, from: u64, now: u64) -> Option<u64> {
        let is_there = self.tail_hint() != from;
        is_there.then(|| crate::moment::published_at(self.peer(), from, now))
    }

    /// Bytes that can be taken.
    #[inline(always)]
    pub fn fill_bytes(&self) -> Result<u64, Violation> {
        if self.has_asked() {
            return self.fill_bytes_left();
        }
        let tail = self.tail()?;
        Ok(tail.wrapping_sub(self.head()))
    }

    /// The same, unless `wanted` bytes are known to be there: then what is known, without a look at the peer's
    /// index, whose line the producer would have to fetch back for its next publication.
    #[inline(always)]
    pub fn fill_bytes_for(&self, wanted: usize) -> Result<u64, Violation> {
        match self.knows(0, wanted) {
            true => Ok(self.known_bytes()),
            false => self.fill_bytes(),
        }
    }

    /// The same after this side has asked for the kernel path.
    #[cold]
    fn fill_bytes_left(&self) -> Result<u64, Violation> {
        if self.producer_state() == tx_state::BACK {
            self.drain_for_good();
        }
        Ok(self.may_take(self.tail()?))
    }

    /// Loads and checks the peer's tail.
    #[inline(always)]
    fn tail(&self) -> Result<u64, Violation> {
        let own = self.own();
        let head = own.rx.head.mine();
        let seen = own.rx_own.tail_seen.mine();
        let tail = self.peer().tx.tail.load(Ordering::Acquire);
        // Two segments may be in use at once while the ring grows.
        if tail.wrapping_sub(head) > 2 << SEGMENT_LOG2_MAX || tail.wrapping_sub(seen) >> 63 != 0 {
            return Err(Violation::Tail);
        }
        own.rx_own.tail_seen.store(tail, Ordering::Relaxed);
        Ok(tail)
    }

    /// Segment number `index` of the producer, checked.
    fn load_segment(&self, index: u32) -> Result<Segment, Violation> {
        let words = &self.peer().cold.segments[index as usize % SEGMENT_COUNT];
        let place = words.place.load(Ordering::Relaxed);
        Segment::unpack(
            words.start.load(Ordering::Relaxed),
            place,
            self.layout.geometry(),
        )
    }

    /// The segment that was entered last, if the producer has published none behind it.
    #[inline(always)]
    fn last_segment(&self) -> Option<Segment> {
        let seen = self.own().rx.segment_seen.mine();
        let count = self.peer().cold.segment_count.load(Ordering::Acquire);
        (count == seen && count != 0).then(|| self.entered_segment())
    }

    /// The segment that was entered last, and checked then.
    #[inline(always)]
    fn entered_segment(&self) -> Segment {
        let own = &self.own().rx_own;
        let place = own.segment_place.mine();
        Segment {
            start: own.segment_start.mine(),
            offset: (place >> 8) as usize,
            log2: (place & 0xff) as u32,
        }
    }

    /// The segment that holds stream index `at`: the last one that begins at or before it; the next
    /// one's start is its end.
    fn segment_for(&self, at: u64) -> Result<Reached, Violation> {
        let seen = self.own().rx.segment_seen.mine();
        let count = self.peer().cold.segment_count.load(Ordering::Acquire);
        if count as usize > SEGMENT_COUNT || count < seen || count == 0 {
            return Err(Violation::Segment);
        }
        let mut reached = Reached {
            segment: self.entered_segment(),
            end: None,
            entered: seen,
        };
        for index in seen..count {
            let next = self.load_segment(index)?;
            if index == 0 && next.start != 0 {
                return Err(Violation::Segment);
            }
            if index != 0 && at < next.start {
                reached.end = Some(next.start);
                break;
            }
            reached.segment = next;
            reached.entered = index + 1;
        }
        Ok(reached)
    }

    /// Copies up to `count` bytes, `skip` bytes behind `head`, without taking them.
    /// Returns how many were copied; fewer than `count` only if fewer are there.
    ///
    /// # Safety
    /// `target` is writable for `count` bytes.
    #[inline(always)]
    pub unsafe fn peek(
        &self,
        copier: &Copier,
        kernel: Kernel,
        skip: u64,
        target: *mut u8,
        count: usize,
    ) -> Result<usize, Violation> {
        // Most often all of it is known to be there, and in one piece.
        if self.knows(skip, count)
            && let Some(segment) = self.last_segment()
        {
            let at = self.head().wrapping_add(skip);
            let (offset, length) = segment.run(at);
            if count <= length && at >= segment.start {
                // SAFETY: as in `copy`.
                unsafe { self.copy(copier, kernel, target, offset, count) };
                return Ok(count);
            }
        }
        // SAFETY: by contract.
        unsafe { self.peek_pieces(copier, kernel, skip, target, count) }
    }

    /// Whether `count` bytes, `skip` behind `head`, were seen to be there, without a look at the
    /// peer's index.
    #[inline(always)]
    fn knows(&self, skip: u64, count: usize) -> bool {
        let known = self.known_bytes();
        skip <= known && count as u64 <= known - skip && !self.has_asked()
    }

    /// Bytes behind `head` that were seen to be there.
    #[inline(always)]
    fn known_bytes(&self) -> u64 {
        let own = self.own();
        own.rx_own.tail_seen.mine().wrapping_sub(own.rx.head.mine())
    }

    /// # Safety
    /// `[offset, offset + count)` lies inside a segment that was checked to lie inside the peer's
    /// mapped region; `target` is writable for `count` bytes.
    #[inline(always)]
    unsafe fn copy(
        &self,
        copier: &Copier,
        kernel: Kernel,
        target: *mut u8,
        offset: usize,
        count: usize,
    ) {
        #[cfg(loom)]
        crate::shadow::read(offset, count);
        // SAFETY: by contract.
        unsafe { copier.copy(target, self.peer_base.add(offset), count, kernel) };
    }

    /// As [`Consumer::peek`].
    #[inline(never)]
    unsafe fn peek_pieces(
        &self,
        copier: &Copier,
        kernel: Kernel,
        skip: u64,
        target: *mut u8,
        count: usize,
    ) -> Result<usize, Violation> {
        let fill = self.fill_bytes()?.saturating_sub(skip);
        let total = (count as u64).min(fill) as usize;
        let mut at = self.head().wrapping_add(skip);
        let mut done = 0;
        for _ in 0..SEGMENT_COUNT {
            if done == total {
                break;
            }
            let Reached { segment, end, .. } = self.segment_for(at)?;
            let in_segment = match end {
                Some(end) => ((total - done) as u64).min(end - at) as usize,
                None => total - done,
            };
            if in_segment > 1 << segment.log2 || at < segment.start {
                return Err(Violation::Tail);
            }
            for (offset, length) in segment.runs(at, in_segment) {
                if length != 0 {
                    // SAFETY: the segment was checked; `target` by contract.
                    unsafe { self.copy(copier, kernel, target.add(done), offset, length) };
                    done += length;
                }
            }
            at = at.wrapping_add(in_segment as u64);
        }
        if done == total {
            Ok(done)
        } else {
            Err(Violation::Tail)
        }
    }

    /// Where the next bytes lie, as far as they do in one run; `None`: there are none. They are the
    /// peer's to write, at any time. An honest one leaves them until they are taken.
    pub fn run(&self) -> Result<Option<(*const u8, usize)>, Violation> {
        let fill = self.fill_bytes()?;
        if fill == 0 {
            return Ok(None);
        }
        let at = self.head();
        let Reached { segment, end, .. } = self.segment_for(at)?;
        if at < segment.start {
            return Err(Violation::Tail);
        }
        let (offset, length) = segment.run(at);
        let in_segment = end.map_or(fill, |end| fill.min(end.wrapping_sub(at)));
        let count = in_segment.min(length as u64) as usize;
        // SAFETY: the segment was checked to lie inside the peer's mapped region.
        Ok(Some((unsafe { self.peer_base.add(offset) }, count)))
    }

    /// Takes `count` bytes that were peeked. Returns whether the producer may be
    /// waiting for room, so that [`Consumer::peer_waits`] must be asked.
    #[inline(always)]
    pub fn take(&self, count: usize) -> Result<bool, Violation> {
        let own = self.own();
        let head = own.rx.head.mine();
        let after = head.wrapping_add(count as u64);
        let fill = own.rx_own.tail_seen.mine().wrapping_sub(head);
        own.rx.head.store(after, Ordering::Release);
        let capacity = self.enter_segments(after)?;
        // A fence with each take would cost more than a small message, so only those takes
        // fence (and look who waits) that may cross a waiting producer's mark, half a ring
        // before its tail. Let F be the last fence here, and P the producer's behind its
        // final `publish`. If P came first, then all it published was seen by now, and the
        // take that crosses the mark found the ring half full. If F came first, then the
        // producer saw the head as it was at F, and found more than five eighths of its ring used:
        // the mark lies an eighth of the ring or more behind that head. A program that is told of room by an
        // edge may have less used; it is woken an eighth later, or looks by itself while bytes of its own lie unread.
        let eighth = capacity / 8;
        let crowded = fill >= capacity / 2 || (head ^ after) & !(eighth - 1) != 0;
        if crowded {
            // SYNC POINT with `Sleeper::announce`: room before the look at who sleeps.
            fence(Ordering::SeqCst);
            // What is known to be there was published before F, or after it: never less than what was at F.
            self.tail()?;
        }
        Ok(crowded)
    }

    /// Enters the newest segment that `head` has reached; returns the capacity in use.
    #[inline(always)]
    fn enter_segments(&self, head: u64) -> Result<u64, Violation> {
        match self.last_segment() {
            Some(segment) => Ok(segment.capacity_bytes()),
            None => self.enter_newer_segments(head),
        }
    }

    #[inline(never)]
    fn enter_newer_segments(&self, head: u64) -> Result<u64, Violation> {
        let own = self.own();
        let reached = self.segment_for(head)?;
        if reached.entered != own.rx.segment_seen.mine() {
            own.rx_own
                .segment_start
                .store(reached.segment.start, Ordering::Relaxed);
            own.rx_own
                .segment_place
                .store(reached.segment.pack(), Ordering::Relaxed);
            own.rx
                .segment_seen
                .store(reached.entered, Ordering::Release);
        }
        Ok(reached.segment.capacity_bytes())
    }

    /// After `take` said so: doors of the peer that want to know of room. Needs no lock.
    #[inline]
    pub fn peer_waits(&self) -> u64 {
        let wait = &self.peer().wait;
        let doors = wait.tx_doors.load(Ordering::Relaxed);
        let mark = wait.space_mark.load(Ordering::Relaxed);
        if doors == 0 || (self.head().wrapping_sub(mark) as i64) < 0 {
            0
        } else {
            doors
        }
    }

    /// Tells the producer that this side looks at the ring whenever it waits.
    pub fn get_ready(&self) {
        let state = &self.own().wait.rx_state;
        let _ = state.compare_exchange(
            rx_state::OFF,
            rx_state::READY,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }

    /// Takes nothing more from the ring until the producer has left it: either it takes
    /// back what was not taken (`tx_state::WITHDRAWN`), and `head` was final; or it had
    /// left before it saw this (`tx_state::BACK`), and the ring is drained after all.
    pub fn stop(&self) {
        self.own()
            .wait
            .rx_state
            .store(rx_state::STOP, Ordering::SeqCst);
        // SYNC POINT with `Producer::publish`: STOP before the look at `tail`.
        fence(Ordering::SeqCst);
    }

    /// As `stop`, but what has been published by now is still taken here, for the producer
    /// may not look for long; [`Consumer::stop_if_drained`] then follows each take. Nothing is
    /// ever taken that is published later, unless the producer leaves the ring to be drained.
    pub fn drain(&self) {
        let own = self.own();
        if self.has_asked() {
            return;
        }
        own.rx_own.drains.store(ONCE, Ordering::Relaxed);
        own.rx_own
            .drain_to
            .store(self.tail_hint(), Ordering::Relaxed);
        own.wait.rx_state.store(rx_state::DRAIN, Ordering::SeqCst);
        // SYNC POINT with `Producer::publish`: DRAIN before the look at `tail`.
        fence(Ordering::SeqCst);
        own.rx_own
            .drain_to
            .store(self.tail_hint(), Ordering::Relaxed);
    }

    /// The end of `drain`: from here on an empty ring is known to stay empty. Whether this is just so.
    #[inline]
    pub fn stop_if_drained(&self) -> bool {
        let own = self.own();
        let drains = own.wait.rx_state.mine() == rx_state::DRAIN;
        let is_drained = drains && own.rx_own.drains.mine() == ONCE && !self.has_unread();
        if is_drained {
            // Who publishes after the look at `tail` sees the stop, and sends again.
            self.stop();
        }
        is_drained
    }

    /// Whether, after `stop`, whatever still comes will come by the kernel. Not so while
    /// the producer has yet to decide what becomes of bytes in the ring: then nothing
    /// can be received at all.
    #[inline]
    pub fn has_stopped(&self) -> bool {
        // Once STOP was set, an empty ring stays empty: who publishes sees STOP, and withdraws.
        self.own().wait.rx_state.mine() == rx_state::STOP
            && self.own().rx_own.drains.mine() != FINAL
            && match self.producer_state() {
                tx_state::BACK => false,
                tx_state::RING => self.tail_hint() == self.head(),
                _ => true,
            }
    }

    /// The kernel has shown the end of the producer's stream, so it sends nothing again, and
    /// an honest one publishes nothing more: what there is now and it has not taken back is
    /// drained. Whether there is something. Under the lock.
    pub fn resume(&self) -> bool {
        if self.producer_state() == tx_state::RING && self.own().rx_own.drains.mine() != FINAL {
            self.drain_for_good();
            let state = &self.own().wait.rx_state;
            state.store(rx_state::DRAIN, Ordering::SeqCst);
        }
        self.looks_readable()
    }

    /// Whether `resume` has decided what is drained, once for all.
    #[inline]
    pub fn has_resumed(&self) -> bool {
        self.own().rx_own.drains.mine() == FINAL
    }

    /// Whether the producer ever put this direction on the ring.
    #[inline]
    pub fn was_entered(&self) -> bool {
        self.peer().cold.segment_count.load(Ordering::Acquire) != 0
    }

    /// Whether everything that went through the ring was taken and the producer
    /// has left it for good.
    pub fn is_over(&self) -> Result<bool, Violation> {
        let state = self.producer_state_now();
        Ok(state == tx_state::WITHDRAWN || state == tx_state::BACK && self.fill_bytes()? == 0)
    }
}
