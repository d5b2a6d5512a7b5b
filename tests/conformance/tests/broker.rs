//! The broker comes, goes, is another one or none: programs go on.

use anyhow::{Context, Result, ensure};
use fordway_abi::ABI_VERSION;
use fordway_abi::control::{Header, Message, Refuse};
use fordway_abi::reason::Reason;
use fordway_lab::proc::tree_cpu_s;
use fordway_lab::{PathChoice, Place, Spawn};
use fordway_test_conformance::suite::cases;
use fordway_test_conformance::{Bed, PATIENCE, Steady};
use fordwayd::admin::{Reply, Request};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    listen, recv, send, socket_with,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::IntoBytes;

const SCENARIOS: [&str; 2] = ["blocks", "streams"];

#[test]
fn channels_outlive_the_broker_and_are_registered_anew() -> Result<()> {
    let mut bed = Bed::start()?;
    for scenario in SCENARIOS {
        for kill in [true, false] {
            let steady = Steady::start(&bed, scenario)?;
            bed.lab.restart_broker(kill)?;
            bed.wait_for("both ends are registered anew", |ends| {
                ends.len() == 2 && ends.iter().all(|end| end.path == "fast")
            })?;
            bed.wait_for_ring_bytes()?;
            steady.finish()?;
        }
    }
    bed.finish()
}

#[test]
fn channels_do_without_a_broker() -> Result<()> {
    let mut bed = Bed::start()?;
    let steady = Steady::start(&bed, "streams")?;
    let ends = bed.lab.connections()?;
    let pids = ends.iter().filter_map(|end| u32::try_from(end.pid?).ok());
    let pids: Vec<u32> = pids.collect();
    ensure!(pids.len() == 2, "{ends:?}");
    bed.lab.stop_broker(true)?;
    // Nobody can be asked what goes by rings; who moves bytes uses his processor. The end
    // compares every byte.
    for pid in pids {
        let used_s = || tree_cpu_s(pid);
        let before = used_s();
        let what = "the traffic goes on";
        bed.lab
            .wait_until(PATIENCE, what, || Ok(used_s() > before + 0.1))?;
    }
    bed.lab.start_broker()?;
    bed.wait_for("both ends are registered anew", |ends| {
        ends.len() == 2 && ends.iter().all(|end| end.path == "fast")
    })?;
    steady.finish()?;
    bed.finish()
}

#[test]
fn traffic_goes_on_when_the_administrator_takes_it_down() -> Result<()> {
    let bed = Bed::start()?;
    for scenario in SCENARIOS {
        let steady = Steady::start(&bed, scenario)?;
        let reply = bed.lab.ask(&Request::Downgrade { channel: None })?;
        ensure!(!matches!(reply, Reply::Error { .. }), "{reply:?}");
        bed.wait_for("both ends are on the kernel path", |ends| {
            let asked = |reason: &Option<String>| reason.as_deref() == Some(Reason::Asked.word());
            ends.len() == 2
                && ends
                    .iter()
                    .all(|end| end.path == "kernel" && asked(&end.reason))
        })?;
        steady.finish()?;
    }
    bed.finish()
}

/// Runs a scenario with the shim, but with this control socket; gives its errors.
fn with_socket(bed: &Bed, socket: &Path) -> Result<String> {
    let shim = bed.lab.fordway().with_file_name("libfordway.so");
    let program = Bed::program("stream");
    let mut texts = Vec::new();
    let mut errors = String::new();
    for preload in [false, true] {
        let mut spawn = Spawn::new([program.to_string_lossy().as_ref(), "flags"])
            .env("TRY_KERNEL", "1")
            .env("FORDWAY_OFFER_AFTER", "0")
            .env("FORDWAY_SOCKET", &socket.to_string_lossy());
        if preload {
            spawn = spawn.env("LD_PRELOAD", &shim.to_string_lossy());
        }
        let output = bed.lab.spawn_bare(&spawn)?.finish()?.ok()?;
        errors = output.errors();
        texts.push(output.text());
    }
    ensure!(
        texts[0] == texts[1],
        "without {} with {}",
        texts[0],
        texts[1]
    );
    Ok(errors)
}

