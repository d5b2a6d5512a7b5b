//! What neighbours have of each kind of attack: their 99th percentile stays within twice that
//! beside an honest peer who is as busy in mallory's place.

use anyhow::Result;
use fordway_abi::control::{Header, kind};
use fordway_abi::shm::{Endpoint, WaitPage, tx_state};
use fordway_test_hostile::mallory::{Mallory, hello};
use fordway_test_hostile::{Bed, Random, Style};
use std::cell::RefCell;
use std::mem::offset_of;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::time::Instant;
use zerocopy::IntoBytes;

/// What a shim that comes has for the broker.
const QUESTIONS: u64 = 20;
const STYLES: [Style; 2] = [Style::Epoll, Style::Threads];

/// Round trips as fast as they go, on one connection.
fn busy(mallory: &mut Mallory, end: Instant) -> Result<()> {
    while Instant::now() < end {
        mallory.put(64);
        let mut got = 0;
        while got < 64 && Instant::now() < end {
            got += mallory.take()?;
        }
    }
    Ok(())
}

fn over_and_over(end: Instant, mut act: impl FnMut() -> Result<()>) -> Result<()> {
    while Instant::now() < end {
        act()?;
    }
    Ok(())
}

/// Comes, sends something around, and goes.
fn one_echo(bed: &Bed) -> Result<()> {
    Mallory::join(bed)?.echo(64)
}

/// Comes, and asks the broker for something some times.
fn questions(bed: &Bed) -> Result<()> {
    let (shim, _page) = hello(&bed.lab.runtime_dir())?;
    (0..QUESTIONS).for_each(|_| shim.expect_silence());
    Ok(())
}

/// One who stays and works, beside one who stays and attacks.
fn stays(name: &str, mut attack: impl FnMut(&mut Mallory)) -> Result<()> {
    for style in STYLES {
        let mut bed = Bed::start(style)?;
        let honest = RefCell::new(Mallory::join(&bed)?);
        let mut mallory = Mallory::join(&bed)?;
        bed.no_worse(
            &format!("{name} ({style:?})"),
            |_, end| busy(&mut honest.borrow_mut(), end),
            |_, end| {
                over_and_over(end, || {
                    attack(&mut mallory);
                    Ok(())
                })
            },
        )?;
        drop((honest, mallory));
        bed.finish()?;
    }
    Ok(())
}

/// One who comes, works and goes, beside one who comes to attack.
fn comes(
    name: &str,
    honest: fn(&Bed) -> Result<()>,
    mut attack: impl FnMut(&Bed) -> Result<()>,
) -> Result<()> {
    for style in STYLES {
        let mut bed = Bed::start(style)?;
        bed.no_worse(
            &format!("{name} ({style:?})"),
            |bed, end| over_and_over(end, || honest(bed)),
            |bed, end| over_and_over(end, || attack(bed)),
        )?;
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn rings_of_doorbells() -> Result<()> {
    stays("rings without end", |mallory| mallory.ring())
}

#[test]
fn doorbells_that_are_emptied_and_filled() -> Result<()> {
    stays("empties and fills doorbells", |mallory| {
        let bells = &mallory.bells;
        for bell in bells.rings.values().chain(bells.shows.values()) {
            let _ = rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes());
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
    })
}

#[test]
fn one_who_always_sleeps() -> Result<()> {
    stays("always sleeps", |mallory| {
        mallory.set_u64(offset_of!(Endpoint, wait.rx_doors), u64::MAX);
        let sleeping = offset_of!(WaitPage, sleeping);
        mallory.page.store_u64(sleeping, u64::MAX);
        mallory.put(1);
        let _ = mallory.take();
    })
}

#[test]
fn one_who_takes_nothing() -> Result<()> {
    stays("sends and takes nothing", |mallory| {
        let taken = mallory.peer_u64(offset_of!(Endpoint, rx.head));
        mallory.put(20_000u64.saturating_sub(mallory.tail - taken));
    })
}

#[test]
fn words_at_random() -> Result<()> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    comes("words at random", one_echo, |bed| {
        let mallory = Mallory::join(bed)?;
        let words = mallory.words();
        for _ in 0..50 {
            let word = words[random.next() as usize % words.len()];
            mallory.write(word, random.next() >> (random.next() % 64));
            mallory.provoke();
        }
        Ok(())
    })
}

#[test]
fn taking_down_in_any_order() -> Result<()> {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    comes("takes down in any order", one_echo, |bed| {
        let mut mallory = Mallory::join(bed)?;
        mallory.put(100);
        match random.next() % 3 {
            0 => mallory.socket.shutdown(Shutdown::Both)?,
            1 => mallory.set_u32(offset_of!(Endpoint, tx.tx_state), tx_state::WITHDRAWN),
            _ => rustix::net::shutdown(&mallory.shim.socket, rustix::net::Shutdown::Both)?,
        }
        mallory.put(100);
        Ok(())
    })
}

#[test]
fn messages_that_are_none() -> Result<()> {
    comes("messages of a wrong length", one_echo, |bed| {
        let mallory = Mallory::join(bed)?;
        let header = Header {
            kind: kind::Status,
            length_bytes: 9,
        };
        let surplus = [mallory.socket.as_fd(); 2];
        mallory.shim.send_raw(header.as_bytes(), &surplus);
        Ok(())
    })
}

#[test]
fn offers_of_what_is_no_connection() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    comes("offers what is no connection", questions, |bed| {
        let (shim, _page) = hello(&bed.lab.runtime_dir())?;
        for number in 0..QUESTIONS {
            shim.offer(number, &listener);
            let _ = shim.receive();
        }
        Ok(())
    })
}
