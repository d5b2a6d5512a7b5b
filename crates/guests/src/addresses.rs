//! Addresses of guests of Xen, as dom0 says them.
//!
//! ```text
//!   10.0.0.9,10.0.0.16/28      the guest's own, then what it routes to its namespaces
//!   ────┬─── ──────┬─────
//!       │          └─ of a domain of the guest's, where one has it; else of the broker's own namespace
//!       └──────────── of the broker's own namespace
//! ```
//! An address is one guest's; dom0 sees to that (`fordway guests`).

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};
use core::net::{IpAddr, Ipv4Addr};
use core::str::FromStr;

/// Of one guest, its own address among them.
const ADDRESSES_MAX: usize = 64;
/// Shortest prefix, as of any network that is routed.
const PREFIX_MIN: u8 = 8;

/// Addresses that differ in their last bits alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    base: Ipv4Addr,
    length: u8,
}

impl Prefix {
    /// Nothing, if some host could not have one of them, or if the address has bits behind the prefix.
    fn new(base: Ipv4Addr, length: u8) -> Option<Self> {
        if !(PREFIX_MIN..=32).contains(&length) {
            return None;
        }
        let behind = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        let last = Ipv4Addr::from_bits(base.to_bits() | behind);
        let special = base.is_unspecified()
            || base.is_loopback()
            || base.is_multicast()
            || last.is_broadcast();
        (base.to_bits() & behind == 0 && !special).then_some(Self { base, length })
    }

    fn has(self, ip: Ipv4Addr) -> bool {
        (self.base.to_bits() ^ ip.to_bits()).leading_zeros() >= self.length.into()
    }
}

impl FromStr for Prefix {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (base, length) = text.split_once('/').unwrap_or((text, "32"));
        let base = base.parse().map_err(drop)?;
        Self::new(base, length.parse().map_err(drop)?).ok_or(())
    }
}

impl Display for Prefix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.length {
            32 => write!(f, "{}", self.base),
            length => write!(f, "{}/{length}", self.base),
        }
    }
}

/// All addresses of a guest: its own, and others behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAddresses {
    own: Prefix,
    further: Vec<Prefix>,
}

/// What are no addresses of a guest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuestAddressesError {
    /// Not one address, to begin with.
    #[error("\"{0}\" is no IPv4 address of a guest")]
    Own(String),
    /// Nothing that can be behind it.
    #[error("\"{0}\" is no IPv4 address or network")]
    Further(String),
    /// More than XenStore and brokers are to be asked to keep.
    #[error("a guest has {ADDRESSES_MAX} addresses and networks at most")]
    Many,
}

impl GuestAddresses {
    fn all(&self) -> impl Iterator<Item = &Prefix> {
        core::iter::once(&self.own).chain(&self.further)
    }

    /// Whether an address is among them.
    pub fn has(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V4(ip) if self.all().any(|one| one.has(ip)))
    }

    /// The first of them that another guest has as well, as text.
    pub fn shared_with(&self, other: &GuestAddresses) -> Option<String> {
        let shared = |one: &Prefix| {
            // Of two networks one lies within the other, or they have nothing in common.
            let mut theirs = other.all();
            let met = theirs.find(|other| one.has(other.base) || other.has(one.base))?;
            Some(if met.length > one.length { met } else { one }.to_string())
        };
        self.all().find_map(shared)
    }
}

impl From<Ipv4Addr> for GuestAddresses {
    fn from(base: Ipv4Addr) -> Self {
        let own = Prefix { base, length: 32 };
        let further = Vec::new();
        Self { own, further }
    }
}

impl FromStr for GuestAddresses {
    type Err = GuestAddressesError;

