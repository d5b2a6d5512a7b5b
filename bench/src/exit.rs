//! How a program of the bench ends: its error as one line, and its status, of the list that
//! apps/fordway/src/exit.rs is.

use anyhow::{Result, anyhow};
use fordway_lab::interrupt;
use std::process::ExitCode;

/// Something failed that has no status of its own.
const INTERNAL: u8 = 1;

/// An error that has a status of its own.
#[derive(Debug)]
pub struct Refusal {
    status: u8,
    message: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// A program or libfordway.so is missing.
pub fn missing(message: String) -> anyhow::Error {
    anyhow!(Refusal { status: 5, message })
}

/// An error unless domains can be made; `what` needs them.
pub fn ensure_root(what: &str) -> Result<()> {
    if fordway_platform::launch::has_sys_admin() {
        return Ok(());
    }
    let message = format!("{what} makes domains, which needs root (CAP_SYS_ADMIN)");
    Err(anyhow!(Refusal { status: 4, message }))
}

/// Says how it ended, under the program's name.
pub fn finish(name: &str, ended: Result<()>) -> ExitCode {
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    // The alternate form names the causes too.
    eprintln!("{name}: {error:#}");
    if interrupt::seen() {
        return ExitCode::from(interrupt::EXIT_INTERRUPTED as u8);
    }
    let refusal = error.downcast_ref::<Refusal>();
    ExitCode::from(refusal.map_or(INTERNAL, |refusal| refusal.status))
}
