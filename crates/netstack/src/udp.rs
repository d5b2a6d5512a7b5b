//! UDP (RFC 768): sockets with a bounded queue each.
//!
//! ```text
//!   datagram ── both names ──► connected socket
//!      │
//!      └── port ──► bound to this very address, else to its family, else to all
//!                     several share the port: the hash of both names chooses one
//! ```
//! A connected socket hears its peer alone. A datagram to all goes to every socket that it fits;
//! one to a group, of those, to the ones that are in it, or that take all (`groups`). What no
//! socket wants is answered by ICMP. A full queue drops the newest, as on Linux; so does the
//! bound on all queues together.
//!
//! **Errors.** A hard ICMP error about a datagram of a connected socket is kept, an event tells
//! of it, and the next call that sends or receives fails with it, once (udp(7), as `sock_error`
//! in Linux). A socket without a peer hears nothing of errors, nor does any of soft ones.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::config::UdpOptions;
use crate::counters::Drop;
use crate::groups::Membership;
use crate::hash::Keyed;
use crate::packet::{self, Ip};
use crate::route::Class;
use crate::stack::{Error, Event, Source, Stack};

const HEADER: usize = 8;
/// Bookkeeping of one datagram, so that empty ones fill a queue too.
const DATAGRAM_COST: usize = 64;
pub(crate) const EPHEMERAL: core::ops::Range<u16> = 32_768..60_999;

/// A UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl UdpId {
    /// A small number that no other socket has at the same time, for a table of one's own.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug)]
struct Datagram {
    from: SocketAddr,
    to: IpAddr,
    hop_limit: u8,
    bytes: Vec<u8>,
}

/// What is known of a datagram that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Bytes that found room, and all there were.
    pub copied: usize,
    pub whole: usize,
    pub from: SocketAddr,
    /// The address of ours, or the group, that it came to.
    pub to: IpAddr,
    pub hop_limit: u8,
}

#[derive(Debug)]
struct Socket {
    generation: u32,
    /// What it was bound to: an address, all of a family (0.0.0.0, ::), or all.
    bound: Option<IpAddr>,
    port: u16,
    /// Both names while it is connected.
    names: Option<Names>,
    options: UdpOptions,
    groups: Vec<Membership>,
    error: Option<Error>,
    is_open: bool,
    is_queued: bool,
    queue: VecDeque<Datagram>,
    queue_bytes: usize,
}

impl Socket {
    /// How well a datagram to this address fits; 0 if not.
    fn rank(&self, to: &IpAddr) -> u8 {
        match self.bound {
            Some(own) if own == *to => 3,
            Some(own) if own.is_unspecified() && own.is_ipv4() == to.is_ipv4() => 2,
            None => 1,
            Some(_) => 0,
        }
    }

    /// Whether what comes to a group is for it, as far as that goes (linux: ip_mc_sf_allow,
    /// inet6_mc_check, which does not ask where).
    fn hears(&self, group: &IpAddr, is_loopback: bool) -> bool {
        let is_it = |joined: &Membership| {
            let is_there = group.is_ipv6() || joined.is_loopback == is_loopback;
            joined.group == *group && is_there
        };
        self.options.hears_all_groups || self.groups.iter().any(is_it)
    }

    /// Its own address, if it is bound to one.
    fn own(&self) -> Option<IpAddr> {
        let own = self.names.map(|names| names.local.ip()).or(self.bound);
        own.filter(|own| !own.is_unspecified() && !own.is_multicast())
    }

    /// The address that it has chosen for what goes to groups, if `to` is one.
    fn group_source(&self, to: &IpAddr) -> Option<IpAddr> {
        let sources = self.options.group_sources.into_iter().flatten();
        let mut of_family = sources.filter(|source| source.is_ipv4() == to.is_ipv4());
        of_family.next().filter(|_| to.is_multicast())
    }

    /// Whether a datagram could be for both.
    fn overlaps(&self, bound: Option<IpAddr>) -> bool {
        match (self.bound, bound) {
            (None, _) | (_, None) => true,
            (Some(a), Some(b)) if a.is_ipv4() == b.is_ipv4() => {
                a == b || a.is_unspecified() || b.is_unspecified()
            }
            _ => false,
        }
    }
}

