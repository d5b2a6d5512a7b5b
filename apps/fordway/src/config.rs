//! The configuration file and what the command line puts over it.

use crate::exit::{Exit, Failure};
use fordway_abi::vsock;
use fordwayd::{Network, Network6};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Read if it exists and `--config` is not given.
pub const DEFAULT_FILE: &str = "/etc/fordway/fordway.toml";

/// The file's keys; others are refused.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Network of the domains, in CIDR form.
    pub network: Option<String>,
    /// As `--network6`.
    pub network6: Option<String>,
    /// As `--runtime-dir`.
    pub runtime_dir: Option<PathBuf>,
    /// As `--uplink`.
    pub uplink: Option<bool>,
    /// As `--vsock`.
    pub vsock: Option<bool>,
    /// As `--ring-memory-max`.
    pub ring_memory_max: Option<String>,
    /// What the broker logs: error, warn, info, debug, trace, or several with commas between.
    pub log: Option<String>,
    /// What `serve` serves; `up` starts it if this is there.
    pub metrics: Option<Metrics>,
}

/// The section of `serve`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// As `serve --metrics`.
    pub listen: Option<String>,
}

/// Network of the domains unless something else is said.
const DEFAULT_NETWORK: &str = "10.77.0.0/24";

/// The network: the command line's, the file's or the default.
pub fn network(given: Option<&str>, file: &File) -> Result<Network, Failure> {
    let given = given.map(|text| (text, Exit::Usage));
    let configured = file.network.as_deref().map(|text| (text, Exit::Config));
    let (text, exit) = given
        .or(configured)
        .unwrap_or((DEFAULT_NETWORK, Exit::Internal));
    parse_network(text).ok_or_else(|| {
        let place = if exit == Exit::Config { "network in the configuration: " } else { "" };
        let message = format!("{place}\"{text}\" is no network; give an IPv4 one like {DEFAULT_NETWORK} with a prefix of 8 to 30");
        Failure::new(exit, message)
    })
}

/// The IPv6 network unless something else is said: unique local, its global ID once drawn by lot (RFC 4193,
/// 3.2). It is the same on every machine, as the IPv4 one is: neither leaves the fabric.
const DEFAULT_NETWORK6: &str = "fdbb:bad8:6eca::/64";
/// Domains have IPv4 addresses only.
const NO_NETWORK6: &str = "none";

/// The IPv6 network, likewise.
pub fn network6(given: Option<&str>, file: &File) -> Result<Option<Network6>, Failure> {
    let given = given.map(|text| (text, Exit::Usage));
    let configured = file.network6.as_deref().map(|text| (text, Exit::Config));
    let (text, exit) = given
        .or(configured)
        .unwrap_or((DEFAULT_NETWORK6, Exit::Internal));
    let network = |text: &str| {
        let (address, prefix) = text.split_once('/')?;
        Network6::new(address.parse().ok()?, prefix.parse().ok()?)
    };
    let is_of_vsock = |network: &Network6| network.meets(vsock::address_of(0), vsock::PREFIX_BITS);
    match text {
        NO_NETWORK6 => Ok(None),
        text if network(text).as_ref().is_some_and(is_of_vsock) => {
            let place = if exit == Exit::Config { "network6 in the configuration: " } else { "" };
            let (own, bits) = (vsock::address_of(0), vsock::PREFIX_BITS);
            let message = format!("{place}\"{text}\" has addresses of {own}/{bits}, which stand for CIDs of AF_VSOCK; give another network");
            Err(Failure::new(exit, message))
        }
        text => network(text).map(Some).ok_or_else(|| {
            let place = if exit == Exit::Config { "network6 in the configuration: " } else { "" };
            let message = format!("{place}\"{text}\" is no network; give a unique local or global IPv6 one like {DEFAULT_NETWORK6} with a prefix of 16 to 96, or none");
            Failure::new(exit, message)
        }),
    }
}

