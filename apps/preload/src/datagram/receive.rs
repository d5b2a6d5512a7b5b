//! Receiving a datagram: from the rings of a socket's flows, or from the kernel's queue.
//!
//! Rings come first, each in its turn. The kernel is asked when they are empty, when a header says that its sender has
//! gone by the kernel before, every [`TURNS`] datagrams, and in a wait when it was not for [`UNASKED_US`]: nobody starves.
//!
//! What a look has shown (MSG_PEEK, FIONREAD) comes next, whatever has come meanwhile: a program makes room for it.

use super::{FLOWS_MAX, Flow, HEADER_BYTES, Header, Name, Socket, looked, record_bytes};
use crate::deadline::Deadline;
use crate::signals::Call;
use crate::spin::{self, Look};
use crate::sys::{self, give};
use crate::thread::{self, Shield};
use crate::transfer::{Buffers, copier};
use crate::wait::{self, Bell};
use crate::{broker, config, faults};
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use fordway_abi::shm::DOOR_SHARED;
use fordway_ring::copy::Kernel;
use fordway_ring::{Consumer, Violation};

/// Datagrams by rings until the kernel has a turn.
const TURNS: u32 = 64;
/// For so long a wait does not ask the kernel.
const UNASKED_US: u64 = 20;
/// No error: the parts have no bytes, and readv then asks the socket nothing.
pub const NO_BYTES: i32 = 0;
/// Flags of a receive that only the kernel carries.
const OF_KERNEL: i32 = libc::MSG_ERRQUEUE;

/// Where a call of the program wants the sender's name, and what else there is to say.
#[derive(Clone, Copy)]
pub enum Place {
    /// The name of recvfrom, and its length.
    Name(*mut c_void, *mut u32),
    /// A message.
    Message(*mut libc::msghdr),
}

impl Place {
    /// Whose datagram the kernel has just given.
    fn read(self, socket: &Socket) -> Option<Name> {
        let (name, length) = match self {
            // SAFETY: the kernel has just written it, if there is a name.
            Place::Name(name, _) if name.is_null() => (name, 0),
            // SAFETY: as above.
            Place::Name(name, length) => (name, unsafe { length.read_unaligned() }),
            // SAFETY: the kernel has just filled it in.
            Place::Message(message) => unsafe { ((*message).msg_name, (*message).msg_namelen) },
        };
        match name.is_null() {
            false => Name::of_program(name, length as usize),
            true => (socket.is_connected.load(Ordering::Relaxed) != 0).then(|| socket.remote.get()),
        }
    }

    /// The message.
    fn message<'a>(self) -> Option<&'a libc::msghdr> {
        match self {
            Place::Name(..) => None,
            // SAFETY: the kernel has just filled it in.
            Place::Message(message) => Some(unsafe { &*message }),
        }
    }

    /// Says who has sent a datagram that came by a ring, what stands beside it, and whether it was cut.
    fn write(self, socket: &Socket, taken: &Taken, flags: i32) -> sys::Result<()> {
        let (address, length) = taken.remote.address(socket.family.load(Ordering::Relaxed));
        match self {
            Place::Name(name, _) if name.is_null() => Ok(()),
            Place::Name(name, room) => {
                faults::check(faults::can_read(room))?;
                // SAFETY: the program's own argument, found readable.
                let has = unsafe { room.read_unaligned() };
                if (has as i32) < 0 {
                    return Err(libc::EINVAL);
                }
                write_name(name, has as usize, &address[..length])?;
                faults::check(faults::give(room, length as u32))
            }
            Place::Message(message) => {
                // SAFETY: the program's own message, which was found readable when its buffers were; only named.
                unsafe {
                    if !(*message).msg_name.is_null() {
                        let has = (*message).msg_namelen as usize;
                        write_name((*message).msg_name, has, &address[..length])?;
                        let at = &raw mut (*message).msg_namelen;
                        faults::check(faults::give(at, length as u32))?;
                    }
                    let template = &taken.flow.template;
                    let beside = template.give(socket, message, (taken.tos, taken.moment))?;
                    let cut = if taken.is_cut { libc::MSG_TRUNC } else { 0 };
                    let kept = flags & libc::MSG_CMSG_CLOEXEC | cut | beside;
                    faults::check(faults::give(&raw mut (*message).msg_flags, kept))
                }
            }
        }
    }
}

/// As much of a name as there is room for (linux: move_addr_to_user).
fn write_name(name: *mut c_void, room: usize, address: &[u8]) -> sys::Result<()> {
    let count = room.min(address.len());
    let name = name.cast::<u8>();
    faults::check(faults::is_user_range(name, count) && faults::is_writable(name, count))?;
    // SAFETY: the program's place, found writable.
    unsafe { core::ptr::copy_nonoverlapping(address.as_ptr(), name, count) };
    Ok(())
}

