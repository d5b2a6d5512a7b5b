//! Carries a program out, for whoever answers its questions ([`Mode`]).
//!
//! There are two: a packet ([`crate::live`]), and a connection of which only some bits are
//! known ([`crate::question`]). So every value is loaded together with the bits of it that
//! are known; of a packet that is all of them, and the compiler removes what follows from
//! it. A comparison that the known bits cannot decide ends the run with the reason.

mod each_packet;
mod facts;

pub use each_packet::EachPacket;
pub(crate) use facts::Facts;

use crate::program::{
    BaseCode, Bitop, ChainCode, FieldCode, HashCode, Insn, KeyCode, Load, MangleCode, MetaKey,
    NatCode, NumgenCode, Program, RejectCode, RuleCode, RuleId, Term, Test, UpdateCode,
    VerdictCode, low_bits, number,
};
use crate::rules::PayloadBase;
use crate::sets::{Data, FIELDS_MAX, Form, Index, Key, SetStore, pack_wide};

/// Values that one rule may look up ([`Insn::Map`]).
pub(crate) const MAPPED_MAX: usize = 4;
/// Chains that may wait for others to return (linux: NFT_JUMP_STACK_SIZE).
const JUMP_DEPTH_MAX: usize = 16;

/// What a rule has looked up: which map led to which slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    slots: [(u32, u32); MAPPED_MAX],
    count: usize,
}

impl Mapped {
    fn note(&mut self, map: u32, slot: u32) {
        // A rule that is met again looks up anew.
        let mut noted = self.slots[..self.count.min(MAPPED_MAX)].iter();
        let at = noted.position(|(known, _)| *known == map);
        let at = at.unwrap_or_else(|| {
            self.count += 1;
            (self.count - 1) % MAPPED_MAX
        });
        self.slots[at] = (map, slot);
    }

    /// Only behind the instruction that notes it, in the same rule.
    fn slot(&self, map: u32) -> Option<u32> {
        let found = self.slots.iter().find(|(known, _)| *known == map);
        found.map(|(_, slot)| *slot).filter(|_| self.count != 0)
    }
}

/// A value and which of its bits are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen<T> {
    pub value: T,
    pub known: T,
}

pub(crate) type Number = Seen<u128>;

impl Number {
    #[inline]
    pub(crate) fn known(value: u128) -> Number {
        Seen {
            value,
            known: u128::MAX,
        }
    }

    pub(crate) fn unknown() -> Number {
        Seen { value: 0, known: 0 }
    }
}

/// What an instruction does to its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Go,
    /// The rule does not match.
    Break,
    Verdict(VerdictCode),
    End(End),
}

/// How a base chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Accept,
    Drop,
    Reject(RejectCode),
    EachPacket(EachPacket),
}

/// Answers a program's questions and takes its effects.
pub(crate) trait Mode {
    /// Some answers are not known.
    const IS_PARTLY_KNOWN: bool;
    /// A rule that a guard denies is passed over, also where something that is not known stands before the guard's question: it does
    /// not match, whatever that is. Who asks why a rule cannot be decided wants to know what stands first.
    const HEEDS_ALL_GUARDS: bool = !Self::IS_PARTLY_KNOWN;

    /// Up to eight bytes. `None`: the rule does not match.
    fn payload(&self, base: PayloadBase, offset: u16, len: u8) -> Option<Seen<u64>>;
    fn nfproto(&self) -> u8;
    fn l4proto(&self) -> Option<u8>;
    /// Any load but those that the program itself does (data of maps, hashes, constants).
    fn load(&mut self, load: &Load) -> Option<Number>;
    fn numgen(&mut self, at: u32, code: &NumgenCode) -> Number;

    fn mapped(&mut self) -> &mut Mapped;
    fn set(&self, at: u32) -> &SetStore;
    fn now_ns(&self) -> u64;
    /// Why no lookup in this set can be decided, if none can.
    #[inline]
    fn undecided(&self, _program: &Program, _set: u32) -> Option<Next> {
        None
    }
    /// An element was found that carries statements.
    fn hit(&mut self, set: u32, slot: u32) -> Next;
    fn counter(&mut self, at: u32);
    fn limit(&mut self, at: u32) -> Next;
    fn quota(&mut self, at: u32) -> Next;
    fn conn_limit(&mut self, at: u32) -> Next;
    fn log(&mut self, at: u32, rule: RuleId) -> Next;
    fn nat(&mut self, program: &Program, code: &NatCode) -> Next;
    fn update(&mut self, program: &Program, code: &UpdateCode) -> Next;
    fn mangle(&mut self, program: &Program, code: &MangleCode) -> Next;
    fn notrack(&mut self) -> Next;
    /// A rule was carried out to its end.
    fn passed(&mut self, rule: RuleId, next: Next);
}

