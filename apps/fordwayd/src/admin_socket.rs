//! Connections of administrators: lines in, lines out, never waiting for them.
//!
//! ```text
//!   a line ─► answered at once
//!        └──► waits: nothing more is read ──(Broker::answer_admin)──► answered, and what came behind it
//! ```
//! Who hangs up while it waits takes nothing back: what it has asked for is done, and nobody is told.
//!
//! # Who only reads
//! What comes by `read.sock` is told of no rule, changes nothing ([`Request::only_reads`]), and costs the others little:
//! - An answer serves all readers for [`READER_SHARE`] times as long as it took to make. So each kind of question takes
//!   that share of the broker's time at most, however many ask.
//! - Nothing is answered to who has not taken the answer before.
//! - What readers have not taken is bounded, an answer for many counted once; beyond it, the one that has taken nothing for longest is gone.
//! - A user has [`ADMINS_OF_DOMAIN_MAX`] places, a request one short line.

use crate::admin::{Carried, ErrorKind, FilterChange, Info, Reply, Request, SCHEMA};
use crate::audit::{Event, Record, Who};
use crate::broker::{ACCEPTS_PER_TURN, ADMINS_MAX, Broker, Ending, Token};
use crate::log;
use fordway_abi::reason::Reason;
use fordway_platform::{ipc, process};
use fordway_registry::HOST_DOMAIN;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::mem::{Discriminant, discriminant};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

/// Most connections from domains and of readers, and from one domain or of one user.
const ADMINS_OF_DOMAINS_MAX: usize = ADMINS_MAX / 4;
const ADMINS_OF_DOMAIN_MAX: usize = 4;
/// Longest request: rules with everything that they include.
const LINE_BYTES_MAX: usize = 64 << 20;
/// The same of a reader; no more is read at once of his.
const READER_LINE_BYTES_MAX: usize = 256;
/// The part of the broker's time that readers' questions of one kind may take: one of so many.
const READER_SHARE: u32 = 20;
/// What may wait for an administrator who is told of changes and does not read, and for all readers.
const UNREAD_BYTES_MAX: usize = 16 << 20;
/// Read at once.
const READ_BYTES: usize = 64 << 10;

/// Who asks: what may be asked, and how many may, depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// Root or the broker's user, outside of all domains.
    Outside,
    /// The same, in the domain with this namespace. The rules do not belong to it.
    Domain(u64),
    /// A user who only reads.
    Reader(u32),
}

impl Asker {
    /// Why a request is refused, if it is.
    fn refusal(self, request: &Request) -> Option<&'static str> {
        let about_rules = matches!(
            request,
            Request::FilterLoad { .. } | Request::FilterList | Request::FilterMonitor
        );
        match self {
            Asker::Domain(_) if matches!(request, Request::Log { .. }) => {
                Some("the log belongs to the broker: ask from outside the domains")
            }
            Asker::Domain(_) if about_rules => {
                Some("the rules belong to the broker: ask from outside the domains")
            }
            Asker::Reader(_) if !request.only_reads() => {
                Some("who only reads may list domains and connections; become root")
            }
            _ => None,
        }
    }

    fn line_bytes_max(self) -> usize {
        match self {
            Asker::Reader(_) => READER_LINE_BYTES_MAX,
            Asker::Outside | Asker::Domain(_) => LINE_BYTES_MAX,
        }
    }
}

/// A reply as it is sent: with its end of line.
type Line = Rc<Vec<u8>>;

fn line(reply: &Reply) -> Line {
    let mut line = Vec::new();
    match serde_json::to_writer(&mut line, reply) {
        Ok(()) => line.push(b'\n'),
        Err(error) => tracing::error!("a reply cannot be written as JSON: {error}"),
    }
    Rc::new(line)
}

/// What readers are told, by the kind of the request, and until when.
#[derive(Debug, Default)]
pub(crate) struct Answers(HashMap<Discriminant<Request>, (Instant, Line)>);

/// See the module.
#[derive(Debug)]
pub(crate) struct AdminConnection {
    pub(crate) socket: OwnedFd,
    /// It wants to be told of changes of the rules behind this epoch.
    monitors: Option<u64>,
    /// What it has asked is answered later.
    waits: bool,
    from: Asker,
    who: Who,
    input: Vec<u8>,
    /// What is to be written, and how much of the first line is.
    output: VecDeque<Line>,
    written: usize,
    /// When it last took something.
    took: Instant,
}

impl AdminConnection {
    fn new(socket: OwnedFd, from: Asker, who: Who) -> Self {
        Self {
            socket,
            monitors: None,
            waits: false,
            from,
            who,
            input: Vec::new(),
            output: VecDeque::new(),
            written: 0,
            took: Instant::now(),
        }
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }

