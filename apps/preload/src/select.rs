//! select and pselect in terms of poll.
//!
//! Linux looks at no more of the sets than the process's table of descriptors has room for,
//! and leaves what lies behind as it is (fs/select.c: core_sys_select); programs pass counts
//! beyond their sets. The library's own descriptors lie high and make the table larger. So
//! the count is cut to what the table would be without them, as far as the library can tell:
//! as it was when the program began, with room for each descriptor that was in a set, was
//! closed, or became a copy.

use crate::deadline::Deadline;
use crate::faults;
use crate::poll::{concerns, poll_since, with_space};
use crate::signals::Call;
use crate::state::{self, kind};
use crate::sys::{self, sys};
use crate::wait;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

const WORD_BITS: usize = 64;
/// Largest table that is told from larger ones.
const PROBED_MAX: usize = 4096;

/// Room in the table that the program would have. It begins with a word, and doubles
/// (linux: fs/file.c, alloc_fdtable).
static TABLE: AtomicUsize = AtomicUsize::new(WORD_BITS);

/// Finds out how large the table is while nothing hidden is in it. Of a descriptor beyond,
/// select takes no notice.
pub fn set_up() {
    let mut table = WORD_BITS;
    while table < PROBED_MAX {
        let mut set = [0u64; PROBED_MAX / WORD_BITS + 1];
        set[table / WORD_BITS] = 1;
        let none = [0u64; 2];
        let shown = sys!(
            SYS_pselect6,
            table + 1,
            set.as_mut_ptr(),
            0,
            0,
            none.as_ptr(),
            0
        );
        if shown == Ok(0) && set[table / WORD_BITS] != 0 {
            break;
        }
        table *= 2;
    }
    TABLE.store(table, Ordering::Relaxed);
}

/// The program has, or has had, this descriptor.
#[inline]
pub fn note_descriptor(fd: i32) {
    if fd as usize >= TABLE.load(Ordering::Relaxed) {
        TABLE.fetch_max((fd as usize + 1).next_power_of_two(), Ordering::Relaxed);
    }
}

/// The program's sets of descriptors to read, to write, with exceptions.
pub struct Sets {
    count: usize,
    sets: [*mut u64; 3],
}

impl Sets {
    /// As much of the sets as Linux would look at.
    pub fn of(count: c_int, sets: [*mut c_void; 3]) -> Self {
        let mut sets = Self {
            count: count as usize,
            sets: sets.map(<*mut c_void>::cast),
        };
        let mut word = TABLE.load(Ordering::Relaxed) / WORD_BITS;
        while word * WORD_BITS < sets.count && sets.can_read(word) {
            for fd in sets.members(word, word + 1) {
                let is_own = state::look(fd as i32) & kind::MASK == kind::HIDDEN;
                if !is_own && sys!(SYS_fcntl, fd, libc::F_GETFD).is_ok() {
                    note_descriptor(fd as i32);
                }
            }
            word += 1;
        }
        sets.count = sets.count.min(TABLE.load(Ordering::Relaxed));
        sets
    }

    /// How many descriptors are looked at.
    pub fn count(&self) -> c_int {
        self.count as c_int
    }

    fn given(&self) -> impl Iterator<Item = *mut u64> + Clone {
        self.sets.into_iter().filter(|set| !set.is_null())
    }

    fn can_read(&self, word: usize) -> bool {
        self.given()
            .all(|set| faults::can_read(set.wrapping_add(word)))
    }

