//! AF_VSOCK between domains: cases of our own beside vsock(7) and the kernel's source, socat, ncat, sequenced packets in
//! Python and C, and rules that keep one away.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{
    Bed, CLIENT, CLIENT_LIMIT, Program, SERVER, Spawn, Stdin, Stdout, files, path_of, script,
};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";
const CASES_PORT: u16 = 5000;
const RECORDS_PORT: u16 = 5001;
const CASES_MIN: usize = 40;
const RECORD_CASES_MIN: usize = 30;
/// What one of the cases sends, and gets back.
const CASES_BYTES: u64 = 10_000_000;
/// What the longer ones of the cases of records send.
const RECORDS_BYTES: u64 = 20_000_000;
const SOCAT_PORT: u16 = 5010;
const NCAT_PORT: u16 = 5011;
const C_PORT: u16 = 5012;
const C_RECORDS: u32 = 3000;
const FILE_BYTES: u64 = 20_000_000;

#[test]
fn vsock() -> Result<()> {
    let programs = ["python3", "socat", "ncat"];
    let Some(bed) = Bed::start_with("vsock", &programs, &["--vsock"])? else {
        return Ok(());
    };
    let [server_cid, client_cid] = [cid(&bed, SERVER)?, cid(&bed, CLIENT)?];
    let (script, port) = (script("vsock.py"), CASES_PORT.to_string());
    let serve = [PYTHON, &script, "serve", &port];
    let cases_server = bed.serve(SERVER, CASES_PORT, Spawn::new(serve))?;
    let socat = path_of("socat")?;
    let listen = format!("VSOCK-LISTEN:{SOCAT_PORT},fork");
    let echo = bed.serve(
        SERVER,
        SOCAT_PORT,
        Spawn::new([&socat, "-t30", &listen, "EXEC:cat"]),
    )?;
    let (ncat, ncat_port) = (path_of("ncat")?, NCAT_PORT.to_string());
    let [file, got] = ["file", "got"].map(|name| bed.dir().join(name));
    files::random(&file, FILE_BYTES)?;
    let words = [&ncat, "--vsock", "-l", "--recv-only", &ncat_port];
    // With nothing to read it would shut its half down at once, and such a connection gets no rings.
    let sink = Spawn::new(words).stdin(Stdin::Pipe);
    let sink = sink.stdout(Stdout::File(got.clone()));
    let sink = bed.serve(SERVER, NCAT_PORT, sink)?;

    let watch = bed.watch()?;
    let cases = [PYTHON, &script, "cases", &server_cid, &client_cid, &port];
    all_are_good(&bed, &cases, CASES_MIN)?;
    let words = [&ncat, "--vsock", "--send-only", &server_cid, &ncat_port];
    let until_rings = |port| watch.until_rings(&bed, [SERVER, CLIENT], port);
    bed.run_fed(Spawn::new(words), fs::read(&file)?, || {
        until_rings(NCAT_PORT)
    })?;
    bed.end_of(sink, CLIENT_LIMIT, "ncat")?;
    files::same(&got, &file).context("ncat")?;
    let connect = format!("VSOCK-CONNECT:{server_cid}:{SOCAT_PORT}");
    let client = Spawn::new([&socat, "-t30", "-", &connect]).stdout(Stdout::File(got.clone()));
    bed.run_fed(client, fs::read(&file)?, || until_rings(SOCAT_PORT))?;
    files::same(&got, &file)?;

    let carried = watch.end(&bed)?;
    carried.rings_at_both_ends([SERVER, CLIENT], CASES_PORT, CASES_BYTES)?;
    let bytes = FILE_BYTES * 2 * 3 / 4;
    carried.rings_at_both_ends([SERVER, CLIENT], NCAT_PORT, bytes / 2)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], SOCAT_PORT, bytes)?;

    let refused = Spawn::new([PYTHON, "-c", CONNECT, &server_cid, &port]);
    ensure!(bed.run(refused.clone())?.text() == "connected\n");
    let from_client = format!("ip6 saddr ${CLIENT}_vsock ip6 daddr ${SERVER}_vsock");
    let rule = format!("{from_client} tcp dport {CASES_PORT} reject with tcp reset");
    let hook = "type filter hook forward priority 0";
    load(
        &bed,
        &format!("table ip6 t {{\nchain c {{\n{hook}\n{rule}\n}}\n}}\n"),
    )?;
    ensure!(bed.run(refused)?.text() == "ECONNREFUSED\n");
    for server in [cases_server, echo] {
        bed.stop(server)?;
    }
    bed.finish(&line)
}

