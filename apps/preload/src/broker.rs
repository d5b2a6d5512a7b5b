//! The conversation with the broker (messages: `fordway_abi::control`).
//!
//! The control connection is opened at the first need, and again after the broker
//! was gone, at most once in [`RETRY_NS`]. Mail is read when the mailbox's counter
//! has moved (one load in each call on a connection that is not plain kernel), and
//! by waiters, which poll the control socket too. Channels need no broker: when it
//! dies they go on; when it is back they are registered again.
//!
//! Mail is handled under `Broker::mail_lock`; whoever finds it held goes on without.

use crate::datagram::Flow;
use crate::end::At;
use crate::lock::{Guard, Lock, rank};
use crate::packet::{ANSWER_MS, Packet, poll_one, send_on};
use crate::process::PROCESS;
use crate::state::{self, Conn, phase};
use crate::sys::{self, sys};
use crate::thread::Shield;
use crate::{
    claim, config, datagram, fork, guest, hidden, identity, late, link, purse, upgrade, wait,
};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fordway_abi::control::{
    Door, DoorAck, Downgrade, Guest, HELLO_MAGIC, Hello, Link, Message, Offer, OwnDoor, Pair, Peer,
    PeerDoor, PeerGone, Refuse, Region, Reject, RejoinChannel, RejoinLink, Status, kind, status,
};
use fordway_abi::reason::Reason;
use fordway_abi::stack::Served;
use fordway_sockets::{Event, down, ends};

/// Size of a mailbox.
const MAILBOX_BYTES: usize = 4096;
/// Time between two attempts to reach a broker that did not answer.
const RETRY_NS: u64 = 1_000_000_000;

/// Of the process: the conversation with the broker.
pub struct Broker {
    mail_lock: Lock<{ rank::MAIL }>,
    fd: AtomicI32,
    number: AtomicU32,
    mailbox: AtomicPtr<AtomicU32>,
    /// Where the mailboxes of all brokers are mapped, one over the other: a thread may be about to
    /// look at the one before.
    mailbox_place: AtomicPtr<AtomicU32>,
    mail_seen: AtomicU32,
    retry_at_ns: AtomicU64,
}

impl Broker {
    /// As a process begins.
    pub const fn new() -> Self {
        Self {
            mail_lock: Lock::new(),
            fd: AtomicI32::new(-1),
            number: AtomicU32::new(0),
            mailbox: AtomicPtr::new(core::ptr::null_mut()),
            mailbox_place: AtomicPtr::new(core::ptr::null_mut()),
            mail_seen: AtomicU32::new(0),
            retry_at_ns: AtomicU64::new(0),
        }
    }
}

/// The control socket, to be polled by waiters; -1 if there is none.
pub fn fd() -> i32 {
    PROCESS.broker.fd.load(Ordering::Acquire)
}

/// Counts control connections: the next one may have the descriptor of the one before. To be asked
/// before [`fd`].
pub fn number() -> u32 {
    PROCESS.broker.number.load(Ordering::Acquire)
}

/// There is another control connection, under this descriptor; none if it is below 0.
#[cfg(test)]
pub fn pretend(fd: i32) {
    PROCESS.broker.number.fetch_add(1, Ordering::Release);
    PROCESS.broker.fd.store(fd, Ordering::Release);
}

/// Whether the broker has gone and waiters should look for a new one now and then.
pub fn is_orphaned() -> bool {
    fd() < 0 && link::own().next().is_some()
}

/// Sends one message. `EAGAIN`: the broker has taken nothing for [`ANSWER_MS`], and has not got it; it lives, as far as is
/// known, and what it must hear is told later ([`guest::let_go`]).
pub fn send<M: Message>(message: &M, fds: &[i32]) -> sys::Result<()> {
    match fd() {
        ..0 => Err(libc::ENOTCONN),
        socket => send_on(socket, message, fds),
    }
}

/// Opens the control connection if there is none. True if there is one now.
pub fn connect() -> bool {
    if fd() >= 0 {
        return true;
    }
    let Some(guard) = PROCESS.broker.mail_lock.try_lock() else {
        return false;
    };
    let now = sys::now_ns();
    if fd() >= 0 || now < PROCESS.broker.retry_at_ns.load(Ordering::Relaxed) {
        return fd() >= 0;
    }
    PROCESS
        .broker
        .retry_at_ns
        .store(now + RETRY_NS, Ordering::Relaxed);
    if open().is_err() {
        let turned = lost();
        drop(guard);
        if turned {
            attend_all();
        }
        return false;
    }
    rejoin();
    true
}

/// For a program that requires the fast path, before it has a connection: the broker has to have
/// told the other end's program so by then. Nothing comes of it without a broker.
#[inline]
pub fn attach() {
    if config::insists() && fd() < 0 && config::is_active() {
        attach_surely();
    }
}

