//! Programs under a stack of their own, whose bytes go by rings between program and stack; their clients are by the kernel.

use anyhow::{Result, ensure};
use fordway_test_programs::{Bed, CLIENT, CLIENT_LIMIT, Spawn, path_of, script};

const STACK: &str = "stack";
const PORT: u16 = 7000;

/// A connection goes over forks, copies, messages and an exec, rings in use before each, and each byte is the right one.
#[test]
fn stack_moves() -> Result<()> {
    let Some(bed) = Bed::start("moves under a stack", &["python3"])? else {
        return Ok(());
    };
    let (python, script) = (path_of("python3")?, script("stack_moves.py"));
    let serve = Spawn::line(&format!("{python} {script} serve {PORT}")).dir(&bed.dir());
    let server = bed.serve_under_a_stack(STACK, serve, "ready")?;
    let watch = bed.watch()?;
    let ask = Spawn::line(&format!("{python} {script} ask {STACK} {PORT}"));
    let client = bed.spawn(CLIENT, ask.dir(&bed.dir()))?;
    let asked = bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
    ensure!(asked.text().ends_with("done\n"), "{}", asked.text());
    let served = bed.end_of(server, CLIENT_LIMIT, "the server")?.ok()?;
    ensure!(served.text().ends_with("done\n"), "{}", served.text());
    // A step moves 900 KB both ways. Four of the eight begin on rings, and all but their first messages stay there.
    let line = watch
        .end(&bed)?
        .between_program_and_stack(STACK, 3_000_000)?;
    bed.remove_domain(STACK)?;
    bed.finish(&line)
}
