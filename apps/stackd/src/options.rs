//! Options of sockets: kept here, heeded where they are asked for. `fordway_abi::stack::option` says which there are.

use crate::table::{Body, Socket};
use fordway_abi::stack::{Handling, level, name, option};
use std::net::Ipv4Addr;

const EINVAL: i32 = 22;
const ENOPROTOOPT: i32 = 92;
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;

/// Largest buffer that a program can ask for (linux: net.core.wmem_max), which is doubled then.
const BUFFER_BYTES_MAX: u32 = 4_194_304;
/// The least that it gets (linux: SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF).
const SEND_BYTES_MIN: i32 = 4608;
const RECEIVE_BYTES_MIN: i32 = 2304;
/// The name of the congestion control, as TCP_CONGESTION has it.
const CONGESTION: &[u8] = b"reno";
/// Bytes of such a name (linux: TCP_CA_NAME_MAX).
const CONGESTION_BYTES: usize = 16;

/// What was set of a socket's options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Level, name, value. Not more than the table of options has rows.
    values: Vec<(i32, i32, i32)>,
    /// SO_LINGER, in seconds.
    pub linger_s: Option<i32>,
    /// IP_MULTICAST_IF.
    pub group_index: u32,
    pub group_address: Ipv4Addr,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            values: Vec::new(),
            linger_s: None,
            group_index: 0,
            group_address: Ipv4Addr::UNSPECIFIED,
        }
    }
}

impl Options {
    pub(crate) fn get(&self, level: i32, name: i32) -> i32 {
        let usual = || option(level, name).map_or(0, |row| row.usual);
        self.set_value((level, name)).unwrap_or_else(usual)
    }

    /// What was set, if anything was.
    fn set_value(&self, of: (i32, i32)) -> Option<i32> {
        let mut set = self.values.iter();
        let found = set.find(|(level, name, _)| (*level, *name) == of);
        found.map(|(.., value)| *value)
    }

    pub(crate) fn is_set(&self, level: i32, name: i32) -> bool {
        self.get(level, name) != 0
    }

    pub(crate) fn put(&mut self, level: i32, name: i32, value: i32) {
        let set = self
            .values
            .iter_mut()
            .find(|(l, n, _)| (*l, *n) == (level, name));
        match set {
            Some((.., place)) => *place = value,
            None => self.values.push((level, name, value)),
        }
    }

    /// Time to live or hop limit, if one was set, and type of service or traffic class, of packets of this version of IP.
    pub(crate) fn marks(&self, is_v4: bool) -> (Option<u8>, u8) {
        let names = match is_v4 {
            true => [(level::IP, name::IP_TTL), (level::IP, name::IP_TOS)],
            false => [
                (level::IPV6, name::IPV6_UNICAST_HOPS),
                (level::IPV6, name::IPV6_TCLASS),
            ],
        };
        let [hops, class] = names;
        let hops = self.set_value(hops).map(|hops| hops as u8);
        (hops, self.get(class.0, class.1) as u8)
    }

    /// A size that was asked for by SO_SNDBUF or SO_RCVBUF.
    pub(crate) fn buffer_bytes(&self, name: i32) -> Option<usize> {
        self.set_value((level::SOCKET, name))
            .map(|value| value as usize)
    }

    /// As if it had never been set.
    fn clear(&mut self, of: (i32, i32)) {
        self.values.retain(|(level, name, _)| (*level, *name) != of);
    }
}

/// Whether an option of this level is one of the socket's at all.
pub(crate) fn has_level(socket: &Socket, of: i32) -> bool {
    match of {
        level::TCP => socket.is_stream(),
        level::UDP => !socket.is_stream(),
        level::IPV6 => socket.is_inet6,
        _ => true,
    }
}

fn is_switch(of: (i32, i32)) -> bool {
    const SO_BROADCAST: i32 = 6;
    const TCP_CORK: i32 = 3;
    matches!(
        of,
        (
            level::SOCKET,
            name::REUSEADDR | name::REUSEPORT | name::KEEPALIVE | SO_BROADCAST | name::OOBINLINE
        ) | (level::TCP, name::TCP_NODELAY | TCP_CORK)
            | (
                level::IPV6,
                name::V6ONLY
                    | name::IPV6_RECVPKTINFO
                    | name::IPV6_RECVHOPLIMIT
                    | name::IPV6_MULTICAST_ALL
            )
            | (
                level::IP,
                name::IP_PKTINFO | name::IP_RECVTTL | name::IP_MULTICAST_LOOP
            )
    )
}

