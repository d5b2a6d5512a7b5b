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
        self.0
    }
}

/// Bob Jenkins' lookup3 hash of bytes ("hashlittle"), which nft's `jhash` stands for.
pub(crate) fn jenkins(bytes: &[u8], seed: u32) -> u32 {
    let mut state = [0xdead_beef_u32
        .wrapping_add(bytes.len() as u32)
        .wrapping_add(seed); 3];
    let mut rest = bytes;
    while rest.len() > 12 {
        let (block, after) = rest.split_at(12);
        add(&mut state, block);
        // Each line: x -= z; x ^= z rotated; z += y; and the names move on by one.
        for (turn, rotation) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
            let (x, y, z) = (turn % 3, (turn + 1) % 3, (turn + 2) % 3);
            state[x] = state[x].wrapping_sub(state[z]) ^ state[z].rotate_left(rotation);
            state[z] = state[z].wrapping_add(state[y]);
        }
        rest = after;
    }
    if !rest.is_empty() {
        add(&mut state, rest);
        // c by b, a by c, b by a, and round again.
        for (turn, rotation) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
            let (x, y) = ((turn + 2) % 3, (turn + 1) % 3);
            state[x] = (state[x] ^ state[y]).wrapping_sub(state[y].rotate_left(rotation));
        }
    }
    state[2]
}

/// Adds up to twelve bytes to the three words.
fn add(state: &mut [u32; 3], bytes: &[u8]) {
    for (word, chunk) in state.iter_mut().zip(bytes.chunks(4)) {
        let mut whole = [0; 4];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = word.wrapping_add(u32::from_le_bytes(whole));
    }
}

#[cfg(test)]
mod tests {
    use super::jenkins;

    #[test]
    fn jenkins_hash_is_that_of_its_author() {
        // From the self-test of lookup3.c, whose seed is added to the same start.
        assert_eq!(jenkins(b"", 0), 0xdead_beef);
        assert_eq!(jenkins(b"Four score and seven years ago", 0), 0x1777_0551);
        assert_eq!(jenkins(b"Four score and seven years ago", 1), 0xcd62_8161);
    }
}
