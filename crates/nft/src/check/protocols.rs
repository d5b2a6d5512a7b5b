//! Which headers a rule may look at, from its family and what it asked for before.
//!
//! A packet has one protocol on each layer, so a rule that asks for two can never match; nft
//! refuses it, and so do we. What is known grows from left to right: by fields that are used
//! (`tcp dport` makes it TCP) and by matches on what says the next protocol (`ip protocol tcp`).
use super::Checked;
use crate::prelude::*;
use crate::{env::Env, error::Fault, source::Span, symbols};
use fordway_filter::model::{
    self, CtKey, DataType, Expr, Family, MetaKey, PayloadBase, Protocol, RelOp, SetRef,
};

/// What is known of a rule's packets.
#[derive(Clone, Debug)]
pub(crate) struct Protocols {
    family: Family,
    /// What the link layer says that the network layer is.
    link_says: Option<Protocol>,
    /// A VLAN tag was looked at.
    tagged: bool,
    network: Option<Protocol>,
    /// Number of the transport protocol.
    transport: Option<u8>,
    /// What can never match is taken all the same ([`Env::listed`]).
    listed: bool,
}

impl Protocols {
    pub(crate) fn new(family: Family, env: &Env) -> Protocols {
        Protocols {
            family,
            link_says: None,
            tagged: false,
            network: match family {
                Family::Ip => Some(Protocol::Ip),
                Family::Ip6 => Some(Protocol::Ip6),
                Family::Arp => Some(Protocol::Arp),
                Family::Inet | Family::Bridge | Family::Netdev => None,
            },
            transport: None,
            listed: env.listed,
        }
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// IPv4 or IPv6, if that is known.
    pub(crate) fn network(&self) -> Option<Protocol> {
        self.link_says.or(self.network)
    }

    pub(crate) fn transport(&self) -> Option<u8> {
        self.transport
    }

    /// A field of a protocol is used.
    pub(crate) fn uses(&mut self, protocol: Protocol, span: Span) -> Checked<()> {
        let fits = self.fits(protocol, span);
        if self.listed { Ok(()) } else { fits }
    }

    fn fits(&mut self, protocol: Protocol, span: Span) -> Checked<()> {
        match protocol.base() {
            PayloadBase::Link => match (protocol, self.link_says) {
                // What was said of the outer type holds; a tag in between says otherwise.
                (Protocol::Vlan, Some(known)) if !self.tagged => {
                    Err(conflict(known.name(), "vlan", span))
                }
                (Protocol::Vlan, _) => {
                    self.tagged = true;
                    Ok(())
                }
                _ => Ok(()),
            },
            PayloadBase::Network => self.set_network(protocol, span),
            PayloadBase::Transport | PayloadBase::Inner => {
                let Some(number) = protocol.number() else {
                    return Ok(());
                };
                if self.family == Family::Arp {
                    return Err(conflict("arp", protocol.name(), span));
                }
                match self.transport {
                    Some(known) if known != number => {
                        Err(conflict(&transport_name(known), protocol.name(), span))
                    }
                    _ => {
                        self.transport = Some(number);
                        Ok(())
                    }
                }
            }
        }
    }

    fn set_network(&mut self, protocol: Protocol, span: Span) -> Checked<()> {
        let known = self.link_says.or(self.network);
        if let Some(known) = known
            && known != protocol
        {
            return Err(conflict(known.name(), protocol.name(), span));
        }
        if self.family == Family::Inet && protocol == Protocol::Arp {
            return Err(conflict("inet", "arp", span));
        }
        self.network = Some(protocol);
        Ok(())
    }

    /// An extension header of IPv6 is used.
    pub(crate) fn uses_exthdr(&mut self, span: Span) -> Checked<()> {
        match self.network {
            _ if self.listed => Ok(()),
            Some(Protocol::Ip) => Err(Fault::wrong(span, "ip has no extension headers")),
            Some(Protocol::Arp) => Err(Fault::wrong(span, "arp has no extension headers")),
            _ => Ok(()),
        }
    }

    /// Takes what a match says of the next layer.
    pub(crate) fn learn(&mut self, op: RelOp, left: &Expr, right: &Expr) {
        if !matches!(op, RelOp::Implicit | RelOp::Eq) {
            return;
        }
        let number = match right {
            Expr::Value(value) => value.as_number(),
            // As nft 1.0.6 has it, the last of a set speaks for all.
            Expr::Set(SetRef::Anonymous(elements)) => match elements.last().map(|e| &e.key) {
                Some(Expr::Value(value)) => value.as_number(),
                _ => return,
            },
            _ => return,
        };
        match left {
            Expr::Payload(field) => match (field.def().data_type, field.def().protocol) {
                (DataType::InetProto, Protocol::Ip | Protocol::Ip6) => {
                    self.transport = u8::try_from(number).ok();
                }
                (DataType::EtherType, Protocol::Ether | Protocol::Vlan) => {
                    self.link_says = by_ether_type(number);
                }
                _ => {}
            },
            Expr::Meta(MetaKey::L4proto) => self.transport = u8::try_from(number).ok(),
            Expr::Meta(MetaKey::Nfproto) => {
                self.network = match number {
                    2 => Some(Protocol::Ip),
                    10 => Some(Protocol::Ip6),
                    _ => None,
                }
            }
            Expr::Meta(MetaKey::Protocol)
                if matches!(self.family, Family::Bridge | Family::Netdev) =>
            {
                self.link_says = by_ether_type(number);
            }
            Expr::Ct {
                key: CtKey::Protocol,
                ..
            } => self.transport = u8::try_from(number).ok(),
            _ => {}
        }
    }
}

fn by_ether_type(number: u128) -> Option<Protocol> {
    match number {
        0x0800 => Some(Protocol::Ip),
        0x86dd => Some(Protocol::Ip6),
        0x0806 => Some(Protocol::Arp),
        _ => None,
    }
}

fn transport_name(number: u8) -> String {
    match symbols::by_number(DataType::InetProto, number.into()) {
        Some("ipv6-icmp") => "icmpv6".to_string(),
        Some(name) => name.to_string(),
        None => number.to_string(),
    }
}

fn conflict(known: &str, asked: &str, span: Span) -> Fault {
    Fault::wrong(
        span,
        format!("the rule asks for {asked}, but it is about {known} already: it could never match"),
    )
}

/// The family of an address in a `ct` key that does not say it.
pub(crate) fn ct_family(protocols: &Protocols, span: Span) -> Checked<model::Protocol> {
    match (protocols.family, protocols.network) {
        (Family::Ip, _) | (_, Some(Protocol::Ip)) => Ok(Protocol::Ip),
        (Family::Ip6, _) | (_, Some(Protocol::Ip6)) => Ok(Protocol::Ip6),
        _ => Err(Fault::wrong(
            span,
            "IPv4 or IPv6? write ct original ip saddr or ct original ip6 saddr",
        )),
    }
}
