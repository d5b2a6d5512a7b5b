//! What the network driver asks of the kernel, answered by `xen-guest`.
//!
//! Events are taken from the hypervisor's bitmap once for each turn of the main loop and kept in `fired` until
//! their owner asks. Watches are told apart by their token: the driver's, and those of [`crate::control`].

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use fordway_netfront::{GrantRef, Guest, Port};
use fordway_xen_guest::events;
use fordway_xen_guest::memory::pool::SharedPool;
use fordway_xen_guest::shared::SharedPage;
#[cfg(feature = "guests")]
use fordway_xen_guest::store;
use fordway_xen_guest::store::Transaction;
use fordway_xen_guest::{Domain, console_line};

/// The token of the driver's watches.
const DRIVER_TOKEN: &str = "vif";

pub struct Xen {
    pub domain: Domain,
    pool: SharedPool,
    /// One bit for each event channel that was notified and has not been asked for.
    fired: [u64; 64],
    /// One bit for each word of `fired` that is not 0.
    fired_words: u64,
    driver_watch: bool,
    /// Tokens of the others' watches that fired, each once.
    others: Vec<String>,
}

impl Xen {
    pub fn new(domain: Domain) -> Self {
        Xen {
            domain,
            pool: SharedPool::default(),
            fired: [0; 64],
            fired_words: 0,
            driver_watch: false,
            others: Vec::new(),
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.domain.clock.now_ns()
    }

    /// Begins a turn of the main loop: takes the events that came, and reads XenStore's messages if its
    /// channel did. What came before and nobody asked for is forgotten.
    pub fn take_events(&mut self) {
        let (fired, words) = (&mut self.fired, &mut self.fired_words);
        while *words != 0 {
            fired[words.trailing_zeros() as usize] = 0;
            *words &= *words - 1;
        }
        self.domain.events.take(|port| {
            fired[port as usize / 64] |= 1 << (port % 64);
            *words |= 1 << (port / 64);
        });
        if self.take_event(self.domain.store.port()) {
            self.take_watches();
        }
    }

    fn take_watches(&mut self) {
        while let Some(fired) = self.domain.store.next_event() {
            if fired.token == DRIVER_TOKEN {
                self.driver_watch = true;
            } else if !self.others.contains(&fired.token) {
                self.others.push(fired.token);
            }
        }
    }

    /// A watch, not of the driver's, that fired.
    pub fn next_watch(&mut self) -> Option<String> {
        self.others.pop()
    }

    /// Whether something was typed.
    pub fn console_rang(&mut self) -> bool {
        self.take_event(self.domain.console_port)
    }

    /// Ends a turn: sleeps until an event or the time, unless there is a watch to look at.
    pub fn sleep(&mut self, until_ns: Option<u64>) {
        if !self.driver_watch && self.others.is_empty() {
            self.domain.events.sleep(until_ns);
        }
    }

    /// Suspends the domain; the driver has let go, and connects again afterwards. Events and watches
    /// from before mean nothing any more.
    pub fn suspend(&mut self) {
        let resumed = self.domain.suspend();
        self.fired = [0; 64];
        self.fired_words = 0;
        self.driver_watch = false;
        self.others.clear();
        console_line!("fordway: resumed, {resumed:?}");
    }

    /// Sets a watch of ours and hears of it by [`Xen::next_watch`].
    pub fn watch_as(&mut self, path: &str, token: &str) {
        let _ = self.domain.store.watch(path, token);
        self.take_watches();
    }

    pub fn read(&mut self, path: &str) -> Option<String> {
        let value = self.domain.store.read(Transaction::NONE, path).ok();
        self.take_watches();
        value
    }

    pub fn write(&mut self, path: &str, value: &str) -> bool {
        let done = self
            .domain
            .store
            .write(Transaction::NONE, path, value)
            .is_ok();
        self.take_watches();
        done
    }
}

/// What a broker asks of XenStore besides.
#[cfg(feature = "guests")]
impl Xen {
    /// The value at `path`, if there is one that this domain may read.
    pub fn read_if_there(&mut self, path: &str) -> Result<Option<String>, store::Error> {
        let value = self.domain.store.read(Transaction::NONE, path);
        self.take_watches();
        match value {
            Err(store::Error::Refused(_)) => Ok(None),
            value => value.map(Some),
        }
    }

