//! Broadcasts to eight domains: each receiver has each of them once and in order, by rings, and the kernel carries none. While a
//! receiver is stopped, is killed or is cut off by a rule, the others have all.

use anyhow::{Context, Result, ensure};
use fordway_lab::proc;
use fordway_platform::fabric::port_of;
use fordway_test_programs::{Bed, CLIENT, PROXY, Program, SERVER, Spawn, Stdin, script};
use fordwayd::admin::{Reply, Request};
use rustix::process::Signal;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::ChildStdin;

const PYTHON: &str = "/usr/bin/python3";
const PORT: u16 = 7000;
const ALL: &str = "10.77.0.255";
/// The receivers beside [`SERVER`] and [`PROXY`].
const MORE: [(&str, [u8; 4]); 6] = [
    ("hear1", [10, 77, 0, 21]),
    ("hear2", [10, 77, 0, 22]),
    ("hear3", [10, 77, 0, 23]),
    ("hear4", [10, 77, 0, 24]),
    ("hear5", [10, 77, 0, 25]),
    ("hear6", [10, 77, 0, 26]),
];
const RECEIVERS: usize = MORE.len() + 2;
/// Broadcasts, and bytes of each; long ones, too.
const COUNT: usize = 1000;
const BYTES: usize = 1000;
const LONG_COUNT: usize = 100;
const LONG_BYTES: usize = 60_000;

/// The one that broadcasts.
struct Speaker {
    program: Program,
    input: ChildStdin,
    /// Lines that it has printed.
    lines: usize,
}

impl Speaker {
    /// From a port of its own, or from that of the receivers.
    fn start(bed: &Bed, own: u16) -> Result<Speaker> {
        let words = [PYTHON, &script("everybody.py"), "speak", ALL];
        let spawn = Spawn::new(
            words
                .map(str::to_owned)
                .into_iter()
                .chain([PORT.to_string(), own.to_string()]),
        );
        let mut program = bed.spawn(CLIENT, spawn.stdin(Stdin::Pipe))?;
        let input = program.take_stdin().context("no input")?;
        Ok(Speaker {
            program,
            input,
            lines: 0,
        })
    }

    /// Has it do something; what it prints.
    fn ask(&mut self, bed: &Bed, command: &str) -> Result<String> {
        writeln!(self.input, "{command}")?;
        self.lines += 1;
        let printed = |program: &Program| {
            let text = program.stdout_so_far();
            let line = text.lines().nth(self.lines - 1).map(str::to_owned);
            line.filter(|_| text.ends_with('\n'))
        };
        let limit = fordway_test_programs::CLIENT_LIMIT;
        let done = || printed(&self.program).is_some();
        self.program
            .wait_until(
                limit,
                &format!("has done, as number {}: {command}", self.lines),
                done,
            )
            .with_context(|| bed.lab().broker_log())?;
        printed(&self.program).context("a line")
    }

    /// Broadcasts, of which the kernel carries none but the sender's own copies.
    fn say(
        &mut self,
        bed: &Bed,
        count: usize,
        bytes: usize,
        heard: usize,
        own: usize,
    ) -> Result<()> {
        let said = self.ask(bed, &format!("say {count} {bytes} {heard}"))?;
        let expected = format!(": {own} sent, 0 received by the kernel;");
        ensure!(said.contains(&expected), "{said}");
        let by = said.split("heard by ").nth(1).context("names")?;
        ensure!(by.split(' ').count() == heard, "{said}");
        Ok(())
    }

    fn settle(&mut self, bed: &Bed, heard: usize) -> Result<()> {
        let settled = self.ask(bed, &format!("settle {heard}"))?;
        ensure!(settled.starts_with("settled "), "{settled}");
        Ok(())
    }

    fn end(self, bed: &Bed) -> Result<()> {
        drop(self.input);
        let limit = fordway_test_programs::STOP_LIMIT;
        bed.end_of(self.program, limit, "speak")?.ok().map(drop)
    }
}

/// One rule, asked at each port that a packet leaves by.
fn rules(rule: &str) -> String {
    let hook = "type filter hook forward priority filter; policy accept;";
    format!("table bridge cut {{\n chain leaving {{\n {hook}\n {rule}\n }}\n}}\n")
}

fn load(bed: &Bed, text: String) -> Result<()> {
    let reply = bed.lab().ask(&Request::FilterLoad { text, epoch: None })?;
    ensure!(!matches!(reply, Reply::Error { .. }), "{reply:?}");
    Ok(())
}

fn signal(program: &Program, signal: Signal) -> Result<()> {
    let process = proc::stat(program.pid()).context("a process")?;
    proc::signal(&process, signal);
    Ok(())
}

