//! Another process, instruction by instruction (ptrace(2)), under a clock of the caller's: where every
//! instruction takes microseconds, whatever asks the processor for the time would find that it is late.
//!
//! All calls belong to the thread that has attached.

use std::io;

/// The instruction `rdtsc`.
pub const RDTSC: [u8; 2] = [0x0f, 0x31];

/// A process that stands still but for [`Stepped::step`]. It goes on by itself when this is dropped.
#[derive(Debug)]
pub struct Stepped {
    pid: i32,
}

impl Stepped {
    /// Stops a process of one thread.
    pub fn attach(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        // SAFETY: no memory of ours is passed.
        checked(unsafe { libc::ptrace(libc::PTRACE_ATTACH, pid, 0, 0) })?;
        let stepped = Self { pid };
        stepped.stopped(libc::SIGSTOP)?;
        Ok(stepped)
    }

    /// Where it stands, and its registers.
    fn registers(&self) -> io::Result<libc::user_regs_struct> {
        // SAFETY: plain numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `user_regs_struct`.
        checked(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut registers) })?;
        Ok(registers)
    }

    /// The address of the next instruction, and the stack pointer.
    pub fn place(&self) -> io::Result<(u64, u64)> {
        let registers = self.registers()?;
        Ok((registers.rip, registers.rsp))
    }

    /// Carries one instruction out.
    pub fn step(&self) -> io::Result<()> {
        // SAFETY: no memory of ours is passed.
        checked(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) })?;
        self.stopped(libc::SIGTRAP)
    }

    /// In the place of an `rdtsc` that is next: this is the time.
    pub fn tell_time(&self, ticks: u64) -> io::Result<()> {
        let mut registers = self.registers()?;
        registers.rax = ticks & u64::from(u32::MAX);
        registers.rdx = ticks >> 32;
        registers.rip += RDTSC.len() as u64;
        // SAFETY: the kernel reads one `user_regs_struct`.
        checked(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const registers) })
    }

    fn stopped(&self, by: i32) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: the kernel writes one number.
        if unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) } != self.pid {
            return Err(io::Error::last_os_error());
        }
        match libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == by {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "process {} has status {status:#x}, and not signal {by}",
                self.pid
            ))),
        }
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        // SAFETY: no memory of ours is passed. One that has died needs it no more.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.pid, 0, 0) };
    }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What the processor's clock shows.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
