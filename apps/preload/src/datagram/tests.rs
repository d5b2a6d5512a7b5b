//! Two sockets of this process, joined by a channel as the broker would cut it.

use super::*;
use crate::hooks_io::{recv, recvfrom, recvmsg, sendto};
use crate::link;
use crate::testing::tables;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// A socket that the library watches.
struct Watched {
    socket: UdpSocket,
}

impl Watched {
    fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST, 0)
    }

    fn at(ip: Ipv4Addr, port: u16) -> Self {
        let socket = UdpSocket::bind((ip, port)).expect("a socket");
        socket.set_nonblocking(true).expect("nonblocking");
        opened(socket.as_raw_fd(), libc::AF_INET, true);
        Self { socket }
    }

    fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    fn ours(&self) -> &'static Socket {
        of(self.fd()).expect("watched")
    }

    fn name(&self) -> Name {
        let SocketAddr::V4(name) = self.socket.local_addr().expect("a name") else {
            unreachable!("bound to IPv4");
        };
        let ip = name.ip().to_ipv6_mapped().octets();
        Name {
            ip,
            port: name.port(),
        }
    }

    fn send(&self, to: &Self, bytes: &[u8]) {
        let (name, length) = to.name().address(libc::AF_INET);
        // SAFETY: bytes and a name of ours.
        let sent = unsafe {
            let (at, name) = (bytes.as_ptr().cast(), name.as_ptr().cast());
            sendto(self.fd(), at, bytes.len(), 0, name, length as u32)
        };
        assert_eq!(sent, bytes.len() as isize, "{}", sys::errno());
    }

    /// The next datagram, and who has sent it.
    fn take(&self) -> Option<(Vec<u8>, Option<Name>)> {
        let (mut bytes, mut name) = ([0u8; 9000], [0u8; ADDRESS_BYTES]);
        let mut length = name.len() as u32;
        // SAFETY: room of ours.
        let got = unsafe {
            let (at, name) = (bytes.as_mut_ptr().cast(), name.as_mut_ptr().cast());
            recvfrom(self.fd(), at, bytes.len(), 0, name, &raw mut length)
        };
        let from = Name::of(name.as_ptr().cast(), length as usize);
        usize::try_from(got)
            .ok()
            .map(|count| (bytes[..count].to_vec(), from))
    }

    fn texts(&self) -> Vec<String> {
        let next = || self.take().map(|(bytes, _)| bytes);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        std::iter::from_fn(next).map(text).collect()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let word = state::slot(self.fd()).expect("watched");
        dropped(word.swap(kind::UNKNOWN, Ordering::AcqRel));
    }
}

/// Two sockets that have heard of each other by the kernel.
fn acquainted() -> (Watched, Watched) {
    let (a, b) = (Watched::new(), Watched::new());
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.send(to, b"hello");
        assert_eq!(to.texts(), ["hello"]);
    }
    (a, b)
}

/// The flows of two sockets get the two ends of a channel.
fn join(a: &Watched, b: &Watched) -> [&'static Flow; 2] {
    join_by([41, 42], a, b)
}

/// The same by links of these numbers.
fn join_by(links: [u64; 2], a: &Watched, b: &Watched) -> [&'static Flow; 2] {
    let links = links.map(|id| {
        link::make(id, [id as u8; 16]).expect("a link");
        link::by_id(id).expect("the link")
    });
    let page = sys::map_anonymous(4096, false).expect("a page");
    for (index, (_, link)) in links.iter().enumerate() {
        let far = links[1 - index].1.own_base.load(Ordering::Relaxed);
        link.peer_base.store(far, Ordering::Relaxed);
        link.peer_page.store(page.cast(), Ordering::Relaxed);
        link.state.store(link::link_state::LIVE, Ordering::Release);
    }
    let ends = [(a, b), (b, a)];
    let flows = ends.map(|(near, far)| {
        let near_name = near.name();
        let near = near.ours();
        near.reads.store(1, Ordering::Relaxed);
        let flow = near.flow_to(far.name());
        let flow = flow
            .or_else(|| flow::new(near, far.name()))
            .expect("a flow");
        flow.pretend_offered_as(near_name);
        flow
    });
    static CHANNELS: AtomicU64 = AtomicU64::new(99);
    let channel_id = CHANNELS.fetch_add(1, Ordering::Relaxed);
    for (flow, (index, _)) in flows.iter().zip(links) {
        flow.paired(index, 0, 7, channel_id);
        assert!(flow.is_paired());
    }
    flows
}

/// A link whose far side never says anything.
fn link_to_nobody() -> u32 {
    link::make(41, [41; 16]).expect("a link");
    let (index, link) = link::by_id(41).expect("the link");
    let far = sys::map_anonymous(fordway_abi::shm::REGION_BYTES, false).expect("a region");
    link.peer_base.store(far, Ordering::Relaxed);
    link.peer_page.store(far.cast(), Ordering::Relaxed);
    link.state.store(link::link_state::LIVE, Ordering::Release);
    index
}

fn end_links() {
    end_links_of([41, 42]);
}

