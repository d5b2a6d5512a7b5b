//! One socket: what its kind makes of the kernel's.
//!
//! # Messages on a stream
//! A message of a SEQPACKET socket is a record on a TCP connection ([`fordway_abi::record`]).
//! What the kernel takes of a message in part is kept (`send`) and goes before anything else; what came in part is
//! kept, too (`receive`). So a call that may not sleep never tears one. Memory of either half may be lent (`loan`).
//!
//! # Locks
//! Each direction has one, held over the kernel's call, also while it sleeps. A call that may not sleep gives EAGAIN
//! where another thread has it.

mod loan;
mod receive;
mod send;

pub use loan::{Peeked, Reserved};
pub use receive::Received;

use crate::address::{Address, ToAddress, error};
use fordway_abi::record::HEAD_BYTES;
use receive::Receiving;
use send::Sending;
use socket2::{Domain, SockAddr, Type};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Longest message of a SEQPACKET socket.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// How long a close waits for the rest of a message.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// What goes over a socket.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, in order.
    Stream = libc::SOCK_STREAM,
    /// Messages of up to 65,507 bytes, each for itself; also to all domains.
    Datagram = libc::SOCK_DGRAM,
    /// Messages of up to [`MESSAGE_BYTES_MAX`], in order.
    SeqPacket = libc::SOCK_SEQPACKET,
}

/// A socket between domains.
#[derive(Debug)]
pub struct Socket {
    kernels: socket2::Socket,
    kind: Kind,
    is_nonblocking: AtomicBool,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
}

impl Socket {
    /// A new socket.
    pub fn new(kind: Kind) -> io::Result<Self> {
        let of_kernel = match kind {
            Kind::Datagram => Type::DGRAM,
            Kind::Stream | Kind::SeqPacket => Type::STREAM,
        };
        let kernels = socket2::Socket::new(Domain::IPV4, of_kernel, None)?;
        match kind {
            Kind::Datagram => kernels.set_broadcast(true)?,
            // Each send is a matter of its own, also by the kernel.
            Kind::Stream | Kind::SeqPacket => kernels.set_tcp_nodelay(true)?,
        }
        Ok(Self::of(kernels, kind))
    }

    fn of(kernels: socket2::Socket, kind: Kind) -> Self {
        Self {
            kernels,
            kind,
            is_nonblocking: AtomicBool::new(false),
            sending: Mutex::default(),
            receiving: Mutex::default(),
        }
    }

    /// Gives it an address of the own domain, [`crate::ANY`] or a port.
    pub fn bind(&self, address: impl ToAddress) -> io::Result<()> {
        let name = name_of(address)?;
        if self.kind != Kind::Datagram {
            self.kernels.set_reuse_address(true)?;
        }
        let bound = self.kernels.bind(&name);
        bound.map_err(|reason| match reason.raw_os_error() {
            Some(libc::EACCES) => error(libc::EPERM),
            _ => reason,
        })
    }

    /// Lets others connect; so many may wait for `accept`.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        self.kernels.listen(backlog)
    }

    /// The next connection, and whose it is.
    pub fn accept(&self) -> io::Result<(Socket, Address)> {
        let (kernels, name) = self.kernels.accept()?;
        // With the listener's options (linux: sk_clone_lock).
        Ok((Self::of(kernels, self.kind), address_of(&name)?))
    }

    /// Connects to a domain's port; of datagrams: names whom `send` and `recv` are about.
    pub fn connect(&self, address: impl ToAddress) -> io::Result<()> {
        self.kernels.connect(&name_of(address)?)
    }

    /// The own address.
    pub fn local_address(&self) -> io::Result<Address> {
        address_of(&self.kernels.local_addr()?)
    }

    /// That of the far end.
    pub fn peer_address(&self) -> io::Result<Address> {
        address_of(&self.kernels.peer_addr()?)
    }

    /// The error that a `connect` which did not sleep has met (SO_ERROR).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.kernels.take_error()
    }

    /// What goes over it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether calls give EAGAIN instead of sleeping.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.store(nonblocking, Ordering::Relaxed);
        self.kernels.set_nonblocking(nonblocking)
    }

    /// Ends the receiving half, the sending half, or both.
    pub fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        self.kernels.shutdown(how)
    }

    fn head_bytes(&self) -> usize {
        match self.kind {
            Kind::SeqPacket => HEAD_BYTES,
            Kind::Stream | Kind::Datagram => 0,
        }
    }

    fn may_not_sleep(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.is_nonblocking.load(Ordering::Relaxed)
    }

    fn lock<'a, T>(&self, half: &'a Mutex<T>, flags: i32) -> io::Result<MutexGuard<'a, T>> {
        if !self.may_not_sleep(flags) {
            return Ok(own(half));
        }
        match half.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(error(libc::EAGAIN)),
        }
    }
}

impl Drop for Socket {
    /// What was accepted of a message goes first, within a bound.
    fn drop(&mut self) {
        let sending = self.sending.get_mut();
        let sending = std::mem::take(sending.unwrap_or_else(PoisonError::into_inner));
        if sending.gone < sending.rest.len() {
            let _ = self.kernels.set_nonblocking(false);
            let _ = self.kernels.set_write_timeout(Some(CLOSE_WAIT));
            let _ = self.send_rest(&mut { sending }, 0);
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.kernels.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernels.as_fd()
    }
}

/// Waits until something can be done with one of the sockets (poll(2)); what, for each of them.
pub fn poll(sockets: &[(&Socket, i16)], timeout: Option<Duration>) -> io::Result<Vec<i16>> {
    let entry = |(socket, events): &(&Socket, i16)| libc::pollfd {
        fd: socket.as_raw_fd(),
        events: *events,
        revents: 0,
    };
    let mut entries: Vec<_> = sockets.iter().map(entry).collect();
    let milliseconds = |time: Duration| i32::try_from(time.as_micros().div_ceil(1000));
    let timeout_ms = timeout.map_or(-1, |time| milliseconds(time).unwrap_or(i32::MAX));
    // SAFETY: an array of so many entries.
    match unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as _, timeout_ms) } {
        0.. => Ok(entries.iter().map(|entry| entry.revents).collect()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn name_of(address: impl ToAddress) -> io::Result<SockAddr> {
    Ok(address.to_address()?.kernels()?.into())
}

fn address_of(name: &SockAddr) -> io::Result<Address> {
    let four = name.as_socket_ipv4();
    four.map(Address::of).ok_or(error(libc::EAFNOSUPPORT))
}

/// A buffer that is only written to.
fn spare(buffer: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the same bytes; socket2 has the kernel write to them, and writes nothing uninitialised.
    unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) }
}

/// The lock, however long that takes. Who has a loan waits for nobody who sleeps: he gets EBUSY.
fn own<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_none_now(reason: &io::Error) -> bool {
    reason.kind() == io::ErrorKind::WouldBlock || is_signal(reason)
}

fn is_signal(reason: &io::Error) -> bool {
    reason.kind() == io::ErrorKind::Interrupted
}
