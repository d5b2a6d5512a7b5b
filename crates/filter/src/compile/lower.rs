//! One rule: the kernel's expressions, in order, as tests and actions.
//!
//! The kernel carries values from expression to expression in registers. Here a register holds what is
//! known of its value ([`Held`]): where it is read from and what is done to it. A comparison turns that
//! into a test of the packet, so that no register is left when rules run.
//!
//! Numbers that the kernel writes by themselves (`meta mark`) lie in the machine's order, bytes of the
//! packet in the network's; `byteorder` turns one into the other, which changes no number. What a rule
//! does with a value that is not known here ([`Lowering::unknown`]) makes the rule one that the kernel
//! alone decides.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::keys::{ct_key, meta_key};
use super::{Compiler, push};
use crate::exec::MAPPED_MAX;
use crate::program::{
    Bitop, FibFlags, FibResult, HashCode, Insn, KeyCode, Load, MangleCode, MangleTarget, NatCode,
    NumgenCode, Reject, RejectCode, RuleId, Term, Test, UpdateCode, low_bits, number,
};
use crate::rules::{
    Bitwise, Bytes, Comparison, Expr, Family, Nat, NatKind, PayloadBase, Register, Rule, Set,
    SetData, SetOp, Stateful, Sum, Table, Verdict,
};
use crate::state::Place;

/// Words of four bytes.
const REGISTERS: usize = 16;

/// What a rule does, before it is cast into instructions.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Test(Term, Test),
    Lookup {
        key: KeyCode,
        set: u32,
        negate: bool,
    },
    Insn(Insn),
}

pub(crate) struct LoweredRule {
    pub id: RuleId,
    pub steps: Vec<Step>,
}

/// What a register holds.
#[derive(Clone, Debug)]
enum Held {
    /// A value; `host`: in the machine's order.
    Term {
        term: Term,
        host: bool,
    },
    /// Bytes of what a map leads to.
    Data {
        map: u32,
    },
    Constant(Vec<u8>),
}

struct Lowering<'c, 'r> {
    compiler: &'c mut Compiler<'r>,
    table_at: usize,
    table: &'r Table,
    id: RuleId,
    expr_at: u16,
    steps: Vec<Step>,
    held: Vec<Held>,
    /// Values that were looked up.
    maps: usize,
    /// Which of `held` begins so many words before.
    registers: [Option<(u32, u8)>; REGISTERS],
}

/// The expression does what is not known here.
struct Unknown;

type Known<T> = Result<T, Unknown>;

impl<'r> Compiler<'r> {
    pub(super) fn lower(
        &mut self,
        table_at: usize,
        table: &'r Table,
        rule: &'r Rule,
        id: RuleId,
    ) -> LoweredRule {
        let mut lowering = Lowering {
            compiler: self,
            table_at,
            table,
            id,
            expr_at: 0,
            steps: Vec::new(),
            held: Vec::new(),
            maps: 0,
            registers: [None; REGISTERS],
        };
        for (at, expr) in rule.exprs.iter().enumerate() {
            lowering.expr_at = at as u16;
            if lowering.expr(expr).is_err() {
                // What would follow depends on it.
                lowering.steps.push(Step::Insn(Insn::Unknown));
                lowering.compiler.program.unknown.push(id);
                break;
            }
        }
        LoweredRule {
            id,
            steps: lowering.steps,
        }
    }
}

