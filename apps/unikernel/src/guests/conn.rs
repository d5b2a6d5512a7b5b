//! A connection that may have rings: what `fordway_sockets` asks of an end, over a connection of the network stack.
//!
//! One thread: a lock is taken so that the peer sees it, and never waited for. Nothing here sleeps. Positions in the stream
//! are the stack's own counts of bytes. A connection has rings once in its life: back on TCP, it stays there.

use crate::net::Net;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell, RefCell};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use fordway_abi::control::status;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{DOOR_COUNT, DOOR_SHARED, Endpoint, tx_state};
use fordway_executor::Signal;
use fordway_guests::talk::Up;
use fordway_netstack::{Error, TcpId, TcpState};
use fordway_ring::{Consumer, Geometry, Layout, Producer, Violation};
use fordway_sockets::ready::{self, Want};
use fordway_sockets::{
    self as sockets, End, Event, Half, Lost, Moved, NoLock, NotCopied, Patience, Phase, Source,
    State, Target, down, ends, phase, up,
};
use fordway_xen_guest::events;
use fordway_xen_guest::rings::{self, DOOR};

/// The image's number among the processes of its guest: it is the only one.
pub const PROCESS: u64 = 1;
/// As the library publishes long writes.
const PIECE_BYTES: usize = 64 << 10;
/// See [`Conn::left`].
const TURN_BYTES_MAX: usize = 256 << 10;
/// What the stack's send buffer is thought to take at once.
const KERNEL_ROOM_BYTES: u64 = 64 << 10;

/// What the image has to tell brokers of other guests.
pub type Outbox = RefCell<Vec<(u16, Up)>>;

/// A link, as the connections see it.
pub struct Link {
    pub domain: u16,
    /// The senior's number for it.
    pub number: u64,
    pub memory: OnceCell<rings::Link>,
    /// The peer's process is gone, or its broker, or its guest: its answers are not waited for.
    pub is_alone: Cell<bool>,
    /// The event channel behind each door of the peer's; 0: it is not known.
    pub ports: [Cell<u32>; DOOR_COUNT],
}

impl Link {
    pub fn new(domain: u16, number: u64) -> Link {
        Link {
            domain,
            number,
            memory: OnceCell::new(),
            is_alone: Cell::new(false),
            ports: [const { Cell::new(0) }; DOOR_COUNT],
        }
    }

    fn knock(&self, memory: &rings::Link, doors: u64) {
        let mut left = memory.doors_to_knock_at(doors);
        while left != 0 {
            let door = left.trailing_zeros() as usize;
            left &= left - 1;
            let mut port = self.ports[door].get();
            if port == 0 {
                // Nobody repeats a knock that went astray: the next one is made again, and the shared door is always there.
                memory.forget_knock(door);
                port = self.ports[DOOR_SHARED].get();
            }
            let _ = events::notify(port);
        }
    }
}

/// The channel of a connection.
struct Bound {
    link: Rc<Link>,
    channel: u64,
    slot: u32,
    generation: u32,
}

pub struct Conn {
    net: Rc<Net>,
    id: TcpId,
    signal: Rc<Signal>,
    outbox: Rc<Outbox>,
    /// Our number for it, with the broker of this guest.
    pub number: u64,
    pub domain: u16,
    /// Our address.
    pub local: IpAddr,
    phase: Phase,
    state: State,
    bound: OnceCell<Bound>,
    /// What its task waits for.
    wants: Cell<Want>,
    resets: Cell<bool>,
    /// It has ended, but for what is to go before.
    ends: Cell<bool>,
    /// Received, and not taken by the server yet.
    staged: RefCell<Vec<u8>>,
    /// Bytes that may still be received in this turn: a peer on another CPU fills its ring as fast as it is drained,
    /// and others have to have their turns.
    left: Cell<usize>,
}

