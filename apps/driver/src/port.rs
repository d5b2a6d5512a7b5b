//! What a stack sends and receives frames by: a queue to a driver in another process, or the kernel's port itself.
//!
//! Who waits polls the port for [`Port::interest`] after [`Port::may_sleep`] said that nothing is there. Afterwards it calls
//! [`Port::awake`], and [`Port::woken`] if the port has shown something. A frame that comes is copied once into
//! memory that is the stack's alone, which it may change, or its head is, and the stack copies the rest; one that goes is made where
//! the driver or the kernel takes it from.

use fordway_platform::frames::{FRAME_BYTES_MAX, FrameFile, FrameNotes};
use fordway_platform::queue::{Foreign, Frame, QueueCounters, QueueEnd, Received, Role, Sent};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A frame that has come.
#[derive(Debug)]
pub struct Arrived<'a> {
    /// Of its length.
    pub bytes: &'a mut [u8],
    pub notes: FrameNotes,
    /// If only so many bytes were copied: where the whole frame lies, and may change at any moment.
    pub rest: Option<(usize, Foreign<'a>)>,
}

/// Shorter frames are copied whole: that costs less than two copies.
const BULK_BYTES_MIN: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct Port {
    end: End,
    /// Of what was received.
    buffer: Vec<u8>,
    /// Frames that the kernel did not take.
    refused: u64,
}

#[derive(Debug)]
enum End {
    Queue(Box<QueueEnd>),
    Kernel {
        file: FrameFile,
        made: Vec<u8>,
        /// What was made and found no room.
        left: Option<Frame>,
    },
}

impl Port {
    /// Frames that one call gives at most.
    pub const BURST: usize = 64;

    /// By a queue, over the link to a driver.
    pub fn queue(link: OwnedFd) -> io::Result<Port> {
        let end = QueueEnd::new(link, Role::Stack)?;
        Ok(Port::new(End::Queue(Box::new(end))))
    }

    /// By the kernel.
    pub fn kernel(file: FrameFile) -> Port {
        Port::new(End::Kernel {
            file,
            made: vec![0; FRAME_BYTES_MAX],
            left: None,
        })
    }

    fn new(end: End) -> Port {
        Port {
            end,
            buffer: vec![0; FRAME_BYTES_MAX],
            refused: 0,
        }
    }

    /// Gives each frame that has come, up to [`Port::BURST`]; how many. With fewer, there are no more.
    pub fn receive(&mut self, mut take: impl FnMut(&mut [u8], FrameNotes)) -> io::Result<usize> {
        self.receive_heads(usize::MAX, |arrived| take(arrived.bytes, arrived.notes))
    }

    /// The same; of a large frame in a queue only the first `head_bytes` are copied.
    pub fn receive_heads(
        &mut self,
        head_bytes: usize,
        mut take: impl FnMut(Arrived<'_>),
    ) -> io::Result<usize> {
        let buffer = &mut self.buffer;
        for count in 0..Port::BURST {
            match &mut self.end {
                End::Queue(queue) => {
                    let received = queue.receive(|frame, notes| {
                        let length = frame.bytes().min(buffer.len());
                        let bytes = &mut buffer[..length];
                        let is_bulk = length >= BULK_BYTES_MIN && length > head_bytes;
                        let here = if is_bulk { head_bytes } else { length };
                        frame.copy_to(0, &mut bytes[..here]);
                        let rest = is_bulk.then_some((here, frame));
                        take(Arrived { bytes, notes, rest });
                        true
                    });
                    if received == Received::Nothing {
                        return Ok(count);
                    }
                }
                End::Kernel { file, .. } => match file.receive(buffer) {
                    Ok(Some((length, notes))) => take(Arrived {
                        bytes: &mut buffer[..length],
                        notes,
                        rest: None,
                    }),
                    Ok(None) => return Ok(count),
                    // The link is down: each socket is told once.
                    Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                        return Ok(count);
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(Port::BURST)
    }

    /// Sends what is made, until nothing is (true), or there is no room for more (false): then nothing was asked for.
    pub fn send(&mut self, mut make: impl FnMut(&mut [u8]) -> Option<Frame>) -> io::Result<bool> {
        match &mut self.end {
            End::Queue(queue) => loop {
                match queue.send(&mut make) {
                    Sent::Frame => {}
                    Sent::Nothing => return Ok(true),
                    Sent::Full => return Ok(false),
                    // Without a driver frames are lost as on a cable that is not plugged in: what goes by the stack's own
                    // loopback, and its timers, do not wait for one.
                    Sent::Apart => {
                        while make(&mut self.buffer).is_some() {
                            self.refused += 1;
                        }
                        return Ok(true);
                    }
                }
            },
            End::Kernel { file, made, left } => loop {
                let Some(frame) = left.take().or_else(|| make(made)) else {
                    return Ok(true);
                };
                match file.send(&made[..frame.bytes], frame.notes) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        *left = Some(frame);
                        return Ok(false);
                    }
                    Err(error) if is_of_the_port(&error) => return Err(error),
                    Err(_) => self.refused += 1,
                }
            },
        }
    }

    /// What to poll the port for.
    pub fn interest(&self) -> PollFlags {
        match &self.end {
            End::Kernel { left: Some(_), .. } => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// To be called before a sleep; with `for_room`, room is waited for too. False: something is there.
    pub fn may_sleep(&mut self, for_room: bool) -> bool {
        match &mut self.end {
            End::Queue(queue) => queue.may_sleep(for_room),
            End::Kernel { .. } => true,
        }
    }

    /// To be called after each sleep: nobody knocks any more.
    pub fn awake(&self) {
        if let End::Queue(queue) = &self.end {
            queue.awake();
        }
    }

    /// To be called when the port has shown something, or every now and then.
    pub fn woken(&mut self) -> io::Result<()> {
        match &mut self.end {
            End::Queue(queue) => queue.woken(),
            End::Kernel { .. } => Ok(()),
        }
    }

    /// Frames that the kernel did not take.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What has happened at the queue, if it is one.
    pub fn queue_counters(&self) -> Option<QueueCounters> {
        match &self.end {
            End::Queue(queue) => Some(queue.counters()),
            End::Kernel { .. } => None,
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.end {
            End::Queue(queue) => queue.as_fd(),
            End::Kernel { file, .. } => file.as_fd(),
        }
    }
}

/// Whether an error is the interface's, which is gone, and not one frame's.
pub(crate) fn is_of_the_port(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENXIO | libc::ENODEV | libc::EBADF | libc::EBADFD)
    )
}
