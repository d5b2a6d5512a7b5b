//! What a program does with connections. Names and errors follow the socket calls.
//!
//! Nothing here sends: a flow is marked, and `transmit` asks it.

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};

use super::connection::Connection;
use super::flow::{Flow, TcpInfo, TcpState};
use super::handshake::Listener;
use super::{Key, ListenerId, Slot, TcpId};
use crate::Micros;
use crate::config::TcpOptions;
use crate::hash::mix;
use crate::stack::{Error, Source, Stack};

/// As on Linux (ip_local_port_range).
const EPHEMERAL: core::ops::Range<u16> = 32_768..60_999;

impl Stack {
    /// Listens on a port of one address, of a family (the unspecified address), or of all. At most `backlog` connections wait for
    /// accept, until [`Stack::tcp_set_queue`] says otherwise, and as many are half open before SYN cookies answer.
    pub fn tcp_listen(
        &mut self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
        options: TcpOptions,
    ) -> Result<ListenerId, Error> {
        if address.is_some_and(|a| !self.routing.can_bind(&a)) || port == 0 {
            return Err(Error::AddressNotAvailable);
        }
        let tcp = &mut self.tcp;
        let bound = tcp.ports.entry(port).or_default();
        if bound
            .iter()
            .any(|i| tcp.listeners[*i as usize].address == address)
        {
            return Err(Error::AddressInUse);
        }
        let free = tcp.listeners.iter().position(|l| !l.is_open);
        let index = free.unwrap_or(tcp.listeners.len());
        let generation = free.map_or(0, |i| tcp.listeners[i].generation.wrapping_add(1));
        let listener = Listener {
            generation,
            address,
            port,
            half_open_max: backlog.max(1),
            queue_max: backlog.max(1),
            options,
            is_open: true,
            is_queued: false,
            half_open: 0,
            accepted: VecDeque::new(),
        };
        match free {
            Some(index) => tcp.listeners[index] = listener,
            None => tcp.listeners.push(listener),
        }
        bound.push(index as u32);
        let index = index as u32;
        Ok(ListenerId { index, generation })
    }

    /// From now on at most so many connections wait for accept. Those that do already stay.
    pub fn tcp_set_queue(&mut self, id: ListenerId, count_max: usize) -> Result<(), Error> {
        self.listener(id).ok_or(Error::NoSuch)?.queue_max = count_max;
        Ok(())
    }

    /// What holds for connections that come from now on; the receive buffer stays, whose window scale some may have been offered.
    pub fn tcp_set_listener(&mut self, id: ListenerId, options: TcpOptions) -> Result<(), Error> {
        let listener = self.listener(id).ok_or(Error::NoSuch)?;
        listener.options = TcpOptions {
            receive_bytes: listener.options.receive_bytes,
            ..options
        };
        Ok(())
    }

