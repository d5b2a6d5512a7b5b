//! The fabric on a real kernel. Needs root; without it the tests say so and pass.

use fordway_abi::vsock;
use fordway_platform::fabric::{DriverPort, Fabric, FabricError, Lease, has_ipv6, port_of};
use fordway_platform::frames::{FRAME_BYTES_MAX, FrameFile, FrameNotes};
use fordway_platform::netns;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A runtime directory that is torn down however the test ends.
struct Runtime(PathBuf);

impl Runtime {
    fn new(name: &str) -> Option<Runtime> {
        if !rustix::process::geteuid().is_root() {
            fordway_test_skip::skipped("needs root");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("fordway-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("runtime directory");
        Some(Runtime(dir))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Ok(Some(fabric)) = Fabric::open(&self.0) {
            let _ = fabric.teardown();
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn inside<T: Send>(file: &Path, work: impl FnOnce() -> T + Send) -> T {
    let namespace = netns::open(file).expect("open").expect("a namespace");
    netns::within(namespace.as_fd(), work).expect("enter")
}

fn host_devices() -> String {
    let output = std::process::Command::new("ip")
        .args(["-o", "link"])
        .output()
        .expect("ip");
    String::from_utf8(output.stdout).expect("text")
}

/// In the calling thread's namespace (linux: net/ipv4/proc.c: TcpExt's names, then their values).
fn syns_sent_again() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("netstat");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, count) = pairs
        .find(|(name, _)| *name == "TCPSynRetrans")
        .expect("TCPSynRetrans");
    count.parse().expect("a number")
}

fn lease(last: u8) -> Lease {
    Lease {
        ip: ip(last),
        prefix: 24,
        six: None,
        vsock: false,
    }
}

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

#[test]
fn domains_talk_and_cannot_lie_about_who_they_are() {
    let Some(runtime) = Runtime::new("talk") else {
        return;
    };
    let before = host_devices();
    let fabric = Fabric::ensure(&runtime.0).expect("fabric");
    let db = fabric.add_domain("db", &lease(3)).expect("db");
    let web = fabric.add_domain("web", &lease(4)).expect("web");
    assert_ne!(db.netns_cookie, web.netns_cookie);
    assert_eq!(before, host_devices(), "the host's namespace changed");

    let listener = inside(&db.netns_path, || {
        TcpListener::bind((ip(3), 0)).expect("listen")
    });
    let address = listener.local_addr().expect("address");
    let (mut client, again) = inside(&web.netns_path, || {
        let client = TcpStream::connect(address).expect("connect");
        (client, syns_sent_again())
    });
    // A port that listens and learns first (spanning tree) would have dropped the first SYN.
    assert_eq!(again, 0, "the port forwards late");
    client.write_all(b"hello").expect("write");
    drop(client);
    let (mut server, from) = listener.accept().expect("accept");
    let mut text = String::new();
    server.read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), from.ip()), ("hello", ip(4).into()));

    // A second address on the domain's own device: the host of the address would be
    // reached, were the port's filter not there.
    let echo = inside(&db.netns_path, || {
        UdpSocket::bind((ip(3), 0)).expect("bind")
    });
    echo.set_read_timeout(Some(Duration::from_millis(200)))
        .expect("timeout");
    let target: SocketAddr = echo.local_addr().expect("address");
    assert_eq!(fabric.spoofed_frames(&port_of(ip(4))).expect("counter"), 0);
    inside(&web.netns_path, || {
        let status = std::process::Command::new("ip")
            .args(["addr", "add", "10.77.0.99/24", "dev", "eth0"])
            .status();
        assert!(status.expect("ip").success());
        let liar = UdpSocket::bind((ip(99), 0)).expect("bind");
        liar.send_to(b"lie", target).expect("send");
    });
    let mut buffer = [0; 16];
    let error = echo
        .recv_from(&mut buffer)
        .expect_err("a spoofed packet arrived");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(fabric.spoofed_frames(&port_of(ip(4))).expect("counter") > 0);
    assert_eq!(fabric.spoofed_frames(&port_of(ip(3))).expect("counter"), 0);
}

