//! So many requests of a kind through the state machine, and nothing else: to be run under a
//! counter of instructions, twice, with two numbers. The difference is what requests cost.
//!
//! ```text
//! for n in 10000 20000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/replies ab $n
//! done
//! ```

use fordway_httpd::{Limits, Server};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "replies ab|wrk|curl|none COUNT";
    let kind = arguments.next().expect(usage);
    let count: u64 = arguments.next().and_then(|n| n.parse().ok()).expect(usage);
    let request: &[u8] = match kind.as_str() {
        // A connection for each.
        "ab" => b"GET /index.html HTTP/1.0\r\nHost: 192.168.0.2\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n",
        "wrk" => b"GET /index.html HTTP/1.1\r\nHost: 192.168.0.2\r\n\r\n",
        "curl" => b"GET /index.html HTTP/1.1\r\nHost: 192.168.0.2\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
        "none" => b"GET /none HTTP/1.1\r\nHost: 192.168.0.2\r\n\r\n",
        _ => panic!("{usage}"),
    };
    let archive = archive();
    let mut server = Server::new(&archive, Limits::default()).expect("a good archive");
    server.set_wall_time(1_700_000_000);
    let mut conn = server.accept(0).expect("room");
    for now_us in 0..count {
        conn.receive(&mut server, now_us, std::hint::black_box(request));
        while !conn.output().is_empty() {
            let sent = std::hint::black_box(conn.output()).len();
            conn.advance(now_us, sent);
        }
        if conn.is_over() {
            server.closed(conn);
            conn = server.accept(now_us).expect("room");
        }
    }
    println!("{} requests", server.stats().requests);
}

/// One page of 200 bytes.
fn archive() -> Vec<u8> {
    let mut tar = vec![0; 512];
    tar[..10].copy_from_slice(b"index.html");
    tar[124..136].copy_from_slice(b"00000000310\0");
    tar[136..148].copy_from_slice(b"00000000001\0");
    tar[148..156].copy_from_slice(b"        ");
    let sum: u32 = tar.iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.resize(1024, b'x');
    tar
}
