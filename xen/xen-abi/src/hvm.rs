//! hvm/params.h, hvm/start_info.h and arch-x86/cpuid.h: what a PVH guest is given.

/// `hvm_start_info.magic`.
pub const START_MAGIC: u32 = 0x336e_c578;

/// `struct hvm_start_info`, version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StartInfo {
    pub magic: u32,
    pub version: u32,
    pub flags: u32,
    pub modules: u32,
    pub module_list_paddr: u64,
    pub command_line_paddr: u64,
    pub rsdp_paddr: u64,
    pub memory_map_paddr: u64,
    pub memory_map_entries: u32,
    pub reserved: u32,
}

/// `struct hvm_modlist_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Module {
    pub paddr: u64,
    pub size: u64,
    pub command_line_paddr: u64,
    pub reserved: u64,
}

/// `struct hvm_memmap_table_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryRange {
    pub addr: u64,
    pub size: u64,
    pub kind: u32,
    pub reserved: u32,
}

/// `XEN_HVM_MEMMAP_TYPE_RAM`.
pub const RAM: u32 = 1;

/// `HVMOP_get_param`.
pub const GET_PARAM: usize = 1;

#[repr(C)]
pub struct Param {
    pub domain: u16,
    pub index: u32,
    /// out
    pub value: u64,
}

pub const PARAM_STORE_PFN: u32 = 1;
pub const PARAM_STORE_EVTCHN: u32 = 2;
pub const PARAM_CONSOLE_PFN: u32 = 17;
pub const PARAM_CONSOLE_EVTCHN: u32 = 18;

/// The first of Xen's CPUID leaves and the three words of its signature (`XenVMMXenVMM`).
pub const CPUID_BASE: u32 = 0x4000_0000;
pub const CPUID_SIGNATURE: [u32; 3] = [0x566e_6558, 0x6558_4d4d, 0x4d4d_566e];
