//! The kernel's TCP, as far as a connection can see it: two queues of bytes each way with
//! a window between them, delay, FIN, RST, and the errors of tcp(7) and recv(2). Or a pair of AF_UNIX sockets: what
//! is sent is there at once, and takes room until it is read; a close is seen at once, and with bytes unread it is an error to the
//! other end (linux: net/unix/af_unix.c).

use libc::{EAGAIN, ECONNRESET, EPIPE, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use std::collections::VecDeque;
use std::io::{Read, Write};

/// One end of a connection.
#[derive(Debug, Default)]
pub struct Socket {
    /// The other end's index.
    pub peer: usize,
    /// Taken from the program, not yet with the peer.
    out: VecDeque<u8>,
    out_bytes_max: usize,
    /// With us, not yet read.
    queue: VecDeque<u8>,
    queue_bytes_max: usize,
    sent: u64,
    read: u64,
    fin_queued: bool,
    fin_sent: bool,
    fin_received: bool,
    reset_queued: bool,
    reset: bool,
    error: Option<i32>,
    closed: bool,
    /// SO_LINGER of 0.
    pub linger_none: bool,
    /// One of a pair of AF_UNIX sockets.
    pub unix: bool,
    /// Of a pair: bytes that the peer has not read.
    unread: usize,
}

impl Socket {
    /// An end with buffers of these sizes.
    pub fn new(peer: usize, out_bytes_max: usize, queue_bytes_max: usize) -> Self {
        Self {
            peer,
            out_bytes_max,
            queue_bytes_max,
            ..Self::default()
        }
    }

    /// poll(2).
    pub fn shown(&self) -> u32 {
        let mut shown = 0;
        let mut show = |bits: i16, on: bool| {
            if on {
                shown |= bits as u16 as u32;
            }
        };
        show(
            POLLIN,
            !self.queue.is_empty() || self.fin_received || self.reset,
        );
        show(POLLRDHUP, self.fin_received || self.reset);
        show(POLLHUP, self.reset || self.fin_received && self.fin_queued);
        show(POLLERR, self.error.is_some());
        show(POLLOUT, self.room() != 0 || self.reset);
        shown
    }

    /// recv(2), without a sleep.
    fn receive(&mut self, target: &mut [u8], peek: bool) -> Result<usize, i32> {
        if !self.queue.is_empty() {
            if peek {
                let count = target.len().min(self.queue.len());
                for (to, from) in target.iter_mut().zip(&self.queue) {
                    *to = *from;
                }
                return Ok(count);
            }
            let mut done = 0;
            // The queue is two slices.
            for _ in 0..2 {
                done += self.queue.read(&mut target[done..]).unwrap_or(0);
            }
            self.read += done as u64;
            return Ok(done);
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.fin_received || self.reset {
            return Ok(0);
        }
        Err(EAGAIN)
    }

    /// send(2), without a sleep.
    fn send(&mut self, source: &[u8]) -> Result<usize, i32> {
        if let Some(error) = self.error.take_if(|_| !self.unix) {
            return Err(error);
        }
        if self.reset || self.fin_queued {
            return Err(EPIPE);
        }
        let count = source.len().min(self.room() as usize);
        if count == 0 && !source.is_empty() {
            return Err(EAGAIN);
        }
        let _ = self.out.write(&source[..count]);
        self.sent += count as u64;
        Ok(count)
    }

    /// Bytes that a send would take.
    pub fn room(&self) -> u64 {
        (self.out_bytes_max - self.out.len() - self.unread) as u64
    }

    /// Of a pair: whether the peer has read all.
    pub fn is_drained(&self) -> bool {
        self.unread == 0
    }

    /// Bytes taken from the program (see the shim's `position`).
    pub fn sent_position(&self) -> Option<u64> {
        let sent = if self.unix { 0 } else { self.sent };
        (!self.fin_queued && !self.reset).then_some(sent)
    }

    /// Bytes read by the program.
    pub fn received_position(&self) -> Option<u64> {
        let read = if self.unix { 0 } else { self.read };
        (!self.fin_received && !self.reset).then_some(read)
    }

    /// Whether the other end is still to be given something.
    pub fn is_under_way(&self, peer: &Socket) -> bool {
        self.reset_queued
            || !self.out.is_empty() && (peer.closed || peer.queue.len() < peer.queue_bytes_max)
            || self.out.is_empty() && self.fin_queued && !self.fin_sent && !self.reset
    }

    /// close(2), also of a process that is killed.
    fn close(&mut self) {
        self.closed = true;
        if self.reset {
            return;
        }
        if !self.queue.is_empty() || self.linger_none {
            self.out.clear();
            self.reset_queued = true;
            self.reset = true;
        } else {
            self.fin_queued = true;
        }
    }

    fn be_reset(&mut self) {
        self.out.clear();
        self.reset_queued = false;
        if !self.reset {
            self.reset = true;
            self.error = Some(if self.fin_received { EPIPE } else { ECONNRESET });
        }
    }
}

/// An end and its peer.
fn both(sockets: &mut [Socket], index: usize) -> [&mut Socket; 2] {
    let peer = sockets[index].peer;
    sockets
        .get_disjoint_mut([index, peer])
        .expect("two ends are two sockets")
}

/// send(2), without a sleep.
pub fn send(sockets: &mut [Socket], index: usize, source: &[u8]) -> Result<usize, i32> {
    let [own, peer] = both(sockets, index);
    let count = own.send(source)?;
    if own.unix {
        own.unread += count;
        peer.queue.append(&mut own.out);
    }
    Ok(count)
}

/// recv(2), without a sleep.
pub fn receive(
    sockets: &mut [Socket],
    index: usize,
    target: &mut [u8],
    peek: bool,
) -> Result<usize, i32> {
    let [own, peer] = both(sockets, index);
    let count = own.receive(target, peek)?;
    if own.unix && !peek {
        peer.unread -= count;
    }
    Ok(count)
}

/// shutdown(SHUT_WR).
pub fn shut(sockets: &mut [Socket], index: usize) {
    let [own, peer] = both(sockets, index);
    own.fin_queued = true;
    if own.unix {
        own.fin_sent = true;
        peer.fin_received = true;
    }
}

/// close(2), also of a process that is killed.
pub fn close(sockets: &mut [Socket], index: usize) {
    let [own, peer] = both(sockets, index);
    if !own.unix {
        return own.close();
    }
    own.closed = true;
    own.reset = true;
    own.fin_sent = true;
    if !own.queue.is_empty() {
        peer.error = Some(ECONNRESET);
    }
    peer.unread = 0;
    peer.fin_received = true;
    peer.reset = true;
}

/// Moves up to `count` bytes, or what stands behind them, from one end to the other.
pub fn deliver(from: &mut Socket, to: &mut Socket, count: usize) {
    if from.reset_queued {
        from.reset_queued = false;
        if !to.closed {
            to.be_reset();
        }
        return;
    }
    if !from.out.is_empty() {
        if to.closed {
            // Bytes for nobody: the connection is torn down, both ways (RFC 9293, 3.10.7.4).
            to.out.clear();
            to.reset = true;
            from.be_reset();
            return;
        }
        let room = to.queue_bytes_max - to.queue.len();
        let count = count.min(from.out.len()).min(room);
        to.queue.extend(from.out.drain(..count));
        return;
    }
    if from.fin_queued && !from.fin_sent && !from.reset {
        from.fin_sent = true;
        to.fin_received = true;
    }
}
