//! What neighbours have of each kind of attack: they go on, by their rings.

use anyhow::Result;
use fastrand::Rng;
use fordway_abi::control::{Header, kind};
use fordway_abi::shm::{Endpoint, WaitPage, tx_state};
use fordway_test_hostile::mallory::{Mallory, hello};
use fordway_test_hostile::{Bed, Style};
use std::mem::offset_of;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use zerocopy::IntoBytes;

/// What a shim that comes offers the broker.
const OFFERS: u64 = 20;
const STYLES: [Style; 2] = [Style::Epoll, Style::Threads];

/// One who stays and attacks.
fn stays(name: &str, mut attack: impl FnMut(&mut Mallory)) -> Result<()> {
    for style in STYLES {
        let mut bed = Bed::start(style)?;
        let mut mallory = Mallory::join(&bed)?;
        bed.goes_on_beside(&format!("{name} ({style:?})"), |_| {
            attack(&mut mallory);
            Ok(())
        })?;
        drop(mallory);
        bed.finish()?;
    }
    Ok(())
}

/// One who comes to attack, again and again.
fn comes(name: &str, mut attack: impl FnMut(&Bed) -> Result<()>) -> Result<()> {
    for style in STYLES {
        let mut bed = Bed::start(style)?;
        bed.goes_on_beside(&format!("{name} ({style:?})"), &mut attack)?;
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn rings_of_doorbells() -> Result<()> {
    stays("knocks without end", |mallory| mallory.knock())
}

#[test]
fn doorbells_that_are_emptied_and_filled() -> Result<()> {
    stays("empties and fills doorbells", |mallory| {
        let bells = &mallory.bells;
        for bell in bells.knocks.values().chain(bells.shows.values()) {
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
    let mut random = Rng::with_seed(1);
    comes("words at random", |bed| {
        let mallory = Mallory::join(bed)?;
        let words = mallory.words();
        for _ in 0..50 {
            let word = words[random.usize(..words.len())];
            mallory.write(word, random.u64(..) >> random.u32(..64));
            mallory.provoke();
        }
        Ok(())
    })
}

#[test]
fn taking_down_in_any_order() -> Result<()> {
    let mut random = Rng::with_seed(2);
    comes("takes down in any order", |bed| {
        let mut mallory = Mallory::join(bed)?;
        mallory.put(100);
        match random.u8(..3) {
            0 => mallory.socket.shutdown(Shutdown::Both)?,
            1 => mallory.set_u32(offset_of!(Endpoint, cold.tx_state), tx_state::WITHDRAWN),
            _ => rustix::net::shutdown(&mallory.shim.socket, rustix::net::Shutdown::Both)?,
        }
        mallory.put(100);
        Ok(())
    })
}

#[test]
fn messages_that_are_none() -> Result<()> {
    comes("messages of a wrong length", |bed| {
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
    comes("offers what is no connection", |bed| {
        let (shim, _page) = hello(&bed.lab.runtime_dir())?;
        for number in 0..OFFERS {
            shim.offer(number, &listener);
            let _ = shim.receive();
        }
        Ok(())
    })
}
