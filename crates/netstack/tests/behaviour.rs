//! What a connection does beyond moving bytes: when it acknowledges, when it waits for company,
//! what it offers and answers, when it gives up. Looked at on the wire.

mod common;

use common::{Conditions, World, at, config, ip};
use fordway_netstack::{Config, Congestion, Error, Keepalive, RxChecksum, RxFrame};
use fordway_netstack::{TcpId, TcpOptions, TcpState};

const ACK: u8 = 16;
const SYN: u8 = 2;
const RST: u8 = 4;

fn pair(world: &mut World, options: TcpOptions) -> (TcpId, TcpId) {
    let listener = world.sides[1]
        .tcp_listen(None, 80, 4, options)
        .expect("listens");
    let now = world.now;
    let client = world.sides[0]
        .tcp_connect(now, at(1, 80), None, options)
        .expect("begins");
    world.run(200_000);
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    world.events(0);
    world.events(1);
    world.keeps_sent = true;
    world.sent.clear();
    (client, server)
}

/// TCP segments that a side has sent: flags, length of the payload, options.
fn segments(world: &World, side: usize) -> Vec<(u8, usize, Vec<u8>)> {
    let ours = world
        .sent
        .iter()
        .filter(|s| s.0 == side && s.1[12..14] == [8, 0] && s.1[23] == 6);
    ours.map(|(_, frame, _)| {
        let header = usize::from(frame[46] >> 4) * 4;
        (
            frame[47],
            frame.len() - 34 - header,
            frame[54..34 + header].to_vec(),
        )
    })
    .collect()
}

#[test]
fn an_acknowledgement_waits_for_company_and_then_goes_alone() {
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world, TcpOptions::default());
    let alone = |world: &World| -> Vec<(u8, usize)> {
        let all = segments(world, 1);
        all.iter().map(|(flags, len, _)| (*flags, *len)).collect()
    };
    // The first go at once, until the server has something to say itself.
    world.sides[0].tcp_send(client, b"x").expect("sends");
    world.run(1_000);
    assert_eq!(alone(&world), [(ACK, 0)]);
    world.sides[1].tcp_send(server, b"x").expect("sends");
    world.run(20_000);
    world.sent.clear();
    world.sides[0].tcp_send(client, b"x").expect("sends");
    world.run(9_000);
    assert_eq!(alone(&world), [], "10 ms are not over");
    world.run(5_000);
    assert_eq!(alone(&world), [(ACK, 0)]);
    // Two full segments are acknowledged at once.
    world.sent.clear();
    world.sides[0].tcp_send(client, &[7; 2920]).expect("sends");
    world.run(1_000);
    assert_eq!(segments(&world, 1).len(), 1);
}

/// Ten writes of ten bytes, each given to the link before the next: how many segments go out.
fn segments_of_ten_writes(is_nagle: bool) -> usize {
    let mut world = World::new(Conditions {
        delay_us: 1_000,
        ..Conditions::default()
    });
    let (client, _) = pair(
        &mut world,
        TcpOptions {
            is_nagle,
            ..TcpOptions::default()
        },
    );
    for _ in 0..10 {
        world.sides[0].tcp_send(client, &[1; 10]).expect("sends");
        world.flush();
    }
    world.run(100_000);
    let all = segments(&world, 0);
    assert_eq!(all.iter().map(|s| s.1).sum::<usize>(), 100);
    all.iter().filter(|s| s.1 > 0).count()
}

#[test]
fn nagle_gathers_small_writes_and_nodelay_does_not() {
    assert_eq!(segments_of_ten_writes(true), 2);
    assert_eq!(segments_of_ten_writes(false), 10);
}

#[test]
fn keepalive_asks_before_it_ends_a_connection_that_was_silent_before() {
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world, TcpOptions::default());
    world.run(100_000_000);
    assert!(segments(&world, 0).is_empty(), "nobody has asked");
    let options = TcpOptions {
        keepalive: Some(Keepalive::each(1_000_000)),
        ..TcpOptions::default()
    };
    let set = world.sides[0].tcp_set_options(client, options);
    set.expect("a connection");
    world.run(10_000_000);
    for (side, id) in [(0, client), (1, server)] {
        assert_eq!(world.sides[side].tcp_state(id), Ok(TcpState::Established));
    }
    assert!(segments(&world, 0).len() >= 8, "probes");
}

