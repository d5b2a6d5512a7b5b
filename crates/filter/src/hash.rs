//! A quick hash for tables inside the filter.
//!
//! Keys come from packets, so the tables that packets can fill take a seed (given from
//! outside, see `Engine::new`); a sender who does not know it cannot aim at one bucket.

use core::hash::{BuildHasher, Hasher};

/// Multiply and fold, eight bytes at a time.
#[derive(Clone, Copy, Debug)]
pub struct QuickHasher(u64);

/// Makes [`QuickHasher`]s that begin with a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seed(pub u64);

impl BuildHasher for Seed {
    type Hasher = QuickHasher;

    #[inline]
    fn build_hasher(&self) -> QuickHasher {
        QuickHasher(self.0 ^ FACTOR)
    }
}

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Hasher for QuickHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(last) ^ (rest.len() as u64) << 56);
        }
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.0 = fold(self.0 ^ n, FACTOR ^ 0xa076_1d64_78bd_642f).wrapping_add(FACTOR);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.0, FACTOR)
    }
}
