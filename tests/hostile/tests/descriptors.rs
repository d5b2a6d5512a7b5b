//! Descriptors: memory that is none, and more of them than a packet has.

use anyhow::{Context, Result, ensure};
use fordway_abi::control::{self as wire, kind};
use fordway_abi::shm::{Endpoint, REGION_BYTES, REGION_MAGIC, RegionHeader, WAIT_PAGE_BYTES};
use fordway_platform::memfd::{self, OwnPage};
use fordway_test_hostile::mallory::{Asked, Mallory, by_kernel};
use fordway_test_hostile::{Bed, Style, packet_of};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io::{IoSlice, Write};
use std::mem::{MaybeUninit, offset_of};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

const ECONNRESET: i32 = 104;
const ALL: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL)
    .union(SealFlags::FUTURE_WRITE);

/// What he may pass for a region.
fn false_regions(bed: &Bed) -> Result<Vec<(&'static str, OwnedFd)>> {
    let with = |bytes, seals| -> Result<OwnedFd> {
        let fd = memfd::create("false", bytes)?;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok(fd)
    };
    let open = |path: &str| std::fs::File::open(path).map(OwnedFd::from);
    let open_with = |path: &Path, flags| rustix::fs::open(path, flags, Mode::empty());
    let fifo = bed.lab.work_dir().join("fifo");
    let made = rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RWXU);
    ensure!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
    let file = bed.lab.work_dir().join("file");
    std::fs::File::create(&file)?.set_len(REGION_BYTES as u64)?;
    let mut list = vec![
        ("without a seal", memfd::create("bare", REGION_BYTES)?),
        (
            "that can shrink",
            with(REGION_BYTES, ALL - SealFlags::SHRINK)?,
        ),
        ("that can grow", with(REGION_BYTES, ALL - SealFlags::GROW)?),
        (
            "that can be sealed",
            with(REGION_BYTES, ALL - SealFlags::SEAL)?,
        ),
        (
            "that all can write",
            with(REGION_BYTES, ALL - SealFlags::FUTURE_WRITE)?,
        ),
        ("of no size", with(0, ALL)?),
        ("too short", with(REGION_BYTES - 4096, ALL)?),
        ("too long", with(REGION_BYTES + 4096, ALL)?),
        ("a wait page", with(WAIT_PAGE_BYTES, ALL)?),
        ("a file", open_with(&file, OFlags::RDWR)?),
        ("a path", open_with(&file, OFlags::PATH)?),
        ("a directory", open("/")?),
        ("a FIFO", open_with(&fifo, OFlags::RDWR)?),
        ("a pipe", rustix::pipe::pipe()?.0),
        ("/dev/zero", open("/dev/zero")?),
        ("/dev/null", open("/dev/null")?),
        (
            "a process's memory",
            open_with(Path::new("/proc/self/mem"), OFlags::RDWR)?,
        ),
        (
            "an eventfd",
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?,
        ),
        (
            "an epoll instance",
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?,
        ),
        ("a socket", UdpSocket::bind("127.0.0.1:0")?.into()),
    ];
    // A huge page would do for the size, but could fail to be there when it is touched.
    let huge = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
    if let Ok(fd) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&fd, REGION_BYTES as u64).is_ok()
        && rustix::fs::fcntl_add_seals(&fd, ALL).is_ok()
    {
        list.push(("of huge pages", fd));
    }
    Ok(list)
}

/// The broker does not pass it on, and the victim's connection stays where it was.
#[test]
fn memory_that_is_none_never_reaches_the_victim() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    let errors = bed.lab.info()?.protocol_errors;
    let tried = bed.case("false regions", |bed| {
        let list = false_regions(bed)?;
        for (what, region) in &list {
            let mut asked = Asked::start(&bed.lab.runtime_dir(), bed.connect()?)?;
            let link_id = asked.link_id;
            asked
                .shim
                .send(&wire::Region { link_id }, &[region.as_fd()]);
            asked.shim.expect_end();
            by_kernel(&mut asked.socket).with_context(|| format!("memory {what}"))?;
        }
        Ok(list.len())
    })?;
    let counted = bed.lab.info()?.protocol_errors - errors;
    println!("false regions: {tried}, counted {counted}, reset 0");
    ensure!(
        counted == tried as u64 && bed.ends(ECONNRESET) == 0,
        "{counted}"
    );
    logged_once(&bed)?;
    bed.finish()
}

