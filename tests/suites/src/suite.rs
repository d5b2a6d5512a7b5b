//! The suites: what is played, what must come of it, and which differences are known.

use crate::Counts;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Debian's own, which the packages with tests belong to.
const PYTHON: &str = "/usr/bin/python3";
/// Starts what follows, in a network namespace that was just made.
const WITH_LOOPBACK: &str = "ip link set lo up; exec \"$@\"";
/// The same. Tests of scoped IPv6 addresses need a link-local one, at once: no duplicate address
/// detection (RFC 4862 section 5.4), where we may switch that off.
const WITH_LINK_LOCAL: &str = "ip link set lo up
    dad=/proc/sys/net/ipv6/conf/default/accept_dad
    [ ! -w $dad ] || echo 0 > $dad
    ip link add near type veth peer name far
    ip link set near up
    ip link set far up
    exec \"$@\"";
/// The least share of the eligible connections of one suite that must have used rings.
const SHARE_OF_ONE_MIN: f64 = 0.8;
/// Fewer eligible connections are judged in the sum of all suites alone: of three, one that is
/// over before the broker has answered is a third. `carried_min` holds for them as for all.
const ELIGIBLE_JUDGED_MIN: u64 = 8;

/// When a connection is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// After as many calls as by default.
    Default,
    /// At its first call that moves data: short connections use rings, too.
    FirstCall,
}

impl Offer {
    /// Both.
    pub const ALL: [Offer; 2] = [Offer::Default, Offer::FirstCall];

    /// As the table shows it.
    pub fn word(self) -> &'static str {
        match self {
            Offer::Default => "default",
            Offer::FirstCall => "first",
        }
    }
}

/// Who runs the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    /// `scripts/run_tests.py`, with its word: Python modules, of Debian's packages.
    Python(&'static str),
    /// `scripts/run_programs.py`, with its word: what `contrib/fetch-suite` builds.
    Programs(&'static str),
}

/// What a suite is made of; nothing if it was installed.
#[derive(Debug)]
pub struct Fetched(Option<PathBuf>);

/// One of the suites.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// As the table shows it.
    pub name: &'static str,
    runner: Runner,
    /// What the script gets before the words.
    options: &'static [&'static str],
    /// Modules, files, or the beginnings of names.
    words: &'static [&'static str],
    /// Part of the short form.
    pub is_short: bool,
    /// As many must pass at least: modules that are missing on both sides are alike there.
    passed_min: usize,
    /// As many connections must have used rings at least, by default and with an offer at the
    /// first call. Suites of waits have hardly any that live long enough.
    carried_min: [u64; 2],
    /// Whether the share of those that used rings is judged.
    pub has_share: bool,
    /// Tests, or programs of tests, that differ, each with the reason.
    known: &'static [(&'static str, &'static str)],
}

const fn python(
    name: &'static str,
    runner: &'static str,
    modules: &'static [&'static str],
) -> Suite {
    Suite {
        name,
        runner: Runner::Python(runner),
        options: &[],
        words: modules,
        is_short: true,
        passed_min: 0,
        carried_min: [0; 2],
        has_share: true,
        known: &[],
    }
}

const fn programs(
    name: &'static str,
    runner: &'static str,
    words: &'static [&'static str],
) -> Suite {
    Suite {
        runner: Runner::Programs(runner),
        is_short: false,
        ..python(name, "", words)
    }
}

impl Suite {
    /// See [`Suite::passed_min`] and [`Suite::carried_min`].
    const fn at_least(self, passed_min: usize, carried_min: [u64; 2]) -> Suite {
        Suite {
            passed_min,
            carried_min,
            ..self
        }
    }

    const fn short(self) -> Suite {
        Suite {
            is_short: true,
            ..self
        }
    }

    const fn without_share(self) -> Suite {
        Suite {
            has_share: false,
            ..self
        }
    }

