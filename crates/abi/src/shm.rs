//! Shared memory: the region of one side of a link, the endpoint of one channel
//! in it, and a process's wait page.
//!
//! # Who writes what
//! Every memfd has exactly one writing side: the process that created it (and
//! its forked children). The other side maps it read-only, and the kernel
//! enforces that (F_SEAL_FUTURE_WRITE). A link between processes P and Q hence
//! has two regions, and a channel has an [`Endpoint`] in each, at the same slot:
//!
//! ```text
//!   P's region (P writes, Q reads)            Q's region (Q writes, P reads)
//!   ┌───────────────┐                         ┌───────────────┐
//!   │ RegionHeader  │                         │ RegionHeader  │
//!   │ MarkPage      │ marks of P, seen of Q's │ MarkPage      │
//!   │ endpoint[0]   │ tail, segments  ──────► │ endpoint[0]   │ head, doors, rx_state
//!   │ endpoint[1]   │ head, doors     ◄────── │ endpoint[1]   │ tail, segments
//!   │ ...           │                         │ ...           │
//!   │ arena: P's tx │ bytes P → Q             │ arena: Q's tx │ bytes Q → P
//!   └───────────────┘                         └───────────────┘
//! ```
//!
//! The lines marked *private* are the owning side's own state; they live in the region
//! because a forked child shares the connection with its parent. Of them the peer reads
//! two words of [`RxOwnLine`], for its watchdog: `lock` and `kernel_position`, and `back_at` of
//! [`TxOwnLine`], before it closes.
//!
//! A [`Purse`] alone has several writers: the processes of one domain and the broker. Nothing
//! that another domain relies on stands there.

use crate::atomic::{AtomicU32, AtomicU64};

/// Distance between words of different writers: two 64-byte lines, because
/// adjacent-line prefetch couples pairs.
pub const LINE_BYTES: usize = 128;
/// First word of a region.
pub const REGION_MAGIC: u32 = 0x4657_5247; // "FWRG"
/// First word of a wait page.
pub const WAIT_PAGE_MAGIC: u32 = 0x4657_5750; // "FWWP"
/// Channels of one link.
pub const SLOT_COUNT: usize = 16 * 1024;
/// Size of one endpoint.
pub const ENDPOINT_BYTES: usize = 1024;
/// Where the marks lie in a region.
pub const MARKS_OFFSET: usize = 4096;
/// Where the endpoints start in a region.
pub const ENDPOINTS_OFFSET: usize = 3 * 4096;
/// Where ring memory starts in a region.
pub const ARENA_OFFSET: usize = 32 << 20;
/// Size of a region; sparse, so untouched pages cost nothing. All slots can have a ring, and
/// some of them large ones.
pub const REGION_BYTES: usize = 2 << 30;
/// log2 of a new ring's capacity (models copy less).
pub const SEGMENT_LOG2_MIN: u32 = if cfg!(loom) { 10 } else { 16 };
/// log2 of the largest ring's capacity.
pub const SEGMENT_LOG2_MAX: u32 = 22;
/// Segments that a ring may have in its life; none of their words is used twice.
pub const SEGMENT_COUNT: usize = 4;
/// Publications of a ring whose moments are known.
pub const MOMENT_COUNT: usize = 15;
/// Doorbells of one process.
pub const DOOR_COUNT: usize = 64;
/// Index of the doorbell that is shared by all waiters without one of their own.
pub const DOOR_SHARED: usize = 0;
/// Size of a wait page memfd.
pub const WAIT_PAGE_BYTES: usize = 4096;
/// First word of a purse.
pub const PURSE_MAGIC: u32 = 0x4657_5055; // "FWPU"
/// Size of a purse memfd.
pub const PURSE_BYTES: usize = 4096;

/// Channels of a link between two guests.
pub const GUEST_SLOT_COUNT: usize = 64;
/// Bytes at the start of a region that have memory between two guests, besides the arena's: header, marks, endpoints.
pub const GUEST_HEAD_BYTES: usize = ENDPOINTS_OFFSET + GUEST_SLOT_COUNT * ENDPOINT_BYTES;
/// Where a process's [`WaitPage`] lies between two guests: in its region, behind the header.
pub const GUEST_WAIT_OFFSET: usize = 2048;
/// Ring memory of one side of such a link.
pub const GUEST_ARENA_BYTES: usize = 4 << 20;

/// The small region by which the brokers of two guests talk: granted page by page, behind a page that names the grants.
pub mod granted {
    use super::{ENDPOINT_BYTES, ENDPOINTS_OFFSET};

