//! A host with an uplink, the world behind it, and a broker.
//!
//! ```text
//!   world 192.0.2.2 ── veth ── 192.0.2.1 host (broker) ── fordway0 10.77.0.1 ── the domains
//! ```
//! Host and world are namespaces that a test makes; /etc/hosts of the host is a file of the test's.
//! What the machine has of its own is never touched.

use super::place::Place;
use super::{Ran, Runtime, within};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub const HOST: &str = "192.0.2.1";
pub const WORLD: &str = "192.0.2.2";
pub const CONTAINER: &str = "172.30.0.2";
pub const OWN_HOSTS: &str = "127.0.0.1 localhost\n192.0.2.2 world";
/// Host, world, and the broker's directory. The broker ends before its host does.
pub struct Stage {
    pub runtime: Runtime,
    pub host: Place,
    pub world: Place,
}

impl Stage {
    pub fn new() -> Stage {
        let runtime = Runtime::new();
        let hosts = runtime.dir.join("hosts-of-host");
        fs::write(&hosts, OWN_HOSTS).expect("write");
        let bind = format!("mount --bind {} /etc/hosts", hosts.display());
        let flags = ["--net", "--mount", "--propagation", "private"];
        let host = Place::with(&flags, &bind);
        let world = Place::new();
        let stage = Stage {
            runtime,
            host,
            world,
        };
        // A new namespace has it as the machine has.
        stage.host("sysctl -qw net.ipv4.ip_forward=0");
        let world = stage.world.pid();
        stage.host(&format!(
            "ip link add eth0 type veth peer name eth0 netns /proc/{world}/ns/net"
        ));
        stage.host(&format!("ip addr add {HOST}/24 dev eth0"));
        stage.host("ip link set eth0 up");
        for line in [
            format!("addr add {WORLD}/24 dev eth0"),
            "link set eth0 up".into(),
        ] {
            stage.world.ip(&line);
        }
        stage
    }

    /// A container, as seen from here: a namespace behind another device of the host, docker0.
    pub fn container(&self) -> Place {
        let container = Place::new();
        let pid = container.pid();
        self.host(&format!(
            "ip link add docker0 type veth peer name eth0 netns /proc/{pid}/ns/net"
        ));
        self.host("ip addr add 172.30.0.1/24 dev docker0");
        self.host("ip link set docker0 up");
        container.ip(&format!("addr add {CONTAINER}/24 dev eth0"));
        container.ip("link set eth0 up");
        container.ip("route add default via 172.30.0.1");
        container
    }

    pub fn command(&self, program: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.host.pid().to_string(), "--net", "--mount"]);
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null());
        command
    }

    /// A command line on the host; it must do.
    pub fn host(&self, line: &str) -> String {
        let mut words = line.split(' ');
        let mut program = Command::new(words.next().expect("a program"));
        program.args(words);
        Ran::new(&mut self.command(&program)).check(0).stdout
    }

    /// `fordway LINE` on the host.
    pub fn say(&self, line: &str) -> Ran {
        Ran::new(&mut self.command(&self.runtime.command(line.split(' '))))
    }

    pub fn json(&self, line: &str) -> serde_json::Value {
        let ran = self.say(&format!("{line} --json")).check(0);
        serde_json::from_str(&ran.stdout).expect("a JSON document")
    }

    /// A program in a domain, by the kernel path.
    pub fn inside(&self, domain: &str, line: &str) -> Ran {
        self.say(&format!("run --domain {domain} --path kernel -- {line}"))
    }

    /// From here on the test is in a domain's network. By a process that is in it: the files of
    /// namespaces are mounted on the host alone.
    pub fn domain<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        let file: PathBuf = self.runtime.run_dir().join("netns").join(name);
        within(
            &PathBuf::from(format!("/proc/{}/root{}", self.host.pid(), file.display())),
            work,
        )
    }

    /// Has somebody at this port tell all who come from where they seem to come.
    pub fn serve(&self, listener: TcpListener) {
        std::thread::spawn(move || {
            while let Ok((mut stream, from)) = listener.accept() {
                let _ = stream.write_all(from.ip().to_string().as_bytes());
            }
        });
    }

    pub fn hosts(&self) -> String {
        self.host("cat /etc/hosts")
    }

    pub fn forwards(&self) -> bool {
        self.host("cat /proc/sys/net/ipv4/ip_forward") == "1\n"
    }

    /// The host as it was before any broker.
    #[track_caller]
    pub fn is_untouched(&self) {
        assert!(!self.host("ip -o link").contains("fordway0"));
        assert_eq!(self.host("nft list tables"), "");
        assert!(!self.forwards(), "still forwards");
        assert_eq!(self.hosts().trim_end(), OWN_HOSTS);
    }

    /// Ends the broker and checks that nothing is left.
    pub fn close(self) {
        self.say("down").check(0);
        self.is_untouched();
        assert!(!self.runtime.run_dir().join("control/hosts").exists());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.say("down");
    }
}
