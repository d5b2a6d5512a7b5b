//! One socket: what its kind makes of the kernel's, and its loans.
//!
//! # Messages on a stream
//! A message of a SEQPACKET socket is its length (four bytes, the lowest first) and its bytes, on a TCP connection.
//! What the kernel takes of a message in part is kept ([`Sending::rest`]) and goes before anything else; what came in
//! part is kept, too ([`Receiving`]). So a call that may not sleep never tears one.
//!
//! # Loans
//! One may be out for each direction. Its memory is the shim's ring, or else a buffer of the socket's; nothing else
//! may be sent, or received, meanwhile (EBUSY). Bytes that were shown and released are still to be received: they are
//! owed ([`Receiving::owed`]), and go before anything else, by calls that copy none.
//!
//! # Locks
//! Each direction has one, held over the kernel's call, also while it sleeps. A call that may not sleep gives EAGAIN
//! where another thread has it.

use crate::address::{Address, ToAddress, error};
use crate::lent::Lent;
use socket2::{Domain, SockAddr, Type};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Longest message of a SEQPACKET socket.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// A message's length.
const HEAD_BYTES: usize = 4;
/// Longest datagram, and more than is shown at once of a stream by the kernel.
const SHOWN_BYTES_MAX: usize = 1 << 16;
/// How long a close waits for the rest of a message.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// What goes over a socket.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, in order.
    Stream = libc::SOCK_STREAM,
    /// Messages of up to 65,507 bytes, each for itself; also to all domains.
    Datagram = libc::SOCK_DGRAM,
    /// Messages of up to [`MESSAGE_BYTES_MAX`], in order.
    SeqPacket = libc::SOCK_SEQPACKET,
}

/// A socket between domains.
#[derive(Debug)]
pub struct Socket {
    kernels: socket2::Socket,
    kind: Kind,
    is_nonblocking: AtomicBool,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
}

/// A loan's memory.
#[derive(Debug)]
enum Memory {
    Ring(Lent),
    /// The direction's own buffer.
    Own,
}

#[derive(Debug, Default)]
struct Sending {
    /// What the kernel has not taken yet of what was accepted, from `gone` on.
    rest: Vec<u8>,
    gone: usize,
    loan: Option<Memory>,
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct Receiving {
    /// Of the next message, as far as it has come.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    body: Vec<u8>,
    /// Bytes that were released and not received yet.
    owed: usize,
    loan: Option<Memory>,
}

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were put into the buffer.
    pub bytes: usize,
    /// Bytes that there were of the message; of a stream the same as `bytes`.
    pub whole: usize,
    /// Who has sent a datagram.
    pub from: Option<Address>,
}

impl Received {
    fn of(whole: usize, room: usize, from: Option<Address>) -> Self {
        Self {
            bytes: whole.min(room),
            whole,
            from,
        }
    }
}

impl Socket {
    /// A new socket.
    pub fn new(kind: Kind) -> io::Result<Self> {
        let of_kernel = match kind {
            Kind::Datagram => Type::DGRAM,
            Kind::Stream | Kind::SeqPacket => Type::STREAM,
        };
        Self::of(socket2::Socket::new(Domain::IPV4, of_kernel, None)?, kind)
    }

    fn of(kernels: socket2::Socket, kind: Kind) -> io::Result<Self> {
        match kind {
            Kind::Datagram => kernels.set_broadcast(true)?,
            // Each send is a matter of its own, also by the kernel.
            Kind::Stream | Kind::SeqPacket => kernels.set_tcp_nodelay(true)?,
        }
        Ok(Self {
            kernels,
            kind,
            is_nonblocking: AtomicBool::new(false),
            sending: Mutex::default(),
            receiving: Mutex::default(),
        })
    }

    /// Gives it an address of the own domain, [`crate::ANY`] or a port.
    pub fn bind(&self, address: impl ToAddress) -> io::Result<()> {
        let name = name_of(address)?;
        if self.kind != Kind::Datagram {
            self.kernels.set_reuse_address(true)?;
        }
        let bound = self.kernels.bind(&name);
        bound.map_err(|reason| match reason.raw_os_error() {
            Some(libc::EACCES) => error(libc::EPERM),
            _ => reason,
        })
    }

