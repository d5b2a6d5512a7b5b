//! The pieces of work that the bench and the demo measure: a real server, a real
//! client, and how to read the client's figure. One home, so that the demo's
//! table and the bench's rows mean the same.
//!
//! A [`Server`] is started once per path and serves several samples. A sample is
//! one run of the client: its figure, the CPU time that client and server spent
//! meanwhile, and the bytes that went through rings meanwhile. The CPU time of a
//! server counts only while a client works, so that servers may stand by idle.

use crate::lab::{Lab, PathChoice, Place, Program, Spawn, Stdin};
use crate::packages;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for the broker to have counted what a closed connection carried.
const COUNTED_LIMIT: Duration = Duration::from_secs(1);
/// A client that takes this much longer than it was asked to is hanging.
const CLIENT_SLACK: Duration = Duration::from_secs(60);
/// First guess of redis-benchmark's number of requests; later ones follow the rate.
const REDIS_REQUESTS_FIRST: f64 = 10_000.0;
/// Enough for each of 50 connections to come to its upgrade.
const REDIS_REQUESTS_MIN: f64 = 5_000.0;
/// Bytes of the file that curl fetches.
const CURL_BYTES: usize = 64 << 20;
/// Document of the 1 KB row.
const SMALL_BYTES: usize = 1024;

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerKind {
    /// redis-server without persistence.
    Redis,
    /// nginx with one worker and sendfile on.
    Nginx,
    /// iperf3 -s.
    Iperf3,
}

/// A client program and its load.
#[derive(Clone, Copy, Debug)]
pub enum Client {
    /// redis-benchmark -t get.
    RedisGet {
        /// Connections.
        clients: u32,
        /// Requests in flight on each.
        pipeline: u32,
    },
    /// wrk on the 1 KB document.
    Wrk {
        /// Connections.
        connections: u32,
    },
    /// curl on a large file; every byte is compared.
    Curl,
    /// iperf3, client to server.
    Iperf3 {
        /// Bytes of each write.
        write_bytes: u32,
    },
}

/// One row: who serves, who asks, what is counted.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Name of the row.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
    /// Unit of the figure.
    pub unit: &'static str,
    /// Server.
    pub server: ServerKind,
    /// Client.
    pub client: Client,
}

impl Work {
    /// By how much work CPU seconds are divided, and what a table calls it.
    pub fn cpu_unit(&self) -> (f64, &'static str) {
        match self.unit {
            "GB/s" => (1e9, "GB"),
            _ => (1e6, "Mreq"),
        }
    }
}

const fn redis_get(name: &'static str, what: &'static str, clients: u32, pipeline: u32) -> Work {
    let client = Client::RedisGet { clients, pipeline };
    Work {
        name,
        what,
        unit: "req/s",
        server: ServerKind::Redis,
        client,
    }
}

/// Everything that can be measured; the bench's suite `apps` is all but curl's.
pub const WORKS: [Work; 7] = [
    redis_get("redis-get-c1", "redis GET, 1 client", 1, 1),
    redis_get("redis-get-c16", "redis GET, 16 clients", 16, 1),
    redis_get("redis-get-c50", "redis GET, 50 clients", 50, 1),
    redis_get(
        "redis-get-c16-p16",
        "redis GET, 16 clients, 16 in flight",
        16,
        16,
    ),
    Work {
        name: "nginx-1k-c10",
        what: "nginx 1 KB, wrk with 10 connections",
        unit: "req/s",
        server: ServerKind::Nginx,
        client: Client::Wrk { connections: 10 },
    },
    Work {
        name: "nginx-64m-curl",
        what: "nginx 64 MB, curl, each byte compared",
        unit: "GB/s",
        server: ServerKind::Nginx,
        client: Client::Curl,
    },
    Work {
        name: "iperf3-128k",
        what: "iperf3, 128 KB writes",
        unit: "GB/s",
        server: ServerKind::Iperf3,
        client: Client::Iperf3 {
            write_bytes: 128 << 10,
        },
    },
];

/// Programs that all of it needs.
pub const PROGRAMS: [&str; 9] = [
    "ip",
    "nft",
    "redis-server",
    "redis-benchmark",
    "redis-cli",
    "nginx",
    "wrk",
    "curl",
    "iperf3",
];

/// How a client is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Where the client runs.
    pub place: Place,
    /// Its path.
    pub path: PathChoice,
    /// Its CPUs.
    pub cpu: Option<String>,
    /// Over the server's UNIX socket instead of TCP (redis only).
    pub unix: bool,
}

