//! Programs with few descriptors, from 8 upwards: each must come exactly as far as
//! without Fordway, where the limit can be raised ("soft") and where it cannot ("hard").

use crate::Storm;
use anyhow::{Result, ensure};
use fordway_lab::{Output, PathChoice, Place, Spawn, Stdin};
use std::fmt::Write;

pub fn run(storm: &mut Storm) -> Result<()> {
    let limits: Vec<u32> = match storm.scale.pick(true, false) {
        true => vec![8, 9, 12, 16, 40, 64, 255, 256, 300, 1024],
        false => (8..=64)
            .chain((72..1024).step_by(24))
            .chain([1024, 4096])
            .collect(),
    };
    let mut differing = String::new();
    let mut runs = 0;
    for kind in ["S", ""] {
        for limit in &limits {
            let without = play(storm, kind, *limit, PathChoice::Kernel)?;
            let with = play(storm, kind, *limit, PathChoice::Auto)?;
            runs += 1;
            let seen = |output: &Output| (output.text(), output.errors(), output.status.code());
            if seen(&without) != seen(&with) {
                let kind = if kind == "S" { "soft" } else { "hard" };
                writeln!(
                    differing,
                    "{kind} limit {limit}: without {:?}, with {:?}",
                    seen(&without),
                    seen(&with)
                )?;
            }
        }
    }
    storm.figure("limits tried, soft and hard", runs);
    storm.figure("bytes through rings", storm.lab.ring_bytes()?);
    storm.figure("differences", differing.lines().count());
    ensure!(differing.is_empty(), "\n{differing}");
    ensure!(storm.lab.ring_bytes()? > 0, "rings were never used");
    Ok(())
}

fn play(storm: &Storm, kind: &str, limit: u32, path: PathChoice) -> Result<Output> {
    let role = storm.role(["few"]).argv;
    let script = format!("ulimit -{kind}n {limit} && exec {}", role.join(" "));
    let spawn = Spawn::new(["sh".to_owned(), "-c".to_owned(), script])
        .env("FORDWAY_OFFER_AFTER", "0")
        .stdin(Stdin::Null);
    storm.lab.spawn(&Place::Here, path, &spawn)?.finish()
}
