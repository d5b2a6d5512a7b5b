//! Single statements and what rules end with.

use fordway_filter::model::{
    BinaryOp, CtDirection, CtKey, DataType, Element, ElementData, Expr, ExthdrField, ExthdrKind,
    Family, Field, Hook, Limit, LimitUnit, Mangle, MetaKey, NumgenMode, PayloadBase, Protocol,
    Quota, RejectKind, RelOp, SetRef, Statement, Value, Verdict,
};

use super::{Maker, PORTS, Part, counter};
use crate::packets::address;

/// A value, written and as data.
type Written = (String, Expr);

pub(super) fn num(data_type: DataType, number: u128) -> Written {
    (number.to_string(), Expr::number(data_type, number))
}

pub(super) fn ip(text: &str) -> Written {
    let expr = match address(text) {
        std::net::IpAddr::V4(a) => Expr::number(DataType::Ipv4Addr, u32::from(a).into()),
        std::net::IpAddr::V6(a) => Expr::number(DataType::Ipv6Addr, u128::from(a)),
    };
    (text.into(), expr)
}

pub(super) fn field(protocol: Protocol, name: &str) -> Written {
    let field = Field::by_name(protocol, name).unwrap_or_else(|| panic!("{protocol:?} {name}"));
    (format!("{} {name}", protocol.name()), Expr::Payload(field))
}

fn meta(key: MetaKey) -> Written {
    let text = if key.is_unqualified() {
        key.name().into()
    } else {
        format!("meta {}", key.name())
    };
    (text, Expr::Meta(key))
}

pub(super) fn range(low: Written, high: Written) -> Written {
    (
        format!("{}-{}", low.0, high.0),
        Expr::Range(low.1.into(), high.1.into()),
    )
}

pub(super) fn set(elements: Vec<Written>) -> Written {
    let texts: Vec<String> = elements.iter().map(|e| e.0.clone()).collect();
    let elements = elements.into_iter().map(|e| Element::new(e.1)).collect();
    (
        format!("{{ {} }}", texts.join(", ")),
        Expr::Set(SetRef::Anonymous(elements)),
    )
}

pub(super) fn compare(left: Written, op: RelOp, right: Written) -> Part {
    let sign = match op {
        RelOp::Implicit => "",
        RelOp::Eq => "== ",
        RelOp::Ne => "!= ",
        RelOp::Lt => "< ",
        RelOp::Gt => "> ",
        RelOp::Le => "<= ",
        RelOp::Ge => ">= ",
        RelOp::Not => "! ",
    };
    let text = format!("{} {sign}{}", left.0, right.0);
    (
        text,
        Statement::Match {
            op,
            left: left.1,
            right: right.1,
        },
    )
}

impl Maker {
    pub(super) fn is_six(&mut self) -> bool {
        match self.family {
            Family::Ip => false,
            Family::Ip6 => true,
            _ => self.dice.one_in(3),
        }
    }

    pub(super) fn equal_or_not(&mut self) -> RelOp {
        if self.dice.one_in(4) {
            RelOp::Ne
        } else {
            RelOp::Implicit
        }
    }

    fn ports(&mut self) -> (Written, RelOp) {
        let port = |p: u16| num(DataType::InetService, p.into());
        let pick = self.dice.pick(&PORTS);
        match self.dice.below(6) {
            0 => (range(port(pick), port(pick + 500)), self.equal_or_not()),
            1 => (set(vec![port(22), port(pick.max(23))]), self.equal_or_not()),
            2 => (
                set(vec![
                    range(port(20), port(25)),
                    port(53),
                    range(port(400), port(6000)),
                ]),
                self.equal_or_not(),
            ),
            3 => (
                port(pick),
                self.dice
                    .pick(&[RelOp::Lt, RelOp::Gt, RelOp::Le, RelOp::Ge]),
            ),
            _ => (port(pick), self.equal_or_not()),
        }
    }

    pub(super) fn addresses(&mut self, six: bool) -> Written {
        let (a, b) = self.net;
        let one = ip(&self.address(six));
        let prefix = |text: &str, len: u8| {
            let (written, expr) = ip(text);
            (format!("{written}/{len}"), Expr::Prefix(expr.into(), len))
        };
        match (self.dice.below(6), six) {
            (0, false) => prefix(&format!("10.{a}.{b}.0"), 24),
            (0, true) => prefix(&format!("fd00:0:{a:x}::"), 48),
            (1, false) => prefix("10.192.0.0", 11),
            (1, true) => prefix("fd01::", 126),
            (2, false) => range(ip(&format!("10.{a}.{b}.2")), ip("10.201.0.2")),
            (2, true) => range(ip("fd01::2"), ip("fd01::3")),
            (3, false) => set(vec![prefix("10.201.0.0", 31), ip(&format!("10.{a}.{b}.1"))]),
            (3, true) => set(vec![ip("fd01::1"), ip("fd01::2"), ip("fd02::1")]),
            _ => one,
        }
    }

