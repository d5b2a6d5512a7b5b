//! The report of a run: rows as JSON lines, tables as Markdown, and one HTML page with
//! plots as inline SVG, which opens without a network.
//!
//! Plots have logarithmic axes, but for that of the hours of a day (`day`). A figure that was taken while the two CPUs were far apart
//! is an open circle, one of near CPUs a filled one: the two are different machines, and a
//! contender that was seen on both has two lines.

use crate::distance::Regime;
use crate::marks;
use crate::report::{self, Row};
use anyhow::{Context, Result, anyhow};
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 440;
const COLOURS: [RGBColor; 10] = [
    RGBColor(200, 30, 30),
    RGBColor(30, 90, 200),
    RGBColor(20, 140, 60),
    RGBColor(150, 80, 180),
    RGBColor(230, 130, 0),
    RGBColor(0, 150, 160),
    RGBColor(110, 110, 110),
    RGBColor(140, 90, 40),
    RGBColor(220, 90, 160),
    RGBColor(110, 130, 20),
];

/// A point of a plot.
#[derive(Clone, Copy, Debug)]
struct Point {
    x: f64,
    y: f64,
}

/// What is drawn: a title, what the axes say, and a line for each contender.
#[derive(Debug)]
pub(crate) struct Plot {
    /// As a file.
    pub(crate) name: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// By contender.
    lines: BTreeMap<String, BTreeMap<Regime, Vec<Point>>>,
}

/// Reads rows that a run has written.
pub fn read(file: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let rows = text.lines().filter(|line| !line.is_empty());
    rows.map(|line| serde_json::from_str(line).with_context(|| file.display().to_string()))
        .collect()
}

