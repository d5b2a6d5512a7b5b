//! libnftables' JSON, read into the same commands as the text.
//!
//! The schema is libnftables-json(5)'s. Where it is wider than the text (any name, any string)
//! it is held to what the text can say, so that everything that is loaded can be listed.
use crate::prelude::*;
mod expr;
pub mod node;
mod statement;

use crate::{
    ast::{
        Command, CommandKind, DataSpec, ElementsVerb, Expr, ExprKind, Listing, Rule, RulePlace,
        SetSpec, TypeSpec,
    },
    error::{FAULTS_MAX, Fault},
    names::{listed, object_kind},
    source::Span,
    support::Refused,
    words::{is_name, parse_time_ms},
};
use alloc::rc::Rc;
use fordway_filter::model::{
    BaseChain, Chain, ChainKind, Family, Hook, Object, ObjectKind, ObjectState, Op, Policy,
    Position, TableId,
};
use node::{Json, Node};

pub(crate) type Read<T> = Result<T, Fault>;

/// Commands of a whole text.
pub fn parse(file: u16, text: &str) -> Result<Vec<Command>, Vec<Fault>> {
    let root = node::read(file, text).map_err(|fault| vec![fault])?;
    let list = root.need("nftables").map_err(|fault| vec![fault])?;
    let Json::Array(items) = &list.value else {
        return Err(vec![Fault::wrong(
            list.span,
            "\"nftables\" is an array of commands",
        )]);
    };
    let mut commands = Vec::new();
    let mut faults = Vec::new();
    for item in items {
        if faults.len() >= FAULTS_MAX {
            break;
        }
        if let Err(fault) = command(item, &mut commands) {
            faults.push(fault);
        }
    }
    if faults.is_empty() {
        Ok(commands)
    } else {
        Err(faults)
    }
}

fn command(item: &Node, out: &mut Vec<Command>) -> Read<()> {
    let (word, inner) = item.only()?;
    let kind = match word {
        "metainfo" => {
            if inner.number_of("json_schema_version")?.unwrap_or(1) > 1 {
                return Err(Fault::wrong(
                    inner.span,
                    "the schema is of a later version than 1",
                ));
            }
            return Ok(());
        }
        "add" => return add(inner, Verb::Add, out),
        "create" => return add(inner, Verb::Create, out),
        "insert" => return add(inner, Verb::Insert, out),
        "replace" => return add(inner, Verb::Replace, out),
        "delete" => delete(inner, false)?,
        "destroy" => delete(inner, true)?,
        "flush" => flush(inner)?,
        "rename" => rename(inner)?,
        "reset" => reset(inner)?,
        "list" => list(inner)?,
        // What a listing consists of is added.
        _ => return add(item, Verb::Add, out),
    };
    out.push(Command {
        kind,
        span: item.span,
    });
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Create,
    Insert,
    Replace,
}

fn add(object: &Node, verb: Verb, out: &mut Vec<Command>) -> Read<()> {
    let (word, inner) = object.only()?;
    let exclusive = verb == Verb::Create;
    if matches!(verb, Verb::Insert | Verb::Replace) && word != "rule" {
        return Err(Fault::wrong(
            object.span,
            format!("only rules are inserted and replaced, not {word}"),
        ));
    }
    let kind = match word {
        "table" => CommandKind::Plain(Op::AddTable {
            table: TableId {
                family: family(inner)?,
                name: name_of(inner, "name")?,
            },
            dormant: inner.get("flags").is_some_and(|flags| {
                flags
                    .many()
                    .iter()
                    .any(|flag| matches!(&flag.value, Json::Text(text) if text == "dormant"))
            }),
            comment: comment(inner)?,
            exclusive,
        }),
        "chain" => CommandKind::Plain(Op::AddChain {
            table: table(inner)?,
            chain: chain(inner)?,
            exclusive,
        }),
        "rule" => rule(inner, verb)?,
        "set" | "map" => CommandKind::Set {
            table: table(inner)?,
            set: Box::new(set(inner, word == "map")?),
            exclusive,
        },
        "element" => CommandKind::Elements {
            table: table(inner)?,
            set: name_of(inner, "name")?,
            elements: expr::elements(inner.need("elem")?)?,
            verb: if exclusive {
                ElementsVerb::Create
            } else {
                ElementsVerb::Add
            },
        },
        "counter" | "quota" | "limit" => CommandKind::Plain(Op::AddObject {
            table: table(inner)?,
            object: named_object(inner, word)?,
            exclusive,
        }),
        other => return Err(unknown(other, object.span)),
    };
    out.push(Command {
        kind,
        span: object.span,
    });
    Ok(())
}