#[test]
fn everybody() -> Result<()> {
    let Some(bed) = Bed::start("everybody", &["python3"])? else {
        return Ok(());
    };
    for (name, ip) in MORE {
        bed.add_domain(name, ip)?;
    }
    let hear = || Spawn::new([PYTHON, &script("everybody.py"), "hear", &PORT.to_string()]);
    let mut hearers = Vec::new();
    for domain in [SERVER, PROXY]
        .into_iter()
        .chain(MORE.map(|(name, _)| name))
    {
        hearers.push(bed.serve_datagrams(domain, PORT, hear())?);
    }

    // It hears itself by the kernel, and the others by rings.
    let mut speaker = Speaker::start(&bed, PORT)?;
    speaker.settle(&bed, RECEIVERS)?;
    speaker.say(&bed, COUNT, BYTES, RECEIVERS, COUNT)?;
    speaker.end(&bed)?;

    let mut speaker = Speaker::start(&bed, 0)?;
    speaker.settle(&bed, RECEIVERS)?;
    speaker.say(&bed, COUNT, BYTES, RECEIVERS, 0)?;
    speaker.say(&bed, LONG_COUNT, LONG_BYTES, RECEIVERS, 0)?;
    // All of them, as each of the ends shows.
    let least = (COUNT * BYTES + LONG_COUNT * LONG_BYTES) as u64;
    let rows = bed.lab().connections()?;
    let at = format!(":{PORT}");
    let sent = rows.iter().filter(|row| {
        row.domain == CLIENT && row.remote.ends_with(&at) && row.ring_bytes_tx >= least
    });
    let received = rows.iter().filter(|row| {
        row.domain != CLIENT && row.local.ends_with(&at) && row.ring_bytes_rx >= least
    });
    let ends = (sent.count(), received.count());
    ensure!(
        ends == (RECEIVERS, RECEIVERS),
        "{ends:?} of {least} bytes: {rows:?}"
    );

    // One that is stopped holds nobody up, and goes on behind the gap.
    let stopped = &hearers[2];
    signal(stopped, Signal::STOP)?;
    let said = speaker.ask(&bed, &format!("say {COUNT} {LONG_BYTES} {}", RECEIVERS - 1))?;
    ensure!(said.starts_with("said "), "{said}");
    signal(stopped, Signal::CONT)?;
    speaker.settle(&bed, RECEIVERS)?;
    let lost = speaker.ask(&bed, "lost")?;
    let lost: usize = lost.split(' ').nth(1).context("a count")?.parse()?;
    ensure!(
        (1..COUNT).contains(&lost),
        "{lost} were lost to one that was stopped"
    );

    // A rule about what leaves by its port, as the kernel asks it of a broadcast.
    let (_, cut_off) = MORE[1];
    let (cut_off, port) = (Ipv4Addr::from(cut_off), port_of(Ipv4Addr::from(cut_off)));
    load(
        &bed,
        rules(&format!("oifname \"{port}\" udp dport {PORT} drop")),
    )?;
    let said = speaker.ask(&bed, &format!("say {COUNT} {BYTES} {}", RECEIVERS - 1))?;
    ensure!(!said.contains(&cut_off.to_string()), "{said}");
    speaker.settle(&bed, RECEIVERS - 1)?;
    speaker.say(&bed, COUNT, BYTES, RECEIVERS - 1, 0)?;
    // What the kernel has to see, it carries, also to those about whom there is no rule.
    load(&bed, rules(&format!("udp dport {PORT} counter")))?;
    let said = speaker.ask(&bed, &format!("say {COUNT} {BYTES} {RECEIVERS}"))?;
    ensure!(said.contains(&format!(": {COUNT} sent, ")), "{said}");
    load(&bed, String::new())?;
    speaker.settle(&bed, RECEIVERS)?;

    // One that is killed is missed by nobody.
    let killed = hearers.remove(3);
    signal(&killed, Signal::KILL)?;
    let said = speaker.ask(&bed, &format!("say {COUNT} {BYTES} {}", RECEIVERS - 1))?;
    ensure!(said.starts_with("said "), "{said}");
    drop(killed.finish()?);
    speaker.settle(&bed, RECEIVERS - 1)?;
    speaker.say(&bed, COUNT, BYTES, RECEIVERS - 1, 0)?;

    // A program whose datagrams are the kernel's has them, too, and so have all.
    let plain = hear().env("FORDWAY_DATAGRAMS", "0");
    hearers.push(bed.serve_datagrams(MORE[1].0, PORT, plain)?);
    let reached = speaker.ask(&bed, &format!("reach {RECEIVERS}"))?;
    ensure!(reached.starts_with("reached "), "{reached}");
    let said = speaker.ask(&bed, &format!("say {COUNT} {BYTES} {RECEIVERS}"))?;
    ensure!(said.contains(&format!(": {COUNT} sent, ")), "{said}");
    speaker.end(&bed)?;
    for hearer in hearers {
        bed.stop_by(hearer, Signal::TERM)?;
    }
    for (name, _) in MORE {
        bed.remove_domain(name)?;
    }
    bed.finish(&format!(
        "{least} bytes of broadcasts by each of {RECEIVERS} rings, none by the kernel"
    ))
}
