//! `fordway up` and `fordway down`: the broker's start and end.
//!
//! `--detach` starts `fordway up` once more, in a session of its own with its output
//! in `broker.log`, and waits until it says by a datagram that its sockets are open, or why it
//! ends instead: the log may be on a disk that is full.

use crate::broker::Broker;
use crate::cli::{Down, Up};
use crate::config;
use crate::exit::{Exit, Failure, Outcome};
use crate::{places, show};
use fordway_platform::ipc;
use fordwayd::admin::{Domain, Request};
use fordwayd::{BrokerError, Config, Helper};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Where a detached broker writes, behind what brokers before it have written.
pub const LOG: &str = "broker.log";
/// Where the log goes when it has become long.
pub const LOG_BEFORE: &str = "broker.log.1";
/// When that is.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// What a detached broker says when it serves; anything else is why it does not.
const READY: &str = "ready";
/// Longer than any line that says why.
const SAID_BYTES_MAX: usize = 4096;
/// How long a broker may take to start or to end.
const LIMIT: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// `fordway up`.
pub fn up(up: &Up, runtime_dir: Option<&Path>) -> Outcome {
    let outcome = start(up, runtime_dir);
    if let Err(failure) = &outcome {
        tell_starter(up, &failure.message);
    }
    outcome
}

/// A starter that does not wait any more is no reason to end.
fn tell_starter(up: &Up, text: &str) {
    if let Some(starter) = &up.detached {
        let told = UnixDatagram::unbound();
        let _ = told.and_then(|socket| socket.send_to(text.as_bytes(), starter));
    }
}

fn start(up: &Up, runtime_dir: Option<&Path>) -> Outcome {
    let file = config::read(up.config.as_deref())?;
    let runtime_dir = places::runtime_dir(runtime_dir.or(file.runtime_dir.as_deref()))?;
    let config = Config {
        runtime_dir: runtime_dir.clone(),
        network: config::network(up.network.as_deref(), &file)?,
        network6: config::network6(up.network6.as_deref(), &file)?,
        uplink: up.uplink || file.uplink.unwrap_or(false),
        vsock: up.vsock || file.vsock.unwrap_or(false),
        ring_bytes_max: config::ring_bytes_max(up.ring_memory_max.as_deref(), &file)?,
        programs: places::programs(),
        helpers: helpers(&file, &runtime_dir)?,
    };
    let log = config::log(up.log.as_deref(), &file)?;
    if up.check_config {
        return show::print("the configuration is right\n");
    }
    // Behind a service manager's socket it would be this process that has to answer.
    let managed = ipc::inherited_count() != 0;
    if !managed && let Ok(info) = Broker::at(&runtime_dir).info() {
        let dir = runtime_dir.display();
        let text = format!(
            "a broker already runs in {dir} (pid {}); end it with: fordway down",
            info.pid
        );
        return Err(Failure::new(Exit::Taken, text));
    }
    if up.detach {
        return detach(up, &runtime_dir);
    }
    if up.detached.is_some() {
        rustix::process::setsid().map_err(Failure::internal)?;
    }
    serve(&config, log, || tell_starter(up, READY))
}

/// What runs beside the broker. Where the broker is a service manager's, so are they.
fn helpers(file: &config::File, runtime_dir: &Path) -> Result<Vec<Helper>, Failure> {
    let Some(listen) = config::metrics(file)?.filter(|_| ipc::inherited_count() == 0) else {
        return Ok(Vec::new());
    };
    let listen = listen.to_string();
    let dir = runtime_dir.as_os_str();
    let arguments = ["--runtime-dir".as_ref(), dir, "serve".as_ref()];
    let arguments = arguments
        .into_iter()
        .chain(["--metrics".as_ref(), listen.as_ref()]);
    Ok(vec![Helper {
        name: "fordway serve".to_owned(),
        program: std::env::current_exe().map_err(Failure::internal)?,
        arguments: arguments.map(OsStr::to_owned).collect(),
    }])
}

fn serve(config: &Config, log: &str, ready: impl FnOnce()) -> Outcome {
    fordwayd::log::start(log).map_err(Failure::internal)?;
    fordwayd::run(config, ready).map_err(|error| {
        let exit = match &error {
            BrokerError::Taken { .. } | BrokerError::InUse(_) => Exit::Taken,
            BrokerError::Directory { .. } => Exit::Usage,
            BrokerError::Privilege(_) => Exit::Privilege,
            BrokerError::Missing(_) => Exit::Missing,
            BrokerError::System { source, .. } => source.kind().into(),
        };
        Failure::new(exit, error)
    })?;
    Ok(Exit::Done)
}

