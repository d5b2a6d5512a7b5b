//! Event channels: one bit each, found through two levels, taken by looking and by sleeping.
//!
//! Xen sets a channel's pending bit and, if the channel is not masked, the bit of its word in
//! the selector. Upcalls stay masked for good: an upcall would write its frame below the
//! stack pointer, into the red zone that the precompiled `core` may be using. Instead [`Events::take`]
//! looks at the selector, which costs one load while nothing has happened, and
//! [`Events::sleep`] lets the hypervisor wake us when one of our channels becomes pending or a time
//! has come (`SCHEDOP_poll`, whose timeout is the one-shot timer).
//!
//! No wake-up is lost: whoever wants to sleep looks at the bits first, and Xen looks at them
//! again after it has marked us as sleeping.

use crate::hypercall::{self, Refused};
use crate::shared::SharedPage;
use crate::time;
use core::sync::atomic::Ordering;
use fordway_xen_abi::event::{
    ALLOC_UNBOUND, AllocUnbound, BIND_INTERDOMAIN, BindInterdomain, CHANNELS_MAX, CLOSE, Port,
    SEND, WORDS,
};
use fordway_xen_abi::sched::{POLL, POLL_PORTS_MAX, Poll};
use fordway_xen_abi::shared::offset;
use fordway_xen_abi::{DOMID_SELF, hypercall as number};

/// The bitmap of pending channels, and which of them are ours.
pub struct Events {
    bits: Bits,
    ports: [u32; POLL_PORTS_MAX],
    port_count: usize,
}

/// The two-level bitmap in the shared page.
#[derive(Clone, Copy)]
pub struct Bits {
    page: SharedPage,
}

impl Bits {
    pub fn new(shared_info: SharedPage) -> Self {
        Bits { page: shared_info }
    }

    /// Masks every channel and every upcall.
    fn reset(self) {
        self.page.store_u8(offset::UPCALL_MASK, 1);
        for word in 0..WORDS {
            self.page
                .store_u64(offset::EVTCHN_MASK + word * 8, u64::MAX, Ordering::Relaxed);
        }
    }

    /// Whether any channel may be pending.
    #[inline]
    pub fn any(self) -> bool {
        self.page
            .load_u64(offset::PENDING_SELECTOR, Ordering::Acquire)
            != 0
    }

