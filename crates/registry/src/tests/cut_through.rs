//! Rings past the stacks.

use super::*;
use crate::{OfPair, of_inode};

/// Where a stack's pairs are made.
const STACKS: [u64; 2] = [91, 92];

/// The two ends of a pair: the program's, and its stack's, which says which connection it serves.
fn pair(number: u32, stack: u64, serves: &SocketFacts) -> (SocketFacts, SocketFacts) {
    let end = |cookie: u32, near, far| SocketFacts {
        protocol: Protocol::Unix,
        cookie: u64::from(cookie),
        netns_cookie: stack,
        local: of_inode(near),
        remote: of_inode(far),
        shown: Shown::default(),
    };
    let (program, mut own) = (
        end(5000 + number, number, number + 1),
        end(6000 + number, number + 1, number),
    );
    own.shown.serves = Some((serves.local, serves.remote));
    (program, own)
}

/// web and db with their stacks, and the ends of a connection of theirs.
struct Four {
    registry: Registry,
    programs: [ProcessId; 2],
    stacks: [ProcessId; 2],
    connection: [SocketFacts; 2],
    pairs: [(SocketFacts, SocketFacts); 2],
}

fn four() -> Four {
    let mut registry = registry();
    let mut process = |netns| registry.add_process(netns, PathPolicy::Auto).0;
    let programs = [WEB, DB].map(&mut process);
    let stacks = STACKS.map(&mut process);
    let (a, b) = ends(0);
    Four {
        registry,
        programs,
        stacks,
        connection: [a, b],
        pairs: [pair(10, STACKS[0], &a), pair(20, STACKS[1], &b)],
    }
}

impl Four {
    /// Offers both ends of a side's pair, and answers what links ask for; all that was said.
    fn offer_pair(&mut self, side: usize) -> Vec<Action> {
        let (program, own) = self.pairs[side];
        let mut actions = self.registry.offer(self.programs[side], 1, program);
        actions.extend(self.registry.offer(self.stacks[side], 1, own));
        self.answered(actions)
    }

    fn answered(&mut self, mut actions: Vec<Action>) -> Vec<Action> {
        for (process, link) in links(&actions) {
            let region = self.registry.region(process, link.link_id);
            actions.extend(region.expect("region").1);
        }
        actions
    }

    /// A program has left its channel, as it was asked.
    fn leave(&mut self, side: usize, channel_id: u64) {
        for process in [self.programs[side], self.stacks[side]] {
            let left = report(1, channel_id, status::KERNEL);
            self.registry.status(process, left).expect("status");
        }
    }
}

fn who(pairs: &[(ProcessId, control::Pair)]) -> Vec<(ProcessId, u32)> {
    let mut who: Vec<_> = pairs
        .iter()
        .map(|(to, pair)| (*to, pair.cuts_through))
        .collect();
    who.sort_unstable();
    who
}

#[test]
fn a_pair_has_its_own_channel_while_the_far_end_offers_nothing() {
    let mut f = four();
    let made = pairs(&f.offer_pair(0));
    assert_eq!(who(&made), [(f.programs[0], 0), (f.stacks[0], 0)]);
}

#[test]
fn two_programs_on_stacks_get_rings_past_both() {
    let mut f = four();
    let first = pairs(&f.offer_pair(0));
    let channel = first[0].1.channel_id;
    // The second one waits; the first is asked to leave its stack.
    let actions = f.offer_pair(1);
    assert_eq!(pairs(&actions), []);
    let asked = [f.programs[0], f.stacks[0]].map(|to| (to, channel, Reason::CutThrough));
    let mut told = downgrades(&actions);
    told.sort_unstable_by_key(|(to, ..)| *to);
    assert_eq!(told, asked);
    f.leave(0, channel);
    let actions = f.registry.offer(f.programs[0], 1, f.pairs[0].0);
    let actions = f.answered(actions);
    assert_eq!(
        who(&pairs(&actions)),
        f.programs.map(|program| (program, 1))
    );
    assert_eq!(f.registry.ends_past_stacks().count(), 2);
    // As it is paired, so the packet filter is asked about it.
    let both: Vec<_> = f.registry.channels_with_both_ends().collect();
    assert_eq!(both.len(), 1);
    for end in both[0].facts {
        assert_eq!(end.protocol, Protocol::Tcp);
    }
    // When that is over, each has its stack again.
    let [a, b] = f.programs;
    let channel = pairs(&actions)[0].1.channel_id;
    for process in [a, b] {
        let left = report(1, channel, status::KERNEL);
        f.registry.status(process, left).expect("status");
    }
    // Until then what they have carried is told of the connection.
    assert_eq!(f.registry.ends_past_stacks().count(), 2);
    let mut actions = f.registry.offer(f.stacks[0], 1, f.pairs[0].1);
    actions.extend(f.registry.offer(a, 1, f.pairs[0].0));
    assert_eq!(f.registry.ends_past_stacks().count(), 1);
    let actions = f.answered(actions);
    assert_eq!(who(&pairs(&actions)), [(a, 0), (f.stacks[0], 0)]);
}

