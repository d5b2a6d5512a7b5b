//! Where things lie: the runtime directory and the shim.

use crate::exit::{Exit, Failure};
use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// File name of the shim.
pub const SHIM: &str = "libfordway.so";
/// Names the shim's file, before any other place.
pub const SHIM_VARIABLE: &str = "FORDWAY_LIB";

/// The variable of the shim that holds its ABI version.
pub const SHIM_VERSION_SYMBOL: &str = "fordway_abi_version";

/// `--runtime-dir`, else the user's default.
pub fn runtime_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(dir) = given {
        return std::path::absolute(dir).map_err(Failure::internal);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/run/fordway"));
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Ok(PathBuf::from(dir).join("fordway")),
        _ => without_session(),
    }
}

/// Outside of a session (su, cron): the directory that a session of the user's would have
/// (pam_systemd(8)), else one below /tmp. There, whoever is first has the name: it must be the user's.
fn without_session() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let owner = |dir: &Path| std::fs::symlink_metadata(dir).ok().map(|data| data.uid());
    let session = PathBuf::from(format!("/run/user/{uid}"));
    if owner(&session) == Some(uid) {
        return Ok(session.join("fordway"));
    }
    let dir = PathBuf::from(format!("/tmp/fordway-{uid}"));
    match owner(&dir) {
        Some(other) if other != uid => {
            let dir = dir.display();
            let text = format!("{dir} belongs to user {other}; give --runtime-dir DIR");
            Err(Failure::new(Exit::Privilege, text))
        }
        _ => Ok(dir),
    }
}

/// Where the shim may lie, in the order in which it is looked for.
fn shim_candidates() -> Vec<PathBuf> {
    if let Some(file) = env::var_os(SHIM_VARIABLE) {
        return vec![file.into()];
    }
    let own = env::current_exe().ok();
    let own_dir = own.as_deref().and_then(Path::parent);
    let beside = own_dir.map(|dir| dir.join(SHIM));
    let installed = own_dir
        .and_then(Path::parent)
        .map(|dir| dir.join("lib/fordway").join(SHIM));
    let system = Path::new("/usr/lib/fordway").join(SHIM);
    beside
        .into_iter()
        .chain(installed)
        .chain([system])
        .collect()
}

/// The shim's file.
pub fn shim() -> Result<PathBuf, Failure> {
    let candidates = shim_candidates();
    let found = candidates
        .iter()
        .find(|file| fordway_platform::launch::is_readable(file));
    let Some(found) = found else {
        let places = candidates.iter().map(|file| file.display().to_string());
        let places = places.collect::<Vec<_>>().join(", ");
        let text = format!("{SHIM} is not at {places}; install it or name it in {SHIM_VARIABLE}");
        return Err(Failure::new(Exit::Missing, text));
    };
    let found = found.canonicalize().unwrap_or_else(|_| found.clone());
    // LD_PRELOAD has no way to quote them (ld.so(8)).
    if found.to_string_lossy().contains([' ', ':']) {
        let text = format!(
            "{}: LD_PRELOAD takes no blank or colon; move the file",
            found.display()
        );
        return Err(Failure::new(Exit::Missing, text));
    }
    Ok(found)
}
