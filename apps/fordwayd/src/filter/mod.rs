//! The packet filter in force: one ruleset, enforced where connections ask for rings and
//! by the kernel in the fabric.
//!
//! ```text
//!   load ─► nft beside, dump ─┊► file beside ─► nft in the fabric ─► file in place ─► here ─► each live channel
//!           (beside the loop) ┊  (a fault up to here: nothing has changed anywhere)        one turn of the loop
//! ```
//! The broker does nothing else between the kernel's change and its own last word to a
//! channel, so no offer is answered by rules that the kernel does not have. What old and
//! new rules both refuse passes at no moment. What is before and behind that turn: [`loads`].
//!
//! # What is asked
//! - When two offers are one connection: is every packet of an established connection let
//!   pass, whatever is in it, and is this connection established? Its sockets do not prove
//!   that. Either the rules let one of its ends connect to the other, or the fabric's
//!   connection tracking has seen the handshake. If a rule needs each packet, none passes, or
//!   nothing is proven, the offer is held back (reason `filter`) and tried again with the next
//!   rules.
//! - The same when a process shows a channel of an earlier broker again.
//! - With each new epoch, of every channel. One that needs each packet is moved to the
//!   kernel path; one that is refused is moved *and* its sockets are ended, so that the
//!   end does not rest on the word of a program. (A UDP socket may be in many pairs: it stays.)
//!   If the rules before did not track connections, the kernel takes the next packet of each
//!   for a first one, and so is it asked.
//! - Again when the first of the elements with a timeout leaves its set.
//!
//! Connections within one namespace cross nothing and are not asked about. One that the host
//! translates is asked about once for each end in a domain, as the fabric sees it there. The
//! host's own rules are not the broker's: that they have let it pass, its live entry in the
//! host's connection tracking shows.
//!
//! # What the kernel forgets
//! Its connection tracking knows an established connection for five days from its last packet
//! (linux: nf_conntrack_tcp_timeout_established). One on rings has none: the broker has it
//! known for that long again each hour ([`KEEP_EVERY_NS`]), or the packets of a downgrade
//! would be those of a connection that nobody has seen begin. So it does where addresses were
//! translated, or they would be translated no more. Pairs of UDP sockets are known for half a minute, or two
//! minutes, and told of each [`KEEP_DATAGRAMS_EVERY_NS`].
//!
//! # Counts
//! The kernel counts its packets, the broker what went by rings: as the full-sized packets
//! ([`PACKET_BYTES`]) that it would have been. A listing shows the sum.

mod changes;
mod counts;
pub mod crossing;
mod kernel;
pub mod listing;
mod loads;
mod store;

pub(crate) use loads::Loads;
pub(crate) use store::FILE as RULES_FILE;

use crate::admin::{ErrorKind, FilterRules, Looked, Reply};
use crate::admin_socket::error;
use crate::again::Again;
use crate::audit::{Event, Record};
use crate::broker::Broker;
use crate::memory::Progress;
use crate::orders::Packed;
use crate::proof::Witness;
use crate::{BrokerError, Config};
use crossing::Surroundings;
use fordway_abi::control::Protocol;
use fordway_abi::reason::Reason;
use fordway_abi::shm::SEGMENT_LOG2_MAX;
use fordway_filter::rules;
use fordway_filter::{Answer, Decision, Filter, Phase, RuleId};
use fordway_platform::diag::{self, Named};
use fordway_platform::fabric::{
    Fabric, FabricError, handshake_has_passed, keep_connections, port_of,
};
use fordway_platform::nftables::{LoadError, Scratch, Source};
use fordway_registry::{BothEnds, Network, SocketFacts, guest_of_place};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

/// Bytes of a full-sized packet on Ethernet.
const PACKET_BYTES: u64 = 1500;

/// Those of its headers: of IP, and of TCP with timestamps, or of UDP.
fn header_bytes(end: &SocketFacts) -> u64 {
    let of_ip = if end.local.is_ipv4() { 20 } else { 40 };
    let beyond = match end.protocol {
        Protocol::Tcp => 32,
        Protocol::Udp => 8,
        Protocol::Unix => 0,
    };
    of_ip + beyond
}

/// What lies unread in a ring at most: two segments of the largest, while it grows.
const IN_RINGS_MAX: u64 = 2 << SEGMENT_LOG2_MAX;

/// More than a ring carries in a nanosecond, in bytes.
const BYTES_PER_NS_MAX: u64 = 64;

/// How often the kernel is told that connections on rings go on, and for how long it is to
/// know them then. Kubernetes has its nodes forget after a day, firewalls after hours.
const KEEP_EVERY_NS: u64 = 3600 * 1_000_000_000;
const KEEP_S: u32 = 5 * 24 * 3600;

/// The same of UDP (linux: nf_conntrack_udp_timeout is 30 s).
pub(crate) const KEEP_DATAGRAMS_EVERY_NS: u64 = 20 * 1_000_000_000;
pub(crate) const KEEP_DATAGRAMS_S: u32 = 60;

/// What is credited of a channel. It only goes up.
#[derive(Clone, Copy, Debug, Default)]
struct Credited {
    /// Bytes by side.
    sent: [u64; 2],
    /// When its ends were told of each other, by the filter's clock.
    since_ns: u64,
}

