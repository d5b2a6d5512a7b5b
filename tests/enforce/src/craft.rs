//! Packets that no program's socket sends: what a domain's root may try against the rules.
//!
//! `craft` asks for connections by SYNs of its own making, in one piece and in fragments, and
//! says which of them were answered. Behind each comes a plain SYN to a port that the rules
//! leave open; packets of one CPU stay in order, so once that one is answered, no answer to
//! the crafted one is on its way any more. `forge` sends frames that are not its domain's to send.

use anyhow::{Context, Result, bail, ensure};
use fordway_platform::packet::PacketSocket;
use fordway_test_filter::packets::checksum;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Longest that an answer may take.
const LIMIT: Duration = Duration::from_secs(10);
const PROTO_TCP: u8 = 6;
const SYN: u8 = 2;
const ACK: u8 = 16;
const RST: u8 = 4;

/// A piece of a packet: where it begins, in bytes, and whether more come behind it.
struct Piece<'p> {
    at: usize,
    bytes: &'p [u8],
    more: bool,
}

/// How a SYN is sent. The last three mean one thing to who keeps the first copy of a byte, and
/// another to who keeps the last.
const SHAPES: [&str; 8] = [
    "whole",
    "options",
    "tiny",
    "reversed",
    "options-tiny",
    "first-twice",
    "first-last",
    "overlapping",
];

/// The SYNs; prints `SHAPE answered` or `SHAPE silent` for each.
pub fn craft(from: Ipv4Addr, server: SocketAddrV4, open_port: u16) -> Result<()> {
    stay_on_one_cpu()?;
    let open = |protocol| {
        rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )
    };
    let (out, answers) = (open(ipproto::RAW)?, open(ipproto::TCP)?);
    // Pieces that an earlier run left behind are not to meet these.
    let base = 20_000 + (std::process::id() % 1_000) as u16 * 16;
    for (number, shape) in (0..).zip(SHAPES) {
        let port = base + number * 2;
        for packet in shaped(shape, from, server, port, open_port)? {
            send(&out, &packet, server)?;
        }
        let sentinel = SocketAddrV4::new(*server.ip(), open_port);
        let segment = syn(from, port + 1, sentinel);
        send(
            &out,
            &ip(from, *server.ip(), 0, &[], &whole(&segment)),
            sentinel,
        )?;
        let answered = is_answered(&answers, server, [port, port + 1])?;
        println!("{shape} {}", if answered { "answered" } else { "silent" });
    }
    Ok(())
}

fn stay_on_one_cpu() -> Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rustix::thread::sched_getcpu());
    Ok(rustix::thread::sched_setaffinity(None, &cpus)?)
}

fn send(socket: &OwnedFd, packet: &[u8], to: SocketAddrV4) -> Result<()> {
    rustix::net::sendto(socket, packet, SendFlags::empty(), &SocketAddr::V4(to))?;
    Ok(())
}

fn shaped(
    shape: &str,
    from: Ipv4Addr,
    server: SocketAddrV4,
    port: u16,
    decoy: u16,
) -> Result<Vec<Vec<u8>>> {
    let segment = syn(from, port, server);
    let mut harmless = segment.clone();
    harmless[2..4].copy_from_slice(&decoy.to_be_bytes());
    let (head, tail) = segment.split_at(8);
    let first = |bytes| Piece {
        at: 0,
        bytes,
        more: true,
    };
    let last = Piece {
        at: 8,
        bytes: tail,
        more: false,
    };
    let options = [1; 40];
    let (options, pieces): (&[u8], Vec<Piece>) = match shape {
        "whole" => (&[], vec![whole(&segment)]),
        "options" => (&options, vec![whole(&segment)]),
        "tiny" => (&[], vec![first(head), last]),
        "reversed" => (&[], vec![last, first(head)]),
        "options-tiny" => (&options, vec![first(head), last]),
        "first-twice" => (&[], vec![first(&harmless[..8]), first(head), last]),
        "first-last" => (&[], vec![first(head), first(&harmless[..8]), last]),
        "overlapping" => (&[], vec![first(&harmless[..16]), first(head), last]),
        _ => bail!("no shape {shape}"),
    };
    let pieces = pieces.iter();
    Ok(pieces
        .map(|piece| ip(from, *server.ip(), port, options, piece))
        .collect())
}

fn whole(bytes: &[u8]) -> Piece<'_> {
    Piece {
        at: 0,
        bytes,
        more: false,
    }
}

