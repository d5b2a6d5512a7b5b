//! A tap device: a program at the other end of an Ethernet interface of the kernel
//! (Documentation/networking/tuntap.rst), with the offloads that virtio-net names.

use crate::frames::FrameFile;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TAP: i16 = 2;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6.
const OFFLOADS: libc::c_ulong = 1 | 2 | 4;

/// Makes the interface in the network namespace of the calling thread, and gives the program's end; closing it removes the
/// interface. Needs CAP_NET_ADMIN there. With `offloads`, the kernel gives trains and blank checksums; it takes them in any
/// case.
pub fn open(name: &str, offloads: bool) -> io::Result<FrameFile> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: all zeros are a valid ifreq: plain numbers and an empty name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which is live.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = if offloads { OFFLOADS } else { 0 };
    // SAFETY: TUNSETOFFLOAD takes a number, no memory.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, wanted) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FrameFile::new(file.into()))
}