#[cold]
fn attach_surely() {
    if !identity::in_borrowed_memory() && !connect() {
        // Another thread may be at it.
        drop(PROCESS.broker.mail_lock.lock());
        connect();
    }
}

/// Other threads may send as soon as `Broker::fd` is set: not before the broker has answered
/// `Hello`, which must be the first packet.
fn open() -> sys::Result<()> {
    late::give();
    let page_fd = wait::set_up()?;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket = hidden::make(|| sys!(SYS_socket, libc::AF_UNIX, kind, 0))?;
    let mut address = [0u8; 2 + config::SOCKET_PATH_BYTES];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    // SAFETY: written once by the constructor.
    address[2..].copy_from_slice(unsafe { &*config::socket_path() });
    let connected = sys!(SYS_connect, socket, address.as_ptr(), address.len());
    match connected.and_then(|_| greet(socket, &[page_fd])) {
        Ok(mailbox) => {
            PROCESS.broker.mail_seen.store(0, Ordering::Relaxed);
            PROCESS.broker.mailbox.store(mailbox, Ordering::Release);
            PROCESS.broker.number.fetch_add(1, Ordering::Release);
            PROCESS.broker.fd.store(socket, Ordering::Release);
            Ok(())
        }
        Err(error) => {
            hidden::close(socket);
            Err(error)
        }
    }
}

/// Hello and its answer; gives the mapped mailbox.
fn greet(socket: i32, fds: &[i32]) -> sys::Result<*mut AtomicU32> {
    let hello = Hello {
        magic: HELLO_MAGIC,
        abi_version: fordway_abi::ABI_VERSION,
        path_policy: config::policy() as u32,
        rejoining: u32::from(link::own().any(link::Link::can_rejoin)),
    };
    send_on(socket, &hello, fds)?;
    if !poll_one(socket, libc::POLLIN, ANSWER_MS) {
        return Err(libc::ETIMEDOUT);
    }
    let mut packet = Packet::receive(socket)?.ok_or(libc::EPROTO)?;
    match packet.kind() {
        Some(kind::Welcome) => {}
        Some(kind::Refuse) => {
            refused(&packet);
            return Err(libc::EPROTO);
        }
        _ => return Err(libc::EPROTO),
    }
    purse::receive(packet.take_fd(1))?;
    let place = PROCESS.broker.mailbox_place.load(Ordering::Relaxed);
    let fd = packet.take_fd(0);
    let mailbox = sys::map_sealed(fd, MAILBOX_BYTES, libc::PROT_READ, place.cast())?.cast();
    PROCESS
        .broker
        .mailbox_place
        .store(mailbox, Ordering::Relaxed);
    Ok(mailbox)
}

/// A broker of another ABI version can neither list the channels of the one before nor cut them when
/// rules change: they are given up, and the kernel, which can, has the connections.
fn refused(packet: &Packet) {
    let version = Reason::Version as u32;
    if packet
        .body()
        .is_some_and(|Refuse { reason, .. }| reason == version)
    {
        for conn in state::conns().filter(|conn| conn.is_paired()) {
            down::ask(conn, version);
        }
    }
}

/// The broker is gone: offers are void, channels live on, but for those to other guests. Under `Broker::mail_lock`;
/// whether connections are to be attended to behind it.
fn lost() -> bool {
    hidden::close(PROCESS.broker.fd.swap(-1, Ordering::AcqRel));
    PROCESS
        .broker
        .mailbox
        .store(core::ptr::null_mut(), Ordering::Release);
    // Of these the peer's side has not come, and now it will not.
    for link in
        link::own().filter(|link| link.state.load(Ordering::Acquire) == link::link_state::MADE)
    {
        link.peer_gone.store(1, Ordering::Release);
        link.drop_if_over();
    }
    for conn in state::conns() {
        conn.told.store(0, Ordering::Relaxed);
        void(conn);
    }
    datagram::lost();
    guest::lost()
}

/// Behind mail, or a broker, that asked for the kernel path.
fn attend_all() {
    upgrade::attend_all();
    datagram::attend_all();
}

/// A connection that was on offer is to be offered again, to the next broker.
fn void(conn: &Conn) {
    if conn.phase.transition(Event::Voided).is_ok() {
        conn.operations.store(0, Ordering::Relaxed);
    }
}

/// Registers doors, links and channels with a broker that does not know them yet.
fn rejoin() {
    wait::register_doors();
    for link in link::own().filter(|link| link.can_rejoin()) {
        let mut link_key = [0; 16];
        link_key[..8].copy_from_slice(&link.key[0].load(Ordering::Relaxed).to_ne_bytes());
        link_key[8..].copy_from_slice(&link.key[1].load(Ordering::Relaxed).to_ne_bytes());
        let message = RejoinLink {
            link_id: link.id.load(Ordering::Relaxed),
            link_key,
        };
        let _ = send(&message, &[link.own_fd.load(Ordering::Relaxed)]);
    }
    for conn in state::conns().filter(|conn| conn.is_paired()) {
        rejoin_channel(conn);
    }
}

