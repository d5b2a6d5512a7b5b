//! What `fordway ss` says of connections that stay on the kernel path, or went back to it.

use anyhow::{Context, Result, bail, ensure};
use fordway_abi::reason::Reason;
use fordway_lab::{PathChoice, Place, Spawn, Stdin};
use fordway_test_conformance::{Bed, PATIENCE};
use fordwayd::admin::{Reply, Request};

/// Leaves connections as a case of `shown` does; both ends are to be shown with this reason.
fn shown(bed: &Bed, case: &str, reason: Reason) -> Result<()> {
    let program = Bed::program("shown");
    let spawn = Spawn::new([program.to_string_lossy().as_ref(), case])
        .env("FORDWAY_OFFER_AFTER", "0")
        .stdin(Stdin::Pipe);
    let mut running = bed.lab.spawn(&Place::Here, PathChoice::Auto, &spawn)?;
    let both = bed.wait_for("both ends show the reason", |ends| {
        let word = Some(reason.word());
        let is_so = |end: &&fordwayd::admin::Connection| {
            end.path == "kernel" && end.reason.as_deref() == word
        };
        ends.len() == 2 && ends.iter().filter(is_so).count() == 2
    });
    let both = both.with_context(|| format!("{case}: {:?}", bed.lab.connections()));
    drop(running.take_stdin());
    let output = running.finish()?;
    both?;
    let (text, errors) = (output.text(), output.errors());
    let failed = ["A: status", "B: status", "killed", "hangs"]
        .iter()
        .any(|word| text.contains(word));
    ensure!(output.status.success() && !failed, "{case}: {text}{errors}");
    Ok(())
}

macro_rules! shown {
    ($($test:ident: $case:literal, $reason:ident;)*) => { $(
        #[test]
        fn $test() -> Result<()> {
            let bed = Bed::start()?;
            shown(&bed, $case, Reason::$reason)?;
            bed.finish()
        }
    )* };
}

shown! {
    a_child_that_goes_on_is_forked_for_both_ends: "forked", Forked;
    parent_and_child_that_share_are_forked: "forked_both", Forked;
    what_was_forked_before_any_offer_is_forked: "forked_cold", Forked;
    what_another_process_was_passed_is_passed: "passed", Passed;
    what_the_kernel_must_carry_says_why: "oob", Oob;
    what_the_watchdog_moved_is_not_fast: "watchdog", Watchdog;
}

/// A channel that the broker keeps takes a place of the link, and memory, for as long as the
/// process lives.
#[test]
fn who_closes_before_its_child_keeps_no_channel() -> Result<()> {
    let bed = Bed::start()?;
    let program = Bed::program("shown");
    let spawn = Spawn::new([program.to_string_lossy().as_ref(), "left"])
        .env("FORDWAY_OFFER_AFTER", "0")
        .stdin(Stdin::Pipe);
    let mut running = bed.lab.spawn(&Place::Here, PathChoice::Auto, &spawn)?;
    let over = bed
        .lab
        .wait_until(PATIENCE, "no channel is left of three", || {
            let Reply::Info(info) = bed.lab.ask(&Request::Info)? else {
                bail!("no answer");
            };
            Ok(info.processes >= 2 && info.paired_total == 3 && info.channels == 0)
        });
    drop(running.take_stdin());
    let output = running.finish()?;
    over.with_context(|| output.text().to_string())?;
    ensure!(output.status.success(), "{}", output.text());
    bed.finish()
}
