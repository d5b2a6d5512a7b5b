//! Rings with another guest: the two regions of docs/abi.md in this guest's memory, and what may be done with them.
//!
//! ```text
//!   Link      of a process there and this image: 64 channels, ring memory of 4 MB each way (`shm::GUEST_*`)
//!   Wire      of the two brokers: one channel, in small regions that name their own grants (`shm::granted`)
//!
//!   own range   │ head │ ... │ arena │    pages of ours, granted for reading
//!   peer range  │ head │ ... │ arena │    pages of theirs, mapped for reading
//! ```
//! Everything of the peer's is read by atomics, once, or copied out by `fordway_ring`, which knows how much of the range has
//! memory (`Geometry`). Ours is written by us alone, so that a reference to its atomics, or to bytes that only the peer reads, breaks no rule.
//!
//! A [`Producer`] or a [`Consumer`] is used as long as its link is there, which its user holds.

use crate::events;
use crate::foreign::{Foreign, Granted, Range};
use crate::grants::GrantRef;
use crate::hypercall::Refused;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use fordway_abi::ABI_VERSION;
use fordway_abi::shm::{
    ARENA_OFFSET, DOOR_COUNT, DOOR_SHARED, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint,
    GUEST_ARENA_BYTES, GUEST_HEAD_BYTES, GUEST_SLOT_COUNT, GUEST_WAIT_OFFSET, MARKS_OFFSET,
    REGION_MAGIC, RegionHeader, SEGMENT_LOG2_MIN, WAIT_PAGE_MAGIC, WaitPage, granted, tx_state,
};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::marks::Marks;
use fordway_ring::{
    Consumer, Entered, Geometry, Layout, Producer, Sleeper, Violation, doors_to_knock_at, renew,
};
use fordway_xen_abi::PAGE_SIZE;

const HEAD_PAGES: usize = GUEST_HEAD_BYTES / PAGE_SIZE;
const ARENA_PAGES: usize = GUEST_ARENA_BYTES / PAGE_SIZE;
/// Pages of one side of a link.
pub const LINK_PAGES: usize = HEAD_PAGES + ARENA_PAGES;
/// Addresses of one side of a link.
pub const LINK_BYTES: usize = ARENA_OFFSET + GUEST_ARENA_BYTES;
/// How our pages lie in their range.
pub const LINK_LAYOUT: [(usize, usize); 2] = [(0, HEAD_PAGES), (ARENA_OFFSET, ARENA_PAGES)];

/// Ring memory of a broker's region.
const WIRE_ARENA_BYTES: usize = 1 << SEGMENT_LOG2_MIN;
const WIRE_PAGES: usize = 1 + (granted::ARENA_OFFSET + WIRE_ARENA_BYTES) / PAGE_SIZE;
/// Addresses of the largest region that a directory names.
pub const WIRE_BYTES: usize = granted::PAGES_MAX * PAGE_SIZE;
/// How our pages lie in their range.
pub const WIRE_LAYOUT: [(usize, usize); 1] = [(0, WIRE_PAGES)];

/// The door of this image, as a bit: one thread sleeps.
pub const DOOR: u64 = 1 << DOOR_SHARED;

/// Copies bytes behind the producer's tail, which are published by whoever asked for it.
///
/// # Panics
/// If there is no room for them.
pub fn put(producer: &Producer, bytes: &[u8]) {
    let room = match producer.state() {
        tx_state::RING => producer.room_bytes(bytes.len()),
        _ => Ok(0),
    };
    assert!(room.is_ok_and(|room| room >= bytes.len()));
    // SAFETY: a slice, and there is room for it.
    unsafe {
        let (from, count) = (bytes.as_ptr(), bytes.len());
        producer.write(&Copier::sse2(), Kernel::Plain, producer.tail(), from, count);
    }
}

/// Copies bytes from behind the consumer's head, as many as there are; they stay there.
pub fn get<L: Layout>(consumer: &Consumer<L>, buffer: &mut [u8]) -> Result<usize, Violation> {
    let (to, count) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: a buffer of ours.
    unsafe { consumer.peek(&Copier::sse2(), Kernel::Plain, 0, to, count) }
}

