//! A keyed hash for the tables that foreign hosts fill: whoever does not know the seed cannot
//! aim at one bucket. Two multiplications of 64 to 128 bits for a 5-tuple.

use core::hash::{BuildHasher, Hasher};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed(pub u64);

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedHasher {
    state: u64,
    key: u64,
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher {
            state: self.0 ^ 0x9e37_79b9_7f4a_7c15,
            key: self.0.rotate_left(32) | 1,
        }
    }
}

/// What tells the packets of one conversation from others: 20 bits for the routers of IPv6
/// (RFC 6437 section 3), none of which is our secret.
#[cfg(feature = "ipv6")]
pub(crate) fn flow_label(
    key: Keyed,
    from: &core::net::SocketAddr,
    to: &core::net::SocketAddr,
) -> u32 {
    let mut hasher = key.build_hasher();
    for name in [from, to] {
        if let core::net::IpAddr::V6(six) = name.ip() {
            hasher.write_u128(six.to_bits());
        }
        hasher.write_u16(name.port());
    }
    // Zero says that there is none.
    (hasher.finish() as u32 & 0xf_ffff).max(1)
}

/// Mixes two words by one wide multiplication.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide >> 64) as u64 ^ wide as u64
}

impl Hasher for KeyedHasher {
    fn finish(&self) -> u64 {
        mix(self.state ^ self.key, 0xd6e8_feb8_6659_fd93)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = mix(self.state ^ word, self.key ^ 0xa076_1d64_78bd_642f);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_u128(&mut self, word: u128) {
        self.state = mix(
            self.state ^ word as u64,
            (word >> 64) as u64 ^ self.key ^ 0xa076_1d64_78bd_642f,
        );
    }
}

/// A small generator for identifiers and jitter (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
