//! How programs with UDP sockets are started: by the kernel alone, and with their datagrams on rings.

use fordway_test_programs::Spawn;

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
