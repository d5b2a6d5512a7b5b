//! Packets that no program's socket sends: what a domain's root may try against the rules.
//!
//! `craft` asks for connections by SYNs of its own making, in one piece and in fragments, and
//! says which of them were answered. Behind each comes a plain SYN to a port that the rules
//! leave open; packets of one CPU stay in order, so once that one is answered, no answer to
//! the crafted one is on its way any more. `forge` sends frames that are not its domain's to send.

use anyhow::{Context, Result, bail, ensure};
use fordway_platform::frames::FrameNotes;
use fordway_platform::packet;
use fordway_test_filter::packets::checksum;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
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
    let socket = packet::open("eth0")?;
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
        socket.send(&frame, FrameNotes::default())?;
        println!("sent {name}");
    }
    Ok(())
}

const IPV4: [u8; 2] = [8, 0];

// RFC 4861, 4; RFC 4443, 2.1.
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const ECHO_REQUEST: u8 = 128;
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
const ICMP6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

/// The same for IPv6, whose lies are about neighbours: prints `lie NAME` for each that may not pass,
/// and `true NAME` for what a domain's kernel sends.
pub fn forge6(from: Ipv6Addr, victim: Ipv6Addr, stolen: Ipv6Addr) -> Result<()> {
    stay_on_one_cpu()?;
    let socket = packet::open("eth0")?;
    let mac = |ip: Ipv6Addr| [[2, 0x46].as_slice(), &ip.octets()[12..]].concat();
    // Appendix A of RFC 4291.
    let link_local = |ip: Ipv6Addr| -> Ipv6Addr {
        let [a, b, c, d] = (ip.to_bits() as u32).to_be_bytes().map(u16::from);
        let last = [0, 0x46, a << 8 | 0xff, 0xfe00 | b, c << 8 | d];
        Ipv6Addr::new(0xfe80, 0, 0, last[0], last[1], last[2], last[3], last[4])
    };
    let option = |kind: u8, of: Ipv6Addr| [&[kind, 1][..], &mac(of)].concat();
    let [source, target] = [1, 2];
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let frame = |mac_of: Ipv6Addr, from: Ipv6Addr, next: u8, rest: &[u8]| {
        let length = (rest.len() as u16).to_be_bytes();
        let header = [&[0x60, 0, 0, 0][..], &length, &[next, 255]].concat();
        let addresses = [from.octets(), victim.octets()].concat();
        [
            &mac(victim)[..],
            &mac(mac_of),
            &[0x86, 0xdd],
            &header,
            &addresses,
            rest,
        ]
        .concat()
    };
    let message = |from: Ipv6Addr, kind: u8, fixed: &[u8], options: &[u8]| {
        let mut message = [&[kind, 0, 0, 0][..], fixed, options].concat();
        let pseudo = [
            &from.octets()[..],
            &victim.octets(),
            &(message.len() as u32).to_be_bytes(),
            &[0, 0, 0, ICMP6],
            &message,
        ]
        .concat();
        let sum = checksum(&pseudo, 0);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    };
    // Of a host that takes the place of what was known: flags solicited, override.
    let about = |flags: u8, of: Ipv6Addr| [&[flags, 0, 0, 0][..], &of.octets()].concat();
    let claim = |from: Ipv6Addr, of: Ipv6Addr, options: &[u8]| {
        message(from, ADVERTISEMENT, &about(0x60, of), options)
    };
    let asks = |from: Ipv6Addr, of: Ipv6Addr, options: &[u8]| {
        message(from, SOLICITATION, &about(0, of), options)
    };
    let plain = |message: Vec<u8>| frame(from, from, ICMP6, &message);
    let behind = |next: u8, header: &[u8], message: Vec<u8>| {
        frame(from, from, next, &[header, &message].concat())
    };
    let echo = |from| message(from, ECHO_REQUEST, &[0, 1, 0, 1], &[]);
    let nobody = Ipv6Addr::UNSPECIFIED;
    let own = link_local(from);
    // PadN of four bytes (RFC 8200, 4.2) in a header of eight.
    let padding = [ICMP6, 0, 1, 4, 0, 0, 0, 0];
    let lying = claim(from, stolen, &option(target, from));
    // To whoever has the address, as the fabric leads what domains send to each other.
    let leader = [2, 0x46, 0, 0, 0, 0];
    let led = |frame: Vec<u8>| [&leader[..], &frame[6..]].concat();
    let leads = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x46, 0xff, 0xfe00, 0);
    let router = [64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let lies = [
        (
            "another's address",
            frame(from, stolen, ICMP6, &echo(stolen)),
        ),
        ("another's MAC", frame(stolen, from, ICMP6, &echo(from))),
        (
            "another's link-local address",
            frame(from, link_local(stolen), ICMP6, &echo(link_local(stolen))),
        ),
        (
            "another's address, to be led",
            led(frame(from, stolen, ICMP6, &echo(stolen))),
        ),
        (
            "another's MAC, to be led",
            led(frame(stolen, from, ICMP6, &echo(from))),
        ),
        (
            "an advertisement in the place of who leads",
            plain(claim(from, leads, &option(target, from))),
        ),
        (
            "an advertisement of another's address",
            plain(lying.clone()),
        ),
        (
            "an advertisement without an option",
            plain(claim(from, stolen, &[])),
        ),
        (
            "an advertisement with another's MAC",
            plain(claim(from, from, &option(target, stolen))),
        ),
        (
            "an advertisement in another's name",
            frame(
                from,
                stolen,
                ICMP6,
                &claim(stolen, stolen, &option(target, from)),
            ),
        ),
        (
            "an advertisement with two options",
            plain(claim(
                from,
                from,
                &[&nonce[..], &option(target, stolen)].concat(),
            )),
        ),
        (
            "an advertisement behind a header",
            behind(HOP_BY_HOP, &padding, lying.clone()),
        ),
        (
            "an advertisement in a fragment",
            behind(FRAGMENT, &[ICMP6, 0, 0, 1, 0, 0, 0, 9], lying.clone()),
        ),
        (
            "a header in a fragment",
            behind(
                FRAGMENT,
                &[DESTINATION_OPTIONS, 0, 0, 1, 0, 0, 0, 9],
                padding.to_vec(),
            ),
        ),
        (
            "a solicitation with another's MAC",
            plain(asks(from, victim, &option(source, stolen))),
        ),
        (
            "a solicitation with two options",
            plain(asks(
                from,
                victim,
                &[&nonce[..], &option(source, stolen)].concat(),
            )),
        ),
        (
            "a question whether another's address is free",
            frame(from, nobody, ICMP6, &asks(nobody, stolen, &[])),
        ),
        (
            "a router",
            frame(
                from,
                own,
                ICMP6,
                &message(own, ROUTER_ADVERTISEMENT, &router, &option(source, from)),
            ),
        ),
        (
            "a redirect",
            frame(
                from,
                own,
                ICMP6,
                &message(
                    own,
                    REDIRECT,
                    &[&about(0, own)[..], &stolen.octets()].concat(),
                    &[],
                ),
            ),
        ),
    ];
    let truths = [
        ("an echo request", plain(echo(from))),
        (
            "an advertisement",
            plain(claim(from, from, &option(target, from))),
        ),
        ("an advertisement alone", plain(claim(from, from, &[]))),
        (
            "a solicitation",
            plain(asks(from, victim, &option(source, from))),
        ),
        (
            "a question whether an address is free",
            frame(from, nobody, ICMP6, &asks(nobody, from, &nonce)),
        ),
    ];
    for (what, frames) in [("true", &truths[..]), ("lie", &lies)] {
        for (name, frame) in frames {
            socket.send(frame, FrameNotes::default())?;
            println!("{what} {name}");
        }
    }
    Ok(())
}
