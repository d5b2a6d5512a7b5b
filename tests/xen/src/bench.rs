//! The marks: the unikernel beside the Linux guest in one machine and one run. Figures
//! come as lines `FIGURE SUBJECT KEY VALUE` of the scripts in `bench/`; the raw ones go
//! into DIR/xen.json, those between two Linux guests into DIR/xen-guests.json; the tables are printed and go
//! into DIR/xen.md.

use crate::between;
use crate::cases::{FUNCTIONS, Needs};
use anyhow::{Context, Result, ensure};
use fordway_xen_testbed::{Case, Event, Images, Job, Limits, qemu};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const SCRIPTS: &[(&str, &str, &[Needs])] = &[
    ("linux", include_str!("../bench/linux.sh"), &[]),
    (
        "linux-servers",
        include_str!("../bench/linux-servers.sh"),
        &[],
    ),
    ("httpd", include_str!("../bench/httpd.sh"), &[Needs::Httpd]),
    ("kv", include_str!("../bench/kv.sh"), &[Needs::Kv]),
    (
        "filter",
        include_str!("../bench/filter.sh"),
        &[Needs::Filter],
    ),
    (
        "memory",
        include_str!("../bench/memory.sh"),
        &[Needs::Httpd],
    ),
    ("off", include_str!("../bench/off.sh"), &[Needs::Httpd]),
    ("loss", include_str!("../bench/loss.sh"), &[Needs::Httpd]),
    (GUESTS, include_str!("../bench/guests.sh"), &[Needs::Pair]),
];

/// The script whose figures are between two Linux guests.
const GUESTS: &str = "guests";

/// What must be better by how much: less time, or more work in it.
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

struct Mark {
    work: &'static str,
    /// Figures of the Linux guest; of several subjects the best counts.
    rivals: &'static [&'static str],
    ours: &'static str,
    key: &'static str,
    goal: Goal,
}

const MARKS: &[Mark] = &[
    mark(
        "ping average, ms",
        &["linux"],
        "httpd",
        "ping_avg_ms",
        Goal::AtMost(0.8),
    ),
    mark(
        "ab, 4 connections, new each time, requests/s",
        HTTP,
        "httpd",
        "ab_per_s",
        Goal::AtLeast(2.0),
    ),
    mark(
        "ab, 4 connections kept, requests/s",
        HTTP,
        "httpd",
        "ab_keepalive_per_s",
        Goal::AtLeast(2.0),
    ),
    mark(
        "httperf, one connection after another, requests/s",
        HTTP,
        "httpd",
        "httperf_per_s",
        Goal::AtLeast(2.0),
    ),
    mark(
        "16 MB by curl, MB/s",
        HTTP,
        "httpd",
        "curl_mb_per_s",
        Goal::AtLeast(1.2),
    ),
    mark(
        "redis-benchmark GET -c 50 -P 1, requests/s",
        &["redis"],
        "kv",
        "get_p1_per_s",
        Goal::AtLeast(1.7),
    ),
    mark(
        "redis-benchmark GET -c 50 -P 16, requests/s",
        &["redis"],
        "kv",
        "get_p16_per_s",
        Goal::AtLeast(1.7),
    ),
    mark(
        "boot until the first answered ping, s",
        &["linux"],
        "httpd",
        "boot_s",
        Goal::AtMost(0.05),
    ),
    mark(
        "2 MB over 100 Mbit/s and 4 ms, MB/s",
        &["nginx"],
        "httpd",
        "lost0_mb_per_s",
        Goal::AtLeast(0.8),
    ),
    mark(
        "the same, 1 % lost",
        &["nginx"],
        "httpd",
        "lost1_mb_per_s",
        Goal::AtLeast(0.8),
    ),
    mark(
        "the same, 5 % lost",
        &["nginx"],
        "httpd",
        "lost5_mb_per_s",
        Goal::AtLeast(0.8),
    ),
    mark(
        "100 rules of the filter, requests/s against none",
        &["filter0"],
        "filter100",
        "ab_keepalive_per_s",
        Goal::AtLeast(0.97),
    ),
];

