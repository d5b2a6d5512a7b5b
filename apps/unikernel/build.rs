//! Links the image by the guest's linker script, and packs the files that are linked in.
//!
//! `FORDWAY_SITE` names a directory to serve instead of `site/`.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xen/xen-guest/image.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    for argument in [
        "-static",
        "-no-pie",
        "--gc-sections",
        "--build-id=none",
        "-zmax-page-size=4096",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-env-changed=FORDWAY_SITE");
    let site = env::var_os("FORDWAY_SITE").map_or_else(|| PathBuf::from("site"), PathBuf::from);
    println!("cargo:rerun-if-changed={}", site.display());
    let mut archive = Vec::new();
    pack(&site, "", &mut archive);
    // The end of an archive is two blocks of zeros.
    archive.resize(archive.len() + 1024, 0);
    let out = env::var_os("OUT_DIR").expect("cargo gives OUT_DIR");
    let out = Path::new(&out);
    fs::write(out.join("site.tar"), archive).expect("the archive is written");
    if env::var_os("CARGO_FEATURE_GUESTS").is_some() {
        // The numbers of errors in `fordway-sockets` are the crate libc's, which wants to be linked to the C library. There
        // is none in an image, and nothing of it is called.
        for library in ["c", "m", "rt", "pthread"] {
            let library = out.join(format!("lib{library}.a"));
            fs::write(library, b"!<arch>\n").expect("the empty library is written");
        }
        println!("cargo:rustc-link-search=native={}", out.display());
    }
}

/// Appends the files below `directory` as a ustar archive, in the order of their names.
fn pack(directory: &Path, prefix: &str, archive: &mut Vec<u8>) {
    let entries = fs::read_dir(directory).expect("the site's directory is readable");
    let mut entries: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = format!(
            "{prefix}{}",
            path.file_name().expect("a name").to_string_lossy()
        );
        if path.is_dir() {
            pack(&path, &format!("{name}/"), archive);
        } else {
            append(&name, &fs::read(&path).expect("a readable file"), archive);
        }
    }
}

fn append(name: &str, body: &[u8], archive: &mut Vec<u8>) {
    assert!(name.len() <= 100, "{name}: a name of at most 100 bytes");
    let mut header = [0u8; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", body.len()));
    // A fixed time: the same site gives the same image.
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(body);
    archive.resize(archive.len().next_multiple_of(512), 0);
}
