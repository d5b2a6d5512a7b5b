//! Sockets of UDP. Several may share a port of the stack: what comes goes to the one that is connected to its sender, else to
//! one of those that are connected to nobody, always the same for one sender.

use crate::bound::Bound;
use crate::names;
use crate::pair::Got;
use crate::server::{EINVAL, Server, errno};
use crate::table::Place;
use fordway_abi::stack::{DATAGRAM_BYTES_MAX, HEAD_BYTES, Head, INET, INET6, head, level, name};
use fordway_netstack::{UdpId, UdpOptions};
use std::net::{IpAddr, SocketAddr};
use zerocopy::{FromBytes, IntoBytes};

/// Datagrams, and bytes of them, that a socket sends in one round.
const SENDS_MAX: usize = 64;
/// Rounds of them that a connect waits for: more than a pair holds.
const SEND_ROUNDS_MAX: usize = 64;
const SEND_BYTES_MAX: usize = 128 * 1024;
/// A head, and more than the longest payload, so that a longer one is seen.
const ROOM_BYTES: usize = HEAD_BYTES + 65_536;

const ENETUNREACH: i32 = 101;

/// The ports of the stack.
#[derive(Debug)]
pub(crate) struct Datagrams {
    ports: Vec<Port>,
    room: Vec<u8>,
    /// Datagrams that no socket had room for.
    lost: u64,
}

impl Default for Datagrams {
    fn default() -> Self {
        Datagrams {
            ports: Vec::new(),
            room: vec![0; ROOM_BYTES],
            lost: 0,
        }
    }
}

#[derive(Debug)]
struct Port {
    id: UdpId,
    address: Option<IpAddr>,
    port: u16,
    members: Vec<Place>,
}

impl Server {
    /// Has the stack take what comes for a socket that is about to be bound so.
    pub(crate) fn open_datagrams(&mut self, place: Place, bound: &Bound) -> Result<(), i32> {
        let key = (bound.address_of_stack(), bound.port);
        let mut ports = self.datagrams.ports.iter_mut();
        if let Some(port) = ports.find(|port| (port.address, port.port) == key) {
            port.members.push(place);
            return Ok(());
        }
        // Who may share a port was asked before; of several binds that overlap, the most special one gets what comes.
        let options = UdpOptions {
            shares_port: true,
            ..UdpOptions::default()
        };
        let id = self
            .stack
            .udp_bind_with(key.0, key.1, options)
            .map_err(errno)?;
        self.datagrams.ports.push(Port {
            id,
            address: key.0,
            port: key.1,
            members: vec![place],
        });
        Ok(())
    }

    pub(crate) fn close_datagrams(&mut self, place: Place) {
        let stack = &mut self.stack;
        self.datagrams.ports.retain_mut(|port| {
            port.members.retain(|member| *member != place);
            if port.members.is_empty() {
                // It is there: nobody else closes it.
                let _ = stack.udp_close(port.id);
            }
            !port.members.is_empty()
        });
    }

    /// `to` is `None` for AF_UNSPEC.
    pub(crate) fn connect_datagrams(
        &mut self,
        place: Place,
        to: Option<SocketAddr>,
    ) -> Result<(), i32> {
        // What was sent before went to whom it was for.
        for _ in 0..SEND_ROUNDS_MAX {
            if !self.send_datagrams(place) {
                break;
            }
        }
        let source = match to {
            Some(to) => Some(self.stack.source_for(&to.ip()).ok_or(ENETUNREACH)?),
            None => None,
        };
        if to.is_some() {
            self.bind_if_needed(place)?;
        }
        let socket = self.table.get(place).ok_or(EINVAL)?;
        let bound = socket.bound;
        socket.remote = to;
        socket.local = match (source, bound) {
            (Some(source), Some(bound)) if bound.address.is_unspecified() => {
                Some(SocketAddr::new(source, bound.port))
            }
            _ => None,
        };
        Ok(())
    }

