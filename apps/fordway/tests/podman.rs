//! Containers of the real Podman: by the device of `fordway cdi`, registered by `fordway watch`.
//!
//! All of it lies on a [`Stage`]: Podman has the network namespace of the stage's host, and there
//! an empty /run, /var/lib and /dev/shm. Its storage is in the test's directory. So nothing of the
//! machine's own containers is seen or touched, and nothing is left. The image is made of programs
//! of the machine. Needs root and a Podman that can start a container; says so otherwise.

mod support;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::stage::{HOST, Stage};
use support::{Ran, built_shim, is_root};

const DEVICE: &str = "--device fordway.dev/net=on";
const REDIS: &str = "redis-server --bind 0.0.0.0 -::* --protected-mode no --save  --dir /";
const LIMIT: Duration = Duration::from_secs(60);

/// What Podman must not share with that of the machine; and crun has no cgroups of both versions.
const LAY: &str = "set -e
for dir in /run /var/lib /dev/shm; do mount -t tmpfs none $dir; done
mkdir /run/lock /var/lib/cni
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
";

/// What an engine of somebody's own needs besides: the somebody, numbers to map, and a device that
/// slirp4netns may open. What is mounted over has to exist; where it does not, it is left there, empty.
const LAY_ROOTLESS: &str = "set -e
mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun /dev/net/tun || true
echo root:x:0:0:root:/root:/bin/sh > /run/passwd
echo some:x:61234:61234::$1/home:/bin/sh >> /run/passwd
echo root:x:0: > /run/group
echo some:x:61234: >> /run/group
echo some:200000:65536 > /run/numbers
mount --bind /run/passwd /etc/passwd
mount --bind /run/group /etc/group
touch /etc/subuid /etc/subgid
mount --bind /run/numbers /etc/subuid
mount --bind /run/numbers /etc/subgid
install -d -o 61234 -g 61234 $1/home /run/user /run/user/61234
";
/// Podman as that somebody.
const AS_SOME: [&str; 8] = [
    "--reuid",
    "61234",
    "--regid",
    "61234",
    "--clear-groups",
    "podman",
    "--storage-driver",
    "vfs",
];

/// Limits that are no higher than those that a test may have.
const CONF: &str = "[containers]
cgroups = \"disabled\"
default_ulimits = [\"nofile=1024:4096\", \"nproc=1024:4096\"]
";

/// Asks redis once for each line that it is given, by another C library. Or, as `ask then PROG...`,
/// waits for a line and becomes another program: what is connected before the container is attached
/// stays on the kernel path. Alone it is a health check: it asks the container's own redis once.
const MUSL_CLIENT: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int asks(int s) {
    char answer[7];
    if (write(s, "PING\r\n", 6) != 6) return 2;
    for (int got = 0; got < 7;) {
        int n = read(s, answer + got, 7 - got);
        if (n <= 0) return 3;
        got += n;
    }
    return memcmp(answer, "+PONG\r\n", 7) ? 4 : 0;
}
int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "then")) {
        char byte;
        while (read(0, &byte, 1) == 1 && byte != '\n');
        execvp(words[2], words + 2);
        return 5;
    }
    char line[64];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(6379)};
    inet_pton(AF_INET, count > 1 ? words[1] : "127.0.0.1", &to.sin_addr);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (struct sockaddr *)&to, sizeof to)) return 1;
    if (count == 1) return asks(s);
    for (int failed; fgets(line, sizeof line, stdin);)
        if ((failed = asks(s))) return failed;
    return 0;
}
"#;

