//! `fordway bug-report`: one archive with what a report of a fault needs.
//!
//! Each part is a file: what a command of Fordway's own says, what the machine says of itself, the configuration, and the ends of the
//! logs. All are written into a private directory first, so that the list which is printed is of what goes into the archive; `tar`
//! makes it, and `--list` stops before that. A part that fails, or takes too long, is there with what it has said. What asks the
//! broker is asked at once, and has longer than the broker may take to answer: so doctor says of one that hangs that it does.
//!
//! No part holds payload. Of the configuration, values whose key sounds like a secret are left out.

use crate::cli::BugReport;
use crate::config::DEFAULT_FILE;
use crate::exit::{Exit, Failure, Outcome};
use crate::show::print;
use crate::table::{Table, bytes};
use crate::up::{LOG, LOG_BEFORE};
use fordway_abi::ABI_VERSION;
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Of a log, its end.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// How long commands may take, and between two looks. More than a broker has for an answer.
const PATIENCE: Duration = Duration::from_secs(40);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What a key has in it whose value is nobody's business.
const SECRETS: [&str; 4] = ["token", "password", "secret", "key"];

/// Commands of Fordway's, by the part's name.
const OWN: [(&str, &[&str]); 4] = [
    ("doctor.txt", &["doctor"]),
    ("connections.txt", &["ss", "--all"]),
    ("domains.txt", &["domain", "list"]),
    ("connections.json", &["ss", "--all", "--json"]),
];

/// Of the machine.
const MACHINE: [(&str, &[&str]); 5] = [
    ("uname.txt", &["uname", "-a"]),
    ("nft.txt", &["nft", "--version"]),
    ("ip.txt", &["ip", "-Version"]),
    ("cpu.txt", &["lscpu"]),
    ("memory.txt", &["free", "-b"]),
];

/// Where systemd says that it runs, sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
const JOURNAL: [&str; 6] = [
    "journalctl",
    "--unit=fordway",
    "--lines=5000",
    "--no-pager",
    "--output=short-iso",
    "--quiet",
];

/// `fordway bug-report`; `runtime_dir` is the broker's.
pub fn bug_report(options: &BugReport, runtime_dir: &Path) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let name = format!("fordway-report-{}", now.unwrap_or_default().as_secs());
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    if !options.list && out.exists() {
        let text = format!("{} is there; give another --out", out.display());
        return Err(Failure::new(Exit::Taken, text));
    }
    let report = Report::new(&name)?;
    report.fill(runtime_dir)?;
    print(&report.list()?)?;
    if options.list {
        return Ok(Exit::Done);
    }
    report.pack(&out)?;
    print(&format!("written to {}\n", out.display()))
}

/// The parts, in a directory that goes with it.
struct Report {
    /// Private, and its only entry is the report's directory.
    within: PathBuf,
    name: String,
}

impl Report {
    fn new(name: &str) -> Result<Report, Failure> {
        let unique = format!("{name}-{}", std::process::id());
        let within = std::env::temp_dir().join(unique);
        let failed = |error| Failure::io(within.display(), &error);
        // Somebody else's directory of this name is an error.
        DirBuilder::new()
            .mode(0o700)
            .create(&within)
            .map_err(failed)?;
        let report = Report {
            within,
            name: name.to_owned(),
        };
        let dir = report.dir();
        fs::create_dir(&dir).map_err(|error| Failure::io(dir.display(), &error))?;
        Ok(report)
    }

    fn dir(&self) -> PathBuf {
        self.within.join(&self.name)
    }

    fn fill(&self, runtime_dir: &Path) -> Result<(), Failure> {
        let version = format!(
            "fordway {}, ABI version {ABI_VERSION}\n",
            env!("CARGO_PKG_VERSION")
        );
        self.add("version.txt", version.as_bytes())?;
        let own = std::env::current_exe()
            .map_err(|error| Failure::io("the path of this program", &error))?;
        let until = Instant::now() + PATIENCE;
        let mut begun = Vec::new();
        for (part, words) in OWN {
            let mut command = Command::new(&own);
            command.arg("--runtime-dir").arg(runtime_dir).args(words);
            begun.push(self.begin(part, &mut command)?);
        }
        for part in begun {
            part.finish(until)?;
        }
        for (part, words) in MACHINE {
            self.run_words(part, words)?;
        }
        if Path::new(SYSTEMD).exists() {
            self.run_words("journal.txt", &JOURNAL)?;
        }
        if let Ok(text) = fs::read_to_string("/etc/os-release") {
            self.add("os-release.txt", text.as_bytes())?;
        }
        match fs::read_to_string(DEFAULT_FILE) {
            Ok(text) => self.add("fordway.toml", without_secrets(&text).as_bytes())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.add("fordway.toml", format!("{error}\n").as_bytes())?,
        }
        for log in [LOG, LOG_BEFORE] {
            match end_of(&runtime_dir.join(log)) {
                Ok(end) => self.add(log, &end)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.add(log, format!("{error}\n").as_bytes())?,
            }
        }
        Ok(())
    }

    fn add(&self, part: &str, text: &[u8]) -> Result<(), Failure> {
        fs::write(self.dir().join(part), text).map_err(|error| Failure::io(part, &error))
    }

    fn run_words(&self, part: &str, words: &[&str]) -> Result<(), Failure> {
        let Some((program, arguments)) = words.split_first() else {
            return Ok(());
        };
        let begun = self.begin(part, Command::new(program).args(arguments))?;
        begun.finish(Instant::now() + PATIENCE)
    }

