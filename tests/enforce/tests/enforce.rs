//! What the rules promise, on live connections. One test at a time: a process has one lab.

use anyhow::{Context, Result, ensure};
use fordway_lab::{PathChoice, Spawn};
use fordway_platform::fabric::port_of;
use fordway_test_enforce::{Bed, counted, db, guest, in_checkout, program, said, web};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);
/// What the talker has at least sent by its ring before it is cut.
const RING_BYTES: u64 = 20_000;
const REDIS: &str = "redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save ''";
const BAN: &str = "add element inet shop banned { 10.77.0.4 }\n";
const UNBAN: &str = "delete element inet shop banned { 10.77.0.4 }\n";

fn now_us() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64)
}

fn redis(bed: &Bed) -> Result<fordway_lab::Program> {
    let words = REDIS
        .split(' ')
        .map(|word| if word == "''" { "" } else { word });
    let server = bed.spawn(&db(), &Spawn::new(words).time_limit(LIMIT * 5))?;
    server.wait_for_port(6379)?;
    Ok(server)
}

/// The example of the README: web reaches redis over rings, guest does not, and a live
/// change cuts web's connection.
#[test]
fn redis_is_reached_by_web_only_and_a_change_cuts_it() -> Result<()> {
    let Some(bed) = Bed::start("redis")? else {
        return Ok(());
    };
    let server = redis(&bed)?;
    print!("{}", bed.load(&[&in_checkout("examples/redis.nft")])?);

    let output = bed.try_run(&guest(), "redis-cli -h db ping")?;
    let (text, errors) = (output.text(), output.errors());
    ensure!(!text.contains("PONG"), "{text}");
    ensure!(errors.contains("Connection refused"), "{text}{errors}");

    let web_ping = "redis-cli -h db -r 20 ping";
    let output = bed.try_run(&web(), web_ping)?.ok()?;
    ensure!(
        output.text().matches("PONG").count() == 20,
        "{}",
        output.text()
    );

    let mut talker = bed.spawn(&web(), &program("ask 10.77.0.3:6379", BINARY))?;
    talker.wait_for_output("up 1")?;
    // So many that what is counted below cannot be the kernel's.
    bed.lab.wait_until(LIMIT, "bytes through rings", || {
        let rows = bed.connections_of("web")?;
        Ok(rows.iter().any(|row| row.ring_bytes_tx > RING_BYTES))
    })?;
    // The rule that lets the connection's packets pass counts bytes that the kernel never sees.
    let all = counted(&bed.rules()?.text, "ct state established");
    let kernel = counted(&bed.kernel_rules()?, "ct state established");
    println!("counted in all {all} bytes, of which the kernel saw {kernel}");
    ensure!(all > kernel + RING_BYTES, "{all} {kernel}");
    let began = now_us()?;
    let ban = bed.load_text(BAN, true)?;
    talker.wait_until(LIMIT, "sees its connection cut", || {
        talker.stdout_so_far().contains("down ")
    })?;
    let text = talker.stdout_so_far();
    let [down, silent] = [2, 3].map(|place| said(&text, "down", place).context("no figure"));
    let cut_ms = down?.saturating_sub(began) / 1000;
    print!("{ban}");
    println!("from `fordway filter load` to the program's error: {cut_ms} ms");
    ensure!(ban.contains("1 are cut"), "{ban}");
    ensure!(silent? == 0, "no error, but silence");
    ensure!(
        bed.connections_of("web")?
            .iter()
            .all(|row| row.path != "fast")
    );

    let output = bed.try_run(&web(), "redis-cli -h db ping")?;
    ensure!(
        output.errors().contains("Connection refused"),
        "{}",
        output.errors()
    );
    let rules = bed.rules()?;
    ensure!(
        rules.epoch == 2 && rules.text.contains("10.77.0.4"),
        "{}",
        rules.text
    );
    ensure!(
        counted(&rules.text, "ct state established") >= all,
        "{}",
        rules.text
    );
    drop(talker.take_stdin());
    talker.finish()?.ok()?;
    server.stop()?;
    bed.finish()
}