/// A datagram that came by a ring.
struct Taken {
    bytes: usize,
    /// Those for which there was room.
    copied: usize,
    is_cut: bool,
    /// For its template; an entry that was given back meanwhile has none.
    flow: &'static Flow,
    remote: Name,
    tos: u8,
    moment: u64,
}

/// What rings have.
enum Got {
    /// A datagram. With an error it is gone all the same.
    Datagram(sys::Result<Taken>),
    /// One that stands behind what the kernel has; this is the number of its header.
    Behind(&'static Flow, u32),
    /// Nothing.
    Nothing,
}

/// recv and its kin. `by_libc`: the call as the program made it, with these flags more.
pub fn receive(
    socket: &'static Socket,
    fd: i32,
    flags: i32,
    place: Place,
    buffers: &dyn Fn() -> sys::Result<Buffers>,
    by_libc: &dyn Fn(i32) -> isize,
) -> isize {
    if !config::is_active() || flags & OF_KERNEL != 0 {
        return by_libc(0);
    }
    thread::cancellation_point();
    broker::check_mail();
    let receiving = Receiving {
        socket,
        serial: socket.serial.load(Ordering::Acquire),
        fd,
        flags,
        place,
        buffers,
        by_libc,
    };
    if socket.reads.load(Ordering::Relaxed) == 0 {
        socket.reads.store(1, Ordering::SeqCst);
        socket.try_ready();
    }
    receiving.run()
}

/// A receive of another kind, which the kernel alone carries and which may sleep; `None`: there are rings to look at.
pub fn receive_unaware(socket: &'static Socket, by_libc: impl FnOnce() -> isize) -> Option<isize> {
    let shield = Shield::new();
    let enters = socket.enter_kernel();
    enters.then(|| Unaware(socket).during(shield, by_libc))
}

/// One of several messages has been received by the kernel.
pub fn note_received(socket: &'static Socket, fd: i32, message: *mut libc::msghdr, bytes: usize) {
    socket.reads.store(1, Ordering::SeqCst);
    note_come(socket, fd, Place::Message(message), bytes);
}

/// A datagram of `bytes` has come by the kernel.
fn note_come(socket: &'static Socket, fd: i32, place: Place, bytes: usize) {
    if let Some(flow) = place
        .read(socket)
        .and_then(|name| socket.flow_by_kernel(fd, name))
    {
        flow.note_come(socket, fd, (place.message(), bytes));
    }
}

/// What came of a spin.
enum Spun {
    /// A record in some ring.
    Rings,
    /// The kernel's answer, for the program.
    Kernel(isize),
    /// Nothing, or there was no spin.
    InVain,
}

/// A receive of the program.
struct Receiving<'a> {
    socket: &'static Socket,
    serial: u32,
    fd: i32,
    flags: i32,
    place: Place,
    buffers: &'a dyn Fn() -> sys::Result<Buffers>,
    by_libc: &'a dyn Fn(i32) -> isize,
}

