//! Blocks: what stands between the braces of a table and of a chain.
//!
//! A table's block comes out as nft expands it: the table, its chains without rules, its
//! objects, its sets, and then the rules; so a rule may name what stands below it.
use super::{Parsed, Parser};
use crate::prelude::*;
use crate::{
    ast::{CommandKind, ExprKind, RulePlace},
    error::{FAULTS_MAX, Fault},
    lex::Token,
    source::Span,
    support::Refused,
    words::priority_by_name,
};
use fordway_filter::model::{
    BaseChain, Chain, ChainKind, Family, Hook, Op, Policy, Position, TableId,
};
use hashbrown::HashMap;

type Pending = Vec<(Span, CommandKind)>;

/// The parts of a table's block, in the order in which they come out.
#[derive(Default)]
struct Parts {
    chains: Pending,
    objects: Pending,
    sets: Pending,
    rules: Pending,
}

impl Parser<'_> {
    /// A table, behind its name.
    pub(super) fn table(&mut self, span: Span, table: TableId, exclusive: bool) -> Parsed<()> {
        let mut dormant = false;
        let mut comment = None;
        let mut parts = Parts::default();
        if self.eat_sign("{") {
            self.open()?;
            while !self.at_sign("}") {
                if *self.peek() == Token::End || self.faults.len() >= FAULTS_MAX {
                    return Err(self.expected("'}' at the end of the table"));
                }
                let here = self.place();
                let item = self.table_item(&table, &mut dormant, &mut comment, &mut parts);
                if let Err(fault) = item {
                    self.recover(fault, here);
                }
            }
            self.close();
        }
        self.emit(
            span,
            CommandKind::Plain(Op::AddTable {
                table,
                dormant,
                comment,
                exclusive,
            }),
        );
        self.emit_parts(parts);
        Ok(())
    }

    fn emit_parts(&mut self, parts: Parts) {
        for (span, kind) in [parts.chains, parts.objects, parts.sets, parts.rules]
            .into_iter()
            .flatten()
        {
            self.emit(span, kind);
        }
    }

    /// A block begins, and with it a scope of variables.
    fn open(&mut self) -> Parsed<()> {
        self.sink()?;
        self.scopes.push(HashMap::new());
        Ok(())
    }

    /// Eats the closing brace.
    fn close(&mut self) {
        self.next();
        self.scopes.pop();
        self.rise();
    }

    fn table_item(
        &mut self,
        table: &TableId,
        dormant: &mut bool,
        comment: &mut Option<String>,
        parts: &mut Parts,
    ) -> Parsed<()> {
        if self.separator() || self.common()? {
            return Ok(());
        }
        let span = self.span();
        if self.eat_word("flags") {
            let at = self.span();
            match self.peek() {
                Token::Word(word) if word == "dormant" => *dormant = true,
                Token::Word(word) if word == "owner" => {
                    return Err(Fault::refused(at, Refused::Owner));
                }
                _ => return Err(self.expected("'dormant'")),
            }
            self.next();
        } else if self.eat_word("comment") {
            set_once(comment, self.comment()?, "comment", span)?;
        } else if self.eat_word("chain") {
            let name = self.identifier("the name of a chain")?;
            let (chain, rules) = self.chain_block(table, name)?;
            parts.chains.push((
                span,
                CommandKind::Plain(Op::AddChain {
                    table: table.clone(),
                    chain,
                    exclusive: false,
                }),
            ));
            parts.rules.extend(rules);
        } else if self.at_any(&["set", "map"]) {
            let is_map = self.at_word("map");
            self.next();
            let name = self.identifier("the name of a set")?;
            let set = Box::new(self.set_block(name, is_map)?);
            parts.sets.push((
                span,
                CommandKind::Set {
                    table: table.clone(),
                    set,
                    exclusive: false,
                },
            ));
        } else if let Some(kind) = self.eat_object_kind() {
            let name = self.identifier("a name")?;
            if !self.at_sign("{") {
                return Err(self.expected("'{'"));
            }
            let object = self.object(kind, name)?;
            parts.objects.push((
                span,
                CommandKind::Plain(Op::AddObject {
                    table: table.clone(),
                    object,
                    exclusive: false,
                }),
            ));
        } else {
            self.refuse_objects()?;
            return Err(self.expected("a chain, set, map, counter, quota, limit, flags or comment"));
        }
        self.need_separator()
    }

    /// `add chain`, with or without a block.
    pub(super) fn top_chain(
        &mut self,
        span: Span,
        table: TableId,
        name: String,
        exclusive: bool,
    ) -> Parsed<()> {
        let (chain, rules) = if self.at_sign("{") {
            self.chain_block(&table, name)?
        } else {
            (Chain::new(&name, None), Vec::new())
        };
        self.emit(
            span,
            CommandKind::Plain(Op::AddChain {
                table,
                chain,
                exclusive,
            }),
        );
        for (span, kind) in rules {
            self.emit(span, kind);
        }
        Ok(())
    }

    fn chain_block(&mut self, table: &TableId, name: String) -> Parsed<(Chain, Pending)> {
        self.need_sign("{")?;
        self.open()?;
        let mut chain = Chain::new(&name, None);
        let mut policy = None;
        let mut rules = Vec::new();
        while !self.at_sign("}") {
            if *self.peek() == Token::End || self.faults.len() >= FAULTS_MAX {
                return Err(self.expected("'}' at the end of the chain"));
            }
            let here = self.place();
            if let Err(fault) = self.chain_item(table, &mut chain, &mut policy, &mut rules) {
                self.recover(fault, here);
            }
        }
        self.close();
        match (&mut chain.base, policy) {
            (Some(base), Some((policy, _))) => base.policy = policy,
            // The kernel takes a policy for a base chain that is there already.
            (None, Some((_, span))) => {
                return Err(Fault::refused(span, Refused::PolicyAlone));
            }
            _ => {}
        }
        Ok((chain, rules))
    }

    fn chain_item(
        &mut self,
        table: &TableId,
        chain: &mut Chain,
        policy: &mut Option<(Policy, Span)>,
        rules: &mut Pending,
    ) -> Parsed<()> {
        if self.separator() || self.common()? {
            return Ok(());
        }
        let span = self.span();
        if self.eat_word("type") {
            chain.base = Some(self.hook(table.family)?);
        } else if self.eat_word("policy") {
            let value = self.policy()?;
            set_once(policy, (value, span), "policy", span)?;
        } else if self.at_word("comment") {
            self.next();
            let text = self.comment()?;
            set_once(&mut chain.comment, text, "comment", span)?;
        } else if self.at_word("flags") {
            return Err(Fault::refused(span, Refused::Offload));
        } else {
            let rule = self.rule()?;
            rules.push((
                span,
                CommandKind::Rule {
                    table: table.clone(),
                    chain: chain.name.clone(),
                    place: RulePlace::At(Position::Last),
                    rule,
                },
            ));
        }
        self.need_separator()
    }

    fn policy(&mut self) -> Parsed<Policy> {
        let span = self.span();
        let word = self.word_or_variable("accept or drop")?;
        match word.as_str() {
            "accept" => Ok(Policy::Accept),
            "drop" => Ok(Policy::Drop),
            _ => Err(Fault::wrong(
                span,
                format!("a policy is accept or drop, not '{word}'"),
            )),
        }
    }

    /// A word, or what a variable holds in place of one.
    pub(super) fn word_or_variable(&mut self, what: &str) -> Parsed<String> {
        let span = self.span();
        if self.eat_sign("$") {
            let value = self.variable(span)?;
            return match value.resolved() {
                ExprKind::Word(text) | ExprKind::Quoted(text) => Ok(text.clone()),
                ExprKind::Number(number) => Ok(number.to_string()),
                _ => Err(Fault::wrong(span, format!("this variable is not {what}"))),
            };
        }
        match self.peek().clone() {
            Token::Word(word) | Token::Quoted(word) => {
                self.next();
                Ok(word)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// `type KIND hook HOOK [device NAME] priority NUMBER`, behind `type`.
    fn hook(&mut self, family: Family) -> Parsed<BaseChain> {
        let span = self.span();
        let kind = match self.peek() {
            Token::Word(word) => match word.as_str() {
                "filter" => ChainKind::Filter,
                "nat" => ChainKind::Nat,
                "route" => ChainKind::Route,
                _ => {
                    return Err(Fault::wrong(
                        span,
                        format!("a chain's type is filter, nat or route, not '{word}'"),
                    ));
                }
            },
            _ => return Err(self.expected("filter, nat or route")),
        };
        self.next();
        self.need_word("hook")?;
        let at = self.span();
        let hook = match self.peek() {
            Token::Word(word) => Hook::by_name(word)
                .ok_or_else(|| Fault::wrong(at, format!("there is no hook '{word}'")))?,
            _ => return Err(self.expected("the name of a hook")),
        };
        self.next();
        let devices = self.devices()?;
        self.need_word("priority")?;
        let priority = self.priority(family, hook)?;
        Ok(BaseChain {
            kind,
            hook,
            priority,
            policy: Policy::Accept,
            devices,
        })
    }

    fn devices(&mut self) -> Parsed<Vec<String>> {
        if self.eat_word("device") {
            return Ok(vec![self.device()?]);
        }
        if !self.eat_word("devices") {
            return Ok(Vec::new());
        }
        self.need_sign("=")?;
        if self.at_sign("$") {
            let span = self.span();
            self.next();
            let value = self.variable(span)?;
            return names_of(value.resolved())
                .ok_or_else(|| Fault::wrong(span, "this variable is not a list of devices"));
        }
        self.need_sign("{")?;
        let mut names = Vec::new();
        loop {
            self.eat_newline();
            names.push(self.device()?);
            self.eat_newline();
            if !self.eat_sign(",") {
                break;
            }
        }
        self.need_sign("}")?;
        Ok(names)
    }

    fn device(&mut self) -> Parsed<String> {
        let span = self.span();
        let name = self.word_or_variable("the name of a device")?;
        if name.is_empty() || name.len() > 15 {
            return Err(Fault::wrong(span, "a device's name has 1 to 15 bytes"));
        }
        Ok(name)
    }

    fn priority(&mut self, family: Family, hook: Hook) -> Parsed<i32> {
        let span = self.span();
        if self.at_sign("$") {
            self.next();
            let value = self.variable(span)?;
            return match value.resolved() {
                ExprKind::Number(number) => in_i32(*number, false, span),
                ExprKind::Word(text) | ExprKind::Quoted(text) => {
                    priority_text(text, family, hook, span)
                }
                _ => Err(Fault::wrong(span, "this variable is not a priority")),
            };
        }
        let minus = self.eat_sign("-");
        if minus || matches!(self.peek(), Token::Number(_)) {
            let number = self.number("a priority")?;
            return in_i32(number, minus, span);
        }
        let Token::Word(name) = self.peek().clone() else {
            return Err(self.expected("a priority"));
        };
        self.next();
        let base = priority_text(&name, family, hook, span)?;
        let minus = self.at_sign("-");
        if !minus && !self.at_sign("+") {
            return Ok(base);
        }
        self.next();
        let away = in_i32(self.number("a number")?, minus, span)?;
        base.checked_add(away)
            .ok_or_else(|| Fault::wrong(span, "the priority is out of range"))
    }
}

/// `filter`, `-10`, `filter - 10`, as a variable holds it.
fn priority_text(text: &str, family: Family, hook: Hook, span: Span) -> Parsed<i32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let mut parts = text.split_ascii_whitespace();
    let name = parts.next().unwrap_or("");
    let base = priority_by_name(name, family, hook).ok_or_else(|| {
        Fault::wrong(
            span,
            format!(
                "'{text}' is not a priority of hook {} in family {family}",
                hook.name()
            ),
        )
    })?;
    let away = match (parts.next(), parts.next()) {
        (None, None) => Some(0),
        (Some("+"), Some(number)) => number.parse().ok(),
        (Some("-"), Some(number)) => number.parse().ok().map(|n: i32| -n),
        _ => None,
    };
    away.and_then(|away: i32| base.checked_add(away))
        .ok_or_else(|| Fault::wrong(span, format!("'{text}' is not a priority")))
}

fn in_i32(number: u64, minus: bool, span: Span) -> Parsed<i32> {
    i32::try_from(number)
        .map(|number| if minus { -number } else { number })
        .map_err(|_| Fault::wrong(span, format!("{number} is out of range")))
}

fn names_of(kind: &ExprKind) -> Option<Vec<String>> {
    match kind {
        ExprKind::Word(name) | ExprKind::Quoted(name) => Some(vec![name.clone()]),
        ExprKind::Set(elements) => {
            let mut names = Vec::new();
            for element in elements.iter() {
                names.extend(names_of(element.key.resolved())?);
            }
            Some(names)
        }
        _ => None,
    }
}

/// Something that may be said once.
pub(super) fn set_once<T>(slot: &mut Option<T>, value: T, what: &str, span: Span) -> Parsed<()> {
    if slot.is_some() {
        return Err(Fault::wrong(span, format!("{what} is said twice")));
    }
    *slot = Some(value);
    Ok(())
}