fn six(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x0a4d, last)
}

fn with_six(last: u8) -> Lease {
    Lease {
        six: Some((six(last.into()), 64)),
        vsock: true,
        ..lease(last)
    }
}

/// Waits until a domain takes what is for its address: the route comes by a worker of the kernel.
fn await_six(file: &Path, own: Ipv6Addr) {
    let end = Instant::now() + Duration::from_secs(10);
    let is_there = || ip_in(file, "-6 route show table local").contains(&own.to_string());
    while !is_there() {
        assert!(Instant::now() < end, "no route to {own}");
    }
}

/// What `ip` says in a domain.
fn ip_in(file: &Path, words: &str) -> String {
    let output = inside(file, || {
        let words = words.split(' ');
        std::process::Command::new("ip").args(words).output()
    });
    String::from_utf8(output.expect("ip").stdout).expect("text")
}

#[test]
fn domains_have_ipv6_at_once_and_need_to_know_nothing_of_each_other() {
    let Some(runtime) = Runtime::new("six") else {
        return;
    };
    if !has_ipv6() {
        fordway_test_skip::skipped("the kernel has IPv6 off");
        return;
    }
    let fabric = Fabric::ensure(&runtime.0).expect("fabric");
    let db = fabric.add_domain("db", &with_six(3)).expect("db");
    let four = fabric.add_domain("four", &lease(5)).expect("four");
    let web = fabric.add_domain("web", &with_six(4)).expect("web");
    await_six(&db.netns_path, six(3));
    // Nobody is asked whether the address is free, nor who has the other's.
    let listener = inside(&db.netns_path, || {
        TcpListener::bind((six(3), 0)).expect("listen")
    });
    let address = listener.local_addr().expect("address");
    let (client, again) = inside(&web.netns_path, || {
        let client = TcpStream::connect(address).expect("connect");
        (client, syns_sent_again())
    });
    assert_eq!(again, 0, "the first SYN was lost");
    let (_server, from) = listener.accept().expect("accept");
    assert_eq!(from.ip(), client.local_addr().expect("name").ip());
    assert_eq!(from.ip(), six(4));
    // Each knows one neighbour, who leads to all, and one route; so it stays when others come.
    let known = |file: &Path| {
        let neighbours = ip_in(file, "-6 neigh show dev eth0");
        let settled = neighbours
            .lines()
            .filter(|line| !line.starts_with("fe80::46:aff"));
        let settled = settled.collect::<Vec<_>>().join("\n");
        settled + &ip_in(file, "-6 route show dev eth0")
    };
    let alone = known(&db.netns_path);
    assert!(!alone.contains(&six(4).to_string()), "{alone}");
    fabric.add_domain("more", &with_six(6)).expect("more");
    assert_eq!(known(&db.netns_path), alone);
    fabric.remove_domain("more", ip(6)).expect("remove");
    assert_eq!(ip_in(&four.netns_path, "-6 addr show dev eth0"), "");

    // The addresses that stand for CIDs are each domain's own, too.
    let of = |last: u8| vsock::address_of(with_six(last).cid().expect("a CID"));
    let bound_in =
        |domain: &Path, ip: Ipv6Addr| inside(domain, || UdpSocket::bind((ip, 0)).expect("bind"));
    let taker = bound_in(&db.netns_path, of(3));
    let wait = Some(Duration::from_millis(200));
    taker.set_read_timeout(wait).expect("timeout");
    let target = taker.local_addr().expect("name");
    let mut room = [0; 16];
    let honest = bound_in(&web.netns_path, of(4));
    honest.send_to(b"mine", target).expect("send");
    let (_, from) = taker.recv_from(&mut room).expect("nothing came");
    assert_eq!(from.ip(), of(4));
    ip_in(
        &web.netns_path,
        &format!("addr add {} dev eth0 nodad", of(9)),
    );
    let liar = bound_in(&web.netns_path, of(9));
    liar.send_to(b"lie", target).expect("send");
    assert!(taker.recv_from(&mut room).is_err(), "a lie arrived");
    assert!(fabric.spoofed_frames(&port_of(ip(4))).expect("counter") > 0);

    drop(fabric);
    let fabric = Fabric::ensure(&runtime.0).expect("again");
    fabric.renew().expect("renew");
    let leases: Vec<Lease> = fabric
        .existing()
        .expect("existing")
        .into_iter()
        .map(|domain| domain.lease)
        .collect();
    assert_eq!(leases, [with_six(3), with_six(4), lease(5)]);
    // What is for nobody goes to nobody, and what is for somebody to nobody else.
    fabric.remove_domain("web", ip(4)).expect("remove");
    let received = || {
        let text = ip_in(&four.netns_path, "-s link show dev eth0");
        let line = text.lines().skip_while(|line| !line.contains("RX:")).nth(1);
        let packets = line.and_then(|line| line.split_whitespace().nth(1));
        packets
            .and_then(|count| count.parse::<u64>().ok())
            .expect("a count")
    };
    // The way to an address that nobody has is told at once to be none.
    let refused = inside(&db.netns_path, || TcpStream::connect((six(9), 9)));
    let refused = refused.expect_err("somebody is there");
    assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{refused}");
    let before = received();
    taker.send_to(b"nobody", (of(4), 9)).expect("send");
    // Frames keep their order: this one would come behind it.
    let knock = inside(&db.netns_path, || {
        UdpSocket::bind((ip(3), 0)).expect("bind")
    });
    let door = inside(&four.netns_path, || {
        UdpSocket::bind((ip(5), 0)).expect("bind")
    });
    door.set_read_timeout(Some(Duration::from_secs(5)))
        .expect("timeout");
    knock
        .send_to(b"knock", door.local_addr().expect("name"))
        .expect("send");
    door.recv_from(&mut room).expect("nothing came");
    // An ARP question and what was knocked with.
    assert_eq!(received() - before, 2, "what was for nobody came by");
    fabric.add_domain("web", &with_six(4)).expect("once more");
    assert_eq!(fabric.spoofed_frames(&port_of(ip(4))).expect("counter"), 0);
}

