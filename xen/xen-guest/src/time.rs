//! Time: pvclock for the monotonic clock, Xen's record for the wall clock.
//!
//! Xen writes, for each vCPU, when it last looked (its system time and the TSC at that moment)
//! and how TSC ticks become nanoseconds. A reader takes the version, the fields, the version
//! again: odd or changed means that Xen was writing. The record of the wall clock says what
//! the wall clock showed when system time was 0.
//!
//! System time is the host's. A domain that was suspended goes on with its own clock where it
//! stood, so that no timer fires late or never because the next host has been up for less time.

use crate::local::Local;
use crate::shared::SharedPage;
use core::cell::Cell;
use core::sync::atomic::{Ordering, fence};
use fordway_xen_abi::shared::{TimeInfo, offset, time_offset};

/// System time at the TSC value `tsc`, by `info`'s line.
pub fn system_time_ns(info: &TimeInfo, tsc: u64) -> u64 {
    // Both count modulo 2^64: where Xen emulates the TSC it begins at 0 with the domain, and a
    // record from before that is negative. A TSC that lies a little behind the record (another
    // core) is taken as the record's.
    let delta = (tsc.wrapping_sub(info.tsc_timestamp) as i64).max(0) as u64;
    let shifted = if info.tsc_shift < 0 {
        delta >> u32::from(info.tsc_shift.unsigned_abs()).min(63)
    } else {
        delta << u32::from(info.tsc_shift.unsigned_abs()).min(63)
    };
    let scaled = (u128::from(shifted) * u128::from(info.tsc_to_system_mul)) >> 32;
    info.system_time_ns.wrapping_add(scaled as u64)
}

/// What the domain's clock shows beyond the host's system time, modulo 2^64.
static AHEAD_NS: Local<Cell<u64>> = Local::new(Cell::new(0));

/// Lets the domain's clock show `now_ns` now.
pub(crate) fn go_on(clock: &Clock, now_ns: u64) {
    AHEAD_NS.get().set(now_ns.wrapping_sub(clock.system_ns()));
}

/// When that is for Xen.
pub(crate) fn to_system_ns(at_ns: u64) -> u64 {
    system_ns_of(at_ns, AHEAD_NS.get().get())
}

/// At least 1: 0 would mean never, and what lies before the host's start is over.
fn system_ns_of(at_ns: u64, ahead_ns: u64) -> u64 {
    (at_ns.wrapping_sub(ahead_ns) as i64).max(1) as u64
}

/// Both clocks of this domain.
#[derive(Clone, Copy)]
pub struct Clock {
    page: SharedPage,
}

impl Clock {
    /// The clocks in the page that Xen shares with this domain.
    pub fn new(shared_info: SharedPage) -> Self {
        Clock { page: shared_info }
    }

    /// Monotonic: nanoseconds since the machine (not the domain) started; since a suspend, from
    /// where it stood then.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.system_ns().wrapping_add(AHEAD_NS.get().get())
    }

    #[inline]
    fn system_ns(&self) -> u64 {
        let mut info = self.info();
        loop {
            let time_ns = system_time_ns(&info.1, tsc());
            if self.version() == info.0 {
                return time_ns;
            }
            info = self.info();
        }
    }

    /// Nanoseconds since 1970 when the monotonic clock was 0.
    pub fn wall_at_zero_ns(&self) -> u64 {
        loop {
            let version = self.page.load_u32(offset::WALL_VERSION, Ordering::Acquire);
            let low = self.page.load_u32(offset::WALL_SECONDS, Ordering::Relaxed);
            let high = self
                .page
                .load_u32(offset::WALL_SECONDS_HIGH, Ordering::Relaxed);
            let ns = self
                .page
                .load_u32(offset::WALL_NANOSECONDS, Ordering::Relaxed);
            fence(Ordering::Acquire);
            let after = self.page.load_u32(offset::WALL_VERSION, Ordering::Relaxed);
            if version & 1 == 0 && version == after {
                let seconds = u64::from(high) << 32 | u64::from(low);
                return seconds
                    .wrapping_mul(1_000_000_000)
                    .wrapping_add(u64::from(ns))
                    .wrapping_sub(AHEAD_NS.get().get());
            }
        }
    }

    /// Nanoseconds since 1970, now.
    pub fn wall_ns(&self) -> u64 {
        self.wall_at_zero_ns().wrapping_add(self.now_ns())
    }

    fn version(&self) -> u32 {
        fence(Ordering::Acquire);
        self.page
            .load_u32(offset::TIME + time_offset::VERSION, Ordering::Relaxed)
    }

    fn info(&self) -> (u32, TimeInfo) {
        let at = |field| offset::TIME + field;
        loop {
            let version = self
                .page
                .load_u32(at(time_offset::VERSION), Ordering::Acquire);
            let info = TimeInfo {
                tsc_timestamp: self
                    .page
                    .load_u64(at(time_offset::TSC_TIMESTAMP), Ordering::Relaxed),
                system_time_ns: self
                    .page
                    .load_u64(at(time_offset::SYSTEM_TIME), Ordering::Relaxed),
                tsc_to_system_mul: self
                    .page
                    .load_u32(at(time_offset::TSC_TO_SYSTEM_MUL), Ordering::Relaxed),
                tsc_shift: self.page.load_u8(at(time_offset::TSC_SHIFT)) as i8,
            };
            if version & 1 == 0 && self.version() == version {
                return (version, info);
            }
        }
    }
}

