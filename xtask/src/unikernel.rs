//! The unikernel's images: one for each application, into `target/xen`.

use crate::Outcome;
use std::fs;
use std::path::Path;
use std::process::Command;

const WORKSPACE: &str = "apps/unikernel";
const TARGET: &str = "x86_64-unknown-linux-gnu";
const IMAGES: &str = "target/xen";
/// The applications, their Cargo features, and bytes that an image may have.
const APPLICATIONS: [(&str, &str, u64); 3] = [
    ("httpd", "httpd", 400 * 1000),
    ("kv", "kv", 500 * 1000),
    ("profile", "httpd,profile", 450 * 1000),
];

/// Builds the images of the applications named, or all, and prints their sizes.
pub fn build(names: &[String]) -> Outcome {
    for name in names {
        if !APPLICATIONS
            .iter()
            .any(|(application, _, _)| application == name)
        {
            return Err(format!("there is no application {name:?}"));
        }
    }
    fs::create_dir_all(IMAGES).map_err(|error| format!("{IMAGES}: {error}"))?;
    for (application, features, bytes_max) in APPLICATIONS {
        if !names.is_empty() && !names.iter().any(|name| name == application) {
            continue;
        }
        // A directory of their own: the flags of this workspace differ from the root's.
        let built = Path::new("target/unikernel").join(application);
        let status = Command::new("cargo")
            .current_dir(WORKSPACE)
            .args([
                "build",
                "--release",
                "--quiet",
                "--locked",
                "--no-default-features",
            ])
            .args(["--features", features])
            .arg("--target-dir")
            .arg(std::path::absolute(&built).map_err(|error| error.to_string())?)
            // What a caller wants for the host's programs does not hold for an image.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .status()
            .map_err(|error| format!("cargo: {error}"))?;
        if !status.success() {
            return Err(format!("the image {application} does not build"));
        }
        let image = Path::new(IMAGES).join(application);
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
