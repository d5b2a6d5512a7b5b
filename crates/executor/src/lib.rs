//! A cooperative executor for one thread: tasks, timers, signals; no clock and no sleep of its own.
//!
//! ```text
//!   main loop:  next = executor.run_ready(now_us) ──► Again: call again after a look at the devices
//!                                                 ├─► At(t): sleep until t or an event
//!                                                 └─► Idle:  sleep until an event
//!   event ──► Signal::set / a waker ──► the task's bit in the ready bitmap ──► polled by run_ready
//!   time  ──► run_ready(now_us) ──► timers that are due ──► their wakers ──► the same bitmap
//! ```
//! - The run queue is a bitmap with one bit for each place of a task ([`ready`]): waking is one
//!   atomic OR, a task is in it at most once, and it cannot overflow. Wakers may be used from any
//!   thread; everything else stays on one.
//! - One call of [`Executor::run_ready`] polls each ready task once, in the order of its places,
//!   beginning behind the last one polled before. A task that wakes itself waits for the next
//!   call, so that the caller's devices get their turn.
//! - A poll allocates nothing: a task's waker is made when it is spawned, and a timer keeps its
//!   place in the heap ([`timer`]) until it is due or dropped.
//! - Limits: the number of tasks is fixed when the executor is made; a timer that is waited for
//!   belongs to a task, so there are as many as tasks wait for.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ready;
mod signal;
mod timer;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use ready::Ready;
pub use signal::{Signal, Wait, YieldNow, yield_now};
pub use timer::{Elapsed, Sleep, Timeout, Timers};

/// When [`Executor::run_ready`] wants to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Tasks are ready already.
    Again,
    /// At this time, in the caller's microseconds, or when something was woken.
    At(u64),
    /// When something was woken: no timer runs.
    Idle,
}

/// Names a task, also after its end: places are used again, names are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    place: u32,
    turn: u32,
}

/// All places for tasks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no place for another task")
    }
}

impl core::error::Error for Full {}

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// What a task's wakers share. A waker that outlives its task wakes whoever has the place then,
/// which costs that task a poll for nothing.
struct Doorbell {
    place: usize,
    ready: Arc<Ready>,
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ready.mark(self.place);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.mark(self.place);
    }
}

struct Place {
    /// Taken out while the task is polled.
    waker: Option<Waker>,
    turn: u32,
    state: State,
}

enum State {
    Free,
    Waiting(Work),
    /// Taken out for its poll. It may be ended meanwhile, by itself too.
    Polled,
}

#[derive(Default)]
struct Places {
    all: Vec<Place>,
    free: Vec<u32>,
}

/// Spawns and ends tasks; from within tasks too.
#[derive(Clone)]
pub struct Spawner {
    places: Rc<RefCell<Places>>,
    ready: Arc<Ready>,
}

impl Spawner {
    /// Puts a task into a free place; it is polled first by the next [`Executor::run_ready`].
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) -> Result<TaskId, Full> {
        let work: Work = Box::pin(work);
        let mut places = self.places.borrow_mut();
        let at = places.free.pop().ok_or(Full)?;
        let place = &mut places.all[at as usize];
        place.state = State::Waiting(work);
        self.ready.mark(at as usize);
        Ok(TaskId {
            place: at,
            turn: place.turn,
        })
    }

    /// Ends a task where it waits; false if it has ended already. A task may end itself: it is
    /// dropped when it waits next.
    pub fn end(&self, id: TaskId) -> bool {
        // Dropped after the borrow: what a task owns may end or spawn others as it goes.
        let _ended = {
            let mut places = self.places.borrow_mut();
            if !places.holds(id) {
                return false;
            }
            places.vacate(id.place)
        };
        true
    }

    /// Whether the task has neither returned nor been ended.
    pub fn is_alive(&self, id: TaskId) -> bool {
        self.places.borrow().holds(id)
    }

    /// Number of tasks alive.
    pub fn alive(&self) -> usize {
        let places = self.places.borrow();
        places.all.len() - places.free.len()
    }
}

