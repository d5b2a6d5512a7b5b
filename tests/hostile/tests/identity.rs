//! Who is who: sockets, names, addresses and process numbers of others.

use anyhow::{Context, Result, ensure};
use fordway_abi::control as wire;
use fordway_abi::reason::Reason;
use fordway_test_hostile::child::{self, Role};
use fordway_test_hostile::mallory::{Mallory, by_kernel, hello};
use fordway_test_hostile::{Bed, PrivateNamespace, Shim, Style, connect_as, is_root, stop_process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const HONEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 12);
const MALLORY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 13);
/// How long a handshake that must not come about is waited for: some retransmissions.
const NO_HANDSHAKE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

#[test]
fn child() -> Result<()> {
    child::run()
}

/// The connected TCP sockets of a process, as if it had passed them.
fn sockets_of(pid: u32) -> Result<Vec<OwnedFd>> {
    let process = Pid::from_raw(pid as i32).context("pid")?;
    let pidfd = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let number = entry?.file_name().to_string_lossy().parse()?;
        let flags = PidfdGetfdFlags::empty();
        let Ok(fd) = rustix::process::pidfd_getfd(&pidfd, number, flags) else {
            continue;
        };
        let tcp = sockopt::socket_protocol(&fd) == Ok(Some(rustix::net::ipproto::TCP));
        if tcp && rustix::net::getpeername(&fd).is_ok_and(|name| name.is_some()) {
            sockets.push(fd);
        }
    }
    Ok(sockets)
}

fn refused(shim: &Shim, reason: Reason, pending: u32) -> Result<()> {
    let reject: wire::Reject = shim.expect();
    let told = Reason::from_u32(reject.reason);
    ensure!(
        told == Some(reason) && reject.pending == pending,
        "{reject:?}"
    );
    Ok(())
}

/// Sockets of the neighbours and of the victim, which go by rings. He gets none of theirs.
#[test]
fn sockets_of_others_are_refused() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    let mut pids = bed.neighbours()?;
    pids.push(bed.victim.pid()?);
    bed.case("sockets of others", |bed| {
        let (shim, _page) = hello(&bed.lab.runtime_dir())?;
        let mut count = 0;
        for pid in pids {
            for socket in sockets_of(pid)? {
                shim.offer(100 + count, &socket);
                refused(&shim, Reason::Shared, 0)?;
                count += 1;
            }
        }
        println!("sockets of others: {count} offered, {count} refused");
        // One of each neighbour, and the victim's end of one of them.
        ensure!(count == 3, "{count} sockets");
        shim.expect_silence();
        Ok(())
    })?;
    bed.finish()
}

/// What is no end of a connection is refused, and costs nobody anything.
#[test]
fn sockets_that_are_no_connections() -> Result<()> {
    let mut bed = Bed::start(Style::Threads)?;
    bed.case("no connections", |bed| {
        let tcp = || rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let bound = tcp()?;
        rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let connecting = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK,
            None,
        )?;
        // TEST-NET-1 (RFC 5737): nobody answers.
        let _ = rustix::net::connect(&connecting, &SocketAddr::from(([192, 0, 2, 1], 9)));
        let (unix, _far) = std::os::unix::net::UnixStream::pair()?;
        let mut mallory = Mallory::join(bed)?;
        let none: [(&str, OwnedFd); 8] = [
            ("new", tcp()?),
            ("bound", bound),
            ("listening", TcpListener::bind("127.0.0.1:0")?.into()),
            ("connecting", connecting),
            ("UDP", UdpSocket::bind("127.0.0.1:0")?.into()),
            ("UNIX", unix.into()),
            (
                "netlink",
                rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?,
            ),
            ("the broker's own", rustix::io::dup(&mallory.shim.socket)?),
        ];
        for (what, socket) in &none {
            mallory.shim.offer(50, socket);
            refused(&mallory.shim, Reason::NoPeer, 0).with_context(|| (*what).to_owned())?;
            mallory.echo(10)?;
        }
        println!("no connections: {} refused", none.len());
        Ok(())
    })?;
    bed.finish()
}

/// The names of a connection between the victim and somebody honest, both ends, in a
/// namespace of mallory's own.
#[test]
fn the_victims_names_in_a_private_namespace() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut bed = Bed::start(Style::Epoll)?;
    let name = bed.victim.name;
    bed.case("mirrored names", |bed| {
        // Honest, and without the library yet: the victim's offer waits for the other end.
        let mut honest = bed.in_domain("honest", || TcpStream::connect(name))??;
        by_kernel(&mut honest)?;
        let names = [honest.local_addr()?, name];
        let private = PrivateNamespace::new(&bed.lab.work_dir(), &[HONEST, VICTIM]);
        let (client, server) = private.within(|| connect_as(names[0], names[1]));
        let (thief, _page) = private.within(|| hello(&bed.lab.runtime_dir()))?;
        // As the far end of the victim's; then with himself, for the addresses are others'.
        thief.offer(1, &client);
        refused(&thief, Reason::Unassigned, 1)?;
        thief.offer(2, &server);
        refused(&thief, Reason::Unassigned, 1)?;
        thief.expect_silence();
        by_kernel(&mut honest)?;
        // The true end finds its partner all the same.
        let asked = fordway_test_hostile::mallory::Asked::start(&bed.lab.runtime_dir(), honest)?;
        thief.expect_silence();
        println!("mirrored names: 2 offered, 0 paired, the true end paired");
        drop(asked);
        Ok(())
    })?;
    bed.finish()
}

