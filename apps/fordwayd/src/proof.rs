//! Whose socket an offer is: asked of the kernel, without a descriptor of it.
//!
//! A shim states by which number its process has the socket, and the socket's cookie, names
//! and namespace. None of it is believed:
//!
//! ```text
//!   sock_diag(7), in that namespace: the socket with these names and this cookie
//!        ──► its state, its inode on sockfs, the user who made it
//!   /proc/PID/fd/NUMBER: "socket:[INODE]"         the same inode, so the process has it open
//!   the pidfd: still alive                         so PID stood for the process all the time
//!   the packet's credentials: sent by the process  not by an heir of its control connection
//! ```
//! Of UDP the first question is whose datagrams are: which socket gets what comes from the remote name to
//! the local one. The kernel chooses as it does for a datagram, so the proof holds while nobody else is bound
//! there more closely, and is asked for again while there is a channel ([`Broker::look_at_datagrams`]).
//!
//! Of the AF_UNIX pair between a program and its own stack the order is another one: the number leads to the inode, and inode
//! and cookie to the socket and its peer, in the stack's namespace, where both were made:
//!
//! ```text
//!   /proc/PID/fd/NUMBER: "socket:[INODE]"
//!   sock_diag(7), in that namespace: the stream with this inode and this cookie ──► its peer's inode
//! ```
//! One end is a stack's, the other that of a process in that stack's domain. Their names are the two inodes, which mirror
//! each other in one pair only. The stack has made both sockets, so the user says nothing: who has the patience can have a socket
//! with the number of one that another process of its own domain has.
//!
//! An inode's number has 32 bits and comes again after all others; who has the patience can
//! have a socket with the number of another one. So the user counts too: a process has sockets
//! of its own user only, unless it is root. And a socket lies in the namespace of its process,
//! unless that is root in the broker's own.
//!
//! No socket's lock is taken, no descriptor is copied: nobody can make the broker wait, and a
//! close is the end of the socket at once.
//!
//! The answers come from a netlink socket of the namespace, which keeps the namespace alive: it
//! is opened at the first question, through the control connection (SIOCGSKNS), and closed
//! with the last process that asked there. Beside it stands one for the namespace's connection
//! tracking, opened when a connection may have been translated there.

use crate::broker::Broker;
use crate::connection::Connection;
use fordway_abi::control::{Claim, Protocol};
use fordway_abi::reason::Reason;
use fordway_platform::diag::{Asker, Bound, Named};
use fordway_platform::process::Peer;
use fordway_platform::sockinfo::TcpState;
use fordway_platform::{conntrack, netns, process};
use fordway_registry::{FarEnd, ProcessId, Question, Shown, SocketFacts, of_inode};
use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// Who asks the kernel, in each namespace.
#[derive(Debug)]
pub(crate) struct Places {
    own: u64,
    by_cookie: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    asker: Asker,
    tracker: Tracker,
    /// Connections whose processes have sockets there.
    users: BTreeSet<u64>,
}

/// Who asks a namespace's connection tracking.
#[derive(Debug)]
enum Tracker {
    /// It was not needed, or the kernel had no connection tracking.
    Unasked,
    Asks(conntrack::Asker),
    /// The broker may not ask there, or the kernel has no answers.
    Refused,
}

impl Place {
    fn new(asker: Asker) -> Self {
        Self {
            asker,
            tracker: Tracker::Unasked,
            users: BTreeSet::new(),
        }
    }

    fn tracker(&mut self, netns_cookie: u64) -> Option<&conntrack::Asker> {
        if let Tracker::Unasked = self.tracker {
            self.tracker = match conntrack::Asker::beside(&self.asker, netns_cookie) {
                Ok(None) => Tracker::Unasked,
                Ok(Some(asker)) => Tracker::Asks(asker),
                Err(error) => {
                    tracing::debug!("namespace {netns_cookie} keeps its translations: {error}");
                    Tracker::Refused
                }
            };
        }
        match &self.tracker {
            Tracker::Asks(asker) => Some(asker),
            _ => None,
        }
    }

