//! The same commands to the real redis-server and to ours, and every reply compared; and the
//! real redis-cli and redis-benchmark as clients.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// A server that is killed with its test.
struct Program {
    child: Child,
    /// Its first line that contains the wanted word.
    line: String,
}

impl Program {
    fn start(command: &mut Command, word: &str) -> Program {
        let name = command.get_program().to_owned();
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child =
            spawned.unwrap_or_else(|error| panic!("{name:?}: {error} (see contrib/packages.txt)"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map_while(Result::ok).find(|line| line.contains(word));
        let line = line.unwrap_or_else(|| panic!("{name:?} ended before it served"));
        Program { child, line }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Ours(Program);

impl Ours {
    fn start(arguments: &[&str]) -> Ours {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-kv"));
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        Ours(Program::start(&mut command, "serving on"))
    }

    fn address(&self) -> &str {
        self.0.line.strip_prefix("serving on ").unwrap()
    }

    fn port(&self) -> &str {
        self.address().rsplit_once(':').unwrap().1
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (other, ended) = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        Client {
            write: Box::new(stream),
            read: BufReader::new(Box::new(other)),
            end: Box::new(move || ended.shutdown(Shutdown::Write).unwrap()),
        }
    }
}

struct Redis {
    _program: Program,
    path: PathBuf,
}

impl Redis {
    fn start() -> Redis {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fordway-kv-{}-{count}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut command = Command::new("redis-server");
        command
            .args([
                "--port",
                "0",
                "--databases",
                "1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--unixsocket",
            ])
            .arg(&path);
        let program = Program::start(&mut command, "ready to accept connections");
        Redis {
            _program: program,
            path,
        }
    }

    fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (other, ended) = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        Client {
            write: Box::new(stream),
            read: BufReader::new(Box::new(other)),
            end: Box::new(move || ended.shutdown(Shutdown::Write).unwrap()),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Client {
    write: Box<dyn Write>,
    read: BufReader<Box<dyn Read>>,
    end: Box<dyn Fn()>,
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.write.write_all(bytes).unwrap();
    }

    /// Nothing more is sent.
    fn end(&self) {
        (self.end)();
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.read.read_until(b'\n', &mut line).unwrap();
        line
    }

    /// One reply, whole, as it came. Empty at the end of the stream.
    fn reply(&mut self) -> Vec<u8> {
        let mut all = self.line();
        let count = all
            .get(1..)
            .map(|rest| String::from_utf8_lossy(rest).trim().parse::<i64>());
        let count = count.and_then(Result::ok).unwrap_or(-1);
        let elements = match all.first() {
            Some(b'*') => count,
            Some(b'%') => 2 * count,
            Some(b'$' | b'=') if count >= 0 => {
                let start = all.len();
                all.resize(start + count as usize + 2, 0);
                self.read.read_exact(&mut all[start..]).unwrap();
                0
            }
            _ => 0,
        };
        (0..elements).for_each(|_| all.extend(self.reply()));
        all
    }
}

/// A command as clients send it.
fn array(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// Whether two replies to a command are as alike as they can be: times go on between the two.
fn are_alike(command: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> bool {
    let number = |reply: &[u8]| -> Option<i64> {
        std::str::from_utf8(reply)
            .ok()?
            .strip_prefix(':')?
            .trim_end()
            .parse()
            .ok()
    };
    let name = command[0].to_ascii_lowercase();
    let tolerance = match &name[..] {
        b"ttl" | b"expiretime" => 20,
        b"pttl" | b"pexpiretime" => 20_000,
        b"keys" => return sorted(ours) == sorted(theirs),
        _ => 0,
    };
    match (number(ours), number(theirs)) {
        (Some(ours), Some(theirs)) if ours > 0 && theirs > 0 => (ours - theirs).abs() <= tolerance,
        _ => ours == theirs,
    }
}

fn sorted(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// Sends all commands at once to both, and compares reply by reply: the first that differs.
fn compare(
    ours: &mut Client,
    theirs: &mut Client,
    commands: &[Vec<Vec<u8>>],
) -> Option<(String, String)> {
    let all: Vec<u8> = commands.iter().flat_map(|command| array(command)).collect();
    ours.send(&all);
    theirs.send(&all);
    let mut first = None;
    for command in commands {
        let (ours, theirs) = (ours.reply(), theirs.reply());
        if first.is_none() && !are_alike(command, &ours, &theirs) {
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let words: Vec<_> = command.iter().map(|word| text(word)).collect();
            let both = format!(
                "{words:?}\n ours   {}\n theirs {}",
                text(&ours),
                text(&theirs)
            );
            first = Some((words[0].to_lowercase(), both));
        }
    }
    first
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    let text = |text: &str| Just(text.as_bytes().to_vec());
    prop_oneof![
        4 => (0..6u8).prop_map(|n| vec![b'k', b'0' + n]),
        2 => (-5..200i64).prop_map(|n| n.to_string().into_bytes()),
        2 => prop::collection::vec(any::<u8>(), 0..30),
        1 => prop::sample::select(vec![i64::MAX, i64::MIN, i64::MAX - 1]).prop_map(|n| n.to_string().into_bytes()),
        1 => prop_oneof![text("NX"), text("XX"), text("GT"), text("LT"), text("EX"), text("PX"), text("GET"), text("KEEPTTL"), text("persist")],
        1 => prop_oneof![text("01"), text("+1"), text("-0"), text("1.5"), text(" 1"), text(""), text("0x10")],
    ]
}

/// Names with the arguments that suit them most of the time, or any others.
fn one_command() -> impl Strategy<Value = Vec<Vec<u8>>> {
    const NAMES: &str = "get set setnx setex psetex getset getdel getex mget mset msetnx del unlink exists touch \
        type strlen append getrange substr setrange incr decr incrby decrby expire pexpire expireat pexpireat ttl pttl \
        expiretime pexpiretime persist ping echo dbsize keys rename renamenx select GeT nonsense get1 \u{47}\u{c5}T";
    let names: Vec<&str> = NAMES.split_whitespace().collect();
    let key = || (0..6u8).prop_map(|n| vec![b'k', b'0' + n]);
    let seconds = || {
        prop::sample::select(vec![
            "100",
            "1000",
            "-1",
            "0",
            "9223372036854775807",
            "2000000000",
            "x",
        ])
    };
    let option = || {
        prop::sample::select(vec![
            "NX",
            "XX",
            "GET",
            "KEEPTTL",
            "EX 100",
            "PX 100000",
            "EXAT 4000000000",
            "EX",
            "EX 0",
            "PX -5",
            "EX x",
            "bad",
        ])
    };
    let value = || prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        6 => (prop::sample::select(names), prop::collection::vec(word(), 0..5)).prop_map(|(name, mut rest)| {
            rest.insert(0, name.as_bytes().to_vec());
            rest
        }),
        3 => (key(), value(), prop::collection::vec(option(), 0..4)).prop_map(|(key, value, options)| {
            let mut command = vec![b"SET".to_vec(), key, value];
            options.iter().for_each(|option| command.extend(words(option)));
            command
        }),
        1 => (key(), prop::collection::vec(option(), 0..2)).prop_map(|(key, options)| {
            let mut command = vec![b"GETEX".to_vec(), key];
            options.iter().for_each(|option| command.extend(words(option)));
            command
        }),
        2 => (prop::sample::select(vec!["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "SETEX", "PSETEX"]), key(), seconds(), prop::collection::vec(prop::sample::select(vec!["NX", "XX", "GT", "LT", "v"]), 0..3))
            .prop_map(|(name, key, seconds, options)| {
                let mut command = vec![name.as_bytes().to_vec(), key, seconds.into()];
                options.iter().for_each(|option| command.extend(words(option)));
                command
            }),
        3 => (prop::sample::select(vec!["GET", "TTL", "INCR", "DECR", "PERSIST", "EXISTS"]), key())
            .prop_map(|(name, key)| vec![name.as_bytes().to_vec(), key]),
        1 => (key(), -30..30i64, -30..30i64).prop_map(|(key, first, last)| {
            vec![b"GETRANGE".to_vec(), key, first.to_string().into(), last.to_string().into()]
        }),
    ]
}

/// Empties both, and has them speak RESP3 if asked.
fn begin(clients: [&mut Client; 2], is_resp3: bool) {
    for client in clients {
        client.send(b"FLUSHALL\r\n");
        assert_eq!(client.reply(), b"+OK\r\n");
        if is_resp3 {
            client.send(b"HELLO 3\r\n");
            assert!(client.reply().starts_with(b"%"));
        }
    }
}

#[test]
fn every_reply_is_redis_own() {
    let (ours, theirs) = (Ours::start(&[]), Redis::start());
    let config = Config {
        cases: 300,
        // The lists are the same each time: what was found is found again.
        failure_persistence: None,
        ..Config::default()
    };
    let lists = (prop::collection::vec(one_command(), 1..60), any::<bool>());
    // One difference of each command, of all lists.
    let differences = RefCell::new(BTreeMap::new());
    // The same lists each time; others with another seed.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, rng).run(&lists, |(commands, is_resp3)| {
        let (mut ours, mut theirs) = (ours.connect(), theirs.connect());
        begin([&mut ours, &mut theirs], is_resp3);
        differences
            .borrow_mut()
            .extend(compare(&mut ours, &mut theirs, &commands));
        Ok(())
    });
    result.unwrap();
    let differences: Vec<String> = differences.into_inner().into_values().collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// What no list of well-formed commands has: inline commands, and bytes that break the protocol.
#[test]
fn inline_commands_and_broken_ones() {
    let (ours, theirs) = (Ours::start(&[]), Redis::start());
    let mut differences = Vec::new();
    for text in [
        "PING\r\n",
        "PING\n",
        "\r\n\r\nPING x\r\n",
        "SET a \"x y\\x41\\n\"\r\nGET a\r\n",
        "SET a 'it\\'s'\r\nGET a\r\nSET a ''\r\nGET a\r\n",
        "SET a \"x\r\n",
        "SET a 'x'y\r\n",
        "*1\r\n$4\r\nPING\r\n*0\r\n*-1\r\nPING\r\n",
        "*1\r\n+4\r\n",
        "*x\r\n",
        "*1\r\n$x\r\n",
        "*1\r\n$-1\r\n",
        "*2\r\n$4\r\nPING\r\n",
        "*1\r\n$4\r\nQUIT\r\nPING\r\n",
        "GET\r\nPING 1 2\r\nnothing a b c\r\nSELECT 1\r\nSELECT x\r\nSELECT 0\r\n",
        "FLUSHALL now\r\nFLUSHALL ASYNC\r\nFLUSHDB SYNC\r\nDBSIZE\r\n",
        "CLIENT GETNAME\r\nCLIENT SETNAME me\r\nCLIENT GETNAME\r\nCLIENT SETNAME \"a b\"\r\n",
        "HELLO 4\r\nHELLO x\r\nHELLO 2 bad\r\nAUTH x\r\nAUTH default x\r\nAUTH a b\r\nRESET\r\n",
        "CONFIG GET save\r\nCONFIG GET appendonly\r\nCONFIG GET databaseless\r\nCONFIG RESETSTAT\r\n",
        "COMMAND INFO nonsense\r\nWAIT 0 10\r\nTYPE a\r\nECHO \"\"\r\n",
    ] {
        let all = [ours.connect(), theirs.connect()].map(|mut client| {
            // The end of what is sent, so that the replies end too.
            client.send(text.as_bytes());
            client.end();
            let mut all = Vec::new();
            client.read.read_to_end(&mut all).unwrap();
            all.escape_ascii().to_string()
        });
        if all[0] != all[1] {
            differences.push(format!("{text:?}\n ours   {}\n theirs {}", all[0], all[1]));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// redis-cli's output for a script, from both.
#[test]
fn redis_cli_shows_the_same() {
    let (ours, theirs) = (Ours::start(&[]), Redis::start());
    let script = "SET a 1\nGET a\nINCR a\nMGET a b\nSET t x EX 1000\nTTL t\nEXISTS a b a\nAPPEND a 33\nGETRANGE a 0 -1\n\
        SET n x NX\nSET n y NX\nINCR n\nDEL a\nKEYS n*\nTYPE n\nSELECT 0\nECHO \"a b\"\nGET\nNONSENSE x\nCONFIG GET save\nDBSIZE\nFLUSHALL\nPING\n";
    for flags in [&["--no-raw"][..], &["-3", "--no-raw"], &["--csv"]] {
        let run = |place: [&str; 2]| {
            let mut command = Command::new("redis-cli");
            command
                .args(place)
                .args(flags)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(script.as_bytes())
                .unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        };
        let shown = run(["-p", ours.port()]);
        assert_eq!(
            shown,
            run(["-s", theirs.path.to_str().unwrap()]),
            "{flags:?}"
        );
        assert!(shown.contains("PONG"));
    }
    let info = Command::new("redis-cli")
        .args(["-p", ours.port(), "info"])
        .output()
        .unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    for field in [
        "redis_version:",
        "used_memory_human:",
        "maxmemory_policy:allkeys-lru",
        "role:master",
    ] {
        assert!(info.contains(field), "{info}");
    }
}

#[test]
fn redis_benchmark_runs_through() {
    let ours = Ours::start(&[]);
    for pipeline in ["1", "16"] {
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-p",
            ours.port(),
            "-t",
            "ping,set,get,incr,mset",
            "-c",
            "50",
            "-n",
            "5000",
            "-r",
            "1000",
            "-P",
            pipeline,
            "--csv",
        ]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let table = String::from_utf8(output.stdout).unwrap();
        assert_eq!(table.lines().count(), 7, "{table}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.to_lowercase().contains("err"), "{errors}");
    }
    let mut client = ours.connect();
    client.send(b"DBSIZE\r\n");
    let keys: i64 = String::from_utf8_lossy(&client.reply()[1..])
        .trim()
        .parse()
        .unwrap();
    assert!(keys > 1000, "{keys}");
}

#[test]
fn memory_stays_within_its_bound_under_benchmark() {
    let ours = Ours::start(&["--memory", "1000000"]);
    let mut command = Command::new("redis-benchmark");
    command.args([
        "-p",
        ours.port(),
        "-t",
        "set",
        "-n",
        "50000",
        "-r",
        "1000000",
        "-d",
        "100",
        "-P",
        "16",
        "-q",
    ]);
    assert!(command.output().unwrap().status.success());
    let mut client = ours.connect();
    client.send(b"INFO\r\n");
    let info = String::from_utf8(client.reply()).unwrap();
    let field = |name: &str| -> usize {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim_start_matches(':').parse().unwrap()
    };
    assert!(
        field("used_memory") <= 1_000_000 && field("used_memory") > 900_000,
        "{info}"
    );
    assert!(field("evicted_keys") > 30_000, "{info}");
}

#[test]
fn datagrams_are_answered_one_by_one() {
    let ours = Ours::start(&[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(ours.address()).unwrap();
    let mut buffer = [0; 1000];
    for (command, reply) in [
        (&array(&words("SET a 7"))[..], "+OK\r\n"),
        (b"INCR a\r\n", ":8\r\n"),
        (
            b"*1\r\n$1",
            "-ERR Protocol error: a datagram holds one whole command\r\n",
        ),
        (b"GET a\r\n", "$1\r\n8\r\n"),
    ] {
        socket.send(command).unwrap();
        let bytes = socket.recv(&mut buffer).unwrap();
        assert_eq!(String::from_utf8_lossy(&buffer[..bytes]), reply);
    }
    // The same store as over TCP.
    let mut client = ours.connect();
    client.send(b"GET a\r\n");
    assert_eq!(client.reply(), b"$1\r\n8\r\n");
}

#[test]
fn clients_are_limited() {
    let ours = Ours::start(&["--clients-max", "2"]);
    let mut kept: Vec<Client> = (0..2).map(|_| ours.connect()).collect();
    for client in &mut kept {
        client.send(b"PING\r\n");
        assert_eq!(client.reply(), b"+PONG\r\n");
    }
    assert_eq!(
        ours.connect().reply(),
        b"-ERR max number of clients reached\r\n"
    );
    kept[0].send(b"QUIT\r\n");
    assert_eq!(
        (kept[0].reply(), kept[0].reply()),
        (b"+OK\r\n".to_vec(), vec![])
    );
}
