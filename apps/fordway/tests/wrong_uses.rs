//! What a user may do wrong, in one table. Each row is a command line of bash, the exit status and
//! a piece of the one line on stderr. Nothing may be on stdout, and nothing may be left behind.
//!
//! In a row, `$F` is the command, `$R` the runtime directory of a broker that runs, `$N` one of
//! nobody, and `$D` a directory with the files of [`prepare`]. `$U` goes before what somebody
//! without privileges does. The table is played twice: once in surroundings as those of a service,
//! without HOME, session and language.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Ran, Runtime, install, is_root, library};

type Row = (&'static str, i32, &'static str);

/// A row that needs no root.
const ANYBODY: &[Row] = &[
    // Words that are not known, and those that were meant.
    ("$F", 2, "a command is missing; see: fordway --help"),
    ("$F dwon", 2, "'down'"),
    ("$F frobnicate", 2, "frobnicate"),
    ("$F $R dmoain list", 2, "'domain'"),
    (
        "$F domain",
        2,
        "a command is missing; see: fordway domain --help",
    ),
    ("$F domain lst", 2, "'list'"),
    ("$F filter", 2, "see: fordway filter --help"),
    ("$F filter laod x", 2, "'load'"),
    ("$F --runtime-drr /x ss", 2, "'--runtime-dir'"),
    ("$F ss --jsn", 2, "'--json'"),
    ("$F ss --path fsat", 2, "'fast'"),
    ("$F ss --path ''", 2, "fast, kernel"),
    ("$F ss --sort byte", 2, "'bytes'"),
    ("$F ss --reason no-pear", 2, "'no-peer'"),
    ("$F ss --reason xyzzy", 2, "see: fordway ss --help"),
    ("$F ss -w --json", 2, "--json"),
    ("$F ss extra", 2, "extra"),
    ("$F top -n 3", 2, "--batch"),
    ("$F top --json", 2, "--batch"),
    ("$F top --batch -n 0", 2, "'0'"),
    ("$F top --batch --interval 0.01", 2, "0.1 to 60 seconds"),
    ("$F top --batch --interval NaN", 2, "0.1 to 60 seconds"),
    ("$F ss --domain", 2, "--domain <NAME>"),
    ("$F ss --json --json", 2, "multiple times"),
    ("$F up --detahc", 2, "'--detach'"),
    ("$F down --keep-domain", 2, "'--keep-domains'"),
    ("$F doctor --fix", 2, "--fix"),
    ("$F serve --metrics nowhere", 2, "--metrics"),
    ("$F $N serve", 8, "start it with: fordway up"),
    ("$F serve --config /no/such", 3, "/no/such"),
    ("$F completions bsh", 2, "'bash'"),
    ("$F completions powershell", 2, "bash, zsh, fish"),
    ("$F completions", 2, "<SHELL>"),
    ("$F man", 2, "<DIR>"),
    ("$F env now", 2, "now"),
    // Malformed values.
    ("$F domain add x --ip 10.77.0", 2, "IPv4"),
    ("$F domain add x --ip ::1", 2, "IPv4"),
    ("$F domain add x --ip 10.77.0.300", 2, "IPv4"),
    ("$F domain add", 2, "<NAME>"),
    ("$F domain attach x", 2, "--ip <ADDRESS>"),
    ("$F domain attach x --ip 10.77.0.9 --pid self", 2, "--pid"),
    (
        "$F domain attach x --ip 10.77.0.9 --pid 99999999999",
        2,
        "--pid",
    ),
    ("$F downgrade", 2, "--all"),
    ("$F downgrade seven", 2, "seven"),
    ("$F downgrade -1", 2, "-1"),
    ("$F downgrade 99999999999999999999", 2, "number too large"),
    ("$F downgrade 1 --all", 2, "cannot be used with"),
    ("$F up --log wran", 2, "error, warn, info"),
    ("$F up --network 10.77.0.0", 2, "10.77.0.0/24"),
    ("$F up --network 10.77.0.0/31", 2, "prefix of 8 to 30"),
    ("$F up --network fe80::/64", 2, "IPv4"),
    ("$F up --network home", 2, "\"home\" is no network"),
    ("$F up --network6 fd00::", 2, "fdbb:bad8:6eca::/64"),
    ("$F up --network6 fd00::/112", 2, "prefix of 16 to 96"),
    ("$F up --network6 fe80::/64", 2, "unique local or global"),
    ("$F up --network6 10.77.0.0/24", 2, "or none"),
    (
        "$F up --network6 fd56:534f:434b::/64",
        2,
        "stand for CIDs of AF_VSOCK",
    ),
    (
        "$F up --network6 fd56:534f::/32",
        2,
        "stand for CIDs of AF_VSOCK",
    ),
    ("$F up --ring-memory-max 12X", 2, "\"12X\" is no size"),
    ("$F up --ring-memory-max ''", 2, "no size"),
    ("$F up --ring-memory-max 99999999999G", 2, "no size"),
    ("$F up --ring-memory-max -5", 2, "-5"),
    ("$F filter trace --from web", 2, "--to <END:PORT>"),
    ("$F filter trace", 2, "CAPTURE"),
    (
        "$F filter trace --rules $D/rules.nft --from 10.77.0.4 --to 10.77.0.3:http",
        2,
        "http is no port",
    ),
    ("$F filter compile $D/rules.nft", 2, "--out <FILE>"),
    // run, whose errors have a status of their own.
    ("$F run", 125, "<PROG>"),
    ("$F run -- true", 125, "--domain"),
    ("$F run --doman web -- true", 125, "'--domain'"),
    ("$F run --here", 125, "<PROG>"),
    ("$F run --here --domain web -- true", 125, "--here"),
    ("$F run --here --ip 10.77.0.9 -- true", 125, "--ip"),
    ("$F run --here --path fats -- true", 125, "'fast'"),
    (
        "$F run --here --path kernel --require-fast -- true",
        125,
        "--require-fast",
    ),
    (
        "$F $N run --domain web --stack udp -- true",
        125,
        "give --path stack",
    ),
    (
        "$F $N run --domain web --fuse --path kernel -- true",
        125,
        "give --path stack",
    ),
    ("$F run --here --cpu 3-1 -- true", 125, "3-1"),
    ("$F run --here --cpu 0,x -- true", 125, "CPU number"),
    (
        "$F run --here --cpu 99999 -- true",
        125,
        "CPU numbers end at",
    ),
    (
        "$F $R run --here --cpu 1000 -- true",
        125,
        "do they all exist?",
    ),
    (
        "$F $R run --here -- no-such-program",
        127,
        "no-such-program: No such file",
    ),
    ("$F $R run --here -- /no/such/program", 127, "No such file"),
    ("$F $R run --here -- ''", 127, "\"\": No such file"),
    ("PATH= $F $R run --here -- true", 127, "true: No such file"),
    (
        "$F $R run --here -- $D/rules.nft",
        126,
        "rules.nft: Permission denied",
    ),
    ("$F $R run --here -- /etc", 126, "/etc: Permission denied"),
    (
        "$F $R run --here -- $D/text",
        126,
        "what its first line or its loader names",
    ),
    (
        "$F $N run --here --require-fast -- true",
        125,
        "start it with: fordway up",
    ),
    (
        "FORDWAY_LIB=/no/such.so $F $R run --here --require-fast -- true",
        125,
        "name it in FORDWAY_LIB",
    ),
    (
        "FORDWAY_LIB=$D $F $R run --here --require-fast -- true",
        125,
        "it is no libfordway.so",
    ),
    (
        "FORDWAY_LIB=$D/rules.nft $F $R run --here --require-fast -- true",
        125,
        "it is no libfordway.so",
    ),
    (
        "FORDWAY_LIB=$D/other.so $F $R run --here --require-fast -- true",
        125,
        "it is no libfordway.so",
    ),
    (
        "FORDWAY_LIB=$D/old.so $F $R run --here --require-fast -- true",
        125,
        "install both from one release",
    ),
    (
        "FORDWAY_LIB=\"$D/a b/libfordway.so\" $F $R run --here --require-fast -- true",
        125,
        "blank or colon",
    ),
    ("FORDWAY_LIB=$D/old.so $F env", 5, "has ABI version 1"),
    // Files.
    (
        "$F up --config /no/such/file",
        3,
        "/no/such/file: No such file",
    ),
    ("$F up --config $D", 3, "Is a directory"),
    ("$F up --config $D/empty.so", 3, "No such file"),
    ("$F up --config $D/rules.nft", 3, "line 1"),
    (
        "$F up --config $D/key.toml",
        3,
        "line 2: unknown field `netwrok`",
    ),
    (
        "$F up --config $D/network.toml",
        3,
        "\"10.1.1.1\" is no network",
    ),
    ("$F up --config $D/size.toml", 3, "\"much\" is no size"),
    ("$F up --config $D/log.toml", 3, "log in the configuration"),
    ("$F up --config $D/binary", 3, "UTF-8"),
    (
        "$F filter check /no/such/file",
        7,
        "cannot read /no/such/file",
    ),
    ("$F filter check $D", 2, "Is a directory"),
    ("$F filter check $D/binary", 2, "UTF-8"),
    (
        "$F filter compile $D/rules.nft -o /no/such/dir/x",
        7,
        "cannot write /no/such/dir/x",
    ),
    (
        "$F filter trace --rules $D/rules.nft /no/such.pcap",
        7,
        "/no/such.pcap",
    ),
    (
        "$F filter trace --rules $D/rules.nft $D/rules.nft",
        2,
        "no capture",
    ),
    (
        "$F filter trace --rules /no/such.nft --from 10.0.0.1 --to 10.0.0.2:1",
        7,
        "/no/such.nft",
    ),
    ("$F man $D/rules.nft", 2, "rules.nft: File exists"),
    ("$F man $D/rules.nft/man", 2, "Not a directory"),
    ("$F cdi", 2, "see: fordway cdi --help"),
    ("$F cdi instal", 2, "'install'"),
    ("$F cdi install --dir $D/rules.nft", 2, "give a directory"),
    ("$F cdi install --dir $D/no/such", 7, "give a directory"),
    ("$F cdi remove --dir $D/open", 7, "nothing is installed"),
    ("$F guests", 2, "see: fordway guests --help"),
    ("$F guests mete", 2, "'meet'"),
    ("$F guests meet", 2, "<NAME=ADDRESSES>"),
    ("$F guests meet web=10.0.0.2", 2, "2 values required"),
    ("$F guests meet web db=10.0.0.3", 2, "as web=10.0.0.2"),
    (
        "$F guests meet web=10.0.0.300 db=10.0.0.3",
        2,
        "as web=10.0.0.2",
    ),
    (
        "$F guests meet web=10.0.0.2 db=10.0.0.2",
        2,
        "10.0.0.2 is given twice",
    ),
    (
        "$F guests meet web=10.0.0.2,10.0.0.17/28 db=10.0.0.3",
        2,
        "\"10.0.0.17/28\" is no IPv4 address",
    ),
    (
        "$F guests meet web=10.0.0.2,10.0.0.0/24 db=10.0.0.3",
        2,
        "10.0.0.3 is given twice",
    ),
    (
        "$F guests meet web=10.0.0.2 web=10.0.0.3",
        2,
        "web is given twice",
    ),
    ("$F guests part", 2, "<NAME>"),
    ("$F watch", 2, "--docker|--podman"),
    ("$F watch --podman --docker", 2, "cannot be used with"),
    // No broker, or not there.
    ("$F $N ss", 8, "start it with: fordway up"),
    ("$F $N ss -w", 8, "start it with: fordway up"),
    ("$F $N top --batch", 8, "start it with: fordway up"),
    ("$F $N domain list --json", 8, "start it with: fordway up"),
    ("$F $N domain show db", 8, "start it with: fordway up"),
    ("$F $N domain rm db", 8, "start it with: fordway up"),
    ("$F $N downgrade --all", 8, "start it with: fordway up"),
    ("$F $N log", 8, "start it with: fordway up"),
    ("$F $N try -- true", 8, "start it with: fordway up"),
    ("$F $N filter list", 8, "start it with: fordway up"),
    ("$F $N filter monitor", 8, "start it with: fordway up"),
    (
        "$F $N filter load $D/rules.nft",
        8,
        "start it with: fordway up",
    ),
    (
        "$F $N filter trace --from web --to db:1",
        8,
        "start it with: fordway up",
    ),
    ("$F $N down", 8, "nothing to remove"),
    ("$F --runtime-dir $D/rules.nft ss", 8, "rules.nft"),
    ("$F --runtime-dir '' ss", 2, "--runtime-dir"),
    (
        "$F --runtime-dir /$(printf 'd%.0s' {1..100}) ss",
        2,
        "at most",
    ),
    ("$F $R ss --domain nobody", 7, "see: fordway domain list"),
    ("$F $R top", 2, "give --batch"),
    (
        "$F $R top --batch --domain host --domain nobody",
        7,
        "\"nobody\"",
    ),
    ("$F $R domain show nobody", 7, "see: fordway domain list"),
    ("$F $R domain rm nobody", 7, "nobody"),
    ("$F $R domain rm host", 2, "the broker's own"),
    ("$F $R downgrade 12345", 7, "run it again"),
    ("$F $R log wran", 2, "error, warn, info"),
    ("$F $R log fordwayd", 2, "error, warn, info"),
    ("$F $R log audit=", 2, "audit="),
    (
        "$F $R domain attach x --ip 10.77.0.9 --pid 999999999",
        7,
        "there is no process 999999999",
    ),
    (
        "$F $R filter trace --from nobody --to 10.77.0.3:1",
        7,
        "there is no domain \"nobody\"",
    ),
    (
        "$F $R filter trace --from nobody:x --to 10.77.0.3:1",
        2,
        "x is no port",
    ),
    ("$F $R domain add -- -a", 2, "name"),
    ("$F $R domain add a_b", 2, "name"),
    ("$F $R domain add ../x", 2, "name"),
    ("$F $R domain add ''", 2, "name"),
    ("$F $R domain add $(printf 'd%.0s' {1..64})", 2, "name"),
    ("$F $R domain add $(printf 'd%.0s' {1..9000})", 2, "name"),
    ("$F $R domain add $'a\\nb'", 2, "name"),
    ("$F $R domain add $'a\\033[2J'", 2, "name"),
    ("$F $R domain add host", 6, "the broker's own"),
    // Two brokers.
    ("$F $R up", 6, "already runs"),
    ("$F $R up --detach", 6, "end it with: fordway down"),
    ("$F --runtime-dir $D/rules.nft up", 2, "rules.nft"),
    ("$F --runtime-dir $D/rules.nft up --detach", 2, "rules.nft"),
    ("$F --runtime-dir $D/open up", 2, "chmod go-w"),
    (
        "$F --runtime-dir $D/open/x/../../rules.nft/y up --detach",
        2,
        "irectory",
    ),
    // Bytes that are no text.
    ("$F $R domain show $'a\\377'", 2, "UTF-8"),
    ("$F $'a\\377'", 2, "unrecognized subcommand"),
    ("$F $R ss --domain $'\\377'", 2, "UTF-8"),
    ("$F $R run --here -- $'/no/\\377'", 127, "No such file"),
    // Output that goes nowhere.
    (
        "$F $R ss >/dev/full",
        1,
        "writing to the standard output: No space left on device",
    ),
    ("$F $R domain list --json >/dev/full", 1, "standard output"),
    ("$F $N doctor >/dev/full", 1, "standard output"),
    ("$F completions bash >/dev/full", 1, "standard output"),
    ("$F --help >/dev/full", 1, "standard output"),
    ("$F $R filter list --json >/dev/full", 1, "standard output"),
    (
        "$F filter compile $D/rules.nft -o /dev/full",
        1,
        "cannot write /dev/full: No space left",
    ),
];

