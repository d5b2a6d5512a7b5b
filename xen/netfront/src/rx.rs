//! Receiving: buffers are offered to the backend, and filled ones copied out.
//!
//! A frame is a first data slot, then extra infos, then further data slots. It is put together
//! slot by slot, across calls if the backend shows it in pieces; each response is read once
//! (XSA-155), and the bytes are copied out of the shared page before its buffer is offered
//! again, so that what the user parses cannot change. A frame with a fault is skipped to its
//! end and counted once; an answer to no question ends the connection.

use crate::{Checksum, ETHERNET_BYTES, Env, Gso, PAGE_BYTES, Reason, RxFrame};
use alloc::vec;
use alloc::vec::Vec;
use fordway_xen_abi::netif::{self, Extra, RxRequest, RxResponse, SLOTS_PER_PACKET_MAX, rx_flag};
use fordway_xen_frontend::{Buffer, Guest, Ring};

pub(crate) struct Rx<G: Guest> {
    pub ring: Ring<G>,
    pub buffers: Vec<Option<Buffer<G>>>,
    /// Buffers that are not offered, and which one each slot offers.
    spare: Vec<u16>,
    offered: Vec<u16>,
    bytes: Vec<u8>,
    frame: Frame,
}

/// The frame under construction.
#[derive(Default)]
struct Frame {
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
    pub fn new(guest: &mut G, env: &mut Env<G>, pages: usize) -> Option<Self> {
        let pages = pages.clamp(SLOTS_PER_PACKET_MAX, netif::RX_SLOTS as usize) as u16;
        Some(Self {
            ring: Ring::new(guest, &mut env.pool, netif::RX_SLOTS, netif::RX_SLOT_BYTES)?,
            buffers: (0..pages).map(|_| None).collect(),
            spare: (0..pages).rev().collect(),
            offered: vec![0; netif::RX_SLOTS as usize],
            bytes: vec![0; SLOTS_PER_PACKET_MAX * PAGE_BYTES],
            frame: Frame::default(),
        })
    }

    /// Offers every spare buffer. True if the backend wants to be told.
    pub fn refill(&mut self, guest: &mut G, env: &mut Env<G>) -> bool {
        while let Some(&id) = self.spare.last() {
            let buffer = &mut self.buffers[usize::from(id)];
            if buffer.is_none() {
                *buffer = env.pool.take(guest, false);
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
        env: &mut Env<G>,
        sink: &mut impl FnMut(RxFrame<'_>),
    ) -> Result<u32, Reason> {
        let count = self.ring.responses(guest)?;
        for _ in 0..count {
            let (slot, at) = self.ring.response();
            let word = guest.load64(&self.ring.shared.page, at);
            let id = self.offered[slot];
            if self.frame.expects_extra {
                self.frame.extra(word);
            } else {
                self.data(guest, id, word)?;
            }
            if !env.switches.persistent
                && let Some(buffer) = self.buffers[usize::from(id)].take()
            {
                env.pool.give_back(guest, buffer);
            }
            self.spare.push(id);
            if !self.frame.expects_extra && !self.frame.expects_data {
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
        let frame = &mut self.frame;
        if frame.fragments == 0 {
            frame.flags = response.flags;
            frame.expects_extra = response.flags & rx_flag::EXTRA_INFO != 0;
        }
        frame.expects_data = response.flags & rx_flag::MORE_DATA != 0;
        frame.fragments = frame.fragments.saturating_add(1);
        let offset = usize::from(response.offset);
        let size = usize::try_from(response.status);
        match (size, &self.buffers[usize::from(id)]) {
            (Err(_), _) => frame.fail(Reason::RxRefused),
            (Ok(0), _) => frame.fail(Reason::EmptyFragment),
            (Ok(size), _) if offset + size > PAGE_BYTES => frame.fail(Reason::OutsidePage),
            _ if frame.fragments > SLOTS_PER_PACKET_MAX => frame.fail(Reason::TooManyFragments),
            (Ok(size), Some(buffer)) => {
                let into = &mut self.bytes[frame.len..frame.len + size];
                guest.read(&buffer.page, offset, into);
                frame.len += size;
            }
            (Ok(_), None) => {}
        }
        Ok(())
    }

    fn end(&mut self, env: &mut Env<G>, sink: &mut impl FnMut(RxFrame<'_>)) {
        let mut frame = core::mem::take(&mut self.frame);
        if frame.len < ETHERNET_BYTES {
            frame.fail(Reason::Runt);
        }
        if let Some(reason) = frame.fault {
            return env.counters.drop(reason);
        }
        env.counters.rx_frames += 1;
        env.counters.rx_bytes += frame.len as u64;
        let has = |flag| frame.flags & flag != 0;
        sink(RxFrame {
            bytes: &mut self.bytes[..frame.len],
            checksum: match (has(rx_flag::CSUM_BLANK), has(rx_flag::DATA_VALIDATED)) {
                (true, _) => Checksum::Blank,
                (false, true) => Checksum::Good,
                (false, false) => Checksum::Unknown,
            },
            gso: frame.gso,
        });
    }
}

impl Frame {
    /// It will be dropped, for the first reason there was.
    fn fail(&mut self, reason: Reason) {
        self.fault.get_or_insert(reason);
    }

    fn extra(&mut self, word: u64) {
        let extra = Extra::from_word(word);
        self.expects_extra = extra.flags & netif::EXTRA_FLAG_MORE != 0;
        let (ipv6, size) = (extra.gso_kind == netif::GSO_TCPV6, extra.gso_size);
        let known = (ipv6 || extra.gso_kind == netif::GSO_TCPV4) && size > 0;
        if extra.kind == netif::EXTRA_TYPE_GSO && known && self.gso.is_none() {
            self.gso = Some(Gso { ipv6, size });
        } else if extra.kind <= netif::EXTRA_TYPE_GSO || extra.kind >= netif::EXTRA_TYPE_MAX {
            self.fail(Reason::BadExtra);
        }
    }
}
