//! Being put away and taken out again: `xl save`, `xl restore`, a move to another host (PV).
//!
//! The toolstack saves the domain's pages and page tables with every machine frame in them
//! written as a pseudo-physical one, and fills in the frames of the new domain's memory when it
//! restores them. For that it needs
//!
//! - from the start on, the table from pseudo-physical to machine frames (p2m), which it finds
//!   through a list of lists in the shared page, and into which it writes the new frames;
//! - no mapping of a page that is not this domain's memory: the window is emptied before;
//! - `start_info`, named by the hypercall, with XenStore's and the console's pages in pseudo-physical
//!   numbers. It comes back with the new domain's frames and event channels.
//!
//! ```text
//!   drivers let go of grants and channels ─► the window is emptied ─► SCHEDOP_shutdown(suspend)
//!      answer 0: a new domain. Its event channels, grant table, XenStore connection are empty
//!      answer 1: the old one after all (`xl save -c`, or the save failed); all is as it was
//!   ─► shared page, lists, grant table, channels, console, XenStore are set up anew ─► drivers connect
//! ```
//! The domain's clock goes on where it stood, whatever the new host's shows (`time`).

use crate::console::{self, Console};
use crate::hypercall::{self, Refused};
use crate::lifecycle;
use crate::memory::{self, Memory};
use crate::shared::SharedPage;
use crate::{Domain, time};
use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use fordway_xen_abi::sched::{Reason, SHUTDOWN, Shutdown};
use fordway_xen_abi::shared::offset;
use fordway_xen_abi::start::StartInfo;
use fordway_xen_abi::{PAGE_SIZE, hypercall as number};

/// Frames that one page of a list names.
const FRAMES_PER_LIST: usize = PAGE_SIZE / 8;

/// Where the domain is after a suspend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// In a new one: XenStore knows nothing of it.
    Elsewhere,
    /// In the old one.
    Here,
}

/// What a suspend needs to know of the domain (PV).
pub struct Suspension {
    start_info: SharedPage,
    shared_info: SharedPage,
    p2m: usize,
    top: SharedPage,
    lists: Vec<SharedPage>,
}

impl Suspension {
    /// Publishes where the p2m is, which lies at the address `p2m`.
    pub fn new(start_info: SharedPage, shared_info: SharedPage, p2m: usize) -> Option<Suspension> {
        // The heap may ask for memory, too: one after the other.
        let count = memory::with(|memory| list_count(memory.page_count()));
        let mut lists = Vec::with_capacity(count);
        for _ in 0..count {
            lists.push(memory::with(Memory::take_shared)?);
        }
        let suspension = Suspension {
            start_info,
            shared_info,
            p2m,
            top: memory::with(Memory::take_shared)?,
            lists,
        };
        memory::with(|memory| suspension.publish(memory));
        Some(suspension)
    }

    fn publish(&self, memory: &Memory) {
        let frame = |page: usize| memory.machine_frame(page);
        for index in 0..memory.page_count().div_ceil(FRAMES_PER_LIST) {
            let list = self.lists[index / FRAMES_PER_LIST];
            let at = index % FRAMES_PER_LIST * 8;
            list.store_u64(at, frame(self.p2m + index * PAGE_SIZE), Relaxed);
        }
        for (index, list) in self.lists.iter().enumerate() {
            self.top
                .store_u64(index * 8, frame(list.address()), Relaxed);
        }
        let shared = self.shared_info;
        shared.store_u64(offset::MAX_PFN, memory.page_count() as u64, Relaxed);
        let top = frame(self.top.address());
        shared.store_u64(offset::P2M_FRAME_LIST_LIST, top, Relaxed);
    }

    fn number(&self, at: usize) -> u64 {
        self.start_info.load_u64(at, Relaxed)
    }

    /// Changes the frame numbers of the pages that dom0 shares with us.
    fn translate(&self, number: impl Fn(u64) -> u64) {
        for at in [STORE_FRAME, CONSOLE_FRAME] {
            self.start_info
                .store_u64(at, number(self.number(at)), Relaxed);
        }
    }

