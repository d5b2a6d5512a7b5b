//! Two connected TCP sockets whose bytes skip TCP: a BPF program of type SK_MSG moves what
//! one end sends straight into the other's receive queue (bpf(2), BPF_MAP_TYPE_SOCKMAP). The
//! bench measures it as a rival; nothing else uses it.
//!
//! ```text
//!   socket of side 0 ∈ map 0 ── its program: redirect to map 1, key 0 ──► socket of side 1
//!   socket of side 1 ∈ map 1 ── its program: redirect to map 0, key 0 ──► socket of side 0
//! ```
//! Whoever makes the pair holds it; each side, in a process of its own, finds its map by
//! number and puts its socket there. While the other map is empty, bytes take TCP's way: a
//! side that needs the short one waits for a byte of the other, sent after it had joined.
//! On such a socket even blocking calls may say EAGAIN: a send where the other's queue is
//! full, a receive that was woken for nothing.
//!
//! Programs that know nothing of it are helped by a [`Group`], a cgroup (cgroups(7), version 2): a
//! program of type SOCK_OPS puts each of their TCP sockets over IPv4 into one hash when it is connected, by its names, and the
//! message goes to the socket whose names mirror the sender's. What is sent before both are there, and what was
//! translated on its way, takes TCP's way.
//!
//! All of it needs CAP_BPF and CAP_NET_ADMIN, finding by number CAP_SYS_ADMIN, a group root.

use crate::bpf::{
    self, ADD, Argument, CALL, COPY, EXIT, Instruction, JUMP_IF, JUMP_UNLESS, LOAD, LOAD_MAP, MOVE,
    STORE, SWAP, at, bpf, instruction, load, map, number, owned,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Commands of bpf(2), from linux/bpf.h.
const PROG_ATTACH: i32 = 8;
const MAP_GET_FD_BY_ID: i32 = 14;
const OBJ_GET_INFO_BY_FD: i32 = 15;

const MAP_TYPE_SOCKMAP: u32 = 15;
const MAP_TYPE_SOCKHASH: u32 = 18;
const PROG_TYPE_SOCK_OPS: u32 = 13;
const PROG_TYPE_SK_MSG: u32 = 16;
const CGROUP_SOCK_OPS: u32 = 3;
const SK_MSG_VERDICT: u32 = 7;
/// Sockets of a group.
const GROUP_SOCKETS_MAX: u32 = 65_536;

#[repr(C)]
struct ProgAttach {
    target_fd: u32,
    prog_fd: u32,
    kind: u32,
    flags: u32,
}
// SAFETY: no pointers.
unsafe impl Argument for ProgAttach {}

#[repr(C)]
struct ById {
    id: u32,
}
// SAFETY: no pointers.
unsafe impl Argument for ById {}

#[repr(C)]
struct InfoByFd<'a> {
    fd: u32,
    info_bytes: u32,
    info: &'a mut [u32; 2],
}
// SAFETY: the kernel writes at most `info_bytes`, the size of `info`, before it returns.
unsafe impl Argument for InfoByFd<'_> {}

/// The helper bpf_msg_redirect_map(message, map, key, flags).
const REDIRECT_MAP: i32 = 60;
/// The helper bpf_sock_hash_update(socket, map, key, flags).
const HASH_UPDATE: i32 = 70;
/// The helper bpf_msg_redirect_hash(message, map, key, flags).
const REDIRECT_HASH: i32 = 71;
/// Into the receive queue of that socket, not out of it.
const INGRESS: i32 = 1;
const PASS: i32 = 1;

/// Redirects each message to key 0 of `to`; one for which no socket is there takes TCP's way.
fn redirect(to: BorrowedFd<'_>) -> [Instruction; 7] {
    [
        // r1 is the message already.
        instruction(LOAD_MAP[0], LOAD_MAP[1], to.as_raw_fd()),
        instruction(0, 0, 0),
        instruction(MOVE, 3, 0),
        instruction(MOVE, 4, INGRESS),
        instruction(CALL, 0, REDIRECT_MAP),
        instruction(MOVE, 0, PASS),
        instruction(EXIT, 0, 0),
    ]
}

/// From then on the target holds the program.
fn attach(target: BorrowedFd<'_>, program: &OwnedFd, kind: u32) -> io::Result<()> {
    let argument = ProgAttach {
        target_fd: number(target),
        prog_fd: number(program),
        kind,
        flags: 0,
    };
    bpf(PROG_ATTACH, argument).map(drop)
}

