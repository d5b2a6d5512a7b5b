//! A driver: the frames of one port of the fabric, for the stack of one program.
//!
//! ```text
//!   bridge ── tap ══ Forwarder ══ queue ══ stack          two processes
//!   bridge ── tap ══ stack                                one ("fused")
//! ```
//! - `port`: what a stack sends and receives by: a queue to a driver, or the kernel's port itself.
//! - `forward`: the loop of a driver that is a process of its own.
//! - `wire`: the kernel's port of such a process, of each kind.
//! - `guard`: what a stack may send.
//! - `confine`: what is given up before the first frame is looked at.
//! - `orders`: what broker and stack say to each other.
//! - `config`: what a driver is told when it is started; `process`: from there to the loop.
//!
//! # What the process is for
//! It alone has the port, the end of a tap device that it inherits, and does nothing else: it reads of each frame the addresses in its
//! header. A stack, which reads all that comes from a network, has no right but to its two queues.
#![forbid(unsafe_code)]

pub mod config;
pub mod confine;
pub mod forward;
pub mod guard;
pub mod orders;
pub mod port;
mod process;
pub mod wire;

pub use fordway_platform::frames::{FRAME_BYTES_MAX, FrameNotes};
pub use fordway_platform::queue::{Foreign, Frame};
pub use port::{Arrived, Port};
pub use process::{main, tell};