fn end_links_of<const COUNT: usize>(links: [u64; COUNT]) {
    for id in links {
        let (index, link) = link::by_id(id).expect("the link");
        assert_eq!(link.users.load(Ordering::Relaxed), 0);
        link.users.store(1, Ordering::Relaxed);
        link.peer_gone.store(1, Ordering::Relaxed);
        link::unbind(index);
    }
}

#[test]
fn datagrams_by_rings_are_the_kernels_in_all_but_the_way() {
    let _turn = tables();
    let (a, b) = acquainted();
    a.send(&b, b"by the kernel");
    let flows = join(&a, &b);
    // What the kernel was given last has come by the time that the ring is entered.
    std::thread::sleep(std::time::Duration::from_millis(2));
    for text in ["one", "", "three"] {
        a.send(&b, text.as_bytes());
    }
    assert_ne!(flows[0].producer().tail(), 0, "by the ring");
    assert_eq!(next_bytes(b.ours(), || Ok(13)), Ok(13));
    let first = b.take().expect("a datagram");
    assert_eq!(first, (b"by the kernel".to_vec(), Some(a.name())));
    assert_eq!(b.take(), Some((b"one".to_vec(), Some(a.name()))));
    assert_eq!(b.take(), Some((vec![], Some(a.name()))));

    // Peeked, cut, and by its length.
    let mut bytes = [0u8; 2];
    let at = bytes.as_mut_ptr().cast();
    // SAFETY: room of ours.
    let seen = unsafe { recv(b.fd(), at, 2, libc::MSG_PEEK | libc::MSG_TRUNC) };
    assert_eq!((seen, &bytes), (5, b"th"));
    let mut part = libc::iovec {
        iov_base: at,
        iov_len: 2,
    };
    // SAFETY: a msghdr of zeros is an empty message.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: a message of ours.
    let got = unsafe { recvmsg(b.fd(), &raw mut message, 0) };
    assert_eq!((got, message.msg_flags), (2, libc::MSG_TRUNC));
    assert_eq!(b.take(), None);

    // What goes by the kernel again comes behind what is in the ring.
    b.send(&a, b"answer");
    assert_eq!(a.take(), Some((b"answer".to_vec(), Some(b.name()))));
    a.send(&b, b"ring");
    flows[0].leave(false);
    a.send(&b, b"kernel");
    assert_eq!(b.texts(), ["ring", "kernel"]);
    b.send(&a, b"kernel");
    assert_eq!(a.texts(), ["kernel"]);
    flows.iter().for_each(|flow| flow.tidy());
    assert!(!flows[0].is_paired() && !flows[1].is_paired());
    drop((a, b));
    end_links();
}

/// The bytes that FIONREAD, MSG_PEEK and a receive say the next datagram has.
fn told_and_taken(at: &Watched) -> [usize; 3] {
    let mut told: libc::c_int = 0;
    let fd = at.fd();
    // SAFETY: a count of ours, and room of ours.
    let (peeked, taken) = unsafe {
        let request = libc::FIONREAD as usize;
        let asked = crate::hooks_options::ioctl(fd, request, (&raw mut told) as usize);
        assert_eq!(asked, 0);
        let mut bytes = [0u8; 100];
        let room = bytes.as_mut_ptr().cast();
        (recv(fd, room, 100, libc::MSG_PEEK), recv(fd, room, 100, 0))
    };
    [told as usize, peeked as usize, taken as usize]
}

#[test]
fn a_look_shows_what_comes_next() {
    let _turn = tables();
    let (a, b) = acquainted();
    let c = Watched::new();
    for (from, to) in [(&b, &c), (&c, &b)] {
        from.send(to, b"hello");
        assert_eq!(to.texts(), ["hello"]);
    }
    join(&a, &b);
    join_by([43, 44], &c, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    // Of two rings, whichever has the first place.
    for (first, second) in [(&a, &c), (&c, &a)] {
        first.send(&b, &[1; 10]);
        second.send(&b, &[2; 20]);
        assert_eq!(told_and_taken(&b), [10; 3]);
        assert_eq!(told_and_taken(&b), [20; 3]);
    }
    // What the kernel has shown stays the next one.
    let outsider = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let to = b.socket.local_addr().expect("a name");
    let look = |flags| {
        let mut bytes = [0u8; 100];
        // SAFETY: room of ours.
        unsafe { recv(b.fd(), bytes.as_mut_ptr().cast(), 100, flags) }
    };
    outsider.send_to(&[3; 30], to).expect("sent");
    assert_eq!(look(libc::MSG_PEEK), 30);
    a.send(&b, &[4; 40]);
    assert_eq!(told_and_taken(&b), [30; 3]);
    assert_eq!(told_and_taken(&b), [40; 3]);
    outsider.send_to(&[3; 30], to).expect("sent");
    let mut told: libc::c_int = 0;
    let request = libc::FIONREAD as usize;
    // SAFETY: a count of ours.
    let asked = unsafe { crate::hooks_options::ioctl(b.fd(), request, (&raw mut told) as usize) };
    assert_eq!((asked, told), (0, 30));
    a.send(&b, &[4; 40]);
    assert_eq!((look(0), look(0)), (30, 40));
    // And so does what a ring has shown, however many of it were taken.
    for _ in 0..200 {
        a.send(&b, &[1; 10]);
        c.send(&b, &[2; 20]);
        outsider.send_to(&[3; 30], to).expect("sent");
    }
    for _ in 0..600 {
        let [told, peeked, taken] = told_and_taken(&b);
        assert!(told == peeked && peeked == taken, "{told} {peeked} {taken}");
    }
    drop((a, b, c));
    end_links();
    end_links_of([43, 44]);
}

#[test]
fn who_sleeps_in_recvmmsg_is_woken_by_the_kernel() {
    let _turn = tables();
    let (a, b) = acquainted();
    b.socket.set_nonblocking(false).expect("blocking");
    set_nonblocking(b.fd(), false);
    let fd = b.fd();
    let sleeper = std::thread::spawn(move || {
        let mut bytes = [0u8; 10];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: a mmsghdr of zeros is an empty message; then one of ours.
        unsafe {
            let mut message: libc::mmsghdr = core::mem::zeroed();
            message.msg_hdr.msg_iov = &raw mut part;
            message.msg_hdr.msg_iovlen = 1;
            let none = core::ptr::null_mut();
            let got = crate::hooks_many::recvmmsg(fd, &raw mut message, 1, 0, none);
            (got, message.msg_len)
        }
    });
    let begun = std::time::Instant::now();
    while b.ours().unaware.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed().as_secs() < 10, "it does not say so");
        std::thread::yield_now();
    }
    let flows = join(&a, &b);
    assert!(!flows[0].peer_reads(), "a sleeper would not look");
    std::thread::sleep(std::time::Duration::from_millis(2));
    a.send(&b, b"kernel");
    assert_eq!(sleeper.join().expect("woken"), (1, 6));
    assert!(flows[0].peer_reads(), "from now on it looks");
    drop((a, b));
    end_links();
}

