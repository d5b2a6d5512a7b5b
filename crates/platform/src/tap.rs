//! A tap device: a program at the other end of an Ethernet interface of the kernel
//! (Documentation/networking/tuntap.rst), with the offloads that virtio-net names.

use crate::frames::FrameFile;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETOWNER: libc::c_ulong = 0x4004_54cc;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const ETHTOOL_GLINK: u32 = 0x0a;
const IFF_TAP: i16 = 2;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6.
const OFFLOADS: libc::c_ulong = 1 | 2 | 4;
/// Where a program's end comes from.
pub const DEVICE: &str = "/dev/net/tun";
/// A user that nobody is, beyond those of parts. A device without an owner is anybody's who has a descriptor of [`DEVICE`]
/// that was opened in its namespace: whose own device is gone, say. One with an owner needs CAP_NET_ADMIN there of all others.
const NOBODY: libc::c_ulong = 0x7fff_ffff;

/// Makes the interface in the network namespace of the calling thread, and gives the program's end; closing it removes the
/// interface. Needs CAP_NET_ADMIN there. With `offloads`, the kernel gives trains and blank checksums; it takes them in any
/// case.
pub fn open(name: &str, offloads: bool) -> io::Result<FrameFile> {
    let file = attach(name)?;
    let wanted = if offloads { OFFLOADS } else { 0 };
    set(&file, TUNSETOFFLOAD, wanted)?;
    Ok(FrameFile::new(file))
}

/// Makes the interface there, for nobody but root to attach to. It stays until it is deleted, without a carrier while no
/// program has its end.
pub fn make(name: &str) -> io::Result<()> {
    let file = attach(name)?;
    set(&file, TUNSETOWNER, NOBODY)?;
    set(&file, TUNSETPERSIST, 1)
}

/// The program's end of an interface that is there, with trains of TCP and blank checksums; `EBUSY`: another one has it.
/// Whoever is given it needs no right, and no namespace, to use it ([`FrameFile::of_tap`]).
pub fn end_of(name: &str) -> io::Result<OwnedFd> {
    // To attach would make it, and that would be nobody's port.
    rustix::net::netdevice::name_to_index(
        std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?,
        name,
    )?;
    let file = attach(name)?;
    // An earlier version made it without, and who had its end could change the owner.
    set(&file, TUNSETOWNER, NOBODY)?;
    set(&file, TUNSETOFFLOAD, OFFLOADS)?;
    settle(name)?;
    Ok(file)
}

/// Has everybody know by now that an interface has a carrier since its end is open. Otherwise a bridge learns of it some
/// milliseconds later, and drops what comes until then.
fn settle(name: &str) -> io::Result<()> {
    // linux/ethtool.h: to ask for the link is what the kernel itself settles it for (ethtool_op_get_link, since 6.8).
    let mut asked = [ETHTOOL_GLINK, 0];
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_data = asked.as_mut_ptr().cast();
    // SAFETY: the request is a live ifreq, and its data a live ethtool_value, two numbers.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros are a valid ifreq: plain numbers and an empty name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

fn attach(name: &str) -> io::Result<OwnedFd> {
    let file = device()?;
    attach_to(&file, name)?;
    Ok(file)
}

/// Opens [`DEVICE`]; it belongs to the namespace of the calling thread from now on.
pub fn device() -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(DEVICE)?;
    Ok(file.into())
}

fn attach_to(file: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which is live.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(file: &OwnedFd, what: libc::c_ulong, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD, TUNSETOWNER and TUNSETPERSIST take a number, no memory.
    match unsafe { libc::ioctl(file.as_raw_fd(), what, value) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns;
    use rustix::process::Uid;
    use std::os::fd::AsFd;

    /// Somebody has an open file of the namespace, as who had an end of another device there, and no right.
    #[test]
    fn nobody_attaches_without_a_right() {
        if !rustix::process::geteuid().is_root() || device().is_err() {
            fordway_test_skip::skipped("needs root, and tap devices");
            return;
        }
        let namespace = netns::anonymous().expect("a namespace");
        let tried = netns::within(namespace.as_fd(), || {
            make("tap0").expect("made");
            let file = device().expect("opened");
            // Of this thread alone, which ends.
            let somebody = Uid::from_raw(12_345);
            rustix::thread::set_thread_res_uid(somebody, somebody, somebody).expect("another user");
            attach_to(&file, "tap0")
        });
        let refused = tried.expect("the namespace").expect_err("attached");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        // A child that another test forks has a copy of the first end until it executes.
        let began = std::time::Instant::now();
        loop {
            let end = netns::within(namespace.as_fd(), || end_of("tap0").map(drop));
            match end.expect("the namespace") {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    assert!(began.elapsed().as_secs() < 60, "it stays busy");
                    std::thread::yield_now();
                }
                end => return end.expect("root attaches"),
            }
        }
    }
}
