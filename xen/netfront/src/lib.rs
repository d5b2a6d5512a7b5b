//! The network frontend: Xen netif rings as a driver without unsafe code.
//!
//! ```text
//!   user (network stack)      poll / send / flush / rearm
//!        |
//!    Netfront    states in XenStore (xenbus), one or several queues, staging grants (staging)
//!        |
//!    Rx  Tx      frames <-> slots and granted pages; private copies of all that the backend says
//!        |
//!    Ring        indices, barriers, who wakes whom; Channel: an event channel with a limit
//!        |
//!    Guest       pages, grants, event channels, XenStore of the kernel below
//! ```
//!
//! The user calls [`Netfront::poll`] when an event or a watch has come, sends, calls
//! [`Netfront::flush`], and before it sleeps [`Netfront::rearm`]. The driver never waits. The
//! backend is believed nothing: each index and slot is read once and checked, ids must be
//! those that are out, bytes are copied before anybody parses them, all loops are bounded by
//! what we offered, and a broken rule ends the connection (a frame with a fault ends with
//! itself). Buffers are whole pages of zeros, granted once and used again and again.
//! Limits: frames of 65535 bytes to the backend and of 18 pages from it; eight queues.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod rx;
mod staging;
mod tx;
mod types;
mod xenbus;

use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use fordway_xen_frontend::{Channel, Device, Pool};
pub use fordway_xen_frontend::{GrantRef, Guest, Port, State};
use rx::Rx;
use staging::Staging;
use tx::Tx;
use types::Env;
pub use types::*;

const PAGE_BYTES: usize = 4096;
const ETHERNET_BYTES: usize = 14;
/// Pages that a backend may withhold before it is given no more.
const WITHHELD_MAX: usize = 512;

struct Queue<G: Guest> {
    rx: Rx<G>,
    tx: Tx<G>,
    tx_channel: Channel,
    /// Only if the backend offers split channels.
    rx_channel: Option<Channel>,
}

impl<G: Guest> Queue<G> {
    fn rx_port(&self) -> Port {
        self.rx_channel.as_ref().unwrap_or(&self.tx_channel).port
    }

    /// All grants of the pool, made if they are not there, and which are only to be read.
    fn grants(&mut self, guest: &mut G, env: &mut Env<G>) -> Vec<(GrantRef, bool)> {
        let rx = self.rx.buffers.iter().flatten();
        let mut grants: Vec<_> = rx.map(|buffer| (buffer.grant, false)).collect();
        for id in 0..self.tx.buffers.len() as u16 {
            let buffer = self.tx.buffer(guest, env, id);
            grants.extend(buffer.map(|buffer| (buffer.grant, true)));
        }
        grants
    }
}

/// One network interface.
pub struct Netfront<G: Guest> {
    config: Config,
    env: Env<G>,
    device: Device,
    /// Both sides have been Connected since the rings were made.
    linked: bool,
    wanted: bool,
    mac: Option<[u8; 6]>,
    offers: Offers,
    queues: Vec<Queue<G>>,
    staging: Option<Staging<G>>,
}

impl<G: Guest> Netfront<G> {
    /// Nothing has happened yet but that the device's place in XenStore is watched.
    pub fn new(guest: &mut G, config: Config) -> Self {
        Self {
            device: Device::new(guest, &config.path),
            env: Env {
                pool: Pool::new(),
                switches: config.switches,
                counters: Counters::default(),
            },
            config,
            linked: false,
            wanted: true,
            mac: None,
            offers: Offers::default(),
            queues: Vec::new(),
            staging: None,
        }
    }

    /// Whether frames can be sent.
    pub fn is_up(&self) -> bool {
        self.linked && self.device.ours == State::Connected
    }

    /// Our state and the backend's, as last seen.
    pub fn states(&self) -> (State, State) {
        (self.device.ours, self.device.theirs)
    }

