//! The broker's log: one event, one line on stderr, or one datagram to systemd's journal.
//!
//! ```text
//!   tracing ─► filter (level, changed at run time) ─► Record ──► journal, if stderr is the journal's (sd-journal(3))
//!                                                       │           └─ it cannot be reached
//!                                                       └───────────────────► stderr
//! ```
//! - What a record says may come from programs: names, paths, what a tool has printed. Each control character, each
//!   separator of lines and each mark that turns the direction of text is written as an escape, and so is the backslash. So
//!   an event is one line, and no text makes a second one, or a field.
//! - Fields stand before the message, which ends the line: nothing in the message can pass for a field.
//! - No record waits for who reads. What has no room is lost and counted; the count is the next record.
//! - Texts are bounded: a record fits in one datagram, and in what poll(2) promises of a pipe.

use crate::audit::AUDIT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsStr;
use std::fmt::{Debug, Write};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// What is logged unless something else is said.
pub const DEFAULT: &str = "info";
/// Names the file of stderr, if it is the journal's (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";
/// Where the journal takes datagrams ("Native Journal Protocol" of systemd).
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
/// Longest message and longest field, as they are written.
const MESSAGE_BYTES_MAX: usize = 2048;
const FIELD_BYTES_MAX: usize = 256;
/// Longest line. A pipe, or a socket, that shows room takes so many bytes at once (pipe(7), PIPE_BUF).
const LINE_BYTES_MAX: usize = 4096;

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    level: Mutex<String>,
}

/// A level, or several words with commas between them, each a level or `MODULE=LEVEL`. What is audited is logged whatever the level,
/// unless it is named.
pub fn check(level: &str) -> Result<EnvFilter, String> {
    let wrong = |why: &str| {
        format!(
            "\"{}\" is no level of the log: {why}",
            escaped(level, FIELD_BYTES_MAX)
        )
    };
    // A level that is misspelt would be the name of a module.
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let is_known = |word: &str| {
        let (_, level) = word.rsplit_once('=').unwrap_or(("", word));
        levels.iter().any(|one| one.eq_ignore_ascii_case(level))
    };
    if !level.split(',').all(is_known) {
        return Err(wrong("give error, warn, info, debug or trace"));
    }
    EnvFilter::try_new(format!("{AUDIT}=info,{level}")).map_err(|error| wrong(&error.to_string()))
}

/// Starts to log. Once in a process; later calls change the level.
pub fn start(level: &str) -> Result<(), String> {
    let filter = check(level)?;
    let (filter, handle) = reload::Layer::new(filter);
    let log = Log {
        filter: handle,
        level: Mutex::new(level.to_owned()),
    };
    if LOG.set(log).is_err() {
        return set(level);
    }
    let journal = std::env::var_os(JOURNAL_STREAM).filter(|named| is_stderr(named));
    let journal = journal.map(|_| Path::new(JOURNAL_SOCKET));
    let stderr = io::stderr();
    let plain = stderr.as_fd().try_clone_to_owned();
    let sink = plain.and_then(|plain| Sink::onto(plain, stderr.is_terminal(), journal));
    let sink = sink.map_err(|error| error.to_string())?;
    let all = tracing_subscriber::registry().with(filter).with(sink);
    all.try_init().map_err(|error| error.to_string())
}

/// What is logged now; `None`: the process logs in its own way.
pub(crate) fn level() -> Option<String> {
    let log = LOG.get()?;
    let level = log.level.lock().unwrap_or_else(PoisonError::into_inner);
    Some(level.clone())
}

/// What is logged from now on.
pub(crate) fn set(level: &str) -> Result<(), String> {
    let filter = check(level)?;
    let log = LOG.get().ok_or("this process logs in its own way")?;
    log.filter
        .reload(filter)
        .map_err(|error| error.to_string())?;
    *log.level.lock().unwrap_or_else(PoisonError::into_inner) = level.to_owned();
    Ok(())
}

/// Whether stderr is the file that is named by device and inode.
fn is_stderr(named: &OsStr) -> bool {
    let stat = rustix::fs::fstat(io::stderr());
    stat.is_ok_and(|stat| named == OsStr::new(&format!("{}:{}", stat.st_dev, stat.st_ino)))
}

