//! What is answered to the runtime. A call that cannot be understood, a command that fails: one line is
//! logged, and the answer is the one that changes nothing, so that the pod starts without Fordway.

use crate::messages::*;
use crate::wire::{self, Message};
use prost::Message as _;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

/// The annotation of a pod: [`ON`] has it join, any other value keeps it out; without it, the namespace decides.
pub const ANNOTATION: &str = "fordway.dev/net";
const ON: &str = "on";
const PRELOAD: &str = "LD_PRELOAD";
/// Of a domain's name; and of the pod's id in it, which tells apart pods of one name.
const NAME_BYTES_MAX: usize = 63;
const ID_IN_NAME: usize = 8;
/// ttrpc's, and gRPC's, status of a call that is not offered.
const UNIMPLEMENTED: i32 = 12;

/// What `fordway env --json` says a program needs to join.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Needs {
    variables: BTreeMap<String, String>,
    mounts: Vec<NeededMount>,
}

#[derive(Clone, Debug, Deserialize)]
struct NeededMount {
    source: String,
    target: String,
    optional: bool,
}

impl Needs {
    /// What is changed in a container. What the container or a plugin before us has set stays: the runtime
    /// refuses a container of which two plugins set one thing. Only the list of preloaded libraries is joined;
    /// it is taken away first, which the runtime takes as leave to set it again.
    pub fn adjustment(&self, container: &Container) -> Adjustment {
        let mut adjustment = Adjustment::default();
        for (key, value) in &self.variables {
            let mut variables = container.env.iter().filter_map(|one| one.split_once('='));
            let theirs = variables
                .rfind(|(name, _)| name == key)
                .map(|(_, value)| value);
            let mut set = |key: String, value: &str| {
                let value = value.to_owned();
                adjustment.env.push(Variable { key, value });
            };
            match theirs.filter(|value| !value.is_empty()) {
                None => set(key.clone(), value),
                Some(theirs)
                    if key == PRELOAD && !theirs.split([':', ' ']).any(|one| one == value) =>
                {
                    set(format!("-{key}"), "");
                    set(key.clone(), &format!("{theirs}:{value}"));
                }
                Some(_) => {}
            }
        }
        // An optional one is /etc/hosts, which is the kubelet's.
        for mount in self.mounts.iter().filter(|mount| !mount.optional) {
            let is_theirs = |theirs: &Mount| theirs.destination == mount.target;
            if !container.mounts.iter().any(is_theirs) {
                adjustment.mounts.push(Mount {
                    destination: mount.target.clone(),
                    kind: "bind".into(),
                    source: mount.source.clone(),
                    options: ["rbind", "ro", "nosuid", "nodev"].map(String::from).into(),
                });
            }
        }
        adjustment
    }
}

/// The command `fordway`, which knows what a program needs and speaks with the broker.
#[derive(Clone, Debug)]
pub struct Fordway {
    /// Its file.
    pub program: PathBuf,
    /// Of the broker; `None`: where root's is.
    pub runtime_dir: Option<PathBuf>,
}

impl Fordway {
    /// What it prints.
    fn say(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.program);
        if let Some(dir) = &self.runtime_dir {
            command.arg("--runtime-dir").arg(dir);
        }
        let ran = command.args(arguments).output();
        let ran = ran.map_err(|error| format!("{}: {error}", self.program.display()))?;
        match ran.status.success() {
            true => Ok(ran.stdout),
            false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
        }
    }

    /// What a program needs to join.
    pub fn needs(&self) -> Result<Needs, String> {
        let said = self.say(&["env", "--json"])?;
        serde_json::from_slice(&said).map_err(|error| format!("fordway env --json: {error}"))
    }
}

/// The plugin.
#[derive(Debug)]
pub struct Plugin {
    /// What containers are given.
    pub needs: Needs,
    /// How the broker is told of pods.
    pub fordway: Fordway,
    /// Namespaces whose pods join without an annotation.
    pub namespaces: Vec<String>,
}

impl Plugin {
    /// The answer to a call of the runtime's.
    pub fn answer(&self, call: &Message) -> Message {
        let answered = Request::decode(&*call.payload)
            .map_err(|error| error.to_string())
            .and_then(|request| self.carry_out(&request.method, &request.payload));
        let response = match answered {
            Ok(payload) => Response {
                status: None,
                payload,
            },
            Err(message) => Response {
                status: Some(Status {
                    code: UNIMPLEMENTED,
                    message,
                }),
                payload: Vec::new(),
            },
        };
        Message {
            connection: wire::PLUGIN,
            stream: call.stream,
            kind: wire::RESPONSE,
            payload: response.encode_to_vec(),
        }
    }

