//! What the command line asks for.
//!
//! | word | meaning |
//! |---|---|
//! | `ip=10.0.0.2/24` | an address; without one DHCP is asked |
//! | `gw=10.0.0.1` | the router |
//! | `dns=10.0.0.1` | a name server, where DHCP names none |
//! | `lookup=NAME` | asks for a name after the start, and says what came back |
//! | `port=8080` | instead of the application's own |
//! | `ping=10.0.0.1` | sends four pings to it after the start, and says what came back |
//! | `off=split,suppression,gso,csum,batching,persistent` | turns optimisations of the driver off |
//! | `queues=4` | at most so many queues of the device, where the backend offers them |
//! | `congestion=none` | no congestion control: for peers on the same host only |
//! | `congestion=cubic` | from the first segment on, also towards neighbors |
//! | `send=KB`, `receive=KB` | buffers of one connection |

use crate::stack;
use core::net::{IpAddr, Ipv4Addr};
use fordway_netfront::Switches;
use fordway_netstack::{Cidr, Congestion};
use fordway_xen_guest::command_line::CommandLine;

pub struct Options {
    pub address: Option<Cidr>,
    pub gateway: Option<IpAddr>,
    pub port: Option<u16>,
    pub ping: Option<Ipv4Addr>,
    pub name_server: Option<IpAddr>,
    pub lookup: Option<&'static str>,
    pub switches: Switches,
    pub queues: u32,
    pub congestion: Congestion,
    pub send_bytes: usize,
    pub receive_bytes: usize,
}

/// A word that cannot be understood.
pub struct Unclear(pub &'static str);

impl Options {
    /// `memory_bytes` is what the domain has: small domains get small buffers.
    pub fn read(
        line: CommandLine<'static>,
        defaults: Switches,
        memory_bytes: usize,
    ) -> Result<Options, Unclear> {
        let mut switches = defaults;
        for name in line
            .value("off")
            .unwrap_or("")
            .split(',')
            .filter(|name| !name.is_empty())
        {
            match name {
                "split" => switches.split = false,
                "suppression" => switches.suppression = false,
                "gso" => switches.gso = false,
                "csum" => switches.csum = false,
                "batching" => switches.batching = false,
                "persistent" => switches.persistent = false,
                _ => return Err(Unclear(name)),
            }
        }
        let kilobytes = |key: &str, default: usize| match line.value(key) {
            None => Ok(default),
            Some(text) => text
                .parse::<usize>()
                .map(|kb| kb * 1024)
                .map_err(|_| Unclear(text)),
        };
        let (send_bytes, receive_bytes) = stack::buffers(memory_bytes);
        Ok(Options {
            address: line
                .value("ip")
                .map(|text| cidr(text).ok_or(Unclear(text)))
                .transpose()?,
            gateway: parsed(line, "gw")?,
            port: parsed(line, "port")?,
            ping: parsed(line, "ping")?,
            name_server: parsed(line, "dns")?,
            lookup: line.value("lookup"),
            switches,
            queues: parsed(line, "queues")?.unwrap_or(1),
            congestion: match line.value("congestion") {
                None => stack::CONGESTION,
                Some("cubic") => Congestion::Cubic,
                Some("none") => Congestion::None,
                Some(text) => return Err(Unclear(text)),
            },
            send_bytes: kilobytes("send", send_bytes)?,
            receive_bytes: kilobytes("receive", receive_bytes)?,
        })
    }
}

fn parsed<T: core::str::FromStr>(
    line: CommandLine<'static>,
    key: &str,
) -> Result<Option<T>, Unclear> {
    line.value(key)
        .map(|text| text.parse().map_err(|_| Unclear(text)))
        .transpose()
}

fn cidr(text: &str) -> Option<Cidr> {
    let (address, prefix) = text.split_once('/')?;
    Some(Cidr::new(address.parse().ok()?, prefix.parse().ok()?))
}
