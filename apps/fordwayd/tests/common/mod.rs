//! A broker in a process of its own, and a shim that speaks the protocol by hand.
#![allow(dead_code)] // Each test file uses a part.

use fordway_abi::control::{self as wire, HELLO_MAGIC, Header, Message, PACKET_BYTES_MAX};
use fordway_abi::reason::Reason;
use fordway_abi::{ABI_VERSION, shm};
use fordway_platform::ipc::{self, Kind, ReceiveError};
use fordway_platform::memfd::{self, ReadOnly};
use fordway_platform::{netns, sockinfo};
use fordwayd::admin::{ADMIN_SOCKET, CONTROL_SOCKET, Domain, Reply, Request};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long anything may take before a test fails.
const PATIENCE_S: i64 = 10;
/// How long a broker may take to begin.
const START_PATIENCE_S: u64 = 60;
/// The doorbell that [`Shim::expect_silence`] makes.
const PROBE_DOOR: u64 = 63;
const DIR_VARIABLE: &str = "FORDWAYD_TEST_DIR";

/// Stops a process. Returns when all its threads stand still: the signal alone only asks.
pub fn stop_process(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("kill");
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let stands = |task: &std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // proc(5): the state follows the name, which may have anything in it.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    let all = || std::fs::read_dir(&tasks).expect("tasks").flatten();
    while !all().all(|task| stands(&task)) {
        std::thread::yield_now();
    }
}

/// A directory that is removed at the end.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fwd-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).expect("temporary directory");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The body of the test `broker_process` that each test file has: the broker itself,
/// when the test binary was started by [`Broker::start`].
pub fn broker_process() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else {
        return;
    };
    fordwayd::log::start("debug").expect("the log");
    let config = fordwayd::Config {
        runtime_dir: dir.into(),
        network: fordwayd::Network::new(Ipv4Addr::new(10, 77, 0, 0), 24).expect("network"),
        network6: fordwayd::Network6::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 64),
        uplink: false,
        vsock: true,
        ring_bytes_max: 1 << 30,
        programs: fordwayd::Programs::default(),
        helpers: Vec::new(),
    };
    let result = fordwayd::run(&config, || println!("broker ready"));
    if let Err(error) = result {
        println!("broker error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// What is special about a broker.
#[derive(Default)]
pub struct Options {
    pub uid: Option<u32>,
    /// What starts it.
    pub prefix: &'static [&'static str],
    pub notify_socket: Option<PathBuf>,
}

/// A running broker, killed at the end.
pub struct Broker {
    pub child: Child,
    pub dir: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
}

impl Broker {
    pub fn start(dir: &Path) -> Self {
        Self::try_start(dir, Options::default()).expect("broker")
    }

    /// The error is what the broker said.
    pub fn try_start(dir: &Path, options: Options) -> Result<Self, String> {
        // Through /proc, so that a user who may not enter the build directory can run it.
        let program = std::fs::File::open("/proc/self/exe").expect("own image");
        let program = rustix::io::fcntl_dupfd_cloexec(&program, 100).expect("dup");
        let path = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&program)
        );
        let mut command = match options.prefix {
            [] => Command::new(path),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest);
                command.arg(std::env::current_exe().expect("own image"));
                command
            }
        };
        command
            .args([
                "--exact",
                "broker_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(DIR_VARIABLE, dir)
            .env_remove("NOTIFY_SOCKET")
            .envs(options.notify_socket.map(|path| ("NOTIFY_SOCKET", path)))
            .current_dir("/")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(uid) = options.uid {
            command.uid(uid).gid(uid);
        }
        let mut broker = Self {
            child: command.spawn().expect("starting a broker"),
            dir: dir.to_owned(),
            log: Arc::new(Mutex::new(Vec::new())),
        };
        let child = &mut broker.child;
        let stderr = BufReader::new(child.stderr.take().expect("stderr"));
        let sink = Arc::clone(&broker.log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().expect("log").push(line);
            }
        });
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (says, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if line.ends_with("broker ready") || line.contains("broker error: ") {
                    let _ = says.send(line);
                }
            }
        });
        match said.recv_timeout(Duration::from_secs(START_PATIENCE_S)) {
            Ok(line) => match line.split_once("broker error: ") {
                None => Ok(broker),
                Some((_, error)) => Err(error.to_owned()),
            },
            Err(RecvTimeoutError::Disconnected) => {
                Err("the broker ended without a word".to_owned())
            }
            Err(RecvTimeoutError::Timeout) => {
                let log = broker.log.lock().expect("log");
                panic!("the broker is not ready after {START_PATIENCE_S} s: {log:#?}");
            }
        }
    }

    /// Waits for a line of the log that has all of `words`, and returns it.
    pub fn logged(&self, words: &[&str]) -> String {
        for _ in 0..PATIENCE_S * 100 {
            let log = self.log.lock().expect("log");
            let found = log
                .iter()
                .find(|line| words.iter().all(|word| line.contains(word)));
            if let Some(line) = found {
                return line.clone();
            }
            drop(log);
            // The log comes through a pipe with a reader of its own; nothing can be waited for.
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!(
            "not logged: {words:?}; but {:#?}",
            self.log.lock().expect("log")
        );
    }

    pub fn log_count(&self, word: &str) -> usize {
        let log = self.log.lock().expect("log");
        log.iter().filter(|line| line.contains(word)).count()
    }

    /// Open descriptors of the broker.
    pub fn descriptors(&self) -> usize {
        let dir = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(dir).expect("descriptors").count()
    }

    pub fn ask(&self, request: &Request) -> Reply {
        let line = serde_json::to_string(request).expect("request");
        self.ask_raw(&line)
    }

    pub fn ask_raw(&self, line: &str) -> Reply {
        self.exchange(line).0
    }

    /// Ends the broker, and waits until it has cleared away what it made.
    pub fn down(&self) {
        let request = Request::Down {
            keep_domains: false,
        };
        let line = serde_json::to_string(&request).expect("request");
        let (reply, mut rest) = self.exchange(&line);
        assert!(matches!(reply, Reply::Done), "{reply:?}");
        rest.read_to_end(&mut Vec::new()).expect("end");
    }

    fn exchange(&self, line: &str) -> (Reply, BufReader<UnixStream>) {
        let mut stream = UnixStream::connect(self.dir.join(ADMIN_SOCKET)).expect("admin socket");
        stream.write_all(line.as_bytes()).expect("write");
        stream.write_all(b"\n").expect("write");
        let mut stream = BufReader::new(stream);
        let mut reply = String::new();
        stream.read_line(&mut reply).expect("reply");
        (serde_json::from_str(&reply).expect("a reply"), stream)
    }

    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
    }
}

