//! Statements other than matches.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::rule::Context;
use super::sets::own_bounds;
use super::terms::load_bits;
use super::{Compiler, Why};
use crate::limits::{Bucket, QuotaState};
use crate::model::{
    CtKey, Expr, Family, Hook, Mangle, MetaKey, Nat, NatKind, ObjectKind, PayloadBase, Protocol,
    RejectKind, SetUpdate, Statement,
};
use crate::packet::{Layer, PROTO_TCP};
use crate::program::{
    Insn, Load, MangleCode, MangleTarget, NatCode, NatValue, Reject, RejectCode, Term, UpdateCode,
};
use crate::sets::ElementStatement;
use crate::state::{ConnLimitState, Place};

impl<'r> Compiler<'r> {
    pub(super) fn statement(
        &mut self,
        context: &mut Context<'r>,
        statement: &'r Statement,
    ) -> Result<(), Why> {
        let place = Place::Statement {
            table: context.id.table,
            chain: context.id.chain,
            rule: context.id.rule.unwrap_or(0),
            statement: context.statement,
        };
        let insn = match statement {
            Statement::Match { op, left, right } => {
                return self.match_statement(context, *op, left, right);
            }
            Statement::Verdict(verdict) => Insn::Verdict(self.verdict(context.table_at, verdict)?),
            Statement::VerdictMap { key, map } => {
                let (key, set) = self.key_and_set(context, key, map, None)?;
                Insn::VerdictMap {
                    key: self.intern_key(key),
                    set,
                }
            }
            Statement::Reject(kind) => Insn::Reject(self.reject(context, *kind)?),
            Statement::Counter(counter) => {
                self.state.counters.push((*counter, place));
                Insn::Counter(self.state.counters.len() as u32 - 1)
            }
            Statement::Limit(limit) => {
                self.state
                    .limits
                    .push((Bucket::new(limit, self.now_ns), place));
                Insn::Limit(self.state.limits.len() as u32 - 1)
            }
            Statement::Quota(quota) => {
                self.state.quotas.push((QuotaState::new(quota), place));
                Insn::Quota(self.state.quotas.len() as u32 - 1)
            }
            Statement::Object { kind, name } => {
                let at = self.object(context.table_at, *kind, name)?;
                match kind {
                    ObjectKind::Counter => Insn::Counter(at),
                    ObjectKind::Quota => Insn::Quota(at),
                    ObjectKind::Limit => Insn::Limit(at),
                }
            }
            Statement::ObjectMap { kind, key, map } => {
                let (key, set) = self.key_and_set(context, key, map, Some(*kind))?;
                Insn::ObjectMap {
                    key: self.intern_key(key),
                    set,
                    kind: *kind,
                }
            }
            Statement::ConnLimit { count, over } => {
                self.track(context)?;
                let state = ConnLimitState {
                    count: *count,
                    over: *over,
                    flows: Vec::new(),
                };
                self.state.conn_limits.push((state, place));
                Insn::ConnLimit(self.state.conn_limits.len() as u32 - 1)
            }
            Statement::Log(log) => {
                self.program.logs.push(log.clone());
                Insn::Log(self.program.logs.len() as u32 - 1)
            }
            Statement::Nat(nat) => self.nat(context, nat)?,
            Statement::SetUpdate(update) => self.update(context, update)?,
            Statement::Mangle { target, value } => self.mangle(context, target, value)?,
            Statement::Notrack => {
                self.track(context)?;
                Insn::Notrack
            }
        };
        context.insn(insn);
        Ok(())
    }

