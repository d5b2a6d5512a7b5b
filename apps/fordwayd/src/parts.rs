//! The supervisor: parts (processes of Fordway's own) are started, watched by pidfd, started again when they end, and ended.
//!
//! ```text
//!   add() ──► runs ──(pidfd is readable)──► due at once, or after a pause ──(on_time)──► runs
//!               └──────────────────────── end() ────────────────────────┴──► gone
//! ```
//! A part that ran for [`SETTLED`] is started again at once. One that ended sooner waits, twice as long each time, up to
//! [`PAUSE_MAX`], unless somebody killed it; so does one that could not be started. A part outlives the broker: the next one is given it back by
//! [`Parts::add`], as a pidfd, and cannot learn its status, which init then has.
//!
//! How a part is started, its owner knows ([`Start`]); that may differ each time. Its process waits for its configuration until the
//! owner has written down who it is, and whatever else has to be there ([`Parts::tell_started`]).

use fordway_platform::launch::{Started, Untold};
use fordway_platform::process;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::time::{Duration, Instant};

/// A part that ran so long has worked.
const SETTLED: Duration = Duration::from_millis(50);
/// The first pause, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a killed process may take to be gone. Its memory is what takes time.
const END_MAX: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// How long somebody waits who needs the next one. Whoever is killed does nothing more meanwhile.
const GONE_MAX: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Parts that are seen to have ended at one look.
const EVENTS_MAX: usize = 64;

/// Starts a part.
pub(crate) type Start = Box<dyn Fn() -> io::Result<Started>>;

/// Number of a part.
pub(crate) type PartId = u64;

struct Part {
    name: String,
    start: Start,
    running: Option<Running>,
    /// When it is to be started, if it does not run.
    due: Instant,
    pause: Duration,
    restarts: u64,
}

struct Running {
    /// `None`: an earlier broker's.
    child: Option<Child>,
    pidfd: OwnedFd,
    pid: i32,
    since: Instant,
    /// What it waits for.
    untold: Option<Untold>,
}

/// See the module.
pub(crate) struct Parts {
    epoll: OwnedFd,
    parts: BTreeMap<PartId, Part>,
    number_next: PartId,
}

