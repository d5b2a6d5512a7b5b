//! The loop: readiness in, registry calls and packets out.
//!
//! Level-triggered epoll. A turn takes at most [`PACKETS_PER_TURN`] packets of all
//! connections that are ready, each of which gets its share, so that a flood of some
//! costs the others a bounded wait.

use crate::admin::CONTROL_SOCKET;
use crate::admin_socket::{AdminConnection, Answers};
use crate::audit::Who;
use crate::carried::Carried;
use crate::connection::{Connection, SendError};
use crate::datagrams::Datagrams;
use crate::domains::Domains;
use crate::dump::Dumps;
use crate::everybody::Everybody;
use crate::filter::{Loads, Rules};
use crate::groups::Groups;
use crate::guests::Guests;
use crate::limits::Grumbles;
use crate::memory::Memory;
use crate::messages::Break;
use crate::numbers::Numbers;
use crate::orders::{LOOK, Told};
use crate::parts::{PartId, Parts};
use crate::proof::Places;
use crate::purses::Purses;
use crate::reaper::Reaper;
use crate::runtime::Runtime;
use crate::shares::{Kept, Shares, Whose};
use crate::stacks::Stacks;
use crate::unlike::Unlike;
use crate::{BrokerError, Config, doing, notify};
use fordway_abi::control as wire;
use fordway_platform::ipc::{self, ReceiveError};
use fordway_platform::{process, sockinfo};
use fordway_registry::{ProcessId, Registry};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Packets that are handled in a turn, if no connection is to go without one.
const PACKETS_PER_TURN: usize = 256;
/// Packets of one connection that are handled before others get their turn.
const PACKETS_OF_ONE_MAX: usize = 64;
/// Packets of a dead process that are still handled.
const PACKETS_OF_THE_DEAD_MAX: usize = 4096;
/// Most connections of shims.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Most connections of administrators.
pub(crate) const ADMINS_MAX: usize = 64;
/// Connections that are accepted before others get their turn.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;
/// Descriptors that shims cannot have: administrators' connections, one packet with as
/// many as it may carry, and our own.
const DESCRIPTORS_RESERVED: usize = ADMINS_MAX + ipc::RECEIVED_MAX + 32;
/// Events taken from epoll at once.
const EVENTS_MAX: usize = 128;

/// What an epoll event is about: a kind in the low two bits, a number above.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Token {
    /// One of the fixed descriptors.
    Fixed(u64),
    /// A shim's socket.
    Shim(u64),
    /// The pidfd of a shim's process.
    Pid(u64),
    /// An administrator's socket.
    Admin(u64),
}

const FIXED_CONTROL: u64 = 0;
const FIXED_ADMIN: u64 = 1;
const FIXED_SIGNAL: u64 = 2;
const FIXED_PARTS: u64 = 3;
const FIXED_MADE: u64 = 4;
const FIXED_ANSWERS: u64 = 5;
const FIXED_STORE: u64 = 6;
const FIXED_READ: u64 = 7;
/// And the domain ids of other guests from here on.
const FIXED_GUESTS: u64 = 64;

impl Token {
    /// Stacks that answer to new rules.
    pub(crate) const ANSWERS: Token = Token::Fixed(FIXED_ANSWERS);

    /// The broker of another guest.
    pub(crate) fn of_guest(domid: u16) -> Token {
        Token::Fixed(FIXED_GUESTS + u64::from(domid))
    }

    pub(crate) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Token::Fixed(number) => number << 2,
            Token::Shim(number) => number << 2 | 1,
            Token::Pid(number) => number << 2 | 2,
            Token::Admin(number) => number << 2 | 3,
        })
    }

    fn from_data(data: u64) -> Self {
        let number = data >> 2;
        match data & 3 {
            0 => Token::Fixed(number),
            1 => Token::Shim(number),
            2 => Token::Pid(number),
            _ => Token::Admin(number),
        }
    }
}

/// Why the loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// `Down`.
    Asked {
        /// Leave the domains.
        keep_domains: bool,
    },
    /// SIGTERM, as a service manager sends it to restart the broker: domains stay.
    Terminated,
    /// SIGINT or SIGHUP, from the terminal: domains in which nothing runs go.
    Interrupted,
}

