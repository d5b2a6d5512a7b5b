//! Two Linux guests carry messages over granted pages: the program of the case `guests` of tests/xen.
//!
//! The same program runs in both. dom0 writes into each guest's node `data/pair` what it is ("server" or "client") and
//! the other's domain id; they find each other through nodes that the other may read. The scenes follow each other in
//! one order in both guests:
//!
//! ```text
//!   link ─► messages over rings, then TCP ─► hostile trials ─► ends by SIGKILL ─► limit ─► what else is so
//!        ─► dom0 destroys the server, and the client goes on
//! ```
//!
//! Lines `FIGURE SUBJECT KEY VALUE` are figures, `FACT` what was found out, `ok` a trial; the last one begins
//! with `pair:`. With the word "measure" behind the other's domain id, figures are taken instead ([`measure`]).

mod measure;
mod vchan;

use fordway_ring::copy::Copier;
use fordway_xen_user::{
    Access, Channel, Domain, Doorbell, Error, EventChannel, Granted, Mapped, OwnRegion, PAGE_SIZE,
    PeerRegion, Reference, Store, Wanted,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::error::Error as Fault;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Fault>>;

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(20);
const TCP: (&str, u16) = ("10.0.0.8", 7000);
/// Of an event channel: one in four sleeps opens them again.
const PORTS: usize = 5;
const MESSAGE_BYTES: usize = 512 << 10;
/// A ring of 64 KB, and the one of 1 MB that it grows to.
const ARENA_BYTES: usize = (64 << 10) + (1 << 20);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["victim"] => Guest::here("victim").and_then(|mut guest| guest.victim()),
        ["helper", what] => helper(what),
        ["vchan", copy] => Guest::here(copy).and_then(|mut guest| measure::vchan(&mut guest)),
        _ => Guest::here("main").and_then(|mut guest| match guest.measures {
            true => measure::all(&mut guest),
            false => guest.all(),
        }),
    };
    match outcome {
        Ok(()) => println!("pair: done"),
        Err(error) => {
            println!("pair: FAILED: {error}");
            std::process::exit(1);
        }
    }
}

/// A name in this guest's nodes, with a number for each use of it.
struct Guest {
    store: Store,
    is_server: bool,
    peer: Domain,
    steps: u32,
    /// Of this process or thread: it has nodes of its own.
    name: String,
    /// Whether dom0 wants figures.
    measures: bool,
    /// Of the event channel that was linked last, as its device takes them.
    ports: Vec<u8>,
}

impl Guest {
    /// Who we are, as dom0 says.
    fn here(name: &str) -> Outcome<Self> {
        let mut guest = Self {
            store: Store::open()?,
            is_server: false,
            peer: 0,
            steps: 0,
            name: name.to_owned(),
            measures: false,
            ports: Vec::new(),
        };
        let said = guest.await_node("data/pair")?;
        let words: Vec<&str> = said.split(' ').collect();
        let [role, peer, rest @ ..] = &words[..] else {
            return Err("dom0 says nothing of us".into());
        };
        guest.is_server = *role == "server";
        guest.peer = peer.parse()?;
        guest.measures = rest == ["measure"];
        Ok(guest)
    }

    fn await_node(&mut self, path: &str) -> Outcome<String> {
        self.store.watch(path, "node")?;
        let until = Instant::now() + PATIENCE;
        let value = loop {
            match self.store.read(path) {
                Ok(value) => break value,
                Err(Error::Refused(_)) if Instant::now() < until => {}
                Err(error) => return Err(format!("{path}: {error}").into()),
            }
            self.store.next_event(Duration::from_secs(1))?;
        };
        self.store.unwatch(path, "node")?;
        Ok(value)
    }

    /// Both sides say something, and read what the other says.
    fn exchange(&mut self, mine: &str) -> Outcome<String> {
        self.tell(mine)?;
        self.hear()
    }

    fn node(&self) -> String {
        format!("data/{}-{}", self.name, self.steps)
    }

