//! Rules to text and JSON and back: the same rules.
mod common;

use common::{Mark, corpus, env, ours, real_nft};
use fordway_filter::model::{
    Chain, DataType, Element, Expr, FIELDS, Family, Field, MetaKey, Protocol, RelOp, Rule, Ruleset,
    SetRef, Statement, Table, Value,
};
use fordway_nft::{list, load_json};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn text_of(ruleset: &Ruleset) -> String {
    list::text(ruleset, &env(), list::Style::default())
}

#[test]
fn the_corpus_comes_back_from_its_listings() {
    let mut bad = Vec::new();
    let mut jsons = Vec::new();
    for entry in corpus() {
        if entry.mark != Mark::Taken {
            continue;
        }
        let first = ours(&entry.text).expect("taken").ruleset;
        let listing = text_of(&first);
        match ours(&listing) {
            Err(why) => bad.push(format!("{} text: {why}\n{listing}", entry.place)),
            Ok(again) => {
                if text_of(&again.ruleset) != listing {
                    bad.push(format!(
                        "{}: the text is no fixed point\n{listing}",
                        entry.place
                    ));
                }
                if again.ruleset.tables.len() != first.tables.len() {
                    bad.push(format!("{}: tables are lost", entry.place));
                }
            }
        }
        let json = list::json(&first, &env()).to_string();
        match load_json(&Ruleset::default(), &env(), "json", &json) {
            Err(why) => bad.push(format!("{} JSON: {why}\n{json}", entry.place)),
            Ok(again) => {
                if text_of(&again.ruleset) != listing {
                    bad.push(format!(
                        "{}: JSON leads to\n{}instead of\n{listing}",
                        entry.place,
                        text_of(&again.ruleset)
                    ));
                }
            }
        }
        jsons.push((entry, json));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));

    let texts: Vec<String> = jsons.iter().map(|(_, json)| json.clone()).collect();
    let Some(verdicts) = real_nft(&texts, true) else {
        return;
    };
    let loaded = verdicts.iter().filter(|real| real.loads).count();
    for ((entry, _), real) in jsons.iter().zip(&verdicts) {
        if !real.loads {
            let why = real.complaint.lines().next().unwrap_or("");
            println!("{}: {}: nft -j: {why}", entry.place, entry.rule);
        }
    }
    println!("nft takes {loaded} of {} JSON listings", texts.len());
    // Schema version 1 has no word for some of what the text can say.
    assert!(
        loaded * 100 >= texts.len() * 93,
        "{loaded} of {}",
        texts.len()
    );
}

fn number(data_type: DataType) -> impl Strategy<Value = u128> {
    let bits = u32::from(data_type.bits());
    let max = if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    };
    // A day has so many seconds, a week so many days.
    let max = match data_type {
        DataType::Hour => 86_399,
        DataType::Day => 6,
        DataType::Time => 4_000_000_000,
        _ => max,
    };
    prop_oneof![Just(0), Just(max), 0..=max]
}

fn literal(data_type: DataType, number: u128) -> Expr {
    let number = match data_type {
        DataType::Time => number * 1_000_000_000,
        DataType::IfName => {
            return Expr::Value(
                Value::text(data_type, &format!("if{}", number % 100_000)).expect("short"),
            );
        }
        _ => number,
    };
    Expr::number(data_type, number)
}

