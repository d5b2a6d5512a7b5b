//! Real programs under a stack of their own, with clients and servers of the kernel's at the far end; every byte is compared.
//! One that is not installed is left out, with a line that says so.

mod common;

use common::{Bed, FAR, OWN, Stack, said, said_soon};
use std::process::Command;

fn has(program: &str) -> bool {
    let found = Command::new("which").arg(program).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        fordway_test_skip::skipped(format_args!("{program} is not installed"));
    }
    is_there
}

#[test]
fn redis_serves() {
    if !has("redis-server") {
        return;
    }
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let server = [
        "redis-server",
        "--port",
        "6379",
        "--save",
        "",
        "--protected-mode",
        "no",
    ];
    let server = bed.near(&server);
    bed.keep(server);
    let ask = |words: &[&str]| {
        let mut all = vec!["redis-cli", "-h", OWN];
        all.extend(words);
        bed.far(&all)
    };
    assert_eq!(said_soon(|| ask(&["ping"])).trim(), "PONG");
    let long = "x".repeat(100_000);
    assert_eq!(said(ask(&["set", "long", &long])).trim(), "OK");
    assert_eq!(said(ask(&["get", "long"])).trim(), long);
    let load = ["-t", "get,set", "-n", "20000", "-c", "50", "-q"];
    let mut all = vec!["redis-benchmark", "-h", OWN];
    all.extend(load);
    let text = said(bed.far(&all));
    assert!(text.contains("GET: ") && text.contains("SET: "), "{text}");
    assert!(said(ask(&["info", "stats"])).contains("total_commands_processed:4"));
    assert!(bed.stack_lives());
}

#[test]
fn pages_are_served_and_fetched() {
    if !has("curl") {
        return;
    }
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let mut random = std::fs::File::open("/dev/urandom").expect("urandom");
    let mut file = std::fs::File::create(bed.dir.join("page")).expect("a file");
    std::io::copy(&mut std::io::Read::take(&mut random, 20_000_000), &mut file).expect("bytes");
    let sum = said(bed.far(&["sha256sum", "page"]));
    let server = bed.near(&["python3", "-m", "http.server", "8000"]);
    bed.keep(server);
    let fetch = format!("curl -sf http://{OWN}:8000/page | sha256sum");
    let got = said_soon(|| bed.far(&["bash", "-o", "pipefail", "-c", &fetch]));
    assert_eq!(got.split(' ').next(), sum.split(' ').next());
    let server = bed.far(&["python3", "-m", "http.server", "8001"]);
    bed.keep(server);
    let fetch = format!("curl -sf http://{FAR}:8001/page | sha256sum");
    let got = said_soon(|| bed.near(&["bash", "-o", "pipefail", "-c", &fetch]));
    assert_eq!(got.split(' ').next(), sum.split(' ').next());
    assert!(bed.stack_lives());
}

#[test]
fn iperf_runs_both_ways() {
    if !has("iperf3") {
        return;
    }
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let server = bed.near(&["iperf3", "-s"]);
    bed.keep(server);
    let kinds: [&[&str]; 4] = [&[], &["-R"], &["-u", "-b", "50M"], &["-P", "4"]];
    for kind in kinds {
        // It ends well even if it could not connect, and says so in its document.
        let run = format!(
            "text=$(iperf3 -c {OWN} -n 20M --json {}); echo \"$text\"; ! grep -q '\"error\"' <<<\"$text\"",
            kind.join(" ")
        );
        let text = said_soon(|| bed.far(&["bash", "-c", &run]));
        assert!(
            text.contains("\"sum_received\"") || text.contains("\"sum\""),
            "{text}"
        );
    }
    assert!(bed.stack_lives());
}

#[test]
fn names_are_looked_up() {
    if !has("dig") || !has("dnsmasq") {
        return;
    }
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let server = |bed: &Bed, is_near: bool| {
        let words = [
            "dnsmasq",
            "--no-daemon",
            "--no-resolv",
            "--no-hosts",
            "--port=5353",
            "--address=/fordway.test/10.1.2.3",
            "--user=root",
            "--pid-file",
        ];
        if is_near {
            bed.near(&words)
        } else {
            bed.far(&words)
        }
    };
    let far_server = server(&bed, false);
    bed.keep(far_server);
    let ask = [
        "dig",
        "+short",
        "+time=2",
        "-p",
        "5353",
        "@10.70.0.1",
        "a.fordway.test",
    ];
    assert_eq!(said_soon(|| bed.near(&ask)).trim(), "10.1.2.3");
    let mut by_tcp = ask.to_vec();
    by_tcp.push("+tcp");
    assert_eq!(said(bed.near(&by_tcp)).trim(), "10.1.2.3");
    assert!(bed.stack_lives());
}