/// What one run of a client gave.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// In the work's unit.
    pub value: f64,
    /// CPU seconds of client and server.
    pub cpu_s: f64,
    /// Bytes through rings.
    pub ring_bytes: u64,
    /// How much was done in all: requests or bytes.
    pub done: f64,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    kind: ServerKind,
    /// The program itself.
    pub program: Program,
    host: String,
    port: u16,
    dir: PathBuf,
}

impl Server {
    /// Starts a server and returns when it listens and has its data.
    pub fn start(
        lab: &Lab,
        kind: ServerKind,
        place: &Place,
        path: PathChoice,
        cpu: Option<&str>,
    ) -> Result<Server> {
        let port = lab.free_port()?;
        let dir = lab.work_dir().join(format!("{kind:?}-{port}"));
        fs::create_dir_all(&dir)?;
        let host = place.ip().to_string();
        let mut spawn = match kind {
            ServerKind::Redis => redis_server(&host, port, &dir)?,
            ServerKind::Nginx => nginx(&host, port, &dir)?,
            ServerKind::Iperf3 => Spawn::new([
                &packages::path_of("iperf3")?,
                "-s",
                "-B",
                &host,
                "-p",
                &port.to_string(),
            ]),
        };
        spawn.cpu = cpu.map(str::to_owned);
        let program = lab.spawn(place, path, &spawn)?;
        program.wait_for_port(port)?;
        let server = Server {
            kind,
            program,
            host,
            port,
            dir,
        };
        if kind == ServerKind::Redis {
            server.store_value(lab, place)?;
        }
        Ok(server)
    }

    /// Port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Address on which it listens.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Asks it to end. (One that is merely dropped is killed.)
    pub fn stop(self) -> Result<()> {
        self.program.stop().map(drop)
    }

    fn unix_socket(&self) -> String {
        self.dir.join("socket").to_string_lossy().into_owned()
    }

    /// The value that GET asks for (redis-benchmark's own key), 3 bytes.
    fn store_value(&self, lab: &Lab, place: &Place) -> Result<()> {
        let port = self.port.to_string();
        let argv = [
            &packages::path_of("redis-cli")?,
            "-h",
            &self.host,
            "-p",
            &port,
            "SET",
            "key:__rand_int__",
            "xxx",
        ];
        let output = lab.run(place, PathChoice::Kernel, &Spawn::new(argv))?;
        match output.text().trim() {
            "OK" => Ok(()),
            other => bail!("redis-server answers SET with {other:?}"),
        }
    }
}

fn redis_server(host: &str, port: u16, dir: &std::path::Path) -> Result<Spawn> {
    let socket = dir.join("socket");
    let argv = [
        &packages::path_of("redis-server")?,
        "--bind",
        host,
        "--port",
        &port.to_string(),
        "--unixsocket",
        &socket.to_string_lossy(),
        "--protected-mode",
        "no",
        "--save",
        "",
        "--appendonly",
        "no",
    ];
    Ok(Spawn::new(argv).dir(dir))
}

fn nginx(host: &str, port: u16, dir: &std::path::Path) -> Result<Spawn> {
    let www = dir.join("www");
    fs::create_dir_all(&www)?;
    fs::write(www.join("1k"), contents(SMALL_BYTES))?;
    fs::write(www.join("64m"), contents(CURL_BYTES))?;
    let dir_text = dir.display();
    // Workers give up root, as Debian's package has them do.
    let user = if rustix::process::getuid().is_root() {
        "user www-data;"
    } else {
        ""
    };
    let config = format!(
        "daemon off; worker_processes 1; {user} pid {dir_text}/pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
    client_body_temp_path {dir_text}/body; proxy_temp_path {dir_text}/proxy; fastcgi_temp_path {dir_text}/fastcgi;
    uwsgi_temp_path {dir_text}/uwsgi; scgi_temp_path {dir_text}/scgi;
    server {{ listen {host}:{port}; root {dir_text}/www; }}
}}
"
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, config)?;
    let argv = [
        &packages::path_of("nginx")?,
        "-p",
        &dir.to_string_lossy(),
        "-c",
        &file.to_string_lossy(),
        "-e",
        "stderr",
    ];
    Ok(Spawn::new(argv))
}

