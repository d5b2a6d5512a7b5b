//! Doorbells: drained, filled, made blocking, and knocked without end.

use anyhow::{Context, Result, ensure};
use fordway_abi::control as wire;
use fordway_abi::shm::{DOOR_COUNT, WaitPage};
use fordway_test_hostile::mallory::Mallory;
use fordway_test_hostile::{Bed, Style, is_root};
use rustix::event::epoll;
use rustix::fs::OFlags;
use std::mem::offset_of;
use std::os::fd::OwnedFd;

/// Honest ones who come while a bell's ways are used up.
const TOGETHER: usize = 6;

/// Runs `act` over and over, until the neighbours have gone on beside it.
fn attack(bed: &mut Bed, name: &str, act: impl Fn(&Mallory)) -> Result<()> {
    let before = bed.census()?;
    let mallory = Mallory::join(bed)?;
    bed.goes_on_beside(name, |_| {
        act(&mallory);
        Ok(())
    })?;
    drop(mallory);
    bed.no_more_than(name, &before)
}

/// Every descriptor of a doorbell that Mallory has.
fn all(mallory: &Mallory) -> impl Iterator<Item = &OwnedFd> {
    mallory
        .bells
        .knocks
        .values()
        .chain(mallory.bells.shows.values())
}

#[test]
fn doorbells_of_others_cannot_be_reached() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        attack(&mut bed, "drained", |mallory| {
            for bell in all(mallory) {
                let _ = rustix::io::read(bell, &mut [0; 8]);
            }
        })?;
        attack(&mut bed, "filled", |mallory| {
            for bell in all(mallory) {
                let _ = rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes());
            }
        })?;
        attack(&mut bed, "made blocking", |mallory| {
            for bell in all(mallory) {
                let _ = rustix::fs::fcntl_setfl(bell, OFlags::empty());
            }
        })?;
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn a_flood_of_rings_only_costs_time() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    attack(&mut bed, "knocked without end", Mallory::knock)?;
    bed.finish()
}

/// The victim knocks at the doors of who says that he sleeps: with each publication, at every door, also at
/// doors that do not exist, and however full the bells are.
#[test]
fn a_peer_that_always_sleeps_and_never_wakes_blocks_nobody() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        let count = offset_of!(WaitPage, sleep_count);
        bed.case("always asleep", |bed| {
            let mut mallory = Mallory::join(bed)?;
            for round in 1..2000 {
                use fordway_abi::shm::Endpoint;
                mallory.set_u64(offset_of!(Endpoint, wait.rx_doors), u64::MAX);
                mallory.set_u64(offset_of!(Endpoint, wait.tx_doors), u64::MAX);
                mallory
                    .page
                    .store_u64(offset_of!(WaitPage, sleeping), u64::MAX);
                for door in 0..64 {
                    mallory.page.store_u32(count + door * 4, round);
                }
                for bell in mallory.bells.shows.values() {
                    let _ = rustix::fs::fcntl_setfl(bell, OFlags::empty());
                }
                mallory.echo(1)?;
            }
            Ok(())
        })?;
        bed.finish()?;
    }
    Ok(())
}

/// Watches a bell by so many instances in instances that the kernel lets no other one of that
/// depth come to it.
fn use_ways_up(bell: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let mut instances = vec![];
    let mut inside = bell.try_clone()?;
    for _ in 0..2 {
        let instance = watching(&inside)?;
        inside = instance.try_clone()?;
        instances.push(instance);
    }
    while let Ok(instance) = watching(&inside) {
        instances.push(instance);
    }
    Ok(instances)
}

fn watching(fd: &OwnedFd) -> Result<OwnedFd> {
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&instance, fd, data, epoll::EventFlags::IN)?;
    Ok(instance)
}

/// A door that its owner uses for the next waiter: the kernel refuses that one to watch it,
/// because of the ways that a peer has made to his bell.
#[test]
fn ways_to_a_bell_that_are_used_up_cost_nobody_else_a_ring() -> Result<()> {
    let mut bed = Bed::start(Style::Instances)?;
    bed.beside("ways used up", |bed| {
        let mut mallory = Mallory::join(bed)?;
        mallory.read_mail();
        ensure!(mallory.bells.knocks.len() > 4, "few doors");
        let ways = mallory.bells.knocks.values().map(use_ways_up);
        let ways = ways.collect::<Result<Vec<_>>>()?;
        for _ in 0..TOGETHER {
            let mut honest = Mallory::join(bed)?;
            for _ in 0..20 {
                honest.echo(1)?;
            }
        }
        drop(ways);
        Ok(())
    })?;
    bed.finish()
}

/// Peers of the victim, and the descriptors that it may have.
const PEERS: usize = 30;
const TABLE: u64 = 1024;

/// How many descriptors of the victim's have numbers that its own limit allows.
fn within_its_limit(bed: &Bed) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", bed.victim.pid()?))? {
        let number: u64 = entry?.file_name().to_string_lossy().parse()?;
        count += usize::from(number < TABLE);
    }
    Ok(count)
}

/// Each door of a peer's is a descriptor of the victim's: none of those that its program may
/// open, and never so many that nobody else can be served.
#[test]
fn doors_of_many_peers_leave_the_victims_descriptors_alone() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut bed = Bed::start(Style::Epoll)?;
    let pid = rustix::process::Pid::from_raw(bed.victim.pid()? as i32);
    let limit = rustix::process::Rlimit {
        current: Some(TABLE),
        maximum: Some(2 * TABLE),
    };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit)?;
    bed.beside("doors of many", |bed| {
        let before = within_its_limit(bed)?;
        let mut peers = Vec::new();
        for number in 0..PEERS {
            let mallory = Mallory::join(bed).with_context(|| format!("peer {number}"))?;
            for door in 1..DOOR_COUNT as u64 {
                mallory.shim.send(&wire::Door { door }, &[]);
            }
            // Their sockets, and nothing else, are the program's.
            peers.push(mallory);
        }
        // It has read its mail, and serves one more by rings.
        let mut last = Mallory::join(bed)?;
        last.echo(100)?;
        let made = bed.made();
        let now = within_its_limit(bed)?;
        println!("doors of many: {PEERS} peers, {before} then {now} descriptors of its own, {made} connections");
        ensure!(now <= before + made, "{now} descriptors, {before} before");
        drop(peers);
        Ok(())
    })?;
    bed.finish()
}
