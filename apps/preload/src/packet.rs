//! One packet of the control connection, either way, with its descriptors.

use crate::sys::{self, sys};
use core::mem::MaybeUninit;
use fordway_abi::control::{self as abi, Header, Message, PACKET_BYTES_MAX, PACKET_FDS_MAX};
use zerocopy::{FromBytes, IntoBytes};

/// Longest wait for the broker's answer to `Hello`, and for room in its socket.
pub const ANSWER_MS: i32 = 1000;

const MS_NS: u64 = 1_000_000;

/// Space for the descriptors beside a packet.
const ANCILLARY_BYTES: usize = 16 + PACKET_FDS_MAX * 4;

#[repr(C, align(8))]
struct Ancillary([u8; ANCILLARY_BYTES]);

/// Sends one message. `EAGAIN`: the broker has taken nothing for [`ANSWER_MS`], and has not got it.
pub fn send_on<M: Message>(fd: i32, message: &M, fds: &[i32]) -> sys::Result<()> {
    let header = Header {
        kind: M::KIND,
        length_bytes: (size_of::<Header>() + size_of::<M>()) as u32,
    };
    let parts = [
        libc::iovec {
            iov_base: header.as_bytes().as_ptr() as *mut _,
            iov_len: size_of::<Header>(),
        },
        libc::iovec {
            iov_base: message.as_bytes().as_ptr() as *mut _,
            iov_len: size_of::<M>(),
        },
    ];
    let mut ancillary = Ancillary([0; ANCILLARY_BYTES]);
    let control_bytes = 16 + fds.len() * 4;
    ancillary.0[0..8].copy_from_slice(&control_bytes.to_ne_bytes());
    ancillary.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    ancillary.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    for (target, fd) in ancillary.0[16..].chunks_exact_mut(4).zip(fds) {
        target.copy_from_slice(&fd.to_ne_bytes());
    }
    let mut packet = empty_message();
    packet.msg_iov = parts.as_ptr() as *mut _;
    packet.msg_iovlen = parts.len();
    if !fds.is_empty() {
        packet.msg_control = ancillary.0.as_mut_ptr().cast();
        packet.msg_controllen = control_bytes.next_multiple_of(8);
    }
    loop {
        match sys!(
            SYS_sendmsg,
            fd,
            &raw const packet,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT
        ) {
            Ok(_) => return Ok(()),
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) if poll_one(fd, libc::POLLOUT, ANSWER_MS) => {}
            Err(error) => return Err(error),
        }
    }
}

fn empty_message() -> libc::msghdr {
    // SAFETY: a msghdr of zeros is an empty message.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// One packet with its descriptors; those that are not taken are closed.
pub struct Packet {
    bytes: [u8; PACKET_BYTES_MAX],
    length: usize,
    fds: [i32; PACKET_FDS_MAX],
    fd_count: usize,
    /// Descriptors were lost: the program's limit is reached.
    pub truncated: bool,
}

impl Packet {
    /// The next packet, if one is there.
    pub fn receive(fd: i32) -> sys::Result<Option<Self>> {
        let mut packet = Self {
            bytes: [0; PACKET_BYTES_MAX],
            length: 0,
            fds: [-1; PACKET_FDS_MAX],
            fd_count: 0,
            truncated: false,
        };
        let mut part = libc::iovec {
            iov_base: packet.bytes.as_mut_ptr().cast(),
            iov_len: PACKET_BYTES_MAX,
        };
        let mut ancillary = Ancillary([0; ANCILLARY_BYTES]);
        let mut message = empty_message();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = ancillary.0.as_mut_ptr().cast();
        message.msg_controllen = ANCILLARY_BYTES;
        packet.length = match sys!(
            SYS_recvmsg,
            fd,
            &raw mut message,
            libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC
        ) {
            Ok(0) => return Err(libc::EPIPE),
            Ok(length) => length,
            Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        packet.truncated = message.msg_flags & libc::MSG_CTRUNC != 0;
        if message.msg_controllen >= 16 {
            let bytes = u64::from_ne_bytes(ancillary.0[0..8].try_into().unwrap_or([0; 8])) as usize;
            packet.fd_count = (bytes.saturating_sub(16) / 4).min(PACKET_FDS_MAX);
            for (target, source) in packet.fds[..packet.fd_count]
                .iter_mut()
                .zip(ancillary.0[16..].chunks_exact(4))
            {
                *target = i32::from_ne_bytes(source.try_into().unwrap_or([0xff; 4]));
            }
        }
        Ok(Some(packet))
    }

    /// The kind, if length and number of descriptors fit it.
    pub fn kind(&self) -> Option<u32> {
        let parsed = abi::parse(&self.bytes[..self.length], self.fd_count);
        parsed.ok().map(|(kind, _)| kind)
    }

    /// The kind that it says, whatever it consists of.
    pub fn claimed_kind(&self) -> Option<u32> {
        let (header, _) = Header::read_from_prefix(&self.bytes[..self.length]).ok()?;
        Some(header.kind)
    }

    /// Its message, which must be of this kind.
    pub fn body<M: Message>(&self) -> Option<M> {
        M::read_from_prefix(&self.bytes[size_of::<Header>()..])
            .ok()
            .map(|(body, _)| body)
    }

    /// A descriptor, which is the caller's from now on.
    pub fn take_fd(&mut self, index: usize) -> i32 {
        core::mem::replace(&mut self.fds[index], -1)
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        for fd in self.fds.iter().filter(|fd| **fd >= 0) {
            let _ = sys!(SYS_close, *fd);
        }
    }
}

/// Waits for one of `events`, whatever handlers run meanwhile; whether it came.
pub fn poll_one(fd: i32, events: i16, timeout_ms: i32) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let until_ns = sys::now_ns() + timeout_ms as u64 * MS_NS;
    loop {
        let left_ms = until_ns.saturating_sub(sys::now_ns()).div_ceil(MS_NS);
        match sys!(SYS_poll, &raw mut entry, 1, left_ms) {
            Err(libc::EINTR) => {}
            shown => return shown == Ok(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_does_not_end_the_wait_for_an_answer() {
        extern "C" fn nothing(_: i32) {}
        let mut ends = [0; 2];
        // SAFETY: room for two numbers; a handler that does nothing; this thread waits for the other.
        unsafe {
            libc::signal(libc::SIGUSR2, nothing as *const () as usize);
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let waiter = libc::pthread_self();
            let teller = std::thread::spawn(move || {
                for _ in 0..100 {
                    libc::pthread_kill(waiter, libc::SIGUSR2);
                    libc::usleep(100);
                }
                libc::write(ends[1], c"x".as_ptr().cast(), 1)
            });
            let came = poll_one(ends[0], libc::POLLIN, 60_000);
            assert_eq!((came, teller.join().expect("it ends")), (true, 1));
            assert_eq!(ends.map(|end| libc::close(end)), [0, 0]);
        }
    }
}