/// Sets an option; `Err` is an errno.
pub(crate) fn set(socket: &mut Socket, of: (i32, i32), value: &[u8]) -> Result<(), i32> {
    let row = option(of.0, of.1).filter(|row| has_level(socket, row.level));
    let row = row.ok_or(ENOPROTOOPT)?;
    match row.handling {
        Handling::Told | Handling::Pair => return Err(ENOPROTOOPT),
        Handling::Refused(_) if of == (level::TCP, name::TCP_CONGESTION) => {
            let end = value
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(value.len());
            return (&value[..end] == CONGESTION).then_some(()).ok_or(ENOENT);
        }
        Handling::Refused(error) => return Err(error),
        Handling::Served | Handling::Kept => {}
    }
    let number = |at: usize| {
        let bytes = value.get(at..at + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    };
    if of == (level::SOCKET, name::LINGER) {
        let (Some(on), Some(seconds)) = (number(0), number(4)) else {
            return Err(EINVAL);
        };
        socket.options.linger_s = (on != 0).then_some(seconds);
        return Ok(());
    }
    let number = match (number(0), value.first()) {
        (Some(number), _) => number,
        // One byte will do (linux: do_ip_setsockopt).
        (None, Some(byte)) if of.0 == level::IP => i32::from(*byte),
        _ => return Err(EINVAL),
    };
    let number = match of {
        of if is_switch(of) => i32::from(number != 0),
        (level::SOCKET, name::SNDBUF | name::RCVBUF) => {
            let least = match of.1 {
                name::SNDBUF => SEND_BYTES_MIN,
                _ => RECEIVE_BYTES_MIN,
            };
            // A negative one is the largest (linux: sk_setsockopt compares without sign).
            let asked = number.cast_unsigned().min(BUFFER_BYTES_MAX);
            (2 * asked.cast_signed()).max(least)
        }
        _ => number,
    };
    let is_bad = match of {
        (level::IPV6, name::V6ONLY) => socket.bound.is_some(),
        // linux: MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL, MAX_TCP_KEEPCNT.
        (level::TCP, name::TCP_KEEPIDLE | name::TCP_KEEPINTVL) => !(1..=32_767).contains(&number),
        (level::TCP, name::TCP_KEEPCNT) => !(1..=127).contains(&number),
        (level::TCP, name::TCP_USER_TIMEOUT) => number < 0,
        // linux: IPV6_MIN_MTU.
        (level::IPV6, name::IPV6_MTU) => number != 0 && number < 1280,
        (level::IP, name::IP_TTL) => number != -1 && !(1..=255).contains(&number),
        (level::IPV6, name::IPV6_UNICAST_HOPS | name::IPV6_TCLASS | name::IPV6_MULTICAST_HOPS) => {
            !(-1..=255).contains(&number)
        }
        (level::IP, name::IP_MULTICAST_TTL) => socket.is_stream() || !(-1..=255).contains(&number),
        (level::IP, name::IP_MULTICAST_ALL) | (level::IPV6, name::IPV6_MULTICAST_LOOP) => {
            !(0..=1).contains(&number)
        }
        _ => false,
    };
    if is_bad {
        return Err(EINVAL);
    }
    let number = match of {
        (level::IP, name::IP_TTL | name::IP_MULTICAST_TTL)
        | (level::IPV6, name::IPV6_UNICAST_HOPS | name::IPV6_MULTICAST_HOPS)
            if number == -1 =>
        {
            socket.options.clear(of);
            return Ok(());
        }
        (level::IP, name::IP_TOS) | (level::IPV6, name::IPV6_TCLASS) => {
            // The lowest two bits of TCP's are its own (RFC 3168).
            let own = if socket.is_stream() { 3 } else { 0 };
            // Of -1 IPv6 makes 0, and IPv4 its lowest byte (linux: do_ipv6_setsockopt, __ip_sock_set_tos).
            let least = if of.0 == level::IP {
                number
            } else {
                number.max(0)
            };
            least & 0xff & !own
        }
        _ => number,
    };
    socket.options.put(of.0, of.1, number);
    Ok(())
}

/// The value of an option, as far as the socket's own memory has it.
pub(crate) fn get(socket: &Socket, of: (i32, i32)) -> Result<Vec<u8>, i32> {
    let row = option(of.0, of.1).ok_or(ENOPROTOOPT)?;
    if !has_level(socket, row.level) {
        // linux: do_ip_getsockopt, do_ipv6_getsockopt.
        return Err(if socket.is_inet6 {
            ENOPROTOOPT
        } else {
            EOPNOTSUPP
        });
    }
    let number = match of {
        (level::SOCKET, name::LINGER) => {
            let set = socket.options.linger_s;
            let both = [i32::from(set.is_some()), set.unwrap_or(0)];
            return Ok(both
                .iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect());
        }
        (level::TCP, name::TCP_CONGESTION) => {
            let mut name = CONGESTION.to_vec();
            name.resize(CONGESTION_BYTES, 0);
            return Ok(name);
        }
        (level::SOCKET, name::TYPE) => {
            if socket.is_stream() {
                1
            } else {
                2
            }
        }
        (level::SOCKET, name::DOMAIN) => {
            if socket.is_inet6 {
                10
            } else {
                2
            }
        }
        (level::SOCKET, name::PROTOCOL) => {
            if socket.is_stream() {
                6
            } else {
                17
            }
        }
        (level::SOCKET, name::ACCEPTCONN) => i32::from(socket.is_listening()),
        _ => match row.handling {
            Handling::Refused(_) if row.usual == 0 => return Err(ENOPROTOOPT),
            _ => socket.options.get(of.0, of.1),
        },
    };
    Ok(number.to_ne_bytes().to_vec())
}

impl Socket {
    pub(crate) fn is_listening(&self) -> bool {
        #[cfg(feature = "tcp")]
        return matches!(self.body, Body::Listening(_));
        #[cfg(not(feature = "tcp"))]
        false
    }
}