/// A lookup that could not be decided, or what it found.
type Found = Result<Option<u32>, Next>;

/// Runs a base chain; with the rule that ended it, or the chain itself for its policy.
pub(crate) fn run<M: Mode>(
    program: &Program,
    mode: &mut M,
    facts: &mut Facts,
    base: &BaseCode,
) -> (End, RuleId) {
    let policy = if base.drops { End::Drop } else { End::Accept };
    let mut stack = [ChainCode::default(); JUMP_DEPTH_MAX];
    let mut depth = 0;
    let mut at = program.chains[base.chain as usize];
    facts.forget();
    loop {
        let Some((rule, answered)) = facts.next_rule(program, mode, &mut at) else {
            if depth == 0 {
                return (policy, base.id);
            }
            depth -= 1;
            at = stack[depth];
            continue;
        };
        let (next, id) = run_rule(program, mode, rule, answered);
        if program.writes {
            facts.forget();
        }
        match next {
            Next::Go | Next::Break | Next::Verdict(VerdictCode::Continue) => {}
            Next::Verdict(VerdictCode::Accept) => return (End::Accept, id),
            Next::Verdict(VerdictCode::Drop) => return (End::Drop, id),
            Next::Verdict(VerdictCode::Return) => {
                if depth == 0 {
                    return (policy, base.id);
                }
                depth -= 1;
                at = stack[depth];
            }
            Next::Verdict(VerdictCode::Goto(chain)) => at = program.chains[chain as usize],
            Next::Verdict(VerdictCode::Jump(chain)) => {
                // The kernel refuses deeper jumps; a full stack would still fail closed.
                let Some(place) = stack.get_mut(depth) else {
                    return (End::Drop, id);
                };
                *place = at;
                depth += 1;
                at = program.chains[chain as usize];
            }
            Next::End(end) => return (end, id),
        }
    }
}

#[inline]
fn run_rule<M: Mode>(
    program: &Program,
    mode: &mut M,
    rule: &RuleCode,
    answered: u32,
) -> (Next, RuleId) {
    let mut rule = rule;
    let mut insns = &program.insns[(rule.start + answered) as usize..rule.end as usize];
    while let Some((insn, rest)) = insns.split_first() {
        insns = rest;
        let next = match insn {
            Insn::Payload {
                base,
                len,
                negate,
                offset,
                mask,
                want,
            } => match mode.payload(*base, *offset, *len) {
                None => Next::Break,
                Some(seen) => {
                    let differ = (seen.value ^ want) & mask;
                    if differ & seen.known != 0 {
                        if *negate { Next::Go } else { Next::Break }
                    } else if mask & !seen.known != 0 {
                        Next::End(End::EachPacket(EachPacket::Payload))
                    } else if *negate {
                        Next::Break
                    } else {
                        Next::Go
                    }
                }
            },
            Insn::Nfproto(want) => go_if(mode.nfproto() == *want),
            Insn::L4proto(want) => go_if(mode.l4proto() == Some(*want)),
            Insn::Run(at) => {
                let run = &program.runs[*at as usize];
                match find(program, mode, &run.key, &run.index) {
                    Ok(None) => Next::Break,
                    Ok(Some(body)) => {
                        rule = &program.bodies[body as usize];
                        insns = &program.insns[rule.start as usize..rule.end as usize];
                        Next::Go
                    }
                    Err(next) => next,
                }
            }
            Insn::Counter(at) => {
                mode.counter(*at);
                Next::Go
            }
            Insn::Verdict(verdict) => Next::Verdict(*verdict),
            other => slow(program, mode, other, rule.id),
        };
        match next {
            Next::Go => {}
            Next::Break => return (Next::Break, rule.id),
            other => {
                mode.passed(rule.id, other);
                return (other, rule.id);
            }
        }
    }
    mode.passed(rule.id, Next::Go);
    (Next::Go, rule.id)
}

#[inline]
fn go_if(holds: bool) -> Next {
    if holds { Next::Go } else { Next::Break }
}

