//! `fordway-xen IMAGE -- JOB`: a guest's image is started on the real Xen, under emulation, and a
//! job runs beside it in dom0.
#![forbid(unsafe_code)]

use clap::Parser;
use fordway_xen_testbed::{Case, Error, Event, Images, Job, Limits, Run, Source, qemu};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The job's directory in dom0 for what the user gives.
const GIVEN: &str = "given";
const START: &str = "start";
const JOB: &str = "job";
const CONSOLE: &str = "console";

/// Start an image on the real Xen, under emulation, and run a job in dom0 beside it
///
/// Xen, a Linux dom0 with netback and a bridge, and the guest run in QEMU, without
/// hardware support; what they need is fetched from Debian and kept under
/// ~/.cache/fordway/xen. Time in there counts instructions, so that what a job
/// measures repeats, and compares with another guest's in the same test bed only. The
/// job finds the guest's address in $GUEST, the files given in its directory, and what
/// it leaves in /job/out comes back by --out. ping, arping, curl, wget, ab, httperf,
/// siege, redis-cli, redis-benchmark, iperf3, tcpdump, ethtool and python3 are there.
#[derive(Debug, Parser)]
#[command(name = "fordway-xen", version)]
struct Cli {
    /// The guest's image, as xl's kernel= takes it
    image: PathBuf,
    /// A line for the guest's xl.cfg, behind ours; may be given more than once
    #[arg(long, value_name = "LINE")]
    config: Vec<String>,
    /// Words for the guest's command line, behind its address
    #[arg(long, value_name = "WORDS", default_value = "")]
    extra: String,
    /// The guest's ramdisk
    #[arg(long, value_name = "FILE")]
    ramdisk: Option<PathBuf>,
    /// The guest's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    memory: u32,
    /// The guest's address on dom0's bridge (10.0.0.1/24)
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(10, 0, 0, 2))]
    ip: Ipv4Addr,
    /// A file for the job; may be given more than once
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Where the files of /job/out go
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Start the job without waiting for the guest to answer a ping
    #[arg(long)]
    no_wait: bool,
    /// Print the guest's console at the end
    #[arg(long)]
    console: bool,
    /// Emulated seconds that the job may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u32,
    /// Seconds that all of it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
    /// The job and its arguments
    #[arg(required = true, last = true, value_name = "JOB")]
    job: Vec<String>,
}

/// Exit statuses, other than 0.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// None of the others.
    Internal = 1,
    /// The command line.
    Usage = 2,
    /// A program or a package of the host.
    Missing = 5,
    /// The emulated machine or the guest in it did not come up.
    Machine = 12,
    /// The job failed, or its time was up.
    Job = 13,
}

/// Why there is no result.
#[derive(Debug)]
struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        let message = message.to_string();
        Failure { exit, message }
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("fordway-xen: {}", failure.message);
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let job = job(cli)?;
    let images = Images::prepare(&|what| eprintln!("fordway-xen: {what}")).map_err(failure)?;
    let limits = Limits {
        whole: Duration::from_secs(cli.timeout),
        silence: Duration::from_secs(cli.timeout),
        ..Limits::default()
    };
    let report = qemu::run(&images, &job, limits, &mut |event| match event {
        Event::Up(host, _) => {
            eprintln!("fordway-xen: dom0 is up after {:.0} s", host.as_secs_f64())
        }
        Event::Case(ended) => show(ended),
        Event::Begin(_) => {}
    })
    .map_err(failure)?;

    if let Some(directory) = &cli.out {
        for (name, bytes) in &report.files {
            let path = directory.join(name);
            std::fs::create_dir_all(directory)
                .and_then(|()| std::fs::write(&path, bytes))
                .map_err(|error| {
                    Failure::new(Exit::Internal, format!("{}: {error}", path.display()))
                })?;
        }
    }
    let of = |name: &str| report.runs.iter().find(|run| run.name == name);
    match (of(START), of(JOB)) {
        (Some(start), _) if start.status != 0 => Err(Failure::new(
            Exit::Machine,
            "the guest did not start, or answered no ping (--no-wait is for one that answers none)",
        )),
        (_, Some(job)) if job.status == 0 => Ok(()),
        (_, Some(job)) if job.status == 124 => Err(Failure::new(
            Exit::Job,
            format!("the job was ended after {} emulated seconds", cli.limit),
        )),
        (_, Some(job)) => {
            let text = format!("the job ended with status {}", job.status);
            Err(Failure::new(Exit::Job, text))
        }
        _ => Err(Failure::new(Exit::Internal, "the job was not run")),
    }
}

fn show(ended: &Run) {
    print!("{}", ended.output);
    if ended.name == START && ended.status != 0 {
        eprint!("{}", ended.diagnosis);
    }
}

fn job(cli: &Cli) -> Result<Job, Failure> {
    let mut job = Job::default();
    let mut give = |path: &Path| {
        if !path.is_file() {
            let text = format!("{}: there is no such file", path.display());
            return Err(Failure::new(Exit::Usage, text));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{GIVEN}/{name}");
        job.files
            .push((name.clone(), Source::Path(path.to_owned())));
        Ok(format!("/job/{name}"))
    };
    let kernel = give(&cli.image)?;
    let ramdisk = cli.ramdisk.as_deref().map(&mut give).transpose()?;
    for file in &cli.file {
        give(file)?;
    }

    let address = cli.ip.to_string();
    let extra = format!("ip={address}/24 gw=10.0.0.1 {}", cli.extra);
    let mut start = ["configure", "guest", &address, &kernel]
        .map(quoted)
        .join(" ");
    start += &format!(" {} {}", cli.memory, quoted(&extra));
    if let Some(ramdisk) = ramdisk {
        start += &format!(" {}", quoted(&ramdisk));
    }
    for line in &cli.config {
        start += &format!("\necho {} >>/run/guests/guest.cfg", quoted(line));
    }
    start += if cli.no_wait {
        "\ncreate guest\nxl unpause guest\n"
    } else {
        "\nstart guest\n"
    };
    let words: Vec<String> = cli.job.iter().map(quoted).collect();
    // A guest that did not start leaves nothing to do the job with.
    let work = format!(
        "running guest || {}\nexport GUEST={address}\ncd /job/{GIVEN}\n{}\n",
        if cli.no_wait { "true" } else { "exit 125" },
        words.join(" ")
    );
    let mut case = |name: &str, script: String, limit_s| {
        let name = name.to_owned();
        job.cases.push(Case {
            name,
            script,
            limit_s,
        });
    };
    case(START, start, 60);
    case(JOB, work, cli.limit);
    if cli.console {
        case(CONSOLE, "console guest\n".to_owned(), 10);
    }
    Ok(job)
}

/// One word of a shell's.
fn quoted(word: impl AsRef<str>) -> String {
    format!("'{}'", word.as_ref().replace('\'', r"'\''"))
}

fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Missing { .. } | Error::Packages(_) => Exit::Missing,
        Error::Machine { .. } => Exit::Machine,
        Error::Image(_) | Error::File { .. } => Exit::Internal,
    };
    Failure::new(exit, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