    fn sleep(&self) -> Result<usize, Refused> {
        let record = memory::with(|memory| memory.machine_frame(self.start_info.address()));
        let mut request = Shutdown {
            reason: Reason::Suspend as u32,
        };
        // SAFETY: Xen reads the request. The toolstack changes `start_info`, which nobody has a
        // reference to, the p2m, which is read by volatile loads, and page tables so that
        // they map what they mapped.
        unsafe {
            hypercall::words::<{ number::SCHED_OP }>(
                SHUTDOWN,
                &raw mut request as usize,
                record as usize,
                0,
            )
        }
    }
}

const SHARED_INFO: usize = offset_of!(StartInfo, shared_info_maddr);
const STORE_FRAME: usize = offset_of!(StartInfo, store_mfn);
const STORE_PORT: usize = offset_of!(StartInfo, store_port);
const CONSOLE_FRAME: usize = offset_of!(StartInfo, console_mfn);
const CONSOLE_PORT: usize = offset_of!(StartInfo, console_port);

/// Lists for a memory of so many pages: each names the p2m's pages, with an entry for each page.
fn list_count(page_count: usize) -> usize {
    page_count
        .div_ceil(FRAMES_PER_LIST)
        .div_ceil(FRAMES_PER_LIST)
}

impl Domain {
    /// Whether [`Domain::suspend`] can be done.
    pub fn can_suspend(&self) -> bool {
        self.suspension.is_some()
    }

    /// Suspends the domain and returns when it runs again. Grants must have been ended as far as
    /// the other sides let go, and channels closed; whoever had them makes new ones
    /// afterwards. Watches are gone if the domain is elsewhere.
    ///
    /// # Panics
    /// As PVH.
    pub fn suspend(&mut self) -> Resumed {
        let suspension = self.suspension.as_ref().expect("a PV domain");
        let before_ns = self.clock.now_ns();
        suspension.translate(memory::machine_to_pseudo);
        let need = |what: &str, result: Result<(), Refused>| {
            if let Err(error) = result {
                lifecycle::unsupported(format_args!("suspend: {what}: {error}"));
            }
        };
        // Nothing may touch the shared page from here on: no clock, no events.
        self.grants.unmap();
        memory::with(|memory| memory.hide(suspension.shared_info));
        let answer = suspension.sleep();
        let resumed = match answer {
            Ok(0) => Resumed::Elsewhere,
            _ => Resumed::Here,
        };
        if resumed == Resumed::Here {
            suspension.translate(|pfn| {
                memory::with(|memory| memory.machine_frame(pfn as usize * PAGE_SIZE))
            });
        }
        let frame = suspension.number(SHARED_INFO) / PAGE_SIZE as u64;
        let shown = memory::with(|memory| memory.show(suspension.shared_info, frame));
        need("the shared page", shown);
        memory::with(|memory| suspension.publish(memory));
        time::go_on(&self.clock, before_ns);
        let port = |at| suspension.start_info.load_u32(at, Relaxed);
        self.console_port = port(CONSOLE_PORT);
        let store_port = port(STORE_PORT);
        let address = memory::machine_to_pseudo(suspension.number(CONSOLE_FRAME)) as usize;
        // SAFETY: a page of the domain, shared with dom0 for good.
        let page = unsafe { SharedPage::new((address * PAGE_SIZE) as *mut u8) };
        self.events.restart(&[self.console_port, store_port]);
        console::install(Console::new(page, self.console_port));
        need("the grant table", self.grants.map_again());
        self.store
            .restart(store_port, resumed == Resumed::Elsewhere);
        resumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_list_is_enough_for_a_gigabyte() {
        assert_eq!(list_count(2048), 1);
        assert_eq!(list_count(262_144), 1);
        assert_eq!(list_count(262_145), 2);
    }
}
