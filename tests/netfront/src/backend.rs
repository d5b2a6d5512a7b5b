//! A backend as Linux' netback is: its states, its rings, and a door to do worse.

use crate::world::{BACK, FRONT, World};
use fordway_netfront::{Checksum, Gso, State};
use fordway_xen_abi::netif::{
    CTRL_SLOT_BYTES, CTRL_SLOTS, CtrlRequest, CtrlResponse, EXTRA_FLAG_MORE, Extra, GSO_TCPV4,
    GSO_TCPV6, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, RX_SLOT_BYTES, RX_SLOTS, RxRequest,
    RxResponse, SLOTS, TX_SLOT_BYTES, TX_SLOTS, TxRequest, TxResponse, ctrl, rx_flag, status,
    tx_flag,
};

/// What is offered in XenStore.
#[derive(Clone, Debug)]
pub struct Offer {
    pub split: bool,
    pub queues: Option<u32>,
    pub sg: bool,
    pub gso: bool,
    pub no_csum: bool,
    pub csum_ipv6: bool,
    pub rx_copy: bool,
    /// A control ring, and how many grants it keeps mapped (Linux: none).
    pub ctrl: Option<u32>,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            split: true,
            queues: Some(1),
            sg: true,
            gso: true,
            no_csum: false,
            csum_ipv6: true,
            rx_copy: true,
            ctrl: Some(0),
        }
    }
}

/// A frame on its way between the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
    /// Bytes of each of its fragments.
    pub fragments: Vec<usize>,
}

impl Packet {
    pub fn plain(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            checksum: Checksum::Unknown,
            gso: None,
            fragments: bytes.chunks(4096).map(<[u8]>::len).collect(),
        }
    }
}

/// One ring from the other side.
pub struct BackRing {
    pub grant: u32,
    pub slots: u32,
    pub slot_bytes: usize,
    pub req_cons: u32,
    pub rsp_prod: u32,
}

impl BackRing {
    fn at(&self, index: u32) -> usize {
        SLOTS + (index % self.slots) as usize * self.slot_bytes
    }

    pub fn requests(&self, world: &World) -> u32 {
        world
            .peek32(self.grant, REQ_PROD)
            .wrapping_sub(self.req_cons)
    }

    pub fn words<const N: usize>(&self, world: &World, index: u32) -> [u32; N] {
        std::array::from_fn(|word| world.peek32(self.grant, self.at(index) + 4 * word))
    }

    /// Takes the next request, asking for an event at the one after it.
    pub fn take<const N: usize>(&mut self, world: &mut World) -> Option<[u32; N]> {
        if self.requests(world) == 0 {
            world.poke32(self.grant, REQ_EVENT, self.req_cons.wrapping_add(1));
            return None;
        }
        let words = self.words(world, self.req_cons);
        self.req_cons = self.req_cons.wrapping_add(1);
        Some(words)
    }

    /// Writes a response; not shown yet.
    pub fn put(&mut self, world: &mut World, words: &[u32]) {
        let at = self.at(self.rsp_prod);
        for (index, word) in words.iter().enumerate() {
            world.poke32(self.grant, at + 4 * index, *word);
        }
        self.rsp_prod = self.rsp_prod.wrapping_add(1);
    }

    /// Shows all responses; whether the frontend wants an event.
    pub fn show(&self, world: &mut World) -> bool {
        let before = world.peek32(self.grant, RSP_PROD);
        world.poke32(self.grant, RSP_PROD, self.rsp_prod);
        let mark = world.peek32(self.grant, RSP_EVENT);
        self.rsp_prod.wrapping_sub(mark) < self.rsp_prod.wrapping_sub(before)
    }
}

pub struct BackQueue {
    pub tx: BackRing,
    pub rx: BackRing,
    pub tx_port: u32,
    pub rx_port: u32,
    /// Requests of a frame that is not complete.
    first: Option<TxRequest>,
    parts: Vec<TxRequest>,
    extra_follows: bool,
    gso: Option<Gso>,
}

