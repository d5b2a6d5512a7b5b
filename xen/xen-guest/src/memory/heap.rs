//! The heap: talc over pages that it asks for when it needs more.
//!
//! A claim takes at least 64 KB and an eighth more than was asked for, so that a growing heap
//! is made of few pieces. Pages of the heap never go back: they are never shared
//! either, so that no other domain sees what lay in them.

use crate::local::Local;
use core::alloc::{GlobalAlloc, Layout};
use fordway_xen_abi::PAGE_SIZE;
use talc::TalcCell;
use talc::base::{Talc, binning::Binning};
use talc::source::Source;

/// The least that the heap takes at once.
const CLAIM_PAGES_MIN: usize = 16;

/// Asks the page allocator for more.
#[derive(Debug)]
struct FromPages;

// SAFETY: `acquire` only claims pages that are the heap's alone, and allocates nothing.
unsafe impl Source for FromPages {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let bytes = layout.size() + layout.size() / 8 + layout.align() + PAGE_SIZE;
        let wanted = bytes.div_ceil(PAGE_SIZE);
        for pages in [wanted.max(CLAIM_PAGES_MIN), wanted] {
            if let Some(address) = super::with(|memory| memory.take(pages)) {
                // SAFETY: fresh pages, mapped for good and known to nobody else.
                return unsafe { talc.claim(address, pages * PAGE_SIZE) }
                    .map(|_| ())
                    .ok_or(());
            }
        }
        Err(())
    }
}

struct Heap(Local<TalcCell<FromPages>>);

#[global_allocator]
static HEAP: Heap = Heap(Local::new(TalcCell::new(FromPages)));

// SAFETY: handed through to talc; one thread of execution, see `Local`.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.0.get().alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { self.0.get().dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.0.get().realloc(address, layout, size) }
    }
}
