//! Pages of links, which stay ours until the other guest has let go of them.
//!
//! Pages that are given back while the other guest has them mapped come back slowly, and so do their grants: Linux looks at
//! ten such pages in a second. So the broker keeps the descriptor of each side until the other broker says that its
//! process has nothing mapped of it ([`fordway_guests::talk`], `LetGo`). When that is closed behind our own process's
//! last mapping, all is there again at once.
//!
//! ```text
//!   our process ends, or says that it has let go     ─► the other broker is told, if it has granted something
//!     (the end of its control connection is neither)
//!   the other broker says that its process has done  ─► our descriptor is closed
//! ```
//! A side is forgotten when both have come. Before the first, the broker gives up its own mapping of the head: one page that is
//! mapped has all of the link's pages stay granted. What the other broker says is not proved: one that lies has the kernel wait for
//! it, as if nothing had been kept. Nothing is ever granted a second time, so a lie shows nobody's bytes to anybody.

use fordway_registry::{LinkSide, ProcessId};
use fordway_xen_user::Domain;
use std::collections::BTreeMap;

/// A link, as both brokers name it: the other guest, the junior's process, and the senior's number for that one's side.
pub(super) type Name = (Domain, u64, u64);

/// What our process has of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ours {
    /// Nothing yet.
    Waits,
    /// It was handed both sides' pages.
    Has,
    /// Nothing, and it will not.
    Over,
}

#[derive(Debug)]
struct Side<D> {
    name: Name,
    /// Until the other guest has let go of them.
    pages: Option<D>,
    grants: Vec<u32>,
    /// The other broker knows the grants.
    is_told: bool,
    ours: Ours,
    /// The other broker has told us of its grants, and waits for our word.
    owes: bool,
}

/// By our side of each link; `D` is the descriptor.
#[derive(Debug)]
pub(super) struct Kept<D>(BTreeMap<LinkSide, Side<D>>);

impl<D> Default for Kept<D> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<D> Kept<D> {
    /// How many sides there are with a guest, those among them that are over for us.
    pub(super) fn count_with(&self, other: Domain) -> usize {
        let with = |side: &&Side<D>| side.name.0 == other;
        self.0.values().filter(with).count()
    }

    /// New pages.
    pub(super) fn insert(&mut self, at: LinkSide, name: Name, pages: D, grants: Vec<u32>) {
        let side = Side {
            name,
            pages: Some(pages),
            grants,
            is_told: false,
            ours: Ours::Waits,
            owes: false,
        };
        self.0.insert(at, side);
    }

    /// What the other broker is told now.
    pub(super) fn tell_grants(&mut self, at: LinkSide) -> Vec<u32> {
        let Some(side) = self.0.get_mut(&at) else {
            return Vec::new();
        };
        side.is_told = true;
        side.grants.clone()
    }

    /// The other broker has told us its grants. False: we have no such side, and it is to hear that at once.
    pub(super) fn hear_grants(&mut self, at: LinkSide) -> bool {
        let side = self.0.get_mut(&at);
        side.is_some_and(|side| {
            side.owes = true;
            true
        })
    }

    /// The pages for our process, once.
    pub(super) fn hand_over(&mut self, at: LinkSide) -> Option<&D> {
        let side = self.0.get_mut(&at)?;
        if side.ours != Ours::Waits {
            return None;
        }
        let pages = side.pages.as_ref()?;
        side.ours = Ours::Has;
        Some(pages)
    }

    /// Our process has nothing of it any more. Who is to hear that.
    pub(super) fn let_go(&mut self, at: LinkSide) -> Option<Name> {
        let side = self.0.get_mut(&at)?;
        side.ours = Ours::Over;
        if !side.is_told {
            // Nobody else can have them.
            side.pages = None;
        }
        let name = std::mem::take(&mut side.owes).then_some(side.name);
        self.forget(at);
        name
    }

    /// The link is over. A process that has it says by itself when it has let go.
    pub(super) fn closed(&mut self, at: LinkSide) -> Option<Name> {
        match self.0.get(&at)?.ours {
            Ours::Has => None,
            _ => self.let_go(at),
        }
    }

    /// The same for all that a process has, which is gone.
    pub(super) fn process_gone(&mut self, process: ProcessId) -> Vec<Name> {
        let sides = self.sides_of(process).into_iter();
        sides.filter_map(|at| self.let_go(at)).collect()
    }

    /// The sides of a process, also those that are over.
    pub(super) fn sides_of(&self, process: ProcessId) -> Vec<LinkSide> {
        let sides = self.0.keys().filter(|side| side.process == process);
        sides.copied().collect()
    }

    /// Our process lives, and says nothing any more. Who is to hear of links whose pages it was not handed; and whether it
    /// has others, which are over when it is gone.
    pub(super) fn process_left(&mut self, process: ProcessId) -> (Vec<Name>, bool) {
        let sides = self.sides_of(process).into_iter();
        let names = sides.filter_map(|at| self.closed(at)).collect();
        let mut left = self.0.iter();
        let has_any = left.any(|(at, side)| at.process == process && side.ours == Ours::Has);
        (names, has_any)
    }

    /// The other guest has nothing mapped of it any more.
    pub(super) fn other_let_go(&mut self, name: Name) {
        // One of an earlier conversation may have had the same name.
        let is_it = |side: &Side<D>| side.name == name && side.pages.is_some();
        let Some((&at, side)) = self.0.iter_mut().find(|(_, side)| is_it(side)) else {
            return;
        };
        side.pages = None;
        self.forget(at);
    }

