//! Recording: counters, histograms, the log, and the two pages made of them.

use crate::{BUCKETS, LOG_SPANS, Procedure};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const PROCEDURES: usize = Procedure::ALL.len();

/// See the crate's description. About 16 KB.
pub struct Profile {
    ticks: fn() -> u64,
    sums: [Sums; PROCEDURES],
    /// Ticks of the spans that ended inside the innermost one still open.
    inside: AtomicU64,
    log: [Entry; LOG_SPANS],
    /// Spans ever logged; the next one's place is this modulo [`LOG_SPANS`].
    logged: AtomicU64,
}

struct Sums {
    spans: AtomicU64,
    ticks: AtomicU64,
    own: AtomicU64,
    longest: AtomicU64,
    amount: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

struct Entry {
    start: AtomicU64,
    ticks: AtomicU64,
    /// The procedure in the upper half, the amount in the lower.
    what: AtomicU64,
}

/// One thread records: a load and a store are cheaper than a locked addition.
fn add(to: &AtomicU64, what: u64) {
    to.store(to.load(Relaxed).wrapping_add(what), Relaxed);
}

fn bucket(ticks: u64) -> usize {
    ((u64::BITS - ticks.leading_zeros()) as usize).min(BUCKETS - 1)
}

impl Profile {
    /// `ticks` counts up, at a rate that the reader of the pages knows.
    pub const fn new(ticks: fn() -> u64) -> Profile {
        Profile {
            ticks,
            sums: [const {
                Sums {
                    spans: AtomicU64::new(0),
                    ticks: AtomicU64::new(0),
                    own: AtomicU64::new(0),
                    longest: AtomicU64::new(0),
                    amount: AtomicU64::new(0),
                    buckets: [const { AtomicU32::new(0) }; BUCKETS],
                }
            }; PROCEDURES],
            inside: AtomicU64::new(0),
            log: [const {
                Entry {
                    start: AtomicU64::new(0),
                    ticks: AtomicU64::new(0),
                    what: AtomicU64::new(0),
                }
            }; LOG_SPANS],
            logged: AtomicU64::new(0),
        }
    }

    /// Whether this build records.
    pub const fn is_recording(&self) -> bool {
        true
    }

    /// Begins a span; it lasts until it is ended or dropped.
    #[inline]
    pub fn span(&self, procedure: Procedure) -> Span<'_> {
        let outside = self.inside.load(Relaxed);
        self.inside.store(0, Relaxed);
        Span {
            profile: self,
            procedure,
            amount: 0,
            outside,
            start: (self.ticks)(),
        }
    }

    fn record(&self, span: &Span<'_>) {
        // Whatever the source does, a span does not last less than nothing.
        let ticks = (self.ticks)().saturating_sub(span.start);
        let own = ticks.saturating_sub(self.inside.load(Relaxed));
        self.inside.store(span.outside.wrapping_add(ticks), Relaxed);

        let sums = &self.sums[span.procedure as usize];
        add(&sums.spans, 1);
        add(&sums.ticks, ticks);
        add(&sums.own, own);
        add(&sums.amount, u64::from(span.amount));
        if ticks > sums.longest.load(Relaxed) {
            sums.longest.store(ticks, Relaxed);
        }
        let count = &sums.buckets[bucket(ticks)];
        count.store(count.load(Relaxed).saturating_add(1), Relaxed);

        let logged = self.logged.load(Relaxed);
        let entry = &self.log[(logged % LOG_SPANS as u64) as usize];
        entry.start.store(span.start, Relaxed);
        entry.ticks.store(ticks, Relaxed);
        let what = (span.procedure as u64) << 32 | u64::from(span.amount);
        entry.what.store(what, Relaxed);
        self.logged.store(logged.wrapping_add(1), Relaxed);
    }

    /// Forgets what was recorded; spans that are open go on.
    pub fn clear(&self) {
        for sums in &self.sums {
            let Sums {
                spans,
                ticks,
                own,
                longest,
                amount,
                buckets,
            } = sums;
            for word in [spans, ticks, own, longest, amount] {
                word.store(0, Relaxed);
            }
            buckets.iter().for_each(|count| count.store(0, Relaxed));
        }
        self.logged.store(0, Relaxed);
    }

    fn used(&self) -> impl Iterator<Item = (Procedure, &Sums)> {
        let with_sums = |procedure: Procedure| (procedure, &self.sums[procedure as usize]);
        let all = Procedure::ALL.into_iter().map(with_sums);
        all.filter(|(_, sums)| sums.spans.load(Relaxed) > 0)
    }

