//! An end of a connection as `fordway_sockets` sees it, with the simulated kernel below.

use crate::kernel;
use crate::process::{Conn, Link};
use crate::world::{Ctx, World};
use fordway_abi::atomic::AtomicU32;
use fordway_abi::control::status;
use fordway_abi::reason::Reason;
use fordway_abi::shm::Endpoint;
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Host, Layout, Producer};
use fordway_sockets::{
    End, Half, Lost, Moved, NoLock, NotCopied, Patience, Result, Source, State, Target,
};
use std::sync::atomic::Ordering;

/// Pieces up to this size are not cut.
const RECORD_BYTES: usize = 4096;
const PAUSE_NS: u64 = 1_000_000;
const ROOM_WAIT_NS: u64 = 100_000_000;
const BYTES_WAIT_NS: u64 = 20_000_000;

/// A connection, by a thread of its process; without one for looks from outside.
pub struct At<'a> {
    ctx: Option<&'a Ctx<'a>>,
    world: &'static World,
    conn: &'static Conn,
}

impl<'a> At<'a> {
    pub fn new(ctx: &'a Ctx<'a>, conn: &'static Conn) -> Self {
        Self {
            ctx: Some(ctx),
            world: ctx.world,
            conn,
        }
    }

    fn ctx(&self) -> &Ctx<'a> {
        self.ctx.expect("a look from outside changes nothing")
    }

    fn point(&self) {
        if let Some(ctx) = self.ctx {
            ctx.point();
        }
    }

    /// Waits for the kernel at most so long; whether it shows one of `events`.
    fn await_kernel(&self, events: i16, time_ns: u64) -> bool {
        let ctx = self.ctx();
        let until = self.world.now_ns.get() + time_ns;
        ctx.sleep_in_kernel(self.conn, events as u16 as u32, until);
        self.world.sockets.borrow()[self.conn.socket].shown() & events as u16 as u32 != 0
    }
}

impl Conn {
    /// For a look from outside.
    pub fn silent(&'static self, world: &'static World) -> At<'static> {
        At {
            ctx: None,
            world,
            conn: self,
        }
    }
}