    fn tell(&mut self, mine: &str) -> Outcome {
        self.steps += 1;
        let node = self.node();
        self.store.write(&node, mine)?;
        let own: Domain = self.store.read("domid")?.parse()?;
        let permissions = [format!("n{own}"), format!("r{}", self.peer)];
        let permissions = permissions.each_ref().map(String::as_str);
        Ok(self.store.set_permissions(&node, &permissions)?)
    }

    fn hear(&mut self) -> Outcome<String> {
        let node = format!("/local/domain/{}/{}", self.peer, self.node());
        self.await_node(&node)
    }

    /// What the other says next, while we say nothing.
    fn hear_next(&mut self) -> Outcome<String> {
        self.steps += 1;
        self.hear()
    }

    fn all(&mut self) -> Outcome {
        let names = self.store.directory("data")?;
        check(names.iter().any(|name| name == "pair"), "data has its node")?;
        let channel = self.link(ARENA_BYTES, None)?;
        println!("ok link");
        self.messages(&mut Ring(&channel), "ring")?;
        println!("FACT ring {} bytes", channel.capacity_bytes());
        self.exchange("rings are done")?;
        let channel = channel.with_copier(Copier::sse2());
        self.messages(&mut Ring(&channel), "ring-sse2")?;
        self.exchange("sse2 is done")?;
        let channel = channel.with_patience(Some(PATIENCE));
        self.messages(&mut Ring(&channel), "ring-bounded")?;
        self.exchange("bounded is done")?;
        let small = self.link(64 << 10, None)?;
        self.messages(&mut Ring(&small), "ring-64k")?;
        self.exchange("64k is done")?;
        drop(small);
        let mut stream = self.tcp(0)?;
        self.messages(&mut stream, "tcp")?;
        self.exchange("tcp is done")?;
        self.hostile(&channel)?;
        self.ends()?;
        self.limit()?;
        self.facts(&channel)?;
        // After all that, it works as before.
        self.echo(&mut Ring(&channel), 1)?;
        println!("ok link at the end");
        self.exchange("done")?;
        if self.is_server {
            println!("pair: done");
            // Holds what it has until the guest is destroyed.
            channel.receive(&mut [0])?;
        } else {
            self.survive(&channel.with_patience(Some(Duration::from_secs(1))))?;
        }
        Ok(())
    }

    /// The other guest is destroyed: nothing of it can say so, but XenStore's daemon.
    fn survive(&mut self, channel: &Channel) -> Outcome {
        let node = format!("/local/domain/{}/{}", self.peer, self.node());
        self.store.watch(&node, "life")?;
        // The first one comes at once.
        for said in ["ready to survive", "ok a watch fires at the other's end"] {
            let until = Instant::now() + PATIENCE;
            while self
                .store
                .next_event(PATIENCE)?
                .is_none_or(|fired| fired.token != "life")
            {
                check(Instant::now() < until, "a watch fires")?;
            }
            println!("{said}");
        }
        let said = self.store.read(&node);
        check(matches!(said, Err(Error::Refused(_))), "its nodes are gone")?;
        println!(
            "FACT destroyed: heard by the doorbell: {}",
            channel.wait_for_end()?
        );
        println!(
            "FACT destroyed: alive by its region: {}",
            channel.peer().is_alive()
        );
        println!(
            "FACT destroyed: a send: {:?}",
            channel.send(&[1]).map_err(|e| e.to_string())
        );
        Ok(())
    }

    /// A region each, a doorbell, a channel. The client maps first, as it is told the port.
    fn link(&mut self, arena: usize, patience: Option<Duration>) -> Outcome<Channel> {
        let own = OwnRegion::new(self.peer, arena)?;
        let (bell, said);
        if self.is_server {
            bell = EventChannel::offer_several(self.peer, PORTS)?;
            let ports: Vec<String> = bell.ports().iter().map(u32::to_string).collect();
            said = self.exchange(&format!("{} {}", own.reference(), ports.join(" ")))?;
        } else {
            said = self.exchange(&own.reference().to_string())?;
            bell = EventChannel::accept_several(self.peer, &numbers(&said)?[1..])?;
        }
        self.ports = bell
            .ports()
            .iter()
            .flat_map(|port| port.to_ne_bytes())
            .collect();
        let peer = PeerRegion::map(self.peer, numbers(&said)?[0])?;
        Ok(Channel::new(own, peer, Doorbell::new(bell), patience)?)
    }

