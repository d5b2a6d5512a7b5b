//! One end of a pair of packet queues ([`fordway_ring::queue`]) that carry frames between two processes: a driver, which has
//! the port, and a stack.
//!
//! # Memory
//! Each end has a memfd that it alone can write (`fordway_abi::queue::End`, and behind it the blocks of what it sends),
//! and maps that of the other to be read only. A frame is made or read in the sender's block, and lies there until the
//! receiver has acknowledged it: nothing is copied in between.
//!
//! # How the two come together
//! Over a SEQPACKET pair, the *link*, which both inherit and which whoever starts them keeps: an end that dies and is started
//! again has the same link.
//! ```text
//!   driver                         stack
//!     COME ───────────────────────►        at its start, if nobody has asked, and when it gives the stack's memory up
//!          ◄─────────────────────── JOIN   (number, memfd, doorbell): new memory, at its start and at each COME
//!   JOINED ───────────────────────►        (the same number, memfd, doorbell)
//! ```
//! The driver answers each JOIN with new memory, and the last one holds. The stack takes the JOINED that has its last
//! number, and passes over the others: they were meant for a stack before it, or for what it has given up since. So it does
//! not matter which messages of the dead are still in the link.
//!
//! # Who wakes whom
//! By the doors of a wait page (door 0 is all there is), as [`fordway_ring::queue`] describes, and an eventfd that the sleeper
//! made. The other end could drain it, fill it or have it block: that harms what it sends itself. Reading it never blocks,
//! whatever the other end does to it (RWF_NOWAIT).
//!
//! # A peer that breaks the protocol
//! is given up at the first word that cannot be, with all of its memory, and asked for new: what was on the way is lost, as on
//! a cable. Each time is counted. What stands in the link and is no packet of it is counted too, and changes nothing. An error
//! that is given back is our own: descriptors or memory that cannot be had.

use crate::frames::{FRAME_BYTES_MAX, FrameNotes};
use crate::ipc::{self, ReceiveError};
use crate::memfd::{self, OwnPage, ReadOnly};
use crate::process;
use fordway_abi::ABI_VERSION;
use fordway_abi::queue::{End, POOL_OFFSET};
use fordway_abi::shm::WaitPage;
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::queue::{Geometry, Header, Message, Receiver, Sender};
use fordway_ring::{Sleeper, Violation, doors_to_knock_at};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::ReadWriteFlags;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The one lane of each queue, and the one door of each end.
const LANE: usize = 0;
const DOOR: usize = 0;
const DOORS: u64 = 1 << DOOR;
/// A packet of the link: ABI version and kind, then the number.
const LINK_BYTES: usize = 16;
/// Packets of the link that are looked at before frames get their turn.
const LINK_PACKETS_MAX: usize = 16;

const COME: u32 = 1;
const JOIN: u32 = 2;
const JOINED: u32 = 3;

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Asks to be joined.
    Stack,
    /// Answers.
    Driver,
}

/// A frame that was made: the first bytes of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub bytes: usize,
    pub notes: FrameNotes,
}

/// What became of a frame that could have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It went.
    Frame,
    /// There was none.
    Nothing,
    /// There is no room: nothing was asked for.
    Full,
    /// There is nobody: nothing was asked for.
    Apart,
}

/// What there was to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A frame, which was taken.
    Frame,
    /// Nothing.
    Nothing,
    /// A frame that was not taken; it comes again.
    Held,
}

/// What has happened at an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames that were sent to the other end.
    pub sent: u64,
    /// Frames that the other end sent.
    pub received: u64,
    /// How often the two ends were joined.
    pub joins: u64,
    /// How often the other end broke the protocol, of memory or of the link.
    pub violations: u64,
    /// Wake-ups of the other end.
    pub knocks: u64,
}

/// A frame in the other end's memory, which may change at any moment.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a>(Option<(&'a Receiver, &'a Message, &'a Copier)>);

impl Foreign<'_> {
    /// No bytes.
    pub(crate) const NONE: Foreign<'static> = Foreign(None);
    /// Most pieces of a frame that is not too long.
    pub(crate) const RUNS_MAX: usize = 16;

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.0.map_or(0, |(_, message, _)| message.bytes())
    }

    /// Copies its bytes from `at` on, as many as there are; how many.
    pub fn copy_to(&self, at: usize, target: &mut [u8]) -> usize {
        let Some((receiver, message, copier)) = self.0 else {
            return 0;
        };
        let (start, count) = (target.as_mut_ptr(), target.len());
        // SAFETY: `target` is that long, and the message is the receiver's.
        unsafe { receiver.copy(message, copier, Kernel::Plain, at, start, count) }
    }

    pub(crate) fn runs(&self, from: usize) -> impl Iterator<Item = (*const u8, usize)> {
        let runs = self
            .0
            .map(|(receiver, message, _)| receiver.runs(message, from, usize::MAX - from));
        runs.into_iter().flatten()
    }
}

