//! io/xs_wire.h: XenStore's messages and the page that carries them.

pub mod wire;

/// Offsets in `struct xenstore_domain_interface`.
pub mod offset {
    pub const REQUESTS: usize = 0;
    pub const RESPONSES: usize = 1024;
    pub const REQUEST_CONSUMER: usize = 2048;
    pub const REQUEST_PRODUCER: usize = 2052;
    pub const RESPONSE_CONSUMER: usize = 2056;
    pub const RESPONSE_PRODUCER: usize = 2060;
}

/// Bytes of each of the two rings.
pub const RING_SIZE: usize = 1024;
/// The longest payload of one message.
pub const PAYLOAD_MAX: usize = 4096;
/// Bytes of a message's header: type, request id, transaction id, payload length.
pub const HEADER_SIZE: usize = 16;

/// `enum xsd_sockmsg_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Directory = 1,
    Read = 2,
    Watch = 4,
    Unwatch = 5,
    TransactionStart = 6,
    TransactionEnd = 7,
    Write = 11,
    MakeDirectory = 12,
    Remove = 13,
    SetPermissions = 14,
    WatchEvent = 15,
    Error = 16,
}
