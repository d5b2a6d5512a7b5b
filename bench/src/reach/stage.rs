//! A host with two containers, as podman lays them, and a port of the host that leads to one.
//!
//! ```text
//!   client 10.88.0.2 ── veth ─┐
//!                             ├ bridge cni0 10.88.0.1, the host (broker) 192.0.2.1
//!   server 10.88.0.3 ── veth ─┘
//!
//!   192.0.2.1:PORT ── dnat to 10.88.0.3:PORT; what comes from 10.88.0.0/24 so, masqueraded
//! ```
//! The host is a namespace of our own, that of the calling thread. The containers are attached to the
//! broker. All of it ends with its processes.

use crate::filter::tell;
use anyhow::Result;
use fordway_lab::{Lab, Place, Program, Spawn};
use fordway_platform::netns;
use fordwayd::admin::Request;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

/// An address of the host; each port of it leads to the server's.
pub const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 3);

const LINKS: &str = "link set lo up
address add 192.0.2.1/32 dev lo
link add cni0 type bridge
address add 10.88.0.1/24 dev cni0
link set cni0 up
";

/// As podman writes it by CNI's portmap, but for the ports.
const RULES: &str = "table ip nat {
	chain in {
		type nat hook prerouting priority dstnat;
		ip daddr 192.0.2.1 meta l4proto tcp dnat to 10.88.0.3
	}
	chain out {
		type nat hook postrouting priority srcnat;
		ip saddr 10.88.0.0/24 ct status dnat masquerade
	}
}
";

/// Connections from outside go to the proxy beside the program that they are meant for.
fn mesh(port: u16, proxy: u16) -> String {
    format!(
        "table ip mesh {{
	chain in {{
		type nat hook prerouting priority dstnat;
		iifname eth0 tcp dport {port} redirect to :{proxy}
	}}
}}
"
    )
}

/// See the module.
#[derive(Debug)]
pub struct Stage {
    /// Where the clients are.
    pub client: Place,
    /// Where the servers are.
    pub server: Place,
    containers: Vec<Program>,
}

impl Stage {
    /// Lays it in the calling thread's network, which is a new one.
    pub fn lay(lab: &Lab) -> Result<Stage> {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        tell("ip", &["-batch", "-"], LINKS)?;
        tell("nft", &["-f", "-"], RULES)?;
        let mut containers = Vec::new();
        let mut contain = |name: &str, ip| -> Result<Place> {
            let (program, place) = container(lab, name, ip)?;
            containers.push(program);
            Ok(place)
        };
        Ok(Stage {
            client: contain("client", CLIENT)?,
            server: contain("server", SERVER)?,
            containers,
        })
    }

    /// Puts a proxy before a port of the server.
    pub fn redirect(&self, port: u16, proxy: u16) -> Result<()> {
        enter(&self.server, &["nft", "-f", "-"], &mesh(port, proxy))
    }

    /// Ends the containers.
    pub fn close(self) -> Result<()> {
        let mut containers = self.containers.into_iter();
        containers.try_for_each(|program| program.stop().map(drop))
    }
}

fn container(lab: &Lab, name: &str, ip: Ipv4Addr) -> Result<(Program, Place)> {
    let network = netns::anonymous()?;
    // It holds the network, and is what the broker is shown.
    let init = Spawn::new(["sleep", "infinity"]);
    let program = netns::within(network.as_fd(), || lab.spawn_bare(&init))??;
    let pid = program.pid();
    let place = Place::Container { pid, ip };
    let links = format!(
        "link add {name} type veth peer name eth0 netns {pid}
link set {name} master cni0 up
"
    );
    tell("ip", &["-batch", "-"], &links)?;
    let inside = format!(
        "link set lo up
address add {ip}/24 dev eth0
link set eth0 up
route add default via 10.88.0.1
"
    );
    enter(&place, &["ip", "-batch", "-"], &inside)?;
    lab.ask(&Request::DomainAttach {
        name: name.to_owned(),
        ip,
        ip6: None,
        pid: pid as i32,
    })?;
    Ok((program, place))
}

/// Runs a tool in a container's network.
fn enter(place: &Place, command: &[&str], input: &str) -> Result<()> {
    let Place::Container { pid, .. } = place else {
        unreachable!("the stage has containers only")
    };
    let pid = pid.to_string();
    let arguments = [&["-t", &pid, "--net"], command].concat();
    tell("nsenter", &arguments, input)
}
