//! Timers against a model: whatever is set, dropped and advanced, each wakes at its time, once,
//! in order; and the executor says truly when to come back.

use fordway_executor::{Elapsed, Executor, Next, TaskId};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn sleepers_wake_in_order_of_their_times_then_of_their_setting() {
    let mut executor = Executor::new(8);
    let log = Rc::new(RefCell::new(Vec::new()));
    for (name, deadline_us) in [(0, 30), (1, 10), (2, 20), (3, 10), (4, 0)] {
        let (timers, log) = (executor.timers(), log.clone());
        executor
            .spawn(async move {
                timers.sleep_until(deadline_us).await;
                log.borrow_mut().push((name, timers.now_us()));
            })
            .unwrap();
    }
    assert_eq!(executor.run_ready(0), Next::At(10));
    assert_eq!(executor.run_ready(9), Next::At(10));
    assert_eq!(executor.run_ready(15), Next::At(20));
    // Time does not go back.
    assert_eq!(executor.run_ready(3), Next::At(20));
    assert_eq!(executor.run_ready(40), Next::Idle);
    assert_eq!(log.borrow()[..3], [(4, 0), (1, 15), (3, 15)]);
    assert_eq!(log.borrow().len(), 5);
}

#[test]
fn a_timeout_gives_the_work_or_the_time() {
    let mut executor = Executor::new(4);
    let results = Rc::new(RefCell::new(Vec::new()));
    for work_us in [5, 50] {
        let (timers, results) = (executor.timers(), results.clone());
        executor
            .spawn(async move {
                let work = timers.sleep_until(work_us);
                let result = timers.timeout_at(20, work).await;
                results.borrow_mut().push((work_us, result));
            })
            .unwrap();
    }
    assert_eq!(executor.run_ready(1), Next::At(5));
    assert_eq!(executor.run_ready(20), Next::Idle);
    assert_eq!(*results.borrow(), [(5, Ok(())), (50, Err(Elapsed))]);
    // What was not waited for to its end is no timer any more.
    assert_eq!(executor.timers().waiting(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    /// A task that sleeps these times, one after the other.
    Spawn(Vec<u16>),
    End(prop::sample::Index),
    Advance(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(0..50u16, 1..4).prop_map(Step::Spawn),
        2 => any::<prop::sample::Index>().prop_map(Step::End),
        4 => (0..40u16).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..120)
}

/// A task as the model sees it: when it wakes next and what it sleeps then.
struct Sleeper {
    id: TaskId,
    name: usize,
    due_us: u64,
    rest: Vec<u16>,
}

proptest! {
    #[test]
    fn timers_do_as_the_model(steps in steps()) {
        let mut executor = Executor::new(64);
        let woken = Rc::new(RefCell::new(Vec::new()));
        let mut model: Vec<Sleeper> = Vec::new();
        let mut now_us = 0;
        for (name, step) in steps.into_iter().enumerate() {
            match step {
                Step::Spawn(sleeps) => {
                    let (timers, woken, all) = (executor.timers(), woken.clone(), sleeps.clone());
                    let spawned = executor.spawn(async move {
                        for sleep_us in all {
                            timers.sleep(u64::from(sleep_us)).await;
                            woken.borrow_mut().push((name, timers.now_us()));
                        }
                    });
                    prop_assert_eq!(spawned.is_ok(), model.len() < 64);
                    if let Ok(id) = spawned {
                        let due_us = now_us + u64::from(sleeps[0]);
                        model.push(Sleeper { id, name, due_us, rest: sleeps[1..].to_vec() });
                    }
                }
                Step::End(which) if !model.is_empty() => {
                    let ended = model.remove(which.index(model.len()));
                    prop_assert!(executor.spawner().end(ended.id));
                }
                Step::End(_) => {}
                Step::Advance(by_us) => now_us += u64::from(by_us),
            }
            let next = executor.run_ready(now_us);
            let mut expected = Vec::new();
            model.retain_mut(|sleeper| {
                while sleeper.due_us <= now_us {
                    expected.push((sleeper.name, now_us));
                    if sleeper.rest.is_empty() {
                        return false;
                    }
                    sleeper.due_us = now_us + u64::from(sleeper.rest.remove(0));
                }
                true
            });
            let mut seen = std::mem::take(&mut *woken.borrow_mut());
            seen.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(seen, expected);
            let first = model.iter().map(|s| s.due_us).min();
            prop_assert_eq!(next, first.map_or(Next::Idle, Next::At));
            prop_assert_eq!(executor.timers().waiting(), model.len());
        }
    }
}
