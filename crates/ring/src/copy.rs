//! Copy kernels: how bytes enter and leave a ring.
//!
//! The C library's `memcpy` is not used on the data path. From a few KB on it may run `rep movsb`, which on some CPUs
//! collapses when source and destination lie 1 to 3 bytes apart modulo the page, a thing a byte ring meets all the time;
//! it cannot be told that the reader sits behind another L3; and a preload library had better not call into what it is
//! loaded over.
//!
//! [`Copier`] is chosen once, by [`Copier::detect`], and is a plain value from then on: no statics, no allocation, no
//! lock, so that it can be used from a signal handler and before the C library is up. It carries the widest vector
//! [`Level`] that both the CPU and the operating system (XCR0, Intel SDM vol. 1, 13.3) allow.
//!
//! | bytes | what happens |
//! |---|---|
//! | 0..=64 | inlined at the caller, baseline registers, no loop: one piece from the front and one from the back, overlapping in the middle |
//! | 65..=256 | the same with the level's vectors, in one call |
//! | more, [`Kernel::Plain`] | destination aligned to the vector, unrolled loop of ordinary stores, overlapping last block |
//! | [`NON_TEMPORAL_BYTES_MIN`] and more, [`Kernel::NonTemporal`] | destination aligned to the cache line, streamed past the caches line by line, then `sfence` |
//!
//! **Order.** Ordinary stores are seen in program order on x86-64. Streaming stores are not, so `copy` ends them with a
//! store fence: when it returns, a release store of the ring's index publishes the bytes under either kernel.
//!
//! **Foreign memory.** The source may change while it is read. No reference to it is ever made, nothing is decided by
//! its content, and some bytes are read twice (the overlap): what arrives is some mixture of what the peer wrote, and
//! it must be judged only after it was copied.
//!
//! Limits: no overlap-safe move; elsewhere than on x86-64 (and under Miri) both kernels are the compiler's own copy.

/// How the bytes are stored. Which one wins depends on the distance of the two CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kernel {
    /// Ordinary stores: the bytes stay in the writer's cache, best where both sides share an L3.
    Plain = 0,
    /// Streaming stores: the bytes go to memory, best where the reader would have to fetch them from a far cache.
    NonTemporal = 1,
}

/// Below this many bytes [`Kernel::NonTemporal`] stores as [`Kernel::Plain`] does: the fence would cost more than it saves.
pub const NON_TEMPORAL_BYTES_MIN: usize = 1024;

/// Widest vectors in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// No vectors but `rep movsb`, as kernels copy: for measuring beside them, never detected.
    Strings,
    /// What every CPU of this architecture has: SSE2 on x86-64, the compiler's copy elsewhere.
    Baseline,
    /// 32-byte vectors.
    Avx2,
    /// 64-byte vectors: one cache line each.
    Avx512,
}

/// The copy routine fit for this CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copier {
    // Private: a level above what the CPU has would be an illegal instruction.
    level: Level,
}

impl Copier {
    /// The routine that runs everywhere, for statics and for the time before [`Copier::detect`].
    pub const fn sse2() -> Self {
        Self {
            level: Level::Baseline,
        }
    }

    /// Asks the CPU. Call it once and keep the answer: under a hypervisor each of its three CPUID instructions is a VM
    /// exit, 17 us in all where it was measured.
    pub fn detect() -> Self {
        Self {
            level: arch::detect(),
        }
    }

    /// The same routine with vectors no wider than `level`.
    #[must_use]
    pub const fn at_most(self, level: Level) -> Self {
        if (level as u8) < (self.level as u8) {
            Self { level }
        } else {
            self
        }
    }

