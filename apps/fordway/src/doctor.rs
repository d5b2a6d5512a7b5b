//! `fordway doctor`: what Fordway needs of this machine, each point tried.
//!
//! `fail` is what keeps the fast path, or for root the domains, from working; `warn`
//! is what one can do without. Each that is not `ok` says what to do.

use crate::broker::Broker;
use crate::config;
use crate::exit::{Exit, Failure, Outcome};
use crate::places;
use crate::show;
use crate::table::wrap;
use fordway_abi::ABI_VERSION;
use fordway_platform::fabric::{self, Fabric};
use fordway_platform::{launch, probe, tap};
use fordwayd::admin::SCHEMA;
use serde::Serialize;
use serde_json::json;
use std::io;
use std::path::Path;

/// As wide as the columns before a check's text.
const INDENT: &str = "                    ";
/// The oldest kernel that has what pairing rests on (SO_NETNS_COOKIE).
const KERNEL_MIN: (u32, u32) = (5, 14);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    text: String,
    /// What to do about it.
    advice: Option<String>,
}

/// `fordway doctor`.
pub fn doctor(broker: Result<Broker, Failure>, json: bool) -> Outcome {
    let root = launch::has_sys_admin();
    let cookie = probe::netns_cookie().map(drop);
    let checks = [
        kernel(),
        feature("memfd-seals", probe::memfd_seals(), State::Fail, "5.1"),
        feature("peer-pidfd", probe::peer_pidfd(), State::Warn, "6.5"),
        feature("netns-cookie", cookie, State::Fail, "5.14"),
        inet_diag(),
        udp_diag(),
        tool("ip", root),
        tool("nft", root),
        domains(root),
        tun(),
        ipv6(),
        mounts(root),
        shim(),
        configuration(),
        running(broker),
    ];
    let healthy = checks.iter().all(|check| check.state != State::Fail);
    if json {
        show::document(&json!({ "schema": SCHEMA, "healthy": healthy, "checks": checks }))?;
    } else {
        show::print(&checks.iter().map(line).collect::<String>())?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Unhealthy })
}

fn line(check: &Check) -> String {
    let Check {
        name,
        state,
        text,
        advice,
    } = check;
    let word = format!("{state:?}").to_lowercase();
    let advice = advice.iter().map(|advice| format!("; {advice}"));
    let advice: String = advice.collect();
    wrap(&format!("{word:<5} {name:<13} {text}{advice}"), INDENT) + "\n"
}

fn kernel() -> Check {
    let (major, minor) = KERNEL_MIN;
    match probe::kernel_version() {
        Some(version) if version >= KERNEL_MIN => {
            ok("kernel", format!("Linux {}.{}", version.0, version.1))
        }
        Some(version) => {
            let text = format!("Linux {}.{} is too old", version.0, version.1);
            let advice = format!("boot Linux {major}.{minor} or later");
            bad("kernel", State::Fail, text, advice)
        }
        None => bad(
            "kernel",
            State::Warn,
            "its version is not understood",
            format!("make sure that it is Linux {major}.{minor} or later"),
        ),
    }
}

fn feature(name: &'static str, tried: io::Result<()>, otherwise: State, since: &str) -> Check {
    match tried {
        Ok(()) => ok(name, "works"),
        Err(error) => {
            let advice = format!("Linux {since} has it");
            bad(name, otherwise, error.to_string(), advice)
        }
    }
}

/// The broker asks it whose a socket is: without it, it finds no socket.
fn inet_diag() -> Check {
    const NAME: &str = "inet-diag";
    match probe::inet_diag() {
        Ok(()) => ok(NAME, "works"),
        Err(error) => {
            let text = format!("sock_diag: {error}; every connection stays on the kernel path");
            let advice = "load the kernel modules inet_diag and tcp_diag; a container's filter must allow AF_NETLINK";
            bad(NAME, State::Fail, text, advice)
        }
    }
}

/// The broker asks it who gets a datagram.
fn udp_diag() -> Check {
    const NAME: &str = "udp-diag";
    match probe::udp_diag() {
        Ok(()) => ok(NAME, "works"),
        Err(error) => {
            let text = format!("sock_diag: {error}; datagrams stay on the kernel path");
            let advice =
                "load the kernel module udp_diag; a container's filter must allow AF_NETLINK";
            bad(NAME, State::Warn, text, advice)
        }
    }
}

fn tool(name: &'static str, root: bool) -> Check {
    match fabric::find_tool(name) {
        Ok(file) => ok(name, file.display().to_string()),
        Err(error) => {
            let (text, advice) = split(&error.to_string());
            let otherwise = if root { State::Fail } else { State::Warn };
            bad(name, otherwise, text, advice)
        }
    }
}