#[test]
fn keepalive_finds_out_who_is_gone() {
    let options = TcpOptions {
        keepalive: Some(Keepalive::each(10_000_000)),
        ..TcpOptions::default()
    };
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world, options);
    world.run(100_000_000);
    assert_eq!(world.sides[0].tcp_state(client), Ok(TcpState::Established));
    assert!(segments(&world, 0).len() >= 9, "probes and their answers");
    world.conditions.loss_per_mille = 1000;
    world.run(60_000_000);
    for (side, id) in [(0, client), (1, server)] {
        let got = world.sides[side].tcp_receive(id, &mut [0; 4]);
        assert_eq!(got, Err(Error::TimedOut));
    }
}

#[test]
fn silence_while_data_waits_ends_a_connection() {
    let mut world = World::new(Conditions::default());
    let (client, _) = pair(&mut world, TcpOptions::default());
    world.conditions.loss_per_mille = 1000;
    world.sides[0].tcp_send(client, b"lost").expect("sends");
    world.run(110_000_000);
    assert_eq!(
        world.sides[0].tcp_receive(client, &mut [0; 4]),
        Err(Error::WouldBlock)
    );
    world.run(20_000_000);
    assert_eq!(
        world.sides[0].tcp_receive(client, &mut [0; 4]),
        Err(Error::TimedOut)
    );
}

#[test]
fn a_lone_segment_that_is_lost_goes_out_again_long_before_a_second() {
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world, TcpOptions::default());
    for lost in 1..=3 {
        world.conditions.loss_per_mille = 1000;
        world.sides[0].tcp_send(client, b"lost").expect("sends");
        world.flush();
        world.conditions.loss_per_mille = 0;
        world.run(400_000);
        assert_eq!(world.sides[1].tcp_unread(server), Ok(4 * lost));
    }
}

#[test]
fn holes_are_named_by_sack() {
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world, TcpOptions::default());
    world.conditions.loss_per_mille = 1000;
    world.sides[0].tcp_send(client, &[1; 1460]).expect("sends");
    world.flush();
    world.conditions.loss_per_mille = 0;
    world.sides[0].tcp_send(client, &[2; 500]).expect("sends");
    let options = TcpOptions {
        is_nagle: false,
        ..TcpOptions::default()
    };
    world.sides[0]
        .tcp_set_options(client, options)
        .expect("sets");
    world.run(1_000);
    let acks = segments(&world, 1);
    let sacks = acks
        .iter()
        .any(|(_, _, options)| options.windows(2).any(|w| w == [5, 10]));
    assert!(sacks, "{acks:?}");
    // The probe repairs it long before a second is over.
    world.run(400_000);
    assert_eq!(world.sides[1].tcp_unread(server), Ok(1960));
}

const WINDOW_SCALE: u8 = 3;
/// A buffer that 16 bits cannot tell; its length needs a shift of 3.
fn large() -> TcpOptions {
    TcpOptions {
        receive_bytes: 256 * 1024,
        send_bytes: 256 * 1024,
        congestion: Congestion::None,
        ..TcpOptions::default()
    }
}

/// Where an option of this kind lies among a segment's.
fn option_at(options: &[u8], kind: u8) -> Option<usize> {
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        if options[at] == kind {
            return Some(at);
        }
        at += if options[at] == 1 {
            1
        } else {
            options[at + 1].into()
        };
    }
    None
}