impl Parts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            parts: BTreeMap::new(),
            number_next: 0,
        })
    }

    /// Watches a part, which runs already, or is started now.
    pub(crate) fn add(
        &mut self,
        name: String,
        start: Start,
        found: Option<(i32, OwnedFd)>,
    ) -> PartId {
        self.number_next += 1;
        let part = Part {
            name,
            start,
            running: None,
            due: Instant::now(),
            pause: PAUSE_MIN,
            restarts: 0,
        };
        self.parts.insert(self.number_next, part);
        match found {
            Some((pid, pidfd)) => self.watch(self.number_next, pid, pidfd, None),
            None => self.start(self.number_next),
        }
        self.number_next
    }

    /// Kills a part and waits until it is gone.
    pub(crate) fn end(&mut self, id: PartId) {
        if let Some(mut part) = self.parts.remove(&id)
            && let Some(mut running) = part.running.take()
        {
            let _ = epoll::delete(&self.epoll, &running.pidfd);
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
            if let Err(reason) = wait(&mut running, &END_MAX) {
                tracing::warn!("{} does not end: {reason}", part.name);
            }
        }
    }

    /// Kills the process of a part, to be started again: by [`Parts::on_time`], if it is gone within [`GONE_MAX`].
    pub(crate) fn kill(&mut self, id: PartId) {
        let part = self.parts.get_mut(&id);
        if let Some(running) = part.and_then(|part| part.running.as_mut()) {
            // It may have ended; and who does not go at once is seen to later.
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
            let _ = wait(running, &GONE_MAX);
            self.bury();
        }
    }

    /// The process of a part, while it runs.
    pub(crate) fn pid(&self, id: PartId) -> Option<i32> {
        Some(self.parts.get(&id)?.running.as_ref()?.pid)
    }

    /// Whether the process of a part waits for its configuration, and so does nothing.
    pub(crate) fn is_untold(&self, id: PartId) -> bool {
        let running = self.parts.get(&id).and_then(|part| part.running.as_ref());
        running.is_some_and(|running| running.untold.is_some())
    }

    /// Whether there are such.
    pub(crate) fn have_untold(&self) -> bool {
        self.parts.keys().any(|id| self.is_untold(*id))
    }

    /// The process of a part, if it has not ended, whether that was seen or not.
    pub(crate) fn live_pid(&self, id: PartId) -> Option<i32> {
        let running = self.parts.get(&id)?.running.as_ref()?;
        process::is_alive(&running.pidfd).then_some(running.pid)
    }

    /// How often a part was started again.
    pub(crate) fn restarts(&self, id: PartId) -> u64 {
        self.parts.get(&id).map_or(0, |part| part.restarts)
    }

    /// Starts what is due; whether a part runs in another process than before.
    pub(crate) fn on_time(&mut self) -> bool {
        let now = Instant::now();
        let due = |part: &Part| part.running.is_none() && part.due <= now;
        let due: Vec<PartId> = self
            .parts
            .iter()
            .filter(|(_, part)| due(part))
            .map(|(id, _)| *id)
            .collect();
        due.iter().for_each(|id| self.start(*id));
        !due.is_empty()
    }

    /// Until the next one is due.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        let waiting = self.parts.values().filter(|part| part.running.is_none());
        let now = Instant::now();
        let left = waiting
            .map(|part| part.due.saturating_duration_since(now))
            .min()?;
        Some(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    fn start(&mut self, id: PartId) {
        let Some(part) = self.parts.get_mut(&id) else {
            return;
        };
        match (part.start)() {
            Ok(Started {
                child,
                pidfd,
                untold,
            }) => {
                let pid = child.id().cast_signed();
                tracing::debug!("{} is process {pid}", part.name);
                self.watch(id, pid, pidfd, Some((child, untold)));
            }
            Err(reason) => {
                tracing::warn!("{} cannot be started: {reason}", part.name);
                part.due = Instant::now() + part.pause;
                part.pause = (part.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Gives the processes that wait for their configuration what they wait for, if they may begin. Who they are is written down.
    pub(crate) fn tell_started(&mut self, may_begin: impl Fn(PartId) -> bool) {
        for (id, part) in &mut self.parts {
            if let Some(running) = &mut part.running
                && let Some(untold) = running.untold.take_if(|_| may_begin(*id))
            {
                running.since = Instant::now();
                // One that has ended already is started again.
                if let Err(reason) = untold.tell() {
                    tracing::debug!("{} is told nothing: {reason}", part.name);
                }
            }
        }
    }

    fn watch(
        &mut self,
        id: PartId,
        pid: i32,
        pidfd: OwnedFd,
        started: Option<(Child, Option<Untold>)>,
    ) {
        let Some(part) = self.parts.get_mut(&id) else {
            return;
        };
        let data = epoll::EventData::new_u64(id);
        if let Err(reason) = epoll::add(&self.epoll, &pidfd, data, epoll::EventFlags::IN) {
            // It would not be started again: said, and seen in its absence.
            tracing::warn!("{} is not watched: {reason}", part.name);
        }
        let (child, untold) = started.unzip();
        let untold = untold.flatten();
        part.running = Some(Running {
            child,
            pidfd,
            pid,
            since: Instant::now(),
            untold,
        });
    }

    /// Sees who has ended. What is due then, [`Parts::on_time`] starts.
    pub(crate) fn bury(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let room = rustix::buffer::spare_capacity(&mut events);
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if epoll::wait(&self.epoll, room, Some(&at_once)).is_err() {
            // Those that have ended show at the next look.
            return;
        }
        for event in events {
            let Some(part) = self.parts.get_mut(&event.data.u64()) else {
                continue;
            };
            let Some(mut running) = part.running.take() else {
                continue;
            };
            let _ = epoll::delete(&self.epoll, &running.pidfd);
            let status = running
                .child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten());
            // Killed, it may have worked well.
            let was_killed =
                status.is_some_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
            let status = status.map_or_else(|| "ended".to_owned(), |status| status.to_string());
            let has_worked = running.since.elapsed() >= SETTLED;
            let pause = if has_worked {
                Duration::ZERO
            } else {
                part.pause
            };
            part.pause = match has_worked || was_killed {
                true => PAUSE_MIN,
                false => (part.pause * 2).min(PAUSE_MAX),
            };
            part.due = Instant::now() + pause;
            part.restarts += 1;
            tracing::warn!(
                "{} (process {}): {status}; it is started again",
                part.name,
                running.pid
            );
        }
    }
}

/// Readable when a part has ended.
impl AsFd for Parts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn wait(running: &mut Running, most: &Timespec) -> io::Result<()> {
    let mut fds = [PollFd::new(&running.pidfd, PollFlags::IN)];
    if poll(&mut fds, Some(most))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    if let Some(child) = &mut running.child {
        child.wait()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn shell(script: &'static str) -> Start {
        Box::new(move || {
            let child = Command::new("sh").args(["-c", script]).spawn()?;
            let pid = rustix::process::Pid::from_child(&child);
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            Ok(Started {
                child,
                pidfd,
                untold: None,
            })
        })
    }

    fn until_readable(parts: &Parts) {
        let mut fds = [PollFd::new(parts, PollFlags::IN)];
        let long = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&long)), Ok(1));
    }

    #[test]
    fn what_was_killed_is_started_again_and_what_was_ended_is_not() {
        let mut parts = Parts::new().expect("epoll");
        let id = parts.add("a sleeper".into(), shell("exec sleep 1000"), None);
        let first = parts.pid(id).expect("it runs");
        let pid = rustix::process::Pid::from_raw(first).expect("a number");
        rustix::process::kill_process(pid, Signal::KILL).expect("kill");
        until_readable(&parts);
        // At once or after the shortest pause, by how fast the shell was.
        parts.bury();
        while !parts.on_time() {
            assert!(parts.patience_ns().expect("it is due") <= PAUSE_MIN.as_nanos() as u64);
        }
        let second = parts.pid(id).expect("it runs again");
        assert_ne!(first, second);
        assert_eq!(parts.restarts(id), 1);
        parts.end(id);
        assert_eq!((parts.pid(id), parts.patience_ns()), (None, None));
        assert!(!std::path::Path::new(&format!("/proc/{second}")).exists());
    }

    #[test]
    fn what_ends_at_once_waits_longer_each_time() {
        let mut parts = Parts::new().expect("epoll");
        let id = parts.add("a failure".into(), shell("exit 1"), None);
        let mut pauses = Vec::new();
        while pauses.len() < 3 {
            until_readable(&parts);
            parts.bury();
            pauses.push(parts.parts[&id].pause);
            parts.start(id);
        }
        assert!(pauses.is_sorted() && pauses[2] > pauses[0], "{pauses:?}");
    }
}
