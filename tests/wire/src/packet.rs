//! A packet as a script says it: written as bytes, or held against bytes.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};

use crate::call::bytes;
use crate::{OWN_MAC, PEER_MAC, address};

/// The peer's initial sequence number.
pub(crate) const PEER_ISN: u32 = 0xffff_f000;

/// A number that a script may leave open.
pub(crate) type Some32 = Option<u32>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    Mss(Some32),
    SackOk,
    Scale(Some32),
    Times(Some32),
    Sack(Vec<(u32, u32)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Flags, as `SA`.
    Tcp(String),
    Udp,
    Icmp(u8, u8),
    /// A fragment that comes out: offset, length, more.
    Fragment(u32, u32, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    Ip,
    Sum,
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub kind: Kind,
    pub peer_port: Option<u16>,
    pub own_port: Option<u16>,
    pub seq: Some32,
    pub ack: Some32,
    pub win: Some32,
    pub urg: Some32,
    pub options: Option<Vec<TcpOption>>,
    pub payload: Option<Vec<u8>>,
    /// Only its length is said.
    pub is_length: bool,
    pub id: Some32,
    pub mtu: Some32,
    pub is_quote: bool,
    pub ttl: Some32,
    pub tos: Some32,
    pub df: bool,
    pub bad: Option<Bad>,
    pub fragment: Option<(usize, usize)>,
}

/// `None` is any.
fn number(word: &str) -> Result<Some32> {
    match word {
        "*" => Ok(None),
        word => Ok(Some(
            word.parse().with_context(|| format!("{word}: a number"))?,
        )),
    }
}

fn tcp_options(word: &str) -> Result<Vec<TcpOption>> {
    let inner = word.trim_matches(['<', '>']);
    let mut options = Vec::new();
    for option in inner.split(',').filter(|option| !option.trim().is_empty()) {
        let words: Vec<&str> = option.split_whitespace().collect();
        options.push(match words[..] {
            ["mss", n] => TcpOption::Mss(number(n)?),
            ["wscale", n] => TcpOption::Scale(number(n)?),
            ["ts", n] => TcpOption::Times(number(n)?),
            ["sackOK"] => TcpOption::SackOk,
            ["sack", ref blocks @ ..] => {
                let mut edges = Vec::new();
                for block in blocks {
                    let (left, right) = block.split_once(':').context("a block is N:M")?;
                    edges.push((left.parse()?, right.parse()?));
                }
                TcpOption::Sack(edges)
            }
            _ => bail!("no such option: {option}"),
        });
    }
    Ok(options)
}

impl Packet {
    pub(crate) fn parse(words: &[String]) -> Result<Packet> {
        let mut words = words.iter().map(String::as_str).peekable();
        let mut next = |what: &str| words.next().with_context(|| format!("{what} is missing"));
        let kind = match next("a protocol")? {
            "tcp" => Kind::Tcp(next("flags")?.to_owned()),
            "udp" => Kind::Udp,
            "icmp" => Kind::Icmp(next("a type")?.parse()?, next("a code")?.parse()?),
            "frag" => Kind::Fragment(next("offset")?.parse()?, next("length")?.parse()?, false),
            other => bail!("no such protocol: {other}"),
        };
        let mut packet = Packet {
            kind,
            peer_port: None,
            own_port: None,
            seq: None,
            ack: None,
            win: None,
            urg: None,
            options: None,
            payload: None,
            is_length: false,
            id: None,
            mtu: None,
            is_quote: false,
            ttl: None,
            tos: None,
            df: false,
            bad: None,
            fragment: None,
        };
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next();
                value.with_context(|| format!("{word} what?"))
            };
            match word {
                "seq" => packet.seq = number(value()?)?,
                "ack" => packet.ack = number(value()?)?,
                "win" => packet.win = number(value()?)?,
                "urg" => packet.urg = number(value()?)?,
                "id" => packet.id = number(value()?)?,
                "mtu" => packet.mtu = number(value()?)?,
                "ttl" => packet.ttl = number(value()?)?,
                "tos" => packet.tos = number(value()?)?,
                "df" => packet.df = true,
                "quote" => packet.is_quote = true,
                "len" => {
                    let len = value()?;
                    packet.is_length = true;
                    packet.payload = if len == "*" { None } else { Some(bytes(len)?) };
                }
                "bad" => {
                    packet.bad = Some(match value()? {
                        "ip" => Bad::Ip,
                        "sum" => Bad::Sum,
                        other => bail!("bad {other}?"),
                    });
                }
                "more" => {
                    if let Kind::Fragment(_, _, more) = &mut packet.kind {
                        *more = true;
                    }
                }
                "frag" => {
                    let (from, to) = value()?.split_once("..").context("frag FROM..TO")?;
                    packet.fragment = Some((from.parse()?, to.parse()?));
                }
                _ if word.starts_with("p=") => packet.peer_port = Some(word[2..].parse()?),
                _ if word.starts_with("o=") => packet.own_port = Some(word[2..].parse()?),
                _ if word.starts_with('<') => packet.options = Some(tcp_options(word)?),
                _ if word.starts_with('"') => packet.payload = Some(bytes(word)?),
                _ => bail!("{word}?"),
            }
        }
        Ok(packet)
    }
}

