//! What a run prints: tables of text, rows of JSON, and how far it has come.

use anyhow::{Context, Result};
use fordwayd::admin::SCHEMA;
use indicatif::{ProgressBar, ProgressStyle};
use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use crate::distance::Regime;
use crate::pairs::{self, median};
use crate::placement::Placement;

/// One row of a suite as `--json` writes it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// Version of the document.
    pub schema: u32,
    /// Name of the work.
    pub work: String,
    /// Whose figure `value` is: `fast`, or `ring` where the bare ring is compared.
    pub path: Cow<'static, str>,
    /// Against what.
    pub rival: Cow<'static, str>,
    /// Median figure.
    pub value: f64,
    /// The rival's median figure.
    pub rival_value: f64,
    /// Of both.
    pub unit: Cow<'static, str>,
    /// Median of the ratios of pairs (absent where a figure is no speed).
    pub ratio: Option<f64>,
    /// How many pairs of samples.
    pub runs: usize,
    /// Their figures, ours and the rival's, all of one regime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<[f64; 2]>,
    /// CPU seconds of server, client and broker, median of a sample; of plain programs, over the
    /// measured stretch only.
    pub cpu_s: f64,
    /// The rival's.
    pub rival_cpu_s: f64,
    /// CPU seconds for each `cpu_unit` of work.
    pub cpu_s_per_unit: Option<f64>,
    /// The rival's.
    pub rival_cpu_s_per_unit: Option<f64>,
    /// What that work is: a million requests, or a GB.
    pub cpu_unit: Option<Cow<'static, str>>,
    /// The same of each pair of samples, of applications.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_samples: Vec<[f64; 2]>,
    /// Bytes through rings, median of a fast sample.
    pub ring_bytes: u64,
    /// Distance of the two CPUs.
    pub regime: Regime,
    /// Whether server and client were held to certain CPUs.
    pub pinned: bool,
    /// `apart`, `together`, `free`, or `best`: each side where it is fastest.
    pub placement: Cow<'static, str>,
    /// The two placements of a row of `best`, ours and the rival's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_of: Option<[Cow<'static, str>; 2]>,
    /// Of which CPU the figures are.
    #[serde(default)]
    pub cpu_model: String,
    /// Bytes of a message, in suites of plain programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<usize>,
    /// With a busy loop on each CPU beside.
    #[serde(default)]
    pub hogs: bool,
    /// 99th percentile of a round, ours and the rival's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<[u64; 2]>,
    /// 99.9th percentile of a round, ours and the rival's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<[u64; 2]>,
}

impl Row {
    /// A row without figures.
    pub fn new(
        work: &str,
        rival: &'static str,
        unit: &'static str,
        regime: Regime,
        placement: Placement,
    ) -> Row {
        Row {
            schema: SCHEMA,
            work: work.to_owned(),
            path: "fast".into(),
            rival: rival.into(),
            value: 0.0,
            rival_value: 0.0,
            unit: unit.into(),
            ratio: None,
            runs: 0,
            samples: Vec::new(),
            cpu_s: 0.0,
            rival_cpu_s: 0.0,
            cpu_s_per_unit: None,
            rival_cpu_s_per_unit: None,
            cpu_unit: None,
            cpu_samples: Vec::new(),
            ring_bytes: 0,
            regime,
            pinned: placement != Placement::Free,
            placement: placement.word().into(),
            best_of: None,
            cpu_model: cpu_model(),
            size_bytes: None,
            hogs: false,
            p99_ns: None,
            p999_ns: None,
        }
    }

    /// With the figures of these pairs, all of one regime.
    pub fn of_pairs(self, samples: Vec<[f64; 2]>) -> Row {
        let ratios = pairs::ratios(&samples, self.less_is_better());
        Row {
            value: median(samples.iter().map(|pair| pair[0])),
            rival_value: median(samples.iter().map(|pair| pair[1])),
            ratio: Some(median(ratios)),
            runs: samples.len(),
            samples,
            ..self
        }
    }

