//! Python's three ways to use sockets, each as server and as client of each.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, script};

/// Debian's own; the name alone may be a launcher of versions.
const PYTHON: &str = "/usr/bin/python3";
const WAYS: [(&str, u16); 3] = [("threads", 6101), ("selectors", 6102), ("asyncio", 6103)];
/// What one client sends, and gets back again, at the least.
const CLIENT_BYTES: u64 = 15_000_000;

#[test]
fn python() -> Result<()> {
    let Some(bed) = Bed::start("python", &["python3"])? else {
        return Ok(());
    };
    let (server_script, client_script) = (script("echo_server.py"), script("echo_client.py"));
    let mut servers = Vec::new();
    for (way, port) in WAYS {
        let argv = [PYTHON, &server_script, way, &port.to_string()];
        servers.push(bed.serve(SERVER, port, Spawn::new(argv))?);
    }
    let watch = bed.watch()?;
    for (_, port) in WAYS {
        for (way, _) in WAYS {
            let argv = [PYTHON, &client_script, way, SERVER, &port.to_string()];
            let output = bed
                .run(Spawn::new(argv))
                .with_context(|| format!("client with {way}, server's port {port}"))?;
            ensure!(output.text() == "ok\n", "{}", output.text());
        }
    }
    let carried = watch.end(&bed)?;
    // Half of it: the first calls, which the kernel carries, may be large ones.
    let bytes = CLIENT_BYTES * WAYS.len().pow(2) as u64;
    let mut line = String::new();
    for (_, port) in WAYS {
        line = carried.rings_at_both_ends([SERVER, CLIENT], port, bytes)?;
    }
    for server in servers {
        bed.stop(server)?;
    }
    bed.finish(&format!("9 pairs; {line}"))
}
