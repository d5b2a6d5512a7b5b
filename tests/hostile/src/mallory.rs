//! Mallory: one process with one connection, of which it does everything by hand.
//!
//! It begins as an honest shim would ([`Mallory::join`]): hello, offer, region, and an
//! endpoint that is ready and on the ring. From then on each word of its region and wait
//! page is its own to write, at any time. It keeps no thread: tests that need one start it.

use crate::Bed;
use crate::common::{self, Bells, Shim};
use anyhow::{Context, Result, bail, ensure};
use fordway_abi::control as wire;
use fordway_abi::shm::{
    ARENA_OFFSET, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, MARKS_OFFSET, MarkBits, MarkPage,
    REGION_BYTES, REGION_MAGIC, RegionHeader, SEGMENT_LOG2_MIN, WAIT_PAGE_BYTES, WAIT_PAGE_MAGIC,
    WaitPage, rx_state, tx_state,
};
use fordway_platform::ipc::{self, Kind};
use fordway_platform::memfd::{OwnPage, ReadOnly};
use fordwayd::admin::CONTROL_SOCKET;
use std::io::{ErrorKind, Read, Write};
use std::mem::offset_of;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use zerocopy::FromBytes;

/// A loop that yields may be put back by the scheduler for long.
const BETWEEN_LOOKS: std::time::Duration = std::time::Duration::from_micros(20);

/// Mallory's own number for its connection.
const CONN_ID: u64 = 7;

/// Memory that is his to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In his region.
    Region,
    /// In his wait page.
    Page,
}

/// A word that the victim reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its name.
    pub name: &'static str,
    /// Where it lies.
    pub place: Place,
    /// Offset in bytes.
    pub offset: usize,
    /// 4 or 8.
    pub bytes: usize,
}

/// See the module.
pub struct Mallory {
    /// His connection to the broker.
    pub shim: Shim,
    /// His wait page.
    pub page: OwnPage,
    /// His region.
    pub region: OwnPage,
    /// The victim's region.
    pub peer: ReadOnly,
    /// Doorbells of the link.
    pub bells: Bells,
    /// His channel.
    pub pair: wire::Pair,
    /// His end of the connection.
    pub socket: TcpStream,
    /// Bytes that he put into the ring.
    pub tail: u64,
    /// Bytes that he took from the victim's.
    pub head: u64,
    /// Bytes that came back since he was on the ring, by ring or kernel.
    pub got: u64,
}

/// A shim that has said hello, with a page of its own.
pub fn hello(runtime_dir: &Path) -> Result<(Shim, OwnPage)> {
    let (page, page_fd) = OwnPage::create("mallory-page", WAIT_PAGE_BYTES)?;
    page.store_u32(offset_of!(WaitPage, magic), WAIT_PAGE_MAGIC);
    let mut shim = Shim {
        socket: ipc::connect(&runtime_dir.join(CONTROL_SOCKET), Kind::Packets)?,
        page: page_fd,
        mailbox: None,
        welcome: None,
    };
    shim.send(
        &common::hello(fordway_abi::ABI_VERSION),
        &[shim.page.as_fd()],
    );
    shim.welcome = Some(shim.expect());
    Ok((shim, page))
}

/// Half way to a channel: the victim has offered its end, and awaits his region.
pub struct Asked {
    /// His connection to the broker.
    pub shim: Shim,
    page: OwnPage,
    /// His end of the connection.
    pub socket: TcpStream,
    /// His number for the link.
    pub link_id: u64,
    kernel_bytes: u64,
}

impl Asked {
    /// Offers a connection to the victim.
    pub fn start(runtime_dir: &Path, mut socket: TcpStream) -> Result<Asked> {
        let (shim, page) = hello(runtime_dir)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(crate::PATIENCE))?;
        shim.offer(CONN_ID, &socket);
        // The victim offers its end when it has used it.
        by_kernel(&mut socket)?;
        let link: wire::Link = shim.expect();
        Ok(Asked {
            shim,
            page,
            socket,
            link_id: link.link_id,
            kernel_bytes: 1,
        })
    }
}

