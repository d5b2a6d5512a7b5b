//! What the registry decided is carried out: packets to processes, with the descriptors
//! that go with them.
//!
//! In the order of the list. A process that cannot be sent to is doomed, and given up once
//! the list is done, for giving up makes more actions.

use crate::broker::{Broker, Token};
use crate::connection::{Connection, SendError};
use crate::doorbell;
use fordway_abi::control as wire;
use fordway_registry::{Action, LinkSide, Outgoing, ProcessId};
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

impl Broker {
    /// Does what the registry says.
    pub(crate) fn carry_out(&mut self, actions: Vec<Action>) {
        let mut doomed = BTreeMap::new();
        for action in actions {
            if self.carry_out_afar(&action) {
                continue;
            }
            let (to, result) = match action {
                Action::Send { to, message } => {
                    if let Outgoing::Reject(reject) = message
                        && self.registry.is_of_datagrams(to, reject.conn_id)
                    {
                        self.note_refused_datagrams(to, reject.reason);
                    }
                    (to, self.send_plain(to, &message))
                }
                Action::Peer {
                    to,
                    link_id,
                    peer,
                    peer_link_id,
                } => (to, self.send_peer(to, link_id, peer, peer_link_id)),
                Action::Doorbell {
                    sleeper,
                    sleeper_link_id,
                    knocker,
                    knocker_link_id,
                    door,
                } => {
                    self.bells_made += 1;
                    let bell = match doorbell::make() {
                        Ok(bell) => bell,
                        Err(error) => {
                            self.note_sent(sleeper, Err(SendError::Gone(error)), &mut doomed);
                            continue;
                        }
                    };
                    // The sleeper first: he is to find the knocks of those who know the door.
                    let body = wire::OwnDoor {
                        link_id: sleeper_link_id,
                        door,
                        port: 0,
                    };
                    let sent = self.send_with(sleeper, &body, bell.shows);
                    self.note_sent(sleeper, sent, &mut doomed);
                    let body = wire::PeerDoor {
                        link_id: knocker_link_id,
                        door,
                        port: 0,
                    };
                    (knocker, self.send_with(knocker, &body, bell.knocks))
                }
                Action::LinkClosed { process, link_id } => {
                    self.memory.remove(LinkSide { process, link_id });
                    continue;
                }
            };
            self.note_sent(to, result, &mut doomed);
        }
        for (number, error) in doomed {
            self.give_up_unsendable(number, &error);
        }
        self.report_allotted();
    }

    fn note_sent(
        &mut self,
        to: ProcessId,
        result: Result<(), SendError>,
        doomed: &mut BTreeMap<u64, SendError>,
    ) {
        let Some(&number) = self.by_process.get(&to) else {
            return;
        };
        match result {
            Ok(()) => self.watch_writable(number),
            Err(error) => {
                doomed.entry(number).or_insert(error);
            }
        }
    }

    fn send_plain(&mut self, to: ProcessId, message: &Outgoing) -> Result<(), SendError> {
        if let Outgoing::Pair(pair) = message {
            self.rules.begins(pair.channel_id);
        }
        let Some(connection) = self.connection_of(to) else {
            return Ok(());
        };
        match message {
            Outgoing::Reject(body) => connection.send(body, Vec::new()),
            Outgoing::Link(body) => connection.send(body, Vec::new()),
            Outgoing::Pair(body) => connection.send(body, Vec::new()),
            Outgoing::DoorAck(body) => connection.send(body, Vec::new()),
            Outgoing::Downgrade(body) => connection.send(body, Vec::new()),
            Outgoing::PeerGone(body) => connection.send(body, Vec::new()),
        }
    }

    fn send_peer(
        &mut self,
        to: ProcessId,
        link_id: u64,
        peer: ProcessId,
        peer_link_id: u64,
    ) -> Result<(), SendError> {
        let side = LinkSide {
            process: peer,
            link_id: peer_link_id,
        };
        let (Some(region), Some(member)) = (self.memory.take_region(side), self.member(peer))
        else {
            return Ok(());
        };
        let fds = vec![region, member.wait_page.clone()];
        let body = wire::Peer { link_id };
        match self.connection_of(to) {
            Some(connection) => connection.send(&body, fds),
            None => Ok(()),
        }
    }

    /// Sends a message with a descriptor of which nothing is kept.
    fn send_with<M: wire::Message>(
        &mut self,
        to: ProcessId,
        body: &M,
        fd: OwnedFd,
    ) -> Result<(), SendError> {
        match self.connection_of(to) {
            Some(connection) => connection.send(body, vec![fd.into()]),
            None => Ok(()),
        }
    }

    pub(crate) fn member(&self, process: ProcessId) -> Option<&crate::connection::Member> {
        let number = self.by_process.get(&process)?;
        self.connections.get(number)?.member.as_ref()
    }

    fn connection_of(&mut self, process: ProcessId) -> Option<&mut Connection> {
        let number = self.by_process.get(&process)?;
        self.connections.get_mut(number)
    }

    /// Asks epoll for room only while something waits.
    pub(crate) fn watch_writable(&mut self, number: u64) {
        self.recount(number);
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.is_behind() == connection.watching_writable {
            return;
        }
        connection.watching_writable = connection.is_behind();
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        flags.set(epoll::EventFlags::OUT, connection.watching_writable);
        let token = Token::Shim(number).data();
        let _ = epoll::modify(&self.epoll, connection.socket.as_fd(), token, flags);
    }
}
