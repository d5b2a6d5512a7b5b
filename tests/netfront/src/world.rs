//! Hypervisor and XenStore, as far as the driver sees them, and as strict as can be.

use fordway_netfront::Guest;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

pub const PAGE_BYTES: usize = 4096;
/// The frontend's domain and its device, and the backend's.
pub const FRONT: &str = "device/vif/0";
pub const BACK: &str = "/local/domain/0/backend/vif/5/0";

/// A page's handle. Not Copy: who has given it back has none.
#[derive(Debug)]
pub struct Page(usize);

struct Grant {
    page: usize,
    domain: u16,
    readonly: bool,
    /// How often the backend has it mapped.
    mapped: u32,
}

#[derive(Default)]
struct Channel {
    pending: bool,
    masked: bool,
    /// Events that went to the backend.
    notified: u64,
}

type Bytes = Box<[u8; PAGE_BYTES]>;

#[derive(Default)]
pub struct World {
    pages: RefCell<Vec<Option<Bytes>>>,
    grants: BTreeMap<u32, Grant>,
    /// The pages of these.
    granted: BTreeSet<usize>,
    grants_made: u32,
    channels: BTreeMap<u32, Channel>,
    ports_made: u32,
    pub store: BTreeMap<String, String>,
    watches: BTreeSet<String>,
    fired: bool,
    /// No page is given out beyond so many.
    pub pages_max: Option<usize>,
    /// Whatever the driver reads of ring slots and buffers changes right after it was read.
    pub poison: bool,
    /// Bytes that the driver has read from shared pages.
    pub reads: Cell<u64>,
    /// Watches that fired, and writes of the driver's.
    pub store_writes: u64,
}

impl World {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn pages_in_use(&self) -> usize {
        self.pages.borrow().iter().flatten().count()
    }

    pub fn grants_in_use(&self) -> usize {
        self.grants.len()
    }

    pub fn channels_in_use(&self) -> usize {
        self.channels.len()
    }

    /// An event for the driver.
    pub fn send_event(&mut self, port: u32) {
        if let Some(channel) = self.channels.get_mut(&port) {
            channel.pending = true;
        }
    }

    /// Events that the driver sent so far.
    pub fn notified(&self, port: u32) -> u64 {
        self.channels
            .get(&port)
            .map_or(0, |channel| channel.notified)
    }

    pub fn is_open(&self, port: u32) -> bool {
        self.channels.contains_key(&port)
    }

    /// Whether a sleeping driver would be woken.
    pub fn is_awake(&self) -> bool {
        self.fired
            || self
                .channels
                .values()
                .any(|channel| channel.pending && !channel.masked)
    }

    pub fn is_masked(&self, port: u32) -> bool {
        self.channels
            .get(&port)
            .is_some_and(|channel| channel.masked)
    }

    /// What somebody else writes into XenStore.
    pub fn put(&mut self, path: &str, value: &str) {
        self.store.insert(path.to_owned(), value.to_owned());
        self.fire(path);
    }

    /// Removes a key and all below it.
    pub fn wipe(&mut self, path: &str) {
        let below = format!("{path}/");
        self.store
            .retain(|key, _| key != path && !key.starts_with(&below));
        self.fire(path);
        self.fired |= self.watches.iter().any(|watch| watch.starts_with(&below));
    }

    fn fire(&mut self, path: &str) {
        self.fired |= self
            .watches
            .iter()
            .any(|watch| path == watch || path.starts_with(&format!("{watch}/")));
    }

    pub fn get(&self, path: &str) -> Option<String> {
        self.store.get(path).cloned()
    }

    pub fn number(&self, path: &str) -> Option<u32> {
        self.get(path)?.parse().ok()
    }

    /// The backend maps a grant; it stays in use until it is unmapped.
    pub fn map(&mut self, grant: u32) -> bool {
        match self.grants.get_mut(&grant) {
            Some(grant) => {
                grant.mapped += 1;
                true
            }
            None => false,
        }
    }

    pub fn unmap(&mut self, grant: u32) {
        if let Some(grant) = self.grants.get_mut(&grant) {
            grant.mapped = grant.mapped.saturating_sub(1);
        }
    }

    /// Whether the backend could write to it; `None` if there is no such grant.
    pub fn is_writable(&self, grant: u32) -> Option<bool> {
        self.grants.get(&grant).map(|grant| !grant.readonly)
    }

    /// The domain that a grant is for.
    pub fn granted_to(&self, grant: u32) -> Option<u16> {
        self.grants.get(&grant).map(|grant| grant.domain)
    }

    /// The backend reads through a grant.
    pub fn peek(&self, grant: u32, at: usize, into: &mut [u8]) -> bool {
        let Some(grant) = self.grants.get(&grant) else {
            return false;
        };
        let pages = self.pages.borrow();
        let page = pages[grant.page].as_ref().expect("granted pages are there");
        let Some(from) = page.get(at..at + into.len()) else {
            return false;
        };
        into.copy_from_slice(from);
        true
    }

