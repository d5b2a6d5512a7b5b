//! Who only reads: `read.sock` with real brokers.

mod common;

use common::*;
use fordwayd::StackOptions;
use fordwayd::admin::{
    ADMIN_SOCKET, ErrorKind, FilterCount, READ_SOCKET, READER, READERS, Reply, Request,
};
use std::io::{BufRead, BufReader, ErrorKind as Kind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[test]
fn broker_process() {
    common::broker_process();
}

/// A connection on which nothing was asked yet.
struct Reader(BufReader<UnixStream>);

impl Reader {
    fn of(broker: &Broker) -> Reader {
        let stream = UnixStream::connect(broker.dir.join(READ_SOCKET)).expect("read socket");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("a limit");
        Reader(BufReader::new(stream))
    }

    fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(line.as_bytes()).expect("write");
    }

    /// `None`: the connection is over.
    fn hear(&mut self) -> Option<Reply> {
        let mut line = String::new();
        // Who is not heard to the end gets a reset.
        let _ = self.0.read_line(&mut line);
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect("a reply"))
    }

    fn ask(&mut self, request: &Request) -> Reply {
        let line = serde_json::to_string(request).expect("request");
        self.say(&format!("{line}\n"));
        self.hear().expect("a reply")
    }
}

fn is_refused(reply: &Reply, with: ErrorKind) -> bool {
    matches!(reply, Reply::Error { kind, message } if *kind == with && !message.contains('\n'))
}

#[test]
fn what_changes_something_is_refused_and_changes_nothing() {
    let dir = TempDir::new();
    let mut broker = Broker::start(dir.path());
    let name = || "web".to_owned();
    let (ip, publish) = (None, Vec::new());
    let requests = [
        Request::DomainAdd {
            name: name(),
            ip,
            publish: publish.clone(),
        },
        Request::DomainAddWithStack {
            name: name(),
            ip,
            publish,
            stack: StackOptions::default(),
        },
        Request::DomainAttach {
            name: name(),
            ip: [10, 77, 0, 9].into(),
            ip6: None,
            pid: 1,
        },
        Request::DomainRemove {
            name: "host".into(),
            force: true,
        },
        Request::Downgrade { channel: None },
        Request::FilterLoad {
            text: String::new(),
            epoch: None,
        },
        Request::FilterList,
        Request::FilterMonitor,
        Request::Log { level: None },
        Request::Down {
            keep_domains: false,
        },
    ];
    let mut reader = Reader::of(&broker);
    for request in requests {
        assert!(!request.only_reads());
        let reply = reader.ask(&request);
        assert!(
            is_refused(&reply, ErrorKind::Privilege),
            "{request:?}: {reply:?}"
        );
    }
    let Reply::Domains { domains } = reader.ask(&Request::DomainList) else {
        panic!("no domains");
    };
    assert_eq!(domains.len(), 1, "{domains:?}");
    let reply = reader.ask(&Request::Connections);
    assert!(matches!(reply, Reply::Connections { .. }), "{reply:?}");
    let reply = reader.ask(&Request::FilterCounts);
    let is_nothing = |count: &FilterCount| (count.packets, count.bytes) == (0, 0);
    let Reply::FilterCounts { counts, .. } = reply else {
        panic!("{reply:?}");
    };
    assert!(
        counts.len() == 4 && counts.iter().all(is_nothing),
        "{counts:?}"
    );
    let reply = reader.ask(&Request::Info);
    let Reply::Info(info) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(
        info.carried.len(),
        2,
        "of the host, and of no domain: {info:?}"
    );
    assert!(broker.child.try_wait().expect("status").is_none());
}

#[test]
fn only_its_owner_and_a_group_reach_it() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let mode = |name| {
        let data = dir.path().join(name).metadata().expect(name);
        (data.mode() & 0o777, data.gid())
    };
    let own = rustix::process::getegid().as_raw();
    assert_eq!(mode(ADMIN_SOCKET), (0o600, own));
    let group = fordway_platform::process::group(READERS).unwrap_or(READER);
    let expected = match rustix::process::geteuid().is_root() {
        true => (0o660, group),
        false => (0o600, own),
    };
    assert_eq!(mode(READ_SOCKET), expected);
    broker.down();
    assert!(!dir.path().join(READ_SOCKET).exists());
}

#[test]
fn a_reader_who_means_ill_holds_nobody_up() {
    let dir = TempDir::new();
    let broker = Broker::start(dir.path());
    let is_served = || assert!(matches!(broker.ask(&Request::Info), Reply::Info(_)));
    // Many questions at once are answered one after the other.
    let mut reader = Reader::of(&broker);
    let line = "{\"op\":\"connections\"}\n";
    let many = 4000 / line.len();
    reader.say(&line.repeat(many));
    for _ in 0..many {
        let reply = reader.hear();
        assert!(
            matches!(reply, Some(Reply::Connections { .. })),
            "{reply:?}"
        );
    }
    // Lines that do not end, or are none.
    reader.say(&"x".repeat(5000));
    let reply = reader.hear().expect("a reply");
    assert!(is_refused(&reply, ErrorKind::BadInput), "{reply:?}");
    assert!(reader.hear().is_none());
    let mut reader = Reader::of(&broker);
    reader.say("\u{0}{\"op\":\n");
    let reply = reader.hear().expect("a reply");
    assert!(is_refused(&reply, ErrorKind::BadInput), "{reply:?}");
    drop(reader);
    // Who asks and does not read is not asked on.
    let mut greedy = Reader::of(&broker);
    let stream = greedy.0.get_mut();
    stream.set_nonblocking(true).expect("non-blocking");
    let mut asked = 0;
    loop {
        match stream.write(line.as_bytes()) {
            Ok(_) => asked += 1,
            Err(error) if error.kind() == Kind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        if asked % 1000 == 0 {
            is_served();
        }
    }
    is_served();
    // One user has four places.
    let mut others: Vec<Reader> = (0..3).map(|_| Reader::of(&broker)).collect();
    for one in &mut others {
        assert!(matches!(one.ask(&Request::Info), Reply::Info(_)));
    }
    let mut fifth = Reader::of(&broker);
    let reply = fifth.hear().expect("a reply");
    assert!(is_refused(&reply, ErrorKind::Busy), "{reply:?}");
    is_served();
    // A place is free when its holder has gone.
    drop(others);
    let is_answered = || {
        let mut reader = Reader::of(&broker);
        let _ = reader.0.get_mut().write_all(b"{\"op\":\"info\"}\n");
        let mut said = String::new();
        let _ = reader.0.by_ref().take(16).read_to_string(&mut said);
        said.contains("\"info\"")
    };
    while !is_answered() {}
    is_served();
}
