//! `fordway run`: become the program, in its domain, with the shim.
//!
//! The process that the user started is the program in the end: it asks the broker
//! for the domain, enters it, and executes; there is no parent between the user and
//! the program. What cannot be had is said before that: as an error when the program
//! would then run in the wrong place, as a note when it only stays on the kernel path.

use crate::broker::{Broker, unexpected};
use crate::cli::{PathChoice, Run};
use crate::exit::{Exit, Failure, Outcome};
use crate::places;
use crate::show::note;
use fordway_abi::ABI_VERSION;
use fordway_abi::env as names;
use fordway_platform::elf::{self, Obstacle};
use fordway_platform::{ipc, launch};
use fordwayd::StackOptions;
use fordwayd::admin::{Domain, Reply, Request, Stack};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the dynamic loader is told of the shim, ld.so(8).
pub const PRELOAD: &str = "LD_PRELOAD";

/// Where AddressSanitizer is told what to check.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
/// Its runtime wants to be the first library, as nothing before it may call it before it is set
/// up; the program sets it up before any library's constructor runs, and the shim may be first.
const ASAN_ANY_PLACE: &str = "verify_asan_link_order=0";

/// How long a stack may take to answer, and between two looks.
const STACK_LIMIT: Duration = Duration::from_secs(10);
const STACK_LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Comes back only with an error.
pub fn run(run: &Run, broker: Result<Broker, Failure>) -> Outcome {
    let broker = &broker.map_err(launcher)?;
    let path = if run.require_fast {
        PathChoice::Fast
    } else {
        run.path
    };
    if run.here && path == PathChoice::Stack {
        let text = "a stack of its own is a domain's; give --domain NAME";
        return Err(launcher(Failure::new(Exit::Usage, text)));
    }
    if path != PathChoice::Stack && (run.fuse || !run.stack.is_empty()) {
        let text = "--stack and --fuse are of a stack of the domain's own; give --path stack";
        return Err(launcher(Failure::new(Exit::Usage, text)));
    }
    let (program, arguments) = run
        .command
        .split_first()
        .ok_or_else(|| Failure::internal("no program"))?;

    let confined = match path {
        PathChoice::Kernel => Ok(()),
        _ => launch::forbid_grants_in_guests(),
    };
    let confined = confined.map_err(|error| {
        let text = format!("a filter of system calls (seccomp(2)), which a guest needs: {error}");
        Failure::new(Exit::Missing, text)
    });
    let shim = match confined.and_then(|()| shim_for(path, run, broker)) {
        Ok(shim) => shim,
        // `--here --path auto` and a missing shim leave the kernel path.
        Err(cause) if path == PathChoice::Auto && (run.here || cause.exit == Exit::Missing) => {
            note(&format!(
                "{}: connections stay on the kernel path",
                cause.message
            ));
            None
        }
        Err(cause) => return Err(launcher(cause)),
    };
    if shim.is_some() {
        look_at_image(program, path).map_err(launcher)?;
    }
    if let Some(list) = &run.cpu {
        launch::set_cpus(&list.0).map_err(|error| {
            launcher(Failure::internal(format!(
                "setting the CPUs: {error}; do they all exist?"
            )))
        })?;
    }
    let mut stack = None;
    if let Some(name) = &run.domain {
        let domain = join(broker, name, run, path).map_err(launcher)?;
        enter(&domain).map_err(launcher)?;
        stack = domain.stack;
    }
    let mut variables = variables(shim.as_deref(), path, broker);
    if let Some(stack) = stack {
        wait_for(&stack).map_err(launcher)?;
        variables.push((names::STACK.into(), stack.control_path.into()));
    }
    if run.no_datagrams {
        variables.retain(|(name, _)| name != names::DATAGRAMS);
        variables.push((names::DATAGRAMS.into(), "0".into()));
    }
    let error = launch::exec(program, arguments, &variables);
    Err(not_executed(program, &error))
}

