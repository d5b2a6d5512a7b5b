//! Requests and replies of one connection, byte for byte, without a network.

mod common;

use common::{Reply, archive, drain, exchange, replies};
use fordway_httpd::{Limits, Page, Refused, Server};

const BIG: usize = 300_000;

fn big() -> Vec<u8> {
    (0..BIG).map(|at| (at * 7 % 251) as u8).collect()
}

fn site() -> Vec<u8> {
    archive(&[
        ("index.html", b"<p>hello</p>"),
        ("big.bin", &big()),
        ("docs/index.html", b"docs"),
        ("only/a b.txt", b"with a space"),
        ("empty", b""),
        ("odd/a?b%#", b"odd"),
        ("odd?/index.html", b"odd too"),
    ])
}

/// The one reply to one request on a connection of its own.
fn ask(request: &str) -> Reply {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    let mut conn = server.accept(0).unwrap();
    let bytes = exchange(&mut server, &mut conn, request.as_bytes());
    let heads: &[usize] = if request.starts_with("HEAD") {
        &[0]
    } else {
        &[]
    };
    let mut all = replies(&bytes, heads);
    assert_eq!(all.len(), 1, "{request:?}: {all:?}");
    let reply = all.remove(0);
    assert_eq!(
        conn.is_over(),
        reply.line("connection") == Some("close"),
        "{request:?}"
    );
    reply
}

fn get(path: &str, lines: &str) -> Reply {
    ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{lines}\r\n"))
}

