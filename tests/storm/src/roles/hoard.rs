//! Connections that are filled and not read, until ring memory is used up; then others
//! beside them, and at last everything is read and compared.
//!
//! The first byte of a connection says which it is: [`KEPT`] or [`LATE`].

use super::{connect, say, talk, wait_for_word};
use crate::content::{check, fill as fill_bytes};
use anyhow::{Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const KEPT: u8 = b'K';
const LATE: u8 = b'L';
/// Talks before a connection is filled: it has to come to its rings first.
const ROUNDS: u64 = 8;
const ROUND_BYTES: usize = 64;
/// Connections made when nothing is left for rings to grow, and what they talk. They want more than growth leaves.
const LATE_COUNT: u64 = 100;
const LATE_ROUNDS: u64 = 20;
const LATE_BYTES: usize = 1000;
/// Most that is put into one connection, and what goes after that.
const FILL_BYTES_MAX: u64 = 16 << 20;
const REST_BYTES: u64 = 100_000;
const PIECE_BYTES: usize = 32 * 1024;
/// Tries of a full connection before it counts as such: buffers grow while they are used.
const REFUSALS: u32 = 8;

type Kept = Arc<Mutex<Vec<TcpStream>>>;

pub fn hoard() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say(format_args!("listening {}", listener.local_addr()?.port()))?;
    let kept = Kept::default();
    let keeping = kept.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(error) = receive(stream, &keeping) {
                let _ = say(format_args!("WRONG {error}"));
            }
        }
    });
    wait_for_word()?;
    let mut bytes = 0;
    let streams: Vec<TcpStream> = kept.lock().expect("no holder panics").drain(..).collect();
    for (number, mut stream) in streams.into_iter().enumerate() {
        bytes += read_all(&mut stream, number as u64)?;
    }
    say(format_args!("read {bytes}"))?;
    wait_for_word()
}

fn receive(mut stream: TcpStream, kept: &Kept) -> Result<()> {
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    match kind[0] {
        KEPT => {
            let mut buffer = [0; ROUND_BYTES];
            for _ in 0..ROUNDS {
                stream.read_exact(&mut buffer)?;
                stream.write_all(&buffer)?;
            }
            kept.lock().expect("no holder panics").push(stream);
        }
        LATE => drop(std::thread::spawn(move || echo(stream))),
        other => bail!("a first byte of {other}"),
    }
    Ok(())
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; LATE_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn read_all(stream: &mut TcpStream, seed: u64) -> Result<u64> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(at);
        }
        if let Err(place) = check(seed, at, &buffer[..count]) {
            bail!("WRONG byte {place} of connection {seed}");
        }
        at += count as u64;
    }
}

pub fn fill(port: u16, count: u64) -> Result<()> {
    let mut streams = Vec::new();
    for number in 0..count {
        let mut stream = connect(port)?;
        stream.write_all(&[KEPT])?;
        for round in 0..ROUNDS {
            talk(&mut stream, number + round, ROUND_BYTES)?;
        }
        streams.push((stream, 0));
    }
    let mut total = 0;
    for (number, (stream, sent)) in streams.iter_mut().enumerate() {
        stream.set_nonblocking(true)?;
        *sent = put(stream, number as u64, 0, FILL_BYTES_MAX)?;
        ensure!(*sent > 0, "connection {number} took nothing");
        total += *sent;
    }
    say(format_args!("filled {total}"))?;
    wait_for_word()?;
    let mut late = Vec::new();
    for number in 0..LATE_COUNT {
        let mut stream = connect(port)?;
        stream.write_all(&[LATE])?;
        for round in 0..LATE_ROUNDS {
            talk(&mut stream, number + round, LATE_BYTES)?;
        }
        late.push(stream);
    }
    say(format_args!("late {LATE_COUNT}"))?;
    wait_for_word()?;
    drop(late);
    for (number, (stream, sent)) in streams.iter_mut().enumerate() {
        stream.set_nonblocking(false)?;
        total += put(stream, number as u64, *sent, *sent + REST_BYTES)?;
        stream.shutdown(Shutdown::Write)?;
    }
    say(format_args!("sent {total}"))?;
    wait_for_word()
}

/// Sends a stream from `at` up to `end`, or until it would have to wait; how much.
fn put(stream: &mut TcpStream, seed: u64, at: u64, end: u64) -> Result<u64> {
    let (mut place, mut refusals) = (at, 0);
    let mut buffer = vec![0; PIECE_BYTES];
    while place < end {
        let count = buffer.len().min((end - place) as usize);
        fill_bytes(seed, place, &mut buffer[..count]);
        match stream.write(&buffer[..count]) {
            Ok(count) => place += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock && refusals < REFUSALS => {
                refusals += 1;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(place - at)
}