/// What is said of a program that could not be executed.
fn not_executed(program: &OsStr, error: &io::Error) -> Failure {
    let shown = match program.is_empty() {
        true => "\"\"".into(),
        false => program.to_string_lossy(),
    };
    match error.kind() {
        io::ErrorKind::NotFound if elf::find_program(program).is_some() => {
            let text = format!("{shown}: what its first line or its loader names is not there");
            Failure::new(Exit::NotExecutable, text)
        }
        io::ErrorKind::NotFound => Failure::new(Exit::NoProgram, format!("{shown}: {error}")),
        _ => Failure::new(Exit::NotExecutable, format!("{shown}: {error}")),
    }
}

/// The shim's file if the program shall have it; checks that a broker answers.
fn shim_for(path: PathChoice, run: &Run, broker: &Broker) -> Result<Option<PathBuf>, Failure> {
    if run.domain.is_some() && !launch::has_sys_admin() {
        let text = "domains need root (CAP_SYS_ADMIN); ordinary users run programs with: fordway run --here";
        return Err(Failure::new(Exit::Privilege, text));
    }
    if path == PathChoice::Kernel {
        return Ok(None);
    }
    let shim = places::shim()?;
    match broker.info() {
        Ok(info) if info.abi_version != ABI_VERSION => {
            let text = format!(
                "the broker has ABI version {}, this fordway {ABI_VERSION}; start the broker anew: fordway down --keep-domains; fordway up",
                info.abi_version
            );
            if path == PathChoice::Fast {
                return Err(Failure::new(Exit::Missing, text));
            }
            // A package is being upgraded: the next broker serves the program.
            note(&format!(
                "{text}; connections stay on the kernel path until then"
            ));
            Ok(Some(shim))
        }
        Ok(_) => Ok(Some(shim)),
        // Another user's broker: its control socket serves everyone.
        Err(cause) if cause.exit == Exit::Privilege => Ok(Some(shim)),
        Err(cause) => Err(cause),
    }
}

/// Says what the shim cannot be in; an error where the user insists on the fast path.
fn look_at_image(program: &OsStr, path: PathChoice) -> Result<(), Failure> {
    let Some(file) = elf::find_program(program) else {
        return Ok(());
    };
    let Ok(image) = elf::inspect(&file) else {
        return Ok(());
    };
    let Some(obstacle) = image.obstacle else {
        return Ok(());
    };
    let what = format!("{} {}", image.file.display(), obstacle.text());
    if path == PathChoice::Fast {
        let text = format!("{what}: it cannot use the fast path; leave --require-fast away");
        return Err(Failure::new(Exit::Launcher, text));
    }
    if path == PathChoice::Stack {
        let text = format!("{what}: it cannot use a stack of its own, and has no other network");
        return Err(Failure::new(Exit::Launcher, text));
    }
    note(&format!(
        "{what}: its connections stay on the kernel path (reason {})",
        reason(obstacle)
    ));
    Ok(())
}

/// Seen from its peers, such a program is one without the shim.
fn reason(_: Obstacle) -> &'static str {
    fordway_abi::reason::Reason::NoPeer.word()
}

fn join(broker: &Broker, name: &str, run: &Run, path: PathChoice) -> Result<Domain, Failure> {
    let (name, ip) = (name.into(), run.ip);
    let publish = run.publish.iter().map(ToString::to_string).collect();
    let request = match path {
        PathChoice::Stack => {
            let mut protocols = run.stack.clone();
            protocols.sort_unstable();
            protocols.dedup();
            let cpus = run.cpu.as_ref().map(|list| list.0.clone());
            let mut stack = StackOptions {
                fuse: run.fuse,
                cpus: cpus.unwrap_or_default(),
                ..StackOptions::default()
            };
            if !protocols.is_empty() {
                stack.protocols = protocols.iter().map(|one| one.word().to_owned()).collect();
            }
            Request::DomainAddWithStack {
                name,
                ip,
                publish,
                stack,
            }
        }
        _ => Request::DomainAdd { name, ip, publish },
    };
    match broker.ask(&request)? {
        Reply::Domain(domain) => Ok(domain),
        other => Err(unexpected(&other)),
    }
}

