//! Other guests of Xen: connections between their programs and ours get rings over granted pages.
//!
//! Each guest has a broker. Two brokers meet as dom0 allows (`meet`), and talk (`talk`): the senior's registry pairs, the junior
//! relays. To the senior's registry a process of the other guest is a process like others, in the place of that guest
//! (`fordway_registry::place_of_guest`), whose packets go by the other broker. A junior's registry knows nothing of what it relays.
//!
//! ```text
//!   library ─ Offer ─► junior ═ lines over granted pages ═ senior ◄─ Offer ─ library
//!      ▲                  │ grants, ports                     │ grants, ports  ▲
//!      └──── Guest, doors ┘                                   └─ Guest, doors ─┘
//!   library ═══════════════ granted pages, event channels ═══════════════ library
//! ```
//!
//! **Memory.** Of each link, each broker allots pages for its own process, grants them to the other guest for reading, and hands both
//! descriptors to the process (`control::Guest`). It keeps neither.
//!
//! **Doors.** The senior makes the port of each doorbell, whoever sleeps behind it; the other side binds to it. A process is told
//! that all know its new door (`DoorAck`) once the other brokers have said so.
//!
//! **Ends.** A process that is gone: as between processes. The other broker is gone: the channels go down, which the two libraries do by
//! themselves, and its processes are forgotten once ours have left them. The other guest is destroyed: its processes are gone.
//!
//! **Limits.** gntalloc's, which is raised to [`GRANTS_MAX`]; [`PROCESSES_MAX`] processes of one guest. Without memory a link never comes,
//! and its connections stay on the kernel path. Only TCP, between the addresses that dom0 has told.

mod meet;
mod talk;

use crate::broker::{Broker, Token};
use crate::connection::SendError;
use crate::proof::Witness;
use fordway_abi::control::{self as wire, PathPolicy, Protocol};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{DOOR_COUNT, GUEST_HEAD_BYTES};
use fordway_registry::{
    Action, ChannelView, ConnectionView, LinkSide, Outgoing, Path, ProcessId, Shown, SocketFacts,
    place_of_guest,
};
use fordway_xen_user::{
    Access, Allotted, Domain, Error, EventChannel, PAGE_SIZE, Reference, Wanted,
};
use meet::{Meetings, Parted};
use rustix::event::epoll;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use talk::{Down, Up};

/// Ring memory of one side of a link.
const ARENA_BYTES: usize = 4 << 20;
const HEAD_PAGES: usize = GUEST_HEAD_BYTES / PAGE_SIZE;
const PAGES: usize = HEAD_PAGES + ARENA_BYTES / PAGE_SIZE;
/// Pages that this guest may grant by gntalloc: Xen's own limit (64 frames of grants) is as large.
const GRANTS_MAX: u32 = 32 << 10;
const GRANTS_LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";
/// Of one guest.
const PROCESSES_MAX: usize = 4096;

/// A process of another guest's, by that guest's number for it.
type Afar = (Domain, u64);

/// A connection that a senior pairs.
#[derive(Clone, Copy, Debug)]
struct Relayed {
    other: Domain,
    facts: SocketFacts,
    channel: Option<ChannelView>,
}

impl Relayed {
    fn channel_id(&self) -> u64 {
        self.channel.map_or(0, |channel| channel.id)
    }
}

