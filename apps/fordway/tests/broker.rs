//! `fordway up`, `down`, `doctor`, the configuration and the manual.

mod support;

use fordway_abi::reason::Reason;
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Ran, Runtime, host_devices, is_root, library};

#[test]
fn one_broker_for_a_directory() {
    let runtime = Runtime::up();
    runtime.say("up").fails(6, "already runs");
    runtime.say("up --detach").fails(6, "already runs");
    runtime.close();
}

#[test]
fn a_killed_broker_leaves_domains_that_the_next_one_takes_over() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let before = runtime.json("domain show db");
    kill_and_wait(&runtime);
    runtime.say("ss").fails(8, "start it with: fordway up");
    runtime.say("up --detach").check(0);
    let after = runtime.json("domain show db");
    assert_eq!(
        before["domain"]["netns_cookie"],
        after["domain"]["netns_cookie"]
    );
    runtime.inside("db", &["true"]).check(0);
    runtime.say("down --keep-domains").check(0);
    assert!(runtime.run_dir().join("netns/db").exists());
    runtime.say("up --detach").check(0);
    // What the ones before have said is still there.
    let log = fs::read_to_string(runtime.run_dir().join("broker.log")).expect("log");
    assert_eq!(log.matches(" serves ").count(), 3, "{log}");
    kill_and_wait(&runtime);
    let ran = runtime.say("down").check(0);
    assert!(ran.stderr.contains("is removed"), "{ran:?}");
    assert!(!runtime.run_dir().join("netns").exists());
    runtime.say("down").fails(8, "nothing to remove");
}

#[test]
fn domains_of_another_network_are_not_taken_over() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    runtime.say("down --keep-domains").check(0);
    let refused = runtime.say("up --detach --network 10.99.4.0/22");
    refused.fails(2, "give --network 10.77.0.0/24");
    let refused = runtime.say("up --detach --network6 fd00:1::/48");
    refused.fails(2, "give --network6 fdbb:bad8:6eca::/64");
    // Nothing is lost by it.
    runtime.say("up --detach").check(0);
    runtime.inside("db", &["true"]).check(0);
    runtime.close();
}

/// Others may enter the directory of root's broker, and read nothing there.
#[test]
fn log_and_rules_are_the_brokers_own() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    runtime.say("domain add db --ip 10.77.0.3").check(0);
    let rules = runtime.dir.join("rules.nft");
    fs::write(&rules, "table inet t { }\n").expect("write");
    runtime
        .say(&format!("filter load {}", rules.display()))
        .check(0);
    for name in ["broker.log", "filter.json"] {
        let file = fs::metadata(runtime.run_dir().join(name)).expect(name);
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
    }
    runtime.close();
}

fn kill_and_wait(runtime: &Runtime) {
    let pid = runtime.broker_pid();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd");
    kill_process(pid, Signal::KILL).expect("kill");
    let mut fds = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, None).expect("poll");
}

#[test]
fn the_uplink_is_the_only_thing_in_the_host_and_goes_with_the_broker() {
    if !is_root() {
        return;
    }
    let before = host_devices();
    if before.contains("fordway0") || before.contains("10.78.") {
        fordway_test_skip::skipped("the host uses the uplink's name or network");
        return;
    }
    let runtime = Runtime::new();
    let up = "up --detach --uplink --network 10.78.213.0/28";
    // A netns of our own stands for the host.
    let fordway = format!(
        "{} --runtime-dir {}",
        env!("CARGO_BIN_EXE_fordway"),
        runtime.run_dir().display()
    );
    let script = format!(
        "set -e; {fordway} {up}; ip -o -4 addr; {fordway} domain add db; \
         ! bash -c 'exec 3<>/dev/tcp/10.78.213.2/9' 2>&1 | grep -v refused; \
         {fordway} down; ip -o link"
    );
    let ran = Ran::new(Command::new("unshare").args(["-n", "bash", "-c", &script])).check(0);
    assert!(ran.stdout.contains("10.78.213.1/28"), "{ran:?}");
    assert!(
        !ran.stdout
            .lines()
            .last()
            .expect("a line")
            .contains("fordway0"),
        "{ran:?}"
    );
    assert_eq!(before, host_devices());
}