#[test]
fn a_file_that_is_sent_keeps_its_place() {
    use std::io::Write;
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    let to = b.socket.local_addr().expect("a name");
    a.socket.connect(to).expect("connected");
    connected(a.ours(), a.fd());
    a.send(&b, b"ring");
    assert_ne!(flows[0].producer().tail(), 0, "by the ring");
    // SAFETY: a name of ours.
    let fd = unsafe { libc::memfd_create(c"file".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: just made, and nobody else's.
    let mut file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.write_all(b"file").expect("written");
    let mut offset = 0;
    // SAFETY: an offset of ours.
    let sent = unsafe { crate::hooks_io::sendfile(a.fd(), fd, &raw mut offset, 4) };
    assert_eq!(sent, 4);
    a.send(&b, b"behind");
    assert_eq!(b.texts(), ["ring", "file", "behind"]);
    flows.iter().for_each(|flow| flow.tidy());
    drop((a, b));
    end_links();
}

#[test]
fn the_kernel_judges_what_may_not_fit_the_path() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    for (how, by_ring) in [
        (libc::IP_PMTUDISC_DO, false),
        (libc::IP_PMTUDISC_WANT, true),
        (libc::IP_PMTUDISC_PROBE, false),
        (libc::IP_PMTUDISC_OMIT, true),
    ] {
        // SAFETY: a value of ours.
        let set = unsafe {
            let at = (&raw const how).cast();
            crate::hooks_options::setsockopt(a.fd(), level, name, at, 4)
        };
        assert_eq!(set, 0);
        a.send(&b, b"small");
        let before = flows[0].producer().tail();
        a.send(&b, &[b'x'; 1400]);
        assert_eq!(flows[0].producer().tail() != before, by_ring, "{how}");
        a.send(&b, b"behind");
        let lengths: Vec<usize> = b.texts().iter().map(String::len).collect();
        assert_eq!(lengths, [5, 1400, 6]);
    }
    drop((a, b));
    end_links();
}

#[test]
fn a_full_ring_loses_and_a_liar_loses_its_ring() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    let large = [7u8; 8000];
    // Until it is full, and some more.
    for _ in 0..600 {
        a.send(&b, &large);
    }
    let records = flows[0].producer().tail() / record_bytes(large.len()) as u64;
    assert!((300..500).contains(&records), "{records} in 3 MB");
    let mut count = 0;
    while let Some((bytes, _)) = b.take() {
        assert_eq!(bytes, large);
        count += 1;
    }
    assert_eq!(count, records);
    let lost = flows[0].own().tx_own.lost.load(Ordering::Relaxed);
    assert_eq!(lost, 600 - records);

    // A record that is longer than what there is.
    a.send(&b, b"12345678");
    let header = Header {
        bytes: 9,
        ..Header::default()
    };
    let producer = flows[0].producer();
    let at = producer.tail() - record_bytes(8) as u64;
    // SAFETY: over a header of ours.
    unsafe {
        let from = (&raw const header).cast();
        let kernel = fordway_ring::copy::Kernel::Plain;
        producer.write(crate::transfer::copier(), kernel, at, from, HEADER_BYTES);
    }
    assert_eq!(b.take(), None);
    assert!(!flows[1].is_paired(), "given up");
    a.send(&b, b"kernel");
    assert_eq!(b.texts(), ["kernel"]);
    drop((a, b));
    end_links();
}

