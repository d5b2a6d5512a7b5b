//! Who on the link has which Ethernet address: ARP (RFC 826) for IPv4, neighbor discovery
//! (RFC 4861) for IPv6. Only the table and its timers; `ip` writes the messages.
//!
//! ```text
//!   wanted ──► Asked ──answer──► Known ──30 s, still used──► Probed ──answer──► Known
//!                └─3 x 1 s without──► gone, waiters told        └─3 x 1 s without──► gone
//! ```
//! An entry is made when we want to send, or when a neighbor asks for us (it is about to speak).
//! Nobody else's word makes one. The table is bounded; a new entry takes the place of the one
//! that has been unused longest. So is the number of entries asked for at one time, and what
//! waits for each.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use hashbrown::HashMap;

use crate::hash::Keyed;
use crate::outbox::Waiting;
use crate::{Mac, Micros, SECOND_US};

const FRESH_US: Micros = 30 * SECOND_US;
const RETRY_US: Micros = SECOND_US;
const TRIES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Known,
    Probed,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    mac: Mac,
    state: State,
    /// Of the last proof that it is there.
    proof_at: Micros,
    used_at: Micros,
    tries: u8,
    retry_at: Micros,
    packets: VecDeque<Waiting>,
    /// Flows that wait for the address: index and generation.
    flows: Vec<(u32, u32)>,
}

/// A request that is to be sent for an address: to all, or to the one that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub address: IpAddr,
    pub to: Option<Mac>,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Known(Mac),
    /// It is being asked for.
    Wait,
    /// Too many are being asked for.
    Refused,
}

/// What became of those who waited.
#[derive(Debug)]
pub(crate) struct Released {
    pub address: IpAddr,
    pub packets: VecDeque<Waiting>,
    pub flows: Vec<(u32, u32)>,
    /// Absent if nobody answered.
    pub mac: Option<Mac>,
}

#[derive(Debug)]
pub(crate) struct Neighbors {
    map: HashMap<IpAddr, u32, Keyed>,
    entries: Vec<Entry>,
    entries_max: usize,
    pending_max: usize,
    packets_max: usize,
    /// Addresses in Asked or Probed, few.
    timed: Vec<IpAddr>,
    next_at: Micros,
    /// Requests that wait to be written.
    pub requests: Vec<Request>,
    /// Grows with every change, so that flows may keep an address until then.
    pub epoch: u32,
}

impl Neighbors {
    pub(crate) fn new(
        entries_max: usize,
        pending_max: usize,
        packets_max: usize,
        seed: u64,
    ) -> Neighbors {
        Neighbors {
            map: HashMap::with_hasher(Keyed(seed)),
            entries: Vec::new(),
            entries_max: entries_max.max(1),
            pending_max,
            packets_max,
            timed: Vec::new(),
            next_at: Micros::MAX,
            requests: Vec::new(),
            epoch: 1,
        }
    }

    fn entry(&mut self, address: &IpAddr) -> Option<&mut Entry> {
        let slot = *self.map.get(address)? as usize;
        self.entries.get_mut(slot)
    }

    /// For a packet that is to be sent now.
    pub(crate) fn resolve(&mut self, address: IpAddr, now: Micros) -> Answer {
        if let Some(entry) = self.entry(&address) {
            entry.used_at = now;
            match entry.state {
                State::Asked => return Answer::Wait,
                State::Known if now.saturating_sub(entry.proof_at) >= FRESH_US => {
                    let mac = entry.mac;
                    self.ask(address, State::Probed, now);
                    return Answer::Known(mac);
                }
                State::Known | State::Probed => return Answer::Known(entry.mac),
            }
        }
        let pending = self.timed.len();
        if pending >= self.pending_max || !self.insert(address, [0; 6], State::Asked, now) {
            return Answer::Refused;
        }
        self.ask(address, State::Asked, now);
        Answer::Wait
    }

    fn ask(&mut self, address: IpAddr, state: State, now: Micros) {
        let Some(entry) = self.entry(&address) else {
            return;
        };
        entry.state = state;
        entry.tries = 1;
        entry.retry_at = now + RETRY_US;
        let to = (state == State::Probed).then_some(entry.mac);
        self.requests.push(Request { address, to });
        if self.timed.is_empty() {
            self.next_at = Micros::MAX; // of those who have answered
        }
        self.timed.push(address);
        self.next_at = self.next_at.min(now + RETRY_US);
    }

