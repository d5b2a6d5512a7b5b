//! The report of a run: rows as JSON lines, tables as Markdown, and one HTML page with
//! plots as inline SVG, which opens without a network.
//!
//! Plots have logarithmic axes. A figure that was taken while the two CPUs were far apart
//! is an open circle, one of near CPUs a filled one: the two are different machines.

use crate::distance::Regime;
use crate::marks;
use crate::report::{self, Row};
use anyhow::{Context, Result, anyhow};
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 440;
const COLOURS: [RGBColor; 8] = [
    RGBColor(200, 30, 30),
    RGBColor(30, 90, 200),
    RGBColor(20, 140, 60),
    RGBColor(150, 80, 180),
    RGBColor(230, 130, 0),
    RGBColor(0, 150, 160),
    RGBColor(110, 110, 110),
    RGBColor(140, 90, 40),
];

/// A point of a plot.
#[derive(Clone, Copy, Debug)]
struct Point {
    x: f64,
    y: f64,
    regime: Regime,
}

/// What is drawn: a title, what the axes say, and a line for each contender.
#[derive(Debug)]
struct Plot {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: BTreeMap<String, Vec<Point>>,
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

/// All plots for which there are rows.
fn plots(rows: &[Row]) -> Vec<Plot> {
    let of = |prefix: &'static str, title, y, pick: fn(&Row) -> [Option<f64>; 2]| {
        let apart = |row: &&Row| {
            let plain = row.placement == "apart" && !row.hogs;
            let size = row.size_bytes.is_some();
            plain && size && row.work.starts_with(prefix) && !row.work.ends_with("-asleep")
        };
        Plot::of(
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
    let pairs = rows
        .iter()
        .filter(|row| row.work.contains("-pairs") && row.unit == "req/s");
    let scaling = Plot::of(
        "Pairs of programs at once: all round trips",
        "pairs",
        "round trips a second",
        pairs,
        |row| {
            let count = row
                .work
                .rsplit("-pairs")
                .next()
                .and_then(|text| text.parse().ok());
            (count, [Some(row.value), Some(row.rival_value)])
        },
    );
    let mut plots = vec![
        of("rtt-", "Round trip, median", "ns", values),
        of("stream-", "One way", "GB a second", gigabytes),
        of("stream-", "CPU for a GB, one way", "CPU seconds", cpu),
        scaling,
    ];
    plots.retain(|plot| !plot.lines.is_empty());
    plots
}

impl Plot {
    fn of<'a>(
        title: &'static str,
        x: &'static str,
        y: &'static str,
        rows: impl Iterator<Item = &'a Row>,
        pick: impl Fn(&Row) -> (Option<f64>, [Option<f64>; 2]),
    ) -> Plot {
        let mut lines: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for row in rows {
            let (Some(at), [mine, theirs]) = pick(row) else {
                continue;
            };
            for (name, value) in [(row.path.as_ref(), mine), (row.rival.as_ref(), theirs)] {
                let Some(value) = value.filter(|value| *value > 0.0) else {
                    continue;
                };
                let line = lines.entry(name.to_owned()).or_default();
                if line.iter().all(|point| point.x != at) {
                    let regime = row.regime;
                    line.push(Point {
                        x: at,
                        y: value,
                        regime,
                    });
                }
            }
        }
        for line in lines.values_mut() {
            line.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        Plot { title, x, y, lines }
    }

    fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text)
            .map_err(|error| anyhow!("draw \"{}\": {error}", self.title))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.lines.values().flatten();
        let range = |pick: fn(&Point) -> f64| {
            let low = points().map(pick).fold(f64::INFINITY, f64::min);
            let high = points().map(pick).fold(0.0, f64::max);
            low * 0.8..high * 1.25
        };
        let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                range(|point| point.x).log_scale(),
                range(|point| point.y).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .draw()?;
        for (number, (name, line)) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let drawn = line.iter().map(|point| (point.x, point.y));
            chart
                .draw_series(LineSeries::new(drawn, colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
            chart.draw_series(line.iter().map(|point| {
                let style = match point.regime {
                    Regime::Near => colour.filled(),
                    Regime::Far => colour.stroke_width(1),
                };
                Circle::new((point.x, point.y), 4, style)
            }))?;
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
