//! `fordway top` with a real broker: as text, and on a terminal.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use support::{Ran, Runtime};

#[test]
fn a_pipe_gets_totals_and_a_table_after_each_interval() {
    let runtime = Runtime::up();
    let ran = runtime
        .say("top --batch --all -n 2 --interval 0.1")
        .check(0);
    let totals = ran
        .stdout
        .matches("ends: 0 fast, 0 kernel; rings tx 0/s rx 0/s;");
    assert_eq!(totals.count(), 2, "{ran:?}");
    assert_eq!(ran.stdout.matches("CONN  LOCAL").count(), 2, "{ran:?}");
    // A reader that has seen enough ends it, without a word.
    let fordway = env!("CARGO_BIN_EXE_fordway");
    let run = runtime.run_dir().display().to_string();
    let line = format!(
        "set -o pipefail; timeout 60 {fordway} --runtime-dir {run} top --batch --interval 0.1 | head -n 1"
    );
    let ran = Ran::new(Command::new("bash").args(["-c", &line])).check(0);
    assert_eq!((ran.stdout.lines().count(), &*ran.stderr), (1, ""));
    runtime.close();
}

#[test]
fn what_a_connection_moves_is_told_of_a_second() {
    let runtime = Runtime::up();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let to = listener.local_addr().expect("address");
    let mut client = TcpStream::connect(to).expect("connect");
    let (mut server, _) = listener.accept().expect("accept");
    let block = [7; 1000];
    let mut pass_one_on = || {
        client.write_all(&block).expect("write");
        server.read_exact(&mut [0; 1000]).expect("read");
    };
    pass_one_on();
    let is_over = AtomicBool::new(false);
    let document = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                pass_one_on();
                thread::yield_now();
            }
        });
        let document = runtime.json("top --batch --all -n 1 --interval 0.5");
        is_over.store(true, Ordering::Relaxed);
        document
    });
    let ends = document["connections"].as_array().expect("ends").iter();
    let rate = |name: &str, way: &str| {
        let mut named = ends
            .clone()
            .filter(|end| end["connection"][name] == to.to_string());
        let end = named.next().expect("the connection");
        end["rates"]["kernel"][way].as_u64().expect("a rate")
    };
    let sent = rate("remote", "tx_bytes_per_s");
    let received = rate("local", "rx_bytes_per_s");
    assert!(sent >= 1000 && received >= 1000, "{document:#}");
    assert_eq!(rate("remote", "rx_bytes_per_s"), 0);
    runtime.close();
}

#[test]
fn a_terminal_is_given_back_however_it_ends() {
    if Command::new("python3").arg("-V").output().is_err() {
        fordway_test_skip::skipped("no python3");
        return;
    }
    let runtime = Runtime::up();
    let mut python = Command::new("python3");
    python.args(["-c", include_str!("support/top.py")]);
    let fordway = runtime.command([] as [&str; 0]);
    python.arg(fordway.get_program()).args(fordway.get_args());
    for (name, value) in fordway.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    let ran = Ran::new(python.env("TERM", "xterm")).check(0);
    assert_eq!(ran.stdout, "played\n", "{ran:?}");
    runtime.close();
}