/// Frees its lock.
pub struct Guard<'a>(&'a AtomicU32);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// What the stack's error is to a program.
fn errno(error: Error) -> i32 {
    match error {
        Error::WouldBlock => libc::EAGAIN,
        Error::Pipe => libc::EPIPE,
        _ => libc::ECONNRESET,
    }
}

impl Conn {
    /// One that is offered to another guest.
    pub fn offered(
        net: Rc<Net>,
        id: TcpId,
        outbox: Rc<Outbox>,
        (number, domain, local): (u64, u16, IpAddr),
    ) -> Conn {
        let conn = Conn {
            signal: net.flow(id),
            net,
            id,
            outbox,
            number,
            domain,
            local,
            phase: Phase::default(),
            state: State::default(),
            bound: OnceCell::new(),
            wants: Cell::new(Want::Bytes),
            resets: Cell::new(false),
            ends: Cell::new(false),
            staged: RefCell::default(),
            left: Cell::new(0),
        };
        // All that the server does comes by here.
        conn.state.reads.store(true, Ordering::Relaxed);
        conn.phase.advance(Event::Opened);
        conn.phase.advance(Event::Offered);
        conn
    }

    fn bound(&self) -> &Bound {
        self.bound.get().expect("it has a channel")
    }

    fn memory(&self) -> &rings::Link {
        let memory = self.bound().link.memory.get();
        memory.expect("channels are cut from links with memory")
    }

    pub fn is_offered(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == phase::OFFERED
    }

    /// The offer is void.
    pub fn void(&self) {
        let _ = self.phase.transition(Event::Voided);
    }

    /// The same by our own will, which its broker is told.
    pub fn withdraw(&self) {
        self.report(status::WITHDRAWN, 0);
        self.void();
    }

    /// The channel that it has, by the senior's number.
    pub fn channel(&self) -> Option<u64> {
        self.has_channel().then(|| self.bound().channel)
    }

    /// Whether its channel is one of this link's.
    pub fn is_of(&self, link: &Rc<Link>) -> bool {
        let bound = self.bound.get();
        bound.is_some_and(|bound| Rc::ptr_eq(&bound.link, link))
    }

    /// Whether it has a channel in this place.
    pub fn is_at(&self, link: &Rc<Link>, slot: u32) -> bool {
        self.has_channel() && self.is_of(link) && self.bound().slot == slot
    }

    /// It has a channel from here on. False: it had one before.
    pub fn pair(&self, link: Rc<Link>, channel: u64, slot: u32, generation: u32) -> bool {
        let bound = Bound {
            link,
            channel,
            slot,
            generation,
        };
        if !self.is_offered() || self.bound.set(bound).is_err() {
            return false;
        }
        self.memory().cut(slot, generation);
        up::begin(self);
        self.phase.advance(Event::Paired);
        self.own().wait.rx_doors.fetch_or(DOOR, Ordering::SeqCst);
        up::set_out(self, false);
        self.signal.set();
        true
    }

    /// Somebody wants it on the kernel path.
    pub fn ask_down(&self, reason: u32) {
        down::ask(&self.state, reason);
        self.signal.set();
    }

    /// The process at the far end is gone; a second time, its guest.
    pub fn peer_gone(&self) {
        ends::peer_process_gone(self);
        self.signal.set();
    }

    /// Wakes its task, if what that waits for may be there.
    pub fn wake_if_ready(&self) -> bool {
        // A server that waits for room takes commands, as by TCP; what it does not take is staged.
        let takes = || self.staged.borrow().is_empty() && ready::is_ready(self, Want::Bytes);
        let is_ready = self.has_channel()
            && (ready::is_ready(self, self.wants.get())
                || self.wants.get() == Want::Room && takes()
                || self.peer_is_there() && self.producer().must_leave());
        if is_ready {
            self.signal.set();
        }
        is_ready
    }

