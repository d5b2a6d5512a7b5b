//! A broker starts driver and stack of a domain, and starts them again; with a stack that is a stub.

use fordway_platform::frames::{FrameFile, FrameNotes};
use fordway_platform::netns;
use fordwayd::admin::{ADMIN_SOCKET, Domain, ErrorKind, Reply, Request, Stack};
use fordwayd::{Config, Network, Programs, StackOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const DIR: &str = "FORDWAY_TEST_LAUNCH";
const DRIVER: &str = env!("CARGO_BIN_EXE_driver");
const PATIENCE: Duration = Duration::from_secs(20);
/// Of sched(7).
const SCHED_OTHER: u32 = 0;
const SCHED_BATCH: u32 = 3;

/// What [`Broker::start`] starts.
#[test]
fn broker_process() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let config = Config {
        runtime_dir: dir.into(),
        network: Network::new(Ipv4Addr::new(10, 78, 0, 0), 24).expect("a network"),
        network6: None,
        uplink: false,
        vsock: false,
        ring_bytes_max: 1 << 30,
        programs: Programs {
            driver: DRIVER.into(),
            stack: env!("CARGO_BIN_EXE_stub-stack").into(),
            library: c_library(),
        },
        helpers: Vec::new(),
    };
    fordwayd::run(&config, || println!("broker ready")).expect("a broker");
    std::process::exit(0);
}

/// Some library: what is preloaded does not matter here.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let mut files = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    files
        .find(|file| file.contains("libc.so"))
        .expect("the C library")
        .into()
}

struct Broker {
    child: Child,
    dir: PathBuf,
}

impl Broker {
    fn start(dir: &Path) -> Broker {
        let command = Command::new(std::env::current_exe().expect("our file"));
        Self::start_by(command, dir)
    }

    fn start_by(mut command: Command, dir: &Path) -> Broker {
        let child = command
            .args(["broker_process", "--exact", "--nocapture"])
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a broker");
        let mut broker = Broker {
            child,
            dir: dir.to_owned(),
        };
        let stdout = BufReader::new(broker.child.stdout.take().expect("a pipe"));
        // A read of a pipe has no bound, but that of a channel.
        let (said, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            let _ = said.send(lines.any(|line| line.ends_with("broker ready")));
        });
        assert_eq!(ready.recv_timeout(PATIENCE), Ok(true), "no broker");
        broker
    }

    fn ask(&self, request: &Request) -> Reply {
        let mut socket = UnixStream::connect(self.dir.join(ADMIN_SOCKET)).expect("connected");
        let text = serde_json::to_string(request).expect("JSON") + "\n";
        socket.write_all(text.as_bytes()).expect("asked");
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    fn domain(&self, request: &Request) -> Domain {
        match self.ask(request) {
            Reply::Domain(domain) => domain,
            other => panic!("{other:?}"),
        }
    }

    fn stack(&self) -> Stack {
        let Reply::Domains { domains } = self.ask(&Request::DomainList) else {
            panic!("no list");
        };
        domains
            .into_iter()
            .find_map(|domain| domain.stack)
            .expect("a stack")
    }

    /// The parts, once all run and none is `dead`.
    fn parts(&self, count: usize, dead: &[i32]) -> Vec<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            let pids = self.stack().pids;
            if pids.len() == count && !pids.iter().any(|pid| dead.contains(pid)) {
                return pids;
            }
            assert!(Instant::now() < until, "{pids:?}");
            std::thread::yield_now();
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }

    /// Descriptors that the broker has open.
    fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .expect("procfs")
            .count()
    }
}

/// It was told to end, and removes what it has made; or the test has failed, and all goes at once.
impl Drop for Broker {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        let is_late = || std::thread::panicking() || Instant::now() > until;
        while matches!(self.child.try_wait(), Ok(None)) && !is_late() {
            std::thread::yield_now();
        }
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("fwl-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        Dir(dir)
    }
}

/// Parts outlive their broker, and have the test's own descriptors: who reads those to their end would wait for them.
impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fordwayd::clear(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a number"), Signal::KILL).expect("killed");
}

/// Whether a process runs. One that has ended may wait for its parent, which is not ours to hurry.
fn is_there(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// How a process is scheduled: field `policy` of proc_pid_stat(5).
fn policy(pid: i32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("procfs");
    let behind_name = stat.rsplit_once(") ").expect("a name").1;
    let policy = behind_name.split(' ').nth(41 - 3);
    policy.expect("a field").parse().expect("a number")
}

fn status(pid: i32, word: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("procfs");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(word))
        .expect("a line");
    line.trim().to_owned()
}

