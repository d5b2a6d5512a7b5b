//! Packets made by hand.

use std::net::{IpAddr, Ipv6Addr};

use super::MAC;

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

fn sum(bytes: &[u8], start: u32) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| {
        sum + (u32::from(pair[0]) << 8) + u32::from(pair.get(1).copied().unwrap_or(0))
    })
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// An IP packet with a right checksum in `body` at `field`, from its header on.
pub fn packet(
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    hop_limit: u8,
    mut body: Vec<u8>,
    field: usize,
) -> Vec<u8> {
    let start = match protocol {
        1 => 0,
        _ => {
            let addresses = sum(&octets(dst), sum(&octets(src), 0));
            addresses + u32::from(protocol) + body.len() as u32
        }
    };
    body[field..field + 2].fill(0);
    let check = !fold(sum(&body, start));
    body[field..field + 2].copy_from_slice(&check.to_be_bytes());
    let len = body.len() as u16;
    let mut ip = if src.is_ipv6() {
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend_from_slice(&len.to_be_bytes());
        ip.extend_from_slice(&[protocol, hop_limit]);
        ip
    } else {
        let mut ip = vec![0x45, 0];
        ip.extend_from_slice(&(20 + len).to_be_bytes());
        ip.extend_from_slice(&[0, 0, 0, 0, hop_limit, protocol, 0, 0]);
        ip
    };
    ip.extend_from_slice(&octets(src));
    ip.extend_from_slice(&octets(dst));
    if src.is_ipv4() {
        let check = !fold(sum(&ip, 0));
        ip[10..12].copy_from_slice(&check.to_be_bytes());
    }
    ip.extend_from_slice(&body);
    ip
}

/// A frame for this side, from the other.
pub fn frame(side: usize, ip: &[u8]) -> Vec<u8> {
    let mut frame = [MAC[side], MAC[1 - side]].concat();
    frame.extend_from_slice(if ip[0] >> 4 == 6 {
        &[0x86, 0xdd]
    } else {
        &[8, 0]
    });
    frame.extend_from_slice(ip);
    frame
}

pub fn icmpv6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    packet(src.into(), dst.into(), 58, hop_limit, message.to_vec(), 2)
}
