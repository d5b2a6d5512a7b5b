//! A region of a link between guests: the layout of docs/abi.md, with a geometry of its own.
//!
//! ```text
//!   page 0      directory: magic, ABI version, how many pages follow, a reference for each
//!   page 1      RegionHeader ┐
//!   pages 2, 3  MarkPage     │ as between processes (`shm::MARKS_OFFSET`, ENDPOINTS_OFFSET)
//!   page 4      endpoints    │ 4 slots
//!   page 5      WaitPage     │ a memfd of its own between processes; its last byte: 1 while we live
//!   pages 6..   ring memory  ┘
//! ```
//!
//! The peer is told one number, the reference of page 0, and finds the others there: a thousand would not fit a
//! value of XenStore. It loads each once. A region is at most [`PAGES_MAX`] pages, as many as one directory names.

use crate::{Access, Domain, Error, Granted, Mapped, PAGE_SIZE, Reference};
use fordway_abi::ABI_VERSION;
pub use fordway_abi::shm::granted::PAGES_MAX;
use fordway_abi::shm::granted::{
    ALIVE_OFFSET, ARENA_OFFSET, DIRECTORY_MAGIC, HEAD_WORDS, SLOTS, WAIT_OFFSET,
};
use fordway_abi::shm::{
    ENDPOINTS_OFFSET, Endpoint, REGION_MAGIC, RegionHeader, SEGMENT_LOG2_MIN, WAIT_PAGE_MAGIC,
    WaitPage,
};
use fordway_ring::Geometry;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const _: () = assert!(size_of::<WaitPage>() < PAGE_SIZE);

/// The geometry of a region of so many bytes.
fn geometry(bytes: usize) -> Option<Geometry> {
    Geometry::new(ARENA_OFFSET, bytes)
}

/// Our side: pages that the peer may read.
#[derive(Debug)]
pub struct OwnRegion {
    granted: Granted,
    geometry: Geometry,
}

impl OwnRegion {
    /// One with so much ring memory (rounded up to pages), for `peer`.
    pub fn new(peer: Domain, arena_bytes: usize) -> Result<Self, Error> {
        // No ring is smaller, and one directory names no more pages.
        let least = 1 << SEGMENT_LOG2_MIN;
        let most = (PAGES_MAX - 1) * PAGE_SIZE - ARENA_OFFSET;
        if !(least..=most).contains(&arena_bytes) {
            return Err(Error::NoSuchSize);
        }
        let pages = 1 + (ARENA_OFFSET + arena_bytes).div_ceil(PAGE_SIZE);
        let granted = Granted::new(peer, pages as u32, Access::Read)?;
        let geometry = geometry((pages - 1) * PAGE_SIZE).ok_or(Error::Malformed)?;
        let own = Self { granted, geometry };
        own.begin();
        let head = [DIRECTORY_MAGIC, ABI_VERSION, (pages - 1) as u32];
        let words = head.iter().chain(&own.granted.references()[1..]);
        for (at, word) in words.enumerate() {
            // SAFETY: the directory is ours, aligned, and has room for PAGES_MAX.
            let place = unsafe { &*own.granted.start().cast::<AtomicU32>().add(at) };
            place.store(*word, Ordering::Release);
        }
        Ok(own)
    }

