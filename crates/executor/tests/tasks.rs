//! Tasks are spawned, woken, ended; each at most once a pass, and in turn.

use fordway_executor::{Executor, Full, Next, Signal, Spawner, yield_now};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Something that counts how often it was dropped.
struct Dropped(Rc<Cell<u32>>);
impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn a_task_runs_to_its_end_and_its_place_is_used_again() {
    let mut executor = Executor::new(1);
    let ran = Rc::new(Cell::new(0));
    for turn in 1..=3 {
        let counted = ran.clone();
        let id = executor
            .spawn(async move { counted.set(counted.get() + 1) })
            .unwrap();
        assert_eq!(executor.spawn(async {}), Err(Full));
        assert!(executor.spawner().is_alive(id));
        assert_eq!(executor.run_ready(0), Next::Idle);
        assert!(!executor.spawner().is_alive(id));
        assert!(!executor.spawner().end(id));
        assert_eq!(ran.get(), turn);
    }
    assert_eq!(executor.spawner().alive(), 0);
}

#[test]
fn a_signal_set_before_the_wait_is_not_lost_and_is_seen_once() {
    let mut executor = Executor::new(4);
    let (signal, seen) = (Signal::new(), Rc::new(Cell::new(0)));
    let (waited, counted) = (signal.clone(), seen.clone());
    executor
        .spawn(async move {
            loop {
                waited.wait().await;
                counted.set(counted.get() + 1);
            }
        })
        .unwrap();
    signal.set();
    signal.set();
    assert_eq!(executor.run_ready(0), Next::Idle);
    assert_eq!(seen.get(), 1);
    assert_eq!(executor.run_ready(0), Next::Idle);
    assert_eq!(seen.get(), 1);
    signal.set();
    executor.run_ready(0);
    assert_eq!(seen.get(), 2);
}

#[test]
fn a_signal_rings_for_nobody_who_does_not_wait() {
    let mut executor = Executor::new(4);
    let (first, second) = (Signal::new(), Signal::new());
    let (waited, other) = (first.clone(), second.clone());
    let polls = Rc::new(Cell::new(0));
    let counted = polls.clone();
    let mut work = Box::pin(async move {
        waited.wait().await;
        other.wait().await;
        waited.wait().await;
    });
    executor
        .spawn(poll_fn(move |context: &mut Context<'_>| {
            counted.set(counted.get() + 1);
            work.as_mut().poll(context)
        }))
        .unwrap();
    let polls_after = |executor: &mut Executor| {
        executor.run_ready(0);
        polls.replace(0)
    };
    assert_eq!(polls_after(&mut executor), 1);
    first.set();
    assert_eq!(polls_after(&mut executor), 1);
    // It waits for the other one now.
    first.set();
    assert_eq!(polls_after(&mut executor), 0);
    second.set();
    assert_eq!(polls_after(&mut executor), 1);
    assert_eq!(executor.spawner().alive(), 0, "the first was set meanwhile");
}

#[test]
fn whoever_yields_is_polled_once_a_pass_beside_all_others() {
    const TASKS: usize = 200;
    let mut executor = Executor::new(TASKS as u32);
    let log = Rc::new(RefCell::new(Vec::new()));
    for task in 0..TASKS {
        let log = log.clone();
        executor
            .spawn(async move {
                for _ in 0..3 {
                    log.borrow_mut().push(task);
                    yield_now().await;
                }
            })
            .unwrap();
    }
    for pass in 0..3 {
        assert_eq!(executor.run_ready(pass), Next::Again);
        let mut polled = std::mem::take(&mut *log.borrow_mut());
        polled.sort_unstable();
        assert_eq!(polled, (0..TASKS).collect::<Vec<_>>());
    }
    assert_eq!(executor.run_ready(3), Next::Idle);
    assert_eq!(executor.spawner().alive(), 0);
}

