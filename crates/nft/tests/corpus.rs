//! The corpus against our own verdicts, and against those of the installed nft.
mod common;

use common::{Mark, corpus, ours, real_nft};
use fordway_nft::{Kind, list};

#[test]
fn each_entry_gets_the_verdict_of_its_mark() {
    let entries = corpus();
    let mut bad = Vec::new();
    for entry in &entries {
        let got = match ours(&entry.text) {
            Ok(_) => "+".to_string(),
            Err(faults) => match faults.all().first().map(|fault| fault.kind) {
                Some(Kind::Refused(what)) => format!("! {}", what.name()),
                _ => format!("- ({faults})"),
            },
        };
        let fits = match entry.mark {
            Mark::Taken => got == "+",
            Mark::Wrong | Mark::WrongWhenLoaded => got.starts_with('-'),
            Mark::Refused => got == format!("! {}", entry.refused),
        };
        if !fits {
            bad.push(format!("{}: {} => {got}", entry.place, entry.rule));
        }
    }
    assert!(entries.len() >= 500, "{} entries", entries.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_installed_nft_gives_the_same_verdicts() {
    // What is refused on purpose is counted apart: nft may take it or lack a module for it,
    // and `monitor` would not come back.
    let (refused, entries): (Vec<_>, Vec<_>) = corpus()
        .into_iter()
        .partition(|entry| entry.mark == Mark::Refused);
    let texts: Vec<String> = entries.iter().map(|entry| entry.text.clone()).collect();
    let Some(verdicts) = real_nft(&texts, false) else {
        return;
    };
    let mut bad = Vec::new();
    let mut same = 0;
    for (entry, real) in entries.iter().zip(&verdicts) {
        let fits = match entry.mark {
            Mark::Taken => real.checks && real.loads,
            Mark::Wrong => !real.checks,
            Mark::WrongWhenLoaded => real.checks && !real.loads,
            Mark::Refused => true,
        };
        if fits {
            same += 1;
        } else {
            bad.push(format!(
                "{}: {} => nft -c {}, nft {}: {}",
                entry.place,
                entry.rule,
                real.checks,
                real.loads,
                real.complaint.lines().next().unwrap_or("")
            ));
        }
    }
    println!(
        "{same} verdicts as nft's, {} refused on purpose",
        refused.len()
    );
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn listings_load_into_the_installed_nft_and_come_back() {
    let taken: Vec<_> = corpus()
        .into_iter()
        .filter(|entry| entry.mark == Mark::Taken)
        .collect();
    let env = common::env();
    let listings: Vec<String> = taken
        .iter()
        .map(|entry| {
            let loaded = ours(&entry.text).expect("taken");
            list::text(&loaded.ruleset, &env, list::Style::default())
        })
        .collect();
    let Some(verdicts) = real_nft(&listings, false) else {
        return;
    };
    let mut bad = Vec::new();
    let mut same = 0;
    for ((entry, listing), real) in taken.iter().zip(&listings).zip(&verdicts) {
        if !real.loads {
            let why = real.complaint.lines().next().unwrap_or("");
            bad.push(format!(
                "{}: {} => {why}\n{listing}",
                entry.place, entry.rule
            ));
        }
        if real.listing == *listing {
            same += 1;
        }
    }
    println!("{same} of {} listings are nft's to the letter", taken.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(same * 10 >= taken.len() * 8, "{same} of {}", taken.len());
}
