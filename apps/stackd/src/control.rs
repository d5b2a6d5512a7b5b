//! The control connections: requests of programs' libraries, one packet each, answered in order.
//!
//! Whoever breaks the protocol, or does not take its answers, loses its connection. Who commands a socket has to know its key.

use crate::names;
use crate::server::{Server, Work};
use crate::shares::{Owner, Shares};
use crate::table::{Body, Place};
use fordway_abi::stack::{
    Answer, DATAGRAM, GOT_BYTES_MAX, INET, INET6, Id, Name, Operation, REQUEST_MAGIC, Request,
    SET_BYTES_MAX, STREAM, level, name, state,
};
use fordway_platform::ipc::{self, ReceiveError};
use fordway_platform::{process, sockinfo};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Requests that a connection has in one round.
const REQUESTS_MAX: usize = 32;
/// Control connections at one time.
const CLIENTS_MAX: usize = 4096;

const EPERM: i32 = 1;
const EPIPE: i32 = 32;
pub(crate) const EINPROGRESS: i32 = 115;
const EINVAL: i32 = 22;
const EAFNOSUPPORT: i32 = 97;
const ENOBUFS: i32 = 105;
const ENOTCONN: i32 = 107;
const ETOOMANYREFS: i32 = 109;
const ESTALE: i32 = 116;
const ENOPROTOOPT: i32 = 92;
const EPROTONOSUPPORT: i32 = 93;

/// The connections, by the places that are their tokens.
#[derive(Debug)]
pub(crate) struct Clients {
    all: Vec<Option<(OwnedFd, Owner)>>,
    free: Vec<usize>,
    shares: Shares,
}

impl Default for Clients {
    fn default() -> Self {
        Clients {
            all: Vec::new(),
            free: Vec::new(),
            shares: Shares::new(CLIENTS_MAX),
        }
    }
}

impl Clients {
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        })
    }
}

impl Server {
    /// Takes new control connections.
    pub(crate) fn accept_clients(&mut self) {
        for _ in 0..REQUESTS_MAX {
            let client = match ipc::accept(&self.control) {
                Ok(client) => client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // No descriptor, say, or the one that waited has gone.
                Err(_) => return self.short(),
            };
            // Another domain's program, or the host's, has no sockets here.
            let is_ours = sockinfo::netns_cookie(&client).is_ok_and(|of| of == self.netns_cookie);
            let owner = process::peer_pid(&client).unwrap_or(0);
            if !is_ours || !self.clients.shares.has_room(owner) {
                continue;
            }
            let place = self.clients.place();
            if self.watch_client(&client, place).is_err() {
                self.clients.free.push(place);
                continue;
            }
            self.clients.all[place] = Some((client, owner));
            self.clients.shares.take(owner);
            // What it has said already is no edge.
            self.unfinished.push_back(Work::Client(place));
        }
        self.unfinished.push_back(Work::Control);
    }

    /// Answers a connection's requests.
    pub(crate) fn serve_client(&mut self, place: usize) {
        for _ in 0..REQUESTS_MAX {
            let Some(Some((client, owner))) = self.clients.all.get(place) else {
                return;
            };
            let owner = *owner;
            let mut bytes = [0; size_of::<Request>()];
            let packet = match ipc::receive(client, &mut bytes, 0) {
                Ok(packet) => packet,
                Err(ReceiveError::Empty) => return,
                Err(_) => return self.drop_client(place),
            };
            let request = match packet.len == bytes.len() {
                true => Request::read_from_bytes(&bytes).ok(),
                false => None,
            };
            let request = request.filter(|request| request.magic == REQUEST_MAGIC);
            let operation = request.and_then(|request| Operation::from_u32(request.operation));
            let (Some(request), Some(operation)) = (request, operation) else {
                return self.drop_client(place);
            };
            let mut answer = Answer::new_zeroed();
            let fd = match self.answer(owner, operation, &request, &mut answer) {
                Ok(fd) => fd,
                Err(error) => {
                    answer.error = error;
                    None
                }
            };
            let Some(Some((client, _))) = self.clients.all.get(place) else {
                return;
            };
            let borrowed: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let mut sent = ipc::send(client, answer.as_bytes(), &borrowed);
            if sent
                .as_ref()
                .is_err_and(|error| error.raw_os_error() == Some(ETOOMANYREFS))
            {
                // More descriptors are on their way than there may be.
                answer.error = ENOBUFS;
                sent = ipc::send(client, answer.as_bytes(), &[]);
            }
            if sent.is_err() {
                return self.drop_client(place);
            }
        }
        self.unfinished.push_back(Work::Client(place));
    }

