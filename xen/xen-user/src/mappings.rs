//! A peer's pages: /dev/xen/gntdev, include/uapi/xen/gntdev.h.
//!
//! The kernel notes the references, and Xen is asked when they are mapped. In a paravirtual guest what was noted is
//! mapped once: a second mmap, also after the first has ended, is refused, and a forked child does not get it. All of
//! one mapping is there or nothing is.

use crate::sys::{self, AtEnd, Mapping, code, request, told};
use crate::{Domain, Error, PAGE_SIZE};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const DEVICE: &str = "/dev/xen/gntdev";

/// A grant, as the one who may map it names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Who granted the page.
    pub domain: Domain,
    /// Its number there.
    pub number: u32,
}

/// References that the kernel has noted and that nobody has mapped yet: for another process,
/// which maps them by the descriptor alone.
#[derive(Debug)]
pub struct Wanted {
    device: OwnedFd,
    pages: usize,
}

impl Wanted {
    /// Notes them. Whether they are granted shows in the mapping.
    pub fn new(references: impl ExactSizeIterator<Item = Reference>) -> Result<Self, Error> {
        let device = sys::open(DEVICE, OFlags::RDWR)?;
        let none = Self { device, pages: 0 };
        none.and(references)
    }

    /// Notes more by the same descriptor. They are mapped by themselves, at the offset behind those before.
    pub fn and(self, references: impl ExactSizeIterator<Item = Reference>) -> Result<Self, Error> {
        let pages = references.len();
        // count, pad | index | domid and reference of each.
        let mut words = vec![pages as u64, 0];
        words.extend(references.map(|r| u64::from(r.domain) | u64::from(r.number) << 32));
        if pages == 0 || words.len() != 2 + pages {
            return Err(Error::Malformed);
        }
        // SAFETY: struct ioctl_gntdev_map_grant_ref (24 bytes with one reference), with all references.
        unsafe { request(&self.device, code(b'G', 0, 24), &mut words) }.map_err(told(DEVICE))?;
        let pages = self.pages + pages;
        Ok(Self { pages, ..self })
    }

    /// Those that another process of ours had noted.
    pub fn received(device: OwnedFd, pages: usize) -> Self {
        Self { device, pages }
    }

    /// The descriptor, to be handed to whom is to map it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// The same, given away.
    pub fn into_descriptor(self) -> OwnedFd {
        self.device
    }

    /// Maps them, for reading.
    pub fn map(self) -> Result<Mapped, Error> {
        Self::mapped(self.device, self.pages, false)
    }

    /// Maps them for writing, too, which Xen allows only if the peer does.
    pub fn map_writable(self) -> Result<Mapped, Error> {
        Self::mapped(self.device, self.pages, true)
    }

    fn mapped(device: OwnedFd, pages: usize, writable: bool) -> Result<Mapped, Error> {
        // The first index of a descriptor is 0, and this is the only one.
        let mapping = Mapping::new(device.as_fd(), 0, pages * PAGE_SIZE, writable);
        let mapping = mapping.map_err(|error| match error {
            Errno::INVAL => Error::NotGranted,
            error => told(DEVICE)(error),
        })?;
        Ok(Mapped { mapping, device })
    }
}

/// A peer's pages in our address space, side by side in the order of their references.
#[derive(Debug)]
pub struct Mapped {
    // Unmapped before the descriptor is closed.
    mapping: Mapping,
    device: OwnedFd,
}

impl Mapped {
    /// Maps them for reading.
    pub fn new(references: impl ExactSizeIterator<Item = Reference>) -> Result<Self, Error> {
        Wanted::new(references)?.map()
    }

    /// Where they lie. The peer writes there at any moment.
    pub fn start(&self) -> *const u8 {
        self.mapping.start()
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// The descriptor. Nothing can be mapped by it any more.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// When the mapping ends, the peer is rung through our `port`. (A byte can only be cleared in what may be written.)
    pub fn at_end(&self, port: u32) -> Result<(), Error> {
        sys::notify_at_end(&self.device, 0, AtEnd::Ring, port).map_err(told(DEVICE))
    }
}
