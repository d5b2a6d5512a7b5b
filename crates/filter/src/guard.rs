//! What denies most rules to a packet: one comparison of one number.
//!
//! Nearly every rule begins with questions that nothing depends on but the packet: its
//! protocols, a field, an interface. The compiler makes one number of the protocols and of
//! one more of them, a [`Fact`], and gives the rule a [`Guard`]: the range in which the
//! fact must lie. A packet's fact is read once, however many rules ask for it; then a rule
//! that does not match costs a subtraction and a comparison, whatever its neighbours ask.
//!
//! ```text
//!   udp dport 53       fact: protocol, port      17|0035 ..= 17|0035
//!   tcp dport 80-90    the same fact             06|0050 ..= 06|005a
//!   ip saddr 10/8      fact: source              0a000000 ..= 0affffff
//! ```
//! A guard only ever denies: what it lets through is carried out. Guards stand by
//! themselves, one for each rule, so that a walk over them touches nothing else.
//!
//! Of a connection ([`crate::question`]) some facts are not known: their guards let
//! through, and the rule's own instructions find the reason. What is not known may also stand
//! before the guard's question in the rule, so only guards that lead count there. Where
//! rules write into packets, facts are read anew ([`crate::program::Program::writes`]).

use crate::program::{FieldCode, Term};

/// More than so many facts are not kept; rules that ask for others have no guard.
pub(crate) const FACTS_MAX: usize = 32;

/// What is read of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub nfproto: bool,
    pub l4proto: bool,
    pub value: Value,
}

/// Besides the protocols; of more than 32 bits, they are folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nothing,
    Field(FieldCode),
    /// Something else of at most 64 bits.
    Term {
        term: Term,
        mask: u64,
    },
    Wide {
        term: Term,
        mask: u128,
    },
}

impl Value {
    /// These bits of a term.
    pub(crate) fn of(term: &Term, mask: u128) -> Value {
        match (FieldCode::of(term, mask), u64::try_from(mask)) {
            (Some(field), _) => Value::Field(field),
            (None, Ok(mask)) => Value::Term {
                term: term.clone(),
                mask,
            },
            (None, Err(_)) => Value::Wide {
                term: term.clone(),
                mask,
            },
        }
    }
}

/// The fact must lie in `low ..= low + span`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub low: u64,
    pub span: u32,
    /// Position in [`crate::program::Program::facts`], or [`Guard::ANY`]'s.
    pub fact: u16,
    /// The rule asks nothing before it.
    pub leads: bool,
}

impl Guard {
    /// Lets everything through: its fact is never known.
    pub(crate) const ANY: Guard = Guard {
        low: 0,
        span: 0,
        fact: FACTS_MAX as u16,
        leads: true,
    };

    #[inline]
    pub(crate) fn denies(&self, number: u64) -> bool {
        number.wrapping_sub(self.low) > u64::from(self.span)
    }
}

/// A fact's number. What is absent makes it smaller than any that has it; what is not asked
/// for is left out.
///
/// ```text
///   bit  49     48        47..40   39..32   31..0
///        value  l4proto   nfproto  l4proto  value
///        is there
/// ```
#[inline]
pub(crate) fn pack(nfproto: Option<u8>, l4proto: Option<u8>, value: Option<u32>) -> u64 {
    let there = u64::from(value.is_some()) << 49 | u64::from(l4proto.is_some()) << 48;
    there
        | u64::from(nfproto.unwrap_or(0)) << 40
        | u64::from(l4proto.unwrap_or(0)) << 32
        | u64::from(value.unwrap_or(0))
}

/// 32 bits of 128: equal numbers stay equal, and those of 32 bits as they are.
#[inline]
pub(crate) fn fold(value: u128) -> u32 {
    fold_half((value >> 64) as u64 ^ value as u64)
}

/// The same of 64.
#[inline]
pub(crate) fn fold_half(value: u64) -> u32 {
    (value >> 32) as u32 ^ value as u32
}
