//! One connection of an administrator: lines in, lines out, never waiting for it.

use crate::admin::{ErrorKind, Info, Reply, Request, SCHEMA};
use crate::broker::{Broker, Ending};
use fordway_abi::reason::Reason;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Longest request.
const LINE_BYTES_MAX: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct AdminConnection {
    pub(crate) socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl AdminConnection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads, answers, writes what there is room for. False: the connection is over.
    pub(crate) fn serve(&mut self, mut answer: impl FnMut(&str) -> Reply) -> bool {
        if self.is_behind() {
            return self.write();
        }
        let mut buffer = [0; 4096];
        let open = match rustix::io::read(&self.socket, &mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => return false,
        };
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let reply = match std::str::from_utf8(&line) {
                Ok(line) => answer(line),
                Err(_) => error(ErrorKind::BadInput, "the request is not UTF-8"),
            };
            self.push(&reply);
        }
        if self.input.len() > LINE_BYTES_MAX {
            self.push(&error(ErrorKind::BadInput, "the request is too long"));
            self.write();
            return false;
        }
        self.write() && open
    }

    fn push(&mut self, reply: &Reply) {
        match serde_json::to_writer(&mut self.output, reply) {
            Ok(()) => self.output.push(b'\n'),
            Err(error) => tracing::error!("a reply cannot be written as JSON: {error}"),
        }
    }

    fn write(&mut self) -> bool {
        while !self.output.is_empty() {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

pub(crate) fn error(kind: ErrorKind, message: impl std::fmt::Display) -> Reply {
    Reply::Error {
        kind,
        message: message.to_string(),
    }
}

impl Broker {
    /// Does what one line asks for.
    pub(crate) fn answer(&mut self, line: &str) -> Reply {
        let request = match serde_json::from_str(line) {
            Ok(request) => request,
            Err(reason) => return error(ErrorKind::BadInput, format_args!("request: {reason}")),
        };
        match request {
            Request::Info => Reply::Info(self.info()),
            Request::DomainAdd { name, ip } => self.domain_add(&name, ip),
            Request::DomainAttach { name, ip, pid } => self.domain_attach(&name, ip, pid),
            Request::DomainList => Reply::Domains {
                domains: self.domain_list(),
            },
            Request::DomainRemove { name, force } => self.domain_remove(&name, force),
            Request::Connections => Reply::Connections {
                connections: self.list_connections(),
            },
            Request::Downgrade { channel } => {
                match self.registry.downgrade(channel, Reason::Asked) {
                    Some(actions) => {
                        self.carry_out(actions);
                        Reply::Done
                    }
                    None => error(ErrorKind::NotFound, "there is no such channel"),
                }
            }
            Request::Down { keep_domains } => {
                self.ending = Some(Ending::Asked { keep_domains });
                Reply::Done
            }
        }
    }

    fn info(&mut self) -> Info {
        self.note_all_usage();
        let counts = self.registry.counts();
        Info {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            abi_version: fordway_abi::ABI_VERSION,
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            domains: self.domains.possible(),
            network: self.registry.network().to_string(),
            processes: self.by_process.len() as u32,
            channels: self.registry.channel_count() as u32,
            paired_total: counts.paired,
            eligible_total: counts.eligible,
            carried_total: counts.carried,
            ring_bytes_total: self.ring_bytes_total(),
            protocol_errors: self.protocol_errors,
            channel_errors: self.channel_errors,
        }
    }
}
