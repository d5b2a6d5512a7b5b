//! Our side of a channel whose peer cannot be trusted: what that peer may write, and what
//! the shim would call.

use crate::memory::{Guarded, endpoint, own_region};
use fordway_abi::shm::{
    ARENA_OFFSET, ENDPOINT_BYTES, Endpoint, REGION_BYTES, SEGMENT_LOG2_MIN, rx_state, tx_state,
};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Geometry, Producer, Violation};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

const SLOT: usize = 1;
/// What lies beside our endpoint and must stay as it is.
const UNTOUCHED: u8 = 0x5a;

/// What the peer writes, and where.
#[derive(Clone, Copy, Debug)]
pub enum Scribble {
    Tail(Index),
    TxState(u32),
    TxFlags(u32),
    SegmentCount(u32),
    SegmentStart(usize, Index),
    SegmentPlace(usize, u64),
    SwitchAt(u64),
    Moment(u64),
    Moments(usize, u64),
    Head(Index),
    SegmentSeen(u32),
    RxState(u32),
    Doors(u64),
    SpaceMark(u64),
    Lock(u32),
}

/// An index of the stream, right or wrong.
#[derive(Clone, Copy, Debug)]
pub enum Index {
    Any(u64),
    /// So far from where our own side stands.
    Near(i64),
}

/// What the program under test does.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Receive { skip: u64, count: usize, take: bool },
    LookAround,
    Stop,
    Resume,
    Enter,
    Send(usize),
    SendInPlace(usize),
    AskForRoom,
    Leave,
    Withdraw,
    SendBack,
}

/// A peer's region, which its user may only read. Its arena reads as zeros; all before it
/// can be changed from outside.
pub struct PeerRegion {
    pub region: Guarded,
    shared: *mut u8,
}

impl PeerRegion {
    pub fn new() -> Self {
        let region = Guarded::new(REGION_BYTES, libc::PROT_READ);
        // SAFETY: a memfd, mapped over the region's own beginning and a second time.
        unsafe {
            let fd = libc::memfd_create(c"peer".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, ARENA_OFFSET as i64), 0);
            let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
            let base = region.base().cast();
            let read_only = libc::mmap(base, ARENA_OFFSET, libc::PROT_READ, fixed, fd, 0);
            assert_eq!(read_only, base);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let shared = libc::mmap(null_mut(), ARENA_OFFSET, both, libc::MAP_SHARED, fd, 0);
            assert_ne!(shared, libc::MAP_FAILED);
            libc::close(fd);
            Self {
                region,
                shared: shared.cast(),
            }
        }
    }

    /// The peer's own view.
    pub fn writable(&self) -> *mut u8 {
        self.shared
    }
}

impl Drop for PeerRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.shared.cast(), ARENA_OFFSET) };
    }
}

/// Our side of a channel with such a peer.
pub struct Victim {
    own: Guarded,
    peer: PeerRegion,
    pub producer: Producer<Geometry>,
    pub consumer: Consumer<Geometry>,
    /// The program's buffer.
    buffer: Guarded,
}

impl Victim {
    pub fn new() -> Self {
        let (own, peer) = (own_region(), PeerRegion::new());
        for beside in [SLOT - 1, SLOT + 1] {
            // SAFETY: an endpoint of our own region.
            unsafe {
                endpoint(own.base(), beside)
                    .cast::<u8>()
                    .write_bytes(UNTOUCHED, ENDPOINT_BYTES)
            };
        }
        let own_end = endpoint(own.base(), SLOT);
        let peer_end = endpoint(peer.region.base(), SLOT);
        // SAFETY: both regions are mapped as long as the victim lives.
        let (producer, consumer) = unsafe {
            let consumer = Consumer::new(own_end, peer_end, peer.region.base());
            (
                Producer::new(own_end, own.base(), peer_end).within(Geometry::HOST),
                consumer.within(Geometry::HOST),
            )
        };
        let buffer = Guarded::new(4 << 20, libc::PROT_READ | libc::PROT_WRITE);
        Self {
            own,
            peer,
            producer,
            consumer,
            buffer,
        }
    }

    pub fn scribble(&self, scribble: Scribble) {
        let at = |index, near: u64| match index {
            Index::Any(value) => value,
            Index::Near(distance) => near.wrapping_add_signed(distance),
        };
        let (head, tail) = (self.consumer.head(), self.producer.tail());
        // SAFETY: the peer's own view of its endpoint.
        let peer: &Endpoint = unsafe { &*endpoint(self.peer.writable(), SLOT) };
        match scribble {
            Scribble::Tail(value) => peer.tx.tail.store(at(value, head), Ordering::Relaxed),
            Scribble::TxState(value) => peer.cold.tx_state.store(value, Ordering::Relaxed),
            Scribble::TxFlags(value) => peer.cold.tx_flags.store(value, Ordering::Relaxed),
            Scribble::SegmentCount(value) => {
                peer.cold.segment_count.store(value, Ordering::Relaxed)
            }
            Scribble::SegmentStart(segment, value) => {
                peer.cold.segments[segment]
                    .start
                    .store(at(value, head), Ordering::Relaxed);
            }
            Scribble::SegmentPlace(segment, value) => {
                peer.cold.segments[segment]
                    .place
                    .store(value, Ordering::Relaxed);
            }
            Scribble::Moment(value) => peer.tx.moment.store(value, Ordering::Relaxed),
            Scribble::Moments(index, value) => {
                peer.moments.moments[index].store(value, Ordering::Relaxed);
            }
            Scribble::SwitchAt(value) => peer.cold.switch_at.store(value, Ordering::Relaxed),
            Scribble::Head(value) => peer.rx.head.store(at(value, tail), Ordering::Relaxed),
            Scribble::SegmentSeen(value) => peer.rx.segment_seen.store(value, Ordering::Relaxed),
            Scribble::RxState(value) => peer.wait.rx_state.store(value, Ordering::Relaxed),
            Scribble::Doors(value) => {
                peer.wait.rx_doors.store(value, Ordering::Relaxed);
                peer.wait.tx_doors.store(value, Ordering::Relaxed);
            }
            Scribble::SpaceMark(value) => peer.wait.space_mark.store(value, Ordering::Relaxed),
            Scribble::Lock(value) => peer.rx_own.lock.store(value, Ordering::Relaxed),
        }
    }

