//! Packets with descriptors over UNIX sockets.
//!
//! The control socket is SOCK_SEQPACKET (unix(7)): a packet arrives whole or not at
//! all, in order, and the end of the other side is seen. Descriptors come beside a
//! packet (SCM_RIGHTS). What a receiver must not be fooled by:
//!
//! - a packet longer than the protocol's longest (MSG_TRUNC) and more descriptors
//!   than asked for are both [`ReceiveError::Malformed`]; every descriptor that came
//!   is handed over,
//! - received descriptors are close-on-exec from the start (MSG_CMSG_CLOEXEC),
//! - a connection can be inherited or passed on: [`name_senders`] has the kernel say who sent
//!   each packet.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Waiting connections of a listening socket.
const BACKLOG: i32 = 1024;
/// Most descriptors that [`send`] passes beside one packet.
pub const FDS_MAX: usize = 16;
/// Most descriptors that come beside one packet (SCM_MAX_FD, net/scm.h). [`receive`] has
/// room for all of them: what there is no room for the kernel closes, and the caller waits for that.
pub const RECEIVED_MAX: usize = 253;

/// Which kind of UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SOCK_SEQPACKET.
    Packets,
    /// SOCK_STREAM.
    Stream,
}

impl Kind {
    fn socket(self) -> io::Result<OwnedFd> {
        let kind = match self {
            Kind::Packets => SocketType::SEQPACKET,
            Kind::Stream => SocketType::STREAM,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(rustix::net::socket_with(
            AddressFamily::UNIX,
            kind,
            flags,
            None,
        )?)
    }
}

/// A listening socket at `path` with the permissions `mode`. What lay at the path is
/// replaced: the caller holds the lock that says it is stale.
pub fn listen(path: &Path, kind: Kind, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = kind.socket()?;
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::net::bind(&socket, &address)?;
    // Before listen(2) nobody can connect, so the wider mode of bind(2) is never in force.
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// How many sockets a service manager has opened for this process (sd_listen_fds(3)).
pub fn inherited_count() -> usize {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    match number("LISTEN_PID") == Some(std::process::id()) {
        true => number("LISTEN_FDS").map_or(0, |count| (count as usize).min(FDS_MAX)),
        false => 0,
    }
}

/// The listening sockets that a service manager has opened for this process (sd_listen_fds(3)),
/// each with the path it is bound to. To be asked once: the descriptors become the caller's.
pub fn inherited() -> Vec<(PathBuf, OwnedFd)> {
    const FIRST: i32 = 3;
    let bound = |fd: i32| {
        // SAFETY: F_GETFD only looks at the table of descriptors.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return None;
        }
        // SAFETY: the descriptor is open, and by the protocol it was opened for this process to
        // keep; nothing else here knows of it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let flags = rustix::io::FdFlags::CLOEXEC;
        rustix::io::fcntl_setfd(&socket, flags).ok()?;
        rustix::io::ioctl_fionbio(&socket, true).ok()?;
        let name = SocketAddrUnix::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
        let path = OsStr::from_bytes(name.path_bytes()?);
        Some((path.into(), socket))
    };
    (FIRST..FIRST + inherited_count() as i32)
        .filter_map(bound)
        .collect()
}

/// The next waiting connection, non-blocking and close-on-exec.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::accept_with(listener, flags)?)
}

/// A connection to the socket at `path`, in blocking mode.
pub fn connect(path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    let socket = kind.socket()?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends one packet, whole, never raising SIGPIPE; `WouldBlock` if there is no room.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    debug_assert_eq!(sent, bytes.len());
    Ok(())
}

/// One packet.
#[derive(Debug)]
pub struct Packet {
    /// Length in bytes of what was written to the buffer.
    pub len: usize,
    /// What came beside it.
    pub fds: Vec<OwnedFd>,
    /// The process that sent it, as seen from here; 0 if it cannot be seen, or if
    /// [`name_senders`] was not called before it was sent.
    pub sender: i32,
}

/// Why no packet could be had.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// Nothing is there now.
    #[error("nothing to receive")]
    Empty,
    /// The other side is gone.
    #[error("the other side has closed the connection")]
    Closed,
    /// Longer than the buffer, or with more descriptors than allowed. What came of
    /// the latter is handed over, because closing may block (see the broker's reaper).
    #[error("{0}")]
    Malformed(&'static str, Vec<OwnedFd>),
    /// The kernel said so.
    #[error("{0}")]
    System(io::Error),
}

