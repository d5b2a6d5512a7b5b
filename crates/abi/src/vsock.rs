//! Addresses of AF_VSOCK between domains (vsock(7)).
//!
//! A domain's CID stands in an IPv6 address that the domain has for nothing else, in a network of its own; the port is
//! TCP's. So a stream of AF_VSOCK is a TCP connection in disguise: the library puts the mask on
//! (apps/preload: vsock), and all others see addresses as usual, also the rules of the filter.

use core::net::Ipv6Addr;

/// The first 64 bits of these addresses, unique local (RFC 4193): `fd56:534f:434b::/64`, "VSOCK" in ASCII.
pub const PREFIX: [u8; 8] = *b"\xfdVSOCK\0\0";
/// Bits of [`PREFIX`].
pub const PREFIX_BITS: u8 = 64;

/// What is in no domain (linux/vm_sockets.h: VMADDR_CID_HOST).
pub const CID_HOST: u32 = 2;
/// The domain's own (VMADDR_CID_LOCAL). Who has a CID has the address that stands for this one by its loopback device.
pub const CID_LOCAL: u32 = 1;

/// The address that stands for a CID.
pub const fn address_of(cid: u32) -> Ipv6Addr {
    let [a, b, c, d, e, f, g, h] = PREFIX;
    let [i, j, k, l] = cid.to_be_bytes();
    Ipv6Addr::from_octets([a, b, c, d, e, f, g, h, 0, 0, 0, 0, i, j, k, l])
}

/// The CID that an address stands for.
pub fn cid_of(address: Ipv6Addr) -> Option<u32> {
    let cid = address.to_bits() as u32;
    (address == address_of(cid)).then_some(cid)
}

/// The CID of who has this host number in the domains' network: one more, so that the far end of an uplink, which
/// has the first number, is [`CID_HOST`], and the domain with the first lease has the first CID of a guest, 3. Of a
/// namespace that others made, the whole IPv4 address is the number.
pub const fn cid_of_host(number: u32) -> u32 {
    number + 1
}