/// What this broker knows of other guests.
pub(crate) struct Guests {
    meetings: Meetings,
    /// As a senior: processes of juniors.
    afar: BTreeMap<ProcessId, Afar>,
    numbers: BTreeMap<Afar, ProcessId>,
    /// Of those whose broker is gone: ours still leave them.
    left: BTreeSet<ProcessId>,
    /// As a junior: which seniors know a process of ours.
    joined: BTreeMap<ProcessId, BTreeSet<Domain>>,
    /// What was offered there, by its process's number for it.
    relayed: BTreeMap<(ProcessId, u64), Relayed>,
    /// Links that came of it.
    links: BTreeMap<LinkSide, Domain>,
    /// Bytes that processes say they sent through rings of it.
    ring_bytes_reported: u64,
    /// Pages for a process of ours that it was not handed yet; their grants.
    allotted: BTreeMap<LinkSide, (Option<OwnedFd>, Vec<u32>)>,
    /// Grants of a process afar.
    granted: BTreeMap<LinkSide, Vec<u32>>,
    /// Regions that were allotted while actions were carried out.
    to_report: Vec<LinkSide>,
    /// Who has not said yet that a new door of ours is known.
    unknown_doors: BTreeMap<(ProcessId, u64), BTreeSet<Domain>>,
    /// Somebody had more to say than was read in a turn.
    pub(crate) has_more: bool,
}

impl Guests {
    /// `None`: this is no guest of Xen's.
    pub(crate) fn start() -> Option<Self> {
        let meetings = Meetings::open()?;
        // Where the module is not there, each link says so.
        let limit = std::fs::read_to_string(GRANTS_LIMIT).ok();
        if limit.and_then(|limit| limit.trim().parse().ok()) < Some(GRANTS_MAX) {
            let _ = std::fs::write(GRANTS_LIMIT, GRANTS_MAX.to_string());
        }
        tracing::info!("guest {} of Xen", meetings.own);
        Some(Self {
            meetings,
            afar: BTreeMap::new(),
            numbers: BTreeMap::new(),
            left: BTreeSet::new(),
            joined: BTreeMap::new(),
            relayed: BTreeMap::new(),
            links: BTreeMap::new(),
            ring_bytes_reported: 0,
            allotted: BTreeMap::new(),
            granted: BTreeMap::new(),
            to_report: Vec::new(),
            unknown_doors: BTreeMap::new(),
            has_more: false,
        })
    }

    /// XenStore's.
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.meetings.descriptor()
    }

    fn tell(&mut self, other: Domain, message: &impl serde::Serialize) {
        if let Some(other) = self.meetings.others.get_mut(&other) {
            other.tell(message);
        }
    }

    /// The guest whose address it is, if its broker can be spoken to.
    fn guest_at(&self, address: std::net::IpAddr) -> Option<Domain> {
        let mut others = self.meetings.others.iter();
        let found = others.find(|(_, other)| other.address == address && other.talks());
        found.map(|(domain, _)| *domain)
    }

    /// What is known of a TCP socket whose connection a senior pairs.
    fn connection(&self, cookie: u64) -> Option<ConnectionView> {
        let mut relayed = self.relayed.iter();
        let ((process, _), found) = relayed.find(|(_, one)| one.facts.cookie == cookie)?;
        let waits = Path::Kernel {
            reason: Reason::Waiting,
            channel_id: None,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
        };
        Some(ConnectionView {
            process: *process,
            facts: found.facts,
            path: found.channel.map_or(waits, Path::Channel),
        })
    }

    fn allot(&mut self, side: LinkSide, other: Domain) -> Result<(), Error> {
        let pages = Allotted::new(other, PAGES as u32, Access::Read)?;
        let grants = pages.references().to_vec();
        self.allotted
            .insert(side, (Some(pages.into_descriptor()), grants));
        Ok(())
    }
}

/// The other guest's pages, to be mapped in two pieces.
fn wanted(other: Domain, grants: &[u32]) -> Result<OwnedFd, Error> {
    if grants.len() != PAGES {
        return Err(Error::Malformed);
    }
    let (head, arena) = grants.split_at(HEAD_PAGES);
    let references = |grants: &'_ [u32]| {
        let of = |&number: &u32| Reference {
            domain: other,
            number,
        };
        grants.iter().map(of).collect::<Vec<_>>().into_iter()
    };
    let noted = Wanted::new(references(head))?.and(references(arena))?;
    Ok(noted.into_descriptor())
}

