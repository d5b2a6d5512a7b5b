//! A program that does to its stack what it likes: the stack lives, is bounded, and serves others.

mod common;

use common::{Bed, Stack, said};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

const GARBAGE: &str = r#"
import os, random, socket, struct, sys
random.seed(7)
path = sys.argv[1]
def talk():
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    sock.settimeout(20)
    return sock
MAGIC = 0x46575302
def request(operation, index=0, generation=0, epoch=0, first=0, second=0, length=0, name=b"", value=b"", key=0):
    return struct.pack("IIQIIQiiII24s32s", MAGIC, operation, epoch, index, generation, key, first, second, length, 0, name, value)
# Packets of every length, of nothing and of everything.
for length in list(range(1, 200)) + [4096, 60000]:
    sock = talk()
    sock.send(random.randbytes(length))
    sock.close()
# Descriptors that nobody wants.
for _ in range(50):
    sock = talk()
    try:
        socket.send_fds(sock, [request(1, first=2, second=1)], [0, 1, 2])
        refused = False
    except PermissionError:
        refused = True
    sock.close()
# SO_PASSRIGHTS.
release = tuple(int(number) for number in os.uname().release.split(".")[:2])
assert refused or release < (6, 16)
# Requests of every kind for sockets of every number, with arguments of any kind.
sock = talk()
def opened(kind=1):
    sock.send(request(1, first=random.choice([2, 10]), second=kind))
    answer, fds, _, _ = socket.recv_fds(sock, 4096, 1)
    error = struct.unpack_from("i", answer)[0]
    if error:
        return None
    name = socket.socket(fileno=os.dup(fds[0]))
    peer = name.getpeername()[15:].decode()
    key = struct.unpack("Q", name.getsockopt(socket.SOL_SOCKET, 47, 8))[0]
    name.close()
    return fds[0], int(peer[:16], 16), int(peer[16:24], 16), int(peer[24:], 16), key
mine = [opened(random.choice([1, 2])) for _ in range(100)]
for _ in range(20000):
    fd, epoch, index, generation, key = random.choice(mine)
    name = struct.pack("HHI", random.choice([0, 2, 10, 77]), random.choice([0, 7, 80, 7777, 65535]), 0)
    name += random.choice([bytes(16), b"\x0a\x46\0\5" + bytes(12), b"\x7f\0\0\1" + bytes(12), random.randbytes(16)])
    sock.send(request(random.choice(range(2, 10)), random.choice([index, 9999, 2**32 - 1]), generation, epoch,
        random.choice([0, 1, 6, 17, 41, -1, 2**31 - 1]), random.choice(range(-1, 70)), random.choice([0, 4, 8, 32, 2**32 - 1]), name, random.randbytes(32), random.choice([key, key, key, 0, key + 1 & 2**64 - 1])))
    answer = sock.recv(4096)
    assert len(answer) == 320, len(answer)
# Heads that say nothing, and messages too short for one.
for fd, *_ in mine:
    end = socket.socket(fileno=fd)
    end.setblocking(False)
    for length in (1, 47, 48, 49, 3000, 65000, 100000):
        try:
            end.send(random.randbytes(length))
        except OSError:
            pass
    end.close()
# Requests without taking answers.
sock = talk()
sock.setblocking(False)
try:
    while True:
        sock.send(request(1, first=2, second=1))
except OSError:
    pass
many = []
try:
    for _ in range(6000):
        many.append(talk())
except OSError:
    pass
print("survived", len(many) > 100)
"#;

const FLOODS: &str = r#"
import os, random, resource, select, socket
random.seed(8)
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
all_ = []
errors = set()
for index in range(10000):
    try:
        sock = socket.socket(socket.AF_INET, random.choice([socket.SOCK_STREAM, socket.SOCK_DGRAM]))
    except OSError as error:
        errors.add(error.errno)
        continue
    sock.setblocking(False)
    try:
        if sock.type == socket.SOCK_DGRAM:
            sock.sendto(bytes(1000), ("10.70.0.1", 9))
        else:
            sock.listen(5)
    except OSError:
        pass
    all_.append(sock)