#[test]
fn windows_are_scaled_where_both_sides_say_so() {
    let mut world = World::new(Conditions {
        delay_us: 10_000,
        ..Conditions::default()
    });
    world.keeps_sent = true;
    let now = world.now;
    let listener = world.sides[1]
        .tcp_listen(None, 80, 4, large())
        .expect("listens");
    let client = world.sides[0]
        .tcp_connect(now, at(1, 80), None, large())
        .expect("begins");
    world.run(50_000);
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    for side in [0, 1] {
        let (_, _, options) = segments(&world, side).remove(0);
        let at = option_at(&options, WINDOW_SCALE).expect("the option is there");
        assert_eq!(options[at..at + 3], [WINDOW_SCALE, 3, 3]);
    }
    // The window of a SYN is not scaled (RFC 7323 section 2.2), and grows with what is read.
    let (mut buffer, mut sent, mut got) = (vec![0; 65_536], 0, 0);
    while got < 300_000 {
        let rest = vec![7; 300_000 - sent];
        sent += world.sides[0].tcp_send(client, &rest).unwrap_or(0);
        world.run(50_000);
        while let Ok(len) = world.sides[1].tcp_receive(server, &mut buffer) {
            got += len;
        }
    }
    world.run(100_000);
    // Nobody reads: what is under way is what the window told, and that is all of the buffer.
    let bytes = vec![7; large().send_bytes];
    let sent = world.sides[0].tcp_send(client, &bytes).expect("sends");
    assert_eq!(sent, bytes.len());
    world.sent.clear();
    world.flush();
    let burst: usize = segments(&world, 0).iter().map(|s| s.1).sum();
    assert!(burst > 128 * 1024, "{burst} bytes before an answer");
    world.run(1_000_000);
    // The last word: a full buffer, in units of 8 bytes.
    let answers = world.sent.iter().filter(|s| s.0 == 1);
    let windows: Vec<u16> = answers
        .map(|(_, frame, _)| u16::from_be_bytes([frame[48], frame[49]]))
        .collect();
    assert!(
        windows
            .iter()
            .all(|window| usize::from(*window) <= large().receive_bytes >> 3)
    );
    assert_eq!(windows.last(), Some(&0));
}

#[test]
fn a_peer_that_scales_no_windows_is_told_none() {
    let mut world = World::new(Conditions {
        delay_us: 10_000,
        ..Conditions::default()
    });
    world.keeps_sent = true;
    let now = world.now;
    world.sides[1]
        .tcp_listen(None, 80, 4, large())
        .expect("listens");
    world.sides[0]
        .tcp_connect(now, at(1, 80), None, large())
        .expect("begins");
    world.flush();
    while segments(&world, 0).is_empty() {
        world.step(u64::MAX);
        world.flush();
    }
    let syn = world.sent.iter().rfind(|s| s.0 == 0).expect("a SYN");
    let mut syn = syn.1.clone();
    let at = 54 + option_at(&syn[54..], WINDOW_SCALE).expect("the option is there");
    // Three bytes that say nothing.
    syn[at..at + 3].fill(1);
    world.conditions.loss_per_mille = 1000;
    world.sent.clear();
    let now = world.now;
    let mut frame = RxFrame {
        bytes: &mut syn,
        checksum: RxChecksum::Good,
    };
    world.sides[1].receive(now, &mut frame);
    world.flush();
    let (flags, _, options) = segments(&world, 1).remove(0);
    assert_eq!(flags, SYN | ACK);
    assert_eq!(option_at(&options, WINDOW_SCALE), None);
}

