//! Linux as a side: sockets of the running kernel in a network namespace of its own, whose one
//! interface is a tap device that the player holds. Needs root.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::netns;
use fordway_platform::tap;
use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::call::{Answer, Call};
use crate::packet::{Frame, Known, Packet, read};
use crate::{OWN_MAC, PEER_MAC, Script, Side, address};

/// How often, and for how long, the kernel is asked whether it is there.
const TRIES: usize = 100;
const TRY_US: u64 = 50_000;

pub struct Linux {
    namespace: OwnedFd,
    tap: FrameFile,
    start: Instant,
    queue: VecDeque<(u64, Vec<u8>)>,
    sockets: HashMap<String, Socket>,
    options: Vec<(String, u32)>,
    is_ipv6: bool,
    buffer: Vec<u8>,
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// What `ip -batch` reads.
fn setup() -> String {
    let own = [address(false, true), address(true, true)];
    let peer = [address(false, false), address(true, false)];
    let (own_mac, peer_mac) = (mac(OWN_MAC), mac(PEER_MAC));
    format!(
        "link set lo up\n\
         link set tap0 address {own_mac} txqueuelen 1000\n\
         address add {}/24 dev tap0\n\
         -6 address add {}/64 dev tap0 nodad\n\
         link set tap0 up\n\
         neighbour add {} lladdr {peer_mac} dev tap0 nud permanent\n\
         neighbour add {} lladdr {peer_mac} dev tap0 nud permanent\n",
        own[0], own[1], peer[0], peer[1]
    )
}

fn ip_batch(text: &str) -> Result<()> {
    // `-6` of a line in a batch is not understood by all versions; the address says it.
    let text = text.replace("-6 address", "address");
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("ip (iproute2)")?;
    let mut input = child.stdin.take().context("a pipe")?;
    input.write_all(text.as_bytes())?;
    drop(input);
    if !child.wait()?.success() {
        bail!("ip -batch failed");
    }
    Ok(())
}

impl Linux {
    pub fn new(script: &Script) -> Result<Linux> {
        let namespace = netns::anonymous()?;
        let mut sysctls = vec![
            ("net.ipv4.ping_group_range", "0 2147483647"),
            ("net.ipv6.conf.all.accept_dad", "0"),
            ("net.ipv6.conf.default.accept_dad", "0"),
            ("net.ipv6.conf.default.router_solicitations", "0"),
        ];
        sysctls.extend(script.linux.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let tap = netns::within(namespace.as_fd(), || -> Result<FrameFile> {
            for (name, value) in &sysctls {
                let file = format!("/proc/sys/{}", name.replace('.', "/"));
                std::fs::write(&file, value).with_context(|| format!("{file}={value}"))?;
            }
            let tap = tap::open("tap0", false)?;
            ip_batch(&setup())?;
            Ok(tap)
        })??;
        let options = script.options.iter().map(|(name, value)| {
            let number: u32 = value.parse().with_context(|| format!("{name}={value}"))?;
            Ok((name.clone(), number))
        });
        let mut linux = Linux {
            namespace,
            tap,
            start: Instant::now(),
            queue: VecDeque::new(),
            sockets: HashMap::new(),
            options: options.collect::<Result<_>>()?,
            is_ipv6: script.is_ipv6,
            buffer: vec![0; 70_000],
        };
        linux.wait_until_it_answers()?;
        Ok(linux)
    }

    /// The kernel takes an address of IPv6 for its own some time after `ip` has added it.
    fn wait_until_it_answers(&mut self) -> Result<()> {
        let kind = if self.is_ipv6 { "128" } else { "8" };
        let words = ["icmp", kind, "0", "id", "1", "seq", "1"].map(str::to_owned);
        let request = Packet::parse(&words)?.frame(self.is_ipv6, 0, &Known::default(), &[])?;
        for _ in 0..TRIES {
            self.arrives(&request);
            let until = self.now() + TRY_US;
            while let Some((_, frame)) = self.leaves(until) {
                if let Frame::Packet(_) = read(&frame)? {
                    return Ok(());
                }
            }
        }
        bail!("the kernel does not answer")
    }

    fn socket(&self, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let domain = if self.is_ipv6 {
            Domain::IPV6
        } else {
            Domain::IPV4
        };
        let socket = netns::within(self.namespace.as_fd(), || {
            Socket::new(domain, kind, Some(protocol))
        })??;
        socket.set_nonblocking(true)?;
        for (name, value) in &self.options {
            let is_tcp = protocol == Protocol::TCP;
            match name.as_str() {
                "nodelay" if is_tcp => socket.set_tcp_nodelay(*value != 0)?,
                "rcvbuf" => socket.set_recv_buffer_size(*value as usize)?,
                "sndbuf" => socket.set_send_buffer_size(*value as usize)?,
                "keepalive_s" if is_tcp => {
                    let every = Duration::from_secs((*value).into());
                    let keepalive = TcpKeepalive::new();
                    let keepalive = keepalive.with_time(every).with_interval(every);
                    socket.set_tcp_keepalive(&keepalive.with_retries(3))?;
                }
                "keepalive_interval_s" if is_tcp => {
                    let every = Duration::from_secs((*value).into());
                    socket.set_tcp_keepalive(&TcpKeepalive::new().with_interval(every))?;
                }
                "keepalive_probes" if is_tcp => {
                    socket.set_tcp_keepalive(&TcpKeepalive::new().with_retries(*value))?;
                }
                "ttl" if self.is_ipv6 => socket.set_unicast_hops_v6(*value)?,
                "ttl" => socket.set_ttl_v4(*value)?,
                "tos" if self.is_ipv6 => socket.set_tclass_v6(*value)?,
                "tos" => socket.set_tos_v4(*value)?,
                "reuseport" => socket.set_reuse_port(*value != 0)?,
                _ => {}
            }
        }
        Ok(socket)
    }

    fn find(&self, name: &str) -> io::Result<&Socket> {
        let found = self.sockets.get(name);
        found.ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::BADF.raw_os_error()))
    }

