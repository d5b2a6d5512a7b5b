//! Other guests of Xen: connections between their programs and ours get rings over granted pages.
//!
//! Each guest has a broker. Two brokers meet as dom0 allows (`meet`), and talk ([`fordway_guests::talk`]): the senior's registry pairs, the junior
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
//! descriptors to the process (`control::Guest`). It keeps the first one until the other guest has let go of the pages (`kept`).
//!
//! **Doors.** The senior makes the port of each doorbell, whoever sleeps behind it; the other side binds to it. A process is told
//! that all know its new door (`DoorAck`) once the other brokers have said so.
//!
//! **Ends.** A process that is gone: as between processes; each broker tells the other once a process of its has nothing mapped of
//! the other's pages (`LetGo`). One that lives without its broker, whose connection it lost, has them until it ends or runs
//! another program ([`Lingering`]). The other broker is gone: the channels go down, which the two libraries do by
//! themselves, and its processes are forgotten once ours have left them. The other guest is destroyed, with its
//! broker or after it: its processes are gone, which ours hear twice ([`TOLD_AGAIN`]).
//!
//! **Limits.** gntalloc's, which is raised to [`GRANTS_MAX`]; [`LINKS_MAX`] links to one guest, [`PROCESSES_MAX`] of its processes with
//! [`CONNECTIONS_MAX`] connections each, and [`CONNECTIONS_OF_GUEST_MAX`] in all. Beyond them connections stay on the kernel path. Only TCP, between the addresses that dom0 has told.

mod kept;
mod meet;

use crate::broker::{Broker, Token};
use crate::connection::SendError;
use crate::proof::Witness;
use fordway_abi::control::{self as wire, PathPolicy, Protocol};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{
    DOOR_COUNT, GUEST_ARENA_BYTES as ARENA_BYTES, GUEST_HEAD_BYTES, GUEST_SLOT_COUNT,
};
use fordway_guests::talk::{self, Down, Up};
use fordway_platform::process::{self, Peer};
use fordway_registry::{
    Action, ChannelView, ConnectionView, LinkSide, Outgoing, Path, ProcessId, Shown, SocketFacts,
    place_of_guest,
};
use fordway_xen_user::{
    Access, Allotted, Domain, Error, EventChannel, PAGE_SIZE, Reference, Wanted,
};
use kept::Kept;
use meet::{Meetings, Parted};
use rustix::event::epoll;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HEAD_PAGES: usize = GUEST_HEAD_BYTES / PAGE_SIZE;
const PAGES: usize = HEAD_PAGES + ARENA_BYTES / PAGE_SIZE;
/// Pages that this guest may grant by gntalloc: three quarters of Xen's own limit (64 frames of grants), for disks and
/// networks need some, too.
const GRANTS_MAX: u32 = 24 << 10;
const GRANTS_LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";
/// Of one guest.
const PROCESSES_MAX: usize = 256;
/// Connections of a process, there or here: more than its links have slots for.
const CONNECTIONS_MAX: usize = 1024;
/// Connections of all processes of one guest: several times what its links have slots for. Each is memory of ours.
const CONNECTIONS_OF_GUEST_MAX: usize = 4096;
/// Links to one guest: half of what the grants are enough for, so that others have some, too.
const LINKS_MAX: usize = GRANTS_MAX as usize / PAGES / 2;

/// Lost connections of a process that lives, from which pages may be mapped: beyond that the process gets no link.
const LINGERING_OF_ONE_MAX: usize = 2;

/// Between the first word to processes that a guest is destroyed and the second: what the rings hold is taken meanwhile, and
/// what was sent goes by TCP as far as that has room.
const TOLD_AGAIN: Duration = Duration::from_millis(500);

/// A process of ours that lives and has lost its connection, with pages that it was handed. They are mapped until it ends, or
/// executes a program: that has another address space, and its connection may be the next one of the same process.
#[derive(Debug)]
struct Lingering {
    process: ProcessId,
    runs: Program,
    pidfd: OwnedFd,
}

impl Lingering {
    fn is_over(&self) -> bool {
        let is_another = || {
            let now = process::image(self.runs.pid);
            now.is_some() && self.runs.image.is_some() && now != self.runs.image
        };
        !process::is_alive(&self.pidfd) || is_another()
    }
}

/// A process by its number, and what it ran as it said Hello.
#[derive(Clone, Copy, Debug)]
struct Program {
    pid: i32,
    image: Option<(u64, u64)>,
}

/// A process of another guest's, by that guest's number for it.
type Afar = (Domain, u64);