#[test]
fn a_neighbor_is_sent_a_whole_window_until_something_is_lost() {
    let options = TcpOptions {
        congestion: Congestion::UntilLoss,
        ..large()
    };
    let mut world = World::new(Conditions {
        delay_us: 10_000,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world, options);
    let in_burst = |world: &mut World| {
        world.sent.clear();
        world.flush();
        segments(world, 0).iter().map(|s| s.1).sum::<usize>()
    };
    let bytes = vec![7; 200_000];
    let read = |world: &mut World| {
        let mut buffer = vec![0; 200_000];
        let mut got = 0;
        while got < 200_000 {
            got += world.sides[1].tcp_receive(server, &mut buffer).unwrap_or(0);
            assert!(world.step(world.now + 60_000_000) || got == 200_000);
        }
    };
    // The first window is that of a SYN, 16 bits.
    world.sides[0].tcp_send(client, &bytes).expect("sends");
    assert!(in_burst(&mut world) > 64_000);
    read(&mut world);
    world.run(100_000);
    world.sides[0].tcp_send(client, &bytes).expect("sends");
    assert_eq!(in_burst(&mut world), 200_000);
    read(&mut world);
    // All of a burst is lost: what follows begins small.
    world.sides[0].tcp_send(client, &bytes).expect("sends");
    world.conditions.loss_per_mille = 1000;
    world.flush();
    world.conditions.loss_per_mille = 0;
    read(&mut world);
    world.run(1_000_000);
    world.sides[0].tcp_send(client, &bytes).expect("sends");
    let burst = in_burst(&mut world);
    assert!(burst < 200_000, "{burst} bytes after a loss");
}

#[test]
fn a_reader_that_stops_stops_the_sender_and_starts_it_again() {
    let options = TcpOptions {
        receive_bytes: 4096,
        ..TcpOptions::default()
    };
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world, options);
    let mut sent = world.sides[0]
        .tcp_send(client, &[1; 60_000])
        .expect("sends");
    world.run(30_000_000);
    assert_eq!(world.sides[1].tcp_unread(server), Ok(4096));
    let (mut got, mut buffer) = (0, [0; 1000]);
    while got < 100_000 {
        if let Ok(len) = world.sides[0].tcp_send(client, &vec![1; 100_000 - sent]) {
            sent += len;
        }
        while let Ok(len) = world.sides[1].tcp_receive(server, &mut buffer) {
            got += len;
        }
        assert!(world.step(world.now + 10_000_000), "stuck at {got}");
    }
}

#[test]
fn closing_with_bytes_unread_resets() {
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world, TcpOptions::default());
    world.sides[0].tcp_send(client, b"unread").expect("sends");
    world.run(20_000);
    world.sides[1].tcp_close(server).expect("closes");
    world.run(20_000);
    assert!(segments(&world, 1).iter().any(|s| s.0 & RST != 0));
    assert_eq!(
        world.sides[0].tcp_receive(client, &mut [0; 4]),
        Err(Error::Reset)
    );
}

/// Sends until no more goes, to a peer that reads nothing.
fn fill(world: &mut World, id: TcpId) {
    loop {
        let sent = world.sides[1].tcp_send(id, &[7; 60_000]);
        world.run(1_000_000);
        if sent.is_err() {
            return;
        }
    }
}

#[test]
fn what_was_sent_before_a_reset_arrives() {
    for unread in [true, false] {
        let mut world = World::new(Conditions::default());
        let (client, server) = pair(&mut world, TcpOptions::default());
        if unread {
            world.sides[0].tcp_send(client, b"unread").expect("sends");
            world.run(20_000);
        }
        // Nothing has left when it ends.
        world.sides[1].tcp_send(server, &[7; 9000]).expect("sends");
        match unread {
            true => world.sides[1].tcp_close(server).expect("closes"),
            false => world.sides[1].tcp_abort(server).expect("aborts"),
        }
        world.run(20_000);
        let got = world.sides[0].tcp_receive(client, &mut [0; 9999]);
        assert_eq!(got, Ok(9000));
        let got = world.sides[0].tcp_receive(client, &mut [0; 4]);
        assert_eq!(got, Err(Error::Reset));
        assert_eq!(world.sides[1].tcp_counts(), (0, 0, 0));
    }
    // What a shut window keeps back is lost, as on Linux.
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world, TcpOptions::default());
    fill(&mut world, server);
    world.sides[1].tcp_abort(server).expect("aborts");
    world.run(20_000);
    assert_eq!(world.sides[1].tcp_counts(), (0, 0, 0));
    let state = world.sides[0].tcp_state(client);
    assert_eq!(state, Ok(TcpState::Closed));
}