/// What the player knows of one conversation with a port of the peer's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// The other side's initial sequence number, once its SYN was seen.
    pub own_isn: Option<u32>,
    pub own_port: Option<u16>,
    pub last_time: u32,
    /// Of the last echo request that came out.
    pub icmp_id: u16,
}

fn sum(bytes: &[u8], start: u32) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| {
        sum + (u32::from(pair[0]) << 8) + u32::from(pair.get(1).copied().unwrap_or(0))
    })
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

fn pseudo(src: &IpAddr, dst: &IpAddr, protocol: u8, len: usize) -> u32 {
    let addresses = sum(&octets(dst), sum(&octets(src), 0));
    addresses + u32::from(protocol) + len as u32
}

fn flag_bits(flags: &str) -> Result<u8> {
    flags.chars().try_fold(0, |bits, flag| {
        let at = "FSRPAU".find(flag).context("a flag is one of FSRPAU")?;
        Ok(bits | 1 << at)
    })
}

fn flag_names(bits: u8) -> String {
    let names = "FSRPAU".chars().enumerate();
    // SYN, FIN, RST and PSH before ACK, as tcpdump prints them.
    names
        .filter(|(at, _)| bits & 1 << at != 0)
        .map(|(_, name)| name)
        .collect()
}

impl Packet {
    /// The frame, from the peer to the side that is tried.
    pub(crate) fn frame(
        &self,
        is_ipv6: bool,
        peer_port: u16,
        known: &Known,
        last_out: &[u8],
    ) -> Result<Vec<u8>> {
        let own_port = self.own_port.or(known.own_port).unwrap_or(80);
        let payload = self.payload.clone().unwrap_or_default();
        let (src, dst) = (address(is_ipv6, false), address(is_ipv6, true));
        let (protocol, mut body, field) = match &self.kind {
            Kind::Tcp(flags) => (
                6,
                self.tcp(flags, peer_port, own_port, known, &payload)?,
                16,
            ),
            Kind::Udp => {
                let mut body = [peer_port.to_be_bytes(), own_port.to_be_bytes()].concat();
                body.extend_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
                body.extend_from_slice(&[0, 0]);
                body.extend_from_slice(&payload);
                (17, body, 6)
            }
            Kind::Icmp(kind, code) => {
                let mut body = vec![*kind, *code, 0, 0];
                let id = self.id.map_or(known.icmp_id, |id| id as u16);
                let seq = self.seq.unwrap_or(0) as u16;
                let rest = match self.mtu {
                    Some(mtu) => mtu.to_be_bytes(),
                    None if self.is_quote => [0; 4],
                    None => [id.to_be_bytes(), seq.to_be_bytes()].concat()[..].try_into()?,
                };
                body.extend_from_slice(&rest);
                if self.is_quote {
                    let most = if is_ipv6 { 1232 } else { 548 };
                    body.extend_from_slice(&last_out[..last_out.len().min(most)]);
                }
                body.extend_from_slice(&payload);
                (if is_ipv6 { 58 } else { 1 }, body, 2)
            }
            Kind::Fragment(..) => bail!("frag FROM..TO stands behind a packet"),
        };
        let start = if protocol == 1 {
            0
        } else {
            pseudo(&src, &dst, protocol, body.len())
        };
        let mut check = !fold(sum(&body, start));
        if check == 0 && protocol == 17 {
            check = 0xffff;
        }
        if self.bad == Some(Bad::Sum) {
            check = check.wrapping_add(if check == 0xfffe { 2 } else { 1 });
        }
        body[field..field + 2].copy_from_slice(&check.to_be_bytes());
        Ok(self.network(is_ipv6, protocol, &body))
    }