/// What a listing begins with whose rules the fabric has not.
const CHANGED: &str = "# Somebody has changed the rules in the fabric. Rings are under these; \
     a load puts them in force in the fabric as well.\n";

/// The rules in force and what the broker has counted by them.
pub(crate) struct Rules {
    filter: Filter,
    /// As nft listed them when they were put in force.
    listing: String,
    /// As the kernel had them then.
    dump: Vec<u8>,
    /// How often this broker has given the fabric rules, tried to, or removed a port, whose chains went with it.
    pub(crate) given: u64,
    moved: kernel::Moved,
    runtime_dir: PathBuf,
    /// The domains'.
    network: Network,
    tally: counts::Tally,
    /// Clock of the filter: nanoseconds since then.
    start: Instant,
    /// There is something to credit.
    counts: bool,
    /// What is credited of each live channel.
    credited: BTreeMap<u64, Credited>,
    /// What an earlier broker credited of channels that nobody has shown again yet: by number and
    /// by the cookie of the end's socket, which no other process can have.
    earlier: BTreeMap<(u64, u64), u64>,
    /// When the first element with a timeout leaves.
    expiry_ns: Option<u64>,
    /// The broker's own namespace (SO_NETNS_COOKIE).
    host: u64,
    /// When the kernel is told again that connections go on.
    keep_at_ns: u64,
    /// How the fabric could be given chains of ports that came.
    chains: Again,
    /// Those ports, by their addresses, while it may lack them.
    bare: BTreeSet<Ipv4Addr>,
}

impl Rules {
    fn none(runtime_dir: PathBuf, network: Network) -> Self {
        Self {
            network,
            tally: counts::Tally::default(),
            filter: new_filter(),
            listing: String::new(),
            dump: Vec::new(),
            given: 0,
            moved: kernel::Moved::new(),
            runtime_dir,
            start: Instant::now(),
            counts: false,
            credited: BTreeMap::new(),
            earlier: BTreeMap::new(),
            expiry_ns: None,
            host: diag::own_netns_cookie().unwrap_or(0),
            keep_at_ns: KEEP_EVERY_NS,
            chains: Again::default(),
            bare: BTreeSet::new(),
        }
    }

    /// Finds again what an earlier broker had in force.
    pub(crate) fn start(config: &Config) -> Result<(Self, bool), BrokerError> {
        let mut rules = Self::none(config.runtime_dir.clone(), config.network);
        let damaged = |what: String| BrokerError::Directory {
            dir: config.runtime_dir.clone(),
            what: format!(
                "the rules of the packet filter cannot be read ({what}); mend or remove filter.json"
            ),
        };
        let stored = store::read(&config.runtime_dir).map_err(|e| damaged(e.to_string()))?;
        let Some(stored) = stored else {
            return Ok((rules, false));
        };
        let made = Made::of(&stored.rules).map_err(|fault| damaged(fault.to_string()))?;
        rules.put_in_force(made, stored.epoch);
        let credited = stored.credited.into_iter();
        rules.earlier = credited.map(|(id, end, sent)| ((id, end), sent)).collect();
        Ok((rules, true))
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.filter.epoch()
    }

    fn put_in_force(&mut self, made: Made, epoch: u64) {
        let now_ns = self.now_ns();
        self.listing = made.listing;
        self.dump = made.dump;
        self.moved = made.for_kernel.moved;
        // The same rules count on.
        if epoch != self.filter.epoch() {
            self.tally.begin(made.written);
        }
        self.filter.replace(made.rules, epoch, now_ns);
        self.counts = self.filter.counts_anything();
        self.chains.worked();
        self.bare.clear();
        self.find_expiry();
    }

    /// Whether the fabric has all chains that name a port, as far as is known.
    pub(crate) fn has_chains_of(&self, ip: Ipv4Addr) -> bool {
        !self.bare.contains(&ip)
    }

    /// Whether it may lack any.
    pub(crate) fn lacks_chains(&self) -> bool {
        self.chains.is_failing()
    }

    /// How many they are.
    fn count(&self) -> u64 {
        self.filter.rules().ids().count() as u64
    }

    /// As stacks get them.
    pub(crate) fn packed(&self) -> io::Result<Packed> {
        Packed::new(self.epoch(), &self.dump)
    }

    /// Adds what a stack has counted by the rules of this epoch.
    pub(crate) fn add_counts(&mut self, epoch: u64, counters: usize, of: &[(u32, u64, u64)]) {
        if (epoch, counters) == (self.epoch(), self.filter.counter_count()) {
            for (at, packets, bytes) in of {
                self.filter.add_count(*at, (*packets, *bytes).into());
            }
        }
    }

    /// Whether the kernel is to be told now that connections go on; then an hour later again.
    fn must_keep(&mut self, now_ns: u64) -> bool {
        let is_due = self.keep_at_ns <= now_ns;
        if is_due {
            self.keep_at_ns = now_ns + KEEP_EVERY_NS;
        }
        is_due
    }

    fn find_expiry(&mut self) {
        let now_ns = self.now_ns();
        let first = self.filter.first_expiry_ns();
        self.expiry_ns = first.filter(|at| *at > now_ns);
    }

    /// How long the loop may sleep, in nanoseconds.
    pub(crate) fn patience_ns(&self) -> u64 {
        let next = self.keep_at_ns.min(self.expiry_ns.unwrap_or(u64::MAX));
        let patience_ns = next.saturating_sub(self.now_ns());
        patience_ns.min(self.chains.patience_ns().unwrap_or(u64::MAX))
    }

