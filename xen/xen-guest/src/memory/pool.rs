//! Pages for sharing, kept apart from all other memory for ever.
//!
//! A page that was granted once never becomes heap again: whoever it was shared with may be
//! slow to let go, or hostile. It comes back here and is given out, zeroed, for
//! sharing only. So nothing of ours ever lies on a page that another domain can reach.

use crate::shared::SharedPage;
use alloc::vec::Vec;

/// Pages that were shared once and are free.
#[derive(Default)]
pub struct SharedPool {
    spare: Vec<SharedPage>,
}

impl SharedPool {
    /// A page full of zeros, alone on its page.
    pub fn take(&mut self) -> Option<SharedPage> {
        match self.spare.pop() {
            Some(page) => {
                page.clear();
                Some(page)
            }
            None => super::with(|memory| memory.take_shared()),
        }
    }

    /// Gives a page back that is granted to nobody any more.
    pub fn give_back(&mut self, page: SharedPage) {
        self.spare.push(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::page;

    #[test]
    fn a_page_comes_out_zeroed_however_it_went_in() {
        let mut pool = SharedPool::default();
        let page = page();
        page.write(4000, &[1; 96]);
        pool.give_back(page);
        let again = pool.take().unwrap();
        assert_eq!(again.address(), page.address());
        let mut bytes = [7; 96];
        again.read(4000, &mut bytes);
        assert_eq!(bytes, [0; 96]);
    }
}
