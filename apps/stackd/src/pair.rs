//! The stack's end of a socket's pair of AF_UNIX sockets.
//!
//! Bytes move by libc's functions, so that the preloaded library can move them by rings; it knows the end by the name that it
//! is bound to.

use fordway_abi::stack::{Id, PLUG_BYTES, SERVED_LEVEL, Served, name_of};
use fordway_platform::{messages, sockinfo};
use socket2::{Domain, SockAddr, Socket, Type};
use std::ffi::OsStr;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use zerocopy::IntoBytes;

/// MSG_NOSIGNAL and MSG_OOB (linux/socket.h).
const NO_SIGNAL: i32 = 0x4000;
const URGENT: i32 = 1;

const ENOMEM: i32 = 12;
const EMSGSIZE: i32 = 90;
const EOPNOTSUPP: i32 = 95;
const ENOBUFS: i32 = 105;

/// Memory of the kernel that unread bytes of all sockets take, as far as each has the least.
const UNREAD_BYTES_MAX: usize = 256 << 20;
/// What a pair's end has by itself (linux: net.core.wmem_default).
const USUAL_BYTES: usize = 212_992;
/// The least that a stream goes on with, and that the longest datagram needs.
const STREAM_BYTES_MIN: usize = 16 << 10;
const MESSAGE_BYTES_MIN: usize = 80 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pair(Socket);

/// What a receive has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Bytes(usize),
    Nothing,
    /// The program has shut its sending side, or closed its end.
    End,
    /// It closed its end, and has not read all.
    Broken,
}

