//! Pages that a backend may use.
//!
//! A page is granted when it is full of zeros and has nothing else on it (XSA-403). It goes back
//! to the kernel when its grant has ended; as long as the backend holds on to it, it lies in a
//! grave and serves nobody (XSA-396).

use crate::{GrantRef, Guest};
use alloc::vec::Vec;

/// Graves looked at in one call.
const VISITS_MAX: usize = 16;

/// A page and its grant.
pub struct Buffer<G: Guest> {
    pub page: G::Page,
    pub grant: GrantRef,
}

/// Where buffers come from and go to.
pub struct Pool<G: Guest> {
    /// The backend's.
    pub domain: u16,
    pub grants_made: u64,
    graves: Vec<Buffer<G>>,
}

impl<G: Guest> Pool<G> {
    pub fn new() -> Self {
        Self {
            domain: 0,
            grants_made: 0,
            graves: Vec::new(),
        }
    }

    /// A fresh page; `None` if there is no memory or no grant left.
    pub fn take(&mut self, guest: &mut G, readonly: bool) -> Option<Buffer<G>> {
        let page = guest.page_new()?;
        let Some(grant) = guest.grant(self.domain, &page, readonly) else {
            guest.page_free(page);
            return None;
        };
        self.grants_made += 1;
        Some(Buffer { page, grant })
    }

    /// The page goes back, at once or when the backend lets go.
    pub fn give_back(&mut self, guest: &mut G, buffer: Buffer<G>) {
        if guest.grant_end(buffer.grant) {
            guest.page_free(buffer.page);
        } else {
            self.graves.push(buffer);
        }
    }

    /// Pages that the backend withholds.
    pub fn withheld(&self) -> usize {
        self.graves.len()
    }

    /// Tries some of them again.
    pub fn visit_graves(&mut self, guest: &mut G) {
        let count = self.graves.len().min(VISITS_MAX);
        let some: Vec<_> = self.graves.drain(..count).collect();
        for buffer in some {
            self.give_back(guest, buffer);
        }
    }
}

impl<G: Guest> Default for Pool<G> {
    fn default() -> Self {
        Self::new()
    }
}