    /// A statement that may stand in the middle of a rule; `None` if it does not fit there.
    pub(super) fn atom(&mut self, hook: Option<Hook>, before: &[Part]) -> Option<Part> {
        let six = self.is_six();
        let used = |word: &str| before.iter().any(|(text, _)| text.contains(word));
        let own = if six { Protocol::Ip6 } else { Protocol::Ip };
        let other = if six { "ip " } else { "ip6 " };
        // Two protocols in one rule contradict each other; nft refuses that.
        let network_fits = !before.iter().any(|(t, _)| {
            t.contains(other) || t.contains("exthdr") || t.contains("nfproto") || t.contains("icmp")
        });
        let transport_fits = !["tcp", "udp", "icmp", "l4proto", "protocol", "nexthdr"]
            .iter()
            .any(|w| used(w));
        match self.dice.below(27) {
            0..3 if network_fits => {
                let name = self.dice.pick(&["saddr", "daddr"]);
                let (op, right) = (self.equal_or_not(), self.addresses(six));
                Some(compare(field(own, name), op, right))
            }
            3..6 if transport_fits => {
                let protocol = self.dice.pick(&[Protocol::Tcp, Protocol::Udp]);
                let name = self.dice.pick(&["sport", "dport"]);
                let (right, op) = self.ports();
                Some(compare(field(protocol, name), op, right))
            }
            6 if transport_fits && network_fits => {
                let protocol = if six {
                    Protocol::Icmpv6
                } else {
                    Protocol::Icmp
                };
                let (name, data_type, numbers): (_, _, &[u128]) = match (self.dice.below(3), six) {
                    (0, _) => ("id", DataType::Integer(16), &[7, 8]),
                    (_, true) => ("type", DataType::Icmpv6Type, &[128, 129]),
                    (_, false) => ("type", DataType::IcmpType, &[8, 0, 13]),
                };
                let right = num(data_type, self.dice.pick(numbers));
                Some(compare(field(protocol, name), RelOp::Implicit, right))
            }
            7 if transport_fits => Some(self.tcp_flags()),
            8 if network_fits => {
                let (name, bits, numbers): (_, _, &[u128]) = match (self.dice.below(3), six) {
                    (0, false) => ("ttl", 8, &[64, 63, 1]),
                    (0, true) => ("hoplimit", 8, &[64, 63, 1]),
                    (1, false) => ("length", 16, &[28, 36, 100]),
                    (1, true) => ("length", 16, &[28, 36, 100]),
                    _ => ("dscp", 6, &[0, 4, 46]),
                };
                let data_type = if bits == 6 {
                    DataType::Dscp
                } else {
                    DataType::Integer(bits)
                };
                let op = self
                    .dice
                    .pick(&[RelOp::Implicit, RelOp::Ne, RelOp::Lt, RelOp::Ge]);
                let right = num(data_type, self.dice.pick(numbers));
                // Below nothing there is nothing: nft refuses the question.
                let op = if right.0 == "0" { RelOp::Implicit } else { op };
                Some(compare(field(own, name), op, right))
            }
            9 => {
                let len = num(DataType::Integer(32), self.dice.pick(&[28, 60, 128]));
                let op = self.dice.pick(&[RelOp::Gt, RelOp::Le, RelOp::Ne]);
                Some(compare(meta(MetaKey::Length), op, len))
            }
            10 => {
                let name = self.dice.pick(&["b0", "c0", "b", "x"]);
                let right = match self.dice.below(2) {
                    0 if name.len() == 1 => (
                        format!("\"{name}*\""),
                        Value::text_prefix(DataType::IfName, name),
                    ),
                    _ => (format!("\"{name}\""), Value::text(DataType::IfName, name)),
                };
                let key = match self.dice.below(2) {
                    0 if !matches!(hook, Some(Hook::Prerouting | Hook::Input | Hook::Ingress)) => {
                        MetaKey::Oifname
                    }
                    _ => MetaKey::Iifname,
                };
                Some(compare(
                    meta(key),
                    self.equal_or_not(),
                    (right.0, Expr::Value(right.1?)),
                ))
            }
            11 => {
                let protocols = [6, 17, 1, 58, 47].map(|p| num(DataType::InetProto, p));
                let right = match self.dice.below(3) {
                    0 => set(protocols[..3].to_vec()),
                    _ => protocols[self.dice.below(5)].clone(),
                };
                transport_fits.then(|| compare(meta(MetaKey::L4proto), RelOp::Ne, right))
            }
            12 => {
                let (bits, mark) = (self.dice.pick(&[0xff, 0x0f]), self.dice.pick(&[0, 1, 5]));
                let left = meta(MetaKey::Mark);
                let mask = Expr::number(DataType::Mark, bits);
                let left = (
                    format!("{} & {bits:#x}", left.0),
                    left.1.binary(BinaryOp::And, mask),
                );
                Some(compare(left, RelOp::Eq, num(DataType::Mark, mark)))
            }
            13 => Some(self.set_mark()),
            14 | 15 if self.with_ct => Some(self.ct(six, network_fits)),
            16 => {
                // Raw payload: the protocol of IPv4, a port.
                let (text, base, offset_bits, number) = self.dice.pick(&[
                    ("@nh,72,8", PayloadBase::Network, 72, 17),
                    ("@th,16,16", PayloadBase::Transport, 16, 80),
                    ("@nh,400,8", PayloadBase::Network, 400, 5),
                    ("@th,100,4", PayloadBase::Transport, 100, 0),
                ]);
                let bits = if offset_bits == 16 {
                    16
                } else if offset_bits == 100 {
                    4
                } else {
                    8
                };
                let left = (
                    text.into(),
                    Expr::PayloadRaw {
                        base,
                        offset_bits,
                        bits,
                    },
                );
                let right = num(DataType::Integer(bits as u8), number);
                Some(compare(left, self.equal_or_not(), right))
            }
            17 if transport_fits && network_fits => Some(self.concatenation(six)),
            18 if !self.sets.is_empty() && network_fits => self.use_set(six),
            19 => Some(self.limit(used("ct state new"))),
            20 if network_fits && six => {
                let exthdr = self.dice.pick(&[ExthdrKind::Frag, ExthdrKind::Dst]);
                let left = Expr::ExthdrExists(ExthdrField::first(exthdr));
                let (word, number) = self.dice.pick(&[("exists", 1), ("missing", 0)]);
                let right = (word.into(), Expr::number(DataType::Boolean, number));
                Some(compare(
                    (format!("exthdr {}", exthdr.name()), left),
                    RelOp::Implicit,
                    right,
                ))
            }
            20 => {
                let option = ExthdrField::by_name(ExthdrKind::TcpMaxseg, "size")?;
                let right = num(DataType::Integer(16), self.dice.pick(&[1460, 1400]));
                let left = ("tcp option maxseg size".into(), Expr::Exthdr(option));
                Some(compare(left, self.equal_or_not(), right))
            }
            21 => {
                let modulus = 2 + self.dice.below(2) as u32;
                let numgen = Expr::Numgen {
                    mode: NumgenMode::Inc,
                    modulus,
                    offset: 0,
                };
                let left = (format!("numgen inc mod {modulus}"), numgen);
                Some(compare(
                    left,
                    RelOp::Implicit,
                    num(DataType::Integer(32), 1),
                ))
            }
            22 if network_fits && transport_fits => {
                let (left, text) = (field(own, "saddr"), field(Protocol::Udp, "dport"));
                let input = Expr::Concat(vec![left.1, text.1]).into();
                let hash = Expr::Jhash {
                    input,
                    modulus: 3,
                    seed: Some(7),
                    offset: 0,
                };
                let text = format!("jhash {} . {} mod 3 seed 0x7", left.0, text.0);
                Some(compare(
                    (text, hash),
                    RelOp::Implicit,
                    num(DataType::Integer(32), 1),
                ))
            }
            23 if network_fits => self.mangle(hook, six),
            24 if matches!(self.family, Family::Bridge | Family::Netdev) => {
                Some(self.vlan(before)?)
            }
            25 if self.family == Family::Inet && network_fits && transport_fits => {
                let proto = self.dice.pick(&[("ipv4", 2), ("ipv6", 10)]);
                let right = (proto.0.into(), Expr::number(DataType::NfProto, proto.1));
                Some(compare(meta(MetaKey::Nfproto), RelOp::Implicit, right))
            }
            _ => Some(counter()),
        }
    }

