//! What the copy kernels give beside the C library's memcpy, in one run.
//!
//! `small`: ns per copy of a size that sits in L1. `resident`: a window that fits L2, over and over, at every kind of
//! distance modulo the page that slows a copy down. `cold`: windows far above L3, walked once per sample. How the bytes
//! fare on their way to another CPU is not seen here; that takes a ring and two threads.
//!
//! `cargo bench -p fordway-ring --bench copy -- small` runs one group.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use fordway_ring::copy::{Copier, Kernel, Level};

const PAGE_BYTES: usize = 4096;

/// One line of each table.
#[derive(Clone, Copy)]
enum Rival {
    Libc,
    Ours(Copier, Kernel),
}

impl Rival {
    fn all() -> Vec<(String, Rival)> {
        let best = Copier::detect();
        let mut rivals = vec![("libc".to_string(), Rival::Libc)];
        for level in [Level::Baseline, Level::Avx2, Level::Avx512] {
            if level <= best.level() {
                for kernel in [Kernel::Plain, Kernel::NonTemporal] {
                    let rival = Rival::Ours(best.at_most(level), kernel);
                    rivals.push((format!("{level:?}-{kernel:?}"), rival));
                }
            }
        }
        rivals
    }

    /// # Safety
    /// As [`Copier::copy`].
    #[inline(always)]
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, n: usize) {
        // SAFETY: the caller's promise. A length the compiler does not know makes the first a call of memcpy.
        unsafe {
            match self {
                Rival::Libc => dst.copy_from_nonoverlapping(src, n),
                Rival::Ours(copier, kernel) => copier.copy(dst, src, n, *kernel),
            }
        }
    }
}

/// Touched memory with a page to spare, used from a page boundary on.
struct Window(Vec<u8>);

impl Window {
    fn new(bytes: usize) -> Self {
        Window(vec![1; bytes + 2 * PAGE_BYTES])
    }

    /// The window from `offset` (below a page) behind a page boundary on.
    fn at(&mut self, offset: usize) -> *mut u8 {
        let base = self.0.as_mut_ptr();
        base.wrapping_add(base.align_offset(PAGE_BYTES) + offset)
    }
}

fn group<'c>(criterion: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(5))
        .measurement_time(Duration::from_millis(20));
    group
}

fn small(criterion: &mut Criterion) {
    let mut group = group(criterion, "small");
    let (mut to, mut from) = (Window::new(PAGE_BYTES), Window::new(PAGE_BYTES));
    let (dst, src) = (to.at(0), from.at(5));
    for n in [16, 64, 128, 256, 512, 1024] {
        for (name, rival) in Rival::all() {
            group.bench_function(BenchmarkId::new(name, n), |bencher| {
                let rival = black_box(rival);
                // SAFETY: n is below a page, and both windows hold one behind their offset.
                bencher
                    .iter(|| unsafe { rival.copy(black_box(dst), black_box(src), black_box(n)) });
            });
        }
    }
}

fn resident(criterion: &mut Criterion) {
    const WINDOW_BYTES: usize = 256 << 10;
    let mut group = group(criterion, "resident");
    let (mut to, mut from) = (Window::new(WINDOW_BYTES), Window::new(WINDOW_BYTES));
    for n in [PAGE_BYTES, 64 << 10, WINDOW_BYTES] {
        group.throughput(Throughput::Bytes(n as u64));
        for offset in [0, 1, 2, 3, 17, 63, 2049, 4095] {
            let (dst, src) = (to.at(offset), from.at(0));
            for (name, rival) in Rival::all() {
                let id = BenchmarkId::new(name, format!("{n}+{offset}"));
                group.bench_function(id, |bencher| {
                    // SAFETY: n is at most the window, which has a page to spare for the offset.
                    bencher.iter(|| unsafe { rival.copy(dst, src, black_box(n)) });
                });
            }
        }
    }
}

fn cold(criterion: &mut Criterion) {
    const WINDOW_BYTES: usize = 64 << 20;
    let mut group = group(criterion, "cold");
    let (mut to, mut from) = (Window::new(WINDOW_BYTES), Window::new(WINDOW_BYTES));
    let (dst, src) = (to.at(17), from.at(0));
    group.throughput(Throughput::Bytes(WINDOW_BYTES as u64));
    for n in [1 << 10, 4 << 10, 16 << 10, 64 << 10] {
        for (name, rival) in Rival::all() {
            group.bench_function(BenchmarkId::new(name, n), |bencher| {
                bencher.iter(|| {
                    for at in (0..WINDOW_BYTES).step_by(n) {
                        // SAFETY: n divides the window, which has a page to spare for the offset.
                        unsafe { rival.copy(dst.add(at), src.add(at), black_box(n)) };
                    }
                });
            });
        }
    }
}

fn main() {
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    small(&mut criterion);
    resident(&mut criterion);
    cold(&mut criterion);
    criterion.final_summary();
}
