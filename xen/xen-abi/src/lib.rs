//! Xen's public interface as types, for a 64-bit x86 guest.
//!
//! Each module follows one header of Xen's `xen/include/public` and names it. Only what the
//! guest uses is here. Structures that lie in memory shared with another domain are given as
//! byte offsets (`offset` modules), because no reference may ever be made to them;
//! structures that are handed to a hypercall are `repr(C)` types.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod console;
pub mod elfnote;
pub mod event;
pub mod grant;
pub mod hvm;
pub mod hypercall;
pub mod memory;
pub mod netif;
pub mod sched;
pub mod shared;
pub mod start;
pub mod store;
pub mod traps;

/// Bytes of a page, everywhere in Xen's interface on x86.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// The domain id that names the caller itself (xen.h).
pub const DOMID_SELF: u16 = 0x7ff0;
