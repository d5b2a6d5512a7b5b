//! A connection by itself: segments by hand, or by chance, on one side; the other side is this
//! file. What two stacks make of each other is in the crate's `tests` directory.

use alloc::vec;
use alloc::vec::Vec;

use super::connection::{Connection, Shaken};
use super::flow::TcpState;
use super::ring::{CONNECTION_BYTES, Pool};
use crate::Micros;
use crate::config::{Congestion, TcpOptions};
use crate::packet::{self, SegmentOptions, SynOptions, Tcp, flag};
use crate::stack::Error;

const MSS: usize = 1000;
const POOL_BYTES: usize = 1 << 20;
/// First bytes of both streams, on the wire.
const OURS: u32 = u32::MAX - 20_000;
const THEIRS: u32 = u32::MAX - 10_000;

struct Bench {
    tcp: Connection,
    pool: Pool,
    now: Micros,
    has_times: bool,
    their_clock: u32,
    window: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    at: u32,
    len: usize,
    ack: u32,
    flags: u8,
    window: u16,
    urgent: u16,
    blocks: Vec<(u32, u32)>,
}

fn options() -> TcpOptions {
    TcpOptions {
        receive_bytes: 256 * 1024,
        send_bytes: 256 * 1024,
        ..TcpOptions::default()
    }
}

impl Bench {
    /// A connection that stands, its round trip 10 ms.
    fn new(options: &TcpOptions, is_sack: bool, has_times: bool) -> Bench {
        let now = 5_000_000;
        let mss = MSS + if has_times { packet::TIMES } else { 0 };
        let shaken = Shaken {
            our_seq: OURS.wrapping_sub(1),
            their_seq: THEIRS.wrapping_sub(1),
            window: 60_000,
            options: SynOptions {
                mss: Some(mss as u16),
                window_scale: Some(0),
                is_sack,
                times: has_times.then_some((100, 0)),
            },
            clock_offset: u32::MAX - 5_500,
            sent_at: Some(now - 10_000),
        };
        let mut pool = Pool::new(POOL_BYTES);
        pool.begin_connection();
        let mut bench = Bench {
            tcp: Connection::accept(&shaken, 1460, options, now),
            pool,
            now,
            has_times,
            their_clock: 100,
            window: 60_000,
        };
        bench.hear(0, 0, flag::ACK, b"", &[]);
        bench
    }

    fn write(&mut self, len: usize) {
        let mut left = len;
        while left > 0 {
            let space = self.tcp.send.space(Some(left), &mut self.pool);
            let count = space.len().min(left);
            assert!(count > 0, "room for {left} more bytes");
            for (index, byte) in space[..count].iter_mut().enumerate() {
                *byte = (len - left + index) as u8;
            }
            self.tcp.send.written(count);
            left -= count;
        }
    }

    /// A segment from the peer: `seq` and `ack` count from the beginnings of both streams.
    fn hear(&mut self, seq: u32, ack: u32, flags: u8, bytes: &[u8], blocks: &[(u32, u32)]) -> bool {
        self.hear_with(seq, ack, flags, 0, bytes, blocks)
    }

    /// The same with an urgent pointer.
    fn hear_with(
        &mut self,
        seq: u32,
        ack: u32,
        flags: u8,
        urgent: u16,
        bytes: &[u8],
        blocks: &[(u32, u32)],
    ) -> bool {
        let header = Tcp {
            seq: THEIRS.wrapping_add(seq),
            ack: OURS.wrapping_add(ack),
            flags,
            window: self.window,
            urgent,
            ..Tcp::default()
        };
        let mut options = [0; 64];
        let mut len = 0;
        if self.has_times {
            packet::put_times(&mut options, (self.their_clock, self.echo()));
            len = packet::TIMES;
        }
        let blocks: Vec<(u32, u32)> = blocks
            .iter()
            .map(|block| (OURS.wrapping_add(block.0), OURS.wrapping_add(block.1)))
            .collect();
        len += packet::put_blocks(&mut options[len..], &blocks);
        self.tcp.input(
            &header,
            &options[..len],
            bytes.into(),
            &mut self.pool,
            self.now,
        )
    }

    /// The timestamp that an answer to what has just been sent carries.
    fn echo(&self) -> u32 {
        self.tcp.clock.map_or(0, |clock| clock.stamp(self.now))
    }

