//! What the driver asks of the kernel it runs in.
//!
//! A page that is shared with the backend is a handle here, never a reference: the backend may
//! write it at any time. Every access is a volatile copy of a word or of bytes, and what was
//! copied is what is looked at. An offset outside the page is the driver's own fault; panic.

use alloc::string::String;

pub type GrantRef = u32;
pub type Port = u32;

pub trait Guest {
    /// One whole page of 4096 bytes on which nothing else lies.
    type Page;

    /// A page full of zeros; `None` when there is no memory left.
    fn page_new(&mut self) -> Option<Self::Page>;
    /// The page is no longer granted to anybody and may serve something else.
    fn page_free(&mut self, page: Self::Page);

    /// Volatile words; `at` is a multiple of their size.
    fn load32(&self, page: &Self::Page, at: usize) -> u32;
    fn load64(&self, page: &Self::Page, at: usize) -> u64;
    fn store32(&mut self, page: &Self::Page, at: usize, value: u32);
    fn store64(&mut self, page: &Self::Page, at: usize, value: u64);
    /// Volatile copies, to and from memory of our own.
    fn read(&self, page: &Self::Page, at: usize, into: &mut [u8]);
    fn write(&mut self, page: &Self::Page, at: usize, from: &[u8]);

    /// Lets `domain` map and copy the page; with `readonly` it cannot write it.
    fn grant(&mut self, domain: u16, page: &Self::Page, readonly: bool) -> Option<GrantRef>;
    /// Takes that back, and the reference is free again. False, and nothing has changed, while
    /// the other side still uses it.
    #[must_use]
    fn grant_end(&mut self, grant: GrantRef) -> bool;

    /// An event channel that `domain` may bind to, unmasked.
    fn port_new(&mut self, domain: u16) -> Option<Port>;
    fn port_close(&mut self, port: Port);
    /// No event of a masked channel ends a sleep.
    fn port_mask(&mut self, port: Port, masked: bool);
    fn notify(&mut self, port: Port);
    /// Whether an event has come since the last time; forgets it.
    fn take_event(&mut self, port: Port) -> bool;

    /// XenStore; a path that does not begin with `/` is below our own domain's directory.
    fn xs_read(&mut self, path: &str) -> Option<String>;
    fn xs_write(&mut self, path: &str, value: &str) -> bool;
    fn xs_remove(&mut self, path: &str);
    /// Each watch fires once when it is set, as XenStore's do.
    fn watch(&mut self, path: &str);
    fn unwatch(&mut self, path: &str);
    /// Whether any of these watches has fired since the last time; forgets it.
    fn take_watch(&mut self) -> bool;
}