/// A link that a senior has made.
#[derive(Debug)]
struct FarLink {
    other: Domain,
    /// Its number there.
    number: u64,
    was_handed_over: bool,
    /// Doors that were made, and who sleeps behind them.
    bells: BTreeSet<(u64, bool)>,
}

/// A connection that a senior pairs.
#[derive(Clone, Copy, Debug)]
struct Relayed {
    other: Domain,
    /// The senior is gone, and our end has not left the channel yet.
    is_left: bool,
    facts: SocketFacts,
    /// By a number of our own.
    channel: Option<ChannelView>,
    /// The senior's number for it.
    far_channel: u64,
    /// Why its process was asked to leave it, by the reasons' numbers as bits: once for each, for a senior may say it without end.
    asked: u64,
}

impl Relayed {
    /// Whether this senior pairs it.
    fn is_with(&self, other: Domain) -> bool {
        self.other == other && !self.is_left
    }

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
    /// Links that came of it, by numbers of our own: a senior may name what it likes.
    links: BTreeMap<LinkSide, FarLink>,
    /// Those whose senior is gone, until our processes have left them.
    left_links: BTreeSet<LinkSide>,
    /// Pages of processes of ours, also of those that are gone.
    kept: Kept<OwnedFd>,
    /// What processes of ours run.
    programs: BTreeMap<ProcessId, Program>,
    lingering: Vec<Lingering>,
    /// Grants of a process afar.
    granted: BTreeMap<LinkSide, Vec<u32>>,
    /// Regions that were allotted while actions were carried out, and those that could not be.
    to_report: Vec<LinkSide>,
    failed: Vec<LinkSide>,
    /// Links to guests that are destroyed, and when the processes are told so a second time.
    doomed: Vec<(Instant, LinkSide)>,
    /// Who has not said yet that a new door of ours is known.
    unknown_doors: BTreeMap<(ProcessId, u64), BTreeSet<Domain>>,
    /// Somebody had more to say than was read in a turn.
    has_more: bool,
}

impl Guests {
    /// `None`: this is no guest of Xen's.
    pub(crate) fn start() -> Option<Self> {
        let meetings = Meetings::open()?;
        raise_limit();
        tracing::info!("guest {} of Xen", meetings.own);
        Some(Self {
            meetings,
            afar: BTreeMap::new(),
            numbers: BTreeMap::new(),
            left: BTreeSet::new(),
            joined: BTreeMap::new(),
            relayed: BTreeMap::new(),
            links: BTreeMap::new(),
            left_links: BTreeSet::new(),
            kept: Kept::default(),
            programs: BTreeMap::new(),
            lingering: Vec::new(),
            granted: BTreeMap::new(),
            to_report: Vec::new(),
            failed: Vec::new(),
            doomed: Vec::new(),
            unknown_doors: BTreeMap::new(),
            has_more: false,
        })
    }

