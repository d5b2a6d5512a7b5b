//! Programs that the shim is not in, or had better not be: they start and run unharmed.

use anyhow::{Result, ensure};
use fordway_lab::{PathChoice, Place, Spawn};
use fordway_test_conformance::Bed;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// An echo server outside Fordway; its port.
fn echo() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    });
    Ok(port)
}

fn runs(bed: &Bed, program: &Path) -> Result<()> {
    let arguments = [
        &program.to_string_lossy(),
        echo()?.to_string().as_str(),
        "30",
    ]
    .map(str::to_owned);
    let output = bed
        .lab
        .run(&Place::Here, PathChoice::Auto, &Spawn::new(arguments))?;
    ensure!(output.text() == "all\n", "{}", output.text());
    Ok(())
}

#[test]
fn static_images() -> Result<()> {
    let bed = Bed::start()?;
    runs(&bed, &Bed::program("client-static"))?;
    bed.finish()
}

/// The sanitizer's runtime wants to be the first library, and the shim is before it.
#[test]
fn sanitized_images() -> Result<()> {
    let bed = Bed::start()?;
    runs(&bed, &Bed::program("client-asan"))?;
    bed.finish()
}

#[test]
fn musl_images() -> Result<()> {
    let program = Bed::program("client-musl");
    if !program.exists() {
        fordway_test_skip::skipped(
            "musl-gcc was not there when the tests were built (apt install musl-tools)",
        );
        return Ok(());
    }
    let bed = Bed::start()?;
    runs(&bed, &program)?;
    bed.finish()
}

#[test]
fn setuid_images() -> Result<()> {
    const NOBODY: u32 = 65534;
    let bed = Bed::start()?;
    let program = bed.lab.work_dir().join("client-setuid");
    std::fs::copy(Bed::program("client"), &program)?;
    if chown(&program, Some(NOBODY), None).is_err() {
        fordway_test_skip::skipped("only root can make a program that is another user's");
        return bed.finish();
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755))?;
    runs(&bed, &program)?;
    bed.finish()
}

/// From this limit on, the shim takes some.
const ENOUGH: u32 = 256;

/// A limit that leaves the shim no descriptors: the program has all of them to itself.
#[test]
fn few_descriptors() -> Result<()> {
    let mut bed = Bed::start()?;
    for limit in [8, 16, 64, 400] {
        let program = Bed::program("stream");
        let shell = |scenario: &str, rings: bool| {
            let command = format!("ulimit -n {limit} && exec {} {scenario}", program.display());
            let spawn = Spawn::new(["sh".to_owned(), "-c".to_owned(), command])
                .env("FORDWAY_OFFER_AFTER", "0");
            match rings {
                true => spawn,
                false => spawn.env("TRY_KERNEL", "1"),
            }
        };
        for scenario in ["flags", "vectors", "sendfile"] {
            let play = |path, rings| bed.lab.run(&Place::Here, path, &shell(scenario, rings));
            let oracle = play(PathChoice::Kernel, false)?;
            let fast = play(PathChoice::Auto, limit >= ENOUGH)?;
            bed.note(&format!("{scenario}, {limit} descriptors"), &oracle, &fast);
        }
    }
    bed.finish()
}