/// Sealed, and then cut, grown, punched, or opened again for writing: the kernel says no.
/// Full of holes: they read as zeros. Memory of others: it is read, and that is all.
#[test]
fn memory_that_changes_its_shape_faults_nobody() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        bed.case("cut, punched, with holes", |bed| {
            let (region, fd) = OwnPage::create("mallory-region", REGION_BYTES)?;
            region.store_u32(offset_of!(RegionHeader, magic), REGION_MAGIC);
            let kept = fd.try_clone()?;
            let asked = Asked::start(&bed.lab.runtime_dir(), bed.connect()?)?;
            let mut mallory = Mallory::join_with(asked, region, fd)?;
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let bytes = REGION_BYTES as u64;
            let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&kept));
            let tried = [
                ("cut", rustix::fs::ftruncate(&kept, 4096)),
                ("grown", rustix::fs::ftruncate(&kept, bytes + 4096)),
                ("punched", rustix::fs::fallocate(&kept, punch, 0, bytes)),
                (
                    "zeroed",
                    rustix::fs::fallocate(&kept, FallocateFlags::ZERO_RANGE, 0, bytes),
                ),
                (
                    "unsealed",
                    rustix::fs::fcntl_add_seals(&kept, SealFlags::empty()),
                ),
                ("written", rustix::io::pwrite(&kept, &[1; 8], 0).map(drop)),
                (
                    "written anew",
                    rustix::fs::open(&again, OFlags::RDWR, Mode::empty())
                        .and_then(|fd| rustix::io::pwrite(fd, &[1; 8], 0))
                        .map(drop),
                ),
            ];
            for (what, result) in tried {
                println!("a region that is {what}: {result:?}");
                ensure!(result.is_err(), "a sealed region can be {what}");
            }
            mallory.echo(100)?;
            // Bytes that were never written: holes, which the victim reads and sends back.
            mallory.tail += 60_000;
            mallory.set_u64(offset_of!(Endpoint, tx.tail), mallory.tail);
            mallory.knock();
            mallory.collect(60_000)?;
            mallory.echo(100)?;
            Ok(())
        })?;
        bed.case("the victim's own memory", |bed| {
            let victims = {
                let (region, fd) = OwnPage::create("mallory-region", REGION_BYTES)?;
                let asked = Asked::start(&bed.lab.runtime_dir(), bed.connect()?)?;
                let link_id = asked.link_id;
                asked.shim.send(&wire::Region { link_id }, &[fd.as_fd()]);
                drop(region);
                asked.shim.receive().fds.remove(0)
            };
            // It passes: sealed, of the right size. What the victim sends is what it gets.
            let asked = Asked::start(&bed.lab.runtime_dir(), bed.connect()?)?;
            let link_id = asked.link_id;
            asked
                .shim
                .send(&wire::Region { link_id }, &[victims.as_fd()]);
            let packet = asked.shim.receive();
            ensure!(packet.kind == kind::Peer, "{}", packet.kind);
            for _ in 0..200 {
                let _ = (&asked.socket).write(&[0x55; 100]);
                std::thread::yield_now();
            }
            Ok(())
        })?;
        bed.finish()?;
    }
    Ok(())
}

/// Descriptors of every kind, also of those whose close(2) waits.
fn surplus() -> Result<(Vec<OwnedFd>, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let lingering = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    // Nobody reads, and close waits for that.
    lingering.set_nonblocking(true)?;
    while (&lingering).write(&[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&lingering, Some(Duration::from_secs(60)))?;
    let mut list: Vec<OwnedFd> = vec![
        lingering.into(),
        rustix::pipe::pipe()?.0,
        UdpSocket::bind("127.0.0.1:0")?.into(),
        memfd::create("surplus", 1 << 20)?,
        std::fs::File::open("/dev/zero")?.into(),
    ];
    while list.len() < 16 {
        list.push(rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC,
        )?);
    }
    Ok((list, far))
}

/// Sends so many descriptors, more than the library for packets would.
fn send_many(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let rights = rustix::net::SendAncillaryMessage::ScmRights(fds);
    ensure!(control.push(rights), "no room");
    let flags = rustix::net::SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// From somebody whose connection goes by rings: it is reset, and nothing of it is kept.
#[test]
fn surplus_descriptors_cost_the_connection_and_nothing_else() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    let errors = bed.lab.info()?.protocol_errors;
    let counts = [2, 3, 16, 17, 253];
    let status = wire::Status {
        conn_id: 1,
        channel_id: 0,
        status: wire::status::WITHDRAWN,
        reason: 0,
        ring_bytes_tx: 0,
        ring_bytes_rx: 0,
    };
    let packets = [
        packet_of(&wire::Offer {
            conn_id: 9,
            declined: 0,
            to_all: 0,
            claim: wire::Claim::NONE,
        }),
        packet_of(&wire::Region { link_id: 9 }),
        packet_of(&wire::Door { door: 9 }),
        packet_of(&status),
    ];
    let total = counts.len() * packets.len();
    bed.case("surplus descriptors", |bed| {
        let mut sent = 0;
        for count in counts {
            for packet in &packets {
                let (list, far) = surplus()?;
                let fds: Vec<_> = list.iter().cycle().take(count).map(AsFd::as_fd).collect();
                let mallory = Mallory::join(bed)?;
                send_many(&mallory.shim.socket, packet, &fds)?;
                // If his own copies go first the last reference is the broker's; else he waits.
                let closing = std::thread::spawn(move || drop(list));
                mallory.shim.expect_end();
                sent += 1;
                bed.wait_for("resets him", || bed.ends(ECONNRESET) == sent)?;
                drop(far);
                ensure!(closing.join().is_ok(), "closing");
            }
        }
        Ok(())
    })?;
    let counted = bed.lab.info()?.protocol_errors - errors;
    println!(
        "surplus descriptors: {total} packets, counted {counted}, reset {}",
        bed.ends(ECONNRESET)
    );
    ensure!(counted == total as u64, "{counted} of {total} are counted");
    logged_once(&bed)?;
    bed.finish()
}

fn logged_once(bed: &Bed) -> Result<()> {
    let pid = format!("process {} ", std::process::id());
    let logged = bed.log_count(&["broke the control protocol", &pid]);
    ensure!(logged == 1, "logged once, not {logged} times");
    Ok(())
}