#[test]
fn a_socket_of_the_kernels_and_a_program_on_a_stack_get_rings_past_it() {
    for kernel_first in [true, false] {
        let mut f = four();
        let kernels = f.connection[1];
        let mut left = None;
        if kernel_first {
            assert_eq!(f.registry.offer(f.programs[1], 7, kernels), []);
        } else {
            left = pairs(&f.offer_pair(0))
                .first()
                .map(|(_, pair)| pair.channel_id);
            let asked = f.registry.offer(f.programs[1], 7, kernels);
            assert_eq!(downgrades(&asked).len(), 2);
        }
        let actions = match left {
            None => f.offer_pair(0),
            Some(channel) => {
                f.leave(0, channel);
                let actions = f.registry.offer(f.programs[0], 1, f.pairs[0].0);
                f.answered(actions)
            }
        };
        let wanted = [(f.programs[0], 1), (f.programs[1], 0)];
        assert_eq!(who(&pairs(&actions)), wanted, "{kernel_first}");
    }
}

#[test]
fn what_the_filter_refuses_stays_with_the_stack() {
    let mut f = four();
    f.registry.offer(f.programs[1], 7, f.connection[1]);
    let (program, own) = f.pairs[0];
    f.registry.offer(f.programs[0], 1, program);
    let refuses = &mut |a: &SocketFacts, _: &SocketFacts, _| {
        (a.protocol == Protocol::Tcp).then_some(Reason::Filter)
    };
    let witness = &mut |_, _: &_| Ok(());
    let actions = f
        .registry
        .offer_through(f.stacks[0], 1, own, witness, refuses, &mut none);
    let told = rejects(&actions);
    assert_eq!(told, [(f.programs[1], Reason::Filter, 1)]);
    let actions = f.answered(actions);
    let made = pairs(&actions);
    assert_eq!(who(&made), [(f.programs[0], 0), (f.stacks[0], 0)]);
    // Other rules: the program is asked to leave its stack then.
    let allows = &mut |_: &SocketFacts, _: &SocketFacts, _| None;
    let actions = f
        .registry
        .retry_held_back(Reason::Filter, witness, allows, &mut none);
    assert_eq!(downgrades(&actions).len(), 2);
    f.leave(0, made[0].1.channel_id);
    let actions = f.registry.offer(f.programs[0], 1, program);
    let actions = f.answered(actions);
    let past = [(f.programs[0], 1), (f.programs[1], 0)];
    assert_eq!(who(&pairs(&actions)), past);
    // And rules that cut: the end of which the kernel knows nothing is broken off.
    let cut: Vec<_> = f.registry.channels_with_both_ends().collect();
    let told = downgrades(&f.registry.break_off_past_stacks(&cut));
    let told: Vec<_> = told.iter().map(|(to, _, why)| (*to, *why)).collect();
    assert_eq!(told, [(f.programs[0], Reason::Protocol)]);
}

/// One that waits for a far end with which it may not have rings goes back to its stack.
#[test]
fn who_waits_in_vain_has_its_stack() {
    let mut f = four();
    let channel = pairs(&f.offer_pair(0))[0].1.channel_id;
    // The second one waits for the first, which leaves its stack, and finds other rules.
    assert_eq!(pairs(&f.offer_pair(1)), []);
    f.leave(0, channel);
    let refuses = &mut |a: &SocketFacts, _: &SocketFacts, _| {
        (a.protocol == Protocol::Tcp).then_some(Reason::Filter)
    };
    let witness = &mut |_, _: &_| Ok(());
    let (program, _) = f.pairs[0];
    let actions = f
        .registry
        .offer_through(f.programs[0], 1, program, witness, refuses, &mut none);
    let actions = f.answered(actions);
    assert_eq!(
        who(&pairs(&actions)),
        [(f.programs[1], 0), (f.stacks[1], 0)]
    );
}

/// A stack says what it serves; it is believed about its own domain's address, and about loopback.
#[test]
fn a_stack_speaks_for_its_domain_alone() {
    let mut f = four();
    // db's connection, told of by web's stack for web's program.
    f.pairs[0] = pair(10, STACKS[0], &f.connection[1]);
    f.registry.offer(f.programs[0], 7, f.connection[0]);
    let made = pairs(&f.offer_pair(0));
    assert_eq!(who(&made), [(f.programs[0], 0), (f.stacks[0], 0)]);
    // Both ends at one stack, over its loopback: not to be taken for the kernel's loopback.
    let mut f = four();
    let name = |name: &str| name.parse().expect("a name");
    let [mut a, mut b] = f.connection;
    (a.local, a.remote) = (name("127.0.0.1:5000"), name("127.0.0.1:6000"));
    (b.local, b.remote) = (a.remote, a.local);
    b.netns_cookie = WEB;
    f.registry.offer(f.programs[0], 7, b);
    f.pairs = [pair(10, STACKS[0], &a), pair(20, STACKS[0], &b)];
    let made = pairs(&f.offer_pair(0));
    assert_eq!(who(&made), [(f.programs[0], 0), (f.stacks[0], 0)]);
    let (program, own) = f.pairs[1];
    let mut actions = f.registry.offer(f.programs[0], 2, program);
    actions.extend(f.registry.offer(f.stacks[0], 2, own));
    assert_eq!(downgrades(&actions).len(), 2);
}

#[test]
fn an_end_past_a_stack_is_shown_as_it_was_offered() {
    let (offered, _) = pair(10, STACKS[0], &ends(0).0);
    let mut past = ends(0).0;
    past.cookie = offered.cookie;
    past.shown.pair = Some(OfPair {
        netns_cookie: offered.netns_cookie,
        local: offered.local,
        remote: offered.remote,
    });
    assert_eq!(past.as_offered(), offered);
}
