//! Addresses of IPv6 that the stack makes and looks after: duplicate address detection and
//! stateless autoconfiguration (RFC 4862), router solicitation (RFC 4861 section 6.3.7 with the
//! patience of RFC 7559). What routers answer is read by `advertised`.
//!
//! ```text
//!   begun ──► Tentative ──1 s after the question──► Good ──► deprecated ──► gone
//!                └── somebody else has it ──► Duplicate (stays, so that it is not tried again)
//!
//!   link-local address good ──► solicitation after 4, 8 s ... 1 h ──router answers──► rest
//! ```
//! A tentative address is none of ours for anything but this question: it is no source, and
//! packets for it are for somebody else. The interface identifier is made from the Ethernet
//! address (RFC 4291 appendix A), as Linux does by itself; the fabric knows who has it anyway.
//! When the link-local address is taken, there is nothing to speak to routers with, and no
//! more addresses are made.
//!
//! **Limits.** `Limits::advertised_max` routers, prefixes, and addresses in them. Timers are
//! walked: all lists are that short. Addresses set by `set_addresses` are not asked for (Linux's
//! `nodad`); those given to [`Stack::ipv6_add`] are, as many as the owner wants.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use crate::mld::Mld;
use crate::route::Cidr;
use crate::stack::{Error, Event, Source, Stack};
use crate::{Micros, SECOND_US};

/// RFC 4861 section 10: RETRANS_TIMER, MAX_RTR_SOLICITATION_DELAY.
const ANSWER_US: Micros = SECOND_US;
const DELAY_US_MAX: Micros = SECOND_US;
/// RFC 7559 section 2.
const SOLICIT_US_FIRST: Micros = 4 * SECOND_US;
const SOLICIT_US_MAX: Micros = 3600 * SECOND_US;
pub(crate) const FOREVER: Micros = Micros::MAX;

/// How IPv6 begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Options {
    /// Whether an address is asked for before it is used. Off where the network gives each
    /// host its own (Linux's `nodad`).
    pub detects_duplicates: bool,
    /// Whether routers are asked for addresses and ways, and believed.
    pub asks_routers: bool,
    /// Whether we make addresses in the networks that routers name. Off where the network lets
    /// nothing pass but what comes from addresses that it has given.
    pub makes_addresses: bool,
}

impl Default for Ipv6Options {
    fn default() -> Ipv6Options {
        Ipv6Options {
            detects_duplicates: true,
            asks_routers: true,
            makes_addresses: true,
        }
    }
}

/// Where an address stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// The others are being asked whether one of them has it.
    Tentative,
    Good,
    /// It answers, but begins no conversation any more.
    Deprecated,
    /// Somebody else has it.
    Duplicate,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Status {
    /// What is to be done at `at`: ask, or be content that nobody has answered.
    Tentative {
        is_asked: bool,
        at: Micros,
        /// Sent along, so that our own question is known when it comes back (RFC 7527).
        nonce: [u8; 6],
    },
    Good,
    Duplicate,
}

#[derive(Debug)]
pub(crate) struct Own {
    pub address: Ipv6Addr,
    /// In whose network it is; 128 where prefixes say what is on the link.
    pub prefix_len: u8,
    pub status: Status,
    pub preferred_until: Micros,
    pub valid_until: Micros,
    /// Made from a router's prefix.
    pub is_advertised: bool,
}

impl Own {
    fn cidr(&self) -> Cidr {
        Cidr::new(self.address.into(), self.prefix_len)
    }
}

#[derive(Debug)]
pub(crate) struct Router {
    pub address: Ipv6Addr,
    pub until: Micros,
    /// RFC 4191: 1 is high, 0 medium, -1 low.
    pub preference: i8,
}

#[derive(Clone, Copy, Debug)]
struct Solicit {
    at: Micros,
    wait_us: Micros,
}

