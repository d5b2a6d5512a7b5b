//! Compiled out, a profile is nothing: no size, no tick asked for.
#![cfg(not(feature = "record"))]

use fordway_profile::{Procedure, Profile, Span};

fn ticks() -> u64 {
    panic!("asked for the time");
}

#[test]
fn nothing_is_kept_and_nothing_is_called() {
    let profile = Profile::new(ticks);
    assert_eq!((size_of::<Profile>(), size_of::<Span<'_>>()), (0, 0));
    assert!(!profile.is_recording());
    profile.span(Procedure::Wait).end(7);
    drop(profile.span(Procedure::Notify));
    profile.clear();
    let mut json = String::new();
    profile.write_json(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["recording"], false);
    let mut text = String::new();
    profile.write_text(&mut text).unwrap();
    assert!(text.contains("nothing is recorded"));
}