/// Where a tiny file system is full.
const FULL: &str =
    "mount -t tmpfs -o size=16k none $D/full; head -c 1M /dev/zero >$D/full/x 2>/dev/null; ";

/// A row that needs root.
const ROOT: &[Row] = &[
    ("$F $R domain add db --ip 10.77.0.9", 6, "10.77.0.3"),
    ("$F $R domain add other --ip 10.77.0.3", 6, "10.77.0.3"),
    (
        "$F $R run --domain other --ip 10.77.0.3 -- true",
        125,
        "10.77.0.3",
    ),
    ("$F $R domain add x --ip 10.77.0.0", 2, "10.77.0.0"),
    ("$F $R domain add x --ip 192.168.1.1", 2, "192.168.1.1"),
    ("$F $R domain attach db --ip 10.77.0.3 --pid $$", 6, "db"),
    (
        "$F $R run --domain db --path kernel -- no-such-program",
        127,
        "no-such-program",
    ),
    (
        "$F $N run --domain db -- true",
        125,
        "start it with: fordway up",
    ),
    ("$F $R run --domain b_d -- true", 125, "name"),
    // Without privileges.
    ("$U $F $R ss", 4, "not permitted"),
    ("$U $F $R domain add x", 4, "not permitted"),
    ("$U $F $R down", 4, "not permitted"),
    ("$U $F $R filter list", 4, "not permitted"),
    ("$U $F $R serve --metrics 127.0.0.1:0", 4, "not permitted"),
    ("$U $F $R run --domain db -- true", 125, "domains need root"),
    ("$U $F $N up", 4, "ermi"),
    ("$U $F $N up --detach", 4, "give --runtime-dir DIR"),
    ("$U $F $R up", 2, "belongs to user 0"),
    ("$U $F filter check $D/secret", 4, "Permission denied"),
    ("$U $F up --config $D/secret", 3, "Permission denied"),
    ("$U $F man $D/man", 4, "Permission denied"),
    ("$U $F cdi install --dir $D/full", 4, "--dir DIR"),
    ("$U $F cdi remove --dir $D/secret", 2, "Not a directory"),
    ("$U env XDG_RUNTIME_DIR=relative $F ss", 8, "fordway-65534"),
    (
        "$U env XDG_RUNTIME_DIR=$D/nowhere $F ss",
        8,
        "start it with: fordway up",
    ),
    ("$U env -u XDG_RUNTIME_DIR $F down", 8, "nothing to remove"),
    // Full disks.
    ("FULL $F man $D/full/man", 1, "No space left"),
    (
        "FULL $F filter compile $D/rules.nft -o $D/full/out || { status=$?; test ! -e $D/full/out && exit $status; }",
        1,
        "cannot write",
    ),
    (
        "FULL $F --runtime-dir $D/full/run up --detach",
        1,
        "No space left",
    ),
    ("FULL $F --runtime-dir $D/full/run up", 1, "No space left"),
    (
        "FULL $F cdi install --dir $D/full || { status=$?; test ! -e $D/full/fordway.json.new && exit $status; }",
        1,
        "No space left",
    ),
];

