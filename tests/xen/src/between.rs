//! The figures between two Linux guests, as tables and marks: TCP over netfront, libxenvchan and our rings
//! (xen/xen-user/examples/pair/measure.rs).

use crate::bench::{Figures, number};
use std::fmt::Write;

const SIZES: [(&str, u32); 7] = [
    ("1 B", 1),
    ("64 B", 64),
    ("1 KB", 1 << 10),
    ("4 KB", 4 << 10),
    ("16 KB", 16 << 10),
    ("64 KB", 64 << 10),
    ("512 KB", 512 << 10),
];
const RINGS: [(&str, &str); 4] = [
    ("64 KB", "64k"),
    ("256 KB", "256k"),
    ("1 MB", "1024k"),
    ("2 MB", "2048k"),
];
/// The ring of which most figures are.
const RING: &str = "1024k";
const TCP: &str = "tcp";
/// Ours and the rival that copies in the same way.
const COPIES: [(&str, &str, &str); 2] = [
    ("rep movsb", "ring-rep", "vchan-rep"),
    ("32-byte vectors", "ring-vec", "vchan-vec"),
];
/// Of messages of 512 KB, of a round trip asleep, and of several pairs.
const BANDWIDTH_MIN: f64 = 4.4;
const ROUND_TRIP_MAX: f64 = 0.35;
const PAIRS_MIN: f64 = 0.95;