    /// Lets others connect; so many may wait for `accept`.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        self.kernels.listen(backlog)
    }

    /// The next connection, and whose it is.
    pub fn accept(&self) -> io::Result<(Socket, Address)> {
        let (kernels, name) = self.kernels.accept()?;
        Ok((Self::of(kernels, self.kind)?, address_of(&name)?))
    }

    /// Connects to a domain's port; of datagrams: names whom `send` and `recv` are about.
    pub fn connect(&self, address: impl ToAddress) -> io::Result<()> {
        self.kernels.connect(&name_of(address)?)
    }

    /// The own address.
    pub fn local_address(&self) -> io::Result<Address> {
        address_of(&self.kernels.local_addr()?)
    }

    /// That of the far end.
    pub fn peer_address(&self) -> io::Result<Address> {
        address_of(&self.kernels.peer_addr()?)
    }

    /// The error that a `connect` which did not sleep has met (SO_ERROR).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.kernels.take_error()
    }

    /// What goes over it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether calls give EAGAIN instead of sleeping.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.store(nonblocking, Ordering::Relaxed);
        self.kernels.set_nonblocking(nonblocking)
    }

    /// Ends the receiving half, the sending half, or both.
    pub fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        self.kernels.shutdown(how)
    }

    /// Sends to the far end. Of a message all or nothing is taken, of a stream what there is room for.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(bytes, 0, None)
    }

    /// Sends a datagram.
    pub fn send_to(&self, bytes: &[u8], address: impl ToAddress) -> io::Result<usize> {
        self.send_with(bytes, 0, Some(name_of(address)?))
    }

    pub(crate) fn send_with(
        &self,
        bytes: &[u8],
        flags: i32,
        to: Option<SockAddr>,
    ) -> io::Result<usize> {
        let sending = &mut *self.lock(&self.sending, flags)?;
        if sending.loan.is_some() {
            return Err(error(libc::EBUSY));
        }
        self.send_rest(sending, flags)?;
        let flags = flags | libc::MSG_NOSIGNAL;
        match (self.kind, to) {
            (Kind::SeqPacket, _) if bytes.len() > MESSAGE_BYTES_MAX => Err(error(libc::EMSGSIZE)),
            (Kind::SeqPacket, _) => {
                let head = (bytes.len() as u32).to_le_bytes();
                let parts = [IoSlice::new(&head), IoSlice::new(bytes)];
                let sent = self.kernels.send_vectored_with_flags(&parts, flags)?;
                if sent < HEAD_BYTES + bytes.len() {
                    sending.rest.extend_from_slice(&head);
                    sending.rest.extend_from_slice(bytes);
                    sending.gone = sent;
                    self.accepted(sending, flags)?;
                }
                Ok(bytes.len())
            }
            (Kind::Datagram, Some(to)) => self.kernels.send_to_with_flags(bytes, &to, flags),
            _ => self.kernels.send_with_flags(bytes, flags),
        }
    }

    /// Sends what is left of what was accepted; EAGAIN: there is no room for all of it. Behind a call that
    /// did not sleep it may be needed, once there is room: the far end has the message only then.
    pub fn flush(&self) -> io::Result<()> {
        self.send_rest(&mut *self.lock(&self.sending, 0)?, 0)
    }

    fn send_rest(&self, sending: &mut Sending, flags: i32) -> io::Result<()> {
        while sending.gone < sending.rest.len() {
            let rest = &sending.rest[sending.gone..];
            let flags = flags | libc::MSG_NOSIGNAL;
            sending.gone += self.kernels.send_with_flags(rest, flags)?;
        }
        sending.rest.clear();
        sending.gone = 0;
        Ok(())
    }

    /// As [`Socket::send_rest`] in a call whose bytes are taken, however many of them go now.
    fn accepted(&self, sending: &mut Sending, flags: i32) -> io::Result<()> {
        loop {
            return match self.send_rest(sending, flags) {
                Err(reason) if is_signal(&reason) && !self.may_not_sleep(flags) => continue,
                Err(reason) if is_none_now(&reason) => Ok(()),
                done => done,
            };
        }
    }

    /// Receives: a message, or of a stream what there is. Nothing is the end of the connection.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_with(buffer, 0).map(|received| received.bytes)
    }

    /// The same, with the length of a message that was cut, and who has sent it.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<Received> {
        self.recv_with(buffer, 0)
    }

    pub(crate) fn recv_with(&self, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
        let receiving = &mut *self.lock(&self.receiving, flags)?;
        self.begin_receive(receiving, flags)?;
        let room = buffer.len();
        match self.kind {
            Kind::Stream => {
                let count = self.kernels.recv_with_flags(spare(buffer), flags)?;
                Ok(Received::of(count, room, None))
            }
            Kind::Datagram => self.recv_datagram(buffer, flags),
            Kind::SeqPacket => {
                let Some(length) = self.recv_head(receiving, flags)? else {
                    return Ok(Received::of(0, room, None));
                };
                if receiving.body.is_empty() && length <= room {
                    let got = self.recv_all(&mut buffer[..length], flags);
                    got.map_err(|(so_far, reason)| {
                        receiving.body.extend_from_slice(&buffer[..so_far]);
                        reason
                    })?;
                } else {
                    self.recv_body(receiving, length, flags)?;
                    let count = length.min(room);
                    buffer[..count].copy_from_slice(&receiving.body[..count]);
                }
                receiving.next_message();
                Ok(Received::of(length, room, None))
            }
        }
    }

    /// Before any receive: nobody has a loan, and what was released is received.
    fn begin_receive(&self, receiving: &mut Receiving, flags: i32) -> io::Result<()> {
        if receiving.loan.is_some() {
            return Err(error(libc::EBUSY));
        }
        while receiving.owed != 0 {
            // SAFETY: with MSG_TRUNC nothing is written (tcp(7)).
            let skipped = unsafe {
                let flags = flags | libc::MSG_TRUNC;
                let nowhere = std::ptr::null_mut();
                libc::recv(self.as_raw_fd(), nowhere, receiving.owed, flags)
            };
            match usize::try_from(skipped) {
                // The stream has ended before them.
                Ok(0) => receiving.owed = 0,
                Ok(count) => receiving.owed -= count.min(receiving.owed),
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    fn recv_datagram(&self, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
        let room = buffer.len();
        let flags = flags | libc::MSG_TRUNC;
        let (whole, name) = self.kernels.recv_from_with_flags(spare(buffer), flags)?;
        Ok(Received::of(whole, room, Some(address_of(&name)?)))
    }

    /// The length of the next message; `None`: there is none, the connection has ended.
    fn recv_head(&self, receiving: &mut Receiving, flags: i32) -> io::Result<Option<usize>> {
        let before = receiving.head_bytes;
        if before < HEAD_BYTES {
            match self.recv_all(&mut receiving.head[before..], flags) {
                Ok(()) => receiving.head_bytes = HEAD_BYTES,
                Err((so_far, reason)) => {
                    receiving.head_bytes += so_far;
                    let is_end = reason.raw_os_error() == Some(libc::EPROTO);
                    return match is_end && receiving.head_bytes == 0 {
                        true => Ok(None),
                        false => Err(reason),
                    };
                }
            }
        }
        let length = u32::from_le_bytes(receiving.head) as usize;
        match length <= MESSAGE_BYTES_MAX {
            true => Ok(Some(length)),
            // It has not come from a socket of this kind.
            false => Err(error(libc::EPROTO)),
        }
    }

    /// The rest of the next message, behind what there is.
    fn recv_body(&self, receiving: &mut Receiving, length: usize, flags: i32) -> io::Result<()> {
        let before = receiving.body.len();
        receiving.body.resize(length, 0);
        let got = self.recv_all(&mut receiving.body[before..], flags);
        got.map_err(|(so_far, reason)| {
            receiving.body.truncate(before + so_far);
            reason
        })
    }

    /// Fills the buffer. Else: how far it has come, and why no further.
    fn recv_all(&self, buffer: &mut [u8], flags: i32) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = spare(&mut buffer[done..]);
            match self.kernels.recv_with_flags(rest, flags) {
                // In the middle of a message.
                Ok(0) => return Err((done, error(libc::EPROTO))),
                Ok(count) => done += count,
                Err(reason) => return Err((done, reason)),
            }
        }
        Ok(())
    }

    /// Lends room for `bytes` that are to be sent: of the ring if there is one, in which case they need not
    /// be copied. The content is arbitrary.
    pub fn reserve(&self, bytes: usize) -> io::Result<Reserved<'_>> {
        let place = self.lend(bytes)?;
        Ok(Reserved {
            socket: self,
            place,
            bytes,
        })
    }

    pub(crate) fn lend(&self, bytes: usize) -> io::Result<*mut u8> {
        let sending = &mut *self.lock(&self.sending, 0)?;
        if sending.loan.is_some() {
            return Err(error(libc::EBUSY));
        }
        if bytes > MESSAGE_BYTES_MAX {
            return Err(error(libc::EMSGSIZE));
        }
        self.send_rest(sending, 0)?;
        let all = self.head_bytes() + bytes;
        let lent = match self.kind {
            Kind::Datagram => None,
            Kind::Stream | Kind::SeqPacket => Lent::room(self.as_raw_fd(), all),
        };
        let loan = lent.map_or(Memory::Own, Memory::Ring);
        let place = match &loan {
            Memory::Ring(lent) => lent.place,
            Memory::Own => {
                let length = sending.buffer.len().max(all);
                sending.buffer.resize(length, 0);
                sending.buffer.as_mut_ptr()
            }
        };
        sending.loan = Some(loan);
        Ok(place.wrapping_add(self.head_bytes()))
    }

    /// Sends the first `bytes` of what was lent, which must be no more than that; all of them are taken. On EAGAIN and
    /// other errors before that the loan stays.
    pub(crate) fn commit(&self, bytes: usize) -> io::Result<()> {
        let sending = &mut *own(&self.sending);
        let head = (bytes as u32).to_le_bytes();
        let length = self.head_bytes() + bytes;
        let (place, room) = match &sending.loan {
            Some(Memory::Ring(lent)) => (lent.place, lent.bytes),
            Some(Memory::Own) => (sending.buffer.as_mut_ptr(), sending.buffer.len()),
            None => return Err(error(libc::EINVAL)),
        };
        if length > room {
            return Err(error(libc::EINVAL));
        }
        // SAFETY: the loan's memory, which is ours alone until it is sent: the caller has ended its use.
        let all = unsafe { std::slice::from_raw_parts_mut(place, length) };
        let head_bytes = self.head_bytes();
        all[..head_bytes].copy_from_slice(&head[..head_bytes]);
        let sent = match self.kernels.send_with_flags(all, libc::MSG_NOSIGNAL) {
            Err(reason) if self.kind == Kind::Datagram || !is_none_now(&reason) => {
                return Err(reason);
            }
            sent => sent.unwrap_or(0),
        };
        if self.kind != Kind::Datagram && sent < length {
            sending.rest.extend_from_slice(&all[sent..]);
        }
        sending.loan = None;
        self.accepted(sending, 0)
    }

    pub(crate) fn cancel(&self) {
        own(&self.sending).loan = None;
    }

    /// Lends what is to be received next: a message, or what there is of a stream; `None` is the end of
    /// the connection.
    pub fn peek(&self) -> io::Result<Option<Peeked<'_>>> {
        let shown = self.show()?;
        Ok(shown.map(|(place, bytes)| Peeked {
            socket: self,
            place,
            bytes,
            taken: 0,
        }))
    }

    pub(crate) fn show(&self) -> io::Result<Option<(*const u8, usize)>> {
        let receiving = &mut *self.lock(&self.receiving, 0)?;
        self.begin_receive(receiving, 0)?;
        let length = match self.kind {
            Kind::SeqPacket => match self.recv_head(receiving, 0)? {
                Some(length) => length,
                None => return Ok(None),
            },
            Kind::Stream | Kind::Datagram => SHOWN_BYTES_MAX,
        };
        if self.kind != Kind::Datagram && receiving.body.is_empty() && length != 0 {
            let mut lent = Lent::next(self.as_raw_fd());
            if lent.is_none() && !self.may_not_sleep(0) {
                poll(&[(self, libc::POLLIN)], None)?;
                lent = Lent::next(self.as_raw_fd());
            }
            let is_whole = |lent: &Lent| self.kind == Kind::Stream || lent.bytes >= length;
            if let Some(lent) = lent.filter(is_whole) {
                let bytes = match self.kind {
                    Kind::Stream => lent.bytes,
                    _ => length,
                };
                let place = lent.place.cast_const();
                receiving.loan = Some(Memory::Ring(lent));
                return Ok(Some((place, bytes)));
            }
        }
        let bytes = match self.kind {
            Kind::SeqPacket => {
                self.recv_body(receiving, length, 0)?;
                length
            }
            Kind::Stream => {
                receiving.body.resize(SHOWN_BYTES_MAX, 0);
                let peeked = self.kernels.peek(spare(&mut receiving.body));
                match peeked {
                    Ok(count) if count != 0 => count,
                    end => {
                        receiving.body.clear();
                        return end.map(|_| None);
                    }
                }
            }
            Kind::Datagram => {
                receiving.body.resize(SHOWN_BYTES_MAX, 0);
                match self.recv_datagram(&mut receiving.body, 0) {
                    Ok(received) => received.bytes,
                    Err(reason) => {
                        receiving.body.clear();
                        return Err(reason);
                    }
                }
            }
        };
        receiving.loan = Some(Memory::Own);
        Ok(Some((receiving.body.as_ptr(), bytes)))
    }

    /// The loan of [`Socket::show`] is over; `bytes` of a stream are received with it, and a message.
    pub(crate) fn take(&self, bytes: usize) -> io::Result<()> {
        let receiving = &mut *own(&self.receiving);
        let loan = receiving.loan.take().ok_or(error(libc::EINVAL))?;
        receiving.owed = match (self.kind, &loan) {
            (Kind::Stream, Memory::Ring(lent)) => bytes.min(lent.bytes),
            (Kind::Stream, Memory::Own) => bytes.min(SHOWN_BYTES_MAX),
            (Kind::SeqPacket, Memory::Ring(_)) => u32::from_le_bytes(receiving.head) as usize,
            _ => 0,
        };
        receiving.next_message();
        // What cannot be received now is received before all else later: the far end sends it again.
        let _ = self.begin_receive(receiving, 0);
        drop(loan);
        Ok(())
    }

    fn head_bytes(&self) -> usize {
        match self.kind {
            Kind::SeqPacket => HEAD_BYTES,
            Kind::Stream | Kind::Datagram => 0,
        }
    }

    fn may_not_sleep(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.is_nonblocking.load(Ordering::Relaxed)
    }

    fn lock<'a, T>(&self, half: &'a Mutex<T>, flags: i32) -> io::Result<MutexGuard<'a, T>> {
        if !self.may_not_sleep(flags) {
            return Ok(own(half));
        }
        match half.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(error(libc::EAGAIN)),
        }
    }
}

