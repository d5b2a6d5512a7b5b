//! A flow: this process's end of two UDP sockets that exchange datagrams.
//!
//! # Phases
//! ```text
//!   FREE ──► KERNEL ──► OFFERED ──► BINDING ──► PAIRED ──► LEAVING ──► KERNEL or FREE
//!              ▲ counts    │ Reject, too many flows
//!              └───────────┘
//! ```
//! In KERNEL calls are counted, and enough of them make an offer. BINDING and LEAVING are a few instructions long; who
//! finds a flow there goes by the kernel. Only the thread that reads mail binds. Whoever ends a channel holds the
//! flow's lock and its socket's, so nobody is in the middle of a record. No handler comes between the steps from one phase to
//! the next, and jumps: nobody else would go on with them.

use super::all::{self, Receivers};
use super::{
    FLOW_COUNT, FLOWS_MAX, Name, NameWords, Socket, Template, flow_in, place_word, socket_at,
};
use crate::lock::{Lock, rank};
use crate::process::PROCESS;
use crate::spin::Peer;
use crate::state;
use crate::thread::Shield;
use crate::{broker, claim, config, faults, identity, insisted, link, sys};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::control::status;
use fordway_abi::reason::Reason;
use fordway_abi::shm::{Endpoint, WaitPage, rx_state, tx_flags, tx_state};
use fordway_ring::{Consumer, Producer};

/// Of numbers by which the broker knows flows; those of connections do not have it.
const ID_BIT: u64 = 1 << 31;
/// Calls before an offer that was turned down is made again.
const CALLS_WITHOUT_RINGS: u32 = 1000;
/// The same of a flow that had a channel.
const CALLS_BEHIND_RINGS: u32 = 64;

/// Of so many datagrams to or from names without a flow, one makes way for its own where there is no place.
const NEWCOMERS: u32 = 16;
/// What fits every path of IPv6, and all but odd ones of IPv4 (RFC 8200).
const MTU_MIN: u32 = 1280;
/// Headers of UDP and IP.
const HEADERS4_BYTES: usize = 28;
const HEADERS6_BYTES: usize = 48;

/// Odd, and large: multiples of it by numbers of channels differ by more than rings ever hold.
const CHANNELS_APART: u64 = 0x9e37_79b9_7f4a_7c15;

mod phase {
    pub const FREE: u32 = 0;
    pub const KERNEL: u32 = 1;
    pub const OFFERED: u32 = 2;
    pub const BINDING: u32 = 3;
    pub const PAIRED: u32 = 4;
    pub const LEAVING: u32 = 5;
}

