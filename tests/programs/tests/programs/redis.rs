//! redis-server with redis-benchmark and redis-cli.

use anyhow::{Result, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, Stdin, files, path_of};

const PORT: u16 = 6379;
/// Sizes of the values that are stored and read back; the last does not fit into any ring.
const VALUE_BYTES: [usize; 6] = [1, 100, 4096, 65_537, 700_000, 5_000_000];
/// More than any list of children was ever long.
const SAVES: usize = 10;
/// How often each size.
const ROUNDS: usize = 4;

/// Which ones: names or paths.
#[derive(Clone)]
pub struct Programs {
    /// redis-server.
    pub server: String,
    /// redis-benchmark.
    pub benchmark: String,
    /// redis-cli.
    pub cli: String,
}

impl Programs {
    /// Debian's.
    pub fn installed() -> Programs {
        Programs {
            server: "redis-server".to_owned(),
            benchmark: "redis-benchmark".to_owned(),
            cli: "redis-cli".to_owned(),
        }
    }
}

#[test]
fn redis() -> Result<()> {
    play("redis", &Programs::installed())
}

/// Everything, with these.
pub fn play(name: &'static str, programs: &Programs) -> Result<()> {
    let all = [&programs.server, &programs.benchmark, &programs.cli];
    let Some(bed) = Bed::start(name, &all.map(String::as_str))? else {
        return Ok(());
    };
    let redis = Redis {
        bed: &bed,
        host: SERVER,
        benchmark: path_of(&programs.benchmark)?,
        cli: path_of(&programs.cli)?,
    };
    let spawn = server_of(&path_of(&programs.server)?).dir(&bed.dir());
    let server = bed.serve(SERVER, PORT, spawn)?;
    let watch = bed.watch()?;
    saves_in_children(&redis)?;
    stores_and_reads_values(&redis)?;
    benchmark(
        &redis,
        "-t set,get,incr,lpush,lrange_100,mset -n 5000 -c 20",
    )?;
    benchmark(&redis, "-t set,get -n 5000 -c 8 -P 16 -d 10000")?;
    benchmark(&redis, "-t set,get -n 20000 -c 8 -P 4 --threads 2")?;
    let carried = watch.end(&bed)?;
    // All but the first few calls, both ways.
    let line = carried.rings_at_both_ends([SERVER, CLIENT], PORT, values_bytes() * 3 / 2)?;
    bed.stop(server)?;
    bed.finish(&line)
}

/// The same server under a stack of its own: its clients' rings go past the stack.
#[test]
fn redis_under_a_stack() -> Result<()> {
    const STACK: &str = "stack";
    let programs = Programs::installed();
    let all = [&programs.server, &programs.benchmark, &programs.cli];
    let Some(bed) = Bed::start("redis under a stack", &all.map(String::as_str))? else {
        return Ok(());
    };
    let redis = Redis {
        bed: &bed,
        host: STACK,
        benchmark: path_of(&programs.benchmark)?,
        cli: path_of(&programs.cli)?,
    };
    let spawn = server_of(&path_of(&programs.server)?).dir(&bed.dir());
    let server = bed.serve_under_a_stack(STACK, spawn, "Ready to accept connections")?;
    let watch = bed.watch()?;
    saves_in_children(&redis)?;
    stores_and_reads_values(&redis)?;
    benchmark(&redis, "-t set,get -n 5000 -c 20 -P 4")?;
    // One that goes on until it was looked at.
    let words = format!("{} -h {STACK} -p {PORT} -t get -l", redis.benchmark);
    let endless = bed.spawn(CLIENT, Spawn::line(&words))?;
    watch.until_rings(&bed, [CLIENT, STACK], PORT)?;
    bed.stop(endless)?;
    let carried = watch.end(&bed)?;
    let line = carried.rings_at_both_ends([CLIENT, STACK], PORT, values_bytes() * 3 / 2)?;
    bed.stop(server)?;
    bed.remove_domain(STACK)?;
    bed.finish(&line)
}

fn values_bytes() -> u64 {
    (VALUE_BYTES.iter().sum::<usize>() * ROUNDS) as u64
}

fn server_of(program: &str) -> Spawn {
    Spawn::line(&format!(
        "{program} --bind 0.0.0.0 --port {PORT} --protected-mode no --appendonly no --save"
    ))
    .argument("")
}

/// The clients, and where they run.
struct Redis<'a> {
    bed: &'a Bed,
    /// The server's domain.
    host: &'a str,
    benchmark: String,
    cli: String,
}

/// Each save is a fork of the server, whose clients go on beside it and after it.
fn saves_in_children(redis: &Redis) -> Result<()> {
    for round in 0..SAVES {
        let begun = text_of(redis, &["BGSAVE"])?;
        ensure!(begun.contains("Background saving started"), "{begun}");
        let mut looks = 0;
        while !text_of(redis, &["INFO", "persistence"])?.contains("rdb_bgsave_in_progress:0") {
            looks += 1;
            ensure!(looks < 1000, "save {round} does not end");
        }
        benchmark(redis, "-t set,get -n 1000 -c 4")?;
    }
    Ok(())
}

fn text_of(redis: &Redis, arguments: &[&str]) -> Result<String> {
    let output = cli(redis, arguments, Vec::new())?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

fn cli(redis: &Redis, arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>> {
    let port = PORT.to_string();
    let argv = [&redis.cli, "-h", redis.host, "-p", &port];
    let argv = argv.into_iter().chain(arguments.iter().copied());
    Ok(redis
        .bed
        .run(Spawn::new(argv).stdin(Stdin::Bytes(input)))?
        .stdout)
}

/// Values in a pipeline (redis-cli --pipe), then one after the other, compared.
fn stores_and_reads_values(redis: &Redis) -> Result<()> {
    let (mut sets, mut gets, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for length in VALUE_BYTES {
            let value = files::random_bytes(length)?;
            let key = format!("{length}-{round}");
            // The protocol's own form: https://redis.io/docs/reference/protocol-spec, bulk strings.
            let head = format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${length}\r\n",
                key.len()
            );
            sets.extend_from_slice(head.as_bytes());
            sets.extend_from_slice(&value);
            sets.extend_from_slice(b"\r\n");
            gets.extend_from_slice(format!("GET {key}\n").as_bytes());
            expected.extend_from_slice(&value);
            expected.push(b'\n');
        }
    }
    let report = String::from_utf8_lossy(&cli(redis, &["--pipe"], sets)?).into_owned();
    let replies = VALUE_BYTES.len() * ROUNDS;
    ensure!(
        report.contains(&format!("errors: 0, replies: {replies}")),
        "redis-cli --pipe: {report}"
    );
    ensure!(
        cli(redis, &[], gets)? == expected,
        "redis-cli GET gives other values than were SET"
    );
    Ok(())
}

fn benchmark(redis: &Redis, arguments: &str) -> Result<()> {
    let (program, host) = (&redis.benchmark, redis.host);
    let output = redis.bed.run(Spawn::line(&format!(
        "{program} -h {host} -p {PORT} --csv {arguments}"
    )))?;
    let text = output.text();
    let rates: Vec<f64> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok())
        .collect();
    ensure!(
        rates.len() >= 2 && rates.iter().all(|&rate| rate > 0.0),
        "redis-benchmark {arguments}: {text}{}",
        output.errors()
    );
    Ok(())
}