    fn vlan(&mut self, before: &[Part]) -> Option<Part> {
        // Behind a network match a link match would come too late for nft.
        if !before.iter().all(|(t, _)| t == "counter") {
            return None;
        }
        Some(match self.dice.below(3) {
            0 => {
                let right = num(DataType::Integer(12), self.dice.pick(&[5, 7]));
                compare(field(Protocol::Vlan, "id"), RelOp::Implicit, right)
            }
            1 => {
                let mac = self.dice.pick(&[0x02_00_00_00_00_0a, 0x02_00_00_00_00_0d]);
                let bytes = u64::to_be_bytes(mac);
                let text: Vec<String> = bytes[2..].iter().map(|b| format!("{b:02x}")).collect();
                let right = (
                    text.join(":"),
                    Expr::number(DataType::EtherAddr, mac.into()),
                );
                compare(field(Protocol::Ether, "saddr"), self.equal_or_not(), right)
            }
            _ => {
                let right = self.dice.pick(&[("ip", 0x800), ("ip6", 0x86dd)]);
                let right = (right.0.into(), Expr::number(DataType::EtherType, right.1));
                compare(meta(MetaKey::Protocol), RelOp::Ne, right)
            }
        })
    }

    fn tcp_flags(&mut self) -> Part {
        let left = field(Protocol::Tcp, "flags");
        let flag = |n| Expr::number(DataType::TcpFlag, n);
        let syn_ack = ("syn,ack".to_owned(), Expr::List(vec![flag(2), flag(16)]));
        match self.dice.below(6) {
            0 => compare(left, RelOp::Implicit, ("syn".into(), flag(2))),
            1 => compare(left, RelOp::Implicit, syn_ack),
            2 => compare(left, RelOp::Eq, ("syn".into(), flag(2))),
            3 => compare(left, RelOp::Ne, ("syn".into(), flag(2))),
            4 => compare(left, RelOp::Not, syn_ack),
            _ => {
                let mask = Expr::List(vec![flag(1), flag(2), flag(4), flag(16)]);
                let text = format!("{} & (fin | syn | rst | ack)", left.0);
                compare(
                    (text, left.1.binary(BinaryOp::And, mask)),
                    RelOp::Eq,
                    ("syn".into(), flag(2)),
                )
            }
        }
    }

