//! grant_table.h, version 1: one entry of eight bytes for each grant.

pub const MAP: usize = 0;
pub const UNMAP: usize = 1;
pub const SETUP_TABLE: usize = 2;
pub const QUERY_SIZE: usize = 6;

#[repr(C)]
pub struct SetupTable {
    pub domain: u16,
    pub frames: u32,
    /// out
    pub status: i16,
    /// Where Xen writes the frames' machine numbers.
    pub frame_list: *mut u64,
}

#[repr(C)]
pub struct QuerySize {
    pub domain: u16,
    /// out
    pub frames: u32,
    /// out
    pub frames_max: u32,
    /// out
    pub status: i16,
}

/// `gnttab_map_grant_ref_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MapGrant {
    /// Where it is to be seen: its tables are there.
    pub address: u64,
    pub flags: u32,
    pub reference: u32,
    pub domain: u16,
    /// out
    pub status: i16,
    /// out
    pub handle: u32,
    /// out
    pub bus_address: u64,
}

/// `GNTMAP_host_map`, `GNTMAP_readonly`.
pub const MAP_HOST: u32 = 1 << 1;
pub const MAP_READ_ONLY: u32 = 1 << 2;

/// `gnttab_unmap_grant_ref_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnmapGrant {
    pub address: u64,
    pub bus_address: u64,
    pub handle: u32,
    /// out
    pub status: i16,
}

const _: () = assert!(size_of::<MapGrant>() == 32 && size_of::<UnmapGrant>() == 24);

/// The first word of an entry: flags below, the domain that may map the page above.
pub const PERMIT_ACCESS: u16 = 1;
/// The other side may only read.
pub const READ_ONLY: u16 = 1 << 2;
/// Xen sets these while the other side has the page mapped for reading and for writing.
pub const READING: u16 = 1 << 3;
pub const WRITING: u16 = 1 << 4;

/// Bytes of an entry, and how many a page of the table holds.
pub const ENTRY_SIZE: usize = 8;
pub const ENTRIES_PER_PAGE: usize = crate::PAGE_SIZE / ENTRY_SIZE;
/// Entries that the toolstack uses itself (console and XenStore of the domain).
pub const RESERVED: u32 = 8;