#[test]
fn an_ended_task_is_dropped_at_once_and_late_wakers_disturb_nobody() {
    let mut executor = Executor::new(2);
    let dropped = Rc::new(Cell::new(0));
    let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
    let (held, keep) = (Dropped(dropped.clone()), kept.clone());
    let id = executor
        .spawn(poll_fn(move |context: &mut Context<'_>| {
            let _ = &held;
            *keep.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        }))
        .unwrap();
    executor.run_ready(0);
    assert!(executor.spawner().end(id));
    assert_eq!(dropped.get(), 1);
    kept.borrow().as_ref().unwrap().wake_by_ref();
    assert_eq!(executor.run_ready(0), Next::Idle);

    // The place's next owner gets a poll for nothing, and goes on.
    let polls = Rc::new(Cell::new(0));
    let counted = polls.clone();
    let next = executor
        .spawn(poll_fn(move |_: &mut Context<'_>| {
            counted.set(counted.get() + 1);
            Poll::<()>::Pending
        }))
        .unwrap();
    assert_ne!(next, id);
    executor.run_ready(0);
    kept.borrow().as_ref().unwrap().wake_by_ref();
    executor.run_ready(0);
    assert_eq!(polls.get(), 2);
}

#[test]
fn tasks_spawn_and_end_others_and_themselves() {
    let mut executor = Executor::new(3);
    let spawner = executor.spawner();
    let dropped = Rc::new(Cell::new(0));
    let own: Rc<Cell<Option<fordway_executor::TaskId>>> = Rc::default();
    let (held, name, inner) = (Dropped(dropped.clone()), own.clone(), spawner.clone());
    let id = spawner
        .spawn(async move {
            let _held = held;
            let child = inner.spawn(std::future::pending()).unwrap();
            yield_now().await;
            assert!(inner.end(child));
            assert!(inner.end(name.get().unwrap()));
            // Still running; gone at the next wait.
            assert_eq!(inner.alive(), 0);
            std::future::pending::<()>().await;
        })
        .unwrap();
    own.set(Some(id));
    assert_eq!(executor.run_ready(0), Next::Again);
    assert_eq!(spawner.alive(), 2);
    assert_eq!(executor.run_ready(0), Next::Idle);
    assert_eq!((spawner.alive(), dropped.get()), (0, 1));
}

/// Ends its neighbour as it goes, while the spawner handles its own end.
struct EndsOther(Spawner, fordway_executor::TaskId);
impl Drop for EndsOther {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}
impl Future for EndsOther {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

#[test]
fn what_a_task_owns_may_end_others_as_it_goes() {
    let mut executor = Executor::new(4);
    let spawner = executor.spawner();
    let other = spawner.spawn(std::future::pending()).unwrap();
    spawner.spawn(EndsOther(spawner.clone(), other)).unwrap();
    executor.run_ready(0);
    assert_eq!(spawner.alive(), 0);
    let other = spawner.spawn(std::future::pending()).unwrap();
    let first = spawner.spawn(EndsOther(spawner.clone(), other)).unwrap();
    assert!(spawner.end(first));
    assert_eq!(spawner.alive(), 0);
}

#[test]
fn an_executor_that_goes_drops_tasks_that_hold_it() {
    let dropped = Rc::new(Cell::new(0));
    let executor = Executor::new(2);
    let (held, spawner) = (Dropped(dropped.clone()), executor.spawner());
    executor
        .spawn(async move {
            let _both = (held, spawner);
            std::future::pending::<()>().await;
        })
        .unwrap();
    drop(executor);
    assert_eq!(dropped.get(), 1);
}

#[test]
fn wakers_work_from_other_threads() {
    let mut executor = Executor::new(300);
    let (sent, received) = std::sync::mpsc::channel::<Waker>();
    let rounds = Rc::new(Cell::new(0u32));
    const ROUNDS: u32 = 2000;
    for _ in 0..3 {
        let (sent, rounds) = (sent.clone(), rounds.clone());
        let mut left = ROUNDS;
        executor
            .spawn(poll_fn(move |context: &mut Context<'_>| {
                rounds.set(rounds.get() + 1);
                left -= 1;
                if left == 0 {
                    return Poll::Ready(());
                }
                sent.send(context.waker().clone()).unwrap();
                Poll::Pending
            }))
            .unwrap();
    }
    drop(sent);
    let other = std::thread::spawn(move || received.into_iter().for_each(Waker::wake));
    while executor.spawner().alive() > 0 {
        executor.run_ready(0);
        std::thread::yield_now();
    }
    assert_eq!(rounds.get(), 3 * ROUNDS);
    other.join().unwrap();
}
