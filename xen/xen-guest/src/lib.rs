//! What a program needs to run as a Xen guest, with nothing below it but the hypervisor.
//!
//! ```text
//!   application  (apps/unikernel)
//!      │ Domain { clock, events, grants, store, command_line, ramdisk }
//!   start ─► console ─► memory ─► traps ─► events ─► time ─► grants ─► store
//!      │                  │ heap (talc)
//!   hypercall ────────────┴──────────────────────────────────────────────── Xen
//! ```
//!
//! One processor, one thread of execution, no interrupts: upcalls stay masked, the application
//! looks for events when it wants to and sleeps in the hypervisor (`events`). That is why
//! plain cells serve as statics (`local`).
//!
//! Memory that another domain can write is reached through `shared` only; what another guest grants for rings, through
//! `rings`.
//!
//! The crate compiles for the host, too, where its logic is tested; entry, heap and
//! panic handler come with the feature `image`, which an image's crate turns on. Such a crate
//! has `#![no_std] #![no_main]`, one `xen_guest::image!(main)`, and is linked by `image.ld`.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod command_line;
pub mod console;
pub mod copy;
pub mod entropy;
pub mod events;
#[cfg(any(feature = "rings", test))]
pub mod foreign;
pub mod grants;
pub mod hypercall;
pub mod lifecycle;
pub mod local;
pub mod memory;
#[cfg(any(feature = "rings", test))]
pub mod rings;
pub mod shared;
pub mod store;
pub mod suspend;
pub mod time;

#[cfg(feature = "image")]
mod start;
#[cfg(feature = "image")]
mod traps;

/// What the application is given when everything is set up.
pub struct Domain {
    /// Paravirtual, as against PVH.
    pub pv: bool,
    pub command_line: command_line::CommandLine<'static>,
    pub ramdisk: &'static [u8],
    /// The channel that tells when something was typed.
    pub console_port: u32,
    pub clock: time::Clock,
    pub events: events::Events,
    pub grants: grants::Grants,
    pub store: store::Store,
    suspension: Option<suspend::Suspension>,
}

/// Makes `$main`, a `fn(Domain) -> !`, the application of this image.
#[macro_export]
macro_rules! image {
    ($main:path) => {
        #[unsafe(no_mangle)]
        fn fordway_main(domain: $crate::Domain) -> ! {
            $main(domain)
        }
    };
}
