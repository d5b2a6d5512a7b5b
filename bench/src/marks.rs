//! What the figures shall reach, and whether the rows of a run do. A mark is a goal with
//! a name; where it differs between near and far CPUs, each regime has its own. Speeds are
//! ratios to TCP over loopback, unless a mark names another rival; medians of one run.

use crate::distance::Regime;
use crate::report::{self, Row, Table};

const LOOPBACK: &str = "kernel-loopback";

/// A goal.
struct Mark {
    what: &'static str,
    goal: Goal,
}

/// How it is read off the rows.
enum Goal {
    /// The ratio of a row is at least `near` or `far`.
    Ratio {
        work: &'static str,
        place: &'static str,
        rival: &'static str,
        near: f64,
        far: f64,
    },
    /// The smallest ratio of all rows that `of` picks is at least 1.
    NeverBelow { of: fn(&Row) -> bool },
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
    place: String,
    met: bool,
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

/// 1.5 times the bare ring's time, as a ratio of speeds.
const NEAR_THE_RING: f64 = 1.0 / 1.5;

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
    ratio(
        "64 B round trip, not pinned",
        "rtt-64",
        "free",
        LOOPBACK,
        15.0,
        15.0,
    ),
    apart(
        "64 B round trip, receiver asleep",
        "rtt-64-asleep",
        2.0,
        2.0,
    ),
    Mark {
        what: "the same, worst placement",
        goal: Goal::NeverBelow {
            of: |row| row.work == "rtt-64-asleep" && !row.hogs,
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
    apart("redis GET, 1 client", "redis-get-c1", 12.0, 12.0),
    apart("redis GET, 16 clients", "redis-get-c16", 4.0, 4.0),
    apart("redis GET, 50 clients", "redis-get-c50", 4.0, 4.0),
    apart(
        "redis GET, 16 clients, 16 in flight",
        "redis-get-c16-p16",
        2.5,
        2.5,
    ),
    apart("nginx 1 KB, 10 connections", "nginx-1k-c10", 3.0, 3.0),
    apart("nginx 1 MB, 10 connections", "nginx-1m-c10", 2.0, 2.0),
    apart("pgbench -S, 8 clients", "pgbench-s-c8", 1.3, 1.3),
    apart("iperf3, 128 KB writes", "iperf3-128k", 4.0, 6.0),
    apart("connect, one 64 B request, close", "request", 0.9, 0.9),
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
];

/// Names of the rows of applications that marks are about.
pub fn works() -> Vec<&'static str> {
    let named = MARKS.iter().filter_map(|mark| match mark.goal {
        Goal::Ratio { work, .. } => Some(work),
        _ => None,
    });
    named
        .filter(|work| crate::apps::row_names().contains(work))
        .collect()
}

/// Every mark, beside what the rows say of it.
pub fn table(rows: &[Row]) -> Table {
    table_of(rows, "")
}

/// Of the marks of rows whose names begin so.
pub fn table_of(rows: &[Row], prefix: &str) -> Table {
    let mut table = Table::new(["mark", "goal", "figure", "where", "verdict"]);
    let wanted = |mark: &&Mark| mark.goal.work().unwrap_or_default().starts_with(prefix);
    for mark in MARKS.iter().filter(wanted) {
        let mut outcomes = mark.goal.outcomes(rows);
        if outcomes.is_empty() {
            let nothing = || "-".to_owned();
            let cells = [nothing(), nothing(), nothing(), "not measured".to_owned()];
            let [goal, figure, place, verdict] = cells;
            table.line([mark.what.to_owned(), goal, figure, place, verdict]);
        }
        for outcome in outcomes.drain(..) {
            table.line([
                mark.what.to_owned(),
                outcome.goal,
                outcome.figure,
                outcome.place,
                if outcome.met { "met" } else { "MISSED" }.to_owned(),
            ]);
        }
    }
    table
}

impl Goal {
    /// The row that it is about, if it is one.
    fn work(&self) -> Option<&'static str> {
        match *self {
            Goal::Ratio { work, .. }
            | Goal::Against { work, .. }
            | Goal::AtMost { work, .. }
            | Goal::AtMostRival { work } => Some(work),
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
                    row.ratio
                        .map(|ratio| Outcome::ratio(ratio, goal, where_is(row)))
                };
                mine.filter_map(outcome).collect()
            }
            Goal::NeverBelow { of } => {
                let some = rows.iter().filter(|row| row.rival == LOOPBACK && of(row));
                let worst = some
                    .filter_map(|row| Some((row.ratio?, row)))
                    .min_by(|a, b| a.0.total_cmp(&b.0));
                let outcome = worst.map(|(ratio, row)| {
                    let place = format!("{}, {}", row.work, where_is(row));
                    Outcome::ratio(ratio, 1.0, place)
                });
                outcome.into_iter().collect()
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
                let outcome = |regime| {
                    let (row, base) = (of(work, regime)?, of(base, regime)?);
                    let times = row.value / base.value;
                    Some(Outcome {
                        goal: format!("at most {most}x"),
                        figure: report::ratio(Some(times)),
                        place: where_is(row),
                        met: times <= most,
                    })
                };
                let regimes = [Regime::Near, Regime::Far].into_iter();
                regimes.filter_map(outcome).collect()
            }
            Goal::AtMost { work, most } => one(rows, work, |_| most),
            Goal::AtMostRival { work } => one(rows, work, |row| row.rival_value),
        }
    }
}