    /// Whether bytes of ours lie in the ring.
    pub fn has_unread(&self) -> bool {
        self.has_channel() && self.peer_is_there() && self.producer().unread_hint() != 0
    }

    /// For bytes of ours that lie unread, since the last look for so long.
    pub fn watch(&self, lain_ns: u64) {
        down::watch(self, lain_ns);
    }

    /// Bytes that went by rings, out and in.
    pub fn carried(&self) -> [u64; 2] {
        let carried = sockets::carried(self);
        // What was taken back from the ring goes by TCP.
        let queued = match self.has_channel() && self.producer().state() != tx_state::WITHDRAWN {
            true => carried.queued,
            false => 0,
        };
        [carried.sent + queued, carried.received]
    }

    /// Whether it goes by TCP, and nothing of rings is left to be done: it has none in the rest of its life.
    pub fn is_done_with_rings(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == phase::KERNEL
            && self.staged.borrow().is_empty()
            && !self.resets.get()
    }

    /// Its broker lists it no more.
    pub fn forget(&self) {
        if self.bound.get().is_some() {
            self.report(status::CLOSED, 0);
        }
    }

    fn report(&self, status: u32, reason: u32) {
        let channel = self.bound.get().map_or(0, |bound| bound.channel);
        let (tx, rx) = match self.has_channel() {
            true => (self.producer().tail(), self.consumer().head()),
            false => (0, 0),
        };
        let up = Up::Status {
            process: PROCESS,
            conn: self.number,
            channel,
            status,
            reason,
            tx,
            rx,
        };
        self.outbox.borrow_mut().push((self.domain, up));
    }

    /// Before the server has its turn: what the connection asks for besides bytes. `Err`: it is lost.
    pub fn begin_turn(&self) -> Result<(), Error> {
        self.left.set(TURN_BYTES_MAX);
        if !self.has_channel() {
            return Ok(());
        }
        if self.wants.replace(Want::Bytes) == Want::Room {
            ready::retract(self, (Want::Room, DOOR));
        }
        let unread = self.net.stack().tcp_unread(self.id).unwrap_or(0);
        let readable = if unread != 0 { libc::POLLIN as u32 } else { 0 };
        self.state.note(self.kernel_shows() | readable);
        sockets::attend(self).map_err(|_| Error::Reset)?;
        down::serve(self);
        Ok(())
    }

    /// Behind it, when the server waits. Whether what it waits for has come meanwhile is looked at before the image sleeps.
    pub fn end_turn(&self, want: Want) {
        if !self.has_channel() {
            return;
        }
        let before = ready::binding(self);
        let want = if self.ends.get() { Want::Room } else { want };
        let _ = ready::announce(self, (want, DOOR), before, || self.wants.set(want));
    }

