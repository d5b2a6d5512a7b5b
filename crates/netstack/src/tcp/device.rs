//! The device that smoltcp sees: one packet in, at most one out, written where it is to go.

use core::num::NonZeroUsize;

use smoltcp::phy::{self, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::config::Link;
use crate::ip::gso_bytes_max;

/// smoltcp is told of a link that takes everything: the true limit is the MSS that each side
/// has named in its SYN, which we write.
pub(super) const MTU: usize = 65_535;

/// Largest IP packet that smoltcp may write for us to hand over or to cut.
pub(super) fn segment_bytes_max(link: &Link) -> usize {
    gso_bytes_max(&link.offloads)
}

pub(super) struct OneShot<'a> {
    arriving: Option<&'a [u8]>,
    room: &'a mut [u8],
    segment_bytes_max: usize,
    /// How much was written into the room.
    pub len_bytes: usize,
}

impl<'a> OneShot<'a> {
    pub(super) fn new(
        arriving: Option<&'a [u8]>,
        room: &'a mut [u8],
        segment_bytes_max: usize,
    ) -> OneShot<'a> {
        OneShot {
            arriving,
            room,
            segment_bytes_max,
            len_bytes: 0,
        }
    }
}

pub(super) struct Arriving<'a>(&'a [u8]);

pub(super) struct Room<'a> {
    room: &'a mut [u8],
    len_bytes: &'a mut usize,
}

impl Device for OneShot<'_> {
    type RxToken<'t>
        = Arriving<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Room<'t>
    where
        Self: 't;

    fn receive(&mut self, _now: Instant) -> Option<(Arriving<'_>, Room<'_>)> {
        let arriving = self.arriving.take()?;
        let room = Room {
            room: self.room,
            len_bytes: &mut self.len_bytes,
        };
        Some((Arriving(arriving), room))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Room<'_>> {
        (self.len_bytes == 0).then_some(Room {
            room: self.room,
            len_bytes: &mut self.len_bytes,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // Checked before, filled in behind.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(self.segment_bytes_max);
        capabilities.segmentation.tcpv6 = NonZeroUsize::new(self.segment_bytes_max);
        capabilities
    }
}

impl phy::RxToken for Arriving<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        match self.room.get_mut(..len) {
            Some(room) => {
                *self.len_bytes = len;
                f(room)
            }
            // Replies of a flow are headers only, so that this is for smoltcp's faults: lost.
            None => f(&mut alloc::vec![0; len]),
        }
    }
}
