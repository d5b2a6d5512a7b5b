//! Sockets of UDP, each of which is one of the stack's, too.
//!
//! **Room.** A program's datagrams are taken from its pair as long as the stack has room for them; what lies there else holds the program
//! up, as a full send buffer does. What comes for a program whose pair is full is lost and counted. Several at a time, both ways:
//! never more are taken than the stack has room for, whatever their length.
//!
//! **Errors** of connected sockets (ICMP) are kept for SO_ERROR, and shown by a message that is none ([`head::FAILED`]): so a receive that
//! waits returns, and poll tells.

use crate::bound::Bound;
use crate::names;
use crate::server::{EINVAL, Server, errno};
use crate::table::{Place, Socket};
use fordway_abi::stack::{DATAGRAM_BYTES_MAX, HEAD_BYTES, Head, INET, INET6, head, level, name};
use fordway_netstack::{Error, UdpId, UdpOptions};
use fordway_platform::messages::MESSAGES_MAX;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use zerocopy::{FromBytes, IntoBytes};

/// Datagrams, and bytes of them, that a socket sends in one round.
const SENDS_MAX: usize = 64;
/// Rounds of them that a connect waits for: more than a pair holds.
const SEND_ROUNDS_MAX: usize = 64;
const SEND_BYTES_MAX: usize = 128 * 1024;
/// A head, and more than the longest payload, so that a longer one is seen.
const ROOM_BYTES: usize = HEAD_BYTES + 65_536;
/// Messages that are taken by one call. The stack has seldom room for more of the longest.
const TAKEN_MAX: usize = 8;

const ENETUNREACH: i32 = 101;

/// Which socket of the stack is whose.
#[derive(Debug)]
pub(crate) struct Datagrams {
    ids: HashMap<Place, UdpId>,
    /// By the index of the stack's socket.
    places: Vec<Option<(UdpId, Place)>>,
    /// Those that have more to send than there is room for.
    held: Vec<Place>,
    /// For messages that come and go; of memory only what was used once.
    room: Vec<u8>,
    /// Datagrams for which a program's pair had no room.
    lost: u64,
}

impl Default for Datagrams {
    fn default() -> Self {
        Datagrams {
            ids: HashMap::new(),
            places: Vec::new(),
            held: Vec::new(),
            room: vec![0; TAKEN_MAX * ROOM_BYTES],
            lost: 0,
        }
    }
}

/// What is left of a program's datagrams when some were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// Its turn comes again.
    More,
    /// Nothing, and it sends no more: it has shut its sending side, or closed its end.
    End,
}

impl Datagrams {
    fn place_of(&self, id: UdpId) -> Option<Place> {
        let (known, place) = (*self.places.get(id.index())?)?;
        (known == id).then_some(place)
    }
}

/// A socket of AF_INET6 has IPv6's marks, also towards addresses of IPv4.
fn udp_options(socket: &Socket) -> UdpOptions {
    let (hop_limit, class) = socket.options.marks(!socket.is_inet6);
    let of_groups = match socket.is_inet6 {
        true => [
            (level::IPV6, name::IPV6_MULTICAST_HOPS),
            (level::IPV6, name::IPV6_MULTICAST_LOOP),
            (level::IPV6, name::IPV6_MULTICAST_ALL),
        ],
        false => [
            (level::IP, name::IP_MULTICAST_TTL),
            (level::IP, name::IP_MULTICAST_LOOP),
            (level::IP, name::IP_MULTICAST_ALL),
        ],
    };
    let [hops, loops, all] = of_groups.map(|(level, name)| socket.options.get(level, name));
    UdpOptions {
        // Who may share a port was asked before.
        shares_port: true,
        spreads: socket.options.is_set(level::SOCKET, name::REUSEPORT),
        hop_limit,
        group_hop_limit: hops as u8,
        group_sources: socket.options.group_sources(),
        loops_groups: loops != 0,
        hears_all_groups: all != 0,
        class,
    }
}

impl Server {
    /// Has a socket heed what was set.
    pub(crate) fn apply_datagram_options(&mut self, place: Place) {
        let Some(id) = self.datagrams.ids.get(&place) else {
            return;
        };
        if let Some(socket) = self.table.look(place)
            && let Ok(bound) = self.stack.udp_options(*id)
        {
            // Who shares its port, and how, is settled when it is bound.
            let options = UdpOptions {
                spreads: bound.spreads,
                ..udp_options(socket)
            };
            let _ = self.stack.udp_set_options(*id, options);
        }
    }

