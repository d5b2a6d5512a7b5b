//! The network stack: frames of any content, and segments that are nearly right, while its owner
//! listens, connects, sends, reads and closes at random, and time jumps. With [`IS_WIDE`] also what
//! makes and takes addresses and ways: neighbor discovery, routers, groups, ICMP errors that quote
//! what was sent, extension headers, and UDP sockets that come and go.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Bytes;
use fordway_netstack::{
    Behind, Cidr, Config, Event, HEAD_BYTES_MIN, Ipv6Options, Limits, ListenerId, RxChecksum,
    RxFrame, Stack, TcpId, TcpOptions, UdpId, UdpOptions,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const STEPS_MAX: usize = 400;
/// In the first byte: steps of both kinds. Inputs from before it have other steps than with it.
const IS_WIDE: u8 = 0xe0;
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const THEIRS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// The rest of a frame whose sender has written something else there meanwhile.
#[derive(Debug)]
struct Changed;

impl Behind for Changed {
    fn copy_to(&self, at: usize, target: &mut [u8]) {
        target.fill(at as u8);
    }
}

struct Run {
    stack: Stack,
    now: u64,
    listener: ListenerId,
    port: UdpId,
    connections: Vec<TcpId>,
    buffer: Vec<u8>,
    /// Sequence and acknowledgement numbers last seen from us, by our port and theirs.
    seen: Vec<(u16, u16, u32, u32)>,
    mtu_bytes: usize,
    has_gso: bool,
    is_wide: bool,
    sockets: Vec<UdpId>,
    /// The last IP packet that left.
    last_out: Vec<u8>,
}

fn limits() -> Limits {
    Limits {
        flows_max: 8,
        half_open_max: 4,
        time_wait_max: 4,
        neighbors_max: 8,
        neighbors_pending_max: 4,
        outbox_bytes_max: 64 * 1024,
        udp_queue_bytes_max: 4096,
        udp_bytes_max: 8192,
        paths_max: 4,
        advertised_max: 3,
        reassembly_bytes_max: 128 * 1024,
        reassembly_packets_max: 4,
        ..Limits::default()
    }
}

fn options() -> TcpOptions {
    TcpOptions {
        receive_bytes: 4096,
        send_bytes: 4096,
        ..TcpOptions::default()
    }
}

/// Nothing panics, what leaves is sound, and what is kept stays within the limits.
pub fn netstack(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let Some(mut run) = Run::new(bytes.byte()) else {
        return;
    };
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        run.step(&mut bytes);
        run.drain();
    }
    // Everyone lets go; in time nothing is left.
    for id in std::mem::take(&mut run.connections) {
        let _ = run.stack.tcp_close(id);
    }
    let _ = run.stack.tcp_unlisten(run.listener);
    run.stack.dhcp_stop();
    run.stack.ipv6_stop();
    for _ in 0..400 {
        run.now += 1_000_000;
        run.drain();
    }
    assert_eq!(run.stack.tcp_counts(), (0, 0, 0), "all connections end");
}

impl Run {
    fn new(kind: u8) -> Option<Run> {
        let mut config = Config::new(MAC, 42);
        config.limits = limits();
        let has_gso = kind & 1 != 0;
        config.link.offloads.gso_v4 = has_gso;
        config.link.offloads.tx_checksum_v4 = has_gso;
        config.link.mtu_bytes = if kind & 2 != 0 { 1500 } else { 1280 };
        let mtu_bytes = config.link.mtu_bytes;
        let mut stack = Stack::new(config);
        let is_wide = kind & IS_WIDE == IS_WIDE;
        let own = [Cidr::new(OURS.into(), 24), Cidr::new(OURS_V6.into(), 64)];
        if is_wide {
            stack.set_addresses(&own);
            let options = Ipv6Options {
                detects_duplicates: kind & 8 != 0,
                asks_routers: kind & 16 == 0,
                makes_addresses: true,
            };
            stack.ipv6_start(1, options);
        } else {
            stack.set_addresses(&[own[0], Cidr::link_local(&MAC)]);
        }
        let listener = stack.tcp_listen(None, 80, 2, options()).ok()?;
        let port = stack.udp_bind(None, 53).ok()?;
        if kind & 4 != 0 {
            stack.dhcp_start(1);
        }
        Some(Run {
            stack,
            now: 1,
            listener,
            port,
            connections: Vec::new(),
            buffer: vec![0; 70_000],
            seen: Vec::new(),
            mtu_bytes,
            has_gso,
            is_wide,
            sockets: Vec::new(),
            last_out: Vec::new(),
        })
    }

