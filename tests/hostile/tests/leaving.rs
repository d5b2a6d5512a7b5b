//! A peer that is to leave its ring, and goes on publishing: what is read from it ends.

use anyhow::{Context, Result, ensure};
use fordway_abi::shm::{Endpoint, SEGMENT_LOG2_MIN, rx_state};
use fordway_test_hostile::mallory::Mallory;
use fordway_test_hostile::{Bed, Style, until};
use fordwayd::admin::{Reply, Request};
use rustix::net::{Shutdown, shutdown};
use std::mem::offset_of;

/// Bytes that may lie in the ring.
const CAPACITY: u64 = 1 << SEGMENT_LOG2_MIN;
/// How often it is filled before anything else is done.
const FILLS: u32 = 500;
/// Looks in a row at which nothing was taken.
const QUIET_LOOKS: u32 = 40;
const BOTH: [Style; 2] = [Style::Epoll, Style::Threads];

fn taken(mallory: &Mallory) -> u64 {
    mallory.peer_u64(offset_of!(Endpoint, rx.head))
}

fn keep_full(mallory: &mut Mallory) {
    (0..FILLS).for_each(|_| mallory.fill());
    mallory.knock();
    let _ = mallory.take();
    mallory.read_mail();
}

/// Goes on publishing, as fast as it is taken, until nothing more is; how much was taken
/// after the victim was seen to have asked for the kernel path, or to have closed: a FIN that no
/// flag announces is a dead peer's, and the victim's next send may be told of the reset.
fn publish_on(bed: &Bed, mallory: &mut Mallory) -> Result<u64> {
    let mut left_at = None;
    let (mut last, mut quiet) = (0, 0);
    let ended = until("the victim takes nothing more", || {
        keep_full(mallory);
        let asked = mallory.peer_u32(offset_of!(Endpoint, wait.rx_state));
        let has_left =
            || matches!(asked, rx_state::STOP | rx_state::DRAIN) || bed.all_ends() == bed.made();
        if left_at.is_none() && has_left() {
            left_at = Some(taken(mallory));
        }
        let now = taken(mallory);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        left_at.is_some() && quiet > QUIET_LOOKS
    });
    ended.with_context(|| {
        format!("left at {left_at:?}, {last} bytes taken, none for {quiet} looks")
    })?;
    ensure!(mallory.tail > last, "there is something to take");
    Ok(last - left_at.unwrap_or(0))
}

fn hold(name: &str, styles: &[Style], leave: impl Fn(&Bed, &Mallory) -> Result<()>) -> Result<()> {
    for &style in styles {
        let mut bed = Bed::start(style)?;
        bed.case(name, |bed| {
            let mut mallory = Mallory::join(bed)?;
            for _ in 0..100 {
                keep_full(&mut mallory);
            }
            leave(bed, &mallory)?;
            let more = publish_on(bed, &mut mallory)?;
            println!("{name}: {more} bytes were taken after the victim had asked for the kernel");
            // What lay there then, and what came between its look and ours.
            ensure!(more <= 2 * CAPACITY, "{more}");
            Ok(())
        })?;
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn a_ring_that_never_runs_dry_is_left_all_the_same() -> Result<()> {
    hold("publishes on after a downgrade", &BOTH, |bed, mallory| {
        let own = mallory.socket.local_addr()?.to_string();
        let ends = bed.lab.connections()?;
        let end = ends.iter().find(|end| end.local == own);
        let channel = end.context("no end of mallory's")?.channel;
        ensure!(channel.is_some(), "it has no rings");
        let reply = bed.lab.ask(&Request::Downgrade { channel })?;
        ensure!(!matches!(reply, Reply::Error { .. }), "{reply:?}");
        Ok(())
    })
}

/// Whoever waits in the kernel now and then, as an event loop does, sees the FIN; the thread
/// that only receives is shown it as well.
#[test]
fn who_has_ended_by_the_kernel_has_no_ring_any_more() -> Result<()> {
    hold("publishes on behind his FIN", &BOTH, |_, mallory| {
        Ok(shutdown(&mallory.socket, Shutdown::Write)?)
    })
}

#[test]
fn who_leaves_the_broker_has_no_ring_any_more() -> Result<()> {
    hold("publishes on without the broker", &BOTH, |_, mallory| {
        Ok(shutdown(&mallory.shim.socket, Shutdown::Both)?)
    })
}
