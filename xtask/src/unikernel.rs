//! The unikernel's images: one for each application, into `target/xen`.

use crate::Outcome;
use std::fs;
use std::path::Path;
use std::process::Command;

const WORKSPACE: &str = "apps/unikernel";
const TARGET: &str = "x86_64-unknown-linux-gnu";
const IMAGES: &str = "target/xen";
/// The images: name, Cargo features, bytes that it may have. nftables' language takes half of
/// an image with a filter.
const KINDS: [(&str, &str, u64); 7] = [
    ("httpd", "httpd", 400 * 1000),
    ("kv", "kv", 430 * 1000),
    ("profile", "httpd,profile", 450 * 1000),
    ("httpd-filter", "httpd,filter", 760 * 1000),
    ("kv-filter", "kv,filter", 800 * 1000),
    ("httpd-guests", "httpd,guests", 640 * 1000),
    ("kv-guests", "kv,guests", 680 * 1000),
];

/// Formatting, and clippy for every image's features: what the root's workspace leaves out.
pub fn checks() -> Vec<(String, Command)> {
    let formatting = in_workspace(&["fmt", "--check"]);
    let mut checks = vec![("formatting of the unikernel".to_owned(), formatting)];
    for (kind, features, _) in KINDS {
        let mut clippy = in_workspace(&["clippy", "--quiet", "--locked", "--no-default-features"]);
        clippy
            .args(["--features", features, "--target-dir"])
            .arg("../../target/unikernel/check")
            .args(["--", "-D", "warnings"]);
        checks.push((format!("clippy of the image {kind}"), clippy));
    }
    checks
}

/// Cargo with the flags of the images' own workspace.
fn in_workspace(arguments: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(WORKSPACE)
        .args(arguments)
        // What a caller wants for the host's programs does not hold for an image.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

/// Builds the images named, or all, and prints their sizes.
pub fn build(names: &[String]) -> Outcome {
    for name in names {
        if !KINDS.iter().any(|(kind, _, _)| kind == name) {
            return Err(format!("there is no image {name:?}"));
        }
    }
    fs::create_dir_all(IMAGES).map_err(|error| format!("{IMAGES}: {error}"))?;
    for (kind, features, bytes_max) in KINDS {
        if !names.is_empty() && !names.iter().any(|name| name == kind) {
            continue;
        }
        // A directory of their own: the flags of this workspace differ from the root's.
        let built = Path::new("target/unikernel").join(kind);
        let mut cargo = in_workspace(&["build", "--release", "--quiet", "--locked"]);
        let status = cargo
            .args(["--no-default-features", "--features", features])
            .arg("--target-dir")
            .arg(std::path::absolute(&built).map_err(|error| error.to_string())?)
            .status()
            .map_err(|error| format!("cargo: {error}"))?;
        if !status.success() {
            return Err(format!("the image {kind} does not build"));
        }
        let image = Path::new(IMAGES).join(kind);
        let program = built.join(TARGET).join("release/fordway-unikernel");
        let bytes =
            fs::copy(&program, &image).map_err(|error| format!("{}: {error}", image.display()))?;
        println!("{:<16} {bytes} bytes", image.display());
        if bytes > bytes_max {
            return Err(format!("{} may have {bytes_max} bytes", image.display()));
        }
    }
    Ok(())
}