/// Whether a character could begin a line, hide, or turn others round: controls, separators of lines, and what
/// is of category Cf in Unicode.
fn is_unseen(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A text as it is written: one line, at most so long.
fn escaped(text: &str, bytes_max: usize) -> String {
    let mut written = String::new();
    for one in text.trim_end().chars() {
        let before = written.len();
        match is_unseen(one) || one == '\\' {
            true => written.extend(one.escape_default()),
            false => written.push(one),
        }
        if written.len() > bytes_max {
            written.truncate(before);
            written.push('…');
            break;
        }
    }
    written
}

/// An event, with its texts as they are written.
struct Record {
    level: Level,
    module: &'static str,
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Record {
    fn new(of: &Metadata<'static>) -> Record {
        Record {
            level: *of.level(),
            module: of.target(),
            message: String::new(),
            fields: Vec::new(),
        }
    }

    fn of_lost(count: u64) -> Record {
        Record {
            level: Level::WARN,
            module: module_path!(),
            message: format!("records of the log that found no room: {count}"),
            fields: Vec::new(),
        }
    }

    /// With its end of line.
    fn line(&self, colours: bool) -> String {
        let mut line = String::new();
        // Neither fails: the clock is there, and a text takes everything.
        let _ = SystemTime.format_time(&mut Writer::new(&mut line));
        let (before, after) = match colours {
            true => (shown(self.level).1, "\x1b[0m"),
            false => ("", ""),
        };
        let _ = write!(line, " {before}{:>5}{after} {}:", self.level, self.module);
        for (name, value) in &self.fields {
            let is_word = |one: char| one.is_ascii_alphanumeric() || "._/,-+@%".contains(one);
            let is_plain = !value.is_empty() && value.chars().all(is_word);
            let _ = match is_plain {
                true => write!(line, " {name}={value}"),
                false => write!(line, " {name}=\"{}\"", value.replace('"', "\\\"")),
            };
        }
        line.push_str(if self.fields.is_empty() { " " } else { ": " });
        line.push_str(&self.message);
        line.truncate(line.floor_char_boundary(LINE_BYTES_MAX - 1));
        line.push('\n');
        line
    }

    /// For the journal. No value has a line break, so each stands behind `=`.
    fn datagram(&self) -> String {
        let priority = match self.module {
            AUDIT => 5,
            _ => shown(self.level).0,
        };
        let mut text = format!(
            "MESSAGE={}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=fordway\n",
            self.message
        );
        let _ = writeln!(text, "FORDWAY_MODULE={}", self.module);
        for (name, value) in &self.fields {
            let _ = writeln!(text, "FORDWAY_{}={value}", name.to_ascii_uppercase());
        }
        text
    }
}

/// As syslog(3) numbers it, and the colour that a terminal gives it (console_codes(4)).
fn shown(level: Level) -> (u8, &'static str) {
    match level {
        Level::ERROR => (3, "\x1b[31m"),
        Level::WARN => (4, "\x1b[33m"),
        Level::INFO => (6, "\x1b[32m"),
        _ => (7, "\x1b[34m"),
    }
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = escaped(value, MESSAGE_BYTES_MAX),
            name => self.fields.push((name, escaped(value, FIELD_BYTES_MAX))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Where records go.
struct Sink {
    /// A copy of stderr.
    plain: OwnedFd,
    colours: bool,
    /// The socket, and where the journal is.
    journal: Option<(UnixDatagram, PathBuf)>,
    lost: AtomicU64,
}

impl Sink {
    fn onto(plain: OwnedFd, colours: bool, journal: Option<&Path>) -> io::Result<Sink> {
        let journal = journal.map(|path| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>((socket, path.to_owned()))
        });
        Ok(Sink {
            plain,
            colours,
            journal: journal.transpose()?,
            lost: AtomicU64::new(0),
        })
    }

    fn put(&self, record: &Record) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && !self.has_taken(&Record::of_lost(lost)) {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        } else if !self.has_taken(record) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_taken(&self, record: &Record) -> bool {
        if let Some((socket, path)) = &self.journal {
            match socket.send_to(record.datagram().as_bytes(), path) {
                Ok(_) => return true,
                // It does not read, and stderr is its own as well.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {}
            }
        }
        let mut fds = [PollFd::new(&self.plain, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let has_room = poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0);
        let line = record.line(self.colours);
        has_room && rustix::io::write(&self.plain, line.as_bytes()) == Ok(line.len())
    }
}

impl<S: Subscriber> Layer<S> for Sink {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut record = Record::new(event.metadata());
        event.record(&mut record);
        self.put(&record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::io::Read;

    /// What a hostile name could have.
    const HOSTILE: &str =
        "a\nb\r\u{85}c\u{2028}d\u{202e}e\u{2066}f\x1b[2Jg\\n\"h\0\u{200b}\u{e0041}";

    /// A record as an event makes it.
    fn logged(sink: Sink, log: impl FnOnce()) {
        let all = tracing_subscriber::registry().with(sink);
        tracing::subscriber::with_default(all, log);
    }

    /// A text's fields by systemd's JOURNAL_EXPORT_FORMATS, "Journal Export Format".
    fn fields(mut bytes: &[u8]) -> BTreeMap<String, String> {
        let mut read = BTreeMap::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(&bytes[..end]).expect("UTF-8");
            bytes = &bytes[end + 1..];
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let (length, rest) = bytes.split_first_chunk().expect("a length");
                    let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
                    bytes = rest.strip_prefix(b"\n").expect("an end");
                    (line, String::from_utf8(value.to_vec()).expect("UTF-8"))
                }
            };
            let is_name =
                |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(
                name.bytes().all(is_name) && !name.starts_with('_'),
                "{name}"
            );
            assert!(
                read.insert(name.to_owned(), value).is_none(),
                "{name} twice"
            );
        }
        assert!(bytes.is_empty(), "a field has no end");
        read
    }

    #[test]
    fn no_text_makes_a_second_line_or_a_field() {
        let (mut from, to) = io::pipe().expect("pipe");
        logged(Sink::onto(to.into(), false, None).expect("sink"), || {
            tracing::warn!(
                domain = HOSTILE,
                user = 7,
                none = None::<u32>,
                "{HOSTILE} user=0"
            );
            tracing::info!("a\\path: {}", "x".repeat(10_000));
        });
        let mut text = String::new();
        from.read_to_string(&mut text).expect("UTF-8");
        let lines: Vec<&str> = text.split_terminator('\n').collect();
        let shown =
            r#"a\nb\r\u{85}c\u{2028}d\u{202e}e\u{2066}f\u{1b}[2Jg\\n"h\u{0}\u{200b}\u{e0041}"#;
        let (module, quoted) = (module_path!(), shown.replace('"', "\\\""));
        let expected = format!("  WARN {module}: domain=\"{quoted}\" user=7: {shown} user=0");
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with(&expected), "{text}");
        assert!(
            lines[0].find(' ') == Some("2025-11-29T02:31:21.000000Z".len()),
            "{text}"
        );
        assert!(
            lines[1].contains(": a\\\\path: xxx") && lines[1].ends_with("x…"),
            "{text}"
        );
        assert!(lines[1].len() < MESSAGE_BYTES_MAX + 100);
        assert!(
            !text.chars().any(|one| one != '\n' && is_unseen(one)),
            "{text:?}"
        );
    }

    #[test]
    fn the_journal_is_sent_fields() {
        let dir = tempfile();
        let journal = UnixDatagram::bind(&dir).expect("bind");
        let null = File::open("/dev/null").expect("null");
        logged(
            Sink::onto(null.into(), false, Some(&dir)).expect("sink"),
            || {
                tracing::info!(target: AUDIT, event = "cut", user = 7, domain = HOSTILE, "{HOSTILE}");
                tracing::error!("plain");
            },
        );
        let mut buffer = [0; 8192];
        let mut next = || {
            let length = journal.recv(&mut buffer).expect("a datagram");
            fields(&buffer[..length])
        };
        let first = next();
        let of = |name: &str| first[name].as_str();
        assert_eq!(
            [of("FORDWAY_EVENT"), of("FORDWAY_USER"), of("PRIORITY")],
            ["cut", "7", "5"]
        );
        assert_eq!(
            [of("SYSLOG_IDENTIFIER"), of("FORDWAY_MODULE")],
            ["fordway", AUDIT]
        );
        assert_eq!(
            [of("MESSAGE"), of("FORDWAY_DOMAIN")],
            [&escaped(HOSTILE, 1000)[..]; 2]
        );
        assert_eq!(first.len(), 7, "{first:?}");
        let second = next();
        assert_eq!(
            (&second["MESSAGE"][..], &second["PRIORITY"][..]),
            ("plain", "3")
        );
        std::fs::remove_file(dir).expect("remove");
    }

    #[test]
    fn without_a_journal_stderr_is_written() {
        let (mut from, to) = io::pipe().expect("pipe");
        let nowhere = Some(Path::new("/nonexistent/socket"));
        logged(Sink::onto(to.into(), false, nowhere).expect("sink"), || {
            tracing::info!("here")
        });
        let mut text = String::new();
        from.read_to_string(&mut text).expect("UTF-8");
        assert!(text.ends_with(": here\n"), "{text}");
    }

    /// Neither a journal nor a pipe that nobody reads holds up who logs; what was lost is told.
    #[test]
    fn who_does_not_read_is_not_waited_for() {
        let (says, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            log_to_who_does_not_read();
            says.send(())
        });
        let limit = std::time::Duration::from_secs(30);
        said.recv_timeout(limit).expect("it goes on");
    }

    fn log_to_who_does_not_read() {
        const COUNT: usize = 5000;
        let told = |taken: &str| {
            let (_, lost) = taken.rsplit_once("found no room: ").expect("a count");
            lost.lines()
                .next()
                .expect("a line")
                .parse::<usize>()
                .expect("a number")
        };
        let path = tempfile();
        let journal = UnixDatagram::bind(&path).expect("bind");
        journal.set_nonblocking(true).expect("fcntl");
        let sink = Sink::onto(
            File::open("/dev/null").expect("null").into(),
            false,
            Some(&path),
        );
        let mut taken = Vec::new();
        let mut drain = || {
            let mut buffer = [0; 8192];
            while let Ok(length) = journal.recv(&mut buffer) {
                taken.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
        };
        logged(sink.expect("sink"), || {
            (0..COUNT).for_each(|at| tracing::info!("number {at}"));
            drain();
            tracing::info!("behind");
            drain();
        });
        std::fs::remove_file(path).expect("remove");
        let [.., before, last] = &taken[..] else {
            panic!("{taken:?}");
        };
        assert!(
            last.contains("behind") && taken.len() < COUNT,
            "{}",
            taken.len()
        );
        assert_eq!(taken.len() - 2 + told(before), COUNT);

        let (mut from, to) = io::pipe().expect("pipe");
        let mut bytes = vec![0; 1 << 20];
        let mut text = String::new();
        logged(Sink::onto(to.into(), false, None).expect("sink"), || {
            (0..COUNT).for_each(|at| tracing::info!("number {at}"));
            let length = from.read(&mut bytes).expect("read");
            text.push_str(std::str::from_utf8(&bytes[..length]).expect("UTF-8"));
            tracing::info!("behind");
        });
        from.read_to_string(&mut text).expect("read");
        assert_eq!(text.lines().count() - 2 + told(&text), COUNT);
    }

    fn tempfile() -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("fordway-log-{}-{count}", std::process::id()))
    }

    #[test]
    fn a_level_is_a_level() {
        for right in [
            "error",
            "debug",
            "off",
            "warn,fordwayd::filter=debug",
            "info,audit=off",
        ] {
            assert!(check(right).is_ok(), "{right}");
        }
        for wrong in [
            "", "wran", "warn,", "fordwayd", "3", "audit=", "a=loud", "a=b=info", "in\nfo",
        ] {
            let why = check(wrong).expect_err(wrong);
            assert!(!why.contains('\n'), "{why}");
        }
    }
}
