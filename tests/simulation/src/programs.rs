//! What the programs of a run do, and what they must see.
//!
//! Each end sends its stream, shuts its sending half or closes, and reads to the end of
//! file, by two threads with blocking calls or by one that polls. A stream's bytes follow
//! from their positions, so every one is checked where it is received. Unless a connection
//! was broken by a kill or an early close, each stream must arrive whole, without an error.

use crate::choices::Choices;
use crate::end::{At, Checked, Piece, RECEIVE_BYTES_MAX};
use crate::kernel::Socket;
use crate::process::{Conn, DOORS, ORPHAN_SLICE_NS, Process};
use crate::world::{Ctx, Fault, FaultKind, Wait, World};
use fordway_abi::reason::Reason;
use fordway_abi::shm::tx_state;
use fordway_sockets::ready::{Want, binding, is_ready};
use fordway_sockets::{Moved, down, ends, sends_by_kernel, up};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const CONNECTIONS_MAX: u64 = 5;
/// Longest sleep without a doorbell, and with unread bytes of ours at a peer.
const BLIND_SLICE_NS: u64 = 5_000_000;
const WATCH_SLICE_NS: u64 = 50_000_000;

/// How an end's program works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A thread that sends and one that receives, with blocking calls.
    Threads,
    /// One thread that polls.
    Polls,
}

/// What one end of a connection does.
#[derive(Debug)]
pub struct Script {
    style: Style,
    /// Bytes that it sends.
    total: u64,
    /// Longest piece of one call.
    piece: u64,
    /// Once in so many calls it computes, up to so long.
    idles: u64,
    idle_ns: u64,
    /// After so many bytes sent or received, an image without the shim goes on.
    hands_over_at: Option<u64>,
    /// Closes when it has sent, whatever the other one does.
    closes_early: bool,
    /// Threads that are still at it.
    threads: Cell<u32>,
    /// An image without the shim has the connection.
    raw: Cell<bool>,
    /// ... which does not get what was left in a ring.
    pub gap: Cell<bool>,
    sent: AtomicU64,
    received: AtomicU64,
    ended: Cell<bool>,
    error: Cell<i32>,
}

/// What a run is made of.
pub struct Plan {
    pub grain: u64,
    pub sockets: Vec<Socket>,
    pub processes: Vec<Process>,
    pub conns: Vec<Conn>,
    pub faults: Vec<Fault>,
}

impl Plan {
    pub fn draw(choices: &mut Choices) -> Self {
        let mut below = |count: u64| choices.below(count);
        let processes = 2 + below(2);
        let connections = 1 + below(CONNECTIONS_MAX);
        let (mut sockets, mut conns, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        let sizes = [2_000, 20_000, 200_000];
        for number in 0..connections as usize {
            let a = below(processes) as usize;
            let b = if below(8) == 0 {
                a
            } else {
                (a + 1 + below(processes - 1) as usize) % processes as usize
            };
            let at_step = if number == 0 { 0 } else { below(3000) };
            let kind = FaultKind::Connect(number);
            faults.push(Fault { at_step, kind });
            for (end, process) in [a, b].into_iter().enumerate() {
                let socket = 2 * number + end;
                let size = sizes[below(3) as usize] as usize;
                sockets.push(Socket::new(socket ^ 1, size, size));
                let streams = (socket, socket ^ 1);
                let mut conn = Conn::new(socket, process, socket, streams, below(4));
                conn.script = Script::draw(&mut below);
                conns.push(conn);
            }
        }
        let count = below(6);
        let step = |below: &mut dyn FnMut(u64) -> u64| {
            let range = [300, 3000, 20_000][below(3) as usize];
            below(range)
        };
        for _ in 0..count {
            let at_step = step(&mut below);
            let kind = match below(12) {
                0..3 => FaultKind::Ask,
                3 => FaultKind::BrokerDies(1 + step(&mut below)),
                4..6 => FaultKind::Stop(below(processes) as usize, 1 + below(400) * 1_000_000),
                6 => FaultKind::Kill(below(processes) as usize),
                7..9 => FaultKind::Fork(below(2 * connections) as usize),
                9 => FaultKind::Exhaust(below(processes) as usize),
                _ => FaultKind::Shuffle,
            };
            faults.push(Fault { at_step, kind });
        }
        faults.sort_by_key(|fault| std::cmp::Reverse(fault.at_step));
        Self {
            grain: [1, 1, 2, 4, 16][below(5) as usize],
            sockets,
            processes: (0..processes as usize).map(Process::new).collect(),
            conns,
            faults,
        }
    }
}

impl Script {
    fn draw(below: &mut impl FnMut(u64) -> u64) -> Self {
        let total = match below(8) {
            0 => 0,
            1..4 => below(2_000),
            4..7 => below(100_000),
            _ => below(600_000),
        };
        let style = if below(2) == 0 {
            Style::Threads
        } else {
            Style::Polls
        };
        let may_hand_over = style == Style::Polls && below(4) == 0;
        Self {
            style,
            total,
            piece: [100, 2_000, 20_000, RECEIVE_BYTES_MAX as u64][below(4) as usize],
            idles: [4, 20, 1 << 40][below(3) as usize],
            idle_ns: [10_000, 1_000_000, 200_000_000][below(3) as usize],
            hands_over_at: may_hand_over.then(|| below(total + 2000)),
            closes_early: below(12) == 0,
            threads: Cell::new(0),
            raw: Cell::new(false),
            gap: Cell::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            ended: Cell::new(false),
            error: Cell::new(0),
        }
    }

