//! An event channel of one port or several: /dev/xen/evtchn, include/uapi/xen/evtchn.h.
//!
//! A ring that came masks the port until it is written back to the device. So one that is not waited for costs one
//! interrupt, and another one later, however often the peer rings, and the port is opened again just before the next wait: a ring that came
//! meanwhile is not lost but ends it at once.
//!
//! ```text
//!   waiter:  write (unmask, after a ring) ── [poll, with a bound] ── read        peer: ioctl (notify)
//! ```
//!
//! **Several ports** make that write rare: it opens all of them at once. Both sides count the waits, and the ring for wait N goes
//! through port `1 + N % (ports - 1)`. That one and the first are open whenever their waiter waits; the others may be masked. The
//! first is for what belongs to no wait: that we are there, and that we are gone.

use crate::sys::{self, code, request, told};
use crate::{Domain, Error};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const DEVICE: &str = "/dev/xen/evtchn";

/// As many as a word has bits.
const PORTS_MAX: usize = 32;
const FIRST: usize = 0;

/// Ports of ours, for one peer. The descriptor can be used for nothing but this peer, unless that is dom0.
#[derive(Debug)]
pub struct EventChannel {
    device: OwnedFd,
    ports: Vec<u32>,
    /// A bit for each.
    masked: AtomicU32,
}

impl EventChannel {
    /// A port that `peer` alone may connect to.
    pub fn offer(peer: Domain) -> Result<Self, Error> {
        Self::offer_several(peer, 1)
    }

    /// The same with so many ports, up to 32.
    pub fn offer_several(peer: Domain, count: usize) -> Result<Self, Error> {
        // struct ioctl_evtchn_bind_unbound_port: remote_domain.
        let bind = (code(b'E', 2, 4), u64::from(peer));
        Self::bound(peer, (0..count).map(|_| bind))
    }

    /// Connects to a port that `peer` offers us.
    pub fn accept(peer: Domain, port: u32) -> Result<Self, Error> {
        Self::accept_several(peer, &[port])
    }

    /// Connects to all ports that `peer` offers us, in their order.
    pub fn accept_several(peer: Domain, ports: &[u32]) -> Result<Self, Error> {
        // struct ioctl_evtchn_bind_interdomain: remote_domain, remote_port.
        let bind = |port: &u32| (code(b'E', 1, 8), u64::from(peer) | u64::from(*port) << 32);
        Self::bound(peer, ports.iter().map(bind))
    }

    fn bound(
        peer: Domain,
        binds: impl ExactSizeIterator<Item = (rustix::ioctl::Opcode, u64)>,
    ) -> Result<Self, Error> {
        if !(1..=PORTS_MAX).contains(&binds.len()) {
            return Err(Error::Malformed);
        }
        let device = sys::open(DEVICE, OFlags::RDWR)?;
        let bind = |(code_of_bind, word)| {
            // SAFETY: one word holds either structure.
            let port = unsafe { request(&device, code_of_bind, &mut [word]) };
            Ok(port.map_err(told(DEVICE))? as u32)
        };
        let ports = binds.map(bind).collect::<Result<Vec<u32>, Error>>()?;
        // Who is handed the descriptor can use it for this peer alone. The kernel does not do this for dom0.
        if peer != 0 {
            // SAFETY: struct ioctl_evtchn_restrict_domid: domid (2 bytes).
            unsafe { request(&device, code(b'E', 6, 2), &mut [u64::from(peer)]) }
                .map_err(told(DEVICE))?;
        }
        Ok(Self {
            device,
            ports,
            masked: AtomicU32::new(0),
        })
    }

    /// The first one's number in this guest, which the peer needs to connect to one that was offered.
    pub fn port(&self) -> u32 {
        self.ports[FIRST]
    }

    /// All of them.
    pub fn ports(&self) -> &[u32] {
        &self.ports
    }

    /// For an event loop: readable once the peer has rung. [`EventChannel::wait`] follows.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// The same, given away to a process that does not wait in it.
    pub fn into_descriptor(self) -> Result<OwnedFd, Error> {
        self.unblock()?;
        Ok(self.device)
    }

