//! PostgreSQL: a cluster made for one run, its server and pgbench, none of it as root.

use anyhow::{Context, Result, ensure};
use fordway_lab::Spawn;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the server writes when it can answer.
pub const READY: &str = "ready to accept connections";

/// Before a program that refuses to run as root.
pub const AS_POSTGRES: [&str; 6] = [
    "setpriv",
    "--reuid=postgres",
    "--regid=postgres",
    "--clear-groups",
    "--no-new-privs",
    "--",
];

/// A program of the server's; Debian keeps them, a directory for each version, off the PATH.
pub fn program(name: &str) -> Result<String> {
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .context("PostgreSQL is not installed")?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin").join(name)))
        .filter(|file| file.is_file())
        .collect();
    found.sort();
    let file = found
        .pop()
        .with_context(|| format!("no {name} in /usr/lib/postgresql/*/bin"))?;
    Ok(file.to_string_lossy().into_owned())
}

/// Makes a cluster below `dir` that trusts this machine and the domains.
pub fn make_cluster(dir: &Path) -> Result<PathBuf> {
    let data = dir.join("cluster");
    fs::create_dir(&data)?;
    let id = |flag: &str| -> Result<u32> {
        let output = Command::new("id").args([flag, "postgres"]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    chown(&data, Some(id("-u")?), Some(id("-g")?))?;
    let output = Command::new(AS_POSTGRES[0])
        .args(&AS_POSTGRES[1..])
        .arg(program("initdb")?)
        .args([
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
        ])
        .arg(&data)
        .output()?;
    ensure!(
        output.status.success(),
        "initdb: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let append = |file: &str, lines: &str| -> Result<()> {
        let file = data.join(file);
        let old = fs::read_to_string(&file)?;
        Ok(fs::write(&file, old + lines)?)
    };
    append(
        "postgresql.conf",
        "unix_socket_directories = ''\nfsync = off\n",
    )?;
    append("pg_hba.conf", "host all all 10.77.0.0/24 trust\n")?;
    Ok(data)
}

/// A server with a new cluster in `dir`.
pub fn server(dir: &Path, host: &str, port: u16) -> Result<Spawn> {
    let data = make_cluster(dir)?;
    let postgres = program("postgres")?;
    let mut argv: Vec<String> = AS_POSTGRES.map(str::to_owned).to_vec();
    argv.extend([
        postgres,
        "-D".to_owned(),
        data.to_string_lossy().into_owned(),
    ]);
    argv.extend(["-h".to_owned(), host.to_owned()]);
    argv.extend(["-p".to_owned(), port.to_string()]);
    Ok(Spawn::new(argv))
}

/// pgbench on the server's own database.
pub fn pgbench(host: &str, port: u16, options: &str) -> Result<Spawn> {
    let program = program("pgbench")?;
    Ok(Spawn::line(&format!(
        "{program} -h {host} -p {port} -U postgres {options} postgres"
    )))
}
