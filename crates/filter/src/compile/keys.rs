//! Numbers of `meta` and `ct` keys (linux: include/uapi/linux/netfilter/nf_tables.h, enum nft_meta_keys and
//! nft_ct_keys), with how many bytes of a register each fills and whether these are in the machine's order
//! (net/netfilter/nft_meta.c, nft_ct.c).

use crate::program::{CtKey, MetaKey};

/// Key, bytes, the machine's order. `None`: not known here.
pub(super) fn meta_key(number: u32) -> Option<(MetaKey, u8, bool)> {
    use MetaKey::*;
    Some(match number {
        0 => (Length, 4, true),
        1 => (Protocol, 2, false),
        2 => (Priority, 4, true),
        3 => (Mark, 4, true),
        4 => (Iif, 4, true),
        5 => (Oif, 4, true),
        6 => (Iifname, 16, false),
        7 => (Oifname, 16, false),
        8 => (Iiftype, 2, true),
        9 => (Oiftype, 2, true),
        10 => (Skuid, 4, true),
        11 => (Skgid, 4, true),
        12 => (Nftrace, 1, false),
        15 => (Nfproto, 1, false),
        16 => (L4proto, 1, false),
        17 => (Ibrname, 16, false),
        18 => (Obrname, 16, false),
        19 => (Pkttype, 1, false),
        20 => (Cpu, 4, true),
        21 => (Iifgroup, 4, true),
        22 => (Oifgroup, 4, true),
        24 => (Random, 4, true),
        30 => (Time, 8, true),
        31 => (Day, 1, false),
        32 => (Hour, 4, true),
        _ => return None,
    })
}

/// The same. `six`: addresses of the connection are of IPv6.
pub(super) fn ct_key(number: u32, six: bool) -> Option<(CtKey, u8, bool)> {
    use CtKey::*;
    let address = if six { 16 } else { 4 };
    Some(match number {
        0 => (State, 4, true),
        1 => (Direction, 1, false),
        2 => (Status, 4, true),
        3 => (Mark, 4, true),
        5 => (Expiration, 4, true),
        7 => (L3proto, 1, false),
        8 => (Saddr, address, false),
        9 => (Daddr, address, false),
        10 => (Protocol, 1, false),
        11 => (ProtoSrc, 2, false),
        12 => (ProtoDst, 2, false),
        14 => (Packets, 8, true),
        15 => (Bytes, 8, true),
        16 => (Avgpkt, 8, true),
        19 => (IpSaddr, 4, false),
        20 => (IpDaddr, 4, false),
        21 => (Ip6Saddr, 16, false),
        22 => (Ip6Daddr, 16, false),
        23 => (Id, 4, true),
        _ => return None,
    })
}
