//! Doorbells between two processes that do not trust each other.
//!
//! An eventfd that both had could be drained, filled or made blocking by either. Neither
//! may make the pair for both, for its maker could keep what the other is to have alone:
//! whoever has the epoll instance can hold its lock (by an epoll_wait(2) into memory that
//! faults for ever), and whoever has the eventfd can make a write of the other block. So
//! the broker makes it, hands one half to each, and keeps nothing. It never touches an
//! epoll instance that somebody else has had.

use rustix::event::{EventfdFlags, epoll, eventfd};
use std::io;
use std::os::fd::OwnedFd;

/// Both halves.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// For the knocker alone: an eventfd that never blocks.
    pub(crate) knocks: OwnedFd,
    /// For the sleeper alone: an epoll instance that becomes readable at each knock.
    pub(crate) shows: OwnedFd,
}

/// A new one.
pub(crate) fn make() -> io::Result<Doorbell> {
    let knocks = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shows = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&shows, &knocks, epoll::EventData::new_u64(0), flags)?;
    Ok(Doorbell { knocks, shows })
}
