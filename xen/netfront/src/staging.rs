//! Staging grants: the backend is asked over the control ring to keep the pool mapped.
//!
//! For each queue in turn: how many grants may it keep (GET), then the list of them (ADD). A
//! backend that does not know this answers so, and nothing is lost. When we close, it is asked
//! to let go (DEL), with the same lists; it lets go of everything anyway when it disconnects.

use crate::{Env, Reason};
use alloc::vec::Vec;
use fordway_xen_abi::netif::ctrl::{
    ADD_GREF_MAPPING, DEL_GREF_MAPPING, GET_GREF_MAPPING_SIZE, GREF_READONLY, GREFS_PER_PAGE,
    STATUS_SUCCESS,
};
use fordway_xen_abi::netif::{CTRL_SLOT_BYTES, CTRL_SLOTS, CtrlRequest, CtrlResponse, gref_entry};
use fordway_xen_frontend::{Buffer, GrantRef, Guest, Pool, Port, Ring};

pub(crate) struct Staging<G: Guest> {
    pub ring: Ring<G>,
    pub port: Port,
    /// One list for each queue, and how many grants are in it.
    lists: Vec<(Buffer<G>, u32)>,
    /// What the last question was, and of which queue.
    asked: Option<(u16, u16)>,
}

impl<G: Guest> Staging<G> {
    pub fn new(guest: &mut G, pool: &mut Pool<G>) -> Option<Self> {
        let port = guest.port_new(pool.domain)?;
        let Some(ring) = Ring::new(guest, pool, CTRL_SLOTS, CTRL_SLOT_BYTES) else {
            guest.port_close(port);
            return None;
        };
        Some(Self {
            ring,
            port,
            lists: Vec::new(),
            asked: None,
        })
    }

    pub fn ask(&mut self, guest: &mut G, kind: u16, queue: u16) {
        let list = self.lists.get(usize::from(queue));
        let (gref, count) = list.map_or((0, 0), |(list, count)| (list.grant, *count));
        let request = CtrlRequest {
            id: queue,
            kind,
            data: [queue.into(), gref, count],
        };
        self.asked = Some((kind, queue));
        self.ring.request(guest, &request.words());
        if self.ring.push(guest, true) {
            guest.notify(self.port);
        }
        self.ring.wake_at(guest, 1);
    }

    /// Hears an answer and asks the next question. `grants` are those of a queue, with whether
    /// the backend may only read them.
    pub fn poll(
        &mut self,
        guest: &mut G,
        env: &mut Env<G>,
        queues: usize,
        mut grants: impl FnMut(&mut G, &mut Env<G>, usize) -> Vec<(GrantRef, bool)>,
    ) -> Result<(), Reason> {
        let _ = guest.take_event(self.port);
        for _ in 0..self.ring.responses(guest)? {
            let (_, at) = self.ring.response();
            let words = [0, 4, 8].map(|word| guest.load32(&self.ring.shared.page, at + word));
            let answer = CtrlResponse::from_words(words);
            let queue = answer.id;
            if self.asked.take() != Some((answer.kind, queue)) {
                return Err(Reason::BadId);
            }
            if answer.status != STATUS_SUCCESS {
                continue;
            }
            let room = (answer.data as usize).min(GREFS_PER_PAGE);
            if answer.kind == GET_GREF_MAPPING_SIZE && room > 0 {
                let Some(list) = env.pool.take(guest, false) else {
                    continue;
                };
                let grants = grants(guest, env, queue.into());
                let count = grants.len().min(room);
                for (index, (grant, readonly)) in grants.into_iter().take(room).enumerate() {
                    let flags = if readonly { GREF_READONLY } else { 0 };
                    guest.store64(&list.page, 8 * index, gref_entry(grant, flags));
                }
                self.lists.push((list, count as u32));
                self.ask(guest, ADD_GREF_MAPPING, queue);
            } else if answer.kind == ADD_GREF_MAPPING && usize::from(queue) + 1 < queues {
                self.ask(guest, GET_GREF_MAPPING_SIZE, queue + 1);
            }
        }
        Ok(())
    }

    /// Asks the backend to let go of all that it was asked to keep.
    pub fn close(&mut self, guest: &mut G) {
        for queue in 0..self.lists.len() {
            self.ask(guest, DEL_GREF_MAPPING, queue as u16);
        }
    }

    pub fn bury(self, guest: &mut G, pool: &mut Pool<G>) {
        guest.port_close(self.port);
        for (list, _) in self.lists {
            pool.give_back(guest, list);
        }
        pool.give_back(guest, self.ring.shared);
    }
}