/// A rule that needs each packet: the connection works, on the kernel path, and says why;
/// when the rule goes, it gets its rings.
#[test]
fn a_rule_that_needs_each_packet_holds_rings_back() -> Result<()> {
    let Some(bed) = Bed::start("limit")? else {
        return Ok(());
    };
    let rules = |rule: &str| {
        format!(
            "table inet t {{\n chain c {{\n type filter hook forward priority 0; policy accept;\n {rule}\n }}\n}}\n"
        )
    };
    let limit = "tcp dport 7000 limit rate over 100000/second drop";
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    bed.load_text(&rules(limit), false)?;
    let mut talker = bed.spawn(&web(), &program("talk 10.77.0.3:7000 1", BINARY))?;
    talker.wait_for_output("up 1")?;
    let reason = || -> Result<Option<String>> {
        let rows = bed.connections_of("web")?;
        Ok(rows.first().and_then(|row| row.reason.clone()))
    };
    bed.lab.wait_until(LIMIT, "the reason is known", || {
        Ok(reason()?.as_deref() == Some("filter"))
    })?;
    ensure!(
        bed.connections_of("web")?
            .iter()
            .all(|row| row.ring_bytes_tx == 0)
    );

    let freed = bed.load_text(&rules("tcp dport 7000 accept"), false)?;
    ensure!(freed.contains("1 get rings"), "{freed}");
    bed.wait_for_rings("web", 1)?;

    let moved = bed.load_text(&rules(limit), false)?;
    ensure!(
        moved.contains("1 go to the kernel path, 0 are cut"),
        "{moved}"
    );
    bed.lab.wait_until(LIMIT, "it is on the kernel path", || {
        Ok(reason()?.as_deref() == Some("filter"))
    })?;
    ensure!(
        !talker.stdout_so_far().contains("down"),
        "it was moved, not cut"
    );
    drop(talker.take_stdin());
    let output = talker.finish()?.ok()?;
    ensure!(output.text().contains("down 0 "), "{}", output.text());
    echo.stop()?;
    bed.finish()
}

/// Rules that the kernel refuses, or that are wrong, change nothing anywhere.
#[test]
fn a_refused_file_changes_nothing_anywhere() -> Result<()> {
    let Some(bed) = Bed::start("refused")? else {
        return Ok(());
    };
    bed.load(&[&in_checkout("examples/redis.nft")])?;
    let before = (bed.rules()?.text, bed.kernel_rules()?);
    // What the kernel refuses differs; the real nft says which of these it does.
    let candidates = [
        "table bridge t {\n chain c {\n type filter hook forward priority 0; meta ibrname \"x\" drop\n }\n}\n",
        "table bridge t {\n chain c {\n type filter hook prerouting priority 0; reject\n }\n}\n",
        "table netdev t {\n chain c {\n type filter hook ingress device \"nosuch0\" priority 0; policy drop;\n }\n}\n",
    ];
    for rules in candidates {
        let file = bed.write("maybe.nft", rules)?.display().to_string();
        let nft = ["--net", "nft", "-f", &file];
        let taken = Command::new("unshare").args(nft).output()?.status.success();
        let output = bed.filter(&["load", &file])?;
        println!("{}", String::from_utf8_lossy(&output.stderr).trim());
        let wanted = if taken { Some(0) } else { Some(11) };
        ensure!(output.status.code() == wanted, "{rules}: {output:?}");
        if !taken {
            ensure!(
                before == (bed.rules()?.text, bed.kernel_rules()?),
                "{rules}"
            );
        }
        bed.load(&[&in_checkout("examples/redis.nft")])?;
    }
    let epoch = bed.rules()?.epoch;
    for (what, rules) in [
        ("the broker's own table", "table bridge fordway {\n}\n"),
        (
            "nat of an end",
            "table ip t {\n chain c {\n type nat hook output priority 0;\n }\n}\n",
        ),
        (
            "a fault",
            "table ip t {\n chain c {\n type filter hook nowhere priority 0;\n }\n}\n",
        ),
    ] {
        let file = bed.write("bad.nft", rules)?;
        let output = bed.filter(&["load", &file.display().to_string()])?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{what}: {}", errors.trim());
        ensure!(output.status.code() == Some(11), "{what}: {output:?}");
        // nft shows where, in lines of its own.
        let is_nfts = errors.contains("bad.nft:3:");
        ensure!(is_nfts == (what == "a fault"), "{what}: {errors}");
        ensure!(
            is_nfts || errors.trim().lines().count() == 1,
            "{what}: {errors}"
        );
        ensure!(before == (bed.rules()?.text, bed.kernel_rules()?), "{what}");
        ensure!(bed.rules()?.epoch == epoch, "{what}");
    }
    bed.finish()
}

