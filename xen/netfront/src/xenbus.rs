//! The handshake with the backend, by states in XenStore.
//!
//! ```text
//!              backend InitWait                 backend Connected
//! Initialising -----------------> Connected ...................... link up
//!   ^      |                          |
//!   |      | backend Closing          | backend Closing, Closed, gone or back at its beginning
//!   |      v                          v
//!   +--- Closed <-----------------  (everything taken back)      Closing (we want to end, or
//!    backend Closed and online  ^                                 the backend broke the rules)
//!                               +---- backend Closing, Closed or gone ----'
//! ```
//!
//! Only what the backend's state is now counts, not how it came to it: a watch that fires
//! twice, late, or for a state that is over already leads to the same end (XSA-374, 396:
//! teardown at any moment).

use crate::rx::Rx;
use crate::staging::Staging;
use crate::tx::Tx;
use crate::{Netfront, Offers, Queue, Reason};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use fordway_xen_abi::netif::ctrl::GET_GREF_MAPPING_SIZE;
use fordway_xen_frontend::{Channel, Guest, State};

/// Most queues ever asked for.
const QUEUES_MAX: u32 = 8;
/// Steps of one look: all that can follow from one state of the backend.
const STEPS_MAX: usize = 4;

impl<G: Guest> Netfront<G> {
    /// Looks where both sides stand and does what follows from it.
    pub(crate) fn look(&mut self, guest: &mut G) {
        if self.device.has_moved(guest) {
            self.tear_down(guest);
            self.env.pool.domain = self.device.domain;
            self.wanted = true;
        }
        for _ in 0..STEPS_MAX {
            self.device.look(guest);
            if !self.step(guest) {
                break;
            }
        }
    }

    /// One step; whether another may follow.
    fn step(&mut self, guest: &mut G) -> bool {
        use State::*;
        let next = match self.states() {
            _ if !self.device.is_plugged() => return false,
            (Unknown, _) => Initialising,
            (Initialising | Closed, InitWait) if self.wanted => match self.connect(guest) {
                Ok(()) => Connected,
                Err(reason) => {
                    self.env.counters.drop(reason);
                    self.wanted = false;
                    Closing
                }
            },
            // It still serves whoever had this device before us.
            (Initialising, Connected) => Closing,
            (Initialising, Closing) => Closed,
            (Connected, Connected) => {
                if !core::mem::replace(&mut self.linked, true) {
                    self.first_steps(guest);
                }
                return false;
            }
            (Connected | Closing, Closing | Closed) | (Closing, Unknown) => Closed,
            // It is gone, or has begun again; the latter two are also on its way up.
            (Connected, Unknown | Initialising) => Initialising,
            (Connected, InitWait | Initialised) if self.linked => Initialising,
            (Closed, Closed) if self.wanted && self.device.offer(guest, "online") == Some(1) => {
                Initialising
            }
            _ => return false,
        };
        if matches!(next, Initialising | Closed) {
            self.tear_down(guest);
        }
        self.device.enter(guest, next);
        true
    }

