//! Turning the calling process into a program: enter the domain, then exec.
//!
//! There is no parent that stays behind, so signals, the exit status, the terminal
//! and job control are the program's own. The order matters: the network namespace
//! first (its file may lie in a mount that the next step drops), then the mounts,
//! then the CPUs, then exec; nothing is undone on failure, because the caller ends.

use crate::fabric::FABRIC_FILE;
use rustix::fs::CWD;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{CapabilitySet, CapabilitySets, CpuSet, LinkNameSpaceType, UnshareFlags};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where names of domains are put.
pub const HOSTS: &str = "/etc/hosts";

/// What the C library asks for names that are in no hosts file.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The servers that systemd-resolved asks itself: what listens at its own address on the host's
/// loopback does not at that of a domain (systemd-resolved.service(8)).
const RESOLVED_SERVERS: &str = "/run/systemd/resolve/resolv.conf";
const RESOLVED_ADDRESS: &str = "127.0.0.53";

/// Whether this process's root directory is a mount point, as [`private_mounts`] needs it:
/// that of a chroot need not be.
pub fn root_is_mount() -> bool {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    points(&mounts).any(|point| point == Path::new("/"))
}

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

/// Gives the process a mount namespace of its own in which `hosts` is /etc/hosts, to be read only, and
/// no fabric's directory of namespaces is there: its copy would keep every domain's
/// namespace alive as long as this program runs. Where the host asks systemd-resolved for
/// names, the program asks the servers behind it. False if there is no /etc/hosts to
/// mount over: the rest holds, but names of domains are not found.
pub fn private_mounts(hosts: &Path) -> io::Result<bool> {
    // SAFETY: NEWNS implies unsharing the file-system attributes (umask, working
    // directory) of this thread, and it is the only one: the launcher is single-threaded.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    // Mounts of the host still arrive here; none of ours go back.
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", downstream).map_err(|error| match error {
        rustix::io::Errno::INVAL => {
            io::Error::other("/ is no mount point (a chroot?); bind it onto itself first")
        }
        error => error.into(),
    })?;
    let named = Path::new(HOSTS).exists();
    if named {
        rustix::mount::mount_bind(hosts, HOSTS)?;
        // It is the file of all domains.
        rustix::mount::mount_remount(HOSTS, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    if asks_resolved_alone(&resolv_conf) && Path::new(RESOLVED_SERVERS).exists() {
        rustix::mount::mount_bind(RESOLVED_SERVERS, RESOLV_CONF)?;
    }
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    for dir in fabric_dirs(&mounts) {
        match rustix::mount::unmount(&dir, UnmountFlags::DETACH) {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(named)
}

/// Leaves the process, whose only thread this is, with a root directory that is empty but for `kept`, and cannot be written, and
/// without System V IPC of others. What is open stays open. `kept` is a directory, not below /usr, which stays under its path.
pub fn empty_root(kept: Option<&Path>) -> io::Result<()> {
    // Something that is there everywhere, to be covered in this process's mounts alone.
    const PLACE: &str = "/usr";
    let flags = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    // SAFETY: as in `private_mounts`; neither IPC nor names of the host concern memory.
    unsafe { rustix::thread::unshare_unsafe(flags)? };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let nothing = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("none", PLACE, "tmpfs", nothing, Some(c"size=4k,mode=755"))?;
    if let Some(kept) = kept {
        let place = Path::new(PLACE).join(kept.strip_prefix("/").unwrap_or(kept));
        std::fs::create_dir_all(&place)?;
        rustix::mount::mount_bind(kept, &place)?;
        let nothing = MountFlags::BIND | MountFlags::RDONLY | nothing;
        rustix::mount::mount_remount(&place, nothing, "")?;
    }
    let nothing = MountFlags::BIND | MountFlags::RDONLY | nothing;
    rustix::mount::mount_remount(PLACE, nothing, "")?;
    rustix::process::chdir(PLACE)?;
    // The old root then lies over the new one (pivot_root(2), NOTES).
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Has the process, whose only thread this is, become another user with one group, for good: no program that it
/// executes gets more rights. It keeps `kept`, also when it executes one, and nothing else. Who it is already it need not become.
pub fn become_user(uid: u32, gid: u32, kept: CapabilitySet) -> io::Result<()> {
    let (user, group) = (
        rustix::process::Uid::from_raw(uid),
        rustix::process::Gid::from_raw(gid),
    );
    if rustix::process::geteuid() != user {
        rustix::thread::set_keep_capabilities(true)?;
        rustix::thread::set_thread_groups(&[group])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
    }
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: kept,
    };
    // What is not inheritable is not ambient either (capabilities(7)).
    rustix::thread::set_capabilities(None, sets)?;
    for one in kept.iter() {
        rustix::thread::configure_capability_in_ambient_set(one, true)?;
    }
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// A descriptor that whoever started this process has left open for it, by its number. To be called once for each, before
/// anything else is opened.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only looks at the table of descriptors.
    if number <= 2 || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::other(format!(
            "descriptor {number} was not inherited"
        )));
    }
    // SAFETY: it is open, and by the contract of this function nothing else here knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// A process of Fordway's own beside the broker.
#[derive(Debug)]
pub struct Part<'a> {
    /// Its program.
    pub program: &'a Path,
    /// What it is told: a JSON document, in the descriptor that is its one argument. It comes by a pipe, when it is given
    /// ([`Untold::tell`]).
    pub config: &'a [u8],
    /// Descriptors that it inherits, under their numbers here.
    pub inherits: &'a [BorrowedFd<'a>],
    /// Its network namespace.
    pub netns: BorrowedFd<'a>,
    /// All of its environment.
    pub variables: &'a [(&'a str, OsString)],
    /// Who it is, or root.
    pub user: Option<PartUser>,
    /// Woken, it waits until who runs has done (SCHED_BATCH of sched(7)), instead of taking the CPU from it: what has come by
    /// then is one batch.
    pub gives_way: bool,
    /// The CPUs that it may use, each below [`CpuSet::MAX_CPU`]; none: as the broker.
    pub cpus: &'a [usize],
}

