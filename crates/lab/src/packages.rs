//! Finds the programs that a run needs, and has the missing ones installed.
//!
//! The one list is contrib/packages.txt; the one installer is
//! contrib/install-packages, which lies in the checkout. A binary that was copied
//! elsewhere can only say what is missing.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIST: &str = include_str!("../../../contrib/packages.txt");

/// Groups of the list that the bench stands on.
const GROUPS: [&str; 2] = ["demo", "run"];
/// Directories that a user's PATH often lacks.
const SYSTEM_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where a program is.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRS.map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Where a program is, as an argument; an error that names its package if it is missing.
pub fn path_of(program: &str) -> Result<String> {
    let file = find(program).with_context(|| missing(&[program]))?;
    Ok(file.to_string_lossy().into_owned())
}

/// Which of these programs are missing, and what to do; `None`: they are all there.
pub fn lacking(programs: &[&str]) -> Option<String> {
    let absent = programs.iter().filter(|program| find(program).is_none());
    let absent: Vec<&str> = absent.copied().collect();
    (!absent.is_empty()).then(|| missing(&absent))
}

/// Makes sure that the programs are there, by installing their groups if one is missing.
pub fn ensure(programs: &[&str]) -> Result<()> {
    let Some(lacking_before) = lacking(programs) else {
        return Ok(());
    };
    if let Some(installer) = installer() {
        // It says itself, in one line, what it does or why it cannot.
        let status = Command::new(installer).args(GROUPS).status()?;
        ensure!(status.success(), lacking_before);
    }
    lacking(programs).map_or(Ok(()), |left| bail!(left))
}

fn installer() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors()
        .map(|dir| dir.join("contrib/install-packages"))
        .find(|file| file.is_file())
}

fn missing(programs: &[&str]) -> String {
    let packages = programs.iter();
    let packages = packages.map(|program| package_of(program).unwrap_or(program));
    // Two programs may come from one package.
    let packages: Vec<&str> = packages.collect::<BTreeSet<_>>().into_iter().collect();
    let verb = if programs.len() == 1 { "is" } else { "are" };
    format!(
        "{} {verb} missing; as root: apt-get install {}",
        programs.join(", "),
        packages.join(" ")
    )
}

fn package_of(program: &str) -> Option<&'static str> {
    LIST.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (_group, presence) = (fields.next()?, fields.next()?);
        let name = Path::new(presence).file_name()?;
        (name == program).then(|| fields.next())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_package_of_a_missing_program() {
        assert_eq!(package_of("redis-benchmark"), Some("redis-tools"));
        assert_eq!(
            missing(&["redis-cli", "redis-benchmark", "wrk"]),
            "redis-cli, redis-benchmark, wrk are missing; as root: apt-get install redis-tools wrk"
        );
        assert!(missing(&["wrk"]).starts_with("wrk is missing"));
    }

    const GROUPS: [&str; 9] = [
        "build", "demo", "run", "test", "suites", "package", "release", "xen", "nri",
    ];

    #[test]
    fn each_line_of_the_list_has_group_presence_package_and_reason() {
        for line in LIST
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
        {
            let fields: Vec<&str> = line.split_whitespace().collect();
            assert!(fields.len() >= 4, "{line}");
            assert!(GROUPS.contains(&fields[0]), "{line}");
        }
    }
}