    /// Each side where it is fastest.
    pub fn best(self, [ours, theirs]: [Placement; 2]) -> Row {
        Row {
            placement: "best".into(),
            pinned: [ours, theirs].iter().any(|&one| one != Placement::Free),
            best_of: Some([ours, theirs].map(|one| one.word().into())),
            ..self
        }
    }

    /// Where the ratio lies, with 95 % certainty.
    pub fn interval(&self) -> Option<[f64; 2]> {
        self.ratio?;
        pairs::interval(&pairs::ratios(&self.samples, self.less_is_better()))
    }

    /// CPU time for the same work, ours over the rival's.
    pub fn cpu_ratio(&self) -> Option<f64> {
        let ratio = self.cpu_s_per_unit? / self.rival_cpu_s_per_unit?;
        ratio.is_finite().then_some(ratio)
    }

    /// Times and sizes are better if they are small.
    pub fn less_is_better(&self) -> bool {
        ["ns", "B", "wake-ups/10s", "descriptors"].contains(&self.unit.as_ref())
    }

    /// Where it was measured, and what ran beside it.
    pub fn place(&self) -> String {
        format!("{}{}", self.placement, if self.hogs { "+hogs" } else { "" })
    }

    /// The same in full.
    pub fn place_in_full(&self) -> String {
        match &self.best_of {
            Some([ours, theirs]) => format!("{}: {ours}, rival {theirs}", self.place()),
            None => self.place(),
        }
    }
}

/// Of the machine that we are on.
pub fn cpu_model() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = cpuinfo.lines();
    let model = lines.find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    model.unwrap_or("unknown CPU").to_owned()
}

/// Of which CPUs some rows are, for the heading of a table.
pub fn cpu_models(rows: &[Row]) -> String {
    let mut models: Vec<&str> = rows.iter().map(|row| row.cpu_model.as_str()).collect();
    models.retain(|model| !model.is_empty());
    models.sort_unstable();
    models.dedup();
    match models.is_empty() {
        true => "unknown CPU".to_owned(),
        false => models.join(", "),
    }
}

/// Rows in a file, one JSON object a line; each is on disk before the next is measured.
#[derive(Debug)]
pub struct JsonLines(Option<File>);

impl JsonLines {
    /// `None`: nothing is written.
    pub fn create(path: Option<&Path>) -> Result<JsonLines> {
        let open =
            |path: &Path| File::create(path).with_context(|| format!("write {}", path.display()));
        Ok(JsonLines(path.map(open).transpose()?))
    }

    /// Adds a row.
    pub fn write(&mut self, row: &Row) -> Result<()> {
        if let Some(file) = &mut self.0 {
            writeln!(file, "{}", serde_json::to_string(row)?)?;
        }
        Ok(())
    }
}

/// Columns of text: the first is flush left, the others flush right.
#[derive(Debug)]
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// With these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table {
            lines: vec![headings.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a line.
    pub fn line<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(cells.to_vec());
    }
}

impl Table {
    /// Line by line, the headings first.
    pub fn cells(&self) -> &[Vec<String>] {
        &self.lines
    }

    /// As a table of Markdown, figures flush right.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for (number, line) in self.lines.iter().enumerate() {
            text += &format!("| {} |\n", line.join(" | "));
            if number == 0 {
                text += &format!("|---|{}\n", "---:|".repeat(line.len() - 1));
            }
        }
        text
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.lines[0].len();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.lines
                    .iter()
                    .map(|line| line[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for (number, line) in self.lines.iter().enumerate() {
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
            if number == 0 {
                writeln!(
                    f,
                    "{}",
                    "-".repeat(widths.iter().sum::<usize>() + 2 * (columns - 1))
                )?;
            }
        }
        Ok(())
    }
}

/// Why a row is left out where no two neighbouring samples saw one machine.
pub const ALWAYS_MOVED: &str = "left out, for the distance of the CPUs changed all the time";

