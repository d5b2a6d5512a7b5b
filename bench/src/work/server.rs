//! The servers: what each needs on disk, how it is started, when it is ready.

use super::postgres;
use crate::micro::end::{self, Talk};
use crate::micro::wire::Wire;
use crate::placement::client_place;
use anyhow::{Context, Result, bail};
use fordway_lab::packages;
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of the file that curl fetches.
pub(super) const CURL_BYTES: usize = 64 << 20;
/// It has no option for another one.
const NETPIPE_PORT: u16 = 5002;
/// By its own limit of connections memcached limits its descriptors, and the library has a part of these: enough
/// for a doorbell of each of 64 threads.
const MEMCACHED_CONNECTIONS: u32 = 20_000;
/// Documents that nginx serves.
const DOCUMENTS: [(&str, usize); 5] = [
    ("1k", 1024),
    ("100k", 100 << 10),
    ("1m", 1 << 20),
    ("10m", 10 << 20),
    ("64m", CURL_BYTES),
];

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerKind {
    /// redis-server without persistence.
    Redis,
    /// nginx with one worker and sendfile on.
    Nginx,
    /// iperf3 -s.
    Iperf3,
    /// memcached.
    Memcached {
        /// Threads, each with an event loop of its own.
        threads: u32,
    },
    /// The same by UDP, with one thread.
    MemcachedDatagrams,
    /// PostgreSQL with pgbench's tables, not synchronous.
    Postgres,
    /// NPtcp, which serves one client and ends.
    Netpipe,
    /// A plain server of our own.
    Plain {
        /// What is done.
        talk: Talk,
        /// Bytes of a message.
        size: usize,
    },
}

