//! What is in force when the broker was killed, when a port is gone, and when somebody has changed the
//! fabric's rules past the broker. One test at a time: a process has one lab.

use anyhow::{Result, ensure};
use fordway_lab::{Spawn, packages};
use fordway_test_enforce::{Bed, counted, db, program, web};
use fordwayd::admin::Request;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_fordway-test-enforce");
const LIMIT: Duration = Duration::from_secs(60);
/// What a ring carries before something happens: far more than [`KERNEL_BYTES`].
const CARRIED: u64 = 400_000;
/// More than the packets of a connection have before it has its ring.
const KERNEL_BYTES: u64 = 100_000;
const COUNTING: &str = "tcp dport 7000 counter";

/// One rule on this hook.
fn rules(hook: &str, rule: &str) -> String {
    format!(
        "table inet t {{\n chain c {{\n type filter hook {hook} priority 0; policy accept;\n {rule}\n }}\n}}\n"
    )
}

/// What the end of web says it has sent by rings.
fn sent(bed: &Bed) -> Result<u64> {
    let rows = bed.connections_of("web")?;
    Ok(rows.iter().map(|row| row.ring_bytes_tx).sum())
}

/// What rings count for these bytes: segments of 1448, each with 52 of headers.
fn with_headers(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(1448) * 52
}