#[test]
fn files_directories_and_what_is_not_there() {
    let index = get("/", "");
    assert_eq!((index.status, &index.body[..]), (200, &b"<p>hello</p>"[..]));
    assert_eq!(index.line("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(
        index.line("last-modified"),
        Some("Sun, 06 Nov 1994 08:49:37 GMT")
    );
    assert_eq!(index.line("date"), None);
    assert_eq!(get("/index.html?x=1", ""), index);
    assert_eq!(get("/%69ndex.html", ""), index);
    assert_eq!(get("http://host/index.html", ""), index);
    assert_eq!(get("HTTP://host", ""), index);
    assert_eq!(get("/only/a%20b.txt", "").body, b"with a space");
    assert_eq!(get("/docs/", "").body, b"docs");
    assert_eq!(get("/odd/a%3fb%25%23", "").body, b"odd");
    assert_eq!(get("/odd/a?b%#", "").status, 404);
    assert_eq!(get("/odd%3F/", "").body, b"odd too");
    assert_eq!(get("/odd%3F", "").line("location"), Some("/odd%3F/"));
    let moved = get("/docs?q", "");
    assert_eq!(
        (moved.status, moved.line("location")),
        (301, Some("/docs/"))
    );
    for nowhere in [
        "/only",
        "/only/",
        "/../index.html",
        "/nothing",
        "//index.html",
        "/%ff",
    ] {
        assert_eq!(get(nowhere, "").status, 404, "{nowhere}");
    }
    for bad in ["/%", "/%4", "/%zz", "/a%00", "index.html", "*"] {
        assert_eq!(get(bad, "").status, 400, "{bad}");
    }
    assert_eq!(get("/empty", "").body, b"");
    assert_eq!(get("/big.bin", "").body, big());
}

#[test]
fn big_files_are_slices_of_the_archive() {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    let mut conn = server.accept(0).unwrap();
    conn.receive(&mut server, 0, b"GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = conn.output().len();
    conn.advance(0, head);
    assert_eq!(conn.output().len(), BIG);
    assert!(tar.as_ptr_range().contains(&conn.output().as_ptr()));
}

#[test]
fn head_has_the_lines_of_get_and_no_body() {
    for path in ["/", "/big.bin", "/nothing"] {
        let head = ask(&format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let get = get(path, "");
        assert_eq!((&head.head, &head.body[..]), (&get.head, &b""[..]));
    }
}

#[test]
fn dates_stand_in_every_reply_once_the_time_is_known() {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    server.set_wall_time(784_111_777);
    let mut conn = server.accept(0).unwrap();
    let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n\
        GET /x HTTP/1.1\r\nHost: a\r\n\r\nGET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\n\r\nbad\r\n\r\n";
    let all = replies(&exchange(&mut server, &mut conn, requests), &[]);
    assert_eq!(
        all.iter().map(|r| r.status).collect::<Vec<_>>(),
        [200, 200, 404, 206, 400]
    );
    for reply in &all {
        assert_eq!(reply.line("date"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    }
    assert_eq!(all[0].body, all[1].body);
    assert_eq!(all[1].line("connection"), Some("keep-alive"));
}

#[test]
fn ranges() {
    let one = get("/big.bin", "Range: bytes=10-19\r\n");
    assert_eq!((one.status, &one.body[..]), (206, &big()[10..20]));
    assert_eq!(one.line("content-range"), Some("bytes 10-19/300000"));
    assert_eq!(
        get("/big.bin", "Range: bytes=-5\r\n").body,
        big()[BIG - 5..]
    );
    let none = get("/big.bin", "Range: bytes=300000-\r\n");
    assert_eq!(
        (none.status, none.line("content-range")),
        (416, Some("bytes */300000"))
    );
    assert_eq!(get("/big.bin", "Range: bytes=5-1\r\n").status, 200);

    let many = get("/big.bin", "Range: bytes=0-2,100-109,-1\r\n");
    assert_eq!(many.status, 206);
    let kind = many.line("content-type").unwrap();
    let boundary = kind
        .strip_prefix("multipart/byteranges; boundary=")
        .unwrap();
    let mut expected = Vec::new();
    for (range, name) in [
        (0..3, "0-2"),
        (100..110, "100-109"),
        (BIG - 1..BIG, "299999-299999"),
    ] {
        expected.extend(
            format!("\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {name}/300000\r\n\r\n")
                .into_bytes(),
        );
        expected.extend(&big()[range]);
    }
    expected.extend(format!("\r\n--{boundary}--\r\n").into_bytes());
    assert_eq!(many.body, expected);
}

#[test]
fn conditions() {
    let tag = get("/", "").line("etag").unwrap().to_owned();
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let early = "Sun, 06 Nov 1994 08:49:36 GMT";
    for (lines, status) in [
        (format!("If-None-Match: {tag}"), 304),
        (format!("If-None-Match: \"x\", W/{tag}"), 304),
        ("If-None-Match: *".into(), 304),
        ("If-None-Match: \"x\"".into(), 200),
        (format!("If-Modified-Since: {date}"), 304),
        (format!("If-Modified-Since: {early}"), 200),
        (
            format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {date}"),
            200,
        ),
        ("If-Modified-Since: yesterday".into(), 200),
        (format!("If-Match: {tag}"), 200),
        ("If-Match: \"x\"".into(), 412),
        (format!("If-Unmodified-Since: {early}"), 412),
        (format!("If-Unmodified-Since: {date}"), 200),
        (format!("Range: bytes=0-1\r\nIf-Range: {tag}"), 206),
        ("Range: bytes=0-1\r\nIf-Range: \"x\"".into(), 200),
        (format!("Range: bytes=0-1\r\nIf-Range: {date}"), 206),
        (format!("Range: bytes=0-1\r\nIf-Range: {early}"), 200),
    ] {
        let reply = get("/", &format!("{lines}\r\n"));
        assert_eq!(reply.status, status, "{lines}");
        assert_eq!(reply.body.is_empty(), status == 304, "{lines}");
    }
}

#[test]
fn bad_requests_have_their_status() {
    let host = "Host: a\r\n";
    let long = "x".repeat(9000);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".into(), 400),
        (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{host} folded: x\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{host}space : x\r\n\r\n"), 400),
        (
            format!("GET / HTTP/1.1\r\n{host}Content-Length: x\r\n\r\n"),
            400,
        ),
        (
            format!("GET / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            400,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\n{host}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"
            ),
            400,
        ),
        (
            format!("GET / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            501,
        ),
        ("nonsense\r\n\r\n".into(), 400),
        ("GET /\r\n\r\n".into(), 400),
        ("\0\u{1}\u{2}".into(), 400),
        (format!("GET / HTTP/2.0\r\n{host}\r\n"), 505),
        (format!("GET / HTTP/0.9\r\n{host}\r\n"), 505),
        (format!("GET / HTTQ/1.1\r\n{host}\r\n"), 400),
        (
            format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n"),
            405,
        ),
        (
            format!("POST / HTTP/1.1\r\n{host}Content-Length: 70000\r\n\r\n"),
            405,
        ),
        (format!("POST / HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("OPTIONS * HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("BREW / HTTP/1.1\r\n{host}\r\n"), 501),
        (format!("GET /{long} HTTP/1.1\r\n{host}\r\n"), 414),
        (format!("GET / HTTP/1.1\r\n{host}X: {long}\r\n\r\n"), 431),
        (
            format!("GET / HTTP/1.1\r\n{host}{}\r\n", "a: b\r\n".repeat(70)),
            431,
        ),
    ] {
        let reply = ask(&request);
        assert_eq!(
            reply.status,
            status,
            "{}",
            &request[..request.len().min(80)]
        );
        let allowed = reply.line("allow");
        assert_eq!(allowed, (status == 405).then_some("GET, HEAD"));
    }
}

#[test]
fn a_body_nobody_wants_is_passed_over() {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    let mut conn = server.accept(0).unwrap();
    let request =
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\nGET / HTTP/1.1\r\n\r\n  \
        \r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let all = replies(&exchange(&mut server, &mut conn, request), &[]);
    assert_eq!(all.iter().map(|r| r.status).collect::<Vec<_>>(), [405, 200]);
    assert!(!conn.is_over());
}

#[test]
fn pages_are_made_at_each_request() {
    let tar = site();
    let mut count = 0;
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    server.add_page("/count", |query| {
        count += 1;
        Page {
            content_type: "text/plain",
            body: format!("{count} {query}").into_bytes(),
        }
    });
    let mut conn = server.accept(0).unwrap();
    let request = b"GET /count?x HTTP/1.1\r\nHost: a\r\n\r\nHEAD /count HTTP/1.1\r\nHost: a\r\n\r\nGET /count HTTP/1.1\r\nHost: a\r\n\r\n";
    let all = replies(&exchange(&mut server, &mut conn, request), &[1]);
    assert_eq!(all[0].body, b"1 x");
    assert_eq!(all[2].body, b"3 ");
}

#[test]
fn requests_to_others_are_refused_and_the_connection_goes_on() {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    server.answer_only(|host| host == b"a:1");
    let mut conn = server.accept(0).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: a:1\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n\
        POST / HTTP/1.1\r\nHost: b\r\n\r\nGET / HTTP/1.0\r\n\r\n";
    let all = replies(&exchange(&mut server, &mut conn, request), &[]);
    let statuses: Vec<u16> = all.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 421, 405, 200]);
    assert_eq!(server.stats().errors, 2);
}

#[test]
fn requests_wait_while_many_replies_are_queued_and_none_is_lost() {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    let mut conn = server.accept(0).unwrap();
    let requests = "GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-2999\r\n\r\n".repeat(500);
    let mut rest = requests.as_bytes();
    let taken = conn.receive(&mut server, 0, rest);
    assert!(taken > 0 && taken < rest.len(), "{taken}");
    assert_eq!(conn.receive(&mut server, 0, &rest[taken..]), 0);
    rest = &rest[taken..];
    let mut bytes = drain(&mut conn, 0, 777);
    bytes.extend(exchange(&mut server, &mut conn, rest));
    let all = replies(&bytes, &[]);
    assert_eq!(all.len(), 500);
    assert!(
        all.iter()
            .all(|r| r.status == 206 && r.body == big()[..3000])
    );
}

#[test]
fn slow_and_silent_clients() {
    let tar = site();
    let limits = Limits {
        request_us_max: 100,
        idle_us_max: 1000,
        send_us_max: 500,
        ..Limits::default()
    };
    let mut server = Server::new(&tar, limits).unwrap();

    let mut idle = server.accept(10).unwrap();
    assert_eq!(idle.deadline(), 1010);
    idle.expire(&mut server, 1009);
    assert!(!idle.is_over());
    idle.expire(&mut server, 1010);
    assert!(idle.is_over() && idle.output().is_empty());

    let mut slow = server.accept(0).unwrap();
    for (at, byte) in b"GET / HTTP/1.1\r\nHost:".iter().enumerate() {
        slow.receive(&mut server, 5 + at as u64, &[*byte]);
    }
    assert_eq!(slow.deadline(), 105);
    slow.expire(&mut server, 105);
    assert_eq!(replies(&drain(&mut slow, 105, 1000), &[])[0].status, 408);
    assert!(slow.is_over());

    let mut body = server.accept(0).unwrap();
    body.receive(
        &mut server,
        7,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    );
    drain(&mut body, 9, 1000);
    assert_eq!(body.deadline(), 109);
    body.expire(&mut server, 109);
    assert_eq!(replies(&drain(&mut body, 109, 1000), &[])[0].status, 408);

    let mut lazy = server.accept(0).unwrap();
    lazy.receive(&mut server, 20, b"GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(lazy.deadline(), 520);
    // A byte now and then is no progress.
    lazy.advance(400, 1);
    assert_eq!(lazy.deadline(), 520);
    lazy.advance(500, 5000);
    assert_eq!(lazy.deadline(), 1000);
    lazy.expire(&mut server, 1000);
    assert!(lazy.is_over() && lazy.output().is_empty());
    assert_eq!(server.stats().expired, 4);
}

#[test]
fn connections_are_limited_and_their_buffers_used_again() {
    let tar = site();
    let limits = Limits {
        connections_max: 2,
        ..Limits::default()
    };
    let mut server = Server::new(&tar, limits).unwrap();
    let mut first = server.accept(0).unwrap();
    let second = server.accept(0).unwrap();
    assert_eq!(server.accept(0).err(), Some(Refused));
    assert_eq!(replies(Refused::REPLY, &[])[0].status, 503);
    first.receive(
        &mut server,
        0,
        b"GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\nGET / HT",
    );
    server.closed(first);
    let mut third = server.accept(0).unwrap();
    assert!(third.output().is_empty() && !third.is_over());
    let bytes = exchange(
        &mut server,
        &mut third,
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!(replies(&bytes, &[])[0].status, 200);
    server.closed(second);
    server.closed(third);
    assert_eq!((server.open(), server.stats().refused), (0, 1));
}

#[test]
fn a_client_that_ends_early_gets_what_it_asked_for() {
    let tar = site();
    let mut server = Server::new(&tar, Limits::default()).unwrap();
    let mut conn = server.accept(0).unwrap();
    conn.receive(&mut server, 0, b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT");
    conn.end();
    assert!(!conn.is_over());
    assert_eq!(replies(&drain(&mut conn, 0, 10), &[]).len(), 1);
    assert!(conn.is_over());
}

proptest::proptest! {
    /// However the bytes are cut, the replies are the same.
    #[test]
    fn cuts_change_nothing(cuts in proptest::collection::vec(1..60usize, 1..40), at_once in 1..5000usize) {
        let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\r\nHEAD /big.bin HTTP/1.1\r\nHost: a\r\n\r\n\
            POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=5-4000\r\n\r\n\
            GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1,9-10\r\n\r\nGET /docs/ HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n";
        let tar = site();
        let mut server = Server::new(&tar, Limits::default()).unwrap();
        let mut conn = server.accept(0).unwrap();
        let whole = exchange(&mut server, &mut conn, requests);
        proptest::prop_assert!(conn.is_over());

        let mut conn = server.accept(0).unwrap();
        let (mut bytes, mut rest) = (Vec::new(), &requests[..]);
        for cut in cuts.iter().cycle() {
            let given = &rest[..rest.len().min(*cut)];
            let taken = conn.receive(&mut server, 0, given);
            rest = &rest[taken..];
            bytes.extend(drain(&mut conn, 0, at_once));
            if rest.is_empty() {
                break;
            }
        }
        proptest::prop_assert_eq!(bytes, whole);
    }

    /// Nothing panics, and whatever is sent ends in the states that are known.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..3000)) {
        let tar = site();
        let mut server = Server::new(&tar, Limits::default()).unwrap();
        let mut conn = server.accept(0).unwrap();
        exchange(&mut server, &mut conn, &bytes);
        conn.expire(&mut server, u64::MAX);
        drain(&mut conn, u64::MAX, 100);
        proptest::prop_assert!(conn.is_over());
    }
}

#[test]
fn clients_who_take_nothing_are_given_no_more_memory_than_they_may_have() {
    let tar = site();
    let limits = Limits {
        queued_bytes_max: 2000,
        ..Limits::default()
    };
    let mut server = Server::new(&tar, limits).unwrap();
    let mut conn = server.accept(0).unwrap();
    let requests = b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(500);
    let mut rest = &requests[..];
    let mut got = 0;
    while !rest.is_empty() {
        let taken = conn.receive(&mut server, 0, rest);
        let queued: usize = conn.outputs().map(<[u8]>::len).sum();
        assert!((1..2500).contains(&queued), "{queued}");
        rest = &rest[taken..];
        got += replies(&drain(&mut conn, 0, 100), &[]).len();
    }
    assert_eq!(got, 500);
}
