//! Linux as the router of the stack's link: it advertises (radvd), forwards to a narrower link,
//! and has the address that the stack would take.
#![cfg(feature = "autoconf")]

#[path = "common/bench.rs"]
#[allow(dead_code)]
mod bench;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};

use bench::{Bench, MAC, OURS, OURS_V6, PATIENCE};
use fordway_netstack::{AddressState, Cidr, Ipv6Options, Route, Stack};
use fordway_platform::netns;

/// A network behind the router, and its narrow link's MTU.
const FAR_V4: &str = "10.78.0.2";
const FAR_V6: &str = "fd78::2";
const NARROW: usize = 1300;

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {words}");
}

fn sysctl(name: &str, value: &str) {
    let file = format!("/proc/sys/net/{name}");
    std::fs::write(&file, value).unwrap_or_else(|error| panic!("{file}: {error}"));
}

fn link_local() -> Ipv6Addr {
    match Cidr::link_local(&MAC).address {
        IpAddr::V6(six) => six,
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
    }
}

/// Runs the stack until the condition holds.
fn until(bench: &mut Bench, mut is_done: impl FnMut(&mut Stack, u64) -> bool) {
    let (told, tells) = std::sync::mpsc::channel();
    bench.run(
        |stack, now| {
            while stack.event().is_some() {}
            if is_done(stack, now) {
                let _ = told.send(());
            }
        },
        move || tells.recv_timeout(2 * PATIENCE).expect("it comes to pass"),
    );
}

fn ping(bench: &mut Bench, to: &str) {
    bench.run(
        |stack, _| while stack.event().is_some() {},
        || {
            let done = Command::new("ping")
                .args(["-c", "3", "-i", "0.1", "-W", "5", to])
                .output();
            let said = String::from_utf8_lossy(&done.expect("ping runs").stdout).into_owned();
            assert!(said.contains(" 0% packet loss"), "{said}");
        },
    );
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn radvd_gives_an_address_a_way_and_the_link_s_size() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let directory = std::env::temp_dir().join(format!("fordway-radvd-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let config = directory.join("radvd.conf");
    let text = "interface tap0 {\n\
        AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4;\n\
        AdvLinkMTU 1400; AdvCurHopLimit 50; AdvDefaultLifetime 1800;\n\
        prefix 2001:db8:77:1::/64 { AdvOnLink on; AdvAutonomous on;\n\
        AdvValidLifetime 3600; AdvPreferredLifetime 1800; };\n};\n";
    std::fs::write(&config, text).expect("a file");
    let started = netns::within(bench.namespace.as_fd(), || {
        sysctl("ipv6/conf/all/forwarding", "1");
        ip("address add 2001:db8:77:1::1/64 dev tap0 nodad");
        ip("address add 2001:db8:77:2::1/128 dev lo");
        Command::new("radvd")
            .args(["-n", "-m", "stderr", "-C"])
            .arg(&config)
            .arg("-p")
            .arg(directory.join("pid"))
            .stderr(Stdio::null())
            .spawn()
    });
    let radvd = match started.expect("the namespace is there") {
        Ok(child) => Killed(child),
        Err(error) => return fordway_test_skip::skipped(format_args!("radvd: {error}")),
    };
    bench.stack.set_addresses(&[]);
    bench.stack.ipv6_start(0, Ipv6Options::default());
    let network = Cidr::new("2001:db8:77:1::".parse().expect("an address"), 64);
    let mut made = None;
    until(&mut bench, |stack, _| {
        made = stack
            .addresses()
            .iter()
            .map(|own| own.address)
            .find(|a| network.contains(a));
        made.is_some()
    });
    let made = made.expect("an address");
    let far: IpAddr = "2001:db8:77:2::1".parse().expect("an address");
    assert_eq!(bench.stack.ipv6_routers().len(), 1);
    assert_eq!(bench.stack.path_mtu(&far), 1400);
    // By the default router, and from the kernel to the address that was made.
    let mut is_asked = false;
    until(&mut bench, |stack, _| {
        if !is_asked {
            is_asked = stack.ping(far, 7, 1, &[1; 2000]).is_ok();
        }
        stack.ping_reply().is_some_and(|reply| reply.from == far)
    });
    ping(&mut bench, &made.to_string());
    // radvd says farewell: there is no router any more, the address stays.
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&radvd.0),
        rustix::process::Signal::TERM,
    );
    until(&mut bench, |stack, _| stack.ipv6_routers().is_empty());
    assert!(
        bench
            .stack
            .addresses()
            .iter()
            .any(|own| own.address == made)
    );
    drop(radvd);
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn an_address_that_linux_has_is_not_taken() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let own = link_local();
    netns::within(bench.namespace.as_fd(), || {
        ip(&format!("address add {own}/64 dev tap0 nodad"));
    })
    .expect("the namespace is there");
    bench.stack.set_addresses(&[]);
    bench.stack.ipv6_start(0, Ipv6Options::default());
    until(&mut bench, |stack, _| {
        let mut all = stack.ipv6_addresses();
        all.any(|(_, state)| state == AddressState::Duplicate)
    });
    assert!(bench.stack.addresses().is_empty());
}