#[test]
fn a_second_broker_finds_what_the_first_one_made() {
    let Some(runtime) = Runtime::new("again") else {
        return;
    };
    let fabric = Fabric::ensure(&runtime.0).expect("fabric");
    let db = fabric.add_domain("db", &lease(3)).expect("db");
    let taken = fabric.add_domain("db", &lease(9)).expect_err("name");
    assert!(matches!(taken, FabricError::Taken(_)), "{taken}");
    let taken = fabric.add_domain("other", &lease(3)).expect_err("address");
    assert!(
        taken.to_string().contains("belongs to the domain \"db\""),
        "{taken}"
    );
    fabric.add_domain("half", &lease(5)).expect("half");
    netns::remove(&runtime.0.join("netns/half")).expect("break it");
    std::fs::write(runtime.0.join("netns/stray"), "").expect("a file that is no namespace");
    drop(fabric);

    let fabric = Fabric::ensure(&runtime.0).expect("again");
    let existing = fabric.existing().expect("existing");
    assert_eq!(existing.len(), 1, "{existing:?}");
    assert_eq!(
        (existing[0].name.as_str(), existing[0].lease),
        ("db", lease(3))
    );
    assert_eq!(existing[0].paths, db);
    assert!(!runtime.0.join("netns/stray").exists());
    fabric
        .add_domain("half", &lease(5))
        .expect("the address is free again");

    fabric
        .write_hosts(&[("db", ip(3).into()), ("half", ip(5).into())], None)
        .expect("hosts");
    let hosts = std::fs::read_to_string(&db.hosts_path).expect("hosts");
    assert!(hosts.ends_with("10.77.0.3 db\n10.77.0.5 half\n"), "{hosts}");
    fabric
        .write_hosts(&[("db", ip(3).into())], None)
        .expect("hosts");
    let hosts = std::fs::read_to_string(&db.hosts_path).expect("hosts");
    assert!(hosts.ends_with("10.77.0.3 db\n"), "{hosts}");

    fabric.remove_domain("half", ip(5)).expect("remove");
    let gone = fabric.remove_domain("half", ip(5)).expect_err("twice");
    assert!(matches!(gone, FabricError::NotFound(_)), "{gone}");
    fabric.teardown().expect("teardown");
    assert!(!runtime.0.join("netns").exists() && !runtime.0.join("hosts").exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(
        !mounts.contains(runtime.0.to_str().expect("path")),
        "a mount is left"
    );
}

/// A datagram by IPv4, from its Ethernet header on, without UDP's checksum.
fn datagram(source_mac: [u8; 6], source: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let [a, b, c, d] = to.octets();
    let mut frame = vec![0x02, 0x46, a, b, c, d];
    frame.extend(source_mac);
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(source.octets());
    frame.extend(to.octets());
    let words = frame[14..34].chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    for word in [1, port, 12, 0] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(b"here");
    frame
}

/// A request of ARP for `to`.
fn arp(source_mac: [u8; 6], sender_mac: [u8; 6], sender: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(source_mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(sender_mac);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(to.octets());
    frame
}

fn spoofed_now(fabric: &Fabric, device: &str) -> u64 {
    fabric.spoofed_frames(device).expect("a counter")
}

/// The end of a port that nobody has. A child that another test forks has a copy of ours until it executes.
fn opened(port: &DriverPort) -> OwnedFd {
    let began = Instant::now();
    loop {
        match port.open() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                assert!(began.elapsed().as_secs() < 60, "the port stays busy");
                std::thread::yield_now();
            }
            opened => return opened.expect("the port"),
        }
    }
}