impl BackQueue {
    /// The frontend's offers of buffers that are still unused.
    pub fn buffers(&self, world: &World) -> u32 {
        self.rx.requests(world)
    }

    /// Writes a receive response for the next buffer, whatever it may be. Not shown yet.
    pub fn respond(&mut self, world: &mut World, word: u64) {
        self.rx.put(world, &[word as u32, (word >> 32) as u32]);
    }

    pub fn show_rx(&mut self, world: &mut World) {
        if self.rx.show(world) {
            world.send_event(self.rx_port);
        }
    }

    pub fn show_tx(&mut self, world: &mut World) {
        if self.tx.show(world) {
            world.send_event(self.tx_port);
        }
    }

    /// Takes the next buffer and fills it.
    pub fn fill(&mut self, world: &mut World, offset: usize, bytes: &[u8]) -> Option<RxRequest> {
        let [low, high] = self.rx.take(world)?;
        let request = RxRequest::from_word(u64::from(low) | u64::from(high) << 32);
        assert_eq!(world.is_writable(request.gref), Some(true), "{request:?}");
        world.poke(request.gref, offset, bytes);
        Some(request)
    }
}

/// The control ring's other side.
struct BackCtrl {
    ring: BackRing,
    port: u32,
    staged: Vec<u32>,
}

pub struct Backend {
    pub state: State,
    pub offer: Offer,
    pub queues: Vec<BackQueue>,
    ctrl: Option<BackCtrl>,
    /// What the frontend has sent.
    pub sent: Vec<Packet>,
    /// Keeps its mappings when it closes.
    pub holds_on: bool,
    /// Answers no transmit request.
    pub stalled: bool,
    /// Somebody has written into the rings what does not belong there: they are served no more.
    pub spoilt: bool,
    held: Vec<u32>,
    /// The first ring of the last connection.
    last: Option<u32>,
}

impl Backend {
    /// The toolstack makes the device; the backend looks at it.
    pub fn plug(world: &mut World, offer: Offer) -> Self {
        let mut backend = Self {
            state: State::Unknown,
            offer,
            queues: Vec::new(),
            ctrl: None,
            sent: Vec::new(),
            holds_on: false,
            stalled: false,
            spoilt: false,
            held: Vec::new(),
            last: None,
        };
        backend.plug_again(world, backend.offer.clone());
        backend
    }

    /// The device comes back, perhaps with other features.
    pub fn plug_again(&mut self, world: &mut World, offer: Offer) {
        self.disconnect(world);
        self.offer = offer;
        world.put(&format!("{FRONT}/backend-id"), "0");
        world.put(&format!("{FRONT}/mac"), "00:16:3e:01:02:03");
        world.put(&format!("{FRONT}/state"), "1");
        world.put(&format!("{BACK}/online"), "1");
        world.put(&format!("{FRONT}/backend"), BACK);
        self.begin(world);
    }

    /// As netback's probe.
    pub fn begin(&mut self, world: &mut World) {
        let offer = self.offer.clone();
        let mut tell = |name: &str, value: u32| {
            world.put(&format!("{BACK}/{name}"), &value.to_string());
        };
        tell("feature-sg", offer.sg.into());
        tell("feature-gso-tcpv4", offer.gso.into());
        tell("feature-gso-tcpv6", offer.gso.into());
        tell("feature-ipv6-csum-offload", offer.csum_ipv6.into());
        tell("feature-no-csum-offload", offer.no_csum.into());
        tell("feature-rx-copy", offer.rx_copy.into());
        tell("feature-split-event-channels", offer.split.into());
        tell("feature-ctrl-ring", offer.ctrl.is_some().into());
        if let Some(queues) = offer.queues {
            tell("multi-queue-max-queues", queues);
        }
        self.enter(world, State::Initialising);
        self.enter(world, State::InitWait);
    }

    pub fn enter(&mut self, world: &mut World, state: State) {
        self.state = state;
        world.put(&format!("{BACK}/state"), &(state as u32).to_string());
    }