/// A packet from the broker.
pub struct Packet {
    pub kind: u32,
    body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Packet {
    pub fn body<M: Message>(&self) -> M {
        assert_eq!(self.kind, M::KIND, "another message than expected");
        M::read_from_bytes(&self.body).expect("body")
    }
}

/// What a shim has for its peers.
pub struct Shim {
    pub socket: OwnedFd,
    pub page: OwnedFd,
    pub mailbox: Option<ReadOnly>,
    pub welcome: Option<wire::Welcome>,
}

pub fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd")
}

/// A sealed memfd.
pub fn sealed(bytes: usize) -> OwnedFd {
    let fd = memfd::create("test", bytes).expect("memfd");
    memfd::seal(&fd).expect("seal");
    fd
}

impl Shim {
    /// Connects, says nothing.
    pub fn connect(dir: &Path) -> Self {
        Self {
            socket: ipc::connect(&dir.join(CONTROL_SOCKET), Kind::Packets).expect("control socket"),
            page: sealed(shm::WAIT_PAGE_BYTES),
            mailbox: None,
            welcome: None,
        }
    }

    /// Connects and says hello.
    pub fn join(dir: &Path) -> Self {
        let mut shim = Self::connect(dir);
        shim.send(&hello(ABI_VERSION), &[shim.page.as_fd()]);
        let packet = shim.receive();
        shim.welcome = Some(packet.body());
        shim.mailbox = Some(ReadOnly::map(&packet.fds[0], 4096).expect("mailbox"));
        shim
    }

