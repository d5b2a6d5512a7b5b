//! A process with the shim: its connections, links, doorbells and mail, as the shim's
//! control side keeps them (apps/preload: state, link, wait, control).

use crate::end::At;
use crate::kernel;
use crate::mail::{Mail, Packet, RETRY_NS};
use crate::memory::{self, Region};
use crate::plan::Script;
use crate::world::{Ctx, Wait, World};
use fordway_abi::atomic::AtomicU32;
use fordway_abi::control::status;
use fordway_abi::shm::{Endpoint, REGION_BYTES, WaitPage};
use fordway_ring::{Consumer, Producer, Sleeper, doors_to_knock_at};
use fordway_sockets::{End as _, Event, Phase, State, down, ends, phase};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Threads of a process, at most; each has a doorbell of its own, the first is nobody's.
pub const DOORS: usize = 24;
/// Longest sleep while the broker is away.
pub const ORPHAN_SLICE_NS: u64 = 500_000_000;
/// Longest wait for a doorbell's acknowledgement.
const ANSWER_NS: u64 = 1_000_000_000;

/// A side of a link.
pub struct Link {
    pub id: u64,
    pub key: [u8; 16],
    pub own: Region,
    pub peer: Cell<Option<(usize, *mut u8)>>,
    pub doors: Cell<u64>,
    pub knocked: [Cell<u32>; DOORS],
    pub users: Cell<u32>,
    pub peer_gone: Cell<bool>,
}

/// See the module.
pub struct Process {
    pub number: usize,
    pub alive: Cell<bool>,
    pub stopped_until_ns: Cell<u64>,
    pub page: &'static WaitPage,
    /// Counters of the eventfds.
    pub doors: [Cell<u64>; DOORS],
    pub registered: Cell<u64>,
    pub doors_used: Cell<usize>,
    /// Each with its number.
    pub mail: RefCell<VecDeque<(u64, Mail)>>,
    /// The number of the last that was read.
    pub mail_seen: Cell<u64>,
    /// Who reads the mail; 0: nobody.
    pub mail_reader: Cell<usize>,
    pub links: RefCell<Vec<&'static Link>>,
    pub connected: Cell<bool>,
    /// The broker has died, which is found out by a send, or behind the last mail.
    pub broker_gone: Cell<bool>,
    pub retry_at_ns: Cell<u64>,
    pub exhausted: Cell<bool>,
}

/// One end of a connection.
pub struct Conn {
    pub number: usize,
    pub process: usize,
    pub socket: usize,
    /// Streams by which it sends and receives.
    pub streams: (usize, usize),
    pub state: State,
    pub phase: Phase,
    pub serial: Cell<u64>,
    pub operations: Cell<u64>,
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
    pub own_base: *mut u8,
    pub peer: &'static Endpoint,
    pub peer_base: *mut u8,
    pub peer_process: usize,
    pub slot: u32,
    pub generation: u32,
    pub channel_id: u64,
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
            mail_seen: Cell::new(0),
            mail_reader: Cell::new(0),
            links: RefCell::default(),
            connected: Cell::new(false),
            broker_gone: Cell::new(false),
            retry_at_ns: Cell::new(0),
            exhausted: Cell::new(false),
        }
    }

    pub fn has_mail(&self) -> bool {
        let readable = !self.mail.borrow().is_empty() || self.broker_gone.get();
        readable && self.mail_reader.get() == 0
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
        (self.broker_gone.get() || !self.connected.get()) && !self.links.borrow().is_empty()
    }

    /// A doorbell for a thread of its own.
    pub fn take_door(&self) -> usize {
        let door = self.doors_used.get();
        assert!(door < DOORS, "too many threads");
        self.doors_used.set(door + 1);
        door
    }

    pub fn link(&self, id: u64) -> Option<&'static Link> {
        let links = self.links.borrow();
        links.iter().copied().find(|link| link.id == id)
    }

    /// The broker is found to be gone.
    pub fn lost(&self, world: &World) {
        self.connected.set(false);
        self.broker_gone.set(false);
        self.mail.borrow_mut().clear();
        self.retry_at_ns.set(world.now_ns.get() + RETRY_NS);
        for conn in world
            .conns
            .iter()
            .filter(|conn| conn.process == self.number)
        {
            if conn.phase.transition(Event::Voided).is_ok() {
                conn.operations.set(0);
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
    pub fn exhaust(&self) {
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
        let phase = Phase::default();
        phase.advance(Event::Opened);
        Self {
            number,
            process,
            socket,
            streams,
            state: State::default(),
            phase,
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
        self.phase.load(Ordering::Acquire) == phase::PAIRED
    }

    pub fn id(&self) -> u64 {
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
        self.phase.advance(Event::Left);
    }

    /// For the end of a run.
    pub fn describe(&self) -> String {
        let name = format!("end {} {:?}", self.number, self.phase);
        let Some(bound) = self.bound.get() else {
            return name;
        };
        format!(
            "{name} attention {} tx {} rx {} tail {} head {} switch_at {} at {} back {}",
            self.state.attention.load(Ordering::Relaxed),
            bound.own.cold.tx_state.load(Ordering::Relaxed),
            bound.own.wait.rx_state.load(Ordering::Relaxed),
            bound.own.tx.tail.load(Ordering::Relaxed),
            bound.own.rx.head.load(Ordering::Relaxed),
            bound.own.cold.switch_at.load(Ordering::Relaxed),
            bound.own.rx_own.kernel_position.load(Ordering::Relaxed),
            bound.own.tx_own.back_at.load(Ordering::Relaxed),
        )
    }
}

/// What threads of a process do with its connections and doorbells.
impl Ctx<'_> {
    /// Knocks at those of the peer's doors that sleep and were not knocked at yet.
    pub fn knock(&self, conn: &Conn, doors: u64) {
        let Bound {
            link, peer_process, ..
        } = conn.bound();
        let peer = &self.world.processes[peer_process];
        // SAFETY: wait pages are never unmapped.
        let mut left = unsafe {
            doors_to_knock_at(peer.page, doors, |door, count| {
                link.knocked[door].replace(count) != count
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
                link.knocked[door].set(0);
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

    /// Knocks at those of the process's own `doors` behind which a thread sleeps.
    pub fn knock_own(&self, doors: u64) {
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
        if conn.phase.transition(Event::Voided).is_ok() {
            self.report(conn, status::WITHDRAWN, 0);
        } else if conn.is_paired() {
            let end = At::new(self, conn);
            ends::before_close(&end, Some(down::deadline(end.now_ns())));
            let own = conn.bound().own;
            self.lock(&own.tx_own.lock);
            self.lock(&own.rx_own.lock);
            let has_it = conn.is_paired();
            if has_it {
                self.report(conn, status::CLOSED, 0);
                conn.phase.advance(Event::Left);
            }
            let link = conn.bound().link;
            own.tx_own.lock.store(0, Ordering::Release);
            own.rx_own.lock.store(0, Ordering::Release);
            if has_it {
                link.unbind();
            }
        }
        conn.serial.set(conn.serial.get() + 1);
        self.point();
        // Who is killed before this step leaves it to its kernel.
        conn.closed.set(true);
        kernel::close(&mut self.world.sockets.borrow_mut(), conn.socket);
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
