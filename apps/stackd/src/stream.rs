//! Sockets of TCP: connections and listeners, and the bytes between their pairs and the stack.

use crate::control::EINPROGRESS;
use crate::names;
use crate::pair::{Got, Pair};
use crate::server::{EADDRINUSE, EINVAL, Server, errno};
use crate::table::{Body, Place, Socket};
use fordway_abi::stack::{Accepted, Served, level, name};
use fordway_netstack::{
    Congestion, Error, Keepalive, ListenerId, Ready, Stack, TcpId, TcpOptions, TcpState,
};
use fordway_platform::{ipc, sockinfo};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use zerocopy::IntoBytes;

/// Pieces that a connection moves each way in one round.
const PIECES_MAX: usize = 16;
/// Connections that lie in a listener's pair; more wait in the stack. So few that the pair stays writable by its own measure (linux:
/// unix_writable), and each accept shows by an edge.
const IN_PAIR_MAX: usize = 32;
/// Half-open connections of a listener at least, before SYN cookies answer: what a cookie has brought may be lost to a client that says
/// nothing.
const HALF_OPEN_MIN: usize = 16;
/// Largest backlog (linux: net.core.somaxconn).
const BACKLOG_MAX: i32 = 4096;
/// Buffers of a connection, of which only used pages cost memory.
const RECEIVE_BYTES: usize = 1 << 20;
const SEND_BYTES: usize = 1 << 20;

const EPIPE: i32 = 32;
const EISCONN: i32 = 106;
const EALREADY: i32 = 114;
const ECONNABORTED: i32 = 103;
const ECONNREFUSED: i32 = 111;
const ENETUNREACH: i32 = 101;
const EOPNOTSUPP: i32 = 95;
const ENOTCONN: i32 = 107;

/// Which connection and which listener is whose.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// By the index of the connection.
    flows: Vec<Option<(TcpId, Place)>>,
    listeners: HashMap<ListenerId, Shared>,
}

/// A listener of the stack, which several sockets may share (SO_REUSEPORT).
#[derive(Debug)]
struct Shared {
    address: Option<IpAddr>,
    port: u16,
    members: Vec<Place>,
    /// A connection that none of them could be given, for want of a descriptor or a place.
    waits: Option<(TcpId, SocketAddr)>,
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: ListenerId,
    /// Connections that may wait for accept, here and in the stack.
    waiting_max: usize,
    /// What one connection takes of the pair's memory; 0: not known yet.
    each_bytes: usize,
}

impl Listening {
    /// Connections that lie in its pair.
    fn in_pair(&self, pair: &Pair) -> usize {
        match sockinfo::queued_memory(pair) {
            Ok(queued) => queued.checked_div(self.each_bytes).unwrap_or(0),
            Err(_) => usize::MAX,
        }
    }
}

/// A socket with a connection.
#[derive(Debug)]
pub(crate) struct Connected {
    pub id: TcpId,
    /// The program sends nothing more.
    out_is_over: bool,
    /// The far end sends nothing more, and the program knows.
    in_is_over: bool,
    /// The program has closed its end.
    is_gone: bool,
    /// The program does not want what comes.
    discards: bool,
    /// connect has told that it is there.
    was_told: bool,
    /// The program sends urgent bytes.
    has_marks: bool,
    /// Bytes that were taken from the program, and given to it.
    taken: u64,
    given: u64,
}

impl Connected {
    fn new(id: TcpId, was_told: bool) -> Connected {
        Connected {
            id,
            out_is_over: false,
            in_is_over: false,
            is_gone: false,
            discards: false,
            was_told,
            has_marks: false,
            taken: 0,
            given: 0,
        }
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Close,
    /// With bytes that are unread, and that break nothing off.
    ShutBoth,
    Break,
}

/// What becomes of a connection after its bytes were moved.
enum Fate {
    Goes,
    /// It has had its share.
    HasMore,
    /// It is over, with this error.
    Over(Option<i32>),
    /// The program has let go of it.
    Gone(End),
}

/// What became of a connection that somebody is to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handed {
    Over,
    /// There is no descriptor, memory or place for it now.
    Later,
    Lost,
}