/// See the module.
#[repr(C, align(128))]
pub struct Flow {
    phase: AtomicU32,
    serial: AtomicU32,
    /// The socket, plus one; 0: free.
    socket: AtomicU32,
    remote: NameWords,
    /// Its own name, once it was offered, and the bytes of IP that fit the path; port 0: not yet.
    own_name: NameWords,
    mtu: AtomicU32,
    /// What stands beside its datagrams.
    pub(super) template: Template,
    /// Next free entry, plus one; or, in use, its place in the socket's list.
    place: AtomicU32,
    /// Datagrams of either direction, up to the offer, and how many make one.
    calls: AtomicU32,
    due: AtomicU32,
    /// Guards the producer.
    pub(super) sending: Lock<{ rank::SENDING }>,
    /// Datagrams given to the kernel, and when the last one was, in ticks.
    pub(super) by_kernel: AtomicU32,
    pub(super) by_kernel_at: AtomicU64,
    /// 1: something has come from the peer since.
    pub(super) answered: AtomicU32,
    /// Those of them since the peer was ready for the ring.
    pub(super) held_back: AtomicU32,
    /// When a send looks at the peer's index again, in ticks; where that was at the last look, and since when it is
    /// there although records are unread, in ticks; 0: not known.
    pub(super) look_at: AtomicU64,
    pub(super) seen_head: AtomicU64,
    pub(super) unread_since: AtomicU64,
    /// Datagrams that came by the kernel: of the peer's `by_kernel`, as many have come, or were lost.
    pub(super) seen_by_kernel: AtomicU32,
    /// The peer's tail, plus one, when it was found to have left; 0: it has not. It publishes no more.
    left_at: AtomicU64,
    /// Datagrams that were taken of it while others had some as well.
    pub(super) turns: AtomicU32,
    /// Why it leaves, for the broker.
    reason: AtomicU32,
    /// 1: the peer has broken the protocol; nothing of its ring is read any more.
    pub(super) broken: AtomicU32,
    /// 1: the peer's endpoint is that of this channel.
    there: AtomicU32,
    /// 1: its socket is closed, or has other ones: it is given back by whoever ends the phase that it is in.
    pub(super) closing: AtomicU32,
    link: AtomicU32,
    generation: AtomicU32,
    channel_id: AtomicU64,
    own: AtomicPtr<Endpoint>,
    own_base: AtomicPtr<u8>,
    peer: AtomicPtr<Endpoint>,
    peer_base: AtomicPtr<u8>,
    peer_page: AtomicPtr<WaitPage>,
    /// 1: the kernel's broadcasts come to whom it is to.
    pub(super) hears: AtomicU32,
    /// If it is one to a broadcast address.
    pub(super) receivers: Receivers,
}

/// Flow number `index`.
pub fn at(index: u32) -> &'static Flow {
    let flows = PROCESS.datagrams.flows.load(Ordering::Relaxed);
    // SAFETY: FLOW_COUNT zeroed entries of atomics, never unmapped; an index was given out with them.
    unsafe { &*flows.add(index as usize % FLOW_COUNT) }
}

fn all() -> impl Iterator<Item = &'static Flow> {
    (0..PROCESS.datagrams.flow_high.load(Ordering::Acquire)).map(at)
}

/// A new flow of a socket. `None`: there is no place for one more.
pub fn new(socket: &Socket, remote: Name) -> Option<&'static Flow> {
    if !remote.is_single() {
        return None;
    }
    let free_place =
        || (0..FLOWS_MAX).find(|place| socket.flows[*place].load(Ordering::Relaxed) == 0);
    if socket.used.load(Ordering::Relaxed) as usize >= FLOWS_MAX {
        make_way(socket, remote)?;
    }
    let _guard = state::table_lock().lock()?;
    let place = free_place()?;
    let all = &PROCESS.datagrams;
    let is_free = |index: &u32| at(*index).phase.load(Ordering::Relaxed) == phase::FREE;
    let first = all.flow_free_from.load(Ordering::Relaxed);
    let index = (first..FLOW_COUNT as u32).find(is_free)?;
    all.flow_free_from.store(index + 1, Ordering::Relaxed);
    let flow = at(index);
    flow.remote.set(remote);
    flow.own_name.set(Name {
        ip: [0; 16],
        port: 0,
    });
    flow.template.forget();
    flow.receivers.begin();
    for zeroed in [
        &flow.calls,
        &flow.by_kernel,
        &flow.answered,
        &flow.seen_by_kernel,
        &flow.closing,
        &flow.mtu,
        &flow.hears,
    ] {
        zeroed.store(0, Ordering::Relaxed);
    }
    flow.by_kernel_at.store(0, Ordering::Relaxed);
    // As a connection: who requires rings has them from the first datagram on.
    let due = match config::insists() || insisted::is_so() {
        true => 0,
        false => config::offer_after(),
    };
    flow.due.store(due, Ordering::Relaxed);
    flow.place.store(place as u32, Ordering::Relaxed);
    flow.serial.fetch_add(1, Ordering::Relaxed);
    flow.socket.store(socket.index() + 1, Ordering::Relaxed);
    flow.phase.store(phase::KERNEL, Ordering::Release);
    all.flow_high.fetch_max(index + 1, Ordering::AcqRel);
    socket.flows[place].store(place_word(index, remote), Ordering::Release);
    socket.used.fetch_add(1, Ordering::Relaxed);
    socket.high.fetch_max(place as u32 + 1, Ordering::AcqRel);
    Some(flow)
}

