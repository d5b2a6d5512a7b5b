//! io/console.h: the console's page.

/// Offsets in `struct xencons_interface`.
pub mod offset {
    pub const IN: usize = 0;
    pub const OUT: usize = 1024;
    pub const IN_CONSUMER: usize = 3072;
    pub const IN_PRODUCER: usize = 3076;
    pub const OUT_CONSUMER: usize = 3080;
    pub const OUT_PRODUCER: usize = 3084;
}

pub const IN_SIZE: usize = 1024;
pub const OUT_SIZE: usize = 2048;
