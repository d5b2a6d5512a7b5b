//! Datagrams: an echo, one that asks it, and a stream in one direction.
//!
//! The asker takes a number on each line of its standard input, and asks so often; it prints
//! `asked ANSWERED LOST REFUSED`. It gives up behind [`SILENT_MAX`] questions without an answer. Once an answer has come, the
//! asker waits long for each other one: late is not lost. The streamer sends numbered datagrams without end; at each line it
//! prints `sent NUMBER`, the last one it had sent when it read the line. Who takes them prints `got NUMBER`, the highest that
//! came, when its standard input has a line. An answer or a number that was not sent is a failure.

use anyhow::{Result, bail, ensure};
use std::collections::BTreeSet;
use std::io::{BufRead, ErrorKind, Write};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a question waits for an answer, where none has come yet.
const PATIENCE: Duration = Duration::from_millis(400);
/// So many times as long, where one has.
const PATIENCE_TIMES: u32 = 25;
const SILENT_MAX: u64 = 4;

/// Until it is ended.
pub fn echo(port: u16) -> Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let mut buffer = [0; 2048];
    loop {
        match socket.recv_from(&mut buffer) {
            // Whom a rule refuses the answer.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            got => {
                let (count, from) = got?;
                let _ = socket.send_to(&buffer[..count], from);
            }
        }
    }
}

fn connected(server: SocketAddr) -> Result<UdpSocket> {
    let any = if server.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    Ok(socket)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// See the module.
pub fn ask(server: SocketAddr, ttl: Option<u32>) -> Result<()> {
    let socket = connected(server)?;
    if let Some(ttl) = ttl {
        socket.set_ttl(ttl)?;
    }
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut number: u64 = 0;
    for line in std::io::stdin().lock().lines() {
        let count: u64 = line?.parse()?;
        let (mut answered, mut open, mut refused) = (0, BTreeSet::new(), 0);
        for _ in 0..count {
            number += 1;
            open.insert(number);
            match round(&socket, number, &mut open, &mut answered) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    open.remove(&number);
                    refused += 1;
                }
                done => done?,
            }
            let silent = open.len() as u64 + refused;
            if silent == SILENT_MAX || (silent != 0 && answered != 0) {
                break;
            }
        }
        say(&format!("asked {answered} {} {refused}", open.len()))?;
    }
    Ok(())
}

/// Asks, and hears until no question is open, or nothing has come for too long.
fn round(
    socket: &UdpSocket,
    number: u64,
    open: &mut BTreeSet<u64>,
    answered: &mut u64,
) -> std::io::Result<()> {
    socket.send(&number.to_le_bytes())?;
    let mut silences = 0;
    while !open.is_empty() {
        let mut got = [0; 8];
        let size = socket.recv(&mut got);
        match size.map(|size| (size, u64::from_le_bytes(got))) {
            // Those of an earlier line are open no more.
            Ok((8, got)) if got <= number => *answered += u64::from(open.remove(&got)),
            Ok(_) => return Err(ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                silences += 1;
                if *answered == 0 || silences == PATIENCE_TIMES {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// See the module. One that answers each thousandth datagram, so that both ends know of each other.
pub fn stream(server: SocketAddr) -> Result<()> {
    let socket = connected(server)?;
    socket.set_nonblocking(true)?;
    let lines = lines_so_far();
    let mut told = 0;
    for number in 1_u64.. {
        match socket.send(&number.to_le_bytes()) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
                ) => {}
            sent => ensure!(sent? == 8),
        }
        let _ = socket.recv(&mut [0; 8]);
        match lines.load(Ordering::SeqCst) {
            u64::MAX => break,
            asked if asked > told => {
                told = asked;
                say(&format!("sent {number}"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// See the module.
pub fn take(port: u16) -> Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let lines = lines_so_far();
    let (mut told, mut highest, mut since) = (0, 0, 0);
    loop {
        let mut got = [0; 16];
        let is_quiet = match socket.recv_from(&mut got) {
            Ok((count, from)) => {
                ensure!(count == 8, "{count} bytes");
                let number = u64::from_le_bytes(got[..8].try_into()?);
                highest = highest.max(number);
                since += 1;
                if since % 1000 == 1 {
                    let _ = socket.send_to(&got[..8], from);
                }
                false
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
            Err(error) => bail!(error),
        };
        match lines.load(Ordering::SeqCst) {
            u64::MAX => return Ok(()),
            // What came before is read first.
            asked if asked > told && is_quiet => {
                told = asked;
                say(&format!("got {highest}"))?;
            }
            _ => {}
        }
    }
}

/// Lines of the standard input, counted as they come; its end is `u64::MAX`.
fn lines_so_far() -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        counted.store(u64::MAX, Ordering::SeqCst);
    });
    count
}