#[test]
fn a_drivers_port_outlives_the_driver_and_cannot_lie() {
    let Some(runtime) = Runtime::new("tap") else {
        return;
    };
    let fabric = Fabric::ensure(&runtime.0).expect("fabric");
    let db = fabric.add_domain("db", &lease(3)).expect("db");
    let (own, other) = (lease(6), lease(7));
    let paths = fabric.add_domain_with_driver("st", &own).expect("st");
    assert!(paths.has_driver && !db.has_driver);
    let listener = inside(&db.netns_path, || UdpSocket::bind((ip(3), 9))).expect("bind");
    listener
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a bound");
    let heard = || {
        let from = listener.recv_from(&mut [0; 16]).map(|(_, from)| from.ip());
        assert!(
            from.as_ref().is_ok_and(|from| *from == own.ip) || from.is_err(),
            "{from:?}"
        );
        from.is_ok()
    };
    let port = fabric.driver_port("st", &own);
    let device = port_of(own.ip);
    let spoofed = || fabric.spoofed_frames(&device).expect("a counter");
    for round in 0..2 {
        // Whoever had the port before is gone; one at a time has it.
        let end = FrameFile::of_tap(opened(&port));
        let busy = port.open().expect_err("two have the port");
        assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
        let send = |frame: &[u8]| end.send(frame, FrameNotes::default()).expect("sent");
        let before = spoofed();
        let forged = [
            datagram(own.mac(), other.ip, ip(3), 9),
            datagram(own.mac(), other.ip, Ipv4Addr::new(239, 1, 2, 3), 9),
            datagram(other.mac(), own.ip, ip(3), 9),
            datagram(other.mac(), other.ip, ip(3), 9),
            arp(own.mac(), own.mac(), other.ip, ip(3)),
            arp(own.mac(), other.mac(), own.ip, ip(3)),
            arp(other.mac(), own.mac(), own.ip, ip(3)),
        ];
        forged.iter().for_each(|frame| send(frame));
        assert_eq!(spoofed() - before, forged.len() as u64, "round {round}");
        // What is true passes, and what is for it arrives. What others flood the CPU's queue with may push a frame out of it.
        let answered = || {
            let mut frame = vec![0; FRAME_BYTES_MAX];
            let bound = rustix::event::Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let mut waited = [PollFd::new(&end, PollFlags::IN)];
            let count = poll(&mut waited, Some(&bound)).expect("poll");
            let got = end.receive(&mut frame).expect("read");
            assert!(count == 0 || got.is_some_and(|_| frame[12..14] == [8, 6]));
            got.is_some()
        };
        let passes = (0..10).any(|_| {
            send(&arp(own.mac(), own.mac(), own.ip, ip(3)));
            send(&datagram(own.mac(), own.ip, ip(3), 9));
            heard() && answered()
        });
        assert!(passes, "round {round}");
        assert_eq!(spoofed() - before, forged.len() as u64, "round {round}");
    }
    drop(fabric);
    let fabric = Fabric::ensure(&runtime.0).expect("again");
    let existing = fabric.existing().expect("existing");
    let st = existing.iter().find(|domain| domain.name == "st");
    assert_eq!(st.map(|st| (st.lease, &st.paths)), Some((own, &paths)));
    // Made anew, it is another one: who had its end has nothing.
    let is_dead = |end: &FrameFile| {
        let gone = end.send(&[0; 64], FrameNotes::default());
        assert_eq!(gone.expect_err("a port").raw_os_error(), Some(libc::EBADFD));
    };
    let end = FrameFile::of_tap(opened(&port));
    port.remake().expect("made anew");
    is_dead(&end);
    let end = FrameFile::of_tap(opened(&port));
    let sent = arp(own.mac(), own.mac(), other.ip, ip(3));
    let before = spoofed_now(&fabric, &device);
    end.send(&sent, FrameNotes::default()).expect("sent");
    assert_eq!(
        spoofed_now(&fabric, &device),
        before + 1,
        "without a filter"
    );
    // A broker that dies while it does so leaves the rest to the next one.
    let noted = runtime.0.join("netns/.port.st");
    let alias = format!("0: {device}: alias st/{}", own.prefix);
    std::fs::write(&noted, alias).expect("noted");
    let delete = |device: &str| {
        let deleted = inside(&runtime.0.join("netns/.fabric"), || {
            let mut ip = std::process::Command::new("ip");
            ip.args(["link", "del", "dev", device]).status()
        });
        assert!(deleted.expect("ip").success());
    };
    delete(&device);
    is_dead(&end);
    drop(end);
    // Where that cannot be, as another device has the name that cannot go, domain and note stay for the next time.
    let altname = |verb: &str| {
        inside(&runtime.0.join("netns/.fabric"), || {
            let mut ip = std::process::Command::new("ip");
            ip.args(["link", "property", verb, "dev", "lo", "altname", &device])
                .status()
        })
    };
    assert!(altname("add").expect("ip").success());
    for _ in 0..2 {
        let existing = fabric.existing().expect("existing");
        let st = existing.iter().find(|domain| domain.name == "st");
        let st = st.expect("it stays");
        assert_eq!((st.lease, &st.paths), (own, &paths));
        assert!(st.unfinished.is_some() && port.is_unfinished());
        assert!(port.remake().is_err() && port.is_unfinished());
    }
    assert!(altname("del").expect("ip").success());
    let existing = fabric.existing().expect("existing");
    assert!(existing.iter().all(|domain| domain.unfinished.is_none()));
    assert!(!port.is_unfinished());
    let st = existing.iter().find(|domain| domain.name == "st");
    assert_eq!(st.map(|st| (st.lease, &st.paths)), Some((own, &paths)));
    assert_eq!(std::fs::read(&noted).expect("a file"), b"");
    // One whose port is not there goes with all that the filter knows of it.
    let left = lease(7);
    fabric.add_domain_with_driver("left", &left).expect("left");
    let its = port_of(left.ip);
    let alias = format!("0: {its}: alias left/{}", left.prefix);
    std::fs::write(runtime.0.join("netns/.port.left"), alias).expect("noted");
    delete(&its);
    fabric.remove_domain("left", left.ip).expect("removed");
    assert!(fabric.spoofed_frames(&its).is_err());
    // With its end in somebody's hands it goes all the same.
    let end = FrameFile::of_tap(opened(&port));
    fabric.remove_domain("st", own.ip).expect("removed");
    assert!(!fabric.has_device(&device) && fabric.spoofed_frames(&device).is_err());
    let gone = end
        .send(&[0; 64], FrameNotes::default())
        .expect_err("a port");
    assert_eq!(gone.raw_os_error(), Some(libc::EBADFD));
    fabric.teardown().expect("teardown");
}