/// Local and remote name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Names {
    local: SocketAddr,
    remote: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Udp {
    sockets: Vec<Socket>,
    free: Vec<u32>,
    ports: BTreeMap<u16, Vec<u32>>,
    connected: HashMap<Names, u32, Keyed>,
    /// Chooses among sockets that share a port.
    chooser: Keyed,
    /// In all queues.
    bytes: usize,
}

impl Udp {
    pub(crate) fn new(seed: u64) -> Udp {
        Udp {
            sockets: Vec::new(),
            free: Vec::new(),
            ports: BTreeMap::new(),
            connected: HashMap::with_hasher(Keyed(seed)),
            chooser: Keyed(!seed),
            bytes: 0,
        }
    }

    pub(crate) fn event(&mut self, index: u32) -> Option<Event> {
        let socket = self.sockets.get_mut(index as usize)?;
        socket.is_queued = false;
        let id = UdpId {
            index,
            generation: socket.generation,
        };
        let has_news = !socket.queue.is_empty() || socket.error.is_some();
        has_news.then_some(Event::Udp(id))
    }

    fn socket(&mut self, id: UdpId) -> Result<&mut Socket, Error> {
        let found = self.sockets.get_mut(id.index as usize);
        found
            .filter(|s| s.is_open && s.generation == id.generation)
            .ok_or(Error::NoSuch)
    }

    /// The socket for what comes from `remote` to `local`.
    fn find(&self, local: &SocketAddr, remote: &SocketAddr) -> Option<u32> {
        let names = Names {
            local: *local,
            remote: *remote,
        };
        if !self.connected.is_empty()
            && let Some(index) = self.connected.get(&names)
        {
            return Some(*index);
        }
        let bound = self.ports.get(&local.port())?;
        let rank = |index: &u32| {
            let socket = &self.sockets[*index as usize];
            match socket.names {
                None => socket.rank(&local.ip()),
                Some(_) => 0,
            }
        };
        let best = bound.iter().map(rank).max().filter(|best| *best > 0)?;
        let mut fitting = bound.iter().filter(|index| rank(index) == best);
        let count = fitting.clone().count();
        let spreads = |index: &u32| self.sockets[*index as usize].options.spreads;
        if count == 1 || !fitting.clone().all(spreads) {
            return fitting.next_back().copied();
        }
        let mut hasher = self.chooser.build_hasher();
        for name in [local, remote] {
            let bits = match name.ip() {
                IpAddr::V4(four) => four.to_bits().into(),
                IpAddr::V6(six) => six.to_bits(),
            };
            hasher.write_u128(bits);
            hasher.write_u16(name.port());
        }
        fitting
            .nth((hasher.finish() % count as u64) as usize)
            .copied()
    }

    /// The table leads to another socket with the same names, if there is one.
    fn forget_names(&mut self, index: u32) {
        let Some(names) = self.sockets[index as usize].names.take() else {
            return;
        };
        if self.connected.get(&names) != Some(&index) {
            return;
        }
        self.connected.remove(&names);
        let same = self.ports.get(&names.local.port()).and_then(|bound| {
            let mut same = bound.iter().rev();
            same.find(|other| self.sockets[**other as usize].names == Some(names))
        });
        if let Some(other) = same {
            self.connected.insert(names, *other);
        }
    }
}

impl Stack {
    /// Binds a port of one address, of all of a family (0.0.0.0, ::), or of all; port 0 chooses
    /// one.
    pub fn udp_bind(&mut self, address: Option<IpAddr>, port: u16) -> Result<UdpId, Error> {
        self.udp_bind_with(address, port, UdpOptions::default())
    }