#[test]
fn a_socket_that_is_barred_reads_what_had_come() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    assert!(!a.ours().has_unread());
    std::thread::sleep(std::time::Duration::from_millis(2));
    b.send(&a, b"before");
    a.ours().bar(Reason::Unsupported);
    assert!(a.ours().has_unread());
    b.send(&a, b"behind");
    assert_eq!(a.texts(), ["before", "behind"]);
    assert!(!a.ours().has_unread());
    flows.iter().for_each(|flow| flow.tidy());
    assert!(!flows[0].is_paired() && !flows[1].is_paired());
    drop((a, b));
    end_links();
}

/// Else epoll tells of no edge: the peers of a server come and go, each with one datagram by its ring.
#[test]
fn the_first_record_of_a_channel_is_news_whatever_the_one_before_had() {
    let _turn = tables();
    let (a, b) = acquainted();
    let mut seen = vec![];
    for text in ["one", "two"] {
        let flows = join(&a, &b);
        std::thread::sleep(std::time::Duration::from_millis(2));
        b.send(&a, text.as_bytes());
        assert!(a.ours().has_unread());
        seen.push(a.ours().arrivals());
        assert_eq!(a.texts(), [text]);
        flows.iter().for_each(|flow| flow.leave(false));
        flows.iter().for_each(|flow| flow.tidy());
        assert!(!flows[0].is_paired() && !flows[1].is_paired());
        end_links();
    }
    assert_ne!(seen[0], seen[1]);
    drop((a, b));
}

/// Whoever sleeps in one of the kernel's calls would never see it.
#[test]
fn no_ring_is_used_while_a_thread_sleeps_in_recvmmsg_or_preadv2() {
    let _turn = tables();
    for by_parts in [false, true] {
        let (a, b) = acquainted();
        a.socket.set_nonblocking(false).expect("blocking");
        a.ours().nonblock.store(0, Ordering::Relaxed);
        let fd = a.fd();
        let sleeper = std::thread::spawn(move || {
            let mut bytes = [0u8; 64];
            let part = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            // SAFETY: zeros are an empty message; the parts are ours.
            unsafe {
                if by_parts {
                    return crate::hooks_many::preadv2(fd, &raw const part, 1, -1, 0);
                }
                let mut message: libc::mmsghdr = core::mem::zeroed();
                message.msg_hdr.msg_iov = (&raw const part).cast_mut();
                message.msg_hdr.msg_iovlen = 1;
                let none = core::ptr::null_mut();
                let got = crate::hooks_many::recvmmsg(fd, &raw mut message, 1, 0, none);
                got as isize * message.msg_len as isize
            }
        });
        while a.ours().unaware.load(Ordering::SeqCst) == 0 && !sleeper.is_finished() {
            std::thread::yield_now();
        }
        let flows = join(&a, &b);
        assert!(!flows[1].peer_reads());
        b.send(&a, b"wakes");
        assert_eq!(sleeper.join().expect("its end"), 5);
        assert!(flows[1].peer_reads());
        drop((a, b));
        end_links();
    }
}

/// A receive that is told of something and finds nothing would look for ever.
#[test]
fn what_looks_unread_is_found_whoever_has_had_his_turns() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    for _ in 0..100 {
        b.send(&a, b"one");
    }
    // The same flow in two places, as two threads that gave it back could leave it.
    let ours = a.ours();
    let word = place_word(flows[0].index(), flows[0].remote());
    ours.flows[1].store(word, Ordering::Relaxed);
    ours.high.store(2, Ordering::Relaxed);
    assert_eq!(a.texts(), ["one"; 100]);
    ours.flows[1].store(0, Ordering::Relaxed);
    drop((a, b));
    end_links();
}

#[test]
fn what_only_the_kernel_carries_comes_behind_what_is_in_the_ring() {
    let _turn = tables();
    let (a, b) = acquainted();
    join(&a, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    for _ in 0..100 {
        a.send(&b, b"ring");
    }
    let (name, length) = b.name().address(libc::AF_INET);
    // SAFETY: bytes and a name of ours.
    let sent = unsafe {
        let (at, name) = (b"kernel".as_ptr().cast(), name.as_ptr().cast());
        sendto(a.fd(), at, 6, libc::MSG_DONTROUTE, name, length as u32)
    };
    assert_eq!(sent, 6);
    let texts = b.texts();
    assert_eq!(
        (texts.len(), texts.last()),
        (101, Some(&"kernel".to_owned()))
    );
    drop((a, b));
    end_links();
}

/// A relay sends on what it receives: its own sends say nothing of whose turn it is to be heard.
#[test]
fn a_peer_that_is_always_the_first_has_no_more_than_its_turns() {
    let _turn = tables();
    let (a, b) = acquainted();
    let c = Watched::new();
    for (from, to) in [(&c, &a), (&a, &c)] {
        from.send(to, b"hello");
        assert_eq!(to.texts(), ["hello"]);
    }
    join(&a, &b);
    join_by([43, 44], &a, &c);
    std::thread::sleep(std::time::Duration::from_millis(2));
    for _ in 0..200 {
        b.send(&a, b"first");
    }
    c.send(&a, b"second");
    let texts = std::iter::from_fn(|| {
        a.send(&c, b"on");
        a.take().map(|(bytes, _)| bytes)
    });
    let place = texts.take_while(|bytes| bytes == b"first").count();
    assert!((1..70).contains(&place), "{place}");
    drop((a, b, c));
    end_links();
    end_links_of([43, 44]);
}

/// Of sockets with the same port the connected one has what its peer sends. Others of the process keep their rings.
#[test]
fn a_connect_takes_flows_of_the_same_port_alone() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    a.ours().port.store(a.name().port.into(), Ordering::Relaxed);
    let c = Watched::new();
    let SocketAddr::V4(far) = b.socket.local_addr().expect("a name") else {
        unreachable!("bound to IPv4");
    };
    c.socket.connect(far).expect("connected");
    connected(c.ours(), c.fd());
    std::thread::sleep(std::time::Duration::from_millis(2));
    b.send(&a, b"one");
    assert_eq!(a.texts(), ["one"]);
    assert!(flows[0].is_paired() && !flows[1].producer().must_leave());
    a.ours().port.store(c.name().port.into(), Ordering::Relaxed);
    connected(c.ours(), c.fd());
    assert!(flows[1].producer().must_leave());
    flows.iter().rev().for_each(|flow| flow.tidy());
    assert!(!flows[0].is_paired());
    drop((a, b, c));
    end_links();
}