    /// Starts a command whose part is what it says on both of its streams.
    fn begin(&self, part: &str, command: &mut Command) -> Result<Begun, Failure> {
        let failed = |error: io::Error| Failure::io(part, &error);
        let file = File::create(self.dir().join(part)).map_err(failed)?;
        let [out, err] = [file.try_clone(), file.try_clone()];
        command.stdin(Stdio::null()).stdout(out.map_err(failed)?);
        command.stderr(err.map_err(failed)?);
        let child = command.spawn();
        Ok(Begun { file, child })
    }

    fn list(&self) -> Result<String, Failure> {
        let failed = |error: io::Error| Failure::io(self.dir().display(), &error);
        let mut parts = Vec::new();
        for entry in fs::read_dir(self.dir()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let size = entry.metadata().map_err(failed)?.len();
            parts.push((entry.file_name().to_string_lossy().into_owned(), size));
        }
        parts.sort();
        let mut table = Table::new(&["FILE", "BYTES"], &[1]);
        for (part, size) in parts {
            table.row([part, bytes(size)]);
        }
        Ok(table.render())
    }

    /// Only its owner can read it: addresses and names of domains are in it.
    fn pack(&self, out: &Path) -> Result<(), Failure> {
        let mut open = File::options();
        let file = open.write(true).create_new(true).mode(0o600).open(out);
        let file = file.map_err(|error| Failure::io(out.display(), &error))?;
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip", "--file=-", "--directory"]);
        tar.arg(&self.within).arg(&self.name).stdout(file);
        let failure = match tar.status() {
            Ok(ended) if ended.success() => return Ok(()),
            Ok(ended) => Failure::internal(format!("tar: {ended}")),
            Err(error) => Failure::new(Exit::Missing, format!("tar: {error}; apt install tar")),
        };
        let _ = fs::remove_file(out);
        Err(failure)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.within);
    }
}

/// A command that was started, or could not be.
struct Begun {
    file: File,
    child: io::Result<Child>,
}

impl Begun {
    /// Waits for its end, and ends it at `until`; if it ended badly, its part says how.
    fn finish(mut self, until: Instant) -> Result<(), Failure> {
        let end = match &mut self.child {
            Ok(child) => end_of_child(child, until),
            Err(error) => Ok(Some(error.to_string())),
        };
        let said = end.and_then(|end| match end {
            Some(end) => writeln!(self.file, "{end}"),
            None => Ok(()),
        });
        said.map_err(|error| Failure::io("a part of the report", &error))
    }
}

/// What is to be said of it, if anything.
fn end_of_child(child: &mut Child, until: Instant) -> io::Result<Option<String>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| status.to_string()));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(Some("ended, for it took too long".to_owned()));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The end of a log. The directory may be another user's, who may have put anything in the log's place: only a file of that user's
/// own is read, and none is waited for.
fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut open = File::options();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = open
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(log)?;
    let data = file.metadata()?;
    let dir = log.parent().map(fs::metadata).transpose()?;
    if !data.is_file() || dir.is_none_or(|dir| dir.uid() != data.uid()) {
        return Err(io::Error::other("no file of the broker's"));
    }
    let length = data.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let mut end = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut end)?;
    Ok(end)
}

/// A configuration (TOML) without the values of keys that sound like secrets, comments too.
fn without_secrets(text: &str) -> String {
    let mut kept = String::new();
    for line in text.lines() {
        let shown = match line.split_once('=') {
            Some((key, _)) if is_secret(key) => format!("{key}= (left out)"),
            _ => line.to_owned(),
        };
        kept += &shown;
        kept.push('\n');
    }
    kept
}

fn is_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    SECRETS.iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out() {
        let text = "network = \"10.9.0.0/16\"\n[web]\nadmin_token = \"abc\"\n# Password=\"def\"\n";
        let kept = without_secrets(text);
        let expected =
            "network = \"10.9.0.0/16\"\n[web]\nadmin_token = (left out)\n# Password= (left out)\n";
        assert_eq!(kept, expected);
    }

    #[test]
    fn nothing_but_a_file_of_the_owners_is_a_log() {
        let report = Report::new("fordway-report-of-a-log").expect("a directory");
        let log = report.dir().join(LOG);
        fs::write(&log, "lines").expect("a log");
        assert_eq!(end_of(&log).expect("its end"), b"lines");
        fs::remove_file(&log).expect("it is there");
        std::os::unix::fs::symlink("/etc/passwd", &log).expect("a link");
        assert!(end_of(&log).is_err());
        fs::remove_file(&log).expect("it is there");
        let made = Command::new("mkfifo").arg(&log).status().expect("mkfifo");
        assert!(made.success() && end_of(&log).is_err());
    }

    #[test]
    fn a_part_that_fails_says_so() {
        let report = Report::new("fordway-report-of-a-test").expect("a directory");
        let text = |part: &str, words: &[&str]| {
            report.run_words(part, words).expect("a part");
            fs::read_to_string(report.dir().join(part)).expect("the part")
        };
        assert!(text("none", &["/no/such/program"]).contains("No such file"));
        let said = text("fails", &["sh", "-c", "echo why >&2; exit 3"]);
        assert_eq!(said, "why\nexit status: 3\n");
        let list = report.list().expect("a list");
        assert_eq!(list.lines().count(), 3, "{list}");
        let within = report.within.clone();
        drop(report);
        assert!(!within.exists());
    }
}
