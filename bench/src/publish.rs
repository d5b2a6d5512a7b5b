//! What the documentation shows of full runs. It is printed from their rows, never written by hand.
//!
//! ```text
//! docs/performance/CPU/rows.json     one run for each kind of CPU, as `fordway-bench all` wrote it
//! docs/performance/CPU/report.md     all its rows, as a table
//! docs/performance/CPU/wide.json     rows of suite `wide`
//! docs/performance/CPU/day.csv       rows of a day's storm (`fordway-test storm day --rows`)
//! docs/performance/CPU/*.svg         the curves of both
//! docs/performance/xen-guests.json   figures between two guests of Xen (`./x xen-bench guests`)
//! docs/performance/xen-guests-*.svg  their curves
//! docs/performance.md, README.md     what stands between the marks is printed from rows.json
//! ```
//! A test prints both documents anew and compares: a figure that was changed by hand, or a mark whose
//! goal has changed since, is a failure.

use crate::marks;
use crate::report::{self, Row, Table};
use crate::{document, filter};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// What is kept of a directory, of what it has.
const KEPT: [&str; 4] = ["rows.json", "report.md", WIDE, DAY];
const WIDE: &str = "wide.json";
const DAY: &str = "day.csv";
/// Of no CPU: emulated.
const GUESTS: &str = "xen-guests.json";
/// Where runs are kept, from the tree's root.
const RUNS: &str = "docs/performance";
const BEGIN: &str = "<!-- printed by fordway-bench publish: begin -->\n";
const END: &str = "<!-- printed by fordway-bench publish: end -->\n";

/// What stands between the marks of a document, from the runs of all CPUs.
type Print = fn(&[Run]) -> String;

/// The documents, from the tree's root.
const DOCUMENTS: [(&str, Print); 2] = [
    ("docs/performance.md", print_performance),
    ("README.md", print_readme),
];

/// The run of one kind of CPU.
struct Run {
    /// The name of its directory.
    name: String,
    rows: Vec<Row>,
}

/// Keeps the run in directory `run` as that of its CPU, in the tree at `root`, and prints the documents
/// anew. Without a run: only the latter.
pub fn publish(root: &Path, run: Option<&Path>) -> Result<()> {
    if let Some(guests) = run.map(|run| run.join(GUESTS)).filter(|file| file.exists()) {
        fs::copy(&guests, root.join(RUNS).join(GUESTS))?;
    }
    if let Some(run) = run.filter(|run| KEPT.iter().any(|file| run.join(file).exists())) {
        let rows = ["rows.json", WIDE].map(|file| run.join(file));
        let rows = rows.iter().find(|file| file.exists());
        let model = match rows {
            Some(file) => report::cpu_models(&document::read(file)?),
            None => report::cpu_model(),
        };
        let kept = root.join(RUNS).join(name(&model));
        fs::create_dir_all(&kept)?;
        for file in KEPT {
            let from = run.join(file);
            if from.exists() {
                fs::copy(&from, kept.join(file)).with_context(|| from.display().to_string())?;
            }
        }
    }
    for (path, text) in printed(root)? {
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// A CPU's name as that of a directory.
fn name(cpu_model: &str) -> String {
    let words = cpu_model.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_lowercase()
}

/// The documents and curves as they are to be.
fn printed(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let runs = runs(root)?;
    let print = |(path, print): &(&str, Print)| {
        let path = root.join(path);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let parts = text
            .split_once(BEGIN)
            .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, behind) = parts.with_context(|| format!("{} has no marks", path.display()))?;
        let text = format!("{before}{BEGIN}{}{END}{behind}", print(&runs));
        Ok((path, text))
    };
    let mut all: Vec<_> = DOCUMENTS.iter().map(print).collect::<Result<_>>()?;
    let guests = root.join(RUNS).join(GUESTS);
    if guests.exists() {
        for plot in document::guests(&fs::read_to_string(&guests)?)? {
            let file = format!("{RUNS}/{}.svg", plot.name);
            all.push((root.join(file), plot.svg()?));
        }
    }
    for run in &runs {
        let dir = root.join(RUNS).join(&run.name);
        let mut plots = Vec::new();
        if dir.join(WIDE).exists() {
            plots.extend(document::plots(&document::read(&dir.join(WIDE))?));
        }
        if dir.join(DAY).exists() {
            plots.extend(document::day(&fs::read_to_string(dir.join(DAY))?)?);
        }
        for plot in plots {
            all.push((dir.join(format!("{}.svg", plot.name)), plot.svg()?));
        }
    }
    Ok(all)
}

/// All runs that are kept, in the order of their names.
fn runs(root: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(root.join(RUNS)).context(RUNS)? {
        let entry = entry?;
        let file = entry.path().join("rows.json");
        if file.exists() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let rows = document::read(&file)?;
            runs.push(Run { name, rows });
        }
    }
    ensure!(!runs.is_empty(), "no run is kept in {RUNS}");
    runs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(runs)
}