    /// The other broker says nothing any more, and is told nothing. Sides that processes of ours have are still counted.
    pub(super) fn part(&mut self, other: Domain) {
        self.0.retain(|_, side| {
            if side.name.0 == other {
                side.pages = None;
                side.owes = false;
            }
            side.name.0 != other || side.ours == Ours::Has
        });
    }

    fn forget(&mut self, at: LinkSide) {
        let is_over = |side: &Side<D>| side.pages.is_none() && side.ours == Ours::Over;
        if self.0.get(&at).is_some_and(is_over) {
            self.0.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::{Rc, Weak};

    const AT: LinkSide = LinkSide {
        process: ProcessId(3),
        link_id: 40,
    };
    const NAME: Name = (7, 5, 41);

    /// A side of which both have been told, handed over, and whether its descriptor is there.
    fn side() -> (Kept<Rc<()>>, Weak<()>) {
        let (mut kept, pages) = (Kept::default(), Rc::new(()));
        let there = Rc::downgrade(&pages);
        kept.insert(AT, NAME, pages, vec![8, 9]);
        assert_eq!(kept.tell_grants(AT), [8, 9]);
        assert!(kept.hear_grants(AT));
        assert!(kept.hand_over(AT).is_some());
        assert!(kept.hand_over(AT).is_none(), "once");
        (kept, there)
    }

    #[test]
    fn pages_are_kept_until_the_other_guest_has_let_go() {
        let (mut kept, pages) = side();
        // The link is over, and our process is gone behind it.
        assert_eq!(kept.closed(AT), None, "it has it mapped still");
        assert_eq!(kept.process_gone(AT.process), [NAME]);
        assert_eq!(kept.process_gone(AT.process), [], "told once");
        assert!(pages.upgrade().is_some());
        assert_eq!((kept.count_with(7), kept.count_with(8)), (1, 0));
        for (other, process, link) in [(8, 5, 41), (7, 6, 41), (7, 5, 40)] {
            kept.other_let_go((other, process, link));
        }
        assert!(pages.upgrade().is_some(), "another link's, or guest's");
        kept.other_let_go(NAME);
        assert!(pages.upgrade().is_none());
        assert_eq!(kept.count_with(7), 0);
    }

    #[test]
    fn a_side_is_found_until_both_have_let_go() {
        let (mut kept, pages) = side();
        // The other guest says so long before our process ends, and never that a process of its has ended.
        kept.other_let_go(NAME);
        assert!(pages.upgrade().is_none());
        assert_eq!(kept.sides_of(AT.process), [AT], "it has a head mapped");
        assert_eq!(kept.sides_of(ProcessId(4)), []);
        assert_eq!(kept.process_gone(AT.process), [NAME]);
        assert_eq!((kept.sides_of(AT.process), kept.count_with(7)), (vec![], 0));
    }

    #[test]
    fn what_a_process_has_that_says_nothing_any_more_is_its_until_it_is_gone() {
        let (mut kept, _pages) = side();
        let waits = LinkSide { link_id: 50, ..AT };
        kept.insert(waits, (7, 5, 51), Rc::new(()), Vec::new());
        kept.tell_grants(waits);
        assert!(kept.hear_grants(waits));
        assert_eq!(kept.process_left(AT.process), (vec![(7, 5, 51)], true));
        assert_eq!(kept.process_left(AT.process), (vec![], true));
        assert_eq!(kept.process_gone(AT.process), [NAME]);
        assert_eq!(kept.process_left(AT.process), (vec![], false));
    }

    #[test]
    fn who_survives_tells_when_it_has_let_go() {
        let (mut kept, pages) = side();
        kept.other_let_go(NAME);
        assert!(pages.upgrade().is_none(), "our process has its own mapping");
        assert_eq!(kept.count_with(7), 1, "whose grants are in use");
        assert_eq!(kept.closed(AT), None);
        assert_eq!(kept.let_go(AT), Some(NAME));
        assert_eq!((kept.let_go(AT), kept.count_with(7)), (None, 0));
    }

    #[test]
    fn what_nobody_was_told_of_goes_at_once() {
        let (mut kept, pages) = (Kept::default(), Rc::new(()));
        let there = Rc::downgrade(&pages);
        kept.insert(AT, NAME, pages, Vec::new());
        assert_eq!(kept.closed(AT), None);
        assert!(there.upgrade().is_none() && kept.count_with(7) == 0);
        assert!(!kept.hear_grants(AT), "its own are let go of at once");
    }

    #[test]
    fn a_link_that_was_never_handed_over_is_let_go_of() {
        let (mut kept, pages) = (Kept::default(), Rc::new(()));
        let there = Rc::downgrade(&pages);
        kept.insert(AT, NAME, pages, Vec::new());
        kept.tell_grants(AT);
        assert!(kept.hear_grants(AT));
        assert_eq!(kept.closed(AT), Some(NAME));
        assert!(there.upgrade().is_some(), "its peer may have them");
        kept.other_let_go(NAME);
        assert!(there.upgrade().is_none() && kept.count_with(7) == 0);
    }

    #[test]
    fn nothing_is_kept_for_a_guest_that_says_nothing_any_more() {
        let (mut kept, pages) = side();
        let waits = LinkSide { link_id: 50, ..AT };
        kept.insert(waits, (7, 5, 51), Rc::new(()), Vec::new());
        kept.part(8);
        assert!(pages.upgrade().is_some());
        kept.part(7);
        assert!(pages.upgrade().is_none());
        assert_eq!(kept.count_with(7), 1, "our process has it mapped");
        assert_eq!(kept.let_go(AT), None, "nobody hears");
        assert_eq!(kept.count_with(7), 0);
    }
}