print("sockets", len(all_), sorted(errors))
for _ in range(20):
    random.shuffle(all_)
    for sock in all_[:200]:
        sock.close()
    del all_[:200]
# Connections that fail at once, of which nobody asks why.
for index in range(6000):
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(random.choice([("10.70.0.1", 9), ("127.0.0.1", 32768 + index)]))
    all_.append(sock)
    if index % 2:
        all_.pop(random.randrange(len(all_))).close()
listener = socket.create_server(("127.0.0.1", 5000), backlog=200)
listener.setblocking(False)
held = []
for round_ in range(3000):
    try:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", 5000))
        held.append(sock)
        if random.random() < 0.5:
            held.append(listener.accept()[0])
        if random.random() < 0.3:
            held[random.randrange(len(held))].send(bytes(random.randrange(100000)))
    except OSError:
        pass
    while len(held) > 300:
        held.pop(random.randrange(len(held))).close()
os._exit(0)
"#;

/// Resident memory of a process in KB.
fn memory_kb(pid: u32) -> u64 {
    let text = status(pid, "VmRSS:");
    let number = text.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

fn serves(bed: &mut Bed) {
    assert!(bed.stack_lives());
    let lines = bed.play_cases(&["connects", "datagrams_connected"]);
    assert!(
        lines.len() > 8 && !lines.iter().any(|line| line.contains("failed")),
        "{lines:?}"
    );
}

/// What a process may have of something, and may not raise (/proc/PID/limits of proc(5)).
fn limit(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut words = line.expect("a line").split_whitespace();
    let (soft, hard) = (words.next(), words.next());
    assert_eq!(soft, hard, "{name}");
    soft.expect("a limit").parse().expect("a number")
}

/// A line of its status.
fn status(pid: u32, word: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("procfs");
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(word));
    line.expect("a line").trim().to_owned()
}

#[test]
fn a_stack_can_do_nothing_but_its_work() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    serves(&mut bed);
    let pid = bed.stack_pid();
    assert_ne!(status(pid, "Uid:"), "0\t0\t0\t0");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(pid, "NoNewPrivs:"), "1");
    assert_eq!(status(pid, "Seccomp:"), "2");
    // As docs/stack.md has them.
    for (what, most) in [
        ("processes", 0),
        ("core file size", 0),
        ("locked memory", 0),
        ("data size", 3 << 29),
        ("file size", 4 << 30),
    ] {
        assert_eq!(limit(pid, &format!("Max {what} ")), most, "{what}");
    }
    // Or fewer, if we may have no more ourselves.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let files = (u64::from(common::SOCKETS_MAX) + 16_384).min(files.unwrap_or(u64::MAX));
    assert_eq!(limit(pid, "Max open files "), files);
    for kind in ["mnt", "ipc", "uts"] {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).expect("procfs");
        assert_ne!(of(&pid.to_string()), of("self"), "{kind}");
    }
    // It sees the directory of the broker's socket, and that only.
    let mut place = std::path::PathBuf::from(format!("/proc/{pid}/root"));
    for word in bed.dir.join("control").components().skip(1) {
        let names = std::fs::read_dir(&place).expect("its root");
        let names: Vec<_> = names.map(|one| one.expect("a name").file_name()).collect();
        assert_eq!(names, [word.as_os_str()]);
        place.push(word);
    }
    assert!(std::fs::write(place.join("x"), "").is_err());
}

#[test]
fn garbage_ends_nothing_but_its_connection() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let control = bed.control_socket().display().to_string();
    // Without the library: it says what it likes.
    let text = said(bed.bare(&["timeout", "100", "python3", "-c", GARBAGE, &control]));
    assert_eq!(text, "survived True\n");
    serves(&mut bed);
}

