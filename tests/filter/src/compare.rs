//! One case on both sides, what differs, and the smallest case that still differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fordway_filter::rules::{Expr, Rules};
use fordway_filter::unknown_in;

use crate::generate::{self, Case, Kind, Side};
use crate::kernel::{
    Arrivals, BATCH, Counters, Lab, MAC_A, MAC_B, MAC_C, MAC_D, dropped_by_cpus, end_of_batch,
};
use crate::packets::Ip;
use crate::router::Router;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub rulesets: usize,
    pub packets: usize,
    /// Packets that came out or were taken.
    pub arrived: usize,
    /// Rulesets that nft refused.
    pub refused: usize,
    /// Rulesets with NAT that differed in one run, and not when they were played again: see
    /// [`is_chance`].
    pub by_chance: usize,
    /// Packets of which the two sides agree but for a source port that NAT gave at random: see
    /// [`is_alike`].
    pub ports_by_chance: usize,
    /// Each shrunk.
    pub differences: Vec<Difference>,
}

/// Of so many rulesets one may differ by chance, and of so many packets that arrived one may
/// have another source port; one of each in any case.
const RULESETS_FOR_CHANCE: usize = 500;
const PACKETS_FOR_CHANCE: usize = 1000;

impl Tally {
    /// Adds what another run came to.
    pub fn add(&mut self, other: Tally) {
        self.rulesets += other.rulesets;
        self.packets += other.packets;
        self.arrived += other.arrived;
        self.refused += other.refused;
        self.by_chance += other.by_chance;
        self.ports_by_chance += other.ports_by_chance;
        self.differences.extend(other.differences);
    }

    /// Whether chance excuses more than it can have done.
    pub fn excuses_too_much(&self) -> bool {
        self.by_chance > 1 + self.rulesets / RULESETS_FOR_CHANCE
            || self.ports_by_chance > 1 + self.arrived / PACKETS_FOR_CHANCE
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rulesets ({} refused), {} packets ({} arrived), {} differ; by chance {} rulesets, {} source ports",
            self.rulesets,
            self.refused,
            self.packets,
            self.arrived,
            self.differences.len(),
            self.by_chance,
            self.ports_by_chance,
        )
    }
}

/// What two sides came to that agree.
#[derive(Clone, Copy, Debug, Default)]
struct Agreed {
    /// Packets.
    arrived: usize,
    /// Those of them with a source port by chance.
    ports_by_chance: usize,
}

/// `None` if nft refuses the rules; or what differs.
type Outcome = Result<Option<Agreed>, String>;

/// What the two sides do not agree about.
#[derive(Clone, Debug)]
pub struct Difference {
    pub seed: u64,
    pub ruleset: u64,
    pub case: Case,
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, ruleset {}:", self.seed, self.ruleset)?;
        writeln!(f, "{}\n{}", self.what, self.case.text())?;
        for packet in &self.case.packets {
            writeln!(f, "{packet:?}")?;
        }
        Ok(())
    }
}

/// Runs rulesets of a series: not so many that the kernel's table of connections is full.
/// Each kind has a namespace of its own: the kernel goes on reassembling fragments for a
/// while after the last rule that tracks connections is gone.
pub fn run(seed: u64, rulesets: std::ops::Range<u64>, packets: usize) -> Result<Tally> {
    let mut tally = Tally::default();
    for kind in [Kind::Routed, Kind::Tracked, Kind::Bridged] {
        let ns = fordway_platform::netns::anonymous()?;
        let range = rulesets.clone();
        let part = fordway_platform::netns::within(std::os::fd::AsFd::as_fd(&ns), move || {
            stay_on_one_cpu()?;
            let lab = Lab::new(kind == Kind::Bridged)?;
            run_in(&lab, kind, seed, range, packets)
        })??;
        tally.add(part);
    }
    Ok(tally)
}

fn stay_on_one_cpu() -> Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &cpus)?;
    Ok(())
}

fn run_in(
    lab: &Lab,
    kind: Kind,
    seed: u64,
    rulesets: std::ops::Range<u64>,
    packets: usize,
) -> Result<Tally> {
    let mut tally = Tally::default();
    // A lab in which frames were lost may have some that come late.
    let mut sound = true;
    for number in rulesets {
        let case = generate::case(seed, number, packets);
        if case.kind != kind {
            continue;
        }
        let bridged = kind == Kind::Bridged;
        tally.rulesets += 1;
        tally.packets += case.packets.len();
        let outcome = match sound {
            true => undisturbed(|| case_differs(lab, &case))?,
            false => None,
        };
        sound &= outcome.is_some();
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => afresh(|| case_differs(&Lab::new(bridged)?, &case))
                .with_context(|| format!("ruleset {number}"))?,
        };
        match outcome {
            Ok(Some(agreed)) => {
                tally.arrived += agreed.arrived;
                tally.ports_by_chance += agreed.ports_by_chance;
            }
            Ok(None) => tally.refused += 1,
            Err(_) if is_chance(&case)? => tally.by_chance += 1,
            Err(what) => {
                let (case, what) = shrink(lab, case.clone(), what)?;
                tally.differences.push(Difference {
                    seed,
                    ruleset: number,
                    case,
                    what,
                });
            }
        }
    }
    Ok(tally)
}