impl Receiving<'_> {
    fn run(&self) -> isize {
        let call = Call::begin();
        let mut deadline = None;
        let mut asked = 0;
        loop {
            if !self.socket.has_rings()
                && let Some(got) = receive_unaware(self.socket, || (self.by_libc)(0))
            {
                return self.note(got);
            }
            if self.socket.is_kernels_turn()
                && let Some(got) = self.by_kernel()
            {
                return got;
            }
            match self.by_ring() {
                Got::Datagram(taken) => return self.give(taken),
                Got::Behind(flow, number) => {
                    if let Some(got) = self.by_kernel() {
                        return got;
                    }
                    flow.seen_by_kernel.store(number, Ordering::Relaxed);
                    // A peer that counts on while nothing comes would keep the call here for ever.
                    asked += 1;
                    if asked > FLOWS_MAX {
                        flow.broke();
                    }
                    continue;
                }
                Got::Nothing => {}
            }
            let may_wait = self.flags & libc::MSG_DONTWAIT == 0
                && self.socket.nonblock.load(Ordering::Relaxed) == 0;
            let spins_first = may_wait && !self.is_unasked();
            match self.spin_if(spins_first) {
                Spun::Rings => continue,
                Spun::Kernel(got) => return got,
                Spun::InVain => {}
            }
            if let Some(got) = self.by_kernel() {
                return got;
            }
            // Then it is always readable, and only a call that may sleep is told of the end.
            if self.socket.shut.load(Ordering::SeqCst) != 0 {
                return self.note((self.by_libc)(0));
            }
            self.socket.tidy();
            if !may_wait {
                return give(Err(libc::EAGAIN));
            }
            match self.spin_if(!spins_first) {
                Spun::Rings => continue,
                Spun::Kernel(got) => return got,
                Spun::InVain => {}
            }
            let deadline = *deadline.get_or_insert_with(|| self.until());
            if deadline.has_passed() {
                return give(Err(libc::EAGAIN));
            }
            if let Err(error) = self.sleep(deadline, call) {
                return give(Err(error));
            }
            asked = 0;
            // The number may be another file's by now.
            if self.socket.serial.load(Ordering::Acquire) != self.serial
                || !self.socket.is_behind(self.fd)
            {
                return give(Err(libc::EBADF));
            }
            broker::check_mail();
        }
    }

    /// SO_RCVTIMEO.
    fn until(&self) -> Deadline {
        let none = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let asked = sys::option(self.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, none);
        let time_us = asked.map_or(0, |(time, _)| {
            time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
        });
        Deadline::after((time_us != 0).then_some(time_us * 1000))
    }

    /// Whether the kernel was not asked for long.
    fn is_unasked(&self) -> bool {
        let since = sys::ticks().saturating_sub(self.socket.asked_at.load(Ordering::Relaxed));
        since > UNASKED_US * spin::ticks_per_us()
    }

    /// What the kernel has, without a sleep. `None`: nothing.
    fn by_kernel(&self) -> Option<isize> {
        self.socket.since_kernel.store(0, Ordering::Relaxed);
        let got = (self.by_libc)(libc::MSG_DONTWAIT);
        self.socket.asked_at.store(sys::ticks(), Ordering::Relaxed);
        if got < 0 && sys::errno() == libc::EAGAIN {
            self.socket.forget_look(looked::AT_KERNELS);
            return None;
        }
        Some(self.note(got))
    }

    /// Counts a datagram that came by the kernel.
    fn note(&self, got: isize) -> isize {
        let errno = sys::errno();
        if got >= 0 && self.flags & libc::MSG_PEEK != 0 {
            self.socket.note_look(looked::AT_KERNELS);
        } else if got >= 0 {
            self.socket.note_look(looked::NOWHERE);
            note_come(self.socket, self.fd, self.place, got as usize);
        }
        sys::set_errno(errno);
        got
    }

    fn give(&self, taken: sys::Result<Taken>) -> isize {
        if matches!(taken, Err(NO_BYTES)) {
            return 0;
        }
        let given = taken.and_then(|taken| {
            self.place.write(self.socket, &taken, self.flags)?;
            match self.flags & libc::MSG_TRUNC {
                0 => Ok(taken.copied),
                _ => Ok(taken.bytes),
            }
        });
        give(given)
    }

    /// The next record of some ring.
    fn by_ring(&self) -> Got {
        let buffers = match (self.buffers)() {
            Ok(buffers) => buffers,
            Err(error) => return Got::Datagram(Err(error)),
        };
        let Some(_guard) = self.socket.receiving.lock() else {
            return Got::Nothing;
        };
        // Another thread may have closed it, and the entry be another socket's.
        if self.socket.serial.load(Ordering::Acquire) != self.serial {
            return Got::Datagram(Err(libc::EBADF));
        }
        // Each turn of the loop gives a flow up.
        while let Some(flow) = self.socket.next_flow() {
            match self.take(flow, &buffers) {
                Ok(got) => return got,
                Err(_) => flow.broke(),
            }
        }
        Got::Nothing
    }

    /// The next record of one ring. Under the lock.
    fn take(&self, flow: &'static Flow, buffers: &Buffers) -> Result<Got, Violation> {
        let consumer = flow.consumer();
        if flow.goes_on_behind_leave() {
            return Err(Violation::Tail);
        }
        let fill = consumer.fill_bytes_for(1)?;
        if fill == 0 {
            return Ok(Got::Nothing);
        }
        let header = header_of(&consumer)?;
        let bytes = usize::from(header.bytes);
        let record = record_bytes(bytes);
        if header.pad != 0 || record as u64 > fill {
            return Err(Violation::Descriptor);
        }
        let seen = flow.seen_by_kernel.load(Ordering::Relaxed);
        match header.by_kernel.wrapping_sub(seen) as i32 {
            0 => {}
            1.. => return Ok(Got::Behind(flow, header.by_kernel)),
            // The peer has forgotten the flow, and counts anew.
            _ => flow
                .seen_by_kernel
                .store(header.by_kernel, Ordering::Relaxed),
        }
        let copied = bytes.min(buffers.total);
        let done = copy(&consumer, buffers, copied)?;
        let peeks = self.flags & libc::MSG_PEEK != 0;
        if !peeks {
            // Nobody waits for room.
            consumer.take(record)?;
            self.socket.since_kernel.fetch_add(1, Ordering::Relaxed);
            self.socket.note_look(looked::NOWHERE);
        } else {
            self.socket.note_look(looked::FLOWS + flow.index());
        }
        flow.answered.store(1, Ordering::Relaxed);
        self.socket.last.store(flow.index() + 1, Ordering::Relaxed);
        flow.turns.fetch_add(1, Ordering::Relaxed);
        let taken = done.map(|()| Taken {
            bytes,
            copied,
            is_cut: copied < bytes,
            flow,
            remote: flow.remote(),
            tos: header.tos,
            moment: flow.moment(header.moment),
        });
        Ok(Got::Datagram(taken))
    }

    fn spin_if(&self, spins: bool) -> Spun {
        let Some(peer) = self.socket.peer().filter(|_| spins) else {
            return Spun::InVain;
        };
        wait::beat();
        let mut got = None;
        let look = |what| match what {
            Look::Rings => self.socket.has_unread(),
            Look::Kernel => {
                got = self.by_kernel();
                got.is_some()
            }
        };
        match (spin::spin_for(Some(peer), look), got) {
            (_, Some(got)) => Spun::Kernel(got),
            (Some(_), None) => Spun::Rings,
            (None, None) => Spun::InVain,
        }
    }

    /// Sleeps until something may be there. `Err(EINTR)`: a handler has run that ends the call.
    fn sleep(&self, deadline: Deadline, call: Call) -> sys::Result<()> {
        let shield = Shield::new();
        let bell = wait::acquire_thread();
        let mut asleep = Asleep {
            socket: self.socket,
            bell,
        };
        self.socket.want_knocks(bell.bit());
        bell.announce();
        let (result, shield) = if self.socket.has_unread() {
            (Ok(None), shield)
        } else {
            let way_out = (abandon as extern "C" fn(_), (&raw mut asleep).cast());
            let body = || self.doze(bell, deadline);
            wait::asleep(
                shield,
                Some(bell),
                (call, deadline != Deadline::Never),
                way_out,
                body,
            )
        };
        asleep.give_back();
        drop(shield);
        result.map(|_| ())
    }

    /// Whether the bell has rung.
    fn doze(&self, bell: Bell, deadline: Deadline) -> sys::Result<((), bool)> {
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [entry(bell.fd), entry(self.fd), entry(broker::fd())];
        let left = deadline.left_ns(wait::slice_ns(Some(bell), false));
        wait::ppoll(fds.as_mut_ptr(), fds.len(), left, core::ptr::null())?;
        if fds[2].revents != 0 || broker::is_orphaned() {
            broker::drain_mail();
            broker::connect();
        }
        Ok(((), fds[0].revents != 0))
    }
}

