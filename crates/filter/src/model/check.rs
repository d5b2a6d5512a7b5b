//! What must hold of a ruleset as a whole: every name that is used exists, chains do not
//! call each other in circles or too deep, base chains sit on hooks that their family has.

use alloc::string::String;
use alloc::vec::Vec;

use super::apply::Done;
use super::{
    ApplyErrorKind, Chain, ChainKind, ElementData, Expr, Family, Hook, JUMP_DEPTH_MAX, MapData,
    ObjectKind, SetRef, Statement, Table, Verdict,
};

pub(super) fn check_tables(tables: &[Table]) -> Done {
    tables.iter().try_for_each(check_table)
}

fn check_table(table: &Table) -> Done {
    for chain in &table.chains {
        check_base(table, chain)?;
        for rule in &chain.rules {
            let mut done = Ok(());
            walk_statements(&rule.statements, &mut |used| {
                if done.is_ok() {
                    done = check_use(table, &used);
                }
            });
            done?;
        }
    }
    for set in &table.sets {
        for element in &set.elements {
            match (&element.data, &set.data) {
                (Some(ElementData::Verdict(verdict)), Some(MapData::Verdict)) => {
                    check_use(table, &Use::Verdict(verdict))?;
                }
                (Some(ElementData::Object(name)), Some(MapData::Object(kind))) => {
                    check_use(table, &Use::Object(*kind, name))?;
                }
                (Some(ElementData::Value(_)), Some(MapData::Type(_) | MapData::Interval(_)))
                | (None, None) => {}
                _ => {
                    let why = "an element's data is not of the map's type";
                    return Err((
                        ApplyErrorKind::Unsound(why),
                        table.name_of(set.word(), &set.name),
                    ));
                }
            }
        }
    }
    check_depth(table)
}

fn check_base(table: &Table, chain: &Chain) -> Done {
    let Some(base) = &chain.base else {
        return Ok(());
    };
    let unsound = |why| {
        Err((
            ApplyErrorKind::Unsound(why),
            table.name_of("chain", &chain.name),
        ))
    };
    use Hook::*;
    let hooks: &[Hook] = match table.family {
        Family::Ip | Family::Ip6 | Family::Bridge => {
            &[Prerouting, Input, Forward, Output, Postrouting]
        }
        Family::Inet => &[Ingress, Prerouting, Input, Forward, Output, Postrouting],
        Family::Arp => &[Input, Output],
        Family::Netdev => &[Ingress, Egress],
    };
    if !hooks.contains(&base.hook) {
        return unsound("the family has no such hook");
    }
    let on_device = matches!(base.hook, Ingress | Egress);
    if !on_device && !base.devices.is_empty() {
        return unsound("only hooks ingress and egress have devices");
    }
    match base.kind {
        ChainKind::Filter => Ok(()),
        ChainKind::Nat => {
            let family_ok = matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet);
            if !family_ok || matches!(base.hook, Forward | Ingress) {
                return unsound("type nat needs family ip, ip6 or inet and another hook");
            }
            // Below -200 connection tracking has not seen the packet.
            if base.priority <= -200 {
                return unsound("type nat needs a priority above -200");
            }
            Ok(())
        }
        ChainKind::Route => {
            let family_ok = matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet);
            if !family_ok || base.hook != Output {
                return unsound("type route needs family ip, ip6 or inet and hook output");
            }
            Ok(())
        }
    }
}