impl Receiving {
    fn next_message(&mut self) {
        self.head_bytes = 0;
        self.body.clear();
    }
}

impl Drop for Socket {
    /// What was accepted of a message goes first, within a bound.
    fn drop(&mut self) {
        let sending = self.sending.get_mut();
        let sending = std::mem::take(sending.unwrap_or_else(PoisonError::into_inner));
        if sending.gone < sending.rest.len() {
            let _ = self.kernels.set_nonblocking(false);
            let _ = self.kernels.set_write_timeout(Some(CLOSE_WAIT));
            let _ = self.send_rest(&mut { sending }, 0);
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.kernels.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernels.as_fd()
    }
}

/// Room that was lent to write what is to be sent. Dropped, nothing is sent.
#[derive(Debug)]
pub struct Reserved<'s> {
    socket: &'s Socket,
    place: *mut u8,
    bytes: usize,
}

impl Reserved<'_> {
    /// Sends the first `bytes` of it. All of them are taken: what the kernel has no room for goes with the next call.
    pub fn commit(self, bytes: usize) -> io::Result<()> {
        self.socket.commit(bytes.min(self.bytes))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.socket.cancel();
    }
}

impl std::ops::Deref for Reserved<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the loan's memory until it is committed or cancelled. The far end may read it, and not write it.
        unsafe { std::slice::from_raw_parts(self.place, self.bytes) }
    }
}

