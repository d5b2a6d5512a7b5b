//! A peer that lies in rings of datagrams.
//!
//! ```text
//!   trudy (this process) ── flows, every word of her side her own ──► victim: echo, under fordway run
//!                 plain socket of hers, by the kernel alone ────────►   ▲
//!                                          neighbour, by rings ─────────┘
//! ```
//! [`Trudy`] does by hand what the library does for a UDP socket: offer, region, an endpoint, and records. Beside what
//! she does the neighbour makes its round trips by its ring, and a plain socket by the kernel ([`Bed::goes_on_beside`]):
//! each answer is compared. Nobody is asked how fast.

use crate::common::{self, Bells, Shim};
use crate::{PATIENCE, mallory, open_namespace, until};
use anyhow::{Context, Result, ensure};
use fordway_abi::control as wire;
use fordway_abi::shm::{
    ARENA_OFFSET, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, REGION_BYTES, REGION_MAGIC,
    RegionHeader, rx_state, tx_state,
};
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use fordway_platform::memfd::{OwnPage, ReadOnly};
use fordway_platform::netns;
use fordwayd::admin::Connection;
use std::io::{ErrorKind, Write};
use std::mem::offset_of;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

/// Longest that the programs of a bed run.
const LIMIT: Duration = Duration::from_secs(180);
/// What the kernel loses is sent again behind this.
const AGAIN: Duration = Duration::from_millis(100);
/// Round trips of the neighbour, and of the plain socket, beside an attack.
const TRIPS: u64 = 500;
const PLAIN_TRIPS: usize = 20;
/// A record of the neighbour's in its ring.
const TRIP_BYTES: u64 = 80;
/// Datagrams by the kernel until a victim is to have its rings.
const KERNEL_MAX: u32 = 1000;
/// log2 of her segments.
const SEGMENT_LOG2: u32 = 20;
/// Her first record by a ring.
pub const FIRST: &[u8; 48] = b"by the ring, as an honest peer would have put it";
/// What stands before a datagram (apps/preload, `datagram::Header`).
pub const HEADER_BYTES: u64 = 16;

/// How the victim waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In recvfrom.
    InReceive,
    /// In epoll_wait, level-triggered.
    InEpoll,
}

/// Both.
pub const WAITS: [Waits; 2] = [Waits::InReceive, Waits::InEpoll];

/// A victim, its neighbour, and where trudy lives.
pub struct Bed {
    /// The lab.
    pub lab: Lab,
    victim: Program,
    /// Where the victim is.
    pub name: SocketAddr,
    neighbour: Program,
    neighbours_stdin: ChildStdin,
    home: Option<OwnedFd>,
    plain: UdpSocket,
    plain_number: u64,
}

fn start(lab: &Lab, place: &Place, words: &[&str]) -> Result<Program> {
    let command = std::iter::once(crate::compiled("datagrams"));
    let command = command.chain(words.iter().map(|word| (*word).to_owned()));
    let spawn = Spawn::new(command)
        .env("FORDWAY_OFFER_AFTER", "0")
        .stdin(Stdin::Pipe)
        .time_limit(LIMIT);
    lab.spawn(place, PathChoice::Auto, &spawn)
}

impl Bed {
    /// Starts everything, and waits until the neighbour goes by its rings.
    pub fn start(waits: Waits) -> Result<Bed> {
        let place = crate::Bed::place;
        let lab = Lab::start_with(&["--network", "10.77.0.0/24"])?;
        let home = match rustix::process::geteuid().is_root() {
            true => {
                let nothing = Spawn::line("true");
                lab.run(&place("trudy", 13), PathChoice::Auto, &nothing)?;
                Some(open_namespace(&lab, "trudy")?)
            }
            false => None,
        };
        let word = match waits {
            Waits::InReceive => "block",
            Waits::InEpoll => "epoll",
        };
        let at = place("victim", 10);
        let victim = start(&lab, &at, &["echo", word])?;
        victim.wait_for_output("port ")?;
        let text = victim.stdout_so_far();
        let port = text.lines().find_map(|line| line.strip_prefix("port "));
        let port: u16 = port.context("no port")?.parse()?;
        let name = SocketAddr::from((at.ip(), port));
        let (host, port) = (at.ip().to_string(), port.to_string());
        let mut neighbour = start(&lab, &place("honest", 12), &["ask", &host, &port])?;
        let neighbours_stdin = neighbour.take_stdin().context("no stdin")?;
        let plain = socket(home.as_ref(), name)?;
        plain.set_nonblocking(true)?;
        let mut bed = Bed {
            lab,
            victim,
            name,
            neighbour,
            neighbours_stdin,
            home,
            plain,
            plain_number: 0,
        };
        until("the neighbour goes by its rings", || {
            bed.trips(50).is_ok() && bed.by_rings().is_ok_and(|(tx, rx)| tx > 0 && rx > 0)
        })?;
        Ok(bed)
    }