    fn sent_one(&mut self, most: usize) -> Option<Sent> {
        let mut bytes = vec![0; 70_000];
        let (header, len) = self.tcp.write(&mut bytes, most as u64, self.now)?;
        let tcp = Tcp::parse(&bytes[..header + len]).expect("a header");
        assert_eq!(tcp.header, header);
        let said = SegmentOptions::parse(&bytes[20..header]);
        let theirs = |at: u32| at.wrapping_sub(THEIRS);
        Some(Sent {
            at: tcp.seq.wrapping_sub(OURS),
            len,
            ack: theirs(tcp.ack),
            flags: tcp.flags,
            window: tcp.window,
            urgent: tcp.urgent,
            blocks: said
                .blocks()
                .iter()
                .map(|b| (theirs(b.0), theirs(b.1)))
                .collect(),
        })
    }

    fn sent(&mut self) -> Vec<Sent> {
        core::iter::from_fn(|| self.sent_one(MSS)).collect()
    }

    /// Where segments with payload begin.
    fn sent_at(&mut self) -> Vec<u32> {
        let sent = self.sent();
        sent.iter().filter(|s| s.len > 0).map(|s| s.at).collect()
    }

    /// Time passes, with all timers that come up.
    fn pass(&mut self, us: Micros) {
        let until = self.now + us;
        while let Some(at) = self.tcp.deadline(self.now).filter(|at| *at <= until) {
            self.now = at;
            self.tcp.on_time(at);
            if self.tcp.wants() {
                break;
            }
        }
        if !self.tcp.wants() {
            self.now = until;
        }
    }

    fn read(&mut self) -> usize {
        let len = self.tcp.receive.unread();
        self.tcp.consumed(len, &mut self.pool);
        len
    }
}

fn segments(of: core::ops::Range<u32>) -> Vec<u32> {
    of.map(|index| index * MSS as u32).collect()
}

#[test]
fn ten_segments_go_first_and_more_with_each_acknowledgement() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(50_000);
    assert_eq!(bench.sent_at(), segments(0..10));
    bench.now += 10_000;
    bench.hear(0, 2000, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at(), segments(10..14));
}

#[test]
fn only_what_sack_shows_to_be_lost_is_sent_again() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(50_000);
    bench.sent();
    bench.now += 10_000;
    // Segments 0, 3 and 4 are lost.
    bench.hear(0, 0, flag::ACK, b"", &[(1000, 3000)]);
    bench.hear(0, 0, flag::ACK, b"", &[(5000, 10_000), (1000, 3000)]);
    let sent = bench.sent_at();
    assert_eq!(sent[..3], [0, 3000, 4000], "{sent:?}");
    assert_eq!(bench.tcp.info().retransmits, 3);
    assert_eq!(bench.tcp.info().cwnd_bytes, 7000);
    assert!(sent[3..].iter().all(|at| *at >= 10_000));
    // What was sent again arrives: nothing more is repeated.
    bench.now += 10_000;
    bench.hear(0, 10_000, flag::ACK, b"", &[]);
    assert!(bench.sent_at().iter().all(|at| *at >= 10_000));
    assert_eq!(bench.tcp.info().retransmits, 3);
}

#[test]
fn a_retransmission_that_is_lost_is_noticed_by_time() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(50_000);
    bench.sent();
    bench.now += 10_000;
    bench.hear(0, 0, flag::ACK, b"", &[(1000, 10_000)]);
    let first = bench.sent_at();
    assert_eq!(first[0], 0);
    let next = first.last().expect("new segments too") + MSS as u32;
    // New data that left with the repetition arrives, the repetition does not.
    bench.now += 10_500;
    bench.hear(0, 0, flag::ACK, b"", &[(1000, next)]);
    bench.pass(5_000);
    assert_eq!(bench.sent_at()[0], 0);
    assert_eq!(bench.tcp.info().retransmits, 2);
}

#[test]
fn segments_that_are_overtaken_are_waited_for_once_that_was_seen() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(50_000);
    bench.sent();
    bench.now += 10_000;
    // The first comes late, after the others: it was not lost.
    bench.hear(0, 0, flag::ACK, b"", &[(1000, 3000)]);
    assert!(!bench.sent_at().contains(&0), "two are not three");
    bench.hear(0, 5000, flag::ACK, b"", &[]);
    bench.sent();
    // Now three after it are no proof, but time is.
    bench.now += 1_000;
    bench.hear(0, 5000, flag::ACK, b"", &[(6000, 9000)]);
    assert!(!bench.sent_at().contains(&5000));
    bench.pass(20_000);
    assert!(bench.sent_at().contains(&5000));
}