/// The kernel has the rules and the file has not yet taken its place.
#[test]
fn the_first_rules_of_a_broker_that_was_killed_hold_for_both_paths() -> Result<()> {
    let Some(mut bed) = Bed::start("first")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let each_packet = "tcp dport 7000 limit rate over 100000/second drop";
    bed.load_text(&rules("input", each_packet), false)?;
    let before = bed.rules()?;
    bed.lab.stop_broker(true)?;
    let file = bed.lab.runtime_dir().join("filter.json");
    std::fs::rename(&file, file.with_extension("new"))?;
    bed.lab.start_broker()?;
    ensure!(bed.rules()?.text == before.text, "{}", bed.rules()?.text);
    ensure!(file.exists());
    let talker = bed.spawn(&web(), &program("talk 10.77.0.3:7000 1", BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.lab.wait_until(LIMIT, "the reason is known", || {
        let rows = bed.connections_of("web")?;
        Ok(rows
            .iter()
            .any(|row| row.reason.as_deref() == Some("filter")))
    })?;
    ensure!(sent(&bed)? == 0);
    talker.stop()?;

    // What nobody could enforce on rings does not stay for the kernel path alone.
    bed.nft_in_fabric(&["add table ip hand"])?;
    bed.nft_in_fabric(&["add chain ip hand out { type nat hook output priority 0 ; }"])?;
    bed.lab.stop_broker(true)?;
    std::fs::remove_file(&file)?;
    bed.lab.start_broker()?;
    let log = bed.lab.broker_log();
    ensure!(
        log.contains("were removed") && log.contains("type nat"),
        "{log}"
    );
    let kernel = bed.kernel_rules()?;
    ensure!(
        !kernel.contains("hand") && !kernel.contains("inet t"),
        "{kernel}"
    );
    ensure!(bed.rules()?.text.is_empty());
    echo.stop()?;
    bed.finish()
}

/// A connection lives through brokers, and so does what was counted of it.
#[test]
fn a_new_broker_counts_no_byte_of_a_ring_twice() -> Result<()> {
    let Some(mut bed) = Bed::start("twice")? else {
        return Ok(());
    };
    bed.load_text(&rules("forward", COUNTING), false)?;
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let talker = bed.spawn(&web(), &program("talk 10.77.0.3:7000 1", BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.lab
        .wait_until(LIMIT, "bytes through rings", || Ok(sent(&bed)? > CARRIED))?;
    for kill in [false, true] {
        bed.lab.restart_broker(kill)?;
        for domain in ["web", "db"] {
            bed.wait_for_rings(domain, 1)?;
        }
        let before = sent(&bed)?;
        let all = counted(&bed.rules()?.text, COUNTING);
        let after = sent(&bed)?;
        println!("killed: {kill}: counted {all} of {before} to {after}");
        ensure!(
            (before..=with_headers(after) + KERNEL_BYTES).contains(&all),
            "{before} <= {all} <= {after}"
        );
    }
    talker.stop()?;
    echo.stop()?;
    bed.finish()
}

/// As the kernel's counters begin with the rules.
#[test]
fn rules_count_what_is_sent_under_them() -> Result<()> {
    let Some(mut bed) = Bed::start("under")? else {
        return Ok(());
    };
    let echo = bed.spawn(&db(), &program("echo 7000", BINARY))?;
    echo.wait_for_port(7000)?;
    let talker = bed.spawn(&web(), &program("talk 10.77.0.3:7000 1", BINARY))?;
    talker.wait_for_output("up 1")?;
    bed.lab
        .wait_until(LIMIT, "bytes through rings", || Ok(sent(&bed)? > CARRIED))?;
    let before = sent(&bed)?;
    bed.load_text(&rules("forward", COUNTING), false)?;
    for again in [false, true] {
        if again {
            bed.lab.restart_broker(true)?;
            for domain in ["web", "db"] {
                bed.wait_for_rings(domain, 1)?;
            }
        }
        let all = counted(&bed.rules()?.text, COUNTING);
        let after = sent(&bed)?;
        println!("again: {again}: counted {all} of {before} to {after}");
        ensure!(
            all <= with_headers(after - before) + KERNEL_BYTES,
            "{all}: {before}, {after}"
        );
    }
    talker.stop()?;
    echo.stop()?;
    bed.finish()
}

/// nft of a kernel before Linux 6.16: no chain of a device that is not there.
const OLD_NFT: &str = "#!/bin/sh
[ \"$*\" = '-f -' ] || exec NFT \"$@\"
text=$(cat)
for device in $(printf '%s\\n' \"$text\" | sed -n 's/.* device \"\\([^\"]*\\)\".*/\\1/p'); do
    ip link show dev \"$device\" >/dev/null 2>&1 || {
        echo 'Error: Could not process rule: No such file or directory' >&2
        exit 1
    }
done
printf '%s\\n' \"$text\" | NFT -f -
";

#[test]
fn a_chain_of_a_port_waits_for_its_domain() -> Result<()> {
    const CHAIN: &str = "hook ingress device \"p-0a4d0005\"";
    let Some(mut bed) = Bed::start("port")? else {
        return Ok(());
    };
    bed.load_text(
        &format!(
            "table netdev n {{\n chain c {{\n type filter {CHAIN} priority 0; policy accept;\n tcp dport 7000 drop\n }}\n}}\n{}",
            rules("forward", "tcp dport 7001 drop")
        ),
        false,
    )?;
    let before = bed.rules()?.text;
    ensure!(before.contains(CHAIN), "{before}");
    let (name, ip) = ("guest".to_owned(), [10, 77, 0, 5].into());
    bed.lab.ask(&Request::DomainRemove { name, force: true })?;
    bed.lab.stop_broker(true)?;
    // Those kernels drop the chain with its device.
    if bed.kernel_rules()?.contains(CHAIN) {
        bed.nft_in_fabric(&["delete", "chain", "netdev", "n", "c"])?;
    }
    let bin = bed.lab.work_dir().join("bin");
    std::fs::create_dir(&bin)?;
    let nft = packages::path_of("nft")?;
    std::fs::write(bin.join("nft"), OLD_NFT.replace("NFT", &nft))?;
    std::fs::set_permissions(bin.join("nft"), PermissionsExt::from_mode(0o755))?;
    let path = std::env::var("PATH")?;
    let up = [
        bed.lab.fordway().display().to_string(),
        "up".into(),
        "--runtime-dir".into(),
        bed.lab.runtime_dir().display().to_string(),
    ];
    let old = Spawn::new(up).env("PATH", &format!("{}:{path}", bin.display()));
    let old = bed.lab.spawn_bare(&old)?;
    old.wait_until(LIMIT, "answers", || bed.lab.info().is_ok())?;
    let said = old.stdout_so_far() + &old.stderr_so_far();
    ensure!(
        said.contains("chain netdev n c waits for the port"),
        "{said}"
    );
    let kernel = bed.kernel_rules()?;
    ensure!(
        kernel.contains("tcp dport 7001 drop") && !kernel.contains(CHAIN),
        "{kernel}"
    );
    ensure!(bed.rules()?.text == before, "{}", bed.rules()?.text);
    let (name, ip) = ("guest".to_owned(), Some(ip));
    bed.lab.ask(&Request::DomainAdd {
        name,
        ip,
        publish: Vec::new(),
    })?;
    let kernel = bed.kernel_rules()?;
    ensure!(kernel.contains(CHAIN), "{kernel}");
    bed.lab.ask(&Request::Down { keep_domains: true })?;
    old.finish()?.ok()?;

    // Also while the broker lives.
    bed.lab.start_broker()?;
    let name = "guest".to_owned();
    bed.lab.ask(&Request::DomainRemove { name, force: true })?;
    if bed.kernel_rules()?.contains(CHAIN) {
        bed.nft_in_fabric(&["delete", "chain", "netdev", "n", "c"])?;
    }
    let name = "guest".to_owned();
    bed.lab.ask(&Request::DomainAdd {
        name,
        ip,
        publish: Vec::new(),
    })?;
    let kernel = bed.kernel_rules()?;
    ensure!(kernel.contains(CHAIN), "{kernel}");
    bed.finish()
}

/// What is in force is what was loaded, whatever the fabric has had since.
#[test]
fn a_load_replaces_what_somebody_put_into_the_fabric() -> Result<()> {
    let Some(bed) = Bed::start("hand")? else {
        return Ok(());
    };
    let is_changed = || -> Result<bool> { Ok(bed.rules()?.text.starts_with('#')) };
    bed.load_text(&rules("forward", "tcp dport 7000 accept"), false)?;
    ensure!(!is_changed()?);
    bed.nft_in_fabric(&["delete", "table", "inet", "t"])?;
    ensure!(is_changed()?);
    ensure!(bed.rules()?.text.contains("tcp dport 7000 accept"));
    let more = |port: u32| format!("add rule inet t c tcp dport {port} accept\n");
    let told = bed.load_text(&more(7001), true)?;
    print!("{told}");
    let kernel = bed.kernel_rules()?;
    for rule in ["tcp dport 7000 accept", "tcp dport 7001 accept"] {
        ensure!(kernel.contains(rule), "{rule}: {kernel}");
    }
    ensure!(!is_changed()?);

    // A chain that could not be in force between domains.
    for add in [true, false] {
        bed.nft_in_fabric(&["add table ip hand"])?;
        bed.nft_in_fabric(&["add chain ip hand out { type nat hook output priority 0 ; }"])?;
        ensure!(is_changed()?);
        match add {
            true => bed.load_text(&more(7002), true)?,
            false => bed.load_text(&rules("forward", "tcp dport 7003 accept"), false)?,
        };
        ensure!(!is_changed()?);
        let kernel = bed.kernel_rules()?;
        let all = ["tcp dport 7000 accept", "tcp dport 7002 accept"];
        ensure!(
            all.iter().all(|rule| kernel.contains(rule)) == add && !kernel.contains("hand"),
            "{kernel}"
        );
    }
    ensure!(bed.kernel_rules()?.contains("tcp dport 7003 accept"));
    bed.finish()
}