    fn from_str(text: &str) -> Result<Self, GuestAddressesError> {
        use GuestAddressesError as Error;
        let (own, further) = match text.split_once(',') {
            Some((own, further)) => (own, Some(further)),
            None => (text, None),
        };
        let base: Option<Ipv4Addr> = own.parse().ok();
        let own = base
            .and_then(|base| Prefix::new(base, 32))
            .ok_or_else(|| Error::Own(own.to_owned()))?;
        let further = further.into_iter().flat_map(|further| further.split(','));
        let further = further.map(|one| one.parse().map_err(|()| Error::Further(one.to_owned())));
        let further = further.collect::<Result<Vec<_>, _>>()?;
        match further.len() < ADDRESSES_MAX {
            true => Ok(Self { own, further }),
            false => Err(Error::Many),
        }
    }
}

impl Display for GuestAddresses {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.own)?;
        self.further.iter().try_for_each(|one| write!(f, ",{one}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn addresses(text: &str) -> GuestAddresses {
        text.parse().expect("they are addresses")
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "10.0.0.9",
            "10.0.0.9,10.0.0.10",
            "10.0.0.9,10.0.0.16/28,172.16.0.0/12,10.0.0.33",
        ] {
            assert_eq!(addresses(text).to_string(), text);
        }
        assert_eq!(
            addresses("10.0.0.9,10.0.1.1/32"),
            addresses("10.0.0.9,10.0.1.1")
        );
        let many = |count| format!("10.0.0.9{}", ",10.1.0.0/16".repeat(count));
        assert!(many(63).parse::<GuestAddresses>().is_ok());
        let refused = many(64).parse::<GuestAddresses>();
        assert_eq!(refused, Err(GuestAddressesError::Many));
    }

    #[test]
    fn what_no_guest_can_have_is_refused() {
        let own = |text: &str| Err(GuestAddressesError::Own(text.to_owned()));
        for wrong in [
            "",
            "10.0.0.0/28",
            "10.0.0",
            "::1",
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ] {
            assert_eq!(wrong.parse::<GuestAddresses>(), own(wrong));
            assert_eq!(
                format!("{wrong},10.0.0.9").parse::<GuestAddresses>(),
                own(wrong)
            );
        }
        for wrong in [
            "",
            "10.0.0.17/28",
            "10.0.0.0/7",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/-8",
            "127.0.0.0/8",
            "0.0.0.0/8",
            "224.0.0.0/24",
            "255.255.255.0/24",
            "255.255.255.255",
            "fd00::/64",
            " 10.0.0.1",
        ] {
            let refused = format!("10.0.0.9,{wrong}").parse::<GuestAddresses>();
            assert_eq!(refused, Err(GuestAddressesError::Further(wrong.to_owned())));
        }
    }

    #[test]
    fn an_address_is_in_the_networks_that_have_it() {
        let all = addresses("10.0.0.9,10.0.0.16/28,10.0.0.40");
        let has = |text: &str| all.has(text.parse().expect("an address"));
        for ip in ["10.0.0.9", "10.0.0.16", "10.0.0.31", "10.0.0.40"] {
            assert!(has(ip), "{ip}");
        }
        for ip in [
            "10.0.0.8",
            "10.0.0.15",
            "10.0.0.32",
            "10.0.0.41",
            "::ffff:10.0.0.9",
        ] {
            assert!(!has(ip), "{ip}");
        }
    }

    #[test]
    fn what_two_guests_have_is_found() {
        let shared = |a: &str, b: &str| {
            let (a, b) = (addresses(a), addresses(b));
            assert_eq!(a.shared_with(&b), b.shared_with(&a));
            a.shared_with(&b)
        };
        assert_eq!(shared("10.0.0.8", "10.0.0.9"), None);
        assert_eq!(
            shared("10.0.0.8,10.0.0.16/28", "10.0.0.9,10.0.0.32/28"),
            None
        );
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(shared("10.0.0.8", "10.0.0.8"), found("10.0.0.8"));
        assert_eq!(
            shared("10.0.0.8", "10.0.0.9,10.0.0.0/28"),
            found("10.0.0.8")
        );
        let networks = ["10.0.0.8,10.1.0.0/16", "10.0.0.9,10.1.2.0/24"];
        assert_eq!(shared(networks[0], networks[1]), found("10.1.2.0/24"));
    }
}
