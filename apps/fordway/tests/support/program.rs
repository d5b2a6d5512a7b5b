//! A program that says how far it is, and goes on when it is told: the test's own binary, in a role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Ended when it is dropped.
pub struct Program {
    pub process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(mut command: Command) -> Program {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("start");
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("stdout"));
        Program {
            process,
            stdin,
            stdout,
        }
    }

    /// Waits until it says a word.
    #[track_caller]
    pub fn hear(&mut self, word: &str) {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).expect("read") > 0 {
            if line.trim_end().ends_with(&format!("SAID {word}")) {
                return;
            }
            line.clear();
        }
        panic!("it ended without saying {word}");
    }

    /// Lets it go on.
    #[track_caller]
    pub fn go_on(&mut self) {
        let stdin = self.stdin.as_mut().expect("stdin");
        stdin.write_all(b"\n").expect("write");
    }

    /// There is nothing more to go on to.
    pub fn leave(&mut self) {
        self.stdin = None;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What [`Program::hear`] waits for, said by the program.
pub fn say(word: &str) {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "SAID {word}").expect("write");
    stdout.flush().expect("flush");
}
