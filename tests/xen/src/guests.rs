//! What Linux guests with programs of ours get behind their initramfs: `pair`, as what the guest's init starts; or the
//! command and the library, and a script that is started.

use fordway_xen_testbed::cpio::Archive;
use fordway_xen_testbed::{Job, Source};
use std::path::PathBuf;

/// The name of the program among the job's files.
const PROGRAM: &str = "pair";
/// What cases call the command in dom0, and the archive with it.
const FORDWAY: &str = "fordway";
const FORDWAY_ARCHIVE: &str = "fordway.cpio";
const LIBRARY: &str = "libfordway.so";
/// What both guests start.
const SCRIPT: &str = include_str!("../programs/guest.sh");

/// The command, and the library beside it, if both are built.
pub fn fordway() -> Option<[PathBuf; 2]> {
    let fordway = fordway_lab::find_fordway().ok()?;
    let library = fordway.with_file_name(LIBRARY);
    library.is_file().then_some([fordway, library])
}

/// What the job's cases need of this.
pub fn add_to(job: &mut Job) -> std::io::Result<()> {
    add_pair(job)?;
    let wanted = |script: &String| script.contains(FORDWAY_ARCHIVE);
    match fordway() {
        Some(files) if job.cases.iter().any(|case| wanted(&case.script)) => add_fordway(job, files),
        _ => Ok(()),
    }
}

/// /job/pair.cpio, if the program is there.
fn add_pair(job: &mut Job) -> std::io::Result<()> {
    let mut programs = job.files.iter().filter(|(name, _)| name == PROGRAM);
    let Some((_, Source::Path(path))) = programs.next() else {
        return Ok(());
    };
    let mut archive = Archive::new(Vec::new());
    archive.file("start", 0o755, &std::fs::read(path)?)?;
    let archive = Source::Bytes(archive.finish()?);
    job.files.push(("pair.cpio".to_owned(), archive));
    Ok(())
}

/// /job/fordway for dom0, and /job/fordway.cpio for guests.
fn add_fordway(job: &mut Job, [fordway, library]: [PathBuf; 2]) -> std::io::Result<()> {
    let mut archive = Archive::new(Vec::new());
    archive.file("start", 0o755, SCRIPT.as_bytes())?;
    archive.file("usr/bin/fordway", 0o755, &std::fs::read(&fordway)?)?;
    archive.directory("usr/lib/fordway")?;
    let place = format!("usr/lib/fordway/{LIBRARY}");
    archive.file(&place, 0o644, &std::fs::read(library)?)?;
    let archive = Source::Bytes(archive.finish()?);
    job.files.push((FORDWAY_ARCHIVE.to_owned(), archive));
    job.files.push((FORDWAY.to_owned(), Source::Path(fordway)));
    Ok(())
}