    pub fn udp_bind_with(
        &mut self,
        address: Option<IpAddr>,
        port: u16,
        options: UdpOptions,
    ) -> Result<UdpId, Error> {
        // Bound to a group, it hears that alone.
        if address.is_some_and(|a| !self.routing.can_bind(&a) && !a.is_multicast()) {
            return Err(Error::AddressNotAvailable);
        }
        let port = match port {
            0 => self.free_udp_port()?,
            port => port,
        };
        let udp = &mut self.udp;
        let taken = udp.ports.entry(port).or_default();
        let is_in_the_way = |index: &u32| {
            let other = &udp.sockets[*index as usize];
            other.overlaps(address) && !(options.shares_port && other.options.shares_port)
        };
        if taken.iter().any(is_in_the_way) {
            return Err(Error::AddressInUse);
        }
        let mut socket = Socket {
            generation: 0,
            bound: address,
            port,
            names: None,
            options,
            groups: Vec::new(),
            error: None,
            is_open: true,
            is_queued: false,
            queue: VecDeque::new(),
            queue_bytes: 0,
        };
        let index = match udp.free.pop() {
            Some(index) => {
                let old = &mut udp.sockets[index as usize];
                socket.generation = old.generation.wrapping_add(1);
                *old = socket;
                index
            }
            None => {
                udp.sockets.push(socket);
                udp.sockets.len() as u32 - 1
            }
        };
        taken.push(index);
        let generation = udp.sockets[index as usize].generation;
        Ok(UdpId { index, generation })
    }

    fn free_udp_port(&mut self) -> Result<u16, Error> {
        let span = EPHEMERAL.end - EPHEMERAL.start;
        let start = (self.random.next() % u64::from(span)) as u16;
        (0..span)
            .map(|step| EPHEMERAL.start + (start + step) % span)
            .find(|port| !self.udp.ports.contains_key(port))
            .ok_or(Error::AddressInUse)
    }

    /// From now on the socket hears this peer alone, and learns of its errors. `None` undoes it.
    pub fn udp_connect(&mut self, id: UdpId, remote: Option<SocketAddr>) -> Result<(), Error> {
        let socket = self.udp.socket(id)?;
        let (bound, port) = (socket.bound, socket.port);
        let names = match remote {
            None => None,
            Some(remote) => {
                let own = bound.filter(|own| !own.is_unspecified() && !own.is_multicast());
                let own = own.or(socket.group_source(&remote.ip()));
                let own = own.or_else(|| self.routing.source_for(&remote.ip()));
                let own = own.ok_or(Error::Unreachable)?;
                let is_family = bound.is_none_or(|bound| bound.is_ipv4() == remote.is_ipv4());
                if !is_family || own.is_ipv4() != remote.is_ipv4() || remote.port() == 0 {
                    return Err(Error::AddressNotAvailable);
                }
                if self.routing.hop(&remote.ip()).is_none() {
                    return Err(Error::Unreachable);
                }
                let local = SocketAddr::new(own, port);
                Some(Names { local, remote })
            }
        };
        self.udp.forget_names(id.index);
        if let Some(names) = names {
            self.udp.connected.insert(names, id.index);
        }
        self.udp.socket(id)?.names = names;
        Ok(())
    }

    pub fn udp_port(&mut self, id: UdpId) -> Result<u16, Error> {
        Ok(self.udp.socket(id)?.port)
    }

    /// Local name (the address absent: all of them) and peer.
    pub fn udp_names(
        &mut self,
        id: UdpId,
    ) -> Result<(Option<IpAddr>, u16, Option<SocketAddr>), Error> {
        let socket = self.udp.socket(id)?;
        let local = socket.names.map(|names| names.local.ip());
        let remote = socket.names.map(|names| names.remote);
        Ok((local.or(socket.bound), socket.port, remote))
    }

    pub fn udp_options(&mut self, id: UdpId) -> Result<UdpOptions, Error> {
        Ok(self.udp.socket(id)?.options)
    }

    pub fn udp_set_options(&mut self, id: UdpId, options: UdpOptions) -> Result<(), Error> {
        self.udp.socket(id)?.options = options;
        Ok(())
    }

    /// The groups that it is in. That we hear them is asked for by [`Stack::join_group`].
    pub fn udp_set_groups(&mut self, id: UdpId, groups: &[Membership]) -> Result<(), Error> {
        self.udp.socket(id)?.groups = groups.to_vec();
        Ok(())
    }

    /// The error that is kept (SO_ERROR); it is told once.
    pub fn udp_error(&mut self, id: UdpId) -> Result<Option<Error>, Error> {
        Ok(self.udp.socket(id)?.error.take())
    }

