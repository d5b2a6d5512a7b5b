//! What may stand where: statements that only some chains can carry out.
//!
//! nft leaves these to the kernel, which refuses the whole transaction when a base chain can
//! reach a statement that does not work at its hook; so the check follows jumps.
use super::Checked;
use crate::prelude::*;
use crate::{error::Fault, source::Span};
use fordway_filter::model::{
    BaseChain, Chain, ChainKind, ElementData, Expr, Family, FibResult, Hook, Mangle, MetaKey,
    NatKind, Op, Ruleset, SetRef, Statement, Table, Verdict,
};

/// A base chain that its family does not have.
pub(super) fn check_chain(op: &Op, span: Span) -> Checked<()> {
    let Op::AddChain { table, chain, .. } = op else {
        return Ok(());
    };
    let Some(base) = &chain.base else {
        return Ok(());
    };
    let needs_device = table.family == Family::Netdev || base.hook == Hook::Ingress;
    if needs_device && base.devices.is_empty() {
        return Err(Fault::wrong(
            span,
            format!("hook {} needs a device", base.hook.name()),
        ));
    }
    Ok(())
}

/// Follows each base chain through its jumps.
pub(super) fn check(ruleset: &Ruleset, ops: &[Op], spans: &[Span]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for table in &ruleset.tables {
        for chain in &table.chains {
            let Some(base) = &chain.base else {
                continue;
            };
            for reached in reached(table, chain) {
                for rule in &reached.rules {
                    for statement in &rule.statements {
                        if let Err(why) = allowed(table.family, base, statement) {
                            let span = find(ops, spans, table, reached, statement);
                            let text = format!("{why}; chain {} leads here", chain.name);
                            let fault = Fault::wrong(span, text);
                            if !faults.contains(&fault) {
                                faults.push(fault);
                            }
                        }
                    }
                }
            }
        }
    }
    faults
}

/// A chain and all that it can jump to, each once.
fn reached<'a>(table: &'a Table, from: &'a Chain) -> Vec<&'a Chain> {
    let mut out = vec![from];
    let mut at = 0;
    while let Some(chain) = out.get(at).copied() {
        at += 1;
        for name in targets(table, chain) {
            if let Some(next) = table.chain(name)
                && !out.iter().any(|known| known.name == next.name)
            {
                out.push(next);
            }
        }
    }
    out
}

fn targets<'a>(table: &'a Table, chain: &'a Chain) -> Vec<&'a str> {
    let mut out = Vec::new();
    let mut verdict = |verdict: &'a Verdict| {
        if let Verdict::Jump(name) | Verdict::Goto(name) = verdict {
            out.push(name.as_str());
        }
    };
    for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
        let elements = match statement {
            Statement::Verdict(one) => {
                verdict(one);
                continue;
            }
            Statement::VerdictMap { map, .. } => match map {
                SetRef::Anonymous(elements) => elements,
                SetRef::Named(name) => match table.set(name) {
                    Some(set) => &set.elements,
                    None => continue,
                },
            },
            _ => continue,
        };
        for element in elements {
            if let Some(ElementData::Verdict(one)) = &element.data {
                verdict(one);
            }
        }
    }
    out
}

/// The first command that put such a statement into such a chain.
fn find(ops: &[Op], spans: &[Span], table: &Table, chain: &Chain, what: &Statement) -> Span {
    for (op, span) in ops.iter().zip(spans) {
        let (Op::AddRule {
            table: id,
            chain: name,
            rule,
            ..
        }
        | Op::ReplaceRule {
            table: id,
            chain: name,
            rule,
            ..
        }) = op
        else {
            continue;
        };
        if id.family == table.family
            && id.name == table.name
            && *name == chain.name
            && rule.statements.contains(what)
        {
            return *span;
        }
    }
    spans.last().copied().unwrap_or_default()
}

/// Whether a statement works in what a base chain leads to.
fn allowed(family: Family, base: &BaseChain, statement: &Statement) -> Result<(), String> {
    let hook = base.hook;
    let at = |hooks: &[Hook], what: &str| {
        if hooks.contains(&hook) {
            return Ok(());
        }
        let names: Vec<&str> = hooks.iter().map(|hook| hook.name()).collect();
        Err(format!(
            "{what} works at hook {} only, not at {}",
            names.join(", "),
            hook.name()
        ))
    };
    use Hook::{Forward, Ingress, Input, Output, Postrouting, Prerouting};
    match statement {
        Statement::Nat(nat) => {
            let (word, hooks): (_, &[Hook]) = match nat.kind {
                NatKind::Snat => ("snat", &[Postrouting, Input]),
                NatKind::Dnat => ("dnat", &[Prerouting, Output]),
                NatKind::Masquerade => ("masquerade", &[Postrouting]),
                NatKind::Redirect => ("redirect", &[Prerouting, Output]),
            };
            if base.kind != ChainKind::Nat {
                return Err(format!("{word} works in chains of type nat only"));
            }
            at(hooks, word)
        }
        Statement::Reject(_) => match family {
            Family::Bridge => at(&[Prerouting, Input], "reject"),
            Family::Netdev => at(&[Ingress], "reject"),
            _ => at(&[Prerouting, Input, Forward, Output, Ingress], "reject"),
        },
        Statement::Mangle {
            target: Mangle::Meta(MetaKey::Pkttype),
            ..
        } => match family {
            Family::Bridge => at(&[Prerouting], "meta pkttype set"),
            Family::Netdev => at(&[Ingress], "meta pkttype set"),
            Family::Arp => Err("meta pkttype cannot be set in family arp".to_string()),
            _ => at(&[Prerouting], "meta pkttype set"),
        },
        other => {
            let mut bad = Ok(());
            other.for_each_expr(&mut |expr| {
                each_part(expr, &mut |part| {
                    if bad.is_ok()
                        && let Expr::Fib { flags, result } = part
                        && family != Family::Netdev
                    {
                        bad = match result {
                            FibResult::Oif | FibResult::Oifname => at(
                                &[Prerouting, Input, Forward, Ingress],
                                "fib with the result of an interface",
                            ),
                            FibResult::Type if flags.iif => {
                                at(&[Prerouting, Input, Forward, Ingress], "fib with iif")
                            }
                            FibResult::Type if flags.oif => {
                                at(&[Output, Postrouting, Forward], "fib with oif")
                            }
                            FibResult::Type => Ok(()),
                        };
                    }
                });
            });
            bad
        }
    }
}

fn each_part(expr: &Expr, see: &mut dyn FnMut(&Expr)) {
    see(expr);
    match expr {
        Expr::Concat(parts) | Expr::List(parts) => {
            parts.iter().for_each(|part| each_part(part, see));
        }
        Expr::Binary { left, .. } => each_part(left, see),
        Expr::Map { key, .. } => each_part(key, see),
        Expr::Jhash { input, .. } => each_part(input, see),
        _ => {}
    }
}