    pub fn front_state(world: &World) -> State {
        let code = world.number(&format!("{FRONT}/state")).unwrap_or(0);
        State::ALL[code as usize]
    }

    /// Whether both sides still mean the same rings. The frontend closes its channels when it
    /// gives them up.
    fn is_served(&self, world: &World) -> bool {
        let mut queues = self.queues.iter();
        !self.spoilt && queues.len() > 0 && queues.all(|queue| world.is_open(queue.tx_port))
    }

    /// Follows the frontend's state, then serves the rings.
    pub fn step(&mut self, world: &mut World) {
        match (Self::front_state(world), self.state) {
            (State::Initialising, State::Closed) => self.begin(world),
            (State::Connected, State::InitWait) if self.connect(world) => {
                self.enter(world, State::Connected);
            }
            (State::Closing | State::Closed, State::Connected | State::InitWait) => {
                self.disconnect(world);
                self.enter(world, State::Closing);
            }
            (State::Closed, State::Closing) => self.enter(world, State::Closed),
            _ => {}
        }
        if self.state == State::Connected && self.is_served(world) {
            self.serve_ctrl(world);
            if !self.stalled {
                for index in 0..self.queues.len() {
                    self.serve_tx(world, index);
                }
            }
        }
    }

    /// The administrator takes the device away: `xl network-detach`.
    pub fn unplug(&mut self, world: &mut World) {
        world.put(&format!("{BACK}/online"), "0");
        self.disconnect(world);
        self.enter(world, State::Closing);
    }

    /// And the toolstack removes what is left when both are Closed.
    pub fn remove(&mut self, world: &mut World) {
        world.wipe(FRONT);
        world.wipe(BACK);
        self.state = State::Unknown;
    }

    fn connect(&mut self, world: &mut World) -> bool {
        self.disconnect(world);
        let read = |name: &str| world.number(&format!("{FRONT}/{name}"));
        if read("request-rx-copy") != Some(1) {
            return false;
        }
        let count = read("multi-queue-num-queues").unwrap_or(1);
        if count > self.offer.queues.unwrap_or(1) {
            return false;
        }
        let mut queues = Vec::new();
        for index in 0..count {
            let at = match count {
                1 => String::new(),
                _ => format!("queue-{index}/"),
            };
            let read = |name: &str| read(&format!("{at}{name}"));
            let split = read("event-channel-tx").zip(read("event-channel-rx"));
            let one = read("event-channel").map(|port| (port, port));
            let (Some(tx), Some(rx), Some((tx_port, rx_port))) =
                (read("tx-ring-ref"), read("rx-ring-ref"), split.or(one))
            else {
                return false;
            };
            assert!(one.is_none() || split.is_none(), "two kinds of channels");
            queues.push(BackQueue {
                tx: Self::ring(world, tx, TX_SLOTS, TX_SLOT_BYTES),
                rx: Self::ring(world, rx, RX_SLOTS, RX_SLOT_BYTES),
                tx_port,
                rx_port,
                first: None,
                parts: Vec::new(),
                extra_follows: false,
                gso: None,
            });
        }
        if let (Some(grant), Some(port)) = (read("ctrl-ring-ref"), read("event-channel-ctrl")) {
            self.ctrl = Some(BackCtrl {
                ring: Self::ring(world, grant, CTRL_SLOTS, CTRL_SLOT_BYTES),
                port,
                staged: Vec::new(),
            });
        }
        let ctrl = self.ctrl.iter().map(|ctrl| ctrl.ring.grant);
        let data = queues
            .iter()
            .flat_map(|queue| [queue.tx.grant, queue.rx.grant]);
        let grants: Vec<u32> = ctrl.chain(data).collect();
        if !grants
            .iter()
            .all(|grant| world.is_writable(*grant) == Some(true))
        {
            self.ctrl = None;
            return false;
        }
        for grant in grants {
            world.map(grant);
        }
        // Other rings are good again; the same ones are as they were left.
        let fresh = queues.first().map(|queue| queue.tx.grant);
        self.spoilt &= fresh == self.last;
        self.last = fresh;
        self.queues = queues;
        true
    }

