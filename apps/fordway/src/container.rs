//! `fordway env`: how programs join that something else than `fordway run` starts, a
//! container above all. They need the shim in their environment and two things of the
//! host's file system at the same path: the shim's file and the control socket's
//! directory. The domain is registered by `fordway domain attach`.

use crate::broker::Broker;
use crate::cli::PathChoice;
use crate::exit::Outcome;
use crate::run::PRELOAD;
use crate::{places, show};
use fordway_abi::env as names;
use fordway_platform::fabric::hosts::SHARED_FILE;
use fordway_platform::launch::HOSTS;
use fordwayd::admin::{CONTROL_DIR, SCHEMA};
use serde_json::json;

/// `fordway env`. The text is an `--env-file` for docker and podman, whose comments
/// name the mounts.
pub fn environment(broker: &Broker, json: bool) -> Outcome {
    let shim = places::shim()?.display().to_string();
    let socket = broker.control_socket().display().to_string();
    let control = broker.runtime_dir().join(CONTROL_DIR).display().to_string();
    let variables = [
        (PRELOAD, shim.as_str()),
        (names::SOCKET, &socket),
        (names::PATH, PathChoice::Auto.word()),
    ];
    let names = broker.runtime_dir().join(SHARED_FILE).display().to_string();
    let mounts = [(&*shim, &*shim), (&control, &control), (&names, HOSTS)];
    if json {
        let variables: serde_json::Map<_, _> = variables
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.into()))
            .collect();
        let mounts = mounts.map(|(source, target)| {
            json!({ "source": source, "target": target, "readonly": true, "optional": target == HOSTS })
        });
        return show::document(
            &json!({ "schema": SCHEMA, "variables": variables, "mounts": mounts }),
        );
    }
    let mut text = String::new();
    for (source, target) in mounts {
        text += &match target == HOSTS {
            true => format!("# mount {source} at {target}, read-only (optional: domains' names)\n"),
            false => format!("# mount {source} at the same path, read-only\n"),
        };
    }
    for (name, value) in variables {
        text += &format!("{name}={value}\n");
    }
    show::print(&text)
}
