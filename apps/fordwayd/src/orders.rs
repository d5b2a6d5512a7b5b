//! Orders to the stacks: rules that come into force, counts and connections that are listed.
//!
//! ```text
//!   rules:  prepared ─► kernel ─► file ─► broker ─► told to each stack ─► channels ┊ each has said that it has them
//!             (a fault up to here: nothing is told)                    one turn ┘    └ else: killed, started with them
//! ```
//! Stacks come last in a change of rules, and none of them can refuse: what the broker has compiled, a stack reads, and what it does
//! not know is left to the bridge. So nothing is ever taken back from a stack, and there is no second phase. One that does not say within
//! [`TAKE_MAX`] that it has the rules is killed; the next one has them before its first frame. Until then the bridge, which has them
//! already, sees each of its packets.
//!
//! All stacks are told before any is heard, so that one bound holds for all together. The broker goes on with its other work
//! while it hears them ([`Hearing`]): what wakes it is an epoll of their ways, and a look each [`LOOK`] where that cannot be had.
//! Who has died is no matter: the next process is started with the rules that are in force then ([`Way::lay`]). Nothing that a
//! stack says is believed further than it can be checked: a count of a counter that is not there is left out, and none can go back.
//!
//! A stack owes an answer to the last rules that it was given ([`Way`]), and to no earlier ones: what it says of those ends nothing.
//! The answer is heard whenever it comes, and once. Numbers of orders are no earlier broker's, whose answers may lie there still.
//!
//! Stacks of an earlier broker are given the rules as well, and heard in the same way ([`Broker::hear_found`]).

use crate::admin::Taken;
use crate::broker::{Broker, Token};
use fordway_driver::orders::{self, CONNECTIONS_MAX, Connection, Ends, Order, Report, Said, What};
use fordway_filter::rules;
use fordway_platform::ipc::ReceiveError;
use fordway_platform::memfd;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long stacks may take for new rules. A stack looks at its orders each round; on a machine that is worked hard a round may
/// wait, and who is killed loses all connections. The library in a stack may wait for this broker, which may have long work just
/// now, for a second (`apps/preload/src/packet.rs`), and for another one when it connects anew: so it is longer than both.
const TAKE_MAX: Duration = Duration::from_millis(2500);
/// And for each byte of them beyond, in nanoseconds: 10,000 rules are some megabytes, and a stack compiles them in some tens of
/// milliseconds. All stacks do so at once, on one CPU perhaps.
const TAKE_NS_PER_BYTE: u64 = 20;
/// How long stacks of an earlier broker may take. Nobody waits for them.
const FOUND_MAX: Duration = Duration::from_secs(5);
/// How often stacks that are heard are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(10);
/// Of a hearing, at one look.
const EVENTS_MAX: usize = 64;
/// How long a listing waits. What is said later, the next one has.
const ANSWER_MAX: Duration = Duration::from_millis(100);
/// Reports of one stack to one order, with those that are late: of all its sockets, and of 100,000 counters.
const REPORTS_MAX: usize = 512;
/// So many are taken even when the time is over, or nobody waits.
const REPORTS_MIN: usize = 16;
/// So much of what a stack gives as its reason is logged.
const REASON_CHARS: usize = 200;

/// Rules as stacks get them.
#[derive(Debug)]
pub(crate) struct Packed {
    epoch: u64,
    bytes: usize,
    memfd: OwnedFd,
}

impl Packed {
    /// From what the kernel has dumped.
    pub(crate) fn new(epoch: u64, dump: &[u8]) -> io::Result<Self> {
        let packed = rules::packed(dump);
        let mut file = std::fs::File::from(memfd::create("fordway-rules", 0)?);
        file.write_all(&packed)?;
        memfd::seal(&file)?;
        Ok(Self {
            epoch,
            bytes: packed.len(),
            memfd: file.into(),
        })
    }

    fn order(&self) -> What {
        What::Rules {
            epoch: self.epoch,
            bytes: self.bytes,
        }
    }
}

/// The broker's end of the way to a stack, and the number that the stack has it by.
pub(crate) type Found = (OwnedFd, i32);

/// The way to a stack. Each process has a new one.
#[derive(Debug)]
pub(crate) struct Way {
    end: RefCell<Option<Found>>,
    /// The rules that it was given and has not answered to, by their order's number.
    owes: Cell<Option<u64>>,
    /// The process was killed, for it does not go by its rules; the next one has not been started yet.
    is_ended: Cell<bool>,
}

/// The ends for a process that is about to be started.
pub(crate) struct Laid {
    own: OwnedFd,
    brokers: OwnedFd,
}