    /// The log, the oldest span first: (procedure, start, ticks, amount).
    fn spans(&self) -> impl Iterator<Item = (Procedure, u64, u64, u32)> {
        let end = self.logged.load(Relaxed);
        (end.saturating_sub(LOG_SPANS as u64)..end).map(|at| {
            let entry = &self.log[(at % LOG_SPANS as u64) as usize];
            let what = entry.what.load(Relaxed);
            let procedure = Procedure::ALL[(what >> 32) as usize % PROCEDURES];
            (
                procedure,
                entry.start.load(Relaxed),
                entry.ticks.load(Relaxed),
                what as u32,
            )
        })
    }

    /// Tables for people.
    pub fn write_text(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(
            out,
            "{:<16} {:>12} {:>16} {:>16} {:>10} {:>10} {:>10} {:>14}",
            "procedure", "spans", "ticks", "own ticks", "average", "median<", "longest", "amount"
        )?;
        for (procedure, sums) in self.used() {
            let (spans, ticks) = (sums.spans.load(Relaxed), sums.ticks.load(Relaxed));
            writeln!(
                out,
                "{:<16} {:>12} {:>16} {:>16} {:>10} {:>10} {:>10} {:>14}",
                procedure.name(),
                spans,
                ticks,
                sums.own.load(Relaxed),
                ticks / spans,
                median_below(sums),
                sums.longest.load(Relaxed),
                sums.amount.load(Relaxed),
            )?;
        }
        writeln!(out, "\nspans by ticks (each column: less than so many)")?;
        for (procedure, sums) in self.used() {
            write!(out, "{:<16}", procedure.name())?;
            for (at, count) in sums.buckets.iter().enumerate() {
                match count.load(Relaxed) {
                    0 => {}
                    count => write!(out, "  {}:{count}", 1u64 << at)?,
                }
            }
            writeln!(out)?;
        }
        writeln!(out, "\nthe last spans: start, ticks, procedure, amount")?;
        for (procedure, start, ticks, amount) in self.spans() {
            writeln!(
                out,
                "{start:>20} {ticks:>10} {:<16} {amount}",
                procedure.name()
            )?;
        }
        Ok(())
    }

    /// The same for programs: one JSON object.
    pub fn write_json(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str("{\"recording\":true,\"procedures\":[")?;
        for (at, (procedure, sums)) in self.used().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(
                out,
                "{comma}{{\"name\":\"{}\",\"spans\":{},\"ticks\":{},\"own_ticks\":{},\
                 \"longest_ticks\":{},\"amount\":{},\"log2_buckets\":[",
                procedure.name(),
                sums.spans.load(Relaxed),
                sums.ticks.load(Relaxed),
                sums.own.load(Relaxed),
                sums.longest.load(Relaxed),
                sums.amount.load(Relaxed),
            )?;
            for (at, count) in sums.buckets.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                write!(out, "{comma}{}", count.load(Relaxed))?;
            }
            out.write_str("]}")?;
        }
        out.write_str("],\"log\":[")?;
        for (at, (procedure, start, ticks, amount)) in self.spans().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let name = procedure.name();
            write!(out, "{comma}[{start},{ticks},\"{name}\",{amount}]")?;
        }
        out.write_str("]}\n")
    }
}

/// The end of the bucket in which the median lies.
fn median_below(sums: &Sums) -> u64 {
    let half = sums.spans.load(Relaxed).div_ceil(2);
    let mut seen = 0;
    for (at, count) in sums.buckets.iter().enumerate() {
        seen += u64::from(count.load(Relaxed));
        if seen >= half {
            return 1 << at;
        }
    }
    1 << BUCKETS
}

/// A procedure that is being measured.
#[must_use = "a span lasts until it is dropped or ended"]
pub struct Span<'a> {
    profile: &'a Profile,
    procedure: Procedure,
    amount: u32,
    /// `Profile::inside` of the span around this one.
    outside: u64,
    start: u64,
}

impl Span<'_> {
    /// Ends it, with what it did: bytes, frames, events.
    #[inline]
    pub fn end(mut self, amount: u32) {
        self.amount = amount;
    }
}

impl Drop for Span<'_> {
    #[inline]
    fn drop(&mut self) {
        self.profile.record(self);
    }
}