/// Objects that nft has and we have not, or that nobody has.
fn unknown(word: &str, span: Span) -> Fault {
    match word {
        "flowtable" => Fault::refused(span, Refused::Flowtable),
        "ct helper" => Fault::refused(span, Refused::CtHelper),
        "ct timeout" => Fault::refused(span, Refused::CtTimeout),
        "ct expectation" => Fault::refused(span, Refused::CtExpectation),
        "secmark" => Fault::refused(span, Refused::Secmark),
        "synproxy" => Fault::refused(span, Refused::Synproxy),
        "meter" => Fault::refused(span, Refused::Meter),
        other => Fault::wrong(span, format!("there is no command or object \"{other}\"")),
    }
}

fn family(node: &Node) -> Read<Family> {
    let of = node.need("family")?;
    let text = of.text()?;
    Family::by_name(text)
        .ok_or_else(|| Fault::wrong(of.span, format!("there is no family \"{text}\"")))
}

/// A name that the text can say, too.
fn name_of(node: &Node, property: &str) -> Read<String> {
    let of = node.need(property)?;
    let text = of.text()?;
    if !is_name(text) {
        return Err(Fault::wrong(
            of.span,
            format!(
                "\"{text}\" cannot be a name: it begins with a letter, consists of letters, digits, / _ . -, is no keyword and no longer than 255 characters"
            ),
        ));
    }
    Ok(text.to_string())
}

fn table(node: &Node) -> Read<TableId> {
    Ok(TableId {
        family: family(node)?,
        name: name_of(node, "table")?,
    })
}

/// A text that can stand between quotes.
pub(crate) fn quotable(node: &Node, bytes_max: usize) -> Read<String> {
    let text = node.text()?;
    if text.contains(['"', '\n', '\r']) || text.len() > bytes_max {
        return Err(Fault::wrong(
            node.span,
            format!(
                "a text without quotes and newlines, of at most {bytes_max} bytes, is expected"
            ),
        ));
    }
    Ok(text.to_string())
}

fn comment(node: &Node) -> Read<Option<String>> {
    node.get("comment")
        .map(|node| quotable(node, 128))
        .transpose()
}

fn chain(node: &Node) -> Read<Chain> {
    let mut chain = Chain::new(&name_of(node, "name")?, None);
    chain.comment = comment(node)?;
    let Some(kind) = node.get("type") else {
        return Ok(chain);
    };
    let kind = match kind.text()? {
        "filter" => ChainKind::Filter,
        "nat" => ChainKind::Nat,
        "route" => ChainKind::Route,
        other => {
            return Err(Fault::wrong(
                kind.span,
                format!("a chain's type is filter, nat or route, not \"{other}\""),
            ));
        }
    };
    let hook = node.need("hook")?;
    let hook = Hook::by_name(hook.text()?)
        .ok_or_else(|| Fault::wrong(hook.span, "there is no such hook"))?;
    let prio = node.need("prio")?;
    let priority = match &prio.value {
        Json::Number(number) => i32::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| Fault::wrong(prio.span, "a priority is a number of 32 bits"))?;
    let policy = match node.get("policy") {
        None => Policy::Accept,
        Some(policy) => match policy.text()? {
            "accept" => Policy::Accept,
            "drop" => Policy::Drop,
            _ => return Err(Fault::wrong(policy.span, "a policy is accept or drop")),
        },
    };
    let mut devices = Vec::new();
    for device in node.get("dev").map_or(&[][..], Node::many) {
        let name = quotable(device, 15)?;
        if name.is_empty() {
            return Err(Fault::wrong(device.span, "a device has a name"));
        }
        devices.push(name);
    }
    chain.base = Some(BaseChain {
        kind,
        hook,
        priority,
        policy,
        devices,
    });
    Ok(chain)
}

