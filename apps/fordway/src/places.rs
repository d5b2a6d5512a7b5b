//! Where things lie: the runtime directory, the shim and the demo.

use crate::broker;
use crate::exit::{Exit, Failure};
use fordway_abi::ABI_VERSION;
use fordway_platform::elf;
use fordwayd::Programs;
use fordwayd::admin::CONTROL_SOCKET;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::env;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Of root's broker.
const SYSTEM_DIR: &str = "/run/fordway";
/// Longest path of a socket, without its final null (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// File name of the shim.
pub const SHIM: &str = "libfordway.so";
/// Names the shim's file, before any other place.
pub const SHIM_VARIABLE: &str = "FORDWAY_LIB";

/// The variable of the shim that holds its ABI version.
const SHIM_VERSION_SYMBOL: &str = "fordway_abi_version";

/// `--runtime-dir`, else the user's default.
pub fn runtime_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let session = || env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = match given {
        Some(dir) => std::path::absolute(dir)
            .map_err(|error| Failure::io(format!("--runtime-dir {}", dir.display()), &error))?,
        None if rustix::process::geteuid().is_root() => PathBuf::from(SYSTEM_DIR),
        None => match session() {
            // Another kind of path is to be ignored, says the XDG Base Directory Specification.
            Some(dir) if dir.is_absolute() => dir.join("fordway"),
            _ => without_session()?,
        },
    };
    if dir.join(CONTROL_SOCKET).as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let most = SOCKET_PATH_BYTES_MAX - CONTROL_SOCKET.len() - 1;
        let text = format!(
            "{}: a runtime directory's path has at most {most} bytes; give a shorter --runtime-dir",
            dir.display()
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    Ok(dir)
}

/// The same for what members of the group `fordway` may ask of root's broker: where the user has
/// no broker of his own, theirs is root's.
pub fn listed_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let own = runtime_dir(given);
    match given {
        Some(_) => own,
        None => own_or_system(own, |dir| UnixStream::connect(broker::socket(dir)).is_ok()),
    }
}

fn own_or_system(
    own: Result<PathBuf, Failure>,
    answers: impl Fn(&Path) -> bool,
) -> Result<PathBuf, Failure> {
    let system = Path::new(SYSTEM_DIR);
    match &own {
        Ok(dir) if dir == system || answers(dir) => own,
        _ if answers(system) => Ok(system.into()),
        _ => own,
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

/// Where a file that belongs to this command may lie, in the order in which it is looked for.
pub fn candidates(name: &str) -> Vec<PathBuf> {
    let own = env::current_exe().ok();
    let own_dir = own.as_deref().and_then(Path::parent);
    let beside = own_dir.map(|dir| dir.join(name));
    let installed = own_dir
        .and_then(Path::parent)
        .map(|dir| dir.join("lib/fordway").join(name));
    let system = Path::new("/usr/lib/fordway").join(name);
    beside
        .into_iter()
        .chain(installed)
        .chain([system])
        .collect()
}

/// What the broker starts. Where none is there, the first place is named: whoever asks for it is told.
pub fn programs() -> Programs {
    let find = |name: &str| {
        let mut candidates = candidates(name);
        let found = candidates.iter().position(|file| file.is_file());
        candidates.swap_remove(found.unwrap_or(0))
    };
    Programs {
        driver: find("fordway-driver"),
        stack: find("fordway-stackd"),
        library: shim().unwrap_or_else(|_| find(SHIM)),
    }
}

/// Files, for an error.
pub fn listed(files: &[PathBuf]) -> String {
    let files = files.iter().map(|file| file.display().to_string());
    files.collect::<Vec<_>>().join(", ")
}

/// The shim's file, if programs that this command starts can use it.
pub fn shim() -> Result<PathBuf, Failure> {
    let candidates = match env::var_os(SHIM_VARIABLE).filter(|file| !file.is_empty()) {
        Some(file) => vec![file.into()],
        None => candidates(SHIM),
    };
    let found = candidates
        .iter()
        .find(|file| fordway_platform::launch::is_readable(file));
    let Some(found) = found else {
        let places = listed(&candidates);
        let text = format!("{SHIM} is not at {places}; install it or name it in {SHIM_VARIABLE}");
        return Err(Failure::new(Exit::Missing, text));
    };
    let found = found.canonicalize().unwrap_or_else(|_| found.clone());
    let shown = found.display();
    let wrong = |what: String| Err(Failure::new(Exit::Missing, format!("{shown} {what}")));
    // LD_PRELOAD has no way to quote them (ld.so(8)).
    if found.to_string_lossy().contains([' ', ':']) {
        return wrong("has a blank or colon, which LD_PRELOAD cannot take; move the file".into());
    }
    match elf::exported_u32(&found, SHIM_VERSION_SYMBOL) {
        Some(ABI_VERSION) => {}
        Some(version) => {
            return wrong(format!(
                "has ABI version {version}, this fordway {ABI_VERSION}; install both from one release"
            ));
        }
        None => {
            return wrong(format!(
                "has no ABI version, so it is no {SHIM}; install that of this release"
            ));
        }
    }
    if statvfs(&found).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return wrong("lies on a file system that is mounted noexec; move the file".into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_broker_lists_roots_if_that_lets_him() {
        let own = || Ok(PathBuf::from("/run/user/7/fordway"));
        let chosen = |own: Result<PathBuf, Failure>, answering: &[&str]| {
            let answers = |dir: &Path| answering.iter().any(|one| dir == Path::new(one));
            own_or_system(own, answers).map_err(|failure| failure.exit)
        };
        let path = |text: &str| Ok(PathBuf::from(text));
        let (mine, roots) = ("/run/user/7/fordway", SYSTEM_DIR);
        assert_eq!(chosen(own(), &[mine, roots]), path(mine));
        assert_eq!(chosen(own(), &[roots]), path(roots));
        // Nobody answers: he is told of his own.
        assert_eq!(chosen(own(), &[]), path(mine));
        let none = || Err(Failure::new(Exit::Privilege, "somebody else's"));
        assert_eq!(chosen(none(), &[roots]), path(roots));
        assert_eq!(chosen(none(), &[]), Err(Exit::Privilege));
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused() {
        let most = SOCKET_PATH_BYTES_MAX - CONTROL_SOCKET.len() - 1;
        let dir = |length: usize| PathBuf::from(format!("/{}", "d".repeat(length - 1)));
        assert!(runtime_dir(Some(&dir(most))).is_ok());
        let refused = runtime_dir(Some(&dir(most + 1))).map_err(|failure| failure.exit);
        assert_eq!(refused, Err(Exit::Usage));
    }
}
