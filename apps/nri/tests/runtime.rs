//! The runtime's half of an NRI connection, played over a socket against the program. containerd itself
//! plays it in `./x nri-test`.

use fordway_nri::messages::*;
use fordway_nri::plugin::ANNOTATION;
use fordway_nri::wire::{self, Messages};
use prost::Message as _;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const IP: &str = "10.77.0.201";
const IP6: &str = "fd00:77::201";
const DOMAIN: &str = "web-01234567";
/// Longer than one frame of the plugin's.
const LONG: usize = 9000;
/// A plugin that says nothing for so long fails the test instead of holding it up.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A broker, in a directory of its own, both gone at the end.
struct Place {
    fordway: PathBuf,
    dir: PathBuf,
}

impl Place {
    fn say(&self, arguments: &str) -> String {
        let mut command = Command::new(&self.fordway);
        command.arg("--runtime-dir").arg(&self.dir);
        let ran = command
            .args(arguments.split(' '))
            .output()
            .expect("fordway");
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{arguments}: {errors}");
        String::from_utf8(ran.stdout).expect("text")
    }

    fn domains(&self) -> Vec<String> {
        let listed: Value = serde_json::from_str(&self.say("domain list --json")).expect("JSON");
        let names = listed["domains"].as_array().expect("domains").iter();
        names
            .map(|one| one["name"].as_str().expect("a name").to_owned())
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut down = Command::new(&self.fordway);
        let _ = down
            .arg("--runtime-dir")
            .arg(&self.dir)
            .arg("down")
            .output();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Broker and command, or why there are none.
fn place() -> Result<Place, &'static str> {
    // The library is built in the release profile only, where nobody has asked for another.
    let beside = Path::new(env!("CARGO_BIN_EXE_fordway-nri")).with_file_name("fordway");
    let release = beside.with_file_name("../release/fordway");
    let is_whole = |file: &Path| file.exists() && file.with_file_name("libfordway.so").exists();
    let fordway = if is_whole(&release) { release } else { beside };
    let is_root = std::fs::metadata("/proc/self").expect("proc").uid() == 0;
    match is_whole(&fordway) {
        _ if !is_root => Err("not root: a broker attaches no namespaces"),
        false => Err("fordway or libfordway.so is not built"),
        true => {
            let dir = std::env::temp_dir().join(format!("fordway-nri-{}", std::process::id()));
            std::fs::create_dir(&dir).expect("directory");
            Ok(Place { fordway, dir })
        }
    }
}

/// Bounds every receive, and every accept: socket(7) has SO_RCVTIMEO for both.
fn bound(socket: &impl AsFd) {
    let same = socket.as_fd().try_clone_to_owned().expect("socket");
    let bounded = UnixStream::from(same).set_read_timeout(Some(SILENCE_MAX));
    bounded.expect("SO_RCVTIMEO");
}

/// The runtime's end.
struct Runtime {
    socket: UnixStream,
    messages: Messages<UnixStream>,
    calls: u32,
}

impl Runtime {
    /// The next plugin that connects, registered and configured.
    fn accept(listener: &UnixListener) -> Runtime {
        let (socket, _) = listener.accept().expect("accept");
        bound(&socket);
        let messages = Messages::of(socket.try_clone().expect("socket"));
        let mut runtime = Runtime {
            socket,
            messages,
            calls: 0,
        };
        let call = runtime
            .messages
            .receive()
            .expect("read")
            .expect("a message");
        assert_eq!((call.connection, call.kind), (wire::RUNTIME, wire::REQUEST));
        let request = Request::decode(&*call.payload).expect("a request");
        assert_eq!(&*request.method, "RegisterPlugin");
        let register = Register::decode(&*request.payload).expect("a registration");
        assert_eq!((&*register.name, &*register.index), ("fordway", "90"));
        runtime.send(wire::Message {
            kind: wire::RESPONSE,
            payload: Vec::new(),
            ..call
        });
        let configured: Configured = runtime.call("Configure", &OfPod::default());
        assert_eq!(configured.events, 0b1011);
        runtime
    }

    fn send(&mut self, message: wire::Message) {
        self.socket.write_all(&message.bytes()).expect("write");
    }

    /// Calls, and gives back what is answered.
    fn ask(&mut self, method: &str, payload: Vec<u8>) -> Response {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".into(),
            method: method.into(),
            payload,
        };
        self.calls += 2;
        let stream = self.calls + 1;
        self.send(wire::Message {
            connection: wire::PLUGIN,
            stream,
            kind: wire::REQUEST,
            payload: request.encode_to_vec(),
        });
        let answer = self.messages.receive().expect("read").expect("an answer");
        let expected = (wire::PLUGIN, wire::RESPONSE, stream);
        assert_eq!((answer.connection, answer.kind, answer.stream), expected);
        Response::decode(&*answer.payload).expect("a response")
    }