    fn set_mark(&mut self) -> Part {
        let mark = self.dice.pick(&[1, 5]);
        let target = Mangle::Meta(MetaKey::Mark);
        if self.with_ct && self.dice.one_in(3) {
            let value = Expr::number(DataType::Mark, mark);
            let target = Mangle::Ct {
                key: CtKey::Mark,
                direction: None,
            };
            return (
                format!("ct mark set {mark:#x}"),
                Statement::Mangle { target, value },
            );
        }
        match self.dice.below(2) {
            0 => {
                let value = Expr::number(DataType::Mark, mark);
                (
                    format!("meta mark set {mark:#x}"),
                    Statement::Mangle { target, value },
                )
            }
            _ => {
                let bits = Expr::number(DataType::Mark, 0x10 | mark);
                let value = Expr::Meta(MetaKey::Mark).binary(BinaryOp::Or, bits);
                (
                    format!("meta mark set meta mark | {:#x}", 0x10 | mark),
                    Statement::Mangle { target, value },
                )
            }
        }
    }

    fn ct(&mut self, six: bool, network_fits: bool) -> Part {
        let ct = |key: CtKey| {
            (
                format!("ct {}", key.name()),
                Expr::Ct {
                    key,
                    direction: None,
                },
            )
        };
        let state = |n| Expr::number(DataType::CtState, n);
        match self.dice.below(8) {
            0 => compare(ct(CtKey::State), RelOp::Implicit, ("new".into(), state(8))),
            1 => {
                let both = Expr::List(vec![state(2), state(4)]);
                compare(
                    ct(CtKey::State),
                    RelOp::Implicit,
                    ("established,related".into(), both),
                )
            }
            2 => compare(
                ct(CtKey::State),
                RelOp::Implicit,
                ("invalid".into(), state(1)),
            ),
            3 => compare(ct(CtKey::State), RelOp::Ne, ("new".into(), state(8))),
            4 => {
                let right = ("reply".into(), Expr::number(DataType::CtDir, 1));
                compare(ct(CtKey::Direction), RelOp::Implicit, right)
            }
            5 => compare(ct(CtKey::Mark), RelOp::Implicit, num(DataType::Mark, 5)),
            6 if network_fits => {
                let direction = Some(CtDirection::Original);
                let key = if six { CtKey::Ip6Saddr } else { CtKey::IpSaddr };
                let left = Expr::Ct { key, direction };
                let right = ip(&self.address(six));
                let text = format!("ct original {}", key.name());
                compare((text, left), self.equal_or_not(), right)
            }
            _ => {
                let right = ("assured".into(), Expr::number(DataType::CtStatus, 4));
                compare(ct(CtKey::Status), RelOp::Implicit, right)
            }
        }
    }

