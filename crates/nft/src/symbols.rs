//! Symbolic values of the data types: `established`, `echo-request`, `cs1`, and back.
//!
//! Where a number has more than one name the first one is listed, as nft does.
use fordway_filter::model::DataType;

/// Names and numbers of a type, in the order in which nft looks them up.
pub type Table = &'static [(&'static str, u64)];

/// The names of a type's values; empty where numbers speak for themselves.
pub fn table(data_type: DataType) -> Table {
    match data_type {
        DataType::EtherType => &[
            ("ip", 0x0800),
            ("arp", 0x0806),
            ("ip6", 0x86dd),
            ("8021q", 0x8100),
            ("8021ad", 0x88a8),
            ("vlan", 0x8100),
        ],
        DataType::ArpOp => &[
            ("request", 1),
            ("reply", 2),
            ("rrequest", 3),
            ("rreply", 4),
            ("inrequest", 8),
            ("inreply", 9),
            ("nak", 10),
        ],
        DataType::NfProto => &[("ipv4", 2), ("ipv6", 10)],
        DataType::IcmpType => &[
            ("echo-reply", 0),
            ("destination-unreachable", 3),
            ("source-quench", 4),
            ("redirect", 5),
            ("echo-request", 8),
            ("router-advertisement", 9),
            ("router-solicitation", 10),
            ("time-exceeded", 11),
            ("parameter-problem", 12),
            ("timestamp-request", 13),
            ("timestamp-reply", 14),
            ("info-request", 15),
            ("info-reply", 16),
            ("address-mask-request", 17),
            ("address-mask-reply", 18),
        ],
        DataType::IcmpCode => &[
            ("net-unreachable", 0),
            ("host-unreachable", 1),
            ("prot-unreachable", 2),
            ("port-unreachable", 3),
            ("net-prohibited", 9),
            ("host-prohibited", 10),
            ("admin-prohibited", 13),
            ("frag-needed", 4),
        ],
        DataType::Icmpv6Type => &[
            ("destination-unreachable", 1),
            ("packet-too-big", 2),
            ("time-exceeded", 3),
            ("parameter-problem", 4),
            ("echo-request", 128),
            ("echo-reply", 129),
            ("mld-listener-query", 130),
            ("mld-listener-report", 131),
            ("mld-listener-done", 132),
            ("mld-listener-reduction", 132),
            ("nd-router-solicit", 133),
            ("nd-router-advert", 134),
            ("nd-neighbor-solicit", 135),
            ("nd-neighbor-advert", 136),
            ("nd-redirect", 137),
            ("router-renumbering", 138),
            ("ind-neighbor-solicit", 141),
            ("ind-neighbor-advert", 142),
            ("mld2-listener-report", 143),
        ],
        DataType::Icmpv6Code => &[
            ("no-route", 0),
            ("admin-prohibited", 1),
            ("addr-unreachable", 3),
            ("port-unreachable", 4),
            ("policy-fail", 5),
            ("reject-route", 6),
        ],
        DataType::IcmpxCode => &[
            ("port-unreachable", 1),
            ("admin-prohibited", 3),
            ("no-route", 0),
            ("host-unreachable", 2),
        ],
        DataType::TcpFlag => &[
            ("fin", 1),
            ("syn", 2),
            ("rst", 4),
            ("psh", 8),
            ("ack", 16),
            ("urg", 32),
            ("ecn", 64),
            ("cwr", 128),
        ],
        DataType::Dscp => &[
            ("cs0", 0x00),
            ("cs1", 0x08),
            ("cs2", 0x10),
            ("cs3", 0x18),
            ("cs4", 0x20),
            ("cs5", 0x28),
            ("cs6", 0x30),
            ("cs7", 0x38),
            ("df", 0x00),
            ("be", 0x00),
            ("lephb", 0x01),
            ("af11", 0x0a),
            ("af12", 0x0c),
            ("af13", 0x0e),
            ("af21", 0x12),
            ("af22", 0x14),
            ("af23", 0x16),
            ("af31", 0x1a),
            ("af32", 0x1c),
            ("af33", 0x1e),
            ("af41", 0x22),
            ("af42", 0x24),
            ("af43", 0x26),
            ("va", 0x2c),
            ("ef", 0x2e),
        ],
        DataType::Ecn => &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)],
        DataType::IfType => &[
            ("ether", 1),
            ("ppp", 512),
            ("ipip", 768),
            ("ipip6", 769),
            ("loopback", 772),
            ("sit", 776),
            ("ipgre", 778),
        ],
        DataType::PktType => &[
            ("host", 0),
            ("unicast", 0),
            ("broadcast", 1),
            ("multicast", 2),
            ("other", 3),
        ],
        DataType::Day => &[
            ("Sunday", 0),
            ("Monday", 1),
            ("Tuesday", 2),
            ("Wednesday", 3),
            ("Thursday", 4),
            ("Friday", 5),
            ("Saturday", 6),
        ],
        DataType::FibAddrType => &[
            ("unspec", 0),
            ("unicast", 1),
            ("local", 2),
            ("broadcast", 3),
            ("anycast", 4),
            ("multicast", 5),
            ("blackhole", 6),
            ("unreachable", 7),
            ("prohibit", 8),
        ],
        DataType::CtState => &[
            ("invalid", 1),
            ("new", 8),
            ("established", 2),
            ("related", 4),
            ("untracked", 64),
        ],
        DataType::CtDir => &[("original", 0), ("reply", 1)],
        DataType::CtStatus => &[
            ("expected", 1),
            ("seen-reply", 2),
            ("assured", 4),
            ("confirmed", 8),
            ("snat", 16),
            ("dnat", 32),
            ("dying", 512),
        ],
        DataType::CtEvent => &[
            ("new", 1),
            ("related", 2),
            ("destroy", 4),
            ("reply", 8),
            ("assured", 16),
            ("protoinfo", 32),
            ("helper", 64),
            ("mark", 128),
            ("seqadj", 256),
            ("secmark", 512),
            ("label", 1024),
        ],
        DataType::Boolean => &[("exists", 1), ("missing", 0)],
        DataType::InetProto => PROTOCOLS,
        DataType::DevGroup => &[("default", 0)],
        DataType::Realm => &[("cosmos", 0)],
        _ => &[],
    }
}

