//! The process of a driver, from its configuration to its loop.

use crate::config::{self, DriverConfig};
use crate::confine::{self, Confined};
use crate::forward::Forwarder;
use crate::guard::Guard;
use crate::wire::Wire;
use fordway_platform::launch;
use fordway_platform::queue::{QueueEnd, Role};
use std::io;
use std::process::ExitCode;

/// `fordway-driver CONFIG_FD`.
pub fn main() -> ExitCode {
    match drive() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fordway-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn drive() -> io::Result<()> {
    let number = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let number = number.ok_or_else(|| {
        io::Error::other("usage: fordway-driver CONFIG_FD (the broker starts it)")
    })?;
    let config: DriverConfig = config::read(number)?;
    let link = launch::inherited(config.link)?;
    let wire = Wire::open(&config.wire)?;
    confine::confine(&Confined {
        uid: config.uid,
        directory: None,
        calls: confine::DRIVER_CALLS,
        files_max: 32,
        file_bytes_max: 16 << 20,
        space_bytes_max: 256 << 20,
        memory_bytes_max: 256 << 20,
    })?;
    let queue = QueueEnd::new(link, Role::Driver)?;
    let mut forwarder = Forwarder::new(wire, queue, Guard::new(config.mac, &config.addresses));
    forwarder.run()
}
