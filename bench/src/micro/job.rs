//! What the suites of plain programs measure: the conversations, where they are held, and
//! who takes part.
//!
//! Each size is measured with each end on a CPU of its own, against everyone. What the
//! other placements and two CPU hogs change is shown at two sizes, against TCP and UNIX
//! sockets. Once these are known, each side is measured again where it was fastest ([`best`]):
//! such a row says what a rival at its best loses.

use super::end::Talk;
use super::sample::Contender;
use crate::placement::{self, Placement};
use crate::report::Row;
use clap::ValueEnum;
use std::time::Duration;

/// Sizes of messages.
const SIZES: [usize; 7] = [1, 64, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20];
/// Those for placements other than the first, and with hogs.
const SIZES_FEW: [usize; 2] = [64, 64 << 10];
/// The largest ring that a channel may have.
pub const RING_BYTES_MAX: usize = 4 << 20;
/// Capacities of a ring.
const RINGS: [usize; 7] = [
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    RING_BYTES_MAX,
];
/// Messages that are sent through rings of each capacity.
const RING_MESSAGE_BYTES: usize = 64 << 10;
/// A message each 10 ms finds the receiver asleep.
const ASLEEP: Duration = Duration::from_millis(10);
/// A request and its answer.
const REQUEST_BYTES: usize = 64;
/// Idle connections beside a busy one.
const CROWDS: [usize; 5] = [0, 10, 100, 1000, 10_000];
/// Conversations at once.
const PAIRS: [usize; 4] = [1, 2, 4, 8];
/// Messages of the curve that com-socket's authors have published.
const CURVE: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10];
/// Begin the names of the rows of suite `com`: of datagrams, of that curve, and of the native API.
pub const COM_PREFIXES: [&str; 3] = ["udp-", CURVE_PREFIX, "native-"];
/// Those of the curve.
pub const CURVE_PREFIX: &str = "com-";
/// Sockets of memcached's client, each with one question under way.
pub const MEMCACHED_SOCKETS: usize = 10;
/// Where else, and with hogs.
const ELSEWHERE: [(Placement, bool); 4] = [
    (Placement::Together, false),
    (Placement::Free, false),
    (Placement::Free, true),
    (Placement::Apart, true),
];

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Round trips of 1 B to 4 MB.
    Rtt,
    /// One way, 1 B to 4 MB.
    Stream,
    /// Bare rings of 64 KB to 4 MB.
    RingSize,
    /// Connections that carry nothing, or one request.
    Connect,
    /// Many pairs, and one busy connection among idle ones.
    Scale,
    /// Bytes of ring memory of idle and of busy connections.
    Memory,
    /// Datagrams of 64 B, there and back and one way; streams of 1 to 512 KB beside memcpy; the native API.
    Com,
}

/// What sockets of a job are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP, and what stands beside it.
    Stream,
    /// UDP, and what stands beside it.
    Datagram,
}

/// What programs the ends of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Plain ones (`fordway-bench end`).
    Plain,
    /// Such, in Python.
    Python,
    /// memcached, and a plain client.
    Memcached,
    /// Plain ones; over the fast path by the native API.
    Native,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the row.
    pub name: String,
    /// The conversation.
    pub talk: Talk,
    /// What it is held over.
    pub transport: Transport,
    /// Who holds it.
    pub ends: Ends,
    /// Bytes of a message.
    pub size: usize,
    /// Before each round trip: the receiver sleeps.
    pub pause: Duration,
    /// Idle connections beside the measured one.
    pub idle: usize,
    /// Conversations at the same time, each with programs of its own, if the job is about that.
    pub pairs: Option<usize>,
    /// Where the fast path (or the bare ring) is measured.
    pub placement: Placement,
    /// Where its rivals are.
    pub rival_placement: Placement,
    /// Who takes part, if not all who can.
    pub only: Option<&'static [Contender]>,
    /// The only rival, of a job with each side at its best.
    pub best: Option<Contender>,
    /// Connections of one request between domains, not over loopback.
    pub is_between_domains: bool,
    /// Connections are offered with their first call, not after several.
    pub at_once: bool,
    /// With a busy loop on each CPU beside.
    pub hogs: bool,
    /// Capacity of the bare ring, if the job is about that.
    pub ring: Option<usize>,
}

