//! What runs in the emulated machine: `fordway-bench counted measure`. It makes the domains and their programs, counts,
//! takes samples, and leaves the rows in a file.
//!
//! A process's instructions are the scheduler's nanoseconds of it (first figure of /proc/PID/task/TID/schedstat), read
//! before and behind a round while all sleep. Interrupts and softirqs that run in its name are in them. Rounds of
//! the arrangements take turns. The samples come behind, in rounds of their own: taking one costs thousands of
//! instructions, which no sample falls into, for the timer stands still meanwhile. So the rounds without them tell how
//! much a process takes, and samples only how that is divided.

use super::profile::{self, OwnCode, Place, Role, Sample, Share};
use super::{Connections, Counted, Line, SCHEMA, Stack, talk};
use crate::instructions::plain;
use crate::pairs::median;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use fordway_lab::{Lab, PathChoice, Place as Domain, Program, Spawn};
use fordway_platform::elf::{self, Function};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PORT: u16 = 7000;
/// Requests before anything is counted: what happens once has happened.
const WARM_UP: u64 = 500;
/// Instructions between two samples. Each costs some thousand more, which it does not see.
const SAMPLE_PERIOD: &str = "19997";
/// A program may take so long, in emulated time.
const LIMIT: Duration = Duration::from_secs(600);
/// Functions that a row keeps.
const FUNCTIONS_KEPT: usize = 40;

/// `fordway-bench counted`.
#[derive(Clone, Debug, Args)]
pub struct CountedArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Clone, Debug, Subcommand)]
enum Part {
    /// Answers until it is ended.
    Serve,
    /// Asks when it is told to.
    Ask {
        server: SocketAddrV4,
        connections: usize,
        go: PathBuf,
        done: PathBuf,
    },
    /// Counts.
    Measure {
        #[arg(long)]
        requests: u64,
        #[arg(long)]
        rounds: usize,
        #[arg(long, value_delimiter = ',')]
        connections: Vec<usize>,
        /// Where the rows go.
        #[arg(long)]
        out: PathBuf,
    },
}

/// Carries a part out.
pub fn run(args: &CountedArgs) -> Result<()> {
    match &args.part {
        Part::Serve => talk::serve(PORT),
        Part::Ask {
            server,
            connections,
            go,
            done,
        } => talk::ask(*server, *connections, go, done),
        Part::Measure {
            requests,
            rounds,
            connections,
            out,
        } => {
            let lab = Lab::start()?;
            let rows = measure(&lab, *requests, *rounds, connections);
            if rows.is_err() {
                eprintln!("the broker: {}", lab.broker_log());
            }
            let left = lab.close();
            let rows = rows?;
            ensure!(left.is_empty(), "left behind: {}", left.join(", "));
            let mut file = fs::File::create(out)?;
            for row in &rows {
                writeln!(file, "{}", serde_json::to_string(row)?)?;
            }
            Ok(())
        }
    }
}

impl Stack {
    fn place(self) -> Domain {
        let (name, ip) = match self {
            Stack::Linux => ("linux", 11),
            Stack::Apart => ("apart", 12),
            Stack::Fused => ("fused", 13),
        };
        Domain::domain(name, [10, 77, 0, ip])
    }

    fn path(self) -> PathChoice {
        match self {
            Stack::Linux => PathChoice::Kernel,
            Stack::Apart => PathChoice::Stack,
            Stack::Fused => PathChoice::FusedStack,
        }
    }
}

/// A client of a server, with the processes that a request meets.
struct Talk {
    stack: Stack,
    connections: Connections,
    _client: Option<Program>,
    go: PathBuf,
    done: PathBuf,
    roles: BTreeMap<u32, Role>,
    /// Of each round.
    counts: Vec<Counts>,
}

/// Instructions for a request.
#[derive(Default)]
struct Counts {
    by_role: BTreeMap<Role, f64>,
    /// The clock's nanoseconds, rest included.
    elapsed: f64,
}

impl Counts {
    fn of(&self, role: Role) -> f64 {
        self.by_role.get(&role).copied().unwrap_or(0.0)
    }
}

fn measure(lab: &Lab, requests: u64, rounds: usize, connections: &[usize]) -> Result<Vec<Counted>> {
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let mut servers = Vec::new();
    for stack in Stack::ALL {
        let spawn = Spawn::new([own.as_str(), "counted", "serve"]).time_limit(LIMIT);
        let server = lab.spawn(&stack.place(), stack.path(), &spawn)?;
        server.wait_for_output(talk::READY)?;
        servers.push((stack, server));
    }
    let mut rows = Vec::new();
    for &connections in connections {
        let mut talks = Vec::new();
        for (stack, server) in &servers {
            talks.push(Talk::start(lab, &own, *stack, server, connections)?);
        }
        for _ in 0..rounds {
            for talk in &mut talks {
                let counts = talk.counted(requests)?;
                talk.counts.push(counts);
            }
        }
        for talk in &talks {
            rows.push(talk.row(lab, requests)?);
        }
        for talk in talks {
            fs::write(&talk.go, "0")?;
        }
    }
    Ok(rows)
}

