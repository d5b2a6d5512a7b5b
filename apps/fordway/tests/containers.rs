//! Containers that Fordway did not make: two plain `unshare` namespaces and a veth made
//! by hand. Their programs join by the variables and mounts of `fordway env`, and their
//! bytes then go through rings. Needs root and a built shim; says so otherwise.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::program::{Program, say};
use support::{Ran, Runtime, built_shim, is_root};

/// Set in a container: which of the two programs this process is to be.
const ROLE: &str = "FORDWAY_TEST_ROLE";
const SERVER: &str = "10.77.0.201:7000";
const ROUND_TRIPS: usize = 100;
const MESSAGE: [u8; 64] = [7; 64];

/// Not a test of its own: the containers run it as an ordinary program.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => serve(),
        Ok("client") => call(),
        _ => {}
    }
}

fn serve() {
    let listener = TcpListener::bind(SERVER).expect("bind");
    say("listening");
    let (mut stream, _) = listener.accept().expect("accept");
    let mut message = MESSAGE;
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message).expect("write");
    }
    say("ended");
}

/// Exchanges messages, once for each line that it is given.
fn call() {
    let mut stream = TcpStream::connect(SERVER).expect("connect");
    loop {
        for _ in 0..ROUND_TRIPS {
            let mut answer = [0; MESSAGE.len()];
            stream.write_all(&MESSAGE).expect("write");
            stream.read_exact(&mut answer).expect("read");
            assert_eq!(answer, MESSAGE);
        }
        say("exchanged");
        if std::io::stdin()
            .read_line(&mut String::new())
            .expect("read")
            == 0
        {
            return;
        }
    }
}

/// A process in network and mount namespaces of its own, in which the broker's runtime
/// directory shows its control directory and nothing else.
struct Container(Program);

impl Container {
    /// Laid, but its program is not started yet.
    fn new(runtime: &Runtime, env: &Value, role: &str) -> Container {
        let run = runtime.run_dir();
        let control = env["mounts"][1]["source"].as_str().expect("a directory");
        assert_eq!(Path::new(control).parent(), Some(run.as_path()));
        let aside = runtime.dir.join(role);
        std::fs::create_dir(&aside).expect("directory");
        let (run, aside) = (run.display(), aside.display());
        let script = format!(
            "set -e; ip link set lo up; mount --bind {control} {aside}; \
             mount -t tmpfs none {run}; mkdir {control}; mount --bind {aside} {control}; \
             echo SAID up; read x; exec \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["-n", "-m", "sh", "-c", &script, "sh", "env"]);
        for (name, value) in env["variables"].as_object().expect("variables") {
            command.arg(format!("{name}={}", value.as_str().expect("a string")));
        }
        let program = std::env::current_exe().expect("path");
        command.arg(format!("{ROLE}={role}")).arg(program);
        command.args(["--exact", "role", "--nocapture"]);
        let mut program = Program::start(command);
        program.hear("up");
        Container(program)
    }

    fn pid(&self) -> u32 {
        self.0.process.id()
    }

    fn ip(&self, arguments: &str) {
        let pid = self.pid().to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &pid, "-n", "ip"])
            .args(arguments.split(' '));
        Ran::new(&mut command).check(0);
    }
}

