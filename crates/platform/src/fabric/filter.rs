//! What a switch port may send: the fabric's nft rules, and the names and MACs that
//! follow from an address.

use super::Lease;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rules of the bridge. `assigned`, `assigned_arp` and `assigned6` hold what each port may
/// send, `spoofed` its counter of what else it tried.
///
/// A tagged frame is nobody's: the kernel does not show it to families ip and inet
/// (bridge-nf-filter-vlan-tagged), but who gets it takes VLAN 0 for no VLAN.
///
/// A router (the uplink) also sends what others have sent it: any source that is no address of
/// the domains' network, nor one that nobody sends from.
///
/// Neighbour discovery (RFC 4861) says whose address is where, as ARP does, in fields that are at
/// fixed places only while nothing stands before or between them. So its messages have no
/// extension header and at most one option of eight bytes, which is the port's own MAC
/// (`link_layer6`: type, length, MAC); advertisements are for the port's own addresses (`target6`). A
/// solicitation from the unspecified address asks whether an address is free (RFC 4862, 5.4.2), and
/// is for the port's own too, or the answer could be forged; its option is a nonce (RFC 7527).
/// Routers are none, so that nobody advertises one, redirects or renumbers. What a host sends
/// without asking, and nobody needs here, goes uncounted: multicast listeners, requests for routers.
///
/// The type of a message in fragments is in the first one, unless another header hides it, which
/// is refused; who gets fragments of neighbour discovery ignores them (RFC 6980).
///
/// What domains send to each other by IPv6 they send to the MAC of [`LEADER`]: once it has
/// passed, it is given the MAC of whoever has the address (`leads6`). So no domain has to know where
/// another one is; nobody is asked, and no answer could be forged. What is for an address that nobody
/// has reaches the leader, who says so (`leader`).
///
/// Into a namespace that others made goes AF_VSOCK alone ([`super::joined`]): whoever sends to its MAC past the leader reaches
/// none of its other addresses.
///
/// The address that stands for CID 1 is everybody's own ([`fordway_abi::vsock`]): nothing goes there from a port.
///
/// Given once more, the text replaces the rules in one transaction and leaves the sets, whichever
/// version of it was given before.
pub(super) const RULES: &str = "
table bridge fordway {
	chain lead6 { }
	chain own_neighbours6 { }
	chain neighbours6 { }
	chain from_port6 { }
	chain from_port {
		type filter hook prerouting priority -300; policy drop;
	}
	chain to_port {
		type filter hook forward priority -300; policy accept;
	}
}
flush chain bridge fordway to_port
flush chain bridge fordway from_port
flush chain bridge fordway from_port6
flush chain bridge fordway neighbours6
flush chain bridge fordway own_neighbours6
flush chain bridge fordway lead6
table bridge fordway {
	counter ipv6 { }
	set routers { typeof iifname . ether saddr; }
	set never_routed { type ipv4_addr; flags interval; auto-merge; }
	set assigned { typeof iifname . ether saddr . ip saddr; }
	set assigned_arp { typeof iifname . ether saddr . arp saddr ether . arp saddr ip; }
	set ports6 { type ifname; }
	set assigned6 { typeof iifname . ether saddr . ip6 saddr; }
	set target6 { typeof iifname . ether saddr . @th,64,128; }
	set link_layer6 { typeof iifname . @th,192,64; }
	map leads6 { type ipv6_addr : ether_addr; }
	map spoofed { type ifname : counter; }
	chain lead6 {
		ether daddr != 02:46:00:00:00:00 accept
		ether daddr set ip6 daddr map @leads6 accept
		accept
	}
	chain own_neighbours6 {
		icmpv6 type nd-neighbor-solicit ip6 length 24 accept
		icmpv6 type nd-neighbor-solicit ip6 length 32 iifname . @th,192,64 @link_layer6 accept
		iifname . ether saddr . @th,64,128 @target6 icmpv6 type nd-neighbor-advert ip6 length 24 accept
		iifname . ether saddr . @th,64,128 @target6 icmpv6 type nd-neighbor-advert ip6 length 32 iifname . @th,192,64 @link_layer6 accept
		counter name iifname map @spoofed drop
	}
	chain neighbours6 {
		icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report, nd-router-solicit } drop
		ip6 nexthdr 58 iifname . ether saddr . ip6 saddr @assigned6 goto own_neighbours6
		ip6 nexthdr 58 ip6 saddr :: iifname . ether saddr . @th,64,128 @target6 icmpv6 type nd-neighbor-solicit ip6 length 24 accept
		ip6 nexthdr 58 ip6 saddr :: iifname . ether saddr . @th,64,128 @target6 icmpv6 type nd-neighbor-solicit ip6 length 32 @th,192,16 0x0e01 accept
		counter name iifname map @spoofed drop
	}
	chain from_port6 {
		ip6 daddr fd56:534f:434b::1 counter name iifname map @spoofed drop
		icmpv6 type { 130-138, 141-143, 151-153 } goto neighbours6
		frag nexthdr { 0, 43, 44, 51, 60 } counter name iifname map @spoofed drop
		iifname . ether saddr . ip6 saddr @assigned6 goto lead6
		counter name iifname map @spoofed drop
	}
	chain from_port {
		type filter hook prerouting priority -300; policy drop;
		ether type { 8021q, 8021ad } counter name iifname map @spoofed drop
		iifname . ether saddr . ip saddr @assigned accept
		iifname . ether saddr @routers ip saddr != @never_routed accept
		iifname . ether saddr . arp saddr ether . arp saddr ip @assigned_arp accept
		ether type ip6 iifname @ports6 goto from_port6
		ether type ip6 counter name ipv6 drop
		counter name iifname map @spoofed drop
	}
	chain to_port {
		type filter hook forward priority -300; policy accept;
		oifname \"v-*\" ether type != ip6 drop
		oifname \"v-*\" ip6 daddr != fd56:534f:434b::/64 drop
		oifname \"uplink\" ip6 daddr != fd56:534f:434b::/64 drop
	}
}
";