fn rule(node: &Node, verb: Verb) -> Read<CommandKind> {
    let list = node.need("expr")?;
    let Json::Array(items) = &list.value else {
        return Err(Fault::wrong(
            list.span,
            "\"expr\" is an array of statements",
        ));
    };
    if items.is_empty() {
        return Err(Fault::wrong(list.span, "a rule has at least one statement"));
    }
    let statements = items
        .iter()
        .map(statement::statement)
        .collect::<Read<Vec<_>>>()?;
    // A listing has handles too; they place a rule only behind a verb that says so.
    let handle = node.number_of("handle")?;
    let index = node
        .number_of("index")?
        .map(|index| usize::try_from(index).unwrap_or(usize::MAX));
    let place = match (verb, handle, index) {
        (Verb::Replace, Some(handle), _) => RulePlace::Instead(handle),
        (Verb::Replace, None, _) => {
            return Err(Fault::wrong(node.span, "property \"handle\" is missing"));
        }
        (Verb::Insert, Some(handle), _) => RulePlace::At(Position::BeforeHandle(handle)),
        (Verb::Insert, None, Some(index)) => RulePlace::At(Position::BeforeIndex(index)),
        (Verb::Insert, None, None) => RulePlace::At(Position::First),
        (_, _, Some(index)) => RulePlace::At(Position::AfterIndex(index)),
        _ => RulePlace::At(Position::Last),
    };
    Ok(CommandKind::Rule {
        table: table(node)?,
        chain: name_of(node, "chain")?,
        place,
        rule: Rule {
            statements,
            comment: comment(node)?,
        },
    })
}

fn set(node: &Node, is_map: bool) -> Read<SetSpec> {
    let mut spec = SetSpec {
        name: name_of(node, "name")?,
        key: Some(types(node, "type", "typeof")?),
        data: None,
        is_map,
        flags: Default::default(),
        timeout_ms: milliseconds(node, "timeout")?,
        gc_interval_ms: milliseconds(node, "gc-interval")?,
        size: node
            .number_of("size")?
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX)),
        policy_memory: node.text_of("policy")? == Some("memory"),
        auto_merge: node.flag("auto-merge")?,
        comment: comment(node)?,
        statements: Vec::new(),
        elements: None,
    };
    for flag in node.get("flags").map_or(&[][..], Node::many) {
        match flag.text()? {
            "constant" => spec.flags.constant = true,
            "interval" => spec.flags.interval = true,
            "timeout" => spec.flags.timeout = true,
            "dynamic" => spec.flags.dynamic = true,
            other => {
                return Err(Fault::wrong(
                    flag.span,
                    format!("there is no flag \"{other}\""),
                ));
            }
        }
    }
    spec.flags.dynamic |= node.flag("dynamic")?;
    if is_map {
        let map = node.need("map")?;
        spec.data = Some(match &map.value {
            Json::Text(text) if text == "verdict" => DataSpec::Verdict,
            Json::Text(text) if object_kind(text).is_some() => {
                DataSpec::Object(object_kind(text).unwrap_or(ObjectKind::Counter))
            }
            _ => DataSpec::Values(
                types(node, "map", "map_typeof")?,
                node.flag("map_interval")?,
            ),
        });
    }
    for one in node.get("stmt").map_or(&[][..], Node::many) {
        spec.statements.push(statement::statement(one)?);
    }
    if let Some(elements) = node.get("elem") {
        spec.elements = Some(expr::elements(elements)?);
    }
    Ok(spec)
}

/// A type by name, several, or the expressions that have it.
fn types(node: &Node, names: &str, exprs: &str) -> Read<TypeSpec> {
    if let Some(exprs) = node.get(exprs) {
        let parts = exprs
            .many()
            .iter()
            .map(expr::expr)
            .collect::<Read<Vec<_>>>()?;
        return Ok(TypeSpec::Typeof(parts));
    }
    let of = node.need(names)?;
    let mut out = Vec::new();
    for name in of.many() {
        for part in name.text()?.split(" . ") {
            out.push((part.to_string(), name.span));
        }
    }
    Ok(TypeSpec::Names(out))
}

/// Seconds as a number, or a time as the text has it.
pub(crate) fn milliseconds(node: &Node, name: &str) -> Read<Option<u64>> {
    let Some(time) = node.get(name) else {
        return Ok(None);
    };
    let ms = match &time.value {
        Json::Number(seconds) => u64::try_from(*seconds)
            .ok()
            .and_then(|seconds| seconds.checked_mul(1000)),
        Json::Text(text) => parse_time_ms(text),
        _ => None,
    };
    ms.map(Some)
        .ok_or_else(|| Fault::wrong(time.span, "expected a number of seconds"))
}

fn named_object(node: &Node, word: &str) -> Read<Object> {
    let state = match word {
        "counter" => ObjectState::Counter(statement::counter(node)?),
        "limit" => ObjectState::Limit(statement::limit(node)?),
        _ => ObjectState::Quota(fordway_filter::model::Quota {
            bytes: node.number_of("bytes")?.unwrap_or(0),
            used: node.number_of("used")?.unwrap_or(0),
            over: node.flag("inv")?,
        }),
    };
    Ok(Object {
        name: name_of(node, "name")?,
        handle: 0,
        comment: comment(node)?,
        state,
    })
}

