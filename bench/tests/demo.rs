//! The demo as a user runs it: all of it, and what it leaves when it is interrupted, when it fails,
//! and when something is missing. As root, on the release build of the command, with real programs;
//! without them the tests say so and pass. No speed is asserted.

#[path = "../../apps/fordway/tests/support/judge.rs"]
mod judge;

use fordway_lab::{find_fordway, packages, proc};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const DEMO: &str = env!("CARGO_BIN_EXE_fordway-demo");
const PROGRAMS: [&str; 7] = [
    "redis-server",
    "redis-benchmark",
    "redis-cli",
    "nginx",
    "wrk",
    "ip",
    "nft",
];
const NOBODY: u32 = 65534;

/// One demo at a time, in a directory of its own for what it makes.
struct Place {
    dir: PathBuf,
    _one: MutexGuard<'static, ()>,
}

impl Place {
    fn new(name: &str) -> Option<Place> {
        static ONE: Mutex<()> = Mutex::new(());
        if !rustix::process::getuid().is_root() {
            fordway_test_skip::skipped("domains need root");
            return None;
        }
        if let Some(lacking) = packages::lacking(&PROGRAMS) {
            fordway_test_skip::skipped(lacking);
            return None;
        }
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!("demo-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Some(Place { dir, _one: one })
    }

    fn demo(&self, words: &[&str]) -> Command {
        let mut command = Command::new(DEMO);
        command.args(words).env("TMPDIR", &self.dir);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Processes that have something of ours open: whatever the demo starts writes to a file there.
    fn processes(&self) -> Vec<proc::Stat> {
        let ours = self.dir.to_string_lossy().into_owned();
        let mut all = proc::all();
        all.retain(|process| {
            let open = proc::descriptors(process.pid);
            open.iter().any(|target| target.contains(&ours))
        });
        all
    }

    /// No file, no mount, no process.
    fn holds_nothing(self) {
        let files: Vec<_> = std::fs::read_dir(&self.dir).unwrap().collect();
        assert!(files.is_empty(), "{files:?}");
        let ours = self.dir.to_string_lossy().into_owned();
        let mut mounts = proc::mount_points();
        mounts.retain(|point| point.contains(&ours));
        assert_eq!(mounts, [""; 0]);
        let processes = self.processes();
        assert!(processes.is_empty(), "{processes:?}");
        std::fs::remove_dir(&self.dir).unwrap();
    }
}

/// Plain lines that fit a terminal.
fn assert_fits(text: &str) {
    assert!(!text.contains(['\x1b', '\r']), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "wider than 80 columns: {line}");
    }
}

/// Reads lines until one has this word; what was read so far.
fn read_until(child: &mut Child, word: &str) -> (String, impl BufRead + use<>) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.lines().last().is_some_and(|line| line.contains(word)) {
        let length = output.read_line(&mut text).unwrap();
        assert!(length != 0, "it ended before {word:?}: {text}");
    }
    (text, output)
}

/// The rest of what it writes, and its end.
fn finish(mut child: Child, mut output: impl BufRead) -> (String, String, ExitStatus) {
    let (mut text, mut errors) = (String::new(), String::new());
    output.read_to_string(&mut text).unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    (text, errors, child.wait().unwrap())
}

