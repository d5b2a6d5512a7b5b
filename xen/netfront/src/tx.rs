//! Sending: a frame's parts are copied into granted pages, one request for each page.
//!
//! The first page holds as much as fits, so that all headers lie in the first fragment, and no
//! fragment is empty: what backends stumbled over (XSA-423, 432, 448). Pages are granted
//! read-only and hold nothing but zeros and what was sent before (XSA-403). Finished requests
//! are collected when room is needed or somebody waits for it; a backend that answers no more
//! costs the ring's room and nothing else (XSA-392).

use crate::{ETHERNET_BYTES, Env, Offers, PAGE_BYTES, Reason, TxFrame};
use alloc::vec;
use alloc::vec::Vec;
use fordway_xen_abi::netif::{self, Extra, SLOTS_PER_PACKET_MAX, TxRequest, TxResponse, tx_flag};
use fordway_xen_frontend::{Buffer, Guest, Ring};

pub(crate) struct Tx<G: Guest> {
    pub ring: Ring<G>,
    pub buffers: Vec<Option<Buffer<G>>>,
    free: Vec<u16>,
    /// Which ids are in requests that have no response yet.
    busy: Vec<bool>,
    /// Extra infos whose responses, which have no id, are still due.
    extras_due: u32,
    /// A frame found no room: an event is wanted when there is some.
    pub waiting: bool,
    /// Answers that were collected since somebody took this number.
    pub answers: u32,
}

impl<G: Guest> Tx<G> {
    pub fn new(guest: &mut G, env: &mut Env<G>, pages: usize) -> Option<Self> {
        let pages = pages.clamp(SLOTS_PER_PACKET_MAX, netif::TX_SLOTS as usize);
        Some(Self {
            ring: Ring::new(guest, &mut env.pool, netif::TX_SLOTS, netif::TX_SLOT_BYTES)?,
            buffers: (0..pages).map(|_| None).collect(),
            free: (0..pages as u16).rev().collect(),
            busy: vec![false; pages],
            extras_due: 0,
            waiting: false,
            answers: 0,
        })
    }

    /// Whether a frame of the largest size might find no room.
    pub fn is_short(&self) -> bool {
        self.free.len().min(self.ring.free() as usize) < SLOTS_PER_PACKET_MAX
    }

    /// The grant and page of a buffer, made if they are not there.
    pub fn buffer(&mut self, guest: &mut G, env: &mut Env<G>, id: u16) -> Option<&Buffer<G>> {
        let buffer = &mut self.buffers[usize::from(id)];
        if buffer.is_none() {
            *buffer = env.pool.take(guest, true);
        }
        buffer.as_ref()
    }

    /// Writes a frame's requests, all or none. They are not pushed yet.
    pub fn write(
        &mut self,
        guest: &mut G,
        env: &mut Env<G>,
        offers: &Offers,
        frame: &TxFrame<'_>,
    ) -> Result<(), Reason> {
        let total: usize = frame.parts.iter().map(|part| part.len()).sum();
        let pages = total.div_ceil(PAGE_BYTES);
        if total < ETHERNET_BYTES {
            return Err(Reason::Runt);
        } else if total > netif::TX_BYTES_MAX {
            return Err(Reason::TooLong);
        } else if !offers.allow(frame) || (pages > 1 && !offers.sg) {
            return Err(Reason::NotOffered);
        }
        let slots = pages + usize::from(frame.gso.is_some());
        if (self.ring.free() as usize) < slots || self.free.len() < pages {
            self.waiting = true;
            return Err(Reason::RingFull);
        }
        for index in self.free.len() - pages..self.free.len() {
            let id = self.free[index];
            self.buffer(guest, env, id).ok_or(Reason::NoMemory)?;
        }
        let mut flags = frame.flags();
        let mut extra = frame.gso;
        let mut size = total; // the first request tells the whole frame's
        let mut left = total;
        let mut parts = frame.parts.iter();
        let mut part: &[u8] = &[];
        while let Some(id) = self.free.pop_if(|_| left > 0) {
            let index = usize::from(id);
            let Some(buffer) = &self.buffers[index] else {
                return Err(Reason::NoMemory);
            };
            let mut at = 0;
            let end = left.min(PAGE_BYTES);
            while at < end {
                if part.is_empty() {
                    part = parts.next().copied().unwrap_or_default();
                    continue;
                }
                let (now, later) = part.split_at(part.len().min(end - at));
                guest.write(&buffer.page, at, now);
                at += now.len();
                part = later;
            }
            left -= end;
            if left > 0 {
                flags |= tx_flag::MORE_DATA;
            }
            let request = TxRequest {
                gref: buffer.grant,
                offset: 0,
                flags,
                id,
                size: size as u16,
            };
            self.busy[index] = true;
            self.ring.request(guest, &request.words());
            if let Some(gso) = extra.take() {
                let kind = if gso.ipv6 {
                    netif::GSO_TCPV6
                } else {
                    netif::GSO_TCPV4
                };
                let words = Extra::gso(kind, gso.size).tx_words();
                self.ring.request(guest, &words);
                self.extras_due += 1;
            }
            flags = 0;
            size = left.min(PAGE_BYTES);
        }
        env.counters.tx_frames += 1;
        env.counters.tx_bytes += total as u64;
        Ok(())
    }

    /// Collects the answers.
    pub fn reap(&mut self, guest: &mut G, env: &mut Env<G>) -> Result<(), Reason> {
        let count = self.ring.responses(guest)?;
        for _ in 0..count {
            let (_, at) = self.ring.response();
            let word = guest.load32(&self.ring.shared.page, at);
            let TxResponse { id, status } = TxResponse::from_word(word);
            if status == netif::status::NULL {
                self.extras_due = self.extras_due.checked_sub(1).ok_or(Reason::BadId)?;
                continue;
            }
            match self.busy.get_mut(usize::from(id)) {
                Some(busy) if *busy => *busy = false,
                _ => return Err(Reason::BadId), // nobody asked, or it was answered before
            }
            self.free.push(id);
            if !env.switches.persistent
                && let Some(buffer) = self.buffers[usize::from(id)].take()
            {
                env.pool.give_back(guest, buffer);
            }
            if status != netif::status::OKAY {
                env.counters.drop(Reason::TxRefused);
            }
        }
        self.waiting &= count == 0;
        self.answers += count;
        Ok(())
    }
}