    /// Has the stack take what comes for a socket that is about to be bound so.
    pub(crate) fn open_datagrams(&mut self, place: Place, bound: &Bound) -> Result<(), i32> {
        let socket = self.table.look(place).ok_or(EINVAL)?;
        let options = udp_options(socket);
        let made = self
            .stack
            .udp_bind_with(bound.address_of_stack(), bound.port, options);
        let id = made.map_err(errno)?;
        self.datagrams.ids.insert(place, id);
        let places = &mut self.datagrams.places;
        if places.len() <= id.index() {
            places.resize(id.index() + 1, None);
        }
        places[id.index()] = Some((id, place));
        self.tell_groups(place);
        Ok(())
    }

    /// Tells the stack which groups a socket is in.
    pub(crate) fn tell_groups(&mut self, place: Place) {
        let id = self.datagrams.ids.get(&place);
        if let (Some(id), Some(socket)) = (id, self.table.look(place)) {
            // It is there.
            let _ = self.stack.udp_set_groups(*id, &socket.groups);
        }
    }

    pub(crate) fn close_datagrams(&mut self, place: Place) {
        if let Some(id) = self.datagrams.ids.remove(&place) {
            self.datagrams.places[id.index()] = None;
            // It is there: nobody else closes it.
            let _ = self.stack.udp_close(id);
        }
    }