#[test]
fn all_is_shown_and_nothing_is_left() {
    let Some(place) = Place::new("whole") else {
        return;
    };
    let output = place.demo(&["--quick", "--json"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    assert_fits(&told);
    assert!(
        told.contains("$ fordway ss") && told.contains("gone again"),
        "{told}"
    );
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(judge::faults(&document, "demo.json"), [""; 0]);
    let at = |pointer: &str| {
        let value = document.pointer(pointer);
        value.unwrap_or_else(|| panic!("no {pointer}: {document}"))
    };
    let number = |pointer: &str| at(pointer).as_f64().unwrap();
    let text = |pointer: &str| at(pointer).as_str().unwrap();
    assert_eq!(number("/schema"), 1.0);
    assert_eq!(at("/failures").as_array().unwrap().len(), 0);
    let works = at("/works").as_array().unwrap();
    assert_eq!(works.len(), 3, "{document}");
    for work in works {
        assert!(work["fast"]["ring_bytes"].as_u64().unwrap() > 0, "{work}");
        assert_eq!(work["kernel"]["ring_bytes"], 0);
        for side in ["kernel", "fast"] {
            assert!(work[side]["value"].as_f64().unwrap() > 0.0, "{work}");
            assert!(
                work[side]["cpu_s_per_unit"].as_f64().unwrap() > 0.0,
                "{work}"
            );
        }
    }
    assert!(number("/kernel_cpu_s") > 0.0 && number("/fast_cpu_s") > 0.0);
    assert!(number("/ring_bytes") > 0.0);

    assert!(text("/filter/rule").contains("reject with tcp reset"));
    let cut = text("/filter/cut_said");
    assert!(cut.contains("reset") || cut.contains("abort"), "{cut}");
    assert!(text("/filter/refused_said").contains("refused"));
    assert_eq!(text("/filter/served_said"), "PONG");
    for time in ["cut_ms", "served_ms", "fast_ms"] {
        assert!(number(&format!("/filter/{time}")) > 0.0);
    }

    assert_ne!(at("/takeover/pid"), at("/takeover/killed_pid"));
    assert!(number("/takeover/answers_without_broker") > 0.0);
    for answers in ["/takeover/answers", "/takeover/new_answers"] {
        assert!(number(&format!("{answers}/count")) > 0.0);
        assert_eq!(number(&format!("{answers}/lost")), 0.0);
        assert_eq!(number(&format!("{answers}/repeated")), 0.0);
    }
    let mut connections = at("/takeover/connections").as_array().unwrap().clone();
    connections.retain(|one| one["state"] == "ESTAB");
    assert_eq!(connections.len(), 4, "two ends of two: {connections:?}");
    for one in connections {
        assert_eq!(one["path"], "fast", "{one}");
    }
    place.holds_nothing();
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    for word in ["1. ", "$ kill -9"] {
        let Some(place) = Place::new("interrupted") else {
            return;
        };
        let mut child = place
            .demo(&["--quick", "--works", "redis-get-c1"])
            .spawn()
            .unwrap();
        let (before, output) = read_until(&mut child, word);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let (after, errors, status) = finish(child, output);
        assert_eq!(status.code(), Some(130), "{before}{after}{errors}");
        assert_eq!(errors, "fordway demo: interrupted\n");
        assert_fits(&(before + &after));
        place.holds_nothing();
    }
}

#[test]
fn a_demo_that_fails_says_why_and_leaves_nothing() {
    let Some(place) = Place::new("failing") else {
        return;
    };
    let mut child = place
        .demo(&["--quick", "--works", "redis-get-c1"])
        .spawn()
        .unwrap();
    let (before, output) = read_until(&mut child, "2. ");
    for process in place.processes() {
        if process.name == "redis-server" {
            proc::signal(&process, Signal::KILL);
        }
    }
    let (after, errors, status) = finish(child, output);
    assert_eq!(status.code(), Some(1), "{before}{after}{errors}");
    assert!(errors.contains("redis-cli"), "{errors}");
    place.holds_nothing();
}

#[test]
fn what_is_missing_is_named_before_anything_starts() {
    let Some(place) = Place::new("missing") else {
        return;
    };
    let refused = |command: &mut Command, status: i32| {
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert_eq!(
            (output.stdout.len(), errors.lines().count()),
            (0, 1),
            "{errors}"
        );
        errors
    };
    let errors = refused(place.demo(&[]).env("PATH", "/nonexistent"), 5);
    assert!(
        errors.contains("redis-server") && errors.contains("apt-get install"),
        "{errors}"
    );

    let copied = |from: &Path| {
        let to = place.dir.join(from.file_name().unwrap());
        std::fs::copy(from, &to).unwrap();
        to
    };
    let demo = copied(Path::new(DEMO));
    let errors = refused(
        place.demo(&[]).env("FORDWAY_BIN", "/nonexistent/fordway"),
        5,
    );
    assert!(errors.contains("/nonexistent/fordway"), "{errors}");
    let errors = refused(Command::new(&demo).uid(NOBODY).gid(NOBODY), 4);
    assert!(errors.contains("needs root"), "{errors}");
    std::fs::remove_file(demo).unwrap();
    let command = copied(&find_fordway().unwrap());
    if !Path::new("/usr/lib/fordway/fordway-demo").exists() {
        let errors = refused(Command::new(&command).arg("demo"), 5);
        assert!(errors.contains("fordway-demo is not at"), "{errors}");
    }
    let errors = refused(Command::new(&command).args(["demo", "--works", "no"]), 2);
    assert!(errors.contains("--works"), "{errors}");
    std::fs::remove_file(command).unwrap();
    place.holds_nothing();
}