    fn rows(&self) -> Result<Vec<Connection>> {
        let mut rows = self.lab.connections()?;
        rows.retain(|row| row.protocol == "udp");
        Ok(rows)
    }

    /// What the neighbour has sent and received by its rings.
    fn by_rings(&self) -> Result<(u64, u64)> {
        let own = self.name.to_string();
        let pid = self.neighbour.pids().first().copied().context("gone")?;
        let rows = self.rows()?;
        let row = rows
            .iter()
            .find(|row| row.remote == own && row.pid == i32::try_from(pid).ok())
            .filter(|row| row.path == "fast");
        row.map(|row| (row.ring_bytes_tx, row.ring_bytes_rx))
            .with_context(|| format!("the neighbour has no ring: {rows:?}"))
    }

    fn lines(&self) -> usize {
        self.neighbour.stdout_so_far().matches('\n').count()
    }

    fn ask(&mut self, count: u64) -> Result<usize> {
        let lines = self.lines();
        self.neighbours_stdin
            .write_all(format!("{count}\n").as_bytes())?;
        Ok(lines + 1)
    }

    /// Answered, and lost.
    fn answer(&self, lines: usize) -> Result<(u64, u64)> {
        self.neighbour
            .wait_until(PATIENCE, "answers", || self.lines() >= lines)?;
        let text = self.neighbour.stdout_so_far();
        let line = text.lines().nth(lines - 1).context("no line")?;
        let figures = line.split(' ').map(str::parse);
        let figures: Vec<u64> = figures
            .collect::<Result<_, _>>()
            .with_context(|| line.to_owned())?;
        Ok((figures[0], figures[1]))
    }

    /// A round trip by the kernel alone, from a new socket.
    pub fn by_another_socket(&self) -> Result<()> {
        let socket = socket(self.home.as_ref(), self.name)?;
        socket.set_read_timeout(Some(AGAIN))?;
        until("an answer by the kernel", || {
            let mut got = [0; 8];
            socket.send(b"a socket").is_ok() && socket.recv(&mut got).is_ok() && got == *b"a socket"
        })
    }

    fn trips(&mut self, count: u64) -> Result<(u64, u64)> {
        let lines = self.ask(count)?;
        self.answer(lines)
    }