/// The broker's whole state.
pub(crate) struct Broker {
    pub(crate) registry: Registry,
    pub(crate) memory: Memory,
    pub(crate) purses: Purses,
    pub(crate) domains: Domains,
    pub(crate) rules: Rules,
    pub(crate) loads: Loads,
    pub(crate) parts: Parts,
    pub(crate) stacks: Stacks,
    /// Of the last order to a stack.
    pub(crate) order_number: u64,
    /// Stacks of an earlier broker that have not answered yet, and until when they may.
    pub(crate) found: Option<(Told, Instant)>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) by_process: BTreeMap<ProcessId, u64>,
    pub(crate) reaper: Reaper,
    pub(crate) places: Places,
    pub(crate) dumps: Dumps,
    pub(crate) datagrams: Datagrams,
    pub(crate) groups: Groups,
    pub(crate) everybody: Everybody,
    /// Of a guest of Xen's.
    pub(crate) guests: Option<Guests>,
    pub(crate) numbers: Numbers,
    pub(crate) protocol_errors: u64,
    /// Complaints of processes about their peers.
    pub(crate) channel_errors: u64,
    pub(crate) carried: Carried,
    pub(crate) ending: Option<Ending>,
    pub(crate) admins: BTreeMap<u64, AdminConnection>,
    pub(crate) answers: Answers,
    /// On whose behalf something is done just now, for the log.
    pub(crate) asking: Who,
    /// Started by us, and not to outlive us.
    helpers: Vec<PartId>,
    pub(crate) culprits: BTreeSet<i32>,
    pub(crate) unlike: Unlike,
    /// Who complained of whom.
    pub(crate) complaints: BTreeSet<(i32, i32)>,
    pub(crate) grumbles: Grumbles,
    /// Processes that require the fast path.
    pub(crate) insisting: usize,
    /// Descriptors that belong to shims' connections, and how many may.
    pub(crate) held: usize,
    pub(crate) held_max: usize,
    pub(crate) shares: Shares,
    number_next: u64,
    /// Doorbells that were made: they cost more than the packet that asks for them.
    pub(crate) bells_made: usize,
    /// Where the registry's clock begins.
    start: Instant,
    pub(crate) epoll: OwnedFd,
    signals: OwnedFd,
    pub(crate) runtime: Runtime,
}

/// Runs a broker until it is asked to end. Blocks SIGINT, SIGHUP and SIGTERM in this
/// thread, so call it before others are started.
/// `ready` is called when the sockets are open.
pub fn run(config: &Config, ready: impl FnOnce()) -> Result<(), BrokerError> {
    let mut broker = Broker::start(config)?;
    let (version, abi) = (env!("CARGO_PKG_VERSION"), fordway_abi::ABI_VERSION);
    let dir = config.runtime_dir.display();
    tracing::info!("broker {version} (ABI version {abi}) serves {dir}");
    notify::notify("READY=1");
    ready();
    let ending = broker.serve();
    notify::notify("STOPPING=1");
    broker.end(ending?);
    Ok(())
}

