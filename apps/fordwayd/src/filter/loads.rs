//! Loads of rules: made beside the loop, put in force in one turn of it, heard beside it again.
//!
//! ```text
//!   FilterLoad ─► waits ─► is made ────────────► in force ─────────► stacks are heard ─► answer, monitors
//!                          (a thread: nft beside,   (one turn: kernel,   (the loop goes on)
//!                          dump, the fabric's       file, broker, every
//!                          listing)                 stack told)
//!                            └ a fault: answered; nothing has changed anywhere
//! ```
//! nft takes some tenths of a second for thousands of rules, and a stack may take seconds to say that it has them. Programs that
//! connect, those that die and whoever asks the broker wait for neither. They wait for the turn in which the fabric's kernel gets the
//! rules, for no offer is to be answered by rules that the kernel does not have. So they do for a listing, and where the fabric is given
//! chains of a port again: both credit counts, which are to lose nothing on the way.
//!
//! One load at a time, in the order in which they came: the next one is begun when the one before is answered. Epochs so go up by
//! one, and [`Request::FilterLoad`](crate::admin::Request::FilterLoad) with an epoch may be late when it comes, or when its turn comes.
//! Late it stays.
//!
//! # Which rules hold
//! - While a load is made: those before, everywhere. Nothing of it is seen.
//! - While stacks are heard: the new ones, in the kernel, in the file, in the broker and in each stack that is started from then on. A
//!   stack that was told has those before until it has taken the new ones. The bridge has the new ones and sees each of its packets;
//!   rings past the stacks are asked about by the broker. Counts of a stack that has older rules are left out.
//!
//! # What goes wrong
//! - The broker is killed: before the turn, nothing has changed. In the turn, see [`super`]. Later, the next broker finds the new rules
//!   and has the stacks take them.
//! - It is ended: what is not in force yet is answered with a refusal. Who has not been heard is the next broker's to hear.
//! - The asker hangs up: its load is done whole, as if it had waited; who monitors is told.
//! - Somebody changes the fabric's rules past the broker meanwhile: they go, as with each load. Where the broker itself has given the
//!   fabric its chains again, the thread's listing is an old one, and the turn lists the fabric itself.
//! - [`WAITING_MAX`] loads wait: a further one is refused, for the command line would not wait so long.

use super::{Fault, Made, There, changes, store};
use crate::admin::{ErrorKind, FilterChange, Reply, Taken};
use crate::admin_socket::error;
use crate::audit::{Event, Record, Who};
use crate::broker::Broker;
use crate::orders::{Hearing, Packed};
use fordway_filter::Phase;
use fordway_platform::fabric::Fabric;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// Loads that wait for the one before them.
const WAITING_MAX: usize = 16;

/// A load that was asked for.
struct Load {
    asker: u64,
    who: Who,
    text: String,
    /// Only on rules of this epoch.
    on: Option<u64>,
}

/// A load that a thread makes.
struct Making {
    asker: u64,
    who: Who,
    by: JoinHandle<Result<Beside, Fault>>,
    /// How often the fabric had been given rules, or had lost a port's, when it began.
    given: u64,
}

/// What the thread has made.
struct Beside {
    made: Made,
    /// `None`: there is no fabric yet, or it cannot be asked.
    there: Option<There>,
}

/// A load that is in force.
struct InForce {
    asker: u64,
    who: Who,
    rules_before: u64,
    change: FilterChange,
    since: Instant,
    hearing: Hearing,
}

/// See the module.
pub(crate) struct Loads {
    waiting: VecDeque<Load>,
    making: Option<Making>,
    heard: Option<InForce>,
    /// Readable when a thread has ended.
    ended: Arc<OwnedFd>,
}

/// Tells the loop of the end of the thread that has it, however it ends.
struct Bell(Arc<OwnedFd>);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Loads {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: VecDeque::new(),
            making: None,
            heard: None,
            ended: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        })
    }

    /// Whether rules are in force which not all stacks have yet.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    fn make(
        &self,
        text: String,
        runtime_dir: PathBuf,
    ) -> io::Result<JoinHandle<Result<Beside, Fault>>> {
        let ended = self.ended.clone();
        Builder::new().name("rules".into()).spawn(move || {
            // Made here: a thread that could not be started has not ended.
            let _bell = Bell(ended);
            Beside::of(&text, &runtime_dir)
        })
    }
}

