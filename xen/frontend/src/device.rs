//! A device's two directories in XenStore, ours and the backend's, and where both sides stand.

use crate::{Guest, State};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub struct Device {
    front: String,
    /// Empty when there is no backend.
    back: String,
    /// The backend's.
    pub domain: u16,
    pub ours: State,
    /// As last seen.
    pub theirs: State,
    /// What we told for this connection.
    told: Vec<String>,
}

impl Device {
    /// Nothing has happened yet but that the device's place is watched.
    pub fn new<G: Guest>(guest: &mut G, front: &str) -> Self {
        guest.watch(&format!("{front}/backend"));
        Self {
            front: front.to_string(),
            back: String::new(),
            domain: 0,
            ours: State::Unknown,
            theirs: State::Unknown,
            told: Vec::new(),
        }
    }

    pub fn is_plugged(&self) -> bool {
        !self.back.is_empty()
    }

    /// Whether another backend has the device now, or none: it may have been unplugged, and
    /// plugged again. Ours is Unknown then.
    pub fn has_moved<G: Guest>(&mut self, guest: &mut G) -> bool {
        let back = self.read(guest, "backend").unwrap_or_default();
        let domain = number(self.read(guest, "backend-id")).unwrap_or(0) as u16;
        if back == self.back && (domain == self.domain || back.is_empty()) {
            return false;
        }
        if self.is_plugged() {
            guest.unwatch(&format!("{}/state", self.back));
        }
        if !back.is_empty() {
            guest.watch(&format!("{back}/state"));
        }
        (self.back, self.domain) = (back, domain);
        self.ours = State::Unknown;
        true
    }

    /// After a resume: XenStore has forgotten our watches.
    pub fn forget<G: Guest>(&mut self, guest: &mut G) {
        self.back.clear();
        guest.watch(&format!("{}/backend", self.front));
    }

    /// Looks where the backend stands.
    pub fn look<G: Guest>(&mut self, guest: &mut G) {
        self.theirs = State::from_code(self.offer(guest, "state"));
    }

    /// Takes a state and tells it, unless the device is gone: a write would bring back a
    /// directory that the toolstack has removed.
    pub fn enter<G: Guest>(&mut self, guest: &mut G, state: State) {
        self.ours = state;
        if self.read(guest, "backend").is_some() {
            let code = (state as u32).to_string();
            guest.xs_write(&format!("{}/state", self.front), &code);
        }
    }

    /// A key of our directory.
    pub fn read<G: Guest>(&self, guest: &mut G, name: &str) -> Option<String> {
        guest.xs_read(&format!("{}/{name}", self.front))
    }

    /// A number that the backend tells.
    pub fn offer<G: Guest>(&self, guest: &mut G, name: &str) -> Option<u32> {
        number(guest.xs_read(&format!("{}/{name}", self.back)))
    }

    /// Tells the backend these and no others: what an earlier connection told would mislead it.
    pub fn tell<G: Guest>(&mut self, guest: &mut G, keys: Vec<(String, u32)>) -> bool {
        for old in core::mem::take(&mut self.told) {
            guest.xs_remove(&format!("{}/{old}", self.front));
        }
        keys.into_iter().all(|(name, value)| {
            let path = format!("{}/{name}", self.front);
            self.told.push(name);
            guest.xs_write(&path, &value.to_string())
        })
    }
}

fn number(value: Option<String>) -> Option<u32> {
    value?.trim().parse().ok()
}