    /// `to` is `None` for AF_UNSPEC.
    pub(crate) fn connect_datagrams(
        &mut self,
        place: Place,
        to: Option<SocketAddr>,
    ) -> Result<(), i32> {
        // What was sent before goes to whom it was for. It does not wait: what finds no room is lost, as in a device's full queue.
        for _ in 0..SEND_ROUNDS_MAX {
            if self.send_datagrams(place, false) != Left::More {
                break;
            }
            // A port that fails does so again in the loop.
            let _ = self.send_frames();
        }
        let source = match to {
            Some(to) => {
                let socket = self.table.look(place).ok_or(EINVAL)?;
                let sources = socket.options.group_sources().into_iter().flatten();
                let mut of_family = sources.filter(|own| own.is_ipv4() == to.is_ipv4());
                let chosen = of_family.next().filter(|_| to.ip().is_multicast());
                let source = chosen.or_else(|| self.stack.source_for(&to.ip()));
                Some(source.ok_or(ENETUNREACH)?)
            }
            None => None,
        };
        if to.is_some() {
            self.bind_if_needed(place)?;
        }
        if let Some(id) = self.datagrams.ids.get(&place) {
            self.stack.udp_connect(*id, to).map_err(errno)?;
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

    /// Sends what the program has given, as far as there is room if it `waits` for that. What is left fills the pair, so that the
    /// program's own sends wait.
    pub(crate) fn send_datagrams(&mut self, place: Place, waits: bool) -> Left {
        let mut room = std::mem::take(&mut self.datagrams.room);
        let left = self.send_by(place, waits && self.waits_for_room(), &mut room);
        self.datagrams.room = room;
        left
    }

    fn send_by(&mut self, place: Place, waits: bool, room: &mut [u8]) -> Left {
        let mut lengths = [0; TAKEN_MAX];
        let (mut count, mut bytes) = (0, 0);
        while count < SENDS_MAX && bytes < SEND_BYTES_MAX {
            let most = match self.stack.udp_room() {
                0 if waits => {
                    self.datagrams.held.push(place);
                    return Left::More;
                }
                0 => TAKEN_MAX,
                fitting => fitting.min(TAKEN_MAX),
            };
            let socket = self.table.look(place);
            let Some(pair) = socket.and_then(|socket| socket.pair.as_ref()) else {
                return Left::Nothing;
            };
            let got = pair.receive_messages(room, ROOM_BYTES, &mut lengths[..most]);
            for (message, length) in room.chunks(ROOM_BYTES).zip(&lengths[..got]) {
                self.send_one(place, &message[..*length]);
                bytes += length;
            }
            count += got;
            match got {
                _ if got > 0 && lengths[got - 1] == 0 => return Left::End,
                _ if got < most => return Left::Nothing,
                _ => {}
            }
        }
        self.put_off(place);
        Left::More
    }

    /// Frames have left: those that have more to send go on.
    pub(crate) fn release_datagrams(&mut self) {
        let may_go_on = self.stack.udp_room() > 0 || !self.waits_for_room();
        if !self.datagrams.held.is_empty() && may_go_on {
            for place in std::mem::take(&mut self.datagrams.held) {
                self.put_off(place);
            }
        }
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
        let Some(id) = self.datagrams.ids.get(&place).copied() else {
            return;
        };
        // An error that waits comes in the place of the datagram, which the program has sent nevertheless.
        if let Ok(Some(error)) = self.stack.udp_error(id) {
            self.fail_datagrams(place, error);
        }
        let sent = self.stack.udp_send_from(id, from, to, payload);
        if let Err(error) = sent
            && let Some(socket) = self.table.get(place)
        {
            socket.error = Some(errno(error));
        }
    }

    /// An error of a connected socket: kept, and shown by a message.
    fn fail_datagrams(&mut self, place: Place, error: Error) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        socket.error = Some(errno(error));
        let head = Head {
            flags: head::FAILED,
            ..Head::default()
        };
        if let Some(pair) = &socket.pair {
            // Without room something else can be read, and the error is kept.
            let _ = pair.send(head.as_bytes());
        }
    }

    /// Gives the program what has come.
    pub(crate) fn give_datagrams(&mut self, id: UdpId) {
        let Some(place) = self.datagrams.place_of(id) else {
            return;
        };
        let mut room = std::mem::take(&mut self.datagrams.room);
        while self.give_some(place, id, &mut room) {}
        self.datagrams.room = room;
    }

    /// Which of our own addresses answers what came to this one: a group, or all, have none.
    fn answering(&self, to: IpAddr, from: IpAddr) -> Option<IpAddr> {
        let mut own = self.stack.addresses().iter();
        match to.is_loopback() || own.any(|own| own.address == to) {
            true => Some(to),
            false => self.stack.source_for(&from),
        }
    }

    /// As many as one call takes; whether there may be more.
    fn give_some(&mut self, place: Place, id: UdpId, room: &mut [u8]) -> bool {
        let Some(socket) = self.table.look(place) else {
            return false;
        };
        let (Some(pair), is_inet6) = (&socket.pair, socket.is_inet6) else {
            return false;
        };
        let wanted = match is_inet6 {
            true => [
                (level::IPV6, name::IPV6_RECVPKTINFO),
                (level::IPV6, name::IPV6_RECVHOPLIMIT),
            ],
            false => [(level::IP, name::IP_PKTINFO), (level::IP, name::IP_RECVTTL)],
        };
        let [wants_info, wants_hops] =
            wanted.map(|(level, name)| socket.options.is_set(level, name));
        let mut bounds = [0; MESSAGES_MAX + 1];
        let (mut count, mut end) = (0, 0);
        let ended = loop {
            if count == MESSAGES_MAX || room.len() - end < ROOM_BYTES {
                break None;
            }
            let message = &mut room[end..];
            let came = match self.stack.udp_take(id, &mut message[HEAD_BYTES..]) {
                Ok(came) => came,
                Err(error) => break Some(error),
            };
            let mut head = Head {
                name: names::write(came.from, is_inet6),
                own: names::bytes_of(came.to, is_inet6),
                flags: if wants_info { head::PACKET_INFO } else { 0 },
                reserved: 0,
            };
            // A socket of IPv6 is told nothing of a packet of IPv4.
            if wants_hops && came.from.is_ipv6() == is_inet6 {
                head.flags |= head::HOP_LIMIT | u32::from(came.hop_limit) << head::HOPS_SHIFT;
            }
            if wants_info
                && !is_inet6
                && let Some(own) = self.answering(came.to, came.from.ip())
            {
                head.own[4..8].copy_from_slice(&names::bytes_of(own, false)[..4]);
            }
            message[..HEAD_BYTES].copy_from_slice(head.as_bytes());
            end += HEAD_BYTES + came.copied;
            count += 1;
            bounds[count] = end;
        };
        self.datagrams.lost += pair.send_messages(&room[..end], &bounds[..=count]) as u64;
        match ended {
            None => true,
            Some(Error::WouldBlock | Error::NoSuch) => false,
            Some(error) => {
                self.fail_datagrams(place, error);
                true
            }
        }
    }
}