/// Calls a helper with the context, the map, and a key of four words of the context at these offsets. The one at
/// `swapped` is in the network's order.
fn with_key(
    map: &OwnedFd,
    offsets: [i16; 4],
    swapped: usize,
    flags: i32,
    helper: i32,
) -> Vec<Instruction> {
    let mut program = vec![instruction(COPY, 0x16, 0)];
    for (number, offset) in offsets.into_iter().enumerate() {
        program.push(at(LOAD, 0x62, offset, 0));
        if number == swapped {
            program.push(instruction(SWAP, 2, 32));
        }
        program.push(at(STORE, 0x2a, number as i16 * 4 - 16, 0));
    }
    program.extend([
        instruction(COPY, 0x61, 0),
        instruction(LOAD_MAP[0], LOAD_MAP[1], map.as_raw_fd()),
        instruction(0, 0, 0),
        instruction(COPY, 0xa3, 0),
        instruction(ADD, 3, -16),
        instruction(MOVE, 4, flags),
        instruction(CALL, 0, helper),
        instruction(MOVE, 0, PASS),
        instruction(EXIT, 0, 0),
    ]);
    program
}

/// Puts a socket into the hash when it is connected, by local and remote address and port (struct bpf_sock_ops).
fn enroll(map: &OwnedFd) -> Vec<Instruction> {
    const CONNECTED: i32 = 4;
    const ACCEPTED: i32 = 5;
    const IPV4: i32 = 2;
    let [operation, family, local, remote, local_port, remote_port] = [0, 20, 28, 24, 68, 64];
    let mut program = vec![
        at(LOAD, 0x12, operation, 0),
        at(JUMP_IF, 2, 3, CONNECTED),
        at(JUMP_IF, 2, 2, ACCEPTED),
        instruction(MOVE, 0, PASS),
        instruction(EXIT, 0, 0),
        at(LOAD, 0x12, family, 0),
        at(JUMP_UNLESS, 2, -4, IPV4),
    ];
    let names = [local, remote, local_port, remote_port];
    program.extend(with_key(map, names, 3, 0, HASH_UPDATE));
    program
}

/// Sends a message to the socket whose names mirror the sender's (struct sk_msg_md).
fn to_mirror(map: &OwnedFd) -> Vec<Instruction> {
    let [remote, local, remote_port, local_port] = [20, 24, 60, 64];
    let names = [remote, local, remote_port, local_port];
    with_key(map, names, 2, INGRESS, REDIRECT_HASH)
}

/// A cgroup whose programs' TCP connections among each other skip TCP.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    before: PathBuf,
    /// With the last descriptor of the hash its program would go.
    _sockets: OwnedFd,
}

impl Group {
    /// A new one of this name, below that of the caller.
    pub fn new(name: &str) -> io::Result<Group> {
        let before = own_group()?;
        let sockets = map(MAP_TYPE_SOCKHASH, 16, GROUP_SOCKETS_MAX)?;
        let messages = load(PROG_TYPE_SK_MSG, &to_mirror(&sockets))?;
        attach(sockets.as_fd(), &messages, SK_MSG_VERDICT)?;
        let enrolls = load(PROG_TYPE_SOCK_OPS, &enroll(&sockets))?;
        let dir = before.join(name);
        fs::create_dir(&dir)?;
        let group = Group {
            dir,
            before,
            _sockets: sockets,
        };
        let dir = fs::File::open(&group.dir)?;
        attach(dir.as_fd(), &enrolls, CGROUP_SOCK_OPS)?;
        Ok(group)
    }

    /// What is done here by the calling process, and each process that it starts meanwhile, is done in the group.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let join = |dir: &Path| fs::write(dir.join("cgroup.procs"), "0");
        join(&self.dir)?;
        let done = work();
        join(&self.before)?;
        Ok(done)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its programs have ended; if not, it is as empty a directory as before.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The directory of the caller's cgroup of version 2.
fn own_group() -> io::Result<PathBuf> {
    let none = || {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "no cgroup of version 2 is mounted",
        )
    };
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|words| words.get(2) == Some(&"cgroup2"));
    let mount = mount.ok_or_else(none)?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new(mount[1]).join(own.ok_or_else(none)?))
}

/// The two maps, with their programs.
#[derive(Debug)]
pub struct Pair([OwnedFd; 2]);

