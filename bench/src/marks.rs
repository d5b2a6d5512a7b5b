//! What the figures shall reach, and whether the rows of a run do. A mark is a goal with
//! a name; where it differs between near and far CPUs, each regime has its own. Speeds are
//! ratios to TCP over loopback, unless a mark names another rival.
//!
//! First stand the headlines: each side where it is fastest (`best`). Then what users have, for
//! whom the scheduler places programs (`free`); then each program on a CPU of its own (`apart`).
//!
//! A mark is met if the interval of its figure ([`crate::pairs`]) lies on the goal's better side,
//! and missed if on the other. Else the run leaves it open. Fewer than [`PAIRS_MIN`] samples say
//! nothing. What is counted (bytes of memory, wake-ups) is met or missed as it is. A row that uses more CPU for the same work than the kernel's path at its place says so.

use crate::distance::Regime;
use crate::micro::job::{COM_PREFIXES, CURVE_PREFIX};
use crate::pairs::{self, PAIRS_MIN, median};
use crate::report::{self, Row, Table};
use crate::{reach, stack};

/// The kernel path within one domain.
pub(crate) const LOOPBACK: &str = "kernel-loopback";

/// The kernel path between domains.
const BRIDGE: &str = "kernel-bridge";

/// A goal.
#[derive(Clone, Copy)]
struct Mark {
    what: &'static str,
    goal: Goal,
}

/// How it is read off the rows.
#[derive(Clone, Copy)]
enum Goal {
    /// The ratio of a row is at least `near` or `far`.
    Ratio {
        work: &'static str,
        place: &'static str,
        rival: &'static str,
        near: f64,
        far: f64,
    },
    /// The CPU time of a row for the same work is at most the rival's.
    Cpu {
        work: &'static str,
        place: &'static str,
        rival: &'static str,
    },
    /// The ratio of each row that `of` picks, to TCP as the row has it, is at least 1.
    NeverBelow { of: fn(&Row) -> bool },
    /// The ratio to this rival is at least `least` at each size of the published curve, or at one.
    Curve {
        rival: &'static str,
        least: f64,
        at_each: bool,
    },
    /// Our own figure of row `work` is at most `most` times that of row `base`.
    Against {
        work: &'static str,
        base: &'static str,
        place: &'static str,
        most: f64,
    },
    /// Our own figure is at most so much.
    AtMost { work: &'static str, most: f64 },
    /// Our own figure is at most the rival's.
    AtMostRival { work: &'static str },
}

/// How a mark came out on some rows.
struct Outcome {
    goal: String,
    figure: String,
    /// From, to.
    interval: String,
    /// CPU time for the same work, over the rival's.
    cpu: String,
    place: String,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    Missed,
    /// The goal lies within the interval.
    Open,
    /// Too few samples.
    Unknown,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Open => "open",
            Verdict::Unknown => "too few samples",
        }
    }

    /// Of a figure that is to be at least, or at most, so much.
    fn of(interval: Option<[f64; 2]>, samples: usize, goal: f64, at_least: bool) -> Verdict {
        let Some([low, high]) = interval.filter(|_| samples >= PAIRS_MIN) else {
            return Verdict::Unknown;
        };
        let holds = |figure: f64| match at_least {
            true => figure >= goal,
            false => figure <= goal,
        };
        match [low, high].map(holds) {
            [true, true] => Verdict::Met,
            [false, false] => Verdict::Missed,
            _ => Verdict::Open,
        }
    }
}

const fn ratio(
    what: &'static str,
    work: &'static str,
    place: &'static str,
    rival: &'static str,
    near: f64,
    far: f64,
) -> Mark {
    let goal = Goal::Ratio {
        work,
        place,
        rival,
        near,
        far,
    };
    Mark { what, goal }
}

/// A ratio to TCP over loopback with each end on a CPU of its own.
const fn apart(what: &'static str, work: &'static str, near: f64, far: f64) -> Mark {
    ratio(what, work, "apart", LOOPBACK, near, far)
}