    /// What the rules say of the connection of two sockets, for each time that it crosses the fabric,
    /// with which end seems to have connected. `table`: see [`BothEnds::table`].
    fn ask(
        &self,
        ends: [&SocketFacts; 2],
        table: Option<u64>,
        phase: Phase,
    ) -> Vec<(Answer, usize)> {
        let legs = self.legs(ends, table);
        let asked = legs.map(|leg| {
            let far_connects = leg.far_seems_to_connect();
            let answer = self.ask_from(&leg, far_connects, phase);
            let answer = match phase {
                // A program chooses its port, so that nothing may rest on who seems to connect.
                Phase::Established => {
                    answer.whoever_connected(&self.ask_from(&leg, !far_connects, phase))
                }
                Phase::New => answer,
            };
            (answer, leg.at ^ usize::from(far_connects))
        });
        asked.collect()
    }

    /// The worst of what the rules say; `None`: nothing, for the connection crosses nothing.
    fn decide(
        &self,
        ends: [&SocketFacts; 2],
        table: Option<u64>,
        phase: Phase,
    ) -> Option<Decision> {
        let answers = self.ask(ends, table, phase).into_iter();
        answers
            .map(|(answer, _)| answer.decision)
            .max_by_key(|decision| match decision {
                Decision::Allowed => 0,
                Decision::EachPacket { .. } => 1,
                Decision::Refused { .. } => 2,
            })
    }

    /// Where packets between two sockets cross the fabric. Where a namespace has translated them, those
    /// of each end outside it do so on their way there, under that end's names.
    fn legs<'f>(
        &self,
        ends: [&'f SocketFacts; 2],
        table: Option<u64>,
    ) -> impl Iterator<Item = Leg<'f>> + use<'f> {
        let [a, b] = ends;
        let crosses = match (table, self.filter.rules().tables.is_empty()) {
            (_, true) => [false; 2],
            (None, _) => [a.netns_cookie != b.netns_cookie, false],
            (Some(table), _) => ends.map(|end| end.netns_cookie != table),
        };
        let by_uplink = table == Some(self.host);
        let legs = [0, 1].map(|at| Leg {
            end: ends[at],
            at,
            by_uplink,
        });
        legs.into_iter().filter(move |leg| crosses[leg.at])
    }

    /// As if the end of this leg had connected, or the far one.
    fn ask_from(&self, leg: &Leg<'_>, far_connects: bool, phase: Phase) -> Answer {
        let SocketFacts { local, remote, .. } = *leg.end;
        let far = match leg.by_uplink {
            true => crossing::uplink(),
            false => crossing::port(self.network, remote.ip()),
        };
        let near = crossing::port(self.network, local.ip());
        let (ports, names) = match far_connects {
            true => ([far, near], (remote, local)),
            false => ([near, far], (local, remote)),
        };
        let tuple = crossing::tuple(leg.end.protocol, names);
        crossing::with_question_by(ports, tuple, phase, |question| {
            self.filter.ask(question, self.now_ns(), &mut Surroundings)
        })
    }

    /// See [`crossing::translate`]; of the rules in force.
    pub(crate) fn translate(&self) -> bool {
        crossing::translate(self.filter.rules())
    }

    /// Why two sockets get no channel.
    pub(crate) fn gate(&self, ends: [&SocketFacts; 2], table: Option<u64>) -> Option<Reason> {
        let decision = self.decide(ends, table, Phase::Established)?;
        let allowed = decision == Decision::Allowed && self.may_be_established(ends, table);
        (!allowed).then_some(Reason::Filter)
    }

    /// Whether the second end receives what the first one sends to everybody, at `all`. The kernel asks about a
    /// broadcast on its way out of each port: its destination is not the receiver. What rings carry is asked
    /// about under the two ends' names as well. An error: the kernel has to see each.
    pub(crate) fn hears(
        &self,
        ends @ [from, to]: [&SocketFacts; 2],
        all: SocketAddr,
    ) -> Result<bool, Reason> {
        let is_asked = !self.filter.rules().tables.is_empty();
        if !is_asked || from.netns_cookie == to.netns_cookie {
            return Ok(true);
        }
        // Counters would count other names than the kernel's.
        if self.counts || self.translate() {
            return Err(Reason::Filter);
        }
        let ports = [from, to].map(|end| crossing::port(self.network, end.local.ip()));
        let tuple = crossing::tuple(Protocol::Udp, (from.local, all));
        let answer = crossing::with_question_by(ports, tuple, Phase::New, |question| {
            self.filter.ask(question, self.now_ns(), &mut Surroundings)
        });
        match answer.decision {
            Decision::Refused { .. } => Ok(false),
            Decision::Allowed if self.gate(ends, None).is_none() => Ok(true),
            Decision::Allowed | Decision::EachPacket { .. } => Err(Reason::Filter),
        }
    }