impl Job {
    /// Two programs, each on a CPU of its own.
    pub fn new(name: String, talk: Talk, size: usize) -> Job {
        Job {
            name,
            talk,
            transport: Transport::Stream,
            ends: Ends::Plain,
            size,
            pause: Duration::ZERO,
            idle: 0,
            pairs: None,
            placement: Placement::Apart,
            rival_placement: Placement::Apart,
            only: None,
            best: None,
            is_between_domains: false,
            at_once: false,
            hogs: false,
            ring: None,
        }
    }

    fn at(self, placement: Placement, hogs: bool) -> Job {
        Job {
            placement,
            rival_placement: placement,
            hogs,
            ..self
        }
    }

    /// Where a contender is measured.
    pub fn placement_of(&self, contender: Contender) -> Placement {
        match contender {
            Contender::Fast | Contender::Ring | Contender::Alone => self.placement,
            _ => self.rival_placement,
        }
    }

    /// The same without a crowd or other pairs.
    pub fn alone(&self) -> Job {
        Job {
            idle: 0,
            pairs: self.pairs.map(|_| 1),
            ..self.clone()
        }
    }

    /// Whether each end has a CPU for itself.
    pub fn is_undisturbed(&self) -> bool {
        self.placement == Placement::Apart && !self.hogs
    }

    /// Who takes part; the first is compared with the others.
    pub fn contenders(&self) -> Vec<Contender> {
        if self.ring.is_some() {
            return vec![Contender::Ring, Contender::Fast, Contender::KernelLoopback];
        }
        if let Some(only) = self.only {
            return only.to_vec();
        }
        if let Some(rival) = self.best {
            return vec![Contender::Fast, rival];
        }
        if self.is_between_domains {
            return vec![Contender::Fast, Contender::KernelBridge];
        }
        let all = Contender::value_variants().iter().copied();
        // What several pairs or a crowd change is each contender's own affair.
        let few = !self.is_undisturbed() || self.talk == Talk::Crowd || self.pairs.is_some();
        let wanted = |one: &Contender| !few || Contender::FEW.contains(one);
        all.filter(|one| one.can(self) && wanted(one)).collect()
    }
}