#[test]
fn without_sack_three_duplicates_then_partial_acknowledgements_repair() {
    let mut bench = Bench::new(&options(), false, false);
    bench.write(30_000);
    bench.sent();
    bench.now += 10_000;
    // 0 and 2 are lost.
    for _ in 0..2 {
        bench.hear(0, 0, flag::ACK, b"", &[]);
    }
    assert!(!bench.sent_at().contains(&0));
    bench.hear(0, 0, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at()[0], 0);
    bench.now += 10_000;
    bench.hear(0, 2000, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at()[0], 2000);
    assert_eq!(bench.tcp.info().retransmits, 2);
}

#[test]
fn a_tail_is_asked_for_then_all_is_lost_after_the_timeout() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(3000);
    bench.sent();
    let start = bench.now;
    bench.pass(1_000_000);
    // Two round trips, then the last segment once more.
    assert!(
        (20_000..30_000).contains(&(bench.now - start)),
        "{}",
        bench.now - start
    );
    assert_eq!(bench.sent_at(), [2000]);
    let probe = bench.now;
    bench.pass(1_000_000);
    let rto = bench.now - probe;
    assert!((200_000..250_000).contains(&rto), "{rto}");
    assert_eq!(bench.sent_at(), [0], "a window of one segment");
    let second = bench.now;
    bench.pass(1_000_000);
    assert!(
        (400_000..500_000).contains(&(bench.now - second)),
        "doubled"
    );
    assert_eq!(bench.sent_at(), [0]);
    bench.now += 10_000;
    bench.hear(0, 1000, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at(), [1000, 2000]);
}

#[test]
fn a_timeout_that_was_wrong_is_taken_back() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(50_000);
    bench.sent();
    let before = bench.tcp.info().cwnd_bytes;
    let echo = bench.echo();
    bench.pass(1_000_000);
    bench.sent();
    bench.pass(1_000_000);
    assert_eq!(bench.sent_at(), [0]);
    assert_eq!(bench.tcp.info().cwnd_bytes, 1000);
    // The answer to the first transmission: its timestamp is older than the repetition.
    bench.now += 10_000;
    let mut options = [0; 12];
    packet::put_times(&mut options, (bench.their_clock, echo));
    let header = Tcp {
        seq: THEIRS,
        ack: OURS.wrapping_add(10_000),
        flags: flag::ACK,
        window: 60_000,
        ..Tcp::default()
    };
    bench.tcp.input(
        &header,
        &options,
        b"".as_slice().into(),
        &mut bench.pool,
        bench.now,
    );
    assert!(bench.tcp.info().cwnd_bytes >= before);
    assert!(bench.sent_at().iter().all(|at| *at >= 10_000));
}

#[test]
fn a_shut_window_is_asked_and_opens() {
    let mut bench = Bench::new(&options(), true, false);
    bench.write(3000);
    bench.sent();
    bench.now += 10_000;
    bench.window = 0;
    bench.hear(0, 3000, flag::ACK, b"", &[]);
    bench.write(5000);
    assert_eq!(bench.sent(), []);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let start = bench.now;
        bench.pass(100_000_000);
        waits.push(bench.now - start);
        let sent = bench.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].at, sent[0].len), (2999, 0));
        bench.hear(0, 3000, flag::ACK, b"", &[]);
    }
    assert!(
        waits.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2),
        "{waits:?}"
    );
    // Less than a segment is not worth it at once, but better than nothing.
    bench.window = 500;
    bench.hear(0, 3000, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at(), []);
    bench.pass(10_000_000);
    let sent = bench.sent();
    assert_eq!((sent[0].at, sent[0].len), (3000, 500));
    bench.window = 60_000;
    bench.hear(0, 3500, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at(), [3500, 4500, 5500, 6500, 7500]);
}

#[test]
fn a_window_that_was_taken_back_and_opens_is_used_at_once() {
    let mut bench = Bench::new(&options(), true, false);
    bench.write(20_000);
    assert_eq!(bench.sent_at(), segments(0..10));
    bench.now += 10_000;
    bench.window = 0;
    bench.hear(0, 0, flag::ACK, b"", &[]);
    for _ in 0..6 {
        bench.pass(100_000_000);
        bench.sent();
        bench.hear(0, 0, flag::ACK, b"", &[]);
    }
    let start = bench.now;
    bench.window = 60_000;
    bench.hear(0, 0, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at(), [0]);
    bench.now += 10_000;
    bench.hear(0, 1000, flag::ACK, b"", &[]);
    assert_eq!(bench.sent_at(), [1000, 2000]);
    assert_eq!(bench.now - start, 10_000);
    // A wait that follows is a short one again.
    bench.hear(0, 3000, flag::ACK, b"", &[]);
    bench.sent();
    let start = bench.now;
    bench.pass(100_000_000);
    assert!(bench.now - start < 300_000, "{}", bench.now - start);
}