#[test]
fn the_configuration_is_checked() {
    let runtime = Runtime::new();
    let file = runtime.dir.join("fordway.toml");
    let check = |text: &str| {
        fs::write(&file, text).expect("write");
        runtime.say(&format!("up --check-config --config {}", file.display()))
    };
    check("").check(0);
    check("network = \"10.99.0.0/16\"\nuplink = false\nlog = \"debug\"\n").check(0);
    check("network = \"10.77.0.0/24\"\nnetwrok = \"x\"\n")
        .fails(3, "line 2: unknown field `netwrok`");
    check("network = 10\n").fails(3, "line 1");
    check("network = \"10.77.0.0\"\n").fails(3, "10.77.0.0");
    check("network = \"fe80::/64\"\n").fails(3, "IPv4");
    check("log = \"fordwayd=loud\"\n").fails(3, "log");
    check("network = \n").fails(3, "line 1");
    check("[metrics]\nlisten = \"[::1]:9477\"\n").check(0);
    check("[metrics]\n").check(0);
    check("[metrics]\nlisten = \"9477\"\n").fails(3, "metrics.listen");
    check("[metrics]\nport = 9477\n").fails(3, "line 2");
    check("network6 = \"fd00:1::/48\"\n").check(0);
    check("network6 = \"none\"\n").check(0);
    check("network6 = \"fd00:1::\"\n").fails(3, "network6 in the configuration");
    runtime
        .say("up --config /no/such/file.toml")
        .fails(3, "/no/such/file.toml");
    runtime
        .say("up --network 10.77.0.0/33")
        .fails(2, "10.77.0.0/33");
    assert!(
        !runtime.run_dir().exists(),
        "a check must not make anything"
    );
}

#[test]
fn the_configured_network_and_directory_are_used() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    let file = runtime.dir.join("fordway.toml");
    let dir = runtime.run_dir();
    let text = format!(
        "network = \"10.99.4.0/22\"\nruntime_dir = \"{}\"\n",
        dir.display()
    );
    fs::write(&file, text).expect("write");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    command.args(["up", "--detach", "--config"]).arg(&file);
    Ran::new(&mut command).check(0);
    let added = runtime.json("domain add db");
    assert_eq!(
        (&added["domain"]["ip"], &added["domain"]["prefix"]),
        (&"10.99.4.2".into(), &22.into())
    );
    runtime.close();
}

#[test]
fn in_the_foreground_a_signal_ends_it() {
    let runtime = Runtime::new();
    let mut command = runtime.command(["up"]);
    let notify_path = runtime.dir.join("notify");
    let notify = std::os::unix::net::UnixDatagram::bind(&notify_path).expect("bind");
    command
        .env("NOTIFY_SOCKET", &notify_path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut broker = command.spawn().expect("start");
    let mut message = [0; 64];
    let length = notify
        .recv(&mut message)
        .expect("the service manager is told");
    assert_eq!(&message[..length], b"READY=1");
    runtime.say("ss").check(0);
    let pid = rustix::process::Pid::from_child(&broker);
    kill_process(pid, Signal::INT).expect("kill");
    assert!(broker.wait().expect("wait").success());
    runtime.say("ss").check(8);
}

#[test]
fn a_missing_package_is_named() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    // Only what PATH and root's usual directories have is found, so hide them: the
    // broker runs in a mount namespace in which nft is an empty file.
    let Some(nft) = ["/usr/sbin/nft", "/sbin/nft"]
        .iter()
        .find(|file| fs::exists(file).is_ok_and(|is| is))
    else {
        fordway_test_skip::skipped("nft is missing already");
        return;
    };
    let empty = runtime.dir.join("empty");
    fs::write(&empty, "").expect("write");
    let fordway = format!(
        "{} --runtime-dir {}",
        env!("CARGO_BIN_EXE_fordway"),
        runtime.run_dir().display()
    );
    let script = format!(
        "mount --bind {} {nft}; {fordway} up --detach && {fordway} domain add db; status=$?; \
         {fordway} doctor | grep nft; {fordway} down; exit $status",
        empty.display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "bash", "-c", &script])
        .env("PATH", "/usr/bin:/bin");
    let ran = Ran::new(command.env("FORDWAY_LIB", runtime.library())).check(5);
    assert!(
        ran.stderr
            .contains("nft is missing; install it with: apt-get install nftables"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("fail  nft"), "{ran:?}");
}

