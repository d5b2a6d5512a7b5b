//! A peer that writes anything into its region at any moment. Every call must come back
//! with a result or a `Violation`, read nothing beside the peer's region, and write nothing
//! but our own endpoint and arena.
#![cfg(not(loom))]

mod memory;

use fordway_abi::shm::{
    ARENA_OFFSET, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, MARKS_OFFSET, MarkPage, REGION_BYTES,
    SEGMENT_COUNT, SEGMENT_LOG2_MAX, SEGMENT_LOG2_MIN, SLOT_COUNT, WaitPage,
};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::marks::Marks;
use fordway_ring::{Consumer, Producer, Violation, doors_to_ring};
use memory::{Guarded, PeerRegion, endpoint, own_region};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

const SLOT: usize = 1;
/// Longest piece that is read or written at once.
const PIECE_BYTES_MAX: usize = 3 << 20;
/// What lies beside our endpoint and must stay as it is.
const UNTOUCHED: u8 = 0x5a;

/// What the peer writes, and where.
#[derive(Clone, Copy, Debug)]
enum Scribble {
    Tail(Index),
    TxState(u32),
    TxFlags(u32),
    SegmentCount(u32),
    SegmentStart(usize, Index),
    SegmentPlace(usize, u64),
    SwitchAt(u64),
    Head(Index),
    SegmentSeen(u32),
    RxState(u32),
    Doors(u64),
    SpaceMark(u64),
    Lock(u32),
}

/// An index of the stream, right or wrong.
#[derive(Clone, Copy, Debug)]
enum Index {
    Any(u64),
    /// So far from where our own side stands.
    Near(i64),
}

/// What the program under test does.
#[derive(Clone, Copy, Debug)]
enum Call {
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

fn index() -> impl Strategy<Value = Index> {
    prop_oneof![
        1 => any::<u64>().prop_map(Index::Any),
        1 => prop::sample::select(vec![0, 1, 1 << 63, u64::MAX]).prop_map(Index::Any),
        4 => (-70_000i64..9_000_000).prop_map(Index::Near),
    ]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..6u32, 1 => any::<u32>()]
}

fn place() -> impl Strategy<Value = u64> {
    let log2 = prop_oneof![4 => SEGMENT_LOG2_MIN - 1..SEGMENT_LOG2_MAX + 2, 1 => 0..256u32];
    let edge = prop::sample::select(vec![0, ENDPOINTS_OFFSET, ARENA_OFFSET, REGION_BYTES]);
    let offset = prop_oneof![
        2 => (ARENA_OFFSET / 64..REGION_BYTES / 64).prop_map(|line| line * 64),
        2 => (edge, -2i64..3).prop_map(|(edge, lines)| (edge as i64 + lines * 64) as usize),
        1 => any::<usize>(),
    ];
    prop_oneof![
        4 => (offset, log2).prop_map(|(offset, log2)| (offset as u64) << 8 | u64::from(log2)),
        1 => any::<u64>(),
    ]
}

fn scribble() -> impl Strategy<Value = Scribble> {
    prop_oneof![
        4 => index().prop_map(Scribble::Tail),
        1 => small().prop_map(Scribble::TxState),
        1 => small().prop_map(Scribble::TxFlags),
        3 => small().prop_map(Scribble::SegmentCount),
        2 => (0..SEGMENT_COUNT, index()).prop_map(|(segment, start)| Scribble::SegmentStart(segment, start)),
        3 => (0..SEGMENT_COUNT, place()).prop_map(|(segment, place)| Scribble::SegmentPlace(segment, place)),
        1 => any::<u64>().prop_map(Scribble::SwitchAt),
        4 => index().prop_map(Scribble::Head),
        1 => small().prop_map(Scribble::SegmentSeen),
        2 => small().prop_map(Scribble::RxState),
        1 => any::<u64>().prop_map(Scribble::Doors),
        1 => any::<u64>().prop_map(Scribble::SpaceMark),
        1 => small().prop_map(Scribble::Lock),
    ]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..5000usize, 2 => 0..200_000usize, 1 => 0..PIECE_BYTES_MAX]
}

fn call() -> impl Strategy<Value = Call> {
    let skip = prop_oneof![4 => Just(0), 1 => 0..100_000u64, 1 => any::<u64>()];
    prop_oneof![
        8 => (skip, size(), any::<bool>())
            .prop_map(|(skip, count, take)| Call::Receive { skip, count, take }),
        2 => Just(Call::LookAround),
        1 => Just(Call::Stop),
        1 => Just(Call::Resume),
        2 => Just(Call::Enter),
        6 => size().prop_map(Call::Send),
        2 => size().prop_map(Call::SendInPlace),
        1 => Just(Call::AskForRoom),
        1 => Just(Call::Leave),
        1 => Just(Call::Withdraw),
        2 => Just(Call::SendBack),
    ]
}

/// Our side of a channel with such a peer.
struct Victim {
    own: Guarded,
    peer: PeerRegion,
    producer: Producer,
    consumer: Consumer,
    /// The program's buffer.
    buffer: Guarded,
}