    fn carry_out(&self, method: &str, payload: &[u8]) -> Result<Vec<u8>, String> {
        let answer = match method {
            "Configure" => {
                let events = [RUN_POD_SANDBOX, STOP_POD_SANDBOX, CREATE_CONTAINER];
                let events = events.iter().fold(0, |bits, event| bits | 1 << (event - 1));
                Configured { events }.encode_to_vec()
            }
            "Synchronize" => {
                let Synchronize { pods, more } = understood(method, payload);
                pods.iter().for_each(|pod| self.attach(pod));
                Synchronized { more }.encode_to_vec()
            }
            "CreateContainer" => {
                let create: Create = understood(method, payload);
                let joins = create.pod.is_some_and(|pod| self.joins(&pod));
                let container = create.container.filter(|_| joins);
                let adjust = container.map(|container| self.needs.adjustment(&container));
                Created { adjust }.encode_to_vec()
            }
            "RunPodSandbox" | "StopPodSandbox" => {
                let event = match method {
                    "RunPodSandbox" => RUN_POD_SANDBOX,
                    _ => STOP_POD_SANDBOX,
                };
                let OfPod { pod } = understood(method, payload);
                self.changed(&StateChange { event, pod });
                Vec::new()
            }
            "StateChange" => {
                self.changed(&understood(method, payload));
                Vec::new()
            }
            "Shutdown" => Vec::new(),
            other => return Err(format!("fordway-nri has no {other}")),
        };
        Ok(answer)
    }

    /// Whether this pod asked to join, or its namespace is one of those that do.
    fn joins(&self, pod: &Pod) -> bool {
        match pod.annotations.get(ANNOTATION) {
            Some(value) => value == ON,
            None => self.namespaces.contains(&pod.namespace),
        }
    }

    fn changed(&self, change: &StateChange) {
        match (change.event, &change.pod) {
            (RUN_POD_SANDBOX, Some(pod)) => self.attach(pod),
            (STOP_POD_SANDBOX, Some(pod)) if self.joins(pod) && network_of(pod).is_some() => {
                let name = domain_of(pod);
                tell(pod, self.fordway.say(&["domain", "rm", &name, "--force"]));
            }
            _ => {}
        }
    }

    /// Has the broker know this pod's address. A pod in the host's network has none of its own.
    fn attach(&self, pod: &Pod) {
        let Some(namespace) = network_of(pod).filter(|_| self.joins(pod)) else {
            return;
        };
        let attached = holder(pod, namespace).and_then(|(pid, ip)| {
            let (name, ip, pid) = (domain_of(pod), ip.to_string(), pid.to_string());
            let ip6 = pod.ips.iter().find(|ip| ip.parse::<Ipv6Addr>().is_ok());
            let mut words = vec!["domain", "attach", &name, "--ip", &ip, "--pid", &pid];
            words.extend(ip6.into_iter().flat_map(|ip6| ["--ip6", ip6]));
            self.fordway.say(&words)
        });
        tell(pod, attached);
    }
}

/// The pod's network namespace, if it is not the host's.
fn network_of(pod: &Pod) -> Option<&str> {
    let namespaces = &pod.linux.as_ref()?.namespaces;
    let network = namespaces.iter().find(|one| one.kind == "network")?;
    Some(&network.path)
}

/// A process of the pod's and the pod's address. The process has to be in the namespace that the runtime
/// names: of a pod that has ended, the number may be another process's by now.
fn holder(pod: &Pod, namespace: &str) -> Result<(u32, Ipv4Addr), String> {
    let ip = pod.ips.iter().find_map(|ip| ip.parse().ok());
    let ip = ip.ok_or("the runtime names no IPv4 address of it")?;
    let inode = |path: &str| {
        let data = fs::metadata(path).map_err(|error| format!("{path}: {error}"))?;
        Ok::<_, String>((data.dev(), data.ino()))
    };
    match inode(namespace)? == inode(&format!("/proc/{}/ns/net", pod.pid))? {
        true => Ok((pod.pid, ip)),
        false => Err(format!("process {} is not in its namespace", pod.pid)),
    }
}

/// The name of a pod's domain: the pod's, as far as there is room, and the start of its id.
fn domain_of(pod: &Pod) -> String {
    let letter = |letter: char| match letter.to_ascii_lowercase() {
        letter @ ('a'..='z' | '0'..='9') => letter,
        _ => '-',
    };
    let part = |text: &str, most: usize| text.chars().take(most).map(letter).collect::<String>();
    let name = part(&pod.name, NAME_BYTES_MAX - ID_IN_NAME - 1);
    format!("{name}-{}", part(&pod.id, ID_IN_NAME))
        .trim_matches('-')
        .to_owned()
}

/// A message of this kind; an empty one where it is none.
fn understood<M: prost::Message + Default>(method: &str, payload: &[u8]) -> M {
    M::decode(payload).unwrap_or_else(|error| {
        eprintln!("fordway-nri: {method} is not understood, nothing is changed: {error}");
        M::default()
    })
}