    /// Goes on where an earlier connection left it, as netback does.
    fn ring(world: &World, grant: u32, slots: u32, slot_bytes: usize) -> BackRing {
        let from = world.peek32(grant, RSP_PROD);
        BackRing {
            grant,
            slots,
            slot_bytes,
            req_cons: from,
            rsp_prod: from,
        }
    }

    /// Lets everything go, or not.
    pub fn disconnect(&mut self, world: &mut World) {
        let mut held: Vec<u32> = Vec::new();
        for queue in self.queues.drain(..) {
            held.extend([queue.tx.grant, queue.rx.grant]);
        }
        if let Some(ctrl) = self.ctrl.take() {
            held.push(ctrl.ring.grant);
            held.extend(ctrl.staged);
        }
        self.held.extend(held);
        if !self.holds_on {
            self.let_go(world);
        }
    }

    /// Maps a buffer of the frontend's and keeps it.
    pub fn hold(&mut self, world: &mut World, grant: u32) {
        if world.map(grant) {
            self.held.push(grant);
        }
    }

    pub fn let_go(&mut self, world: &mut World) {
        for grant in self.held.drain(..) {
            world.unmap(grant);
        }
    }

    pub fn staged(&self) -> usize {
        self.ctrl.as_ref().map_or(0, |ctrl| ctrl.staged.len())
    }

    fn serve_ctrl(&mut self, world: &mut World) {
        let Some(ctrl) = &mut self.ctrl else { return };
        let max = self.offer.ctrl.unwrap_or(0);
        while let Some(words) = ctrl.ring.take(world) {
            let request = CtrlRequest::from_words(words);
            let [queue, list, count] = request.data;
            assert!((queue as usize) < self.queues.len(), "{request:?}");
            let mut status = ctrl::STATUS_SUCCESS;
            let mut data = 0;
            match request.kind {
                _ if max == 0 => status = ctrl::STATUS_NOT_SUPPORTED,
                ctrl::GET_GREF_MAPPING_SIZE => data = max,
                ctrl::ADD_GREF_MAPPING => {
                    assert!(count > 0 && count <= max);
                    for index in 0..count as usize {
                        let grant = world.peek32(list, 8 * index);
                        let readonly = world.peek32(list, 8 * index + 4) == 1;
                        assert_eq!(world.is_writable(grant), Some(!readonly));
                        world.map(grant);
                        ctrl.staged.push(grant);
                    }
                }
                ctrl::DEL_GREF_MAPPING => {
                    for index in 0..count as usize {
                        let grant = world.peek32(list, 8 * index);
                        if let Some(at) = ctrl.staged.iter().position(|one| *one == grant) {
                            ctrl.staged.swap_remove(at);
                            world.unmap(grant);
                        }
                    }
                }
                kind => panic!("control request {kind}"),
            }
            let response = CtrlResponse {
                id: request.id,
                kind: request.kind,
                status,
                data,
            };
            ctrl.ring.put(world, &response.words());
        }
        if ctrl.ring.show(world) {
            world.send_event(ctrl.port);
        }
    }

    /// Takes frames as xenvif_tx_build_gops does: first slot, extras, the other fragments.
    fn serve_tx(&mut self, world: &mut World, index: usize) {
        let queue = &mut self.queues[index];
        while let Some(words) = queue.tx.take(world) {
            if queue.extra_follows {
                let word = u64::from(words[0]) | u64::from(words[1]) << 32;
                let extra = Extra::from_word(word);
                queue.extra_follows = extra.flags & EXTRA_FLAG_MORE != 0;
                queue.gso = Some(Gso {
                    ipv6: extra.gso_kind == GSO_TCPV6,
                    size: extra.gso_size,
                });
                assert!(extra.gso_kind == GSO_TCPV4 || extra.gso_kind == GSO_TCPV6);
                let null = TxResponse {
                    id: 0,
                    status: status::NULL,
                };
                queue.tx.put(world, &[null.word()]);
            } else {
                let request = TxRequest::from_words(words);
                if queue.first.is_none() {
                    queue.first = Some(request);
                    queue.extra_follows = request.flags & tx_flag::EXTRA_INFO != 0;
                }
                queue.parts.push(request);
            }
            let more = queue
                .parts
                .last()
                .is_some_and(|part| part.flags & tx_flag::MORE_DATA != 0);
            if !more && !queue.extra_follows {
                let packet = queue.packet(world);
                self.sent.push(packet);
            }
        }
        queue.show_tx(world);
    }

