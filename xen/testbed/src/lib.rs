//! A Xen test bed without Xen hardware: the real hypervisor, a real Linux dom0 with
//! netback and a bridge, and guests, all under QEMU's software emulation.
//!
//! ```text
//!   packages ── apt-get, dpkg-deb ──> trees ──> images (kernels, initramfs), cached by version
//!                                                 │
//!   job: cases (shell scripts), files ──> cpio ───┤ one initrd: dom0's and the job's
//!                                                 v
//!   QEMU ── first serial port: console of Xen and dom0 (a file, shown when something fails)
//!        └─ second serial port: one line a frame, read as it comes ──> events, report
//! ```
//!
//! The same bed without Xen ([`Bed::Linux`]) is Linux and perf(1) alone, where instructions of processes and of the
//! kernel are counted: its scheduler's nanoseconds are instructions.
//!
//! Nothing is installed on the host, and no privilege is needed: apt resolves against an
//! empty system into a cache of ours, and the initramfs are written by [`cpio`], which
//! needs no root to name device nodes. The host gives `qemu-system-x86_64`, `apt-get`,
//! `dpkg-deb`, `tar`, `xz` and `gzip`.
//!
//! Time in the emulated machine counts instructions (QEMU's icount, one instruction a
//! nanosecond, idle time skipped), so that figures of two guests in one run compare and
//! repeat whatever the host does; they are no absolute speed. A time limit of a case is
//! in that time and is kept by dom0; the limits of a whole run are in the host's time
//! and are kept by [`qemu`], which also ends QEMU when we die.
#![forbid(unsafe_code)]

pub mod cpio;
pub mod frames;
mod images;
pub mod job;
mod kernel;
pub mod packages;
pub mod qemu;
mod scratch;

pub use images::{Bed, Images, Source};
pub use job::{Case, Job};
pub use qemu::{Event, Limits, Report, Run};

/// Why a test bed cannot be had, or a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program of the host.
    #[error("{program} is missing; install the Debian package {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// What has it.
        package: &'static str,
    },
    /// Packages cannot be had.
    #[error("packages cannot be fetched: {0}")]
    Packages(String),
    /// A package has not what was expected of it.
    #[error("{0}")]
    Image(String),
    /// The emulated machine did not come up, or went away.
    #[error("{what}; the console's last lines: {console}")]
    Machine {
        /// What happened.
        what: String,
        /// The end of the first serial port's text.
        console: String,
    },
    /// Files of the host.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}

impl Error {
    pub(crate) fn file(path: &std::path::Path, error: std::io::Error) -> Error {
        Error::File {
            path: path.display().to_string(),
            error,
        }
    }
}
