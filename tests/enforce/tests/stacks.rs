//! Rules in a domain's own network stack: in force while traffic runs, in all enforcers or in none, whatever becomes of the stack
//! meanwhile. What the stack has refused, the kernel's copy has never seen: so the two copies are told apart by their counts. One
//! test at a time: a process has one lab.

use anyhow::{Context, Result, ensure};
use fordway_lab::{PathChoice, Place, Program, proc};
use fordway_test_enforce::{Bed, db, program, web};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);
const ECHO: &str = "10.77.0.3:7000";

/// The domain with a stack.
fn own() -> Place {
    Place::domain("own", [10, 77, 0, 9])
}

/// The bed, with an echo in db and a program of `own` that talks to it.
struct Run {
    bed: Bed,
    echo: Program,
    talker: Program,
}

impl Run {
    /// The echo is by the kernel: what the two say comes in frames.
    fn start(name: &str) -> Result<Option<Run>> {
        Run::start_with(name, PathChoice::Kernel)
    }

    fn start_with(name: &str, echo: PathChoice) -> Result<Option<Run>> {
        let Some(bed) = Bed::start(name)? else {
            return Ok(None);
        };
        let words = program("echo 7000", BINARY);
        let echo = bed.lab.spawn(&db(), echo, &words)?;
        echo.wait_for_port(7000)?;
        let words = program(&format!("talk {ECHO} 1"), BINARY);
        let talker = bed.lab.spawn(&own(), PathChoice::Stack, &words)?;
        talker.wait_for_output("up 1")?;
        Ok(Some(Run { bed, echo, talker }))
    }

    fn load(&self, rules: &str) -> Result<()> {
        self.bed.load_text(&chain(rules), false).map(drop)
    }

    /// The stack's process.
    fn stackd(&self) -> Result<i32> {
        stackd(&self.bed)
    }

    /// Kills the stack's process; the next one.
    fn next_stackd(&self) -> Result<i32> {
        next_stackd(&self.bed)
    }

    /// Tries a connection from a domain; what came of it.
    fn connect(&self, place: &Place, path: PathChoice, port: u16) -> Result<String> {
        let words = format!("try 10.77.0.3:{port}");
        let output = self.bed.lab.run(place, path, &program(&words, BINARY))?;
        Ok(output.text().trim().to_owned())
    }

    fn counts(&self, rule: &str, least: u64) -> Result<(u64, u64)> {
        counts(&self.bed, rule, least)
    }

    /// Tries connections until the stack refuses one: the library looks for a stack for a second, and on a busy machine a stack begins
    /// later. The bridge refuses none. Packets of the port's rule in all: more than `before`.
    fn refuses(&self, port: u16, before: u64) -> Result<u64> {
        let rule = format!("tcp dport {port}");
        // A new broker gives the bridge what its rules have counted.
        let given = packets(&self.bed.kernel_rules()?, &rule)?;
        self.bed.lab.wait_until(LIMIT, "a stack that refuses", || {
            Ok(self.connect(&own(), PathChoice::Stack, port)? == "connection refused")
        })?;
        let (all, seen) = self.counts(&rule, before.max(given) + 1)?;
        ensure!(seen == given, "{port}: {given}, {seen} of {all}");
        Ok(all)
    }

    fn finish(self) -> Result<()> {
        self.talker.stop()?;
        self.echo.stop()?;
        self.bed.finish()
    }
}

fn chain(rules: &str) -> String {
    format!(
        "table inet t {{\n chain c {{\n type filter hook forward priority 0; policy accept;\n {rules}\n }}\n}}\n"
    )
}

/// Of the counter in the first line that has these words.
fn packets(listing: &str, words: &str) -> Result<u64> {
    let line = listing.lines().find(|line| line.contains(words));
    let line = line.with_context(|| format!("no {words} in {listing}"))?;
    let (_, behind) = line.split_once("packets ").context("no counter")?;
    Ok(behind.split(' ').next().context("no number")?.parse()?)
}

