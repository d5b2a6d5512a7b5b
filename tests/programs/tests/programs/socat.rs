//! socat: an echo server that forks, and the transfer of a file.
//!
//! The echo goes through a socket pair, not through pipes (`PIPE`, `EXEC:...,pipes`):
//! with pipes socat deadlocks against itself, over the kernel too, because it writes
//! more at once than a pipe that select(2) calls writable may have room for.

use anyhow::{Context, Result};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, Stdin, Stdout, files, path_of};
use std::fs;

/// The echo goes through a second program.
const ECHO_PORT: u16 = 5001;
/// What arrives goes to a file.
const FILE_PORT: u16 = 5003;
const FILE_BYTES: u64 = 40_000_000;
/// How often the file is echoed.
const ECHOES: u64 = 5;

#[test]
fn socat() -> Result<()> {
    let Some(bed) = Bed::start("socat", &["socat"])? else {
        return Ok(());
    };
    let socat = path_of("socat")?;
    let (file, got) = (bed.dir().join("file"), bed.dir().join("got"));
    files::random(&file, FILE_BYTES)?;
    let listen = format!("TCP-LISTEN:{ECHO_PORT},fork,reuseaddr");
    // -t: how long the answer's end may take after the question's, here and below.
    let serve = Spawn::new([&socat, "-t30", &listen, "EXEC:cat"]);
    let server = bed.serve(SERVER, ECHO_PORT, serve)?;
    let stored = bed.dir().join("stored");
    let store = format!("OPEN:{},creat,trunc", stored.display());
    let listen = format!("TCP-LISTEN:{FILE_PORT}");
    let receiver = bed.serve(
        SERVER,
        FILE_PORT,
        Spawn::new([&socat, "-u", &listen, &store]),
    )?;

    let watch = bed.watch()?;
    for _ in 0..ECHOES {
        let argv = [&socat, "-t30", "-", &format!("TCP:{SERVER}:{ECHO_PORT}")];
        let spawn = Spawn::new(argv)
            .stdin(Stdin::File(file.clone()))
            .stdout(Stdout::File(got.clone()));
        bed.run(spawn).context("echo")?;
        files::same(&got, &file)?;
    }
    let argv = [&socat, "-u", "-", &format!("TCP:{SERVER}:{FILE_PORT}")];
    bed.run_fed(Spawn::new(argv), fs::read(&file)?, || {
        watch.until_rings(&bed, [SERVER, CLIENT], FILE_PORT)
    })?;
    // It ends by itself with the connection.
    bed.end_of(receiver, fordway_test_programs::STOP_LIMIT, "socat -u")?
        .ok()?;
    files::same(&stored, &file)?;

    let carried = watch.end(&bed)?;
    carried.rings_at_both_ends([SERVER, CLIENT], FILE_PORT, FILE_BYTES)?;
    let bytes = FILE_BYTES * (2 * ECHOES + 1) * 3 / 4;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], ECHO_PORT, bytes)?;
    bed.stop(server)?;
    bed.finish(&line)
}
