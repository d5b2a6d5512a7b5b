//! What a process and the broker say to each other (apps/preload: control, upgrade).

use crate::end::At;
use crate::memory::Region;
use crate::process::{Bound, Conn, DOORS, Link};
use crate::world::Ctx;
use fordway_abi::control;
use fordway_ring::Producer;
use fordway_sockets::{Event, attention, down, ends, phase, up};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Between two attempts to reach a broker: less than the shim's, for connections are short.
pub const RETRY_NS: u64 = 1_000_000;

/// What the broker sends. A `Peer` brings the peer's memory along.
#[derive(Clone, Copy, Debug)]
pub enum Mail {
    Reject(control::Reject),
    Link(control::Link),
    Peer {
        link_id: u64,
        peer: usize,
        base: *mut u8,
    },
    Pair(control::Pair),
    DoorAck(u64),
    PeerDoor {
        link_id: u64,
        door: u64,
    },
    Downgrade(control::Downgrade),
    PeerGone(u64),
}

/// What the broker is sent.
#[derive(Clone, Copy, Debug)]
pub enum Packet {
    Offer {
        conn: usize,
        conn_id: u64,
    },
    Region {
        link_id: u64,
        base: *mut u8,
    },
    Door(u64),
    Status(control::Status),
    RejoinLink {
        link: control::RejoinLink,
        base: *mut u8,
    },
    RejoinChannel {
        channel: control::RejoinChannel,
        conn: usize,
    },
}
/// What threads of a process do with its connections and the broker.
impl Ctx<'_> {
    pub fn send(&self, packet: Packet) -> bool {
        let process = self.own_process();
        if process.broker_gone.get() {
            return false;
        }
        if process.connected.get() {
            self.world.trace(|| format!("to the broker: {packet:?}"));
            self.world.broker.borrow_mut().post(process.number, packet);
        }
        process.connected.get()
    }

    /// Opens the control connection if there is none.
    pub fn connect(&self) -> bool {
        let process = self.own_process();
        let now = self.world.now_ns.get();
        if process.connected.get() || now < process.retry_at_ns.get() {
            return process.connected.get();
        }
        // Who reads mail has its lock, which a new connection is made under.
        if process.mail_reader.get() != 0 {
            return false;
        }
        process.retry_at_ns.set(now + RETRY_NS);
        process.mail.borrow_mut().clear();
        if !self.world.broker.borrow_mut().hello(process.number) {
            return false;
        }
        process.connected.set(true);
        // No channel of the new broker's comes in between.
        process.mail_reader.set(self.id());
        self.rejoin();
        process.mail_reader.set(0);
        true
    }

    fn rejoin(&self) {
        let process = self.own_process();
        for door in (1..DOORS as u64).filter(|door| process.registered.get() >> door & 1 != 0) {
            self.send(Packet::Door(door));
        }
        let links = process.links.borrow().clone();
        // To those without a peer it will not come any more.
        for link in links.into_iter().filter(|link| link.peer.get().is_some()) {
            self.point();
            self.send(Packet::RejoinLink {
                link: control::RejoinLink {
                    link_id: link.id,
                    link_key: link.key,
                },
                base: link.own.base(),
            });
        }
        for conn in &self.world.conns {
            if conn.process != process.number || !conn.is_paired() {
                continue;
            }
            self.point();
            let bound = conn.bound();
            let channel = control::RejoinChannel {
                conn_id: conn.id(),
                channel_id: bound.channel_id,
                link_id: bound.link.id,
                slot: bound.slot,
                generation: bound.generation,
                // The socket is known by the packet's `conn`.
                claim: control::Claim::NONE,
            };
            self.send(Packet::RejoinChannel {
                channel,
                conn: conn.number,
            });
        }
    }

    /// Counts a call that moves data, and offers the connection in time.
    pub fn count_operation(&self, conn: &'static Conn) {
        self.check_mail();
        if conn.forked.take() && conn.is_paired() {
            let asked = &conn.state.attention;
            asked.fetch_or(attention::FOREIGN, Ordering::AcqRel);
        }
        if conn.phase.load(Ordering::Relaxed) != phase::KERNEL
            || conn.state.barred.load(Ordering::Relaxed) != 0
        {
            return;
        }
        let operations = conn.operations.get();
        conn.operations.set(operations + 1);
        if operations == conn.offer_after {
            self.offer(conn);
        }
    }

    fn offer(&self, conn: &'static Conn) {
        if !self.connect() || conn.phase.transition(Event::Offered).is_err() {
            conn.operations.set(0);
            return;
        }
        self.point();
        let offer = Packet::Offer {
            conn: conn.number,
            conn_id: conn.id(),
        };
        if !self.send(offer) {
            self.own_process().lost(self.world);
        }
        self.check_mail();
    }

    pub fn report(&self, conn: &Conn, status: u32, reason: u32) {
        let bound = conn.bound.get().filter(|_| conn.is_paired());
        let (tx, rx) = match bound {
            Some(_) => (conn.producer().tail(), conn.consumer().head()),
            None => (0, 0),
        };
        self.send(Packet::Status(control::Status {
            conn_id: conn.id(),
            channel_id: bound.map_or(0, |bound| bound.channel_id),
            status,
            reason,
            ring_bytes_tx: tx,
            ring_bytes_rx: rx,
        }));
    }

    /// Reads all mail that has come, unless another thread is at it.
    pub fn check_mail(&self) {
        let process = self.own_process();
        if !process.has_mail() {
            return;
        }
        process.mail_reader.set(self.id());
        let mut turned = false;
        loop {
            let next = process.mail.borrow_mut().pop_front();
            let Some((number, mail)) = next else { break };
            process.mail_seen.set(number);
            self.world.trace(|| format!("mail: {mail:?}"));
            turned |= self.handle(mail);
            self.point();
        }
        if process.broker_gone.get() {
            process.lost(self.world);
        }
        process.mail_reader.set(0);
        if turned {
            for conn in self.own_conns().filter(|conn| conn.is_paired()) {
                let asked = conn.state.attention.load(Ordering::Acquire);
                if asked & attention::DOWN != 0 {
                    let _ = down::attend(&At::new(self, conn));
                }
            }
        }
    }

    fn own_conns(&self) -> impl Iterator<Item = &'static Conn> + use<> {
        let process = self.process;
        let conns = self.world.conns.iter();
        conns.filter(move |conn| conn.process == process)
    }

    fn handle(&self, mail: Mail) -> bool {
        let process = self.own_process();
        let by_id = |id: u64| self.own_conns().find(|conn| conn.id() == id);
        match mail {
            Mail::Reject(reject) => {
                if reject.pending == 0
                    && let Some(conn) = by_id(reject.conn_id)
                    && conn.phase.transition(Event::Voided).is_ok()
                {
                    conn.operations.set(0);
                    if up::is_for_good(reject.reason) {
                        conn.state.barred.store(reject.reason, Ordering::Relaxed);
                    }
                }
            }
            Mail::Link(link) => {
                let made = Box::leak(Box::new(Link {
                    id: link.link_id,
                    key: link.link_key,
                    own: Region::take(),
                    peer: Cell::new(None),
                    doors: Cell::new(0),
                    knocked: Default::default(),
                    users: Cell::new(0),
                    peer_gone: Cell::new(false),
                }));
                if process.is_exhausted() {
                    made.exhaust();
                }
                process.links.borrow_mut().push(made);
                self.send(Packet::Region {
                    link_id: link.link_id,
                    base: made.own.base(),
                });
            }
            Mail::Peer {
                link_id,
                peer,
                base,
            } => {
                if let Some(link) = process.link(link_id) {
                    link.peer.set(Some((peer, base)));
                }
            }
            Mail::Pair(pair) => {
                if let Some(conn) = by_id(pair.conn_id)
                    && let Some(link) = process.link(pair.link_id)
                {
                    self.paired(conn, link, pair);
                }
            }
            Mail::DoorAck(door) => {
                process.registered.set(process.registered.get() | 1 << door);
            }
            Mail::PeerDoor { link_id, door } => {
                if let Some(link) = process.link(link_id) {
                    link.doors.set(link.doors.get() | 1 << door);
                    // A ring may have gone astray before.
                    if let Some((peer, _)) = link.peer.get() {
                        let bell = &self.world.processes[peer].doors[door as usize];
                        bell.set(bell.get() + 1);
                    }
                }
            }
            Mail::Downgrade(ask) => {
                for conn in self.own_conns().filter(|conn| conn.is_paired()) {
                    if conn.bound().channel_id == ask.channel_id {
                        down::ask(&conn.state, ask.reason);
                    }
                }
                return true;
            }
            Mail::PeerGone(link_id) => {
                if let Some(link) = process.link(link_id) {
                    link.peer_gone.set(true);
                    for conn in self.own_conns().filter(|conn| conn.is_paired()) {
                        if std::ptr::eq(conn.bound().link, link) {
                            ends::peer_process_gone(&At::new(self, conn));
                        }
                    }
                }
            }
        }
        false
    }

    fn paired(&self, conn: &'static Conn, link: &'static Link, pair: control::Pair) {
        let Some((peer_process, peer_base)) = link.peer.get() else {
            return;
        };
        if conn.phase.load(Ordering::Relaxed) != phase::OFFERED {
            return;
        }
        self.world.figures.borrow_mut().paired += 1;
        let own_base = link.own.base();
        let own = Region::endpoint(own_base, pair.slot);
        let peer = Region::endpoint(peer_base, pair.slot);
        // SAFETY: our own region; the broker hands a slot out again only when both sides are done with it.
        unsafe {
            Producer::new(own, own_base, peer).release_memory();
            fordway_ring::renew(std::ptr::from_ref(own).cast_mut());
        }
        let owner = conn.number as u32 + 1;
        own.rx_own.owner.store(owner, Ordering::Relaxed);
        own.cold
            .generation
            .store(pair.generation, Ordering::Release);
        link.users.set(link.users.get() + 1);
        conn.bound.set(Some(Bound {
            link,
            own,
            own_base,
            peer,
            peer_base,
            peer_process,
            slot: pair.slot,
            generation: pair.generation,
            channel_id: pair.channel_id,
        }));
        conn.state.attention.store(0, Ordering::Relaxed);
        up::begin(&At::new(self, conn));
        conn.phase.advance(Event::Paired);
        self.point();
        up::set_out(&At::new(self, conn), false);
    }
}
