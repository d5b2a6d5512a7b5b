//! Frames of which only the head is there: what is read of the rest, and that it is read once. In all other tests half of the
//! frames come that way.

mod common;

use common::behind::receive;
use common::{Conditions, World, at, config};
use fordway_netstack::{
    Config, Drop, Error, HEAD_BYTES_MIN, ListenerId, Offloads, RxChecksum, TcpId, TcpOptions,
};

/// Two hosts that send trains of segments.
fn world() -> World {
    let trains = |side| -> Config {
        let mut config = config(side);
        config.link.offloads = Offloads {
            tx_checksum_v4: true,
            gso_v4: true,
            ..Offloads::default()
        };
        config
    };
    let mut world = World::with([trains(0), trains(1)], Conditions::default());
    world.keeps_sent = true;
    world
}

fn begin(world: &mut World, port: u16) -> (TcpId, ListenerId) {
    let listener = world.sides[1].tcp_listen(None, port, 4, TcpOptions::default());
    let listener = listener.expect("listens");
    let now = world.now;
    let client = world.sides[0].tcp_connect(now, at(1, port), None, TcpOptions::default());
    (client.expect("begins"), listener)
}

fn pair(world: &mut World) -> (TcpId, TcpId) {
    let (client, listener) = begin(world, 80);
    world.run(1_000_000);
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    (client, server)
}

/// What side 0 sends now, which the link loses.
fn sent(world: &mut World, client: TcpId, text: &[u8]) -> Vec<u8> {
    assert_eq!(world.sides[0].tcp_send(client, text), Ok(text.len()));
    lost(world)
}

fn lost(world: &mut World) -> Vec<u8> {
    world.conditions.loss_per_mille = 1000;
    world.sent.clear();
    world.flush();
    world.conditions.loss_per_mille = 0;
    let (_, frame, _) = world.sent.pop().expect("a frame");
    frame
}