impl Streams {
    fn enter(&mut self, id: TcpId, place: Place) {
        let index = id.index();
        if self.flows.len() <= index {
            self.flows.resize(index + 1, None);
        }
        self.flows[index] = Some((id, place));
    }

    fn place_of(&self, id: TcpId) -> Option<Place> {
        let (known, place) = (*self.flows.get(id.index())?)?;
        (known == id).then_some(place)
    }

    fn remove(&mut self, id: TcpId) {
        if let Some(entry) = self.flows.get_mut(id.index())
            && entry.is_some_and(|(known, _)| known == id)
        {
            *entry = None;
        }
    }
}

/// Of a connection by this version of IP.
fn tcp_options(socket: &Socket, is_v4: bool) -> TcpOptions {
    let options = &socket.options;
    let seconds = |name| options.get(level::TCP, name) as u64 * 1_000_000;
    let keepalive = Keepalive {
        idle_us: seconds(name::TCP_KEEPIDLE),
        interval_us: seconds(name::TCP_KEEPINTVL),
        probes: options.get(level::TCP, name::TCP_KEEPCNT) as u32,
    };
    let keeps = options.is_set(level::SOCKET, name::KEEPALIVE);
    let (hop_limit, class) = options.marks(is_v4);
    let usual = TcpOptions::default();
    let patience_ms = options.get(level::TCP, name::TCP_USER_TIMEOUT) as u64;
    TcpOptions {
        receive_bytes: options.buffer_bytes(name::RCVBUF).unwrap_or(RECEIVE_BYTES),
        send_bytes: options.buffer_bytes(name::SNDBUF).unwrap_or(SEND_BYTES),
        is_nagle: !options.is_set(level::TCP, name::TCP_NODELAY),
        keepalive: keeps.then_some(keepalive),
        user_timeout_us: match patience_ms {
            0 => usual.user_timeout_us,
            ms => ms * 1000,
        },
        congestion: Congestion::UntilLoss,
        hop_limit,
        class,
        ..usual
    }
}

/// So many of the bytes of two pieces.
fn first_of([first, second]: [&[u8]; 2], count: usize) -> [&[u8]; 2] {
    let of_first = count.min(first.len());
    let of_second = (count - of_first).min(second.len());
    [&first[..of_first], &second[..of_second]]
}

