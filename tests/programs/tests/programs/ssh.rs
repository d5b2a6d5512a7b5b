//! scp between domains, with a sshd, keys and configuration of our own.
//!
//! sshd executes itself anew for each connection (sshd(8), "-r"), and the new image
//! finds the accepted socket among its descriptors: the shim in it has not seen the
//! connection begin and does not offer it. So scp stays on the kernel path, and the
//! broker says `no-peer` at both ends: an end that the shim holds (the client's) and one
//! that it does not.

use anyhow::{Context, Result, bail, ensure};
use fordway_test_programs::{Bed, CLIENT, SERVER, Spawn, files, path_of};
use std::fs;
use std::path::{Path, PathBuf};

const PORT: u16 = 2222;
/// How much is sent, unless the variable says otherwise.
const UPLOAD_BYTES: u64 = 1 << 30;
const UPLOAD_BYTES_VARIABLE: &str = "FORDWAY_TEST_SCP_BYTES";
/// How much is fetched.
const DOWNLOAD_BYTES: u64 = 64 << 20;
/// What the broker says of both ends.
const REASON: &str = "no-peer";
/// Where sshd's unprivileged half is confined to; compiled into Debian's sshd.
const CONFINEMENT: &str = "/run/sshd";

#[test]
fn ssh() -> Result<()> {
    let Some(bed) = Bed::start("ssh", &["sshd", "ssh", "scp", "ssh-keygen"])? else {
        return Ok(());
    };
    let _confinement = Confinement::make()?;
    let upload_bytes = match std::env::var(UPLOAD_BYTES_VARIABLE) {
        Ok(number) => number.parse().context(UPLOAD_BYTES_VARIABLE)?,
        Err(_) => UPLOAD_BYTES,
    };
    let dir = bed.dir();
    let [host_key, user_key] = ["host", "user"].map(|name| dir.join(name));
    make_key(&bed, &host_key)?;
    make_key(&bed, &user_key)?;
    let config = format!(
        "Port {PORT}
HostKey {}
AuthorizedKeysFile {}.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
",
        host_key.display(),
        user_key.display()
    );
    let config_file = dir.join("sshd_config");
    fs::write(&config_file, config)?;
    let sshd = path_of("sshd")?;
    let argv = [&sshd, "-D", "-e", "-f", &text(&config_file)];
    let server = bed.serve(SERVER, PORT, Spawn::new(argv))?;

    let [small, big, got_small, got_big] =
        ["small", "big", "got-small", "got-big"].map(|name| dir.join(name));
    files::random(&big, upload_bytes)?;
    files::random(&small, DOWNLOAD_BYTES)?;
    let remote = |file: &Path| format!("root@{SERVER}:{}", file.display());
    let watch = bed.watch()?;
    scp(&bed, &user_key, &text(&big), &remote(&got_big))?;
    scp(&bed, &user_key, &remote(&small), &text(&got_small))?;
    let carried = watch.end(&bed)?;
    files::same(&got_big, &big)?;
    files::same(&got_small, &small)?;

    ensure!(
        carried.ring_bytes == 0,
        "{} bytes of ssh went through rings: say so above",
        carried.ring_bytes
    );
    for (domain, held) in [(SERVER, false), (CLIENT, true)] {
        let row = carried
            .rows(domain, PORT)
            .max_by_key(|row| row.kernel_bytes_tx + row.kernel_bytes_rx)
            .with_context(|| format!("no connection was seen at {domain}'s end"))?;
        if row.path != "kernel"
            || row.reason.as_deref() != Some(REASON)
            || row.pid.is_some() != held
        {
            bail!("{domain}'s end is another than expected: {row:?}");
        }
    }
    bed.stop(server)?;
    bed.finish(&format!(
        "0 bytes through rings (reason {REASON}), {} MB compared",
        (upload_bytes + DOWNLOAD_BYTES) / 1_000_000
    ))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn make_key(bed: &Bed, file: &Path) -> Result<()> {
    let program = path_of("ssh-keygen")?;
    let argv = [&program, "-q", "-t", "ed25519", "-N", "", "-f", &text(file)];
    bed.run(Spawn::new(argv))?;
    Ok(())
}

fn scp(bed: &Bed, key: &Path, from: &str, to: &str) -> Result<()> {
    let options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
    ];
    let (program, port, key) = (path_of("scp")?, PORT.to_string(), text(key));
    let mut argv = vec![
        program.as_str(),
        "-q",
        "-F",
        "none",
        "-P",
        &port,
        "-i",
        &key,
    ];
    argv.extend(options.iter().flat_map(|option| ["-o", option]));
    argv.extend([from, to]);
    bed.run(Spawn::new(argv))
        .with_context(|| format!("scp {from} {to}"))?;
    Ok(())
}

/// Made if missing, and then removed again.
struct Confinement(Option<PathBuf>);

impl Confinement {
    fn make() -> Result<Confinement> {
        let dir = PathBuf::from(CONFINEMENT);
        if dir.exists() {
            return Ok(Confinement(None));
        }
        fs::create_dir(&dir).with_context(|| format!("make {CONFINEMENT}"))?;
        Ok(Confinement(Some(dir)))
    }
}

impl Drop for Confinement {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            let _ = fs::remove_dir(dir);
        }
    }
}
