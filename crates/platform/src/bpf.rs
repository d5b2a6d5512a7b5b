//! bpf(2): maps and small programs, written as instructions here, so that nothing but the kernel compiles any.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), from linux/bpf.h.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;

/// An argument of bpf(2): a struct of numbers without padding, the start of a larger one
/// whose rest the kernel takes as zero.
///
/// # Safety
/// Pointers among the numbers are valid for what the command does with them.
pub(crate) unsafe trait Argument: Sized {}

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

pub(crate) fn bpf<A: Argument>(command: i32, mut argument: A) -> io::Result<i32> {
    // SAFETY: an argument is valid for its command by the contract of its trait.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut argument, size_of::<A>()) };
    match result {
        0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

pub(crate) fn number(fd: impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd() as u32
}

/// One BPF instruction (the kernel's Documentation/bpf/standardization/instruction-set.rst).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

pub(crate) const fn instruction(code: u8, registers: u8, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers,
        offset: 0,
        immediate,
    }
}

pub(crate) const fn at(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        offset,
        ..instruction(code, registers, immediate)
    }
}

/// r2 = the map of this descriptor, over two instructions.
pub(crate) const LOAD_MAP: [u8; 2] = [0x18, 0x12];
pub(crate) const MOVE: u8 = 0xb7;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
/// A word of 32 bits at a register and an offset, into a register and out of it.
pub(crate) const LOAD: u8 = 0x61;
pub(crate) const STORE: u8 = 0x63;
pub(crate) const JUMP_IF: u8 = 0x15;
pub(crate) const JUMP_UNLESS: u8 = 0x55;
pub(crate) const COPY: u8 = 0xbf;
pub(crate) const ADD: u8 = 0x07;
/// From the network's order.
pub(crate) const SWAP: u8 = 0xdc;
pub(crate) fn map(map_type: u32, key_bytes: u32, entries_max: u32) -> io::Result<OwnedFd> {
    let argument = MapCreate {
        map_type,
        key_bytes,
        value_bytes: 4,
        entries_max,
    };
    bpf(MAP_CREATE, argument).map(owned)
}

pub(crate) fn load(prog_type: u32, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let argument = ProgLoad {
        prog_type,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr(),
        license: c"Dual MIT/GPL".as_ptr(),
    };
    bpf(PROG_LOAD, argument).map(owned)
}

/// Puts a descriptor at a key of a map.
pub(crate) fn put(map: &OwnedFd, key: u32, fd: impl AsFd) -> io::Result<()> {
    let update = MapUpdate {
        map_fd: number(map),
        pad: 0,
        key: &key,
        value: &number(fd),
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, update).map(drop)
}