/// A ratio to Linux's stack, with the server, its stack and its driver on one CPU.
const fn on_stack(what: &'static str, work: &'static str, least: f64) -> Mark {
    ratio(what, work, "apart", "linux", least, least)
}

/// More CPU than the kernel's path, beyond what the clock's ticks make of equal times.
const CPU_MORE: f64 = 1.02;

/// A connection for each request, of nginx between domains.
const CLOSES: &str = "nginx-1k-c50-close";

/// 1.5 times the bare ring's time, as a ratio of speeds.
const NEAR_THE_RING: f64 = 1.0 / 1.5;

/// A work of applications, with what it shall reach against TCP over loopback: each side where it
/// is fastest, and each program on a CPU of its own.
struct AppMark {
    what: &'static str,
    work: &'static str,
    best: f64,
    apart: f64,
}

const fn app(what: &'static str, work: &'static str, best: f64, apart: f64) -> AppMark {
    AppMark {
        what,
        work,
        best,
        apart,
    }
}

/// Unpinned programs shall come within so much of pinned ones.
const FREE_OF_APART: f64 = 0.8;

const APPS: [AppMark; 8] = [
    app("redis GET, 1 client", "redis-get-c1", 8.0, 12.0),
    app("redis GET, 16 clients", "redis-get-c16", 4.0, 4.0),
    app("redis GET, 50 clients", "redis-get-c50", 4.0, 4.0),
    app(
        "redis GET, 16 clients, 16 in flight",
        "redis-get-c16-p16",
        2.5,
        2.5,
    ),
    app("nginx 1 KB, 10 connections", "nginx-1k-c10", 2.0, 3.0),
    app("nginx 1 MB, 10 connections", "nginx-1m-c10", 1.3, 2.0),
    app("pgbench -S, 8 clients", "pgbench-s-c8", 1.3, 1.3),
    app("iperf3, 128 KB writes", "iperf3-128k", 2.5, 4.0),
];

const fn best(what: &'static str, work: &'static str, rival: &'static str, goal: f64) -> Mark {
    ratio(what, work, "best", rival, goal, goal)
}

/// Plain programs, each side where it is fastest.
const HEADLINES: &[Mark] = &[
    best("64 B round trip", "rtt-64", LOOPBACK, 15.0),
    best(
        "64 B round trip, over polled TCP",
        "rtt-64",
        "kernel-polling",
        5.0,
    ),
    best("64 B round trip, over UNIX sockets", "rtt-64", "unix", 5.0),
    best(
        "64 B round trip, receiver asleep",
        "rtt-64-asleep",
        LOOPBACK,
        1.0,
    ),
    best("the same, over UNIX sockets", "rtt-64-asleep", "unix", 1.0),
    best("64 B messages, one way", "stream-64", LOOPBACK, 10.0),
    best("64 KB messages, one way", "stream-64k", LOOPBACK, 3.0),
    best("the same, over UNIX sockets", "stream-64k", "unix", 2.7),
];

