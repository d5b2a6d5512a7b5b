//! What this process may take of its memory cgroup for rings.
//!
//! A ring's memory is charged to the process that writes it (linux: mm/shmem.c), and who reads
//! slowly makes rings grow. Without this, peers would decide when a server with a memory limit is
//! killed. So a process has a purse of its own beside its domain's: it holds a [`SHARE`]th of what
//! its cgroup, and each one above it, has left. Rings that it does not pay for stay small, or are
//! not made.
//!
//! The files are read when a connection gets a channel, at most once in [`AGAIN_NS`]; cgroups(7),
//! Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.high, memory.stat). Where they
//! cannot be read there is no limit but the domain's.

use crate::process::PROCESS;
use crate::sys::{self, sys};
use core::sync::atomic::{AtomicU64, Ordering};
use fordway_abi::shm::{ARENA_OFFSET, Purse};

/// Of what is left, one in so many bytes may be taken before it is looked at again.
const SHARE: u64 = 8;
/// Time between two looks.
const AGAIN_NS: u64 = 100_000_000;
/// Cgroups above each other that are looked at.
const DEPTH_MAX: u32 = 32;
const TEXT_BYTES: usize = 4096;
/// From here on a limit is none (linux: PAGE_COUNTER_MAX, in the first version).
const UNLIMITED: u64 = 1 << 62;

/// Of the process: what its memory has room for.
pub struct Headroom {
    own: Purse,
    again_at_ns: AtomicU64,
}

impl Headroom {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            own: Purse {
                magic: core::sync::atomic::AtomicU32::new(0),
                abi_version: core::sync::atomic::AtomicU32::new(0),
                bytes_max: AtomicU64::new(u64::MAX),
                bytes_taken: AtomicU64::new(0),
            },
            again_at_ns: AtomicU64::new(0),
        }
    }
}

/// The process's own purse.
pub fn purse() -> &'static Purse {
    &PROCESS.headroom.own
}

/// A region of ours is gone, of which so much was handed out.
pub fn give_back(arena_next: u64) {
    let taken = arena_next.saturating_sub(ARENA_OFFSET as u64);
    PROCESS
        .headroom
        .own
        .bytes_taken
        .fetch_sub(taken, Ordering::Relaxed);
}

/// In a forked child: its regions are the parent's.
pub fn after_fork() {
    PROCESS.headroom.own.bytes_taken.store(0, Ordering::Relaxed);
    PROCESS.headroom.again_at_ns.store(0, Ordering::Relaxed);
}

/// Fills the purse anew, now and then.
pub fn look() {
    let now = sys::now_ns();
    let at = PROCESS.headroom.again_at_ns.load(Ordering::Relaxed);
    let again = now.wrapping_add(AGAIN_NS);
    let is_due = now >= at
        && PROCESS
            .headroom
            .again_at_ns
            .compare_exchange(at, again, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
    if is_due {
        let taken = PROCESS.headroom.own.bytes_taken.load(Ordering::Relaxed);
        let max = left().map_or(u64::MAX, |left| taken.saturating_add(left / SHARE));
        PROCESS.headroom.own.bytes_max.store(max, Ordering::Relaxed);
    }
}

/// The names of one version's files.
struct Files {
    root: &'static [u8],
    limits: &'static [&'static [u8]],
    used: &'static [u8],
    /// Words of memory.stat: what the kernel drops before it kills.
    spare: [&'static [u8]; 2],
}

const V1: Files = Files {
    root: b"/sys/fs/cgroup/memory",
    limits: &[b"/memory.limit_in_bytes"],
    used: b"/memory.usage_in_bytes",
    spare: [b"total_inactive_file ", b"total_active_file "],
};
const V2: Files = Files {
    root: b"/sys/fs/cgroup",
    limits: &[b"/memory.max", b"/memory.high"],
    used: b"/memory.current",
    spare: [b"inactive_file ", b"active_file "],
};

/// What is left in the narrowest of the cgroups; `None`: no limit is known.
fn left() -> Option<u64> {
    let mut text = [0; TEXT_BYTES];
    let text = read(&[b"/proc/self/cgroup"], &mut text)?;
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(left_by).min()
}

/// The same, by one line of /proc/self/cgroup: `number:controllers:path`.
fn left_by(line: &[u8]) -> Option<u64> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let (_, controllers, mut path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_v1 = controllers
        .split(|byte| *byte == b',')
        .any(|name| name == b"memory");
    let files = match is_v1 {
        true => V1,
        false if controllers.is_empty() => V2,
        false => return None,
    };
    let mut least = None;
    for _ in 0..DEPTH_MAX {
        if let Some(left) = left_at(&files, path) {
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        // In a container the path may be the host's: the root is that of the container then.
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(_) if path == b"/" || path.is_empty() => break,
            Some(at) => path = &path[..at],
            None => break,
        }
    }
    least
}

fn left_at(files: &Files, path: &[u8]) -> Option<u64> {
    let path = if path == b"/" { b"" } else { path };
    let figure = |name: &[u8]| {
        let mut text = [0; 32];
        number(read(&[files.root, path, name], &mut text)?)
    };
    let limits = files.limits.iter().filter_map(|name| figure(name));
    let limit = limits.filter(|limit| *limit < UNLIMITED).min()?;
    let used = figure(files.used)?;
    let mut text = [0; TEXT_BYTES];
    let stat = read(&[files.root, path, b"/memory.stat"], &mut text).unwrap_or(&[]);
    let spare = stat
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let name = files.spare.iter().find(|name| line.starts_with(name))?;
            number(&line[name.len()..])
        })
        .fold(0, u64::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(spare)))
}