/// A packet of IPv6 from a domain to all nodes, from its Ethernet header on. The bridge looks at no checksum.
fn to_all_nodes(own: &Lease, source: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(own.mac());
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next_header, 255]);
    frame.extend(source.octets());
    frame.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
    frame.extend(payload);
    frame
}

/// No domain is the router of another one, nor sends it elsewhere (RFC 4861): whichever way it says so.
#[test]
fn no_domain_advertises_a_router() {
    let Some(runtime) = Runtime::new("ra") else {
        return;
    };
    if !has_ipv6() {
        fordway_test_skip::skipped("the kernel has IPv6 off");
        return;
    }
    let fabric = Fabric::ensure(&runtime.0).expect("fabric");
    let (own, other) = (with_six(8), with_six(9));
    let near = fabric.add_domain("near", &with_six(3)).expect("near");
    fabric.add_domain_with_driver("st", &own).expect("st");
    let end = FrameFile::of_tap(opened(&fabric.driver_port("st", &own)));
    let device = port_of(own.ip);
    let counted = |frames: &[Vec<u8>]| {
        let before = spoofed_now(&fabric, &device);
        for frame in frames {
            end.send(frame, FrameNotes::default()).expect("sent");
        }
        spoofed_now(&fabric, &device) - before
    };
    let mut word = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    word.extend(own.mac());
    let prefix: Ipv6Addr = "2001:db8::".parse().expect("an address");
    word.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    word.extend(prefix.octets());
    let redirect = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32]].concat();
    let behind = |header: &[u8]| [header, &word].concat();
    let source = own.link_local();
    let forged = [
        to_all_nodes(&own, source, 58, &word),
        to_all_nodes(&own, other.link_local(), 58, &word),
        to_all_nodes(&own, source, 58, &redirect),
        // Behind options for all routers, and for the receiver; in fragments.
        to_all_nodes(&own, source, 0, &behind(&[58, 0, 1, 4, 0, 0, 0, 0])),
        to_all_nodes(&own, source, 60, &behind(&[58, 0, 1, 4, 0, 0, 0, 0])),
        to_all_nodes(&own, source, 44, &behind(&[58, 0, 0, 1, 0, 0, 0, 9])),
        // To a group, from another's address.
        to_all_nodes(&own, other.link_local(), 17, &[0, 9, 0, 9, 0, 8, 0, 0]),
        // The header that it is behind is in the next fragment.
        to_all_nodes(
            &own,
            source,
            44,
            &[60, 0, 0, 1, 0, 0, 0, 9, 58, 0, 1, 4, 0, 0, 0, 0],
        ),
    ];
    assert_eq!(counted(&forged), forged.len() as u64);
    // What any host says without a lie, and nobody needs, goes uncounted: a question to routers, a report of groups.
    let quiet = [
        to_all_nodes(&own, source, 58, &[133, 0, 0, 0, 0, 0, 0, 0]),
        to_all_nodes(
            &own,
            source,
            0,
            &[58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0],
        ),
    ];
    assert_eq!(counted(&quiet), 0);
    assert_eq!(
        ip_in(&near.netns_path, "-6 route show default proto ra"),
        ""
    );
    drop(end);
    fabric.teardown().expect("teardown");
}

