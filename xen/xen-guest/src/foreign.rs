//! Pages between this guest and another one (PV): theirs, mapped here for reading, and ours, granted to them.
//!
//! ```text
//!   window   │ range ───────────────────────────│
//!            │ page │ page │ ... nothing ... │ page │      a range has room for the region's whole layout
//!               ▲ theirs: GNTTABOP_map_grant_ref, all or none, until `unmap`
//!               ▲ ours: pages of the pool, shown here as well as at their own addresses
//! ```
//! Ours stay in their range for good, for one peer after the other. They are zeroed in between, which has to wait until
//! the former peer has let go of every page ([`Granted::end`]).
//!
//! As PVH none of this is there: each call says so.

use crate::grants::{GrantRef, Grants};
use crate::hypercall::{self, Refused};
use crate::memory;
use crate::shared::SharedPage;
use alloc::vec::Vec;
use fordway_xen_abi::grant::{MAP, MAP_HOST, MAP_READ_ONLY, MapGrant, UNMAP, UnmapGrant};
use fordway_xen_abi::{PAGE_SIZE, hypercall as number};

/// Grants of one call to the hypervisor.
const BATCH: usize = 32;

/// Addresses of the window, with nothing there, for one region after the other.
#[derive(Debug)]
pub struct Range {
    base: usize,
    bytes: usize,
}

impl Range {
    pub fn new(bytes: usize) -> Range {
        let base = memory::with(|memory| memory.take_range(bytes));
        Range { base, bytes }
    }

    fn holds(&self, offset: usize, pages: usize) -> bool {
        offset.is_multiple_of(PAGE_SIZE)
            && pages
                .checked_mul(PAGE_SIZE)
                .and_then(|bytes| bytes.checked_add(offset))
                .is_some_and(|end| end <= self.bytes)
    }
}

/// Another guest's pages in a range. They may hold anything at any moment.
#[derive(Debug)]
pub struct Foreign {
    range: Range,
    /// Where each page lies, and Xen's number for that.
    mapped: Vec<(usize, u32)>,
}

impl Foreign {
    /// Maps pages that `domain` has granted, at these offsets of the range: all of them or none.
    pub fn map(
        range: Range,
        domain: u16,
        pieces: &[(usize, &[GrantRef])],
    ) -> Result<Foreign, (Range, Refused)> {
        const NO_PLACE: Refused = Refused(22);
        let count = pieces.iter().map(|(_, references)| references.len()).sum();
        let mut foreign = Foreign {
            range,
            mapped: Vec::with_capacity(count),
        };
        for &(offset, references) in pieces {
            let mapped = match foreign.range.holds(offset, references.len()) {
                true => foreign.map_piece(domain, offset, references),
                false => Err(NO_PLACE),
            };
            if let Err(refused) = mapped {
                return Err((foreign.unmap(), refused));
            }
        }
        Ok(foreign)
    }

    fn map_piece(
        &mut self,
        domain: u16,
        offset: usize,
        references: &[GrantRef],
    ) -> Result<(), Refused> {
        let start = self.range.base + offset;
        memory::with(|memory| memory.make_tables(start, references.len()))?;
        let mut address = start;
        for batch in references.chunks(BATCH) {
            let mut requests = [const { EMPTY_MAP }; BATCH];
            for (request, reference) in requests.iter_mut().zip(batch) {
                *request = MapGrant {
                    address: address as u64,
                    flags: MAP_HOST | MAP_READ_ONLY,
                    reference: *reference,
                    domain,
                    ..EMPTY_MAP
                };
                address += PAGE_SIZE;
            }
            let requests = &mut requests[..batch.len()];
            // SAFETY: addresses of our own range at which nothing is mapped; Xen checks the grants.
            unsafe {
                hypercall::words::<{ number::GRANT_TABLE_OP }>(
                    MAP,
                    requests.as_mut_ptr() as usize,
                    requests.len(),
                    0,
                )?;
            }
            let done = requests.iter().filter(|request| request.status == 0);
            self.mapped
                .extend(done.map(|request| (request.address as usize, request.handle)));
            if let Some(failed) = requests.iter().find(|request| request.status != 0) {
                return Err(Refused(-i32::from(failed.status)));
            }
        }
        Ok(())
    }

