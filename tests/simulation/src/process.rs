//! A process with the shim: its connections, links, doorbells and mail, as the shim's
//! control side keeps them (apps/preload: state, link, wait, control).

use crate::end::At;
use crate::memory::{self, Region};
use crate::programs::Script;
use crate::world::{Ctx, Wait, World};
use fordway_abi::atomic::AtomicU32;
use fordway_abi::control::{self, status};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{Endpoint, REGION_BYTES, WaitPage};
use fordway_ring::{Consumer, Producer, Sleeper, doors_to_ring};
use fordway_sockets::{State, attention, down, ends, up};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Threads of a process, at most; each has a doorbell of its own, the first is nobody's.
pub const DOORS: usize = 24;
/// Between two attempts to reach a broker.
const RETRY_NS: u64 = 1_000_000_000;
/// Longest sleep while the broker is away.
pub const ORPHAN_SLICE_NS: u64 = 500_000_000;
/// Longest wait for a doorbell's acknowledgement.
const ANSWER_NS: u64 = 1_000_000_000;

/// States of a connection (apps/preload: state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Kernel,
    Offered,
    Paired,
}

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

/// A side of a link.
pub struct Link {
    id: u64,
    key: [u8; 16],
    own: Region,
    peer: Cell<Option<(usize, *mut u8)>>,
    doors: Cell<u64>,
    rung: [Cell<u32>; DOORS],
    users: Cell<u32>,
    peer_gone: Cell<bool>,
}

/// See the module.
pub struct Process {
    pub number: usize,
    pub alive: Cell<bool>,
    pub stopped_until_ns: Cell<u64>,
    pub page: &'static WaitPage,
    /// Counters of the eventfds.
    pub doors: [Cell<u64>; DOORS],
    registered: Cell<u64>,
    doors_used: Cell<usize>,
    pub mail: RefCell<VecDeque<Mail>>,
    /// Who reads the mail; 0: nobody.
    mail_reader: Cell<usize>,
    pub links: RefCell<Vec<&'static Link>>,
    pub connected: Cell<bool>,
    retry_at_ns: Cell<u64>,
    exhausted: Cell<bool>,
}

/// One end of a connection.
pub struct Conn {
    pub number: usize,
    pub process: usize,
    pub socket: usize,
    /// Streams by which it sends and receives.
    pub streams: (usize, usize),
    pub state: State,
    phase: Cell<Phase>,
    serial: Cell<u64>,
    operations: Cell<u64>,
    pub offer_after: u64,
    pub bound: Cell<Option<Bound>>,
    pub closed: Cell<bool>,
    /// A kill or an early close: its streams need not arrive whole.
    pub broken: Cell<bool>,
    pub script: Script,
    /// The next call is a forked child's.
    pub forked: Cell<bool>,
}

/// Where the channel lies.
#[derive(Clone, Copy)]
pub struct Bound {
    pub link: &'static Link,
    pub own: &'static Endpoint,
    own_base: *mut u8,
    pub peer: &'static Endpoint,
    peer_base: *mut u8,
    pub peer_process: usize,
    slot: u32,
    generation: u32,
    channel_id: u64,
}

