//! What a stack is told when it is started: one JSON document.

use anyhow::{Context, Result, bail};
use fordway_driver::orders::Ends;
use fordway_netstack::{Cidr, Mac, Route};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;

/// See the module. Unknown words are an error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where programs ask for sockets.
    pub control_socket: PathBuf,
    /// Of the one namespace whose programs are served (SO_NETNS_COOKIE): a socket's path leads there from others, too.
    pub netns_cookie: u64,
    /// How frames come and go.
    pub port: PortConfig,
    /// Six numbers of two digits, base 16, with colons between.
    pub mac: String,
    #[serde(default = "mtu_usual")]
    pub mtu_bytes: usize,
    /// `address/bits`.
    pub addresses: Vec<String>,
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// Sockets at one time.
    #[serde(default = "sockets_usual")]
    pub sockets_max: usize,
    /// The user, and the group, that the process is; 0: it keeps all its rights.
    #[serde(default)]
    pub uid: u32,
    /// What has to be in this binary: `tcp`, `udp`, `icmp`, `ipv6`. If any is named, of `tcp`, `udp` and `ipv6` the
    /// others give no sockets.
    #[serde(default)]
    pub protocols: Vec<String>,
    /// Whether the others on the link are asked for each address of IPv6 before it is used (RFC 4862), and whether routers are heard
    /// (RFC 4861). If it is not said, the port says so (`six`).
    pub detects_duplicates: Option<bool>,
    pub router_advertisements: Option<bool>,
    /// The inherited descriptors by which the broker gives orders. Without, nobody does.
    pub orders: Option<Ends>,
}

/// How frames come and go.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PortConfig {
    /// A packet socket on this interface of the process's network namespace.
    Packet(String),
    /// An inherited descriptor: the end of a tap device.
    Tap(i32),
    /// By a queue to a driver; the inherited descriptor of the link between the two.
    Queue { link: i32 },
}

/// Packets to `to` go to `via`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// `address/bits`.
    pub to: String,
    pub via: IpAddr,
}

fn mtu_usual() -> usize {
    1500
}

fn sockets_usual() -> usize {
    16_384
}

fn cidr(text: &str) -> Result<Cidr> {
    let (address, bits) = text
        .split_once('/')
        .with_context(|| format!("{text:?} is no address/bits"))?;
    let address: IpAddr = address.parse().with_context(|| format!("in {text:?}"))?;
    let bits: u8 = bits.parse().with_context(|| format!("in {text:?}"))?;
    if bits > if address.is_ipv4() { 32 } else { 128 } {
        bail!("{text:?} has too many bits");
    }
    Ok(Cidr::new(address, bits))
}

impl Config {
    pub(crate) fn mac(&self) -> Result<Mac> {
        let digits: Vec<_> = self
            .mac
            .split(':')
            .map(|two| u8::from_str_radix(two, 16))
            .collect::<Result<_, _>>()
            .context("mac")?;
        Mac::try_from(digits).map_err(|_| anyhow::anyhow!("mac {:?} is none", self.mac))
    }

    /// The stack's addresses, that of the link among them.
    pub(crate) fn addresses(&self) -> Result<Vec<Cidr>> {
        let mut all: Vec<_> = self
            .addresses
            .iter()
            .map(|text| cidr(text))
            .collect::<Result<_>>()?;
        #[cfg(feature = "ipv6")]
        all.push(Cidr::link_local(&self.mac()?));
        if !cfg!(feature = "ipv6") || !self.serves("ipv6") {
            all.retain(|own| own.address.is_ipv4());
        }
        Ok(all)
    }

    pub(crate) fn routes(&self) -> Result<Vec<Route>> {
        let route = |route: &RouteConfig| {
            Ok(Route {
                destination: cidr(&route.to)?,
                gateway: route.via,
            })
        };
        self.routes.iter().map(route).collect()
    }

    /// Whether programs get sockets of this protocol: none is named, or this one.
    pub(crate) fn serves(&self, protocol: &str) -> bool {
        self.protocols.is_empty() || self.protocols.iter().any(|named| named == protocol)
    }

    /// Whether this binary has what is asked for.
    pub(crate) fn check_protocols(&self) -> Result<()> {
        const HAS: [(&str, bool); 4] = [
            ("tcp", cfg!(feature = "tcp")),
            ("udp", cfg!(feature = "udp")),
            ("icmp", cfg!(feature = "icmp")),
            ("ipv6", cfg!(feature = "ipv6")),
        ];
        for protocol in &self.protocols {
            if !HAS.contains(&(protocol, true)) {
                bail!("this stack has no {protocol}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_whole_or_not() {
        let text = r#"{"control_socket": "/run/s", "netns_cookie": 7, "port": {"packet": "eth0"}, "mac": "02:00:00:00:00:05",
            "addresses": ["10.70.0.5/16"], "routes": [{"to": "0.0.0.0/0", "via": "10.70.0.1"}]}"#;
        let config: Config = serde_json::from_str(text).expect("a configuration");
        assert_eq!(config.mac().expect("a mac"), [2, 0, 0, 0, 0, 5]);
        assert_eq!(config.routes().expect("routes").len(), 1);
        assert_eq!(config.mtu_bytes, 1500);
        let unknown = text.replace("\"mac\"", "\"mak\"");
        assert!(serde_json::from_str::<Config>(&unknown).is_err());
        assert!(config.serves("tcp") && config.serves("ipv6"));
        for bad in ["10.0.0.1", "10.0.0.1/33", "x/8", "::1/129"] {
            assert!(cidr(bad).is_err(), "{bad}");
        }
    }
    #[test]
    fn what_is_not_named_is_not_served() {
        let text = r#"{"control_socket": "/run/s", "netns_cookie": 7, "port": {"packet": "eth0"}, "mac": "02:00:00:00:00:05",
            "addresses": ["10.70.0.5/16", "fd70::5/64"], "protocols": ["udp", "icmp"]}"#;
        let mut config: Config = serde_json::from_str(text).expect("a configuration");
        assert!(config.serves("udp") && !config.serves("tcp") && !config.serves("ipv6"));
        assert_eq!(config.addresses().expect("addresses").len(), 1);
        config.protocols.push("sctp".to_owned());
        assert!(config.check_protocols().is_err());
    }
}