    /// Something of the namespace's connection tracking, unless it is out of reach.
    fn track<T>(
        &mut self,
        netns_cookie: u64,
        ask: impl FnOnce(&conntrack::Asker) -> io::Result<T>,
    ) -> Option<T> {
        match ask(self.tracker(netns_cookie)?) {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::debug!("namespace {netns_cookie} keeps its translations: {error}");
                // An answer may still come, and would be taken for that to the next question.
                use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
                self.tracker = match error.kind() {
                    // What a kernel without ctnetlink says, too.
                    PermissionDenied | InvalidInput | Unsupported => Tracker::Refused,
                    _ => Tracker::Unasked,
                };
                None
            }
        }
    }
}

impl Places {
    /// For a broker in this namespace.
    pub(crate) fn new(own: u64) -> Self {
        Self {
            own,
            by_cookie: BTreeMap::new(),
        }
    }

    /// The broker's own namespace.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// Descriptors that are held.
    pub(crate) fn held(&self) -> usize {
        let places = self.by_cookie.values();
        let trackers = places.filter(|place| matches!(place.tracker, Tracker::Asks(_)));
        self.by_cookie.len() + trackers.count()
    }

    /// What the tables say of a socket's connection, for the registry. But for the broker's own,
    /// namespaces in which nobody has offered a socket are not asked: neither end is there. Nor is any
    /// about UDP, whose entries are there with the first datagram, whoever has sent it.
    pub(crate) fn translate(&mut self, question: &Question) -> Option<FarEnd> {
        let SocketFacts { local, remote, .. } = question.facts;
        if question.facts.protocol != Protocol::Tcp {
            return None;
        }
        for netns_cookie in question.mirrored_in.into_iter().flatten() {
            let place = self.by_cookie.get(&netns_cookie);
            let mirrored = place.map(|place| place.asker.has_connection(remote, local));
            match mirrored {
                None | Some(Ok(false)) => {}
                Some(Ok(true)) => return None,
                Some(Err(error)) => {
                    tracing::debug!("no translation is looked for: {error}");
                    self.close(netns_cookie);
                    return None;
                }
            }
        }
        if let Entry::Vacant(own) = self.by_cookie.entry(self.own)
            && let Ok(asker) = Asker::new()
        {
            own.insert(Place::new(asker));
        }
        let mut as_it_is = None;
        let translated = question.tables.into_iter().flatten().find_map(|table| {
            let place = self.by_cookie.get_mut(&table)?;
            let entry = place.track(table, |asker| asker.far_end(local, remote))??;
            let far = FarEnd {
                table,
                local: entry.names.0,
                remote: entry.names.1,
            };
            let far = Some(far).filter(|_| entry.is_established || question.even_if_new)?;
            if entry.names != (remote, local) {
                return Some(far);
            }
            if table == self.own {
                as_it_is = Some(far);
            }
            None
        });
        translated.or(as_it_is)
    }

    /// Has the kernel of a namespace know TCP connections for so many seconds more.
    pub(crate) fn keep(
        &mut self,
        netns_cookie: u64,
        connections: &[(SocketAddr, SocketAddr)],
        seconds: u32,
    ) {
        if let Some(place) = self.by_cookie.get_mut(&netns_cookie) {
            place.track(netns_cookie, |asker| {
                asker.keep(Protocol::Tcp, connections, seconds)
            });
        }
    }

    /// What the kernel says in a namespace of a socket that `user` shows; `open` gives the namespace, where it
    /// was not asked yet.
    fn ask<T>(
        &mut self,
        netns_cookie: u64,
        user: u64,
        open: impl FnOnce() -> io::Result<OwnedFd>,
        ask: impl FnOnce(&Asker) -> io::Result<T>,
    ) -> io::Result<T> {
        let place = self.place(netns_cookie, open)?;
        place.users.insert(user);
        let found = ask(&place.asker);
        if found.is_err() {
            // An answer may still come, and would be taken for that to the next question.
            self.close(netns_cookie);
        }
        found
    }

    /// The cookies of the AF_UNIX sockets of a namespace; none, if nobody has shown a socket there, or they cannot be had.
    pub(crate) fn unix_cookies(&mut self, netns_cookie: u64) -> BTreeSet<u64> {
        let place = self.by_cookie.get(&netns_cookie);
        match place.map(|place| place.asker.unix_cookies()) {
            Some(Ok(all)) => return all,
            // As above.
            Some(Err(_)) => self.close(netns_cookie),
            None => {}
        }
        BTreeSet::new()
    }