/// The memory of this end, and what the other one wakes it by.
#[derive(Debug)]
struct Half {
    memory: OwnPage,
    memfd: OwnedFd,
    bell: OwnedFd,
}

impl Half {
    fn new(geometry: Geometry) -> io::Result<Half> {
        let (memory, memfd) = OwnPage::create("fordway-queue", bytes_of(geometry))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Half {
            memory,
            memfd,
            bell,
        })
    }
}

fn bytes_of(geometry: Geometry) -> usize {
    POOL_OFFSET + geometry.pool_bytes()
}

/// Two ends that have each other's memory.
#[derive(Debug)]
struct Joined {
    // These two point into the memory below.
    sender: Sender,
    receiver: Receiver,
    half: Half,
    peer: ReadOnly,
    peer_bell: OwnedFd,
    /// Sleep of the peer's of which it was woken last.
    knocked: Cell<u32>,
}

impl Joined {
    /// The memfd has passed its check.
    fn new(
        half: Half,
        memfd: &OwnedFd,
        peer_bell: OwnedFd,
        geometry: Geometry,
    ) -> io::Result<Self> {
        let peer = ReadOnly::map(memfd, bytes_of(geometry))?;
        let own = half.memory.start();
        let (own_end, peer_end) = (own.cast::<End>(), peer.start().cast::<End>());
        // SAFETY: both mappings are that long, aligned to a page, and live as long as the ends that are made here; ours is
        // zeroed and written by this process alone. Only addresses of fields are taken.
        let (sender, receiver) = unsafe {
            let mut sender = Sender::new(own.add(POOL_OFFSET), geometry);
            sender.attach(
                &raw const (*own_end).lane,
                &raw const (*peer_end).acknowledgements,
            );
            let receiver = Receiver::new(
                &raw const (*own_end).acknowledgements,
                &raw const (*peer_end).lane,
                peer.start().add(POOL_OFFSET),
                geometry,
            );
            (sender, receiver)
        };
        receiver.wait_for_messages(DOORS);
        Ok(Self {
            sender,
            receiver,
            half,
            peer,
            peer_bell,
            knocked: Cell::new(0),
        })
    }

    fn sleeper(&self) -> Sleeper<'_> {
        let end = self.half.memory.start().cast::<End>();
        // SAFETY: our own memory, which lives as long as this; all fields of a wait page are atomics.
        Sleeper::new(unsafe { &(*end).wait }, DOOR)
    }

    /// Wakes the other end if it sleeps and wants to know; whether it did.
    fn knock(&self, wanted: u64) -> bool {
        let end = self.peer.start().cast::<End>();
        // SAFETY: mapped; only the address of the field is taken.
        let page: *const WaitPage = unsafe { &raw const (*end).wait };
        let is_new = |_, count| self.knocked.replace(count) != count;
        // SAFETY: mapped.
        let doors = unsafe { doors_to_knock_at(page, wanted & DOORS, is_new) };
        // One that is full wakes as well; one that is no eventfd wakes nobody, who asked for it.
        doors != 0 && rustix::io::write(&self.peer_bell, &1u64.to_ne_bytes()).is_ok()
    }
}

/// See the module.
#[derive(Debug)]
pub struct QueueEnd {
    role: Role,
    link: OwnedFd,
    /// Nobody has the link's other end.
    is_alone: bool,
    /// Shows the link, and the doorbell of what is joined.
    epoll: OwnedFd,
    geometry: Geometry,
    joined: Option<Box<Joined>>,
    /// A stack's memory that no driver has answered yet, and its number.
    asking: Option<(u64, Half)>,
    /// A frame that was received and not taken.
    held: Option<Message>,
    copier: Copier,
    counters: QueueCounters,
}