/// A part that never was root.
#[derive(Clone, Copy, Debug)]
pub struct PartUser {
    /// User.
    pub uid: u32,
    /// Its one group.
    pub gid: u32,
    /// What it may do besides until it gives that up: SYS_ADMIN to empty its root.
    pub capabilities: CapabilitySet,
}

/// A part that was started.
#[derive(Debug)]
pub struct Started {
    /// Its process.
    pub child: Child,
    /// That process's pidfd.
    pub pidfd: OwnedFd,
    /// What it waits for, if it does. So whoever starts it can write down first whom it has started.
    pub untold: Option<Untold>,
}

/// The configuration of a part that was started. Without it, the part ends as soon as this is dropped: so none is left of who
/// started it and died.
#[derive(Debug)]
pub struct Untold {
    pipe: OwnedFd,
    config: Vec<u8>,
}

impl Untold {
    /// Gives it. It has to fit into a pipe: nobody waits for the part.
    pub fn tell(self) -> io::Result<()> {
        std::fs::File::from(self.pipe).write_all(&self.config)
    }
}

impl Part<'_> {
    /// Starts it, in a session of its own, so that the terminal's signals are not for it. It lives on when this process ends.
    pub fn start(&self) -> io::Result<Started> {
        let (told, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&pipe, rustix::fs::OFlags::NONBLOCK)?;
        let mut passed: Vec<i32> = self.inherits.iter().map(AsRawFd::as_raw_fd).collect();
        passed.push(told.as_raw_fd());
        let mut command = Command::new(self.program);
        command
            .arg(told.as_raw_fd().to_string())
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let (user, gives_way) = (self.user, self.gives_way);
        let cpus = (!self.cpus.is_empty()).then(|| set_of(self.cpus));
        let prepare = move || -> io::Result<()> {
            unblock_signals()?;
            rustix::process::setsid()?;
            for &number in &passed {
                // SAFETY: a descriptor that the parent had open when it forked, and holds until it has.
                let fd = unsafe { BorrowedFd::borrow_raw(number) };
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            if gives_way {
                give_way()?;
            }
            if let Some(cpus) = &cpus {
                // None of them is there (any more): then it runs where it can.
                let _ = rustix::thread::sched_setaffinity(None, cpus);
            }
            if let Some(user) = user {
                become_user(user.uid, user.gid, user.capabilities)?;
            }
            Ok(())
        };
        // SAFETY: it only makes system calls, on what was allocated before the fork.
        unsafe { command.pre_exec(prepare) };
        let child = crate::netns::within(self.netns, || command.spawn())??;
        let config = self.config.to_vec();
        Started::of(child, Some(Untold { pipe, config }))
    }
}