    /// Keeps a packet until its neighbor is known; gives it back if there is no room.
    pub(crate) fn park(&mut self, address: &IpAddr, packet: Waiting) -> Option<Waiting> {
        let packets_max = self.packets_max;
        let Some(entry) = self.entry(address).filter(|e| e.state == State::Asked) else {
            return Some(packet);
        };
        entry.packets.push_back(packet);
        if entry.packets.len() > packets_max {
            return entry.packets.pop_front();
        }
        None
    }

    pub(crate) fn park_flow(&mut self, address: &IpAddr, flow: (u32, u32)) {
        if let Some(entry) = self.entry(address) {
            entry.flows.push(flow);
        }
    }

    /// An upper layer heard from this neighbor in answer to something we sent.
    pub(crate) fn confirm(&mut self, address: &IpAddr, now: Micros) {
        if let Some(entry) = self.entry(address)
            && entry.state != State::Asked
        {
            entry.proof_at = now;
            if entry.state == State::Probed {
                entry.state = State::Known;
                self.timed.retain(|timed| timed != address);
            }
        }
    }

    /// A neighbor said where it is. `is_answer` if we may have asked, else it asked for us.
    pub(crate) fn learn(
        &mut self,
        address: IpAddr,
        mac: Mac,
        is_answer: bool,
        now: Micros,
    ) -> Option<Released> {
        let Some(entry) = self.entry(&address) else {
            if !is_answer {
                self.insert(address, mac, State::Known, now);
            }
            return None;
        };
        let is_new = entry.mac != mac || entry.state == State::Asked;
        entry.mac = mac;
        entry.state = State::Known;
        entry.proof_at = now;
        let released = Released {
            address,
            packets: core::mem::take(&mut entry.packets),
            flows: core::mem::take(&mut entry.flows),
            mac: Some(mac),
        };
        self.timed.retain(|timed| *timed != address);
        if is_new {
            self.epoch = self.epoch.wrapping_add(1);
        }
        Some(released)
    }

    /// False if the table is full of neighbors that are being asked for.
    fn insert(&mut self, address: IpAddr, mac: Mac, state: State, now: Micros) -> bool {
        let entry = Entry {
            address,
            mac,
            state,
            proof_at: now,
            used_at: now,
            tries: 0,
            retry_at: 0,
            packets: VecDeque::new(),
            flows: Vec::new(),
        };
        if self.entries.len() >= self.entries_max {
            let settled = self.entries.iter().filter(|e| e.state == State::Known);
            let Some(oldest) = settled.min_by_key(|e| e.used_at).map(|e| e.address) else {
                return false;
            };
            self.remove(&oldest);
        }
        self.map.insert(address, self.entries.len() as u32);
        self.entries.push(entry);
        true
    }

    fn remove(&mut self, address: &IpAddr) -> Option<Entry> {
        let slot = self.map.remove(address)? as usize;
        let entry = self.entries.swap_remove(slot);
        if let Some(moved) = self.entries.get(slot) {
            self.map.insert(moved.address, slot as u32);
        }
        self.epoch = self.epoch.wrapping_add(1);
        Some(entry)
    }

    #[inline]
    pub(crate) fn next_at(&self) -> Option<Micros> {
        (!self.timed.is_empty()).then_some(self.next_at)
    }

    /// Asks again where it is time; gives those who waited in vain.
    pub(crate) fn advance(&mut self, now: Micros) -> Vec<Released> {
        let mut given_up = Vec::new();
        if self.timed.is_empty() || now < self.next_at {
            return given_up;
        }
        self.next_at = Micros::MAX;
        let timed = core::mem::take(&mut self.timed);
        for address in timed {
            let Some(entry) = self.entry(&address) else {
                continue;
            };
            if now < entry.retry_at {
                let at = entry.retry_at;
                self.next_at = self.next_at.min(at);
                self.timed.push(address);
            } else if entry.tries < TRIES_MAX {
                entry.tries += 1;
                entry.retry_at = now + RETRY_US;
                let at = entry.retry_at;
                let to = (entry.state == State::Probed).then_some(entry.mac);
                self.next_at = self.next_at.min(at);
                self.requests.push(Request { address, to });
                self.timed.push(address);
            } else if let Some(entry) = self.remove(&address) {
                given_up.push(Released {
                    address,
                    packets: entry.packets,
                    flows: entry.flows,
                    mac: None,
                });
            }
        }
        given_up
    }

    /// Own addresses have changed: everything is asked anew.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