    /// Whether the handshake is past which the rules were asked about: by these rules one of
    /// the ends could make it, or the kernel has seen it. Of UDP: whether one of the ends may send first.
    ///
    /// Two sockets prove nothing about it, whatever their state. The roots of two domains
    /// can each give the other's address to a device of their own and connect to themselves.
    fn may_be_established(&self, ends: [&SocketFacts; 2], table: Option<u64>) -> bool {
        self.legs(ends, table).all(|leg| {
            let could = |far| self.ask_from(&leg, far, Phase::New).is_allowed();
            let may_begin = could(false) || could(true);
            if leg.end.protocol == Protocol::Udp {
                // What is translated would go elsewhere, which two connected sockets show and these do not.
                return may_begin && !self.translate();
            }
            if may_begin {
                return true;
            }
            let seen = handshake_has_passed(&self.runtime_dir, leg.names());
            seen.unwrap_or_else(|reason| {
                tracing::warn!("a connection stays on the kernel path: {reason}");
                false
            })
        })
    }

    /// A listing as it was written, with what rings have carried.
    fn listed(&self, listing: &str) -> String {
        kernel::listed(listing, &self.moved, Some(&self.filter))
    }

    /// A channel begins.
    pub(crate) fn begins(&mut self, key: u64) {
        if self.counts {
            let since_ns = self.now_ns();
            let credited = Credited {
                since_ns,
                ..Credited::default()
            };
            self.credited.entry(key).or_insert(credited);
        }
    }

    /// A channel that an earlier broker made has both its ends again: what that one credited of
    /// it is counted already.
    fn goes_on(&mut self, channel: &BothEnds) {
        let sent = channel.facts.map(|end| {
            let past = self.earlier.remove(&(channel.id, end.cookie));
            past.unwrap_or(0)
        });
        let past = Credited { sent, since_ns: 0 };
        self.credited.entry(channel.key()).or_insert(past);
    }

    /// What a channel can have carried in either direction.
    fn possible(&self, key: u64) -> u64 {
        let since_ns = self.credited.get(&key).map_or(0, |past| past.since_ns);
        let age_ns = self.now_ns().saturating_sub(since_ns);
        age_ns.saturating_mul(BYTES_PER_NS_MAX)
    }

    fn credit(&mut self, channel: &BothEnds, sent: [Option<u64>; 2]) {
        self.credit_pair(channel.key(), &channel.facts, channel.table, sent);
    }

    /// Credits the counters of a channel's rules with what its ends show that they sent. Where
    /// nothing counts, it is noted: later rules count what is sent under them.
    fn credit_pair(
        &mut self,
        key: u64,
        [a, b]: &[SocketFacts; 2],
        table: Option<u64>,
        sent: [Option<u64>; 2],
    ) {
        let past = self.credited.get(&key).copied().unwrap_or_default();
        let before = past.sent;
        let now = [0, 1].map(|side| sent[side].unwrap_or(0).max(before[side]));
        let more = [0, 1].map(|side| now[side] - before[side]);
        if more == [0; 2] {
            return;
        }
        let crossed = match self.counts {
            true => self.ask([a, b], table, Phase::Established),
            false => Vec::new(),
        };
        for (answer, connecting) in crossed {
            let header_bytes = header_bytes(a);
            let packets = more.map(|bytes| {
                let packets = bytes.div_ceil(PACKET_BYTES - header_bytes);
                // The figure is a program's own word, and may be any.
                (
                    packets,
                    bytes.saturating_add(packets.saturating_mul(header_bytes)),
                )
            });
            self.filter
                .credit(&answer, packets[connecting], packets[1 - connecting]);
        }
        let past = Credited { sent: now, ..past };
        self.credited.insert(key, past);
    }
}

/// What an end has sent by its ring: what it says, but not more than its peer has taken and a
/// ring holds, and not less than its peer has taken, if that is `possible`. So no end alone can
/// fill the counters that others share with it, and none can hide what it sent by turning its
/// words back before it ends.
fn sent(own: Option<Progress>, peer: Option<Progress>, possible: u64) -> Option<u64> {
    let said = own.map(|own| own.ring_bytes_tx);
    let taken = peer.map(|peer| peer.ring_bytes_rx);
    let most = taken.unwrap_or(0).saturating_add(IN_RINGS_MAX);
    let least = taken.map(|taken| taken.min(possible));
    said.map(|said| said.min(most)).max(least)
}

/// One crossing of the fabric: between an end in a domain and what it is connected to.
struct Leg<'f> {
    end: &'f SocketFacts,
    /// Which end.
    at: usize,
    /// The far side is the host.
    by_uplink: bool,
}

impl Leg<'_> {
    fn names(&self) -> (SocketAddr, SocketAddr) {
        (self.end.local, self.end.remote)
    }

    /// Nothing that the kernel shows of a socket says who connected, but who is connected to is
    /// mostly at the lower port, for others come from the ephemeral range.
    fn far_seems_to_connect(&self) -> bool {
        self.end.local.port() < self.end.remote.port()
    }
}

fn new_filter() -> Filter {
    let seed = fordway_platform::process::random::<8>().map_or(0, u64::from_ne_bytes);
    Filter::new(fordway_filter::Config::default(), seed)
}

/// What nft and the kernel have made of a text.
#[derive(Debug)]
struct Made {
    /// As nft lists it.
    listing: String,
    /// As the kernel has it then.
    dump: Vec<u8>,
    /// What the filter carries out. Its counters begin at nothing: the kernel counts on.
    rules: rules::Rules,
    /// What they had counted when they were written.
    written: counts::Sums,
    for_kernel: kernel::ForKernel,
}