fn begin_region(base: *mut u8, wait_offset: usize) {
    // SAFETY: whoever calls this has a region there whose head is mapped for writing; atomics.
    let (header, page) = unsafe {
        (
            &*base.cast::<RegionHeader>(),
            &*base.add(wait_offset).cast::<WaitPage>(),
        )
    };
    header.abi_version.store(ABI_VERSION, Ordering::Relaxed);
    page.magic.store(WAIT_PAGE_MAGIC, Ordering::Relaxed);
    page.abi_version.store(ABI_VERSION, Ordering::Relaxed);
    header.magic.store(REGION_MAGIC, Ordering::Release);
}

/// Makes granted pages of [`LINK_LAYOUT`] a region of a link, before the peer hears of them.
pub fn begin_link(own: &Granted) {
    assert!(own.references().len() == LINK_PAGES);
    let base = own.base();
    // SAFETY: the head is there; atomics.
    let header = unsafe { &*base.cast::<RegionHeader>() };
    let end = (ARENA_OFFSET + GUEST_ARENA_BYTES) as u64;
    header.arena_end.store(end, Ordering::Relaxed);
    begin_region(base, GUEST_WAIT_OFFSET);
}

/// Both sides of a link.
#[derive(Debug)]
pub struct Link {
    own: Granted,
    peer: Foreign,
    geometry: Geometry,
    /// `sleep_count` at which each of the peer's doors was knocked at last.
    knocked: [Cell<u32>; DOOR_COUNT],
}

impl Link {
    /// Over a region of ours ([`begin_link`]), and what the peer has granted.
    pub fn new(
        own: Granted,
        range: Range,
        domain: u16,
        references: &[GrantRef],
    ) -> Result<Link, (Granted, Range, Refused)> {
        const NOT_WHOLE: Refused = Refused(22);
        let least = HEAD_PAGES + (1 << SEGMENT_LOG2_MIN) / PAGE_SIZE;
        if !(least..=LINK_PAGES).contains(&references.len()) {
            return Err((own, range, NOT_WHOLE));
        }
        let (head, arena) = references.split_at(HEAD_PAGES);
        let end = ARENA_OFFSET + arena.len() * PAGE_SIZE;
        let Some(geometry) = Geometry::new(ARENA_OFFSET, end) else {
            return Err((own, range, NOT_WHOLE));
        };
        match Foreign::map(range, domain, &[(0, head), (ARENA_OFFSET, arena)]) {
            Ok(peer) => Ok(Link::over(own, peer, geometry)),
            Err((range, refused)) => Err((own, range, refused)),
        }
    }

    /// Of the peer's range, what the geometry says has memory, and the head.
    fn over(own: Granted, peer: Foreign, geometry: Geometry) -> Link {
        Link {
            own,
            peer,
            geometry,
            knocked: [const { Cell::new(0) }; DOOR_COUNT],
        }
    }

    /// It is over, and nobody has a channel of it: our pages, and the range of theirs.
    pub fn end(self) -> (Granted, Range) {
        (self.own, self.peer.unmap())
    }

    /// Our end of a channel.
    pub fn own(&self, slot: u32) -> &Endpoint {
        // SAFETY: within the head, which is ours; all fields are atomics.
        unsafe { &*self.own.base().add(endpoint_offset(slot)).cast() }
    }

    fn peer(&self, slot: u32) -> *const Endpoint {
        self.peer.base().wrapping_add(endpoint_offset(slot)).cast()
    }

    fn peer_words(&self, slot: u32) -> &Endpoint {
        // SAFETY: within the head, which is mapped as long as `self` is there; atomics only, loaded once each.
        unsafe { &*self.peer(slot) }
    }

    fn peer_page(&self) -> *const WaitPage {
        self.peer.base().wrapping_add(GUEST_WAIT_OFFSET).cast()
    }

    fn peer_page_words(&self) -> &WaitPage {
        // SAFETY: as `peer_words`.
        unsafe { &*self.peer_page() }
    }

    /// Our wait page for the peer.
    fn own_page(&self) -> &WaitPage {
        // SAFETY: within the head, which is ours; atomics.
        unsafe { &*self.own.base().add(GUEST_WAIT_OFFSET).cast() }
    }

    /// The sending half of a channel.
    pub fn producer(&self, slot: u32) -> Producer {
        // SAFETY: both ends are mapped, and of our range the allocator uses what has memory (`arena_end`).
        unsafe { Producer::new(self.own(slot), self.own.base(), self.peer(slot)) }
    }