/// Moves what can be moved.
fn move_bytes(stack: &mut Stack, conn: &mut Connected, pair: &Pair, breaks_off: bool) -> Fate {
    let id = conn.id;
    let mut has_more = false;
    let mut is_broken = false;
    if !conn.out_is_over {
        has_more = true;
        for _ in 0..PIECES_MAX {
            let (mut got, mut is_urgent) = (Got::Nothing, false);
            let sent = stack.tcp_send_with(id, |room| {
                (got, is_urgent) = match conn.has_marks {
                    false => (pair.receive(room), false),
                    true => pair.receive_marked(room),
                };
                match got {
                    Got::Bytes(count) => count,
                    _ => 0,
                }
            });
            if let Got::Bytes(count) = got {
                conn.taken += count as u64;
                // What has just been put there is marked.
                if is_urgent {
                    let _ = stack.tcp_mark_urgent(id);
                }
            }
            has_more = matches!((sent, got), (Ok(_), Got::Bytes(_)));
            match (sent, got) {
                (Ok(_), Got::End) => {
                    conn.out_is_over = true;
                    // Behind a close something may lie unread: then RST goes, and no FIN.
                    conn.is_gone |= pair.is_closed();
                }
                (Ok(_), Got::Broken) => return Fate::Gone(End::Break),
                (Ok(_) | Err(Error::WouldBlock), _) => {}
                (Err(_), _) => is_broken = true,
            }
            if !has_more {
                break;
            }
        }
        if conn.out_is_over && !conn.is_gone && stack.tcp_shutdown(id).is_err() {
            is_broken = true;
        }
    }
    if conn.is_gone {
        if breaks_off && !has_more {
            return Fate::Gone(End::Break);
        }
        if conn.out_is_over || is_broken {
            // Whether all was read that had been given.
            let is_unread = pair.receive(&mut [0]) == Got::Broken;
            return Fate::Gone(match is_unread || is_broken {
                true => End::Break,
                false if pair.lies_unread() => End::ShutBoth,
                false => End::Close,
            });
        }
        if has_more {
            return Fate::HasMore;
        }
        // It is there still: what takes nothing for long ends it.
        let _ = stack.tcp_leave(id);
        return Fate::Goes;
    }
    if !conn.in_is_over {
        let mut pieces = 0;
        loop {
            let (mut was_called, mut is_full, mut has_failed) = (false, false, false);
            let mut is_short = false;
            let discards = conn.discards;
            let given = &mut conn.given;
            let before_urgent = stack.tcp_before_urgent(id);
            let taken = stack.tcp_receive_with(id, |pieces| {
                was_called = true;
                if discards {
                    return pieces.map(<[u8]>::len).iter().sum();
                }
                let sent = match before_urgent {
                    None => pair.send_pieces(pieces),
                    Some(0) => pair.send_urgent(pieces[0][0]),
                    Some(count) => pair.send_pieces(first_of(pieces, count)),
                };
                match sent {
                    Ok(count) => {
                        is_full = count == 0;
                        *given += count as u64;
                        count
                    }
                    Err(error) => {
                        let is_over = matches!(
                            error.kind(),
                            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                        );
                        (has_failed, is_short) = (is_over, !is_over);
                        0
                    }
                }
            });
            match taken {
                // The host has no memory for it now.
                Ok(_) if is_short => {
                    has_more = true;
                    break;
                }
                Ok(_) if has_failed => {
                    // It has shut its receiving side, or closed its end, which shows next.
                    if pair.is_closed() {
                        conn.is_gone = true;
                        return Fate::HasMore;
                    }
                    conn.discards = true;
                }
                Ok(_) if is_full => break,
                // What a ring has given back goes before the end: room for it is told of.
                Ok(0) if !was_called && pair.is_owed() => break,
                Ok(0) if !was_called => {
                    pair.shut();
                    conn.in_is_over = true;
                    break;
                }
                Ok(_) => {}
                Err(Error::WouldBlock) => break,
                Err(error) => return Fate::Over(Some(errno(error))),
            }
            pieces += 1;
            if pieces == PIECES_MAX {
                has_more = true;
                break;
            }
        }
    }
    if conn.in_is_over && is_broken {
        // Nothing that is read will say so any more (linux: tcp_reset in CLOSE_WAIT).
        return Fate::Over(Some(EPIPE));
    }
    match (conn.in_is_over && conn.out_is_over, has_more) {
        (true, _) => Fate::Over(None),
        (false, true) => Fate::HasMore,
        (false, false) => Fate::Goes,
    }
}