impl Way {
    /// Of a process that an earlier broker has started, if there is one.
    pub(crate) fn new(found: Option<Found>) -> Self {
        Self {
            end: RefCell::new(found),
            owes: Cell::new(None),
            is_ended: Cell::new(false),
        }
    }

    /// Makes both ends; the rules are what the process finds first.
    pub(crate) fn lay(rules: &Packed) -> io::Result<Laid> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, brokers) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let order = Order {
            number: 0,
            what: rules.order(),
        };
        orders::send(&brokers, &order, &[rules.memfd.as_fd()])?;
        Ok(Laid { own, brokers })
    }

    /// The process has been started.
    pub(crate) fn take(&self, laid: Laid) {
        let number = laid.brokers.as_raw_fd();
        self.end.replace(Some((laid.brokers, number)));
        // To the rules that it found it owes no answer: one that cannot have them could not be helped by another process.
        self.owes.set(None);
        self.is_ended.set(false);
    }

    /// What the next broker asks the process for.
    pub(crate) fn number(&self) -> Option<i32> {
        self.end.borrow().as_ref().map(|(_, number)| *number)
    }

    fn end(&self) -> Option<Ref<'_, OwnedFd>> {
        Ref::filter_map(self.end.borrow(), |end| Some(&end.as_ref()?.0)).ok()
    }
}

impl Laid {
    /// Their numbers, here and in the process.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            own: self.own.as_raw_fd(),
            brokers: self.brokers.as_raw_fd(),
        }
    }

    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.own.as_fd(), self.brokers.as_fd()]
    }
}

/// An order, and the domains whose stacks were given it.
#[derive(Debug)]
pub(crate) struct Told {
    number: u64,
    ids: Vec<u32>,
}

/// Rules that stacks were told of, until each has them.
#[derive(Debug)]
pub(crate) struct Hearing {
    told: Told,
    /// How often each stack had been started again before.
    restarts: BTreeMap<u32, u64>,
    until: Instant,
    /// The ways to them, edge-triggered: a dead process's, which somebody else may hold, wakes nobody for ever.
    answers: Option<OwnedFd>,
}

/// What stacks have said to it.
#[derive(Debug, Default)]
struct Heard {
    said: Vec<(u32, Said)>,
    /// Who has not said all in time.
    late: Vec<u32>,
    /// Who says too much, or what is no report.
    wrong: Vec<u32>,
    /// Who says nothing any more: it has died, most likely.
    gone: Vec<u32>,
    /// Who has said that it cannot have the rules in force, and why.
    refuse: Vec<(u32, String)>,
}

impl Broker {
    fn tell(&mut self, what: &What, beside: Option<&Packed>) -> Told {
        self.order_number += 1;
        let number = self.order_number;
        let order = Order {
            number,
            what: what.clone(),
        };
        let beside = beside.map(|packed| packed.memfd.as_fd());
        let mut ids = Vec::new();
        for (id, way) in self.stacks.ways() {
            let Some(end) = way.end() else {
                continue;
            };
            // It has done nothing that could be asked for, and hears nothing yet.
            let part = self.stacks.stack_part(id);
            if part.is_some_and(|part| self.parts.is_untold(part)) {
                continue;
            }
            let sent = orders::send(&*end, &order, beside.as_slice());
            if matches!(what, What::Rules { .. }) {
                way.owes.set(Some(number));
            }
            match sent {
                Ok(()) => ids.push(id),
                // It has died, or hears nothing any more, and its successor has what is in force. It is asked for nothing.
                Err(reason)
                    if matches!(what, What::Counts | What::Connections)
                        && matches!(
                            reason.kind(),
                            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                        ) => {}
                // It was told nothing, so it will be silent.
                Err(_) => ids.push(id),
            }
        }
        Told { number, ids }
    }