/// One byte to the victim and back, by the kernel.
pub fn by_kernel(socket: &mut TcpStream) -> Result<()> {
    let mut byte = [0x55];
    socket.write_all(&byte)?;
    socket
        .read_exact(&mut byte)
        .context("no echo by the kernel")
}

/// Connections that a join may take, and bytes by the kernel on each.
const JOINS_MAX: u32 = 10;
const BYTES_MAX: u64 = 1000;

/// The victim's watchdog has moved the connection to the kernel: this process had no turn for
/// 50 ms, with bytes for it in the ring.
#[derive(Debug)]
struct Moved;

impl std::fmt::Display for Moved {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the victim has moved the connection to the kernel")
    }
}

impl Mallory {
    /// Has a channel with the victim, both directions of which are on the ring.
    pub fn join(bed: &Bed) -> Result<Mallory> {
        Self::join_by(&bed.lab.runtime_dir(), || bed.connect())
    }

    /// As [`Mallory::join`], over connections that are made so.
    pub fn join_by(
        runtime_dir: &Path,
        mut connect: impl FnMut() -> Result<TcpStream>,
    ) -> Result<Mallory> {
        for _ in 0..JOINS_MAX {
            let (region, region_fd) = OwnPage::create("mallory-region", REGION_BYTES)?;
            region.store_u32(offset_of!(RegionHeader, magic), REGION_MAGIC);
            let asked = Asked::start(runtime_dir, connect()?)?;
            match Self::join_with(asked, region, region_fd) {
                Err(error) if error.is::<Moved>() => {}
                joined => return joined,
            }
        }
        bail!("the victim moves each connection to the kernel")
    }

    /// As [`Mallory::join`], with this memory for a region.
    pub fn join_with(asked: Asked, region: OwnPage, region_fd: OwnedFd) -> Result<Mallory> {
        let Asked {
            shim,
            page,
            socket,
            link_id,
            mut kernel_bytes,
        } = asked;
        shim.send(&wire::Region { link_id }, &[region_fd.as_fd()]);
        let packet = shim.receive();
        let _: wire::Peer = packet.body();
        let peer = ReadOnly::map(&packet.fds[0], REGION_BYTES)?;
        let (bells, pair) = common::bells_and_pair(&shim);
        let mut mallory = Mallory {
            shim,
            page,
            region,
            peer,
            bells,
            pair,
            socket,
            tail: 0,
            head: 0,
            got: 0,
        };
        mallory.be_there();
        let ready = offset_of!(Endpoint, wait.rx_state);
        while mallory.peer_u32(ready) != rx_state::READY {
            let is_off = mallory.peer_u32(ready) == rx_state::OFF;
            ensure!(is_off && kernel_bytes < BYTES_MAX, Moved);
            // One that sleeps in the kernel does not look at rings yet.
            mallory.socket.write_all(&[0x55])?;
            kernel_bytes += 1;
            let mut got = 0;
            crate::until("the echo", || {
                got += mallory.take().unwrap_or(0);
                got != 0
            })?;
        }
        mallory.enter(kernel_bytes);
        mallory.got = 0;
        mallory.echo(1)?;
        let state = mallory.peer_u32(offset_of!(Endpoint, cold.tx_state));
        ensure!(state != tx_state::WITHDRAWN, Moved);
        ensure!(state == tx_state::RING, "the victim is in state {state}");
        Ok(mallory)
    }

    /// Where a word of his endpoint lies in his region.
    pub fn own(&self, offset: usize) -> usize {
        ENDPOINTS_OFFSET + self.pair.slot as usize * ENDPOINT_BYTES + offset
    }

    /// A word of the victim's endpoint.
    pub fn peer_u32(&self, offset: usize) -> u32 {
        self.peer.load_u32(self.own(offset)).unwrap_or(0)
    }

    /// As [`Mallory::peer_u32`].
    pub fn peer_u64(&self, offset: usize) -> u64 {
        self.peer.load_u64(self.own(offset)).unwrap_or(0)
    }

