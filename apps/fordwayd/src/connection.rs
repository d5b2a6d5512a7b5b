//! One connection of a shim: what the kernel says of the process, what it handed in,
//! and the queue of what it is still to be sent.

use crate::purses::Purse;
use crate::shares::Kept;
use fordway_abi::control::{Header, Message, PACKET_BYTES_MAX, kind};
use fordway_platform::ipc;
use fordway_platform::memfd::OwnPage;
use fordway_platform::process::Peer;
use fordway_registry::{OFFERS_MAX, ProcessId};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Packets that may wait for a process to read. Enough for a stopped process with
/// hundreds of peers; beyond it the process is given up.
const QUEUE_MAX: usize = 4096;
/// Descriptors that may wait with them.
const QUEUED_DESCRIPTORS_MAX: usize = 1024;

/// A packet to be sent.
#[derive(Debug)]
struct Packet {
    bytes: [u8; PACKET_BYTES_MAX],
    len: usize,
    fds: Vec<Arc<OwnedFd>>,
    is_downgrade: bool,
}

/// What a process handed in with `Hello`, for its peers.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) process: ProcessId,
    pub(crate) wait_page: Arc<OwnedFd>,
    pub(crate) purse: Arc<Purse>,
    mailbox: OwnPage,
}

impl Member {
    pub(crate) fn new(
        process: ProcessId,
        wait_page: OwnedFd,
        purse: Arc<Purse>,
        mailbox: OwnPage,
    ) -> Self {
        Self {
            process,
            wait_page: Arc::new(wait_page),
            purse,
            mailbox,
        }
    }
}

/// A shim's connection could not be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// Too much waits for it.
    #[error("it does not read what it is sent")]
    Overflow,
    /// The other side is gone.
    #[error("{0}")]
    Gone(io::Error),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Peer,
    /// After `Hello`.
    pub(crate) member: Option<Member>,
    /// Whether epoll was asked for room.
    pub(crate) watching_writable: bool,
    queue: VecDeque<Packet>,
    /// Descriptors in `queue`.
    queued: usize,
    /// Those of `queue` that move a channel.
    queued_downgrades: usize,
    /// What the broker has counted of it.
    pub(crate) counted: Kept,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, peer: Peer) -> Self {
        Self {
            socket,
            peer,
            member: None,
            watching_writable: false,
            queue: VecDeque::new(),
            queued: 0,
            queued_downgrades: 0,
            counted: Kept::default(),
        }
    }

    /// Descriptors that are kept for it.
    pub(crate) fn descriptors(&self) -> usize {
        let pidfd = usize::from(self.peer.pidfd.is_some());
        // A member's are its wait page and, at most, a purse.
        1 + pidfd + 2 * usize::from(self.member.is_some()) + self.queued
    }

    /// Whether something waits until the socket can be written.
    pub(crate) fn is_behind(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Sends a message now, or as soon as there is room.
    pub(crate) fn send<M: Message>(
        &mut self,
        message: &M,
        fds: Vec<Arc<OwnedFd>>,
    ) -> Result<(), SendError> {
        // New rules may take every connection at once from a process that did nothing wrong.
        let is_downgrade = M::KIND == kind::Downgrade;
        let full = match is_downgrade {
            true => self.queued_downgrades >= OFFERS_MAX,
            false => self.queue.len() - self.queued_downgrades >= QUEUE_MAX,
        };
        if full || self.queued + fds.len() > QUEUED_DESCRIPTORS_MAX {
            return Err(SendError::Overflow);
        }
        debug_assert!(M::FDS.contains(&fds.len()));
        let body = message.as_bytes();
        let len = size_of::<Header>() + body.len();
        let header = Header {
            kind: M::KIND,
            length_bytes: len as u32,
        };
        let mut bytes = [0; PACKET_BYTES_MAX];
        bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        bytes[size_of::<Header>()..len].copy_from_slice(body);
        self.queued += fds.len();
        self.queued_downgrades += usize::from(is_downgrade);
        let was_behind = self.is_behind();
        self.queue.push_back(Packet {
            bytes,
            len,
            fds,
            is_downgrade,
        });
        // Else epoll says when there is room; of a thousand packets in one turn most would only
        // hear that there is none.
        match was_behind && self.watching_writable {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Sends what there is room for.
    pub(crate) fn flush(&mut self) -> Result<(), SendError> {
        while let Some(packet) = self.queue.front() {
            let fds: Vec<BorrowedFd<'_>> = packet.fds.iter().map(|fd| fd.as_fd()).collect();
            match ipc::send(&self.socket, &packet.bytes[..packet.len], &fds) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(SendError::Gone(error)),
            }
            self.queued -= packet.fds.len();
            self.queued_downgrades -= usize::from(packet.is_downgrade);
            self.queue.pop_front();
            if let Some(member) = &self.member {
                member.mailbox.bump();
            }
        }
        Ok(())
    }
}