/// A process on the stage that speaks in lines; it does not outlive its bound.
struct Part {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Part {
    fn start(stage: &Stage, program: &Command) -> Part {
        let mut bounded = Command::new("timeout");
        bounded.arg(LIMIT.as_secs().to_string());
        bounded.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => bounded.env(name, value),
                None => bounded.env_remove(name),
            };
        }
        let mut command = stage.command(&bounded);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("start");
        let lines = BufReader::new(process.stdout.take().expect("stdout"));
        Part { process, lines }
    }

    /// Waits for a line with this in it.
    #[track_caller]
    fn hear(&mut self, text: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("read") > 0 {
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("it ended without: {text}");
    }

    fn say(&mut self, line: &[u8]) {
        let stdin = self.process.stdin.as_mut().expect("stdin");
        stdin.write_all(line).expect("write");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.process.stdin = None;
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Podman, a broker, and a watch.
struct Podman {
    /// Somebody's own, in user namespaces; the broker and the watch are root's in any case.
    is_rootless: bool,
    service: Option<Part>,
    watch: Option<Part>,
    stage: Stage,
}

impl Podman {
    /// With the image `box` and an engine that does not serve yet; `None` with a skip.
    fn new(is_rootless: bool) -> Option<Podman> {
        let shim = built_shim().filter(|_| is_root())?;
        if Command::new("podman").arg("--version").output().is_err() {
            fordway_test_skip::skipped("podman is not installed");
            return None;
        }
        let stage = Stage::new();
        let dir = &stage.runtime.dir;
        fs::write(dir.join("lay"), LAY).expect("write");
        fs::write(dir.join("containers.conf"), CONF).expect("write");
        make_image(&dir.join("image"));
        stage.host(&format!("sh {}", dir.join("lay").display()));
        if is_rootless {
            fs::write(dir.join("lay"), LAY_ROOTLESS).expect("write");
            stage.host(&format!("sh {0}/lay {0}", dir.display()));
        }
        let tar = dir.join("image.tar").display().to_string();
        stage.host(&format!(
            "tar -C {} -cf {tar} .",
            dir.join("image").display()
        ));
        let mut podman = Podman {
            is_rootless,
            service: None,
            watch: None,
            stage,
        };
        let import = format!("import -q {tar} box");
        let run = format!("run --rm{} box redis-cli --version", podman.network());
        let network = is_rootless.then_some("network create --ipv6 inner");
        for line in [Some(&*import), network, Some(&run)].into_iter().flatten() {
            let tried = podman.podman(line);
            if tried.output.status.code() != Some(0) {
                let why = tried.stderr.lines().last().unwrap_or_default();
                fordway_test_skip::skipped(format!("podman cannot start a container here: {why}"));
                return None;
            }
        }
        for line in ["up --detach", "cdi install --dir /run/cdi"] {
            let mut fordway = podman.stage.runtime.command(line.split(' '));
            let fordway = fordway.env("FORDWAY_LIB", &shim);
            Ran::new(&mut podman.stage.command(fordway)).check(0);
        }
        // Before its engine.
        let line = format!("watch --podman --socket {}", podman.socket());
        let watch = podman.stage.runtime.command(line.split(' '));
        podman.watch = Some(Part::start(&podman.stage, &watch));
        Some(podman)
    }

    fn command(&self, line: &str) -> Command {
        let dir = &self.stage.runtime.dir;
        let mut command = if self.is_rootless {
            let mut command = Command::new("setpriv");
            command.args(AS_SOME);
            command.env("HOME", dir.join("home"));
            command.env("XDG_RUNTIME_DIR", "/run/user/61234");
            command.env_remove("DBUS_SESSION_BUS_ADDRESS");
            command
        } else {
            let mut command = Command::new("podman");
            command.arg("--root").arg(dir.join("store"));
            command.args(["--runroot", "/run/podman"]);
            command
        };
        command.env("CONTAINERS_CONF", dir.join("containers.conf"));
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "file"]);
        command.args(line.split(' '));
        command
    }

    /// Containers without root have addresses only in a network that is made for them.
    fn network(&self) -> &'static str {
        if self.is_rootless {
            " --network inner"
        } else {
            ""
        }
    }

    fn socket(&self) -> &'static str {
        if self.is_rootless {
            "/run/user/61234/engine"
        } else {
            "/run/engine"
        }
    }

    fn podman(&self, line: &str) -> Ran {
        Ran::new(&mut self.stage.command(&self.command(line)))
    }

    /// The engine serves from now on, and the watch has found it.
    fn serve(&mut self, attached: usize) {
        let line = format!("system service --time 0 unix://{}", self.socket());
        let service = self.command(&line);
        self.service = Some(Part::start(&self.stage, &service));
        self.watched(&format!("containers that are attached: {attached}"));
    }

    #[track_caller]
    fn watched(&mut self, text: &str) -> String {
        self.watch.as_mut().expect("a watch").hear(text)
    }

    /// A container that goes on, and its addresses.
    fn run(&mut self, name: &str, options: &str, program: &str) -> Vec<String> {
        let options = format!("{DEVICE}{}{options}", self.network());
        self.podman(&format!("run -d --name {name} {options} box {program}"))
            .check(0);
        let line = self.watched(&format!("{name} ("));
        let (_, behind) = line.split_once('(').expect("an address");
        let (inner, _) = behind.split_once(')').expect("an address");
        inner.split(", ").map(str::to_owned).collect()
    }

    fn names(&self) -> Vec<String> {
        let list = self.stage.json("domain list");
        let domains = list["domains"].as_array().expect("domains").iter();
        let names = domains.map(|domain| domain["name"].as_str().expect("a name").to_owned());
        names.filter(|name| name != "host").collect()
    }

    /// A client in a container of its own speaks to the server until both ends have moved bytes
    /// by rings.
    #[track_caller]
    fn speaks_by_rings(&mut self, name: &str, program: &str, server: &str) {
        let options = format!("--name {name} {DEVICE}{}", self.network());
        let line = format!("run -i --rm {options} box ask then {program}");
        let mut client = Part::start(&self.stage, &self.command(&line));
        self.watched(&format!("{name} ("));
        client.say(b"\n");
        let deadline = Instant::now() + LIMIT;
        loop {
            client.say(b"ping\n");
            let document = self.stage.json("ss --all");
            let rows = document["connections"].as_array().expect("connections");
            let moved = |row: &Value, domain: &str, with: Option<u64>| {
                let both = ["ring_bytes_tx", "ring_bytes_rx"];
                row["domain"] == domain
                    && row["path"] == "fast"
                    && both.iter().all(|count| row[count].as_u64() > Some(0))
                    && (with.is_none() || row["channel"].as_u64() == with)
            };
            let own = rows.iter().find(|row| moved(row, name, None));
            let channel = own.and_then(|row| row["channel"].as_u64());
            if channel.is_some() && rows.iter().any(|row| moved(row, server, channel)) {
                break;
            }
            assert!(Instant::now() < deadline, "no rings: {document:#}");
        }
        client.process.stdin = None;
        assert!(client.process.wait().expect("wait").success());
        self.watched(&format!("{name} is detached"));
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.podman("rm -a -f -t 0");
        if self.is_rootless {
            // Ends the process that keeps the user namespace.
            let _ = self.podman("system migrate");
        }
    }
}