/// The number of a name.
pub fn by_name(data_type: DataType, name: &str) -> Option<u64> {
    let find = |name: &str| {
        table(data_type)
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, number)| *number)
    };
    match data_type {
        // What /etc/protocols has as a second name.
        DataType::InetProto => find(name).or_else(|| match name {
            "icmpv6" | "IPv6-ICMP" => Some(58),
            "comp" => Some(108),
            _ => find(&name.to_ascii_lowercase()),
        }),
        DataType::InetService => SERVICES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, port)| u64::from(*port)),
        _ => find(name),
    }
}

/// The name of a number.
pub fn by_number(data_type: DataType, number: u128) -> Option<&'static str> {
    table(data_type)
        .iter()
        .find(|(_, known)| u128::from(*known) == number)
        .map(|(name, _)| *name)
}

/// Types as `type` of a set names them.
pub const TYPES: &[(&str, DataType)] = &[
    ("lladdr", DataType::LlAddr),
    ("ipv4_addr", DataType::Ipv4Addr),
    ("ipv6_addr", DataType::Ipv6Addr),
    ("ether_addr", DataType::EtherAddr),
    ("ether_type", DataType::EtherType),
    ("arp_op", DataType::ArpOp),
    ("inet_proto", DataType::InetProto),
    ("inet_service", DataType::InetService),
    ("nf_proto", DataType::NfProto),
    ("icmp_type", DataType::IcmpType),
    ("icmp_code", DataType::IcmpCode),
    ("icmpv6_type", DataType::Icmpv6Type),
    ("icmpv6_code", DataType::Icmpv6Code),
    ("icmpx_code", DataType::IcmpxCode),
    ("tcp_flag", DataType::TcpFlag),
    ("dscp", DataType::Dscp),
    ("ecn", DataType::Ecn),
    ("mark", DataType::Mark),
    ("iface_index", DataType::IfIndex),
    ("ifname", DataType::IfName),
    ("iface_type", DataType::IfType),
    ("devgroup", DataType::DevGroup),
    ("uid", DataType::Uid),
    ("gid", DataType::Gid),
    ("realm", DataType::Realm),
    ("classid", DataType::ClassId),
    ("pkt_type", DataType::PktType),
    ("time", DataType::TimeSpan),
    ("day", DataType::Day),
    ("hour", DataType::Hour),
    ("fib_addrtype", DataType::FibAddrType),
    ("ct_state", DataType::CtState),
    ("ct_dir", DataType::CtDir),
    ("ct_status", DataType::CtStatus),
    ("ct_label", DataType::CtLabel),
    ("ct_event", DataType::CtEvent),
];

