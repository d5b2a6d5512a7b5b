//! Sockets of UDP, each of which is one of the stack's, too.
//!
//! **Room.** A program's datagrams are taken from its pair as long as the stack has room for them; what lies there else holds the program
//! up, as a full send buffer does. What comes for a program whose pair is full is lost and counted.
//!
//! **Records.** A pair is a stream, so that it gets rings. Each datagram is a record on it (`fordway_abi::record`), and the stack
//! takes and gives as many as there are by one call. Of what it has taken it keeps what there is no room for yet, and the
//! beginning of a record; of what it gives, the rest of a record of which the pair has taken a part. A program that writes what is no
//! record loses the socket.
//!
//! **Errors** of connected sockets (ICMP) are kept for SO_ERROR, and shown by a message that is none ([`head::FAILED`]): so a receive that
//! waits returns, and poll tells.

use crate::bound::Bound;
use crate::names;
use crate::pair::Got;
use crate::server::{EINVAL, Server, errno};
use crate::table::Place;
use fordway_abi::record;
use fordway_abi::stack::{DATAGRAM_BYTES_MAX, HEAD_BYTES, Head, INET, INET6, head, level, name};
use fordway_netstack::{Error, UdpId, UdpOptions};
use std::collections::HashMap;
use std::net::SocketAddr;
use zerocopy::{FromBytes, IntoBytes};

/// Datagrams, and bytes of them, that a socket sends in one round.
const SENDS_MAX: usize = 64;
/// Rounds of them that a connect waits for: more than a pair holds.
const SEND_ROUNDS_MAX: usize = 64;
const SEND_BYTES_MAX: usize = 128 * 1024;
/// A head, and more than the longest payload, so that a longer one is seen.
const ROOM_BYTES: usize = HEAD_BYTES + 65_536;
/// The longest record.
const RECORD_BYTES_MAX: usize = record::HEAD_BYTES + ROOM_BYTES;
/// What one call takes, behind the beginning of a record.
const TAKEN_BYTES: usize = 32 * 1024;
/// Records that one call gives, and bytes of them before the last one.
const GIVES_MAX: usize = 64;
const GIVEN_BYTES: usize = 32 * 1024;
/// What is kept of programs' records, in all: who makes it more loses the socket.
const KEPT_BYTES_MAX: usize = 256 << 20;

const ENETUNREACH: i32 = 101;

/// Which socket of the stack is whose.
#[derive(Debug)]
pub(crate) struct Datagrams {
    ids: HashMap<Place, UdpId>,
    /// By the index of the stack's socket.
    places: Vec<Option<(UdpId, Place)>>,
    /// Those that have more to send than there is room for.
    held: Vec<Place>,
    /// Of what programs send: what was taken and could not go yet, and the beginning of a record.
    taken: HashMap<Place, Vec<u8>>,
    taken_bytes: usize,
    /// Of what they are given: the rest of a record.
    rests: HashMap<Place, Vec<u8>>,
    /// For records that come and go; of memory only what was used once.
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
            taken: HashMap::new(),
            taken_bytes: 0,
            rests: HashMap::new(),
            room: vec![0; 2 * RECORD_BYTES_MAX + TAKEN_BYTES],
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
    /// It has written what is no record.
    Broken,
}

/// What stands first in what a program has written.
enum Next {
    /// All of a record, with so many bytes.
    Record(usize),
    /// Not all of one.
    Part,
    Broken,
}

fn next_record(bytes: &[u8]) -> Next {
    let Some((head, rest)) = bytes.split_first_chunk() else {
        return Next::Part;
    };
    match record::read(*head).0 {
        length if !(HEAD_BYTES..=ROOM_BYTES).contains(&length) => Next::Broken,
        length if length > rest.len() => Next::Part,
        length => Next::Record(length),
    }
}

impl Datagrams {
    fn place_of(&self, id: UdpId) -> Option<Place> {
        let (known, place) = (*self.places.get(id.index())?)?;
        (known == id).then_some(place)
    }
}

impl Server {
    /// Has the stack take what comes for a socket that is about to be bound so.
    pub(crate) fn open_datagrams(&mut self, place: Place, bound: &Bound) -> Result<(), i32> {
        let socket = self.table.look(place).ok_or(EINVAL)?;
        // Who may share a port was asked before.
        let options = UdpOptions {
            shares_port: true,
            spreads: socket.options.is_set(level::SOCKET, name::REUSEPORT),
            ..UdpOptions::default()
        };
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
        Ok(())
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
            Some(to) => Some(self.stack.source_for(&to.ip()).ok_or(ENETUNREACH)?),
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
        let mut end = self.take_kept(place, room);
        let (mut at, mut count, mut bytes) = (0, 0, 0);
        let mut was_told = false;
        let left = loop {
            if count >= SENDS_MAX || bytes >= SEND_BYTES_MAX {
                self.put_off(place);
                break Left::More;
            }
            if self.stack.udp_room() == 0 && waits {
                self.datagrams.held.push(place);
                break Left::More;
            }
            match next_record(&room[at..end]) {
                Next::Record(length) => {
                    let start = at + record::HEAD_BYTES;
                    at = start + length;
                    self.send_one(place, &room[start..at]);
                    count += 1;
                    bytes += length;
                    continue;
                }
                Next::Broken => break Left::Broken,
                Next::Part => {}
            }
            room.copy_within(at..end, 0);
            (at, end) = (0, end - at);
            let socket = self.table.look(place);
            let Some(pair) = socket.and_then(|socket| socket.pair.as_ref()) else {
                break Left::Nothing;
            };
            match pair.receive(&mut room[end..end + TAKEN_BYTES]) {
                Got::Bytes(more) => end += more,
                Got::Nothing => break Left::Nothing,
                // What it has sent stands behind that it has closed its end with something unread: it is told once.
                Got::Broken if !was_told => was_told = true,
                Got::Broken | Got::End => break Left::End,
            }
        };
        self.keep_rest(place, &room[at..end], left)
    }