    /// The receiving half of a channel.
    pub fn consumer(&self, slot: u32) -> Consumer<Geometry> {
        // SAFETY: both ends are mapped, and of the peer's range what the geometry says.
        unsafe {
            Consumer::new(self.own(slot), self.peer(slot), self.peer.base()).within(self.geometry)
        }
    }

    /// Makes our end as new, for the next channel of this slot.
    pub fn cut(&self, slot: u32, generation: u32) {
        self.producer(slot).release_memory();
        // SAFETY: our own end; the broker gives a slot out again only when both sides are done with it.
        unsafe { renew(self.own.base().add(endpoint_offset(slot)).cast()) };
        let made = &self.own(slot).cold.generation;
        made.store(generation, Ordering::SeqCst);
    }

    /// The channel that the peer's end is made for.
    pub fn peer_generation(&self, slot: u32) -> u32 {
        self.peer_words(slot)
            .cold
            .generation
            .load(Ordering::Acquire)
    }

    /// All doors of the peer that wait for something of a channel.
    pub fn peer_doors(&self, slot: u32) -> u64 {
        let wait = &self.peer_words(slot).wait;
        wait.rx_doors.load(Ordering::Relaxed) | wait.tx_doors.load(Ordering::Relaxed)
    }

    /// Marks a channel, if the peer wants that. What is new there was published, and fenced.
    pub fn mark(&self, slot: u32) {
        let wait = &self.peer_words(slot).wait;
        if wait.wants_mark.load(Ordering::Relaxed) != 0 {
            // SAFETY: both heads are mapped as long as `self` is there.
            let marks = unsafe {
                Marks::new(
                    self.own.base().add(MARKS_OFFSET).cast(),
                    self.peer.base().add(MARKS_OFFSET).cast(),
                )
            };
            marks.mark(slot);
        }
    }

    /// Which of these doors of the peer are to be knocked at. What it is to see was published, and fenced.
    pub fn doors_to_knock_at(&self, doors: u64) -> u64 {
        let is_new = |door: usize, sleep| self.knocked[door].replace(sleep) != sleep;
        // SAFETY: mapped as long as `self` is there.
        unsafe { doors_to_knock_at(self.peer_page(), doors, is_new) }
    }

    /// The knock went astray: the next one is a new one.
    pub fn forget_knock(&self, door: usize) {
        self.knocked[door].set(0);
    }

    /// Whether the peer sleeps behind one of these doors.
    pub fn peer_sleeps(&self, doors: u64) -> bool {
        self.peer_page_words().sleeping.load(Ordering::SeqCst) & doors != 0
    }

    /// See `fordway_sockets::End::peer_beat`.
    pub fn peer_beat(&self) -> u32 {
        self.peer_page_words().beat.load(Ordering::Relaxed)
    }

    /// This image is about to sleep. What it sleeps for is looked at once more behind this.
    pub fn announce(&self) {
        let page = self.own_page();
        page.beat.fetch_add(1, Ordering::Relaxed);
        Sleeper::new(page, DOOR_SHARED).announce();
    }

    /// It runs again.
    pub fn retract(&self) {
        Sleeper::new(self.own_page(), DOOR_SHARED).retract();
    }

    /// This image has done something by the network.
    pub fn acted(&self) {
        self.own_page().kernel_acts.fetch_add(1, Ordering::SeqCst);
    }

    /// A run of our own ring memory, which nobody writes to as long as it is not sent.
    ///
    /// # Panics
    /// If it is not ours.
    pub fn own_run(&self, base: *const u8, length: usize) -> &[u8] {
        assert!(self.own.has(base as usize, length));
        let own = self.own.base();
        let offset = base as usize - own as usize;
        // SAFETY: our own pages, mapped as long as `self` is there.
        unsafe { core::slice::from_raw_parts(own.add(offset), length) }
    }
}

fn endpoint_offset(slot: u32) -> usize {
    assert!((slot as usize) < GUEST_SLOT_COUNT);
    ENDPOINTS_OFFSET + slot as usize * ENDPOINT_BYTES
}

/// The conversation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over;

impl From<Violation> for Over {
    fn from(_: Violation) -> Self {
        Over
    }
}

impl From<Refused> for Over {
    fn from(_: Refused) -> Self {
        Over
    }
}

