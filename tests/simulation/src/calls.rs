//! One call of a program: attempts and sleeps, as the shim makes them (apps/preload:
//! transfer, wait). What is received is checked, byte for byte.

use crate::end::{At, Checked, Piece};
use crate::plan::Script;
use crate::process::{Conn, ORPHAN_SLICE_NS};
use crate::world::{Ctx, Wait};
use fordway_abi::shm::tx_state;
use fordway_sockets::End;
use fordway_sockets::ready::{Want, binding, is_ready};
use fordway_sockets::{Moved, down, sends_by_kernel, up};
use std::sync::atomic::Ordering;

/// Longest sleep without a doorbell, and with unread bytes of ours at a peer.
const BLIND_SLICE_NS: u64 = 5_000_000;
const WATCH_SLICE_NS: u64 = 50_000_000;

impl Ctx<'_> {
    pub fn rest(&self, script: &Script) {
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
    pub fn sleep_for(&self, conn: &'static Conn, want: Want, door: usize) {
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

    pub fn sleep_now(&self, conn: &'static Conn, want: Want, door: usize, bell: bool) {
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

    pub fn sleep_in_library(
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
pub fn back_from_kernel(
    ctx: &Ctx<'_>,
    conn: &'static Conn,
    counter: &std::sync::atomic::AtomicU32,
) {
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
    let world = ctx.world;
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
        if world.once_in(32) && end.producer().state() == tx_state::RING {
            // A hint that was noted for this connection, and is not true.
            let stale = [libc::POLLRDHUP, libc::POLLHUP, libc::POLLERR][world.below(3) as usize];
            conn.state.hints.fetch_or(stale as u32, Ordering::Relaxed);
            world.figures.borrow_mut().stale_hints += 1;
        }
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
pub fn send_more(ctx: &Ctx<'_>, conn: &'static Conn, door: Option<usize>) -> Result<bool, i32> {
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
pub fn receive_more(ctx: &Ctx<'_>, conn: &'static Conn, door: Option<usize>) -> Result<bool, i32> {
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

pub fn note_error(ctx: &Ctx<'_>, conn: &Conn, error: i32) {
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
