//! Sockets of unmodified programs under a stack of their own, with Linux as the oracle: one script of cases is played on both,
//! and what differs has a reason here.

mod common;

use common::{Bed, Stack};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Lines of `cases.py` that differ from Linux's, and why.
const DIFFERENCES: &[(&str, &str)] = &[];

#[test]
fn sockets_do_what_linux_says() {
    let (Some(mut own), Some(mut kernels)) = (Bed::start(Stack::Own), Bed::start(Stack::Kernels))
    else {
        return;
    };
    let words = std::env::var("FORDWAY_CASES").unwrap_or_default();
    let words: Vec<_> = words.split_whitespace().collect();
    let wanted = kernels.play_cases(&words);
    let shown = own.play_cases(&words);
    assert!(own.stack_lives());
    let name = |line: &String| line.split_once(':').map(|(name, _)| name.to_owned());
    let mut wrong = Vec::new();
    for line in &wanted {
        let ours = shown.iter().find(|other| name(other) == name(line));
        let is_known = DIFFERENCES
            .iter()
            .any(|(known, _)| Some(*known) == name(line).as_deref());
        if ours != Some(line) && !is_known {
            wrong.push(format!(
                "linux: {line}\nours:  {}",
                ours.map_or("-", |line| line)
            ));
        }
        if ours == Some(line) && is_known {
            wrong.push(format!("no longer a difference: {line}"));
        }
    }
    for line in &shown {
        if !wanted.iter().any(|other| name(other) == name(line)) {
            wrong.push(format!("ours alone: {line}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        wanted.len(),
        wrong.join("\n")
    );
    assert!(
        wanted.len() > 100 || !words.is_empty(),
        "{} lines",
        wanted.len()
    );
}

/// What socket(2) says of a stack that has only some protocols: 0, or the errno.
#[test]
fn a_protocol_that_is_not_named_is_not_there() {
    const CASES: &str = "import socket as s
for f, k in ((2, 1), (2, 2), (10, 1), (10, 2)):
    try: s.socket(f, k); print(0)
    except OSError as e: print(e.errno)";
    let [no_protocol, no_family] = ["93", "97"];
    for (protocols, said) in [
        (r#""udp""#, [no_protocol, "0", no_family, no_family]),
        (r#""tcp", "icmp""#, ["0", no_protocol, no_family, no_family]),
        (r#""ipv6", "udp""#, [no_protocol, "0", no_protocol, "0"]),
        (r#""tcp", "udp", "icmp", "ipv6""#, ["0"; 4]),
    ] {
        let Some(mut bed) = Bed::start_with(Stack::Own, protocols) else {
            return;
        };
        let shown = common::said(bed.near(&["python3", "-c", CASES]));
        assert_eq!(
            shown.split_whitespace().collect::<Vec<_>>(),
            said,
            "{protocols}"
        );
        assert!(bed.stack_lives());
    }
}

/// A child opens a control connection of its own, and finds no stack there: an urgent byte would be an ordinary one then.
#[test]
fn an_urgent_byte_of_which_the_stack_cannot_be_told_is_not_sent() {
    const FAR: &str = "import socket
listener = socket.create_server(('10.70.0.1', 7141))
print('ready', flush=True)
with listener.accept()[0].makefile('rb') as all_: print(all_.read())";
    const NEAR: &str = "import errno, os, socket
sock = socket.create_connection(('10.70.0.1', 7141))
if not os.fork():
    path = os.environ['FORDWAY_STACK']
    os.rename(path, path + '.away')
    try: print(sock.send(b'!', socket.MSG_OOB), flush=True)
    except OSError as error: print(errno.errorcode[error.errno], flush=True)
    sock.sendall(b'ordinary')
    os._exit(0)
os.wait()";
    let Some(mut bed) = Bed::start(Stack::Own) else {
        return;
    };
    let mut far = bed.far(&["timeout", "60", "python3", "-c", FAR]);
    let mut far = far.stdout(Stdio::piped()).spawn().expect("python3");
    let mut lines = BufReader::new(far.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(line(), "ready");
    let near = bed.near(&["timeout", "60", "python3", "-c", NEAR]);
    assert_eq!(common::said(near), "ENETDOWN\n");
    assert_eq!(line(), "b'ordinary'");
    assert!(far.wait().is_ok_and(|status| status.success()));
    assert!(bed.stack_lives());
}