    /// Takes every pending channel that is not masked, and hands each to `f`.
    pub fn take(self, mut f: impl FnMut(u32)) {
        if !self.any() {
            return;
        }
        self.page.store_u8(offset::UPCALL_PENDING, 0);
        let mut selector = self
            .page
            .swap_u64(offset::PENDING_SELECTOR, 0, Ordering::AcqRel);
        while selector != 0 {
            let word = selector.trailing_zeros() as usize;
            selector &= selector - 1;
            let open = !self
                .page
                .load_u64(offset::EVTCHN_MASK + word * 8, Ordering::Relaxed);
            let pending = offset::EVTCHN_PENDING + word * 8;
            let mut bits = self.page.load_u64(pending, Ordering::Relaxed) & open;
            self.page.clear_bits_u64(pending, bits, Ordering::AcqRel);
            while bits != 0 {
                f((word * 64) as u32 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Opens a channel. What became pending while it was masked is found by the next look.
    fn unmask(self, port: u32) {
        let (word, bit) = (port as usize / 64 * 8, 1 << (port % 64));
        self.page
            .clear_bits_u64(offset::EVTCHN_MASK + word, bit, Ordering::SeqCst);
        if self
            .page
            .load_u64(offset::EVTCHN_PENDING + word, Ordering::SeqCst)
            & bit
            != 0
        {
            self.page
                .set_bits_u64(offset::PENDING_SELECTOR, 1 << (port / 64), Ordering::SeqCst);
        }
    }

    /// Forgets that an event came: whoever does so looks at what the channel is for next.
    pub fn clear(self, port: u32) {
        let (word, bit) = (port as usize / 64 * 8, 1 << (port % 64));
        self.page
            .clear_bits_u64(offset::EVTCHN_PENDING + word, bit, Ordering::SeqCst);
    }

    fn mask(self, port: u32) {
        let (word, bit) = (port as usize / 64 * 8, 1 << (port % 64));
        self.page
            .set_bits_u64(offset::EVTCHN_MASK + word, bit, Ordering::SeqCst);
        self.clear(port);
    }
}

impl Events {
    /// Takes the channels over, all closed to us but those that are opened later.
    pub fn new(shared_info: SharedPage) -> Self {
        let bits = Bits::new(shared_info);
        bits.reset();
        Events {
            bits,
            ports: [0; POLL_PORTS_MAX],
            port_count: 0,
        }
    }

    /// Forgets all channels but these, after a suspend.
    pub(crate) fn restart(&mut self, ports: &[u32]) {
        self.bits.reset();
        self.port_count = 0;
        ports.iter().for_each(|&port| self.open(port));
    }

    /// Listens to a channel that exists already (console, XenStore).
    pub fn open(&mut self, port: u32) {
        assert!(port < CHANNELS_MAX && self.port_count < POLL_PORTS_MAX);
        if self.ports[..self.port_count].contains(&port) {
            return;
        }
        self.ports[self.port_count] = port;
        self.port_count += 1;
        self.bits.unmask(port);
    }

    /// A new channel that domain `remote` may bind to.
    pub fn offer(&mut self, remote: u16) -> Result<u32, Refused> {
        let mut request = AllocUnbound {
            domain: DOMID_SELF,
            remote_domain: remote,
            port: 0,
        };
        // SAFETY: the request is ours, and Xen writes its port only.
        unsafe {
            hypercall::command::<{ number::EVENT_CHANNEL_OP }, _>(ALLOC_UNBOUND, &mut request)?
        };
        self.open(request.port);
        Ok(request.port)
    }

    /// A channel to a port that domain `remote` offers. Nobody listens to it yet: it can be notified, and
    /// [`Events::listen`] does the rest.
    pub fn accept(&mut self, remote: u16, port: u32) -> Result<u32, Refused> {
        let mut request = BindInterdomain {
            remote_domain: remote,
            remote_port: port,
            port: 0,
        };
        // SAFETY: the request is ours, and Xen writes its port only.
        unsafe {
            hypercall::command::<{ number::EVENT_CHANNEL_OP }, _>(BIND_INTERDOMAIN, &mut request)?
        };
        Ok(request.port)
    }

    /// Listens to a channel, if one more can end a sleep.
    #[must_use]
    pub fn listen(&mut self, port: u32) -> bool {
        let has_room = self.port_count < POLL_PORTS_MAX && port < CHANNELS_MAX;
        if has_room {
            self.open(port);
        }
        has_room
    }

    /// Closes a channel for good.
    pub fn close(&mut self, port: u32) -> Result<(), Refused> {
        if let Some(at) = self.ports[..self.port_count]
            .iter()
            .position(|&p| p == port)
        {
            self.forget(at);
            self.bits.mask(port);
        }
        let mut request = Port { port };
        // SAFETY: the request is ours; closing a channel touches no memory of ours.
        unsafe { hypercall::command::<{ number::EVENT_CHANNEL_OP }, _>(CLOSE, &mut request)? };
        Ok(())
    }

    /// The bitmap itself.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// Closes one's ears to a channel, or opens them again. An event of a masked channel neither
    /// ends a sleep nor is it taken.
    pub fn set_masked(&mut self, port: u32, masked: bool) {
        let at = self.ports[..self.port_count]
            .iter()
            .position(|&p| p == port);
        match (at, masked) {
            (Some(at), true) => {
                self.forget(at);
                self.bits.mask(port);
            }
            (None, false) => self.open(port),
            _ => {}
        }
    }

    fn forget(&mut self, at: usize) {
        self.port_count -= 1;
        self.ports[at] = self.ports[self.port_count];
    }

    /// Whether any channel may be pending.
    #[inline]
    pub fn any(&self) -> bool {
        self.bits.any()
    }

    /// Takes every pending channel and hands each to `f`.
    #[inline]
    pub fn take(&mut self, f: impl FnMut(u32)) {
        self.bits.take(f);
    }

    /// Sleeps until one of the channels is pending or the clock's time `until_ns` has come.
    pub fn sleep(&self, until_ns: Option<u64>) {
        let mut request = Poll {
            ports: self.ports.as_ptr(),
            port_count: self.port_count as u32,
            timeout_ns: until_ns.map_or(0, time::to_system_ns),
        };
        // SAFETY: Xen reads the request and the list of ports.
        // An answer is of no use: whoever sleeps looks again anyway.
        let _ = unsafe { hypercall::command::<{ number::SCHED_OP }, _>(POLL, &mut request) };
    }
}

/// Sleeps until one channel is pending or the clock's time `until_ns` has come. The channel's
/// bit stays set.
pub fn sleep_on(port: u32, until_ns: u64) {
    let mut request = Poll {
        ports: &raw const port,
        port_count: 1,
        timeout_ns: time::to_system_ns(until_ns),
    };
    // SAFETY: Xen reads the request and the one port.
    let _ = unsafe { hypercall::command::<{ number::SCHED_OP }, _>(POLL, &mut request) };
}

/// Notifies the other end of a channel.
#[inline]
pub fn notify(port: u32) -> Result<(), Refused> {
    let mut request = Port { port };
    // SAFETY: Xen reads the request only.
    unsafe { hypercall::command::<{ number::EVENT_CHANNEL_OP }, _>(SEND, &mut request)? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::page;
    use std::vec::Vec;

    /// What Xen does when a channel is notified.
    fn raise(page: SharedPage, port: u32) {
        let (word, bit) = (port as usize / 64 * 8, 1u64 << (port % 64));
        page.set_bits_u64(offset::EVTCHN_PENDING + word, bit, Ordering::SeqCst);
        if page.load_u64(offset::EVTCHN_MASK + word, Ordering::SeqCst) & bit == 0 {
            page.set_bits_u64(offset::PENDING_SELECTOR, 1 << (port / 64), Ordering::SeqCst);
        }
    }

    fn taken(bits: Bits) -> Vec<u32> {
        let mut ports = Vec::new();
        bits.take(|port| ports.push(port));
        ports
    }

    #[test]
    fn channels_of_several_words_are_taken_once() {
        let page = page();
        let bits = Bits::new(page);
        bits.reset();
        for port in [0, 63, 64, 4095] {
            bits.unmask(port);
            raise(page, port);
        }
        raise(page, 5);
        assert_eq!(taken(bits), [0, 63, 64, 4095], "5 is masked");
        assert_eq!(taken(bits), []);
    }

    #[test]
    fn what_became_pending_under_the_mask_is_found_after_it() {
        let page = page();
        let bits = Bits::new(page);
        bits.reset();
        raise(page, 70);
        assert!(!bits.any());
        bits.unmask(70);
        assert_eq!(taken(bits), [70]);
        bits.mask(70);
        raise(page, 70);
        assert_eq!(taken(bits), []);
    }
}
