//! The broker comes, goes, is another one or none: programs go on.

use anyhow::{Context, Result, ensure};
use fordway_abi::ABI_VERSION;
use fordway_abi::control::{Header, Message, Refuse};
use fordway_abi::reason::Reason;
use fordway_bench::lab::{PathChoice, Place, Spawn};
use fordway_bench::proc::tree_cpu_s;
use fordway_test_conformance::{Bed, PATIENCE, Steady};
use fordwayd::admin::{Reply, Request};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    listen, recv, send, socket_with,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
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

#[test]
fn require_fast_fails_towards_a_peer_outside() -> Result<()> {
    let bed = Bed::start()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    });
    let client = Bed::program("client");
    let arguments =
        [&client.to_string_lossy(), port.to_string().as_str(), "500"].map(str::to_owned);
    let fast = bed
        .lab
        .run(
            &Place::Here,
            PathChoice::Fast,
            &Spawn::new(arguments.clone()),
        )
        .context("fast")?;
    ensure!(
        fast.text() == "1: Network is unreachable\n",
        "{}",
        fast.text()
    );
    let mut short = arguments;
    "50".clone_into(&mut short[2]);
    let auto = bed
        .lab
        .run(&Place::Here, PathChoice::Auto, &Spawn::new(short))?;
    ensure!(auto.text() == "all\n", "{}", auto.text());
    bed.finish()
}