    const fn options(self, options: &'static [&'static str]) -> Suite {
        Suite { options, ..self }
    }

    /// Whether two plays cannot go on at once: they have files of fixed names, or share ports.
    pub fn is_alone(&self) -> bool {
        matches!(self.runner, Runner::Programs(_)) || !has_own_namespace()
    }

    /// Longest that one run may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(match self.runner {
            Runner::Python(_) => 180,
            Runner::Programs(_) => 900,
        })
    }

    /// Gets what is played; why it cannot be had, in one line.
    pub fn fetch(&self) -> Result<Fetched, String> {
        let Runner::Programs(name) = self.runner else {
            return Ok(Fetched(None));
        };
        let script = here().join("../../contrib/fetch-suite");
        let output = Command::new(script).arg(name).output();
        let output = output.map_err(|error| format!("contrib/fetch-suite: {error}"))?;
        let [out, err] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        match output.status.success() {
            true => Ok(Fetched(Some(out.into()))),
            false => Err(err),
        }
    }

    /// What is started, with the file for the results.
    pub fn argv(&self, fetched: &Fetched, results: &Path) -> Vec<String> {
        let mut argv: Vec<String> = Vec::new();
        let (script, word) = match self.runner {
            Runner::Python(word) => ("run_tests.py", word),
            Runner::Programs(word) => ("run_programs.py", word),
        };
        if has_own_namespace() {
            let links = match self.runner {
                Runner::Python(_) => WITH_LINK_LOCAL,
                Runner::Programs(_) => WITH_LOOPBACK,
            };
            argv.extend(["unshare", "--net", "sh", "-ec", links, "sh"].map(str::to_owned));
        }
        let path = |path: &Path| path.to_string_lossy().into_owned();
        argv.push(PYTHON.to_owned());
        argv.push(path(&here().join("scripts").join(script)));
        argv.extend(self.options.iter().map(|&word| word.to_owned()));
        argv.push(word.to_owned());
        argv.push(path(results));
        argv.extend(fetched.0.as_deref().map(path));
        argv.extend(self.words.iter().map(|&word| word.to_owned()));
        argv
    }

    /// Why a test, or the program that it is part of, is known to differ.
    pub fn known(&self, test: &str) -> Option<&'static str> {
        let is_it = |name: &str| {
            let rest = test.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let mut known = self.known.iter();
        known
            .find(|(name, _)| is_it(name))
            .map(|(_, reason)| *reason)
    }

    /// Whether fewer connections used rings than are to.
    pub fn carries_too_few(&self, offer: Offer, counts: Counts) -> bool {
        counts.carried < self.carried_min[offer as usize]
    }

    /// What fell short, in words.
    pub fn shortfalls(&self, offer: Offer, passed: [usize; 2], counts: Counts) -> Vec<String> {
        let mut short = Vec::new();
        let [without, with] = passed;
        if without.min(with) < self.passed_min {
            short.push(format!(
                "{without} passed without and {with} with Fordway, not {}",
                self.passed_min
            ));
        }
        if self.carries_too_few(offer, counts) {
            let carried_min = self.carried_min[offer as usize];
            short.push(format!(
                "{} connections used rings, not {carried_min}",
                counts.carried
            ));
        }
        match counts.share() {
            Some(share)
                if self.has_share
                    && counts.eligible >= ELIGIBLE_JUDGED_MIN
                    && share < SHARE_OF_ONE_MIN =>
            {
                short.push(format!("{:.1} % of the eligible used rings", share * 100.0));
            }
            _ => {}
        }
        short
    }
}

