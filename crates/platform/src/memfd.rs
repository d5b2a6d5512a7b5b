//! Shared memory: what a memfd that a stranger passed must be, and mappings of it.
//!
//! A memfd is believed only after [`check`]: sealed against shrinking, growing and
//! more seals (memfd_create(2), fcntl(2) F_GET_SEALS), of the one right size, on
//! tmpfs. An unsealed one could be cut under our feet (SIGBUS); one on hugetlbfs can
//! fail a later page fault the same way. F_SEAL_FUTURE_WRITE leaves its maker as the
//! only writer. The order of the checks matters: F_GET_SEALS comes first because it
//! never calls into a file system, whereas fstat(2) on a FUSE file may block for ever.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why a descriptor is not the shared memory that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotShared {
    /// No seals can be read: not a memfd.
    #[error("not a memfd")]
    Kind,
    /// A required seal is missing.
    #[error("memfd without the required seals")]
    Seals,
    /// Not the size of this kind of memory.
    #[error("memfd of another size")]
    Size,
}

/// Whether `fd` is a memfd of exactly `bytes` bytes that nobody but its maker can
/// write and nobody can resize.
pub fn check(fd: impl AsFd, bytes: usize) -> Result<(), NotShared> {
    let required = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| NotShared::Kind)?;
    if !seals.contains(required) {
        return Err(NotShared::Seals);
    }
    let system = rustix::fs::fstatfs(&fd).map_err(|_| NotShared::Kind)?;
    if system.f_type as u64 != TMPFS_MAGIC {
        return Err(NotShared::Kind);
    }
    let stat = rustix::fs::fstat(&fd).map_err(|_| NotShared::Kind)?;
    if u64::try_from(stat.st_size) != Ok(bytes as u64) {
        return Err(NotShared::Size);
    }
    Ok(())
}

/// A new memfd of `bytes` bytes, close-on-exec, not sealed yet.
pub fn create(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// Seals a memfd so that [`check`] accepts it; what is mapped for writing stays so.
pub fn seal(fd: impl AsFd) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(fd, seals)?)
}

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, whichever thread holds it.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference only atomic loads and adds are made.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses a free place, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// The place of a word of `size` bytes, if it lies inside and is aligned.
    fn at(&self, offset: usize, size: usize) -> Option<NonNull<u8>> {
        if !offset.is_multiple_of(size) || offset.checked_add(size)? > self.bytes {
            return None;
        }
        // SAFETY: `offset` was just found to lie inside the mapping.
        Some(unsafe { self.start.add(offset) })
    }

    fn word_u32(&self, offset: usize) -> Option<&AtomicU32> {
        let place = self.at(offset, size_of::<u32>())?;
        // SAFETY: aligned, inside the mapping, which outlives the reference; used atomically only.
        Some(unsafe { place.cast::<AtomicU32>().as_ref() })
    }

    fn word_u64(&self, offset: usize) -> Option<&AtomicU64> {
        let place = self.at(offset, size_of::<u64>())?;
        // SAFETY: as `word_u32`.
        Some(unsafe { place.cast::<AtomicU64>().as_ref() })
    }

    fn store_u32(&self, offset: usize, value: u32) -> bool {
        let word = self.word_u32(offset);
        word.inspect(|word| word.store(value, Ordering::SeqCst))
            .is_some()
    }

    fn store_u64(&self, offset: usize, value: u64) -> bool {
        let word = self.word_u64(offset);
        word.inspect(|word| word.store(value, Ordering::SeqCst))
            .is_some()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of mmap; no reference outlives `self`.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok());
    }
}

/// The first part of a memfd that passed [`check`], mapped read-only. The other side
/// writes to it at will: each call loads anew, and what it returns is not believed.
#[derive(Debug)]
pub struct ReadOnly(Mapping);

impl ReadOnly {
    /// Maps the first `bytes` bytes. Call [`check`] first, with at least that size.
    pub fn map(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        Ok(Self(Mapping::new(fd, bytes, ProtFlags::READ)?))
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *const u8 {
        self.0.start.as_ptr()
    }

    /// The 32-bit word at `offset`, if there is one.
    pub fn load_u32(&self, offset: usize) -> Option<u32> {
        Some(self.0.word_u32(offset)?.load(Ordering::Acquire))
    }

    /// The 64-bit word at `offset`, if there is one.
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        Some(self.0.word_u64(offset)?.load(Ordering::Acquire))
    }
}

