//! What the kernel says of an epoll instance: /proc/self/fdinfo has a line for each registration,
//! `tfd: 5 events: 19 data: c3a1f0057e pos:0 ino:9 sdev:6`.

use super::instances::{all, proc_path};
use crate::sys::{self, sys};
use core::sync::atomic::Ordering;

/// Longer than any line of a registration.
const LINE_BYTES: usize = 128;

/// Descriptor, events and data of each registration.
pub fn each(epoll: i32, mut found: impl FnMut(i32, u32, u64)) -> sys::Result<()> {
    let path = proc_path(b"/proc/self/fdinfo/", epoll);
    let file = sys!(SYS_open, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let mut buffer = [0u8; 1024];
    let mut lines = Lines::default();
    let result = loop {
        match sys!(SYS_read, file, buffer.as_mut_ptr(), buffer.len()) {
            Ok(0) => break Ok(()),
            Ok(count) => {
                for byte in &buffer[..count] {
                    if let Some((fd, events, data)) = lines.take(*byte) {
                        found(fd, events, data);
                    }
                }
            }
            Err(libc::EINTR) => {}
            Err(error) => break Err(error),
        }
    };
    let _ = sys!(SYS_close, file);
    result
}

/// The instances of this process in which a descriptor is registered, each with its events and data.
pub fn registrations(fd: i32, mut found: impl FnMut(i32, u32, u64)) {
    for instance in all() {
        let epoll = instance.fd.load(Ordering::Relaxed);
        // Without /proc the program's next change of it finds the new one.
        let _ = each(epoll, |registered, events, data| {
            if registered == fd {
                found(epoll, events, data);
            }
        });
    }
}

/// Puts lines together from a text that comes byte by byte.
struct Lines {
    line: [u8; LINE_BYTES],
    length: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            line: [0; LINE_BYTES],
            length: 0,
        }
    }
}

impl Lines {
    /// The registration, if this byte ends the line of one.
    fn take(&mut self, byte: u8) -> Option<(i32, u32, u64)> {
        if byte != b'\n' {
            if let Some(place) = self.line.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
            return None;
        }
        let line = core::str::from_utf8(&self.line[..self.length]);
        self.length = 0;
        let mut words = line.ok()?.split_ascii_whitespace();
        let mut behind = |name| (words.next()? == name).then(|| words.next())?;
        let fd = behind("tfd:")?.parse().ok()?;
        let events = u32::from_str_radix(behind("events:")?, 16).ok()?;
        let data = u64::from_str_radix(behind("data:")?, 16).ok()?;
        Some((fd, events, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_read_byte_by_byte() {
        let text = b"pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1060\n\
            tfd:        5 events:       19 data:         c3a1f0057e  pos:0 ino:9 sdev:6\n\
            tfd:        6 events: 80000001 data: ffffffffffffffff  pos:0 ino:9 sdev:6\n";
        let mut lines = Lines::default();
        let found: Vec<_> = text.iter().filter_map(|byte| lines.take(*byte)).collect();
        assert_eq!(
            found,
            [(5, 0x19, 0xc3_a1f0_057e), (6, 0x8000_0001, u64::MAX)]
        );
    }
}
