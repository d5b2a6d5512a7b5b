//! Under loom only: who may touch which ring memory. Ring bytes are copied through raw
//! pointers, which loom does not see; so each access is also made to a tracked cell that
//! stands for [`GRAIN_BYTES`] of the region. A read that is not ordered after the write of
//! its bytes, or a write that is not ordered after the last read, then fails the model.
//!
//! One model has one region whose memory is written: cells are named by the offset alone.

use fordway_abi::shm::SEGMENT_LOG2_MIN;
use loom::cell::UnsafeCell;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Ring memory behind one cell: a sixteenth of the smallest ring. Models move multiples of it.
const GRAIN_BYTES: usize = 1 << (SEGMENT_LOG2_MIN - 4);

loom::lazy_static! {
    static ref CELLS: Cells = Cells(RefCell::new(BTreeMap::new()));
}

struct Cells(RefCell<BTreeMap<usize, UnsafeCell<()>>>);
// SAFETY: loom runs one thread at a time, and none is interrupted in here; that the
// cells are not used at once is what it checks.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

fn touch(offset: usize, length: usize, access: impl Fn(&UnsafeCell<()>)) {
    let mut cells = CELLS.0.borrow_mut();
    for grain in offset / GRAIN_BYTES..=(offset + length - 1) / GRAIN_BYTES {
        access(cells.entry(grain).or_insert_with(|| UnsafeCell::new(())));
    }
}

/// Bytes of the region are about to be written.
pub(crate) fn write(offset: usize, length: usize) {
    touch(offset, length, |cell| cell.with_mut(|_| ()));
}

/// Bytes of the region are about to be read.
pub(crate) fn read(offset: usize, length: usize) {
    touch(offset, length, |cell| cell.with(|_| ()));
}