/// Packets that a rule has counted: by all together, once a listing has so many, and by the kernel's copy. A listing lacks what a stack
/// has not told in time; the next listing has it.
fn counts(bed: &Bed, rule: &str, least: u64) -> Result<(u64, u64)> {
    let mut all = 0;
    let listed = bed.lab.wait_until(LIMIT, "packets", || {
        all = packets(&bed.rules()?.text, rule)?;
        Ok(all >= least)
    });
    listed.with_context(|| format!("{rule}: {all} of {least}"))?;
    Ok((all, packets(&bed.kernel_rules()?, rule)?))
}

/// The process of the only stack.
fn stackd(bed: &Bed) -> Result<i32> {
    let domains = bed.lab.domains()?;
    let stack = domains.into_iter().find_map(|domain| domain.stack);
    let pids = stack.context("no stack")?.pids;
    pids.last().copied().context("no process")
}

/// Kills it; the next one.
fn next_stackd(bed: &Bed) -> Result<i32> {
    let pid = stackd(bed)?;
    signal(pid, Signal::KILL)?;
    stackd_after(bed, pid)
}

/// The stack's process, once it is another one.
fn stackd_after(bed: &Bed, pid: i32) -> Result<i32> {
    let mut next = pid;
    bed.lab.wait_until(LIMIT, "another stack", || {
        let domains = bed.lab.domains()?;
        let stack = domains.into_iter().find_map(|domain| domain.stack);
        let stack = stack.context("no stack")?;
        // Without it, the driver is the last one.
        let is_whole = stack.pids.len() == if stack.options.fuse { 1 } else { 2 };
        let last = stack.pids.last().copied();
        next = last.filter(|_| is_whole).unwrap_or(pid);
        Ok(next != pid)
    })?;
    Ok(next)
}

/// Whether a part waits to be told to begin: the broker has the other end of a pipe of its. Who is listed has been told, if he was
/// to be.
fn is_held(bed: &Bed, pid: i32) -> Result<bool> {
    let pipes = |pid: u32| -> BTreeSet<String> {
        let all = proc::descriptors(pid).into_iter();
        all.filter(|target| target.starts_with("pipe:")).collect()
    };
    // What all inherit of whoever started this test says nothing.
    let both = &pipes(pid as u32) & &pipes(bed.lab.broker_pid()?);
    Ok(!both.is_subset(&pipes(std::process::id())))
}

fn signal(pid: i32, signal: Signal) -> Result<()> {
    Ok(kill_process(
        Pid::from_raw(pid).context("a number")?,
        signal,
    )?)
}

