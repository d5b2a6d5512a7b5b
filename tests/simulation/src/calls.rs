//! One call of a program: attempts and sleeps, as the shim makes them (apps/preload:
//! transfer, wait). What is received is checked, byte for byte.

use crate::end::{At, Checked, Piece};
use crate::kernel;
use crate::plan::Script;
use crate::process::{Conn, ORPHAN_SLICE_NS};
use crate::world::{Ctx, Wait};
use fordway_abi::shm::tx_state;
use fordway_ring::{Consumer, Producer};
use fordway_sockets::End;
use fordway_sockets::ready::{Want, announce, binding, retract};
use fordway_sockets::{Done, Moved, Source as _, Target as _, Transfer};
use fordway_sockets::{
    down, receive_enough, receive_short, send_all, send_short, sends_by_kernel, up,
};
use std::sync::atomic::{AtomicU32, Ordering};

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
        let announced = || {
            self.announce(door);
            self.point();
        };
        if announce(&end, (want, 1 << door), before, announced) {
            self.sleep_now(conn, want, door, bell);
        }
        self.retract(door);
        retract(&end, (want, 1 << door));
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
        let ended = conn.state.shown() & libc::POLLRDHUP as u32 != 0;
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
        conn.state.note(shown);
        let timed_out = shown == 0 && world.now_ns.get() >= until_ns;
        if self.own_process().is_orphaned() {
            self.connect();
        }
        if timed_out && unread && world.now_ns.get() - since >= WATCH_SLICE_NS {
            down::watch(&end, WATCH_SLICE_NS);
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
                let caller = Caller { ctx, conn, door };
                match send_all(&mut Sending { caller, at, count }, count) {
                    Ok(Done::Bytes(count)) => return Ok(count),
                    Ok(Done::Kernel) => {}
                    Err(error) => return Err(error),
                }
            }
            let send = || send_by_kernel(ctx, conn, at, count, door.is_some());
            let caller = Caller { ctx, conn, door };
            if let Some(sent) = caller.unaware(&conn.state.senders, send) {
                return sent;
            }
        }
    }
    let sent = send_by_kernel(ctx, conn, at, count, door.is_some());
    world.trace(|| format!("end {} sends {at} unseen: {sent:?}", conn.number));
    sent
}

/// A thread that was unaware of rings is back.
pub fn back_from_kernel(ctx: &Ctx<'_>, conn: &'static Conn, counter: &AtomicU32) {
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
        let sent = kernel::send(&mut world.sockets.borrow_mut(), conn.socket, bytes);
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

/// A call of a program on a connection with a channel.
#[derive(Clone, Copy)]
struct Caller<'a> {
    ctx: &'a Ctx<'a>,
    conn: &'static Conn,
    /// None: the call may not wait.
    door: Option<usize>,
}

impl<'a> fordway_sockets::Caller for Caller<'a> {
    type End = At<'a>;

    fn end(&self) -> At<'a> {
        At::new(self.ctx, self.conn)
    }

    fn is_same(&self) -> bool {
        true
    }

    fn has_its_number(&self) -> bool {
        true
    }

    fn may_wait(&self) -> bool {
        self.door.is_some()
    }

    fn is_interrupted(&self) -> bool {
        false
    }
}

impl Caller<'_> {
    fn sleep(&self, want: Want) -> Result<(), i32> {
        let door = self.door.expect("a call that may wait");
        self.ctx.sleep_for(self.conn, want, door);
        Ok(())
    }

    /// By the kernel, by a thread that is counted meanwhile. `None`: there is a channel again.
    fn unaware(
        &self,
        counter: &'static AtomicU32,
        call: impl FnOnce() -> Result<usize, i32>,
    ) -> Option<Result<usize, i32>> {
        counter.fetch_add(1, Ordering::SeqCst);
        self.ctx.point();
        let result = (!self.conn.is_paired()).then(call);
        back_from_kernel(self.ctx, self.conn, counter);
        result
    }
}

/// A piece of the stream.
struct Sending<'a> {
    caller: Caller<'a>,
    at: u64,
    count: usize,
}

impl<'a> Transfer for Sending<'a> {
    type Caller = Caller<'a>;

