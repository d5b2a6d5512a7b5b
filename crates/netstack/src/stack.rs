//! The stack as its caller sees it: made, fed, drained, asked when it wants to be called again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::config::{Config, Limits, Link};
use crate::counters::{Counters, Drop};
use crate::frame::{Behind, Rest, RxFrame, TxFrame};
use crate::hash::Random;
use crate::neighbor::{Neighbors, Released};
use crate::outbox::{Outbox, Waiting};
use crate::route::{Cidr, Route, Routing};
use crate::{Mac, Micros, packet};

/// Why a call failed; names follow errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing to read, no room to write: an event will tell.
    WouldBlock,
    /// No such listener, connection or port (any more).
    NoSuch,
    /// The peer refused the connection.
    Refused,
    /// The peer broke the connection off.
    Reset,
    /// The peer fell silent.
    TimedOut,
    /// No route, or no neighbor answered.
    Unreachable,
    /// A router says that the host cannot be reached.
    HostUnreachable,
    /// A router or the host does not allow it.
    Denied,
    /// The host has no such protocol, or does not understand the packet.
    Protocol,
    /// Not connected yet, or no longer.
    NotConnected,
    /// The sending side is shut.
    Pipe,
    AddressInUse,
    /// Not an address of ours.
    AddressNotAvailable,
    /// A limit was reached.
    Full,
    /// Larger than a packet can be.
    TooLong,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Error::WouldBlock => "would block",
            Error::NoSuch => "no such socket",
            Error::Refused => "connection refused",
            Error::Reset => "connection reset",
            Error::TimedOut => "timed out",
            Error::Unreachable => "unreachable",
            Error::HostUnreachable => "host unreachable",
            Error::Denied => "not allowed",
            Error::Protocol => "protocol not available",
            Error::NotConnected => "not connected",
            Error::Pipe => "sending side is shut",
            Error::AddressInUse => "address in use",
            Error::AddressNotAvailable => "address not available",
            Error::Full => "limit reached",
            Error::TooLong => "too long",
        })
    }
}

impl core::error::Error for Error {}

/// Something happened. Edge-triggered: read until [`Error::WouldBlock`], the next event comes
/// when there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Stack::tcp_accept`] has connections.
    #[cfg(feature = "tcp")]
    Accept(crate::ListenerId),
    #[cfg(feature = "tcp")]
    Tcp(crate::TcpId, crate::Ready),
    /// [`Stack::udp_receive`] has datagrams, or an error.
    #[cfg(feature = "udp")]
    Udp(crate::UdpId),
    /// [`Stack::ping_reply`] has replies.
    #[cfg(feature = "icmp")]
    Ping,
    /// An address of IPv6 can be used, has run out, or somebody else has it:
    /// [`Stack::ipv6_addresses`].
    #[cfg(feature = "autoconf")]
    Ipv6,
    /// DHCP has given addresses, or they have run out: [`Stack::dhcp_lease`].
    #[cfg(feature = "dhcp")]
    Lease,
    /// [`Stack::dns_answer`] has answers.
    #[cfg(feature = "dns")]
    Dns,
}

/// Who has an event that was not drained yet; each stands in the queue once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    #[cfg(feature = "tcp")]
    Listener(u32),
    #[cfg(feature = "tcp")]
    Flow(u32),
    #[cfg(feature = "udp")]
    Udp(u32),
    #[cfg(feature = "icmp")]
    Ping,
    #[cfg(feature = "autoconf")]
    Ipv6,
    #[cfg(feature = "dhcp")]
    Lease,
    #[cfg(feature = "dns")]
    Dns,
}

/// Loopback packets that are taken in during one `transmit`, so that two of our own connections
/// cannot keep it for ever.
const LOOPBACK_BURST: usize = 64;

