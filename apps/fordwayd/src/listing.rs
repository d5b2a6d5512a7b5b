//! Every connection: what the kernel lists in each namespace (sock_diag), beside what
//! the registry knows of the same socket by its cookie.
//!
//! # Path and reason of a socket
//! 1. It has a channel: `fast`, with the bytes that its own endpoint shows, unless
//!    its sending half has gone back to the kernel already, or its peer wants it to.
//! 2. It was offered, or had a channel: `kernel`, with the reason that was given. A
//!    waiting offer is looked at again, since the listing knows more than the registry:
//!    where no socket in any namespace mirrors it, the tables of translations are asked for its
//!    far end, and none means `no-peer`, or `nat` towards a domain if rules of the packet filter
//!    translate; a far end that no shim holds means `no-peer` as well; one
//!    where the rule of pairing does not hold means `unassigned`, and `nat` if a table led there;
//!    one that is known to stay on the kernel path gives its own reason. A proxy in between is a far
//!    end as any other: what it has connected to is another connection.
//! 3. A shim holds it but has not offered it: `policy` or `young`.
//! 4. A process holds it whose shim was refused ([`crate::unlike`]): `version`, at its other end as well.
//! 5. No shim holds it: `no-peer`.
//!
//! Of UDP the kernel lists no pairs. Those that programs have offered, and not given up since, are listed
//! as far as the registry knows them. So are the pairs between programs and their own stacks.
//!
//! Sockets of a domain's own stack are listed as the stack tells them ([`crate::orders`]), with path `stack`.
//!
//! Which process holds a socket is read from /proc/PID/fd of the processes that speak
//! to the broker, and only for a listing. Where a socket holds the listing up ([`crate::dump`]), the
//! bytes that the kernel has carried are missing. Namespaces that the broker may not enter
//! (those of other users' containers) are not listed.

