//! One rule: its statements in order, as tests and actions.

use alloc::vec::Vec;

use super::{Compiler, Why};
use crate::model::{Chain, Expr, Family, RelOp, Rule, Table};
use crate::packet::Layer;
use crate::program::{Insn, KeyCode, RuleId, Term, Test, low_bits};

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

/// What is known of a packet that got so far in a rule.
pub(crate) struct Context<'t> {
    pub table_at: usize,
    pub table: &'t Table,
    pub chain: &'t Chain,
    pub id: RuleId,
    pub statement: u16,
    pub steps: Vec<Step>,
    /// A VLAN header was asked for, and how far behind the first the current one lies.
    pub vlan: Option<u16>,
    pub network: Option<Layer>,
    pub transport: Option<u8>,
    pub icmp_typed: bool,
    /// The frame's header was asked for.
    pub ether: bool,
}

impl Context<'_> {
    pub(crate) fn family(&self) -> Family {
        self.table.family
    }

    pub(crate) fn insn(&mut self, insn: Insn) {
        self.steps.push(Step::Insn(insn));
    }
}

impl<'r> Compiler<'r> {
    pub(super) fn lower(
        &mut self,
        table_at: usize,
        table: &'r Table,
        chain: &'r Chain,
        rule: &'r Rule,
        id: RuleId,
    ) -> Result<LoweredRule, Why> {
        let mut context = Context {
            table_at,
            table,
            chain,
            id,
            statement: 0,
            steps: Vec::new(),
            vlan: None,
            network: match table.family {
                Family::Ip => Some(Layer::Ip),
                Family::Ip6 => Some(Layer::Ip6),
                Family::Arp => Some(Layer::Arp),
                Family::Inet | Family::Bridge | Family::Netdev => None,
            },
            transport: None,
            icmp_typed: false,
            ether: false,
        };
        for (at, statement) in rule.statements.iter().enumerate() {
            context.statement = at as u16;
            self.statement(&mut context, statement)?;
        }
        Ok(LoweredRule {
            id,
            steps: context.steps,
        })
    }

    pub(super) fn match_statement(
        &mut self,
        context: &mut Context<'r>,
        op: RelOp,
        left: &'r Expr,
        right: &'r Expr,
    ) -> Result<(), Why> {
        let negate = op == RelOp::Ne;
        if let Expr::Set(set) = right {
            if !matches!(op, RelOp::Implicit | RelOp::Eq | RelOp::Ne) {
                return Err("a set can only be asked whether it contains".into());
            }
            let (key, set) = self.key_and_set(context, left, set, None)?;
            context.steps.push(Step::Lookup { key, set, negate });
            return Ok(());
        }
        if matches!(left, Expr::Concat(_)) {
            let (key, set) = self.key_and_single(context, left, right)?;
            context.steps.push(Step::Lookup { key, set, negate });
            return Ok(());
        }
        let term = self.term(context, left)?;
        let test = test(&term, op, left, right)?;
        context.learn(left, &test);
        context.steps.push(Step::Test(term, test));
        Ok(())
    }
}

/// What a comparison asks of the term on its left.
fn test(term: &Term, op: RelOp, left: &Expr, right: &Expr) -> Result<Test, Why> {
    let all = low_bits(term.bits);
    let negate = op == RelOp::Ne;
    let is_flags = left.data_type().is_some_and(|t| t.is_bitmask());
    let any = is_flags && !matches!(left, Expr::Binary { .. });
    if let (Expr::Fib { .. }, Expr::Value(value)) = (left, right)
        && value.data_type == crate::model::DataType::Boolean
    {
        let exists = (value.as_number() != 0) != negate;
        return Ok(Test::Masked {
            mask: all,
            want: 0,
            negate: exists,
        });
    }
    if let Some(number) = right.constant() {
        return Ok(match op {
            RelOp::Implicit if any => Test::Masked {
                mask: number,
                want: 0,
                negate: true,
            },
            RelOp::Not => Test::Masked {
                mask: number,
                want: 0,
                negate: false,
            },
            RelOp::Implicit | RelOp::Eq | RelOp::Ne => match right {
                Expr::Value(value) if value.is_text_prefix() => {
                    let (low, high) = bounds(right, term.bits)?;
                    Test::Masked {
                        mask: !(low ^ high),
                        want: low,
                        negate,
                    }
                }
                _ if number > all => return Err("the value is too large for its field".into()),
                _ => Test::Range {
                    low: number,
                    high: number,
                    negate,
                },
            },
            RelOp::Lt if number == 0 => Test::Range {
                low: 1,
                high: 0,
                negate: false,
            },
            RelOp::Lt => Test::Range {
                low: 0,
                high: number - 1,
                negate: false,
            },
            RelOp::Le => Test::Range {
                low: 0,
                high: number,
                negate: false,
            },
            RelOp::Gt if number >= all => Test::Range {
                low: 1,
                high: 0,
                negate: false,
            },
            RelOp::Gt => Test::Range {
                low: number + 1,
                high: all,
                negate: false,
            },
            RelOp::Ge => Test::Range {
                low: number,
                high: all,
                negate: false,
            },
        });
    }
    if !matches!(op, RelOp::Implicit | RelOp::Eq | RelOp::Ne) {
        return Err("this operator needs one value on its right".into());
    }
    let (low, high) = bounds(right, term.bits)?;
    Ok(Test::Range { low, high, negate })
}

/// The numbers that a value, range or prefix stands for, both ends included.
pub(crate) fn bounds(expr: &Expr, bits: u16) -> Result<(u128, u128), Why> {
    let all = low_bits(bits);
    let (low, high) = match expr {
        Expr::Any => (0, all),
        Expr::Value(value) if value.is_text_prefix() => {
            let rest = 128 - value.bytes().len() as u32 * 8;
            let low = value.as_number().checked_shl(rest).unwrap_or(0);
            (low, low | low_bits(rest as u16))
        }
        Expr::Range(low, high) => match (low.constant(), high.constant()) {
            (Some(low), Some(high)) => (low, high),
            _ => return Err("a range needs two values".into()),
        },
        Expr::Prefix(value, len) => {
            let value = value.constant().ok_or("a prefix needs a value")?;
            if u16::from(*len) > bits {
                return Err("the prefix is longer than its type".into());
            }
            let rest = low_bits(bits - u16::from(*len));
            (value & !rest, value | rest)
        }
        _ => {
            let value = expr.constant().ok_or("only a value can stand here")?;
            (value, value)
        }
    };
    if low > high {
        return Err("the range ends before it begins".into());
    }
    if high > all {
        return Err("the value is too large for its field".into());
    }
    Ok((low, high))
}

impl Expr {
    /// The number that the expression is, whatever packet is looked at.
    pub(crate) fn constant(&self) -> Option<u128> {
        use crate::model::BinaryOp::*;
        match self {
            Expr::Value(value) => Some(value.as_number()),
            Expr::List(items) => items
                .iter()
                .try_fold(0, |sum, item| Some(sum | item.constant()?)),
            Expr::Binary { op, left, right } => {
                let (left, right) = (left.constant()?, right.constant()?);
                Some(match op {
                    And => left & right,
                    Or => left | right,
                    Xor => left ^ right,
                    ShiftLeft => left.checked_shl(u32::try_from(right).ok()?)?,
                    ShiftRight => left.checked_shr(u32::try_from(right).ok()?)?,
                })
            }
            _ => None,
        }
    }
}