#[test]
fn doctor_tells_what_is_wrong() {
    let runtime = Runtime::up();
    let mut command = runtime.command(["doctor", "--json"]);
    let ran = Ran::new(command.env("FORDWAY_LIB", "/no/such/libfordway.so")).check(10);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(
        (&document["schema"], &document["healthy"]),
        (&1.into(), &false.into())
    );
    let checks = document["checks"].as_array().expect("checks");
    let state = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.expect(name)["state"]
            .as_str()
            .expect("state")
            .to_owned()
    };
    assert_eq!(
        (state("shim").as_str(), state("broker").as_str()),
        ("fail", "ok")
    );
    assert_eq!(["inet-diag", "udp-diag", "mounts"].map(state), ["ok"; 3]);
    assert!(
        checks
            .iter()
            .all(|check| check["state"] == "ok" || check["advice"].is_string())
    );
    runtime.close();
}

/// What a machine may lack, as far as it can be taken away here.
#[test]
fn doctor_says_what_this_machine_lacks() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let chroot = "cd $D; mkdir -p c/usr c/proc c/etc; ln -s usr/bin usr/lib usr/lib64 c/; \
                  mount --bind /usr c/usr; mount -t proc proc c/proc; cp $F $D/libfordway.so c/; \
                  FORDWAY_LIB=/libfordway.so chroot c /fordway doctor";
    library(
        &runtime.dir,
        "old",
        "const unsigned fordway_abi_version = 1;",
    );
    for (script, status, says) in [
        ("$F $R doctor", 0, "ok    broker        answers"),
        (
            "setarch --uname-2.6 $F $R doctor",
            10,
            "fail  kernel        Linux 2.6 is too old; boot Linux 5.14 or later",
        ),
        (
            "mount -t tmpfs -o ro none /etc; $F $R doctor",
            0,
            "warn  mounts        there is no /etc/hosts",
        ),
        (
            "mount -t tmpfs none /dev/net; $F $R doctor",
            0,
            "domains have no network stack of their own (--path stack); load the kernel module: modprobe tun",
        ),
        (chroot, 10, "fail  mounts        / is no mount point"),
        (
            "FORDWAY_LIB=$D/old.so $F $R doctor",
            10,
            "has ABI version 1",
        ),
        ("FORDWAY_LIB=$F $F $R doctor", 10, "has no ABI version"),
        (
            "mount -t tmpfs -o noexec none /mnt; cp $D/libfordway.so /mnt; FORDWAY_LIB=/mnt/libfordway.so $F $R doctor",
            10,
            "noexec",
        ),
        ("umount -l /proc; $F $R doctor", 10, "fail"),
        (
            "$F --runtime-dir $D/none doctor",
            0,
            "warn  broker        no broker answers",
        ),
    ] {
        let mut command = Command::new("unshare");
        command.args(["-m", "bash", "-c", script]);
        let run = format!("--runtime-dir {}", runtime.run_dir().display());
        command
            .env("F", env!("CARGO_BIN_EXE_fordway"))
            .env("R", run);
        command
            .env("D", &runtime.dir)
            .env("FORDWAY_LIB", runtime.library());
        let ran = Ran::new(&mut command).check(status);
        // Lines are wrapped.
        let text = ran.stdout.replace("\n                   ", "");
        assert!(text.contains(says), "{script}: {ran:?}");
        assert_eq!(ran.stderr, "", "{script}");
    }
    runtime.close();
}

