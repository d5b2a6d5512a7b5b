//! Control messages of every length and in every order, from somebody whose connection
//! goes by rings.

use anyhow::{Context, Result, ensure};
use fordway_abi::ABI_VERSION;
use fordway_abi::control::{self as wire, Header, PACKET_BYTES_MAX, kind};
use fordway_test_hostile::mallory::Mallory;
use fordway_test_hostile::{Bed, Style, claim, packet_of, sealed};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use zerocopy::IntoBytes;

const ECONNRESET: i32 = 104;
/// Kinds that there are, and one more on either side.
const KINDS: std::ops::RangeInclusive<u32> = 0..=19;
/// How many have been dropped before it is looked whether the victim knows.
const CROWD: usize = 32;

/// Has each of these broken by a Mallory of its own; all are reset.
fn each<'a>(
    bed: &Bed,
    packets: impl Iterator<Item = (String, Vec<u8>, usize)> + 'a,
) -> Result<usize> {
    let mut crowd = Vec::new();
    let mut count = 0;
    let before = bed.ends(ECONNRESET);
    let mut packets = packets.peekable();
    while let Some((what, packet, fds)) = packets.next() {
        let mallory = Mallory::join(bed).with_context(|| what.clone())?;
        let fds: Vec<BorrowedFd<'_>> = vec![mallory.socket.as_fd(); fds];
        mallory.shim.send_raw(&packet, &fds);
        mallory.shim.expect_end();
        count += 1;
        crowd.push(mallory);
        if crowd.len() == CROWD || packets.peek().is_none() {
            bed.wait_for("resets them", || bed.ends(ECONNRESET) == before + count)
                .with_context(|| what)?;
            crowd.clear();
        }
    }
    Ok(count)
}

#[test]
fn every_wrong_length_resets_the_connection() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    let errors = bed.lab.info()?.protocol_errors;
    let count = bed.case("wrong lengths", |bed| {
        let lengths = KINDS.flat_map(|kind| {
            let (body, fds) = wire::shape(kind).unwrap_or((8, 0..=0));
            let right = size_of::<Header>() + body;
            // Up to the right one and beyond; a packet of no length is an end.
            let around = (1..size_of::<Header>() + 2).chain(right - 2..right + 3);
            let all = around.chain([PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX, PACKET_BYTES_MAX + 1]);
            let wrong = all.filter(move |length| *length != right);
            wrong.map(move |length| {
                let header = Header {
                    kind,
                    length_bytes: length as u32,
                };
                let mut packet = header.as_bytes().to_vec();
                packet.resize(length, 0);
                (format!("kind {kind}, {length} bytes"), packet, *fds.start())
            })
        });
        each(bed, lengths)
    })?;
    let counted = bed.lab.info()?.protocol_errors - errors;
    println!(
        "wrong lengths: {count} packets, counted {counted}, reset {}",
        bed.ends(ECONNRESET)
    );
    ensure!(counted == count as u64, "{counted} of {count} are counted");
    logged_once(&bed)?;
    bed.finish()
}

#[test]
fn messages_out_of_turn_reset_the_connection() -> Result<()> {
    for style in [Style::Epoll, Style::Threads] {
        let mut bed = Bed::start(style)?;
        let errors = bed.lab.info()?.protocol_errors;
        let count = bed.case("out of turn", |bed| {
            let hello = wire::Hello {
                magic: wire::HELLO_MAGIC,
                abi_version: ABI_VERSION,
                path_policy: 0,
                rejoining: 1,
            };
            let end = Mallory::join(bed)?.socket;
            let mut list = vec![
                ("a second Hello", packet_of(&hello), 1),
                ("a header that lies", lying(), 0),
                (
                    "a region unasked for",
                    packet_of(&wire::Region { link_id: 5 }),
                    1,
                ),
                ("a door 0", packet_of(&wire::Door { door: 0 }), 0),
                ("a door 64", packet_of(&wire::Door { door: 64 }), 0),
                ("a status that is none", packet_of(&status(9)), 0),
                ("a channel of no link", packet_of(&rejoin(5, &end)), 0),
            ];
            let others = KINDS.filter(|kind| {
                !matches!(
                    *kind,
                    kind::Hello
                        | kind::Offer
                        | kind::Region
                        | kind::Door
                        | kind::Status
                        | kind::RejoinLink
                        | kind::RejoinChannel
                )
            });
            list.extend(others.map(|kind| {
                let (body, fds) = wire::shape(kind).unwrap_or((8, 0..=0));
                let length = size_of::<Header>() + body;
                let header = Header {
                    kind,
                    length_bytes: length as u32,
                };
                let mut packet = header.as_bytes().to_vec();
                packet.resize(length, 1);
                ("a message of the broker's", packet, *fds.start())
            }));
            let named = list
                .into_iter()
                .map(|(what, packet, fds)| (what.to_owned(), packet, fds));
            each(bed, named)
        })?;
        let counted = bed.lab.info()?.protocol_errors - errors;
        println!(
            "out of turn: {count} packets, counted {counted}, reset {}",
            bed.ends(ECONNRESET)
        );
        ensure!(counted == count as u64, "{counted} of {count} are counted");
        logged_once(&bed)?;
        bed.finish()?;
    }
    Ok(())
}