    /// The descriptors of these words, which can be read, that are in some set.
    fn members(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + Clone {
        let (given, count) = (self.given(), self.count);
        let of_word = move |word: usize| {
            let all = given.clone().map(|set| word_of(set, word));
            let bits = all.fold(0, |bits, more| bits | more);
            let bit = (0..WORD_BITS).filter(move |bit| bits >> bit & 1 != 0);
            bit.map(move |bit| word * WORD_BITS + bit)
        };
        (from..to)
            .flat_map(of_word)
            .take_while(move |fd| *fd < count)
    }

    /// The call itself. `None`: it is libc's, as no stream socket is among them, or as the
    /// kernel has to say what is wrong.
    pub fn select(
        &self,
        timeout_ns: Option<u64>,
        mask: *const c_void,
    ) -> Option<sys::Result<usize>> {
        let words = self.count.div_ceil(WORD_BITS);
        if !self.given().all(|set| faults::can_read_all(set, words)) {
            return None;
        }
        let members = self.members(0, words);
        if !concerns(members.clone().map(|fd| fd as i32)) {
            return None;
        }
        let used = members.clone().count();
        Some(with_space(used, &mut |entries| {
            self.select_in(entries, timeout_ns, mask)
        }))
    }

    /// The same with an entry for each descriptor.
    fn select_in(
        &self,
        entries: &mut [libc::pollfd],
        timeout_ns: Option<u64>,
        mask: *const c_void,
    ) -> sys::Result<usize> {
        let members = self.members(0, self.count.div_ceil(WORD_BITS));
        // The bits of select in terms of poll's: man 2 select, "Correspondence between select()
        // and poll()".
        for (entry, fd) in entries.iter_mut().zip(members) {
            let events = self.sets.iter().zip(SETS);
            let events = events
                .filter(|(set, _)| has(**set, fd))
                .map(|(_, (asked, _))| asked);
            *entry = libc::pollfd {
                fd: fd as i32,
                events: events.sum(),
                revents: 0,
            };
        }
        let deadline = match timeout_ns {
            Some(0) => Deadline::At(0),
            _ => Deadline::after(timeout_ns),
        };
        let (call, mut left_ns) = (Call::begin(), timeout_ns);
        loop {
            let shown = match poll_since(entries, left_ns, mask, call) {
                Err(error) => break Err(error),
                Ok(shown) => shown,
            };
            let is_aside = |entry: &libc::pollfd| entry.fd < 0;
            let is_over = shown == 0 && !entries.iter().any(is_aside);
            if is_over || entries.iter().any(is_told) || deadline.has_passed() {
                break self.give(entries);
            }
            // An end of which select says nothing here: poll would say so again at once, so that its descriptor is put aside for a while.
            let turned = |entry: &&mut libc::pollfd| match shown {
                0 => is_aside(entry),
                _ => entry.revents != 0,
            };
            for entry in entries.iter_mut().filter(turned) {
                (entry.fd, entry.revents) = (-1 - entry.fd, 0);
            }
            let slice_ns = (shown != 0).then_some(wait::WATCH_SLICE_NS);
            left_ns = deadline.left_ns(slice_ns);
        }
    }

    /// Writes the sets as they are afterwards.
    fn give(&self, entries: &[libc::pollfd]) -> sys::Result<usize> {
        if entries.iter().any(is_closed) {
            return Err(libc::EBADF);
        }
        let words = self.count.div_ceil(WORD_BITS);
        for set in self.given() {
            faults::check(faults::can_write_all(set, words))?;
            for word in 0..words {
                // SAFETY: found writable.
                unsafe { set.add(word).write_unaligned(0) };
            }
        }
        let mut ready = 0;
        for entry in entries {
            for (set, of) in self.sets.iter().zip(SETS) {
                if is_in(entry, of) {
                    let (word, bit) =
                        (entry.fd as usize / WORD_BITS, entry.fd as usize % WORD_BITS);
                    // SAFETY: found writable.
                    unsafe {
                        set.add(word)
                            .write_unaligned(word_of(*set, word) | 1 << bit)
                    };
                    ready += 1;
                }
            }
        }
        Ok(ready)
    }
}

/// What poll is asked for each set, and by what of its answers a descriptor stays in the set.
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

fn is_in(entry: &libc::pollfd, (asked, shown): (i16, i16)) -> bool {
    entry.events & asked != 0 && entry.revents & shown != 0
}

fn is_closed(entry: &libc::pollfd) -> bool {
    entry.revents & libc::POLLNVAL != 0
}

/// Whether select has anything to say of it.
fn is_told(entry: &libc::pollfd) -> bool {
    is_closed(entry) || SETS.into_iter().any(|of| is_in(entry, of))
}

/// A word of a set that can be read so far.
fn word_of(set: *const u64, word: usize) -> u64 {
    // SAFETY: every caller has found it readable.
    unsafe { set.add(word).read_unaligned() }
}

fn has(set: *const u64, fd: usize) -> bool {
    !set.is_null() && word_of(set, fd / WORD_BITS) >> (fd % WORD_BITS) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hidden;
    use crate::testing::tables;

    /// The sets to read and to write of so many words.
    fn sets(count: c_int, read: &mut [u64], write: &mut [u64]) -> Sets {
        let (read, write) = (read.as_mut_ptr().cast(), write.as_mut_ptr().cast());
        Sets::of(count, [read, write, core::ptr::null_mut()])
    }

    fn table() -> usize {
        TABLE.load(Ordering::Relaxed)
    }

    #[test]
    fn room_grows_by_doubling_and_never_shrinks() {
        let _turn = tables();
        TABLE.store(WORD_BITS, Ordering::Relaxed);
        for (fd, room) in [
            (0, 64),
            (63, 64),
            (64, 128),
            (300, 512),
            (70, 512),
            (511, 512),
            (512, 1024),
        ] {
            note_descriptor(fd);
            assert_eq!(table(), room, "{fd}");
        }
    }

    #[test]
    fn a_count_is_cut_to_the_table_that_the_program_would_have() {
        let _turn = tables();
        TABLE.store(WORD_BITS, Ordering::Relaxed);
        let mut read = [0u64; 32];
        // Nobody has these.
        read[10] = u64::MAX;
        assert_eq!(sets(2000, &mut read, &mut [0; 32]).count(), 64);
        assert_eq!(sets(20, &mut read, &mut [0; 32]).count(), 20);
        // SAFETY: a copy of a descriptor of ours.
        let high = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 1500) };
        assert!((1500..2048).contains(&high));
        read[high as usize / 64] = 1 << (high % 64);
        assert_eq!(sets(1000, &mut read, &mut [0; 32]).count(), 64);
        assert_eq!(sets(2048, &mut read, &mut [0; 32]).count(), 2048);
        // SAFETY: ours.
        unsafe { libc::close(high) };
    }

    #[test]
    fn a_descriptor_of_the_library_makes_no_room() {
        let _turn = tables();
        TABLE.store(WORD_BITS, Ordering::Relaxed);
        let own = hidden::copy(0).expect("a hidden descriptor");
        let words = own as usize / WORD_BITS + 1;
        let mut read = vec![0u64; words];
        read[words - 1] = 1 << (own as usize % WORD_BITS);
        assert_eq!(sets(own + 1, &mut read, &mut vec![0; words]).count(), 64);
        hidden::close(own);
    }

    #[test]
    fn members_are_those_below_the_count() {
        let _turn = tables();
        TABLE.store(1024, Ordering::Relaxed);
        let (mut read, mut write) = ([1 | 1 << 63, 0b110], [1 << 3, 1 << 2]);
        let sets = sets(66, &mut read, &mut write);
        let members: Vec<usize> = sets.members(0, 2).collect();
        assert_eq!(members, [0, 3, 63, 65]);
    }

    #[test]
    fn words_behind_the_count_are_left_as_they_are() {
        let _turn = tables();
        TABLE.store(1024, Ordering::Relaxed);
        let (mut read, mut write) = ([u64::MAX; 3], [u64::MAX; 3]);
        let given = sets(65, &mut read, &mut write);
        let entry = |fd, events, revents| libc::pollfd {
            fd,
            events,
            revents,
        };
        let both = libc::POLLIN | libc::POLLOUT;
        let entries = [
            entry(0, both, libc::POLLERR),
            entry(1, both, libc::POLLHUP),
            entry(2, libc::POLLOUT, libc::POLLIN),
            entry(64, libc::POLLIN, libc::POLLIN),
        ];
        assert_eq!(given.give(&entries), Ok(4));
        assert_eq!(read, [0b11, 1, u64::MAX]);
        assert_eq!(write, [0b1, 0, u64::MAX]);
    }

    #[test]
    fn a_closed_descriptor_leaves_the_sets_alone() {
        let _turn = tables();
        TABLE.store(1024, Ordering::Relaxed);
        let (mut read, mut write) = ([3], [0]);
        let given = sets(2, &mut read, &mut write);
        let entries = [libc::pollfd {
            fd: 1,
            events: libc::POLLIN,
            revents: libc::POLLNVAL,
        }];
        assert_eq!(given.give(&entries), Err(libc::EBADF));
        assert_eq!(read, [3]);
    }
}