/// The files that rows name.
fn prepare(dir: &Path) {
    let file = |name: &str, text: &[u8]| fs::write(dir.join(name), text).expect(name);
    file("rules.nft", b"table inet t {\n}\n");
    file("key.toml", b"network = \"10.77.0.0/24\"\nnetwrok = \"x\"\n");
    file("network.toml", b"network = \"10.1.1.1\"\n");
    file("size.toml", b"ring_memory_max = \"much\"\n");
    file("log.toml", b"log = \"fordwayd=loud\"\n");
    file("binary", b"\xff\xfe\0\x01");
    file("secret", b"");
    for name in ["a b", "full", "open", "open/x"] {
        fs::create_dir(dir.join(name)).expect(name);
    }
    let old = library(dir, "old", "const unsigned fordway_abi_version = 1;");
    library(dir, "other", "int other;");
    fs::copy(&old, dir.join("a b/libfordway.so")).expect("copy");
    file("data", b"#!/no/such/interpreter\n");
    install(&dir.join("data"), &dir.join("text"), 0o755);
    let mode = |name: &str, mode| support::set_mode(&dir.join(name), mode);
    mode("secret", 0o600);
    mode("open", 0o777);
}

/// All that lies there, but for what the broker changes as it lives.
fn tree(dir: &Path) -> String {
    let mut find = Command::new("find");
    find.arg(dir)
        .args(["-path", "*/run", "-prune", "-o", "-print"]);
    Ran::new(&mut find).stdout
}