#[test]
fn rules_hold_in_a_stack_while_traffic_runs() -> Result<()> {
    let Some(run) = Run::start("run")? else {
        return Ok(());
    };
    let stackd = run.stackd()?;
    run.load(
        "ip daddr 10.77.0.3 tcp dport 7000 counter accept
         ct state established accept
         ip saddr 10.77.0.9 tcp dport 7001 counter drop
         ip saddr 10.77.0.4 tcp dport 7001 counter drop
         ip saddr 10.77.0.9 tcp dport 7002 counter reject with tcp reset
         ip saddr 10.77.0.4 tcp dport 7002 counter reject with tcp reset
         ip saddr 10.77.0.9 tcp dport 7003 counter limit rate over 1/hour burst 1 packets drop",
    )?;
    // It is listed as what it is, with its program once the pair between program and stack has rings.
    let pids = run.talker.pids();
    run.bed
        .lab
        .wait_until(LIMIT, "the program's connection", || {
            let rows = run.bed.connections_of("own")?;
            let row = rows.iter().find(|row| row.path == "stack");
            Ok(row.is_some_and(|row| {
                (
                    row.protocol.as_str(),
                    row.state.as_str(),
                    row.remote.as_str(),
                ) == ("tcp", "ESTAB", ECHO)
                    && row.peer_domain.as_deref() == Some("db")
                    && row.kernel_bytes_tx > 0
                    && row.kernel_bytes_rx > 0
                    && row.channel.is_some()
                    && row.pid.is_some_and(|pid| pids.contains(&(pid as u32)))
            }))
        })?;
    // What passes is counted by the bridge's copy alone.
    let (all, kernel) = run.counts("ip daddr 10.77.0.3 tcp dport 7000", 1001)?;
    ensure!(all <= kernel, "{all} of {kernel}");
    // What is refused is counted as often as where the kernel alone counts, and never came to the bridge.
    for (port, said) in [(7001, "timed out"), (7002, "connection refused")] {
        let stack = run.connect(&own(), PathChoice::Stack, port)?;
        let kernel = run.connect(&web(), PathChoice::Kernel, port)?;
        ensure!(
            stack == kernel && stack == said,
            "{port}: {stack}, {kernel}"
        );
        let rule = |from| format!("ip saddr {from} tcp dport {port}");
        let (others, _) = run.counts(&rule("10.77.0.4"), 1)?;
        let (all, seen) = run.counts(&rule("10.77.0.9"), others)?;
        println!("{port}: {stack}; {all} packets, by the kernel's stack {others}");
        ensure!(
            all == others && seen == 0,
            "{port}: {all}, {others}, {seen}"
        );
    }
    // What acts on each packet is the bridge's.
    run.connect(&own(), PathChoice::Stack, 7003)?;
    let (all, seen) = run.counts("tcp dport 7003", 1)?;
    ensure!(all == seen, "{all}, {seen}");
    ensure!(!run.talker.stdout_so_far().contains("down"));
    // A connection that is refused from now on ends by its next packet.
    run.load("ip saddr 10.77.0.9 tcp dport 7000 counter reject with tcp reset")?;
    run.talker.wait_for_output("down 1")?;
    run.counts("tcp dport 7000", 1)?;
    ensure!(run.stackd()? == stackd);
    run.finish()
}

/// Rings between a program on a stack and one on the kernel's are asked about as all others, and cut when the rules say so.
#[test]
fn rules_cut_rings_past_a_stack() -> Result<()> {
    let Some(run) = Run::start_with("past", PathChoice::Auto)? else {
        return Ok(());
    };
    run.bed.lab.wait_until(LIMIT, "rings past the stack", || {
        let rows = run.bed.connections_of("own")?;
        Ok(rows.iter().any(|row| {
            let by_rings = row.ring_bytes_tx > 0 && row.ring_bytes_rx > 0;
            row.protocol == "tcp" && row.path == "fast" && by_rings
        }))
    })?;
    // Each packet is to be seen: they go by frames again, and are counted.
    let seen = "tcp dport 7000";
    run.load(&format!(
        "{seen} counter limit rate 1000000000/second accept"
    ))?;
    run.bed.lab.wait_until(LIMIT, "packets", || {
        Ok(packets(&run.bed.kernel_rules()?, seen)? > 1000)
    })?;
    run.load("")?;
    run.bed.lab.wait_until(LIMIT, "rings again", || {
        let rows = run.bed.connections_of("own")?;
        Ok(rows
            .iter()
            .any(|row| row.path == "fast" && row.protocol == "tcp"))
    })?;
    ensure!(!run.talker.stdout_so_far().contains("down"));
    run.load(&format!(
        "ip saddr 10.77.0.9 {seen} counter reject with tcp reset"
    ))?;
    run.talker.wait_for_output("down 1")?;
    run.finish()
}