#[test]
fn an_absent_broker_changes_nothing() -> Result<()> {
    let bed = Bed::start()?;
    let errors = with_socket(&bed, Path::new("/nowhere/control.sock"))?;
    ensure!(errors.is_empty(), "{errors}");
    bed.finish()
}

#[test]
fn a_broker_of_another_version_changes_nothing() -> Result<()> {
    let bed = Bed::start()?;
    let path = bed.lab.work_dir().join("control.sock");
    let listener = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(&listener, &SocketAddrUnix::new(&path)?)?;
    listen(&listener, 8)?;
    let refusing = std::thread::spawn(move || -> Result<usize> {
        // The two roles of the scenario; the program that starts them offers nothing.
        for _ in 0..2 {
            let connection = accept(&listener)?;
            let mut packet = [0u8; 256];
            let (length, _) = recv(&connection, &mut packet, RecvFlags::empty())?;
            ensure!(length > 8, "a Hello of {length} bytes");
            let body = Refuse {
                abi_version: ABI_VERSION + 1,
                reason: Reason::Version as u32,
            };
            let length_bytes = size_of::<Header>() + size_of::<Refuse>();
            let header = Header {
                kind: Refuse::KIND,
                length_bytes: length_bytes as u32,
            };
            let packet = [header.as_bytes(), body.as_bytes()].concat();
            send(&connection, &packet, SendFlags::empty())?;
        }
        Ok(2)
    });
    let errors = with_socket(&bed, &path)?;
    ensure!(errors.is_empty(), "{errors}");
    refusing.join().expect("it does not panic")?;
    bed.finish()
}

/// Not one byte of it goes by the kernel, however short the connection is.
#[test]
fn require_fast_fails_towards_a_peer_outside() -> Result<()> {
    let bed = Bed::start()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                counted.fetch_add(count, Ordering::SeqCst);
                if stream.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    });
    let client = Bed::program("client");
    let rounds = |count: &str| {
        Spawn::new([&client.to_string_lossy(), port.to_string().as_str(), count].map(str::to_owned))
    };
    for count in ["1", "500"] {
        let fast = bed
            .lab
            .run(&Place::Here, PathChoice::Fast, &rounds(count))
            .context("fast")?;
        let text = fast.text();
        ensure!(text == "0: Network is unreachable\n", "{text}");
        let heard = heard.load(Ordering::SeqCst);
        ensure!(heard == 0, "{heard} bytes went by the kernel");
    }
    let log = bed.lab.broker_log();
    let line = "requires the fast path, and a connection of it has none: no-peer";
    ensure!(log.contains(line), "{log}");
    let auto = bed.lab.run(&Place::Here, PathChoice::Auto, &rounds("50"))?;
    ensure!(auto.text() == "all\n", "{}", auto.text());
    bed.finish()
}

/// A connection that its peer closes without a byte has moved none: its end is seen as by the kernel. One byte
/// before that is one too many.
#[test]
fn require_fast_sees_the_end_of_a_connection_without_a_byte() -> Result<()> {
    let bed = Bed::start()?;
    for (greeting, said) in [("", "0: Success\n"), ("1", "-1: Network is unreachable\n")] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port().to_string();
        let closing = std::thread::spawn(move || -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            Ok(stream.write_all(greeting.as_bytes())?)
        });
        let client = Bed::program("client").to_string_lossy().into_owned();
        let looks = Spawn::new([client, port, "0".to_owned()]);
        let text = bed.lab.run(&Place::Here, PathChoice::Fast, &looks)?.text();
        ensure!(text == said, "{greeting:?}: {text}");
        closing.join().expect("it does not panic")?;
    }
    bed.finish()
}

/// What one end of `short` says: how many bytes it sent, and how many of them by the kernel.
#[derive(Debug)]
struct Sent {
    all: u64,
    by_kernel: u64,
}