impl Server {
    /// `to` is `None` for AF_UNSPEC.
    pub(crate) fn connect_stream(
        &mut self,
        place: Place,
        to: Option<SocketAddr>,
    ) -> Result<(), i32> {
        let socket = self.table.get(place).ok_or(EINVAL)?;
        match &mut socket.body {
            Body::Listening(_) if to.is_some() => return Err(EISCONN),
            Body::Connecting(_) if to.is_some() => return Err(EALREADY),
            Body::Connected(conn) if to.is_some() => {
                return match std::mem::replace(&mut conn.was_told, true) {
                    true => Err(EISCONN),
                    false => Ok(()),
                };
            }
            Body::Over => {
                let waits = socket.error.take();
                return Err(waits.unwrap_or(ECONNABORTED));
            }
            Body::Connected(_) | Body::Connecting(_) => {
                self.end_connection(place, None, true);
                return Ok(());
            }
            _ if to.is_none() => return Ok(()),
            _ => {}
        }
        let to = to.ok_or(EINVAL)?;
        // A listener that was closed before refuses.
        self.see_ends(place, to.port());
        let socket = self.table.look(place).ok_or(EINVAL)?;
        let is_v6only = socket.options.is_set(level::IPV6, name::V6ONLY);
        if to.is_ipv4() && socket.is_inet6 && is_v6only || to.ip().is_multicast() {
            return Err(ENETUNREACH);
        }
        if to.port() == 0 {
            return Err(ECONNREFUSED);
        }
        let local = socket.bound.map(|bound| {
            let address = match bound.address.is_ipv4() == to.is_ipv4() {
                true => bound.address,
                false => names::any(to.is_ipv6()),
            };
            SocketAddr::new(address, bound.port)
        });
        let options = tcp_options(socket, to.is_ipv4());
        let now = self.now();
        let id = self
            .stack
            .tcp_connect(now, to, local, options)
            .map_err(|error| match error {
                Error::Unreachable => ENETUNREACH,
                Error::AddressInUse => crate::server::EADDRNOTAVAIL,
                error => errno(error),
            })?;
        self.streams.enter(id, place);
        let names = self.stack.tcp_names(id).ok();
        if let Some(socket) = self.table.get(place) {
            socket.local = names.map(|(local, _)| local);
            socket.remote = Some(to);
            socket.body = Body::Connecting(id);
        }
        Err(EINPROGRESS)
    }

    pub(crate) fn listen(&mut self, place: Place, backlog: i32) -> Result<(), i32> {
        let socket = self.table.get(place).ok_or(EINVAL)?;
        // A negative one is the largest (linux: inet_listen compares without sign).
        let backlog = if backlog < 0 {
            BACKLOG_MAX
        } else {
            backlog.min(BACKLOG_MAX)
        };
        // One more than is asked for may wait (linux: sk_acceptq_is_full).
        let waiting_max = backlog as usize + 1;
        match &mut socket.body {
            Body::Idle => {}
            Body::Listening(listening) => {
                listening.waiting_max = waiting_max;
                let listener = listening.listener;
                self.take_connections(listener);
                return Ok(());
            }
            Body::Datagrams => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        }
        self.bind_if_needed(place)?;
        let bound = self.table.look(place).and_then(|socket| socket.bound);
        let bound = bound.ok_or(EINVAL)?;
        if !self.is_free(place, &bound) {
            return Err(EADDRINUSE);
        }
        let socket = self.table.look(place).ok_or(EINVAL)?;
        let (address, port) = (bound.address_of_stack(), bound.port);
        let options = tcp_options(socket, !socket.is_inet6);
        let mut known = self.streams.listeners.iter_mut();
        let shared = known.find(|(_, shared)| (shared.address, shared.port) == (address, port));
        let listener = match shared {
            Some((listener, shared)) => {
                shared.members.push(place);
                *listener
            }
            None => {
                let half_open_max = waiting_max.max(HALF_OPEN_MIN);
                let made = self.stack.tcp_listen(address, port, half_open_max, options);
                let listener = made.map_err(errno)?;
                let members = vec![place];
                let shared = Shared {
                    address,
                    port,
                    members,
                    waits: None,
                };
                self.streams.listeners.insert(listener, shared);
                listener
            }
        };
        if let Some(socket) = self.table.get(place) {
            socket.body = Body::Listening(Listening {
                listener,
                waiting_max,
                each_bytes: 0,
            });
        }
        self.set_queue(listener);
        Ok(())
    }

    fn unlisten(&mut self, place: Place) {
        let socket = self.table.look(place).map(|socket| &socket.body);
        let Some(Body::Listening(listening)) = socket else {
            return;
        };
        let listener = listening.listener;
        if let Some(shared) = self.streams.listeners.get_mut(&listener) {
            shared.members.retain(|member| *member != place);
            if shared.members.is_empty() {
                if let Some((id, _)) = shared.waits.take() {
                    let _ = self.stack.tcp_abort(id);
                }
                self.streams.listeners.remove(&listener);
                // It is there: nobody else ends it.
                let _ = self.stack.tcp_unlisten(listener);
            } else {
                self.set_queue(listener);
            }
        }
    }