    /// Sends what there is room for.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Error> {
        let mut sent = 0;
        while sent < bytes.len() {
            let mut piece = Piece {
                conn: self,
                bytes: &bytes[sent..],
                has_begun: sent != 0,
            };
            let moved = match self.has_channel() {
                true => sockets::send(self, &mut piece),
                false => piece.by_kernel(),
            };
            match moved {
                Ok(Moved::Bytes(count)) => sent += count,
                // It has no channel any more.
                Ok(Moved::Kernel) => {}
                Ok(Moved::Nothing) | Err(libc::EAGAIN) => break,
                Err(_) if sent != 0 => break,
                Err(_) => return Err(Error::Reset),
            }
        }
        match sent {
            0 if !bytes.is_empty() => Err(Error::WouldBlock),
            sent => Ok(sent),
        }
    }

    /// Hands what has come to `read`, which says how much of it is done with. `Ok(0)` without a call is the end.
    pub fn receive(
        &self,
        scratch: &mut [u8],
        read: impl FnOnce(&[u8]) -> usize,
    ) -> Result<usize, Error> {
        let mut staged = self.staged.borrow_mut();
        if !staged.is_empty() {
            let taken = read(&staged).min(staged.len());
            staged.drain(..taken);
            return Ok(taken);
        }
        if self.left.get() == 0 && self.has_channel() && ready::is_ready(self, Want::Bytes) {
            // It is found to be readable before the image sleeps.
            return Err(Error::WouldBlock);
        }
        let mut target = Buffer {
            conn: self,
            bytes: scratch,
        };
        let moved = match self.has_channel() {
            true => sockets::receive(self, &mut target),
            false => Ok(Moved::Kernel),
        };
        match moved {
            Ok(Moved::Kernel) => {
                let mut stack = self.net.stack();
                stack.tcp_receive_with(self.id, |[bytes, _]| read(bytes))
            }
            Ok(Moved::Bytes(0)) => Ok(0),
            Ok(Moved::Bytes(count)) => {
                self.left.set(self.left.get().saturating_sub(count));
                let taken = read(&scratch[..count]).min(count);
                staged.extend_from_slice(&scratch[taken..count]);
                Ok(taken)
            }
            Ok(Moved::Nothing) | Err(libc::EAGAIN) => Err(Error::WouldBlock),
            Err(_) => Err(Error::Reset),
        }
    }

    /// The server has ended it. False: what was taken back from the ring has to go first, for which the stack has no room
    /// yet.
    pub fn close(&self) -> bool {
        if self.has_channel() && self.state.peer_gone.load(Ordering::Relaxed) {
            down::withdraw(self);
        }
        // What is over in the stack takes nothing any more.
        let over = (libc::POLLHUP | libc::POLLERR) as u32;
        let owes = |conn: &Conn| {
            conn.has_channel()
                && conn.producer().back_bytes_or_zero() != 0
                && conn.kernel_shows() & over == 0
        };
        if owes(self) {
            down::serve(self);
            if owes(self) {
                self.ends.set(true);
                return false;
            }
        }
        self.leave();
        let mut stack = self.net.stack();
        let _ = match self.resets.get() || !self.staged.borrow().is_empty() {
            true => stack.tcp_abort(self.id),
            false => stack.tcp_close(self.id),
        };
        true
    }

    /// It is broken off.
    pub fn abort(&self) {
        self.leave();
        let _ = self.net.stack().tcp_abort(self.id);
    }

    /// The channel, or the offer, is over with the connection.
    fn leave(&self) {
        if self.has_channel() {
            ends::before_close(self, Some(down::deadline(self.now_ns())));
        }
        if self.has_channel() {
            self.memory().acted();
            self.report(status::CLOSED, 0);
            let [sent, _] = self.carried();
            self.state.sent_by_rings.store(sent, Ordering::Relaxed);
            let received = &self.state.received_by_rings;
            received.fetch_add(self.consumer().head(), Ordering::Relaxed);
            self.phase.advance(Event::Left);
            self.knock_at_all();
        } else if self.bound.get().is_some() {
            self.forget();
        } else if self.is_offered() {
            self.withdraw();
        }
    }

    fn knock_at_all(&self) {
        let (bound, memory) = (self.bound(), self.memory());
        memory.mark(bound.slot);
        bound.link.knock(memory, memory.peer_doors(bound.slot));
    }
}

impl End for Conn {
    type Guard<'a>
        = Guard<'a>
    where
        Self: 'a;
    type Link = ();
    type Shield = ();
    type Layout = Geometry;

    fn state(&self) -> &State {
        &self.state
    }

    fn has_channel(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == phase::PAIRED
    }

    fn is_bound(&self) -> bool {
        let generation = &self.own().cold.generation;
        generation.load(Ordering::Relaxed) == self.bound().generation
    }

    fn peer_is_there(&self) -> bool {
        let bound = self.bound();
        self.memory().peer_generation(bound.slot) == bound.generation
    }

    fn own(&self) -> &Endpoint {
        self.memory().own(self.bound().slot)
    }