    fn step(&mut self, bytes: &mut Bytes) {
        if self.is_wide && bytes.byte() & 1 != 0 {
            return self.wide_step(bytes);
        }
        match bytes.byte() % 16 {
            0 => self.raw(bytes),
            1..=6 => self.segment(bytes),
            7 => self.packet(bytes),
            8 => self.arp(bytes),
            9 => self.now += 1 << (bytes.byte() % 27),
            10 => {
                let port = 1000 + u16::from(bytes.byte() % 4);
                let remote = SocketAddr::new(THEIRS.into(), port);
                if let Ok(id) = self.stack.tcp_connect(self.now, remote, None, options()) {
                    self.connections.push(id);
                }
            }
            11 | 12 => self.use_connection(bytes),
            13 => {
                let _ = self.stack.ping(THEIRS.into(), 1, 2, &[0; 40]);
                let to = SocketAddr::new(THEIRS.into(), 53);
                let len = bytes.number(2) as usize;
                let _ = self.stack.udp_send(self.port, to, &vec![1; len]);
            }
            14 => {
                let _ = self.stack.dns_query(self.now, "a.example", false);
                self.stack.dns_set_servers(&[IpAddr::V4(THEIRS)]);
            }
            _ => {
                let mut buffer = [0; 100];
                while self.stack.udp_receive(self.port, &mut buffer).is_ok() {}
                while self.stack.ping_reply().is_some() {}
                while self.stack.dns_answer().is_some() {}
            }
        }
    }

    fn wide_step(&mut self, bytes: &mut Bytes) {
        match bytes.byte() % 8 {
            0 | 1 => self.discovery(bytes),
            2 | 3 => self.router(bytes),
            4 => self.error(bytes),
            5 => self.extended(bytes),
            6 => self.use_socket(bytes),
            _ => self.now += 1 << (bytes.byte() % 40),
        }
    }