    pub fn send<M: Message>(&self, message: &M, fds: &[BorrowedFd<'_>]) {
        self.send_raw(&packet_of(message), fds);
    }

    /// That the broker has closed already is not this call's matter.
    pub fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        loop {
            match ipc::send(&self.socket, bytes, fds) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.wait_for(PollFlags::OUT);
                }
                _ => return,
            }
        }
    }

    /// Offers a socket of this process, whatever it is, as it is.
    pub fn offer(&self, conn_id: u64, socket: impl AsFd) {
        self.claim(conn_id, claim(socket));
    }

    pub fn claim(&self, conn_id: u64, claim: wire::Claim) {
        self.say(conn_id, claim, 0);
    }

    /// Says why a socket stays on the kernel path.
    pub fn decline(&self, conn_id: u64, socket: impl AsFd, reason: Reason) {
        self.say(conn_id, claim(socket), reason as u32);
    }

    fn say(&self, conn_id: u64, claim: wire::Claim, declined: u32) {
        let offer = wire::Offer {
            conn_id,
            declined,
            to_all: 0,
            claim,
        };
        self.send(&offer, &[]);
    }

    fn wait_for(&self, what: PollFlags) {
        let mut poll_fds = [PollFd::new(&self.socket, what)];
        let patience = Timespec {
            tv_sec: PATIENCE_S,
            tv_nsec: 0,
        };
        let ready = poll(&mut poll_fds, Some(&patience)).expect("poll");
        assert_ne!(ready, 0, "the broker said nothing for {PATIENCE_S} s");
    }

    /// The next packet, or the end. What a peer's [`Shim::expect_silence`] causes is left out.
    pub fn next(&self) -> Option<Packet> {
        loop {
            let mut buffer = [0; PACKET_BYTES_MAX];
            match ipc::receive(&self.socket, &mut buffer, wire::PACKET_FDS_MAX) {
                Ok(packet) => {
                    let (header, _) = Header::read_from_prefix(&buffer).expect("header");
                    assert_eq!(header.length_bytes as usize, packet.len);
                    let body = buffer[size_of::<Header>()..packet.len].to_vec();
                    let packet = Packet {
                        kind: header.kind,
                        body,
                        fds: packet.fds,
                    };
                    let probe = match packet.kind {
                        wire::PeerDoor::KIND => packet.body::<wire::PeerDoor>().door,
                        wire::OwnDoor::KIND => packet.body::<wire::OwnDoor>().door,
                        _ => 0,
                    };
                    if probe != PROBE_DOOR {
                        return Some(packet);
                    }
                }
                Err(ReceiveError::Empty) => self.wait_for(PollFlags::IN),
                Err(ReceiveError::Closed) => return None,
                Err(error) => panic!("receiving: {error}"),
            }
        }
    }

    pub fn receive(&self) -> Packet {
        self.next().expect("the broker closed the connection")
    }

    pub fn expect<M: Message>(&self) -> M {
        self.receive().body()
    }

    pub fn expect_end(&self) {
        if let Some(packet) = self.next() {
            panic!("message {} instead of the end", packet.kind);
        }
    }

    /// That the broker has nothing more to say and has read everything: a new doorbell
    /// is acknowledged next.
    pub fn expect_silence(&self) {
        self.send(&wire::Door { door: PROBE_DOOR }, &[]);
        self.expect::<wire::DoorAck>();
    }

    /// Reads what the broker says to all that it was told, which is refusals; returns how many.
    pub fn refusals(&self) -> usize {
        self.send(&wire::Door { door: PROBE_DOOR }, &[]);
        let mut count = 0;
        loop {
            let packet = self.receive();
            if packet.kind == wire::DoorAck::KIND {
                return count;
            }
            packet.body::<wire::Reject>();
            count += 1;
        }
    }
}

/// The reason of the refusal that comes next.
pub fn refusal(shim: &Shim) -> Option<Reason> {
    let reject: wire::Reject = shim.expect();
    assert_eq!(reject.pending, 0);
    Reason::from_u32(reject.reason)
}

pub fn hello(abi_version: u32) -> wire::Hello {
    wire::Hello {
        magic: HELLO_MAGIC,
        abi_version,
        path_policy: 0,
        rejoining: 0,
    }
}

/// What is true of a socket of this process; zeroes where the kernel says nothing.
pub fn claim(socket: impl AsFd) -> wire::Claim {
    let name = |address: rustix::net::SocketAddrAny| SocketAddr::try_from(address).ok();
    let local = rustix::net::getsockname(&socket).ok().and_then(name);
    let remote = rustix::net::getpeername(&socket).ok().flatten();
    claim_named(&socket, [local, remote.and_then(name)])
}