fn delete(object: &Node, missing_ok: bool) -> Read<CommandKind> {
    let (word, inner) = object.only()?;
    let by_handle = inner.get("name").is_none();
    let handle = || inner.need("handle").and_then(Node::number);
    let op = match word {
        "table" if by_handle => Op::DeleteTableHandle {
            family: family(inner)?,
            handle: handle()?,
        },
        "table" => Op::DeleteTable {
            table: TableId {
                family: family(inner)?,
                name: name_of(inner, "name")?,
            },
            missing_ok,
        },
        "chain" if by_handle => Op::DeleteChainHandle {
            table: table(inner)?,
            handle: handle()?,
        },
        "chain" => Op::DeleteChain {
            table: table(inner)?,
            chain: name_of(inner, "name")?,
            missing_ok,
        },
        "rule" => Op::DeleteRule {
            table: table(inner)?,
            chain: name_of(inner, "chain")?,
            handle: handle()?,
        },
        "set" | "map" if by_handle => Op::DeleteSetHandle {
            table: table(inner)?,
            handle: handle()?,
        },
        "set" | "map" => Op::DeleteSet {
            table: table(inner)?,
            set: name_of(inner, "name")?,
            missing_ok,
        },
        "element" => {
            return Ok(CommandKind::Elements {
                table: table(inner)?,
                set: name_of(inner, "name")?,
                elements: expr::elements(inner.need("elem")?)?,
                verb: ElementsVerb::Delete,
            });
        }
        other => match object_kind(other) {
            Some(kind) if by_handle => Op::DeleteObjectHandle {
                table: table(inner)?,
                kind,
                handle: handle()?,
            },
            Some(kind) => Op::DeleteObject {
                table: table(inner)?,
                kind,
                name: name_of(inner, "name")?,
                missing_ok,
            },
            None => return Err(unknown(other, object.span)),
        },
    };
    Ok(CommandKind::Plain(op))
}

fn flush(object: &Node) -> Read<CommandKind> {
    let (word, inner) = object.only()?;
    Ok(CommandKind::Plain(match word {
        "ruleset" => Op::FlushRuleset {
            family: inner.get("family").map(|_| family(inner)).transpose()?,
        },
        "table" => Op::FlushTable {
            table: TableId {
                family: family(inner)?,
                name: name_of(inner, "name")?,
            },
        },
        "chain" => Op::FlushChain {
            table: table(inner)?,
            chain: name_of(inner, "name")?,
        },
        "set" | "map" => Op::FlushSet {
            table: table(inner)?,
            set: name_of(inner, "name")?,
        },
        other => return Err(unknown(other, object.span)),
    }))
}

fn rename(object: &Node) -> Read<CommandKind> {
    let (word, inner) = object.only()?;
    if word != "chain" {
        return Err(Fault::wrong(object.span, "only chains are renamed"));
    }
    Ok(CommandKind::Plain(Op::RenameChain {
        table: table(inner)?,
        chain: name_of(inner, "name")?,
        to: name_of(inner, "newname")?,
    }))
}

fn reset(object: &Node) -> Read<CommandKind> {
    let (word, inner) = object.only()?;
    let kind = object_kind(word.trim_end_matches('s'))
        .filter(|kind| *kind != ObjectKind::Limit)
        .ok_or_else(|| unknown(word, object.span))?;
    let has = |name: &str| inner.get(name).is_some();
    Ok(CommandKind::Plain(Op::ResetObjects {
        kind,
        family: has("family").then(|| family(inner)).transpose()?,
        table: has("table").then(|| table(inner)).transpose()?,
        name: has("name").then(|| name_of(inner, "name")).transpose()?,
    }))
}

fn list(object: &Node) -> Read<CommandKind> {
    let (word, inner) = object.only()?;
    let what = listed(word).ok_or_else(|| unknown(word, object.span))?;
    let text = |name: &str| inner.text_of(name).map(|text| text.map(str::to_string));
    let family = inner.get("family").map(|_| family(inner)).transpose()?;
    let (table, name) = if word == "table" {
        (text("name")?, None)
    } else {
        (text("table")?, text("name")?)
    };
    Ok(CommandKind::List(Listing {
        what,
        family,
        table,
        name,
    }))
}

/// A set of these elements.
pub(crate) fn set_of(elements: Vec<crate::ast::Element>, span: Span) -> Expr {
    Expr::new(ExprKind::Set(Rc::new(elements)), span)
}
