//! What a request and its reply cost, in instructions:
//! `cargo build --release -p fordway-netstack --example exchange`, then
//! `perf stat -e instructions:u target/release/examples/exchange 100000 100 1000` (requests,
//! bytes of a request, bytes of a reply) or the same under `valgrind --tool=callgrind`.
//!
//! Two stacks, frames handed over in memory, checksums left to the link, GSO. Prints how many
//! frames passed, so that what is counted can be divided by it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fordway_netstack::{Cidr, Config, Event, RxChecksum, RxFrame, Stack, TcpOptions};

fn main() {
    let mut words = std::env::args()
        .skip(1)
        .map(|word| word.parse().expect("a number"));
    let (requests, request_len, reply_len): (usize, usize, usize) = (
        words.next().unwrap_or(10_000),
        words.next().unwrap_or(100),
        words.next().unwrap_or(1000),
    );
    let address = |side: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + side));
    let mut sides = [0u8, 1].map(|side| {
        let mut config = Config::new([2, 0, 0, 0, 0, side], 7 + u64::from(side));
        config.link.offloads.tx_checksum_v4 = true;
        config.link.offloads.gso_v4 = true;
        let mut stack = Stack::new(config);
        stack.set_addresses(&[Cidr::new(address(side), 24)]);
        stack
    });
    let options = TcpOptions {
        ack_delay_us: Some(10_000),
        ..TcpOptions::default()
    };
    let listener = sides[1].tcp_listen(None, 80, 8, options).expect("listens");
    let to = SocketAddr::new(address(1), 80);
    let client = sides[0].tcp_connect(1, to, None, options).expect("begins");
    let (request, reply) = (vec![1; request_len], vec![2; reply_len]);
    let (mut server, mut now, mut got, mut may_ask, mut done) = (None, 1, 0, false, 0);
    let (mut sent, mut answered) = (0, 0);
    let mut frame_buffer = vec![0; 70_000];
    let mut buffer = vec![0; 65_536];
    while done < requests {
        now += 10;
        for side in 0..2 {
            while let Some(frame) = sides[side].transmit(now, &mut frame_buffer) {
                let bytes = &mut frame_buffer[..frame.len_bytes];
                let mut frame = RxFrame {
                    bytes,
                    checksum: RxChecksum::Blank,
                };
                sides[1 - side].receive(now, &mut frame);
            }
        }
        while let Some(event) = sides[1].event() {
            if let Event::Accept(_) = event {
                server = sides[1].tcp_accept(listener).ok().map(|(id, _)| id);
            }
        }
        while let Some(event) = sides[0].event() {
            if let Event::Tcp(_, ready) = event {
                may_ask |= ready.is_connected;
            }
        }
        if let Some(server) = server {
            while let Ok(len) = sides[1].tcp_receive(server, &mut buffer) {
                got += len;
            }
            if got >= request_len {
                got -= request_len;
                answered = reply_len;
            }
            if answered > 0
                && let Ok(len) = sides[1].tcp_send(server, &reply[reply_len - answered..])
            {
                answered -= len;
            }
        }
        while let Ok(len) = sides[0].tcp_receive(client, &mut buffer) {
            sent += len;
        }
        if sent >= reply_len {
            sent -= reply_len;
            done += 1;
            may_ask = true;
        }
        if may_ask && sides[0].tcp_send(client, &request).is_ok() {
            may_ask = false;
        }
    }
    let [a, b] = sides.map(|stack| stack.counters().clone());
    println!(
        "{} frames to the server, {} back, {done} requests",
        a.tx_frames, b.tx_frames
    );
}
