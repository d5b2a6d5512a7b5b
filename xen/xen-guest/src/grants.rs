//! The grant table, version 1: which of our pages which other domain may map or copy.
//!
//! An entry is opened by writing the frame and the domain first and the flags last, and closed
//! by taking the flags away in one exchange that fails while the other side has the page
//! mapped. An entry whose other side has not let go yet stays out of the free list, and its owner keeps
//! the page and asks again. So a slow or hostile backend can keep a page, never see a new use of it.

use crate::hypercall::{self, Refused};
use crate::memory;
use crate::shared::SharedPage;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use fordway_xen_abi::grant::{
    ENTRIES_PER_PAGE, ENTRY_SIZE, PERMIT_ACCESS, QUERY_SIZE, QuerySize, READ_ONLY, READING,
    RESERVED, SETUP_TABLE, SetupTable, WRITING,
};
use fordway_xen_abi::memory::SPACE_GRANT_TABLE;
use fordway_xen_abi::{DOMID_SELF, hypercall as number};

/// Pages of the table that are asked for: 4096 grants, enough for several queues.
const FRAMES_WANTED: u32 = 8;

/// Number of a grant, as the other domain is told it.
pub type GrantRef = u32;

/// The entries, and which of them are free.
pub struct Grants {
    frames: Vec<SharedPage>,
    free: Vec<GrantRef>,
}

impl Grants {
    /// Sets the table up with the hypervisor.
    pub fn new(auto_translated: bool) -> Result<Self, Refused> {
        let mut query = QuerySize {
            domain: DOMID_SELF,
            frames: 0,
            frames_max: 0,
            status: 0,
        };
        // SAFETY: one request, of which Xen writes the out fields.
        unsafe { table_op(QUERY_SIZE, &mut query)? };
        let count = query.frames_max.min(FRAMES_WANTED);
        if query.status != 0 || count == 0 {
            return Err(Refused(i32::from(query.status)));
        }
        let mut frames = Vec::with_capacity(count as usize);
        if auto_translated {
            for index in 0..u64::from(count) {
                // SAFETY: a frame of our own grant table.
                frames.push(memory::with(|m| unsafe {
                    m.map_space(SPACE_GRANT_TABLE, index)
                })?);
            }
        } else {
            for &mfn in &table_frames(count)?[..count as usize] {
                // SAFETY: a frame of our own grant table.
                frames.push(memory::with(|m| unsafe { m.map_machine_frame(mfn) })?);
            }
        }
        Ok(Self::over(frames))
    }

    /// Takes the table out of sight (PV), for a suspend.
    pub(crate) fn unmap(&self) {
        memory::with(|memory| self.frames.iter().for_each(|frame| memory.hide(*frame)));
    }

    /// Maps the table that the domain has now where the old one was. In a new domain it is empty:
    /// what was granted is not, and ending it succeeds.
    pub(crate) fn map_again(&self) -> Result<(), Refused> {
        let frames = table_frames(self.frames.len() as u32)?;
        let mut pages = self.frames.iter().zip(frames);
        pages.try_for_each(|(page, mfn)| memory::with(|memory| memory.show(*page, mfn)))
    }

    /// The table in these pages. The first entries are the toolstack's.
    fn over(frames: Vec<SharedPage>) -> Self {
        let count = (frames.len() * ENTRIES_PER_PAGE) as u32;
        let free = (RESERVED..count).rev().collect();
        Grants { frames, free }
    }

    /// How many grants can still be made.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Lets `domain` map or copy the page at `address`, or only read it.
    pub fn grant(&mut self, domain: u16, address: usize, read_only: bool) -> Option<GrantRef> {
        let frame = memory::with(|memory| memory.machine_frame(address));
        self.grant_frame(domain, u32::try_from(frame).ok()?, read_only)
    }