    pub fn empty() -> Self {
        Self::draw(&mut |_| 0)
    }
}

/// Connection number `number` is there.
pub fn connect(world: &'static World, number: usize) {
    let ends = [&world.conns[2 * number], &world.conns[2 * number + 1]];
    if ends
        .iter()
        .any(|conn| !world.processes[conn.process].alive.get())
    {
        for conn in ends {
            conn.closed.set(true);
            conn.broken.set(true);
        }
        return;
    }
    for conn in ends {
        let (process, number) = (conn.process, conn.number);
        match conn.script.style {
            Style::Threads => {
                conn.script.threads.set(2);
                world.spawn(SENDERS[number], process, number, move |ctx| {
                    send_all(ctx, conn)
                });
                world.spawn(RECEIVERS[number], process, number, move |ctx| {
                    receive_all(ctx, conn)
                });
            }
            Style::Polls => {
                conn.script.threads.set(1);
                world.spawn(POLLERS[number], process, number, move |ctx| {
                    poll_all(ctx, conn)
                });
            }
        }
    }
}

const SENDERS: [&str; 10] = [
    "sender 0", "sender 1", "sender 2", "sender 3", "sender 4", "sender 5", "sender 6", "sender 7",
    "sender 8", "sender 9",
];
const RECEIVERS: [&str; 10] = [
    "receiver 0",
    "receiver 1",
    "receiver 2",
    "receiver 3",
    "receiver 4",
    "receiver 5",
    "receiver 6",
    "receiver 7",
    "receiver 8",
    "receiver 9",
];
const POLLERS: [&str; 10] = [
    "poller 0", "poller 1", "poller 2", "poller 3", "poller 4", "poller 5", "poller 6", "poller 7",
    "poller 8", "poller 9",
];

/// The kernel closes the sockets of a killed process.
pub fn killed(world: &World, process: usize) {
    for conn in world.conns.iter().filter(|conn| conn.process == process) {
        if !conn.closed.get() {
            break_connection(world, conn);
            conn.closed.set(true);
            world.sockets.borrow_mut()[conn.socket].close();
        }
    }
}

/// From now on its streams need not arrive whole, and errors are to be expected.
fn break_connection(world: &World, conn: &Conn) {
    conn.broken.set(true);
    world.conns[conn.socket ^ 1].broken.set(true);
}

impl Ctx<'_> {
    fn rest(&self, script: &Script) {
        if self.world.once_in(script.idles) {
            self.compute(self.world.below(script.idle_ns));
        }
    }