    /// From now on [`EventChannel::take`] returns at once.
    pub fn unblock(&self) -> Result<(), Error> {
        rustix::fs::fcntl_setfl(&self.device, OFlags::RDWR | OFlags::NONBLOCK).map_err(told(DEVICE))
    }

    /// For an event loop, of one that does not block: takes a ring that came, and lets rings through again.
    pub fn take(&self) -> Result<(), Error> {
        match self.read() {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(told(DEVICE)(error)),
        }
        self.open_again()
    }

    /// Rings the peer, whatever it waits for.
    pub fn ring(&self) -> Result<(), Error> {
        self.ring_through(FIRST)
    }

    /// Rings the peer in its wait `number`.
    pub fn ring_in(&self, number: u32) -> Result<(), Error> {
        self.ring_through(self.port_in(number))
    }

    fn ring_through(&self, at: usize) -> Result<(), Error> {
        let port = u64::from(self.ports[at]);
        // SAFETY: struct ioctl_evtchn_notify: port (4 bytes).
        unsafe { request(&self.device, code(b'E', 4, 4), &mut [port]) }
            .map(drop)
            .map_err(told(DEVICE))
    }

    /// Which port is rung in wait `number`.
    fn port_in(&self, number: u32) -> usize {
        match self.ports.len() {
            1 => FIRST,
            count => 1 + number as usize % (count - 1),
        }
    }

    /// Waits until the peer has rung since the last wait; false when the time is over. Without a bound
    /// it is a system call less.
    pub fn wait(&self, patience: Option<Duration>) -> Result<bool, Error> {
        self.open_again()?;
        self.wait_open(patience)
    }

    /// The same in wait `number`, in which the peer rings by [`EventChannel::ring_in`].
    pub fn wait_in(&self, number: u32, patience: Option<Duration>) -> Result<bool, Error> {
        self.open(1 << FIRST | 1 << self.port_in(number))?;
        self.wait_open(patience)
    }

    fn wait_open(&self, patience: Option<Duration>) -> Result<bool, Error> {
        if patience.is_some() {
            let ready = sys::readable(&self.device, patience);
            if !ready.map_err(|error| Error::Device(DEVICE, error))? {
                return Ok(false);
            }
        }
        loop {
            match self.read() {
                Err(Errno::INTR) => {}
                read => return read.map(|()| true).map_err(told(DEVICE)),
            }
        }
    }

    /// Takes rings that came.
    fn read(&self) -> Result<(), Errno> {
        let mut rung = [0; PORTS_MAX * size_of::<u32>()];
        let count = rustix::io::read(&self.device, &mut rung[..size_of_val(&self.ports[..])])?;
        let (rung, _) = rung[..count].as_chunks();
        for port in rung.iter().map(|bytes| u32::from_ne_bytes(*bytes)) {
            if let Some(at) = self.ports.iter().position(|own| *own == port) {
                self.masked.fetch_or(1 << at, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Lets rings through again after some were taken. An event loop does this before it waits.
    pub fn open_again(&self) -> Result<(), Error> {
        self.open(u32::MAX)
    }

    /// Opens all masked ports, if one of the `needed` is.
    fn open(&self, needed: u32) -> Result<(), Error> {
        if self.masked.load(Ordering::Relaxed) & needed == 0 {
            return Ok(());
        }
        let masked = self.masked.swap(0, Ordering::Relaxed);
        let mut bytes = [0; PORTS_MAX * size_of::<u32>()];
        let mut length = 0;
        for (at, port) in self.ports.iter().enumerate() {
            if masked >> at & 1 != 0 {
                bytes[length..][..size_of::<u32>()].copy_from_slice(&port.to_ne_bytes());
                length += size_of::<u32>();
            }
        }
        rustix::io::write(&self.device, &bytes[..length]).map_err(told(DEVICE))?;
        Ok(())
    }
}