#[test]
fn a_ring_that_nobody_entered_has_nothing_unread() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    a.ours().bar(Reason::Unsupported);
    assert!(!a.ours().has_unread() && !b.ours().has_unread());
    b.send(&a, b"kernel");
    assert_eq!(a.texts(), ["kernel"]);
    assert!(!a.ours().has_unread());
    flows.iter().for_each(|flow| flow.tidy());
    drop((a, b));
    end_links();
}

#[test]
fn a_peer_that_goes_on_behind_its_leave_is_left() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    for text in ["one", "two"] {
        a.send(&b, text.as_bytes());
    }
    flows[0].leave(false);
    assert_eq!(b.take().map(|(bytes, _)| bytes), Some(b"one".to_vec()));
    // Nobody would have the kernel's turn while it goes on.
    let outsider = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let to = b.socket.local_addr().expect("a name");
    outsider.send_to(b"kernel", to).expect("sent");
    flows[0].producer().publish(record_bytes(0));
    assert_eq!(b.texts(), ["kernel"]);
    assert_ne!(flows[1].broken.load(Ordering::Relaxed), 0);
    drop((a, b));
    end_links();
}

#[test]
fn a_socket_that_is_closed_as_its_flow_gets_a_channel_keeps_none() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flow = a.ours().flow_to(b.name()).expect("a flow");
    assert!(!is_any_offered());
    flow.pretend_offered();
    assert!(is_any_offered());
    // As if it were found in BINDING.
    flow.closing.store(1, Ordering::SeqCst);
    flow.paired(link_to_nobody(), 0, 7, 98);
    assert!(!flow.is_paired() && !flow.is_of(a.ours().index()));
    assert_eq!(a.ours().paired.load(Ordering::SeqCst), 0);
    drop((a, b));
    end_links_of([41]);
}

#[test]
fn who_sends_lets_go_of_a_channel_that_is_over() {
    let _turn = tables();
    let (a, b) = acquainted();
    let [near, far] = join(&a, &b);
    a.send(&b, b"record");
    near.leave(false);
    assert_eq!(b.texts(), ["record"]);
    far.leave(false);
    // It receives nothing, by which it would have looked.
    a.send(&b, b"by the kernel");
    assert!(!near.is_paired());
    assert_eq!(b.texts(), ["by the kernel"]);
    drop((a, b));
    end_links();
}

/// The port of a socket's broadcasts, and a flow there that the broker knows, with so many receivers.
fn to_all(from: &Watched, receivers: &[&Watched], own: u32) -> Name {
    let mut name = receivers[0].name();
    name.ip[12..].copy_from_slice(&[127, 255, 255, 255]);
    set(from, libc::SOL_SOCKET, libc::SO_BROADCAST, 1);
    let flow = flow::new(from.ours(), name).expect("a flow");
    flow.receivers.offer(true);
    flow.pretend_offered_as(from.name());
    let told = fordway_abi::control::Everybody {
        own,
        ..told_of(flow.id(), receivers, 0)
    };
    all::told(&told);
    name
}

/// What the broker says of a flow.
fn told_of(conn_id: u64, receivers: &[&Watched], reason: u32) -> fordway_abi::control::Everybody {
    let mut told = fordway_abi::control::Everybody {
        conn_id,
        reason,
        own: 0,
        count: receivers.len() as u32,
        pad: 0,
        ips: Default::default(),
    };
    for (ip, receiver) in told.ips.iter_mut().zip(receivers) {
        ip.copy_from_slice(&receiver.name().ip[12..]);
    }
    told
}

fn say(from: &Watched, name: Name, bytes: &[u8]) {
    let (name, length) = name.address(libc::AF_INET);
    // SAFETY: bytes and a name of ours.
    let sent = unsafe {
        let (at, name) = (bytes.as_ptr().cast(), name.as_ptr().cast());
        sendto(from.fd(), at, bytes.len(), 0, name, length as u32)
    };
    assert_eq!(sent, bytes.len() as isize, "{}", sys::errno());
}

