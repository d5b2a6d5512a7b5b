//! How programs with UDP sockets are started: by the kernel alone, and with their datagrams on rings; and which
//! way their datagrams went.

use anyhow::Result;
use fordway_test_programs::{Bed, CLIENT, Carried, SERVER, Spawn};

/// What a program is started with.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Whether its datagrams may go by rings.
    pub by_rings: bool,
    variables: &'static [(&'static str, &'static str)],
}

/// By the kernel; by rings after some datagrams; by rings from the first ones on.
pub const WAYS: [Way; 3] = [
    Way {
        by_rings: false,
        variables: &[("FORDWAY_DATAGRAMS", "0")],
    },
    RINGS,
    Way {
        by_rings: true,
        variables: &[("FORDWAY_OFFER_AFTER", "0")],
    },
];

/// By rings after some datagrams.
pub const RINGS: Way = Way {
    by_rings: true,
    variables: &[],
};

impl Way {
    /// The same program, this way.
    pub fn of(self, spawn: Spawn) -> Spawn {
        let variables = self.variables.iter();
        variables.fold(spawn, |spawn, (name, value)| spawn.env(name, value))
    }
}

/// Which way a program's datagrams go where rings are allowed.
#[derive(Clone, Copy, Debug)]
pub enum Path {
    /// At least so many bytes of each end by rings.
    Rings(u64),
    /// All by the kernel: an option of its sockets asks for what only the kernel tells.
    Kernel,
}

impl Path {
    /// Plays something whose datagrams go so; again where rings were not seen, which one look can only deny.
    pub fn play(
        self,
        bed: &Bed,
        way: Way,
        port: u16,
        play: impl FnMut() -> Result<()>,
    ) -> Result<String> {
        let check = |carried: &Carried| self.check(way, carried, port);
        match self {
            Path::Rings(_) if way.by_rings => bed.seen(play, check),
            _ => bed.seen_by(1, play, check),
        }
    }

    /// Whether the datagrams of this port of a server went so; by the kernel in any case where rings are not allowed.
    pub fn check(self, way: Way, carried: &Carried, port: u16) -> Result<String> {
        match self {
            Path::Rings(bytes) if way.by_rings => {
                carried.datagrams_at_both_ends([SERVER, CLIENT], port, bytes)
            }
            _ => carried.datagrams_at_no_end([SERVER, CLIENT], port),
        }
    }
}
