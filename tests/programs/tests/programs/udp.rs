//! UDP between domains: cases of our own beside udp(7). Played by the kernel alone, with datagrams by
//! rings, and with rings from the first datagram on.

use super::datagrams::WAYS;
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, script};
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
const PORT: u16 = 7000;
/// Of the case whose bytes are looked for.
const ECHO_PORT: u16 = 7001;
/// Half of what each end of that case sends and gets: the first datagrams go by the kernel, and what goes behind
/// the last look is not seen.
const ECHO_BYTES: u64 = 14_000_000;
const CASES_MIN: usize = 49;
const CASES_LIMIT: Duration = Duration::from_secs(300);

#[test]
fn udp() -> Result<()> {
    let Some(bed) = Bed::start("udp", &["python3"])? else {
        return Ok(());
    };
    let domains = bed.lab().domains()?;
    let server = domains.iter().find(|domain| domain.name == SERVER);
    let server = server.context("a domain")?;
    let ip = server.ip.context("an address")?.to_string();
    let ip6 = server.ip6.context("an IPv6 address")?.to_string();
    let (script, port) = (script("udp.py"), PORT.to_string());
    let mut lines = Vec::new();
    for way in WAYS {
        let serve = way.of(Spawn::new([PYTHON, &script, "serve", &port]));
        let serving = bed.serve(SERVER, PORT, serve)?;
        let watch = bed.watch()?;
        let echo_port = ECHO_PORT.to_string();
        let cases = [PYTHON, &script, "cases", &ip, &ip6, &port, &echo_port];
        let client = bed.spawn(CLIENT, way.of(Spawn::new(cases)))?;
        let output = bed.end_of(client, CASES_LIMIT, "udp.py")?.ok()?;
        let text = output.text();
        let (good, bad): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("ok "));
        let errors = output.errors();
        ensure!(bad.is_empty(), "{way:?}: {}\n{errors}", bad.join("\n"));
        ensure!(good.len() >= CASES_MIN, "{way:?}: {} cases", good.len());
        let carried = watch.end(&bed)?;
        lines.push(format!("{} cases in {:.0} s", good.len(), output.wall_s));
        if way.by_rings {
            lines.push(carried.datagrams_at_both_ends([SERVER, CLIENT], ECHO_PORT, ECHO_BYTES)?);
        }
        bed.stop(serving)?;
    }
    bed.finish(&lines.join("; "))
}
