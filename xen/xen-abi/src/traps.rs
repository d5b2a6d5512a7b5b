//! xen.h, arch-x86/xen-x86_64.h: exceptions of a PV guest.

/// `struct trap_info`; the table ends with an entry whose address is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TrapInfo {
    pub vector: u8,
    pub flags: u8,
    pub selector: u16,
    pub address: u64,
}

/// `FLAT_KERNEL_CS`.
pub const KERNEL_CS: u16 = 0xe033;