#[test]
fn a_load_that_fails_leaves_stacks_as_they_were() -> Result<()> {
    let Some(run) = Run::start("fails")? else {
        return Ok(());
    };
    let stackd = run.stackd()?;
    let dropped = "tcp dport 7001";
    run.load(&format!("{dropped} counter drop"))?;
    // The file cannot take its place: the kernel has had the new rules, and gets the old ones back.
    let file = run.bed.lab.runtime_dir().join("filter.json");
    std::fs::remove_file(&file)?;
    std::fs::create_dir(&file)?;
    let refused = run.load("tcp dport 7004 counter reject with tcp reset");
    ensure!(refused.is_err());
    std::fs::remove_dir(&file)?;
    // Nor does what nft refuses.
    ensure!(run.load("tcp dport 7000 rejekt").is_err());
    let (before, _) = run.counts(dropped, 0)?;
    run.connect(&own(), PathChoice::Stack, 7001)?;
    let (_, seen) = run.counts(dropped, before + 1)?;
    ensure!(seen == 0, "{seen}");
    ensure!(!run.talker.stdout_so_far().contains("down"));
    ensure!(run.stackd()? == stackd);
    run.finish()
}

/// Many rules for many stacks: each load reaches all of them, or none.
#[test]
fn many_rules_reach_many_stacks_or_none() -> Result<()> {
    const STACKS: u8 = 12;
    const RULES: u16 = 3000;
    let Some(bed) = Bed::start("many")? else {
        return Ok(());
    };
    let places: Vec<Place> = (0..STACKS)
        .map(|at| Place::domain(&format!("own{at}"), [10, 77, 0, 20 + at]))
        .collect();
    let held = places.iter().map(|place| {
        let cat = fordway_lab::Spawn::new(["cat"]).stdin(fordway_lab::Stdin::Pipe);
        bed.lab
            .spawn(place, PathChoice::Stack, &cat.time_limit(LIMIT * 2))
    });
    let held: Vec<Program> = held.collect::<Result<_>>()?;
    let stacks = || -> Result<Vec<Vec<i32>>> {
        let domains = bed.lab.domains()?.into_iter();
        let stacks = domains.filter_map(|domain| domain.stack);
        Ok(stacks.map(|stack| stack.pids).collect())
    };
    bed.lab.wait_until(LIMIT, "all stacks", || {
        Ok(stacks()?.iter().filter(|pids| pids.len() == 2).count() == places.len())
    })?;
    let before = stacks()?;
    let load = |port: u16| -> Result<String> {
        let others = (1..RULES).map(|at| {
            let [high, low] = at.to_be_bytes();
            format!("ip saddr 10.99.{high}.{low} tcp dport {at} drop\n")
        });
        let last = format!("tcp dport {port} counter reject with tcp reset");
        let started = Instant::now();
        let said = bed.load_text(&chain(&(others.collect::<String>() + &last)), false)?;
        println!("{RULES} rules in {:?}: {}", started.elapsed(), said.trim());
        Ok(said)
    };
    // By the last rule; the bridge sees nothing of what a stack refuses.
    let all_refuse = |port: u16, times: u64| -> Result<()> {
        for place in &places {
            let words = program(&format!("try 10.77.0.3:{port}"), BINARY);
            let output = bed.lab.run(place, PathChoice::Stack, &words)?;
            ensure!(output.text().trim() == "connection refused");
        }
        let refused = times * u64::from(STACKS);
        let counted = counts(&bed, &format!("tcp dport {port} counter"), refused)?;
        ensure!(counted == (refused, 0), "{counted:?}");
        Ok(())
    };
    let reached = format!("stacks: {STACKS} (");
    ensure!(load(9001)?.contains(&reached));
    all_refuse(9001, 1)?;
    // The kernel has had the new rules, and gets the old ones back: no stack has them.
    let file = bed.lab.runtime_dir().join("filter.json");
    std::fs::remove_file(&file)?;
    std::fs::create_dir(&file)?;
    ensure!(load(9002).is_err());
    std::fs::remove_dir(&file)?;
    all_refuse(9001, 2)?;
    ensure!(load(9003)?.contains(&reached));
    all_refuse(9003, 1)?;
    ensure!(stacks()? == before, "a stack was started again");
    for program in held {
        program.stop()?;
    }
    bed.finish()
}