#[test]
fn the_manual_and_the_completions_come_from_the_definition() {
    let runtime = Runtime::new();
    let dir = runtime.dir.join("man");
    runtime.fordway(["man".as_ref(), dir.as_os_str()]).check(0);
    let page = fs::read_to_string(dir.join("fordway.1")).expect("fordway.1");
    for reason in Reason::ALL {
        let word = reason.word().replace('-', "\\-");
        assert!(page.contains(&format!("\\fB{word}\\fR")), "no {word}");
    }
    for word in ["EXIT STATUS", "\\fB125\\fR", "netns/NAME"] {
        assert!(page.contains(word), "no {word}");
    }
    assert!(
        fs::read_to_string(dir.join("fordway-run.1"))
            .expect("page")
            .contains("require")
    );
    assert!(dir.join("fordway-domain-attach.1").exists());
    // What a script calls is no command for people.
    assert!(!dir.join("fordway-complete.1").exists());
    for page in fs::read_dir(&dir).expect("pages") {
        let text = fs::read_to_string(page.expect("page").path()).expect("page");
        for section in ["EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            assert!(
                text.contains(&format!(".SH \"{section}\""))
                    || text.contains(&format!(".SH {section}")),
                "{text}"
            );
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = runtime.fordway(["completions", shell]).check(0).stdout;
        assert!(script.contains("complete"), "{shell}");
    }
}

/// Opens the sockets as a service manager does (sd_listen_fds(3)) and becomes the broker.
const MANAGER: &str = "
import os, socket, sys
run, fordway = sys.argv[1:]
os.makedirs(run + '/control', 0o755)
sockets = []
for kind, path in ((socket.SOCK_SEQPACKET, '/control/control.sock'), (socket.SOCK_STREAM, '/admin.sock')):
    sockets.append(socket.socket(socket.AF_UNIX, kind))
    sockets[-1].bind(run + path)
    sockets[-1].listen(8)
spare = [os.dup2(one.fileno(), 20 + at) for at, one in enumerate(sockets)]
for at, fd in enumerate(spare):
    os.dup2(fd, 3 + at)
    os.set_inheritable(3 + at, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')
os.execv(fordway, [fordway, '--runtime-dir', run, 'up'])
";

#[test]
fn a_service_manager_opens_the_sockets_and_keeps_them() {
    let runtime = Runtime::new();
    let run = runtime.run_dir();
    let mut manager = Command::new("python3");
    manager.args(["-c", MANAGER]).arg(&run);
    manager.arg(env!("CARGO_BIN_EXE_fordway"));
    let mut broker = manager.stderr(Stdio::null()).spawn().expect("start");
    let admin = run.join("admin.sock");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !admin.exists() || runtime.say("ss").output.status.code() != Some(0) {
        assert!(Instant::now() < deadline, "no broker answers");
    }
    let inode = || fs::metadata(&admin).expect("admin.sock").ino();
    let before = inode();
    runtime.say("down").check(0);
    assert!(broker.wait().expect("wait").success());
    assert_eq!(inode(), before);
}

#[test]
fn a_report_holds_what_it_lists() {
    let runtime = Runtime::up();
    let file = runtime.dir.join("report.tar.gz");
    let line = format!("bug-report --out {}", file.display());
    let said = runtime.say(&line).check(0).stdout;
    let rows = said.lines().skip(1);
    let listed: BTreeSet<&str> = rows
        .take_while(|row| !row.starts_with("written to "))
        .filter_map(|row| row.split(' ').next())
        .collect();
    let tar = |arguments: &[&str]| {
        let mut tar = Command::new("tar");
        tar.arg("--file").arg(&file).args(arguments);
        Ran::new(&mut tar).check(0).stdout
    };
    let packed = tar(&["--list"]);
    let packed: BTreeSet<&str> = packed
        .lines()
        .filter_map(|name| name.split_once('/').map(|(_, part)| part))
        .filter(|part| !part.is_empty())
        .collect();
    assert_eq!(listed, packed);
    assert!(listed.contains("doctor.txt"), "{said}");
    let connections = tar(&[
        "--extract",
        "--to-stdout",
        "--wildcards",
        "*/connections.json",
    ]);
    let connections: serde_json::Value = serde_json::from_str(&connections).expect("JSON");
    assert_eq!(connections["schema"], 1);
    let mode = fs::metadata(&file).expect("the archive").mode();
    assert_eq!(mode & 0o777, 0o600);
    runtime.say(&line).fails(6, "is there; give another --out");
    // Of a broker that does not answer, too.
    runtime.say("down").check(0);
    let said = runtime.say("bug-report --list").check(0).stdout;
    assert!(said.contains("connections.txt"), "{said}");
}
