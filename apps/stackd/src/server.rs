//! The loop: what shows in the epoll instance, what is unfinished, what the stack has to tell and to send.

use crate::bound::{Bound, Ports};
use crate::config::Config;
use crate::control::Clients;
#[cfg(feature = "udp")]
use crate::datagram::Left;
use crate::names;
use crate::options::Options;
use crate::orders;
use crate::pair::Pair;
use crate::port;
use crate::shares::Owner;
use crate::table::{Body, Place, Socket, Table};
use anyhow::{Context, Result};
use fordway_abi::stack::{Id, level, name};
use fordway_driver::Port;
use fordway_netstack::{Config as StackConfig, Error, Event, HEAD_BYTES_MIN, Stack};
use fordway_platform::ipc::{self, Kind};
use fordway_platform::sockinfo;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::SockRef;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bursts of frames that are taken before others have their turn.
const BURSTS_MAX: usize = 4;
/// Rounds of events and frames between two looks at the epoll instance.
const ROUNDS_MAX: usize = 8;
/// How long a port without room is left alone, if it does not say when it has some.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// A port that has had no room for so long stands still.
const STUCK: Duration = Duration::from_millis(100);
/// How long before what there was no descriptor for is tried again.
const SHORT_WAIT: Duration = Duration::from_millis(10);

/// Buffers of all connections. A third of what the process may have: growing, a buffer is there twice.
const BUFFER_BYTES_MAX: usize = 512 << 20;

const PORT: Token = Token(usize::MAX - 1);
const CONTROL: Token = Token(usize::MAX - 2);
const ORDERS: Token = Token(usize::MAX - 3);
/// Tokens of control connections begin here; those of sockets are their places.
const CLIENTS: usize = 1 << 40;

pub(crate) const EINVAL: i32 = 22;
pub(crate) const EADDRINUSE: i32 = 98;
pub(crate) const EADDRNOTAVAIL: i32 = 99;
const EAFNOSUPPORT: i32 = 97;

/// Who has had its share of a round and has more to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Control,
    Client(usize),
    Socket(Place),
}

/// The whole.
pub struct Server {
    pub(crate) stack: Stack,
    pub(crate) table: Table,
    pub(crate) control: OwnedFd,
    /// Who gives orders, if anybody does.
    pub(crate) broker: Option<orders::Broker>,
    /// Whose programs are served.
    pub(crate) netns_cookie: u64,
    pub(crate) serves_tcp: bool,
    pub(crate) serves_udp: bool,
    pub(crate) serves_ipv6: bool,
    pub(crate) clients: Clients,
    pub(crate) unfinished: VecDeque<Work>,
    pub(crate) tcp_ports: Ports,
    pub(crate) udp_ports: Ports,
    #[cfg(feature = "tcp")]
    pub(crate) streams: crate::stream::Streams,
    #[cfg(feature = "udp")]
    pub(crate) datagrams: crate::datagram::Datagrams,
    /// Addresses that another host has, and that were told of.
    #[cfg(feature = "ipv6")]
    pub(crate) taken_addresses: Vec<IpAddr>,
    port: Port,
    poll: Poll,
    began: Instant,
    /// Something could not be taken for want of a descriptor or a place: when it is tried again.
    again_at: Option<Instant>,
    /// The broker has said something that is to be heard when the next round begins: to compile rules takes long, and nothing of this
    /// round, knocks at programs least of all, is to wait for it.
    pub(crate) has_orders: bool,
    /// Since when the port has had no room for more.
    full_since: Option<Instant>,
    has_frames: bool,
}

/// An errno for what the stack says.
pub(crate) fn errno(error: Error) -> i32 {
    match error {
        Error::WouldBlock => 11,
        Error::NoSuch | Error::Reset => 104,
        Error::Refused => 111,
        Error::TimedOut => 110,
        Error::Unreachable | Error::HostUnreachable => 113,
        Error::Denied => 13,
        Error::Protocol => 92,
        Error::NotConnected => 107,
        Error::Pipe => 32,
        Error::AddressInUse => EADDRINUSE,
        Error::AddressNotAvailable => EADDRNOTAVAIL,
        Error::Full => 105,
        Error::TooLong => 90,
    }
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// As many descriptors as there may be.
fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // With fewer, sockets are refused sooner.
    let _ = setrlimit(Resource::Nofile, all);
}