/// Programs of the machine, with the libraries that they name.
fn make_image(root: &Path) {
    let copy = |from: &str, to: &str| {
        let mut install = Command::new("install");
        install.args(["-D", "-m", "755", from]);
        Ran::new(install.arg(root.join(to))).check(0);
    };
    for dir in ["proc", "sys", "dev", "run", "etc", "tmp"] {
        fs::create_dir_all(root.join(dir)).expect("directory");
    }
    for program in ["redis-server", "redis-cli", "sh"] {
        let path = format!("/usr/bin/{program}");
        copy(&path, &format!("bin/{program}"));
        let needs = Ran::new(Command::new("ldd").arg(&path)).check(0).stdout;
        for library in needs
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            copy(library, library.trim_start_matches('/'));
        }
    }
    let loader = "/lib/ld-musl-x86_64.so.1";
    copy(loader, loader.trim_start_matches('/'));
    let source = root.join("ask.c");
    fs::write(&source, MUSL_CLIENT).expect("write");
    let mut compiler = Command::new("musl-gcc");
    compiler.arg(&source).arg("-o").arg(root.join("bin/ask"));
    Ran::new(&mut compiler).check(0);
}

#[test]
fn containers_with_the_device_speak_by_rings() {
    let Some(mut podman) = Podman::new(false) else {
        return;
    };
    podman.serve(0);
    // As little as a container can have: with the default seccomp profile.
    let strict = " --read-only --cap-drop all --security-opt no-new-privileges -p 7001:6379 \
                  --health-cmd ask --health-interval disable";
    let server = &podman.run("db", strict, REDIS)[0];
    podman.speaks_by_rings("web", &format!("redis-cli -h {server}"), "db");
    podman.podman("healthcheck run db").check(0);
    podman.speaks_by_rings("musl", &format!("ask {server}"), "db");
    podman.speaks_by_rings("far", &format!("redis-cli -h {HOST} -p 7001"), "db");
}

