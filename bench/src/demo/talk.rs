//! A redis-cli that counts a key up, on one connection, as fast as answers come. Its output is the
//! answers: a lost, doubled or misplaced one shows as a number that does not follow the one before.

use super::stage::WEB;
use super::works::carries;
use super::{LIMIT, Stage};
use crate::work::Server;
use anyhow::{Context, Result, bail, ensure};
use fordway_lab::{Lab, Output, PathChoice, Program, Spawn, Stdout, packages};
use std::fs;
use std::path::PathBuf;

/// More than it will send.
const FOREVER: &str = "1000000000";

/// A running one.
#[derive(Debug)]
pub struct Talk {
    program: Program,
    answers: PathBuf,
    key: &'static str,
}

/// The answers, once it has ended.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Answers {
    /// How many.
    pub count: u64,
    /// Numbers that never came, of those that redis has counted.
    pub lost: u64,
    /// Numbers that came again, or behind a greater one.
    pub repeated: u64,
}

impl Talk {
    /// Starts it, and returns when bytes of its connection go through rings.
    pub fn start(lab: &Lab, stage: &Stage, server: &Server, key: &'static str) -> Result<Talk> {
        let answers = lab.work_dir().join(key);
        let spawn =
            cli(server, &["-r", FOREVER, "incr", key])?.stdout(Stdout::File(answers.clone()));
        let program = lab.spawn(&stage.client(), PathChoice::Auto, &spawn)?;
        let talk = Talk {
            program,
            answers,
            key,
        };
        talk.wait_for_rings(lab)?;
        Ok(talk)
    }

    /// Returns when the broker that runs says that bytes of its connection go through rings.
    pub fn wait_for_rings(&self, lab: &Lab) -> Result<()> {
        let pid = self.program.pid() as i32;
        self.program.wait_until(LIMIT, "has rings", || {
            let rows = lab.connections().unwrap_or_default();
            let mut own = rows
                .iter()
                .filter(|row| row.domain == WEB && row.pid == Some(pid));
            own.any(carries)
        })
    }

    /// Answers so far.
    pub fn answered(&self) -> u64 {
        let text = fs::read(&self.answers).unwrap_or_default();
        text.iter().filter(|byte| **byte == b'\n').count() as u64
    }

    /// Returns when so many more answers have come; how many those are.
    pub fn wait_for_more(&self, count: u64) -> Result<u64> {
        let before = self.answered();
        self.program.wait_until(LIMIT, "has more answers", || {
            self.answered() >= before + count
        })?;
        Ok(self.answered() - before)
    }

    /// Waits for its end, which something else brings about.
    pub fn finish(self) -> Result<Output> {
        self.program.finish()
    }

    /// Ends it; one answer may be on its way.
    pub fn stop(self, lab: &Lab, stage: &Stage, server: &Server) -> Result<Answers> {
        let is_running = self.program.is_running();
        let output = self.program.stop()?;
        let errors = output.errors();
        ensure!(is_running, "redis-cli ended by itself: {}", errors.trim());
        let text = fs::read_to_string(&self.answers)?;
        let mut answers = read(&text).with_context(|| format!("answers to incr {}", self.key))?;
        let get = cli(server, &["get", self.key])?;
        let get = lab.run(&stage.client(), PathChoice::Kernel, &get)?;
        let counted: u64 = get.text().trim().parse().context("answer to get")?;
        let greatest = answers.count - answers.repeated + answers.lost;
        answers.lost += counted.saturating_sub(greatest + 1);
        Ok(answers)
    }
}

/// One command of redis-cli to a server, by its domain's name.
pub fn cli(server: &Server, words: &[&str]) -> Result<Spawn> {
    let (program, port) = (packages::path_of("redis-cli")?, server.port().to_string());
    let to = [program.as_str(), "-h", super::stage::DB, "-p", &port];
    Ok(Spawn::new(to.iter().chain(words).copied()))
}

/// Lines of numbers from 1 on; the last line counts if it is whole.
fn read(text: &str) -> Result<Answers> {
    let mut answers = Answers::default();
    let mut greatest = 0;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let Ok(number) = line.trim().parse::<u64>() else {
            bail!("redis-cli said: {line}");
        };
        answers.count += 1;
        if number <= greatest {
            answers.repeated += 1;
        } else {
            answers.lost += number - greatest - 1;
            greatest = number;
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_or_comes_twice_is_seen() {
        let of = |text| {
            let Answers {
                count,
                lost,
                repeated,
            } = read(text).unwrap();
            [count, lost, repeated]
        };
        assert_eq!(of("1\n2\n3\n4"), [3, 0, 0]);
        assert_eq!(of("1\n2\n4\n"), [3, 1, 0]);
        assert_eq!(of("1\n2\n2\n3\n"), [4, 0, 1]);
        assert_eq!(of("1\n3\n2\n"), [3, 1, 1]);
        assert_eq!(of(""), [0, 0, 0]);
        let error = read("1\nError: Server closed the connection\n").unwrap_err();
        assert!(error.to_string().contains("Server closed"));
    }
}
