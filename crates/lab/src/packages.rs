//! Finds the programs that a run needs, and has the missing ones installed.
//!
//! The one list is contrib/packages.txt; the one installer is
//! contrib/install-packages, which lies in the checkout. A binary that was copied
//! elsewhere can only say what is missing.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const LIST: &str = include_str!("../../../contrib/packages.txt");

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

/// Makes sure that the programs are there, by installing their group if one is missing.
pub fn ensure(programs: &[&str]) -> Result<()> {
    let absent = |programs: &[&str]| -> Vec<String> {
        programs
            .iter()
            .filter(|program| find(program).is_none())
            .map(|&program| program.to_owned())
            .collect()
    };
    if absent(programs).is_empty() {
        return Ok(());
    }
    if let Some(installer) = installer() {
        // It says itself, in one line, what it does or why it cannot.
        let status = Command::new(installer).arg("run").status()?;
        if !status.success() {
            bail!("programs are missing: {}", absent(programs).join(", "));
        }
    }
    match absent(programs) {
        left if left.is_empty() => Ok(()),
        left => bail!(missing(
            &left.iter().map(String::as_str).collect::<Vec<_>>()
        )),
    }
}

fn installer() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors()
        .map(|dir| dir.join("contrib/install-packages"))
        .find(|file| file.is_file())
}

fn missing(programs: &[&str]) -> String {
    let packages: Vec<&str> = programs
        .iter()
        .map(|program| package_of(program).unwrap_or(program))
        .collect();
    format!(
        "{} is missing; as root: apt-get install {}",
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
        assert!(missing(&["wrk"]).ends_with("apt-get install wrk"));
    }

    #[test]
    fn each_line_of_the_list_has_group_presence_package_and_reason() {
        for line in LIST
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
        {
            let fields: Vec<&str> = line.split_whitespace().collect();
            assert!(fields.len() >= 4, "{line}");
            assert!(
                ["build", "run", "test", "suites", "package", "xen"].contains(&fields[0]),
                "{line}"
            );
        }
    }
}