#[test]
fn a_stack_that_dies_or_hangs_has_the_rules_of_the_load() -> Result<()> {
    const KILLS: u16 = 20;
    let Some(run) = Run::start("dies")? else {
        return Ok(());
    };
    let rule = |port: u16| format!("tcp dport {port} counter reject with tcp reset");
    for round in 0..KILLS {
        let stackd = run.stackd();
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| stackd.map(|stackd| signal(stackd, Signal::KILL)));
            run.load(&rule(8000 + round))?;
            // It may be between two processes, or have ended.
            let _ = killer.join();
            Ok::<(), anyhow::Error>(())
        })?;
    }
    run.refuses(8000 + KILLS - 1, 0)?;
    let stackd = run.stackd()?;
    signal(stackd, Signal::STOP)?;
    run.load(&rule(9000))?;
    stackd_after(&run.bed, stackd)?;
    let before = run.refuses(9000, 0)?;
    // A listing does not wait for one that hangs, either.
    let stackd = run.stackd()?;
    signal(stackd, Signal::STOP)?;
    ensure!(run.bed.rules()?.text.contains("9000"));
    signal(stackd, Signal::CONT)?;
    run.refuses(9000, before)?;
    ensure!(run.stackd()? == stackd);
    run.finish()
}

#[test]
fn a_new_broker_finds_the_way_to_a_stack_and_no_program_has_it() -> Result<()> {
    let Some(mut run) = Run::start("way")? else {
        return Ok(());
    };
    let stackd = run.stackd()?;
    let sockets = |pid: u32| -> BTreeSet<String> {
        let all = proc::descriptors(pid).into_iter();
        all.filter(|target| target.starts_with("socket:")).collect()
    };
    let broker = run.bed.lab.broker_pid()?;
    let way: Vec<String> = sockets(stackd as u32)
        .intersection(&sockets(broker))
        .cloned()
        .collect();
    // The broker's end of the way, and the stack's end of the link to its driver.
    ensure!(way.len() == 2, "{way:?}");
    for pid in run.talker.pids() {
        let theirs = sockets(pid);
        ensure!(!theirs.is_empty());
        ensure!(way.iter().all(|one| !theirs.contains(one)), "{theirs:?}");
    }
    run.load("tcp dport 7001 counter reject with tcp reset")?;
    let mut all = 0;
    for kill in [false, true] {
        let before = run.refuses(7001, all)?;
        run.bed.lab.restart_broker(kill)?;
        // A broker that is killed takes what it has been told with it.
        let kept = if kill { 0 } else { before };
        all = run.refuses(7001, kept)?;
        println!("killed: {kill}: {before}, {all}");
        ensure!(run.stackd()? == stackd);
    }
    run.load("tcp dport 7002 counter reject with tcp reset")?;
    run.refuses(7002, 0)?;
    ensure!(run.stackd()? == stackd && !run.talker.stdout_so_far().contains("down"));
    run.finish()
}

