//! What connections move in a second, from two listings.
//!
//! An end is known again by its socket and its far end. There is a rate only where both listings have counted the
//! same: none of an end that has just come, of a ring that has begun meanwhile, and of the kernel's bytes where
//! one of the listings lacks them (a socket's lock was held).

use fordwayd::admin::Connection;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// Bytes of one end by one way, so far or in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    #[serde(rename = "tx_bytes_per_s")]
    pub tx: u64,
    #[serde(rename = "rx_bytes_per_s")]
    pub rx: u64,
}

impl Moved {
    /// So far, through rings.
    pub fn by_rings(one: &Connection) -> Moved {
        let (tx, rx) = (one.ring_bytes_tx, one.ring_bytes_rx);
        Moved { tx, rx }
    }

    /// So far, through the kernel or the domain's own stack.
    pub fn by_kernel(one: &Connection) -> Moved {
        let (tx, rx) = (one.kernel_bytes_tx, one.kernel_bytes_rx);
        Moved { tx, rx }
    }

    /// Both directions. Programs say what they like of themselves.
    pub fn total(self) -> u64 {
        self.tx.saturating_add(self.rx)
    }

    /// With another end's.
    pub fn plus(self, other: Moved) -> Moved {
        Moved {
            tx: self.tx.saturating_add(other.tx),
            rx: self.rx.saturating_add(other.rx),
        }
    }

    /// In one second, after `before`.
    fn rate(self, before: Moved, seconds: f64) -> Moved {
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
        Moved {
            tx: rate(self.tx, before.tx),
            rx: rate(self.rx, before.rx),
        }
    }
}

/// What an end moves in a second, as far as two listings tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rates {
    pub rings: Option<Moved>,
    /// Or the domain's own stack.
    pub kernel: Option<Moved>,
}

/// By what an end is known again: a UDP socket has many far ends, and a stack numbers its sockets itself.
pub fn key(one: &Connection) -> String {
    let Connection {
        protocol,
        domain,
        cookie,
        local,
        remote,
        ..
    } = one;
    format!("{protocol} {domain} {cookie} {local} {remote}")
}

/// What a listing has counted.
#[derive(Debug)]
pub struct Counted {
    at: Instant,
    ends: HashMap<String, (Option<u64>, Moved, Moved)>,
}

impl Counted {
    /// Of a listing that came at this time.
    pub fn new(at: Instant, connections: &[Connection]) -> Counted {
        let counts = |one: &Connection| (one.channel, Moved::by_rings(one), Moved::by_kernel(one));
        let ends = connections.iter().map(|one| (key(one), counts(one)));
        Counted {
            at,
            ends: ends.collect(),
        }
    }

    /// Seconds from this listing to another.
    pub fn seconds(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.at).as_secs_f64()
    }

    /// What an end of a later listing has moved since.
    pub fn rates(&self, one: &Connection, now: Instant) -> Rates {
        let seconds = self.seconds(now);
        let Some((channel, rings, kernel)) = self.ends.get(&key(one)).filter(|_| seconds > 0.0)
        else {
            return Rates::default();
        };
        let [rings_now, kernel_now] = [Moved::by_rings(one), Moved::by_kernel(one)];
        let is_same_ring = *channel == one.channel;
        let is_counted = (kernel.total() == 0) == (kernel_now.total() == 0);
        Rates {
            rings: is_same_ring.then(|| rings_now.rate(*rings, seconds)),
            kernel: is_counted.then(|| kernel_now.rate(*kernel, seconds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::tests::end;
    use std::time::Duration;

    #[test]
    fn a_rate_is_of_one_second_and_of_what_both_listings_count() {
        let before = end("web", 1000, "fast", None);
        let then = Instant::now();
        let counted = Counted::new(then, std::slice::from_ref(&before));
        let rates = |one: &Connection| counted.rates(one, then + Duration::from_millis(500));
        let mut now = before.clone();
        now.ring_bytes_tx += 30;
        now.ring_bytes_rx += 10;
        let expected = Rates {
            rings: Some(Moved { tx: 60, rx: 20 }),
            kernel: Some(Moved::default()),
        };
        assert_eq!(rates(&now), expected);
        assert_eq!(counted.rates(&now, then), Rates::default());
        // A count that goes back, and one that no ring has had.
        now.ring_bytes_tx = 0;
        assert_eq!(rates(&now).rings, Some(Moved { tx: 0, rx: 20 }));
        let other_ring = Connection {
            channel: Some(7),
            ring_bytes_tx: u64::MAX,
            ..before.clone()
        };
        assert_eq!(rates(&other_ring).rings, None);
        // The listing before lacked them.
        let late = Connection {
            kernel_bytes_rx: 1 << 40,
            ..before.clone()
        };
        assert_eq!(rates(&late).kernel, None);
        // Another far end of the same socket.
        let new = Connection {
            remote: "10.77.0.9:6379".into(),
            ring_bytes_tx: 1 << 40,
            ..before
        };
        assert_eq!(rates(&new), Rates::default());
    }
}
