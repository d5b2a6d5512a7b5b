//! PostgreSQL with pgbench and psql: whole rows compared, and the sums that pgbench's
//! transactions must keep equal.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, Stdin, files};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

const PORT: u16 = 5432;
/// pgbench's scale: 100,000 accounts each.
const SCALE: &str = "2";
/// Rows and length of a row that psql copies in and out.
const COPY_ROWS: usize = 20_000;
const COPY_ROW_BYTES: usize = 500;

#[test]
fn postgresql() -> Result<()> {
    let Some(bed) = Bed::start("postgresql", &["setpriv"])? else {
        return Ok(());
    };
    let programs = directory_of_programs()?;
    let data = make_cluster(&bed, &programs)?;
    let postgres = programs.join("postgres");
    let mut argv = vec!["setpriv"];
    argv.extend(AS_POSTGRES);
    let (postgres, data, port) = (text(&postgres), text(&data), PORT.to_string());
    argv.extend([&postgres, "-D", &data, "-p", &port]);
    let server = bed.serve(SERVER, PORT, Spawn::new(argv))?;
    server.wait_for_output("ready to accept connections")?;
    let watch = bed.watch()?;
    pgbench(&bed, &programs)?;
    rows_arrive_whole(&bed, &programs)?;
    let carried = watch.end(&bed)?;
    let copied = (COPY_ROWS * COPY_ROW_BYTES * 2) as u64;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, copied * 9 / 10)?;
    // SIGINT is "fast shutdown", pg_ctl's own default.
    bed.stop_by(server, rustix::process::Signal::INT)?.ok()?;
    bed.finish(&line)
}

/// The server refuses to run as root.
const AS_POSTGRES: [&str; 5] = [
    "--reuid=postgres",
    "--regid=postgres",
    "--clear-groups",
    "--no-new-privs",
    "--",
];

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Debian keeps the server's programs, a directory for each version, off the PATH.
fn directory_of_programs() -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|dir| dir.join("initdb").is_file())
        .collect();
    found.sort();
    found
        .pop()
        .context("no initdb in /usr/lib/postgresql/*/bin")
}

fn make_cluster(bed: &Bed, programs: &Path) -> Result<PathBuf> {
    let data = bed.dir().join("cluster");
    fs::create_dir(&data)?;
    let id = |flag: &str| -> Result<u32> {
        let output = Command::new("id").args([flag, "postgres"]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    chown(&data, Some(id("-u")?), Some(id("-g")?))?;
    let output = Command::new("setpriv")
        .args(AS_POSTGRES)
        .arg(programs.join("initdb"))
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
        "listen_addresses = '*'\nunix_socket_directories = ''\nfsync = off\n",
    )?;
    append("pg_hba.conf", "host all all 10.77.0.0/24 trust\n")?;
    Ok(data)
}

fn pgbench(bed: &Bed, programs: &Path) -> Result<()> {
    let program = text(&programs.join("pgbench"));
    let run = |options: &str| {
        let command = format!("{program} -h {SERVER} -p {PORT} -U postgres {options} postgres");
        bed.run(Spawn::line(&command))
    };
    run(&format!("-i -s {SCALE}"))?;
    // -n: without it the second run would empty the history.
    for options in ["-c 4 -j 2 -T 2", "-n -c 4 -j 2 -T 1 -S -M prepared"] {
        let report = run(options)?.text();
        let done: u64 = report
            .lines()
            .find_map(|line| {
                let (_, count) = line.split_once("transactions actually processed: ")?;
                count.split('/').next()?.parse().ok()
            })
            .with_context(|| format!("pgbench {options}: {report}"))?;
        ensure!(
            done > 100 && report.contains("failed transactions: 0 "),
            "pgbench {options}: {report}"
        );
    }
    // Each transaction adds its delta to an account, a teller and a branch, and notes it.
    let sums = psql(
        bed,
        programs,
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history),
                (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history),
                (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history),
                (SELECT count(*) FROM pgbench_history) > 100;"
            .as_bytes(),
    )?;
    ensure!(
        sums.trim_ascii_end() == b"t|t|t|t",
        "pgbench's sums: {}",
        String::from_utf8_lossy(&sums)
    );
    Ok(())
}

/// Random rows in by COPY, out by COPY and by SELECT, in one session.
fn rows_arrive_whole(bed: &Bed, programs: &Path) -> Result<()> {
    let random = files::random_bytes(COPY_ROWS * COPY_ROW_BYTES / 2)?;
    let mut rows = Vec::with_capacity(COPY_ROWS * (COPY_ROW_BYTES + 10));
    for (number, bytes) in random.chunks(COPY_ROW_BYTES / 2).enumerate() {
        rows.extend_from_slice(format!("{number}\t").as_bytes());
        rows.extend(bytes.iter().flat_map(|byte| {
            let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
            [hex(byte >> 4), hex(byte & 15)]
        }));
        rows.push(b'\n');
    }
    let mut script =
        b"CREATE TABLE whole (number int, word text);\nCOPY whole FROM STDIN;\n".to_vec();
    script.extend_from_slice(&rows);
    script.extend_from_slice(b"\\.\nCOPY (SELECT * FROM whole ORDER BY number) TO STDOUT;\n");
    let copied = psql(bed, programs, &script)?;
    let said = b"CREATE TABLE\nCOPY 20000\n";
    ensure!(
        copied.strip_prefix(said).unwrap_or(&copied) == rows,
        "COPY gives other rows than were put in"
    );
    let mut selected = psql(
        bed,
        programs,
        b"SELECT number || chr(9) || word FROM whole ORDER BY number;\n",
    )?;
    if selected.last() != Some(&b'\n') {
        selected.push(b'\n');
    }
    ensure!(selected == rows, "SELECT gives other rows than were put in");
    Ok(())
}

fn psql(bed: &Bed, programs: &Path, script: &[u8]) -> Result<Vec<u8>> {
    let program = text(&programs.join("psql"));
    let command =
        format!("{program} -h {SERVER} -p {PORT} -U postgres -X -A -t -v ON_ERROR_STOP=1 postgres");
    let spawn = Spawn::line(&command).stdin(Stdin::Bytes(script.to_vec()));
    Ok(bed.run(spawn)?.stdout)
}