    /// One of some connections.
    fn tcp(&mut self, number: u16) -> Outcome<TcpStream> {
        let (address, port) = TCP;
        let at = (address, port + number);
        let stream = if self.is_server {
            let listener = TcpListener::bind(at)?;
            self.exchange("listens")?;
            listener.accept()?.0
        } else {
            self.exchange("waits")?;
            TcpStream::connect(at)?
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn echo(&self, pipe: &mut dyn Pipe, times: u32) -> Outcome {
        let mut byte = [0];
        for turn in 0..times {
            if !self.is_server {
                pipe.send(&[turn as u8])?;
            }
            pipe.receive(&mut byte)?;
            if self.is_server {
                pipe.send(&byte)?;
            } else {
                check(byte[0] == turn as u8, "the byte that came back")?;
            }
        }
        Ok(())
    }

    /// Verified ones.
    fn messages(&self, pipe: &mut dyn Pipe, subject: &str) -> Outcome {
        let mut buffer = vec![0; MESSAGE_BYTES];
        for turn in 0..8u8 {
            let [question, answer] = [turn, turn + 100].map(content);
            if !self.is_server {
                pipe.send(&question)?;
            }
            pipe.receive(&mut buffer)?;
            let expected = if self.is_server { &question } else { &answer };
            check(buffer == *expected, "512 KB arrive as they were sent")?;
            if self.is_server {
                pipe.send(&answer)?;
            }
        }
        self.echo(pipe, 200)?;
        println!("ok {subject} 8 messages of 512 KB each way");
        Ok(())
    }

    /// What a guest that does not keep to the rules tries, and what Xen says.
    fn hostile(&mut self, channel: &Channel) -> Outcome {
        if self.is_server {
            let good = Granted::new(self.peer, 8, Access::Read)?;
            let both = Granted::new(self.peer, 1, Access::ReadAndWrite)?;
            let foreign = Granted::new(0, 1, Access::ReadAndWrite)?;
            let revoked = Granted::new(self.peer, 1, Access::Read)?;
            let revoked_reference = revoked.references()[0];
            drop(revoked);
            let bell = EventChannel::offer(self.peer)?;
            let other_bell = EventChannel::offer(0)?;
            self.exchange(&format!("{} {}", bell.port(), other_bell.port()))?;
            self.exchange("")?;
            check(bell.wait(Some(PATIENCE))?, "it was rung")?;
            // The first one masks the port, the others leave one that is pending.
            let mut wakes = 1;
            while bell.wait(Some(Duration::from_millis(100)))? {
                wakes += 1;
                check(wakes <= 2, "10,000 rings are two at most")?;
            }
            println!("ok 10,000 rings are {wakes}");
            self.store.write("data/secret", "x")?;
            // As a directory this is none.
            for at in 0..good.bytes() {
                byte(good.start(), at).store(0xa5, Ordering::Relaxed);
            }
            byte(both.start(), 0).store(1, Ordering::Relaxed);
            let mut said = vec![
                foreign.references()[0],
                revoked_reference,
                both.references()[0],
                channel.own().reference(),
            ];
            said.extend(good.references());
            let said: Vec<String> = said.iter().map(u32::to_string).collect();
            self.exchange(&said.join(" "))?;
            // The other tries.
            self.exchange("")?;
            let unchanged =
                (0..good.bytes()).all(|at| byte(good.start(), at).load(Ordering::Relaxed) == 0xa5);
            check(unchanged, "what was granted for reading is unchanged")?;
            check(
                byte(both.start(), 0).load(Ordering::Relaxed) == 2,
                "what was granted for writing was written",
            )?;
            println!("ok unchanged");
            return Ok(());
        }
        let ports = numbers(&self.exchange("")?)?;
        let bell = EventChannel::accept(self.peer, ports[0])?;
        (0..10_000).try_for_each(|_| bell.ring())?;
        for (what, port) in [("taken", ports[0]), ("foreign", ports[1]), ("wrong", 1000)] {
            let accepted = EventChannel::accept(self.peer, port);
            check(accepted.is_err(), &format!("a {what} port is refused"))?;
            println!("ok refused: a {what} port");
        }
        self.exchange("")?;
        let said = numbers(&self.exchange("")?)?;
        let secret = format!("/local/domain/{}/data/secret", self.peer);
        for outcome in [
            self.store.read(&secret).map(drop),
            self.store.write(&secret, "y"),
        ] {
            check(
                matches!(&outcome, Err(Error::Refused(word)) if word == "EACCES"),
                "the other's node is closed to us",
            )?;
        }
        println!("ok refused: the other's node in XenStore");
        let [foreign, revoked, both, region] = [0, 1, 2, 3].map(|at| said[at]);
        let good = &said[4..];
        let domain = self.peer;
        let wanted = |numbers: &[u32]| {
            let references = numbers.iter().map(|&number| Reference { domain, number });
            Wanted::new(references)
        };
        let refused = |what: &str, outcome: Result<Mapped, Error>| match outcome {
            Err(Error::NotGranted) => {
                println!("ok refused: {what}");
                Ok(())
            }
            Err(error) => Err(format!("{what}: {error}")),
            Ok(_) => Err(format!("{what} was mapped")),
        };
        for wrong in [0, 1, 2, 4000, 0xfff_ffff, u32::MAX] {
            refused(&format!("reference {wrong}"), wanted(&[wrong])?.map())?;
        }
        refused("a foreign one", wanted(&[foreign])?.map())?;
        refused(
            "a foreign one, for writing",
            wanted(&[foreign])?.map_writable(),
        )?;
        refused("a revoked one", wanted(&[revoked])?.map())?;
        refused("for writing", wanted(&good[..1])?.map_writable())?;
        refused("a region, for writing", wanted(&[region])?.map_writable())?;
        let mut with_a_wrong_one = good.to_vec();
        with_a_wrong_one[5] = revoked;
        refused("a wrong one among eight", wanted(&with_a_wrong_one)?.map())?;
        let wrong_domain = Reference {
            domain: 999,
            number: good[0],
        };
        refused(
            "of a domain that is not there",
            Wanted::new([wrong_domain].into_iter())?.map(),
        )?;
        let all = wanted(good)?.map()?;
        let right = (0..all.bytes())
            .all(|at| byte(all.start().cast_mut(), at).load(Ordering::Relaxed) == 0xa5);
        check(right, "eight pages are mapped in one piece")?;
        println!("ok eight pages");
        match PeerRegion::map(domain, good[0]) {
            Err(Error::Malformed) => println!("ok refused: a region that is none"),
            other => return Err(format!("a region that is none: {other:?}").into()),
        }
        let writable = wanted(&[both])?.map_writable()?;
        byte(writable.start().cast_mut(), 0).store(2, Ordering::Relaxed);
        // A mapping for reading, made writable afterwards: in a process of its own, as anything may happen to it.
        let mut child = helper_with("mprotect", &[wanted(&good[..1])?.descriptor()])?;
        println!("FACT mprotect {}", ending(&mut child)?);
        self.exchange("")?;
        Ok(())
    }

    /// A process of each side in turn is killed while the other waits for it.
    fn ends(&mut self) -> Outcome {
        for victim_is_server in [true, false] {
            if self.is_server == victim_is_server {
                let mut child = Command::new(std::env::current_exe()?)
                    .arg("victim")
                    .spawn()?;
                // The other has mapped it.
                self.hear_next()?;
                child.kill()?;
                child.wait()?;
                self.hear_next()?;
            } else {
                let mut mourner = Guest::here("victim")?;
                mourner.steps = if victim_is_server { 0 } else { 10 };
                let channel = mourner.link(64 << 10, Some(PATIENCE))?;
                self.echo_with_victim(&channel)?;
                self.tell("is mapped")?;
                check(channel.wait_for_end()?, "the end shows")?;
                println!("ok the end is heard of");
                match channel.receive(&mut [0]) {
                    Err(Error::PeerGone) => println!("ok receive says that the peer is gone"),
                    other => return Err(format!("after the end: {other:?}").into()),
                }
                self.tell("heard")?;
            }
        }
        Ok(())
    }

    fn echo_with_victim(&self, channel: &Channel) -> Outcome {
        channel.send(&[7])?;
        let mut byte = [0];
        channel.receive(&mut byte)?;
        check(byte == [7], "the victim lives")
    }

    /// Answers until it is killed.
    fn victim(&mut self) -> Outcome {
        self.steps = if self.is_server { 0 } else { 10 };
        let channel = self.link(64 << 10, Some(PATIENCE))?;
        let mut byte = [0];
        loop {
            channel.receive(&mut byte)?;
            channel.send(&byte)?;
        }
    }

    /// One side takes all grants that there are.
    fn limit(&mut self) -> Outcome {
        if self.is_server {
            let mut taken = Vec::new();
            let mut pages = 0;
            for each in [64, 1] {
                let error = loop {
                    match Granted::new(self.peer, each, Access::Read) {
                        Ok(granted) => taken.push(granted),
                        Err(error) => break error,
                    }
                    pages += each;
                    check(pages <= 4096, "there is a limit")?;
                };
                let Error::GrantsUsedUp = error else {
                    return Err(format!("the limit: {error}").into());
                };
            }
            println!("ok limit after {pages} pages more: {}", Error::GrantsUsedUp);
            taken.clear();
            Granted::new(self.peer, 64, Access::Read)?;
            println!("ok grants are given back");
        }
        self.exchange("")?;
        Ok(())
    }

    /// What decides how a broker would hand things out.
    fn facts(&mut self, channel: &Channel) -> Outcome {
        if self.is_server {
            let own = Granted::new(self.peer, 2, Access::Read)?;
            byte(own.start(), 0).store(3, Ordering::Relaxed);
            self.exchange(&own.references()[0].to_string())?;
            println!("FACT fork, own pages: {}", in_fork(own.start()));
            let mut child = helper_with("granted", &[own.descriptor()])?;
            let written = ending(&mut child)?;
            let seen = byte(own.start(), PAGE_SIZE).load(Ordering::Relaxed);
            println!("FACT gntalloc by SCM_RIGHTS: {written}, wrote {seen}");
            self.exchange("")?;
            return Ok(());
        }
        let number: u32 = self.exchange("")?.parse()?;
        let reference = Reference {
            domain: self.peer,
            number,
        };
        let mapped = Mapped::new([reference].into_iter())?;
        let start = mapped.start().cast_mut();
        check(
            byte(start, 0).load(Ordering::Relaxed) == 3,
            "what stands there",
        )?;
        println!("FACT fork, a peer's pages: {}", in_fork(start));
        println!(
            "FACT fork, a peer's region: {}",
            in_fork(channel.peer().mapped().start().cast_mut())
        );
        let again = Wanted::received(mapped.descriptor().try_clone_to_owned()?, 1).map();
        println!("FACT gntdev mapped twice: {}", outcome(again));
        let mut child = helper_with("mapped", &[mapped.descriptor()])?;
        println!(
            "FACT gntdev, mapped here, by SCM_RIGHTS: {}",
            ending(&mut child)?
        );
        let wanted = Wanted::new([reference].into_iter())?;
        let mut child = helper_with("mapped", &[wanted.descriptor()])?;
        println!(
            "FACT gntdev, not mapped yet, by SCM_RIGHTS: {}",
            ending(&mut child)?
        );
        println!(
            "FACT gntdev, after that one has ended: {}",
            outcome(wanted.map())
        );
        self.exchange("")?;
        Ok(())
    }
}

fn outcome(mapped: Result<Mapped, Error>) -> String {
    match mapped {
        Ok(mapped) => {
            let seen = byte(mapped.start().cast_mut(), 0).load(Ordering::Relaxed);
            format!("mapped, reads {seen}")
        }
        Err(error) => error.to_string(),
    }
}

/// Another process that is handed descriptors.
fn helper_with(what: &str, descriptors: &[BorrowedFd]) -> Outcome<Child> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(std::env::current_exe()?)
        .args(["helper", what])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    check(
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors)),
        "they fit",
    )?;
    rustix::net::sendmsg(
        &ours,
        &[IoSlice::new(b"x")],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(child)
}