    /// The names below `path`; none, if it is not there.
    pub fn list_if_there(&mut self, path: &str) -> Result<Vec<String>, store::Error> {
        let names = self.domain.store.list(Transaction::NONE, path);
        self.take_watches();
        match names {
            Err(store::Error::Refused(_)) => Ok(Vec::new()),
            names => names,
        }
    }

    /// Says who may read and write a node of ours.
    pub fn permit(&mut self, path: &str, entries: &[&str]) -> bool {
        let done = self.domain.store.set_permissions(path, entries).is_ok();
        self.take_watches();
        done
    }

    /// Takes a watch of ours away.
    pub fn unwatch_as(&mut self, path: &str, token: &str) {
        let _ = self.domain.store.unwatch(path, token);
        self.take_watches();
    }
}

impl Guest for Xen {
    type Page = SharedPage;

    fn page_new(&mut self) -> Option<SharedPage> {
        self.pool.take()
    }

    fn page_free(&mut self, page: SharedPage) {
        self.pool.give_back(page);
    }

    #[inline]
    fn load32(&self, page: &SharedPage, at: usize) -> u32 {
        page.load_u32(at, Relaxed)
    }

    #[inline]
    fn load64(&self, page: &SharedPage, at: usize) -> u64 {
        page.load_u64(at, Relaxed)
    }

    #[inline]
    fn store32(&mut self, page: &SharedPage, at: usize, value: u32) {
        page.store_u32(at, value, Relaxed);
    }

    #[inline]
    fn store64(&mut self, page: &SharedPage, at: usize, value: u64) {
        page.store_u64(at, value, Relaxed);
    }

    #[inline]
    fn read(&self, page: &SharedPage, at: usize, into: &mut [u8]) {
        page.read(at, into);
    }

    #[inline]
    fn write(&mut self, page: &SharedPage, at: usize, from: &[u8]) {
        page.write(at, from);
    }

    fn grant(&mut self, domain: u16, page: &SharedPage, readonly: bool) -> Option<GrantRef> {
        self.domain.grants.grant(domain, page.address(), readonly)
    }

    fn grant_end(&mut self, grant: GrantRef) -> bool {
        self.domain.grants.end(grant)
    }

    fn port_new(&mut self, domain: u16) -> Option<Port> {
        self.domain.events.offer(domain).ok()
    }

    fn port_close(&mut self, port: Port) {
        let _ = self.domain.events.close(port);
        let _ = self.take_event(port);
    }

    fn port_mask(&mut self, port: Port, masked: bool) {
        self.domain.events.set_masked(port, masked);
    }

    #[inline]
    fn notify(&mut self, port: Port) {
        let _ = events::notify(port);
    }

    #[inline]
    fn take_event(&mut self, port: Port) -> bool {
        let (word, bit) = (port as usize / 64, 1 << (port % 64));
        let has_fired = self.fired[word] & bit != 0;
        self.fired[word] &= !bit;
        has_fired
    }

    fn xs_read(&mut self, path: &str) -> Option<String> {
        Xen::read(self, path)
    }

    fn xs_write(&mut self, path: &str, value: &str) -> bool {
        Xen::write(self, path, value)
    }

    fn xs_remove(&mut self, path: &str) {
        let _ = self.domain.store.remove(Transaction::NONE, path);
        self.take_watches();
    }

    fn watch(&mut self, path: &str) {
        self.watch_as(path, DRIVER_TOKEN);
    }

    fn unwatch(&mut self, path: &str) {
        let _ = self.domain.store.unwatch(path, DRIVER_TOKEN);
        self.take_watches();
    }

    fn take_watch(&mut self) -> bool {
        core::mem::take(&mut self.driver_watch)
    }
}