    /// Puts a frame into the frontend's buffers as xenvif_rx_skb does. False without room.
    pub fn deliver(&mut self, world: &mut World, index: usize, packet: &Packet) -> bool {
        let served = self.is_served(world);
        let Some(queue) = self.queues.get_mut(index).filter(|_| served) else {
            return false;
        };
        let needed = packet.fragments.len() as u32 + u32::from(packet.gso.is_some());
        if queue.buffers(world) < needed {
            return false;
        }
        let mut left = packet.bytes.as_slice();
        for (index, size) in packet.fragments.iter().enumerate() {
            let (now, later) = left.split_at(*size);
            left = later;
            let request = queue.fill(world, 0, now).expect("room was seen");
            let mut flags = 0;
            if index == 0 {
                flags |= match packet.checksum {
                    Checksum::Blank => rx_flag::CSUM_BLANK | rx_flag::DATA_VALIDATED,
                    Checksum::Good => rx_flag::DATA_VALIDATED,
                    Checksum::Unknown => 0,
                };
                if packet.gso.is_some() {
                    flags |= rx_flag::EXTRA_INFO;
                }
            }
            if !left.is_empty() {
                flags |= rx_flag::MORE_DATA;
            }
            let response = RxResponse {
                id: request.id,
                offset: 0,
                flags,
                status: *size as i16,
            };
            queue.respond(world, response.word());
            if let (0, Some(gso)) = (index, packet.gso) {
                let _ = queue.fill(world, 0, &[]).expect("room was seen");
                let kind = if gso.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
                queue.respond(world, Extra::gso(kind, gso.size).word());
            }
        }
        queue.show_rx(world);
        true
    }
}

impl BackQueue {
    /// The frame of the requests collected, checked as netback checks it; answers them.
    fn packet(&mut self, world: &mut World) -> Packet {
        let first = self.first.take().expect("a frame has a first request");
        let parts = std::mem::take(&mut self.parts);
        assert!(parts.len() <= 18, "{} slots", parts.len());
        let rest: usize = parts[1..].iter().map(|part| usize::from(part.size)).sum();
        let first_size = usize::from(first.size)
            .checked_sub(rest)
            .expect("the first request tells the whole size");
        assert!(
            first_size >= usize::from(first.size).min(128),
            "split headers"
        );
        let mut bytes = Vec::new();
        let mut fragments = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let size = if index == 0 {
                first_size
            } else {
                part.size.into()
            };
            assert!(size > 0, "an empty fragment");
            assert!(usize::from(part.offset) + size <= 4096, "across a page");
            assert_eq!(world.is_writable(part.gref), Some(false), "{part:?}");
            let mut some = vec![0; size];
            assert!(world.peek(part.gref, part.offset.into(), &mut some));
            bytes.extend(some);
            fragments.push(size);
            let response = TxResponse {
                id: part.id,
                status: status::OKAY,
            };
            self.tx.put(world, &[response.word()]);
        }
        Packet {
            bytes,
            checksum: match first.flags & (tx_flag::CSUM_BLANK | tx_flag::DATA_VALIDATED) {
                0 => Checksum::Unknown,
                flags if flags & tx_flag::CSUM_BLANK != 0 => Checksum::Blank,
                _ => Checksum::Good,
            },
            gso: self.gso.take(),
            fragments,
        }
    }
}
