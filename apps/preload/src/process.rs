//! All that the library knows of its process, in one place: what one thread changes, another sees, and
//! a fork copies. Each module says what its part holds, and who may change it under which lock
//! ([`crate::lock`]); what a forked child makes of each part is one list ([`crate::fork`]).
//!
//! Not here: what is read once at the start ([`crate::config`], the copy kernels), addresses of libc's
//! functions, and what each thread has for itself ([`crate::thread`]).

use crate::aside::Aside;
use crate::broker::Broker;
use crate::datagram::Datagrams;
use crate::epoll::Cells;
use crate::epoll::Epoll;
use crate::fork::Family;
use crate::headroom::Headroom;
use crate::hidden::Hidden;
use crate::identity::Identity;
use crate::insisted::Insisted;
use crate::late::Late;
use crate::link::Links;
use crate::poll::Polled;
use crate::purse::DomainsPurse;
use crate::shared_bell::SharedBells;
use crate::spin::Clock;
use crate::stack::again::Again;
use crate::stack::talk::Talk;
use crate::state::Table;
use crate::upgrade::Looks;
use crate::wait::Doors;
use core::sync::atomic::AtomicU32;

/// See the module.
pub struct Process {
    /// Which descriptor is what, and the connections.
    pub table: Table,
    /// What it shares with other processes.
    pub links: Links,
    /// Knocks that are held back.
    pub late: Late,
    /// The conversation with the broker.
    pub broker: Broker,
    /// The conversation with the program's own stack.
    pub talk: Talk,
    pub stack_again: Again,
    /// Whether some program requires the fast path.
    pub insisted: Insisted,
    /// Doorbells, and the page that says who sleeps.
    pub doors: Doors,
    /// Bells for those who share a door.
    pub shared_bells: SharedBells,
    /// UDP sockets and their flows.
    pub datagrams: Datagrams,
    /// Epoll instances and their items.
    pub epoll: Epoll,
    /// Which instances relatives have too.
    pub cells: Cells,
    /// Who it is.
    pub identity: Identity,
    /// Who holds its connections too.
    pub family: Family,
    /// Descriptors of its own.
    pub hidden: Hidden,
    /// What its memory has room for.
    pub headroom: Headroom,
    /// What the domain's rings may take.
    pub purse: DomainsPurse,
    /// Looks at all connections.
    pub looks: Looks,
    /// When poll has asked the kernel.
    pub polled: Polled,
    /// The clock that spins go by.
    pub clock: Clock,
    /// So many waits to come make no long spins: their CPU was wanted ([`crate::spin`]). A lost update costs one.
    pub crowded: AtomicU32,
    /// Whether threads may step aside.
    pub aside: Aside,
}

/// The process in which the library is loaded.
pub static PROCESS: Process = Process {
    table: Table::new(),
    links: Links::new(),
    late: Late::new(),
    broker: Broker::new(),
    talk: Talk::new(),
    stack_again: Again::new(),
    insisted: Insisted::new(),
    doors: Doors::new(),
    shared_bells: SharedBells::new(),
    datagrams: Datagrams::new(),
    epoll: Epoll::new(),
    cells: Cells::new(),
    identity: Identity::new(),
    family: Family::new(),
    hidden: Hidden::new(),
    headroom: Headroom::new(),
    purse: DomainsPurse::new(),
    looks: Looks::new(),
    polled: Polled::new(),
    clock: Clock::new(),
    crowded: AtomicU32::new(0),
    aside: Aside::new(),
};