    /// Where the range begins. What is not mapped of it traps.
    pub fn base(&self) -> *const u8 {
        self.range.base as *const u8
    }

    /// Lets go of the pages; the range is free again. Where Xen refuses, which it has no reason to, what is mapped stays there for
    /// good, and so do the addresses: the next region has others.
    pub fn unmap(self) -> Range {
        match self.let_go() {
            true => self.range,
            false => Range::new(self.range.bytes),
        }
    }

    /// False: something is mapped still.
    fn let_go(&self) -> bool {
        let mut is_free = true;
        for batch in self.mapped.chunks(BATCH) {
            let mut requests = [const { EMPTY_UNMAP }; BATCH];
            for (request, (address, handle)) in requests.iter_mut().zip(batch) {
                request.address = *address as u64;
                request.handle = *handle;
            }
            // SAFETY: what Xen has mapped for us there, and nobody uses any more.
            let done = unsafe {
                hypercall::words::<{ number::GRANT_TABLE_OP }>(
                    UNMAP,
                    requests.as_mut_ptr() as usize,
                    batch.len(),
                    0,
                )
            };
            let requests = &requests[..batch.len()];
            is_free &= done.is_ok() && requests.iter().all(|request| request.status == 0);
        }
        is_free
    }
}

const EMPTY_MAP: MapGrant = MapGrant {
    address: 0,
    flags: 0,
    reference: 0,
    domain: 0,
    status: 0,
    handle: 0,
    bus_address: 0,
};
const EMPTY_UNMAP: UnmapGrant = UnmapGrant {
    address: 0,
    bus_address: 0,
    handle: 0,
    status: 0,
};

/// Pages of ours in a range, which another guest may read.
#[derive(Debug)]
pub struct Granted {
    range: Range,
    /// Where each page lies in the range.
    pages: Vec<(usize, SharedPage)>,
    /// A grant for each, while they are granted. Those that could not be ended yet stay.
    references: Vec<GrantRef>,
}

impl Granted {
    /// These pages at offsets of a range in which nothing is: so many at each. They are granted to nobody. Range and pages
    /// come back, if there is no memory for tables.
    pub fn new(
        range: Range,
        pieces: &[(usize, usize)],
        pages: Vec<SharedPage>,
    ) -> Result<Granted, (Range, Vec<SharedPage>)> {
        let count = pieces.iter().map(|(_, count)| count).sum();
        assert!(pages.len() == count);
        assert!(
            pieces
                .iter()
                .all(|(offset, count)| range.holds(*offset, *count))
        );
        let offsets = pieces
            .iter()
            .flat_map(|(offset, count)| (0..*count).map(move |page| offset + page * PAGE_SIZE));
        let laid: Vec<_> = offsets.zip(pages).collect();
        let is_shown = |(offset, page): &(usize, SharedPage)| {
            let address = range.base + offset;
            // SAFETY: addresses of a range of our own, at which nothing is.
            memory::with(|memory| unsafe { memory.show_also(address, *page) }).is_ok()
        };
        if let Some(failed) = laid.iter().position(|one| !is_shown(one)) {
            for (offset, _) in &laid[..failed] {
                let address = range.base + offset;
                // SAFETY: nobody was told of them there. Xen has no reason to refuse it.
                let hidden = memory::with(|memory| unsafe { memory.unmap(address) });
                debug_assert!(hidden.is_ok());
            }
            return Err((range, laid.into_iter().map(|(_, page)| page).collect()));
        }
        Ok(Granted {
            range,
            pages: laid,
            references: Vec::with_capacity(count),
        })
    }

    /// Zeroes the pages and lets `domain` read them; false, and nothing is granted, if there are not enough grants.
    #[must_use]
    pub fn grant(&mut self, grants: &mut Grants, domain: u16) -> bool {
        if !self.references.is_empty() || grants.free_count() < self.pages.len() {
            return false;
        }
        self.clear();
        for (_, page) in &self.pages {
            match grants.grant(domain, page.address(), true) {
                Some(reference) => self.references.push(reference),
                None => break,
            }
        }
        let is_whole = self.references.len() == self.pages.len();
        if !is_whole {
            // Nobody was told of them.
            let _ = self.end(grants);
        }
        is_whole
    }

    /// Zeroes the pages, for the peer that has them as well.
    pub fn clear(&self) {
        self.pages.iter().for_each(|(_, page)| page.clear());
    }

