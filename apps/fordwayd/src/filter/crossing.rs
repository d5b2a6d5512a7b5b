//! Which hooks a connection between two domains crosses, with which interfaces: the one
//! home of it for the broker's question, for `fordway filter trace`, and (in `kernel`) for
//! what the fabric is given.
//!
//! ```text
//!   domain A ─ port A ─► netdev ingress · bridge prerouting · ip prerouting
//!                        bridge forward · ip output of A · ip forward · ip input of B
//!                        bridge postrouting · ip postrouting · netdev egress ─ port B ─► domain B
//! ```
//! Families ip, ip6 and inet see the bridge as the interface, both ways, as in the kernel;
//! families bridge and netdev see the switch ports. Connections within one namespace do
//! not cross the fabric, so no rule is about them. One that the host translates crosses it once
//! for each end in a domain, between that end's port and the uplink's, under that end's names.

use fordway_abi::control::Protocol;
use fordway_abi::vsock;
use fordway_filter::rules::{ChainKind, Hook, Rules};
use fordway_filter::{Crossing, Environment, Iface, Layer, Phase, Question, Tuple};
use fordway_platform::fabric::{RULES_DEVICE, UPLINK_PORT, port_of, port_of_cid};
use fordway_registry::Network;
use std::net::{IpAddr, SocketAddr};

/// Where a packet between two domains is looked at, in order.
const WAY: [(Option<Layer>, Hook); 10] = [
    (Some(Layer::Netdev), Hook::Ingress),
    (Some(Layer::Bridge), Hook::Prerouting),
    (None, Hook::Prerouting),
    (Some(Layer::Bridge), Hook::Forward),
    (None, Hook::Output),
    (None, Hook::Forward),
    (None, Hook::Input),
    (Some(Layer::Bridge), Hook::Postrouting),
    (None, Hook::Postrouting),
    (Some(Layer::Netdev), Hook::Egress),
];

/// Number of hooks on the way.
pub const HOOKS: usize = WAY.len();

/// The hooks that packets from one address to another cross.
pub fn crossings(network: Network, from: IpAddr, to: IpAddr) -> [Crossing; HOOKS] {
    between([from, to].map(|ip| port(network, ip)))
}

/// The switch port of an address, where the domains have this network.
pub(crate) fn port(network: Network, ip: IpAddr) -> Iface {
    let cid = match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => vsock::cid_of(ip),
    };
    let network = (network.uplink_address(), network.prefix());
    let name = cid.map_or_else(|| port_of(ip), |cid| port_of_cid(cid, network));
    Iface::new(0, &name)
}

/// The switch port of the host.
pub(crate) fn uplink() -> Iface {
    Iface::new(0, UPLINK_PORT)
}

fn between(ports: [Iface; 2]) -> [Crossing; HOOKS] {
    let bridge = Iface::new(0, RULES_DEVICE);
    WAY.map(|(layer, hook)| {
        let [into, out] = match layer {
            Some(_) => ports,
            None => [bridge, bridge],
        };
        Crossing {
            layer,
            hook,
            iif: (!matches!(hook, Hook::Postrouting | Hook::Egress)).then_some(into),
            oif: (!matches!(hook, Hook::Prerouting | Hook::Ingress)).then_some(out),
        }
    })
}

/// The connection from one name to another.
pub fn tuple(protocol: Protocol, (from, to): (SocketAddr, SocketAddr)) -> Tuple {
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    Tuple {
        source: number(from.ip()),
        destination: number(to.ip()),
        source_port: from.port(),
        destination_port: to.port(),
        protocol: protocol.number(),
        six: from.is_ipv6(),
    }
}

/// Asks about the connection from `from`, the connecting end, to `to`, both domains.
pub fn with_question<T>(
    network: Network,
    protocol: Protocol,
    names @ (from, to): (SocketAddr, SocketAddr),
    phase: Phase,
    ask: impl FnOnce(&Question<'_>) -> T,
) -> T {
    let ports = [from, to].map(|end| port(network, end.ip()));
    with_question_by(ports, tuple(protocol, names), phase, ask)
}

/// Asks about a connection from one of these ports to the other.
pub(crate) fn with_question_by<T>(
    [a, b]: [Iface; 2],
    tuple: Tuple,
    phase: Phase,
    ask: impl FnOnce(&Question<'_>) -> T,
) -> T {
    let (forward, backward) = (between([a, b]), between([b, a]));
    ask(&Question {
        tuple,
        phase,
        forward: &forward,
        backward: &backward,
        mark: 0,
        ct_mark: 0,
        skuid: None,
    })
}

/// Whether rules translate addresses in the fabric. Its table is asked about no pair: each hook would see
/// other names, and the rules are asked with two ends' names.
pub fn translate(rules: &Rules) -> bool {
    let mut bases = rules
        .tables
        .iter()
        .flat_map(|table| &table.chains)
        .filter_map(|chain| chain.base.as_ref());
    bases.any(|base| base.kind == ChainKind::Nat)
}

/// What the filter may ask of its surroundings. The fabric has no addresses of its own.
#[derive(Debug, Default)]
pub struct Surroundings;

impl Environment for Surroundings {
    fn random(&mut self) -> u32 {
        fordway_platform::process::random::<4>().map_or(0, u32::from_ne_bytes)
    }

    fn wall_ns(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }
}