impl QueueEnd {
    /// An end over a link, whose other end has been given to the other side.
    pub fn new(link: OwnedFd, role: Role) -> io::Result<QueueEnd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &link, data, epoll::EventFlags::IN)?;
        let mut end = QueueEnd {
            role,
            link,
            is_alone: false,
            epoll,
            geometry: Geometry::default(),
            joined: None,
            asking: None,
            held: None,
            copier: Copier::detect(),
            counters: QueueCounters::default(),
        };
        match role {
            // What is in the link was for a stack before this one.
            Role::Stack => while ipc::receive(&end.link, &mut [0; LINK_BYTES], 2).is_ok() {},
            // A stack that has asked already needs no call.
            Role::Driver => while !end.is_alone && end.read_link()? {},
        }
        if end.joined.is_none() {
            end.ask()?;
        }
        Ok(end)
    }

    /// Whether frames can pass.
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Whether nobody has the link's other end: nothing will ever come.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// What has happened here.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Has a frame made in place and sends it, if there is room.
    pub fn send(&mut self, make: impl FnOnce(&mut [u8]) -> Option<Frame>) -> Sent {
        let Some(joined) = &mut self.joined else {
            return Sent::Apart;
        };
        if let Err(violation) = joined.sender.collect(LANE) {
            self.give_up(violation);
            return Sent::Apart;
        }
        let Ok(mut draft) = joined.sender.draft_run(FRAME_BYTES_MAX) else {
            return Sent::Full;
        };
        let place = joined.sender.place(&draft);
        // SAFETY: the draft's blocks are neighbours in memory that this process alone can write, and nobody else here
        // has; the other process, which may read them, is no business of the compiler's.
        let buffer = unsafe { std::slice::from_raw_parts_mut(place, FRAME_BYTES_MAX) };
        let Some(Frame { bytes, notes }) = make(buffer) else {
            joined.sender.cancel(draft);
            return Sent::Nothing;
        };
        joined.sender.shorten(&mut draft, bytes);
        self.counters.sent += 1;
        let (source, kind) = notes.pack();
        let header = Header {
            source,
            destination: 0,
            number: self.counters.sent,
            kind,
        };
        joined.sender.send(draft, &header, 1 << LANE);
        let wanted = joined.sender.peer_waits(LANE);
        self.counters.knocks += u64::from(joined.knock(wanted));
        Sent::Frame
    }

    /// Shows the next frame where it lies. If it was not taken (false), it comes again.
    pub fn receive(&mut self, take: impl FnOnce(Foreign<'_>, FrameNotes) -> bool) -> Received {
        let Some(joined) = &mut self.joined else {
            return Received::Nothing;
        };
        let message = match self.held.take() {
            Some(held) => held,
            None => match joined.receiver.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return Received::Nothing,
                Err(violation) => {
                    self.give_up(violation);
                    return Received::Nothing;
                }
            },
        };
        let notes = FrameNotes::unpack(message.header.source, message.header.kind);
        if !take(
            Foreign(Some((&joined.receiver, &message, &self.copier))),
            notes,
        ) {
            self.held = Some(message);
            return Received::Held;
        }
        self.counters.received += 1;
        joined.receiver.acknowledge(message);
        let wanted = joined.receiver.peer_waits();
        self.counters.knocks += u64::from(joined.knock(wanted));
        Received::Frame
    }

    /// To be called before a sleep on this descriptor: the other end is to wake us for frames and, with `for_room`, for
    /// room. False if something is there already; then the caller does not sleep. Either way it calls [`QueueEnd::awake`], and
    /// [`QueueEnd::woken`] if this descriptor has shown something.
    pub fn may_sleep(&mut self, for_room: bool) -> bool {
        let Some(joined) = &mut self.joined else {
            return true;
        };
        let room = if for_room { DOORS } else { 0 };
        joined.sender.wait_for_room(LANE, room);
        joined.sleeper().announce();
        let is_readable = self.held.is_none() && joined.receiver.looks_readable();
        let has_room = for_room && !matches!(joined.sender.collect(LANE), Ok(0));
        !is_readable && !has_room
    }

    /// Nobody knocks any more, whatever has ended the sleep. No system call.
    pub fn awake(&self) {
        if let Some(joined) = &self.joined {
            joined.sleeper().retract();
        }
    }

    /// To be called when this descriptor has shown something, or every now and then: hears the bell, and what the link says.
    pub fn woken(&mut self) -> io::Result<()> {
        self.awake();
        if let Some(joined) = &self.joined {
            hear(&joined.half.bell);
        }
        for _ in 0..LINK_PACKETS_MAX {
            if self.is_alone || !self.read_link()? {
                break;
            }
        }
        Ok(())
    }

    /// Takes one packet of the link, if there is one.
    fn read_link(&mut self) -> io::Result<bool> {
        let mut bytes = [0; LINK_BYTES];
        let packet = match ipc::receive(&self.link, &mut bytes, 2) {
            Ok(packet) => packet,
            Err(ReceiveError::Empty) => return Ok(false),
            Err(ReceiveError::Closed) => {
                self.is_alone = true;
                self.part();
                epoll::delete(&self.epoll, &self.link)?;
                return Ok(false);
            }
            Err(ReceiveError::Malformed(..)) => {
                self.counters.violations += 1;
                return Ok(true);
            }
            Err(ReceiveError::System(error)) => return Err(error),
        };
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let number = u64::from(word(8)) | u64::from(word(12)) << 32;
        let mut fds = packet.fds.into_iter();
        let both = fds.next().zip(fds.next());
        let is_whole = packet.len == LINK_BYTES && word(0) == ABI_VERSION;
        match (self.role, word(4), both) {
            (Role::Stack, COME, None) if is_whole => self.ask()?,
            (Role::Stack, JOINED, Some((memfd, bell))) if is_whole => match self.asking.take() {
                Some((asked, half)) if asked == number => self.join(half, &memfd, bell)?,
                other => self.asking = other,
            },
            (Role::Driver, JOIN, Some((memfd, bell))) if is_whole => {
                self.answer(number, &memfd, bell)?;
            }
            _ => self.counters.violations += 1,
        }
        Ok(true)
    }

    /// A driver calls for the stack; a stack shows the memory that it is to be joined with.
    fn ask(&mut self) -> io::Result<()> {
        self.part();
        if self.role == Role::Driver {
            return self.tell(COME, 0, None);
        }
        let number = u64::from_ne_bytes(process::random()?);
        let half = Half::new(self.geometry)?;
        self.tell(JOIN, number, Some(&half))?;
        self.asking = Some((number, half));
        Ok(())
    }

    fn answer(&mut self, number: u64, memfd: &OwnedFd, bell: OwnedFd) -> io::Result<()> {
        self.part();
        let half = Half::new(self.geometry)?;
        if self.tell(JOINED, number, Some(&half)).is_err() {
            // He asks and does not listen.
            self.counters.violations += 1;
            return Ok(());
        }
        self.join(half, memfd, bell)
    }

    /// With memory that is none it comes to nothing, and the other end may try again.
    fn join(&mut self, half: Half, memfd: &OwnedFd, bell: OwnedFd) -> io::Result<()> {
        if memfd::check(memfd, bytes_of(self.geometry)).is_err() {
            self.counters.violations += 1;
            return Ok(());
        }
        let joined = Joined::new(half, memfd, bell, self.geometry)?;
        let (data, flags) = (epoll::EventData::new_u64(1), epoll::EventFlags::IN);
        epoll::add(&self.epoll, &joined.half.bell, data, flags)?;
        self.joined = Some(Box::new(joined));
        self.counters.joins += 1;
        Ok(())
    }

    /// Whatever was joined is so no more.
    fn part(&mut self) {
        self.held = None;
        self.asking = None;
        if let Some(joined) = self.joined.take() {
            // The other process has the doorbell too: closing ours takes it out of no epoll instance.
            let _ = epoll::delete(&self.epoll, &joined.half.bell);
        }
    }

    fn give_up(&mut self, _: Violation) {
        self.counters.violations += 1;
        // A link that takes no packet is that of somebody who reads none: he is called again when he starts anew.
        let _ = self.ask();
    }

    fn tell(&self, kind: u32, number: u64, half: Option<&Half>) -> io::Result<()> {
        let mut bytes = [0; LINK_BYTES];
        bytes[..4].copy_from_slice(&ABI_VERSION.to_ne_bytes());
        bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
        bytes[8..].copy_from_slice(&number.to_ne_bytes());
        match half {
            Some(half) => ipc::send(&self.link, &bytes, &[half.memfd.as_fd(), half.bell.as_fd()]),
            None => ipc::send(&self.link, &bytes, &[]),
        }
    }
}

/// Readable when there may be something to do.
impl AsFd for QueueEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Reads an eventfd to its end, never waiting: `O_NONBLOCK` is the other end's to change as well.
fn hear(bell: &OwnedFd) {
    let mut count = [0; 8];
    // Nothing there: it was not rung, or the other end has drained it.
    let _ = rustix::io::preadv2(
        bell,
        &mut [io::IoSliceMut::new(&mut count)],
        u64::MAX,
        ReadWriteFlags::NOWAIT,
    );
}