    fn six(&mut self, hops: u8, places: u8, next: u8, payload: &[u8]) {
        let IpAddr::V6(link_local) = Cidr::link_local(&MAC).address else {
            return;
        };
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let near = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(places >> 4));
        let source = [near, THEIRS_V6, Ipv6Addr::UNSPECIFIED, near][usize::from(places & 3)];
        let target = [link_local, OURS_V6, group, all][usize::from(places >> 2 & 3)];
        let mut frame = Run::start(0x86dd);
        frame.extend_from_slice(&[0x60, 0, 0, 0]);
        frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[next, hops]);
        frame.extend_from_slice(&source.octets());
        frame.extend_from_slice(&target.octets());
        frame.extend_from_slice(payload);
        self.give(frame);
    }

    /// Neighbors and groups.
    fn discovery(&mut self, bytes: &mut Bytes) {
        let (word, places) = (bytes.byte(), bytes.byte());
        let kind = [128, 130, 133, 134, 135, 136, 137, 143][usize::from(word % 8)];
        let mut message = vec![kind, 0, 0, 0, bytes.byte(), bytes.byte(), 0, 0];
        let target = match word >> 3 & 3 {
            0 => Cidr::link_local(&MAC).address,
            1 => OURS_V6.into(),
            2 => IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(places >> 4)]),
            _ => THEIRS_V6.into(),
        };
        if let IpAddr::V6(six) = target {
            message.extend_from_slice(&six.octets());
        }
        let len = usize::from(bytes.byte() % 40);
        message.extend_from_slice(bytes.take(len));
        let hops = if word & 0x80 != 0 { 1 } else { 255 };
        self.six(hops, places, 58, &message);
    }

    /// Advertisements whose options are nearly right.
    fn router(&mut self, bytes: &mut Bytes) {
        let places = bytes.byte();
        let mut message = vec![134, 0, 0, 0, bytes.byte(), bytes.byte()];
        message.extend_from_slice(&(bytes.number(1) as u16).to_be_bytes());
        message.extend_from_slice(&[0; 8]);
        for _ in 0..bytes.byte() % 6 {
            let kind = bytes.byte();
            match kind % 4 {
                0 => {
                    message.extend_from_slice(&[3, 4, 64, kind]);
                    let lifetimes = [bytes.byte(), bytes.byte()];
                    for lifetime in lifetimes {
                        let seconds = 1u32.checked_shl(lifetime.into()).unwrap_or(u32::MAX);
                        message.extend_from_slice(&seconds.to_be_bytes());
                    }
                    message.extend_from_slice(&[0; 4]);
                    let net = Ipv6Addr::new(0xfd00, 0, 0, u16::from(bytes.byte() % 8), 0, 0, 0, 0);
                    message.extend_from_slice(&net.octets());
                }
                1 => {
                    message.extend_from_slice(&[5, 1, 0, 0]);
                    message.extend_from_slice(&(bytes.number(2) as u32).to_be_bytes());
                }
                2 => {
                    message.extend_from_slice(&[1, 1]);
                    message.extend_from_slice(&PEER);
                }
                _ => {
                    let len = usize::from(bytes.byte() % 10);
                    message.extend_from_slice(bytes.take(len));
                }
            }
        }
        self.six(255, places & 0xf0 | 0x0c, 58, &message);
    }

    /// An ICMP error that quotes what left last, with a byte or two changed.
    fn error(&mut self, bytes: &mut Bytes) {
        let (kind, code, mtu) = (bytes.byte(), bytes.byte(), bytes.number(2) as u16);
        let mut quote = self.last_out.clone();
        let len = usize::from(bytes.byte());
        quote.truncate(len);
        for _ in 0..kind >> 6 {
            let (at, value) = (usize::from(bytes.byte()), bytes.byte());
            if let Some(byte) = quote.get_mut(at) {
                *byte ^= value;
            }
        }
        let is_v6 = quote.first().is_some_and(|first| first >> 4 == 6);
        let mut message = vec![kind & 15, code & 15, 0, 0, 0, 0];
        message.extend_from_slice(&mtu.to_be_bytes());
        message.extend_from_slice(&quote);
        if is_v6 {
            self.six(64, 0x15, 58, &message);
        } else {
            self.give(ipv4(1, 0, &message));
        }
    }

    /// Extension headers before a datagram.
    fn extended(&mut self, bytes: &mut Bytes) {
        let places = bytes.byte();
        let first = [0, 43, 44, 60, 17, 59][usize::from(bytes.byte() % 6)];
        let mut payload = Vec::new();
        for _ in 0..bytes.byte() % 10 {
            let next = [0, 43, 44, 60, 17, 58][usize::from(bytes.byte() % 6)];
            payload.extend_from_slice(&[next, 0]);
            let taken = bytes.take(6);
            payload.extend_from_slice(taken);
            payload.resize(payload.len() + 6 - taken.len(), 0);
        }
        payload.extend_from_slice(&[0, 53, 0, 53, 0, 8, 0, 0]);
        self.six(64, places, first, &payload);
    }

    fn use_socket(&mut self, bytes: &mut Bytes) {
        let (what, which) = (bytes.byte(), usize::from(bytes.byte()));
        let peer: IpAddr = if what & 0x80 != 0 {
            THEIRS_V6.into()
        } else {
            THEIRS.into()
        };
        let peer = SocketAddr::new(peer, 53);
        if what % 8 == 0 && self.sockets.len() < 16 {
            let options = UdpOptions {
                shares_port: what & 0x40 != 0,
                ..UdpOptions::default()
            };
            let bound = self
                .stack
                .udp_bind_with(None, 53 + u16::from(what >> 5), options);
            self.sockets.extend(bound);
        }
        if self.sockets.is_empty() {
            return;
        }
        let at = which % self.sockets.len();
        let id = self.sockets[at];
        match what % 8 {
            1 => drop(self.stack.udp_connect(id, Some(peer))),
            2 => drop(self.stack.udp_connect(id, None)),
            3..=5 => drop(self.stack.udp_send(id, peer, &vec![1; which * 16])),
            6 => drop(self.stack.udp_receive(id, &mut [0; 64])),
            7 => {
                let _ = self.stack.udp_close(id);
                self.sockets.swap_remove(at);
            }
            _ => {}
        }
    }

    fn give(&mut self, mut frame: Vec<u8>) {
        let checksum = RxChecksum::Good;
        let mut frame = RxFrame {
            bytes: &mut frame,
            checksum,
        };
        // Some come as their head alone.
        match frame.bytes.len() {
            len @ HEAD_BYTES_MIN.. if len % 2 == 1 => {
                let stack = &mut self.stack;
                stack.receive_head(self.now, &mut frame, HEAD_BYTES_MIN, &Changed);
            }
            _ => self.stack.receive(self.now, &mut frame),
        }
    }

    fn raw(&mut self, bytes: &mut Bytes) {
        let len = usize::from(bytes.byte());
        self.give(bytes.take(len).to_vec());
    }

    fn start(kind: u16) -> Vec<u8> {
        let mut frame = MAC.to_vec();
        frame.extend_from_slice(&PEER);
        frame.extend_from_slice(&kind.to_be_bytes());
        frame
    }

    fn arp(&mut self, bytes: &mut Bytes) {
        let mut frame = Run::start(0x0806);
        frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1 + bytes.byte() % 2]);
        frame.extend_from_slice(&PEER);
        frame.extend_from_slice(&[10, 0, 0, 2 + bytes.byte() % 30]);
        frame.extend_from_slice(&MAC);
        frame.extend_from_slice(&OURS.octets());
        self.give(frame);
    }

    /// An IP packet whose header is right and whose payload is not ours to judge.
    fn packet(&mut self, bytes: &mut Bytes) {
        let word = bytes.byte();
        let payload_len = usize::from(bytes.byte());
        let payload = bytes.take(payload_len).to_vec();
        let fragment = if word & 0x80 != 0 {
            bytes.number(2) as u16
        } else {
            0
        };
        if word & 0x40 != 0 {
            let mut frame = Run::start(0x86dd);
            frame.extend_from_slice(&[0x60, 0, 0, 0]);
            frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[[58, 6, 17, 44, 0, 60][usize::from(word % 6)], 255]);
            let mut source = Cidr::link_local(&PEER).address;
            let mut target = Cidr::link_local(&MAC).address;
            if word & 0x20 != 0 {
                target = IpAddr::from([0xff02, 0, 0, 0, 0, 1, 0xff00, 1]);
                source = IpAddr::from([0u16; 8]);
            }
            for address in [source, target] {
                if let IpAddr::V6(six) = address {
                    frame.extend_from_slice(&six.octets());
                }
            }
            frame.extend_from_slice(&payload);
            return self.give(frame);
        }
        let protocol = [1, 6, 17, 2][usize::from(word % 4)];
        self.give(ipv4(protocol, fragment, &payload));
    }

    /// A TCP segment that may belong to a connection.
    fn segment(&mut self, bytes: &mut Bytes) {
        let which = usize::from(bytes.byte());
        let flags = bytes.byte();
        let (ours, theirs, seq, ack) = match self.seen.get(which) {
            Some((ours, theirs, seq, ack)) => (*ours, *theirs, *ack, *seq),
            None => (80, 2000 + (which % 8) as u16, 7, 0),
        };
        let nudge = |byte: u8| u32::from(byte & 15).wrapping_sub(u32::from(byte >> 4));
        let seq = seq.wrapping_add(nudge(bytes.byte()));
        let ack = ack.wrapping_add(nudge(bytes.byte()));
        let options_len = usize::from(bytes.byte() % 11) * 4;
        let mut segment = Vec::new();
        segment.extend_from_slice(&theirs.to_be_bytes());
        segment.extend_from_slice(&ours.to_be_bytes());
        segment.extend_from_slice(&seq.to_be_bytes());
        segment.extend_from_slice(&ack.to_be_bytes());
        segment.extend_from_slice(&[(5 + options_len as u8 / 4) << 4, flags & 0x3f]);
        segment.extend_from_slice(&(bytes.number(2) as u16).to_be_bytes());
        segment.extend_from_slice(&[0; 4]);
        let given = bytes.take(options_len);
        segment.extend_from_slice(given);
        segment.resize(20 + options_len, 1);
        let payload_len = usize::from(bytes.byte()) * 8;
        segment.resize(segment.len() + payload_len, 9);
        self.give(ipv4(6, 0, &segment));
    }

    fn use_connection(&mut self, bytes: &mut Bytes) {
        let (which, what) = (usize::from(bytes.byte()), bytes.byte());
        if self.connections.is_empty() {
            return;
        }
        let at = which % self.connections.len();
        let id = self.connections[at];
        let len = usize::from(bytes.byte()) * 16;
        match what % 8 {
            0..=2 => drop(self.stack.tcp_send(id, &vec![5; len])),
            3 | 4 => drop(self.stack.tcp_receive(id, &mut vec![0; len])),
            5 => drop(self.stack.tcp_shutdown(id)),
            6 => drop(self.stack.tcp_close(id)),
            _ => drop(self.stack.tcp_abort(id)),
        }
        if what % 8 >= 6 {
            self.connections.swap_remove(at);
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.stack.event() {
            if let Event::Accept(listener) = event {
                while let Ok((id, _)) = self.stack.tcp_accept(listener) {
                    self.connections.push(id);
                }
            }
        }
        let mut frames = 0;
        while let Some(frame) = self.stack.transmit(self.now, &mut self.buffer) {
            let bytes = &self.buffer[..frame.len_bytes];
            // The last fragment of a packet may hold one byte.
            assert!(bytes.len() > 34 && bytes[6..12] == MAC);
            let is_large = bytes.len() > 14 + self.mtu_bytes;
            assert!(!is_large || (frame.gso_bytes.is_some() && self.has_gso));
            if self.is_wide && bytes[12..14] != [8, 6] {
                self.last_out = bytes[14..].to_vec();
            }
            if bytes[12..14] == [8, 0] {
                assert_eq!(
                    usize::from(u16::from_be_bytes([bytes[16], bytes[17]])),
                    bytes.len() - 14
                );
                assert_eq!(ones(&bytes[14..34]), 0xffff, "the IP header's checksum");
                if bytes[23] == 6 {
                    self.note();
                }
            }
            frames += 1;
            assert!(frames < 2000, "it does not come to rest");
        }
        let limits = limits();
        let (flows, half_open, time_wait) = self.stack.tcp_counts();
        assert!(flows <= limits.flows_max);
        assert!(half_open <= limits.half_open_max);
        assert!(time_wait <= limits.time_wait_max);
        assert!(self.stack.neighbor_count() <= limits.neighbors_max);
        assert!(self.stack.path_count() <= limits.paths_max);
        assert!(self.stack.ipv6_routers().len() <= limits.advertised_max);
        assert!(self.stack.ipv6_addresses().count() <= limits.advertised_max + 1);
        if let Some(at) = self.stack.poll_at() {
            assert!(at > self.now, "what is due was done");
        }
    }

    /// Remembers what our segment said, so that the next of theirs can fit.
    fn note(&mut self) {
        let word = |at: usize| u16::from_be_bytes([self.buffer[at], self.buffer[at + 1]]);
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        let (ours, theirs) = (word(34), word(36));
        let (seq, ack) = (long(38).wrapping_add(1), long(42));
        let fresh = (ours, theirs, seq, ack);
        match self.seen.iter().position(|s| s.0 == ours && s.1 == theirs) {
            Some(at) => self.seen[at] = fresh,
            None if self.seen.len() < 16 => self.seen.push(fresh),
            None => {}
        }
    }
}

fn ones(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|p| u32::from(p[0]) << 8 | u32::from(p[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Run::start(0x0800);
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&((20 + payload.len()) as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 1]);
    frame.extend_from_slice(&fragment.to_be_bytes());
    frame.extend_from_slice(&[64, protocol, 0, 0]);
    frame.extend_from_slice(&THEIRS.octets());
    frame.extend_from_slice(&OURS.octets());
    let sum = !ones(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}
