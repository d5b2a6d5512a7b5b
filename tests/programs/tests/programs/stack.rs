//! Programs under a stack of their own. Their bytes go by rings between program and stack where the client is by the kernel, and past the
//! stack where it is not.

use anyhow::{Context, Result, ensure};
use fordway_test_programs::{
    ASKER, Asks, Bed, CLIENT, CLIENT_LIMIT, Part, Program, Spawn, Stdin, Watch, path_of, script,
};
use rustix::process::Signal;
use std::io::Write;

const STACK: &str = "stack";
const PORT: u16 = 7000;

/// Rings between the program and its stack, and past that.
const WAYS: [Asks; 2] = [Asks::ByKernel, Asks::ByRings];

/// That so many bytes went by the rings of this way.
fn carried(bed: &Bed, watch: Watch, asks: Asks, bytes: u64) -> Result<String> {
    let carried = watch.end(bed)?;
    match asks {
        Asks::ByKernel => carried.between_program_and_stack(STACK, bytes),
        _ => carried.rings_at_both_ends([CLIENT, STACK], PORT, bytes),
    }
}

/// The client has said that its connection is warm: it goes on once rings were seen at both ends.
fn warm(bed: &Bed, watch: &Watch, asks: Asks, client: &mut Program) -> Result<()> {
    client.wait_for_output("warm")?;
    match asks {
        Asks::ByKernel => watch.until_pairs(bed, STACK)?,
        _ => watch.until_rings(bed, [CLIENT, STACK], PORT)?,
    }
    drop(client.take_stdin());
    Ok(())
}

/// A server and its client, each by one word of the script.
fn both(bed: &Bed, asks: Asks, server: &str, client: &str) -> Result<[Program; 2]> {
    let (python, script) = (path_of("python3")?, script("stack_moves.py"));
    let serve = Spawn::line(&format!("{python} {script} {server} {PORT}")).dir(&bed.dir());
    let server = bed.serve_under_a_stack(STACK, serve, "ready")?;
    let ask = Spawn::line(&format!("{python} {script} {client} {STACK} {PORT}"));
    let client = bed.spawn_as(asks, ask.dir(&bed.dir()).stdin(Stdin::Pipe))?;
    Ok([server, client])
}