    fn drop_client(&mut self, place: usize) {
        if let Some((client, owner)) = self.clients.all[place].take() {
            self.clients.shares.give_back(owner);
            // Closing it takes it out of the epoll instance: nobody has a copy.
            drop(client);
            self.clients.free.push(place);
        }
    }

    /// Carries a request out. `Err` is the answer's errno.
    fn answer(
        &mut self,
        owner: Owner,
        operation: Operation,
        request: &Request,
        answer: &mut Answer,
    ) -> Result<Option<OwnedFd>, i32> {
        if operation == Operation::Open {
            return self.open(owner, request, answer).map(Some);
        }
        let place = match self.table.find(request.id) {
            Some(place) if self.is_held(place, request) => place,
            // Who knows its name only does not have it.
            Some(_) => return Err(EPERM),
            // It ended well, or its error was taken: of one that ended otherwise more is kept, for a while.
            None if operation == Operation::TakeError && request.id.epoch == self.table.epoch => {
                answer.length = 4;
                return Ok(None);
            }
            None => return Err(ESTALE),
        };
        let of = (request.first, request.second);
        let value = &request.value[..(request.length as usize).min(SET_BYTES_MAX)];
        let mut got = Vec::new();
        let done = match operation {
            Operation::Open => Err(EINVAL),
            Operation::Bind => {
                let socket = self.table.get(place).ok_or(ESTALE)?;
                if let Some((id, key)) = value.split_first_chunk::<{ size_of::<Id>() }>()
                    && let Ok(key) = key.try_into().map(u64::from_ne_bytes)
                {
                    (socket.former, socket.key) = (Some((*id, key)), key);
                }
                self.bind(place, &request.name)
            }
            Operation::Listen => self.listen(place, request.first),
            Operation::Connect => self.connect(place, &request.name),
            Operation::Names => {
                self.catch_up(place);
                Ok(())
            }
            Operation::SetOption => self.set_option(place, of, value),
            Operation::GetOption => self.get_option(place, of).map(|value| got = value),
            Operation::TakeError => {
                let socket = self.table.get(place).ok_or(ESTALE)?;
                // linux: tcp_recvmsg looks for the end before it looks for an error.
                let is_told = |error: &mut i32| request.first == 0 || *error != EPIPE;
                let error = socket.error.take_if(is_told).unwrap_or(0);
                got = error.to_ne_bytes().to_vec();
                Ok(())
            }
            Operation::Unsent => self.unsent(place).map(|(all, unsent)| {
                got.extend((all as u32).to_ne_bytes());
                got.extend((unsent as u32).to_ne_bytes());
            }),
            Operation::Positions => self.positions_of(place).map(|all| {
                got.extend_from_slice(all.as_bytes());
            }),
            Operation::Urgent => {
                #[cfg(feature = "tcp")]
                self.heed_marks(place);
                Ok(())
            }
        };
        got.truncate(GOT_BYTES_MAX);
        answer.value[..got.len()].copy_from_slice(&got);
        answer.length = got.len() as u32;
        self.describe(place, answer);
        done.map(|()| None)
    }

