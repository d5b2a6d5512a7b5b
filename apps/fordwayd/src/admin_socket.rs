//! Connections of administrators: lines in, lines out, never waiting for them.

use crate::admin::{ErrorKind, FilterChange, Info, Reply, Request, SCHEMA};
use crate::broker::{ADMINS_MAX, Broker, Ending, Token};
use fordway_abi::reason::Reason;
use fordway_platform::{ipc, process};
use fordway_registry::HOST_DOMAIN;
use rustix::event::epoll;
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
    /// It wants to be told of changes of the rules.
    pub(crate) monitors: bool,
    from: Asker,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl AdminConnection {
    fn new(socket: OwnedFd, from: Asker) -> Self {
        Self {
            socket,
            monitors: false,
            from,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads, answers, writes what there is room for. False: the connection is over.
    pub(crate) fn serve(&mut self, mut answer: impl FnMut(&str) -> Reply) -> bool {
        if self.is_behind() {
            return self.write();
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
        let mut looked = old;
        while let Some(end) = self.input[looked..].iter().position(|byte| *byte == b'\n') {
            let end = looked + end;
            looked = 0;
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let reply = match std::str::from_utf8(&line) {
                Ok(line) => answer(line),
                Err(_) => error(ErrorKind::BadInput, "the request is not UTF-8"),
            };
            self.push(&reply);
        }
        if self.input.len() > LINE_BYTES_MAX {
            self.push(&error(ErrorKind::BadInput, "the request is too long"));
            self.write();
            return false;
        }
        self.write() && open
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
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
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

    pub(crate) fn serve_admin(&mut self, number: u64) {
        let Some(mut admin) = self.admins.remove(&number) else {
            return;
        };
        let from = admin.from;
        let mut monitors = false;
        let open = admin.serve(|line| self.answer(line, from, &mut monitors));
        admin.monitors |= monitors;
        self.put_back(number, admin, open);
    }

    /// Tells who monitors of a change of the rules.
    pub(crate) fn tell_monitors(&mut self, change: &FilterChange) {
        let monitors: Vec<u64> = self
            .admins
            .iter()
            .filter(|(_, admin)| admin.monitors)
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
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::OUT, admin.is_behind());
        flags.set(epoll::EventFlags::IN, !admin.is_behind());
        let token = Token::Admin(number).data();
        let _ = epoll::modify(&self.epoll, &admin.socket, token, flags);
        self.admins.insert(number, admin);
    }

    /// Does what one line asks for.
    ///
    /// `monitors` is set if it wants to hear more.
    fn answer(&mut self, line: &str, from: Asker, monitors: &mut bool) -> Reply {
        let request = match serde_json::from_str(line) {
            Ok(request) => request,
            Err(reason) => return error(ErrorKind::BadInput, format_args!("request: {reason}")),
        };
        if let Some(why) = from.refusal(&request) {
            return error(ErrorKind::Privilege, why);
        }
        match request {
            Request::FilterLoad { text, epoch } => self.filter_load(&text, epoch),
            Request::FilterList => self.filter_list(),
            Request::FilterMonitor => {
                *monitors = true;
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
        }
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
