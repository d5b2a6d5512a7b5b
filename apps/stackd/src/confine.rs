//! What is left of a stack once it listens (`fordway_driver::confine`): system calls, memory, descriptors.
//!
//! The list is longer than a driver's, because the library is in the process, too: the stack's ends of pairs get rings as the
//! program's do. What the library does besides (it reads limits, looks for cgroups) finds an empty root, and goes on without.

use crate::config::Config;
use anyhow::{Context, Result};
use fordway_driver::confine::{Confined, confine as confine_process};
use std::path::PathBuf;

/// Descriptors besides those of sockets: control connections, and the library's own.
const FILES_BESIDES: u64 = 16_384;
/// Memory of the stack's own. That of rings is shared, and bounded by the domain's purse.
const MEMORY_BYTES_MAX: u64 = 3 << 29;
/// One memfd, of which only used pages cost memory: the region of a link.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Calls of the loop and of the library.
pub const CALLS: &[libc::c_long] = &[
    // The loop: pairs, control connections, frames.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_pread64,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept4,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_getrandom,
    // The queue to a driver that was started again, and the library's links: memory that is joined, doorbells.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_munlock,
    libc::SYS_eventfd2,
    // The library: its broker, hidden descriptors, who it is, where it runs, how it waits.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_dup3,
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_pidfd_open,
    libc::SYS_prlimit64,
    libc::SYS_kill,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_getcpu,
    libc::SYS_clock_gettime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
];

/// From here on the process can do nothing but a stack's work. The directory of the broker's socket is all that it sees of the
/// file system, so that the library finds a broker that was started again.
pub fn confine(config: &Config) -> Result<()> {
    let broker = std::env::var_os(fordway_abi::env::SOCKET).map(PathBuf::from);
    let directory = broker.as_ref().and_then(|socket| socket.parent());
    let done = confine_process(&Confined {
        uid: config.uid,
        gid: config.uid,
        directory,
        calls: CALLS,
        files_max: config.sockets_max as u64 + FILES_BESIDES,
        file_bytes_max: FILE_BYTES_MAX,
        space_bytes_max: u64::MAX,
        memory_bytes_max: MEMORY_BYTES_MAX,
    });
    done.context("the process cannot be confined")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    const DRIVER: &str = include_str!("../../driver/src/confine.rs");

    /// Calls that the library makes where the program makes them, of which a stack makes none, or before the list is in force.
    const PROGRAMS_OWN: &[&str] = &[
        "accept",
        "close_range",
        "dup",
        "dup2",
        "epoll_create",
        "execve",
        "execveat",
        "io_submit",
        "io_uring_setup",
        "listen",
        "prctl",
        "preadv",
        "pselect6",
        "select",
        "sendfile",
        "splice",
    ];

    /// Names behind `before` in a source.
    fn named<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text.split(before);
        rest.next();
        rest.filter_map(|rest| {
            let rest = rest.trim_start().strip_prefix("SYS_")?;
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
        })
    }

    /// The calls of a constant in a source.
    fn list<'a>(source: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
        let begin = format!("{name}: &[libc::c_long] = &[");
        let (_, list) = source.split_once(&begin).expect("a list");
        let (list, _) = list.split_once("\n];").expect("its end");
        named(list, "    libc::")
    }

    fn sources(dir: &Path, all: &mut String) {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, all);
            } else {
                all.push_str(&std::fs::read_to_string(&path).expect("text"));
            }
        }
    }

    #[test]
    fn every_call_of_the_library_is_on_the_list() {
        let mut library = String::new();
        sources(
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/src")),
            &mut library,
        );
        let listed = named(include_str!("confine.rs"), "    libc::");
        let listed: BTreeSet<&str> = listed.chain(list(DRIVER, "C_LIBRARY")).collect();
        let missing: BTreeSet<&str> = named(&library, "sys!(")
            .filter(|call| !listed.contains(call) && !PROGRAMS_OWN.contains(call))
            .collect();
        assert!(listed.len() > 60);
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_document_has_the_calls_of_both() {
        let document = include_str!("../../../docs/stack.md");
        for (part, source) in [("driver", DRIVER), ("stack", include_str!("confine.rs"))] {
            let begin = format!("The calls of a {part}");
            let (_, behind) = document.split_once(&begin).expect("a table");
            let rows = behind.lines().skip_while(|line| !line.starts_with("| for"));
            let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
            let told: BTreeSet<&str> = rows
                .filter_map(|row| row.split('|').nth(2))
                .flat_map(|calls| calls.split(',').map(str::trim))
                .collect();
            let listed = list(source, "CALLS").chain(list(DRIVER, "C_LIBRARY"));
            let listed: BTreeSet<&str> = listed.collect();
            assert_eq!(told, listed, "{part}");
        }
    }
}