const MARKS: &[Mark] = &[
    apart("64 B round trip", "rtt-64", 80.0, 30.0),
    ratio(
        "64 B round trip, within 1.5x of the bare ring",
        "rtt-64",
        "apart",
        "ring",
        NEAR_THE_RING,
        NEAR_THE_RING,
    ),
    ratio("64 B round trip", "rtt-64", "free", LOOPBACK, 15.0, 15.0),
    apart(
        "64 B round trip, receiver asleep",
        "rtt-64-asleep",
        2.0,
        2.0,
    ),
    Mark {
        what: "the same, worst placement",
        goal: Goal::NeverBelow {
            of: |row| row.work == "rtt-64-asleep" && !row.hogs && row.best_of.is_none(),
        },
    },
    apart("64 B messages, one way", "stream-64", 40.0, 40.0),
    apart("64 KB messages, one way", "stream-64k", 5.0, 8.0),
    ratio(
        "64 KB messages, over UNIX sockets",
        "stream-64k",
        "apart",
        "unix",
        2.7,
        2.7,
    ),
    apart("connect, one 64 B request, close", "request", 0.9, 0.9),
    ratio(
        "the same between domains",
        "request-domains",
        "free",
        BRIDGE,
        1.0,
        1.0,
    ),
    ratio(
        "the same, offered at once",
        "request-domains-at-once",
        "free",
        BRIDGE,
        1.0,
        1.0,
    ),
    ratio(
        "nginx 1 KB, 50 clients, a connection for each request",
        CLOSES,
        "free",
        BRIDGE,
        1.0,
        1.0,
    ),
    Mark {
        what: "the same, CPU time",
        goal: Goal::Cpu {
            work: CLOSES,
            place: "free",
            rival: BRIDGE,
        },
    },
    Mark {
        what: "two CPU hogs beside, worst row",
        goal: Goal::NeverBelow { of: |row| row.hogs },
    },
    ratio(
        "4 pairs' round trips, over those of 1",
        "rtt-64-pairs4",
        "free",
        "alone",
        1.0,
        1.0,
    ),
    ratio(
        "round trip beside 10,000 idle, within 1.2x of one alone",
        "rtt-64-idle10000",
        "apart",
        "alone",
        1.0 / 1.2,
        1.0 / 1.2,
    ),
    Mark {
        what: "ring memory of an idle connection",
        goal: Goal::AtMost {
            work: "memory-idle",
            most: 16.0 * 1024.0,
        },
    },
    Mark {
        what: "ring memory of a busy connection",
        goal: Goal::AtMost {
            work: "memory-busy",
            most: 4.0 * 1024.0 * 1024.0,
        },
    },
    Mark {
        what: "wake-ups of an idle nginx",
        goal: Goal::AtMost {
            work: "idle-nginx",
            most: 0.0,
        },
    },
    Mark {
        what: "wake-ups of an idle redis, beside its own timer's",
        goal: Goal::AtMostRival { work: "idle-redis" },
    },
    ratio(
        "filter: a linear rule, at most half of nf_tables'",
        "filter-per-rule",
        "apart",
        "nf_tables",
        2.0,
        2.0,
    ),
    ratio(
        "filter: the same, each asking for something else",
        "filter-per-mixed-rule",
        "apart",
        "nf_tables",
        2.0,
        2.0,
    ),
    Mark {
        what: "filter: lookup in a hash set of 100,000",
        goal: Goal::AtMost {
            work: "filter-lookup-hash",
            most: 100.0,
        },
    },
    Mark {
        what: "filter: lookup in an interval set of 100,000",
        goal: Goal::AtMost {
            work: "filter-lookup-interval",
            most: 100.0,
        },
    },
    Mark {
        what: "filter: 1,000 rules of address and port, over one",
        goal: Goal::Against {
            work: "filter-differ-1000",
            base: "filter-differ-1",
            place: "apart",
            most: 2.0,
        },
    },
    Mark {
        what: "filter: what 1,000 rules add to a connect, the kernel's walk and all",
        goal: Goal::AtMost {
            work: "filter-request-added",
            most: 3_000.0,
        },
    },
    Mark {
        what: "filter: the question about a connection, 1,000 rules",
        goal: Goal::AtMost {
            work: "filter-ask-1000",
            most: 3_000.0,
        },
    },
    ratio(
        "filter: 64 B round trip with 1,000 rules, over none",
        "filter-rtt-64-1000",
        "apart",
        "no rules",
        0.95,
        0.95,
    ),
    direct(
        "reach: redis GET, 1 client, by a published port",
        "reach-published-redis-get-c1",
        0.95,
    ),
    direct(
        "reach: redis GET, 50 clients, by a published port",
        "reach-published-redis-get-c50",
        0.95,
    ),
    direct(
        "reach: nginx 1 KB, by a published port",
        "reach-published-nginx-1k-c10",
        0.95,
    ),
    ratio(
        "reach: the same, 1 client, over the kernel by a published port",
        "reach-published-redis-get-c1",
        "apart",
        "kernel-published",
        5.0,
        5.0,
    ),
    ratio(
        "reach: redis GET, 1 client, musl",
        "reach-musl-redis-get-c1",
        "apart",
        "glibc",
        0.95,
        0.95,
    ),
    ratio(
        "reach: redis GET, 50 clients, musl",
        "reach-musl-redis-get-c50",
        "apart",
        "glibc",
        0.95,
        0.95,
    ),
    direct(
        "reach: a pair by a published port, within 1.5x of one without",
        "reach-pair",
        1.0 / 1.5,
    ),
    on_stack("stack: redis GET, 50 clients", "stack-redis-get-c50", 1.21),
    on_stack(
        "stack: redis GET, 50 clients, with its driver in one process",
        "stack-fused-redis-get-c50",
        1.21,
    ),
    on_stack(
        "stack: redis GET, two servers, each on a CPU, total",
        "stack-two-redis-get-c50",
        1.28,
    ),
    on_stack(
        "stack: redis GET, two servers, with their drivers in one process each",
        "stack-fused-two-redis-get-c50",
        1.28,
    ),
    ratio(
        "stack: redis GET, 50 clients, two CPUs against one",
        "stack-redis-get-c50-two-cpus",
        "free",
        "one CPU",
        1.0,
        1.0,
    ),
    on_stack(
        "stack: memcached, UDP, a stack without TCP",
        "stack-udp-alone-memcached-udp-c10",
        1.3,
    ),
    on_stack("stack: iperf3 to the server", "stack-iperf3-128k", 1.0),
    on_stack(
        "stack: iperf3 from the server",
        "stack-iperf3-128k-reverse",
        1.0,
    ),
    Mark {
        what: "stack: iperf3 from the server, over to the server",
        goal: Goal::Against {
            work: "stack-iperf3-128k-reverse",
            base: "stack-iperf3-128k",
            place: "apart",
            most: 1.2,
        },
    },
    ratio(
        "stack: redis GET, 50 clients, with 100 rules, over none",
        "stack-redis-get-c50-rules-100",
        "apart",
        "no rules",
        0.97,
        0.97,
    ),
    ratio(
        "stack: redis GET, 50 clients, stack to stack past both, over rings",
        "stack-through-redis-get-c50",
        "apart",
        "rings",
        0.95,
        0.95,
    ),
    memcached("apart"),
    memcached("free"),
    Mark {
        what: "UDP: 64 B round trip in Python",
        goal: Goal::AtMost {
            work: "udp-python-rtt-64",
            most: 10_000.0,
        },
    },
    Mark {
        what: "UDP: wake-ups of an idle receiver",
        goal: Goal::AtMost {
            work: "udp-idle",
            most: 0.0,
        },
    },
    curve("curve: over UNIX sockets, worst size", "unix", 1.0, true),
    curve("curve: over TCP, worst size", LOOPBACK, 4.0, true),
    curve(
        "curve: within 1.3x of memcpy, best size",
        "memcpy",
        1.0 / 1.3,
        false,
    ),
    ratio(
        "UDP: broadcast to 8, within 2x of one to 1",
        "udp-broadcast-64",
        "apart",
        "one",
        0.5,
        0.5,
    ),
    native("native: 64 B by loans", "native-64", "iceoryx2"),
    native("native: 64 KB by loans", "native-64k", "iceoryx2"),
    native("native: connect", "native-connect", "unix"),
];

