//! What a segment carries, as far as it is here, and as far as it lies [behind](crate::Behind) its head. It is cut to what is new and
//! in the window, and then copied, each byte once.

use crate::frame::Rest;
use crate::packet::ETHERNET;

#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    here: &'a [u8],
    /// What comes behind that, and how many bytes.
    rest: Option<(Rest<'a>, usize)>,
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(here: &'a [u8]) -> Self {
        Payload { here, rest: None }
    }
}

impl<'a> Payload<'a> {
    /// What follows `at` in a packet that has all its headers here.
    pub(super) fn of(packet: &'a [u8], at: usize, rest: Option<Rest<'a>>) -> Self {
        let split = rest.map_or(packet.len(), |rest| rest.at - ETHERNET);
        let split = split.min(packet.len());
        let rest = rest.map(|rest| (rest, packet.len() - split));
        let here = &packet[at.min(split)..split];
        Payload { here, rest }
    }

    pub(super) fn len(&self) -> usize {
        self.here.len() + self.rest.map_or(0, |(_, len)| len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes from `start` to `end`, of those that there are.
    pub(super) fn cut(self, start: usize, end: usize) -> Self {
        let split = self.here.len();
        let rest = self.rest.map(|(rest, _)| {
            let from = start.saturating_sub(split);
            let at = rest.at + from;
            (Rest { at, ..rest }, end.saturating_sub(split) - from)
        });
        let here = &self.here[start.min(split)..end.min(split)];
        Payload { here, rest }
    }

    /// Copies all of it to a place of that length.
    pub(super) fn copy_to(self, target: &mut [u8]) {
        let (first, second) = target.split_at_mut(self.here.len());
        first.copy_from_slice(self.here);
        if let Some((rest, 1..)) = self.rest {
            rest.source.copy_to(rest.at, second);
        }
    }
}
