//! `fordway serve`: metrics beside what `fordway ss` says, clients that mean ill, and the real Prometheus.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::pair::Pair;
use support::{Ran, Runtime, built_shim, is_root};

const LONG: Duration = Duration::from_secs(30);

/// `fordway serve`, ended when it is dropped.
struct Served {
    process: Child,
    address: SocketAddr,
}

impl Served {
    fn by(runtime: &Runtime) -> Served {
        let mut command = runtime.command(["serve", "--metrics", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("start");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        let address = line.strip_prefix("serving http://").expect("where");
        let address = address.trim_end().strip_suffix("/metrics").expect("where");
        Served {
            process,
            address: address.parse().expect("an address"),
        }
    }

    /// The page's samples by their names and labels.
    fn metrics(&self) -> BTreeMap<String, f64> {
        let (status, page) = get(self.address);
        assert_eq!(status, 200, "{page}");
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let split = samples.map(|line| line.rsplit_once(' ').expect("a sample"));
        split
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
            .collect()
    }

    /// Asks until the metrics are so: a page is a second old at most.
    #[track_caller]
    fn until(&self, what: &str, mut wanted: impl FnMut(&BTreeMap<String, f64>) -> bool) {
        let deadline = Instant::now() + LONG;
        loop {
            let metrics = self.metrics();
            if wanted(&metrics) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {metrics:#?}");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request as it is written, and the status and body of what comes until the end.
fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    // Who is refused need not be heard to the end.
    let _ = stream.write_all(request.as_bytes());
    answer(stream)
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said).into_owned();
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.unwrap_or(0), body.to_owned())
}

fn get(address: SocketAddr) -> (u16, String) {
    let lines = format!("Host: {address}\r\nConnection: close\r\n");
    ask(address, &format!("GET /metrics HTTP/1.1\r\n{lines}\r\n"))
}

/// What `fordway ss` and `domain list` say, as metrics would.
fn listed(runtime: &Runtime) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, f64> = BTreeMap::new();
    let mut add = |name: String, value: &Value| {
        *all.entry(name).or_default() += value.as_f64().expect("a number");
    };
    let connections = runtime.json("ss")["connections"].clone();
    for end in connections.as_array().expect("ends") {
        let word = |field: &str| end[field].as_str().unwrap_or_default().to_owned();
        let (path, reason, domain) = (word("path"), word("reason"), word("domain"));
        let kind = format!("{{path=\"{path}\",reason=\"{reason}\"}}");
        add(format!("fordway_connections{kind}"), &1.into());
        for direction in ["tx", "rx"] {
            let bytes = &end[format!("ring_bytes_{direction}")];
            let labels = format!("{{domain=\"{domain}\",direction=\"{direction}\"}}");
            add(format!("fordway_ring_bytes_total{labels}"), bytes);
        }
    }
    let domains = runtime.json("domain list")["domains"].clone();
    for domain in domains.as_array().expect("domains") {
        let name = &domain["name"];
        for (metric, field) in [
            ("fordway_domain_processes", "processes"),
            ("fordway_ring_memory_bytes", "ring_memory_bytes"),
            ("fordway_ring_memory_max_bytes", "ring_memory_bytes_max"),
        ] {
            add(format!("{metric}{{domain={name}}}"), &domain[field]);
        }
    }
    all
}

/// Packets that a listing of rules counts in lines that end with a verdict.
fn counted(listing: &str, verdict: &str) -> f64 {
    let lines = listing.lines().filter(|line| line.ends_with(verdict));
    let packets = lines.filter_map(|line| line.split_once("counter packets ")?.1.split(' ').next());
    packets
        .map(|packets| packets.parse::<f64>().expect("a number"))
        .sum()
}

#[test]
fn metrics_are_what_is_listed_and_never_go_down() {
    let Some(shim) = built_shim().filter(|_| is_root()) else {
        return;
    };
    let runtime = Runtime::up();
    let rules = runtime.dir.join("rules.nft");
    let text = "table inet t {\n chain forward {\n type filter hook forward priority 0; policy accept;\n \
                tcp dport 6379 counter accept\n tcp dport 9 counter drop\n }\n}\n";
    fs::write(&rules, text).expect("write");
    let load = format!("filter load {}", rules.display());
    let mut pair = Pair::new(&runtime, &shim);
    runtime.say(&load).check(0);
    let served = Served::by(&runtime);
    let deadline = Instant::now() + LONG;
    let is_fast = |end: &Value| end["path"] == "fast" && end["ring_bytes_rx"].as_u64() > Some(0);
    loop {
        pair.ask();
        let ends = runtime.json("ss")["connections"].clone();
        if ends
            .as_array()
            .is_some_and(|ends| ends.len() == 2 && ends.iter().all(is_fast))
        {
            break;
        }
        assert!(Instant::now() < deadline, "{ends:#}");
    }
    runtime
        .inside("web", &["redis-cli", "-h", "10.77.0.3", "ping"])
        .check(0);
    served.until("what is listed", |metrics| {
        let is_told = |(name, value): (&String, &f64)| metrics.get(name) == Some(value);
        listed(&runtime).iter().all(is_told)
    });
    let before = served.metrics();
    assert_eq!(before[r#"fordway_connections{path="fast",reason=""}"#], 2.0);
    let sent = r#"fordway_ring_bytes_total{domain="web",direction="tx"}"#;
    let received = r#"fordway_ring_bytes_total{domain="db",direction="rx"}"#;
    assert!(
        before[sent] > 0.0 && before[sent] == before[received],
        "{before:#?}"
    );
    let version = format!(
        "fordway_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(before[&version], 1.0);

    let accepted = r#"fordway_filter_packets_total{verdict="accept"}"#;
    served.until("counts of rules", |metrics| {
        let listing = runtime.say("filter list").check(0).stdout;
        let packets = counted(&listing, "accept");
        packets > 0.0 && metrics[accepted] == packets && counted(&listing, "drop") == 0.0
    });
    let before = served.metrics();
    // Other rules, none, and a program that is gone: no count goes down.
    runtime.say("filter load /dev/null").check(0);
    runtime.say(&load).check(0);
    drop(pair);
    served.until("no connection", |metrics| {
        metrics[r#"fordway_connections{path="fast",reason=""}"#] == 0.0
    });
    let after = served.metrics();
    for (name, value) in before.iter().filter(|(name, _)| name.contains("_total")) {
        assert!(
            after[name] >= *value,
            "{name}: {value}, then {}",
            after[name]
        );
    }
    // A name that goes has no series any more.
    runtime.say("domain rm --force web").check(0);
    served.until("no domain", |metrics| !metrics.contains_key(sent));
    runtime.say("down").check(0);
    served.until("no broker", |metrics| {
        *metrics == BTreeMap::from([("fordway_up".into(), 0.0)])
    });
    runtime.say("up --detach").check(0);
    served.until("another broker", |metrics| metrics["fordway_up"] == 1.0);
    drop(served);
    runtime.close();
}

#[test]
fn clients_that_mean_ill_are_answered_and_the_broker_serves() {
    let runtime = Runtime::up();
    let served = Served::by(&runtime);
    let address = served.address;
    let host = format!("Host: {address}\r\nConnection: close\r\n");
    let head = |lines: &str| format!("GET /metrics HTTP/1.1\r\n{lines}\r\n");
    let path = |path: &str| format!("GET {path} HTTP/1.1\r\n{host}\r\n");
    for (request, status) in [
        (head(&host), 200),
        (path("/"), 404),
        (path("/../../etc/passwd"), 404),
        (path("/metrics/../secret"), 404),
        (path("/%2e%2e/%2e%2e/etc/passwd"), 404),
        (path("/%zz"), 400),
        (path("metrics"), 400),
        ("nonsense\r\n\r\n".to_owned(), 400),
        (head(""), 400),
        (head(&format!("{host}{host}")), 400),
        (head("Host: evil.example\r\nConnection: close\r\n"), 421),
        (head(&format!("{host}X: {}\r\n", "x".repeat(1 << 20))), 431),
        (path(&format!("/{}", "x".repeat(1 << 20))), 414),
        (format!("DELETE /metrics HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("GET /metrics HTTP/3.0\r\n{host}\r\n"), 505),
    ] {
        let said = ask(address, &request);
        assert_eq!(said.0, status, "{:.80}: {said:?}", request);
    }
    // Who asks without an end and does not read.
    let mut greedy = TcpStream::connect(address).expect("connect");
    greedy
        .set_write_timeout(Some(Duration::from_millis(200)))
        .expect("a limit");
    let many = head(&format!("Host: {address}\r\n")).repeat(1000);
    while greedy.write_all(many.as_bytes()).is_ok() {}
    assert_eq!(get(address).0, 200);
    // Ten thousand come and go.
    for _ in 0..10_000 {
        drop(TcpStream::connect(address).expect("connect"));
    }
    until("an answer", || (get(address).0 == 200).then_some(()));
    // All places are taken by who says half a request; each is told that it was too slow.
    let slow: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("connect");
            stream.set_read_timeout(Some(LONG)).expect("a limit");
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:");
            stream
        })
        .collect();
    assert_eq!(get(address).0, 503);
    runtime.say("ss").check(0);
    let told: Vec<u16> = slow.into_iter().map(|stream| answer(stream).0).collect();
    assert!(
        told.iter().all(|status| [408, 503].contains(status)),
        "{told:?}"
    );
    assert!(told.contains(&408) && told.contains(&503), "{told:?}");
    served.until("places again", |metrics| metrics["fordway_up"] == 1.0);
    let mut served = served;
    assert!(
        served.process.try_wait().expect("status").is_none(),
        "it ended"
    );
    drop(served);
    runtime.close();
}

/// What stands in /proc/PID/status behind a word.
fn status_of(pid: i32, word: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_default()
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Processes that were started with these arguments.
fn serving(address: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let asked = format!("serve\0--metrics\0{address}\0");
    pids.filter(|pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).ends_with(&asked)
    })
    .collect()
}

/// A port that nobody has just now.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("address")
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_service_does_nothing_without_its_section() {
    let runtime = Runtime::new();
    let file = runtime.dir.join("fordway.toml");
    fs::write(&file, "uplink = false\n").expect("write");
    let said = format!("serve --if-configured --config {}", file.display());
    let ran = runtime.say(&said).check(0);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("[metrics]"), "{}", ran.stderr);
}

#[test]
fn the_broker_starts_it_with_nothing_to_lose_and_ends_it() {
    let runtime = Runtime::new();
    let file = runtime.dir.join("fordway.toml");
    let address = free_port();
    fs::write(&file, format!("[metrics]\nlisten = \"{address}\"\n")).expect("write");
    let up = format!("up --detach --config {}", file.display());
    runtime.say(&up).check(0);
    let served = || {
        until("metrics", || TcpStream::connect(address).ok());
        let pids = serving(&address.to_string());
        assert_eq!(pids.len(), 1, "{pids:?}");
        pids[0]
    };
    let first = served();
    until("the broker's word", || {
        let is_up = |line: &str| line == "fordway_up 1";
        get(address).1.lines().any(is_up).then_some(())
    });
    assert_eq!(status_of(first, "NoNewPrivs:"), "1");
    assert_eq!(status_of(first, "Seccomp:"), "2");
    assert_eq!(status_of(first, "CapPrm:"), "0000000000000000");
    if is_root() {
        assert_eq!(
            status_of(first, "Uid:"),
            fordwayd::admin::READER.to_string()
        );
        let root = PathBuf::from(format!("/proc/{first}/root"));
        let seen = fs::read_dir(root).expect("its root").flatten();
        let seen: Vec<_> = seen.map(|entry| entry.file_name()).collect();
        let top = runtime
            .run_dir()
            .components()
            .nth(1)
            .expect("a directory")
            .as_os_str()
            .to_owned();
        assert_eq!(seen, [top], "beside the way to the runtime directory");
    }
    // Killed, it is started again.
    let kill = |pid: i32| kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
    kill(first).expect("kill");
    let second = until("another one", || {
        let pids = serving(&address.to_string());
        pids.into_iter().find(|pid| *pid != first)
    });
    until("metrics", || (get_if_there(address)? == 200).then_some(()));
    // It ends with the broker, however that ends.
    kill_process(runtime.broker_pid(), Signal::KILL).expect("kill");
    until("its end", || {
        serving(&address.to_string()).is_empty().then_some(())
    });
    assert_ne!(first, second);
    runtime.say(&up).check(0);
    served();
    runtime.say("down").check(0);
    assert!(serving(&address.to_string()).is_empty());
}

fn get_if_there(address: SocketAddr) -> Option<u16> {
    TcpStream::connect(address).ok()?;
    Some(get(address).0)
}

fn is_there(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        fordway_test_skip::skipped(format!("{program} is missing"));
    }
    is_there
}

fn contrib() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus")
}

#[test]
fn promtool_takes_page_rules_and_configuration() {
    if !is_there("promtool") {
        return;
    }
    let runtime = Runtime::up();
    let served = Served::by(&runtime);
    let page = runtime.dir.join("page");
    for stopped in [false, true] {
        if stopped {
            runtime.say("down").check(0);
            served.until("no broker", |metrics| metrics["fordway_up"] == 0.0);
        }
        fs::write(&page, get(served.address).1).expect("write");
        let mut lint = Command::new("promtool");
        lint.args(["check", "metrics"])
            .stdin(fs::File::open(&page).expect("page"));
        let said = Ran::new(&mut lint).check(0);
        assert!(said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
    }
    for words in [
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts-test.yml"],
    ] {
        let mut promtool = Command::new("promtool");
        Ran::new(promtool.args(words).current_dir(contrib())).check(0);
    }
}

/// The real one, which scrapes, ended when it is dropped.
struct Prometheus {
    process: Child,
    address: SocketAddr,
}

impl Prometheus {
    fn scraping(runtime: &Runtime, target: SocketAddr) -> Prometheus {
        let file = runtime.dir.join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: fordway\n    static_configs:\n      - targets: [\"{target}\"]\n"
        );
        fs::write(&file, text).expect("write");
        let address = free_port();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                runtime.dir.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = command.spawn().expect("start");
        Prometheus { process, address }
    }

    /// The value of an expression with one series, once there is one.
    fn value(&self, expression: &str) -> f64 {
        until(expression, || {
            TcpStream::connect(self.address).ok()?;
            let lines = format!("Host: {}\r\nConnection: close\r\n", self.address);
            let request = format!("GET /api/v1/query?query={expression} HTTP/1.0\r\n{lines}\r\n");
            let document: Value = serde_json::from_str(&ask(self.address, &request).1).ok()?;
            let value = document["data"]["result"].get(0)?["value"]
                .get(1)?
                .as_str()?;
            value.parse().ok()
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn prometheus_scrapes_it() {
    if !is_there("prometheus") {
        return;
    }
    let runtime = Runtime::up();
    let served = Served::by(&runtime);
    let prometheus = Prometheus::scraping(&runtime, served.address);
    assert_eq!(prometheus.value("up"), 1.0);
    assert_eq!(prometheus.value("fordway_up"), 1.0);
    assert_eq!(prometheus.value("fordway_domains"), 1.0);
    // Every family that there is of a broker with no domain but the host.
    let families = served.metrics();
    let named = families.keys().filter_map(|name| name.split('{').next());
    for name in named.collect::<std::collections::BTreeSet<_>>() {
        prometheus.value(&format!("sum({name})"));
    }
    drop(prometheus);
    drop(served);
    runtime.close();
}
