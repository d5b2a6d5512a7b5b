//! Kernels as Xen and QEMU want them, and the modules that are needed of them.

use crate::Error;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The ELF image in a bzImage (Documentation/x86/boot.rst, `payload_offset`).
pub fn vmlinux(bzimage: &[u8]) -> Result<Vec<u8>, Error> {
    let word = |at: usize| {
        bzimage
            .get(at..at + 4)
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
    };
    let malformed = || Error::Image("the kernel is no bzImage with an xz payload".to_owned());
    let setup_sectors = usize::from(*bzimage.get(0x1f1).ok_or_else(malformed)?);
    let start = (setup_sectors + 1) * 512 + word(0x248).ok_or_else(malformed)?;
    // The length counts the four bytes of the unpacked size that follow the xz stream.
    let length = word(0x24c).ok_or_else(malformed)?;
    let end = start + length.saturating_sub(4);
    let payload = bzimage.get(start..end).ok_or_else(malformed)?;
    let elf = unpack("xz", "xz-utils", payload)?;
    if elf.starts_with(b"\x7fELF") {
        Ok(elf)
    } else {
        Err(malformed())
    }
}

/// What `program` (xz, gzip) makes of packed bytes.
pub fn unpack(
    program: &'static str,
    package: &'static str,
    packed: &[u8],
) -> Result<Vec<u8>, Error> {
    let mut child = Command::new(program)
        .args(["-d", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|_| Error::Missing { program, package })?;
    let mut input = child.stdin.take().expect("it is piped");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(packed));
        child.wait_with_output()
    });
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(Error::Image(format!("{program}: {}", output.status))),
        Err(error) => Err(Error::Image(format!("{program}: {error}"))),
    }
}

/// The files of these modules and of all that they need, in the order in which they are
/// to be inserted. `directory` is a kernel's directory of modules.
pub fn modules(directory: &Path, names: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let mut files = HashMap::new();
    index(directory, &mut files).map_err(|error| Error::file(directory, error))?;
    let mut order = Vec::new();
    for name in names {
        insert(name, &files, &mut order)?;
    }
    Ok(order)
}

fn index(directory: &Path, files: &mut HashMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            index(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn insert(
    name: &str,
    files: &HashMap<String, PathBuf>,
    order: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    // What the kernel has built in has no file.
    let Some(path) = files.get(&name.replace('-', "_")) else {
        return Ok(());
    };
    if order.contains(path) {
        return Ok(());
    }
    let module = std::fs::read(path).map_err(|error| Error::file(path, error))?;
    for needed in dependencies(&module) {
        insert(&needed, files, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// `depends=` of the section .modinfo, a list of strings that end in NUL.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let list = module[at + key.len()..].split(|&byte| byte == 0).next();
    String::from_utf8_lossy(list.unwrap_or_default())
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_a_module() {
        let module = b"ELF\0license=GPL\0depends=stp,llc\0name=bridge\0";
        assert_eq!(dependencies(module), ["stp", "llc"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn a_malformed_kernel_is_refused() {
        assert!(vmlinux(&[]).is_err());
        assert!(vmlinux(&[0; 4096]).is_err());
    }

    #[test]
    fn unpacks() {
        // `printf hello | gzip -n`
        let packed =
            b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xcb\x48\xcd\xc9\xc9\x07\0\x86\xa6\x10\x36\x05\0\0\0";
        assert_eq!(unpack("gzip", "gzip", packed).unwrap(), b"hello");
    }
}