fn detach(up: &Up, runtime_dir: &Path) -> Outcome {
    let dir_error = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let text = format!(
                "{}: not permitted; give --runtime-dir DIR",
                runtime_dir.display()
            );
            Failure::new(Exit::Privilege, text)
        }
        _ => Failure::io(runtime_dir.display(), &error),
    };
    fs::create_dir_all(runtime_dir).map_err(dir_error)?;
    let output = open_log(runtime_dir).map_err(dir_error)?;
    let notify_path = runtime_dir.join(format!("up-{}.notify", std::process::id()));
    let notify = UnixDatagram::bind(&notify_path).map_err(dir_error)?;
    let said = start_detached(up, runtime_dir, &output, &notify_path)
        .and_then(|mut child| said(&notify, &mut child));
    let _ = fs::remove_file(&notify_path);
    let (said, ended) =
        said.map_err(|error| Failure::internal(format!("starting the broker: {error}")))?;
    let text = match said {
        Some(said) if said == READY => return Ok(Exit::Done),
        Some(said) => said,
        None => format!(
            "the broker did not start; see {}",
            runtime_dir.join(LOG).display()
        ),
    };
    let exit = Exit::ALL
        .iter()
        .find(|exit| Some(i32::from(**exit as u8)) == ended);
    Err(Failure::new(exit.copied().unwrap_or(Exit::Internal), text))
}

/// The log, open for appending. What a broker that crashed has said stays. Only the broker's user
/// can read the log, whatever the umask: others may enter the directory.
fn open_log(dir: &Path) -> io::Result<fs::File> {
    let log = dir.join(LOG);
    if fs::metadata(&log).is_ok_and(|data| data.len() > LOG_BYTES_MAX) {
        fs::rename(&log, dir.join(LOG_BEFORE))?;
    }
    let mut options = fs::OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.open(&log)
}

fn start_detached(up: &Up, dir: &Path, output: &fs::File, notify: &Path) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("up")
        .arg("--detached")
        .arg(notify)
        .arg("--runtime-dir")
        .arg(dir);
    if let Some(file) = &up.config {
        command.arg("--config").arg(file);
    }
    if let Some(network) = &up.network {
        command.arg("--network").arg(network);
    }
    if let Some(network) = &up.network6 {
        command.arg("--network6").arg(network);
    }
    if let Some(size) = &up.ring_memory_max {
        command.arg("--ring-memory-max").arg(size);
    }
    if let Some(level) = &up.log {
        command.arg("--log").arg(level);
    }
    for (given, option) in [(up.uplink, "--uplink"), (up.vsock, "--vsock")] {
        if given {
            command.arg(option);
        }
    }
    command.env_remove("NOTIFY_SOCKET");
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?);
    command.spawn()
}

/// What the broker says, if anything, and its exit status, unless it is ready.
fn said(notify: &UnixDatagram, child: &mut Child) -> io::Result<(Option<String>, Option<i32>)> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut fds = [
        PollFd::new(notify, PollFlags::IN),
        PollFd::new(&pidfd, PollFlags::IN),
    ];
    if poll(&mut fds, Some(&LIMIT))? == 0 {
        child.kill()?;
    }
    // One that has ended may have said why in the same moment.
    notify.set_nonblocking(true)?;
    let mut text = vec![0; SAID_BYTES_MAX];
    let said = notify.recv(&mut text).ok();
    let said = said.map(|length| String::from_utf8_lossy(&text[..length]).into_owned());
    let ended = match said.as_deref() {
        Some(READY) => None,
        _ => child.wait()?.code(),
    };
    Ok((said, ended))
}

/// `fordway down`: returns when the broker has ended.
pub fn down(down: &Down, broker: &Broker) -> Outcome {
    let info = match broker.info() {
        Ok(info) => info,
        Err(absent) if absent.exit == Exit::NoBroker => return clear(down, broker),
        Err(failure) => return Err(failure),
    };
    let left = if down.keep_domains {
        String::new()
    } else {
        still_running(broker)?
    };
    let pidfd = Pid::from_raw(info.pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    broker.ask(&Request::Down {
        keep_domains: down.keep_domains,
    })?;
    if let Some(Ok(pidfd)) = pidfd {
        let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&LIMIT)).map_err(Failure::internal)? == 0 {
            return Err(Failure::internal(format!(
                "the broker (pid {}) does not end",
                info.pid
            )));
        }
    }
    if !left.is_empty() {
        show::note(&format!("programs go on without a network in {left}"));
    }
    Ok(Exit::Done)
}

/// The domains in which programs run, with their number.
fn still_running(broker: &Broker) -> Result<String, Failure> {
    let made = |domain: &Domain| domain.netns_path.is_some() && domain.processes > 0;
    let domains = broker.domains()?;
    let busy = domains.iter().filter(|domain| made(domain));
    let busy: Vec<String> = busy
        .map(|domain| format!("{} ({})", domain.name, domain.processes))
        .collect();
    Ok(busy.join(", "))
}

/// Clears away what a broker that was killed has left.
fn clear(down: &Down, broker: &Broker) -> Outcome {
    let dir = broker.runtime_dir();
    let cleared = || match fordwayd::clear(dir) {
        Err(BrokerError::Taken { pid: Some(pid), .. }) => {
            let dir = dir.display();
            let text = format!("the broker of {dir} does not answer; end it first: kill -9 {pid}");
            Err(Failure::new(Exit::NoBroker, text))
        }
        cleared => cleared.map_err(Failure::internal),
    };
    if down.keep_domains || !cleared()? {
        let dir = dir.display();
        let text = format!("no broker answers in {dir}, and it has left nothing to remove");
        return Err(Failure::new(Exit::NoBroker, text));
    }
    show::note("no broker was running; what the last one had left is removed");
    Ok(Exit::Done)
}