#[derive(Clone, Copy, Debug)]
enum Surroundings {
    Session,
    /// Of systemd's, say: no HOME, no session, a language that nobody has.
    Service,
}

/// A command line of bash, with the variables that the table has.
fn bash(runtime: &Runtime, line: &str, surroundings: Surroundings) -> Command {
    let fordway = runtime.dir.join("fordway");
    if !fordway.exists() {
        // The build directory may be closed to others.
        install(Path::new(env!("CARGO_BIN_EXE_fordway")), &fordway, 0o755);
    }
    let mut command = match line.starts_with("FULL ") {
        true => Command::new("unshare"),
        false => Command::new("env"),
    };
    if line.starts_with("FULL ") {
        command.arg("-m");
    }
    command.args(["bash", "-o", "pipefail", "-c", &line.replace("FULL ", FULL)]);
    if let Surroundings::Service = surroundings {
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path);
        command.env("LANG", "tlh_XX.KOI8-R");
    }
    let option = |dir: &Path| format!("--runtime-dir {}", dir.display());
    command
        .env("F", fordway)
        .env("D", &runtime.dir)
        .env("R", option(&runtime.run_dir()))
        .env("N", option(&runtime.dir.join("nobody")))
        .env("U", "setpriv --reuid 65534 --regid 65534 --clear-groups")
        .env("FORDWAY_LIB", runtime.library())
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

