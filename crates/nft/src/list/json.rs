//! A ruleset as libnftables' JSON.
//!
//! The order is tables, chains, objects, sets, rules: each thing after those that it may name,
//! so that nft can load the list from top to bottom. (nft's own listing has maps before the
//! chains that they jump to.) What schema version 1 has no word for stands in properties that
//! nft does not look at: `typeof`, `map_typeof`, `map_interval`, `auto-merge`, and the comments
//! of tables and chains.
use super::{
    json_expr::{json_limit, one_or_many, seconds},
    sorted,
    text::{key_names, set_flags},
    value::Writer,
};
use crate::prelude::*;
use crate::{env::Env, symbols::type_name};
use fordway_filter::model::{
    BaseChain, Chain, MapData, Object, ObjectState, Policy, Rule, Ruleset, Set, SetType, Table,
};
use serde_json::{Map, Value as Json, json};

pub(super) fn ruleset(ruleset: &Ruleset, env: &Env) -> Json {
    let writer = Writer { env };
    let mut out = vec![json!({
        "metainfo": {
            "version": env!("CARGO_PKG_VERSION"),
            "release_name": "Fordway",
            "json_schema_version": 1
        }
    })];
    for table in &ruleset.tables {
        out.push(json_table(table));
        out.extend(table.chains.iter().map(|chain| json_chain(table, chain)));
        out.extend(
            table
                .objects
                .iter()
                .map(|object| json_object(table, object)),
        );
        out.extend(table.sets.iter().map(|set| json_set(&writer, table, set)));
        for chain in &table.chains {
            out.extend(
                chain
                    .rules
                    .iter()
                    .map(|rule| json_rule(&writer, table, chain, rule)),
            );
        }
    }
    json!({ "nftables": out })
}

/// What everything inside a table begins with.
fn in_table(table: &Table, handle: u64) -> Map<String, Json> {
    let mut out = Map::new();
    out.insert("family".into(), json!(table.family.name()));
    out.insert("table".into(), json!(table.name));
    out.insert("handle".into(), json!(handle));
    out
}

fn json_table(table: &Table) -> Json {
    let mut out = Map::new();
    out.insert("family".into(), json!(table.family.name()));
    out.insert("name".into(), json!(table.name));
    out.insert("handle".into(), json!(table.handle));
    if table.dormant {
        out.insert("flags".into(), json!(["dormant"]));
    }
    if let Some(comment) = &table.comment {
        out.insert("comment".into(), json!(comment));
    }
    json!({ "table": out })
}

fn json_chain(table: &Table, chain: &Chain) -> Json {
    let mut out = in_table(table, chain.handle);
    out.insert("name".into(), json!(chain.name));
    if let Some(comment) = &chain.comment {
        out.insert("comment".into(), json!(comment));
    }
    if let Some(base) = &chain.base {
        json_base(&mut out, base);
    }
    json!({ "chain": out })
}

fn json_base(out: &mut Map<String, Json>, base: &BaseChain) {
    out.insert("type".into(), json!(base.kind.name()));
    out.insert("hook".into(), json!(base.hook.name()));
    out.insert("prio".into(), json!(base.priority));
    let policy = match base.policy {
        Policy::Accept => "accept",
        Policy::Drop => "drop",
    };
    out.insert("policy".into(), json!(policy));
    if !base.devices.is_empty() {
        let names: Vec<&str> = base.devices.iter().map(String::as_str).collect();
        out.insert("dev".into(), one_or_many(&names));
    }
}

fn json_object(table: &Table, object: &Object) -> Json {
    let mut out = in_table(table, object.handle);
    out.insert("name".into(), json!(object.name));
    if let Some(comment) = &object.comment {
        out.insert("comment".into(), json!(comment));
    }
    match &object.state {
        ObjectState::Counter(counter) => {
            out.insert("packets".into(), json!(counter.packets));
            out.insert("bytes".into(), json!(counter.bytes));
        }
        ObjectState::Quota(quota) => {
            out.insert("bytes".into(), json!(quota.bytes));
            out.insert("used".into(), json!(quota.used));
            out.insert("inv".into(), json!(quota.over));
        }
        ObjectState::Limit(limit) => out.extend(json_limit(limit)),
    }
    json!({ object.state.kind().name(): out })
}

fn json_set(writer: &Writer, table: &Table, set: &Set) -> Json {
    let mut out = in_table(table, set.handle);
    out.insert("name".into(), json!(set.name));
    out.insert("type".into(), type_names(&set.key));
    put_typeof(&mut out, "typeof", writer, &set.key);
    match &set.data {
        None => {}
        Some(MapData::Verdict) => {
            out.insert("map".into(), json!("verdict"));
        }
        Some(MapData::Object(kind)) => {
            out.insert("map".into(), json!(kind.name()));
        }
        Some(MapData::Type(types)) => {
            out.insert("map".into(), type_names(types));
            put_typeof(&mut out, "map_typeof", writer, types);
        }
        Some(MapData::Interval(types)) => {
            out.insert("map".into(), type_names(types));
            out.insert("map_interval".into(), json!(true));
            put_typeof(&mut out, "map_typeof", writer, types);
        }
    }
    if let Some(comment) = &set.comment {
        out.insert("comment".into(), json!(comment));
    }
    if set.policy_memory {
        out.insert("policy".into(), json!("memory"));
    }
    if let Some(size) = set.size {
        out.insert("size".into(), json!(size));
    }
    // Schema version 1 has no word for dynamic, and nft refuses words that it does not know.
    let flags: Vec<&str> = set_flags(set)
        .into_iter()
        .filter(|flag| *flag != "dynamic")
        .collect();
    if !flags.is_empty() {
        out.insert("flags".into(), json!(flags));
    }
    if set.flags.dynamic {
        out.insert("dynamic".into(), json!(true));
    }
    if set.auto_merge {
        out.insert("auto-merge".into(), json!(true));
    }
    if let Some(ms) = set.timeout_ms {
        out.insert("timeout".into(), seconds(ms));
    }
    if let Some(ms) = set.gc_interval_ms {
        out.insert("gc-interval".into(), seconds(ms));
    }
    if !set.statements.is_empty() {
        let statements: Vec<Json> = set
            .statements
            .iter()
            .map(|statement| writer.json_statement(statement))
            .collect();
        out.insert("stmt".into(), json!(statements));
    }
    if !set.elements.is_empty() {
        let beside = key_names(set);
        let elements: Vec<Json> = sorted(&set.elements)
            .into_iter()
            .map(|element| writer.json_element(element, &beside))
            .collect();
        out.insert("elem".into(), json!(elements));
    }
    json!({ set.word(): out })
}

fn type_names(types: &SetType) -> Json {
    let names: Vec<&str> = types.parts().into_iter().map(type_name).collect();
    one_or_many(&names)
}

fn put_typeof(out: &mut Map<String, Json>, name: &str, writer: &Writer, types: &SetType) {
    if let SetType::Typeof(parts) = types {
        let exprs: Vec<Json> = parts.iter().map(|(expr, _)| writer.json(expr)).collect();
        out.insert(name.into(), json!(exprs));
    }
}

fn json_rule(writer: &Writer, table: &Table, chain: &Chain, rule: &Rule) -> Json {
    let mut out = in_table(table, rule.handle);
    out.insert("chain".into(), json!(chain.name));
    let statements: Vec<Json> = rule
        .statements
        .iter()
        .map(|statement| writer.json_statement(statement))
        .collect();
    out.insert("expr".into(), json!(statements));
    if let Some(comment) = &rule.comment {
        out.insert("comment".into(), json!(comment));
    }
    json!({ "rule": out })
}
