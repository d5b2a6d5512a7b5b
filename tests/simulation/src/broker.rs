//! The broker: the real registry, with a queue of packets from each process and its mail.

use crate::mail::{Mail, Packet};
use crate::world::World;
use fordway_abi::control::{PathPolicy, Protocol};
use fordway_abi::reason::Reason;
use fordway_registry::{
    Action, Network, Outgoing, ProcessId, Registry, Shown, SocketFacts, Violation,
};
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
    /// Counts the mail to all processes.
    sent: u64,
    /// It dies once it has told one end of a channel, and comes again after so many steps.
    dies_at_pair: Option<u64>,
}

impl Broker {
    pub fn new() -> Self {
        let mut broker = Self {
            registry: None,
            epoch: 0,
            inbox: BTreeMap::new(),
            members: BTreeMap::new(),
            regions: BTreeMap::new(),
            sent: 0,
            dies_at_pair: None,
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

    /// It dies: everything that was under way to it is lost. Its mail can still be read, but
    /// for the last that nobody has seen: it died before it sent that.
    pub fn die(&mut self, world: &World, steps: u64) {
        self.registry = None;
        self.dies_at_pair = None;
        world.plan_broker(steps);
        self.inbox.clear();
        self.regions.clear();
        let seen = world
            .processes
            .iter()
            .map(|process| process.mail_seen.get());
        let seen = seen.max().unwrap_or(0);
        let last = seen + world.below(self.sent - seen + 1);
        for process in &world.processes {
            let was_sent = |(number, _): &(u64, Mail)| *number <= last;
            process.mail.borrow_mut().retain(was_sent);
        }
        for process in std::mem::take(&mut self.members).into_keys() {
            world.processes[process].broker_gone.set(true);
        }
    }

    pub fn die_at_pair(&mut self, steps: u64) {
        self.dies_at_pair = Some(steps);
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
        }) || self.next_ns().is_some_and(|at| at <= now)
    }

    /// When it has something to do although nobody says anything.
    pub fn next_ns(&self) -> Option<u64> {
        self.registry.as_ref()?.next_ns()
    }

    /// Handles one packet of somebody, or sees how late it is.
    pub fn step(&mut self, world: &World) {
        if let Some(registry) = &mut self.registry {
            let actions = registry.on_time(world.now_ns.get());
            self.carry_out(world, actions);
        }
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
        let now_ns = world.now_ns.get();
        let mut witness = |_, old: &SocketFacts| {
            let now = facts(world, old.shown.fd as usize);
            now.filter(|now| now == old).map(drop).ok_or(Reason::NoPeer)
        };
        match packet {
            Packet::Offer { conn, conn_id } => {
                // A socket that is closed or reset is turned down by the kernel's word.
                match facts(world, conn) {
                    Some(facts) => {
                        let gate = &mut |_: &SocketFacts, _: &SocketFacts, _| None;
                        let (witness, none) = (&mut witness, &mut |_: &_| None);
                        Ok(registry.offer_through(id, conn_id, facts, witness, gate, none))
                    }
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
                registry.rejoin_link(id, link, now_ns)
            }
            Packet::RejoinChannel { channel, conn } => match facts(world, conn) {
                Some(facts) => {
                    let (witness, none) = (&mut witness, &mut |_: &_| None);
                    registry.rejoin_channel(id, channel, facts, now_ns, witness, none)
                }
                None => Ok(Vec::new()),
            },
        }
    }

    fn carry_out(&mut self, world: &World, actions: Vec<Action>) {
        for action in actions {
            let (to, mail) = match action {
                Action::Send { to, message } => {
                    world.note_alone(&message);
                    (to, mail_of(message))
                }
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
                    knocker,
                    knocker_link_id,
                    door,
                    ..
                } => {
                    let link_id = knocker_link_id;
                    (knocker, Mail::PeerDoor { link_id, door })
                }
                Action::LinkClosed { .. } => continue,
            };
            let is_pair = matches!(mail, Mail::Pair(_));
            let process = self.members.iter().find(|(_, id)| **id == to);
            if let Some((&process, _)) = process {
                world.trace(|| format!("to process {process}: {mail:?}"));
                self.sent += 1;
                let mail = (self.sent, mail);
                world.processes[process].mail.borrow_mut().push_back(mail);
            }
            if is_pair && let Some(steps) = self.dies_at_pair {
                world.trace(|| "the broker dies".to_owned());
                self.die(world, steps);
                return;
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

/// What the kernel says of a socket; `None`: it is not connected any more.
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
        protocol: Protocol::Tcp,
        cookie: conn.socket as u64 + 1,
        netns_cookie: NETNS,
        local: name(conn.socket),
        remote: name(socket.peer),
        shown: Shown {
            fd: conn.number as u32,
            thread: 0,
            ..Shown::default()
        },
    })
}