    /// UDP sockets of a port in a namespace; `open` as above. The caller closes what was opened for it alone.
    pub(crate) fn bound_to(
        &mut self,
        netns_cookie: u64,
        port: u16,
        open: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<Vec<Bound>> {
        let found = self.place(netns_cookie, open)?.asker.bound_to(port);
        if found.is_err() {
            // As above.
            self.close(netns_cookie);
        }
        found
    }

    /// Who asks in a namespace, which `open` gives where it was not asked yet.
    fn place(
        &mut self,
        netns_cookie: u64,
        open: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<&mut Place> {
        match self.by_cookie.entry(netns_cookie) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let asker = match netns_cookie == self.own {
                    true => Asker::new()?,
                    false => Asker::within(open()?, netns_cookie)?,
                };
                Ok(new.insert(Place::new(asker)))
            }
        }
    }

    /// A connection has ended. With it go the places that nobody uses, also the broker's own, which
    /// was opened to ask what was translated there.
    pub(crate) fn leave(&mut self, user: u64) {
        for place in self.by_cookie.values_mut() {
            place.users.remove(&user);
        }
        self.close_unused();
    }

    /// Nobody who has sockets there is left, or it was opened for a listing.
    pub(crate) fn close_unused(&mut self) {
        self.by_cookie.retain(|_, place| !place.users.is_empty());
    }

    /// A namespace is to go. It is opened again if there is another question.
    pub(crate) fn close(&mut self, netns_cookie: u64) {
        self.by_cookie.remove(&netns_cookie);
    }
}

/// Why a claim does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Untrue {
    /// There is no such socket, not any more, or not connected; datagrams go to another one.
    Gone,
    /// It is there, and the process has it not under this number.
    NotHeld,
    /// The broker may not look.
    Hidden,
}

impl Untrue {
    fn reason(self) -> Reason {
        match self {
            Untrue::Gone => Reason::NoPeer,
            Untrue::NotHeld | Untrue::Hidden => Reason::Unproven,
        }
    }
}

/// Shows older offers anew, and what was translated, for the registry.
pub(crate) struct Witness<'b> {
    places: RefCell<&'b mut Places>,
    connections: &'b BTreeMap<u64, Connection>,
    by_process: &'b BTreeMap<ProcessId, u64>,
}

impl<'b> Witness<'b> {
    pub(crate) fn new(
        places: &'b mut Places,
        connections: &'b BTreeMap<u64, Connection>,
        by_process: &'b BTreeMap<ProcessId, u64>,
    ) -> Self {
        Self {
            places: RefCell::new(places),
            connections,
            by_process,
        }
    }

    /// See [`fordway_registry::Translator`].
    pub(crate) fn translate(&self, question: &Question) -> Option<FarEnd> {
        self.places.borrow_mut().translate(question)
    }

    /// Whether a process still has a socket, connected under these names.
    pub(crate) fn still_true(&self, process: ProcessId, facts: &SocketFacts) -> Result<(), Reason> {
        // Another guest's broker vouches for its own sockets: it says so once they are gone.
        if fordway_registry::guest_of_place(facts.netns_cookie).is_some() {
            return Ok(());
        }
        let number = self.by_process.get(&process).ok_or(Reason::NoPeer)?;
        let connection = self.connections.get(number).ok_or(Reason::NoPeer)?;
        let facts = facts.as_offered();
        let open = || namespace_of(self.connections, facts.netns_cookie);
        let places = &mut self.places.borrow_mut();
        let seen = look(places, *number, connection, &facts, open).map_err(Untrue::reason)?;
        match seen == facts {
            true => Ok(()),
            false => Err(Reason::NoPeer),
        }
    }
}

impl Broker {
    /// The domain that a process has to do with a stack of: its own, or, of the stack itself, the one that it serves.
    pub(crate) fn domain_with_stack(&self, peer: &Peer) -> Option<u32> {
        let served = self.stacks.served_by(&self.parts, peer.pid);
        let own = || self.registry.domain_of_netns(peer.netns_cookie);
        served.or_else(|| Some(own()?.id))
    }

