//! Cuts a large segment into segments of the MSS where the link does not do it.
//!
//! smoltcp has written one segment of up to 64 KB; its header is copied before each piece with
//! what differs. That is cheaper than asking smoltcp for each, and the only way to send less
//! than the MSS that a peer has named when the path turns out narrower (RFC 1191).

use alloc::vec::Vec;

use crate::Mac;
use crate::packet::{self, ETHERNET, flag};

#[derive(Debug, Default)]
pub(super) struct Cut {
    /// The IP packet; its buffer stays.
    pub bytes: Vec<u8>,
    len_bytes: usize,
    header: usize,
    network: usize,
    mss: usize,
    done: usize,
    mac: Mac,
}

impl Cut {
    pub(super) fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    pub(super) fn clear(&mut self) {
        self.len_bytes = 0;
    }

    /// Begins with the packet of this length that was written into `bytes`.
    pub(super) fn begin(
        &mut self,
        len_bytes: usize,
        network: usize,
        header: usize,
        mss: usize,
        mac: Mac,
    ) {
        self.len_bytes = len_bytes;
        self.header = header;
        self.network = network;
        self.mss = mss.max(1);
        self.done = 0;
        self.mac = mac;
    }

    /// Writes the next piece as a frame; gives its length.
    pub(super) fn next(&mut self, buffer: &mut [u8], own: &Mac) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let payload_len = self.len_bytes - self.header;
        let piece = self.mss.min(payload_len - self.done);
        let is_last = self.done + piece == payload_len;
        let len = self.header + piece;
        packet::put_ethernet(buffer, &self.mac, own, self.bytes[0] >> 4 == 6);
        let ip = &mut buffer[ETHERNET..ETHERNET + len];
        ip[..self.header].copy_from_slice(&self.bytes[..self.header]);
        let from = self.header + self.done;
        ip[self.header..].copy_from_slice(&self.bytes[from..from + piece]);
        if ip[0] >> 4 == 4 {
            packet::put16(ip, 2, len as u16);
            packet::fill_ipv4_checksum(ip);
        } else {
            packet::put16(ip, 4, (len - self.network) as u16);
        }
        let seq = packet::be32(ip, self.network + 4)?;
        packet::put32(ip, self.network + 4, seq.wrapping_add(self.done as u32));
        if !is_last {
            ip[self.network + 13] &= !(flag::FIN | flag::PSH);
        }
        self.done += piece;
        if is_last {
            self.len_bytes = 0;
        }
        Some(ETHERNET + len)
    }
}