    fn unread_bytes(&self) -> usize {
        let lines = self.output.iter().map(|line| line.len());
        lines.sum::<usize>() - self.written
    }

    /// Reads, answers, writes what there is room for. An answer that is `None` comes later, by [`AdminConnection::go_on`].
    /// False: the connection is over.
    fn serve(&mut self, shown: EventFlags, answer: impl FnMut(&str) -> Option<Line>) -> bool {
        if self.is_behind() {
            return self.write() && self.answer_lines(0, answer);
        }
        // Nothing is asked of epoll then, which tells of its end all the same. What it was asked before may show still.
        if self.waits {
            return !shown.intersects(EventFlags::HUP | EventFlags::ERR);
        }
        let mut buffer = [0; READ_BYTES];
        let old = self.input.len();
        let room = self.from.line_bytes_max().min(READ_BYTES);
        let open = match rustix::io::read(&self.socket, &mut buffer[..room]) {
            Ok(0) => false,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => return false,
        };
        // What was there before has no end of line.
        self.answer_lines(old, answer) && open
    }

    /// Gives the answer for which it waits, and goes on with what was asked behind that. False: the connection is over.
    fn go_on(&mut self, reply: &Reply, answer: impl FnMut(&str) -> Option<Line>) -> bool {
        self.waits = false;
        self.output.push_back(line(reply));
        self.write() && self.answer_lines(0, answer)
    }

    fn answer_lines(
        &mut self,
        mut looked: usize,
        mut answer: impl FnMut(&str) -> Option<Line>,
    ) -> bool {
        while !self.waits
            && !self.is_behind()
            && let Some(end) = self.input[looked..].iter().position(|byte| *byte == b'\n')
        {
            let end = looked + end;
            looked = 0;
            let asked: Vec<u8> = self.input.drain(..=end).collect();
            let reply = match std::str::from_utf8(&asked) {
                Ok(asked) => answer(asked),
                Err(_) => Some(line(&error(
                    ErrorKind::BadInput,
                    "the request is not UTF-8",
                ))),
            };
            match reply {
                Some(reply) => self.output.push_back(reply),
                None => self.waits = true,
            }
            if !self.write() {
                return false;
            }
        }
        if !self.waits && !self.is_behind() && self.input.len() > self.from.line_bytes_max() {
            self.tell(&error(ErrorKind::BadInput, "the request is too long"));
            return false;
        }
        true
    }

    /// Says something that was not asked for just now. False: the connection is over.
    pub(crate) fn tell(&mut self, reply: &Reply) -> bool {
        self.output.push_back(line(reply));
        self.unread_bytes() <= UNREAD_BYTES_MAX && self.write()
    }

