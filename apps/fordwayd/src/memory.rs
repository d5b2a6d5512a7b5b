//! Regions of shared memory that processes handed in: what is kept of them.
//!
//! The descriptor goes on to the peer and is closed; the broker keeps a read-only
//! mapping of the endpoints (never of the ring memory), from which listings read how
//! far each direction is. What stands there is the process's own word: good enough to
//! be shown, never used for a decision.

use crate::purses::Purse;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{
    self, ColdLine, ENDPOINT_BYTES, ENDPOINTS_OFFSET, Endpoint, GUEST_HEAD_BYTES, REGION_BYTES,
    RegionHeader, RxLine, SLOT_COUNT, TxLine, TxOwnLine, WaitLine, rx_state, tx_state,
};
use fordway_platform::memfd::{self, NotShared, ReadOnly};
use fordway_registry::{ChannelView, LinkSide};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Header and endpoints: the part of a region that is mapped.
const MAPPED_BYTES: usize = ENDPOINTS_OFFSET + SLOT_COUNT * ENDPOINT_BYTES;
const _: () = assert!(MAPPED_BYTES <= shm::ARENA_OFFSET);

/// The memory of one side of a link.
#[derive(Debug)]
struct SideMemory {
    endpoints: ReadOnly,
    /// Until it is handed to the peer.
    region: Option<Arc<OwnedFd>>,
    /// Out of which its arena was paid.
    purse: Option<Arc<Purse>>,
}

impl SideMemory {
    /// Counts what its arena has taken in its domain's purse, or no longer.
    fn settle(&self, comes: bool) {
        let word = offset_of!(RegionHeader, arena_next);
        let taken = self.endpoints.load_u64(word).unwrap_or(0);
        if let Some(purse) = &self.purse {
            purse.change(taken, comes);
        }
    }
}

/// How far a channel is, by one end's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) ring_bytes_tx: u64,
    pub(crate) ring_bytes_rx: u64,
    /// It sends through the kernel again.
    pub(crate) back: bool,
    /// It takes nothing more from the ring, or soon will.
    pub(crate) stopped: bool,
    /// Why it wants the kernel path.
    pub(crate) left_for: Option<Reason>,
    /// Calls of its program that move data, until it sent by its ring.
    pub(crate) calls: u32,
    /// Datagrams for which its ring had no room.
    pub(crate) lost: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    sides: BTreeMap<LinkSide, SideMemory>,
    /// Those of `sides` whose descriptor is kept.
    regions_held: usize,
}

impl Memory {
    /// Whether a descriptor is a region that may be mapped.
    pub(crate) fn check_region(region: &OwnedFd) -> Result<(), NotShared> {
        memfd::check(region, REGION_BYTES)
    }

    /// Maps the endpoints of a checked region. `hand_over`: keep it for the peer.
    pub(crate) fn insert(
        &mut self,
        side: LinkSide,
        region: OwnedFd,
        purse: Option<Arc<Purse>>,
        hand_over: bool,
    ) {
        match ReadOnly::map(&region, MAPPED_BYTES) {
            Ok(endpoints) => {
                let region = hand_over.then(|| Arc::new(region));
                self.regions_held += usize::from(hand_over);
                let memory = SideMemory {
                    endpoints,
                    region,
                    purse,
                };
                memory.settle(true);
                self.sides.insert(side, memory);
            }
            // Listings will lack its figures; the channel does not suffer.
            Err(error) => tracing::warn!("mapping a region: {error}"),
        }
    }

    /// Maps the endpoints of a region that is granted to another guest.
    pub(crate) fn insert_of_guest(
        &mut self,
        side: LinkSide,
        region: &OwnedFd,
        purse: Option<Arc<Purse>>,
    ) {
        match ReadOnly::map(region, GUEST_HEAD_BYTES) {
            Ok(endpoints) => {
                let memory = SideMemory {
                    endpoints,
                    region: None,
                    purse,
                };
                memory.settle(true);
                self.sides.insert(side, memory);
            }
            Err(error) => tracing::warn!("mapping a region: {error}"),
        }
    }

    /// The region of a side, once.
    pub(crate) fn take_region(&mut self, side: LinkSide) -> Option<Arc<OwnedFd>> {
        let region = self.sides.get_mut(&side)?.region.take()?;
        self.regions_held -= 1;
        Some(region)
    }

    /// Descriptors that wait for the other side of their link.
    pub(crate) fn regions_held(&self) -> usize {
        self.regions_held
    }

    pub(crate) fn remove(&mut self, side: LinkSide) {
        let _ = self.take_region(side);
        if let Some(memory) = self.sides.remove(&side) {
            memory.settle(false);
        }
    }

    /// How far a channel is; `None` if its end has not set up its endpoint yet.
    pub(crate) fn progress(&self, channel: &ChannelView) -> Option<Progress> {
        let endpoints = &self.sides.get(&channel.own)?.endpoints;
        let slot = channel.slot as usize;
        if slot >= SLOT_COUNT {
            return None;
        }
        let base = ENDPOINTS_OFFSET + slot * ENDPOINT_BYTES;
        let generation = offset_of!(Endpoint, cold) + offset_of!(ColdLine, generation);
        if endpoints.load_u32(base + generation)? != channel.generation {
            return None;
        }
        let tail = offset_of!(Endpoint, tx) + offset_of!(TxLine, tail);
        let state = offset_of!(Endpoint, cold) + offset_of!(ColdLine, tx_state);
        let head = offset_of!(Endpoint, rx) + offset_of!(RxLine, head);
        let calls = offset_of!(Endpoint, tx_own) + offset_of!(TxOwnLine, calls);
        let lost = offset_of!(Endpoint, tx_own) + offset_of!(TxOwnLine, lost);
        let receives = offset_of!(Endpoint, wait) + offset_of!(WaitLine, rx_state);
        let left_for = offset_of!(Endpoint, cold) + offset_of!(ColdLine, left_for);
        let (sends, receives) = (
            endpoints.load_u32(base + state)?,
            endpoints.load_u32(base + receives)?,
        );
        Some(Progress {
            ring_bytes_tx: endpoints.load_u64(base + tail)?,
            ring_bytes_rx: endpoints.load_u64(base + head)?,
            back: [tx_state::BACK, tx_state::WITHDRAWN].contains(&sends),
            stopped: [rx_state::STOP, rx_state::DRAIN].contains(&receives),
            left_for: Reason::from_u32(endpoints.load_u32(base + left_for)?),
            calls: endpoints.load_u32(base + calls)?,
            lost: endpoints.load_u64(base + lost)?,
        })
    }
}