/// What a process may have of something, and may not raise (/proc/PID/limits of proc(5)).
fn limit(pid: i32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut words = line.expect("a line").split_whitespace();
    let (soft, hard) = (words.next(), words.next());
    assert_eq!(soft, hard, "{name} of {pid}");
    soft.expect("a limit").to_owned()
}

/// A connection to the echo of a stack, from another domain.
fn connect(from: &Domain, to: &Domain) -> std::io::Result<TcpStream> {
    let path = from.netns_path.as_ref().expect("a namespace");
    let ns = netns::open(Path::new(path))?.expect("a namespace");
    let address = (IpAddr::V4(to.ip.expect("an address")), 7).into();
    let stream = netns::within(ns.as_fd(), || {
        TcpStream::connect_timeout(&address, PATIENCE)
    })??;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends so many bytes and gets them back, a piece at a time: what has both ends' buffers full at once tries the stack's TCP, and
/// that is a stub's here.
fn echo(stream: &mut TcpStream, number: usize, bytes: usize) -> std::io::Result<()> {
    const PIECE: usize = 100_000;
    let sent: Vec<u8> = (0..bytes)
        .map(|at| (at * 7 + at / 251 + number) as u8)
        .collect();
    let mut got = vec![0; PIECE];
    for piece in sent.chunks(PIECE) {
        stream.write_all(piece)?;
        let got = &mut got[..piece.len()];
        stream.read_exact(got)?;
        assert!(piece == got, "other bytes came back");
    }
    Ok(())
}

/// One that this process may run on: that need not be CPU 0.
fn cpu() -> usize {
    let own = sched_getaffinity(None).expect("CPUs");
    let mut all = 0..CpuSet::MAX_CPU;
    all.find(|cpu| own.is_set(*cpu)).expect("a CPU")
}

fn with_stack(fuse: bool) -> Request {
    Request::DomainAddWithStack {
        name: "st".into(),
        ip: None,
        publish: Vec::new(),
        stack: StackOptions {
            protocols: vec!["tcp".into()],
            fuse,
            cpus: vec![cpu()],
        },
    }
}

fn plain(name: &str) -> Request {
    Request::DomainAdd {
        name: name.into(),
        ip: None,
        publish: Vec::new(),
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        fordway_test_skip::skipped("needs root for domains");
    }
    root
}

#[test]
fn a_domain_has_a_stack_that_is_confined_and_comes_back() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("apart");
    let broker = Broker::start(&dir.0);
    let domain = broker.domain(&with_stack(false));
    let client = broker.domain(&plain("pc"));
    let [driver, stack] = broker.parts(2, &[])[..] else {
        panic!("two parts")
    };

    // The program's own namespace has nothing but loopback.
    let path = domain.netns_path.clone().expect("a namespace");
    let ns = netns::open(Path::new(&path))
        .expect("opened")
        .expect("a namespace");
    let devices = netns::within(ns.as_fd(), || {
        std::fs::read_to_string("/proc/thread-self/net/dev")
    });
    let devices = devices.expect("the namespace").expect("procfs");
    let names: Vec<&str> = devices
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim()))
        .collect();
    assert_eq!(names, ["lo"]);

    let mut stream = connect(&client, &domain).expect("connected");
    echo(&mut stream, 1, 3 << 20).expect("echoed");

    for pid in [driver, stack] {
        assert_ne!(status(pid, "Uid:"), "0\t0\t0\t0", "{pid}");
        assert_eq!(status(pid, "CapPrm:"), "0000000000000000", "{pid}");
        assert_eq!(status(pid, "NoNewPrivs:"), "1", "{pid}");
        for limited in ["processes", "core file size", "locked memory"] {
            assert_eq!(
                limit(pid, &format!("Max {limited} ")),
                "0",
                "{limited} of {pid}"
            );
        }
    }
    // As docs/stack.md has them. Those of the stack are its stub's; of the real one see apps/stackd/tests/hostile.rs.
    for (what, most) in [
        ("address space", 256 << 20),
        ("data size", 256 << 20),
        ("open files", 32),
        ("file size", 16 << 20),
    ] {
        assert_eq!(
            limit(driver, &format!("Max {what} ")),
            most.to_string(),
            "{what}"
        );
    }
    // Nobody shares a namespace of these kinds: not with the broker, and not with each other.
    for kind in ["net", "mnt", "ipc", "uts"] {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).expect("procfs");
        let all = ["self".to_owned(), driver.to_string(), stack.to_string()].map(|who| of(&who));
        let is_alone = |at: &usize| all.iter().filter(|other| **other == all[*at]).count() == 1;
        assert!((0..3).all(|at| is_alone(&at)), "{kind}: {all:?}");
    }
    assert_ne!(status(driver, "Uid:"), status(stack, "Uid:"));
    for pid in [driver, stack] {
        assert_eq!(status(pid, "Cpus_allowed_list:"), cpu().to_string());
    }
    // Woken by its driver, a stack does not push it off the CPU; the driver, woken by a frame, does not wait.
    assert_eq!(policy(driver), SCHED_OTHER);
    assert_eq!(policy(stack), SCHED_BATCH);
    for pid in [driver, stack] {
        assert_eq!(status(pid, "Seccomp:"), "2");
        assert_eq!(status(pid, "SigBlk:"), "0000000000000000");
        let root = std::fs::read_dir(format!("/proc/{pid}/root")).expect("procfs");
        assert_eq!(root.count(), 0, "the root of {pid} is not empty");
    }

    // A driver that dies is followed by one that finds the stack: the connection lives on.
    kill(driver);
    let [second, same] = broker.parts(2, &[driver])[..] else {
        panic!("two parts")
    };
    assert_eq!(same, stack);
    echo(&mut stream, 2, 1 << 20).expect("echoed");

    // A stack that is ended takes its connections with it, and the next one is reached.
    let ended = Pid::from_raw(stack).expect("a number");
    kill_process(ended, Signal::TERM).expect("a signal");
    broker.parts(2, &[stack]);
    let until = Instant::now() + PATIENCE;
    let mut stream = loop {
        match connect(&client, &domain) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    echo(&mut stream, 3, 1 << 20).expect("echoed");

    // A broker that is killed is missed by neither, and the next one finds both; and so does each one after it.
    let before = broker.parts(2, &[]);
    assert_eq!(before[0], second);
    let mut broker = broker;
    for round in 1..5 {
        broker.kill();
        echo(&mut stream, 4, 1 << 20).expect("echoed");
        // None has the numbers of descriptors that another one had.
        let opened: String = (3..3 + 2 * round)
            .map(|number| format!("exec {number}</dev/null; "))
            .collect();
        let mut command = Command::new("bash");
        command.args(["-c", &(opened + "exec \"$0\" \"$@\"")]);
        command.arg(std::env::current_exe().expect("our file"));
        broker = Broker::start_by(command, &dir.0);
        assert_eq!(broker.parts(2, &[]), before, "restart {round}");
    }
    kill(second);
    let after = broker.parts(2, &[second]);
    assert_eq!(after[1], before[1]);
    echo(&mut stream, 5, 1 << 20).expect("echoed");

    assert!(matches!(
        broker.ask(&Request::DomainRemove {
            name: "st".into(),
            force: false,
        }),
        Reply::Done
    ));
    assert!(after.iter().all(|pid| !is_there(*pid)));
    assert!(!dir.0.join("stacks/st").exists() && !dir.0.join("netns/.port.st").exists());
    broker.ask(&Request::Down {
        keep_domains: false,
    });
}

