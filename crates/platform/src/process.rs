//! Other processes, and what this one needs of the kernel to serve them: who
//! connected (credentials, pidfd, namespace), their death, signals as readable
//! events, doorbells, the limit of descriptors.

use crate::sockinfo;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Who is at the other end of a UNIX connection. Read from the kernel.
#[derive(Debug)]
pub struct Peer {
    /// Process number as seen from here; 0 if it lives in a PID namespace we cannot see.
    pub pid: i32,
    /// Effective user when it connected.
    pub uid: u32,
    /// Readable when the process is gone.
    pub pidfd: Option<OwnedFd>,
    /// Its network namespace when it connected.
    pub netns_cookie: u64,
}

/// Asks who connected (unix(7) SO_PEERCRED, SO_PEERPIDFD).
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let (pid, uid) = credentials(&socket)?;
    let pidfd = pidfd_or(sockinfo::peer_pidfd(&socket), || {
        let pid = rustix::process::Pid::from_raw(pid)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    });
    Ok(Peer {
        pid,
        uid,
        pidfd,
        netns_cookie: sockinfo::netns_cookie(&socket)?,
    })
}

/// The process that connected (SO_PEERCRED); 0: it cannot be seen from here.
pub fn peer_pid(socket: impl AsFd) -> io::Result<i32> {
    Ok(credentials(&socket)?.0)
}

/// Whether who connected is in a group (unix(7) SO_PEERCRED, SO_PEERGROUPS).
pub fn peer_is_in(socket: impl AsFd, group: u32) -> bool {
    sockinfo::peer_groups(socket).is_ok_and(|groups| groups.contains(&group))
}

/// The number of a group, by /etc/group (group(5)).
pub fn group(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string("/etc/group").ok()?;
    let fields = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut named = fields.filter(|fields| fields[0] == name);
    named.find_map(|fields| fields.get(2)?.parse().ok())
}

/// Before Linux 6.5 there is only the number, which another process may have by now. Then
/// death is seen late, by the end of the connection; who is who does not depend on it. Where
/// the kernel knows the option and refuses it, the number is no better: it is not asked.
fn pidfd_or(
    asked: io::Result<OwnedFd>,
    by_number: impl FnOnce() -> Option<OwnedFd>,
) -> Option<OwnedFd> {
    match asked {
        Ok(pidfd) => Some(pidfd),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => by_number(),
        Err(_) => None,
    }
}

/// SO_PEERCRED with libc: the numbers may be 0, for which rustix's type has no room.
fn credentials(socket: &impl AsFd) -> io::Result<(i32, u32)> {
    let mut value = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut value).cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((value.pid, value.uid))
}

/// Blocks SIGINT, SIGHUP and SIGTERM for this thread (and those it starts later) and makes
/// them readable (signalfd(2)).
pub fn termination_signals() -> io::Result<OwnedFd> {
    // SAFETY: a sigset_t is plain data; sigemptyset then sets all of it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for all of these calls, which keep no reference to it.
    let raw = unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGHUP);
        libc::sigaddset(&mut set, libc::SIGTERM);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Raises the soft limit of descriptors to the hard one and returns it.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Inodes of the sockets that a process has open (proc(5), /proc/PID/fd). None if it
/// is gone or may not be looked at. At most `descriptors_left` are looked at, which
/// is then less by as many.
pub fn socket_inodes(pid: i32, descriptors_left: &mut usize) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let mut looked = 0;
    let inodes = entries
        .flatten()
        .take(*descriptors_left)
        .inspect(|_| looked += 1)
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|target| socket_inode(&target))
        .collect();
    *descriptors_left -= looked;
    inodes
}