/// Means that a domain's root has.
#[test]
fn a_domain_does_not_get_around_the_rules() -> Result<()> {
    let Some(bed) = Bed::start("evasion")? else {
        return Ok(());
    };
    let server = redis(&bed)?;
    bed.load(&[&in_checkout("examples/redis.nft")])?;
    // Its own namespace is its own; the rules are not there.
    bed.try_run(&guest(), "nft flush ruleset")?.ok()?;
    let output = bed.try_run(&guest(), "redis-cli -h db ping")?;
    ensure!(
        output.errors().contains("Connection refused"),
        "{}",
        output.errors()
    );
    // With web's address: anti-spoofing.
    bed.try_run(&guest(), "ip addr add 10.77.0.4/32 dev eth0")?
        .ok()?;
    let spoof = program("connect 10.77.0.3:6379 10.77.0.4", BINARY);
    let output = bed.lab.run(&guest(), PathChoice::Auto, &spoof)?;
    ensure!(output.text().contains("refused"), "{}", output.text());
    let spoof = bed.lab.run(&web(), PathChoice::Auto, &spoof)?;
    ensure!(spoof.text().contains("connected"), "{}", spoof.text());
    // The rules are not for a domain to ask about or to change.
    let dir = bed.lab.runtime_dir();
    let fordway = bed.lab.fordway().display().to_string();
    let ban = bed.write("ban.nft", BAN)?.display().to_string();
    for words in [vec!["load", "--add", &ban], vec!["list"], vec!["monitor"]] {
        let mut command = vec![fordway.as_str(), "filter"];
        command.extend(&words);
        let dir = dir.display().to_string();
        command.extend(["--runtime-dir", &dir]);
        let spawn = Spawn::new(command).time_limit(LIMIT);
        let output = bed.spawn(&guest(), &spawn)?.finish()?;
        ensure!(
            output.errors().contains("belong to the broker"),
            "{words:?}: {}",
            output.errors()
        );
    }
    ensure!(bed.rules()?.epoch == 1);
    server.stop()?;
    bed.finish()
}

