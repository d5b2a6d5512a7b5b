//! A connection of this process as the machine of `fordway_sockets` sees it: where its
//! steps become system calls, knocks and reports.

use crate::lock::{Guard, lock_shared, rank};
use crate::spin;
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::thread::Shield;
use crate::{broker, epoll, guest, late, link, stack, stay, transfer, upgrade, wait};
use core::sync::atomic::Ordering;
use fordway_abi::control::status;
use fordway_abi::reason::Reason;
use fordway_abi::shm::Endpoint;
use fordway_ring::{Consumer, Host, Producer};
use fordway_sockets::{End, Event, Half, Lost, NoLock, Patience, Result, State};

/// asm-generic/sockios.h.
pub const SIOCATMARK: usize = 0x8905;
/// One look at a time while waiting for the peer or for the kernel's room.
const PAUSE_MS: i32 = 1;
const ROOM_WAIT_MS: i32 = 100;
/// Longest wait for bytes that were taken back and are on their way: a peer that has lost its CPU
/// in the middle of that comes back within this time, unless it was stopped.
const BYTES_WAIT_MS: u64 = 1000;

static PATIENCE: Patience = Patience::new();
/// A stack serves all programs of its domain, and waits for none of them.
static STACKS_PATIENCE: Patience = Patience::none();

/// [`At::fd`]: whichever the connection has, when it is used. One of several may be closed, and its
/// number be another socket's: under a lock of a half, the connection's own is not.
const ANY: i32 = -1;

/// A connection by one of its descriptors.
#[derive(Clone, Copy)]
pub struct At<'a> {
    conn: &'a Conn,
    /// The descriptor of the program's call, or [`ANY`].
    fd: i32,
    /// Which connection of the entry is meant: another one may have it by now.
    serial: u32,
}

impl Conn {
    /// By the descriptor of the program's call.
    #[inline(always)]
    pub fn at(&self, fd: i32) -> At<'_> {
        let serial = self.serial.load(Ordering::Acquire);
        At {
            conn: self,
            fd,
            serial,
        }
    }

    /// What `ask` learns of the socket by a number of it, while no mail is acted on by others.
    /// The program may close one of several meanwhile, which is another socket's then: the
    /// connection has exchanged it before, and it is asked again.
    pub fn ask<T>(&self, mut ask: impl FnMut(i32) -> T) -> T {
        loop {
            let fd = self.fd.load(Ordering::SeqCst);
            let learned = ask(fd);
            if self.fd.load(Ordering::SeqCst) == fd {
                return learned;
            }
        }
    }

    /// By any descriptor of it.
    #[inline]
    pub fn end(&self) -> At<'_> {
        // Whoever uses the descriptor looks whether it is still this connection's entry.
        let serial = self.serial.load(Ordering::Acquire);
        At {
            conn: self,
            fd: ANY,
            serial,
        }
    }
}

impl<'a> At<'a> {
    /// The connection of the program's call on `fd`, found by that number; `None` if another
    /// thread has closed it since.
    #[inline(always)]
    pub fn called(conn: &'a Conn, fd: i32) -> Option<Self> {
        let end = conn.at(fd);
        stay::is_callable(conn, fd).then_some(end)
    }

    /// The same connection, by another number of it.
    #[inline(always)]
    pub fn by(&self, fd: i32) -> Self {
        Self { fd, ..*self }
    }

    /// Whether its number is still one of the connection's.
    pub fn is_callable(&self) -> bool {
        stay::is_callable(self.conn, self.fd()) && self.is_same()
    }

    /// Whether the entry is not another connection's by now.
    #[inline(always)]
    pub fn is_same(&self) -> bool {
        self.conn.serial.load(Ordering::Acquire) == self.serial
    }

    /// A descriptor of it.
    pub fn fd(&self) -> i32 {
        match self.fd {
            ANY => self.conn.fd.load(Ordering::Acquire),
            fd => fd,
        }
    }

