//! A record ([`fordway_abi::record`]) by the kernel's TCP: whole, or not at all.
//!
//! A reader takes whole records only, and nobody keeps a part of one: so whoever holds the socket too, since a dup, a
//! fork, an exec or in a message, finds the next record where the last reader has left off. For that a record has to go
//! in one piece. The kernel takes it so if it shows room (POLLOUT): a third of its buffer is free then (linux:
//! sk_stream_is_writeable), and [`BUFFER_BYTES`], which the kernel doubles (socket(7)), make that more than the longest record. A ring takes one
//! record by one publication ([`Buffers::whole`]).
//!
//! # Who else sends, or takes
//! Threads have a lock for each direction. Other processes, which hold the socket too, are kept out by a lock of the
//! kernel's on the socket's inode (fcntl(2), F_SETLK), which goes when its holder dies. Only those ask for it who are not
//! alone. Each is held for some calls that do not sleep. But its holder may be stopped in between (SIGSTOP): so a call
//! waits for that lock ([`KeptOut`]) without the threads' lock, and handlers run meanwhile.
//!
//! # Memory of the kernel's
//! If it is short, the kernel may take a part of what it has shown room for. The rest follows within ten seconds, in
//! which the call sleeps, or the connection ends: both ends are told then. It keeps its locks, and no handler runs: one that
//! used the connection would part the record.

use super::Buffers;
use crate::deadline::Deadline;
use crate::lock::{lock_word, rank};
use crate::signals::Call;
use crate::state::Conn;
use crate::sys::{self, give, sys};
use crate::{faults, real, wait};
use core::sync::atomic::Ordering;
use fordway_sockets::{Moved, down};

/// SO_SNDBUF and SO_RCVBUF of a socket of records: the most that anybody may ask for (net.core.wmem_max as it comes). Where that was set
/// lower, the rest of a record follows as it does where memory is short.
pub const BUFFER_BYTES: i32 = 212_992;
/// How often a lock of another process's is asked for, before a call waits for it outside of its own.
const LOCK_TRIES: u32 = 64;
/// How long such a wait is at a time, in milliseconds.
const PAUSE_MS: i32 = 1;
/// How long another process holds up an event loop.
pub const NONBLOCKING_NS_MAX: u64 = 1_000_000_000;
/// How long the rest of a record is tried at a time, in milliseconds.
const TRY_MS: i32 = 100;

/// A direction of a connection.
#[derive(Clone, Copy)]
pub enum Way {
    /// Records that are sent.
    Out,
    /// Records that are taken.
    In,
}

/// Keeps other processes away from a direction while it lives.
pub struct Alone(Option<(i32, Way)>);

impl Alone {
    /// From here on, if others may hold the connection; `None`: one of them is at it just now ([`KeptOut`]).
    pub fn at(conn: &Conn, fd: i32, way: Way) -> Option<Self> {
        let is_held =
            conn.held.cell.load(Ordering::Relaxed) | conn.barred.load(Ordering::Relaxed) != 0;
        if !is_held {
            return Some(Self(None));
        }
        for _ in 0..LOCK_TRIES {
            match lock_file(fd, way, libc::F_WRLCK) {
                Err(libc::EAGAIN | libc::EACCES) => _ = sys!(SYS_sched_yield),
                _ => return Some(Self(Some((fd, way)))),
            }
        }
        None
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some((fd, way)) = self.0 {
            let _ = lock_file(fd, way, libc::F_UNLCK);
        }
    }
}

fn lock_file(fd: i32, way: Way, kind: i32) -> sys::Result<()> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: way as i64,
        l_len: 1,
        l_pid: 0,
    };
    sys!(SYS_fcntl, fd, libc::F_SETLK, &raw const lock).map(drop)
}

/// A call that another process keeps out of a direction. It holds nothing while it waits, and ends as a sleep does.
pub struct KeptOut {
    call: Call,
    until: Deadline,
    waits: bool,
}

impl KeptOut {
    /// From now on; `waits`: the program's call may sleep.
    pub fn begin(call: Call, fd: i32, way: Way, waits: bool) -> Self {
        let option = match way {
            Way::Out => libc::SO_SNDTIMEO,
            Way::In => libc::SO_RCVTIMEO,
        };
        let waits = waits && !is_nonblocking(fd);
        let timeout_ns = match waits {
            true => u64::try_from(timeout_ms(fd, option))
                .ok()
                .map(|ms| ms * 1_000_000),
            false => Some(NONBLOCKING_NS_MAX),
        };
        Self {
            call,
            until: Deadline::after(timeout_ns),
            waits,
        }
    }

    /// Before the next try. `Err`: the call ends so.
    pub fn pause(&self) -> sys::Result<()> {
        // SAFETY: no entries.
        let slept = unsafe { real::poll(core::ptr::null_mut(), 0, PAUSE_MS) };
        let by_any = self.until != Deadline::Never;
        // A handler may have run before the pause, behind the locks of the last try.
        let is_ended =
            || self.call.is_interrupted(by_any) || slept < 0 && self.call.is_ended(by_any);
        if self.waits && is_ended() {
            return Err(libc::EINTR);
        }
        match self.until.has_passed() {
            true => Err(libc::EAGAIN),
            false => Ok(()),
        }
    }
}

