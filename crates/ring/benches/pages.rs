//! What handing pages over would give in place of copying: the figures behind ADR 18.
//!
//! Two processes on two CPUs, a writer and a reader, each with one buffer of its own, as programs have them. For each
//! message the writer stores a number into each page, sends, and the reader looks for the number in each page. Who waits,
//! spins. The ways from buffer to buffer:
//!
//! | way | copies | when the writer may use its buffer again | what it is |
//! |---|---|---|---|
//! | `ring` | 2 | at once | 64 KB pieces through a ring of 2 MB, by [`Copier`] |
//! | `readv` | 1 | when the reader has read | process_vm_readv(2) by the reader |
//! | `splice` | 1 | when the reader has read | vmsplice(2) of the writer's pages into a pipe, read(2) by the reader |
//! | `remap` | 0 | at once, but its content is another | both buffers are windows on one memfd, moved by mmap(2) |
//!
//! `remap` is a bound, not a design: a program may look at its buffer after write(2), and would find other bytes there.
//!
//! `cargo bench -p fordway-ring --bench pages`: all ways in turn, seven rounds; median GB/s, least and most, CPU seconds
//! of both processes for each GB.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_ring::copy::{Copier, Kernel};

const PAGE_BYTES: usize = 4096;
const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
const ROUNDS: usize = 7;
/// What a sample moves.
const SAMPLE_BYTES: usize = 1 << 30;
const RING_BYTES: usize = 2 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// Windows of `remap`.
const WINDOWS: usize = 4;
/// A peer that is silent for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Looks between two looks at the clock.
const LOOKS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Ring,
    Readv,
    Splice,
    Remap,
}

const WAYS: [Way; 4] = [Way::Ring, Way::Readv, Way::Splice, Way::Remap];

/// What both processes write, each its own words.
#[repr(C)]
struct Shared {
    /// Writer's: bytes (`Ring`) or messages (the others) that are there.
    sent: AtomicU64,
    apart: [u64; 15],
    /// Reader's: the same, taken.
    taken: AtomicU64,
    apart_too: [u64; 15],
    /// Reader's CPU time at its end, in microseconds, plus one.
    cpu_us: AtomicU64,
}

fn checked(what: &str, result: isize) -> usize {
    assert!(result >= 0, "{what}: {}", io::Error::last_os_error());
    result as usize
}

