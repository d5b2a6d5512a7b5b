//! Archives in the newc format of cpio, which the kernel unpacks as initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst). Everything belongs to
//! root in them, and device nodes need no privilege to be written.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Writes an archive. Directories must be written before what is in them.
pub struct Archive<W> {
    to: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    /// An archive that goes to `to`.
    pub fn new(to: W) -> Archive<W> {
        Archive { to, inode: 0 }
    }

    /// A directory.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[])
    }

    /// A file with these permissions.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, FILE | mode, (0, 0), content)
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// A character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// All that lies in `directory` and that `wanted` (asked with the path in it) wants,
    /// sorted, so that equal trees give equal archives.
    pub fn tree(&mut self, directory: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<()> {
        self.subtree(directory, "", wanted)
    }

    fn subtree(
        &mut self,
        directory: &Path,
        prefix: &str,
        wanted: &dyn Fn(&str) -> bool,
    ) -> io::Result<()> {
        let mut entries: Vec<_> = std::fs::read_dir(directory)?.collect::<Result<_, _>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if !wanted(&path) {
                continue;
            }
            let metadata = entry.metadata()?;
            if metadata.is_symlink() {
                let target = std::fs::read_link(entry.path())?;
                self.link(&path, &target.to_string_lossy())?;
            } else if metadata.is_dir() {
                self.directory(&path)?;
                self.subtree(&entry.path(), &format!("{path}/"), wanted)?;
            } else if metadata.is_file() {
                let mode = metadata.permissions().mode() & 0o777;
                self.file(&path, mode, &std::fs::read(entry.path())?)?;
            }
        }
        Ok(())
    }

    /// The trailer; gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = u32::MAX;
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        self.inode = self.inode.wrapping_add(1);
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, path.to_owned()))?;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            0, // user
            0, // group
            links,
            0, // time of change: equal content gives an equal archive
            size,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0, // checksum, unused in this format
        ];
        self.to.write_all(b"070701")?;
        for field in fields {
            write!(self.to, "{field:08x}")?;
        }
        self.to.write_all(path.as_bytes())?;
        self.to.write_all(&[0])?;
        // The header is 110 bytes; header with name, and content, end on multiples of four.
        self.pad(110 + path.len() + 1)?;
        self.to.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, length: usize) -> io::Result<()> {
        let missing = length.wrapping_neg() % 4;
        self.to.write_all(&[0; 3][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn cpio_reads_it() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("d").unwrap();
        archive.file("d/f", 0o640, b"12345").unwrap();
        archive.link("d/l", "f").unwrap();
        archive.device("null", 1, 3).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);

        let Ok(mut cpio) = Command::new("cpio")
            .args(["-tv", "--numeric-uid-gid", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            // The host need not have it; dom0's kernel reads what we write in every run.
            return;
        };
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listing = String::from_utf8(cpio.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<&str> = listing.lines().collect();
        assert!(lines[0].starts_with("drwxr-xr-x"), "{listing}");
        assert!(
            lines[1].starts_with("-rw-r-----") && lines[1].ends_with("d/f"),
            "{listing}"
        );
        assert!(lines[2].ends_with("d/l -> f"), "{listing}");
        assert!(lines[3].starts_with("crw"), "{listing}");
        assert_eq!(lines.len(), 4);
    }
}
