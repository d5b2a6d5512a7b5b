//! xen.h: the numbers of the hypercalls. A hypercall's entry in the hypercall page is its
//! number times 32.

pub const SET_TRAP_TABLE: usize = 0;
pub const MMU_UPDATE: usize = 1;
pub const MEMORY_OP: usize = 12;
pub const UPDATE_VA_MAPPING: usize = 14;
pub const XEN_VERSION: usize = 17;
pub const GRANT_TABLE_OP: usize = 20;
pub const SCHED_OP: usize = 29;
pub const EVENT_CHANNEL_OP: usize = 32;
pub const HVM_OP: usize = 34;

/// Bytes between two entries of the hypercall page.
pub const ENTRY_SIZE: usize = 32;

/// version.h: `XENVER_version` (major in the upper, minor in the lower 16 bits).
pub const XENVER_VERSION: usize = 0;
