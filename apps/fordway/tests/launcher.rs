//! `fordway run`: statuses, what it says, and what the program finds around it.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{Ran, Runtime, install, is_root, library};

/// The smallest program: exits with status 7. With a note named "Go" if asked.
#[cfg(target_arch = "x86_64")]
fn tiny_elf(go: bool) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const CODE: [u8; 12] = [0xbf, 7, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]; // mov edi; mov eax; syscall
    const CODE_AT: u64 = 64 + 2 * 56;
    let note_at = CODE_AT + 12;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let mut words = |bytes: &[u8]| file.extend_from_slice(bytes);
    words(&2u16.to_le_bytes()); // ET_EXEC
    words(&62u16.to_le_bytes()); // EM_X86_64
    words(&1u32.to_le_bytes());
    words(&(BASE + CODE_AT).to_le_bytes());
    words(&64u64.to_le_bytes()); // program headers
    words(&0u64.to_le_bytes());
    words(&0u32.to_le_bytes());
    for half in [64u16, 56, 1 + u16::from(go), 64, 0, 0] {
        words(&half.to_le_bytes());
    }
    let mut segment = |kind: u32, at: u64, length: u64| {
        words(&kind.to_le_bytes());
        words(&5u32.to_le_bytes()); // read, execute
        for word in [
            at,
            BASE + at,
            BASE + at,
            length,
            length,
            if kind == 1 { 4096 } else { 4 },
        ] {
            words(&word.to_le_bytes());
        }
    };
    segment(1, 0, CODE_AT + 32);
    segment(4, note_at, 20);
    words(&CODE);
    words(&[4u32, 4, 4].map(u32::to_le_bytes).concat()); // name, description, type
    words(b"Go\0\0abcd");
    file
}

/// An executable file.
fn program(runtime: &Runtime, name: &str, contents: &[u8], mode: u32) -> PathBuf {
    let data = runtime.dir.join(format!("{name}.data"));
    fs::write(&data, contents).expect("write");
    install(&data, &runtime.dir.join(name), mode)
}

fn here(runtime: &Runtime, file: &Path) -> Ran {
    runtime.fordway([
        "run".as_ref(),
        "--here".as_ref(),
        "--".as_ref(),
        file.as_os_str(),
    ])
}

