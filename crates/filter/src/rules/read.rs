//! The kernel's messages about its rules, read into [`Rules`].
//!
//! The bytes are netlink messages one after the other, as dumps of tables, chains, sets, elements,
//! objects and rules give them (NFT_MSG_NEW*): nlmsghdr, nfgenmsg, attributes. Each kind comes before
//! what belongs to it. Numbers of messages and attributes are those of
//! include/uapi/linux/netfilter/nf_tables.h.

use super::attribute::{Attribute, Attributes, Damaged};
use super::*;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec;

type Read<T> = Result<T, Damaged>;

/// NFNL_SUBSYS_NFTABLES.
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const NEW_SET: u16 = SUBSYSTEM << 8 | 9;
const NEW_ELEMENTS: u16 = SUBSYSTEM << 8 | 12;
const NEW_OBJECT: u16 = SUBSYSTEM << 8 | 18;
/// nlmsghdr and nfgenmsg.
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;

/// NFTA_LIST_ELEM, and NFTA_DATA_VALUE and NFTA_DATA_VERDICT.
const LIST_ELEM: u16 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
/// NFT_DATA_VERDICT, as the type of a map's data.
const VERDICTS: u32 = 0xffff_ff00;

/// Reads all of them.
pub fn read(mut bytes: &[u8]) -> Read<Rules> {
    let mut rules = Rules::default();
    while !bytes.is_empty() {
        let header = bytes
            .get(..HEADER_BYTES)
            .ok_or(Damaged("a message is cut off"))?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_le_bytes([header[4], header[5]]);
        let message = bytes.get(HEADER_BYTES..length);
        let (generic, attributes) = message
            .and_then(|message| message.split_at_checked(GENERIC_BYTES))
            .ok_or(Damaged("a message is cut off"))?;
        let attributes = Attributes::new(attributes);
        if let Some(family) = family(generic[0]) {
            message_of(&mut rules, family, kind, attributes)?;
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    rules.tables.iter().try_for_each(leads_on)?;
    Ok(rules)
}

/// Chains lead in no circle: the kernel refuses those (nf_tables_api.c: nft_chain_validate), and packets
/// would go round for ever.
fn leads_on(table: &Table) -> Read<()> {
    let numbers: BTreeMap<&str, usize> = table
        .chains
        .iter()
        .enumerate()
        .map(|(at, chain)| (&*chain.name, at))
        .collect();
    let target = |verdict: &Verdict| match verdict {
        Verdict::Jump(name) | Verdict::Goto(name) => numbers.get(&**name).copied(),
        _ => None,
    };
    let targets = |expr: &Expr| -> Vec<usize> {
        match expr {
            Expr::Verdict(verdict) => target(verdict).into_iter().collect(),
            Expr::Lookup {
                set,
                to: Some(None),
                ..
            } => {
                let set = table.sets.iter().find(|of| of.name == *set);
                let elements = set.into_iter().flat_map(|set| &set.elements);
                let verdicts = elements.filter_map(|element| match &element.data {
                    Some(ElementData::Verdict(verdict)) => target(verdict),
                    _ => None,
                });
                verdicts.collect()
            }
            _ => Vec::new(),
        }
    };
    let leads: Vec<Vec<usize>> = table
        .chains
        .iter()
        .map(|chain| {
            chain
                .rules
                .iter()
                .flat_map(|rule| &rule.exprs)
                .flat_map(targets)
                .collect()
        })
        .collect();
    let mut ways_in = vec![0; leads.len()];
    leads.iter().flatten().for_each(|&to| ways_in[to] += 1);
    let mut free: Vec<usize> = (0..leads.len()).filter(|&at| ways_in[at] == 0).collect();
    let mut seen = 0;
    while let Some(at) = free.pop() {
        seen += 1;
        for &to in &leads[at] {
            ways_in[to] -= 1;
            if ways_in[to] == 0 {
                free.push(to);
            }
        }
    }
    match seen == leads.len() {
        true => Ok(()),
        false => Err(Damaged("chains lead in a circle")),
    }
}

fn family(number: u8) -> Option<Family> {
    Some(match number {
        1 => Family::Inet,
        2 => Family::Ip,
        3 => Family::Arp,
        5 => Family::Netdev,
        7 => Family::Bridge,
        10 => Family::Ip6,
        _ => return None,
    })
}

fn message_of(rules: &mut Rules, family: Family, kind: u16, of: Attributes) -> Read<()> {
    if kind == NEW_TABLE {
        rules.tables.push(Table {
            family,
            name: of.need(1, "a table has a name")?.text()?.to_owned(),
            dormant: of.number(2)?.unwrap_or(0) & 1 != 0,
            chains: Vec::new(),
            sets: Vec::new(),
            objects: Vec::new(),
        });
        return Ok(());
    }
    if ![NEW_CHAIN, NEW_RULE, NEW_SET, NEW_ELEMENTS, NEW_OBJECT].contains(&kind) {
        return Ok(());
    }
    let name = of.need(1, "what is in no table")?.text()?;
    let mut tables = rules.tables.iter_mut();
    let table = tables
        .find(|table| table.family == family && table.name == name)
        .ok_or(Damaged("its table does not come before it"))?;
    match kind {
        NEW_CHAIN => table.chains.push(chain(family, of)?),
        NEW_RULE => {
            let name = of.need(2, "a rule is in a chain")?.text()?;
            let mut chains = table.chains.iter_mut();
            let chain = chains
                .find(|chain| chain.name == name)
                .ok_or(Damaged("its chain does not come before a rule"))?;
            chain.rules.push(rule(of)?);
        }
        NEW_SET => table.sets.push(set(of)?),
        NEW_ELEMENTS => {
            let name = of.need(2, "elements are in a set")?.text()?;
            let mut sets = table.sets.iter_mut();
            let set = sets
                .find(|set| set.name == name)
                .ok_or(Damaged("its set does not come before an element"))?;
            for one in list(of.get(3)?) {
                set.elements.push(element(one?.inner())?);
            }
        }
        _ => table.objects.push(object(of)?),
    }
    Ok(())
}

/// The members of a list, none of a list that is not there.
fn list(of: Option<Attribute>) -> impl Iterator<Item = Read<Attribute>> {
    let members = of.into_iter().flat_map(|list| list.inner().iter());
    members.filter_map(|member| match member {
        Ok((LIST_ELEM, member)) => Some(Ok(member)),
        Ok(_) => None,
        Err(damaged) => Some(Err(damaged)),
    })
}

fn chain(family: Family, of: Attributes) -> Read<Chain> {
    let base = match of.get(4)? {
        None => None,
        Some(of_hook) => {
            let hook = of_hook.inner();
            let mut devices = Vec::new();
            if let Some(device) = hook.text(3)? {
                devices.push(device.to_owned());
            }
            for device in hook
                .get(4)?
                .into_iter()
                .flat_map(|list| list.inner().iter())
            {
                match device? {
                    (LIST_ELEM, name) => devices.push(name.text()?.to_owned()),
                    _ => {
                        return Err(Damaged(
                            "a chain names devices in a way that is not known here",
                        ));
                    }
                }
            }
            let number = hook.need(1, "a base chain has a hook")?.number()?;
            let on = hook_of(family, number).ok_or(Damaged("there is no such hook"))?;
            if devices.is_empty() && matches!(on, Hook::Ingress | Hook::Egress) {
                // It sees none (since linux 6.4), and none has this name.
                devices.push(String::new());
            }
            Some(Base {
                kind: match of.text(7)? {
                    Some("nat") => ChainKind::Nat,
                    Some("route") => ChainKind::Route,
                    _ => ChainKind::Filter,
                },
                hook: on,
                priority: hook.number(2)?.unwrap_or(0) as i32,
                drops: of.number(5)? == Some(0),
                devices,
            })
        }
    };
    Ok(Chain {
        name: of.need(3, "a chain has a name")?.text()?.to_owned(),
        base,
        rules: Vec::new(),
    })
}

fn hook_of(family: Family, number: u32) -> Option<Hook> {
    use Hook::*;
    let hooks: &[Hook] = match family {
        Family::Netdev => &[Ingress, Egress],
        Family::Arp => &[Input, Output, Forward],
        Family::Inet => &[Prerouting, Input, Forward, Output, Postrouting, Ingress],
        Family::Ip | Family::Ip6 | Family::Bridge => {
            &[Prerouting, Input, Forward, Output, Postrouting]
        }
    };
    hooks.get(number as usize).copied()
}

fn rule(of: Attributes) -> Read<Rule> {
    let exprs = list(of.get(4)?).map(|one| expr(one?.inner()));
    Ok(Rule {
        exprs: exprs.collect::<Read<_>>()?,
    })
}

fn set(of: Attributes) -> Read<Set> {
    let flags = of.number(3)?.unwrap_or(0);
    let short = |number: Option<u32>| {
        let number = number.unwrap_or(0);
        u8::try_from(number).map_err(|_| Damaged("a key or value is too long"))
    };
    let data = match (of.number(6)?, of.number(15)?) {
        (_, Some(kind)) if flags & 0x40 != 0 => Some(SetData::Object(kind)),
        (Some(VERDICTS), _) => Some(SetData::Verdict),
        (Some(_), _) => Some(SetData::Value(short(of.number(7)?)?)),
        (None, _) => None,
    };
    let (mut size, mut parts) = (None, Vec::new());
    if let Some(description) = of.get(9)? {
        size = description.inner().number(1)?;
        for part in list(description.inner().get(2)?) {
            parts.push(short(part?.inner().number(1)?)?);
        }
    }
    Ok(Set {
        name: of.need(2, "a set has a name")?.text()?.to_owned(),
        interval: flags & 4 != 0,
        key_len: short(of.number(5)?)?,
        parts,
        data,
        dynamic: flags & 0x20 != 0,
        timeout_ms: of.wide(11)?.unwrap_or(0),
        size,
        exprs: several(of.get(17)?, of.get(18)?)?,
        elements: Vec::new(),
    })
}

/// One expression, or a list of them, of those that keep something.
fn several(one: Option<Attribute>, many: Option<Attribute>) -> Read<Vec<Stateful>> {
    let many = list(many).collect::<Read<Vec<_>>>()?;
    let of = match many.is_empty() {
        true => one.into_iter().collect(),
        false => many,
    };
    let each = of.into_iter().map(|one| match expr(one.inner())? {
        Expr::Stateful(stateful) => Ok(stateful),
        _ => Err(Damaged("an element keeps something that is not known")),
    });
    each.collect()
}

fn element(of: Attributes) -> Read<Element> {
    let bytes = |at| of.get(at)?.map(value).transpose();
    let flags = of.number(3)?.unwrap_or(0);
    let data = match (of.get(9)?, of.get(2)?) {
        (Some(name), _) => Some(ElementData::Object(name.text()?.to_owned())),
        (None, None) => None,
        (None, Some(data)) => Some(match data.inner().get(DATA_VERDICT)? {
            Some(of) => ElementData::Verdict(verdict(of.inner())?),
            None => ElementData::Value(value(data)?),
        }),
    };
    Ok(Element {
        key: bytes(1)?.unwrap_or_default(),
        key_end: bytes(10)?,
        catches_all: flags & 2 != 0,
        ends: flags & 1 != 0,
        data,
        timeout_ms: of.wide(4)?,
        expires_ms: of.wide(5)?,
        exprs: several(of.get(7)?, of.get(11)?)?,
    })
}

fn value(of: Attribute) -> Read<Vec<u8>> {
    let value = of.inner().need(DATA_VALUE, "a value has bytes")?;
    Ok(value.bytes().to_owned())
}

fn verdict(of: Attributes) -> Read<Verdict> {
    let chain = || Ok(of.need(2, "a jump leads to a chain")?.text()?.to_owned());
    Ok(match of.need(1, "a verdict has a code")?.number()? as i32 {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -1 => Verdict::Continue,
        -2 => Verdict::Break,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        -5 => Verdict::Return,
        _ => Verdict::Other,
    })
}

fn object(of: Attributes) -> Read<Object> {
    let kind = of.need(3, "an object has a type")?.number()?;
    let data = of.need(4, "an object has data")?.inner();
    let state = match kind {
        1 => ObjectState::Stateful(counter(data)?),
        2 => ObjectState::Stateful(quota(data)?),
        4 => ObjectState::Stateful(limit(data)?),
        5 => ObjectState::Stateful(conn_limit(data)?),
        other => ObjectState::Unknown(other),
    };
    Ok(Object {
        name: of.need(2, "an object has a name")?.text()?.to_owned(),
        state,
    })
}

fn counter(of: Attributes) -> Read<Stateful> {
    Ok(Stateful::Counter {
        bytes: of.wide(1)?.unwrap_or(0),
        packets: of.wide(2)?.unwrap_or(0),
    })
}

fn quota(of: Attributes) -> Read<Stateful> {
    Ok(Stateful::Quota(Quota {
        bytes: of.wide(1)?.unwrap_or(0),
        over: of.number(2)?.unwrap_or(0) & 1 != 0,
        used: of.wide(4)?.unwrap_or(0),
    }))
}

fn limit(of: Attributes) -> Read<Stateful> {
    Ok(Stateful::Limit(Limit {
        rate: of.need(1, "a limit has a rate")?.wide()?,
        unit_s: of.need(2, "a limit has a unit")?.wide()?,
        burst: of.number(3)?.unwrap_or(0),
        bytes: of.number(4)? == Some(1),
        over: of.number(5)?.unwrap_or(0) & 1 != 0,
    }))
}

fn conn_limit(of: Attributes) -> Read<Stateful> {
    Ok(Stateful::ConnLimit {
        count: of.need(1, "a limit of connections has a count")?.number()?,
        over: of.number(2)?.unwrap_or(0) & 1 != 0,
    })
}

/// NFT_REG_1 to 4 are of 16 bytes, NFT_REG32_00 (8) to 15 of four.
fn register(of: Attribute) -> Read<Register> {
    match of.number()? {
        0 => Ok(None),
        wide @ 1..=4 => Ok(Some((wide as u8 - 1) * 4)),
        word @ 8..=23 => Ok(Some(word as u8 - 8)),
        _ => Err(Damaged("there is no such register")),
    }
}

/// An expression by name. One that does what is not known here is as unknown as what has another name.
fn expr(of: Attributes) -> Read<Expr> {
    let name = of.need(1, "an expression has a name")?.text()?;
    let data = of.get(2)?.map_or(Attributes::new(&[]), Attribute::inner);
    let known = named(name, data)?;
    Ok(known.unwrap_or_else(|| Expr::Unknown(name.to_owned())))
}

fn named(name: &str, of: Attributes) -> Read<Option<Expr>> {
    let reg = |at| of.need(at, "a register")?.pipe(register);
    let may = |at| of.get(at)?.map(register).transpose();
    let need = |at| of.need(at, "a number")?.number();
    let or_0 = |at| Ok(of.number(at)?.unwrap_or(0));
    let short = |number: u32| u8::try_from(number).map_err(|_| Damaged("a length is too large"));
    let bytes = |at| of.need(at, "a value")?.pipe(value);
    Ok(Some(match name {
        "payload" => {
            let at = Bytes {
                base: match need(2)? {
                    0 => PayloadBase::Link,
                    1 => PayloadBase::Network,
                    2 => PayloadBase::Transport,
                    3 => PayloadBase::Inner,
                    _ => return Ok(None),
                },
                offset: u16::try_from(need(3)?).map_err(|_| Damaged("an offset is too large"))?,
                len: short(need(4)?)?,
            };
            match may(5)? {
                None => Expr::Payload { to: reg(1)?, at },
                Some(from) => Expr::PayloadSet {
                    from,
                    at,
                    sum: Sum {
                        at: match or_0(6)? {
                            0 => None,
                            1 => Some(or_0(7)? as u16),
                            _ => return Ok(None),
                        },
                        pseudo: or_0(8)? & 1 != 0,
                    },
                },
            }
        }
        "meta" => match may(3)? {
            None => Expr::Meta {
                to: reg(1)?,
                key: need(2)?,
            },
            Some(from) => Expr::MetaSet {
                from,
                key: need(2)?,
            },
        },
        "ct" => {
            let direction = of.number(3)?.map(|direction| direction as u8);
            match may(4)? {
                None => Expr::Ct {
                    to: reg(1)?,
                    key: need(2)?,
                    direction,
                },
                Some(from) => Expr::CtSet {
                    from,
                    key: need(2)?,
                    direction,
                },
            }
        }
        "exthdr" if may(7)?.is_none() => Expr::Exthdr {
            to: reg(1)?,
            op: or_0(6)?,
            kind: short(need(2)?)?,
            offset: u16::try_from(need(3)?).map_err(|_| Damaged("an offset is too large"))?,
            len: short(need(4)?)?,
            present: or_0(5)? & 1 != 0,
        },
        "fib" => Expr::Fib {
            to: reg(1)?,
            result: need(2)?,
            flags: need(3)?,
        },
        "numgen" => Expr::Numgen {
            to: reg(1)?,
            modulus: need(2)?,
            random: need(3)? == 1,
            offset: or_0(4)?,
        },
        "hash" if or_0(7)? == 0 => Expr::Hash {
            from: reg(1)?,
            to: reg(2)?,
            len: short(need(3)?)?,
            modulus: need(4)?,
            seed: or_0(5)?,
            offset: or_0(6)?,
        },
        "immediate" => {
            let data = of.need(2, "a value or a verdict")?;
            match data.inner().get(DATA_VERDICT)? {
                Some(of) => Expr::Verdict(verdict(of.inner())?),
                None => Expr::Immediate {
                    to: reg(1)?,
                    data: value(data)?,
                },
            }
        }
        "bitwise" => {
            if of.get(8)?.is_some() {
                return Ok(None);
            }
            let shift = || -> Read<u32> {
                let bytes = bytes(7)?;
                let word = bytes
                    .try_into()
                    .map_err(|_| Damaged("a shift has four bytes"))?;
                Ok(u32::from_le_bytes(word))
            };
            Expr::Bitwise {
                from: reg(1)?,
                to: reg(2)?,
                len: short(need(3)?)?,
                op: match or_0(6)? {
                    0 => Bitwise::Mask {
                        mask: bytes(4)?,
                        flip: bytes(5)?,
                    },
                    1 => Bitwise::Left(shift()?),
                    2 => Bitwise::Right(shift()?),
                    _ => return Ok(None),
                },
            }
        }
        "byteorder" => Expr::Byteorder {
            from: reg(1)?,
            to: reg(2)?,
            len: short(need(4)?)?,
            size: short(need(5)?)?,
        },
        "cmp" => Expr::Cmp {
            from: reg(1)?,
            op: match need(2)? {
                0 => Comparison::Eq,
                1 => Comparison::Ne,
                2 => Comparison::Lt,
                3 => Comparison::Le,
                4 => Comparison::Gt,
                5 => Comparison::Ge,
                _ => return Ok(None),
            },
            data: bytes(3)?,
        },
        "range" => Expr::Range {
            from: reg(1)?,
            negate: need(2)? == 1,
            low: bytes(3)?,
            high: bytes(4)?,
        },
        "lookup" => Expr::Lookup {
            set: of.need(1, "a set")?.text()?.to_owned(),
            from: reg(2)?,
            to: may(3)?,
            negate: or_0(5)? & 1 != 0,
        },
        // Of the flags (9), NFT_DYNSET_F_EXPR alone is what it seems.
        "dynset" if or_0(9)? & !2 == 0 => Expr::Dynset {
            set: of.need(1, "a set")?.text()?.to_owned(),
            op: match need(3)? {
                0 => SetOp::Add,
                1 => SetOp::Update,
                2 => SetOp::Delete,
                _ => return Ok(None),
            },
            key: reg(4)?,
            data: may(5)?,
            timeout_ms: of.wide(6)?.unwrap_or(0),
            exprs: several(of.get(7)?, of.get(10)?)?,
        },
        "objref" => match of.text(4)? {
            Some(set) => Expr::ObjectMap {
                set: set.to_owned(),
                from: reg(3)?,
            },
            None => Expr::Object {
                kind: need(1)?,
                name: of.need(2, "an object")?.text()?.to_owned(),
            },
        },
        "counter" => Expr::Stateful(counter(of)?),
        "limit" => Expr::Stateful(limit(of)?),
        "quota" => Expr::Stateful(quota(of)?),
        "connlimit" => Expr::Stateful(conn_limit(of)?),
        "last" => Expr::Stateful(Stateful::Last),
        "log" => Expr::Log(Log {
            group: of.number(1)?.map(|group| group as u16),
            prefix: of.text(2)?.map(ToOwned::to_owned),
            level: of.number(5)?,
        }),
        "reject" => Expr::Reject {
            kind: need(1)?,
            code: short(or_0(2)?)?,
        },
        "nat" => Expr::Nat(Nat {
            kind: match need(1)? {
                0 => NatKind::Snat,
                1 => NatKind::Dnat,
                _ => return Ok(None),
            },
            family: family(short(need(2)?)?),
            address: both(may(3)?, may(4)?),
            port: both(may(5)?, may(6)?),
            flags: or_0(7)?,
        }),
        "masq" => Expr::Nat(Nat {
            kind: NatKind::Masquerade,
            family: None,
            address: None,
            port: both(may(2)?, may(3)?),
            flags: or_0(1)?,
        }),
        "redir" => Expr::Nat(Nat {
            kind: NatKind::Redirect,
            family: None,
            address: None,
            port: both(may(1)?, may(2)?),
            flags: or_0(3)?,
        }),
        "notrack" => Expr::Notrack,
        _ => return Ok(None),
    }))
}

/// The highest is the lowest where it is not given.
fn both(low: Option<Register>, high: Option<Register>) -> Option<[Register; 2]> {
    low.map(|low| [low, high.unwrap_or(low)])
}

trait Pipe: Sized {
    fn pipe<T>(self, into: impl FnOnce(Self) -> T) -> T {
        into(self)
    }
}

impl Pipe for Attribute<'_> {}
