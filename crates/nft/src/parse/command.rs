//! Commands: `add`, `create`, `insert`, `delete`, `destroy`, `replace`, `flush`, `list`,
//! `reset`, `rename`, and what each of them may be followed by.
use super::{Parsed, Parser};
use crate::prelude::*;
use crate::{
    ast::{Command, CommandKind, ElementsVerb, Listing, RulePlace},
    error::Fault,
    lex::Token,
    names::{listed, object_kind},
    source::Span,
    support::Refused,
};
use fordway_filter::model::{Family, ObjectKind, Op, Position, TableId};

/// The words that a command begins with, if it does not begin with what is added.
const VERBS: &[&str] = &[
    "add", "create", "insert", "delete", "destroy", "replace", "flush", "list", "reset", "rename",
    "get", "describe", "monitor", "import", "export",
];

impl Parser<'_> {
    /// One command.
    pub(super) fn command(&mut self) -> Parsed<()> {
        let span = self.span();
        let verb = match self.peek() {
            Token::Word(word) => VERBS.iter().find(|verb| *verb == word).copied(),
            _ => return Err(self.expected("a command")),
        };
        if verb.is_some() {
            self.next();
        }
        match verb.unwrap_or("add") {
            "add" => self.add(span, false),
            "create" => self.add(span, true),
            "insert" => {
                self.need_word("rule")?;
                self.add_rule(span, true)
            }
            "replace" => self.replace(span),
            "delete" => self.delete(span, false),
            "destroy" => self.delete(span, true),
            "flush" => self.flush(span),
            "list" => self.list(span),
            "reset" => self.reset(span),
            "rename" => self.rename(span),
            "get" => Err(Fault::refused(span, Refused::GetElement)),
            "describe" => Err(Fault::refused(span, Refused::Describe)),
            "monitor" => Err(Fault::refused(span, Refused::Monitor)),
            _ => Err(Fault::refused(span, Refused::Import)),
        }
    }

    pub(super) fn emit(&mut self, span: Span, kind: CommandKind) {
        self.commands.push(Command { kind, span });
    }

    fn plain(&mut self, span: Span, op: Op) {
        self.emit(span, CommandKind::Plain(op));
    }

    /// `add` and `create`, and what stands without a verb.
    fn add(&mut self, span: Span, exclusive: bool) -> Parsed<()> {
        if self.eat_word("table") {
            let table = self.table_id()?;
            return self.table(span, table, exclusive);
        }
        if self.eat_word("chain") {
            let (table, name) = self.in_table("the name of a chain")?;
            return self.top_chain(span, table, name, exclusive);
        }
        if self.eat_word("rule") {
            return if exclusive {
                Err(Fault::wrong(span, "a rule is added, not created"))
            } else {
                self.add_rule(span, false)
            };
        }
        if self.at_any(&["set", "map"]) {
            let is_map = self.at_word("map");
            self.next();
            let (table, name) = self.in_table("the name of a set")?;
            let set = Box::new(self.set_block(name, is_map)?);
            self.emit(
                span,
                CommandKind::Set {
                    table,
                    set,
                    exclusive,
                },
            );
            return Ok(());
        }
        if self.eat_word("element") {
            let verb = if exclusive {
                ElementsVerb::Create
            } else {
                ElementsVerb::Add
            };
            return self.elements(span, verb);
        }
        if let Some(kind) = self.eat_object_kind() {
            let (table, name) = self.in_table("a name")?;
            let object = self.object(kind, name)?;
            self.plain(
                span,
                Op::AddObject {
                    table,
                    object,
                    exclusive,
                },
            );
            return Ok(());
        }
        self.refuse_objects()?;
        if exclusive {
            return Err(self.expected("table, chain, set, map, element, counter, quota or limit"));
        }
        self.add_rule(span, false)
    }

    /// Things with a name that nft has and Fordway has not.
    pub(super) fn refuse_objects(&self) -> Parsed<()> {
        let what = match self.peek() {
            Token::Word(word) => match word.as_str() {
                "flowtable" => Refused::Flowtable,
                "secmark" => Refused::Secmark,
                "synproxy" => Refused::Synproxy,
                "ct" if self.word_at(1, "helper") => Refused::CtHelper,
                "ct" if self.word_at(1, "timeout") => Refused::CtTimeout,
                "ct" if self.word_at(1, "expectation") => Refused::CtExpectation,
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        Err(Fault::refused(self.span(), what))
    }

    pub(super) fn eat_object_kind(&mut self) -> Option<ObjectKind> {
        let kind = match self.peek() {
            Token::Word(word) => object_kind(word)?,
            _ => return None,
        };
        self.next();
        Some(kind)
    }

    /// `add rule` and `insert rule`, behind `rule`.
    fn add_rule(&mut self, span: Span, insert: bool) -> Parsed<()> {
        let (table, chain) = self.in_table("the name of a chain")?;
        let position = if self.at_any(&["handle", "position"]) {
            self.next();
            let handle = self.number("a handle")?;
            if insert {
                Position::BeforeHandle(handle)
            } else {
                Position::AfterHandle(handle)
            }
        } else if self.eat_word("index") {
            let at = self.span();
            let index = usize::try_from(self.number("an index")?)
                .map_err(|_| Fault::wrong(at, "the index is too large"))?;
            if insert {
                Position::BeforeIndex(index)
            } else {
                Position::AfterIndex(index)
            }
        } else if insert {
            Position::First
        } else {
            Position::Last
        };
        self.rule_command(span, table, chain, RulePlace::At(position))
    }

    fn replace(&mut self, span: Span) -> Parsed<()> {
        self.need_word("rule")?;
        let (table, chain) = self.in_table("the name of a chain")?;
        self.need_word("handle")?;
        let handle = self.number("a handle")?;
        self.rule_command(span, table, chain, RulePlace::Instead(handle))
    }

    fn rule_command(
        &mut self,
        span: Span,
        table: TableId,
        chain: String,
        place: RulePlace,
    ) -> Parsed<()> {
        let rule = self.rule()?;
        self.emit(
            span,
            CommandKind::Rule {
                table,
                chain,
                place,
                rule,
            },
        );
        Ok(())
    }

    fn elements(&mut self, span: Span, verb: ElementsVerb) -> Parsed<()> {
        let (table, set) = self.in_table("the name of a set")?;
        let elements = self.element_block()?;
        self.emit(
            span,
            CommandKind::Elements {
                table,
                set,
                elements,
                verb,
            },
        );
        Ok(())
    }

    fn delete(&mut self, span: Span, missing_ok: bool) -> Parsed<()> {
        if self.eat_word("table") {
            let family = self.family_or_ip();
            let op = if self.eat_word("handle") {
                let handle = self.number("a handle")?;
                Op::DeleteTableHandle { family, handle }
            } else {
                let name = self.identifier("the name of a table")?;
                Op::DeleteTable {
                    table: TableId { family, name },
                    missing_ok,
                }
            };
            self.plain(span, op);
        } else if self.eat_word("chain") {
            let table = self.table_id()?;
            let op = if self.eat_word("handle") {
                let handle = self.number("a handle")?;
                Op::DeleteChainHandle { table, handle }
            } else {
                let chain = self.identifier("the name of a chain")?;
                Op::DeleteChain {
                    table,
                    chain,
                    missing_ok,
                }
            };
            self.plain(span, op);
        } else if self.eat_word("rule") {
            let (table, chain) = self.in_table("the name of a chain")?;
            self.need_word("handle")?;
            let handle = self.number("a handle")?;
            self.plain(
                span,
                Op::DeleteRule {
                    table,
                    chain,
                    handle,
                },
            );
        } else if self.at_any(&["set", "map"]) {
            let is_set = self.at_word("set");
            self.next();
            let table = self.table_id()?;
            let op = if is_set && self.eat_word("handle") {
                let handle = self.number("a handle")?;
                Op::DeleteSetHandle { table, handle }
            } else {
                let set = self.identifier("the name of a set")?;
                Op::DeleteSet {
                    table,
                    set,
                    missing_ok,
                }
            };
            self.plain(span, op);
        } else if self.eat_word("element") {
            self.elements(span, ElementsVerb::Delete)?;
        } else if let Some(kind) = self.eat_object_kind() {
            let table = self.table_id()?;
            let op = if self.eat_word("handle") {
                let handle = self.number("a handle")?;
                Op::DeleteObjectHandle {
                    table,
                    kind,
                    handle,
                }
            } else {
                let name = self.identifier("a name")?;
                Op::DeleteObject {
                    table,
                    kind,
                    name,
                    missing_ok,
                }
            };
            self.plain(span, op);
        } else {
            self.refuse_objects()?;
            return Err(self.expected("what to delete"));
        }
        Ok(())
    }

    fn flush(&mut self, span: Span) -> Parsed<()> {
        let op = if self.eat_word("ruleset") {
            Op::FlushRuleset {
                family: self.family(),
            }
        } else if self.eat_word("table") {
            Op::FlushTable {
                table: self.table_id()?,
            }
        } else if self.eat_word("chain") {
            let (table, chain) = self.in_table("the name of a chain")?;
            Op::FlushChain { table, chain }
        } else if self.at_any(&["set", "map"]) {
            self.next();
            let (table, set) = self.in_table("the name of a set")?;
            Op::FlushSet { table, set }
        } else if self.at_any(&["flow", "meter"]) {
            return Err(Fault::refused(self.span(), Refused::Meter));
        } else {
            return Err(self.expected("ruleset, table, chain, set or map"));
        };
        self.plain(span, op);
        Ok(())
    }

    fn rename(&mut self, span: Span) -> Parsed<()> {
        self.need_word("chain")?;
        let (table, chain) = self.in_table("the name of a chain")?;
        let to = self.identifier("the new name")?;
        self.plain(span, Op::RenameChain { table, chain, to });
        Ok(())
    }

    fn reset(&mut self, span: Span) -> Parsed<()> {
        let kind = match self.peek() {
            Token::Word(word) => match word.as_str() {
                "counters" | "counter" => ObjectKind::Counter,
                "quotas" | "quota" => ObjectKind::Quota,
                _ => return Err(self.expected("counter, counters, quota or quotas")),
            },
            _ => return Err(self.expected("counter, counters, quota or quotas")),
        };
        let one = self.at_any(&["counter", "quota"]);
        self.next();
        let (family, table, name) = if one {
            let (table, name) = self.in_table("a name")?;
            (Some(table.family), Some(table), Some(name))
        } else if self.eat_word("table") {
            let table = self.table_id()?;
            (Some(table.family), Some(table), None)
        } else {
            (self.family(), None, None)
        };
        self.plain(
            span,
            Op::ResetObjects {
                kind,
                family,
                table,
                name,
            },
        );
        Ok(())
    }

    fn list(&mut self, span: Span) -> Parsed<()> {
        let word = match self.peek() {
            Token::Word(word) => word.clone(),
            _ => return Err(self.expected("what to list")),
        };
        let what = match (listed(&word), word.as_str()) {
            (Some(what), _) => what,
            (None, "flowtables") => return Err(Fault::refused(span, Refused::Flowtable)),
            (None, "meters" | "meter" | "flow") => {
                return Err(Fault::refused(span, Refused::Meter));
            }
            (None, "secmarks") => return Err(Fault::refused(span, Refused::Secmark)),
            (None, "synproxys") => return Err(Fault::refused(span, Refused::Synproxy)),
            _ => {
                self.refuse_objects()?;
                return Err(self.expected("what to list"));
            }
        };
        self.next();
        let mut listing = Listing {
            what,
            family: None,
            table: None,
            name: None,
        };
        match word.as_str() {
            "table" => {
                let table = self.table_id()?;
                listing.family = Some(table.family);
                listing.table = Some(table.name);
            }
            "chain" | "set" | "map" | "counter" | "quota" | "limit" => {
                let (table, name) = self.in_table("a name")?;
                listing.family = Some(table.family);
                listing.table = Some(table.name);
                listing.name = Some(name);
            }
            _ if self.eat_word("table") => {
                let table = self.table_id()?;
                listing.family = Some(table.family);
                listing.table = Some(table.name);
            }
            _ => listing.family = self.family(),
        }
        self.emit(span, CommandKind::List(listing));
        Ok(())
    }

    /// A family's keyword, if one is there.
    pub(super) fn family(&mut self) -> Option<Family> {
        let family = match self.peek() {
            Token::Word(word) => Family::by_name(word)?,
            _ => return None,
        };
        self.next();
        Some(family)
    }

    fn family_or_ip(&mut self) -> Family {
        self.family().unwrap_or(Family::Ip)
    }

    pub(super) fn table_id(&mut self) -> Parsed<TableId> {
        let family = self.family_or_ip();
        let name = self.identifier("the name of a table")?;
        Ok(TableId { family, name })
    }

    /// A table and the name of something in it.
    fn in_table(&mut self, what: &str) -> Parsed<(TableId, String)> {
        Ok((self.table_id()?, self.identifier(what)?))
    }
}