/// The device that engines know by a directory.
#[test]
fn the_device_stands_for_what_is_needed() {
    let runtime = Runtime::new();
    let env = runtime.json("env");
    let dir = runtime.dir.join("cdi");
    let install = format!("cdi install --dir {}", dir.display());
    for _ in 0..2 {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$@\"", "sh"]);
        let fordway = runtime.command(install.split(' '));
        command.arg(fordway.get_program()).args(fordway.get_args());
        command.env("FORDWAY_LIB", runtime.library());
        Ran::new(&mut command).check(0);
    }
    let files = std::fs::read_dir(&dir).expect("directory");
    let [file] = &files.flatten().collect::<Vec<_>>()[..] else {
        panic!("not one file");
    };
    for (path, mode) in [(&dir, 0o755), (&file.path(), 0o644)] {
        let mode_is = path.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode_is & 0o777, mode, "{}", path.display());
    }
    let text = std::fs::read_to_string(file.path()).expect("the file");
    assert_eq!(text, runtime.say("cdi show").check(0).stdout);
    let device: Value = serde_json::from_str(&text).expect("JSON");
    let edits = &device["devices"][0]["containerEdits"];
    let variables = env["variables"].as_object().expect("variables").iter();
    let variables =
        variables.map(|(name, value)| format!("{name}={}", value.as_str().expect("text")));
    assert_eq!(edits["env"], Value::from_iter(variables));
    let mounts = env["mounts"].as_array().expect("mounts").iter();
    let mounts = mounts.filter(|mount| mount["optional"] == false);
    let sources: Vec<&Value> = mounts.map(|mount| &mount["source"]).collect();
    let mounted = edits["mounts"].as_array().expect("mounts");
    let paths = |name: &str| Vec::from_iter(mounted.iter().map(|mount| mount[name].clone()));
    for name in ["hostPath", "containerPath"] {
        assert_eq!(paths(name).iter().collect::<Vec<_>>(), sources);
    }
    let remove = format!("cdi remove --dir {}", dir.display());
    runtime.say(&remove).check(0);
    runtime.say(&remove).fails(7, "nothing is installed");
}

#[test]
fn containers_join_by_environment_and_a_mounted_directory() {
    if !is_root() {
        return;
    }
    let Some(shim) = built_shim() else {
        return;
    };
    let runtime = Runtime::up();
    let ran = Ran::new(runtime.command(["env", "--json"]).env("FORDWAY_LIB", shim)).check(0);
    let env: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let mut server = Container::new(&runtime, &env, "server");
    let mut client = Container::new(&runtime, &env, "client");
    server.ip(&format!(
        "link add eth0 type veth peer name eth0 netns {}",
        client.pid()
    ));
    for (container, name, address) in [
        (&server, "box1", "10.77.0.201"),
        (&client, "box2", "10.77.0.202"),
    ] {
        container.ip(&format!("addr add {address}/24 dev eth0"));
        container.ip("link set eth0 up");
        let pid = container.pid();
        runtime
            .say(&format!("domain attach {name} --ip {address} --pid {pid}"))
            .check(0);
    }
    server.0.go_on();
    server.0.hear("listening");
    client.0.go_on();
    client.0.hear("exchanged");
    wait_for_rings(&runtime, &mut client);

    // The mounted directory shows the socket of the next broker, too.
    runtime.say("down --keep-domains").check(0);
    runtime.say("up --detach").check(0);
    wait_for_rings(&runtime, &mut client);
    client.0.leave();
    server.0.hear("ended");
    assert!(client.0.process.wait().expect("wait").success());
    assert!(server.0.process.wait().expect("wait").success());
    runtime.close();
}

/// Exchanges messages until the broker shows that both ends of the connection moved them
/// through rings. A shim looks for a new broker once in a second.
fn wait_for_rings(runtime: &Runtime, client: &mut Container) {
    let least = (ROUND_TRIPS * MESSAGE.len()) as u64;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let document = runtime.json("ss --all");
        let rows = document["connections"].as_array().expect("connections");
        let moved = |domain: &str| {
            let row = rows
                .iter()
                .find(|row| row["domain"] == domain)
                .expect("a row");
            let count = |name: &str| row[name].as_u64().expect("a count");
            row["path"] == "fast" && count("ring_bytes_tx").min(count("ring_bytes_rx")) > least
        };
        if moved("box1") && moved("box2") {
            return;
        }
        assert!(Instant::now() < deadline, "no rings: {document}");
        client.0.go_on();
        client.0.hear("exchanged");
    }
}
