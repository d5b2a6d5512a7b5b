//! Under loom only: who may touch which ring memory. Ring bytes are copied through raw
//! pointers, which loom does not see; so each access is also made to a tracked cell that
//! stands for [`GRAIN_BYTES`] of the arena. A read that is not ordered after the write of
//! its bytes, or a write that is not ordered after the last read, then fails the model.
//!
//! One model has one region whose memory is written: cells are named by the offset alone.

use fordway_abi::shm::{ARENA_OFFSET, SEGMENT_LOG2_MIN};
use loom::cell::UnsafeCell;

/// Ring memory behind one cell: a quarter of the smallest ring. Models move multiples of it.
const GRAIN_BYTES: usize = 1 << (SEGMENT_LOG2_MIN - 2);
/// Cells: as much arena as a model can use.
const GRAIN_COUNT: usize = 80;

loom::lazy_static! {
    static ref CELLS: Cells = Cells((0..GRAIN_COUNT).map(|_| UnsafeCell::new(())).collect());
}

struct Cells(Vec<UnsafeCell<()>>);
// SAFETY: the cells hold nothing; that they are not used at once is what loom checks.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

fn cells(offset: usize, length: usize) -> &'static [UnsafeCell<()>] {
    let first = (offset - ARENA_OFFSET) / GRAIN_BYTES;
    let last = (offset + length - 1 - ARENA_OFFSET) / GRAIN_BYTES;
    &CELLS.0[first..=last]
}

/// Bytes of the region are about to be written.
pub(crate) fn write(offset: usize, length: usize) {
    cells(offset, length)
        .iter()
        .for_each(|cell| cell.with_mut(|_| ()));
}

/// Bytes of the region are about to be read.
pub(crate) fn read(offset: usize, length: usize) {
    cells(offset, length)
        .iter()
        .for_each(|cell| cell.with(|_| ()));
}
