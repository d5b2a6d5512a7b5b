//! What Linux guests with programs of ours get behind their initramfs: `pair`, as what the guest's init starts; or the
//! command and the library, a script that is started, and one for each case, which that one reads.

use fordway_xen_testbed::cpio::Archive;
use fordway_xen_testbed::{Job, Source};
use std::io;
use std::path::PathBuf;

/// The names of the programs among the job's files.
const PAIR: &str = "pair";
const FORDWAY: &str = "fordway";
const HOSTILE: &str = "hostile";
/// Lies beside the command.
const LIBRARY: &str = "libfordway.so";
/// What guests with the command start.
const SCRIPT: &str = include_str!("../programs/guest.sh");
/// What they do in each case.
const CASES: &[(&str, &str)] = &[
    (
        "guests-programs",
        include_str!("../programs/guests-programs.sh"),
    ),
    (
        "guests-programs-early",
        include_str!("../programs/guests-programs-early.sh"),
    ),
    (
        "guests-namespaces",
        include_str!("../programs/guests-namespaces.sh"),
    ),
    (
        "guests-others",
        include_str!("../programs/guests-others.sh"),
    ),
    (
        "guests-brokers",
        include_str!("../programs/guests-brokers.sh"),
    ),
    ("guests-dying", include_str!("../programs/guests-dying.sh")),
    ("guests-four", include_str!("../programs/guests-four.sh")),
    (
        "guests-unikernel",
        include_str!("../programs/guests-unikernel.sh"),
    ),
    (
        "guests-unikernel-hostile",
        include_str!("../programs/guests-unikernel-hostile.sh"),
    ),
    (
        "guests-hostile",
        include_str!("../programs/guests-hostile.sh"),
    ),
];

/// /job/pair.cpio, /job/fordway.cpio and /job/hostile.cpio, as far as the programs are there.
pub fn add_to(job: &mut Job) -> io::Result<()> {
    if let Some(pair) = given(job, PAIR) {
        let mut archive = Archive::new(Vec::new());
        archive.file("start", 0o755, &std::fs::read(pair)?)?;
        add(job, PAIR, archive)?;
    }
    if let Some(fordway) = given(job, FORDWAY) {
        let mut archive = Archive::new(Vec::new());
        archive.file("start", 0o755, SCRIPT.as_bytes())?;
        archive.directory("cases")?;
        for (name, script) in CASES {
            archive.file(&format!("cases/{name}.sh"), 0o644, script.as_bytes())?;
        }
        archive.file("usr/bin/fordway", 0o755, &std::fs::read(&fordway)?)?;
        archive.directory("usr/lib/fordway")?;
        let library = std::fs::read(fordway.with_file_name(LIBRARY))?;
        archive.file(&format!("usr/lib/fordway/{LIBRARY}"), 0o644, &library)?;
        add(job, FORDWAY, archive)?;
    }
    if let Some(hostile) = given(job, HOSTILE) {
        let mut archive = Archive::new(Vec::new());
        archive.file("usr/bin/hostile", 0o755, &std::fs::read(hostile)?)?;
        add(job, HOSTILE, archive)?;
    }
    Ok(())
}

fn given(job: &Job, program: &str) -> Option<PathBuf> {
    let mut files = job.files.iter().filter(|(name, _)| name == program);
    match files.next()? {
        (_, Source::Path(path)) => Some(path.clone()),
        _ => None,
    }
}

fn add(job: &mut Job, name: &str, archive: Archive<Vec<u8>>) -> io::Result<()> {
    let archive = Source::Bytes(archive.finish()?);
    job.files.push((format!("{name}.cpio"), archive));
    Ok(())
}
