//! Where every decision of a run comes from: a seed, or first the bytes of a fuzzer.

/// A source of decisions.
#[derive(Clone, Debug)]
pub struct Choices {
    state: u64,
    bytes: Vec<u8>,
    at: usize,
}

impl Choices {
    /// The decisions of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d,
            bytes: Vec::new(),
            at: 0,
        }
    }

    /// Decisions by these bytes; when they are used up, by a seed made of them.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        // FNV-1a
        let seed = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self {
            bytes: bytes.to_vec(),
            ..Self::of_seed(seed)
        }
    }

    fn next(&mut self) -> u64 {
        // splitmix64
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`.
    pub fn below(&mut self, count: u64) -> u64 {
        if count <= 1 {
            return 0;
        }
        let needed = if count <= 256 { 1 } else { 4 };
        match self.bytes.get(self.at..self.at + needed) {
            Some(bytes) => {
                self.at += needed;
                let value = bytes
                    .iter()
                    .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
                value % count
            }
            None => self.next() % count,
        }
    }
}
