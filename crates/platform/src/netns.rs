//! Network namespaces: made, held by a file, entered, asked for their identity.
//!
//! A namespace lives as long as a process is in it, a descriptor of it is open, or
//! its nsfs file is mounted somewhere (namespaces(7)). Fordway holds the ones it
//! makes by the last means, as `ip netns` does: [`create`] makes a namespace in a
//! helper thread and bind-mounts that thread's `ns/net` onto a file. Nothing of the
//! caller moves: [`within`] runs a closure in a helper thread that has entered the
//! namespace, and what the closure opens (sockets) or starts (child processes)
//! stays there, because both take the namespace of the thread that made them.
//!
//! The directory of those files is a private mount ([`private_dir`]): copies of it
//! in later mount namespaces neither see new namespaces nor receive unmounts, and
//! the launcher drops its own copy, so that a running program never keeps a foreign
//! namespace alive.

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// `f_type` of nsfs (linux/magic.h).
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// Makes a network namespace (its `lo` is down) and mounts it on `file`, which is
/// created and must not be a mount yet.
pub fn create(file: &Path) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC;
    drop(rustix::fs::open(file, flags, Mode::from_raw_mode(0o444))?);
    let made = in_thread(|| {
        unshare()?;
        rustix::mount::mount_bind("/proc/thread-self/ns/net", file)
    });
    if made.is_err() {
        let _ = std::fs::remove_file(file);
    }
    made.map_err(io::Error::from)
}

/// Opens the namespace held by `file`; `None` if the file is not (or no longer) one.
pub fn open(file: &Path) -> io::Result<Option<OwnedFd>> {
    let fd = match rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(is_namespace(&fd)?.then_some(fd))
}

/// Makes a network namespace that lives as long as its descriptor.
pub fn anonymous() -> io::Result<OwnedFd> {
    in_thread(|| {
        unshare()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())
    })
    .map_err(io::Error::from)
}

/// Opens the network namespace that a process is in.
pub fn of_process(pid: i32) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/net");
    Ok(rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens the network namespace that a socket lies in; for an accepted UNIX socket that of the
/// side that connected (SIOCGSKNS, netdevice(7); needs CAP_NET_ADMIN in that namespace).
pub fn of_socket(socket: impl AsFd) -> io::Result<OwnedFd> {
    // linux/sockios.h; not in the libc crate.
    const SIOCGSKNS: libc::Ioctl = 0x894c;
    // SAFETY: the call takes no argument and returns a new descriptor.
    let raw = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Undoes [`create`]: the namespace ends when its last process does.
pub fn remove(file: &Path) -> io::Result<()> {
    match rustix::mount::unmount(file, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes `dir` a mount point of its own with private propagation (mount_namespaces(7)).
pub fn private_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    if !is_mount_point(dir)? {
        rustix::mount::mount_bind(dir, dir)?;
    }
    rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE)?;
    Ok(())
}

/// Undoes [`private_dir`]; whatever is still mounted below goes with it.
pub fn remove_private_dir(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match std::fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs `work` in a helper thread inside the namespace and gives back its result.
pub fn within<T: Send>(ns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    in_thread(|| {
        enter(ns)?;
        Ok(work())
    })
}

/// Moves the calling thread into the namespace, for good.
pub fn enter(ns: BorrowedFd<'_>) -> io::Result<()> {
    rustix::thread::move_into_link_name_space(ns, Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// SO_NETNS_COOKIE: a number that no other network namespace has before the next boot.
pub fn cookie(ns: BorrowedFd<'_>) -> io::Result<u64> {
    within(ns, || {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
        crate::sockinfo::netns_cookie(socket)
    })?
}

fn is_namespace(fd: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u64 == NSFS_MAGIC)
}

fn is_mount_point(path: &Path) -> io::Result<bool> {
    let stat = rustix::fs::statx(
        rustix::fs::CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::BASIC_STATS,
    )?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Moves the calling thread to a new network namespace.
fn unshare() -> rustix::io::Result<()> {
    // SAFETY: with CLONE_NEWNET only, no descriptor table or file-system state is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}

/// A thread of its own, because the namespace of a thread cannot be lent and given
/// back safely: an error on the way back would leave the caller astray.
pub(crate) fn in_thread<T: Send, E: Send>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
