//! socat: an echo server that forks, in two forms, and the transfer of a file.

use anyhow::{Context, Result};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, Stdin, Stdout, files, path_of};

/// The echo goes through a second program, by a socket pair.
const PAIR_PORT: u16 = 5001;
/// As before, by two pipes. (The address PIPE would deadlock, over the kernel too.)
const PIPES_PORT: u16 = 5002;
/// What arrives goes to a file.
const FILE_PORT: u16 = 5003;
const FILE_BYTES: u64 = 40_000_000;

#[test]
fn socat() -> Result<()> {
    let Some(bed) = Bed::start("socat", &["socat"])? else {
        return Ok(());
    };
    let socat = path_of("socat")?;
    let (file, got) = (bed.dir().join("file"), bed.dir().join("got"));
    files::random(&file, FILE_BYTES)?;
    let serve = |port: u16, target: &str| {
        let listen = format!("TCP-LISTEN:{port},fork,reuseaddr");
        bed.serve(SERVER, port, Spawn::new([&socat, &listen, target]))
    };
    let servers = [
        serve(PAIR_PORT, "EXEC:cat")?,
        serve(PIPES_PORT, "EXEC:cat,pipes")?,
    ];
    let stored = bed.dir().join("stored");
    let store = format!("OPEN:{},creat,trunc", stored.display());
    let listen = format!("TCP-LISTEN:{FILE_PORT}");
    let receiver = bed.serve(
        SERVER,
        FILE_PORT,
        Spawn::new([&socat, "-u", &listen, &store]),
    )?;

    let watch = bed.watch()?;
    for port in [PAIR_PORT, PIPES_PORT] {
        for _ in 0..3 {
            // -t: how long the answer's end may take after the question's.
            let argv = [&socat, "-t30", "-", &format!("TCP:{SERVER}:{port}")];
            let spawn = Spawn::new(argv)
                .stdin(Stdin::File(file.clone()))
                .stdout(Stdout::File(got.clone()));
            bed.run(spawn)
                .with_context(|| format!("echo on port {port}"))?;
            files::same(&got, &file)?;
        }
    }
    let from = format!("OPEN:{},rdonly", file.display());
    let argv = [&socat, "-u", &from, &format!("TCP:{SERVER}:{FILE_PORT}")];
    bed.run(Spawn::new(argv))?;
    // It ends by itself with the connection.
    bed.end_of(receiver, fordway_test_programs::STOP_LIMIT, "socat -u")?
        .ok()?;
    files::same(&stored, &file)?;

    let carried = watch.end(&bed)?;
    for port in [PIPES_PORT, FILE_PORT] {
        carried.rings_at_both_ends([SERVER, CLIENT], port, FILE_BYTES)?;
    }
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PAIR_PORT, FILE_BYTES * 12)?;
    for server in servers {
        bed.stop(server)?;
    }
    bed.finish(&line)
}