const HTTP: &[&str] = &["nginx", "lighttpd"];
const IMAGE_KB_MAX: f64 = 400.0;
const MEMORY_MIB_MAX: f64 = 8.0;

const fn mark(
    work: &'static str,
    rivals: &'static [&'static str],
    ours: &'static str,
    key: &'static str,
    goal: Goal,
) -> Mark {
    Mark {
        work,
        rivals,
        ours,
        key,
        goal,
    }
}

/// Figures by subject and key.
pub(crate) type Figures = BTreeMap<String, BTreeMap<String, String>>;

/// Measures (all scripts, or those whose names have one of the words) and writes.
pub fn run(images: &Images, ours: &Path, directory: &Path, words: &[String]) -> Result<()> {
    let mut job = Job {
        functions: format!("{FUNCTIONS}\n{}", include_str!("../bench/library.sh")),
        linux: true,
        ..Job::default()
    };
    for (name, script, needs) in SCRIPTS {
        let wanted = words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
        if !wanted {
            continue;
        }
        if needs.iter().any(|need| !need.is_there(ours)) {
            println!("{name}: left out, there is no image for it");
            continue;
        }
        job.cases.push(Case {
            name: (*name).to_owned(),
            script: (*script).to_owned(),
            limit_s: 300,
        });
    }
    ensure!(
        !job.cases.is_empty(),
        "there is nothing of that name to measure"
    );
    crate::add_files(&mut job, ours)?;

    let limits = Limits {
        silence: std::time::Duration::from_secs(1200),
        whole: std::time::Duration::from_secs(3600),
        ..Limits::default()
    };
    let [mut figures, mut of_guests] = [Figures::new(), Figures::new()];
    let has_unikernel = job.cases.iter().any(|case| case.name != GUESTS);
    for need in [Needs::Httpd, Needs::Kv] {
        let name = need.image().expect("it is an image");
        if let Ok(metadata) = std::fs::metadata(ours.join(name))
            && has_unikernel
        {
            let kb = format!("{:.1}", metadata.len() as f64 / 1000.0);
            let of_image = figures.entry(name.to_owned()).or_default();
            of_image.insert("image_kb".to_owned(), kb);
        }
    }
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let report = qemu::run(images, &job, limits, &mut |event| {
        if let Event::Case(run) = event {
            let word = if run.status == 0 { "ok" } else { "FAILED" };
            println!("{:<14} {word}  {:.0} s", run.name, run.host.as_secs_f64());
            if run.status != 0 {
                println!("{}\n{}", run.output, run.diagnosis);
            }
            let taken = match run.name.as_str() {
                GUESTS => &mut of_guests,
                _ => &mut figures,
            };
            take_figures(&run.output, taken);
            // An interrupted run leaves what it has measured.
            if let Err(error) = write(directory, &figures, &of_guests) {
                println!("{error:#}");
            }
        }
    })?;
    print!("{}", all_tables(&figures, &of_guests));
    ensure!(
        report.runs.iter().all(|run| run.status == 0),
        "a measurement failed"
    );
    Ok(())
}

fn write(directory: &Path, figures: &Figures, of_guests: &Figures) -> Result<()> {
    std::fs::write(directory.join("xen.md"), all_tables(figures, of_guests))?;
    for (file, figures) in [("xen.json", figures), ("xen-guests.json", of_guests)] {
        if !figures.is_empty() {
            let document = serde_json::json!({ "schema": 1, "figures": figures });
            let text = serde_json::to_string_pretty(&document)?;
            std::fs::write(directory.join(file), text + "\n")?;
        }
    }
    Ok(())
}

fn all_tables(figures: &Figures, of_guests: &Figures) -> String {
    let mut text = String::new();
    if !figures.is_empty() {
        text += &tables(figures);
    }
    if !of_guests.is_empty() {
        text += "\n";
        text += &between::tables(of_guests);
    }
    text
}