fn rejoin_channel(conn: &Conn) {
    let link = link::at(conn.link.load(Ordering::Relaxed));
    if link.inherited.load(Ordering::Relaxed) != 0 || !link.can_rejoin() {
        return;
    }
    // One that is not connected any more needs no broker.
    let Some(claim) = conn.ask(claim::of) else {
        return;
    };
    let message = RejoinChannel {
        conn_id: conn.id(),
        channel_id: conn.channel_id.load(Ordering::Relaxed),
        link_id: link.id.load(Ordering::Relaxed),
        slot: conn.slot.load(Ordering::Relaxed),
        generation: conn.generation.load(Ordering::Relaxed),
        claim,
    };
    let _ = send(&message, &[]);
    // A thread that gives the channel up meanwhile may have said so before the broker knew it.
    let is_open = conn.id() == message.conn_id && conn.phase.load(Ordering::Acquire) != phase::FREE;
    let has_it = conn.channel_id.load(Ordering::Relaxed) == message.channel_id;
    if is_open && has_it && conn.is_paired() {
        return;
    }
    let over = Status {
        conn_id: message.conn_id,
        channel_id: message.channel_id,
        status: if is_open {
            status::KERNEL
        } else {
            status::CLOSED
        },
        reason: 0,
        ring_bytes_tx: 0,
        ring_bytes_rx: 0,
    };
    let _ = send(&over, &[]);
}

/// Offers a connection; true if the broker has the offer.
pub fn offer(conn: &Conn, end: &At<'_>) -> bool {
    if !connect() {
        return false;
    }
    // A broker that is busy may be waited for.
    late::give();
    // No handler jumps out before the broker has what the phase says that it has.
    let _shield = Shield::new();
    let Some(mut claim) = claim::of(end.fd()) else {
        return false;
    };
    let Served {
        local_ip,
        remote_ip,
        local_port,
        remote_port,
    } = conn.served();
    if remote_port != 0 {
        (claim.local_ip, claim.local_port) = (local_ip, local_port);
        (claim.remote_ip, claim.remote_port) = (remote_ip, remote_port);
    }
    if conn.phase.transition(Event::Offered).is_err() {
        return false;
    }
    // Another thread may have closed the number: then the claim is another connection's.
    if !end.is_callable() {
        void(conn);
        return false;
    }
    let socket = self::fd();
    conn.cookie.store(claim.cookie, Ordering::Relaxed);
    conn.told.store(0, Ordering::Relaxed);
    let offer = Offer {
        conn_id: conn.id(),
        declined: 0,
        to_all: 0,
        claim,
    };
    let sent = send(&offer, &[]).is_ok();
    if !sent {
        void(conn);
        // Who reads the mail finds out too: another thread, or the one that this call interrupted.
        let turned = match PROCESS.broker.mail_lock.lock() {
            Some(_guard) => self::fd() == socket && lost(),
            None => false,
        };
        if turned {
            attend_all();
        }
    }
    sent
}

/// Offers a flow of datagrams between two names; true if the broker has the offer.
/// `to_all`: the second is a broadcast address.
pub fn offer_flow(flow: &Flow, fd: i32, names: [([u8; 16], u16); 2], to_all: bool) -> bool {
    if !connect() {
        return false;
    }
    let Some(claim) = claim::of_flow(fd, names) else {
        return false;
    };
    let offer = Offer {
        conn_id: flow.id(),
        declined: 0,
        to_all: to_all.into(),
        claim,
    };
    // A broker that is gone is found out by the mail.
    send(&offer, &[]).is_ok()
}

/// Tells the broker why a UDP socket's datagrams stay on the kernel path.
pub fn decline_flow(fd: i32, remote: ([u8; 16], u16), reason: u32) {
    if connect()
        && let Some(way) = claim::way_to(fd, &remote.0)
        && let Some(claim) = claim::of_flow(fd, [way.source, remote])
    {
        // It is for the log only: there is no flow.
        let _ = send(
            &Offer {
                conn_id: 0,
                declined: reason,
                to_all: way.is_to_all.into(),
                claim,
            },
            &[],
        );
    }
}

/// Tells the broker what became of a flow.
pub fn report_flow(
    conn_id: u64,
    channel_id: u64,
    status: u32,
    reason: u32,
    (ring_bytes_tx, ring_bytes_rx): (u64, u64),
) {
    let report = Status {
        conn_id,
        channel_id,
        status,
        reason,
        ring_bytes_tx,
        ring_bytes_rx,
    };
    let _ = send(&report, &[]);
}

/// Tells the broker why a connection stays on the kernel path.
pub fn decline(conn: &Conn, fd: i32, reason: u32) {
    if connect()
        && let Some(claim) = claim::of(fd)
    {
        let declined = Offer {
            conn_id: conn.id(),
            declined: reason,
            to_all: 0,
            claim,
        };
        // It is for listings only. A broker that is gone is found out by the mail.
        let _ = send(&declined, &[]);
    }
}

