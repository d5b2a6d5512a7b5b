//! What the broker logs: one record for each change, with who made it; the level; the journal.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::pair::Pair;
use support::place::Place;
use support::{Ran, Runtime, built_shim, is_root};

type Fields = BTreeMap<String, String>;

/// The records of a broker's log about an event.
fn records(runtime: &Runtime, event: &str) -> Vec<Fields> {
    let log = fs::read_to_string(runtime.run_dir().join("broker.log")).expect("log");
    let begins = format!("INFO audit: event={event} ");
    let fields = |line: &str| {
        let (_, mut rest) = line.split_once("audit: ").expect("fields");
        let mut fields = Fields::new();
        while !rest.starts_with(": ") {
            let (name, value) = rest.trim_start().split_once('=').expect("a field");
            let (value, behind) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').expect("a quote"),
                None => value.split_at(value.find([' ', ':']).expect("an end")),
            };
            rest = behind;
            fields.insert(name.to_owned(), value.to_owned());
        }
        fields
    };
    let of_event = log.lines().filter(|line| line.contains(&begins));
    of_event.map(fields).collect()
}

/// The only record about an event.
#[track_caller]
fn record(runtime: &Runtime, event: &str) -> Fields {
    let mut all = records(runtime, event);
    assert_eq!(all.len(), 1, "{event}: {all:?}");
    all.remove(0)
}

#[track_caller]
fn has(record: &Fields, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        assert_eq!(
            record.get(*name).map(String::as_str),
            Some(*value),
            "{name}: {record:?}"
        );
    }
}

/// Carries a command out, and gives back its process number.
#[track_caller]
fn known(runtime: &Runtime, line: &str) -> String {
    let mut command = runtime.command(line.split(' '));
    let child = command.stdout(Stdio::null()).spawn();
    let mut child = child.expect("start");
    let pid = child.id().to_string();
    assert!(child.wait().expect("wait").success(), "{line}");
    pid
}

/// Rules of a table with one chain.
fn load(runtime: &Runtime, rules: &str) -> String {
    let file = runtime.dir.join("rules.nft");
    let text = format!(
        "table inet t {{\n chain c {{\n type filter hook forward priority 0; policy accept;\n {rules}\n }}\n}}\n"
    );
    fs::write(&file, text).expect("write");
    format!("filter load {}", file.display())
}

#[test]
fn each_change_is_one_record_with_who_made_it() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    // What is audited is logged all the same; and the stream is not the journal's.
    let mut up = runtime.command(["up", "--detach", "--log", "error"]);
    Ran::new(up.env("JOURNAL_STREAM", "0:1")).check(0);
    let place = Place::new();
    let attach = format!("domain attach box --ip 192.0.2.9 --pid {}", place.pid());
    let pid = known(&runtime, &attach);
    let who = [("user", "0"), ("pid", &pid)];
    let attached = record(&runtime, "domain-attach");
    let cookie = runtime.json("domain show box")["domain"]["netns_cookie"].to_string();
    let box_is = [("domain", "box"), ("netns", &cookie), ("result", "done")];
    has(&attached, &who);
    has(&attached, &box_is);
    // What is there already is no change.
    runtime.say(&attach).check(0);
    record(&runtime, "domain-attach");
    runtime.say("domain add db").check(0);
    runtime.inside("db", &["true"]).check(0);
    has(&record(&runtime, "domain-add"), &[("domain", "db")]);

    let pid = known(
        &runtime,
        &load(&runtime, "tcp dport 1 drop\n tcp dport 2 drop"),
    );
    let loaded = record(&runtime, "filter-load");
    has(&loaded, &[("user", "0"), ("pid", &pid), ("result", "done")]);
    has(
        &loaded,
        &[("rules_before", "0"), ("rules_after", "2"), ("cut", "0")],
    );
    assert!(records(&runtime, "cut").is_empty());
    runtime.say("downgrade --all").check(0);
    record(&runtime, "downgrade");

    // A refusal is a record, too.
    runtime.say("domain rm nobody").check(7);
    has(
        &record(&runtime, "domain-remove"),
        &[("domain", "nobody"), ("result", "not-found")],
    );
    let pid = known(&runtime, "domain rm box");
    let removed = &records(&runtime, "domain-remove")[1..];
    assert_eq!(removed.len(), 1, "{removed:?}");
    has(&removed[0], &[("user", "0"), ("pid", &pid)]);
    has(&removed[0], &box_is);
    let log = fs::read_to_string(runtime.run_dir().join("broker.log")).expect("log");
    assert!(
        log.lines().all(|line| line.contains(" INFO audit: ")),
        "{log}"
    );
    runtime.close();
}