    fn network(&self, is_ipv6: bool, protocol: u8, body: &[u8]) -> Vec<u8> {
        let (src, dst) = (address(is_ipv6, false), address(is_ipv6, true));
        let (from, to) = self.fragment.unwrap_or((0, body.len()));
        let piece = &body[from.min(body.len())..to.min(body.len())];
        let more = self.fragment.is_some() && to < body.len();
        let (ttl, tos) = (self.ttl.unwrap_or(64) as u8, self.tos.unwrap_or(0));
        // Of an echo it is the message's.
        let id = match self.kind {
            Kind::Icmp(..) if self.fragment.is_none() => 0,
            _ => self.id.unwrap_or(0),
        };
        let mut frame = [OWN_MAC, PEER_MAC].concat();
        if is_ipv6 {
            frame.extend_from_slice(&[0x86, 0xdd]);
            frame.extend_from_slice(&(0x6000_0000 | tos << 20).to_be_bytes());
            let extension = if self.fragment.is_some() { 8 } else { 0 };
            frame.extend_from_slice(&((piece.len() + extension) as u16).to_be_bytes());
            frame.push(if extension > 0 { 44 } else { protocol });
            frame.push(ttl);
            frame.extend_from_slice(&octets(&src));
            frame.extend_from_slice(&octets(&dst));
            if extension > 0 {
                frame.extend_from_slice(&[protocol, 0]);
                frame.extend_from_slice(&(from as u16 | u16::from(more)).to_be_bytes());
                frame.extend_from_slice(&id.to_be_bytes());
            }
        } else {
            frame.extend_from_slice(&[8, 0, 0x45, tos as u8]);
            frame.extend_from_slice(&((20 + piece.len()) as u16).to_be_bytes());
            frame.extend_from_slice(&(id as u16).to_be_bytes());
            let flags = u16::from(more) << 13 | u16::from(self.df) << 14;
            frame.extend_from_slice(&(flags | (from / 8) as u16).to_be_bytes());
            frame.extend_from_slice(&[ttl, protocol, 0, 0]);
            frame.extend_from_slice(&octets(&src));
            frame.extend_from_slice(&octets(&dst));
            let mut check = !fold(sum(&frame[14..34], 0));
            if self.bad == Some(Bad::Ip) {
                check = check.wrapping_add(1);
            }
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        frame.extend_from_slice(piece);
        frame
    }

    fn tcp(
        &self,
        flags: &str,
        peer_port: u16,
        own_port: u16,
        known: &Known,
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let own_isn = known.own_isn.unwrap_or(0);
        let mut options = Vec::new();
        for option in self.options.iter().flatten() {
            match option {
                TcpOption::Mss(mss) => {
                    options.extend_from_slice(&[2, 4]);
                    options.extend_from_slice(&(mss.unwrap_or(1460) as u16).to_be_bytes());
                }
                TcpOption::SackOk => options.extend_from_slice(&[4, 2, 1, 1]),
                TcpOption::Scale(shift) => {
                    options.extend_from_slice(&[1, 3, 3, shift.unwrap_or(0) as u8]);
                }
                TcpOption::Times(value) => {
                    options.extend_from_slice(&[1, 1, 8, 10]);
                    options.extend_from_slice(&value.unwrap_or(0).to_be_bytes());
                    options.extend_from_slice(&known.last_time.to_be_bytes());
                }
                TcpOption::Sack(blocks) => {
                    options.extend_from_slice(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
                    for (left, right) in blocks {
                        for edge in [left, right] {
                            let edge = own_isn.wrapping_add(*edge);
                            options.extend_from_slice(&edge.to_be_bytes());
                        }
                    }
                }
            }
        }
        let bits = flag_bits(flags)?;
        let ack = match self.ack {
            Some(ack) => own_isn.wrapping_add(ack),
            None => 0,
        };
        let seq = PEER_ISN.wrapping_add(self.seq.unwrap_or(0));
        let mut body = [peer_port.to_be_bytes(), own_port.to_be_bytes()].concat();
        body.extend_from_slice(&seq.to_be_bytes());
        body.extend_from_slice(&ack.to_be_bytes());
        body.extend_from_slice(&[(5 + options.len() as u8 / 4) << 4, bits]);
        body.extend_from_slice(&(self.win.unwrap_or(65_535) as u16).to_be_bytes());
        body.extend_from_slice(&[0; 2]);
        body.extend_from_slice(&(self.urg.unwrap_or(0) as u16).to_be_bytes());
        body.extend_from_slice(&options);
        body.extend_from_slice(payload);
        Ok(body)
    }
}

/// A packet that came out.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub ip: Vec<u8>,
    pub protocol: u8,
    ttl: u8,
    tos: u8,
    df: bool,
    /// Offset and whether more follow.
    fragment: Option<(u32, bool)>,
    body: Vec<u8>,
}

/// What a player looks away from: questions about neighbors and groups.
pub(crate) enum Frame {
    Packet(Seen),
    /// An ARP request or a solicitation for the peer, and its answer.
    Question(Vec<u8>),
    Noise,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a frame; an error is a frame that nobody may send.
pub(crate) fn read(frame: &[u8]) -> Result<Frame> {
    if frame.len() < 14 {
        bail!("a frame of {} bytes", frame.len());
    }
    match word(frame, 12) {
        0x0806 => Ok(arp(frame)),
        0x0800 => read_v4(&frame[14..]),
        0x86dd => read_v6(&frame[14..]),
        _ => Ok(Frame::Noise),
    }
}

fn arp(frame: &[u8]) -> Frame {
    let peer = octets(&address(false, false));
    if frame.len() < 42 || frame[20..22] != [0, 1] || frame[38..42] != peer[..] {
        return Frame::Noise;
    }
    let mut answer = [OWN_MAC, PEER_MAC].concat();
    answer.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    answer.extend_from_slice(&PEER_MAC);
    answer.extend_from_slice(&peer);
    answer.extend_from_slice(&OWN_MAC);
    answer.extend_from_slice(&octets(&address(false, true)));
    Frame::Question(answer)
}

fn read_v4(ip: &[u8]) -> Result<Frame> {
    let header = usize::from(ip[0] & 15) * 4;
    let end = usize::from(word(ip, 2));
    if end > ip.len() || fold(sum(&ip[..header], 0)) != 0xffff {
        bail!("an IPv4 header that is wrong: {ip:x?}");
    }
    let flags = word(ip, 6);
    let fragment =
        (flags & 0x3fff != 0).then(|| (u32::from(flags & 0x1fff) * 8, flags & 0x2000 != 0));
    let seen = Seen {
        ip: ip[..end].to_vec(),
        protocol: ip[9],
        ttl: ip[8],
        tos: ip[1],
        df: flags & 0x4000 != 0,
        fragment,
        body: ip[header..end].to_vec(),
    };
    // IGMP is Linux's own.
    if seen.protocol == 2 {
        return Ok(Frame::Noise);
    }
    seen.checked(false)
}

fn read_v6(ip: &[u8]) -> Result<Frame> {
    let end = 40 + usize::from(word(ip, 4));
    if end > ip.len() {
        bail!("an IPv6 header that is wrong: {ip:x?}");
    }
    let (mut protocol, mut at, mut fragment) = (ip[6], 40, None);
    // Group reports come with hop-by-hop options.
    if protocol == 0 {
        return Ok(Frame::Noise);
    }
    if protocol == 44 {
        let offset = word(ip, 42);
        fragment = Some((u32::from(offset & 0xfff8), offset & 1 != 0));
        (protocol, at) = (ip[40], 48);
    }
    let seen = Seen {
        ip: ip[..end].to_vec(),
        protocol,
        ttl: ip[7],
        tos: (word(ip, 0) >> 4) as u8,
        df: false,
        fragment,
        body: ip[at..end].to_vec(),
    };
    if seen.protocol == 58 && (130..=143).contains(&seen.body[0]) {
        return Ok(seen.solicitation());
    }
    seen.checked(true)
}

impl Seen {
    fn solicitation(&self) -> Frame {
        let (own, peer) = (address(true, true), address(true, false));
        let is_for_peer = self.body[0] == 135 && self.body[8..24] == octets(&peer)[..];
        // Duplicate address detection has no source.
        if !is_for_peer || self.ip[8..24] == [0; 16] {
            return Frame::Noise;
        }
        let mut body = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
        body.extend_from_slice(&octets(&peer));
        body.extend_from_slice(&[2, 1]);
        body.extend_from_slice(&PEER_MAC);
        let to = IpAddr::from(<[u8; 16]>::try_from(&self.ip[8..24]).unwrap_or_default());
        let check = !fold(sum(&body, pseudo(&peer, &to, 58, body.len())));
        body[2..4].copy_from_slice(&check.to_be_bytes());
        let mut frame = [OWN_MAC, PEER_MAC].concat();
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, 58, 255]);
        frame.extend_from_slice(&octets(&peer));
        frame.extend_from_slice(&octets(&to));
        frame.extend_from_slice(&body);
        let _ = own;
        Frame::Question(frame)
    }

