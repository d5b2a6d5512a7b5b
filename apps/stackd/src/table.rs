//! The sockets, by their places. A place is used again with another generation, so that a late word about a socket finds nobody.

use crate::bound::Bound;
use crate::options::Options;
use crate::pair::Pair;
use crate::shares::{Owner, Shares};
use fordway_abi::stack::Id;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Sockets whose connection is over, and of which the program may still ask why.
const OVER_MAX: usize = 4096;

/// A socket's place.
pub(crate) type Place = u32;

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub is_inet6: bool,
    /// Whoever commands it has to know it (`fordway_abi::stack`).
    pub key: u64,
    /// The listener at a stack before this one that it is to follow: its id and key.
    pub former: Option<([u8; size_of::<Id>()], u64)>,
    /// Of whose share it is; none: it is over.
    pub owner: Option<Owner>,
    /// Its name, once it has one.
    pub bound: Option<Bound>,
    pub options: Options,
    /// Groups that it is in.
    #[cfg(feature = "udp")]
    pub groups: Vec<fordway_netstack::Membership>,
    /// For SO_ERROR, once.
    pub error: Option<i32>,
    /// Names of a connection, or of UDP's far end.
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// Our end; none: it is over.
    pub pair: Option<Pair>,
    pub body: Body,
    /// It stands among those that have more to do.
    pub is_unfinished: bool,
}

/// What a socket is.
#[derive(Debug)]
pub(crate) enum Body {
    /// Neither listens nor is connected.
    Idle,
    #[cfg(feature = "tcp")]
    Listening(crate::stream::Listening),
    #[cfg(feature = "tcp")]
    Connecting(fordway_netstack::TcpId),
    #[cfg(feature = "tcp")]
    Connected(crate::stream::Connected),
    Over,
    /// UDP.
    Datagrams,
}

#[cfg(feature = "tcp")]
impl Body {
    /// The connection, once it is asked for and until it is over.
    pub(crate) fn flow(&self) -> Option<fordway_netstack::TcpId> {
        match self {
            Body::Connecting(id) => Some(*id),
            Body::Connected(conn) => Some(conn.id),
            _ => None,
        }
    }
}

impl Socket {
    pub(crate) fn is_stream(&self) -> bool {
        !matches!(self.body, Body::Datagrams)
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    socket: Option<Box<Socket>>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub epoch: u64,
    slots: Vec<Slot>,
    free: Vec<Place>,
    over: VecDeque<Id>,
    count_max: usize,
    shares: Shares,
}

impl Table {
    pub(crate) fn new(epoch: u64, count_max: usize) -> Table {
        Table {
            epoch,
            slots: Vec::new(),
            free: Vec::new(),
            over: VecDeque::new(),
            count_max,
            shares: Shares::new(count_max),
        }
    }

    /// Sockets that are not over.
    pub(crate) fn live(&self) -> usize {
        self.shares.taken()
    }

    /// The place of a process's next socket; `None`: there are as many as there may be, or it has its share.
    pub(crate) fn next(&mut self, owner: Owner) -> Option<Id> {
        if !self.shares.has_room(owner) {
            return None;
        }
        if self.slots.len() - self.free.len() >= self.count_max {
            // Who asks about a socket that is over does so soon.
            let oldest = loop {
                let oldest = self.over.pop_front()?;
                if self.find(oldest).is_some() {
                    break oldest;
                }
            };
            self.remove(oldest.index);
        }
        let index = self
            .free
            .last()
            .copied()
            .unwrap_or(self.slots.len() as Place);
        let generation = self
            .slots
            .get(index as usize)
            .map_or(0, |slot| slot.generation);
        Some(Id {
            epoch: self.epoch,
            index,
            generation,
        })
    }

    /// Puts a socket into the place that [`Table::next`] has named.
    pub(crate) fn enter(&mut self, id: Id, socket: Socket) {
        match self.free.pop() {
            Some(place) => debug_assert_eq!(place, id.index),
            None => self.slots.push(Slot::default()),
        }
        if let Some(owner) = socket.owner {
            self.shares.take(owner);
        }
        self.slots[id.index as usize].socket = Some(Box::new(socket));
    }

    pub(crate) fn get(&mut self, place: Place) -> Option<&mut Socket> {
        self.slots.get_mut(place as usize)?.socket.as_deref_mut()
    }

    pub(crate) fn look(&self, place: Place) -> Option<&Socket> {
        self.slots.get(place as usize)?.socket.as_deref()
    }

    /// Where such sockets are.
    pub(crate) fn places(&self, is_wanted: impl Fn(&Socket) -> bool) -> Vec<Place> {
        let slots = (0..).zip(&self.slots);
        let wanted = slots.filter(|(_, slot)| slot.socket.as_deref().is_some_and(&is_wanted));
        wanted.map(|(place, _)| place).collect()
    }

    pub(crate) fn id_of(&self, place: Place) -> Id {
        Id {
            epoch: self.epoch,
            index: place,
            generation: self
                .slots
                .get(place as usize)
                .map_or(0, |slot| slot.generation),
        }
    }

    /// The place of the socket that is meant.
    pub(crate) fn find(&self, id: Id) -> Option<Place> {
        let is_there = self.id_of(id.index) == id && self.look(id.index).is_some();
        is_there.then_some(id.index)
    }

    /// A socket is over; its place is kept for questions, but not for ever.
    pub(crate) fn keep_over(&mut self, place: Place) {
        let id = self.id_of(place);
        if let Some(owner) = self.get(place).and_then(|socket| socket.owner.take()) {
            self.shares.give_back(owner);
        }
        self.over.push_back(id);
        if self.over.len() > OVER_MAX
            && let Some(oldest) = self.over.pop_front()
            && self.find(oldest).is_some()
        {
            self.remove(oldest.index);
        }
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Box<Socket>> {
        let slot = self.slots.get_mut(place as usize)?;
        let socket = slot.socket.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(owner) = socket.owner {
            self.shares.give_back(owner);
        }
        self.free.push(place);
        Some(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> Socket {
        Socket {
            is_inet6: false,
            key: 0,
            former: None,
            owner: Some(1),
            bound: None,
            options: Options::default(),
            #[cfg(feature = "udp")]
            groups: Vec::new(),
            error: None,
            local: None,
            remote: None,
            pair: None,
            body: Body::Over,
            is_unfinished: false,
        }
    }

    #[test]
    fn a_place_that_is_used_again_has_another_generation() {
        let mut table = Table::new(9, 2);
        let first = table.next(1).expect("a place");
        table.enter(first, socket());
        assert_eq!(table.find(first), Some(first.index));
        table.remove(first.index);
        let second = table.next(1).expect("a place");
        table.enter(second, socket());
        assert_eq!(second.index, first.index);
        assert_eq!((table.find(first), table.find(second)), (None, Some(0)));
        assert_eq!(table.find(Id { epoch: 8, ..second }), None);
    }

    #[test]
    fn what_is_over_makes_room() {
        let mut table = Table::new(9, 2);
        for _ in 0..2 {
            let id = table.next(1).expect("a place");
            table.enter(id, socket());
        }
        assert_eq!(table.next(1), None);
        table.keep_over(0);
        assert_eq!(
            table.next(1).map(|id| (id.index, id.generation)),
            Some((0, 1))
        );
    }
}
