//! A peer that lies in rings of datagrams: what she does costs her the ring, and nobody else anything.

use anyhow::{Context, Result, ensure};
use fordway_abi::shm::{Endpoint, rx_state, tx_state};
use fordway_test_hostile::datagrams::{Bed, FIRST, HEADER_BYTES, Trudy, WAITS};
use fordway_test_hostile::until;
use fordwayd::admin::Request;
use std::mem::offset_of;

/// Records of an attack that goes on.
const BODY: &[u8; 48] = b"one of very many, by a ring, with a header of 16";
/// In one act.
const ACT: usize = 50;
/// Flows to one socket, which may have 64: the neighbour has one, and the plain socket.
const FLOWS: usize = 62;

/// What she publishes, once: the victim is to complain, and to take nothing more of the ring.
type Lie = (&'static str, fn(&mut Trudy));

const LIES: &[Lie] = &[
    ("a datagram of 4 GiB", |trudy| {
        let by_kernel = trudy.by_kernel(0);
        trudy.put_as(0, [u32::MAX, by_kernel], 0, BODY);
    }),
    ("a datagram longer than any", |trudy| {
        let by_kernel = trudy.by_kernel(0);
        trudy.put_as(0, [65_536, by_kernel], 0, &[7; 65_536]);
    }),
    ("a datagram longer than what was published", |trudy| {
        let by_kernel = trudy.by_kernel(0);
        trudy.put_as(0, [49, by_kernel], 0, BODY);
    }),
    ("a part of a header", |trudy| {
        trudy.publish(0, HEADER_BYTES - 3);
    }),
    ("a tail within a record", |trudy| {
        let by_kernel = trudy.by_kernel(0);
        trudy.put_as(0, [48, by_kernel], 0, BODY);
        // What follows is read as a header, and is none.
        trudy.write(0, 0, &[0xff; 64]);
        trudy.publish(0, 35);
    }),
    ("a tail that goes back", |trudy| {
        let tail = trudy.taken_up_to(0) - 8;
        trudy.set_u64(0, offset_of!(Endpoint, tx.tail), tail);
        trudy.knock();
    }),
    ("a tail far ahead", |trudy| {
        trudy.publish(0, 1 << 40);
    }),
    ("a segment behind the region", |trudy| {
        let segments = offset_of!(Endpoint, cold.segments);
        trudy.set_u64(0, segments + 16, trudy.taken_up_to(0));
        trudy.set_u64(0, segments + 24, (3_u64 << 30) << 8 | 20);
        trudy.set_u32(0, offset_of!(Endpoint, cold.segment_count), 2);
        trudy.put(0, BODY);
    }),
];

#[test]
fn a_lie_costs_the_ring_and_nothing_else() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        for (what, lie) in LIES {
            let before = bed.complaints()?;
            let mut trudy = Trudy::join(&bed).context(*what)?;
            lie(&mut trudy);
            until("the victim complains", || {
                trudy.knock();
                bed.complaints().is_ok_and(|now| now == before + 1)
            })
            .with_context(|| format!("{waits:?}: {what}"))?;
            // It has left its ring, so that no answer goes by it.
            let state = trudy.peer_u32(0, offset_of!(Endpoint, cold.tx_state));
            ensure!(state >= tx_state::BACK, "{what}: state {state}");
            // By the kernel the same socket is served, with its own bytes.
            until("an answer by the kernel", || {
                let _ = trudy.flows[0].socket.send(BODY);
                trudy.taken(0).iter().any(|answer| answer == BODY)
            })
            .with_context(|| format!("{waits:?}: {what}"))?;
            bed.goes_on_beside(what, || Ok(()))?;
        }
        bed.finish()?;
    }
    Ok(())
}

/// Fills her ring again, as far as there is room; `say` gives what stands in a header beside the length.
fn fill(trudy: &mut Trudy, at: usize, mut say: impl FnMut(u32) -> (u32, u64)) -> Result<()> {
    for _ in 0..ACT {
        if trudy.room(at) < 1024 {
            break;
        }
        let (by_kernel, moment) = say(trudy.by_kernel(at));
        trudy.put_as(at, [BODY.len() as u32, by_kernel], moment, BODY);
    }
    let answers = trudy.taken(at);
    let wrong = answers.iter().find(|answer| {
        ![BODY.as_slice(), FIRST.as_slice(), b"by the kernel"].contains(&answer.as_slice())
    });
    ensure!(wrong.is_none(), "an answer to what was not sent: {wrong:?}");
    Ok(())
}

/// As [`Trudy::flood`].
fn flood(trudy: &mut Trudy, at: usize) -> Result<()> {
    trudy.flood(at);
    Ok(())
}

#[test]
fn counts_of_the_kernels_datagrams_that_run_away() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        let mut more = 0_u32;
        bed.goes_on_beside("each says one more", || {
            fill(&mut trudy, 0, |own| {
                more += 1;
                (own + more, 0)
            })
        })?;
        bed.goes_on_beside("each says a thousand million more", || {
            fill(&mut trudy, 0, |_| {
                more = more.wrapping_add(1_000_000_000);
                (more, 0)
            })
        })?;
        bed.goes_on_beside("each says less", || {
            fill(&mut trudy, 0, |_| {
                more = more.wrapping_sub(1);
                (more, 0)
            })
        })?;
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