/// Bytes in which a lost, doubled or moved piece shows (xorshift, fixed seed).
fn contents(length_bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(length_bytes + 8);
    while bytes.len() < length_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length_bytes);
    bytes
}

/// Runs one work's client again and again against one server.
#[derive(Debug)]
pub struct Runner<'a> {
    work: Work,
    server: &'a Server,
    setting: Setting,
    /// Last figure: sizes the next run of clients that count requests, not seconds.
    rate: Option<f64>,
}

impl<'a> Runner<'a> {
    /// A client for a server of the work's kind.
    pub fn new(work: Work, server: &'a Server, setting: Setting) -> Runner<'a> {
        debug_assert_eq!(work.server, server.kind);
        Runner {
            work,
            server,
            setting,
            rate: None,
        }
    }

    /// A short run that is not counted: sizes the next ones and warms both programs up.
    pub fn warm_up(&mut self, lab: &Lab) -> Result<()> {
        self.sample(lab, 0.2).map(drop)
    }

    /// One run of about `seconds`.
    pub fn sample(&mut self, lab: &Lab, seconds: f64) -> Result<Sample> {
        let rings_before = lab.ring_bytes()?;
        let server_cpu_before = self.server.program.cpu_s();
        let output = self.spawn(lab, seconds)?.finish()?.ok()?;
        let server_cpu_s = self.server.program.cpu_s() - server_cpu_before;
        let ring_bytes = settled_ring_bytes(lab)?.saturating_sub(rings_before);
        let text = output.text();
        let (value, done) = self.figure(&text, seconds).with_context(|| {
            format!(
                "{}: the client's report is not understood:\n{text}",
                self.work.name
            )
        })?;
        self.rate = Some(value);
        Ok(Sample {
            value,
            cpu_s: output.cpu_s + server_cpu_s,
            ring_bytes,
            done,
        })
    }

    /// Starts the client, for about `seconds`.
    pub fn spawn(&self, lab: &Lab, seconds: f64) -> Result<Program> {
        let mut spawn = self.command(seconds)?;
        spawn.cpu = self.setting.cpu.clone();
        spawn.time_limit = Duration::from_secs_f64(seconds) + CLIENT_SLACK;
        lab.spawn(&self.setting.place, self.setting.path, &spawn)
    }

    fn command(&self, seconds: f64) -> Result<Spawn> {
        let (host, port) = (self.server.host.as_str(), self.server.port.to_string());
        let whole_seconds = (seconds.round() as u64).max(1).to_string();
        Ok(match self.work.client {
            Client::RedisGet { clients, pipeline } => {
                let requests = self.redis_requests(seconds).to_string();
                let socket = self.server.unix_socket();
                let target = if self.setting.unix {
                    vec!["-s", &socket]
                } else {
                    vec!["-h", host, "-p", &port]
                };
                let (clients, pipeline) = (clients.to_string(), pipeline.to_string());
                let mut argv = vec![packages::path_of("redis-benchmark")?];
                argv.extend(target.into_iter().map(str::to_owned));
                argv.extend(
                    [
                        "-t", "get", "--csv", "-c", &clients, "-P", &pipeline, "-n", &requests,
                    ]
                    .map(str::to_owned),
                );
                Spawn::new(argv)
            }
            Client::Wrk { connections } => {
                let (connections, url) =
                    (connections.to_string(), format!("http://{host}:{port}/1k"));
                let duration = format!("{whole_seconds}s");
                Spawn::new([
                    &packages::path_of("wrk")?,
                    "-t1",
                    "-c",
                    &connections,
                    "-d",
                    &duration,
                    &url,
                ])
            }
            Client::Curl => {
                let (file, url) = (self.curl_file(), format!("http://{host}:{port}/64m"));
                let file = file.to_string_lossy().into_owned();
                let format = "%{size_download} %{time_total} %{time_starttransfer}";
                Spawn::new([
                    &packages::path_of("curl")?,
                    "-sSf",
                    "-o",
                    &file,
                    "-w",
                    format,
                    &url,
                ])
            }
            Client::Iperf3 { write_bytes } => {
                let length = write_bytes.to_string();
                let argv = [
                    &packages::path_of("iperf3")?,
                    "-c",
                    host,
                    "-p",
                    &port,
                    "-t",
                    &whole_seconds,
                    "-l",
                    &length,
                    "-J",
                ];
                Spawn::new(argv)
            }
        }
        .stdin(Stdin::Null))
    }

    /// The figure and how much was done, from what the client wrote.
    fn figure(&self, text: &str, seconds: f64) -> Result<(f64, f64)> {
        match self.work.client {
            Client::RedisGet { .. } => Ok((redis_rate(text)?, self.redis_requests(seconds) as f64)),
            Client::Wrk { .. } => wrk_rate(text),
            Client::Curl => {
                let got = fs::read(self.curl_file())?;
                if got != contents(CURL_BYTES) {
                    bail!("curl's file differs from the server's");
                }
                curl_rate(text)
            }
            Client::Iperf3 { .. } => iperf3_rate(text),
        }
    }

    /// How many requests take about `seconds`.
    fn redis_requests(&self, seconds: f64) -> u64 {
        self.rate.map_or(REDIS_REQUESTS_FIRST, |rate| {
            (rate * seconds).max(REDIS_REQUESTS_MIN)
        }) as u64
    }

    fn curl_file(&self) -> PathBuf {
        self.server.dir.join("fetched")
    }
}

/// The broker's total, once it no longer moves.
pub(crate) fn settled_ring_bytes(lab: &Lab) -> Result<u64> {
    let until = Instant::now() + COUNTED_LIMIT;
    let mut last = lab.ring_bytes()?;
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = lab.ring_bytes()?;
        if now == last || Instant::now() > until {
            return Ok(now);
        }
        last = now;
    }
}

