//! What `fordway` exits with: one closed list, from which the manual's table is made.

use crate::table::shortened;
use fordwayd::admin::ErrorKind;
use std::{fmt, io};

/// Letters of an error's line that a reader takes in; paths and words of the user's may make it longer.
const LINE_MAX: usize = 200;
/// Letters that are left of a word in a line that is too long.
const WORD_MAX: usize = 60;

macro_rules! exits {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal, $text:literal;)+) => {
        /// Exit status of `fordway`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Exit { $($(#[doc = $doc])+ $name = $value,)+ }

        impl Exit {
            /// Every status, in the order of the manual.
            pub const ALL: &'static [Exit] = &[$(Exit::$name,)+];

            /// One line for the manual.
            pub fn text(self) -> &'static str {
                match self { $(Exit::$name => $text,)+ }
            }
        }
    };
}

exits! {
    /// Done.
    Done = 0, "done";
    /// None of the others.
    Internal = 1, "something failed that has no status of its own";
    /// The command line.
    Usage = 2, "wrong flag or argument, malformed name, address or list";
    /// The configuration.
    Config = 3, "the configuration file is missing, not TOML, has an unknown key or a wrong value";
    /// No permission.
    Privilege = 4, "a privilege is missing (domains need root)";
    /// Not installed.
    Missing = 5, "a program, libfordway.so or a feature of the kernel is missing";
    /// In use.
    Taken = 6, "the name, the address, the port or the runtime directory is taken";
    /// Not there.
    NotFound = 7, "there is no such domain, guest, connection or file";
    /// No broker.
    NoBroker = 8, "no broker answers";
    /// In use by programs.
    Busy = 9, "programs are still running in the domain";
    /// Doctor found faults.
    Unhealthy = 10, "doctor found something that keeps Fordway from working";
    /// Rules that cannot be loaded.
    Rules = 11, "filter: the file of rules is wrong, has something that is not supported, or the kernel refuses it";
    /// `run`: before the program.
    Launcher = 125, "run, try: any error of run itself, instead of the statuses above";
    /// `run`: exec failed.
    NotExecutable = 126, "run, try: the program was found but cannot be executed";
    /// `run`: no program.
    NoProgram = 127, "run, try: the program was not found";
}

impl Exit {
    /// What a program that `run` was to start ended with, if that was never a program's.
    pub fn of_launcher(status: i32) -> Option<Exit> {
        let own = [Exit::Launcher, Exit::NotExecutable, Exit::NoProgram];
        own.into_iter()
            .find(|exit| i32::from(*exit as u8) == status)
    }
}

/// Why a command ends without having done its work: one line and a status.
#[derive(Debug)]
pub struct Failure {
    /// The status.
    pub exit: Exit,
    /// What to print after `fordway: `.
    pub message: String,
}

impl Failure {
    /// A failure with this status.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure {
            exit,
            message: one_line(&message.to_string()),
        }
    }

    /// Of a file, with the status that its kind has.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Failure {
        Failure::new(error.kind().into(), format!("{what}: {error}"))
    }

    /// Nothing to say: nobody reads any more (`| head`), or somebody else has said it.
    pub fn silent(exit: Exit) -> Failure {
        Failure {
            exit,
            message: String::new(),
        }
    }

    /// One that nobody foresaw.
    pub fn internal(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Internal, message)
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Exit {
        match kind {
            ErrorKind::BadInput => Exit::Usage,
            ErrorKind::Privilege => Exit::Privilege,
            ErrorKind::Missing => Exit::Missing,
            ErrorKind::Taken => Exit::Taken,
            ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::Busy => Exit::Busy,
            ErrorKind::Rules => Exit::Rules,
            ErrorKind::Internal => Exit::Internal,
        }
    }
}

impl From<io::ErrorKind> for Exit {
    fn from(kind: io::ErrorKind) -> Exit {
        use io::ErrorKind as Kind;
        match kind {
            Kind::PermissionDenied => Exit::Privilege,
            Kind::NotFound => Exit::NotFound,
            Kind::AddrInUse => Exit::Taken,
            Kind::AlreadyExists
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::InvalidFilename
            | Kind::InvalidInput
            | Kind::InvalidData => Exit::Usage,
            _ => Exit::Internal,
        }
    }
}

/// One line that a terminal may be given, whatever the cause had to say and however long the
/// words were that the user gave. The number of an error goes: its text stands before it.
fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let mut line = String::new();
    for letter in lines.join("; ").chars() {
        match letter.is_control() {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    while let Some(at) = line.find(" (os error ")
        && let Some(length) = line[at..].find(')')
    {
        line.replace_range(at..=at + length, "");
    }
    if line.chars().count() > LINE_MAX {
        let words = line.split(' ').map(|word| shortened(word, WORD_MAX));
        line = words.collect::<Vec<_>>().join(" ");
    }
    line
}

/// What every command gives back.
pub type Outcome = Result<Exit, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_that_can_be_read() {
        let said = |text: &str| Failure::internal(text).message;
        assert_eq!(said("one\n  two\n\n"), "one; two");
        assert_eq!(said("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(
            said(&format!("x: {error}; mend x")),
            "x: No such file or directory; mend x"
        );
        let long = said(&format!("\"{}\" is no name", "n".repeat(9000)));
        assert!(
            long.len() < LINE_MAX && long.ends_with("is no name"),
            "{long}"
        );
    }
}