pub(crate) fn take_figures(output: &str, figures: &mut Figures) {
    for line in output.lines() {
        let mut words = line.split(' ');
        let (Some("FIGURE"), Some(subject), Some(key), Some(value)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let of_subject = figures.entry(subject.to_owned()).or_default();
        of_subject.insert(key.to_owned(), value.to_owned());
    }
}

pub(crate) fn number(figures: &Figures, subject: &str, key: &str) -> Option<f64> {
    figures.get(subject)?.get(key)?.parse().ok()
}

fn tables(figures: &Figures) -> String {
    let mut text = String::from(
        "| work | Linux guest | unikernel | ratio | goal | |\n|---|---|---|---|---|---|\n",
    );
    for mark in MARKS {
        let rivals = mark
            .rivals
            .iter()
            .filter_map(|rival| Some((number(figures, rival, mark.key)?, *rival)));
        let best = match mark.goal {
            Goal::AtMost(_) => rivals.min_by(|a, b| a.0.total_cmp(&b.0)),
            Goal::AtLeast(_) => rivals.max_by(|a, b| a.0.total_cmp(&b.0)),
        };
        let ours = number(figures, mark.ours, mark.key);
        let ratio = best.zip(ours).map(|((rival, _), ours)| ours / rival);
        let (goal, met) = match mark.goal {
            Goal::AtMost(most) => (format!("at most {most}"), ratio.map(|ratio| ratio <= most)),
            Goal::AtLeast(least) => (
                format!("at least {least}"),
                ratio.map(|ratio| ratio >= least),
            ),
        };
        let rival = best.map_or("-".to_owned(), |(value, name)| {
            if mark.rivals.len() > 1 {
                format!("{value} ({name})")
            } else {
                value.to_string()
            }
        });
        row(&mut text, mark.work, &rival, ours, ratio, &goal, met);
    }
    let image = number(figures, "httpd", "image_kb");
    let goal = format!("under {IMAGE_KB_MAX}");
    row(
        &mut text,
        "image with httpd, KB",
        "-",
        image,
        None,
        &goal,
        image.map(|kb| kb < IMAGE_KB_MAX),
    );
    let memory = number(figures, "httpd", "memory_mib");
    let goal = format!("at most {MEMORY_MIB_MAX}");
    row(
        &mut text,
        "least memory that serves, MB",
        "-",
        memory,
        None,
        &goal,
        memory.map(|mib| mib <= MEMORY_MIB_MAX),
    );

    text += "\n| optimisation off | ping min/avg/max, ms | 16 MB by curl, MB/s | ab, requests/s | kept, requests/s |\n|---|---|---|---|---|\n";
    for subject in figures.keys() {
        let name = match subject.strip_prefix("off-") {
            Some(name) => name,
            None if subject == "httpd" => "none",
            None => continue,
        };
        let of = |key| figures[subject].get(key).map_or("-", String::as_str);
        let _ = writeln!(
            text,
            "| {name} | {}/{}/{} | {} | {} | {} |",
            of("ping_min_ms"),
            of("ping_avg_ms"),
            of("ping_max_ms"),
            of("curl_mb_per_s"),
            of("ab_per_s"),
            of("ab_keepalive_per_s")
        );
    }
    text
}

fn row(
    text: &mut String,
    work: &str,
    rival: &str,
    ours: Option<f64>,
    ratio: Option<f64>,
    goal: &str,
    met: Option<bool>,
) {
    let ours = ours.map_or("-".to_owned(), |ours| ours.to_string());
    let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
    let met = match met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "not measured",
    };
    let _ = writeln!(
        text,
        "| {work} | {rival} | {ours} | {ratio} | {goal} | {met} |"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_held_against_the_best_rival() {
        let mut figures = Figures::new();
        take_figures(
            "noise\nFIGURE nginx ab_per_s 100\nFIGURE lighttpd ab_per_s 120\nFIGURE httpd ab_per_s 239\n",
            &mut figures,
        );
        let text = tables(&figures);
        assert!(
            text.contains("| 120 (lighttpd) | 239 | 1.992 | at least 2 | missed |"),
            "{text}"
        );
        assert!(text.contains("not measured"));
    }
}