fn domains(root: bool) -> Check {
    if !root {
        let advice = "become root for domains; fordway run --here works without";
        return bad("domains", State::Warn, "no CAP_SYS_ADMIN", advice);
    }
    match Fabric::probe() {
        Ok(()) => ok("domains", "namespaces, bridge and nftables work"),
        Err(error) => {
            let advice =
                "the kernel needs network namespaces, bridge and nf_tables (bridge family)";
            bad("domains", State::Fail, error.to_string(), advice)
        }
    }
}

/// What ports of domains with a stack of their own are made of. Root makes them: that others may not open it is no fault.
fn tun() -> Check {
    match tap::device() {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            let text = format!(
                "{}: {error}; domains have no network stack of their own (--path stack)",
                tap::DEVICE
            );
            bad(
                "tun",
                State::Warn,
                text,
                "load the kernel module: modprobe tun",
            )
        }
        Ok(_) | Err(_) => ok("tun", format!("{} is there", tap::DEVICE)),
    }
}

fn ipv6() -> Check {
    const NAME: &str = "ipv6";
    match fabric::has_ipv6() {
        true => ok(NAME, "domains have addresses of both families"),
        false => {
            let text = "the kernel has no IPv6, or has it off: domains have IPv4 addresses only";
            let advice = "switch it on: sysctl net.ipv6.conf.all.disable_ipv6=0; or leave it so";
            bad(NAME, State::Warn, text, advice)
        }
    }
}

/// What `fordway run --domain` does to the mounts.
fn mounts(root: bool) -> Check {
    const NAME: &str = "mounts";
    if root && !launch::root_is_mount() {
        let text = "/ is no mount point (a chroot?): fordway run --domain fails";
        let advice = "bind it onto itself before chroot: mount --bind DIR DIR";
        return bad(NAME, State::Fail, text, advice);
    }
    // The broker makes one where it can.
    let may_be_made = rustix::fs::access("/etc", rustix::fs::Access::WRITE_OK).is_ok();
    if !Path::new(launch::HOSTS).exists() && !may_be_made {
        let text = format!("there is no {}: domains have no names", launch::HOSTS);
        return bad(NAME, State::Warn, text, "create an empty one");
    }
    ok(NAME, "/ and /etc/hosts can be a program's own")
}

fn shim() -> Check {
    match places::shim() {
        Ok(file) => ok(
            "shim",
            format!("{} (ABI version {ABI_VERSION})", file.display()),
        ),
        Err(failure) => {
            let (text, advice) = split(&failure.message);
            bad("shim", State::Fail, text, advice)
        }
    }
}

fn configuration() -> Check {
    const NAME: &str = "configuration";
    match config::check() {
        Ok(Some(file)) => ok(NAME, format!("{file} is right")),
        Ok(None) => ok(NAME, "no file; the defaults hold"),
        Err(failure) => {
            let advice = "mend the file; fordway up --check-config reads it again";
            bad(NAME, State::Fail, failure.message, advice)
        }
    }
}

fn running(broker: Result<Broker, Failure>) -> Check {
    let info = match broker.and_then(|broker| broker.info()) {
        Ok(info) => info,
        Err(failure) => {
            let (text, advice) = split(&failure.message);
            return bad("broker", State::Warn, text, advice);
        }
    };
    let mine = env!("CARGO_PKG_VERSION");
    let again = "start it anew: fordway down --keep-domains; fordway up";
    if info.abi_version != ABI_VERSION {
        let text = format!(
            "it has ABI version {}, this fordway {ABI_VERSION}",
            info.abi_version
        );
        return bad("broker", State::Fail, text, again);
    }
    if info.version != mine {
        let text = format!("it is version {}, this fordway {mine}", info.version);
        return bad("broker", State::Warn, text, again);
    }
    let networks: Vec<String> = std::iter::once(info.network).chain(info.network6).collect();
    let networks = networks.join(" and ");
    ok(
        "broker",
        format!(
            "answers (pid {}, version {mine}, network {networks})",
            info.pid
        ),
    )
}

/// Messages are written as "what is wrong; what to do".
fn split(message: &str) -> (String, String) {
    let (text, advice) = message
        .split_once("; ")
        .unwrap_or((message, "see: fordway --help"));
    (text.into(), advice.into())
}

fn ok(name: &'static str, text: impl Into<String>) -> Check {
    Check {
        name,
        state: State::Ok,
        text: text.into(),
        advice: None,
    }
}

fn bad(
    name: &'static str,
    state: State,
    text: impl Into<String>,
    advice: impl Into<String>,
) -> Check {
    Check {
        name,
        state,
        text: text.into(),
        advice: Some(advice.into()),
    }
}
