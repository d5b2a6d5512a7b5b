//! Whether neighbours go on beside an attack.
//!
//! How fast they do is no question for a test: a ratio of times moves with whatever else the
//! machine does, and more rounds of it let chance decide. So an attack goes on, over and over,
//! until each neighbour has made so many round trips beside it, and nothing of them may have
//! gone by another way than its ring. One that stands still is found whatever the machine does; what a
//! round trip took is printed. A neighbour whose CPU is taken away for a while may be moved by the library's watchdog, as it should: so there
//! is another window, but an attack that moves neighbours does that in each.

use crate::{Bed, PATIENCE};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::Instant;

/// Round trips of each neighbour beside an attack, and bytes of one in each direction.
const TRIPS_MIN: u64 = 1000;
const TRIP_BYTES: u64 = 64;
/// Windows of which one has to do without a move.
const WINDOWS_MAX: u32 = 3;
/// Acts of an attack between two looks at the neighbours.
const ACTS: usize = 20;

impl Bed {
    /// Attacks until each neighbour has made its round trips beside that, by its ring.
    pub fn goes_on_beside(
        &mut self,
        name: &str,
        mut attack: impl FnMut(&Bed) -> Result<()>,
    ) -> Result<()> {
        for windows_left in (0..WINDOWS_MAX).rev() {
            let begin = Instant::now();
            while self.sent_by_rings()?.len() != self.neighbours()?.len() {
                ensure!(
                    begin.elapsed() < PATIENCE,
                    "{name}: a neighbour has no ring"
                );
                self.trips(1)?;
            }
            let Some(moved) = self.window(name, &mut attack)? else {
                return Ok(());
            };
            ensure!(windows_left != 0, "{name}: {moved}");
            println!("{name}, once more: {moved}");
        }
        Ok(())
    }

    /// One round of that; which neighbour was moved, if one was.
    fn window(
        &mut self,
        name: &str,
        attack: &mut impl FnMut(&Bed) -> Result<()>,
    ) -> Result<Option<String>> {
        let before = self.sent_by_rings()?;
        self.trips(0)?;
        for ping in &mut self.pings {
            ping.ask(TRIPS_MIN)?;
        }
        let begin = Instant::now();
        let mut acts = 0;
        while !self.pings.iter().all(|ping| ping.has_answered()) {
            ensure!(
                begin.elapsed() < PATIENCE,
                "{name}: a neighbour stands still"
            );
            for _ in 0..ACTS {
                attack(self).with_context(|| name.to_owned())?;
            }
            acts += ACTS;
        }
        let after = self.sent_by_rings()?;
        let mut moved = None;
        for ping in &self.pings {
            let (trips, what, pid) = (ping.answer()?, ping.what, ping.pid()?);
            println!(
                "{name}, {what} neighbour beside {acts} acts: {} round trips, p50 {:.1} us, p99 {:.1} us, slowest {:.1} us",
                trips.count, trips.p50_us, trips.p99_us, trips.max_us
            );
            let sent = |of: &BTreeMap<u32, u64>| of.get(&pid).copied();
            let by_ring = sent(&before).zip(sent(&after));
            let by_ring = by_ring.and_then(|(before, after)| after.checked_sub(before));
            let all = trips.count * TRIP_BYTES;
            if by_ring.is_none_or(|sent| sent < all) {
                moved = Some(format!(
                    "the {what} neighbour sent {by_ring:?} of {all} bytes by its ring: {before:?}, then {after:?}; {:?}",
                    self.lab.connections()?
                ));
            }
        }
        Ok(moved)
    }

    /// What each neighbour has sent by the ring that it has now.
    fn sent_by_rings(&self) -> Result<BTreeMap<u32, u64>> {
        let neighbours = self.neighbours()?;
        let ends = self.lab.connections()?;
        let fast = ends.iter().filter(|end| end.path == "fast");
        let sent = fast.filter_map(|end| Some((u32::try_from(end.pid?).ok()?, end.ring_bytes_tx)));
        Ok(sent.filter(|(pid, _)| neighbours.contains(pid)).collect())
    }
}
