//! The network stack as a side: its clock jumps from one event to the next.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use fordway_netstack::{
    Cidr, Config, Error, Keepalive, ListenerId, RxChecksum, RxFrame, Stack, TcpId, TcpOptions,
    TcpState, UdpId, UdpOptions,
};

use crate::call::{Answer, Call};
use crate::{OWN_MAC, Script, Side, address};

/// So many frames at one time are more than a script can mean.
const FRAMES_MAX: usize = 1000;

#[derive(Clone, Copy)]
enum Socket {
    Listener(ListenerId),
    Tcp(TcpId),
    Udp(UdpId),
}

/// What a stack is made of, and its sockets.
pub struct Setup {
    pub config: Config,
    pub tcp: TcpOptions,
    pub addresses: Vec<Cidr>,
    /// Where sockets listen, and are bound; `None`: at all addresses.
    pub bound: Option<IpAddr>,
}

pub struct StackSide {
    stack: Stack,
    now: u64,
    queue: VecDeque<(u64, Vec<u8>)>,
    sockets: HashMap<String, Socket>,
    tcp: TcpOptions,
    udp: UdpOptions,
    is_ipv6: bool,
    bound: Option<IpAddr>,
    buffer: Vec<u8>,
}

fn word(error: Error) -> Answer {
    Answer::Word(match error {
        Error::WouldBlock => "EAGAIN",
        Error::NoSuch => "EBADF",
        Error::Refused => "ECONNREFUSED",
        Error::Reset => "ECONNRESET",
        Error::TimedOut => "ETIMEDOUT",
        Error::Unreachable => "ENETUNREACH",
        Error::HostUnreachable => "EHOSTUNREACH",
        Error::Denied => "EACCES",
        Error::Protocol => "ENOPROTOOPT",
        Error::NotConnected => "ENOTCONN",
        Error::Pipe => "EPIPE",
        Error::AddressInUse => "EADDRINUSE",
        Error::AddressNotAvailable => "EADDRNOTAVAIL",
        Error::Full => "ENOBUFS",
        Error::TooLong => "EMSGSIZE",
    })
}

fn state(state: TcpState) -> &'static str {
    match state {
        TcpState::SynSent => "SYN-SENT",
        TcpState::SynReceived => "SYN-RECEIVED",
        TcpState::Established => "ESTABLISHED",
        TcpState::FinWait1 => "FIN-WAIT-1",
        TcpState::FinWait2 => "FIN-WAIT-2",
        TcpState::CloseWait => "CLOSE-WAIT",
        TcpState::Closing => "CLOSING",
        TcpState::LastAck => "LAST-ACK",
        TcpState::TimeWait => "TIME-WAIT",
        TcpState::Closed => "CLOSED",
    }
}

impl Setup {
    /// As the crate does by itself.
    pub fn usual(is_ipv6: bool) -> Setup {
        Setup {
            config: Config::new(OWN_MAC, 0x0dd_ba11),
            tcp: TcpOptions::default(),
            addresses: vec![
                Cidr::new(address(false, true), 24),
                Cidr::new(address(true, true), 64),
                Cidr::link_local(&OWN_MAC),
            ],
            bound: Some(address(is_ipv6, true)),
        }
    }
}

