//! Page tables: four levels of 512 entries, and where an address has its entry in each.

use fordway_xen_abi::memory::FRAME_MASK;
use fordway_xen_abi::{PAGE_SHIFT, PAGE_SIZE};

pub const ENTRIES: usize = PAGE_SIZE / 8;

/// Bytes that one entry of a table of `level` maps: level 1 maps pages.
pub const fn span(level: u32) -> usize {
    PAGE_SIZE << (9 * (level - 1))
}

/// Which entry of a table of `level` is the one for `address`.
pub const fn index(level: u32, address: usize) -> usize {
    (address >> (PAGE_SHIFT + 9 * (level - 1))) % ENTRIES
}

/// The frame that an entry points at.
pub const fn frame(entry: u64) -> u64 {
    (entry & FRAME_MASK) >> PAGE_SHIFT
}

/// An entry that points at `frame`.
pub const fn entry(frame: u64, flags: u64) -> u64 {
    (frame << PAGE_SHIFT) | flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_nine_bits_for_each_level() {
        let address = (3 << 39) | (500 << 30) | (7 << 21) | (511 << 12) | 0xabc;
        assert_eq!(
            [4, 3, 2, 1].map(|level| index(level, address)),
            [3, 500, 7, 511]
        );
        assert_eq!([1, 2, 3].map(span), [4096, 2 << 20, 1 << 30]);
        // A kernel address: the sign bits above bit 47 are no index.
        assert_eq!(index(4, 0xffff_8000_0000_0000), 256);
    }

    #[test]
    fn a_frame_survives_its_entry_and_the_no_execute_bit() {
        let flags = 7 | 1 << 63;
        assert_eq!(frame(entry(0x12_3456, flags)), 0x12_3456);
    }
}
