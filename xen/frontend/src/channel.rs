//! An event channel whose other end may notify it as often as it likes.
//!
//! An honest backend notifies at most once for each response. Each event costs a credit, each
//! response gives one; a channel that is far overdrawn is masked, its rings are looked at by
//! the clock until the mask is lifted, and each storm that follows is masked for longer
//! (XSA-391: a storm costs nothing but that).

use crate::{Guest, Port};

const CREDIT_MAX: i32 = 512;
const DEBT_MAX: i32 = 64;
const MASK_NS_MIN: u64 = 1_000_000;
const MASK_NS_MAX: u64 = 64_000_000;

pub struct Channel {
    pub port: Port,
    credit: i32,
    mask_ns: u64,
    /// While a storm is being sat out.
    pub masked_until: Option<u64>,
}

impl Channel {
    pub fn new(port: Port) -> Self {
        Self {
            port,
            credit: 0,
            mask_ns: MASK_NS_MIN,
            masked_until: None,
        }
    }

    /// Takes an event that has come, and looks after the mask. Whether an event has come, and whether
    /// a storm begins.
    pub fn settle<G: Guest>(&mut self, guest: &mut G, now_ns: u64, responses: u32) -> (bool, bool) {
        let came = guest.take_event(self.port);
        if let Some(until) = self.masked_until {
            if now_ns >= until {
                self.masked_until = None;
                self.credit = 0;
                guest.port_mask(self.port, false);
            }
            return (false, false);
        }
        self.credit = CREDIT_MAX.min(self.credit + responses as i32 - i32::from(came));
        if self.credit == CREDIT_MAX {
            self.mask_ns = MASK_NS_MIN; // it has behaved for a while
        }
        let is_storm = self.credit < -DEBT_MAX;
        if is_storm {
            guest.port_mask(self.port, true);
            self.masked_until = Some(now_ns.saturating_add(self.mask_ns));
            self.mask_ns = (self.mask_ns * 2).min(MASK_NS_MAX);
        }
        (came, is_storm)
    }
}
