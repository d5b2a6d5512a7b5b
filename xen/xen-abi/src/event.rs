//! event_channel.h.

pub const BIND_INTERDOMAIN: usize = 0;
pub const CLOSE: usize = 3;
pub const SEND: usize = 4;
pub const ALLOC_UNBOUND: usize = 6;
pub const UNMASK: usize = 9;

#[repr(C)]
pub struct AllocUnbound {
    pub domain: u16,
    pub remote_domain: u16,
    /// out
    pub port: u32,
}

#[repr(C)]
pub struct BindInterdomain {
    pub remote_domain: u16,
    pub remote_port: u32,
    /// out
    pub port: u32,
}

/// The argument of `SEND`, `CLOSE` and `UNMASK`.
#[repr(C)]
pub struct Port {
    pub port: u32,
}

/// xen.h: `VIRQ_TIMER`.
pub const VIRQ_TIMER: u32 = 0;

/// Words of pending bits in the shared page, each of 64 channels.
pub const WORDS: usize = 64;
/// Channels that the two-level bitmap can name.
pub const CHANNELS_MAX: u32 = (WORDS * 64) as u32;