/// Writes `report.md` and `report.html` of some rows into a directory.
pub fn write(dir: &Path, machine: &str, rows: &[Row]) -> Result<()> {
    fs::create_dir_all(dir)?;
    let (table, marks) = (report::table(rows), marks::table(rows));
    let markdown = format!(
        "# Fordway bench\n\n{machine}\n\n## Marks\n\n{}\n## Rows\n\n{}",
        marks.markdown(),
        table.markdown()
    );
    fs::write(dir.join("report.md"), markdown)?;
    let plots = plots(rows);
    let mut drawn = String::new();
    for plot in &plots {
        drawn += &plot.svg()?;
    }
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Fordway bench</title>\n\
         <style>body{{font:14px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}}\
         table{{border-collapse:collapse;font-size:12px}}td,th{{padding:2px 8px;text-align:right;\
         border-bottom:1px solid #ddd}}td:first-child,th:first-child{{text-align:left}}</style>\n\
         <h1>Fordway bench</h1>\n<p>{}</p>\n<p>Filled circles: CPUs near each other; open ones: far \
         apart. Ratios above 1 are in Fordway's favour.</p>\n<h2>Marks</h2>\n{}<h2>Plots</h2>\n{drawn}\n<h2>Rows</h2>\n{}</html>\n",
        escape(machine),
        html_table(marks.cells()),
        html_table(table.cells()),
    );
    fs::write(dir.join("report.html"), page)?;
    Ok(())
}

/// One line on the machine, for the head of a report.
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!(
        "{model}, {cpus} CPUs, Linux {}, load {load} when the report was written",
        kernel.trim()
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn html_table(lines: &[Vec<String>]) -> String {
    let mut text = String::from("<table>\n");
    for (number, line) in lines.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let cells = line
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        text += &format!("<tr>{}</tr>\n", cells.collect::<String>());
    }
    text + "</table>\n"
}

/// Before the number, in the names of rows.
const PAIRS: &str = "rtt-64-pairs";
/// See `PAIRS`; the rows of suite `wide`.
const MAKE: &str = "wide-make-";
const LIST: &str = "wide-list-";
const RULES: &str = "wide-rules-";
const MEMORY: &str = "wide-memory-";
const BUSY: &str = "wide-redis-c";
const LOOPS: &str = "wide-loops-";
const LOOP_MEMORY: &str = "wide-loop-memory-";
const LOOP_DESCRIPTORS: &str = "wide-loop-descriptors-";
/// See `PAIRS`.
const IDLE: &str = "rtt-64-idle";

/// The number with which the name of a row ends, if nothing but `prefix` is before it.
fn number_after(row: &Row, prefix: &str) -> Option<f64> {
    let text = row.work.strip_prefix(prefix)?;
    let (digits, factor) = match text.strip_suffix(['k', 'm']) {
        Some(digits) if text.ends_with('k') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (text, 1),
    };
    Some(digits.parse::<f64>().ok()? * f64::from(factor))
}

/// All plots for which there are rows.
pub(crate) fn plots(rows: &[Row]) -> Vec<Plot> {
    let of = |prefix: &'static str, title, y, pick: fn(&Row) -> [Option<f64>; 2]| {
        let apart = |row: &&Row| {
            let plain = row.placement == "apart" && !row.hogs;
            plain && number_after(row, prefix).is_some()
        };
        Plot::of(
            prefix,
            title,
            "bytes of a message",
            y,
            rows.iter().filter(apart),
            |row| (row.size_bytes.map(|bytes| bytes as f64), pick(row)),
        )
    };
    let values = |row: &Row| [Some(row.value), Some(row.rival_value)];
    let cpu = |row: &Row| [row.cpu_s_per_unit, row.rival_cpu_s_per_unit];
    let gigabytes = |row: &Row| {
        // Small messages are counted, not weighed.
        let scale = match row.unit.as_ref() {
            "msg/s" => row.size_bytes.unwrap_or(1) as f64 / 1e9,
            _ => 1.0,
        };
        [Some(row.value * scale), Some(row.rival_value * scale)]
    };
    let numbered = |mark: &'static str, title, x, y| {
        let free = [
            PAIRS,
            MAKE,
            LIST,
            RULES,
            MEMORY,
            LOOP_MEMORY,
            LOOP_DESCRIPTORS,
        ];
        let is_free = free.contains(&mark);
        let place = if is_free { "free" } else { "apart" };
        // There is no zero on a logarithmic axis.
        let beside = if mark == IDLE { 1.0 } else { 0.0 };
        let some = rows.iter().filter(|row| row.place() == place);
        Plot::of(mark, title, x, y, some, |row| {
            (
                number_after(row, mark).map(|number| number + beside),
                values(row),
            )
        })
    };
    let mut plots = vec![
        of("rtt-", "Round trip, median", "ns", values),
        of("stream-", "One way", "GB a second", gigabytes),
        of("stream-", "CPU for a GB, one way", "CPU seconds", cpu),
        numbered(
            "rtt-64k-ring",
            "Round trip of 64 KB through rings of fixed size",
            "bytes of a ring",
            "ns",
        ),
        numbered(
            "stream-64k-ring",
            "64 KB messages one way through rings of fixed size",
            "bytes of a ring",
            "GB a second",
        ),
        numbered(
            PAIRS,
            "Pairs of programs at once: all round trips",
            "pairs",
            "round trips a second",
        ),
        numbered(
            IDLE,
            "Round trip beside idle connections",
            "idle connections, and 1",
            "ns",
        ),
        numbered(MAKE, "To make one more domain", "domains", "ns"),
        numbered(LIST, "A listing, for each domain", "domains", "ns"),
        numbered(RULES, "New rules, for each domain", "domains", "ns"),
        numbered(MEMORY, "Memory for each domain", "domains", "bytes"),
        numbered(
            BUSY,
            "redis GET with busy connections",
            "connections",
            "requests a second",
        ),
        numbered(
            LOOPS,
            "memcached get with 64 busy connections",
            "event loops of the server",
            "requests a second",
        ),
        numbered(
            LOOP_MEMORY,
            "Memory of the server for each event loop",
            "event loops",
            "bytes",
        ),
        numbered(
            LOOP_DESCRIPTORS,
            "Descriptors of the server for each event loop",
            "event loops",
            "descriptors",
        ),
    ];
    plots.retain(|plot| !plot.lines.is_empty());
    plots
}

/// The axis of a day.
const HOURS: &str = "hour of the day";