/// Tells the broker what became of a connection.
pub fn report(conn: &Conn, status: u32, reason: u32) {
    conn.told.store(reason, Ordering::Relaxed);
    // What is withdrawn is an offer: the channel that the connection knows is an earlier one.
    let channel_id = match status {
        status::WITHDRAWN => 0,
        _ => conn.channel_id.load(Ordering::Relaxed),
    };
    let (tx, rx) = match channel_id {
        0 => (0, 0),
        _ => (conn.producer().tail(), conn.consumer().head()),
    };
    let _ = send(
        &Status {
            conn_id: conn.id(),
            channel_id,
            status,
            reason,
            ring_bytes_tx: tx,
            ring_bytes_rx: rx,
        },
        &[],
    );
}

/// The connection was given a channel of a link that was given up, for want of descriptors or memory: it
/// stays on the kernel path, and so do the peer and who lists connections have to hear.
#[cold]
fn not_paired(conn: &Conn, reason: Reason) {
    let over = Status {
        conn_id: conn.id(),
        // It never had it.
        channel_id: 0,
        status: status::KERNEL,
        reason: reason as u32,
        ring_bytes_tx: 0,
        ring_bytes_rx: 0,
    };
    let _ = send(&over, &[]);
    upgrade::rejected(conn, reason as u32);
}

/// Whether some process is a peer, or what this one has offered may make it one. To be asked behind a
/// message to the broker: what is offered from here on, the broker reads later.
fn may_have_peers() -> bool {
    let is_offered = |conn: &Conn| conn.phase.load(Ordering::SeqCst) != phase::KERNEL;
    link::own().next().is_some() || state::conns().any(is_offered) || datagram::is_any_offered()
}

/// Registers a doorbell and waits until every peer has been sent it. Where there can be none, nothing is waited for.
pub fn register_door(door: u64) -> bool {
    late::give();
    if send(&Door { door }, &[]).is_err() {
        return false;
    }
    if !may_have_peers() {
        wait::registered(door);
        return true;
    }
    let deadline = sys::now_ns() + ANSWER_MS as u64 * 1_000_000;
    while !wait::is_registered(door) && sys::now_ns() < deadline {
        if fd() < 0 {
            return false;
        }
        // Another thread may take the answer from the socket: look again soon.
        poll_one(fd(), libc::POLLIN, 1);
        drain_mail();
    }
    wait::is_registered(door)
}

/// Sends a doorbell without waiting (after the broker came back).
pub fn send_door(door: u64) {
    let _ = send(&Door { door }, &[]);
}

/// Reads mail if there is some: one load if there is none.
#[inline]
pub fn check_mail() {
    let mailbox = PROCESS.broker.mailbox.load(Ordering::Acquire);
    if mailbox.is_null() {
        return;
    }
    // SAFETY: mapped for good; written by a broker alone.
    if unsafe { (*mailbox).load(Ordering::Relaxed) }
        != PROCESS.broker.mail_seen.load(Ordering::Relaxed)
    {
        drain_mail();
    }
}

/// No mail is acted on while this is held, and what was being acted on has been. A connection that
/// is closed changes under it: a message found it by its number, and another connection may have
/// its entry before the last step that the message asks for.
pub fn hold_mail() -> Option<Guard<'static>> {
    PROCESS.broker.mail_lock.lock()
}

/// Reads all mail that has come, unless another thread is at it.
pub fn drain_mail() {
    if let Some(guard) = PROCESS.broker.mail_lock.try_lock() {
        read_mail(guard);
    }
}

/// Reads all mail that has come; when this returns, what came before has been acted on.
pub fn drain_mail_surely() {
    if let Some(guard) = PROCESS.broker.mail_lock.lock() {
        read_mail(guard);
    }
}

fn read_mail(guard: Guard<'_>) {
    let mut turned = false;
    while fd() >= 0 {
        let mailbox = PROCESS.broker.mailbox.load(Ordering::Acquire);
        if !mailbox.is_null() {
            // SAFETY: as in `check_mail`. Noted before the socket is read: a packet
            // that comes in between moves the counter again.
            PROCESS.broker.mail_seen.store(
                unsafe { (*mailbox).load(Ordering::Acquire) },
                Ordering::Relaxed,
            );
        }
        match Packet::receive(fd()) {
            Ok(Some(packet)) => turned |= handle(packet),
            Ok(None) => break,
            Err(_) => turned |= lost(),
        }
    }
    drop(guard);
    if turned {
        attend_all();
    }
}