impl std::ops::DerefMut for Reserved<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.place, self.bytes) }
    }
}

/// What was lent to be read before it is received. A hostile far end may change it at any time, so there is no
/// slice of it: who has to trust a byte copies it first. Dropped, a message is received; of a stream, what
/// [`Peeked::release`] says.
#[derive(Debug)]
pub struct Peeked<'s> {
    socket: &'s Socket,
    place: *const u8,
    bytes: usize,
    taken: usize,
}

impl Peeked<'_> {
    /// Bytes that there are.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is a message of no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where they are, for who can cope with memory that changes.
    pub fn as_ptr(&self) -> *const u8 {
        self.place
    }

    /// Copies from the byte at `from` on; how many there were.
    pub fn copy_to(&self, from: usize, target: &mut [u8]) -> usize {
        let count = self.bytes.saturating_sub(from).min(target.len());
        // SAFETY: within the loan; the target is nobody else's.
        unsafe {
            let source = self.place.wrapping_add(from);
            std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), count);
        }
        count
    }

    /// Receives the first `bytes` of a stream, a message as a whole.
    pub fn release(mut self, bytes: usize) {
        self.taken = bytes;
    }
}

impl Drop for Peeked<'_> {
    fn drop(&mut self) {
        let _ = self.socket.take(self.taken);
    }
}

