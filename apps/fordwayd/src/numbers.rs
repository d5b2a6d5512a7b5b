//! Short numbers of channels, for people.
//!
//! The registry's numbers are unlike those of every other broker, so they are long, and a reader of
//! JSON that keeps numbers as 64-bit floats (RFC 8259, section 6) rounds them. A listing shows 1, 2,
//! 3 instead: a channel gets its number with the first listing that shows it, keeps it while listings
//! show it, and no other channel of this broker ever gets it. Another broker counts anew.

use std::collections::{HashMap, HashSet};

/// The numbers of the channels that the last listing showed.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    by_channel: HashMap<u64, u64>,
    last: u64,
}

impl Numbers {
    /// Replaces the registry's numbers, in one whole listing, by short ones.
    pub(crate) fn shorten<'c>(&mut self, channels: impl Iterator<Item = &'c mut u64>) {
        let mut shown = HashSet::new();
        for channel in channels {
            shown.insert(*channel);
            let last = &mut self.last;
            *channel = *self.by_channel.entry(*channel).or_insert_with(|| {
                *last += 1;
                *last
            });
        }
        self.by_channel.retain(|channel, _| shown.contains(channel));
    }

    /// The registry's number of a channel.
    pub(crate) fn channel(&self, number: u64) -> Option<u64> {
        let mut known = self.by_channel.iter();
        known
            .find(|(_, known)| **known == number)
            .map(|(channel, _)| *channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_and_is_never_given_twice() {
        let mut numbers = Numbers::default();
        let mut list = |channels: &[u64]| {
            let mut channels = channels.to_vec();
            numbers.shorten(channels.iter_mut());
            (channels, numbers.channel(2))
        };
        let (a, b, c) = (1 << 62, 7 << 60, 99);
        assert_eq!(list(&[a, b, a]), (vec![1, 2, 1], Some(b)));
        assert_eq!(list(&[c, b]), (vec![3, 2], Some(b)));
        assert_eq!(list(&[a, c]), (vec![4, 3], None));
    }
}
