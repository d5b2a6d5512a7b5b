//! The clients: how each is run, and how its report is read.

use super::server::{CURL_BYTES, Server, contents};
use super::{Setting, postgres};
use crate::micro::end::{self, Figures, Talk};
use crate::micro::wire::Wire;
use anyhow::{Context, Result, bail};
use fordway_lab::Spawn;
use fordway_lab::packages;
use std::fs;
use std::path::PathBuf;

/// First guess of redis-benchmark's number of requests; later ones follow the rate.
const REDIS_REQUESTS_FIRST: f64 = 10_000.0;
/// Requests for each connection that bring it to its upgrade and past it.
const REDIS_REQUESTS_EACH: f64 = 100.0;
/// First guess of ab's number of requests.
const AB_REQUESTS_FIRST: f64 = 5_000.0;
/// And the least of them in a sample: seven samples are 100,000 connections.
const AB_REQUESTS_MIN: f64 = 15_000.0;
/// Largest message of NetPIPE.
const NETPIPE_BYTES_MAX: u32 = 1 << 20;

/// A client program and its load.
#[derive(Clone, Copy, Debug)]
pub enum Client {
    /// redis-benchmark.
    Redis {
        /// `get` or `set`.
        command: &'static str,
        /// Connections.
        clients: u32,
        /// Requests in flight on each.
        pipeline: u32,
    },
    /// wrk on one document.
    Wrk {
        /// Its name.
        document: &'static str,
        /// Connections.
        connections: u32,
    },
    /// ab on one document: a connection for each request, by HTTP/1.0.
    Ab {
        /// Its name.
        document: &'static str,
        /// Connections at the same time.
        clients: u32,
    },
    /// curl on a large file; every byte is compared.
    Curl,
    /// iperf3.
    Iperf3 {
        /// Bytes of each write.
        write_bytes: u32,
        /// Connections.
        streams: u32,
        /// The server sends.
        reverse: bool,
    },
    /// A plain client of our own: one get in flight on each connection.
    Memcached {
        /// Connections, or sockets.
        connections: u32,
        /// By UDP.
        datagrams: bool,
    },
    /// pgbench -S.
    Pgbench {
        /// Connections.
        clients: u32,
    },
    /// NPtcp.
    Netpipe,
    /// A plain client of our own.
    Plain {
        /// What is done.
        talk: Talk,
        /// Bytes of a message.
        size: usize,
    },
}

