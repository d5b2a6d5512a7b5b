//! sched.h.

pub const YIELD: usize = 0;
pub const SHUTDOWN: usize = 2;
pub const POLL: usize = 3;

/// The argument of `SHUTDOWN`.
#[repr(C)]
pub struct Shutdown {
    pub reason: u32,
}

/// Why a domain ends, as the toolstack sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    PowerOff = 0,
    Reboot = 1,
    Suspend = 2,
    Crash = 3,
}

/// The argument of `POLL`: sleeps until one of the channels is pending, whether it is masked
/// or not, or until the system time `timeout_ns` (0: never).
#[repr(C)]
pub struct Poll {
    pub ports: *const u32,
    pub port_count: u32,
    pub timeout_ns: u64,
}

/// How many channels one `POLL` may name.
pub const POLL_PORTS_MAX: usize = 128;
