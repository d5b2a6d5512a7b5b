//! One event channel: /dev/xen/evtchn, include/uapi/xen/evtchn.h.
//!
//! A ring that came masks the port until it is written back to the device. So one that is not waited for costs one
//! interrupt, and another one later, however often the peer rings, and the port is opened again just before the next wait: a ring that came
//! meanwhile is not lost but ends it at once.
//!
//! ```text
//!   waiter:  write (unmask, after a ring) ── [poll, with a bound] ── read        peer: ioctl (notify)
//! ```

use crate::sys::{self, code, request, told};
use crate::{Domain, Error};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DEVICE: &str = "/dev/xen/evtchn";

/// A port of ours, for one peer. The descriptor can be used for nothing but this peer, unless that is dom0.
#[derive(Debug)]
pub struct EventChannel {
    device: OwnedFd,
    port: u32,
    masked: AtomicBool,
}

impl EventChannel {
    /// A port that `peer` alone may connect to.
    pub fn offer(peer: Domain) -> Result<Self, Error> {
        // struct ioctl_evtchn_bind_unbound_port: remote_domain.
        Self::bound(peer, code(b'E', 2, 4), u64::from(peer))
    }

    /// Connects to a port that `peer` offers us.
    pub fn accept(peer: Domain, port: u32) -> Result<Self, Error> {
        // struct ioctl_evtchn_bind_interdomain: remote_domain, remote_port.
        Self::bound(
            peer,
            code(b'E', 1, 8),
            u64::from(peer) | u64::from(port) << 32,
        )
    }

    fn bound(peer: Domain, code_of_bind: rustix::ioctl::Opcode, word: u64) -> Result<Self, Error> {
        let device = sys::open(DEVICE, OFlags::RDWR)?;
        // SAFETY: one word holds either structure.
        let port = unsafe { request(&device, code_of_bind, &mut [word]) }.map_err(told(DEVICE))?;
        // Who is handed the descriptor can use it for this peer alone. The kernel does not do this for dom0.
        if peer != 0 {
            // SAFETY: struct ioctl_evtchn_restrict_domid: domid (2 bytes).
            unsafe { request(&device, code(b'E', 6, 2), &mut [u64::from(peer)]) }
                .map_err(told(DEVICE))?;
        }
        Ok(Self {
            device,
            port: port as u32,
            masked: AtomicBool::new(false),
        })
    }

    /// Its number in this guest, which the peer needs to connect to one that was offered.
    pub fn port(&self) -> u32 {
        self.port
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
        let mut port = [0; size_of::<u32>()];
        match rustix::io::read(&self.device, &mut port) {
            Ok(_) => self.masked.store(true, Ordering::Relaxed),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(told(DEVICE)(error)),
        }
        self.open_again()
    }

    /// Rings the peer.
    pub fn ring(&self) -> Result<(), Error> {
        // SAFETY: struct ioctl_evtchn_notify: port (4 bytes).
        unsafe { request(&self.device, code(b'E', 4, 4), &mut [u64::from(self.port)]) }
            .map(drop)
            .map_err(told(DEVICE))
    }

    /// Waits until the peer has rung since the last wait; false when the time is over. Without a bound
    /// it is a system call less.
    pub fn wait(&self, patience: Option<Duration>) -> Result<bool, Error> {
        self.open_again()?;
        if patience.is_some() {
            let ready = sys::readable(&self.device, patience);
            if !ready.map_err(|error| Error::Device(DEVICE, error))? {
                return Ok(false);
            }
        }
        let mut port = [0; size_of::<u32>()];
        loop {
            match rustix::io::read(&self.device, &mut port) {
                Err(Errno::INTR) => {}
                read => {
                    read.map_err(told(DEVICE))?;
                    self.masked.store(true, Ordering::Relaxed);
                    return Ok(true);
                }
            }
        }
    }

    /// Lets rings through again after one was taken. An event loop does this before it waits.
    pub fn open_again(&self) -> Result<(), Error> {
        if self.masked.swap(false, Ordering::Relaxed) {
            rustix::io::write(&self.device, &self.port.to_ne_bytes()).map_err(told(DEVICE))?;
        }
        Ok(())
    }
}
