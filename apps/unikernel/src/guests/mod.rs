//! Rings to programs of Linux guests, beneath which TCP stays: this image is a broker, too (docs/guests.md).
//!
//! ```text
//!   dom0 ─ XenStore ─► meetings ◄═ lines over granted pages ═► broker of a Linux guest (the senior)
//!                        │ Link, Peer, Bell, Pair, ...
//!   server's tasks ─► connections (`conn`) ◄═ granted pages, event channels ═► its programs
//! ```
//! It has a junior's part alone: with a guest that was started before it. The other one's broker pairs; this one offers each connection
//! of such a guest when it is accepted, and does what it is told. With a guest that was started later all stays on TCP.
//!
//! A turn of the main loop acts on what has come ([`Guests::turn`]), and before it sleeps it looks at each ring once more
//! ([`Guests::may_sleep`]). One door serves all: who rings it only ends the sleep.
//!
//! Links end with their peer, its broker or its guest, without an answer: of a guest that is destroyed XenStore tells, and TCP after
//! twenty minutes or never.
//!
//! **Limits.** Rings take an eighth of the domain's memory, 4 MB each side of a link, and one link is one process there. The last links are for
//! guests that have none. Pages stay rings' for good, for one peer after the other. Beyond that, and as PVH, all is TCP. While guests are met the
//! domain is not suspended.

mod conn;
mod way;

use crate::net::Net;
use crate::xen::Xen;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
pub use conn::Conn;
use conn::{Link, Outbox, PROCESS};
use core::cell::{Cell, RefCell, RefMut};
use core::sync::atomic::{Ordering, fence};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{DOOR_COUNT, DOOR_SHARED, GUEST_SLOT_COUNT};
use fordway_guests::GuestAddresses;
use fordway_guests::meet::{self, Word};
use fordway_guests::talk::{self, Down, Lines, Up};
use fordway_netfront::Guest;
use fordway_netstack::TcpId;
use fordway_xen_guest::foreign::{Granted, Range};
use fordway_xen_guest::rings::{self, LINK_BYTES, LINK_LAYOUT, WIRE_BYTES, WIRE_LAYOUT, Wire};
use fordway_xen_guest::{console_line, memory};
pub use way::drive;

/// Tokens of watches: what dom0 says; and, with the number behind it, what another guest says.
const SAID: &str = "guests";
const OF_GUEST: &str = "guest/";

/// Before what has failed is tried again, and between two meetings with one guest.
const AGAIN_NS: u64 = 1_000_000_000;
/// Between the word to connections that a guest is gone and the second one, behind which what is left of them is lost.
const GONE_NS: u64 = 500_000_000;
/// What may wait to be sent: more is a broker that does not read.
const OUTGOING_BYTES_MAX: usize = 1 << 20;
/// Lines of one broker that are acted on in a turn.
const LINES_PER_TURN: usize = 64;
/// Brokers' regions, with those that former peers still have mapped.
const WIRES_MAX: usize = 8;
/// Rings have one part in so many of the memory.
const MEMORY_SHARE: usize = 8;
const CONNECTIONS_MAX: usize = 1024;
/// Bytes that are received at once from a ring. What the server does not take of them yet is kept.
const SCRATCH_BYTES: usize = 16 << 10;
/// As numbers of sockets a junior's have 48 bits.
const COOKIE_MAX: u64 = 1 << 47;

/// Another guest.
struct Other {
    addresses: GuestAddresses,
    wire: Option<Wire>,
    /// What its node said when it was acted on.
    heard: String,
    met_at_ns: Option<u64>,
    incoming: Lines,
    outgoing: Vec<u8>,
    /// Its broker knows of this image.
    has_joined: bool,
    /// When its node was found to be gone: the guest is, unless dom0 says soon that it may not be met any more.
    gone_at_ns: Option<u64>,
}

/// A link, and what of it the connections need not know.
struct Held {
    link: Rc<Link>,
    /// Our pages, until the peer's have come.
    own: Option<Granted>,
    /// Ports beside those that we knock at.
    views: Vec<u32>,
    /// The peer's process is gone, or its broker.
    is_over: bool,
    /// Its broker waits for our word that nothing of it is mapped here.
    owes_word: bool,
}

