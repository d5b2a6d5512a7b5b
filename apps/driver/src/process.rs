//! The process of a driver, from its configuration to its loop.

use crate::config::{self, DriverConfig};
use crate::confine::{self, Confined};
use crate::forward::Forwarder;
use crate::guard::Guard;
use crate::wire::Wire;
use fordway_platform::launch;
use fordway_platform::queue::{QueueEnd, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use std::io;
use std::process::ExitCode;

/// Of one file that a driver writes. One that grew beyond by it would end it (SIGXFSZ).
const FILE_BYTES_MAX: u64 = 16 << 20;
/// A longer log gets no lines of a driver's; others write to it between the look and the line.
const LOG_BYTES_MAX: i64 = FILE_BYTES_MAX as i64 / 2;

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

/// Writes a line to the log. That may be a pipe that nobody reads, or a file at the driver's own limit: frames go on, and the line is lost.
pub fn tell(line: &str) {
    let stderr = io::stderr();
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut log = [PollFd::new(&stderr, PollFlags::OUT)];
    let takes =
        matches!(poll(&mut log, Some(&at_once)), Ok(1)) && log[0].revents() == PollFlags::OUT;
    let is_short = fstat(&stderr).is_ok_and(|log| log.st_size < LOG_BYTES_MAX);
    if takes && is_short {
        // One call, so that lines of several drivers do not mix.
        let _ = rustix::io::write(&stderr, line.as_bytes());
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
        gid: config.uid,
        directory: None,
        calls: confine::DRIVER_CALLS,
        files_max: 32,
        file_bytes_max: FILE_BYTES_MAX,
        space_bytes_max: 256 << 20,
        memory_bytes_max: 256 << 20,
    })?;
    let queue = QueueEnd::new(link, Role::Driver)?;
    let guard = Guard::new(config.mac, &config.addresses);
    let mut forwarder = Forwarder::new(wire, queue, guard, tell);
    forwarder.run()
}