impl Victim {
    fn new() -> Self {
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
            let producer = Producer::new(own_end, own.base(), peer_end);
            (
                producer,
                Consumer::new(own_end, peer_end, peer.region.base()),
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

    fn scribble(&self, scribble: Scribble) {
        let at = |index, near: u64| match index {
            Index::Any(value) => value,
            Index::Near(distance) => near.wrapping_add_signed(distance),
        };
        let (head, tail) = (self.consumer.head(), self.producer.tail());
        // SAFETY: the peer's own view of its endpoint.
        let peer: &Endpoint = unsafe { &*endpoint(self.peer.writable(), SLOT) };
        match scribble {
            Scribble::Tail(value) => peer.tx.tail.store(at(value, head), Ordering::Relaxed),
            Scribble::TxState(value) => peer.tx.tx_state.store(value, Ordering::Relaxed),
            Scribble::TxFlags(value) => peer.tx.tx_flags.store(value, Ordering::Relaxed),
            Scribble::SegmentCount(value) => peer.tx.segment_count.store(value, Ordering::Relaxed),
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
    fn call(&self, call: Call) -> Result<(), Violation> {
        let (producer, consumer) = (&self.producer, &self.consumer);
        match call {
            Call::Receive { skip, count, take } => {
                consumer.fill_bytes()?;
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
                if producer.state() == fordway_abi::shm::tx_state::KERNEL {
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
        if self.producer.state() != fordway_abi::shm::tx_state::RING {
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
        offset >= ARENA_OFFSET && self.own.contains(start, length)
    }

    fn assert_untouched(&self) {
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

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Call),
    Scribble(Scribble),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        call().prop_map(Step::Call),
        scribble().prop_map(Step::Scribble)
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_the_peer_writes(steps in steps()) {
        let victim = Victim::new();
        for step in steps {
            match step {
                Step::Call(call) => {
                    let _ = victim.call(call);
                }
                Step::Scribble(scribble) => victim.scribble(scribble),
            }
        }
        victim.assert_untouched();
    }

    #[test]
    fn whatever_the_wait_page_says(sleeping in any::<u64>(), wanted in any::<u64>(), count in any::<u32>()) {
        let memory = Guarded::new(4096, libc::PROT_READ | libc::PROT_WRITE);
        let page: *mut WaitPage = memory.base().cast();
        // SAFETY: zeroed memory of that size.
        let doors = unsafe {
            (*page).sleeping.store(sleeping, Ordering::Relaxed);
            (*page).sleep_count.iter().for_each(|word| word.store(count, Ordering::Relaxed));
            doors_to_ring(page, wanted, |door, _| door < 64)
        };
        prop_assert_eq!(doors, sleeping & wanted);
    }

    #[test]
    fn whatever_the_marks_say(marks in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..40), slot in any::<u32>()) {
        let (own, peer) = (own_region(), PeerRegion::new());
        let words: *mut u64 = peer.writable().wrapping_add(MARKS_OFFSET).cast();
        for (at, value) in marks {
            // SAFETY: a word of the peer's mark page, in its own view.
            unsafe { words.add(at.index(size_of::<MarkPage>() / 8)).write_volatile(value) };
        }
        let page = |base: *mut u8| base.wrapping_add(MARKS_OFFSET).cast::<MarkPage>();
        // SAFETY: both regions are mapped to the end of this test.
        let view = unsafe { Marks::new(page(own.base()), page(peer.region.base())) };
        view.mark(slot);
        let mut swept = 0;
        view.sweep(|slot| {
            assert!((slot as usize) < SLOT_COUNT);
            swept += 1;
        });
        prop_assert!(swept <= SLOT_COUNT);
        let mut again = 0;
        view.sweep(|_| again += 1);
        prop_assert_eq!(again, 0);
    }
}

/// The words change in the midst of the calls.
#[test]
fn whatever_the_peer_writes_meanwhile() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    const CALLS: usize = 20_000;
    let mut runner = TestRunner::deterministic();
    let mut draw = |count: usize| -> (Vec<Call>, Vec<Scribble>) {
        let strategy = (
            prop::collection::vec(call(), count),
            prop::collection::vec(scribble(), count),
        );
        strategy.new_tree(&mut runner).unwrap().current()
    };
    let (calls, scribbles) = draw(CALLS);
    let victim = Victim::new();
    let over = AtomicBool::new(false);
    /// Ends the other thread, also after a failure.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    struct Shared<'a>(&'a Victim);
    // SAFETY: the other thread uses the peer's view alone, and hints of our own indices.
    unsafe impl Sync for Shared<'_> {}
    let shared = Shared(&victim);
    std::thread::scope(|scope| {
        let (shared, over) = (&shared, &over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for scribble in &scribbles {
                    shared.0.scribble(*scribble);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        });
        let _ends = Ends(over);
        for call in calls {
            let _ = victim.call(call);
        }
    });
    victim.assert_untouched();
}

/// What an honest peer would show with `tail` bytes in a segment at `place`.
fn shown(tail: u64, place: u64) -> Victim {
    let victim = Victim::new();
    victim.scribble(Scribble::SegmentPlace(0, place));
    victim.scribble(Scribble::SegmentCount(1));
    victim.scribble(Scribble::TxState(fordway_abi::shm::tx_state::RING));
    victim.scribble(Scribble::Tail(Index::Any(tail)));
    victim
}

fn peeked(victim: &Victim, count: usize) -> Result<usize, Violation> {
    let target = victim.buffer.end(count);
    // SAFETY: the buffer's last `count` bytes.
    unsafe {
        victim
            .consumer
            .peek(&Copier::detect(), Kernel::Plain, 0, target, count)
    }
}

#[test]
fn a_segment_lies_in_the_arena() {
    let capacity = 1usize << SEGMENT_LOG2_MIN;
    let last = REGION_BYTES - capacity;
    let pack = |offset: usize, log2: u32| (offset as u64) << 8 | u64::from(log2);
    for offset in [ARENA_OFFSET, ARENA_OFFSET + 64, last] {
        let victim = shown(100, pack(offset, SEGMENT_LOG2_MIN));
        assert_eq!(peeked(&victim, 100), Ok(100), "at {offset:#x}");
    }
    let header_or_endpoints = [0, 64, MARKS_OFFSET, ENDPOINTS_OFFSET, ARENA_OFFSET - 64];
    let outside = [
        last + 64,
        REGION_BYTES - 64,
        REGION_BYTES,
        REGION_BYTES + 64,
        usize::MAX >> 8,
    ];
    let odd = [ARENA_OFFSET + 1, ARENA_OFFSET + 63];
    for offset in header_or_endpoints.into_iter().chain(outside).chain(odd) {
        let victim = shown(100, pack(offset, SEGMENT_LOG2_MIN));
        assert_eq!(
            peeked(&victim, 100),
            Err(Violation::Segment),
            "at {offset:#x}"
        );
    }
    for log2 in [
        0,
        1,
        SEGMENT_LOG2_MIN - 1,
        SEGMENT_LOG2_MAX + 1,
        63,
        64,
        255,
    ] {
        let victim = shown(100, pack(ARENA_OFFSET, log2));
        assert_eq!(peeked(&victim, 100), Err(Violation::Segment), "log2 {log2}");
    }
}

#[test]
fn wrong_tails_are_caught() {
    let place = (ARENA_OFFSET as u64) << 8 | u64::from(SEGMENT_LOG2_MIN);
    let capacity = 1usize << SEGMENT_LOG2_MIN;
    assert_eq!(
        peeked(&shown(capacity as u64, place), capacity),
        Ok(capacity)
    );
    let too_much = shown(capacity as u64 + 1, place);
    assert_eq!(peeked(&too_much, capacity + 1), Err(Violation::Tail));
    for tail in [u64::MAX, 1 << 63, (2 << SEGMENT_LOG2_MAX) + 1] {
        assert_eq!(
            shown(tail, place).consumer.fill_bytes(),
            Err(Violation::Tail),
            "{tail:#x}"
        );
    }
    let backwards = shown(100, place);
    assert_eq!(backwards.consumer.fill_bytes(), Ok(100));
    backwards.scribble(Scribble::Tail(Index::Any(99)));
    assert_eq!(backwards.consumer.fill_bytes(), Err(Violation::Tail));
}

#[test]
fn wrong_segment_counts_are_caught() {
    let place = (ARENA_OFFSET as u64) << 8 | u64::from(SEGMENT_LOG2_MIN);
    for count in [0, SEGMENT_COUNT as u32 + 1, u32::MAX] {
        let victim = shown(100, place);
        victim.scribble(Scribble::SegmentCount(count));
        assert_eq!(peeked(&victim, 100), Err(Violation::Segment), "{count}");
    }
    let victim = shown(100, place);
    victim.scribble(Scribble::SegmentStart(0, Index::Any(1)));
    assert_eq!(
        peeked(&victim, 100),
        Err(Violation::Segment),
        "the first one starts at 0"
    );
    let victim = shown(100, place);
    assert_eq!(peeked(&victim, 100), Ok(100));
    victim.consumer.take(100).unwrap();
    victim.scribble(Scribble::SegmentCount(0));
    victim.scribble(Scribble::Tail(Index::Any(200)));
    assert_eq!(
        peeked(&victim, 100),
        Err(Violation::Segment),
        "the count went backwards"
    );
}

#[test]
fn wrong_heads_are_caught() {
    let victim = Victim::new();
    victim.scribble(Scribble::RxState(fordway_abi::shm::rx_state::READY));
    victim.call(Call::Enter).unwrap();
    victim.call(Call::Send(1000)).unwrap();
    for (head, result) in [
        (0, Ok(1000)),
        (600, Ok(400)),
        (599, Err(Violation::Head)),
        (1001, Err(Violation::Head)),
        (u64::MAX, Err(Violation::Head)),
        (1 << 63, Err(Violation::Head)),
        (1000, Ok(0)),
    ] {
        victim.scribble(Scribble::Head(Index::Any(head)));
        assert_eq!(victim.producer.unread_bytes(), result, "{head:#x}");
    }
}
