//! The runtime directory: one broker each, its sockets, and nobody else's hands in it.

use crate::admin::{ADMIN_SOCKET, CONTROL_DIR, CONTROL_SOCKET, READ_SOCKET, READER, READERS};
use crate::domains::ATTACHED_FILE;
use crate::filter::RULES_FILE;
use crate::{BrokerError, doing, stacks};
use fordway_abi::{INSISTED_FILE, insisted};
use fordway_platform::fabric::Fabric;
use fordway_platform::{ipc, process};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::Permissions;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const LOCK_FILE: &str = "broker.lock";

/// The group that may read what root's broker knows.
pub fn readers() -> u32 {
    process::group(READERS).unwrap_or(READER)
}

/// A locked runtime directory with its sockets open; they are removed when dropped.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) dir: PathBuf,
    pub(crate) control: OwnedFd,
    pub(crate) admin: OwnedFd,
    pub(crate) read: OwnedFd,
    /// The group that may read; an ordinary user's broker has none.
    pub(crate) readers: Option<u32>,
    /// Says whether some program requires the fast path ([`insisted`]).
    insisted: std::fs::File,
    /// The sockets are the service manager's, and stay.
    inherited: bool,
    /// The lock ends with it.
    _lock: std::fs::File,
}

impl Runtime {
    /// Makes the directory if need be and takes it.
    pub(crate) fn take(dir: &Path) -> Result<Self, BrokerError> {
        let root = rustix::process::geteuid().is_root();
        // Programs of any user may be run in a domain and must reach the control socket.
        let mode = if root { 0o755 } else { 0o700 };
        let make = |dir: &Path| {
            let new = !dir.exists();
            let made = std::fs::create_dir_all(dir).and_then(|()| match new {
                // Whatever the umask.
                true => std::fs::set_permissions(dir, Permissions::from_mode(mode)),
                false => Ok(()),
            });
            made.map_err(doing(format!("making {}", dir.display())))?;
            check_owner(dir)
        };
        make(dir)?;
        let lock = lock(dir)?;
        make(&dir.join(CONTROL_DIR))?;
        let mut inherited = ipc::inherited();
        let open = |name, kind, mode| {
            let path = dir.join(name);
            ipc::listen(&path, kind, mode)
                .map_err(doing(format!("listening on {}", path.display())))
        };
        let mut given = |name| {
            let path = dir.join(name);
            let place = inherited.iter().position(|(bound, _)| *bound == path)?;
            Some(inherited.swap_remove(place).1)
        };
        let given = given(CONTROL_SOCKET).zip(given(ADMIN_SOCKET));
        let insisted = insisted_file(&dir.join(CONTROL_DIR), if root { 0o644 } else { 0o600 })?;
        let control_mode = if root { 0o666 } else { 0o600 };
        let inherited = given.is_some();
        let (control, admin) = match given {
            Some(given) => given,
            None => (
                open(CONTROL_SOCKET, ipc::Kind::Packets, control_mode)?,
                open(ADMIN_SOCKET, ipc::Kind::Stream, 0o600)?,
            ),
        };
        let read = open(READ_SOCKET, ipc::Kind::Stream, 0o600)?;
        let path = dir.join(READ_SOCKET);
        // A user namespace may lack the group, and root the right to give files away.
        let readers = root.then(readers).filter(|group| {
            let given = std::os::unix::fs::chown(&path, None, Some(*group))
                .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o660)));
            if let Err(error) = &given {
                tracing::warn!("only root reads by {}: {error}", path.display());
            }
            given.is_ok()
        });
        Ok(Self {
            control,
            admin,
            read,
            readers,
            insisted,
            inherited,
            dir: dir.to_owned(),
            _lock: lock,
        })
    }
}

impl Runtime {
    /// Tells all programs whether some program requires the fast path. By a file: those that have
    /// offered nothing yet speak to no broker.
    pub(crate) fn show_insisted(&self, is_so: bool) -> std::io::Result<()> {
        let byte = if is_so { insisted::YES } else { insisted::NO };
        self.insisted.write_all_at(&[byte], 0)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let own: &[&str] = match self.inherited {
            true => &[READ_SOCKET],
            false => &[CONTROL_SOCKET, ADMIN_SOCKET, READ_SOCKET],
        };
        for name in own {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        let _ = end_insisted(&self.dir.join(CONTROL_DIR));
    }
}

/// The file that says whether some program requires the fast path: no. Programs have mapped what a
/// broker that was killed has left, so the next one goes on with it.
fn insisted_file(dir: &Path, mode: u32) -> Result<std::fs::File, BrokerError> {
    let path = dir.join(INSISTED_FILE);
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .and_then(|file| {
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all_at(&[insisted::NO], 0)?;
            Ok(file)
        });
    made.map_err(doing(format!("making {}", path.display())))
}

/// Removes that file. Who has mapped it is told to look by name again.
fn end_insisted(dir: &Path) -> Result<(), BrokerError> {
    let path = dir.join(INSISTED_FILE);
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(&path) {
        let told = file.write_all_at(&[insisted::OVER], 0);
        told.map_err(doing(format!("writing {}", path.display())))?;
    }
    remove(&path)
}

/// Clears away what a broker that is no more has left: stacks, domains, rules, sockets. Says whether there
/// was anything. One that runs and does not answer has its lock still: [`BrokerError::Taken`].
pub fn clear(dir: &Path) -> Result<bool, BrokerError> {
    let is_locked = dir.join(LOCK_FILE).exists();
    let _lock = is_locked.then(|| lock(dir)).transpose()?;
    let mut had_any = stacks::clear(dir).map_err(doing("clearing away stacks".to_owned()))?;
    had_any |= Fabric::remove(dir)?;
    let sockets = [CONTROL_SOCKET, ADMIN_SOCKET, READ_SOCKET];
    for name in [ATTACHED_FILE, RULES_FILE].into_iter().chain(sockets) {
        had_any |= dir.join(name).exists();
        remove(&dir.join(name))?;
    }
    end_insisted(&dir.join(CONTROL_DIR))?;
    Ok(had_any)
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<(), BrokerError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(doing(format!("removing {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// An empty file of this name that only the broker's user can read, whatever was there and
/// whatever the umask: others may enter the directory.
pub(crate) fn private_file(path: &Path) -> std::io::Result<std::fs::File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Whoever can write to the directory can put a socket of his own there.
fn check_owner(dir: &Path) -> Result<(), BrokerError> {
    let wrong = |what: String| BrokerError::Directory {
        dir: dir.to_owned(),
        what,
    };
    let metadata = std::fs::metadata(dir).map_err(doing(dir.display().to_string()))?;
    let uid = rustix::process::geteuid().as_raw();
    if metadata.uid() != uid {
        let owner = metadata.uid();
        return Err(wrong(format!(
            "belongs to user {owner}, not to {uid}; choose another with --runtime-dir"
        )));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(wrong(
            "others can write to it; take that away with chmod go-w".into(),
        ));
    }
    Ok(())
}

fn lock(dir: &Path) -> Result<std::fs::File, BrokerError> {
    let path = dir.join(LOCK_FILE);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
        .map_err(|error| doing(format!("opening {}", path.display()))(error.into()))?;
    let mut file = std::fs::File::from(file);
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        return Err(BrokerError::Taken {
            dir: dir.to_owned(),
            pid: pid.trim().parse().ok(),
        });
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(doing(format!("writing {}", path.display())))?;
    Ok(file)
}
