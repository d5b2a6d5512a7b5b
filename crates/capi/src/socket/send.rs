//! The sending half: what was accepted, and what the kernel has not taken of it yet.

use super::loan::Memory;
use super::{Kind, MESSAGE_BYTES_MAX, Socket, is_none_now, is_signal, name_of};
use crate::address::{ToAddress, error};
use fordway_abi::record::{self, HEAD_BYTES};
use socket2::SockAddr;
use std::io::{self, IoSlice};

#[derive(Debug, Default)]
pub(super) struct Sending {
    /// What the kernel has not taken yet of what was accepted, from `gone` on.
    pub(super) rest: Vec<u8>,
    pub(super) gone: usize,
    pub(super) loan: Option<Memory>,
    pub(super) buffer: Vec<u8>,
}

impl Socket {
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
                let head = record::head(bytes.len(), false);
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

    pub(super) fn send_rest(&self, sending: &mut Sending, flags: i32) -> io::Result<()> {
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
    pub(super) fn accepted(&self, sending: &mut Sending, flags: i32) -> io::Result<()> {
        loop {
            return match self.send_rest(sending, flags) {
                Err(reason) if is_signal(&reason) && !self.may_not_sleep(flags) => continue,
                Err(reason) if is_none_now(&reason) => Ok(()),
                done => done,
            };
        }
    }
}
