//! A directory for one run, some hundred megabytes of initrd, which goes away with the run.
//!
//! A run that is killed cannot remove its own. So each holds a lock (flock(2)) on its
//! directory, which the kernel takes back from the dead, and the next run removes the
//! directories that nobody holds. A directory may be taken for a dead one's between its
//! making and its locking: then it is gone when the lock is had, and another is made.

use crate::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "fordway-xen-";

pub(crate) struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// A new one, after those of the dead are removed.
    pub(crate) fn new() -> Result<Scratch, Error> {
        let parent = std::env::temp_dir();
        clean(&parent);
        Scratch::below(&parent)
    }

    fn below(parent: &Path) -> Result<Scratch, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {}
                // Another's, with our process id in another namespace.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::file(&path, error)),
            }
            let Ok(lock) = File::open(&path) else {
                continue;
            };
            lock.lock().map_err(|error| Error::file(&path, error))?;
            if path.is_dir() {
                return Ok(Scratch { path, _lock: lock });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what dead runs have left. What cannot be looked at belongs to somebody else.
fn clean(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if let Ok(directory) = File::open(entry.path())
            && directory.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_runs_directory_goes_and_a_living_ones_stays() {
        let parent = std::env::temp_dir().join(format!("fw-scratch-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let living = Scratch::below(&parent).unwrap();
        let dead = parent.join(format!("{PREFIX}1-0"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("initrd"), "left").unwrap();
        let other = parent.join("another");
        fs::create_dir(&other).unwrap();
        clean(&parent);
        assert!(living.path().is_dir() && other.is_dir() && !dead.exists());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
        fs::remove_dir_all(&parent).unwrap();
    }
}