    fn caller(&self) -> &Caller<'a> {
        &self.caller
    }

    fn attempt(&mut self, done: usize) -> Result<Moved, i32> {
        let Caller { ctx, conn, .. } = self.caller;
        let end = At::new(ctx, conn);
        let mut piece = Piece {
            ctx,
            conn,
            at: self.at + done as u64,
            left: self.count - done,
            begun: done != 0,
        };
        if ctx.world.once_in(32) && end.producer().state() == tx_state::RING {
            // An end that was noted for this connection, and is not true.
            let stale =
                [libc::POLLRDHUP, libc::POLLHUP, libc::POLLERR][ctx.world.below(3) as usize];
            conn.state.note(stale as u32);
            ctx.world.figures.borrow_mut().stale_ends += 1;
        }
        let put = |producer: &Producer| piece.by_ring(producer, self.count).is_ok();
        if done == 0 && ctx.world.once_in(2) && send_short(&end, self.count, put) {
            ctx.world.figures.borrow_mut().short_sends += 1;
            return Ok(Moved::Bytes(self.count));
        }
        fordway_sockets::send(&end, &mut piece)
    }

    fn rest_by_kernel(&mut self, done: usize) -> Option<Result<usize, i32>> {
        let Caller { ctx, conn, .. } = self.caller;
        let (at, left) = (self.at + done as u64, self.count - done);
        let send = || send_by_kernel(ctx, conn, at, left, true);
        self.caller.unaware(&conn.state.senders, send)
    }

    fn sleep(&mut self, _: usize) -> Result<(), i32> {
        self.caller.sleep(Want::Room)
    }

    fn ends_in_vain(&self) {
        let own = self.caller.conn.bound().own;
        own.tx_own.no_space.store(1, Ordering::Relaxed);
    }
}

/// recv(2), as the shim's hooks make it.
fn receive<'a>(
    ctx: &'a Ctx<'a>,
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

fn receive_once<'a>(
    ctx: &'a Ctx<'a>,
    conn: &'static Conn,
    target: &mut Checked<'a>,
    door: Option<usize>,
) -> Result<usize, i32> {
    if conn.script.raw.get() {
        return receive_by_kernel(ctx, conn, target, door.is_some());
    }
    ctx.count_operation(conn);
    if !conn.state.reads.load(Ordering::Relaxed) {
        up::reads(&At::new(ctx, conn));
    }
    loop {
        ctx.point();
        let caller = || Caller { ctx, conn, door };
        if conn.is_paired() {
            let (begin, room) = ((target.at, target.room), target.room);
            let call = &mut Receiving {
                caller: caller(),
                target: &mut *target,
                begin,
            };
            match receive_enough(call, room) {
                Ok(Done::Bytes(count)) => return Ok(count),
                Ok(Done::Kernel) => {}
                Err(error) => return Err(error),
            }
        }
        let receive = || receive_by_kernel(ctx, conn, target, door.is_some());
        if let Some(received) = caller().unaware(&conn.state.unaware, receive) {
            return received;
        }
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

/// A receive into a buffer that is checked.
struct Receiving<'a, 'b> {
    caller: Caller<'a>,
    target: &'b mut Checked<'a>,
    begin: (u64, usize),
}

impl Receiving<'_, '_> {
    fn target(&mut self, done: usize) -> &mut Self {
        let (at, room) = self.begin;
        (self.target.at, self.target.room) = (at + done as u64, room - done);
        self
    }
}

impl<'a> Transfer for Receiving<'a, '_> {
    type Caller = Caller<'a>;

    fn caller(&self) -> &Caller<'a> {
        &self.caller
    }

    fn attempt(&mut self, done: usize) -> Result<Moved, i32> {
        let Caller { ctx, conn, .. } = self.caller;
        let end = At::new(ctx, conn);
        let target = &mut *self.target(done).target;
        if done == 0 && !target.peek && ctx.world.once_in(2) {
            let range = (target.room, 1);
            let fetch = |consumer: &Consumer, count| target.by_ring(consumer, count).is_ok();
            let count = receive_short(&end, range, fetch)?;
            if count != 0 {
                ctx.world.figures.borrow_mut().short_receives += 1;
                return Ok(Moved::Bytes(count));
            }
        }
        fordway_sockets::receive(&end, target)
    }

    fn rest_by_kernel(&mut self, done: usize) -> Option<Result<usize, i32>> {
        let caller = self.caller;
        let target = &mut *self.target(done).target;
        let receive = || receive_by_kernel(caller.ctx, caller.conn, target, true);
        caller.unaware(&caller.conn.state.unaware, receive)
    }

    fn sleep(&mut self, _: usize) -> Result<(), i32> {
        self.caller.sleep(Want::Bytes)
    }
}

impl fordway_sockets::Receive for Receiving<'_, '_> {
    fn peeks(&self) -> bool {
        self.target.peek
    }

    fn enough(&self) -> usize {
        0
    }

    fn look_again(&mut self) -> bool {
        false
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
