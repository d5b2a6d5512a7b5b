//! Domains: names, numbers, and which address is leased to which network namespace.
//!
//! Domain 0 is the broker's own namespace (`--here`); it has no leased address, so
//! its sockets pair among themselves, and with others only where its connection tracking shows the
//! connection (`translated`). A namespace that nobody registered is in
//! no domain: its sockets, too, pair among themselves only.
//!
//! A guest of Xen knows other guests by the addresses that dom0 says they have (`guests`). Such a guest is a *place*
//! ([`place_of_guest`]), which stands where the cookie of a namespace stands; the broker's own namespace has those of this guest
//! that no domain has.

use crate::Registry;
use crate::guests::Guests;
use fordway_abi::vsock;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The domain of the broker's own namespace.
pub const HOST_DOMAIN: u32 = 0;
/// What a process in an unregistered namespace is told as its domain.
pub const UNKNOWN_DOMAIN: u32 = u32::MAX;
/// Places of guests are no cookies of namespaces, which the kernel counts upwards from 1.
const GUEST_PLACE: u64 = 1 << 63;
/// Longest name of a domain, in bytes (a host name's label, RFC 1035, 2.3.4).
const NAME_BYTES_MAX: usize = 63;

/// Names of every host's own hosts file (Debian's, RFC 6761, RFC 8375).
const RESERVED_NAMES: [&str; 8] = [
    "localhost",
    "localdomain",
    "broadcasthost",
    "ip6-localhost",
    "ip6-loopback",
    "ip6-localnet",
    "ip6-allnodes",
    "ip6-allrouters",
];

/// Where the sockets of another guest of Xen lie, of this domain id: what its broker says of itself.
pub fn place_of_guest(domid: u16) -> u64 {
    GUEST_PLACE | u64::from(domid)
}

/// The guest whose place it is.
pub fn guest_of_place(place: u64) -> Option<u16> {
    (place & GUEST_PLACE != 0).then_some(place as u16)
}

/// The network from which addresses are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: Ipv4Addr,
    prefix: u8,
}

impl Network {
    /// The network in which `address` lies; prefixes of 8 to 30 bits.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Option<Self> {
        if !(8..=30).contains(&prefix) {
            return None;
        }
        let mask = u32::MAX << (32 - prefix);
        let base = Ipv4Addr::from_bits(address.to_bits() & mask);
        Some(Self { base, prefix })
    }

    /// Its prefix length.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether a host can have this address.
    pub fn has_host(self, ip: Ipv4Addr) -> bool {
        self.hosts().contains(&ip.to_bits())
    }

    /// The very first address: the far end of an uplink.
    pub fn uplink_address(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base.to_bits() + 1)
    }

    /// The very last address: all hosts.
    pub fn broadcast_address(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.hosts().end() + 1)
    }

    /// First and last address that a host can have; the one before is the uplink's.
    fn hosts(self) -> std::ops::RangeInclusive<u32> {
        let first = self.base.to_bits();
        let last = first | (u32::MAX >> self.prefix);
        first + 2..=last - 1
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// The IPv6 network beside it. A domain's address there ends in the 32 bits of its IPv4 address, so
/// that each says the other, and one lease is both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network6 {
    base: Ipv6Addr,
    prefix: u8,
}

impl Network6 {
    /// The network in which `address` lies: global (2000::/3, RFC 4291, 2.4) or unique local
    /// (fc00::/7, RFC 4193); prefixes of 16 to 96 bits.
    pub fn new(address: Ipv6Addr, prefix: u8) -> Option<Self> {
        let unicast = address.segments()[0] & 0xe000 == 0x2000 || address.is_unique_local();
        if !unicast || !(16..=96).contains(&prefix) {
            return None;
        }
        let base = Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - prefix)));
        Some(Self { base, prefix })
    }

    /// Its prefix length.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether some address is of both this network and another one.
    pub fn meets(self, base: Ipv6Addr, prefix: u8) -> bool {
        let common = u128::MAX << (128 - self.prefix.min(prefix));
        (self.base.to_bits() ^ base.to_bits()) & common == 0
    }

    /// The address of who has this IPv4 address.
    pub fn address_of(self, ip: Ipv4Addr) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.base.to_bits() | u128::from(ip.to_bits()))
    }
}

impl std::fmt::Display for Network6 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// What ties a domain to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its IPv6 address, if it has one.
    pub ip6: Option<Ipv6Addr>,
    /// Its CID, if it has the address that stands for one ([`vsock`]).
    pub cid: Option<u32>,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
}

/// A registered domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its number, never used twice.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its address; `None` for the host.
    pub ip: Option<Ipv4Addr>,
    /// Its IPv6 address, if it has one.
    pub ip6: Option<Ipv6Addr>,
    /// As in [`Assigned`].
    pub cid: Option<u32>,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
}