/// A value, a range, a prefix, or a set of values that do not touch.
fn right(data_type: DataType) -> impl Strategy<Value = Expr> {
    let one = number(data_type).prop_map(move |n| literal(data_type, n));
    let ranges = !data_type.is_text() && !data_type.is_bitmask() && data_type.bits() > 1;
    let pair = (number(data_type), number(data_type)).prop_map(move |(a, b)| {
        if !ranges || a == b {
            return literal(data_type, a);
        }
        Expr::Range(
            Box::new(literal(data_type, a.min(b))),
            Box::new(literal(data_type, a.max(b))),
        )
    });
    let prefix = (number(data_type), any::<u8>()).prop_map(move |(n, bits)| {
        let width = data_type.bits();
        let bits = u16::from(bits) % width;
        if !matches!(data_type, DataType::Ipv4Addr | DataType::Ipv6Addr) || bits == 0 {
            return literal(data_type, n);
        }
        let host = width - bits;
        let kept = n >> host << host;
        Expr::Prefix(
            Box::new(literal(data_type, kept)),
            u8::try_from(bits).expect("width"),
        )
    });
    let set = prop::collection::btree_set(number(data_type), 2..5).prop_map(move |numbers| {
        let mut elements: Vec<Element> = numbers
            .iter()
            .map(|n| Element::new(literal(data_type, *n)))
            .collect();
        // Texts are ordered by their letters.
        elements.sort_by_key(|element| match &element.key {
            Expr::Value(value) => value.as_number(),
            _ => 0,
        });
        elements.dedup();
        if elements.len() < 2 {
            return elements.remove(0).key;
        }
        Expr::Set(SetRef::Anonymous(elements))
    });
    prop_oneof![one, pair, prefix, set]
}

fn left() -> impl Strategy<Value = Expr> {
    let fields: Vec<Expr> = FIELDS
        .iter()
        .filter(|field| field.protocol != Protocol::Arp && !field.data_type.is_bitmask())
        .filter(|field| field.name != "cfi")
        .map(|field| Expr::Payload(Field::by_name(field.protocol, field.name).expect("named")))
        .collect();
    let metas = [
        MetaKey::Mark,
        MetaKey::Length,
        MetaKey::Protocol,
        MetaKey::L4proto,
        MetaKey::Iifname,
        MetaKey::Oifname,
        MetaKey::Skuid,
        MetaKey::Pkttype,
        MetaKey::Day,
        MetaKey::Hour,
        MetaKey::Time,
        MetaKey::Priority,
        MetaKey::Cpu,
    ];
    prop_oneof![
        3 => prop::sample::select(fields),
        1 => prop::sample::select(metas.to_vec()).prop_map(Expr::Meta),
    ]
}

fn statement() -> impl Strategy<Value = Statement> {
    left().prop_flat_map(|left| {
        let data_type = left.data_type().expect("typed");
        let op = prop::sample::select(vec![RelOp::Implicit, RelOp::Ne]);
        (op, right(data_type)).prop_map(move |(op, right)| Statement::Match {
            op,
            left: left.clone(),
            right,
        })
    })
}

fn ruleset() -> impl Strategy<Value = Ruleset> {
    prop::collection::vec((statement(), any::<bool>()), 1..6).prop_map(|statements| {
        let mut table = Table::new(Family::Inet, "t");
        let mut chain = Chain::new("c", None);
        for (statement, counted) in statements {
            let mut statements = vec![statement];
            if counted {
                statements.push(Statement::Counter(Default::default()));
            }
            chain.rules.push(Rule {
                statements,
                ..Rule::default()
            });
        }
        table.chains.push(chain);
        Ruleset {
            tables: vec![table],
            ..Ruleset::default()
        }
    })
}

fn rules(ruleset: &Ruleset) -> Vec<Vec<Statement>> {
    let chain = &ruleset.tables[0].chains[0];
    chain
        .rules
        .iter()
        .map(|rule| rule.statements.clone())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn random_rules_come_back_from_text_and_json(ruleset in ruleset()) {
        let text = text_of(&ruleset);
        let again = ours(&text).map_err(|why| TestCaseError::fail(format!("{why}\n{text}")))?;
        prop_assert_eq!(rules(&again.ruleset), rules(&ruleset), "{}", text);
        let json = list::json(&ruleset, &env()).to_string();
        let again = load_json(&Ruleset::default(), &env(), "json", &json)
            .map_err(|why| TestCaseError::fail(format!("{why}\n{json}")))?;
        prop_assert_eq!(rules(&again.ruleset), rules(&ruleset), "{}", json);
    }
}
