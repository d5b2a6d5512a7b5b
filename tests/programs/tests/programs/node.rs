//! node's http server and client, with kept connections; every body hashed or compared.

use anyhow::{Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, path_of, script};

const PORT: u16 = 7001;
/// What the client's requests and answers have, at the least.
const BYTES: u64 = 150_000_000;

#[test]
fn node() -> Result<()> {
    let Some(bed) = Bed::start("node", &["node"])? else {
        return Ok(());
    };
    let node = path_of("node")?;
    let (server, client, port) = (
        script("http_server.js"),
        script("http_client.js"),
        PORT.to_string(),
    );
    let server = bed.serve(SERVER, PORT, Spawn::new([&node, &server, &port]))?;
    let watch = bed.watch()?;
    let output = bed.run(Spawn::new([&node, &client, SERVER, &port]))?;
    ensure!(output.text() == "ok\n", "{}", output.text());
    let carried = watch.end(&bed)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, BYTES)?;
    ensure!(server.is_running(), "{}", server.stderr_so_far());
    bed.stop(server)?;
    bed.finish(&line)
}