impl Domain {
    /// Its addresses, to which its name leads.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let four = self.ip.map(IpAddr::V4);
        four.into_iter().chain(self.ip6.map(IpAddr::V6))
    }

    /// All that nobody else may speak from: its addresses, and that of its CID.
    fn owned(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let vsock = self.cid.map(|cid| vsock::address_of(cid).into());
        self.addresses().chain(vsock)
    }
}

/// Why a domain cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    /// Not the syntax of a host name's label.
    #[error(
        "\"{0}\" is no name of a domain: 1 to 63 lower-case letters, digits and hyphens, at least one letter, not starting or ending with a hyphen"
    )]
    Name(String),
    /// It means something else wherever names are looked up.
    #[error("the name \"{0}\" is reserved; choose another")]
    NameReserved(String),
    /// The name has another domain.
    #[error("the name \"{0}\" is taken")]
    NameTaken(String),
    /// The address has another domain.
    #[error("the address {0} is taken by domain \"{1}\"")]
    AddressTaken(IpAddr, String),
    /// The namespace has another domain.
    #[error("this network namespace is domain \"{0}\" already")]
    NamespaceTaken(String),
    /// Not an address of the network.
    #[error("{0} is not a host address of the network {1}")]
    Address(Ipv4Addr, Network),
    /// None left.
    #[error("no address is left in the network {0}")]
    Full(Network),
    /// Not an address that one namespace can own (loopback, multicast, ...).
    #[error("{0} cannot be the address of a domain")]
    Special(IpAddr),
}

/// All domains.
#[derive(Debug)]
pub(crate) struct Domains {
    network: Network,
    id_next: u32,
    by_id: BTreeMap<u32, Domain>,
    by_netns: BTreeMap<u64, u32>,
    by_ip: BTreeMap<IpAddr, u32>,
    /// This guest of Xen and others.
    pub(crate) guests: Guests,
}

impl Domains {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            id_next: HOST_DOMAIN + 1,
            by_id: BTreeMap::new(),
            by_netns: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            guests: Guests::default(),
        }
    }

    /// The namespace to which an address is assigned.
    pub(crate) fn owner_of(&self, ip: IpAddr) -> Option<u64> {
        match self.by_ip.get(&ip) {
            Some(id) => Some(self.by_id.get(id)?.netns_cookie),
            None => self.guests.place_with(ip, self.host()),
        }
    }

    /// The broker's own namespace.
    pub(crate) fn host(&self) -> Option<u64> {
        Some(self.by_id.get(&HOST_DOMAIN)?.netns_cookie)
    }

    pub(crate) fn of_netns(&self, netns_cookie: u64) -> Option<&Domain> {
        self.by_id.get(self.by_netns.get(&netns_cookie)?)
    }

    fn insert(&mut self, domain: Domain) -> &Domain {
        let id = domain.id;
        self.by_netns.insert(domain.netns_cookie, id);
        self.by_ip.extend(domain.owned().map(|ip| (ip, id)));
        self.by_id.entry(id).or_insert(domain)
    }
}

impl Registry {
    /// The network from which addresses are leased.
    pub fn network(&self) -> Network {
        self.domains.network
    }

    /// Names the broker's own namespace, which may have a CID.
    pub fn set_host(&mut self, name: &str, netns_cookie: u64, cid: Option<u32>) {
        self.domains.insert(Domain {
            id: HOST_DOMAIN,
            name: name.to_owned(),
            ip: None,
            ip6: None,
            cid,
            netns_cookie,
        });
    }

    /// The broker's own namespace.
    pub fn host_netns(&self) -> Option<u64> {
        self.domains.host()
    }

    /// Whether a domain of this name and address could be registered, and under which
    /// address: `ip`, or else the lowest free one; with that which follows from it in `network6`.
    /// To be asked before a namespace is made.
    pub fn check_domain(
        &self,
        name: &str,
        ip: Option<Ipv4Addr>,
        network6: Option<Network6>,
    ) -> Result<Ipv4Addr, DomainError> {
        self.check_name(name)?;
        let network = self.domains.network;
        let both = |ip| {
            let six = network6.map(|network| network.address_of(ip).into());
            [Some(ip.into()), six].into_iter().flatten()
        };
        let free = |ip: &Ipv4Addr| both(*ip).all(|ip| !self.domains.by_ip.contains_key(&ip));
        match ip {
            Some(ip) if !network.has_host(ip) => Err(DomainError::Address(ip, network)),
            Some(ip) => {
                both(ip).try_for_each(|ip| self.check_address(ip))?;
                Ok(ip)
            }
            None => network
                .hosts()
                .map(Ipv4Addr::from_bits)
                .find(free)
                .ok_or(DomainError::Full(network)),
        }
    }