#[derive(Default)]
struct Inner {
    own: u16,
    addresses: Option<GuestAddresses>,
    others: BTreeMap<u16, Other>,
    /// Guests to which this one would be the senior.
    later: BTreeSet<u16>,
    links: Vec<Held>,
    /// Pages for the next one, and the guest that had them last, which may still have some mapped.
    regions: Vec<(u16, Granted)>,
    /// Addresses.
    ranges: Vec<Range>,
    /// Of brokers: the guest that they were granted to last, pages and addresses.
    wires: Vec<(u16, Granted, Range)>,
    wire_count: usize,
    /// What dom0 says is to be read again.
    is_unread: bool,
    again_at_ns: Option<u64>,
    watched_at_ns: u64,
    has_more: bool,
}

pub struct Guests {
    /// As PVH nothing can be mapped.
    is_able: bool,
    links_max: usize,
    inner: RefCell<Inner>,
    conns: RefCell<BTreeMap<u64, Rc<Conn>>>,
    outbox: Rc<Outbox>,
    scratch: RefCell<Vec<u8>>,
    next_number: Cell<u64>,
    /// Rings were looked at when nothing had come, and before the turn that acts on that.
    is_looked_at: Cell<bool>,
    /// Watches that have fired.
    is_said: Cell<bool>,
    said_by: RefCell<Vec<u16>>,
    /// By connections that are gone.
    carried: Cell<[u64; 2]>,
    told: Cell<[u64; 2]>,
}

impl Guests {
    pub fn new(xen: &mut Xen, seed: u64) -> Rc<Guests> {
        let memory_bytes = memory::with(|memory| memory.page_count()) << 12;
        let guests = Guests {
            is_able: xen.domain.pv,
            links_max: memory_bytes / MEMORY_SHARE / (rings::LINK_PAGES << 12),
            inner: RefCell::default(),
            conns: RefCell::default(),
            outbox: Rc::default(),
            scratch: RefCell::default(),
            // A former image of this name may have had connections of the same numbers.
            next_number: Cell::new(seed % COOKIE_MAX),
            is_looked_at: Cell::new(false),
            is_said: Cell::new(false),
            said_by: RefCell::default(),
            carried: Cell::default(),
            told: Cell::default(),
        };
        guests.listen(xen);
        Rc::new(guests)
    }

    /// Begins to hear of dom0's words, also after a suspend.
    pub fn listen(&self, xen: &mut Xen) {
        if !self.is_able {
            return;
        }
        let own = xen.read("domid").and_then(|own| own.parse().ok());
        let inner = &mut *self.inner.borrow_mut();
        inner.own = own.unwrap_or(0);
        // Nobody is met. Watches are gone, and what was granted is not any more.
        inner.addresses = None;
        inner.others.clear();
        inner.later.clear();
        for (_, own, _) in &mut inner.wires {
            let _ = own.end(&mut xen.domain.grants);
        }
        xen.watch_as(meet::SAID, SAID);
        // The watch may have outlived a suspend, and say nothing then.
        self.is_said.set(true);
    }

    /// A watch has fired.
    pub fn note(&self, token: &str) {
        if token == SAID {
            self.is_said.set(true);
        } else if let Some(other) = token.strip_prefix(OF_GUEST)
            && let Ok(other) = other.parse()
        {
            self.said_by.borrow_mut().push(other);
        }
    }

    /// Whether the domain shares memory with other guests: it cannot be suspended then.
    pub fn are_met(&self) -> bool {
        let inner = self.inner.borrow();
        !inner.links.is_empty() || inner.others.values().any(|other| other.wire.is_some())
    }

