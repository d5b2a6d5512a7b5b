//! Messages by UDP from logger to rsyslog, which receives many in one call (recvmmsg(2)). A message may be lost if
//! rsyslog is slower than its buffer; none may come twice, changed, or in another order.

use super::datagrams::RINGS;
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, path_of};
use std::fs;
use std::time::Duration;

const PORT: u16 = 5514;
const MESSAGES: usize = 100_000;
const FILLING: &str = "the quick brown fox jumps over the lazy dog";
/// So many must come, however busy the machine is.
const COME_MIN: usize = 1000;
/// The last message is sent until it has come.
const LAST: &str = "last";
const LAST_TRIES: usize = 20;
const LAST_LIMIT: Duration = Duration::from_millis(500);
/// Of a tenth of the messages.
const BYTES: u64 = (MESSAGES / 10 * FILLING.len()) as u64;

#[test]
fn syslog() -> Result<()> {
    let Some(bed) = Bed::start("syslog", &["rsyslogd", "logger"])? else {
        return Ok(());
    };
    let dir = bed.dir();
    let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let [config, got] = ["rsyslog.conf", "got"].map(file);
    let rules = format!(
        "module(load=\"imudp\")
template(name=\"message\" type=\"string\" string=\"%msg%\\n\")
ruleset(name=\"store\") {{ action(type=\"omfile\" file=\"{got}\" template=\"message\") }}
input(type=\"imudp\" port=\"{PORT}\" rcvbufSize=\"4m\" ruleset=\"store\")
"
    );
    fs::write(&config, rules)?;
    let lines: Vec<String> = (0..MESSAGES)
        .map(|number| format!("{number:06} {FILLING}"))
        .collect();
    let argv = [&path_of("rsyslogd")?, "-n", "-f", &config, "-i", "NONE"];
    let server = bed.serve_datagrams(SERVER, PORT, RINGS.of(Spawn::new(argv)))?;
    let watch = bed.watch()?;
    let logger = format!(
        "{} --udp --server {SERVER} --port {PORT}",
        path_of("logger")?
    );
    let log = RINGS.of(Spawn::line(&logger));
    let messages = lines.join("\n") + "\n";
    bed.run_fed(log, messages.into_bytes(), || {
        watch.until_datagrams(&bed, [SERVER, CLIENT], PORT, BYTES)
    })?;
    let carried = watch.end(&bed)?;

    let stored = || fs::read_to_string(&got).unwrap_or_default();
    let has_last = || stored().lines().any(|line| line.trim() == LAST);
    for _ in 0..LAST_TRIES {
        bed.run(RINGS.of(Spawn::line(&format!("{logger} {LAST}"))))?;
        if server
            .wait_until(LAST_LIMIT, "stores the last message", has_last)
            .is_ok()
        {
            break;
        }
    }
    ensure!(has_last(), "the last message does not come");
    let stored = stored();
    let come: Vec<&str> = stored
        .lines()
        .map(str::trim)
        .filter(|line| *line != LAST)
        .collect();
    let mut rest = lines.iter();
    for line in &come {
        // Each is one of those behind the one before it.
        rest.find(|sent| sent == line)
            .with_context(|| format!("{line:?} comes changed, twice or late"))?;
    }
    ensure!(come.len() >= COME_MIN, "{} messages came", come.len());
    let mut report = format!("{} of {MESSAGES} messages", come.len());
    report += "; ";
    report += &carried.datagrams_at_both_ends([SERVER, CLIENT], PORT, BYTES)?;
    bed.stop(server)?;
    bed.finish(&report)
}
