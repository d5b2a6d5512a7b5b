//! Two hosts with a wire between them: the far end's is the kernel's, the program's is a stack of its own or, for comparison,
//! the kernel's too.
//!
//! ```text
//!   program (lo only) ── control socket ── stackd (veth, no address) ── veth ── far end (10.70.0.1)
//!   program (10.70.0.5)                                          ───── veth ── far end (10.70.0.1)
//! ```
//! Addresses are the same in both, so that what a program says of its sockets can be compared line by line.
#![allow(dead_code)]

use fordway_platform::netns;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const OWN: &str = "10.70.0.5";
pub const FAR: &str = "10.70.0.1";
/// Whom stacks become: this, and more. What one user has is counted together.
const UID: u32 = 0x7000_0000;
/// Longest that a program may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Whose stack the program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    Own,
    Kernels,
}

/// See the module.
pub struct Bed {
    pub dir: PathBuf,
    pub stack: Stack,
    name: String,
    stackd: Option<Child>,
    shim: PathBuf,
    /// The stack's, nobody else's: the kernel bounds the descriptors in flight of a user (unix(7), ETOOMANYREFS).
    uid: u32,
    protocols: &'static str,
    others: Vec<Child>,
    /// Descriptors that the stack may have; 0: the usual ones.
    files_max: u32,
    sockets_max: u32,
    kind: Kind,
}

/// What the stack does of IPv6 by itself, and what lies between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing, as what it is compared with has `nodad`; a cable.
    Quiet,
    /// All that a Linux host does; a bridge that passes groups on to who has reported them only (mcast_snooping).
    Whole,
}

/// Sockets that a stack may have, if a test does not say.
pub const SOCKETS_MAX: u32 = 8192;

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.is_ok_and(|status| status.success()), "ip {words}");
}

/// The library, as it was built last beside the programs.
fn shim() -> Option<PathBuf> {
    let bin = Path::new(env!("CARGO_BIN_EXE_fordway-stackd"));
    let target = bin.parent()?.parent()?;
    let named = std::env::var_os("FORDWAY_BIN").map(PathBuf::from);
    let places = [named, Some(target.join("release/fordway"))];
    let mut shims = places
        .into_iter()
        .flatten()
        .map(|fordway| fordway.with_file_name("libfordway.so"));
    shims.find(|shim| shim.exists())
}

impl Bed {
    /// `None`, with a line that says why, where it cannot be.
    pub fn start(stack: Stack) -> Option<Bed> {
        Bed::start_of(stack, "", 0, SOCKETS_MAX, Kind::Quiet)
    }

    /// With a stack that is one more host among others. `far` is done at the far end before the stack begins.
    pub fn start_whole(far: &[&str]) -> Option<Bed> {
        let mut bed = Bed::make(Stack::Own, "", 0, SOCKETS_MAX, Kind::Whole)?;
        for words in far {
            said(bed.far(&words.split(' ').collect::<Vec<_>>()));
        }
        // The far host is heard of by the bridge, too, once it has reported the group of its last address.
        let group = match far.iter().any(|words| words.contains("fd70::5/")) {
            true => "port br0 grp ff02::1:ff00:5",
            false => "port br0 grp ff02::1:ff00:1",
        };
        let began = Instant::now();
        while !said(bed.far(&["bridge", "mdb", "show", "dev", "br0"])).contains(group) {
            assert!(began.elapsed() < LIMIT / 4, "no {group}");
        }
        bed.start_stack();
        Some(bed)
    }

    /// With a stack that has these protocols: words in quotes, with commas between.
    pub fn start_with(stack: Stack, protocols: &'static str) -> Option<Bed> {
        Bed::start_of(stack, protocols, 0, SOCKETS_MAX, Kind::Quiet)
    }

    /// With a stack that may have no more descriptors than this.
    pub fn start_short(stack: Stack, files_max: u32) -> Option<Bed> {
        Bed::start_of(stack, "", files_max, SOCKETS_MAX, Kind::Quiet)
    }

    /// With a stack that may have no more sockets than this.
    pub fn start_small(stack: Stack, sockets_max: u32) -> Option<Bed> {
        Bed::start_of(stack, "", 0, sockets_max, Kind::Quiet)
    }

    fn start_of(
        stack: Stack,
        protocols: &'static str,
        files_max: u32,
        sockets_max: u32,
        kind: Kind,
    ) -> Option<Bed> {
        let mut bed = Bed::make(stack, protocols, files_max, sockets_max, kind)?;
        if stack == Stack::Own {
            bed.start_stack();
        }
        Some(bed)
    }