/// Frees its lock.
pub struct Guard<'a>(&'a AtomicU32);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl End for At<'_> {
    type Guard<'b>
        = Guard<'b>
    where
        Self: 'b;
    type Link = &'static Link;
    type Shield = ();
    type Layout = Host;

    fn state(&self) -> &State {
        &self.conn.state
    }

    fn has_channel(&self) -> bool {
        self.conn.is_paired()
    }

    fn is_bound(&self) -> bool {
        self.conn.is_bound()
    }

    fn peer_is_there(&self) -> bool {
        self.point();
        self.conn.peer_is_there()
    }

    fn own(&self) -> &Endpoint {
        self.conn.bound().own
    }

    fn producer(&self) -> Producer {
        self.conn.producer()
    }

    fn consumer(&self) -> Consumer {
        self.point();
        self.conn.consumer()
    }

    fn lock(&self, half: Half) -> std::result::Result<Guard<'_>, NoLock> {
        loop {
            let own = self.conn.bound().own;
            let word = match half {
                Half::Sending => &own.tx_own.lock,
                Half::Receiving => &own.rx_own.lock,
            };
            self.ctx().lock(word);
            let guard = Guard(word);
            if !self.conn.is_paired() {
                return Err(NoLock::NoChannel);
            }
            if std::ptr::eq(self.conn.bound().own, own) {
                return Ok(guard);
            }
        }
    }

    fn shield(&self) {}

    fn tell(&self, doors: u64) {
        self.point();
        self.ctx().knock(self.conn, doors);
    }

    fn knock(&self, doors: u64) {
        self.point();
        self.ctx().knock(self.conn, doors);
    }

    fn knock_all(&self) {
        self.point();
        let wait = &self.conn.bound().peer.wait;
        let doors = wait.rx_doors.load(Ordering::Relaxed) | wait.tx_doors.load(Ordering::Relaxed);
        self.ctx().knock(self.conn, doors);
    }

    fn wake_own(&self) {
        self.point();
        let wait = &self.conn.bound().own.wait;
        let doors = wait.rx_doors.load(Ordering::Relaxed) | wait.tx_doors.load(Ordering::Relaxed);
        self.ctx().knock_own(doors);
    }

    fn peer_sleeps(&self, doors: u64) -> bool {
        let peer = &self.world.processes[self.conn.bound().peer_process];
        peer.page.sleeping.load(Ordering::SeqCst) & doors != 0
    }

    fn peer_beat(&self) -> u32 {
        let peer = &self.world.processes[self.conn.bound().peer_process];
        peer.page.beat.load(Ordering::Relaxed)
    }

    fn kernel_shows(&self) -> u32 {
        self.point();
        self.world.sockets.borrow()[self.conn.socket].shown()
    }

    fn peek_kernel(&self) -> Result<usize> {
        self.point();
        let result = kernel::receive(
            &mut self.world.sockets.borrow_mut(),
            self.conn.socket,
            &mut [0],
            true,
        );
        self.point();
        result
    }

    fn send_run(&self, base: *const u8, length: usize) -> Result<usize> {
        self.point();
        // SAFETY: a run of the own ring's memory, by the contract of `back_run`.
        let bytes = unsafe { std::slice::from_raw_parts(base, length) };
        let result = kernel::send(
            &mut self.world.sockets.borrow_mut(),
            self.conn.socket,
            bytes,
        );
        self.world
            .trace(|| format!("end {} sends back {result:?}", self.conn.number));
        if let Ok(count) = result {
            self.world.figures.borrow_mut().sent_back_bytes += count as u64;
        }
        result
    }

    fn is_unix(&self) -> bool {
        self.world.sockets.borrow()[self.conn.socket].unix
    }

    fn is_drained(&self) -> bool {
        self.point();
        self.world.sockets.borrow()[self.conn.socket].is_drained()
    }

    fn sent_position(&self) -> Option<u64> {
        self.point();
        let position = self.world.sockets.borrow()[self.conn.socket].sent_position();
        self.world
            .trace(|| format!("end {} enters its ring at {position:?}", self.conn.number));
        self.world.figures.borrow_mut().entered += u64::from(position.is_some());
        self.point();
        position
    }

    fn push_kernel_tail(&self) {}

    fn is_at_mark(&self) -> bool {
        false
    }

    fn received_position(&self) -> Option<u64> {
        self.point();
        let position = self.world.sockets.borrow()[self.conn.socket].received_position();
        self.world
            .trace(|| format!("end {} gets ready at {position:?}", self.conn.number));
        self.point();
        position
    }

    fn reset_at_close(&self) {
        // Of a pair it means nothing.
        self.world.sockets.borrow_mut()[self.conn.socket].linger_none = true;
    }

    fn lost(&self, why: Lost) {
        let conn = self.conn;
        self.ctx().fail(format!(
            "end {}: a violation by an honest peer: {why:?}",
            conn.number
        ));
    }

    fn give_up(&self, reason: u32) -> &'static Link {
        let link = self.conn.bound().link;
        self.world
            .trace(|| format!("end {} gives its channel up", self.conn.number));
        self.world.figures.borrow_mut().given_up += 1;
        self.ctx().report(self.conn, status::KERNEL, reason);
        self.conn.give_up();
        if reason == Reason::Watchdog as u32 {
            self.world.figures.borrow_mut().rescued += 1;
        }
        link
    }

    fn unbind(&self, link: &'static Link) {
        self.point();
        link.unbind();
        self.point();
    }

    fn disown(&self) {
        let link = self.conn.bound().link;
        self.conn.give_up();
        link.unbind();
    }

    fn kernel_room(&self) -> u64 {
        self.world.sockets.borrow()[self.conn.socket].room()
    }

    fn is_nonblocking(&self) -> bool {
        self.conn.script.hurries.get()
    }

    fn patience(&self) -> &Patience {
        // Whoever hurries has waited enough elsewhere.
        static NONE: Patience = Patience::none();
        match self.is_nonblocking() {
            true => &NONE,
            false => &self.world.patience,
        }
    }

    fn now_ns(&self) -> u64 {
        self.world.now_ns.get()
    }

    fn pause(&self) {
        self.ctx().compute(PAUSE_NS);
        self.ctx().check_mail();
    }

    fn shut_sending(&self) {
        self.world.figures.borrow_mut().late_ends += 1;
        kernel::shut(&mut self.world.sockets.borrow_mut(), self.conn.socket);
    }

    fn await_room(&self) {
        self.await_kernel(libc::POLLOUT, ROOM_WAIT_NS);
    }

    fn await_bytes(&self, most_ns: u64) -> bool {
        self.await_kernel(libc::POLLIN, most_ns.min(BYTES_WAIT_NS))
    }
}

/// What a program sends by one call: a piece of its stream.
pub struct Piece<'a> {
    pub ctx: &'a Ctx<'a>,
    pub conn: &'static Conn,
    pub at: u64,
    pub left: usize,
    pub begun: bool,
}