fn tell(pod: &Pod, outcome: Result<Vec<u8>, String>) {
    if let Err(reason) = outcome {
        let (namespace, name) = (&pod.namespace, &pod.name);
        eprintln!("fordway-nri: pod {namespace}/{name} stays on the kernel path: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `fordway env --json` prints it.
    const ENV: &str = r#"{"schema":1,"variables":{"LD_PRELOAD":"/l/libfordway.so","FORDWAY_SOCKET":"/r/s","FORDWAY_PATH":"auto"},
        "mounts":[{"source":"/l/libfordway.so","target":"/l/libfordway.so","readonly":true,"optional":false},
        {"source":"/r","target":"/r","readonly":true,"optional":false},
        {"source":"/r/hosts","target":"/etc/hosts","readonly":true,"optional":true}]}"#;

    fn needs() -> Needs {
        serde_json::from_str(ENV).expect("JSON")
    }

    fn env_of(env: &[&str]) -> Vec<(String, String)> {
        let env = env.iter().map(|one| one.to_string()).collect();
        let container = Container {
            env,
            ..Container::default()
        };
        let env = needs().adjustment(&container).env;
        env.into_iter().map(|one| (one.key, one.value)).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_container_gets_what_it_lacks() {
        let all = [
            ("FORDWAY_PATH", "auto"),
            ("FORDWAY_SOCKET", "/r/s"),
            ("LD_PRELOAD", "/l/libfordway.so"),
        ];
        assert_eq!(
            env_of(&["PATH=/bin", "LD_PRELOAD=", "no equals sign"]),
            pairs(&all)
        );
        assert_eq!(env_of(&["FORDWAY_PATH=kernel"]), pairs(&all[1..]));
        let mounts = needs().adjustment(&Container::default()).mounts;
        let at: Vec<&str> = mounts.iter().map(|one| &*one.destination).collect();
        assert_eq!(at, ["/l/libfordway.so", "/r"]);
        assert!(
            mounts
                .iter()
                .all(|one| one.options.contains(&"ro".to_owned()))
        );
        let theirs = Container {
            mounts,
            ..Container::default()
        };
        assert_eq!(needs().adjustment(&theirs).mounts, []);
    }

    #[test]
    fn other_preloaded_libraries_stay_before_ours() {
        let joined = [
            ("-LD_PRELOAD", ""),
            ("LD_PRELOAD", "/a.so /b.so:/l/libfordway.so"),
        ];
        let env = env_of(&[
            "FORDWAY_PATH=",
            "LD_PRELOAD=/old.so",
            "LD_PRELOAD=/a.so /b.so",
        ]);
        assert_eq!(env[2..], pairs(&joined));
        let env = env_of(&["LD_PRELOAD=/l/libfordway.so:/a.so"]);
        assert!(
            env.iter().all(|(key, _)| !key.contains("PRELOAD")),
            "{env:?}"
        );
    }

    #[test]
    fn a_domains_name_is_one_that_the_broker_takes() {
        let name = |name: &str, id: &str| {
            let (name, id) = (name.to_owned(), id.to_owned());
            domain_of(&Pod {
                name,
                id,
                ..Pod::default()
            })
        };
        assert_eq!(name("web-0", "ecd92e5a7da6aa19"), "web-0-ecd92e5a");
        assert_eq!(name("Web.a_b", "ecd9"), "web-a-b-ecd9");
        assert_eq!(name("", ""), "");
        assert_eq!(name(&"x".repeat(253), "ecd92e5a7").len(), NAME_BYTES_MAX);
    }

    #[test]
    fn the_annotation_has_the_last_word() {
        let plugin = Plugin {
            needs: needs(),
            fordway: Fordway {
                program: "/nowhere/fordway".into(),
                runtime_dir: None,
            },
            namespaces: vec!["shop".into()],
        };
        let pod = |namespace: &str, value: Option<&str>| Pod {
            namespace: namespace.into(),
            annotations: value
                .map(|value| (ANNOTATION.to_owned(), value.to_owned()))
                .into_iter()
                .collect(),
            ..Pod::default()
        };
        for (namespace, value, joins) in [
            ("shop", None, true),
            ("shop", Some("off"), false),
            ("other", None, false),
            ("other", Some("on"), true),
            ("other", Some("true"), false),
        ] {
            assert_eq!(
                plugin.joins(&pod(namespace, value)),
                joins,
                "{namespace} {value:?}"
            );
        }
    }

    #[test]
    fn a_process_elsewhere_is_not_taken_for_the_pods() {
        let pid = std::process::id();
        let own = format!("/proc/{pid}/ns/net");
        let pod = Pod {
            pid,
            ips: vec!["fd00::1".into(), "10.1.2.3".into()],
            ..Pod::default()
        };
        assert_eq!(holder(&pod, &own), Ok((pid, Ipv4Addr::new(10, 1, 2, 3))));
        assert!(holder(&pod, "/proc/self/ns/mnt").is_err());
        assert!(
            holder(
                &Pod {
                    pid: 0,
                    ..pod.clone()
                },
                &own
            )
            .is_err()
        );
        assert!(
            holder(
                &Pod {
                    ips: Vec::new(),
                    ..pod
                },
                &own
            )
            .is_err()
        );
    }
}