    /// Reads what is offered, makes the rings, tells the backend of them.
    fn connect(&mut self, guest: &mut G) -> Result<(), Reason> {
        let switches = self.env.switches;
        let mac = self.device.read(guest, "mac");
        self.mac = Some(mac.and_then(|mac| parse_mac(&mac)).ok_or(Reason::NoMac)?);
        let mut has = |name| self.device.offer(guest, name) == Some(1);
        if !has("feature-rx-copy") {
            return Err(Reason::NoRxCopy);
        }
        let (csum, sg) = (switches.csum, has("feature-sg"));
        let gso = switches.gso && csum;
        let offers = Offers {
            sg,
            csum_ipv4: csum && !has("feature-no-csum-offload"),
            csum_ipv6: csum && has("feature-ipv6-csum-offload"),
            gso_ipv4: gso && sg && has("feature-gso-tcpv4"),
            gso_ipv6: gso && sg && has("feature-gso-tcpv6"),
        };
        let split = switches.split && has("feature-split-event-channels");
        let staging = switches.persistent && has("feature-ctrl-ring");
        self.offers = offers;
        let queues_offered = self.device.offer(guest, "multi-queue-max-queues");
        let queues = queues_offered.unwrap_or(1).min(self.config.queues_max);
        let queues = queues.clamp(1, QUEUES_MAX);

        let mut keys: Vec<(String, u32)> = Vec::new();
        let mut tell = |name: &str, value| keys.push((name.to_string(), value));
        for index in 0..queues {
            let queue = self.add_queue(guest, split).ok_or(Reason::NoMemory)?;
            let at = match queues {
                1 => String::new(),
                _ => format!("queue-{index}/"),
            };
            let channel = queue.tx_channel.port;
            tell(&format!("{at}tx-ring-ref"), queue.tx.ring.shared.grant);
            tell(&format!("{at}rx-ring-ref"), queue.rx.ring.shared.grant);
            if split {
                tell(&format!("{at}event-channel-tx"), channel);
                tell(&format!("{at}event-channel-rx"), queue.rx_port());
            } else {
                tell(&format!("{at}event-channel"), channel);
            }
        }
        if staging && let Some(staging) = Staging::new(guest, &mut self.env.pool) {
            tell("ctrl-ring-ref", staging.ring.shared.grant);
            tell("event-channel-ctrl", staging.port);
            self.staging = Some(staging);
        }
        if queues_offered.is_some() {
            tell("multi-queue-num-queues", queues);
        }
        tell("request-rx-copy", 1);
        tell("feature-rx-notify", 1);
        tell("feature-sg", 1);
        tell("feature-gso-tcpv4", gso.into());
        tell("feature-gso-tcpv6", gso.into());
        tell("feature-no-csum-offload", (!csum).into());
        tell("feature-ipv6-csum-offload", csum.into());
        if !self.device.tell(guest, keys) {
            return Err(Reason::NoXenStore);
        }
        self.env.counters.connections += 1;
        Ok(())
    }

    fn add_queue(&mut self, guest: &mut G, split: bool) -> Option<&Queue<G>> {
        let (config, env) = (&self.config, &mut self.env);
        let rx = Rx::new(guest, env, config.rx_pages);
        let tx = Tx::new(guest, env, config.tx_pages);
        let ports = [true, split].map(|wanted| wanted.then(|| guest.port_new(env.pool.domain)));
        match (rx, tx, ports) {
            (Some(mut rx), Some(tx), [Some(Some(port)), other]) if other != Some(None) => {
                // Nobody listens yet; the backend looks when it connects.
                let _ = rx.refill(guest, env);
                self.queues.push(Queue {
                    rx,
                    tx,
                    tx_channel: Channel::new(port),
                    rx_channel: other.flatten().map(Channel::new),
                });
                self.queues.last()
            }
            (rx, tx, ports) => {
                let rings = [rx.map(|rx| rx.ring), tx.map(|tx| tx.ring)];
                for ring in rings.into_iter().flatten() {
                    env.pool.give_back(guest, ring.shared);
                }
                for port in ports.into_iter().flatten().flatten() {
                    guest.port_close(port);
                }
                None
            }
        }
    }

    /// The backend has just connected: it is told of what was offered before.
    fn first_steps(&mut self, guest: &mut G) {
        for queue in &self.queues {
            guest.notify(queue.rx_port());
        }
        if let Some(staging) = &mut self.staging {
            staging.ask(guest, GET_GREF_MAPPING_SIZE, 0);
        }
    }

    /// Takes back whatever the backend has of us. Nothing is shared afterwards but pages that
    /// it will not let go: these stay in their graves until it does.
    pub(crate) fn tear_down(&mut self, guest: &mut G) {
        let pool = &mut self.env.pool;
        for queue in self.queues.drain(..) {
            for channel in queue.rx_channel.into_iter().chain([queue.tx_channel]) {
                guest.port_close(channel.port);
            }
            let rings = [queue.rx.ring.shared, queue.tx.ring.shared];
            let buffers = queue.rx.buffers.into_iter().chain(queue.tx.buffers);
            for buffer in buffers.flatten().chain(rings) {
                pool.give_back(guest, buffer);
            }
        }
        if let Some(staging) = self.staging.take() {
            staging.bury(guest, pool);
        }
        self.linked = false;
    }
}

/// Six bytes in hexadecimal with colons between them; no group address.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && mac[0] & 1 == 0).then_some(mac)
}
