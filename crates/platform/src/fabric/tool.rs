//! Running `ip` and `nft` inside a network namespace.

use super::{FabricError, Result, doing};
use crate::netns;
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

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
    let mut command = Command::new(find_tool(program)?);
    command
        .args(args)
        .env("LC_ALL", "C")
        .env_remove("LD_PRELOAD");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = netns::within(namespace, || {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that stops reading has failed; its status says so.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output()
    });
    let output = output
        .and_then(|result| result)
        .map_err(doing("running ip or nft"))?;
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