    /// A round trip of the plain socket by the kernel, which is tried again and again meanwhile with `act`.
    fn plain_trip(&mut self, act: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.plain_number += 1;
        let sent = self.plain_number.to_le_bytes();
        let end = Instant::now() + PATIENCE;
        let mut again = Instant::now();
        while Instant::now() < end {
            if Instant::now() >= again {
                let _ = self.plain.send(&sent);
                again = Instant::now() + AGAIN;
            }
            // Without a pause, which would let the victim come to an end of what she has.
            act()?;
            let mut got = [0; 64];
            match self.plain.recv(&mut got) {
                Ok(count) => {
                    let number = got[..8].try_into().map(u64::from_le_bytes)?;
                    ensure!(count == 8 && number <= self.plain_number, "wrong bytes");
                    if number == self.plain_number {
                        return Ok(());
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        anyhow::bail!("the kernel's datagrams get no answer any more")
    }

    /// Acts until the neighbour has made its round trips by its ring, and the plain socket some by the kernel.
    pub fn goes_on_beside(
        &mut self,
        name: &str,
        mut act: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let before = self.by_rings().with_context(|| name.to_owned())?;
        let lines = self.ask(TRIPS)?;
        let end = Instant::now() + PATIENCE;
        while self.lines() < lines {
            ensure!(Instant::now() < end, "{name}: the neighbour stands still");
            act().with_context(|| name.to_owned())?;
        }
        let (answered, lost) = self.answer(lines).with_context(|| name.to_owned())?;
        for _ in 0..PLAIN_TRIPS {
            self.plain_trip(&mut act).with_context(|| name.to_owned())?;
        }
        let after = self.by_rings().with_context(|| name.to_owned())?;
        println!(
            "{name}: the neighbour had {answered} answers, and lost {lost}; its ring {before:?}, {after:?}"
        );
        // A full ring loses what comes.
        let least = answered / 2 * TRIP_BYTES;
        ensure!(
            answered > TRIPS / 2,
            "{name}: {answered} of {TRIPS} answers"
        );
        ensure!(
            after.0 >= before.0 + least && after.1 >= before.1 + least,
            "{name}: the neighbour has left its ring"
        );
        Ok(())
    }

    /// Channels that somebody has complained about.
    pub fn complaints(&self) -> Result<u64> {
        Ok(self.lab.info()?.channel_errors)
    }

    /// Ends everything. The honest programs must have come through unharmed.
    pub fn finish(mut self) -> Result<()> {
        self.plain_trip(&mut || Ok(()))?;
        drop(self.neighbours_stdin);
        self.neighbour.finish()?.ok()?;
        ensure!(self.victim.is_running(), "the victim has ended");
        self.victim.stop()?;
        let forced = self.lab.close();
        ensure!(forced.is_empty(), "left behind: {}", forced.join(", "));
        Ok(())
    }
}

/// A socket in a namespace, connected to the victim.
fn socket(home: Option<&OwnedFd>, victim: SocketAddr) -> Result<UdpSocket> {
    let make = move || -> std::io::Result<UdpSocket> {
        let local = if home.is_some() {
            "0.0.0.0:0"
        } else {
            "127.0.0.1:0"
        };
        let socket = UdpSocket::bind(local)?;
        socket.connect(victim)?;
        Ok(socket)
    };
    Ok(match home {
        Some(home) => netns::within(home.as_fd(), make)??,
        None => make()?,
    })
}

/// Who lies: a process with a link, and flows over it.
pub struct Trudy {
    /// Her connection to the broker.
    pub shim: Shim,
    _page: OwnPage,
    /// Her region, and the victim's.
    region: OwnPage,
    peer: ReadOnly,
    bells: Bells,
    /// Her flows.
    pub flows: Vec<Flow>,
}

/// One end of hers.
pub struct Flow {
    /// Her socket, connected to the victim.
    pub socket: UdpSocket,
    /// What the broker has cut for it.
    pub pair: wire::Pair,
    by_kernel: u32,
    /// Bytes that she has published.
    pub tail: u64,
    head: u64,
}

impl Trudy {
    /// Has a channel with the victim; both directions are on rings.
    pub fn join(bed: &Bed) -> Result<Trudy> {
        let (region, region_fd) = OwnPage::create("trudy-region", REGION_BYTES)?;
        region.store_u32(offset_of!(RegionHeader, magic), REGION_MAGIC);
        let (shim, page) = mallory::hello(&bed.lab.runtime_dir())?;
        let socket = offer(&shim, bed, 1)?;
        let link: wire::Link = shim.expect();
        let link_id = link.link_id;
        shim.send(&wire::Region { link_id }, &[region_fd.as_fd()]);
        let packet = shim.receive();
        let _: wire::Peer = packet.body();
        let peer = ReadOnly::map(&packet.fds[0], REGION_BYTES)?;
        let (bells, pair) = common::bells_and_pair(&shim);
        let mut trudy = Trudy {
            shim,
            _page: page,
            region,
            peer,
            bells,
            flows: Vec::new(),
        };
        trudy.enter(socket, pair)?;
        Ok(trudy)
    }

    /// One more flow to the victim's one socket.
    pub fn another(&mut self, bed: &Bed) -> Result<()> {
        let conn_id = self.flows.len() as u64 + 1;
        let socket = offer(&self.shim, bed, conn_id)?;
        loop {
            let mut packet = self.shim.receive();
            match packet.kind {
                wire::kind::PeerDoor => {
                    let door = packet.body::<wire::PeerDoor>().door;
                    self.bells.knocks.insert(door, packet.fds.remove(0));
                }
                _ => return self.enter(socket, packet.body()),
            }
        }
    }

    fn enter(&mut self, socket: UdpSocket, pair: wire::Pair) -> Result<()> {
        let at = self.flows.len();
        self.flows.push(Flow {
            socket,
            pair,
            by_kernel: 1,
            tail: 0,
            head: 0,
        });
        self.set_u32(at, offset_of!(Endpoint, wait.cpu), u32::MAX);
        self.set_u32(at, offset_of!(Endpoint, wait.rx_state), rx_state::READY);
        self.set_u32(at, offset_of!(Endpoint, cold.generation), pair.generation);
        // It has to read the socket by the library first, and not to sleep past it.
        let ready = offset_of!(Endpoint, wait.rx_state);
        while self.peer_u32(at, ready) != rx_state::READY {
            let flow = &mut self.flows[at];
            ensure!(flow.by_kernel < KERNEL_MAX, "the victim is never ready");
            flow.by_kernel += 1;
            flow.socket.send(b"by the kernel")?;
            let _ = flow.socket.recv(&mut [0; 64]);
        }
        let place = (ARENA_OFFSET as u64 + ((at as u64) << SEGMENT_LOG2)) << 8;
        let place = place | u64::from(SEGMENT_LOG2);
        self.set_u64(at, offset_of!(Endpoint, cold.segments) + 8, place);
        self.set_u32(at, offset_of!(Endpoint, cold.segment_count), 1);
        self.set_u32(at, offset_of!(Endpoint, cold.tx_state), tx_state::RING);
        // Of what went by the kernel some may be lost: the ring is known by an answer to a record.
        self.put(at, FIRST);
        until("the answer to a record", || {
            self.knock();
            self.taken(at).iter().any(|answer| answer == FIRST)
        })
    }

    /// Where a word of her endpoint lies in her region.
    fn own(&self, at: usize, offset: usize) -> usize {
        ENDPOINTS_OFFSET + self.flows[at].pair.slot as usize * ENDPOINT_BYTES + offset
    }

    /// A word of the victim's endpoint.
    pub fn peer_u32(&self, at: usize, offset: usize) -> u32 {
        self.peer.load_u32(self.own(at, offset)).unwrap_or(0)
    }

    /// As [`Trudy::peer_u32`].
    pub fn peer_u64(&self, at: usize, offset: usize) -> u64 {
        self.peer.load_u64(self.own(at, offset)).unwrap_or(0)
    }

    /// Writes a word of her endpoint.
    pub fn set_u32(&self, at: usize, offset: usize, value: u32) {
        self.region.store_u32(self.own(at, offset), value);
    }

    /// As [`Trudy::set_u32`].
    pub fn set_u64(&self, at: usize, offset: usize, value: u64) {
        self.region.store_u64(self.own(at, offset), value);
    }

    /// Knocks at every door of the victim that she knows.
    pub fn knock(&self) {
        for bell in self.bells.knocks.values() {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Datagrams that a flow has given to the kernel.
    pub fn by_kernel(&self, at: usize) -> u32 {
        self.flows[at].by_kernel
    }

    /// What the victim has taken of a flow.
    pub fn taken_up_to(&self, at: usize) -> u64 {
        self.peer_u64(at, offset_of!(Endpoint, rx.head))
    }

    /// Room in her ring, by what the victim has taken.
    pub fn room(&self, at: usize) -> u64 {
        (1 << SEGMENT_LOG2) - (self.flows[at].tail - self.taken_up_to(at))
    }

    /// Writes bytes so far beyond her tail, or before it, without publishing any.
    pub fn write(&self, at: usize, beyond: i64, bytes: &[u8]) {
        let size = 1_u64 << SEGMENT_LOG2;
        for (step, byte) in (0_u64..).zip(bytes) {
            let index = self.flows[at]
                .tail
                .wrapping_add_signed(beyond)
                .wrapping_add(step)
                % size;
            let place = ARENA_OFFSET as u64 + at as u64 * size + index;
            self.region.store(place as usize, &[*byte]);
        }
    }

    /// Publishes so many bytes more, whatever they are.
    pub fn publish(&mut self, at: usize, count: u64) {
        self.flows[at].tail += count;
        self.set_u64(at, offset_of!(Endpoint, tx.tail), self.flows[at].tail);
        self.knock();
    }

    /// Writes a record, whose header says this, and publishes as much as that takes.
    pub fn put_as(&mut self, at: usize, [bytes, by_kernel]: [u32; 2], moment: u64, body: &[u8]) {
        let mut record = bytes.to_ne_bytes().to_vec();
        record.extend(by_kernel.to_ne_bytes());
        record.extend(moment.to_ne_bytes());
        record.extend(body);
        record.resize(record.len().next_multiple_of(8), 0);
        self.write(at, 0, &record);
        self.publish(at, record.len() as u64);
    }

    /// An honest record.
    pub fn put(&mut self, at: usize, body: &[u8]) {
        let by_kernel = self.flows[at].by_kernel;
        self.put_as(at, [body.len() as u32, by_kernel], 0, body);
    }

    /// Sends by the kernel.
    pub fn send_by_kernel(&mut self, at: usize, body: &[u8]) -> Result<()> {
        self.flows[at].by_kernel += 1;
        self.flows[at].socket.send(body)?;
        Ok(())
    }

    /// Has her whole ring, of which all was read, hold one record again and again, whose size divides the ring's;
    /// tells nobody.
    pub fn lay(&self, at: usize, moment: u64, body: &[u8]) {
        let header = [body.len() as u32, self.flows[at].by_kernel];
        let mut record: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        record.extend(moment.to_ne_bytes());
        record.extend(body);
        assert!((1_usize << SEGMENT_LOG2).is_multiple_of(record.len()));
        assert!(self.flows[at].tail.is_multiple_of(record.len() as u64));
        let place = ARENA_OFFSET + (at << SEGMENT_LOG2);
        self.region
            .store(place, &record.repeat((1 << SEGMENT_LOG2) / record.len()));
    }

    /// Says that her ring is full, as fast as that can be said: who reads finds it empty hardly ever.
    pub fn flood(&mut self, at: usize) {
        self.flood_unread(at);
        // Answers are not for reading.
        let answers = self.peer_u64(at, offset_of!(Endpoint, tx.tail));
        self.flows[at].head = answers;
        self.set_u64(at, offset_of!(Endpoint, rx.head), answers);
    }

    /// The same, and leaves the answers in their ring.
    pub fn flood_unread(&mut self, at: usize) {
        let taken = self.taken_up_to(at);
        let more = (taken + (1 << SEGMENT_LOG2)).saturating_sub(self.flows[at].tail);
        self.publish(at, more);
    }

    /// What has come, by ring and kernel.
    pub fn taken(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let tail = self.peer_u64(at, offset_of!(Endpoint, tx.tail));
        // The victim's ring is read as it was made: one segment, which may have grown.
        while self.flows[at].head < tail {
            let head = self.flows[at].head;
            let Some(bytes) = self.byte_words(at, head, 1).map(|words| words[0] as u32) else {
                break;
            };
            let count = u64::from(bytes);
            let words = (HEADER_BYTES + count).div_ceil(8);
            let Some(record) = self.byte_words(at, head, words) else {
                break;
            };
            let body: Vec<u8> = record.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let body = &body[HEADER_BYTES as usize..][..count as usize];
            all.push(body.to_vec());
            self.flows[at].head += words * 8;
        }
        self.set_u64(at, offset_of!(Endpoint, rx.head), self.flows[at].head);
        let mut buffer = [0; 65_536];
        let _ = self.flows[at].socket.set_nonblocking(true);
        while let Ok(count) = self.flows[at].socket.recv(&mut buffer) {
            all.push(buffer[..count].to_vec());
        }
        let _ = self.flows[at].socket.set_nonblocking(false);
        all
    }

    /// Words of the victim's ring from an index on.
    fn byte_words(&self, at: usize, index: u64, count: u64) -> Option<Vec<u64>> {
        let segments = self.peer_u32(at, offset_of!(Endpoint, cold.segment_count));
        let segment = |number: u32| {
            let words = offset_of!(Endpoint, cold.segments) + number as usize % 4 * 16;
            let (start, place) = (self.peer_u64(at, words), self.peer_u64(at, words + 8));
            (start, place >> 8, 1_u64 << (place & 0xff).min(30))
        };
        let word = |index: u64| {
            let of = (0..segments).rev().map(segment);
            let (start, offset, size) = of.clone().find(|(start, _, _)| *start <= index)?;
            self.peer
                .load_u64((offset + (index - start) % size) as usize)
        };
        (0..count).map(|step| word(index + step * 8)).collect()
    }
}

/// Offers one more socket of hers; the victim has had a datagram of it by then.
fn offer(shim: &Shim, bed: &Bed, conn_id: u64) -> Result<UdpSocket> {
    let socket = socket(bed.home.as_ref(), bed.name)?;
    socket.set_read_timeout(Some(AGAIN))?;
    let local = socket.local_addr()?;
    shim.claim(conn_id, common::udp_claim(&socket, local, bed.name));
    socket.send(b"first")?;
    socket.recv(&mut [0; 64]).context("no echo by the kernel")?;
    Ok(socket)
}
