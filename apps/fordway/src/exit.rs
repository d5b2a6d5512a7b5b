//! What `fordway` exits with: one closed list, from which the manual's table is made.

use fordwayd::admin::ErrorKind;
use std::fmt;

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
    Taken = 6, "the name, the address or the runtime directory is taken";
    /// Not there.
    NotFound = 7, "there is no such domain or channel";
    /// No broker.
    NoBroker = 8, "no broker answers";
    /// In use by programs.
    Busy = 9, "programs are still running in the domain";
    /// Doctor found faults.
    Unhealthy = 10, "doctor found something that keeps Fordway from working";
    /// Rules that cannot be loaded.
    Rules = 11, "filter: the file of rules is wrong, has something that is not supported, or the kernel refuses it";
    /// `run`: before the program.
    Launcher = 125, "run: any error of its own, instead of the statuses above";
    /// `run`: exec failed.
    NotExecutable = 126, "run: the program was found but cannot be executed";
    /// `run`: no program.
    NoProgram = 127, "run: the program was not found";
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
        // One line, whatever the cause had to say.
        let message = message.to_string();
        let lines: Vec<&str> = message
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        Failure {
            exit,
            message: lines.join("; "),
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

/// What every command gives back.
pub type Outcome = Result<Exit, Failure>;