/// Frees the place of a flow without a channel, each time another one's. If all have one, the address with the most of
/// them loses one, so that no domain keeps the others off the rings: the next flow has its place. Not for each
/// newcomer: a server with very many clients would do little else.
fn make_way(socket: &Socket, newcomer: Name) -> Option<()> {
    let turn = socket.next_out.fetch_add(1, Ordering::Relaxed);
    if !turn.is_multiple_of(NEWCOMERS) {
        return None;
    }
    let first = (turn / NEWCOMERS) as usize;
    let _shield = Shield::new();
    let freed = (0..FLOWS_MAX).find_map(|step| {
        let place = &socket.flows[(first + step) % FLOWS_MAX];
        let flow = flow_in(place.load(Ordering::Acquire))?;
        let is_out = flow.is_of(socket.index()) && flow.withdraw(phase::LEAVING);
        is_out.then(|| flow.free())
    });
    if freed.is_none() && !socket.flows().any(Flow::is_on_its_way_out) {
        let of_address = |ip| socket.flows().filter(|flow| flow.remote().ip == ip).count();
        let greedy = socket
            .flows()
            .max_by_key(|flow| of_address(flow.remote().ip))?;
        if of_address(greedy.remote().ip) > of_address(newcomer.ip) + 1 {
            greedy.drop_out();
        }
    }
    freed
}

/// Whether one has a channel, or may get one.
pub fn is_any_offered() -> bool {
    all().any(|flow| flow.phase.load(Ordering::SeqCst) > phase::KERNEL)
}

/// The broker is gone: offers are void, and what has a channel goes back to the kernel, for nobody would
/// see that another socket has its datagrams. Under the lock of the mail.
pub fn lost() {
    for flow in all() {
        flow.receivers.forget();
        flow.to_kernel(phase::OFFERED);
        flow.leave(false);
    }
}

/// In a forked child: nothing is touched that the parent has.
pub fn after_fork() {
    for flow in all() {
        flow.phase.store(phase::FREE, Ordering::Relaxed);
        flow.socket.store(0, Ordering::Relaxed);
        flow.sending.reset();
    }
    PROCESS.datagrams.flow_free_from.store(0, Ordering::Relaxed);
    PROCESS.datagrams.paired.store(0, Ordering::Relaxed);
}