#[test]
fn a_peer_that_takes_nothing_keeps_no_connection_without_a_program() {
    let patient = TcpOptions {
        user_timeout_us: 3_600_000_000,
        ..TcpOptions::default()
    };
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world, patient);
    fill(&mut world, server);
    // A program is waited for as long as it likes.
    world.run(1_000_000_000);
    let state = |world: &mut World| world.sides[1].tcp_state(server);
    assert_eq!(state(&mut world), Ok(TcpState::Established));
    // It goes, and leaves bytes for which there is no room.
    world.sides[1].tcp_leave(server).expect("leaves");
    world.run(100_000_000);
    assert_eq!(state(&mut world), Ok(TcpState::Established));
    // A peer that takes some is waited for anew.
    while world.sides[0].tcp_receive(client, &mut [0; 9000]).is_ok() {}
    world.run(1_000_000);
    fill(&mut world, server);
    world.run(100_000_000);
    assert_eq!(state(&mut world), Ok(TcpState::Established));
    world.run(30_000_000);
    assert_eq!(state(&mut world), Ok(TcpState::Closed));
    let sent = world.sides[1].tcp_send(server, b"x");
    assert_eq!(sent, Err(Error::TimedOut));
}

#[test]
fn a_wait_begins_when_it_begins_however_long_nothing_happened_before() {
    let mut world = World::new(Conditions {
        delay_us: 1000,
        ..Conditions::default()
    });
    let (client, server) = pair(&mut world, TcpOptions::default());
    world.sides[1].tcp_send(server, b"x").expect("sends");
    world.run(10_000_000_000);
    let got = world.sides[0].tcp_receive(client, &mut [0; 4]);
    assert_eq!(got, Ok(1));
    world.sides[1].tcp_shutdown(server).expect("shuts");
    world.run(10_000_000);
    let got = world.sides[0].tcp_receive(client, &mut [0; 4]);
    assert_eq!(got, Ok(0));
    assert!(segments(&world, 1).iter().all(|s| s.0 & RST == 0));
    // After a close it waits for our end as long as it should.
    world.run(10_000_000_000);
    world.sides[1].tcp_close(server).expect("closes");
    world.run(40_000_000);
    assert_eq!(world.sides[1].tcp_counts().0, 1);
}

#[test]
fn the_oldest_of_too_many_connections_without_a_program_ends() {
    let mut bounded = config(1);
    bounded.limits.left_max = 16;
    let mut world = World::with([config(0), bounded], Conditions::default());
    let options = TcpOptions::default();
    let listener = world.sides[1].tcp_listen(None, 80, 64, options);
    let listener = listener.expect("listens");
    let mut kept = Vec::new();
    for round in 0..60 {
        let now = world.now;
        let client = world.sides[0].tcp_connect(now, at(1, 80), None, options);
        world.run(20_000);
        let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
        world.sides[1]
            .tcp_send(server, &[7; 60_000])
            .expect("sends");
        // Each way to lose its program.
        match round % 3 {
            0 => world.sides[1].tcp_leave(server).expect("leaves"),
            1 => world.sides[1].tcp_close(server).expect("closes"),
            _ => world.sides[1].tcp_shut_both(server).expect("shuts"),
        }
        kept.push(client.expect("begins"));
        world.run(20_000);
        assert!(world.sides[1].tcp_counts().0 <= 16);
    }
    let is_over = |world: &mut World, id: &TcpId| {
        matches!(world.sides[0].tcp_state(*id), Ok(TcpState::Closed))
    };
    let over: Vec<_> = kept.iter().map(|id| is_over(&mut world, id)).collect();
    let live = over.iter().filter(|is_over| !**is_over).count();
    assert!((14..=16).contains(&live), "{over:?}");
    assert!(
        over.is_sorted_by(|before, after| before >= after),
        "{over:?}"
    );
}

#[test]
fn connections_of_an_address_that_goes_away_end() {
    let mut world = World::new(Conditions::default());
    let (client, _) = pair(&mut world, TcpOptions::default());
    let kept: Vec<_> = world.sides[0]
        .addresses()
        .iter()
        .copied()
        .filter(|own| own.address != ip(0))
        .collect();
    world.sides[0].set_addresses(&kept);
    let got = world.sides[0].tcp_receive(client, &mut [0; 4]);
    assert_eq!(got, Err(Error::AddressNotAvailable));
    assert_eq!(world.sides[0].tcp_counts().0, 0);
}