/// As [`claim`], with these names: asking the socket for its own takes its lock.
pub fn claim_named(socket: impl AsFd, names: [Option<SocketAddr>; 2]) -> wire::Claim {
    let ips = names.map(|name| match name.map(|name| name.ip()) {
        None => [0; 16],
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(ip)) => ip.octets(),
    });
    let ports = names.map(|name| name.map_or(0, |name| name.port()));
    wire::Claim {
        cookie: rustix::net::sockopt::socket_cookie(&socket).unwrap_or(0),
        netns_cookie: sockinfo::netns_cookie(&socket).unwrap_or(0),
        fd: std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd()) as u32,
        thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        local_ip: ips[0],
        remote_ip: ips[1],
        local_port: ports[0],
        remote_port: ports[1],
        protocol: wire::protocol::TCP,
    }
}

/// What is said of a UDP socket of this process that gets datagrams at `local` from `remote`.
pub fn udp_claim(socket: impl AsFd, local: SocketAddr, remote: SocketAddr) -> wire::Claim {
    wire::Claim {
        protocol: wire::protocol::UDP,
        ..claim_named(socket, [Some(local), Some(remote)])
    }
}

/// Header and body.
pub fn packet_of<M: Message>(message: &M) -> Vec<u8> {
    let body = message.as_bytes();
    let header = Header {
        kind: M::KIND,
        length_bytes: (size_of::<Header>() + body.len()) as u32,
    };
    [header.as_bytes(), body].concat()
}

/// Both ends of a TCP connection over loopback.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (a, b)
}

/// Which file a descriptor is.
pub fn identity(fd: impl AsFd) -> (u64, u64) {
    let stat = rustix::fs::fstat(fd).expect("fstat");
    (stat.st_dev, stat.st_ino)
}

/// Doorbells of one side of a link, by door.
#[derive(Default)]
pub struct Bells {
    /// By which it sees knocks at its own doors.
    pub shows: BTreeMap<u64, OwnedFd>,
    /// By which it knocks at the peer's.
    pub knocks: BTreeMap<u64, OwnedFd>,
}

/// A link between two shims and its first channel.
pub struct Linked {
    pub a: wire::Pair,
    pub b: wire::Pair,
    pub key: [u8; 16],
    pub regions: [OwnedFd; 2],
    pub bells: [Bells; 2],
}

/// Offers both ends and goes through all that makes a link.
pub fn link(a: &Shim, b: &Shim, conn_ids: [u64; 2], sockets: [BorrowedFd<'_>; 2]) -> Linked {
    a.offer(conn_ids[0], sockets[0]);
    b.offer(conn_ids[1], sockets[1]);
    linked(a, b, conn_ids)
}

/// As [`link`], when both ends are offered.
pub fn linked(a: &Shim, b: &Shim, conn_ids: [u64; 2]) -> Linked {
    let [link_a, link_b] = [a, b].map(|shim| shim.expect::<wire::Link>());
    assert_eq!(link_a.link_key, link_b.link_key);
    let regions = [sealed(shm::REGION_BYTES), sealed(shm::REGION_BYTES)];
    for (shim, link, region) in [(a, link_a, &regions[0]), (b, link_b, &regions[1])] {
        let link_id = link.link_id;
        shim.send(&wire::Region { link_id }, &[region.as_fd()]);
    }
    for (shim, peer, region, link) in [(a, b, &regions[1], link_a), (b, a, &regions[0], link_b)] {
        let packet = shim.receive();
        assert_eq!(packet.body::<wire::Peer>().link_id, link.link_id);
        assert_eq!(identity(&packet.fds[0]), identity(region));
        assert_eq!(identity(&packet.fds[1]), identity(&peer.page));
    }
    let [(bells_a, pair_a), (bells_b, pair_b)] = [a, b].map(bells_and_pair);
    assert_eq!(
        (pair_a.channel_id, pair_a.slot, pair_a.generation),
        (pair_b.channel_id, pair_b.slot, pair_b.generation)
    );
    assert_eq!([pair_a.conn_id, pair_b.conn_id], conn_ids);
    assert_eq!(
        [pair_a.link_id, pair_b.link_id],
        [link_a.link_id, link_b.link_id]
    );
    Linked {
        a: pair_a,
        b: pair_b,
        key: link_a.link_key,
        regions,
        bells: [bells_a, bells_b],
    }
}

/// The doorbells of a new link, which come before its first channel.
pub fn bells_and_pair(shim: &Shim) -> (Bells, wire::Pair) {
    let mut bells = Bells::default();
    loop {
        let mut packet = shim.receive();
        match packet.kind {
            wire::OwnDoor::KIND => {
                let door = packet.body::<wire::OwnDoor>().door;
                bells.shows.insert(door, packet.fds.remove(0));
            }
            wire::PeerDoor::KIND => {
                let door = packet.body::<wire::PeerDoor>().door;
                bells.knocks.insert(door, packet.fds.remove(0));
            }
            _ => return (bells, packet.body()),
        }
    }
}

/// Whether there can be domains.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        fordway_test_skip::skipped("needs root");
    }
    root
}