    /// As the shim does it; a violation ends a call, and the next one is made all the same.
    pub fn call(&self, call: Call) -> Result<(), Violation> {
        let (producer, consumer) = (&self.producer, &self.consumer);
        match call {
            Call::Receive { skip, count, take } => {
                consumer.fill_bytes_for(count)?;
                let target = self.buffer.end(count);
                // SAFETY: the buffer's last `count` bytes.
                let got = unsafe {
                    consumer.peek(&Copier::detect(), Kernel::Plain, skip, target, count)?
                };
                assert!(got <= count);
                if take && skip == 0 && consumer.take(got)? {
                    consumer.peer_waits();
                }
            }
            Call::LookAround => {
                consumer.looks_readable();
                consumer.has_unread();
                consumer.fill_hint();
                consumer.has_stopped();
                consumer.was_entered();
                consumer.is_over()?;
                consumer.is_still_to_send();
                let now = fordway_ring::ticks();
                let published = consumer.published_at(consumer.head(), now);
                assert!(published.is_none_or(|ticks| ticks <= now));
                producer.room_hint();
                producer.unread_hint();
                producer.must_leave();
                producer.unread_bytes()?;
            }
            Call::Stop => consumer.stop(),
            Call::Resume => {
                consumer.resume();
            }
            Call::Enter => {
                if producer.state() == tx_state::KERNEL {
                    producer.enter(|| Some(0));
                }
            }
            Call::Send(wanted) => {
                let count = wanted.min(self.room(wanted)?);
                let (tail, source) = (producer.tail(), self.buffer.end(count));
                // SAFETY: the buffer's last `count` bytes, which are within the room.
                unsafe { producer.write(&Copier::detect(), Kernel::Plain, tail, source, count) };
                producer.publish(count);
                producer.peer_waits();
            }
            Call::SendInPlace(wanted) => {
                let count = wanted.min(self.room(wanted)?);
                for (start, length) in producer.runs(count) {
                    if length == 0 {
                        continue;
                    }
                    assert!(self.in_arena(start, length));
                    // SAFETY: just checked.
                    unsafe { start.write_bytes(1, length) };
                }
                producer.publish(count);
            }
            Call::AskForRoom => producer.ask_for_room(),
            Call::Leave => {
                producer.leave()?;
            }
            Call::Withdraw => {
                producer.withdraw()?;
            }
            Call::SendBack => {
                // Bounded as `flush_back` is: each run ends at the end of a segment or of its turn.
                let left = producer.back_bytes_or_zero();
                if left != 0 {
                    let (start, length) = producer.back_run();
                    assert!(length as u64 <= left && length != 0);
                    assert!(self.in_arena(start, length));
                    producer.back_sent(length);
                }
            }
        }
        Ok(())
    }

    /// Room while the direction is on the ring, grown as the shim does it.
    fn room(&self, wanted: usize) -> Result<usize, Violation> {
        if self.producer.state() != tx_state::RING {
            return Ok(0);
        }
        let mut room = self.producer.room_bytes(wanted)?;
        if room < wanted && self.producer.grow(wanted) {
            room = self.producer.room_bytes(wanted)?;
        }
        assert!(room <= self.producer.capacity_bytes());
        Ok(room)
    }

    fn in_arena(&self, start: *const u8, length: usize) -> bool {
        let offset = start.addr().wrapping_sub(self.own.base().addr());
        (ARENA_OFFSET..=REGION_BYTES).contains(&offset) && length <= REGION_BYTES - offset
    }

    /// Where our own region begins.
    pub fn own_base(&self) -> *mut u8 {
        self.own.base()
    }

    pub fn assert_untouched(&self) {
        for beside in [SLOT - 1, SLOT + 1] {
            let start = endpoint(self.own.base(), beside).cast::<u8>();
            // SAFETY: an endpoint of our own region.
            let bytes = unsafe { std::slice::from_raw_parts(start, ENDPOINT_BYTES) };
            assert!(
                bytes.iter().all(|byte| *byte == UNTOUCHED),
                "wrote beside the endpoint"
            );
        }
    }
}

/// What an honest peer would show with `tail` bytes in a segment at `place`.
pub fn shown(tail: u64, place: u64) -> Victim {
    let victim = Victim::new();
    victim.scribble(Scribble::SegmentPlace(0, place));
    victim.scribble(Scribble::SegmentCount(1));
    victim.scribble(Scribble::TxState(tx_state::RING));
    victim.scribble(Scribble::Tail(Index::Any(tail)));
    victim
}

pub fn peeked(victim: &Victim, count: usize) -> Result<usize, Violation> {
    let target = victim.buffer.end(count);
    // SAFETY: the buffer's last `count` bytes.
    unsafe {
        victim
            .consumer
            .peek(&Copier::detect(), Kernel::Plain, 0, target, count)
    }
}

/// A direction each way that began as it should.
pub fn on_ring() -> Victim {
    let victim = shown(0, (ARENA_OFFSET as u64) << 8 | u64::from(SEGMENT_LOG2_MIN));
    victim.scribble(Scribble::RxState(rx_state::READY));
    victim.call(Call::Enter).unwrap();
    victim
}