/// The plots of a day that `fordway-test storm day --rows` has written: what programs hold, and what
/// a round trip takes meanwhile.
pub(crate) fn day(text: &str) -> Result<Vec<Plot>> {
    let mut lines = text.lines();
    let names = lines.next().context("no rows")?.split(',');
    let names: Vec<&str> = names.collect();
    let rows = lines.map(|line| {
        let figures = line.split(',').map(str::parse);
        figures.collect::<Result<Vec<f64>, _>>().context("a figure")
    });
    let rows: Vec<Vec<f64>> = rows.collect::<Result<_>>()?;
    let plot = |name, title, y, units: &[&str]| {
        let mut lines = BTreeMap::new();
        for (column, what) in names.iter().enumerate() {
            if !units.iter().any(|unit| what.ends_with(unit)) {
                continue;
            }
            let point = |row: &Vec<f64>| {
                let [x, y] = [0, column].map(|place| row.get(place).copied());
                Some(Point { x: x?, y: y? })
            };
            let points = rows.iter().filter_map(point);
            let points: Vec<Point> = points.filter(|point| point.y > 0.0).collect();
            lines.insert((*what).to_owned(), BTreeMap::from([(Regime::Near, points)]));
        }
        Plot {
            name,
            title,
            x: HOURS,
            y,
            lines,
        }
    };
    Ok(vec![
        plot("day-memory", "A day of churn: memory", "KB", &["_kb"]),
        plot(
            "day-descriptors",
            "A day of churn: descriptors and mappings",
            "of them",
            &["_descriptors", "_mappings"],
        ),
        plot(
            "day-probe",
            "A day of churn: a round trip to a sleeper",
            "ns",
            &["_ns"],
        ),
    ])
}