    /// Known once a connection has been tried.
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.mac
    }

    /// What the backend does for us; may change with each connection.
    pub fn offers(&self) -> Offers {
        self.offers
    }

    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// Grants made so far.
    pub fn grants_made(&self) -> u64 {
        self.env.pool.grants_made
    }

    /// Hears the backend: states, frames (each given to `sink` once, whole), buffers that are
    /// free again. At most a ring's worth of frames in one call.
    pub fn poll(&mut self, guest: &mut G, now_ns: u64, mut sink: impl FnMut(RxFrame<'_>)) {
        if guest.take_watch() {
            self.look(guest);
        }
        if self.env.pool.withheld() > 0 {
            self.env.pool.visit_graves(guest);
        }
        if self.device.ours == State::Connected
            && let Err(reason) = self.poll_rings(guest, now_ns, &mut sink)
        {
            self.break_off(guest, reason);
        }
    }

    fn poll_rings(
        &mut self,
        guest: &mut G,
        now_ns: u64,
        sink: &mut impl FnMut(RxFrame<'_>),
    ) -> Result<(), Reason> {
        let (env, queues) = (&mut self.env, &mut self.queues);
        for queue in queues.iter_mut() {
            let mut received = queue.rx.poll(guest, env, sink)?;
            queue.tx.reap(guest, env)?;
            let mut answered = core::mem::take(&mut queue.tx.answers);
            if queue.rx.refill(guest, env) {
                guest.notify(queue.rx_port());
                env.counters.notifies += 1;
            }
            if queue.rx_channel.is_none() {
                answered += core::mem::take(&mut received);
            }
            let rx_channel = queue
                .rx_channel
                .iter_mut()
                .map(|channel| (channel, received));
            for (channel, responses) in rx_channel.chain([(&mut queue.tx_channel, answered)]) {
                let (came, is_storm) = channel.settle(guest, now_ns, responses);
                env.counters.events += u64::from(came);
                if is_storm {
                    env.counters.drop(Reason::EventStorm);
                }
            }
            if !env.switches.suppression {
                queue.rx.ring.wake_at(guest, 1);
                queue.tx.ring.wake_at(guest, 1);
            }
        }
        if let Some(staging) = &mut self.staging {
            staging.poll(guest, env, queues.len(), |guest, env, index| {
                queues[index].grants(guest, env)
            })?;
        }
        match env.pool.withheld() > WITHHELD_MAX {
            true => Err(Reason::GrantsHeld),
            false => Ok(()),
        }
    }

    /// Gives a frame to the backend; it leaves with the next [`Netfront::flush`], or at once
    /// without batching. A frame that cannot be sent now is dropped and counted.
    pub fn send(&mut self, guest: &mut G, frame: &TxFrame<'_>) -> Result<(), Reason> {
        if !self.is_up() {
            self.env.counters.drop(Reason::LinkDown);
            return Err(Reason::LinkDown);
        }
        let index = match self.queues.len() {
            1 => 0,
            count => flow_of(frame) % count,
        };
        let (tx, env) = (&mut self.queues[index].tx, &mut self.env);
        if tx.is_short()
            && let Err(reason) = tx.reap(guest, env)
        {
            self.break_off(guest, reason);
            return Err(reason);
        }
        if let Err(reason) = tx.write(guest, env, &self.offers, frame) {
            env.counters.drop(reason);
            return Err(reason);
        }
        if !env.switches.batching {
            self.flush(guest);
        }
        Ok(())
    }

    /// Shows the backend what was sent.
    pub fn flush(&mut self, guest: &mut G) {
        for queue in &mut self.queues {
            if queue.tx.ring.push(guest, self.env.switches.suppression) {
                guest.notify(queue.tx_channel.port);
                self.env.counters.notifies += 1;
            }
        }
    }

    /// Asks to be woken for what comes from now on. Finished requests are worth waking for only
    /// if a frame found no room, and then half of them at once.
    pub fn rearm(&mut self, guest: &mut G) -> Wait {
        let mut until: Option<u64> = None;
        for queue in &mut self.queues {
            let in_flight = queue.tx.ring.in_flight();
            let tx_ahead = u32::from(queue.tx.waiting) * (in_flight / 2 + 1);
            if self.env.switches.suppression {
                queue.rx.ring.wake_at(guest, 1);
                queue.tx.ring.wake_at(guest, tx_ahead);
            }
            let channels = [&queue.tx_channel].into_iter().chain(&queue.rx_channel);
            let masked = channels.filter_map(|channel| channel.masked_until);
            until = until.into_iter().chain(masked).min();
        }
        // Our marks before the last look: pairs with the backend's fence between its index and
        // its look at the mark.
        fence(Ordering::SeqCst);
        let idle = |queue: &Queue<G>| {
            queue.rx.ring.is_idle(guest) && (!queue.tx.waiting || queue.tx.ring.is_idle(guest))
        };
        match self.device.ours != State::Connected || self.queues.iter().all(idle) {
            true => Wait::Event(until),
            false => Wait::No,
        }
    }

    /// Ends the connection for good: the domain shuts down. Over when [`Netfront::states`] says
    /// Closed; poll until then.
    pub fn close(&mut self, guest: &mut G) {
        self.wanted = false;
        if let Some(staging) = &mut self.staging {
            staging.close(guest);
        }
        if !matches!(self.device.ours, State::Unknown | State::Closed) {
            self.device.enter(guest, State::Closing);
            self.look(guest);
        }
    }

    /// Before a suspend: whatever the backend has of us is taken back. [`Netfront::restart`] follows.
    pub fn suspend(&mut self, guest: &mut G) {
        self.tear_down(guest);
    }

    /// After a resume in another place: grants and channels are void, everything is made anew.
    pub fn restart(&mut self, guest: &mut G) {
        self.tear_down(guest);
        self.device.forget(guest);
        self.wanted = true;
        self.look(guest);
    }

    /// The backend broke a rule. Its rings are not looked at again; a new connection begins
    /// when it has closed this one.
    fn break_off(&mut self, guest: &mut G, reason: Reason) {
        self.env.counters.drop(reason);
        self.device.enter(guest, State::Closing);
        self.look(guest);
    }
}

/// Frames of one flow stay in order in one queue. A flow is known by its addresses (of IPv6 by the destination alone, which differs more),
/// and by the ports of TCP and UDP where these stand right behind the header: not in fragments, nor behind options.
fn flow_of(frame: &TxFrame<'_>) -> usize {
    const TCP_UDP: [u8; 2] = [6, 17];
    let head: &[u8] = frame.parts.first().copied().unwrap_or_default();
    let names = match head.get(12..24) {
        Some(&[0x86, 0xdd, .., next, _, _, _]) if TCP_UDP.contains(&next) => 38..58,
        Some(&[0x86, 0xdd, ..]) => 38..54,
        Some(&[_, _, 0x45, _, _, _, _, _, high, low, _, protocol])
            if high & 0x3f == 0 && low == 0 && TCP_UDP.contains(&protocol) =>
        {
            26..38
        }
        _ => 26..34,
    };
    let bytes = head.get(names).unwrap_or_default().iter();
    bytes.fold(0, |sum, byte| sum * 3 % 65_521 + usize::from(*byte))
}