/// The channel of two brokers, as `fordway_xen_user::Channel` is one. Nothing here waits.
#[derive(Debug)]
pub struct Wire {
    own: Granted,
    peer: Foreign,
    producer: Producer<Geometry>,
    consumer: Consumer<Geometry>,
    port: u32,
    knocked: Cell<u32>,
}

impl Wire {
    /// Writes the directory of granted pages of [`WIRE_LAYOUT`], before the peer is told its reference.
    pub fn begin(own: &Granted) {
        assert!(own.references().len() == WIRE_PAGES);
        let head = [
            granted::DIRECTORY_MAGIC,
            ABI_VERSION,
            (WIRE_PAGES - 1) as u32,
        ];
        for (at, word) in head.iter().chain(&own.references()[1..]).enumerate() {
            // SAFETY: the directory is ours, aligned, and has room for all.
            let place = unsafe { &*own.base().cast::<AtomicU32>().add(at) };
            place.store(*word, Ordering::Relaxed);
        }
        let base = own.base().wrapping_add(PAGE_SIZE);
        begin_region(base, granted::WAIT_OFFSET);
        alive(base).store(1, Ordering::Release);
    }

    /// The references of a peer's region, which its directory names. The page is mapped for a moment.
    pub fn look_up(
        range: Range,
        domain: u16,
        directory: GrantRef,
    ) -> Result<(Range, Vec<GrantRef>), (Range, Refused)> {
        const MALFORMED: Refused = Refused(22);
        let page = Foreign::map(range, domain, &[(0, &[directory])])?;
        let word = |at: usize| {
            assert!(at < PAGE_SIZE / size_of::<u32>());
            // SAFETY: inside the page, aligned, and loaded by an atomic.
            unsafe { (*page.base().cast::<AtomicU32>().add(at)).load(Ordering::Acquire) }
        };
        let least = (granted::ARENA_OFFSET + WIRE_ARENA_BYTES) / PAGE_SIZE;
        let pages = word(2) as usize;
        let is_one = (word(0), word(1)) == (granted::DIRECTORY_MAGIC, ABI_VERSION)
            && (least..granted::PAGES_MAX).contains(&pages);
        let references = match is_one {
            true => (0..pages)
                .map(|at| word(granted::HEAD_WORDS + at))
                .collect(),
            false => Vec::new(),
        };
        match (page.unmap(), is_one) {
            (range, true) => Ok((range, references)),
            (range, false) => Err((range, MALFORMED)),
        }
    }

    /// Over a region of ours ([`Wire::begin`]), the peer's ([`Wire::look_up`]), and an event channel.
    pub fn new(
        own: Granted,
        range: Range,
        domain: u16,
        references: &[GrantRef],
        port: u32,
    ) -> Result<Wire, (Granted, Range, Refused)> {
        let size = |pages: usize| Geometry::new(granted::ARENA_OFFSET, pages * PAGE_SIZE);
        let (Some(ours), Some(theirs)) = (size(WIRE_PAGES - 1), size(references.len())) else {
            return Err((own, range, Refused(22)));
        };
        match Foreign::map(range, domain, &[(0, references)]) {
            Ok(peer) => Ok(Wire::over((own, ours), (peer, theirs), port)),
            Err((range, refused)) => Err((own, range, refused)),
        }
    }

    /// Of both regions, what their geometries say has memory.
    fn over(
        (own, ours): (Granted, Geometry),
        (peer, theirs): (Foreign, Geometry),
        port: u32,
    ) -> Wire {
        let base = own.base().wrapping_add(PAGE_SIZE);
        // SAFETY: both regions are mapped as long as the wire lives, and as large as they say.
        let (producer, consumer) = unsafe {
            let mine: *const Endpoint = base.add(ENDPOINTS_OFFSET).cast();
            let theirs_end: *const Endpoint = peer.base().add(ENDPOINTS_OFFSET).cast();
            (
                Producer::new(mine, base, theirs_end).within(ours),
                Consumer::new(mine, theirs_end, peer.base()).within(theirs),
            )
        };
        consumer.get_ready();
        let wire = Wire {
            own,
            peer,
            producer,
            consumer,
            port,
            knocked: Cell::new(0),
        };
        let _ = events::notify(port);
        wire.stand_by();
        wire
    }