/// Whether a difference was the kernel's dice. Where two flows would have the same names, it
/// gives one of them a port at random (`nf_nat_l4proto_unique_tuple`), of a low port another one
/// below 512; a later packet to just that port then is an answer to that flow. Seen with one
/// ruleset of some thousand, and with none of them twice.
fn is_chance(case: &Case) -> Result<bool> {
    let chains = case.chains.iter();
    let mut bases = chains.filter_map(|chain| chain.base.as_ref());
    if !bases.any(|base| base.is_nat) {
        return Ok(false);
    }
    for _ in 0..REPLAYS {
        if afresh(|| case_differs(&Lab::new(false)?, case))?.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_nat(rules: &Rules) -> bool {
    let mut exprs = rules.ids().flat_map(|(_, rule)| &rule.exprs);
    exprs.any(|expr| matches!(expr, Expr::Nat(_)))
}

/// Runs without a difference until it was chance.
const REPLAYS: usize = 3;

/// Tries in which the host may lose frames.
const TRIES_MAX: usize = 10;

/// In a namespace of its own, until the host has lost nothing.
fn afresh(run: impl Fn() -> Result<Outcome> + Sync) -> Result<Outcome> {
    for _ in 0..TRIES_MAX {
        let ns = fordway_platform::netns::anonymous()?;
        let outcome = fordway_platform::netns::within(std::os::fd::AsFd::as_fd(&ns), || {
            stay_on_one_cpu()?;
            undisturbed(&run)
        })??;
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
    }
    bail!("the host drops frames all the time")
}

/// `None` if the host's CPUs have dropped frames meanwhile: somebody floods their queues.
fn undisturbed(run: impl FnOnce() -> Result<Outcome>) -> Result<Option<Outcome>> {
    let before = dropped_by_cpus()?;
    let outcome = run();
    match dropped_by_cpus()? == before {
        true => outcome.map(Some),
        false => Ok(None),
    }
}

fn case_differs(lab: &Lab, case: &Case) -> Result<Outcome> {
    let bridged = case.kind == Kind::Bridged;
    differs(lab, bridged, &case.text(), &case.packets)
}

/// Rules that were written, with packets, in a routing namespace of their own: what the two
/// sides do not agree about.
pub fn written(rules: &str, packets: &[(Side, Ip, Vec<u16>)]) -> Result<Option<String>> {
    let outcome = afresh(|| differs(&Lab::new(false)?, false, rules, packets))?;
    match outcome {
        Ok(Some(_)) => Ok(None),
        Ok(None) => bail!("nft refuses the rules"),
        Err(what) => Ok(Some(what)),
    }
}

/// What they came to. The filter has the rules as the kernel has them.
fn differs(
    lab: &Lab,
    bridged: bool,
    text: &str,
    packets: &[(Side, Ip, Vec<u16>)],
) -> Result<Outcome> {
    if !lab.load(text)? {
        return Ok(Ok(None));
    }
    let rules = lab.rules()?;
    if let Some(what) = unknown_in(&rules).first() {
        return Ok(Err(format!("the filter does not know {what}")));
    }
    let has_nat = has_nat(&rules);
    let mut router = Router::new(bridged);
    router.filter.replace(rules, 1, 1);
    let frames: Vec<(Side, Vec<u8>)> = packets
        .iter()
        .map(|(side, ip, tags)| {
            let (to, from) = match (side, bridged) {
                (Side::Left, false) => (MAC_B, MAC_A),
                (Side::Right, false) => (MAC_C, MAC_D),
                (Side::Left, true) => (MAC_D, MAC_A),
                (Side::Right, true) => (MAC_A, MAC_D),
            };
            (*side, ip.frame(to, from, tags))
        })
        .collect();
    let mut theirs = lab.send(&frames)?;
    let their_counters = lab.read(&mut theirs)?;
    let mut ours = Arrivals::default();
    for (frames, packets) in frames.chunks(BATCH).zip(packets.chunks(BATCH)) {
        for ((side, frame), (_, ip, _)) in frames.iter().zip(packets) {
            router.take(*side, ip.id, frame, &mut ours);
        }
        for side in [Side::Left, Side::Right] {
            router.take(side, 0, &end_of_batch(), &mut Arrivals::default());
        }
    }
    // Of those that a NAT rule may have translated.
    let sent: Sent = match has_nat {
        true => packets
            .iter()
            .map(|(_, ip, _)| (ip.id, names(&ip.frame(MAC_A, MAC_B, &[])[ETHERNET..])))
            .collect(),
        false => Sent::new(),
    };
    let ports_by_chance = match difference(&ours, &theirs, &sent) {
        Ok(count) => count,
        Err(difference) => return Ok(Err(difference)),
    };
    let our_counters = counters(&router);
    for (chain, ours) in &our_counters {
        let theirs = their_counters.get(chain).cloned().unwrap_or_default();
        if *ours != theirs {
            return Ok(Err(format!(
                "counters of {chain}: ours {ours:?}, kernel {theirs:?}"
            )));
        }
    }
    Ok(Ok(Some(Agreed {
        arrived: ours.left.len() + ours.right.len() + ours.local.len(),
        ports_by_chance,
    })))
}

const ETHERNET: usize = 14;

/// The names of packets before any rule, by their numbers.
type Sent = BTreeMap<u16, Option<Names>>;

/// How many source ports are another one's by chance, or what differs.
fn difference(ours: &Arrivals, theirs: &Arrivals, sent: &Sent) -> Result<usize, String> {
    if ours.local != theirs.local {
        return Err(format!(
            "taken: ours {:?}, kernel {:?}",
            ours.local, theirs.local
        ));
    }
    let mut by_chance = 0;
    for (name, ours, theirs) in [
        ("left", &ours.left, &theirs.left),
        ("right", &ours.right, &theirs.right),
    ] {
        let ids: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        for id in ids {
            match (ours.get(id), theirs.get(id)) {
                (Some(a), Some(b)) if a == b => {}
                (Some(a), Some(b)) if is_alike(a, b, sent.get(id)) => by_chance += 1,
                (Some(a), Some(b)) => {
                    return Err(format!(
                        "packet {id} {name}:\nours   {a:02x?}\nkernel {b:02x?}"
                    ));
                }
                (Some(_), None) => return Err(format!("packet {id} comes out {name} here only")),
                (None, _) => {
                    return Err(format!("packet {id} comes out {name} of the kernel only"));
                }
            }
        }
    }
    Ok(by_chance)
}

/// Whether two packets differ in nothing but a source port that NAT gave: both were translated,
/// and what they were sent as has a source port. `sent`: `None` where no rule translates.
fn is_alike(a: &[u8], b: &[u8], sent: Option<&Option<Names>>) -> bool {
    let Some(Some(sent)) = sent else {
        return false;
    };
    let translated = |packet| names(packet).is_some_and(|names| names != *sent);
    let (plain_a, plain_b) = (without_source_port(a), without_source_port(b));
    translated(a) && translated(b) && plain_a.is_some() && plain_a == plain_b
}

/// Addresses, and source and destination port (of ICMP, the identifier).
type Names = (Vec<u8>, [u8; 4]);

fn names(packet: &[u8]) -> Option<Names> {
    let six = packet.first()? >> 4 == 6;
    let (protocol, at) = transport(packet)?;
    let (port, _) = port_and_sum(protocol)?;
    let addresses = if six { 8..40 } else { 12..20 };
    let ports = packet.get(at + port..at + port + 4)?;
    Some((packet.get(addresses)?.to_vec(), ports.try_into().ok()?))
}

/// The protocol, and where its header begins.
fn transport(packet: &[u8]) -> Option<(u8, usize)> {
    let six = packet.first()? >> 4 == 6;
    Some(match (six, packet.get(6)) {
        (true, Some(60)) => (*packet.get(40)?, 48),
        (true, Some(protocol)) => (*protocol, 40),
        _ => (*packet.get(9)?, usize::from(packet[0] & 15) * 4),
    })
}

/// Where a protocol's header has the source port and the sum.
fn port_and_sum(protocol: u8) -> Option<(usize, usize)> {
    match protocol {
        6 => Some((0, 16)),
        17 => Some((0, 6)),
        1 | 58 => Some((4, 2)),
        _ => None,
    }
}

/// Where two flows would have the same names, NAT gives one of them a source port (of
/// ICMP, an identifier) at random: the packet without it and without the sum over it.
fn without_source_port(packet: &[u8]) -> Option<Vec<u8>> {
    let (protocol, at) = transport(packet)?;
    let (port, sum) = port_and_sum(protocol)?;
    let mut packet = packet.to_vec();
    for place in [port, sum] {
        packet.get_mut(at + place..at + place + 2)?.fill(0);
    }
    Some(packet)
}

fn counters(router: &Router) -> Counters {
    let filter = &router.filter;
    let mut counters = Counters::new();
    for chain in filter.rules().tables.iter().flat_map(|table| &table.chains) {
        counters.entry(chain.name.clone()).or_default();
    }
    for (id, _) in filter.rules().ids() {
        if let Some((_, chain, _)) = filter.place(id) {
            let counted = filter
                .counts(id)
                .map(|counter| (counter.packets, counter.bytes));
            let of_chain = counters.entry(chain.name.clone()).or_default();
            of_chain.extend(counted);
        }
    }
    counters
}

/// How long a case is made smaller. Each try of a case that tracks connections needs a
/// namespace of its own, and the kernel takes its time to make one and to end it.
const SHRINK_LIMIT: Duration = Duration::from_secs(120);

/// Takes away what can be taken away while the two sides still differ.
fn shrink(lab: &Lab, mut case: Case, seen: String) -> Result<(Case, String)> {
    let bridged = case.kind == Kind::Bridged;
    let shows = |case: &Case| -> Result<Option<String>> {
        // Where connections are tracked, the flows of the try before would matter.
        if case.kind != Kind::Tracked
            && let Some(outcome) = undisturbed(|| case_differs(lab, case))?
        {
            return Ok(outcome.err());
        }
        Ok(afresh(|| case_differs(&Lab::new(bridged)?, case))?.err())
    };
    eprintln!("a difference is made smaller, for {SHRINK_LIMIT:?} at most: {seen}");
    let until = Instant::now() + SHRINK_LIMIT;
    let mut what = format!("(seen once, not again) {seen}");
    loop {
        let mut smaller = None;
        for candidate in candidates(&case) {
            if Instant::now() > until {
                return Ok((case, format!("(not made as small as can be) {what}")));
            }
            if let Some(difference) = shows(&candidate)? {
                smaller = Some((candidate, difference));
                break;
            }
        }
        match smaller {
            Some((candidate, difference)) => (case, what) = (candidate, difference),
            None => {
                if let Some(difference) = shows(&case)? {
                    what = difference;
                }
                return Ok((case, what));
            }
        }
    }
}

fn candidates(case: &Case) -> Vec<Case> {
    let mut made = Vec::new();
    let count = case.packets.len();
    let halves = std::iter::successors(Some(count / 2), |half| Some(half / 2));
    for half in halves.take_while(|half| *half > 0) {
        for from in (0..count).step_by(half) {
            let mut less = case.clone();
            less.packets.drain(from..(from + half).min(count));
            made.push(less);
        }
    }
    for at in 0..case.chains.len() {
        let mut less = case.clone();
        less.chains.remove(at);
        made.push(less);
        for rule in 0..case.chains[at].rules.len() {
            let mut less = case.clone();
            less.chains[at].rules.remove(rule);
            made.push(less);
        }
    }
    for at in 0..case.sets.len() {
        let mut less = case.clone();
        less.sets.remove(at);
        made.push(less);
    }
    for (at, chain) in case.chains.iter().enumerate() {
        for (rule, parts) in chain.rules.iter().enumerate() {
            for part in 0..parts.0.len() {
                if parts.0.len() > 1 {
                    let mut less = case.clone();
                    less.chains[at].rules[rule].0.remove(part);
                    made.push(less);
                }
            }
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP from 10.0.0.1 (or another one) to 10.0.0.2.
    fn packet(from: u8, port: u16, sum: u16) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[9] = 17;
        packet[12..20].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, 2]);
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[22..24].copy_from_slice(&53u16.to_be_bytes());
        packet[26..28].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn only_what_nat_has_translated_may_have_another_source_port() {
        let sent = names(&packet(1, 4000, 1));
        let (a, b) = (packet(9, 5000, 7), packet(9, 6000, 8));
        assert!(is_alike(&a, &b, Some(&sent)));
        // No rule translates.
        assert!(!is_alike(&a, &b, None));
        // One of the two is as it was sent; and both are, but for a sum.
        assert!(!is_alike(
            &packet(1, 4000, 1),
            &packet(1, 6000, 8),
            Some(&sent)
        ));
        assert!(!is_alike(
            &packet(1, 4000, 1),
            &packet(1, 4000, 2),
            Some(&sent)
        ));
        // Another address is no chance.
        assert!(!is_alike(&a, &packet(8, 6000, 8), Some(&sent)));
    }

    #[test]
    fn chance_has_a_bound() {
        let mut tally = Tally {
            rulesets: 1,
            arrived: PACKETS_FOR_CHANCE,
            by_chance: 1,
            ports_by_chance: 2,
            ..Tally::default()
        };
        assert!(!tally.excuses_too_much());
        tally.ports_by_chance += 1;
        assert!(tally.excuses_too_much());
        (tally.ports_by_chance, tally.by_chance) = (0, 2);
        assert!(tally.excuses_too_much());
    }
}
