//! Addresses as the program says them, and as the stack has them: IPv4 in IPv6 (RFC 4291, 2.5.5.2) is IPv4 here.

use fordway_abi::stack::{INET, INET6, Name};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) fn address_of(bytes: &[u8; 16], family: u16) -> IpAddr {
    match family {
        INET => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        _ => {
            let six = Ipv6Addr::from(*bytes);
            six.to_ipv4_mapped().map_or(six.into(), IpAddr::from)
        }
    }
}

/// `None`: it has no family.
pub(crate) fn read(name: &Name) -> Option<SocketAddr> {
    matches!(name.family, INET | INET6)
        .then(|| SocketAddr::new(address_of(&name.address, name.family), name.port))
}

/// The bytes of an address for a socket of a family.
pub(crate) fn bytes_of(address: IpAddr, is_inet6: bool) -> [u8; 16] {
    match (address, is_inet6) {
        (IpAddr::V6(six), _) => six.octets(),
        (IpAddr::V4(four), true) if four.is_unspecified() => [0; 16],
        (IpAddr::V4(four), true) => four.to_ipv6_mapped().octets(),
        (IpAddr::V4(four), false) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&four.octets());
            bytes
        }
    }
}

pub(crate) fn write(name: SocketAddr, is_inet6: bool) -> Name {
    Name {
        family: if is_inet6 { INET6 } else { INET },
        port: name.port(),
        scope: 0,
        address: bytes_of(name.ip(), is_inet6),
    }
}

/// Any address of a family.
pub(crate) fn any(is_inet6: bool) -> IpAddr {
    match is_inet6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// To any address means to the own one (linux: ip_route_output).
pub(crate) fn destination(name: SocketAddr) -> SocketAddr {
    match name.ip() {
        IpAddr::V4(four) if four.is_unspecified() => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), name.port())
        }
        IpAddr::V6(six) if six.is_unspecified() => {
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), name.port())
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_the_same_in_both_families() {
        let four: SocketAddr = "10.1.2.3:80".parse().expect("a name");
        for is_inet6 in [false, true] {
            assert_eq!(read(&write(four, is_inet6)), Some(four));
        }
        assert_eq!(read(&Name::default()), None);
        let any = write("0.0.0.0:0".parse().expect("a name"), true);
        assert_eq!((any.family, any.address), (INET6, [0; 16]));
    }
}