    /// Writes a word of his endpoint.
    pub fn set_u32(&self, offset: usize, value: u32) {
        self.region.store_u32(self.own(offset), value);
    }

    /// As [`Mallory::set_u32`].
    pub fn set_u64(&self, offset: usize, value: u64) {
        self.region.store_u64(self.own(offset), value);
    }

    fn be_there(&self) {
        self.set_u32(offset_of!(Endpoint, wait.rx_state), rx_state::READY);
        self.set_u32(offset_of!(Endpoint, wait.cpu), u32::MAX);
        self.set_u32(offset_of!(Endpoint, cold.generation), self.pair.generation);
    }

    fn enter(&self, kernel_bytes: u64) {
        let place = (ARENA_OFFSET as u64) << 8 | u64::from(SEGMENT_LOG2_MIN);
        self.set_u64(offset_of!(Endpoint, cold.segments) + 8, place);
        self.set_u64(offset_of!(Endpoint, cold.switch_at), kernel_bytes);
        self.set_u32(offset_of!(Endpoint, cold.segment_count), 1);
        self.set_u32(offset_of!(Endpoint, cold.tx_state), tx_state::RING);
    }

    /// Knocks at every door of the victim that he knows, asleep or not.
    pub fn knock(&self) {
        for bell in self.bells.knocks.values() {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Takes the doorbells that came since: the victim's threads get theirs as they sleep.
    pub fn read_mail(&mut self) {
        let mut buffer = [0; wire::PACKET_BYTES_MAX];
        while let Ok(mut packet) = ipc::receive(&self.shim.socket, &mut buffer, 2) {
            let (header, body) = buffer[..packet.len].split_at(size_of::<wire::Header>());
            let header = wire::Header::read_from_bytes(header);
            if header.is_ok_and(|header| header.kind == wire::kind::PeerDoor)
                && let Ok(message) = wire::PeerDoor::read_from_bytes(body)
            {
                self.bells.knocks.insert(message.door, packet.fds.remove(0));
                self.knock();
            }
        }
    }

    /// Puts `count` bytes into his ring, without looking for room, and knocks.
    pub fn put(&mut self, count: u64) {
        let capacity = 1 << SEGMENT_LOG2_MIN;
        for _ in 0..count {
            let at = ARENA_OFFSET + (self.tail % capacity) as usize;
            self.region.store(at, &[self.tail as u8]);
            self.tail += 1;
        }
        self.set_u64(offset_of!(Endpoint, tx.tail), self.tail);
        // The tail before the look at whether the victim wants a mark.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.mark();
        self.knock();
    }

    /// Marks his channel, the only one of his link, if the victim does not look at it by itself.
    fn mark(&self) {
        if self.peer_u32(offset_of!(Endpoint, wait.wants_mark)) == 0 {
            return;
        }
        let slot = self.pair.slot as usize;
        let [marks, seen] =
            [offset_of!(MarkPage, marks), offset_of!(MarkPage, seen)].map(|at| MARKS_OFFSET + at);
        for (bits, index) in [
            (offset_of!(MarkBits, words), slot),
            (offset_of!(MarkBits, summary), slot / 64),
        ] {
            let at = bits + index / 64 * 8;
            let seen = self.peer.load_u64(seen + at).unwrap_or(0);
            self.region.store_u64(marks + at, seen ^ 1 << (index % 64));
        }
    }

    /// Says that the ring is full, whatever lies there: as fast as it can be said, so that who
    /// reads finds it empty hardly ever.
    pub fn fill(&mut self) {
        let head = self.peer_u64(offset_of!(Endpoint, rx.head));
        self.tail = head + (1 << SEGMENT_LOG2_MIN);
        self.set_u64(offset_of!(Endpoint, tx.tail), self.tail);
    }

    /// Takes what the victim has sent, by kernel and ring; returns how much.
    pub fn take(&mut self) -> Result<u64> {
        let mut buffer = [0; 65_536];
        self.socket.set_nonblocking(true)?;
        let by_kernel = match self.socket.read(&mut buffer) {
            Ok(count) => count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error).context("reading"),
        };
        self.socket.set_nonblocking(false)?;
        let tail = self.peer_u64(offset_of!(Endpoint, tx.tail));
        // What the victim took back comes by the kernel.
        let back = self.peer_u32(offset_of!(Endpoint, cold.tx_state)) == tx_state::WITHDRAWN;
        let by_ring = if back { 0 } else { tail - self.head };
        self.head += by_ring;
        self.set_u64(offset_of!(Endpoint, rx.head), self.head);
        if by_ring != 0 {
            self.knock();
        }
        self.got += by_kernel + by_ring;
        Ok(by_kernel + by_ring)
    }

    /// Sends bytes by the ring and gets as many back, as an honest peer would.
    pub fn echo(&mut self, count: u64) -> Result<()> {
        self.put(count);
        self.collect(count)
    }

    /// Gets so many bytes.
    pub fn collect(&mut self, count: u64) -> Result<()> {
        let mut got = 0;
        let end = std::time::Instant::now() + crate::PATIENCE;
        while got < count {
            got += self.take()?;
            self.read_mail();
            ensure!(
                std::time::Instant::now() < end,
                "{got} of {count} came back"
            );
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok(())
    }

    /// Makes the victim look at his side: it has something to read, and is woken.
    pub fn provoke(&self) {
        self.knock();
        // Also by the kernel, whatever the victim believes of the ring.
        let _ = (&self.socket).write(&[0x55]);
    }

    /// Writes a word.
    pub fn write(&self, word: Word, value: u64) {
        let memory = match word.place {
            Place::Region => &self.region,
            Place::Page => &self.page,
        };
        match word.bytes {
            4 => memory.store_u32(word.offset, value as u32),
            _ => memory.store_u64(word.offset, value),
        };
    }

    /// Every word of his that the victim may read, and some that it should not.
    pub fn words(&self) -> Vec<Word> {
        let mut words = Vec::new();
        let mut add = |name, place, offset, bytes| {
            words.push(Word {
                name,
                place,
                offset,
                bytes,
            });
        };
        macro_rules! endpoint {
            ($($bytes:literal: $($field:ident).+;)+) => { $(
                add(stringify!($($field).+), Place::Region, self.own(offset_of!(Endpoint, $($field).+)), $bytes);
            )+ };
        }
        endpoint! {
            8: tx.tail;
            4: cold.tx_state;
            4: cold.tx_flags;
            4: cold.segment_count;
            8: rx.head;
            4: rx.segment_seen;
            4: wait.rx_state;
            4: wait.cpu;
            8: wait.rx_doors;
            8: wait.tx_doors;
            8: wait.space_mark;
            4: wait.wants_mark;
            4: cold.generation;
            4: cold.left_for;
            8: cold.switch_at;
            4: tx_own.lock;
            8: tx_own.head_seen;
            8: tx_own.back_at;
            4: rx_own.lock;
            8: rx_own.kernel_position;
            8: rx_own.tail_seen;
            8: rx_own.segment_place;
            4: rx_own.owner;
            8: tx.moment;
            8: moments.moments;
            4: moments.count;
        }
        let segments = self.own(offset_of!(Endpoint, cold.segments));
        for offset in (0..64).step_by(8) {
            add("cold.segments", Place::Region, segments + offset, 8);
        }
        for (name, start, bytes) in [
            ("marks", MARKS_OFFSET, size_of::<MarkPage>()),
            ("header", 0, size_of::<RegionHeader>()),
        ] {
            for offset in (0..bytes).step_by(8) {
                add(name, Place::Region, start + offset, 8);
            }
        }
        let sleeping = offset_of!(WaitPage, sleeping);
        add("page.sleeping", Place::Page, sleeping, 8);
        let counts = offset_of!(WaitPage, sleep_count);
        for offset in (0..256).step_by(4) {
            add("page.sleep_count", Place::Page, counts + offset, 4);
        }
        add("page.magic", Place::Page, 0, 8);
        words
    }
}