impl Broker {
    /// XenStore has something to say.
    pub(crate) fn hear_of_guests(&mut self) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        let news = guests.meetings.hear();
        if news.is_told_otherwise {
            let own = guests.meetings.address;
            let others = guests.meetings.others.iter();
            let others: Vec<_> = others
                .map(|(domain, other)| (*domain, other.address))
                .collect();
            for (domain, address) in &others {
                tracing::info!("dom0: guest {domain}, {address}, may be met");
            }
            let actions = self.registry.set_guests(own, others.into_iter());
            self.carry_out(actions);
        }
        self.part_from(news.parted);
        for other in news.met {
            let Some(guests) = &self.guests else {
                return;
            };
            let descriptor = guests.meetings.others.get(&other);
            let Some(descriptor) = descriptor.and_then(|other| other.descriptor()) else {
                continue;
            };
            tracing::info!("the broker of guest {other} is met");
            let token = Token::of_guest(other).data();
            let _ = epoll::add(&self.epoll, descriptor, token, epoll::EventFlags::IN);
            self.listen_to(other);
        }
    }

    /// Ends conversations; others may follow.
    fn break_off(&mut self, with: Vec<(Domain, Parted)>) {
        if let Some(guests) = &mut self.guests {
            with.iter()
                .for_each(|(other, _)| guests.meetings.part(*other));
        }
        self.part_from(with);
    }

    /// What conversations that are over have left behind.
    fn part_from(&mut self, parted: Vec<(Domain, Parted)>) {
        for (other, why) in parted {
            tracing::info!("the broker of guest {other} is gone: {why}");
            self.forget_guest(other, matches!(why, Parted::Destroyed));
        }
    }

    /// Another guest's broker has rung.
    pub(crate) fn listen_to(&mut self, other: Domain) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        let Some(talker) = guests.meetings.others.get_mut(&other) else {
            return;
        };
        let is_senior = guests.meetings.own < other;
        match talker.listen() {
            Ok((lines, more)) => {
                guests.has_more |= more;
                for line in lines {
                    let heard = match is_senior {
                        true => serde_json::from_slice(&line).map(|up| self.hear_up(other, up)),
                        false => {
                            serde_json::from_slice(&line).map(|down| self.hear_down(other, down))
                        }
                    };
                    if heard.is_err() {
                        return self.break_off(vec![(other, Parted::Nonsense)]);
                    }
                }
            }
            Err(why) => self.break_off(vec![(other, why)]),
        }
    }

    /// Once a turn: what is to be told is sent; who is left by all of ours is forgotten.
    pub(crate) fn go_on_with_guests(&mut self) {
        // A watch may have fired between a question to XenStore and its answer: then nothing is readable.
        self.hear_of_guests();
        let Some(guests) = &mut self.guests else {
            return;
        };
        if std::mem::take(&mut guests.has_more) {
            let all: Vec<Domain> = guests.meetings.others.keys().copied().collect();
            all.into_iter().for_each(|other| self.listen_to(other));
        }
        let Some(guests) = &mut self.guests else {
            return;
        };
        let mut parted = Vec::new();
        for (domain, other) in &mut guests.meetings.others {
            if let Err(why) = other.flush() {
                parted.push((*domain, why));
            }
        }
        let registry = &self.registry;
        let is_left = |process: &ProcessId| registry.both_ends_in(*process).is_empty();
        let over: Vec<ProcessId> = guests.left.iter().copied().filter(is_left).collect();
        self.break_off(parted);
        for process in over {
            self.forget_afar(process);
        }
    }

    fn forget_afar(&mut self, process: ProcessId) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        guests.left.remove(&process);
        if let Some(afar) = guests.afar.remove(&process)
            && guests.numbers.get(&afar) == Some(&process)
        {
            guests.numbers.remove(&afar);
        }
        guests.granted.retain(|side, _| side.process != process);
        let actions = self.registry.process_gone(process);
        self.carry_out(actions);
    }

    /// The other broker is gone, or the guest with it.
    fn forget_guest(&mut self, other: Domain, is_destroyed: bool) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        for waits in guests.unknown_doors.values_mut() {
            waits.remove(&other);
        }
        let of_it = guests
            .numbers
            .iter()
            .filter(|((domain, _), _)| *domain == other);
        let processes: Vec<ProcessId> = of_it.map(|(_, process)| *process).collect();
        guests.numbers.retain(|(domain, _), _| *domain != other);
        let relayed = guests.relayed.extract_if(.., |_, one| one.other == other);
        let relayed: Vec<_> = relayed.collect();
        let links = guests.links.extract_if(.., |_, domain| *domain == other);
        let links: Vec<LinkSide> = links.map(|(side, _)| side).collect();
        for joined in guests.joined.values_mut() {
            joined.remove(&other);
        }
        for process in processes {
            if is_destroyed {
                self.forget_afar(process);
                continue;
            }
            let channels = self.registry.both_ends_in(process);
            let actions = self.registry.downgrade_these(&channels, Reason::NoPeer);
            if let Some(guests) = &mut self.guests {
                guests.left.insert(process);
            }
            self.carry_out(actions);
        }
        let mut actions = Vec::new();
        for ((to, _), one) in relayed {
            if let Some(channel) = one.channel {
                let message = Outgoing::Downgrade(wire::Downgrade {
                    channel_id: channel.id,
                    reason: Reason::NoPeer as u32,
                    pad: 0,
                });
                actions.push(Action::Send { to, message });
            }
        }
        for side in links {
            self.memory.remove(side);
            if is_destroyed {
                let link_id = side.link_id;
                let message = Outgoing::PeerGone(wire::PeerGone { link_id });
                let to = side.process;
                actions.push(Action::Send { to, message });
            }
        }
        self.carry_out(actions);
        self.release_doors();
    }

    /// Doors that are known everywhere.
    fn release_doors(&mut self) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        let known = guests
            .unknown_doors
            .extract_if(.., |_, waits| waits.is_empty());
        let known: Vec<_> = known.map(|(door, _)| door).collect();
        for (to, door) in known {
            self.send_or_give_up(to, &wire::DoorAck { door }, Vec::new());
        }
    }

    fn door_is_known(&mut self, process: ProcessId, door: u64, other: Domain) {
        if let Some(guests) = &mut self.guests
            && let Some(waits) = guests.unknown_doors.get_mut(&(process, door))
        {
            waits.remove(&other);
            self.release_doors();
        }
    }

    /// A junior speaks.
    fn hear_up(&mut self, other: Domain, up: Up) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        let known = |number: u64| guests.numbers.get(&(other, number)).copied();
        let actions = match up {
            Up::Join { process, doors } => {
                let of_it = guests.numbers.range((other, 0)..=(other, u64::MAX));
                if known(process).is_some() || of_it.count() >= PROCESSES_MAX {
                    return;
                }
                let place = place_of_guest(other);
                let (id, _) = self.registry.add_process(place, PathPolicy::Auto);
                guests.afar.insert(id, (other, process));
                guests.numbers.insert((other, process), id);
                let doors = (1..DOOR_COUNT as u64).filter(|door| doors >> door & 1 == 1);
                // Nobody has a link with it yet.
                for door in doors {
                    let _ = self.registry.door(id, door);
                }
                return;
            }
            Up::Offer {
                process,
                conn,
                cookie,
                local,
                remote,
            } => {
                let Some(id) = known(process) else { return };
                let facts = SocketFacts {
                    protocol: Protocol::Tcp,
                    // No cookie of ours (the kernel counts upwards), and none of another guest's.
                    cookie: cookie | u64::from(other) << 48 | 1 << 63,
                    netns_cookie: place_of_guest(other),
                    local,
                    remote,
                    shown: Shown::default(),
                };
                return self.offer_proved(id, conn, facts);
            }
            Up::Region {
                process,
                link,
                grants,
            } => {
                let Some(id) = known(process) else { return };
                let side = LinkSide {
                    process: id,
                    link_id: link,
                };
                guests.granted.insert(side, grants);
                match self.registry.region(id, link) {
                    Ok((true, actions)) => actions,
                    Ok((false, _)) | Err(_) => {
                        guests.granted.remove(&side);
                        return;
                    }
                }
            }
            Up::Door { process, door } => {
                let Some(id) = known(process) else { return };
                self.registry.door(id, door).unwrap_or_default()
            }
            Up::Status {
                process,
                conn,
                channel,
                status,
                reason,
                tx,
                rx,
            } => {
                let Some(id) = known(process) else { return };
                let report = wire::Status {
                    conn_id: conn,
                    channel_id: channel,
                    status,
                    reason,
                    ring_bytes_tx: tx,
                    ring_bytes_rx: rx,
                };
                self.registry.status(id, report).unwrap_or_default()
            }
            Up::Gone { process } => {
                let Some(id) = known(process) else { return };
                return self.forget_afar(id);
            }
            Up::Answer { process, door } => {
                return self.door_is_known(ProcessId(process), door, other);
            }
        };
        self.carry_out(actions);
    }

    /// A senior speaks of our processes.
    fn hear_down(&mut self, other: Domain, down: Down) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        let knows = |process: u64| {
            let id = ProcessId(process);
            let joined = guests.joined.get(&id);
            joined
                .is_some_and(|joined| joined.contains(&other))
                .then_some(id)
        };
        let has_link = |process: ProcessId, link_id: u64| {
            let side = LinkSide { process, link_id };
            guests.links.get(&side) == Some(&other)
        };
        let (to, message) = match down {
            Down::Reject {
                process,
                conn,
                reason,
                pending,
            } => {
                let Some(to) = knows(process) else { return };
                let body = wire::Reject {
                    conn_id: conn,
                    reason,
                    pending,
                };
                (to, Outgoing::Reject(body))
            }
            Down::Link { process, link } => {
                let Some(id) = knows(process) else { return };
                let side = LinkSide {
                    process: id,
                    link_id: link,
                };
                if let Err(error) = guests.allot(side, other) {
                    tracing::warn!("no memory for rings to guest {other}: {error}");
                    return;
                }
                guests.links.insert(side, other);
                let grants = guests.allotted.get(&side).map(|(_, grants)| grants.clone());
                let grants = grants.unwrap_or_default();
                let up = Up::Region {
                    process,
                    link,
                    grants,
                };
                return guests.tell(other, &up);
            }
            Down::Peer {
                process,
                link,
                grants,
            } => {
                let Some(id) = knows(process).filter(|id| has_link(*id, link)) else {
                    return;
                };
                return self.hand_over(id, link, other, &grants);
            }
            Down::Bell {
                process,
                link,
                door,
                port,
                sleeps,
            } => {
                let Some(id) = knows(process).filter(|id| has_link(*id, link)) else {
                    return;
                };
                let bell = EventChannel::accept(other, port);
                return self.hand_bell(id, link, door, bell, sleeps);
            }
            Down::Pair {
                process,
                conn,
                channel,
                link,
                slot,
                generation,
            } => {
                let Some(to) = knows(process).filter(|id| has_link(*id, link)) else {
                    return;
                };
                let own = LinkSide {
                    process: to,
                    link_id: link,
                };
                let view = ChannelView {
                    id: channel,
                    slot,
                    generation,
                    own,
                    peer: None,
                    downgrading: None,
                };
                // Of an offer to this guest, and to no other.
                let facts = match guests.relayed.get_mut(&(to, conn)) {
                    Some(one) if one.other == other => {
                        one.channel = Some(view);
                        one.facts
                    }
                    _ => return,
                };
                let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
                if older.still_true(to, &facts).is_err() {
                    let closed = wire::Status {
                        conn_id: conn,
                        channel_id: channel,
                        status: wire::status::CLOSED,
                        reason: 0,
                        ring_bytes_tx: 0,
                        ring_bytes_rx: 0,
                    };
                    self.relay_status(to, &closed);
                    return;
                }
                let body = wire::Pair {
                    conn_id: conn,
                    channel_id: channel,
                    link_id: link,
                    slot,
                    generation,
                    cuts_through: 0,
                    pad: 0,
                };
                (to, Outgoing::Pair(body))
            }
            Down::DoorAck { process, door } => {
                return self.door_is_known(ProcessId(process), door, other);
            }
            Down::Downgrade {
                process,
                channel,
                reason,
            } => {
                let Some(to) = knows(process) else { return };
                let mut of_it = guests.relayed.range((to, 0)..=(to, u64::MAX));
                if !of_it.any(|(_, one)| (one.other, one.channel_id()) == (other, channel)) {
                    return;
                }
                let body = wire::Downgrade {
                    channel_id: channel,
                    reason,
                    pad: 0,
                };
                (to, Outgoing::Downgrade(body))
            }
            Down::PeerGone { process, link } => {
                let Some(to) = knows(process).filter(|id| has_link(*id, link)) else {
                    return;
                };
                let side = LinkSide {
                    process: to,
                    link_id: link,
                };
                guests.links.remove(&side);
                self.memory.remove(side);
                (to, Outgoing::PeerGone(wire::PeerGone { link_id: link }))
            }
            Down::Ask { process, door } => {
                return guests.tell(other, &Up::Answer { process, door });
            }
        };
        self.carry_out(vec![Action::Send { to, message }]);
    }

    /// Both sides' pages for a process of ours.
    fn hand_over(&mut self, process: ProcessId, link_id: u64, other: Domain, grants: &[u32]) {
        let side = LinkSide { process, link_id };
        let Some(guests) = &mut self.guests else {
            return;
        };
        let own = guests
            .allotted
            .get_mut(&side)
            .and_then(|(own, _)| own.take());
        let Some(own) = own else {
            return;
        };
        let purse = self.purse_of(process);
        self.memory.insert_of_guest(side, &own, purse);
        let theirs = match wanted(other, grants) {
            Ok(theirs) => theirs,
            Err(error) => {
                tracing::warn!("guest {other} grants nothing that can be mapped: {error}");
                return;
            }
        };
        let body = wire::Guest {
            link_id,
            arena_bytes: ARENA_BYTES as u64,
            peer_arena_bytes: ARENA_BYTES as u64,
        };
        self.send_or_give_up(process, &body, vec![own, theirs]);
    }

    fn hand_bell(
        &mut self,
        process: ProcessId,
        link_id: u64,
        door: u64,
        bell: Result<EventChannel, Error>,
        sleeps: bool,
    ) {
        let bell = bell.and_then(|bell| Ok((u64::from(bell.port()), bell.into_descriptor()?)));
        let (port, bell) = match bell {
            Ok(bell) => bell,
            // Without it the process gives the link up once it would need it.
            Err(error) => return tracing::warn!("no doorbell between guests: {error}"),
        };
        match sleeps {
            true => {
                let body = wire::OwnDoor {
                    link_id,
                    door,
                    port,
                };
                self.send_or_give_up(process, &body, vec![bell]);
            }
            false => {
                let body = wire::PeerDoor {
                    link_id,
                    door,
                    port,
                };
                self.send_or_give_up(process, &body, vec![bell]);
            }
        }
    }

    fn send_or_give_up<M: wire::Message>(
        &mut self,
        process: ProcessId,
        body: &M,
        fds: Vec<OwnedFd>,
    ) {
        let Some(&number) = self.by_process.get(&process) else {
            return;
        };
        let fds = fds.into_iter().map(Arc::new).collect();
        let sent: Result<(), SendError> = match self.connections.get_mut(&number) {
            Some(connection) => connection.send(body, fds),
            None => return,
        };
        match sent {
            Ok(()) => self.watch_writable(number),
            Err(error) => self.give_up_unsendable(number, &error),
        }
    }

    /// Whether an action has to do with another guest; then it is carried out here.
    pub(crate) fn carry_out_afar(&mut self, action: &Action) -> bool {
        let Some(guests) = &mut self.guests else {
            return false;
        };
        match *action {
            Action::Send { to, message } => {
                if let Some(&(other, process)) = guests.afar.get(&to) {
                    if !guests.left.contains(&to) {
                        guests.tell(other, &Down::of(process, &message));
                    }
                    return true;
                }
                match message {
                    Outgoing::Link(wire::Link { link_id, .. }) => {
                        let far = self.registry.far_side(to, link_id);
                        let far = far.and_then(|far| guests.afar.get(&far.process));
                        let Some(&(other, _)) = far else {
                            return false;
                        };
                        let side = LinkSide {
                            process: to,
                            link_id,
                        };
                        match guests.allot(side, other) {
                            Ok(()) => guests.to_report.push(side),
                            Err(error) => {
                                tracing::warn!("no memory for rings to guest {other}: {error}");
                            }
                        }
                        true
                    }
                    Outgoing::DoorAck(wire::DoorAck { door }) => self.hold_door(to, door),
                    _ => false,
                }
            }
            Action::Peer {
                to,
                link_id,
                peer,
                peer_link_id,
            } => {
                let side = LinkSide {
                    process: peer,
                    link_id: peer_link_id,
                };
                if let Some(&(other, process)) = guests.afar.get(&to) {
                    let grants = guests.allotted.get(&side).map(|(_, grants)| grants.clone());
                    let down = Down::Peer {
                        process,
                        link: link_id,
                        grants: grants.unwrap_or_default(),
                    };
                    guests.tell(other, &down);
                    return true;
                }
                let Some(&(other, _)) = guests.afar.get(&peer) else {
                    return false;
                };
                let grants = guests.granted.remove(&side).unwrap_or_default();
                self.hand_over(to, link_id, other, &grants);
                true
            }
            Action::Doorbell {
                sleeper,
                sleeper_link_id,
                knocker,
                knocker_link_id,
                door,
            } => {
                let (ours, our_link, (other, process), link, sleeps) =
                    match (guests.afar.get(&sleeper), guests.afar.get(&knocker)) {
                        (Some(afar), None) => {
                            (knocker, knocker_link_id, *afar, sleeper_link_id, true)
                        }
                        (None, Some(afar)) => {
                            (sleeper, sleeper_link_id, *afar, knocker_link_id, false)
                        }
                        _ => return false,
                    };
                let bell = EventChannel::offer(other);
                if let Ok(bell) = &bell {
                    let down = Down::Bell {
                        process,
                        link,
                        door,
                        port: bell.port(),
                        sleeps,
                    };
                    guests.tell(other, &down);
                }
                self.hand_bell(ours, our_link, door, bell, !sleeps);
                true
            }
            Action::LinkClosed { process, link_id } => {
                let side = LinkSide { process, link_id };
                guests.allotted.remove(&side);
                guests.granted.remove(&side);
                false
            }
        }
    }

    /// A door of ours is to be known afar as well, before its process is told so.
    fn hold_door(&mut self, process: ProcessId, door: u64) -> bool {
        let Some(guests) = &mut self.guests else {
            return false;
        };
        let juniors: BTreeSet<Domain> = self
            .registry
            .far_processes_of(process)
            .filter_map(|far| guests.afar.get(&far).map(|(other, _)| *other))
            .collect();
        let seniors = guests.joined.get(&process).cloned().unwrap_or_default();
        if juniors.is_empty() && seniors.is_empty() {
            return false;
        }
        for other in &juniors {
            let (process, door) = (process.0, door);
            guests.tell(*other, &Down::Ask { process, door });
        }
        for other in &seniors {
            let (process, door) = (process.0, door);
            guests.tell(*other, &Up::Door { process, door });
        }
        guests
            .unknown_doors
            .insert((process, door), juniors.union(&seniors).copied().collect());
        true
    }

    /// Regions that were allotted are reported, as if their processes had sent them.
    pub(crate) fn report_allotted(&mut self) {
        while let Some(side) = self
            .guests
            .as_mut()
            .and_then(|guests| guests.to_report.pop())
        {
            if let Ok((_, actions)) = self.registry.region(side.process, side.link_id) {
                self.carry_out(actions);
            }
        }
    }

    /// Whether an offer is a senior's to pair; then it is on its way there.
    pub(crate) fn relay_offer(
        &mut self,
        process: ProcessId,
        conn: u64,
        facts: &SocketFacts,
    ) -> bool {
        let Some(guests) = &mut self.guests else {
            return false;
        };
        let Some(other) = guests.guest_at(facts.remote.ip()) else {
            return false;
        };
        let is_its = guests
            .meetings
            .address
            .is_some_and(|own| facts.local.ip() == own)
            && Some(facts.netns_cookie) == self.registry.host_netns();
        if facts.protocol != Protocol::Tcp || !is_its || guests.meetings.is_senior_to(other) {
            return false;
        }
        let joined = guests.joined.entry(process).or_default();
        if joined.insert(other) {
            let doors = self.registry.doors_of(process);
            let process = process.0;
            guests.tell(other, &Up::Join { process, doors });
        }
        let one = Relayed {
            other,
            facts: *facts,
            channel: None,
        };
        guests.relayed.insert((process, conn), one);
        let up = Up::Offer {
            process: process.0,
            conn,
            cookie: facts.cookie,
            local: facts.local,
            remote: facts.remote,
        };
        guests.tell(other, &up);
        true
    }

    /// Whether a report is about a relayed connection; then it is on its way.
    pub(crate) fn relay_status(&mut self, process: ProcessId, report: &wire::Status) -> bool {
        let Some(guests) = &mut self.guests else {
            return false;
        };
        let Some(one) = guests.relayed.remove(&(process, report.conn_id)) else {
            return false;
        };
        let sent = &mut guests.ring_bytes_reported;
        *sent = sent.saturating_add(report.ring_bytes_tx);
        let up = Up::Status {
            process: process.0,
            conn: report.conn_id,
            channel: report.channel_id,
            status: report.status,
            reason: report.reason,
            tx: report.ring_bytes_tx,
            rx: report.ring_bytes_rx,
        };
        guests.tell(one.other, &up);
        true
    }

    /// What is known of a TCP socket.
    pub(crate) fn connection_with(&self, cookie: u64) -> Option<ConnectionView> {
        let afar = || self.guests.as_ref()?.connection(cookie);
        self.registry.connection(cookie).or_else(afar)
    }

    /// Bytes that went through rings of relayed connections, by their senders' words.
    pub(crate) fn ring_bytes_relayed(&self) -> u64 {
        let Some(guests) = &self.guests else {
            return 0;
        };
        let live = guests.relayed.values().filter_map(|one| one.channel);
        let live = live.filter_map(|channel| self.memory.progress(&channel));
        live.map(|progress| progress.ring_bytes_tx)
            .fold(guests.ring_bytes_reported, u64::saturating_add)
    }

    /// A process of ours is gone.
    pub(crate) fn relay_end(&mut self, process: ProcessId) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        guests.relayed.retain(|(of, _), _| *of != process);
        let links = guests
            .links
            .extract_if(.., |side, _| side.process == process);
        links.for_each(|(side, _)| self.memory.remove(side));
        guests.allotted.retain(|side, _| side.process != process);
        guests.unknown_doors.retain(|(of, _), _| *of != process);
        for other in guests.joined.remove(&process).unwrap_or_default() {
            guests.tell(other, &Up::Gone { process: process.0 });
        }
    }
}
