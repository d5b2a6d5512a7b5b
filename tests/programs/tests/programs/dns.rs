//! Name servers by UDP: unbound, and dnsmasq, which asks for IP_PKTINFO and answers with it. dig asks each name by a socket of its own,
//! and its answers are compared; dnsperf asks many by few sockets, and says what was lost.

use super::datagrams::RINGS;
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, path_of};
use std::fs;
use std::path::PathBuf;

const UNBOUND_PORT: u16 = 5301;
const DNSMASQ_PORT: u16 = 5302;
const NAMES: usize = 200;
/// How often dnsperf asks for each.
const ROUNDS: usize = 300;
/// Questions that dnsperf has under way: fewer than a receiver's buffer holds.
const UNDER_WAY: usize = 50;
/// Half of all questions and answers, which are 28 and 44 B or a little more.
const BYTES: u64 = (NAMES * ROUNDS * 36) as u64;

fn name(number: usize) -> String {
    format!("name{number}.test")
}

fn address(number: usize) -> String {
    format!("192.0.2.{}", number + 1)
}

#[test]
fn unbound() -> Result<()> {
    let Some(bed) = Bed::start("unbound", &["unbound", "dig", "dnsperf"])? else {
        return Ok(());
    };
    let records = (0..NAMES)
        .map(|number| format!("local-data: \"{}. A {}\"\n", name(number), address(number)));
    let config = format!(
        "server:
interface: 0.0.0.0
port: {UNBOUND_PORT}
access-control: 0.0.0.0/0 allow
num-threads: 2
do-daemonize: no
username: \"\"
chroot: \"\"
pidfile: \"\"
use-syslog: no
module-config: \"iterator\"
local-zone: \"test.\" static
{}remote-control:
control-enable: no
",
        records.collect::<String>()
    );
    let file = bed.dir().join("unbound.conf");
    fs::write(&file, config)?;
    let argv = [&path_of("unbound")?, "-d", "-c", &file.to_string_lossy()];
    let server = bed.serve_datagrams(SERVER, UNBOUND_PORT, RINGS.of(Spawn::new(argv)))?;
    let line = ask_until_seen(&bed, UNBOUND_PORT)?;
    bed.stop(server)?;
    bed.finish(&line)
}

#[test]
fn dnsmasq() -> Result<()> {
    let Some(bed) = Bed::start("dnsmasq", &["dnsmasq", "dig", "dnsperf"])? else {
        return Ok(());
    };
    let hosts = bed.dir().join("hosts");
    let lines = (0..NAMES).map(|number| format!("{} {}\n", address(number), name(number)));
    fs::write(&hosts, lines.collect::<String>())?;
    let serve = format!(
        "{} --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --user=root \
         --pid-file= --log-facility=- --port={DNSMASQ_PORT} --addn-hosts={}",
        path_of("dnsmasq")?,
        hosts.display()
    );
    let server = bed.serve_datagrams(SERVER, DNSMASQ_PORT, RINGS.of(Spawn::line(&serve)))?;
    let line = ask_until_seen(&bed, DNSMASQ_PORT)?;
    bed.stop(server)?;
    bed.finish(&line)
}

fn ask_until_seen(bed: &Bed, port: u16) -> Result<String> {
    bed.seen(
        || ask(bed, port),
        |carried| carried.datagrams_at_both_ends([SERVER, CLIENT], port, BYTES),
    )
}

/// By dig and by dnsperf.
fn ask(bed: &Bed, port: u16) -> Result<()> {
    let write = |file: &str, line: &dyn Fn(usize) -> String| -> Result<PathBuf> {
        let file = bed.dir().join(file);
        fs::write(&file, (0..NAMES).map(line).collect::<String>())?;
        Ok(file)
    };
    let names = write("names", &|number| format!("{}\n", name(number)))?;
    let questions = write("questions", &|number| format!("{} A\n", name(number)))?;
    let dig = format!(
        "{} @{SERVER} -p {port} +short +tries=1 +time=10 -f {}",
        path_of("dig")?,
        names.display()
    );
    let expected: String = (0..NAMES)
        .map(|number| format!("{}\n", address(number)))
        .collect();
    let answers = bed.run(RINGS.of(Spawn::line(&dig))).context("dig")?;
    ensure!(answers.text() == expected, "dig: {}", answers.text());
    let dnsperf = format!(
        "{} -s {SERVER} -p {port} -d {} -n {ROUNDS} -c 4 -q {UNDER_WAY} -t 10",
        path_of("dnsperf")?,
        questions.display()
    );
    let report = bed
        .run(RINGS.of(Spawn::line(&dnsperf)))
        .context("dnsperf")?;
    let text = report.text();
    // "Queries lost:         0 (0.00%)"
    let of = |what: &str| {
        let line = text.lines().find(|line| line.trim().starts_with(what));
        line.and_then(|line| line.split_once(':'))
            .with_context(|| format!("no {what:?} in {text}"))
    };
    let count = |what: &str| Ok::<_, anyhow::Error>(of(what)?.1.split_whitespace().next());
    let all = (NAMES * ROUNDS).to_string();
    ensure!(
        count("Queries completed")? == Some(&all) && count("Queries lost")? == Some("0"),
        "dnsperf: {text}{}",
        report.errors()
    );
    ensure!(
        of("Response codes")?.1.trim() == format!("NOERROR {all} (100.00%)"),
        "dnsperf: {text}"
    );
    Ok(())
}
