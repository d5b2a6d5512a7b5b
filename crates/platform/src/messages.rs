//! Several messages of a socket by one call (recvmmsg(2), sendmmsg(2)). Nothing waits, and no call raises SIGPIPE.
//!
//! The calls are libc's, so that the preloaded library sees them as it sees those of one message.

use std::array;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most messages of one call.
pub const MESSAGES_MAX: usize = 16;

const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Has the kernel look at `count` messages, of which `part` says where each lies: those that it has received or sent.
fn call(
    count: usize,
    part: impl Fn(usize) -> libc::iovec,
    by_kernel: impl FnOnce(*mut libc::mmsghdr, libc::c_uint) -> libc::c_int,
    mut done: impl FnMut(usize, usize),
) -> io::Result<usize> {
    let count = count.min(MESSAGES_MAX);
    let mut parts: [libc::iovec; MESSAGES_MAX] = array::from_fn(|at| match at < count {
        true => part(at),
        false => libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        },
    });
    let mut messages: [libc::mmsghdr; MESSAGES_MAX] = array::from_fn(|at| {
        // SAFETY: an mmsghdr of zeros is an empty message.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = &raw mut parts[at];
        message.msg_hdr.msg_iovlen = 1;
        message
    });
    let moved = by_kernel(messages.as_mut_ptr(), count as libc::c_uint);
    let moved = usize::try_from(moved).map_err(|_| io::Error::last_os_error())?;
    for (at, message) in messages[..moved.min(count)].iter().enumerate() {
        done(at, message.msg_len as usize);
    }
    Ok(moved)
}

/// Receives messages into `room`, the first at its beginning and each next one `each_bytes` further on; notes the length of each in
/// `lengths`, and gives how many there were. One that is longer than `each_bytes` is cut. With fewer than there was room for, there
/// are no more for now. At the end of what comes, all that there is room for have no bytes.
pub fn receive(
    socket: impl AsFd,
    room: &mut [u8],
    each_bytes: usize,
    lengths: &mut [usize],
) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let count = lengths.len().min(room.len() / each_bytes.max(1));
    let base = room.as_mut_ptr();
    call(
        count,
        |at| libc::iovec {
            iov_base: base.wrapping_add(at * each_bytes).cast(),
            iov_len: each_bytes,
        },
        // SAFETY: as many messages as `count`, whose parts lie apart from each other in `room`, which is borrowed.
        |messages, count| unsafe {
            libc::recvmmsg(fd, messages, count, FLAGS as _, std::ptr::null_mut())
        },
        |at, bytes| lengths[at] = bytes,
    )
}

/// Sends messages that lie one behind the other in `bytes`, between each two neighbours of `bounds`; gives how many were sent, at
/// least one.
pub fn send(socket: impl AsFd, bytes: &[u8], bounds: &[usize]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let part = |at: usize| {
        let message = &bytes[bounds[at]..bounds[at + 1]];
        libc::iovec {
            iov_base: message.as_ptr().cast_mut().cast(),
            iov_len: message.len(),
        }
    };
    // SAFETY: as many messages as `count`, whose parts lie in `bytes`, which the kernel only reads.
    let by_kernel = |messages, count| unsafe { libc::sendmmsg(fd, messages, count, FLAGS as _) };
    call(bounds.len().saturating_sub(1), part, by_kernel, |_, _| {})
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::OwnedFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    #[test]
    fn messages_come_one_by_one_and_in_order() {
        let (ours, theirs) = pair();
        let bytes = b"onetwothree";
        assert_eq!(send(&ours, bytes, &[0, 3, 6, 6, 11]).expect("sends"), 4);
        let (mut room, mut lengths) = ([0; 3 * 4], [9; 3]);
        let got = receive(&theirs, &mut room, 4, &mut lengths).expect("receives");
        assert_eq!((got, lengths, &room[4..7]), (3, [3, 3, 0], &b"two"[..]));
        let got = receive(&theirs, &mut room, 4, &mut lengths).expect("receives");
        // It was longer than there was room for.
        assert_eq!((got, lengths[0], &room[..4]), (1, 4, &b"thre"[..]));
        let empty = receive(&theirs, &mut room, 4, &mut lengths);
        assert_eq!(
            empty.map_err(|error| error.kind()),
            Err(io::ErrorKind::WouldBlock)
        );
    }

    #[test]
    fn as_many_as_find_room_are_sent() {
        let (ours, theirs) = pair();
        let bytes = vec![7; MESSAGES_MAX * 60_000];
        let bounds: Vec<usize> = (0..=MESSAGES_MAX).map(|count| count * 60_000).collect();
        let sent = send(&ours, &bytes, &bounds).expect("sends");
        assert!((1..MESSAGES_MAX).contains(&sent), "{sent}");
        let error = send(&ours, &bytes, &bounds).expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let (mut room, mut lengths) = ([0; MESSAGES_MAX * 8], [0; MESSAGES_MAX]);
        let got = receive(&theirs, &mut room, 8, &mut lengths).expect("receives");
        assert_eq!(got, sent);
    }

    #[test]
    fn the_end_shows_in_all_that_there_is_room_for() {
        let (ours, theirs) = pair();
        assert_eq!(send(&ours, b"last", &[0, 4]).expect("sends"), 1);
        drop(ours);
        let (mut room, mut lengths) = ([0; 32], [9; 4]);
        let got = receive(&theirs, &mut room, 8, &mut lengths).expect("receives");
        assert_eq!((got, lengths), (4, [4, 0, 0, 0]));
        let gone = send(&theirs, b"x", &[0, 1]).expect_err("nobody");
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }
}
