//! The Internet checksum (RFC 1071), eight bytes at a step.

use core::net::IpAddr;

/// Sum of `data` as 16-bit words in the host's order of an even start, folded into 32 bits that
/// may be added to others.
pub(crate) fn sum(data: &[u8]) -> u32 {
    let mut total: u64 = 0;
    let mut blocks = data.chunks_exact(32);
    for block in &mut blocks {
        for word in block.chunks_exact(8) {
            // chunks_exact gives eight bytes, so the conversion is free.
            let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            let (next, carry) = total.overflowing_add(word);
            total = next + u64::from(carry);
        }
    }
    let mut rest: u64 = 0;
    let mut fours = blocks.remainder().chunks_exact(4);
    for four in &mut fours {
        rest += u64::from(u32::from_ne_bytes(four.try_into().unwrap_or_default()));
    }
    let mut pairs = fours.remainder().chunks_exact(2);
    for pair in &mut pairs {
        rest += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        rest += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    // Below 2^32 + 2^32 + 9 * 2^32: three folds are enough.
    let folded = (total >> 32) + (total & 0xffff_ffff) + rest;
    let folded = (folded >> 32) + (folded & 0xffff_ffff);
    let folded = (folded >> 16) + (folded & 0xffff);
    (folded as u32 >> 16) + (folded as u32 & 0xffff)
}

/// [`sum`] of a short piece of whole 32-bit words, whose length is known where it is called.
#[inline]
pub(crate) fn of_words<const LEN: usize>(data: &[u8]) -> u32 {
    const { assert!(LEN.is_multiple_of(4) && LEN <= 1024) };
    let Ok(data) = <&[u8; LEN]>::try_from(data) else {
        return sum(data);
    };
    let mut total: u64 = 0;
    for four in data.chunks_exact(4) {
        total += u64::from(u32::from_ne_bytes(four.try_into().unwrap_or_default()));
    }
    let folded = (total >> 32) + (total & 0xffff_ffff);
    let folded = (folded >> 16) + (folded & 0xffff);
    (folded as u32 >> 16) + (folded as u32 & 0xffff)
}

/// Folds a sum to 16 bits, in the order of the wire.
pub(crate) fn fold(mut sum: u32) -> u16 {
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    u16::from_be_bytes((sum as u16).to_ne_bytes())
}

/// The pseudo header's part (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub(crate) fn pseudo(src: &IpAddr, dst: &IpAddr, protocol: u8, len_bytes: usize) -> u32 {
    let addresses = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            of_words::<4>(&src.octets()) + of_words::<4>(&dst.octets())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            of_words::<16>(&src.octets()) + of_words::<16>(&dst.octets())
        }
        _ => 0,
    };
    let len = len_bytes as u32;
    let word = |value: u16| u32::from(u16::from_ne_bytes(value.to_be_bytes()));
    addresses + word(u16::from(protocol)) + word((len >> 16) as u16) + word(len as u16)
}

/// The checksum to put into a packet whose field holds zero.
pub(crate) fn of(partial: u32, data: &[u8]) -> u16 {
    !fold(partial + sum(data))
}

/// Whether a packet whose field is filled in sums up to all ones.
pub(crate) fn is_good(partial: u32, data: &[u8]) -> bool {
    fold(partial + sum(data)) == 0xffff
}