impl Broker {
    fn start(config: &Config) -> Result<Self, BrokerError> {
        let limit = process::raise_descriptor_limit();
        if limit <= 2 * DESCRIPTORS_RESERVED as u64 {
            return Err(BrokerError::Missing(format!(
                "the limit of open descriptors is {limit}; raise it with ulimit -n"
            )));
        }
        let signals = process::termination_signals().map_err(doing("signalfd"))?;
        let runtime = Runtime::take(&config.runtime_dir)?;
        let own = Whose {
            uid: rustix::process::geteuid().as_raw(),
            netns_cookie: sockinfo::netns_cookie(&runtime.control)
                .map_err(doing("SO_NETNS_COOKIE"))?,
        };
        let epoch = process::random::<8>().map_err(doing("getrandom"))?;
        let keys = || {
            // getrandom(2) cannot fail once it has worked.
            process::random::<16>().unwrap_or_default()
        };
        let mut registry = Registry::new(config.network, u64::from_ne_bytes(epoch), Box::new(keys));
        let domains = Domains::start(config, &mut registry)?;
        let (rules, had_rules) = Rules::start(config)?;
        let loads = Loads::new().map_err(doing("eventfd"))?;
        let parts = Parts::new().map_err(doing("epoll_create1"))?;
        let control = config.runtime_dir.join(CONTROL_SOCKET);
        let packed = rules.packed().map_err(doing("memfd_create"))?;
        let stacks = Stacks::new(&config.runtime_dir, &control, &config.programs, packed);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| doing("epoll_create1")(error.into()))?;
        let mut broker = Self {
            registry,
            memory: Memory::default(),
            purses: Purses::new(config.ring_bytes_max),
            domains,
            rules,
            loads,
            parts,
            stacks,
            // An earlier broker has not given so many: none of its numbers comes again.
            order_number: monotonic_ns(),
            found: None,
            connections: BTreeMap::new(),
            by_process: BTreeMap::new(),
            reaper: Reaper::default(),
            places: Places::new(own.netns_cookie),
            dumps: Dumps::default(),
            datagrams: Datagrams::default(),
            groups: Groups::default(),
            everybody: Everybody::default(),
            guests: Guests::start(),
            numbers: Numbers::default(),
            protocol_errors: 0,
            channel_errors: 0,
            carried: Carried::default(),
            ending: None,
            admins: BTreeMap::new(),
            answers: Answers::default(),
            asking: Who::own(),
            helpers: Vec::new(),
            culprits: BTreeSet::new(),
            unlike: Unlike::default(),
            complaints: BTreeSet::new(),
            grumbles: Grumbles::default(),
            insisting: 0,
            held: 0,
            held_max: usize::try_from(limit).unwrap_or(usize::MAX) - DESCRIPTORS_RESERVED,
            shares: Shares::new(own),
            number_next: 0,
            bells_made: 0,
            start: Instant::now(),
            epoll,
            signals,
            runtime,
        };
        match had_rules {
            true => broker.restore_rules()?,
            false => broker.adopt_rules()?,
        }
        broker.adopt_stacks();
        let fixed = [
            (broker.runtime.control.as_fd(), FIXED_CONTROL),
            (broker.runtime.admin.as_fd(), FIXED_ADMIN),
            (broker.runtime.read.as_fd(), FIXED_READ),
            (broker.signals.as_fd(), FIXED_SIGNAL),
            (broker.parts.as_fd(), FIXED_PARTS),
            (broker.loads.as_fd(), FIXED_MADE),
        ];
        let store = broker.guests.as_ref().map(|guests| guests.descriptor());
        let store = store.map(|store| (store, FIXED_STORE));
        for (fd, number) in fixed.into_iter().chain(store) {
            let token = Token::Fixed(number).data();
            epoll::add(&broker.epoll, fd, token, epoll::EventFlags::IN)
                .map_err(|error| doing("epoll_ctl")(error.into()))?;
        }
        broker.go_on_with_guests();
        for helper in &config.helpers {
            let readers = broker.runtime.readers;
            // Some user namespaces have but a few users.
            if readers.is_none() && rustix::process::geteuid().is_root() {
                tracing::warn!(
                    "{} is not started: root can become no other user here",
                    helper.name
                );
                continue;
            }
            let start = helper.start(readers);
            let id = broker.parts.add(helper.name.clone(), start, None);
            broker.helpers.push(id);
        }
        Ok(broker)
    }

    /// The loop.
    fn serve(&mut self) -> Result<Ending, BrokerError> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            if let Some(ending) = self.ending {
                return Ok(ending);
            }
            self.wait(&mut events)?;
            self.turn(&events);
        }
    }

    fn turn(&mut self, events: &[epoll::Event]) {
        let tokens = || {
            events
                .iter()
                .map(|event| Token::from_data(event.data.u64()))
        };
        let ready = tokens().filter(|token| matches!(token, Token::Shim(_)));
        let share = (PACKETS_PER_TURN / ready.count().max(1)).clamp(1, PACKETS_OF_ONE_MAX);
        for event in events {
            match Token::from_data(event.data.u64()) {
                Token::Fixed(FIXED_CONTROL) => self.accept_shims(),
                Token::Fixed(FIXED_ADMIN) => self.accept_admins(false),
                Token::Fixed(FIXED_READ) => self.accept_admins(true),
                Token::Fixed(FIXED_PARTS) => self.parts.bury(),
                Token::Fixed(FIXED_MADE) => self.rules_are_made(),
                // Heard below.
                Token::Fixed(FIXED_ANSWERS) => {}
                Token::Fixed(FIXED_STORE) => self.hear_of_guests(),
                Token::Fixed(number @ FIXED_GUESTS..) => {
                    self.listen_to((number - FIXED_GUESTS) as u16);
                }
                Token::Fixed(_) => self.read_signal(),
                Token::Shim(number) => {
                    self.flush(number, event.flags);
                    self.read_packets(number, share);
                }
                Token::Pid(number) => self.bury(number),
                Token::Admin(number) => self.serve_admin(number, event.flags),
            }
        }
        self.on_time();
        self.hear_found();
        self.go_on_with_loads();
        self.start_parts();
        self.look_at_datagrams();
        self.look_at_groups();
        let actions = self.registry.on_time(self.now_ns());
        self.carry_out(actions);
        self.go_on_with_guests();
    }

    /// Starts the parts that are due, and has those begin that waited for their record.
    pub(crate) fn start_parts(&mut self) {
        // One that ends with the broker is the next one's to start.
        if self.ending.is_some() {
            return;
        }
        let works = !self.stacks.is_save_failing() && !self.rules.lacks_chains();
        let may_begin = works && self.parts.have_untold();
        if self.parts.on_time() || self.stacks.is_save_due() || may_begin {
            self.settle_stacks();
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Until something is ready, the rules change by themselves, pairs of UDP sockets are to be looked at, or
    /// somebody has waited long enough.
    fn wait(&self, events: &mut Vec<epoll::Event>) -> Result<(), BrokerError> {
        events.clear();
        let registry = self.registry.next_ns();
        let registry = registry.map(|at| at.saturating_sub(self.now_ns()));
        let due = [
            registry,
            self.datagrams_patience_ns(),
            self.groups_patience_ns(),
            self.parts.patience_ns(),
            self.stacks.patience_ns(),
            (self.found.is_some() || self.loads.is_heard()).then_some(LOOK.as_nanos() as u64),
            self.guests.as_ref().and_then(Guests::patience_ns),
        ]
        .into_iter()
        .flatten();
        let patience = epoll_timeout(due.fold(self.rules.patience_ns(), u64::min));
        let room = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, room, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(doing("epoll_wait")(error.into())),
        }
    }

    fn read_signal(&mut self) {
        // The first word of struct signalfd_siginfo (signalfd(2)) is the signal's number.
        let mut info = [0; 128];
        if rustix::io::read(&self.signals, &mut info).is_ok() {
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            let terminated = number == rustix::process::Signal::TERM.as_raw() as u32;
            self.ending = Some(match terminated {
                true => Ending::Terminated,
                false => Ending::Interrupted,
            });
        }
    }

    /// Established channels go on without us. Administrators see the end of their
    /// connection when all is done.
    fn end(mut self, ending: Ending) {
        self.give_up_loads();
        self.save_rules();
        self.free_groups();
        let Self {
            rules,
            connections,
            domains,
            runtime,
            admins,
            mut registry,
            mut reaper,
            mut parts,
            mut stacks,
            helpers,
            ..
        } = self;
        helpers.into_iter().for_each(|id| parts.end(id));
        for connection in connections.into_values() {
            reaper.close_connection((&connection.peer).into(), connection.socket);
        }
        if !domains.end(ending, &mut registry) {
            rules.forget();
        }
        stacks.end_gone(&mut parts);
        drop(runtime);
        drop(admins);
    }

    pub(crate) fn new_number(&mut self) -> u64 {
        self.number_next += 1;
        self.number_next
    }

    fn accept_shims(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Ok(socket) = ipc::accept(&self.runtime.control) else {
                return;
            };
            self.make_room_for_stranger();
            let full = self.connections.len() >= CONNECTIONS_MAX;
            let peer = match process::peer(&socket) {
                Ok(peer) if !full && self.may_hold_more((&peer).into()) => peer,
                Ok(peer) => {
                    if self.first_mischief(peer.pid) {
                        let pid = peer.pid;
                        tracing::warn!("process {pid} was turned away: too many are served");
                    }
                    self.reaper.close_connection((&peer).into(), socket);
                    continue;
                }
                Err(error) => {
                    tracing::debug!("a connection whose process is unknown: {error}");
                    continue;
                }
            };
            if let Err(error) = ipc::name_senders(&socket) {
                tracing::debug!("SO_PASSCRED: {error}");
                continue;
            }
            let number = self.new_number();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            let watched = epoll::add(&self.epoll, &socket, Token::Shim(number).data(), flags);
            if let (Ok(()), Some(pidfd)) = (watched, &peer.pidfd) {
                let flags = epoll::EventFlags::IN;
                let _ = epoll::add(&self.epoll, pidfd, Token::Pid(number).data(), flags);
            }
            self.connections
                .insert(number, Connection::new(socket, peer));
            self.recount(number);
        }
    }

    fn flush(&mut self, number: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT)
            && let Some(connection) = self.connections.get_mut(&number)
        {
            match connection.flush() {
                Ok(()) => self.watch_writable(number),
                Err(error) => self.give_up_unsendable(number, &error),
            }
        }
    }

    /// A process is gone: what it had said before still counts, but for what it offered, which
    /// is gone as well.
    fn bury(&mut self, number: u64) {
        self.read_packets(number, PACKETS_OF_THE_DEAD_MAX);
        self.close_connection(number);
    }

    /// Handles at most `left` packets of one connection; a doorbell that is made counts as one.
    fn read_packets(&mut self, number: u64, mut left: usize) {
        while left != 0 {
            left -= 1;
            let Some(connection) = self.connections.get(&number) else {
                return;
            };
            let mut buffer = [0; wire::PACKET_BYTES_MAX];
            let received = ipc::receive(&connection.socket, &mut buffer, ipc::FDS_MAX);
            let bells_before = self.bells_made;
            let outcome = match received {
                Ok(packet) => {
                    let bytes = &buffer[..packet.len];
                    self.handle_packet(number, bytes, packet.fds, packet.sender)
                }
                Err(ReceiveError::Empty) => return,
                Err(ReceiveError::Closed) => {
                    self.close_connection(number);
                    return;
                }
                Err(ReceiveError::Malformed(what, fds)) => {
                    let whose = self.whose(number);
                    for fd in fds {
                        self.reaper.close_unknown(whose, fd);
                    }
                    Err(Break::Protocol(what.to_owned()))
                }
                Err(ReceiveError::System(error)) => {
                    tracing::debug!("receiving from a process: {error}");
                    self.close_connection(number);
                    return;
                }
            };
            left = left.saturating_sub(self.bells_made - bells_before);
            match outcome {
                Ok(()) => {}
                Err(Break::Protocol(what)) => self.drop_culprit(number, &what),
                Err(Break::Refused) => self.close_connection(number),
            }
        }
    }

    /// Ends the connection of a process that broke the protocol.
    fn drop_culprit(&mut self, number: u64, what: &str) {
        self.protocol_errors += 1;
        let pid = self.connections.get(&number).map_or(0, |c| c.peer.pid);
        if self.first_mischief(pid) {
            tracing::warn!("process {pid} broke the control protocol and was dropped: {what}");
        }
        let member = self
            .connections
            .get(&number)
            .and_then(|c| c.member.as_ref());
        if let Some(process) = member.map(|member| member.process) {
            let actions = self.registry.process_broke(process);
            self.carry_out(actions);
        }
        self.close_connection(number);
    }

    pub(crate) fn give_up_unsendable(&mut self, number: u64, error: &SendError) {
        let pid = self.connections.get(&number).map_or(0, |c| c.peer.pid);
        match error {
            SendError::Overflow => tracing::warn!("process {pid} was dropped: {error}"),
            SendError::Gone(_) => tracing::debug!("process {pid} was dropped: {error}"),
        }
        self.close_connection(number);
    }

    /// Ends a connection and all that hangs on it.
    pub(crate) fn close_connection(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        // A descriptor leaves epoll with its last reference; forked children may hold more.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        if let Some(pidfd) = &connection.peer.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        let Connection {
            socket,
            peer,
            member,
            counted,
            ..
        } = connection;
        let whose = Whose::from(&peer);
        self.held -= counted.descriptors;
        self.places.leave(number);
        self.shares.change(whose, counted, Kept::default());
        let process = member.as_ref().map(|member| member.process);
        drop(member);
        self.reaper.close_connection(whose, socket);
        if let Some(process) = process {
            self.by_process.remove(&process);
            self.everybody.forget(process);
            if self.insists(process) {
                self.count_insisting(self.insisting - 1);
            }
            for channel in self.registry.both_ends_in(process) {
                self.credit_ending(Some(channel));
            }
            self.ends_are_over(process, &peer);
            for channel in self.registry.live_channels_of(process) {
                self.note_usage(&channel);
            }
            // Behind the last look at its memory.
            self.relay_end(process, number, peer);
            let actions = self.registry.process_gone(process);
            self.carry_out(actions);
        }
    }
}

/// Since the machine was started, without the time that it slept.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000) + now.tv_nsec as u64
}

/// Rounded up: a turn that comes too early would find nothing to do.
fn epoll_timeout(ns: u64) -> rustix::time::Timespec {
    let ms = ns.div_ceil(1_000_000);
    rustix::time::Timespec {
        tv_sec: (ms / 1000) as i64,
        tv_nsec: (ms % 1000 * 1_000_000) as i64,
    }
}