    /// Until there is something to be done that nothing rings for.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        match self.has_more || self.meetings.has_fired() {
            true => Some(0),
            false => {
                let doomed = self.doomed.first();
                let left = doomed.map(|(at, _)| at.saturating_duration_since(Instant::now()));
                let left = left.map(|left| left.as_nanos() as u64);
                left.into_iter().chain(self.meetings.patience_ns()).min()
            }
        }
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

    /// A process of ours has said Hello.
    pub(crate) fn note_program(&mut self, process: ProcessId, pid: i32) {
        let image = process::image(pid);
        self.programs.insert(process, Program { pid, image });
    }

    /// Whether a process has lost too many connections with pages to be given more.
    fn lingers_too_much(&self, process: ProcessId) -> bool {
        let Some(runs) = self.programs.get(&process) else {
            return false;
        };
        let of_it = self.lingering.iter().filter(|one| one.runs.pid == runs.pid);
        of_it.count() >= LINGERING_OF_ONE_MAX
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

    fn allot(&mut self, side: LinkSide, name: kept::Name) -> Result<(), Error> {
        let (other, ..) = name;
        if self.kept.count_with(other) >= LINKS_MAX || self.lingers_too_much(side.process) {
            return Err(Error::GrantsUsedUp);
        }
        let make = || Allotted::new(other, PAGES as u32, Access::Read);
        let made = match make() {
            // The module may have come after us.
            Err(Error::GrantsUsedUp) => {
                raise_limit();
                make()?
            }
            made => made?,
        };
        let grants = made.references().to_vec();
        self.kept.insert(side, name, made.into_descriptor(), grants);
        Ok(())
    }

    /// Tells whoever waits for it that a process of ours has nothing mapped of a link.
    fn tell_let_go(&mut self, names: impl IntoIterator<Item = kept::Name>) {
        for (other, process, link) in names {
            match self.meetings.is_senior_to(other) {
                true => self.tell(other, &Down::LetGo { process, link }),
                false => self.tell(other, &Up::LetGo { process, link }),
            }
        }
    }

    /// A process of ours has ended, and all that it had mapped is not mapped any more.
    fn process_gone(&mut self, process: ProcessId) {
        let let_go = self.kept.process_gone(process);
        self.tell_let_go(let_go);
    }

    /// A link of a process of ours is over.
    fn closed(&mut self, side: LinkSide) {
        let name = self.kept.closed(side);
        self.tell_let_go(name);
    }

    /// The link of a process that a senior knows by this number.
    fn link_of(&self, other: Domain, process: ProcessId, number: u64) -> Option<LinkSide> {
        let sides = LinkSide {
            process,
            link_id: 0,
        }..=LinkSide {
            process,
            link_id: u64::MAX,
        };
        let mut links = self.links.range(sides);
        let found = links.find(|(_, link)| (link.other, link.number) == (other, number));
        found.map(|(side, _)| *side)
    }

    /// Links that a senior had made, and of which no connection of ours is left.
    fn links_over(&mut self) -> Vec<LinkSide> {
        let relayed = &self.relayed;
        let is_over = |side: &LinkSide| {
            let mut of_it = relayed.range((side.process, 0)..=(side.process, u64::MAX));
            !of_it.any(|(_, one)| one.channel.is_some_and(|channel| channel.own == *side))
        };
        self.left_links.extract_if(.., is_over).collect()
    }
}

/// gntalloc's limit. Where its module is not there, each link says so.
fn raise_limit() {
    let limit = std::fs::read_to_string(GRANTS_LIMIT).ok();
    let limit = limit.and_then(|limit| limit.trim().parse().ok());
    if limit.is_some_and(|limit: u32| limit < GRANTS_MAX) {
        let _ = std::fs::write(GRANTS_LIMIT, GRANTS_MAX.to_string());
    }
}

