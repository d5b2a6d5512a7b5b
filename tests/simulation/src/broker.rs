//! The broker: the real registry, with a queue of packets from each process and its mail.

use crate::mail::{Mail, Packet};
use crate::world::World;
use fordway_abi::control::PathPolicy;
use fordway_abi::reason::Reason;
use fordway_registry::{Action, Network, Outgoing, ProcessId, Registry, SocketFacts, Violation};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

/// The one network namespace.
const NETNS: u64 = 3;

/// See the module.
pub struct Broker {
    registry: Option<Registry>,
    epoch: u64,
    inbox: BTreeMap<usize, VecDeque<Packet>>,
    members: BTreeMap<usize, ProcessId>,
    regions: BTreeMap<(ProcessId, u64), (usize, *mut u8)>,
}

impl Broker {
    pub fn new() -> Self {
        let mut broker = Self {
            registry: None,
            epoch: 0,
            inbox: BTreeMap::new(),
            members: BTreeMap::new(),
            regions: BTreeMap::new(),
        };
        broker.begin();
        broker
    }

    fn begin(&mut self) {
        self.epoch += 1;
        let mut keys = u128::from(self.epoch) << 64;
        let source = move || {
            keys += 1;
            keys.to_ne_bytes()
        };
        let network = Network::new(Ipv4Addr::new(10, 77, 0, 0), 24).expect("a network");
        self.registry = Some(Registry::new(network, self.epoch, Box::new(source)));
    }

    /// It dies: everything that was under way is lost.
    pub fn die(&mut self, world: &World) {
        self.registry = None;
        self.inbox.clear();
        self.regions.clear();
        for process in std::mem::take(&mut self.members).into_keys() {
            world.processes[process].lost(world);
        }
    }

    /// A new one.
    pub fn come(&mut self, _world: &World) {
        if self.registry.is_none() {
            self.begin();
        }
    }

    /// A process says Hello; false if nobody answers.
    pub fn hello(&mut self, process: usize) -> bool {
        let Some(registry) = &mut self.registry else {
            return false;
        };
        let (id, _) = registry.add_process(NETNS, PathPolicy::Auto);
        self.members.insert(process, id);
        self.inbox.insert(process, VecDeque::new());
        true
    }

    pub fn post(&mut self, process: usize, packet: Packet) {
        self.inbox.entry(process).or_default().push_back(packet);
    }

    /// A process has died. What it had sent before is read first, or lost.
    pub fn gone(&mut self, world: &World, process: usize) {
        if world.once_in(2) {
            while self
                .inbox
                .get(&process)
                .is_some_and(|inbox| !inbox.is_empty())
            {
                self.handle(world, process);
            }
        }
        self.inbox.remove(&process);
        let member = self.members.remove(&process);
        if let (Some(id), Some(registry)) = (member, &mut self.registry) {
            let actions = registry.process_gone(id);
            self.carry_out(world, actions);
        }
    }

    /// The administrator asks for the kernel path.
    pub fn ask(&mut self, world: &World) {
        if let Some(registry) = &mut self.registry
            && let Some(actions) = registry.downgrade(None, Reason::Asked)
        {
            self.carry_out(world, actions);
        }
    }

    pub fn has_work(&self, world: &World) -> bool {
        let now = world.now_ns.get();
        self.inbox.iter().any(|(process, inbox)| {
            !inbox.is_empty() && world.processes[*process].stopped_until_ns.get() <= now
                || !inbox.is_empty()
        })
    }

    /// Handles one packet of somebody.
    pub fn step(&mut self, world: &World) {
        let waiting: Vec<usize> = (self.inbox.iter())
            .filter(|(_, inbox)| !inbox.is_empty())
            .map(|(process, _)| *process)
            .collect();
        if !waiting.is_empty() {
            let chosen = world.below(waiting.len() as u64) as usize;
            self.handle(world, waiting[chosen]);
        }
    }

    fn handle(&mut self, world: &World, process: usize) {
        let packet = self.inbox.get_mut(&process).and_then(VecDeque::pop_front);
        let (Some(packet), Some(&id)) = (packet, self.members.get(&process)) else {
            return;
        };
        match self.dispatch(world, process, id, packet) {
            Ok(actions) => self.carry_out(world, actions),
            Err(violation) => world.fail(format!(
                "the broker takes process {process} for a liar: {violation}"
            )),
        }
    }