/// What stands before the next datagram. Under the lock.
fn header_of(consumer: &Consumer) -> Result<Header, Violation> {
    let mut header = Header::default();
    // SAFETY: a header of ours.
    let got = unsafe {
        let to = (&raw mut header).cast();
        consumer.peek(copier(), Kernel::Plain, 0, to, HEADER_BYTES)?
    };
    match got {
        HEADER_BYTES => Ok(header),
        _ => Err(Violation::Descriptor),
    }
}

/// Copies the bytes of a record to the program.
fn copy(
    consumer: &Consumer,
    buffers: &Buffers,
    count: usize,
) -> Result<sys::Result<()>, Violation> {
    let mut at = HEADER_BYTES as u64;
    let mut broken = None;
    let done = buffers.pieces(0, count, |base, length| {
        faults::check(faults::is_writable(base, length))?;
        // SAFETY: the program's buffer, found writable.
        match unsafe { consumer.peek(copier(), Kernel::Plain, at, base, length) } {
            Ok(got) if got == length => {}
            Ok(_) => broken = Some(Violation::Tail),
            Err(found) => broken = Some(found),
        }
        at += length as u64;
        Ok(())
    });
    match broken {
        Some(found) => Err(found),
        None => Ok(done),
    }
}

/// What a sleep has taken.
struct Asleep {
    socket: &'static Socket,
    bell: Bell,
}

impl Asleep {
    fn give_back(&self) {
        self.bell.retract();
        if self.bell.door != DOOR_SHARED {
            self.socket.want_no_knocks(self.bell.bit());
        }
        wait::release_thread(self.bell);
    }
}