    /// The backend writes through a grant; refused if that is for reading only.
    pub fn poke(&mut self, grant: u32, at: usize, from: &[u8]) -> bool {
        let Some(grant) = self.grants.get(&grant).filter(|grant| !grant.readonly) else {
            return false;
        };
        let mut pages = self.pages.borrow_mut();
        let page = pages[grant.page].as_mut().expect("granted pages are there");
        let Some(into) = page.get_mut(at..at + from.len()) else {
            return false;
        };
        into.copy_from_slice(from);
        true
    }

    pub fn peek32(&self, grant: u32, at: usize) -> u32 {
        let mut word = [0; 4];
        self.peek(grant, at, &mut word);
        u32::from_le_bytes(word)
    }

    pub fn poke32(&mut self, grant: u32, at: usize, value: u32) {
        self.poke(grant, at, &value.to_le_bytes());
    }

    fn copy(&self, page: &Page, at: usize, into: &mut [u8]) {
        let mut pages = self.pages.borrow_mut();
        let bytes = pages[page.0].as_mut().expect("no page after it was freed");
        let from = &mut bytes[at..at + into.len()];
        into.copy_from_slice(from);
        self.reads.set(self.reads.get() + into.len() as u64);
        // The four indices are read again and again; everything else once.
        if self.poison && at >= 16 {
            from.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

impl Guest for World {
    type Page = Page;

    fn page_new(&mut self) -> Option<Page> {
        if self.pages_max.is_some_and(|max| self.pages_in_use() >= max) {
            return None;
        }
        let mut pages = self.pages.borrow_mut();
        pages.push(Some(Box::new([0; PAGE_BYTES])));
        Some(Page(pages.len() - 1))
    }

    fn page_free(&mut self, page: Page) {
        let granted = self.granted.contains(&page.0);
        assert!(!granted, "a granted page was freed");
        let freed = self.pages.borrow_mut()[page.0].take();
        assert!(freed.is_some(), "a page was freed twice");
    }

    fn load32(&self, page: &Page, at: usize) -> u32 {
        assert_eq!(at % 4, 0);
        let mut word = [0; 4];
        self.copy(page, at, &mut word);
        u32::from_le_bytes(word)
    }

    fn load64(&self, page: &Page, at: usize) -> u64 {
        assert_eq!(at % 8, 0);
        let mut word = [0; 8];
        self.copy(page, at, &mut word);
        u64::from_le_bytes(word)
    }

    fn store32(&mut self, page: &Page, at: usize, value: u32) {
        assert_eq!(at % 4, 0);
        self.write(page, at, &value.to_le_bytes());
    }

    fn store64(&mut self, page: &Page, at: usize, value: u64) {
        assert_eq!(at % 8, 0);
        self.write(page, at, &value.to_le_bytes());
    }

    fn read(&self, page: &Page, at: usize, into: &mut [u8]) {
        self.copy(page, at, into);
    }

    fn write(&mut self, page: &Page, at: usize, from: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        let bytes = pages[page.0].as_mut().expect("no page after it was freed");
        bytes[at..at + from.len()].copy_from_slice(from);
    }

    fn grant(&mut self, domain: u16, page: &Page, readonly: bool) -> Option<u32> {
        let pages = self.pages.borrow();
        let bytes = pages[page.0].as_ref().expect("no page after it was freed");
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "a page was granted with something on it"
        );
        assert!(self.granted.insert(page.0), "a page was granted twice");
        self.grants_made += 1;
        let grant = Grant {
            page: page.0,
            domain,
            readonly,
            mapped: 0,
        };
        self.grants.insert(self.grants_made + 7, grant);
        Some(self.grants_made + 7)
    }

    fn grant_end(&mut self, grant: u32) -> bool {
        let ended = self.grants.get(&grant).expect("a grant is ended once");
        if ended.mapped > 0 {
            return false;
        }
        self.granted.remove(&ended.page);
        self.grants.remove(&grant);
        true
    }

    fn port_new(&mut self, _domain: u16) -> Option<u32> {
        self.ports_made += 1;
        self.channels.insert(self.ports_made, Channel::default());
        Some(self.ports_made)
    }

    fn port_close(&mut self, port: u32) {
        self.channels
            .remove(&port)
            .expect("a channel is closed once");
    }

    fn port_mask(&mut self, port: u32, masked: bool) {
        self.channels
            .get_mut(&port)
            .expect("an open channel")
            .masked = masked;
    }

    fn notify(&mut self, port: u32) {
        self.channels
            .get_mut(&port)
            .expect("an open channel")
            .notified += 1;
    }

    fn take_event(&mut self, port: u32) -> bool {
        let channel = self.channels.get_mut(&port).expect("an open channel");
        std::mem::take(&mut channel.pending)
    }

    fn xs_read(&mut self, path: &str) -> Option<String> {
        self.get(path)
    }

    fn xs_write(&mut self, path: &str, value: &str) -> bool {
        self.store_writes += 1;
        self.put(path, value);
        true
    }

    fn xs_remove(&mut self, path: &str) {
        self.wipe(path);
    }

    fn watch(&mut self, path: &str) {
        self.watches.insert(path.to_owned());
        self.fired = true;
    }

    fn unwatch(&mut self, path: &str) {
        assert!(self.watches.remove(path), "an unknown watch: {path}");
    }

    fn take_watch(&mut self) -> bool {
        std::mem::take(&mut self.fired)
    }
}