/// A name that something uses.
enum Use<'a> {
    Verdict(&'a Verdict),
    Object(ObjectKind, &'a str),
    Set(&'a str),
}

fn check_use(table: &Table, used: &Use) -> Done {
    let missing =
        |what: &str, name: &str| Err((ApplyErrorKind::NoSuchObject, table.name_of(what, name)));
    match used {
        Use::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => match table.chain(name) {
            None => missing("chain", name),
            Some(chain) if chain.base.is_some() => {
                let why = "a base chain cannot be jumped to";
                Err((ApplyErrorKind::Unsound(why), table.name_of("chain", name)))
            }
            Some(_) => Ok(()),
        },
        Use::Object(kind, name) if table.object(*kind, name).is_none() => {
            missing(kind.name(), name)
        }
        Use::Set(name) if table.set(name).is_none() => missing("set", name),
        _ => Ok(()),
    }
}

fn walk_statements<'a>(statements: &'a [Statement], see: &mut dyn FnMut(Use<'a>)) {
    for statement in statements {
        match statement {
            Statement::Verdict(verdict) => see(Use::Verdict(verdict)),
            Statement::Object { kind, name } => see(Use::Object(*kind, name)),
            Statement::VerdictMap { map, .. } => walk_set(map, None, see),
            Statement::ObjectMap { kind, map, .. } => walk_set(map, Some(*kind), see),
            Statement::SetUpdate(update) => see(Use::Set(&update.set)),
            _ => {}
        }
        statement.for_each_expr(&mut |expr| walk_expr(expr, see));
    }
}

fn walk_set<'a>(set: &'a SetRef, kind: Option<ObjectKind>, see: &mut dyn FnMut(Use<'a>)) {
    match set {
        SetRef::Named(name) => see(Use::Set(name)),
        SetRef::Anonymous(elements) => {
            for element in elements {
                match (&element.data, kind) {
                    (Some(ElementData::Verdict(verdict)), _) => see(Use::Verdict(verdict)),
                    (Some(ElementData::Object(name)), Some(kind)) => see(Use::Object(kind, name)),
                    _ => {}
                }
            }
        }
    }
}

fn walk_expr<'a>(expr: &'a Expr, see: &mut dyn FnMut(Use<'a>)) {
    match expr {
        Expr::Set(set) => walk_set(set, None, see),
        Expr::Map { key, map } => {
            walk_expr(key, see);
            walk_set(map, None, see);
        }
        Expr::Concat(parts) | Expr::List(parts) => parts.iter().for_each(|p| walk_expr(p, see)),
        Expr::Binary { left, right, .. } => {
            walk_expr(left, see);
            walk_expr(right, see);
        }
        Expr::Jhash { input, .. } => walk_expr(input, see),
        _ => {}
    }
}

/// The chains that a chain leads to, by position in the table.
fn calls(table: &Table, chain: &Chain) -> Vec<usize> {
    let mut out = Vec::new();
    let mut names: Vec<&String> = Vec::new();
    for rule in &chain.rules {
        walk_statements(&rule.statements, &mut |used| match used {
            Use::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => names.push(name),
            // A map may be a verdict map: then all that it holds can be reached.
            Use::Set(name) => {
                for element in table.set(name).iter().flat_map(|s| &s.elements) {
                    if let Some(ElementData::Verdict(Verdict::Jump(name) | Verdict::Goto(name))) =
                        &element.data
                    {
                        names.push(name);
                    }
                }
            }
            _ => {}
        });
    }
    for name in names {
        if let Some(at) = table.chains.iter().position(|c| c.name == *name)
            && !out.contains(&at)
        {
            out.push(at);
        }
    }
    out
}

/// Refuses circles and depth. Each chain is looked at once: its depth is the longest way
/// out of it.
fn check_depth(table: &Table) -> Done {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Depth(usize),
    }
    let calls: Vec<Vec<usize>> = table.chains.iter().map(|c| calls(table, c)).collect();
    let mut seen = alloc::vec![Seen::No; table.chains.len()];
    for start in 0..table.chains.len() {
        // The chains that are open, each with how many of its calls were followed.
        let mut stack = alloc::vec![(start, 0)];
        while let Some((at, followed)) = stack.pop() {
            if matches!(seen[at], Seen::Depth(_)) {
                continue;
            }
            seen[at] = Seen::Open;
            if let Some(&next) = calls[at].get(followed) {
                stack.push((at, followed + 1));
                match seen[next] {
                    Seen::Open => {
                        let name = table.name_of("chain", &table.chains[next].name);
                        return Err((ApplyErrorKind::JumpLoop, name));
                    }
                    Seen::No => stack.push((next, 0)),
                    Seen::Depth(_) => {}
                }
                continue;
            }
            let depth = calls[at]
                .iter()
                .map(|c| {
                    if let Seen::Depth(d) = seen[*c] {
                        d + 1
                    } else {
                        0
                    }
                })
                .max()
                .unwrap_or(0);
            if depth >= JUMP_DEPTH_MAX {
                let name = table.name_of("chain", &table.chains[at].name);
                return Err((ApplyErrorKind::JumpTooDeep, name));
            }
            seen[at] = Seen::Depth(depth);
        }
    }
    Ok(())
}

impl Table {
    /// Jumps follow a chain to its new name.
    pub(super) fn rename_jumps(&mut self, from: &str, to: &str) {
        let rename = |verdict: &mut Verdict| {
            if let Verdict::Jump(name) | Verdict::Goto(name) = verdict
                && name == from
            {
                *name = to.into();
            }
        };
        for rule in self.chains.iter_mut().flat_map(|c| &mut c.rules) {
            for statement in &mut rule.statements {
                match statement {
                    Statement::Verdict(verdict) => rename(verdict),
                    Statement::VerdictMap {
                        map: SetRef::Anonymous(elements),
                        ..
                    } => {
                        for element in elements {
                            if let Some(ElementData::Verdict(verdict)) = &mut element.data {
                                rename(verdict);
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        for element in self.sets.iter_mut().flat_map(|s| &mut s.elements) {
            if let Some(ElementData::Verdict(verdict)) = &mut element.data {
                rename(verdict);
            }
        }
    }
}
