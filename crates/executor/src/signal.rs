//! A flag that one task waits for, and giving way to the others.

use alloc::rc::Rc;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// Something has happened, for one task that waits for it: set as often as one likes before the
/// wait, it is seen once. Cloned handles are one signal.
#[derive(Clone, Default)]
pub struct Signal {
    inner: Rc<RefCell<Inner>>,
}

#[derive(Default)]
struct Inner {
    is_set: bool,
    is_awaited: bool,
    /// Of the task that waited last; kept, as it is mostly the next one, too.
    waker: Option<Waker>,
}

impl Signal {
    /// A signal that is not set.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Sets it, and wakes the task that waits.
    pub fn set(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.is_set = true;
        if core::mem::take(&mut inner.is_awaited)
            && let Some(waker) = &inner.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Ready when it is set; clears it. The task that waited last is the one that is woken.
    pub fn wait(&self) -> Wait<'_> {
        Wait { signal: self }
    }
}

/// See [`Signal::wait`].
pub struct Wait<'a> {
    signal: &'a Signal,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.signal.inner.borrow_mut();
        inner.is_awaited = !core::mem::take(&mut inner.is_set);
        if !inner.is_awaited {
            return Poll::Ready(());
        }
        match &mut inner.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// Lets every other task that is ready, and the executor's caller, have a turn.
pub fn yield_now() -> YieldNow {
    YieldNow { has_yielded: false }
}

/// See [`yield_now`].
pub struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if core::mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