/// The stack is killed, and started again by the broker: the program hears of it, and its next connection has rings, too.
#[test]
fn stack_killed() -> Result<()> {
    let Some(bed) = Bed::start("a stack that is killed", &["python3"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for asks in WAYS {
        let watch = bed.watch()?;
        let [server, mut client] = both(&bed, asks, "endure", "insist")?;
        server.wait_for_output("warm")?;
        warm(&bed, &watch, asks, &mut client)?;
        bed.kill_part(STACK, Part::Stack)?;
        let asked = bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
        ensure!(asked.text() == "warm\nwarm\ndone\n", "{}", asked.text());
        let served = bed.end_of(server, CLIENT_LIMIT, "the server")?.ok()?;
        let wanted = "ready\nwarm\nbroken: ConnectionResetError\nready\nwarm\ndone\n";
        ensure!(served.text() == wanted, "{}", served.text());
        lines.push(carried(&bed, watch, asks, 800_000)?);
    }
    bed.remove_domain(STACK)?;
    bed.finish(&lines.join("; "))
}

/// The program is killed with bytes unread in its ring: its client sees a reset.
#[test]
fn stack_program_killed() -> Result<()> {
    let Some(bed) = Bed::start("a program under a stack that is killed", &["python3"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for asks in WAYS {
        let watch = bed.watch()?;
        let [server, mut client] = both(&bed, asks, "killed", "bereaved")?;
        warm(&bed, &watch, asks, &mut client)?;
        let asked = bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
        ensure!(asked.text() == "warm\ndone\n", "{}", asked.text());
        bed.end_of(server, CLIENT_LIMIT, "the server")?;
        lines.push(carried(&bed, watch, asks, 400_000)?);
    }
    bed.remove_domain(STACK)?;
    bed.finish(&lines.join("; "))
}

/// The client is killed with bytes unread in its ring: the program on the stack sees a reset.
#[test]
fn stack_client_killed() -> Result<()> {
    let Some(bed) = Bed::start(
        "a client of a program under a stack that is killed",
        &["python3"],
    )?
    else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for asks in WAYS {
        let watch = bed.watch()?;
        let [server, mut client] = both(&bed, asks, "survive", "die")?;
        warm(&bed, &watch, asks, &mut client)?;
        bed.end_of(client, CLIENT_LIMIT, "the client")?;
        let served = bed.end_of(server, CLIENT_LIMIT, "the server")?.ok()?;
        ensure!(served.text() == "ready\ndone\n", "{}", served.text());
        lines.push(carried(&bed, watch, asks, 400_000)?);
    }
    bed.remove_domain(STACK)?;
    bed.finish(&lines.join("; "))
}

/// Connections end in each way with bytes unread in the ring: the last words arrive, and a reset comes where Linux has one. What the
/// ring has given back, and for which there is no room at once, goes before the end.
#[test]
fn stack_ends() -> Result<()> {
    let Some(bed) = Bed::start("ends under a stack", &["python3"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for asks in WAYS {
        let watch = bed.watch()?;
        let [server, mut client] = both(&bed, asks, "part", "parted")?;
        warm(&bed, &watch, asks, &mut client)?;
        let asked = bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
        ensure!(asked.text().ends_with("done\n"), "{}", asked.text());
        let served = bed.end_of(server, CLIENT_LIMIT, "the server")?.ok()?;
        ensure!(served.text().ends_with("done\n"), "{}", served.text());
        lines.push(carried(&bed, watch, asks, 2_000_000)?);
    }
    bed.remove_domain(STACK)?;
    bed.finish(&lines.join("; "))
}

/// Driver, stack and program are killed in turns under load: each time the client is served anew, a second domain's
/// connection goes on, and nothing is left.
#[test]
fn stack_kills() -> Result<()> {
    const KILLS: usize = 20;
    let Some(bed) = Bed::start("parts and programs that are killed", &["python3"])? else {
        return Ok(());
    };
    let (python, script) = (path_of("python3")?, script("stack_kills.py"));
    let line = |words: &str| Spawn::line(&format!("{python} {script} {words}"));
    let serve = |domain| bed.serve_under_a_stack(domain, line(&format!("serve {PORT}")), "ready");
    let mut server = serve(STACK)?;
    let other = serve(ASKER)?;
    let watch = bed.watch()?;
    let ask = |words: String| bed.spawn(CLIENT, line(&words).stdin(Stdin::Pipe));
    let mut client = ask(format!("insist {STACK} {PORT}"))?;
    let mut asks = client.take_stdin().context("no input")?;
    let mut steady = ask(format!("steady {ASKER} {PORT}"))?;
    client.wait_for_output("served 0\n")?;
    steady.wait_for_output("served\n")?;
    let held = |domain: &str| -> Result<usize> {
        let files = |pid: i32| Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count());
        bed.parts(domain)?.into_iter().map(files).sum()
    };
    let (parts, mut before) = (bed.parts(ASKER)?, 0);
    for round in 0..3 * KILLS {
        if round == KILLS {
            // Its connection has its rings by now.
            before = held(ASKER)?;
        }
        match round % 3 {
            0 => bed.kill_part(STACK, Part::Driver)?,
            1 => bed.kill_part(STACK, Part::Stack)?,
            _ => {
                server.signal(Signal::KILL);
                bed.end_of(server, CLIENT_LIMIT, "the server")?;
                server = serve(STACK)?;
            }
        }
        asks.write_all(b"\n")?;
        client.wait_for_output(&format!("served {}\n", round + 1))?;
    }
    let (parts_now, now) = (bed.parts(ASKER)?, held(ASKER)?);
    ensure!(parts_now == parts, "{parts_now:?}, before {parts:?}");
    ensure!(now <= before, "{now} descriptors, before {before}");
    drop(asks);
    bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
    drop(steady.take_stdin());
    bed.end_of(steady, CLIENT_LIMIT, "the other client")?.ok()?;
    let line = watch
        .end(&bed)?
        .between_program_and_stack(STACK, 10_000_000)?;
    for server in [server, other] {
        bed.stop(server)?;
    }
    bed.remove_domain(STACK)?;
    bed.remove_domain(ASKER)?;
    bed.finish(&line)
}

/// Stack and driver that are at work are put where their program runs, and may run anywhere again when they are not.
#[test]
fn stack_grouped() -> Result<()> {
    let Some(bed) = Bed::start("a stack where its program runs", &["python3"])? else {
        return Ok(());
    };
    let (python, script) = (path_of("python3")?, script("stack_kills.py"));
    let line = |words: &str| Spawn::line(&format!("{python} {script} {words}"));
    let server = bed.serve_under_a_stack(STACK, line(&format!("serve {PORT}")), "ready")?;
    let cpus = |pid: i32| -> Result<u32> {
        let set = rustix::thread::sched_getaffinity(rustix::process::Pid::from_raw(pid))?;
        Ok(set.count())
    };
    let all = cpus(0)?;
    if all < 2 {
        fordway_test_skip::skipped("one CPU");
        return Ok(());
    }
    let parts = bed.parts(STACK)?;
    let watch = bed.watch()?;
    let client = line(&format!("steady {STACK} {PORT}"));
    let mut client = bed.spawn_as(Asks::ByKernel, client.stdin(Stdin::Pipe))?;
    let until = |what: &str, wanted: u32| {
        bed.lab().wait_until(CLIENT_LIMIT, what, || {
            let now = parts.iter().map(|pid| cpus(*pid));
            Ok(now.collect::<Result<Vec<_>>>()? == [wanted, wanted])
        })
    };
    until("driver and stack are on one CPU", 1)?;
    drop(client.take_stdin());
    bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
    until("driver and stack may run anywhere", all)?;
    let line = watch.end(&bed)?;
    let line = line.between_program_and_stack(STACK, 1_000_000)?;
    bed.stop(server)?;
    bed.remove_domain(STACK)?;
    bed.finish(&line)
}

/// A connection goes over forks, copies, messages and an exec, rings in use before each, and each byte is the right one.
#[test]
fn stack_moves() -> Result<()> {
    let Some(bed) = Bed::start("moves under a stack", &["python3"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for asks in WAYS {
        let watch = bed.watch()?;
        let [server, mut client] = both(&bed, asks, "serve", "ask")?;
        warm(&bed, &watch, asks, &mut client)?;
        let asked = bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
        ensure!(asked.text().ends_with("done\n"), "{}", asked.text());
        let served = bed.end_of(server, CLIENT_LIMIT, "the server")?.ok()?;
        ensure!(served.text().ends_with("done\n"), "{}", served.text());
        // A step moves 900 KB both ways. Four of the eight begin on rings, and all but their first messages stay there.
        lines.push(carried(&bed, watch, asks, 3_000_000)?);
    }
    bed.remove_domain(STACK)?;
    bed.finish(&lines.join("; "))
}

/// Urgent bytes take a connection off its rings, both ways, and stand where they were sent.
#[test]
fn stack_urgent() -> Result<()> {
    let Some(bed) = Bed::start("urgent bytes under a stack", &["python3"])? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for asks in WAYS {
        let watch = bed.watch()?;
        let [server, mut client] = both(&bed, asks, "urge", "urged")?;
        warm(&bed, &watch, asks, &mut client)?;
        let asked = bed.end_of(client, CLIENT_LIMIT, "the client")?.ok()?;
        ensure!(asked.text() == "warm\ndone\n", "{}", asked.text());
        let served = bed.end_of(server, CLIENT_LIMIT, "the server")?.ok()?;
        ensure!(served.text() == "ready\ndone\n", "{}", served.text());
        lines.push(carried(&bed, watch, asks, 400_000)?);
    }
    bed.remove_domain(STACK)?;
    bed.finish(&lines.join("; "))
}

/// More connections than one queue holds are listed all the same.
#[test]
fn stack_lists_all() -> Result<()> {
    let Some(bed) = Bed::start("a long listing of a stack", &["python3"])? else {
        return Ok(());
    };
    let (python, script) = (path_of("python3")?, script("stack_moves.py"));
    let crowd = Spawn::line(&format!("{python} {script} crowd {PORT}")).dir(&bed.dir());
    let program = bed.serve_under_a_stack(STACK, crowd, "ready")?;
    bed.lists_of_stack(STACK, 4000)?;
    bed.stop(program)?;
    bed.remove_domain(STACK)?;
    bed.finish("4000 sockets listed")
}

/// A program holds ten thousand connections of another domain's, and all are served while all are open.
#[test]
fn stack_holds_ten_thousand() -> Result<()> {
    const COUNT: usize = 10_000;
    let Some(bed) = Bed::start("ten thousand connections of a stack", &["python3"])? else {
        return Ok(());
    };
    let (python, script) = (path_of("python3")?, script("stack_crowd.py"));
    let line = |words: &str| Spawn::line(&format!("{python} {script} {words}"));
    let server = bed.serve_under_a_stack(STACK, line(&format!("serve {PORT}")), "ready")?;
    let client = line(&format!("ask {STACK} {PORT} {COUNT}"));
    let asked = bed.run_as(Asks::ByKernel, client)?.text();
    ensure!(asked == "all are there\ndone\n", "{asked}");
    let served = bed.stop(server)?.text();
    ensure!(served == format!("ready\nmost {COUNT}\n"), "{served}");
    bed.remove_domain(STACK)?;
    bed.finish(&format!("{COUNT} connections at once, each asked twice"))
}