    fn checked(self, is_ipv6: bool) -> Result<Frame> {
        let (src, dst) = (address(is_ipv6, true), address(is_ipv6, false));
        // To others, and groups: the kernel's own.
        let at = if is_ipv6 { 24 } else { 16 };
        let to = &self.ip[at..at + octets(&dst).len()];
        if to != octets(&dst) {
            return Ok(Frame::Noise);
        }
        let start = match self.protocol {
            1 => 0,
            protocol => pseudo(&src, &dst, protocol, self.body.len()),
        };
        let is_whole = self.fragment.is_none();
        if is_whole && fold(sum(&self.body, start)) != 0xffff {
            bail!("a checksum that is wrong: {self}");
        }
        Ok(Frame::Packet(self))
    }

    /// Of TCP and UDP: ours, the peer's.
    pub(crate) fn ports(&self) -> Option<(u16, u16)> {
        let is_first = self.fragment.is_none_or(|(offset, _)| offset == 0);
        let has_ports = matches!(self.protocol, 6 | 17) && self.body.len() >= 8 && is_first;
        has_ports.then(|| (word(&self.body, 0), word(&self.body, 2)))
    }

    /// What it teaches about its conversation.
    pub(crate) fn teach(&self, known: &mut Known) {
        if let Some((own_port, _)) = self.ports() {
            known.own_port = Some(own_port);
        }
        if self.fragment.is_some() {
            return;
        }
        if matches!(self.protocol, 1 | 58) && self.body.len() >= 8 {
            known.icmp_id = word(&self.body, 4);
        }
        if self.protocol == 6 && self.body[13] & 2 != 0 {
            known.own_isn = Some(long(&self.body, 4));
        }
        if self.protocol == 6
            && let Some(at) = self.option(8)
        {
            known.last_time = long(&self.body, at + 2);
        }
    }