    fn write(&mut self) -> bool {
        while let Some(line) = self.output.front() {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &line[self.written..], flags) {
                Ok(count) => {
                    self.took = Instant::now();
                    self.written += count;
                    if self.written == line.len() {
                        self.output.pop_front();
                        self.written = 0;
                    }
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

pub(crate) fn error(kind: ErrorKind, message: impl std::fmt::Display) -> Reply {
    Reply::Error {
        kind,
        message: message.to_string(),
    }
}

impl Broker {
    /// Takes who comes by `admin.sock`, or by `read.sock`.
    pub(crate) fn accept_admins(&mut self, only_read: bool) {
        for _ in 0..ACCEPTS_PER_TURN {
            let listener = match only_read {
                true => &self.runtime.read,
                false => &self.runtime.admin,
            };
            let Ok(socket) = ipc::accept(listener) else {
                return;
            };
            // The file's mode keeps others out as well; this holds where it was changed.
            let own = rustix::process::geteuid().as_raw();
            let Ok(peer) = process::peer(&socket) else {
                continue;
            };
            let is_owner = peer.uid == 0 || peer.uid == own;
            let is_reader = |group| process::peer_is_in(&socket, group);
            let domain = self.registry.domain_of_netns(peer.netns_cookie);
            let from = match domain.filter(|domain| domain.id != HOST_DOMAIN) {
                _ if only_read && (is_owner || self.runtime.readers.is_some_and(is_reader)) => {
                    Asker::Reader(peer.uid)
                }
                _ if only_read || !is_owner => continue,
                Some(domain) => Asker::Domain(domain.netns_cookie),
                None => Asker::Outside,
            };
            let mut admin = AdminConnection::new(socket, from, Who::from(&peer));
            if !self.has_place(from) {
                admin.tell(&error(
                    ErrorKind::Busy,
                    "too many connections of administrators are open; end one, and try again",
                ));
                continue;
            }
            let number = self.new_number();
            let flags = EventFlags::IN | EventFlags::RDHUP;
            let token = Token::Admin(number).data();
            if epoll::add(&self.epoll, &admin.socket, token, flags).is_ok() {
                self.admins.insert(number, admin);
            }
        }
    }

    /// Whether one more of these may come. No domain and no reader can take the places of
    /// others, nor all of them those of the administrator.
    fn has_place(&self, from: Asker) -> bool {
        let others = || self.admins.values().map(|admin| admin.from);
        let count = |counted: &dyn Fn(Asker) -> bool| others().filter(|one| counted(*one)).count();
        let most = match from {
            Asker::Outside => return self.admins.len() < ADMINS_MAX,
            Asker::Domain(_) | Asker::Reader(_) => ADMINS_OF_DOMAIN_MAX,
        };
        count(&|one| one != Asker::Outside) < ADMINS_OF_DOMAINS_MAX
            && count(&|one| one == from) < most
    }

    pub(crate) fn serve_admin(&mut self, number: u64, shown: EventFlags) {
        self.serve_with(number, Err(shown));
    }

    /// Answers who waits. It may be gone.
    pub(crate) fn answer_admin(&mut self, number: u64, reply: Reply) {
        self.serve_with(number, Ok(reply));
    }

    /// The same, and does nothing of what was asked behind that.
    pub(crate) fn refuse_admin(&mut self, number: u64, reply: Reply) {
        if let Some(admin) = self.admins.get_mut(&number) {
            admin.input.clear();
        }
        self.answer_admin(number, reply);
    }

    fn serve_with(&mut self, number: u64, awaited: Result<Reply, EventFlags>) {
        let Some(mut admin) = self.admins.remove(&number) else {
            return;
        };
        let from = admin.from;
        let before = std::mem::replace(&mut self.asking, admin.who);
        let mut monitors = None;
        let answer = |line: &str| self.answer(line, number, from, &mut monitors);
        let open = match awaited {
            Err(shown) => admin.serve(shown, answer),
            Ok(reply) => admin.go_on(&reply, answer),
        };
        self.asking = before;
        admin.monitors = admin.monitors.or(monitors);
        self.put_back(number, admin, open);
    }

    /// Tells who monitors of a change of the rules; `asker` is answered.
    pub(crate) fn tell_monitors(&mut self, change: &FilterChange, asker: u64) {
        let tells = |admin: &AdminConnection| {
            let shown = admin.monitors;
            shown.is_some_and(|epoch| epoch < change.epoch)
        };
        let monitors: Vec<u64> = self
            .admins
            .iter()
            .filter(|(number, admin)| **number != asker && tells(admin))
            .map(|(number, _)| *number)
            .collect();
        for number in monitors {
            if let Some(mut admin) = self.admins.remove(&number) {
                let open = admin.tell(&Reply::FilterChange(change.clone()));
                self.put_back(number, admin, open);
            }
        }
    }

    /// Ends readers that do not read, if too much waits for them: first the one that has taken nothing for longest.
    fn bound_readers(&mut self) {
        loop {
            let behind = self.admins.iter().filter(|(_, one)| {
                let is_reader = matches!(one.from, Asker::Reader(_));
                is_reader && one.is_behind()
            });
            let lines = behind.clone().flat_map(|(_, one)| &one.output);
            // One answer may wait for many of them.
            let lines: HashMap<_, _> = lines.map(|line| (Rc::as_ptr(line), line.len())).collect();
            let first = behind.clone().min_by_key(|(_, one)| one.took);
            let Some((number, _)) = first.filter(|_| behind.count() > 1) else {
                return;
            };
            let number = *number;
            if lines.values().sum::<usize>() <= UNREAD_BYTES_MAX {
                return;
            }
            if let Some(admin) = self.admins.remove(&number) {
                let _ = epoll::delete(&self.epoll, &admin.socket);
            }
        }
    }

    fn put_back(&mut self, number: u64, admin: AdminConnection, open: bool) {
        if !open {
            let _ = epoll::delete(&self.epoll, &admin.socket);
            return;
        }
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::OUT, admin.is_behind());
        let reads = !admin.is_behind() && !admin.waits;
        flags.set(EventFlags::IN, reads);
        let token = Token::Admin(number).data();
        let _ = epoll::modify(&self.epoll, &admin.socket, token, flags);
        let must_look = admin.is_behind() && matches!(admin.from, Asker::Reader(_));
        self.admins.insert(number, admin);
        if must_look {
            self.bound_readers();
        }
    }

    /// Does what one line asks for.
    ///
    /// `None`: it is answered later. `monitors` is set if it wants to hear more.
    fn answer(
        &mut self,
        asked: &str,
        asker: u64,
        from: Asker,
        monitors: &mut Option<u64>,
    ) -> Option<Line> {
        let request: Request = match serde_json::from_str(asked) {
            Ok(request) => request,
            Err(reason) => {
                let what = format_args!("request: {reason}");
                return Some(line(&error(ErrorKind::BadInput, what)));
            }
        };
        if let Some(why) = from.refusal(&request) {
            return Some(line(&error(ErrorKind::Privilege, why)));
        }
        if !matches!(from, Asker::Reader(_)) {
            let asked = Event::of(&request);
            let reply = self.carry_out_request(request, asker, monitors)?;
            if let Some((event, domain)) = asked {
                self.audit_refusal(event, domain.as_deref(), &reply);
            }
            return Some(line(&reply));
        }
        let (kind, since) = (discriminant(&request), Instant::now());
        let known = self.answers.0.get(&kind);
        if let Some((_, line)) = known.filter(|(until, _)| since < *until) {
            return Some(line.clone());
        }
        let line = line(&self.carry_out_request(request, asker, monitors)?);
        let until = Instant::now() + since.elapsed() * READER_SHARE;
        self.answers.0.insert(kind, (until, line.clone()));
        Some(line)
    }

    fn carry_out_request(
        &mut self,
        request: Request,
        asker: u64,
        monitors: &mut Option<u64>,
    ) -> Option<Reply> {
        Some(match request {
            Request::FilterLoad { text, epoch } => return self.filter_load(asker, text, epoch),
            Request::FilterList => self.filter_list(),
            Request::FilterCounts => self.filter_counts(),
            Request::FilterMonitor => {
                *monitors = Some(self.rules.epoch());
                self.filter_list()
            }
            Request::Info => Reply::Info(self.info()),
            Request::DomainAdd { name, ip, publish } => self.domain_add(&name, ip, &publish, None),
            Request::DomainAddWithStack {
                name,
                ip,
                publish,
                stack,
            } => self.domain_add(&name, ip, &publish, Some(stack)),
            Request::DomainAttach { name, ip, ip6, pid } => {
                self.domain_attach(&name, (ip, ip6), pid)
            }
            Request::DomainList => Reply::Domains {
                domains: self.domain_list(),
            },
            Request::DomainRemove { name, force } => self.domain_remove(&name, force),
            Request::Connections => Reply::Connections {
                connections: self.list_connections(),
            },
            Request::Downgrade { channel } => self.downgrade(channel),
            Request::Log { level } => self.change_log(level),
            Request::Down { keep_domains } => {
                self.audit(Record::of(Event::Down), "the broker ends");
                self.ending = Some(Ending::Asked { keep_domains });
                Reply::Done
            }
        })
    }

    fn downgrade(&mut self, number: Option<u64>) -> Reply {
        let channel = number.map(|number| self.numbers.channel(number));
        let actions = match channel {
            None => self.registry.downgrade(None, Reason::Asked),
            Some(None) => None,
            Some(channel) => self.registry.downgrade(channel, Reason::Asked),
        };
        let Some(actions) = actions else {
            let number = number.unwrap_or(0);
            let text = match channel.flatten() {
                Some(_) => format!("connection {number} has left its rings; see: fordway ss"),
                None => format!("fordway ss has shown no connection {number}; run it again"),
            };
            return error(ErrorKind::NotFound, text);
        };
        self.carry_out(actions);
        let what = Record {
            channel: number,
            ..Record::of(Event::Downgrade)
        };
        self.audit(what, "channels were moved to the kernel path");
        Reply::Done
    }

    /// `Log`.
    fn change_log(&self, level: Option<String>) -> Reply {
        if let Some(level) = level {
            if let Err(why) = log::set(&level) {
                return error(ErrorKind::BadInput, why);
            }
            let what = Record {
                level: Some(&level),
                ..Record::of(Event::Log)
            };
            self.audit(what, "what is logged was changed");
        }
        let level = log::level().unwrap_or_default();
        Reply::Log { level }
    }

    fn info(&mut self) -> Info {
        self.note_all_usage();
        let counts = self.registry.counts();
        self.count_carried();
        let carried = |id: Option<u32>, domain: Option<&str>| {
            let [tx_bytes, rx_bytes] = self.carried.of(id);
            Carried {
                domain: domain.map(str::to_owned),
                tx_bytes,
                rx_bytes,
            }
        };
        let domains = self.registry.domains();
        let domains = domains.map(|domain| carried(Some(domain.id), Some(&domain.name)));
        Info {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            abi_version: fordway_abi::ABI_VERSION,
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            domains: self.domains.possible(),
            network: self.registry.network().to_string(),
            network6: self.domains.network6().map(|network| network.to_string()),
            processes: self.by_process.len() as u32,
            channels: self.registry.channel_count() as u32,
            paired_total: counts.paired,
            eligible_total: counts.eligible,
            carried_total: counts.carried,
            ring_bytes_total: self.carried.sent_by_all(),
            carried: domains.chain([carried(None, None)]).collect(),
            ring_memory_bytes: self.purses.bytes_taken(),
            protocol_errors: self.protocol_errors,
            channel_errors: self.channel_errors,
        }
    }
}