impl Made {
    fn of(text: &str) -> Result<Made, Fault> {
        let scratch = Scratch::new()?;
        scratch.load(Source::text(text))?;
        let listing = scratch.list()?;
        // The fabric gets what nft has listed. Where nft lists a rule as another one, rings are under
        // that other one, too. `fordway filter load` sends what nft has listed, so mostly there is none.
        let dump = if listing == text {
            scratch.dump()?
        } else {
            let scratch = Scratch::new()?;
            scratch.load(Source::text(&listing))?;
            scratch.dump()?
        };
        let read = rules::read(&dump).map_err(|what| Fault::Rules(what.0.to_owned()));
        let mut rules = read?;
        let for_kernel = kernel::translate(&listing, &rules).map_err(Fault::Rules)?;
        let written = counts::sums(&rules);
        rules.forget_counts();
        Ok(Made {
            written,
            listing,
            dump,
            rules,
            for_kernel,
        })
    }
}

/// What the fabric has.
struct There {
    /// As nft lists it, with the kernel's counts.
    text: String,
    /// Without the broker's own table. `None`: it cannot be read.
    rules: Option<rules::Rules>,
}

impl There {
    fn of(fabric: &Fabric) -> Result<There, FabricError> {
        let text = fabric.list_rules()?;
        let rules = read_foreign(&fabric.dump_rules()?).ok();
        Ok(There { text, rules })
    }
}

/// The fabric's rules without the broker's own table.
fn read_foreign(dump: &[u8]) -> Result<rules::Rules, rules::Damaged> {
    let mut rules = rules::read(dump)?;
    rules.tables.retain(|table| !kernel::is_own(table));
    Ok(rules)
}

/// What of the rules cannot be put in force, and how to say it.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Rules(String),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Fabric(FabricError),
    #[error("{0}")]
    File(std::io::Error),
    #[error("the kernel has the new rules and the broker the old ones: load them again ({0})")]
    Apart(String),
    /// Somebody else has changed them meanwhile.
    #[error("the rules are of another epoch by now; nothing was changed, try again")]
    Late,
}

impl Fault {
    fn reply(&self) -> Reply {
        match self {
            Fault::Rules(what) | Fault::Load(LoadError::Refused(what)) => {
                error(ErrorKind::Rules, what)
            }
            Fault::Load(LoadError::Tool(reason)) => error(crate::domains::kind_of(reason), reason),
            Fault::Load(reason) => error(ErrorKind::Internal, reason),
            Fault::Apart(_) => error(ErrorKind::Internal, self),
            Fault::Late => error(ErrorKind::Busy, self),
            Fault::Fabric(FabricError::Tool { output, .. }) => error(
                ErrorKind::Rules,
                format_args!("the kernel refuses the rules, nothing was changed: {output}"),
            ),
            Fault::Fabric(reason) => error(
                crate::domains::kind_of(reason),
                format_args!("nothing was changed: {reason}"),
            ),
            Fault::File(reason) => error(
                ErrorKind::Internal,
                format_args!("the rules cannot be kept, nothing was changed: {reason}"),
            ),
        }
    }
}

/// Why a broker does not start.
fn at_start(fault: Fault) -> BrokerError {
    match fault {
        Fault::Fabric(reason) => reason.into(),
        Fault::File(reason) => crate::doing("filter.json")(reason),
        other => BrokerError::Missing(other.to_string()),
    }
}

impl Broker {
    /// Gives the kernel what was in force under an earlier broker.
    pub(crate) fn restore_rules(&mut self) -> Result<(), BrokerError> {
        let epoch = self.rules.epoch();
        self.try_restore(epoch).map_err(at_start)?;
        tracing::info!("rules of epoch {epoch} are in force again");
        Ok(())
    }

    /// Takes over rules that the fabric has and no file knows of: a broker was killed while it put
    /// its first rules in force, or somebody has removed the file. What cannot be taken over goes, for
    /// rings would not be under it.
    pub(crate) fn adopt_rules(&mut self) -> Result<(), BrokerError> {
        match self.try_adopt() {
            Err(Fault::Rules(what) | Fault::Load(LoadError::Refused(what))) => {
                let what = what.lines().next().unwrap_or_default();
                tracing::warn!(
                    "the fabric had rules that filter.json does not have and that cannot be in force: they were removed ({what})"
                );
                self.load_kernel("", false).map_err(at_start)
            }
            other => other.map_err(at_start),
        }
    }

    fn try_adopt(&mut self) -> Result<(), Fault> {
        const EPOCH: u64 = 1;
        let Some(fabric) = self.domains.existing_fabric() else {
            return Ok(());
        };
        let there = fabric.list_rules().map_err(Fault::Fabric)?;
        if there.is_empty() {
            return Ok(());
        }
        let made = Made::of(&kernel::listed(&there, &kernel::written(&there), None))?;
        let stored = store::Stored {
            epoch: EPOCH,
            rules: made.listing.clone(),
            credited: Vec::new(),
        };
        let file = store::prepare(&self.rules.runtime_dir, &stored).map_err(Fault::File)?;
        self.load_kernel(&made.for_kernel.text, made.for_kernel.sees_ip)?;
        file.take_place().map_err(Fault::File)?;
        self.rules.put_in_force(made, EPOCH);
        self.keep_for_stacks()?;
        tracing::warn!(
            "the fabric had rules that filter.json does not have: they are in force as epoch {EPOCH}"
        );
        Ok(())
    }

