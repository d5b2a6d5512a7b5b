//! The nodes of XenStore by which two brokers find each other. Paths without a slash in front begin at the guest's own directory.
//!
//! ```text
//!   dom0      fordway/address, fordway/peers/N      who we are, whom we may meet, by addresses: written by dom0, for us to read
//!   senior    data/fordway/N = NONCE GRANT PORT     region and event channel that are laid out for guest N
//!   junior    data/fordway/N = NONCE GRANT          its own region, in answer to that nonce
//! ```
//! The senior is the guest with the lower domain id. A node of ours is readable by the guest that it is for. A broker that
//! starts or has lost the other one lays out anew, with another nonce, if it is the senior, and waits for another nonce if it is
//! the junior. So nothing of an earlier conversation is taken for the present one.

use alloc::format;
use alloc::string::String;

/// What dom0 says lies below this.
pub const SAID: &str = "fordway";
/// This guest's addresses.
pub const ADDRESS: &str = "fordway/address";
/// A name for each guest that this one may meet: its domain id.
pub const PEERS: &str = "fordway/peers";

/// The addresses of another guest.
pub fn peer(other: u16) -> String {
    format!("{PEERS}/{other}")
}

/// What we say to another guest.
pub fn node_for(other: u16) -> String {
    format!("data/fordway/{other}")
}

/// What another guest says to us.
pub fn node_of(other: u16, own: u16) -> String {
    format!("/local/domain/{other}/data/fordway/{own}")
}

/// Who may do what with [`node_for`] `other`: nobody but its owner, and `other` may read it.
pub fn permissions(other: u16, own: u16) -> [String; 2] {
    [format!("n{own}"), format!("r{other}")]
}

/// Whether a guest may have one more link, where there are only so many. `had` are the links there are, by the guests that
/// have them. As many as there are among the guests that `may_be_met` that have none are left for these.
pub fn may_have_link(
    other: u16,
    may_be_met: impl Iterator<Item = u16>,
    had: &[u16],
    links_max: usize,
) -> bool {
    let has_none = |domain: &u16| !had.contains(domain);
    let left_for_others = match has_none(&other) {
        true => 0,
        false => may_be_met.filter(has_none).count(),
    };
    had.len() + left_for_others < links_max
}

/// What such a node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// The senior's: the grant of its region's directory, and a port.
    Offer {
        nonce: &'a str,
        grant: u32,
        port: u32,
    },
    /// The junior's.
    Answer { nonce: &'a str, grant: u32 },
}

impl<'a> Word<'a> {
    /// Nothing, if it is neither.
    pub fn read(said: &'a str) -> Option<Self> {
        let mut words = said.split(' ');
        let (nonce, grant) = (words.next()?, words.next()?.parse().ok()?);
        match (words.next(), words.next()) {
            (None, _) => Some(Self::Answer { nonce, grant }),
            (Some(port), None) => {
                let port = port.parse().ok()?;
                Some(Self::Offer { nonce, grant, port })
            }
            _ => None,
        }
    }
}

impl core::fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Offer { nonce, grant, port } => write!(f, "{nonce} {grant} {port}"),
            Self::Answer { nonce, grant } => write!(f, "{nonce} {grant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_last_links_are_for_guests_that_have_none() {
        let may =
            |other, met: &[u16], had: &[u16]| may_have_link(other, met.iter().copied(), had, 3);
        // Alone it may have all of them.
        assert!(may(1, &[1], &[1, 1]) && !may(1, &[1], &[1, 1, 1]));
        // One is left for the other guest, which may then have it.
        assert!(may(1, &[1, 2], &[1]) && !may(1, &[1, 2], &[1, 1]));
        assert!(may(2, &[1, 2], &[1, 1]) && !may(2, &[1, 2], &[1, 1, 2]));
        assert!(may(1, &[1, 2], &[1, 2]) && !may(1, &[1, 2], &[1, 2, 1]));
        // More guests than links: each has one at most.
        for other in [1, 2, 3, 4] {
            assert!(may(other, &[1, 2, 3, 4], &[]));
        }
        assert!(!may(1, &[1, 2, 3, 4], &[1]));
        assert!(!may(4, &[1, 2, 3, 4], &[1, 2, 3]));
        // Pages that a guest keeps, of which it says nothing any more, are had by it.
        assert!(!may(2, &[2, 3], &[1, 1, 1]));
    }

    #[test]
    fn what_is_said_is_read() {
        for (text, word) in [
            (
                "00ff 8 31",
                Some(Word::Offer {
                    nonce: "00ff",
                    grant: 8,
                    port: 31,
                }),
            ),
            (
                "00ff 8",
                Some(Word::Answer {
                    nonce: "00ff",
                    grant: 8,
                }),
            ),
            ("", None),
            ("00ff", None),
            ("00ff x", None),
            ("00ff 8 -1", None),
            ("00ff 8 31 4", None),
            ("00ff 8 4294967296", None),
        ] {
            assert_eq!(Word::read(text), word, "{text}");
            if let Some(word) = word {
                assert_eq!(word.to_string(), text);
            }
        }
    }
}