    const PAGE_BYTES: usize = 4096;
    /// First word of the directory.
    pub const DIRECTORY_MAGIC: u32 = 0x4657_4452; // "FWDR"
    /// Words of the directory before the references: magic, ABI version, pages that follow.
    pub const HEAD_WORDS: usize = 3;
    /// Pages of a region, with its directory.
    pub const PAGES_MAX: usize = 1 + PAGE_BYTES / size_of::<u32>() - HEAD_WORDS;
    /// Endpoints.
    pub const SLOTS: usize = PAGE_BYTES / ENDPOINT_BYTES;
    /// Where the wait page lies, behind the directory as the others.
    pub const WAIT_OFFSET: usize = ENDPOINTS_OFFSET + PAGE_BYTES;
    /// A byte that is 1 while the owner lives.
    pub const ALIVE_OFFSET: usize = WAIT_OFFSET + PAGE_BYTES - 1;
    /// Where ring memory begins.
    pub const ARENA_OFFSET: usize = WAIT_OFFSET + PAGE_BYTES;
}

#[cfg(not(loom))]
const _: () = assert!(core::mem::size_of::<RegionHeader>() <= GUEST_WAIT_OFFSET);
#[cfg(not(loom))]
const _: () = assert!(GUEST_WAIT_OFFSET + core::mem::size_of::<WaitPage>() <= MARKS_OFFSET);
const _: () = assert!(GUEST_HEAD_BYTES.is_multiple_of(4096));

const _: () =
    assert!(ARENA_OFFSET + (SLOT_COUNT << SEGMENT_LOG2_MIN) <= REGION_BYTES / 2 + ARENA_OFFSET);
const _: () = assert!(ENDPOINTS_OFFSET + SLOT_COUNT * ENDPOINT_BYTES <= ARENA_OFFSET);
#[cfg(not(loom))]
const _: () = assert!(core::mem::size_of::<Endpoint>() == ENDPOINT_BYTES);
#[cfg(not(loom))]
const _: () = assert!(core::mem::size_of::<WaitPage>() <= WAIT_PAGE_BYTES);
#[cfg(not(loom))]
const _: () = assert!(core::mem::size_of::<RegionHeader>() <= MARKS_OFFSET);
#[cfg(not(loom))]
const _: () = assert!(MARKS_OFFSET + core::mem::size_of::<MarkPage>() <= ENDPOINTS_OFFSET);

/// First page of a region. Written once before it is handed over, except for the
/// private words of the arena's allocator.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct RegionHeader {
    /// [`REGION_MAGIC`].
    pub magic: AtomicU32,
    /// [`crate::ABI_VERSION`].
    pub abi_version: AtomicU32,
    /// Private: lock of the arena's allocator (0 free, 1 held).
    pub arena_lock: AtomicU32,
    _pad: u32,
    /// Private: first byte of the arena that was never handed out, from the region's start.
    pub arena_next: AtomicU64,
    /// Private: heads of the free lists by log2 of the size (0: empty, else offset
    /// from the region's start); the first word of a free block is the next one's.
    pub arena_free: [AtomicU64; 32],
    /// Private: first byte behind what has memory of the arena; 0: all of it has.
    pub arena_end: AtomicU64,
}

/// What the rings of one domain may take in all. Made by the broker; its processes add what
/// their arenas grow by, the broker subtracts what a region that is gone had taken.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Purse {
    /// [`PURSE_MAGIC`].
    pub magic: AtomicU32,
    /// [`crate::ABI_VERSION`].
    pub abi_version: AtomicU32,
    /// Most bytes of ring memory.
    pub bytes_max: AtomicU64,
    /// Bytes of ring memory that were taken.
    pub bytes_taken: AtomicU64,
}

/// A bit for each channel of a link, and a bit for each word of those.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct MarkBits {
    /// Bit i: something is new in `words[i]`.
    pub summary: [AtomicU64; SLOT_COUNT / 64 / 64],
    /// Bit i of word w: something is new in the channel of slot `64 * w + i`.
    pub words: [AtomicU64; SLOT_COUNT / 64],
}

