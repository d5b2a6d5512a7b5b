//! What a switch port may send: the fabric's nft rules, and the names and MACs that
//! follow from an address.

use std::net::Ipv4Addr;

/// The rules of the bridge. `assigned` and `assigned_arp` hold what each port may
/// send, `spoofed` its counter of what else it tried.
///
/// A tagged frame is nobody's: the kernel does not show it to families ip and inet
/// (bridge-nf-filter-vlan-tagged), but who gets it takes VLAN 0 for no VLAN.
///
/// A router (the uplink) also sends what others have sent it: any source that is no address of
/// the domains' network, nor one that nobody sends from.
///
/// Given once more, the text replaces the rules in one transaction and leaves the sets, whichever
/// version of it was given before.
pub(super) const RULES: &str = "
table bridge fordway {
	chain from_port {
		type filter hook prerouting priority -300; policy drop;
	}
}
flush chain bridge fordway from_port
table bridge fordway {
	counter ipv6 { }
	set routers { typeof iifname . ether saddr; }
	set never_routed { type ipv4_addr; flags interval; auto-merge; }
	set assigned { typeof iifname . ether saddr . ip saddr; }
	set assigned_arp { typeof iifname . ether saddr . arp saddr ether . arp saddr ip; }
	map spoofed { type ifname : counter; }
	chain from_port {
		type filter hook prerouting priority -300; policy drop;
		ether type { 8021q, 8021ad } counter name iifname map @spoofed drop
		iifname . ether saddr . ip saddr @assigned accept
		iifname . ether saddr @routers ip saddr != @never_routed accept
		iifname . ether saddr . arp saddr ether . arp saddr ip @assigned_arp accept
		ether type ip6 counter name ipv6 drop
		counter name iifname map @spoofed drop
	}
}
";

/// Makes a router of the uplink. MAC and NETWORK stand for what they say.
pub(super) const UPLINK_ELEMENTS: &str = "
add element bridge fordway routers { \"uplink\" . MAC }
add element bridge fordway never_routed { NETWORK, 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3 }
";

/// Adds or deletes the elements of one port in [`RULES`].
pub(super) fn elements(verb: &str, port: &str, ip: Ipv4Addr) -> String {
    let mac = mac_of(ip);
    let counter = format!("{verb} counter bridge fordway {port}\n");
    let elements = format!(
        "{verb} element bridge fordway assigned {{ \"{port}\" . {mac} . {ip} }}\n\
         {verb} element bridge fordway assigned_arp {{ \"{port}\" . {mac} . {mac} . {ip} }}\n\
         {verb} element bridge fordway spoofed {{ \"{port}\" : \"{port}\" }}\n"
    );
    if verb == "add" {
        counter + &elements
    } else {
        elements + &counter
    }
}

/// A locally administered MAC that says whose address it carries.
pub(super) fn mac_of(ip: Ipv4Addr) -> String {
    let [a, b, c, d] = ip.octets();
    format!("02:46:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// At most 15 bytes (IFNAMSIZ), one for each address.
pub(super) fn port_name(ip: Ipv4Addr) -> String {
    format!("p-{:08x}", ip.to_bits())
}
