//! What is not supported: one list, from which messages and docs/filter.md are made.

macro_rules! refused {
    ($($name:ident, $construct:literal, $instead:literal;)+) => {
        /// A construct that nft takes and Fordway does not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Refused { $(#[doc = $construct] $name,)+ }

        impl Refused {
            /// Each of them, in the order of the documentation.
            pub const ALL: &'static [Refused] = &[$(Refused::$name,)+];

            /// The construct as it is written.
            pub fn construct(self) -> &'static str {
                match self { $(Refused::$name => $construct,)+ }
            }

            /// What to write instead.
            pub fn instead(self) -> &'static str {
                match self { $(Refused::$name => $instead,)+ }
            }

            /// The name that stands in test files.
            pub fn name(self) -> &'static str {
                match self { $(Refused::$name => stringify!($name),)+ }
            }
        }
    };
}

refused! {
    Queue, "queue (packets to a program through nfnetlink_queue)",
        "decide with accept, drop or reject here, or use log to see the packets";
    Flowtable, "flowtable and flow add (forwarding past the rules)",
        "leave it out: Fordway's fast path needs no flowtable, accept the connection with ct state established";
    Synproxy, "synproxy (cookies in place of a handshake)",
        "bound new connections with limit rate or ct count instead";
    Tproxy, "tproxy (delivery to a foreign socket)",
        "use redirect to :PORT, or dnat to the proxy's address";
    Osf, "osf (guessing the sender's system)",
        "match addresses, ports or tcp flags instead";
    Socket, "socket (looking up the receiving socket)",
        "match meta skuid, meta skgid or meta cgroup on output, or addresses and ports";
    CtHelper, "ct helper (protocol helpers of the kernel's conntrack)",
        "open the ports that the protocol uses with rules of their own";
    CtTimeout, "ct timeout (timeout policies of conntrack)",
        "leave it out: the timeouts of the connection table are set for all connections";
    CtExpectation, "ct expectation (connections announced by others)",
        "open the ports that are expected with rules of their own";
    CtEvent, "ct event (choosing events of conntrack)",
        "leave it out: fordway filter monitor shows changes";
    Secmark, "secmark (SELinux labels of packets)",
        "use meta mark and ct mark";
    Ipsec, "ipsec (IPsec state of a packet)",
        "match the addresses or the interface of the tunnel";
    Rt, "rt (routing data of a packet)",
        "match ip daddr, oif or fib instead";
    Symhash, "symhash",
        "use jhash over the fields that shall decide, with a seed";
    Dup, "dup (sending a copy)",
        "use log, or capture the traffic at the switch";
    Fwd, "fwd (sending out of another device)",
        "give the switch a port for the device, or route the packet";
    Meter, "meter (its older form of a dynamic set)",
        "declare a set with flags dynamic and use add @SET { KEY limit rate ... }";
    Xt, "xt (extensions of iptables)",
        "write the match or target in nft's own words, see iptables-translate";
    TcpOptionReset, "reset tcp option (taking an option out of a packet)",
        "set its value with tcp option ... set at the end that sends it";
    IpOption, "ip option (options of IPv4)",
        "match ip hdrlength > 5 to find packets that have options";
    SctpChunk, "sctp chunk",
        "match sctp ports, or raw payload with @th";
    RawTcpOption, "a TCP option by number and bits",
        "use a named option: maxseg, window, sack-perm, sack, timestamp";
    InnerHeader, "the inner header base @ih",
        "use @nh or @th with the offset added";
    AnonymousChain, "a chain inside a rule (jump { ... })",
        "declare the chain with a name and jump to it";
    Owner, "flags owner (tables that die with their maker)",
        "leave it out: tables belong to the broker";
    Offload, "flags offload (rules in the network card)",
        "leave it out";
    MetaKey, "this meta key",
        "see the list of meta keys in docs/filter.md";
    Describe, "describe",
        "see docs/filter.md, or ask nft describe";
    Monitor, "monitor inside a file",
        "run fordway filter monitor";
    Import, "import and export",
        "run fordway filter list --json, and load JSON files as they are";
    GetElement, "get element",
        "list the set";
    MapAsSet, "a map in place of a set",
        "declare a set with the same keys, or use the map with map or vmap";
    PolicyAlone, "a policy without type, hook and priority",
        "repeat the chain's type, hook and priority before its policy";
    ExthdrField, "this field of an extension header",
        "see the list of extension headers in docs/filter.md, or match raw payload";
    WriteExthdr, "writing to an extension header",
        "leave it out, or write to a raw payload expression with @th";
    Hostname, "a host name in place of an address",
        "write the address: names change while rules stay";
}
