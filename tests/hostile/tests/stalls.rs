//! A peer that makes the victim wait for it: stopped with the ring full, taking nothing
//! back, promising bytes that never come.

use anyhow::{Result, ensure};
use fordway_abi::shm::{Endpoint, rx_state, tx_state};
use fordway_test_hostile::mallory::Mallory;
use fordway_test_hostile::{Bed, Echo, Style, until};
use rustix::net::sockopt;
use std::io::Write;
use std::mem::offset_of;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest that a victim whom nobody holds up takes, on any machine.
const HANG: Duration = Duration::from_secs(60);
/// Peers that one after the other takes nothing back: a victim that waits for each of them
/// takes twice as long.
const CLOSED: usize = 12;

/// Has the victim's ring towards him filled: it echoes, and he takes nothing.
fn fill(mallory: &mut Mallory) -> Result<()> {
    let sent = offset_of!(Endpoint, tx.tail);
    let mut last = mallory.peer_u64(sent);
    let mut quiet = 0;
    until("the victim's ring is full", || {
        let taken = mallory.peer_u64(offset_of!(Endpoint, rx.head));
        if mallory.tail - taken < 1000 {
            mallory.put(20_000);
        }
        let now = mallory.peer_u64(sent);
        quiet = if now == last && now > 1 << 20 {
            quiet + 1
        } else {
            0
        };
        last = now;
        quiet > 20
    })
}

#[test]
fn a_peer_that_is_stopped_with_the_ring_full_stops_nobody() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        let name = "stopped with the ring full";
        let before = bed.census()?;
        let mut mallory = Mallory::join(&bed)?;
        fill(&mut mallory)?;
        // He does nothing at all.
        bed.goes_on_beside(name, |_| {
            std::thread::yield_now();
            Ok(())
        })?;
        // He wakes up, and finds all of it.
        let sent = mallory.tail;
        until("all comes back", || {
            let _ = mallory.take();
            mallory.read_mail();
            mallory.knock();
            mallory.got == sent
        })?;
        drop(mallory);
        bed.no_more_than(name, &before)?;
        bed.finish()?;
    }
    Ok(())
}

/// He has the victim take its bytes back, and lets the kernel take none of them; then the
/// victim closes. Closing may not wait for him.
#[test]
fn closing_waits_for_no_hostile_peer() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    bed.case("takes nothing back", |bed| {
        let mut waiting = Vec::new();
        let mut closes = Duration::ZERO;
        for _ in 0..CLOSED {
            let mut mallory = Mallory::join(bed)?;
            sockopt::set_socket_recv_buffer_size(&mallory.socket, 4096)?;
            fill(&mut mallory)?;
            mallory.set_u32(offset_of!(Endpoint, wait.rx_state), rx_state::STOP);
            mallory.knock();
            until("the victim takes its bytes back", || {
                mallory.peer_u32(offset_of!(Endpoint, cold.tx_state)) == tx_state::WITHDRAWN
            })?;
            let ends = bed.all_ends();
            let begin = Instant::now();
            mallory.socket.shutdown(Shutdown::Write)?;
            until("the victim closes", || bed.all_ends() > ends)?;
            closes += begin.elapsed();
            waiting.push(mallory);
        }
        // It used to be 10 s for each, in the middle of the event loop.
        ensure!(closes < HANG, "{CLOSED} closes took {closes:?}");
        Ok(())
    })?;
    bed.finish()
}

/// He shows bytes that were taken back and are on their way, which they are not.
#[test]
fn promised_bytes_are_not_waited_for_without_end() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    bed.case("promises bytes", |bed| {
        for _ in 0..100 {
            let mut mallory = Mallory::join(bed)?;
            let tail = mallory.tail + 10;
            mallory.set_u32(offset_of!(Endpoint, cold.tx_state), tx_state::WITHDRAWN);
            mallory.set_u64(offset_of!(Endpoint, tx.tail), tail);
            (&mallory.socket).write_all(&[0x55])?;
            mallory.knock();
            until("an answer", || mallory.take().is_ok_and(|count| count != 0))?;
        }
        Ok(())
    })?;
    bed.finish()
}

/// Programs that others hand over to are no worse off with six of him than with one.
#[test]
fn an_exec_waits_for_all_hostile_peers_at_once() -> Result<()> {
    const PEERS: usize = 12;
    const ONE_WAIT: Duration = Duration::from_secs(10);
    let mut bed = Bed::start(Style::Epoll)?;
    bed.case("promises bytes at exec", |bed| {
        let place = Bed::place("other", 11);
        let heir = Echo::start(&bed.lab, &place, Style::Exec)?;
        let name = heir.name;
        let dir = bed.lab.runtime_dir();
        let mut peers = Vec::new();
        for _ in 0..PEERS {
            let connect = || Ok(bed.at_home(|| TcpStream::connect(name))??);
            peers.push(Mallory::join_by(&dir, connect)?);
        }
        let over = AtomicBool::new(false);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for peer in &mut peers {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        // Nothing is ever taken back, though he is asked to.
                        peer.put(1);
                        let _ = peer.take();
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
            }
            let ended = heir.finish();
            over.store(true, Ordering::Relaxed);
            ended
        })?;
        let waited = begin.elapsed();
        println!(
            "promises bytes at exec: {PEERS} peers, waited for {:.1} s",
            waited.as_secs_f64()
        );
        // All are waited for together, as long as for one (docs/threat-model.md).
        ensure!(waited < 2 * ONE_WAIT, "waited for {waited:?}");
        Ok(())
    })?;
    bed.finish()
}