    /// Whether a listener's pair has room for one more connection.
    fn has_room(&self, place: Place) -> bool {
        let Some(socket) = self.table.look(place) else {
            return false;
        };
        let (Body::Listening(listening), Some(pair)) = (&socket.body, &socket.pair) else {
            return false;
        };
        listening.in_pair(pair) < listening.waiting_max.min(IN_PAIR_MAX)
    }

    /// Has the stack take so many connections more as backlogs leave room for.
    fn set_queue(&mut self, listener: ListenerId) {
        let Some(shared) = self.streams.listeners.get(&listener) else {
            return;
        };
        let room_of = |place: &Place| {
            let socket = self.table.look(*place)?;
            let (Body::Listening(listening), Some(pair)) = (&socket.body, &socket.pair) else {
                return None;
            };
            Some(
                listening
                    .waiting_max
                    .saturating_sub(listening.in_pair(pair)),
            )
        };
        let room: usize = shared.members.iter().filter_map(room_of).sum();
        let room = room.saturating_sub(usize::from(shared.waits.is_some()));
        // It is there as long as it has members.
        let _ = self.stack.tcp_set_queue(listener, room);
    }

    /// Hands connections to those who listen.
    pub(crate) fn take_connections(&mut self, listener: ListenerId) {
        self.hand_out(listener);
        self.set_queue(listener);
    }

    fn hand_out(&mut self, listener: ListenerId) {
        loop {
            let Some(shared) = self.streams.listeners.get(&listener) else {
                return;
            };
            let ready: Vec<_> = match shared.members.as_slice() {
                [only] => self.has_room(*only).then_some(*only).into_iter().collect(),
                all => all
                    .iter()
                    .copied()
                    .filter(|place| self.has_room(*place))
                    .collect(),
            };
            if ready.is_empty() {
                return;
            }
            let Some(shared) = self.streams.listeners.get_mut(&listener) else {
                return;
            };
            let accepted = shared.waits.take();
            let Some((id, remote)) = accepted.or_else(|| self.stack.tcp_accept(listener).ok())
            else {
                return;
            };
            // One whose process has its share, say, leaves it to the next one.
            let first = usize::from(remote.port()).wrapping_mul(0x9e37) >> 3;
            let handed = (0..ready.len())
                .map(|step| ready[(first + step) % ready.len()])
                .map(|place| self.hand_over(place, id, remote))
                .find(|handed| *handed != Handed::Later);
            if handed.is_none() {
                if let Some(shared) = self.streams.listeners.get_mut(&listener) {
                    shared.waits = Some((id, remote));
                }
                return self.short();
            }
        }
    }

    /// Hands over what could not be handed over before.
    pub(crate) fn take_waiting(&mut self) {
        let listeners = self.streams.listeners.iter();
        let waiting: Vec<_> = listeners
            .filter(|(_, shared)| shared.waits.is_some())
            .map(|(listener, _)| *listener)
            .collect();
        for listener in waiting {
            self.take_connections(listener);
        }
    }

    fn hand_over(&mut self, place: Place, id: TcpId, remote: SocketAddr) -> Handed {
        let handed = self
            .try_hand_over(place, id, remote)
            .unwrap_or(Handed::Lost);
        if handed == Handed::Lost {
            // As Linux does when a connection cannot be had: the far end sees it broken.
            let _ = self.stack.tcp_abort(id);
        }
        handed
    }