    /// Where an option of TCP stands.
    fn option(&self, wanted: u8) -> Option<usize> {
        let end = usize::from(self.body[12] >> 4) * 4;
        let mut at = 20;
        while at < end && self.body[at] != 0 {
            if self.body[at] == wanted {
                return Some(at);
            }
            let len = if self.body[at] == 1 {
                1
            } else {
                self.body[at + 1]
            };
            at += usize::from(len.max(1));
        }
        None
    }

    /// What differs from the script, in words; nothing if it fits.
    pub(crate) fn differs(&self, wanted: &Packet, known: &Known) -> Vec<String> {
        let mut found = Vec::new();
        let mut hold = |what: &str, got: u32, wanted: Some32| {
            if wanted.is_some_and(|wanted| wanted != got) {
                found.push(format!("{what} {got}"));
            }
        };
        hold("ttl", self.ttl.into(), wanted.ttl);
        hold("tos", self.tos.into(), wanted.tos);
        if wanted.df {
            hold("df", self.df.into(), Some(1));
        }
        match &wanted.kind {
            Kind::Fragment(offset, len, more) => {
                let (at, is_more) = self.fragment.unwrap_or((u32::MAX, false));
                hold("offset", at, Some(*offset));
                hold("length", self.body.len() as u32, Some(*len));
                hold("more", is_more.into(), Some(u32::from(*more)));
                return found;
            }
            _ if self.fragment.is_some() => return vec!["a fragment".to_owned()],
            Kind::Tcp(_) if self.protocol != 6 => return vec!["not TCP".to_owned()],
            Kind::Udp if self.protocol != 17 => return vec!["not UDP".to_owned()],
            Kind::Icmp(..) if !matches!(self.protocol, 1 | 58) => {
                return vec!["not ICMP".to_owned()];
            }
            Kind::Icmp(kind, code) => {
                hold("type", self.body[0].into(), Some((*kind).into()));
                hold("code", self.body[1].into(), Some((*code).into()));
                hold("id", word(&self.body, 4).into(), wanted.id);
                hold("seq", word(&self.body, 6).into(), wanted.seq);
                hold("mtu", word(&self.body, 6).into(), wanted.mtu);
            }
            Kind::Udp => {}
            Kind::Tcp(flags) => {
                let own_isn = known.own_isn.unwrap_or(0);
                let seq = long(&self.body, 4).wrapping_sub(own_isn);
                hold("seq", seq, wanted.seq);
                let ack = long(&self.body, 8).wrapping_sub(PEER_ISN);
                hold("ack", ack, wanted.ack);
                hold("win", word(&self.body, 14).into(), wanted.win);
                hold("urg", word(&self.body, 18).into(), wanted.urg);
                // PSH says nothing that a receiver needs.
                let bits = self.body[13] & 0x37;
                let wanted_bits = flag_bits(flags).unwrap_or(0) & 0x37;
                if bits != wanted_bits {
                    found.push(format!("flags {}", flag_names(bits)));
                }
                if let Some(options) = &wanted.options {
                    found.extend(self.options_differ(options));
                }
            }
        }
        let at = match wanted.kind {
            Kind::Tcp(_) => usize::from(self.body[12] >> 4) * 4,
            _ => 8,
        };
        let payload = &self.body[at.min(self.body.len())..];
        match &wanted.payload {
            Some(bytes) if wanted.is_length && payload.len() != bytes.len() => {
                found.push(format!("{} bytes", payload.len()));
            }
            Some(bytes) if !wanted.is_length && payload != bytes => {
                found.push(format!("bytes {:?}", String::from_utf8_lossy(payload)));
            }
            // Nothing is said of the length: of TCP it is none.
            None if matches!(wanted.kind, Kind::Tcp(_))
                && !wanted.is_length
                && !payload.is_empty() =>
            {
                found.push(format!("{} bytes", payload.len()));
            }
            _ => {}
        }
        found
    }

