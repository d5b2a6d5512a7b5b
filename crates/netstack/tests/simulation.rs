//! Throughput over links that lose, reorder, double and delay, as a table that is compared with
//! the one in the tree. A change of behaviour shows as a change of this table; whether it is
//! meant is for the author to say: `FORDWAY_SNAPSHOT=write cargo test -p fordway-netstack --test simulation`.
//!
//! The clock is simulated and the seeds are fixed, so the figures are the same everywhere.

mod common;

use std::fmt::Write as _;
use std::path::Path;

use common::{Conditions, World, at};
use fordway_netstack::{Congestion, Error, TcpOptions};

const TOTAL: usize = 2_000_000;
const GIVE_UP_US: u64 = 3_000_000_000;
const SEEDS: u64 = 3;

/// Moves `TOTAL` bytes one way and compares each; gives what it took.
fn seconds(conditions: Conditions, buffer_bytes: usize, congestion: Congestion, seed: u64) -> f64 {
    let options = TcpOptions {
        receive_bytes: buffer_bytes,
        send_bytes: buffer_bytes,
        congestion,
        ..TcpOptions::default()
    };
    let mut world = World::new(Conditions {
        delay_us: conditions.delay_us,
        ..Conditions::default()
    });
    let listener = world.sides[1]
        .tcp_listen(None, 80, 4, options)
        .expect("listens");
    let now = world.now;
    let client = world.sides[0]
        .tcp_connect(now, at(1, 80), None, options)
        .expect("begins");
    world.run(1_000_000);
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    world.conditions = conditions;
    world.rng = fastrand::Rng::with_seed(seed);
    let byte = |at: usize| (at * 13 + at / 255) as u8;
    let bytes: Vec<u8> = (0..TOTAL).map(byte).collect();
    let (start, mut sent, mut received) = (world.now, 0, 0);
    let mut buffer = vec![0; 65_536];
    while received < TOTAL {
        while sent < TOTAL {
            match world.sides[0].tcp_send(client, &bytes[sent..]) {
                Ok(len) => sent += len,
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(
            world.step(start + GIVE_UP_US),
            "stuck at {received} of {TOTAL}: {conditions:?}"
        );
        while let Ok(len) = world.sides[1].tcp_receive(server, &mut buffer) {
            assert!(len > 0, "ended early");
            assert!(
                buffer[..len] == bytes[received..received + len],
                "wrong bytes"
            );
            received += len;
        }
    }
    (world.now - start) as f64 / 1e6
}

fn table() -> String {
    let mut text = String::from(
        "Megabytes per second of one connection, 100 Mbit/s link, 2 ms each way, mean of 3 seeds\n\
         (simulated: what the stack makes of a link, not what a CPU can do)\n\n\
         link                           buffers   cubic    none\n",
    );
    let clean = Conditions {
        delay_us: 2_000,
        bits_per_us: 100,
        ..Conditions::default()
    };
    let links = [
        ("clean", clean),
        (
            "0.1 % lost",
            Conditions {
                loss_per_mille: 1,
                ..clean
            },
        ),
        (
            "1 % lost",
            Conditions {
                loss_per_mille: 10,
                ..clean
            },
        ),
        (
            "5 % lost",
            Conditions {
                loss_per_mille: 50,
                ..clean
            },
        ),
        (
            "1 % overtaken",
            Conditions {
                reorder_per_mille: 10,
                ..clean
            },
        ),
        (
            "10 % overtaken",
            Conditions {
                reorder_per_mille: 100,
                ..clean
            },
        ),
        (
            "5 % doubled",
            Conditions {
                double_per_mille: 50,
                ..clean
            },
        ),
        (
            "1 % lost, 5 % overtaken, doubled",
            Conditions {
                loss_per_mille: 10,
                reorder_per_mille: 50,
                double_per_mille: 50,
                ..clean
            },
        ),
    ];
    for (name, conditions) in links {
        for buffer_bytes in [8 * 1024, 64 * 1024, 256 * 1024] {
            let rate = |congestion| {
                let total: f64 = (0..SEEDS)
                    .map(|s| seconds(conditions, buffer_bytes, congestion, s))
                    .sum();
                TOTAL as f64 * SEEDS as f64 / total / 1e6
            };
            let (cubic, none) = (rate(Congestion::Cubic), rate(Congestion::None));
            let kib = buffer_bytes / 1024;
            writeln!(text, "{name:<33} {kib:>4} K  {cubic:>6.3}  {none:>6.3}").expect("a string");
        }
    }
    text
}

#[test]
fn throughput_is_as_in_the_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation.txt");
    let text = table();
    if std::env::var_os("FORDWAY_SNAPSHOT").is_some_and(|word| word == "write") {
        std::fs::write(&file, &text).expect("the table is written");
    }
    let kept = std::fs::read_to_string(&file).expect("the table is in the tree");
    assert!(
        text == kept,
        "the table has changed:\n{text}\nit was:\n{kept}"
    );
}

#[test]
fn the_table_is_the_same_twice() {
    let conditions = Conditions {
        loss_per_mille: 10,
        delay_us: 2_000,
        bits_per_us: 100,
        ..Conditions::default()
    };
    let first = seconds(conditions, 65_536, Congestion::Cubic, 1);
    assert_eq!(first, seconds(conditions, 65_536, Congestion::Cubic, 1));
    assert_ne!(first, seconds(conditions, 65_536, Congestion::Cubic, 2));
}
