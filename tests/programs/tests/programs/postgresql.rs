//! PostgreSQL with pgbench and psql: whole rows compared, and the sums that pgbench's
//! transactions must keep equal.

use anyhow::{Result, ensure};
use fordway_bench::work::postgres;
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, Stdin, files};

const PORT: u16 = 5432;
/// pgbench's scale: 100,000 accounts each.
const SCALE: &str = "2";
/// Of each of pgbench's four clients.
const TRANSACTIONS: u32 = 250;
/// Rows and length of a row that psql copies in and out.
const COPY_ROWS: usize = 20_000;
const COPY_ROW_BYTES: usize = 500;

#[test]
fn postgresql() -> Result<()> {
    let Some(bed) = Bed::start("postgresql", &["setpriv"])? else {
        return Ok(());
    };
    let server = bed.serve(SERVER, PORT, postgres::server(&bed.dir(), "*", PORT)?)?;
    server.wait_for_output(postgres::READY)?;
    let watch = bed.watch()?;
    pgbench(&bed)?;
    rows_arrive_whole(&bed)?;
    let carried = watch.end(&bed)?;
    let copied = (COPY_ROWS * COPY_ROW_BYTES * 2) as u64;
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, copied * 9 / 10)?;
    // SIGINT is "fast shutdown", pg_ctl's own default.
    bed.stop_by(server, rustix::process::Signal::INT)?.ok()?;
    bed.finish(&line)
}

fn pgbench(bed: &Bed) -> Result<()> {
    let run = |options: &str| bed.run(postgres::pgbench(SERVER, PORT, options)?);
    run(&format!("-i -s {SCALE}"))?;
    // -n: without it the second run would empty the history.
    for options in ["", "-n -S -M prepared"] {
        let report = run(&format!("-c 4 -j 2 -t {TRANSACTIONS} {options}"))?.text();
        let all = 4 * TRANSACTIONS;
        ensure!(
            report.contains(&format!("transactions actually processed: {all}/{all}\n"))
                && report.contains("failed transactions: 0 "),
            "pgbench {options}: {report}"
        );
    }
    // Each transaction adds its delta to an account, a teller and a branch, and notes it.
    let sums = psql(
        bed,
        format!(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history),
                (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history),
                (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history),
                (SELECT count(*) FROM pgbench_history) = 4 * {TRANSACTIONS};"
        )
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
fn rows_arrive_whole(bed: &Bed) -> Result<()> {
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
    let copied = psql(bed, &script)?;
    let said = b"CREATE TABLE\nCOPY 20000\n";
    ensure!(
        copied.strip_prefix(said).unwrap_or(&copied) == rows,
        "COPY gives other rows than were put in"
    );
    let mut selected = psql(
        bed,
        b"SELECT number || chr(9) || word FROM whole ORDER BY number;\n",
    )?;
    if selected.last() != Some(&b'\n') {
        selected.push(b'\n');
    }
    ensure!(selected == rows, "SELECT gives other rows than were put in");
    Ok(())
}

fn psql(bed: &Bed, script: &[u8]) -> Result<Vec<u8>> {
    let program = postgres::program("psql")?;
    let command =
        format!("{program} -h {SERVER} -p {PORT} -U postgres -X -A -t -v ON_ERROR_STOP=1 postgres");
    let spawn = Spawn::line(&command).stdin(Stdin::Bytes(script.to_vec()));
    Ok(bed.run(spawn)?.stdout)
}