/// For a thread that never comes back from its sleep.
extern "C" fn abandon(asleep: *mut c_void) {
    wait::forget_own();
    // SAFETY: of `sleep`, whose frame is still there.
    unsafe { &*asleep.cast::<Asleep>() }.give_back();
}

/// A thread that sleeps in the kernel's call, without a look at rings.
struct Unaware(&'static Socket);

impl Unaware {
    fn during(self, shield: Shield, by_libc: impl FnOnce() -> isize) -> isize {
        let mut unaware = ManuallyDrop::new(self);
        let argument = (&raw mut unaware).cast();
        let ((result, errno), shield) = thread::guarded(shield, come_back, argument, || {
            let result = by_libc();
            (result, sys::errno())
        });
        drop(ManuallyDrop::into_inner(unaware));
        drop(shield);
        sys::set_errno(errno);
        result
    }
}

impl Drop for Unaware {
    fn drop(&mut self) {
        self.0.leave_kernel();
    }
}

/// For a thread that never comes back from libc's call.
extern "C" fn come_back(unaware: *mut c_void) {
    // SAFETY: of `Unaware::during`, whose frame is still there.
    drop(unsafe { unaware.cast::<Unaware>().read() });
}

/// FIONREAD: the bytes of the datagram that a receive would have next. `by_kernel` asks the kernel for its first one's.
pub fn next_bytes(socket: &Socket, by_kernel: impl Fn() -> sys::Result<u64>) -> sys::Result<u64> {
    let of_kernel = || {
        let bytes = by_kernel()?;
        if bytes != 0 {
            socket.note_look(looked::AT_KERNELS);
        }
        sys::Result::Ok(bytes)
    };
    if socket.is_kernels_turn() {
        let bytes = of_kernel()?;
        if bytes != 0 {
            return Ok(bytes);
        }
    }
    if let Some(_guard) = socket.receiving.lock()
        && let Some(flow) = socket.next_flow()
        && let Ok(header) = header_of(&flow.consumer())
    {
        let behind = header
            .by_kernel
            .wrapping_sub(flow.seen_by_kernel.load(Ordering::Relaxed)) as i32;
        let bytes = if behind > 0 { of_kernel()? } else { 0 };
        if bytes != 0 {
            return Ok(bytes);
        }
        socket.note_look(looked::FLOWS + flow.index());
        return Ok(u64::from(header.bytes));
    }
    of_kernel()
}

impl Socket {
    /// Whether rings have had enough, and none of them has what comes before the kernel's; or a look has shown the
    /// kernel's.
    fn is_kernels_turn(&self) -> bool {
        match self.looked.load(Ordering::Relaxed) {
            looked::NOWHERE => {
                self.since_kernel.load(Ordering::Relaxed) >= TURNS
                    && !self.flows().any(Flow::drains)
            }
            looked::AT_KERNELS => true,
            _ => false,
        }
    }

    /// A look has shown somebody's datagram, or the next one has been taken.
    fn note_look(&self, at: u32) {
        if self.looked.load(Ordering::Relaxed) != at {
            self.looked.store(at, Ordering::Relaxed);
        }
    }

    /// What was looked at there is gone.
    fn forget_look(&self, at: u32) {
        if self.looked.load(Ordering::Relaxed) == at {
            self.looked.store(looked::NOWHERE, Ordering::Relaxed);
        }
    }

    /// The flow that was looked at; else the one whose datagram was sent first. One that always says so has no more
    /// than its turns in a row.
    fn next_flow(&self) -> Option<&'static Flow> {
        let mut unread = self.flows().filter(|flow| flow.has_unread());
        let first = unread.next()?;
        let Some(second) = unread.next() else {
            first.turns.store(0, Ordering::Relaxed);
            return Some(first);
        };
        let looked = self.looked.load(Ordering::Relaxed);
        let was_looked_at = |flow: &&Flow| flow.index() + looked::FLOWS == looked;
        let has_enough =
            |flow: &&Flow| flow.turns.load(Ordering::Relaxed) >= TURNS && !was_looked_at(flow);
        let others = core::iter::once(first)
            .chain(core::iter::once(second))
            .chain(unread);
        let sent = |flow: &&Flow| match was_looked_at(flow) {
            true => 0,
            false => header_of(&flow.consumer()).map_or(0, |header| header.moment),
        };
        let next = others.filter(|flow| !has_enough(flow)).min_by_key(sent);
        // All have had theirs.
        next.or_else(|| {
            let unread = self.flows().filter(|flow| flow.has_unread());
            unread
                .inspect(|flow| flow.turns.store(0, Ordering::Relaxed))
                .min_by_key(sent)
        })
        .or(Some(first))
    }
}