/// His own link again, with his own numbers: what he may not do resets him, what only comes
/// late or twice is nothing, and a victim's numbers are no use to him.
#[test]
fn messages_about_a_live_link() -> Result<()> {
    let mut bed = Bed::start(Style::Epoll)?;
    bed.case("about a live link", |bed| {
        let mut reset = 0;
        let spare = sealed(fordway_abi::shm::REGION_BYTES);
        for step in 0..6 {
            let mut mallory = Mallory::join(bed)?;
            let pair = mallory.pair;
            let link_id = pair.link_id;
            let rejoin = wire::RejoinChannel {
                conn_id: pair.conn_id,
                channel_id: pair.channel_id,
                link_id,
                slot: pair.slot,
                generation: pair.generation,
                claim: claim(&mallory.socket),
            };
            let key = wire::RejoinLink {
                link_id,
                link_key: [7; 16],
            };
            let shim = &mallory.shim;
            let dropped = match step {
                0 => {
                    shim.send(&wire::Region { link_id }, &[spare.as_fd()]);
                    true
                }
                1 => {
                    shim.send(&key, &[spare.as_fd()]);
                    true
                }
                2 => {
                    shim.send(&rejoin, &[]);
                    true
                }
                // The victim's side of the link has a number near his own.
                3 => {
                    shim.send(
                        &wire::Region {
                            link_id: link_id + 1,
                        },
                        &[spare.as_fd()],
                    );
                    true
                }
                4 => {
                    shim.offer(pair.conn_id, &mallory.socket);
                    false
                }
                _ => {
                    shim.send(&status(wire::status::CLOSED), &[]);
                    false
                }
            };
            if dropped {
                mallory.shim.expect_end();
                reset += 1;
                bed.wait_for("resets him", || bed.ends(ECONNRESET) == reset)
                    .with_context(|| format!("step {step}"))?;
            } else {
                mallory.shim.expect_silence();
                mallory.echo(100).with_context(|| format!("step {step}"))?;
            }
        }
        println!("about a live link: 6 messages, reset {reset}");
        Ok(())
    })?;
    bed.finish()
}

fn lying() -> Vec<u8> {
    let mut packet = packet_of(&wire::Offer {
        conn_id: 1,
        declined: 0,
        to_all: 0,
        claim: wire::Claim::NONE,
    });
    packet[4..8].copy_from_slice(&17u32.to_ne_bytes());
    packet
}

/// Of a connection that nobody has.
fn status(status: u32) -> wire::Status {
    wire::Status {
        conn_id: 77,
        channel_id: 0,
        status,
        reason: 0,
        ring_bytes_tx: 0,
        ring_bytes_rx: 0,
    }
}

fn rejoin(link_id: u64, socket: &TcpStream) -> wire::RejoinChannel {
    wire::RejoinChannel {
        conn_id: 9,
        channel_id: 9,
        link_id,
        slot: 0,
        generation: 1,
        claim: claim(socket),
    }
}

fn logged_once(bed: &Bed) -> Result<()> {
    let pid = format!("process {} ", std::process::id());
    let logged = bed.log_count(&["broke the control protocol", &pid]);
    ensure!(logged == 1, "logged once, not {logged} times");
    Ok(())
}
