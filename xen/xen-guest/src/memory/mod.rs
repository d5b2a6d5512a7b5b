//! The domain's memory: three kinds of addresses, the tables between them, and who owns a page.
//!
//! ```text
//!   virtual address  ==  pseudo-physical address      (identity: what is at page n is page n)
//!          │ page tables (entries hold machine frames; only Xen writes them)
//!          ▼
//!   machine frame mfn  ── m2p, 0xffff800000000000, read-only, of the whole machine ──► pfn
//!          ▲
//!          └──────────── p2m, a table of Xen's domain builder in our memory ────────── pfn
//! ```
//!
//! Xen links the image at 1 MB with `VIRT_BASE` 0, so that the builder's initial mapping is the
//! identity already, up to the 4 MB behind what it put into the domain. Boot extends it to
//! the last page: tables are taken from pages that are mapped, filled, made read-only
//! (Xen refuses a table that somebody could write) and hooked into the level above.
//! Page 0 is unmapped at the end: a null pointer then traps.
//!
//! ```text
//!   0        1 MB                                                        window
//!   │ free   │ image │ ramdisk │ p2m │ start_info, store, console │ boot tables │ stack │ free ... │▒▒▒▒│
//! ```
//!
//! What is not memory of the domain (the shared page, the frames of the grant table) is
//! mapped into a **window** that begins at the next 2 MB behind the memory.
//!
//! As PVH the hardware translates: mfn and pfn are the same number, the first 4 GB
//! are mapped by tables in the image (`start`), and foreign frames are put into the physmap
//! at the window's addresses.

#[cfg(feature = "image")]
mod heap;
pub mod pages;
pub mod pool;
pub mod tables;

use crate::hypercall::{self, Refused};
use crate::local::Local;
use crate::shared::SharedPage;
use core::cell::RefCell;
use fordway_xen_abi::memory::{
    ACCESSED, ADD_TO_PHYSMAP, AddToPhysmap, DIRTY, MACHINE_TO_PHYS, MMU_NORMAL, MmuUpdate, PRESENT,
    USER, UVMF_INVLPG, WRITABLE,
};
use fordway_xen_abi::{DOMID_SELF, PAGE_SHIFT, PAGE_SIZE, hypercall as number};
use pages::Pages;
use tables::{ENTRIES, entry, frame, index, span};

const TABLE_FLAGS: u64 = PRESENT | WRITABLE | USER | ACCESSED | DIRTY;
const PAGE_FLAGS: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY;

/// How pseudo-physical frames become machine frames.
#[derive(Clone, Copy)]
pub enum Translation {
    /// PV: by tables. `p2m` is the builder's list, `root` the page directory's address.
    Tables { p2m: *const u64, root: usize },
    /// PVH: they are the same.
    Same,
}

/// The memory of the domain.
pub struct Memory {
    translation: Translation,
    pages: Pages,
    /// The next free address of the window.
    window: usize,
}

/// The one memory of this domain; `None` until boot has made it.
static MEMORY: Local<RefCell<Option<Memory>>> = Local::new(RefCell::new(None));

/// Runs `f` on the domain's memory.
///
/// # Panics
/// Before [`install`].
pub fn with<R>(f: impl FnOnce(&mut Memory) -> R) -> R {
    f(MEMORY
        .get()
        .borrow_mut()
        .as_mut()
        .expect("memory is set up at boot"))
}

/// Makes `memory` the domain's memory.
pub fn install(memory: Memory) {
    MEMORY.get().replace(Some(memory));
}

/// The window's first address for a memory of `page_count` pages.
pub const fn window_base(page_count: usize) -> usize {
    (page_count * PAGE_SIZE).next_multiple_of(span(2))
}