/// The header is another one at each look, while it is looked at.
#[test]
fn a_header_that_is_never_the_same() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        let mut count = trudy.by_kernel(0);
        trudy.put(0, BODY);
        bed.goes_on_beside("a header that counts", || {
            if trudy.room(0) > 1 << 19 {
                trudy.put(0, BODY);
            }
            for _ in 0..1000 {
                count = count.wrapping_add(1);
                // The record before her tail, and the lengths with it.
                trudy.write(0, -60, &count.to_ne_bytes());
                trudy.write(0, -64, &(count % 70_000).to_ne_bytes());
            }
            trudy.knock();
            let _ = trudy.taken(0);
            Ok(())
        })?;
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn moments_of_the_past_and_of_the_future() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        for (name, moment) in [("always the first", 0), ("always the last", u64::MAX)] {
            let mut trudy = Trudy::join(&bed)?;
            trudy.lay(0, moment, BODY);
            bed.goes_on_beside(name, || flood(&mut trudy, 0))?;
        }
        bed.finish()?;
    }
    Ok(())
}

/// She says that she has left, and publishes on: what others send by the kernel comes all the same.
#[test]
fn who_goes_on_behind_her_leave_starves_nobody() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        trudy.lay(0, 0, BODY);
        trudy.flood(0);
        trudy.set_u32(0, offset_of!(Endpoint, cold.tx_state), tx_state::BACK);
        let name = "on behind her leave";
        bed.goes_on_beside(name, || flood(&mut trudy, 0))?;
        // She has no ring any more, in which she came back and forth.
        for state in [
            tx_state::RING,
            tx_state::WITHDRAWN,
            tx_state::KERNEL,
            tx_state::BACK,
            77,
        ] {
            trudy.set_u32(0, offset_of!(Endpoint, cold.tx_state), state);
            bed.goes_on_beside(name, || flood(&mut trudy, 0))?;
        }
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

#[test]
fn sixty_four_flows_to_one_socket() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        while trudy.flows.len() < FLOWS {
            let count = trudy.flows.len();
            trudy
                .another(&bed)
                .with_context(|| format!("{count} flows"))?;
        }
        for at in 0..FLOWS {
            trudy.lay(at, u64::MAX, BODY);
        }
        let mut turn = 0;
        bed.goes_on_beside("many flows", || {
            turn += 1;
            flood(&mut trudy, turn % FLOWS)
        })?;
        // And those that have no place among them.
        for _ in 0..10 {
            bed.by_another_socket()?;
        }
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

/// Each of them says that it was sent before all others.
#[test]
fn flows_that_are_always_the_first_ones_starve_nobody() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        trudy.another(&bed)?;
        for at in 0..2 {
            trudy.lay(at, 0, BODY);
        }
        bed.goes_on_beside("two that are always the first", || {
            flood(&mut trudy, 0)?;
            flood(&mut trudy, 1)
        })?;
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

/// The victim leaves, and takes nothing that she publishes then, be it without a pause.
fn is_left_for_good(bed: &mut Bed, trudy: &mut Trudy) -> Result<()> {
    until("the victim has left", || {
        trudy.flood(0);
        let _ = trudy.flows[0].socket.send(BODY);
        // Both halves: a socket whose datagrams lie unread stops sending by a ring that it still reads.
        trudy.peer_u32(0, offset_of!(Endpoint, cold.tx_state)) >= tx_state::BACK
            && trudy.peer_u32(0, offset_of!(Endpoint, wait.rx_state)) >= rx_state::STOP
    })?;
    let last = trudy.flows[0].tail;
    bed.goes_on_beside("goes on", || flood(trudy, 0))?;
    let taken = trudy.taken_up_to(0);
    ensure!(taken <= last, "of {last} bytes {taken} were taken");
    Ok(())
}

/// The administrator sends her to the kernel path, and she does not go; be it that the victim sends by the kernel
/// already, for she has read no answer for long.
#[test]
fn who_never_leaves_is_not_read_from_for_ever() -> Result<()> {
    for (waits, reads_answers) in [
        (WAITS[0], true),
        (WAITS[0], false),
        (WAITS[1], true),
        (WAITS[1], false),
    ] {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        trudy.lay(0, 0, BODY);
        until("the victim sends by the kernel", || {
            // Its answers are unread by now.
            trudy.flood_unread(0);
            reads_answers
                || trudy.peer_u32(0, offset_of!(Endpoint, cold.tx_state)) == tx_state::BACK
        })?;
        let rows = bed.lab.connections()?;
        let own = trudy.flows[0].socket.local_addr()?.to_string();
        let row = rows
            .iter()
            .find(|row| row.local == own && row.protocol == "udp");
        let channel = row.and_then(|row| row.channel).context("no channel")?;
        bed.lab.ask(&Request::Downgrade {
            channel: Some(channel),
        })?;
        is_left_for_good(&mut bed, &mut trudy)?;
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

/// She ends her connection to the broker, which says that she is gone; her memory is there.
#[test]
fn who_leaves_the_broker_is_not_read_from_for_ever() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let mut trudy = Trudy::join(&bed)?;
        trudy.lay(0, 0, BODY);
        trudy.flood(0);
        rustix::net::shutdown(&trudy.shim.socket, rustix::net::Shutdown::Both)?;
        is_left_for_good(&mut bed, &mut trudy)?;
        drop(trudy);
        bed.finish()?;
    }
    Ok(())
}

/// Her process ends, with records unread and her rings in whatever state.
#[test]
fn who_is_gone_is_forgotten() -> Result<()> {
    for waits in WAITS {
        let mut bed = Bed::start(waits)?;
        let before = bed.lab.info()?.channels;
        for state in [tx_state::RING, tx_state::BACK] {
            let mut trudy = Trudy::join(&bed)?;
            fill(&mut trudy, 0, |own| (own, 0))?;
            trudy.set_u32(0, offset_of!(Endpoint, cold.tx_state), state);
            drop(trudy);
            bed.goes_on_beside("without her", || Ok(()))?;
            until("the broker has no channel of hers", || {
                bed.lab.info().is_ok_and(|info| info.channels == before)
            })?;
        }
        bed.finish()?;
    }
    Ok(())
}
