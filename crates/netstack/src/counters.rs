//! What the stack counts, and the one list of reasons why it drops a packet.

/// Why an arriving packet, or one of ours, went nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Drop {
    /// Cut short, impossible lengths, unknown version.
    Malformed,
    /// A checksum that is wrong.
    Checksum,
    /// For another Ethernet or IP address.
    NotForUs,
    /// No such protocol here.
    Protocol,
    /// A source that no host may have.
    Source,
    /// The packet filter said so.
    Filter,
    /// A fragment of too many, too large or overlapping.
    Fragment,
    /// No route, no neighbor.
    Unreachable,
    /// A queue was full.
    Full,
    /// A connection could not be taken: accept queue or flow table full.
    Backlog,
    /// An ICMP error that quotes nothing of ours.
    Stray,
    /// A message of neighbor discovery that is not to be believed: from behind a router, from
    /// who may not say it, or more than the limits keep.
    Discovery,
}

impl Drop {
    pub const COUNT: usize = 12;
    pub const ALL: [(Drop, &'static str); Drop::COUNT] = [
        (Drop::Malformed, "malformed"),
        (Drop::Checksum, "checksum"),
        (Drop::NotForUs, "not for us"),
        (Drop::Protocol, "protocol"),
        (Drop::Source, "source"),
        (Drop::Filter, "filter"),
        (Drop::Fragment, "fragment"),
        (Drop::Unreachable, "unreachable"),
        (Drop::Full, "queue full"),
        (Drop::Backlog, "backlog"),
        (Drop::Stray, "stray error"),
        (Drop::Discovery, "discovery"),
    ];
}

/// Counts since the stack was made.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub rx_frames: u64,
    pub rx_bytes: u64,
    pub tx_frames: u64,
    pub tx_bytes: u64,
    /// Indexed by `Drop as usize`.
    pub drops: [u64; Drop::COUNT],
    /// Flows that were looked at, for packets or timers: one a packet, however many connections
    /// there are.
    pub flow_visits: u64,
    pub syn_cookies: u64,
    /// Addresses that we wanted, and that somebody else had.
    pub duplicate_addresses: u64,
    pub resets_sent: u64,
}

impl Counters {
    pub(crate) fn drop(&mut self, why: Drop) {
        self.drops[why as usize] += 1;
    }
}