    /// Until each has said all, or the time is over. What is told of counts is added at once, whatever was asked.
    fn hear(&mut self, told: Told, most: Duration) -> Heard {
        let until = Instant::now() + most;
        let mut heard = Heard::default();
        let mut waiting: Vec<(u32, usize)> = told.ids.iter().map(|id| (*id, 0)).collect();
        let (stacks, rules) = (&self.stacks, &mut self.rules);
        loop {
            waiting.retain_mut(|(id, count)| {
                let Some(way) = stacks.way(*id) else {
                    return false;
                };
                let Some(end) = way.end() else {
                    return false;
                };
                loop {
                    if *count == REPORTS_MAX {
                        heard.wrong.push(*id);
                        return false;
                    }
                    if *count >= REPORTS_MIN && Instant::now() > until {
                        return true;
                    }
                    match orders::receive::<Report>(&*end) {
                        Ok((report, _)) => {
                            *count += 1;
                            let is_last = report.number == told.number && report.is_last;
                            match report.said {
                                Said::Counts {
                                    epoch,
                                    counters,
                                    of,
                                } => rules.add_counts(epoch, counters, &of),
                                Said::Connections(all) if all.len() > CONNECTIONS_MAX => {
                                    heard.wrong.push(*id);
                                    return false;
                                }
                                Said::InForce if way.owes.get() == Some(report.number) => {
                                    way.owes.set(None);
                                }
                                Said::Refused(why) if way.owes.get() == Some(report.number) => {
                                    way.owes.set(None);
                                    heard.refuse.push((*id, why));
                                }
                                // What else answers an earlier order is not heard any more.
                                other if report.number == told.number => {
                                    heard.said.push((*id, other));
                                }
                                _ => {}
                            }
                            if is_last {
                                return false;
                            }
                        }
                        Err(ReceiveError::Empty) => return true,
                        Err(ReceiveError::Malformed(..)) => {
                            heard.wrong.push(*id);
                            return false;
                        }
                        Err(ReceiveError::Closed | ReceiveError::System(_)) => {
                            heard.gone.push(*id);
                            return false;
                        }
                    }
                }
            });
            let left = until.saturating_duration_since(Instant::now());
            if waiting.is_empty() || left.is_zero() {
                break;
            }
            let ends: Vec<_> = waiting
                .iter()
                .filter_map(|(id, _)| stacks.way(*id)?.end())
                .collect();
            let mut fds: Vec<_> = ends
                .iter()
                .map(|end| PollFd::new(&**end, PollFlags::IN))
                .collect();
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            // Interrupted, or not: they are looked at again.
            let _ = poll(&mut fds, Some(&left));
        }
        heard.late.extend(waiting.iter().map(|(id, _)| *id));
        for (id, why) in &heard.refuse {
            let why: String = why.chars().take(REASON_CHARS).collect();
            tracing::warn!("the stack of domain {id} cannot read its rules: {why:?}");
            self.end_stack(*id);
        }
        heard
    }

    /// Has a stack that does not go by the rules started again, with them.
    fn end_stack(&mut self, id: u32) {
        if let Some(part) = self.stacks.stack_part(id) {
            tracing::warn!("the stack of domain {id} does not take new rules; it is killed");
            if let Some(way) = self.stacks.way(id) {
                way.is_ended.set(true);
            }
            self.parts.kill(part);
        }
    }

    /// How often the stack of a domain was started again.
    fn restarts_of(&self, id: u32) -> Option<u64> {
        let part = self.stacks.stack_part(id)?;
        Some(self.parts.restarts(part))
    }

    /// Has all stacks, and those that are started from now on, go by these rules; to be heard by [`Broker::hear_rules`].
    pub(crate) fn give_rules(&mut self, packed: Packed) -> Hearing {
        let packed = self.stacks.set_rules(packed);
        let ids: Vec<u32> = self.stacks.ways().map(|(id, _)| id).collect();
        let restarts = ids
            .iter()
            .filter_map(|id| Some((*id, self.restarts_of(*id)?)));
        let restarts = restarts.collect();
        // Who was not told to begin hears no order: its successor finds these rules.
        for part in ids.into_iter().filter_map(|id| self.stacks.stack_part(id)) {
            if self.parts.is_untold(part) {
                self.parts.kill(part);
            }
        }
        let told = self.tell(&packed.order(), Some(&packed));
        let bytes = told.ids.len() as u64 * packed.bytes as u64;
        let compiling = Duration::from_nanos(bytes.saturating_mul(TAKE_NS_PER_BYTE));
        Hearing {
            answers: self.watch_answers(&told),
            told,
            restarts,
            until: Instant::now() + TAKE_MAX + compiling,
        }
    }

    /// Has the loop woken when one of them says something.
    fn watch_answers(&self, told: &Told) -> Option<OwnedFd> {
        let answers = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        for end in told.ids.iter().filter_map(|id| self.stacks.way(*id)?.end()) {
            let _ = epoll::add(&answers, &*end, epoll::EventData::new_u64(0), flags);
        }
        let token = Token::ANSWERS.data();
        epoll::add(&self.epoll, &answers, token, epoll::EventFlags::IN).ok()?;
        Some(answers)
    }