    fn begin(&self) {
        self.header().magic.store(REGION_MAGIC, Ordering::Relaxed);
        self.header()
            .abi_version
            .store(ABI_VERSION, Ordering::Relaxed);
        let page = self.wait_page();
        page.magic.store(WAIT_PAGE_MAGIC, Ordering::Relaxed);
        page.abi_version.store(ABI_VERSION, Ordering::Relaxed);
        self.alive().store(1, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.alive().store(0, Ordering::Release);
    }

    /// As new, for another channel with the same peer, who may have it mapped still: pages that we gave back would be
    /// kept from everybody for as long as it has.
    pub fn clear(&mut self) {
        let words = (self.granted.bytes() - PAGE_SIZE) / size_of::<AtomicU64>();
        for at in 0..words {
            // SAFETY: within our own region, behind the directory, and aligned; nobody else here has it.
            let word = unsafe { &*self.base().cast::<AtomicU64>().add(at) };
            word.store(0, Ordering::Relaxed);
        }
        self.begin();
    }

    /// What the peer is told.
    pub fn reference(&self) -> u32 {
        self.granted.references()[0]
    }

    /// The pages, with the directory.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Once we are gone, the peer is rung through our `port` and finds us gone.
    pub fn tell_end(&self, port: u32) -> Result<(), Error> {
        self.granted.at_end(PAGE_SIZE + ALIVE_OFFSET, port)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.granted.start().wrapping_add(PAGE_SIZE)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn endpoint(&self, slot: usize) -> &Endpoint {
        assert!(slot < SLOTS);
        // SAFETY: within our own region, which `new` made large enough; all fields are atomics.
        unsafe {
            &*self
                .base()
                .add(ENDPOINTS_OFFSET)
                .cast::<Endpoint>()
                .add(slot)
        }
    }

    pub(crate) fn wait_page(&self) -> &WaitPage {
        // SAFETY: as `endpoint`.
        unsafe { &*self.base().add(WAIT_OFFSET).cast() }
    }

    fn header(&self) -> &RegionHeader {
        // SAFETY: as `endpoint`.
        unsafe { &*self.base().cast() }
    }

    fn alive(&self) -> &AtomicU8 {
        // SAFETY: as `endpoint`.
        unsafe { &*self.base().add(ALIVE_OFFSET).cast() }
    }
}

/// The peer's side: pages that we may read, and in which anything may stand at any moment.
#[derive(Debug)]
pub struct PeerRegion {
    mapped: Mapped,
    geometry: Geometry,
}

impl PeerRegion {
    /// Maps the one whose directory `peer` has granted us under this number.
    pub fn map(peer: Domain, directory: u32) -> Result<Self, Error> {
        let reference = |number| Reference {
            domain: peer,
            number,
        };
        let page = Mapped::new([reference(directory)].into_iter())?;
        let word = |at: usize| {
            assert!(at < PAGE_SIZE / size_of::<u32>());
            // SAFETY: inside the page, aligned, and loaded by an atomic.
            unsafe { (*page.start().cast::<AtomicU32>().add(at)).load(Ordering::Acquire) }
        };
        let pages = word(2) as usize;
        if (word(0), word(1)) != (DIRECTORY_MAGIC, ABI_VERSION)
            || !(ARENA_OFFSET / PAGE_SIZE..PAGES_MAX).contains(&pages)
        {
            return Err(Error::Malformed);
        }
        let geometry = geometry(pages * PAGE_SIZE).ok_or(Error::Malformed)?;
        let references = (0..pages).map(|at| reference(word(HEAD_WORDS + at)));
        let mapped = Mapped::new(references)?;
        Ok(Self { mapped, geometry })
    }

    /// The pages, without the directory.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// Whether the peer has not ended yet.
    pub fn is_alive(&self) -> bool {
        // SAFETY: inside the mapping, whose size `map` checked; loaded by an atomic.
        unsafe { (*self.base().add(ALIVE_OFFSET).cast::<AtomicU8>()).load(Ordering::Acquire) == 1 }
    }

    pub(crate) fn base(&self) -> *const u8 {
        self.mapped.start()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn endpoint(&self, slot: usize) -> *const Endpoint {
        assert!(slot < SLOTS);
        // SAFETY: inside the mapping, whose size `map` checked.
        unsafe {
            self.base()
                .add(ENDPOINTS_OFFSET)
                .cast::<Endpoint>()
                .add(slot)
        }
    }

    pub(crate) fn wait_page(&self) -> *const WaitPage {
        // SAFETY: as `endpoint`.
        unsafe { self.base().add(WAIT_OFFSET).cast() }
    }
}