    fn options_differ(&self, wanted: &[TcpOption]) -> Vec<String> {
        let mut found = Vec::new();
        let mut kinds = Vec::new();
        for option in wanted {
            let (kind, value): (u8, Option<Vec<u8>>) = match option {
                TcpOption::Mss(mss) => (2, mss.map(|mss| (mss as u16).to_be_bytes().to_vec())),
                TcpOption::Scale(shift) => (3, shift.map(|shift| vec![shift as u8])),
                TcpOption::SackOk => (4, Some(Vec::new())),
                TcpOption::Times(_) => (8, None),
                TcpOption::Sack(blocks) => {
                    let edges = blocks.iter().flat_map(|(left, right)| [left, right]);
                    let bytes = edges.flat_map(|edge| PEER_ISN.wrapping_add(*edge).to_be_bytes());
                    (5, Some(bytes.collect()))
                }
            };
            kinds.push(kind);
            match self.option(kind) {
                None => found.push(format!("no option {option:?}")),
                Some(at) => {
                    let len = usize::from(self.body[at + 1]);
                    let got = &self.body[at + 2..at + len];
                    if value.is_some_and(|value| value != got) {
                        found.push(format!("{option:?} is {got:?}"));
                    }
                }
            }
        }
        for kind in 2..=8 {
            if !kinds.contains(&kind) && self.option(kind).is_some() {
                found.push(format!("option {kind} as well"));
            }
        }
        found
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((offset, more)) = self.fragment {
            let more = if more { " more" } else { "" };
            return write!(f, "frag {offset} {}{more}", self.body.len());
        }
        match self.protocol {
            6 => {
                let header = usize::from(self.body[12] >> 4) * 4;
                write!(
                    f,
                    "tcp {} p={} o={} seq {} ack {} win {} options {:?} len {}",
                    flag_names(self.body[13]),
                    word(&self.body, 2),
                    word(&self.body, 0),
                    long(&self.body, 4),
                    long(&self.body, 8).wrapping_sub(PEER_ISN),
                    word(&self.body, 14),
                    &self.body[20..header],
                    self.body.len() - header
                )
            }
            17 => write!(f, "udp {} bytes", self.body.len() - 8),
            1 | 58 => write!(f, "icmp {} {}", self.body[0], self.body[1]),
            other => write!(f, "protocol {other}"),
        }
    }
}
