//! `fordway-httpd`: the server of this crate as a program on Linux. One thread; the files are
//! read once, at the start.
#![forbid(unsafe_code)]

mod pack;

use anyhow::{Context, Result};
use clap::Parser;
use fordway_httpd::{Limits, Server};
use fordway_serve::Loop;
use std::net::SocketAddr;
use std::path::PathBuf;

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
    let mut server = Server::new(&archive, limits).context("the archive cannot be used")?;
    let sockets = Loop::new(arguments.listen, false)
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("serving {} files on {}", server.files(), sockets.address()?);
    sockets.run(&mut server)?;
    Ok(())
}
