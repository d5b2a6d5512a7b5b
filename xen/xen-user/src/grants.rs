//! Pages of our own that a peer may map: /dev/xen/gntalloc, include/uapi/xen/gntalloc.h.
//!
//! The kernel gives zeroed pages and a grant for each. Their descriptor can be mapped as often as one likes, also by
//! another process that it is handed to. When the last mapping and the last descriptor are gone, however that came
//! about, the grants end; a page that the peer still has mapped stays with it, and goes back to nobody until it lets go.

use crate::sys::{self, AtEnd, Mapping, code, request, told};
use crate::{Domain, Error, PAGE_SIZE};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const DEVICE: &str = "/dev/xen/gntalloc";
/// `GNTALLOC_FLAG_WRITABLE`.
const WRITABLE: u64 = 1;

/// What the peer may do with granted pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// What Fordway grants.
    Read,
    /// What other protocols need.
    ReadAndWrite,
}

/// Granted pages that are not mapped here: for another process of ours.
#[derive(Debug)]
pub struct Allotted {
    device: OwnedFd,
    references: Vec<u32>,
}

impl Allotted {
    /// So many new pages, zeroed, for `peer`.
    pub fn new(peer: Domain, pages: u32, access: Access) -> Result<Self, Error> {
        let device = sys::open(DEVICE, OFlags::RDWR)?;
        let flags = match access {
            Access::Read => 0,
            Access::ReadAndWrite => WRITABLE,
        };
        // domid, flags, count | index | references, two in each word.
        let mut words = vec![0u64; 2 + (pages as usize).div_ceil(2).max(1)];
        words[0] = u64::from(peer) | flags << 16 | u64::from(pages) << 32;
        // SAFETY: struct ioctl_gntalloc_alloc_gref (24 bytes with one reference), with room for all references.
        unsafe { request(&device, code(b'G', 5, 24), &mut words) }.map_err(
            |error| match error {
                Errno::NOSPC => Error::GrantsUsedUp,
                error => told(DEVICE)(error),
            },
        )?;
        let halves = words[2..]
            .iter()
            .flat_map(|w| [*w as u32, (*w >> 32) as u32]);
        let references = halves.take(pages as usize).collect();
        Ok(Self { device, references })
    }

    /// What the peer maps them by, in order.
    pub fn references(&self) -> &[u32] {
        &self.references
    }

    /// The descriptor, by which they are mapped: the first one at offset 0.
    pub fn into_descriptor(self) -> OwnedFd {
        self.device
    }

    fn map(self) -> Result<Granted, Error> {
        let pages = self.references.len() as u32;
        Granted::mapped(self.device, pages, self.references)
    }
}

/// Granted pages, mapped here for writing.
#[derive(Debug)]
pub struct Granted {
    // Unmapped before the descriptor is closed.
    mapping: Mapping,
    device: OwnedFd,
    references: Vec<u32>,
}

impl Granted {
    /// So many new pages, zeroed, for `peer`.
    pub fn new(peer: Domain, pages: u32, access: Access) -> Result<Self, Error> {
        Allotted::new(peer, pages, access)?.map()
    }

    /// The pages of a descriptor that another process of ours made. It knows their references.
    pub fn received(device: OwnedFd, pages: u32) -> Result<Self, Error> {
        Self::mapped(device, pages, Vec::new())
    }

    fn mapped(device: OwnedFd, pages: u32, references: Vec<u32>) -> Result<Self, Error> {
        // The first index of a descriptor is 0, and this is the only one.
        let bytes = pages as usize * PAGE_SIZE;
        let mapping = Mapping::new(device.as_fd(), 0, bytes, true).map_err(told(DEVICE))?;
        Ok(Self {
            mapping,
            device,
            references,
        })
    }

    /// What the peer maps them by, in order.
    pub fn references(&self) -> &[u32] {
        &self.references
    }

    /// Where they lie.
    pub fn start(&self) -> *mut u8 {
        self.mapping.start()
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// The descriptor, by which another process of ours maps them ([`Granted::received`]).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// When the last of us is gone, the byte at `offset` becomes 0 and the peer is rung through our `port`.
    pub fn at_end(&self, offset: usize, port: u32) -> Result<(), Error> {
        sys::notify_at_end(&self.device, offset as u64, AtEnd::ClearAndRing, port)
            .map_err(told(DEVICE))
    }
}