/// One of the stack's programs that knows another one's socket by its name.
const THIEF: &str = r#"
import os, socket, struct, sys
def talk():
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(sys.argv[1])
    sock.settimeout(20)
    return sock
def ask(sock, operation, id, key, first=0, second=0, name=b""):
    sock.send(struct.pack("II16sQiiII24s32s", 0x46575302, operation, id, key, first, second, 0, 0, name, b""))
    answer, fds, _, _ = socket.recv_fds(sock, 4096, 1)
    return struct.unpack_from("i", answer)[0], fds
owner, other = talk(), talk()
_, fds = ask(owner, 1, bytes(16), 0, 2, 1)
sock = socket.socket(fileno=fds[0])
number = int(sock.getpeername()[15:], 16)
id = struct.pack("QII", number >> 64, number >> 32 & 2**32 - 1, number & 2**32 - 1)
name = struct.pack("HHI", 2, 4567, 0)
# Bind, listen, names, the error.
guesses = [ask(other, operation, id, key, 5, 0, name)[0] for key in (0, 1, 2**64 - 1) for operation in (2, 3, 5, 8)]
print(set(guesses))
# The key goes with the descriptor.
key = struct.unpack("Q", sock.getsockopt(socket.SOL_SOCKET, 47, 8))[0]
print([ask(other, operation, id, key, 5, 0, name)[0] for operation in (2, 3, 5, 8)])
"#;

#[test]
fn a_name_is_not_enough_to_command_a_socket() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let control = bed.control_socket().display().to_string();
    let text = said(bed.bare(&["timeout", "100", "python3", "-c", THIEF, &control]));
    assert_eq!(text, "{1}\n[0, 0, 0, 0]\n");
    serves(&mut bed);
}

/// Of a program that finds the path, and is in another namespace than the stack's programs.
const STRANGER: &str = r#"
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(60)
sock.connect(sys.argv[1])
print("is heard", sock.recv(1) != b"")
"#;

#[test]
fn a_stranger_gets_no_sockets() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let control = bed.control_socket().display().to_string();
    let text = said(bed.far(&["python3", "-c", STRANGER, &control]));
    assert_eq!(text, "is heard False\n");
    serves(&mut bed);
}

#[test]
fn floods_are_bounded() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let text = said(bed.near(&["timeout", "100", "python3", "-c", FLOODS]));
    // ENOBUFS: it has three quarters of all.
    assert_eq!(text, "sockets 6145 [105]\n");
    let kb = memory_kb(bed.stack_pid());
    assert!(kb < 600_000, "{kb} KB");
    serves(&mut bed);
}

/// Asks for more than there is, keeps what it gets, and goes on asking until it is told a line; then it keeps it until it is ended.
const HOG: &str = r#"
import errno, os, resource, select, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
held, refused = [], 0
def ask(count):
    global refused
    for index in range(count):
        try:
            held.append(socket.socket(socket.AF_INET, (socket.SOCK_STREAM, socket.SOCK_DGRAM)[index % 2]))
        except OSError as error:
            assert error.errno == errno.ENOBUFS, error
            refused += 1
ask(100000)
got = len(held)
for _ in range(6000):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(sys.argv[1])
    held.append(sock)