    /// Family, names and state of a socket.
    fn describe(&mut self, place: Place, answer: &mut Answer) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        answer.family = if socket.is_inet6 { INET6 } else { INET };
        answer.kind = if socket.is_stream() { STREAM } else { DATAGRAM } as u16;
        answer.state = match &socket.body {
            Body::Idle => state::IDLE,
            #[cfg(feature = "tcp")]
            Body::Listening(_) => state::LISTENING,
            #[cfg(feature = "tcp")]
            Body::Connecting(_) => state::CONNECTING,
            #[cfg(feature = "tcp")]
            Body::Connected(_) => state::CONNECTED,
            Body::Over => state::OVER,
            Body::Datagrams if socket.remote.is_some() => state::CONNECTED,
            Body::Datagrams => state::IDLE,
        };
        let bound = socket
            .bound
            .map(|bound| std::net::SocketAddr::new(bound.address, bound.port));
        let unbound = std::net::SocketAddr::new(names::any(socket.is_inet6), 0);
        let local = socket.local.or(bound).unwrap_or(unbound);
        answer.local = names::write(local, socket.is_inet6);
        if let Some(remote) = socket.remote {
            answer.remote = names::write(remote, socket.is_inet6);
        }
    }

    /// Whether who asks has the socket's descriptor.
    fn is_held(&self, place: Place, request: &Request) -> bool {
        let socket = self.table.look(place);
        socket.is_some_and(|socket| socket.key == request.key)
    }

    fn open(
        &mut self,
        owner: Owner,
        request: &Request,
        answer: &mut Answer,
    ) -> Result<OwnedFd, i32> {
        let is_inet6 = match request.first {
            family if family == i32::from(INET) => false,
            family if family == i32::from(INET6) && cfg!(feature = "ipv6") && self.serves_ipv6 => {
                true
            }
            _ => return Err(EAFNOSUPPORT),
        };
        let body = match request.second as u32 {
            STREAM if cfg!(feature = "tcp") && self.serves_tcp => Body::Idle,
            DATAGRAM if cfg!(feature = "udp") && self.serves_udp => Body::Datagrams,
            _ => return Err(EPROTONOSUPPORT),
        };
        // It takes the place of another one.
        let former = self.table.find(request.id);
        let former = former.filter(|place| self.is_held(*place, request));
        let former = former.and_then(|place| self.table.look(place));
        let options = former.map(|former| former.options.clone());
        let (id, fd) = self
            .add_socket(owner, is_inet6, body, options.unwrap_or_default())
            .ok_or(ENOBUFS)?;
        self.describe(id.index, answer);
        Ok(fd)
    }

    fn bind(&mut self, place: Place, name: &Name) -> Result<(), i32> {
        let wanted = names::read(name).ok_or(EINVAL)?;
        self.bind_to(place, wanted)
    }

    fn set_option(&mut self, place: Place, of: (i32, i32), value: &[u8]) -> Result<(), i32> {
        #[cfg(feature = "udp")]
        let done = self.set_group_option(place, of, value);
        #[cfg(not(feature = "udp"))]
        let done = None;
        let set_plain = |server: &mut Server| {
            let socket = server.table.get(place).ok_or(ESTALE)?;
            crate::options::set(socket, of, value)
        };
        done.unwrap_or_else(|| set_plain(self))?;
        #[cfg(feature = "tcp")]
        self.apply_options(place);
        #[cfg(feature = "udp")]
        self.apply_datagram_options(place);
        Ok(())
    }

    fn get_option(&mut self, place: Place, of: (i32, i32)) -> Result<Vec<u8>, i32> {
        #[cfg(feature = "tcp")]
        if of == (level::TCP, name::TCP_INFO) {
            return self.tcp_info(place);
        }
        #[cfg(feature = "tcp")]
        if of == (level::TCP, name::TCP_MAXSEG)
            && let Some(bytes) = self.segment_bytes(place)
        {
            return Ok(bytes.to_ne_bytes().to_vec());
        }
        let socket = self.table.look(place).ok_or(ESTALE)?;
        let kept = crate::options::get(socket, of)?;
        #[cfg(feature = "udp")]
        match of {
            of if crate::groups::is_order(of) => return Err(ENOPROTOOPT),
            (level::IP, name::IP_MULTICAST_IF) => return Ok(crate::groups::interface_of(socket)),
            _ => {}
        }
        if let (level::IP, name::IP_MTU) | (level::IPV6, name::IPV6_MTU) = of {
            // Linux says it of the path to the far end, of whatever family.
            let to = socket.remote.ok_or(ENOTCONN)?.ip().to_canonical();
            return Ok((self.stack.path_mtu(&to) as u32).to_ne_bytes().to_vec());
        }
        Ok(kept)
    }

    /// Makes what the program has sent before it asked be true.
    fn catch_up(&mut self, place: Place) {
        #[cfg(feature = "udp")]
        if let Some(socket) = self.table.look(place)
            && !socket.is_stream()
            && socket.bound.is_none()
        {
            self.send_datagrams(place, true);
        }
    }

    fn positions_of(&mut self, place: Place) -> Result<[u64; 3], i32> {
        #[cfg(feature = "tcp")]
        return self.positions(place);
        #[cfg(not(feature = "tcp"))]
        Err(ENOTCONN)
    }

    fn unsent(&mut self, place: Place) -> Result<(usize, usize), i32> {
        #[cfg(feature = "tcp")]
        return self.unsent_bytes(place).ok_or(EINVAL);
        #[cfg(not(feature = "tcp"))]
        Err(EINVAL)
    }

    #[cfg(not(feature = "tcp"))]
    fn listen(&mut self, _place: Place, _backlog: i32) -> Result<(), i32> {
        Err(95)
    }

    fn connect(&mut self, place: Place, name: &Name) -> Result<(), i32> {
        let socket = self.table.look(place).ok_or(ESTALE)?;
        let to = names::read(name);
        if to.is_some_and(|to| to.is_ipv6() && !socket.is_inet6) {
            return Err(EAFNOSUPPORT);
        }
        let to = to.map(names::destination);
        match socket.is_stream() {
            #[cfg(feature = "tcp")]
            true => self.connect_stream(place, to),
            #[cfg(feature = "udp")]
            false => self.connect_datagrams(place, to),
            #[allow(unreachable_patterns)]
            _ => Err(EPROTONOSUPPORT),
        }
    }
}