/// The marks, what users have, and what rules cost.
fn print_performance(runs: &[Run]) -> String {
    let mut text = String::new();
    for Run { name, rows } in runs {
        let of = |pick: &dyn Fn(&Row) -> bool| {
            let some: Vec<_> = rows.iter().filter(|row| pick(row)).collect();
            in_short(&some).markdown()
        };
        let is_rule = |row: &Row| row.work.starts_with(filter::PREFIX);
        text += &format!(
            "\n### {}\n\nAll rows: [performance/{name}/report.md](performance/{name}/report.md).\n\n{}\n\
             Placed by the scheduler (`free`):\n\n{}\nThe packet filter:\n\n{}\n",
            report::cpu_models(rows),
            marks::table(rows).markdown(),
            of(&|row| row.placement == "free" && !is_rule(row)),
            of(&is_rule),
        );
    }
    text
}

/// What users have, beside each side's best.
fn print_readme(runs: &[Run]) -> String {
    let mut text = String::new();
    for Run { rows, .. } in runs {
        let heading = format!("{}, free", report::cpu_models(rows));
        let mut table = Table::new([
            heading.as_str(),
            "TCP",
            "Fordway",
            "ratio",
            "from, to",
            "CPU, of TCP's",
            "ratio, each at its best",
        ]);
        for (what, work) in marks::of_users() {
            let row = |place: &str| {
                rows.iter().find(|row| {
                    row.work == work && row.place() == place && row.rival == marks::LOOPBACK
                })
            };
            let Some(free) = row("free") else { continue };
            table.line([
                what.to_owned(),
                report::figure(free.rival_value, &free.unit),
                report::figure(free.value, &free.unit),
                report::ratio(free.ratio),
                interval(free),
                report::ratio(free.cpu_ratio()),
                report::ratio(row("best").and_then(|best| best.ratio)),
            ]);
        }
        text += &format!("\n{}", table.markdown());
    }
    text + "\n"
}

fn interval(row: &Row) -> String {
    row.interval().map_or("-".to_owned(), |[low, high]| {
        format!("{low:.2} to {high:.2}")
    })
}

/// Rows without what only few readers ask for.
fn in_short(rows: &[&Row]) -> Table {
    let mut table = Table::new([
        "work",
        "where",
        "rival",
        "fast path",
        "rival's",
        "ratio",
        "from, to",
        "CPU, of the rival's",
    ]);
    for row in rows {
        table.line([
            row.work.clone(),
            format!("{}, {}", row.place_in_full(), row.regime.word()),
            row.rival.to_string(),
            report::figure(row.value, &row.unit),
            report::figure(row.rival_value, &row.unit),
            report::ratio(row.ratio),
            interval(row),
            report::ratio(row.cpu_ratio()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_are_what_the_rows_print() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (path, text) in printed(&root).unwrap() {
            let found = fs::read_to_string(&path).unwrap();
            let differs = found
                .lines()
                .zip(text.lines())
                .find(|(one, other)| one != other);
            assert!(
                found == text,
                "{}: {differs:?}; `fordway-bench publish .` prints the tables anew",
                path.display()
            );
        }
    }

    #[test]
    fn a_cpu_names_its_directory() {
        assert_eq!(name("Intel(R) Xeon(R) @ 2.1GHz"), "intel-r-xeon-r-2-1ghz");
    }
}