    pub fn udp_close(&mut self, id: UdpId) -> Result<(), Error> {
        self.udp.socket(id)?;
        self.udp.forget_names(id.index);
        let socket = self.udp.socket(id)?;
        socket.is_open = false;
        socket.queue = VecDeque::new();
        socket.groups = Vec::new();
        socket.error = None;
        let (port, bytes) = (socket.port, core::mem::take(&mut socket.queue_bytes));
        self.udp.bytes -= bytes;
        if let Some(bound) = self.udp.ports.get_mut(&port) {
            bound.retain(|index| *index != id.index);
            if bound.is_empty() {
                self.udp.ports.remove(&port);
            }
        }
        self.udp.free.push(id.index);
        Ok(())
    }

    /// How many datagrams of any length find room now. If none, there is some when
    /// [`Stack::transmit`] was asked for frames.
    pub fn udp_room(&self) -> usize {
        // In fragments, each with a header of its own.
        let most = crate::ip::IP_BYTES_MAX + crate::ip::IP_BYTES_MAX / 16;
        let on_loopback = (crate::ip::LOOPBACK_MAX / 2).saturating_sub(self.loopback.len());
        (self.outbox.room_bytes() / most).min(on_loopback)
    }

    pub fn udp_send(&mut self, id: UdpId, to: SocketAddr, payload: &[u8]) -> Result<(), Error> {
        self.udp_send_from(id, None, to, payload)
    }

