//! Positions in the kernel's two byte streams, as the kernel itself counts them.
//! The shim need not have seen the bytes, so it can upgrade a connection in
//! mid-stream whatever went before, through stdio or a parent process.
//!
//! Of a pair of AF_UNIX sockets the kernel counts nothing, and there nothing is on its way: what it knows is whether the far
//! end has received everything.

use super::tcp_info;
use crate::sys::{self, sys};

struct TcpInfo([u8; 256]);

impl TcpInfo {
    fn of(fd: i32) -> Option<Self> {
        let none = [0; 256];
        let (info, length) = sys::option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, none).ok()?;
        (length >= tcp_info::NEEDED_BYTES).then_some(Self(info))
    }

    fn long(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.0[offset..offset + 8].try_into().unwrap_or([0; 8]))
    }

    fn notsent_bytes(&self) -> u32 {
        let bytes = &self.0[tcp_info::NOTSENT_BYTES..tcp_info::NOTSENT_BYTES + 4];
        u32::from_ne_bytes(bytes.try_into().unwrap_or([0; 4]))
    }
}

/// Bytes that the kernel has taken from this end. The caller keeps others from sending.
pub fn sent_position(fd: i32) -> Option<u64> {
    let info = TcpInfo::of(fd)?;
    let sent = info
        .long(tcp_info::BYTES_SENT)
        .checked_sub(info.long(tcp_info::BYTES_RETRANS))?;
    (info.0[tcp_info::STATE] == TCP_ESTABLISHED || info.0[tcp_info::STATE] == TCP_CLOSE_WAIT)
        .then_some(sent + u64::from(info.notsent_bytes()))
}

/// Whether the far end of a pair has received all that was sent from this end (linux: unix_outq_len).
pub fn is_drained(fd: i32) -> bool {
    let mut queued: i32 = 0;
    sys!(SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut queued).is_ok() && queued == 0
}

/// Whether something can still be sent from this end of a pair. The kernel says so of nothing, too, which reaches
/// nobody (linux: unix_stream_sendmsg).
pub fn can_send(fd: i32) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    sys!(SYS_sendto, fd, 0, 0, flags, 0, 0).is_ok()
}

/// The stream goes on by the ring: what the kernel holds back in the hope of more (TCP_CORK,
/// up to 200 ms; Nagle's algorithm, up to an acknowledgement) goes now, for nothing will
/// follow it. Cork stays off: its next use is the program's.
pub fn push_kernel_tail(fd: i32) {
    let unsent = TcpInfo::of(fd).is_some_and(|info| info.notsent_bytes() != 0);
    if unsent && flag(fd, libc::TCP_CORK) {
        set_flag(fd, libc::TCP_CORK, false);
    } else if unsent && !flag(fd, libc::TCP_NODELAY) {
        set_flag(fd, libc::TCP_NODELAY, true);
        set_flag(fd, libc::TCP_NODELAY, false);
    }
}

fn flag(fd: i32, option: i32) -> bool {
    sys::int_option(fd, libc::IPPROTO_TCP, option) != 0
}

fn set_flag(fd: i32, option: i32, on: bool) {
    sys::set_option(fd, libc::IPPROTO_TCP, option, i32::from(on));
}

const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE_WAIT: u8 = 8;

/// Bytes that this end has read from the kernel; `None` once the peer's FIN is
/// there (which counts as a byte in some of the kernel's figures).
pub fn received_position(fd: i32) -> Option<u64> {
    // Bytes may come in between the two questions: ask until nothing came.
    for _ in 0..8 {
        let before = TcpInfo::of(fd)?;
        let mut queued: i32 = 0;
        sys!(SYS_ioctl, fd, libc::FIONREAD, &raw mut queued).ok()?;
        let after = TcpInfo::of(fd)?;
        if !matches!(
            after.0[tcp_info::STATE],
            TCP_ESTABLISHED | TCP_FIN_WAIT1 | TCP_FIN_WAIT2
        ) {
            return None;
        }
        let received = after.long(tcp_info::BYTES_RECEIVED);
        if received == before.long(tcp_info::BYTES_RECEIVED) {
            return received.checked_sub(queued as u64);
        }
    }
    None
}
