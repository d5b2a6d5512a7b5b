//! xen.h: `struct start_info`, what a PV guest finds behind rsi when it starts.

#[repr(C)]
#[derive(Clone, Copy)]
pub struct StartInfo {
    /// `xen-3.0-x86_64`, ends with a zero byte.
    pub magic: [u8; 32],
    pub page_count: u64,
    /// Machine address of the shared page.
    pub shared_info_maddr: u64,
    pub flags: u32,
    pub store_mfn: u64,
    pub store_port: u32,
    pub console_mfn: u64,
    pub console_port: u32,
    /// Virtual address of the page directory, and how many frames the boot tables take.
    pub page_table: u64,
    pub page_table_frames: u64,
    /// Virtual address of the table from pseudo-physical to machine frames.
    pub p2m: u64,
    /// The ramdisk: its virtual address and length.
    pub module_start: u64,
    pub module_len: u64,
    pub command_line: [u8; 1024],
    pub p2m_first_pfn: u64,
    pub p2m_frames: u64,
}

/// How the magic of a PV guest's start_info begins; what Xen promises behind it is compatible.
pub const MAGIC: &[u8] = b"xen-3.";

/// `SIF_MOD_START_PFN`: `module_start` is a frame number.
pub const FLAG_MODULE_IS_FRAME: u32 = 1 << 3;

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn start_info_is_laid_out_as_in_the_header() {
        assert_eq!(offset_of!(StartInfo, flags), 48);
        assert_eq!(offset_of!(StartInfo, store_mfn), 56);
        assert_eq!(offset_of!(StartInfo, console_mfn), 72);
        assert_eq!(offset_of!(StartInfo, page_table), 88);
        assert_eq!(offset_of!(StartInfo, command_line), 128);
        assert_eq!(size_of::<StartInfo>(), 128 + 1024 + 16);
    }
}