impl Default for MarkBits {
    fn default() -> Self {
        Self {
            summary: core::array::from_fn(|_| AtomicU64::default()),
            words: core::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

/// How a side finds, among thousands of idle channels, those in which something
/// came. A bit is set where the marker's bit and the other side's seen bit differ:
/// each side writes its own bits only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct MarkPage {
    /// Bits that this side flips to mark.
    pub marks: MarkBits,
    /// This side's copies of the peer's marks, as far as it has seen them.
    pub seen: MarkBits,
}

/// State of a direction as its producer has it (`Endpoint::tx_state`).
pub mod tx_state {
    /// Bytes go through the kernel; the ring was never used.
    pub const KERNEL: u32 = 0;
    /// Bytes from `switch_at` on go through the ring.
    pub const RING: u32 = 1;
    /// The ring is over at `tail`; all later bytes go through the kernel.
    pub const BACK: u32 = 2;
    /// As BACK, but the consumer must not take what is left in the ring: the
    /// producer sends it again by the kernel.
    pub const WITHDRAWN: u32 = 3;
    /// On the way to WITHDRAWN, or back to RING where the consumer is just taking. For the consumer it is WITHDRAWN, but nothing
    /// that lasts: an end that takes it for that gives its channel up while the ring goes on.
    pub const WITHDRAWING: u32 = 4;
}

/// State of a direction as its consumer has it (`Endpoint::rx_state`).
pub mod rx_state {
    /// The consumer does not look at the ring yet: the producer must not switch.
    pub const OFF: u32 = 0;
    /// The consumer looks at the ring whenever it waits.
    pub const READY: u32 = 1;
    /// The consumer asks for the kernel path and takes nothing for now. The producer
    /// decides: WITHDRAWN, and what lies between `head` and `tail` is sent again by the
    /// kernel before anything else; or BACK (it had left before it saw the wish), and the
    /// ring is drained after all.
    pub const STOP: u32 = 2;
    /// The consumer asks for the kernel path, and goes on taking what had been published
    /// when it did. The producer publishes no more: it sends the rest by the kernel
    /// (WITHDRAWN, if the consumer's lock lets it), or else the ring is drained (BACK).
    pub const DRAIN: u32 = 3;
}

/// Who asked for room of the ring in vain (`Endpoint::no_space`): whoever did, the next room is an edge (SOCK_NOSPACE).
pub mod no_space {
    /// Nobody since room was last told of.
    pub const NOBODY: u32 = 0;
    /// A send: whoever asks is told of a third of the ring from then on, not of what a larger ring might hold.
    pub const SEND: u32 = 1;
    /// A wait (poll, select, epoll).
    pub const WAIT: u32 = 2;
}

/// Bits of `Endpoint::tx_flags`.
pub mod tx_flags {
    /// The program has shut its sending half (shutdown): EOF is clean.
    pub const SHUT: u32 = 1;
    /// The last descriptor of this side was closed by the program.
    pub const CLOSED: u32 = 2;
    /// Of datagrams: what stands beside those that are received says to whom they were sent.
    pub const TELLS: u32 = 4;
}

/// One place of ring memory. Published as: `start`, `place`, then `segment_count`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SegmentWords {
    /// Stream index (same scale as `tail`) of the first byte that lies in it.
    pub start: AtomicU64,
    /// `offset << 8 | log2`: offset in bytes from the region's start, log2 of the capacity.
    pub place: AtomicU64,
}

/// One side of a channel. All indices are free-running byte counts from the
/// moment the ring was entered, so `tail - head` is the fill.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Endpoint {
    /// What the producer publishes.
    pub tx: TxLine,
    /// What the consumer publishes.
    pub rx: RxLine,
    /// Who wants to be woken, and who may switch.
    pub wait: WaitLine,
    /// Set rarely.
    pub cold: ColdLine,
    /// Private to the owning side: the producer's.
    pub tx_own: TxOwnLine,
    /// Private to the owning side: the consumer's.
    pub rx_own: RxOwnLine,
    /// What the producer publishes for a consumer that has several rings to tell of.
    pub moments: MomentLine,
    _pad: TxPad,
}

/// Line 0 of an [`Endpoint`]: written with each publication, and so in the peer's cache no longer.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct TxLine {
    /// Bytes published to the peer.
    pub tail: AtomicU64,
    /// The last publication: the lower half of the stream index at which it began, above the
    /// moment in which it was made (lower half of the processor's ticks / 128); 0: none.
    pub moment: AtomicU64,
}

/// Line 1 of an [`Endpoint`].
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct RxLine {
    /// Bytes taken from the peer's ring.
    pub head: AtomicU64,
    /// Segments of the peer that were entered; older ones may be reused.
    pub segment_seen: AtomicU32,
}

/// Line 2 of an [`Endpoint`].
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct WaitLine {
    /// One of [`rx_state`].
    pub rx_state: AtomicU32,
    /// CPU on which this side was last seen (`u32::MAX`: unknown).
    pub cpu: AtomicU32,
    /// Doorbells of this process that want to know of new bytes.
    pub rx_doors: AtomicU64,
    /// Doorbells of this process that want to know of free space.
    pub tx_doors: AtomicU64,
    /// The peer's head from which on free space is worth a ring.
    pub space_mark: AtomicU64,
    /// 1: this side does not look at the channel's tail by itself; new bytes must be
    /// marked ([`MarkPage`]).
    pub wants_mark: AtomicU32,
}