/// What is asked less, apart: it would cost the others registers.
#[inline(never)]
fn slow<M: Mode>(program: &Program, mode: &mut M, insn: &Insn, rule: RuleId) -> Next {
    match *insn {
        Insn::Test { term, test } => {
            let term = &program.terms[term as usize];
            match load(program, mode, term) {
                Ok(Some(seen)) => decide(&program.tests[test as usize], seen, term),
                Ok(None) => Next::Break,
                Err(next) => next,
            }
        }
        Insn::Lookup { key, set, negate } => {
            match find_element(program, mode, &program.keys[key as usize], set) {
                Ok(Some(slot)) if !negate => hit(mode, set, slot),
                Ok(found) => go_if(found.is_none() == negate),
                Err(next) => next,
            }
        }
        Insn::VerdictMap { key, set } => {
            match find_element(program, mode, &program.keys[key as usize], set) {
                Ok(Some(slot)) => {
                    let data = mode.set(set).element(slot).map(|e| &e.data);
                    let verdict = match data {
                        Some(Data::Verdict(verdict)) => *verdict,
                        _ => VerdictCode::Continue,
                    };
                    match hit(mode, set, slot) {
                        // A verdict map always has its say, even «continue».
                        Next::Go if verdict == VerdictCode::Continue => Next::Go,
                        Next::Go => Next::Verdict(verdict),
                        other => other,
                    }
                }
                Ok(None) => Next::Break,
                Err(next) => next,
            }
        }
        Insn::ObjectMap { key, set } => {
            match find_element(program, mode, &program.keys[key as usize], set) {
                Ok(Some(slot)) => match mode.set(set).element(slot).map(|e| &e.data) {
                    Some(Data::Object(insn)) => object(mode, *insn),
                    _ => Next::Break,
                },
                Ok(None) => Next::Break,
                Err(next) => next,
            }
        }
        Insn::Map(map) => {
            let (key, set) = program.maps[map as usize];
            match find_element(program, mode, &program.keys[key as usize], set) {
                Ok(Some(slot)) => {
                    mode.mapped().note(map, slot);
                    hit(mode, set, slot)
                }
                Ok(None) => Next::Break,
                Err(next) => next,
            }
        }
        Insn::Unknown => Next::End(End::EachPacket(EachPacket::Unknown)),
        Insn::Limit(at) => mode.limit(at),
        Insn::Quota(at) => mode.quota(at),
        Insn::ConnLimit(at) => mode.conn_limit(at),
        Insn::Log(at) => mode.log(at, rule),
        Insn::Nat(at) => mode.nat(program, &program.nats[at as usize]),
        Insn::Update(at) => mode.update(program, &program.updates[at as usize]),
        Insn::Mangle(at) => mode.mangle(program, &program.mangles[at as usize]),
        Insn::Notrack => mode.notrack(),
        Insn::Reject(code) => Next::End(End::Reject(code)),
        Insn::Payload { .. }
        | Insn::Nfproto(_)
        | Insn::L4proto(_)
        | Insn::Run(_)
        | Insn::Counter(_)
        | Insn::Verdict(_) => Next::Go,
    }
}

fn object<M: Mode>(mode: &mut M, insn: Insn) -> Next {
    match insn {
        Insn::Counter(at) => {
            mode.counter(at);
            Next::Go
        }
        Insn::Limit(at) => mode.limit(at),
        Insn::Quota(at) => mode.quota(at),
        _ => Next::Break,
    }
}

fn hit<M: Mode>(mode: &mut M, set: u32, slot: u32) -> Next {
    let has_statements = |store: &SetStore| {
        store.look_at_hits
            && store
                .element(slot)
                .is_some_and(|e| !e.statements.is_empty())
    };
    if has_statements(mode.set(set)) {
        mode.hit(set, slot)
    } else {
        Next::Go
    }
}

/// The reason why an unknown value of this kind needs each packet.
fn reason(load: &Load) -> EachPacket {
    match load {
        Load::Payload { .. } | Load::Exthdr { .. } | Load::ExthdrExists { .. } => {
            EachPacket::Payload
        }
        Load::Meta(MetaKey::Length) => EachPacket::Length,
        Load::Meta(MetaKey::Mark) => EachPacket::Mark,
        Load::Meta(MetaKey::Time | MetaKey::Day | MetaKey::Hour) => EachPacket::Time,
        Load::Meta(MetaKey::Random) | Load::Numgen(_) => EachPacket::Random,
        _ => EachPacket::Unknown,
    }
}