/// By [`mac_of`] and [`link_local_of`] it has the addresses of the leader, to whom domains send. No domain has this
/// address.
pub(super) const LEADER: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// Makes a router of the uplink. MAC and NETWORK stand for what they say.
pub(super) const UPLINK_ELEMENTS: &str = "
add element bridge fordway routers { \"uplink\" . MAC }
add element bridge fordway never_routed { NETWORK, 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3 }
";

/// Adds or deletes the elements of one port in [`RULES`].
pub(super) fn elements(verb: &str, port: &str, lease: &Lease) -> String {
    let ip = lease.ip;
    let mac = mac_of(ip);
    let counter = format!("{verb} counter bridge fordway {port}\n");
    let mut elements =
        format!("{verb} element bridge fordway spoofed {{ \"{port}\" : \"{port}\" }}\n");
    if lease.is_of_network() {
        let _ = write!(
            elements,
            "{verb} element bridge fordway assigned {{ \"{port}\" . {mac} . {ip} }}\n\
             {verb} element bridge fordway assigned_arp {{ \"{port}\" . {mac} . {mac} . {ip} }}\n"
        );
    }
    let six = lease.six.map(|(six, _)| [six, link_local_of(ip)]);
    let own = six.into_iter().flatten().chain(lease.vsock_address());
    let own: Vec<Ipv6Addr> = own.collect();
    if !own.is_empty() {
        let _ = writeln!(
            elements,
            "{verb} element bridge fordway ports6 {{ \"{port}\" }}"
        );
        for own in own {
            let target = own.to_bits();
            let _ = write!(
                elements,
                "{verb} element bridge fordway assigned6 {{ \"{port}\" . {mac} . {own} }}\n\
                 {verb} element bridge fordway target6 {{ \"{port}\" . {mac} . {target:#034x} }}\n"
            );
        }
        elements += &leads(verb, lease);
        // RFC 4861, 4.6.1: source (of solicitations), target (of advertisements).
        for option in [1, 2] {
            let digits = mac.replace(':', "");
            let _ = writeln!(
                elements,
                "{verb} element bridge fordway link_layer6 {{ \"{port}\" . 0x{option:02x}01{digits} }}"
            );
        }
    }
    if verb == "add" {
        counter + &elements
    } else {
        elements + &counter
    }
}

/// Adds or deletes the elements by which others' packets reach a port.
pub(super) fn leads(verb: &str, lease: &Lease) -> String {
    let mac = mac_of(lease.ip);
    let led = lease.led6().map(|(own, _)| own);
    let element = |own| format!("{verb} element bridge fordway leads6 {{ {own} : {mac} }}\n");
    led.map(element).collect()
}

/// A locally administered MAC that says whose address it carries.
pub(super) fn mac_of(ip: Ipv4Addr) -> String {
    let bytes = mac_bytes_of(ip).map(|byte| format!("{byte:02x}"));
    bytes.join(":")
}

pub(super) fn mac_bytes_of(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x46, a, b, c, d]
}

/// The link-local address of who has [`mac_of`] this address (RFC 4291, appendix A).
pub(super) fn link_local_of(ip: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = ip.octets();
    let last = u16::from_be_bytes([c, d]);
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        0x46,
        u16::from(a) << 8 | 0xff,
        0xfe00 | u16::from(b),
        last,
    )
}

/// The IPv4 address in whose name a domain of the fabric has this one: an IPv6 address there ends
/// in it (`fordway_registry::Network6`).
pub(super) fn four_of(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => Ipv4Addr::from_bits(ip.to_bits() as u32),
    }
}

/// At most 15 bytes (IFNAMSIZ), one for each address.
pub(super) fn port_name(ip: Ipv4Addr) -> String {
    format!("p-{:08x}", ip.to_bits())
}

/// The same of a namespace that others made, and that has a CID here ([`super::joined`]).
pub(super) fn joined_port_name(ip: Ipv4Addr) -> String {
    format!("v-{:08x}", ip.to_bits())
}
