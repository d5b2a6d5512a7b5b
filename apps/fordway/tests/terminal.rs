//! What people see: listings within the width of a terminal, and completion in real shells.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Ran, Runtime, is_root};

/// The longest name that a domain may have.
fn long_name(first: char) -> String {
    format!("{first}{}", "x".repeat(62))
}

/// Wide rules: a set in braces, a set's own elements, a comment that must stay whole.
const WIDE: &str = "table inet shop {
	set banned {
		type ipv4_addr
		elements = { 10.77.0.101, 10.77.0.102, 10.77.0.103, 10.77.0.104, 10.77.0.105, 10.77.0.106 }
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr @banned tcp dport { 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009 } ct state new counter reject with tcp reset comment \"these, and no others, are refused; two  blanks\"
		ip saddr 10.77.0.3 ip daddr 10.77.0.4 tcp dport 6379 ct state new,established counter accept comment \"a\"
	}
}
";

#[track_caller]
fn fits(text: &str, columns: usize) {
    for line in text.lines() {
        let expanded = line.replace('\t', "        ");
        assert!(expanded.chars().count() <= columns, "{line:?} in:\n{text}");
    }
}

#[test]
fn listings_fit_a_terminal_and_are_whole_in_a_pipe() {
    if !is_root() || !has("socat") {
        return;
    }
    let runtime = Runtime::up();
    let names = ['a', 'b'].map(long_name);
    for name in &names {
        runtime.say(&format!("domain add {name}")).check(0);
    }
    for number in 0..12 {
        runtime.say(&format!("domain add d{number}")).check(0);
    }
    let start = |name: &str, address: &str, far: &str| {
        let run = [
            "run", "--domain", name, "--path", "kernel", "--", "socat", address, far,
        ];
        let mut program = runtime.command(run);
        program.stdin(Stdio::piped()).spawn().expect("start")
    };
    let mut server = start(&names[1], "tcp-listen:7", "stdio");
    let mut client = start(
        &names[0],
        "tcp:10.77.0.3:7,retry=1000,interval=0.01",
        "stdio",
    );
    let deadline = Instant::now() + Duration::from_secs(30);
    let ends = format!("{}:7", names[1]);
    while !runtime.say("ss --all").stdout.contains(&ends) {
        assert!(Instant::now() < deadline, "no connection");
    }
    let rules = runtime.dir.join("wide.nft");
    fs::write(&rules, WIDE).expect("write");
    let load = format!("filter load {}", rules.display());
    fits(&runtime.on_terminal(&load, 80), 80);
    let trace = format!("filter trace --from {} --to 10.77.0.4:6379", names[0]);
    let show = format!("domain show {}", names[0]);
    for line in [
        "domain list",
        &show,
        "ss --all",
        "doctor",
        "try -- true",
        &trace,
        "filter list",
    ] {
        let on_terminal = runtime.on_terminal(line, 80);
        assert!(!on_terminal.is_empty());
        fits(&on_terminal, 80);
        let piped = runtime.say(line).check(0).stdout;
        assert!(!piped.contains(" \\\n"), "{piped}");
    }
    for line in ["domain list", &show] {
        assert!(runtime.say(line).check(0).stdout.contains(&names[0]));
    }
    for program in [&mut client, &mut server] {
        program.kill().expect("kill");
        program.wait().expect("wait");
    }
    runtime.close();
}

#[test]
fn nft_reads_folded_rules_back() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::up();
    let rules = runtime.dir.join("wide.nft");
    fs::write(&rules, WIDE).expect("write");
    runtime
        .say(&format!("filter load {}", rules.display()))
        .check(0);
    let whole = runtime.say("filter list").check(0).stdout;
    for columns in [40, 80, 400] {
        let folded = runtime.on_terminal("filter list", columns);
        assert_eq!(folded == whole, columns == 400, "{folded}");
        fs::write(&rules, &folded).expect("write");
        let read = runtime
            .say(&format!("filter check --list {}", rules.display()))
            .check(0);
        assert_eq!(read.stdout, whole, "{folded}");
    }
    runtime.close();
}