#[test]
fn old_timestamps_are_refused_and_newer_ones_taken() {
    let mut bench = Bench::new(&options(), true, true);
    bench.their_clock = 200;
    bench.hear(0, 0, flag::ACK, b"new", &[]);
    bench.sent();
    // A segment from before, its number in the window by chance.
    bench.their_clock = 150;
    bench.hear(3, 0, flag::ACK, b"old", &[]);
    assert_eq!(bench.tcp.receive.unread(), 3);
    assert_eq!(bench.sent().len(), 1, "told where we stand");
    bench.their_clock = 201;
    bench.hear(3, 0, flag::ACK, b"new", &[]);
    assert_eq!(bench.tcp.receive.unread(), 6);
}

#[test]
fn streams_pass_the_end_of_their_numbers() {
    let mut bench = Bench::new(&options(), true, true);
    let (mut said, mut heard) = (0, 0);
    for _ in 0..60 {
        bench.write(1000);
        let sent = bench.sent();
        assert_eq!(sent.iter().filter(|s| s.len > 0).count(), 1);
        said += 1000;
        bench.now += 10_000;
        bench.hear(heard, said, flag::ACK, &[7; 900], &[]);
        heard += 900;
        assert_eq!(bench.read(), 900);
    }
    assert_eq!(bench.tcp.info().acked_bytes, 60_000);
    assert_eq!(bench.tcp.info().received_bytes, 54_000);
}

#[test]
fn one_forged_segment_does_not_make_all_others_look_old() {
    for seq in [0u32.wrapping_sub(1_000_000), 0u32.wrapping_sub(1)] {
        let mut bench = Bench::new(&options(), true, true);
        bench.their_clock = 100 + (1 << 30);
        // Its acknowledgement is a guess, or its place is outside the window.
        bench.hear(seq, 1 << 29, flag::ACK, b"x", &[]);
        bench.their_clock = 101;
        bench.hear(0, 0, flag::ACK, b"honest", &[]);
        assert_eq!(bench.tcp.receive.unread(), 6);
    }
}

#[test]
fn what_carries_payload_has_no_blocks() {
    let mut bench = Bench::new(&options(), true, true);
    bench.hear(1000, 0, flag::ACK, &[1; 1000], &[]);
    while bench.sent_one(MSS).is_some() {}
    bench.write(3 * MSS);
    while let Some(sent) = bench.sent_one(MSS) {
        assert!(sent.len == 0 || sent.blocks.is_empty(), "{sent:?}");
    }
}

#[test]
fn holes_are_told_the_last_change_first_and_what_came_twice_before_all() {
    let mut bench = Bench::new(&options(), true, true);
    bench.hear(2000, 0, flag::ACK, &[2; 1000], &[]);
    bench.hear(6000, 0, flag::ACK, &[6; 1000], &[]);
    bench.hear(4000, 0, flag::ACK, &[4; 1000], &[]);
    let blocks = bench.sent().remove(0).blocks;
    assert_eq!(blocks, [(4000, 5000), (6000, 7000), (2000, 3000)]);
    bench.hear(6000, 0, flag::ACK, &[6; 1000], &[]);
    let blocks = bench.sent().remove(0).blocks;
    assert_eq!(blocks, [(6000, 7000), (4000, 5000), (2000, 3000)]);
    // Holes close in one go; bytes are right.
    bench.hear(0, 0, flag::ACK, &[0; 7000], &[]);
    let last = bench.sent().remove(0);
    assert_eq!((last.ack, last.blocks.len()), (7000, 0));
}

