//! What is to be done in dom0, or in Linux alone: cases, and the files that they need. It goes into the
//! initrd as a second archive behind the system's, and lies in /job there. The system's first process
//! and the runner of the cases come with it, so that they are no part of the cache.

use crate::Error;
use crate::cpio::Archive;
use crate::images::{Bed, Images, Source};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

const INIT: &str = include_str!("../assets/dom0-init.sh");
const INIT_ALONE: &str = include_str!("../assets/linux-init.sh");
const RUNNER: &str = include_str!("../assets/runner.py");
const VIF_PLUG: &str = include_str!("../assets/vif-plug.sh");

/// Functions for cases: guests made and waited for.
pub const FUNCTIONS: &str = include_str!("../assets/library.sh");

/// One shell script, run by bash with `set -eu -o pipefail` after [`FUNCTIONS`] and
/// [`Job::functions`].
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name, unique in its job.
    pub name: String,
    /// The script.
    pub script: String,
    /// How long it may take, in emulated seconds.
    pub limit_s: u32,
}

/// Cases, run in order, and their files.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// What every case reads first, behind [`FUNCTIONS`].
    pub functions: String,
    /// The cases.
    pub cases: Vec<Case>,
    /// Files by their names in /job.
    pub files: Vec<(String, Source)>,
    /// Whether the Linux guest's kernel and initramfs are wanted in /job/linux.
    pub linux: bool,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    script: String,
    limit_s: u32,
}

impl Job {
    /// Writes the initrd: the system's archive and the job's.
    pub(crate) fn write(&self, images: &Images, to: &Path) -> Result<(), Error> {
        let written = (|| {
            let mut file = io::BufWriter::new(std::fs::File::create(to)?);
            let mut system = std::fs::File::open(images.system())?;
            io::copy(&mut system, &mut file)?;
            self.archive(images, file)
        })();
        written.map_err(|error| Error::file(to, error))
    }

    fn archive(&self, images: &Images, to: impl Write) -> io::Result<()> {
        let mut archive = Archive::new(to);
        archive.file("runner.py", 0o755, RUNNER.as_bytes())?;
        match images.bed() {
            Bed::Xen => {
                archive.file("init", 0o755, INIT.as_bytes())?;
                archive.file("etc/xen/scripts/vif-plug", 0o755, VIF_PLUG.as_bytes())?;
            }
            Bed::Linux => archive.file("init", 0o755, INIT_ALONE.as_bytes())?,
        }
        archive.directory("job")?;
        archive.directory("job/cases")?;
        let mut list = Vec::new();
        for (number, case) in self.cases.iter().enumerate() {
            let script = format!("job/cases/{number:03}");
            archive.file(&script, 0o644, case.script.as_bytes())?;
            list.push(Entry {
                name: &case.name,
                script: format!("/{script}"),
                limit_s: case.limit_s,
            });
        }
        archive.file("job/list", 0o644, &serde_json::to_vec(&list)?)?;
        let functions = format!("{FUNCTIONS}\n{}", self.functions);
        archive.file("job/functions", 0o644, functions.as_bytes())?;
        let mut directories = Vec::new();
        for (name, source) in &self.files {
            for (at, _) in name.match_indices('/') {
                let directory = &name[..at];
                if !directories.contains(&directory) {
                    archive.directory(&format!("job/{directory}"))?;
                    directories.push(directory);
                }
            }
            archive.file(&format!("job/{name}"), 0o755, &source.bytes()?)?;
        }
        if self.linux {
            archive.directory("job/linux")?;
            for name in Images::LINUX {
                let content = std::fs::read(images.path(name))?;
                archive.file(&format!("job/linux/{name}"), 0o644, &content)?;
            }
        }
        archive.finish().map(drop)
    }
}