    fn limit(&mut self, is_new: bool) -> Part {
        let burst = 1 + self.dice.below(5) as u32;
        let over = self.dice.one_in(2);
        let word = if over { "over " } else { "" };
        let unit = LimitUnit::Day;
        match self.dice.below(4) {
            0 => {
                let limit = Limit {
                    rate: 1,
                    unit,
                    burst: burst * 100,
                    over,
                    bytes: true,
                };
                let text = format!("limit rate {word}1 bytes/day burst {} bytes", burst * 100);
                (text, Statement::Limit(limit))
            }
            1 => {
                let bytes = u64::from(burst) * 150;
                let text = format!("quota {word}{bytes} bytes");
                (
                    text,
                    Statement::Quota(Quota {
                        bytes,
                        used: 0,
                        over,
                    }),
                )
            }
            // Packets of no flow are counted for a while that depends on the clock.
            2 if is_new => {
                let text = format!("ct count {word}{burst}");
                (text, Statement::ConnLimit { count: burst, over })
            }
            _ => {
                let limit = Limit {
                    rate: 1,
                    unit,
                    burst,
                    over,
                    bytes: false,
                };
                let text = format!("limit rate {word}1/day burst {burst} packets");
                (text, Statement::Limit(limit))
            }
        }
    }

    fn mangle(&mut self, hook: Option<Hook>, six: bool) -> Option<Part> {
        let own = if six { Protocol::Ip6 } else { Protocol::Ip };
        let (name, number, written): (_, u128, String) = match self.dice.below(3) {
            0 => (if six { "hoplimit" } else { "ttl" }, 33, "33".into()),
            1 => ("dscp", 10, "10".into()),
            _ => {
                // Before routing the destination would decide where the packet goes.
                if hook != Some(Hook::Postrouting) || self.with_ct {
                    return None;
                }
                let (text, expr) = ip(if six { "fd03::9" } else { "10.203.0.9" });
                let Expr::Value(value) = expr else {
                    return None;
                };
                (self.dice.pick(&["saddr", "daddr"]), value.as_number(), text)
            }
        };
        let (text, _) = field(own, name);
        let target = Field::by_name(own, name)?;
        let value = Expr::number(target.def().data_type, number);
        let target = Mangle::Payload(target);
        Some((
            format!("{text} set {written}"),
            Statement::Mangle { target, value },
        ))
    }

    /// What a rule does at its end.
    pub(super) fn ending(&mut self, hook: Option<Hook>) -> Vec<Part> {
        let verdict = |text: &str, verdict| (text.to_owned(), Statement::Verdict(verdict));
        match self.dice.below(9) {
            0 | 1 => vec![verdict("accept", Verdict::Accept)],
            2 | 3 => vec![verdict("drop", Verdict::Drop)],
            4 => vec![verdict("return", Verdict::Return)],
            5 if !self.chain_names.is_empty() => {
                let at = self.dice.below(self.chain_names.len());
                let name = self.chain_names[at].clone();
                match self.dice.below(2) {
                    0 => vec![verdict(&format!("jump {name}"), Verdict::Jump(name))],
                    _ => vec![verdict(&format!("goto {name}"), Verdict::Goto(name))],
                }
            }
            6 if matches!(hook, Some(Hook::Input | Hook::Forward))
                && self.family != Family::Bridge =>
            {
                vec![("reject".into(), Statement::Reject(RejectKind::Default))]
            }
            7 => {
                // «th» needs no protocol, so that it fits behind everything.
                let key = field(Protocol::Th, "dport");
                let mut elements = Vec::new();
                let mut texts = Vec::new();
                for (port, to) in [
                    (22, Verdict::Drop),
                    (80, Verdict::Accept),
                    (53, Verdict::Continue),
                ] {
                    texts.push(format!(
                        "{port} : {}",
                        match to {
                            Verdict::Drop => "drop",
                            Verdict::Accept => "accept",
                            _ => "continue",
                        }
                    ));
                    let key = Expr::number(DataType::InetService, port);
                    elements.push(Element::with_data(key, ElementData::Verdict(to)));
                }
                let text = format!("{} vmap {{ {} }}", key.0, texts.join(", "));
                let map = SetRef::Anonymous(elements);
                vec![(text, Statement::VerdictMap { key: key.1, map })]
            }
            _ => Vec::new(),
        }
    }
}
