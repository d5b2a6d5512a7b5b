//! Where the time goes on a packet's path: ticks for each procedure, as sums, log2 histograms
//! and a log of the last spans, all in memory that is there from the start.
//!
//! ```text
//!   static PROFILE: Profile = Profile::new(rdtsc);     (or by hand: any fn() -> u64 that counts up)
//!   let span = PROFILE.span(Procedure::StackReceive);  ── ticks() ──┐
//!       ... the work, other spans inside ...                        │ ticks, and ticks without those
//!   span.end(bytes)  or drop                           ── ticks() ──┘ of the spans inside (own)
//!   GET /profile ──► write_text, write_json
//! ```
//! - Spans nest, and must end in the opposite order, which scopes do by themselves.
//! - One thread records. The counters are atomics that are loaded and stored, not added to: cheap
//!   and safe, but two threads that record at once lose counts (nothing else).
//! - Without the feature `record` a [`Profile`] has no size, a span calls nothing, and the pages
//!   say that nothing is recorded. So the calls stay in the code of every build.
#![no_std]
#![forbid(unsafe_code)]

mod procedure;
pub use procedure::Procedure;

#[cfg(feature = "record")]
mod record;
#[cfg(feature = "record")]
pub use record::{Profile, Span};

#[cfg(not(feature = "record"))]
mod nothing;
#[cfg(not(feature = "record"))]
pub use nothing::{Profile, Span};

/// Number of spans that the log keeps.
pub const LOG_SPANS: usize = 512;

/// Buckets of a histogram: bucket `n` counts spans of `2^(n-1)` up to `2^n` ticks, bucket 0
/// those of none, the last one everything longer too.
pub const BUCKETS: usize = 32;