use crate::admin::Connection;
use crate::broker::Broker;
use crate::memory::Progress;
use fordway_abi::control::{PathPolicy, Protocol};
use fordway_abi::reason::Reason;
use fordway_driver::orders;
use fordway_platform::sockinfo::TcpState;
use fordway_platform::{diag, netns, process};
use fordway_registry::{
    ChannelView, ConnectionView, FarEnd, Path, ProcessId, Shown, SocketFacts, Usage, inode_of,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// Descriptors of programs that are looked at for one listing: some tenths of a second.
/// Sockets beyond it seem to be held by nobody.
const DESCRIPTORS_LOOKED_MAX: usize = 1 << 17;

/// Waiting sockets that tables of translations are asked about for one listing, with at most five
/// questions of some microseconds each. Those beyond it seem to have nobody at their far end.
const TRANSLATIONS_ASKED_MAX: usize = 1 << 12;

/// One socket and the namespace it was found in.
struct Found {
    netns_cookie: u64,
    row: diag::Row,
}

/// Where the other end of a connection is.
enum Far<'f> {
    /// Where the rule of pairing allows it.
    Socket(&'f Found),
    /// There is one, and the rule does not hold: for the names, or for who translated them.
    Barred(&'f Found, Reason),
    /// No socket has the mirrored names, and none is known to stand for it.
    Nowhere,
}

/// What is looked up for every row.
struct Tables {
    /// Sockets by local and remote name: where in the list.
    by_names: HashMap<(SocketAddr, SocketAddr), Vec<usize>>,
    /// Which process holds a socket, by inode.
    holders: HashMap<u32, ProcessId>,
    /// And which process whose shim was refused.
    unlike: HashMap<u32, i32>,
    /// What tables of translations say of the far end of a waiting socket, by its cookie.
    translated: HashMap<u64, FarEnd>,
}

/// Why the end of a channel is on the kernel path already, or on its way there: it sends by the
/// kernel again, or its peer wants it to.
fn on_its_way(own: Option<Progress>, peer: Option<Progress>) -> Option<Reason> {
    let asked = peer.filter(|peer| peer.stopped);
    let asked = asked.and_then(|peer| peer.left_for);
    match own.filter(|own| own.back) {
        Some(own) => own.left_for.or(asked).or(Some(Reason::Unsupported)),
        None => asked,
    }
}

/// Longest protocol or state of a stack's.
const WORD_CHARS: usize = 16;

/// Sockets of stacks, with the program that has the other end of each pair, and the number of that end's channel. Where the channel goes
/// past the stack, to the far end, the socket has its bytes, and the rows of the pair's ends go: nothing is carried between these two.
fn with_pairs(of_stacks: &mut [Connection], rows: &mut Vec<Connection>, past: &HashSet<String>) {
    let is_pair = |row: &&Connection| row.protocol == Protocol::Unix.word();
    // The end that the stack has is known by its cookie, the program's by the name of that one.
    let pairs = rows.iter().filter(is_pair);
    let ends: HashMap<&str, &Connection> = pairs.map(|row| (row.cookie.as_str(), row)).collect();
    let pairs = rows
        .iter()
        .filter(is_pair)
        .filter(|row| row.channel.is_some());
    let others: HashMap<&str, &Connection> = pairs.map(|row| (row.remote.as_str(), row)).collect();
    let mut shown = HashSet::new();
    for one in of_stacks {
        let own = ends.get(one.cookie.as_str());
        let Some((own, other)) = own.and_then(|own| Some((own, others.get(own.local.as_str())?)))
        else {
            continue;
        };
        (one.channel, one.pid) = (other.channel, other.pid);
        if past.contains(&other.cookie) {
            one.path.clone_from(&other.path);
            one.reason.clone_from(&other.reason);
            one.ring_bytes_tx = other.ring_bytes_tx;
            one.ring_bytes_rx = other.ring_bytes_rx;
            shown.extend([own.cookie.clone(), other.cookie.clone()]);
        }
    }
    rows.retain(|row| !shown.contains(&row.cookie));
}

fn is_waiting(view: &ConnectionView) -> bool {
    matches!(
        view.path,
        Path::Kernel {
            reason: Reason::Waiting,
            ..
        }
    )
}

impl Broker {
    /// One row for each connected kernel socket of the namespaces that are known.
    pub(crate) fn list_connections(&mut self) -> Vec<Connection> {
        let found = self.dump_namespaces();
        let mut left = DESCRIPTORS_LOOKED_MAX;
        let mut tables = Tables {
            by_names: HashMap::new(),
            holders: self.holders(&mut left),
            unlike: self.unlike_holders(&mut left),
            translated: HashMap::new(),
        };
        for (index, found) in found.iter().enumerate() {
            let names = (found.row.local, found.row.remote);
            tables.by_names.entry(names).or_default().push(index);
        }
        let own = diag::own_netns_cookie().unwrap_or(0);
        let waits = found.iter().filter_map(|one| {
            let view = self
                .registry
                .connection(one.row.cookie)
                .filter(is_waiting)?;
            let is_asked = match self.far_end(one, &found, &tables) {
                Far::Socket(_) => false,
                // Names as they are can be joined by the host's table alone, to an end of the host's.
                Far::Barred(other, _) => [one, other].iter().any(|end| end.netns_cookie == own),
                Far::Nowhere => true,
            };
            is_asked.then_some(view.facts)
        });
        let waits: Vec<SocketFacts> = waits.take(TRANSLATIONS_ASKED_MAX).collect();
        for facts in waits {
            let far = self.places.translate(&self.registry.question(&facts));
            tables.translated.extend(far.map(|far| (facts.cookie, far)));
        }
        self.places.close_unused();
        let rows = found.iter();
        let mut rows: Vec<_> = rows
            .map(|one| self.describe_connection(one, &found, &tables))
            .collect();
        let mut others = self.registry.other_ends();
        // What has left its ring, or has none, is closed without a word.
        let mut open: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        let places = &mut self.places;
        others.retain(|end| {
            let SocketFacts {
                protocol,
                netns_cookie,
                cookie,
                ..
            } = end.facts;
            let is_sure = protocol != Protocol::Unix || matches!(end.path, Path::Channel(_));
            let open = open.entry(netns_cookie);
            is_sure
                || open
                    .or_insert_with(|| places.unix_cookies(netns_cookie))
                    .contains(&cookie)
        });
        rows.extend(others.iter().map(|end| self.describe_other(end)));
        let of_stacks = self.stack_connections().into_iter();
        let mut of_stacks: Vec<_> = of_stacks
            .filter_map(|(id, one)| self.describe_of_stack(id, one))
            .collect();
        let past = self.registry.ends_past_stacks();
        let past = past.map(|cookie| cookie.to_string()).collect();
        with_pairs(&mut of_stacks, &mut rows, &past);
        rows.extend(of_stacks);
        let channels = rows.iter_mut().filter_map(|row| row.channel.as_mut());
        self.numbers.shorten(channels);
        rows
    }

    fn dump_namespaces(&self) -> Vec<Found> {
        let own = diag::own_netns_cookie().unwrap_or(0);
        let domains = self.registry.domains().map(|domain| domain.netns_cookie);
        let unlike = self
            .unlike
            .processes()
            .map(|(_, netns_cookie)| netns_cookie);
        let known = domains.chain(self.registry.namespaces());
        let cookies: BTreeSet<u64> = known.chain(unlike).collect();
        let mut found = Vec::new();
        let mut listing = self.dumps.begin();
        for netns_cookie in cookies {
            let namespace = match netns_cookie == own {
                true => netns::of_process(std::process::id() as i32),
                false => self.open_namespace(netns_cookie),
            };
            match namespace.and_then(|namespace| listing.rows(&namespace, netns_cookie)) {
                Ok(rows) => found.extend(rows.into_iter().map(|row| Found { netns_cookie, row })),
                Err(error) => {
                    let name = self.registry.name_of_netns(netns_cookie);
                    tracing::debug!("connections of {name} cannot be listed: {error}");
                }
            }
        }
        found
    }

    fn open_namespace(&self, netns_cookie: u64) -> std::io::Result<OwnedFd> {
        let domain = self.registry.domain_of_netns(netns_cookie);
        let by_domain = domain.and_then(|domain| self.domains.open(domain));
        let by_process = || {
            let members = self.connections.values().filter(|c| c.member.is_some());
            let members = members.map(|c| (c.peer.pid, c.peer.netns_cookie));
            members
                .chain(self.unlike.processes())
                .filter(|(_, its)| *its == netns_cookie)
                .find_map(|(pid, _)| netns::of_process(pid).ok())
        };
        let namespace = by_domain.or_else(by_process);
        namespace.ok_or(std::io::ErrorKind::NotFound.into())
    }

    fn unlike_holders(&self, left: &mut usize) -> HashMap<u32, i32> {
        let mut holders = HashMap::new();
        for (pid, _) in self.unlike.processes() {
            let inodes = process::socket_inodes(pid, left);
            holders.extend(inodes.into_iter().map(|inode| (inode, pid)));
        }
        holders
    }

    fn holders(&self, left: &mut usize) -> HashMap<u32, ProcessId> {
        let mut holders = HashMap::new();
        // One process may have many connections to us.
        let mut seen = BTreeSet::new();
        for connection in self.connections.values() {
            let Some(member) = &connection.member else {
                continue;
            };
            if !seen.insert(connection.peer.pid) {
                continue;
            }
            for inode in process::socket_inodes(connection.peer.pid, left) {
                holders.entry(inode).or_insert(member.process);
            }
        }
        holders
    }

    fn describe_connection(&self, one: &Found, all: &[Found], tables: &Tables) -> Connection {
        let row = &one.row;
        let known = self.connection_with(row.cookie);
        let holder = known
            .map(|view| view.process)
            .or_else(|| tables.holders.get(&row.inode).copied());
        let unlike = tables.unlike.get(&row.inode).copied();
        let far = self.far_end(one, all, tables);
        let mirror = match far {
            Far::Socket(other) => Some(other),
            _ => None,
        };
        let joined_with = known.and_then(|view| self.registry.peer_of(&view.facts));
        let mut connection = Connection {
            protocol: Protocol::Tcp.word().to_owned(),
            domain: self.registry.name_of_netns(one.netns_cookie),
            peer_domain: joined_with
                .map(|peer| peer.netns_cookie)
                .or(mirror.map(|other| other.netns_cookie))
                .map(|netns_cookie| self.registry.name_of_netns(netns_cookie))
                .or_else(|| self.domain_with(row.remote.ip())),
            local: row.local.to_string(),
            remote: row.remote.to_string(),
            state: row.state.word().to_owned(),
            path: "kernel".to_owned(),
            reason: None,
            pid: holder.and_then(|process| self.pid_of(process)).or(unlike),
            joined: known.is_some() || holder.is_some() || unlike.is_some(),
            cookie: row.cookie.to_string(),
            channel: None,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
            lost_tx: 0,
            kernel_bytes_tx: row.bytes_tx,
            kernel_bytes_rx: row.bytes_rx,
        };
        let reason = match known {
            Some(view) => self.fill_in(&mut connection, &view, |view| {
                self.reason_of_waiting(view, &far, tables)
            }),
            None => Some(self.reason_without_offer(holder)),
        };
        let far_is_unlike = mirror.is_some_and(|far| tables.unlike.contains_key(&far.row.inode));
        let is_unlike = unlike.is_some() || connection.joined && far_is_unlike;
        let reason = match reason {
            Some(Reason::NoPeer) if is_unlike => Some(Reason::Version),
            reason => reason,
        };
        connection.reason = reason.map(|reason| reason.word().to_owned());
        connection
    }

    fn describe_other(&self, view: &ConnectionView) -> Connection {
        let facts = &view.facts;
        let peer = self.registry.peer_of(facts);
        let is_pair = facts.protocol == Protocol::Unix;
        let name = |name: SocketAddr| match is_pair {
            true => format!("socket:[{}]", inode_of(name)),
            false => name.to_string(),
        };
        // A program and its stack are of one domain, wherever their sockets were made.
        let of_pair = || self.domain_of_pair(view.process).filter(|_| is_pair);
        let domain = of_pair().unwrap_or_else(|| self.registry.name_of_netns(facts.netns_cookie));
        let mut connection = Connection {
            protocol: facts.protocol.word().to_owned(),
            domain,
            peer_domain: of_pair()
                .or_else(|| Some(self.registry.name_of_netns(peer?.netns_cookie)))
                .or_else(|| self.domain_with(facts.remote.ip())),
            local: name(facts.local),
            remote: name(facts.remote),
            state: TcpState::Established.word().to_owned(),
            path: "kernel".to_owned(),
            reason: None,
            pid: self.pid_of(view.process),
            joined: true,
            cookie: facts.cookie.to_string(),
            channel: None,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
            lost_tx: 0,
            kernel_bytes_tx: 0,
            kernel_bytes_rx: 0,
        };
        let reason = self.fill_in(&mut connection, view, |_| Reason::Waiting);
        connection.reason = reason.map(|reason| reason.word().to_owned());
        connection
    }

    /// The domain of a program or of its stack.
    fn domain_of_pair(&self, process: ProcessId) -> Option<String> {
        let connection = self.connections.get(self.by_process.get(&process)?)?;
        let id = self.domain_with_stack(&connection.peer)?;
        let mut domains = self.registry.domains();
        Some(domains.find(|domain| domain.id == id)?.name.clone())
    }

    fn describe_of_stack(&self, id: u32, one: orders::Connection) -> Option<Connection> {
        let domain = self.registry.domains().find(|domain| domain.id == id)?;
        // A stack may say anything, and this comes to terminals.
        let word = |text: &str| -> String {
            let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
            text.chars().filter(is_plain).take(WORD_CHARS).collect()
        };
        Some(Connection {
            protocol: word(&one.protocol),
            domain: domain.name.clone(),
            peer_domain: self.domain_with(one.remote.ip()),
            local: one.local.to_string(),
            remote: one.remote.to_string(),
            state: word(&one.state),
            path: "stack".to_owned(),
            reason: None,
            pid: None,
            joined: true,
            cookie: one.cookie.to_string(),
            channel: None,
            ring_bytes_tx: 0,
            ring_bytes_rx: 0,
            lost_tx: 0,
            kernel_bytes_tx: one.bytes_tx,
            kernel_bytes_rx: one.bytes_rx,
        })
    }

    /// Fills in what the registry knows; returns the reason if it is on the kernel path. `waits` says
    /// why, of an end that waits for the other one.
    fn fill_in(
        &self,
        connection: &mut Connection,
        view: &ConnectionView,
        waits: impl FnOnce(&ConnectionView) -> Reason,
    ) -> Option<Reason> {
        match view.path {
            Path::Channel(channel) => {
                connection.channel = Some(channel.id);
                let progress = self.memory.progress(&channel);
                if let Some(progress) = progress {
                    connection.ring_bytes_tx = progress.ring_bytes_tx;
                    connection.ring_bytes_rx = progress.ring_bytes_rx;
                    connection.lost_tx = progress.lost;
                }
                let peer = channel
                    .from_peer()
                    .and_then(|channel| self.memory.progress(&channel));
                let reason = on_its_way(progress, peer);
                if reason.is_some() {
                    return channel.downgrading.or(reason);
                }
                connection.path = "fast".to_owned();
                None
            }
            Path::Kernel {
                reason,
                channel_id,
                ring_bytes_tx,
                ring_bytes_rx,
            } => {
                connection.channel = channel_id;
                connection.ring_bytes_tx = ring_bytes_tx;
                connection.ring_bytes_rx = ring_bytes_rx;
                Some(match reason {
                    Reason::Waiting => waits(view),
                    reason => reason,
                })
            }
        }
    }

    fn reason_of_waiting(&self, view: &ConnectionView, far: &Far<'_>, tables: &Tables) -> Reason {
        let to_domain = || self.domain_with(view.facts.remote.ip()).is_some();
        match far {
            Far::Socket(other) => self.reason_of_far_end(other, tables),
            Far::Barred(other, _) if !self.is_held(other, tables) => Reason::NoPeer,
            Far::Barred(_, reason) => *reason,
            Far::Nowhere if self.rules.translate() && to_domain() => Reason::Nat,
            Far::Nowhere => Reason::NoPeer,
        }
    }

    fn far_end<'f>(&self, one: &Found, all: &'f [Found], tables: &Tables) -> Far<'f> {
        let named = |local, remote| {
            let at = tables.by_names.get(&(local, remote));
            let found = at.into_iter().flatten().map(|index| &all[*index]);
            found.filter(|other| other.row.cookie != one.row.cookie)
        };
        let mirrored = || named(one.row.remote, one.row.local);
        if let Some(other) = mirrored().find(|other| self.may_be_joined(one, other, None)) {
            return Far::Socket(other);
        }
        let far = tables.translated.get(&one.row.cookie);
        let by_table = far.and_then(|far| Some((named(far.local, far.remote).next()?, far.table)));
        match by_table {
            Some((other, table)) if self.may_be_joined(one, other, Some(table)) => {
                return Far::Socket(other);
            }
            _ => {}
        }
        match (mirrored().next(), by_table) {
            (Some(other), _) => Far::Barred(other, Reason::Unassigned),
            (None, Some((other, _))) => Far::Barred(other, Reason::Nat),
            (None, None) => Far::Nowhere,
        }
    }

    /// Whether a program under this broker has a socket.
    fn is_held(&self, one: &Found, tables: &Tables) -> bool {
        let known = self.registry.connection(one.row.cookie).is_some();
        known || tables.holders.contains_key(&one.row.inode)
    }

    /// Why an end waits for the other one.
    fn reason_of_far_end(&self, far: &Found, tables: &Tables) -> Reason {
        let known = self.registry.connection(far.row.cookie);
        match known.map(|view| view.path) {
            // It has said that it will not come.
            Some(Path::Kernel { reason, .. }) => reason,
            Some(Path::Channel(channel)) => {
                on_its_way(self.memory.progress(&channel), None).unwrap_or(Reason::Waiting)
            }
            None if tables.holders.contains_key(&far.row.inode) => Reason::Waiting,
            None => Reason::NoPeer,
        }
    }

    fn reason_without_offer(&self, holder: Option<ProcessId>) -> Reason {
        match holder.and_then(|process| self.registry.policy(process)) {
            None => Reason::NoPeer,
            Some(PathPolicy::Kernel) => Reason::Policy,
            Some(_) => Reason::Young,
        }
    }

    /// Whether two sockets can be the ends of one connection, by their names or by a table.
    fn may_be_joined(&self, a: &Found, b: &Found, table: Option<u64>) -> bool {
        let facts = |end: &Found| SocketFacts {
            protocol: Protocol::Tcp,
            cookie: end.row.cookie,
            netns_cookie: end.netns_cookie,
            local: end.row.local,
            remote: end.row.remote,
            shown: Shown::default(),
        };
        self.registry.may_be_joined(&facts(a), &facts(b), table)
    }

    /// The domain to which an address is assigned.
    fn domain_with(&self, ip: IpAddr) -> Option<String> {
        let mut domains = self.registry.domains();
        let owner = domains.find(|domain| domain.addresses().any(|own| own == ip));
        let owner = owner.map(|domain| domain.name.clone());
        owner.or_else(|| self.registry.name_of_guest_at(ip))
    }

    pub(crate) fn pid_of(&self, process: ProcessId) -> Option<i32> {
        let connection = self.connections.get(self.by_process.get(&process)?)?;
        Some(connection.peer.pid).filter(|pid| *pid != 0)
    }

    /// Counts the use of every live channel, as far as it has come.
    pub(crate) fn note_all_usage(&mut self) {
        let processes = self.by_process.keys();
        let live: Vec<_> = processes
            .flat_map(|process| self.registry.live_channels_of(*process))
            .collect();
        for channel in live {
            self.note_usage(&channel);
        }
    }

    /// Counts the use of a channel.
    pub(crate) fn note_usage(&mut self, channel: &ChannelView) {
        if let Some(progress) = self.memory.progress(channel) {
            let usage = Usage {
                carried: progress.ring_bytes_tx | progress.ring_bytes_rx != 0,
                calls: progress.calls,
            };
            self.registry.note_usage(channel, usage);
        }
    }
}