/// Readable when rules are made.
impl AsFd for Loads {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

impl Beside {
    fn of(text: &str, runtime_dir: &Path) -> Result<Beside, Fault> {
        let made = Made::of(text)?;
        // What cannot be had here, the loop asks for, and says why.
        let fabric = Fabric::open(runtime_dir).ok().flatten();
        let there = fabric.and_then(|fabric| There::of(&fabric).ok());
        Ok(Beside { made, there })
    }
}

impl Broker {
    /// `FilterLoad`. `None`: it is answered when it is done.
    pub(crate) fn filter_load(
        &mut self,
        asker: u64,
        text: String,
        on: Option<u64>,
    ) -> Option<Reply> {
        if !self.domains.possible() {
            return Some(error(
                ErrorKind::Privilege,
                "this broker has no domains between which rules could be in force: start it as root (fordway up)",
            ));
        }
        // Epochs go up only.
        if on.is_some_and(|on| on != self.rules.epoch()) {
            return Some(Fault::Late.reply());
        }
        if self.loads.waiting.len() == WAITING_MAX {
            return Some(error(
                ErrorKind::Busy,
                format_args!(
                    "{WAITING_MAX} loads of rules wait already; nothing was changed, try again"
                ),
            ));
        }
        let who = self.asking;
        self.loads.waiting.push_back(Load {
            asker,
            who,
            text,
            on,
        });
        None
    }

    /// Hears stacks of a load that is in force, and begins the next one when it is done.
    pub(crate) fn go_on_with_loads(&mut self) {
        if let Some(load) = self.loads.heard.take() {
            match self.hear_rules(&load.hearing) {
                Some(stacks) => self.finish_load(load, stacks),
                None => self.loads.heard = Some(load),
            }
        }
        while self.loads.making.is_none()
            && self.loads.heard.is_none()
            && let Some(load) = self.loads.waiting.pop_front()
        {
            let Load {
                asker,
                who,
                text,
                on,
            } = load;
            if on.is_some_and(|on| on != self.rules.epoch()) {
                self.refuse_load(asker, who, Fault::Late.reply());
                continue;
            }
            match self.loads.make(text, self.rules.runtime_dir.clone()) {
                Ok(by) => {
                    let given = self.rules.given;
                    self.loads.making = Some(Making {
                        asker,
                        who,
                        by,
                        given,
                    });
                }
                Err(reason) => {
                    let what = format_args!("nothing was changed: no thread for it: {reason}");
                    self.refuse_load(asker, who, error(ErrorKind::Internal, what));
                }
            }
        }
    }

    fn refuse_load(&mut self, asker: u64, who: Who, reply: Reply) {
        self.audit_refused_load(who, &reply);
        self.answer_admin(asker, reply);
    }

    fn audit_refused_load(&mut self, who: Who, reply: &Reply) {
        self.on_behalf_of(who, |broker| {
            broker.audit_refusal(Event::FilterLoad, None, reply);
        });
    }

    /// A thread has ended: what it has made comes into force.
    pub(crate) fn rules_are_made(&mut self) {
        let _ = rustix::io::read(&*self.loads.ended, &mut [0; 8]);
        let Some(Making {
            asker,
            who,
            by,
            given,
        }) = self.loads.making.take()
        else {
            return;
        };
        let beside = by.join().unwrap_or_else(|_| {
            let why = "the thread that makes rules has panicked";
            Err(Fault::File(io::Error::other(why)))
        });
        let load = beside.and_then(|beside| {
            self.on_behalf_of(who, |broker| broker.put_in_force(asker, beside, given))
        });
        match load {
            Ok(load) => self.loads.heard = Some(load),
            Err(fault) => self.refuse_load(asker, who, fault.reply()),
        }
    }