/// Memory of `bytes`; of `fd` from `offset` on, or anonymous.
fn map(at: *mut u8, bytes: usize, flags: i32, fd: i32, offset: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, or one over a buffer of this bench that nobody holds a reference to.
    let start = unsafe { libc::mmap(at.cast(), bytes, protection, flags, fd, offset as i64) };
    assert!(
        start != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    start.cast()
}

/// Spins until `counter` is `least` or more.
fn wait_for(counter: &AtomicU64, least: u64) -> u64 {
    let mut looks = 0;
    let start = Instant::now();
    loop {
        let now = counter.load(Ordering::Acquire);
        if now >= least {
            return now;
        }
        std::hint::spin_loop();
        looks += 1;
        if looks % LOOKS == 0 {
            assert!(start.elapsed() < SILENCE_MAX, "the peer is silent");
        }
    }
}

fn pages(buffer: *mut u8, bytes: usize) -> impl Iterator<Item = *mut u64> {
    (0..bytes)
        .step_by(PAGE_BYTES)
        .map(move |at| buffer.wrapping_add(at).cast())
}

fn produce(buffer: *mut u8, bytes: usize, number: u64) {
    // SAFETY: inside the buffer, aligned to the page.
    pages(buffer, bytes).for_each(|word| unsafe { word.write_volatile(number) });
}

fn consume(buffer: *mut u8, bytes: usize, number: u64) {
    // SAFETY: as above.
    let right = pages(buffer, bytes).all(|word| unsafe { word.read_volatile() } == number);
    assert!(right, "message {number} is not whole");
}

/// What a pair of processes works with; made before the fork.
struct Pair {
    shared: *const Shared,
    ring: *mut u8,
    memfd: i32,
    pipe: [i32; 2],
    buffer: *mut u8,
    bytes: usize,
    messages: u64,
    copier: Copier,
}

impl Pair {
    fn new(bytes: usize) -> Pair {
        let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut pipe = [0; 2];
        // SAFETY: names and arrays live through the calls.
        let memfd = unsafe {
            checked("pipe", libc::pipe(pipe.as_mut_ptr()) as isize);
            libc::fcntl(pipe[1], libc::F_SETPIPE_SZ, 1 << 20);
            let memfd = libc::memfd_create(c"pages".as_ptr(), 0);
            checked("memfd_create", memfd as isize);
            let length = (bytes * WINDOWS) as i64;
            checked("ftruncate", libc::ftruncate(memfd, length) as isize);
            memfd
        };
        Pair {
            shared: map(ptr::null_mut(), PAGE_BYTES, anonymous, -1, 0)
                .cast_const()
                .cast(),
            ring: map(ptr::null_mut(), RING_BYTES, anonymous, -1, 0),
            memfd,
            pipe,
            buffer: map(ptr::null_mut(), bytes, private, -1, 0),
            bytes,
            messages: (SAMPLE_BYTES / bytes) as u64,
            copier: Copier::detect(),
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped until the pair is dropped; zeroes are valid, and both processes use atomics alone.
        unsafe { &*self.shared }
    }

    /// Moves the buffer to a window of the memfd.
    fn move_window(&self, number: u64) {
        let offset = number as usize % WINDOWS * self.bytes;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
        map(self.buffer, self.bytes, flags, self.memfd, offset);
    }

    /// Pieces of a message with their places in the ring and the buffer.
    fn pieces(&self, number: u64) -> impl Iterator<Item = (u64, *mut u8, *mut u8, usize)> {
        let start = (number - 1) * self.bytes as u64;
        (0..self.bytes).step_by(PIECE_BYTES).map(move |at| {
            let index = start + at as u64;
            let place = self.ring.wrapping_add(index as usize % RING_BYTES);
            (index, place, self.buffer.wrapping_add(at), PIECE_BYTES)
        })
    }

    fn write(&self, way: Way, number: u64) {
        let Shared { sent, taken, .. } = self.shared();
        match way {
            Way::Ring => {
                for (index, place, from, len) in self.pieces(number) {
                    wait_for(
                        taken,
                        (index + len as u64).saturating_sub(RING_BYTES as u64),
                    );
                    // SAFETY: both lie inside their mappings, pieces divide the ring; the reader has left this one.
                    unsafe { self.copier.copy(place, from, len, Kernel::Plain) };
                    sent.store(index + len as u64, Ordering::Release);
                }
            }
            Way::Readv => {
                sent.store(number, Ordering::Release);
                wait_for(taken, number);
            }
            Way::Splice => {
                let mut at = 0;
                while at < self.bytes {
                    let part = libc::iovec {
                        iov_base: self.buffer.wrapping_add(at).cast(),
                        iov_len: self.bytes - at,
                    };
                    // SAFETY: the buffer outlives the call, and is left alone until the reader has read it.
                    at += checked("vmsplice", unsafe {
                        libc::vmsplice(self.pipe[1], &part, 1, 0)
                    });
                }
                wait_for(taken, number);
            }
            Way::Remap => {
                sent.store(number, Ordering::Release);
                wait_for(taken, (number + 1).saturating_sub(WINDOWS as u64));
                self.move_window(number + 1);
            }
        }
    }

    fn read(&self, way: Way, number: u64, writer: (i32, *mut u8)) {
        let Shared { sent, taken, .. } = self.shared();
        match way {
            Way::Ring => {
                for (index, place, to, len) in self.pieces(number) {
                    wait_for(sent, index + len as u64);
                    // SAFETY: as in `write`; the writer has published this piece.
                    unsafe { self.copier.copy(to, place, len, Kernel::Plain) };
                    taken.store(index + len as u64, Ordering::Release);
                }
            }
            Way::Readv => {
                wait_for(sent, number);
                let part = |start: *mut u8| libc::iovec {
                    iov_base: start.cast(),
                    iov_len: self.bytes,
                };
                let (to, from) = (part(self.buffer), part(writer.1));
                // SAFETY: both buffers have this length.
                let read = unsafe { libc::process_vm_readv(writer.0, &to, 1, &from, 1, 0) };
                assert_eq!(checked("process_vm_readv", read), self.bytes);
                taken.store(number, Ordering::Release);
            }
            Way::Splice => {
                let mut at = 0;
                while at < self.bytes {
                    let to = self.buffer.wrapping_add(at).cast();
                    // SAFETY: inside the buffer.
                    at += checked("read", unsafe {
                        libc::read(self.pipe[0], to, self.bytes - at)
                    });
                }
                taken.store(number, Ordering::Release);
            }
            Way::Remap => {
                wait_for(sent, number);
                self.move_window(number);
            }
        }
        consume(self.buffer, self.bytes, number);
        if way == Way::Remap {
            taken.store(number, Ordering::Release);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: this pair's own, used by nobody any more.
        unsafe {
            libc::munmap(self.shared.cast_mut().cast(), PAGE_BYTES);
            libc::munmap(self.ring.cast(), RING_BYTES);
            libc::munmap(self.buffer.cast(), self.bytes);
            let _ = [self.memfd, self.pipe[0], self.pipe[1]].map(|fd| libc::close(fd));
        }
    }
}

fn pin(cpu: usize) {
    // SAFETY: a set on the stack. One CPU alone is no error: the figures are then worth nothing, as their spread shows.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn cpu_us() -> u64 {
    // SAFETY: filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// GB/s, and CPU seconds for each GB.
fn sample(way: Way, bytes: usize) -> (f64, f64) {
    let pair = Pair::new(bytes);
    // SAFETY: one thread; the child ends by _exit.
    let (writer, child) = unsafe { (libc::getpid(), libc::fork()) };
    checked("fork", child as isize);
    let before = cpu_us();
    if child == 0 {
        pin(1);
        // A fork's buffer lies where its parent's does.
        (1..=pair.messages).for_each(|number| pair.read(way, number, (writer, pair.buffer)));
        let spent = cpu_us() - before;
        pair.shared().cpu_us.store(spent + 1, Ordering::Release);
        // SAFETY: nothing is to be flushed.
        unsafe { libc::_exit(0) };
    }
    pin(0);
    if way == Way::Remap {
        pair.move_window(1);
    }
    let start = Instant::now();
    for number in 1..=pair.messages {
        produce(pair.buffer, pair.bytes, number);
        pair.write(way, number);
    }
    let reader_cpu_us = wait_for(&pair.shared().cpu_us, 1) - 1;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = (cpu_us() - before + reader_cpu_us) as f64 / 1e6;
    // SAFETY: our child, which has ended or is about to.
    unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
    let moved_gb = (pair.messages as usize * bytes) as f64 / 1e9;
    (moved_gb / seconds, cpu_s / moved_gb)
}

fn main() {
    // `cargo test --benches` only has it compiled and started.
    if std::env::args().any(|word| word == "--test") {
        return;
    }
    println!("size      way     GB/s   least    most  CPU s/GB");
    for bytes in SIZES {
        let mut samples = WAYS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (way, samples) in WAYS.iter().zip(&mut samples) {
                samples.push(sample(*way, bytes));
            }
        }
        for (way, mut samples) in WAYS.iter().zip(samples) {
            samples.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (least, most) = (samples[0].0, samples[ROUNDS - 1].0);
            let (rate, cpu) = samples[ROUNDS / 2];
            let (kib, way) = (bytes >> 10, format!("{way:?}").to_lowercase());
            println!("{kib:>4} KB  {way:<6} {rate:>6.2}  {least:>6.2}  {most:>6.2}  {cpu:>8.3}");
        }
    }
}
