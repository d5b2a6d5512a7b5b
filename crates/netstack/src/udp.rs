//! UDP (RFC 768): ports with a bounded queue each, found by a table of ports.
//!
//! A datagram goes to the socket bound to its very address, else to the one bound to none. What
//! no port wants is answered by ICMP. A full queue drops the newest, as on Linux.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::counters::Drop;
use crate::packet::{self, Ip};
use crate::route::Class;
use crate::stack::{Error, Event, Source, Stack};

const HEADER: usize = 8;
/// Bookkeeping of one datagram, so that empty ones fill a queue too.
const DATAGRAM_COST: usize = 64;
pub(crate) const EPHEMERAL: core::ops::Range<u16> = 32_768..60_999;

/// A bound UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Debug)]
struct Datagram {
    from: SocketAddr,
    to: IpAddr,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Socket {
    generation: u32,
    address: Option<IpAddr>,
    port: u16,
    is_open: bool,
    is_queued: bool,
    queue: VecDeque<Datagram>,
    queue_bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Udp {
    sockets: Vec<Socket>,
    ports: BTreeMap<u16, Vec<u32>>,
}

impl Udp {
    pub(crate) fn event(&mut self, index: u32) -> Option<Event> {
        let socket = self.sockets.get_mut(index as usize)?;
        socket.is_queued = false;
        let id = UdpId {
            index,
            generation: socket.generation,
        };
        (!socket.queue.is_empty()).then_some(Event::Udp(id))
    }

    fn socket(&mut self, id: UdpId) -> Result<&mut Socket, Error> {
        let found = self.sockets.get_mut(id.index as usize);
        found
            .filter(|s| s.is_open && s.generation == id.generation)
            .ok_or(Error::NoSuch)
    }

    fn find(&self, dst: &IpAddr, port: u16) -> Option<u32> {
        let bound = self.ports.get(&port)?;
        let address_of = |index: &&u32| self.sockets[**index as usize].address;
        let exact = bound.iter().find(|index| address_of(index) == Some(*dst));
        exact
            .or_else(|| bound.iter().find(|index| address_of(index).is_none()))
            .copied()
    }
}

impl Stack {
    /// Binds a port; port 0 chooses one.
    pub fn udp_bind(&mut self, address: Option<IpAddr>, port: u16) -> Result<UdpId, Error> {
        if address.is_some_and(|a| !self.routing.is_own(&a)) {
            return Err(Error::AddressNotAvailable);
        }
        let port = match port {
            0 => self.free_udp_port()?,
            port => port,
        };
        let taken = self.udp.ports.entry(port).or_default();
        if taken
            .iter()
            .any(|i| self.udp.sockets[*i as usize].address == address)
        {
            return Err(Error::AddressInUse);
        }
        let free = self.udp.sockets.iter().position(|s| !s.is_open);
        let index = free.unwrap_or(self.udp.sockets.len());
        let generation = free.map_or(0, |i| self.udp.sockets[i].generation.wrapping_add(1));
        let socket = Socket {
            generation,
            address,
            port,
            is_open: true,
            is_queued: false,
            queue: VecDeque::new(),
            queue_bytes: 0,
        };
        match free {
            Some(index) => self.udp.sockets[index] = socket,
            None => self.udp.sockets.push(socket),
        }
        taken.push(index as u32);
        let index = index as u32;
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

    pub fn udp_port(&mut self, id: UdpId) -> Result<u16, Error> {
        Ok(self.udp.socket(id)?.port)
    }

    pub fn udp_close(&mut self, id: UdpId) -> Result<(), Error> {
        let socket = self.udp.socket(id)?;
        socket.is_open = false;
        socket.queue = VecDeque::new();
        let port = socket.port;
        if let Some(bound) = self.udp.ports.get_mut(&port) {
            bound.retain(|index| *index != id.index);
            if bound.is_empty() {
                self.udp.ports.remove(&port);
            }
        }
        Ok(())
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
        let (port, bound) = (socket.port, socket.address);
        let chosen = from.or(bound).or_else(|| self.routing.source_for(&to.ip()));
        let src = chosen.ok_or(Error::Unreachable)?;
        if src.is_ipv4() != to.is_ipv4() || (!self.routing.is_own(&src)) {
            return Err(Error::AddressNotAvailable);
        }
        self.udp_output(src, port, to, payload)
    }

    pub(crate) fn udp_output(
        &mut self,
        src: IpAddr,
        port: u16,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<(), Error> {
        let dst = to.ip();
        let len = HEADER + payload.len();
        if len + packet::header_len(&dst) > 65_535 {
            return Err(Error::TooLong);
        }
        let buffer = self.outbox.buffer();
        let (mut frame, at) = packet::start(buffer, &src, &dst, packet::UDP, 64, len);
        packet::put16(&mut frame, at, port);
        packet::put16(&mut frame, at + 2, to.port());
        packet::put16(&mut frame, at + 4, len as u16);
        frame[at + HEADER..].copy_from_slice(payload);
        self.send(frame, src, dst, 6);
        Ok(())
    }

    /// The next datagram, cut to the buffer as recvfrom(2) does: bytes copied, its full length,
    /// who sent it, and the address of ours it came to.
    pub fn udp_receive(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
    ) -> Result<(usize, usize, SocketAddr, IpAddr), Error> {
        let socket = self.udp.socket(id)?;
        let datagram = socket.queue.pop_front().ok_or(Error::WouldBlock)?;
        socket.queue_bytes -= datagram.bytes.len() + DATAGRAM_COST;
        let copied = datagram.bytes.len().min(buffer.len());
        buffer[..copied].copy_from_slice(&datagram.bytes[..copied]);
        let whole = datagram.bytes.len();
        self.outbox.give_back(datagram.bytes);
        Ok((copied, whole, datagram.from, datagram.to))
    }

    pub(crate) fn udp_input(&mut self, bytes: &[u8], ip: &Ip, class: Class) -> Result<(), Drop> {
        let datagram = &bytes[ip.payload..ip.end];
        let len = usize::from(packet::be16(datagram, 4).ok_or(Drop::Malformed)?);
        if len < HEADER || len > datagram.len() || datagram.len() < HEADER {
            return Err(Drop::Malformed);
        }
        let src_port = u16::from_be_bytes([datagram[0], datagram[1]]);
        let dst_port = u16::from_be_bytes([datagram[2], datagram[3]]);
        let Some(index) = self.udp.find(&ip.dst, dst_port).filter(|_| dst_port != 0) else {
            #[cfg(feature = "icmp")]
            self.icmp_unreachable(bytes, ip, class, crate::icmp::Unreachable::Port);
            let _ = class;
            return Err(Drop::Protocol);
        };
        let mut copy = self.outbox.buffer();
        let socket = &mut self.udp.sockets[index as usize];
        let cost = len - HEADER + DATAGRAM_COST;
        if socket.queue_bytes + cost > self.limits.udp_queue_bytes_max {
            self.outbox.give_back(copy);
            return Err(Drop::Full);
        }
        copy.extend_from_slice(&datagram[HEADER..len]);
        socket.queue_bytes += cost;
        socket.queue.push_back(Datagram {
            from: SocketAddr::new(ip.src, src_port),
            to: ip.dst,
            bytes: copy,
        });
        if !socket.is_queued {
            socket.is_queued = true;
            self.sources.push_back(Source::Udp(index));
        }
        Ok(())
    }
}