    /// It is over, which the peer is told: our pages, the range of theirs, and the event channel, which is to be closed.
    pub fn end(self) -> (Granted, Range, u32) {
        alive(self.own_base()).store(0, Ordering::Release);
        let _ = events::notify(self.port);
        (self.own, self.peer.unmap(), self.port)
    }

    pub fn port(&self) -> u32 {
        self.port
    }

    fn own_base(&self) -> *mut u8 {
        self.own.base().wrapping_add(PAGE_SIZE)
    }

    fn endpoint(&self) -> &Endpoint {
        // SAFETY: within our own region; atomics.
        unsafe { &*self.own_base().add(ENDPOINTS_OFFSET).cast() }
    }

    /// The peer rings from now on. What there is to receive and to send is looked at afterwards.
    pub fn stand_by(&self) {
        // SAFETY: within our own region; atomics.
        let page: &WaitPage = unsafe { &*self.own_base().add(granted::WAIT_OFFSET).cast() };
        Sleeper::new(page, DOOR_SHARED).announce();
    }

    fn is_peer_alive(&self) -> bool {
        // SAFETY: within the peer's region, whose size was checked; an atomic load.
        unsafe {
            (*self
                .peer
                .base()
                .add(granted::ALIVE_OFFSET)
                .cast::<AtomicU8>())
            .load(Ordering::Acquire)
                == 1
        }
    }

    fn knock(&self, doors: u64) -> Result<(), Over> {
        let page: *const WaitPage = self.peer.base().wrapping_add(granted::WAIT_OFFSET).cast();
        let is_new = |_, sleep| self.knocked.replace(sleep) != sleep;
        // SAFETY: mapped as long as the wire lives.
        match unsafe { doors_to_knock_at(page, doors & DOOR, is_new) } {
            0 => Ok(()),
            _ => Ok(events::notify(self.port)?),
        }
    }

    /// Hands over as many of `bytes` as there is room for. If that is not all, the peer rings when there is more.
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize, Over> {
        let producer = &self.producer;
        if producer.state() == tx_state::KERNEL {
            match producer.enter(|| Some(0)) {
                Entered::Yes => {}
                Entered::NotYet => return Ok(0),
                Entered::Never | Entered::NoMemory => return Err(Over),
            }
        }
        self.endpoint()
            .wait
            .tx_doors
            .fetch_or(DOOR, Ordering::SeqCst);
        let mut count = producer.room_bytes(bytes.len())?.min(bytes.len());
        if count < bytes.len() {
            // Asked for before the last look.
            producer.ask_for_room();
            fence(Ordering::SeqCst);
            count = producer.room_bytes(bytes.len())?.min(bytes.len());
        }
        if count != 0 {
            let from = bytes[..count].as_ptr();
            // SAFETY: a slice, and there is room for it.
            unsafe {
                let at = producer.tail();
                producer.write(&Copier::sse2(), Kernel::Plain, at, from, count);
            }
            producer.publish(count);
            self.knock(DOOR)?;
        }
        Ok(count)
    }

    /// Receives what there is, 0 if nothing is.
    pub fn try_receive(&self, buffer: &mut [u8]) -> Result<usize, Over> {
        // In this order: what it wrote before its end is there once the end shows.
        let is_alive = self.is_peer_alive();
        let fill = self.consumer.fill_bytes()?;
        if fill == 0 {
            return if is_alive { Ok(0) } else { Err(Over) };
        }
        let count = fill.min(buffer.len() as u64) as usize;
        let count = get(&self.consumer, &mut buffer[..count])?;
        if self.consumer.take(count)? {
            self.knock(self.consumer.peer_waits())?;
        }
        Ok(count)
    }
}

