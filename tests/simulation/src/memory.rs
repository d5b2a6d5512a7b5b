//! Regions, wait pages and stacks, kept by each thread for its next run: a run touches few
//! pages, and mapping them anew would cost more than the run.

use corosensei::stack::DefaultStack;
use fordway_abi::shm::{
    ARENA_OFFSET, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, REGION_BYTES, RegionHeader,
    WAIT_PAGE_BYTES, WaitPage,
};
use std::cell::RefCell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// Channels of one link in a run: slots are handed out lowest first.
pub const SLOTS_MAX: usize = 64;
const STACK_BYTES: usize = 256 * 1024;

/// A region that one side of a link writes, at `base`.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
}

thread_local! {
    static REGIONS: RefCell<Vec<*mut u8>> = const { RefCell::new(Vec::new()) };
    static PAGES: RefCell<Vec<*mut u8>> = const { RefCell::new(Vec::new()) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

fn map(bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let base = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED, "no memory for a region");
    base.cast()
}

impl Region {
    /// A region as a shim makes it.
    pub fn take() -> Self {
        let kept = REGIONS.with_borrow_mut(Vec::pop);
        Self {
            base: kept.unwrap_or_else(|| map(REGION_BYTES)),
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Endpoint `slot`; its memory is never unmapped.
    pub fn endpoint(base: *mut u8, slot: u32) -> &'static Endpoint {
        assert!((slot as usize) < SLOTS_MAX, "a link with too many channels");
        // SAFETY: inside the region, mapped for ever, and made of atomics.
        unsafe {
            &*base
                .add(ENDPOINTS_OFFSET + slot as usize * ENDPOINT_BYTES)
                .cast::<Endpoint>()
        }
    }

    /// Its first page.
    pub fn header(&self) -> &'static RegionHeader {
        // SAFETY: as above.
        unsafe { &*self.base.cast::<RegionHeader>() }
    }

    /// Bytes of the arena that were handed out and not given back, once all rings are over.
    /// `None`: the free lists are broken.
    pub fn lost_bytes(&self) -> Option<u64> {
        let header = self.header();
        let used = (header.arena_next.load(Ordering::Relaxed)).max(ARENA_OFFSET as u64);
        let mut lost = used - ARENA_OFFSET as u64;
        for (log2, free) in header.arena_free.iter().enumerate() {
            let mut next = free.load(Ordering::Relaxed);
            while next != 0 {
                lost = lost.checked_sub(1 << log2)?;
                // SAFETY: a free block of this region's arena.
                next = unsafe { self.base.add(next as usize).cast::<u64>().read() };
            }
        }
        Some(lost)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody uses the region any more; the arena's content does not matter.
        unsafe {
            self.base
                .write_bytes(0, ENDPOINTS_OFFSET + SLOTS_MAX * ENDPOINT_BYTES);
        }
        REGIONS.with_borrow_mut(|list| list.push(self.base));
    }
}

/// A wait page of zeros.
pub fn take_page() -> &'static WaitPage {
    let base = PAGES
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| map(WAIT_PAGE_BYTES));
    // SAFETY: mapped for ever, made of atomics; of nobody else's use.
    unsafe {
        base.write_bytes(0, WAIT_PAGE_BYTES);
        &*base.cast::<WaitPage>()
    }
}

/// Gives a page back, that nobody looks at any more.
pub fn give_page(page: &'static WaitPage) {
    PAGES.with_borrow_mut(|list| list.push(std::ptr::from_ref(page).cast_mut().cast()));
}

pub fn take_stack() -> DefaultStack {
    let kept = STACKS.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("no memory for a stack"))
}

pub fn give_stack(stack: DefaultStack) {
    STACKS.with_borrow_mut(|list| list.push(stack));
}