impl Source for Piece<'_> {
    fn wanted(&self) -> usize {
        self.left
    }

    fn in_all(&self) -> usize {
        self.left
    }

    fn least(&self) -> usize {
        self.left.min(RECORD_BYTES)
    }

    fn has_begun(&self) -> bool {
        self.begun
    }

    fn by_ring(&mut self, producer: &Producer, count: usize) -> Result<usize> {
        let world = self.ctx.world;
        let bytes = world.pattern(self.conn.streams.0, self.at, count);
        let first = world.below(count as u64 + 1) as usize;
        let tail = producer.tail();
        for (at, part) in [(0, &bytes[..first]), (first, &bytes[first..])] {
            let to = tail.wrapping_add(at as u64);
            let copier = Copier::sse2();
            // SAFETY: the part is that long, and within the room.
            unsafe { producer.write(&copier, Kernel::Plain, to, part.as_ptr(), part.len()) };
            self.ctx.point();
        }
        world.trace(|| {
            format!(
                "end {} writes {}+{count} to the ring",
                self.conn.number, self.at
            )
        });
        world.figures.borrow_mut().ring_bytes += count as u64;
        Ok(count)
    }

    fn by_kernel(&mut self) -> Result<Moved> {
        let world = self.ctx.world;
        self.ctx.point();
        let bytes = world.pattern(self.conn.streams.0, self.at, self.left);
        let sent = kernel::send(&mut world.sockets.borrow_mut(), self.conn.socket, bytes);
        world.trace(|| {
            format!(
                "end {} sends {} by the kernel: {sent:?}",
                self.conn.number, self.at
            )
        });
        self.ctx.point();
        match sent {
            Ok(count) => {
                world.figures.borrow_mut().kernel_bytes += count as u64;
                Ok(Moved::Bytes(count))
            }
            Err(libc::EAGAIN) => Ok(Moved::Nothing),
            Err(error) => Err(error),
        }
    }

    fn break_pipe(&self) {}
}

/// A program's buffer; what comes into it is compared with the stream at once.
pub struct Checked<'a> {
    pub ctx: &'a Ctx<'a>,
    pub conn: &'static Conn,
    pub at: u64,
    pub room: usize,
    pub peek: bool,
    /// What a peek of the kernel's bytes has shown: the stream's next bytes only if the machine
    /// takes it for the answer.
    pub shown: Vec<u8>,
}

/// Bytes that a receive takes at most.
pub const RECEIVE_BYTES_MAX: usize = 64 * 1024 - 64;

impl Checked<'_> {
    /// The machine has answered a peek with `count` bytes.
    pub fn check_shown(&mut self, count: usize) {
        let shown = std::mem::take(&mut self.shown);
        self.check(&shown[..count.min(shown.len())], "kernel");
    }

    fn check(&self, bytes: &[u8], way: &str) {
        let (at, conn) = (self.at, self.conn);
        let expected = self.ctx.world.pattern(conn.streams.1, at, bytes.len());
        if bytes != expected && !conn.script.gap.get() {
            let same = bytes.iter().zip(expected).take_while(|(a, b)| a == b);
            let wrong = at + same.count() as u64;
            self.ctx.fail(format!(
                "end {} received a wrong byte at {wrong} by the {way}",
                conn.number
            ));
        }
    }
}

impl Target for Checked<'_> {
    fn wanted(&self) -> usize {
        self.room
    }

    fn peeks(&self) -> bool {
        self.peek
    }

    fn by_kernel(&mut self, limit: usize, peek: bool) -> Result<usize> {
        let world = self.ctx.world;
        self.ctx.point();
        let mut buffer = [0; RECEIVE_BYTES_MAX];
        let target = &mut buffer[..limit];
        let received = kernel::receive(
            &mut world.sockets.borrow_mut(),
            self.conn.socket,
            target,
            peek,
        );
        let (number, at) = (self.conn.number, self.at);
        world.trace(|| format!("end {number} receives {at} by the kernel: {received:?}"));
        match received {
            Ok(count) if peek => self.shown = buffer[..count].to_vec(),
            Ok(count) => self.check(&buffer[..count], "kernel"),
            Err(_) => {}
        }
        self.ctx.point();
        received
    }

    fn by_ring<L: Layout>(
        &mut self,
        consumer: &Consumer<L>,
        count: usize,
    ) -> std::result::Result<(), NotCopied> {
        let mut buffer = [0u8; RECEIVE_BYTES_MAX];
        let first = self.ctx.world.below(count as u64 + 1) as usize;
        for (at, count) in [(0, first), (first, count - first)] {
            let target = buffer[at..at + count].as_mut_ptr();
            let copier = Copier::sse2();
            // SAFETY: the buffer has that much behind `at`.
            unsafe { consumer.peek(&copier, Kernel::Plain, at as u64, target, count)? };
            self.ctx.point();
        }
        self.shown.clear();
        let (number, at) = (self.conn.number, self.at);
        self.ctx
            .world
            .trace(|| format!("end {number} takes {at}+{count} from the ring"));
        self.check(&buffer[..count], "ring");
        Ok(())
    }
}
