//! Everything that a run consists of, and who runs next.
//!
//! A *task* is a thread of a program: a coroutine that gives way at each step it makes with
//! kernel, ring or lock ([`Ctx::point`]) and wherever it waits. The scheduler takes the next
//! one among those that can run, the network's deliveries, the broker's packets and the
//! faults that are planned, by weights that change. Time stands still while anything can run.

use crate::broker::Broker;
use crate::choices::Choices;
use crate::kernel::{self, Socket};
use crate::memory::{give_stack, take_stack};
use crate::plan::Plan;
use crate::process::{Conn, Process};
use crate::programs;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fordway_abi::atomic::AtomicU32;
use fordway_abi::reason::Reason;
use fordway_registry::Outgoing;
use fordway_sockets::Patience;
use fordway_sockets::ready::{Want, is_ready};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

/// Longest run, in steps of the scheduler.
const STEPS_MAX: u64 = 3_000_000;
/// Times in a row that only time may bring a run on.
const IDLE_STEPS_MAX: u32 = 50_000;
/// Length of the pattern that all streams are cut from: a prime, so that no shift by a
/// ring's or a segment's size looks the same.
const PATTERN_BYTES: usize = 65_521;

/// What a task waits for.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Nothing: others may run.
    Turn,
    /// A lock.
    Lock(&'static AtomicU32),
    /// A time.
    Until(u64),
    /// Whatever ends a sleep.
    Sleep {
        /// Socket and the poll bits that end it.
        socket: usize,
        events: u32,
        /// The doorbell, for sleeps in the library; mail ends these, too.
        door: Option<usize>,
        /// For the look after lost wake-ups.
        wants: Option<Want>,
        /// When it ends by itself.
        until_ns: u64,
    },
    /// For ever: the run has failed.
    Ever,
}

struct Task {
    name: &'static str,
    process: usize,
    conn: usize,
    wait: Wait,
    weight: u64,
    coroutine: Coroutine<(), Wait, (), DefaultStack>,
}

/// What happened in a run, to see that runs are worth something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub steps: u64,
    pub paired: u64,
    pub entered: u64,
    pub ring_bytes: u64,
    pub kernel_bytes: u64,
    pub sent_back_bytes: u64,
    pub stale_ends: u64,
    pub short_sends: u64,
    pub short_receives: u64,
    /// FINs that had to wait for bytes of a ring.
    pub late_ends: u64,
    pub given_up: u64,
    pub rescued: u64,
    pub killed: u64,
    pub brokers: u64,
    pub resets: u64,
    pub handed_over: u64,
    pub alone: u64,
}

impl Figures {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (sum, part) in self.words().into_iter().zip((*other).clone().words()) {
            *sum.1 += *part.1;
        }
    }

    /// With their names.
    pub fn words(&mut self) -> [(&'static str, &mut u64); 17] {
        [
            ("steps", &mut self.steps),
            ("channels", &mut self.paired),
            ("rings entered", &mut self.entered),
            ("bytes by rings", &mut self.ring_bytes),
            ("bytes by the kernel", &mut self.kernel_bytes),
            ("bytes sent back", &mut self.sent_back_bytes),
            ("ends that are not true", &mut self.stale_ends),
            ("short sends", &mut self.short_sends),
            ("short receives", &mut self.short_receives),
            (
                "ends behind bytes that were taken back",
                &mut self.late_ends,
            ),
            ("channels given up", &mut self.given_up),
            ("rescues", &mut self.rescued),
            ("processes killed", &mut self.killed),
            ("brokers ended", &mut self.brokers),
            ("resets seen", &mut self.resets),
            ("handed to unaware programs", &mut self.handed_over),
            ("ends that waited for the other in vain", &mut self.alone),
        ]
    }
}

/// A planned fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub at_step: u64,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug)]
pub enum FaultKind {
    /// The administrator asks for the kernel path.
    Ask,
    /// The broker dies; a new one comes after so many steps.
    BrokerDies(u64),
    /// The same when it has told one end of the next channel, and not the other.
    BrokerDiesAtPair(u64),
    BrokerComes,
    /// SIGSTOP and, after so many nanoseconds, SIGCONT.
    Stop(usize, u64),
    /// SIGKILL.
    Kill(usize),
    /// A forked child makes the next call: it goes to the kernel path for all.
    Fork(usize),
    /// No ring memory is left.
    Exhaust(usize),
    /// The weights change.
    Shuffle,
    /// A connection is made.
    Connect(usize),
}

