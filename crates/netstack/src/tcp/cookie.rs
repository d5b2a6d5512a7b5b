//! SYN cookies (RFC 4987 section 3.6): when no more half-open connections may be kept, what has
//! to be remembered goes into the sequence number of our SYN-ACK and comes back in the ACK.
//!
//! 5 bits of time, 3 bits that choose an MSS, 24 bits that only we can compute. Window scaling
//! and SACK are lost, as on Linux without timestamps. One in eight million guesses is right, so
//! cookies are looked at only for a while after one was sent.

use core::hash::{BuildHasher, Hasher};

use super::Key;
use crate::hash::Keyed;
use crate::{Micros, SECOND_US};

const TICK_US: Micros = 64 * SECOND_US;
const TICKS: u32 = 32;
/// Cookies of this tick and the one before are good.
const AGE_MAX: u32 = 1;
const MSS: [u16; 8] = [88, 536, 1220, 1300, 1400, 1440, 1452, 1460];

#[derive(Debug)]
pub(super) struct Cookies {
    secret: Keyed,
    looked_at_until: Micros,
}

impl Cookies {
    pub(super) fn new(secret: u64) -> Cookies {
        Cookies {
            secret: Keyed(secret),
            looked_at_until: 0,
        }
    }

    fn seal(&self, key: &Key, their_seq: u32, tick: u32, mss: usize) -> u32 {
        let mut hasher = self.secret.build_hasher();
        hasher.write_u128(key.remote);
        hasher.write_u128(key.local);
        hasher.write_u64(u64::from(key.ports) << 32 | u64::from(their_seq));
        hasher.write_u64(u64::from(tick) << 8 | mss as u64);
        hasher.finish() as u32 & 0x00ff_ffff
    }

    pub(super) fn make(&mut self, key: &Key, their_seq: u32, mss: u16, now: Micros) -> u32 {
        self.looked_at_until = now + 2 * TICK_US;
        let tick = (now / TICK_US) as u32 % TICKS;
        let index = MSS.iter().rposition(|m| *m <= mss).unwrap_or(0);
        tick << 27 | (index as u32) << 24 | self.seal(key, their_seq, tick, index)
    }

    /// The MSS that the cookie stands for, if it is one of ours.
    pub(super) fn check(&self, key: &Key, their_seq: u32, cookie: u32, now: Micros) -> Option<u16> {
        if now >= self.looked_at_until {
            return None;
        }
        let (tick, index) = (cookie >> 27, (cookie >> 24 & 7) as usize);
        let age = ((now / TICK_US) as u32 % TICKS + TICKS - tick) % TICKS;
        let is_ours = self.seal(key, their_seq, tick, index) == cookie & 0x00ff_ffff;
        (age <= AGE_MAX && is_ours).then_some(MSS[index])
    }
}