    /// Sends what the program has given; whether there may be more.
    pub(crate) fn send_datagrams(&mut self, place: Place) -> bool {
        let mut room = std::mem::take(&mut self.datagrams.room);
        let (mut count, mut bytes) = (0, 0);
        while count < SENDS_MAX && bytes < SEND_BYTES_MAX {
            let socket = self.table.look(place);
            let Some(pair) = socket.and_then(|socket| socket.pair.as_ref()) else {
                break;
            };
            let Got::Bytes(length) = pair.receive(&mut room) else {
                break;
            };
            count += 1;
            bytes += length;
            self.send_one(place, &room[..length]);
        }
        self.datagrams.room = room;
        let has_more = count == SENDS_MAX || bytes >= SEND_BYTES_MAX;
        if has_more {
            self.put_off(place);
        }
        has_more
    }

    fn send_one(&mut self, place: Place, message: &[u8]) {
        let Ok((head, payload)) = Head::read_from_prefix(message) else {
            return;
        };
        if payload.len() > DATAGRAM_BYTES_MAX || self.bind_if_needed(place).is_err() {
            return;
        }
        let Some(socket) = self.table.look(place) else {
            return;
        };
        let to = names::read(&head.name)
            .map(names::destination)
            .or(socket.remote);
        let Some(to) = to else {
            return;
        };
        let family = if socket.is_inet6 { INET6 } else { INET };
        let from = (head.own != [0; 16]).then(|| names::address_of(&head.own, family));
        let id = self.port_of(place).map(|port| port.id);
        let sent = id.map(|id| self.stack.udp_send_from(id, from, to, payload));
        if let Some(Err(error)) = sent
            && let Some(socket) = self.table.get(place)
        {
            socket.error = Some(errno(error));
        }
    }

    fn port_of(&self, place: Place) -> Option<&Port> {
        let mut ports = self.datagrams.ports.iter();
        ports.find(|port| port.members.contains(&place))
    }

    /// Gives the program what has come.
    pub(crate) fn give_datagrams(&mut self, id: UdpId) {
        let mut room = std::mem::take(&mut self.datagrams.room);
        while let Ok((length, _, from, own)) = self.stack.udp_receive(id, &mut room[HEAD_BYTES..]) {
            let Some(place) = self.receiver(id, from) else {
                continue;
            };
            let Some(socket) = self.table.look(place) else {
                continue;
            };
            let wants_info = match socket.is_inet6 {
                true => socket.options.is_set(level::IPV6, name::IPV6_RECVPKTINFO),
                false => socket.options.is_set(level::IP, name::IP_PKTINFO),
            };
            let head = Head {
                name: names::write(from, socket.is_inet6),
                own: names::bytes_of(own, socket.is_inet6),
                flags: if wants_info { head::PACKET_INFO } else { 0 },
                reserved: 0,
            };
            room[..HEAD_BYTES].copy_from_slice(head.as_bytes());
            let sent = socket
                .pair
                .as_ref()
                .map(|pair| pair.send(&room[..HEAD_BYTES + length]));
            if !matches!(sent, Some(Ok(count)) if count > 0) {
                self.datagrams.lost += 1;
            }
        }
        self.datagrams.room = room;
    }

    fn receiver(&self, id: UdpId, from: SocketAddr) -> Option<Place> {
        let port = self.datagrams.ports.iter().find(|port| port.id == id)?;
        if let [only] = port.members.as_slice() {
            let far = self.table.look(*only)?.remote;
            return far.is_none_or(|far| far == from).then_some(*only);
        }
        let far = |place: &&Place| self.table.look(**place).and_then(|socket| socket.remote);
        let mut members = port.members.iter();
        if let Some(connected) = members.find(|place| far(place) == Some(from)) {
            return Some(*connected);
        }
        let open: Vec<_> = port
            .members
            .iter()
            .filter(|place| far(place).is_none())
            .collect();
        let share = open.iter().all(|place| {
            let socket = self.table.look(**place);
            socket.is_some_and(|socket| socket.options.is_set(level::SOCKET, name::REUSEPORT))
        });
        let spread = usize::from(from.port()).wrapping_mul(0x9e37) >> 3;
        match share {
            true => open.get(spread % open.len().max(1)),
            // The last one (linux: udp4_lib_lookup2).
            false => open.last(),
        }
        .map(|place| **place)
    }
}
