//! The hosts files by which domains, containers and the host know domains' names.
//!
//! ```text
//!   hosts/.domains      mounted over /etc/hosts in each domain, to be read only
//!   control/hosts       the same for containers, but for whose IPv6 address leads where
//!   /etc/hosts          the host's own: a block between two marks, while there is an uplink
//! ```
//! All are changed in place, since programs have them mounted: longer content first, then
//! the cut. Names keep their order, so that a reader in between meets whole lines.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What the host is called by its domains.
pub const HOST_NAME: &str = "host";
/// The file for containers, in the runtime directory.
pub const SHARED_FILE: &str = "control/hosts";
/// All that is in the file of a system that had none.
const MADE: &str = "# made by fordway\n";

/// The content of the domains' /etc/hosts. `host` is the host's address, if there is an uplink.
pub(super) fn text(domains: &[(&str, IpAddr)], host: Option<Ipv4Addr>) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    // Programs look their own host's name up (Java's getLocalHost, sudo): answer it
    // the way Debian does, unless a domain has that name.
    let node = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if !node.is_empty() && !domains.iter().any(|(name, _)| *name == node) {
        let _ = writeln!(text, "127.0.1.1 {node}");
    }
    if let Some(ip) = host {
        let _ = writeln!(text, "{ip} {HOST_NAME}");
    }
    text + &lines(domains)
}

fn lines(domains: &[(&str, IpAddr)]) -> String {
    let mut text = String::new();
    for (name, ip) in domains {
        let _ = writeln!(text, "{ip} {name}");
    }
    text
}

/// Writes the file for containers.
pub fn write_shared(
    runtime_dir: &Path,
    domains: &[(&str, IpAddr)],
    host: Option<Ipv4Addr>,
) -> io::Result<()> {
    write_in_place(&runtime_dir.join(SHARED_FILE), &text(domains, host))
}

/// Writes without a new inode. In one call, and with blank lines up to the old end, so that
/// whoever is killed before the cut has left no half of a line.
pub(super) fn write_in_place(path: &Path, text: &str) -> io::Result<()> {
    let file = fs::File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path)?;
    let mut bytes = text.as_bytes().to_vec();
    let old = file.metadata()?.len() as usize;
    bytes.resize(bytes.len().max(old), b'\n');
    file.write_all_at(&bytes, 0)?;
    file.set_len(text.len() as u64)
}

/// The lines that begin and end the block of one broker in the host's file.
fn marks(runtime_dir: &Path) -> [String; 2] {
    let dir = runtime_dir.display();
    [
        format!("# fordway ({dir}): domains; `fordway down` removes these lines"),
        format!("# fordway ({dir}): end"),
    ]
}

/// Writes the domains' names into the host's file, in place of what a broker of this runtime
/// directory has written before.
pub fn write_block(path: &Path, runtime_dir: &Path, domains: &[(&str, IpAddr)]) -> io::Result<()> {
    ensure(path)?;
    change(path, |old| {
        let mut text = without_block(old, runtime_dir);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let [begin, end] = marks(runtime_dir);
        text + &begin + "\n" + &lines(domains) + &end + "\n"
    })
}

