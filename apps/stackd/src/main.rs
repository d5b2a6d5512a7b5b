//! `fordway-stackd CONFIG_FD`: reads its configuration from the inherited descriptor CONFIG_FD, and serves until it is ended.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use fordway_stackd::config::Config;
use fordway_stackd::{Server, confine, port};

fn main() -> Result<()> {
    let argument = std::env::args().nth(1);
    let fd: u32 = argument
        .and_then(|number| number.parse().ok())
        .context("usage: fordway-stackd CONFIG_FD")?;
    // By its name, which needs no right that the descriptor did not have.
    let text = std::fs::read_to_string(format!("/proc/self/fd/{fd}"))
        .with_context(|| format!("descriptor {fd}"))?;
    let config: Config = serde_json::from_str(&text).context("the configuration")?;
    let port = port::open(&config.port)?;
    let server = Server::new(&config, port)?;
    confine::confine(&config)?;
    server.run()
}
