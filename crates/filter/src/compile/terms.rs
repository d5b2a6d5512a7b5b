//! Expressions as terms, and the dependencies that they imply.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::rule::{Context, Step};
use super::{Compiler, Why};
use crate::model::{
    BinaryOp, CtKey, DataType, Expr, Family, Field, MetaKey, PayloadBase, Protocol,
};
use crate::packet::{
    ETHERTYPE_ARP, ETHERTYPE_IP, ETHERTYPE_IP6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, Layer, PROTO_ICMP,
    PROTO_ICMPV6,
};
use crate::program::{Bitop, HashCode, Load, NumgenCode, Term, Test};

const CONFLICT: &str = "conflicting protocols specified";

/// `meta`, as a term.
pub(super) fn meta(key: MetaKey) -> Term {
    Term {
        load: Load::Meta(key),
        bits: key.data_type().bits(),
        ops: Vec::new(),
    }
}

pub(super) fn equals(number: u128) -> Test {
    Test::Range {
        low: number,
        high: number,
        negate: false,
    }
}

/// Bits from the start of a header, as a load of whole bytes.
pub(super) fn load_bits(base: PayloadBase, offset_bits: u16, bits: u16) -> Result<Term, Why> {
    let from = offset_bits / 8;
    let to = (offset_bits + bits).div_ceil(8);
    if bits == 0 || bits > 128 || to - from > 16 {
        return Err("a payload expression may ask for 128 bits, within 16 bytes".into());
    }
    let shift = (to * 8 - offset_bits - bits) as u8;
    let load = Load::Payload {
        base,
        offset: from,
        len: (to - from) as u8,
        shift,
    };
    Ok(Term {
        load,
        bits,
        ops: Vec::new(),
    })
}