#[test]
fn buffers_of_all_connections_have_one_bound() {
    let limited = |side: usize| -> Config {
        let mut config = config(side);
        config.limits.tcp_buffer_bytes_max = 100_000;
        config
    };
    let options = TcpOptions {
        receive_bytes: 10_000,
        send_bytes: 10_000,
        ..TcpOptions::default()
    };
    let mut world = World::with([config(0), limited(1)], Conditions::default());
    let listener = world.sides[1]
        .tcp_listen(None, 80, 64, options)
        .expect("listens");
    let now = world.now;
    for _ in 0..20 {
        world.sides[0]
            .tcp_connect(now, at(1, 80), None, options)
            .expect("begins");
    }
    world.run(100_000);
    let accepted: Vec<TcpId> = std::iter::from_fn(|| world.sides[1].tcp_accept(listener).ok())
        .map(|(id, _)| id)
        .collect();
    // With so many connections allowed all get small buffers (8 KB), and all in all no more
    // than the bound.
    let first = accepted.len();
    assert!(first >= 5 && first * 8192 <= 100_000, "{first}");
    assert_eq!(world.sides[1].tcp_counts().0, first);
    // Room again: those who still try come in.
    for id in accepted {
        world.sides[1].tcp_abort(id).expect("aborts");
    }
    world.run(10_000_000);
    assert_eq!(world.sides[1].tcp_counts().0, 20 - first);
}

#[test]
fn a_connection_in_the_buffers_of_an_earlier_one_hears_nothing_of_it() {
    let mut world = World::new(Conditions {
        delay_us: 100,
        ..Conditions::default()
    });
    let options = TcpOptions::default();
    let listener = world.sides[1]
        .tcp_listen(None, 80, 4, options)
        .expect("listens");
    for round in 1..20u8 {
        let now = world.now;
        let client = world.sides[0]
            .tcp_connect(now, at(1, 80), None, options)
            .expect("begins");
        world.run(10_000);
        let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
        assert_eq!(world.sides[1].tcp_unread(server), Ok(0));
        let info = world.sides[0].tcp_info(client).expect("it is there");
        assert_eq!(info.unacked_bytes, 0);
        let said = vec![round; 1000 * usize::from(round)];
        world.sides[0].tcp_send(client, &said).expect("sends");
        world.run(100_000);
        let mut heard = vec![0; 30_000];
        let len = world.sides[1]
            .tcp_receive(server, &mut heard)
            .expect("receives");
        assert_eq!(heard[..len], said);
        // Odd rounds end in the middle of things: unread bytes, a FIN on its way, a RST.
        world.sides[1].tcp_send(server, &said).expect("sends");
        if round % 2 == 0 {
            world.sides[1].tcp_close(server).expect("closes");
            world.run(100_000);
            let len = world.sides[0].tcp_receive(client, &mut heard);
            assert_eq!(len, Ok(said.len()));
            world.sides[0].tcp_close(client).expect("closes");
        } else {
            world.sides[0].tcp_abort(client).expect("aborts");
            world.sides[1].tcp_abort(server).expect("aborts");
        }
        world.run(100_000);
        assert_eq!(world.sides[0].tcp_counts().0, 0);
        assert_eq!(world.sides[1].tcp_counts().0, 0);
    }
}

#[test]
fn a_broken_checksum_is_noticed() {
    let mut world = World::new(Conditions::default());
    let (client, server) = pair(&mut world, TcpOptions::default());
    world.sides[0].tcp_send(client, b"right").expect("sends");
    world.flush();
    let mut frame = world.sent.last().expect("a frame").1.clone();
    let last = frame.len() - 1;
    frame[last] ^= 1;
    world.inject(1, &frame);
    assert_eq!(world.sides[1].tcp_unread(server), Ok(0));
    assert_eq!(
        world.sides[1].counters().drops[fordway_netstack::Drop::Checksum as usize],
        1
    );
    world.run(1_000);
    assert_eq!(world.sides[1].tcp_unread(server), Ok(5));
}