fn helper(what: &str) -> Outcome {
    let stdin = std::io::stdin();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0];
    rustix::net::recvmsg(
        stdin.as_fd(),
        &mut [IoSliceMut::new(&mut word)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptor = ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or("no descriptor came")?;
    match what {
        "granted" => {
            let granted = Granted::received(descriptor, 2)?;
            let seen = byte(granted.start(), 0).load(Ordering::Relaxed);
            byte(granted.start(), PAGE_SIZE).store(9, Ordering::Relaxed);
            println!("mapped, reads {seen}");
        }
        "mapped" => println!("{}", outcome(Wanted::received(descriptor, 1).map())),
        "mprotect" => {
            let mapped = Wanted::received(descriptor, 1).map()?;
            // SAFETY: a mapping of ours; its protection is raised.
            let raised = unsafe {
                rustix::mm::mprotect(
                    mapped.start().cast_mut().cast(),
                    PAGE_SIZE,
                    rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
                )
            };
            println!("mprotect: {raised:?}");
            std::io::stdout().flush()?;
            byte(mapped.start().cast_mut(), 0).store(0x66, Ordering::Relaxed);
            println!("wrote");
        }
        _ => return Err("no such help".into()),
    }
    Ok(())
}

/// What a helper wrote, and how it ended.
fn ending(child: &mut Child) -> Outcome<String> {
    let mut text = String::new();
    child
        .stdout
        .take()
        .ok_or("it is piped")?
        .read_to_string(&mut text)?;
    let status = child.wait()?;
    let lines: Vec<&str> = text.lines().filter(|line| *line != "pair: done").collect();
    Ok(match status.signal() {
        Some(signal) => format!("{}; killed by signal {signal}", lines.join(", ")),
        None => lines.join(", "),
    })
}

/// What becomes of a forked child that reads there.
fn in_fork(start: *mut u8) -> String {
    // SAFETY: the child makes no call but _exit.
    match unsafe { libc::fork() } {
        0 => {
            let seen = byte(start, 0).load(Ordering::Relaxed);
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(seen)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our child, and a place for its status.
            unsafe { libc::waitpid(child, &mut status, 0) };
            if libc::WIFSIGNALED(status) {
                format!("the child is killed by signal {}", libc::WTERMSIG(status))
            } else {
                format!("the child reads {}", libc::WEXITSTATUS(status))
            }
        }
    }
}

/// A byte of shared memory.
fn byte<'a>(start: *mut u8, at: usize) -> &'a AtomicU8 {
    // SAFETY: callers name places inside mappings that they hold meanwhile.
    unsafe { &*start.add(at).cast::<AtomicU8>() }
}

fn content(seed: u8) -> Vec<u8> {
    let word = |at: usize| (at as u32).wrapping_mul(2_654_435_761) >> 11;
    let bytes = (0..MESSAGE_BYTES).map(|at| word(at) as u8 ^ seed);
    bytes.collect()
}

fn numbers(text: &str) -> Outcome<Vec<u32>> {
    let numbers = text.split(' ').map(str::parse);
    Ok(numbers.collect::<Result<Vec<u32>, _>>()?)
}

fn check(holds: bool, what: &str) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(format!("not so: {what}").into())
    }
}

/// What messages go through.
trait Pipe {
    fn send(&mut self, bytes: &[u8]) -> Outcome;
    fn receive(&mut self, buffer: &mut [u8]) -> Outcome;
}

struct Ring<'a>(&'a Channel);

impl Pipe for Ring<'_> {
    fn send(&mut self, bytes: &[u8]) -> Outcome {
        Ok(self.0.send(bytes)?)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Outcome {
        Ok(self.0.receive(buffer)?)
    }
}

impl Pipe for TcpStream {
    fn send(&mut self, bytes: &[u8]) -> Outcome {
        Ok(self.write_all(bytes)?)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Outcome {
        Ok(self.read_exact(buffer)?)
    }
}