/// Without the broker the kernel's rules stand and nobody gets rings; a new one has the rules.
#[test]
fn without_the_broker_the_rules_stand() -> Result<()> {
    let Some(mut bed) = Bed::start("killed")? else {
        return Ok(());
    };
    let server = redis(&bed)?;
    bed.load(&[&in_checkout("examples/redis.nft")])?;
    bed.load_text(BAN, true)?;
    let before = bed.rules()?;
    bed.lab.stop_broker(true)?;
    bed.lab.start_broker()?;
    let after = bed.rules()?;
    ensure!(
        after.epoch == 2 && after.text.contains("10.77.0.4"),
        "{}",
        after.text
    );
    let lines = |text: &str| text.lines().count();
    ensure!(lines(&after.text) == lines(&before.text), "{}", after.text);
    for place in [web(), guest()] {
        let output = bed.try_run(&place, "redis-cli -h db ping")?;
        ensure!(
            output.errors().contains("Connection refused"),
            "{}",
            output.errors()
        );
    }
    bed.load_text(UNBAN, true)?;
    // While there is none, a program that is there already has the kernel's rules.
    let mut talker = bed.spawn(&web(), &program("ask 10.77.0.3:6379", BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.wait_for_rings("web", 1)?;
    bed.load_text(BAN, true)?;
    talker.wait_until(LIMIT, "sees its connection cut", || {
        talker.stdout_so_far().contains("down ")
    })?;
    bed.lab.stop_broker(true)?;
    ensure!(bed.kernel_rules()?.contains("10.77.0.4"));
    let mut stdin = talker.take_stdin().context("no stdin")?;
    writeln!(stdin)?;
    drop(stdin);
    let output = talker.finish()?;
    ensure!(
        output.errors().contains("refused"),
        "{}{}",
        output.text(),
        output.errors()
    );
    bed.lab.start_broker()?;
    server.stop()?;
    bed.finish()
}

/// What rings carried is counted on by the next broker, and a fabric that lost the rules gets them.
#[test]
fn a_new_broker_has_counts_and_rules() -> Result<()> {
    const RULE: &str = "tcp dport 7000 counter";
    let Some(mut bed) = Bed::start("again")? else {
        return Ok(());
    };
    bed.load_text(
        &format!("table inet t {{\n chain c {{\n type filter hook forward priority 0; policy accept;\n {RULE} accept\n }}\n}}\n"),
        false,
    )?;
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let mut talker = bed.spawn(&web(), &program("talk 10.77.0.3:7000 1", BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.wait_for_rings("web", 1)?;
    let by_rings = || -> Result<u64> {
        let listed = counted(&bed.rules()?.text, RULE);
        Ok(listed.saturating_sub(counted(&bed.kernel_rules()?, RULE)))
    };
    bed.lab
        .wait_until(LIMIT, "rings have carried something", || {
            Ok(by_rings()? > 10_000)
        })?;
    drop(talker.take_stdin());
    talker.finish()?.ok()?;
    bed.lab.wait_until(LIMIT, "the connection is over", || {
        Ok(bed.connections_of("web")?.is_empty())
    })?;
    let before = counted(&bed.rules()?.text, RULE);
    bed.lab.restart_broker(false)?;
    let after = counted(&bed.rules()?.text, RULE);
    // The end of the connection may have had a packet meanwhile.
    ensure!(
        (before..before + 1000).contains(&after),
        "{before}, {after}"
    );

    for kill in [false, true] {
        bed.nft_in_fabric(&["delete", "table", "inet", "t"])?;
        bed.lab.restart_broker(kill)?;
        ensure!(bed.kernel_rules()?.contains(RULE));
        let again = counted(&bed.rules()?.text, RULE);
        ensure!(again >= before, "{before}, {again}");
    }
    echo.stop()?;
    bed.finish()
}

/// How many channels a load says that it has cut.
fn cut(told: &str) -> usize {
    let before = told.split(" are cut").next().unwrap_or_default();
    let last = before.rsplit(' ').next().unwrap_or_default();
    last.parse().unwrap_or(0)
}

/// Rules of families ip6 and inet, and of the bridge by its ports, decide about a connection over IPv6 as
/// about any other: rings while they let it pass, an end when they do not, and rings again.
#[test]
fn a_connection_over_ipv6_is_cut_and_comes_again() -> Result<()> {
    let Some(bed) = Bed::start("six")? else {
        return Ok(());
    };
    let (server, client) = (bed.six(&db())?, bed.six(&web())?);
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let port = port_of(web().ip());
    let words = format!("talk [{server}]:7000 1");
    let mut talker = bed.spawn(&web(), &program(&words, BINARY))?;
    let mut stdin = talker.take_stdin().context("no stdin")?;
    let refusing = [
        ("ip6", format!("ip6 saddr {client} tcp dport 7000")),
        ("inet", "tcp dport 7000 ct state established,new".to_owned()),
        (
            "bridge",
            format!("iifname \"{port}\" ip6 daddr {server} tcp dport 7000"),
        ),
    ];
    let rounds = refusing.len();
    for (round, (family, what)) in (1..).zip(refusing) {
        let times = |word: &str| talker.stdout_so_far().matches(word).count();
        talker.wait_until(LIMIT, "has its connection", || times("up ") == round)?;
        bed.wait_for_rings("web", 1)?;
        // Both ends: the echo's is its answer's.
        bed.wait_for_rings("db", 1)?;
        let verdict = if family == "bridge" {
            "drop"
        } else {
            "reject with tcp reset"
        };
        let told = bed.load_text(
            &format!("table {family} t {{\n chain c {{\n type filter hook forward priority 0; policy accept;\n {what} counter {verdict}\n }}\n}}\n"),
            false,
        )?;
        print!("{family}: {told}");
        ensure!(cut(&told) == 1, "{family}: {told}");
        talker.wait_until(LIMIT, "is cut", || times("down ") == round)?;
        if family != "bridge" {
            // A first packet is refused as the rule says, and at once.
            let again = program(&format!("talk [{server}]:7000 1"), BINARY);
            let output = bed.spawn(&web(), &again)?.finish()?;
            let errors = output.errors();
            ensure!(errors.contains("Connection refused"), "{family}: {errors}");
        }
        bed.load_text("table ip6 t {\n}\n", false)?;
        if round < rounds {
            writeln!(stdin)?;
        }
    }
    drop(stdin);
    talker.finish()?.ok()?;
    echo.stop()?;
    bed.finish()
}

/// A ruleset that lets nothing pass but one port, written for IPv4, leaves IPv6 its neighbours: the
/// same port is reached over it.
#[test]
fn a_policy_that_drops_leaves_neighbours_to_be_found() -> Result<()> {
    let Some(bed) = Bed::start("neighbours")? else {
        return Ok(());
    };
    bed.load_text(
        "table inet t {\n chain c {\n type filter hook forward priority 0; policy drop;\n tcp dport 7000 accept\n tcp sport 7000 accept\n }\n}\n",
        false,
    )?;
    let server = bed.six(&db())?;
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let mut talker = bed.spawn(&web(), &program(&format!("talk [{server}]:7000 1"), BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.wait_for_rings("web", 1)?;
    bed.wait_for_rings("db", 1)?;
    drop(talker.take_stdin());
    talker.finish()?.ok()?;
    echo.stop()?;
    bed.finish()
}

/// Many connections while the rules flip: each flip takes all of them, and no byte is wrong.
/// FORDWAY_TEST_CONNECTIONS sets how many.
#[test]
fn many_connections_while_rules_flip() -> Result<()> {
    let Some(bed) = Bed::start("flips")? else {
        return Ok(());
    };
    let count = std::env::var("FORDWAY_TEST_CONNECTIONS").ok();
    let count: usize = count.map_or(Ok(500), |count| count.parse())?;
    let rules = "table inet shop {\n set banned {\n type ipv4_addr\n }\n chain c {\n type filter hook forward priority 0; policy accept;\n ip saddr @banned counter reject with tcp reset\n counter\n }\n}\n";
    bed.load_text(rules, false)?;
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let words = format!("talk 10.77.0.3:7000 {count}");
    let mut talker = bed.spawn(&web(), &program(&words, BINARY))?;
    let mut stdin = talker.take_stdin().context("no stdin")?;
    for flip in 1..=3 {
        let times = |word: &str| talker.stdout_so_far().matches(word).count();
        talker.wait_until(LIMIT, "has all connections", || times("up ") == flip)?;
        // On a busy machine the watchdog moves some to the kernel path. A reset ends those as
        // well, and at once.
        bed.wait_for_rings("web", count / 2)?;
        let (began_us, began) = (now_us()?, Instant::now());
        let told = bed.load_text(BAN, true)?;
        let loaded_ms = began.elapsed().as_millis();
        talker.wait_until(LIMIT, "has none", || times("down ") == flip)?;
        let down = said(&talker.stdout_so_far(), "down", 2).context("no time")?;
        print!("{told}");
        println!(
            "{count} connections: fordway filter load took {loaded_ms} ms, the last program's error came after {} ms",
            down.saturating_sub(began_us) / 1000
        );
        ensure!(cut(&told) >= count / 2, "{told}");
        ensure!(said(&talker.stdout_so_far(), "down", 1) == Some(count as u64));
        bed.load_text(UNBAN, true)?;
        if flip < 3 {
            writeln!(stdin)?;
        }
    }
    drop(stdin);
    talker.finish()?.ok()?;
    ensure!(
        bed.lab.info()?.protocol_errors == 0,
        "{}",
        bed.lab.broker_log()
    );
    echo.stop()?;
    bed.finish()
}
