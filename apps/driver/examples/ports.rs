//! Which port is fastest: `ports DRIVER` prints, for each kind, the time of a ping of 64 B, of a request of 64 B by TCP and its
//! reply, and MB/s of a stream, between two hosts' kernels whose frames cross it. By AF_XDP only the ping is whole: nobody
//! completes the checksums of the others.
//!
//! `target/release/examples/ports target/release/fordway-driver`, as root.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Hosts, IP_B, Seen, bulk, join, request_reply};
use fordway_driver::Port;
use fordway_driver::config::Wire;
use fordway_platform::netns;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const REQUESTS: usize = 20_000;
const BYTES: u64 = 2 << 30;
const ROUNDS: usize = 3;

/// Microseconds of a ping, of a request, and MB/s.
type Row = [f64; 3];

fn ping_us(hosts: &Hosts) -> f64 {
    let mut ping = Command::new("ping");
    ping.args(["-q", "-f", "-s", "64", "-c", "10000"])
        .arg(IP_B.to_string());
    let said = netns::within(hosts.a.as_fd(), || ping.output());
    let said = said.expect("the namespace").expect("ping");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let mean = text
        .rsplit_once(" = ")
        .and_then(|(_, times)| times.split('/').nth(1));
    mean.and_then(|ms| ms.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        * 1e3
}

fn measure(hosts: &Hosts, is_whole: bool) -> Row {
    let ping_us = ping_us(hosts);
    if !is_whole {
        return [ping_us, f64::NAN, f64::NAN];
    }
    let requests = request_reply(&hosts.a, &hosts.b, IP_B, 64, REQUESTS);
    let stream = bulk(&hosts.a, &hosts.b, IP_B, BYTES);
    let request_us = requests.as_secs_f64() * 1e6 / REQUESTS as f64;
    [
        ping_us,
        request_us,
        BYTES as f64 / 1e6 / stream.as_secs_f64(),
    ]
}

fn over(hosts: &Hosts, a: &mut Port, b: &mut Port, is_whole: bool) -> Row {
    let (seen, done) = (<[Seen; 2]>::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let measured = measure(hosts, is_whole);
            done.store(true, Ordering::Release);
            measured
        });
        join(a, b, &seen, &done);
        worker.join().expect("measured")
    })
}

fn main() {
    let driver = std::env::args_os().nth(1).map(PathBuf::from);
    let driver = driver.map(|file| file.canonicalize().expect("the driver"));
    for _ in 0..ROUNDS {
        let mut rows = Vec::new();
        let Some(hosts) = Hosts::new() else { return };
        let mut b = hosts.port("db");
        rows.push((
            "packet socket",
            over(&hosts, &mut hosts.port("da"), &mut b, true),
        ));
        let kinds = [
            (
                "packet socket, driver apart",
                Wire::Packet("da".into()),
                true,
            ),
            ("AF_XDP, driver apart", Wire::Xdp("da".into()), false),
        ];
        for (name, wire, is_whole) in kinds {
            let Some(program) = &driver else { continue };
            let (mut child, _link, mut a) = hosts.driver(program, wire, 0x7000_0000);
            rows.push((name, over(&hosts, &mut a, &mut b, is_whole)));
            child.kill().expect("killed");
            child.wait().expect("waited");
        }
        rows.push(("tap", over(&hosts, &mut hosts.tap(), &mut b, true)));
        for (name, [ping_us, request_us, stream]) in rows {
            println!("{name:30} {ping_us:8.1} us {request_us:8.1} us {stream:8.0} MB/s");
        }
    }
}
