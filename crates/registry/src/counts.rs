//! How many connections could have used rings, and how many did.
//!
//! ```text
//!   paired ⊇ eligible ⊇ carried
//! ```
//! *Paired*: both ends were offered, so both programs have the library and have made
//! as many calls as an offer takes. *Carried*: bytes went through a ring. *Eligible*:
//! carried, or both ends have made [`ENOUGH_CALLS`] calls that move data since they knew
//! of their channel: programs may make hundreds before the broker's answer comes, and then
//! hardly any. What was used is read from the shared memory of the ends, by the
//! broker, at the latest when an end is reported or dies; each channel counts once, with
//! the broker that paired it.

use crate::{ChannelView, Registry};

/// Within so many calls of each end, a connection with a channel should come to its rings: a
/// receive of each end shows that it reads by the library, and the next send goes by the ring.
/// Twice that, for an end that fell asleep in the kernel before it knew of the channel.
pub const ENOUGH_CALLS: u32 = 4;

/// So far, closed connections included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were given a channel.
    pub paired: u64,
    /// Those of them that should have come to their rings.
    pub eligible: u64,
    /// Those of them of which bytes went through a ring.
    pub carried: u64,
}

/// What an end's memory shows of the use of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes went through a ring.
    pub carried: bool,
    /// Calls of the program that move data, since this end has its channel.
    pub calls: u32,
}

/// What a channel was counted for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// By side of the link: it has made enough calls.
    busy: [bool; 2],
    eligible: bool,
    carried: bool,
}

impl Counted {
    /// Of a channel that another broker has counted.
    pub(crate) const ELSEWHERE: Counted = Counted {
        busy: [true; 2],
        eligible: true,
        carried: true,
    };
}

impl Registry {
    /// How many there were so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The use of a channel, as one of its ends shows it now.
    pub fn note_usage(&mut self, end: &ChannelView, usage: Usage) {
        let own = self.processes.get(&end.own.process);
        let Some((link, side)) = own.and_then(|process| process.links.get(&end.own.link_id)) else {
            return;
        };
        let link = self.links.get(link);
        let channel = link.and_then(|link| link.channels.get(&end.slot));
        let Some(channel) = channel.and_then(|channel| self.channels.get_mut(channel)) else {
            return;
        };
        let counted = &mut channel.counted;
        counted.busy[*side] |= usage.calls >= ENOUGH_CALLS;
        let eligible = usage.carried || counted.busy == [true; 2];
        self.counts.eligible += u64::from(eligible && !counted.eligible);
        self.counts.carried += u64::from(usage.carried && !counted.carried);
        counted.eligible |= eligible;
        counted.carried |= usage.carried;
    }
}
