//! States of both sides, in every order.

use fordway_netfront::{Config, Netfront, Reason, State};
use fordway_test_netfront::{Backend, Bench, FRONT, Offer, World};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

#[test]
fn the_backend_may_come_later() {
    let mut world = World::new();
    let mut netfront = Netfront::new(&mut world, Config::default());
    netfront.poll(&mut world, 0, |_| {});
    assert_eq!(netfront.states(), (State::Unknown, State::Unknown));
    assert_eq!(world.store_writes, 0, "no device, nothing to say");
    let backend = Backend::plug(&mut world, Offer::default());
    let mut bench = Bench {
        world,
        backend,
        netfront,
        received: Vec::new(),
        now_ns: 0,
    };
    bench.settle();
    bench.assert_works();
}

#[test]
fn the_backend_restarts() {
    let mut bench = Bench::up();
    for round in 1..4 {
        bench.backend.disconnect(&mut bench.world);
        bench.backend.enter(&mut bench.world, State::Closing);
        bench.poll();
        assert_eq!(bench.netfront.states().0, State::Closed);
        assert!(!bench.netfront.is_up());
        assert_eq!(bench.world.grants_in_use(), 0);
        assert_eq!(bench.send(&[0; 60]), Err(Reason::LinkDown));
        bench.settle();
        bench.assert_works();
        assert_eq!(bench.netfront.counters().connections, 1 + round);
    }
}

/// Its process died: the watch fires once it has begun again, at whatever point that is.
#[test]
fn the_backend_restarts_unseen() {
    for state in [
        State::Unknown,
        State::Initialising,
        State::InitWait,
        State::Initialised,
        State::Closed,
    ] {
        let mut bench = Bench::up();
        bench.backend.disconnect(&mut bench.world);
        bench.backend.enter(&mut bench.world, state);
        bench.poll();
        assert!(!bench.netfront.is_up(), "{state:?}");
        if !matches!(state, State::Closed | State::InitWait) {
            bench.backend.begin(&mut bench.world);
        }
        bench.settle();
        bench.assert_works();
    }
}

#[test]
fn a_device_is_unplugged_and_plugged() {
    let mut bench = Bench::up();
    for _ in 0..3 {
        bench.backend.unplug(&mut bench.world);
        bench.settle();
        assert_eq!(
            bench.netfront.states(),
            (State::Closed, State::Closed),
            "offline: stays so"
        );
        let writes = bench.world.store_writes;
        bench.backend.remove(&mut bench.world);
        bench.settle();
        assert_eq!(
            bench.world.store_writes, writes,
            "a removed directory is not made again"
        );
        assert!(bench.world.get(&format!("{FRONT}/state")).is_none());
        assert_eq!(bench.world.pages_in_use(), 0);
        bench.backend.plug_again(&mut bench.world, Offer::default());
        bench.settle();
        bench.assert_works();
    }
}

/// The toolstack moved the device to another backend while nobody looked.
#[test]
fn another_backend_takes_over() {
    let mut bench = Bench::up();
    bench.backend.disconnect(&mut bench.world);
    bench.world.put(&format!("{FRONT}/backend-id"), "9");
    bench.backend.enter(&mut bench.world, State::InitWait);
    bench.settle();
    bench.assert_works();
    let grant = bench.backend.queues[0].tx.grant;
    assert_eq!(bench.world.granted_to(grant), Some(9));
}

/// What an earlier connection wrote does not stay to mislead the backend.
#[test]
fn features_change_between_connections() {
    let config = Config {
        queues_max: 4,
        ..Config::default()
    };
    let mut bench = Bench::up_as(
        Offer {
            queues: Some(4),
            ..Offer::default()
        },
        config,
    );
    for (split, queues) in [(false, 1), (true, 2), (false, 4), (true, 1)] {
        bench.backend.disconnect(&mut bench.world);
        bench.backend.offer.split = split;
        bench.backend.offer.queues = Some(queues);
        bench.backend.enter(&mut bench.world, State::Closing);
        bench.settle();
        bench.assert_works();
        assert_eq!(bench.backend.queues.len(), queues as usize);
        let has = |name: &str| bench.world.get(&format!("{FRONT}/{name}")).is_some();
        assert_eq!(has("event-channel"), !split && queues == 1);
        assert_eq!(has("event-channel-rx"), split && queues == 1);
        assert_eq!(has("queue-1/tx-ring-ref"), queues > 1);
        assert_eq!(has("queue-3/tx-ring-ref"), queues > 3);
    }
}

#[test]
fn the_user_closes_for_good() {
    let mut bench = Bench::up();
    bench.netfront.close(&mut bench.world);
    assert_eq!(bench.netfront.states().0, State::Closing);
    bench.settle();
    assert_eq!(bench.netfront.states(), (State::Closed, State::Closed));
    assert_eq!(bench.world.pages_in_use(), 0);
    assert_eq!(bench.world.channels_in_use(), 0);
    // At any other moment, too.
    let mut bench = Bench::new(Offer::default(), Config::default());
    bench.netfront.close(&mut bench.world);
    bench.poll();
    bench.netfront.close(&mut bench.world);
    bench.settle();
    assert_eq!(bench.netfront.states().0, State::Closed);
}