    fn producer(&self) -> Producer {
        self.memory().producer(self.bound().slot)
    }

    fn consumer(&self) -> Consumer<Geometry> {
        self.memory().consumer(self.bound().slot)
    }

    fn lock(&self, half: Half) -> Result<Guard<'_>, NoLock> {
        if !self.has_channel() {
            return Err(NoLock::NoChannel);
        }
        let word = match half {
            Half::Sending => &self.own().tx_own.lock,
            Half::Receiving => &self.own().rx_own.lock,
        };
        // SYNC POINT with `Producer::withdraw` of the peer.
        match word.swap(1, Ordering::SeqCst) {
            0 => Ok(Guard(word)),
            _ => Err(NoLock::Interrupted),
        }
    }

    fn shield(&self) {}

    fn tell(&self, doors: u64) {
        self.memory().mark(self.bound().slot);
        self.knock(doors);
    }

    fn knock(&self, doors: u64) {
        self.bound().link.knock(self.memory(), doors);
    }

    fn knock_all(&self) {
        self.knock_at_all();
    }

    fn wake_own(&self) {
        self.signal.set();
    }

    fn peer_sleeps(&self, doors: u64) -> bool {
        self.memory().peer_sleeps(doors)
    }

    fn peer_beat(&self) -> u32 {
        self.memory().peer_beat()
    }

    fn kernel_shows(&self) -> u32 {
        const RDHUP: u32 = libc::POLLRDHUP as u32;
        const HUP: u32 = libc::POLLHUP as u32;
        const ERR: u32 = libc::POLLERR as u32;
        let mut stack = self.net.stack();
        match stack.tcp_state(self.id) {
            Ok(TcpState::CloseWait | TcpState::Closing | TcpState::LastAck) => RDHUP,
            Ok(TcpState::TimeWait) => RDHUP | HUP,
            Ok(TcpState::Closed) => {
                let looked = stack.tcp_receive_with(self.id, |_| 0);
                let is_error = looked.is_err_and(|error| error != Error::WouldBlock);
                RDHUP | HUP | if is_error { ERR } else { 0 }
            }
            Ok(_) => 0,
            Err(_) => RDHUP | HUP | ERR,
        }
    }

    fn is_at_mark(&self) -> bool {
        false
    }

    fn peek_kernel(&self) -> sockets::Result<usize> {
        let target = &mut Buffer {
            conn: self,
            bytes: &mut [0],
        };
        target.by_kernel(1, true)
    }

    fn send_run(&self, base: *const u8, length: usize) -> sockets::Result<usize> {
        if length == 0 {
            return match self.kernel_shows() & (libc::POLLHUP | libc::POLLERR) as u32 {
                0 => Ok(0),
                _ => Err(libc::ECONNRESET),
            };
        }
        let memory = self.memory();
        let run = memory.own_run(base, length);
        let sent = self.net.stack().tcp_send(self.id, run);
        memory.acted();
        sent.map_err(errno)
    }

    fn kernel_room(&self) -> u64 {
        let info = self.net.stack().tcp_info(self.id);
        info.map_or(0, |info| {
            KERNEL_ROOM_BYTES.saturating_sub(info.unacked_bytes as u64)
        })
    }

    // Our pages stay granted for as long as the peer has them mapped.
    fn parts_alone(&self) -> bool {
        self.bound().link.is_alone.get()
    }

    fn is_unix(&self) -> bool {
        false
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn sent_position(&self) -> Option<u64> {
        let info = self.net.stack().tcp_info(self.id).ok()?;
        let may_send = matches!(info.state, TcpState::Established | TcpState::CloseWait);
        may_send.then_some(info.acked_bytes + info.unacked_bytes as u64)
    }

    // The stack holds nothing back: Nagle's algorithm is off.
    fn push_kernel_tail(&self) {}

    fn received_position(&self) -> Option<u64> {
        let mut stack = self.net.stack();
        let info = stack.tcp_info(self.id).ok()?;
        let unread = stack.tcp_unread(self.id).ok()?;
        let goes_on = matches!(
            info.state,
            TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2
        );
        goes_on.then(|| info.received_bytes - unread as u64)
    }

    fn reset_at_close(&self) {
        self.resets.set(true);
    }

    fn lost(&self, why: Lost) {
        let reason = match why {
            Lost::Broken(_) => Reason::Protocol,
            Lost::Unseen => Reason::Unseen,
            Lost::Alone => Reason::NoPeer,
        };
        self.report(status::KERNEL, reason as u32);
        self.resets.set(true);
        self.signal.set();
    }

    fn give_up(&self, reason: u32) {
        self.report(status::KERNEL, reason);
        self.phase.advance(Event::Left);
    }

    // Its link stays as long as the connection.
    fn unbind(&self, (): ()) {}

    fn disown(&self) {
        let _ = self.phase.transition(Event::Left);
    }

    fn shut_sending(&self) {
        let _ = self.net.stack().tcp_shutdown(self.id);
        self.memory().acted();
    }

    fn is_nonblocking(&self) -> bool {
        true
    }

    fn patience(&self) -> &Patience {
        static NONE: Patience = Patience::none();
        &NONE
    }

    fn now_ns(&self) -> u64 {
        // Without patience nothing is waited for, whatever the time.
        0
    }

    fn pause(&self) {}

    fn await_room(&self) {}

    fn await_bytes(&self, _: u64) -> bool {
        false
    }
}