/// The network of a broker that says this of it; the default one where none answers.
pub fn network_of(said: Option<&str>) -> Network {
    let default = || parse_network(DEFAULT_NETWORK).unwrap_or_else(|| unreachable!());
    said.and_then(parse_network).unwrap_or_else(default)
}

/// Most ring memory of a domain, in bytes: the command line's, the file's, or half of the
/// machine's memory, as tmpfs(5) does.
pub fn ring_bytes_max(given: Option<&str>, file: &File) -> Result<u64, Failure> {
    let given = given.map(|text| (text, Exit::Usage));
    let configured = file.ring_memory_max.as_deref();
    let Some((text, exit)) = given.or(configured.map(|text| (text, Exit::Config))) else {
        let memory = rustix::system::sysinfo();
        return Ok(memory.totalram as u64 * u64::from(memory.mem_unit) / 2);
    };
    parse_bytes(text).ok_or_else(|| {
        let message = format!("\"{text}\" is no size; give bytes, or a number with K, M or G");
        Failure::new(exit, message)
    })
}

/// A number of bytes, or of KiB, MiB or GiB.
fn parse_bytes(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

fn parse_network(text: &str) -> Option<Network> {
    let (address, prefix) = text.split_once('/')?;
    Network::new(address.parse().ok()?, prefix.parse().ok()?)
}

/// Where `serve` listens unless something else is said. No well-known port; exporters of others avoid it.
pub const METRICS_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9477);

/// Where `serve` listens by the file's word; `None`: the file has nothing of it.
pub fn metrics(file: &File) -> Result<Option<SocketAddr>, Failure> {
    let Some(metrics) = &file.metrics else {
        return Ok(None);
    };
    let Some(text) = &metrics.listen else {
        return Ok(Some(METRICS_DEFAULT));
    };
    let parsed = text.parse().map_err(|_| {
        let message = format!(
            "metrics.listen = \"{text}\" is no address with a port, such as {METRICS_DEFAULT}"
        );
        Failure::new(Exit::Config, message)
    });
    parsed.map(Some)
}

/// What the broker logs: by the command line, the file, or the default.
pub fn log<'t>(given: Option<&'t str>, file: &'t File) -> Result<&'t str, Failure> {
    let configured = || file.log.as_deref().map(|text| (text, Exit::Config));
    let given = given.map(|text| (text, Exit::Usage)).or_else(configured);
    let (text, exit) = given.unwrap_or((fordwayd::log::DEFAULT, Exit::Internal));
    let place = if exit == Exit::Config {
        "log in the configuration: "
    } else {
        ""
    };
    let checked = fordwayd::log::check(text);
    checked.map_err(|why| Failure::new(exit, format!("{place}{why}")))?;
    Ok(text)
}

/// Reads the file that is named, or the default one.
pub fn read(given: Option<&Path>) -> Result<File, Failure> {
    match given {
        Some(file) => read_file(file),
        None => Ok(read_default()?.unwrap_or_default()),
    }
}

fn read_default() -> Result<Option<File>, Failure> {
    let file = Path::new(DEFAULT_FILE);
    file.exists().then(|| read_file(file)).transpose()
}

/// The default file as `up` would take it: where it lies, if there is one.
pub fn check() -> Result<Option<&'static str>, Failure> {
    let Some(file) = read_default()? else {
        return Ok(None);
    };
    network(None, &file)?;
    network6(None, &file)?;
    ring_bytes_max(None, &file)?;
    log(None, &file)?;
    metrics(&file)?;
    Ok(Some(DEFAULT_FILE))
}

/// The runtime directory of the default file, for the commands that talk to the
/// broker. A file that cannot be read is `up`'s and `doctor`'s to complain of.
pub fn runtime_dir() -> Option<PathBuf> {
    read_file(Path::new(DEFAULT_FILE)).ok()?.runtime_dir
}

fn read_file(file: &Path) -> Result<File, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(Exit::Config, format!("{shown}: {error}")))?;
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
        let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
        let what = error.message();
        Failure::new(Exit::Config, format!("{shown}, line {line}: {what}"))
    })
}