    fn call<M: prost::Message + Default>(&mut self, method: &str, what: &impl prost::Message) -> M {
        let response = self.ask(method, what.encode_to_vec());
        assert_eq!(response.status, None, "{method}");
        M::decode(&*response.payload).expect(method)
    }
}

/// A pod in a namespace of its own, which lives as long as what is given back with it.
fn pod() -> (Running, Pod) {
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", "echo up; read x"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running(command.spawn().expect("unshare"));
    let said = running.0.stdout.take().expect("output");
    BufReader::new(said)
        .read_line(&mut String::new())
        .expect("read");
    let pid = running.0.id();
    let pod = Pod {
        id: "0123456789abcdef".into(),
        name: "web".into(),
        namespace: "shop".into(),
        annotations: [(ANNOTATION.to_owned(), "on".to_owned())].into(),
        linux: Some(LinuxPod {
            namespaces: vec![Namespace {
                kind: "network".into(),
                path: format!("/proc/{pid}/ns/net"),
            }],
        }),
        pid,
        ips: vec![IP.into(), IP6.into()],
    };
    (running, pod)
}

#[test]
fn a_pod_is_attached_its_containers_get_the_library_and_what_is_broken_changes_nothing() {
    let place = match place() {
        Ok(place) => place,
        Err(reason) => return fordway_test_skip::skipped(reason),
    };
    let path = place.dir.join("nri.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    bound(&listener);
    place.say("up --detach");
    let mut plugin = Command::new(env!("CARGO_BIN_EXE_fordway-nri"));
    plugin.arg("--socket").arg(&path);
    plugin.arg("--runtime-dir").arg(&place.dir);
    plugin.env("FORDWAY_LIB", place.fordway.with_file_name("libfordway.so"));
    let _plugin = Running(plugin.spawn().expect("fordway-nri"));
    let mut runtime = Runtime::accept(&listener);
    let (_holder, pod) = pod();
    let of_pod = OfPod {
        pod: Some(pod.clone()),
    };

    // A pod starts, and its address is known before a container of it is made.
    let () = runtime.call("RunPodSandbox", &of_pod);
    assert_eq!(place.domains(), ["host", DOMAIN]);
    assert!(place.say("domain list").contains(IP6));
    let container = Container {
        env: vec![
            format!("LONG={}", "l".repeat(LONG)),
            format!("LD_PRELOAD=/{}", "p".repeat(LONG)),
        ],
        ..Container::default()
    };
    let mut create = Create {
        pod: of_pod.pod.clone(),
        container: Some(container),
    };
    let adjust = runtime.call::<Created>("CreateContainer", &create).adjust;
    let adjust = adjust.expect("an adjustment");
    let preload = adjust
        .env
        .iter()
        .find(|one| one.key == "LD_PRELOAD")
        .expect("LD_PRELOAD");
    let (theirs, ours) = preload.value.split_once(':').expect("two libraries");
    assert_eq!((theirs.len(), Path::new(ours).is_file()), (LONG + 1, true));
    assert!(adjust.mounts.iter().any(|mount| mount.source == ours));

    // What cannot be understood, carried out or is not offered.
    let response = runtime.ask("CreateContainer", vec![0xff; 40]);
    assert_eq!((response.status, response.payload.len()), (None, 0));
    let response = runtime.ask("UpdateContainer", Vec::new());
    assert_eq!(response.status.expect("a status").code, 12);
    let mut other = pod.clone();
    other.pid = std::process::id();
    other.id = "elsewhere".into();
    let () = runtime.call("RunPodSandbox", &OfPod { pod: Some(other) });
    assert_eq!(place.domains(), ["host", DOMAIN]);
    let asked = create.pod.as_mut().expect("a pod");
    asked.annotations.clear();
    assert_eq!(
        runtime.call::<Created>("CreateContainer", &create).adjust,
        None
    );

    // The pod stops; runtimes before NRI 0.11 say so by another call.
    let change = StateChange {
        event: STOP_POD_SANDBOX,
        pod: of_pod.pod.clone(),
    };
    let () = runtime.call("StateChange", &change);
    assert_eq!(place.domains(), ["host"]);

    // The runtime starts again, and lists what runs in two parts.
    drop(runtime);
    let mut runtime = Runtime::accept(&listener);
    let mut listed = Synchronize {
        pods: vec![pod],
        more: true,
    };
    for more in [true, false] {
        listed.more = more;
        let answer: Synchronized = runtime.call("Synchronize", &listed);
        assert_eq!(answer.more, more);
    }
    assert_eq!(place.domains(), ["host", DOMAIN]);

    // A frame that no runtime sends: the plugin lets go, and connects again.
    runtime.socket.write_all(&[0xff; 8]).expect("write");
    Runtime::accept(&listener);
}