impl StackSide {
    pub fn new(script: &Script, setup: Setup) -> Result<StackSide> {
        let (mut config, mut tcp) = (setup.config, setup.tcp);
        for (name, value) in &script.stack {
            let value: usize = value.parse().with_context(|| format!("{name}={value}"))?;
            match name.as_str() {
                "half_open" => config.limits.half_open_max = value,
                "mtu" => config.link.mtu_bytes = value,
                _ => bail!("the stack has no {name}"),
            }
        }
        let mut udp = UdpOptions::default();
        for (name, value) in &script.options {
            let value: usize = value.parse().with_context(|| format!("{name}={value}"))?;
            match name.as_str() {
                "nodelay" => tcp.is_nagle = value == 0,
                "rcvbuf" => tcp.receive_bytes = value,
                "sndbuf" => tcp.send_bytes = value,
                "keepalive_s" => tcp.keepalive = Some(Keepalive::each(value as u64 * 1_000_000)),
                "keepalive_interval_s" => {
                    let keepalive = tcp.keepalive.as_mut().context("keepalive_s comes first")?;
                    keepalive.interval_us = value as u64 * 1_000_000;
                }
                "keepalive_probes" => {
                    let keepalive = tcp.keepalive.as_mut().context("keepalive_s comes first")?;
                    keepalive.probes = value as u32;
                }
                "ttl" => {
                    tcp.hop_limit = Some(value as u8);
                    udp.hop_limit = Some(value as u8);
                }
                "tos" => (tcp.class, udp.class) = (value as u8, value as u8),
                "reuseport" => udp.shares_port = value != 0,
                _ => bail!("sockets of the stack have no {name}"),
            }
        }
        let mut stack = Stack::new(config);
        stack.set_addresses(&setup.addresses);
        Ok(StackSide {
            stack,
            now: 1_000_000,
            queue: VecDeque::new(),
            sockets: HashMap::new(),
            tcp,
            udp,
            is_ipv6: script.is_ipv6,
            bound: setup.bound,
            buffer: vec![0; 70_000],
        })
    }

    fn drain(&mut self) {
        while self.stack.event().is_some() {}
        // A side that never comes to rest is stopped, and the script sees what it sent.
        for _ in 0..FRAMES_MAX {
            let Some(frame) = self.stack.transmit(self.now, &mut self.buffer) else {
                break;
            };
            let bytes = self.buffer[..frame.len_bytes].to_vec();
            self.queue.push_back((self.now, bytes));
        }
    }

    /// The clock goes to the next event; false if there is none until then.
    fn jump(&mut self, until: u64) -> bool {
        match self.stack.poll_at().filter(|at| *at <= until) {
            Some(at) => {
                // Whatever was due at this time has been done.
                self.now = at.max(self.now + 1).min(until.max(self.now));
                true
            }
            None => {
                self.now = self.now.max(until);
                false
            }
        }
    }

    fn tried(&mut self, call: &Call) -> Result<Answer, Error> {
        let peer = |port: u16| SocketAddr::new(address(self.is_ipv6, false), port);
        let stack = &mut self.stack;
        let find = |name: &String| self.sockets.get(name).copied().ok_or(Error::NoSuch);
        let mut made = None;
        let answer = match call {
            Call::Listen(name, port, backlog) => {
                let id = stack.tcp_listen(self.bound, *port, *backlog as usize, self.tcp)?;
                made = Some((name, Socket::Listener(id)));
                Answer::Done
            }
            Call::Accept(listener, name) => {
                let Socket::Listener(id) = find(listener)? else {
                    return Err(Error::NoSuch);
                };
                made = Some((name, Socket::Tcp(stack.tcp_accept(id)?.0)));
                Answer::Done
            }
            Call::Connect(name, port) => {
                let id = stack.tcp_connect(self.now, peer(*port), None, self.tcp)?;
                made = Some((name, Socket::Tcp(id)));
                Answer::Done
            }
            Call::Udp(name, port) => {
                let id = stack.udp_bind_with(self.bound, *port, self.udp)?;
                made = Some((name, Socket::Udp(id)));
                Answer::Done
            }
            Call::Ping(seq, bytes) => {
                stack.ping(peer(0).ip(), 0x77, *seq, bytes)?;
                Answer::Done
            }
            Call::Pong => {
                let reply = stack.ping_reply().ok_or(Error::WouldBlock)?;
                Answer::Number(reply.sequence.into())
            }
            Call::Peer(name, _)
            | Call::Send(name, _)
            | Call::Urgent(name, _)
            | Call::SendTo(name, ..)
            | Call::Receive(name, _)
            | Call::Shutdown(name)
            | Call::Close(name)
            | Call::Abort(name)
            | Call::Error(name)
            | Call::State(name) => match find(name)? {
                Socket::Tcp(id) => self.of_tcp(id, call)?,
                Socket::Udp(id) => self.of_udp(id, call)?,
                Socket::Listener(id) => {
                    stack.tcp_unlisten(id)?;
                    Answer::Done
                }
            },
        };
        if let Some((name, socket)) = made {
            self.sockets.insert(name.clone(), socket);
        }
        Ok(answer)
    }