/// One network stack.
#[derive(Debug)]
pub struct Stack {
    pub(crate) link: Link,
    pub(crate) limits: Limits,
    pub(crate) now: Micros,
    /// Until when timers have been looked at.
    advanced_to: Option<Micros>,
    pub(crate) routing: Routing,
    pub(crate) neighbors: Neighbors,
    #[cfg(feature = "icmp")]
    pub(crate) paths: crate::path::Paths,
    #[cfg(feature = "ipv6")]
    pub(crate) label_key: crate::hash::Keyed,
    #[cfg(feature = "autoconf")]
    pub(crate) autoconf: crate::autoconf::Autoconf,
    pub(crate) outbox: Outbox,
    /// Packets to ourselves, with room for an Ethernet header.
    pub(crate) loopback: VecDeque<Vec<u8>>,
    pub(crate) sources: VecDeque<Source>,
    /// Both addresses of the last TCP segment over IPv4 that was found to be for us, and the
    /// epoch of our own.
    #[cfg(feature = "tcp")]
    pub(crate) checked_names: Option<(u64, u32)>,
    pub(crate) counters: Counters,
    pub(crate) random: Random,
    #[cfg(feature = "tcp")]
    pub(crate) tcp: crate::tcp::Tcp,
    #[cfg(feature = "udp")]
    pub(crate) udp: crate::udp::Udp,
    #[cfg(feature = "udp")]
    pub(crate) groups: crate::groups::Groups,
    #[cfg(feature = "icmp")]
    pub(crate) icmp: crate::icmp::Icmp,
    #[cfg(feature = "fragments")]
    pub(crate) fragments: crate::fragments::Fragments,
    #[cfg(feature = "filter")]
    pub(crate) hooks: crate::filter::Hooks,
    #[cfg(feature = "dhcp")]
    pub(crate) dhcp: crate::dhcp::Dhcp,
    #[cfg(feature = "dns")]
    pub(crate) dns: crate::dns::Dns,
}

impl Stack {
    pub fn new(config: Config) -> Stack {
        let Config { link, limits, seed } = config;
        let mut random = Random(seed);
        Stack {
            now: 0,
            advanced_to: None,
            routing: Routing::default(),
            neighbors: Neighbors::new(
                limits.neighbors_max,
                limits.neighbors_pending_max,
                limits.neighbor_packets_max,
                random.next(),
            ),
            outbox: Outbox::new(limits.outbox_bytes_max),
            loopback: VecDeque::new(),
            sources: VecDeque::new(),
            #[cfg(feature = "tcp")]
            checked_names: None,
            counters: Counters::default(),
            #[cfg(feature = "tcp")]
            tcp: crate::tcp::Tcp::new(&limits, &mut random),
            #[cfg(feature = "udp")]
            udp: crate::udp::Udp::new(random.next()),
            #[cfg(feature = "udp")]
            groups: crate::groups::Groups::default(),
            #[cfg(feature = "icmp")]
            icmp: crate::icmp::Icmp::new(&limits),
            #[cfg(feature = "fragments")]
            fragments: crate::fragments::Fragments::default(),
            #[cfg(feature = "filter")]
            hooks: crate::filter::Hooks::new(limits.tracked_max, random.next()),
            #[cfg(feature = "dhcp")]
            dhcp: crate::dhcp::Dhcp::default(),
            #[cfg(feature = "dns")]
            dns: crate::dns::Dns::default(),
            #[cfg(feature = "icmp")]
            paths: crate::path::Paths::new(limits.paths_max, random.next()),
            #[cfg(feature = "ipv6")]
            label_key: crate::hash::Keyed(random.next()),
            #[cfg(feature = "autoconf")]
            autoconf: crate::autoconf::Autoconf::default(),
            link,
            limits,
            random,
        }
    }