/// Line 3 of an [`Endpoint`]: written seldom, and looked at by the peer with each message, from its own cache.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct ColdLine {
    /// Set last when the endpoint is made: the channel's generation. A peer that
    /// sees another number sees a channel that is gone or not there yet.
    pub generation: AtomicU32,
    /// Why this side, or a relative of it since a fork, wants the kernel path: a
    /// [`crate::reason::Reason`], or 0. Set before it leaves its ring; only listed.
    pub left_for: AtomicU32,
    /// Bytes that the producer had given to the kernel when it entered the ring,
    /// counted from the connection's start.
    pub switch_at: AtomicU64,
    /// The segments, each larger than the one before.
    pub segments: [SegmentWords; SEGMENT_COUNT],
    /// One of [`tx_state`].
    pub tx_state: AtomicU32,
    /// Bits of [`tx_flags`].
    pub tx_flags: AtomicU32,
    /// Segments published so far; the newest is `segments[segment_count - 1]`.
    pub segment_count: AtomicU32,
}

/// Line 4 of an [`Endpoint`] (private).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct TxOwnLine {
    /// 0 free, else the holder's thread id.
    pub lock: AtomicU32,
    /// The process that has the lock, for relatives of a fork; 0 while it is free.
    pub lock_process: AtomicU32,
    /// Last head of the peer that was seen and checked.
    pub head_seen: AtomicU64,
    /// In `tx_state::BACK`: bytes from here to `tail` are still to be sent by the kernel.
    pub back_at: AtomicU64,
    /// Times the ring was found full since it last grew.
    pub full_count: AtomicU32,
    /// One of [`no_space`].
    pub no_space: AtomicU32,
    /// Calls of the program that move data, from the moment when this side got its channel
    /// up to the one when it entered its ring, about. For the broker's counts.
    pub calls: AtomicU32,
    /// Datagrams for which the ring had no room. For the broker's listing.
    pub lost: AtomicU64,
}

/// Line 5 of an [`Endpoint`] (private).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct RxOwnLine {
    /// 0 free, else the holder's thread id. The peer looks at it too, before it withdraws.
    pub lock: AtomicU32,
    /// As in [`TxOwnLine`].
    pub lock_process: AtomicU32,
    /// Bytes read from the kernel since the connection began; kept from the moment
    /// this side got ready (`rx_state::READY`).
    pub kernel_position: AtomicU64,
    /// Last tail of the peer that was seen and checked.
    pub tail_seen: AtomicU64,
    /// Current segment: start index, and `offset << 8 | log2`, as checked.
    pub segment_start: AtomicU64,
    /// See `segment_start`.
    pub segment_place: AtomicU64,
    /// The owner's own number for the connection, plus one.
    pub owner: AtomicU32,
    /// 1: `drain_to` holds.
    pub drains: AtomicU32,
    /// Nothing behind this index is taken any more: the peer's tail when this side asked for
    /// the kernel path, or saw that the peer had left the ring.
    pub drain_to: AtomicU64,
}

/// Line 6 of an [`Endpoint`].
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct MomentLine {
    /// The last publications, each as [`TxLine::moment`] had it.
    pub moments: [AtomicU64; MOMENT_COUNT],
    /// Publications so far, modulo their places: where the next one will stand.
    pub count: AtomicU32,
}

/// Filler up to [`ENDPOINT_BYTES`].
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct TxPad {
    _words: [u64; 2],
}

/// What the peers of a process read of it: which of its waiters sleep.
///
/// A waiter adds one to its `sleep_count`, sets its bit in `sleeping`, looks at
/// its rings again, and only then sleeps. A producer publishes, fences, and looks
/// at `sleeping & rx_doors`; it knocks at each door once per `sleep_count`.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct WaitPage {
    /// [`WAIT_PAGE_MAGIC`].
    pub magic: AtomicU32,
    /// [`crate::ABI_VERSION`].
    pub abi_version: AtomicU32,
    /// Moves whenever a thread begins to wait in the library, be it only to look.
    pub beat: AtomicU32,
    _pad0: u32,
    _pad: [u64; 14],
    /// Bit i: the waiter of doorbell i sleeps.
    pub sleeping: AtomicU64,
    /// Moves after each thing that the process did to a socket of the kernel's which others may see:
    /// connect, close, shutdown, a send by the kernel. What it publishes in a ring afterwards is
    /// not to be seen before.
    pub kernel_acts: AtomicU32,
    _pad2: u32,
    _pad3: [u64; 14],
    /// How often the waiter of doorbell i went to sleep.
    pub sleep_count: [AtomicU32; DOOR_COUNT],
}
