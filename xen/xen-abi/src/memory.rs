//! xen.h and memory.h: page tables and the physmap.

/// `mmu_update_t`: the machine address of an entry with the command in its two low bits,
/// and what to write there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MmuUpdate {
    pub addr: u64,
    pub value: u64,
}

/// `MMU_NORMAL_PT_UPDATE`.
pub const MMU_NORMAL: u64 = 0;

/// `UVMF_INVLPG`: flush that one address on this vCPU.
pub const UVMF_INVLPG: usize = 2;

/// Bits of a page table entry.
pub const PRESENT: u64 = 1;
pub const WRITABLE: u64 = 1 << 1;
pub const USER: u64 = 1 << 2;
pub const ACCESSED: u64 = 1 << 5;
pub const DIRTY: u64 = 1 << 6;
/// The bits of an entry that hold a frame number (52-bit machine addresses).
pub const FRAME_MASK: u64 = 0x000f_ffff_ffff_f000;

/// Where Xen maps the machine-to-physical table, read-only, in every 64-bit PV guest.
pub const MACHINE_TO_PHYS: usize = 0xffff_8000_0000_0000;

/// `XENMEM_add_to_physmap`.
pub const ADD_TO_PHYSMAP: usize = 7;

#[repr(C)]
pub struct AddToPhysmap {
    pub domain: u16,
    pub size: u16,
    pub space: u32,
    pub index: u64,
    pub frame: u64,
}

/// `XENMAPSPACE_*`.
pub const SPACE_SHARED_INFO: u32 = 0;
pub const SPACE_GRANT_TABLE: u32 = 1;
