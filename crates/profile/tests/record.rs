//! With a source of ticks that stands still unless told: what the pages say is exact.
#![cfg(feature = "record")]

use fordway_profile::{BUCKETS, LOG_SPANS, Procedure, Profile};
use serde_json::{Value, json};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn ticks() -> u64 {
    NOW.get()
}

fn pass(ticks: u64) {
    NOW.set(NOW.get() + ticks);
}

fn page(profile: &Profile) -> Value {
    let mut text = String::new();
    profile.write_json(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn spans_inside_others_count_for_both_and_once_as_own() {
    let profile = Profile::new(ticks);
    NOW.set(1000);
    let outer = profile.span(Procedure::StackReceive);
    pass(5);
    let filter = profile.span(Procedure::FilterInput);
    pass(7);
    filter.end(1);
    pass(1);
    drop(profile.span(Procedure::Notify));
    {
        let _app = profile.span(Procedure::AppReceive);
        pass(100);
        let _send = profile.span(Procedure::AppSend);
        pass(10);
    }
    pass(2);
    outer.end(1500);

    let page = page(&profile);
    let of = |name: &str| {
        let all = page["procedures"].as_array().unwrap();
        let found = all.iter().find(|p| p["name"] == name).unwrap();
        [
            &found["spans"],
            &found["ticks"],
            &found["own_ticks"],
            &found["amount"],
        ]
        .map(|v| v.as_u64().unwrap())
    };
    assert_eq!(of("stack-receive"), [1, 125, 8, 1500]);
    assert_eq!(of("filter-input"), [1, 7, 7, 1]);
    assert_eq!(of("notify"), [1, 0, 0, 0]);
    assert_eq!(of("app-receive"), [1, 110, 100, 0]);
    assert_eq!(of("app-send"), [1, 10, 10, 0]);
    let log = json!([
        [1005, 7, "filter-input", 1],
        [1013, 0, "notify", 0],
        [1113, 10, "app-send", 0],
        [1013, 110, "app-receive", 0],
        [1000, 125, "stack-receive", 1500]
    ]);
    assert_eq!(page["log"], log);
}

#[test]
fn histograms_count_by_powers_of_two_and_the_log_keeps_the_last() {
    let profile = Profile::new(ticks);
    let lengths = [0, 1, 2, 3, 4, 1023, 1024, 1 << 29, 1 << 40, u64::MAX >> 8];
    for round in 0..100 {
        for (at, length) in lengths.into_iter().enumerate() {
            NOW.set(round);
            let span = profile.span(Procedure::DeviceTransmit);
            pass(length);
            span.end(at as u32);
        }
    }
    let page = page(&profile);
    let buckets: Vec<u64> = page["procedures"][0]["log2_buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|count| count.as_u64().unwrap())
        .collect();
    assert_eq!(buckets.len(), BUCKETS);
    let counted = |at: usize| buckets[at];
    assert_eq!(
        [0, 1, 2, 3, 10, 11, 30, 31].map(counted),
        [100, 100, 200, 100, 100, 100, 100, 200]
    );
    assert_eq!(buckets.iter().sum::<u64>(), 1000);
    assert_eq!(page["log"].as_array().unwrap().len(), LOG_SPANS);
    assert_eq!(
        page["log"][LOG_SPANS - 1],
        json!([99, u64::MAX >> 8, "device-transmit", 9])
    );

    let mut text = String::new();
    profile.write_text(&mut text).unwrap();
    let row = text.lines().nth(1).unwrap();
    assert!(
        row.starts_with("device-transmit") && row.contains(" 1000 "),
        "{row}"
    );

    profile.clear();
    let empty = json!({"recording": true, "procedures": [], "log": []});
    assert_eq!(self::page(&profile), empty);
}

#[test]
fn a_source_that_goes_back_breaks_nothing() {
    let profile = Profile::new(ticks);
    NOW.set(500);
    let span = profile.span(Procedure::Wait);
    NOW.set(100);
    span.end(0);
    assert_eq!(page(&profile)["procedures"][0]["ticks"], 0);
}
