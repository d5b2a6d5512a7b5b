//! What a part is told when it is started: one JSON document in the descriptor that its argument names. That is the end of a pipe, for
//! a part is told when it is written down who it is (`fordwayd`'s `stacks`); one that is told nothing ends.
//!
//! The broker puts beside it which version it is. What the two say to each other then is understood; another one's words are not
//! looked at.

use crate::orders;
use fordway_abi::ABI_VERSION;
use fordway_platform::launch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;

/// What has to be alike in a broker and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Of queues, rings and sockets.
    pub abi: u32,
    /// Of orders, links, and this document.
    pub orders: u32,
}

impl Version {
    /// This one.
    pub const OWN: Version = Version {
        abi: ABI_VERSION,
        orders: orders::VERSION,
    };
}

/// Where the version stands in the document. Who starts a part by hand need not give it.
const VERSION: &str = "version";

/// The document of a part.
pub fn written(config: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut document = serde_json::to_value(config)?;
    document[VERSION] = serde_json::to_value(Version::OWN)?;
    serde_json::to_vec(&document)
}

/// Reads the document from an inherited descriptor.
pub fn read<C: DeserializeOwned>(number: i32) -> io::Result<C> {
    let mut text = Vec::new();
    match number {
        0 => io::stdin().read_to_end(&mut text)?,
        _ => File::from(launch::inherited(number)?).read_to_end(&mut text)?,
    };
    parsed(&text)
}

fn parsed<C: DeserializeOwned>(text: &[u8]) -> io::Result<C> {
    if text.is_empty() {
        return Err(io::Error::other(
            "no configuration came: the broker has ended",
        ));
    }
    let mut document: serde_json::Value = serde_json::from_slice(text)?;
    let version = document.as_object_mut().and_then(|all| all.remove(VERSION));
    if let Some(version) = version
        && serde_json::from_value(version.clone()).ok() != Some(Version::OWN)
    {
        let own = Version::OWN;
        return Err(io::Error::other(format!(
            "the broker is of another version ({version}) than this program (abi {}, orders {}); start the broker anew",
            own.abi, own.orders
        )));
    }
    Ok(serde_json::from_value(document)?)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_versions_words_are_not_looked_at() {
        let said = |text: &[u8]| parsed::<DriverConfig>(text).expect_err("read").to_string();
        assert!(said(b"").contains("the broker has ended"));
        let other = r#"{"version": {"abi": 1, "orders": 0}, "whatever": 1}"#;
        assert!(said(other.as_bytes()).contains("another version"));
        let other = r#"{"version": "2", "whatever": 1}"#;
        assert!(said(other.as_bytes()).contains("another version"));
        let config = DriverConfig {
            wire: Wire::Tap(3),
            link: 4,
            mac: Mac([2, 0, 0, 0, 0, 5]),
            addresses: Vec::new(),
            uid: 7,
        };
        let text = written(&config).expect("JSON");
        let read: DriverConfig = parsed(&text).expect("a configuration");
        assert_eq!((read.link, read.uid), (config.link, config.uid));
        // By hand.
        let text = serde_json::to_vec(&config).expect("JSON");
        assert!(parsed::<DriverConfig>(&text).is_ok());
    }
}