/// The plots of figures between two guests of Xen, as `fordway-test-xen --bench` has written them: one way, by the sizes of
/// messages over rings of 1 MB, and by the rings for messages of 512 KB.
pub(crate) fn guests(text: &str) -> Result<Vec<Plot>> {
    #[derive(serde::Deserialize)]
    struct Document {
        figures: BTreeMap<String, BTreeMap<String, String>>,
    }
    const RATE: &str = "mb_per_s_";
    let document: Document = serde_json::from_str(text)?;
    let mut lines = [BTreeMap::new(), BTreeMap::new()];
    for (subject, figures) in &document.figures {
        let (name, ring) = match subject.rsplit_once('-') {
            Some((name, ring)) if ring.ends_with('k') => (name, Some(ring.trim_end_matches('k'))),
            _ => (subject.as_str(), None),
        };
        for (key, figure) in figures {
            let Some(bytes) = key.strip_prefix(RATE) else {
                continue;
            };
            let (bytes, y) = (bytes.parse::<f64>()?, figure.parse::<f64>()?);
            let ring_bytes = ring.map(|kb| kb.parse::<f64>()).transpose()?;
            let ring_bytes = ring_bytes.map(|kb| kb * 1024.0);
            let by_size = ring_bytes.is_none_or(|ring| ring == 1048576.0);
            let by_ring = ring_bytes.filter(|_| bytes == 524288.0);
            for (lines, x) in lines.iter_mut().zip([by_size.then_some(bytes), by_ring]) {
                if let Some(x) = x {
                    let line: &mut BTreeMap<Regime, Vec<Point>> =
                        lines.entry(name.to_owned()).or_default();
                    line.entry(Regime::Near).or_default().push(Point { x, y });
                }
            }
        }
    }
    for line in lines.iter_mut().flat_map(BTreeMap::values_mut) {
        let points = line.values_mut();
        points.for_each(|points| points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    }
    let [by_size, by_ring] = lines;
    Ok(vec![
        Plot {
            name: "xen-guests-sizes",
            title: "Between two guests of Xen, one way, rings of 1 MB",
            x: "bytes of a message",
            y: "MB a second",
            lines: by_size,
        },
        Plot {
            name: "xen-guests-rings",
            title: "Between two guests of Xen, messages of 512 KB one way",
            x: "bytes of a ring",
            y: "MB a second",
            lines: by_ring,
        },
    ])
}

impl Plot {
    fn of<'a>(
        name: &'static str,
        title: &'static str,
        x: &'static str,
        y: &'static str,
        rows: impl Iterator<Item = &'a Row>,
        pick: impl Fn(&Row) -> (Option<f64>, [Option<f64>; 2]),
    ) -> Plot {
        let mut lines: BTreeMap<String, BTreeMap<Regime, Vec<Point>>> = BTreeMap::new();
        for row in rows {
            let (Some(at), [mine, theirs]) = pick(row) else {
                continue;
            };
            for (name, value) in [(row.path.as_ref(), mine), (row.rival.as_ref(), theirs)] {
                let Some(value) = value.filter(|value| *value > 0.0) else {
                    continue;
                };
                let line = lines.entry(name.to_owned()).or_default();
                let line = line.entry(row.regime).or_default();
                if line.iter().all(|point| point.x != at) {
                    line.push(Point { x: at, y: value });
                }
            }
        }
        for line in lines.values_mut().flat_map(BTreeMap::values_mut) {
            line.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        let name = name.trim_end_matches('-');
        Plot {
            name,
            title,
            x,
            y,
            lines,
        }
    }

    pub(crate) fn svg(&self) -> Result<String> {
        let mut text = String::new();
        let drawn = match self.x {
            HOURS => self.draw(&mut text, 0.0..24.0),
            _ => self.draw(&mut text, self.range(|point| point.x).log_scale()),
        };
        drawn.map_err(|error| anyhow!("draw \"{}\": {error}", self.title))?;
        Ok(text)
    }

    fn range(&self, pick: fn(&Point) -> f64) -> Range<f64> {
        let points = || self.lines.values().flat_map(BTreeMap::values).flatten();
        let low = points().map(pick).fold(f64::INFINITY, f64::min);
        let high = points().map(pick).fold(0.0, f64::max);
        low * 0.8..high * 1.25
    }

    fn draw<X>(&self, text: &mut String, x: X) -> Result<(), Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x, self.range(|point| point.y).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .draw()?;
        for (number, (name, regimes)) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            for (order, (regime, line)) in regimes.iter().enumerate() {
                let drawn = line.iter().map(|point| (point.x, point.y));
                let series = LineSeries::new(drawn, colour.stroke_width(2));
                let series = chart.draw_series(series)?;
                if order == 0 {
                    series
                        .label(name)
                        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
                }
                let style = match regime {
                    Regime::Near => colour.filled(),
                    Regime::Far => colour.stroke_width(1),
                };
                let points = line.iter().map(|point| (point.x, point.y));
                chart.draw_series(points.map(|point| Circle::new(point, 4, style)))?;
            }
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .position(SeriesLabelPosition::UpperLeft)
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Placement;

    fn rows() -> Vec<Row> {
        let row = |work: &str, size, value| Row {
            value,
            rival_value: value * 30.0,
            ratio: Some(30.0),
            size_bytes: Some(size),
            ..Row::new(
                work,
                "kernel-loopback",
                "ns",
                Regime::Near,
                Placement::Apart,
            )
        };
        vec![row("rtt-64", 64, 300.0), row("rtt-4k", 4096, 900.0)]
    }

    #[test]
    fn a_report_holds_its_plots_and_its_table() {
        let dir = std::env::temp_dir().join(format!("fordway-report-{}", std::process::id()));
        write(&dir, "a <machine>", &rows()).unwrap();
        let page = fs::read_to_string(dir.join("report.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), 1, "only the round trips");
        assert!(page.contains("Round trip, median") && page.contains("a &lt;machine&gt;"));
        assert!(
            !page.contains("http://") || page.contains("w3.org"),
            "nothing is fetched"
        );
        let text = fs::read_to_string(dir.join("report.md")).unwrap();
        assert!(text.contains("| rtt-4k | apart | kernel-loopback |"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_contender_has_a_line_for_each_regime_and_suites_do_not_mix() {
        let mut rows = rows();
        rows.extend(rows.clone().into_iter().map(|row| Row {
            regime: Regime::Far,
            ..row
        }));
        let elsewhere = ["rtt-64-idle10", "rtt-64k-ring1m", "rtt-64-asleep"];
        rows.extend(elsewhere.map(|work| Row {
            work: work.to_owned(),
            ..rows[0].clone()
        }));
        let plots = plots(&rows);
        let titles: Vec<_> = plots.iter().map(|plot| plot.title).collect();
        assert_eq!(titles.len(), 3, "{titles:?}");
        let line = &plots[0].lines["kernel-loopback"];
        assert_eq!((line.len(), line[&Regime::Near].len()), (2, 2));
        let ring = &plots[1].lines["fast"][&Regime::Near];
        assert_eq!(ring[0].x, 1048576.0);
    }

    #[test]
    fn rows_come_back_from_their_file() {
        let file = std::env::temp_dir().join(format!("fordway-rows-{}", std::process::id()));
        let lines: Vec<String> = rows()
            .iter()
            .map(|row| serde_json::to_string(row).unwrap())
            .collect();
        fs::write(&file, lines.join("\n")).unwrap();
        let back = read(&file).unwrap();
        assert_eq!((back.len(), back[1].value), (2, 900.0));
        fs::remove_file(file).unwrap();
    }
}