fn decide(test: &Test, seen: Number, term: &Term) -> Next {
    let undecided = Next::End(End::EachPacket(reason(&term.load)));
    match *test {
        Test::Masked { mask, want, negate } => {
            let differ = (seen.value ^ want) & mask;
            if differ & seen.known != 0 || want & !mask != 0 {
                go_if(negate)
            } else if mask & !seen.known != 0 {
                undecided
            } else {
                go_if(!negate)
            }
        }
        Test::Range { low, high, negate } => {
            // What the value may be lies between these.
            let least = seen.value & seen.known;
            let most = least | !seen.known & low_bits(term.bits);
            if low <= least && most <= high {
                go_if(!negate)
            } else if most < low || high < least {
                go_if(negate)
            } else {
                undecided
            }
        }
    }
}

/// The term's value; `Ok(None)` if the rule does not match for want of it.
pub(crate) fn load<M: Mode>(
    program: &Program,
    mode: &mut M,
    term: &Term,
) -> Result<Option<Number>, Next> {
    let seen = match &term.load {
        Load::Constant(number) => Some(Number::known(*number)),
        Load::Payload {
            base,
            offset,
            len: len @ ..=8,
            shift,
        } => mode.payload(*base, *offset, *len).map(|seen| Seen {
            value: u128::from(seen.value >> shift),
            known: u128::from(seen.known >> shift) | !u128::from(u64::MAX >> shift),
        }),
        Load::Data {
            map,
            offset,
            len,
            host,
        } => {
            let (_, set) = program.maps[*map as usize];
            let slot = mode.mapped().slot(*map);
            let element = slot.and_then(|slot| mode.set(set).element(slot));
            let range = usize::from(*offset)..usize::from(*offset) + usize::from(*len);
            match element.map(|element| &element.data) {
                Some(Data::Bytes(bytes)) => bytes
                    .get(range)
                    .map(|bytes| Number::known(number(bytes, *host))),
                _ => None,
            }
        }
        Load::Numgen(at) => Some(mode.numgen(*at, &program.numgens[*at as usize])),
        Load::Jhash(at) => hash(program, mode, &program.hashes[*at as usize])?,
        other => mode.load(other),
    };
    let Some(mut seen) = seen else {
        return Ok(None);
    };
    let all = low_bits(term.bits);
    seen.value &= all;
    for op in &term.ops {
        match *op {
            Bitop::And(bits) => {
                seen.value &= bits;
                seen.known |= !bits;
            }
            Bitop::Xor(bits) => seen.value ^= bits,
            Bitop::Swap(bytes) => {
                let own = low_bits(u16::from(bytes) * 8);
                let rest = 128 - u32::from(bytes) * 8;
                let swapped = |number: u128| (number & own).swap_bytes() >> rest;
                seen = Seen {
                    value: swapped(seen.value),
                    known: swapped(seen.known) | !own,
                };
            }
            Bitop::Left(bits) => {
                seen.value = seen.value.checked_shl(bits).unwrap_or(0);
                seen.known = seen.known.checked_shl(bits).unwrap_or(0)
                    | low_bits(u16::try_from(bits).unwrap_or(128));
            }
            Bitop::Right(bits) => {
                seen.value = seen.value.checked_shr(bits).unwrap_or(0);
                seen.known = !((!seen.known & all).checked_shr(bits).unwrap_or(0));
            }
        }
        seen.value &= all;
    }
    Ok(Some(seen))
}

/// A field's number, and whether all of it is known. `None`: the rule does not match.
#[inline]
fn field<M: Mode>(mode: &M, code: &FieldCode) -> Option<(u64, bool)> {
    let seen = mode.payload(code.base, code.offset, code.len)?;
    let value = (seen.value & code.mask) >> code.shift;
    Some((value, code.mask & !seen.known == 0))
}

fn part<M: Mode>(program: &Program, mode: &mut M, term: &Term) -> Result<u128, Next> {
    match load(program, mode, term)? {
        None => Err(Next::Break),
        Some(seen) if !seen.known & low_bits(term.bits) != 0 => {
            Err(Next::End(End::EachPacket(reason(&term.load))))
        }
        Some(seen) => Ok(seen.value),
    }
}

