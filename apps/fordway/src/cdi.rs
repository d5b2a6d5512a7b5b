//! `fordway cdi`: joining as a device, `--device fordway.dev/net=on`. A file tells container
//! engines which variables and mounts that device stands for (the Container Device Interface,
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>). They come
//! from [`Needs`], without what is optional: an engine refuses to start a container if the
//! source of a mount is missing, and its own /etc/hosts holds the names of its networks.
//!
//! An engine reads the file whenever it starts a container, so it is replaced in one step.

use crate::broker::Broker;
use crate::cli::Cdi;
use crate::container::Needs;
use crate::exit::{Exit, Failure, Outcome};
use crate::show;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Where engines look for what stays over a restart of the machine.
pub const DEFAULT_DIR: &str = "/etc/cdi";
const FILE: &str = "fordway.json";
/// Not one of the endings that engines read.
const NEW_FILE: &str = "fordway.json.new";

/// The oldest form that every engine with CDI reads; nothing here needs a later one.
const VERSION: &str = "0.3.0";
const KIND: &str = "fordway.dev/net";
const DEVICE: &str = "on";

/// `fordway cdi ...`.
pub fn cdi(command: &Cdi, broker: impl Fn() -> Result<Broker, Failure>) -> Outcome {
    match command {
        Cdi::Show => show::document(&specification(&Needs::of(&broker()?)?)),
        Cdi::Install { dir } => {
            let specification = specification(&Needs::of(&broker()?)?);
            install(dir, &specification).map_err(|error| refused(dir, &error))?;
            Ok(Exit::Done)
        }
        Cdi::Remove { dir } => match fs::remove_file(dir.join(FILE)) {
            Ok(()) => Ok(Exit::Done),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{} has no {FILE}: nothing is installed", dir.display());
                Err(Failure::new(Exit::NotFound, text))
            }
            Err(error) => Err(refused(dir, &error)),
        },
    }
}

fn specification(needs: &Needs) -> Value {
    let env = needs.variables.iter();
    let env = env.map(|(name, value)| format!("{name}={value}"));
    let mounts = needs.mounts.iter().filter(|mount| !mount.optional);
    let mounts = mounts.map(|mount| {
        json!({
            "hostPath": mount.source,
            "containerPath": mount.target,
            "options": ["ro", "nosuid", "nodev", "bind"],
        })
    });
    let edits = json!({ "env": Vec::from_iter(env), "mounts": Vec::from_iter(mounts) });
    json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{ "name": DEVICE, "containerEdits": edits }],
    })
}

/// Writes the file beside and renames it. Its directory is made, but not what that lies in: a
/// path with a slip in it is an error.
fn install(dir: &Path, specification: &Value) -> io::Result<()> {
    match fs::create_dir(dir) {
        // Engines of ordinary users read it too, whatever our umask.
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let new = dir.join(NEW_FILE);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    let mut file = options.open(&new)?;
    let written = (|| {
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        writeln!(file, "{specification:#}")?;
        file.sync_all()?;
        fs::rename(&new, dir.join(FILE))
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn refused(dir: &Path, error: &io::Error) -> Failure {
    let what = format!("{error}; give a directory that may be written: --dir DIR");
    Failure::new(error.kind().into(), format!("{}: {what}", dir.display()))
}