impl Client {
    /// Programs that it needs.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Client::Redis { .. } => &["redis-benchmark"],
            Client::Wrk { .. } => &["wrk"],
            Client::Ab { .. } => &["ab"],
            Client::Curl => &["curl"],
            Client::Iperf3 { .. } => &["iperf3"],
            Client::Memcached { .. } | Client::Plain { .. } => &[],
            Client::Pgbench { .. } => &["psql"],
            Client::Netpipe => &["NPtcp"],
        }
    }

    /// Whether its connections end before rings would pay.
    pub fn is_short(self) -> bool {
        match self {
            Client::Plain { talk, .. } => talk.is_short(),
            _ => self.is_short_between_domains(),
        }
    }

    /// The same of those that are between domains on both paths.
    pub fn is_short_between_domains(self) -> bool {
        matches!(self, Client::Ab { .. })
    }

    /// Its shortest sample, in seconds. Some count whole seconds. Of ab's a second is too few: the kernel's
    /// work for a connection goes to whom its softirq meets, and the scheduler moves both programs.
    pub fn least_seconds(self) -> f64 {
        match self {
            Client::Wrk { .. } | Client::Iperf3 { .. } | Client::Pgbench { .. } => 1.0,
            Client::Ab { .. } => 2.0,
            _ => 0.0,
        }
    }

    /// Its command line for about `seconds`; `rate` is its last figure.
    pub(super) fn command(
        self,
        server: &Server,
        setting: &Setting,
        rate: Option<f64>,
        seconds: f64,
    ) -> Result<Spawn> {
        let through = setting.through.map(|address| address.to_string());
        let host = through.as_deref().unwrap_or(server.host());
        let port = server.port().to_string();
        let whole_seconds = (seconds.round() as u64).max(1).to_string();
        Ok(match self {
            Client::Redis {
                command,
                clients,
                pipeline,
            } => {
                let requests = redis_requests(clients, rate, seconds).to_string();
                let socket = server.unix_socket();
                let target = if setting.unix {
                    vec!["-s", &socket]
                } else {
                    vec!["-h", host, "-p", &port]
                };
                let (clients, pipeline) = (clients.to_string(), pipeline.to_string());
                let mut argv = vec![server.tool("redis-benchmark")?];
                argv.extend(target.into_iter().map(str::to_owned));
                argv.extend(
                    [
                        "-t", command, "--csv", "-c", &clients, "-P", &pipeline, "-n", &requests,
                    ]
                    .map(str::to_owned),
                );
                Spawn::new(argv)
            }
            Client::Wrk {
                document,
                connections,
            } => {
                let program = packages::path_of("wrk")?;
                Spawn::line(&format!(
                    "{program} -t1 -c {connections} -d {whole_seconds}s http://{host}:{port}/{document}"
                ))
            }
            Client::Ab { document, clients } => {
                let program = packages::path_of("ab")?;
                let requests = self.ab_requests(rate, seconds);
                Spawn::line(&format!(
                    "{program} -q -c {clients} -n {requests} http://{host}:{port}/{document}"
                ))
            }
            Client::Curl => {
                let (file, url) = (curl_file(server), format!("http://{host}:{port}/64m"));
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
            Client::Iperf3 {
                write_bytes,
                streams,
                reverse,
            } => {
                let program = packages::path_of("iperf3")?;
                let direction = if reverse { "-R" } else { "" };
                Spawn::line(&format!(
                    "{program} -c {host} -p {port} -t {whole_seconds} -l {write_bytes} -P {streams} {direction} -J"
                ))
            }
            Client::Memcached {
                connections,
                datagrams,
            } => {
                let program = std::env::current_exe()?;
                let by = if datagrams { "--datagrams" } else { "" };
                Spawn::line(&format!(
                    "{} end memcached {by} --at={host}:{port} --connections={connections} --seconds={seconds}",
                    program.display()
                ))
            }
            Client::Plain { talk, size } => {
                let mut argv =
                    end::command("drive", Wire::Tcp, talk, &format!("{host}:{port}"), size)?;
                argv.push(format!("--seconds={seconds}"));
                Spawn::new(argv)
            }
            Client::Pgbench { clients } => postgres::pgbench(
                host,
                server.port(),
                &format!("-n -S -j 1 -c {clients} -T {whole_seconds}"),
            )?,
            Client::Netpipe => {
                let program = packages::path_of("NPtcp")?;
                let file = netpipe_file(server);
                Spawn::line(&format!(
                    "{program} -h {host} -u {NETPIPE_BYTES_MAX} -n 20 -o {}",
                    file.display()
                ))
            }
        })
    }

    /// The figure and how much was done, from what the client wrote.
    pub(super) fn figure(
        self,
        server: &Server,
        rate: Option<f64>,
        text: &str,
        seconds: f64,
    ) -> Result<(f64, f64)> {
        match self {
            Client::Redis {
                command, clients, ..
            } => {
                let done = redis_requests(clients, rate, seconds);
                Ok((redis_rate(text, &command.to_uppercase())?, done as f64))
            }
            Client::Wrk { .. } => wrk_rate(text),
            Client::Ab { .. } => ab_rate(text),
            Client::Curl => {
                let got = fs::read(curl_file(server))?;
                if got != contents(CURL_BYTES) {
                    bail!("curl's file differs from the server's");
                }
                curl_rate(text)
            }
            Client::Iperf3 { .. } => iperf3_rate(text),
            Client::Memcached { .. } => {
                let figures: Figures = serde_json::from_str(text.trim())?;
                let done = figures.count as f64;
                Ok((done / figures.seconds, done))
            }
            Client::Plain { talk, .. } => {
                let figures: Figures = serde_json::from_str(text.trim())?;
                Ok(match talk {
                    Talk::Stream | Talk::Maerts => {
                        let bytes = figures.bytes as f64;
                        (bytes / figures.seconds / 1e9, bytes)
                    }
                    _ => (figures.count as f64 / figures.seconds, figures.count as f64),
                })
            }
            Client::Pgbench { .. } => pgbench_rate(text),
            Client::Netpipe => netpipe_rate(&fs::read_to_string(netpipe_file(server))?),
        }
    }
}

