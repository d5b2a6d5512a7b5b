//! `fordway-test-xen [--short] [WORD...]`: the cases of [`cases`], run in dom0 of an
//! emulated Xen; `--bench` prints the marks instead. Images that are not given are looked
//! for where `./x` builds them; cases that need one which is not there fail, but for
//! `--short`, which leaves them out with a line.
#![forbid(unsafe_code)]

mod bench;
mod between;
mod cases;
mod guests;
mod machines;
mod rules;
mod www;

use anyhow::{Result, bail, ensure};
use cases::{Case, Needs};
use clap::Parser;
use fordway_xen_testbed::{Images, Job, Limits, Source};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The unikernel on the real Xen, under emulation.
#[derive(Debug, Parser)]
#[command(name = "fordway-test-xen")]
struct Cli {
    /// Only those whose names have one of these words
    words: Vec<String>,
    /// The short form: one boot, the cases that say most
    #[arg(long)]
    short: bool,
    /// Print the figures beside the Linux guest's, raw ones into DIR
    #[arg(long, value_name = "DIR")]
    bench: Option<PathBuf>,
    /// Directory of the unikernel's images, by their names (httpd, kv)
    #[arg(long, value_name = "DIR", default_value = "target/xen")]
    images: PathBuf,
    /// Emulated machines that run beside each other
    #[arg(long, default_value_t = 2)]
    machines: usize,
    /// What cases wrote, also of those that passed
    #[arg(long)]
    verbose: bool,
    /// List the cases
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<bool> {
    let chosen: Vec<&Case> = cases::ALL.iter().filter(|case| cli.wants(case)).collect();
    if cli.list {
        for case in &chosen {
            println!("{:<24} {}", case.name, case.what);
        }
        return Ok(true);
    }
    let images = match Images::prepare(&|what| println!("{what}")) {
        Ok(images) => images,
        Err(error) if cli.short => {
            fordway_test_skip::skipped(format_args!("Xen: {error}"));
            println!("0 passed, 0 failed");
            return Ok(true);
        }
        Err(error) => bail!(error),
    };
    if let Some(directory) = &cli.bench {
        bench::run(&images, &cli.images, directory, &cli.words)?;
        return Ok(true);
    }
    ensure!(!chosen.is_empty(), "no case has such a name; see --list");
    let (ready, missing): (Vec<&Case>, Vec<&Case>) = chosen
        .into_iter()
        .partition(|case| case.needs.iter().all(|need| need.is_there(&cli.images)));
    for case in &missing {
        let what = format!("{}: there is no image for it", case.name);
        match cli.short {
            true => fordway_test_skip::skipped(what),
            false => println!("FAILED: {what}"),
        }
    }
    let machines = if cli.short { 1 } else { cli.machines.max(1) };
    let sum = machines::run(
        &images,
        &ready,
        machines,
        &|cases| job(cases, &cli.images),
        Limits::default(),
        cli.verbose,
    )?;
    let failed = sum.failed + if cli.short { 0 } else { missing.len() };
    println!("{} passed, {failed} failed", sum.passed);
    Ok(failed == 0)
}

impl Cli {
    fn wants(&self, case: &Case) -> bool {
        let named = |word: &String| case.name.contains(word.as_str());
        (self.words.is_empty() || self.words.iter().any(named)) && (!self.short || case.short)
    }
}

/// A job with these cases and all that they need.
fn job(cases: &[&Case], images: &Path) -> Result<Job> {
    let mut job = Job {
        functions: cases::FUNCTIONS.to_owned(),
        ..Job::default()
    };
    for case in cases {
        job.cases.push(fordway_xen_testbed::Case {
            name: case.name.to_owned(),
            script: case.script.to_owned(),
            limit_s: case.limit_s,
        });
        job.linux |= case.needs.contains(&Needs::Linux);
    }
    add_files(&mut job, images)?;
    Ok(job)
}

/// The unikernel's images, as far as they are there, programs for dom0, rules, and files to serve.
fn add_files(job: &mut Job, images: &Path) -> Result<()> {
    for need in [
        Needs::Httpd,
        Needs::Profile,
        Needs::Filter,
        Needs::Kv,
        Needs::HttpdGuests,
        Needs::KvGuests,
        Needs::Pair,
        Needs::Fordway,
        Needs::Hostile,
    ] {
        if need.is_there(images) {
            let name = need.image().expect("it is an image").to_owned();
            let path = images.join(&name);
            job.files.push((name, Source::Path(path)));
        }
    }
    for (name, text) in cases::PROGRAMS {
        let source = Source::Bytes(text.as_bytes().to_vec());
        job.files.push(((*name).to_owned(), source));
    }
    guests::add_to(job)?;
    rules::add_to(job)?;
    Ok(www::add_to(job)?)
}