/// A namespace that others made joins for AF_VSOCK alone, and speaks as nobody but its CID.
#[test]
fn who_has_joined_speaks_as_its_cid_alone() {
    let Some(runtime) = Runtime::new("joined") else {
        return;
    };
    if !has_ipv6() {
        fordway_test_skip::skipped("the kernel has IPv6 off");
        return;
    }
    let fabric = Fabric::ensure(&runtime.0).expect("fabric");
    let mut others = std::process::Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up; echo up; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut said = [0; 3];
    let stdout = others.stdout.as_mut().expect("stdout");
    stdout.read_exact(&mut said).expect("up");
    let pid = others.id() as i32;
    let file = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let within = |words: &str| ip_in(&file, words);

    let early = fabric.add_domain("early", &with_six(3)).expect("early");
    let lease = Lease::joined(Ipv4Addr::new(10, 88, 0, 5));
    fabric.join("box", &lease, pid).expect("join");
    let late = fabric.add_domain("late", &with_six(4)).expect("late");
    let of = |lease: &Lease| vsock::address_of(lease.cid().expect("a CID"));
    let own = of(&lease);
    for (domain, its) in [(&early, with_six(3)), (&late, with_six(4))] {
        await_six(&domain.netns_path, of(&its));
    }
    await_six(&file, own);
    let names: Vec<String> = fabric
        .existing()
        .expect("existing")
        .into_iter()
        .map(|domain| domain.name)
        .collect();
    assert_eq!(names, ["early", "late"], "it is no domain of the fabric");

    let taker_in = |domain: &Path, ip: IpAddr| {
        let taker = inside(domain, || UdpSocket::bind((ip, 9)).expect("bind"));
        let wait = Some(Duration::from_millis(200));
        taker.set_read_timeout(wait).expect("timeout");
        taker
    };
    let taker_at = |ip| taker_in(&early.netns_path, ip);
    let send = |from: IpAddr, to: &UdpSocket| {
        let to = to.local_addr().expect("name");
        inside(&file, || {
            let socket = UdpSocket::bind((from, 0)).expect("bind");
            // What has no way fails at once.
            let _ = socket.send_to(b"hello", to);
        });
    };
    let comes = |taker: &UdpSocket| taker.recv_from(&mut [0; 8]).ok().map(|(_, from)| from.ip());
    let (four, six) = (taker_at(ip(3).into()), taker_at(of(&with_six(3)).into()));
    send(own.into(), &six);
    assert_eq!(comes(&six), Some(own.into()));
    let later = taker_in(&late.netns_path, of(&with_six(4)).into());
    send(own.into(), &later);
    assert_eq!(comes(&later), Some(own.into()));
    let dropped = || fabric.spoofed_frames("v-0a580005").expect("counter");
    let before = dropped();
    within("addr add 10.77.0.9/24 dev fordway0");
    send(ip(9).into(), &four);
    let liar = vsock::address_of(9);
    within(&format!("addr add {liar}/64 dev fordway0 nodad"));
    send(liar.into(), &six);
    assert_eq!((comes(&four), comes(&six)), (None, None));
    assert!(dropped() > before);
    // What is bound to CID 1 is reached by nobody else, whatever his root does.
    let local = vsock::address_of(vsock::CID_LOCAL);
    let taker = taker_at(local.into());
    within(&format!("addr del {local}/128 dev lo"));
    let (mac, before) = ("02:46:0a:4d:00:03", dropped());
    within(&format!(
        "neigh add {local} lladdr {mac} dev fordway0 nud permanent"
    ));
    send(own.into(), &taker);
    assert_eq!(comes(&taker), None);
    assert!(dropped() > before, "it was not sent");

    // Nor is another address of its namespace, by whoever sends to its MAC past the leader.
    let other = "fd99::5";
    within(&format!("addr add {other}/128 dev lo nodad"));
    let taker = taker_in(&file, other.parse().expect("an address"));
    let target = taker.local_addr().expect("name");
    for words in [
        format!("neigh add {other} lladdr 02:46:0a:58:00:05 dev eth0 nud permanent"),
        format!("route add {other}/128 dev eth0"),
    ] {
        ip_in(&early.netns_path, &format!("-6 {words}"));
    }
    let sent = inside(&early.netns_path, || {
        let socket = UdpSocket::bind((of(&with_six(3)), 0)).expect("bind");
        socket.send_to(b"hello", target)
    });
    assert_eq!((sent.expect("sent"), comes(&taker)), (5, None));

    fabric.part(&lease).expect("part");
    assert!(!within("-o link").contains("fordway0"));
    drop(others.stdin.take());
    others.wait().expect("wait");
}