#[test]
fn containers_of_a_user_speak_by_rings() {
    let Some(mut podman) = Podman::new(true) else {
        return;
    };
    podman.serve(0);
    let server = podman.run("db", "", REDIS);
    assert_eq!(server.len(), 2, "an address of each family: {server:?}");
    podman.speaks_by_rings("web", &format!("redis-cli -h {}", server[0]), "db");
    podman.speaks_by_rings("six", &format!("redis-cli -h {}", server[1]), "db");
    podman.podman("kill db").check(0);
    podman.watched("db is detached");
}

#[test]
fn a_registration_lives_as_long_as_its_container() {
    let Some(mut podman) = Podman::new(false) else {
        return;
    };
    // One that runs before anybody watches, and one without the device.
    let line = format!("run -d --name early {DEVICE} box {REDIS}");
    podman.podman(&line).check(0);
    podman
        .podman(&format!("run -d --name plain box {REDIS}"))
        .check(0);
    podman.serve(1);
    assert_eq!(podman.names(), ["early"]);

    podman
        .podman(&format!("run -d --name d_B {DEVICE} box {REDIS}"))
        .check(0);
    podman.watched("d-b (");
    // A name that is taken, after mapping.
    let line = format!("run -d --name d.b {DEVICE} box {REDIS}");
    podman.podman(&line).check(0);
    // Events come in order: the watch has seen that one too, while the name was taken.
    podman.run("mark", "", REDIS);
    podman.podman("rm -f -t 0 mark").check(0);
    podman.watched("mark is detached");
    // Of those that share a namespace, one is registered; if it goes, what it had is gone, too.
    let shared = format!("--network container:early {DEVICE} box redis-server --port 7777");
    podman
        .podman(&format!("run -d --name side {shared}"))
        .check(0);
    podman.podman("restart -t 0 d_B").check(0);
    podman.watched("d-b is detached");
    podman.watched("d-b (");
    assert_eq!(podman.names(), ["early", "d-b"]);

    // The engine goes and comes back; the broker too. What has died meanwhile is gone.
    drop(podman.service.take());
    podman.podman("kill early").check(0);
    podman.podman("rm -f -t 0 side").check(0);
    podman.serve(1);
    assert_eq!(podman.names(), ["d-b"]);
    podman.stage.say("down").check(0);
    podman.stage.say("up --detach").check(0);
    podman.watched("containers that are attached: 1");
    podman.podman("rm -f -t 0 d_B d.b").check(0);
    podman.watched("d-b is detached");
    assert_eq!(podman.names(), [""; 0]);

    // Somebody makes another domain of a container's name: it is not the container's to take along.
    podman.run("late", "", REDIS);
    podman.stage.say("domain rm late --force").check(0);
    podman.stage.say("domain add late").check(0);
    podman.podman("rm -f -t 0 late").check(0);
    podman.watched("late is detached");
    assert_eq!(podman.names(), ["late"]);
}
