//! What the driver's user sees: switches, frames, counters, reasons.

use alloc::string::String;
use fordway_xen_abi::netif::tx_flag;
use fordway_xen_frontend::{Garbage, Guest, Pool};

/// Each optimisation can be turned off, to see what it is worth.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// An event channel for each direction, where offered.
    pub split: bool,
    /// Events only where the other side wants one (`req_event`, `rsp_event`).
    pub suppression: bool,
    pub gso: bool,
    /// Checksums are left to the other side; GSO needs it.
    pub csum: bool,
    /// Requests are shown with [`crate::Netfront::flush`] and not one by one.
    pub batching: bool,
    /// Granted once, used for ever; else each buffer is a fresh page with a fresh grant.
    pub persistent: bool,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// The device's directory in XenStore.
    pub path: String,
    pub switches: Switches,
    pub queues_max: u32,
    /// Pages of 4096 bytes for each direction of each queue; 18 to 256. Those for sending are
    /// taken when first used.
    pub rx_pages: usize,
    pub tx_pages: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            path: "device/vif/0".into(),
            switches: Switches {
                split: true,
                suppression: true,
                gso: true,
                csum: true,
                batching: true,
                persistent: true,
            },
            queues_max: 1,
            rx_pages: 256,
            tx_pages: 256,
        }
    }
}

/// What the connected backend does for us. A frame may ask for no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Frames of more than a page.
    pub sg: bool,
    pub csum_ipv4: bool,
    pub csum_ipv6: bool,
    pub gso_ipv4: bool,
    pub gso_ipv6: bool,
}

impl Offers {
    pub(crate) fn allow(&self, frame: &TxFrame<'_>) -> bool {
        let csum = self.csum_ipv4 || self.csum_ipv6 || !frame.checksum_blank;
        let gso = match frame.gso {
            None => true,
            Some(gso) if gso.ipv6 => self.gso_ipv6,
            Some(_) => self.gso_ipv4,
        };
        csum && gso
    }
}

/// A TCP frame that stands for several, each with at most `size` bytes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    pub ipv6: bool,
    pub size: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// To be checked.
    Unknown,
    /// The backend has checked it.
    Good,
    /// Never computed, because the frame never left the host: the field holds the pseudo
    /// header's sum. As good as checked, but not to be forwarded.
    Blank,
}

#[derive(Debug)]
pub struct RxFrame<'a> {
    /// From the Ethernet header on; a private copy, which may be changed.
    pub bytes: &'a mut [u8],
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct TxFrame<'a> {
    /// From the Ethernet header on, gathered from as many places as the user has.
    pub parts: &'a [&'a [u8]],
    /// The TCP or UDP checksum's field holds the pseudo header's sum; the rest is to be added.
    pub checksum_blank: bool,
    pub gso: Option<Gso>,
}

impl TxFrame<'_> {
    /// `NETTXF_*` of its first request.
    pub(crate) fn flags(&self) -> u16 {
        let blank = tx_flag::CSUM_BLANK | tx_flag::DATA_VALIDATED;
        let extra = u16::from(self.gso.is_some()) * tx_flag::EXTRA_INFO;
        extra | (u16::from(self.checksum_blank) * blank)
    }
}

/// What to do before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Do not: something has come.
    No,
    /// Sleep until an event or a watch; with a time, until that at the latest.
    Event(Option<u64>),
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)*) => {
        /// Why a frame was dropped or a connection broken off.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[doc = $doc])* $name,)* }

        impl Reason {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Received frames with a fault: these are dropped.
    RxRefused "rx-refused",
    EmptyFragment "empty-fragment",
    OutsidePage "outside-page",
    TooManyFragments "too-many-fragments",
    BadExtra "bad-extra",
    Runt "runt",
    /// Frames that could not be sent.
    LinkDown "link-down",
    RingFull "ring-full",
    TooLong "too-long",
    NotOffered "not-offered",
    NoMemory "no-memory",
    TxRefused "tx-refused",
    /// A channel was masked for a while.
    EventStorm "event-storm",
    /// Rules that the backend broke: these end the connection.
    RingGarbage "ring-garbage",
    BadId "bad-id",
    GrantsHeld "grants-held",
    /// No connection could be made.
    NoMac "no-mac",
    NoRxCopy "no-rx-copy",
    NoXenStore "no-xenstore",
}

impl From<Garbage> for Reason {
    fn from(_: Garbage) -> Self {
        Self::RingGarbage
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub rx_frames: u64,
    pub rx_bytes: u64,
    pub tx_frames: u64,
    pub tx_bytes: u64,
    /// Events sent and taken.
    pub notifies: u64,
    pub events: u64,
    pub connections: u64,
    drops: [u64; Reason::ALL.len()],
}

impl Counters {
    pub fn drops(&self, reason: Reason) -> u64 {
        self.drops[reason as usize]
    }

    pub(crate) fn drop(&mut self, reason: Reason) {
        self.drops[reason as usize] += 1;
    }
}

/// What all parts of the driver share.
pub(crate) struct Env<G: Guest> {
    pub pool: Pool<G>,
    pub switches: Switches,
    pub counters: Counters,
}
