//! xen.h, arch-x86/xen.h: the page that Xen shares with each domain, and the record of time
//! in it. Only offsets: Xen writes this page at any moment.

/// Offsets in `struct shared_info`. The fields of vCPU 0 lie at its beginning.
pub mod offset {
    pub const UPCALL_PENDING: usize = 0;
    pub const UPCALL_MASK: usize = 1;
    pub const PENDING_SELECTOR: usize = 8;
    pub const CR2: usize = 16;
    pub const TIME: usize = 32;
    /// `vcpu_info` takes 64 bytes for each of 32 vCPUs.
    pub const EVTCHN_PENDING: usize = 32 * 64;
    pub const EVTCHN_MASK: usize = EVTCHN_PENDING + 512;
    pub const WALL_VERSION: usize = EVTCHN_MASK + 512;
    pub const WALL_SECONDS: usize = WALL_VERSION + 4;
    pub const WALL_NANOSECONDS: usize = WALL_VERSION + 8;
    pub const WALL_SECONDS_HIGH: usize = WALL_VERSION + 12;
    pub const MAX_PFN: usize = WALL_VERSION + 16;
    pub const P2M_FRAME_LIST_LIST: usize = MAX_PFN + 8;
}

/// `vcpu_time_info`, copied out of the shared page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeInfo {
    pub tsc_timestamp: u64,
    pub system_time_ns: u64,
    pub tsc_to_system_mul: u32,
    pub tsc_shift: i8,
}

/// Offsets in `struct vcpu_time_info`, from [`offset::TIME`].
pub mod time_offset {
    pub const VERSION: usize = 0;
    pub const TSC_TIMESTAMP: usize = 8;
    pub const SYSTEM_TIME: usize = 16;
    pub const TSC_TO_SYSTEM_MUL: usize = 24;
    pub const TSC_SHIFT: usize = 28;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_page_is_laid_out_as_in_the_header() {
        assert_eq!(offset::EVTCHN_PENDING, 0x800);
        assert_eq!(offset::EVTCHN_MASK, 0xa00);
        assert_eq!(offset::WALL_VERSION, 0xc00);
        assert_eq!(offset::MAX_PFN, 0xc10);
        assert_eq!(offset::TIME + time_offset::TSC_SHIFT, 60);
    }
}