/// `"GET","12345.67",...` of redis-benchmark --csv.
fn redis_rate(text: &str) -> Result<f64> {
    let line = text
        .lines()
        .find(|line| line.starts_with("\"GET\""))
        .context("no line for GET")?;
    let field = line.split(',').nth(1).context("no second field")?;
    Ok(field.trim_matches('"').parse()?)
}

/// Requests a second and requests in all, from wrk's report.
fn wrk_rate(text: &str) -> Result<(f64, f64)> {
    if let Some(bad) = text
        .lines()
        .find(|line| line.contains("Non-2xx") || line.contains("Socket errors"))
    {
        bail!("wrk saw errors: {}", bad.trim());
    }
    let rate = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"))
        .context("no Requests/sec")?;
    let done = text
        .lines()
        .find_map(|line| line.trim().split_once(" requests in "))
        .context("no count")?;
    Ok((rate.trim().parse()?, done.0.parse()?))
}

/// GB/s and bytes, from `--write-out`. The time from the first byte on counts:
/// before it, nginx may have read the file from disk.
fn curl_rate(text: &str) -> Result<(f64, f64)> {
    let numbers: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [bytes, total_s, first_byte_s] = numbers[..] else {
        bail!("not three numbers")
    };
    Ok((bytes / (total_s - first_byte_s).max(1e-6) / 1e9, bytes))
}

/// GB/s and bytes that the receiver got, from iperf3 -J.
fn iperf3_rate(text: &str) -> Result<(f64, f64)> {
    let report: serde_json::Value = serde_json::from_str(text)?;
    if let Some(error) = report["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let received = &report["end"]["sum_received"];
    let bits = received["bits_per_second"]
        .as_f64()
        .context("no bits_per_second")?;
    Ok((bits / 8e9, received["bytes"].as_f64().context("no bytes")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_clients_reports() {
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"87719.30\",\"0.291\"\n";
        assert_eq!(redis_rate(redis).unwrap(), 87719.30);
        let wrk = "  95361 requests in 2.00s, 114.60MB read\nRequests/sec:  47661.07\nTransfer/sec:     57.28MB\n";
        assert_eq!(wrk_rate(wrk).unwrap(), (47661.07, 95361.0));
        assert!(wrk_rate(&format!("  Socket errors: connect 0, read 3\n{wrk}")).is_err());
        assert_eq!(
            curl_rate("67108864 0.060000 0.010000").unwrap().1,
            67_108_864.0
        );
        let iperf3 = r#"{"end":{"sum_received":{"bytes":100,"bits_per_second":16e9}}}"#;
        assert_eq!(iperf3_rate(iperf3).unwrap(), (2.0, 100.0));
        assert!(
            iperf3_rate(r#"{"error":"refused"}"#)
                .unwrap_err()
                .to_string()
                .contains("refused")
        );
    }

    #[test]
    fn contents_do_not_repeat() {
        let bytes = contents(4096);
        assert_ne!(bytes[..2048], bytes[2048..]);
        assert_eq!(contents(1001).len(), 1001);
    }
}