    /// Hears stacks, without waiting. What became of them, when each has said that it has the rules, or the time is over. Who has not
    /// by then is started again, with them.
    pub(crate) fn hear_rules(&mut self, hearing: &Hearing) -> Option<Taken> {
        if let Some(answers) = &hearing.answers {
            // What comes from here on wakes the loop again.
            let mut events = Vec::with_capacity(EVENTS_MAX);
            let room = rustix::buffer::spare_capacity(&mut events);
            let _ = epoll::wait(answers, room, Some(&Timespec::default()));
        }
        let told = Told {
            number: hearing.told.number,
            ids: self.owing(hearing),
        };
        let Heard { wrong, gone, .. } = self.hear(told, Duration::ZERO);
        // Nothing is to be waited for.
        for id in wrong.into_iter().chain(gone) {
            self.end_stack(id);
        }
        let late = self.owing(hearing);
        if !late.is_empty() && Instant::now() < hearing.until {
            return None;
        }
        late.into_iter().for_each(|id| self.end_stack(id));
        let taken = self.taken(hearing);
        if taken.restarted != 0 {
            self.start_parts();
        }
        Some(taken)
    }

    /// Who has not said that it has the rules, and is to: neither its domain is gone, nor its process is another one by now.
    fn owing(&self, hearing: &Hearing) -> Vec<u32> {
        let ids = hearing.told.ids.iter().copied();
        ids.filter(|id| {
            let owes = |way: &Way| {
                way.owes.get() == Some(hearing.told.number) && !self.is_another(hearing, *id, way)
            };
            self.stacks.way(*id).is_some_and(owes)
        })
        .collect()
    }

    /// Whether the process of a stack is not, or not for long, the one that was told.
    fn is_another(&self, hearing: &Hearing, id: u32, way: &Way) -> bool {
        way.is_ended.get() || self.restarts_of(id) != hearing.restarts.get(&id).copied()
    }

    /// What became of stacks so far.
    pub(crate) fn taken(&self, hearing: &Hearing) -> Taken {
        let mut taken = Taken::default();
        for id in &hearing.told.ids {
            let Some(way) = self.stacks.way(*id) else {
                continue;
            };
            if self.is_another(hearing, *id, way) {
                taken.restarted += 1;
            } else if way.owes.get() != Some(hearing.told.number) {
                taken.changed += 1;
            }
        }
        taken
    }

    /// Nobody is heard any more.
    pub(crate) fn end_hearing(&self, hearing: Hearing) {
        if let Some(answers) = hearing.answers {
            let _ = epoll::delete(&self.epoll, &answers);
        }
    }

    /// Adds what the stacks have counted since the last time to the counts of the rules.
    pub(crate) fn collect_counts(&mut self) {
        let told = self.tell(&What::Counts, None);
        self.hear(told, ANSWER_MAX);
    }

    /// Connected sockets of the stacks, each with its domain's number.
    pub(crate) fn stack_connections(&mut self) -> Vec<(u32, Connection)> {
        let told = self.tell(&What::Connections, None);
        let Heard {
            said, late, wrong, ..
        } = self.hear(told, ANSWER_MAX);
        for id in late.into_iter().chain(wrong) {
            tracing::warn!(
                "the stack of domain {id} has not told of all its connections in time; the listing lacks some"
            );
        }
        let connections = said.into_iter().filter_map(|(id, said)| match said {
            Said::Connections(all) => Some(all.into_iter().map(move |one| (id, one))),
            Said::InForce | Said::Refused(_) | Said::Counts { .. } => None,
        });
        connections.flatten().collect()
    }

    /// Has stacks that an earlier broker started go by the rules in force. They most likely do. What they have counted is told first.
    pub(crate) fn give_rules_to_found(&mut self) {
        self.tell(&What::Counts, None);
        let rules = self.stacks.rules();
        let told = self.tell(&rules.order(), Some(&rules));
        self.found = (!told.ids.is_empty()).then(|| (told, Instant::now() + FOUND_MAX));
    }

    /// Hears stacks that an earlier broker started, without waiting. Who has not said in time that it has the rules, or that it cannot
    /// have them, is started again.
    pub(crate) fn hear_found(&mut self) {
        let Some((Told { number, mut ids }, until)) = self.found.take() else {
            return;
        };
        let told = Told {
            number,
            ids: ids.clone(),
        };
        self.hear(told, Duration::ZERO);
        // Later rules have a bound of their own.
        ids.retain(|id| {
            let way = self.stacks.way(*id);
            way.is_some_and(|way| way.owes.get() == Some(number))
        });
        if Instant::now() < until {
            self.found = (!ids.is_empty()).then_some((Told { number, ids }, until));
            return;
        }
        ids.into_iter().for_each(|id| self.end_stack(id));
    }
}
