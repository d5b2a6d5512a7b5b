//! Suite `reach` in its shortest form, by real programs, as root: each row that needs no build is measured,
//! and went by rings. No speed is asserted. Without root or a program the test says so and passes.

use fordway_lab::packages;
use serde_json::Value;
use std::process::Command;

const PROGRAMS: [&str; 7] = [
    "redis-server",
    "redis-benchmark",
    "redis-cli",
    "haproxy",
    "nsenter",
    "ip",
    "nft",
];

#[test]
fn each_way_is_by_rings() {
    if !rustix::process::getuid().is_root() {
        fordway_test_skip::skipped("domains need root");
        return;
    }
    if let Some(lacking) = packages::lacking(&PROGRAMS) {
        fordway_test_skip::skipped(lacking);
        return;
    }
    let rows = std::env::temp_dir().join(format!("reach-{}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_fordway-bench"))
        .args(["reach", "--quick", "--runs=1", "--seconds=0.1", "--json"])
        .arg(&rows)
        .output()
        .unwrap();
    let text = std::fs::read_to_string(&rows).unwrap_or_default();
    let _ = std::fs::remove_file(&rows);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows = text.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        assert!(row["ring_bytes"].as_u64() > Some(0), "{line}");
        ["work", "rival"].map(|name| row[name].as_str().unwrap().to_owned())
    });
    // Left out, with a line, where the machine has no cgroup for it.
    let rows = rows.filter(|[_, rival]| rival != "sockmap-sidecar");
    let expected = [
        ["reach-direct-redis-get-c1", "kernel-bridge"],
        ["reach-published-redis-get-c1", "direct"],
        ["reach-published-redis-get-c1", "kernel-published"],
        ["reach-sidecar-redis-get-c1", "kernel-sidecar"],
        ["reach-pair", "direct"],
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}
