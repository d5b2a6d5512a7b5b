//! libfordway.so: stands in front of libc's socket calls in an unmodified program
//! and moves the bytes of its stream sockets through shared memory where the far
//! end's program does the same.
//!
//! # The house
//! ```text
//!                       names                     what the program links to, from one table
//!       │         │          │          │
//!   hooks_io  hooks_wait  hooks_fd  hooks_proc    what its calls come to,
//!                     hooks_syscall               also by syscall(2)
//!       │         │          │          │
//!   transfer  epoll, poll  state   fork, signals  bytes · waits · descriptors · processes
//!       └────┬────┘
//!       wait, thread                              how a sleeper is woken, what a thread holds
//!            │
//!   upgrade ── link ── broker                     channels: up, down; memory; the broker
//! ```
//!
//! # Rules
//! Nothing is allocated from the program's heap, nothing is traced, no libc state
//! is used but errno. Nothing is written to a descriptor of the program's, stderr neither:
//! what a user has to know, the broker logs. No lock is held in a sleep, and no handler of the
//! program runs in a thread that holds one ([`lock`]: their order, and who may take them). The library links to nothing, so it loads into any
//! program, of glibc and of musl ([`libcs`]); with another libc it stays passive.
//! It is no security boundary: a program can always talk around it.
//!
//! # Tests of its functions
//! `cargo test -p fordway-preload` makes a program of the modules, with std, and without the exports
//! of [`names`]: they would stand in front of libc's in the test itself.
#![cfg_attr(not(test), no_std)]
// Much is used by the names alone.
#![cfg_attr(test, allow(dead_code, unused_imports, unused_macros))]

mod aside;
mod broker;
mod claim;
mod config;
mod cork;
mod datagram;
mod deadline;
mod end;
mod epoll;
mod faults;
mod fork;
mod guest;
mod headroom;
mod hidden;
mod hooks_fd;
mod hooks_io;
mod hooks_many;
mod hooks_options;
mod hooks_proc;
mod hooks_records;
mod hooks_stack;
mod hooks_syscall;
mod hooks_unseen;
mod hooks_vsock;
mod hooks_wait;
mod identity;
mod insisted;
mod late;
#[cfg(test)]
mod layers;
mod libcs;
mod link;
mod loan;
mod lock;
mod memory;
mod names;
mod pace;
mod packet;
mod poll;
mod process;
mod purse;
mod select;
mod shared_bell;
mod signals;
mod spin;
mod stack;
mod state;
mod stay;
mod stdio;
mod sys;
#[cfg(test)]
mod testing;
mod thread;
mod transfer;
mod upgrade;
mod wait;

use core::ffi::c_char;
use names::real;

/// For `fordway doctor`, which reads it in the file.
#[unsafe(export_name = "fordway_abi_version")]
pub static ABI_VERSION: u32 = fordway_abi::ABI_VERSION;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *const *const c_char, *const *const c_char) = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Runs before the program. With musl, the arguments are not there: see [`libcs`].
extern "C" fn start(
    _count: i32,
    _arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    let Some(environment) = libcs::environment(environment) else {
        return;
    };
    // SAFETY: the process's environment.
    unsafe { config::read(environment) };
    if !config::is_active() {
        return;
    }
    select::set_up();
    if !hidden::can_be_had() {
        config::switch_off();
        return;
    }
    let made = state::set_up()
        .and_then(|()| link::set_up())
        .and_then(|()| epoll::set_up())
        .and_then(|()| datagram::set_up());
    if made.and_then(|()| fork::set_up()).is_err() {
        config::switch_off();
        return;
    }
    transfer::set_up();
    names::look_up_jumps();
    signals::set_up();
    spin::start_clock();
    aside::set_up();
    insisted::set_up();
    hooks_fd::take_inherited();
}

extern "C" fn end() {
    if config::is_active() {
        fork::leaving();
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    sys::abort()
}

/// The precompiled core names it although nothing here unwinds.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
