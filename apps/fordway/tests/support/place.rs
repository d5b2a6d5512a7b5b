//! A process in namespaces of its own, which ends on demand: a host, the world, a container.

use super::Ran;
use fordway_platform::netns;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

pub struct Place(Child);

impl Place {
    /// A network of its own, with lo.
    pub fn new() -> Place {
        Place::with(&["--net"], "true")
    }

    /// With these flags of unshare(1), and after this script.
    pub fn with(flags: &[&str], script: &str) -> Place {
        let script = format!("set -e; {script}; ip link set lo up; echo up; read x");
        let mut process = Command::new("unshare")
            .args(flags)
            .args(["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        assert_eq!(line, "up\n");
        Place(process)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// `ip LINE` in its network; it must do.
    pub fn ip(&self, line: &str) {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid().to_string(), "--net", "ip"]);
        Ran::new(command.args(line.split(' '))).check(0);
    }

    /// From here on the caller is in its network.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = netns::of_process(self.pid() as i32).expect("namespace");
        netns::within(namespace.as_fd(), work).expect("enter")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("wait");
    }
}
