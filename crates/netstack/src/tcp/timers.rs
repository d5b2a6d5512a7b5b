//! One deadline for each of many: a heap that knows where everyone stands.
//!
//! A deadline that moves later stays where it is in the heap and is looked at again when its old
//! place comes up, so that the usual case (each packet moves the retransmission timer) touches
//! nothing. The heap holds each id at most once, so its size is bounded by the number of ids.

use alloc::vec::Vec;

use crate::Micros;

const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Place {
    deadline: Micros,
    at: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// (When to look, whom at), the earliest first.
    heap: Vec<(Micros, u32)>,
    places: Vec<Place>,
}

impl Timers {
    /// Sets or moves the deadline; `None` takes it away.
    pub(crate) fn set(&mut self, id: u32, deadline: Option<Micros>) {
        let index = id as usize;
        if index >= self.places.len() {
            let none = Place {
                deadline: Micros::MAX,
                at: ABSENT,
            };
            self.places.resize(index + 1, none);
        }
        let deadline = deadline.unwrap_or(Micros::MAX);
        let place = &mut self.places[index];
        place.deadline = deadline;
        if deadline == Micros::MAX {
            return;
        }
        let at = place.at as usize;
        if place.at == ABSENT {
            place.at = self.heap.len() as u32;
            self.heap.push((deadline, id));
            self.up(self.heap.len() - 1);
        } else if deadline < self.heap[at].0 {
            self.heap[at].0 = deadline;
            self.up(at);
        }
    }

    /// Not after the earliest deadline.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.heap.first().map(|(at, _)| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Micros) -> Option<u32> {
        loop {
            let &(at, id) = self.heap.first().filter(|(at, _)| *at <= now)?;
            let deadline = self.places[id as usize].deadline;
            if deadline > at && deadline != Micros::MAX {
                self.heap[0].0 = deadline;
                self.down(0);
                continue;
            }
            self.places[id as usize] = Place {
                deadline: Micros::MAX,
                at: ABSENT,
            };
            if let Some(last) = self.heap.pop()
                && !self.heap.is_empty()
            {
                self.heap[0] = last;
                self.places[last.1 as usize].at = 0;
                self.down(0);
            }
            if deadline != Micros::MAX {
                return Some(id);
            }
        }
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].0 <= self.heap[at].0 {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            if left < self.heap.len() && self.heap[left].0 < self.heap[least].0 {
                least = left;
            }
            if right < self.heap.len() && self.heap[right].0 < self.heap[least].0 {
                least = right;
            }
            if least == at {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize].at = a as u32;
        self.places[self.heap[b].1 as usize].at = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    #[test]
    fn everyone_comes_up_at_the_last_deadline_set() {
        let mut random = Random(7);
        let mut timers = Timers::default();
        let mut wanted: Vec<Option<Micros>> = alloc::vec![None; 64];
        let mut now = 0;
        for _ in 0..20_000 {
            let id = (random.next() % 64) as usize;
            wanted[id] =
                (!random.next().is_multiple_of(4)).then_some(now + 1 + random.next() % 500);
            timers.set(id as u32, wanted[id]);
            now += random.next() % 20;
            while let Some(due) = timers.pop_due(now) {
                let at = wanted[due as usize].take().expect("it had a deadline");
                assert!(at <= now);
            }
            assert!(
                wanted.iter().flatten().all(|at| *at > now),
                "nobody is left behind"
            );
            let earliest = wanted.iter().flatten().min();
            assert!(
                earliest.is_none() || timers.next_at().is_some_and(|at| at <= *earliest.unwrap())
            );
            assert!(timers.heap.len() <= 64);
        }
    }
}
