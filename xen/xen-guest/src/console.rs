//! The console: two rings of bytes in a page that dom0's console daemon shares.
//!
//! A full ring is waited for at most a little while: a console that nobody reads (or a hostile
//! index) must not stop the domain, so that what does not fit is dropped.

use crate::events;
use crate::local::Local;
use crate::shared::SharedPage;
use core::cell::RefCell;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use fordway_xen_abi::console::{IN_SIZE, OUT_SIZE, offset};

/// The console's page and its event channel.
#[derive(Clone, Copy)]
pub struct Console {
    page: SharedPage,
    port: u32,
}

static CONSOLE: Local<RefCell<Option<Console>>> = Local::new(RefCell::new(None));

/// How often a full ring is looked at again before bytes are dropped.
const PATIENCE: usize = 1000;

impl Console {
    pub fn new(page: SharedPage, port: u32) -> Self {
        Console { page, port }
    }

    /// Puts as much of `bytes` into the ring as fits: how many.
    fn put(self, bytes: &[u8]) -> usize {
        let consumed = self.page.load_u32(offset::OUT_CONSUMER, Ordering::Acquire);
        let produced = self.page.load_u32(offset::OUT_PRODUCER, Ordering::Relaxed);
        let fill = (produced.wrapping_sub(consumed) as usize).min(OUT_SIZE);
        let count = bytes.len().min(OUT_SIZE - fill);
        for (i, &byte) in bytes[..count].iter().enumerate() {
            let at = (produced as usize).wrapping_add(i) % OUT_SIZE;
            self.page.store_u8(offset::OUT + at, byte);
        }
        self.page.store_u32(
            offset::OUT_PRODUCER,
            produced.wrapping_add(count as u32),
            Ordering::Release,
        );
        fence(Ordering::SeqCst);
        count
    }

    /// Takes what was typed: how many bytes of `to` were filled.
    pub fn get(self, to: &mut [u8]) -> usize {
        let consumed = self.page.load_u32(offset::IN_CONSUMER, Ordering::Relaxed);
        let produced = self.page.load_u32(offset::IN_PRODUCER, Ordering::Acquire);
        let fill = (produced.wrapping_sub(consumed) as usize).min(IN_SIZE);
        let count = to.len().min(fill);
        for (i, byte) in to[..count].iter_mut().enumerate() {
            let at = (consumed as usize).wrapping_add(i) % IN_SIZE;
            *byte = self.page.load_u8(offset::IN + at);
        }
        self.page.store_u32(
            offset::IN_CONSUMER,
            consumed.wrapping_add(count as u32),
            Ordering::Release,
        );
        if count > 0 {
            let _ = events::notify(self.port);
        }
        count
    }

    /// Writes `bytes`, waiting a little for the daemon where the ring is full.
    fn write(self, mut bytes: &[u8]) {
        for _ in 0..PATIENCE {
            let count = self.put(bytes);
            bytes = &bytes[count..];
            if count > 0 {
                let _ = events::notify(self.port);
            }
            if bytes.is_empty() {
                return;
            }
            crate::lifecycle::yield_now();
        }
    }
}

/// Makes `console` the one that [`print`] writes to.
pub fn install(console: Console) {
    CONSOLE.get().replace(Some(console));
}

/// Takes what was typed on the console.
pub fn read(to: &mut [u8]) -> usize {
    CONSOLE.get().borrow().map_or(0, |console| console.get(to))
}

/// Writes formatted text to the console, `\n` as a console wants it.
pub fn print(text: fmt::Arguments<'_>) {
    // One message is one line buffer: a notification for each piece would be dear.
    let mut line = Line {
        bytes: [0; 256],
        len: 0,
    };
    let _ = fmt::write(&mut line, text);
    line.flush();
}

struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Line {
    fn push(&mut self, byte: u8) {
        if self.len == self.bytes.len() {
            self.flush();
        }
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn flush(&mut self) {
        if let Some(console) = *CONSOLE.get().borrow() {
            console.write(&self.bytes[..self.len]);
        }
        self.len = 0;
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.push(b'\r');
            }
            self.push(byte);
        }
        Ok(())
    }
}

/// Prints a line on the console.
#[macro_export]
macro_rules! console_line {
    ($($text:tt)*) => {
        $crate::console::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::page;

    #[test]
    fn bytes_wrap_around_and_a_full_ring_takes_no_more() {
        let page = page();
        let console = Console::new(page, 1);
        page.store_u32(offset::OUT_PRODUCER, u32::MAX - 1, Ordering::Relaxed);
        page.store_u32(offset::OUT_CONSUMER, u32::MAX - 1, Ordering::Relaxed);
        assert_eq!(console.put(b"abcd"), 4);
        assert_eq!(page.load_u8(offset::OUT + OUT_SIZE - 2), b'a');
        assert_eq!(page.load_u8(offset::OUT + 1), b'd');
        assert_eq!(console.put(&[7; OUT_SIZE]), OUT_SIZE - 4);
        assert_eq!(console.put(b"x"), 0);
    }

    #[test]
    fn indices_that_make_no_sense_stay_inside_the_ring() {
        let page = page();
        let console = Console::new(page, 1);
        page.store_u32(offset::OUT_CONSUMER, 77_777, Ordering::Relaxed);
        assert_eq!(console.put(b"x"), 0);
    }
}