#[derive(Debug, Default)]
pub(crate) struct Autoconf {
    options: Option<Ipv6Options>,
    pub own: Vec<Own>,
    /// Networks on the link, and until when.
    pub prefixes: Vec<(Cidr, Micros)>,
    pub routers: Vec<Router>,
    solicit: Option<Solicit>,
    /// What a router says of the link.
    pub hop_limit: Option<u8>,
    pub mtu_bytes: Option<usize>,
    pub mld: Mld,
    next_at: Option<Micros>,
    is_queued: bool,
}

impl Autoconf {
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.next_at
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.is_queued = false;
        Some(Event::Ipv6)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.options.is_some()
    }

    pub(crate) fn asks_routers(&self) -> bool {
        self.options.is_some_and(|options| options.asks_routers)
    }

    pub(crate) fn makes_addresses(&self) -> bool {
        self.options.is_some_and(|options| options.makes_addresses)
    }

    /// How many addresses are made from routers' prefixes.
    pub(crate) fn advertised_len(&self) -> usize {
        self.own.iter().filter(|own| own.is_advertised).count()
    }

    /// The tentative address and the nonce of its question.
    pub(crate) fn tentative(&self, address: &Ipv6Addr) -> Option<[u8; 6]> {
        let own = self.own.iter().find(|own| own.address == *address)?;
        match own.status {
            Status::Tentative { nonce, .. } => Some(nonce),
            Status::Good | Status::Duplicate => None,
        }
    }

    pub(crate) fn tentatives(&self) -> impl Iterator<Item = Ipv6Addr> {
        let tentative = |own: &&Own| matches!(own.status, Status::Tentative { .. });
        self.own.iter().filter(tentative).map(|own| own.address)
    }

    /// A router has answered.
    pub(crate) fn stop_soliciting(&mut self) {
        self.solicit = None;
    }

    fn earliest(&self) -> Option<Micros> {
        let own = self.own.iter().map(|own| {
            let then = match own.status {
                Status::Tentative { at, .. } => at,
                Status::Good if own.preferred_until != 0 => own.preferred_until,
                Status::Good | Status::Duplicate => FOREVER,
            };
            then.min(own.valid_until)
        });
        let prefixes = self.prefixes.iter().map(|(_, until)| *until);
        let routers = self.routers.iter().map(|router| router.until);
        let solicit = self.solicit.iter().map(|solicit| solicit.at);
        let all = own.chain(prefixes).chain(routers).chain(solicit);
        let next = all.chain(self.mld.next_at()).min();
        next.filter(|at| *at != FOREVER)
    }
}

impl Stack {
    /// Begins IPv6 on the link: a link-local address, the groups in which ours are asked for,
    /// and a question to routers. [`Event::Ipv6`] tells of each address.
    pub fn ipv6_start(&mut self, now: Micros, options: Ipv6Options) {
        self.advance(now);
        self.autoconf.options = Some(options);
        let own = Cidr::link_local(&self.link.mac);
        let IpAddr::V6(address) = own.address else {
            return;
        };
        if self.routing.is_own(&own.address) {
            self.begin_soliciting();
        } else {
            self.autoconf_add(address, own.prefix_len, [FOREVER; 2], false);
        }
        self.autoconf_settle();
    }

    /// Takes back what routers have brought, and asks for nothing more.
    pub fn ipv6_stop(&mut self) {
        self.autoconf.options = None;
        self.autoconf_settle();
        for own in core::mem::take(&mut self.autoconf.own) {
            self.routing.addresses.retain(|kept| *kept != own.cidr());
        }
        self.autoconf = Autoconf::default();
        self.autoconf_apply();
    }

