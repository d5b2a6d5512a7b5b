//! Whether a document is as its schema in docs/schema says: for the tests of whoever prints one.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub fn docs() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let docs = crates.map(|dir| dir.join("docs"));
    docs.into_iter()
        .find(|dir| dir.join("schema").is_dir())
        .expect("docs")
}

pub fn schema(name: &str) -> Value {
    let text = fs::read_to_string(docs().join("schema").join(name)).expect(name);
    serde_json::from_str(&text).expect(name)
}

/// The part of JSON Schema that our schemas use, and what is to be said of them.
struct Judge {
    /// Words that a schema may have: another one would not be checked.
    words: BTreeSet<&'static str>,
    wrong: Vec<String>,
}

impl Judge {
    fn new() -> Judge {
        let words = [
            "$schema",
            "$id",
            "$defs",
            "$ref",
            "title",
            "description",
            "type",
            "const",
            "enum",
            "required",
            "properties",
            "additionalProperties",
            "items",
            "minimum",
            "maximum",
        ];
        Judge {
            words: words.into(),
            wrong: Vec::new(),
        }
    }

    /// Judges `value`. An object has no fields but those that are named: outside of this test they
    /// would be let pass.
    fn check(&mut self, at: &str, value: &Value, of: &Value, file: &Value) {
        if let Some(reference) = of["$ref"].as_str() {
            let (name, pointer) = reference.split_once('#').expect("a reference");
            let other = if name.is_empty() {
                file.clone()
            } else {
                schema(name)
            };
            let of = other.pointer(pointer).expect("what a reference names");
            return self.check(at, value, of, &other);
        }
        for word in of.as_object().expect("a schema").keys() {
            assert!(
                self.words.contains(word.as_str()),
                "{at}: {word} is not checked"
            );
        }
        let mut is = |right: bool, what: &str| {
            if !right {
                self.wrong.push(format!("{at}: {what}: {value}"));
            }
        };
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let is_kind = |word: &Value| word == kind || (kind == "integer" && word == "number");
        match &of["type"] {
            Value::Null => {}
            Value::Array(words) => is(words.iter().any(is_kind), "type"),
            word => is(is_kind(word), "type"),
        }
        is(of["const"].is_null() || of["const"] == *value, "const");
        let values = of["enum"].as_array();
        is(values.is_none_or(|values| values.contains(value)), "enum");
        let number = value.as_f64().unwrap_or_default();
        let bound = |word: &str| of[word].as_f64();
        is(
            kind == "null" || bound("minimum").is_none_or(|least| number >= least),
            "minimum",
        );
        is(
            bound("maximum").is_none_or(|most| number <= most),
            "maximum",
        );
        for item in value.as_array().into_iter().flatten() {
            self.check(&format!("{at}[]"), item, &of["items"], file);
        }
        let Some(fields) = value.as_object() else {
            return;
        };
        for name in of["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(name.as_str().expect("a name")) {
                self.wrong.push(format!("{at}: no {name}"));
            }
        }
        for (name, field) in fields {
            let of = match (&of["properties"][name], &of["additionalProperties"]) {
                (Value::Null, Value::Null) => {
                    self.wrong.push(format!("{at}: {name} is in no schema"));
                    continue;
                }
                (Value::Null, other) => other,
                (known, _) => known,
            };
            self.check(&format!("{at}.{name}"), field, of, file);
        }
    }
}

/// What is wrong with a document.
pub fn faults(document: &Value, name: &str) -> Vec<String> {
    let mut judge = Judge::new();
    let schema = schema(name);
    judge.check(name, document, &schema, &schema);
    judge.wrong
}