    /// A sleep that the kernel's socket ends.
    pub fn sleep_in_kernel(&self, conn: &Conn, events: u32, until_ns: u64) {
        self.wait(Wait::Sleep {
            socket: conn.socket,
            events,
            door: None,
            wants: None,
            until_ns,
        });
    }

    /// Sleeps until `conn` is worth another try (apps/preload: wait).
    fn sleep_for(&self, conn: &'static Conn, want: Want, door: usize) {
        self.beat();
        let end = At::new(self, conn);
        let before = binding(&end);
        let bell = self.register_door(door);
        if !conn.is_paired() {
            return;
        }
        let own = &conn.bound().own.wait;
        let doors = match want {
            Want::Bytes => &own.rx_doors,
            Want::Room => &own.tx_doors,
        };
        if want == Want::Room {
            conn.producer().ask_for_room();
        }
        doors.fetch_or(1 << door, Ordering::SeqCst);
        self.announce(door);
        self.point();
        if binding(&end) == before && !is_ready(&end, want) {
            self.sleep_now(conn, want, door, bell);
        }
        self.retract(door);
        doors.fetch_and(!(1 << door), Ordering::SeqCst);
        self.check_mail();
        down::serve(&end);
    }

    fn sleep_now(&self, conn: &'static Conn, want: Want, door: usize, bell: bool) {
        let end = At::new(self, conn);
        let by_kernel = sends_by_kernel(&end);
        let mut events = match want {
            Want::Bytes => libc::POLLIN | libc::POLLRDHUP,
            Want::Room if by_kernel => libc::POLLOUT,
            Want::Room => libc::POLLRDHUP,
        } as u32;
        let ended = conn.state.hints.load(Ordering::Relaxed) & libc::POLLRDHUP as u32 != 0;
        if want == Want::Room && ended {
            events &= !(libc::POLLRDHUP as u32);
        }
        self.sleep_in_library(conn, events, Some(want), door, bell);
    }

    fn sleep_in_library(
        &self,
        conn: &'static Conn,
        events: u32,
        wants: Option<Want>,
        door: usize,
        bell: bool,
    ) {
        let world = self.world;
        let end = At::new(self, conn);
        let unread = conn.is_paired() && conn.peer_is_there() && conn.producer().unread_hint() != 0;
        let slice = if !bell {
            BLIND_SLICE_NS
        } else if unread {
            WATCH_SLICE_NS
        } else if self.own_process().is_orphaned() {
            ORPHAN_SLICE_NS
        } else {
            u64::MAX
        };
        let since = world.now_ns.get();
        let until_ns = since.saturating_add(slice);
        world.trace(|| format!("sleeps for {wants:?} of end {}", conn.number));
        self.wait(Wait::Sleep {
            socket: conn.socket,
            events,
            door: bell.then_some(door),
            wants,
            until_ns,
        });
        let shown = world.sockets.borrow()[conn.socket].shown();
        let always = (libc::POLLERR | libc::POLLHUP) as u32;
        let shown = shown & (events | always);
        conn.state.hints.fetch_or(shown, Ordering::Relaxed);
        let timed_out = shown == 0 && world.now_ns.get() >= until_ns;
        if self.own_process().is_orphaned() {
            self.connect();
        }
        if timed_out && unread && world.now_ns.get() - since >= WATCH_SLICE_NS {
            down::watch(&end);
        }
    }
}

/// send(2) of a piece of the stream, as the shim's hooks make it.
fn send(
    ctx: &Ctx<'_>,
    conn: &'static Conn,
    count: usize,
    door: Option<usize>,
) -> Result<usize, i32> {
    let world = ctx.world;
    let at = conn.script.sent.load(Ordering::Relaxed);
    if !conn.script.raw.get() {
        ctx.count_operation(conn);
        loop {
            ctx.point();
            if conn.is_paired() {
                match send_by_channel(ctx, conn, at, count, door) {
                    Some(result) => return result,
                    None => continue,
                }
            }
            conn.state.senders.fetch_add(1, Ordering::SeqCst);
            ctx.point();
            if !conn.is_paired() {
                let sent = send_by_kernel(ctx, conn, at, count, door.is_some());
                back_from_kernel(ctx, conn, &conn.state.senders);
                return sent;
            }
            back_from_kernel(ctx, conn, &conn.state.senders);
        }
    }
    let sent = send_by_kernel(ctx, conn, at, count, door.is_some());
    world.trace(|| format!("end {} sends {at} unseen: {sent:?}", conn.number));
    sent
}

