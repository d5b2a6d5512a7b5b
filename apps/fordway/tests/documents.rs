//! The documents of `--json`, as the command really prints them, beside docs/schema; and docs/json.md
//! beside both. A field that is new, gone or of another type fails here until the schemas have it.
//!
//! `FORDWAY_BLESS=1` writes the tables of docs/json.md anew.

#[path = "support/judge.rs"]
mod judge;
mod support;

use judge::{docs, faults, schema};
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::pair::Pair;
use support::place::Place;
use support::{Ran, Runtime, built_shim, is_root};

#[track_caller]
fn holds(document: &Value, name: &str) {
    let faults = faults(document, name);
    assert!(faults.is_empty(), "{faults:#?}\n{document:#}");
}

fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).expect("JSON")
}

#[test]
fn the_judge_finds_what_is_wrong() {
    let document = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let good = r#"{"schema":1,"healthy":true,"checks":[{"name":"x","state":"ok","text":"","advice":null}]}"#;
    holds(&document(good), "doctor.json");
    for (from, to, says) in [
        ("\"schema\":1", "\"schema\":2", "const"),
        ("\"healthy\":true,", "", "no \"healthy\""),
        ("true", "1", "type"),
        ("\"ok\"", "\"fine\"", "enum"),
        ("null", "7", "type"),
        ("\"name\"", "\"new\":0,\"name\"", "new is in no schema"),
    ] {
        let found = faults(&document(&good.replace(from, to)), "doctor.json");
        assert!(
            found.len() == 1 && found[0].contains(says),
            "{from}: {found:?}"
        );
    }
    let cookie = r#"{"schema":1,"domains":[{"netns_cookie":9007199254740993}]}"#;
    let found = faults(&document(cookie), "domain-list.json");
    assert!(
        found.iter().any(|line| line.contains("maximum")),
        "{found:?}"
    );
}

#[test]
fn documents_have_the_form_of_their_schemas() {
    let runtime = Runtime::up();
    holds(&runtime.json("domain list"), "domain-list.json");
    holds(&runtime.json("domain show host"), "domain.json");
    holds(&runtime.json("ss --all"), "ss.json");
    let own = format!("why {}", std::process::id());
    let why = runtime.json(&own);
    holds(&why, "why.json");
    assert_eq!(why["process"]["has_library"], false, "{why}");
    let said = runtime.say(&own).check(0).stdout;
    assert!(said.contains("start it by fordway run"), "{said}");
    runtime
        .say("why 127.0.0.1:1")
        .fails(7, "there is no connection of 127.0.0.1:1");
    runtime.say("why db").fails(2, "db has no port");
    let top = runtime.say("top --batch --json --all -n 2 --interval 0.1");
    let top = top.check(0).stdout;
    assert_eq!(top.lines().count(), 2, "{top}");
    for line in top.lines() {
        holds(&serde_json::from_str(line).expect("JSON"), "top.json");
    }
    holds(&runtime.json("env"), "env.json");
    // Healthy or not.
    holds(&parsed(&runtime.say("doctor --json")), "doctor.json");
    holds(&runtime.json("filter load /dev/null"), "filter-change.json");
    let mut program = runtime.command(["try", "--json", "--", "sh", "-c", "echo it is said"]);
    let ran = Ran::new(&mut program).check(0);
    assert!(ran.stderr.contains("it is said"), "{ran:?}");
    holds(&parsed(&ran), "try.json");
    if is_root() {
        holds(&runtime.json("domain add db --ip 10.77.0.3"), "domain.json");
        let shown = runtime.json("domain show db");
        holds(&shown, "domain.json");
        assert!(shown["dropped_frames"].is_u64());
        let container = Place::new();
        let attach = format!("domain attach x --ip 10.77.0.9 --pid {}", container.pid());
        holds(&runtime.json(&attach), "domain.json");
        drop(container);
        holds(&runtime.json("domain rm db"), "domain-rm.json");
    }
    runtime.close();
}