fn alive<'a>(own_base: *mut u8) -> &'a AtomicU8 {
    // SAFETY: within a region of ours, which is never unmapped; an atomic.
    unsafe { &*own_base.add(granted::ALIVE_OFFSET).cast() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::tests::{granted as granted_pages, mapped};
    use fordway_abi::shm::rx_state;

    /// Two ends of one conversation.
    fn wires() -> [Wire; 2] {
        let owns = [(), ()].map(|()| granted_pages(WIRE_PAGES * PAGE_SIZE, &WIRE_LAYOUT));
        owns.iter().for_each(Wire::begin);
        let peers = [mapped(&owns[1], PAGE_SIZE), mapped(&owns[0], PAGE_SIZE)];
        let geometry = Geometry::new(granted::ARENA_OFFSET, (WIRE_PAGES - 1) * PAGE_SIZE).unwrap();
        let mut peers = peers.into_iter();
        owns.map(|own| {
            let peer = peers.next().unwrap();
            Wire::over((own, geometry), (peer, geometry), 9)
        })
    }

    #[test]
    fn what_is_said_is_heard_in_order_and_before_the_end() {
        let [a, b] = wires();
        let said: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut heard) = (0, Vec::new());
        let mut piece = [0; 5000];
        while sent < said.len() {
            let count = a.try_send(&said[sent..]).unwrap();
            sent += count;
            let received = b.try_receive(&mut piece).unwrap();
            heard.extend_from_slice(&piece[..received]);
            assert!(count + received != 0, "neither goes on");
        }
        let _ = a.end();
        while let Ok(count) = b.try_receive(&mut piece) {
            assert_ne!(count, 0, "it goes on behind the end");
            heard.extend_from_slice(&piece[..count]);
        }
        assert!(heard == said);
    }

    #[test]
    fn who_breaks_the_rules_is_not_heard() {
        let [a, b] = wires();
        assert_eq!(a.try_send(b"well"), Ok(4));
        a.endpoint().tx.tail.store(1 << 40, Ordering::Relaxed);
        assert_eq!(b.try_receive(&mut [0; 8]), Err(Over));
    }

    /// Two sides of a link, of which the second one sees so many pages of the first one's ring memory.
    fn links(arena_pages: usize) -> [Link; 2] {
        let owns = [(), ()].map(|()| granted_pages(LINK_BYTES, &LINK_LAYOUT));
        owns.iter().for_each(begin_link);
        let peers = [mapped(&owns[1], 0), mapped(&owns[0], 0)];
        let mut peers = peers.into_iter().zip([ARENA_PAGES, arena_pages]);
        owns.map(|own| {
            let (peer, pages) = peers.next().unwrap();
            let geometry = Geometry::new(ARENA_OFFSET, ARENA_OFFSET + pages * PAGE_SIZE).unwrap();
            Link::over(own, peer, geometry)
        })
    }

    #[test]
    fn bytes_go_by_a_channel_as_far_as_there_is_memory() {
        const SLOT: u32 = 63;
        for (arena_pages, is_there) in [(ARENA_PAGES, true), (16, true), (15, false)] {
            let [a, b] = links(arena_pages);
            for link in [&a, &b] {
                link.cut(SLOT, 7);
            }
            assert_eq!(a.peer_generation(SLOT), 7);
            b.consumer(SLOT).get_ready();
            assert_eq!(
                b.own(SLOT).wait.rx_state.load(Ordering::Relaxed),
                rx_state::READY
            );
            let producer = a.producer(SLOT);
            assert_eq!(producer.enter(|| Some(0)), Entered::Yes);
            put(&producer, b"bytes");
            producer.publish(5);
            let mut buffer = [0; 8];
            let consumer = b.consumer(SLOT);
            match is_there {
                true => {
                    assert_eq!(get(&consumer, &mut buffer), Ok(5));
                    assert_eq!(&buffer[..5], b"bytes");
                }
                false => assert_eq!(get(&consumer, &mut buffer), Err(Violation::Segment)),
            }
        }
    }

    #[test]
    #[should_panic]
    fn what_has_no_room_is_not_put() {
        let [a, b] = links(ARENA_PAGES);
        a.cut(0, 1);
        b.cut(0, 1);
        b.consumer(0).get_ready();
        assert_eq!(a.producer(0).enter(|| Some(0)), Entered::Yes);
        put(&a.producer(0), &[0; (1 << SEGMENT_LOG2_MIN) + 1]);
    }

    #[test]
    fn a_sleeper_is_knocked_at_once_for_each_sleep() {
        let [a, b] = links(ARENA_PAGES);
        assert_eq!(a.doors_to_knock_at(DOOR), 0);
        for _ in 0..2 {
            b.announce();
            assert!(a.peer_sleeps(DOOR));
            assert_eq!(a.doors_to_knock_at(DOOR | 2), DOOR);
            assert_eq!(a.doors_to_knock_at(DOOR), 0);
            b.retract();
        }
        assert_eq!(a.peer_beat(), 2);
    }
}
