//! The frontend's half of a shared ring, of requests and responses.
//!
//! ```text
//!        rsp_cons        rsp_prod         req_cons        req_prod
//!           |  responses    |   requests     |  requests     |
//!   --------+---------------+----------------+---------------+---------> slots, modulo their number
//!           |  to look at   |  being served  |  not yet seen |   free: slots - (req_prod - rsp_cons)
//! ```
//!
//! We write `req_prod` and `rsp_event`, the backend `rsp_prod` and `req_event`. Who publishes
//! an index and who publishes the mark at which he wants to be woken both put a full fence
//! between their store and their look at the other's word; so at least one of them sees the
//! other, and no wake-up is lost. Our own indices are private: the page holds copies for the
//! backend to read and is never asked what we wrote.

use crate::{Buffer, Guest, Pool};
use core::sync::atomic::{Ordering, fence};
use fordway_xen_abi::netif::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};

/// The backend shows more responses than there were requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

pub struct Ring<G: Guest> {
    pub shared: Buffer<G>,
    slots: u32,
    slot_bytes: usize,
    /// Written, and of these shown to the backend.
    req_prod: u32,
    pushed: u32,
    rsp_cons: u32,
    rsp_event: u32,
}

impl<G: Guest> Ring<G> {
    pub fn new(guest: &mut G, pool: &mut Pool<G>, slots: u32, slot_bytes: usize) -> Option<Self> {
        let shared = pool.take(guest, false)?;
        guest.store32(&shared.page, REQ_EVENT, 1);
        guest.store32(&shared.page, RSP_EVENT, 1);
        Some(Self {
            shared,
            slots,
            slot_bytes,
            req_prod: 0,
            pushed: 0,
            rsp_cons: 0,
            rsp_event: 1,
        })
    }

    pub fn free(&self) -> u32 {
        self.slots - self.in_flight()
    }

    pub fn in_flight(&self) -> u32 {
        self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// Writes the next request; only if a slot is free. Its slot.
    pub fn request(&mut self, guest: &mut G, words: &[u32]) -> usize {
        debug_assert!(self.free() > 0 && words.len() * 4 <= self.slot_bytes);
        let slot = (self.req_prod % self.slots) as usize;
        let at = SLOTS + slot * self.slot_bytes;
        for (index, word) in words.iter().enumerate() {
            guest.store32(&self.shared.page, at + 4 * index, *word);
        }
        self.req_prod = self.req_prod.wrapping_add(1);
        slot
    }

    /// Shows the backend all requests written. True if it wants to be told.
    pub fn push(&mut self, guest: &mut G, suppression: bool) -> bool {
        let fresh = self.req_prod.wrapping_sub(self.pushed);
        if fresh == 0 {
            return false;
        }
        // The requests before their index: pairs with the backend's read barrier.
        fence(Ordering::Release);
        guest.store32(&self.shared.page, REQ_PROD, self.req_prod);
        self.pushed = self.req_prod;
        // Our index before its mark: pairs with the backend's fence between mark and last look.
        fence(Ordering::SeqCst);
        let mark = guest.load32(&self.shared.page, REQ_EVENT);
        !suppression || self.req_prod.wrapping_sub(mark) < fresh
    }

    /// How many responses there are. The index is read once; more answers than questions were
    /// pushed is garbage.
    pub fn responses(&self, guest: &G) -> Result<u32, Garbage> {
        let rsp_prod = guest.load32(&self.shared.page, RSP_PROD);
        // The index before the responses: pairs with the backend's write barrier.
        fence(Ordering::Acquire);
        let count = rsp_prod.wrapping_sub(self.rsp_cons);
        if count > self.pushed.wrapping_sub(self.rsp_cons) {
            return Err(Garbage);
        }
        Ok(count)
    }

    /// Takes the next response's slot: its number and where it lies in the page.
    pub fn response(&mut self) -> (usize, usize) {
        let slot = (self.rsp_cons % self.slots) as usize;
        self.rsp_cons = self.rsp_cons.wrapping_add(1);
        (slot, SLOTS + slot * self.slot_bytes)
    }

    /// Asks for an event at the `ahead`th response from now; with 0 for none: a mark that was
    /// passed long ago. A fence and [`Ring::is_idle`] have to follow.
    pub fn wake_at(&mut self, guest: &mut G, ahead: u32) {
        let behind = self.rsp_cons.wrapping_sub(self.rsp_event);
        if ahead == 0 && (1..1 << 31).contains(&behind) {
            return;
        }
        let mark = self.rsp_cons.wrapping_add(ahead);
        let mark = mark.wrapping_sub(u32::from(ahead == 0));
        if mark != self.rsp_event {
            self.rsp_event = mark;
            guest.store32(&self.shared.page, RSP_EVENT, mark);
        }
    }

    /// Whether still no response is there, after the mark has been shown.
    pub fn is_idle(&self, guest: &G) -> bool {
        guest.load32(&self.shared.page, RSP_PROD) == self.rsp_cons
    }
}