/// The processor's cycle counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: reading the counter has no effect on memory; every 64-bit processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::page;

    #[test]
    fn ticks_become_nanoseconds_by_shift_and_fraction() {
        // 2.5 GHz: 0.4 ns a tick, as a fraction of 2^32.
        let info = TimeInfo {
            tsc_timestamp: 1_000,
            system_time_ns: 7_000_000,
            tsc_to_system_mul: (0.4 * 4_294_967_296.0) as u32,
            tsc_shift: 0,
        };
        assert_eq!(system_time_ns(&info, 1_000), 7_000_000);
        assert_eq!(system_time_ns(&info, 2_500_001_000) / 1_000, 1_007_000 - 1);
        assert_eq!(system_time_ns(&info, 0), 7_000_000);
        // A record that was made before the domain was.
        let early = TimeInfo {
            tsc_timestamp: 0u64.wrapping_sub(1_000),
            ..info
        };
        assert_eq!(system_time_ns(&early, 1_500) / 100, 70_010 - 1);
        let halved = TimeInfo {
            tsc_shift: -1,
            ..info
        };
        assert_eq!(system_time_ns(&halved, 2_500_001_000) / 1_000, 507_000 - 1);
        // A year of ticks shifted up does not overflow the product.
        let fast = TimeInfo {
            tsc_shift: 1,
            tsc_to_system_mul: 1 << 31,
            ..info
        };
        assert_eq!(
            system_time_ns(&fast, 1_000 + (1 << 56)),
            7_000_000 + (1 << 56)
        );
    }

    #[test]
    fn a_time_of_ours_is_one_of_the_hosts() {
        assert_eq!(system_ns_of(0, 0), 1);
        assert_eq!(system_ns_of(100, 40), 60);
        // A host that has been up for longer than the one before.
        assert_eq!(system_ns_of(100, 0u64.wrapping_sub(50)), 150);
        assert_eq!(system_ns_of(100, 200), 1);
    }

    #[test]
    fn the_wall_clock_is_its_zero_and_the_monotonic_clock() {
        let page = page();
        page.store_u32(offset::WALL_SECONDS, 5, Ordering::Relaxed);
        page.store_u32(offset::WALL_SECONDS_HIGH, 1, Ordering::Relaxed);
        page.store_u32(offset::WALL_NANOSECONDS, 17, Ordering::Relaxed);
        let clock = Clock::new(page);
        assert_eq!(
            clock.wall_at_zero_ns(),
            ((1u64 << 32) + 5) * 1_000_000_000 + 17
        );
        // A multiplier of 0: time stands still at the record.
        page.store_u64(
            offset::TIME + time_offset::SYSTEM_TIME,
            33,
            Ordering::Relaxed,
        );
        assert_eq!(clock.now_ns(), 33);
    }
}
