//! Connections of administrators: lines in, lines out, never waiting for them.
//!
//! ```text
//!   a line ─► answered at once
//!        └──► waits: nothing more is read ──(Broker::answer_admin)──► answered, and what came behind it
//! ```
//! Who hangs up while it waits takes nothing back: what it has asked for is done, and nobody is told.

use crate::admin::{ErrorKind, FilterChange, Info, Reply, Request, SCHEMA};
use crate::broker::{ADMINS_MAX, Broker, Ending, Token};
use fordway_abi::reason::Reason;
use fordway_platform::{ipc, process};
use fordway_registry::HOST_DOMAIN;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Most connections from domains, and from one of them.
const ADMINS_OF_DOMAINS_MAX: usize = ADMINS_MAX / 4;
const ADMINS_OF_DOMAIN_MAX: usize = 4;
/// Longest request: rules with everything that they include.
const LINE_BYTES_MAX: usize = 64 << 20;
/// What may wait for an administrator who is told of changes and does not read.
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
    /// Anyone of the group that may list.
    Reader,
}

impl Asker {
    /// Why a request is refused, if it is.
    fn refusal(self, request: &Request) -> Option<&'static str> {
        let lists = matches!(
            request,
            Request::Info | Request::DomainList | Request::Connections
        );
        let about_rules = matches!(
            request,
            Request::FilterLoad { .. } | Request::FilterList | Request::FilterMonitor
        );
        match self {
            Asker::Domain(_) if about_rules => {
                Some("the rules belong to the broker: ask from outside the domains")
            }
            Asker::Reader if !lists => {
                Some("who is in the broker's group may list domains and connections; become root")
            }
            _ => None,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct AdminConnection {
    pub(crate) socket: OwnedFd,
    /// It wants to be told of changes of the rules behind this epoch.
    monitors: Option<u64>,
    /// What it has asked is answered later.
    waits: bool,
    from: Asker,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl AdminConnection {
    fn new(socket: OwnedFd, from: Asker) -> Self {
        Self {
            socket,
            monitors: None,
            waits: false,
            from,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads, answers, writes what there is room for. An answer that is `None` comes later, by [`AdminConnection::go_on`].
    /// False: the connection is over.
    fn serve(&mut self, shown: EventFlags, answer: impl FnMut(&str) -> Option<Reply>) -> bool {
        if self.is_behind() {
            return self.write();
        }
        // Nothing is asked of epoll then, which tells of its end all the same. What it was asked before may show still.
        if self.waits {
            return !shown.intersects(EventFlags::HUP | EventFlags::ERR);
        }
        let mut buffer = [0; READ_BYTES];
        let old = self.input.len();
        let open = match rustix::io::read(&self.socket, &mut buffer) {
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
    fn go_on(&mut self, reply: &Reply, answer: impl FnMut(&str) -> Option<Reply>) -> bool {
        self.waits = false;
        self.push(reply);
        self.answer_lines(0, answer)
    }

    fn answer_lines(
        &mut self,
        mut looked: usize,
        mut answer: impl FnMut(&str) -> Option<Reply>,
    ) -> bool {
        while !self.waits
            && let Some(end) = self.input[looked..].iter().position(|byte| *byte == b'\n')
        {
            let end = looked + end;
            looked = 0;
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let reply = match std::str::from_utf8(&line) {
                Ok(line) => answer(line),
                Err(_) => Some(error(ErrorKind::BadInput, "the request is not UTF-8")),
            };
            match reply {
                Some(reply) => self.push(&reply),
                None => self.waits = true,
            }
        }
        if !self.waits && self.input.len() > LINE_BYTES_MAX {
            self.push(&error(ErrorKind::BadInput, "the request is too long"));
            self.write();
            return false;
        }
        self.write()
    }

    /// Says something that was not asked for just now. False: the connection is over.
    pub(crate) fn tell(&mut self, reply: &Reply) -> bool {
        self.push(reply);
        self.output.len() <= UNREAD_BYTES_MAX && self.write()
    }

    fn push(&mut self, reply: &Reply) {
        match serde_json::to_writer(&mut self.output, reply) {
            Ok(()) => self.output.push(b'\n'),
            Err(error) => tracing::error!("a reply cannot be written as JSON: {error}"),
        }
    }

    fn write(&mut self) -> bool {
        while !self.output.is_empty() {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(count) => drop(self.output.drain(..count)),
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
    pub(crate) fn accept_admins(&mut self) {
        while let Ok(socket) = ipc::accept(&self.runtime.admin) {
            // The file's mode keeps others out as well; this holds where it was changed.
            let own = rustix::process::geteuid().as_raw();
            let Ok(peer) = process::peer(&socket) else {
                continue;
            };
            let is_reader = |group| process::peer_is_in(&socket, group);
            let domain = self.registry.domain_of_netns(peer.netns_cookie);
            let from = match domain.filter(|domain| domain.id != HOST_DOMAIN) {
                _ if peer.uid != 0 && peer.uid != own => {
                    if !self.runtime.readers.is_some_and(is_reader) {
                        continue;
                    }
                    Asker::Reader
                }
                Some(domain) => Asker::Domain(domain.netns_cookie),
                None => Asker::Outside,
            };
            let mut admin = AdminConnection::new(socket, from);
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
            Asker::Domain(_) => ADMINS_OF_DOMAIN_MAX,
            Asker::Reader => ADMINS_OF_DOMAINS_MAX / 2,
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
        let mut monitors = None;
        let answer = |line: &str| self.answer(line, number, from, &mut monitors);
        let open = match awaited {
            Err(shown) => admin.serve(shown, answer),
            Ok(reply) => admin.go_on(&reply, answer),
        };
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
        self.admins.insert(number, admin);
    }

    /// Does what one line asks for.
    ///
    /// `None`: it is answered later. `monitors` is set if it wants to hear more.
    fn answer(
        &mut self,
        line: &str,
        asker: u64,
        from: Asker,
        monitors: &mut Option<u64>,
    ) -> Option<Reply> {
        let request = match serde_json::from_str(line) {
            Ok(request) => request,
            Err(reason) => {
                let what = format_args!("request: {reason}");
                return Some(error(ErrorKind::BadInput, what));
            }
        };
        if let Some(why) = from.refusal(&request) {
            return Some(error(ErrorKind::Privilege, why));
        }
        Some(match request {
            Request::FilterLoad { text, epoch } => return self.filter_load(asker, text, epoch),
            Request::FilterList => self.filter_list(),
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
            Request::Down { keep_domains } => {
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
        Reply::Done
    }

    fn info(&mut self) -> Info {
        self.note_all_usage();
        let counts = self.registry.counts();
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
            ring_bytes_total: self.ring_bytes_total(),
            ring_memory_bytes: self.purses.bytes_taken(),
            protocol_errors: self.protocol_errors,
            channel_errors: self.channel_errors,
        }
    }
}
