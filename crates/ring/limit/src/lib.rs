//! The bare ring between two threads: what a channel could give if sockets, waiting and
//! processes cost nothing. The bench prints it beside the fast path.
//!
//! Two regions of plain memory, one channel each way, no doorbells: who waits, spins.
//! A bounded number of empty looks without the peer having moved ends the run, so that a
//! thread that was taken off its CPU is waited for, and a dead one is not.

use fordway_abi::shm::{ENDPOINTS_OFFSET, Endpoint, REGION_BYTES};
use fordway_ring::copy::{Copier, Kernel};
use fordway_ring::{Consumer, Entered, Producer};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::{Duration, Instant};

/// A page; regions begin at one.
const PAGE_BYTES: usize = 4096;
/// Looks at an empty ring between two looks at the clock.
const LOOKS: u32 = 10_000;
/// A peer that is silent for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// As the shim chooses.
const NON_TEMPORAL_BYTES: usize = 16 * 1024;
/// As the shim publishes long writes.
const PIECE_BYTES: usize = 64 * 1024;

/// Zeroed memory of a region's size, which takes no room before it is touched.
struct Region {
    start: *mut u8,
    layout: Layout,
}

impl Region {
    fn new() -> Self {
        // A larger alignment would have the allocator touch every page.
        let layout = Layout::from_size_align(REGION_BYTES + PAGE_BYTES, 16).expect("it is valid");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null(), "no memory for a region");
        Self { start, layout }
    }

    fn base(&self) -> *mut u8 {
        self.start.wrapping_add(self.start.align_offset(PAGE_BYTES))
    }

    fn endpoint(&self) -> *mut Endpoint {
        self.base().wrapping_add(ENDPOINTS_OFFSET).cast()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// One thread's end.
struct End {
    producer: Producer,
    consumer: Consumer,
    copier: Copier,
    /// Whether a ring that is often full is made larger.
    grows: bool,
    silent_since: Instant,
}

// SAFETY: each end is used by one thread; the regions outlive both (scoped threads).
unsafe impl Send for End {}

impl End {
    fn new(own: &Region, peer: &Region) -> Self {
        // SAFETY: both regions outlive the ends, and nothing else uses these endpoints.
        let (producer, consumer) = unsafe {
            (
                Producer::new(own.endpoint(), own.base(), peer.endpoint()),
                Consumer::new(own.endpoint(), peer.endpoint(), peer.base()),
            )
        };
        consumer.get_ready();
        Self {
            producer,
            consumer,
            copier: Copier::detect(),
            grows: true,
            silent_since: Instant::now(),
        }
    }

    /// `ring_bytes`: its capacity from the start on; `None`: small, and it grows as in the shim.
    fn enter(&mut self, ring_bytes: Option<usize>) {
        assert_eq!(self.producer.enter(|| Some(0)), Entered::Yes);
        let Some(ring_bytes) = ring_bytes else { return };
        assert!(ring_bytes.is_power_of_two(), "a ring's capacity");
        self.grows = false;
        if ring_bytes > self.producer.capacity_bytes() {
            assert!(self.producer.grow_to(ring_bytes.ilog2()), "no ring memory");
        }
        assert_eq!(self.producer.capacity_bytes(), ring_bytes);
    }

    /// Waits until `look` gives something.
    fn spin<T>(&mut self, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let mut looks = 0u32;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            core::hint::spin_loop();
            looks += 1;
            if looks == 1 {
                self.silent_since = Instant::now();
            }
            if looks.is_multiple_of(LOOKS) {
                assert!(
                    self.silent_since.elapsed() < SILENCE_MAX,
                    "the peer is silent"
                );
                std::thread::yield_now();
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = bytes.len().min(PIECE_BYTES);
            let room = self.spin(|end| {
                let mut room = end.producer.room_bytes(wanted).expect("the peer is honest");
                if room < wanted && end.grows && end.producer.grow(wanted) {
                    room = end.producer.room_bytes(wanted).expect("the peer is honest");
                }
                (room != 0).then_some(room)
            });
            let count = room.min(wanted);
            let large = self.producer.capacity_bytes() >= 1 << 20;
            let kernel = if count >= NON_TEMPORAL_BYTES && large {
                Kernel::NonTemporal
            } else {
                Kernel::Plain
            };
            let tail = self.producer.tail();
            // SAFETY: within `bytes`, and within the room.
            unsafe {
                self.producer
                    .write(&self.copier, kernel, tail, bytes.as_ptr(), count)
            };
            self.producer.publish(count);
            bytes = &bytes[count..];
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            let fill = self.spin(|end| {
                let fill = end.consumer.fill_bytes().expect("the peer is honest");
                (fill != 0).then_some(fill as usize)
            });
            let count = fill.min(buffer.len() - done);
            let target = buffer[done..].as_mut_ptr();
            // SAFETY: within `buffer`.
            let peeked = unsafe {
                self.consumer
                    .peek(&self.copier, Kernel::Plain, 0, target, count)
            };
            peeked.expect("the peer is honest");
            self.consumer.take(count).expect("the peer is honest");
            done += count;
        }
    }
}

/// Runs `a` and `b` on the two ends of a channel, each in a thread of its own.
fn between<T: Send>(
    ring_bytes: Option<usize>,
    a: impl FnOnce(&mut End) -> T + Send,
    b: impl FnOnce(&mut End) + Send,
) -> T {
    let (left, right) = (Region::new(), Region::new());
    let (mut first, mut second) = (End::new(&left, &right), End::new(&right, &left));
    first.enter(ring_bytes);
    second.enter(ring_bytes);
    std::thread::scope(|scope| {
        scope.spawn(move || b(&mut second));
        scope
            .spawn(move || a(&mut first))
            .join()
            .expect("the peer is honest")
    })
}

/// Sends `size` bytes there and back for so long; calls `each` with the nanoseconds of
/// every round. The ring has `ring_bytes`, or grows. `pin` is called in each thread with 0 or 1.
pub fn round_trips(
    size: usize,
    ring_bytes: Option<usize>,
    length: Duration,
    pin: impl Fn(usize) + Sync,
    mut each: impl FnMut(u64) + Send,
) {
    let end_mark = 1u8;
    let pin = &pin;
    between(
        ring_bytes,
        |end| {
            pin(1);
            let (mut out, mut back) = (vec![0u8; size], vec![0u8; size]);
            let start = Instant::now();
            let mut before = start;
            while before - start < length {
                end.send(&out);
                end.receive(&mut back);
                let now = Instant::now();
                each((now - before).as_nanos() as u64);
                before = now;
            }
            out[0] = end_mark;
            end.send(&out);
        },
        |end| {
            pin(0);
            let mut buffer = vec![0u8; size];
            loop {
                end.receive(&mut buffer);
                if buffer[0] == end_mark {
                    return;
                }
                end.send(&buffer);
            }
        },
    );
}

/// Sends messages of `size` bytes one way for so long; gives bytes a second.
pub fn stream(
    size: usize,
    ring_bytes: Option<usize>,
    length: Duration,
    pin: impl Fn(usize) + Sync,
) -> f64 {
    let end_mark = 1u8;
    let pin = &pin;
    between(
        ring_bytes,
        |end| {
            pin(1);
            let mut out = vec![0u8; size];
            let (start, mut sent) = (Instant::now(), 0u64);
            while start.elapsed() < length {
                // The clock costs more than a small message.
                for _ in 0..64 {
                    end.send(&out);
                    sent += size as u64;
                }
            }
            out[0] = end_mark;
            end.send(&out);
            end.receive(&mut [0u8]);
            sent as f64 / start.elapsed().as_secs_f64()
        },
        |end| {
            pin(0);
            let mut buffer = vec![0u8; size];
            while buffer[0] != end_mark {
                end.receive(&mut buffer);
            }
            end.send(&[0]);
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_round() {
        let mut rounds = 0u64;
        round_trips(
            100,
            None,
            Duration::from_millis(20),
            |_| {},
            |_| rounds += 1,
        );
        assert!(rounds > 0);
    }

    #[test]
    fn a_stream_flows() {
        for ring_bytes in [None, Some(64 << 10), Some(4 << 20)] {
            assert!(stream(70_000, ring_bytes, Duration::from_millis(20), |_| {}) > 0.0);
        }
    }
}
