//! The two programs whose requests are counted: [`serve`] sends back what it receives, for all connections by epoll, as
//! redis does; [`ask`] keeps one request of 100 B on its way on each connection. They know nothing of Fordway.
//!
//! The asking one does a round when it is told to, by a FIFO in which the number of requests is written, and tells by
//! another one how long the round took. A round for samples is told to [`dither`]: requests that are all alike would meet
//! a regular timer at the same few places. Both sleep between rounds, so nothing that runs meanwhile is counted.

use anyhow::{Context, Result, ensure};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::fs;
use std::hint;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};

/// Of a request, and of its reply.
const REQUEST_BYTES: usize = 100;
const ROOM_BYTES: usize = 4096;
/// Turns of a loop of three or four instructions.
const DITHER_TURNS_MAX: u32 = 10_000;
const LISTENER: Token = Token(0);
/// What the serving program writes once it can be reached.
pub const READY: &str = "ready";
/// Behind the number of requests: with [`dither`], which is in no account.
pub const DITHER: &str = "dither";

/// Answers until it is ended.
pub fn serve(port: u16) -> Result<()> {
    let mut listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())?;
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(64);
    // By their tokens, less one.
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let mut room = [0; ROOM_BYTES];
    println!("{READY}");
    loop {
        wait(&mut poll, &mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Some(mut new) = unless_empty(listener.accept())?.map(|(new, _)| new) {
                    let token = Token(connections.len() + 1);
                    poll.registry()
                        .register(&mut new, token, Interest::READABLE)?;
                    connections.push(Some(new));
                }
            } else if let Some(place) = connections.get_mut(event.token().0 - 1)
                && let Some(connection) = place
                && !answer(connection, &mut room)?
            {
                *place = None;
            }
        }
    }
}

/// One read: less than there was room for is all there is (epoll(7)). `false`: the connection is over.
fn answer(connection: &mut TcpStream, room: &mut [u8]) -> Result<bool> {
    let Some(count) = unless_empty(connection.read(room))? else {
        return Ok(true);
    };
    connection.write_all(&room[..count])?;
    Ok(count != 0)
}

/// Connects, and does rounds until one of no requests.
pub fn ask(server: SocketAddrV4, connections: usize, go: &Path, done: &Path) -> Result<()> {
    let mut poll = Poll::new()?;
    let mut ends = Vec::new();
    for at in 0..connections {
        let end = std::net::TcpStream::connect(server).with_context(|| format!("{server}"))?;
        end.set_nonblocking(true)?;
        let mut end = TcpStream::from_std(end);
        poll.registry()
            .register(&mut end, Token(at), Interest::READABLE)?;
        ends.push(end);
    }
    loop {
        let order = fs::read_to_string(go)?;
        let mut words = order.split_whitespace();
        let requests: u64 = words.next().context("an empty order")?.parse()?;
        let dithers = words.next() == Some(DITHER);
        if requests == 0 {
            return Ok(());
        }
        let started = Instant::now();
        round(&mut poll, &mut ends, requests, dithers)?;
        fs::write(done, format!("{}\n", started.elapsed().as_nanos()))?;
    }
}

fn round(poll: &mut Poll, ends: &mut [TcpStream], requests: u64, dithers: bool) -> Result<()> {
    let mut events = Events::with_capacity(64);
    let request = [7; REQUEST_BYTES];
    let mut room = [0; ROOM_BYTES];
    let (mut sent, mut answered) = (0, 0);
    for end in ends.iter_mut().take(requests as usize) {
        end.write_all(&request)?;
        sent += 1;
    }
    while answered < requests {
        wait(poll, &mut events, Some(Duration::from_secs(20)))?;
        ensure!(!events.is_empty(), "no reply in 20 s");
        for event in &events {
            let end = &mut ends[event.token().0];
            let Some(count) = unless_empty(end.read(&mut room))? else {
                continue;
            };
            ensure!(count == REQUEST_BYTES, "a reply of {count} B");
            answered += 1;
            if dithers {
                dither();
            }
            if sent < requests {
                end.write_all(&request)?;
                sent += 1;
            }
        }
    }
    Ok(())
}

/// Takes a while that nobody can foretell, up to more than the time between two samples.
#[inline(never)]
fn dither() {
    for turn in 0..fastrand::u32(..DITHER_TURNS_MAX) {
        hint::black_box(turn);
    }
}

fn wait(poll: &mut Poll, events: &mut Events, limit: Option<Duration>) -> io::Result<()> {
    loop {
        match poll.poll(events, limit) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn unless_empty<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