    /// Whether a process may have an end of the pairs that were made in this namespace: it is a stack there, or lies in
    /// the domain that one there serves.
    fn is_of_stack(&self, peer: &Peer, netns_cookie: u64) -> bool {
        let Some(domain) = self.domain_with_stack(peer) else {
            return false;
        };
        let stack = self.stacks.process_of(&self.parts, domain);
        let mut peers = self.connections.values().map(|connection| &connection.peer);
        peers.any(|peer| Some(peer.pid) == stack && peer.netns_cookie == netns_cookie)
    }

    /// What is true of a claim that came by this connection, from `sender`.
    pub(crate) fn prove(
        &mut self,
        number: u64,
        sender: i32,
        claim: &Claim,
    ) -> Result<SocketFacts, Reason> {
        let mut facts = claimed(claim).ok_or(Reason::Unsupported)?;
        let connection = self.connections.get(&number).ok_or(Reason::NoPeer)?;
        let peer = &connection.peer;
        if facts.protocol == Protocol::Unix && claim.remote_port != 0 {
            // Of what it serves, a stack is believed, and nobody else.
            let served = self.stacks.served_by(&self.parts, peer.pid);
            facts.shown.serves = served.map(|_| (facts.local, facts.remote));
        }
        if sender != peer.pid {
            // A child that shares its parent's memory (vfork) may be the one that speaks.
            return Err(Reason::Shared);
        }
        let at_home = peer.netns_cookie == facts.netns_cookie;
        let anywhere = peer.uid == 0 && peer.netns_cookie == self.places.own;
        let may_be_there = match facts.protocol {
            Protocol::Unix => self.is_of_stack(peer, facts.netns_cookie),
            _ => at_home || anywhere,
        };
        if !may_be_there {
            return Err(Reason::Unproven);
        }
        let (registry, domains) = (&self.registry, &self.domains);
        let connections = &self.connections;
        let open = || match at_home || facts.protocol == Protocol::Unix {
            true => namespace_of(connections, facts.netns_cookie),
            false => registry
                .domain_of_netns(facts.netns_cookie)
                .and_then(|domain| domains.open(domain))
                .ok_or(io::ErrorKind::NotFound.into()),
        };
        match look(&mut self.places, number, connection, &facts, open) {
            Ok(seen) => Ok(seen),
            Err(untrue) => {
                // No warning: whoever has closed or passed on what it offered is no liar.
                tracing::debug!("process {}: no proof: {untrue:?}", peer.pid);
                Err(untrue.reason())
            }
        }
    }
}

/// The namespace, by the connection of a process that lies there.
fn namespace_of(connections: &BTreeMap<u64, Connection>, netns_cookie: u64) -> io::Result<OwnedFd> {
    let mut all = connections.values();
    let there = all.find(|connection| connection.peer.netns_cookie == netns_cookie);
    netns::of_socket(&there.ok_or(io::ErrorKind::NotFound)?.socket)
}

/// The proof (see the module): the facts as the kernel shows them.
fn look(
    places: &mut Places,
    number: u64,
    connection: &Connection,
    facts: &SocketFacts,
    open: impl FnOnce() -> io::Result<OwnedFd>,
) -> Result<SocketFacts, Untrue> {
    let peer = &connection.peer;
    let pidfd = peer.pidfd.as_ref().ok_or(Untrue::Hidden)?;
    if peer.pid == 0 {
        return Err(Untrue::Hidden);
    }
    let seen = match facts.protocol {
        Protocol::Unix => look_at_pair(places, number, connection, facts, open),
        _ => look_at_names(places, number, connection, facts, open),
    }?;
    match process::is_alive(pidfd) {
        true => Ok(seen),
        false => Err(Untrue::Gone),
    }
}

/// Of TCP and UDP.
fn look_at_names(
    places: &mut Places,
    number: u64,
    Connection { peer, .. }: &Connection,
    facts: &SocketFacts,
    open: impl FnOnce() -> io::Result<OwnedFd>,
) -> Result<SocketFacts, Untrue> {
    let named = Named {
        protocol: facts.protocol,
        local: facts.local,
        remote: facts.remote,
        cookie: facts.cookie,
    };
    let found = places.ask(facts.netns_cookie, number, open, |asker| asker.find(&named));
    let found = found.map_err(|error| hidden(peer.pid, &error))?;
    // Without an inode no process has it open.
    let may_carry = |state: TcpState| match facts.protocol {
        Protocol::Tcp => state.carries(),
        // Connected, or bound only.
        _ => matches!(state, TcpState::Established | TcpState::Close),
    };
    let found = found.filter(|found| may_carry(found.state) && found.inode != 0);
    let found = found.ok_or(Untrue::Gone)?;
    if peer.uid != 0 && found.uid != peer.uid {
        return Err(Untrue::NotHeld);
    }
    for inode in shows(peer.pid, &facts.shown) {
        if inode? == Some(found.inode) {
            return Ok(*facts);
        }
    }
    Err(Untrue::NotHeld)
}