/// The number at the start of a text; `None` for `max`.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let value = digits.clone().try_fold(0u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    value.filter(|_| digits.count() != 0)
}

/// The first bytes of the file whose name the parts make.
fn read<'a>(parts: &[&[u8]], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut name = [0; TEXT_BYTES];
    // The last byte stays zero.
    let room = &mut name[..TEXT_BYTES - 1];
    for (at, byte) in parts.iter().flat_map(|part| part.iter()).enumerate() {
        *room.get_mut(at)? = *byte;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = sys!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, 0).ok()?;
    let count = sys!(SYS_read, fd, text.as_mut_ptr(), text.len());
    let _ = sys!(SYS_close, fd);
    text.get(..count.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;

    #[test]
    fn a_number_ends_at_the_first_byte_that_is_no_digit() {
        assert_eq!(number(b"4096\n"), Some(4096));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for none in [&b"max\n"[..], b"", b"-1", b"18446744073709551616"] {
            assert_eq!(number(none), None);
        }
    }

    #[test]
    fn a_region_that_is_gone_gives_back_what_it_took() {
        let _turn = tables();
        let header = ARENA_OFFSET as u64;
        PROCESS
            .headroom
            .own
            .bytes_taken
            .store(5000, Ordering::Relaxed);
        give_back(header + 3000);
        assert_eq!(
            PROCESS.headroom.own.bytes_taken.load(Ordering::Relaxed),
            2000
        );
        // Nothing was handed out: there is nothing to give back.
        give_back(0);
        give_back(header);
        assert_eq!(
            PROCESS.headroom.own.bytes_taken.load(Ordering::Relaxed),
            2000
        );
        after_fork();
        assert_eq!(PROCESS.headroom.own.bytes_taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn lines_of_other_controllers_say_nothing() {
        for line in [&b""[..], b"0", b"7:cpu,cpuacct:/", b"1:name=systemd:/"] {
            assert_eq!(left_by(line), None);
        }
    }

    #[test]
    fn a_cgroup_without_a_limit_is_not_asked_what_it_uses() {
        let root = std::env::temp_dir().join(format!("fordway-cgroup-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("a directory");
        let write = |name: &str, text: &str| {
            std::fs::write(root.join(name), text).expect("a file");
        };
        let name = root.clone().into_os_string().into_encoded_bytes();
        let files = Files {
            root: Box::leak(name.into_boxed_slice()),
            ..V1
        };
        write("memory.usage_in_bytes", "4096\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(left_at(&files, b"/"), None);
        write("memory.limit_in_bytes", "12288\n");
        assert_eq!(left_at(&files, b"/"), Some(8192));
        std::fs::remove_dir_all(&root).expect("ours");
    }

    #[test]
    fn a_name_that_is_too_long_is_not_read() {
        let mut text = [0; 16];
        // What fits is the name of a file.
        let mut long = [b'/'; TEXT_BYTES];
        long[TEXT_BYTES - 18..].copy_from_slice(b"/proc/self/status?");
        assert_eq!(read(&[&long], &mut text), None);
        assert_eq!(read(&[b"/proc/self", b"/no such file"], &mut text), None);
        let status = read(&[b"/proc/self", b"/status"], &mut text);
        assert_eq!(status.map(|text| &text[..5]), Some(&b"Name:"[..]));
    }
}