#[test]
fn connections_that_new_rules_cut_are_one_record() {
    let Some(shim) = built_shim().filter(|_| is_root()) else {
        return;
    };
    let runtime = Runtime::up();
    let mut pair = Pair::new(&runtime, &shim);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        pair.ask();
        let ends = runtime.json("ss --path fast");
        if ends["connections"]
            .as_array()
            .is_some_and(|ends| ends.len() == 2)
        {
            break;
        }
        assert!(Instant::now() < deadline, "{ends:#}");
    }
    let pid = known(
        &runtime,
        &load(&runtime, "tcp dport 1 drop\n tcp dport 6379 drop"),
    );
    let cut = record(&runtime, "cut");
    has(
        &cut,
        &[("user", "0"), ("pid", &pid), ("cut", "1"), ("ruleset", "1")],
    );
    let mut domains: Vec<&str> = cut["domain"].split(',').collect();
    domains.sort_unstable();
    assert_eq!(domains, ["db", "web"]);
    assert_eq!(cut["rule"], "rule 2 of chain inet t c");
    has(
        &record(&runtime, "filter-load"),
        &[("cut", "1"), ("ruleset", "1")],
    );
    drop(pair);
    runtime.close();
}

#[test]
fn the_journal_has_fields_and_the_level_changes_at_run_time() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    let dir = runtime.dir.join("journal");
    fs::create_dir(&dir).expect("directory");
    let journal = UnixDatagram::bind(dir.join("socket")).expect("bind");
    let limit = Some(Duration::from_secs(30));
    journal.set_read_timeout(limit).expect("a limit");
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind {} /run/systemd/journal &&
         export JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) && exec \"$@\"",
        dir.display()
    );
    let stderr = runtime.dir.join("stderr");
    let up = runtime.command(["up"]);
    let mut broker = Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(up.get_program())
        .args(up.get_args())
        .stderr(fs::File::create(&stderr).expect("file"))
        .spawn()
        .expect("start");
    let said = |pattern: &str| loop {
        let mut bytes = [0; 8192];
        let length = journal.recv(&mut bytes).expect("a datagram");
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if text.contains(pattern) {
            return text;
        }
    };
    assert!(said(" serves ").contains("\nPRIORITY=6\nSYSLOG_IDENTIFIER=fordway\n"));
    assert_eq!(runtime.say("log").check(0).stdout, "info\n");
    let pid = known(&runtime, "log debug");
    let record = said("FORDWAY_EVENT=log\n");
    for field in [
        "PRIORITY=5",
        "FORDWAY_USER=0",
        &format!("FORDWAY_PID={pid}"),
        "FORDWAY_LEVEL=debug",
    ] {
        assert!(
            record.lines().any(|line| line == field),
            "{field}: {record}"
        );
    }
    assert_eq!(runtime.say("log").check(0).stdout, "debug\n");
    runtime.say("log wran").fails(2, "wran");
    assert_eq!(runtime.say("log").check(0).stdout, "debug\n");
    assert_eq!(fs::read_to_string(&stderr).expect("stderr"), "");
    // Without the journal, stderr has it.
    fs::remove_file(dir.join("socket")).expect("remove");
    runtime.say("log warn").check(0);
    let text = fs::read_to_string(&stderr).expect("stderr");
    assert_eq!(text.matches("level=warn").count(), 1, "{text}");
    runtime.say("down").check(0);
    broker.wait().expect("wait");
}

#[test]
fn who_is_in_a_domain_does_not_change_the_level() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db").check(0);
    let run = runtime.run_dir().display().to_string();
    let fordway = env!("CARGO_BIN_EXE_fordway");
    let refused = runtime.inside("db", &[fordway, "--runtime-dir", &run, "log", "error"]);
    assert!(
        refused.stderr.contains("the log belongs to the broker"),
        "{refused:?}"
    );
    assert_eq!(runtime.say("log").check(0).stdout, "info\n");
    runtime.close();
}
