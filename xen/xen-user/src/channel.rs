//! A channel between two guests: `fordway_ring` each way over two regions, with a doorbell.
//!
//! It has no kernel path beneath, so it can only be on its rings or over. An error of sending or receiving ends it for good: how much
//! had gone is not told, and a peer that has broken the protocol once has no channel any more.

use crate::doorbell::DOOR;
use crate::{Doorbell, Error, OwnRegion, PeerRegion};
use fordway_abi::shm::{SEGMENT_LOG2_MAX, tx_state};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Entered, Geometry, Producer};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

const SLOT: usize = 0;
/// As the shim publishes long writes.
const PIECE_BYTES: usize = 64 * 1024;

/// One side of it. Sending and receiving wait.
#[derive(Debug)]
pub struct Channel {
    producer: Producer<Geometry>,
    consumer: Consumer<Geometry>,
    copier: Copier,
    own: OwnRegion,
    peer: PeerRegion,
    doorbell: Doorbell,
    patience: Option<Duration>,
    is_over: Cell<bool>,
}

impl Channel {
    /// Over a region of each side. A peer that is silent for `patience` while it is waited for is given up.
    pub fn new(
        own: OwnRegion,
        peer: PeerRegion,
        doorbell: Doorbell,
        patience: Option<Duration>,
    ) -> Result<Self, Error> {
        let port = doorbell.channel().port();
        own.tell_end(port)?;
        peer.mapped().at_end(port)?;
        // SAFETY: both regions are mapped as long as the channel lives, and are as large as they say.
        let (producer, consumer) = unsafe {
            let (mine, theirs) = (own.endpoint(SLOT), peer.endpoint(SLOT));
            (
                Producer::new(mine, own.base(), theirs).within(own.geometry()),
                Consumer::new(mine, theirs, peer.base()).within(peer.geometry()),
            )
        };
        consumer.get_ready();
        // It may wait for that.
        doorbell.channel().ring()?;
        Ok(Self {
            producer,
            consumer,
            copier: Copier::detect(),
            own,
            peer,
            doorbell,
            patience,
            is_over: Cell::new(false),
        })
    }

    /// With another patience.
    pub fn with_patience(self, patience: Option<Duration>) -> Self {
        Self { patience, ..self }
    }

    /// With vectors no wider than these.
    pub fn with_copier(self, copier: Copier) -> Self {
        Self { copier, ..self }
    }

    /// It is over, which the peer is told as if our region were gone; that may serve another one ([`OwnRegion::clear`]).
    pub fn into_own(self) -> OwnRegion {
        self.own.end();
        let _ = self.doorbell.channel().ring();
        self.own
    }

    /// Our region.
    pub fn own(&self) -> &OwnRegion {
        &self.own
    }

    /// The peer's region.
    pub fn peer(&self) -> &PeerRegion {
        &self.peer
    }

    /// Capacity of the ring to the peer, 0 before its first byte.
    pub fn capacity_bytes(&self) -> usize {
        match self.producer.state() {
            tx_state::KERNEL => 0,
            _ => self.producer.capacity_bytes(),
        }
    }

    /// Goes on to a ring of so many bytes, a power of two; false before the first byte, and where the region has no room for it.
    pub fn grow_to(&self, bytes: usize) -> bool {
        bytes.is_power_of_two()
            && (1..bytes).contains(&self.capacity_bytes())
            && bytes <= 1 << SEGMENT_LOG2_MAX
            && self.producer.grow_to(bytes.trailing_zeros())
    }

