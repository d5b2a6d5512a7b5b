//! QUIC: aioquic, whose sockets ask for nothing beside datagrams, and the server and client among quinn's examples,
//! whose sockets ask for all that UDP of Linux has. What is lost, they send again; what comes is compared.
//!
//! quinn's examples are built by themselves: the workspace does without the seventy crates that they need.

use super::datagrams::{Path, WAYS, Way};
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, SERVER, Spawn, Stdout, fetched, script};
use std::fs;

const AIOQUIC_PORT: u16 = 4433;
/// Of 4 MB there and 4 MB back: beside other busy programs an end may not read for so long that a direction goes back
/// to the kernel.
const AIOQUIC_PATH: Path = Path::Rings(500_000);
const QUINN_PORT: u16 = 4434;
/// Of a file of 7 MB, which is on its way for half a second. Its sockets ask for IP_PKTINFO, IP_RECVTOS and UDP_GRO; what
/// they send has IP_TOS, IP_PKTINFO and UDP_SEGMENT.
const QUINN_PATH: Path = Path::Rings(1_000_000);
/// Of the file that is fetched, each with its number.
const QUINN_LINES: u32 = 1_000_000;

#[test]
fn aioquic() -> Result<()> {
    let Some(bed) = Bed::start("aioquic", &["python3"])? else {
        return Ok(());
    };
    let Some(modules) = fetched("aioquic")? else {
        return Ok(());
    };
    let (script, port) = (script("quic.py"), AIOQUIC_PORT.to_string());
    let (modules, dir) = (modules.to_string_lossy(), bed.dir());
    let dir = dir.to_string_lossy();
    let python = |way: Way, arguments: [&str; 3]| {
        let argv = ["/usr/bin/python3", &script].into_iter().chain(arguments);
        way.of(Spawn::new(argv).env("PYTHONPATH", &modules))
    };
    let mut lines = Vec::new();
    for way in WAYS {
        let serve = python(way, ["serve", &port, &dir]);
        let server = bed.serve_datagrams(SERVER, AIOQUIC_PORT, serve)?;
        let at = format!("{SERVER}:{port}");
        let line = AIOQUIC_PATH.play(&bed, way, AIOQUIC_PORT, || {
            let output = bed.run(python(way, ["ask", &at, &dir]))?;
            ensure!(output.text() == "ok\n", "{}", output.text());
            Ok(())
        });
        lines.push(line.with_context(|| format!("{way:?}"))?);
        bed.stop(server)?;
    }
    bed.finish(&lines.join("; "))
}

#[test]
fn quinn() -> Result<()> {
    let Some(bed) = Bed::start("quinn", &[])? else {
        return Ok(());
    };
    let Some(programs) = fetched("quinn")? else {
        return Ok(());
    };
    let dir = bed.dir();
    let text = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let [files, data, got] = ["files", "data", "got"].map(text);
    fs::create_dir(&files)?;
    let content: String = (0..QUINN_LINES)
        .map(|number| format!("{number}\n"))
        .collect();
    fs::write(format!("{files}/numbers"), &content)?;
    // The server keeps a certificate of its own there, and the client looks for it.
    let spawn = |way: Way, program: &str, arguments: &str| {
        let program = programs.join("bin").join(program);
        let line = format!("{} {arguments}", program.display());
        way.of(Spawn::line(&line).env("XDG_DATA_HOME", &data))
    };
    let mut lines = Vec::new();
    for way in WAYS {
        let serve = spawn(
            way,
            "server",
            &format!("--listen 0.0.0.0:{QUINN_PORT} {files}"),
        );
        let server = bed.serve_datagrams(SERVER, QUINN_PORT, serve)?;
        let ask =
            format!("--bind 0.0.0.0:0 --host localhost https://{SERVER}:{QUINN_PORT}/numbers");
        let ask = spawn(way, "client", &ask).stdout(Stdout::File(got.clone().into()));
        let line = QUINN_PATH.play(&bed, way, QUINN_PORT, || {
            let output = bed.run(ask.clone())?;
            let same = fs::read_to_string(&got)? == content;
            ensure!(same, "another file: {}", output.errors());
            Ok(())
        });
        lines.push(line.with_context(|| format!("{way:?}"))?);
        bed.stop(server)?;
    }
    bed.finish(&lines.join("; "))
}
