//! Path MTUs (RFC 1191, RFC 8201): how large a packet may be on its way to an address, where a
//! router has said that it takes less than our link.
//!
//! An entry is made by an ICMP error, and only after whoever sent the quoted packet has known it
//! again (RFC 5927 section 7): TCP by a sequence number in flight, UDP by its socket. It can only
//! shrink, never below [`FLOOR_V4`] or [`FLOOR_V6`], and is forgotten after ten minutes, so that
//! a better way is found again (Linux: `ip_rt_mtu_expires`). The table is bounded; a new entry
//! takes the place of the one that would be forgotten next.
//!
//! Who asks: UDP and ping for each packet (they cut it), TCP when a connection begins.

use core::net::IpAddr;

use hashbrown::HashMap;

use crate::hash::Keyed;
use crate::stack::Stack;
use crate::{Micros, SECOND_US};

const AGE_US: Micros = 600 * SECOND_US;
/// Linux: `min_pmtu`. Routers that name no size get it, too.
const FLOOR_V4: usize = 552;
/// Every link of IPv6 takes this much (RFC 8200 section 5).
pub(crate) const FLOOR_V6: usize = 1280;

#[derive(Debug)]
struct Entry {
    mtu_bytes: usize,
    until: Micros,
}

#[derive(Debug)]
pub(crate) struct Paths {
    map: HashMap<IpAddr, Entry, Keyed>,
    entries_max: usize,
}

impl Paths {
    pub(crate) fn new(entries_max: usize, seed: u64) -> Paths {
        Paths {
            map: HashMap::with_hasher(Keyed(seed)),
            entries_max: entries_max.max(1),
        }
    }

    /// `None` if nothing is known, or no longer.
    fn get(&self, address: &IpAddr, now: Micros) -> Option<usize> {
        if self.map.is_empty() {
            return None;
        }
        let entry = self.map.get(address)?;
        (now < entry.until).then_some(entry.mtu_bytes)
    }

    fn put(&mut self, address: IpAddr, mtu_bytes: usize, now: Micros) {
        if self.map.len() >= self.entries_max && !self.map.contains_key(&address) {
            let next = self.map.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(gone) = next.map(|(address, _)| *address) {
                self.map.remove(&gone);
            }
        }
        let until = now + AGE_US;
        self.map.insert(address, Entry { mtu_bytes, until });
    }
}

impl Stack {
    /// The largest IP packet that may go to `dst` in one piece.
    pub fn path_mtu(&self, dst: &IpAddr) -> usize {
        let link = self.link_mtu(dst);
        #[cfg(feature = "icmp")]
        let link = self
            .paths
            .get(dst, self.now)
            .map_or(link, |path| path.min(link));
        link
    }

    /// Paths of which a router has said something.
    #[cfg(feature = "icmp")]
    pub fn path_count(&self) -> usize {
        self.paths.map.len()
    }

    /// A router takes no more than this on the way to `dst`. For who has seen that the packet
    /// it quotes was ours.
    #[cfg(feature = "icmp")]
    pub(crate) fn learn_path_mtu(&mut self, dst: IpAddr, mtu_bytes: usize) {
        let floor = if dst.is_ipv4() { FLOOR_V4 } else { FLOOR_V6 };
        let mtu_bytes = mtu_bytes.max(floor);
        if mtu_bytes < self.path_mtu(&dst) {
            self.paths.put(dst, mtu_bytes, self.now);
        }
    }
}
