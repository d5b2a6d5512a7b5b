//! What a stack is told when it is made: its link, its bounds, how its connections behave.

#[cfg(feature = "udp")]
use core::net::IpAddr;

use crate::{Mac, Micros, SECOND_US};

/// The network card, as far as the stack must know it.
#[derive(Clone, Debug)]
pub struct Link {
    pub mac: Mac,
    /// Largest IP packet that the link carries.
    pub mtu_bytes: usize,
    pub offloads: Offloads,
}

/// What the other side of the link does for us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// TCP and UDP checksums of frames to be sent are completed behind us.
    pub tx_checksum_v4: bool,
    pub tx_checksum_v6: bool,
    /// TCP segments larger than the MSS are cut behind us (needs the checksum too).
    pub gso_v4: bool,
    pub gso_v6: bool,
    /// Largest IP packet that may be handed over to be cut; 0 stands for 65,535.
    pub gso_bytes_max: usize,
}

/// Bounds on all that a foreign host can make grow.
#[derive(Clone, Debug)]
pub struct Limits {
    pub flows_max: usize,
    /// Connections that their programs have closed, and that are not over.
    pub left_max: usize,
    /// Buffers of all connections together: 8 KB for each, and what they grow by. Beyond it none
    /// is made, taken or grows.
    pub tcp_buffer_bytes_max: usize,
    /// Connections that are half open, over all listeners. Beyond them SYN cookies answer.
    pub half_open_max: usize,
    pub time_wait_max: usize,
    pub neighbors_max: usize,
    /// Neighbors that are being asked for at one time.
    pub neighbors_pending_max: usize,
    /// Packets that wait for one neighbor's address.
    pub neighbor_packets_max: usize,
    /// Replies and datagrams that wait for `transmit`.
    pub outbox_bytes_max: usize,
    /// Datagrams that wait for one UDP port's reader.
    pub udp_queue_bytes_max: usize,
    /// Datagrams that wait for all of them.
    pub udp_bytes_max: usize,
    /// Groups that sockets are in.
    pub groups_max: usize,
    /// Bytes of all packets that are being put together from fragments.
    pub reassembly_bytes_max: usize,
    pub reassembly_packets_max: usize,
    /// Ways on which a router takes less than our link.
    pub paths_max: usize,
    /// Default routers, prefixes and addresses that router advertisements bring, of each.
    pub advertised_max: usize,
    /// ICMP errors that we send.
    pub icmp_errors_per_second: u32,
    /// Ping replies that wait for their reader.
    pub ping_replies_max: usize,
    /// Connections that the packet filter tracks.
    pub tracked_max: usize,
    /// Questions to name servers at one time.
    pub dns_queries_max: usize,
}

impl Limits {
    /// Limits for a program that may use this much memory in all: the stack stays below half of
    /// it whatever comes from the network.
    pub fn for_memory(bytes: usize) -> Limits {
        let most = Limits::default();
        // How many of something that takes `each` bytes may take a share of `1 / share`.
        let fits = |share: usize, each: usize, max: usize| (bytes / share / each).clamp(16, max);
        Limits {
            flows_max: fits(16, 1024, most.flows_max),
            left_max: fits(64, 1024, most.left_max),
            tcp_buffer_bytes_max: (bytes / 4).min(most.tcp_buffer_bytes_max),
            half_open_max: fits(64, 256, most.half_open_max),
            time_wait_max: fits(64, 256, most.time_wait_max),
            neighbors_max: fits(128, 256, most.neighbors_max),
            neighbors_pending_max: fits(256, 16 * 1024, most.neighbors_pending_max),
            outbox_bytes_max: (bytes / 32).min(most.outbox_bytes_max),
            udp_queue_bytes_max: (bytes / 64).min(most.udp_queue_bytes_max),
            udp_bytes_max: (bytes / 32).min(most.udp_bytes_max),
            reassembly_bytes_max: (bytes / 64).min(most.reassembly_bytes_max),
            paths_max: fits(512, 128, most.paths_max),
            tracked_max: fits(32, 1024, most.tracked_max),
            ..most
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            flows_max: 16_384,
            left_max: 4_096,
            tcp_buffer_bytes_max: 1 << 30,
            half_open_max: 1_024,
            time_wait_max: 4_096,
            neighbors_max: 512,
            neighbors_pending_max: 32,
            neighbor_packets_max: 16,
            outbox_bytes_max: 512 * 1024,
            udp_queue_bytes_max: 256 * 1024,
            udp_bytes_max: 64 * 1024 * 1024,
            groups_max: 256,
            reassembly_bytes_max: 512 * 1024,
            reassembly_packets_max: 32,
            paths_max: 256,
            advertised_max: 8,
            icmp_errors_per_second: 100,
            ping_replies_max: 64,
            tracked_max: 16_384,
            dns_queries_max: 16,
        }
    }
}