    /// Hands over all of `bytes`, as there is room.
    pub fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        self.unless_over(|| self.send_all(bytes))
    }

    /// Fills `buffer`.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<(), Error> {
        self.unless_over(|| self.receive_all(buffer))
    }

    fn unless_over(&self, act: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.is_over.get() {
            return Err(Error::PeerGone);
        }
        let done = act();
        self.is_over.set(done.is_err());
        done
    }

    fn send_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        if self.producer.state() == tx_state::KERNEL {
            self.enter()?;
        }
        while !bytes.is_empty() {
            let wanted = bytes.len().min(PIECE_BYTES);
            let mut room = self.producer.room_bytes(wanted)?;
            if room < wanted {
                room = self.more_room(room, wanted, bytes.len())?;
            }
            let count = room.min(wanted);
            let tail = self.producer.tail();
            // SAFETY: within `bytes`, and within the room.
            unsafe {
                let from = bytes.as_ptr();
                self.producer
                    .write(&self.copier, Kernel::Plain, tail, from, count);
            }
            self.producer.publish(count);
            // Whatever it sleeps for: it has no other ring at this door. Had it to say that it wants bytes, the
            // publication would be dated (`rx_doors`), and Xen may trap each look at the clock.
            self.knock(DOOR)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    fn receive_all(&self, buffer: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < buffer.len() {
            let mut fill = self.consumer.fill_bytes()?;
            if fill == 0 {
                fill = self.wait_for_bytes()?;
            }
            let count = fill.min((buffer.len() - done) as u64) as usize;
            let target = buffer[done..].as_mut_ptr();
            // SAFETY: within `buffer`.
            let count = unsafe {
                self.consumer
                    .peek(&self.copier, Kernel::Plain, 0, target, count)
            }?;
            if self.consumer.take(count)? {
                self.knock(self.consumer.peer_waits())?;
            }
            done += count;
        }
        Ok(())
    }

    /// For an event loop, of which [`Channel::descriptor`] was readable, and once in the beginning: the peer rings from now
    /// on. What there is to receive and to send is looked at afterwards.
    pub fn stand_by(&self) -> Result<(), Error> {
        self.doorbell.stand_by(self.own.wait_page())
    }

    /// Readable once the peer has rung.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.doorbell.channel().descriptor()
    }

    /// Receives what there is, 0 if nothing is.
    pub fn try_receive(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut count = 0;
        self.unless_over(|| {
            // In this order: what it wrote before its end is there once the end shows.
            let is_alive = self.peer.is_alive();
            match self.consumer.fill_bytes()? {
                0 if !is_alive => return Err(Error::PeerGone),
                0 => return Ok(()),
                fill => count = fill.min(buffer.len() as u64) as usize,
            }
            self.receive_all(&mut buffer[..count])
        })?;
        Ok(count)
    }

    /// Hands over as many of `bytes` as there is room for. If that is not all, the peer rings when there is more.
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize, Error> {
        let mut count = 0;
        self.unless_over(|| {
            if self.producer.state() == tx_state::KERNEL {
                match self.producer.enter(|| Some(0)) {
                    Entered::Yes => {}
                    Entered::NotYet => return Ok(()),
                    Entered::Never | Entered::NoMemory => return Err(Error::Malformed),
                }
            }
            let doors = &self.own.endpoint(SLOT).wait.tx_doors;
            doors.fetch_or(DOOR, Ordering::SeqCst);
            count = self.producer.room_bytes(bytes.len())?.min(bytes.len());
            if count < bytes.len() {
                // Asked for before the last look.
                self.producer.ask_for_room();
                fence(Ordering::SeqCst);
                count = self.producer.room_bytes(bytes.len())?.min(bytes.len());
            }
            self.send_all(&bytes[..count])
        })?;
        Ok(count)
    }

    /// Waits until the peer has ended or taken its region back; false if it is silent for longer than the patience.
    pub fn wait_for_end(&self) -> Result<bool, Error> {
        match self.sleep_until(|| Ok(None::<()>)) {
            Err(Error::PeerGone) => Ok(true),
            other => other.map(|_| false),
        }
    }

    /// Room in a ring that has less than `wanted` of `all` bytes: it grows, or there is some in a while.
    #[cold]
    fn more_room(&self, mut room: usize, wanted: usize, all: usize) -> Result<usize, Error> {
        loop {
            if self.producer.grow(all) {
                room = self.producer.room_bytes(wanted)?;
            }
            if room != 0 {
                return Ok(room);
            }
            self.wait_for_room()?;
            room = self.producer.room_bytes(wanted)?;
            if room >= wanted {
                return Ok(room);
            }
        }
    }

    /// Puts our direction onto its ring, which the peer has to be ready for.
    #[cold]
    fn enter(&self) -> Result<(), Error> {
        let entered = self.sleep_until(|| match self.producer.enter(|| Some(0)) {
            Entered::Yes => Ok(Some(())),
            Entered::NotYet => Ok(None),
            Entered::Never | Entered::NoMemory => Err(Error::Malformed),
        });
        entered?.ok_or(Error::PeerGone)
    }

    #[cold]
    fn wait_for_room(&self) -> Result<(), Error> {
        let doors = &self.own.endpoint(SLOT).wait.tx_doors;
        self.producer.ask_for_room();
        doors.fetch_or(DOOR, Ordering::SeqCst);
        let room = self.sleep_until(|| {
            let room = self.producer.room_bytes(PIECE_BYTES)?;
            Ok((room != 0).then_some(()))
        });
        doors.fetch_and(!DOOR, Ordering::SeqCst);
        room?.ok_or(Error::PeerGone)
    }

    #[cold]
    fn wait_for_bytes(&self) -> Result<u64, Error> {
        let fill = self.sleep_until(|| {
            let fill = self.consumer.fill_bytes()?;
            Ok((fill != 0).then_some(fill))
        });
        fill?.ok_or(Error::PeerGone)
    }

    /// As [`Doorbell::sleep_until`]; what the peer left is found before its end.
    fn sleep_until<T>(
        &self,
        mut look: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.doorbell
            .sleep_until(self.own.wait_page(), self.patience, || {
                // In this order: what it wrote before its end is there once the end shows.
                let is_alive = self.peer.is_alive();
                match look()? {
                    None if !is_alive => Err(Error::PeerGone),
                    found => Ok(found),
                }
            })
    }

    fn knock(&self, wanted: u64) -> Result<(), Error> {
        // SAFETY: mapped as long as the channel lives.
        unsafe { self.doorbell.knock(self.peer.wait_page(), wanted) }
    }
}