    fn reject(&mut self, context: &mut Context<'r>, kind: RejectKind) -> Result<RejectCode, Why> {
        match context.family() {
            Family::Arp => return Err("family arp cannot reject".into()),
            Family::Ip | Family::Ip6 | Family::Inet | Family::Bridge | Family::Netdev => {}
        }
        if let Some(base) = &context.chain.base
            && matches!(base.hook, Hook::Postrouting | Hook::Egress)
        {
            return Err("reject cannot stand behind routing".into());
        }
        Ok(match kind {
            RejectKind::Default => match context.family() {
                Family::Ip => RejectCode::Known(Reject::Icmp(3)),
                Family::Ip6 => RejectCode::Known(Reject::Icmpv6(4)),
                _ => RejectCode::Icmpx(1),
            },
            RejectKind::Icmp(code) => {
                context.need_network(Layer::Ip)?;
                RejectCode::Known(Reject::Icmp(code))
            }
            RejectKind::Icmpv6(code) => {
                context.need_network(Layer::Ip6)?;
                RejectCode::Known(Reject::Icmpv6(code))
            }
            RejectKind::Icmpx(code) => RejectCode::Icmpx(code),
            RejectKind::TcpReset => {
                context.need_transport(PROTO_TCP)?;
                RejectCode::Known(Reject::TcpReset)
            }
        })
    }

    fn nat(&mut self, context: &mut Context<'r>, nat: &'r Nat) -> Result<Insn, Why> {
        let hooks: &[Hook] = match nat.kind {
            NatKind::Snat => &[Hook::Postrouting, Hook::Input],
            NatKind::Masquerade => &[Hook::Postrouting],
            NatKind::Dnat | NatKind::Redirect => &[Hook::Prerouting, Hook::Output],
        };
        if let Some(base) = &context.chain.base
            && !(hooks.contains(&base.hook) && base.kind == crate::model::ChainKind::Nat)
        {
            return Err("this kind of nat needs a chain of type nat on another hook".into());
        }
        self.track(context)?;
        if nat.port.is_some() && context.transport.is_none() && !context.asks_for_transport() {
            return Err("a port is only valid after a match of the transport protocol".into());
        }
        let layer = match (nat.family, context.family()) {
            (Some(Family::Ip), _) | (None, Family::Ip) => Some(Layer::Ip),
            (Some(Family::Ip6), _) | (None, Family::Ip6) => Some(Layer::Ip6),
            _ => context.network,
        };
        if nat.address.is_some() && layer.is_none() {
            return Err("say `ip to` or `ip6 to` here".into());
        }
        if let Some(layer) = layer.filter(|_| nat.address.is_some()) {
            context.need_network(layer)?;
        }
        let address = nat
            .address
            .as_ref()
            .map(|e| self.nat_value(context, e))
            .transpose()?;
        let port = nat
            .port
            .as_ref()
            .map(|e| self.nat_value(context, e))
            .transpose()?;
        let code = NatCode {
            kind: nat.kind,
            layer,
            address,
            port,
            flags: nat.flags,
        };
        self.program.nats.push(code);
        Ok(Insn::Nat(self.program.nats.len() as u32 - 1))
    }

    fn nat_value(&mut self, context: &mut Context<'r>, expr: &'r Expr) -> Result<NatValue, Why> {
        match expr {
            Expr::Map { key, map } => {
                let (key, set) = self.key_and_set(context, key, map, None)?;
                Ok(NatValue::Map {
                    key: self.intern_key(key),
                    set,
                })
            }
            Expr::Value(_) | Expr::Range(..) | Expr::Prefix(..) | Expr::Concat(_) => {
                Ok(NatValue::Constant(own_bounds(expr)?.into()))
            }
            other => Ok(NatValue::Term(self.term(context, other)?)),
        }
    }

    fn update(&mut self, context: &mut Context<'r>, update: &'r SetUpdate) -> Result<Insn, Why> {
        let set = self.named_set_number(context, &update.set)?;
        let terms = self.parts(context, &update.key)?;
        let key = self.key_for(terms, set)?;
        if self.state.sets[set as usize].0.ranges {
            return Err("packets cannot add to a set of ranges".into());
        }
        let data = match &update.data {
            Some(expr) => Some(self.term(context, expr)?),
            None => None,
        };
        let statements: Box<[ElementStatement]> = update
            .statements
            .iter()
            .map(|s| ElementStatement::new(s, self.now_ns).ok_or("no such statement in a set"))
            .collect::<Result<_, _>>()?;
        let timeout_ns = update.timeout_ms.map(|ms| ms.saturating_mul(1_000_000));
        let key = self.intern_key(key);
        let code = UpdateCode {
            op: update.op,
            set,
            key,
            data,
            timeout_ns,
            statements,
        };
        self.program.updates.push(code);
        Ok(Insn::Update(self.program.updates.len() as u32 - 1))
    }