impl Client {
    /// How many requests of ab take about `seconds`, and at least as long as a sample of it.
    fn ab_requests(self, rate: Option<f64>, seconds: f64) -> u64 {
        let asked = |rate| f64::max(rate * seconds.max(self.least_seconds()), AB_REQUESTS_MIN);
        rate.map_or(AB_REQUESTS_FIRST, asked) as u64
    }
}

/// How many requests take about `seconds`.
fn redis_requests(clients: u32, rate: Option<f64>, seconds: f64) -> u64 {
    let least = f64::from(clients) * REDIS_REQUESTS_EACH;
    rate.map_or(REDIS_REQUESTS_FIRST, |rate| rate * seconds)
        .max(least) as u64
}

fn curl_file(server: &Server) -> PathBuf {
    server.dir().join("fetched")
}

fn netpipe_file(server: &Server) -> PathBuf {
    server.dir().join("np.out")
}

/// `"GET","12345.67",...` of redis-benchmark --csv.
fn redis_rate(text: &str, command: &str) -> Result<f64> {
    let start = format!("\"{command}\"");
    let line = text
        .lines()
        .find(|line| line.starts_with(&start))
        .with_context(|| format!("no line for {command}"))?;
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

/// Requests a second and requests in all, from ab's report. What failed or was no document says so there.
fn ab_rate(text: &str) -> Result<(f64, f64)> {
    let number = |start: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        let line = line.with_context(|| format!("no {start:?}"))?;
        let number = line.split_whitespace().next().unwrap_or_default();
        Ok(number.parse()?)
    };
    if number("Failed requests:")? != 0.0 || text.contains("Non-2xx responses:") {
        bail!("requests failed");
    }
    Ok((
        number("Requests per second:")?,
        number("Complete requests:")?,
    ))
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

/// Transactions a second and in all, from pgbench's report.
fn pgbench_rate(text: &str) -> Result<(f64, f64)> {
    let after = |start: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        line.with_context(|| format!("no {start:?}"))
    };
    if !after("number of failed transactions: ")?.starts_with("0 ") {
        bail!("transactions failed");
    }
    let rate = after("tps = ")?.split(' ').next().unwrap_or_default();
    let done = after("number of transactions actually processed: ")?;
    let done = done.split('/').next().unwrap_or_default();
    Ok((rate.parse()?, done.trim().parse()?))
}

/// The best rate of all sizes, and the bytes of all messages (each is sent 20 times
/// three times there and back): lines of `size Mbps seconds`.
fn netpipe_rate(text: &str) -> Result<(f64, f64)> {
    let (mut best_bits, mut bytes) = (0.0f64, 0.0);
    for line in text.lines() {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let [size, megabits, ..] = numbers[..] else {
            bail!("not three numbers: {line}")
        };
        best_bits = best_bits.max(megabits * 1e6);
        bytes += size * 120.0;
    }
    if bytes == 0.0 {
        bail!("no lines");
    }
    Ok((best_bits / 8e9, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_clients_reports() {
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"87719.30\",\"0.291\"\n";
        assert_eq!(redis_rate(redis, "GET").unwrap(), 87719.30);
        let wrk = "  95361 requests in 2.00s, 114.60MB read\nRequests/sec:  47661.07\nTransfer/sec:     57.28MB\n";
        assert_eq!(wrk_rate(wrk).unwrap(), (47661.07, 95361.0));
        assert!(wrk_rate(&format!("  Socket errors: connect 0, read 3\n{wrk}")).is_err());
        let ab = "Complete requests:      5000\nFailed requests:        0\nRequests per second:    15490.96 [#/sec] (mean)\n";
        assert_eq!(ab_rate(ab).unwrap(), (15490.96, 5000.0));
        assert!(ab_rate(&ab.replace("        0", "        2")).is_err());
        assert!(ab_rate(&format!("{ab}Non-2xx responses:      7\n")).is_err());
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
    fn reads_pgbench_and_netpipe() {
        let pgbench = "number of transactions actually processed: 1234\nnumber of failed transactions: 0 (0.000%)\ntps = 617.5 (without initial connection time)\n";
        assert_eq!(pgbench_rate(pgbench).unwrap(), (617.5, 1234.0));
        let netpipe = "       1 0.5 0.00001\n     100 80.0 0.00001\n";
        assert_eq!(netpipe_rate(netpipe).unwrap(), (0.01, 12_120.0));
    }
}
