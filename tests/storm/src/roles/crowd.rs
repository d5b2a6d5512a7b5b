//! Many connections at once, or one after the other.

use super::{connect, say, talk, wait_for_word};
use crate::content::mix;
use anyhow::{Context, Result};
use std::net::{Ipv4Addr, TcpStream};

/// Talks on each new connection: enough for its way to the rings, and some bytes there.
const ROUNDS: u64 = 8;
const ROUND_BYTES: usize = 64;
/// Bytes of the talks when all are held.
const EXERCISE_BYTES: usize = 512;
/// Talks of a connection that comes and goes.
const CHURN_ROUNDS: u64 = 4;

pub fn hold(port: u16, count: u64) -> Result<()> {
    say(format_args!("ready"))?;
    wait_for_word()?;
    let mut held = Vec::new();
    for number in 0..count {
        let mut stream = connect(port).with_context(|| format!("connection {number}"))?;
        for round in 0..ROUNDS {
            talk(&mut stream, mix(number) + round, ROUND_BYTES)?;
        }
        held.push(stream);
    }
    say(format_args!("held"))?;
    wait_for_word()?;
    for (number, stream) in held.iter_mut().enumerate() {
        talk(stream, number as u64, EXERCISE_BYTES)?;
    }
    say(format_args!("exercised"))?;
    wait_for_word()?;
    drop(held);
    say(format_args!("closed"))?;
    wait_for_word()
}

/// One connection that is made, talks and is closed.
pub(super) fn come_and_go(to: (Ipv4Addr, u16), number: u64) -> Result<()> {
    let mut stream = TcpStream::connect(to).with_context(|| format!("connection {number}"))?;
    for round in 0..CHURN_ROUNDS {
        talk(&mut stream, mix(number) + round, ROUND_BYTES)?;
    }
    Ok(())
}

pub fn churn(port: u16, count: u64, ip: Ipv4Addr) -> Result<()> {
    for number in 0..count {
        come_and_go((ip, port), number)?;
        if number % 1000 == 999 {
            say(format_args!("churned {}", number + 1))?;
        }
    }
    say(format_args!("done"))?;
    wait_for_word()
}