#[test]
fn the_status_is_the_programs() {
    let runtime = Runtime::up();
    for status in [0, 1, 42, 255] {
        let ran = runtime.fordway(["run", "--here", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(ran.check(status).stderr, "");
    }
    let killed = runtime.fordway(["run", "--here", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.output.status.signal(), Some(15));
    runtime.close();
}

#[test]
fn own_errors_have_their_own_statuses() {
    let runtime = Runtime::up();
    let run = |args: &str| runtime.say(&format!("run {args}"));
    run("--here -- no-such-program").fails(127, "no-such-program: No such file or directory");
    run("--here -- /no/such/file").fails(127, "No such file or directory");
    run("--here -- /etc/passwd").fails(126, "Permission denied");
    run("--here -- /etc").fails(126, "Permission denied");
    run("--here").fails(125, "PROG");
    run("-- true").fails(125, "--domain");
    run("--here --domain a -- true").fails(125, "--here");
    run("--here --ip 10.77.0.3 -- true").fails(125, "--ip");
    run("--here --path slow -- true").fails(125, "slow");
    run("--here --path kernel --require-fast -- true").fails(125, "--require-fast");
    run("--here --cpu 0-x -- true").fails(125, "0-x");
    run("--here --cpu 1000 -- true").fails(125, "CPU");
    run("--here --frobnicate -- true").fails(125, "--frobnicate");
    // A program that cannot be started is not tried twice.
    let ran = runtime.say("try -- no-such-program").check(127);
    assert_eq!(ran.stderr.lines().count(), 2, "{ran:?}");
    runtime.say("frobnicate").fails(2, "frobnicate");
    runtime.say("domain").fails(2, "a command is missing");
    runtime.fordway([""; 0]).fails(2, "a command is missing");
    runtime.say("downgrade").fails(2, "--all");
    runtime.close();
}

#[test]
fn the_program_finds_what_the_shim_needs() {
    let runtime = Runtime::up();
    let mut command = runtime.command(["run", "--here", "--require-fast", "--", "env"]);
    let ran = Ran::new(
        command
            .env("LD_PRELOAD", "/x/libfordway.so:/lib/none.so")
            .env("KEEP", "me"),
    );
    let environment = ran.check(0).stdout;
    let has = |line: &str| environment.lines().any(|candidate| candidate == line);
    let shim = runtime
        .library()
        .canonicalize()
        .expect("path")
        .display()
        .to_string();
    assert!(
        has(&format!("LD_PRELOAD={shim}:/lib/none.so")),
        "{environment}"
    );
    let socket = runtime.run_dir().join("control/control.sock");
    assert!(
        has(&format!("FORDWAY_SOCKET={}", socket.display())),
        "{environment}"
    );
    assert!(has("FORDWAY_PATH=fast") && has("KEEP=me"), "{environment}");

    let ran = runtime.say("run --here --path kernel -- env").check(0);
    assert!(
        !ran.stdout.contains("LD_PRELOAD") && !ran.stdout.contains("FORDWAY_PATH"),
        "{ran:?}"
    );
    let ran = runtime.say("run --here --cpu 0 -- nproc").check(0);
    assert_eq!(ran.stdout, "1\n");
    // No descriptor of the launcher's is left to the program.
    let list = ["sh", "-c", "ls /proc/$$/fd"];
    let ran = runtime.fordway(["run", "--here", "--"].iter().chain(&list));
    let bare = Ran::new(Command::new(list[0]).args(&list[1..]).stdin(Stdio::null()));
    assert_eq!(ran.check(0).stdout, bare.stdout);
    runtime.close();
}

#[test]
fn without_a_broker_here_takes_the_kernel_path() {
    let runtime = Runtime::new();
    let ran = runtime
        .fordway(["run", "--here", "--", "sh", "-c", "echo ${LD_PRELOAD-none}"])
        .check(0);
    assert_eq!(ran.stdout, "none\n");
    let note = "fordway: note: no broker answers";
    assert!(
        ran.stderr.starts_with(note) && ran.stderr.contains("fordway up"),
        "{ran:?}"
    );
    assert_eq!(
        runtime
            .say("run --here --path kernel -- true")
            .check(0)
            .stderr,
        ""
    );
    runtime
        .say("run --here --require-fast -- true")
        .fails(125, "start it with: fordway up");
    runtime.say("down").fails(8, "nothing to remove");
    for command in ["ss", "domain list", "downgrade --all"] {
        runtime.say(command).fails(8, "start it with: fordway up");
    }
    if is_root() {
        runtime
            .say("run --domain a -- true")
            .fails(125, "start it with: fordway up");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn images_that_the_shim_cannot_be_in_are_named_once() {
    let runtime = Runtime::up();
    let image = program(&runtime, "static", &tiny_elf(false), 0o755);
    let noted = |ran: Ran, file: &Path, what: &str| {
        let file = file.display();
        let line = format!(
            "fordway: note: {file} {what}: its connections stay on the kernel path (reason no-peer)\n"
        );
        assert_eq!(ran.stderr, line);
    };
    noted(here(&runtime, &image).check(7), &image, "is static");
    let go = program(&runtime, "go", &tiny_elf(true), 0o755);
    noted(here(&runtime, &go).check(7), &go, "is a Go program");
    let script = program(
        &runtime,
        "script",
        format!("#!{} -x\n", image.display()).as_bytes(),
        0o755,
    );
    noted(here(&runtime, &script).check(7), &image, "is static");
    let run = [
        "run",
        "--here",
        "--path",
        "kernel",
        "--",
        image.to_str().expect("path"),
    ];
    assert_eq!(runtime.fordway(run).check(7).stderr, "");
    let run = [
        "run",
        "--here",
        "--require-fast",
        "--",
        image.to_str().expect("path"),
    ];
    runtime
        .fordway(run)
        .fails(125, "is static: it cannot use the fast path");

    if is_root() {
        let nobody = program(
            &runtime,
            "setuid",
            &fs::read("/bin/true").expect("read"),
            0o755,
        );
        chown(&nobody, Some(65534), Some(65534)).expect("chown");
        fs::set_permissions(&nobody, fs::Permissions::from_mode(0o4755)).expect("mode");
        noted(here(&runtime, &nobody).check(0), &nobody, "is setuid");
        fs::set_permissions(&nobody, fs::Permissions::from_mode(0o2755)).expect("mode");
        noted(here(&runtime, &nobody).check(0), &nobody, "is setgid");
        // Root gains nothing by root's own setuid programs: the loader preloads.
        chown(&nobody, Some(0), Some(0)).expect("chown");
        fs::set_permissions(&nobody, fs::Permissions::from_mode(0o4755)).expect("mode");
        assert_eq!(here(&runtime, &nobody).check(0).stderr, "");
    }
    let source = program(&runtime, "musl.c", b"int main(void) { return 7; }\n", 0o644);
    let musl = runtime.dir.join("musl");
    let built = Command::new("musl-gcc")
        .arg("-o")
        .arg(&musl)
        .arg(&source)
        .status();
    if built.is_ok_and(|status| status.success()) {
        assert_eq!(here(&runtime, &musl).check(7).stderr, "");
    } else {
        fordway_test_skip::skipped("no musl-gcc");
    }
    runtime.close();
}

#[test]
fn a_library_of_another_version_is_not_used() {
    let runtime = Runtime::up();
    let old = library(
        &runtime.dir,
        "old",
        "const unsigned fordway_abi_version = 1;",
    );
    let run = |words: &[&str]| {
        let words = [&["run", "--here"], words, &["--", "printenv", "LD_PRELOAD"]].concat();
        let mut command = runtime.command(words);
        Ran::new(command.env("FORDWAY_LIB", &old))
    };
    let ran = run(&[]).check(1);
    assert!(ran.stderr.contains("has ABI version 1"), "{ran:?}");
    assert!(ran.stderr.contains("kernel path"), "{ran:?}");
    run(&["--require-fast"]).fails(125, "install both from one release");
    runtime.close();
}

#[test]
fn an_ordinary_user_runs_programs_here() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    // The build directory may be closed to others.
    let fordway = runtime.dir.join("fordway");
    install(Path::new(env!("CARGO_BIN_EXE_fordway")), &fordway, 0o755);
    let home = runtime.dir.join("user");
    fs::create_dir(&home).expect("directory");
    chown(&home, Some(65534), Some(65534)).expect("chown");
    let library = runtime.library();
    let user = User {
        fordway,
        home,
        library,
    };
    user.say("run --domain a -- true")
        .fails(125, "domains need root");
    user.say("up --detach").check(0);
    user.say("run --here -- true").check(0);
    let ran = user.say("run --here -- printenv FORDWAY_SOCKET").check(0);
    assert!(
        ran.stdout.starts_with(user.home.to_str().expect("path")),
        "{ran:?}"
    );
    user.say("domain add a").fails(4, "root");
    let ran = user.say("doctor").check(0);
    assert!(ran.stdout.contains("warn  domains"), "{ran:?}");
    user.say("down").check(0);
    user.say("--runtime-dir /run/fordway-not-there up --detach")
        .fails(4, "not permitted");
    user.say("--runtime-dir /run/fordway-not-there up")
        .fails(4, "ermi");
    // Without a session: a directory below /tmp, unless it is somebody else's.
    let mut nowhere = user.command();
    nowhere.arg("ss").env_remove("XDG_RUNTIME_DIR");
    Ran::new(&mut nowhere).fails(8, "/tmp/fordway-65534");
    fs::create_dir("/tmp/fordway-65534").expect("directory");
    let ran = Ran::new(&mut nowhere);
    let mut doctor = user.command();
    doctor.arg("doctor").env_remove("XDG_RUNTIME_DIR");
    let examined = Ran::new(&mut doctor);
    fs::remove_dir("/tmp/fordway-65534").expect("remove");
    ran.fails(4, "--runtime-dir");
    // The other checks are made all the same.
    let examined = examined.check(0).stdout;
    assert!(
        examined.contains("warn  broker        /tmp/fordway-65534 belongs"),
        "{examined}"
    );
    assert!(examined.contains("ok    shim"), "{examined}");
}

/// A machine of its own, as far as /run and the groups go, with root's broker.
const MEMBERS: &str = "
set -e
{ grep -v '^fordway:' /etc/group; echo fordway:x:4711:; } >$D/group
mount --bind $D/group /etc/group
mount -t tmpfs none /run
$F up --detach
trap '$F down' EXIT
as() { setpriv --reuid 65534 --regid 65534 $1 env XDG_RUNTIME_DIR=$D $F ${@:2}; }
for listing in ss 'domain list' 'domain show host'; do as '--groups 4711' $listing >/dev/null; done
! as '--groups 4711' downgrade --all
! as --clear-groups ss
";

#[test]
fn members_of_the_group_list_what_roots_broker_has() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::new();
    let program = Path::new(env!("CARGO_BIN_EXE_fordway"));
    let mut command = Command::new("unshare");
    command.args(["-m", "bash", "-c", MEMBERS]);
    command
        .env("F", install(program, &runtime.dir.join("command"), 0o755))
        .env("D", &runtime.dir);
    let ran = Ran::new(&mut command).check(0);
    let dir = runtime.dir.join("fordway");
    let refused = format!(
        "fordway: no broker answers in {}; start it with: fordway up\n",
        dir.display()
    );
    assert_eq!(ran.stderr, refused.repeat(2));
}

/// Somebody without privileges, and the broker of his own that he may have.
struct User {
    fordway: PathBuf,
    home: PathBuf,
    library: PathBuf,
}

impl User {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.fordway);
        command.uid(65534).gid(65534).current_dir("/");
        command
            .env_remove("LD_PRELOAD")
            .env("FORDWAY_LIB", &self.library);
        command.env("XDG_RUNTIME_DIR", &self.home);
        command
    }

    fn say(&self, line: &str) -> Ran {
        Ran::new(self.command().args(line.split(' ')))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.command().arg("down").output();
    }
}