/// What the client and the server of `short` said, which waits in this `way`; or the one that is both.
fn short(bed: &Bed, server: PathChoice, client: PathChoice, way: &str) -> Result<Vec<Sent>> {
    let program = Bed::program("short");
    let arguments = [program.to_string_lossy().as_ref(), client.word(), way].map(str::to_owned);
    let output = bed.lab.run(&Place::Here, server, &Spawn::new(arguments))?;
    let (text, errors) = (output.text(), output.errors());
    let ends = text.lines().map(|line| {
        let words = line.split([' ', ',']);
        let mut counts = words.filter_map(|word| word.parse().ok());
        let (all, by_kernel) = (counts.next()?, counts.next()?);
        Some(Sent { all, by_kernel })
    });
    let ends = ends.collect::<Option<Vec<_>>>();
    ends.with_context(|| format!("{way}, {server:?} and {client:?}: {text}{errors}"))
}

const SHORT_BYTES: u64 = 160;

/// The other end's program was started without a word of it, and the connections are so short that
/// by itself it never offers them.
#[test]
fn require_fast_takes_the_other_end_along() -> Result<()> {
    let bed = Bed::start()?;
    let (fast, auto) = (PathChoice::Fast, PathChoice::Auto);
    for (server, client) in [(auto, fast), (fast, auto), (fast, fast)] {
        let sent = short(&bed, server, client, "sleep")?;
        // The first request of a client that does not require it may be quicker than the broker.
        let client_most = if client == fast { 0 } else { SHORT_BYTES / 2 };
        ensure!(
            matches!(&sent[..], [of_client, of_server]
                if of_client.all == SHORT_BYTES && of_client.by_kernel <= client_most
                && of_server.all == SHORT_BYTES && of_server.by_kernel == 0),
            "{server:?} and {client:?}: {sent:?}"
        );
    }
    // Nobody requires it any more, once the broker knows that they ended: all is as before.
    bed.lab.wait_until(PATIENCE, "nobody is there", || {
        Ok(bed.lab.info()?.processes == 0)
    })?;
    let sent = short(&bed, auto, auto, "sleep")?;
    let by_kernel = |end: &Sent| end.all == SHORT_BYTES && end.by_kernel == SHORT_BYTES;
    ensure!(sent.len() == 2 && sent.iter().all(by_kernel), "{sent:?}");
    bed.finish()
}

/// A server that waits for events reads nothing before there is something: the first request
/// comes by the kernel, behind the pairing, and nothing else does.
#[test]
fn require_fast_serves_who_waits_for_events() -> Result<()> {
    let bed = Bed::start()?;
    let (fast, auto) = (PathChoice::Fast, PathChoice::Auto);
    for way in ["poll", "epoll"] {
        for (server, client) in [(auto, fast), (fast, auto), (fast, fast)] {
            let sent = short(&bed, server, client, way)?;
            ensure!(
                matches!(&sent[..], [of_client, of_server]
                    if of_client.all == SHORT_BYTES && of_client.by_kernel <= SHORT_BYTES / 2
                    && of_server.all == SHORT_BYTES && of_server.by_kernel == 0),
                "{way}, {server:?} and {client:?}: {sent:?}"
            );
        }
    }
    let sent = short(&bed, fast, fast, "self")?;
    ensure!(
        matches!(&sent[..], [both] if both.all == 8 && both.by_kernel == 0),
        "{sent:?}"
    );
    bed.finish()
}

/// Between programs that both require it: with calls that sleep, with epoll and with poll.
#[test]
fn require_fast_serves_two_that_want_it() -> Result<()> {
    let mut bed = Bed::start()?;
    for scenario in SCENARIOS {
        Steady::start_on(&bed, scenario, PathChoice::Fast)?.finish()?;
    }
    for case in cases("polls")? {
        let oracle = bed.spawn(&case.program, &case.name, PathChoice::Kernel)?;
        let fast = bed.spawn(&case.program, &case.name, PathChoice::Fast)?;
        let (oracle, fast) = (oracle.finish()?, fast.finish()?);
        bed.note(&case.to_string(), &oracle, &fast);
    }
    bed.finish()
}
