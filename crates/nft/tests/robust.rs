//! Whatever comes in: no panic, no long time, no deep recursion.
mod common;

use common::{Mark, corpus, env};
use fordway_filter::model::Ruleset;
use fordway_nft::{Kind, NoFiles, Refused, load, load_json, load_text};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::HashSet;

fn read(text: &str) {
    let _ = load_text(&Ruleset::default(), &env(), &NoFiles, "t", text, &[]);
    let _ = load_json(&Ruleset::default(), &env(), "t", text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in ".{0,200}") {
        read(&text);
    }

    #[test]
    fn words_of_the_language_in_any_order(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "table", "ip", "inet", "t", "chain", "c", "{", "}", ";", "\n", "type", "filter",
                "hook", "input", "priority", "0", "rule", "add", "set", "map", "vmap", "tcp",
                "dport", "22", "-", "/", "8", "10.0.0.1", "::1", "@s", "$x", "define", "x", "=",
                ",", ".", ":", "(", ")", "&", "|", "elements", "flags", "interval", "accept",
                "jump", "counter", "limit", "rate", "second", "\"", "log", "prefix", "ct", "state",
                "new", "meta", "mark", "snat", "to", "*", "!", "!=", "fib", "saddr", "oif",
            ]),
            0..60,
        )
    ) {
        read(&words.join(" "));
    }

    #[test]
    fn good_rules_with_a_piece_cut_out(at in any::<prop::sample::Index>(), cut in any::<(prop::sample::Index, u8)>()) {
        let entries = corpus();
        let text = &entries[at.index(entries.len())].text;
        let from = cut.0.index(text.len().max(1));
        let to = (from + usize::from(cut.1 % 16)).min(text.len());
        if text.is_char_boundary(from) && text.is_char_boundary(to) {
            read(&format!("{}{}", &text[..from], &text[to..]));
        }
    }
}

#[test]
fn depth_is_bounded() {
    for deep in [
        "define a = ".to_string() + &"{".repeat(100_000),
        "add rule t c tcp dport ".to_string() + &"(".repeat(100_000),
        "{\"nftables\":".to_string() + &"[".repeat(100_000),
        "add rule t c meta mark ".to_string() + &"& 1 ".repeat(100_000),
        "table t { chain c { ".repeat(50_000),
    ] {
        read(&deep);
    }
    let mut chained = "define a0 = { 1 }\n".to_string();
    for i in 1..10_000 {
        chained.push_str(&format!("define a{i} = {{ $a{} }}\n", i - 1));
    }
    read(&chained);
}

#[test]
fn variables_do_not_multiply_without_bound() {
    let mut text = "define a0 = { 1, 2 }\n".to_string();
    for i in 1..30 {
        text.push_str(&format!("define a{i} = {{ $a{0}, $a{0} }}\n", i - 1));
    }
    text.push_str("table ip t { chain c { tcp dport $a29; }; }\n");
    let faults =
        load_text(&Ruleset::default(), &env(), &NoFiles, "t", &text, &[]).expect_err("too many");
    assert!(faults.to_string().contains("elements"), "{faults}");
}

#[test]
fn faults_have_their_places() {
    let text =
        "table ip t {\n\tchain c {\n\t\ttcp dport 99999\n\t\tqueue\n\t\tip saddr fd00::1\n\t}\n}\n";
    let faults =
        load_text(&Ruleset::default(), &env(), &NoFiles, "f.nft", text, &[]).expect_err("wrong");
    let places: Vec<(usize, usize)> = faults.all().iter().map(|f| (f.line, f.column)).collect();
    // What is not understood is told first, and alone: types are looked at afterwards.
    assert_eq!(places, [(4, 3)]);
    let text = text.replace("queue", "accept");
    let faults =
        load_text(&Ruleset::default(), &env(), &NoFiles, "f.nft", &text, &[]).expect_err("wrong");
    let told = faults.to_string();
    assert!(
        told.starts_with("f.nft:3:13: value 99999 exceeds"),
        "{told}"
    );
    assert!(
        told.contains("f.nft:5:12: 'fd00::1' is not an IPv4 address"),
        "{told}"
    );
    let json =
        "{\"nftables\": [\n  {\"add\": {\"table\": {\"family\": \"ip9\", \"name\": \"t\"}}}]}";
    let faults = load_json(&Ruleset::default(), &env(), "f.json", json).expect_err("wrong");
    assert_eq!(
        faults.to_string(),
        "f.json:2:32: there is no family \"ip9\""
    );
}

#[test]
fn nothing_of_a_wrong_file_is_taken_and_either_language_is_known() {
    let base = Ruleset::default();
    let good = load(&base, &env(), &NoFiles, "a", "add table ip t")
        .expect("text")
        .ruleset;
    assert_eq!(good.tables.len(), 1);
    let json = r#" {"nftables": [{"add": {"table": {"family": "ip", "name": "u"}}}]}"#;
    let both = load(&good, &env(), &NoFiles, "b", json)
        .expect("JSON")
        .ruleset;
    assert_eq!(both.tables.len(), 2);
    assert!(
        load(
            &both,
            &env(),
            &NoFiles,
            "c",
            "delete table ip t\ndelete table ip x"
        )
        .is_err()
    );
}

/// The list of what is refused is the corpus', and the documentation's.
#[test]
fn each_refused_construct_has_an_entry_and_a_row() {
    let seen: HashSet<String> = corpus()
        .into_iter()
        .filter(|entry| entry.mark == Mark::Refused)
        .map(|entry| entry.refused)
        .collect();
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/filter.md"))
            .expect("docs/filter.md");
    for refused in Refused::ALL {
        assert!(seen.contains(refused.name()), "no entry for {refused:?}");
        let row = format!("| {} | {} |", refused.construct(), refused.instead());
        assert!(docs.contains(&row), "docs/filter.md has no row\n{row}");
    }
}