#[test]
fn a_driver_that_is_killed_under_load_leaves_nothing() {
    const KILLS: usize = 50;
    if !is_root() {
        return;
    }
    let dir = Dir::new("load");
    let broker = Broker::start(&dir.0);
    let domain = broker.domain(&with_stack(false));
    let client = broker.domain(&plain("pc"));
    let mut pids = broker.parts(2, &[]);
    let mut stream = connect(&client, &domain).expect("connected");
    echo(&mut stream, 0, 1000).expect("echoed");
    let stack_files = || {
        std::fs::read_dir(format!("/proc/{}/fd", pids[1]))
            .expect("procfs")
            .count()
    };
    let (files, stack_open, mounts) = (broker.files(), stack_files(), mount_count(&dir.0));
    let stack = pids[1];
    std::thread::scope(|scope| {
        let load =
            scope.spawn(|| (0..KILLS).try_for_each(|round| echo(&mut stream, round, 1 << 20)));
        for _ in 0..KILLS {
            kill(pids[0]);
            pids = broker.parts(2, &[pids[0]]);
        }
        load.join().expect("a thread").expect("echoed");
    });
    assert_eq!(pids[1], stack, "the stack has died");
    // Less may be open: at the beginning the broker may not have closed all that it was asked by.
    let (files_now, mounts_now) = (broker.files(), mount_count(&dir.0));
    assert!(files_now <= files, "{files_now} files, before {files}");
    assert_eq!(mounts_now, mounts);
    let now = std::fs::read_dir(format!("/proc/{stack}/fd"))
        .expect("procfs")
        .count();
    assert_eq!(now, stack_open);
    broker.ask(&Request::Down {
        keep_domains: false,
    });
    let until = Instant::now() + PATIENCE;
    while pids.iter().any(|pid| is_there(*pid)) {
        assert!(Instant::now() < until, "{pids:?} are still there");
        std::thread::yield_now();
    }
}