/// Of the native API: at least as fast.
const fn native(what: &'static str, work: &'static str, rival: &'static str) -> Mark {
    ratio(what, work, "apart", rival, 1.0, 1.0)
}

const fn memcached(place: &'static str) -> Mark {
    let (what, work) = ("UDP: memcached get, 10 sockets", "udp-memcached-get-c10");
    ratio(what, work, place, LOOPBACK, 3.0, 3.0)
}

/// Of the published curve.
const fn curve(what: &'static str, rival: &'static str, least: f64, at_each: bool) -> Mark {
    let goal = Goal::Curve {
        rival,
        least,
        at_each,
    };
    Mark { what, goal }
}

/// What is reached by a published port, over the same without.
const fn direct(what: &'static str, work: &'static str, least: f64) -> Mark {
    ratio(what, work, "apart", "direct", least, least)
}

/// Names of the rows of applications that marks are about.
pub fn works() -> Vec<&'static str> {
    APPS.iter().map(|app| app.work).collect()
}

/// And of those that are to be measured where the scheduler places programs.
pub fn works_free() -> Vec<&'static str> {
    let mut works = works();
    works.push(CLOSES);
    works
}

/// What users ask for first, each with its row.
pub fn of_users() -> impl Iterator<Item = (&'static str, &'static str)> {
    let plain = [
        ("64 B round trip", "rtt-64"),
        ("64 KB messages, one way", "stream-64k"),
        ("connect, one 64 B request, close", "request"),
    ];
    let apps = APPS.iter().map(|app| (app.what, app.work));
    apps.chain(plain)
}