/// Of the pair between a program and its stack.
fn look_at_pair(
    places: &mut Places,
    number: u64,
    Connection { peer, .. }: &Connection,
    facts: &SocketFacts,
    open: impl FnOnce() -> io::Result<OwnedFd>,
) -> Result<SocketFacts, Untrue> {
    let shown = shows(peer.pid, &facts.shown).collect::<Result<Vec<_>, _>>()?;
    let found = places.ask(facts.netns_cookie, number, open, |asker| {
        for inode in shown.into_iter().flatten() {
            if let Some(far) = asker.peer_of_unix(inode, facts.cookie)? {
                return Ok(Some((inode, far)));
            }
        }
        Ok(None)
    });
    let found = found.map_err(|error| hidden(peer.pid, &error))?;
    let (near, far) = found.ok_or(Untrue::Gone)?;
    Ok(SocketFacts {
        local: of_inode(near),
        remote: of_inode(far),
        ..*facts
    })
}

fn hidden(pid: i32, error: &io::Error) -> Untrue {
    tracing::debug!("process {pid}: no proof: {error}");
    Untrue::Hidden
}

/// The inodes of what a process has under the number that it says. They are looked at as they are asked for, each
/// by a walk through /proc: mostly the first one is the one.
fn shows(pid: i32, shown: &Shown) -> impl Iterator<Item = Result<Option<u32>, Untrue>> {
    // All threads have the same numbers, but after unshare(2); and a first thread that has ended
    // before the others has none. A thread of another PID namespace has another number here.
    let fd = shown.fd;
    let by = move |thread| process::socket_behind(pid, thread, fd).map_err(|_| Untrue::Hidden);
    let of_thread = Some(shown.thread).filter(|thread| *thread != 0);
    [Some(0), of_thread].into_iter().flatten().map(by)
}

