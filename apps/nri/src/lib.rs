//! `fordway-nri`: by which the pods of a Kubernetes node join, through NRI, containerd's and CRI-O's
//! interface for plugins (github.com/containerd/nri).
//!
//! The plugin connects to the runtime's socket, registers, and is called from then on:
//!
//! | call | what happens |
//! |---|---|
//! | `Configure` | the plugin asks for the three events below |
//! | `Synchronize` | the runtime lists its pods; those that join are attached. So it is after a start of either side |
//! | `RunPodSandbox` | the pod has a namespace and an address: `fordway domain attach` |
//! | `CreateContainer` | the container gets the variables and mounts of `fordway env` |
//! | `StopPodSandbox` | `fordway domain rm`, before the address may be another pod's |
//!
//! One thread answers one call after the other. The runtime waits for each answer, by default two seconds;
//! then it drops the plugin and goes on without it. The plugin connects again, as it does after a restart of
//! the runtime. Pods that run keep their rings meanwhile. Whatever fails here, the pod starts: see `plugin`.
//!
//! [`wire`] has the bytes, [`messages`] what they mean, [`plugin`] what is answered.
#![forbid(unsafe_code)]

pub mod messages;
pub mod plugin;
pub mod wire;

use messages::{RUNTIME_SERVICE, Register, Request, Response};
use plugin::Plugin;
use prost::Message as _;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use wire::{Message, Messages};

const NAME: &str = "fordway";
/// Late, so that plugins before us have set what they set.
const INDEX: &str = "90";
/// Of the one call that we make.
const REGISTRATION: u32 = 1;

/// Registers with the runtime behind `socket` and answers it until it ends the connection.
pub fn serve(socket: UnixStream, plugin: &Plugin) -> io::Result<()> {
    let register = Register {
        name: NAME.into(),
        index: INDEX.into(),
    };
    let request = Request {
        service: RUNTIME_SERVICE.into(),
        method: "RegisterPlugin".into(),
        payload: register.encode_to_vec(),
    };
    let registration = Message {
        connection: wire::RUNTIME,
        stream: REGISTRATION,
        kind: wire::REQUEST,
        payload: request.encode_to_vec(),
    };
    (&socket).write_all(&registration.bytes())?;
    let mut messages = Messages::of(&socket);
    while let Some(message) = messages.receive()? {
        match (message.connection, message.kind) {
            (wire::PLUGIN, wire::REQUEST) => {
                (&socket).write_all(&plugin.answer(&message).bytes())?;
            }
            (wire::RUNTIME, wire::RESPONSE) => accepted(&message)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether the runtime takes the plugin.
fn accepted(answer: &Message) -> io::Result<()> {
    let response = Response::decode(&*answer.payload).map_err(io::Error::other)?;
    match response.status.filter(|status| status.code != 0) {
        None => Ok(()),
        Some(status) => Err(io::Error::other(format!(
            "the runtime refuses the plugin: {}",
            status.message
        ))),
    }
}