impl Talk {
    fn start(
        lab: &Lab,
        own: &str,
        stack: Stack,
        server: &Program,
        connections: Connections,
    ) -> Result<Talk> {
        let fifo = |name: &str| -> Result<PathBuf> {
            let path = lab
                .work_dir()
                .join(format!("{name}-{}-{connections}", stack.word()));
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into())?;
            Ok(path)
        };
        let (go, done) = (fifo("go")?, fifo("done")?);
        let place = stack.place();
        let address = SocketAddrV4::new(place.ip(), PORT).to_string();
        let count = connections.to_string();
        let [go_word, done_word] = [&go, &done].map(|path| path.to_string_lossy().into_owned());
        let words = [
            own, "counted", "ask", &address, &count, &go_word, &done_word,
        ];
        let spawn = Spawn::new(words).time_limit(LIMIT);
        let client_place = Domain::domain("client", [10, 77, 0, 10]);
        let client = lab.spawn(&client_place, PathChoice::Kernel, &spawn)?;
        let talk = |roles| Talk {
            stack,
            connections,
            _client: None,
            go: go.clone(),
            done: done.clone(),
            roles,
            counts: Vec::new(),
        };
        // Behind that all processes are there, under their names.
        talk(BTreeMap::new()).round(WARM_UP)?;
        let mut roles = BTreeMap::new();
        roles.extend(client.pids().into_iter().map(|pid| (pid, Role::Client)));
        roles.extend(server.pids().into_iter().map(|pid| (pid, Role::Server)));
        for domain in lab.domains()? {
            if let Some(own) = &domain.stack
                && domain.ip == Some(place.ip())
            {
                for &pid in &own.pids {
                    let pid = pid as u32;
                    let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
                    let role = match name.trim() {
                        "fordway-driver" => Role::Driver,
                        _ => Role::Stack,
                    };
                    roles.insert(pid, role);
                }
            }
        }
        Ok(Talk {
            _client: Some(client),
            ..talk(roles)
        })
    }

    /// Nanoseconds that a round took.
    fn round(&self, requests: u64) -> Result<f64> {
        fs::write(&self.go, requests.to_string())?;
        let text = fs::read_to_string(&self.done)?;
        text.trim().parse().context("the client has ended")
    }

    fn counted(&self, requests: u64) -> Result<Counts> {
        let before = run_ns()?;
        let elapsed = self.round(requests)? / requests as f64;
        let mut by_role = BTreeMap::new();
        for (pid, after) in run_ns()? {
            let ran = after - before.get(&pid).copied().unwrap_or(0).min(after);
            let role = self.roles.get(&pid).copied().unwrap_or(Role::Other);
            if pid != std::process::id() {
                *by_role.entry(role).or_default() += ran as f64 / requests as f64;
            }
        }
        Ok(Counts { by_role, elapsed })
    }

    /// With samples, which are taken now.
    fn row(&self, lab: &Lab, requests: u64) -> Result<Counted> {
        let mut code = BTreeMap::new();
        for &pid in self.roles.keys() {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
            code.insert(pid, OwnCode::of_maps(&maps));
        }
        let samples = self.samples(lab, requests)?;
        let mut names = Names::new(lab);
        let mut shares: BTreeMap<(Share, Role), u64> = BTreeMap::new();
        let mut stages: BTreeMap<(Share, Role, String), u64> = BTreeMap::new();
        let mut functions: BTreeMap<(Share, Role, String), u64> = BTreeMap::new();
        let mut count: BTreeMap<Role, u64> = BTreeMap::new();
        for sample in &samples {
            let Some(&role) = self.roles.get(&sample.pid) else {
                continue;
            };
            let (share, stage, function) = match &sample.place {
                Place::Kernel(chain) => {
                    let function = chain.first().cloned().unwrap_or_default();
                    let share = profile::share(role, chain);
                    (share, profile::stage(chain).to_owned(), function)
                }
                Place::Own(file, place) => {
                    let nowhere = OwnCode::default();
                    let code = code.get(&sample.pid).unwrap_or(&nowhere);
                    let (file, offset) = code.find(file, *place).unwrap_or((file, 0));
                    let share = profile::share_of_own(role, file, code);
                    let function = names.find(file, offset);
                    let stage = profile::module(file, &function);
                    (share, stage, plain(&function))
                }
            };
            if role == Role::Client && function.ends_with(talk::DITHER) {
                continue;
            }
            *count.entry(role).or_default() += 1;
            *shares.entry((share, role)).or_default() += 1;
            *stages.entry((share, role, stage)).or_default() += 1;
            *functions.entry((share, role, function)).or_default() += 1;
        }
        ensure!(!count.is_empty(), "perf(1) took no samples");
        let of_roles = |counts: &Counts| counts.by_role.values().sum::<f64>();
        let totals: Vec<f64> = self.counts.iter().map(of_roles).collect();
        let total = median(totals.iter().copied());
        let others = median(self.counts.iter().map(|counts| counts.of(Role::Other)));
        // A sample stands for its process's part: where the timer disturbs a process, the others keep theirs.
        let each = |role: Role, n: u64| {
            let whole = median(self.counts.iter().map(|counts| counts.of(role)));
            n as f64 * whole / count[&role] as f64
        };
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for ((share, role), n) in shares {
            *sums.entry(share.word().to_owned()).or_default() += each(role, n);
        }
        sums.insert(Share::Rest.word().to_owned(), others);
        let lines = |of: BTreeMap<(Share, Role, String), u64>, kept: usize| {
            let mut of: Vec<_> = of.into_iter().collect();
            of.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let lines = of.into_iter().take(kept);
            let line = |((share, role, what), count)| Line {
                share: Share::word(share).to_owned(),
                process: Role::word(role).to_owned(),
                what,
                instructions: each(role, count),
            };
            lines.map(line).collect::<Vec<Line>>()
        };
        let processes = [
            Role::Client,
            Role::Server,
            Role::Stack,
            Role::Driver,
            Role::Other,
        ];
        let of_process = |role: Role| {
            let rounds = self.counts.iter();
            let rounds = rounds.map(|counts| counts.of(role));
            (role.word().to_owned(), median(rounds))
        };
        Ok(Counted {
            schema: SCHEMA,
            work: "stack-count".to_owned(),
            stack: self.stack,
            connections: self.connections,
            requests,
            total,
            totals,
            elapsed: median(self.counts.iter().map(|counts| counts.elapsed)),
            processes: processes.into_iter().map(of_process).collect(),
            samples: count.values().sum(),
            shares: sums,
            stages: lines(stages, usize::MAX),
            functions: lines(functions, FUNCTIONS_KEPT),
        })
    }

    /// perf(1) has a shell do a round.
    fn samples(&self, lab: &Lab, requests: u64) -> Result<Vec<Sample>> {
        let data = lab.work_dir().join("perf.data");
        let data = data.to_string_lossy();
        let script = format!(
            "echo {requests} {} >{}; exec cat {}",
            match self.connections {
                1 => talk::DITHER,
                // They vary by themselves, and it would part what is served together.
                _ => "",
            },
            self.go.display(),
            self.done.display()
        );
        let words = [
            "perf",
            "record",
            "-q",
            "-a",
            "-B",
            "-N",
            "-g",
            "-m",
            "1024",
            "-e",
            "cpu-clock",
            "-c",
            SAMPLE_PERIOD,
            "-o",
            &data,
            "--",
            "sh",
            "-c",
            &script,
        ];
        lab.spawn_bare(&Spawn::new(words).time_limit(LIMIT))?
            .finish()?
            .ok()?;
        let words = [
            "perf",
            "script",
            "-i",
            &data,
            "--no-inline",
            "-F",
            "comm,pid,ip,sym,dso",
        ];
        let said = lab
            .spawn_bare(&Spawn::new(words).time_limit(LIMIT))?
            .finish()?
            .ok()?;
        Ok(profile::samples(&said.text()))
    }
}