    /// The turn in which rules come into force: in all enforcers, or in none.
    fn put_in_force(&mut self, asker: u64, beside: Beside, given: u64) -> Result<InForce, Fault> {
        let Beside { made, there } = beside;
        // What the kernel would have back, whoever has written it.
        let back = match there.filter(|_| given == self.rules.given) {
            Some(there) => there,
            None => {
                let fabric = self.domains.fabric().map_err(Fault::Fabric)?;
                There::of(fabric).map_err(Fault::Fabric)?
            }
        };
        let old = self.listing_of(&back);
        if let Some(rules) = &back.rules {
            self.rules.tally.look(rules, &self.rules.filter);
        }
        let old = old.unwrap_or_else(|| self.rules.listing.clone());
        let changes = changes::changes(&old, &made.listing);
        let epoch = self.rules.epoch() + 1;
        let stored = store::Stored {
            epoch,
            rules: made.listing.clone(),
            credited: self.credited(),
        };
        let packed = Packed::new(epoch, &made.dump).map_err(Fault::File)?;
        let file = store::prepare(&self.rules.runtime_dir, &stored).map_err(Fault::File)?;
        if let Err(fault) = self.load_kernel(&made.for_kernel.text, made.for_kernel.sees_ip) {
            file.discard();
            return Err(fault);
        }
        let since = Instant::now();
        if let Err(reason) = file.take_place() {
            return Err(match self.load_kernel(&back.text, false) {
                Ok(()) => Fault::File(reason),
                Err(fault) => Fault::Apart(fault.to_string()),
            });
        }
        let tracked = self.rules.filter.tracks_connections();
        let was_lacking = self.rules.chains.is_failing();
        let rules_before = self.rules.count();
        self.rules.put_in_force(made, epoch);
        self.free_groups();
        let hearing = self.give_rules(packed);
        let channels = self.look_again(match tracked {
            true => Phase::Established,
            false => Phase::New,
        });
        if was_lacking {
            self.settle_stacks();
        }
        let change = FilterChange {
            epoch,
            changes,
            channels,
            stacks: Taken::default(),
            look_us: 0,
        };
        Ok(InForce {
            asker,
            who: self.asking,
            rules_before,
            change,
            since,
            hearing,
        })
    }

    /// All stacks have the rules, or their successors will.
    fn finish_load(&mut self, load: InForce, stacks: Taken) {
        let InForce {
            asker,
            who,
            rules_before,
            mut change,
            since,
            hearing,
        } = load;
        self.end_hearing(hearing);
        change.stacks = stacks;
        change.look_us = since.elapsed().as_micros() as u64;
        let channels = &change.channels;
        let what = Record {
            ruleset: Some(change.epoch),
            rules_before: Some(rules_before),
            rules_after: Some(self.rules.count()),
            changes: Some(change.changes.len() as u64),
            moved: Some(channels.moved),
            cut: Some(channels.cut),
            ..Record::of(Event::FilterLoad)
        };
        let said = format!(
            "rules of epoch {} are in force: {} channels stay, {} go to the kernel path, {} are cut; {} stacks have them, {} were killed",
            change.epoch,
            channels.stay,
            channels.moved,
            channels.cut,
            stacks.changed,
            stacks.restarted
        );
        self.on_behalf_of(who, |broker| broker.audit(what, said));
        self.tell_monitors(&change, asker);
        self.answer_admin(asker, Reply::FilterChange(change));
    }

    /// The broker ends: what is not in force will not be.
    pub(crate) fn give_up_loads(&mut self) {
        if let Some(load) = self.loads.heard.take() {
            let stacks = self.taken(&load.hearing);
            self.finish_load(load, stacks);
        }
        let making = self.loads.making.take();
        let making = making.map(|making| (making.asker, making.who));
        let waiting = std::mem::take(&mut self.loads.waiting).into_iter();
        let waiting = waiting.map(|load| (load.asker, load.who));
        for (asker, who) in making.into_iter().chain(waiting) {
            let reply = error(ErrorKind::Busy, "the broker ends; nothing was changed");
            self.audit_refused_load(who, &reply);
            self.refuse_admin(asker, reply);
        }
    }
}
