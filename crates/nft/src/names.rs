//! Names of headers and meta keys as the grammar meets them.
use crate::ast::Listed;
use crate::parse::MetaWord;
use fordway_filter::model::{ExthdrKind, MetaKey, ObjectKind, Protocol, RelOp};

/// A protocol that payload expressions begin with.
pub fn protocol(name: &str) -> Option<Protocol> {
    use Protocol::*;
    [
        Ether, Vlan, Arp, Ip, Ip6, Icmp, Igmp, Icmpv6, Tcp, Udp, Udplite, Sctp, Dccp, Th, Ah, Esp,
        Comp,
    ]
    .into_iter()
    .find(|protocol| protocol.name() == name)
}

/// An extension header, or a TCP option.
pub fn exthdr_kind(name: &str, tcp_option: bool) -> Option<ExthdrKind> {
    // Other spellings that nft takes.
    let name = match (tcp_option, name) {
        (true, "mss") => "maxseg",
        (true, "sack-permitted") => "sack-perm",
        (true, "nop" | "noop") => "nop",
        (_, name) => name,
    };
    ExthdrKind::ALL
        .into_iter()
        .find(|kind| kind.is_tcp_option() == tcp_option && kind.name() == name)
}

/// A meta key by its word, old spellings included.
pub(crate) fn meta_key(name: &str) -> Option<MetaWord> {
    let key = match name {
        "ibriport" | "ibridgename" => MetaKey::Ibrname,
        "obriport" | "obridgename" => MetaKey::Obrname,
        name => MetaKey::by_name(name)?,
    };
    use MetaKey::*;
    let unqualified = !matches!(
        key,
        Length | Nfproto | L4proto | Protocol | Priority | Random | Iifkind | Oifkind
    );
    Some(MetaWord::new(key, unqualified))
}

/// Meta keys of nft's that Fordway does not have.
pub fn is_known_meta(name: &str) -> bool {
    matches!(
        name,
        "sdif" | "sdifname" | "broute" | "ibrpvid" | "ibrvproto" | "obrpvid" | "obrvproto"
    )
}

/// `==` and its like.
pub fn relation(sign: &str) -> Option<RelOp> {
    Some(match sign {
        "==" => RelOp::Eq,
        "!=" => RelOp::Ne,
        "<" => RelOp::Lt,
        ">" => RelOp::Gt,
        "<=" => RelOp::Le,
        ">=" => RelOp::Ge,
        "!" => RelOp::Not,
        _ => return None,
    })
}

/// `counter`, `quota`, `limit`.
pub fn object_kind(name: &str) -> Option<ObjectKind> {
    [ObjectKind::Counter, ObjectKind::Quota, ObjectKind::Limit]
        .into_iter()
        .find(|kind| kind.name() == name)
}

/// What a word behind `list` shows.
pub fn listed(word: &str) -> Option<Listed> {
    Some(match word {
        "ruleset" | "table" => Listed::Ruleset,
        "tables" => Listed::Tables,
        "chain" => Listed::Chain,
        "chains" => Listed::Chains,
        "set" | "map" => Listed::Set,
        "sets" => Listed::Sets,
        "maps" => Listed::Maps,
        other => Listed::Objects(object_kind(other.trim_end_matches('s'))?),
    })
}