/// A server that waits by epoll, one of many instances that have the listener, in two processes that share it, and answers each connection with what it has sent.
const ECHO: &str = r#"
import os, select, socket
listener = socket.create_server(("", 7000), backlog=64)
listener.setblocking(False)
os.fork()
instances = [select.epoll() for _ in range(20)]
for epoll in instances:
    epoll.register(listener, select.EPOLLIN)
open_ = {}
while True:
    for fd, events in epoll.poll():
        if fd == listener.fileno():
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                continue
            sock.setblocking(False)
            open_[sock.fileno()] = sock
            epoll.register(sock, select.EPOLLIN)
            continue
        try:
            bytes_ = open_[fd].recv(65536)
            if bytes_:
                open_[fd].send(bytes_)
                continue
        except OSError:
            pass
        open_.pop(fd).close()
"#;

/// Asks until it is answered; ten times, by connections of its own and by one that it keeps.
const ASKS: &str = r#"
import socket, sys, time
until = time.monotonic() + 60
kept = None
done = 0
while done < 10:
    assert time.monotonic() < until, done
    try:
        with socket.create_connection(("10.70.0.5", 7000), 0.3) as sock:
            sock.sendall(b"new")
            assert sock.recv(9) == b"new"
        if kept is None:
            kept = socket.create_connection(("10.70.0.5", 7000), 0.3)
        kept.sendall(b"kept")
        assert kept.recv(9) == b"kept"
        done += 1
    except (OSError, AssertionError):
        kept = None
"#;

#[test]
fn servers_are_reached_again_when_their_stack_was_killed() {
    const KILLS: usize = 50;
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let server = bed.near(&["python3", "-c", ECHO]);
    bed.keep(server);
    let with_redis = has("redis-server");
    if with_redis {
        let redis = "redis-server --port 6379 --save --protected-mode no --logfile redis.log";
        let server = bed.near(&redis.split(' ').collect::<Vec<_>>());
        bed.keep(server);
    }
    let redis = |bed: &Bed| {
        if with_redis {
            // Without a connection at first, it says so and does not end well.
            let ask = ["timeout", "2", "redis-cli", "-e", "-h", OWN, "ping"];
            assert_eq!(said_soon(|| bed.far(&ask)).trim(), "PONG");
        }
    };
    redis(&bed);
    said(bed.far(&["python3", "-c", ASKS]));
    for _ in 0..KILLS {
        // Under load.
        let mut load = bed.far(&["python3", "-c", ASKS]);
        let mut load = load.spawn().expect("python3");
        bed.kill_stack();
        bed.start_stack();
        assert!(load.wait().expect("its end").success());
        redis(&bed);
    }
    // They sleep when there is nothing to do: an end that shows for ever would have them ask without an end.
    let log = std::fs::read_to_string(bed.dir.join("redis.log")).unwrap_or_default();
    assert!(log.lines().count() < 100 + 10 * KILLS, "{log}");
}

#[test]
fn a_stack_that_was_killed_has_a_successor() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    // It says "connected" once it has a connection, then what its next receive gives, then connects anew.
    let script = format!(
        r#"
import errno, socket, sys
sock = socket.create_connection(("{FAR}", 9000), 30)
print("connected", flush=True)
try:
    print(sock.recv(1), flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
sock = socket.create_connection(("{FAR}", 9000), 30)
sock.sendall(b"again")
print(sock.recv(9), flush=True)
"#
    );
    let echo = r#"
import socket
l = socket.create_server(("", 9000))
one, _ = l.accept()
two, _ = l.accept()
two.sendall(two.recv(9))
two.recv(1)
"#;
    let server = bed.far(&["python3", "-c", echo]);
    bed.keep(server);
    let mut command = bed.near(&["python3", "-c", &script]);
    let listens = || said(bed.far(&["ss", "-Hltn", "sport", "=", ":9000"]));
    while listens().is_empty() {}
    let mut program = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        program.stdout.take().expect("output"),
    ));
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(next(), "connected");
    bed.kill_stack();
    assert_eq!(next(), "ECONNRESET");
    bed.start_stack();
    assert_eq!(next(), "b'again'");
    assert!(program.wait().expect("its end").success());
}
