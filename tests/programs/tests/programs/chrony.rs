//! chrony, server and client of NTP. The client says what it thinks of the server and of the time; neither end sets
//! the machine's clock (-x).

use super::datagrams::{Path, WAYS, Way};
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, CLIENT_LIMIT, SERVER, Spawn, path_of};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;

const PORT: u16 = 1123;
/// Of the client, for all of its questions; by default each has a socket of its own.
const CLIENT_PORT: u16 = 1124;
/// Its sockets ask for SO_TIMESTAMPING: when a datagram came, and went, only the kernel knows.
const PATH: Path = Path::Kernel;
/// Answers that are waited for, 64 of which come in a second.
const ANSWERS: u64 = 200;
/// Both ends have one clock.
const OFFSET_S_MAX: f64 = 0.1;
/// The server's own, and one more.
const STRATUM: &str = "8";
const STRATUM_OF_CLIENT: &str = "9";

#[test]
fn chrony() -> Result<()> {
    let Some(bed) = Bed::start("chrony", &["chronyd", "chronyc"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for way in WAYS {
        lines.push(play(&bed, way).with_context(|| format!("{way:?}"))?);
    }
    bed.finish(&lines.join("; "))
}

fn play(bed: &Bed, way: Way) -> Result<String> {
    // chronyd refuses a directory that others may enter.
    let dir = bed.dir().join("chrony");
    let _ = fs::remove_dir_all(&dir);
    DirBuilder::new().mode(0o700).create(&dir)?;
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let chronyd = |name: &str, config: String| -> Result<Spawn> {
        let file = at(&format!("{name}.conf"));
        let files = [at(&format!("{name}.pid")), at(&format!("{name}.socket"))];
        let [pid, socket] = &files;
        let more = format!("pidfile {pid}\nbindcmdaddress {socket}\ncmdport 0\n");
        fs::write(&file, config + &more)?;
        let argv = [&path_of("chronyd")?, "-x", "-d", "-u", "root", "-f", &file];
        Ok(way.of(Spawn::new(argv)))
    };
    let serve = format!("local stratum {STRATUM}\nallow\nport {PORT}\n");
    let server = bed.serve_datagrams(SERVER, PORT, chronyd("server", serve)?)?;
    let watch = bed.watch()?;
    let ask = format!(
        "server {SERVER} port {PORT} iburst minpoll -6 maxpoll -6\nport 0\nacquisitionport {CLIENT_PORT}\n"
    );
    let client = bed.spawn(CLIENT, chronyd("client", ask)?)?;
    // What chronyc says, separated by commas.
    let said = |socket: &str, what: &str| -> Result<Vec<String>> {
        let argv = [&path_of("chronyc")?, "-n", "-c", "-h", &at(socket), what];
        let text = bed.run(way.of(Spawn::new(argv)))?.text();
        Ok(text.trim().split(',').map(str::to_owned).collect())
    };
    client.wait_for_output("Selected source")?;
    let valid_answers = || {
        let data = said("client.socket", "ntpdata").ok()?;
        data.last()?.parse::<u64>().ok()
    };
    client.wait_until(CLIENT_LIMIT, "has its answers", || {
        valid_answers().is_some_and(|answers| answers >= ANSWERS)
    })?;
    // Not at any time: an answer that was long on its way takes a selection back, until the next ones.
    let offset = || {
        let sources = said("client.socket", "sources").ok()?;
        let tracking = said("client.socket", "tracking").ok()?;
        let offset_s: f64 = tracking.get(4)?.parse().ok()?;
        let selected = sources.starts_with(&["^".to_owned(), "*".to_owned()])
            && sources.get(3)? == STRATUM
            && tracking[2] == STRATUM_OF_CLIENT;
        (selected && offset_s.abs() < OFFSET_S_MAX).then_some(offset_s)
    };
    let mut offset_s = None;
    client.wait_until(CLIENT_LIMIT, "has selected the server", || {
        offset_s = offset();
        offset_s.is_some()
    })?;
    let offset_s = offset_s.context("an offset")?;
    let data = said("client.socket", "ntpdata")?;
    let stamps = data.iter().filter(|word| *word == "Kernel").count();
    ensure!(stamps == 2, "stamps are not the kernel's: {data:?}");
    // Questions that came, and those of them that were dropped.
    let served = said("server.socket", "serverstats")?;
    let [come, dropped] = [0, 1].map(|at| served[at].parse::<u64>());
    let (come, dropped) = (come?, dropped?);
    ensure!(come >= ANSWERS && dropped == 0, "{served:?}");
    let carried = watch.end(bed)?;
    let line = PATH.check(way, &carried, PORT)?;
    bed.stop(client)?.ok()?;
    bed.stop(server)?.ok()?;
    Ok(format!("{come} questions, {offset_s} s; {line}"))
}
