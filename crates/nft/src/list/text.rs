//! Tables, chains, sets and objects as blocks of nft's text.
use super::{
    Style,
    expr::per_line,
    sorted,
    statement::{limit_text, quota_text},
    tables,
    value::Writer,
};
use crate::prelude::*;
use crate::{
    ast::{Listed, Listing},
    env::Env,
    symbols::type_name,
    words::{write_priority, write_time_ms},
};
use core::fmt::Write;
use fordway_filter::model::{
    Chain, MapData, Object, ObjectState, Policy, Rule, Ruleset, Set, SetType, Table,
};

pub(super) fn listing(ruleset: &Ruleset, env: &Env, style: Style, listing: &Listing) -> String {
    let lister = Lister {
        writer: Writer { env },
        style,
    };
    let mut out = String::new();
    if listing.what == Listed::Tables {
        for table in tables(ruleset, listing) {
            let _ = writeln!(out, "table {} {}", table.family, table.name);
        }
        return out;
    }
    for table in tables(ruleset, listing) {
        lister.table(&mut out, table, listing);
    }
    out
}

/// One rule in one line, without what it has counted.
pub(super) fn rule(rule: &Rule, env: &Env) -> String {
    let lister = Lister {
        writer: Writer { env },
        style: Style {
            stateless: true,
            ..Style::default()
        },
    };
    lister.rule(rule)
}

struct Lister<'a> {
    writer: Writer<'a>,
    style: Style,
}

