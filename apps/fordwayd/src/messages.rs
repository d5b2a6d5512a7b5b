//! What a shim may say: packets are checked here, whole, before anything is done.

use crate::broker::Broker;
use crate::connection::Member;
use crate::memory::Memory;
use crate::proof::Witness;
use crate::purses::Purse;
use crate::shares::Whose;
use fordway_abi::ABI_VERSION;
use fordway_abi::control::{self as wire, Header, Message, PathPolicy, kind};
use fordway_abi::reason::Reason;
use fordway_abi::shm::WAIT_PAGE_BYTES;
use fordway_platform::memfd::{self, OwnPage};
use fordway_registry::{
    Action, ChannelView, LinkSide, Outgoing, ProcessId, SocketFacts, Violation,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Size of the mailbox memfd.
const MAILBOX_BYTES: usize = 4096;

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Break {
    /// The process broke the protocol.
    Protocol(String),
    /// It was told that it is not served.
    Refused,
}

impl From<Violation> for Break {
    fn from(violation: Violation) -> Self {
        Break::Protocol(violation.to_string())
    }
}

fn protocol<T>(what: impl std::fmt::Display) -> Result<T, Break> {
    Err(Break::Protocol(what.to_string()))
}

impl Broker {
    /// One packet of one connection, and the process that sent it.
    pub(crate) fn handle_packet(
        &mut self,
        number: u64,
        bytes: &[u8],
        mut fds: Vec<OwnedFd>,
        sender: i32,
    ) -> Result<(), Break> {
        let result = self.dispatch(number, bytes, &mut fds, sender);
        // What a handler did not take is of unknown kind.
        let whose = self.whose(number);
        for fd in fds {
            self.reaper.close_unknown(whose, fd);
        }
        self.recount(number);
        result
    }

    fn dispatch(
        &mut self,
        number: u64,
        bytes: &[u8],
        fds: &mut Vec<OwnedFd>,
        sender: i32,
    ) -> Result<(), Break> {
        let Ok((header, body)) = Header::read_from_prefix(bytes) else {
            return protocol(format_args!("a packet of {} bytes", bytes.len()));
        };
        let Some(connection) = self.connections.get(&number) else {
            return Ok(());
        };
        let process = connection.member.as_ref().map(|member| member.process);
        if process.is_none() {
            // A shim of another version may have a longer Hello: its first words say so.
            self.refuse_unlike(number, header.kind, body)?;
        }
        let (kind, body) = wire::parse(bytes, fds.len()).or_else(protocol)?;
        let Some(process) = process else {
            return match kind {
                kind::Hello => self.hello(number, read(body)?, fds),
                other => protocol(format_args!("a message of kind {other} before Hello")),
            };
        };
        match kind {
            kind::Offer => {
                self.offer(number, process, sender, &read(body)?);
                Ok(())
            }
            kind::RejoinChannel => self.rejoin(number, process, sender, read(body)?),
            kind::Region => self.region(number, process, read(body)?, fds),
            kind::Door => self.door(process, read(body)?),
            kind::Status => {
                let report: wire::Status = read(body)?;
                if self.everybody.end(process, report.conn_id) {
                    return Ok(());
                }
                if self.relay_status(process, &report) {
                    return Ok(());
                }
                self.credit_ending(self.registry.both_ends_of(process, report.conn_id));
                let had = self.registry.channel_of(process, report.conn_id);
                if let Some(channel) = had {
                    self.note_usage(&channel);
                    if Reason::from_u32(report.reason) == Some(Reason::Protocol) {
                        self.note_complaint(&channel);
                    }
                }
                if report.status == wire::status::WITHDRAWN && report.reason != 0 {
                    self.note_refusal(process, report.reason);
                }
                let (id, bytes) = (report.conn_id, [report.ring_bytes_tx, report.ring_bytes_rx]);
                let actions = self.registry.status(process, report)?;
                if let Some(channel) = had
                    && self.registry.channel_of(process, id).is_none()
                {
                    self.end_is_over(&channel, bytes);
                }
                self.carry_out(actions);
                Ok(())
            }
            kind::RejoinLink => self.rejoin_link(process, read(body)?, fds),
            kind::LetGo => {
                let wire::LetGo { link_id } = read(body)?;
                self.let_go(process, link_id);
                Ok(())
            }
            other => protocol(format_args!("a message of kind {other} from a shim")),
        }
    }

    /// A process says that its peer broke the protocol of their channel: counted, and
    /// logged once for the two. It proves nothing, so nothing else comes of it.
    fn note_complaint(&mut self, channel: &ChannelView) {
        self.channel_errors += 1;
        let pid = |process| self.pid_of(process).unwrap_or(0);
        let process = pid(channel.own.process);
        let peer = channel.peer.map_or(0, |peer| pid(peer.process));
        if self.first_complaint(process, peer) {
            tracing::warn!("process {process} says that process {peer} broke the channel protocol");
        }
    }

    /// Answers a Hello of another ABI version, of which only the first two words are known.
    fn refuse_unlike(&mut self, number: u64, kind: u32, body: &[u8]) -> Result<(), Break> {
        let Ok(([magic, abi_version], _)) = <[u32; 2]>::read_from_prefix(body) else {
            return protocol("a first packet that is no Hello");
        };
        if kind != kind::Hello || magic != wire::HELLO_MAGIC {
            return protocol("a first packet that is no Hello");
        }
        if abi_version == ABI_VERSION {
            return Ok(());
        }
        let refusal = wire::Refuse {
            abi_version: ABI_VERSION,
            reason: Reason::Version as u32,
        };
        let pid = self.connections.get(&number).map_or(0, |c| c.peer.pid);
        if let Some(connection) = self.connections.get(&number) {
            self.unlike.remember(&connection.peer);
        }
        if self.first_mischief(pid) {
            tracing::warn!(
                "process {pid} was refused: its shim has ABI version {abi_version}, this broker {ABI_VERSION}"
            );
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            // The connection ends in any case; the socket delivers what was sent before.
            let _ = connection.send(&refusal, Vec::new());
        }
        Err(Break::Refused)
    }

    fn hello(
        &mut self,
        number: u64,
        hello: wire::Hello,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), Break> {
        let Some(policy) = PathPolicy::from_u32(hello.path_policy) else {
            return protocol(format_args!("a path policy of {}", hello.path_policy));
        };
        let Some(page) = fds.pop() else {
            return protocol("a Hello without a wait page");
        };
        if let Err(error) = memfd::check(&page, WAIT_PAGE_BYTES) {
            fds.push(page);
            return protocol(format_args!("a wait page: {error}"));
        }
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        let (mailbox, mailbox_fd) = match OwnPage::create("fordway-mailbox", MAILBOX_BYTES) {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!("process {}: no mailbox: {error}", connection.peer.pid);
                return Err(Break::Refused);
            }
        };
        let whose = Whose::from(&connection.peer);
        let in_domain = self.registry.domain_of_netns(whose.netns_cookie).is_some();
        let purse = match self.purses.of(whose, in_domain) {
            Ok(purse) => purse,
            Err(error) => {
                tracing::warn!("process {}: no purse: {error}", connection.peer.pid);
                return Err(Break::Refused);
            }
        };
        let (process, domain_id) = self.registry.add_process(whose.netns_cookie, policy);
        tracing::debug!("process {} is number {}", connection.peer.pid, process.0);
        self.unlike.forget(connection.peer.pid);
        let purse_fd = purse.fd.clone();
        connection.member = Some(Member::new(process, page, purse, mailbox));
        self.by_process.insert(process, number);
        if let Some(guests) = &mut self.guests {
            guests.note_program(process, connection.peer.pid);
        }
        if policy == PathPolicy::Fast {
            // Before the process knows that it is served: its peers see it with their connections.
            self.count_insisting(self.insisting + 1);
        }
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        let welcome = wire::Welcome {
            abi_version: ABI_VERSION,
            domain_id,
            process_id: process.0,
        };
        match connection.send(&welcome, vec![mailbox_fd.into(), purse_fd]) {
            Ok(()) => {
                self.recount(number);
                Ok(())
            }
            Err(error) => {
                tracing::debug!("welcoming a process: {error}");
                Err(Break::Refused)
            }
        }
    }

    fn offer(&mut self, number: u64, process: ProcessId, sender: i32, offer: &wire::Offer) {
        let facts = match self.may_offer_more(self.whose(number)) {
            true => self.prove(number, sender, &offer.claim),
            false => Err(Reason::NoMemory),
        };
        let declined = match offer.declined {
            0 => None,
            reason => Some(Reason::from_u32(reason).unwrap_or(Reason::Unsupported)),
        };
        let of_datagrams = offer.claim.protocol == wire::protocol::UDP;
        if of_datagrams && offer.to_all != 0 && declined.is_none() {
            return self.offer_to_all(process, offer.conn_id, facts);
        }
        // What the registry is told, and turns down, is noted with its answer.
        if of_datagrams && let Some(why) = declined.or(facts.err()) {
            self.note_refused_datagrams(process, why as u32);
            if declined.is_some() {
                return;
            }
        }
        let actions = match facts {
            Ok(facts) => {
                let id = offer.conn_id;
                let Some(why) = declined else {
                    if !self.relay_offer(process, id, &facts) {
                        self.offer_proved(process, id, facts);
                    }
                    return;
                };
                let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
                let witness = &mut |process, facts: &_| older.still_true(process, facts);
                self.registry.decline(process, id, facts, why, witness)
            }
            Err(_) if declined.is_some() => Vec::new(),
            Err(reason) => vec![Action::Send {
                to: process,
                message: Outgoing::Reject(wire::Reject {
                    conn_id: offer.conn_id,
                    reason: reason as u32,
                    pending: 0,
                }),
            }],
        };
        let now_ns = self.now_ns();
        self.registry.insists(process, offer.conn_id, now_ns);
        self.carry_out(actions);
    }

    /// An offer of which the kernel has shown that it is true, ours or another guest's.
    pub(crate) fn offer_proved(&mut self, process: ProcessId, conn_id: u64, facts: SocketFacts) {
        let rules = &self.rules;
        let gate = &mut |a: &_, b: &_, table| rules.gate([a, b], table);
        let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
        let witness = &mut |process, facts: &_| older.still_true(process, facts);
        let translate = &mut |question: &_| older.translate(question);
        let registry = &mut self.registry;
        let actions = registry.offer_through(process, conn_id, facts, witness, gate, translate);
        let now_ns = self.now_ns();
        self.registry.insists(process, conn_id, now_ns);
        self.carry_out(actions);
    }

    fn rejoin(
        &mut self,
        number: u64,
        process: ProcessId,
        sender: i32,
        channel: wire::RejoinChannel,
    ) -> Result<(), Break> {
        // It was reset or closed since: then its end is known without us.
        let Ok(facts) = self.prove(number, sender, &channel.claim) else {
            return Ok(());
        };
        let now_ns = self.now_ns();
        let older = Witness::new(&mut self.places, &self.connections, &self.by_process);
        let witness = &mut |process, facts: &_| older.still_true(process, facts);
        let translate = &mut |question: &_| older.translate(question);
        let registry = &mut self.registry;
        let actions =
            registry.rejoin_channel(process, channel, facts, now_ns, witness, translate)?;
        if let Some(end) = self.registry.channel_of(process, channel.conn_id) {
            self.end_goes_on(&end);
        }
        self.carry_out(actions);
        if let Some(channel) = self.registry.both_ends_of(process, channel.conn_id) {
            self.look_at(&channel);
        }
        Ok(())
    }

    fn read_region(fds: &mut Vec<OwnedFd>) -> Result<OwnedFd, Break> {
        let Some(region) = fds.pop() else {
            return protocol("no region");
        };
        match Memory::check_region(&region) {
            Ok(()) => Ok(region),
            Err(error) => {
                fds.push(region);
                protocol(format_args!("a region: {error}"))
            }
        }
    }

    fn region(
        &mut self,
        number: u64,
        process: ProcessId,
        region: wire::Region,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), Break> {
        let memory = Self::read_region(fds)?;
        let link_id = region.link_id;
        if !self.may_hold_more(self.whose(number)) {
            tracing::warn!("a process was dropped: no descriptor is left");
            fds.push(memory);
            return Err(Break::Refused);
        }
        let (wanted, actions) = self.registry.region(process, link_id)?;
        let purse = self.purse_of(process);
        if wanted {
            self.memory
                .insert(LinkSide { process, link_id }, memory, purse, true);
        }
        self.carry_out(actions);
        Ok(())
    }

    pub(crate) fn purse_of(&self, process: ProcessId) -> Option<Arc<Purse>> {
        Some(self.member(process)?.purse.clone())
    }

    fn door(&mut self, process: ProcessId, door: wire::Door) -> Result<(), Break> {
        let actions = self.registry.door(process, door.door)?;
        self.carry_out(actions);
        Ok(())
    }

    fn rejoin_link(
        &mut self,
        process: ProcessId,
        link: wire::RejoinLink,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), Break> {
        let memory = Self::read_region(fds)?;
        let now_ns = self.now_ns();
        let actions = self.registry.rejoin_link(process, link, now_ns)?;
        let side = LinkSide {
            process,
            link_id: link.link_id,
        };
        // The peer has it already.
        let purse = self.purse_of(process);
        self.memory.insert(side, memory, purse, false);
        self.carry_out(actions);
        Ok(())
    }
}

/// The body, whose length was checked.
fn read<M: Message>(body: &[u8]) -> Result<M, Break> {
    match M::read_from_bytes(body) {
        Ok(message) => Ok(message),
        Err(_) => protocol("a message of the wrong length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// `refuse_unlike` reads them by their place.
    #[test]
    fn magic_and_version_open_a_hello() {
        let hello = wire::Hello {
            magic: 1,
            abi_version: 2,
            path_policy: 3,
            rejoining: 4,
        };
        assert_eq!(
            <[u32; 4]>::read_from_bytes(hello.as_bytes()),
            Ok([1, 2, 3, 4])
        );
    }
}