/// All, in their order.
fn marks() -> Vec<Mark> {
    let apps = |place, goal: fn(&AppMark) -> f64| {
        APPS.iter()
            .map(move |app| ratio(app.what, app.work, place, LOOPBACK, goal(app), goal(app)))
    };
    let mut marks = HEADLINES.to_vec();
    marks.extend(apps("best", |app| app.best));
    marks.extend(apps("free", |app| app.apart * FREE_OF_APART));
    marks.extend(apps("apart", |app| app.apart));
    marks.extend_from_slice(MARKS);
    marks
}

/// Every mark, beside what the rows say of it.
pub fn table(rows: &[Row]) -> Table {
    table_of(rows, &[])
}

/// Of the marks of rows whose names begin so; without a beginning, of all.
pub fn table_of(rows: &[Row], prefixes: &[&str]) -> Table {
    let heading = format!("mark, on {}", report::cpu_models(rows));
    let headings = [
        heading.as_str(),
        "where",
        "goal",
        "figure",
        "from, to",
        "CPU, of the rival's",
        "verdict",
    ];
    let mut table = Table::new(headings);
    let is_there = |work: &str| rows.iter().any(|row| row.work.starts_with(work));
    let begins = |work: &str, prefixes: &[&str]| prefixes.iter().any(|one| work.starts_with(one));
    // What is measured by itself is missing nowhere else.
    let wanted = |mark: &Mark| {
        let work = mark.goal.work().unwrap_or_default();
        let elsewhere =
            begins(work, &[reach::PREFIX, stack::PREFIX]) || begins(work, &COM_PREFIXES);
        match prefixes.is_empty() {
            true => !elsewhere || is_there(work),
            false => begins(work, prefixes),
        }
    };
    for mark in marks().into_iter().filter(wanted) {
        let outcomes = mark.goal.outcomes(rows);
        if outcomes.is_empty() {
            let mut cells = ["", "-", "-", "-", "-", "-", "not measured"].map(str::to_owned);
            cells[0] = mark.what.to_owned();
            table.line(cells);
        }
        for outcome in outcomes {
            table.line([
                mark.what.to_owned(),
                outcome.place,
                outcome.goal,
                outcome.figure,
                outcome.interval,
                outcome.cpu,
                outcome.verdict.word().to_owned(),
            ]);
        }
    }
    table
}