impl<'r> Lowering<'_, 'r> {
    fn expr(&mut self, expr: &'r Expr) -> Known<()> {
        match expr {
            Expr::Payload { to, at } => self.load(*to, payload(*at)?, at.len, false),
            Expr::Meta { to, key } => {
                let (key, len, host) = meta_key(*key).ok_or(Unknown)?;
                self.load(*to, Load::Meta(key), len, host)
            }
            Expr::Ct { to, key, direction } => {
                self.track()?;
                let six = self.table.family == Family::Ip6;
                let (key, len, host) = ct_key(*key, six).ok_or(Unknown)?;
                let reply = direction.map(|direction| direction != 0);
                self.load(*to, Load::Ct { key, reply }, len, host)
            }
            Expr::Exthdr {
                to,
                op,
                kind,
                offset,
                len,
                present,
            } => {
                let tcp = match op {
                    0 => false,
                    1 => true,
                    _ => return Err(Unknown),
                };
                let load = match present {
                    true => Load::ExthdrExists { tcp, kind: *kind },
                    false => Load::Exthdr {
                        tcp,
                        kind: *kind,
                        offset: *offset,
                        len: short_len(*len)?,
                    },
                };
                let len = if *present { 1 } else { *len };
                self.load(*to, load, len, false)
            }
            Expr::Fib { to, result, flags } => {
                let flags = FibFlags::new(*flags);
                let (result, len, host) = match result {
                    1 => (FibResult::Oif, 4, true),
                    2 => (FibResult::Oifname, 16, false),
                    3 => (FibResult::Type, 4, true),
                    _ => return Err(Unknown),
                };
                let (len, host) = if flags.present {
                    (1, false)
                } else {
                    (len, host)
                };
                self.load(*to, Load::Fib { flags, result }, len, host)
            }
            Expr::Numgen {
                to,
                modulus,
                random,
                offset,
            } => {
                if *modulus == 0 {
                    return Err(Unknown);
                }
                let code = NumgenCode {
                    random: *random,
                    modulus: *modulus,
                    offset: *offset,
                };
                let at = self.compiler.numgen(code);
                self.load(*to, Load::Numgen(at), 4, true)
            }
            Expr::Hash {
                from,
                to,
                len,
                modulus,
                seed,
                offset,
            } => {
                if *modulus == 0 {
                    return Err(Unknown);
                }
                let parts = self.parts(*from, *len, &[])?;
                let code = HashCode {
                    parts,
                    modulus: *modulus,
                    seed: *seed,
                    offset: *offset,
                };
                let at = push(&mut self.compiler.program.hashes, code);
                self.load(*to, Load::Jhash(at), 4, true)
            }
            Expr::Immediate { to, data } => {
                let len = short_len(data.len() as u8)?;
                self.hold(*to, len, Held::Constant(data.clone()))
            }
            // The next expression is carried out (nf_tables_core.c: NFT_CONTINUE).
            Expr::Verdict(Verdict::Continue) => Ok(()),
            Expr::Verdict(verdict) => {
                let verdict = self
                    .compiler
                    .verdict(self.table_at, verdict)
                    .ok_or(Unknown)?;
                self.insn(Insn::Verdict(verdict))
            }
            Expr::Bitwise { from, to, len, op } => self.bitwise(*from, *to, *len, op),
            Expr::Byteorder {
                from,
                to,
                len,
                size,
            } => {
                // Several numbers side by side are turned one by one.
                if size != len {
                    return Err(Unknown);
                }
                let (term, host) = self.term(*from, *len)?;
                self.hold(*to, *len, Held::Term { term, host: !host })
            }
            Expr::Cmp { from, op, data } => self.compare(*from, *op, data),
            Expr::Range {
                from,
                negate,
                low,
                high,
            } => {
                let (term, host) = self.value(*from, low.len() as u8)?;
                let len = usize::from(term.len());
                if high.len() != low.len() || len != low.len() || host && len > 1 {
                    return Err(Unknown);
                }
                let (low, high) = (number(low, false), number(high, false));
                self.test(
                    term,
                    Test::Range {
                        low,
                        high,
                        negate: *negate,
                    },
                )
            }
            Expr::Lookup {
                set,
                from,
                to,
                negate,
            } => self.lookup(set, *from, *to, *negate),
            Expr::Dynset {
                set,
                op,
                key,
                data,
                timeout_ms,
                exprs,
            } => {
                let (at, of, key) = self.set_and_key(set, *key)?;
                let data = match (*data, of.data) {
                    _ if *op == SetOp::Delete => None,
                    (None, _) => None,
                    (Some(from), Some(SetData::Value(len))) => Some(self.data(from, len)?),
                    (Some(_), _) => return Err(Unknown),
                };
                self.track_for(exprs.iter())?;
                let statements = exprs
                    .iter()
                    .map(|one| self.compiler.kept(one))
                    .collect::<Option<_>>()
                    .ok_or(Unknown)?;
                let key = self.compiler.intern_key(key);
                let code = UpdateCode {
                    op: *op,
                    set: at,
                    key,
                    data,
                    timeout_ns: (*timeout_ms != 0).then(|| timeout_ms.saturating_mul(1_000_000)),
                    statements,
                };
                let at = push(&mut self.compiler.program.updates, code);
                self.insn(Insn::Update(at))
            }
            Expr::Object { kind, name } => {
                let insn = self
                    .compiler
                    .object(self.table_at, *kind, name)
                    .ok_or(Unknown)?;
                self.insn(insn)
            }
            Expr::ObjectMap { set, from } => {
                let (at, of, key) = self.set_and_key(set, *from)?;
                let Some(SetData::Object(1 | 2 | 4)) = of.data else {
                    return Err(Unknown);
                };
                let key = self.compiler.intern_key(key);
                self.insn(Insn::ObjectMap { key, set: at })
            }
            Expr::Stateful(one) => self.stateful(one),
            Expr::Log(log) => {
                let at = push(&mut self.compiler.program.logs, log.clone());
                self.insn(Insn::Log(at))
            }
            Expr::Reject { kind, code } => self.reject(*kind, *code),
            Expr::Nat(nat) => self.nat(nat),
            Expr::Notrack => {
                self.track()?;
                self.insn(Insn::Notrack)
            }
            Expr::MetaSet { from, key } => {
                let (key, len, host) = meta_key(*key).ok_or(Unknown)?;
                if !key.can_be_set() {
                    return Err(Unknown);
                }
                let value = self.taken(*from, len, host)?;
                self.mangle(MangleTarget::Meta(key), value)
            }
            Expr::CtSet {
                from,
                key: 3,
                direction: None,
            } => {
                self.track()?;
                let value = self.taken(*from, 4, true)?;
                self.mangle(MangleTarget::CtMark, value)
            }
            Expr::PayloadSet { from, at, sum } => {
                let value = self.taken(*from, at.len, false)?;
                let Bytes { base, offset, len } = *at;
                let Sum {
                    at: checksum,
                    pseudo,
                } = *sum;
                let len = short_len(len)?;
                self.mangle(
                    MangleTarget::Payload {
                        base,
                        offset,
                        len,
                        checksum,
                        pseudo,
                    },
                    value,
                )
            }
            Expr::CtSet { .. } | Expr::Unknown(_) => Err(Unknown),
        }
    }

    fn insn(&mut self, insn: Insn) -> Known<()> {
        self.steps.push(Step::Insn(insn));
        Ok(())
    }

    fn test(&mut self, mut term: Term, test: Test) -> Known<()> {
        // A mask at the end is part of the question: such tests are quicker, and runs know them.
        let test = match (test, term.ops.last()) {
            (Test::Range { low, high, negate }, Some(Bitop::And(mask))) if low == high => {
                let mask = *mask;
                term.ops.pop();
                Test::Masked {
                    mask,
                    want: low,
                    negate,
                }
            }
            (test, _) => test,
        };
        let test = as_range(test, term.bits);
        self.steps.push(Step::Test(term, test));
        Ok(())
    }

    fn hold(&mut self, to: Register, len: u8, held: Held) -> Known<()> {
        let first = usize::from(to.ok_or(Unknown)?);
        let words = usize::from(len.div_ceil(4));
        let place = self
            .registers
            .get_mut(first..first + words)
            .ok_or(Unknown)?;
        for (word, place) in place.iter_mut().enumerate() {
            *place = Some((self.held.len() as u32, word as u8));
        }
        self.held.push(held);
        Ok(())
    }

    fn load(&mut self, to: Register, load: Load, len: u8, host: bool) -> Known<()> {
        let term = Term::of(load, len);
        self.hold(to, len, Held::Term { term, host })
    }

    /// What a register holds, and how many bytes of it lie before.
    fn at(&self, from: Register) -> Known<(&Held, u8)> {
        let word = usize::from(from.ok_or(Unknown)?);
        let (held, words) = self.registers.get(word).copied().flatten().ok_or(Unknown)?;
        Ok((&self.held[held as usize], words * 4))
    }

    /// The value that begins in a register, of which so many bytes are still there.
    fn whole(&self, from: Register, len: u8) -> Known<(&Held, u8)> {
        let first = from.ok_or(Unknown)?;
        let words = usize::from(len.div_ceil(4)).max(1);
        match self.words_held(first) < words {
            true => Err(Unknown),
            false => self.at(from),
        }
    }

    /// The value of so many bytes that was read into a register.
    fn term(&self, from: Register, len: u8) -> Known<(Term, bool)> {
        match self.at(from)? {
            (Held::Term { term, host }, 0) if term.len() == len => Ok((term.clone(), *host)),
            _ => Err(Unknown),
        }
    }

    /// The value that begins in a register; at most so many bytes of it are asked for.
    fn value(&self, from: Register, len: u8) -> Known<(Term, bool)> {
        match self.whole(from, len)? {
            (Held::Term { term, host }, 0) if len <= term.len() => Ok((term.clone(), *host)),
            (Held::Data { map }, before) => Ok((data_term(*map, before, len, false), false)),
            _ => Err(Unknown),
        }
    }

    /// A value that an action takes, in the order in which it takes it.
    fn taken(&self, from: Register, len: u8, host: bool) -> Known<Term> {
        match self.whole(from, len)? {
            (Held::Term { term, host: order }, 0)
                if term.len() == len && (*order == host || len == 1) =>
            {
                Ok(term.clone())
            }
            (Held::Data { map }, before) => Ok(data_term(*map, before, len, host)),
            (Held::Constant(bytes), before) => {
                let before = usize::from(before);
                let bytes = bytes
                    .get(before..before + usize::from(len))
                    .ok_or(Unknown)?;
                Ok(constant(number(bytes, host), len))
            }
            _ => Err(Unknown),
        }
    }

    /// What a map is to lead to, as its bytes.
    fn data(&self, from: Register, len: u8) -> Known<(Term, bool)> {
        match self.whole(from, short_len(len)?)? {
            (Held::Term { term, host }, 0) if term.len() == len => Ok((term.clone(), *host)),
            (Held::Constant(bytes), 0) if bytes.len() == usize::from(len) => {
                Ok((constant(number(bytes, false), len), false))
            }
            (Held::Data { map }, before) => Ok((data_term(*map, before, len, false), false)),
            _ => Err(Unknown),
        }
    }

    /// How many registers from this one on still have what follows in its value.
    fn words_held(&self, word: u8) -> usize {
        let rest = self.registers.get(usize::from(word)..).unwrap_or(&[]);
        let Some(Some((held, first))) = rest.first().copied() else {
            return 0;
        };
        let follows =
            |(after, of): &(usize, &Option<(u32, u8)>)| **of == Some((held, first + *after as u8));
        rest.iter().enumerate().take_while(follows).count()
    }

    /// The values from a register on, side by side. Lengths are those of the values if none are given.
    fn parts(&self, from: Register, len: u8, lengths: &[u8]) -> Known<Box<[(Term, u16, bool)]>> {
        let mut parts = Vec::new();
        let mut word = from.ok_or(Unknown)?;
        let mut lengths = lengths.iter().copied();
        let mut rest = usize::from(len);
        while rest > 0 {
            let own = match self.at(Some(word))? {
                (Held::Term { term, .. }, 0) => term.len(),
                _ => self.words_held(word).saturating_mul(4).min(rest) as u8,
            };
            let wanted = short_len(lengths.next().unwrap_or(own))?;
            let (term, host) = self.value(Some(word), wanted)?;
            if term.len() != wanted {
                return Err(Unknown);
            }
            let bits = term.bits;
            parts.push((term, bits, host));
            word += wanted.div_ceil(4);
            rest = rest.saturating_sub(usize::from(wanted).next_multiple_of(4));
        }
        Ok(parts.into())
    }

    /// A set, its number, and what is looked up there: what lies in the registers from one on.
    fn set_and_key(&mut self, name: &str, from: Register) -> Known<(u32, &'r Set, KeyCode)> {
        let (at, set) = self.compiler.set(self.table_at, name).ok_or(Unknown)?;
        // Without ranges the kernel compares bytes, and does not know of parts: these are the values.
        let parts = self.parts(from, set.key_len, &set.parts)?;
        let lengths: Vec<u8> = parts.iter().map(|(_, bits, _)| (bits / 8) as u8).collect();
        let number = self
            .compiler
            .set_number(self.table_at, at, &lengths)
            .ok_or(Unknown)?;
        let of_elements = set.elements.iter().flat_map(|element| &element.exprs);
        self.track_for(set.exprs.iter().chain(of_elements))?;
        let key = self.compiler.key_for(parts, number).ok_or(Unknown)?;
        Ok((number, set, key))
    }

    fn bitwise(&mut self, from: Register, to: Register, len: u8, op: &Bitwise) -> Known<()> {
        let (mut term, host) = self.term(from, len)?;
        match op {
            Bitwise::Mask { mask, flip } => {
                if mask.len() != usize::from(len) || flip.len() != usize::from(len) {
                    return Err(Unknown);
                }
                let (mask, flip) = (number(mask, host), number(flip, host));
                if mask != low_bits(term.bits) {
                    term.ops.push(Bitop::And(mask));
                }
                if flip != 0 {
                    term.ops.push(Bitop::Xor(flip));
                }
            }
            // Words of four bytes in the machine's order.
            Bitwise::Left(bits) if host && len <= 4 => term.ops.push(Bitop::Left(*bits)),
            Bitwise::Right(bits) if host && len <= 4 => term.ops.push(Bitop::Right(*bits)),
            _ => return Err(Unknown),
        }
        self.hold(to, len, Held::Term { term, host })
    }

    fn compare(&mut self, from: Register, op: Comparison, data: &[u8]) -> Known<()> {
        let wanted = short_len(data.len() as u8)?;
        let (term, host) = match self.value(from, wanted) {
            Ok(value) => value,
            // Several values at once.
            Err(Unknown) if op == Comparison::Eq => return self.compare_parts(from, data),
            Err(Unknown) => return Err(Unknown),
        };
        let (len, negate) = (term.len(), op == Comparison::Ne);
        if wanted < len {
            // The first bytes alone: the beginning of a name.
            if host || !matches!(op, Comparison::Eq | Comparison::Ne) {
                return Err(Unknown);
            }
            let rest = u32::from(len - wanted) * 8;
            let mask = low_bits(u16::from(wanted) * 8) << rest;
            let want = number(data, false) << rest;
            return self.test(term, Test::Masked { mask, want, negate });
        }
        let all = low_bits(term.bits);
        let number = number(data, host);
        let never = (1, 0);
        let (low, high) = match op {
            Comparison::Eq | Comparison::Ne => (number, number),
            // The kernel compares bytes, the first one first.
            _ if host && len > 1 => return Err(Unknown),
            Comparison::Lt => number.checked_sub(1).map_or(never, |below| (0, below)),
            Comparison::Le => (0, number),
            Comparison::Gt if number >= all => never,
            Comparison::Gt => (number + 1, all),
            Comparison::Ge => (number, all),
        };
        self.test(term, Test::Range { low, high, negate })
    }

    fn compare_parts(&mut self, from: Register, data: &[u8]) -> Known<()> {
        let parts = self.parts(from, data.len() as u8, &[])?;
        let mut at = 0;
        for (term, bits, host) in parts {
            let len = usize::from(bits / 8);
            let end = at + len;
            let filled = data.len().min(end.next_multiple_of(4));
            let bytes = data.get(at..end).ok_or(Unknown)?;
            if data[end..filled].iter().any(|byte| *byte != 0) {
                return Err(Unknown);
            }
            let number = number(bytes, host);
            self.test(
                term,
                Test::Range {
                    low: number,
                    high: number,
                    negate: false,
                },
            )?;
            at += len.next_multiple_of(4);
        }
        Ok(())
    }

    fn lookup(
        &mut self,
        set: &str,
        from: Register,
        to: Option<Register>,
        negate: bool,
    ) -> Known<()> {
        let (at, of, key) = self.set_and_key(set, from)?;
        match (to, of.data) {
            (None, _) => {
                self.steps.push(Step::Lookup {
                    key,
                    set: at,
                    negate,
                });
                Ok(())
            }
            // Into the register of verdicts.
            (Some(None), Some(SetData::Verdict)) => {
                let key = self.compiler.intern_key(key);
                self.insn(Insn::VerdictMap { key, set: at })
            }
            (Some(to @ Some(_)), Some(SetData::Value(len))) => {
                let key = self.compiler.intern_key(key);
                let map = push(&mut self.compiler.program.maps, (key, at));
                self.maps += 1;
                if self.maps > MAPPED_MAX {
                    return Err(Unknown);
                }
                // The rule ends here if there is no such element, and only once is it looked up.
                self.insn(Insn::Map(map))?;
                self.hold(to, len, Held::Data { map })
            }
            _ => Err(Unknown),
        }
    }

    fn stateful(&mut self, one: &Stateful) -> Known<()> {
        let place = Place::Expr {
            table: self.id.table,
            chain: self.id.chain,
            rule: self.id.rule.unwrap_or(0),
            expr: self.expr_at,
        };
        self.track_for(core::iter::once(one))?;
        match self.compiler.state_of(one, place) {
            Some(insn) => self.insn(insn),
            None => Ok(()),
        }
    }

    fn reject(&mut self, kind: u32, code: u8) -> Known<()> {
        let six = match self.table.family {
            Family::Ip6 => Some(true),
            Family::Ip => Some(false),
            _ => None,
        };
        let code = match (kind, six) {
            (0, Some(true)) => RejectCode::Known(Reject::Icmpv6(code)),
            (0, Some(false)) => RejectCode::Known(Reject::Icmp(code)),
            // The packet's family says which (nft_reject_inet.c).
            (0, None) => RejectCode::ByFamily(code),
            (1, _) => RejectCode::Known(Reject::TcpReset),
            (2, _) => RejectCode::Icmpx(code),
            _ => return Err(Unknown),
        };
        self.insn(Insn::Reject(code))
    }

    fn nat(&mut self, nat: &Nat) -> Known<()> {
        self.track()?;
        let six = match nat.family.or(Some(self.table.family)) {
            Some(Family::Ip) => Some(false),
            Some(Family::Ip6) => Some(true),
            _ => None,
        };
        let address_len = match six {
            Some(true) => 16,
            Some(false) => 4,
            None if nat.address.is_some() => return Err(Unknown),
            None => 0,
        };
        let two = |registers: Option<[Register; 2]>, len| -> Known<Option<[Term; 2]>> {
            let Some([low, high]) = registers else {
                return Ok(None);
            };
            Ok(Some([
                self.taken(low, len, false)?,
                self.taken(high, len, false)?,
            ]))
        };
        let code = NatCode {
            kind: nat.kind,
            six: six.filter(|_| nat.kind != NatKind::Masquerade && nat.kind != NatKind::Redirect),
            address: two(nat.address, address_len)?,
            port: two(nat.port, 2)?,
            flags: nat.flags,
        };
        let at = push(&mut self.compiler.program.nats, code);
        self.insn(Insn::Nat(at))
    }

    fn mangle(&mut self, target: MangleTarget, value: Term) -> Known<()> {
        let code = MangleCode { target, value };
        let at = push(&mut self.compiler.program.mangles, code);
        self.insn(Insn::Mangle(at))
    }

    /// What an element keeps may count connections.
    fn track_for<'s>(&mut self, mut kept: impl Iterator<Item = &'s Stateful>) -> Known<()> {
        match kept.any(|one| matches!(one, Stateful::ConnLimit { .. })) {
            true => self.track(),
            false => Ok(()),
        }
    }

    /// A rule of this family asks for connections.
    fn track(&mut self) -> Known<()> {
        self.compiler.track(self.table.family).ok_or(Unknown)
    }
}

/// Sixteen bytes are the most that are one number here.
fn short_len(len: u8) -> Known<u8> {
    match len {
        1..=16 => Ok(len),
        _ => Err(Unknown),
    }
}

fn payload(at: Bytes) -> Known<Load> {
    if at.base == PayloadBase::Inner {
        return Err(Unknown);
    }
    Ok(Load::Payload {
        base: at.base,
        offset: at.offset,
        len: short_len(at.len)?,
        shift: 0,
    })
}

fn constant(number: u128, len: u8) -> Term {
    Term::of(Load::Constant(number), len)
}

fn data_term(map: u32, offset: u8, len: u8, host: bool) -> Term {
    let load = Load::Data {
        map,
        offset,
        len,
        host,
    };
    Term::of(load, len)
}

/// A mask of leading bits is a range: runs of rules differ in ranges.
fn as_range(test: Test, bits: u16) -> Test {
    let Test::Masked { mask, want, negate } = test else {
        return test;
    };
    let rest = low_bits(bits) & !mask;
    let leads = rest & rest.wrapping_add(1) == 0 && want & rest == 0 && want & !mask == 0;
    match leads {
        true => Test::Range {
            low: want,
            high: want | rest,
            negate,
        },
        false => test,
    }
}
