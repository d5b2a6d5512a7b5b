//! Rules under a running exchange of datagrams: what programs see is what they see with the kernel's UDP alone, and with
//! rings nothing passes behind a load that the rules refuse.

use anyhow::{Context, Result, ensure};
use fordway_lab::{PathChoice, Program, Spawn};
use fordway_test_enforce::{Bed, counted, db, program, said, web};
use fordwayd::admin::Connection;
use std::io::Write;
use std::process::ChildStdin;
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);
const SERVER: &str = "10.77.0.3:7000";
/// Questions until a pair is back on its rings: a pair that has left them offers itself behind 64 datagrams.
const WARM: u64 = 300;

/// A chain at hook forward.
fn chain(policy: &str, rules: &str) -> String {
    let rules = rules.replace("; ", "\n ");
    format!(
        "table inet t {{\n chain c {{\n type filter hook forward priority 0; policy {policy};\n {rules}\n }}\n}}\n"
    )
}

fn datagrams(words: &str, by_rings: bool) -> Spawn {
    let spawn = program(words, BINARY);
    match by_rings {
        true => spawn,
        false => spawn.env("FORDWAY_DATAGRAMS", "0"),
    }
}

/// What a number of questions came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Answered,
    Lost,
    Refused,
}

/// Two domains with an exchange.
struct Exchange<'b> {
    bed: &'b Bed,
    by_rings: bool,
    echo: Program,
    asker: Program,
    stdin: ChildStdin,
    lines: usize,
}

impl Exchange<'_> {
    fn start(bed: &Bed, by_rings: bool) -> Result<Exchange<'_>> {
        let echo = bed.spawn(&db(), &datagrams("datagram-echo 7000", by_rings))?;
        echo.wait_for_datagram_port(7000)?;
        let words = format!("datagram-ask {SERVER}");
        let asker = bed.spawn(&web(), &datagrams(&words, by_rings))?;
        Ok(Exchange {
            by_rings,
            ..Exchange::of(bed, echo, asker)?
        })
    }

    fn of(bed: &Bed, echo: Program, mut asker: Program) -> Result<Exchange<'_>> {
        let stdin = asker.take_stdin().context("no stdin")?;
        Ok(Exchange {
            bed,
            by_rings: true,
            echo,
            asker,
            stdin,
            lines: 0,
        })
    }

    /// Has it ask; all questions fare alike.
    fn ask(&mut self, count: u64) -> Result<Seen> {
        writeln!(self.stdin, "{count}")?;
        self.lines += 1;
        let lines = self.lines;
        let said_so = || self.asker.stdout_so_far().matches("asked ").count() == lines;
        self.asker.wait_until(LIMIT, "has asked", said_so)?;
        let text = self.asker.stdout_so_far();
        let figure = |place| said(&text, "asked", place).context("no figure");
        match [figure(1)?, figure(2)?, figure(3)?] {
            [answered, 0, 0] if answered == count => Ok(Seen::Answered),
            [0, _, 0] => Ok(Seen::Lost),
            [0, _, _] => Ok(Seen::Refused),
            other => anyhow::bail!("{other:?} of {count}"),
        }
    }

    fn ends(&self) -> Result<Vec<Connection>> {
        let mut rows = self.bed.lab.connections()?;
        rows.retain(|row| row.protocol == "udp");
        Ok(rows)
    }

    /// Asks until both ends are on rings, if they are to be.
    fn warm(&mut self) -> Result<()> {
        for _ in 0..20 {
            ensure!(self.ask(WARM)? == Seen::Answered);
            let rows = self.ends()?;
            let is_fast = |row: &&Connection| row.path == "fast" && row.ring_bytes_tx > 0;
            let fast = rows.iter().filter(is_fast).count();
            ensure!(self.by_rings || fast == 0);
            if fast == 2 || !self.by_rings {
                return Ok(());
            }
        }
        anyhow::bail!("no rings: {:?}", self.ends()?)
    }

    /// Why its ends are on the kernel path, those of which that is known.
    fn reasons(&self) -> Result<Vec<String>> {
        let rows = self.ends()?;
        let reasons = rows.into_iter().filter(|row| row.path == "kernel");
        Ok(reasons.filter_map(|row| row.reason).collect())
    }

    fn finish(self) -> Result<()> {
        drop(self.stdin);
        self.asker.finish()?.ok()?;
        self.echo.stop()?;
        Ok(())
    }
}

