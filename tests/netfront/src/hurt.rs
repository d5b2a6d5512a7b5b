//! What the tests of a hostile backend have in common.

use crate::{BackQueue, Bench};
use fordway_netfront::{Reason, State};
use fordway_xen_abi::netif::{RxResponse, TxResponse};

impl Bench {
    /// The backend answers the next buffers with these, and its bytes are `fill`.
    pub fn receive(&mut self, fill: &[u8], responses: &[(u16, u16, i16)]) {
        let Bench { world, backend, .. } = self;
        let queue = &mut backend.queues[0];
        for (offset, flags, status) in responses {
            let request = queue.fill(world, 0, fill).expect("a buffer");
            let response = RxResponse {
                id: request.id,
                offset: *offset,
                flags: *flags,
                status: *status,
            };
            queue.respond(world, response.word());
        }
        queue.show_rx(world);
        self.poll();
    }

    pub fn respond_tx(&mut self, responses: &[(u16, i16)]) {
        let Bench { world, backend, .. } = self;
        let queue: &mut BackQueue = &mut backend.queues[0];
        for (id, status) in responses {
            let response = TxResponse {
                id: *id,
                status: *status,
            };
            queue.tx.put(world, &[response.word()]);
        }
        queue.show_tx(world);
        self.poll();
    }

    /// The frame is gone and counted, nothing else is.
    pub fn assert_dropped(&mut self, reason: Reason) {
        assert!(self.received.is_empty(), "{reason:?}");
        assert_eq!(self.drops(reason), 1, "{reason:?}");
        let others = Reason::ALL.iter().filter(|other| **other != reason);
        assert_eq!(others.map(|other| self.drops(*other)).sum::<u64>(), 0);
        self.assert_works();
    }

    /// The connection is broken off and its rings are not looked at any more; then another is made.
    pub fn assert_broken(&mut self, reason: Reason) {
        assert_eq!(self.drops(reason), 1, "{reason:?}");
        assert!(!self.netfront.is_up());
        assert_eq!(self.netfront.states().0, State::Closing);
        let reads = self.world.reads.get();
        self.poll();
        let _ = self.netfront.rearm(&mut self.world);
        assert!(self.send(&[0; 60]).is_err());
        assert_eq!(self.world.reads.get(), reads, "its rings are left alone");
        self.backend.spoilt = true;
        self.settle();
        self.assert_works();
    }
}