/// How a type is called in messages and in `type`.
pub fn type_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Integer(_) => "integer",
        DataType::String => "string",
        // `meta time` has no name of its own in nft.
        DataType::Time => "time",
        DataType::Boolean => "boolean",
        DataType::Verdict => "verdict",
        other => TYPES
            .iter()
            .find(|(_, known)| *known == other)
            .map_or("value", |(name, _)| name),
    }
}

/// Levels of `log`, by number (syslog(2)); nft adds audit.
pub const LOG_LEVELS: [&str; 9] = [
    "emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit",
];

/// The number of a level.
pub fn log_level(name: &str) -> Option<u8> {
    LOG_LEVELS
        .iter()
        .position(|known| *known == name)
        .and_then(|at| u8::try_from(at).ok())
}

/// Types of IGMP messages (RFC 9776), which the model keeps as plain numbers.
pub const IGMP_TYPES: Table = &[
    ("membership-query", 17),
    ("membership-report-v1", 18),
    ("membership-report-v2", 22),
    ("membership-report-v3", 34),
    ("leave-group", 23),
];

/// Types of DCCP packets (RFC 4340).
pub const DCCP_TYPES: Table = &[
    ("request", 0),
    ("response", 1),
    ("data", 2),
    ("ack", 3),
    ("dataack", 4),
    ("closereq", 5),
    ("close", 6),
    ("reset", 7),
    ("sync", 8),
    ("syncack", 9),
];

/// Types of mobility headers (RFC 6275 and others).
pub const MH_TYPES: Table = &[
    ("binding-refresh-request", 0),
    ("home-test-init", 1),
    ("careof-test-init", 2),
    ("home-test", 3),
    ("careof-test", 4),
    ("binding-update", 5),
    ("binding-acknowledgement", 6),
    ("binding-error", 7),
    ("fast-binding-update", 8),
    ("fast-binding-acknowledgement", 9),
    ("fast-binding-advertisement", 10),
    ("experimental-mobility-header", 11),
    ("home-agent-switch-message", 12),
];

/// Numbers of protocols in IP, with the names that Debian's /etc/protocols gives them.
const PROTOCOLS: Table = &[
    ("ip", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", 17),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", 33),
    ("xtp", 36),
    ("ddp", 37),
    ("idpr-cmtp", 38),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("skip", 57),
    ("ipv6-icmp", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("rspf", 73),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ax.25", 93),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("fc", 133),
    ("mobility-header", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("manet", 138),
    ("hip", 139),
    ("shim6", 140),
    ("wesp", 141),
    ("rohc", 142),
    ("ethernet", 143),
];

/// Ports that have a name even where /etc/services is missing.
const SERVICES: &[(&str, u16)] = &[
    ("echo", 7),
    ("discard", 9),
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("time", 37),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("http", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("sunrpc", 111),
    ("ntp", 123),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("imap2", 143),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("microsoft-ds", 445),
    ("submissions", 465),
    ("isakmp", 500),
    ("syslog", 514),
    ("printer", 515),
    ("route", 520),
    ("submission", 587),
    ("ipp", 631),
    ("ldaps", 636),
    ("rsync", 873),
    ("imaps", 993),
    ("pop3s", 995),
    ("socks", 1080),
    ("openvpn", 1194),
    ("ms-sql-s", 1433),
    ("radius", 1812),
    ("nfs", 2049),
    ("mysql", 3306),
    ("sip", 5060),
    ("sip-tls", 5061),
    ("postgresql", 5432),
    ("amqp", 5672),
    ("x11", 6000),
    ("http-alt", 8080),
];