#[test]
fn a_reader_that_keeps_up_gets_a_larger_window_and_memory_comes_with_bytes() {
    let mut bench = Bench::new(&options(), true, false);
    assert_eq!(bench.tcp.info().buffer_bytes, 0);
    assert_eq!(bench.pool.used(), CONNECTION_BYTES);
    let mut at = 0;
    let mut widest = 0;
    for _ in 0..600 {
        bench.hear(at, 0, flag::ACK, &[1; 1000], &[]);
        at += 1000;
        bench.read();
        widest = bench
            .sent()
            .iter()
            .map(|s| s.window)
            .max()
            .unwrap_or(0)
            .max(widest);
    }
    // Units of eight bytes.
    assert!(usize::from(widest) * 8 > 200_000, "{widest}");
    assert!(bench.tcp.info().buffer_bytes <= 4096);
    // A reader that stops fills it.
    for _ in 0..400 {
        bench.hear(at, 0, flag::ACK, &[1; 1000], &[]);
        at += 1000;
        bench.sent();
    }
    assert_eq!(bench.tcp.receive.unread(), 256 * 1024);
    assert_eq!(bench.tcp.info().buffer_bytes, 256 * 1024);
    assert!(bench.pool.used() >= 256 * 1024);
}

#[test]
fn without_memory_a_connection_goes_on_with_little() {
    let mut bench = Bench::new(&options(), true, false);
    bench.pool = Pool::new(CONNECTION_BYTES);
    bench.pool.begin_connection();
    let mut at = 0;
    for _ in 0..50 {
        bench.hear(at, 0, flag::ACK, &[1; 1000], &[]);
        at = bench.sent().last().map_or(at, |sent| sent.ack);
    }
    assert_eq!(bench.tcp.receive.unread(), 4096);
    assert_eq!(bench.read(), 4096);
    bench.hear(at, 0, flag::ACK, &[1; 1000], &[]);
    assert_eq!(bench.tcp.receive.unread(), 1000);
    bench.write(4096);
    assert!(bench.tcp.send.space(Some(1), &mut bench.pool).is_empty());
    assert_eq!(bench.pool.used(), CONNECTION_BYTES);
}

#[test]
fn a_reset_or_syn_out_of_place_is_only_answered() {
    let mut bench = Bench::new(&options(), true, false);
    bench.hear(5, 0, flag::RST, b"", &[]);
    assert_eq!(bench.tcp.state, TcpState::Established);
    assert_eq!(bench.sent().len(), 1);
    bench.now += 600_000;
    bench.hear(0, 0, flag::SYN, b"", &[]);
    assert_eq!(bench.sent().len(), 1);
    // Again at once: not answered.
    bench.hear(0, 0, flag::SYN, b"", &[]);
    assert_eq!(bench.sent().len(), 0);
    bench.hear(0, 0, flag::RST, b"", &[]);
    assert_eq!(bench.tcp.state, TcpState::Closed);
    assert_eq!(bench.tcp.error, Some(Error::Reset));
    assert_eq!(bench.sent(), [], "a reset is not answered");
}

#[test]
fn a_smaller_path_sends_what_was_too_large_in_smaller_pieces() {
    let mut bench = Bench::new(&options(), true, false);
    bench.write(10_000);
    bench.sent();
    bench.tcp.lower_mss(500, bench.now);
    let mut sent = Vec::new();
    while let Some(segment) = bench.sent_one(500) {
        assert!(segment.len <= 500);
        sent.push(segment.at);
    }
    assert_eq!(sent[..3], [0, 500, 1000]);
    assert_eq!(bench.tcp.info().cwnd_bytes, 10_000, "no congestion");
}

#[test]
fn a_large_segment_is_repaired_by_its_parts() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(50_000);
    let first = bench.sent_one(64_000).expect("a large segment");
    assert_eq!(first.len, 10_000);
    bench.now += 10_000;
    bench.hear(0, 3000, flag::ACK, b"", &[(4000, 10_000)]);
    let sent: Vec<Sent> = core::iter::from_fn(|| bench.sent_one(64_000)).collect();
    assert_eq!((sent[0].at, sent[0].len), (3000, 1000));
}

