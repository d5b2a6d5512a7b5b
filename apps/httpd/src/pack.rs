//! A directory as a ustar archive, in memory: what `tar --format=posix` makes of its files, in
//! the order of their names, without owners.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

const BLOCK: usize = 512;
/// Deeper directories are refused: a link that leads round in a circle, most likely.
const DEPTH_MAX: usize = 64;

/// Reads all regular files under `root`, those behind links too.
pub fn pack(root: &Path) -> Result<Vec<u8>> {
    let mut tar = Vec::new();
    directory(root, "", 0, &mut tar)?;
    // The end mark.
    tar.resize(tar.len() + 2 * BLOCK, 0);
    Ok(tar)
}

fn directory(path: &Path, prefix: &str, depth: usize, tar: &mut Vec<u8>) -> Result<()> {
    ensure!(depth < DEPTH_MAX, "{}: too deep", path.display());
    let about = || path.display().to_string();
    let entries = fs::read_dir(path).with_context(about)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(about)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let about = || path.display().to_string();
        let name = name
            .to_str()
            .with_context(|| format!("{}: no UTF-8", path.display()))?;
        let name = format!("{prefix}{name}");
        let metadata = fs::metadata(&path).with_context(about)?;
        if metadata.is_dir() {
            directory(&path, &format!("{name}/"), depth + 1, tar)?;
        } else if metadata.is_file() {
            let modified = metadata.modified().with_context(about)?;
            let modified_s = modified
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_secs());
            let body = fs::read(&path).with_context(about)?;
            if name.len() > 100 {
                member("pax", b'x', modified_s, &pax_record("path", &name), tar);
            }
            member(&name, b'0', modified_s, &body, tar);
        }
    }
    Ok(())
}

fn member(name: &str, kind: u8, modified_s: u64, body: &[u8], tar: &mut Vec<u8>) {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, b"0000644\x000000000\x000000000\0");
    put(124, format!("{:011o}\0", body.len()).as_bytes());
    put(
        136,
        format!("{:011o}\0", modified_s.min(0o77_777_777_777)).as_bytes(),
    );
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&header);
    tar.extend_from_slice(body);
    tar.resize(tar.len().next_multiple_of(BLOCK), 0);
}

/// "LENGTH KEY=VALUE\n", where LENGTH counts its own digits too.
fn pax_record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}").into_bytes()
}