#[test]
fn linux_does_not_take_an_address_that_is_ours() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let namespace = bench.namespace.try_clone().expect("a descriptor");
    bench
        .run(
            |stack, _| while stack.event().is_some() {},
            || {
                netns::within(namespace.as_fd(), || {
                    sysctl("ipv6/conf/tap0/accept_dad", "1");
                    ip(&format!("address add {OURS_V6}/64 dev tap0"));
                    let start = std::time::Instant::now();
                    loop {
                        let done = Command::new("ip").args(["-6", "address"]).output();
                        let said = done.expect("ip runs").stdout;
                        if String::from_utf8_lossy(&said).contains("dadfailed") {
                            break;
                        }
                        assert!(start.elapsed() < PATIENCE, "it is taken");
                    }
                })
            },
        )
        .expect("the namespace is there");
}

#[test]
fn a_narrow_link_behind_linux_is_learned_of() {
    let Some(mut bench) = Bench::new(false) else {
        return;
    };
    let far = netns::anonymous().expect("a namespace");
    let path = format!("/proc/{}/fd/{}", std::process::id(), far.as_raw_fd());
    netns::within(bench.namespace.as_fd(), || {
        sysctl("ipv4/ip_forward", "1");
        sysctl("ipv6/conf/all/forwarding", "1");
        ip(&format!(
            "link add veth0 mtu {NARROW} type veth peer name veth1 mtu {NARROW}"
        ));
        ip(&format!("link set veth1 netns {path}"));
        ip("address add 10.78.0.1/24 dev veth0");
        ip("address add fd78::1/64 dev veth0 nodad");
        ip("link set veth0 up");
    })
    .expect("the namespace is there");
    let sockets = netns::within(far.as_fd(), || {
        ip("address add 10.78.0.2/24 dev veth1");
        ip("address add fd78::2/64 dev veth1 nodad");
        ip("link set veth1 up");
        ip("route add default via 10.78.0.1");
        ip("-6 route add default via fd78::1");
        ["10.78.0.2:9", "[fd78::2]:9"].map(|name| {
            let socket = UdpSocket::bind(name).expect("binds");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            socket
        })
    })
    .expect("the namespace is there");
    let route = |network: &str, len: u8, gateway: &str| Route {
        destination: Cidr::new(network.parse().expect("an address"), len),
        gateway: gateway.parse().expect("an address"),
    };
    bench.stack.set_routes(&[
        route("10.78.0.0", 24, "10.77.0.1"),
        route("fd78::", 64, "fd77::1"),
    ]);
    let id = bench.stack.udp_bind(None, 1000).expect("binds");
    for (socket, name, own) in [
        (&sockets[0], FAR_V4, IpAddr::V4(OURS)),
        (&sockets[1], FAR_V6, IpAddr::V6(OURS_V6)),
    ] {
        let to: IpAddr = name.parse().expect("an address");
        let to = SocketAddr::new(to, 9);
        // The first is too large for the narrow link, and its sender hears of it.
        // Again until the kernel forwards, which it does some time after it was told to.
        let mut next_at = 0;
        until(&mut bench, |stack, now| {
            if now >= next_at {
                next_at = now + 50_000;
                stack.udp_send(id, to, &[1; 1400]).expect("sends");
            }
            stack.path_mtu(&to.ip()) == NARROW
        });
        let mut is_sent = false;
        let (len, from) = bench.run(
            |stack, _| {
                while stack.event().is_some() {}
                if !is_sent {
                    is_sent = stack.udp_send(id, to, &[2; 1400]).is_ok();
                }
            },
            || socket.recv_from(&mut [0; 2000]).expect("it comes through"),
        );
        assert_eq!((len, from), (1400, SocketAddr::new(own, 1000)));
    }
}