    /// Whether the peer may read all of them.
    pub fn is_granted(&self) -> bool {
        self.references.len() == self.pages.len()
    }

    /// Ends the grants; false if the peer still has some of the pages mapped: they stay as they are, and this is tried
    /// again later.
    #[must_use]
    pub fn end(&mut self, grants: &mut Grants) -> bool {
        self.references.retain(|reference| !grants.end(*reference));
        self.references.is_empty()
    }

    /// What the peer maps the pages by, in order.
    pub fn references(&self) -> &[GrantRef] {
        &self.references
    }

    /// Where the range begins.
    pub fn base(&self) -> *mut u8 {
        self.range.base as *mut u8
    }

    /// Whether `length` bytes from `start` on lie in pages of one piece of it.
    pub(crate) fn has(&self, start: usize, length: usize) -> bool {
        let Some(offset) = start.checked_sub(self.range.base) else {
            return false;
        };
        let first = offset & !(PAGE_SIZE - 1);
        let Some(end) = offset.checked_add(length) else {
            return false;
        };
        let count = (end - first).div_ceil(PAGE_SIZE);
        // Pages stand in the order of their offsets.
        let found = self.pages.binary_search_by_key(&first, |(at, _)| *at);
        found.is_ok_and(|at| {
            let pages = self.pages.get(at..at + count);
            pages.is_some_and(|pages| {
                let mut pages = pages.iter().enumerate();
                pages.all(|(number, (at, _))| *at == first + number * PAGE_SIZE)
            })
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::shared::tests::page;

    /// Zeroed memory of the test's own, leaked, as a range in which pages lie.
    pub fn range(bytes: usize) -> Range {
        let words = std::vec![[0u64; PAGE_SIZE / 8]; bytes / PAGE_SIZE + 1];
        let base = (words.leak().as_mut_ptr() as usize).next_multiple_of(PAGE_SIZE);
        Range { base, bytes }
    }

    fn granted_at(base: usize, bytes: usize, pieces: &[(usize, usize)]) -> Granted {
        let offsets = pieces
            .iter()
            .flat_map(|(offset, count)| (0..*count).map(move |page| offset + page * PAGE_SIZE));
        let pages: Vec<_> = offsets.map(|offset| (offset, page())).collect();
        let references = (100..).take(pages.len()).collect();
        Granted {
            range: Range { base, bytes },
            pages,
            references,
        }
    }

    /// Pages that lie in a range of the test's own, and are granted.
    pub fn granted(bytes: usize, pieces: &[(usize, usize)]) -> Granted {
        granted_at(range(bytes).base, bytes, pieces)
    }

    /// The same memory as another guest has it.
    pub fn mapped(of: &Granted, offset: usize) -> Foreign {
        let range = Range {
            base: of.range.base + offset,
            bytes: of.range.bytes - offset,
        };
        let mapped = Vec::new();
        Foreign { range, mapped }
    }

    #[test]
    fn a_run_lies_in_pages_that_are_there() {
        const BASE: usize = 1 << 30;
        let own = granted_at(BASE, 1 << 20, &[(0, 2), (0x10000, 3)]);
        for (start, length, lies_there) in [
            (0, 1, true),
            (0, 2 * PAGE_SIZE, true),
            (100, 2 * PAGE_SIZE, false),
            (2 * PAGE_SIZE, 1, false),
            (0x10000 - 1, 2, false),
            (0x10000, 3 * PAGE_SIZE, true),
            (0x12fff, 1, true),
            (0x12fff, 2, false),
            (1 << 20, 1, false),
            (0, usize::MAX, false),
        ] {
            assert_eq!(
                own.has(BASE + start, length),
                lies_there,
                "{start}+{length}"
            );
        }
        assert!(!own.has(BASE - 1, 1));
    }

    #[test]
    fn pieces_stay_in_their_range() {
        let range = Range {
            base: 0,
            bytes: 4 * PAGE_SIZE,
        };
        assert!(range.holds(0, 4) && range.holds(3 * PAGE_SIZE, 1));
        assert!(!range.holds(0, 5) && !range.holds(PAGE_SIZE, 4) && !range.holds(1, 1));
        assert!(!range.holds(PAGE_SIZE, usize::MAX / 2));
    }
}