print(got, refused, len(held) - got, flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    ask(100)
sys.stdin.readline()
print("still", len(held) - 6000, flush=True)
sys.stdin.read()
"#;

/// A program that says a line each time, and goes on when it gets one.
struct Talk {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talk {
    fn start(mut command: Command) -> Talk {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("a program");
        let output = child.stdout.take().expect("its output");
        let lines = BufReader::new(output).lines();
        Talk { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().expect("its input");
        input.write_all(b"\n").expect("a line");
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_hog_leaves_others_their_share() {
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let control = bed.control_socket().display().to_string();
    let mut hogs = Vec::new();
    // Three quarters of what there is, and of the rest; all else is refused.
    let shares = [6145, 1536];
    for sockets in shares {
        let mut hog = Talk::start(bed.near(&["timeout", "400", "python3", "-c", HOG, &control]));
        assert_eq!(hog.line(), format!("{sockets} {} 6000", 100_000 - sockets));
        hogs.push(hog);
    }
    // While both ask on.
    serves(&mut bed);
    for (hog, sockets) in hogs.iter_mut().zip(shares) {
        hog.go_on();
        assert_eq!(hog.line(), format!("still {sockets}"));
    }
}

/// Asks by hand, so that each step is known.
const SHORT: &str = r#"
import os, socket, struct, sys
def talk():
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(sys.argv[1])
    sock.settimeout(60)
    return sock
def send(sock, operation, id=bytes(16), key=0, first=0, second=0, name=b""):
    sock.send(struct.pack("II16sQiiII24s32s", 0x46575302, operation, id, key, first, second, 0, 0, name, b""))
def answer(sock):
    bytes_, fds, _, _ = socket.recv_fds(sock, 4096, 1)
    return struct.unpack_from("i", bytes_)[0], fds
def ask(sock, *rest):
    send(sock, *rest)
    return answer(sock)
def step(word):
    print(word, flush=True)
    sys.stdin.readline()
sock = talk()
error, fds = ask(sock, 1, bytes(16), 0, 2, 1)
assert fds, error
end = socket.socket(fileno=fds[0])
end.settimeout(60)
number = int(end.getpeername()[15:], 16)
id = struct.pack("QII", number >> 64, number >> 32 & 2**32 - 1, number & 2**32 - 1)
key = struct.unpack("Q", end.getsockopt(socket.SOL_SOCKET, 47, 8))[0]
assert ask(sock, 2, id, key, 0, 0, struct.pack("HHI", 2, 5000, 0)) == (0, [])
assert ask(sock, 3, id, key, 5) == (0, [])
# Until the stack has no descriptors left.
held = []
while True:
    error, fds = ask(sock, 1, bytes(16), 0, 2, 2)
    if error:
        break
    held += fds
assert error == 105 and 20 < len(held) < 60
step("listens")
# Somebody has connected, and others ask by new connections.
others = [talk() for _ in range(4)]
for other in others:
    send(other, 5, id, key)
for _ in range(3):
    assert ask(sock, 5, id, key) == (0, [])
    assert ask(sock, 1, bytes(16), 0, 2, 2) == (105, [])
# There are some again.
for fd in held:
    os.close(fd)
_, fds, _, _ = socket.recv_fds(end, 4096, 1)
socket.socket(fileno=fds[0]).send(b"hello")
step([answer(other) for other in others])
"#;

const CALLER: &str = r#"
import socket, sys
sock = socket.create_connection(("10.70.0.5", 5000), 60)
print("connected", flush=True)
print(sock.recv(9), flush=True)
"#;

#[test]
fn what_lacks_a_descriptor_is_not_lost() {
    let Some(bed) = Bed::start_short(Stack::Own, 64) else {
        return;
    };
    let control = bed.control_socket().display().to_string();
    let mut program = Talk::start(bed.bare(&["timeout", "100", "python3", "-c", SHORT, &control]));
    assert_eq!(program.line(), "listens");
    let mut caller = Talk::start(bed.far(&["timeout", "100", "python3", "-c", CALLER]));
    assert_eq!(caller.line(), "connected");
    program.go_on();
    assert_eq!(program.line(), "[(0, []), (0, []), (0, []), (0, [])]");
    assert_eq!(caller.line(), "b'hello'");
}

/// Listens on a port that several share; with a word more it takes all the sockets that it gets, and accepts nothing.
const SHARES: &str = r#"
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
listener = socket.create_server(("", 5001), backlog=64, reuse_port=True)
held = []
while len(sys.argv) > 1:
    try:
        held.append(socket.socket())
    except OSError:
        break
print("listens", flush=True)
while not held:
    sock, _ = listener.accept()
    sock.sendall(b"served")
    sock.close()
sys.stdin.read()
"#;

const ASKS: &str = r#"
import socket
served = 0
for _ in range(40):
    with socket.create_connection(("10.70.0.5", 5001), 30) as sock:
        sock.settimeout(30)
        served += sock.recv(9) == b"served"
print(served)
"#;

#[test]
fn a_listener_whose_process_has_its_share_leaves_connections_to_others() {
    let Some(bed) = Bed::start(Stack::Own) else {
        return;
    };
    let listen = |words: &[&str]| {
        let mut all = vec!["timeout", "100", "python3", "-c", SHARES];
        all.extend(words);
        let mut program = Talk::start(bed.near(&all));
        assert_eq!(program.line(), "listens");
        program
    };
    let _both = [listen(&["all"]), listen(&[])];
    assert_eq!(said(bed.far(&["python3", "-c", ASKS])), "40\n");
}

/// Has more lie in its pair than the stack takes at once, and gets another far end.
const TURNS: &str = r#"
import socket, sys
a, b, sock = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
for far_end in a, b:
    far_end.bind(("127.0.0.1", 0))
    far_end.settimeout(60)
name = b.getsockname()
sock.connect(a.getsockname())
sock.send(b"first")
print(a.recv(9), flush=True)
sys.stdin.readline()
for index in range(200):
    sock.send(b"%d" % index)
print("sent", flush=True)
sock.connect(name)
sock.send(b"last")
print(b.recv(9), [a.recv(9) for _ in range(200)] == [b"%d" % index for index in range(200)])
"#;

/// Until it waits for an answer of its stack.
fn await_question(pid: u32) {
    let path = format!("/proc/{pid}/syscall");
    let began = std::time::Instant::now();
    let wanted = libc::SYS_recvmsg.to_string();
    while std::fs::read_to_string(&path)
        .is_ok_and(|text| text.split(' ').next() != Some(wanted.as_str()))
    {
        assert!(began.elapsed().as_secs() < 60, "it asks nothing");
        std::thread::yield_now();
    }
}

#[test]
fn what_was_sent_before_a_connect_goes_to_the_former_far_end() {
    use rustix::process::{Pid, Signal, kill_process};
    let Some(bed) = Bed::start(Stack::Own) else {
        return;
    };
    let stack = Pid::from_raw(bed.stack_pid() as i32).expect("a number");
    let mut program = Talk::start(bed.near(&["python3", "-c", TURNS]));
    assert_eq!(program.line(), "b'first'");
    kill_process(stack, Signal::STOP).expect("stopped");
    program.go_on();
    assert_eq!(program.line(), "sent");
    await_question(program.child.id());
    kill_process(stack, Signal::CONT).expect("goes on");
    assert_eq!(program.line(), "b'last' True");
}

/// Answers at once and at length, and closes.
const WORDY: &str = r#"
import socket
listens = socket.socket()
listens.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
listens.bind(("", 5000))
listens.listen(16)
listens.settimeout(30)
print("listens", flush=True)
for _ in range(120):
    sock, _ = listens.accept()
    sock.setblocking(False)
    try:
        while True:
            sock.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    sock.close()
held = []
while len(held) < 32:
    try:
        held.append(socket.socket())
    except OSError:
        pass  # The stack sees the last closes in its own time.
print("sockets", len(held), flush=True)
"#;

/// Connects, and never reads.
const DEAF: &str = r#"
import socket, sys
held = []
for _ in range(120):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect(("10.70.0.5", 5000))
    held.append(sock)
sys.stdin.read()
"#;

#[test]
fn who_never_reads_keeps_no_sockets_that_were_closed() {
    let Some(mut bed) = Bed::start_small(Stack::Own, 64) else {
        return;
    };
    let mut server = Talk::start(bed.near(&["timeout", "100", "python3", "-c", WORDY]));
    assert_eq!(server.line(), "listens");
    let _deaf = Talk::start(bed.far(&["timeout", "100", "python3", "-c", DEAF]));
    assert_eq!(server.line(), "sockets 32");
    assert!(bed.stack_lives());
}
