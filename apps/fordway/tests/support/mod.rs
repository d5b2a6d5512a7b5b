//! What the tests of the command line share: a runtime directory with a broker, and
//! `fordway` as a user would call it. Everything is gone when a test ends, however it
//! ends, and [`Runtime::close`] checks that.
#![allow(dead_code)] // each test binary uses its own part

pub mod pair;
pub mod place;
pub mod program;
pub mod stage;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A shared object without any dependency, which programs of every C library may load.
pub fn library(dir: &Path, name: &str, source: &str) -> PathBuf {
    let file = dir.join(format!("{name}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-nostdlib", "-x", "c", "-o"]);
    compiler.arg(&file).arg("-").stdin(Stdio::piped());
    let mut compiler = compiler.spawn().expect("cc");
    let mut stdin = compiler.stdin.take().expect("stdin");
    stdin.write_all(source.as_bytes()).expect("write");
    drop(stdin);
    assert!(compiler.wait().expect("wait").success());
    file
}

/// The shim, if it is built: the newest of both profiles.
pub fn built_shim() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_fordway")).parent()?;
    let release = beside.parent()?.join("release");
    let files = [beside, &release].map(|dir| dir.join("libfordway.so"));
    let made = |file: &PathBuf| file.metadata().and_then(|meta| meta.modified()).ok();
    let newest = files.into_iter().max_by_key(made);
    let newest = newest.filter(|file| file.exists());
    if newest.is_none() {
        fordway_test_skip::skipped("libfordway.so is not built");
    }
    newest
}

/// Copies a program. Another process writes it: a descriptor that we write by could be in a child
/// of another test, and the file would be busy.
pub fn install(from: &Path, to: &Path, mode: u32) -> PathBuf {
    let mut command = Command::new("install");
    command.arg("-m").arg(format!("{mode:o}")).arg(from).arg(to);
    Ran::new(&mut command).check(0);
    to.to_owned()
}

pub fn set_mode(file: &Path, mode: u32) {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("mode");
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        fordway_test_skip::skipped("needs root");
    }
    root
}

/// A private directory, and the broker that may run in it.
pub struct Runtime {
    pub dir: PathBuf,
}

impl Runtime {
    pub fn new() -> Runtime {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fordway-cli-{}-{unique}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).expect("runtime directory");
        set_mode(&dir, 0o755);
        let version = fordway_abi::ABI_VERSION;
        let source = format!("const unsigned fordway_abi_version = {version};");
        library(&dir, "libfordway", &source);
        Runtime { dir }
    }

    /// In the shim's place where a test is not about the shim: it does nothing.
    pub fn library(&self) -> PathBuf {
        self.dir.join("libfordway.so")
    }

    /// With a broker in it.
    pub fn up() -> Runtime {
        let runtime = Runtime::new();
        runtime.fordway(["up", "--detach"]).check(0);
        runtime
    }

    /// The command, before it is run.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
        command
            .arg("--runtime-dir")
            .arg(self.dir.join("run"))
            .args(args);
        command
            .env("FORDWAY_LIB", self.library())
            .stdin(Stdio::null());
        for name in [
            "LD_PRELOAD",
            "FORDWAY_SOCKET",
            "FORDWAY_PATH",
            "XDG_RUNTIME_DIR",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// `fordway ARGS...`, to its end.
    pub fn fordway<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        Ran::new(&mut self.command(args))
    }

    /// `fordway ARGS...` given as one string.
    pub fn say(&self, line: &str) -> Ran {
        self.fordway(line.split(' '))
    }

    /// `fordway ARGS...` on a terminal of so many columns.
    pub fn on_terminal(&self, line: &str, columns: u32) -> String {
        let fordway = env!("CARGO_BIN_EXE_fordway");
        let run = self.run_dir();
        let line = format!(
            "stty cols {columns}; exec {fordway} --runtime-dir {} {line}",
            run.display()
        );
        let mut script = Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .stdin(Stdio::null());
        let ran = Ran::new(script.env("FORDWAY_LIB", self.library())).check(0);
        ran.stdout.replace('\r', "")
    }

    /// A program in a domain, by the kernel path.
    pub fn inside(&self, domain: &str, program: &[&str]) -> Ran {
        let run = ["run", "--domain", domain, "--path", "kernel", "--"];
        self.fordway(run.iter().chain(program))
    }

    /// `fordway ARGS... --json`, read.
    pub fn json(&self, line: &str) -> serde_json::Value {
        let ran = self.say(&format!("{line} --json")).check(0);
        serde_json::from_str(&ran.stdout).expect("a JSON document")
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub fn broker_pid(&self) -> rustix::process::Pid {
        let text = fs::read_to_string(self.run_dir().join("broker.lock")).expect("broker.lock");
        rustix::process::Pid::from_raw(text.trim().parse().expect("a number")).expect("a pid")
    }

    /// Ends the broker and checks that nothing is left.
    pub fn close(self) {
        self.say("down").check(0);
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        assert!(
            !mounts.contains(self.dir.to_str().expect("path")),
            "a mount is left"
        );
        assert!(!self.run_dir().join("netns").exists() && !self.run_dir().join("hosts").exists());
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Ends a broker that runs, and clears away what a dead one left.
        let _ = self.say("down");
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub output: Output,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn new(command: &mut Command) -> Ran {
        let output = command.output().expect("start");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ran {
            output,
            stdout,
            stderr,
        }
    }

    /// Checks the exit status.
    #[track_caller]
    pub fn check(self, status: i32) -> Ran {
        assert_eq!(self.output.status.code(), Some(status), "{self:?}");
        self
    }

    /// Checks that it failed with one line, which has `text`.
    #[track_caller]
    pub fn fails(self, status: i32, text: &str) -> Ran {
        let ran = self.check(status);
        assert_eq!(ran.stderr.lines().count(), 1, "not one line: {ran:?}");
        assert!(
            ran.stderr.starts_with("fordway: ") && ran.stderr.contains(text),
            "{ran:?}"
        );
        ran
    }
}

/// The network devices of our own namespace, as `ip` lists them.
pub fn host_devices() -> String {
    Ran::new(Command::new("ip").args(["-o", "addr"])).stdout
}

/// Runs `work` in the network namespace of a file.
pub fn within<T: Send>(file: &Path, work: impl FnOnce() -> T + Send) -> T {
    use std::os::fd::AsFd;
    let namespace = fordway_platform::netns::open(file)
        .expect("open")
        .expect("a namespace");
    fordway_platform::netns::within(namespace.as_fd(), work).expect("enter")
}
