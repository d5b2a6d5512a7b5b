//! `fordway-kv`: the server of this crate as a program on Linux. One thread.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::Parser;
use fordway_kv::{Config, Server};
use fordway_serve::Loop;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;

/// Keeps keys and values in memory and speaks the Redis protocol, over TCP and UDP.
#[derive(Parser)]
#[command(name = "fordway-kv", version)]
struct Arguments {
    /// Where to listen, for streams and datagrams; port 0: one that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// Bytes for keys and values; the least recently used go first.
    #[arg(long, value_name = "BYTES", default_value_t = Config::default().memory_bytes_max)]
    memory: usize,
    /// Clients at a time.
    #[arg(long, value_name = "N", default_value_t = Config::default().clients_max)]
    clients_max: usize,
    /// Bytes of one argument.
    #[arg(long, value_name = "BYTES", default_value_t = Config::default().argument_bytes_max)]
    argument_max: usize,
    /// Seconds after which a silent client is closed; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u32,
    /// Streams only.
    #[arg(long)]
    no_udp: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut random = [[0; 8]; 2];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(random.as_flattened_mut()))
        .context("no random numbers from /dev/urandom")?;
    let config = Config {
        memory_bytes_max: arguments.memory,
        clients_max: arguments.clients_max,
        argument_bytes_max: arguments.argument_max,
        idle_us_max: u64::from(arguments.idle_timeout) * 1_000_000,
        hash_seed: random.map(u64::from_ne_bytes),
        ..Config::default()
    };
    let sockets = Loop::new(arguments.listen, !arguments.no_udp)
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("serving on {}", sockets.address()?);
    sockets.run(&mut Server::new(config, 0))?;
    Ok(())
}
