//! What a driver is told when it is started: one JSON document in the descriptor that its argument names.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Where the kernel's frames are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// A packet socket of this interface.
    Packet(String),
    /// AF_XDP on this interface.
    Xdp(String),
    /// An inherited descriptor: the end of a tap device.
    Tap(i32),
}

/// The document.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverConfig {
    /// The port.
    pub wire: Wire,
    /// Number of the inherited descriptor of the link to the stack.
    pub link: i32,
    /// The only Ethernet address that the stack may send from.
    pub mac: Mac,
    /// The only addresses.
    pub addresses: Vec<IpAddr>,
    /// The user, and the group, that the driver becomes; 0: it stays who it is, with all its rights.
    pub uid: u32,
}

/// An Ethernet address, as text in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.0.map(|byte| format!("{byte:02x}")).join(":")
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Mac, String> {
        let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
        let bytes: Result<Vec<u8>, _> = bytes.collect();
        let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Mac)
            .ok_or(format!("\"{text}\" is no Ethernet address"))
    }
}