/// Acts on one message; true if some connection now has its `attention` set.
fn handle(mut packet: Packet) -> bool {
    if packet.truncated {
        return without_descriptors(&packet);
    }
    match packet.kind() {
        Some(kind::Reject) => {
            let Some(Reject {
                conn_id,
                reason,
                pending,
            }) = packet.body()
            else {
                return false;
            };
            if pending != 0 {
                return false;
            }
            if let Some(flow) = Flow::by_id(conn_id) {
                flow.rejected();
            } else if let Some(conn) = Conn::by_id(conn_id) {
                upgrade::rejected(conn, reason);
            }
        }
        Some(kind::Link) => {
            let Some(Link { link_id, link_key }) = packet.body() else {
                return false;
            };
            // Without memory for it, its connections stay on the kernel path.
            if let Ok(fd) = link::make(link_id, link_key) {
                let _ = send(&Region { link_id }, &[fd]);
            }
        }
        Some(kind::Peer) => join_link(&mut packet),
        Some(kind::Guest) => {
            if let Some(guest) = packet.body::<Guest>() {
                // Without memory for it, its connections stay on the kernel path.
                let _ = guest::make(&guest, packet.take_fd(0), packet.take_fd(1));
            }
        }
        Some(kind::Pair) => {
            if let Some(pair) = packet.body::<Pair>() {
                let conn_id = pair.conn_id;
                let link = link::by_id(pair.link_id).filter(|(_, link)| {
                    link.state.load(Ordering::Acquire) == link::link_state::LIVE
                        && link.useless.load(Ordering::Acquire) == 0
                        && link.has_shared_bells()
                });
                match (link, Flow::by_id(conn_id), Conn::by_id(conn_id)) {
                    (Some((index, _)), Some(flow), _) => {
                        flow.paired(index, pair.slot, pair.generation, pair.channel_id);
                    }
                    // It would have to go back at once.
                    (Some((_, link)), None, Some(conn))
                        if link.is_guest() && fork::is_under_way() =>
                    {
                        not_paired(conn, Reason::Waiting);
                    }
                    (Some((index, _)), None, Some(conn)) => {
                        upgrade::paired(conn, index, &pair);
                    }
                    (None, None, Some(conn)) => not_paired(conn, Reason::NoMemory),
                    _ => {}
                }
            }
        }
        Some(kind::Everybody) => {
            if let Some(told) = packet.body() {
                datagram::told(&told);
            }
        }
        Some(kind::DoorAck) => {
            if let Some(DoorAck { door }) = packet.body() {
                wait::registered(door);
            }
        }
        Some(kind::PeerDoor) => {
            if let Some(PeerDoor {
                link_id,
                door,
                port,
            }) = packet.body()
                && let Some((index, link)) = link::by_id(link_id)
                && !link.add_door(door, packet.take_fd(0), port as u32)
            {
                link.give_up(index, Reason::NoMemory);
                return true;
            }
        }
        Some(kind::OwnDoor) => {
            if let Some(OwnDoor { link_id, door, .. }) = packet.body()
                && let Some((index, link)) = link::by_id(link_id)
                && !link.add_view(door, packet.take_fd(0))
            {
                link.give_up(index, Reason::NoMemory);
                return true;
            }
        }
        Some(kind::Downgrade) => {
            let Some(Downgrade {
                channel_id, reason, ..
            }) = packet.body()
            else {
                return false;
            };
            if let Some(flow) = Flow::of_channel(channel_id) {
                flow.asked(reason);
            } else if let Some(conn) = state::next_of_channel(channel_id) {
                if !conn.is_paired() {
                    if reason == Reason::Asked as u32 {
                        upgrade::asked_late(conn);
                    }
                    return false;
                }
                if reason == Reason::Protocol as u32 {
                    upgrade::condemned(conn);
                } else {
                    down::ask(conn, reason);
                }
            }
            return true;
        }
        Some(kind::PeerGone) => {
            let Some(PeerGone { link_id }) = packet.body() else {
                return false;
            };
            if let Some((index, link)) = link::by_id(link_id) {
                link.peer_gone.store(1, Ordering::Release);
                for conn in link::users(index) {
                    ends::peer_process_gone(&conn.end());
                }
                link.drop_if_over();
                return true;
            }
        }
        // The broker is trusted; what a newer one says beyond this list is not for us.
        _ => {}
    }
    false
}

/// Without a doorbell of the peer, or its memory, the link is of no use.
fn without_descriptors(packet: &Packet) -> bool {
    let link_id = match packet.claimed_kind() {
        Some(kind::Peer) => packet.body().map(|Peer { link_id, .. }| link_id),
        Some(kind::PeerDoor) => packet.body().map(|PeerDoor { link_id, .. }| link_id),
        Some(kind::OwnDoor) => packet.body().map(|OwnDoor { link_id, .. }| link_id),
        Some(kind::Guest) => {
            if let Some(Guest { link_id, .. }) = packet.body() {
                guest::let_go(link_id);
            }
            None
        }
        _ => None,
    };
    let link = link_id.and_then(link::by_id);
    link.is_some_and(|(index, link)| {
        link.give_up(index, Reason::NoMemory);
        true
    })
}