/// `fordway down` after the broker has died: the parts, which outlive it, end as well.
#[test]
fn what_a_dead_broker_has_left_is_cleared_away() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("cleared");
    let broker = Broker::start(&dir.0);
    broker.domain(&with_stack(false));
    let pids = broker.parts(2, &[]);
    broker.kill();
    assert!(pids.iter().all(|pid| is_there(*pid)));
    assert!(fordwayd::clear(&dir.0).expect("cleared"), "nothing there");
    let until = Instant::now() + PATIENCE;
    while pids.iter().any(|pid| is_there(*pid)) {
        assert!(Instant::now() < until, "{pids:?} are still there");
        std::thread::yield_now();
    }
    let left = |name: &str| dir.0.join(name).exists();
    assert!(!left("stacks.json") && !left("stacks"));
    assert!(!fordwayd::clear(&dir.0).expect("cleared"), "still there");
}

/// Mounts below a directory.
fn mount_count(dir: &Path) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("procfs");
    let dir = dir.to_str().expect("text");
    mounts.lines().filter(|line| line.contains(dir)).count()
}

/// Stacks that hang, and that say what is not so: rules are in force all the same, and the broker serves on.
#[test]
fn a_stack_that_does_not_take_rules_is_another_one_then() {
    if !is_root() {
        return;
    }
    let rules = |port: u16| {
        let rule = format!("tcp dport {port} counter drop");
        format!(
            "table inet t {{\n chain c {{\n type filter hook forward priority 0;\n {rule}\n }}\n}}\n"
        )
    };
    for (name, liars) in [("hangs", false), ("liar", true), ("closer", false)] {
        let dir = Dir::new(name);
        let broker = Broker::start(&dir.0);
        let Request::DomainAddWithStack { stack, .. } = with_stack(false) else {
            panic!("another request");
        };
        broker.domain(&Request::DomainAddWithStack {
            name: name.into(),
            ip: None,
            publish: Vec::new(),
            stack,
        });
        for round in 0..4 {
            let before = broker.parts(2, &[]);
            let text = rules(1000 + round);
            match broker.ask(&Request::FilterLoad { text, epoch: None }) {
                Reply::FilterChange(change) => {
                    assert_eq!((change.stacks.changed, change.stacks.restarted), (0, 1));
                }
                other => panic!("{other:?}"),
            }
            let after = broker.parts(2, &before[1..]);
            assert_eq!(after[0], before[0], "the driver");
            let Reply::Filter(listed) = broker.ask(&Request::FilterList) else {
                panic!("no rules");
            };
            assert!(listed.text.contains(&format!("dport {}", 1000 + round)));
            assert!(liars || listed.text.contains("packets 0 bytes 0"));
            let connections = broker.ask(&Request::Connections);
            assert!(matches!(connections, Reply::Connections { .. }));
        }
        broker.ask(&Request::Down {
            keep_domains: false,
        });
    }
}