impl Places {
    fn holds(&self, id: TaskId) -> bool {
        let place = self.all.get(id.place as usize);
        place.is_some_and(|p| p.turn == id.turn && !matches!(p.state, State::Free))
    }

    fn vacate(&mut self, at: u32) -> State {
        let place = &mut self.all[at as usize];
        place.turn = place.turn.wrapping_add(1);
        self.free.push(at);
        core::mem::replace(&mut place.state, State::Free)
    }
}

/// The tasks, their run queue and their timers. See the module's description.
pub struct Executor {
    spawner: Spawner,
    timers: Timers,
    /// Where the next pass begins.
    cursor: usize,
}

impl Executor {
    /// Room for `tasks_max` tasks; all of it is taken here.
    pub fn new(tasks_max: u32) -> Executor {
        let ready = Arc::new(Ready::new(tasks_max as usize));
        let place = |at: u32| Place {
            waker: Some(Waker::from(Arc::new(Doorbell {
                place: at as usize,
                ready: ready.clone(),
            }))),
            turn: 0,
            state: State::Free,
        };
        let places = Places {
            all: (0..tasks_max).map(place).collect(),
            free: (0..tasks_max).rev().collect(),
        };
        Executor {
            spawner: Spawner {
                places: Rc::new(RefCell::new(places)),
                ready,
            },
            timers: Timers::new(),
            cursor: 0,
        }
    }

    /// A handle to spawn and end tasks by, also from within tasks.
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// A handle for tasks that sleep.
    pub fn timers(&self) -> Timers {
        self.timers.clone()
    }

    /// [`Spawner::spawn`].
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) -> Result<TaskId, Full> {
        self.spawner.spawn(work)
    }

    /// Wakes what is due at `now_us`, polls each task that is ready once, and says when to come
    /// back. A time before an earlier call's is taken for that one.
    pub fn run_ready(&mut self, now_us: u64) -> Next {
        self.timers.advance(now_us);
        let ready = self.spawner.ready.clone();
        let (start, mut from, mut wrapped) = (self.cursor, self.cursor, false);
        loop {
            let end = if wrapped { start } else { ready.places() };
            match ready.take_first(from, end) {
                Some(at) => {
                    self.poll(at);
                    from = at + 1;
                    self.cursor = from;
                }
                None if wrapped => break,
                None => (wrapped, from) = (true, 0),
            }
        }
        if ready.any() {
            return Next::Again;
        }
        self.timers.first().map_or(Next::Idle, Next::At)
    }

    fn poll(&mut self, at: usize) {
        let (mut work, waker, turn) = {
            let mut places = self.spawner.places.borrow_mut();
            let place = &mut places.all[at];
            let state = core::mem::replace(&mut place.state, State::Polled);
            match (state, place.waker.take()) {
                (State::Waiting(work), Some(waker)) => (work, waker, place.turn),
                // Woken after its end.
                (other, waker) => {
                    (place.state, place.waker) = (other, waker);
                    return;
                }
            }
        };
        let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
        let mut places = self.spawner.places.borrow_mut();
        let place = &mut places.all[at];
        place.waker = Some(waker);
        if place.turn == turn {
            match polled {
                Poll::Pending => {
                    place.state = State::Waiting(work);
                    return;
                }
                Poll::Ready(()) => drop(places.vacate(at as u32)),
            }
        }
        // The task is over; what it owned may call the spawner as it goes.
        drop(places);
        drop(work);
    }
}

impl Drop for Executor {
    /// Ends all tasks, which may themselves hold handles to this executor.
    fn drop(&mut self) {
        let all = self.spawner.places.borrow().all.len();
        for at in 0..all {
            let state = {
                let mut places = self.spawner.places.borrow_mut();
                core::mem::replace(&mut places.all[at].state, State::Polled)
            };
            drop(state);
        }
    }
}