/// As [`packed`], of 64 bits at most: mostly addresses and ports.
#[inline]
fn packed_small<M: Mode>(program: &Program, mode: &mut M, key: &KeyCode) -> Result<u64, Next> {
    let mut sum: u64 = 0;
    for (code, bits) in &key.fields {
        match field(mode, code) {
            Some((value, true)) => sum = sum.checked_shl((*bits).into()).unwrap_or(0) | value,
            Some((_, false)) => return Err(Next::End(End::EachPacket(EachPacket::Payload))),
            None => return Err(Next::Break),
        }
    }
    if key.fields.is_empty() {
        sum = packed(program, mode, key)? as u64;
    }
    Ok(sum)
}

/// The key's parts side by side.
fn packed<M: Mode>(program: &Program, mode: &mut M, key: &KeyCode) -> Result<u128, Next> {
    let mut sum: u128 = 0;
    for (term, bits) in &key.parts {
        sum = sum.checked_shl((*bits).into()).unwrap_or(0) | part(program, mode, term)?;
    }
    Ok(sum)
}

fn fields<M: Mode>(
    program: &Program,
    mode: &mut M,
    key: &KeyCode,
) -> Result<[u128; FIELDS_MAX], Next> {
    let mut fields = [0; FIELDS_MAX];
    for ((term, _), place) in key.parts.iter().zip(&mut fields) {
        *place = part(program, mode, term)?;
    }
    Ok(fields)
}

/// The key as a value, for changing a set.
pub(crate) fn make_key<M: Mode>(
    program: &Program,
    mode: &mut M,
    key: &KeyCode,
) -> Result<(Key, [u128; FIELDS_MAX]), Next> {
    let parts = fields(program, mode, key)?;
    let each = || {
        parts
            .iter()
            .copied()
            .zip(key.parts.iter().map(|(_, bits)| *bits))
    };
    let made = match key.form {
        Form::Small => Key::Small(crate::sets::pack(each()) as u64),
        Form::Medium => Key::Medium(crate::sets::pack(each())),
        Form::Wide => Key::Wide(pack_wide(each())),
        Form::Fields => Key::Fields(parts, key.parts.len()),
    };
    Ok((made, parts))
}

#[inline(never)]
fn find<M: Mode>(program: &Program, mode: &mut M, key: &KeyCode, index: &Index) -> Found {
    Ok(match key.form {
        Form::Small => index.find_small(packed_small(program, mode, key)?),
        Form::Medium => index.find_medium(packed(program, mode, key)?),
        Form::Wide | Form::Fields => index.find(&make_key(program, mode, key)?.0),
    })
}

/// The slot of the element that the key leads to.
pub(crate) fn find_element<M: Mode>(
    program: &Program,
    mode: &mut M,
    key: &KeyCode,
    set: u32,
) -> Found {
    if let Some(why) = mode.undecided(program, set) {
        return Err(why);
    }
    let now_ns = mode.now_ns();
    Ok(match key.form {
        Form::Small => {
            let key = packed_small(program, mode, key)?;
            let store = mode.set(set);
            store.settle(store.index.find_small(key), now_ns)
        }
        Form::Medium => {
            let key = packed(program, mode, key)?;
            let store = mode.set(set);
            store.settle(store.index.find_medium(key), now_ns)
        }
        Form::Wide | Form::Fields => {
            let (key, _) = make_key(program, mode, key)?;
            let store = mode.set(set);
            store.settle(store.index.find(&key), now_ns)
        }
    })
}

/// Jenkins' hash over the parts, each filled up to four bytes, as the kernel computes it.
fn hash<M: Mode>(program: &Program, mode: &mut M, code: &HashCode) -> Result<Option<Number>, Next> {
    let mut bytes = [0u8; 64];
    let mut len = 0;
    for (term, bits, host) in &code.parts {
        let value = match part(program, mode, term) {
            Ok(value) => value,
            Err(Next::Break) => return Ok(None),
            Err(other) => return Err(other),
        };
        let width = usize::from(bits.div_ceil(8));
        let room = bytes.get_mut(len..len + width).ok_or(Next::Break)?;
        match host {
            true => room.copy_from_slice(&value.to_le_bytes()[..width]),
            false => room.copy_from_slice(&value.to_be_bytes()[16 - width..]),
        }
        len += width.next_multiple_of(4);
    }
    let hash = crate::hash::jenkins(&bytes[..len.min(64)], code.seed);
    let scaled = ((u64::from(hash) * u64::from(code.modulus)) >> 32) as u32;
    Ok(Some(Number::known(u128::from(
        scaled.wrapping_add(code.offset),
    ))))
}