impl Started {
    fn of(child: Child, untold: Option<Untold>) -> io::Result<Started> {
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        )?;
        Ok(Started {
            child,
            pidfd,
            untold,
        })
    }
}

/// Starts a program in a session of its own, so that the terminal's signals are not for it. It ends with the thread that calls
/// this, however that ends.
pub fn start_beside(command: &mut Command, user: Option<PartUser>) -> io::Result<Started> {
    let parent = rustix::process::getpid();
    let prepare = move || -> io::Result<()> {
        unblock_signals()?;
        rustix::process::setsid()?;
        if let Some(user) = user {
            become_user(user.uid, user.gid, user.capabilities)?;
        }
        // Behind that: another user's process is told of nobody's end (PR_SET_PDEATHSIG(2const)).
        let signal = Some(rustix::process::Signal::TERM);
        rustix::process::set_parent_process_death_signal(signal)?;
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: it only makes system calls, on what was allocated before the fork.
    unsafe { command.pre_exec(prepare) };
    Started::of(command.spawn()?, None)
}

/// The calling thread, and what it executes, takes no CPU from who runs.
fn give_way() -> io::Result<()> {
    // SAFETY: plain numbers, of which the priority has to be 0; the call reads them.
    let done = unsafe {
        let zero: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const zero)
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has all signals come to the calling thread: what a broker takes by signalfd(2), and blocks, is to end a part.
fn unblock_signals() -> io::Result<()> {
    // SAFETY: a set is plain data, which sigemptyset fills in; nobody else has it.
    let error = unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Whether a resolv.conf(5) names systemd-resolved and no other server.
fn asks_resolved_alone(text: &str) -> bool {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then(|| words.next().unwrap_or(""))
    });
    let mut servers = servers.peekable();
    servers.peek().is_some() && servers.all(|server| server == RESOLVED_ADDRESS)
}

/// Where mounts lie, from proc_pid_mountinfo(5): the fifth word of a line, with blanks as
/// octal numbers.
fn points(mounts: &[u8]) -> impl Iterator<Item = PathBuf> {
    mounts.split(|&byte| byte == b'\n').map(|line| {
        let point = line.split(|&byte| byte == b' ').nth(4).unwrap_or_default();
        PathBuf::from(OsString::from_vec(unescape(point)))
    })
}

/// The directories in which a fabric is mounted.
fn fabric_dirs(mounts: &[u8]) -> Vec<PathBuf> {
    let fabrics = points(mounts).filter(|point| point.file_name() == Some(OsStr::new(FABRIC_FILE)));
    fabrics
        .filter_map(|point| point.parent().map(Path::to_owned))
        .collect()
}

/// `\040` becomes a blank, and so on.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = &tail[3..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

/// Restricts the process to these CPUs, each below [`CpuSet::MAX_CPU`].
pub fn set_cpus(cpus: &[usize]) -> io::Result<()> {
    Ok(rustix::thread::sched_setaffinity(None, &set_of(cpus))?)
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    set
}

/// CPUs, as taskset(1) writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

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

/// In a guest of Xen: requests of /dev/xen/gntalloc and gntdev are refused (EPERM) to this thread from now on, and to all that it
/// executes. By a descriptor of either, which the broker hands to programs, one could grant or map whatever the guest can. Ordinary
/// users, who may not do this otherwise, give up setuid programs for it (PR_SET_NO_NEW_PRIVS). Elsewhere nothing happens.
pub fn forbid_grants_in_guests() -> io::Result<()> {
    let is_there = |path: &str| Path::new(path).exists();
    let devices = ["/dev/xen/gntalloc", "/dev/xen/gntdev"];
    // Programs of dom0 manage guests. Its number is 0, and nobody else's; xenfs need not be mounted.
    let is_dom0 = std::fs::read_to_string("/sys/hypervisor/uuid")
        .is_ok_and(|uuid| uuid.trim().bytes().all(|byte| matches!(byte, b'0' | b'-')));
    match devices.into_iter().any(is_there) && !is_dom0 {
        true => forbid_grants(),
        false => Ok(()),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn forbid_grants() -> io::Result<()> {
    Ok(())
}

/// A filter of system calls (seccomp(2)), by hand: seccompiler's ends programs of 32 bits, which are none of our business.
#[cfg(target_arch = "x86_64")]
fn forbid_grants() -> io::Result<()> {
    // linux/audit.h; offsets in struct seccomp_data (linux/seccomp.h).
    const ARCH_X86_64: u32 = 0xc000_003e;
    const ARCH_I386: u32 = 0x4000_0003;
    const NUMBER: u32 = 0;
    const ARCH: u32 = 4;
    const REQUEST: u32 = 24;
    // ioctl(2) in each of the three tables (asm/unistd_64.h, _x32.h, _32.h).
    const IOCTL: u32 = libc::SYS_ioctl as u32;
    const IOCTL_X32: u32 = 0x4000_0000 + 514;
    const IOCTL_I386: u32 = 54;
    // Both devices' requests are _IOC(_IOC_NONE, 'G', ...), of several sizes (include/uapi/xen).
    const DIRECTION_AND_GROUP: u32 = 3 << 30 | 0xff << 8;
    const OF_GRANTS: u32 = (b'G' as u32) << 8;
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, (0, 0));
    let is = |value, yes, no| {
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            value,
            (yes, no),
        )
    };
    let end = |verdict| step(libc::BPF_RET | libc::BPF_K, verdict, (0, 0));
    let mut filter = [
        load(ARCH),
        is(ARCH_X86_64, 2, 0),
        is(ARCH_I386, 4, 0),
        end(libc::SECCOMP_RET_ALLOW),
        load(NUMBER),
        is(IOCTL, 4, 0),
        is(IOCTL_X32, 3, 6),
        load(NUMBER),
        is(IOCTL_I386, 1, 0),
        end(libc::SECCOMP_RET_ALLOW),
        load(REQUEST),
        step(
            libc::BPF_ALU | libc::BPF_AND | libc::BPF_K,
            DIRECTION_AND_GROUP,
            (0, 0),
        ),
        is(OF_GRANTS, 1, 0),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    if !has_sys_admin() {
        rustix::thread::set_no_new_privs(true)?;
    }
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program, which it checks.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(target_arch = "x86_64")]
fn step(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
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
    #[cfg(target_arch = "x86_64")]
    fn requests_of_grants_are_refused_and_no_others() {
        let (reads, writes) = rustix::pipe::pipe().expect("a pipe");
        let written = rustix::io::write(&writes, b"four");
        assert_eq!(written, Ok(4));
        let ask = |request: libc::c_ulong| {
            let mut answer = [0u32; 16];
            // SAFETY: no request that is made here writes more.
            let done = unsafe { libc::ioctl(reads.as_raw_fd(), request, answer.as_mut_ptr()) };
            let error = io::Error::last_os_error().raw_os_error();
            if done == 0 { Ok(answer[0]) } else { Err(error) }
        };
        // IOCTL_GNTALLOC_ALLOC_GREF, IOCTL_GNTDEV_MAP_GRANT_REF, IOCTL_EVTCHN_NOTIFY: none of a pipe's.
        let (alloc, map, notify) = (0x18_4705, 0x18_4700, 0x04_4504);
        let not_a_pipes = Err(Some(libc::ENOTTY));
        std::thread::scope(|scope| {
            let confined = scope.spawn(|| {
                forbid_grants().expect("a filter");
                [alloc, map, notify, libc::FIONREAD].map(ask)
            });
            let refused = Err(Some(libc::EPERM));
            let found = confined.join().expect("its end");
            assert_eq!(found, [refused, refused, not_a_pipes, Ok(4)]);
        });
        assert_eq!(ask(alloc), not_a_pipes, "of that thread alone");
    }

    #[test]
    fn fabrics_are_found_among_the_mounts() {
        let mounts = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            198 197 0:4 net:[4] /run/a\\040b/netns/.fabric rw - nsfs nsfs rw\n\
            199 197 0:4 net:[5] /run/a\\040b/netns/web rw - nsfs nsfs rw\n";
        assert_eq!(fabric_dirs(mounts), [PathBuf::from("/run/a b/netns")]);
    }

    #[test]
    fn the_hosts_own_resolver_is_told_from_others() {
        assert!(asks_resolved_alone(
            "# x\nnameserver 127.0.0.53\noptions edns0\n"
        ));
        assert!(!asks_resolved_alone(
            "nameserver 127.0.0.53\nnameserver 192.0.2.2\n"
        ));
        assert!(!asks_resolved_alone("search example.org\n"));
    }

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