    /// Whether its channel goes past its stack: then the stack has the positions of the stream, which has a far end behind it
    /// as a connection of the kernel's has.
    fn cuts_through(&self) -> bool {
        self.conn.cuts_through.load(Ordering::Relaxed) != 0
    }

    /// `None`: nothing was learned; the number may have been closed meanwhile, and be another's.
    fn poll(&self, events: i16, time_ms: i32) -> Option<u32> {
        if time_ms != 0 {
            late::give();
        }
        let fd = self.fd();
        let mut entry = libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let polled = sys!(SYS_poll, &raw mut entry, 1, time_ms).is_ok();
        let learned = polled
            && entry.revents & libc::POLLNVAL == 0
            && stay::is_callable(self.conn, fd)
            && self.is_same();
        learned.then_some(entry.revents as u16 as u32)
    }
}

impl End for At<'_> {
    type Guard<'a>
        = Guard<'a>
    where
        Self: 'a;
    /// Its index.
    type Link = u32;
    type Shield = Shield;
    type Layout = Host;

    #[inline(always)]
    fn state(&self) -> &State {
        self.conn
    }

    #[inline(always)]
    fn has_channel(&self) -> bool {
        self.conn.is_paired() && self.is_same()
    }

    fn is_bound(&self) -> bool {
        link::is_bound(self.conn)
    }

    #[inline(always)]
    fn peer_is_there(&self) -> bool {
        self.conn.peer_is_there()
    }

    #[inline(always)]
    fn own(&self) -> &Endpoint {
        self.conn.own()
    }

    #[inline(always)]
    fn producer(&self) -> Producer {
        self.conn.producer()
    }

    #[inline(always)]
    fn consumer(&self) -> Consumer {
        self.conn.consumer()
    }

    #[inline(always)]
    fn lock(&self, half: Half) -> core::result::Result<Guard<'_>, NoLock> {
        loop {
            let own = self.conn.own.load(Ordering::Acquire);
            // SAFETY: a connection that has had a channel points to an endpoint for good.
            let endpoint = unsafe { &*own };
            let guard = match half {
                Half::Sending => {
                    let own = &endpoint.tx_own;
                    lock_shared(&own.lock, &own.lock_process, rank::SENDING)
                }
                Half::Receiving => {
                    let own = &endpoint.rx_own;
                    lock_shared(&own.lock, &own.lock_process, rank::RECEIVING)
                }
            }
            .ok_or(NoLock::Interrupted)?;
            if !self.has_channel() {
                return Err(NoLock::NoChannel);
            }
            // Once it is seen to have a channel, the endpoint is seen to be that channel's.
            if self.conn.own.load(Ordering::Relaxed) != own {
                continue;
            }
            // A forked child lets go of it when it attends to the connection.
            if self.conn.has_lost_its_place() {
                return Err(NoLock::NoChannel);
            }
            return Ok(guard);
        }
    }

    #[inline(always)]
    fn shield(&self) -> Shield {
        Shield::new()
    }

    #[inline(always)]
    fn tell(&self, doors: u64) {
        self.conn.mark();
        late::knock(self.conn, doors);
        spin::note_cpu(self.conn);
    }

    #[inline]
    fn knock(&self, doors: u64) {
        late::knock(self.conn, doors);
    }

    fn knock_all(&self) {
        self.conn.knock_all();
    }

    fn wake_own(&self) {
        let waiters = &self.conn.own().wait;
        let doors =
            waiters.rx_doors.load(Ordering::SeqCst) | waiters.tx_doors.load(Ordering::SeqCst);
        wait::knock_for_sleepers(doors);
    }

    fn peer_sleeps(&self, doors: u64) -> bool {
        self.conn.peer_sleeps(doors)
    }

    fn peer_beat(&self) -> u32 {
        let page = self.conn.peer_page.load(Ordering::Relaxed);
        // SAFETY: as in `peer_sleeps`.
        unsafe { (*page).beat.load(Ordering::Relaxed) }
    }

    fn kernel_shows(&self) -> u32 {
        let known = || self.conn.shown();
        self.poll(libc::POLLRDHUP, 0).unwrap_or_else(known)
    }

    fn is_at_mark(&self) -> bool {
        let mut at: i32 = 0;
        sys!(SYS_ioctl, self.fd(), SIOCATMARK, &raw mut at).is_ok() && at != 0
    }

    fn peek_kernel(&self) -> Result<usize> {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        sys!(SYS_recvfrom, self.fd(), &raw mut byte, 1, flags, 0, 0)
    }

    fn send_run(&self, base: *const u8, length: usize) -> Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = sys!(SYS_sendto, self.fd(), base, length, flags, 0, 0);
        wait::acted();
        if sent == Err(libc::EAGAIN) {
            upgrade::note_owed_bytes();
        }
        sent
    }

    fn is_unix(&self) -> bool {
        self.conn.is_unix() && !self.cuts_through()
    }

    fn is_to_stack(&self) -> bool {
        self.is_unix() && !self.conn.is_served()
    }

    fn is_drained(&self) -> bool {
        transfer::is_drained(self.fd())
    }

    fn kernel_room(&self) -> u64 {
        let buffer = sys::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF);
        let mut queued: i32 = 0;
        let asked = sys!(SYS_ioctl, self.fd(), libc::TIOCOUTQ, &raw mut queued);
        // The buffer counts what it costs to keep the bytes; the window is the peer's.
        let window = match asked {
            Ok(_) if !self.conn.is_unix() => 64 * 1024,
            _ => 0,
        };
        (buffer / 2 - queued).max(0) as u64 + window
    }

    fn sent_position(&self) -> Option<u64> {
        if !self.conn.is_unix() {
            return transfer::sent_position(self.fd());
        }
        let can_send = transfer::can_send(self.fd());
        match self.cuts_through() {
            true if can_send => stack::sent_position(self.fd()),
            _ => can_send.then_some(0),
        }
    }

    fn may_send(&self) -> bool {
        match self.conn.is_unix() {
            true => transfer::can_send(self.fd()),
            false => transfer::sent_position(self.fd()).is_some(),
        }
    }

    fn push_kernel_tail(&self) {
        if !self.conn.is_unix() {
            transfer::push_kernel_tail(self.fd());
        }
    }

    fn received_position(&self) -> Option<u64> {
        if !self.conn.is_unix() {
            return transfer::received_position(self.fd());
        }
        let has_end = self.kernel_shows() & libc::POLLRDHUP as u32 != 0;
        match self.cuts_through() {
            true if !has_end => stack::received_position(self.fd()),
            _ => (!has_end).then_some(0),
        }
    }

    fn reset_at_close(&self) {
        if self.cuts_through() {
            return stack::reset_at_close(self.fd());
        }
        if self.conn.is_unix() {
            return;
        }
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_LINGER, at_once);
    }

    fn lost(&self, why: Lost) {
        let reason = match why {
            Lost::Broken(_) => Reason::Protocol,
            Lost::Unseen => Reason::Unseen,
            Lost::Alone => Reason::NoPeer,
        };
        broker::report(self.conn, status::KERNEL, reason as u32);
        match why {
            // By whoever reads the mail, or sleeps: not in a call on this number.
            Lost::Alone => upgrade::break_off(self.conn),
            _ => drop(sys!(SYS_shutdown, self.fd(), libc::SHUT_RDWR)),
        }
    }

    fn parts_alone(&self) -> bool {
        guest::parts_alone(self.conn)
    }

    fn give_up(&self, reason: u32) -> u32 {
        let link = self.conn.link.load(Ordering::Relaxed);
        epoll::detach(self.conn);
        broker::report(self.conn, status::KERNEL, reason);
        upgrade::count_anew(self.conn, reason);
        self.conn.phase.advance(Event::Left);
        upgrade::sight_anew(self.conn, reason);
        link
    }

    fn unbind(&self, link: u32) {
        link::unbind(link);
    }

    fn disown(&self) {
        let link = self.conn.link.load(Ordering::Relaxed);
        if guest::is_cut_off(self.conn) {
            // Its parent need not have done it.
            epoll::detach(self.conn);
        }
        // Of several threads that find it out, one lets go.
        if self.conn.phase.transition(Event::Left).is_ok() {
            link::unbind(link);
        }
    }

    fn shut_sending(&self) {
        // What it could say was said to the program when it asked: it is connected.
        let _ = sys!(SYS_shutdown, self.fd(), libc::SHUT_WR);
        wait::acted();
    }

    fn is_nonblocking(&self) -> bool {
        self.conn.is_nonblocking()
    }

    fn patience(&self) -> &Patience {
        match self.conn.is_served() {
            true => &STACKS_PATIENCE,
            false => &PATIENCE,
        }
    }

    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }

    fn pause(&self) {
        // The peer's threads may all sleep on other connections.
        let page = self.conn.peer_page.load(Ordering::Relaxed);
        // SAFETY: mapped as long as the connection has its channel; an atomic load.
        self.conn
            .knock(unsafe { (*page).sleeping.load(Ordering::SeqCst) });
        late::give();
        let _ = sys!(SYS_poll, 0, 0, PAUSE_MS);
        broker::check_mail();
    }

    fn await_room(&self) {
        self.poll(libc::POLLOUT, ROOM_WAIT_MS);
    }

    fn await_bytes(&self, most_ns: u64) -> bool {
        let most_ms = most_ns.div_ceil(1_000_000).min(BYTES_WAIT_MS);
        self.poll(libc::POLLIN, most_ms as i32)
            .is_none_or(|shown| shown != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{PROGRAMS_END, STACKS_END};
    use crate::testing::{Channel, Silent, tables};
    use fordway_abi::shm::tx_state;
    use fordway_sockets::down;

    /// A stack whose far end takes little leaves bytes in a ring for seconds, and need not sleep meanwhile; a program may read
    /// past the library.
    #[test]
    fn a_stack_without_room_is_no_unseen_reader() {
        const LOOKS: u32 = 100;
        let _turn = tables();
        let _broker = Silent::broker();
        let keeps_ring = |whose: u32, is_alive: bool| {
            let channel = Channel::new([31, 32], |_, _| ());
            let [near, _] = channel.ends;
            near.unix.store(whose, Ordering::Relaxed);
            channel.fill();
            for _ in 0..LOOKS {
                if is_alive {
                    // Both ends have one page.
                    wait::beat();
                }
                down::watch(&near.end(), wait::WATCH_SLICE_NS);
            }
            near.is_paired() && near.producer().state() == tx_state::RING
        };
        for is_alive in [true, false] {
            assert!(keeps_ring(PROGRAMS_END, is_alive), "to a stack");
            assert!(!keeps_ring(STACKS_END, is_alive), "to a program");
        }
    }

    /// A close with bytes on their way back by the kernel sets nothing on a socket that a program without this channel has as well.
    #[test]
    fn a_socket_that_was_handed_on_is_not_reset_by_this_close() {
        let _turn = tables();
        let _broker = Silent::broker();
        for (reason, resets) in [(None, true), (Some(Reason::Exec), false)] {
            let channel = Channel::new([94, 95], |_, _| ());
            channel.owe();
            let far = channel.ends[1];
            assert_eq!(far.consumer().producer_state(), tx_state::WITHDRAWN);
            far.unix.store(0, Ordering::Relaxed);
            if let Some(reason) = reason {
                down::bar(&far.end(), reason);
            }
            fordway_sockets::ends::before_close(&far.end(), None);
            let mut linger = [0_i32; 2];
            let mut length = size_of_val(&linger) as libc::socklen_t;
            let asked = sys!(
                SYS_getsockopt,
                channel.fds[1],
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                linger.as_mut_ptr(),
                &raw mut length
            );
            assert_eq!((asked, linger), (Ok(0), [i32::from(resets), 0]));
            far.unix.store(PROGRAMS_END, Ordering::Relaxed);
        }
    }
}