/// Rules that are in force when the exchange begins, those that come then, and what programs see.
const CHANGES: [(&str, &str, Seen); 11] = [
    ("", "accept udp dport 7000 counter drop", Seen::Lost),
    ("", "accept udp sport 7000 drop", Seen::Lost),
    (
        "",
        "accept ip saddr 10.77.0.4 udp dport 7000 drop",
        Seen::Lost,
    ),
    ("", "accept udp dport 7000 reject", Seen::Refused),
    ("", "accept udp dport 7000 counter accept", Seen::Answered),
    (
        "",
        "accept udp dport 53 drop; tcp dport 7000 drop",
        Seen::Answered,
    ),
    // Who asks first is a first packet's for a kernel that has tracked nothing.
    ("", "drop ct state established accept", Seen::Lost),
    (
        "",
        "drop ct state established accept; ip saddr 10.77.0.4 udp dport 7000 accept",
        Seen::Answered,
    ),
    // What it has tracked goes on, also where nobody may begin any more.
    (
        "drop ct state established accept; ip saddr 10.77.0.4 udp dport 7000 accept",
        "drop ct state established accept",
        Seen::Answered,
    ),
    (
        "accept ct state established accept",
        "accept ct state established udp dport 7000 drop",
        Seen::Lost,
    ),
    (
        "accept ct state established accept",
        "accept ct state new drop",
        Seen::Answered,
    ),
];

fn rules(words: &str) -> String {
    match words.split_once(' ') {
        Some((policy, rules)) => chain(policy, rules),
        None => String::new(),
    }
}

/// Plays the changes; what was seen of each, behind it and when the rules are gone.
fn play(bed: &Bed, by_rings: bool) -> Result<Vec<[Seen; 2]>> {
    let mut seen = Vec::new();
    for (before, after, _) in CHANGES {
        bed.load_text(&rules(before), false)?;
        let mut exchange = Exchange::start(bed, by_rings)?;
        exchange.warm().with_context(|| after)?;
        let told = bed.load_text(&rules(after), false)?;
        let first = exchange.ask(10).with_context(|| after)?;
        let rows = exchange.ends()?;
        let fast = rows.iter().filter(|row| row.path == "fast").count();
        println!("{after}: {first:?}, {fast} ends on rings. {}", told.trim());
        if by_rings && first != Seen::Answered {
            ensure!(fast == 0, "{after}: {rows:?}");
            let reasons = exchange.reasons()?;
            ensure!(
                reasons.iter().all(|reason| reason == "filter"),
                "{after}: {reasons:?}"
            );
            ensure!(told.contains("1 go to the kernel path"), "{after}: {told}");
        }
        bed.load_text("", false)?;
        // An error that waits is told once.
        if first == Seen::Refused {
            let _ = exchange.ask(1);
        }
        let second = exchange.ask(10).with_context(|| after)?;
        exchange.warm().with_context(|| format!("behind {after}"))?;
        exchange.finish()?;
        seen.push([first, second]);
    }
    Ok(seen)
}

#[test]
fn rules_are_seen_as_with_the_kernels_datagrams() -> Result<()> {
    let Some(bed) = Bed::start("datagrams")? else {
        return Ok(());
    };
    let wanted: Vec<_> = CHANGES.map(|(_, _, seen)| [seen, Seen::Answered]).to_vec();
    let by_kernel = play(&bed, false)?;
    ensure!(by_kernel == wanted, "by the kernel {by_kernel:?}");
    let by_rings = play(&bed, true)?;
    ensure!(by_rings == wanted, "by rings {by_rings:?}");
    bed.finish()
}

