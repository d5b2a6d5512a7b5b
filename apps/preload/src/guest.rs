//! Links to processes of other guests of Xen (docs/guests.md): what of a link is otherwise there.
//!
//! # Memory
//! The broker has had pages granted to the peer's guest, and noted those that it was granted: two files, in each of
//! which the head of a region comes first and its arena behind it. Both are laid at their places in a range of a whole
//! region, so that whoever uses a channel need not know. In the rest of the range there are zeros, which a peer that
//! names places without memory has us read.
//!
//! The kernel maps a peer's pages once, and gives them to no forked child (VM_DONTCOPY). So before a fork each
//! connection is taken back to the kernel, and waited for as before an exec ([`before_fork`]); in vain no longer than one exec would
//! wait, whatever the number of forks, but for a moment at each. In the child zeros lie in
//! the place of the peer's pages and of ours, and it locks no half of such a channel ([`is_cut_off`]): its first call lets go
//! of it, or fails with ECONNRESET where either end still owed bytes at the fork, which the child would miss or overtake.
//!
//! # Wait pages
//! A peer of another guest cannot map our wait page. Each such link has one in its own region, in which the same is
//! said: [`crate::wait`] says it here as well, behind the process's page. A link that comes is told who sleeps already.
//! Either the sleeper finds the link, or the link the sleeper: each fences between what it says and its look.
//!
//! # Doorbells
//! Event channels (/dev/xen/evtchn, include/uapi/xen/evtchn.h). A ring masks the channel until its port was read from the
//! view and written back. Each sleeper does that before it says that it sleeps ([`stand_by`]). A port that it finds may have been
//! the ring of another sleeper behind the same door, whom the kernel has not run yet: that one is woken by hand.
//!
//! # Ends
//! The kernel keeps our pages, as they are, for a peer that has them mapped. So a link whose peer is gone, or whose broker,
//! waits for no answer ([`parts_alone`]): what lies in the ring for us is taken, what is ours is taken back, and the channel is
//! over. A peer that lives after all finds a ring that was stopped and one that was left. Of a guest that is destroyed the
//! broker tells a second time, half a second later: what could not be taken back, or finds no room by the kernel, has its
//! connection reset, for TCP may never hear of it.
//!
//! # Limits
//! A link lives as long as the broker that made it: a later one can be shown neither its pages nor its channels. Behind that
//! broker's end a connection is reset in whose ring bytes of ours could not be taken back, for the peer was just copying, if the
//! peer's process then takes none of them and begins no wait in the library for a minute: it may be gone, or be stopped.
//! Children of a fork that libc does not see (a bare system call) are killed when they touch the peer's pages.

use crate::link::{self, Link, at, link_state};
use crate::packet::poll_one;
use crate::process::PROCESS;
use crate::state::Conn;
use crate::sys::{self, sys};
use crate::{broker, wait};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering, fence};
use fordway_abi::control::{Guest, LetGo};
use fordway_abi::reason::Reason;
use fordway_abi::shm::{
    ARENA_OFFSET, GUEST_HEAD_BYTES, GUEST_WAIT_OFFSET, REGION_BYTES, WAIT_PAGE_MAGIC, WaitPage,
};
use fordway_ring::Sleeper;
use fordway_sockets::down;

const PAGE_BYTES: u64 = 4096;
/// IOCTL_EVTCHN_NOTIFY: `_IOC(_IOC_NONE, 'E', 4, sizeof(struct ioctl_evtchn_notify))`.
const NOTIFY: usize = 4 << 16 | (b'E' as usize) << 8 | 4;
/// What a fork has found of a connection: it can do without the channel.
const OFF: u32 = 1;
/// The peer has let the fork wait in vain. It does so once.
const VAIN: u32 = 2;
/// What each fork waits for peers that have not done so, however long forks of this process have waited in vain.
const FORK_WAIT_NS_MIN: u64 = 200_000_000;
/// The number of a link whose broker is gone: the next one has numbers of its own.
const NO_BROKERS: u64 = u64::MAX;
/// Ports that are read at once; a view has one.
const PORTS: usize = 16;

/// Links of this process to other guests, with their indices.
fn all() -> impl Iterator<Item = (u32, &'static Link)> {
    link::all().filter(|(_, link)| {
        link.is_guest()
            && link.inherited.load(Ordering::Relaxed) == 0
            && link.state.load(Ordering::Acquire) == link_state::LIVE
    })
}