    /// Adds an address of ours, after nobody has said that it is theirs.
    pub fn ipv6_add(&mut self, now: Micros, own: Cidr) -> Result<(), Error> {
        self.advance(now);
        let IpAddr::V6(address) = own.address else {
            return Err(Error::AddressNotAvailable);
        };
        if self.routing.is_own(&own.address) || address.is_multicast() {
            return Err(Error::AddressInUse);
        }
        // Known to be there if it is tentative, too.
        if !self.autoconf_add(address, own.prefix_len, [FOREVER; 2], false) {
            return Err(Error::AddressInUse);
        }
        self.autoconf_settle();
        Ok(())
    }

    /// The addresses that are looked after.
    pub fn ipv6_addresses(&self) -> impl Iterator<Item = (Cidr, AddressState)> {
        self.autoconf.own.iter().map(|own| {
            let state = match own.status {
                Status::Tentative { .. } => AddressState::Tentative,
                Status::Duplicate => AddressState::Duplicate,
                Status::Good if own.preferred_until == 0 => AddressState::Deprecated,
                Status::Good => AddressState::Good,
            };
            (own.cidr(), state)
        })
    }

    /// Routers that take what is for no network of ours, the best first.
    pub fn ipv6_routers(&self) -> &[IpAddr] {
        &self.routing.routers
    }

    /// `until`: preferred, valid. False if it is there already.
    pub(crate) fn autoconf_add(
        &mut self,
        address: Ipv6Addr,
        prefix_len: u8,
        until: [Micros; 2],
        is_advertised: bool,
    ) -> bool {
        let [preferred_until, valid_until] = until;
        if self.autoconf.own.iter().any(|own| own.address == address) {
            return false;
        }
        let detects = self.autoconf.options.unwrap_or_default().detects_duplicates;
        // The first question of a host waits a little, as all may have been started at once.
        let delay_us = self.random.next() % DELAY_US_MAX;
        let [.., a, b, c, d, e, f] = self.random.next().to_be_bytes();
        let status = if detects {
            Status::Tentative {
                is_asked: false,
                at: self.now + 1 + delay_us,
                nonce: [a, b, c, d, e, f],
            }
        } else {
            Status::Good
        };
        self.autoconf.own.push(Own {
            address,
            prefix_len,
            status,
            preferred_until,
            valid_until,
            is_advertised,
        });
        if !detects {
            self.autoconf_good(self.autoconf.own.len() - 1);
        }
        true
    }

    /// Nobody else has it.
    fn autoconf_good(&mut self, index: usize) {
        let own = &mut self.autoconf.own[index];
        own.status = Status::Good;
        let (address, cidr) = (own.address, own.cidr());
        self.routing.addresses.push(cidr);
        self.addresses_changed();
        self.autoconf_news();
        if crate::route::is_link_local_v6(&address) {
            // What was reported without a source, routers may not have believed (RFC 3590).
            self.autoconf.mld.repeat(self.now, &mut self.random);
            self.begin_soliciting();
        }
    }

    /// Somebody else has an address that we wanted.
    pub(crate) fn autoconf_duplicate(&mut self, address: &Ipv6Addr) {
        let mut own = self.autoconf.own.iter_mut();
        if let Some(own) = own.find(|own| own.address == *address) {
            own.status = Status::Duplicate;
            self.counters.duplicate_addresses += 1;
            self.autoconf_news();
            self.autoconf_settle();
        }
    }

    fn begin_soliciting(&mut self) {
        if self.autoconf.asks_routers() && self.autoconf.solicit.is_none() {
            let delay_us = self.random.next() % DELAY_US_MAX;
            self.autoconf.solicit = Some(Solicit {
                at: self.now + 1 + delay_us,
                wait_us: 0,
            });
        }
    }

    fn autoconf_news(&mut self) {
        if !self.autoconf.is_queued {
            self.autoconf.is_queued = true;
            self.sources.push_back(Source::Ipv6);
        }
    }

    /// The administrator's list has been set anew: what we have made stands beside it.
    pub(crate) fn autoconf_keep(&mut self) {
        let good = self.autoconf.own.iter();
        let good = good.filter(|own| matches!(own.status, Status::Good));
        for own in good {
            if !self.routing.is_own(&own.address.into()) {
                self.routing.addresses.push(own.cidr());
            }
        }
        self.autoconf_settle();
    }