#[test]
fn vsock_records() -> Result<()> {
    let Some(bed) = Bed::start_with("vsock records", &["python3", "cc"], &["--vsock"])? else {
        return Ok(());
    };
    let [server_cid, client_cid] = [cid(&bed, SERVER)?, cid(&bed, CLIENT)?];
    let (script, port) = (script("vsock.py"), RECORDS_PORT.to_string());
    let words = [PYTHON, &script, "records", &port];
    let python = bed.serve(SERVER, RECORDS_PORT, Spawn::new(words))?;
    let program = compiled(&bed)?;
    let (c_port, count) = (C_PORT.to_string(), C_RECORDS.to_string());
    let in_c = bed.serve(SERVER, C_PORT, Spawn::new([&program, "serve", &c_port]))?;

    let watch = bed.watch()?;
    let cases = [
        PYTHON,
        &script,
        "record-cases",
        &server_cid,
        &client_cid,
        &port,
    ];
    all_are_good(&bed, &cases, RECORD_CASES_MIN)?;
    let asks = Spawn::new([&program, "ask", &server_cid, &c_port, &count]);
    let asked = bed.run_fed(asks, Vec::new(), || {
        watch.until_rings(&bed, [SERVER, CLIENT], C_PORT)
    })?;
    let bytes: u64 = asked.text().trim().parse()?;
    let carried = watch.end(&bed)?;
    carried.rings_at_both_ends([SERVER, CLIENT], RECORDS_PORT, RECORDS_BYTES)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], C_PORT, bytes)?;

    // Dropped by who sends it, of which only the switch port is named: a live connection ends, a new one waits in vain.
    let live = Spawn::new([PYTHON, "-c", LIVE, &server_cid, &port]);
    let live = bed.spawn(CLIENT, live)?;
    until_it_says(&live, "rings\n")?;
    let ip = bed
        .lab()
        .domains()?
        .into_iter()
        .find(|domain| domain.name == CLIENT);
    let ip = ip.and_then(|domain| domain.ip).context("no address")?;
    let from = format!("p-{:08x}", ip.to_bits());
    let rule =
        format!("iifname \"{from}\" ip6 daddr ${SERVER}_vsock tcp dport {RECORDS_PORT} drop");
    let hook = "type filter hook forward priority 0";
    load(
        &bed,
        &format!("table bridge t {{\nchain c {{\n{hook}\n{rule}\n}}\n}}\n"),
    )?;
    let said = bed.end_of(live, CLIENT_LIMIT, "live")?.text();
    ensure!(said == "rings\nover\n", "{said}");
    for server in [python, in_c] {
        bed.stop(server)?;
    }
    bed.finish(&line)
}

/// Runs cases that say "ok NAME" each, in connections that are offered as they come of age, and at the first call.
fn all_are_good(bed: &Bed, words: &[&str], least: usize) -> Result<()> {
    for offer_after in [None, Some("0")] {
        let mut spawn = Spawn::new(words.iter().copied());
        if let Some(calls) = offer_after {
            spawn = spawn.env("FORDWAY_OFFER_AFTER", calls);
        }
        let text = bed.run(spawn)?.text();
        let (good, bad): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("ok "));
        ensure!(bad.is_empty(), "{offer_after:?}: {}", bad.join("\n"));
        ensure!(good.len() >= least, "{} cases", good.len());
    }
    Ok(())
}

/// Waits for what a program says first.
fn until_it_says(program: &Program, text: &str) -> Result<()> {
    let end = Instant::now() + CLIENT_LIMIT;
    while program.stdout_so_far() != text {
        ensure!(Instant::now() < end, "it does not say {text:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn compiled(bed: &Bed) -> Result<String> {
    let target: PathBuf = bed.dir().join("records");
    let made = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&target)
        .arg(script("records.c"))
        .status()?;
    ensure!(made.success(), "records.c");
    Ok(target.to_string_lossy().into_owned())
}

/// Sends records over rings until the connection ends.
const LIVE: &str = "
import os, socket, sys
s = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)
s.connect((int(sys.argv[1]), int(sys.argv[2])))
for _ in range(20):
    s.send(b'x' * 100)
    assert s.recv(200) == b'x' * 100
print('rings', flush=True)
try:
    while s.recv(200) if s.send(b'y') else b'':
        pass
except ConnectionError:
    pass
print('over', flush=True)
";

/// Says how a connection to CID and port went.
const CONNECT: &str = "
import errno, socket, sys
try:
    socket.socket(socket.AF_VSOCK).connect((int(sys.argv[1]), int(sys.argv[2])))
    print('connected')
except OSError as error:
    print(errno.errorcode[error.errno])
";

fn cid(bed: &Bed, name: &str) -> Result<String> {
    let domains = bed.lab().domains()?;
    let domain = domains.iter().find(|domain| domain.name == name);
    let cid = domain.and_then(|domain| domain.cid);
    Ok(cid.context("a domain without a CID")?.to_string())
}

fn load(bed: &Bed, rules: &str) -> Result<()> {
    let mut command = bed.lab().command("filter");
    let mut loader = command
        .args(["load", "/dev/stdin"])
        .stdin(Stdio::piped())
        .spawn()?;
    loader
        .stdin
        .take()
        .context("no input")?
        .write_all(rules.as_bytes())?;
    ensure!(loader.wait()?.success(), "{rules}");
    Ok(())
}