impl Pair {
    /// New, empty maps.
    pub fn new() -> io::Result<Pair> {
        let map = || map(MAP_TYPE_SOCKMAP, 4, 1);
        let maps = [map()?, map()?];
        for (from, to) in [(&maps[0], &maps[1]), (&maps[1], &maps[0])] {
            let program = load(PROG_TYPE_SK_MSG, &redirect(to.as_fd()))?;
            attach(from.as_fd(), &program, SK_MSG_VERDICT)?;
        }
        Ok(Pair(maps))
    }

    /// Numbers by which each side finds its map.
    pub fn ids(&self) -> io::Result<[u32; 2]> {
        let id = |map: &OwnedFd| {
            // struct bpf_map_info begins with the type and the number.
            let mut info = [0u32; 2];
            let argument = InfoByFd {
                fd: number(map),
                info_bytes: size_of_val(&info) as u32,
                info: &mut info,
            };
            bpf(OBJ_GET_INFO_BY_FD, argument)?;
            Ok::<u32, io::Error>(info[1])
        };
        Ok([id(&self.0[0])?, id(&self.0[1])?])
    }
}

/// Puts a connected TCP socket into the map of this number.
pub fn join(id: u32, socket: impl AsFd) -> io::Result<()> {
    let map = bpf(MAP_GET_FD_BY_ID, ById { id }).map(owned)?;
    bpf::put(&map, 0, socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn bytes_skip_tcp() {
        let pair = match Pair::new() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                fordway_test_skip::skipped(format_args!("bpf(2): {error}"));
                return;
            }
            made => made.expect("maps and programs"),
        };
        let ids = pair.ids().expect("their numbers");
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let mut one = TcpStream::connect(listener.local_addr().expect("name")).expect("connect");
        let (mut other, _) = listener.accept().expect("accept");
        join(ids[0], &one).expect("join");
        join(ids[1], &other).expect("join");
        for size in [1, 1000, 10_000] {
            let sent = vec![7u8; size];
            let mut got = vec![0u8; size];
            one.write_all(&sent).expect("send");
            other.read_exact(&mut got).expect("receive");
            assert_eq!(sent, got);
            other.write_all(&got[..1]).expect("answer");
            one.read_exact(&mut got[..1]).expect("its receipt");
        }
        // TCP has carried nothing but its SYN.
        assert_eq!(bytes_acked(&one), 1);
        drop(one);
        let end = loop {
            match other.read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => break result,
            }
        };
        assert_eq!(end.expect("the end"), 0);
    }

    #[test]
    fn programs_of_a_group_skip_tcp_and_know_nothing_of_it() {
        let name = format!("fordway-sockmap-{}", std::process::id());
        let group = Group::new(&name).and_then(|group| group.within(|| ()).map(|()| group));
        let group = match group {
            Err(error) if may_be_the_machines(error.kind()) => {
                fordway_test_skip::skipped(format_args!("sockmap of a cgroup: {error}"));
                return;
            }
            made => made.expect("cgroup, maps and programs"),
        };
        let talk = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
            let to = listener.local_addr().expect("name");
            let mut one = TcpStream::connect(to).expect("connect");
            let (mut other, _) = listener.accept().expect("accept");
            let mut got = vec![0u8; 3000];
            one.write_all(&[7; 3000]).expect("send");
            other.read_exact(&mut got).expect("receive");
            assert_eq!(got, [7; 3000]);
            bytes_acked(&one)
        };
        // TCP has carried nothing but its SYN.
        assert_eq!(group.within(talk).expect("enter"), 1);
        // The program belongs to the group, not to the process.
        assert_ne!(talk(), 1);
    }

    /// Not those of a program that the kernel does not take.
    fn may_be_the_machines(error: io::ErrorKind) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy, Unsupported};
        matches!(
            error,
            PermissionDenied | ReadOnlyFilesystem | ResourceBusy | Unsupported
        )
    }

    fn bytes_acked(socket: impl AsFd) -> u64 {
        // Of tcpi_bytes_acked in struct tcp_info (linux/tcp.h).
        const OFFSET: usize = 120;
        let mut info = [0u8; OFFSET + 8];
        let mut length = info.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &mut length,
            )
        };
        assert_eq!((result, length as usize), (0, info.len()));
        u64::from_ne_bytes(info[OFFSET..].try_into().expect("eight bytes"))
    }
}
