//! Where two programs that are measured run: their CPUs, their domains, and what runs
//! beside them.

use crate::distance::{self, Regime};
use crate::report::Row;
use anyhow::{Result, ensure};
use clap::ValueEnum;
use fordway_lab::{Lab, PathChoice, Place, Program, Spawn};

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

/// Where some rows show a work fastest, for us and for this rival; `None` without such rows. Rows
/// of near and of far CPUs are not mixed: those of more pairs say it.
pub fn best(rows: &[Row], work: &str, rival: &str) -> Option<[Placement; 2]> {
    let of_work = |row: &&Row| row.work == work && !row.hogs && row.best_of.is_none();
    let count = |regime| {
        let rows = rows.iter().filter(of_work);
        let rows = rows.filter(|row| row.regime == regime);
        rows.map(|row| row.runs).sum::<usize>()
    };
    let regime = match count(Regime::Far) > count(Regime::Near) {
        true => Regime::Far,
        false => Regime::Near,
    };
    let plain = |row: &&Row| of_work(row) && row.regime == regime;
    let ours = rows.iter().filter(plain).map(|row| (row.value, row));
    let of_rival = rows.iter().filter(plain).filter(|row| row.rival == rival);
    let theirs = of_rival.map(|row| (row.rival_value, row));
    Some([fastest(ours)?, fastest(theirs)?])
}

fn fastest<'r>(figures: impl Iterator<Item = (f64, &'r Row)>) -> Option<Placement> {
    let (_, row) = figures.max_by(|a, b| match a.1.less_is_better() {
        true => b.0.total_cmp(&a.0),
        false => a.0.total_cmp(&b.0),
    })?;
    let mut all = Placement::value_variants().iter().copied();
    all.find(|placement| placement.word() == row.placement)
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
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let hog = |cpu: usize| {
        let spawn = Spawn::new([&program, "end", "hog"]).cpu(&cpu.to_string());
        lab.spawn(&Place::Here, PathChoice::Kernel, &spawn)
    };
    [SERVER_CPU, CLIENT_CPU].into_iter().map(hog).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_looked_for_where_it_is_fastest() {
        let row = |placement, regime, hogs, pair| Row {
            hogs,
            ..Row::new("rtt-64", "unix", "ns", regime, placement).of_pairs(vec![pair])
        };
        let (near, far) = (Regime::Near, Regime::Far);
        let rows = [
            row(Placement::Apart, near, false, [300.0, 9_000.0]),
            row(Placement::Together, near, false, [4_000.0, 3_000.0]),
            row(Placement::Free, near, true, [100.0, 100.0]),
            row(Placement::Free, far, false, [200.0, 200.0]),
        ];
        let best = |rival| best(&rows, "rtt-64", rival);
        assert_eq!(best("unix"), Some([Placement::Apart, Placement::Together]));
        assert_eq!(best("pipe"), None);
    }
}
