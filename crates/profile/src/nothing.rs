//! What is left when nothing is recorded: the same calls, without size and without code.

use crate::Procedure;
use core::fmt::{self, Write};
use core::marker::PhantomData;

/// Records nothing.
pub struct Profile(());

impl Profile {
    /// Forgets the source of ticks.
    pub const fn new(_: fn() -> u64) -> Profile {
        Profile(())
    }

    /// Whether this build records.
    pub const fn is_recording(&self) -> bool {
        false
    }

    /// A span that is not measured.
    #[inline(always)]
    pub fn span(&self, _: Procedure) -> Span<'_> {
        Span(PhantomData)
    }

    /// Nothing to forget.
    pub fn clear(&self) {}

    /// Says that nothing is recorded.
    pub fn write_text(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str("nothing is recorded: built without the feature `record`\n")
    }

    /// Says that nothing is recorded.
    pub fn write_json(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str("{\"recording\":false,\"procedures\":[],\"log\":[]}\n")
    }
}

/// A span that is not measured.
#[must_use = "a span lasts until it is dropped or ended"]
pub struct Span<'a>(PhantomData<&'a ()>);

impl Span<'_> {
    /// Ends it.
    #[inline(always)]
    pub fn end(self, _: u32) {}
}
