//! When groups are reported: the schedule that IGMP (RFC 3376) and multicast listener discovery
//! (RFC 3810) have in common. A switch that looks for reports sends a group to those ports only
//! that have one; so does a router with networks.
//!
//! A report goes out when a group is joined, and once more within a second; when it is left; and
//! in answer to a query, after a random while that the query bounds. An answer always names all
//! groups. Nothing is kept but our own groups.

use alloc::vec::Vec;

use crate::hash::Random;
use crate::{Micros, SECOND_US};

/// Unsolicited Report Interval.
const AGAIN_US_MAX: Micros = SECOND_US;
/// Between two answers, whoever asks: each names all groups, and whoever asks need not be a router.
const ANSWER_US_MIN: Micros = SECOND_US / 10;

#[derive(Debug)]
pub(crate) struct Reports<G> {
    /// Those that others are to know of.
    pub groups: Vec<G>,
    /// Groups whose report is sent again.
    again: Vec<G>,
    again_at: Option<Micros>,
    answer_at: Option<Micros>,
    answered_at: Option<Micros>,
}

/// What is to be reported now.
#[derive(Debug)]
pub(crate) struct Change<G> {
    pub joined: Vec<G>,
    pub left: Vec<G>,
}

#[derive(Debug)]
pub(crate) struct Due<G> {
    /// As joined.
    pub again: Vec<G>,
    /// All, if a query is to be answered.
    pub all: Vec<G>,
}

impl<G> Default for Reports<G> {
    fn default() -> Reports<G> {
        Reports {
            groups: Vec::new(),
            again: Vec::new(),
            again_at: None,
            answer_at: None,
            answered_at: None,
        }
    }
}

impl<G: Copy + PartialEq> Reports<G> {
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.again_at.into_iter().chain(self.answer_at).min()
    }

    /// Joins and leaves what is wanted; `None`: it is as it was.
    pub(crate) fn settle(
        &mut self,
        wanted: Vec<G>,
        now: Micros,
        random: &mut Random,
    ) -> Option<Change<G>> {
        if wanted == self.groups {
            return None;
        }
        let before = core::mem::replace(&mut self.groups, wanted);
        let now_there = &self.groups;
        let is_new = |group: &&G| !before.contains(group);
        let joined: Vec<G> = now_there.iter().filter(is_new).copied().collect();
        let is_gone = |group: &&G| !now_there.contains(group);
        let left: Vec<G> = before.iter().filter(is_gone).copied().collect();
        self.again.retain(|group| now_there.contains(group));
        self.again.extend(&joined);
        if !joined.is_empty() {
            self.repeat_soon(now, random);
        }
        Some(Change { joined, left })
    }

    /// All are reported once more, as after a join.
    #[cfg(feature = "autoconf")]
    pub(crate) fn repeat(&mut self, now: Micros, random: &mut Random) {
        self.again.clone_from(&self.groups);
        if !self.again.is_empty() {
            self.repeat_soon(now, random);
        }
    }

    /// A join does not put off the repetition of others.
    fn repeat_soon(&mut self, now: Micros, random: &mut Random) {
        self.again_at
            .get_or_insert(now + 1 + random.next() % AGAIN_US_MAX);
    }

    /// A router asks which of these groups there are (`None`: all), and waits so long.
    pub(crate) fn asked(
        &mut self,
        group: Option<G>,
        wait_us: Micros,
        now: Micros,
        random: &mut Random,
    ) {
        if self.groups.is_empty() || group.is_some_and(|group| !self.groups.contains(&group)) {
            return;
        }
        let soonest = self
            .answered_at
            .map_or(now, |at| now.max(at + ANSWER_US_MIN));
        let at = soonest + 1 + random.next() % wait_us.max(1);
        self.answer_at = Some(self.answer_at.map_or(at, |kept| kept.min(at)));
    }

    pub(crate) fn due(&mut self, now: Micros) -> Due<G> {
        let is_due = |at: &mut Option<Micros>| at.take_if(|at| *at <= now).is_some();
        let again = match is_due(&mut self.again_at) {
            true => core::mem::take(&mut self.again),
            false => Vec::new(),
        };
        let mut all = Vec::new();
        if is_due(&mut self.answer_at) {
            self.answered_at = Some(now);
            all.clone_from(&self.groups);
        }
        Due { again, all }
    }
}

/// How long a query waits, of a code whose large values are a mantissa of `bits` bits and an
/// exponent of three (RFC 3376 section 4.1.1, RFC 3810 section 5.1.3).
pub(crate) fn wait_of(code: u64, bits: u32) -> u64 {
    match code >> (bits + 3) {
        0 => code,
        _ => (code & ((1 << bits) - 1) | 1 << bits) << ((code >> bits & 7) + 3),
    }
}
