//! Running `ip` and `nft` inside a network namespace.

use super::{FabricError, Result, doing};
use crate::netns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What a tool may take. Thousands of rules take tenths of a second, and sets of a million elements some seconds. Rules may include a
/// FIFO, or name a host that no server knows: nobody waits for that without an end.
const TIME_MAX: Duration = Duration::from_secs(120);

/// `ip -batch` inside a namespace; stops at the first line that fails.
pub(super) fn ip_batch(namespace: BorrowedFd<'_>, batch: &str) -> Result<()> {
    run_in(namespace, "ip", &["-batch", "-"], batch).map(drop)
}

/// Where a tool is: by PATH, else in the directories that root's PATH lacks after `su`.
/// The error names its Debian package.
pub fn find_tool(program: &'static str) -> Result<PathBuf> {
    let package = match program {
        "nft" => "nftables",
        _ => "iproute2",
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(program))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
        .ok_or(FabricError::MissingProgram { program, package })
}

/// Runs a tool inside a namespace and gives back what it printed.
pub(super) fn run_in(
    namespace: BorrowedFd<'_>,
    program: &'static str,
    args: &[&str],
    input: &str,
) -> Result<String> {
    let output = output_in(namespace, program, args, Some(input))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| !line.trim().is_empty());
    let line = line.map_or_else(|| output.status.to_string(), |line| line.trim().to_owned());
    if line.contains("Operation not permitted") {
        return Err(FabricError::Privilege {
            what: format!("{program} says {line}"),
        });
    }
    Err(FabricError::Tool {
        program,
        output: line,
    })
}

/// Runs a tool inside a namespace, to its end or for [`TIME_MAX`].
pub(crate) fn output_in(
    namespace: BorrowedFd<'_>,
    program: &'static str,
    args: &[&str],
    input: Option<&str>,
) -> Result<Output> {
    output_within(TIME_MAX, namespace, program, args, input)
}

/// The same, or for `most`.
fn output_within(
    most: Duration,
    namespace: BorrowedFd<'_>,
    program: &'static str,
    args: &[&str],
    input: Option<&str>,
) -> Result<Output> {
    let mut command = Command::new(find_tool(program)?);
    command
        .args(args)
        .env("LC_ALL", "C")
        .env_remove("LD_PRELOAD");
    command.stdin(match input {
        Some(_) => Stdio::piped(),
        None => Stdio::null(),
    });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = netns::within(namespace, || output_of(&mut command, input, most));
    let output = output.and_then(|result| result);
    output.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => FabricError::Tool {
            program,
            output: format!("it did not end within {most:?}, and was killed"),
        },
        _ => doing("running ip or nft")(error),
    })
}

fn output_of(command: &mut Command, input: Option<&str>, most: Duration) -> io::Result<Output> {
    let mut child = command.spawn()?;
    let file = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    std::thread::scope(|scope| {
        let watch = std::thread::Builder::new().spawn_scoped(scope, || is_killed(&file, most));
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
            // A tool that stops reading has failed; its status says so.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        match watch?.join() {
            Ok(true) => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(output),
        }
    })
}

/// Waits for the end of a process; whether it had to be killed.
fn is_killed(process: &OwnedFd, most: Duration) -> bool {
    let until = Instant::now() + most;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(process, PollFlags::IN)], time.as_ref()) {
            Ok(0) => return pidfd_send_signal(process, Signal::KILL).is_ok(),
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_hangs_is_killed() {
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "exec sleep 1000"]);
        hangs.stdin(Stdio::piped()).stdout(Stdio::piped());
        // More than a pipe has room for.
        let input = "x".repeat(1 << 20);
        let ended = output_of(&mut hangs, Some(&input), Duration::from_millis(1));
        let kind = ended.map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn an_nft_that_hangs_is_told_of() {
        let Ok(scratch) = crate::nftables::Scratch::new() else {
            return fordway_test_skip::skipped("network namespaces need root");
        };
        let most = Duration::from_millis(1);
        // It waits for what others change.
        let ended = output_within(most, scratch.fd(), "nft", &["monitor"], None);
        let Err(FabricError::Tool { program, output }) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!(program, "nft");
        assert_eq!(output, "it did not end within 1ms, and was killed");
    }

    #[test]
    fn one_that_ends_is_heard() {
        let mut says = Command::new("cat");
        says.stdin(Stdio::piped()).stdout(Stdio::piped());
        let said = output_of(&mut says, Some("rules"), TIME_MAX).expect("cat");
        assert!(said.status.success() && said.stdout == b"rules");
    }
}