/// What `filter trace --udp` says is what the kernel does, and what becomes of a pair.
#[test]
fn a_trace_of_datagrams_says_what_becomes_of_them() -> Result<()> {
    let Some(bed) = Bed::start("trace")? else {
        return Ok(());
    };
    let limit = "accept udp dport 7000 limit rate over 100000/second drop";
    let rules_of_all = CHANGES
        .map(|(_, after, _)| after)
        .into_iter()
        .chain([limit]);
    for words in rules_of_all {
        bed.load_text(&rules(words), false)?;
        let trace = ["trace", "--udp", "--from", "web", "--to", "db:7000"];
        let output = bed.filter(&trace)?;
        let told = String::from_utf8(output.stdout)?;
        let verdict = told.split("=> ").nth(1).context("no verdict")?.trim();
        let mut by_kernel = Exchange::start(&bed, false)?;
        // Where only what is established may not pass, the first one does.
        by_kernel.ask(1)?;
        let seen = by_kernel.ask(10)?;
        by_kernel.finish()?;
        println!("{words}: {verdict}; the kernel: {seen:?}");
        let wanted = match seen {
            Seen::Answered if words == limit => "kernel path, reason filter",
            Seen::Answered => "allowed, over rings",
            Seen::Lost => "dropped by inet t c",
            Seen::Refused => "rejected by inet t c",
        };
        ensure!(verdict.starts_with(wanted), "{words}: {told}, {seen:?}");
        if wanted == "allowed, over rings" {
            let mut by_rings = Exchange::start(&bed, true)?;
            by_rings.warm()?;
            by_rings.finish()?;
        }
    }
    bed.finish()
}

/// No datagram that was sent behind a load comes, however many are sent without a pause; and a load that takes
/// the rule away lets them come by rings again.
#[test]
fn a_stream_of_datagrams_stops_with_the_load() -> Result<()> {
    let Some(bed) = Bed::start("stream")? else {
        return Ok(());
    };
    let mut taker = bed.spawn(&db(), &datagrams("datagram-take 7000", true))?;
    taker.wait_for_datagram_port(7000)?;
    let words = format!("datagram-stream {SERVER}");
    let mut streamer = bed.spawn(&web(), &datagrams(&words, true))?;
    let mut pipes =
        [taker.take_stdin(), streamer.take_stdin()].map(|pipe| pipe.context("no stdin"));
    let mut ask = |which: usize, word: &str| -> Result<u64> {
        let who = [&taker, &streamer][which];
        let times = || who.stdout_so_far().matches(word).count();
        let before = times();
        writeln!(
            pipes[which]
                .as_mut()
                .map_err(|_| anyhow::anyhow!("no stdin"))?
        )?;
        who.wait_until(LIMIT, "answers", || times() > before)?;
        said(&who.stdout_so_far(), word, 1).context("no figure")
    };
    for round in 0..3 {
        bed.wait_for_rings("web", 1)?;
        let told = bed.load_text(&chain("accept", "udp dport 7000 counter drop"), false)?;
        let sent = ask(1, "sent")?;
        ensure!(told.contains("1 go to the kernel path"), "{told}");
        let got = ask(0, "got")?;
        println!(
            "round {round}: behind the load {sent} were sent, of which the last one that came is {got}"
        );
        ensure!(got <= sent, "{got} came, which was sent behind {sent}");
        ensure!(counted(&bed.kernel_rules()?, "udp dport 7000") > 0);
        bed.load_text("", false)?;
    }
    bed.wait_for_rings("web", 1)?;
    drop(pipes);
    streamer.finish()?.ok()?;
    taker.finish()?.ok()?;
    bed.finish()
}

/// What rings carry of datagrams is counted by the rules that let them pass.
#[test]
fn counters_count_what_rings_carry() -> Result<()> {
    const RULE: &str = "udp dport 7000 counter";
    let Some(bed) = Bed::start("counts")? else {
        return Ok(());
    };
    bed.load_text(&chain("accept", &format!("{RULE} accept")), false)?;
    let mut exchange = Exchange::start(&bed, true)?;
    exchange.warm()?;
    let before = exchange.ends()?;
    let counts = || -> Result<(u64, u64)> {
        let all = counted(&bed.rules()?.text, RULE);
        Ok((all, counted(&bed.kernel_rules()?, RULE)))
    };
    let (all, by_kernel) = counts()?;
    ensure!(exchange.ask(2000)? == Seen::Answered);
    let (more, still) = counts()?;
    let after = exchange.ends()?;
    let by_ring = |rows: &[Connection]| {
        let asker = rows.iter().find(|row| row.remote == SERVER);
        asker.map_or(0, |row| row.ring_bytes_tx)
    };
    let carried = by_ring(&after) - by_ring(&before);
    println!(
        "by the ring {carried} bytes; counted {all} and {more}, of which the kernel's {by_kernel} and {still}"
    );
    // Headers come on top, of full-sized packets, one of which may begin anew with each look.
    ensure!(by_kernel == still, "{by_kernel} {still}");
    let most = carried + carried.div_ceil(1472) * 28 + 28;
    ensure!(
        (carried..=most).contains(&(more - all)),
        "{carried} {}",
        more - all
    );
    exchange.finish()?;
    bed.finish()
}

