//! The network frontend against a fake backend.
//!
//! * [`World`] is the hypervisor and XenStore: memory, grants, event channels, keys, watches.
//!   It is the driver's `Guest`, and it panics at whatever a guest must never do: free a page
//!   that is granted, grant one that holds anything, touch a page that it gave back, use a
//!   channel that it closed.
//! * [`Backend`] does what Linux' netback does, as far as this protocol goes, and has a door to
//!   the rings for doing anything else.
//! * [`chaos`] is both under bytes of a fuzzer.
//!
//! Everything happens in one thread, step by step: the tests say who acts when.

mod backend;
mod chaos;
mod hurt;
mod world;

pub use backend::{BackQueue, Backend, Offer, Packet};
pub use chaos::chaos;
pub use world::{BACK, FRONT, Page, World};

use fordway_netfront::{Checksum, Config, Gso, Netfront, RxFrame, Switches, TxFrame};

/// A device, its backend and what the driver made of it.
pub struct Bench {
    pub world: World,
    pub backend: Backend,
    pub netfront: Netfront<World>,
    pub received: Vec<Received>,
    pub now_ns: u64,
}

/// A frame as the driver's user got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

impl Bench {
    /// Nothing has happened yet.
    pub fn new(offer: Offer, config: Config) -> Self {
        let mut world = World::new();
        let backend = Backend::plug(&mut world, offer);
        let netfront = Netfront::new(&mut world, config);
        Self {
            world,
            backend,
            netfront,
            received: Vec::new(),
            now_ns: 0,
        }
    }

    /// Connected, with all that a Linux backend offers.
    pub fn up() -> Self {
        Self::up_with(Offer::default(), |_| {})
    }

    pub fn up_with(offer: Offer, change: impl FnOnce(&mut Switches)) -> Self {
        let mut config = Config::default();
        change(&mut config.switches);
        Self::up_as(offer, config)
    }

    pub fn up_as(offer: Offer, config: Config) -> Self {
        let mut bench = Self::new(offer, config);
        bench.settle();
        assert!(bench.netfront.is_up(), "{:?}", bench.netfront.states());
        bench
    }

    /// The driver's user comes by once.
    pub fn poll(&mut self) {
        let received = &mut self.received;
        self.netfront.poll(&mut self.world, self.now_ns, |frame| {
            received.push(Received::from(frame));
        });
    }

    /// Both sides act until nothing happens any more.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            self.poll();
            self.netfront.flush(&mut self.world);
            self.backend.step(&mut self.world);
        }
        self.poll();
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), fordway_netfront::Reason> {
        let frame = TxFrame {
            parts: &[bytes],
            ..TxFrame::default()
        };
        self.netfront.send(&mut self.world, &frame)
    }

    pub fn drops(&self, reason: fordway_netfront::Reason) -> u64 {
        self.netfront.counters().drops(reason)
    }

    /// Frames still go both ways.
    pub fn assert_works(&mut self) {
        assert!(self.netfront.is_up(), "{:?}", self.netfront.states());
        self.received.clear();
        self.backend.sent.clear();
        for index in 0..3 {
            let bytes = frame(60 + index, 7 + index as u8);
            self.backend
                .deliver(&mut self.world, 0, &Packet::plain(&bytes));
            self.send(&bytes).expect("room for a frame");
            self.settle();
            assert_eq!(
                self.received.pop().map(|frame| frame.bytes),
                Some(bytes.clone())
            );
            assert_eq!(
                self.backend.sent.pop().map(|packet| packet.bytes),
                Some(bytes)
            );
        }
    }
}

impl From<RxFrame<'_>> for Received {
    fn from(frame: RxFrame<'_>) -> Self {
        Self {
            bytes: frame.bytes.to_vec(),
            checksum: frame.checksum,
            gso: frame.gso,
        }
    }
}

/// Bytes of which no two neighbours and no two pages are alike.
pub fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 31 + index / 251 + usize::from(seed)) as u8)
        .collect()
}