impl Memory {
    /// Takes over `page_count` pages of which those from `first_free` on, and those from 1 to
    /// `image_first`, are free. PV: maps all of them.
    ///
    /// # Safety
    /// Called once, with what the domain builder handed over: the translation is true, nothing
    /// lives in the free pages, and those below `mapped` bytes are mapped at their own address.
    pub unsafe fn new(
        translation: Translation,
        page_count: usize,
        image_first: usize,
        first_free: usize,
        mapped: usize,
    ) -> Result<Self, Refused> {
        let map_pages = (Pages::words(page_count) * 8).div_ceil(PAGE_SIZE);
        // SAFETY: free and mapped pages, used for nothing else from here on.
        let words = unsafe {
            core::slice::from_raw_parts_mut(
                (first_free * PAGE_SIZE) as *mut u64,
                map_pages * PAGE_SIZE / 8,
            )
        };
        let mut memory = Memory {
            translation,
            pages: Pages::new(words, page_count),
            window: window_base(page_count),
        };
        let usable = page_count.min(mapped / PAGE_SIZE);
        memory
            .pages
            .free(first_free + map_pages, usable - first_free - map_pages);
        memory.pages.free(1, image_first - 1);
        if let Translation::Tables { .. } = translation {
            memory.map_rest(usable)?;
            // SAFETY: nothing lives in page 0, which the allocator never gives out.
            unsafe { memory.unmap(0)? };
        }
        Ok(memory)
    }

    /// The pages that the allocator can still give out.
    pub fn free_pages(&self) -> usize {
        self.pages.free_count()
    }

    /// The pages of the domain.
    pub fn page_count(&self) -> usize {
        self.pages.page_count()
    }

    /// Takes `count` neighbouring pages: their address.
    pub fn take(&mut self, count: usize) -> Option<*mut u8> {
        self.pages
            .take(count)
            .map(|page| (page * PAGE_SIZE) as *mut u8)
    }

    /// A page for sharing: zeroed, alone on its page, never given back.
    pub fn take_shared(&mut self) -> Option<SharedPage> {
        // SAFETY: a fresh page of ours, mapped for good, to which nobody has a reference.
        let page = unsafe { SharedPage::new(self.take(1)?) };
        page.clear();
        Some(page)
    }

    /// Gives pages back that [`Memory::take`] gave.
    ///
    /// # Safety
    /// Nothing refers to them any more, neither here nor in another domain.
    pub unsafe fn give_back(&mut self, address: *mut u8, count: usize) {
        self.pages.free(address as usize / PAGE_SIZE, count);
    }

    /// The frame number that a hypercall or another domain understands for one of our pages.
    pub fn machine_frame(&self, address: usize) -> u64 {
        let pfn = address / PAGE_SIZE;
        match self.translation {
            Translation::Same => pfn as u64,
            Translation::Tables { p2m, .. } => {
                assert!(pfn < self.pages.page_count());
                // SAFETY: the builder's list has an entry for each page of the domain. It
                // changes only while the domain is suspended.
                unsafe { p2m.add(pfn).read_volatile() }
            }
        }
    }

    /// Maps a frame that is no memory of ours (PV), for good.
    ///
    /// # Safety
    /// The frame is one that Xen gave this domain to map and to write.
    pub unsafe fn map_machine_frame(&mut self, mfn: u64) -> Result<SharedPage, Refused> {
        let address = self.window_slot();
        // SAFETY: a new address of the window, behind all memory.
        unsafe {
            self.set_mapping(address, entry(mfn, PAGE_FLAGS))?;
            Ok(SharedPage::new(address as *mut u8))
        }
    }

    /// Puts a frame of Xen's into the physmap (PVH) and gives its address in the window.
    ///
    /// # Safety
    /// `space` and `index` name a frame that this domain may write.
    pub unsafe fn map_space(&mut self, space: u32, index: u64) -> Result<SharedPage, Refused> {
        let address = self.window_slot();
        let mut request = AddToPhysmap {
            domain: DOMID_SELF,
            size: 0,
            space,
            index,
            frame: (address / PAGE_SIZE) as u64,
        };
        // SAFETY: the window's pages hold no memory, so that nothing is replaced.
        unsafe {
            hypercall::command::<{ number::MEMORY_OP }, _>(ADD_TO_PHYSMAP, &mut request)?;
            Ok(SharedPage::new(address as *mut u8))
        }
    }

    /// Addresses of the window at which nothing is mapped, in tables of their own. They are never given back: who has no
    /// use for them keeps them for the next one.
    pub fn take_range(&mut self, bytes: usize) -> usize {
        let base = self.window.next_multiple_of(span(2));
        self.window = (base + bytes).next_multiple_of(span(2));
        base
    }