    fn try_restore(&mut self, epoch: u64) -> Result<(), Fault> {
        self.restore_kernel(epoch)?;
        self.keep_for_stacks()
    }

    /// The fabric has counted on and kept what packets added, if it is the one that had these rules.
    /// One that was laid anew, or that somebody changed, gets them as they were written.
    fn restore_kernel(&mut self, epoch: u64) -> Result<(), Fault> {
        let of_fabric = self.made_of_fabric()?;
        let was_other = of_fabric.is_none();
        let mut made = match of_fabric {
            Some(made) => made,
            None => Made::of(&self.rules.listed(&self.rules.listing))?,
        };
        let loaded = self.load_kernel(&made.for_kernel.text, made.for_kernel.sees_ip);
        if let Err(refused) = loaded {
            if !matches!(refused, Fault::Fabric(FabricError::Tool { .. })) {
                return Err(refused);
            }
            // Before Linux 6.16 the kernel drops chains with their device, and takes none of a device
            // that is not there.
            let fabric = self.domains.fabric().map_err(Fault::Fabric)?;
            let is_there = |device: &str| fabric.has_device(device);
            let waiting = made.for_kernel.without_absent(&made.rules, is_there);
            if waiting.is_empty() {
                return Err(refused);
            }
            self.load_kernel(&made.for_kernel.text, made.for_kernel.sees_ip)?;
            for chain in waiting {
                tracing::warn!("chain {chain} waits for the port of a domain that is not there");
            }
        }
        if was_other {
            tracing::warn!("the fabric had other rules than the broker, whose are in force now");
        }
        self.rules.put_in_force(made, epoch);
        Ok(())
    }

    /// The broker begins, and has found no stack yet: those that it finds or starts get these rules.
    fn keep_for_stacks(&mut self) -> Result<(), Fault> {
        let packed = self.rules.packed().map_err(Fault::File)?;
        self.stacks.set_rules(packed);
        Ok(())
    }

    /// A domain has got its port, or another device as its port: chains that name it see its packets from now on, also where the
    /// kernel had dropped them with the device before. Until the fabric has them, no part begins that has the port. That is the fabric's
    /// matter alone. Nobody waits for stacks here: one that is just being started waits for this broker.
    pub(crate) fn port_came(&mut self, ip: Ipv4Addr) {
        let port = port_of(ip);
        let tables = self.rules.filter.rules().tables.iter();
        let mut bases = tables
            .flat_map(|table| &table.chains)
            .filter_map(|chain| chain.base.as_ref());
        if bases.any(|base| base.devices.contains(&port)) {
            self.rules.bare.insert(ip);
            self.restore_chains();
        }
    }

    /// Gives the fabric chains that it may lack; if that fails, again and again, until it has them.
    fn restore_chains(&mut self) {
        let was_lacking = self.rules.chains.is_failing();
        match self.restore_kernel(self.rules.epoch()) {
            Ok(()) if was_lacking => tracing::info!("the fabric has the chains of all ports again"),
            Ok(()) => {}
            Err(fault) => {
                if self.rules.chains.failed() {
                    tracing::warn!(
                        "the fabric may lack chains of a port that came; that is tried again: {fault}"
                    );
                }
            }
        }
    }

    /// What the fabric has, if these are the rules in force.
    fn made_of_fabric(&mut self) -> Result<Option<Made>, Fault> {
        let text = self.fabric_listing().map_err(Fault::Fabric)?;
        Ok(text.and_then(|text| Made::of(&text).ok()))
    }

    fn load_kernel(&mut self, text: &str, sees_ip: bool) -> Result<(), Fault> {
        self.rules.given += 1;
        let fabric = self.domains.fabric().map_err(Fault::Fabric)?;
        fabric.load_rules(text, sees_ip).map_err(Fault::Fabric)
    }

    /// `FilterCounts`.
    pub(crate) fn filter_counts(&mut self) -> Reply {
        match self.look_at_counts() {
            Ok(()) => Reply::FilterCounts {
                epoch: self.rules.epoch(),
                counts: self.rules.tally.told(),
            },
            Err(fault) => fault.reply(),
        }
    }

    fn look_at_counts(&mut self) -> Result<(), Fault> {
        if self.rules.filter.rules().tables.is_empty() {
            return Ok(());
        }
        let fabric = self.domains.fabric().map_err(Fault::Fabric)?;
        let dump = fabric.dump_rules().map_err(Fault::Fabric)?;
        let there = read_foreign(&dump).map_err(|what| Fault::Rules(what.0.to_owned()))?;
        self.credit_all();
        self.rules.tally.look(&there, &self.rules.filter);
        Ok(())
    }

    /// `FilterList`.
    pub(crate) fn filter_list(&mut self) -> Reply {
        match self.fabric_listing() {
            Ok(text) => Reply::Filter(FilterRules {
                epoch: self.rules.epoch(),
                text: text.unwrap_or_else(|| {
                    let text = self.rules.listed(&self.rules.listing);
                    format!("{CHANGED}{text}")
                }),
            }),
            Err(reason) => error(crate::domains::kind_of(&reason), &reason),
        }
    }