/// A link, live at once. Its files are closed, for what they are is mapped.
pub fn make(guest: &Guest, own: i32, peer: i32) -> sys::Result<()> {
    let made = link::free_place().and_then(|index| {
        lay_regions(guest, at(index), own, peer).inspect_err(|_| forget_regions(at(index)))?;
        begin(guest, index);
        Ok(())
    });
    for fd in [own, peer] {
        let _ = sys!(SYS_close, fd);
    }
    if made.is_err() {
        let_go(guest.link_id);
    }
    made
}

/// Tells the broker that nothing of a link is mapped here: the peer's guest keeps its pages for us until then. A broker that
/// takes nothing for now is told before one of the next sleeps.
pub fn let_go(link_id: u64) {
    if link_id != NO_BROKERS && broker::send(&LetGo { link_id }, &[]) == Err(libc::EAGAIN) {
        let free = |word: &&AtomicU64| {
            let kept = word.compare_exchange(0, link_id, Ordering::SeqCst, Ordering::Relaxed);
            kept.is_ok()
        };
        if PROCESS.links.owed.iter().find(free).is_some() {
            PROCESS.links.guests.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// What the broker has still to hear, to be told or not.
fn take_owed() -> impl Iterator<Item = u64> {
    let taken = PROCESS
        .links
        .owed
        .iter()
        .map(|word| word.swap(0, Ordering::SeqCst));
    taken.filter(|link_id| *link_id != 0).inspect(|_| {
        PROCESS.links.guests.fetch_sub(1, Ordering::Relaxed);
    })
}

fn tell_owed() {
    let owed = &PROCESS.links.owed;
    if owed.iter().any(|word| word.load(Ordering::Relaxed) != 0)
        && poll_one(broker::fd(), libc::POLLOUT, 0)
    {
        take_owed().for_each(let_go);
    }
}

fn lay_regions(guest: &Guest, link: &Link, own: i32, peer: i32) -> sys::Result<()> {
    let (reads, writes) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    // Threads that come too late for a former link of the place write to ours.
    lay(&link.own_base, own, guest.arena_bytes, writes)?;
    lay(&link.peer_base, peer, guest.peer_arena_bytes, reads)
}

/// Lays a file's pages over the range of a region.
fn lay(place: &AtomicPtr<u8>, fd: i32, arena_bytes: u64, protection: i32) -> sys::Result<()> {
    let room = (REGION_BYTES - ARENA_OFFSET) as u64;
    if arena_bytes > room || arena_bytes == 0 || !arena_bytes.is_multiple_of(PAGE_BYTES) {
        return Err(libc::EPROTO);
    }
    let base = link::cover(place.load(Ordering::Relaxed), REGION_BYTES, protection)?;
    place.store(base, Ordering::Relaxed);
    let arena = base.wrapping_add(ARENA_OFFSET);
    sys::map_over((fd, 0), GUEST_HEAD_BYTES, protection, base)?;
    let arena_at = (fd, GUEST_HEAD_BYTES);
    sys::map_over(arena_at, arena_bytes as usize, protection, arena)
}

/// The range stays for the next link.
fn forget_regions(link: &Link) {
    for base in [&link.own_base, &link.peer_base] {
        link::blank(base.load(Ordering::Relaxed), REGION_BYTES);
    }
}

fn begin(guest: &Guest, index: u32) {
    let link = at(index);
    let own_base = link.own_base.load(Ordering::Relaxed);
    // SAFETY: just mapped, for writing.
    let header = unsafe { link::begin_region(own_base) };
    let page = own_page(link);
    let arena_end = ARENA_OFFSET as u64 + guest.arena_bytes;
    header.arena_end.store(arena_end, Ordering::Relaxed);
    page.magic.store(WAIT_PAGE_MAGIC, Ordering::Relaxed);
    page.abi_version
        .store(fordway_abi::ABI_VERSION, Ordering::Relaxed);
    let peer_page = page_in(link.peer_base.load(Ordering::Relaxed));
    link.peer_page.store(peer_page, Ordering::Relaxed);
    link.own_fd.store(-1, Ordering::Relaxed);
    link.guest.store(1, Ordering::Relaxed);
    link::begin(index, guest.link_id, link_state::LIVE);
    PROCESS.links.guests.fetch_add(1, Ordering::SeqCst);
    // SYNC POINT with `Bell::stand_by`: the link is there before the look at who sleeps.
    fence(Ordering::SeqCst);
    wait::show_sleepers(page);
}

/// The wait page in a region.
fn page_in(base: *mut u8) -> *mut WaitPage {
    base.wrapping_add(GUEST_WAIT_OFFSET).cast()
}

/// Our wait page for such a link's peer.
fn own_page(link: &Link) -> &'static WaitPage {
    // SAFETY: what was mapped as a region of ours stays so, be it with other memory; atomics.
    unsafe { &*page_in(link.own_base.load(Ordering::Relaxed)) }
}

/// As [`wait::beat`](crate::wait::beat).
#[cold]
pub fn beat() {
    for (_, link) in all() {
        own_page(link).beat.fetch_add(1, Ordering::Relaxed);
    }
}

/// As [`wait::acted`](crate::wait::acted).
#[cold]
pub fn acted() {
    for (_, link) in all() {
        own_page(link).kernel_acts.fetch_add(1, Ordering::SeqCst);
    }
}

/// The waiter behind `door` is about to sleep: its views are opened again, and peers are told. Whether one had been shut
/// by a ring.
#[cold]
pub fn stand_by(door: usize) -> bool {
    tell_owed();
    let mut has_come = false;
    for (_, link) in all() {
        has_come |= open_views(link, door);
        Sleeper::new(own_page(link), door).announce();
    }
    has_come
}

/// The opposite.
#[cold]
pub fn retract(door: usize) {
    for (_, link) in all() {
        Sleeper::new(own_page(link), door).retract();
    }
}

fn open_views(link: &Link, door: usize) -> bool {
    link.by_numbers(|| {
        let views = link.views.iter().map(|list| &list[door]);
        let open = |has_come: bool, view: &AtomicI32| {
            let fd = view.load(Ordering::SeqCst) - 1;
            has_come | (fd >= 0 && open_again(fd))
        };
        views.fold(false, open)
    })
}

/// Takes the ports that have rung, and has them ring again.
fn open_again(fd: i32) -> bool {
    let mut ports = [0u32; PORTS];
    let room = size_of_val(&ports);
    let mut has_come = false;
    loop {
        let bytes = match sys!(SYS_read, fd, ports.as_mut_ptr(), room) {
            Ok(bytes) if bytes != 0 => bytes,
            _ => return has_come,
        };
        has_come = true;
        let _ = sys!(SYS_write, fd, ports.as_ptr(), bytes);
        if bytes < room {
            // What rings now has the view shown anew.
            return has_come;
        }
    }
}

/// Rings by an event channel: this never blocks.
pub fn notify(fd: i32, port: u32) {
    let _ = sys!(SYS_ioctl, fd, NOTIFY, &raw const port);
}

/// The broker is gone, and its links with it: connections go down, and others do not come. Whether some have to be
/// attended to.
pub fn lost() -> bool {
    let mut any = false;
    take_owed().for_each(drop);
    for (index, link) in all() {
        if link.useless.load(Ordering::Relaxed) == 0 {
            link.give_up(index, Reason::NoBroker);
            any = true;
        }
        link.id.store(NO_BROKERS, Ordering::Relaxed);
        // It goes with its last connection.
        link.peer_gone.store(1, Ordering::Release);
        link.drop_if_over();
    }
    any
}

/// A fork is under way, and no connection gets such a channel any more. Those that have one are moved, and it is noted
/// which of them can do without it.
pub fn before_fork() {
    if PROCESS.links.guests.load(Ordering::SeqCst) != 0 {
        take_back();
    }
}

#[cold]
fn take_back() {
    // Who has begun to bind one before that has done so.
    drop(broker::hold_mail());
    let conns = || all().flat_map(|(index, _)| link::users(index));
    for conn in conns() {
        down::leave_and_stop(&conn.end(), Reason::Forked);
    }
    let begin_ns = sys::now_ns();
    let waited_ns = &PROCESS.links.waited_in_vain_ns;
    let deadline_ns = forks_deadline(begin_ns, waited_ns.load(Ordering::Relaxed));
    let mut is_vain = false;
    for conn in conns() {
        let was_in_vain = conn.off_rings.load(Ordering::Relaxed) == VAIN;
        down::settle(&conn.end(), (!was_in_vain).then_some(deadline_ns));
        let is_off = down::is_off_rings(&conn.end());
        let found = if is_off { OFF } else { VAIN };
        conn.off_rings.store(found, Ordering::Relaxed);
        is_vain |= !is_off && !was_in_vain;
    }
    if is_vain {
        waited_ns.fetch_add(sys::now_ns() - begin_ns, Ordering::Relaxed);
    }
}

/// Until when a fork waits that begins now: forks wait in vain as long as one exec would, all of a process together.
fn forks_deadline(begin_ns: u64, waited_in_vain_ns: u64) -> u64 {
    let left = down::deadline(begin_ns).saturating_sub(waited_in_vain_ns);
    left.max(begin_ns + FORK_WAIT_NS_MIN)
}

/// In a forked child, before anything looks at a peer's pages: there are none. Nor may ours be mapped here: they would stay
/// granted until the child ends. Zeros are laid there without other room for them meanwhile, of which a child may have none: no
/// other thread looks. Nothing is owed by the child.
pub fn after_fork() {
    PROCESS.links.waited_in_vain_ns.store(0, Ordering::Relaxed);
    take_owed().for_each(drop);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // Also places that are free: another thread may have been about to make a link there, or to end one.
    for link in link::places() {
        let is_free = link.state.load(Ordering::Relaxed) == link_state::FREE;
        if !(is_free || link.is_guest()) {
            continue;
        }
        if is_free {
            link.guest.store(0, Ordering::Relaxed);
        }
        let (reads, writes) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        for (base, protection) in [(&link.own_base, writes), (&link.peer_base, reads)] {
            let (base, none) = (base.load(Ordering::Relaxed), -1_isize);
            if !base.is_null() {
                let _ = sys!(SYS_mmap, base, REGION_BYTES, protection, flags, none, 0);
                let _ = sys!(SYS_madvise, base, REGION_BYTES, libc::MADV_DONTDUMP);
            }
        }
    }
}

/// As [`fordway_sockets::End::parts_alone`]: the peer's process is gone, its guest, or the broker here, and no other link
/// is laid over this one. The kernel keeps our pages for a peer that has them mapped.
#[cold]
pub fn parts_alone(conn: &Conn) -> bool {
    let link = at(conn.link.load(Ordering::Relaxed));
    link.is_guest() && link.is_peer_gone()
}

/// Whether it is a forked child's connection, and the channel its parent's alone.
#[inline]
pub fn is_cut_off(conn: &Conn) -> bool {
    let link = at(conn.link.load(Ordering::Relaxed));
    link.is_guest() && link.inherited.load(Ordering::Relaxed) != 0
}

/// In a forked child: whether bytes of such a connection were its parent's alone to take, or to send.
pub fn misses_bytes(conn: &Conn) -> bool {
    is_cut_off(conn) && conn.off_rings.load(Ordering::Relaxed) != OFF
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::attention;
    use crate::testing::{Channel, GUEST_ARENA_BYTES, GuestFiles, Silent, tables, take_all};
    use crate::wait::Bell;
    use fordway_abi::shm::{ENDPOINTS_OFFSET, Endpoint, GUEST_SLOT_COUNT, REGION_MAGIC, tx_state};
    use fordway_ring::Entered;
    use fordway_sockets::{End as _, Half, ends};
    use std::mem::offset_of;

    /// What stands in a file.
    fn word(fd: i32, offset: usize) -> u32 {
        let mut word = 0u32;
        let read = sys!(SYS_pread64, fd, &raw mut word, 4, offset);
        assert_eq!(read, Ok(4));
        word
    }

    #[test]
    fn regions_of_guests_have_memory_at_their_places_and_zeros_elsewhere() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = GuestFiles::new();
        let channel = Channel::between_guests([51, 52], &files);
        let [near, far] = channel.ends;
        let producer = near.producer();
        assert_eq!(producer.enter(|| Some(0)), Entered::Yes);
        let (place, room) = producer.runs(4)[0];
        assert_eq!(room, 4);
        // SAFETY: room in our ring.
        unsafe { place.cast::<[u8; 4]>().write(*b"ring") };
        producer.publish(4);
        let [own, _] = files.0;
        assert_eq!(word(own, 0), REGION_MAGIC);
        assert_eq!(word(own, GUEST_WAIT_OFFSET), WAIT_PAGE_MAGIC);
        let generation = offset_of!(Endpoint, cold.generation);
        assert_eq!(word(own, ENDPOINTS_OFFSET + generation), 1);
        assert_eq!(word(own, GUEST_HEAD_BYTES), u32::from_ne_bytes(*b"ring"));
        let (place, length) = far.consumer().run().expect("a ring").expect("bytes");
        // SAFETY: of the peer's ring.
        let bytes = unsafe { std::slice::from_raw_parts(place, length) };
        assert_eq!(bytes, b"ring");
        // What a peer may name, and nobody has.
        for link in channel.links.map(at) {
            let bases = [&link.own_base, &link.peer_base].map(|base| base.load(Ordering::Relaxed));
            let behind_head = ARENA_OFFSET - 4;
            let behind_arena = [ARENA_OFFSET + GUEST_ARENA_BYTES, REGION_BYTES - 4];
            for offset in [GUEST_HEAD_BYTES, behind_head]
                .into_iter()
                .chain(behind_arena)
            {
                for base in bases {
                    // SAFETY: in the range of a region.
                    assert_eq!(unsafe { base.add(offset).cast::<u32>().read() }, 0);
                }
            }
        }
        assert!(!producer.grow_to(18), "more than there is");
        assert!(producer.grow_to(17) && !producer.grow_to(17));
        // Its third CPU is not ours.
        far.own().wait.cpu.store(3, Ordering::Relaxed);
        assert_eq!(near.peer_cpu(), u32::MAX);
        const { assert!(GUEST_HEAD_BYTES == ENDPOINTS_OFFSET + (GUEST_SLOT_COUNT << 10)) };
    }

    #[test]
    fn a_link_without_all_of_its_memory_is_none() {
        let _turn = tables();
        let files = GuestFiles::new();
        let make = |arena_bytes: usize, peer_arena_bytes: usize| {
            let index = link::free_place().expect("a place");
            let former = &at(index).peer_base;
            former.store(core::ptr::null_mut(), Ordering::Relaxed);
            let guest = Guest {
                link_id: 53,
                arena_bytes: arena_bytes as u64,
                peer_arena_bytes: peer_arena_bytes as u64,
            };
            let [own, peer] = files.0.map(|fd| sys!(SYS_dup, fd).expect("a copy") as i32);
            let made = make(&guest, own, peer);
            let is_open = |fd: i32| sys!(SYS_fcntl, fd, libc::F_GETFD).is_ok();
            assert!(
                !is_open(own) && !is_open(peer),
                "nobody needs them any more"
            );
            made
        };
        let room = REGION_BYTES - ARENA_OFFSET;
        for odd in [0, 4095, 4097, room + 4096, usize::MAX & !4095] {
            assert!(make(odd, GUEST_ARENA_BYTES).is_err());
            assert!(make(GUEST_ARENA_BYTES, odd).is_err());
        }
        assert!(link::by_id(53).is_none() && !link::has_guests());
    }

    /// What peers in other guests see of a door.
    fn seen(channel: &Channel, door: usize) -> [(bool, u32); 2] {
        channel.links.map(|index| {
            let page = own_page(at(index));
            let is_asleep = page.sleeping.load(Ordering::SeqCst) >> door & 1 != 0;
            (is_asleep, page.sleep_count[door].load(Ordering::Relaxed))
        })
    }

    #[test]
    fn pages_for_other_guests_say_what_the_processes_page_says() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = GuestFiles::new();
        let bell = Bell::of(2, -1);
        wait::set_up().expect("a page");
        bell.announce();
        // The links come while a thread sleeps.
        let channel = Channel::between_guests([54, 55], &files);
        let seen = || seen(&channel, bell.door);
        assert_eq!(seen(), [(true, 1); 2]);
        bell.announce();
        assert_eq!(seen(), [(true, 2); 2]);
        // Peers have to ring anew for the other one.
        bell.retract();
        assert_eq!(seen(), [(true, 3); 2]);
        bell.retract();
        assert_eq!(seen(), [(false, 3); 2]);
        let [first, second] = channel.links.map(|index| own_page(at(index)));
        let counts = |page: &WaitPage| {
            let (beat, acts) = (&page.beat, &page.kernel_acts);
            (beat.load(Ordering::Relaxed), acts.load(Ordering::Relaxed))
        };
        let before = [first, second].map(counts);
        wait::beat();
        wait::acted();
        let after = before.map(|(beat, acts)| (beat + 1, acts + 1));
        assert_eq!([first, second].map(counts), after);
        // The far end is told by this page, and no other.
        assert_eq!(channel.ends[0].end().peer_beat(), after[1].0);
    }

    /// Whether a bell shows a ring.
    fn rings(bell: Bell) -> bool {
        let mut entry = libc::pollfd {
            fd: bell.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        sys!(SYS_poll, &raw mut entry, 1, 0) == Ok(1)
    }

    #[test]
    fn a_ring_is_taken_before_each_sleep_and_lost_by_nobody() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = GuestFiles::new();
        let channel = Channel::between_guests([56, 57], &files);
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let made = sys!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
        made.expect("what stands for a port");
        let [view, port] = ends;
        let ring = || {
            let number = 7u32;
            assert_eq!(sys!(SYS_write, port, &raw const number, 4), Ok(4));
        };
        let opened = || {
            let mut number = 0u32;
            sys!(SYS_read, port, &raw mut number, 4).map(|_| number)
        };
        let bell = wait::acquire();
        assert!(bell.door != 0 && bell.fd >= 0);
        assert!(at(channel.links[0]).add_view(bell.door as u64, view));
        bell.announce();
        wait::harvest(bell.fd);
        assert_eq!(opened(), Err(libc::EAGAIN), "nobody has rung");
        ring();
        assert!(rings(bell));
        // Another thread goes to sleep before the first one runs.
        bell.announce();
        assert_eq!(opened(), Ok(7));
        assert!(rings(bell), "the first one sleeps on");
        wait::harvest(bell.fd);
        // One of them wakes for another reason.
        ring();
        bell.retract();
        assert_eq!(opened(), Ok(7));
        assert!(rings(bell), "the other one sleeps on");
        bell.retract();
        wait::harvest(bell.fd);
        // Who is alone looks at the rings behind the announcement.
        ring();
        bell.announce();
        assert_eq!(opened(), Ok(7));
        assert!(!rings(bell), "woken for nothing");
        ring();
        assert!(rings(bell), "the next one was not shown");
        bell.retract();
        wait::release(bell);
        drop(channel);
        let _ = sys!(SYS_close, port);
    }

    /// The broker says that the process at the far end of the first one is gone.
    fn part(channel: &Channel) {
        at(channel.links[0]).peer_gone.store(1, Ordering::Relaxed);
        ends::peer_process_gone(&channel.ends[0].end());
        crate::upgrade::attend_all();
    }

    fn publish(conn: &Conn, bytes: [u8; 4]) {
        let producer = conn.producer();
        // One that is about to publish has not seen a stop.
        let is_in =
            producer.state() == tx_state::RING || producer.enter(|| Some(0)) == Entered::Yes;
        assert!(is_in);
        let (place, _) = producer.runs(4)[0];
        // SAFETY: room in our ring.
        unsafe { place.cast::<[u8; 4]>().write(bytes) };
        producer.publish(4);
    }

    fn received(fd: i32) -> [u8; 4] {
        let mut bytes = [0; 4];
        // SAFETY: four bytes of ours.
        let count = unsafe { crate::hooks_io::recv(fd, bytes.as_mut_ptr().cast(), 4, 0) };
        assert_eq!(count, 4);
        bytes
    }

    #[test]
    fn rings_end_without_an_answer_and_a_far_end_that_lives_finds_out() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = GuestFiles::new();
        let channel = Channel::between_guests([62, 63], &files);
        let [near, far] = channel.ends;
        publish(far, *b"ring");
        publish(near, *b"back");
        part(&channel);
        assert!(
            near.is_paired(),
            "its program has not taken what lies there"
        );
        assert_eq!(received(channel.fds[0]), *b"ring");
        assert!(!near.is_paired() && link::by_id(62).is_none());
        // It had not heard of it, and finds all in the pages that are its own to keep.
        publish(far, *b"late");
        down::serve(&far.end());
        assert_eq!(received(channel.fds[0]), *b"late");
        assert_eq!(received(channel.fds[1]), *b"back");
        down::serve(&far.end());
        assert!(!far.is_paired());
    }

    #[test]
    fn a_far_end_that_has_the_lock_for_good_has_the_connection_lost() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = GuestFiles::new();
        let channel = Channel::between_guests([64, 65], &files);
        let [near, far] = channel.ends;
        publish(near, *b"back");
        far.own().rx_own.lock.store(1, Ordering::SeqCst);
        part(&channel);
        let is_lost = || near.attention.load(Ordering::Relaxed) & attention::BROKEN != 0;
        let looks = (0..10_000).take_while(|_| {
            down::watch(&near.end(), wait::WATCH_SLICE_NS);
            !is_lost()
        });
        // Its program waits in the library meanwhile, and does not want these bytes.
        for _ in 0..3_000 {
            wait::beat();
            down::watch(&near.end(), wait::WATCH_SLICE_NS);
            assert!(!is_lost(), "it lives");
        }
        let looks = looks.count();
        assert!(near.is_paired() && is_lost());
        assert!((1_000..1_500).contains(&looks), "{looks} in a minute");
    }

    #[test]
    fn what_nobody_can_take_from_a_guest_that_is_destroyed_is_lost_at_once() {
        let _turn = tables();
        let _broker = Silent::broker();
        // A reader with the lock; bytes that the kernel has no room for; nothing of ours; bytes for our program alone.
        for (number, is_stuck) in [(0, true), (1, true), (2, false), (3, false)] {
            let files = GuestFiles::new();
            let channel = Channel::between_guests([74, 75], &files);
            let [near, far] = channel.ends;
            match number {
                0 => {
                    publish(near, *b"back");
                    far.own().rx_own.lock.store(1, Ordering::SeqCst);
                }
                1 => {
                    sys::set_option(channel.fds[0], libc::SOL_SOCKET, libc::SO_SNDBUF, 1);
                    channel.fill();
                }
                2 => publish(near, *b"back"),
                _ => publish(far, *b"ring"),
            }
            part(&channel);
            let is_lost = || near.attention.load(Ordering::Relaxed) & attention::BROKEN != 0;
            assert!(!is_lost(), "its process may be gone alone");
            assert_eq!(near.is_paired(), number != 2);
            ends::peer_process_gone(&near.end());
            assert_eq!(is_lost(), is_stuck, "{number}");
            if number == 3 {
                assert_eq!(received(channel.fds[0]), *b"ring");
                assert!(!near.is_paired());
            }
        }
    }

    #[test]
    fn who_is_asked_with_a_lock_in_its_hands_leaves_behind_it() {
        let _turn = tables();
        let _broker = Silent::broker();
        for half in [Half::Sending, Half::Receiving] {
            let files = GuestFiles::new();
            let channel = Channel::between_guests([66, 67], &files);
            let [near, _] = channel.ends;
            let end = near.end();
            let guard = end.lock(half).expect("nobody has it");
            // The handler of a fault keeps no order of locks.
            #[cfg(debug_assertions)]
            crate::thread::current().ranks().store(0, Ordering::Relaxed);
            part(&channel);
            assert!(near.is_paired(), "this thread has interrupted a copy");
            drop(guard);
            crate::upgrade::attend_all();
            assert!(!near.is_paired(), "{half:?}");
        }
    }

    #[test]
    fn links_end_with_their_broker_whatever_the_far_end_does() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = GuestFiles::new();
        let channel = Channel::between_guests([68, 69], &files);
        let [near, far] = channel.ends;
        // It has gone to where no broker is heard.
        at(channel.links[1]).inherited.store(1, Ordering::Relaxed);
        let count = channel.fill();
        assert!(lost());
        crate::upgrade::attend_all();
        let taken = std::thread::scope(|scope| {
            let flush = || down::flush_before_end(&near.end(), down::deadline(sys::now_ns()));
            let fds = channel.fds;
            let taker = scope.spawn(move || take_all(fds[1], count, -1));
            while !flush() {}
            taker.join().expect("the thread's end")
        });
        assert_eq!(taken, count, "by the kernel");
        down::serve(&near.end());
        assert!(!near.is_paired() && far.is_paired());
        at(channel.links[1]).inherited.store(0, Ordering::Relaxed);
    }

    /// As the kernel has it with another guest's pages.
    fn keep_from_children(link: &Link) {
        let base = link.peer_base.load(Ordering::Relaxed);
        let arena = base.wrapping_add(ARENA_OFFSET);
        for (place, bytes) in [(base, GUEST_HEAD_BYTES), (arena, GUEST_ARENA_BYTES)] {
            sys!(SYS_madvise, place, bytes, libc::MADV_DONTFORK).expect("ours");
        }
    }

    #[test]
    fn forks_wait_in_vain_for_a_bound_of_the_process() {
        let begin_ns = 50;
        let whole_ns = down::deadline(0);
        assert_eq!(forks_deadline(begin_ns, 0), begin_ns + whole_ns);
        assert_eq!(
            forks_deadline(begin_ns, whole_ns / 2),
            begin_ns + whole_ns / 2
        );
        for waited_ns in [whole_ns, 7 * whole_ns] {
            let least = begin_ns + FORK_WAIT_NS_MIN;
            assert_eq!(forks_deadline(begin_ns, waited_ns), least);
        }
    }

    #[test]
    fn a_child_goes_on_by_the_kernel_or_is_told_of_a_reset() {
        let _turn = tables();
        let _broker = Silent::broker();
        let files = [GuestFiles::new(), GuestFiles::new()];
        let silent = Channel::between_guests([58, 59], &files[0]);
        let cut = Channel::between_guests([60, 61], &files[1]);
        for channel in [&silent, &cut] {
            channel
                .links
                .map(at)
                .into_iter()
                .for_each(keep_from_children);
        }
        // The far end of this one is nobody that the fork asks: it does not answer in time.
        let [near, far] = silent.ends;
        let nobody = at(silent.links[1]);
        nobody.inherited.store(1, Ordering::Relaxed);
        assert_eq!(far.producer().enter(|| Some(0)), Entered::Yes);
        let bell = sys!(SYS_eventfd2, 0, libc::EFD_CLOEXEC).expect("a bell") as i32;
        assert!(at(cut.links[0]).add_door(1, bell, 0));
        let door = at(cut.links[0]).doors[1].load(Ordering::Relaxed) - 1;
        // And here are bytes that only the parent can take: there is no room for them by the kernel.
        let [leaves, misses] = cut.ends;
        sys::set_option(cut.fds[0], libc::SOL_SOCKET, libc::SO_SNDBUF, 1);
        let count = cut.fill();
        down::downgrade(&leaves.end(), Reason::Asked, false);
        // SAFETY: the child asks a few things and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: one that hangs is killed, and the parent says so.
            unsafe { libc::alarm(30) };
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
            let has_rings = maps.is_empty() || maps.contains("/memfd:pages");
            let has_door = sys!(SYS_fcntl, door, libc::F_GETFD).is_ok();
            let generation = |conn: &Conn| {
                // SAFETY: mapped by `bind`, if the child has it.
                let peer = unsafe { &*conn.peer.load(Ordering::Relaxed) };
                peer.cold.generation.load(Ordering::Relaxed)
            };
            let attended = [near, leaves, misses].map(|conn| down::attend(&conn.end()));
            let again = down::attend(&misses.end());
            let byte = 1u8;
            let sent = sys!(SYS_write, silent.fds[0], &raw const byte, 1);
            let facts = [
                generation(near) == 0 && generation(misses) == 0,
                attended[..2] == [Ok(()); 2],
                !near.is_paired() && !leaves.is_paired(),
                attended[2] == Err(libc::ECONNRESET) && again == attended[2],
                sent == Ok(1),
                !link::has_guests(),
                !has_rings,
                !has_door,
            ];
            let held = facts.iter().enumerate();
            let code = held.fold(0, |code, (at, holds)| code | i32::from(*holds) << at);
            // SAFETY: the child's end.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "killed: {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0b1111_1111);
        // In the parent nothing is lost, and nobody goes on by rings.
        assert!(near.is_paired(), "its far end has not answered");
        assert_eq!(misses.consumer().fill_bytes(), Ok(count as u64));
        let byte = &mut 0u8;
        let received = sys!(SYS_read, silent.fds[1], core::ptr::from_mut(byte), 1);
        assert_eq!((received, *byte), (Ok(1), 1), "from the child");
        nobody.inherited.store(0, Ordering::Relaxed);
    }
}
