//! Turning the calling process into a program: enter the domain, then exec.
//!
//! There is no parent that stays behind, so signals, the exit status, the terminal
//! and job control are the program's own. The order matters: the network namespace
//! first (its file may lie in a mount that the next step drops), then the mounts,
//! then the CPUs, then exec; nothing is undone on failure, because the caller ends.

use rustix::fs::CWD;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{CpuSet, LinkNameSpaceType, UnshareFlags};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Enters the network namespace held by `file`.
pub fn enter_netns(file: &Path) -> io::Result<()> {
    let namespace = crate::netns::open(file)?
        .ok_or_else(|| io::Error::other("it is not a network namespace"))?;
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&namespace),
        Some(LinkNameSpaceType::Network),
    )?;
    Ok(())
}

/// Gives the process a mount namespace of its own in which `hosts` is /etc/hosts and
/// the namespaces' directory is not there: the copy of it would keep every other
/// domain's namespace alive as long as this program runs.
pub fn private_mounts(hosts: &Path, netns_dir: &Path) -> io::Result<()> {
    // SAFETY: NEWNS implies unsharing the file-system attributes (umask, working
    // directory) of this thread, and it is the only one: the launcher is single-threaded.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    // Mounts of the host still arrive here; none of ours go back.
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", downstream)?;
    rustix::mount::mount_bind(hosts, "/etc/hosts")?;
    match rustix::mount::unmount(netns_dir, UnmountFlags::DETACH) {
        // Not a mount of ours: nothing to drop.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Restricts the process to the CPUs of a list such as `0-2,5`.
pub fn set_cpus(list: &CpuList) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in &list.0 {
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// CPUs, as taskset(1) writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl std::str::FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |word: &str| word.trim().parse::<usize>().ok();
            let range = number(first)
                .zip(number(last))
                .filter(|(first, last)| first <= last);
            let Some((first, last)) = range else {
                return Err(format!(
                    "\"{part}\" is neither a CPU number nor a range like 0-3"
                ));
            };
            if last >= CpuSet::MAX_CPU {
                return Err(format!("CPU numbers end at {}", CpuSet::MAX_CPU - 1));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

/// Becomes the program (execvp(3)); comes back only with an error.
pub fn exec(
    program: &OsStr,
    arguments: &[OsString],
    variables: &[(OsString, OsString)],
) -> io::Error {
    let all = std::iter::once(program).chain(arguments.iter().map(OsString::as_os_str));
    let argv = c_strings(all.map(OsStr::as_bytes));
    let envp = c_strings(
        variables
            .iter()
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()),
    );
    let (argv, envp) = match (argv, envp) {
        (Ok(argv), Ok(envp)) => (argv, envp),
        _ => return io::Error::from(io::ErrorKind::InvalidInput),
    };
    let Some(file) = argv.first() else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let argv_pointers = pointers(&argv);
    let envp_pointers = pointers(&envp);
    // SAFETY: SIGPIPE is put back to the default that Rust's start-up changed; the
    // pointer arrays end with null and point to strings that live until exec.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execvpe(
            file.as_ptr(),
            argv_pointers.as_ptr(),
            envp_pointers.as_ptr(),
        );
    }
    let error = io::Error::last_os_error();
    // SAFETY: as above; the caller goes on to print, and a closed pipe must not kill it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    error
}

/// Whether the process may make and enter namespaces.
pub fn has_sys_admin() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_ADMIN)
    })
}

/// Whether a file is there and may be read.
pub fn is_readable(file: &Path) -> bool {
    rustix::fs::accessat(
        CWD,
        file,
        rustix::fs::Access::READ_OK,
        rustix::fs::AtFlags::empty(),
    )
    .is_ok()
}

fn c_strings(
    strings: impl Iterator<Item = impl Into<Vec<u8>>>,
) -> Result<Vec<CString>, std::ffi::NulError> {
    strings.map(CString::new).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let null = std::iter::once(std::ptr::null());
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain(null)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_tasksets() {
        let list = |text: &str| text.parse::<CpuList>().map(|list| list.0);
        assert_eq!(list("0"), Ok(vec![0]));
        assert_eq!(list("0-2,5"), Ok(vec![0, 1, 2, 5]));
        for bad in ["", "a", "3-1", "1,,2", "-1", "0-99999"] {
            assert!(list(bad).is_err(), "{bad}");
        }
    }
}
