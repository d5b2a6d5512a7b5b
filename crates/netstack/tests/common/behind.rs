//! Frames in memory of a sender that changes each byte as soon as it was read.

use std::cell::RefCell;
use std::ops::Range;

use fordway_netstack::{Behind, HEAD_BYTES_MIN, Micros, RxChecksum, RxFrame, Stack};

#[derive(Debug)]
struct Liar {
    bytes: RefCell<Vec<u8>>,
    read: RefCell<Vec<Range<usize>>>,
}

impl Behind for Liar {
    fn copy_to(&self, at: usize, target: &mut [u8]) {
        let range = at..at + target.len();
        let mut read = self.read.borrow_mut();
        let is_apart = |other: &Range<usize>| other.end <= range.start || range.end <= other.start;
        assert!(
            read.iter().all(is_apart),
            "{range:?} is read again: {read:?}"
        );
        let mut bytes = self.bytes.borrow_mut();
        target.copy_from_slice(&bytes[range.clone()]);
        bytes[range.clone()].fill(0xee);
        read.push(range);
    }
}

/// Gives a frame to a stack, its head first; how many of the bytes behind that were read.
pub fn receive(stack: &mut Stack, now: Micros, frame: &[u8], checksum: RxChecksum) -> usize {
    let source = Liar {
        bytes: RefCell::new(frame.to_vec()),
        read: RefCell::default(),
    };
    let here = frame.len().min(HEAD_BYTES_MIN);
    let mut bytes = vec![0xdd; frame.len()];
    source.copy_to(0, &mut bytes[..here]);
    let mut frame = RxFrame {
        bytes: &mut bytes,
        checksum,
    };
    stack.receive_head(now, &mut frame, here, &source);
    let read = source.read.take();
    read.iter().map(ExactSizeIterator::len).sum::<usize>() - here
}
