//! The program's buffers of one call: parts in its memory, checked as the kernel checks
//! them when a call begins (linux: lib/iov_iter.c), and again piece by piece before a copy.

use crate::{faults, libcs, sys};
use faults::check;

/// Up to so many parts need little of the stack.
const PARTS_FEW: usize = 16;
const PARTS_MAX: usize = libc::UIO_MAXIOV as usize;
/// Most that one call moves (man 2 read).
pub const BYTES_MAX: usize = 0x7fff_f000;

const NO_PART: libc::iovec = libc::iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// The program's buffers of one call, with what was done of them.
#[derive(Clone, Copy)]
pub struct Buffers {
    /// The first part, as it was found.
    first: libc::iovec,
    parts: *const libc::iovec,
    count: usize,
    /// Bytes in all parts.
    pub total: usize,
    /// They are to go in one piece ([`super::record`]).
    pub is_record: bool,
}

impl Buffers {
    /// One part. `whole`: its length is checked as it is (read and write), not cut to what one
    /// call moves (recv and send).
    #[inline(always)]
    pub fn one(part: libc::iovec, whole: bool) -> sys::Result<Self> {
        let total = part.iov_len.min(BYTES_MAX);
        let checked = if whole { part.iov_len } else { total };
        check(faults::is_user_range(part.iov_base.cast(), checked))?;
        Ok(Self {
            first: part,
            parts: core::ptr::null(),
            count: 0,
            total,
            is_record: false,
        })
    }

    /// The parts that a program passed to readv or writev.
    pub fn new(parts: *const libc::iovec, count: usize) -> sys::Result<Self> {
        if count > libc::UIO_MAXIOV as usize {
            return Err(libc::EINVAL);
        }
        let bytes = count * size_of::<libc::iovec>();
        check(faults::is_user_range(parts.cast(), bytes))?;
        check(faults::is_readable(parts.cast(), bytes))?;
        let lengths = (0..count).map(|index| {
            // SAFETY: the program's array of `count` parts, found readable.
            unsafe { (*parts.add(index)).iov_len }
        });
        if lengths.clone().any(|length| length > isize::MAX as usize) {
            return Err(libc::EINVAL);
        }
        let mut first = NO_PART;
        let mut total = 0usize;
        for (index, length) in lengths.enumerate() {
            // SAFETY: as above.
            let base = unsafe { (*parts.add(index)).iov_base };
            check(faults::is_user_range(base.cast(), length))?;
            if index == 0 {
                first = libc::iovec {
                    iov_base: base,
                    iov_len: length,
                };
            }
            total += length.min(BYTES_MAX - total);
        }
        Ok(Self {
            first,
            parts,
            count,
            total,
            is_record: false,
        })
    }

    /// They are a record, which goes in one piece.
    pub fn whole(self) -> Self {
        Self {
            is_record: true,
            ..self
        }
    }

    /// Whether they are an array of parts.
    pub fn are_parts(&self) -> bool {
        !self.parts.is_null()
    }

    /// In how many parts they are.
    pub fn part_count(&self) -> usize {
        self.count.max(1)
    }

    /// All parts of those that [`Buffers::new`] was given.
    pub fn all(&self) -> (*mut libc::iovec, usize) {
        (self.parts.cast_mut(), self.count)
    }

    /// The parts of a message; too many of them have an error of their own.
    pub fn of_message(message: &libc::msghdr) -> sys::Result<Self> {
        let count = libcs::count(message.msg_iovlen);
        if count > libc::UIO_MAXIOV as usize {
            return Err(libc::EMSGSIZE);
        }
        Self::new(message.msg_iov, count)
    }

    /// Where the bytes `[skip, skip + count)` begin, if they lie in the first part.
    #[inline(always)]
    pub fn one_piece(&self, skip: usize, count: usize) -> Option<*mut u8> {
        let base = self.first.iov_base.cast::<u8>();
        (skip + count <= self.first.iov_len).then(|| base.wrapping_add(skip))
    }

    /// Calls `act` with each contiguous piece of the bytes `[skip, skip + count)` until it fails.
    pub fn pieces<E>(
        &self,
        skip: usize,
        count: usize,
        mut act: impl FnMut(*mut u8, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(base) = self.one_piece(skip, count) {
            return match count {
                0 => Ok(()),
                _ => act(base, count),
            };
        }
        let (mut skip, mut left) = (skip, count);
        for index in 0..self.count {
            if left == 0 {
                break;
            }
            // SAFETY: as in `new`.
            let part = unsafe { *self.parts.add(index) };
            if skip >= part.iov_len {
                skip -= part.iov_len;
                continue;
            }
            let length = (part.iov_len - skip).min(left);
            act(part.iov_base.cast::<u8>().wrapping_add(skip), length)?;
            left -= length;
            skip = 0;
        }
        Ok(())
    }

    /// Calls `act` with the bytes `[skip, skip + count)` as parts for a kernel call. They are all of them: who
    /// gets fewer bytes than asked takes the queue for empty (man 7 epoll).
    pub fn with_parts<R>(
        &self,
        skip: usize,
        count: usize,
        act: impl FnOnce(&mut [libc::iovec]) -> R,
    ) -> R {
        match self.count <= PARTS_FEW {
            true => self.with_up_to::<PARTS_FEW, R>(skip, count, act),
            false => self.with_many(skip, count, act),
        }
    }

    #[cold]
    #[inline(never)]
    fn with_many<R>(
        &self,
        skip: usize,
        count: usize,
        act: impl FnOnce(&mut [libc::iovec]) -> R,
    ) -> R {
        self.with_up_to::<PARTS_MAX, R>(skip, count, act)
    }

    #[inline(always)]
    fn with_up_to<const N: usize, R>(
        &self,
        skip: usize,
        count: usize,
        act: impl FnOnce(&mut [libc::iovec]) -> R,
    ) -> R {
        let mut parts = [NO_PART; N];
        let mut used = 0;
        let _ = self.pieces(skip, count, |base, length| {
            // As many as `N` at most: `count` of `new`.
            let part = parts.get_mut(used).ok_or(())?;
            part.iov_base = base.cast();
            part.iov_len = length;
            used += 1;
            Ok::<(), ()>(())
        });
        act(&mut parts[..used])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_call_gets_all_parts() {
        let mut bytes = [0u8; PARTS_MAX];
        let parts: Vec<_> = bytes
            .iter_mut()
            .map(|byte| libc::iovec {
                iov_base: core::ptr::from_mut(byte).cast(),
                iov_len: 1,
            })
            .collect();
        for count in [1, PARTS_FEW, PARTS_FEW + 1, PARTS_MAX] {
            let buffers = Buffers::new(parts.as_ptr(), count).expect("good parts");
            let passed = |skip, bytes| buffers.with_parts(skip, bytes, |parts| parts.len());
            assert_eq!(passed(0, count), count);
            assert_eq!(passed(1, count - 1), count - 1);
            assert_eq!(passed(0, count - 1), count - 1);
        }
    }
}
