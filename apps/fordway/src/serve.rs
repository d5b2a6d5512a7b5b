//! `fordway serve`: what the broker knows, to be read by HTTP, in a process of its own.
//!
//! ```text
//!   Prometheus ── HTTP ──► fordway_serve::Loop ── GET /metrics ──► Page ──(once a second at most)──► read.sock ── broker
//! ```
//! The broker speaks no HTTP, and to nobody but those who may read. This process faces the clients, and has nothing to lose: root's
//! is a user that nobody is, in an empty root directory, with no capability; everybody's has a list of system calls. Its
//! one thread takes clients in turn and waits for none; how much each may cost is in [`LIMITS`].
//!
//! While the broker is asked, clients wait, [`PATIENCE`] at most for each question.

use crate::broker::{Broker, absent};
use crate::cli::Serve;
use crate::exit::{Exit, Failure, Outcome};
use crate::metrics::{Snapshot, text};
use crate::{config, places, show};
use fordway_driver::confine::{Confined, allow_only, confine};
use fordway_httpd::{Limits, Page, Server};
use fordway_platform::launch;
use fordway_serve::Loop;
use fordwayd::admin::READER;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one answer of the broker may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer, or its failure, serves all clients.
const FRESH: Duration = Duration::from_secs(1);
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Of one client, and all of them.
const LIMITS: Limits = Limits {
    connections_max: 256,
    head_bytes_max: 4096,
    queued_bytes_max: 1,
    body_bytes_max: 0,
    request_us_max: 5_000_000,
    idle_us_max: 5_000_000,
    send_us_max: 10_000_000,
};
/// Descriptors: clients, one that is refused, and our own.
const FILES_MAX: u64 = LIMITS.connections_max as u64 + 64;
/// For a page in each client's queue, and the broker's answer.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Calls of the loop, and of a question to the broker.
const CALLS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_accept4,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_close,
    // Of AF_UNIX alone.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_fcntl,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_mmap,
    libc::SYS_munmap,
];

/// `fordway serve`.
pub fn serve(options: &Serve, runtime_dir: Option<&Path>) -> Outcome {
    // The broker's child has been told all. It is a user who may not be able to read the file.
    let is_told = runtime_dir.is_some() && options.metrics.is_some();
    let file = match is_told && options.config.is_none() && !options.if_configured {
        true => config::File::default(),
        false => config::read(options.config.as_deref())?,
    };
    let configured = config::metrics(&file)?;
    if options.if_configured && configured.is_none() {
        show::note("the configuration has no [metrics]");
        return Ok(Exit::Done);
    }
    let dir = places::listed_dir(runtime_dir.or(file.runtime_dir.as_deref()))?;
    let listen = options
        .metrics
        .or(configured)
        .unwrap_or(config::METRICS_DEFAULT);
    // Later a broker may end and another one begin, in the same directory.
    if !dir.is_dir() {
        return Err(absent(&dir));
    }
    let sockets = Loop::new(listen, false);
    let sockets = sockets.map_err(|error| Failure::io(format!("listening on {listen}"), &error))?;
    let listen = sockets.address().map_err(Failure::internal)?;
    if !listen.ip().is_loopback() {
        show::note(&format!(
            "whoever reaches {listen} reads the domains' names and what they carry"
        ));
    }
    let own_name = rustix::system::uname().nodename().to_owned();
    confine_to(&dir)?;
    let mut pages = Pages {
        broker: Broker::at(&dir).reading().within(PATIENCE),
        last: None,
        was_up: true,
    };
    // Later it may be started; who may not read then, may not read now.
    if let Err(failure) = pages.broker.info()
        && failure.exit == Exit::Privilege
    {
        return Err(failure);
    }
    let server = Server::new(&[], LIMITS);
    let mut server = server.map_err(|error| Failure::internal(format!("{error:?}")))?;
    // Another address is for others, who may know the host by any name, and have to be let in or kept out anyway.
    if listen.ip().is_loopback() {
        server.answer_only(move |host| is_own_name(host, own_name.to_str().unwrap_or_default()));
    }
    server.add_page("/metrics", move |_| Page {
        content_type: CONTENT_TYPE,
        body: pages.page(Instant::now()),
    });
    show::print(&format!("serving http://{listen}/metrics\n"))?;
    sockets.run(&mut server).map_err(Failure::internal)?;
    Ok(Exit::Done)
}

/// What is left of the process.
fn confine_to(runtime_dir: &Path) -> Result<(), Failure> {
    let done = match launch::has_sys_admin() {
        true => confine(&Confined {
            uid: READER,
            gid: fordwayd::readers(),
            directory: Some(runtime_dir),
            calls: CALLS,
            files_max: FILES_MAX,
            file_bytes_max: u64::MAX,
            space_bytes_max: u64::MAX,
            memory_bytes_max: MEMORY_BYTES_MAX,
        }),
        false => allow_only(CALLS),
    };
    let what = || format!("giving rights up, but for {}", runtime_dir.display());
    done.map_err(|error| Failure::io(what(), &error))
}

/// Whether a Host line means this server: an address, or a name that the host has itself. A page in somebody's browser
/// cannot have the page's own name lead here and read what comes (DNS rebinding).
fn is_own_name(host: &[u8], own: &str) -> bool {
    let Ok(host) = std::str::from_utf8(host.trim_ascii()) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let six = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_address = six.unwrap_or(name).parse::<IpAddr>().is_ok();
    let short = own.split('.').next().unwrap_or_default();
    let mut names = ["localhost", own, short].into_iter();
    let is_own = names.any(|own| !own.is_empty() && name.eq_ignore_ascii_case(own));
    is_address || is_own
}

/// The page, as the broker last let it be made.
struct Pages {
    broker: Broker,
    last: Option<(Instant, Vec<u8>)>,
    was_up: bool,
}

impl Pages {
    fn page(&mut self, now: Instant) -> Vec<u8> {
        if let Some((since, page)) = &self.last
            && now.duration_since(*since) < FRESH
        {
            return page.clone();
        }
        let taken = Snapshot::take(&self.broker);
        // One line for each change, not for each question.
        if std::mem::replace(&mut self.was_up, taken.is_ok()) != taken.is_ok() {
            match &taken {
                Ok(_) => show::note("the broker answers again"),
                Err(failure) => show::say(&failure.message),
            }
        }
        let page = text(taken.as_ref().ok()).into_bytes();
        // From the answer on: a broker that takes its time is not asked the more often for it.
        self.last = Some((Instant::now(), page.clone()));
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_own_names_are_answered() {
        let is_own = |host: &str| is_own_name(host.as_bytes(), "Big.example.org");
        for host in [
            "127.0.0.1:9477",
            "[::1]:9477",
            "[::1]",
            "192.0.2.7",
            "localhost",
            "LOCALHOST:1",
            "big",
            "big.example.org:9477",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "",
            ":9477",
            "evil.example",
            "localhost.evil.example:9477",
            "127.0.0.1.evil.example",
            "big.evil.example",
            "bigger",
            "[::1",
            "::1]:x",
        ] {
            assert!(!is_own(host), "{host}");
        }
        assert!(!is_own_name(b"a\xff", "a"));
        assert!(!is_own_name(b"", ""));
    }
}
