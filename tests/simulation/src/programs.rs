//! What the programs of a run do, and what they must see.
//!
//! Each end sends its stream, shuts its sending half or closes, and reads to the end of
//! file, by two threads with blocking calls or by one that polls. A stream's bytes follow
//! from their positions, so every one is checked where it is received. Unless a connection
//! was broken by a kill or an early close, each stream must arrive whole, without an error.

use crate::calls::{back_from_kernel, note_error, receive_more, send_more};
use crate::end::At;
use crate::kernel;
use crate::plan::Style;
use crate::process::Conn;
use crate::world::{Ctx, World};
use fordway_abi::reason::Reason;
use fordway_abi::shm::tx_state;
use fordway_sockets::ready::{Want, binding, is_ready};
use fordway_sockets::{End as _, down, ends};
use std::sync::atomic::Ordering;

/// So much is moved to the kernel just before an end: the slowest readers take it within a close's patience.
const MOVED_AT_END_MAX: u64 = 32 << 10;

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
            kernel::close(&mut world.sockets.borrow_mut(), conn.socket);
        }
    }
}

/// From now on its streams need not arrive whole, and errors are to be expected.
fn break_connection(world: &World, conn: &Conn) {
    conn.broken.set(true);
    world.conns[conn.socket ^ 1].broken.set(true);
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
        let end = At::new(ctx, conn);
        let unread = conn.producer().unread_hint();
        if unread < MOVED_AT_END_MAX && ctx.world.once_in(4) {
            // Between the last bytes and the end, as the watchdog does.
            down::withdraw(&end);
        }
        script.hurries.set(script.style == Style::Polls);
        let is_free = !conn.is_paired() || ends::before_shutdown(&end, true, false);
        script.hurries.set(false);
        if !is_free {
            return;
        }
    }
    shut_by_kernel(ctx, conn);
}

fn shut_by_kernel(ctx: &Ctx<'_>, conn: &Conn) {
    ctx.point();
    ctx.world
        .trace(|| format!("end {} shuts its sending half", conn.number));
    kernel::shut(&mut ctx.world.sockets.borrow_mut(), conn.socket);
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
        down::flush_before_end(&end, down::deadline(end.now_ns()));
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
