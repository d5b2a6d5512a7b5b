//! The administrator's protocol: one JSON object a line, request then reply, over
//! the stream sockets `admin.sock` and `read.sock` in the runtime directory. On the first
//! one only the broker's own user and root are answered; on the second one a group as well, and
//! only what changes nothing ([`Request::only_reads`]). Also the one home of what `--json`
//! prints, so that the schema version covers both.

use crate::StackOptions;
use fordway_abi::control::Protocol;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Version of every JSON document that Fordway prints; docs/json.md says when it rises.
pub const SCHEMA: u32 = 1;
/// The socket of this protocol, in the runtime directory.
pub const ADMIN_SOCKET: &str = "admin.sock";
/// The socket for those who only read, in the runtime directory.
pub const READ_SOCKET: &str = "read.sock";
/// Who is in this group may read what root's broker knows; where there is no such group, [`READER`] is in its place.
pub const READERS: &str = "fordway";
/// The user as whom root's `fordway serve` reads, above those of stacks and drivers: nobody gives the number out (systemd's "Users, Groups, UIDs and GIDs").
pub const READER: u32 = 0x7800_0000;
/// The directory of the runtime directory that containers mount. It holds the control
/// socket, a hosts file and [`fordway_abi::INSISTED_FILE`] alone: a mounted directory, unlike a mounted socket, shows the
/// new socket of a broker that was started again.
pub const CONTROL_DIR: &str = "control";
/// The socket that shims speak to, in the runtime directory.
pub const CONTROL_SOCKET: &str = "control/control.sock";

/// What an administrator may ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Who are you?
    Info,
    /// Make a domain: register name and address, lay its namespace, veth and port.
    /// An existing domain of this name is returned as it is (an unlike `ip` is an error).
    DomainAdd {
        /// Host-name syntax, at most 63 bytes.
        name: String,
        /// `None`: the next free address of the broker's network.
        ip: Option<Ipv4Addr>,
        /// Ports of the host that are to lead to it beside those that do, each as `--publish` takes it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        publish: Vec<String>,
    },
    /// As `DomainAdd`, of a domain that a network stack of its own serves. An existing one has to have one like this.
    DomainAddWithStack {
        /// As there.
        name: String,
        /// As there.
        ip: Option<Ipv4Addr>,
        /// As there.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        publish: Vec<String>,
        /// What the stack is to be.
        stack: StackOptions,
    },
    /// Register a namespace that someone else made (a container), so that its programs may use rings.
    DomainAttach {
        /// Name of the domain.
        name: String,
        /// The address that the namespace was given.
        ip: Ipv4Addr,
        /// The IPv6 address that it was given, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ip6: Option<Ipv6Addr>,
        /// A process in that namespace.
        pid: i32,
    },
    /// All domains.
    DomainList,
    /// Remove a domain and its namespace.
    DomainRemove {
        /// Name of the domain.
        name: String,
        /// Also when programs are still running in it.
        force: bool,
    },
    /// Every connection.
    Connections,
    /// Move a channel (or all: `None`) to the kernel path.
    Downgrade {
        /// From [`Connection::channel`], of the last listing.
        channel: Option<u64>,
    },
    /// Put rules of the packet filter in force, in all enforcers or in none.
    FilterLoad {
        /// All of them, as nft lists them: nothing is included.
        text: String,
        /// Only if the rules in force are of this epoch still.
        epoch: Option<u64>,
    },
    /// The rules in force, with what they have counted.
    FilterList,
    /// What rules of the filter with a counter have counted, by their verdict.
    FilterCounts,
    /// As `FilterList`; then a `FilterChange` for each change, until the connection ends.
    FilterMonitor,
    /// What is logged; with a level, from now on.
    Log {
        /// As [`crate::log::check`] takes it.
        level: Option<String>,
    },
    /// End the broker; domains are removed unless `keep_domains`. The reply comes at
    /// once; the connection ends when all is done and the sockets are gone.
    Down {
        /// Leave the namespaces as they are.
        keep_domains: bool,
    },
}

impl Request {
    /// Whether it is answered on [`READ_SOCKET`]: it changes nothing, and what it shows is no rule.
    pub fn only_reads(&self) -> bool {
        match self {
            Request::Info | Request::DomainList | Request::Connections | Request::FilterCounts => {
                true
            }
            Request::DomainAdd { .. }
            | Request::DomainAddWithStack { .. }
            | Request::DomainAttach { .. }
            | Request::DomainRemove { .. }
            | Request::Downgrade { .. }
            | Request::FilterLoad { .. }
            | Request::FilterList
            | Request::FilterMonitor
            | Request::Log { .. }
            | Request::Down { .. } => false,
        }
    }
}