/// What the server sends.
struct Piece<'a> {
    conn: &'a Conn,
    bytes: &'a [u8],
    has_begun: bool,
}

impl Source for Piece<'_> {
    fn wanted(&self) -> usize {
        self.bytes.len().min(PIECE_BYTES)
    }

    fn least(&self) -> usize {
        self.bytes.len().min(1)
    }

    fn in_all(&self) -> usize {
        self.bytes.len()
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn by_ring(&mut self, producer: &Producer, count: usize) -> sockets::Result<usize> {
        rings::put(producer, &self.bytes[..count]);
        Ok(count)
    }

    fn by_kernel(&mut self) -> sockets::Result<Moved> {
        let sent = self.conn.net.stack().tcp_send(self.conn.id, self.bytes);
        if self.conn.has_channel() {
            self.conn.memory().acted();
        }
        match sent {
            Ok(count) => Ok(Moved::Bytes(count)),
            Err(Error::WouldBlock) => Ok(Moved::Nothing),
            Err(error) => Err(errno(error)),
        }
    }

    fn break_pipe(&self) {}
}

/// Where bytes are received, before the server sees them: the peer could change them in its ring.
struct Buffer<'a> {
    conn: &'a Conn,
    bytes: &'a mut [u8],
}

impl Target for Buffer<'_> {
    fn wanted(&self) -> usize {
        self.bytes.len()
    }

    fn peeks(&self) -> bool {
        false
    }

    fn by_kernel(&mut self, limit: usize, peek: bool) -> sockets::Result<usize> {
        let mut copied = 0;
        let mut stack = self.conn.net.stack();
        let received = stack.tcp_receive_with(self.conn.id, |pieces| {
            for piece in pieces {
                let count = piece.len().min(limit - copied);
                self.bytes[copied..copied + count].copy_from_slice(&piece[..count]);
                copied += count;
            }
            if peek { 0 } else { copied }
        });
        received.map(|_| copied).map_err(errno)
    }

    fn by_ring<L: Layout>(
        &mut self,
        consumer: &Consumer<L>,
        count: usize,
    ) -> Result<(), NotCopied> {
        // What lay in the buffer before is another connection's.
        match rings::get(consumer, &mut self.bytes[..count])? {
            got if got == count => Ok(()),
            _ => Err(NotCopied::Broken(Violation::Tail)),
        }
    }
}