/// See the module.
pub struct World {
    choices: RefCell<Choices>,
    pub now_ns: Cell<u64>,
    pub figures: RefCell<Figures>,
    pub failure: RefCell<Option<String>>,
    pub tracing: bool,
    /// One step in so many gives way.
    pub grain: u64,
    pub sockets: RefCell<Vec<Socket>>,
    pub processes: Vec<Process>,
    pub conns: Vec<Conn>,
    pub broker: RefCell<Broker>,
    tasks: RefCell<Vec<Option<Task>>>,
    faults: RefCell<Vec<Fault>>,
    pattern: Vec<u8>,
    running: Cell<&'static str>,
    broker_weight: Cell<u64>,
    network_weight: Cell<u64>,
    idle_steps: Cell<u32>,
    pub patience: Patience,
    /// Rises with whatever a program sees.
    pub progress: Cell<u64>,
}

impl World {
    pub fn new(mut choices: Choices, tracing: bool) -> Self {
        let plan = Plan::draw(&mut choices);
        let mut pattern = Vec::with_capacity(2 * PATTERN_BYTES);
        let mut source = Choices::of_seed(1);
        pattern.extend((0..PATTERN_BYTES).map(|_| source.below(256) as u8));
        pattern.extend_from_within(..);
        Self {
            now_ns: Cell::new(1),
            figures: RefCell::default(),
            failure: RefCell::default(),
            tracing,
            grain: plan.grain,
            sockets: RefCell::new(plan.sockets),
            processes: plan.processes,
            conns: plan.conns,
            broker: RefCell::new(Broker::new()),
            tasks: RefCell::default(),
            faults: RefCell::new(plan.faults),
            pattern,
            running: Cell::new("scheduler"),
            broker_weight: Cell::new(4),
            network_weight: Cell::new(8),
            idle_steps: Cell::new(0),
            patience: Patience::new(),
            progress: Cell::new(0),
            choices: RefCell::new(choices),
        }
    }

    /// A number below `count`.
    pub fn below(&self, count: u64) -> u64 {
        self.choices.borrow_mut().below(count)
    }

