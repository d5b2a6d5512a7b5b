//! xen.h: the numbers of the hypercalls. A hypercall's entry in the hypercall page is its
//! number times 32.

pub const SET_TRAP_TABLE: usize = 0;
pub const MMU_UPDATE: usize = 1;
pub const MEMORY_OP: usize = 12;
pub const UPDATE_VA_MAPPING: usize = 14;
pub const SET_TIMER_OP: usize = 15;
pub const XEN_VERSION: usize = 17;
pub const CONSOLE_IO: usize = 18;
pub const GRANT_TABLE_OP: usize = 20;
pub const VM_ASSIST: usize = 21;
pub const MMUEXT_OP: usize = 26;
pub const SCHED_OP: usize = 29;
pub const EVENT_CHANNEL_OP: usize = 32;
pub const HVM_OP: usize = 34;

/// Bytes between two entries of the hypercall page.
pub const ENTRY_SIZE: usize = 32;

/// version.h: `XENVER_version` (major in the upper, minor in the lower 16 bits) and
/// `XENVER_get_features`.
pub const XENVER_VERSION: usize = 0;
pub const XENVER_GET_FEATURES: usize = 6;

/// `xen_feature_info`.
#[repr(C)]
pub struct FeatureInfo {
    pub submap_index: u32,
    pub submap: u32,
}

/// features.h: the guest's physical addresses are translated by Xen (PVH).
pub const FEATURE_AUTO_TRANSLATED: u32 = 2;
