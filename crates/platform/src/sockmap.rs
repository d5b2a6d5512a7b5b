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
//! All of it needs CAP_BPF and CAP_NET_ADMIN, finding by number CAP_SYS_ADMIN.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), from linux/bpf.h.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const PROG_ATTACH: i32 = 8;
const MAP_GET_FD_BY_ID: i32 = 14;
const OBJ_GET_INFO_BY_FD: i32 = 15;

const MAP_TYPE_SOCKMAP: u32 = 15;
const PROG_TYPE_SK_MSG: u32 = 16;
const SK_MSG_VERDICT: u32 = 7;

/// An argument of bpf(2): a struct of numbers without padding, the start of a larger one
/// whose rest the kernel takes as zero.
///
/// # Safety
/// Pointers among the numbers are valid for what the command does with them.
unsafe trait Argument: Sized {}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
}
// SAFETY: no pointers.
unsafe impl Argument for MapCreate {}

#[repr(C)]
struct MapUpdate<'a> {
    map_fd: u32,
    pad: u32,
    key: &'a u32,
    value: &'a u32,
    flags: u64,
}
// SAFETY: the kernel reads four bytes each, as the map was made with, before it returns.
unsafe impl Argument for MapUpdate<'_> {}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    count: u32,
    instructions: *const Instruction,
    license: *const libc::c_char,
}
// SAFETY: made only from an array of `count` instructions, which outlives the call, and a
// static string.
unsafe impl Argument for ProgLoad {}

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

fn bpf<A: Argument>(command: i32, mut argument: A) -> io::Result<i32> {
    // SAFETY: an argument is valid for its command by the contract of its trait.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut argument, size_of::<A>()) };
    match result {
        0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn number(fd: impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd() as u32
}

/// One BPF instruction (the kernel's Documentation/bpf/standardization/instruction-set.rst).
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, registers: u8, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset: 0,
        immediate,
    }
}

/// r2 = the map of this descriptor, over two instructions.
const LOAD_MAP: [u8; 2] = [0x18, 0x12];
const MOVE: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The helper bpf_msg_redirect_map(message, map, key, flags).
const REDIRECT_MAP: i32 = 60;
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

/// The two maps, with their programs.
#[derive(Debug)]
pub struct Pair([OwnedFd; 2]);

impl Pair {
    /// New, empty maps.
    pub fn new() -> io::Result<Pair> {
        let map = || {
            let argument = MapCreate {
                map_type: MAP_TYPE_SOCKMAP,
                key_bytes: 4,
                value_bytes: 4,
                entries_max: 1,
            };
            bpf(MAP_CREATE, argument).map(owned)
        };
        let maps = [map()?, map()?];
        for (from, to) in [(&maps[0], &maps[1]), (&maps[1], &maps[0])] {
            let instructions = redirect(to.as_fd());
            let load = ProgLoad {
                prog_type: PROG_TYPE_SK_MSG,
                count: instructions.len() as u32,
                instructions: instructions.as_ptr(),
                license: c"Dual MIT/GPL".as_ptr(),
            };
            let program = bpf(PROG_LOAD, load).map(owned)?;
            // From then on the map holds it.
            bpf(
                PROG_ATTACH,
                ProgAttach {
                    target_fd: number(from),
                    prog_fd: number(&program),
                    kind: SK_MSG_VERDICT,
                    flags: 0,
                },
            )?;
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
    let update = MapUpdate {
        map_fd: number(&map),
        pad: 0,
        key: &0,
        value: &number(socket),
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, update).map(drop)
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