    fn mangle(
        &mut self,
        context: &mut Context<'r>,
        target: &'r Mangle,
        value: &'r Expr,
    ) -> Result<Insn, Why> {
        let (target, bits) = match target {
            Mangle::Meta(
                key @ (MetaKey::Mark | MetaKey::Priority | MetaKey::Nftrace | MetaKey::Pkttype),
            ) => (MangleTarget::Meta(*key), key.data_type().bits()),
            Mangle::Meta(key) => {
                return Err(alloc::format!("meta {} cannot be set", key.name()));
            }
            Mangle::Ct {
                key: CtKey::Mark, ..
            } => {
                self.track(context)?;
                (MangleTarget::Ct(CtKey::Mark), 32)
            }
            Mangle::Ct { key, .. } => {
                return Err(alloc::format!("ct {} cannot be set here", key.name()));
            }
            Mangle::Payload(field) => {
                let term = context.field(*field)?;
                let def = field.def();
                let checksum = checksum_of(def.protocol).filter(|at| *at * 8 != def.offset_bits);
                let pseudo = matches!(
                    (def.protocol, def.name),
                    (Protocol::Ip | Protocol::Ip6, "saddr" | "daddr")
                );
                (payload_target(&term, checksum, pseudo)?, def.bits)
            }
            Mangle::PayloadRaw {
                base,
                offset_bits,
                bits,
            } => {
                let term = load_bits(*base, *offset_bits, *bits)?;
                (payload_target(&term, None, false)?, *bits)
            }
        };
        let value = self.term(context, value)?;
        if let Load::Constant(number) = value.load
            && number > crate::program::low_bits(bits)
        {
            return Err("the value is too large for its field".into());
        }
        self.program.mangles.push(MangleCode { target, value });
        Ok(Insn::Mangle(self.program.mangles.len() as u32 - 1))
    }
}

fn payload_target(term: &Term, checksum: Option<u16>, pseudo: bool) -> Result<MangleTarget, Why> {
    match term.load {
        Load::Payload {
            base,
            offset,
            len,
            shift,
        } => Ok(MangleTarget::Payload {
            base,
            offset,
            len,
            shift,
            bits: term.bits,
            checksum,
            pseudo,
        }),
        _ => Err("only a payload field can be set".into()),
    }
}

/// Where in its header a protocol keeps the checksum of the header or segment.
fn checksum_of(protocol: Protocol) -> Option<u16> {
    match protocol {
        Protocol::Ip => Some(10),
        Protocol::Tcp => Some(16),
        Protocol::Udp | Protocol::Udplite => Some(6),
        Protocol::Icmp | Protocol::Icmpv6 | Protocol::Igmp => Some(2),
        _ => None,
    }
}

impl Context<'_> {
    /// Some step before asked for the transport protocol, if not for one alone.
    fn asks_for_transport(&self) -> bool {
        use super::rule::Step;
        let is_transport = |term: &Term| match term.load {
            Load::Meta(MetaKey::L4proto) => true,
            Load::Payload { base, offset, .. } => {
                base == PayloadBase::Network && (offset == 9 || offset == 6)
            }
            _ => false,
        };
        self.steps.iter().any(|step| match step {
            Step::Test(term, _) => is_transport(term),
            Step::Lookup { key, .. } => key.parts.iter().any(|(term, _)| is_transport(term)),
            Step::Insn(_) => false,
        })
    }
}