    /// What was kept of a program's records, at the beginning of `room`; how much.
    fn take_kept(&mut self, place: Place, room: &mut [u8]) -> usize {
        let Some(kept) = self.datagrams.taken.remove(&place) else {
            return 0;
        };
        self.datagrams.taken_bytes -= kept.len();
        room[..kept.len()].copy_from_slice(&kept);
        kept.len()
    }

    fn keep_rest(&mut self, place: Place, kept: &[u8], left: Left) -> Left {
        if left == Left::Broken {
            self.put_off(place);
        }
        if kept.is_empty() || left == Left::End {
            return left;
        }
        let datagrams = &mut self.datagrams;
        if datagrams.taken_bytes + kept.len() > KEPT_BYTES_MAX {
            return Left::Broken;
        }
        datagrams.taken_bytes += kept.len();
        datagrams.taken.insert(place, kept.to_vec());
        left
    }

    /// Nobody has the socket any more.
    pub(crate) fn forget_rests(&mut self, place: Place) {
        let kept = self.datagrams.taken.remove(&place);
        self.datagrams.taken_bytes -= kept.map_or(0, |kept| kept.len());
        self.datagrams.rests.remove(&place);
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
        let mut bytes = [0; record::HEAD_BYTES + HEAD_BYTES];
        put_record(&mut bytes, &head, 0);
        // Without room something else can be read, and the error is kept.
        self.give(place, &bytes, &[0, bytes.len()]);
    }

    /// Gives the records between neighbours of `bounds`; what finds no room is lost, but for the rest of a record that was begun.
    fn give(&mut self, place: Place, bytes: &[u8], bounds: &[usize]) {
        let socket = self.table.look(place);
        let pair = socket.and_then(|socket| socket.pair.as_ref());
        let datagrams = &mut self.datagrams;
        let sent = match pair {
            Some(pair) if !datagrams.rests.contains_key(&place) => pair.send(bytes).unwrap_or(0),
            _ => 0,
        };
        // The end of the last record of which something has gone.
        let begun = bounds.partition_point(|bound| *bound < sent);
        let end = bounds.get(begun).copied().unwrap_or(sent);
        if end > sent {
            datagrams.rests.insert(place, bytes[sent..end].to_vec());
        }
        datagrams.lost += (bounds.len() - 1 - begun.min(bounds.len() - 1)) as u64;
    }

    /// The pair may have room for the rest of a record.
    pub(crate) fn give_rest(&mut self, place: Place) {
        let Some(mut rest) = self.datagrams.rests.remove(&place) else {
            return;
        };
        let socket = self.table.look(place);
        if let Some(pair) = socket.and_then(|socket| socket.pair.as_ref()) {
            // Whoever has closed its end, or reads no more, wants no rest.
            let sent = pair.send(&rest).unwrap_or(rest.len());
            if sent < rest.len() {
                rest.drain(..sent);
                self.datagrams.rests.insert(place, rest);
            }
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

    /// As many as one call takes; whether there may be more.
    fn give_some(&mut self, place: Place, id: UdpId, room: &mut [u8]) -> bool {
        let Some(socket) = self.table.look(place) else {
            return false;
        };
        let is_inet6 = socket.is_inet6;
        let wants_info = match is_inet6 {
            true => socket.options.is_set(level::IPV6, name::IPV6_RECVPKTINFO),
            false => socket.options.is_set(level::IP, name::IP_PKTINFO),
        };
        let mut bounds = [0; GIVES_MAX + 1];
        let (mut count, mut end) = (0, 0);
        let ended = loop {
            if count == GIVES_MAX || end >= GIVEN_BYTES {
                break None;
            }
            let record = &mut room[end..];
            let received = self
                .stack
                .udp_receive(id, &mut record[record::HEAD_BYTES + HEAD_BYTES..]);
            let (length, from, own) = match received {
                Ok((length, _, from, own)) => (length, from, own),
                Err(error) => break Some(error),
            };
            let head = Head {
                name: names::write(from, is_inet6),
                own: names::bytes_of(own, is_inet6),
                flags: if wants_info { head::PACKET_INFO } else { 0 },
                reserved: 0,
            };
            end += put_record(record, &head, length);
            count += 1;
            bounds[count] = end;
        };
        if count > 0 {
            self.give(place, &room[..end], &bounds[..=count]);
        }
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

/// Writes what stands before a datagram of so many bytes, which is there; the length of the record.
fn put_record(at: &mut [u8], head: &Head, payload_bytes: usize) -> usize {
    let length = HEAD_BYTES + payload_bytes;
    let (first, rest) = at.split_at_mut(record::HEAD_BYTES);
    first.copy_from_slice(&record::head(length, false));
    rest[..HEAD_BYTES].copy_from_slice(head.as_bytes());
    record::HEAD_BYTES + length
}
