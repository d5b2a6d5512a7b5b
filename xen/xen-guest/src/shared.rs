//! Memory that another domain can read and write while we do.
//!
//! There is never a reference to it: a reference would promise the compiler that nobody else
//! writes. [`SharedPage`] offers loads and stores of single words (each done exactly once) and
//! copies of bytes through [`crate::copy`]. What was loaded is ours; loading it again may
//! give something else, so a reader loads once, checks, and works on the copy.

use crate::copy::copy;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fordway_xen_abi::PAGE_SIZE;

/// A page in memory, shared with another domain or with the hypervisor.
#[derive(Clone, Copy, Debug)]
pub struct SharedPage {
    base: *mut u8,
}

impl SharedPage {
    /// # Safety
    /// `base` is page-aligned and a whole page behind it stays mapped readable and writable as
    /// long as this handle or a copy of it is used; no reference to any part of it exists.
    pub const unsafe fn new(base: *mut u8) -> Self {
        SharedPage { base }
    }

    pub fn address(self) -> usize {
        self.base as usize
    }

    fn at<T>(self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(size_of::<T>()) && offset + size_of::<T>() <= PAGE_SIZE);
        // SAFETY: within the page, as the line above made sure.
        unsafe { self.base.add(offset).cast() }
    }

    pub fn load_u8(self, offset: usize) -> u8 {
        // SAFETY: `at` gives a place within the mapped page.
        unsafe { self.at::<u8>(offset).read_volatile() }
    }

    pub fn store_u8(self, offset: usize, value: u8) {
        // SAFETY: `at` gives a place within the mapped page.
        unsafe { self.at::<u8>(offset).write_volatile(value) }
    }

    pub fn load_u32(self, offset: usize, order: Ordering) -> u32 {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }.load(order)
    }

    pub fn store_u32(self, offset: usize, value: u32, order: Ordering) {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }.store(value, order)
    }

    pub fn load_u64(self, offset: usize, order: Ordering) -> u64 {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }.load(order)
    }

    pub fn store_u64(self, offset: usize, value: u64, order: Ordering) {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }.store(value, order)
    }

    pub fn swap_u64(self, offset: usize, value: u64, order: Ordering) -> u64 {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }.swap(value, order)
    }

    /// Sets bits; what was there before.
    pub fn set_bits_u64(self, offset: usize, bits: u64, order: Ordering) -> u64 {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }.fetch_or(bits, order)
    }

    /// Clears bits; what was there before.
    pub fn clear_bits_u64(self, offset: usize, bits: u64, order: Ordering) -> u64 {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }.fetch_and(!bits, order)
    }

    /// Replaces `old` by `new`; false if something else was there.
    pub fn exchange_u32(self, offset: usize, old: u32, new: u32) -> bool {
        // SAFETY: an aligned place within the mapped page; the access is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Copies bytes out of the page.
    pub fn read(self, offset: usize, to: &mut [u8]) {
        assert!(offset <= PAGE_SIZE && to.len() <= PAGE_SIZE - offset);
        // SAFETY: within the page; `to` is ours alone, so the two cannot overlap.
        unsafe { copy(to.as_mut_ptr(), self.base.add(offset), to.len()) }
    }

    /// Copies bytes into the page.
    pub fn write(self, offset: usize, from: &[u8]) {
        assert!(offset <= PAGE_SIZE && from.len() <= PAGE_SIZE - offset);
        // SAFETY: within the page, to which no reference exists, so `from` is elsewhere.
        unsafe { copy(self.base.add(offset), from.as_ptr(), from.len()) }
    }

    /// Overwrites the whole page with zeros.
    pub fn clear(self) {
        for word in 0..PAGE_SIZE / 8 {
            self.store_u64(word * 8, 0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A page of the test's own, leaked, so that it outlives every handle.
    pub fn page() -> SharedPage {
        #[repr(align(4096))]
        struct Page([u8; PAGE_SIZE]);
        let page = std::boxed::Box::leak(std::boxed::Box::new(Page([0; PAGE_SIZE])));
        // SAFETY: leaked, page-aligned, and reachable only through the handle.
        unsafe { SharedPage::new(page.0.as_mut_ptr()) }
    }

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let page = page();
        page.store_u32(8, 0x0403_0201, Ordering::Relaxed);
        let mut bytes = [0; 6];
        page.read(7, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 4, 0]);
        page.write(4090, &[9; 6]);
        assert_eq!(
            page.load_u64(4088, Ordering::Relaxed),
            0x0909_0909_0909_0000
        );
        assert_eq!(page.set_bits_u64(0, 6, Ordering::Relaxed), 0);
        assert_eq!(page.clear_bits_u64(0, 2, Ordering::Relaxed), 6);
        assert_eq!(page.swap_u64(0, 0, Ordering::Relaxed), 4);
    }

    #[test]
    #[should_panic]
    fn a_copy_may_not_leave_the_page() {
        page().write(4095, &[1, 2]);
    }
}
