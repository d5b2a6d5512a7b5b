//! The program and real clients: curl, wget, ab, wrk, and raw sockets for the bad ones.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
const SIZES: [(&str, usize); 5] = [
    ("empty", 0),
    ("1k", 1024),
    ("100k", 100_000),
    ("1m+1", 1_048_577),
    ("32m", 32_000_000),
];

/// A directory of files and the server of it; both go with the test.
struct Bed {
    directory: PathBuf,
    child: Child,
    address: String,
}

impl Bed {
    fn start(arguments: &[&str]) -> Bed {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("httpd-{}-{count}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let root = directory.join("root");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        for (name, length) in SIZES {
            std::fs::write(root.join(name), body(length)).unwrap();
        }
        std::fs::write(root.join("index.html"), "<p>hello\n").unwrap();
        std::fs::write(root.join("sub/index.html"), "sub").unwrap();
        let long = root.join("d".repeat(80)).join("e".repeat(80));
        std::fs::create_dir_all(&long).unwrap();
        std::fs::write(long.join("file"), "long name").unwrap();
        let (child, address) = serve(&["--root", root.to_str().unwrap()], arguments);
        Bed {
            directory,
            child,
            address,
        }
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// What a raw client gets for its bytes, to the end; it ends first if `ends`.
    fn raw(&self, bytes: &[u8], ends: bool) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        if ends {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        String::from_utf8_lossy(&all).into_owned()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn serve(place: &[&str], arguments: &[&str]) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-httpd"));
    command
        .args(["--listen", "127.0.0.1:0"])
        .args(place)
        .args(arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    (child, address)
}

/// Bytes without a short period.
fn body(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("{program}: {error} (see contrib/packages.txt)"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    output
}

#[test]
fn curl_and_wget_get_every_byte() {
    let bed = Bed::start(&[]);
    for (name, length) in SIZES {
        let expected = body(length);
        assert!(
            run("curl", &["-sf", &bed.url(name)]).stdout == expected,
            "curl {name}"
        );
        assert!(
            run("wget", &["-qO-", &bed.url(name)]).stdout == expected,
            "wget {name}"
        );
    }
    assert_eq!(run("curl", &["-sfL", &bed.url("sub")]).stdout, b"sub");
    let long = format!("{}/{}/file", "d".repeat(80), "e".repeat(80));
    assert_eq!(run("curl", &["-sf", &bed.url(&long)]).stdout, b"long name");
    // Two files over one connection, and the head alone.
    let both = run("curl", &["-sfv", &bed.url("1k"), &bed.url("100k")]);
    assert_eq!(both.stdout, [body(1024), body(100_000)].concat());
    let said = String::from_utf8(both.stderr).unwrap().to_lowercase();
    assert!(
        said.contains("re-using existing") || said.contains("reusing existing"),
        "{said}"
    );
    let head = String::from_utf8(run("curl", &["-sfI", &bed.url("32m")]).stdout).unwrap();
    assert!(
        head.contains("Content-Length: 32000000\r\n") && head.contains("Date: "),
        "{head}"
    );
}

#[test]
fn downloads_are_resumed_and_not_repeated() {
    let bed = Bed::start(&[]);
    let whole = body(1_048_577);
    let part = run("curl", &["-sf", "-r", "500000-500009", &bed.url("1m+1")]).stdout;
    assert_eq!(part, whole[500_000..500_010]);
    let file = bed.directory.join("1m+1");
    std::fs::write(&file, &whole[..700_000]).unwrap();
    let file = file.to_str().unwrap();
    run("wget", &["-qc", "-O", file, &bed.url("1m+1")]);
    assert!(std::fs::read(file).unwrap() == whole);
    // Newer than the file: nothing comes.
    let status = run(
        "curl",
        &[
            "-s",
            "-z",
            file,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            &bed.url("1m+1"),
        ],
    );
    assert_eq!(status.stdout, b"304");
}

#[test]
fn ab_and_wrk_see_no_error() {
    let bed = Bed::start(&[]);
    for arguments in [
        &["-q", "-n", "2000", "-c", "4"][..],
        &["-q", "-k", "-n", "5000", "-c", "20"],
    ] {
        let url = bed.url("");
        let output = run("ab", &[arguments, &[&url]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let complete = field("Complete requests:").unwrap();
        assert_eq!(
            (Some(complete), field("Failed requests:")),
            (
                Some(arguments[arguments.iter().position(|a| *a == "-n").unwrap() + 1]),
                Some("0")
            ),
            "{text}"
        );
        assert_eq!(field("Non-2xx responses:"), None);
        if arguments.contains(&"-k") {
            assert_eq!(field("Keep-Alive requests:"), Some("5000"), "{text}");
        }
    }
    let text = run("wrk", &["-t2", "-c50", "-d1s", &bed.url("100k")]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("requests in")
            && !text.contains("Socket errors")
            && !text.contains("Non-2xx"),
        "{text}"
    );
}

#[test]
fn an_archive_of_tar_and_one_of_ours_serve_the_same() {
    let bed = Bed::start(&[]);
    let root = bed.root();
    let root = root.to_str().unwrap();
    let own = bed.directory.join("own.tar");
    let own = own.to_str().unwrap();
    run(
        env!("CARGO_BIN_EXE_fordway-httpd"),
        &["--root", root, "--pack", own],
    );
    let mut listed: Vec<String> = String::from_utf8(run("tar", &["-tf", own]).stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    listed.sort();
    let mut names: Vec<String> = SIZES.iter().map(|(name, _)| name.to_string()).collect();
    names.extend([
        "index.html".into(),
        "sub/index.html".into(),
        format!("{}/{}/file", "d".repeat(80), "e".repeat(80)),
    ]);
    names.sort();
    assert_eq!(listed, names);
    for (format, name) in [("ustar", "a.tar"), ("gnu", "b.tar"), ("posix", "c.tar")] {
        let file = bed.directory.join(name);
        let file = file.to_str().unwrap();
        run(
            "tar",
            &[&format!("--format={format}"), "-cf", file, "-C", root, "."],
        );
        let (mut child, address) = serve(&["--archive", file], &[]);
        for path in &names {
            let got = run("curl", &["-sf", &format!("http://{address}/{path}")]).stdout;
            assert!(
                got == std::fs::read(bed.root().join(path)).unwrap(),
                "{format} {path}"
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn bad_slow_and_too_many_clients() {
    let bed = Bed::start(&[
        "--request-timeout",
        "1",
        "--idle-timeout",
        "1",
        "--connections-max",
        "3",
        "--head-max",
        "1000",
    ]);
    let statuses = |reply: String| -> Vec<String> {
        let heads = reply.lines().filter(|line| line.starts_with("HTTP/1.1 "));
        heads.map(|line| line[9..12].to_owned()).collect()
    };
    let long = "x".repeat(2000);
    for (bytes, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), "505"),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"),
            "431",
        ),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), "414"),
        (
            "DELETE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".into(),
            "405",
        ),
        (
            "GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".into(),
            "404",
        ),
        (
            "GET /1k HTTP/1.1\r\nHost: a\r\nRange: bytes=1024-\r\nConnection: close\r\n\r\n".into(),
            "416",
        ),
        // Slow: the rest never comes.
        ("GET / HTTP/1.1\r\nHo".into(), "408"),
    ] {
        assert_eq!(
            statuses(bed.raw(bytes.as_bytes(), false)),
            [status],
            "{bytes}"
        );
    }
    // Silent: nothing is said to it.
    assert_eq!(bed.raw(b"", false), "");
    // A body larger than the server wants is not the end of its reply.
    let large = [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".to_vec(),
        vec![b'x'; 1_000_000],
    ]
    .concat();
    assert_eq!(statuses(bed.raw(&large, false)), ["405"]);

    let pipelined = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n".repeat(300);
    let replies = bed.raw(pipelined.as_bytes(), true);
    assert_eq!(replies.matches("HTTP/1.1 200 OK\r\n").count(), 300);

    let mut kept: Vec<TcpStream> = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&bed.address).unwrap();
        stream
            .write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
        kept.push(stream);
    }
    assert_eq!(statuses(bed.raw(b"", false)), ["503"]);
}

#[test]
fn the_program_ends_by_its_signal_and_says_what_is_wrong() {
    let mut bed = Bed::start(&[]);
    let pid = bed.child.id().to_string();
    run("kill", &["-TERM", &pid]);
    assert_eq!(bed.child.wait().unwrap().code(), Some(0));

    let program = env!("CARGO_BIN_EXE_fordway-httpd");
    let broken = bed.directory.join("broken.tar");
    std::fs::write(&broken, [b'x'; 700]).unwrap();
    for (arguments, code, word) in [
        (
            &["--archive", broken.to_str().unwrap()][..],
            1,
            "no ustar header",
        ),
        (&["--root", "/nonexistent"], 1, "/nonexistent"),
        (
            &["--root", "/dev/null", "--listen", "nowhere"],
            2,
            "--listen",
        ),
        (&[], 2, "--root"),
    ] {
        let output = Command::new(program).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(word), "{said}");
    }
}
