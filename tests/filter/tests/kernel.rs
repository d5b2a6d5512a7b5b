//! The filter beside the kernel's nf_tables: 200 rulesets with 50 packets each.

#[test]
fn the_kernel_and_the_filter_agree() {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !is_root {
        eprintln!("not root: nf_tables was not asked");
        return;
    }
    let tally =
        fordway_test_filter::compare::run(1, 0..200, 50).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(
        tally.arrived > tally.packets / 4,
        "hardly anything came through: {tally}"
    );
    assert!(
        tally.refused < tally.rulesets / 10,
        "hardly anything was loaded: {tally}"
    );
    for difference in &tally.differences {
        eprintln!("{difference}");
    }
    assert!(tally.differences.is_empty(), "{tally}");
    assert!(!tally.excuses_too_much(), "{tally}");
}
