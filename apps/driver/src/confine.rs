//! What a part gives up once it has what it needs: everything else. One list of system calls for each part.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::io;
use std::path::Path;

/// Calls of a driver's loop: frames, doorbells, the link, memory for a new queue, the end.
pub const DRIVER_CALLS: &[libc::c_long] = &[
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_readv,
    libc::SYS_writev,
    // AF_XDP's rings.
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    // The doorbell, and what is said at the end.
    libc::SYS_preadv2,
    libc::SYS_write,
    // The link, and memory that is joined.
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_getrandom,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_close,
];

/// Those that every process makes, and that stand in no list of their own.
const C_LIBRARY: &[libc::c_long] = &[
    // The C library's own: its heap, a panic, the end.
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Requests of ioctl(2), for whom it is listed.
const REQUESTS: &[u64] = &[
    libc::FIONREAD,
    libc::TIOCOUTQ,
    libc::FIONBIO,
    libc::FIOCLEX,
    libc::FIONCLEX,
    SIOCATMARK,
];
/// asm-generic/sockios.h.
const SIOCATMARK: u64 = 0x8905;

/// What is left of a part.
#[derive(Clone, Copy, Debug)]
pub struct Confined<'a> {
    /// User; 0: everything stays as it is (tests, and who runs a part by hand).
    pub uid: u32,
    /// Its one group.
    pub gid: u32,
    /// A directory that it sees still, to be read only.
    pub directory: Option<&'a Path>,
    /// System calls; any other one ends the process.
    pub calls: &'a [libc::c_long],
    /// Descriptors.
    pub files_max: u64,
    /// Of one file, which is to say one memfd.
    pub file_bytes_max: u64,
    /// Address space, and what of it is memory of its own.
    pub space_bytes_max: u64,
    pub memory_bytes_max: u64,
}

/// From here on the process is an ordinary user without a file system, capabilities, or more calls than are listed. It has one
/// thread still.
pub fn confine(to: &Confined<'_>) -> io::Result<()> {
    if to.uid == 0 {
        return Ok(());
    }
    fordway_platform::launch::empty_root(to.directory)?;
    for (resource, most) in [
        (Resource::Nofile, to.files_max),
        (Resource::Fsize, to.file_bytes_max),
        (Resource::As, to.space_bytes_max),
        (Resource::Data, to.memory_bytes_max),
        (Resource::Nproc, 0),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
    ] {
        // Nobody raises what was set for it.
        let most = getrlimit(resource)
            .maximum
            .map_or(most, |set| set.min(most));
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        rustix::process::setrlimit(resource, limit)?;
    }
    fordway_platform::launch::become_user(to.uid, to.gid, CapabilitySet::empty())?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    allow_only(to.calls)
}

/// Any call but these and the C library's own ends the process from now on. Nothing that it may execute later gets more rights than it has. Of sockets, those of
/// AF_UNIX alone are made, and of ioctl(2) there is what asks a socket: by others the end of a tap device changes the address
/// of the bridge's port.
pub fn allow_only(calls: &[libc::c_long]) -> io::Result<()> {
    let rule = |call: libc::c_long| -> Result<_, seccompiler::BackendError> {
        const FAMILY: u8 = 0;
        const REQUEST: u8 = 1;
        let (length, is_unix) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
        let rules = match call {
            libc::SYS_socket | libc::SYS_socketpair => {
                let unix = libc::AF_UNIX as u64;
                let condition = SeccompCondition::new(FAMILY, length, is_unix, unix)?;
                vec![SeccompRule::new(vec![condition])?]
            }
            libc::SYS_ioctl => {
                let asked = REQUESTS.iter().map(|&request| {
                    let (length, is) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
                    let condition = SeccompCondition::new(REQUEST, length, is, request)?;
                    SeccompRule::new(vec![condition])
                });
                asked.collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        Ok((call, rules))
    };
    let rules: Result<_, _> = calls
        .iter()
        .chain(C_LIBRARY)
        .map(|&call| rule(call))
        .collect();
    let filter = SeccompFilter::new(
        rules.map_err(io::Error::other)?,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        std::env::consts::ARCH
            .try_into()
            .map_err(io::Error::other)?,
    );
    let program: BpfProgram = filter
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IsTerminal as _;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    const CHILD: &str = "FORDWAY_TEST_CONFINED";

    #[test]
    fn of_ioctl_there_is_only_what_asks_a_socket() {
        if std::env::var_os(CHILD).is_some() {
            let (socket, _other) = UnixStream::pair().expect("a pair");
            let with_ioctl = [DRIVER_CALLS, &[libc::SYS_ioctl]].concat();
            allow_only(&with_ioctl).expect("a filter");
            rustix::io::ioctl_fionread(&socket).expect("how much there is");
            println!("asked");
            // TCGETS, as any other.
            let _ = std::io::stdin().is_terminal();
            println!("asked more");
            std::process::exit(0);
        }
        let name = "confine::tests::of_ioctl_there_is_only_what_asks_a_socket";
        let mut child = Command::new(std::env::current_exe().expect("this file"));
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "");
        let ended = child.stdin(Stdio::null()).output().expect("ended");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(said.contains("asked") && !said.contains("more"), "{said}");
        assert_eq!(ended.status.signal(), Some(libc::SIGSYS), "{said}");
    }
}
