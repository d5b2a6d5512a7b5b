//! A peer that writes anything into its region at any moment. Every call must come back
//! with a result or a `Violation`, read nothing beside the peer's region, and write nothing
//! but our own endpoint and arena.
#![cfg(not(loom))]

#[path = "../memory/mod.rs"]
mod memory;
mod victim;

use fordway_abi::shm::{
    ARENA_OFFSET, ENDPOINTS_OFFSET, MARKS_OFFSET, MOMENT_COUNT, MarkPage, REGION_BYTES,
    SEGMENT_COUNT, SEGMENT_LOG2_MAX, SEGMENT_LOG2_MIN, SLOT_COUNT, WaitPage, rx_state,
};
use fordway_ring::marks::Marks;
use fordway_ring::{Entered, Geometry, Violation, doors_to_knock_at};
use memory::{Guarded, own_region};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::sync::atomic::{AtomicBool, Ordering};
use victim::{Call, Index, PeerRegion, Scribble, Victim, on_ring, peeked, shown};

/// Longest piece that is read or written at once.
const PIECE_BYTES_MAX: usize = 3 << 20;

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
        1 => any::<u64>().prop_map(Scribble::Moment),
        1 => (0..MOMENT_COUNT, any::<u64>()).prop_map(|(index, value)| Scribble::Moments(index, value)),
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
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..Default::default() })]

    #[test]
    fn whatever_the_peer_writes(steps in steps()) {
        let victim = on_ring();
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
            doors_to_knock_at(page, wanted, |door, _| door < 64)
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
    let victim = on_ring();
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
fn a_segment_lies_in_the_arena_of_a_small_region() {
    let capacity = 1usize << SEGMENT_LOG2_MIN;
    let (first, end) = (5 * 4096, 5 * 4096 + 2 * capacity);
    let geometry = Geometry::new(first, end).unwrap();
    let peeked_at = |offset: usize, log2: u32| {
        let mut victim = shown(100, (offset as u64) << 8 | u64::from(log2));
        // SAFETY: the region is larger.
        victim.consumer = unsafe { victim.consumer.within(geometry) };
        peeked(&victim, 100)
    };
    for offset in [first, first + 64, end - capacity] {
        assert_eq!(peeked_at(offset, SEGMENT_LOG2_MIN), Ok(100), "{offset:#x}");
    }
    assert_eq!(peeked_at(first, SEGMENT_LOG2_MIN + 1), Ok(100));
    let outside = [0, 64, first - 64, end - capacity + 64, end, end + 64];
    for offset in outside.into_iter().chain([ARENA_OFFSET, REGION_BYTES]) {
        let segment = peeked_at(offset, SEGMENT_LOG2_MIN);
        assert_eq!(segment, Err(Violation::Segment), "{offset:#x}");
    }
    let too_large = peeked_at(first + 64, SEGMENT_LOG2_MIN + 1);
    assert_eq!(too_large, Err(Violation::Segment));
    for [first, end] in [
        [0, 4096],
        [65, 4096],
        [4096, 4095],
        [4096, REGION_BYTES + 64],
    ] {
        assert_eq!(Geometry::new(first, end), None);
    }
}

#[test]
fn a_ring_grows_within_its_region() {
    let (first, small, large) = (5 * 4096, SEGMENT_LOG2_MIN, SEGMENT_LOG2_MIN + 4);
    // Seventeen new rings, and what growth leaves.
    let geometry = Geometry::new(first, first + 20 * (1 << small)).unwrap();
    let mut victim = Victim::new();
    // SAFETY: the region is larger.
    victim.producer = unsafe { victim.producer.within(geometry) };
    victim.scribble(Scribble::RxState(rx_state::READY));
    assert_eq!(victim.producer.enter(|| Some(0)), Entered::Yes);
    assert!(!victim.producer.grow_to(large + 1));
    assert!(victim.producer.grow_to(large));
    assert!(
        !victim.producer.grow_to(small + 1),
        "what is left is for new rings"
    );
    assert_eq!(victim.producer.capacity_bytes(), 1 << large);
    let [(start, _), _] = victim.producer.runs(1);
    let room = victim.own_base().wrapping_add(first + (1 << small));
    assert_eq!(start, room, "behind the first segment");
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
        // All are in order, so that only the count can end the search.
        for segment in 0..SEGMENT_COUNT {
            victim.scribble(Scribble::SegmentPlace(segment, place));
        }
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
    let victim = on_ring();
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