    fn try_hand_over(&mut self, place: Place, id: TcpId, remote: SocketAddr) -> Option<Handed> {
        let local = self.stack.tcp_names(id).ok()?.0;
        let socket = self.table.look(place)?;
        let (is_inet6, options, owner) = (socket.is_inet6, socket.options.clone(), socket.owner?);
        let body = Body::Connected(Connected::new(id, true));
        let Some((new, theirs)) = self.add_socket(owner, is_inet6, body, options) else {
            return Some(Handed::Later);
        };
        let accepted = Accepted {
            local: names::write(local, is_inet6),
            remote: names::write(remote, is_inet6),
        };
        let pair = self.table.look(place)?.pair.as_ref()?;
        let sent = ipc::send(pair, accepted.as_bytes(), &[theirs.as_fd()]);
        let queued = sockinfo::queued_memory(pair).unwrap_or(0);
        if let Err(error) = sent {
            self.table.remove(new.index);
            let is_over = matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            );
            return Some(if is_over { Handed::Lost } else { Handed::Later });
        }
        if let Some(socket) = self.table.get(place)
            && let Body::Listening(listening) = &mut socket.body
            && listening.each_bytes == 0
        {
            // Nothing, if it was accepted at once.
            listening.each_bytes = queued;
        }
        let socket = self.table.get(new.index)?;
        (socket.local, socket.remote) = (Some(local), Some(remote));
        self.streams.enter(id, new.index);
        self.apply_options(new.index);
        self.tell_served(new.index);
        self.put_off(new.index);
        Some(Handed::Over)
    }

    pub(crate) fn flow_event(&mut self, id: TcpId, ready: Ready) {
        let Some(place) = self.streams.place_of(id) else {
            return;
        };
        match self.table.look(place).map(|socket| &socket.body) {
            Some(Body::Connecting(own)) if *own == id => {}
            Some(Body::Connected(conn)) if conn.id == id => return self.pump(place),
            // The place is another socket's now.
            _ => return,
        }
        if ready.is_connected {
            return self.made(place, id);
        }
        if ready.is_closed || self.stack.tcp_state(id) == Ok(TcpState::Closed) {
            let why = match self.stack.tcp_receive_with(id, |_| 0) {
                Err(error) if error != Error::WouldBlock => errno(error),
                _ => ECONNREFUSED,
            };
            self.end_connection(place, Some(why), true);
        }
    }

    /// A connection was made.
    fn made(&mut self, place: Place, id: TcpId) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        let names = self.stack.tcp_names(id).ok();
        (socket.local, socket.remote) = (names.map(|names| names.0), names.map(|names| names.1));
        socket.body = Body::Connected(Connected::new(id, false));
        // Before the library sees the first byte.
        self.tell_served(place);
        let pair = self
            .table
            .look(place)
            .and_then(|socket| socket.pair.as_ref());
        if !pair.is_some_and(Pair::pull_plug) {
            // Nobody but the program can have taken it, and it cannot.
            return self.end_connection(place, Some(ECONNABORTED), true);
        }
        self.pump(place);
    }

    pub(crate) fn stream_event(&mut self, place: Place, is_gone: bool) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        match &mut socket.body {
            Body::Listening(listening) if !is_gone => {
                let listener = listening.listener;
                self.take_connections(listener);
            }
            Body::Listening(_) => {
                self.unlisten(place);
                self.forget(place);
            }
            Body::Connecting(id) if is_gone => {
                let id = *id;
                self.let_go(place, id, End::Break);
            }
            Body::Connected(conn) => {
                conn.is_gone |= is_gone;
                self.pump(place);
            }
            _ => {}
        }
    }

    pub(crate) fn pump(&mut self, place: Place) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        let breaks_off = socket.options.linger_s == Some(0);
        let (Body::Connected(conn), Some(pair)) = (&mut socket.body, &socket.pair) else {
            return;
        };
        let id = conn.id;
        match move_bytes(&mut self.stack, conn, pair, breaks_off) {
            Fate::Goes => {}
            Fate::HasMore => self.put_off(place),
            Fate::Over(error) => self.end_connection(place, error, error.is_some()),
            Fate::Gone(end) => self.let_go(place, id, end),
        }
    }

    fn end_flow(&mut self, id: TcpId, end: End) {
        self.streams.remove(id);
        // It is ours, and ends here only.
        let _ = match end {
            End::Break => self.stack.tcp_abort(id),
            End::Close => self.stack.tcp_close(id),
            End::ShutBoth => self.stack.tcp_shut_both(id),
        };
    }

    /// The program has closed its end, or shut both ways: then it may still ask about the socket.
    fn let_go(&mut self, place: Place, id: TcpId, end: End) {
        self.end_flow(id, end);
        self.keep(place);
    }

    /// A socket is over; what may be asked about it is kept.
    fn keep(&mut self, place: Place) {
        self.unbind(place);
        if let Some(socket) = self.table.get(place) {
            (socket.body, socket.remote, socket.pair) = (Body::Over, None, None);
            self.table.keep_over(place);
        }
    }

    /// A connection is over before the program has closed its end.
    fn end_connection(&mut self, place: Place, error: Option<i32>, breaks: bool) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        let Some(id) = socket.body.flow() else {
            return;
        };
        socket.error = error;
        self.end_flow(id, if breaks { End::Break } else { End::Close });
        self.keep(place);
    }

    /// Has a connection, or a listener, heed what was set.
    pub(crate) fn apply_options(&mut self, place: Place) {
        let Some(socket) = self.table.look(place) else {
            return;
        };
        let is_v4 = socket.remote.map_or(!socket.is_inet6, |to| to.is_ipv4());
        let options = tcp_options(socket, is_v4);
        // What is over heeds nothing.
        let _ = match (&socket.body, socket.body.flow()) {
            (Body::Listening(listening), _) => {
                self.stack.tcp_set_listener(listening.listener, options)
            }
            (_, Some(id)) => self.stack.tcp_set_options(id, options),
            _ => Ok(()),
        };
    }

    /// Bytes that the far end has not acknowledged, and those of them that were not sent yet, in the pair or behind it.
    pub(crate) fn unsent_bytes(&mut self, place: Place) -> Option<(usize, usize)> {
        let socket = self.table.look(place)?;
        let in_pair = socket.pair.as_ref().map_or(0, Pair::unread_bytes);
        match &socket.body {
            Body::Connected(conn) => {
                let known = self.stack.tcp_info(conn.id);
                let in_stack = known.map_or((0, 0), |info| (info.unacked_bytes, info.unsent_bytes));
                Some((in_pair + in_stack.0, in_pair + in_stack.1))
            }
            Body::Listening(_) => None,
            _ => Some((0, 0)),
        }
    }

    /// See `fordway_abi::stack::Operation::Urgent`.
    pub(crate) fn heed_marks(&mut self, place: Place) {
        if let Some(socket) = self.table.get(place)
            && let Body::Connected(conn) = &mut socket.body
        {
            conn.has_marks = true;
        }
    }

    /// See `fordway_abi::stack::Operation::Positions`.
    pub(crate) fn positions(&mut self, place: Place) -> Result<[u64; 3], i32> {
        let socket = self.table.look(place).ok_or(ENOTCONN)?;
        let (Body::Connected(conn), Some(pair)) = (&socket.body, &socket.pair) else {
            return Err(ENOTCONN);
        };
        // First: behind it the library has given up a channel that is over, whose bytes would count as unread.
        let is_owed = pair.is_owed();
        let sent = conn.taken + pair.unread_bytes() as u64;
        Ok([sent, conn.given, is_owed.into()])
    }

    /// Has the library put a connection's names into what it tells the broker of the pair: the far end may be a program, too.
    fn tell_served(&self, place: Place) {
        if let Some(socket) = self.table.look(place)
            && let (Some(local), Some(remote)) = (socket.local, socket.remote)
            && let Some(pair) = &socket.pair
        {
            let ip = |name: SocketAddr| match name.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            pair.serve(&Served {
                local_ip: ip(local),
                remote_ip: ip(remote),
                local_port: local.port(),
                remote_port: remote.port(),
            });
        }
    }

    /// What one segment takes (TCP_MAXSEG of a connection). Without one it is what the program has set.
    pub(crate) fn segment_bytes(&mut self, place: Place) -> Option<u32> {
        let id = match &self.table.look(place)?.body {
            Body::Connected(conn) => conn.id,
            _ => return None,
        };
        let info = self.stack.tcp_info(id).ok()?;
        Some(info.mss_bytes as u32)
    }
}