/// The inode of the socket that a process has open under the number `fd`: what its thread
/// `thread` has, or with 0 the process (proc(5), /proc/PID/fd). `None`: something else, or nothing.
/// Neither the socket nor any file system is asked.
pub fn socket_behind(pid: i32, thread: u32, fd: u32) -> io::Result<Option<u32>> {
    let path = match thread {
        0 => format!("/proc/{pid}/fd/{fd}"),
        thread => format!("/proc/{pid}/task/{thread}/fd/{fd}"),
    };
    match std::fs::read_link(path) {
        Ok(target) => Ok(socket_inode(&target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// When a process began, in ticks since the machine did (proc_pid_stat(5), field 22): with its
/// number, which one it is.
pub fn start_ticks(pid: i32) -> Option<u64> {
    stat_field(&stat(format!("/proc/{pid}/stat"))?, 22)
}

/// The program that a process runs, as a number that is another one after an exec: where its code and its stack begin
/// (proc_pid_stat(5), fields 26 and 28). A process may feign an exec (PR_SET_MM_MAP). `None`: it is not for us to read, or its
/// memory is gone. Linux may place two programs alike, rarely; without randomisation always.
pub fn image(pid: i32) -> Option<(u64, u64)> {
    // That of one thread: the kernel adds up all of them for the other.
    let stat = stat(format!("/proc/{pid}/task/{pid}/stat"))?;
    let image = (stat_field(&stat, 26)?, stat_field(&stat, 28)?);
    (image.1 != 0).then_some(image)
}

/// What stands behind the name in such a file. The name, in brackets, may be any bytes.
fn stat(file: String) -> Option<String> {
    let mut stat = std::fs::read(file).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    String::from_utf8(stat.split_off(end + 1)).ok()
}

fn stat_field(behind_name: &str, number: usize) -> Option<u64> {
    let mut fields = behind_name.split_ascii_whitespace();
    fields.nth(number - 3)?.parse().ok()
}

/// What a thread has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Of the CPU: 10 ms each (sysconf(3), _SC_CLK_TCK).
    pub ticks: u64,
    /// Where it ran last.
    pub cpu: usize,
}

/// The same of a thread of a process (proc_pid_stat(5), fields 14, 15 and 39).
pub fn thread_use(pid: i32, thread: i32) -> Option<Use> {
    let stat = stat(format!("/proc/{pid}/task/{thread}/stat"))?;
    Some(Use {
        ticks: stat_field(&stat, 14)? + stat_field(&stat, 15)?,
        cpu: stat_field(&stat, 39)? as usize,
    })
}

/// What a process has written by system calls so far (proc_pid_io(5), `wchar`); 0, if the kernel does not tell.
pub fn written_bytes(pid: i32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let mut lines = io.lines();
    let count = lines.find_map(|line| line.strip_prefix("wchar:")?.trim().parse().ok());
    count.unwrap_or(0)
}

/// The threads of a process; none, if there is no such process.
pub fn threads(pid: i32) -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Of what /proc/PID/fd/NUMBER points to.
fn socket_inode(target: &Path) -> Option<u32> {
    let inode = target.to_str()?.strip_prefix("socket:[")?;
    inode.strip_suffix(']')?.parse().ok()
}

/// Whether the process of a pidfd has not ended yet.
pub fn is_alive(pidfd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}

/// Which network namespace a file or a process's `ns/net` stands for: device and
/// inode on nsfs. Unlike a cookie, it may be given to another namespace later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceInode(pub u64, pub u64);

impl NamespaceInode {
    /// Of an nsfs mount.
    pub fn of_file(file: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(file)?;
        Ok(Self(metadata.dev(), metadata.ino()))
    }

    /// Of a process.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        Self::of_file(Path::new(&format!("/proc/{pid}/ns/net")))
    }
}

/// How many processes each network namespace has, by one look at all of them.
#[derive(Debug, Default)]
pub struct Populations(HashMap<NamespaceInode, usize>);

impl Populations {
    /// As they are now.
    pub fn look() -> Self {
        let mut counts = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(Ok(inode)) = pid.map(NamespaceInode::of_process) {
                *counts.entry(inode).or_default() += 1;
            }
        }
        Self(counts)
    }

    /// Processes in one of them.
    pub fn of(&self, namespace: NamespaceInode) -> usize {
        self.0.get(&namespace).copied().unwrap_or(0)
    }
}

/// Random bytes from the kernel (getrandom(2)).
pub fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().expect("pair");
        let peer = peer(&a).expect("peer");
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_ne!(peer.netns_cookie, 0);
        assert!(peer.pidfd.is_some());
    }

    #[test]
    fn a_socket_is_seen_behind_its_number_and_nothing_else_is() {
        let (a, _b) = UnixStream::pair().expect("pair");
        let pid = std::process::id() as i32;
        let inode = rustix::fs::fstat(&a).expect("fstat").st_ino as u32;
        let fd = a.as_raw_fd() as u32;
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for thread in [0, thread] {
            let seen = socket_behind(pid, thread, fd).expect("readlink");
            assert_eq!(seen, Some(inode));
        }
        let file = std::fs::File::open("/proc/self/exe").expect("open");
        let file_fd = file.as_raw_fd() as u32;
        // The first process is no thread of this one.
        for (thread, fd) in [(0, file_fd), (0, u32::MAX), (1, fd)] {
            assert_eq!(socket_behind(pid, thread, fd).expect("readlink"), None);
        }
    }

    #[test]
    fn another_program_of_a_process_is_told_from_the_one_before() {
        use std::io::{BufRead, BufReader, Write};
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo; read x; exec sh -c 'echo; read x'"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("spawn");
        let pid = child.id() as i32;
        let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut asks = child.stdin.take().expect("piped");
        said.next();
        let before = image(pid);
        assert!(before.is_some() && image(pid) == before);
        writeln!(asks).expect("it reads");
        said.next();
        // As likely as 1 in 2^22 it begins where the other one did.
        assert!(image(pid).is_some_and(|now| Some(now) != before));
        drop(asks);
        child.wait().expect("wait");
        assert_eq!(image(pid), None);
    }

    #[test]
    fn an_ended_process_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().expect("spawn");
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let pidfd = pidfd.expect("pidfd");
        child.wait().expect("wait");
        assert!(!is_alive(&pidfd));
        let own = rustix::process::getpid();
        let own = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
        assert!(is_alive(own.expect("pidfd")));
    }

    #[test]
    fn a_number_stands_for_a_process_on_old_kernels_only() {
        let own = || {
            let pid = rustix::process::getpid();
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        };
        let error = |number| Err(io::Error::from_raw_os_error(number));
        assert!(pidfd_or(error(libc::ENOPROTOOPT), own).is_some());
        assert!(pidfd_or(error(libc::ESRCH), own).is_none());
        assert!(pidfd_or(error(libc::EMFILE), own).is_none());
    }
}
