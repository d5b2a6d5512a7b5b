//! Loans, in place of copies: room for what is to be sent, and what is to be received next.
//!
//! One may be out for each direction. Its memory is the shim's ring, or else a buffer of the socket's; nothing else
//! may be sent, or received, meanwhile (EBUSY). Bytes that were shown and released are still to be received: they are
//! owed (`Receiving::owed`), and go before anything else, by calls that copy none.

use super::{Kind, MESSAGE_BYTES_MAX, Socket, is_none_now, own, poll, spare};
use crate::address::error;
use crate::lent::Lent;
use fordway_abi::record;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Longest datagram, and more than is shown at once of a stream by the kernel.
const SHOWN_BYTES_MAX: usize = 1 << 16;

/// A loan's memory.
#[derive(Debug)]
pub(super) enum Memory {
    Ring(Lent),
    /// The direction's own buffer.
    Own,
}

impl Socket {
    /// Lends room for `bytes` that are to be sent: of the ring if there is one, in which case they need not
    /// be copied. The content is arbitrary.
    pub fn reserve(&self, bytes: usize) -> io::Result<Reserved<'_>> {
        Reserved::of(Kept::Borrowed(self), bytes)
    }

    /// The same; the loan keeps its socket open.
    pub fn reserve_shared(self: &Arc<Self>, bytes: usize) -> io::Result<Reserved<'static>> {
        Reserved::of(Kept::Shared(self.clone()), bytes)
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
    /// other errors before that the loan stays; `is_over` says whether it has ended.
    pub(crate) fn commit(&self, bytes: usize, is_over: &mut bool) -> io::Result<()> {
        let sending = &mut *own(&self.sending);
        let head = record::head(bytes, false);
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
        *is_over = true;
        self.accepted(sending, 0)
    }

    pub(crate) fn cancel(&self) {
        own(&self.sending).loan = None;
    }

    /// Lends what is to be received next: a message, or what there is of a stream; `None` is the end of
    /// the connection.
    pub fn peek(&self) -> io::Result<Option<Peeked<'_>>> {
        Peeked::of(Kept::Borrowed(self))
    }

    /// The same; the loan keeps its socket open.
    pub fn peek_shared(self: &Arc<Self>) -> io::Result<Option<Peeked<'static>>> {
        Peeked::of(Kept::Shared(self.clone()))
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
            (Kind::SeqPacket, Memory::Ring(_)) => record::read(receiving.head).0,
            _ => 0,
        };
        receiving.next_message();
        // What cannot be received now is received before all else later: the far end sends it again.
        let _ = self.begin_receive(receiving, 0);
        drop(loan);
        Ok(())
    }
}

/// The socket of a loan.
#[derive(Debug)]
enum Kept<'s> {
    Borrowed(&'s Socket),
    Shared(Arc<Socket>),
}

impl std::ops::Deref for Kept<'_> {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        match self {
            Kept::Borrowed(socket) => socket,
            Kept::Shared(socket) => socket,
        }
    }
}

/// Room that was lent to write what is to be sent. Dropped, nothing is sent.
#[derive(Debug)]
pub struct Reserved<'s> {
    socket: Kept<'s>,
    place: *mut u8,
    bytes: usize,
    is_over: bool,
}

// SAFETY: memory of the process that is the loan's alone, whichever thread has it.
unsafe impl Send for Reserved<'_> {}

impl<'s> Reserved<'s> {
    fn of(socket: Kept<'s>, bytes: usize) -> io::Result<Self> {
        let place = socket.lend(bytes)?;
        Ok(Self {
            socket,
            place,
            bytes,
            is_over: false,
        })
    }

    /// Sends the first `bytes` of it. All of them are taken: what the kernel has no room for goes with the next call.
    pub fn commit(mut self, bytes: usize) -> io::Result<()> {
        self.socket.commit(bytes.min(self.bytes), &mut self.is_over)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.socket.cancel();
        }
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
    socket: Kept<'s>,
    place: *const u8,
    bytes: usize,
    taken: usize,
}

// SAFETY: as of `Reserved`.
unsafe impl Send for Peeked<'_> {}

impl<'s> Peeked<'s> {
    fn of(socket: Kept<'s>) -> io::Result<Option<Self>> {
        let shown = socket.show()?;
        Ok(shown.map(|(place, bytes)| Self {
            socket,
            place,
            bytes,
            taken: 0,
        }))
    }

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