/// Woken in another place: the channels and grants of before are void.
#[test]
fn the_domain_is_resumed() {
    let mut bench = Bench::up();
    bench.backend.disconnect(&mut bench.world);
    bench.backend.begin(&mut bench.world);
    bench.netfront.restart(&mut bench.world);
    bench.settle();
    bench.assert_works();
}

/// The suspend came to nothing: the same backend is there, and has not seen us let go.
#[test]
fn the_domain_was_not_suspended_after_all() {
    let mut bench = Bench::up();
    bench.netfront.suspend(&mut bench.world);
    assert!(!bench.netfront.is_up());
    bench.netfront.restart(&mut bench.world);
    bench.settle();
    bench.assert_works();
}

/// Somebody had this device before us and did not close it.
#[test]
fn the_backend_is_connected_already() {
    let mut bench = Bench::up();
    bench.netfront = Netfront::new(&mut bench.world, Config::default());
    bench.settle();
    bench.assert_works();
}

/// Without these no connection is made; another device may do better.
#[test]
fn what_a_connection_needs() {
    let no_copy = Offer {
        rx_copy: false,
        ..Offer::default()
    };
    let mut bench = Bench::new(no_copy, Config::default());
    bench.settle();
    assert_eq!(bench.drops(Reason::NoRxCopy), 1, "tried once");
    assert_eq!(bench.netfront.states().0, State::Closed);
    for mac in [
        "",
        "00:16:3e:01:02",
        "00:16:3e:01:02:03:04",
        "01:16:3e:01:02:03",
        "0:16:3e:01:02:003",
        "00:16:3e:01:02:0g",
    ] {
        let mut bench = Bench::new(Offer::default(), Config::default());
        bench.world.put(&format!("{FRONT}/mac"), mac);
        bench.settle();
        assert_eq!(bench.drops(Reason::NoMac), 1, "{mac}");
        bench.backend.unplug(&mut bench.world);
        bench.backend.remove(&mut bench.world);
        bench.settle();
        bench.backend.plug_again(&mut bench.world, Offer::default());
        bench.settle();
        bench.assert_works();
    }
}

/// Memory runs out at each page of the way up: nothing is kept, and with memory it works.
#[test]
fn memory_may_run_out_anywhere() {
    for pages in (0..30).chain([200, 256, 257, 258, 259]) {
        let mut bench = Bench::new(
            Offer {
                queues: Some(2),
                ..Offer::default()
            },
            Config {
                queues_max: 2,
                ..Config::default()
            },
        );
        bench.world.pages_max = Some(pages);
        bench.settle();
        bench.world.pages_max = None;
        if !bench.netfront.is_up() {
            assert_eq!(bench.drops(Reason::NoMemory), 1, "{pages} pages");
            assert_eq!(bench.world.pages_in_use(), 0);
            bench.netfront.restart(&mut bench.world);
            bench.settle();
        }
        bench.assert_works();
    }
}

/// The link is up exactly when both sides are Connected.
fn check(bench: &Bench, said: State) {
    let (ours, theirs) = bench.netfront.states();
    assert_eq!(theirs, said);
    assert!(!bench.netfront.is_up() || (ours, theirs) == (State::Connected, State::Connected));
    let connected = matches!(ours, State::Connected | State::Closing);
    assert!(
        connected || bench.world.channels_in_use() == 0,
        "{ours:?} has channels open"
    );
}

/// From each pair of states the backend can take each next one.
#[test]
fn every_pair_of_steps() {
    for first in State::ALL {
        for second in State::ALL {
            for third in State::ALL {
                let mut bench = Bench::up();
                for state in [first, second, third] {
                    bench.backend.disconnect(&mut bench.world);
                    bench.backend.enter(&mut bench.world, state);
                    bench.poll();
                    check(&bench, state);
                }
                bench.backend.begin(&mut bench.world);
                bench.settle();
                bench.assert_works();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    /// States that flip at random, with or without letting the rings go; then an honest start.
    #[test]
    fn states_flip_at_random(steps in proptest::collection::vec((0..7_usize, any::<bool>(), 0..3_usize), 0..60)) {
        let mut bench = Bench::new(Offer::default(), Config::default());
        for (state, disconnects, polls) in steps {
            if disconnects {
                bench.backend.disconnect(&mut bench.world);
            }
            bench.backend.enter(&mut bench.world, State::ALL[state]);
            for _ in 0..polls {
                bench.poll();
                check(&bench, State::ALL[state]);
            }
        }
        bench.backend.disconnect(&mut bench.world);
        bench.backend.enter(&mut bench.world, State::Closing);
        bench.settle();
        bench.assert_works();
        prop_assert_eq!(bench.backend.state, State::Connected);
    }
}
