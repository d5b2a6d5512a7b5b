//! A server and a client, each in a domain of its own, whose connection gets rings.

use super::Runtime;
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// redis in a domain, and a client in another one that does a line at a time.
pub struct Pair {
    pub server: Child,
    pub client: Child,
    stdin: ChildStdin,
}

impl Pair {
    pub fn new(runtime: &Runtime, shim: &Path) -> Pair {
        let start = |domain: &str, program: &str| {
            let line = format!("run --domain {domain} -- {program}");
            let mut command = runtime.command(line.split(' '));
            command.env("FORDWAY_LIB", shim);
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            command.spawn().expect("start")
        };
        runtime.say("domain add db --ip 10.77.0.3").check(0);
        let server = start(
            "db",
            "redis-server --port 6379 --bind 10.77.0.3 --protected-mode no --save  --dir /",
        );
        let deadline = Instant::now() + Duration::from_secs(30);
        let ping = ["redis-cli", "-h", "10.77.0.3", "ping"];
        while !runtime.inside("db", &ping).stdout.contains("PONG") {
            assert!(Instant::now() < deadline, "redis does not answer");
        }
        let mut client = start("web", "redis-cli -h db");
        let stdin = client.stdin.take().expect("stdin");
        Pair {
            server,
            client,
            stdin,
        }
    }

    pub fn ask(&mut self) {
        self.stdin.write_all(b"incr n\n").expect("write");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in [&mut self.client, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
