//! Domains' names as variables in rule files, with the real nft.

mod support;

use std::fs;
use support::{Runtime, is_root};

const RULES: &str = "table inet shop {
	chain forward {
		type filter hook forward priority filter;
		ip saddr $web ip daddr $db-1 drop
	}
}
";

#[test]
fn each_domains_name_is_a_variable_unless_the_file_says_otherwise() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    // Two that nft cannot have: a word of its language, and what begins with a digit.
    for domain in ["web 4", "log 5", "db-1 3", "1st 6"] {
        let (name, last) = domain.split_once(' ').expect("two words");
        let add = format!("domain add {name} --ip 10.77.0.{last}");
        runtime.say(&add).check(0);
    }
    let file = |name: &str, text: &str| {
        let file = runtime.dir.join(name);
        fs::write(&file, text).expect("write");
        file.display().to_string()
    };
    let rules = file("rules.nft", RULES);
    let expected = "ip saddr 10.77.0.4 ip daddr 10.77.0.3 drop";
    let list = |file: &str| {
        let ran = runtime.say(&format!("filter check --list {file}"));
        ran.check(0).stdout
    };
    assert!(list(&rules).contains(expected), "{}", list(&rules));

    let own = file("own.nft", &format!("define web = 10.9.9.9\n{RULES}"));
    let included = file("inc.nft", &format!("include \"{own}\"\n"));
    for file in [own, included] {
        let listed = list(&file);
        assert!(
            listed.contains("ip saddr 10.9.9.9 ip daddr 10.77.0.3"),
            "{listed}"
        );
    }

    let six = file(
        "six.nft",
        &RULES.replace("ip saddr $web ip daddr $db-1", "ip6 saddr $web_6"),
    );
    let listed = list(&six);
    assert!(
        listed.contains("ip6 saddr fdbb:bad8:6eca::a4d:4 drop"),
        "{listed}"
    );

    // Faults are named by the file's own lines.
    let wrong = file("wrong.nft", &RULES.replace("drop", "dorp"));
    let ran = runtime.say(&format!("filter check {wrong}")).check(11);
    assert!(ran.stderr.contains(&format!("{wrong}:4:")), "{ran:?}");
    let unknown = file("unknown.nft", &RULES.replace("$web", "$wep"));
    let ran = runtime.say(&format!("filter load {unknown}")).check(11);
    assert!(ran.stderr.contains("unknown.nft:4:"), "{ran:?}");
    assert!(ran.stderr.contains("now: web, log, db-1, 1st"), "{ran:?}");

    runtime.say(&format!("filter load {rules}")).check(0);
    let more = file(
        "more.nft",
        "add rule inet shop forward ip saddr $log drop\n",
    );
    runtime.say(&format!("filter load --add {more}")).check(11);
    let more = file(
        "more.nft",
        "add rule inet shop forward ip daddr $web drop\n",
    );
    runtime.say(&format!("filter load --add {more}")).check(0);
    let listed = runtime.say("filter list").check(0).stdout;
    for part in [expected, "ip daddr 10.77.0.4 drop"] {
        assert!(listed.contains(part), "{listed}");
    }
    let trace = format!("filter trace --rules {rules} --from web --to db-1:80");
    let said = runtime.say(&trace).check(0).stdout;
    assert!(
        said.contains(&format!("dropped by inet shop forward: {expected}")),
        "{said}"
    );
    let trace = format!("filter trace --rules {six} --from web --to [fdbb:bad8:6eca::a4d:3]:80");
    let said = runtime.say(&trace).check(0).stdout;
    assert!(said.contains("dropped by inet shop forward"), "{said}");
    let out = runtime.dir.join("rules.bin");
    let compile = format!("filter compile {rules} --out {}", out.display());
    runtime.say(&compile).check(0);
    assert!(out.metadata().expect("compiled").len() > 0);

    // Without a broker a file has what it defines itself.
    runtime.say("down").check(0);
    let ran = runtime.say(&format!("filter check {rules}")).check(11);
    assert!(ran.stderr.contains("rules.nft:4:"), "{ran:?}");
    assert!(ran.stderr.ends_with("now: none\n"), "{ran:?}");
    let whole = file(
        "whole.nft",
        &format!("define web = 10.9.9.9\ndefine db-1 = 10.9.9.8\n{RULES}"),
    );
    runtime.say(&format!("filter check {whole}")).check(0);
}