/// A program that requires the fast path: its datagrams go by the kernel all the same, until they have rings, and the
/// log says why they have none, as a listing does.
#[test]
fn datagrams_of_who_requires_rings_are_told_of() -> Result<()> {
    let Some(bed) = Bed::start("require")? else {
        return Ok(());
    };
    let limit = chain(
        "accept",
        "udp dport 7000 limit rate over 100000/second drop",
    );
    let asks = datagrams(&format!("datagram-ask {SERVER}"), true);
    let mut lines = 0;
    for (server, rules, reason) in [
        (PathChoice::Kernel, "", Some("no-peer")),
        (PathChoice::Auto, &limit, Some("filter")),
        (PathChoice::Auto, "", None),
    ] {
        bed.load_text(rules, false)?;
        let serves = datagrams("datagram-echo 7000", true);
        let echo = bed.lab.spawn(&db(), server, &serves)?;
        echo.wait_for_datagram_port(7000)?;
        let asker = bed.lab.spawn(&web(), PathChoice::Fast, &asks)?;
        let mut exchange = Exchange::of(&bed, echo, asker)?;
        let logged = |reason: &str| {
            let line =
                format!("requires the fast path, and datagrams of it go by the kernel: {reason}");
            bed.lab.broker_log().matches(&line).count()
        };
        match reason {
            None => {
                exchange.warm()?;
                ensure!(logged("") == lines, "{}", bed.lab.broker_log());
            }
            Some(reason) => {
                ensure!(exchange.ask(20)? == Seen::Answered);
                let what = "it is logged";
                bed.lab
                    .wait_until(LIMIT, what, || Ok(logged(reason) == 1))?;
                lines += 1;
                let web = bed.connections_of("web")?;
                ensure!(
                    web.len() == 1 && web[0].reason.as_deref() == Some(reason),
                    "{web:?}"
                );
            }
        }
        exchange.finish()?;
    }
    // A socket with an option that the kernel alone heeds: nothing is offered, and it is told of once.
    let echo = bed.lab.spawn(
        &db(),
        PathChoice::Auto,
        &datagrams("datagram-echo 7000", true),
    )?;
    echo.wait_for_datagram_port(7000)?;
    let asks = datagrams(&format!("datagram-ask {SERVER} 60"), true);
    let asker = bed.lab.spawn(&web(), PathChoice::Fast, &asks)?;
    let mut exchange = Exchange::of(&bed, echo, asker)?;
    ensure!(exchange.ask(WARM)? == Seen::Answered);
    let line = "requires the fast path, and datagrams of it go by the kernel: unsupported";
    let told = || bed.lab.broker_log().matches(line).count();
    bed.lab
        .wait_until(LIMIT, "it is logged", || Ok(told() == 1))?;
    exchange.finish()?;
    bed.finish()
}

/// A pair that the administrator sends to the kernel path stays there; `fordway ss` says so.
#[test]
fn a_pair_that_is_downgraded_stays_so() -> Result<()> {
    let Some(bed) = Bed::start("downgrade")? else {
        return Ok(());
    };
    let mut exchange = Exchange::start(&bed, true)?;
    exchange.warm()?;
    let ss = || -> Result<String> {
        let output = bed.lab.command("ss").output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let shown = ss()?;
    ensure!(shown.contains("udp:db:7000"), "{shown}");
    let channel = exchange.ends()?[0].channel.context("no channel")?;
    let mut command = bed.lab.command("downgrade");
    let output = command.arg(channel.to_string()).output()?;
    ensure!(output.status.success(), "{output:?}");
    // More than enough for an offer.
    for _ in 0..4 {
        ensure!(exchange.ask(1000)? == Seen::Answered);
        let rows = exchange.ends()?;
        ensure!(rows.iter().all(|row| row.path == "kernel"), "{rows:?}");
        ensure!(exchange.reasons()? == ["asked", "asked"], "{rows:?}");
    }
    let shown = ss()?;
    println!("{shown}");
    ensure!(shown.contains("asked"), "{shown}");
    exchange.finish()?;
    // Another one is a new pair.
    let mut exchange = Exchange::start(&bed, true)?;
    exchange.warm()?;
    exchange.finish()?;
    bed.finish()
}
