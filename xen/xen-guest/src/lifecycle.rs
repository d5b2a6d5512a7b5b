//! How a domain ends: by its own word to the hypervisor.

use crate::hypercall;
use fordway_xen_abi::hypercall as number;
pub use fordway_xen_abi::sched::Reason;
use fordway_xen_abi::sched::{SHUTDOWN, Shutdown, YIELD};

/// Lets others run for a moment.
pub fn yield_now() {
    // SAFETY: the command takes no argument and touches no memory.
    let _ = unsafe { hypercall::command::<{ number::SCHED_OP }, ()>(YIELD, core::ptr::null_mut()) };
}

/// Ends the domain.
pub fn end(reason: Reason) -> ! {
    let mut request = Shutdown {
        reason: reason as u32,
    };
    loop {
        // SAFETY: Xen reads the request; the domain does not run on.
        let _ = unsafe { hypercall::command::<{ number::SCHED_OP }, _>(SHUTDOWN, &mut request) };
    }
}

/// Ends the domain with one line on the console that says why it cannot run here.
pub fn unsupported(why: core::fmt::Arguments<'_>) -> ! {
    crate::console_line!("fordway: cannot run here: {why}");
    end(Reason::Crash)
}