/// Until a stack that was just started answers. Its process may die meanwhile, and be started again.
fn wait_for(stack: &Stack) -> Result<(), Failure> {
    let path = Path::new(&stack.control_path);
    let until = Instant::now() + STACK_LIMIT;
    loop {
        let connected = ipc::connect(path, ipc::Kind::Packets);
        let Err(error) = connected else {
            return Ok(());
        };
        if Instant::now() >= until {
            let text = format!(
                "the domain's stack does not answer at {}: {error}",
                path.display()
            );
            return Err(Failure::internal(text));
        }
        // A socket that is not there yet is announced by nobody.
        std::thread::sleep(STACK_LOOK_AGAIN);
    }
}

fn enter(domain: &Domain) -> Result<(), Failure> {
    let name = &domain.name;
    let Some(netns) = &domain.netns_path else {
        let text = format!(
            "the domain \"{name}\" was attached; start programs inside its container, see: fordway env"
        );
        return Err(Failure::new(Exit::Usage, text));
    };
    launch::enter_netns(Path::new(netns)).map_err(|error| {
        Failure::internal(format!(
            "entering the namespace of \"{name}\" ({netns}): {error}"
        ))
    })?;
    if let Some(hosts) = &domain.hosts_path {
        let named = launch::private_mounts(Path::new(hosts)).map_err(|error| {
            Failure::internal(format!("mounting {hosts} over /etc/hosts: {error}"))
        })?;
        if !named {
            note("there is no /etc/hosts: domains have no names here; create an empty one");
        }
    }
    Ok(())
}

/// The caller's environment, with ours in place of what an outer `fordway run` set.
fn variables(shim: Option<&Path>, path: PathChoice, broker: &Broker) -> Vec<(OsString, OsString)> {
    let mut ours = vec![names::SOCKET, names::PATH, names::STACK, PRELOAD];
    if shim.is_some() {
        ours.push(ASAN_OPTIONS);
    }
    let mut variables: Vec<(OsString, OsString)> = env::vars_os()
        .filter(|(name, _)| !ours.iter().any(|our| name == our))
        .collect();
    let others = other_preloads(&env::var_os(PRELOAD).unwrap_or_default());
    let preload: Vec<OsString> = shim.map(Into::into).into_iter().chain(others).collect();
    if !preload.is_empty() {
        variables.push((PRELOAD.into(), preload.join(OsStr::new(":"))));
    }
    if shim.is_some() {
        variables.push((names::SOCKET.into(), broker.control_socket().into()));
        variables.push((names::PATH.into(), path.word().into()));
        let options = with_any_place(&env::var_os(ASAN_OPTIONS).unwrap_or_default());
        variables.push((ASAN_OPTIONS.into(), options));
    }
    variables
}

/// The user's options for AddressSanitizer, and ours behind them.
fn with_any_place(options: &OsStr) -> OsString {
    let has_ours = options.to_string_lossy().contains(ASAN_ANY_PLACE);
    let mut options = options.to_owned();
    if !has_ours {
        if !options.is_empty() {
            options.push(":");
        }
        options.push(ASAN_ANY_PLACE);
    }
    options
}

/// What LD_PRELOAD held but for the shim (separated by colons or spaces, ld.so(8)).
fn other_preloads(value: &OsStr) -> Vec<OsString> {
    let text = value.to_string_lossy();
    let files = text.split([':', ' ']).filter(|file| !file.is_empty());
    files
        .filter(|file| !file.ends_with(places::SHIM))
        .map(OsString::from)
        .collect()
}

/// Every error of the launcher itself has the one status that no program's shadows.
fn launcher(failure: Failure) -> Failure {
    Failure {
        exit: Exit::Launcher,
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_sanitizer_are_kept() {
        let ours = ASAN_ANY_PLACE;
        assert_eq!(with_any_place(OsStr::new("")), ours);
        let both = format!("detect_leaks=0:{ours}");
        assert_eq!(with_any_place(OsStr::new("detect_leaks=0")), *both);
        assert_eq!(with_any_place(OsStr::new(&both)), *both);
    }

    #[test]
    fn an_inherited_shim_is_replaced_not_repeated() {
        let files = other_preloads(OsStr::new("/x/libfordway.so:/y/libasan.so /z/b.so"));
        assert_eq!(files, ["/y/libasan.so", "/z/b.so"]);
        assert!(other_preloads(OsStr::new("")).is_empty());
    }
}
