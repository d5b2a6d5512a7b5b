//! Transfers between clients and the workers of servers, all of which may be killed at
//! any moment. Both directions carry a stream of known bytes at once, and both ends
//! compare every byte.
//!
//! ```text
//!   client ── connect ─────────────────────────► worker
//!          ◄── its process id (8 bytes) ────────
//!          ── seed, length, own process id ────►
//!          ◄══ length bytes each way, at once ═► then the end of the stream
//! ```
//!
//! What they say, a line each: `ok BYTES`; `broken PEER ...`, where PEER is the process
//! id of the far end, 0 if it had not said it yet; `WRONG ...`. A broken transfer is as it
//! should be if that process was killed, and wrong if it was not.

use super::{connect, say};
use crate::content::{check, fill};
use anyhow::Result;
use fastrand::Rng;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a server is.
pub type Port = u16;

const WORKERS: usize = 2;
const CLIENT_THREADS: u64 = 3;
const LENGTH_MAX: u64 = 6 << 20;
const PIECE_BYTES: usize = 64 * 1024;

/// Why a transfer did not come to its end.
enum Fault {
    /// The connection ended early.
    Broken(String),
    /// Something that may never be.
    Wrong(String),
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        Fault::Broken(error.to_string())
    }
}

pub fn server() -> Result<()> {
    let keepers: Vec<_> = (0..WORKERS)
        .map(|_| std::thread::spawn(keep_worker))
        .collect();
    for keeper in keepers {
        let Err(error) = keeper.join().expect("it does not panic");
        say(format_args!("WRONG no worker: {error}"))?;
    }
    Ok(())
}

/// Starts a worker, and another one when it ends.
fn keep_worker() -> Result<std::convert::Infallible> {
    loop {
        let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
        let mut worker = Command::new(std::env::current_exe()?)
            .args(["role", "worker", &std::process::id().to_string()])
            .stdin(Stdio::from(listener))
            .spawn()?;
        let pid = worker.id();
        let status = worker.wait()?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            say(format_args!("WRONG worker {pid} ended by itself: {status}"))?;
        }
    }
}

pub fn worker(server: u32) -> Result<()> {
    // The workers of a server that is killed die with it, ...
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // ... also if it was killed before we had said so.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != i32::try_from(server).ok() {
        return Ok(());
    }
    say(format_args!("worker {}", std::process::id()))?;
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    loop {
        let (stream, _) = listener.accept()?;
        std::thread::spawn(move || {
            let mut peer = 0;
            let outcome = serve(stream, &mut peer);
            report(peer, outcome)
        });
    }
}

fn serve(mut stream: TcpStream, peer: &mut u64) -> Result<u64, Fault> {
    stream.write_all(&u64::from(std::process::id()).to_le_bytes())?;
    let mut header = [0; 24];
    stream.read_exact(&mut header)?;
    let number = |at: usize| {
        let bytes = header[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    let (seed, length) = (number(0), number(8));
    *peer = number(16);
    exchange(&stream, [!seed, seed], length)
}

pub fn client(ports: &[Port]) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..CLIENT_THREADS)
        .map(|thread| {
            let (over, ports) = (over.clone(), ports.to_vec());
            let mut dice = Rng::with_seed(u64::from(std::process::id()) << 8 | thread);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let port = ports[dice.usize(..ports.len())];
                    let mut peer = 0;
                    let outcome = transfer(port, &mut dice, &mut peer);
                    let _ = report(peer, outcome);
                }
            })
        })
        .collect();
    // Nothing is ever written there.
    let _ = std::io::stdin().read(&mut [0]);
    over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("it does not panic");
    }
    Ok(())
}

fn transfer(port: Port, dice: &mut Rng, peer: &mut u64) -> Result<u64, Fault> {
    let mut stream = connect(port)?;
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting)?;
    *peer = u64::from_le_bytes(greeting);
    let (seed, length) = (dice.u64(..), dice.u64(..LENGTH_MAX));
    let own = u64::from(std::process::id());
    let header = [seed, length, own].map(u64::to_le_bytes).concat();
    stream.write_all(&header)?;
    exchange(&stream, [seed, !seed], length)
}

/// Both directions at once; gives the bytes of both.
fn exchange(stream: &TcpStream, [out, back]: [u64; 2], length: u64) -> Result<u64, Fault> {
    let mut writing = stream.try_clone()?;
    let writer = std::thread::spawn(move || -> Result<(), Fault> {
        let mut dice = Rng::with_seed(out);
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < length {
            let wanted = 1 + dice.u64(..PIECE_BYTES as u64);
            let count = wanted.min(length - at) as usize;
            fill(out, at, &mut piece[..count]);
            writing.write_all(&piece[..count])?;
            at += count as u64;
        }
        Ok(writing.shutdown(Shutdown::Write)?)
    });
    let read = compare(stream, back, length);
    let written = writer.join().expect("it does not panic");
    match (read, written) {
        (Err(Fault::Wrong(what)), _) => Err(Fault::Wrong(what)),
        (read, written) => {
            written?;
            read?;
            Ok(2 * length)
        }
    }
}

fn compare(mut stream: &TcpStream, seed: u64, length: u64) -> Result<(), Fault> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        let count = stream.read(&mut piece)?;
        if let Err(place) = check(seed, at, &piece[..count]) {
            let text = format!("byte {place} of {length}, read {count} at {at}");
            return Err(Fault::Wrong(text));
        }
        at += count as u64;
        if at > length {
            return Err(Fault::Wrong(format!("{at} bytes of {length}")));
        }
        if count == 0 {
            return match at == length {
                true => Ok(()),
                false => Err(Fault::Broken(format!("end at {at} of {length}"))),
            };
        }
    }
}

fn report(peer: u64, outcome: Result<u64, Fault>) -> Result<()> {
    match outcome {
        Ok(bytes) => say(format_args!("ok {bytes}")),
        Err(Fault::Broken(what)) => say(format_args!("broken {peer} {what}")),
        Err(Fault::Wrong(what)) => say(format_args!("WRONG {what}")),
    }
}
