//! Programs that are linked to musl, as server, as client, and with one of glibc's at the far end.
//!
//! The small ones are built here. redis, nginx and memcached are built of Debian's sources, which takes
//! a minute or two once: those tests are the long form (`./x test --all`).

use crate::{memcached, nginx, redis};
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, fetched, path_of, script};
use std::path::Path;
use std::process::Command;

const PORT: u16 = 4411;
/// Messages of one client.
const ROUNDS: u32 = 4000;

/// The small program, built by this compiler.
fn small(bed: &Bed, compiler: &str) -> Result<String> {
    let program = bed.dir().join(format!("small-{compiler}"));
    let built = Command::new(path_of(compiler)?)
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(script("small.c"))
        .status()?;
    ensure!(built.success(), "{compiler}: {built}");
    Ok(program.to_string_lossy().into_owned())
}

#[test]
fn small_programs_of_either_libc() -> Result<()> {
    let Some(bed) = Bed::start("musl and glibc", &["cc", "musl-gcc"])? else {
        return Ok(());
    };
    let [glibc, musl] = [small(&bed, "cc")?, small(&bed, "musl-gcc")?];
    let pairs = [(&musl, &musl), (&musl, &glibc), (&glibc, &musl)];
    let mut lines = Vec::new();
    for (port, (server, client)) in (PORT..).zip(pairs) {
        let number = port.to_string();
        let serving = bed.serve(SERVER, port, Spawn::new([server, "serve", &number]))?;
        let watch = bed.watch()?;
        let rounds = ROUNDS.to_string();
        let output = bed.run(Spawn::new([client, "ask", SERVER, &number, &rounds]))?;
        ensure!(output.errors().is_empty(), "{}", output.errors());
        let text = output.text();
        let bytes = text.strip_suffix(" bytes\n").context("no count")?;
        // Of what goes there and back, half: a busy machine pairs late.
        let bytes = bytes.parse::<u64>()?;
        let carried = watch.end(&bed)?;
        lines.push(carried.rings_at_both_ends([SERVER, CLIENT], port, bytes)?);
        bed.stop(serving)?.ok()?;
    }
    bed.finish(&lines.join("; "))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
#[ignore = "builds redis"]
fn redis_of_musl() -> Result<()> {
    let Some(source) = fetched("redis-musl")? else {
        return Ok(());
    };
    let of = |name: &str| text(&source.join("src").join(name));
    let musl = redis::Programs {
        server: of("redis-server"),
        benchmark: of("redis-benchmark"),
        cli: of("redis-cli"),
    };
    redis::play("redis (musl)", &musl)?;
    let glibc = redis::Programs::installed();
    let server = redis::Programs {
        server: musl.server.clone(),
        ..glibc.clone()
    };
    redis::play("redis (server musl, clients glibc)", &server)?;
    let clients = redis::Programs {
        server: glibc.server,
        ..musl
    };
    redis::play("redis (server glibc, clients musl)", &clients)
}

#[test]
#[ignore = "builds nginx"]
fn nginx_of_musl() -> Result<()> {
    let Some(source) = fetched("nginx-musl")? else {
        return Ok(());
    };
    let program = text(&source.join("objs/nginx"));
    nginx::play("nginx (musl, sendfile on)", &program, true, 8011)?;
    nginx::play("nginx (musl, sendfile off)", &program, false, 8012)
}

#[test]
#[ignore = "builds memcached"]
fn memcached_of_musl() -> Result<()> {
    let Some(source) = fetched("memcached-musl")? else {
        return Ok(());
    };
    memcached::play("memcached (musl)", &text(&source.join("memcached")))
}
