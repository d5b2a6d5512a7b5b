//! Random kill -9 of clients, servers and workers, and restarts of the broker, while
//! transfers run whose every byte is compared. No surviving pair may lose or double one.
//!
//! The listening sockets are ours, so that a server that comes again is found where it
//! was. After the last kill the clients come to their end by themselves; whoever does not
//! hangs, which is a failure. A connection may be broken only if the process at its far
//! end was killed.

use crate::Storm;
use anyhow::{Result, ensure};
use fastrand::Rng;
use fordway_lab::proc;
use fordway_lab::{Output, Program, Stdin};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: usize = 3;
const SERVERS: usize = 2;
/// Between two kills: a random time up to this. It stands for nothing but chance.
const PAUSE_MS_MAX: u64 = 120;

/// What all programs together have said.
#[derive(Debug, Default)]
struct Said {
    transfers: u64,
    bytes: u64,
    /// Process ids of far ends.
    broken: Vec<(u64, String)>,
    wrong: Vec<String>,
    killed: BTreeSet<u64>,
    /// Whose they were, by process id.
    workers: BTreeMap<u64, String>,
}

impl Said {
    /// What a program has said; `who` is what it was.
    fn read(&mut self, who: &str, output: &Output) {
        for line in output.text().lines() {
            match line.split_once(' ') {
                Some(("ok", bytes)) => {
                    self.transfers += 1;
                    self.bytes += bytes.parse::<u64>().unwrap_or(0);
                }
                Some(("broken", rest)) => {
                    let peer = rest.split(' ').next().and_then(|pid| pid.parse().ok());
                    let text = format!("{who}: broken {rest}");
                    self.broken.push((peer.unwrap_or(0), text));
                }
                Some(("WRONG", _)) => self.wrong.push(format!("{who}: {line}")),
                Some(("worker", pid)) => {
                    self.workers
                        .insert(pid.parse().unwrap_or(0), who.to_owned());
                }
                _ => {}
            }
        }
        // The launcher says so when it meets no broker, whom we have just killed.
        let errors = output.errors();
        let own = |line: &&str| !line.starts_with("fordway: note: ");
        self.wrong
            .extend(errors.lines().filter(own).map(str::to_owned));
    }

    /// The workers of a server die with it.
    fn workers_died(&mut self, output: &Output) {
        let text = output.text();
        let workers = text.lines().filter_map(|line| line.strip_prefix("worker "));
        self.killed
            .extend(workers.filter_map(|pid| pid.parse::<u64>().ok()));
    }
}

struct Cast<'a> {
    storm: &'a mut Storm,
    listeners: Vec<(Arc<OwnedFd>, String)>,
    servers: Vec<Program>,
    clients: Vec<Program>,
    said: Said,
}

pub fn run(storm: &mut Storm) -> Result<()> {
    let (kills, restarts) = storm.scale.pick((60, 6), (1000, 100));
    let mut cast = Cast {
        listeners: Vec::new(),
        servers: Vec::new(),
        clients: Vec::new(),
        said: Said::default(),
        storm,
    };
    for _ in 0..SERVERS {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port().to_string();
        cast.listeners.push((Arc::new(listener.into()), port));
    }
    for index in 0..SERVERS {
        let server = cast.new_server(index)?;
        cast.servers.push(server);
    }
    for _ in 0..CLIENTS {
        let client = cast.new_client()?;
        cast.clients.push(client);
    }
    let mut counts = [0; 3];
    let mut dice = Rng::with_seed(kills);
    for number in 0..kills {
        std::thread::sleep(Duration::from_millis(dice.u64(..PAUSE_MS_MAX)));
        let kind = match dice.u8(..20) {
            0..10 => 0,
            10..17 => 1,
            _ => 2,
        };
        let died = match kind {
            0 => cast.kill_client(dice.usize(..CLIENTS))?,
            1 => cast.kill_worker(&mut dice),
            _ => cast.kill_server(dice.usize(..SERVERS))?,
        };
        counts[kind] += u64::from(died);
        if number % (kills / restarts) == 0 {
            let hard = dice.bool();
            cast.storm.lab.restart_broker(hard)?;
        }
    }
    let [clients, workers, servers] = counts;
    cast.storm.figure(
        "killed",
        format_args!("{clients} clients, {workers} workers, {servers} servers"),
    );
    cast.storm.figure("restarts of the broker", restarts);
    cast.end()
}