    fn dispatch(
        &mut self,
        world: &World,
        process: usize,
        id: ProcessId,
        packet: Packet,
    ) -> Result<Vec<Action>, Violation> {
        let Some(registry) = &mut self.registry else {
            return Ok(Vec::new());
        };
        match packet {
            Packet::Offer { conn, conn_id } => {
                // A socket that is closed or reset is turned down by the kernel's word.
                match facts(world, conn) {
                    Some(facts) => Ok(registry.offer(id, conn_id, facts)),
                    None => {
                        let message = Outgoing::Reject(fordway_abi::control::Reject {
                            conn_id,
                            reason: Reason::NoPeer as u32,
                            pending: 0,
                        });
                        Ok(vec![Action::Send { to: id, message }])
                    }
                }
            }
            Packet::Region { link_id, base } => {
                let (wanted, actions) = registry.region(id, link_id)?;
                if wanted {
                    self.regions.insert((id, link_id), (process, base));
                }
                Ok(actions)
            }
            Packet::Door(door) => registry.door(id, door),
            Packet::Status(status) => registry.status(id, status),
            Packet::RejoinLink { link, base } => {
                self.regions.insert((id, link.link_id), (process, base));
                registry.rejoin_link(id, link)
            }
            Packet::RejoinChannel { channel, conn } => match facts(world, conn) {
                Some(facts) => registry.rejoin_channel(id, channel, facts),
                None => Ok(Vec::new()),
            },
        }
    }

    fn carry_out(&mut self, world: &World, actions: Vec<Action>) {
        for action in actions {
            let (to, mail) = match action {
                Action::Send { to, message } => (to, mail_of(message)),
                Action::Peer {
                    to,
                    link_id,
                    peer,
                    peer_link_id,
                } => match self.regions.get(&(peer, peer_link_id)) {
                    Some(&(process, base)) => (
                        to,
                        Mail::Peer {
                            link_id,
                            peer: process,
                            base,
                        },
                    ),
                    None => continue,
                },
                // What the sleeper gets is not simulated: every ring reaches it.
                Action::Doorbell {
                    ringer,
                    ringer_link_id,
                    door,
                    ..
                } => {
                    let link_id = ringer_link_id;
                    (ringer, Mail::PeerDoor { link_id, door })
                }
                Action::LinkClosed { .. } => continue,
            };
            let process = self.members.iter().find(|(_, id)| **id == to);
            if let Some((&process, _)) = process {
                world.trace(|| format!("to process {process}: {mail:?}"));
                world.processes[process].mail.borrow_mut().push_back(mail);
            }
        }
    }

    /// Channels that the registry takes for live; `None` without a broker.
    pub fn channel_count(&self) -> Option<usize> {
        Some(self.registry.as_ref()?.channel_count())
    }
}

fn mail_of(message: Outgoing) -> Mail {
    match message {
        Outgoing::Reject(reject) => Mail::Reject(reject),
        Outgoing::Link(link) => Mail::Link(link),
        Outgoing::Pair(pair) => Mail::Pair(pair),
        Outgoing::DoorAck(ack) => Mail::DoorAck(ack.door),
        Outgoing::Downgrade(ask) => Mail::Downgrade(ask),
        Outgoing::PeerGone(gone) => Mail::PeerGone(gone.link_id),
    }
}

/// What the kernel says of a passed socket; `None`: it is not connected any more.
fn facts(world: &World, conn: usize) -> Option<SocketFacts> {
    let conn = &world.conns[conn];
    let sockets = world.sockets.borrow();
    let socket = &sockets[conn.socket];
    socket.sent_position()?;
    let name = |socket: usize| {
        let port = 1000 + (socket / 2) as u16;
        SocketAddr::from(([127, 0, 0, 1 + (socket % 2) as u8], port))
    };
    Some(SocketFacts {
        cookie: conn.socket as u64 + 1,
        netns_cookie: NETNS,
        local: name(conn.socket),
        remote: name(socket.peer),
    })
}