impl Process {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            alive: Cell::new(true),
            stopped_until_ns: Cell::new(0),
            page: memory::take_page(),
            doors: Default::default(),
            registered: Cell::new(0),
            doors_used: Cell::new(1),
            mail: RefCell::default(),
            mail_reader: Cell::new(0),
            links: RefCell::default(),
            connected: Cell::new(false),
            retry_at_ns: Cell::new(0),
            exhausted: Cell::new(false),
        }
    }

    pub fn has_mail(&self) -> bool {
        !self.mail.borrow().is_empty() && self.mail_reader.get() == 0
    }

    /// From now on its regions have no ring memory left.
    pub fn exhaust(&self) {
        self.exhausted.set(true);
        for link in self.links.borrow().iter() {
            link.exhaust();
        }
    }

    pub fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    /// Whether it has links but no broker.
    pub fn is_orphaned(&self) -> bool {
        !self.connected.get() && !self.links.borrow().is_empty()
    }

    /// A doorbell for a thread of its own.
    pub fn take_door(&self) -> usize {
        let door = self.doors_used.get();
        assert!(door < DOORS, "too many threads");
        self.doors_used.set(door + 1);
        door
    }

    fn link(&self, id: u64) -> Option<&'static Link> {
        let links = self.links.borrow();
        links.iter().copied().find(|link| link.id == id)
    }

    /// The broker is gone.
    pub fn lost(&self, world: &World) {
        self.connected.set(false);
        self.retry_at_ns.set(world.now_ns.get() + RETRY_NS);
        for conn in world
            .conns
            .iter()
            .filter(|conn| conn.process == self.number)
        {
            if conn.phase.get() == Phase::Offered {
                conn.phase.set(Phase::Kernel);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        memory::give_page(self.page);
        for link in self.links.take() {
            // SAFETY: leaked when it was made; the run is over, nobody looks at it again.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(link).cast_mut()) });
        }
    }
}

impl Link {
    fn exhaust(&self) {
        let header = self.own.header();
        header
            .arena_next
            .store(REGION_BYTES as u64, Ordering::Relaxed);
    }

    pub fn unbind(&self) {
        self.users.set(self.users.get() - 1);
    }

    /// Whether all ring memory was given back. Only when nobody uses it any more.
    pub fn is_whole(&self) -> bool {
        for slot in 0..memory::SLOTS_MAX as u32 {
            let own = Region::endpoint(self.own.base(), slot);
            // SAFETY: the region is mapped, and nobody uses the channel any more.
            unsafe { Producer::new(own, self.own.base(), own) }.release_memory();
        }
        self.own.lost_bytes() == Some(0)
    }

    pub fn users(&self) -> u32 {
        self.users.get()
    }
}

impl Conn {
    pub fn new(
        number: usize,
        process: usize,
        socket: usize,
        streams: (usize, usize),
        offer_after: u64,
    ) -> Self {
        Self {
            number,
            process,
            socket,
            streams,
            state: State::default(),
            phase: Cell::new(Phase::Kernel),
            serial: Cell::new(1),
            operations: Cell::new(0),
            offer_after,
            bound: Cell::new(None),
            closed: Cell::new(false),
            broken: Cell::new(false),
            script: Script::empty(),
            forked: Cell::new(false),
        }
    }

    pub fn is_paired(&self) -> bool {
        self.phase.get() == Phase::Paired
    }

    fn id(&self) -> u64 {
        self.serial.get() << 32 | self.number as u64
    }

    pub fn bound(&self) -> Bound {
        self.bound.get().expect("it has or had a channel")
    }

    pub fn producer(&self) -> Producer {
        let bound = self.bound();
        // SAFETY: regions are never unmapped.
        unsafe { Producer::new(bound.own, bound.own_base, bound.peer) }
    }

    pub fn consumer(&self) -> Consumer {
        let bound = self.bound();
        // SAFETY: as above.
        unsafe { Consumer::new(bound.own, bound.peer, bound.peer_base) }
    }

    /// Whether the channel's endpoint is still ours.
    pub fn is_bound(&self) -> bool {
        let bound = self.bound();
        bound.own.cold.generation.load(Ordering::Relaxed) == bound.generation
    }

    pub fn peer_is_there(&self) -> bool {
        let bound = self.bound();
        bound.peer.cold.generation.load(Ordering::Acquire) == bound.generation
    }

    pub fn give_up(&self) {
        self.operations.set(0);
        self.phase.set(Phase::Kernel);
    }

    /// For the end of a run.
    pub fn describe(&self) -> String {
        let name = format!("end {} {:?}", self.number, self.phase.get());
        let Some(bound) = self.bound.get() else {
            return name;
        };
        format!(
            "{name} attention {} tx {} rx {} tail {} head {} switch_at {} at {} back {}",
            self.state.attention.load(Ordering::Relaxed),
            bound.own.tx.tx_state.load(Ordering::Relaxed),
            bound.own.wait.rx_state.load(Ordering::Relaxed),
            bound.own.tx.tail.load(Ordering::Relaxed),
            bound.own.rx.head.load(Ordering::Relaxed),
            bound.own.cold.switch_at.load(Ordering::Relaxed),
            bound.own.rx_own.kernel_position.load(Ordering::Relaxed),
            bound.own.tx_own.back_at.load(Ordering::Relaxed),
        )
    }
}

/// What threads of a process do with its connections and the broker.
impl Ctx<'_> {
    fn send(&self, packet: Packet) -> bool {
        let process = self.own_process();
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
        process.retry_at_ns.set(now + RETRY_NS);
        if !self.world.broker.borrow_mut().hello(process.number) {
            return false;
        }
        process.connected.set(true);
        self.rejoin();
        true
    }

    fn rejoin(&self) {
        let process = self.own_process();
        for door in (1..DOORS as u64).filter(|door| process.registered.get() >> door & 1 != 0) {
            self.send(Packet::Door(door));
        }
        let links = process.links.borrow().clone();
        for link in links {
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
        if conn.phase.get() != Phase::Kernel || conn.state.barred.load(Ordering::Relaxed) != 0 {
            return;
        }
        let operations = conn.operations.get();
        conn.operations.set(operations + 1);
        if operations == conn.offer_after {
            self.offer(conn);
        }
    }

    fn offer(&self, conn: &'static Conn) {
        if !self.connect() || conn.phase.get() != Phase::Kernel {
            conn.operations.set(0);
            return;
        }
        conn.phase.set(Phase::Offered);
        self.point();
        let offer = Packet::Offer {
            conn: conn.number,
            conn_id: conn.id(),
        };
        self.send(offer);
        self.check_mail();
    }

    pub fn report(&self, conn: &Conn, status: u32, reason: u32) {
        let paired = conn.phase.get() == Phase::Paired;
        let bound = conn.bound.get().filter(|_| paired);
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
            let Some(mail) = next else { break };
            self.world.trace(|| format!("mail: {mail:?}"));
            turned |= self.handle(mail);
            self.point();
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
                    && conn.phase.get() == Phase::Offered
                {
                    conn.phase.set(Phase::Kernel);
                    conn.operations.set(0);
                    let passing = [Reason::Shared, Reason::NoMemory, Reason::Waiting];
                    if !passing.map(|reason| reason as u32).contains(&reject.reason) {
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
                    rung: Default::default(),
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
                        conn.state.passing.store(ask.reason, Ordering::Relaxed);
                        let asked = &conn.state.attention;
                        asked.fetch_or(attention::DOWN, Ordering::AcqRel);
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
        if conn.phase.get() != Phase::Offered {
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
        conn.phase.set(Phase::Paired);
        self.point();
        up::set_out(&At::new(self, conn), false);
    }

    /// Rings those of the peer's doors that sleep and were not rung yet.
    pub fn ring(&self, conn: &Conn, doors: u64) {
        let Bound {
            link, peer_process, ..
        } = conn.bound();
        let peer = &self.world.processes[peer_process];
        // SAFETY: wait pages are never unmapped.
        let mut left = unsafe {
            doors_to_ring(peer.page, doors, |door, count| {
                link.rung[door].replace(count) != count
            })
        };
        while left != 0 {
            let door = left.trailing_zeros() as usize;
            left &= left - 1;
            self.point();
            if link.doors.get() >> door & 1 == 0 {
                // Sent to us before it could be used: it lies in the mail.
                let reader = || self.own_process().mail_reader.get();
                while reader() != 0 && reader() != self.id() {
                    self.wait(Wait::Turn);
                }
                self.check_mail();
            }
            let door = if link.doors.get() >> door & 1 == 0 {
                link.rung[door].set(0);
                0
            } else {
                door
            };
            self.world
                .trace(|| format!("rings door {door} of process {peer_process}"));
            peer.doors[door].set(peer.doors[door].get() + 1);
        }
    }

    /// Has all peers know of a thread's doorbell; false if none can be had now.
    pub fn register_door(&self, door: usize) -> bool {
        let process = self.own_process();
        let known = || process.registered.get() >> door & 1 != 0;
        if known() {
            return true;
        }
        if !self.send(Packet::Door(door as u64)) {
            return false;
        }
        let deadline = self.world.now_ns.get() + ANSWER_NS;
        while !known() && self.world.now_ns.get() < deadline && process.connected.get() {
            self.compute(1_000_000);
            self.check_mail();
        }
        known()
    }

    /// Publishes that the thread of `door` is about to sleep.
    pub fn announce(&self, door: usize) {
        self.point();
        Sleeper::new(self.own_process().page, door).announce();
    }

    /// It runs again.
    pub fn retract(&self, door: usize) {
        Sleeper::new(self.own_process().page, door).retract();
        self.own_process().doors[door].set(0);
    }

    /// A thread begins to wait in the library.
    pub fn beat(&self) {
        self.own_process().page.beat.fetch_add(1, Ordering::Relaxed);
    }

    /// Rings those of the process's own `doors` behind which a thread sleeps.
    pub fn ring_own(&self, doors: u64) {
        let process = self.own_process();
        let sleeping = process.page.sleeping.load(Ordering::SeqCst);
        for (door, rings) in process.doors.iter().enumerate() {
            if doors & sleeping & 1 << door != 0 {
                rings.set(rings.get() + 1);
            }
        }
    }

    /// The program's last descriptor of the connection is closed.
    pub fn close(&self, conn: &'static Conn) {
        match conn.phase.get() {
            Phase::Offered => self.report(conn, status::WITHDRAWN, 0),
            Phase::Paired => {
                let end = At::new(self, conn);
                ends::before_close(&end);
                let own = conn.bound().own;
                self.lock(&own.tx_own.lock);
                self.lock(&own.rx_own.lock);
                if conn.is_paired() {
                    let link = conn.bound().link;
                    self.report(conn, status::CLOSED, 0);
                    conn.phase.set(Phase::Kernel);
                    own.tx_own.lock.store(0, Ordering::Release);
                    own.rx_own.lock.store(0, Ordering::Release);
                    link.unbind();
                } else {
                    own.tx_own.lock.store(0, Ordering::Release);
                    own.rx_own.lock.store(0, Ordering::Release);
                }
            }
            Phase::Kernel => {}
        }
        conn.phase.set(Phase::Kernel);
        conn.serial.set(conn.serial.get() + 1);
        self.point();
        // Who is killed before this step leaves it to its kernel.
        conn.closed.set(true);
        self.world.sockets.borrow_mut()[conn.socket].close();
    }

    /// Takes a lock, waiting for it.
    pub fn lock(&self, word: &'static AtomicU32) {
        self.point();
        while word.load(Ordering::Relaxed) != 0 {
            self.wait(Wait::Lock(word));
        }
        word.store(1, Ordering::SeqCst);
    }
}
