//! What every Xen frontend driver needs, without unsafe code.
//!
//! * [`Guest`]: what a driver asks of the kernel it runs in.
//! * [`Buffer`], [`Pool`]: pages that are shared with a backend, and those that it keeps although
//!   they were to be taken back.
//! * [`Ring`]: the frontend's half of a shared ring.
//! * [`Channel`]: an event channel whose other end may notify it as often as it likes.
//! * [`Device`], [`State`]: how the two sides tell each other in XenStore where they stand.
//!
//! The backend is hostile here as everywhere: a frontend keeps its own indices to itself, reads
//! foreign words once, and gives no page away twice.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod channel;
mod device;
mod guest;
mod pool;
mod ring;

pub use channel::Channel;
pub use device::Device;
pub use guest::{GrantRef, Guest, Port};
pub use pool::{Buffer, Pool};
pub use ring::{Garbage, Ring};

/// `XenbusState*` of io/xenbus.h; what is none of them is Unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Unknown,
    Initialising,
    InitWait,
    Initialised,
    Connected,
    Closing,
    Closed,
}

impl State {
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Initialising,
        Self::InitWait,
        Self::Initialised,
        Self::Connected,
        Self::Closing,
        Self::Closed,
    ];

    /// As it is written in XenStore.
    pub fn from_code(code: Option<u32>) -> Self {
        let known = code.and_then(|code| Self::ALL.get(code as usize));
        known.copied().unwrap_or_default()
    }
}
