//! So many requests of a kind through the state machine, and nothing else: to be run under a
//! counter of instructions, twice, with two numbers. The difference is what requests cost.
//!
//! ```text
//! for n in 10000 20000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/requests get 1 $n
//! done
//! ```

use fordway_kv::{Config, Server};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "requests get|set|miss|incr|ping PIPELINE COUNT";
    let kind = arguments.next().expect(usage);
    let mut number = || {
        arguments
            .next()
            .and_then(|n| n.parse::<usize>().ok())
            .expect(usage)
    };
    let (pipeline, count) = (number(), number());
    let request: &[u8] = match kind.as_str() {
        "get" => b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000001\r\n",
        "miss" => b"*2\r\n$3\r\nGET\r\n$16\r\nkey:00000000none\r\n",
        "set" => b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$3\r\nxxx\r\n",
        "incr" => b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n",
        "ping" => b"*1\r\n$4\r\nPING\r\n",
        _ => panic!("{usage}"),
    };
    let mut server = Server::new(Config::default(), 0);
    let mut conn = server.accept(0).expect("room");
    for key in 0..100 {
        let set = format!("SET key:{key:012} xxx\r\n");
        conn.receive(&mut server, 0, set.as_bytes());
    }
    conn.advance(0, conn.output().len());
    let requests = request.repeat(pipeline);
    for now_us in 0..(count / pipeline) as u64 {
        conn.receive(&mut server, now_us, std::hint::black_box(&requests));
        let sent = std::hint::black_box(conn.output()).len();
        conn.advance(now_us, sent);
    }
    println!("{} commands", server.stats().commands);
}