    fn make(
        stack: Stack,
        protocols: &'static str,
        files_max: u32,
        sockets_max: u32,
        kind: Kind,
    ) -> Option<Bed> {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("namespaces need root");
            return None;
        }
        let Some(shim) = shim() else {
            fordway_test_skip::skipped("libfordway.so is not built");
            return None;
        };
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("fws{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&dir).expect("a directory");
        let bed = Bed {
            uid: UID + number,
            dir,
            stack,
            name,
            stackd: None,
            shim,
            protocols,
            others: Vec::new(),
            files_max,
            sockets_max,
            kind,
        };
        bed.make_network();
        Some(bed)
    }

    fn namespace(&self, of: &str) -> String {
        format!("{}{of}", self.name)
    }

    fn make_network(&self) {
        let [program, wire, far] = ["p", "s", "f"].map(|of| self.namespace(of));
        for namespace in [&program, &wire, &far] {
            ip(&format!("netns add {namespace}"));
            ip(&format!("-n {namespace} link set lo up"));
        }
        let near = match self.stack {
            Stack::Own => &wire,
            Stack::Kernels => &program,
        };
        ip(&format!(
            "-n {near} link add w0 type veth peer name f0 netns {far}"
        ));
        let mut far_device = "f0";
        if self.kind == Kind::Whole {
            far_device = "br0";
            // It asks each second, waits half a second for answers, and forgets after three. What nobody has reported goes nowhere then.
            ip(&format!(
                "-n {far} link add br0 type bridge mcast_snooping 1 mcast_querier 1 mcast_query_interval 100 \
                 mcast_startup_query_interval 100 mcast_query_response_interval 50 mcast_membership_interval 300"
            ));
            ip(&format!("-n {far} link set f0 master br0"));
            said(self.far(&["sysctl", "-qw", "net.ipv6.conf.br0.accept_dad=0"]));
            ip(&format!("-n {far} link set br0 up"));
        }
        ip(&format!("-n {far} addr add {FAR}/16 dev {far_device}"));
        ip(&format!(
            "-n {far} addr add fd70::1/64 dev {far_device} nodad"
        ));
        match self.stack {
            Stack::Own => ip(&format!("-n {near} link set w0 addrgenmode none")),
            Stack::Kernels => {
                ip(&format!("-n {near} addr add {OWN}/16 dev w0"));
                ip(&format!("-n {near} addr add fd70::5/64 dev w0 nodad"));
            }
        }
        ip(&format!("-n {near} link set w0 up"));
        ip(&format!("-n {far} link set f0 up"));
    }

    pub fn control_socket(&self) -> PathBuf {
        self.dir.join("stack")
    }

    /// The namespace of the program.
    pub fn program_netns(&self) -> OwnedFd {
        let file = Path::new("/run/netns").join(self.namespace("p"));
        netns::open(&file).expect("a file").expect("a namespace")
    }

    fn cookie(&self) -> u64 {
        netns::cookie(self.program_netns().as_fd()).expect("a cookie")
    }