/// Two connections, a link that loses, doubles and overtakes, numbers that wrap: all arrives.
#[test]
fn by_chance_all_bytes_arrive_and_both_ends_close() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let options = TcpOptions {
            congestion: if rng.bool() {
                Congestion::Cubic
            } else {
                Congestion::None
            },
            is_nagle: rng.bool(),
            receive_bytes: 1 << rng.u32(10..18),
            send_bytes: 1 << rng.u32(10..18),
            ..TcpOptions::default()
        };
        let mut now = 1_000_000;
        let mut pools = [Pool::new(POOL_BYTES), Pool::new(POOL_BYTES)];
        pools.iter_mut().for_each(Pool::begin_connection);
        // Both begin at once.
        let mut ends = [0, 1].map(|side| {
            Connection::connect(u32::MAX - rng.u32(..50_000), side, 1000, &options, now)
        });
        let total = rng.usize(..300_000);
        let (mut written, mut read) = ([0; 2], [0; 2]);
        let mut links: [Vec<(Micros, Vec<u8>)>; 2] = [Vec::new(), Vec::new()];
        let mut bytes = vec![0; 70_000];
        let byte = |at: usize, side: usize| (at * 7 + at / 251 + side) as u8;
        let start = now;
        while ends
            .iter()
            .any(|end| !matches!(end.state, TcpState::Closed | TcpState::TimeWait))
        {
            assert!(
                now < start + 3_000_000_000,
                "seed {seed}: stuck, {read:?} of {total}"
            );
            for side in 0..2 {
                let end = &mut ends[side];
                if end.is_open() && written[side] < total {
                    let want = (total - written[side]).min(rng.usize(1..5000));
                    let space = end.send.space(Some(want), &mut pools[side]);
                    let len = space.len().min(want);
                    for (index, place) in space[..len].iter_mut().enumerate() {
                        *place = byte(written[side] + index, side);
                    }
                    end.send.written(len);
                    written[side] += len;
                }
                if written[side] == total && end.is_open() {
                    end.shut();
                }
                let unread = end.receive.unread();
                if unread > 0 && rng.u32(..10) > 0 {
                    let piece = end.receive.ring.piece(end.receive.read, unread);
                    for (index, got) in piece.iter().enumerate() {
                        assert_eq!(*got, byte(read[side] + index, 1 - side), "seed {seed}");
                    }
                    let len = piece.len();
                    read[side] += len;
                    end.consumed(len, &mut pools[side]);
                }
                let most = if rng.bool() {
                    end.send.mss
                } else {
                    20 * end.send.mss
                };
                while let Some((header, len)) = end.write(&mut bytes, most, now) {
                    let at = now
                        + 2000
                        + if rng.u32(..20) == 0 {
                            rng.u64(..3000)
                        } else {
                            0
                        };
                    for _ in 0..1 + u32::from(rng.u32(..30) == 0) {
                        if rng.u32(..20) > 0 {
                            links[1 - side].push((at, bytes[..header + len].to_vec()));
                        }
                    }
                }
            }
            let deadlines = [0, 1].map(|side| ends[side].deadline(now));
            let arrivals = links.iter().flatten().map(|frame| frame.0);
            let next = deadlines.into_iter().flatten().chain(arrivals).min();
            // Whoever may still write or read is asked again soon.
            now = next.unwrap_or(now + 100).clamp(now, now + 500).max(now + 1);
            for side in 0..2 {
                ends[side].on_time(now);
                let mut due: Vec<Vec<u8>> = Vec::new();
                links[side].retain(|frame| {
                    let is_due = frame.0 <= now;
                    if is_due {
                        due.push(frame.1.clone());
                    }
                    !is_due
                });
                for frame in due {
                    let tcp = Tcp::parse(&frame).expect("a header");
                    let (header, payload) = frame.split_at(tcp.header);
                    let options = &header[20..];
                    ends[side].input(&tcp, options, payload.into(), &mut pools[side], now);
                }
            }
        }
        for side in 0..2 {
            let left = ends[side].receive.unread();
            assert_eq!(read[side] + left, total, "seed {seed}");
            assert_eq!(ends[side].error, None, "seed {seed}");
        }
    }
}

/// Whatever a peer sends, nothing panics, and what it makes us keep is bounded.
#[test]
fn a_hostile_peer_finds_bounds() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bench = Bench::new(&options(), rng.bool(), rng.bool());
        let near = |rng: &mut fastrand::Rng| match rng.u32(..8) {
            0 => rng.u32(..),
            1 => u32::MAX - rng.u32(..3000),
            _ => rng.u32(..70_000),
        };
        for _ in 0..3_000 {
            if rng.u32(..4) == 0 && bench.tcp.send.room() >= 3000 && bench.tcp.is_open() {
                bench.write(rng.usize(1..3000));
            }
            let flags = match rng.u32(..200) {
                0 => flag::FIN | flag::ACK,
                1 => flag::SYN,
                2 => flag::RST,
                3 => rng.u8(..),
                _ => flag::ACK,
            };
            let blocks: Vec<(u32, u32)> = (0..rng.usize(..4))
                .map(|_| {
                    let start = near(&mut rng);
                    let len = rng.u32(..3000);
                    (start, start.wrapping_add(len))
                })
                .collect();
            bench.window = rng.u16(..);
            bench.their_clock = bench.their_clock.wrapping_add(rng.u32(..3));
            let bytes = vec![9; if rng.bool() { 0 } else { rng.usize(..2000) }];
            let (seq, ack) = (near(&mut rng), near(&mut rng));
            // Mostly what could be right.
            let ack = if rng.bool() {
                ack.min(bench.tcp.info().acked_bytes as u32 + rng.u32(..2000))
            } else {
                ack
            };
            bench.hear(seq, ack, flags, &bytes, &blocks);
            if rng.u32(..50) == 0 {
                bench.read();
            }
            let mut count = 0;
            while bench.sent_one([MSS, 20 * MSS][rng.usize(..2)]).is_some() {
                count += 1;
                assert!(count < 2_000, "seed {seed}: it sends without end");
            }
            bench.pass(rng.u64(..30_000));
            assert!(bench.tcp.send.run_count() < 1_000);
            assert!(bench.tcp.receive.piece_count() <= 256);
            assert!(bench.pool.used() <= POOL_BYTES);
            assert!(bench.tcp.info().buffer_bytes <= 512 * 1024);
        }
    }
}