impl Goal {
    /// The row that it is about, if it is one, or how the rows' names begin.
    fn work(&self) -> Option<&'static str> {
        match *self {
            Goal::Ratio { work, .. }
            | Goal::Cpu { work, .. }
            | Goal::Against { work, .. }
            | Goal::AtMost { work, .. }
            | Goal::AtMostRival { work } => Some(work),
            Goal::Curve { .. } => Some(CURVE_PREFIX),
            Goal::NeverBelow { .. } => None,
        }
    }

    fn outcomes(&self, rows: &[Row]) -> Vec<Outcome> {
        match *self {
            Goal::Ratio {
                work,
                place,
                rival,
                near,
                far,
            } => {
                let mine = rows
                    .iter()
                    .filter(|row| row.work == work && row.place() == place && row.rival == rival);
                let outcome = |row: &Row| {
                    let goal = match row.regime {
                        Regime::Near => near,
                        Regime::Far => far,
                    };
                    Outcome::ratio(row, goal, where_is(row))
                };
                mine.filter_map(outcome).collect()
            }
            Goal::Cpu { work, place, rival } => {
                let is_it =
                    |row: &&Row| row.work == work && row.place() == place && row.rival == rival;
                let outcome = |row: &Row| {
                    let times = pairs::ratios(&row.cpu_samples, false);
                    let written = |times| report::ratio(Some(times));
                    Outcome::at_most(row, &times, 1.0, &written)
                };
                rows.iter().filter(is_it).map(outcome).collect()
            }
            Goal::NeverBelow { of } => {
                // The kernel's path between domains is the bridge.
                let is_kernel = |row: &Row| [LOOPBACK, BRIDGE].contains(&&*row.rival);
                let some = rows.iter().filter(|row| is_kernel(row) && of(row));
                extreme(some, 1.0, true)
            }
            Goal::Curve {
                rival,
                least,
                at_each,
            } => {
                let is_of = |row: &&Row| row.work.starts_with(CURVE_PREFIX) && row.rival == rival;
                extreme(rows.iter().filter(is_of), least, at_each)
            }
            Goal::Against {
                work,
                base,
                place,
                most,
            } => {
                let of = |name: &str, regime: Regime| {
                    rows.iter().find(|row| {
                        row.work == name && row.place() == place && row.regime == regime
                    })
                };
                // Samples of both were taken in the same rounds.
                let outcome = |regime| {
                    let (row, base) = (of(work, regime)?, of(base, regime)?);
                    // Unless rows of several runs were put together.
                    let is_same = row.samples.len() == base.samples.len();
                    let rounds = row.samples.iter().zip(&base.samples).filter(|_| is_same);
                    let times: Vec<f64> = rounds.map(|(one, base)| one[0] / base[0]).collect();
                    let written = |times| report::ratio(Some(times));
                    Some(Outcome::at_most(row, &times, most, &written))
                };
                let regimes = [Regime::Near, Regime::Far].into_iter();
                regimes.filter_map(outcome).collect()
            }
            Goal::AtMost { work, most } => one(rows, work, |_| most),
            Goal::AtMostRival { work } => one(rows, work, |row| row.rival_value),
        }
    }
}

/// The worst of some rows, or the best, against the same goal.
fn extreme<'r>(rows: impl Iterator<Item = &'r Row>, least: f64, worst: bool) -> Vec<Outcome> {
    let outcomes = rows.filter_map(|row| {
        let place = format!("{}, {}", row.work, where_is(row));
        Some((row.ratio?, Outcome::ratio(row, least, place)?))
    });
    // What is surely missed, then what is not sure, then the lowest.
    let rank = |verdict| match verdict {
        Verdict::Missed => 0,
        Verdict::Open => 1,
        Verdict::Unknown => 2,
        Verdict::Met => 3,
    };
    let order = |(a, one): &(f64, Outcome), (b, other): &(f64, Outcome)| {
        let ranks = rank(one.verdict).cmp(&rank(other.verdict));
        ranks.then(a.total_cmp(b))
    };
    let found = match worst {
        true => outcomes.min_by(order),
        false => outcomes.max_by(order),
    };
    found.map(|(_, outcome)| outcome).into_iter().collect()
}

/// The one row of that name, whose figure may be at most `most`.
fn one(rows: &[Row], work: &str, most: impl Fn(&Row) -> f64) -> Vec<Outcome> {
    let row = rows.iter().find(|row| row.work == work);
    let outcome = row.map(|row| {
        let measured: Vec<f64> = row.samples.iter().map(|sample| sample[0]).collect();
        let written = |figure| report::figure(figure, &row.unit);
        match measured.is_empty() && row.runs <= 1 {
            true => Outcome::counted(row, most(row), &written),
            false => Outcome::at_most(row, &measured, most(row), &written),
        }
    });
    outcome.into_iter().collect()
}

fn where_is(row: &Row) -> String {
    format!("{}, {}", row.place_in_full(), row.regime.word())
}