    /// The rules in force with the counts of both paths. `None`: the fabric has others, which
    /// somebody has put there past the broker.
    fn fabric_listing(&mut self) -> Result<Option<String>, FabricError> {
        if self.rules.filter.rules().tables.is_empty() {
            return Ok(Some(String::new()));
        }
        let there = There::of(self.domains.fabric()?)?;
        Ok(self.listing_of(&there))
    }

    /// The same, of what the kernel has listed just now.
    fn listing_of(&mut self, there: &There) -> Option<String> {
        self.credit_all();
        let in_force = self.rules.filter.rules();
        if in_force.tables.is_empty() {
            return Some(String::new());
        }
        let is_alike = there.rules.as_ref()?.is_alike(in_force);
        is_alike.then(|| self.rules.listed(&there.text))
    }

    /// Credits what every live channel has carried so far.
    fn credit_all(&mut self) {
        if self.rules.counts {
            self.collect_counts();
        }
        let channels: Vec<BothEnds> = self.registry.channels_with_both_ends().collect();
        for channel in channels {
            self.credit_channel(&channel);
        }
    }

    /// What the next broker is not to credit again.
    fn credited(&self) -> Vec<(u64, u64, u64)> {
        let live = self.registry.channels_with_both_ends().flat_map(|channel| {
            let past = self.rules.credited.get(&channel.key());
            let sent = past.map_or([0; 2], |past| past.sent);
            [0, 1].map(|side| (channel.id, channel.facts[side].cookie, sent[side]))
        });
        let earlier = self.rules.earlier.iter();
        let earlier = earlier.map(|(&(id, end), &sent)| (id, end, sent));
        let all = live.chain(earlier);
        all.filter(|(_, _, sent)| *sent > 0).collect()
    }

    fn credit_channel(&mut self, channel: &BothEnds) {
        let Some(views) = self.registry.views_of(channel) else {
            return;
        };
        let [a, b] = views.map(|view| self.memory.progress(&view));
        let possible = self.rules.possible(channel.key());
        let sent = [sent(a, b, possible), sent(b, a, possible)];
        self.rules.credit(channel, sent);
    }

    /// A channel is about to lose an end.
    pub(crate) fn credit_ending(&mut self, channel: Option<BothEnds>) {
        if let Some(channel) = channel {
            if self.rules.counts {
                self.credit_channel(&channel);
            }
            self.rules.credited.remove(&channel.key());
        }
    }

    /// Asks the rules in force about every live channel, and about what was held back.
    pub(crate) fn look_again(&mut self, phase: Phase) -> Looked {
        let mut looked = Looked::default();
        let (mut moved, mut cut, mut by) = (Vec::new(), Vec::new(), BTreeSet::new());
        for channel in self.registry.channels_with_both_ends() {
            let [a, b] = &channel.facts;
            // A UDP socket is no pair's alone: none is ended.
            if a.protocol == Protocol::Udp {
                match self.rules.gate([a, b], channel.table) {
                    None => looked.stay += 1,
                    Some(_) => moved.push(channel),
                }
                continue;
            }
            match self.rules.decide([a, b], channel.table, phase) {
                None | Some(Decision::Allowed) => looked.stay += 1,
                Some(Decision::EachPacket { .. }) => moved.push(channel),
                Some(Decision::Refused { rule, .. }) => {
                    by.insert(rule);
                    cut.push(channel);
                }
            }
        }
        (looked.moved, looked.cut) = (moved.len() as u64, cut.len() as u64);
        self.leave(&moved, &cut);
        self.audit_cut(&cut, by);
        self.look_at_relayed();
        self.ask_anew_about_everybody();
        let rules = &self.rules;
        let gate = &mut |a: &_, b: &_, table| {
            let reason = rules.gate([a, b], table);
            looked.paired += u64::from(reason.is_none());
            reason
        };
        let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
        let witness = &mut |process, facts: &_| older.still_true(process, facts);
        let translate = &mut |question: &_| older.translate(question);
        let registry = &mut self.registry;
        let actions = registry.retry_held_back(Reason::Filter, witness, gate, translate);
        self.carry_out(actions);
        looked
    }

    /// Asks about the channel that a process has just shown again.
    pub(crate) fn look_at(&mut self, channel: &BothEnds) {
        self.rules.goes_on(channel);
        let [a, b] = &channel.facts;
        let (ends, table) = ([a, b], channel.table);
        if a.protocol == Protocol::Udp {
            if self.rules.gate(ends, table).is_some() {
                self.leave(&[*channel], &[]);
            }
            return;
        }
        match self.rules.decide(ends, table, Phase::Established) {
            None => {}
            Some(Decision::Allowed) if self.rules.may_be_established(ends, table) => {}
            Some(Decision::Allowed | Decision::EachPacket { .. }) => self.leave(&[*channel], &[]),
            Some(Decision::Refused { rule, .. }) => {
                self.leave(&[], &[*channel]);
                // Programs choose how often they show one.
                if self.grumbles.may_log(Instant::now()) {
                    self.audit_cut(&[*channel], BTreeSet::from([rule]));
                }
            }
        }
    }

