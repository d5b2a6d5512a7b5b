//! Rules that are being loaded: what the broker does meanwhile, and what is in force whatever happens then. The broker's nft is held
//! back where a test says so, and its stack is stopped: so a load takes as long as the test likes. One test at a time: a process has
//! one lab.

use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{PathChoice, Place, Question, Spawn, Stdin, packages};
use fordway_test_enforce::{Bed, db, program, web};
use fordwayd::admin::{ErrorKind, FilterChange, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);

/// Who takes the file `hold` away waits for a line, and may die of it.
const NFT: &str = "#!/bin/sh
mv DIR/hold DIR/held 2>/dev/null && read -r line <DIR/gate
[ \"$line\" != die ] || kill -9 $$
exec NFT \"$@\"
";

/// Holds back what the broker's nft does.
struct Gate {
    dir: PathBuf,
    gate: File,
}

impl Gate {
    /// The broker is another one from now on.
    fn new(bed: &mut Bed) -> Result<Gate> {
        let dir = bed.lab.work_dir().join("bin");
        fs::create_dir(&dir)?;
        let nft = NFT.replace("NFT", &packages::path_of("nft")?);
        let nft = nft.replace("DIR", &dir.display().to_string());
        fs::write(dir.join("nft"), nft)?;
        fs::set_permissions(dir.join("nft"), fs::Permissions::from_mode(0o755))?;
        let gate = dir.join("gate");
        ensure!(Command::new("mkfifo").arg(&gate).status()?.success());
        // For both, so that no side waits for the other to open it.
        let gate = OpenOptions::new().read(true).write(true).open(gate)?;
        let path = format!("{}:{}", dir.display(), std::env::var("PATH")?);
        bed.lab.set_broker_variable("PATH", &path);
        bed.lab.restart_broker(false)?;
        Ok(Gate { dir, gate })
    }

    /// A load whose rules are being made, until [`Gate::open`].
    fn held_load(&self, bed: &Bed, text: &str) -> Result<Question> {
        self.held(bed, &[loading(text)])
    }

    /// The same, and what is asked behind it.
    fn held(&self, bed: &Bed, requests: &[Request]) -> Result<Question> {
        fs::write(self.dir.join("hold"), "")?;
        let question = bed.lab.put(requests)?;
        let held = self.dir.join("held");
        bed.lab
            .wait_until(LIMIT, "nft is held back", || Ok(held.exists()))?;
        fs::remove_file(held)?;
        Ok(question)
    }

    fn open(&mut self) -> Result<()> {
        Ok(self.gate.write_all(b"\n")?)
    }

    /// As nft ends that hangs.
    fn kill(&mut self) -> Result<()> {
        Ok(self.gate.write_all(b"die\n")?)
    }
}

fn load(bed: &Bed, text: &str) -> Result<Question> {
    bed.lab.put(&[loading(text)])
}

fn loading(text: &str) -> Request {
    let (text, epoch) = (text.to_owned(), None);
    Request::FilterLoad { text, epoch }
}

fn change(question: &mut Question) -> Result<FilterChange> {
    match question.answer()? {
        Reply::FilterChange(change) => Ok(change),
        other => bail!("{other:?}"),
    }
}

fn rules(rule: &str) -> String {
    format!(
        "table inet t {{\n chain c {{\n type filter hook forward priority 0; policy accept;\n {rule}\n }}\n}}\n"
    )
}

/// The rules in force and those of the kernel are these, of this epoch.
fn are_in_force(bed: &Bed, epoch: u64, rule: &str) -> Result<()> {
    let (rules, kernel) = (bed.rules()?, bed.kernel_rules()?);
    ensure!(rules.epoch == epoch, "{}, not {epoch}", rules.epoch);
    for text in [&rules.text, &kernel] {
        let in_force = text.matches("tcp dport").count();
        ensure!(text.contains(rule) && in_force == 1, "{text}");
    }
    Ok(())
}

#[test]
fn programs_get_rings_while_rules_are_made() -> Result<()> {
    const OLD: &str = "tcp dport 8001 drop";
    let Some(mut bed) = Bed::start("rings")? else {
        return Ok(());
    };
    let mut gate = Gate::new(&mut bed)?;
    change(&mut load(&bed, &rules(OLD))?)?;
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let many = (1..3000).map(|at| format!("ip saddr 10.99.0.1 udp dport {at} drop\n"));
    let new = rules(&format!("{}tcp dport 8002 drop", many.collect::<String>()));
    let mut loading = gate.held_load(&bed, &new)?;
    bed.lab.info()?;
    let talker = bed.spawn(&web(), &program("talk 10.77.0.3:7000 1", BINARY))?;
    talker.wait_for_output("up 1")?;
    for domain in ["web", "db"] {
        bed.wait_for_rings(domain, 1)?;
    }
    // Nothing of the new rules is seen.
    are_in_force(&bed, 1, OLD)?;
    // Who has died is noticed.
    talker.stop()?;
    bed.lab.wait_until(LIMIT, "the connection is gone", || {
        Ok(bed.connections_of("db")?.is_empty())
    })?;
    ensure!(!loading.is_answered()?);
    gate.open()?;
    ensure!(change(&mut loading)?.epoch == 2);
    are_in_force(&bed, 2, "tcp dport 8002 drop")?;
    echo.stop()?;
    bed.finish()
}

/// One after the other, and no more of them than some wait.
#[test]
fn loads_at_once_end_in_order() -> Result<()> {
    /// As the broker has it.
    const WAITING_MAX: usize = 16;
    const MORE: usize = 3;
    let Some(mut bed) = Bed::start("order")? else {
        return Ok(());
    };
    let mut gate = Gate::new(&mut bed)?;
    let rule = |port: usize| format!("tcp dport {} drop", 8000 + port);
    let first = gate.held_load(&bed, &rules(&rule(0)))?;
    let mut all = vec![first];
    for port in 1..=WAITING_MAX {
        all.push(load(&bed, &rules(&rule(port)))?);
        // It was heard: those of one connection are taken in order, and connections as well.
        bed.lab.info()?;
    }
    for _ in 0..MORE {
        let refused = load(&bed, "")?.answer()?;
        let Reply::Error { kind, message } = refused else {
            bail!("{refused:?}");
        };
        ensure!(kind == ErrorKind::Busy && message.contains("wait already"));
    }
    for question in &all {
        ensure!(!question.is_answered()?);
    }
    gate.open()?;
    for (at, question) in all.iter_mut().enumerate() {
        let epoch = change(question)?.epoch;
        ensure!(epoch == at as u64 + 1, "{at}: {epoch}");
    }
    are_in_force(&bed, all.len() as u64, &rule(WAITING_MAX))?;
    // A fault in one is nobody else's, and what is on other rules by then is late.
    let held = gate.held_load(&bed, &rules("tcp dport 9000 rejekt"))?;
    let epoch = Some(all.len() as u64);
    let on = |text: &str| {
        let text = rules(text);
        bed.lab.put(&[Request::FilterLoad { text, epoch }])
    };
    let mut questions = [held, on("tcp dport 9001 drop")?, on("tcp dport 9002 drop")?];
    gate.open()?;
    let kinds = questions.iter_mut().map(|question| {
        Ok(match question.answer()? {
            Reply::Error { kind, .. } => Some(kind),
            _ => None,
        })
    });
    let mut kinds: Vec<_> = kinds.collect::<Result<_>>()?;
    ensure!(kinds[0] == Some(ErrorKind::Rules), "{kinds:?}");
    // Whichever of the two was heard first.
    kinds.sort_by_key(Option::is_some);
    ensure!(kinds[0].is_none() && kinds.contains(&Some(ErrorKind::Busy)));
    bed.finish()
}

/// What one connection asks behind a load is answered behind it; a load whose asker has hung up is done.
#[test]
fn a_load_is_done_whoever_waits_for_it() -> Result<()> {
    let Some(mut bed) = Bed::start("gone")? else {
        return Ok(());
    };
    let mut gate = Gate::new(&mut bed)?;
    let mut monitor = bed.lab.put(&[Request::FilterMonitor])?;
    monitor.answer()?;
    let asked = [loading(&rules("tcp dport 8001 drop")), Request::Info];
    let mut first = gate.held(&bed, &asked)?;
    drop(load(&bed, &rules("tcp dport 8002 drop"))?);
    bed.lab.info()?;
    ensure!(!first.is_answered()?);
    gate.open()?;
    ensure!(change(&mut first)?.epoch == 1);
    ensure!(matches!(first.answer()?, Reply::Info(_)));
    for epoch in 1..3 {
        ensure!(change(&mut monitor)?.epoch == epoch);
    }
    are_in_force(&bed, 2, "tcp dport 8002 drop")?;
    // The one that is made.
    drop(gate.held_load(&bed, &rules("tcp dport 8003 drop"))?);
    bed.lab.info()?;
    gate.open()?;
    ensure!(change(&mut monitor)?.epoch == 3);
    are_in_force(&bed, 3, "tcp dport 8003 drop")?;
    // A broker that ends says that it does nothing more, nor what was asked behind that.
    let again = || loading(&rules("tcp dport 8004 drop"));
    let mut held = gate.held(&bed, &[again(), again(), Request::Info])?;
    let mut waits = bed.lab.put(&[again(), Request::Info])?;
    bed.lab.info()?;
    bed.lab.ask(&Request::Down { keep_domains: true })?;
    for question in [&mut held, &mut waits] {
        let said = question.answer()?;
        let Reply::Error { kind, .. } = said else {
            bail!("{said:?}");
        };
        ensure!(kind == ErrorKind::Busy);
        let behind = question.answer();
        ensure!(behind.is_err(), "{behind:?}");
    }
    gate.open()?;
    bed.lab.stop_broker(true)?;
    bed.lab.start_broker()?;
    are_in_force(&bed, 3, "tcp dport 8003 drop")?;
    bed.finish()
}

/// An nft that hangs is killed in the end. Its load is refused, and what was asked behind it is done.
#[test]
fn an_nft_that_was_killed_holds_nothing_up() -> Result<()> {
    let Some(mut bed) = Bed::start("killed-nft")? else {
        return Ok(());
    };
    let mut gate = Gate::new(&mut bed)?;
    let one = loading(&rules("tcp dport 8001 drop"));
    let other = loading(&rules("tcp dport 8002 drop"));
    let mut held = gate.held(&bed, &[one, Request::Info, other])?;
    let mut waits = load(&bed, &rules("tcp dport 8003 drop"))?;
    bed.lab.info()?;
    gate.kill()?;
    let said = held.answer()?;
    ensure!(matches!(said, Reply::Error { .. }), "{said:?}");
    ensure!(matches!(held.answer()?, Reply::Info(_)));
    // That one was asked first.
    ensure!(change(&mut waits)?.epoch == 1);
    ensure!(change(&mut held)?.epoch == 2);
    are_in_force(&bed, 2, "tcp dport 8002 drop")?;
    bed.finish()
}

/// The process of the only stack.
fn stackd(bed: &Bed) -> Result<Pid> {
    let domains = bed.lab.domains()?;
    let stack = domains.into_iter().find_map(|domain| domain.stack);
    let pids = stack.context("no stack")?.pids;
    let pid = pids.last().copied().context("no process")?;
    Pid::from_raw(pid).context("a number")
}

/// The bed with a stack whose program does nothing.
fn with_stack(name: &str) -> Result<Option<(Bed, fordway_lab::Program)>> {
    let Some(bed) = Bed::start(name)? else {
        return Ok(None);
    };
    let own = Place::domain("own", [10, 77, 0, 9]);
    let cat = Spawn::new(["cat"]).stdin(Stdin::Pipe).time_limit(LIMIT * 2);
    let cat = bed.lab.spawn(&own, PathChoice::Stack, &cat)?;
    bed.lab.wait_until(LIMIT, "a stack that has begun", || {
        // It answers to rules.
        let change = change(&mut load(&bed, "")?)?;
        Ok(change.stacks.changed == 1)
    })?;
    Ok(Some((bed, cat)))
}

/// A stack takes its time to say that it has new rules: the broker answers others meanwhile, by the new rules.
#[test]
fn others_are_answered_while_a_stack_is_heard() -> Result<()> {
    /// On a machine that stands still for seconds a stack is killed in one of them.
    const ROUNDS: u64 = 5;
    let Some((bed, cat)) = with_stack("heard")? else {
        return Ok(());
    };
    let has_gone_on = (0..ROUNDS).any(|round| {
        let tried = || -> Result<bool> {
            let stackd = stackd(&bed)?;
            let before = bed.rules()?.epoch;
            let rule = format!("tcp dport {} drop", 8000 + round);
            kill_process(stackd, Signal::STOP)?;
            let mut loading = load(&bed, &rules(&rule))?;
            let seen = bed.lab.wait_until(LIMIT, "the new rules", || {
                Ok(bed.rules()?.epoch == before + 1)
            });
            let was_heard = !loading.is_answered()?;
            kill_process(stackd, Signal::CONT)?;
            seen?;
            let stacks = change(&mut loading)?.stacks;
            are_in_force(&bed, before + 1, &rule)?;
            Ok(was_heard && (stacks.changed, stacks.restarted) == (1, 0))
        };
        tried()
            .inspect_err(|error| println!("{error:#}"))
            .is_ok_and(|done| done)
    });
    ensure!(has_gone_on, "the broker stood still");
    cat.stop()?;
    bed.finish()
}

/// Old rules or new ones, in all enforcers.
#[test]
fn a_broker_that_is_killed_in_a_load_leaves_whole_rules() -> Result<()> {
    const OLD: &str = "tcp dport 8001 counter reject with tcp reset";
    const NEW: &str = "tcp dport 8002 counter reject with tcp reset";
    let Some((mut bed, cat)) = with_stack("killed")? else {
        return Ok(());
    };
    let mut gate = Gate::new(&mut bed)?;
    let epoch = change(&mut load(&bed, &rules(OLD))?)?.epoch;
    let refuses = |bed: &Bed, port: u16| -> Result<()> {
        let own = Place::domain("own", [10, 77, 0, 9]);
        let words = program(&format!("try 10.77.0.3:{port}"), BINARY);
        bed.lab.wait_until(LIMIT, "a stack that refuses", || {
            let said = bed.lab.run(&own, PathChoice::Stack, &words)?;
            Ok(said.text().trim() == "connection refused")
        })?;
        // The stack has it: the bridge has seen nothing.
        let kernel = bed.kernel_rules()?;
        ensure!(kernel.contains(&format!("tcp dport {port} counter packets 0 ")));
        Ok(())
    };
    // While the rules are made.
    let loading = gate.held_load(&bed, &rules(NEW))?;
    bed.lab.stop_broker(true)?;
    gate.open()?;
    drop(loading);
    bed.lab.start_broker()?;
    are_in_force(&bed, epoch, "tcp dport 8001")?;
    refuses(&bed, 8001)?;
    // While the stack is heard.
    let stackd = stackd(&bed)?;
    kill_process(stackd, Signal::STOP)?;
    let loading = load(&bed, &rules(NEW))?;
    let file = bed.lab.runtime_dir().join("filter.json");
    bed.lab.wait_until(LIMIT, "the file", || {
        Ok(fs::read_to_string(&file)?.contains("8002"))
    })?;
    bed.lab.stop_broker(true)?;
    drop(loading);
    // It may have been killed by now.
    let _ = kill_process(stackd, Signal::CONT);
    bed.lab.start_broker()?;
    are_in_force(&bed, epoch + 1, "tcp dport 8002")?;
    refuses(&bed, 8002)?;
    cat.stop()?;
    bed.finish()
}