/// What rules with one verdict have counted since the broker has begun to look. It never goes down, also when rules change: but
/// what is counted between the last look at rules and their end is in no count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterCount {
    /// What the rules do with a packet.
    pub verdict: CountedBy,
    /// Packets, on both paths.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a rule with a counter does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountedBy {
    /// Lets it pass.
    Accept,
    /// Drops it.
    Drop,
    /// Refuses it, and says so.
    Reject,
    /// Something else: other rules decide.
    Other,
}

impl CountedBy {
    /// In the order of their numbers.
    pub const ALL: [CountedBy; 4] = [
        CountedBy::Accept,
        CountedBy::Drop,
        CountedBy::Reject,
        CountedBy::Other,
    ];

    /// As in JSON.
    pub fn word(self) -> &'static str {
        ["accept", "drop", "reject", "other"][self as usize]
    }
}

/// The rules in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilterRules {
    /// Goes up with each change.
    pub epoch: u64,
    /// As nft lists them.
    pub text: String,
}

/// A change of the rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilterChange {
    /// Of the rules after it.
    pub epoch: u64,
    /// Lines that went (`-`) and came (`+`), each with table and chain or set.
    pub changes: Vec<String>,
    /// What became of the live channels.
    pub channels: Looked,
    /// What became of the stacks of domains that have one of their own.
    #[serde(default)]
    pub stacks: Taken,
    /// From the kernel's rules being in force to the last channel told and the last stack heard, in microseconds.
    pub look_us: u64,
}

/// Stacks that were told of new rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Have them.
    pub changed: u64,
    /// Did not say so in time: killed, and started with them.
    pub restarted: u64,
}

/// Live channels that new rules were asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// Allowed as before.
    pub stay: u64,
    /// On their way to the kernel path: a rule needs each packet.
    pub moved: u64,
    /// Ended: no packet would pass.
    pub cut: u64,
    /// Given rings that earlier rules had held back.
    pub paired: u64,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// Done, nothing to say.
    Done,
    /// To `Info`.
    Info(Info),
    /// To `DomainAdd`, `DomainAttach`.
    Domain(Domain),
    /// To `DomainList`.
    Domains {
        /// In order of their ids.
        domains: Vec<Domain>,
    },
    /// To `Connections`.
    Connections {
        /// One for each kernel socket that is in a connected state.
        connections: Vec<Connection>,
    },
    /// To `FilterList`, and first to `FilterMonitor`.
    Filter(FilterRules),
    /// To `FilterCounts`.
    FilterCounts {
        /// Of the rules in force.
        epoch: u64,
        /// One for each verdict.
        counts: Vec<FilterCount>,
    },
    /// To `Log`.
    Log {
        /// What is logged now.
        level: String,
    },
    /// To `FilterLoad`, and to who monitors.
    FilterChange(FilterChange),
    /// It was not done.
    Error {
        /// Which exit code the command line gives.
        kind: ErrorKind,
        /// One line that says what to do.
        message: String,
    },
}

/// Kinds of refusal; the command line has one exit code for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Malformed name, address or request.
    BadInput,
    /// The broker (or the caller) lacks a privilege.
    Privilege,
    /// A program or kernel feature is missing.
    Missing,
    /// The name or address is taken.
    Taken,
    /// No such domain or channel.
    NotFound,
    /// Programs are still running in it, or somebody else was first.
    Busy,
    /// Rules that are wrong, or that cannot be in force.
    Rules,
    /// Anything else.
    Internal,
}

/// What a broker says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Fordway's version.
    pub version: String,
    /// [`fordway_abi::ABI_VERSION`].
    pub abi_version: u32,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Whether it can make domains (root) or only serves `--here`.
    pub domains: bool,
    /// Network of the fabric, in CIDR form.
    pub network: String,
    /// Its IPv6 network, unless domains have IPv4 only.
    #[serde(default)]
    pub network6: Option<String>,
    /// Processes that speak to it.
    pub processes: u32,
    /// Live channels.
    pub channels: u32,
    /// Connections that were given a channel so far: TCP, both ends in programs with the
    /// library, and both ends offered, which takes enough calls that move data.
    #[serde(default)]
    pub paired_total: u64,
    /// Those of them that carried bytes through rings, or should have: both ends have made
    /// [`fordway_registry::ENOUGH_CALLS`] calls that move data since they have their channel.
    #[serde(default)]
    pub eligible_total: u64,
    /// Those of them of which bytes went through a ring.
    #[serde(default)]
    pub carried_total: u64,
    /// Bytes that went through rings so far, closed channels included; each byte counted once, by its sender.
    #[serde(default)]
    pub ring_bytes_total: u64,
    /// The same by domain and direction.
    #[serde(default)]
    pub carried: Vec<Carried>,
    /// Ring memory that all programs have taken, by their own words.
    #[serde(default)]
    pub ring_memory_bytes: u64,
    /// Protocol errors of shims so far.
    pub protocol_errors: u64,
    /// How often a process said that its peer broke the protocol of their channel.
    #[serde(default)]
    pub channel_errors: u64,
}