    fn keep(&mut self, name: &str, socket: Socket) -> Answer {
        self.sockets.insert(name.to_owned(), socket);
        Answer::Done
    }

    fn tried(&mut self, call: &Call) -> io::Result<Answer> {
        let own = |port: u16| SocketAddr::new(address(self.is_ipv6, true), port);
        let peer = |port: u16| SocketAddr::new(address(self.is_ipv6, false), port);
        match call {
            Call::Listen(name, port, backlog) => {
                let socket = self.socket(Type::STREAM, Protocol::TCP)?;
                socket.set_reuse_address(true)?;
                socket.bind(&own(*port).into())?;
                socket.listen(*backlog as i32)?;
                Ok(self.keep(name, socket))
            }
            Call::Accept(listener, name) => {
                let (socket, _) = self.find(listener)?.accept()?;
                socket.set_nonblocking(true)?;
                Ok(self.keep(name, socket))
            }
            Call::Connect(name, port) => {
                let socket = self.socket(Type::STREAM, Protocol::TCP)?;
                let begun = socket.connect(&peer(*port).into());
                let in_progress = rustix::io::Errno::INPROGRESS.raw_os_error();
                match begun {
                    Err(error) if error.raw_os_error() == Some(in_progress) => {}
                    other => other?,
                }
                Ok(self.keep(name, socket))
            }
            Call::Udp(name, port) => {
                let socket = self.socket(Type::DGRAM, Protocol::UDP)?;
                socket.bind(&own(*port).into())?;
                Ok(self.keep(name, socket))
            }
            Call::Peer(name, port) => {
                self.find(name)?.connect(&peer(*port).into())?;
                Ok(Answer::Done)
            }
            Call::Send(name, bytes) => Ok(Answer::Number(self.find(name)?.send(bytes)?)),
            Call::Urgent(name, bytes) => {
                Ok(Answer::Number(self.find(name)?.send_out_of_band(bytes)?))
            }
            Call::SendTo(name, port, bytes) => {
                self.find(name)?.send_to(bytes, &peer(*port).into())?;
                Ok(Answer::Done)
            }
            Call::Receive(name, most) => self.receive(name, *most),
            Call::Ping(seq, bytes) => self.ping(*seq, bytes),
            Call::Pong => match self.receive("ping", 2000)? {
                Answer::Bytes(bytes) if bytes.len() >= 8 => Ok(Answer::Number(
                    u16::from_be_bytes([bytes[6], bytes[7]]).into(),
                )),
                other => Ok(other),
            },
            Call::Shutdown(name) => {
                self.find(name)?.shutdown(std::net::Shutdown::Write)?;
                Ok(Answer::Done)
            }
            Call::Close(name) => {
                self.sockets.remove(name);
                Ok(Answer::Done)
            }
            Call::Abort(name) => {
                self.find(name)?.set_linger(Some(Duration::ZERO))?;
                self.sockets.remove(name);
                Ok(Answer::Done)
            }
            Call::Error(name) => match self.find(name)?.take_error()? {
                Some(error) => Err(error),
                None => Ok(Answer::Number(0)),
            },
            Call::State(name) => self.state(name),
        }
    }

    fn receive(&self, name: &str, most: usize) -> io::Result<Answer> {
        let socket = self.find(name)?;
        let mut bytes = vec![0; most];
        let mut reader = socket;
        let len = reader.read(&mut bytes)?;
        bytes.truncate(len);
        let is_stream = socket.r#type()? == Type::STREAM;
        Ok(if len == 0 && is_stream {
            Answer::End
        } else {
            Answer::Bytes(bytes)
        })
    }

