//! Connections under simulation: the machine of `fordway_sockets`, the real ring on plain
//! memory and the real registry, beside a kernel's TCP, processes and threads that are
//! simulated, all in one thread. A seed gives the whole schedule: who runs when, how far,
//! what the network delivers, which faults strike. So every failure can be had again.
//!
//! ```text
//!   plan         what a run is made of
//!   programs     threads that send, receive, poll, close
//!     calls      one call of theirs; every byte is checked
//!     process    the shim's control side: links, doorbells; mail: offers and answers
//!       end      the machine's steps, each a place where others may run
//!   kernel       TCP: queues, window, delay, FIN, RST
//!   broker       the registry with a queue from and to each process
//!   world        the scheduler, time, faults
//! ```
//!
//! A run fails if a byte is wrong, lost or doubled; if a whole connection shows an error; if
//! nobody can run and somebody sleeps for what is there; if nothing but time goes on; if ring
//! memory, a link or a channel is kept when all is over; or if an honest process is taken for
//! a liar.
//!
//! Not simulated: the order in which other processors see stores (loom does that for the
//! ring), epoll's bookkeeping, and what happens within one call of the ring.

mod broker;
mod calls;
mod choices;
mod end;
mod kernel;
mod mail;
mod memory;
mod plan;
mod process;
mod programs;
mod world;

use choices::Choices;
pub use world::Figures;
use world::World;

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// What went wrong.
    pub failure: Option<String>,
    /// What happened.
    pub figures: Figures,
}

/// Runs a seed; with `tracing`, prints each step.
pub fn run_seed(seed: u64, tracing: bool) -> Outcome {
    run(Choices::of_seed(seed), tracing)
}

/// Runs a schedule that begins with these bytes.
pub fn run_bytes(bytes: &[u8], tracing: bool) -> Outcome {
    run(Choices::of_bytes(bytes), tracing)
}

fn run(choices: Choices, tracing: bool) -> Outcome {
    let raw = Box::into_raw(Box::new(World::new(choices, tracing)));
    // SAFETY: freed below, when no task is left that could hold it.
    let world: &'static World = unsafe { &*raw };
    world.run();
    if world.failure.borrow().is_none() {
        programs::audit(world);
    }
    world.end();
    let outcome = Outcome {
        failure: world.failure.borrow_mut().take(),
        figures: *world.figures.borrow(),
    };
    // SAFETY: made above by `Box::into_raw`; all tasks are gone.
    drop(unsafe { Box::from_raw(raw) });
    outcome
}