/// All suites.
pub const SUITES: &[Suite] = &[
    python("cpython test_socket", "unittest", &["test.test_socket"])
        .options(&["--without", "VSOCK"])
        .at_least(580, [0, 8]),
    python(
        "cpython test_selectors",
        "unittest",
        &["test.test_selectors"],
    )
    .at_least(70, [0, 0]),
    python("cpython test_epoll", "unittest", &["test.test_epoll"]).at_least(10, [0, 0]),
    python("cpython test_poll", "unittest", &["test.test_poll"]).at_least(7, [0, 0]),
    python("cpython test_select", "unittest", &["test.test_select"]).at_least(6, [0, 0]),
    python(
        "cpython test_socketserver",
        "unittest",
        &["test.test_socketserver"],
    )
    .options(&["--resource", "network"])
    .at_least(25, [0, 0]),
    python("cpython test_httplib", "unittest", &["test.test_httplib"]).at_least(110, [0, 5]),
    python(
        "cpython test_urllib2_localnet",
        "unittest",
        &["test.test_urllib2_localnet"],
    )
    .at_least(22, [0, 6]),
    python(
        "cpython asyncore, asynchat",
        "unittest",
        &["test.test_asyncore", "test.test_asynchat"],
    )
    .at_least(110, [0, 20]),
    python(
        "cpython asyncio",
        "unittest",
        &[
            "test.test_asyncio.test_streams",
            "test.test_asyncio.test_server",
            "test.test_asyncio.test_sock_lowlevel",
            "test.test_asyncio.test_sendfile",
            "test.test_asyncio.test_buffered_proto",
        ],
    )
    .at_least(158, [0, 30]),
    python(
        "twisted tcp",
        "trial",
        &[
            "twisted.test.test_tcp",
            "twisted.test.test_tcp_internals",
            "twisted.internet.test.test_tcp",
            "twisted.protocols.test.test_basic",
        ],
    )
    .at_least(640, [0, 10]),
    python(
        "cpython asyncio, udp",
        "unittest",
        &[
            "test.test_asyncio.test_events",
            "test.test_asyncio.test_selector_events",
            "test.test_asyncio.test_base_events",
        ],
    )
    .at_least(400, [0, 0]),
    python("cpython test_logging", "unittest", &["test.test_logging"]).at_least(180, [0, 0]),
    python(
        "twisted udp",
        "trial",
        &[
            "twisted.test.test_udp",
            "twisted.internet.test.test_udp",
            "twisted.internet.test.test_udp_internals",
            "twisted.names.test.test_names",
            "twisted.names.test.test_client",
            "twisted.names.test.test_server",
        ],
    )
    .at_least(100, [0, 0]),
    python(
        "tornado",
        "unittest",
        &[
            "tornado.test.iostream_test",
            "tornado.test.tcpserver_test",
            "tornado.test.tcpclient_test",
            "tornado.test.httpserver_test",
            "tornado.test.simple_httpclient_test",
            "tornado.test.websocket_test",
        ],
    )
    .at_least(385, [0, 250]),
    programs(
        "redis multi, pubsub",
        "redis",
        &["unit/multi", "unit/pubsub"],
    )
    .short()
    .at_least(90, [10, 16]),
    programs("redis replication", "redis", &["integration/replication"]).at_least(57, [0, 0]),
    // poll_duplex and poll_unidirectional, most of its long connections, send all they have in one
    // go, and go on with many receives of that.
    programs("libuv", "libuv", &[])
        .at_least(390, [3, 3])
        .without_share(),
    // Of these threads of a resolver, some come late by chance, with and without Fordway.
    programs("libevent", "libevent", &[])
        .options(&[
            "--without",
            "epoll dns/getaddrinfo_cancel_stress",
            "--without",
            "changelist dns/getaddrinfo_cancel_stress",
            "--without",
            "poll dns/getaddrinfo_cancel_stress",
            "--without",
            "select dns/getaddrinfo_cancel_stress",
        ])
        .at_least(1200, [15, 45]),
    // test_filter_ipc, on UNIX sockets, passes or fails by chance.
    programs("libzmq", "libzmq", &[])
        .options(&["--without", "test_filter_ipc"])
        .at_least(395, [300, 300]),
];

/// Whether a play gets a network namespace of its own, for which it takes root: there, no other
/// play has bound its ports and abstract names, whether fixed or just found to be free.
fn has_own_namespace() -> bool {
    rustix::process::geteuid().is_root()
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_are_missing_on_both_sides_are_too_few() {
        let suite = SUITES[0];
        let short = |passed, counts| suite.shortfalls(Offer::FirstCall, passed, counts).len();
        assert_eq!(short([0, 0], Counts::default()), 2);
        let counts = |eligible, carried| Counts {
            paired: eligible,
            eligible,
            carried,
        };
        let passed = [suite.passed_min; 2];
        let least = suite.carried_min[Offer::FirstCall as usize];
        assert_eq!(short(passed, counts(least, least)), 0);
        assert_eq!(short(passed, counts(least * 2, least)), 1);
        assert_eq!(short([0, passed[1]], counts(least, least)), 1);
        let few = |carried| {
            let counts = counts(3, carried);
            suite.shortfalls(Offer::Default, passed, counts).len()
        };
        let floor = suite.carried_min[Offer::Default as usize];
        assert_eq!(few(3), usize::from(floor > 3));
        assert_eq!(few(1), usize::from(floor > 1));
        let all_have = SUITES.iter().all(|suite| suite.passed_min > 0);
        assert!(all_have, "each suite has a floor");
    }

    #[test]
    fn a_program_that_is_known_to_differ_covers_its_tests() {
        let known = &[("test_a", "reason")];
        let suite = Suite { known, ..SUITES[0] };
        assert_eq!(suite.known("test_a"), Some("reason"));
        assert_eq!(suite.known("test_a first"), Some("reason"));
        assert_eq!(suite.known("test_ab"), None);
    }
}