impl Lister<'_> {
    fn table(&self, out: &mut String, table: &Table, listing: &Listing) {
        let whole = listing.what == Listed::Ruleset;
        let named = |name: &str| listing.name.as_deref().is_none_or(|wanted| wanted == name);
        let mut blocks: Vec<String> = Vec::new();
        if whole && (table.dormant || table.comment.is_some()) {
            let mut head = String::new();
            if table.dormant {
                head.push_str("\tflags dormant\n");
            }
            if let Some(comment) = &table.comment {
                let _ = writeln!(head, "\tcomment \"{comment}\"");
            }
            blocks.push(head);
        }
        for object in &table.objects {
            let wanted = match listing.what {
                Listed::Ruleset => true,
                Listed::Objects(kind) => object.state.kind() == kind && named(&object.name),
                _ => false,
            };
            if wanted {
                blocks.push(self.object(object));
            }
        }
        for set in &table.sets {
            let wanted = match listing.what {
                Listed::Ruleset => true,
                Listed::Set => named(&set.name),
                Listed::Sets => set.data.is_none(),
                Listed::Maps => set.data.is_some(),
                _ => false,
            };
            if wanted {
                blocks.push(self.set(set));
            }
        }
        for chain in &table.chains {
            match listing.what {
                Listed::Ruleset => blocks.push(self.chain(table, chain, true)),
                Listed::Chain if named(&chain.name) => blocks.push(self.chain(table, chain, true)),
                Listed::Chains => blocks.push(self.chain(table, chain, false)),
                _ => {}
            }
        }
        if listing.name.is_some() && blocks.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "table {} {} {{{}",
            table.family,
            table.name,
            self.handle(table.handle)
        );
        out.push_str(&blocks.join("\n"));
        out.push_str("}\n");
    }

    fn handle(&self, handle: u64) -> String {
        if self.style.handles {
            format!(" # handle {handle}")
        } else {
            String::new()
        }
    }

    fn object(&self, object: &Object) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "\t{} {} {{{}",
            object.state.kind().name(),
            object.name,
            self.handle(object.handle)
        );
        if let Some(comment) = &object.comment {
            let _ = writeln!(out, "\t\tcomment \"{comment}\"");
        }
        match &object.state {
            // nft, too, lists nothing of a counter without its state.
            ObjectState::Counter(_) if self.style.stateless => {}
            ObjectState::Counter(counter) => {
                let _ = writeln!(
                    out,
                    "\t\tpackets {} bytes {}",
                    counter.packets, counter.bytes
                );
            }
            ObjectState::Quota(quota) => {
                let _ = writeln!(out, "\t\t{}", quota_text(quota, self.style.stateless));
            }
            ObjectState::Limit(limit) => {
                let _ = writeln!(out, "\t\t{}", limit_text(limit));
            }
        }
        out.push_str("\t}\n");
        out
    }

    fn set(&self, set: &Set) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "\t{} {} {{{}",
            set.word(),
            set.name,
            self.handle(set.handle)
        );
        let _ = writeln!(out, "\t\t{}", self.set_type(set));
        if set.policy_memory && !set.flags.constant {
            out.push_str("\t\tpolicy memory\n");
        }
        if let Some(size) = set.size {
            let _ = writeln!(out, "\t\tsize {size}");
        }
        let flags = set_flags(set);
        // A timeout for all says the flag by itself.
        if !flags.is_empty() && (flags != ["timeout"] || set.timeout_ms.is_none()) {
            let _ = writeln!(out, "\t\tflags {}", flags.join(","));
        }
        if !set.statements.is_empty() {
            let statements: Vec<String> = set
                .statements
                .iter()
                .map(|statement| self.writer.statement(statement, true))
                .collect();
            let _ = writeln!(out, "\t\t{}", statements.join(" "));
        }
        if set.auto_merge {
            out.push_str("\t\tauto-merge\n");
        }
        if let Some(ms) = set.timeout_ms {
            let _ = writeln!(out, "\t\ttimeout {}", write_time_ms(ms));
        }
        if let Some(ms) = set.gc_interval_ms {
            let _ = writeln!(out, "\t\tgc-interval {}", write_time_ms(ms));
        }
        if let Some(comment) = &set.comment {
            let _ = writeln!(out, "\t\tcomment \"{comment}\"");
        }
        self.elements(&mut out, set);
        out.push_str("\t}\n");
        out
    }

    fn elements(&self, out: &mut String, set: &Set) {
        if set.elements.is_empty() {
            return;
        }
        let per_line = per_line(&set.key.parts());
        let beside = key_names(set);
        out.push_str("\t\telements = { ");
        for (at, element) in sorted(&set.elements).into_iter().enumerate() {
            if at > 0 {
                out.push_str(if at % per_line == 0 {
                    ",\n\t\t\t     "
                } else {
                    ", "
                });
            }
            out.push_str(&self.writer.element(element, &beside, self.style.stateless));
        }
        out.push_str(" }\n");
    }

    fn set_type(&self, set: &Set) -> String {
        let of_exprs = matches!(set.key, SetType::Typeof(_))
            && !matches!(
                set.data,
                Some(MapData::Type(SetType::Type(_)) | MapData::Interval(SetType::Type(_)))
            );
        let mut out = if of_exprs { "typeof " } else { "type " }.to_string();
        out.push_str(&self.types(&set.key, of_exprs));
        match &set.data {
            None => {}
            Some(MapData::Verdict) => out.push_str(" : verdict"),
            Some(MapData::Object(kind)) => {
                let _ = write!(out, " : {}", kind.name());
            }
            Some(MapData::Type(types)) => {
                let _ = write!(out, " : {}", self.types(types, of_exprs));
            }
            Some(MapData::Interval(types)) => {
                let _ = write!(out, " : interval {}", self.types(types, of_exprs));
            }
        }
        out
    }

    fn types(&self, types: &SetType, of_exprs: bool) -> String {
        let parts: Vec<String> = match types {
            SetType::Typeof(parts) if of_exprs => parts
                .iter()
                .map(|(expr, _)| self.writer.expr(expr))
                .collect(),
            other => other
                .parts()
                .into_iter()
                .map(|data_type| type_name(data_type).to_string())
                .collect(),
        };
        parts.join(" . ")
    }

    /// Statements and comment.
    fn rule(&self, rule: &Rule) -> String {
        let statements = rule.statements.iter();
        let statements: Vec<String> = statements
            .map(|statement| self.writer.statement(statement, self.style.stateless))
            .collect();
        let mut out = statements.join(" ");
        if let Some(comment) = &rule.comment {
            let _ = write!(out, " comment \"{comment}\"");
        }
        out
    }

    fn chain(&self, table: &Table, chain: &Chain, rules: bool) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "\tchain {} {{{}",
            chain.name,
            self.handle(chain.handle)
        );
        if let Some(comment) = &chain.comment {
            let _ = writeln!(out, "\t\tcomment \"{comment}\"");
        }
        if let Some(base) = &chain.base {
            let devices = match base.devices.as_slice() {
                [] => String::new(),
                [one] => format!(" device \"{one}\""),
                many => {
                    let names: Vec<String> =
                        many.iter().map(|name| format!("\"{name}\"")).collect();
                    format!(" devices = {{ {} }}", names.join(", "))
                }
            };
            let _ = writeln!(
                out,
                "\t\ttype {} hook {}{devices} priority {}; policy {};",
                base.kind.name(),
                base.hook.name(),
                write_priority(base.priority, table.family, base.hook),
                match base.policy {
                    Policy::Accept => "accept",
                    Policy::Drop => "drop",
                }
            );
        }
        if rules {
            for rule in &chain.rules {
                let _ = write!(out, "\t\t{}", self.rule(rule));
                let _ = writeln!(out, "{}", self.handle(rule.handle));
            }
        }
        out.push_str("\t}\n");
        out
    }
}

/// The flags of a set, in nft's order.
pub(super) fn set_flags(set: &Set) -> Vec<&'static str> {
    [
        ("constant", set.flags.constant),
        ("dynamic", set.flags.dynamic),
        ("interval", set.flags.interval),
        ("timeout", set.flags.timeout),
    ]
    .into_iter()
    .filter(|(_, on)| *on)
    .map(|(name, _)| name)
    .collect()
}

/// Names that the fields of a `typeof` have for themselves.
pub(super) fn key_names(set: &Set) -> Vec<super::expr::Beside> {
    match &set.key {
        SetType::Type(_) => Vec::new(),
        SetType::Typeof(parts) => parts
            .iter()
            .map(|(expr, _)| super::expr::Beside::of(expr))
            .collect(),
    }
}
