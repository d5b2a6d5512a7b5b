//! The JDK's HTTP server and HTTP client, started from their sources.

use anyhow::{Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, path_of, script};

const PORT: u16 = 7101;
/// What the client's requests and answers have, at the least.
const BYTES: u64 = 80_000_000;

#[test]
fn java() -> Result<()> {
    let Some(bed) = Bed::start("java", &["java", "javac"])? else {
        return Ok(());
    };
    let java = path_of("java")?;
    let port = PORT.to_string();
    let serve = script("HttpServe.java");
    // Without it the server leaves Nagle's algorithm on, and each answer waits 40 ms
    // for the client's delayed acknowledgement, as long as the kernel carries it.
    let argv = [&java, "-Dsun.net.httpserver.nodelay=true", &serve, &port];
    let server = bed.serve(SERVER, PORT, Spawn::new(argv))?;
    let watch = bed.watch()?;
    let ask = script("HttpAsk.java");
    let output = bed.run(Spawn::new([&java, &ask, SERVER, &port]))?;
    ensure!(output.text() == "ok\n", "{}", output.text());
    let carried = watch.end(&bed)?;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, BYTES)?;
    bed.stop(server)?;
    bed.finish(&line)
}