fn join_link(packet: &mut Packet) {
    if let Some(Peer { link_id }) = packet.body()
        && let Some((_, link)) = link::by_id(link_id)
    {
        // A link that could not be joined stays MADE: its connections get no channel.
        let _ = link.join(packet.take_fd(0), packet.take_fd(1));
    }
}

/// In a forked child: the connection is the parent's.
pub fn after_fork() {
    PROCESS.broker.mail_lock.reset();
    hidden::close(PROCESS.broker.fd.swap(-1, Ordering::AcqRel));
    PROCESS
        .broker
        .mailbox
        .store(core::ptr::null_mut(), Ordering::Release);
    PROCESS.broker.retry_at_ns.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GUEST_ARENA_BYTES, GuestFiles, free, pair, tables};
    use fordway_abi::control::LetGo;

    /// A test that is held up for longer than a send waits for room is made again.
    const TRIES_MAX: usize = 10;

    /// Files, closed at the end.
    struct Files<const COUNT: usize>([i32; COUNT]);

    impl<const COUNT: usize> Drop for Files<COUNT> {
        fn drop(&mut self) {
            for fd in self.0 {
                let _ = sys!(SYS_close, fd);
            }
        }
    }

    /// A control connection: ours, and the broker's end.
    fn pretended() -> Files<2> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let made = sys!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
        made.expect("two sockets");
        pretend(ends[0]);
        Files(ends)
    }

    /// A connection over loopback: connecting, accepted, listening.
    fn connection() -> Files<3> {
        let socket = || {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            sys!(SYS_socket, libc::AF_INET, kind, 0).expect("a socket") as i32
        };
        let (near, listener) = (socket(), socket());
        let mut name = [0u8; 16];
        let mut length = name.len() as u32;
        sys!(SYS_listen, listener, 1).expect("a listener");
        let named = sys!(
            SYS_getsockname,
            listener,
            name.as_mut_ptr(),
            &raw mut length
        );
        named.expect("its port");
        name[4..8].copy_from_slice(&[127, 0, 0, 1]);
        sys!(SYS_connect, near, name.as_ptr(), length).expect("a connection");
        let far = sys!(SYS_accept4, listener, 0, 0, libc::SOCK_CLOEXEC).expect("its other end");
        Files([near, far as i32, listener])
    }

    /// The next packet for the broker.
    fn told(broker: i32) -> Option<Packet> {
        Packet::receive(broker).expect("it is open")
    }

    #[test]
    fn an_offer_by_a_number_that_another_connection_has_is_none() {
        let _turn = tables();
        let Files([_, broker]) = &pretended();
        let Files([fd, ..]) = &connection();
        let conn = state::add_conn(*fd, false).expect("a place");
        let end = At::called(conn, *fd).expect("its number");
        // Another thread closes the number, under which it goes on no more, and accepts this one.
        let other = state::add_conn(*fd, false).expect("a place");
        assert!(!offer(conn, &end), "the claim is the other connection's");
        assert_eq!(conn.phase.load(Ordering::Relaxed), phase::KERNEL);
        assert!(told(*broker).is_none(), "the broker was told");
        let end = At::called(other, *fd).expect("its number");
        assert!(offer(other, &end));
        let packet = told(*broker).expect("an offer");
        let claim = packet.body::<Offer>().expect("an offer").claim;
        assert_eq!(claim.cookie, other.cookie.load(Ordering::Relaxed));
        pretend(-1);
        for conn in [conn, other] {
            free(conn);
        }
    }

    #[test]
    fn an_offer_ends_with_its_broker_though_no_call_waits_in_the_library() {
        let _turn = tables();
        let Files([ours, broker]) = &pretended();
        pretend(hidden::copy(*ours).expect("a hidden descriptor"));
        let Files([fd, ..]) = &connection();
        let conn = state::add_conn(*fd, false).expect("a place");
        conn.phase.advance(Event::Offered);
        sys!(SYS_shutdown, *broker, libc::SHUT_RDWR).expect("its end");
        let calls = (0..1000).take_while(|_| {
            upgrade::count_operation(conn, *fd, upgrade::Does::Receive).expect("by the kernel");
            conn.phase.load(Ordering::Relaxed) == phase::OFFERED
        });
        assert!(calls.count() < 1000);
        assert!(super::fd() < 0, "the next offer is another broker's");
        free(conn);
    }

    #[test]
    fn an_answer_about_a_door_is_waited_for_where_there_may_be_a_peer() {
        let _turn = tables();
        let door = 40;
        let registers = |offers: &dyn Fn()| {
            let Files([ours, broker]) = &pretended();
            pretend(hidden::copy(*ours).expect("a hidden descriptor"));
            // It reads and says nothing, and its end comes where an answer would.
            let shut = sys!(SYS_shutdown, *broker, libc::SHUT_WR);
            assert_eq!(shut, Ok(0));
            offers();
            let is_registered = register_door(door);
            let packet = told(*broker).expect("a message");
            assert_eq!(packet.body::<Door>().map(|Door { door }| door), Some(door));
            hidden::close(PROCESS.broker.fd.swap(-1, Ordering::Relaxed));
            wait::forget(door);
            is_registered
        };
        assert!(registers(&|| ()), "nobody would knock");
        let Files([fd, ..]) = &connection();
        let conn = state::add_conn(*fd, false).expect("a place");
        assert!(registers(&|| ()), "it was not offered");
        assert!(!registers(&|| conn.phase.advance(Event::Offered)));
        free(conn);
    }

    #[test]
    fn a_broker_of_another_version_has_the_channels_given_up() {
        let _turn = tables();
        let Files([ours, broker]) = &pretended();
        pretend(-1);
        let conn = state::add_conn(*ours, false).expect("a place");
        pair(conn);
        let answer = |reason: Reason| {
            let refusal = Refuse {
                abi_version: fordway_abi::ABI_VERSION + 1,
                reason: reason as u32,
            };
            send_on(*broker, &refusal, &[]).expect("room");
            assert!(greet(*ours, &[*broker]).is_err());
            conn.attention.load(Ordering::Relaxed) & state::attention::DOWN != 0
        };
        assert!(!answer(Reason::NoMemory), "asked for no reason");
        assert!(answer(Reason::Version));
        assert_eq!(conn.passing.load(Ordering::Relaxed), Reason::Version as u32);
        free(conn);
    }

    #[test]
    fn a_link_to_another_guest_goes_with_its_broker() {
        let _turn = tables();
        let files = GuestFiles::new();
        let Files([ours, broker]) = &pretended();
        pretend(hidden::copy(*ours).expect("a hidden descriptor"));
        let Files([fd, ..]) = &connection();
        wait::set_up().expect("a page");
        let first = link::at(link::free_place().expect("a place"));
        first
            .peer_base
            .store(core::ptr::null_mut(), Ordering::Relaxed);
        let (link_id, arena_bytes) = (70, GUEST_ARENA_BYTES as u64);
        let guest = Guest {
            link_id,
            arena_bytes,
            peer_arena_bytes: arena_bytes,
        };
        let bell = || sys!(SYS_eventfd2, 0, libc::EFD_NONBLOCK).expect("a bell") as i32;
        let bells = Files([bell(), bell()]);
        let (door, port) = (0, 5);
        let tell = |told: sys::Result<()>| {
            told.expect("room");
            drain_mail();
        };
        tell(send_on(*broker, &guest, &files.0));
        let (_, link) = link::by_id(link_id).expect("the link");
        assert_eq!(
            link.state.load(Ordering::Relaxed),
            link::link_state::LIVE,
            "at once"
        );
        let own = OwnDoor {
            link_id,
            door,
            port,
        };
        tell(send_on(*broker, &own, &bells.0[..1]));
        let peers = PeerDoor {
            link_id,
            door,
            port,
        };
        tell(send_on(*broker, &peers, &bells.0[1..]));
        assert_eq!(link.ports[0].load(Ordering::Relaxed), 5);
        let conn = state::add_conn(*fd, false).expect("a place");
        conn.phase.advance(Event::Offered);
        let pair = Pair {
            conn_id: conn.id(),
            channel_id: 8,
            link_id,
            slot: 3,
            generation: 1,
            cuts_through: 0,
            pad: 0,
        };
        // A child would not have the peer's memory.
        fork::pretend_under_way(true);
        tell(send_on(*broker, &pair, &[]));
        fork::pretend_under_way(false);
        assert_eq!(conn.phase.load(Ordering::Relaxed), phase::KERNEL);
        let over = told(*broker).and_then(|packet| packet.body::<Status>());
        let is_over = over.is_some_and(|over| over.status == status::KERNEL);
        assert!(is_over, "its peer waits");
        conn.phase.advance(Event::Offered);
        tell(send_on(*broker, &pair, &[]));
        assert!(conn.is_paired() && told(*broker).is_none());
        // No later one could be shown it.
        assert!(!link.can_rejoin() && link::has_guests());
        sys!(SYS_shutdown, *broker, libc::SHUT_RDWR).expect("its end");
        drain_mail();
        assert!(!conn.is_paired() && super::fd() < 0);
        assert!(link::by_id(link_id).is_none() && !link::has_guests());
        free(conn);
    }

    #[test]
    fn the_broker_hears_when_nothing_of_a_guests_link_is_mapped() {
        let _turn = tables();
        let files = GuestFiles::new();
        let Files([ours, broker]) = &pretended();
        pretend(hidden::copy(*ours).expect("a hidden descriptor"));
        wait::set_up().expect("a page");
        let tell = |told: sys::Result<()>| {
            told.expect("room");
            drain_mail();
        };
        let said = || told(*broker).and_then(|packet| packet.body::<LetGo>());
        // One that cannot be laid, and one whose peer ends.
        for (link_id, arena_bytes) in [(71, 0), (72, GUEST_ARENA_BYTES as u64)] {
            let first = link::at(link::free_place().expect("a place"));
            first
                .peer_base
                .store(core::ptr::null_mut(), Ordering::Relaxed);
            let guest = Guest {
                link_id,
                arena_bytes,
                peer_arena_bytes: arena_bytes,
            };
            tell(send_on(*broker, &guest, &files.0));
            if arena_bytes != 0 {
                assert_eq!(said(), None, "it has it mapped");
                tell(send_on(*broker, &PeerGone { link_id }, &[]));
            }
            assert_eq!(said(), Some(LetGo { link_id }));
            assert!(link::by_id(link_id).is_none());
        }
        hidden::close(PROCESS.broker.fd.swap(-1, Ordering::Relaxed));
    }

    #[test]
    fn a_broker_that_takes_nothing_hears_later_that_a_link_is_let_go_of() {
        let _turn = tables();
        let Files([ours, broker]) = &pretended();
        pretend(hidden::copy(*ours).expect("a hidden descriptor"));
        // The broker's socket takes no more for now.
        let mut byte = 0u8;
        let place = &raw mut byte;
        while sys!(SYS_sendto, *ours, place, 1, libc::MSG_DONTWAIT, 0, 0).is_ok() {}
        guest::let_go(73);
        guest::stand_by(0);
        assert!(link::has_guests(), "it is kept");
        let said = || told(*broker).and_then(|packet| packet.body::<LetGo>());
        while sys!(SYS_recvfrom, *broker, place, 1, libc::MSG_DONTWAIT, 0, 0).is_ok() {}
        assert_eq!(said(), None);
        guest::stand_by(0);
        assert_eq!(said(), Some(LetGo { link_id: 73 }));
        assert!(!link::has_guests());
        guest::stand_by(0);
        assert_eq!(said(), None, "once");
        hidden::close(PROCESS.broker.fd.swap(-1, Ordering::Relaxed));
    }

    /// What a new broker was told at last of a channel with number 5, if `change` came to its
    /// connection while the broker was told of it. `None`: the broker was not told in time.
    fn told_meanwhile(change: impl Fn(&Conn)) -> Option<Vec<Packet>> {
        let Files([ours, broker]) = &pretended();
        let Files([fd, ..]) = &connection();
        let conn = state::add_conn(*fd, false).expect("a place");
        conn.channel_id.store(5, Ordering::Relaxed);
        pair(conn);
        // The broker's socket takes no more for now.
        let least = 1;
        let set = sys!(
            SYS_setsockopt,
            *ours,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            &raw const least,
            4
        );
        set.expect("a small buffer");
        while sys!(
            SYS_sendto,
            *ours,
            c"x".as_ptr(),
            1,
            libc::MSG_DONTWAIT,
            0,
            0
        )
        .is_ok()
        {}
        let thread = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let telling = scope.spawn(|| {
                thread.store(
                    sys!(SYS_gettid).expect("a number") as u32,
                    Ordering::Relaxed,
                );
                rejoin_channel(conn);
            });
            // proc_pid_syscall(5): it waits for room.
            let waits = format!("{} ", libc::SYS_poll);
            let call = || {
                let thread = thread.load(Ordering::Relaxed);
                std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"))
            };
            while !telling.is_finished() && !call().is_ok_and(|call| call.starts_with(&waits)) {
                std::thread::yield_now();
            }
            change(conn);
            let mut packets = Vec::new();
            loop {
                let is_over = telling.is_finished();
                match told(*broker) {
                    Some(packet) if packet.kind().is_some() => packets.push(packet),
                    Some(_) => {}
                    None if is_over => break,
                    None => std::thread::yield_now(),
                }
            }
            pretend(-1);
            if conn.phase.load(Ordering::Relaxed) != phase::FREE {
                free(conn);
            }
            let first = packets.first().and_then(Packet::kind);
            (first == Some(kind::RejoinChannel)).then_some(packets)
        })
    }

    #[test]
    fn a_new_broker_keeps_no_channel_that_went_while_it_was_told() {
        let _turn = tables();
        let after = |change: &dyn Fn(&Conn)| -> Option<(u64, u32)> {
            let packets = (0..TRIES_MAX).find_map(|_| told_meanwhile(change));
            let packets = packets.expect("a word about the channel");
            let over = packets.get(1)?.body::<Status>().expect("its status");
            Some((over.channel_id, over.status))
        };
        assert_eq!(after(&|_| ()), None, "it is there");
        assert_eq!(after(&|conn| free(conn)), Some((5, status::CLOSED)));
        let by_kernel = |conn: &Conn| conn.phase.advance(Event::Left);
        assert_eq!(after(&by_kernel), Some((5, status::KERNEL)));
        let has_another = |conn: &Conn| conn.channel_id.store(6, Ordering::Relaxed);
        assert_eq!(after(&has_another), Some((5, status::KERNEL)));
    }
}
