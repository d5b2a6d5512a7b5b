//! Commands and replies of one connection, byte for byte, without a network.

use fordway_kv::{Config, Conn, Refused, Server};

fn server(change: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config::default();
    change(&mut config);
    Server::new(config, 0)
}

/// Sends all of `bytes` at `now_us` and gives all that comes back.
fn exchange(server: &mut Server, conn: &mut Conn, now_us: u64, bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut all) = (bytes, Vec::new());
    loop {
        let taken = conn.receive(server, now_us, rest);
        rest = &rest[taken..];
        let replies = conn.output().to_vec();
        conn.advance(now_us, replies.len());
        if rest.is_empty() && replies.is_empty() {
            return all;
        }
        assert!(taken > 0 || !replies.is_empty(), "stands still");
        all.extend(replies);
    }
}

/// One line of words, its reply as text.
fn say(server: &mut Server, conn: &mut Conn, line: &str) -> String {
    say_at(server, conn, 0, line)
}

fn say_at(server: &mut Server, conn: &mut Conn, now_us: u64, line: &str) -> String {
    let bytes = exchange(server, conn, now_us, format!("{line}\r\n").as_bytes());
    String::from_utf8(bytes).unwrap()
}

/// A command as clients send it.
fn array(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

#[test]
fn keys_live_as_long_as_they_are_told_to() {
    let mut server = server(|_| {});
    let mut conn = server.accept(0).unwrap();
    for (at_ms, line, reply) in [
        (0, "SET a 1 EX 10", "+OK\r\n"),
        (0, "SET b 2 PX 1500", "+OK\r\n"),
        (0, "TTL a", ":10\r\n"),
        (1000, "PTTL b", ":500\r\n"),
        (1499, "GET b", "$1\r\n2\r\n"),
        (1500, "GET b", "$-1\r\n"),
        (1500, "TTL b", ":-2\r\n"),
        (2000, "SET a 3 KEEPTTL", "+OK\r\n"),
        (2000, "PTTL a", ":8000\r\n"),
        (2000, "PERSIST a", ":1\r\n"),
        (2000, "TTL a", ":-1\r\n"),
        (20_000, "GET a", "$1\r\n3\r\n"),
        (20_000, "EXPIRE a 0", ":1\r\n"),
        (20_000, "EXISTS a", ":0\r\n"),
        (20_000, "SETEX c 1 x", "+OK\r\n"),
        (20_500, "INCR d", ":1\r\n"),
        (20_500, "PEXPIRE d 100", ":1\r\n"),
        (20_550, "INCR d", ":2\r\n"),
        (20_600, "INCR d", ":1\r\n"),
        (20_600, "DBSIZE", ":2\r\n"),
        (21_000, "DEL c", ":0\r\n"),
    ] {
        assert_eq!(
            say_at(&mut server, &mut conn, at_ms * 1000, line),
            reply,
            "{line}"
        );
    }
}

#[test]
fn keys_nobody_asks_for_go_by_the_tick() {
    let mut server = server(|_| {});
    let mut conn = server.accept(0).unwrap();
    for key in 0..1000 {
        say(
            &mut server,
            &mut conn,
            &format!("SET {key} x PX {}", 1 + key % 2 * 1000),
        );
    }
    let mut now_us = 1000;
    for _ in 0..100 {
        now_us = server.tick(now_us);
    }
    assert_eq!(server.keys(), 500);
    now_us = 2_000_000;
    while now_us != u64::MAX {
        now_us = server.tick(now_us);
    }
    assert_eq!((server.keys(), server.memory_bytes()), (0, 0));
}

#[test]
fn the_least_recently_used_go_first_and_the_bound_holds() {
    let mut server = server(|config| config.memory_bytes_max = 100_000);
    let mut conn = server.accept(0).unwrap();
    let value = "v".repeat(100);
    for key in 0..10_000 {
        assert_eq!(
            say(&mut server, &mut conn, &format!("SET key:{key} {value}")),
            "+OK\r\n"
        );
        assert!(server.memory_bytes() <= 100_000);
        // Used all the time, so never the oldest.
        if key > 0 {
            let first = say(&mut server, &mut conn, "GET key:0");
            assert_eq!(first.len(), 108, "after {key}");
        }
    }
    let kept = server.keys();
    assert!((350..600).contains(&kept), "{kept}");
    // Exactly the last ones are there.
    for key in 1..10_000 {
        let is_there = say(&mut server, &mut conn, &format!("EXISTS key:{key}")) == ":1\r\n";
        assert_eq!(is_there, key > 10_000 - kept, "{key}");
    }
    let large = array(&[b"SET", b"large", &[b'x'; 100_000]]);
    let refused = exchange(&mut server, &mut conn, 0, &large);
    assert!(refused.starts_with(b"-OOM "), "{refused:?}");
    assert!(server.memory_bytes() <= 100_000);
    for round in 0..2000 {
        let reply = say(&mut server, &mut conn, &format!("APPEND grows {value}"));
        assert!(reply.starts_with([':', '-']), "{round}");
        assert!(server.memory_bytes() <= 100_000, "{round}");
    }
}

#[test]
fn pipelines_cut_anywhere_give_the_same() {
    let mut commands = Vec::new();
    for at in 0..50 {
        let key = format!("key{}", at % 7);
        commands.extend(array(&[
            b"SET",
            key.as_bytes(),
            &vec![b'a' + at as u8 % 26; at * 37],
        ]));
        commands.extend(b"PING\r\n");
        commands.extend(array(&[b"GET", key.as_bytes()]));
        commands.extend(array(&[b"MGET", b"key0", b"none", b"key1"]));
    }
    let mut one = server(|_| {});
    let mut conn = one.accept(0).unwrap();
    let whole = exchange(&mut one, &mut conn, 0, &commands);
    for cut in [1, 2, 3, 7, 100, 1460, 5000] {
        let mut other = server(|_| {});
        let mut conn = other.accept(0).unwrap();
        let pieces = commands.chunks(cut);
        let all: Vec<u8> = pieces
            .flat_map(|piece| exchange(&mut other, &mut conn, 0, piece))
            .collect();
        assert!(all == whole, "cut {cut}");
    }
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut server = server(|_| {});
    let mut conn = server.accept(0).unwrap();
    let value = vec![b'x'; 100_000];
    exchange(&mut server, &mut conn, 0, &array(&[b"SET", b"a", &value]));
    let gets = array(&[b"GET", b"a"]).repeat(100);
    let taken = conn.receive(&mut server, 0, &gets);
    assert_eq!(taken, gets.len() / 100 * 3);
    assert_eq!(conn.receive(&mut server, 0, &gets[taken..]), 0);
    let first = conn.output().len();
    conn.advance(0, first);
    let rest = exchange(&mut server, &mut conn, 0, &gets[taken..]);
    assert_eq!(first + rest.len(), 100 * (100_000 + 11));
}

#[test]
fn limits_have_their_errors() {
    let mut server = server(|config| {
        config.clients_max = 2;
        config.arguments_max = 5;
        config.argument_bytes_max = 1000;
        config.reply_bytes_max = 1500;
        config.idle_us_max = 100;
    });
    let first = server.accept(0).unwrap();
    let mut conn = server.accept(0).unwrap();
    assert_eq!(server.accept(0).err(), Some(Refused));
    server.closed(first);
    say(
        &mut server,
        &mut conn,
        &format!("SET a {}", "x".repeat(900)),
    );
    let too_large = say(&mut server, &mut conn, "MGET a a");
    assert!(too_large.starts_with("-ERR the reply"), "{too_large}");
    let too_long = say(
        &mut server,
        &mut conn,
        &format!("APPEND a {}", "x".repeat(101)),
    );
    assert!(too_long.starts_with("-ERR string exceeds"), "{too_long}");
    assert_eq!(conn.deadline(), 100);
    let broken = exchange(&mut server, &mut conn, 50, b"*6\r\n*1\r\n$4\r\nPING\r\n");
    assert_eq!(broken, b"-ERR Protocol error: invalid multibulk length\r\n");
    assert!(conn.is_over());
    let mut idle = server.accept(10).unwrap();
    idle.expire(109);
    assert!(!idle.is_over());
    idle.expire(110);
    assert!(idle.is_over());
}

#[test]
fn a_datagram_is_one_command() {
    let mut server = server(|_| {});
    let mut ask = |bytes: &[u8]| {
        let mut out = Vec::new();
        server.datagram(0, bytes, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(ask(&array(&[b"SET", b"a", b"1"])), "+OK\r\n");
    assert_eq!(ask(b"GET a\r\n"), "$1\r\n1\r\n");
    assert_eq!(ask(b""), "");
    assert_eq!(ask(b"\r\n"), "");
    for cut in ["GET a", "*2\r\n$3\r\nGET\r\n$1\r\na"] {
        let error = ask(cut.as_bytes());
        assert!(
            error.starts_with("-ERR Protocol error: a datagram"),
            "{error}"
        );
    }
    assert_eq!(
        ask(b"*1\r\n:"),
        "-ERR Protocol error: expected '$', got ':'\r\n"
    );
    // Nothing of one datagram is left for the next.
    assert_eq!(ask(b"PING\r\n"), "+PONG\r\n");
}

#[test]
fn resp3_has_its_own_nulls_and_maps() {
    let mut server = server(|_| {});
    let mut conn = server.accept(0).unwrap();
    let hello = say(&mut server, &mut conn, "HELLO 3 SETNAME me");
    assert!(hello.starts_with("%7\r\n$6\r\nserver\r\n"), "{hello}");
    assert_eq!(say(&mut server, &mut conn, "GET none"), "_\r\n");
    let settings = say(&mut server, &mut conn, "CONFIG GET maxmemory-pol*");
    assert_eq!(
        settings,
        "%1\r\n$16\r\nmaxmemory-policy\r\n$11\r\nallkeys-lru\r\n"
    );
    assert_eq!(
        say(&mut server, &mut conn, "CLIENT GETNAME"),
        "$2\r\nme\r\n"
    );
    assert_eq!(say(&mut server, &mut conn, "RESET"), "+RESET\r\n");
    assert_eq!(say(&mut server, &mut conn, "GET none"), "$-1\r\n");
    assert!(say(&mut server, &mut conn, "HELLO 4").starts_with("-NOPROTO"));
}

proptest::proptest! {
    /// Nothing panics, however the bytes are.
    #[test]
    fn any_bytes(pieces in proptest::collection::vec(proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), 0..10)) {
        let mut server = server(|_| {});
        let mut conn = server.accept(0).unwrap();
        for piece in pieces {
            exchange(&mut server, &mut conn, 0, &piece);
            server.datagram(0, &piece, &mut Vec::new());
        }
    }
}

#[test]
fn what_clients_hold_together_is_bounded_and_leaves_some_for_others() {
    const MAX: usize = 1_000_000;
    let mut server = server(|config| config.client_bytes_max = MAX);
    let mut honest = server.accept(0).unwrap();
    for key in ["a", "b", "c"] {
        let set = array(&[b"SET", key.as_bytes(), &[b'x'; 40_000]]);
        assert_eq!(exchange(&mut server, &mut honest, 0, &set), b"+OK\r\n");
    }
    let mut half = b"*2\r\n$4\r\nECHO\r\n$300000\r\n".to_vec();
    half.resize(250_000, b'x');
    let many = [&b"*1000000\r\n"[..], &b"$0\r\n\r\n".repeat(50_000)].concat();
    let unread = array(&[b"MGET", b"a", b"b", b"c"]).repeat(100);
    for what in [half, many, unread, b"COMMAND INFO ".to_vec()] {
        let mut clients: Vec<Conn> = (0..200).map(|_| server.accept(0).unwrap()).collect();
        for client in &mut clients {
            let mut rest = &what[..];
            while !rest.is_empty() {
                let taken = client.receive(&mut server, 0, &rest[..rest.len().min(10_000)]);
                assert!(
                    server.client_bytes() <= 2 * MAX,
                    "{}",
                    server.client_bytes()
                );
                rest = &rest[taken..];
                if taken == 0 {
                    break;
                }
            }
        }
        assert_eq!(say(&mut server, &mut honest, "PING"), "+PONG\r\n");
        assert_eq!(say(&mut server, &mut honest, "SET k v"), "+OK\r\n");
        assert_eq!(say(&mut server, &mut honest, "GET k"), "$1\r\nv\r\n");
        for client in clients {
            server.closed(client);
        }
        assert!(server.client_bytes() < MAX / 4, "{}", server.client_bytes());
        // Alone, it has what it needs again.
        assert_eq!(say(&mut server, &mut honest, "GET a").len(), 40_010);
    }
    let info = [b"COMMAND", &b"INFO"[..]];
    let words: Vec<&[u8]> = info.into_iter().chain([&b"get"[..]; 10_000]).collect();
    let reply = exchange(&mut server, &mut honest, 0, &array(&words));
    assert!(
        reply.starts_with(b"-ERR the reply would exceed"),
        "{}",
        reply.len()
    );
    let mut reply = Vec::new();
    server.datagram(0, &array(&[b"MGET", b"a", b"b"]), &mut reply);
    assert!(
        reply.starts_with(b"-ERR the reply would exceed"),
        "{}",
        reply.len()
    );
    server.closed(honest);
    assert_eq!(server.client_bytes(), 0);
}

#[test]
fn small_entries_leave_nothing_behind() {
    const MAX: usize = 1_000_000;
    let mut server = server(|config| {
        config.memory_bytes_max = MAX;
        config.argument_bytes_max = MAX;
    });
    let mut conn = server.accept(0).unwrap();
    let large = array(&[b"SET", b"large", &[b'x'; 900_000]]);
    for round in 0..3 {
        // More than fit: the oldest go.
        for key in 0..20_000 {
            let reply = say(&mut server, &mut conn, &format!("SET {round}:{key} \"\""));
            assert_eq!(reply, "+OK\r\n");
        }
        assert!(server.keys() > 7_000 && server.memory_bytes() <= MAX);
        // Of what is left each chunk has one.
        for key in (0..20_000).filter(|key| key % 100 != 0) {
            say(&mut server, &mut conn, &format!("DEL {round}:{key}"));
        }
        let kept = server.keys();
        assert!((70..=200).contains(&kept), "{kept}");
        let shown = say(&mut server, &mut conn, "KEYS *")
            .matches(&format!("{round}:"))
            .count();
        assert_eq!(shown, kept);
        // Their chunks are counted, so that they go for it.
        assert_eq!(exchange(&mut server, &mut conn, 0, &large), b"+OK\r\n");
        assert!(server.memory_bytes() <= MAX);
        assert!(server.keys() < kept, "{} of {kept}", server.keys());
        assert_eq!(say(&mut server, &mut conn, "STRLEN large"), ":900000\r\n");
    }
    assert_eq!(
        say(&mut server, &mut conn, "DBSIZE"),
        format!(":{}\r\n", server.keys())
    );
    say(&mut server, &mut conn, "FLUSHALL");
    assert_eq!((server.keys(), server.memory_bytes()), (0, 0));
}

#[test]
fn nothing_is_lost_or_left_over_whatever_comes_and_goes() {
    const MAX: usize = 60_000;
    let mut server = server(|config| config.memory_bytes_max = MAX);
    let mut conn = server.accept(0).unwrap();
    let mut state = 1u64;
    let mut dice = |sides: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % sides
    };
    for now_ms in 0..30_000 {
        let (key, length) = (dice(600), dice(9) * dice(9) * dice(20));
        let value = "v".repeat(length as usize);
        let line = match dice(12) {
            0..4 => format!("SET {key} \"{value}\""),
            4 => format!("SET {key} \"{value}\" PX {}", 1 + dice(2000)),
            5 => format!("APPEND {key} \"{value}\""),
            6..9 => format!("DEL {key} {}", dice(600)),
            9 => format!("RENAME {key} {}", dice(600)),
            10 => format!("SETRANGE {key} {} x", dice(500)),
            _ => format!("GETDEL {key}"),
        };
        say_at(&mut server, &mut conn, now_ms * 1000, &line);
        assert!(server.memory_bytes() <= MAX);
        if now_ms % 500 == 0 {
            server.tick(now_ms * 1000);
            let keys = say_at(&mut server, &mut conn, now_ms * 1000, "KEYS *");
            let shown = keys.lines().filter(|line| line.starts_with('$')).count();
            assert!(
                shown <= server.keys() && (shown > 20 || now_ms == 0),
                "{shown}"
            );
            for line in keys.lines().filter(|line| !line.starts_with(['$', '*'])) {
                let there = say_at(
                    &mut server,
                    &mut conn,
                    now_ms * 1000,
                    &format!("EXISTS {line}"),
                );
                assert_eq!(there, ":1\r\n", "{line}");
            }
        }
    }
    for key in 0..600 {
        say_at(&mut server, &mut conn, 60_000_000, &format!("DEL {key}"));
    }
    assert_eq!((server.keys(), server.memory_bytes()), (0, 0));
}