/// Waits until something can be done with one of the sockets (poll(2)); what, for each of them.
pub fn poll(sockets: &[(&Socket, i16)], timeout: Option<Duration>) -> io::Result<Vec<i16>> {
    let entry = |(socket, events): &(&Socket, i16)| libc::pollfd {
        fd: socket.as_raw_fd(),
        events: *events,
        revents: 0,
    };
    let mut entries: Vec<_> = sockets.iter().map(entry).collect();
    let milliseconds = |time: Duration| i32::try_from(time.as_micros().div_ceil(1000));
    let timeout_ms = timeout.map_or(-1, |time| milliseconds(time).unwrap_or(i32::MAX));
    // SAFETY: an array of so many entries.
    match unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as _, timeout_ms) } {
        0.. => Ok(entries.iter().map(|entry| entry.revents).collect()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn name_of(address: impl ToAddress) -> io::Result<SockAddr> {
    Ok(address.to_address()?.kernels()?.into())
}

fn address_of(name: &SockAddr) -> io::Result<Address> {
    let four = name.as_socket_ipv4();
    four.map(Address::of).ok_or(error(libc::EAFNOSUPPORT))
}

/// A buffer that is only written to.
fn spare(buffer: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the same bytes; socket2 has the kernel write to them, and writes nothing uninitialised.
    unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) }
}

/// The lock, however long that takes. Who has a loan waits for nobody who sleeps: he gets EBUSY.
fn own<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_none_now(reason: &io::Error) -> bool {
    reason.kind() == io::ErrorKind::WouldBlock || is_signal(reason)
}

fn is_signal(reason: &io::Error) -> bool {
    reason.kind() == io::ErrorKind::Interrupted
}
