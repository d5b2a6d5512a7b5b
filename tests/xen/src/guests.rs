//! What two Linux guests with a program of ours get behind their initramfs: the program, as what the
//! guest's init starts.

use fordway_xen_testbed::cpio::Archive;
use fordway_xen_testbed::{Job, Source};

/// The name of the program among the job's files.
const PROGRAM: &str = "pair";

/// /job/pair.cpio, if the program is there.
pub fn add_to(job: &mut Job) -> std::io::Result<()> {
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