/// One that broadcasts to two others, which have heard of it, by channels of links 41 to 44.
fn audience(own: u32) -> ([Watched; 3], Name, [[&'static Flow; 2]; 2]) {
    let [speaker, one] = [Watched::new(), Watched::new()];
    let two = Watched::at(Ipv4Addr::new(127, 0, 0, 2), one.name().port);
    for receiver in [&one, &two] {
        receiver.send(&speaker, b"hello");
        speaker.send(receiver, b"hello");
        assert_eq!(receiver.texts(), ["hello"]);
    }
    assert_eq!(speaker.texts(), ["hello", "hello"]);
    let all = to_all(&speaker, &[&one, &two], own);
    let flows = [
        join_by([41, 42], &speaker, &one),
        join_by([43, 44], &speaker, &two),
    ];
    // Nobody hears it who is bound to an address of his own.
    say(&speaker, all, b"by the kernel");
    assert_eq!([one.texts(), two.texts()], [[""; 0]; 2]);
    let counts = flows.map(|[near, _]| near.by_kernel.load(Ordering::Relaxed));
    assert_eq!(counts, [2, 2], "each of them waits for it");
    for [_, far] in flows {
        far.seen_by_kernel.store(2, Ordering::Relaxed);
    }
    // It has come by then.
    std::thread::sleep(std::time::Duration::from_millis(2));
    ([speaker, one, two], all, flows)
}

#[test]
fn a_broadcast_is_a_record_of_each_receiver() {
    let _turn = tables();
    let ([speaker, one, two], all, flows) = audience(0);
    say(&speaker, all, b"record");
    assert_eq!([one.texts(), two.texts()], [["record"]; 2]);
    // What only the kernel does goes behind what is unread.
    say(&speaker, all, b"unread");
    speaker.ours().whole.store(1, Ordering::Relaxed);
    say(&speaker, all, b"by the kernel");
    assert!(flows.iter().all(|[near, _]| near.is_on_its_way_out()));
    assert_eq!([one.texts(), two.texts()], [["unread"]; 2]);
    drop([speaker, one, two]);
    end_links_of([41, 42, 43, 44]);
}

#[test]
fn who_hears_keeps_the_order_while_nobody_is_known_to_hear() {
    let _turn = tables();
    let ([speaker, one, two], all, flows) = audience(0);
    say(&speaker, all, b"record");
    assert_eq!([one.texts(), two.texts()], [["record"]; 2]);
    let counts = || flows.map(|[near, _]| near.by_kernel.load(Ordering::Relaxed));
    // The broker has withdrawn what it said: a record waits for what the kernel broadcasts.
    let id = speaker.ours().flow_to(all).expect("a flow").id();
    all::told(&told_of(id, &[], 1));
    say(&speaker, all, b"by the kernel");
    assert_eq!(counts(), [3, 3]);
    // It says that the second one has none any more.
    all::told(&told_of(id, &[&one], 0));
    speaker.ours().whole.store(1, Ordering::Relaxed);
    say(&speaker, all, b"by the kernel");
    assert_eq!(counts(), [4, 3]);
    drop([speaker, one, two]);
    end_links_of([41, 42, 43, 44]);
}

#[test]
fn a_receiver_without_a_ring_has_its_datagrams_alone() {
    let _turn = tables();
    let ([speaker, one, two], all, [first, second]) = audience(1);
    say(&speaker, all, b"first");
    second[0].leave(false);
    say(&speaker, all, b"second");
    assert_eq!([one.texts(), two.texts()], [["first", "second"]; 2]);
    // The speaker hears itself, by the kernel.
    assert_eq!(speaker.texts(), ["first", "second"]);
    // With no ring at all it is the kernel's.
    first[0].leave(false);
    say(&speaker, all, b"third");
    assert_eq!([one.texts(), two.texts()], [[""; 0]; 2]);
    drop([speaker, one, two]);
    end_links_of([41, 42, 43, 44]);
}

#[test]
fn a_receiver_that_asks_to_whom_they_were_sent_keeps_broadcasts_with_the_kernel() {
    let _turn = tables();
    let ([speaker, one, two], all, [first, second]) = audience(0);
    set(&one, libc::IPPROTO_IP, libc::IP_PKTINFO, 1);
    assert!(first[0].peer_tells() && !second[0].peer_tells());
    say(&speaker, all, b"by the kernel");
    assert_eq!([one.texts(), two.texts()], [[""; 0]; 2]);
    // So it is of one who may send to all no more.
    let flow = speaker.ours().flow_to(all).expect("a flow");
    assert!(flow.receivers.is_offered());
    set(&speaker, libc::SOL_SOCKET, libc::SO_BROADCAST, 0);
    assert!(!flow.receivers.is_offered());
    drop([speaker, one, two]);
    end_links_of([41, 42, 43, 44]);
}

#[test]
fn no_address_keeps_the_others_off_the_rings() {
    let _turn = tables();
    let b = Watched::new();
    let name = |last, port| Name {
        ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last],
        port,
    };
    // Without a channel the oldest ones make way.
    for port in 1..=FLOWS_MAX as u16 + 1 {
        assert!(flow::new(b.ours(), name(1, port)).is_some());
    }
    assert_eq!(b.ours().flows().count(), FLOWS_MAX);
    let link = link_to_nobody();
    for (slot, flow) in b.ours().flows().enumerate() {
        flow.pretend_offered();
        flow.paired(link, slot as u32, 7, 1000 + slot as u64);
    }
    let comes = |last| {
        for port in 1000..1016 {
            assert!(flow::new(b.ours(), name(last, port)).is_none());
        }
    };
    comes(1);
    let leaves = |flow: &&Flow| flow.is_on_its_way_out();
    let leaving = || b.ours().flows().filter(leaves).count();
    assert_eq!(leaving(), 0, "its own flows keep an address off");
    comes(2);
    assert_eq!(leaving(), 1);
    comes(2);
    assert_eq!(leaving(), 1, "one at a time");
    drop(b);
    end_links_of([41]);
}

/// Sets an option of a socket by the library's call.
fn set(at: &Watched, level: i32, name: i32, value: i32) {
    // SAFETY: a value of ours.
    let set = unsafe {
        let at_value = (&raw const value).cast();
        crate::hooks_options::setsockopt(at.fd(), level, name, at_value, 4)
    };
    assert_eq!(set, 0, "{level} {name}");
}

/// What recvmsg says with so much room for control data: bytes, the control data, flags.
fn told(at: &Watched, room: usize) -> (isize, Vec<u8>, i32) {
    let (mut bytes, mut control, mut name) = ([0u8; 100], [0u8; 300], [0u8; ADDRESS_BYTES]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a msghdr of zeros is an empty message; then one of ours.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = name.len() as u32;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = room;
        let got = recvmsg(at.fd(), &raw mut message, 0);
        let control = control[..message.msg_controllen].to_vec();
        (got, control, message.msg_flags)
    }
}

/// Each wait looks into the rings of all of them.
#[test]
fn an_instance_has_no_more_than_so_many_sockets_with_rings() {
    let _turn = tables();
    let epoll = sys!(SYS_epoll_create1, 0).expect("an instance") as i32;
    crate::epoll::created(epoll);
    let all: Vec<_> = (0..=watch::WATCHED_MAX).map(|_| Watched::new()).collect();
    for socket in &all {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: an event of ours.
        let added = unsafe {
            let (add, fd) = (libc::EPOLL_CTL_ADD, socket.fd());
            crate::hooks_wait::epoll_ctl(epoll, add, fd, &raw mut event)
        };
        assert_eq!(added, 0);
    }
    let is_barred = |socket: &Watched| socket.ours().barred.load(Ordering::Relaxed) != 0;
    let barred = all.iter().position(is_barred);
    assert_eq!(barred, Some(watch::WATCHED_MAX));
    drop(all);
    assert_eq!(crate::hooks_fd::close(epoll), 0);
}

/// Sends with control data: a level, a kind, and the bytes.
fn send_beside(
    from: &Watched,
    to: &Watched,
    bytes: &[u8],
    (level, kind, value): (i32, i32, &[u8]),
) {
    let mut control = [0u8; 64];
    control[..8].copy_from_slice(&(16 + value.len() as u64).to_ne_bytes());
    control[8..12].copy_from_slice(&level.to_ne_bytes());
    control[12..16].copy_from_slice(&kind.to_ne_bytes());
    control[16..16 + value.len()].copy_from_slice(value);
    let (mut name, length) = to.name().address(libc::AF_INET);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a msghdr of zeros is an empty message; then one of ours.
    let sent = unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = length as u32;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = (16 + value.len()).next_multiple_of(8);
        crate::hooks_io::sendmsg(from.fd(), &raw const message, 0)
    };
    assert_eq!(sent, bytes.len() as isize);
}