impl<'t> Context<'t> {
    /// What a comparison that held says about the packet's protocols.
    pub(super) fn learn(&mut self, left: &Expr, test: &Test) {
        let Test::Range {
            low,
            high,
            negate: false,
        } = *test
        else {
            return;
        };
        if low != high {
            return;
        }
        match left {
            Expr::Meta(MetaKey::Nfproto) => self.network = self.network.or(layer_of_nfproto(low)),
            Expr::Meta(MetaKey::Protocol) => self.learn_ethertype(low),
            Expr::Meta(MetaKey::L4proto) => self.transport = Some(low as u8),
            Expr::Payload(field) => {
                let def = field.def();
                match (def.protocol, def.name) {
                    (Protocol::Ether, "type") => {
                        if low == ETHERTYPE_VLAN.into() || low == ETHERTYPE_QINQ.into() {
                            self.vlan = Some(0);
                        }
                        self.learn_ethertype(low);
                    }
                    (Protocol::Vlan, "type") => {
                        if low == ETHERTYPE_VLAN.into() || low == ETHERTYPE_QINQ.into() {
                            self.vlan = Some(self.vlan.unwrap_or(0) + 32);
                        }
                        self.learn_ethertype(low);
                    }
                    (Protocol::Ip, "protocol") | (Protocol::Ip6, "nexthdr") => {
                        self.transport = Some(low as u8);
                    }
                    (Protocol::Icmp | Protocol::Icmpv6, "type") => self.icmp_typed = true,
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn learn_ethertype(&mut self, number: u128) {
        self.network = self.network.or(match u16::try_from(number) {
            Ok(ETHERTYPE_IP) => Some(Layer::Ip),
            Ok(ETHERTYPE_IP6) => Some(Layer::Ip6),
            Ok(ETHERTYPE_ARP) => Some(Layer::Arp),
            _ => None,
        });
    }

    fn test(&mut self, term: Term, number: u128) {
        self.steps.push(Step::Test(term, equals(number)));
    }

    pub(super) fn need_network(&mut self, layer: Layer) -> Result<(), Why> {
        self.need_layer(layer, false)
    }

    fn need_layer(&mut self, layer: Layer, by_frame: bool) -> Result<(), Why> {
        match self.network {
            Some(known) if known == layer => return Ok(()),
            Some(_) => return Err(CONFLICT.into()),
            None => self.network = Some(layer),
        }
        let ethertype = match layer {
            Layer::Ip => ETHERTYPE_IP,
            Layer::Ip6 => ETHERTYPE_IP6,
            _ => ETHERTYPE_ARP,
        };
        let by_frame = match self.family() {
            Family::Bridge => by_frame || layer == Layer::Arp,
            // Behind a question about the frame nft goes on with the frame.
            Family::Inet | Family::Netdev => self.ether,
            _ => false,
        };
        match (self.family(), self.vlan) {
            // The frame's own type, which of a tagged frame is that of the tag. In family
            // bridge nft asks for it before messages and extension headers.
            (_, None) if by_frame => {
                self.test(load_bits(PayloadBase::Link, 96, 16)?, ethertype.into());
            }
            (Family::Inet, _) => self.test(meta(MetaKey::Nfproto), layer.nfproto().into()),
            (_, Some(deeper)) => {
                let term = load_bits(PayloadBase::Link, 128 + deeper, 16)?;
                self.test(term, ethertype.into());
            }
            _ => self.test(meta(MetaKey::Protocol), ethertype.into()),
        }
        Ok(())
    }

    /// nft puts this dependency at the rule's beginning, before whatever counts there.
    fn need_exthdr(&mut self) -> Result<(), Why> {
        let before = self.steps.len();
        self.need_layer(Layer::Ip6, true)?;
        if self.steps.len() > before {
            self.steps.rotate_right(1);
        }
        Ok(())
    }

    pub(super) fn need_transport(&mut self, protocol: u8) -> Result<(), Why> {
        match self.transport {
            Some(known) if known == protocol => return Ok(()),
            Some(_) => return Err(CONFLICT.into()),
            None => self.transport = Some(protocol),
        }
        self.test(meta(MetaKey::L4proto), protocol.into());
        Ok(())
    }

    /// The tests without which this field means nothing.
    fn need_field(&mut self, field: Field) -> Result<(), Why> {
        let def = field.def();
        match def.protocol {
            Protocol::Ether => {
                self.ether = true;
                if self.family() != Family::Bridge {
                    self.test(meta(MetaKey::Iiftype), 1);
                }
                Ok(())
            }
            Protocol::Vlan => {
                if !matches!(self.family(), Family::Bridge | Family::Netdev) {
                    return Err("vlan can be asked for in families bridge and netdev".into());
                }
                if self.vlan.is_none() {
                    self.vlan = Some(0);
                    let term = load_bits(PayloadBase::Link, 96, 16)?;
                    self.test(term, ETHERTYPE_VLAN.into());
                }
                Ok(())
            }
            Protocol::Arp => self.need_network(Layer::Arp),
            Protocol::Ip => self.need_network(Layer::Ip),
            Protocol::Ip6 => self.need_network(Layer::Ip6),
            Protocol::Th => Ok(()),
            Protocol::Icmp | Protocol::Igmp => {
                self.need_layer(Layer::Ip, true)?;
                self.need_transport(def.protocol.number().unwrap_or(PROTO_ICMP))?;
                self.need_icmp_type(field)
            }
            Protocol::Icmpv6 => {
                self.need_layer(Layer::Ip6, true)?;
                self.need_transport(PROTO_ICMPV6)?;
                self.need_icmp_type(field)
            }
            other => match other.number() {
                Some(number) => self.need_transport(number),
                None => Ok(()),
            },
        }
    }

    /// A field as a term, behind the tests without which it means nothing.
    pub(super) fn field(&mut self, field: Field) -> Result<Term, Why> {
        self.need_field(field)?;
        let def = field.def();
        let deeper = match def.protocol {
            Protocol::Vlan => self.vlan.unwrap_or(0),
            _ => 0,
        };
        load_bits(def.protocol.base(), def.offset_bits + deeper, def.bits)
    }

    /// Fields that only some types of ICMP messages have.
    fn need_icmp_type(&mut self, field: Field) -> Result<(), Why> {
        let def = field.def();
        let (low, high, apart) = match (def.protocol, def.name) {
            (Protocol::Icmp, "id" | "sequence") => (0, 8, true),
            (Protocol::Icmp, "gateway") => (5, 5, false),
            (Protocol::Icmp, "mtu") => (3, 3, false),
            (Protocol::Icmpv6, "id" | "sequence") => (128, 129, false),
            (Protocol::Icmpv6, "mtu" | "packet-too-big") => (2, 2, false),
            (Protocol::Icmpv6, "parameter-problem") => (4, 4, false),
            (Protocol::Icmpv6, "max-delay") => (130, 130, false),
            _ => return Ok(()),
        };
        if core::mem::replace(&mut self.icmp_typed, true) {
            return Ok(());
        }
        let term = load_bits(PayloadBase::Transport, 0, 8)?;
        // 0 and 8 differ in one bit.
        let test = match apart {
            true => Test::Masked {
                mask: !8 & 0xff,
                want: 0,
                negate: false,
            },
            false => Test::Range {
                low,
                high,
                negate: false,
            },
        };
        self.steps.push(Step::Test(term, test));
        Ok(())
    }
}

fn layer_of_nfproto(number: u128) -> Option<Layer> {
    match number {
        2 => Some(Layer::Ip),
        10 => Some(Layer::Ip6),
        _ => None,
    }
}

impl<'r> Compiler<'r> {
    /// The expression as a term; its dependencies become steps first.
    pub(super) fn term(&mut self, context: &mut Context<'r>, expr: &'r Expr) -> Result<Term, Why> {
        let plain = |load, bits| {
            Ok(Term {
                load,
                bits,
                ops: Vec::new(),
            })
        };
        match expr {
            Expr::Payload(field) => context.field(*field),
            Expr::PayloadRaw {
                base,
                offset_bits,
                bits,
            } => load_bits(*base, *offset_bits, *bits),
            Expr::Exthdr(field) => {
                let def = field.def();
                if !def.kind.is_tcp_option() {
                    context.need_exthdr()?;
                }
                // The same sum as for a payload, from the start of the header or option.
                let term = load_bits(PayloadBase::Inner, def.offset_bits, def.bits)?;
                let Load::Payload {
                    offset, len, shift, ..
                } = term.load
                else {
                    return Ok(term);
                };
                plain(
                    Load::Exthdr {
                        kind: def.kind,
                        offset,
                        len,
                        shift,
                    },
                    def.bits,
                )
            }
            Expr::ExthdrExists(field) => {
                let kind = field.def().kind;
                if !kind.is_tcp_option() {
                    context.need_exthdr()?;
                }
                plain(Load::ExthdrExists(kind), 8)
            }
            Expr::Meta(key) => {
                if matches!(
                    key,
                    MetaKey::Iifkind | MetaKey::Oifkind | MetaKey::Cgroup | MetaKey::Rtclassid
                ) {
                    return Err(alloc::format!("meta {} is not known here", key.name()));
                }
                Ok(meta(*key))
            }
            Expr::Ct { key, direction } => {
                self.track(context)?;
                let six = context.network == Some(Layer::Ip6);
                let bits = match key {
                    CtKey::Saddr | CtKey::Daddr if six => 128,
                    CtKey::Helper | CtKey::Label | CtKey::Zone => {
                        return Err(alloc::format!("ct {} is not kept here", key.name()));
                    }
                    _ => key.data_type().bits(),
                };
                plain(
                    Load::Ct {
                        key: *key,
                        direction: *direction,
                    },
                    bits,
                )
            }
            Expr::Fib { flags, result } => {
                let bits = expr.data_type().map_or(32, DataType::bits);
                plain(
                    Load::Fib {
                        flags: *flags,
                        result: *result,
                    },
                    bits,
                )
            }
            Expr::Numgen {
                mode,
                modulus,
                offset,
            } => {
                if *modulus == 0 {
                    return Err("numgen needs a modulus above zero".into());
                }
                let random = *mode == crate::model::NumgenMode::Random;
                self.program.numgens.push(NumgenCode {
                    random,
                    modulus: *modulus,
                    offset: *offset,
                });
                self.state.numgens.push(modulus - 1);
                plain(Load::Numgen(self.program.numgens.len() as u32 - 1), 32)
            }
            Expr::Jhash {
                input,
                modulus,
                seed,
                offset,
            } => {
                if *modulus == 0 {
                    return Err("jhash needs a modulus above zero".into());
                }
                let parts = self.parts(context, input)?;
                let parts = parts.into_iter().map(|t| (t.clone(), t.bits)).collect();
                let seed = seed.unwrap_or(self.seed.0 as u32);
                let hash = HashCode {
                    parts,
                    modulus: *modulus,
                    seed,
                    offset: *offset,
                };
                self.program.hashes.push(hash);
                plain(Load::Jhash(self.program.hashes.len() as u32 - 1), 32)
            }
            Expr::Map { key, map } => {
                let (key, set) = self.key_and_set(context, key, map, None)?;
                let bits = self.data_bits(context, map)?;
                let key = self.intern_key(key);
                self.program.maps.push((key, set));
                plain(Load::Map(self.program.maps.len() as u32 - 1), bits)
            }
            Expr::Binary { op, left, right } => {
                let mut term = self.term(context, left)?;
                let Some(number) = right.constant() else {
                    return Err("the right side of a bitwise operation must be a value".into());
                };
                let shift = || u32::try_from(number).map_err(|_| Why::from("shifted too far"));
                term.ops.push(match op {
                    BinaryOp::And => Bitop::And(number),
                    BinaryOp::Or => Bitop::Or(number),
                    BinaryOp::Xor => Bitop::Xor(number),
                    BinaryOp::ShiftLeft => Bitop::Left(shift()?),
                    BinaryOp::ShiftRight => Bitop::Right(shift()?),
                });
                Ok(term)
            }
            Expr::Value(value) => plain(Load::Constant(value.as_number()), value.data_type.bits()),
            Expr::List(_) => match (expr.constant(), expr.data_type()) {
                (Some(number), Some(t)) => plain(Load::Constant(number), t.bits()),
                _ => Err("a list of values cannot stand here".into()),
            },
            Expr::Range(..) | Expr::Prefix(..) | Expr::Any | Expr::Set(_) | Expr::Concat(_) => {
                Err("this expression cannot stand here".into())
            }
        }
    }

    /// The terms of a concatenation, or the one of anything else.
    pub(super) fn parts(
        &mut self,
        context: &mut Context<'r>,
        expr: &'r Expr,
    ) -> Result<Box<[Term]>, Why> {
        match expr {
            Expr::Concat(parts) => parts.iter().map(|p| self.term(context, p)).collect(),
            other => Ok(Box::new([self.term(context, other)?])),
        }
    }

    /// A rule of this context asks for connections.
    pub(super) fn track(&mut self, context: &Context) -> Result<(), Why> {
        let layers: &[Layer] = match context.family() {
            Family::Ip => &[Layer::Ip],
            Family::Ip6 => &[Layer::Ip6],
            Family::Inet => &[Layer::Ip, Layer::Ip6],
            other => {
                return Err(alloc::format!(
                    "family {other} does not track connections here"
                ));
            }
        };
        layers
            .iter()
            .for_each(|layer| self.program.tracks[*layer as usize] = true);
        Ok(())
    }
}