impl Server {
    /// Makes the stack and listens on the control socket.
    pub fn new(config: &Config, port: Port) -> Result<Server> {
        config.check_protocols()?;
        raise_limit();
        let mut stack_config = StackConfig::new(config.mac()?, random()?);
        stack_config.link.mtu_bytes = config.mtu_bytes;
        stack_config.link.offloads = port::OFFLOADS;
        stack_config.limits.flows_max = stack_config.limits.flows_max.max(config.sockets_max);
        // Those that peers keep from ending leave most of the sockets to others.
        stack_config.limits.left_max = config.sockets_max / 4;
        stack_config.limits.tcp_buffer_bytes_max = BUFFER_BYTES_MAX;
        let mut stack = Stack::new(stack_config);
        let began = Instant::now();
        #[cfg(feature = "ipv6")]
        crate::six::begin(&mut stack, config, 1)?;
        #[cfg(not(feature = "ipv6"))]
        stack.set_addresses(&config.addresses()?);
        stack.set_routes(&config.routes()?);
        let control = ipc::listen(&config.control_socket, Kind::Packets, 0o666)
            .with_context(|| format!("{}", config.control_socket.display()))?;
        // Those that come nevertheless, by an older kernel, end their connection.
        let _ = sockinfo::refuse_descriptors(&control);
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(
            &mut SourceFd(&control.as_raw_fd()),
            CONTROL,
            Interest::READABLE,
        )?;
        let broker = orders::Broker::of(config)?;
        if let Some(broker) = &broker {
            let own = broker.own.as_raw_fd();
            let both = Interest::READABLE | Interest::WRITABLE;
            registry.register(&mut SourceFd(&own), ORDERS, both)?;
        }
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut SourceFd(&port.as_fd().as_raw_fd()), PORT, both)?;
        let mut server = Server {
            stack,
            table: Table::new(random()?, config.sockets_max),
            control,
            broker,
            netns_cookie: config.netns_cookie,
            serves_tcp: config.serves("tcp"),
            serves_udp: config.serves("udp"),
            serves_ipv6: config.serves("ipv6"),
            clients: Clients::default(),
            unfinished: VecDeque::new(),
            tcp_ports: Ports::default(),
            udp_ports: Ports::default(),
            #[cfg(feature = "tcp")]
            streams: Default::default(),
            #[cfg(feature = "udp")]
            datagrams: Default::default(),
            #[cfg(feature = "ipv6")]
            taken_addresses: Vec::new(),
            port,
            poll,
            began,
            again_at: None,
            has_orders: false,
            full_since: None,
            has_frames: true,
        };
        // Before the first frame.
        server.take_orders();
        Ok(server)
    }

    /// Serves for ever.
    pub fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            let patience = self.patience();
            // Whoever does not sleep is not knocked at: the port is looked at in each round then.
            let is_full = self.full_since.is_some();
            let may_sleep = patience != Some(Duration::ZERO) && self.port.may_sleep(is_full);
            let patience = if may_sleep {
                patience
            } else {
                Some(Duration::ZERO)
            };
            self.has_frames |= !may_sleep;
            match self.poll.poll(&mut events, patience) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            self.port.awake();
            if std::mem::take(&mut self.has_orders) {
                self.take_orders();
            }
            for event in &events {
                match event.token() {
                    PORT => {
                        self.port.woken()?;
                        self.has_frames = true;
                    }
                    CONTROL => self.accept_clients(),
                    ORDERS => self.has_orders = true,
                    Token(at) if at >= CLIENTS => self.serve_client(at - CLIENTS),
                    Token(at) => self.pair_event(at as Place, event.is_write_closed()),
                }
            }
            self.try_again();
            for _ in 0..self.unfinished.len() {
                match self.unfinished.pop_front() {
                    Some(Work::Control) => self.accept_clients(),
                    Some(Work::Client(place)) => self.serve_client(place),
                    Some(Work::Socket(place)) => self.go_on(place),
                    None => break,
                }
            }
            self.take_frames()?;
            for _ in 0..ROUNDS_MAX {
                self.heed_stack();
                if !self.send_frames()? {
                    break;
                }
            }
            #[cfg(feature = "udp")]
            self.release_datagrams();
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64 + 1
    }

    fn patience(&self) -> Option<Duration> {
        if !self.unfinished.is_empty()
            || self.has_orders
            || self.has_frames
            || self.stack.has_events()
        {
            return Some(Duration::ZERO);
        }
        if self.full_since.is_some() {
            return Some(FULL_WAIT);
        }
        let due = self.stack.poll_at();
        let due = due.map(|at| Duration::from_micros(at.saturating_sub(self.now())));
        let again = self.again_at;
        let again = again.map(|at| at.saturating_duration_since(Instant::now()));
        due.into_iter().chain(again).min()
    }

    /// Whether what has no room waits for it. Not for ever: behind a driver that stands still, datagrams are lost, as in a full queue
    /// of a device; those to the own addresses are not.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.full_since.is_none_or(|since| since.elapsed() < STUCK)
    }

    /// Something has to wait until a descriptor or a place is free: its edge will not come again.
    pub(crate) fn short(&mut self) {
        self.again_at.get_or_insert(Instant::now() + SHORT_WAIT);
    }

    fn try_again(&mut self) {
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            self.unfinished.push_back(Work::Control);
            #[cfg(feature = "tcp")]
            self.take_waiting();
        }
    }

    fn take_frames(&mut self) -> Result<()> {
        for _ in 0..BURSTS_MAX {
            if !self.has_frames {
                break;
            }
            let now = self.now();
            let stack = &mut self.stack;
            let taken = self.port.receive_heads(HEAD_BYTES_MIN, |arrived| {
                port::take_in(stack, now, arrived);
            })?;
            self.has_frames = taken == Port::BURST;
        }
        Ok(())
    }

    /// Whether something may have happened in the stack meanwhile.
    pub(crate) fn send_frames(&mut self) -> Result<bool> {
        let now = self.now();
        let mut has_sent = false;
        let stack = &mut self.stack;
        let has_room = self.port.send(|buffer| {
            let frame = port::frame_of(stack.transmit(now, buffer)?);
            has_sent = true;
            Some(frame)
        })?;
        if has_room {
            self.full_since = None;
        } else {
            self.full_since.get_or_insert_with(Instant::now);
            // The way out may be shut for long; the stack's own loopback and timers go on.
            self.stack.turn(now);
        }
        Ok(has_sent || self.stack.has_events())
    }

    fn heed_stack(&mut self) {
        while let Some(event) = self.stack.event() {
            match event {
                #[cfg(feature = "tcp")]
                Event::Accept(listener) => self.take_connections(listener),
                #[cfg(feature = "tcp")]
                Event::Tcp(id, ready) => self.flow_event(id, ready),
                #[cfg(feature = "udp")]
                Event::Udp(id) => self.give_datagrams(id),
                #[cfg(feature = "ipv6")]
                Event::Ipv6 => self.heed_addresses(),
                #[allow(unreachable_patterns)]
                _ => {}
            }
        }
    }

    pub(crate) fn watch_client(&self, client: &OwnedFd, place: usize) -> std::io::Result<()> {
        let token = Token(CLIENTS + place);
        let fd = client.as_raw_fd();
        self.poll
            .registry()
            .register(&mut SourceFd(&fd), token, Interest::READABLE)
    }

    /// A new socket of a process, and the program's end of its pair; `None`: there can be no more, or it has its share.
    pub(crate) fn add_socket(
        &mut self,
        owner: Owner,
        is_inet6: bool,
        body: Body,
        options: Options,
    ) -> Option<(Id, OwnedFd)> {
        let id = self.table.next(owner)?;
        let is_stream = !matches!(body, Body::Datagrams);
        let has_plug = matches!(body, Body::Idle);
        let key = random().ok()?;
        let (pair, theirs) = Pair::new(id, key, is_stream, has_plug).ok()?;
        pair.bound_memory(is_stream, self.table.live()).ok()?;
        if options.is_set(level::SOCKET, name::OOBINLINE) {
            // The library sets it when it is asked to: of a listener's connections nobody else does.
            SockRef::from(&theirs).set_out_of_band_inline(true).ok()?;
        }
        let token = Token(id.index as usize);
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        registry
            .register(&mut SourceFd(&pair.as_raw_fd()), token, both)
            .ok()?;
        let socket = Socket {
            is_inet6,
            key,
            former: None,
            owner: Some(owner),
            bound: None,
            options,
            #[cfg(feature = "udp")]
            groups: Vec::new(),
            error: None,
            local: None,
            remote: None,
            pair: Some(pair),
            body,
            is_unfinished: false,
        };
        self.table.enter(id, socket);
        Some((id, theirs))
    }

    /// A socket has more to do than its share of a round.
    pub(crate) fn put_off(&mut self, place: Place) {
        if let Some(socket) = self.table.get(place)
            && !std::mem::replace(&mut socket.is_unfinished, true)
        {
            self.unfinished.push_back(Work::Socket(place));
        }
    }

    fn go_on(&mut self, place: Place) {
        if let Some(socket) = self.table.get(place) {
            socket.is_unfinished = false;
            self.pair_event(place, false);
        }
    }

    /// Something has happened at a pair; `is_gone`: the program has closed its end, or shut both ways.
    fn pair_event(&mut self, place: Place, is_gone: bool) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        // The place may have been another socket's when this happened.
        let is_gone = is_gone && socket.pair.as_ref().is_some_and(Pair::is_closed);
        match &mut socket.body {
            Body::Idle | Body::Over if is_gone => self.forget(place),
            Body::Idle | Body::Over => {}
            #[cfg(feature = "tcp")]
            Body::Listening(_) | Body::Connecting(_) | Body::Connected(_) => {
                self.stream_event(place, is_gone);
            }
            #[cfg(feature = "udp")]
            Body::Datagrams => {
                let left = self.send_datagrams(place, true);
                let socket = self.table.look(place);
                let pair = socket.and_then(|socket| socket.pair.as_ref());
                let is_gone = is_gone || left == Left::End && pair.is_some_and(Pair::is_closed);
                if is_gone && left != Left::More {
                    self.forget(place);
                }
            }
            #[cfg(not(feature = "udp"))]
            Body::Datagrams => {}
        }
    }

    /// Whoever was bound so is not any more.
    pub(crate) fn unbind(&mut self, place: Place) {
        let Some(socket) = self.table.get(place) else {
            return;
        };
        let is_stream = socket.is_stream();
        if let Some(bound) = socket.bound.take() {
            let ports = if is_stream {
                &mut self.tcp_ports
            } else {
                &mut self.udp_ports
            };
            ports.remove(bound.port, place);
            #[cfg(feature = "udp")]
            if !is_stream {
                self.close_datagrams(place);
            }
        }
    }

    /// The program has let go of a socket.
    pub(crate) fn forget(&mut self, place: Place) {
        #[cfg(feature = "udp")]
        self.leave_all(place);
        self.unbind(place);
        self.table.remove(place);
    }

    fn is_own(&self, address: &IpAddr) -> bool {
        address.is_unspecified()
            || address.is_loopback()
            || self
                .stack
                .addresses()
                .iter()
                .any(|own| own.address == *address)
    }

    /// Gives a socket its name; port 0 chooses one.
    pub(crate) fn bind_to(&mut self, place: Place, wanted: SocketAddr) -> Result<(), i32> {
        let socket = self.table.look(place).ok_or(EINVAL)?;
        let is_stream = socket.is_stream();
        let is_v6only = socket.options.is_set(level::IPV6, name::V6ONLY);
        let has_name =
            socket.bound.is_some() || !matches!(socket.body, Body::Idle | Body::Datagrams);
        match (wanted.is_ipv6(), socket.is_inet6) {
            (true, false) => return Err(EAFNOSUPPORT),
            (false, true) if is_v6only => return Err(EINVAL),
            _ => {}
        }
        let is_to_all = !is_stream && self.is_broadcast(&wanted.ip());
        let is_group = !is_stream && wanted.ip().is_multicast();
        if !self.is_own(&wanted.ip()) && !is_group && !is_to_all {
            return Err(EADDRNOTAVAIL);
        }
        if has_name {
            return Err(EINVAL);
        }
        let random = random().unwrap_or(0) as u16;
        let ports = if is_stream {
            &mut self.tcp_ports
        } else {
            &mut self.udp_ports
        };
        let port = match wanted.port() {
            0 => ports.choose(random).ok_or(EADDRINUSE)?,
            port => port,
        };
        let address = if is_to_all {
            names::any(false)
        } else {
            wanted.ip()
        };
        let bound = Bound::new(address, port, is_v6only);
        if !self.is_free(place, &bound) {
            return Err(EADDRINUSE);
        }
        #[cfg(feature = "udp")]
        if !is_stream {
            self.open_datagrams(place, &bound)?;
        }
        let ports = if is_stream {
            &mut self.tcp_ports
        } else {
            &mut self.udp_ports
        };
        ports.add(port, place);
        if let Some(socket) = self.table.get(place) {
            socket.bound = Some(bound);
        }
        Ok(())
    }

    /// Whether a socket may be bound so, or may listen where it is.
    pub(crate) fn is_free(&mut self, place: Place, bound: &Bound) -> bool {
        let is_stream = self.table.look(place).is_some_and(Socket::is_stream);
        let ports = |server: &Server| match is_stream {
            true => server.tcp_ports.is_free(&server.table, place, bound),
            false => server.udp_ports.is_free(&server.table, place, bound),
        };
        if ports(self) {
            return true;
        }
        // Who closes a socket and binds the next one is not to meet the first.
        self.see_ends(place, bound.port);
        ports(self)
    }

    /// Ends the sockets of a port that programs have closed, which may not have been seen yet. Not the one at `place`, for which
    /// this is asked.
    pub(crate) fn see_ends(&mut self, place: Place, port: u16) {
        let others = match self.table.look(place).is_some_and(Socket::is_stream) {
            true => self.tcp_ports.of(port),
            false => self.udp_ports.of(port),
        };
        for other in others.into_iter().filter(|other| *other != place) {
            let pair = self
                .table
                .look(other)
                .and_then(|socket| socket.pair.as_ref());
            if pair.is_some_and(Pair::is_closed) {
                self.pair_event(other, true);
            }
        }
    }

    fn is_broadcast(&self, address: &IpAddr) -> bool {
        let IpAddr::V4(four) = address else {
            return false;
        };
        four.is_broadcast()
            || self.stack.addresses().iter().any(|own| match own.address {
                IpAddr::V4(own4) if own.prefix_len < 31 => {
                    let host = u32::MAX.checked_shr(own.prefix_len.into()).unwrap_or(0);
                    four.to_bits() == own4.to_bits() | host
                }
                _ => false,
            })
    }

    /// Gives a socket a name that it has not asked for.
    pub(crate) fn bind_if_needed(&mut self, place: Place) -> Result<(), i32> {
        let socket = self.table.look(place).ok_or(EINVAL)?;
        match socket.bound {
            Some(_) => Ok(()),
            None => self.bind_to(place, SocketAddr::new(names::any(socket.is_inet6), 0)),
        }
    }
}
