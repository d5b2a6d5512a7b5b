//! The network stack's protocols as Cargo features: every set that makes sense is built and its
//! size printed, every combination that makes none must be refused by the compiler.
//!
//! The size is that of a program that calls everything the set offers (`examples/size.rs`),
//! less that of an empty program: machine code and constants, as `size` counts them.

use crate::{Outcome, program};
use std::path::Path;
use std::process::Command;

const CRATE: &str = "fordway-netstack";
/// The stack of UDP alone, and what the compiler must say of one that has TCP.
const SMALLER: (&str, &str) = ("fordway-stackd-udp", "fordway-stackd-udp has no TCP");
const SETS: [&str; 12] = [
    "icmp",
    "udp",
    "tcp",
    "tcp,icmp",
    "tcp,udp",
    "tcp,udp,icmp",
    "tcp,udp,icmp,ipv6",
    "tcp,udp,icmp,ipv6,autoconf",
    "tcp,udp,icmp,fragments",
    "tcp,udp,icmp,dhcp,dns",
    "tcp,udp,icmp,filter",
    "tcp,udp,icmp,ipv6,autoconf,fragments,dhcp,dns,filter",
];
/// The set, and a part of what the compiler must say to it.
const REFUSED: [(&str, &str); 7] = [
    ("", "without tcp, udp and icmp"),
    ("filter", "without tcp, udp and icmp"),
    ("tcp,ipv6", "ipv6 finds its neighbors by ICMPv6"),
    ("tcp,icmp,autoconf", "autoconf makes addresses of IPv6"),
    ("tcp,icmp,dhcp", "dhcp is spoken over UDP"),
    ("tcp,dns", "dns is asked over UDP"),
    ("tcp,fragments", "fragments needs udp or icmp"),
];

const REFUSED_ONLY: &str = "--refused";

/// `./x features [--refused]`: with that word, without the sizes, which take many builds.
pub fn run(words: &[String]) -> Outcome {
    let refused_only = match words {
        [] => false,
        [word] if word == REFUSED_ONLY => true,
        _ => return Err(format!("features takes {REFUSED_ONLY} and nothing else")),
    };
    for (set, why) in REFUSED {
        must_refuse(
            &["-p", CRATE, "--no-default-features", "--features", set],
            why,
        )?;
    }
    let (binary, why) = SMALLER;
    must_refuse(
        &[
            "-p",
            "fordway-stackd",
            "--bin",
            binary,
            "--features",
            "without-tcp",
        ],
        why,
    )?;
    if refused_only {
        return Ok(());
    }
    let empty = size("size_empty", "icmp")?;
    for set in SETS {
        let bytes = size("size", set)?.saturating_sub(empty);
        println!("{:>7.1} K {set}", bytes as f64 / 1024.0);
    }
    Ok(())
}

/// That the compiler says this, and makes nothing. What stands before it is built once.
fn must_refuse(words: &[&str], why: &str) -> Outcome {
    let mut check = program(&["cargo", "check", "--quiet"]);
    check.args(words);
    let done = check.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stderr);
    let words = words[1..].join(" ");
    if done.status.success() || !said.contains(why) {
        return Err(format!("{words} must be refused with {why:?}, but: {said}"));
    }
    println!("refused   {words:<74} {why}");
    Ok(())
}

/// What `./x test` plays, as a process of its own.
pub fn refused() -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.args(["features", REFUSED_ONLY]);
    Ok(command)
}

/// Code and constants of one example, in bytes.
fn size(example: &str, set: &str) -> Result<u64, String> {
    let target = "target/features";
    let words = [
        "cargo",
        "build",
        "--quiet",
        "--release",
        "-p",
        CRATE,
        "--example",
        example,
        "--no-default-features",
        "--features",
        set,
        "--target-dir",
        target,
    ];
    let status = program(&words)
        .status()
        .map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("features {set:?} do not build"));
    }
    let file = Path::new(target).join("release/examples").join(example);
    let file = file.to_string_lossy();
    let done = program(&["size", &file])
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stdout);
    let line = said.lines().nth(1).unwrap_or_default();
    let numbers: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    match numbers[..] {
        [text, data, ..] => Ok(text + data),
        _ => Err(format!("size says {said:?}")),
    }
}
