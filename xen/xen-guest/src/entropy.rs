//! Random numbers to key hashes and sequence numbers with.
//!
//! A PV guest has no device for them. RDRAND where the processor has it (asked through CPUID; it
//! may fail for a while, so that it is asked again a few times); the cycle counter, the
//! wall clock and the addresses that the domain was given are mixed in, and are all there is
//! without it.

use crate::time::{Clock, tsc};
use core::arch::x86_64::{__cpuid, _rdrand64_step};

const RDRAND_TRIES: usize = 16;

/// A source that is stirred at each number.
pub struct Entropy {
    state: u64,
    has_rdrand: bool,
}

impl Entropy {
    /// `salt` is anything that differs from domain to domain.
    pub fn new(clock: &Clock, salt: u64) -> Self {
        let has_rdrand = __cpuid(1).ecx >> 30 & 1 != 0;
        let state = clock.wall_ns() ^ tsc().rotate_left(32) ^ mix(salt);
        Entropy { state, has_rdrand }
    }

    /// Whether the numbers can be foreseen by nobody.
    pub fn is_strong(&self) -> bool {
        self.has_rdrand
    }

    pub fn next_u64(&mut self) -> u64 {
        let fresh = if self.has_rdrand { rdrand() } else { 0 };
        self.state = mix(self.state ^ fresh ^ tsc());
        self.state ^ fresh.rotate_left(17)
    }
}

fn rdrand() -> u64 {
    // SAFETY: only called where CPUID says that the instruction exists.
    #[target_feature(enable = "rdrand")]
    unsafe fn step(value: &mut u64) -> bool {
        _rdrand64_step(value) == 1
    }
    let mut value = 0;
    for _ in 0..RDRAND_TRIES {
        // SAFETY: as above.
        if unsafe { step(&mut value) } {
            break;
        }
    }
    value
}

/// A bijection that spreads each bit over all (the finaliser of MurmurHash3, by its constants).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}
