//! Debian's packages, fetched and unpacked without installing anything.
//!
//! apt resolves against an empty system (no package is installed in it), with lists and
//! archives of ours, so that the answer does not depend on the host, and needs no root.
//! Only where to fetch from is the host's (/etc/apt).

use crate::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// After this, lists are fetched anew, if they can be.
const LISTS_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// One package of a solution.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version, as Debian writes it.
    pub version: String,
    architecture: String,
}

impl Package {
    /// A line of `apt-get --simulate`: `Inst NAME (VERSION ORIGIN [ARCHITECTURE])`.
    fn parse(line: &str) -> Option<Package> {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
        let inner = rest.split_once('(')?.1.split_once(')')?.0;
        let version = inner.split(' ').next()?;
        let architecture = inner.rsplit_once('[')?.1.strip_suffix(']')?;
        Some(Package {
            name: name.to_owned(),
            version: version.to_owned(),
            architecture: architecture.to_owned(),
        })
    }

    /// What apt calls its file.
    fn file(&self) -> String {
        let version = self.version.replace(':', "%3a");
        format!("{}_{version}_{}.deb", self.name, self.architecture)
    }
}

/// Lists and archives in a directory of ours.
pub struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// With its files in `directory`; lists are fetched if there are none or old ones.
    pub fn at(directory: &Path) -> Result<Apt, Error> {
        let apt = Apt {
            directory: directory.to_owned(),
        };
        for part in ["lists/partial", "archives/partial"] {
            let path = directory.join(part);
            std::fs::create_dir_all(&path).map_err(|error| Error::file(&path, error))?;
        }
        let status = directory.join("status");
        std::fs::write(&status, "").map_err(|error| Error::file(&status, error))?;
        match apt.lists_age() {
            Some(age) if age < LISTS_AGE_MAX => {}
            Some(_) => drop(apt.update()),
            None => apt.update()?,
        }
        Ok(apt)
    }

    fn stamp(&self) -> PathBuf {
        self.directory.join("updated")
    }

    fn lists_age(&self) -> Option<Duration> {
        let time = std::fs::metadata(self.stamp()).ok()?.modified().ok()?;
        Some(SystemTime::now().duration_since(time).unwrap_or_default())
    }

    fn update(&self) -> Result<(), Error> {
        self.run(&["--error-on=any", "update"], &[])?;
        std::fs::write(self.stamp(), "").map_err(|error| Error::file(&self.stamp(), error))
    }

    /// These packages and all that they depend on.
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Package>, Error> {
        let text = self.run(&["--simulate", "install"], wanted)?;
        let mut packages: Vec<Package> = text.lines().filter_map(Package::parse).collect();
        packages.sort();
        if packages.is_empty() {
            return Err(Error::Packages(
                "apt-get says nothing that we can read".to_owned(),
            ));
        }
        Ok(packages)
    }

    /// Fetches these and all that they depend on, as far as they are not here yet.
    pub fn fetch(&self, wanted: &[&str]) -> Result<(), Error> {
        let download = ["--download-only", "install"];
        if self.run(&download, wanted).is_ok() {
            return Ok(());
        }
        // Security updates replace versions that our lists still name.
        self.update()?;
        self.run(&download, wanted).map(drop)
    }

    /// Where a fetched package lies.
    pub fn archive(&self, package: &Package) -> PathBuf {
        self.directory.join("archives").join(package.file())
    }

    fn run(&self, command: &[&str], packages: &[&str]) -> Result<String, Error> {
        let place =
            |name: &str, part: &str| format!("Dir::{name}={}", self.directory.join(part).display());
        let options = [
            place("State::status", "status"),
            place("State::lists", "lists"),
            place("Cache::archives", "archives"),
            place("Cache::pkgcache", "pkgcache.bin"),
            place("Cache::srcpkgcache", "srcpkgcache.bin"),
            "Debug::NoLocking=1".to_owned(),
            // The cache may lie where the user _apt may not look.
            "APT::Sandbox::User=root".to_owned(),
            "APT::Install-Recommends=0".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::http::Timeout=30".to_owned(),
            "Dpkg::Use-Pty=0".to_owned(),
            // Hooks of the host (docker-clean removes archives) are not for our cache.
            "Dir::Etc::parts=/nonexistent".to_owned(),
        ];
        let mut apt = Command::new("apt-get");
        apt.env("LC_ALL", "C").env_remove("APT_CONFIG").arg("-y");
        for option in options {
            apt.arg("-o").arg(option);
        }
        let output = apt
            .args(command)
            .args(packages)
            .stdin(Stdio::null())
            .output()
            .map_err(|_| Error::Missing {
                program: "apt-get",
                package: "apt",
            })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = errors.lines().rfind(|line| !line.is_empty());
        Err(Error::Packages(line.unwrap_or("apt-get failed").to_owned()))
    }
}

/// Unpacks a package's files into `directory`. Links that stand there for directories
/// (the merged /usr) are followed.
pub fn unpack(archive: &Path, directory: &Path) -> Result<(), Error> {
    let missing = |program, package| move |_| Error::Missing { program, package };
    let mut files = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(missing("dpkg-deb", "dpkg"))?;
    let tar = Command::new("tar")
        .args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"])
        .arg(directory)
        .stdin(files.stdout.take().expect("it is piped"))
        .stderr(Stdio::null())
        .status()
        .map_err(missing("tar", "tar"))?;
    let deb = files.wait().map_err(|error| Error::file(archive, error))?;
    if tar.success() && deb.success() {
        Ok(())
    } else {
        Err(Error::Image(format!(
            "{} cannot be unpacked",
            archive.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_apts_simulation() {
        let line = "Inst iputils-ping (3:20221126-1+deb12u1 Debian:12.12/stable [amd64])";
        let package = Package::parse(line).unwrap();
        assert_eq!(
            package.file(),
            "iputils-ping_3%3a20221126-1+deb12u1_amd64.deb"
        );
        assert_eq!(Package::parse("Conf bash (5 Debian [amd64])"), None);
    }
}