#[test]
fn what_stands_beside_a_record_is_what_the_kernel_says() {
    let _turn = tables();
    let (a, b) = acquainted();
    for name in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS] {
        set(&b, libc::IPPROTO_IP, name, 1);
    }
    set(&a, libc::IPPROTO_IP, libc::IP_TOS, 0x28);
    let flows = join(&a, &b);
    assert!(!flows[0].peer_reads(), "it is not known what stands beside");
    // With all kinds of room: by the kernel, and then by the ring.
    let rooms = [0, 8, 16, 20, 24, 47, 48, 64, 72, 80, 96, 104, 128];
    let by_kernel: Vec<_> = rooms
        .map(|room| {
            a.send(&b, b"beside");
            told(&b, room)
        })
        .into();
    assert!(flows[0].peer_reads());
    std::thread::sleep(std::time::Duration::from_millis(2));
    for (room, by_kernel) in rooms.into_iter().zip(by_kernel) {
        let before = flows[0].producer().tail();
        a.send(&b, b"beside");
        assert_ne!(flows[0].producer().tail(), before, "by the ring");
        assert_eq!(told(&b, room), by_kernel, "room {room}");
    }
    // A message's own TOS.
    send_beside(
        &a,
        &b,
        b"ect",
        (libc::IPPROTO_IP, libc::IP_TOS, &2i32.to_ne_bytes()),
    );
    let (_, control, _) = told(&b, 300);
    let tos = beside::tos_in(&control);
    assert_eq!(tos, Some(2));
    // Its source: as it would be anyway, and another one, which the kernel judges.
    for (last, by_ring) in [(1, true), (2, false)] {
        let mut info = [0u8; 12];
        info[4..8].copy_from_slice(&[127, 0, 0, last]);
        let before = flows[0].producer().tail();
        send_beside(&a, &b, b"from", (libc::IPPROTO_IP, libc::IP_PKTINFO, &info));
        assert_eq!(flows[0].producer().tail() != before, by_ring, "{last}");
        assert_eq!(told(&b, 0).0, 4);
    }
    // Told of no more: the ring is left, and what was in it still comes.
    a.send(&b, b"before");
    set(&b, libc::IPPROTO_IP, libc::IP_RECVTTL, 0);
    a.send(&b, b"behind");
    assert_eq!(b.texts(), ["before", "behind"]);
    flows.iter().for_each(|flow| flow.tidy());
    drop((a, b));
    end_links();
}