/// A shell, with `fordway` and `mytool` on its path, in a directory that has `rules.nft`.
fn shell(runtime: &Runtime, words: &[&str]) -> Ran {
    let bin = runtime.dir.join("bin");
    if !bin.exists() {
        fs::create_dir(&bin).expect("directory");
        symlink(env!("CARGO_BIN_EXE_fordway"), bin.join("fordway")).expect("link");
        fs::write(runtime.dir.join("rules.nft"), "").expect("write");
        symlink("/bin/true", bin.join("mytool")).expect("link");
    }
    let path = std::env::var("PATH").expect("PATH");
    let mut command = Command::new("timeout");
    command
        .arg("60")
        .args(words)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("R", runtime.run_dir())
        .env("TERM", "dumb")
        .current_dir(&runtime.dir)
        .stdin(Stdio::null());
    Ran::new(&mut command)
}

/// Whether a program is here to be tried.
fn has(program: &str) -> bool {
    let there = Command::new(program).arg("-V").output().is_ok();
    if !there {
        fordway_test_skip::skipped(format!("no {program}"));
    }
    there
}

/// Calls the function as bash does.
const BASH: &str = r#"
[ -n "$BARE" ] || . /usr/share/bash-completion/bash_completion 2>/dev/null
. <(fordway completions bash)
complete -W 'alpha beta' mytool
said() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
    COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_KEY=9 COMPREPLY=()
    _fordway fordway "${!#}" "${@: -2:1}" 2>/dev/null
    echo "${COMPREPLY[*]}"
}
said fordway --runtime-dir "$R" run --domain ho
said fordway --runtime-dir "$R" ss --domain = ho
said fordway --runtime-dir "$R" domain show ho
said fordway filter load rul
said fordway dow
said fordway run --req
said fordway ss --path =
said fordway --runtime-dir /nowhere domain rm ''
said fordway run --here -- mytoo
[ -n "$BARE" ] || said fordway run --here -- mytool al
"#;

#[test]
fn bash_completes() {
    let runtime = Runtime::up();
    let expected = "host\nhost\nhost\nrules.nft\ndowngrade down\n--require-fast\nfast kernel stack\n\nmytool\n";
    let ran = shell(&runtime, &["env", "BARE=1", "bash", "-c", BASH]).check(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), (expected, ""));
    if !Path::new("/usr/share/bash-completion/bash_completion").exists() {
        fordway_test_skip::skipped("no bash-completion");
        return;
    }
    let ran = shell(&runtime, &["bash", "-c", BASH]).check(0);
    assert_eq!(ran.stdout, format!("{expected}alpha\n"));
    runtime.close();
}

#[test]
fn fish_completes() {
    if !has("fish") {
        return;
    }
    let runtime = Runtime::up();
    let script = "
        fordway completions fish | source
        complete -c mytool -f -a 'alpha beta'
        complete -C \"fordway --runtime-dir $R run --domain ho\" | string split -f1 \\t
        complete -C \"fordway --runtime-dir $R ss --domain=ho\" | string split -f1 \\t
        complete -C 'fordway filter load rul'
        complete -C 'fordway run --req' | string split -f1 \\t
        complete -C 'fordway --runtime-dir /nowhere domain rm '
        complete -C 'fordway run --here -- mytool al'
        complete -C 'fordway run --here -- mytoo' | string split -f1 \\t
    ";
    let ran = shell(&runtime, &["fish", "--no-config", "-c", script]).check(0);
    let expected = "host\n--domain=host\nrules.nft\n--require-fast\nalpha\nmytool\n";
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), (expected, ""));
    runtime.close();
}

/// Types into a shell on a terminal of its own, and waits for what must appear.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty shell "PATH=$PATH R=$R zsh -f -i"
types() { zpty -w -n shell "$1"; zpty -r shell seen "*$2*" || exit 1; }
types $'PS1=; autoload -Uz compinit; compinit -u -D; . <(fordway completions zsh); echo "do"ne\n' 'done*2004h'
types $'compdef "_values of alpha beta" mytool; echo "do"ne\n' 'done*2004h'
types "fordway --runtime-dir $R run --domain ho"$'\t' '--domain host '
types $'\C-u'"fordway --runtime-dir $R ss --domain=ho"$'\t' '--domain=host '
types $'\C-ufordway filter load rul\t' 'load rules.nft '
types $'\C-ufordway run --req\t' 'run --require-fast '
types $'\C-ufordway run --here -- mytoo\t' '-- mytool '
types $'\C-ufordway run --here -- mytool al\t' 'mytool alpha'
echo all
"#;

#[test]
fn zsh_completes() {
    if !has("zsh") {
        return;
    }
    let runtime = Runtime::up();
    let ran = shell(&runtime, &["zsh", "-f", "-c", ZSH]);
    assert!(ran.stdout.ends_with("all\n"), "{ran:?}");
    runtime.close();
}