/// Nanoseconds that each process has run.
fn run_ns() -> Result<BTreeMap<u32, u64>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // It may end meanwhile.
        let Ok(threads) = fs::read_dir(entry.path().join("task")) else {
            continue;
        };
        let ran = threads.flatten().filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        all.insert(pid, ran.sum());
    }
    Ok(all)
}

/// Functions of the build's files, read when one is asked for.
struct Names {
    directory: PathBuf,
    files: BTreeMap<String, Vec<Function>>,
}

impl Names {
    fn new(lab: &Lab) -> Names {
        let directory = lab.fordway().parent().unwrap_or(Path::new("/")).to_owned();
        let files = BTreeMap::new();
        Names { directory, files }
    }

    fn find(&mut self, file: &str, offset: u64) -> String {
        let directory = &self.directory;
        let functions = self.files.entry(file.to_owned()).or_insert_with(|| {
            // None of a file that has no names, or is not ours.
            let own = std::env::current_exe().ok();
            let own = own.filter(|own| own.file_name().is_some_and(|name| name == file));
            elf::functions(&own.unwrap_or(directory.join(file))).unwrap_or_default()
        });
        let behind = functions.partition_point(|one| one.addresses.start <= offset);
        match behind.checked_sub(1) {
            Some(at) => functions[at].name.clone(),
            None => file.to_owned(),
        }
    }
}