/// Memory that this process alone writes and others map read-only.
#[derive(Debug)]
pub struct OwnPage(Mapping);

impl OwnPage {
    /// A sealed memfd of `bytes` bytes and our mapping of it.
    pub fn create(name: &str, bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = create(name, bytes)?;
        let mapping = Mapping::new(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        // After this nobody can map it for writing any more.
        seal(&fd)?;
        Ok((Self(mapping), fd))
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Adds one to the page's first word (which wraps), after everything before it.
    pub fn bump(&self) {
        if let Some(word) = self.0.word_u32(0) {
            word.fetch_add(1, Ordering::Release);
        }
    }

    /// Writes the 32-bit word at `offset`, after everything before it; false if there is none.
    pub fn store_u32(&self, offset: usize, value: u32) -> bool {
        self.0.store_u32(offset, value)
    }

    /// As [`OwnPage::store_u32`], of 64 bits.
    pub fn store_u64(&self, offset: usize, value: u64) -> bool {
        self.0.store_u64(offset, value)
    }

    /// Writes `bytes` at `offset`; false if they do not fit.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> bool {
        let end = offset.checked_add(bytes.len());
        if end.is_none_or(|end| end > self.0.bytes) {
            return false;
        }
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: the range was just checked; readers use atomics or nothing at all.
            let place = unsafe { self.0.start.add(offset + index).cast::<AtomicU8>().as_ref() };
            place.store(*byte, Ordering::Relaxed);
        }
        true
    }
}

/// Memory that this process and others write: nobody can resize it, and what stands in it
/// is believed by nobody.
#[derive(Debug)]
pub struct CommonPage(Mapping);

impl CommonPage {
    /// A memfd of `bytes` bytes, sealed against resizing, and our mapping of it.
    pub fn create(name: &str, bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = create(name, bytes)?;
        let mapping = Mapping::new(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self(mapping), fd))
    }

    /// Writes the 32-bit word at `offset`; false if there is none.
    pub fn store_u32(&self, offset: usize, value: u32) -> bool {
        self.0.store_u32(offset, value)
    }

    /// Writes the 64-bit word at `offset`; false if there is none.
    pub fn store_u64(&self, offset: usize, value: u64) -> bool {
        self.0.store_u64(offset, value)
    }

    /// The 64-bit word at `offset`, if there is one.
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        Some(self.0.word_u64(offset)?.load(Ordering::SeqCst))
    }

    /// Adds to the 64-bit word at `offset`, or subtracts; it wraps.
    pub fn change_u64(&self, offset: usize, by: i64) {
        if let Some(word) = self.0.word_u64(offset) {
            word.fetch_add(by as u64, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sealed_memfd_of_the_right_size_passes() {
        let (page, fd) = OwnPage::create("test", 4096).expect("page");
        assert_eq!(check(&fd, 4096), Ok(()));
        assert_eq!(check(&fd, 8192), Err(NotShared::Size));
        assert_eq!(
            check(create("bare", 4096).expect("memfd"), 4096),
            Err(NotShared::Seals)
        );
        assert_eq!(
            check(std::fs::File::open("/proc/self/exe").expect("file"), 4096),
            Err(NotShared::Kind)
        );
        page.bump();
        page.bump();
        let seen = ReadOnly::map(&fd, 4096).expect("map");
        assert_eq!(seen.load_u32(0), Some(2));
        assert!(page.store(8, &7u64.to_ne_bytes()));
        assert_eq!(seen.load_u64(8), Some(7));
        assert_eq!((seen.load_u64(4), seen.load_u64(4096)), (None, None));
        assert!(!page.store(4090, &[0; 8]));
    }

    #[test]
    fn nobody_else_can_write_a_sealed_page() {
        let (_page, fd) = OwnPage::create("test", 4096).expect("page");
        assert!(Mapping::new(&fd, 4096, ProtFlags::READ | ProtFlags::WRITE).is_err());
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
    }
}
