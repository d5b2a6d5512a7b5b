//! Where two programs that are measured run: their CPUs, their domains, and what runs
//! beside them.

use crate::distance::{self, Regime};
use crate::lab::{Lab, PathChoice, Place, Program, Spawn};
use anyhow::{Result, ensure};
use clap::ValueEnum;

/// CPUs of the servers and of the clients, where each has its own.
pub const SERVER_CPU: usize = 0;
/// See [`SERVER_CPU`].
pub const CLIENT_CPU: usize = 1;

/// On which CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Placement {
    /// Each on a CPU of its own.
    Apart,
    /// Both on one CPU.
    Together,
    /// Where the scheduler puts them.
    Free,
}

impl Placement {
    /// As rows and tables name it.
    pub fn word(self) -> &'static str {
        match self {
            Placement::Apart => "apart",
            Placement::Together => "together",
            Placement::Free => "free",
        }
    }

    /// CPUs of the server and of the client, as `fordway run --cpu` takes them.
    pub fn cpus(self) -> (Option<String>, Option<String>) {
        let on = |cpu: usize| Some(cpu.to_string());
        match self {
            Placement::Apart => (on(SERVER_CPU), on(CLIENT_CPU)),
            Placement::Together => (on(SERVER_CPU), on(SERVER_CPU)),
            Placement::Free => (None, None),
        }
    }
}

/// The domain of all servers.
pub fn server_place() -> Place {
    Place::domain("server", [10, 77, 0, 11])
}

/// The domain of all clients.
pub fn client_place() -> Place {
    Place::domain("client", [10, 77, 0, 12])
}

/// An error unless both CPUs may be used.
pub fn ensure_cpus() -> Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    ensure!(
        cpus > CLIENT_CPU,
        "the bench needs two CPUs and may use {cpus}"
    );
    Ok(())
}

/// How far apart the two CPUs are just now.
pub fn regime() -> Result<Regime> {
    distance::regime(SERVER_CPU, CLIENT_CPU)
}

/// Two programs that use the CPUs up, until they are stopped or dropped.
pub fn hogs(lab: &Lab) -> Result<Vec<Program>> {
    let program = lab.fordway().to_string_lossy().into_owned();
    let hog = |cpu: usize| {
        let spawn = Spawn::new([&program, "bench-end", "hog"]).cpu(&cpu.to_string());
        lab.spawn(&Place::Here, PathChoice::Kernel, &spawn)
    };
    [SERVER_CPU, CLIENT_CPU].into_iter().map(hog).collect()
}
