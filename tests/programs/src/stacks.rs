//! Where programs stand, for the report of one that hangs: every thread's name, state
//! and system call, and its stack if gdb is installed.

use fordway_lab::{packages, proc};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

/// Innermost calls of each thread that are printed.
const FRAMES: &str = "14";
/// Seconds that gdb may take for one process.
const GDB_LIMIT_S: &str = "20";

/// The processes in these network namespaces.
pub fn of_namespaces(files: &[PathBuf]) -> String {
    let inodes: Vec<u64> = files
        .iter()
        .filter_map(|file| Some(fs::metadata(file).ok()?.ino()))
        .collect();
    proc::all()
        .into_iter()
        .filter(|process| {
            proc::network_namespace(process.pid).is_some_and(|inode| inodes.contains(&inode))
        })
        .map(|process| of_process(&process))
        .collect()
}

fn of_process(process: &proc::Stat) -> String {
    let mut text = format!("-- process {} ({})\n", process.pid, process.name);
    let dir = format!("/proc/{}/task", process.pid);
    for task in fs::read_dir(dir).into_iter().flatten().flatten() {
        let read = |name: &str| {
            let value = fs::read_to_string(task.path().join(name)).unwrap_or_default();
            value.trim().to_owned()
        };
        text += &format!(
            "   thread {} ({}): waits in {}, system call {}\n",
            task.file_name().to_string_lossy(),
            read("comm"),
            read("wchan"),
            read("syscall")
        );
    }
    if let Some(gdb) = packages::find("gdb") {
        let output = Command::new("timeout")
            .arg(GDB_LIMIT_S)
            .arg(gdb)
            .args(["-batch", "-p", &process.pid.to_string()])
            .args(["-ex", &format!("thread apply all bt {FRAMES}")])
            .output();
        for line in output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
            .lines()
            .filter(|line| line.starts_with('#') || line.starts_with("Thread"))
        {
            text += &format!("   {line}\n");
        }
    }
    text
}
