//! The receiving half: what has come of the next message, and what was shown and is owed.

use super::loan::Memory;
use super::{Kind, MESSAGE_BYTES_MAX, Socket, address_of, spare};
use crate::address::{Address, error};
use fordway_abi::record::{self, HEAD_BYTES};
use std::io;
use std::os::fd::AsRawFd;

#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Of the next message, as far as it has come.
    pub(super) head: [u8; HEAD_BYTES],
    head_bytes: usize,
    pub(super) body: Vec<u8>,
    /// Bytes that were released and not received yet.
    pub(super) owed: usize,
    pub(super) loan: Option<Memory>,
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
    pub(super) fn begin_receive(&self, receiving: &mut Receiving, flags: i32) -> io::Result<()> {
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

    pub(super) fn recv_datagram(&self, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
        let room = buffer.len();
        let flags = flags | libc::MSG_TRUNC;
        let (whole, name) = self.kernels.recv_from_with_flags(spare(buffer), flags)?;
        Ok(Received::of(whole, room, Some(address_of(&name)?)))
    }

    /// The length of the next message; `None`: there is none, the connection has ended.
    pub(super) fn recv_head(
        &self,
        receiving: &mut Receiving,
        flags: i32,
    ) -> io::Result<Option<usize>> {
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
        match record::read(receiving.head) {
            (length, false) if length <= MESSAGE_BYTES_MAX => Ok(Some(length)),
            // It has not come from a socket of this kind.
            _ => Err(error(libc::EPROTO)),
        }
    }

    /// The rest of the next message, behind what there is.
    pub(super) fn recv_body(
        &self,
        receiving: &mut Receiving,
        length: usize,
        flags: i32,
    ) -> io::Result<()> {
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
}

impl Receiving {
    pub(super) fn next_message(&mut self) {
        self.head_bytes = 0;
        self.body.clear();
    }
}