/// A SYN with its checksum.
fn syn(from: Ipv4Addr, port: u16, server: SocketAddrV4) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(port.to_be_bytes());
    segment.extend(server.port().to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, SYN, 0x20, 0, 0, 0, 0, 0]);
    let mut summed = [from.octets(), server.ip().octets()].concat();
    summed.extend([0, PROTO_TCP, 0, segment.len() as u8]);
    summed.extend(&segment);
    let sum = checksum(&summed, 0);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// A packet with a piece in it. Who gets 0 for its number is given one by the kernel.
fn ip(from: Ipv4Addr, to: Ipv4Addr, number: u16, options: &[u8], piece: &Piece) -> Vec<u8> {
    let header = 20 + options.len();
    let length = (header + piece.bytes.len()) as u16;
    let offset = (piece.at / 8) as u16 | if piece.more { 0x2000 } else { 0 };
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(length.to_be_bytes());
    packet.extend(number.to_be_bytes());
    packet.extend(offset.to_be_bytes());
    packet.extend([64, PROTO_TCP, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(options);
    let sum = checksum(&packet, 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(piece.bytes);
    packet
}

/// Reads on until the sentinel has its answer, which closes its port; whether the other had one.
fn is_answered(socket: &OwnedFd, server: SocketAddrV4, ports: [u16; 2]) -> Result<bool> {
    let until = Instant::now() + LIMIT;
    let mut answered = false;
    let mut buffer = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the open port does not answer");
        let mut wait = [PollFd::new(socket, PollFlags::IN)];
        if rustix::event::poll(&mut wait, Some(&left.try_into()?))? == 0 {
            continue;
        }
        let (length, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let packet = &buffer[..length];
        let segment = packet.get(usize::from(packet[0] & 15) * 4..);
        let segment = segment.filter(|s| s.len() >= 20).context("no segment")?;
        let to = u16::from_be_bytes([segment[2], segment[3]]);
        let flags = segment[13];
        if packet[12..16] != server.ip().octets() {
            continue;
        }
        answered |= to == ports[0] && flags & (SYN | ACK) == SYN | ACK;
        if to == ports[1] && flags & RST != 0 {
            return Ok(answered);
        }
    }
}

/// Frames that no domain may send, one of each kind.
pub fn forge(from: Ipv4Addr, server: SocketAddrV4, stolen: Ipv4Addr) -> Result<()> {
    stay_on_one_cpu()?;
    let socket = PacketSocket::open("eth0")?;
    let mac = |ip: Ipv4Addr| [[2, 0x46].as_slice(), &ip.octets()].concat();
    let packet = |from: Ipv4Addr, port| {
        let segment = syn(from, port, server);
        ip(from, *server.ip(), port, &[], &whole(&segment))
    };
    let frame = |source: Ipv4Addr, kind: &[u8], rest: &[u8]| {
        [&mac(*server.ip())[..], &mac(source), kind, rest].concat()
    };
    let arp = [
        &[0, 1, 8, 0, 6, 4, 0, 2][..],
        &mac(from),
        &stolen.octets(),
        &mac(*server.ip()),
        &server.ip().octets(),
    ]
    .concat();
    for (name, frame) in [
        (
            "another's address",
            frame(from, &IPV4, &packet(stolen, 31_000)),
        ),
        ("another's MAC", frame(stolen, &IPV4, &packet(from, 31_001))),
        ("another's ARP", frame(from, &[8, 6], &arp)),
        // A tag of VLAN 0 is none to who gets it (IEEE 802.1Q: priority only).
        (
            "a priority tag",
            frame(from, &[0x81, 0, 0, 0, 8, 0], &packet(from, 31_002)),
        ),
        (
            "a service tag",
            frame(from, &[0x88, 0xa8, 0, 0, 8, 0], &packet(from, 31_003)),
        ),
        (
            "a VLAN",
            frame(from, &[0x81, 0, 0, 5, 8, 0], &packet(from, 31_004)),
        ),
        (
            "two tags",
            frame(
                from,
                &[0x81, 0, 0, 0, 0x81, 0, 0, 0, 8, 0],
                &packet(from, 31_005),
            ),
        ),
        ("no protocol", frame(from, &[0x88, 0xb5], &[0; 46])),
    ] {
        socket.send(&frame)?;
        println!("sent {name}");
    }
    Ok(())
}

const IPV4: [u8; 2] = [8, 0];