/// Domains of a broker, removed at the end.
pub struct Domains<'a>(pub &'a Broker);

impl Domains<'_> {
    pub fn add(&self, name: &str, ip: Option<Ipv4Addr>) -> Domain {
        let name = name.to_owned();
        match self.0.ask(&Request::DomainAdd {
            name,
            ip,
            publish: Vec::new(),
        }) {
            Reply::Domain(domain) => domain,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Domains<'_> {
    fn drop(&mut self) {
        self.0.down();
    }
}

pub fn open(domain: &Domain) -> OwnedFd {
    let path = domain.netns_path.as_ref().expect("path");
    netns::open(Path::new(path))
        .expect("open")
        .expect("namespace")
}

/// A namespace of nobody's, removed at the end.
pub struct PrivateNamespace(PathBuf);

impl PrivateNamespace {
    /// With these addresses on its loopback device.
    pub fn new(dir: &Path, addresses: &[Ipv4Addr]) -> Self {
        let file = dir.join("private");
        netns::create(&file).expect("namespace");
        let own = Self(file);
        own.ip(&["link", "set", "lo", "up"]);
        for ip in addresses {
            own.ip(&["address", "add", &format!("{ip}/32"), "dev", "lo"]);
        }
        own
    }

    pub fn ip(&self, words: &[&str]) {
        let status = self.within(|| Command::new("ip").args(words).status().expect("ip"));
        assert!(status.success(), "{words:?}");
    }

    /// Adds an IPv6 address, and waits until packets to it are taken. The kernel lays the route to the
    /// network at once, but the one to the address itself in a worker (linux: addrconf_dad_work);
    /// between the two a SYN is lost, and on the loopback device the next one is refused.
    pub fn add_ip6(&self, ip: Ipv6Addr, prefix: u8, device: &str) {
        let address = format!("{ip}/{prefix}");
        self.ip(&["address", "add", &address, "dev", device, "nodad"]);
        let ip = ip.to_string();
        let words = ["-6", "route", "show", "table", "local", "to", &ip];
        let route = || self.within(|| Command::new("ip").args(words).output().expect("ip"));
        let until = Instant::now() + Duration::from_secs(30);
        while route().stdout.is_empty() {
            assert!(Instant::now() < until, "no route to {ip}");
        }
    }

    /// Puts rules in force there; nft(8) reads them.
    pub fn nft(&self, rules: &str) {
        let status = self.within(|| Command::new("nft").arg(rules).status().expect("nft"));
        assert!(status.success(), "{rules}");
    }

    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = netns::open(&self.0).expect("open").expect("namespace");
        netns::within(namespace.as_fd(), work).expect("enter")
    }
}

impl Drop for PrivateNamespace {
    fn drop(&mut self) {
        let _ = netns::remove(&self.0);
    }
}

/// A connection between exactly these names in the calling thread's namespace.
pub fn connect_as(client: SocketAddr, server: SocketAddr) -> (TcpStream, TcpStream) {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let listener = rustix::net::socket(family, SocketType::STREAM, None).expect("socket");
    sockopt::set_socket_reuseaddr(&listener, true).expect("reuse");
    rustix::net::bind(&listener, &server).expect("bind server");
    rustix::net::listen(&listener, 1).expect("listen");
    let socket = rustix::net::socket(family, SocketType::STREAM, None).expect("socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("reuse");
    rustix::net::bind(&socket, &client).expect("bind client");
    rustix::net::connect(&socket, &server).expect("connect");
    let (accepted, _) = TcpListener::from(listener).accept().expect("accept");
    (socket.into(), accepted)
}