/// Tables and marks.
pub(crate) fn tables(figures: &Figures) -> String {
    let mut text = String::new();
    let subjects = || {
        let of_tcp = [("TCP over netfront".to_owned(), TCP.to_owned(), TCP)];
        let rest = COPIES.iter().flat_map(|&(copy, ours, rival)| {
            let row = |what: &str, name: &'static str| {
                (format!("{what}, {copy}"), format!("{name}-{RING}"), name)
            };
            [row("libxenvchan", rival), row("Fordway", ours)]
        });
        of_tcp.into_iter().chain(rest)
    };
    let one_way = |subject: &str, bytes: u32| {
        let key = format!("mb_per_s_{bytes}");
        let plain = number(figures, subject, &key);
        // By Nagle's algorithm or without: what TCP does best.
        match subject {
            TCP => {
                let gathered = number(figures, "tcp-nagle", &key);
                plain.into_iter().chain(gathered).max_by(f64::total_cmp)
            }
            _ => plain,
        }
    };
    let dash = |value: Option<f64>, digits: usize| match value {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };

    let head = SIZES.map(|(name, _)| format!(" {name} |")).concat();
    let _ = writeln!(
        text,
        "| MB/s one way, rings of 1 MB |{head}\n|---|{}",
        "---|".repeat(7)
    );
    for (name, subject, _) in subjects() {
        let cells = SIZES.map(|(_, bytes)| {
            let figure = one_way(&subject, bytes);
            let digits = if figure.is_some_and(|figure| figure < 10.0) {
                2
            } else {
                0
            };
            format!(" {} |", dash(figure, digits))
        });
        let _ = writeln!(text, "| {name} |{}", cells.concat());
    }

    let head = RINGS.map(|(name, _)| format!(" {name} |")).concat();
    let _ = writeln!(
        text,
        "\n| MB/s, 512 KB messages, by ring |{head}\n|---|{}",
        "---|".repeat(4)
    );
    for (name, _, short) in subjects().skip(1) {
        let of_ring = |ring| one_way(&format!("{short}-{ring}"), 512 << 10);
        let cells = RINGS.map(|(_, ring)| format!(" {} |", dash(of_ring(ring), 0)));
        let _ = writeln!(text, "| {name} |{}", cells.concat());
    }

    text += "\n| | round trip of 1 B asleep, us | awake, us | pairs, MB/s: 1 | 2 | 4 | pairs, round trips/s: 1 | 2 | 4 |\n|---|---|---|---|---|---|---|---|---|\n";
    for (name, subject, short) in subjects() {
        let trips = ["asleep", "awake"].map(|how| {
            let us = number(figures, &subject, &format!("round_trip_{how}_us"));
            format!(" {} |", dash(us, 1))
        });
        let pairs = ["pairs_mb_per_s", "pairs_round_trips_per_s"].map(|key| {
            [1, 2, 4]
                .map(|pairs| {
                    let figure = number(figures, short, &format!("{key}_{pairs}"));
                    format!(" {} |", dash(figure, 0))
                })
                .concat()
        });
        let _ = writeln!(text, "| {name} |{}{}", trips.concat(), pairs.concat());
    }

    text += "\n| mark | ratio | goal | |\n|---|---|---|---|\n";
    let mut mark = |what: String, ratio: Option<f64>, goal: f64, is_met: fn(&f64, &f64) -> bool| {
        let word = match ratio.map(|ratio| is_met(&ratio, &goal)) {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        };
        let _ = writeln!(text, "| {what} | {} | {goal} | {word} |", dash(ratio, 3));
    };
    let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let asleep = |subject: &str| number(figures, subject, "round_trip_asleep_us");
    let least = |all: &mut dyn Iterator<Item = Option<f64>>| all.flatten().min_by(f64::total_cmp);
    for (copy, ours, _) in COPIES {
        let mine = format!("{ours}-{RING}");
        let against_tcp = |bytes| ratio(one_way(&mine, bytes), one_way(TCP, bytes));
        let large = against_tcp(512 << 10);
        mark(
            format!("512 KB messages against TCP, {copy}"),
            large,
            BANDWIDTH_MIN,
            f64::ge,
        );
        let all = least(&mut SIZES.iter().map(|(_, bytes)| against_tcp(*bytes)));
        mark(
            format!("least of all sizes against TCP, {copy}"),
            all,
            1.0,
            f64::ge,
        );
        let trip = ratio(asleep(&mine), asleep(TCP));
        mark(
            format!("round trip asleep against TCP, {copy}"),
            trip,
            ROUND_TRIP_MAX,
            f64::le,
        );
        let rung = number(figures, &mine, "ends_rung_awake");
        mark(format!("ends rung while awake, {copy}"), rung, 0.0, f64::le);
        let pairs = ["pairs_mb_per_s", "pairs_round_trips_per_s"]
            .iter()
            .flat_map(|key| {
                let of = move |pairs: u32| number(figures, ours, &format!("{key}_{pairs}"));
                [2, 4].map(|pairs| ratio(of(pairs), of(1)))
            });
        let pairs = least(&mut { pairs });
        mark(
            format!("several pairs against one, {copy}"),
            pairs,
            PAIRS_MIN,
            f64::ge,
        );
    }
    // Of either side the copy that is best: libc takes vectors for small messages, whatever it is told of large ones.
    let best =
        |bytes: u32, pick: fn(&(&'static str, &'static str, &'static str)) -> &'static str| {
            let of = |copies| one_way(&format!("{}-{RING}", pick(copies)), bytes);
            COPIES.iter().filter_map(of).max_by(f64::total_cmp)
        };
    let all = SIZES.iter().map(|(_, bytes)| {
        ratio(
            best(*bytes, |(_, ours, _)| ours),
            best(*bytes, |(_, _, rival)| rival),
        )
    });
    let all = least(&mut { all });
    mark(
        "least of all sizes against libxenvchan, each at its best".to_owned(),
        all,
        1.0,
        f64::ge,
    );
    let fastest = |names: [&str; 2]| {
        let trips = names
            .into_iter()
            .filter_map(|name| asleep(&format!("{name}-{RING}")));
        trips.min_by(f64::total_cmp)
    };
    let [ours, rivals] = [
        COPIES.map(|(_, ours, _)| ours),
        COPIES.map(|(_, _, rival)| rival),
    ];
    let trip = ratio(fastest(ours), fastest(rivals));
    mark(
        "round trip asleep against libxenvchan".to_owned(),
        trip,
        1.0,
        f64::le,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::take_figures;

    #[test]
    fn marks_are_met_or_missed_or_not_measured() {
        let mut figures = Figures::new();
        let said = "FIGURE tcp mb_per_s_524288 100\nFIGURE tcp-nagle mb_per_s_524288 110\n\
                    FIGURE ring-vec-1024k mb_per_s_524288 500\nFIGURE vchan-vec-1024k mb_per_s_524288 501\n\
                    FIGURE ring-vec-1024k ends_rung_awake 0.0\n";
        take_figures(said, &mut figures);
        let text = tables(&figures);
        for row in [
            "| 512 KB messages against TCP, 32-byte vectors | 4.545 | 4.4 | met |",
            "| least of all sizes against libxenvchan, each at its best | 0.998 | 1 | missed |",
            "| ends rung while awake, 32-byte vectors | 0.000 | 0 | met |",
            "| several pairs against one, rep movsb | - | 0.95 | not measured |",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }
}