/// What the kernel has to say of a descriptor within so many milliseconds.
pub fn shown(fd: i32, events: i16, timeout_ms: i32) -> sys::Result<i16> {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    sys!(SYS_poll, &raw mut entry, 1, timeout_ms)?;
    Ok(entry.revents)
}

/// Sends a record without a sleep; `Nothing`: there is no room for it. `None`: another process keeps it out.
pub fn by_kernel(
    conn: &Conn,
    fd: i32,
    buffers: &Buffers,
    flags: i32,
) -> sys::Result<Option<Moved>> {
    let _turn = lock_word(&conn.record_turn, rank::RECORD);
    let Some(_alone) = Alone::at(conn, fd, Way::Out) else {
        return Ok(None);
    };
    if shown(fd, libc::POLLOUT, 0)? == 0 {
        return Ok(Some(Moved::Nothing));
    }
    // Else the kernel finds out behind the head, and that has gone.
    buffers.pieces(0, buffers.total, |base, length| {
        faults::check(faults::is_readable(base, length))
    })?;
    let sent = send_from(fd, buffers, 0, flags);
    wait::acted();
    let moved = match sent {
        Err(libc::EAGAIN) => Ok(Moved::Nothing),
        Ok(count) if count < buffers.total => finish(fd, buffers, count).map(Moved::Bytes),
        sent => sent.map(Moved::Bytes),
    };
    moved.map(Some)
}

fn send_from(fd: i32, buffers: &Buffers, done: usize, flags: i32) -> sys::Result<usize> {
    buffers.with_parts(done, buffers.total - done, |parts| {
        let message = super::message(parts);
        let flags = flags | libc::MSG_DONTWAIT;
        sys!(SYS_sendmsg, fd, &raw const message, flags)
    })
}

/// The rest of a record, whose beginning the far end's kernel may have.
#[cold]
fn finish(fd: i32, buffers: &Buffers, mut done: usize) -> sys::Result<usize> {
    let deadline_ns = down::deadline(sys::now_ns());
    while done < buffers.total {
        if sys::now_ns() > deadline_ns {
            return Err(torn(fd));
        }
        let _ = shown(fd, libc::POLLOUT, TRY_MS);
        match send_from(fd, buffers, done, libc::MSG_NOSIGNAL) {
            Ok(count) => done += count,
            Err(libc::EAGAIN | libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A part of a record has moved, and the rest cannot: no later byte can be understood.
#[cold]
pub fn torn(fd: i32) -> i32 {
    let _ = sys!(SYS_shutdown, fd, libc::SHUT_RDWR);
    libc::ECONNRESET
}

/// The same as libc's sendmsg, which may sleep.
pub fn by_libc(conn: &Conn, fd: i32, buffers: &Buffers, flags: i32) -> isize {
    let call = Call::begin();
    let waits = flags & libc::MSG_DONTWAIT == 0;
    let mut kept_out = None;
    loop {
        match by_kernel(conn, fd, buffers, flags) {
            Ok(Some(Moved::Bytes(count))) => return count as isize,
            Ok(Some(_)) => {}
            Ok(None) => {
                let kept_out =
                    kept_out.get_or_insert_with(|| KeptOut::begin(call, fd, Way::Out, waits));
                match kept_out.pause() {
                    Ok(()) => continue,
                    Err(error) => return give(Err(error)),
                }
            }
            Err(error) => return give(Err(error)),
        }
        if !waits || is_nonblocking(fd) {
            return give(Err(libc::EAGAIN));
        }
        let timeout_ms = timeout_ms(fd, libc::SO_SNDTIMEO);
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one entry of ours.
        match unsafe { real::poll(&raw mut entry, 1, timeout_ms) } {
            0 => return give(Err(libc::EAGAIN)),
            ..0 if sys::errno() != libc::EINTR => return -1,
            ..0 if call.is_ended(timeout_ms >= 0) => return give(Err(libc::EINTR)),
            _ => {}
        }
    }
}

/// O_NONBLOCK, which others who hold the socket may have set.
pub fn is_nonblocking(fd: i32) -> bool {
    let flags = sys!(SYS_fcntl, fd, libc::F_GETFL).unwrap_or(0);
    flags as i32 & libc::O_NONBLOCK != 0
}

/// SO_RCVTIMEO or SO_SNDTIMEO as poll(2) takes it: less than zero, if there is none.
pub fn timeout_ms(fd: i32, option: i32) -> i32 {
    let none = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let asked = sys::option(fd, libc::SOL_SOCKET, option, none);
    let time = asked.map_or(none, |(time, _)| time);
    let ms = time.tv_sec.saturating_mul(1000) + (time.tv_usec + 999) / 1000;
    match ms {
        0 => -1,
        ms => i32::try_from(ms).unwrap_or(i32::MAX),
    }
}
