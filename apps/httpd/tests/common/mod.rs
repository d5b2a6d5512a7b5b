//! An archive made by hand, and a client's view of a connection.

use fordway_httpd::{Conn, Server};

/// A ustar archive of these files, all of one time (1994-11-06 08:49:37).
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, body) in files {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
        header[136..148].copy_from_slice(format!("{:011o}\0", 784_111_777).as_bytes());
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend(header);
        tar.extend_from_slice(body);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// Takes everything that the connection has to say, `at_once` bytes at a time.
pub fn drain(conn: &mut Conn<'_>, now_us: u64, at_once: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while !conn.output().is_empty() {
        let took = conn.output().len().min(at_once);
        all.extend_from_slice(&conn.output()[..took]);
        conn.advance(now_us, took);
    }
    all
}

/// Sends all of `bytes` and gives all that comes back.
pub fn exchange<'a>(server: &mut Server<'a>, conn: &mut Conn<'a>, bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut all) = (bytes, Vec::new());
    loop {
        let taken = conn.receive(server, 0, rest);
        rest = &rest[taken..];
        let replies = drain(conn, 0, usize::MAX);
        if rest.is_empty() && replies.is_empty() {
            return all;
        }
        assert!(taken > 0 || !replies.is_empty(), "stands still");
        all.extend(replies);
    }
}

/// A reply taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn line(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Takes replies apart; `heads` says which of them answer HEAD.
pub fn replies(mut bytes: &[u8], heads: &[usize]) -> Vec<Reply> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let end = bytes
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .expect("a head")
            + 4;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut reply = Reply {
            status: head[9..12].parse().unwrap(),
            head,
            body: Vec::new(),
        };
        let length: usize = reply
            .line("content-length")
            .map_or(0, |l| l.parse().unwrap());
        let length = if heads.contains(&found.len()) {
            0
        } else {
            length
        };
        reply.body = bytes[end..end + length].to_vec();
        bytes = &bytes[end + length..];
        found.push(reply);
    }
    found
}
