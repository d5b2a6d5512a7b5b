//! The devices: opening them, their requests, and mappings of them.
//!
//! All requests are `_IOC(_IOC_NONE, ...)` with a structure of little-endian words, some with an array
//! behind. They are given here as 64-bit words, as their headers lay them out on x86-64.

use crate::Error;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Direction, Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

pub(crate) fn open(device: &'static str, flags: OFlags) -> Result<OwnedFd, Error> {
    rustix::fs::open(device, flags | OFlags::CLOEXEC, Mode::empty()).map_err(told(device))
}

/// For map_err.
pub(crate) fn told(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| Error::Device(what, error.into())
}

/// `_IOC(_IOC_NONE, group, number, size)`.
pub(crate) const fn code(group: u8, number: u8, size: usize) -> Opcode {
    opcode::from_components(Direction::None, group, number, size)
}

struct Request<'a> {
    code: Opcode,
    words: &'a mut [u64],
}

// SAFETY: the pointer is that of the words, which the kernel may write; the output is a plain number.
unsafe impl Ioctl for Request<'_> {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.code
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        self.words.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(
        out: IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// Makes a request; gives the number that the kernel returns.
///
/// # Safety
/// `words` is as long as the structure of `code`, with all the array that it announces.
pub(crate) unsafe fn request(
    device: impl AsFd,
    code: Opcode,
    words: &mut [u64],
) -> Result<i32, Errno> {
    // SAFETY: by contract.
    unsafe { rustix::ioctl::ioctl(device, Request { code, words }) }
}

/// Pages of a device in our address space, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, whichever thread holds it. Nothing is read or written by it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(
        device: BorrowedFd,
        offset: u64,
        bytes: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let write = if writable {
            ProtFlags::WRITE
        } else {
            ProtFlags::empty()
        };
        // SAFETY: the kernel chooses a free place, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | write,
                MapFlags::SHARED,
                device,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of mmap.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok());
    }
}

/// `UNMAP_NOTIFY_*` of gntalloc.h and gntdev.h: what the kernel does when a page is let go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtEnd {
    Ring,
    ClearAndRing,
}

/// `SET_UNMAP_NOTIFY`, of one structure and number for both devices: for the page that has the byte at
/// `index` of the device's file; `port` is one of ours.
pub(crate) fn notify_at_end(
    device: impl AsFd,
    index: u64,
    action: AtEnd,
    port: u32,
) -> Result<(), Errno> {
    const CLEAR_BYTE: u64 = 1;
    const SEND_EVENT: u64 = 2;
    let action = match action {
        AtEnd::Ring => SEND_EVENT,
        AtEnd::ClearAndRing => CLEAR_BYTE | SEND_EVENT,
    };
    let mut words = [index, action | u64::from(port) << 32];
    // SAFETY: struct ioctl_gntalloc_unmap_notify, ioctl_gntdev_unmap_notify: 16 bytes.
    unsafe { request(device, code(b'G', 7, 16), &mut words) }.map(drop)
}

/// Waits until there is something to read, or the time is over.
pub(crate) fn readable(
    device: impl AsFd,
    patience: Option<std::time::Duration>,
) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let until = patience.and_then(|time| std::time::Instant::now().checked_add(time));
    let mut polled = [PollFd::new(&device, PollFlags::IN)];
    loop {
        let left = until.map(|until| until.saturating_duration_since(std::time::Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? != 0),
        }
    }
}