/// Where segments with payload begin, and their urgent pointers.
fn pointers(sent: &[Sent]) -> Vec<(u32, Option<u16>)> {
    let pointer = |s: &Sent| (s.flags & flag::URG != 0).then_some(s.urgent);
    let texts = sent.iter().filter(|s| s.len > 0);
    texts.map(|s| (s.at, pointer(s))).collect()
}

#[test]
fn an_urgent_byte_goes_at_once_and_is_told_of_until_it_has_arrived() {
    let mut bench = Bench::new(&options(), true, true);
    bench.write(10);
    assert_eq!(pointers(&bench.sent()), [(0, None)]);
    bench.write(5);
    assert_eq!(bench.sent(), [], "Nagle holds it back");
    bench.write(1);
    bench.tcp.send.mark_urgent();
    assert_eq!(pointers(&bench.sent()), [(10, Some(6))]);
    bench.write(4);
    assert_eq!(pointers(&bench.sent()), [(16, None)]);
    // Lost, and sent again.
    bench.pass(1_000_000);
    bench.sent();
    bench.pass(1_000_000);
    assert_eq!(pointers(&bench.sent()), [(0, Some(16))]);
    bench.now += 10_000;
    bench.hear(0, 16, flag::ACK, b"", &[]);
    bench.write(7);
    let sent = bench.sent();
    assert!(sent.iter().all(|s| s.flags & flag::URG == 0), "{sent:?}");
}

#[test]
fn segments_that_reach_the_urgent_byte_point_to_it_and_are_not_to_be_cut() {
    let options = TcpOptions {
        congestion: Congestion::None,
        ..options()
    };
    let mut bench = Bench::new(&options, true, true);
    bench.write(70_000);
    bench.tcp.send.mark_urgent();
    bench.write(2000);
    let mut all = Vec::new();
    for _ in 0..1000 {
        let sent: Vec<_> = core::iter::from_fn(|| bench.sent_one(64_000)).collect();
        let Some(last) = sent.last() else {
            break;
        };
        let end = last.at + last.len as u32;
        all.extend(sent);
        bench.now += 10_000;
        bench.hear(0, end, flag::ACK, b"", &[]);
    }
    let told = pointers(&all);
    assert_eq!(all.iter().map(|s| s.len).sum::<usize>(), 72_000);
    for (at, pointer) in &told {
        let ahead = 70_000u32.checked_sub(*at).filter(|ahead| *ahead > 0);
        assert_eq!(*pointer, ahead.and_then(|ahead| u16::try_from(ahead).ok()));
    }
    let before = all.iter().filter(|s| s.at < 70_000);
    assert!(before.clone().all(|s| s.len <= MSS), "{told:?}");
    assert!(told.iter().any(|(_, pointer)| pointer.is_none()));
    assert!(told.iter().any(|(_, pointer)| pointer.is_some()));
}

#[test]
fn who_asks_at_a_shut_window_tells_of_an_urgent_byte() {
    let mut bench = Bench::new(&options(), true, false);
    bench.window = 0;
    bench.hear(0, 0, flag::ACK, b"", &[]);
    bench.write(3);
    bench.tcp.send.mark_urgent();
    bench.pass(100_000_000);
    let asked = bench.sent();
    assert_eq!(
        (asked[0].at, asked[0].len, asked[0].flags, asked[0].urgent),
        (u32::MAX, 0, flag::ACK | flag::URG, 4)
    );
    bench.tcp.abort();
    let reset = bench.sent();
    assert_eq!(reset[0].flags, flag::RST | flag::ACK);
}