    /// Channels whose sockets are ended because rules refuse them.
    fn audit_cut(&self, cut: &[BothEnds], by: BTreeSet<RuleId>) {
        if cut.is_empty() {
            return;
        }
        let ends = cut.iter().flat_map(|channel| &channel.facts);
        let ends: BTreeSet<u64> = ends.map(|end| end.netns_cookie).collect();
        let names = ends.iter().map(|end| self.registry.name_of_netns(*end));
        let names = names.collect::<Vec<_>>().join(",");
        let rules = by.into_iter().map(|rule| self.rules.filter.describe(rule));
        let rules = rules.collect::<Vec<_>>().join(", ");
        let what = Record {
            domain: Some(&names),
            ruleset: Some(self.rules.epoch()),
            rule: Some(&rules),
            cut: Some(cut.len() as u64),
            ..Record::of(Event::Cut)
        };
        self.audit(what, "connections that the rules refuse were cut");
    }

    /// The kernel goes on knowing the connections on rings that cross the fabric, and those that
    /// it has translated.
    pub(crate) fn keep_connections(&mut self, protocol: Protocol, seconds: u32) {
        let mut names = Vec::new();
        let mut translated: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for channel in self.registry.channels_with_both_ends() {
            let [a, b] = &channel.facts;
            // Between guests no packet crosses the fabric.
            let is_of_guest = |end: &SocketFacts| guest_of_place(end.netns_cookie).is_some();
            if a.protocol != protocol || is_of_guest(a) || is_of_guest(b) {
                continue;
            }
            let legs = self.rules.legs([a, b], channel.table);
            names.extend(legs.map(|leg| leg.names()));
            if let Some(table) = channel.table {
                let of_table = translated.entry(table).or_default();
                of_table.push((a.local, a.remote));
            }
        }
        for (table, names) in translated {
            self.places.keep(table, &names, seconds);
        }
        if names.is_empty() {
            return;
        }
        let dir = &self.rules.runtime_dir;
        if let Err(reason) = keep_connections(dir, protocol, &names, seconds) {
            tracing::warn!("connections on rings may be forgotten by the kernel: {reason}");
        }
    }

    /// When the time of an element is over, or an hour, or chains are lacking.
    pub(crate) fn on_time(&mut self) {
        let now_ns = self.rules.now_ns();
        if self.rules.chains.is_due() {
            self.restore_chains();
            self.settle_stacks();
        }
        if self.rules.must_keep(now_ns) {
            self.keep_connections(Protocol::Tcp, KEEP_S);
        }
        if self.rules.expiry_ns.is_some_and(|at| at <= now_ns) {
            self.look_again(Phase::Established);
            self.rules.find_expiry();
        }
    }

    /// Moves channels to the kernel path; of those in `cut` the sockets are ended too.
    fn leave(&mut self, moved: &[BothEnds], cut: &[BothEnds]) {
        for channels in [cut, moved] {
            let actions = self.registry.downgrade_these(channels, Reason::Filter);
            self.carry_out(actions);
        }
        let actions = self.registry.break_off_past_stacks(cut);
        self.carry_out(actions);
        let mut victims: BTreeMap<u64, Vec<Named>> = BTreeMap::new();
        let ends = cut.iter().flat_map(|channel| &channel.facts);
        for facts in ends.filter(|end| end.shown.pair.is_none()) {
            victims.entry(facts.netns_cookie).or_default().push(Named {
                protocol: facts.protocol,
                local: facts.local,
                remote: facts.remote,
                cookie: facts.cookie,
            });
        }
        let of_each: Vec<_> = victims
            .into_iter()
            .filter_map(|(netns_cookie, victims)| {
                let domain = self.registry.domain_of_netns(netns_cookie)?;
                Some((self.domains.open(domain)?, netns_cookie, victims))
            })
            .collect();
        // Ending a socket sends a reset and wakes its program: the others shall not wait
        // for that. No byte passes meanwhile: the rings are left, and the packets of the
        // kernel path meet the kernel's rules.
        // A program can hold its own socket's lock, and so this up: a thread for each domain.
        for (namespace, netns_cookie, victims) in of_each {
            let end = move || {
                if let Err(reason) = diag::destroy_in(namespace, netns_cookie, &victims) {
                    tracing::warn!("sockets that the rules refuse cannot be ended: {reason}");
                }
            };
            if let Err(reason) = std::thread::Builder::new().spawn(end) {
                tracing::warn!("sockets that the rules refuse are not ended: {reason}");
            }
        }
    }

    /// The broker ends: what went by rings is to be counted on by the next one.
    pub(crate) fn save_rules(&mut self) {
        if self.rules.filter.rules().tables.is_empty() {
            return;
        }
        if let Err(fault) = self.try_save() {
            tracing::warn!("the counts of the rules are not kept: {fault}");
        }
    }

    fn try_save(&mut self) -> Result<(), Fault> {
        let Some(made) = self.made_of_fabric()? else {
            tracing::warn!(
                "the fabric has other rules than the broker; filter.json stays as it is"
            );
            return Ok(());
        };
        // The kernel counts on from there, whoever is the next broker.
        self.load_kernel(&made.for_kernel.text, made.for_kernel.sees_ip)?;
        let stored = store::Stored {
            epoch: self.rules.epoch(),
            rules: made.listing,
            credited: self.credited(),
        };
        let file = store::prepare(&self.rules.runtime_dir, &stored).map_err(Fault::File)?;
        file.take_place().map_err(Fault::File)
    }
}

impl Rules {
    /// The fabric is gone, and its rules with it.
    pub(crate) fn forget(&self) {
        store::forget(&self.runtime_dir);
    }
}

#[cfg(test)]
mod tests;
