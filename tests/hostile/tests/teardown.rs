//! Writing while everything is taken down.

use anyhow::{Result, ensure};
use fastrand::Rng;
use fordway_abi::shm::{ARENA_OFFSET, Endpoint, tx_flags, tx_state};
use fordway_test_hostile::child::{self, Role};
use fordway_test_hostile::mallory::Mallory;
use fordway_test_hostile::{Bed, Style};
use rustix::net::sockopt;
use std::mem::offset_of;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it is done.
const ROUNDS: usize = 150;
/// Processes that are replaced by another program meanwhile.
const IMAGES: usize = 8;

#[test]
fn child() -> Result<()> {
    child::run()
}

/// One thread writes to ring, endpoint and doorbells; another takes down, in some order,
/// the connection, what the broker knows of it, and the memory.
fn take_down(mallory: Mallory, random: &mut Rng) -> Result<()> {
    let [tail_at, state_at, flags_at] = [
        offset_of!(Endpoint, tx.tail),
        offset_of!(Endpoint, cold.tx_state),
        offset_of!(Endpoint, cold.tx_flags),
    ]
    .map(|offset| mallory.own(offset));
    let Mallory {
        shim,
        page,
        region,
        peer,
        bells,
        socket,
        mut tail,
        ..
    } = mallory;
    let (mut shim, mut socket) = (Some(shim), Some(socket));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let region = &region;
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                region.store(ARENA_OFFSET + tail as usize % 60_000, b"bytes");
                tail += 5;
                region.store_u64(tail_at, tail);
                for bell in bells.knocks.values() {
                    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
                }
            }
        });
        let mut steps = 0;
        while socket.is_some() {
            steps += 1;
            match (random.u8(..9), &socket) {
                (0, Some(socket)) => drop(socket.shutdown(Shutdown::Write)),
                (1, Some(socket)) => drop(socket.shutdown(Shutdown::Read)),
                (2, Some(socket)) => drop(socket.shutdown(Shutdown::Both)),
                (3, Some(socket)) => drop(rustix::io::write(socket, b"kernel")),
                (4, Some(socket)) => sockopt::set_socket_linger(socket, Some(Duration::ZERO))?,
                (5, _) => drop(region.store_u32(flags_at, tx_flags::CLOSED)),
                (6, _) => {
                    let states = [tx_state::KERNEL, tx_state::BACK, tx_state::WITHDRAWN];
                    let state = states[random.usize(..states.len())];
                    region.store_u32(state_at, state);
                }
                (7, _) => drop(shim.take()),
                _ => drop(socket.take()),
            }
            if random.u8(..4) == 0 {
                std::thread::sleep(Duration::from_micros(random.u64(..300)));
            }
        }
        ensure!(steps > 0, "nothing was taken down");
        over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    drop((region, page, peer, shim));
    Ok(())
}

#[test]
fn writing_while_he_tears_down() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        let mut random = Rng::with_seed(2);
        bed.case("tears down while he writes", |bed| {
            for _ in 0..ROUNDS {
                take_down(Mallory::join(bed)?, &mut random)?;
            }
            bed.wait_for("sees the end of each", || bed.all_ends() == bed.made())
        })?;
        println!(
            "tears down while he writes: {ROUNDS} connections, {} of them reset",
            bed.ends(104)
        );
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn another_program_in_the_middle_of_a_write() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    bed.case("execs while he writes", |bed| {
        for _ in 0..IMAGES {
            let mut writer = child::start(bed, Role::Exec)?;
            writer.says("joined")?;
            writer.wait()?;
            bed.wait_for("sees him go", || bed.all_ends() == bed.made())?;
        }
        Ok(())
    })?;
    println!(
        "execs while he writes: {IMAGES} programs, {} connections reset",
        bed.ends(104)
    );
    bed.finish()
}