/// Rows for people; one home for what a terminal and a document show.
pub fn table(rows: &[Row]) -> Table {
    let heading = format!("work, on {}", cpu_models(rows));
    let mut table = Table::new([
        heading.as_str(),
        "where",
        "rival",
        "fast path",
        "rival's",
        "ratio",
        "from",
        "to",
        "p99",
        "rival's",
        "p99.9",
        "rival's",
        "CPU s",
        "rival's",
        "per",
        "rings",
        "CPUs",
    ]);
    for row in rows {
        let interval = row.interval();
        let cpu = |seconds: Option<f64>, whole: f64| format!("{:.2}", seconds.unwrap_or(whole));
        let tail = |pair: Option<[u64; 2]>, index: usize| {
            let text = pair.map(|pair| figure(pair[index] as f64, "ns"));
            text.unwrap_or_else(|| "-".to_owned())
        };
        table.line([
            row.work.clone(),
            row.place_in_full(),
            row.rival.to_string(),
            figure(row.value, &row.unit),
            figure(row.rival_value, &row.unit),
            ratio(row.ratio),
            ratio(interval.map(|[low, _]| low)),
            ratio(interval.map(|[_, high]| high)),
            tail(row.p99_ns, 0),
            tail(row.p99_ns, 1),
            tail(row.p999_ns, 0),
            tail(row.p999_ns, 1),
            cpu(row.cpu_s_per_unit, row.cpu_s),
            cpu(row.rival_cpu_s_per_unit, row.rival_cpu_s),
            row.cpu_unit.as_deref().unwrap_or("run").to_owned(),
            bytes(row.ring_bytes),
            row.regime.word().to_owned(),
        ]);
    }
    table
}

/// Units of things that are counted, not of bytes or times.
const COUNTED: [&str; 3] = ["req/s", "msg/s", "conn/s"];

/// A figure with its unit, in three digits or so.
pub fn figure(value: f64, unit: &str) -> String {
    let scaled = match value {
        _ if COUNTED.contains(&unit) && value >= 1e6 => format!("{:.2}M", value / 1e6),
        _ if COUNTED.contains(&unit) && value >= 1e3 => format!("{:.1}k", value / 1e3),
        _ if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    };
    format!("{scaled} {unit}")
}

/// Bytes, for people.
pub fn bytes(count: u64) -> String {
    match count as f64 {
        count if count >= 1e9 => format!("{:.1} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count if count >= 1e3 => format!("{:.1} kB", count / 1e3),
        count => format!("{count} B"),
    }
}

/// A ratio, for people.
pub fn ratio(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}x"))
}

/// How far a run has come: a bar on a terminal, else a line for each step.
#[derive(Debug)]
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Of this many steps.
    pub fn new(steps: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let style = ProgressStyle::with_template("{bar:16} {pos}/{len} {elapsed} {msg}")
            .expect("the template is well formed");
        let bar = ProgressBar::new(steps).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(Some(bar))
    }

    /// A step begins.
    pub fn step(&self, what: &str) {
        match &self.0 {
            Some(bar) => {
                bar.set_message(what.to_owned());
                bar.inc(1);
            }
            None => eprintln!("{what}"),
        }
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        match &self.0 {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(figure(1_234_567.0, "req/s"), "1.23M req/s");
        assert_eq!(figure(45_678.0, "req/s"), "45.7k req/s");
        assert_eq!(figure(3.456, "GB/s"), "3.46 GB/s");
        assert_eq!(bytes(1_500_000), "1.5 MB");
    }

    #[test]
    fn a_row_is_one_line_with_the_documented_keys() {
        let row = Row::new(
            "iperf3-128k",
            "kernel-bridge",
            "GB/s",
            Regime::Near,
            Placement::Apart,
        );
        let row = row.of_pairs(vec![[2.0, 1.0]; 7]);
        assert_eq!((row.ratio, row.interval()), (Some(2.0), Some([2.0, 2.0])));
        let text = serde_json::to_string(&row).unwrap();
        assert!(!text.contains('\n'));
        for key in [
            "schema",
            "work",
            "path",
            "rival",
            "value",
            "rival_value",
            "unit",
            "ratio",
            "runs",
            "samples",
            "cpu_model",
            "cpu_s",
            "rival_cpu_s",
            "ring_bytes",
            "regime",
        ] {
            assert!(text.contains(&format!("\"{key}\":")), "{key}");
        }
    }
}