    fn grant_frame(&mut self, domain: u16, frame: u32, read_only: bool) -> Option<GrantRef> {
        let reference = self.free.pop()?;
        let (page, offset) = self.entry(reference);
        page.store_u32(offset + 4, frame, Ordering::Relaxed);
        let flags = PERMIT_ACCESS | if read_only { READ_ONLY } else { 0 };
        // The flags and the domain are one word; the frame is there before them.
        page.store_u32(
            offset,
            u32::from(domain) << 16 | u32::from(flags),
            Ordering::Release,
        );
        Some(reference)
    }

    /// Ends a grant. False, and nothing has changed: the other side still has the page mapped, so
    /// that neither the grant nor the page may be used for anything else; ask again later.
    #[must_use]
    pub fn end(&mut self, reference: GrantRef) -> bool {
        let closed = self.close(reference);
        if closed {
            self.free.push(reference);
        }
        closed
    }

    /// Takes the permission away unless the page is in use.
    fn close(&self, reference: GrantRef) -> bool {
        let (page, offset) = self.entry(reference);
        loop {
            let word = page.load_u32(offset, Ordering::Acquire);
            if word as u16 & (READING | WRITING) != 0 {
                return false;
            }
            if page.exchange_u32(offset, word, 0) {
                return true;
            }
        }
    }

    fn entry(&self, reference: GrantRef) -> (SharedPage, usize) {
        let reference = reference as usize;
        let page = self.frames[reference / ENTRIES_PER_PAGE];
        (page, reference % ENTRIES_PER_PAGE * ENTRY_SIZE)
    }
}

/// Has Xen make the table's first `count` frames, and names them (PV).
fn table_frames(count: u32) -> Result<[u64; FRAMES_WANTED as usize], Refused> {
    let mut list = [0u64; FRAMES_WANTED as usize];
    let mut setup = SetupTable {
        domain: DOMID_SELF,
        frames: count.min(FRAMES_WANTED),
        status: 0,
        frame_list: list.as_mut_ptr(),
    };
    // SAFETY: Xen writes at most as many frame numbers as the list has room for.
    unsafe { table_op(SETUP_TABLE, &mut setup)? };
    match setup.status {
        0 => Ok(list),
        status => Err(Refused(i32::from(status))),
    }
}

/// # Safety
/// `request` is what the operation takes.
unsafe fn table_op<T>(operation: usize, request: &mut T) -> Result<(), Refused> {
    // SAFETY: as the caller promises; one request.
    unsafe {
        hypercall::words::<{ number::GRANT_TABLE_OP }>(
            operation,
            &raw mut *request as usize,
            1,
            0,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::page;

    #[test]
    fn a_grant_is_written_as_xen_reads_it_and_taken_back() {
        let frames = Vec::from([page(), page()]);
        let mut grants = Grants::over(frames.clone());
        let all = grants.free_count();
        assert_eq!(all, 2 * 512 - 8);
        let first = grants.grant_frame(3, 0x1234, false).unwrap();
        assert_eq!(first, RESERVED);
        let entry = frames[0].load_u64(first as usize * 8, Ordering::Relaxed);
        assert_eq!(entry, 0x1234_0003_0001);
        assert!(grants.end(first));
        assert_eq!(frames[0].load_u32(first as usize * 8, Ordering::Relaxed), 0);
        assert_eq!(grants.free_count(), all);
    }

    #[test]
    fn a_grant_is_not_used_again_before_the_other_side_has_let_go() {
        let frames = Vec::from([page()]);
        let mut grants = Grants::over(frames.clone());
        let held = grants.grant_frame(0, 7, true).unwrap();
        let offset = held as usize * 8;
        let mapped = u32::from(PERMIT_ACCESS | READ_ONLY | READING);
        frames[0].store_u32(offset, mapped, Ordering::Relaxed);
        assert!(!grants.end(held));
        while let Some(other) = grants.grant_frame(0, 8, false) {
            assert_ne!(other, held);
        }
        assert!(!grants.end(held));
        frames[0].store_u32(offset, mapped & !u32::from(READING), Ordering::Relaxed);
        assert!(grants.end(held));
        assert_eq!(grants.grant_frame(0, 9, false), Some(held));
    }
}
