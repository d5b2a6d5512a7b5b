//! See [`control`].

use crate::Bytes;
use fordway_abi::control::{
    self as wire, HELLO_MAGIC, Header, Message, PACKET_BYTES_MAX, PACKET_FDS_MAX, PathPolicy,
    Protocol, kind,
};
use fordway_registry::{
    ALONE_NS_MAX, Action, Network, Outgoing, ProcessId, Registry, Shown, SocketFacts, Violation,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use zerocopy::IntoBytes;

/// Connections to the broker.
const MEMBERS: usize = 4;
/// Sockets that may be passed; two in a row are the ends of a connection.
const SOCKETS: u64 = 8;
/// Packets of one run.
const PACKETS_MAX: usize = 400;

/// One connection to the broker.
#[derive(Default)]
struct Member {
    process: Option<ProcessId>,
    /// Numbers that its peers or the broker have told it: a liar uses these.
    told: Vec<u64>,
}

/// A broker without a kernel: what its dispatch does with a packet that is in order.
struct Broker {
    registry: Registry,
    now_ns: u64,
    members: [Member; MEMBERS],
    offered: BTreeSet<u64>,
}

/// Each packet: who sends it, its kind, how many descriptors come along, the kind of its
/// length (as it should be, or any), and its body.
pub fn control(bytes: &[u8]) {
    let mut keys = 0u128;
    let network = Network::new(Ipv4Addr::new(10, 77, 0, 0), 24).expect("a network");
    let source = move || {
        keys += 1;
        keys.to_ne_bytes()
    };
    let mut broker = Broker {
        registry: Registry::new(network, 7, Box::new(source)),
        now_ns: 0,
        members: Default::default(),
        offered: BTreeSet::new(),
    };
    let mut bytes = Bytes(bytes);
    for _ in 0..PACKETS_MAX {
        if bytes.is_empty() {
            break;
        }
        let sender = usize::from(bytes.byte()) % MEMBERS;
        let form = bytes.byte();
        let mut packet = [0u8; PACKET_BYTES_MAX];
        let (length, fds) = broker.write_packet(sender, form, &mut bytes, &mut packet);
        broker.receive(sender, &packet[..length], fds, &mut bytes);
        broker.pass_time(form);
    }
    broker.end();
}

impl Broker {
    /// A packet, mostly of the right form: `form` says of which kind, or that anything goes.
    fn write_packet(
        &self,
        sender: usize,
        form: u8,
        bytes: &mut Bytes<'_>,
        packet: &mut [u8; PACKET_BYTES_MAX],
    ) -> (usize, usize) {
        if form >= 250 {
            let length = usize::from(bytes.byte()) % (PACKET_BYTES_MAX + 1);
            let taken = bytes.take(length);
            packet[..taken.len()].copy_from_slice(taken);
            return (length, usize::from(bytes.byte()) % (PACKET_FDS_MAX + 2));
        }
        let kinds = [
            kind::Hello,
            kind::Offer,
            kind::Region,
            kind::Door,
            kind::Status,
            kind::RejoinLink,
            kind::RejoinChannel,
            u32::from(form),
        ];
        let kind = kinds[usize::from(form) % kinds.len()];
        let (body, fds) = wire::shape(kind).unwrap_or((0, 0..=0));
        let length = size_of::<Header>() + body;
        let header = Header {
            kind,
            length_bytes: length as u32,
        };
        packet[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        let told = &self.members[sender].told;
        for word in packet[size_of::<Header>()..length].chunks_mut(4) {
            // Small numbers, numbers that the sender was told, or anything.
            let value = match bytes.byte() {
                choice @ 0..200 => u32::from(choice % 10),
                choice @ 200..240 if !told.is_empty() => {
                    told[usize::from(choice) % told.len()] as u32
                }
                _ => bytes.number(4) as u32,
            };
            word.copy_from_slice(&value.to_ne_bytes()[..word.len()]);
        }
        if kind == kind::Hello {
            let words = [HELLO_MAGIC, fordway_abi::ABI_VERSION, 0, 0];
            packet[size_of::<Header>()..length].copy_from_slice(words.as_bytes());
        }
        (length, *fds.start())
    }

    fn receive(&mut self, sender: usize, packet: &[u8], fds: usize, bytes: &mut Bytes<'_>) {
        let Ok((kind, body)) = wire::parse(packet, fds) else {
            return self.drop_member(sender);
        };
        let (length, allowed) = wire::shape(kind).expect("it was parsed");
        assert!(body.len() == length && allowed.contains(&fds));
        let Some(process) = self.members[sender].process else {
            if kind == kind::Hello {
                self.hello(sender, read(body));
            } else {
                self.drop_member(sender);
            }
            return;
        };
        match self.dispatch(process, kind, body, bytes) {
            Ok(actions) => self.carry_out(actions),
            Err(_) => self.drop_member(sender),
        }
    }

    fn hello(&mut self, sender: usize, hello: wire::Hello) {
        let policy = PathPolicy::from_u32(hello.path_policy);
        if hello.magic != HELLO_MAGIC || hello.abi_version != fordway_abi::ABI_VERSION {
            return self.drop_member(sender);
        }
        if let Some(policy) = policy {
            let (process, _) = self.registry.add_process(3, policy);
            self.members[sender].process = Some(process);
        }
    }

    fn dispatch(
        &mut self,
        process: ProcessId,
        kind: u32,
        body: &[u8],
        bytes: &mut Bytes<'_>,
    ) -> Result<Vec<Action>, Violation> {
        match kind {
            kind::Offer => {
                let offer: wire::Offer = read(body);
                let facts = self.passed_socket(bytes);
                Ok(self.registry.offer(process, offer.conn_id, facts))
            }
            kind::Region => {
                let region: wire::Region = read(body);
                let (_, actions) = self.registry.region(process, region.link_id)?;
                Ok(actions)
            }
            kind::Door => {
                let door: wire::Door = read(body);
                Registry::check_door(door.door)?;
                self.registry.door(process, door.door)
            }
            kind::Status => self.registry.status(process, read(body)),
            kind::RejoinLink => self.registry.rejoin_link(process, read(body), self.now_ns),
            kind::RejoinChannel => {
                let facts = self.passed_socket(bytes);
                self.registry.rejoin_channel(
                    process,
                    read(body),
                    facts,
                    self.now_ns,
                    &mut |_, _| Ok(()),
                    &mut |_| None,
                )
            }
            _ => Err(Violation::Status(kind)),
        }
    }

    /// What the kernel says of a socket; a liar chooses which one it passes, not what it is.
    fn passed_socket(&mut self, bytes: &mut Bytes<'_>) -> SocketFacts {
        let socket = bytes.number(1) % SOCKETS;
        self.offered.insert(socket);
        let name = |socket: u64| {
            let port = 1000 + (socket / 2) as u16;
            SocketAddr::from(([127, 0, 0, 1 + (socket % 2) as u8], port))
        };
        SocketFacts {
            protocol: Protocol::Tcp,
            cookie: socket + 1,
            netns_cookie: 3,
            local: name(socket),
            remote: name(socket ^ 1),
            shown: Shown::default(),
        }
    }

    /// Now and then, so that what waits for somebody waits no longer.
    fn pass_time(&mut self, form: u8) {
        self.now_ns += u64::from(form) * (ALONE_NS_MAX / 1000);
        let actions = self.registry.on_time(self.now_ns);
        self.carry_out(actions);
    }

    fn drop_member(&mut self, sender: usize) {
        self.members[sender].told.clear();
        if let Some(process) = self.members[sender].process.take() {
            let actions = self.registry.process_gone(process);
            self.carry_out(actions);
        }
    }

    /// Each answer is one that a shim takes.
    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, message } => self.tell(to, message),
                Action::Peer { to, link_id, .. } => self.note(to, link_id),
                Action::Doorbell {
                    sleeper,
                    sleeper_link_id,
                    knocker,
                    knocker_link_id,
                    ..
                } => {
                    self.note(sleeper, sleeper_link_id);
                    self.note(knocker, knocker_link_id);
                }
                Action::LinkClosed { .. } => {}
            }
        }
    }

    fn tell(&mut self, to: ProcessId, message: Outgoing) {
        match message {
            Outgoing::Reject(body) => taken(&body),
            Outgoing::Link(body) => {
                taken(&body);
                self.note(to, body.link_id);
            }
            Outgoing::Pair(body) => {
                taken(&body);
                self.note(to, body.channel_id);
                self.note(to, body.link_id);
            }
            Outgoing::DoorAck(body) => taken(&body),
            Outgoing::Downgrade(body) => taken(&body),
            Outgoing::PeerGone(body) => taken(&body),
        }
    }

    fn note(&mut self, to: ProcessId, number: u64) {
        let member = self
            .members
            .iter_mut()
            .find(|member| member.process == Some(to));
        member.expect("only members are told").told.push(number);
    }

    /// When all are gone, nothing is left of them.
    fn end(&mut self) {
        for sender in 0..MEMBERS {
            self.drop_member(sender);
        }
        assert_eq!(self.registry.channel_count(), 0);
        for socket in &self.offered {
            assert_eq!(self.registry.connection(socket + 1), None);
        }
    }
}

fn read<M: Message>(body: &[u8]) -> M {
    M::read_from_bytes(body).expect("its length was checked")
}

/// As a shim parses it.
fn taken<M: Message>(body: &M) {
    let length = size_of::<Header>() + size_of::<M>();
    let header = Header {
        kind: M::KIND,
        length_bytes: length as u32,
    };
    let packet = [header.as_bytes(), body.as_bytes()].concat();
    assert!(wire::parse(&packet, *M::FDS.start()).is_ok());
}