/// The jobs of a suite.
pub fn jobs(suite: Suite, quick: bool) -> Vec<Job> {
    let few = |all: &'static [usize], count: usize| if quick { &all[..count] } else { all };
    let elsewhere = if quick { &[][..] } else { &ELSEWHERE[..] };
    match suite {
        Suite::Rtt => {
            let mut jobs = sizes("rtt", Talk::Rtt, quick, elsewhere);
            let asleep = || Job {
                pause: ASLEEP,
                ..Job::new("rtt-64-asleep".to_owned(), Talk::Rtt, 64)
            };
            jobs.push(asleep());
            jobs.extend(elsewhere.iter().map(|&(at, hogs)| asleep().at(at, hogs)));
            jobs
        }
        Suite::Stream => sizes("stream", Talk::Stream, quick, elsewhere),
        Suite::RingSize => {
            let size = RING_MESSAGE_BYTES;
            let of = |word: &str, talk, ring: usize| Job {
                ring: Some(ring),
                ..Job::new(format!("{word}-64k-ring{}", size_word(ring)), talk, size)
            };
            let rings = few(&RINGS, 2).iter();
            rings
                .flat_map(|&ring| [of("rtt", Talk::Rtt, ring), of("stream", Talk::Stream, ring)])
                .collect()
        }
        Suite::Connect => {
            let at = [(Placement::Apart, false)].iter().chain(elsewhere);
            at.flat_map(|&(at, hogs)| {
                let job = |name: &str, talk| Job::new(name.to_owned(), talk, REQUEST_BYTES);
                let request = |name, is_between_domains, at_once| Job {
                    is_between_domains,
                    at_once,
                    ..job(name, Talk::Request)
                };
                let jobs = [
                    job("connect", Talk::Connect),
                    request("request", false, false),
                    request("request-at-once", false, true),
                    request("request-domains", true, false),
                    request("request-domains-at-once", true, true),
                ];
                // At once is nobody's default: it is not judged beside hogs.
                let wanted = jobs.into_iter().filter(move |job| !(hogs && job.at_once));
                wanted.map(move |job| job.at(at, hogs))
            })
            .collect()
        }
        Suite::Scale => {
            let paired = |pairs| Job {
                pairs: Some(pairs),
                ..Job::new(format!("rtt-64-pairs{pairs}"), Talk::Rtt, 64)
            };
            let crowd = |&idle: &usize| Job {
                idle,
                ..Job::new(format!("rtt-64-idle{idle}"), Talk::Crowd, 64)
            };
            let free = few(&PAIRS, 2).iter();
            let free = free.map(|&pairs| paired(pairs).at(Placement::Free, false));
            let others = elsewhere
                .iter()
                .filter(|other| **other != (Placement::Free, false));
            let others = others.map(|&(at, hogs)| paired(4).at(at, hogs));
            let crowds = few(&CROWDS, 3).iter().map(crowd);
            free.chain(others).chain(crowds).collect()
        }
        Suite::Memory => Vec::new(),
        Suite::Com => {
            let job = |name: &str, talk| Job {
                transport: Transport::Datagram,
                only: Some(&Contender::OF_DATAGRAMS),
                ..Job::new(name.to_owned(), talk, 64)
            };
            let without_unix = |ends, name: &str| Job {
                ends,
                only: Some(&Contender::OF_UDP),
                ..job(name, Talk::Rtt)
            };
            let memcached = || without_unix(Ends::Memcached, "udp-memcached-get-c10");
            let curve = |&size: &usize| Job {
                only: Some(&Contender::OF_CURVE),
                ..Job::new(
                    format!("{CURVE_PREFIX}{}", size_word(size)),
                    Talk::Stream,
                    size,
                )
            };
            let jobs = || {
                let asleep = Job {
                    pause: ASLEEP,
                    ..job("udp-rtt-64-asleep", Talk::Rtt)
                };
                let both = [job("udp-rtt-64", Talk::Rtt), job("udp-64", Talk::Datagrams)];
                both.into_iter().chain([asleep, memcached()])
            };
            let native = |name: &str, talk, size, only| Job {
                ends: Ends::Native,
                only: Some(only),
                is_between_domains: true,
                ..Job::new(name.to_owned(), talk, size)
            };
            let natives = [
                native("native-64", Talk::Stream, 64, &Contender::OF_LOANS),
                native("native-64k", Talk::Stream, 64 << 10, &Contender::OF_LOANS),
                native("native-connect", Talk::Connect, 64, &Contender::OF_CONNECTS),
            ];
            let elsewhere = elsewhere.iter();
            let elsewhere =
                elsewhere.flat_map(|&(at, hogs)| jobs().map(move |job| job.at(at, hogs)));
            jobs()
                .chain([without_unix(Ends::Python, "udp-python-rtt-64")])
                .chain(CURVE.iter().map(curve))
                .chain(natives)
                .chain(elsewhere)
                .collect()
        }
    }
}

/// Jobs with each side where these rows show it fastest.
pub fn best(rows: &[Row]) -> Vec<Job> {
    best_where(|work, rival| placement::best(rows, work, rival))
}

/// As many as [`best`] may come to, for an estimate.
pub fn best_at_most() -> Vec<Job> {
    best_where(|_, _| Some([Placement::Apart; 2]))
}

fn best_where(fastest: impl Fn(&str, &str) -> Option<[Placement; 2]>) -> Vec<Job> {
    let all = [Suite::Rtt, Suite::Stream].into_iter();
    let mut best = Vec::new();
    for job in all.flat_map(|suite| jobs(suite, true)) {
        let rivals = [
            Contender::KernelLoopback,
            Contender::KernelPolling,
            Contender::Unix,
        ];
        for rival in rivals {
            if let Some([ours, theirs]) = fastest(&job.name, rival.name()) {
                best.push(Job {
                    placement: ours,
                    rival_placement: theirs,
                    best: Some(rival),
                    ..job.clone()
                });
            }
        }
    }
    best
}

fn sizes(word: &str, talk: Talk, quick: bool, elsewhere: &[(Placement, bool)]) -> Vec<Job> {
    let job = |&size: &usize| Job::new(format!("{word}-{}", size_word(size)), talk, size);
    let sizes = if quick { &SIZES_FEW[..] } else { &SIZES[..] };
    let mut jobs: Vec<Job> = sizes.iter().map(job).collect();
    for &(placement, hogs) in elsewhere {
        let some = SIZES_FEW.iter().map(job);
        jobs.extend(some.map(|job| job.at(placement, hogs)));
    }
    jobs
}

fn size_word(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}