#[test]
fn every_wrong_use_is_one_line_with_its_status() {
    let runtime = Runtime::up();
    let root = is_root();
    if root {
        runtime.say("domain add db --ip 10.77.0.3").check(0);
    }
    prepare(&runtime.dir);
    bash(&runtime, "", Surroundings::Session);
    let before = tree(&runtime.dir);
    let rows = ANYBODY.iter().chain(if root { ROOT } else { &[] });
    let mut wrong = Vec::new();
    for (line, status, says) in rows {
        for surroundings in [Surroundings::Session, Surroundings::Service] {
            let ran = Ran::new(&mut bash(&runtime, line, surroundings));
            let said = &ran.stderr;
            let is_right = ran.output.status.code() == Some(*status)
                && ran.stdout.is_empty()
                && said.lines().count() == 1
                && said.starts_with("fordway: ")
                && said.contains(says)
                && said.chars().count() <= 240
                && !["os error", "panicked", "Some(", "Err(", "{ "]
                    .iter()
                    .any(|form| said.contains(form));
            if !is_right {
                let (code, out) = (ran.output.status.code(), &ran.stdout);
                wrong.push(format!(
                    "{line} ({surroundings:?})\n  {status} {says}\n  {code:?} {out:?} {said:?}"
                ));
            }
            let after = tree(&runtime.dir);
            if after != before {
                wrong.push(format!("{line}\n  leaves something: {after}"));
                break;
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} rows:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(ANYBODY.len() + ROOT.len() >= 80);
    runtime.close();
}

#[test]
fn who_hears_nothing_is_told_nothing() {
    let runtime = Runtime::up();
    let bash = |line: &str| Ran::new(&mut bash(&runtime, line, Surroundings::Session));
    // A reader that goes away ends what would go on for ever.
    for line in [
        "ss",
        "ss -w",
        "ss --json",
        "--help",
        "doctor",
        "completions bash",
    ] {
        let ran = bash(&format!("timeout 60 $F $R {line} | head -c 1 >/dev/null")).check(0);
        assert_eq!(ran.stderr, "", "{line}");
    }
    // A closed descriptor is none of ours.
    let ran = bash("$F $R ss >&-").check(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    // The status is there if nobody can read the line.
    bash("$F dwon 2>/dev/full").check(2);
    bash("$F dwon 2>&-").check(2);
    bash("$F $R run --here -- /etc/passwd 2>/dev/full").check(126);
    bash("FORDWAY_LIB=/no $F $R run --here -- true 2>/dev/full").check(0);
    runtime.close();
}

/// Answers every question with one line, as a broker of another version might.
fn answer_with(dir: &Path, line: String) {
    let listener = UnixListener::bind(dir.join("admin.sock")).expect("bind");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = BufReader::new(&stream).read_line(&mut String::new());
            let _ = stream.write_all(line.as_bytes());
        }
    });
}

