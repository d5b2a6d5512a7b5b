//! The reasons for which rules have to see each packet of a connection, with their names.

/// Why a connection cannot be decided about once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EachPacket {
    Limit,
    Quota,
    Log,
    ConnectionCount,
    Payload,
    Length,
    Mark,
    Time,
    Random,
    Nat,
    SetUpdate,
    Mangle,
    /// Which end connected.
    Direction,
    /// Something else that is not known of the connection.
    Unknown,
}

impl EachPacket {
    pub fn name(self) -> &'static str {
        match self {
            EachPacket::Limit => "limit",
            EachPacket::Quota => "quota",
            EachPacket::Log => "log",
            EachPacket::ConnectionCount => "ct count",
            EachPacket::Payload => "payload",
            EachPacket::Length => "length",
            EachPacket::Mark => "mark",
            EachPacket::Time => "time",
            EachPacket::Random => "random",
            EachPacket::Nat => "nat",
            EachPacket::SetUpdate => "set update",
            EachPacket::Mangle => "payload set",
            EachPacket::Direction => "direction",
            EachPacket::Unknown => "unknown",
        }
    }
}