/// Removes what [`write_block`] has written.
pub fn remove_block(path: &Path, runtime_dir: &Path) -> io::Result<()> {
    match change(path, |old| without_block(old, runtime_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Nothing is written that is there already. A file that is no text is somebody else's fault, and
/// stays.
fn change(path: &Path, new: impl FnOnce(&str) -> String) -> io::Result<()> {
    let old = fs::read_to_string(path)?;
    let new = new(&old);
    match new == old {
        true => Ok(()),
        false => write_in_place(path, &new),
    }
}

/// All other lines, as they are. A mark without its end is removed alone.
fn without_block(text: &str, runtime_dir: &Path) -> String {
    let [begin, end] = marks(runtime_dir);
    let is = |line: &str, mark: &str| line.trim_end() == mark;
    let mut kept = String::new();
    let mut rest: Vec<&str> = text.split_inclusive('\n').collect();
    while let Some(at) = rest.iter().position(|line| is(line, &begin)) {
        let after = rest.split_off(at);
        kept.extend(rest);
        let length = after.iter().position(|line| is(line, &end));
        rest = after[length.unwrap_or(0) + 1..].to_vec();
    }
    kept.extend(rest);
    kept
}

/// Gives a system without a hosts file (as debootstrap leaves it) one to mount over.
pub(super) fn ensure(path: &Path) -> io::Result<()> {
    match path.exists() {
        true => Ok(()),
        false => fs::write(path, MADE),
    }
}

/// Undoes [`ensure`], unless somebody has written to the file.
pub(super) fn forget(path: &Path) -> io::Result<()> {
    match fs::read_to_string(path) {
        Ok(text) if text == MADE => fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const DB: (&str, IpAddr) = ("db", IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3)));
    const WEB: (&str, IpAddr) = ("web", IpAddr::V4(Ipv4Addr::new(10, 77, 0, 4)));

    #[test]
    fn hosts_have_localhost_the_host_and_every_domain() {
        let alone = text(&[DB], None);
        assert!(alone.starts_with("127.0.0.1 localhost\n"));
        assert!(alone.ends_with("10.77.0.3 db\n") && !alone.contains(" host\n"));
        let joined = text(&[DB], Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert!(joined.ends_with("10.77.0.1 host\n10.77.0.3 db\n"));
    }

    /// A file in a directory of its own, which goes with it.
    struct HostsFile(std::path::PathBuf);

    impl HostsFile {
        fn new(text: &str) -> HostsFile {
            let name = format!("fordway-hosts-{}-{:p}", std::process::id(), text);
            let file = HostsFile(std::env::temp_dir().join(name));
            fs::write(&file.0, text).expect("write");
            file
        }

        fn text(&self) -> String {
            fs::read_to_string(&self.0).expect("read")
        }
    }

    impl Drop for HostsFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_block_comes_changes_and_goes_and_other_lines_stay() {
        let (run, other) = (Path::new("/run/fordway"), Path::new("/run/other"));
        for own in ["127.0.0.1 localhost\n", "127.0.0.1\tlocalhost\n\n# mine"] {
            let file = HostsFile::new(own);
            let inode = file.0.metadata().expect("stat").ino();
            write_block(&file.0, run, &[DB, WEB]).expect("write");
            assert!(file.text().contains("\n10.77.0.3 db\n10.77.0.4 web\n"));
            write_block(&file.0, other, &[DB]).expect("write");
            // What a killed broker has left is replaced; what came behind it stays.
            write_block(&file.0, run, &[WEB]).expect("write");
            let now = file.text();
            assert_eq!(now.matches("10.77.0.4 web\n").count(), 1, "{now}");
            assert_eq!(now.matches("10.77.0.3 db\n").count(), 1, "{now}");
            remove_block(&file.0, other).expect("remove");
            remove_block(&file.0, run).expect("remove");
            assert_eq!(file.text().trim_end(), own.trim_end());
            assert_eq!(file.0.metadata().expect("stat").ino(), inode);
        }
    }

    #[test]
    fn a_mark_without_its_end_takes_no_lines_with_it() {
        let run = Path::new("/run/fordway");
        let [begin, end] = marks(run);
        let text = format!("a\n{begin}\n1.2.3.4 mine\n");
        assert_eq!(without_block(&text, run), "a\n1.2.3.4 mine\n");
        let text = format!("a\n{begin}\nx\n{end}\nb\n{begin}\n{end}\nc");
        assert_eq!(without_block(&text, run), "a\nb\nc");
    }

    #[test]
    fn a_file_that_was_made_goes_unless_somebody_has_written_to_it() {
        let file = HostsFile::new("x");
        forget(&file.0).expect("forget");
        assert_eq!(file.text(), "x");
        fs::remove_file(&file.0).expect("remove");
        ensure(&file.0).expect("make");
        write_block(&file.0, Path::new("/run/fordway"), &[DB]).expect("write");
        remove_block(&file.0, Path::new("/run/fordway")).expect("remove");
        forget(&file.0).expect("forget");
        assert!(!file.0.exists());
    }
}