impl Outcome {
    /// Of figures that may be at most so much, written in their unit.
    fn at_most(row: &Row, figures: &[f64], most: f64, written: &dyn Fn(f64) -> String) -> Outcome {
        let interval = pairs::interval(figures);
        Outcome {
            goal: format!("at most {}", written(most)),
            figure: written(median(figures.iter().copied())),
            interval: interval.map_or("-".to_owned(), |[low, high]| {
                format!("{} to {}", written(low), written(high))
            }),
            cpu: "-".to_owned(),
            place: where_is(row),
            verdict: Verdict::of(interval, figures.len(), most, false),
        }
    }

    /// The same of one that is known for sure.
    fn counted(row: &Row, most: f64, written: &dyn Fn(f64) -> String) -> Outcome {
        Outcome {
            figure: written(row.value),
            verdict: match row.value <= most {
                true => Verdict::Met,
                false => Verdict::Missed,
            },
            ..Outcome::at_most(row, &[], most, written)
        }
    }

    fn ratio(row: &Row, least: f64, place: String) -> Option<Outcome> {
        let ratio = row.ratio?;
        let interval = row.interval();
        let verdict = Verdict::of(interval, row.samples.len(), least, true);
        let cpu = row.cpu_ratio().map(|cpu| {
            let more = row.rival.starts_with("kernel-") && cpu > CPU_MORE;
            format!(
                "{}{}",
                report::ratio(Some(cpu)),
                if more { " MORE" } else { "" }
            )
        });
        Some(Outcome {
            goal: report::ratio(Some(least)),
            figure: report::ratio(Some(ratio)),
            interval: interval.map_or("-".to_owned(), |[low, high]| {
                format!("{low:.2} to {high:.2}")
            }),
            cpu: cpu.unwrap_or_else(|| "-".to_owned()),
            place,
            verdict,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Placement;

    /// Of a time that is `ratio` times shorter than the rival's.
    fn row(work: &str, rival: &'static str, regime: Regime, ratio: f64) -> Row {
        let row = Row::new(work, rival, "ns", regime, Placement::Apart);
        row.of_pairs(vec![[100.0, 100.0 * ratio]; PAIRS_MIN])
    }

    fn lines(rows: &[Row], what: &str) -> Vec<Vec<String>> {
        let table = table(rows);
        let lines = table.cells().iter().skip(1);
        lines.filter(|line| line[0] == what).cloned().collect()
    }

    #[test]
    fn each_regime_has_its_own_goal() {
        let rows = [
            row("rtt-64", LOOPBACK, Regime::Near, 79.0),
            row("rtt-64", LOOPBACK, Regime::Far, 31.0),
            row("rtt-64", "unix", Regime::Near, 1.0),
        ];
        let apart: Vec<_> = lines(&rows, "64 B round trip")
            .into_iter()
            .filter(|line| line[1].starts_with("apart"))
            .collect();
        assert_eq!(apart.len(), 2);
        let of = |line: &[String]| [1, 2, 3, 6].map(|at| line[at].clone());
        assert_eq!(of(&apart[0]), ["apart, near", "80.00x", "79.00x", "MISSED"]);
        assert_eq!(of(&apart[1]), ["apart, far", "30.00x", "31.00x", "met"]);
    }

    #[test]
    fn a_goal_within_the_interval_and_too_few_pairs_leave_a_mark_open() {
        let mut row = row("rtt-64", LOOPBACK, Regime::Near, 80.0);
        let uneven = [60.0, 70.0, 79.0, 80.0, 81.0, 90.0, 100.0];
        row.samples = uneven.map(|ratio| [100.0, 100.0 * ratio]).to_vec();
        let verdict = |row: &Row| Outcome::ratio(row, 80.0, String::new()).map(|one| one.verdict);
        assert_eq!(verdict(&row), Some(Verdict::Open));
        row.samples.truncate(PAIRS_MIN - 1);
        assert_eq!(verdict(&row), Some(Verdict::Unknown));
    }

    #[test]
    fn more_cpu_than_the_kernels_shows() {
        let row = |rival, mine| Row {
            cpu_s_per_unit: Some(mine),
            rival_cpu_s_per_unit: Some(1.0),
            ..row("rtt-64", rival, Regime::Near, 90.0)
        };
        let cpu = |row: &Row| Outcome::ratio(row, 80.0, String::new()).map(|one| one.cpu);
        assert_eq!(cpu(&row(LOOPBACK, 1.09)).as_deref(), Some("1.09x MORE"));
        assert_eq!(cpu(&row(LOOPBACK, 0.5)).as_deref(), Some("0.50x"));
        assert_eq!(cpu(&row("unix", 2.0)).as_deref(), Some("2.00x"));
    }

    #[test]
    fn cpu_time_is_judged_pair_by_pair() {
        let cpu = |mine: f64| {
            let row = row(CLOSES, BRIDGE, Regime::Near, 1.0);
            let place = Placement::Free.word().into();
            let cpu_samples = vec![[mine, 100.0]; PAIRS_MIN];
            let rows = [Row {
                placement: place,
                cpu_samples,
                ..row
            }];
            let line = lines(&rows, "the same, CPU time").remove(0);
            [2, 3, 6].map(|at| line[at].clone())
        };
        assert_eq!(cpu(99.0), ["at most 1.00x", "0.99x", "met"]);
        assert_eq!(cpu(103.0), ["at most 1.00x", "1.03x", "MISSED"]);
    }

    #[test]
    fn each_side_at_its_best_is_a_headline() {
        let best = row("rtt-64", LOOPBACK, Regime::Near, 49.0);
        let rows = [best.best([Placement::Apart, Placement::Together])];
        let line = lines(&rows, "64 B round trip").remove(0);
        assert_eq!(line[1], "best: apart, rival together, near");
        assert_eq!(line[6], "met");
    }

    #[test]
    fn the_worst_row_with_hogs_counts_and_what_is_missing_shows() {
        let hogged = |work, ratio| Row {
            hogs: true,
            ..row(work, LOOPBACK, Regime::Near, ratio)
        };
        let rows = [hogged("rtt-64", 3.0), hogged("stream-64", 0.5)];
        let worst = lines(&rows, "two CPU hogs beside, worst row").remove(0);
        assert_eq!(worst[1], "stream-64, apart+hogs, near");
        assert_eq!(worst[6], "MISSED");
        let missing = lines(&rows, "iperf3, 128 KB writes").remove(0);
        assert_eq!(missing[6], "not measured");
    }

    #[test]
    fn of_the_curve_the_worst_size_counts_or_the_best() {
        let near = |work, rival, ratio| row(work, rival, Regime::Near, ratio);
        let rows = [
            near("com-1k", "unix", 0.9),
            near("com-64k", "unix", 5.0),
            near("com-1k", "memcpy", 0.1),
            near("com-64k", "memcpy", 0.8),
        ];
        let unix = lines(&rows, "curve: over UNIX sockets, worst size").remove(0);
        assert_eq!([&*unix[1], &*unix[6]], ["com-1k, apart, near", "MISSED"]);
        let memcpy = lines(&rows, "curve: within 1.3x of memcpy, best size").remove(0);
        assert_eq!([&*memcpy[1], &*memcpy[6]], ["com-64k, apart, near", "met"]);
        let full_run = [near("rtt-64", LOOPBACK, 90.0)];
        assert!(lines(&full_run, "curve: over TCP, worst size").is_empty());
    }

    #[test]
    fn own_figures_are_compared_within_one_regime() {
        let valued = |work, regime, value| {
            let row = row(work, LOOPBACK, regime, 1.0);
            row.of_pairs(vec![[value, value]; PAIRS_MIN])
        };
        let rows = [
            valued("filter-differ-1", Regime::Near, 100.0),
            valued("filter-differ-1000", Regime::Near, 199.0),
            valued("filter-differ-1000", Regime::Far, 500.0),
        ];
        let what = "filter: 1,000 rules of address and port, over one";
        let lines = lines(&rows, what);
        assert_eq!(lines.len(), 1, "nothing to compare the far row with");
        assert_eq!(lines[0][6], "met");
        assert!(works().contains(&"pgbench-s-c8"));
    }
}
