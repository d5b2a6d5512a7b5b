//! statsd: the client of PyPI, as Debian has it, and collectd as the server, which answers nothing. What it has
//! counted is what was sent.

use super::datagrams::{Path, WAYS, Way};
use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, SERVER, Spawn, path_of, script};
use std::fs;

const PORT: u16 = 8125;
/// 10,000 datagrams of 35 B and more, most of them.
const PATH: Path = Path::Rings(300_000);

#[test]
fn statsd() -> Result<()> {
    let Some(bed) = Bed::start("statsd", &["collectd", "python3"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for way in WAYS {
        lines.push(play(&bed, way).with_context(|| format!("{way:?}"))?);
    }
    bed.finish(&lines.join("; "))
}

fn play(bed: &Bed, way: Way) -> Result<String> {
    let dir = bed.dir().join("collectd");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir)?;
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let [config, socket, data] = ["collectd.conf", "socket", "data"].map(at);
    let text = format!(
        "Hostname \"server\"
BaseDir \"{0}\"
PIDFile \"{0}/pid\"
TypesDB \"/usr/share/collectd/types.db\"
Interval 0.01
LoadPlugin statsd
LoadPlugin unixsock
LoadPlugin csv
<Plugin unixsock>
  SocketFile \"{socket}\"
  SocketGroup \"root\"
</Plugin>
<Plugin csv>
  DataDir \"{data}\"
  StoreRates false
</Plugin>
<Plugin statsd>
  Host \"0.0.0.0\"
  Port \"{PORT}\"
</Plugin>
",
        dir.display()
    );
    fs::write(&config, text)?;
    let argv = [&path_of("collectd")?, "-f", "-C", &config];
    let server = bed.serve_datagrams(SERVER, PORT, way.of(Spawn::new(argv)))?;
    let watch = bed.watch()?;
    let (script, port) = (script("statsd_client.py"), PORT.to_string());
    let argv = ["/usr/bin/python3", &script, SERVER, &port, &socket, &data];
    let output = bed.run(way.of(Spawn::new(argv)))?;
    ensure!(output.text() == "ok\n", "{}", output.text());
    let carried = watch.end(bed)?;
    let line = PATH.check(way, &carried, PORT)?;
    bed.stop(server)?.ok()?;
    Ok(line)
}