    fn ping(&mut self, seq: u16, bytes: &[u8]) -> io::Result<Answer> {
        let (protocol, kind) = if self.is_ipv6 {
            (Protocol::ICMPV6, 128)
        } else {
            (Protocol::ICMPV4, 8)
        };
        let socket = self.socket(Type::DGRAM, protocol)?;
        let to = SocketAddr::new(address(self.is_ipv6, false), 0);
        let [high, low] = seq.to_be_bytes();
        let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
        message.extend_from_slice(bytes);
        socket.send_to(&message, &to.into())?;
        Ok(self.keep("ping", socket))
    }

    /// From the kernel's own list, as the socket call for it tells of open ones only.
    fn state(&self, name: &str) -> io::Result<Answer> {
        let socket = self.find(name)?;
        let port = |name: socket2::SockAddr| name.as_socket().map_or(0, |name| name.port());
        let local = port(socket.local_addr()?);
        let remote = socket.peer_addr().map_or(0, port);
        let file = if self.is_ipv6 { "tcp6" } else { "tcp" };
        let list = netns::within(self.namespace.as_fd(), || {
            std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))
        })??;
        let wanted = [format!(":{local:04X}"), format!(":{remote:04X}")];
        let found = list.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, ours, theirs, state, ..] = words[..] else {
                return None;
            };
            let is_it = ours.ends_with(&wanted[0]) && (remote == 0 || theirs.ends_with(&wanted[1]));
            is_it.then(|| u8::from_str_radix(state, 16).unwrap_or(0))
        });
        let names = [
            "CLOSED",
            "ESTABLISHED",
            "SYN-SENT",
            "SYN-RECEIVED",
            "FIN-WAIT-1",
            "FIN-WAIT-2",
            "TIME-WAIT",
            "CLOSED",
            "CLOSE-WAIT",
            "LAST-ACK",
            "LISTEN",
            "CLOSING",
        ];
        let state = usize::from(found.unwrap_or(0));
        Ok(Answer::Word(names.get(state).copied().unwrap_or("CLOSED")))
    }

    /// Frames that are there already, with the time at which we see them.
    fn gather(&mut self) {
        while let Ok(Some((len, _))) = self.tap.receive(&mut self.buffer) {
            let at = self.now();
            self.queue.push_back((at, self.buffer[..len].to_vec()));
        }
    }

    /// Until a frame is there, or then.
    fn rest(&self, until: u64) {
        let left_us = until.saturating_sub(self.now());
        let timeout = Timespec {
            tv_sec: (left_us / 1_000_000) as i64,
            tv_nsec: (left_us % 1_000_000 * 1_000) as i64,
        };
        let mut waits = [PollFd::new(&self.tap, PollFlags::IN)];
        let _ = rustix::event::poll(&mut waits, Some(&timeout));
    }
}

fn word(error: &io::Error) -> Answer {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Answer::Word(match errno {
        Errno::AGAIN => "EAGAIN",
        Errno::BADF => "EBADF",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNRESET => "ECONNRESET",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::NETUNREACH => "ENETUNREACH",
        Errno::HOSTUNREACH => "EHOSTUNREACH",
        Errno::ACCESS => "EACCES",
        Errno::NOPROTOOPT => "ENOPROTOOPT",
        Errno::PROTO => "EPROTO",
        Errno::NOTCONN => "ENOTCONN",
        Errno::PIPE => "EPIPE",
        Errno::ADDRINUSE => "EADDRINUSE",
        Errno::ADDRNOTAVAIL => "EADDRNOTAVAIL",
        Errno::NOBUFS => "ENOBUFS",
        Errno::MSGSIZE => "EMSGSIZE",
        Errno::DESTADDRREQ => "EDESTADDRREQ",
        _ => "another error",
    })
}

impl Side for Linux {
    fn name(&self) -> &'static str {
        "Linux"
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn wait(&mut self, until: u64) {
        self.gather();
        while self.now() < until {
            self.rest(until);
            self.gather();
        }
    }

    fn arrives(&mut self, frame: &[u8]) {
        self.gather();
        // A frame that the device does not take is lost, as on a link; the script will say so.
        let _ = self.tap.send(frame, FrameNotes::default());
    }

    fn leaves(&mut self, until: u64) -> Option<(u64, Vec<u8>)> {
        self.gather();
        while self.queue.is_empty() && self.now() < until {
            self.rest(until);
            self.gather();
        }
        self.queue.pop_front()
    }

    fn call(&mut self, call: &Call) -> Answer {
        self.gather();
        self.tried(call).unwrap_or_else(|error| word(&error))
    }

    fn leeway(&self) -> (u64, u64) {
        (2_000_000, 50)
    }
}
