//! How programs join that something else than `fordway run` starts, a container above all.
//! They need the shim in their environment and two things of the host's file system at the
//! same path: the shim's file and the control socket's directory. [`Needs`] is the one list
//! of that; `fordway env` prints it, and `fordway cdi` makes a device of it. The domain is
//! registered by `fordway domain attach`.

use crate::broker::Broker;
use crate::cli::PathChoice;
use crate::exit::{Failure, Outcome};
use crate::run::PRELOAD;
use crate::{places, show};
use fordway_abi::env as names;
use fordway_platform::fabric::hosts::SHARED_FILE;
use fordway_platform::launch::HOSTS;
use fordwayd::admin::{CONTROL_DIR, SCHEMA};
use serde_json::json;

/// What a container needs for joining.
#[derive(Debug)]
pub struct Needs {
    /// Names and values.
    pub variables: [(&'static str, String); 3],
    /// Read-only bind mounts.
    pub mounts: [Mount; 3],
}

/// A file or directory of the host's that a container sees.
#[derive(Debug)]
pub struct Mount {
    /// Where it lies on the host.
    pub source: String,
    /// Where in the container.
    pub target: String,
    /// It only gives names.
    pub optional: bool,
}

impl Needs {
    /// What a container needs for joining the domains of this broker.
    pub fn of(broker: &Broker) -> Result<Needs, Failure> {
        let same = |path: String| Mount {
            source: path.clone(),
            target: path,
            optional: false,
        };
        let inside = |name: &str| broker.runtime_dir().join(name).display().to_string();
        let shim = places::shim()?.display().to_string();
        let socket = broker.control_socket().display().to_string();
        let hosts = Mount {
            source: inside(SHARED_FILE),
            target: HOSTS.to_owned(),
            optional: true,
        };
        Ok(Needs {
            variables: [
                (PRELOAD, shim.clone()),
                (names::SOCKET, socket),
                (names::PATH, PathChoice::Auto.word().to_owned()),
            ],
            mounts: [same(shim), same(inside(CONTROL_DIR)), hosts],
        })
    }
}

/// `fordway env`. The text is an `--env-file` for docker and podman, whose comments
/// name the mounts.
pub fn environment(broker: &Broker, json: bool) -> Outcome {
    let Needs { variables, mounts } = Needs::of(broker)?;
    if json {
        let variables: serde_json::Map<_, _> = variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let mounts = mounts.map(|mount| {
            json!({
                "source": mount.source,
                "target": mount.target,
                "readonly": true,
                "optional": mount.optional,
            })
        });
        return show::document(
            &json!({ "schema": SCHEMA, "variables": variables, "mounts": mounts }),
        );
    }
    let mut text = String::new();
    for Mount {
        source,
        target,
        optional,
    } in mounts
    {
        text += &match optional {
            true => format!("# mount {source} at {target}, read-only (optional: domains' names)\n"),
            false => format!("# mount {source} at the same path, read-only\n"),
        };
    }
    for (name, value) in variables {
        text += &format!("{name}={value}\n");
    }
    show::print(&text)
}
