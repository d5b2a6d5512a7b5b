//! Clients of the servers of files and of keys: any bytes, cut anywhere, taken at any pace.

use crate::Bytes;
use fordway_httpd::Limits;

/// A client that takes what it is sent ends up with whole replies or a closed connection; nothing
/// panics, nothing stands still, and no reply is larger than its request can ask for.
pub fn http(bytes: &[u8]) {
    let archive = archive();
    let limits = Limits {
        head_bytes_max: 512,
        body_bytes_max: 64,
        ..Limits::default()
    };
    let mut server = fordway_httpd::Server::new(&archive, limits).expect("a good archive");
    let mut conn = server.accept(0).expect("room");
    let mut script = Bytes(bytes);
    let mut now_us = 0;
    while !script.is_empty() {
        let word = usize::from(script.take(1)[0]);
        let mut rest = script.take(word % 64 + 1);
        now_us += word as u64;
        loop {
            let taken = conn.receive(&mut server, now_us, rest);
            rest = &rest[taken..];
            // Some clients take less than there is.
            let taken_out = conn.output().len().min(1 + word * 16);
            assert!(
                taken > 0 || taken_out > 0 || rest.is_empty(),
                "stands still"
            );
            assert!(conn.output().is_empty() || taken_out > 0);
            conn.advance(now_us, taken_out);
            if rest.is_empty() {
                break;
            }
        }
    }
    let left: usize = conn.outputs().map(<[u8]>::len).sum();
    assert!(
        left <= 64 * (archive.len() + 4096),
        "{left} bytes are queued"
    );
    while !conn.is_over() {
        now_us = now_us.max(conn.deadline().min(u64::MAX - 1));
        conn.expire(&mut server, now_us);
        conn.advance(now_us, conn.output().len());
    }
    server.closed(conn);
    assert_eq!(server.open(), 0);
}

/// Two files, one that is sent with its head and one that is not.
fn archive() -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, length) in [("index.html", 20), ("big", 3000)] {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..136].copy_from_slice(format!("{length:011o}\0").as_bytes());
        header[136..148].copy_from_slice(b"00000000001\0");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend(header);
        tar.resize(tar.len() + usize::next_multiple_of(length, 512), b'x');
    }
    tar
}

/// Commands cut anywhere give the replies of the same commands whole; memory stays within its
/// bound, and one datagram leaves nothing for the next.
pub fn resp(bytes: &[u8]) {
    const MEMORY_BYTES: usize = 20_000;
    let mut script = Bytes(bytes);
    let cut = usize::from(script.take(1).first().copied().unwrap_or(0)) % 40 + 1;
    let text = script.0;
    let config = || fordway_kv::Config {
        memory_bytes_max: MEMORY_BYTES,
        arguments_max: 50,
        argument_bytes_max: 4096,
        command_bytes_max: 8192,
        reply_bytes_max: 10_000,
        ..fordway_kv::Config::default()
    };
    let play = |cut: usize| {
        let mut server = fordway_kv::Server::new(config(), 0);
        let mut conn = server.accept(0).expect("room");
        let mut all = Vec::new();
        for piece in text.chunks(cut) {
            let mut rest = piece;
            while !rest.is_empty() {
                let taken = conn.receive(&mut server, 0, rest);
                rest = &rest[taken..];
                assert!(taken > 0 || !conn.output().is_empty(), "stands still");
                assert!(server.memory_bytes() <= MEMORY_BYTES);
                all.extend_from_slice(conn.output());
                conn.advance(0, conn.output().len());
            }
        }
        all
    };
    assert!(play(cut) == play(text.len().max(1)), "cut {cut}");

    let mut server = fordway_kv::Server::new(config(), 0);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    server.datagram(0, text, &mut first);
    server.datagram(0, b"PING\r\n", &mut second);
    assert_eq!(second, b"+PONG\r\n");
}