/// Bytes that went through rings so far, by ends of one domain's programs. They never go down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// `None`: of programs in no domain, all together.
    pub domain: Option<String>,
    /// Sent.
    pub tx_bytes: u64,
    /// Received.
    pub rx_bytes: u64,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its number; never used twice by one broker. 0 is the broker's own namespace.
    pub id: u32,
    /// Its address (`None` for the host's own namespace, used by `--here`, without an uplink).
    pub ip: Option<Ipv4Addr>,
    /// Prefix length of the fabric's network.
    pub prefix: u8,
    /// Its IPv6 address, if it has one.
    #[serde(default)]
    pub ip6: Option<Ipv6Addr>,
    /// Its CID of AF_VSOCK, if it has one.
    #[serde(default)]
    pub cid: Option<u32>,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
    /// File through which the namespace is entered (a bind mount), if the broker made it.
    pub netns_path: Option<String>,
    /// Its /etc/hosts, if the broker made one.
    pub hosts_path: Option<String>,
    /// Its network stack, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<Stack>,
    /// Ports of the host that lead to it, each as `--publish` takes it.
    #[serde(default)]
    pub published: Vec<String>,
    /// Processes in it (for a namespace that the broker did not make: those that speak to it).
    pub processes: u32,
    /// Ring memory that its programs have taken, by their own words.
    #[serde(default)]
    pub ring_memory_bytes: u64,
    /// Most that they may take.
    #[serde(default)]
    pub ring_memory_bytes_max: u64,
}

/// The network stack of a domain that has one of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// What it has.
    #[serde(flatten)]
    pub options: StackOptions,
    /// Where programs ask it for sockets.
    pub control_path: String,
    /// Its processes that run: the driver, unless that is in the stack's, and the stack.
    pub pids: Vec<i32>,
    /// How often one of them was started again.
    pub restarts: u64,
}

fn tcp() -> String {
    Protocol::Tcp.word().to_owned()
}

/// A connection as one of its ends sees it; two ends in Fordway give two rows. Of UDP, a pair of sockets
/// that send each other datagrams; of `unix`, the pair between a program and its own stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// `tcp`, `udp` or `unix`. A broker that does not say it lists TCP.
    #[serde(default = "tcp")]
    pub protocol: String,
    /// Domain of this end.
    pub domain: String,
    /// Domain of the far end, if it is one of ours.
    pub peer_domain: Option<String>,
    /// `address:port` of this end; of `unix` `socket:[INODE]`.
    pub local: String,
    /// `address:port` of the far end.
    pub remote: String,
    /// TCP state as `ss` names it (`ESTAB`, `CLOSE-WAIT`, ...). A pair of UDP has `ESTAB`.
    pub state: String,
    /// `fast`, `kernel` or `stack`.
    pub path: String,
    /// Reason word if `kernel`.
    pub reason: Option<String>,
    /// Process of this end, if known.
    pub pid: Option<i32>,
    /// Whether this end is a program's with the library.
    pub joined: bool,
    /// SO_COOKIE of the socket, in decimal: it may have all 64 bits.
    pub cookie: String,
    /// Number of the channel, if it has or had one; another broker gives another.
    pub channel: Option<u64>,
    /// Bytes sent through the ring.
    pub ring_bytes_tx: u64,
    /// Bytes received through the ring.
    pub ring_bytes_rx: u64,
    /// Datagrams of this end for which the ring had no room, of the channel that it has.
    #[serde(default)]
    pub lost_tx: u64,
    /// Bytes sent through the kernel, or the domain's own stack; of UDP, which neither counts, 0.
    pub kernel_bytes_tx: u64,
    /// Bytes received likewise.
    pub kernel_bytes_rx: u64,
}