#[test]
fn a_stack_without_tcp_has_none() -> Result<()> {
    let Some(bed) = Bed::start("less")? else {
        return Ok(());
    };
    let smaller = bed.lab.fordway().with_file_name("fordway-stackd-udp");
    if !smaller.exists() {
        fordway_test_skip::skipped("fordway-stackd-udp is not built (./x build)");
        return bed.finish();
    }
    let echo = bed.spawn(&db(), &program("datagram-echo 7000", BINARY))?;
    echo.wait_for_datagram_port(7000)?;
    let run = |words: &[&str]| -> Result<String> {
        let mut command = bed.lab.command("run");
        command.args([
            "--domain", "own", "--path", "stack", "--stack", "udp,icmp", "--",
        ]);
        let output = command.args(words).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let tcp = "import socket as s\ntry: s.socket()\nexcept OSError as e: print(e.errno)";
    ensure!(run(&["python3", "-c", tcp])?.trim() == "93");
    let udp = "import socket as s\nu = s.socket(2, 2); u.settimeout(20); u.sendto(b'abc', ('10.77.0.3', 7000)); print(u.recv(9))";
    ensure!(run(&["python3", "-c", udp])?.trim() == "b'abc'");
    let domains = bed.lab.domains()?;
    let stack = domains.into_iter().find_map(|domain| domain.stack);
    let pid = *stack
        .context("no stack")?
        .pids
        .last()
        .context("no process")?;
    ensure!(std::fs::read_link(format!("/proc/{pid}/exe"))? == smaller);
    // Of the rules it has the same.
    bed.load_text(&chain("udp dport 7000 counter drop"), false)?;
    let udp = udp.replace("20", "1");
    ensure!(run(&["python3", "-c", &udp])?.is_empty());
    let counted = counts(&bed, "udp dport 7000", 1)?;
    ensure!(counted == (1, 0), "{counted:?}");
    echo.stop()?;
    bed.finish()
}

/// Rules are replaced under a connection that they let begin, and under one that only its state lets go on.
#[test]
fn connections_live_through_rules_that_flip() -> Result<()> {
    const FLIPS: usize = 40;
    let Some(run) = Run::start("flip")? else {
        return Ok(());
    };
    let stackd = run.stackd()?;
    let tracked = "ct state established counter accept";
    let begin = "tcp dport 7000 ct state new accept";
    // The first talker began under no rules: the bridge takes its next packet for a first one.
    run.load(&format!("{tracked}\n {begin}\n drop"))?;
    let words = program(&format!("talk {ECHO} 8"), BINARY);
    let second = run.bed.lab.spawn(&own(), PathChoice::Stack, &words)?;
    second.wait_for_output("up 8")?;
    let mut before = 0;
    for flip in 0..FLIPS {
        let more = format!("tcp dport {} drop", 8000 + flip);
        let first = if flip % 2 == 0 { "drop" } else { begin };
        run.load(&format!("{more}\n {tracked}\n {first}\n drop"))?;
        before += run.counts("ct state established", 21)?.1;
    }
    println!("{before} packets under {FLIPS} rulesets");
    for talker in [&run.talker, &second] {
        ensure!(!talker.stdout_so_far().contains("down"));
    }
    ensure!(run.stackd()? == stackd);
    second.stop()?;
    run.finish()
}

/// A program sends what the rules refuse, as fast as it can, while its stack is killed again and again.
#[test]
fn no_frame_of_a_new_stack_goes_without_rules() -> Result<()> {
    const KILLS: usize = 15;
    const SEND: &str = "import socket as s
while True:
    try:
        u = s.socket(2, 2)
        for i in range(64): u.sendto(b'x', ('10.77.0.3', 7005))
        u.close()
    except OSError: pass";
    let Some(run) = Run::start("first")? else {
        return Ok(());
    };
    let rule = "udp dport 7005";
    run.load(&format!("{rule} counter drop"))?;
    let words = fordway_lab::Spawn::new(["python3", "-c", SEND]).time_limit(LIMIT * 2);
    let sender = run.bed.lab.spawn(&own(), PathChoice::Stack, &words)?;
    for _ in 0..KILLS {
        let (before, _) = run.counts(rule, 0)?;
        let (all, seen) = run.counts(rule, before + 1)?;
        ensure!(seen == 0, "{seen} of {all}");
        run.next_stackd()?;
    }
    let (all, seen) = run.counts(rule, 1)?;
    println!("{all} packets refused by {KILLS} stacks, {seen} by the bridge");
    ensure!(seen == 0);
    sender.stop()?;
    run.finish()
}

/// Rules name the port of a fused stack, whose device is another one with each process. The broker waits for nobody then.
#[test]
fn a_fused_stack_comes_back_under_rules_of_its_port() -> Result<()> {
    const KILLS: usize = 5;
    let Some(bed) = Bed::start("fused")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let connects = || -> Result<String> {
        let mut command = bed.lab.command("run");
        command.args(["--domain", "own", "--path", "stack", "--fuse", "--"]);
        let output = command.args([BINARY, "try", ECHO]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let reached = connects()?;
    let own = bed.lab.domains()?.into_iter().find(|one| one.name == "own");
    let port = own.and_then(|own| own.ip).context("no address")?;
    let port = fordway_platform::fabric::port_of(port);
    let rule = "tcp dport 7000";
    bed.load_text(
        &format!(
            "table netdev t {{\n chain c {{\n type filter hook ingress device \"{port}\" priority 0; policy accept;\n {rule} counter\n }}\n}}\n"
        ),
        false,
    )?;
    for round in 0..KILLS {
        let next = next_stackd(&bed)?;
        let before = packets(&bed.rules()?.text, rule)?;
        // The library looks for a stack for a second: on a machine that is busy it begins later.
        bed.lab
            .wait_until(LIMIT, "a stack that serves", || Ok(connects()? == reached))?;
        let after = packets(&bed.rules()?.text, rule)?;
        ensure!(after > before, "{round}: the chain sees nothing");
        ensure!(stackd(&bed)? == next, "{round}: it was killed");
    }
    // Somebody owns the table, so that nobody else may change it: until he goes, the chain is lacking.
    let fabric = bed.lab.runtime_dir().join("netns/.fabric");
    let mut owner = Command::new("nsenter")
        .arg(format!("--net={}", fabric.display()))
        .args(["nft", "-i"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut words = owner.stdin.take().context("a pipe")?;
    words.write_all(b"delete table netdev t\nadd table netdev t { flags owner; }\n")?;
    let owned = bed.lab.wait_until(LIMIT, "a table with an owner", || {
        Ok(bed.kernel_rules()?.contains("flags owner"))
    });
    let held = owned.and_then(|()| {
        // Each next one, and a listing does not wait for it.
        (0..2).try_for_each(|_| {
            let next = next_stackd(&bed)?;
            ensure!(is_held(&bed, next)?, "it has begun without its chain");
            ensure!(bed.rules()?.text.contains(rule));
            Ok(())
        })
    });
    drop(words);
    owner.kill()?;
    owner.wait()?;
    held?;
    bed.lab
        .wait_until(LIMIT, "a stack that serves", || Ok(connects()? == reached))?;
    ensure!(!is_held(&bed, stackd(&bed)?)?);
    ensure!(
        packets(&bed.kernel_rules()?, rule)? > 0,
        "without its chain"
    );
    echo.stop()?;
    bed.finish()
}

/// A part that no later broker could find does nothing.
#[test]
fn a_stack_begins_when_it_is_written_down() -> Result<()> {
    let Some(mut run) = Run::start("record")? else {
        return Ok(());
    };
    let record = run.bed.lab.runtime_dir().join("stacks.json");
    std::fs::remove_file(&record)?;
    std::fs::create_dir(&record)?;
    let held = run.next_stackd()?;
    ensure!(is_held(&run.bed, held)?, "it has begun and nobody knows");
    // It hears of no load: another one, with these rules, waits in its place.
    run.load("tcp dport 7001 counter reject with tcp reset")?;
    let held = stackd_after(&run.bed, held)?;
    ensure!(is_held(&run.bed, held)?, "it has begun and nobody knows");
    std::fs::remove_dir(&record)?;
    run.refuses(7001, 0)?;
    let stackd = run.stackd()?;
    ensure!(stackd == held && !is_held(&run.bed, held)?);
    ensure!(std::fs::read_to_string(&record)?.contains(&stackd.to_string()));
    run.bed.lab.restart_broker(false)?;
    ensure!(run.stackd()? == stackd);
    run.finish()
}