/// How a connection behaves. Buffers begin without memory and grow with what is in them, up to
/// these sizes and to what [`Limits::tcp_buffer_bytes_max`] leaves: a connection that is idle
/// costs little, however large its buffers may become.
#[cfg(feature = "tcp")]
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    pub receive_bytes: usize,
    pub send_bytes: usize,
    /// Nagle's algorithm: small segments wait while others are in flight.
    pub is_nagle: bool,
    /// How long an acknowledgement may wait for company; `None` never waits.
    pub ack_delay_us: Option<Micros>,
    /// Asks a silent peer whether it is there.
    pub keepalive: Option<Keepalive>,
    /// Gives up when the peer has been silent so long while we waited for an acknowledgement.
    pub user_timeout_us: Micros,
    pub congestion: Congestion,
    /// Time to live or hop limit; `None` is what the link says, else 64.
    pub hop_limit: Option<u8>,
    /// Type of service or traffic class.
    pub class: u8,
}

/// Probes of a connection on which nothing is under way (RFC 1122, 4.2.3.6). The connection ends where the probe behind the last one
/// would be due. At least one probe goes.
#[cfg(feature = "tcp")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle_us: Micros,
    /// Silence before each further probe.
    pub interval_us: Micros,
    /// Probes without an answer.
    pub probes: u32,
}

#[cfg(feature = "tcp")]
impl Keepalive {
    /// Three probes, the first one and the others after as much silence.
    pub fn each(every_us: Micros) -> Keepalive {
        Keepalive {
            idle_us: every_us,
            interval_us: every_us,
            probes: 3,
        }
    }
}

#[cfg(feature = "tcp")]
impl TcpOptions {
    pub(crate) fn receive_bytes(&self) -> usize {
        self.receive_bytes.clamp(512, 1 << 28)
    }

    pub(crate) fn send_bytes(&self) -> usize {
        self.send_bytes.clamp(512, 1 << 28)
    }
}

#[cfg(feature = "tcp")]
impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            receive_bytes: 32 * 1024,
            send_bytes: 64 * 1024,
            is_nagle: true,
            ack_delay_us: Some(10_000),
            keepalive: None,
            user_timeout_us: 120 * SECOND_US,
            congestion: Congestion::Cubic,
            hop_limit: None,
            class: 0,
        }
    }
}

/// How a UDP socket sends, and who may bind its port besides.
#[cfg(feature = "udp")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Other sockets that say so too may bind the same port (SO_REUSEPORT): what one peer sends
    /// goes to one of them.
    pub shares_port: bool,
    /// Of those who share a port each says so: else the one that was bound last gets all
    /// (SO_REUSEADDR without SO_REUSEPORT).
    pub spreads: bool,
    /// Time to live or hop limit; `None` is what the link says, else 64.
    pub hop_limit: Option<u8>,
    pub group_hop_limit: u8,
    /// Sources of what goes to groups of this or that version of IP, from a socket that is bound
    /// to no address (IP_MULTICAST_IF). By a loopback address it stays with us.
    pub group_sources: [Option<IpAddr>; 2],
    /// What goes to a group that we are in comes back to us (IP_MULTICAST_LOOP).
    pub loops_groups: bool,
    /// Hears all groups that somebody here is in, not its own alone (IP_MULTICAST_ALL).
    pub hears_all_groups: bool,
    /// Type of service or traffic class.
    pub class: u8,
}

#[cfg(feature = "udp")]
impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions {
            shares_port: false,
            spreads: true,
            hop_limit: None,
            group_hop_limit: 1,
            group_sources: [None; 2],
            loops_groups: true,
            hears_all_groups: true,
            class: 0,
        }
    }
}

/// What holds a sender back besides the receiver's window.
#[cfg(feature = "tcp")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438.
    #[default]
    Cubic,
    /// Towards a neighbor nothing until the first loss, as no router between may lack room;
    /// then, and through a router always, as RFC 9438. (FreeBSD's
    /// net.inet.tcp.local_slowstart_flightsize was of the same mind.)
    UntilLoss,
    /// Nothing: for a link that ends on the same host.
    None,
}

/// What a stack is made from. `seed` is secret and random: hash tables, sequence numbers, ports
/// and SYN cookies rest on it.
#[derive(Clone, Debug)]
pub struct Config {
    pub link: Link,
    pub limits: Limits,
    pub seed: u64,
}

impl Config {
    pub fn new(mac: Mac, seed: u64) -> Config {
        Config {
            link: Link {
                mac,
                mtu_bytes: 1500,
                offloads: Offloads::default(),
            },
            limits: Limits::default(),
            seed,
        }
    }
}
