//! `fordway xen run`: a guest's image is started on the real Xen, under emulation, and a
//! job runs beside it in dom0 (see the crate `fordway-xen-testbed`).

use crate::cli::{XenCommand, XenRun};
use crate::exit::{Exit, Failure, Outcome};
use fordway_xen_testbed::{Case, Error, Event, Images, Job, Limits, Run, Source, qemu};
use std::path::Path;
use std::time::Duration;

/// The job's directory in dom0 for what the user gives.
const GIVEN: &str = "given";
const START: &str = "start";
const JOB: &str = "job";
const CONSOLE: &str = "console";

/// `fordway xen`.
pub fn xen(command: &XenCommand) -> Outcome {
    match command {
        XenCommand::Run(run) => self::run(run),
    }
}

fn run(run: &XenRun) -> Outcome {
    let job = job(run)?;
    let images = Images::prepare(&|what| eprintln!("fordway: {what}")).map_err(failure)?;
    let limits = Limits {
        whole: Duration::from_secs(run.timeout),
        silence: Duration::from_secs(run.timeout),
        ..Limits::default()
    };
    let report = qemu::run(&images, &job, limits, &mut |event| match event {
        Event::Up(host, _) => eprintln!("fordway: dom0 is up after {:.0} s", host.as_secs_f64()),
        Event::Case(ended) => show(ended),
        Event::Begin(_) => {}
    })
    .map_err(failure)?;

    if let Some(directory) = &run.out {
        for (name, bytes) in &report.files {
            let path = directory.join(name);
            std::fs::create_dir_all(directory)
                .and_then(|()| std::fs::write(&path, bytes))
                .map_err(|error| Failure::internal(format!("{}: {error}", path.display())))?;
        }
    }
    let of = |name: &str| report.runs.iter().find(|run| run.name == name);
    match (of(START), of(JOB)) {
        (Some(start), _) if start.status != 0 => Err(Failure::new(
            Exit::Machine,
            "the guest did not start, or answered no ping (--no-wait is for one that answers none)",
        )),
        (_, Some(job)) if job.status == 0 => Ok(Exit::Done),
        (_, Some(job)) if job.status == 124 => Err(Failure::new(
            Exit::Job,
            format!("the job was ended after {} emulated seconds", run.limit),
        )),
        (_, Some(job)) => {
            let text = format!("the job ended with status {}", job.status);
            Err(Failure::new(Exit::Job, text))
        }
        _ => Err(Failure::internal("the job was not run")),
    }
}

fn show(ended: &Run) {
    print!("{}", ended.output);
    if ended.name == START && ended.status != 0 {
        eprint!("{}", ended.diagnosis);
    }
}

fn job(run: &XenRun) -> Result<Job, Failure> {
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
    let kernel = give(&run.image)?;
    let ramdisk = run.ramdisk.as_deref().map(&mut give).transpose()?;
    for file in &run.file {
        give(file)?;
    }

    let address = run.ip.to_string();
    let extra = format!("ip={address}/24 gw=10.0.0.1 {}", run.extra);
    let mut start = ["configure", "guest", &address, &kernel]
        .map(quoted)
        .join(" ");
    start += &format!(" {} {}", run.memory, quoted(&extra));
    if let Some(ramdisk) = ramdisk {
        start += &format!(" {}", quoted(&ramdisk));
    }
    for line in &run.config {
        start += &format!("\necho {} >>/run/guests/guest.cfg", quoted(line));
    }
    start += if run.no_wait {
        "\ncreate guest\nxl unpause guest\n"
    } else {
        "\nstart guest\n"
    };
    let words: Vec<String> = run.job.iter().map(quoted).collect();
    // A guest that did not start leaves nothing to do the job with.
    let work = format!(
        "running guest || {}\nexport GUEST={address}\ncd /job/{GIVEN}\n{}\n",
        if run.no_wait { "true" } else { "exit 125" },
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
    case(JOB, work, run.limit);
    if run.console {
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