    /// Sends with a source of ours, the address that a request came to, say.
    pub fn udp_send_from(
        &mut self,
        id: UdpId,
        from: Option<IpAddr>,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<(), Error> {
        let socket = self.udp.socket(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        let (port, options) = (socket.port, socket.options);
        let of_family = socket.names.map(|names| names.local.ip()).or(socket.bound);
        let chosen = from.or(socket.own()).or(socket.group_source(&to.ip()));
        let chosen = chosen.or_else(|| self.routing.source_for(&to.ip()));
        let src = chosen.ok_or(Error::Unreachable)?;
        let is_family = of_family.is_none_or(|own| own.is_ipv4() == to.is_ipv4());
        if !is_family || src.is_ipv4() != to.is_ipv4() || !self.routing.is_own(&src) {
            return Err(Error::AddressNotAvailable);
        }
        let from = SocketAddr::new(src, port);
        self.udp_output(from, to, payload, &options)
    }

    pub(crate) fn udp_output(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        options: &UdpOptions,
    ) -> Result<(), Error> {
        let (src, dst) = (from.ip(), to.ip());
        let len = HEADER + payload.len();
        if len + packet::header_len(&dst) > 65_535 {
            return Err(Error::TooLong);
        }
        let hops = match options.hop_limit {
            _ if dst.is_multicast() => options.group_hop_limit,
            Some(hops) => hops.max(1),
            None => self.hop_limit(dst.is_ipv6()),
        };
        let label = self.flow_label(&from, &to);
        let buffer = self.outbox.buffer();
        let (mut frame, at) = packet::start(buffer, &src, &dst, packet::UDP, hops, len);
        packet::mark(&mut frame[packet::ETHERNET..], options.class, label);
        packet::put16(&mut frame, at, from.port());
        packet::put16(&mut frame, at + 2, to.port());
        packet::put16(&mut frame, at + 4, len as u16);
        frame[at + HEADER..].copy_from_slice(payload);
        self.groups.loops = options.loops_groups;
        self.send(frame, src, dst, 6);
        self.groups.loops = false;
        Ok(())
    }

    /// The next datagram, cut to the buffer as recvfrom(2) does: bytes copied, its full length,
    /// who sent it, and the address of ours it came to.
    pub fn udp_receive(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
    ) -> Result<(usize, usize, SocketAddr, IpAddr), Error> {
        let came = self.udp_take(id, buffer)?;
        Ok((came.copied, came.whole, came.from, came.to))
    }

    /// The same, with all that is known of it.
    pub fn udp_take(&mut self, id: UdpId, buffer: &mut [u8]) -> Result<Arrival, Error> {
        let socket = self.udp.socket(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        let datagram = socket.queue.pop_front().ok_or(Error::WouldBlock)?;
        let cost = datagram.bytes.len() + DATAGRAM_COST;
        socket.queue_bytes -= cost;
        self.udp.bytes -= cost;
        let copied = datagram.bytes.len().min(buffer.len());
        buffer[..copied].copy_from_slice(&datagram.bytes[..copied]);
        let came = Arrival {
            copied,
            whole: datagram.bytes.len(),
            from: datagram.from,
            to: datagram.to,
            hop_limit: datagram.hop_limit,
        };
        self.outbox.give_back(datagram.bytes);
        Ok(came)
    }

    pub(crate) fn udp_input(&mut self, bytes: &[u8], ip: &Ip, class: Class) -> Result<(), Drop> {
        let datagram = &bytes[ip.payload..ip.end];
        let len = usize::from(packet::be16(datagram, 4).ok_or(Drop::Malformed)?);
        if len < HEADER || len > datagram.len() || datagram.len() < HEADER {
            return Err(Drop::Malformed);
        }
        let remote = SocketAddr::new(ip.src, u16::from_be_bytes([datagram[0], datagram[1]]));
        let local = SocketAddr::new(ip.dst, u16::from_be_bytes([datagram[2], datagram[3]]));
        let payload = &datagram[HEADER..len];
        if matches!(class, Class::Broadcast | Class::Multicast) {
            return self.udp_group_input(&local, &remote, ip.hop_limit, payload);
        }
        let Some(index) = self.udp.find(&local, &remote).filter(|_| local.port() != 0) else {
            #[cfg(feature = "icmp")]
            self.icmp_unreachable(bytes, ip, class, crate::icmp::Unreachable::Port);
            return Err(Drop::Protocol);
        };
        self.udp_queue(index, &local, &remote, ip.hop_limit, payload)
    }

    /// Each socket that it fits gets a copy.
    fn udp_group_input(
        &mut self,
        local: &SocketAddr,
        remote: &SocketAddr,
        hop_limit: u8,
        payload: &[u8],
    ) -> Result<(), Drop> {
        let count = self.udp.ports.get(&local.port()).map_or(0, Vec::len);
        let mut taken = Err(Drop::Protocol);
        for nth in 0..count {
            let index = self.udp.ports[&local.port()][nth];
            let socket = &self.udp.sockets[index as usize];
            let is_peer = socket.names.is_none_or(|names| names.remote == *remote);
            let group = local.ip();
            let is_member =
                !group.is_multicast() || socket.hears(&group, remote.ip().is_loopback());
            if is_peer && is_member && socket.rank(&group) > 0 {
                let queued = self.udp_queue(index, local, remote, hop_limit, payload);
                taken = taken.or(queued);
            }
        }
        taken
    }

    fn udp_queue(
        &mut self,
        index: u32,
        local: &SocketAddr,
        remote: &SocketAddr,
        hop_limit: u8,
        payload: &[u8],
    ) -> Result<(), Drop> {
        let cost = payload.len() + DATAGRAM_COST;
        let socket = &mut self.udp.sockets[index as usize];
        let is_full = socket.queue_bytes + cost > self.limits.udp_queue_bytes_max;
        if is_full || self.udp.bytes + cost > self.limits.udp_bytes_max {
            return Err(Drop::Full);
        }
        let mut copy = self.outbox.buffer();
        copy.extend_from_slice(payload);
        socket.queue_bytes += cost;
        self.udp.bytes += cost;
        socket.queue.push_back(Datagram {
            from: *remote,
            to: local.ip(),
            hop_limit,
            bytes: copy,
        });
        self.udp_news(index);
        Ok(())
    }

    fn udp_news(&mut self, index: u32) {
        let socket = &mut self.udp.sockets[index as usize];
        if !socket.is_queued {
            socket.is_queued = true;
            self.sources.push_back(Source::Udp(index));
        }
    }

    /// An ICMP error about a datagram of ours.
    #[cfg(feature = "icmp")]
    pub(crate) fn udp_icmp_error(
        &mut self,
        quoted: &crate::errors::Quote,
        said: &crate::errors::Said,
    ) -> Result<(), Drop> {
        let found = self.udp.find(&quoted.local, &quoted.remote);
        let index = found.ok_or(Drop::Stray)?;
        if let Some(mtu_bytes) = said.mtu_bytes {
            self.learn_path_mtu(quoted.remote.ip(), mtu_bytes);
        }
        let socket = &mut self.udp.sockets[index as usize];
        if said.is_hard && socket.names.is_some() {
            socket.error = Some(said.error);
            self.udp_news(index);
        }
        Ok(())
    }
}
