//! Of an image without `guests`: nobody is met.

use crate::xen::Xen;
use alloc::rc::Rc;

pub struct Guests;

impl Guests {
    pub fn new(_: &mut Xen, _: u64) -> Rc<Guests> {
        Rc::new(Guests)
    }

    pub fn listen(&self, _: &mut Xen) {}

    pub fn note(&self, _: &str) {}

    pub fn are_met(&self) -> bool {
        false
    }

    pub fn turn(&self, _: &mut Xen, _: u64) {}

    pub fn may_sleep(&self, _: &mut Xen, _: u64) -> bool {
        true
    }

    pub fn next_ns(&self) -> Option<u64> {
        None
    }
}