    fn of_tcp(&mut self, id: TcpId, call: &Call) -> Result<Answer, Error> {
        let stack = &mut self.stack;
        match call {
            Call::Send(_, bytes) => return Ok(Answer::Number(stack.tcp_send(id, bytes)?)),
            Call::Urgent(_, bytes) => {
                let sent = stack.tcp_send(id, bytes)?;
                stack.tcp_mark_urgent(id)?;
                return Ok(Answer::Number(sent));
            }
            Call::Receive(_, most) => {
                let mut buffer = vec![0; *most];
                let len = stack.tcp_receive(id, &mut buffer)?;
                buffer.truncate(len);
                return Ok(if len == 0 {
                    Answer::End
                } else {
                    Answer::Bytes(buffer)
                });
            }
            Call::State(_) => return Ok(Answer::Word(state(stack.tcp_state(id)?))),
            Call::Shutdown(_) => stack.tcp_shutdown(id)?,
            Call::Close(_) => stack.tcp_close(id)?,
            Call::Abort(_) => stack.tcp_abort(id)?,
            _ => return Err(Error::NoSuch),
        }
        Ok(Answer::Done)
    }

    fn of_udp(&mut self, id: UdpId, call: &Call) -> Result<Answer, Error> {
        let peer = |port: u16| SocketAddr::new(address(self.is_ipv6, false), port);
        let stack = &mut self.stack;
        match call {
            Call::Peer(_, port) => stack.udp_connect(id, Some(peer(*port)))?,
            Call::SendTo(_, port, bytes) => stack.udp_send(id, peer(*port), bytes)?,
            Call::Send(_, bytes) => {
                let (_, _, remote) = stack.udp_names(id)?;
                stack.udp_send(id, remote.ok_or(Error::NotConnected)?, bytes)?;
            }
            Call::Receive(_, most) => {
                let mut buffer = vec![0; *most];
                let (len, ..) = stack.udp_receive(id, &mut buffer)?;
                buffer.truncate(len);
                return Ok(Answer::Bytes(buffer));
            }
            Call::Error(_) => {
                return Ok(stack.udp_error(id)?.map_or(Answer::Number(0), word));
            }
            Call::Close(_) => stack.udp_close(id)?,
            _ => return Err(Error::NoSuch),
        }
        Ok(Answer::Done)
    }
}

impl Side for StackSide {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn wait(&mut self, until: u64) {
        self.drain();
        while self.now < until && self.jump(until) {
            self.drain();
        }
        self.drain();
    }

    fn arrives(&mut self, frame: &[u8]) {
        let mut bytes = frame.to_vec();
        let mut frame = RxFrame {
            bytes: &mut bytes,
            checksum: RxChecksum::Unchecked,
        };
        self.stack.receive(self.now, &mut frame);
        self.drain();
    }

    fn leaves(&mut self, until: u64) -> Option<(u64, Vec<u8>)> {
        self.drain();
        while self.queue.is_empty() && self.now < until {
            self.jump(until);
            self.drain();
        }
        self.queue.pop_front()
    }

    fn call(&mut self, call: &Call) -> Answer {
        let answer = self.tried(call).unwrap_or_else(word);
        self.drain();
        answer
    }

    fn leeway(&self) -> (u64, u64) {
        (0, 100)
    }
}
