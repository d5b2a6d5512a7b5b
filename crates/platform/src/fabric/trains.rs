//! Which trains a switch port sends: of TCP only, to a driver, which has words for no others ([`crate::frames`]). Others are cut
//! by the kernel before they are sent (netdev-features.rst). The device is asked by ethtool's calls (linux/ethtool.h), which
//! name its features.

use std::io;
use std::os::fd::AsRawFd;

const GET_STRINGS: u32 = 0x1b;
const GET_COUNT: u32 = 0x37;
const SET_FEATURES: u32 = 0x3b;
const SET_OF_FEATURES: u32 = 4;
const NAME_BYTES: usize = 32;
/// There are 64 or so.
const FEATURES_MAX: usize = 256;
const BLOCKS_MAX: usize = FEATURES_MAX / 32;

/// What a device might send, and TCP is not.
const OTHERS: [&str; 9] = [
    "tx-udp-segmentation",
    "tx-gso-list",
    "tx-sctp-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
    "tx-ipxip4-segmentation",
    "tx-ipxip6-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
];

#[repr(C)]
struct Count {
    command: u32,
    reserved: u32,
    sets: u64,
    count: u32,
}

#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; NAME_BYTES]; FEATURES_MAX],
}

#[repr(C)]
struct Features {
    command: u32,
    blocks: u32,
    /// Those that are told, and what of them.
    words: [[u32; 2]; BLOCKS_MAX],
}

/// Has a device of the calling thread's network namespace send trains of TCP only.
pub(super) fn of_tcp_only(device: &str) -> io::Result<()> {
    let mut count = Count {
        command: GET_COUNT,
        reserved: 0,
        sets: 1 << SET_OF_FEATURES,
        count: 0,
    };
    // SAFETY: the kernel writes one number behind the mask, which has one bit.
    unsafe { ask(device, &mut count)? };
    let mut strings = Strings {
        command: GET_STRINGS,
        set: SET_OF_FEATURES,
        count: count.count,
        names: [[0; NAME_BYTES]; FEATURES_MAX],
    };
    let known = count.count as usize;
    if known > FEATURES_MAX {
        return Err(io::Error::other(format!("{device} has {known} features")));
    }
    // SAFETY: the kernel writes as many names as it has said, for which there is room.
    unsafe { ask(device, &mut strings)? };
    let mut features = Features {
        command: SET_FEATURES,
        blocks: known.div_ceil(32) as u32,
        words: [[0; 2]; BLOCKS_MAX],
    };
    for (at, name) in strings.names[..known].iter().enumerate() {
        let length = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(NAME_BYTES);
        if OTHERS
            .iter()
            .any(|other| other.as_bytes() == &name[..length])
        {
            features.words[at / 32][0] |= 1 << (at % 32);
        }
    }
    // SAFETY: the kernel reads as many blocks as is said, and writes nothing.
    unsafe { ask(device, &mut features) }
}

/// # Safety
/// `request` is one of ethtool's, with room for all that the kernel writes.
unsafe fn ask<T>(device: &str, request: &mut T) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all zeros are a valid ifreq: plain numbers and an empty name.
    let mut named: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= named.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in named.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from.cast_signed();
    }
    named.ifr_ifru.ifru_data = (&raw mut *request).cast();
    // SAFETY: by contract.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut named) };
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
