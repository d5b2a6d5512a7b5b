//! Receiving: buffers are offered to the backend, and filled ones copied out.
//!
//! A frame is a first data slot, then extra infos, then further data slots. It is put together
//! slot by slot, across calls if the backend shows it in pieces; each response is read once
//! (XSA-155), and the bytes are copied out of the shared page before its buffer is offered
//! again, so that what the user parses cannot change. A frame with a fault is skipped to its
//! end and counted once; an answer to no question ends the connection.

use crate::ring::{Buffer, Ring};
use crate::{Checksum, ETHERNET_BYTES, Env, Gso, Guest, PAGE_BYTES, Reason, RxFrame};
use alloc::vec;
use alloc::vec::Vec;
use fordway_xen_abi::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_MAX, Extra, GSO_TCPV4, GSO_TCPV6, RX_SLOT_BYTES,
    RX_SLOTS, RxRequest, RxResponse, SLOTS_PER_PACKET_MAX, rx_flag,
};

pub(crate) struct Rx<G: Guest> {
    pub ring: Ring<G>,
    pub buffers: Vec<Option<Buffer<G>>>,
    /// Buffers that are not offered, and which one each slot offers.
    spare: Vec<u16>,
    offered: Vec<u16>,
    /// The frame under construction; no fragments between frames.
    bytes: Vec<u8>,
    len: usize,
    fragments: usize,
    flags: u16,
    gso: Option<Gso>,
    fault: Option<Reason>,
    /// What the slots so far said of those that follow.
    expects_extra: bool,
    expects_data: bool,
}

impl<G: Guest> Rx<G> {
    pub fn new(guest: &mut G, env: &mut Env<Buffer<G>>, pages: usize) -> Option<Self> {
        let pages = pages.clamp(SLOTS_PER_PACKET_MAX, RX_SLOTS as usize) as u16;
        Some(Self {
            ring: Ring::new(guest, env, RX_SLOTS, RX_SLOT_BYTES)?,
            buffers: (0..pages).map(|_| None).collect(),
            spare: (0..pages).rev().collect(),
            offered: vec![0; RX_SLOTS as usize],
            bytes: vec![0; SLOTS_PER_PACKET_MAX * PAGE_BYTES],
            len: 0,
            fragments: 0,
            flags: 0,
            gso: None,
            fault: None,
            expects_extra: false,
            expects_data: false,
        })
    }

    /// Offers every spare buffer. True if the backend wants to be told.
    pub fn refill(&mut self, guest: &mut G, env: &mut Env<Buffer<G>>) -> bool {
        while let Some(&id) = self.spare.last() {
            let buffer = &mut self.buffers[usize::from(id)];
            if buffer.is_none() {
                *buffer = Buffer::new(guest, env, false);
            }
            let Some(buffer) = buffer else {
                break; // no memory: tried again with the next call
            };
            self.spare.pop();
            let gref = buffer.grant;
            let word = RxRequest { id, gref }.word();
            let words = [word as u32, (word >> 32) as u32];
            let slot = self.ring.request(guest, &words);
            self.offered[slot] = id;
        }
        self.ring.push(guest, env.switches.suppression)
    }

    /// Looks at what has come; whole frames go to `sink`. How many slots were looked at.
    pub fn poll(
        &mut self,
        guest: &mut G,
        env: &mut Env<Buffer<G>>,
        sink: &mut impl FnMut(RxFrame<'_>),
    ) -> Result<u32, Reason> {
        let count = self.ring.responses(guest)?;
        for _ in 0..count {
            let (slot, at) = self.ring.response();
            let word = guest.load64(&self.ring.shared.page, at);
            let id = self.offered[slot];
            if self.expects_extra {
                self.extra(word);
            } else {
                self.data(guest, id, word)?;
            }
            if !env.switches.persistent
                && let Some(buffer) = self.buffers[usize::from(id)].take()
            {
                buffer.bury(guest, env);
            }
            self.spare.push(id);
            if !self.expects_extra && !self.expects_data {
                self.end(env, sink);
            }
        }
        Ok(count)
    }

    fn data(&mut self, guest: &G, id: u16, word: u64) -> Result<(), Reason> {
        let response = RxResponse::from_word(word);
        if response.id != id {
            return Err(Reason::BadId); // a response lies where its request lay
        }
        if self.fragments == 0 {
            self.flags = response.flags;
            self.expects_extra = response.flags & rx_flag::EXTRA_INFO != 0;
        }
        self.expects_data = response.flags & rx_flag::MORE_DATA != 0;
        self.fragments = self.fragments.saturating_add(1);
        let offset = usize::from(response.offset);
        let fault = match usize::try_from(response.status) {
            Err(_) => Reason::RxRefused,
            Ok(0) => Reason::EmptyFragment,
            Ok(size) if offset + size > PAGE_BYTES => Reason::OutsidePage,
            Ok(_) if self.fragments > SLOTS_PER_PACKET_MAX => Reason::TooManyFragments,
            Ok(size) => {
                if let Some(buffer) = &self.buffers[usize::from(id)] {
                    let into = &mut self.bytes[self.len..self.len + size];
                    guest.read(&buffer.page, offset, into);
                    self.len += size;
                }
                return Ok(());
            }
        };
        self.fault.get_or_insert(fault);
        Ok(())
    }

    fn extra(&mut self, word: u64) {
        let extra = Extra::from_word(word);
        self.expects_extra = extra.flags & EXTRA_FLAG_MORE != 0;
        let ipv6 = extra.gso_kind == GSO_TCPV6;
        let size = extra.gso_size;
        let known = (ipv6 || extra.gso_kind == GSO_TCPV4) && size > 0 && self.gso.is_none();
        if extra.kind == EXTRA_TYPE_GSO && known {
            self.gso = Some(Gso { ipv6, size });
        } else if extra.kind <= EXTRA_TYPE_GSO || extra.kind >= EXTRA_TYPE_MAX {
            self.fault.get_or_insert(Reason::BadExtra);
        }
    }

    fn end(&mut self, env: &mut Env<Buffer<G>>, sink: &mut impl FnMut(RxFrame<'_>)) {
        if self.len < ETHERNET_BYTES {
            self.fault.get_or_insert(Reason::Runt);
        }
        let gso = self.gso.take();
        if let Some(reason) = self.fault.take() {
            env.counters.drop(reason);
        } else {
            env.counters.rx_frames += 1;
            env.counters.rx_bytes += self.len as u64;
            let has = |flag| self.flags & flag != 0;
            sink(RxFrame {
                bytes: &self.bytes[..self.len],
                checksum: match (has(rx_flag::CSUM_BLANK), has(rx_flag::DATA_VALIDATED)) {
                    (true, _) => Checksum::Blank,
                    (false, true) => Checksum::Good,
                    (false, false) => Checksum::Unknown,
                },
                gso,
            });
        }
        (self.len, self.fragments) = (0, 0);
    }
}