/// From now on packets come with their sender's number (unix(7), SO_PASSCRED).
pub fn name_senders(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Room for the credentials and all descriptors that may come beside a packet. Aligned as
/// struct cmsghdr has to be.
const CONTROL_WORDS: usize = {
    // SAFETY: CMSG_SPACE only computes.
    let bytes = unsafe {
        libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
            + libc::CMSG_SPACE((RECEIVED_MAX * size_of::<libc::c_int>()) as u32)
    };
    (bytes as usize).div_ceil(8)
};

/// Receives one packet with at most `fds_max` descriptors, without waiting.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds_max: usize,
) -> Result<Packet, ReceiveError> {
    let mut control = [MaybeUninit::<u64>::uninit(); CONTROL_WORDS];
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: a msghdr is plain data, and all zeroes is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: both buffers are ours and as long as is said.
    let bytes = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut message, flags) };
    if bytes < 0 {
        let error = io::Error::last_os_error();
        return Err(match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::INTR) => ReceiveError::Empty,
            Some(Errno::CONNRESET) => ReceiveError::Closed,
            _ => ReceiveError::System(error),
        });
    }
    let (fds, sender) = take_ancillary(&message);
    if message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > fds_max {
        return Err(ReceiveError::Malformed("too many descriptors", fds));
    }
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(ReceiveError::Malformed("packet too long", fds));
    }
    // A SEQPACKET socket shows the end as an empty packet; an empty packet that was
    // really sent breaks the protocol as well, so both end the connection.
    if bytes == 0 {
        return if fds.is_empty() {
            Err(ReceiveError::Closed)
        } else {
            Err(ReceiveError::Malformed("empty packet", fds))
        };
    }
    Ok(Packet {
        len: bytes as usize,
        fds,
        sender,
    })
}

/// Descriptors and sender. By hand, because a sender of number 0 has no place in rustix's type.
fn take_ancillary(message: &libc::msghdr) -> (Vec<OwnedFd>, i32) {
    let (mut fds, mut sender) = (Vec::new(), 0);
    // SAFETY: the kernel has filled in the message, and its buffer still is there.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !part.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give whole headers inside of the buffer.
        let (header, data) = unsafe { (&*part, libc::CMSG_DATA(part)) };
        // SAFETY: CMSG_LEN only computes.
        let payload = header.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize;
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for at in 0..payload / size_of::<libc::c_int>() {
                    // SAFETY: within the payload; each is a new descriptor of ours.
                    fds.push(unsafe {
                        OwnedFd::from_raw_fd(data.cast::<libc::c_int>().add(at).read_unaligned())
                    });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if payload >= size_of::<libc::ucred>() => {
                // SAFETY: within the payload, plain data.
                sender = unsafe { data.cast::<libc::ucred>().read_unaligned() }.pid;
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR; `part` came from there.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
    (fds, sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{SocketFlags, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("socketpair")
    }

    fn eventfd() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("eventfd")
    }

    #[test]
    fn a_packet_comes_with_its_descriptors() {
        let (a, b) = pair();
        let fds: Vec<OwnedFd> = (0..FDS_MAX).map(|_| eventfd()).collect();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        send(&a, b"hello", &borrowed).expect("send");
        let mut buffer = [0; 16];
        let packet = receive(&b, &mut buffer, FDS_MAX).expect("receive");
        assert_eq!(
            (&buffer[..packet.len], packet.fds.len()),
            (&b"hello"[..], FDS_MAX)
        );
        assert!(matches!(
            receive(&b, &mut buffer, 0),
            Err(ReceiveError::Empty)
        ));
        drop(a);
        // A child that another test starts has a copy of it until its exec.
        let mut ended = [PollFd::new(&b, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 30,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut ended, Some(&limit)), Ok(1));
        assert!(matches!(
            receive(&b, &mut buffer, 0),
            Err(ReceiveError::Closed)
        ));
    }

    #[test]
    fn a_packet_names_its_sender_when_asked() {
        let (a, b) = pair();
        let mut buffer = [0; 4];
        send(&a, b"x", &[]).expect("send");
        assert_eq!(receive(&b, &mut buffer, 0).expect("receive").sender, 0);
        name_senders(&b).expect("passcred");
        send(&a, b"x", &[]).expect("send");
        let own = std::process::id() as i32;
        assert_eq!(receive(&b, &mut buffer, 0).expect("receive").sender, own);
        // A child that inherited the socket is somebody else.
        let mut heir = std::process::Command::new("sh")
            .args(["-c", "printf x >&0"])
            .stdin(rustix::io::dup(&a).expect("dup"))
            .spawn()
            .expect("sh");
        heir.wait().expect("wait");
        let sender = receive(&b, &mut buffer, 0).expect("receive").sender;
        assert!(sender != own && sender != 0, "{sender}");
    }

    #[test]
    fn too_much_of_anything_is_malformed() {
        let (a, b) = pair();
        let fd = eventfd();
        let mut buffer = [0; 4];
        send(&a, b"x", &[fd.as_fd(), fd.as_fd()]).expect("send");
        assert!(
            matches!(receive(&b, &mut buffer, 1), Err(ReceiveError::Malformed(_, fds)) if fds.len() == 2)
        );
        send(&a, b"12345", &[]).expect("send");
        assert!(matches!(
            receive(&b, &mut buffer, 1),
            Err(ReceiveError::Malformed(_, _))
        ));
    }
}
