//! Holds connections and talks on all of them, in turn.
//!
//! It prints `up N` when all have made [`WARM`] round trips, and `down N MICROSECONDS SILENT` when the
//! last has broken: microseconds since 1970, and how many had no error but [`ROUND_LIMIT`] of silence. A
//! line on its standard input connects those anew that are broken; its end ends the program. A byte that
//! was not sent is its failure.

use anyhow::{Result, ensure};
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Round trips until a connection has come to its rings.
const WARM: usize = 12;
/// A round trip that takes longer is a broken connection: the kernel's copy of the rules
/// may drop packets without a word.
const ROUND_LIMIT: Duration = Duration::from_secs(5);

/// What a server makes of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    /// The same again.
    Echo,
    /// It is redis: its answer to a ping.
    Redis,
}

/// See the module.
pub fn run(far: Far, server: SocketAddr, count: usize) -> Result<()> {
    fordway_platform::process::raise_descriptor_limit();
    let (asked, over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    std::thread::spawn({
        let (asked, over) = (asked.clone(), over.clone());
        move || {
            for line in std::io::stdin().lock().lines() {
                if line.is_err() {
                    break;
                }
                asked.fetch_add(1, Ordering::SeqCst);
            }
            over.store(true, Ordering::SeqCst);
        }
    });
    let mut answered = 0;
    let mut live = Vec::new();
    let mut number = 0;
    loop {
        while live.len() < count {
            live.push(connect(server)?);
        }
        let mut silent = 0;
        for _ in 0..WARM {
            silent += round(far, &mut live, &mut number)?;
        }
        say(&format!("up {}", live.len()))?;
        while !live.is_empty() && !over.load(Ordering::SeqCst) {
            silent += round(far, &mut live, &mut number)?;
        }
        let at_us = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        say(&format!("down {} {at_us} {silent}", count - live.len()))?;
        while asked.load(Ordering::SeqCst) == answered {
            if over.load(Ordering::SeqCst) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        answered += 1;
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn connect(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, ROUND_LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ROUND_LIMIT))?;
    Ok(stream)
}

/// One round trip on each; those that break are left out from then on. How many of them by silence.
fn round(far: Far, live: &mut Vec<TcpStream>, number: &mut u64) -> Result<u64> {
    let (mut wrong, mut silent) = (false, 0);
    live.retain_mut(|stream| {
        *number += 1;
        let stamp = number.to_le_bytes();
        let (sent, wanted): (&[u8], &[u8]) = match far {
            Far::Echo => (&stamp, &stamp),
            Far::Redis => (b"PING\r\n", b"+PONG\r\n"),
        };
        let mut got = [0; 8];
        let got = &mut got[..wanted.len()];
        let done = stream.write_all(sent).and_then(|()| stream.read_exact(got));
        wrong |= done.is_ok() && got != wanted;
        let is_silence = |error| [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error);
        silent += u64::from(done.as_ref().is_err_and(|error| is_silence(error.kind())));
        done.is_ok()
    });
    ensure!(!wrong, "a byte that was not sent");
    Ok(silent)
}