/// A thread that was unaware of rings is back.
fn back_from_kernel(ctx: &Ctx<'_>, conn: &'static Conn, counter: &std::sync::atomic::AtomicU32) {
    ctx.point();
    if counter.fetch_sub(1, Ordering::SeqCst) == 1 && conn.is_paired() {
        up::try_ready(&At::new(ctx, conn));
    }
}

fn send_by_kernel(
    ctx: &Ctx<'_>,
    conn: &Conn,
    at: u64,
    count: usize,
    waits: bool,
) -> Result<usize, i32> {
    let world = ctx.world;
    let mut done = 0;
    loop {
        ctx.point();
        let bytes = world.pattern(conn.streams.0, at + done as u64, count - done);
        let sent = world.sockets.borrow_mut()[conn.socket].send(bytes);
        match sent {
            Ok(more) => {
                done += more;
                world.figures.borrow_mut().kernel_bytes += more as u64;
                if done == count || !waits {
                    return Ok(done);
                }
            }
            Err(libc::EAGAIN) if !waits => return Err(libc::EAGAIN),
            Err(libc::EAGAIN) => ctx.sleep_in_kernel(conn, libc::POLLOUT as u32, u64::MAX),
            Err(_) if done != 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

/// `None`: the connection has no channel any more.
fn send_by_channel(
    ctx: &Ctx<'_>,
    conn: &'static Conn,
    at: u64,
    count: usize,
    door: Option<usize>,
) -> Option<Result<usize, i32>> {
    let end = At::new(ctx, conn);
    let mut done = 0;
    loop {
        if conn.state.attention.load(Ordering::Relaxed) != 0
            && let Err(error) = down::attend(&end)
        {
            return Some(Err(error));
        }
        if !conn.is_paired() {
            return (done != 0).then_some(Ok(done));
        }
        let mut piece = Piece {
            ctx,
            conn,
            at: at + done as u64,
            left: count - done,
            begun: done != 0,
        };
        match fordway_sockets::send(&end, &mut piece) {
            Ok(Moved::Bytes(moved)) => {
                done += moved;
                if done == count {
                    return Some(Ok(done));
                }
                continue;
            }
            Ok(Moved::Kernel) => return (done != 0).then_some(Ok(done)),
            Ok(Moved::Nothing) => {}
            Err(_) if done != 0 => return Some(Ok(done)),
            Err(error) => return Some(Err(error)),
        }
        match door {
            Some(door) => ctx.sleep_for(conn, Want::Room, door),
            None => {
                conn.bound().own.tx_own.no_space.store(1, Ordering::Relaxed);
                return Some(if done == 0 {
                    Err(libc::EAGAIN)
                } else {
                    Ok(done)
                });
            }
        }
    }
}

/// recv(2), as the shim's hooks make it.
fn receive(
    ctx: &Ctx<'_>,
    conn: &'static Conn,
    room: usize,
    door: Option<usize>,
) -> Result<usize, i32> {
    let script = &conn.script;
    let at = script.received.load(Ordering::Relaxed);
    let mut target = Checked {
        ctx,
        conn,
        at,
        room,
        peek: ctx.world.once_in(10),
        shown: Vec::new(),
    };
    if target.peek {
        // What was seen must come again.
        let seen = receive_once(ctx, conn, &mut target, None);
        target.check_shown(seen.unwrap_or(0));
        target.peek = false;
        if seen == Ok(0) {
            let again = receive_once(ctx, conn, &mut target, None);
            if let Ok(1..) = again {
                ctx.fail(format!("end {}: bytes behind an end of file", conn.number));
            }
            return again;
        }
    }
    receive_once(ctx, conn, &mut target, door)
}

fn receive_once(
    ctx: &Ctx<'_>,
    conn: &'static Conn,
    target: &mut Checked<'_>,
    door: Option<usize>,
) -> Result<usize, i32> {
    if conn.script.raw.get() {
        return receive_by_kernel(ctx, conn, target, door.is_some());
    }
    ctx.count_operation(conn);
    if conn.state.hints.load(Ordering::Relaxed) & fordway_sockets::hint::READS == 0 {
        up::reads(&At::new(ctx, conn));
    }
    loop {
        ctx.point();
        if conn.is_paired()
            && let Some(result) = receive_by_channel(ctx, conn, target, door)
        {
            return result;
        }
        conn.state.unaware.fetch_add(1, Ordering::SeqCst);
        ctx.point();
        if !conn.is_paired() {
            let received = receive_by_kernel(ctx, conn, target, door.is_some());
            back_from_kernel(ctx, conn, &conn.state.unaware);
            return received;
        }
        back_from_kernel(ctx, conn, &conn.state.unaware);
    }
}

fn receive_by_kernel(
    ctx: &Ctx<'_>,
    conn: &Conn,
    target: &mut Checked<'_>,
    waits: bool,
) -> Result<usize, i32> {
    use fordway_sockets::Target;
    loop {
        match target.by_kernel(target.room, target.peek) {
            Err(libc::EAGAIN) if waits => {
                ctx.sleep_in_kernel(conn, libc::POLLIN as u32, u64::MAX);
            }
            other => return other,
        }
    }
}

fn receive_by_channel(
    ctx: &Ctx<'_>,
    conn: &'static Conn,
    target: &mut Checked<'_>,
    door: Option<usize>,
) -> Option<Result<usize, i32>> {
    let end = At::new(ctx, conn);
    loop {
        if conn.state.attention.load(Ordering::Relaxed) != 0
            && let Err(error) = down::attend(&end)
        {
            return Some(Err(error));
        }
        if !conn.is_paired() {
            return None;
        }
        match fordway_sockets::receive(&end, target) {
            Ok(Moved::Bytes(count)) => return Some(Ok(count)),
            Ok(Moved::Kernel) => return None,
            Ok(Moved::Nothing) => {}
            Err(error) => return Some(Err(error)),
        }
        match door {
            Some(door) => ctx.sleep_for(conn, Want::Bytes, door),
            None => return Some(Err(libc::EAGAIN)),
        }
    }
}

/// Sends the next piece; false when there is no more to send.
fn send_more(ctx: &Ctx<'_>, conn: &'static Conn, door: Option<usize>) -> Result<bool, i32> {
    let script = &conn.script;
    let left = script.total - script.sent.load(Ordering::Relaxed);
    if left == 0 {
        return Ok(false);
    }
    let count = 1 + ctx.world.below(left.min(script.piece)) as usize;
    let sent = send(ctx, conn, count, door)?;
    if sent == 0 || sent > count {
        ctx.fail(format!("end {} sent {sent} of {count} bytes", conn.number));
    }
    script.sent.fetch_add(sent as u64, Ordering::Relaxed);
    ctx.world.note_progress();
    Ok(true)
}

/// Receives; false at the end of file.
fn receive_more(ctx: &Ctx<'_>, conn: &'static Conn, door: Option<usize>) -> Result<bool, i32> {
    let script = &conn.script;
    let room = 1 + ctx.world.below(script.piece) as usize;
    let received = receive(ctx, conn, room, door)?;
    script
        .received
        .fetch_add(received as u64, Ordering::Relaxed);
    ctx.world.note_progress();
    if received == 0 {
        script.ended.set(true);
    }
    Ok(received != 0)
}

fn note_error(ctx: &Ctx<'_>, conn: &Conn, error: i32) {
    ctx.world
        .trace(|| format!("end {}: error {error}", conn.number));
    ctx.world.figures.borrow_mut().resets += 1;
    conn.script.error.set(error);
    if !conn.broken.get() {
        ctx.fail(format!(
            "end {}: error {error} on a whole connection",
            conn.number
        ));
    }
}

fn shut_or_close(ctx: &Ctx<'_>, conn: &'static Conn) {
    let script = &conn.script;
    if script.closes_early && script.style == Style::Polls {
        break_connection(ctx.world, conn);
        return;
    }
    if script.raw.get() {
        shut_by_kernel(ctx, conn);
        return;
    }
    if !conn.is_paired() {
        conn.state.unaware.fetch_add(1, Ordering::SeqCst);
        ctx.point();
        if !conn.is_paired() {
            shut_by_kernel(ctx, conn);
            back_from_kernel(ctx, conn, &conn.state.unaware);
            return;
        }
        back_from_kernel(ctx, conn, &conn.state.unaware);
    }
    if conn.is_paired() {
        ends::before_shutdown(&At::new(ctx, conn), true, false);
    }
    shut_by_kernel(ctx, conn);
}

fn shut_by_kernel(ctx: &Ctx<'_>, conn: &Conn) {
    ctx.point();
    ctx.world
        .trace(|| format!("end {} shuts its sending half", conn.number));
    ctx.world.sockets.borrow_mut()[conn.socket].shut();
}

fn send_all(ctx: &Ctx<'_>, conn: &'static Conn) {
    let door = ctx.own_process().take_door();
    loop {
        match send_more(ctx, conn, Some(door)) {
            Ok(true) => ctx.rest(&conn.script),
            Ok(false) => break,
            Err(error) => {
                note_error(ctx, conn, error);
                break;
            }
        }
    }
    shut_or_close(ctx, conn);
    thread_is_over(ctx, conn);
}

fn receive_all(ctx: &Ctx<'_>, conn: &'static Conn) {
    let door = ctx.own_process().take_door();
    loop {
        match receive_more(ctx, conn, Some(door)) {
            Ok(true) => ctx.rest(&conn.script),
            Ok(false) => break,
            Err(error) => {
                note_error(ctx, conn, error);
                break;
            }
        }
    }
    thread_is_over(ctx, conn);
}

fn thread_is_over(ctx: &Ctx<'_>, conn: &'static Conn) {
    let threads = &conn.script.threads;
    threads.set(threads.get() - 1);
    if threads.get() == 0 {
        ctx.close(conn);
    }
}

/// One thread for both directions, with calls that do not sleep.
fn poll_all(ctx: &Ctx<'_>, conn: &'static Conn) {
    let door = ctx.own_process().take_door();
    let script = &conn.script;
    let (mut sends, mut receives) = (true, true);
    while sends || receives {
        let mut idle = true;
        if sends {
            match send_more(ctx, conn, None) {
                Ok(true) => idle = false,
                Ok(false) => {
                    sends = false;
                    shut_or_close(ctx, conn);
                    if script.closes_early {
                        break;
                    }
                }
                Err(libc::EAGAIN) => {}
                Err(error) => {
                    note_error(ctx, conn, error);
                    break;
                }
            }
        }
        if receives {
            match receive_more(ctx, conn, None) {
                Ok(true) => idle = false,
                Ok(false) => receives = false,
                Err(libc::EAGAIN) => {}
                Err(error) => {
                    note_error(ctx, conn, error);
                    break;
                }
            }
        }
        let moved = script.sent.load(Ordering::Relaxed) + script.received.load(Ordering::Relaxed);
        if script.hands_over_at.is_some_and(|at| at <= moved) && !script.raw.get() {
            hand_over(ctx, conn);
            continue;
        }
        ctx.rest(script);
        if idle && (sends || receives) {
            poll(ctx, conn, sends, receives, door);
        }
    }
    thread_is_over(ctx, conn);
}

/// An image without the shim goes on (apps/preload: before_exec).
fn hand_over(ctx: &Ctx<'_>, conn: &'static Conn) {
    let end = At::new(ctx, conn);
    ctx.world.figures.borrow_mut().handed_over += 1;
    down::bar(&end, Reason::Exec);
    down::downgrade(&end, Reason::Exec, true);
    if conn.bound.get().is_some() && conn.is_paired() {
        down::flush_before_end(&end);
    }
    if conn.is_paired() && conn.consumer().has_unread() {
        // Bytes in a ring that its producer has left for good cannot be sent again: the image
        // without the shim does not get them.
        break_connection(ctx.world, conn);
        conn.script.gap.set(true);
    }
    conn.script.raw.set(true);
    ctx.world
        .trace(|| format!("end {} is handed over", conn.number));
}

/// poll(2) of one connection (apps/preload: poll).
fn poll(ctx: &Ctx<'_>, conn: &'static Conn, sends: bool, receives: bool, door: usize) {
    let mut events = 0u32;
    if receives {
        events |= (libc::POLLIN | libc::POLLRDHUP) as u32;
    }
    let out = if sends { libc::POLLOUT as u32 } else { 0 };
    if conn.script.raw.get() {
        ctx.sleep_in_kernel(conn, events | out, u64::MAX);
        return;
    }
    ctx.check_mail();
    if !conn.is_paired() {
        conn.state.unaware.fetch_add(1, Ordering::SeqCst);
        ctx.point();
        if !conn.is_paired() {
            ctx.sleep_in_kernel(conn, events | out, u64::MAX);
        }
        back_from_kernel(ctx, conn, &conn.state.unaware);
        return;
    }
    ctx.beat();
    let end = At::new(ctx, conn);
    let before = binding(&end);
    let bell = ctx.register_door(door);
    if !conn.is_paired() {
        return;
    }
    let own = conn.bound().own;
    if sends {
        conn.producer().ask_for_room();
        own.wait.tx_doors.fetch_or(1 << door, Ordering::SeqCst);
    }
    own.wait.rx_doors.fetch_or(1 << door, Ordering::SeqCst);
    ctx.announce(door);
    ctx.point();
    let wants = if receives { Want::Bytes } else { Want::Room };
    let ready = receives && is_ready(&end, Want::Bytes) || sends && is_ready(&end, Want::Room);
    if binding(&end) == before && !ready {
        if sends && conn.producer().state() != tx_state::RING {
            events |= out;
        }
        ctx.sleep_in_library(conn, events, Some(wants), door, bell);
    }
    ctx.retract(door);
    own.wait.rx_doors.fetch_and(!(1 << door), Ordering::SeqCst);
    own.wait.tx_doors.fetch_and(!(1 << door), Ordering::SeqCst);
    ctx.check_mail();
    down::serve(&end);
}

/// All programs have ended: what they have seen, and what is left.
pub fn audit(world: &World) {
    for conn in &world.conns {
        let (own, far) = (&conn.script, &world.conns[conn.socket ^ 1].script);
        let (received, sent) = (
            own.received.load(Ordering::Relaxed),
            far.sent.load(Ordering::Relaxed),
        );
        if conn.broken.get() {
            continue;
        }
        if !own.ended.get() || received != sent || sent != far.total {
            world.fail(format!(
                "end {} received {received} of {sent} bytes, of {} in all",
                conn.number, far.total
            ));
        }
    }
    for process in world.processes.iter().filter(|process| process.alive.get()) {
        for link in process.links.borrow().iter() {
            if link.users() != 0 {
                world.fail(format!(
                    "process {}: {} connections still use a link",
                    process.number,
                    link.users()
                ));
            }
            if !process.is_exhausted() && !link.is_whole() {
                world.fail(format!("process {}: ring memory is lost", process.number));
            }
        }
    }
    if world
        .broker
        .borrow()
        .channel_count()
        .is_some_and(|count| count != 0)
    {
        world.fail("the registry keeps channels that nobody has".to_owned());
    }
}

const _: () = assert!(DOORS as u64 > 2 * 2 * CONNECTIONS_MAX);
