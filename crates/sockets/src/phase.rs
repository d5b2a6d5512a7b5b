//! Where a connection stands, and the one place that moves it.
//!
//! ```text
//!   event      from     to       who                                        holds
//!   Opened     FREE     KERNEL   who has taken the entry                    -
//!   Offered    KERNEL   OFFERED  any call of the program                    -
//!   Voided     OFFERED  KERNEL   who finds the offer void: the reader of    mail, once the broker
//!                                the mail, a close, a forked child          has the offer
//!   Paired     OFFERED  PAIRED   the reader of the mail                     mail, list of items
//!   Left       PAIRED   KERNEL   who gives the channel up or closes; or a   both halves; or nothing
//!                                child that finds its parent has
//!   Freed      any      FREE     the last close                             mail
//! ```
//! KERNEL and OFFERED: each call goes to the kernel. PAIRED: each call looks at the endpoint first.
//! A step is one exchange: of several threads that see the same event, one makes the step and does
//! what follows from it; the others are told where the connection stands. What a step must not
//! come before is the caller's to have done, for whoever sees the new phase acts on it at once.

use core::sync::atomic::{AtomicU32, Ordering};

/// Not in use.
pub const FREE: u32 = 0;
/// On the kernel path.
pub const KERNEL: u32 = 1;
/// Offered to the broker, still on the kernel path.
pub const OFFERED: u32 = 2;
/// Has a channel.
pub const PAIRED: u32 = 3;

/// What moves a connection. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program has a socket for it.
    Opened,
    /// The broker is about to be told of it.
    Offered,
    /// The offer was refused, withdrawn or lost, or is a parent's.
    Voided,
    /// The broker has cut a channel for it, and the endpoint is bound.
    Paired,
    /// Its channel is over, or no longer its own.
    Left,
    /// Its last descriptor is gone.
    Freed,
}

/// A connection's phase. Zero is [`FREE`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Phase(AtomicU32);

impl Phase {
    /// Where the connection stands.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    /// Makes the step of `event`. `Err`: where the connection stands instead.
    pub fn transition(&self, event: Event) -> Result<(), u32> {
        let (from, to) = match event {
            Event::Opened => (FREE, KERNEL),
            Event::Offered => (KERNEL, OFFERED),
            Event::Voided => (OFFERED, KERNEL),
            Event::Paired => (OFFERED, PAIRED),
            Event::Left => (PAIRED, KERNEL),
            Event::Freed => {
                self.0.store(FREE, Ordering::SeqCst);
                return Ok(());
            }
        };
        // SYNC POINT with a thread that counts itself unaware: the step before the look at the count.
        let order = Ordering::SeqCst;
        let made = self.0.compare_exchange(from, to, order, order);
        made.map(|_| ())
    }

    /// As [`Phase::transition`], for a caller who knows the phase: by what it holds, no other thread
    /// makes a step meanwhile.
    pub fn advance(&self, event: Event) {
        let made = self.transition(event);
        debug_assert!(made.is_ok(), "{event:?}, but the phase is {made:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 6] = [
        Event::Opened,
        Event::Offered,
        Event::Voided,
        Event::Paired,
        Event::Left,
        Event::Freed,
    ];

    #[test]
    fn each_event_moves_from_its_phase_alone() {
        let steps = [
            (FREE, Event::Opened, KERNEL),
            (KERNEL, Event::Offered, OFFERED),
            (OFFERED, Event::Voided, KERNEL),
            (OFFERED, Event::Paired, PAIRED),
            (PAIRED, Event::Left, KERNEL),
        ];
        for from in [FREE, KERNEL, OFFERED, PAIRED] {
            for event in EVENTS {
                let phase = Phase(AtomicU32::new(from));
                let step = steps.iter().find(|step| (step.0, step.1) == (from, event));
                let expected = match (step, event) {
                    (_, Event::Freed) => Ok(FREE),
                    (Some(step), _) => Ok(step.2),
                    (None, _) => Err(from),
                };
                let made = phase.transition(event);
                assert_eq!(made.map(|()| phase.load(Ordering::Relaxed)), expected);
                assert_eq!(phase.load(Ordering::Relaxed), expected.unwrap_or(from));
            }
        }
    }
}