    /// Registers a domain. The caller vouches that the address was given to that
    /// namespace, and to no other that could speak in its name.
    pub fn add_domain(&mut self, name: &str, assigned: Assigned) -> Result<Domain, DomainError> {
        let id = self.domains.id_next;
        let domain = self.insert_domain(id, name, assigned)?;
        self.domains.id_next += 1;
        Ok(domain)
    }

    fn insert_domain(
        &mut self,
        id: u32,
        name: &str,
        assigned: Assigned,
    ) -> Result<Domain, DomainError> {
        let Assigned {
            ip,
            ip6,
            cid,
            netns_cookie,
        } = assigned;
        self.check_attached(name, (ip, ip6), netns_cookie)?;
        cid.map_or(Ok(()), |cid| {
            self.check_address(vsock::address_of(cid).into())
        })?;
        let domain = Domain {
            id,
            name: name.to_owned(),
            ip: Some(ip),
            ip6,
            cid,
            netns_cookie,
        };
        Ok(self.domains.insert(domain).clone())
    }

    /// Whether a namespace could be registered under these addresses, which it has already.
    pub fn check_attached(
        &self,
        name: &str,
        (ip, ip6): (Ipv4Addr, Option<Ipv6Addr>),
        netns_cookie: u64,
    ) -> Result<(), DomainError> {
        self.check_name(name)?;
        self.check_address(ip.into())?;
        ip6.map_or(Ok(()), |ip| self.check_address(ip.into()))?;
        match self.domains.of_netns(netns_cookie) {
            Some(other) => Err(DomainError::NamespaceTaken(other.name.clone())),
            None => Ok(()),
        }
    }

    /// Removes a domain; its channels to other namespaces lose their ground and are downgraded.
    pub fn remove_domain(&mut self, id: u32) -> Vec<crate::Action> {
        let Some(domain) = self.domains.by_id.remove(&id) else {
            return Vec::new();
        };
        self.domains.by_netns.remove(&domain.netns_cookie);
        for ip in domain.owned() {
            self.domains.by_ip.remove(&ip);
        }
        self.downgrade_unassigned()
    }

    /// All domains, in order of their numbers.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.by_id.values()
    }

    /// The domain of this name.
    pub fn domain_by_name(&self, name: &str) -> Option<&Domain> {
        self.domains().find(|domain| domain.name == name)
    }

    /// The domain of this namespace.
    pub fn domain_of_netns(&self, netns_cookie: u64) -> Option<&Domain> {
        self.domains.of_netns(netns_cookie)
    }

    /// What a namespace is called in listings.
    pub fn name_of_netns(&self, netns_cookie: u64) -> String {
        match self.domain_of_netns(netns_cookie) {
            Some(domain) => domain.name.clone(),
            None => match guest_of_place(netns_cookie) {
                Some(domid) => format!("guest-{domid}"),
                None => format!("netns-{netns_cookie}"),
            },
        }
    }

    fn check_name(&self, name: &str) -> Result<(), DomainError> {
        // Resolvers do not tell `Web` from `web` (RFC 4343), so there is only one of them.
        let letter = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        // inet_aton(3), which resolvers ask first, takes `10` and `0x7f` for addresses.
        let digits = name.strip_prefix("0x").unwrap_or(name);
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit())
            && (digits.len() < name.len() || digits.bytes().all(|byte| byte.is_ascii_digit()));
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(letter)
            && !is_number
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !fits {
            return Err(DomainError::Name(name.to_owned()));
        }
        // The form in which unregistered namespaces are listed stays theirs.
        if RESERVED_NAMES.contains(&name) || name.starts_with("netns-") {
            return Err(DomainError::NameReserved(name.to_owned()));
        }
        match self.domain_by_name(name) {
            Some(_) => Err(DomainError::NameTaken(name.to_owned())),
            None => Ok(()),
        }
    }

    fn check_address(&self, ip: IpAddr) -> Result<(), DomainError> {
        let special = ip.is_loopback()
            || ip.is_unspecified()
            || ip.is_multicast()
            || match ip {
                IpAddr::V4(ip) => ip.is_broadcast() || ip.is_link_local(),
                // IPv4 in IPv6 is looked up as IPv4.
                IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
            };
        if special {
            return Err(DomainError::Special(ip));
        }
        let owner = self.domains.by_ip.get(&ip);
        match owner.and_then(|id| self.domains.by_id.get(id)) {
            Some(other) => Err(DomainError::AddressTaken(ip, other.name.clone())),
            None => Ok(()),
        }
    }
}