    pub fn mac(&self) -> Mac {
        self.link.mac
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    /// After a reconnect to another backend. Connections live on.
    pub fn set_link(&mut self, link: Link) {
        self.link = link;
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Own addresses. A connection whose address goes away ends.
    pub fn addresses(&self) -> &[Cidr] {
        &self.routing.addresses
    }

    /// They are ours at once, without a question to the others on the link. What
    /// autoconfiguration has made stays as well.
    pub fn set_addresses(&mut self, addresses: &[Cidr]) {
        self.routing.addresses = addresses.to_vec();
        #[cfg(feature = "autoconf")]
        self.autoconf_keep();
        self.addresses_changed();
    }

    pub fn routes(&self) -> &[Route] {
        &self.routing.routes
    }

    pub fn set_routes(&mut self, routes: &[Route]) {
        self.routing.routes = routes.to_vec();
        self.addresses_changed();
    }

    /// Who keeps a way looks for it again; connections from an address that is gone end.
    pub(crate) fn addresses_changed(&mut self) {
        self.neighbors.epoch = self.neighbors.epoch.wrapping_add(1);
        #[cfg(feature = "tcp")]
        self.tcp_end_foreign();
    }

    /// Neighbors whose address is known or being asked for.
    pub fn neighbor_count(&self) -> usize {
        self.neighbors.len()
    }

    /// The largest frame that `transmit` can want to write: its buffer must have this length.
    pub fn frame_bytes_max(&self) -> usize {
        let offloads = &self.link.offloads;
        let largest = if offloads.gso_v4 || offloads.gso_v6 {
            crate::ip::gso_bytes_max(offloads)
        } else {
            0
        };
        packet::ETHERNET + largest.max(self.link.mtu_bytes)
    }

    /// Takes in a frame.
    pub fn receive(&mut self, now: Micros, frame: &mut RxFrame<'_>) {
        self.take_in(now, frame, None);
    }

    /// Takes in a frame of which the first `here` bytes have been copied to where it has room, and the rest lies behind them.
    pub fn receive_head(
        &mut self,
        now: Micros,
        frame: &mut RxFrame<'_>,
        here: usize,
        source: &dyn Behind,
    ) {
        let Some((head, room)) = frame.bytes.split_at_mut_checked(here) else {
            return self.receive(now, frame);
        };
        let is_bulk = cfg!(feature = "tcp") && crate::frame::is_bulk(head, frame.checksum);
        #[cfg(feature = "filter")]
        let is_bulk = is_bulk && !self.hooks.looks_behind;
        if !is_bulk {
            source.copy_to(here, room);
        }
        let rest = is_bulk.then_some(Rest { at: here, source });
        self.take_in(now, frame, rest);
    }

    fn take_in(&mut self, now: Micros, frame: &mut RxFrame<'_>, rest: Option<Rest<'_>>) {
        self.advance(now);
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.bytes.len() as u64;
        self.ethernet_input(frame.bytes, frame.checksum, rest);
        self.send_neighbor_requests();
    }

    /// Writes the next frame that is to be sent into `buffer` (of [`Stack::frame_bytes_max`]).
    /// `None` if there is nothing to send now.
    pub fn transmit(&mut self, now: Micros, buffer: &mut [u8]) -> Option<TxFrame> {
        if buffer.len() < self.frame_bytes_max() {
            return None;
        }
        self.advance(now);
        let frame = self.next_frame(buffer);
        if let Some(frame) = &frame {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += frame.len_bytes as u64;
        }
        frame
    }

    /// What [`Stack::transmit`] does besides frames, for when there is no room for one: timers, and packets to ourselves.
    pub fn turn(&mut self, now: Micros) {
        self.advance(now);
        for _ in 0..LOOPBACK_BURST {
            #[cfg(feature = "tcp")]
            self.tcp_loop();
            self.send_neighbor_requests();
            let Some(packet) = self.loopback.pop_front() else {
                return;
            };
            self.loopback_input(packet);
        }
    }

    fn next_frame(&mut self, buffer: &mut [u8]) -> Option<TxFrame> {
        let mut loops = 0;
        loop {
            if let Some(Waiting { bytes, checksum }) = self.outbox.pop() {
                let len_bytes = bytes.len();
                buffer[..len_bytes].copy_from_slice(&bytes);
                self.outbox.give_back(bytes);
                let is_ipv6 = packet::be16(buffer, 12) == Some(0x86dd);
                return Some(TxFrame {
                    len_bytes,
                    checksum,
                    gso_bytes: None,
                    is_ipv6,
                });
            }
            #[cfg(feature = "tcp")]
            if let Some(frame) = self.tcp_transmit(buffer) {
                return Some(frame);
            }
            self.send_neighbor_requests();
            if !self.outbox.is_empty() {
                continue;
            }
            if loops == LOOPBACK_BURST {
                return None;
            }
            let packet = self.loopback.pop_front()?;
            loops += 1;
            self.loopback_input(packet);
        }
    }

    /// When `transmit` has something to do again, if no frame arrives and nothing is sent until
    /// then. A time that has passed: now.
    pub fn poll_at(&self) -> Option<Micros> {
        if !self.outbox.is_empty() || !self.loopback.is_empty() {
            return Some(self.now);
        }
        let times = [
            self.neighbors.next_at(),
            #[cfg(feature = "tcp")]
            self.tcp.poll_at(self.now),
            #[cfg(feature = "fragments")]
            self.fragments.next_at(),
            #[cfg(feature = "udp")]
            self.groups.igmp.reports.next_at(),
            #[cfg(feature = "autoconf")]
            self.autoconf.next_at(),
            #[cfg(feature = "dhcp")]
            self.dhcp.next_at(),
            #[cfg(feature = "dns")]
            self.dns.next_at(),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether [`Stack::event`] may have something.
    pub fn has_events(&self) -> bool {
        !self.sources.is_empty()
    }

    /// The next thing that happened.
    pub fn event(&mut self) -> Option<Event> {
        loop {
            let event = match self.sources.pop_front()? {
                #[cfg(feature = "tcp")]
                Source::Listener(index) => self.tcp.listener_event(index),
                #[cfg(feature = "tcp")]
                Source::Flow(index) => self.tcp.flow_event(index),
                #[cfg(feature = "udp")]
                Source::Udp(index) => self.udp.event(index),
                #[cfg(feature = "icmp")]
                Source::Ping => self.icmp.event(),
                #[cfg(feature = "autoconf")]
                Source::Ipv6 => self.autoconf.event(),
                #[cfg(feature = "dhcp")]
                Source::Lease => Some(Event::Lease),
                #[cfg(feature = "dns")]
                Source::Dns => self.dns.event(),
            };
            if event.is_some() {
                return event;
            }
        }
    }

    /// Time has come to `now`: what is due is marked. Asked for each frame, of which many come at
    /// one time; no timer is ever set to the time that it is.
    #[inline]
    pub(crate) fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
        if self.advanced_to != Some(self.now) {
            self.advanced_to = Some(self.now);
            self.look_at_timers();
        }
        // These two may begin something at once.
        #[cfg(feature = "dhcp")]
        if self.dhcp.next_at().is_some_and(|at| at <= self.now) {
            self.dhcp_advance();
        }
        #[cfg(feature = "dns")]
        if self.dns.is_asking() {
            self.dns_advance();
        }
    }

    #[inline(never)]
    fn look_at_timers(&mut self) {
        let now = self.now;
        let is_due = |at: Option<Micros>| at.is_some_and(|at| at <= now);
        if is_due(self.neighbors.next_at()) {
            for released in self.neighbors.advance(now) {
                self.release(released);
            }
        }
        #[cfg(feature = "tcp")]
        if is_due(self.tcp.next_timer_at()) {
            self.tcp_advance();
        }
        #[cfg(feature = "fragments")]
        self.fragments.advance(now);
        #[cfg(feature = "udp")]
        if is_due(self.groups.igmp.reports.next_at()) {
            self.igmp_advance();
        }
        #[cfg(feature = "autoconf")]
        if is_due(self.autoconf.next_at()) {
            self.autoconf_advance();
        }
    }

    /// Sends what waited for a neighbor, or tells that it is not there.
    pub(crate) fn release(&mut self, released: Released) {
        #[cfg(feature = "autoconf")]
        if released.mac.is_none() {
            self.router_is_silent(&released.address);
        }
        for mut waiting in released.packets {
            match released.mac {
                Some(mac) => {
                    waiting.bytes[..6].copy_from_slice(&mac);
                    if !self.outbox.push(waiting) {
                        self.counters.drop(Drop::Full);
                    }
                }
                None => {
                    self.outbox.give_back(waiting.bytes);
                    self.counters.drop(Drop::Unreachable);
                }
            }
        }
        #[cfg(feature = "tcp")]
        for flow in released.flows {
            self.tcp_neighbor(flow.0, flow.1, released.mac.is_some());
        }
    }

    /// The address of ours that would speak to `to`.
    pub fn source_for(&self, to: &IpAddr) -> Option<IpAddr> {
        self.routing.source_for(to)
    }
}
