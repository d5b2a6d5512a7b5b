//! memcached with a client of our own (values compared) and memcslap; by UDP with a client of our own.

use super::datagrams::RINGS;
use anyhow::{Result, ensure};
use fordway_lab::Stdin;
use fordway_test_programs::{Bed, CLIENT, CLIENT_LIMIT, SERVER, Spawn, path_of, script};

const PORT: u16 = 11211;
/// About what the client of our own stores, and reads back again: half of both is expected
/// to go through rings, the rest may pass before its connections are upgraded.
const CLIENT_BYTES: u64 = 27_000_000;
/// Of the test by UDP.
const DATAGRAM_PORT: u16 = 11212;
/// Half of what its client's threads and the server exchange: what goes behind the last look is not seen.
const DATAGRAM_BYTES: u64 = 45_000_000;
/// A wake-up that is lost shows as a stall until memcached's clock ticks, once a second.
const MEMCSLAP_S_MAX: f64 = 8.0;

#[test]
fn memcached() -> Result<()> {
    play("memcached", "memcached")
}

/// Everything, with this server.
pub fn play(name: &'static str, program: &str) -> Result<()> {
    let Some(bed) = Bed::start(name, &[program, "memcslap", "python3"])? else {
        return Ok(());
    };
    let program = path_of(program)?;
    let server = bed.serve(
        SERVER,
        PORT,
        Spawn::line(&format!(
            "{program} -u root -l 0.0.0.0 -p {PORT} -t 4 -m 256"
        )),
    )?;
    let watch = bed.watch()?;
    let client = script("memcached_client.py");
    let output = bed.run(Spawn::new([
        "/usr/bin/python3",
        &client,
        SERVER,
        &PORT.to_string(),
    ]))?;
    ensure!(output.text() == "ok\n", "{}", output.text());
    let memcslap = path_of("memcslap")?;
    for test in ["set", "get", "mget"] {
        let output = bed.run(Spawn::line(&format!(
            "{memcslap} --servers={SERVER}:{PORT} --test={test} --concurrency=4 --execute-number=1000"
        )))?;
        ensure!(
            output.text().contains("Time total"),
            "memcslap --test={test}: {}{}",
            output.text(),
            output.errors()
        );
        ensure!(
            output.wall_s < MEMCSLAP_S_MAX,
            "memcslap --test={test} took {:.1} s",
            output.wall_s
        );
    }
    let carried = watch.end(&bed)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, CLIENT_BYTES)?;
    bed.stop(server)?;
    bed.finish(&line)
}

/// All threads of the server receive from one socket.
#[test]
fn memcached_by_datagrams() -> Result<()> {
    let Some(bed) = Bed::start("memcached by UDP", &["memcached", "python3"])? else {
        return Ok(());
    };
    let program = path_of("memcached")?;
    let serve =
        format!("{program} -u root -l 0.0.0.0 -p {DATAGRAM_PORT} -U {DATAGRAM_PORT} -t 4 -m 256");
    let server = bed.serve_datagrams(SERVER, DATAGRAM_PORT, RINGS.of(Spawn::line(&serve)))?;
    let watch = bed.watch()?;
    let (script, port) = (script("memcached_datagrams.py"), DATAGRAM_PORT.to_string());
    let client = Spawn::new(["/usr/bin/python3", &script, SERVER, &port]);
    let output = bed.run(RINGS.of(client))?;
    ensure!(output.text() == "ok\n", "{}", output.text());
    let carried = watch.end(&bed)?;
    let line = carried.datagrams_at_both_ends([SERVER, CLIENT], DATAGRAM_PORT, DATAGRAM_BYTES)?;
    bed.stop(server)?;
    bed.finish(&line)
}

/// So many event loops that the doorbells of one peer are more than its part of the descriptors: memcached's own
/// limit of connections has left it a table of 1,024. Its connections stay on the kernel path, and say why.
#[test]
fn memcached_of_more_loops_than_descriptors() -> Result<()> {
    const LOOPS: usize = 16;
    const CONNECTIONS: usize = 48;
    let Some(bed) = Bed::start("memcached of many loops", &["memcached", "python3"])? else {
        return Ok(());
    };
    let program = path_of("memcached")?;
    let serve = format!("{program} -u root -l 0.0.0.0 -p {PORT} -t {LOOPS} -c 1024 -m 64");
    let server = bed.serve(SERVER, PORT, Spawn::line(&serve))?;
    let talk = format!(
        "import select, socket, sys
ends = [socket.create_connection(('{SERVER}', {PORT})) for _ in range({CONNECTIONS})]
# A pair that comes late has its bytes too.
while not select.select([sys.stdin], [], [], 0)[0]:
    for end in ends:
        end.sendall(b'version\\r\\n')
        assert end.recv(100).startswith(b'VERSION')"
    );
    let client = Spawn::new(["/usr/bin/python3", "-c", &talk]).stdin(Stdin::Pipe);
    let mut client = bed.spawn(CLIENT, client)?;
    let at = format!(":{PORT}");
    let what = "each connection is on the path that its row says";
    bed.lab().wait_until(CLIENT_LIMIT, what, || {
        let rows = bed.lab().connections()?;
        let of = |row: &&_| {
            let row: &fordwayd::admin::Connection = row;
            row.local.ends_with(&at) || row.remote.ends_with(&at)
        };
        let rows: Vec<_> = rows.iter().filter(of).collect();
        let moved = |row: &fordwayd::admin::Connection| row.ring_bytes_tx + row.ring_bytes_rx;
        let is_true = rows
            .iter()
            .all(|row| row.path == "kernel" || moved(row) > 0);
        let short = rows
            .iter()
            .filter(|row| row.reason.as_deref() == Some("no-memory"));
        Ok(is_true && rows.len() == 2 * CONNECTIONS && short.count() > CONNECTIONS)
    })?;
    drop(client.take_stdin());
    client.finish()?.ok()?;
    bed.stop(server)?;
    bed.finish("by the kernel, for want of descriptors")
}
