//! A program that uses up its descriptors with connections to itself, and says how far
//! it came. Twice, because what a library keeps shows in the second round.

use super::{connect, say};
use anyhow::Result;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// Bound of the pairs, where descriptors abound.
const PAIRS_MAX: usize = 200;
const ROUNDS: u8 = 6;

pub fn run() -> Result<()> {
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        Ok(listener) => listener,
        Err(error) => return say(format_args!("no listener: {:?}", error.raw_os_error())),
    };
    let port = listener.local_addr()?.port();
    for _ in 0..2 {
        let mut pairs = Vec::new();
        let ended = loop {
            if pairs.len() == PAIRS_MAX {
                break None;
            }
            match pair(&listener, port) {
                Ok(pair) => pairs.push(pair),
                Err(error) => break Some(error.raw_os_error()),
            }
        };
        for (near, far) in &mut pairs {
            for round in 0..ROUNDS {
                exchange(near, far, round)?;
                exchange(far, near, round)?;
            }
        }
        say(format_args!("{} pairs, then {ended:?}", pairs.len()))?;
    }
    Ok(())
}

fn pair(listener: &TcpListener, port: u16) -> std::io::Result<(TcpStream, TcpStream)> {
    let near = connect(port)?;
    match listener.accept() {
        Ok((far, _)) => Ok((near, far)),
        Err(error) => {
            // It waits in the listener's queue, without a descriptor: take it out.
            drop(near);
            let _ = listener.accept();
            Err(error)
        }
    }
}

fn exchange(from: &mut TcpStream, to: &mut TcpStream, round: u8) -> Result<()> {
    from.write_all(&[round; 40])?;
    let mut came = [0; 40];
    to.read_exact(&mut came)?;
    anyhow::ensure!(came == [round; 40], "WRONG bytes");
    Ok(())
}