impl ServerKind {
    /// Programs that it needs.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            ServerKind::Redis => &["redis-server", "redis-cli"],
            ServerKind::Nginx => &["nginx"],
            ServerKind::Iperf3 => &["iperf3"],
            ServerKind::Memcached { .. } | ServerKind::MemcachedDatagrams => &["memcached"],
            ServerKind::Postgres => &["setpriv", "psql"],
            ServerKind::Netpipe => &["NPtcp"],
            ServerKind::Plain { .. } => &[],
        }
    }
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
    /// Where its programs were built, unless they are installed.
    build: Option<PathBuf>,
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
        Server::start_build(lab, kind, place, path, cpu, None)
    }

    /// The same of programs that were built in a directory (redis only).
    pub fn start_build(
        lab: &Lab,
        kind: ServerKind,
        place: &Place,
        path: PathChoice,
        cpu: Option<&str>,
        build: Option<&Path>,
    ) -> Result<Server> {
        let port = match kind {
            ServerKind::Netpipe => NETPIPE_PORT,
            _ => lab.free_port()?,
        };
        let dir = lab.work_dir().join(format!("server-{port}"));
        fs::create_dir_all(&dir)?;
        let host = place.ip().to_string();
        let mut spawn = match kind {
            ServerKind::Redis => redis_server(&host, port, &dir, build)?,
            ServerKind::Nginx => nginx(&host, port, &dir)?,
            ServerKind::Iperf3 => Spawn::new([
                &packages::path_of("iperf3")?,
                "-s",
                "-B",
                &host,
                "-p",
                &port.to_string(),
            ]),
            ServerKind::Memcached { threads } => {
                let program = packages::path_of("memcached")?;
                Spawn::line(&format!(
                    "{program} -u root -l {host} -p {port} -t {threads} -c {MEMCACHED_CONNECTIONS} -m 64 -U 0"
                ))
            }
            ServerKind::MemcachedDatagrams => {
                let program = packages::path_of("memcached")?;
                Spawn::line(&format!(
                    "{program} -u root -l {host} -p 0 -U {port} -t 1 -m 64"
                ))
            }
            ServerKind::Postgres => postgres::server(&dir, &host, port)?,
            ServerKind::Netpipe => netpipe()?,
            ServerKind::Plain { talk, size } => {
                let at = format!("{host}:{port}");
                Spawn::new(end::command("serve", Wire::Tcp, talk, &at, size)?)
            }
        };
        spawn.cpu = cpu.map(str::to_owned);
        let program = lab.spawn(place, path, &spawn)?;
        match kind {
            // It accepts before it can answer.
            ServerKind::Postgres => program.wait_for_output(postgres::READY)?,
            // Its client asks until it is answered.
            ServerKind::MemcachedDatagrams => {}
            _ if is_own_stack(path) => await_answer(lab, &host, port)?,
            _ => program.wait_for_port(port)?,
        }
        let server = Server {
            kind,
            program,
            host,
            port,
            dir,
            build: build.map(Path::to_owned),
        };
        match kind {
            ServerKind::Redis if is_own_stack(path) => server.store_value(lab, &client_place())?,
            ServerKind::Redis => server.store_value(lab, place)?,
            ServerKind::Postgres => {
                let fill = postgres::pgbench(server.host(), port, "-i -q -s 1")?;
                lab.run(place, PathChoice::Kernel, &fill)?;
            }
            _ => {}
        }
        Ok(server)
    }

    /// What it is.
    pub fn kind(&self) -> ServerKind {
        self.kind
    }

    /// Its directory, for what a client writes, too.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A program of its build.
    pub(super) fn tool(&self, name: &str) -> Result<String> {
        tool(self.build.as_deref(), name)
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

    pub(super) fn unix_socket(&self) -> String {
        self.dir.join("socket").to_string_lossy().into_owned()
    }

    /// The value that GET asks for (redis-benchmark's own key), 3 bytes.
    fn store_value(&self, lab: &Lab, place: &Place) -> Result<()> {
        let port = self.port.to_string();
        let argv = [
            &self.tool("redis-cli")?,
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

/// Whether the kernel does not know what the server listens on, and nobody is by the server's side.
fn is_own_stack(path: PathChoice) -> bool {
    matches!(
        path,
        PathChoice::Stack | PathChoice::FusedStack | PathChoice::UdpStack
    )
}

/// Returns when a connection from another domain is accepted.
fn await_answer(lab: &Lab, host: &str, port: u16) -> Result<()> {
    let tries = "for try in $(seq 200); do (exec 3<>/dev/tcp/$0/$1) 2>/dev/null && exit; sleep 0.05; done; exit 1";
    let asks = Spawn::new(["bash", "-c", tries, host, &port.to_string()]);
    let answered = lab.run(&client_place(), PathChoice::Kernel, &asks);
    answered.context("the server listens").map(drop)
}

/// A program of a build, or the installed one.
fn tool(build: Option<&Path>, name: &str) -> Result<String> {
    match build {
        Some(dir) => Ok(dir.join(name).to_string_lossy().into_owned()),
        None => packages::path_of(name),
    }
}

fn redis_server(host: &str, port: u16, dir: &Path, build: Option<&Path>) -> Result<Spawn> {
    let socket = dir.join("socket");
    let argv = [
        &tool(build, "redis-server")?,
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

fn nginx(host: &str, port: u16, dir: &Path) -> Result<Spawn> {
    let www = dir.join("www");
    fs::create_dir_all(&www)?;
    for (name, length_bytes) in DOCUMENTS {
        fs::write(www.join(name), contents(length_bytes))?;
    }
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

/// Bytes in which a lost, doubled or moved piece shows, the same in every run.
pub(super) fn contents(length_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; length_bytes];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

/// NPtcp serves one client and ends, by an error or not; the shell starts it anew.
fn netpipe() -> Result<Spawn> {
    let program = packages::path_of("NPtcp")?;
    let forever = format!("while :; do {program} -o /dev/null; done");
    Ok(Spawn::new(["sh", "-c", &forever]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_do_not_repeat() {
        let bytes = contents(4096);
        assert_ne!(bytes[..2048], bytes[2048..]);
        assert_eq!(contents(1001).len(), 1001);
    }
}
