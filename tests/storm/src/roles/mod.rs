//! What the programs of storms do. None of them knows of Fordway.
//!
//! They speak in lines on their standard output and go on at lines on their standard
//! input. A role that finds a wrong byte says so and fails.

mod crowd;
mod day;
mod echo;
mod few;
mod hoard;
mod transfer;

use anyhow::{Result, ensure};
use clap::Subcommand;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

pub use transfer::Port;

/// The roles.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// An event loop that echoes
    Echo {
        /// Where it listens
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        ip: Ipv4Addr,
        /// At which port, or any
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// Holds connections, uses them all, closes them all
    Hold {
        /// Where the echo is
        port: u16,
        /// How many
        count: u64,
    },
    /// Connects, talks and closes, again and again
    Churn {
        /// Where the echo is
        port: u16,
        /// How often
        count: u64,
        /// On which host
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        ip: Ipv4Addr,
    },
    /// The same in so many seconds, some of it by programs that it starts
    Paced(day::Paced),
    /// Asks and answers without an end on one connection; says how long it took
    Probe {
        /// Where the echo is
        port: u16,
    },
    /// Keeps workers that serve transfers on the socket that is its standard input
    Server,
    /// One of them
    Worker {
        /// The server's process id
        server: u32,
    },
    /// Transfers until its standard input ends
    Client {
        /// Where servers are
        ports: Vec<Port>,
    },
    /// Opens as many connections to itself as it may, twice
    Few,
    /// Accepts connections and reads nothing until it is told to
    Hoard,
    /// Fills connections to a hoard until they take no more
    Fill {
        /// Where it is
        port: u16,
        /// How many
        count: u64,
    },
}

/// Plays a role to its end.
pub fn play(role: &Role) -> Result<()> {
    match role {
        Role::Echo { ip, port } => echo::run(*ip, *port),
        Role::Hold { port, count } => crowd::hold(*port, *count),
        Role::Churn { port, count, ip } => crowd::churn(*port, *count, *ip),
        Role::Paced(paced) => day::paced(paced),
        Role::Probe { port } => day::probe(*port),
        Role::Server => transfer::server(),
        Role::Worker { server } => transfer::worker(*server),
        Role::Client { ports } => transfer::client(ports),
        Role::Few => few::run(),
        Role::Hoard => hoard::hoard(),
        Role::Fill { port, count } => hoard::fill(*port, *count),
    }
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
}

/// Sends `bytes` bytes of a stream to an echo and checks what comes back.
pub(crate) fn talk(stream: &mut TcpStream, seed: u64, bytes: usize) -> Result<()> {
    let mut sent = vec![0; bytes];
    crate::content::fill(seed, 0, &mut sent);
    stream.write_all(&sent)?;
    let mut came = vec![0; bytes];
    stream.read_exact(&mut came)?;
    ensure!(sent == came, "WRONG bytes came back");
    Ok(())
}

/// Says something.
fn say(line: std::fmt::Arguments<'_>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}

/// Waits for a line.
fn wait_for_word() -> Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    ensure!(!line.is_empty(), "nobody is there any more");
    Ok(())
}
