//! Address translation: which family, which ports.
use super::{Checked, Checker, expr::Within, value::Wanted};
use crate::prelude::*;
use crate::{
    ast::{self, Expr, ExprKind, Nat},
    error::Fault,
    source::Span,
};
use fordway_filter::model::{self, DataType, Family, MapData, NatKind, Protocol};

const PORTS_OF_WHAT: &str = "ports of which protocol? match tcp, udp or meta l4proto before it";

impl Checker<'_> {
    pub(super) fn nat(
        &mut self,
        within: &mut Within,
        nat: &Nat,
        span: Span,
    ) -> Checked<model::Nat> {
        let table = within.protocols.family();
        if matches!(table, Family::Arp | Family::Bridge | Family::Netdev) {
            return Err(Fault::wrong(
                span,
                format!("addresses are not translated in family {table}"),
            ));
        }
        let of_table = match table {
            Family::Ip => Some(Family::Ip),
            Family::Ip6 => Some(Family::Ip6),
            _ => None,
        };
        if let (Some(of_table), Some(said)) = (of_table, nat.family)
            && of_table != said
        {
            return Err(Fault::wrong(
                span,
                format!("an address of family {said} in a table of family {table}"),
            ));
        }
        let known = match within.protocols.network() {
            Some(Protocol::Ip) => Some(Family::Ip),
            Some(Protocol::Ip6) => Some(Family::Ip6),
            _ => None,
        };
        let address = match &nat.address {
            None => None,
            Some(expr) => {
                let Some(family) = of_table.or(nat.family).or(known) else {
                    return Err(Fault::wrong(
                        span,
                        "of which family is the address? write 'ip to' or 'ip6 to'",
                    ));
                };
                let data_type = match family {
                    Family::Ip6 => DataType::Ipv6Addr,
                    _ => DataType::Ipv4Addr,
                };
                Some(self.nat_address(within, nat, expr, data_type)?)
            }
        };
        if matches!(nat.kind, NatKind::Snat | NatKind::Dnat)
            && address.is_none()
            && nat.port.is_none()
        {
            return Err(Fault::wrong(span, "where to? write an address or a port"));
        }
        let port = match &nat.port {
            None => None,
            Some(expr) => {
                if within.protocols.transport().is_none() {
                    return Err(Fault::wrong(expr.span, PORTS_OF_WHAT));
                }
                Some(self.given(within, expr, &[Wanted::of(DataType::InetService)])?)
            }
        };
        // Where the table has one family it says nothing to name it.
        let family = match (of_table, &address) {
            (None, Some(_)) => nat.family.or(known),
            _ => None,
        };
        Ok(model::Nat {
            kind: nat.kind,
            family,
            address,
            port,
            flags: nat.flags,
        })
    }

    fn nat_address(
        &mut self,
        within: &mut Within,
        nat: &Nat,
        expr: &Expr,
        data_type: DataType,
    ) -> Checked<model::Expr> {
        let address = Wanted::of(data_type);
        let port = Wanted::of(DataType::InetService);
        // A map may lead to an address and a port.
        let joined = nat.joined || self.leads_to_two(within, expr);
        if !joined {
            return self.given(within, expr, &[address]);
        }
        let made = self.given(within, expr, &[address, port])?;
        if within.protocols.transport().is_none() {
            return Err(Fault::wrong(expr.span, PORTS_OF_WHAT));
        }
        Ok(made)
    }

    fn leads_to_two(&self, within: &Within, expr: &Expr) -> bool {
        let ExprKind::Map(_, map) = expr.resolved() else {
            return false;
        };
        match map.resolved() {
            ExprKind::SetRef(name) => match self.scope.set(within.table, name) {
                Some(set) => match &set.data {
                    Some(MapData::Type(types) | MapData::Interval(types)) => {
                        types.parts().len() == 2
                    }
                    _ => false,
                },
                None => false,
            },
            ExprKind::Set(elements) => matches!(
                elements.first().and_then(|element| element.data.as_ref()),
                Some(ast::Data::Expr(data)) if matches!(data.resolved(), ExprKind::Concat(_))
            ),
            _ => false,
        }
    }
}