    /// Where bytes are received.
    pub fn scratch(&self) -> RefMut<'_, Vec<u8>> {
        let mut scratch = self.scratch.borrow_mut();
        if scratch.is_empty() {
            scratch.resize(SCRATCH_BYTES, 0);
        }
        scratch
    }

    /// Offers a connection that was accepted, if it is one of a guest that is met.
    pub fn offer(&self, net: &Rc<Net>, id: TcpId) -> Option<Rc<Conn>> {
        let mut inner = self.inner.borrow_mut();
        let own = inner.addresses.as_ref()?;
        let (local, remote) = net.stack().tcp_names(id).ok()?;
        if !own.has(local.ip().to_canonical()) || self.conns.borrow().len() >= CONNECTIONS_MAX {
            return None;
        }
        let ip = remote.ip().to_canonical();
        let mut others = inner.others.iter_mut();
        let (&domain, other) = others.find(|(_, other)| other.addresses.has(ip))?;
        other.wire.as_ref()?;
        let number = self.next_number.get() + 1;
        self.next_number.set(number);
        let mut outbox = self.outbox.borrow_mut();
        if !core::mem::replace(&mut other.has_joined, true) {
            let doors = 1 << DOOR_SHARED;
            let process = PROCESS;
            outbox.push((domain, Up::Join { process, doors }));
        }
        let offer = Up::Offer {
            process: PROCESS,
            conn: number,
            cookie: number,
            local: (local.ip().to_canonical(), local.port()).into(),
            remote: (ip, remote.port()).into(),
        };
        outbox.push((domain, offer));
        let mailbox = self.outbox.clone();
        let whose = (number, domain, local.ip().to_canonical());
        let conn = Rc::new(Conn::offered(net.clone(), id, mailbox, whose));
        self.conns.borrow_mut().insert(number, conn.clone());
        Some(conn)
    }

    /// A connection has ended, or has no rings any more.
    pub fn closed(&self, conn: &Conn) {
        let [sent, received] = self.carried.get();
        let [more_sent, more_received] = conn.carried();
        self.carried
            .set([sent + more_sent, received + more_received]);
        self.conns.borrow_mut().remove(&conn.number);
    }

    /// Acts on what has come.
    pub fn turn(&self, xen: &mut Xen, now_ns: u64) {
        if !self.is_able {
            return;
        }
        let inner = &mut *self.inner.borrow_mut();
        for held in &inner.links {
            if let Some(memory) = held.link.memory.get() {
                memory.retract();
            }
        }
        let is_late = inner.again_at_ns.is_some_and(|at_ns| now_ns >= at_ns);
        if is_late {
            inner.again_at_ns = None;
        }
        if self.is_said.take() || is_late && core::mem::take(&mut inner.is_unread) {
            self.read_what_is_said(inner, xen, now_ns);
        }
        let mut said_by = self.said_by.take();
        if is_late {
            let waits = |(_, other): &(&u16, &Other)| other.wire.is_none();
            said_by.extend(inner.others.iter().filter(waits).map(|(other, _)| *other));
        }
        for other in said_by {
            self.look_at(inner, xen, other, now_ns);
        }
        let has_more = core::mem::take(&mut inner.has_more);
        let mut rings = |known: &Other| {
            let port = known.wire.as_ref().map(Wire::port);
            port.is_some_and(|port| xen.take_event(port) || has_more)
        };
        let rung = inner.others.iter().filter(|(_, known)| rings(known));
        let rung: Vec<u16> = rung.map(|(other, _)| *other).collect();
        for other in rung {
            self.hear(inner, xen, other, now_ns);
        }
        if !self.is_looked_at.take() {
            self.look_at_rings();
        }
        if now_ns >= inner.watched_at_ns + AGAIN_NS {
            inner.watched_at_ns = now_ns;
            let is_due = |known: &Other| {
                known
                    .gone_at_ns
                    .is_some_and(|at_ns| now_ns > at_ns + GONE_NS)
            };
            let gone = inner.others.iter().filter(|(_, known)| is_due(known));
            gone.for_each(|(other, _)| self.tell_gone(*other));
            let conns: Vec<_> = self.conns.borrow().values().cloned().collect();
            conns.iter().for_each(|conn| conn.watch(AGAIN_NS));
            self.tell_carried(xen);
        }
    }

    /// What is to be told is sent; whether there is nothing to be done before the next event.
    pub fn may_sleep(&self, xen: &mut Xen, now_ns: u64) -> bool {
        if !self.is_able {
            return true;
        }
        let inner = &mut *self.inner.borrow_mut();
        // Its last connection may have ended in this turn, and the peer's guest waits for its pages.
        self.end_links(inner, xen);
        for (other, up) in self.outbox.take() {
            if let Some(other) = inner.others.get_mut(&other)
                && other.wire.is_some()
                && let Some(line) = talk::line(&up)
            {
                other.outgoing.extend(line);
            }
        }
        let mut behind = Vec::new();
        for (domain, other) in &mut inner.others {
            let Some(wire) = &other.wire else { continue };
            let sent = match other.outgoing.is_empty() {
                true => Ok(0),
                false => wire.try_send(&other.outgoing),
            };
            match sent {
                Ok(count) => drop(other.outgoing.drain(..count)),
                Err(rings::Over) => behind.push(*domain),
            }
            if other.outgoing.len() > OUTGOING_BYTES_MAX {
                behind.push(*domain);
            }
        }
        for other in behind {
            self.part(inner, xen, other, now_ns);
        }
        for held in &inner.links {
            if let Some(memory) = held.link.memory.get() {
                memory.announce();
            }
        }
        // SYNC POINT with `Producer::publish` and `Consumer::take`: the sleep is announced before the last look.
        fence(Ordering::SeqCst);
        let has_heard = self.is_said.get() || !self.said_by.borrow().is_empty();
        let is_ready = self.look_at_rings();
        self.is_looked_at.set(is_ready);
        !is_ready && !inner.has_more && !has_heard && self.outbox.borrow().is_empty()
    }

    /// When something is to be tried again, or bytes that lie in rings are to be looked at.
    pub fn next_ns(&self) -> Option<u64> {
        let inner = self.inner.borrow();
        let lie = self.conns.borrow().values().any(|conn| conn.has_unread());
        let watch_ns = lie.then_some(inner.watched_at_ns + AGAIN_NS);
        inner.again_at_ns.into_iter().chain(watch_ns).min()
    }

    /// Whether some connection has something to do.
    fn look_at_rings(&self) -> bool {
        let conns = self.conns.borrow();
        conns
            .values()
            .fold(false, |any, conn| conn.wake_if_ready() | any)
    }

    /// Bytes that went by rings, for whoever reads it in dom0.
    fn tell_carried(&self, xen: &mut Xen) {
        let add = |[sent, received]: [u64; 2], conn: &Rc<Conn>| {
            let [more_sent, more_received] = conn.carried();
            [sent + more_sent, received + more_received]
        };
        let all = self.conns.borrow().values().fold(self.carried.get(), add);
        if all != self.told.replace(all) {
            xen.write(
                "data/fordway-rings",
                &format!("tx {} rx {}", all[0], all[1]),
            );
        }
    }

    fn again(&self, inner: &mut Inner, now_ns: u64) {
        let at_ns = now_ns + AGAIN_NS;
        inner.again_at_ns = Some(inner.again_at_ns.map_or(at_ns, |sooner| sooner.min(at_ns)));
    }

    fn read_what_is_said(&self, inner: &mut Inner, xen: &mut Xen, now_ns: u64) {
        let Some((addresses, mut said)) = read_all(xen) else {
            // XenStore does not answer: what was said before holds.
            inner.is_unread = true;
            return self.again(inner, now_ns);
        };
        if addresses.is_none() {
            said.clear();
        }
        said.remove(&inner.own);
        inner.addresses = addresses;
        let is_ours = |ip| inner.addresses.as_ref().is_some_and(|own| own.has(ip));
        self.ask_down(|conn| !is_ours(conn.local), Reason::Unassigned);
        let known = inner.others.keys().copied();
        let gone: Vec<u16> = known.filter(|other| !said.contains_key(other)).collect();
        for other in gone {
            xen.unwatch_as(
                &meet::node_of(other, inner.own),
                &format!("{OF_GUEST}{other}"),
            );
            self.part(inner, xen, other, now_ns);
            xen.xs_remove(&meet::node_for(other));
            inner.others.remove(&other);
        }
        for (other, addresses) in said {
            if let Some(known) = inner.others.get_mut(&other) {
                if known.addresses != addresses {
                    known.addresses = addresses;
                    self.ask_down(|conn| conn.domain == other, Reason::Unassigned);
                }
                continue;
            }
            if other > inner.own {
                if inner.later.insert(other) {
                    console_line!("fordway: guest {other} was started later: no rings to it");
                }
                continue;
            }
            let known = Other {
                addresses,
                wire: None,
                heard: String::new(),
                met_at_ns: None,
                incoming: Lines::default(),
                outgoing: Vec::new(),
                has_joined: false,
                gone_at_ns: None,
            };
            inner.others.insert(other, known);
            // It fires at once.
            xen.watch_as(
                &meet::node_of(other, inner.own),
                &format!("{OF_GUEST}{other}"),
            );
            // The same.
            self.said_by.borrow_mut().push(other);
        }
    }

    /// Another guest's node may say something new.
    fn look_at(&self, inner: &mut Inner, xen: &mut Xen, other: u16, now_ns: u64) {
        let own = inner.own;
        let Ok(said) = xen.read_if_there(&meet::node_of(other, own)) else {
            return self.again(inner, now_ns);
        };
        let Some(known) = inner.others.get_mut(&other) else {
            return;
        };
        let Some(said) = said else {
            known.heard.clear();
            // Its broker removes it when dom0 has said no; or the guest is gone.
            self.is_said.set(true);
            // Told once here: this look may come again before what dom0 says is read.
            let is_news = known.gone_at_ns.is_none();
            known.gone_at_ns.get_or_insert(now_ns);
            self.part(inner, xen, other, now_ns);
            if is_news {
                self.tell_gone(other);
            }
            return;
        };
        known.gone_at_ns = None;
        if said == known.heard {
            return;
        }
        let is_early = known
            .met_at_ns
            .is_some_and(|at_ns| now_ns < at_ns + AGAIN_NS);
        if is_early {
            self.part(inner, xen, other, now_ns);
            return self.again(inner, now_ns);
        }
        known.heard.clone_from(&said);
        let Some(Word::Offer { nonce, grant, port }) = Word::read(&said) else {
            return;
        };
        self.part(inner, xen, other, now_ns);
        if let Some(known) = inner.others.get_mut(&other) {
            known.met_at_ns = Some(now_ns);
        }
        match self.answer(inner, xen, other, (nonce, grant, port)) {
            Some(()) => {
                console_line!("fordway: the broker of guest {other} is met");
                // It may have spoken.
                inner.has_more = true;
            }
            None => {
                console_line!("fordway: the broker of guest {other} is not met");
                if let Some(known) = inner.others.get_mut(&other) {
                    known.heard.clear();
                }
                self.again(inner, now_ns);
            }
        }
    }

    fn answer(
        &self,
        inner: &mut Inner,
        xen: &mut Xen,
        other: u16,
        (nonce, grant, port): (&str, u32, u32),
    ) -> Option<()> {
        let (own, range) = self.wire_pages(inner, xen, other)?;
        let (range, references) = match Wire::look_up(range, other, grant) {
            Ok(found) => found,
            Err((range, _)) => {
                inner.wires.push((other, own, range));
                return None;
            }
        };
        Wire::begin(&own);
        let reference = own.references()[0];
        let port = xen.domain.events.accept(other, port).ok();
        let heard = port.is_some_and(|port| xen.domain.events.listen(port));
        let made = match port {
            Some(port) if heard => Wire::new(own, range, other, &references, port),
            _ => Err((own, range, fordway_xen_guest::hypercall::Refused(0))),
        };
        let wire = match made {
            Ok(wire) => wire,
            Err((own, range, _)) => {
                if let Some(port) = port {
                    xen.port_close(port);
                }
                inner.wires.push((other, own, range));
                return None;
            }
        };
        let known = inner.others.get_mut(&other)?;
        known.incoming = Lines::default();
        known.outgoing.clear();
        known.has_joined = false;
        known.wire = Some(wire);
        let grant = reference;
        let said = Word::Answer { nonce, grant }.to_string();
        let node = meet::node_for(other);
        let [owner, reader] = meet::permissions(other, inner.own);
        let is_said = xen.write(&node, &said) && xen.permit(&node, &[&owner, &reader]);
        if !is_said {
            self.end_wire(inner, xen, other);
            return None;
        }
        Some(())
    }

    /// Pages for a broker's region, granted. All meetings with a guest have the same ones: it may have them mapped still.
    fn wire_pages(&self, inner: &mut Inner, xen: &mut Xen, other: u16) -> Option<(Granted, Range)> {
        let mut wires = inner.wires.iter();
        let former = wires.position(|(domain, own, _)| *domain == other && own.is_granted());
        if let Some(former) = former {
            let (_, own, range) = inner.wires.swap_remove(former);
            own.clear();
            return Some((own, range));
        }
        let grants = &mut xen.domain.grants;
        let free = inner
            .wires
            .iter_mut()
            .position(|(_, own, _)| own.end(grants));
        let (mut own, range) = match free {
            Some(free) => {
                let (_, own, range) = inner.wires.swap_remove(free);
                (own, range)
            }
            None if inner.wire_count == WIRES_MAX => return None,
            None => {
                let own = lay_pages(inner, xen, &WIRE_LAYOUT)?;
                inner.wire_count += 1;
                (own, Range::new(WIRE_BYTES))
            }
        };
        if !own.grant(&mut xen.domain.grants, other) {
            inner.wires.push((other, own, range));
            return None;
        }
        Some((own, range))
    }

    /// Pages for our side of a link, granted. The last ones are for guests that have none yet.
    fn link_pages(&self, inner: &mut Inner, xen: &mut Xen, other: u16) -> Option<Granted> {
        let grants = &mut xen.domain.grants;
        // Of all: what a guest has mapped still is a link of its.
        for (_, own) in &mut inner.regions {
            let _ = own.end(grants);
        }
        let links = inner.links.iter().map(|held| held.link.domain);
        let is_kept = |(_, own): &&(u16, Granted)| !own.references().is_empty();
        let kept = inner.regions.iter().filter(is_kept);
        let had: Vec<u16> = links.chain(kept.map(|(last, _)| *last)).collect();
        // Also those whose broker is not there just now, or not yet.
        let others = inner.others.keys().copied();
        if !meet::may_have_link(other, others, &had, self.links_max) {
            return None;
        }
        let mut regions = inner.regions.iter();
        let free = regions.position(|(_, own)| own.references().is_empty());
        let mut own = match free {
            Some(free) => inner.regions.swap_remove(free).1,
            None => lay_pages(inner, xen, &LINK_LAYOUT)?,
        };
        if !own.grant(&mut xen.domain.grants, other) {
            inner.regions.push((other, own));
            return None;
        }
        rings::begin_link(&own);
        Some(own)
    }

    /// The conversation is over; another one may come.
    fn part(&self, inner: &mut Inner, xen: &mut Xen, other: u16, now_ns: u64) {
        if self.end_wire(inner, xen, other) {
            console_line!("fordway: the broker of guest {other} is gone");
            self.again(inner, now_ns);
        }
    }

    fn end_wire(&self, inner: &mut Inner, xen: &mut Xen, other: u16) -> bool {
        let known = inner.others.get_mut(&other);
        let Some(wire) = known.and_then(|known| known.wire.take()) else {
            return false;
        };
        let (own, range, port) = wire.end();
        xen.port_close(port);
        inner.wires.push((other, own, range));
        for held in &mut inner.links {
            if held.link.domain == other {
                held.is_over = true;
                held.owes_word = false;
                held.link.is_alone.set(true);
            }
        }
        self.ask_down(|conn| conn.domain == other, Reason::NoPeer);
        true
    }

    /// A guest is gone, of which TCP may never hear.
    fn tell_gone(&self, other: u16) {
        for conn in self.conns.borrow().values() {
            if conn.domain == other && conn.channel().is_some() {
                conn.peer_gone();
            }
        }
    }

    /// These connections go back to TCP.
    fn ask_down(&self, of: impl Fn(&Conn) -> bool, reason: Reason) {
        for conn in self.conns.borrow().values().filter(|conn| of(conn)) {
            match conn.is_offered() {
                true => conn.withdraw(),
                false => conn.ask_down(reason as u32),
            }
        }
    }

    /// Another guest's broker has rung.
    fn hear(&self, inner: &mut Inner, xen: &mut Xen, other: u16, now_ns: u64) {
        let Some(known) = inner.others.get_mut(&other) else {
            return;
        };
        let Some(wire) = &known.wire else { return };
        // It rings for what comes behind this.
        wire.stand_by();
        let mut piece = vec![0; 4096];
        let mut is_over = false;
        while !known.incoming.is_full() {
            match wire.try_receive(&mut piece) {
                Ok(0) => break,
                Ok(count) => known.incoming.push(&piece[..count]),
                Err(rings::Over) => {
                    is_over = true;
                    break;
                }
            }
        }
        is_over |= known.incoming.is_nonsense();
        let is_full = known.incoming.is_full();
        let lines = known.incoming.take(LINES_PER_TURN);
        // What it said last comes before its end.
        let has_line = known.incoming.has_line();
        is_over &= !has_line;
        inner.has_more |= has_line || is_full && !is_over;
        for line in lines {
            match talk::read(&line) {
                Some(down) => self.hear_down(inner, xen, other, down),
                None => is_over = true,
            }
        }
        if is_over {
            self.part(inner, xen, other, now_ns);
        }
    }

    /// The senior speaks of our connections.
    fn hear_down(&self, inner: &mut Inner, xen: &mut Xen, other: u16, down: Down) {
        let conn_of = |number: u64| {
            let conns = self.conns.borrow();
            let conn = conns.get(&number).cloned();
            conn.filter(|conn| conn.domain == other)
        };
        let tell = |up: Up| self.outbox.borrow_mut().push((other, up));
        let place_of = |inner: &Inner, number: u64| {
            let of = |held: &Held| (held.link.domain, held.link.number) == (other, number);
            inner
                .links
                .iter()
                .position(|held| of(held) && !held.is_over)
        };
        match down {
            Down::Reject { conn, pending, .. } => {
                if let Some(conn) = conn_of(conn).filter(|_| pending == 0) {
                    conn.void();
                }
            }
            Down::Link { process, link } => {
                if place_of(inner, link).is_some() {
                    return;
                }
                let Some(own) = self.link_pages(inner, xen, other) else {
                    return tell(Up::NoRegion { process, link });
                };
                let grants = own.references().to_vec();
                inner.links.push(Held {
                    link: Rc::new(Link::new(other, link)),
                    own: Some(own),
                    views: Vec::new(),
                    is_over: false,
                    owes_word: false,
                });
                tell(Up::Region {
                    process,
                    link,
                    grants,
                });
            }
            Down::Peer {
                process,
                link,
                grants,
            } => {
                let Some(at) = place_of(inner, link) else {
                    // It is over here.
                    return tell(Up::LetGo { process, link });
                };
                let Some(own) = inner.links[at].own.take() else {
                    return;
                };
                let range = range_of(inner);
                inner.links[at].owes_word = true;
                match rings::Link::new(own, range, other, &grants) {
                    Ok(memory) => {
                        let _ = inner.links[at].link.memory.set(memory);
                    }
                    Err((own, range, _)) => {
                        inner.links[at].own = Some(own);
                        inner.links[at].is_over = true;
                        inner.ranges.push(range);
                        tell(Up::NoRegion { process, link });
                    }
                }
            }
            Down::Bell {
                link,
                door,
                port,
                sleeps,
                ..
            } => {
                let Some(at) = place_of(inner, link).filter(|_| door < DOOR_COUNT as u64) else {
                    return;
                };
                let held = &mut inner.links[at];
                let door = &held.link.ports[door as usize];
                let is_known = match sleeps {
                    true => !held.views.is_empty(),
                    false => door.get() != 0,
                };
                if is_known {
                    return;
                }
                let Ok(port) = xen.domain.events.accept(other, port) else {
                    return;
                };
                match sleeps {
                    true if !xen.domain.events.listen(port) => xen.port_close(port),
                    true => held.views.push(port),
                    false => door.set(port),
                }
            }
            Down::Pair {
                conn: number,
                channel,
                link,
                slot,
                generation,
                ..
            } => {
                let held = place_of(inner, link).map(|at| &inner.links[at]);
                // Without bells one end would wait for the other for ever.
                let has_bells = |held: &&Held| {
                    held.link.ports[DOOR_SHARED].get() != 0 && !held.views.is_empty()
                };
                let held = held.filter(|held| held.link.memory.get().is_some());
                let held = held.filter(has_bells);
                let held = held.filter(|_| (slot as usize) < GUEST_SLOT_COUNT);
                // Two in one place would undo each other.
                let is_free = |held: &&Held| {
                    let conns = self.conns.borrow();
                    !conns.values().any(|conn| conn.is_at(&held.link, slot))
                };
                let held = held.filter(is_free);
                let conn = conn_of(number);
                let is_paired = held.zip(conn).is_some_and(|(held, conn)| {
                    conn.pair(held.link.clone(), channel, slot, generation)
                });
                if !is_paired {
                    tell(Up::Status {
                        process: PROCESS,
                        conn: number,
                        channel,
                        status: fordway_abi::control::status::CLOSED,
                        reason: 0,
                        tx: 0,
                        rx: 0,
                    });
                }
            }
            Down::Downgrade {
                channel, reason, ..
            } => {
                let conns = self.conns.borrow();
                let mut of_it = conns.values().filter(|conn| conn.domain == other);
                if let Some(conn) = of_it.find(|conn| conn.channel() == Some(channel)) {
                    conn.ask_down(reason);
                }
            }
            Down::PeerGone { link, .. } => {
                let Some(at) = place_of(inner, link) else {
                    return;
                };
                let held = &mut inner.links[at];
                held.is_over = true;
                held.link.is_alone.set(true);
                let conns: Vec<_> = self.conns.borrow().values().cloned().collect();
                for conn in conns.iter().filter(|conn| conn.is_of(&held.link)) {
                    conn.peer_gone();
                }
            }
            Down::Ask { process, door } => tell(Up::Answer { process, door }),
            // This image has one door, from the start. And it asks its grants themselves whether they can be ended.
            Down::DoorAck { .. } | Down::LetGo { .. } => {}
        }
    }

    /// Lets go of links that no connection has any more.
    fn end_links(&self, inner: &mut Inner, xen: &mut Xen) {
        let is_over = |held: &mut Held| held.is_over && Rc::strong_count(&held.link) == 1;
        let over: Vec<Held> = inner.links.extract_if(.., is_over).collect();
        for Held {
            link,
            own,
            views,
            owes_word,
            ..
        } in over
        {
            let Ok(link) = Rc::try_unwrap(link) else {
                continue;
            };
            let ports = link.ports.iter().map(Cell::get).filter(|port| *port != 0);
            ports.chain(views).for_each(|port| xen.port_close(port));
            let own = match link.memory.into_inner() {
                Some(memory) => {
                    let (own, range) = memory.end();
                    inner.ranges.push(range);
                    Some(own)
                }
                None => own,
            };
            if owes_word {
                let (domain, process, link) = (link.domain, PROCESS, link.number);
                let word = Up::LetGo { process, link };
                self.outbox.borrow_mut().push((domain, word));
            }
            if let Some(mut own) = own {
                // What the peer still has mapped is asked for again when there is need.
                let _ = own.end(&mut xen.domain.grants);
                inner.regions.push((link.domain, own));
            }
        }
    }
}