    /// Once in so many.
    pub fn once_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Bytes `[at, at + count)` of a stream; `count` is bounded.
    pub fn pattern(&self, stream: usize, at: u64, count: usize) -> &[u8] {
        let start = (at as usize + stream * 7919) % PATTERN_BYTES;
        &self.pattern[start..start + count]
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            let time = self.now_ns.get() / 1000;
            println!("{time:>9} us  {:<18} {}", self.running.get(), text());
        }
    }

    pub fn fail(&self, text: String) {
        self.trace(|| format!("FAILED: {text}"));
        self.failure.borrow_mut().get_or_insert(text);
    }

    pub fn spawn(
        &'static self,
        name: &'static str,
        process: usize,
        conn: usize,
        body: impl FnOnce(&Ctx<'_>) + 'static,
    ) {
        let mut tasks = self.tasks.borrow_mut();
        let coroutine = Coroutine::with_stack(take_stack(), move |yielder, ()| {
            body(&Ctx {
                world: self,
                yielder,
                process,
            });
        });
        tasks.push(Some(Task {
            name,
            process,
            conn,
            wait: Wait::Turn,
            weight: 1 + self.below(8),
            coroutine,
        }));
    }

    /// Runs to the end.
    pub fn run(&'static self) {
        for step in 0..STEPS_MAX {
            if self.failure.borrow().is_some() {
                return;
            }
            self.figures.borrow_mut().steps = step;
            self.strike(step);
            if !self.step() {
                return;
            }
        }
        self.fail(format!(
            "not over after {STEPS_MAX} steps: {}",
            self.waiting()
        ));
    }

    /// Carries out the faults that are due.
    fn strike(&'static self, step: u64) {
        loop {
            let due = {
                let mut faults = self.faults.borrow_mut();
                match faults.last() {
                    Some(fault) if fault.at_step <= step => faults.pop(),
                    _ => None,
                }
            };
            let Some(fault) = due else { return };
            self.trace(|| format!("fault: {:?}", fault.kind));
            self.idle_steps.set(0);
            match fault.kind {
                FaultKind::Ask => self.broker.borrow_mut().ask(self),
                FaultKind::BrokerDies(steps) => self.broker.borrow_mut().die(self, steps),
                FaultKind::BrokerDiesAtPair(steps) => {
                    self.broker.borrow_mut().die_at_pair(steps);
                }
                FaultKind::BrokerComes => self.broker.borrow_mut().come(self),
                FaultKind::Stop(process, time_ns) => {
                    let until = self.now_ns.get() + time_ns;
                    self.processes[process].stopped_until_ns.set(until);
                }
                FaultKind::Kill(process) => self.kill(process),
                FaultKind::Fork(conn) => self.conns[conn].forked.set(true),
                FaultKind::Exhaust(process) => self.processes[process].exhaust(),
                FaultKind::Shuffle => {
                    for task in self.tasks.borrow_mut().iter_mut().flatten() {
                        task.weight = [1, 1, 4, 40][self.below(4) as usize];
                    }
                    self.broker_weight.set([1, 4, 40][self.below(3) as usize]);
                    self.network_weight.set([1, 8, 80][self.below(3) as usize]);
                }
                FaultKind::Connect(number) => programs::connect(self, number),
            }
        }
    }

    /// A new broker comes after so many steps.
    pub fn plan_broker(&self, steps: u64) {
        let at_step = self.figures.borrow().steps + steps;
        self.figures.borrow_mut().brokers += 1;
        self.plan(at_step, FaultKind::BrokerComes);
    }

    fn plan(&self, at_step: u64, kind: FaultKind) {
        let mut faults = self.faults.borrow_mut();
        let place = faults.partition_point(|fault| fault.at_step >= at_step);
        faults.insert(place, Fault { at_step, kind });
    }

    fn kill(&'static self, process: usize) {
        if !self.processes[process].alive.get() {
            return;
        }
        self.figures.borrow_mut().killed += 1;
        self.processes[process].alive.set(false);
        for task in self.tasks.borrow_mut().iter_mut() {
            if task.as_ref().is_some_and(|task| task.process == process) {
                drop_task(task);
            }
        }
        programs::killed(self, process);
        self.broker.borrow_mut().gone(self, process);
    }

    /// One step of somebody; false when the run is over.
    fn step(&'static self) -> bool {
        let mut total = 0;
        let mut chosen = None;
        let mut offer = |weight: u64, actor: Actor| {
            total += weight;
            if self.below(total) < weight {
                chosen = Some(actor);
            }
        };
        for (index, task) in self.tasks.borrow().iter().enumerate() {
            if let Some(task) = task
                && self.can_run(task)
            {
                offer(task.weight, Actor::Task(index));
            }
        }
        {
            let sockets = self.sockets.borrow();
            for (index, socket) in sockets.iter().enumerate() {
                if socket.is_under_way(&sockets[socket.peer]) {
                    offer(self.network_weight.get(), Actor::Network(index));
                }
            }
        }
        if self.broker.borrow().has_work(self) {
            offer(self.broker_weight.get(), Actor::Broker);
        }
        match chosen {
            Some(Actor::Task(index)) => self.resume(index),
            Some(Actor::Network(index)) => self.deliver(index),
            Some(Actor::Broker) => {
                self.running.set("broker");
                self.broker.borrow_mut().step(self);
            }
            None => return self.pass_time(),
        }
        self.running.set("scheduler");
        true
    }

    fn can_run(&self, task: &Task) -> bool {
        let now = self.now_ns.get();
        if self.processes[task.process].stopped_until_ns.get() > now {
            return false;
        }
        match task.wait {
            Wait::Turn => true,
            Wait::Lock(word) => word.load(Ordering::Relaxed) == 0,
            Wait::Until(at) => at <= now,
            Wait::Sleep {
                socket,
                events,
                door,
                until_ns,
                ..
            } => {
                let always = (libc::POLLERR | libc::POLLHUP) as u32;
                let process = &self.processes[task.process];
                until_ns <= now
                    || self.sockets.borrow()[socket].shown() & (events | always) != 0
                    || door.is_some_and(|door| process.doors[door].get() != 0 || process.has_mail())
            }
            Wait::Ever => false,
        }
    }

    fn resume(&'static self, index: usize) {
        let mut task = self.tasks.borrow_mut()[index].take();
        if let Some(task) = &mut task {
            self.running.set(task.name);
            match task.coroutine.resume(()) {
                CoroutineResult::Yield(wait) => task.wait = wait,
                CoroutineResult::Return(()) => {
                    self.note_progress();
                    task.wait = Wait::Ever;
                }
            }
        }
        if let Some(task) = task.take_if(|task| task.coroutine.done()) {
            give_stack(task.coroutine.into_stack());
        }
        self.tasks.borrow_mut()[index] = task;
    }

    fn deliver(&self, index: usize) {
        self.running.set("network");
        let count = 1 + self.below(20_000) as usize;
        let mut sockets = self.sockets.borrow_mut();
        let peer = sockets[index].peer;
        let [from, to] = sockets
            .get_disjoint_mut([index, peer])
            .expect("two ends are two sockets");
        kernel::deliver(from, to, count);
        self.trace(|| format!("{index} -> {peer}"));
    }

    /// The broker has moved an end whose other end did not rejoin.
    pub fn note_alone(&self, message: &Outgoing) {
        if let Outgoing::Downgrade(ask) = message
            && ask.reason == Reason::Waiting as u32
        {
            self.figures.borrow_mut().alone += 1;
        }
    }

    /// Something that counts has happened.
    pub fn note_progress(&self) {
        self.progress.set(self.progress.get() + 1);
        self.idle_steps.set(0);
    }

    /// Nobody can run now: whose time comes next? False if all is over, or nothing comes.
    fn pass_time(&'static self) -> bool {
        let mut next = u64::MAX;
        let mut stopped = false;
        let mut left = 0;
        {
            let tasks = self.tasks.borrow();
            for task in tasks.iter().flatten() {
                left += 1;
                let until = self.processes[task.process].stopped_until_ns.get();
                if until > self.now_ns.get() {
                    stopped = true;
                    next = next.min(until);
                    continue;
                }
                match task.wait {
                    Wait::Until(at) => next = next.min(at),
                    Wait::Sleep { until_ns, .. } => next = next.min(until_ns),
                    _ => {}
                }
            }
            // A process that has not found the new broker yet does not know all doorbells.
            let orphaned = self.processes.iter().any(Process::is_orphaned);
            if !stopped && !orphaned {
                self.look_for_lost_wakeups(&tasks);
            }
        }
        if left != 0 {
            next = next.min(self.broker.borrow().next_ns().unwrap_or(u64::MAX));
        }
        let faults = self.faults.borrow().last().map(|fault| fault.at_step);
        if let Some(step) = faults
            && (next == u64::MAX || self.once_in(8))
        {
            // What is planned for later comes now.
            self.strike(step);
            return true;
        }
        if left == 0 {
            return false;
        }
        if next == u64::MAX {
            self.fail(format!("{left} tasks wait for ever: {}", self.waiting()));
            return false;
        }
        self.idle_steps.set(self.idle_steps.get() + 1);
        if self.idle_steps.get() > IDLE_STEPS_MAX {
            self.fail(format!("nothing but time goes on: {}", self.waiting()));
            return false;
        }
        self.now_ns.set(next);
        true
    }

    /// Nothing can run but by time: who sleeps in the library has nothing to wake for. Unless
    /// there is mail, whose reader waits for a time: whoever learns of a door knocks at it.
    fn look_for_lost_wakeups(&'static self, tasks: &[Option<Task>]) {
        let all_read = |process: &Process| process.mail.borrow().is_empty();
        if !self.processes.iter().all(all_read) {
            return;
        }
        for task in tasks.iter().flatten() {
            let Wait::Sleep {
                wants: Some(want),
                door: Some(_),
                ..
            } = task.wait
            else {
                continue;
            };
            let conn = &self.conns[task.conn];
            if conn.is_paired() && is_ready(&conn.silent(self), want) {
                let name = task.name;
                self.fail(format!(
                    "lost wake-up: {name} sleeps for {want:?}, which is there"
                ));
            }
        }
    }

    fn waiting(&self) -> String {
        let tasks = self.tasks.borrow();
        let texts = tasks.iter().flatten().map(|task| {
            let conn = &self.conns[task.conn];
            format!("{} {:?} ({})", task.name, task.wait, conn.describe())
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Frees what suspended tasks hold; the world may be dropped afterwards.
    pub fn end(&self) {
        for task in self.tasks.borrow_mut().iter_mut() {
            drop_task(task);
        }
    }
}

enum Actor {
    Task(usize),
    Network(usize),
    Broker,
}

/// Ends a task wherever it is: what it had locked stays locked, as with SIGKILL.
fn drop_task(task: &mut Option<Task>) {
    if let Some(mut task) = task.take() {
        if task.coroutine.started() && !task.coroutine.done() {
            // SAFETY: its frames own nothing: they hold references to the world, which
            // outlives them, and no allocation.
            unsafe { task.coroutine.force_reset() };
        }
        if task.coroutine.done() {
            give_stack(task.coroutine.into_stack());
        }
    }
}

/// A task's way to the world.
pub struct Ctx<'a> {
    pub world: &'static World,
    yielder: &'a Yielder<(), Wait>,
    pub process: usize,
}

impl Ctx<'_> {
    pub fn wait(&self, wait: Wait) {
        let name = self.world.running.get();
        self.yielder.suspend(wait);
        self.world.running.set(name);
        if self.world.failure.borrow().is_some() {
            self.yielder.suspend(Wait::Ever);
        }
    }

    /// Between two steps that others see: they may run here.
    pub fn point(&self) {
        if self.world.once_in(self.world.grain) {
            self.wait(Wait::Turn);
        }
    }

    /// The task's program computes.
    pub fn compute(&self, time_ns: u64) {
        self.wait(Wait::Until(self.world.now_ns.get() + time_ns));
    }

    /// Tells the tasks apart.
    pub fn id(&self) -> usize {
        std::ptr::from_ref(self.yielder).addr()
    }

    pub fn own_process(&self) -> &'static Process {
        &self.world.processes[self.process]
    }

    pub fn fail(&self, text: String) -> ! {
        self.world.fail(text);
        loop {
            self.yielder.suspend(Wait::Ever);
        }
    }
}