impl Cast<'_> {
    fn new_server(&self, index: usize) -> Result<Program> {
        let listener = self.listeners[index].0.clone();
        let spawn = self.storm.role(["server"]).stdin(Stdin::Socket(listener));
        self.storm.spawn(&spawn)
    }

    fn new_client(&self) -> Result<Program> {
        let ports = self.listeners.iter().map(|(_, port)| port.as_str());
        let words: Vec<&str> = ["client"].into_iter().chain(ports).collect();
        self.storm.spawn(&self.storm.role(words))
    }

    fn kill_client(&mut self, index: usize) -> Result<bool> {
        let fresh = self.new_client()?;
        let client = std::mem::replace(&mut self.clients[index], fresh);
        self.said.killed.insert(client.pid().into());
        kill(client.pid());
        let who = format!("client {}", client.pid());
        self.said.read(&who, &client.finish()?);
        Ok(true)
    }

    fn kill_worker(&mut self, dice: &mut Rng) -> bool {
        let server = &self.servers[dice.usize(..SERVERS)];
        let workers = &proc::tree(server.pid())[1..];
        let alive: Vec<_> = workers
            .iter()
            .filter(|worker| worker.state != 'Z')
            .collect();
        if alive.is_empty() {
            return false;
        }
        let worker = alive[dice.usize(..alive.len())];
        self.said.killed.insert(worker.pid.into());
        proc::signal(worker, Signal::KILL);
        true
    }

    fn kill_server(&mut self, index: usize) -> Result<bool> {
        kill(self.servers[index].pid());
        let fresh = self.new_server(index)?;
        let server = std::mem::replace(&mut self.servers[index], fresh);
        let who = format!("server {}", server.pid());
        let output = server.finish()?;
        self.said.workers_died(&output);
        self.said.read(&who, &output);
        Ok(true)
    }

    fn end(mut self) -> Result<()> {
        let storm = self.storm;
        for mut client in self.clients.drain(..) {
            drop(client.take_stdin());
            let who = format!("client {}, which lived", client.pid());
            self.said.read(&who, &client.finish()?.ok()?);
        }
        for server in self.servers.drain(..) {
            let who = format!("server {}, which lived", server.pid());
            self.said.read(&who, &server.stop()?);
        }
        let said = self.said;
        storm.figure(
            "transfers that came to their end",
            format_args!("{}, {} MB", said.transfers, said.bytes >> 20),
        );
        let by_death = |peer: u64| peer == 0 || said.killed.contains(&peer);
        let lost: Vec<_> = said
            .broken
            .iter()
            .filter(|(peer, _)| !by_death(*peer))
            .map(|(peer, text)| {
                format!("{text}; far end: a worker of {:?}", said.workers.get(peer))
            })
            .collect();
        storm.figure("broken by a death", said.broken.len() - lost.len());
        storm.figure("broken between two survivors", lost.len());
        storm.figure("wrong, lost or doubled bytes", said.wrong.len());
        storm.figure(
            "bytes through rings since the last restart",
            storm.lab.ring_bytes()?,
        );
        ensure!(said.wrong.is_empty(), "{:?}", said.wrong);
        ensure!(lost.is_empty(), "broken between two survivors: {lost:?}");
        ensure!(said.transfers > 0, "nothing was transferred");
        Ok(())
    }
}

fn kill(pid: u32) {
    if let Some(process) = proc::stat(pid) {
        proc::signal(&process, Signal::KILL);
    }
}