#[test]
fn a_broker_of_another_version_is_said_to_be_one() {
    let runtime = Runtime::new();
    let fake = |name: &str, line: &str| {
        fs::create_dir(runtime.dir.join(name)).expect(name);
        answer_with(&runtime.dir.join(name), line.to_owned());
    };
    let info = r#"{"reply":"info","schema":1,"version":"9.9.9","abi_version":ABI,"pid":1,"uid":0,"domains":true,"network":"10.77.0.0/24","processes":0,"channels":0,"protocol_errors":0}"#;
    let newer = |abi: u32| info.replace("ABI", &abi.to_string()) + "\n";
    fake("abi", &newer(fordway_abi::ABI_VERSION + 1));
    fake("version", &newer(fordway_abi::ABI_VERSION));
    fake("junk", "HTTP/1.1 400 Bad Request\r\n");
    fake("future", "{\"reply\":\"teapot\"}\n");
    fake("silent", "");
    let again = "start it anew: fordway down --keep-domains; fordway up";
    for (line, status, says) in [
        (
            "$F --runtime-dir $D/abi doctor",
            10,
            "fail  broker        it has ABI version",
        ),
        ("$F --runtime-dir $D/abi doctor", 10, again),
        (
            "$F --runtime-dir $D/version doctor",
            0,
            "warn  broker        it is version 9.9.9",
        ),
        (
            "$F --runtime-dir $D/abi run --here -- true",
            0,
            "connections stay on the kernel path",
        ),
        (
            "$F --runtime-dir $D/abi run --here --require-fast -- true",
            125,
            "the broker has ABI version",
        ),
        ("$F --runtime-dir $D/junk ss", 8, "not understood"),
        ("$F --runtime-dir $D/future ss", 8, "see: fordway doctor"),
        (
            "$F --runtime-dir $D/future doctor",
            0,
            "warn  broker        the broker's answer is not understood",
        ),
        ("$F --runtime-dir $D/version ss", 1, "something else"),
        ("$F --runtime-dir $D/silent ss", 4, "closed the connection"),
    ] {
        let ran = Ran::new(&mut bash(&runtime, line, Surroundings::Service)).check(status);
        let said = ran.stdout + &ran.stderr;
        // Lines of doctor are wrapped.
        let said = said.replace("\n                   ", "");
        assert!(said.contains(says), "{line}: {said}");
        let fits = |line: &str| line.chars().count() <= 240;
        assert!(said.lines().all(fits), "{line}: {said}");
    }
}
