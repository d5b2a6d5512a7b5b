//! How far apart two CPUs are: the round trip of one cache line between two
//! pinned threads. A virtual machine's CPUs can be moved at any moment, and every
//! figure of shared memory moves with them, so a sample counts only if the
//! distance was the same before and after it.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long one probe takes.
const PROBE: Duration = Duration::from_millis(20);
/// And at most, if the two threads do not come to run at the same time.
const PROBE_MAX: Duration = Duration::from_millis(200);
/// Round trips between two looks at the clock.
const BATCH: u64 = 200;
/// Below: one shared L3 (80 to 120 ns); above: separate ones (450 to 480 ns).
const NEAR_NS_MAX: f64 = 250.0;
/// Above: no distance, but a thread that was waiting for its CPU.
const FAR_NS_MAX: f64 = 800.0;
/// A thread that waits this long for its partner was not running beside it.
const SPINS_MAX: u32 = 50_000_000;

/// Whether two CPUs share their last-level cache, by the clock.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// They share it.
    Near,
    /// They do not.
    Far,
}

impl Regime {
    /// As the tables print it.
    pub fn word(self) -> &'static str {
        match self {
            Regime::Near => "near",
            Regime::Far => "far",
        }
    }
}

/// A word on cache lines of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Round trip of a cache line between two CPUs, in nanoseconds.
pub fn round_trip_ns(a: usize, b: usize) -> Result<f64> {
    let (ball, arrived) = (Line(AtomicU64::new(0)), AtomicU32::new(0));
    std::thread::scope(|scope| {
        // Odd numbers are for `b` to answer, even ones for `a` to go on from.
        let other = scope.spawn(|| -> Result<()> {
            let pinned = pin(b);
            arrived.store(1, Ordering::Release);
            pinned?;
            let mut answered = 0;
            loop {
                match wait_beyond(&ball.0, answered) {
                    u64::MAX => return Ok(()),
                    number => {
                        answered = number + 1;
                        // Fails only when `a` has put the end mark there.
                        let _ = ball.0.compare_exchange(
                            number,
                            answered,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        );
                    }
                }
            }
        });
        let best = scope.spawn(|| -> Result<f64> {
            let pinned = pin(a);
            while arrived.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let best = pinned.map(|()| volley(&ball.0));
            ball.0.store(u64::MAX, Ordering::Release);
            best
        });
        let best = best.join().expect("the probe does not panic")?;
        other.join().expect("the probe does not panic")?;
        Ok(best)
    })
}

/// Which regime two CPUs are in.
pub fn regime(a: usize, b: usize) -> Result<Regime> {
    Ok(if round_trip_ns(a, b)? < NEAR_NS_MAX {
        Regime::Near
    } else {
        Regime::Far
    })
}

/// The best batch: whatever disturbs a probe only makes it slower.
fn volley(ball: &AtomicU64) -> f64 {
    let begin = Instant::now();
    let (mut number, mut best) = (0, f64::INFINITY);
    while begin.elapsed() < PROBE || best > FAR_NS_MAX && begin.elapsed() < PROBE_MAX {
        let start = Instant::now();
        for _ in 0..BATCH {
            ball.store(number + 1, Ordering::Release);
            number += 2;
            if wait_beyond(ball, number - 1) == u64::MAX {
                return best;
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    best
}

/// Waits for a number above `seen`; `u64::MAX` if none comes.
fn wait_beyond(ball: &AtomicU64, seen: u64) -> u64 {
    for _ in 0..SPINS_MAX {
        let number = ball.load(Ordering::Acquire);
        if number > seen {
            return number;
        }
        std::hint::spin_loop();
    }
    u64::MAX
}

/// Holds the calling thread to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("run on CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_travels() {
        if std::thread::available_parallelism().unwrap().get() < 2 {
            return;
        }
        let ns = round_trip_ns(0, 1).unwrap();
        assert!(ns > 10.0 && ns.is_finite(), "{ns}");
    }
}