/// The one row of that name, whose figure may be at most `most`.
fn one(rows: &[Row], work: &str, most: impl Fn(&Row) -> f64) -> Vec<Outcome> {
    let row = rows.iter().find(|row| row.work == work);
    let outcome = row.map(|row| Outcome {
        goal: format!("at most {}", report::figure(most(row), &row.unit)),
        figure: report::figure(row.value, &row.unit),
        place: where_is(row),
        met: row.value <= most(row),
    });
    outcome.into_iter().collect()
}

fn where_is(row: &Row) -> String {
    format!("{}, {}", row.place(), row.regime.word())
}

impl Outcome {
    fn ratio(ratio: f64, least: f64, place: String) -> Outcome {
        Outcome {
            goal: report::ratio(Some(least)),
            figure: report::ratio(Some(ratio)),
            place,
            met: ratio >= least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Placement;

    fn row(work: &str, rival: &'static str, regime: Regime, ratio: f64) -> Row {
        Row {
            ratio: Some(ratio),
            ..Row::new(work, rival, "ns", regime, Placement::Apart)
        }
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
        let lines = lines(&rows, "64 B round trip");
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0][1..], ["80.00x", "79.00x", "apart, near", "MISSED"]);
        assert_eq!(lines[1][1..], ["30.00x", "31.00x", "apart, far", "met"]);
    }

    #[test]
    fn the_worst_row_with_hogs_counts_and_what_is_missing_shows() {
        let hogged = |work, ratio| Row {
            hogs: true,
            ..row(work, LOOPBACK, Regime::Near, ratio)
        };
        let rows = [hogged("rtt-64", 3.0), hogged("stream-64", 0.5)];
        let worst = lines(&rows, "two CPU hogs beside, worst row");
        assert_eq!(worst[0][3..], ["stream-64, apart+hogs, near", "MISSED"]);
        let missing = lines(&rows, "iperf3, 128 KB writes");
        assert_eq!(missing[0][4], "not measured");
    }

    #[test]
    fn own_figures_are_compared_within_one_regime() {
        let valued = |work, regime, value| Row {
            value,
            ..row(work, LOOPBACK, regime, 1.0)
        };
        let rows = [
            valued("filter-differ-1", Regime::Near, 100.0),
            valued("filter-differ-1000", Regime::Near, 199.0),
            valued("filter-differ-1000", Regime::Far, 500.0),
        ];
        let what = "filter: 1,000 rules of address and port, over one";
        let lines = lines(&rows, what);
        assert_eq!(lines.len(), 1, "nothing to compare the far row with");
        assert_eq!(lines[0][4], "met");
        assert!(works().contains(&"pgbench-s-c8"));
    }
}