#[test]
fn both_ends_say_that_a_downgrade_was_asked_for() {
    let Some(shim) = built_shim().filter(|_| is_root()) else {
        return;
    };
    let runtime = Runtime::up();
    let mut pair = Pair::new(&runtime, &shim);
    // Asks until both ends are so.
    let mut until = |wanted: &dyn Fn(&Value) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            pair.ask();
            let document = runtime.json("ss");
            holds(&document, "ss.json");
            let rows = document["connections"].as_array().expect("rows").clone();
            if rows.len() == 2 && rows.iter().all(wanted) {
                return rows;
            }
            assert!(Instant::now() < deadline, "{document:#}");
        }
    };
    let moved = |row: &Value, by: &str| row[by].as_u64().is_some_and(|bytes| bytes > 0);
    let rows = until(&|row| row["path"] == "fast" && moved(row, "ring_bytes_tx"));
    assert_eq!(rows[0]["channel"], rows[1]["channel"]);
    let number = rows[0]["channel"].as_u64().expect("a number");
    let top = "top --batch --json -n 1 --interval 0.5".split(' ');
    let top = runtime.command(top).stdout(Stdio::piped()).spawn();
    let top = RefCell::new(top.expect("start"));
    until(&|_| top.borrow_mut().try_wait().expect("wait").is_some());
    let output = top.into_inner().wait_with_output().expect("output");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    holds(&document, "top.json");
    for end in document["connections"].as_array().expect("ends") {
        assert!(moved(&end["rates"]["rings"], "tx_bytes_per_s"), "{end:#}");
        assert!(end["fill_bytes"].is_u64(), "{end:#}");
    }
    assert!(moved(&document["totals"], "fast_ends"), "{document:#}");
    let run = runtime.run_dir().display().to_string();
    let complete = ["complete", "--", "--runtime-dir", &run, "downgrade", ""];
    let said = runtime.fordway(complete).check(0).stdout;
    assert!(said.contains(&format!("\n{number}\t")), "{said}");

    runtime.say(&format!("downgrade {number}")).check(0);
    let before = |row: &Value| {
        let same = rows.iter().find(|before| before["cookie"] == row["cookie"]);
        same.and_then(|before| before["kernel_bytes_rx"].as_u64())
    };
    let rows =
        until(&|row| row["path"] == "kernel" && row["kernel_bytes_rx"].as_u64() > before(row));
    for row in &rows {
        assert_eq!(row["reason"], "asked", "{rows:#?}");
        assert_eq!(row["channel"], number);
    }
    let refused = runtime.say(&format!("downgrade {number}"));
    refused.fails(7, "has left its rings");
    let why = runtime.json(&format!("why {number}"));
    holds(&why, "why.json");
    let told = why["connections"].as_array().expect("connections");
    assert_eq!(told.len(), 1, "{why:#}");
    assert_eq!(told[0]["ends"].as_array().map(Vec::len), Some(2), "{why:#}");
    let said = runtime.say("why db:6379").check(0).stdout;
    let asked = "what changes it: nothing for this connection, which fordway downgrade";
    let holder = format!("process {} (redis-server)", pair.server.id());
    assert!(said.contains(asked) && said.contains(&holder), "{said}");

    // What a client gains, as a document.
    let try_out = "try --json --domain web -- redis-benchmark -h db -n 100000 -c 2 -t get -q";
    let mut command = runtime.command(try_out.split(' '));
    let document = parsed(&Ran::new(command.env("FORDWAY_LIB", &shim)).check(0));
    holds(&document, "try.json");
    let kinds = document["connections"].as_array().expect("kinds");
    assert!(
        kinds.iter().any(|kind| kind["place"]["path"] == "fast"),
        "{document:#}"
    );
    drop(pair);
    runtime.close();
}

/// Says what stands in a schema: a table for each object.
fn described(name: &str) -> String {
    let file = schema(name);
    let title = file["title"].as_str().expect("title");
    let about = file["description"].as_str().expect("description");
    let mut text = format!("\n## `{title}`\n\n{about} Schema: [{name}](schema/{name}).\n\n");
    text += "| field | type | what |\n|---|---|---|\n";
    rows(&mut text, "", &file, &file);
    text
}

fn rows(text: &mut String, within: &str, of: &Value, file: &Value) {
    let required: Vec<&str> = of["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in of["properties"].as_object().into_iter().flatten() {
        let (field, file) = resolved(field, file);
        let mut kind = match &field["type"] {
            Value::Array(kinds) => format!("{} or null", kinds[0].as_str().expect("a type")),
            kind => kind
                .as_str()
                .map_or_else(|| field["const"].to_string(), str::to_owned),
        };
        if let Some(values) = field["enum"].as_array() {
            let values: Vec<String> = values
                .iter()
                .filter_map(Value::as_str)
                .map(|word| format!("`{word}`"))
                .collect();
            kind = values.join(", ");
        }
        if !required.contains(&name.as_str()) {
            kind += ", optional";
        }
        let what = field["description"]
            .as_str()
            .unwrap_or("")
            .replace('|', "or");
        *text += &format!("| `{within}{name}` | {kind} | {what} |\n");
        rows(text, &format!("{within}{name}."), &field, &file);
        let (items, file) = resolved(&field["items"], &file);
        rows(text, &format!("{within}{name}[]."), &items, &file);
    }
}

fn resolved(field: &Value, file: &Value) -> (Value, Value) {
    let Some(reference) = field["$ref"].as_str() else {
        return (field.clone(), file.clone());
    };
    let (name, pointer) = reference.split_once('#').expect("a reference");
    let file = if name.is_empty() {
        file.clone()
    } else {
        schema(name)
    };
    (file.pointer(pointer).expect("what is named").clone(), file)
}

#[test]
fn the_page_has_every_field() {
    let mut names: Vec<String> = fs::read_dir(docs().join("schema"))
        .expect("schemas")
        .map(|file| file.expect("file").file_name().into_string().expect("name"))
        .collect();
    names.sort();
    let tables: String = names.iter().map(|name| described(name)).collect();
    let page = docs().join("json.md");
    let text = fs::read_to_string(&page).expect("json.md");
    let (begin, end) = (
        ": begin -->\n",
        "<!-- printed from docs/schema by the command's tests: end -->",
    );
    let (head, rest) = text.split_once(begin).expect("where tables begin");
    let (_, tail) = rest.split_once(end).expect("where tables end");
    let right = format!("{head}{begin}{tables}\n{end}{tail}");
    if std::env::var_os("FORDWAY_BLESS").is_some() {
        fs::write(&page, &right).expect("write");
    }
    let text = fs::read_to_string(&page).expect("json.md");
    assert!(
        text == right,
        "docs/json.md differs from docs/schema: FORDWAY_BLESS=1 cargo test -p fordway --test documents"
    );
}