impl Pair {
    /// A pair for this socket, and the program's end of it. With a plug, that end cannot be written to by poll's measure.
    pub(crate) fn new(
        id: Id,
        key: u64,
        is_stream: bool,
        has_plug: bool,
    ) -> io::Result<(Pair, OwnedFd)> {
        let kind = if is_stream {
            Type::STREAM
        } else {
            Type::SEQPACKET
        };
        let (ours, theirs) = Socket::pair(Domain::UNIX, kind, None)?;
        ours.set_nonblocking(true)?;
        // An older kernel closes them as soon as the bytes beside them are read.
        let _ = sockinfo::refuse_descriptors(&ours);
        if is_stream {
            // No byte is left out of what is read.
            ours.set_out_of_band_inline(true)?;
        }
        let mut name = [0; fordway_abi::stack::NAME_BYTES + 1];
        name[1..].copy_from_slice(&name_of(id));
        ours.bind(&SockAddr::unix(OsStr::from_bytes(&name))?)?;
        sockinfo::set_key(&theirs, key)?;
        if has_plug {
            // The least that there is: a message of the plug's size takes more than a quarter of it.
            theirs.set_send_buffer_size(0)?;
            let sent = theirs.send(&[0; PLUG_BYTES])?;
            if sent != PLUG_BYTES {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok((Pair(ours), theirs.into()))
    }

    /// With so many sockets, what lies unread in this one takes a share of [`UNREAD_BYTES_MAX`].
    pub(crate) fn bound_memory(&self, is_stream: bool, count: usize) -> io::Result<()> {
        let least = if is_stream {
            STREAM_BYTES_MIN
        } else {
            MESSAGE_BYTES_MIN
        };
        match UNREAD_BYTES_MAX / count.max(1) {
            share if share < USUAL_BYTES => {
                // The kernel doubles what it is told (socket(7)).
                self.0.set_send_buffer_size(share.max(least) / 2)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Got {
        got(|| (&self.0).read(buffer))
    }

    /// The same of a program that sends urgent bytes: it ends before each, and gives each by itself. True: it is one.
    pub(crate) fn receive_marked(&self, buffer: &mut [u8]) -> (Got, bool) {
        // What is there now stays the next one, whatever comes meanwhile.
        match got(|| self.0.peek(&mut [MaybeUninit::uninit()])) {
            Got::Bytes(_) => {}
            other => return (other, false),
        }
        let is_urgent = sockinfo::is_at_mark(&self.0).unwrap_or(false);
        let most = if is_urgent { 1 } else { buffer.len() };
        (self.receive(&mut buffer[..most]), is_urgent)
    }

    /// An urgent byte, or an ordinary one where AF_UNIX has none (linux before 5.15). `Ok(0)`: there is no room.
    pub(crate) fn send_urgent(&self, byte: u8) -> io::Result<usize> {
        match sent(self.0.send_with_flags(&[byte], NO_SIGNAL | URGENT)) {
            Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => self.send(&[byte]),
            sent => sent,
        }
    }

    /// `Ok(0)`: there is no room.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        sent(self.0.send_with_flags(bytes, NO_SIGNAL))
    }

    /// The same of two pieces that go on from each other, in one message: who reads gets both, or nothing of them.
    pub(crate) fn send_pieces(&self, [first, second]: [&[u8]; 2]) -> io::Result<usize> {
        if second.is_empty() {
            return self.send(first);
        }
        let both = [IoSlice::new(first), IoSlice::new(second)];
        sent(self.0.send_vectored_with_flags(&both, NO_SIGNAL))
    }

    /// The lengths of the messages that wait, which come into `room`, the first at its beginning and each next one `each_bytes` further
    /// on; one more, of nothing, where the program has shut its sending side or closed its end.
    pub(crate) fn receive_messages(
        &self,
        room: &mut [u8],
        each_bytes: usize,
        lengths: &mut [usize],
    ) -> usize {
        let mut tries = 0;
        loop {
            tries += 1;
            match messages::receive(&self.0, room, each_bytes, lengths) {
                Ok(count) => return count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return 0,
                // It has closed its end, and has not read all: what it has sent stands behind that.
                Err(_) if tries == 1 => {}
                Err(_) => {
                    lengths[0] = 0;
                    return 1;
                }
            }
        }
    }

    /// Sends the messages between neighbours of `bounds`; how many found no room, or nobody.
    pub(crate) fn send_messages(&self, bytes: &[u8], bounds: &[usize]) -> usize {
        let (mut done, mut lost, all) = (0, 0, bounds.len().saturating_sub(1));
        while done < all {
            match messages::send(&self.0, bytes, &bounds[done..]) {
                Ok(count) => done += count.max(1),
                // The kernel has no memory for this one, say.
                Err(error) if matches!(error.raw_os_error(), Some(ENOBUFS | ENOMEM | EMSGSIZE)) => {
                    (done, lost) = (done + 1, lost + 1);
                }
                // Room is not a matter of the length (linux: sock_alloc_send_pskb).
                Err(_) => return lost + all - done,
            }
        }
        lost
    }

    /// Whether the library has bytes of earlier sends that find no room in the pair yet: then not even an empty send does.
    pub(crate) fn is_owed(&self) -> bool {
        let sent = self.0.send_with_flags(&[], NO_SIGNAL);
        sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Takes the plug; false: it was not there.
    pub(crate) fn pull_plug(&self) -> bool {
        let mut left = PLUG_BYTES;
        let mut plug = [0; PLUG_BYTES];
        while left > 0 {
            match self.receive(&mut plug[..left]) {
                Got::Bytes(count) => left -= count,
                _ => return false,
            }
        }
        true
    }

    /// Tells the library which connection is served. Without it there is nobody to tell.
    pub(crate) fn serve(&self, served: &Served) {
        let _ = sockinfo::set_option(&self.0, SERVED_LEVEL, 0, served.as_bytes());
    }

    /// The program reads the end behind all that was sent.
    pub(crate) fn shut(&self) {
        // It has closed its end already, or the end is seen now.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Whether the program has closed its end, or shut both ways.
    pub(crate) fn is_closed(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut asked = [PollFd::new(&self.0, PollFlags::empty())];
        let shown = poll(&mut asked, Some(&Timespec::default()));
        shown.is_ok() && asked[0].revents().contains(PollFlags::HUP)
    }

    /// Whether the program has not read all that it was sent: then it has not closed its end.
    pub(crate) fn lies_unread(&self) -> bool {
        sockinfo::queued_memory(&self.0).is_ok_and(|bytes| bytes > 0)
    }

    /// Bytes of the program that lie in the queue.
    pub(crate) fn unread_bytes(&self) -> usize {
        sockinfo::unread_bytes(&self.0).unwrap_or(0)
    }
}

/// What a receive into some room says.
fn got(mut receive: impl FnMut() -> io::Result<usize>) -> Got {
    loop {
        return match receive() {
            Ok(0) => Got::End,
            Ok(count) => Got::Bytes(count),
            Err(error) => match error.kind() {
                // Nothing would be an edge for it later.
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock => Got::Nothing,
                _ => Got::Broken,
            },
        };
    }
}

/// `Ok(0)` of a send that has found no room.
fn sent(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        sent => sent,
    }
}

impl AsFd for Pair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Pair {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// One that no other test has.
    fn id() -> Id {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Id {
            epoch: u64::from(std::process::id()),
            index: 0,
            generation: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn shown(fd: &OwnedFd) -> PollFlags {
        shown_of(fd, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)
    }

    fn shown_of(fd: &impl AsFd, asked: PollFlags) -> PollFlags {
        let mut asked = [PollFd::new(fd, asked)];
        poll(&mut asked, Some(&Timespec::default())).expect("poll");
        asked[0].revents()
    }

    #[test]
    fn a_plug_keeps_the_program_from_writing_until_it_is_pulled() {
        let (ours, theirs) = Pair::new(id(), 0, true, true).expect("a pair");
        assert_eq!(shown(&theirs), PollFlags::empty());
        assert!(ours.pull_plug());
        assert_eq!(shown(&theirs), PollFlags::OUT);
        assert!(!ours.pull_plug());
    }

    #[test]
    fn no_descriptors_are_taken() {
        let (ours, theirs) = Pair::new(id(), 0, true, false).expect("a pair");
        let sent = fordway_platform::ipc::send(&theirs, b"x", &[theirs.as_fd()]);
        if sockinfo::refuse_descriptors(&ours).is_ok() {
            let kind = sent.map_err(|error| error.kind());
            assert_eq!(kind, Err(io::ErrorKind::PermissionDenied));
        }
    }

    #[test]
    fn a_failure_shows_as_one() {
        let (ours, theirs) = Pair::new(id(), 0, true, true).expect("a pair");
        drop(ours);
        let all =
            PollFlags::IN | PollFlags::OUT | PollFlags::ERR | PollFlags::HUP | PollFlags::RDHUP;
        assert_eq!(shown(&theirs), all);
    }

    #[test]
    fn an_urgent_byte_comes_by_itself_where_it_stands() {
        let (ours, theirs) = Pair::new(id(), 0, true, false).expect("a pair");
        let theirs = Socket::from(theirs);
        let mut room = [0; 16];
        assert_eq!(ours.receive_marked(&mut room), (Got::Nothing, false));
        for (bytes, flags) in [(&b"ab"[..], 0), (b"!", URGENT), (b"cd", 0), (b"?", URGENT)] {
            theirs.send_with_flags(bytes, flags).expect("send");
        }
        theirs.shutdown(Shutdown::Write).expect("shutdown");
        let mut all = Vec::new();
        loop {
            match ours.receive_marked(&mut room) {
                (Got::Bytes(count), is_urgent) => all.push((room[..count].to_vec(), is_urgent)),
                (end, _) => {
                    assert_eq!(end, Got::End);
                    break;
                }
            }
        }
        // One that another follows before it was taken is an ordinary one.
        assert_eq!(all, [(b"ab!cd".to_vec(), false), (b"?".to_vec(), true)]);
        assert_eq!(ours.send_urgent(b'!').expect("send"), 1);
        assert!(shown_of(&theirs, PollFlags::PRI).contains(PollFlags::PRI));
    }

    #[test]
    fn the_end_and_a_close_with_unread_bytes_differ() {
        let (ours, theirs) = Pair::new(id(), 0, true, false).expect("a pair");
        assert_eq!(ours.receive(&mut [0; 8]), Got::Nothing);
        rustix::io::write(&theirs, b"last").expect("write");
        drop(theirs);
        assert_eq!(ours.receive(&mut [0; 8]), Got::Bytes(4));
        assert_eq!(ours.receive(&mut [0; 8]), Got::End);
        let (ours, theirs) = Pair::new(id(), 0, true, false).expect("a pair");
        assert_eq!(ours.send(b"unread").expect("send"), 6);
        drop(theirs);
        assert_eq!(ours.receive(&mut [0; 8]), Got::Broken);
    }
}