impl Flow {
    /// The flow that the broker means.
    pub fn by_id(id: u64) -> Option<&'static Self> {
        if id & ID_BIT == 0 || PROCESS.datagrams.flow_high.load(Ordering::Acquire) == 0 {
            return None;
        }
        let flow = at((id & (ID_BIT - 1)) as u32);
        let is_it = flow.serial.load(Ordering::Relaxed) == (id >> 32) as u32
            && flow.phase.load(Ordering::Acquire) != phase::FREE;
        is_it.then_some(flow)
    }

    /// The flow that has this channel; the other one of it, if both ends are ours and it is asked again after the first
    /// was. One that has left by itself still reads what its peer publishes: it is asked as any other.
    pub fn of_channel(channel_id: u64) -> Option<&'static Self> {
        let has_it = |flow: &&Self| {
            flow.is_paired()
                && flow.channel_id.load(Ordering::Relaxed) == channel_id
                && !flow.consumer().has_asked()
        };
        all().find(has_it)
    }

    pub fn index(&self) -> u32 {
        let base = PROCESS.datagrams.flows.load(Ordering::Relaxed) as usize;
        ((self as *const Self as usize - base) / size_of::<Self>()) as u32
    }

    /// Number under which the broker knows it.
    pub fn id(&self) -> u64 {
        u64::from(self.serial.load(Ordering::Relaxed)) << 32 | ID_BIT | u64::from(self.index())
    }

    /// Whether it belongs to this socket.
    pub fn is_of(&self, socket: u32) -> bool {
        self.socket.load(Ordering::Relaxed) == socket + 1
    }

    fn socket(&self) -> Option<&'static Socket> {
        let index = self.socket.load(Ordering::Relaxed).checked_sub(1)?;
        Some(socket_at(index))
    }

    pub fn is_to(&self, name: Name) -> bool {
        self.remote.is(name)
    }

    /// Its own name, once it was offered.
    pub fn own_name(&self) -> Option<Name> {
        Some(self.own_name.get()).filter(|own| own.port != 0)
    }

    /// The address of that.
    pub fn own_ip(&self) -> Option<[u8; 16]> {
        self.own_name().map(|own| own.ip)
    }

    /// The longest datagram that is sure to fit the path, as that was when the flow was offered.
    pub fn bytes_that_fit(&self) -> usize {
        let headers = match self.remote().is_mapped() {
            true => HEADERS4_BYTES,
            false => HEADERS6_BYTES,
        };
        let mtu = self.mtu.load(Ordering::Relaxed).max(MTU_MIN);
        mtu as usize - headers
    }

    /// Who is at its far end.
    pub fn remote(&self) -> Name {
        self.remote.get()
    }

    /// Whether it has a channel.
    #[inline]
    pub fn is_paired(&self) -> bool {
        self.phase.load(Ordering::Acquire) == phase::PAIRED
    }

    /// Our endpoint. Of one that was PAIRED: what was mapped stays so, be it with other memory.
    pub fn own(&self) -> &'static Endpoint {
        // SAFETY: set before PAIRED; see `link`.
        unsafe { &*self.own.load(Ordering::Relaxed) }
    }

    /// Changes with each record that comes; what one channel has counted, no other one comes to.
    pub fn arrivals(&self) -> u64 {
        let channel_id = self.channel_id.load(Ordering::Relaxed);
        let tail = self.consumer().tail_hint();
        channel_id.wrapping_mul(CHANNELS_APART).wrapping_add(tail)
    }

    pub fn producer(&self) -> Producer {
        let own_base = self.own_base.load(Ordering::Relaxed);
        // SAFETY: `paired` pointed these into mapped regions.
        unsafe {
            let producer = Producer::new(self.own(), own_base, self.peer.load(Ordering::Relaxed));
            link::paid(producer)
        }
    }

    pub fn consumer(&self) -> Consumer {
        let peer_base = self.peer_base.load(Ordering::Relaxed);
        // SAFETY: as `producer`.
        unsafe { Consumer::new(self.own(), self.peer.load(Ordering::Relaxed), peer_base) }
    }

    /// Whether the peer has made its endpoint for this channel.
    pub fn peer_is_there(&self) -> bool {
        if self.there.load(Ordering::Relaxed) != 0 {
            return true;
        }
        // SAFETY: mapped by `paired`; an atomic load.
        let shown = unsafe { &(*self.peer.load(Ordering::Relaxed)).cold.generation };
        let there = shown.load(Ordering::Acquire) == self.generation.load(Ordering::Relaxed);
        self.there.store(u32::from(there), Ordering::Relaxed);
        there
    }

    /// Whether there is a record to be taken, as far as can be told without the lock.
    pub fn has_unread(&self) -> bool {
        self.is_paired()
            && self.broken.load(Ordering::Relaxed) == 0
            && self.peer_is_there()
            && self.consumer().looks_readable()
    }

    /// Whether its end of the ring was left, with records that are unread: they come before what the kernel has.
    pub fn drains(&self) -> bool {
        self.has_unread() && self.has_left()
    }

    /// Whether it has a channel that this side has left.
    pub(super) fn is_on_its_way_out(&self) -> bool {
        self.is_paired() && self.own().cold.tx_flags.load(Ordering::Relaxed) & tx_flags::SHUT != 0
    }

    /// Whether the peer uses the ring no more.
    fn has_left(&self) -> bool {
        matches!(
            self.consumer().producer_state(),
            tx_state::BACK | tx_state::WITHDRAWN
        )
    }

    /// Whether the peer has published behind its leave, or come back: the kernel's turn would never come. Under the
    /// lock of the socket's receivers.
    pub fn goes_on_behind_leave(&self) -> bool {
        let left_at = self.left_at.load(Ordering::Relaxed);
        if !self.has_left() {
            return left_at != 0;
        }
        // Behind the look at the state: the tail is the last one.
        let tail = self.consumer().tail_hint().wrapping_add(1);
        self.left_at.store(tail, Ordering::Relaxed);
        left_at != 0 && left_at != tail
    }

    /// When a record was sent, which its sender says in ticks: now, if its clock is another guest's.
    pub fn moment(&self, said: u64) -> u64 {
        match link::is_guests(self.link.load(Ordering::Relaxed)) {
            true => sys::ticks(),
            false => said,
        }
    }

    /// For spins.
    pub fn peer(&self) -> Peer {
        Peer {
            link: self.link.load(Ordering::Relaxed),
            own: self.own.load(Ordering::Relaxed),
            peer: self.peer.load(Ordering::Relaxed),
            is_grouped: false,
            pause: 0,
        }
    }

    /// Knocks at those of the peer's doors that sleep. The caller has published.
    pub fn knock(&self, doors: u64) {
        if doors == 0 {
            return;
        }
        let page = self.peer_page.load(Ordering::Relaxed);
        // SYNC POINT with `Sleeper::announce`, as in `doors_to_knock_at`.
        // SAFETY: mapped as long as the flow has its channel; an atomic load.
        let sleeping = unsafe { (*page).sleeping.load(Ordering::SeqCst) };
        if sleeping & doors != 0 {
            link::at(self.link.load(Ordering::Relaxed)).knock(doors);
        }
    }

    /// Datagrams have gone by the kernel.
    pub fn note_sent(&'static self, socket: &'static Socket, fd: i32, count: usize) {
        self.by_kernel_at.store(sys::ticks(), Ordering::Relaxed);
        self.answered.store(0, Ordering::Relaxed);
        self.by_kernel.fetch_add(count as u32, Ordering::Release);
        all::note_sent(socket, fd, self, count);
        self.count_call(socket, fd);
    }

    /// It is offered with the next call.
    pub(super) fn hurry(&self) {
        self.due.store(0, Ordering::Relaxed);
    }

    /// Datagrams have come by the kernel, as one of `bytes`, and in this message if it was one.
    pub fn note_come(
        &'static self,
        socket: &Socket,
        fd: i32,
        (message, bytes): (Option<&libc::msghdr>, usize),
    ) {
        let was_current = self.template.is_current(socket);
        let count = message.map_or(1, |message| {
            let _guard = socket.receiving.lock();
            self.template.note(socket, message, bytes, self.own_ip())
        });
        let seen = self
            .seen_by_kernel
            .fetch_add(count as u32, Ordering::Relaxed);
        self.answered.store(1, Ordering::Relaxed);
        if (seen == 0 || !was_current) && self.is_paired() {
            socket.try_ready();
        }
        self.count_call(socket, fd);
    }

    fn count_call(&'static self, socket: &Socket, fd: i32) {
        if self.phase.load(Ordering::Relaxed) != phase::KERNEL {
            return;
        }
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if calls >= self.due.load(Ordering::Relaxed) {
            self.offer(socket, fd);
        }
    }

    #[cold]
    fn offer(&'static self, socket: &Socket, fd: i32) {
        self.calls.store(0, Ordering::Relaxed);
        self.due.store(CALLS_WITHOUT_RINGS, Ordering::Relaxed);
        if identity::in_borrowed_memory() {
            return;
        }
        let remote = self.remote();
        let Some(way) = claim::way_to(fd, &remote.ip) else {
            return;
        };
        let (ip, port) = way.source;
        socket.port.store(u32::from(port), Ordering::Relaxed);
        if self.own_ip() != Some(ip) {
            self.template.forget();
        }
        self.own_name.set(Name { ip, port });
        self.mtu.store(way.mtu, Ordering::Relaxed);
        self.receivers.offer(way.is_to_all);
        let shield = Shield::new();
        // Before the claim is made: late mail of an earlier offer has no effect.
        if self.advance(phase::KERNEL, phase::OFFERED) {
            let names = [(ip, port), (remote.ip, remote.port)];
            if broker::offer_flow(self, fd, names, way.is_to_all) && socket.is_behind(fd) {
                drop(shield);
                broker::check_mail();
            } else {
                self.withdraw(phase::KERNEL);
            }
        }
    }

    /// The broker has its offer.
    #[cfg(test)]
    pub fn pretend_offered_as(&self, own: Name) {
        self.own_name.set(own);
        self.pretend_offered();
    }

    /// The same, under no name.
    #[cfg(test)]
    pub fn pretend_offered(&self) {
        assert!(self.advance(phase::KERNEL, phase::OFFERED));
    }

    /// The broker has said no.
    pub fn rejected(&self) {
        self.to_kernel(phase::OFFERED);
    }

    fn advance(&self, from: u32, to: u32) -> bool {
        let order = Ordering::SeqCst;
        let changed = self
            .phase
            .compare_exchange(from, to, order, Ordering::Relaxed);
        changed.is_ok()
    }

    fn to_kernel(&self, from: u32) -> bool {
        self.advance(from, phase::KERNEL)
    }

    /// Takes its offer back, if there is one. Whether it is in phase `to` now.
    fn withdraw(&self, to: u32) -> bool {
        let _shield = Shield::new();
        if self.advance(phase::OFFERED, to) {
            broker::report_flow(self.id(), 0, status::WITHDRAWN, 0, (0, 0));
            return true;
        }
        self.advance(phase::KERNEL, to)
    }

    /// The broker has cut a channel for it. Under the lock of the mail.
    pub fn paired(&self, index: u32, slot: u32, generation: u32, channel_id: u64) {
        let Some(socket) = self
            .socket()
            .filter(|_| self.advance(phase::OFFERED, phase::BINDING))
        else {
            return;
        };
        faults::arm();
        let ends = link::cut(index, slot, generation, 0);
        self.own.store(ends.own, Ordering::Relaxed);
        self.own_base.store(ends.own_base, Ordering::Relaxed);
        self.peer.store(ends.peer, Ordering::Relaxed);
        self.peer_base.store(ends.peer_base, Ordering::Relaxed);
        self.peer_page.store(ends.peer_page, Ordering::Relaxed);
        self.link.store(index, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Relaxed);
        self.channel_id.store(channel_id, Ordering::Relaxed);
        for zeroed in [
            &self.reason,
            &self.broken,
            &self.there,
            &self.held_back,
            &self.turns,
        ] {
            zeroed.store(0, Ordering::Relaxed);
        }
        self.look_at.store(0, Ordering::Relaxed);
        self.seen_head.store(0, Ordering::Relaxed);
        self.left_at.store(0, Ordering::Relaxed);
        self.unread_since.store(0, Ordering::Relaxed);
        PROCESS.datagrams.paired.fetch_add(1, Ordering::SeqCst);
        socket.paired.fetch_add(1, Ordering::SeqCst);
        self.phase.store(phase::PAIRED, Ordering::SeqCst);
        // Behind PAIRED: who wants knocks meanwhile asks all that are paired, or is asked here.
        let doors = socket.doors.load(Ordering::SeqCst);
        self.own().wait.rx_doors.fetch_or(doors, Ordering::SeqCst);
        self.show_tells(socket);
        socket.try_ready();
        if self.closing.load(Ordering::SeqCst) != 0 {
            self.close();
        } else if socket.barred.load(Ordering::SeqCst) != 0 {
            self.leave(true);
        }
    }

    /// The broker, or the socket, asks for the kernel path. What the peer publishes from now on is not read, so that it
    /// cannot put off what rules say.
    pub fn asked(&self, reason: u32) {
        self.reason.store(reason, Ordering::Relaxed);
        self.leave(true);
    }

    /// Lets the peer use its ring: once a datagram of its has come by the kernel, whose rules were asked then, and it is
    /// known what stands beside the next ones.
    pub fn get_ready(&self, socket: &Socket) {
        if self.seen_by_kernel.load(Ordering::Relaxed) != 0 && self.template.is_current(socket) {
            self.consumer().get_ready();
        }
    }

    /// Its datagrams go another way from now on: by the kernel, or by another socket.
    pub fn drop_out(&self) {
        if self.is_paired() {
            self.leave(true);
            self.tidy();
        } else {
            self.close();
        }
    }

    /// A datagram is about to go by the kernel although the flow is on its ring. A receiver takes from a ring that was
    /// left before it asks the kernel; one that is in use the kernel's turn may pass.
    pub fn go_before_kernel(&self) {
        let producer = self.producer();
        if producer.state() == tx_state::RING && producer.unread_hint() != 0 {
            self.leave(false);
        }
    }

    /// Sends by the kernel from now on. `stops`: and takes no more from the ring than what the peer had
    /// published when it sees that.
    pub fn leave(&self, stops: bool) {
        // Until the peer was woken.
        let _shield = Shield::new();
        let guard = self.sending.lock();
        if guard.is_none() || !self.is_paired() {
            return;
        }
        if stops {
            self.consumer().drain();
        }
        let flags = &self.own().cold.tx_flags;
        if flags.fetch_or(tx_flags::SHUT, Ordering::Release) & tx_flags::SHUT == 0 {
            // Nothing is sent again: what is in the ring is the peer's to read.
            let producer = self.producer();
            let _ = producer.leave();
            drop(guard);
            // Of a ring that was stopped, it may be read only now.
            self.knock(producer.peer_waits().0);
        }
    }

    /// The peer breaks the protocol: its ring is not looked at again.
    #[cold]
    pub fn broke(&self) {
        self.broken.store(1, Ordering::Relaxed);
        let reason = Reason::Protocol as u32;
        self.reason.store(reason, Ordering::Relaxed);
    }

    /// Whether the peer looks at the ring whenever it waits.
    pub fn peer_reads(&self) -> bool {
        // SAFETY: mapped by `paired`; an atomic load.
        let wait = unsafe { &(*self.peer.load(Ordering::Relaxed)).wait };
        wait.rx_state.load(Ordering::Acquire) == rx_state::READY
    }

    /// Says whether its socket tells to whom a datagram was sent, if it has a channel.
    pub(super) fn show_tells(&self, socket: &Socket) {
        if self.is_paired() && socket.tells.load(Ordering::SeqCst) != 0 {
            let flags = &self.own().cold.tx_flags;
            flags.fetch_or(tx_flags::TELLS, Ordering::Release);
        }
    }

    /// Whether the peer's socket does.
    pub(super) fn peer_tells(&self) -> bool {
        // SAFETY: mapped by `paired`; an atomic load.
        let cold = unsafe { &(*self.peer.load(Ordering::Relaxed)).cold };
        cold.tx_flags.load(Ordering::Acquire) & tx_flags::TELLS != 0
    }

    /// Its socket may send to everybody no more, or now.
    pub(super) fn withdraw_to_all(&self) {
        if self.receivers.is_offered() {
            self.receivers.forget();
            self.withdraw(phase::KERNEL);
        }
    }

    /// Whether the peer uses the ring no more, and nothing of it is unread.
    fn is_over(&self) -> bool {
        if self.broken.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let is_gone = link::at(self.link.load(Ordering::Relaxed)).is_peer_gone();
        if !self.peer_is_there() {
            return is_gone;
        }
        (is_gone || self.has_left()) && !self.consumer().looks_readable()
    }

    /// Whether the peer's side wants the kernel path.
    fn must_leave(&self) -> bool {
        let link = link::at(self.link.load(Ordering::Relaxed));
        let there = self.peer_is_there();
        link.is_peer_gone()
            || link.useless.load(Ordering::Relaxed) != 0
            || self.broken.load(Ordering::Relaxed) != 0
            || there && self.producer().must_leave()
            || there && self.consumer().producer_state() >= tx_state::BACK
    }

    /// Leaves a ring that the peer has left; lets go of the channel if it is over.
    pub fn tidy(&self) {
        if !self.is_paired() {
            return;
        }
        if self.must_leave() {
            // A peer without the broker, which nobody can move or list, may live and publish on.
            let is_gone = link::at(self.link.load(Ordering::Relaxed)).is_peer_gone();
            self.leave(is_gone || self.broken.load(Ordering::Relaxed) != 0);
        }
        if self.is_on_its_way_out() && self.is_over() {
            self.end(status::KERNEL);
        }
    }

    /// Its socket is closed, or connected anew.
    pub fn close(&self) {
        let _shield = Shield::new();
        // In BINDING the thread that reads mail finds this. Whoever ends a channel holds the lock.
        self.closing.store(1, Ordering::SeqCst);
        drop(self.sending.lock());
        if self.is_paired() {
            self.leave(true);
            self.end(status::CLOSED);
        }
        if self.withdraw(phase::LEAVING) {
            self.free();
        }
    }

    /// Lets go of the channel. Without locks.
    fn end(&self, status: u32) {
        let Some(socket) = self.socket() else {
            return;
        };
        let _shield = Shield::new();
        let sending = self.sending.lock();
        let receiving = socket.receiving.lock();
        if !self.advance(phase::PAIRED, phase::LEAVING) {
            return;
        }
        if !self.is_of(socket.index()) {
            // Another thread has closed that socket, and this one is in use.
            self.phase.store(phase::PAIRED, Ordering::SeqCst);
            return;
        }
        let bytes = (self.producer().tail(), self.consumer().head());
        socket.paired.fetch_sub(1, Ordering::SeqCst);
        PROCESS.datagrams.paired.fetch_sub(1, Ordering::SeqCst);
        let (id, channel_id) = (self.id(), self.channel_id.load(Ordering::Relaxed));
        let reason = self.reason.load(Ordering::Relaxed);
        let link = self.link.load(Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        self.due.store(CALLS_BEHIND_RINGS, Ordering::Relaxed);
        self.phase.store(phase::KERNEL, Ordering::SeqCst);
        drop((receiving, sending));
        broker::report_flow(id, channel_id, status, reason, bytes);
        link::unbind(link);
    }

    /// Gives the entry back; it is LEAVING, by this thread. Before, it may have been given back by another one, and
    /// have become another socket's: whose it is, only the entry says.
    fn free(&self) {
        let _guard = state::table_lock().lock();
        let place = self.place.load(Ordering::Relaxed) as usize % FLOWS_MAX;
        if let Some(socket) = self.socket() {
            socket.flows[place].store(0, Ordering::Release);
            socket.used.fetch_sub(1, Ordering::Relaxed);
        }
        self.socket.store(0, Ordering::Relaxed);
        self.serial.fetch_add(1, Ordering::Relaxed);
        self.phase.store(phase::FREE, Ordering::Release);
        let free_from = &PROCESS.datagrams.flow_free_from;
        free_from.fetch_min(self.index(), Ordering::Relaxed);
    }
}
