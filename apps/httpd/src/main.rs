//! `fordway-httpd`: the server of this crate as a program on Linux. One thread; the files are
//! read once, at the start.
#![forbid(unsafe_code)]

mod pack;

use anyhow::{Context, Result};
use clap::Parser;
use fordway_httpd::{Conn, Limits, Refused, Server};
use fordway_serve::{Loop, SLICES, Service};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::SystemTime;

/// Serves the files of a directory or of a ustar archive over HTTP/1.1.
#[derive(Parser)]
#[command(name = "fordway-httpd", version)]
struct Arguments {
    /// Serve the files of this directory, read once.
    #[arg(long, value_name = "DIR", required_unless_present = "archive")]
    root: Option<PathBuf>,
    /// Serve the files of this ustar archive.
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    archive: Option<PathBuf>,
    /// Write the archive of --root to this file, and serve nothing.
    #[arg(long, value_name = "FILE", requires = "root")]
    pack: Option<PathBuf>,
    /// Where to listen; port 0: one that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Connections at a time.
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections_max)]
    connections_max: usize,
    /// Bytes of a request's head.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().head_bytes_max)]
    head_max: usize,
    /// Seconds from a request's first byte to its last.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    request_timeout: u32,
    /// Seconds between requests.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle_timeout: u32,
    /// Seconds in which a client takes some of what is sent to it.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    send_timeout: u32,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let archive = match (&arguments.root, &arguments.archive) {
        (Some(root), _) => pack::pack(root)?,
        (None, Some(file)) => std::fs::read(file).with_context(|| file.display().to_string())?,
        (None, None) => Vec::new(),
    };
    if let Some(file) = &arguments.pack {
        return std::fs::write(file, archive).with_context(|| file.display().to_string());
    }
    let us = |seconds: u32| u64::from(seconds) * 1_000_000;
    let limits = Limits {
        connections_max: arguments.connections_max,
        head_bytes_max: arguments.head_max,
        request_us_max: us(arguments.request_timeout),
        idle_us_max: us(arguments.idle_timeout),
        send_us_max: us(arguments.send_timeout),
        ..Limits::default()
    };
    let server = Server::new(&archive, limits).context("the archive cannot be used")?;
    let sockets = Loop::new(arguments.listen, false)
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("serving {} files on {}", server.files(), sockets.address()?);
    sockets.run(&mut Http { server })?;
    Ok(())
}

struct Http<'a> {
    server: Server<'a>,
}

impl<'a> Service for Http<'a> {
    type Conn = Conn<'a>;

    fn accept(&mut self, now_us: u64) -> Result<Conn<'a>, &'static [u8]> {
        self.server.accept(now_us).map_err(|_| Refused::REPLY)
    }

    fn receive(&mut self, conn: &mut Conn<'a>, now_us: u64, bytes: &[u8]) -> usize {
        conn.receive(&mut self.server, now_us, bytes)
    }

    fn end(&mut self, conn: &mut Conn<'a>) {
        conn.end();
    }

    fn output<'c>(&self, conn: &'c Conn<'a>, slices: &mut [IoSlice<'c>; SLICES]) -> usize {
        let filled = slices.iter_mut().zip(conn.outputs());
        filled
            .map(|(place, slice)| *place = IoSlice::new(slice))
            .count()
    }

    fn advance(&mut self, conn: &mut Conn<'a>, now_us: u64, bytes: usize) {
        conn.advance(now_us, bytes);
    }

    fn is_over(&self, conn: &Conn<'a>) -> bool {
        conn.is_over()
    }

    fn deadline(&self, conn: &Conn<'a>) -> u64 {
        conn.deadline()
    }

    fn expire(&mut self, conn: &mut Conn<'a>, now_us: u64) {
        conn.expire(&mut self.server, now_us);
    }

    fn closed(&mut self, conn: Conn<'a>) {
        self.server.closed(conn);
    }

    fn tick(&mut self, now_us: u64) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        self.server.set_wall_time(now.as_secs());
        // When the next second begins.
        now_us + 1_000_000 - u64::from(now.subsec_micros())
    }
}
