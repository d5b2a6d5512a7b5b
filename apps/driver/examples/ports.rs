//! Which port is fastest: `ports DRIVER` prints, for each kind, the time of a request of 64 B and its reply, and MB/s of a
//! stream, between two hosts' kernels whose frames cross it.
//!
//! `target/release/examples/ports target/release/fordway-driver`, as root.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Hosts, IP_B, Seen, bulk, join, request_reply};
use fordway_driver::Port;
use fordway_driver::config::Wire;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const REQUESTS: usize = 20_000;
const BYTES: u64 = 2 << 30;
const ROUNDS: usize = 3;

fn measure(hosts: &Hosts) -> (f64, f64) {
    let requests = request_reply(&hosts.a, &hosts.b, IP_B, 64, REQUESTS);
    let stream = bulk(&hosts.a, &hosts.b, IP_B, BYTES);
    let request_us = requests.as_secs_f64() * 1e6 / REQUESTS as f64;
    (request_us, BYTES as f64 / 1e6 / stream.as_secs_f64())
}

fn over(hosts: &Hosts, a: &mut Port, b: &mut Port) -> (f64, f64) {
    let (seen, done) = (<[Seen; 2]>::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let measured = measure(hosts);
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
        rows.push(("packet socket", over(&hosts, &mut hosts.port("da"), &mut b)));
        if let Some(program) = &driver {
            let wire = Wire::Packet("da".into());
            let (mut child, _link, mut a) = hosts.driver(program, wire, 0x7000_0000);
            rows.push(("packet socket, driver apart", over(&hosts, &mut a, &mut b)));
            child.kill().expect("killed");
            child.wait().expect("waited");
        }
        let mut a = hosts.tap();
        rows.push(("tap", over(&hosts, &mut a, &mut b)));
        for (name, (request_us, stream)) in rows {
            println!("{name:30} {request_us:8.1} us  {stream:8.0} MB/s");
        }
    }
}