    /// Makes the tables for the pages from `address` on (PV), which Xen wants before it maps a grant there.
    #[cfg(any(feature = "rings", test))]
    pub(crate) fn make_tables(&mut self, address: usize, pages: usize) -> Result<(), Refused> {
        let first = address / span(2);
        let end = (address + pages * PAGE_SIZE).div_ceil(span(2));
        (first..end).try_for_each(|table| self.tables_to(table * span(2)))
    }

    /// Shows a page of ours at an address of the window, too (PV).
    ///
    /// # Safety
    /// The address is of a range that the caller has; what was there is used by nobody any more.
    #[cfg(any(feature = "rings", test))]
    pub(crate) unsafe fn show_also(
        &mut self,
        address: usize,
        page: SharedPage,
    ) -> Result<(), Refused> {
        let frame = self.machine_frame(page.address());
        // SAFETY: as the caller promises; the page is ours.
        unsafe { self.set_mapping(address, entry(frame, PAGE_FLAGS)) }
    }

    /// Takes the mapping of one of our pages away (PV), so that touching it traps.
    ///
    /// # Safety
    /// Nobody uses the page.
    pub unsafe fn unmap(&mut self, address: usize) -> Result<(), Refused> {
        // SAFETY: as the caller promises; nothing is mapped instead.
        unsafe { self.set_mapping(address, 0) }
    }

    /// Takes what [`Memory::map_machine_frame`] mapped out of sight (PV).
    ///
    /// # Panics
    /// If Xen refuses, which it has no reason to.
    pub(crate) fn hide(&mut self, page: SharedPage) {
        // SAFETY: nothing is mapped instead; whoever touches the page traps.
        let hidden = unsafe { self.set_mapping(page.address(), 0) };
        hidden.expect("a mapping can always be taken away");
    }

    /// Maps a frame where one was hidden (PV).
    pub(crate) fn show(&mut self, page: SharedPage, mfn: u64) -> Result<(), Refused> {
        // SAFETY: an address of the window, and the caller has the frame from Xen.
        unsafe { self.set_mapping(page.address(), entry(mfn, PAGE_FLAGS)) }
    }

    fn window_slot(&mut self) -> usize {
        let address = self.window;
        self.window += PAGE_SIZE;
        address
    }

    /// Maps every page that the builder's initial mapping left out, and frees it.
    fn map_rest(&mut self, mapped: usize) -> Result<(), Refused> {
        let mut pfn = mapped;
        let total = self.pages.page_count();
        while pfn < total {
            let end = (pfn + 1).next_multiple_of(ENTRIES).min(total);
            let address = pfn * PAGE_SIZE;
            if pfn.is_multiple_of(ENTRIES) && self.slot(2, address).is_none() {
                let table = self.new_table()?;
                for page in pfn..end {
                    let page_entry = entry(self.machine_frame(page * PAGE_SIZE), PAGE_FLAGS);
                    // SAFETY: within the new table, which is a page of ours.
                    unsafe { table.add(page % ENTRIES).write(page_entry) };
                }
                // SAFETY: the table maps our own pages only.
                unsafe { self.hook(2, address, table)? };
            } else {
                for page in pfn..end {
                    let page_entry = entry(self.machine_frame(page * PAGE_SIZE), PAGE_FLAGS);
                    // SAFETY: a page of ours at its own address.
                    unsafe { self.set_mapping(page * PAGE_SIZE, page_entry)? };
                }
            }
            self.pages.free(pfn, end - pfn);
            pfn = end;
        }
        Ok(())
    }

    /// Writes the entry of the lowest level for `address`, with the tables above it.
    ///
    /// # Safety
    /// What was mapped there is not used any more, and the entry is one that Xen grants.
    unsafe fn set_mapping(&mut self, address: usize, page_entry: u64) -> Result<(), Refused> {
        self.tables_to(address)?;
        // SAFETY: the tables exist; Xen checks the entry.
        unsafe {
            hypercall::words::<{ number::UPDATE_VA_MAPPING }>(
                address,
                page_entry as usize,
                UVMF_INVLPG,
                0,
            )?;
        }
        Ok(())
    }

    /// Makes the tables for `address` that are missing.
    fn tables_to(&mut self, address: usize) -> Result<(), Refused> {
        const NOT_THERE: Refused = Refused(38);
        if matches!(self.translation, Translation::Same) {
            return Err(NOT_THERE);
        }
        for level in [4, 3, 2] {
            if self.slot(level, address).is_none() {
                let table = self.new_table()?;
                // SAFETY: an empty table.
                unsafe { self.hook(level, address, table)? };
            }
        }
        Ok(())
    }