/// What a stack says of earlier rules ends nothing: it has those that are in force.
#[test]
fn a_refusal_of_earlier_rules_ends_nothing() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("stale");
    let broker = Broker::start(&dir.0);
    let Request::DomainAddWithStack { stack, .. } = with_stack(false) else {
        panic!("another request");
    };
    broker.domain(&Request::DomainAddWithStack {
        name: "stale".into(),
        ip: None,
        publish: Vec::new(),
        stack,
    });
    let before = broker.parts(2, &[]);
    for port in 1000..1003 {
        let text = format!(
            "table inet t {{\n chain c {{\n type filter hook forward priority 0;\n tcp dport {port} drop\n }}\n}}\n"
        );
        match broker.ask(&Request::FilterLoad { text, epoch: None }) {
            Reply::FilterChange(change) => {
                assert_eq!((change.stacks.changed, change.stacks.restarted), (1, 0));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(broker.parts(2, &[]), before);
    broker.ask(&Request::Down {
        keep_domains: false,
    });
}

/// A broker that finds a stack tells it the rules in force: one that cannot have them, or says nothing, is another one soon.
#[test]
fn a_found_stack_that_refuses_rules_is_another_one_then() {
    if !is_root() {
        return;
    }
    for name in ["refuser", "hangs"] {
        let dir = Dir::new(&format!("found-{name}"));
        let broker = Broker::start(&dir.0);
        let Request::DomainAddWithStack { stack, .. } = with_stack(false) else {
            panic!("another request");
        };
        broker.domain(&Request::DomainAddWithStack {
            name: name.into(),
            ip: None,
            publish: Vec::new(),
            stack,
        });
        let before = broker.parts(2, &[]);
        broker.kill();
        let stack = Pid::from_raw(before[1]).expect("a number");
        let stack = pidfd_open(stack, PidfdFlags::empty()).expect("a pidfd");
        let broker = Broker::start(&dir.0);
        // Nobody has to ask it anything.
        let most = Timespec::try_from(PATIENCE).expect("a time");
        let ended = poll(&mut [PollFd::new(&stack, PollFlags::IN)], Some(&most));
        assert_eq!(ended, Ok(1), "{name} goes on");
        assert_eq!(broker.parts(2, &before[1..])[0], before[0], "the driver");
        broker.ask(&Request::Down {
            keep_domains: false,
        });
    }
}

/// Who has an end of a domain's port beside its part: a program that a part has given it to.
fn tap_of(pid: i32) -> FrameFile {
    let dir = format!("/proc/{pid}/fd");
    let files = std::fs::read_dir(dir).expect("procfs").flatten();
    let mut taps = files.filter(|file| {
        std::fs::read_link(file.path()).is_ok_and(|target| target == Path::new("/dev/net/tun"))
    });
    let tap = taps.next().expect("a tap").file_name();
    let number = tap.to_str().and_then(|tap| tap.parse().ok());
    let pidfd = pidfd_open(Pid::from_raw(pid).expect("a number"), PidfdFlags::empty());
    let end = pidfd_getfd(
        pidfd.expect("a pidfd"),
        number.expect("a number"),
        PidfdGetfdFlags::empty(),
    );
    FrameFile::of_tap(end.expect("the tap"))
}

/// A port whose end somebody keeps is made anew: the next part has it, and who kept the end has nothing.
#[test]
fn an_end_that_somebody_keeps_is_worth_nothing() {
    if !is_root() {
        return;
    }
    for fuse in [false, true] {
        let dir = Dir::new(if fuse { "keepf" } else { "keep" });
        let broker = Broker::start(&dir.0);
        let domain = broker.domain(&with_stack(fuse));
        let client = broker.domain(&plain("pc"));
        let count = if fuse { 1 } else { 2 };
        let before = broker.parts(count, &[]);
        drop(reached(&client, &domain));
        let kept = tap_of(before[0]);
        kill(before[0]);
        broker.parts(count, &before[..1]);
        drop(reached(&client, &domain));
        let sent = kept.send(&[0; 64], FrameNotes::default());
        assert_eq!(sent.expect_err("sent").raw_os_error(), Some(77), "EBADFD");
        broker.ask(&Request::Down {
            keep_domains: false,
        });
    }
}

/// A connection to a stack that may just be being started.
fn reached(client: &Domain, domain: &Domain) -> TcpStream {
    let until = Instant::now() + PATIENCE;
    loop {
        match connect(client, domain) {
            Ok(mut stream) => match echo(&mut stream, 1, 1000) {
                Ok(()) => return stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            },
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
}

/// A broker counts domains anew. Users of their parts do not come from that number.
#[test]
fn two_domains_parts_are_never_one_user() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("users");
    let broker = Broker::start(&dir.0);
    broker.domain(&plain("first"));
    broker.domain(&with_stack(false));
    let old = broker.parts(2, &[]);
    let users = |pids: &[i32]| -> Vec<String> {
        let of = |pid: &i32| status(*pid, "Uid:").split('\t').next().map(str::to_owned);
        pids.iter().filter_map(of).collect()
    };
    let before = users(&old);
    broker.ask(&Request::DomainRemove {
        name: "first".into(),
        force: false,
    });
    broker.kill();
    let broker = Broker::start(&dir.0);
    assert_eq!(broker.parts(2, &[]), old);
    let Request::DomainAddWithStack { stack, .. } = with_stack(false) else {
        panic!("another request");
    };
    let other = broker.domain(&Request::DomainAddWithStack {
        name: "other".into(),
        ip: None,
        publish: Vec::new(),
        stack,
    });
    let new = other.stack.expect("a stack").pids;
    assert_eq!((users(&old), new.len()), (before.clone(), 2));
    let new = users(&new);
    assert!(
        new.iter().all(|user| !before.contains(user)),
        "{new:?}, {before:?}"
    );
    broker.ask(&Request::Down {
        keep_domains: false,
    });
}

/// Parts of another version are ended together, and so are those of which one is gone.
#[test]
fn parts_of_another_version_are_replaced_in_pairs() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("version");
    let broker = Broker::start(&dir.0);
    let domain = broker.domain(&with_stack(false));
    let client = broker.domain(&plain("pc"));
    let before = broker.parts(2, &[]);
    broker.kill();
    let file = dir.0.join("stacks.json");
    let text = std::fs::read_to_string(&file).expect("a record");
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    record["version"]["orders"] = 0.into();
    std::fs::write(&file, record.to_string()).expect("written");
    let broker = Broker::start(&dir.0);
    broker.parts(2, &before);
    let until = Instant::now() + PATIENCE;
    while before.iter().any(|pid| is_there(*pid)) {
        assert!(Instant::now() < until, "{before:?} live on");
        std::thread::yield_now();
    }
    drop(reached(&client, &domain));
    broker.ask(&Request::Down {
        keep_domains: false,
    });
}

/// A broker that dies before it has written down whom it started leaves a part that is told nothing.
#[test]
fn a_part_that_is_told_nothing_ends() {
    let mut driver = Command::new(DRIVER);
    driver.arg("0").stdin(Stdio::null());
    let ended = driver.output().expect("a driver");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("the broker has ended"),
        "{said}"
    );
}

#[test]
fn what_a_stack_lacks_is_said_in_one_line() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("lacks");
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /dev/net && exec \"$0\" \"$@\"";
    command.args(["-m", "sh", "-c", script]);
    command.arg(std::env::current_exe().expect("our file"));
    let broker = Broker::start_by(command, &dir.0);
    let refused = |request: &Request| match broker.ask(request) {
        Reply::Error { kind, message } => (kind, message),
        other => panic!("{other:?}"),
    };
    let (kind, said) = refused(&with_stack(false));
    assert!(
        kind == ErrorKind::Missing && said.contains("modprobe tun"),
        "{said}"
    );
    // A user of its own has to come to its sockets.
    let mode = |mode| std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(mode));
    mode(0o700).expect("a mode");
    let (kind, said) = refused(&with_stack(false));
    assert!(
        kind == ErrorKind::Privilege && said.contains("chmod o+x"),
        "{said}"
    );
    mode(0o755).expect("a mode");
    assert!(!dir.0.join("stacks.json").exists());
    broker.ask(&Request::Down {
        keep_domains: false,
    });
}

#[test]
fn fused_they_are_one_process() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("fused");
    let broker = Broker::start(&dir.0);
    let domain = broker.domain(&with_stack(true));
    let client = broker.domain(&plain("pc"));
    let [stack] = broker.parts(1, &[])[..] else {
        panic!("one part")
    };
    let mut stream = connect(&client, &domain).expect("connected");
    echo(&mut stream, 1, 3 << 20).expect("echoed");
    assert_ne!(status(stack, "Uid:"), "0\t0\t0\t0");
    assert_eq!(status(stack, "CapPrm:"), "0000000000000000");
    assert_eq!(policy(stack), SCHED_OTHER);
    let other = broker.ask(&with_stack(false));
    assert!(matches!(other, Reply::Error { .. }), "{other:?}");
    let other = broker.ask(&plain("st"));
    assert!(matches!(other, Reply::Error { .. }), "{other:?}");
    broker.ask(&Request::Down {
        keep_domains: false,
    });
}
