//! The hosts files by which domains know each other's names.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The content of each domain's /etc/hosts.
pub(super) fn text(domains: &[(&str, Ipv4Addr)]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    // Programs look their own host's name up (Java's getLocalHost, sudo): answer it
    // the way Debian does, unless a domain has that name.
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if !host.is_empty() && !domains.iter().any(|(name, _)| *name == host) {
        let _ = writeln!(text, "127.0.1.1 {host}");
    }
    for (name, ip) in domains {
        let _ = writeln!(text, "{ip} {name}");
    }
    text
}

/// Writes without a new inode: longer content first, then the cut.
pub(super) fn write_in_place(path: &Path, text: &str) -> io::Result<()> {
    let file = fs::File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path)?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_localhost_and_every_domain() {
        let text = text(&[("db", Ipv4Addr::new(10, 77, 0, 3))]);
        assert!(text.starts_with("127.0.0.1 localhost\n"));
        assert!(text.ends_with("10.77.0.3 db\n"));
    }
}
