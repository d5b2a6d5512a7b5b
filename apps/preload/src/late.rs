//! Knocks of a stack, held back to the end of its round.
//!
//! A stack (apps/stackd) takes a batch of frames, and writes to the rings of its programs meanwhile. A knock in between
//! lets the program take the CPU on which both are, in the middle of the batch: then each frame is a batch of its own. So
//! what a process does at connections that it serves ([`Conn::is_served`]) it knocks for *late*: when it waits or polls the
//! next time ([`crate::wait::beat`]), before each sleep of epoll and poll (a stack has no others), when a ring is full, and when the
//! library sleeps or exits for another reason.
//!
//! Only where somebody sleeps is anything held, and asked whose the connection is. Links with knocks that are held are a
//! list, newest first; `Link::late` has the doors, and a link is in the list while it has some. Who gives them out takes the
//! whole list. Whoever has woken meanwhile is not knocked at.
//!
//! Limits: a process that serves connections must not sleep but by the calls that wait for descriptors. It has one thread: a knock that
//! one thread holds is given by the next wait of any.

use crate::link::{self, Link};
use crate::process::PROCESS;
use crate::state::Conn;
use crate::thread::Shield;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Of the process: the newest link of the list, plus one; 0: there is none.
pub struct Late(AtomicU32);

impl Late {
    /// As a process begins.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// A link's part.
#[derive(Default)]
pub struct Held {
    doors: AtomicU64,
    /// The next of the list, as in [`Late`].
    next: AtomicU32,
}

/// Knocks for `conn` at those of the peer's doors that sleep, at once or late. The caller has published and fenced.
#[inline(always)]
pub fn knock(conn: &Conn, doors: u64) {
    if doors != 0 && conn.peer_sleeps(doors) {
        let index = conn.link.load(Ordering::Relaxed);
        match conn.is_served() {
            true => hold(index, doors),
            false => link::at(index).knock(doors),
        }
    }
}

#[cold]
pub(crate) fn hold(index: u32, doors: u64) {
    // No handler may find it neither in the list nor knocked for.
    let _shield = Shield::new();
    let held = &link::at(index).late;
    if held.doors.fetch_or(doors, Ordering::AcqRel) != 0 {
        return;
    }
    let list = &PROCESS.late.0;
    let mut newest = list.load(Ordering::Relaxed);
    loop {
        held.next.store(newest, Ordering::Relaxed);
        match list.compare_exchange_weak(newest, index + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(another) => newest = another,
        }
    }
}

/// Gives out the knocks that are held.
#[inline(always)]
pub fn give() {
    if PROCESS.late.0.load(Ordering::Relaxed) != 0 {
        give_all(Link::knock);
    }
}

#[cold]
fn give_all(knock: impl Fn(&Link, u64)) {
    let mut next = PROCESS.late.0.swap(0, Ordering::AcqRel);
    while let Some(index) = next.checked_sub(1) {
        let link = link::at(index);
        next = link.late.next.load(Ordering::Relaxed);
        // From here on it may be in the list again.
        knock(link, link.late.doors.swap(0, Ordering::AcqRel));
    }
}

/// Whether knocks are held.
#[cfg(test)]
pub fn is_any_held() -> bool {
    PROCESS.late.0.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tables;
    use std::cell::RefCell;

    #[test]
    fn each_knock_that_is_held_is_given_once() {
        let _turn = tables();
        let given = RefCell::new(Vec::new());
        let note = |link: &Link, doors: u64| {
            let index = (0..8).find(|index| core::ptr::eq(link::at(*index), link));
            given.borrow_mut().push((index, doors));
        };
        for _ in 0..2 {
            hold(3, 1);
            hold(5, 8);
            hold(3, 4);
            give_all(note);
            give_all(note);
            assert_eq!(given.take(), [(Some(5), 8), (Some(3), 5)]);
        }
        // Another knock for the same link comes while they are given.
        hold(3, 1);
        give_all(|link, doors| {
            note(link, doors);
            hold(3, 2);
        });
        give_all(note);
        assert_eq!(given.take(), [(Some(3), 1), (Some(3), 2)]);
    }
}