    pub(crate) fn autoconf_advance(&mut self) {
        let now = self.now;
        for index in 0..self.autoconf.own.len() {
            let own = &mut self.autoconf.own[index];
            let address = own.address;
            match &mut own.status {
                Status::Tentative {
                    is_asked,
                    at,
                    nonce,
                } if *at <= now => {
                    let nonce = *nonce;
                    if *is_asked {
                        self.autoconf_good(index);
                    } else {
                        *is_asked = true;
                        *at = now + ANSWER_US;
                        self.send_duplicate_question(address, nonce);
                    }
                }
                _ => {}
            }
        }
        if let Some(solicit) = self.autoconf.solicit
            && solicit.at <= now
        {
            self.send_router_solicitation();
            let doubled = (2 * solicit.wait_us).clamp(SOLICIT_US_FIRST, SOLICIT_US_MAX);
            // A tenth more or less, so that hosts do not ask in step.
            let jitter = self.random.next() % (doubled / 5);
            self.autoconf.solicit = Some(Solicit {
                at: now + doubled - doubled / 10 + jitter,
                wait_us: doubled,
            });
        }
        self.mld_advance();
        self.autoconf_apply();
        self.autoconf_settle();
    }

    /// What is over goes, and routing follows what is left.
    pub(crate) fn autoconf_apply(&mut self) {
        let now = self.now;
        let count = self.autoconf.own.len();
        let addresses = &mut self.routing.addresses;
        self.autoconf.own.retain(|own| {
            let is_valid = own.valid_until > now;
            if !is_valid {
                addresses.retain(|kept| *kept != own.cidr());
            }
            is_valid
        });
        let mut deprecated = Vec::new();
        for own in &mut self.autoconf.own {
            // Zero says that it is over.
            if own.preferred_until <= now {
                own.preferred_until = 0;
                deprecated.push(own.address.into());
            }
        }
        self.autoconf.prefixes.retain(|(_, until)| *until > now);
        self.autoconf.routers.retain(|router| router.until > now);
        let on_link = self.autoconf.prefixes.iter().map(|(prefix, _)| *prefix);
        let on_link: Vec<Cidr> = on_link.collect();
        let routers = self.autoconf.routers.iter();
        let routers: Vec<IpAddr> = routers.map(|router| router.address.into()).collect();
        let routing = &mut self.routing;
        let are_gone = !routing.routers.is_empty() && routers.is_empty();
        let is_other = routing.on_link != on_link || routing.routers != routers;
        routing.deprecated = deprecated;
        routing.on_link = on_link;
        routing.routers = routers;
        let is_gone = self.autoconf.own.len() != count;
        if is_gone {
            self.autoconf_news();
        }
        if is_gone {
            self.addresses_changed();
        } else if is_other {
            // Ways are looked up anew. No connection has lost its address, and there may be many.
            self.neighbors.epoch = self.neighbors.epoch.wrapping_add(1);
        }
        // All routers are gone: perhaps there are others.
        if are_gone {
            self.begin_soliciting();
        }
    }

    /// Timers and groups after something has changed.
    pub(crate) fn autoconf_settle(&mut self) {
        self.mld_settle();
        self.autoconf.next_at = self.autoconf.earliest();
    }

    /// A neighbor does not answer: if it is a router, the next takes its place (RFC 4861
    /// section 6.3.6).
    pub(crate) fn router_is_silent(&mut self, address: &IpAddr) {
        let routers = &mut self.autoconf.routers;
        let found = routers.iter().position(|router| router.address == *address);
        if let Some(index) = found
            && routers.len() > 1
        {
            let silent = routers.remove(index);
            routers.push(silent);
            self.autoconf_apply();
        }
    }
}