#[test]
fn a_time_stands_beside_a_record() {
    let _turn = tables();
    let (a, b) = acquainted();
    set(&b, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
    let flows = join(&a, &b);
    a.send(&b, b"kernel");
    assert_eq!(told(&b, 300).0, 6);
    std::thread::sleep(std::time::Duration::from_millis(2));
    let now = || {
        let since = std::time::UNIX_EPOCH.elapsed().expect("a clock");
        since.as_nanos() as u64
    };
    // The clocks of ticks and of the day need not agree to the microsecond.
    let margin_ns = 1_000_000;
    let begun = now();
    a.send(&b, b"ring");
    let sent = now();
    assert_ne!(flows[0].producer().tail(), 0, "by the ring");
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (got, control, _) = told(&b, 300);
    assert_eq!((got, control.len()), (4, 32));
    let word = |at: usize| u64::from_ne_bytes(control[at..at + 8].try_into().expect("a word"));
    let at = word(16) * 1_000_000_000 + word(24);
    assert!(
        begun - margin_ns <= at && at <= sent + margin_ns,
        "{begun} {at} {sent}"
    );
    drop((a, b));
    end_links();
}

#[test]
fn one_call_is_cut_into_records() {
    let _turn = tables();
    let (a, b) = acquainted();
    let segment = |bytes: u16| bytes.to_ne_bytes();
    // By the kernel each of them counts, so that the ring is not read before the last one.
    let kind = (libc::SOL_UDP, libc::UDP_SEGMENT);
    send_beside(&a, &b, b"abcdefgh", (kind.0, kind.1, &segment(3)));
    assert_eq!(b.texts(), ["abc", "def", "gh"]);
    let flows = join(&a, &b);
    assert_eq!(flows[0].by_kernel.load(Ordering::Relaxed), 1 + 3);
    std::thread::sleep(std::time::Duration::from_millis(2));
    let cut = |bytes: &[u8], each: u16| {
        let before = flows[0].producer().tail();
        send_beside(
            &a,
            &b,
            bytes,
            (libc::SOL_UDP, libc::UDP_SEGMENT, &segment(each)),
        );
        flows[0].producer().tail() != before
    };
    assert!(cut(b"abcdefgh", 3));
    assert_eq!(b.texts(), ["abc", "def", "gh"]);
    assert!(cut(b"abcdef", 3));
    assert_eq!(b.texts(), ["abc", "def"]);
    assert!(cut(b"ab", 3));
    assert_eq!(b.texts(), ["ab"]);
    flows.iter().for_each(|flow| flow.tidy());
    drop((a, b));
    end_links();
}

#[test]
fn rings_may_come_back_when_the_child_is_gone() {
    let _turn = tables();
    let (a, b) = acquainted();
    let flows = join(&a, &b);
    // SAFETY: the child waits for a byte, lets go and ends.
    let (child, pipe) = unsafe {
        let mut pipe = [0; 2];
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            libc::close(pipe[1]);
            let mut byte = [0u8; 1];
            libc::read(pipe[0], byte.as_mut_ptr().cast(), 1);
            fork::leaving();
            libc::_exit(0);
        }
        (child, pipe)
    };
    let exchange = || {
        for _ in 0..2 * LOOK_FOR_RELATIVES_EVERY {
            a.send(&b, b"kernel");
            assert_eq!(b.texts(), ["kernel"]);
        }
        a.ours().barred.load(Ordering::SeqCst)
    };
    assert_eq!(exchange(), Reason::Forked as u32);
    flows.iter().for_each(|flow| flow.tidy());
    assert!(!flows[0].is_paired() && !flows[1].is_paired());
    // SAFETY: a pipe and a child of ours.
    unsafe {
        libc::close(pipe[1]);
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
        libc::close(pipe[0]);
    }
    assert_eq!(exchange(), 0);
    join(&a, &b);
    std::thread::sleep(std::time::Duration::from_millis(2));
    a.send(&b, b"ring");
    assert_eq!(b.texts(), ["ring"]);
    // What another process was passed stays the kernel's.
    a.ours().bar(Reason::Forked);
    a.ours().bar(Reason::Passed);
    assert_eq!(exchange(), Reason::Passed as u32);
    for end in [&a, &b] {
        end.ours().tidy();
    }
    drop((a, b));
    end_links();
}