    /// What the stack has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Starts the stack, also once more.
    pub fn start_stack(&mut self) {
        let alone = match self.kind {
            Kind::Quiet => r#", "detects_duplicates": false, "router_advertisements": false"#,
            Kind::Whole => "",
        };
        let config = format!(
            r#"{{"control_socket": "{}", "port": {{"packet": "w0"}}, "mac": "02:70:00:00:00:05",
                "addresses": ["{OWN}/16", "fd70::5/64"], "routes": [], "sockets_max": {}, "netns_cookie": {}, "uid": {}, "protocols": [{}]{}}}"#,
            self.control_socket().display(),
            self.sockets_max,
            self.cookie(),
            self.uid,
            self.protocols,
            alone
        );
        // As the broker starts it, but for the broker: with the library, and confined.
        let broker = self.dir.join("control");
        std::fs::create_dir_all(&broker).expect("a directory");
        let broker = broker.join("broker.sock").display().to_string();
        let shim = self.shim.display().to_string();
        let limit = match self.files_max {
            0 => String::new(),
            files => format!("ulimit -n {files}; "),
        };
        let run = limit + "exec env LD_PRELOAD=\"$1\" FORDWAY_SOCKET=\"$2\" \"$0\" 0";
        let mut command = self.command_in("s", &["sh", "-c", &run]);
        command.args([env!("CARGO_BIN_EXE_fordway-stackd"), &shim, &broker]);
        let path = self.dir.join("config");
        std::fs::write(&path, config).expect("a configuration");
        command.stdin(std::fs::File::open(path).expect("a configuration"));
        let mut log = std::fs::File::options();
        log.create(true).append(true);
        let log = log.open(self.dir.join("log")).expect("a log");
        command.stderr(log);
        self.stackd = Some(command.spawn().expect("stackd"));
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.control_socket())
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            assert!(began.elapsed() < LIMIT, "no stack");
            std::thread::yield_now();
        }
    }

    /// Whether the stack is still there.
    pub fn stack_lives(&mut self) -> bool {
        let stackd = self.stackd.as_mut().expect("a stack");
        stackd.try_wait().expect("its state").is_none()
    }

    pub fn stack_pid(&self) -> u32 {
        self.stackd.as_ref().expect("a stack").id()
    }

    pub fn kill_stack(&mut self) {
        let mut stackd = self.stackd.take().expect("a stack");
        stackd.kill().expect("kill");
        stackd.wait().expect("wait");
    }

    fn command_in(&self, of: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace(of)])
            .args(words);
        command
    }

    /// A program that has the stack's sockets.
    pub fn near(&self, words: &[&str]) -> Command {
        let mut command = self.command_in("p", &["env"]);
        if self.stack == Stack::Own {
            command
                .arg(format!("LD_PRELOAD={}", self.shim.display()))
                .arg(format!("FORDWAY_STACK={}", self.control_socket().display()));
        }
        command.args(words).current_dir(&self.dir);
        command
    }

    /// A program where the stack's programs are, without the library.
    pub fn bare(&self, words: &[&str]) -> Command {
        self.command_in("p", words)
    }

    /// A program where the stack's port is.
    pub fn wire(&self, words: &[&str]) -> Command {
        self.command_in("s", words)
    }

    /// A program at the far end.
    pub fn far(&self, words: &[&str]) -> Command {
        let mut command = self.command_in("f", words);
        command.current_dir(&self.dir);
        command
    }

    /// Starts what runs until the bed ends.
    pub fn keep(&mut self, mut command: Command) {
        let child = command.stdin(Stdio::null()).spawn();
        self.others.push(child.expect("a program"));
    }

    /// The far end of `cases.py`, once it is there; the path of its socket.
    pub fn start_far(&mut self) -> PathBuf {
        let path = self.dir.join("far");
        let script = script("far.py", &self.dir);
        let mut command = self.far(&["python3", &script, &path.display().to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3");
        let mut line = String::new();
        let said = child.stdout.take().expect("its output");
        BufReader::new(said)
            .read_line(&mut line)
            .expect("its first line");
        assert_eq!(line, "ready\n");
        self.others.push(child);
        path
    }

    /// Lines of `cases.py`.
    pub fn play_cases(&mut self, words: &[&str]) -> Vec<String> {
        let far = self.start_far();
        let script = script("cases.py", &self.dir);
        let mut all = vec!["timeout", "100", "python3", &script];
        let far = far.display().to_string();
        all.push(&far);
        all.extend(words);
        let output = self
            .near(&all)
            .stderr(Stdio::inherit())
            .output()
            .expect("python3");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect()
    }
}

fn script(name: &str, dir: &Path) -> String {
    let text = match name {
        "far.py" => include_str!("far.py"),
        _ => include_str!("cases.py"),
    };
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a script");
    path.display().to_string()
}

/// What a program has said, once it has ended well.
pub fn said(mut command: Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("a program");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{stderr}");
    String::from_utf8_lossy(&stdout).into_owned()
}

/// Tries until a program ends well: a server may be about to start.
pub fn said_soon(mut make: impl FnMut() -> Command) -> String {
    let began = Instant::now();
    loop {
        let output = make().output().expect("a program");
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        assert!(began.elapsed() < LIMIT / 4, "{:?}: {output:?}", make());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in self.others.iter_mut().chain(&mut self.stackd) {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        for of in ["p", "s", "f"] {
            let namespace = self.namespace(of);
            // What programs have left running there.
            let pids = Command::new("ip")
                .args(["netns", "pids", &namespace])
                .output();
            let pids = pids.map(|output| output.stdout).unwrap_or_default();
            for pid in String::from_utf8_lossy(&pids).split_whitespace() {
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
            let _ = Command::new("ip")
                .args(["netns", "del", &namespace])
                .status();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