/// Removes an address again.
struct Address<'a>(&'a Bed, Vec<String>);

impl<'a> Address<'a> {
    fn add(bed: &'a Bed, ip: Ipv4Addr, device: &str) -> Result<Self> {
        let words = [format!("{ip}/32"), "dev".to_owned(), device.to_owned()];
        let address = Self(bed, words.to_vec());
        ensure!(address.ip("add")?, "ip address add");
        Ok(address)
    }

    fn ip(&self, verb: &str) -> Result<bool> {
        let mut command = Command::new("ip");
        command.args(["address", verb]).args(&self.1);
        Ok(self.0.at_home(|| command.status())??.success())
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        let _ = self.ip("del");
    }
}

/// He takes the address of somebody honest, and of the victim, in his own domain.
#[test]
fn addresses_of_others_on_his_own_interface() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut bed = Bed::start(Style::Epoll)?;
    let name = bed.victim.name;
    bed.case("addresses of others", |bed| {
        let shown = bed.at_home(|| Command::new("ip").args(["-o", "-4", "address"]).output())??;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let own = shown.lines().find(|line| line.contains(&MALLORY.to_string()));
        let device = own.and_then(|line| line.split_whitespace().nth(1));
        let device = device.context("mallory has no interface")?;
        let _honest = Address::add(bed, HONEST, device)?;
        let connected = bed.at_home(|| -> Result<usize> {
            let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM,
                SocketFlags::NONBLOCK, None)?;
            rustix::net::bind(&socket, &SocketAddr::from((HONEST, 0)))?;
            let _ = rustix::net::connect(&socket, &name);
            let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
            Ok(poll(&mut polled, Some(&NO_HANDSHAKE))?)
        })??;
        ensure!(connected == 0, "the switch let him through");
        // A victim of his own making, at the victim's address, and himself at his own.
        let _victim = Address::add(bed, VICTIM, "lo")?;
        let own = SocketAddr::from((IpAddr::V4(MALLORY), 40_000));
        let (client, server) = bed.at_home(|| connect_as(own, name))?;
        let (shim, _page) = hello(&bed.lab.runtime_dir())?;
        // From his own address to the victim's: as if the victim could offer the other end.
        shim.offer(1, &client);
        shim.expect_silence();
        // It mirrors the first, and its address is not his.
        shim.offer(2, &server);
        refused(&shim, Reason::Unassigned, 1)?;
        shim.expect_silence();
        let paired = bed.lab.connections()?.iter().filter(|end| {
            end.local == own.to_string() && end.channel.is_some()
        }).count();
        println!("addresses of others: 1 handshake tried, {connected} through, 2 ends offered, {paired} paired");
        ensure!(paired == 0, "{paired} paired");
        Ok(())
    })?;
    bed.finish()
}

/// A process ends after it has connected, and leaves its connections to an heir; another one
/// gets its number before the broker has looked.
#[test]
fn a_process_number_is_used_again() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut bed = Bed::start(Style::Epoll)?;
    bed.case("a process number used again", |bed| {
        let before = bed.lab.info()?.processes;
        let mut first = child::start(bed, Role::Bequeath)?;
        first.says("joined")?;
        let ends = bed.lab.connections()?;
        let mut ends = ends
            .iter()
            .filter(|end| end.domain == "mallory" && end.channel.is_some());
        let cookie = ends.next().context("the first one's end")?.cookie.clone();
        let heir: i32 = first.says("heir")?.parse()?;
        let pid = first.pid();
        let broker = Pid::from_raw(bed.lab.broker_pid()? as i32).context("pid")?;
        stop_process(broker);
        first.go_on()?;
        first.wait()?;
        let second = child::start_as(bed, Role::Echo, pid);
        kill_process(broker, Signal::CONT)?;
        let mut second = second?;
        second.says("echoed")?;
        let info = bed.lab.info()?;
        ensure!(info.processes == before + 1, "{} processes", info.processes);
        let others = bed.lab.connections()?;
        let dead = others
            .iter()
            .filter(|end| end.cookie == cookie && end.channel.is_some());
        println!(
            "a process number used again: {pid} twice, {} ends of the first one left",
            dead.count()
        );
        second.go_on()?;
        second.says("echoed again")?;
        second.go_on()?;
        second.end()?;
        let heir = Pid::from_raw(heir).context("heir")?;
        kill_process(heir, Signal::KILL)?;
        // We are the one that orphans are given to.
        rustix::process::waitpid(Some(heir), rustix::process::WaitOptions::empty())?;
        bed.wait_for("sees both go", || bed.all_ends() == bed.made())?;
        Ok(())
    })?;
    bed.finish()
}