#[test]
fn urgent_pointers_of_any_value_delay_nothing() {
    // Before "abcde", of which 'c' is the byte that a pointer of 3 ends behind.
    for (pointer, before) in [
        (0, Some(0)),
        (1, Some(0)),
        (3, Some(2)),
        (5, Some(4)),
        (6, None),
        (100, None),
        (u16::MAX, None),
    ] {
        let mut bench = Bench::new(&options(), true, true);
        bench.hear_with(0, 0, flag::ACK | flag::URG, pointer, b"abcde", &[]);
        assert_eq!(bench.tcp.receive.before_urgent(), before, "{pointer}");
        assert!(bench.tcp.ready.is_readable);
        assert_eq!(bench.tcp.receive.unread(), 5);
        assert_eq!(bench.sent().last().map(|s| s.ack), Some(5));
        // Told again, of what is here by now: it is urgent no more than before.
        bench.hear_with(0, 0, flag::ACK | flag::URG, pointer, b"abcde", &[]);
        assert_eq!(bench.tcp.receive.before_urgent(), before, "{pointer}");
        assert_eq!(bench.read(), 5);
        assert_eq!(bench.tcp.receive.before_urgent(), None, "{pointer}");
    }
}

#[test]
fn the_last_urgent_byte_that_was_told_of_is_the_one() {
    let mut bench = Bench::new(&options(), true, true);
    let urgent = flag::ACK | flag::URG;
    // Beyond a hole, and before its byte has come at all.
    bench.hear_with(5, 0, urgent, 2, b"fg", &[]);
    assert_eq!(bench.tcp.receive.before_urgent(), None);
    bench.hear(0, 0, flag::ACK, b"abcde", &[]);
    assert_eq!(bench.tcp.receive.before_urgent(), Some(6));
    // One that lies further back is none, one that is to come is.
    bench.hear_with(0, 0, urgent, 3, b"abcdefg", &[]);
    assert_eq!(bench.tcp.receive.before_urgent(), Some(6));
    bench.hear_with(7, 0, urgent, 0, b"", &[]);
    bench.hear(7, 0, flag::ACK, b"h", &[]);
    assert_eq!(bench.tcp.receive.before_urgent(), Some(7));
    bench.tcp.consumed(7, &mut bench.pool);
    assert_eq!(bench.tcp.receive.before_urgent(), Some(0));
    bench.tcp.consumed(1, &mut bench.pool);
    assert_eq!(bench.tcp.receive.before_urgent(), None);
    // Far ahead of all that comes: nothing waits for it.
    bench.hear_with(8, 0, urgent, u16::MAX, b"i", &[]);
    assert_eq!(bench.read(), 1);
    assert_eq!(bench.tcp.receive.before_urgent(), None);
}

#[test]
fn bytes_and_segments_are_counted_with_what_was_sent_again() {
    let mut bench = Bench::new(&options(), true, true);
    let start = bench.tcp.info().counts;
    let began = bench.now;
    bench.write(2500);
    bench.sent();
    bench.now += 10_000;
    bench.hear(0, 1000, flag::ACK, b"four", &[(2000, 2500)]);
    bench.pass(100_000);
    assert_eq!(bench.sent_at(), [1000]);
    let again_at = bench.now;
    bench.now += 10_000;
    bench.hear(4, 2500, flag::ACK, b"", &[]);
    // Twice the same.
    bench.hear(0, 2500, flag::ACK, b"four", &[]);
    bench.tcp.shut();
    bench.sent();
    let info = bench.tcp.info();
    assert_eq!((info.sent_bytes, info.sent_again_bytes), (3500, 1000));
    assert_eq!((info.acked_bytes, info.received_bytes), (2500, 4));
    assert_eq!(
        (info.out_bytes, info.sacked_bytes, info.lost_bytes),
        (1, 0, 0)
    );
    let counts = info.counts;
    assert_eq!(counts.texts_out - start.texts_out, 4);
    assert_eq!(counts.segments_in - start.segments_in, 3);
    assert_eq!(counts.texts_in - start.texts_in, 2);
    assert_eq!(
        (counts.sent_at, counts.heard_at, counts.acked_at),
        (again_at, began + 10_000, bench.now)
    );
    // A long segment is as many as it is cut to.
    bench = Bench::new(&options(), true, true);
    bench.write(4500);
    bench.sent_one(64_000);
    assert_eq!(bench.tcp.info().counts.texts_out, 5);
}