    /// The address of a table of `level` on the way to `address`, if it is there.
    fn table(&self, level: u32, address: usize) -> Option<*const u64> {
        let Translation::Tables { root, .. } = self.translation else {
            return None;
        };
        let mut table = root as *const u64;
        for above in (level + 1..=4).rev() {
            // SAFETY: a table of ours, readable at its own address, and an index below 512.
            let above_entry = unsafe { table.add(index(above, address)).read_volatile() };
            if above_entry & PRESENT == 0 {
                return None;
            }
            table = (machine_to_pseudo(frame(above_entry)) as usize * PAGE_SIZE) as *const u64;
        }
        Some(table)
    }

    /// The entry for `address` in its table of `level`, if that table and the entry are there.
    fn slot(&self, level: u32, address: usize) -> Option<u64> {
        let table = self.table(level, address)?;
        // SAFETY: as in `table`.
        let found = unsafe { table.add(index(level, address)).read_volatile() };
        (found & PRESENT != 0).then_some(found)
    }

    /// An empty page for a table, still writable.
    fn new_table(&mut self) -> Result<*mut u64, Refused> {
        const NO_MEMORY: Refused = Refused(12);
        let table: *mut u64 = self.take(1).ok_or(NO_MEMORY)?.cast();
        // SAFETY: a fresh page of ours.
        unsafe { table.write_bytes(0, ENTRIES) };
        Ok(table)
    }

    /// Makes `table` read-only and lets the entry of `level` for `address` point at it.
    ///
    /// # Safety
    /// The table holds only entries that are ours to map, and nobody writes it any more.
    unsafe fn hook(&mut self, level: u32, address: usize, table: *mut u64) -> Result<(), Refused> {
        let table_frame = self.machine_frame(table as usize);
        // SAFETY: only Xen changes the table from here on.
        unsafe {
            hypercall::words::<{ number::UPDATE_VA_MAPPING }>(
                table as usize,
                entry(table_frame, PAGE_FLAGS & !WRITABLE) as usize,
                UVMF_INVLPG,
                0,
            )?;
        }
        let parent = self
            .table(level, address)
            .expect("the level above was made first");
        let entry_maddr = self.machine_frame(parent as usize) * PAGE_SIZE as u64
            + index(level, address) as u64 * 8;
        let mut update = MmuUpdate {
            addr: entry_maddr | MMU_NORMAL,
            value: entry(table_frame, TABLE_FLAGS),
        };
        // SAFETY: one update of an entry that was empty.
        unsafe {
            hypercall::words::<{ number::MMU_UPDATE }>(
                &raw mut update as usize,
                1,
                0,
                DOMID_SELF as usize,
            )?;
        }
        Ok(())
    }
}

/// The pseudo-physical number of a machine frame of ours (PV).
pub fn machine_to_pseudo(mfn: u64) -> u64 {
    // SAFETY: Xen maps this table read-only for every frame of the machine, and
    // the caller's frame comes from Xen.
    unsafe {
        (MACHINE_TO_PHYS as *const u64)
            .add(mfn as usize)
            .read_volatile()
    }
}

/// How far the identity mapping reaches that the domain builder made: whole bytes.
///
/// # Safety
/// `root` is the address of the page directory in use, and its tables are mapped at their
/// pseudo-physical addresses (PV).
pub unsafe fn builder_mapping(root: usize, page_count: usize) -> usize {
    let mut page = 1;
    'pages: while page < page_count {
        let mut table = root as *const u64;
        for level in [4, 3, 2, 1] {
            // SAFETY: a table of the builder's and an index below 512.
            let found = unsafe { table.add(index(level, page << PAGE_SHIFT)).read_volatile() };
            if found & PRESENT == 0 {
                break 'pages;
            }
            if level > 1 {
                table = (machine_to_pseudo(frame(found)) as usize * PAGE_SIZE) as *const u64;
            }
        }
        page += 1;
    }
    page * PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_begins_behind_memory_in_tables_of_its_own() {
        assert_eq!(window_base(2048), 8 << 20);
        assert_eq!(window_base(2049), 10 << 20);
    }
}