/// Our addresses and the others', as dom0 says them; nothing, if XenStore does not answer.
fn read_all(xen: &mut Xen) -> Option<(Option<GuestAddresses>, BTreeMap<u16, GuestAddresses>)> {
    let addresses = xen.read_if_there(meet::ADDRESS).ok()?;
    let names = xen.list_if_there(meet::PEERS).ok()?;
    let mut said = BTreeMap::new();
    for other in names.iter().filter_map(|name| name.parse().ok()) {
        let theirs = xen.read_if_there(&meet::peer(other)).ok()?;
        if let Some(theirs) = theirs.and_then(|theirs| theirs.parse().ok()) {
            said.insert(other, theirs);
        }
    }
    Some((addresses.and_then(|own| own.parse().ok()), said))
}

/// Addresses for one side of a link.
fn range_of(inner: &mut Inner) -> Range {
    let range = inner.ranges.pop();
    range.unwrap_or_else(|| Range::new(LINK_BYTES))
}

/// New pages of ours, laid as a region has them.
fn lay_pages(inner: &mut Inner, xen: &mut Xen, layout: &[(usize, usize)]) -> Option<Granted> {
    let pages = take_pages(xen, layout.iter().map(|(_, count)| count).sum())?;
    match Granted::new(range_of(inner), layout, pages) {
        Ok(own) => Some(own),
        Err((range, pages)) => {
            inner.ranges.push(range);
            pages.into_iter().for_each(|page| xen.page_free(page));
            None
        }
    }
}

/// So many pages for sharing, or none.
fn take_pages(xen: &mut Xen, count: usize) -> Option<Vec<fordway_xen_guest::shared::SharedPage>> {
    let mut pages = Vec::with_capacity(count);
    while pages.len() < count {
        match xen.page_new() {
            Some(page) => pages.push(page),
            None => {
                pages.into_iter().for_each(|page| xen.page_free(page));
                return None;
            }
        }
    }
    Some(pages)
}