/// What Debian's package brings as examples loads, or is refused with the right reason.
#[test]
fn nftables_own_examples() {
    let dir = std::path::Path::new("/usr/share/doc/nftables/examples");
    let Ok(files) = std::fs::read_dir(dir) else {
        fordway_test_skip::skipped("nftables' examples are not installed");
        return;
    };
    let mut env = env();
    for (at, name) in ["eth0", "eth1", "eth2", "eth3", "bond0", "bond1"]
        .into_iter()
        .enumerate()
    {
        env.interfaces.push((name.to_string(), 10 + at as u32));
    }
    let mut seen = 0;
    for path in files.flatten().map(|entry| entry.path()) {
        let name = path
            .file_name()
            .expect("name")
            .to_string_lossy()
            .to_string();
        if !name.ends_with(".nft") {
            continue;
        }
        let mut text = fordway_nft::read_text(&path).expect("readable");
        // Included as if from its own directory.
        text = text.replace("include \"./", &format!("include \"{}/", dir.display()));
        // The example deletes a table that it expects to be there.
        let base = if name == "sets_and_maps.nft" {
            load(
                &Ruleset::default(),
                &env,
                &NoFiles,
                "base",
                "add table filter",
            )
            .expect("base")
            .ruleset
        } else {
            Ruleset::default()
        };
        let got = load(
            &base,
            &env,
            &fordway_nft::FileSystem::default(),
            &name,
            &text,
        );
        let refused = match &got {
            Ok(_) => None,
            Err(faults) => match faults.all()[0].kind {
                Kind::Refused(what) => Some(what),
                Kind::Wrong => panic!("{faults}"),
            },
        };
        let expected = match name.as_str() {
            "ct_helpers.nft" => Some(Refused::CtHelper),
            "secmark.nft" => Some(Refused::Secmark),
            "load_balancing.nft" => Some(Refused::Fwd),
            _ => None,
        };
        assert_eq!(refused, expected, "{name}");
        seen += 1;
    }
    println!("{seen} examples");
}

/// nft lists such rules, where they came by `th` or by JSON, and takes none of them.
#[test]
fn a_listing_may_hold_what_can_never_match() {
    let text = "table ip t {\n\tchain c {\n\t\tip protocol udp icmp type echo-request counter packets 1 bytes 2\n\t\tudp dport 53 tcp option maxseg size 5 drop\n\t}\n}\n";
    let read = |listed| {
        let env = fordway_nft::Env {
            listed,
            ..fordway_nft::Env::default()
        };
        fordway_nft::load_text(&Ruleset::default(), &env, &NoFiles, "listing", text, &[])
    };
    let Err(faults) = read(false) else {
        panic!("taken")
    };
    let faults = faults.to_string();
    assert!(faults.contains("it could never match"), "{faults}");
    assert_eq!(read(true).expect("taken").ruleset.tables.len(), 1);
}

/// With the square of its length each of these would take hours.
#[test]
fn long_texts_take_no_long_time() {
    for long in [
        "1-".repeat(300_000),
        "table t { chain c { tcp dport { ".to_string() + &"1/".repeat(300_000),
    ] {
        read(&long);
    }
    let address = |i: u32| std::net::Ipv4Addr::from(0x0a00_0000 + 2 * i);
    for (flags, behind) in [
        ("", ""),
        ("flags interval;", "/32"),
        ("flags interval; auto-merge;", ""),
    ] {
        let mut text = format!("table ip t {{\n\tset s {{ type ipv4_addr; {flags} }}\n}}\n");
        for i in 0..20_000 {
            text.push_str(&format!(
                "add element ip t s {{ {}{behind} }}\n",
                address(i)
            ));
        }
        let loaded = load_text(&Ruleset::default(), &env(), &NoFiles, "t", &text, &[]);
        let ruleset = loaded.expect("rules").ruleset;
        assert_eq!(ruleset.tables[0].sets[0].elements.len(), 20_000, "{flags}");
    }
}

#[test]
fn ranges_that_come_one_by_one_are_apart() {
    let set = "table ip t {\n\tset s { type ipv4_addr; flags interval; elements = { 10.0.0.0/24, 10.0.2.0/24 } }\n}\n";
    let load = |commands: &str| {
        let text = format!("{set}{commands}");
        load_text(&Ruleset::default(), &env(), &NoFiles, "t", &text, &[])
    };
    let add = |range: &str| format!("add element ip t s {{ {range} }}\n");
    for apart in [
        "10.0.1.0/24",
        "10.0.0.0/24",
        "10.0.3.0-10.0.3.7",
        "9.255.255.255",
    ] {
        assert!(load(&add(apart)).is_ok(), "{apart}");
    }
    for over in [
        "10.0.0.7",
        "10.0.0.0/16",
        "10.0.0.0/25",
        "10.0.0.255-10.0.1.0",
        "10.0.1.9-10.0.2.0",
    ] {
        assert!(load(&add(over)).is_err(), "{over}");
    }
    let gone = "delete element ip t s { 10.0.0.0/24 }\n";
    assert!(load(&(gone.to_string() + &add("10.0.0.7"))).is_ok());
    assert!(load(&(add("10.0.1.0/24") + &add("10.0.1.128/25"))).is_err());
    assert!(load(&add("10.0.7.0/24, 10.0.7.3")).is_err());
}