/// The other end of a connection to another guest, as far as rules ask.
fn far_end(facts: &SocketFacts, other: Domain) -> SocketFacts {
    SocketFacts {
        cookie: !facts.cookie,
        netns_cookie: place_of_guest(other),
        local: facts.remote,
        remote: facts.local,
        shown: Shown::default(),
        ..*facts
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

/// A process of ours is told that nobody is at the far end of a link of its any more.
fn peer_gone(side: LinkSide) -> Action {
    let link_id = side.link_id;
    Action::Send {
        to: side.process,
        message: Outgoing::PeerGone(wire::PeerGone { link_id }),
    }
}

/// What the registry wants a process of the junior's to be told.
fn down_of(process: u64, message: &Outgoing) -> Down {
    match *message {
        Outgoing::Reject(wire::Reject {
            conn_id,
            reason,
            pending,
        }) => Down::Reject {
            process,
            conn: conn_id,
            reason,
            pending,
        },
        Outgoing::Link(wire::Link { link_id, .. }) => Down::Link {
            process,
            link: link_id,
        },
        Outgoing::Pair(pair) => Down::Pair {
            process,
            conn: pair.conn_id,
            channel: pair.channel_id,
            link: pair.link_id,
            slot: pair.slot,
            generation: pair.generation,
        },
        Outgoing::DoorAck(wire::DoorAck { door }) => Down::DoorAck { process, door },
        Outgoing::Downgrade(wire::Downgrade {
            channel_id, reason, ..
        }) => Down::Downgrade {
            process,
            channel: channel_id,
            reason,
        },
        Outgoing::PeerGone(wire::PeerGone { link_id }) => Down::PeerGone {
            process,
            link: link_id,
        },
    }
}

impl Broker {
    /// XenStore has something to say.
    pub(crate) fn hear_of_guests(&mut self) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        let mut news = guests.meetings.hear();
        guests.meetings.try_again(&mut news);
        if news.is_told_otherwise {
            let own = guests.meetings.addresses.clone();
            let others = guests.meetings.others.iter();
            let others: Vec<_> = others
                .map(|(domain, other)| (*domain, other.addresses.clone()))
                .collect();
            for (domain, addresses) in &others {
                tracing::info!("dom0: guest {domain}, {addresses}, may be met");
            }
            let actions = self.registry.set_guests(own, others.into_iter());
            self.carry_out(actions);
            self.look_at_relayed();
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
            if !guests.meetings.is_senior_to(other) {
                // What waits here since before, or since the talk of before, is the senior's to pair.
                let offers = self.registry.take_offers_to(other);
                self.offer_anew(offers);
            }
            self.listen_to(other);
        }
    }

    /// What processes of ours have on offer is a senior's to pair, or waits here.
    fn offer_anew(&mut self, offers: Vec<(ProcessId, u64, SocketFacts)>) {
        for (process, conn, facts) in offers {
            // An answer to one that cannot be sent ends the process.
            if !self.by_process.contains_key(&process) {
                continue;
            }
            if !self.relay_offer(process, conn, &facts) {
                self.offer_proved(process, conn, facts);
            }
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
                        true => talk::read(&line).map(|up| self.hear_up(other, up)),
                        false => talk::read(&line).map(|down| self.hear_down(other, down)),
                    };
                    if heard.is_none() {
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
        let over = guests.lingering.extract_if(.., |one| one.is_over());
        for one in over.collect::<Vec<_>>() {
            guests.process_gone(one.process);
        }
        if std::mem::take(&mut guests.has_more) {
            let all: Vec<Domain> = guests.meetings.others.keys().copied().collect();
            all.into_iter().for_each(|other| self.listen_to(other));
        }
        let Some(guests) = &mut self.guests else {
            return;
        };
        let now = Instant::now();
        let due = guests.doomed.extract_if(.., |(at, _)| *at <= now);
        let again = due.map(|(_, side)| peer_gone(side)).collect();
        self.carry_out(again);
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
        guests.kept.part(other);
        for waits in guests.unknown_doors.values_mut() {
            waits.remove(&other);
        }
        // Those of a broker before are waited for until the guest is no more.
        let left = &guests.left;
        let of_it = guests.afar.iter().filter(|(process, (domain, _))| {
            *domain == other && (is_destroyed || !left.contains(process))
        });
        let processes: Vec<ProcessId> = of_it.map(|(process, _)| *process).collect();
        let mut doomed: Vec<LinkSide> = Vec::new();
        for process in &processes {
            let channels = self.registry.live_channels_of(*process).into_iter();
            doomed.extend(channels.filter_map(|channel| channel.peer));
        }
        guests.numbers.retain(|(domain, _), _| *domain != other);
        let of_it = |one: &Relayed| one.other == other && (is_destroyed || !one.is_left);
        // Without a channel there is nothing to leave: such an offer waits for the next talk.
        let waits = guests
            .relayed
            .extract_if(.., |_, one| of_it(one) && one.channel.is_none());
        let waits: Vec<_> = waits
            .map(|((process, conn), one)| (process, conn, one.facts))
            .collect();
        let mut relayed = Vec::new();
        for (key, one) in guests.relayed.iter_mut().filter(|(_, one)| of_it(one)) {
            one.is_left = true;
            relayed.push((*key, one.channel_id()));
            doomed.extend(one.channel.map(|channel| channel.own));
        }
        let links = guests.links.extract_if(.., |_, link| link.other == other);
        let links: Vec<LinkSide> = links.map(|(side, _)| side).collect();
        for joined in guests.joined.values_mut() {
            joined.remove(&other);
        }
        if is_destroyed {
            // Behind this nothing knows of them.
            for ((process, _), _) in &relayed {
                self.count_ends_of(*process);
            }
        }
        for process in processes {
            if is_destroyed {
                self.forget_afar(process);
                continue;
            }
            self.registry.end_offers_of(process);
            let channels = self.registry.both_ends_in(process);
            let actions = self.registry.downgrade_these(&channels, Reason::NoPeer);
            if let Some(guests) = &mut self.guests {
                guests.left.insert(process);
            }
            self.carry_out(actions);
        }
        let mut actions = Vec::new();
        for &((to, _), channel_id) in &relayed {
            let message = Outgoing::Downgrade(wire::Downgrade {
                channel_id,
                reason: Reason::NoPeer as u32,
                pad: 0,
            });
            actions.push(Action::Send { to, message });
        }
        if let Some(guests) = &mut self.guests {
            guests.left_links.extend(&links);
            if is_destroyed {
                doomed.sort_unstable();
                doomed.dedup();
                let at = Instant::now() + TOLD_AGAIN;
                let doomed = doomed.into_iter().map(|side| (at, side));
                guests.doomed.extend(doomed);
                // Nobody answers at the other end: what is in the rings is all that there will be.
                for (key, _) in &relayed {
                    guests.relayed.remove(key);
                }
            }
        }
        self.carry_out(actions);
        self.end_links();
        self.release_doors();
        self.offer_anew(waits);
    }

    /// Our processes let go of links whose senior is gone.
    fn end_links(&mut self) {
        let over = self.guests.as_mut().map(Guests::links_over);
        for side in over.unwrap_or_default() {
            self.memory.remove(side);
            self.carry_out(vec![peer_gone(side)]);
        }
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
                    cookie: cookie & ((1 << 48) - 1) | u64::from(other) << 48 | 1 << 63,
                    netns_cookie: place_of_guest(other),
                    local,
                    remote,
                    shown: Shown::default(),
                };
                // Nothing else could be paired.
                if !self.registry.is_for_this_guest(&facts) {
                    return;
                }
                let of_it = guests.numbers.range((other, 0)..=(other, u64::MAX));
                let count = |id: &ProcessId| self.registry.connection_count(*id);
                let in_all: usize = of_it.map(|(_, id)| count(id)).sum();
                if count(&id) >= CONNECTIONS_MAX || in_all >= CONNECTIONS_OF_GUEST_MAX {
                    let reason = Reason::NoMemory as u32;
                    let pending = 0;
                    return guests.tell(
                        other,
                        &Down::Reject {
                            process,
                            conn,
                            reason,
                            pending,
                        },
                    );
                }
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
                let ours = self.registry.far_side(id, link);
                match self.registry.region(id, link) {
                    Ok((true, actions)) => {
                        if !ours.is_some_and(|ours| guests.kept.hear_grants(ours)) {
                            guests.tell_let_go([(other, process, link)]);
                        }
                        actions
                    }
                    // A second word about a link that is there is no news.
                    Err(_) if ours.is_some() => {
                        guests.granted.remove(&side);
                        return;
                    }
                    Ok((false, _)) | Err(_) => {
                        guests.granted.remove(&side);
                        return guests.tell_let_go([(other, process, link)]);
                    }
                }
            }
            Up::NoRegion { process, link } => {
                let Some(id) = known(process) else { return };
                self.registry.link_failed(id, link)
            }
            Up::Door { process, door } => {
                let Some(id) = known(process) else {
                    return guests.tell(other, &Down::DoorAck { process, door });
                };
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
            Up::LetGo { process, link } => {
                return guests.kept.other_let_go((other, process, link));
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
            let joined = guests.joined.get(&id)?;
            joined.contains(&other).then_some(id)
        };
        match down {
            Down::Reject {
                process,
                conn,
                reason,
                pending,
            } => {
                let Some(to) = knows(process) else { return };
                // Of an offer to this guest, and to no other.
                match guests.relayed.get(&(to, conn)) {
                    Some(one) if one.is_with(other) && one.channel.is_none() => {}
                    _ => return,
                }
                // That it waits there is no news for its process, whose mail is not for others to fill.
                if pending != 0 {
                    return;
                }
                guests.relayed.remove(&(to, conn));
                let body = wire::Reject {
                    conn_id: conn,
                    reason,
                    pending,
                };
                self.tell_ours(to, Outgoing::Reject(body));
            }
            Down::Link { process, link } => {
                let Some(to) = knows(process) else { return };
                if guests.link_of(other, to, link).is_some() {
                    return;
                }
                let side = LinkSide {
                    process: to,
                    link_id: self.registry.number(),
                };
                if let Err(error) = guests.allot(side, (other, process, link)) {
                    tracing::warn!("no memory for rings to guest {other}: {error}");
                    return guests.tell(other, &Up::NoRegion { process, link });
                }
                let far = FarLink {
                    other,
                    number: link,
                    was_handed_over: false,
                    bells: BTreeSet::new(),
                };
                guests.links.insert(side, far);
                let grants = guests.kept.tell_grants(side);
                let up = Up::Region {
                    process,
                    link,
                    grants,
                };
                guests.tell(other, &up);
            }
            Down::Peer {
                process,
                link,
                grants,
            } => {
                let side = knows(process).and_then(|to| guests.link_of(other, to, link));
                let Some(side) = side else {
                    // It is over here.
                    return guests.tell_let_go([(other, process, link)]);
                };
                let far = guests.links.get_mut(&side);
                if far.is_some_and(|far| !std::mem::replace(&mut far.was_handed_over, true)) {
                    guests.kept.hear_grants(side);
                    self.hand_over(side, other, &grants);
                }
            }
            Down::Bell {
                process,
                link,
                door,
                port,
                sleeps,
            } => {
                let side = knows(process).and_then(|to| guests.link_of(other, to, link));
                let Some(side) = side.filter(|_| door < DOOR_COUNT as u64) else {
                    return;
                };
                let far = guests.links.get_mut(&side);
                if far.is_some_and(|far| far.bells.insert((door, sleeps))) {
                    let bell = EventChannel::accept(other, port);
                    self.hand_bell(side, door, bell, sleeps);
                }
            }
            Down::Pair {
                process,
                conn,
                channel,
                link,
                slot,
                generation,
            } => {
                let own = knows(process).and_then(|to| guests.link_of(other, to, link));
                let Some(own) = own.filter(|_| (slot as usize) < GUEST_SLOT_COUNT) else {
                    return;
                };
                let to = own.process;
                let facts = match guests.relayed.get_mut(&(to, conn)) {
                    Some(one) if one.is_with(other) && one.channel.is_none() => {
                        one.channel = Some(ChannelView {
                            id: self.registry.number(),
                            slot,
                            generation,
                            own,
                            peer: None,
                            downgrading: None,
                        });
                        one.far_channel = channel;
                        one.facts
                    }
                    _ => return,
                };
                let channel_id = guests.relayed[&(to, conn)].channel_id();
                let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
                if !self.registry.is_with_guest(&facts, other)
                    || older.still_true(to, &facts).is_err()
                {
                    let closed = wire::Status {
                        conn_id: conn,
                        channel_id,
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
                    channel_id,
                    link_id: own.link_id,
                    slot,
                    generation,
                    cuts_through: 0,
                    pad: 0,
                };
                self.tell_ours(to, Outgoing::Pair(body));
            }
            Down::DoorAck { process, door } => {
                self.door_is_known(ProcessId(process), door, other);
            }
            Down::Downgrade {
                process,
                channel,
                reason,
            } => {
                let Some(to) = knows(process) else { return };
                let mut of_it = guests.relayed.range_mut((to, 0)..=(to, u64::MAX));
                let one = of_it.find(|(_, one)| {
                    one.is_with(other) && one.channel.is_some() && one.far_channel == channel
                });
                let Some((_, one)) = one else { return };
                // Reasons that nobody knows share the last bit.
                let asked = 1u64 << reason.min(u64::BITS - 1);
                if one.asked & asked != 0 {
                    return;
                }
                one.asked |= asked;
                let body = wire::Downgrade {
                    channel_id: one.channel_id(),
                    reason,
                    pad: 0,
                };
                self.tell_ours(to, Outgoing::Downgrade(body));
            }
            Down::PeerGone { process, link } => {
                let side = knows(process).and_then(|to| guests.link_of(other, to, link));
                let Some(side) = side else { return };
                guests.links.remove(&side);
                guests.closed(side);
                self.memory.remove(side);
                self.carry_out(vec![peer_gone(side)]);
            }
            Down::Ask { process, door } => guests.tell(other, &Up::Answer { process, door }),
            Down::LetGo { process, link } => guests.kept.other_let_go((other, process, link)),
        }
    }

    fn tell_ours(&mut self, to: ProcessId, message: Outgoing) {
        self.carry_out(vec![Action::Send { to, message }]);
    }

    /// Both sides' pages for a process of ours.
    fn hand_over(&mut self, side: LinkSide, other: Domain, grants: &[u32]) {
        let LinkSide { process, link_id } = side;
        let Some(guests) = &mut self.guests else {
            return;
        };
        let Some(own) = guests.kept.hand_over(side) else {
            return;
        };
        // One is kept here.
        let own = own
            .try_clone()
            .map_err(|error| Error::Device("gntalloc", error));
        let both = own.and_then(|own| Ok((own, wanted(other, grants)?)));
        let (own, theirs) = match both {
            Ok(both) => both,
            Err(error) => {
                tracing::warn!("pages of guest {other} cannot be mapped: {error}");
                let name = guests.kept.let_go(side);
                return guests.tell_let_go(name);
            }
        };
        let purse = self.purse_of(process);
        self.memory.insert_of_guest(side, &own, purse);
        let body = wire::Guest {
            link_id,
            arena_bytes: ARENA_BYTES as u64,
            peer_arena_bytes: ARENA_BYTES as u64,
        };
        self.send_or_give_up(process, &body, vec![own, theirs]);
    }

    fn hand_bell(
        &mut self,
        side: LinkSide,
        door: u64,
        bell: Result<EventChannel, Error>,
        sleeps: bool,
    ) {
        let LinkSide { process, link_id } = side;
        let bell = bell.and_then(|bell| Ok((u64::from(bell.port()), bell.into_descriptor()?)));
        let (port, bell) = match bell {
            Ok(bell) => bell,
            Err(error) => {
                tracing::warn!("no doorbell between guests: {error}");
                // What cannot be watched: the process gives the link up.
                let Ok(nothing) = std::fs::File::open("/dev/null") else {
                    return;
                };
                let port = 1;
                let body = wire::OwnDoor {
                    link_id,
                    door,
                    port,
                };
                return self.send_or_give_up(process, &body, vec![nothing.into()]);
            }
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
                        guests.tell(other, &down_of(process, &message));
                    }
                    return true;
                }
                match message {
                    Outgoing::Link(wire::Link { link_id, .. }) => {
                        let Some(far) = self.registry.far_side(to, link_id) else {
                            return false;
                        };
                        let far_link = far.link_id;
                        let Some(&(other, far_process)) = guests.afar.get(&far.process) else {
                            return false;
                        };
                        let side = LinkSide {
                            process: to,
                            link_id,
                        };
                        match guests.allot(side, (other, far_process, far_link)) {
                            Ok(()) => guests.to_report.push(side),
                            Err(error) => {
                                tracing::warn!("no memory for rings to guest {other}: {error}");
                                guests.failed.push(side);
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
                    let down = Down::Peer {
                        process,
                        link: link_id,
                        grants: guests.kept.tell_grants(side),
                    };
                    guests.tell(other, &down);
                    return true;
                }
                let Some(&(other, _)) = guests.afar.get(&peer) else {
                    return false;
                };
                let grants = guests.granted.remove(&side).unwrap_or_default();
                let own = LinkSide {
                    process: to,
                    link_id,
                };
                self.hand_over(own, other, &grants);
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
                let own = LinkSide {
                    process: ours,
                    link_id: our_link,
                };
                self.hand_bell(own, door, bell, !sleeps);
                true
            }
            Action::LinkClosed { process, link_id } => {
                let side = LinkSide { process, link_id };
                guests.closed(side);
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
            .filter(|far| !guests.left.contains(far))
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
        while let Some(side) = self.guests.as_mut().and_then(|guests| guests.failed.pop()) {
            let actions = self.registry.link_failed(side.process, side.link_id);
            self.carry_out(actions);
        }
    }

    /// Whether an offer is a senior's to pair; then it is on its way there.
    pub(crate) fn relay_offer(
        &mut self,
        process: ProcessId,
        conn: u64,
        facts: &SocketFacts,
    ) -> bool {
        let Some(guests) = &self.guests else {
            return false;
        };
        let Some(other) = self.registry.guest_with(facts.remote.ip()) else {
            return false;
        };
        let talker = guests.meetings.others.get(&other);
        if facts.protocol != Protocol::Tcp
            || !self.registry.is_of_this_guest(facts)
            || guests.meetings.is_senior_to(other)
            || !talker.is_some_and(|other| other.talks())
        {
            return false;
        }
        // The senior asks its own rules.
        if let Some(reason) = self.rules.gate([facts, &far_end(facts, other)], None) {
            let message = Outgoing::Reject(wire::Reject {
                conn_id: conn,
                reason: reason as u32,
                pending: 0,
            });
            let to = process;
            self.carry_out(vec![Action::Send { to, message }]);
            return true;
        }
        let Some(guests) = &mut self.guests else {
            return false;
        };
        // The socket may have been offered under another number.
        let mut same = guests.relayed.range((process, 0)..=(process, u64::MAX));
        let same = same.find(|(_, one)| one.facts.cookie == facts.cookie);
        if let Some(key) = same.map(|(key, _)| *key).filter(|key| key.1 != conn) {
            if guests.relayed[&key].channel.is_some() {
                return true;
            }
            guests.relayed.remove(&key);
        }
        let of_it = guests.relayed.range((process, 0)..=(process, u64::MAX));
        if of_it.count() >= CONNECTIONS_MAX {
            let message = Outgoing::Reject(wire::Reject {
                conn_id: conn,
                reason: Reason::NoMemory as u32,
                pending: 0,
            });
            self.tell_ours(process, message);
            return true;
        }
        let joined = guests.joined.entry(process).or_default();
        if joined.insert(other) {
            let doors = self.registry.doors_of(process);
            let process = process.0;
            guests.tell(other, &Up::Join { process, doors });
        }
        let one = Relayed {
            other,
            is_left: false,
            facts: *facts,
            channel: None,
            far_channel: 0,
            asked: 0,
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

    /// Rules have changed, or who has which address: relayed connections that may not have rings any more go back.
    pub(crate) fn look_at_relayed(&mut self) {
        let Some(guests) = &self.guests else {
            return;
        };
        let mut actions = Vec::new();
        for ((to, _), one) in &guests.relayed {
            let Some(channel) = one.channel.filter(|_| !one.is_left) else {
                continue;
            };
            let other = one.other;
            let far = far_end(&one.facts, other);
            let reason = match self.registry.is_with_guest(&one.facts, other) {
                true => self.rules.gate([&one.facts, &far], None),
                false => Some(Reason::Unassigned),
            };
            if let Some(reason) = reason {
                let message = Outgoing::Downgrade(wire::Downgrade {
                    channel_id: channel.id,
                    reason: reason as u32,
                    pad: 0,
                });
                actions.push(Action::Send { to: *to, message });
            }
        }
        self.carry_out(actions);
    }

    /// Whether a report is about a relayed connection; then it is on its way.
    pub(crate) fn relay_status(&mut self, process: ProcessId, report: &wire::Status) -> bool {
        let Some(guests) = &mut self.guests else {
            return false;
        };
        let Some(one) = guests.relayed.remove(&(process, report.conn_id)) else {
            return false;
        };
        let channel = one.channel;
        let up = Up::Status {
            process: process.0,
            conn: report.conn_id,
            channel: match report.channel_id {
                0 => 0,
                _ => one.far_channel,
            },
            status: report.status,
            reason: report.reason,
            tx: report.ring_bytes_tx,
            rx: report.ring_bytes_rx,
        };
        match one.is_left {
            false => guests.tell(one.other, &up),
            true => self.end_links(),
        }
        if let Some(channel) = channel {
            self.end_is_over(&channel, [report.ring_bytes_tx, report.ring_bytes_rx]);
        }
        true
    }

    /// What is known of a TCP socket.
    pub(crate) fn connection_with(&self, cookie: u64) -> Option<ConnectionView> {
        let afar = || self.guests.as_ref()?.connection(cookie);
        self.registry.connection(cookie).or_else(afar)
    }

    /// The ends of a process's channels to other guests.
    pub(crate) fn channels_to_guests(
        &self,
        process: ProcessId,
    ) -> impl Iterator<Item = ChannelView> {
        let of_process = (process, 0)..=(process, u64::MAX);
        let guests = self.guests.iter();
        let relayed = guests.flat_map(move |guests| guests.relayed.range(of_process.clone()));
        relayed.filter_map(|(_, one)| one.channel)
    }

    /// A process of ours has nothing of a link to another guest any more. The number may be another broker's.
    pub(crate) fn let_go(&mut self, process: ProcessId, link_id: u64) {
        let side = LinkSide { process, link_id };
        if let Some(guests) = &mut self.guests
            && guests.kept.sides_of(process).contains(&side)
        {
            self.memory.remove(side);
            let name = guests.kept.let_go(side);
            guests.tell_let_go(name);
        }
    }

    /// A process of ours is gone, or lives and has left us: what it has mapped then, it has until it ends.
    pub(crate) fn relay_end(&mut self, process: ProcessId, number: u64, peer: Peer) {
        let Some(guests) = &mut self.guests else {
            return;
        };
        guests.relayed.retain(|(of, _), _| *of != process);
        guests.links.retain(|side, _| side.process != process);
        guests.left_links.retain(|side| side.process != process);
        // A mapping of a region's head has all of its pages stay granted. The registry lists the link for as long as the
        // other broker likes.
        for side in guests.kept.sides_of(process) {
            self.memory.remove(side);
        }
        let (let_go, has_any) = guests.kept.process_left(process);
        guests.tell_let_go(let_go);
        let runs = guests.programs.remove(&process);
        let lingering = runs.zip(peer.pidfd).map(|(runs, pidfd)| Lingering {
            process,
            runs,
            pidfd,
        });
        match lingering.filter(|one| has_any && !one.is_over()) {
            Some(one) => {
                let token = Token::Pid(number).data();
                let added = epoll::add(&self.epoll, &one.pidfd, token, epoll::EventFlags::IN);
                if let Err(error) = added {
                    tracing::warn!("the end of process {} is seen late: {error}", peer.pid);
                }
                guests.lingering.push(one);
            }
            None => guests.process_gone(process),
        }
        guests.unknown_doors.retain(|(of, _), _| *of != process);
        for other in guests.joined.remove(&process).unwrap_or_default() {
            guests.tell(other, &Up::Gone { process: process.0 });
        }
    }
}
