//! AF_VSOCK between domains: cases of our own beside vsock(7), socat, and a rule that keeps one away.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, Stdin, Stdout, files, path_of, script};
use std::io::Write;
use std::process::Stdio;

const PYTHON: &str = "/usr/bin/python3";
const CASES_PORT: u16 = 5000;
const CASES_MIN: usize = 30;
/// What one of the cases sends, and gets back.
const CASES_BYTES: u64 = 10_000_000;
const SOCAT_PORT: u16 = 5010;
const FILE_BYTES: u64 = 20_000_000;

#[test]
fn vsock() -> Result<()> {
    let Some(bed) = Bed::start_with("vsock", &["python3", "socat"], &["--vsock"])? else {
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
        Spawn::new([&socat, &listen, "EXEC:cat"]),
    )?;

    let watch = bed.watch()?;
    let cases = [PYTHON, &script, "cases", &server_cid, &client_cid, &port];
    // Offered as they come of age, and at the first call.
    for offer_after in [None, Some("0")] {
        let mut spawn = Spawn::new(cases);
        if let Some(calls) = offer_after {
            spawn = spawn.env("FORDWAY_OFFER_AFTER", calls);
        }
        let text = bed.run(spawn)?.text();
        let (good, bad): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("ok "));
        ensure!(bad.is_empty(), "{offer_after:?}: {}", bad.join("\n"));
        ensure!(good.len() >= CASES_MIN, "{} cases", good.len());
    }
    let (file, got) = (bed.dir().join("file"), bed.dir().join("got"));
    files::random(&file, FILE_BYTES)?;
    let connect = format!("VSOCK-CONNECT:{server_cid}:{SOCAT_PORT}");
    let client = Spawn::new([&socat, "-t30", "-", &connect])
        .stdin(Stdin::File(file.clone()))
        .stdout(Stdout::File(got.clone()));
    bed.run(client).context("socat")?;
    files::same(&got, &file)?;

    let carried = watch.end(&bed)?;
    carried.rings_at_both_ends([SERVER, CLIENT], CASES_PORT, CASES_BYTES)?;
    let bytes = FILE_BYTES * 2 * 3 / 4;
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