    /// The vectors in use.
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Copies `n` bytes; on return a release store publishes them, whatever the kernel.
    ///
    /// # Safety
    /// As [`core::ptr::copy_nonoverlapping`]: `n` bytes readable at `src`, writable at `dst`, not overlapping. `src`
    /// may be shared memory that another process changes meanwhile.
    #[inline(always)]
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, n: usize, kernel: Kernel) {
        if n <= 64 {
            // SAFETY: the caller's promise, and n is at most 64.
            unsafe { arch::up_to_64(dst, src, n) }
        } else {
            // SAFETY: the caller's promise; n is above 64; the level was detected or lies below one that was.
            unsafe { arch::above_64(self.level, dst, src, n, kernel) }
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(
    clippy::incompatible_msrv,
    reason = "AVX-512 is stable from Rust 1.89 on, safe CPUID later; the pinned toolchain has both"
)]
mod arch {
    use core::arch::asm;
    use core::arch::x86_64::*;

    use super::{Kernel, Level, NON_TEMPORAL_BYTES_MIN};

    const LINE_BYTES: usize = 64;
    /// How far ahead a source is asked for: helps 4 KB pieces out of cache while memory is busy, and costs nothing else.
    const PREFETCH_BYTES: usize = 1024;

    /// Reads CPUID and XCR0 (Intel SDM vol. 1, 14.3 and 15.2: how software finds AVX and AVX-512).
    pub(super) fn detect() -> Level {
        const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
        const AVX2: u32 = 1 << 5;
        const AVX512F: u32 = 1 << 16;
        const XCR0_SSE_AVX: u32 = 0b110;
        const XCR0_AVX512: u32 = 0b1110_0110;

        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE_AND_AVX != OSXSAVE_AND_AVX {
            return Level::Baseline;
        }
        let xcr0: u32;
        // SAFETY: OSXSAVE is set, so XGETBV exists and XCR0 may be read from user mode.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") xcr0, out("edx") _, options(nomem, nostack, preserves_flags));
        }
        let features = __cpuid_count(7, 0).ebx;
        if features & AVX2 == 0 || xcr0 & XCR0_SSE_AVX != XCR0_SSE_AVX {
            Level::Baseline
        } else if features & AVX512F == 0 || xcr0 & XCR0_AVX512 != XCR0_AVX512 {
            Level::Avx2
        } else {
            Level::Avx512
        }
    }

    /// # Safety
    /// As [`super::Copier::copy`], with `n` at most 64.
    #[inline(always)]
    pub(super) unsafe fn up_to_64(dst: *mut u8, src: *const u8, n: usize) {
        // SAFETY: each arm touches [0, 2 * size) at most from either end, and n is at least that size.
        unsafe {
            if n >= 16 {
                if n > 32 {
                    // Not one type of 32 bytes: LLVM would carry it through the stack.
                    let first = (load::<__m128i>(src), load::<__m128i>(src.add(16)));
                    let last = (
                        load::<__m128i>(src.add(n - 32)),
                        load::<__m128i>(src.add(n - 16)),
                    );
                    store(dst, first.0);
                    store(dst.add(16), first.1);
                    store(dst.add(n - 32), last.0);
                    store(dst.add(n - 16), last.1);
                } else {
                    both_ends::<__m128i>(dst, src, n);
                }
            } else if n >= 8 {
                both_ends::<u64>(dst, src, n);
            } else if n >= 4 {
                both_ends::<u32>(dst, src, n);
            } else if n >= 2 {
                both_ends::<u16>(dst, src, n);
            } else if n == 1 {
                dst.write(src.read());
            }
        }
    }

    /// Copies one `T` from the front and one from the back, both read before either is written.
    ///
    /// # Safety
    /// As [`super::Copier::copy`], with `n` from the size of `T` to twice that.
    #[inline(always)]
    unsafe fn both_ends<T: Copy>(dst: *mut u8, src: *const u8, n: usize) {
        let back = n - size_of::<T>();
        // SAFETY: both pieces lie within the n bytes.
        unsafe {
            let first: T = load(src);
            let last: T = load(src.add(back));
            store(dst, first);
            store(dst.add(back), last);
        }
    }

    /// # Safety
    /// A `T` readable at `src`, whatever its alignment.
    #[inline(always)]
    unsafe fn load<T: Copy>(src: *const u8) -> T {
        // SAFETY: the caller's promise.
        unsafe { src.cast::<T>().read_unaligned() }
    }

    /// # Safety
    /// A `T` writable at `dst`, whatever its alignment.
    #[inline(always)]
    unsafe fn store<T: Copy>(dst: *mut u8, value: T) {
        // SAFETY: the caller's promise.
        unsafe { dst.cast::<T>().write_unaligned(value) }
    }

    /// # Safety
    /// As [`super::Copier::copy`], with `n` above 64 and a `level` that the CPU has.
    #[inline]
    pub(super) unsafe fn above_64(
        level: Level,
        dst: *mut u8,
        src: *const u8,
        n: usize,
        kernel: Kernel,
    ) {
        let streams = kernel == Kernel::NonTemporal && n >= NON_TEMPORAL_BYTES_MIN;
        // SAFETY: the caller's promise, handed on; the level's instructions exist.
        unsafe {
            match (level, streams) {
                (Level::Avx512, false) => avx512::plain(dst, src, n),
                (Level::Avx512, true) => avx512::non_temporal(dst, src, n),
                (Level::Avx2, false) => avx2::plain(dst, src, n),
                (Level::Avx2, true) => avx2::non_temporal(dst, src, n),
                (Level::Baseline, false) => sse2::plain(dst, src, n),
                (Level::Baseline, true) => sse2::non_temporal(dst, src, n),
                (Level::Strings, _) => strings(dst, src, n),
            }
        }
    }

    /// # Safety
    /// As [`super::Copier::copy`].
    unsafe fn strings(dst: *mut u8, src: *const u8, n: usize) {
        // SAFETY: the caller's promise; the ABI keeps the direction flag clear.
        unsafe {
            asm!("rep movsb", inout("rcx") n => _, inout("rdi") dst => _, inout("rsi") src => _,
                options(nostack, preserves_flags));
        }
    }

    /// The two kernels for one vector width; LLVM ends the wide ones with `vzeroupper` where it is due.
    macro_rules! kernels {
        ($level:ident, $feature:literal, $vector:ty, $load:ident, $store:ident, $stream:ident) => {
            mod $level {
                use super::*;

                const VECTOR_BYTES: usize = size_of::<$vector>();
                /// Loaded whole before any of it is stored, so that a store is never in the way of the next load.
                const BLOCK_BYTES: usize = 256;

                /// # Safety
                /// As [`super::super::Copier::copy`], with `n` above 64.
                #[target_feature(enable = $feature)]
                pub(super) unsafe fn plain(dst: *mut u8, src: *const u8, n: usize) {
                    // SAFETY: the caller's promise; every piece lies within the n bytes, see each bound.
                    unsafe {
                        if n <= 128 {
                            return both_ends::<{ 64 / VECTOR_BYTES }>(dst, src, n);
                        }
                        if n <= 256 {
                            return both_ends::<{ 128 / VECTOR_BYTES }>(dst, src, n);
                        }
                        // One unaligned vector, then aligned from the next boundary on (1 to VECTOR_BYTES further).
                        store_all(dst, load_all::<1>(src));
                        let mut at = VECTOR_BYTES - dst.addr() % VECTOR_BYTES;
                        while n - at >= BLOCK_BYTES {
                            block(dst.add(at), src.add(at));
                            at += BLOCK_BYTES;
                        }
                        // Less than a block is left, and n is more than one.
                        block(dst.add(n - BLOCK_BYTES), src.add(n - BLOCK_BYTES));
                    }
                }

                /// # Safety
                /// As [`super::super::Copier::copy`], with `n` above 64.
                #[target_feature(enable = $feature)]
                pub(super) unsafe fn non_temporal(dst: *mut u8, src: *const u8, n: usize) {
                    // SAFETY: the caller's promise; at most n bytes are touched, and streams start on a line.
                    unsafe {
                        // Not one byte of a streamed line is stored the ordinary way: it would be fetched first.
                        let mut at = dst.addr().wrapping_neg() % LINE_BYTES;
                        up_to_64(dst, src, at);
                        while n - at >= LINE_BYTES {
                            // Not past the end: those lines may be the ones a producer is writing just now.
                            let ahead = (at + PREFETCH_BYTES).min(n - 1);
                            _mm_prefetch::<_MM_HINT_T0>(src.add(ahead).cast());
                            let line = load_all::<{ LINE_BYTES / VECTOR_BYTES }>(src.add(at));
                            for (i, vector) in line.into_iter().enumerate() {
                                $stream(dst.add(at + i * VECTOR_BYTES).cast(), vector);
                            }
                            at += LINE_BYTES;
                        }
                        up_to_64(dst.add(at), src.add(at), n - at);
                        _mm_sfence();
                    }
                }

                /// # Safety
                /// `BLOCK_BYTES` readable at `src` and writable at `dst`, not overlapping.
                #[inline]
                #[target_feature(enable = $feature)]
                unsafe fn block(dst: *mut u8, src: *const u8) {
                    // SAFETY: the vectors are BLOCK_BYTES in all.
                    unsafe { store_all(dst, load_all::<{ BLOCK_BYTES / VECTOR_BYTES }>(src)) }
                }

                /// Copies `N` vectors from the front and `N` from the back, all loaded before one is stored.
                ///
                /// # Safety
                /// As [`super::super::Copier::copy`], with `n` from `N` to `2 * N` vectors.
                #[inline]
                #[target_feature(enable = $feature)]
                unsafe fn both_ends<const N: usize>(dst: *mut u8, src: *const u8, n: usize) {
                    let back = n - N * VECTOR_BYTES;
                    // SAFETY: both pieces lie within the n bytes.
                    unsafe {
                        let first = load_all::<N>(src);
                        let last = load_all::<N>(src.add(back));
                        store_all(dst, first);
                        store_all(dst.add(back), last);
                    }
                }

                /// # Safety
                /// `N` vectors readable at `src`, whatever its alignment.
                #[inline]
                #[target_feature(enable = $feature)]
                unsafe fn load_all<const N: usize>(src: *const u8) -> [$vector; N] {
                    // SAFETY: the caller's promise.
                    core::array::from_fn(|i| unsafe { $load(src.add(i * VECTOR_BYTES).cast()) })
                }

                /// # Safety
                /// `N` vectors writable at `dst`, whatever its alignment.
                #[inline]
                #[target_feature(enable = $feature)]
                unsafe fn store_all<const N: usize>(dst: *mut u8, all: [$vector; N]) {
                    for (i, vector) in all.into_iter().enumerate() {
                        // SAFETY: the caller's promise.
                        unsafe { $store(dst.add(i * VECTOR_BYTES).cast(), vector) }
                    }
                }
            }
        };
    }

    kernels!(
        avx512,
        "avx512f",
        __m512i,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_stream_si512
    );
    kernels!(
        avx2,
        "avx2",
        __m256i,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_stream_si256
    );
    kernels!(
        sse2,
        "sse2",
        __m128i,
        _mm_loadu_si128,
        _mm_storeu_si128,
        _mm_stream_si128
    );
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod arch {
    use super::{Kernel, Level};

    pub(super) fn detect() -> Level {
        Level::Baseline
    }

    /// # Safety
    /// As [`super::Copier::copy`].
    pub(super) unsafe fn up_to_64(dst: *mut u8, src: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { dst.copy_from_nonoverlapping(src, n) }
    }

    /// # Safety
    /// As [`super::Copier::copy`].
    pub(super) unsafe fn above_64(_: Level, dst: *mut u8, src: *const u8, n: usize, _: Kernel) {
        // SAFETY: the caller's promise.
        unsafe { dst.copy_from_nonoverlapping(src, n) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
    use std::{vec, vec::Vec};

    use super::*;

    fn every_copier() -> Vec<Copier> {
        let best = Copier::detect();
        [Level::Strings, Level::Baseline, Level::Avx2, Level::Avx512]
            .into_iter()
            .filter(|&level| level <= best.level())
            .map(|level| best.at_most(level))
            .collect()
    }

    const GUARD: u8 = 0xa5;
    const GUARD_BYTES: usize = 320;

    /// A destination between guards and a source, each with room for any alignment up to 4096.
    struct Arena {
        dst: Vec<u8>,
        src: Vec<u8>,
    }

    impl Arena {
        fn new(bytes_max: usize) -> Self {
            let bytes = bytes_max + 2 * 4096 + 2 * GUARD_BYTES;
            // No byte equals the guard, and the period of 163 is no multiple of any piece.
            let src = (0..bytes).map(|i| (i % 163) as u8).collect();
            Self {
                dst: vec![GUARD; bytes],
                src,
            }
        }

        /// Copies `n` bytes from address `src_at` to `dst_at`, both modulo 4096, and looks at every byte around.
        fn check(
            &mut self,
            copier: Copier,
            kernel: Kernel,
            n: usize,
            (dst_at, src_at): (usize, usize),
        ) {
            let align = |base: *const u8, at: usize| at.wrapping_sub(base.addr()) % 4096;
            let from = align(self.src.as_ptr(), src_at);
            let to = align(self.dst.as_ptr().wrapping_add(GUARD_BYTES), dst_at) + GUARD_BYTES;
            let (source, target) = (&self.src[from..from + n], &mut self.dst[to..to + n]);
            // SAFETY: two slices of n bytes, of different vectors.
            unsafe { copier.copy(target.as_mut_ptr(), source.as_ptr(), n, kernel) };
            let what = || std::format!("{copier:?} {kernel:?} n {n} dst {dst_at} src {src_at}");
            assert!(
                self.dst[to..to + n] == self.src[from..from + n],
                "content: {}",
                what()
            );
            let guards = [to - GUARD_BYTES..to, to + n..to + n + GUARD_BYTES];
            for guard in guards {
                assert!(
                    self.dst[guard].iter().all(|&byte| byte == GUARD),
                    "guard: {}",
                    what()
                );
            }
            self.dst[to..to + n].fill(GUARD);
        }
    }

    fn under_all(mut check: impl FnMut(Copier, Kernel)) {
        for copier in every_copier() {
            for kernel in [Kernel::Plain, Kernel::NonTemporal] {
                check(copier, kernel);
            }
        }
    }

    #[test]
    fn every_size_up_to_4096() {
        let mut arena = Arena::new(4096);
        let mut random = fastrand::Rng::with_seed(1);
        under_all(|copier, kernel| {
            for n in 0..=4096 {
                let ats = (random.usize(..4096), random.usize(..4096));
                arena.check(copier, kernel, n, ats);
            }
        });
    }

    #[test]
    fn every_alignment_of_the_destination() {
        let mut arena = Arena::new(4096);
        under_all(|copier, kernel| {
            for dst_at in 0..128 {
                for n in [
                    1, 63, 64, 65, 128, 256, 257, 320, 1023, 1024, 1087, 1088, 2048,
                ] {
                    arena.check(copier, kernel, n, (dst_at, 7 * dst_at));
                }
            }
        });
    }

    #[test]
    fn random_sizes_and_alignments() {
        const BYTES_MAX: usize = 300_000;
        let mut arena = Arena::new(BYTES_MAX);
        let mut random = fastrand::Rng::with_seed(2);
        under_all(|copier, kernel| {
            for _ in 0..40 {
                let n = random.usize(..BYTES_MAX);
                let ats = (random.usize(..4096), random.usize(..4096));
                arena.check(copier, kernel, n, ats);
            }
        });
    }

    /// The reader looks as soon as the index says so: what was streamed must have left the write-combining buffers.
    #[test]
    fn published_bytes_are_there() {
        const SLOTS: usize = 64;
        const SLOT_BYTES: usize = 4096 + 24;
        const ROUNDS: usize = 4 * SLOTS;
        under_all(|copier, kernel| {
            let mut ring = vec![0u8; SLOTS * SLOT_BYTES];
            let base = AtomicPtr::new(ring.as_mut_ptr());
            let (tail, head) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let slot = |round: usize| {
                let base = base.load(Ordering::Relaxed);
                base.wrapping_add(round % SLOTS * SLOT_BYTES)
            };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        while round - head.load(Ordering::Acquire) == SLOTS {
                            std::thread::yield_now();
                        }
                        let bytes = [(round as u8).wrapping_add(1); SLOT_BYTES];
                        // SAFETY: the slot lies within the ring, and the reader is done with it.
                        unsafe { copier.copy(slot(round), bytes.as_ptr(), SLOT_BYTES, kernel) };
                        tail.store(round + 1, Ordering::Release);
                    }
                });
                for round in 0..ROUNDS {
                    while tail.load(Ordering::Acquire) == round {
                        std::thread::yield_now();
                    }
                    let mut bytes = [0; SLOT_BYTES];
                    // SAFETY: the slot lies within the ring and was published.
                    unsafe { copier.copy(bytes.as_mut_ptr(), slot(round), SLOT_BYTES, kernel) };
                    head.store(round + 1, Ordering::Release);
                    let expected = (round as u8).wrapping_add(1);
                    let all = bytes.iter().all(|&byte| byte == expected);
                    assert!(all, "{copier:?} {kernel:?} round {round}");
                }
            });
        });
    }

    #[test]
    fn a_level_is_only_ever_lowered() {
        assert_eq!(Copier::sse2().at_most(Level::Avx512), Copier::sse2());
        assert_eq!(Copier::detect().at_most(Level::Baseline), Copier::sse2());
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn detection_agrees_with_the_standard_library() {
        let expected = if std::is_x86_feature_detected!("avx512f") {
            Level::Avx512
        } else if std::is_x86_feature_detected!("avx2") {
            Level::Avx2
        } else {
            Level::Baseline
        };
        assert_eq!(Copier::detect().level(), expected);
    }
}