/// As many bytes as so many segments carry, so that none of them waits for more.
fn text(world: &mut World, client: TcpId, segments: usize) -> Vec<u8> {
    let info = world.sides[0].tcp_info(client).expect("it is there");
    let len = segments * info.mss_bytes as usize;
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn arrived(world: &mut World, server: TcpId) -> Result<Vec<u8>, Error> {
    let mut buffer = vec![0; 65_536];
    let len = world.sides[1].tcp_receive(server, &mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

#[test]
fn text_is_copied_once_and_only_if_it_is_new() {
    let mut world = world();
    let (client, server) = pair(&mut world);
    let text = text(&mut world, client, 7);
    let frame = sent(&mut world, client, &text);
    assert!(frame.len() > text.len(), "a train");
    let now = world.now;
    let behind = frame.len() - HEAD_BYTES_MIN;
    let read = receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
    assert_eq!(read, behind);
    assert_eq!(arrived(&mut world, server), Ok(text));
    let read = receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
    assert_eq!(read, 0, "it has come before");
    assert_eq!(arrived(&mut world, server), Err(Error::WouldBlock));
}

#[test]
fn what_a_hole_keeps_back_lies_in_the_stack() {
    let mut world = world();
    let (client, server) = pair(&mut world);
    let all = text(&mut world, client, 6);
    let third = all.len() / 3;
    let frames = [0, 1, 2].map(|at| sent(&mut world, client, &all[at * third..][..third]));
    let now = world.now;
    for at in [1, 2, 0] {
        let read = receive(&mut world.sides[1], now, &frames[at], RxChecksum::Blank);
        assert_eq!(read, frames[at].len() - HEAD_BYTES_MIN, "{at}");
    }
    assert_eq!(arrived(&mut world, server), Ok(all));
}

#[test]
fn a_checksum_is_made_of_what_was_copied() {
    let mut world = world();
    let (client, server) = pair(&mut world);
    let text = text(&mut world, client, 3);
    let frame = sent(&mut world, client, &text);
    let now = world.now;
    let read = receive(&mut world.sides[1], now, &frame, RxChecksum::Unchecked);
    assert_eq!(read, frame.len() - HEAD_BYTES_MIN);
    // It was left blank.
    assert_eq!(world.sides[1].counters().drops[Drop::Checksum as usize], 1);
    assert_eq!(arrived(&mut world, server), Err(Error::WouldBlock));
}

#[test]
fn text_that_ends_the_handshake_is_whole() {
    let mut world = world();
    // The neighbors know each other.
    pair(&mut world);
    let (client, listener) = begin(&mut world, 81);
    let now = world.now;
    let [syn, syn_ack] = [0, 1].map(|from| {
        let frame = lost(&mut world);
        let to = &mut world.sides[1 - from];
        receive(to, now, &frame, RxChecksum::Blank);
        frame
    });
    assert!(syn.len() < HEAD_BYTES_MIN && syn_ack.len() < HEAD_BYTES_MIN);
    let text = text(&mut world, client, 3);
    let frame = sent(&mut world, client, &text);
    receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
    let (server, _) = world.sides[1].tcp_accept(listener).expect("accepts");
    assert_eq!(arrived(&mut world, server), Ok(text));
}

#[test]
fn a_datagram_is_whole() {
    let mut world = world();
    let own = world.sides[1].udp_bind(None, 53).expect("binds");
    let from = world.sides[0].udp_bind(None, 0).expect("binds");
    let text = [7; 1_400];
    let to_server = world.sides[0].udp_send(from, at(1, 53), &text);
    to_server.expect("sends");
    world.run(10_000);
    assert!(world.sides[1].udp_receive(own, &mut [0; 2_000]).is_ok());
    let frame = world.sent.iter().rfind(|sent| sent.0 == 0);
    let (_, frame, _) = frame.expect("it went").clone();
    let now = world.now;
    let read = receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
    assert_eq!(read, frame.len() - HEAD_BYTES_MIN);
    let mut buffer = [0; 2_000];
    assert!(world.sides[1].udp_receive(own, &mut buffer).is_ok());
    assert_eq!(buffer[..text.len()], text);
}

#[cfg(feature = "filter")]
mod rules {
    use super::*;
    use fordway_netstack::fordway_filter::rules::read;
    use fordway_platform::nftables::{Scratch, Source};

    /// Puts these in force on side 1, of a connection's packets; `None` without the right to ask nft.
    fn set(world: &mut World, rules: &str) -> Option<()> {
        let Ok(scratch) = Scratch::new() else {
            fordway_test_skip::skipped("network namespaces need root");
            return None;
        };
        let text = format!(
            "table ip fw {{ chain c {{ type filter hook input priority 0; {rules}\n }}\n }}"
        );
        scratch.load(Source::text(&text)).expect("nft takes them");
        let rules = read(&scratch.dump().expect("dumped")).expect("read");
        let now = world.now;
        world.sides[1].set_rules(now, rules).expect("all is known");
        Some(())
    }

    #[test]
    fn those_that_look_at_headers_need_no_more() {
        let mut world = world();
        let (client, server) = pair(&mut world);
        let rules = "ip length 0-100 drop\n tcp dport 81 drop\n @th,448,32 0xdddddddd drop";
        if set(&mut world, rules).is_none() {
            return;
        }
        let text = text(&mut world, client, 3);
        let frame = sent(&mut world, client, &text);
        let now = world.now;
        let read = receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
        assert_eq!(read, frame.len() - HEAD_BYTES_MIN);
        assert_eq!(arrived(&mut world, server), Ok(text.clone()));
        let read = receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
        assert_eq!(read, 0, "it has come before");
    }

    #[test]
    fn those_that_look_further_see_what_is_there() {
        let mut world = world();
        let (client, server) = pair(&mut world);
        // Four bytes, 200 behind the beginning of TCP's header.
        if set(&mut world, "@th,1600,32 0x41414141 drop").is_none() {
            return;
        }
        let len = text(&mut world, client, 2).len();
        let frames = [b'A', b'B'].map(|byte| sent(&mut world, client, &vec![byte; len]));
        let now = world.now;
        for frame in &frames {
            receive(&mut world.sides[1], now, frame, RxChecksum::Blank);
        }
        let drops = &world.sides[1].counters().drops;
        assert_eq!(drops[Drop::Filter as usize], 1);
        // It lies behind a hole.
        assert_eq!(arrived(&mut world, server), Err(Error::WouldBlock));
    }

    #[test]
    fn a_refusal_quotes_what_is_there() {
        let mut world = world();
        let (client, _) = pair(&mut world);
        let rules = "tcp dport 80 reject with icmp type admin-prohibited";
        if set(&mut world, rules).is_none() {
            return;
        }
        let text = text(&mut world, client, 3);
        let frame = sent(&mut world, client, &text);
        let now = world.now;
        receive(&mut world.sides[1], now, &frame, RxChecksum::Blank);
        let answer = lost(&mut world);
        // Ethernet, IP, ICMP; then the packet, as much of it as fits into 576 bytes.
        let quote = &answer[14 + 20 + 8..];
        assert!(quote.len() > HEAD_BYTES_MIN, "{}", quote.len());
        assert_eq!(*quote, frame[14..][..quote.len()]);
    }
}