/// The claim as the registry takes it, if it is of a protocol that is known. Names are normalised as
/// everywhere.
fn claimed(claim: &Claim) -> Option<SocketFacts> {
    let name = |ip: [u8; 16], port| SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port);
    Some(SocketFacts {
        protocol: Protocol::from_u32(claim.protocol)?,
        cookie: claim.cookie,
        netns_cookie: claim.netns_cookie,
        local: name(claim.local_ip, claim.local_port),
        remote: name(claim.remote_ip, claim.remote_port),
        shown: Shown {
            fd: claim.fd,
            thread: claim.thread,
            ..Shown::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fordway_platform::sockinfo::netns_cookie;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    /// Both ends of a TCP connection of this process.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let near = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        (near, listener.accept().expect("accept").0)
    }

    /// This process' own connection to a broker, with other credentials.
    fn connection(change: impl FnOnce(&mut Peer)) -> Connection {
        let (socket, _far) = UnixStream::pair().expect("pair");
        let mut peer = process::peer(&socket).expect("peer");
        change(&mut peer);
        Connection::new(socket.into(), peer)
    }

    /// What the proof says of a socket that this process has open.
    fn verdict(socket: &TcpStream, change: impl FnOnce(&mut Peer)) -> Result<(), Untrue> {
        let remote = socket.peer_addr().expect("name");
        verdict_on(socket, remote, change)
    }

    fn verdict_on(
        socket: impl AsFd,
        remote: SocketAddr,
        change: impl FnOnce(&mut Peer),
    ) -> Result<(), Untrue> {
        let local = rustix::net::getsockname(&socket).expect("name");
        let facts = SocketFacts {
            protocol: Protocol::Tcp,
            cookie: rustix::net::sockopt::socket_cookie(&socket).expect("cookie"),
            netns_cookie: netns_cookie(&socket).expect("cookie"),
            local: SocketAddr::try_from(local).expect("name"),
            remote,
            shown: Shown {
                fd: socket.as_fd().as_raw_fd() as u32,
                thread: 0,
                ..Shown::default()
            },
        };
        let mut places = Places::new(facts.netns_cookie);
        let open = || Err(io::ErrorKind::NotFound.into());
        look(&mut places, 1, &connection(change), &facts, open).map(|seen| assert_eq!(seen, facts))
    }

    #[test]
    fn a_process_has_sockets_of_its_own_user_only() {
        let (socket, _far) = connected();
        let own = geteuid().as_raw();
        assert_eq!(verdict(&socket, |peer| peer.uid = own), Ok(()));
        let another = verdict(&socket, |peer| peer.uid = own + 1);
        assert_eq!(another, Err(Untrue::NotHeld));
    }

    /// The number stands for somebody, who has the socket: another process by now.
    #[test]
    fn the_number_of_an_ended_process_proves_nothing() {
        let (socket, _far) = connected();
        let mut child = std::process::Command::new("true").spawn().expect("spawn");
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("pidfd");
        child.wait().expect("wait");
        let ended = verdict(&socket, |peer| peer.pidfd = Some(pidfd));
        assert_eq!(ended, Err(Untrue::Gone));
    }

    #[test]
    fn who_cannot_be_told_from_others_proves_nothing() {
        let (socket, _far) = connected();
        let unwatched = verdict(&socket, |peer| peer.pidfd = None);
        assert_eq!(unwatched, Err(Untrue::Hidden));
        let unseen = verdict(&socket, |peer| peer.pid = 0);
        assert_eq!(unseen, Err(Untrue::Hidden));
    }

    /// Its inode and its peer's are the names, whatever the claim says, and they mirror each other.
    #[test]
    fn an_end_of_an_af_unix_pair_is_shown_with_its_peer() {
        let (a, b) = UnixStream::pair().expect("pair");
        let cookie = |socket: &UnixStream| rustix::net::sockopt::socket_cookie(socket);
        let seen = |socket: &UnixStream, cookie: u64| {
            let facts = claimed(&Claim {
                cookie,
                netns_cookie: netns_cookie(socket).expect("cookie"),
                fd: socket.as_raw_fd() as u32,
                protocol: Protocol::Unix as u32,
                ..Claim::NONE
            });
            let facts = facts.expect("a protocol that is known");
            let mut places = Places::new(facts.netns_cookie);
            let open = || Err(io::ErrorKind::NotFound.into());
            let user = |peer: &mut Peer| peer.uid = geteuid().as_raw() + 1;
            look(&mut places, 1, &connection(user), &facts, open)
        };
        let [of_a, of_b] = [&a, &b].map(|end| seen(end, cookie(end).expect("cookie")));
        let (of_a, of_b) = (of_a.expect("shown"), of_b.expect("shown"));
        assert_eq!((of_a.local, of_a.remote), (of_b.remote, of_b.local));
        assert_ne!(of_a.local, of_b.local);
        // Another socket's cookie; a socket that is no stream of AF_UNIX.
        assert_eq!(seen(&a, of_b.cookie), Err(Untrue::Gone));
        drop(b);
        // A process that another test starts has it as well, until it becomes its program.
        let until = Instant::now() + Duration::from_secs(30);
        while seen(&a, of_a.cookie) != Err(Untrue::Gone) {
            assert!(Instant::now() < until, "it is shown still");
            std::thread::yield_now();
        }
    }

    /// Nobody has answered yet: whose the other name is, is open.
    #[test]
    fn a_connection_that_is_being_made_is_none() {
        let new = |flags| {
            let family = AddressFamily::INET;
            let flags = SocketFlags::CLOEXEC | flags;
            rustix::net::socket_with(family, SocketType::STREAM, flags, None).expect("socket")
        };
        let listener = new(SocketFlags::empty());
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        rustix::net::bind(&listener, &any).expect("bind");
        rustix::net::listen(&listener, 0).expect("listen");
        let name = rustix::net::getsockname(&listener).expect("name");
        let name = SocketAddr::try_from(name).expect("name");
        // There is room for one.
        let _first = TcpStream::connect(name).expect("connect");
        let second = new(SocketFlags::NONBLOCK);
        let begun = rustix::net::connect(&second, &name);
        assert_eq!(begun, Err(rustix::io::Errno::INPROGRESS));
        assert_eq!(verdict_on(&second, name, |_| ()), Err(Untrue::Gone));
    }
}