    /// The next connection and its peer. It may have something to read already: an event says so.
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), Error> {
        let listener = self.listener(id).ok_or(Error::NoSuch)?;
        let index = listener.accepted.pop_front().ok_or(Error::WouldBlock)?;
        let flow = self.tcp.flow(index).ok_or(Error::NoSuch)?;
        flow.listener = None;
        let remote = flow.remote;
        let has_news = flow.tcp.ready != crate::Ready::default();
        if has_news && !flow.is_queued {
            flow.is_queued = true;
            self.sources.push_back(Source::Flow(index));
        }
        Ok((self.tcp.id(index), remote))
    }

    /// Stops listening; connections nobody has accepted are reset.
    pub fn tcp_unlisten(&mut self, id: ListenerId) -> Result<(), Error> {
        let listener = self.listener(id).ok_or(Error::NoSuch)?;
        listener.is_open = false;
        let (port, waiting) = (listener.port, core::mem::take(&mut listener.accepted));
        if let Some(bound) = self.tcp.ports.get_mut(&port) {
            bound.retain(|index| *index != id.index);
            if bound.is_empty() {
                self.tcp.ports.remove(&port);
            }
        }
        for index in waiting {
            let connection = self.tcp.id(index);
            let _ = self.tcp_abort(connection);
        }
        Ok(())
    }

    /// Begins a connection; an event tells how it went. `local` may name address and port.
    pub fn tcp_connect(
        &mut self,
        now: Micros,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        options: TcpOptions,
    ) -> Result<TcpId, Error> {
        self.advance(now);
        if !self.tcp.has_room() {
            return Err(Error::Full);
        }
        let wanted = local.map(|l| l.ip()).filter(|ip| !ip.is_unspecified());
        let address = wanted.or_else(|| self.routing.source_for(&remote.ip()));
        let address = address.ok_or(Error::Unreachable)?;
        if !self.routing.is_own(&address) || address.is_ipv4() != remote.is_ipv4() {
            return Err(Error::AddressNotAvailable);
        }
        if self.routing.hop(&remote.ip()).is_none() || remote.port() == 0 {
            return Err(Error::Unreachable);
        }
        let local = match local.map(|l| l.port()).filter(|port| *port != 0) {
            Some(port) => SocketAddr::new(address, port),
            None => self.ephemeral(address, &remote)?,
        };
        if !self.is_free(&local, &remote) {
            return Err(Error::AddressInUse);
        }
        let key = Key::new(&local, &remote);
        let (seq, clock) = (self.initial_seq(&key), self.clock_offset(&key));
        let own_mss = self.own_mss(&remote);
        let connection = Connection::connect(seq, clock, own_mss, &options, self.now);
        let index = self.add_flow(Flow::new(local, remote, connection));
        self.settle(index);
        Ok(self.tcp.id(index))
    }

    fn is_free(&self, local: &SocketAddr, remote: &SocketAddr) -> bool {
        !self.tcp.table.contains_key(&Key::new(local, remote))
            && self.find_listener(local).is_none()
    }

    /// A port that nobody can foretell and that differs by destination (RFC 6056 section 3.3.3).
    fn ephemeral(&mut self, address: IpAddr, remote: &SocketAddr) -> Result<SocketAddr, Error> {
        let span = u64::from(EPHEMERAL.end - EPHEMERAL.start);
        let key = Key::new(&SocketAddr::new(address, 0), remote);
        let hash = mix(
            key.remote as u64 ^ self.tcp.secret,
            u64::from(key.ports) ^ (key.remote >> 64) as u64 ^ !self.tcp.secret,
        );
        for _ in 0..span {
            self.tcp.next_port = self.tcp.next_port.wrapping_add(1);
            let offset = (hash.wrapping_add(self.tcp.next_port) % span) as u16;
            let local = SocketAddr::new(address, EPHEMERAL.start + offset);
            if self.is_free(&local, remote) {
                return Ok(local);
            }
        }
        Err(Error::AddressInUse)
    }

    /// Puts bytes into the send buffer; gives how many there was room for. When it was not all,
    /// an event tells of room.
    pub fn tcp_send(&mut self, id: TcpId, bytes: &[u8]) -> Result<usize, Error> {
        let mut sent = 0;
        // The buffer is a ring: what does not fit before its end may fit at its start.
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let written = self.fill(id, Some(rest.len()), |room| {
                let len = room.len().min(rest.len());
                room[..len].copy_from_slice(&rest[..len]);
                len
            });
            match written {
                Ok(len) => sent += len,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Lets `write` fill free space of the send buffer, which it gets as one slice; it gives how
    /// much it wrote.
    pub fn tcp_send_with(
        &mut self,
        id: TcpId,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, Error> {
        self.fill(id, None, write)
    }

    /// The byte that was sent last is urgent (MSG_OOB).
    pub fn tcp_mark_urgent(&mut self, id: TcpId) -> Result<(), Error> {
        self.tcp
            .flow_of(id)
            .ok_or(Error::NoSuch)?
            .tcp
            .send
            .mark_urgent();
        self.touched(id.index);
        Ok(())
    }

    fn fill(
        &mut self,
        id: TcpId,
        wanted: Option<usize>,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, Error> {
        let now = self.now;
        let super::Tcp { flows, pool, .. } = &mut self.tcp;
        let flow = super::flow_in(flows, id).ok_or(Error::NoSuch)?;
        let tcp = &mut flow.tcp;
        if !tcp.is_open() {
            return Err(match (tcp.error, tcp.state) {
                (Some(error), _) => error,
                (None, TcpState::SynSent | TcpState::SynReceived) => Error::WouldBlock,
                _ => Error::Pipe,
            });
        }
        tcp.send.wake(now);
        let space = tcp.send.space(wanted, pool);
        if space.is_empty() {
            tcp.wants_room = true;
            return Err(Error::WouldBlock);
        }
        let len = write(space).min(space.len());
        tcp.send.written(len);
        self.touched(id.index);
        Ok(len)
    }

    /// Takes received bytes; `Ok(0)` is the end.
    pub fn tcp_receive(&mut self, id: TcpId, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < buffer.len() {
            let read = self.tcp_receive_with(id, |[bytes, _]| {
                let len = bytes.len().min(buffer.len() - taken);
                buffer[taken..taken + len].copy_from_slice(&bytes[..len]);
                len
            });
            match read {
                Ok(0) => break,
                Ok(len) => taken += len,
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Lets `read` look at all that has arrived, without a copy; it gives how much of it is done with. The second piece goes on where the
    /// first one ends. `Ok(0)` without a call of `read` is the end.
    pub fn tcp_receive_with(
        &mut self,
        id: TcpId,
        read: impl FnOnce([&[u8]; 2]) -> usize,
    ) -> Result<usize, Error> {
        let super::Tcp { flows, pool, .. } = &mut self.tcp;
        let flow = super::flow_in(flows, id).ok_or(Error::NoSuch)?;
        let tcp = &mut flow.tcp;
        let unread = tcp.receive.unread();
        if unread == 0 {
            return match (tcp.error, tcp.state) {
                (Some(error), _) => Err(error),
                (None, TcpState::Closed) => Ok(0),
                (None, _) if tcp.receive.is_over => Ok(0),
                (None, _) => Err(Error::WouldBlock),
            };
        }
        let len = read(tcp.receive.ring.pieces(tcp.receive.read, unread)).min(unread);
        tcp.consumed(len, pool);
        if flow.is_attached && !flow.is_dirty && flow.tcp.wants() {
            self.tcp.mark_dirty(id.index);
        }
        Ok(len)
    }

    /// How many of the bytes that wait to be read stand before an urgent one (0: SIOCATMARK), which waits as well. Reads do not heed it.
    pub fn tcp_before_urgent(&mut self, id: TcpId) -> Option<usize> {
        self.tcp.flow_of(id)?.tcp.receive.before_urgent()
    }

    /// Bytes that wait to be read.
    pub fn tcp_unread(&mut self, id: TcpId) -> Result<usize, Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        Ok(flow.tcp.receive.unread())
    }

    pub fn tcp_state(&mut self, id: TcpId) -> Result<TcpState, Error> {
        Ok(self.tcp.flow_of(id).ok_or(Error::NoSuch)?.tcp.state)
    }

    /// How the connection fares.
    pub fn tcp_info(&mut self, id: TcpId) -> Result<TcpInfo, Error> {
        Ok(self.tcp.flow_of(id).ok_or(Error::NoSuch)?.tcp.info())
    }

    /// Local and remote name.
    pub fn tcp_names(&mut self, id: TcpId) -> Result<(SocketAddr, SocketAddr), Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        Ok((flow.local, flow.remote))
    }

    /// Buffers and congestion control stay as the connection began with them; all else holds from now on.
    pub fn tcp_set_options(&mut self, id: TcpId, options: TcpOptions) -> Result<(), Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        let first = flow.tcp.options;
        flow.tcp.options = TcpOptions {
            receive_bytes: first.receive_bytes,
            send_bytes: first.send_bytes,
            congestion: first.congestion,
            ..options
        };
        flow.tcp.send.is_nagle = options.is_nagle;
        if first.keepalive.is_none() {
            flow.tcp.begin_probes();
        }
        self.touched(id.index);
        Ok(())
    }

    /// Ends the sending side: what was sent goes out, then a FIN. Receiving goes on.
    pub fn tcp_shutdown(&mut self, id: TcpId) -> Result<(), Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        if flow.tcp.state == TcpState::SynSent {
            return Err(Error::NotConnected);
        }
        flow.tcp.shut();
        self.touched(id.index);
        Ok(())
    }

    /// Gives the connection up: what was sent still goes out. With bytes unread, or coming
    /// later, the peer gets a RST. The id is no longer valid.
    pub fn tcp_close(&mut self, id: TcpId) -> Result<(), Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        if flow.tcp.receive.unread() > 0 {
            flow.tcp.break_off();
        } else {
            flow.tcp.shut();
        }
        self.let_go(id)
    }

    /// The program of a connection is gone, and what it has sent is still being brought by [`Stack::tcp_send_with`]. A peer that takes
    /// nothing is waited for as behind a close.
    pub fn tcp_leave(&mut self, id: TcpId) -> Result<(), Error> {
        self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        self.leave(id);
        self.touched(id.index);
        Ok(())
    }

    /// Gives the connection up, as by a shutdown of both ways: what is unread is nobody's any more, but breaks nothing off. What comes
    /// from now on does (linux: tcp_rcv_state_process, TCP_FIN_WAIT2).
    pub fn tcp_shut_both(&mut self, id: TcpId) -> Result<(), Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        flow.tcp.abandoned = flow.tcp.receive.unread();
        flow.tcp.shut();
        self.let_go(id)
    }

    /// Breaks the connection off with a RST, behind what was sent and may go now. The id is no longer valid.
    pub fn tcp_abort(&mut self, id: TcpId) -> Result<(), Error> {
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        flow.tcp.break_off();
        self.let_go(id)
    }

    fn let_go(&mut self, id: TcpId) -> Result<(), Error> {
        self.leave(id);
        let flow = self.tcp.flow_of(id).ok_or(Error::NoSuch)?;
        flow.tcp.is_orphan = true;
        flow.listener = None;
        if flow.is_attached {
            self.touched(id.index);
        } else {
            self.free_flow(id.index);
        }
        Ok(())
    }

    /// Connections in the table, half-open ones, and those in TIME_WAIT.
    pub fn tcp_counts(&self) -> (usize, usize, usize) {
        let half_open = self.tcp.half_open.len() - self.tcp.free_half_open.len();
        let time_wait = self
            .tcp
            .table
            .values()
            .filter(|s| matches!(s, Slot::TimeWait(_)))
            .count();
        (
            self.tcp.table.len() - half_open - time_wait,
            half_open,
            time_wait,
        )
    }
}
