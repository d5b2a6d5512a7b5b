//! Commands to operations: types, protocols, names.
//!
//! The checks are nft's: the type of what stands left decides what may stand right
//! ([`value`], [`expr`]); a rule's earlier matches decide which headers it may look at
//! ([`protocols`]); sets have types of their own ([`set`]); and what the kernel would refuse
//! when the rules are put in force is refused here too ([`hooks`]).
//!
//! The checker keeps what later commands have to know of earlier ones ([`scope`]); whether
//! things exist at all is the model's own business, which carries the operations out on a copy.
use crate::prelude::*;
mod elements;
mod exact;
mod expr;
mod hooks;
mod nat;
mod normal;
mod protocols;
mod rule;
mod scope;
mod set;
pub(crate) mod value;

use crate::{
    ast::{Command, CommandKind, ElementsVerb, Listed, Listing, RulePlace},
    env::Env,
    error::{FAULTS_MAX, Fault},
    source::Span,
};
use fordway_filter::model::{ApplyError, ElementsOp, ObjectState, Op, Ruleset};
use scope::Scope;

pub(crate) use exact::{any_order, order};
pub(crate) use value::extra_names;

pub(crate) type Checked<T> = Result<T, Fault>;

/// Elements of one ruleset, however variables multiply them.
pub const ELEMENTS_MAX: usize = 1 << 21;

/// What the commands come to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Changes, in order.
    pub ops: Vec<Op>,
    /// What was asked to be listed, each with how many of the changes came before it.
    pub listings: Vec<(usize, Listing)>,
    /// The ruleset after all changes.
    pub ruleset: Ruleset,
}

/// Checks commands against a ruleset that is in force.
pub fn check(base: &Ruleset, env: &Env, commands: Vec<Command>) -> Result<Outcome, Vec<Fault>> {
    let mut checker = Checker {
        env,
        scope: Scope::of(base),
        faults: Vec::new(),
        elements: 0,
    };
    let mut ops = Vec::new();
    let mut spans = Vec::new();
    let mut listings = Vec::new();
    let mut listing_spans = Vec::new();
    for command in commands {
        if checker.faults.len() >= FAULTS_MAX {
            break;
        }
        let span = command.span;
        match checker.command(command) {
            Ok(Step::Op(op)) => {
                checker.scope.saw(&op);
                ops.push(*op);
                spans.push(span);
            }
            Ok(Step::List(listing)) => {
                listings.push((ops.len(), listing));
                listing_spans.push(span);
            }
            Err(fault) => checker.faults.push(fault),
        }
    }
    if !checker.faults.is_empty() {
        return Err(checker.faults);
    }
    let mut ruleset = base.clone();
    if let Err(why) = ruleset.apply(&ops) {
        return Err(vec![place(base, &ops, &spans, &why)]);
    }
    let faults = hooks::check(&ruleset, &ops, &spans);
    if !faults.is_empty() {
        return Err(faults);
    }
    for ((_, listing), span) in listings.iter().zip(listing_spans) {
        if !is_there(&ruleset, listing) {
            return Err(vec![Fault::wrong(span, "there is no such thing to list")]);
        }
    }
    Ok(Outcome {
        ops,
        listings,
        ruleset,
    })
}

/// What is listed by name has to be there.
fn is_there(ruleset: &Ruleset, listing: &Listing) -> bool {
    let Some(name) = &listing.table else {
        return true;
    };
    let Some(table) = ruleset
        .tables
        .iter()
        .find(|table| table.name == *name && listing.family.is_none_or(|of| of == table.family))
    else {
        return false;
    };
    match (&listing.name, listing.what) {
        (Some(name), Listed::Chain) => table.chain(name).is_some(),
        (Some(name), Listed::Set) => table.set(name).is_some(),
        (Some(name), Listed::Objects(kind)) => table.object(kind, name).is_some(),
        _ => true,
    }
}

/// The command that an error of the model is about. One that only shows when all is done is
/// the fault of the first command with which it shows.
fn place(base: &Ruleset, ops: &[Op], spans: &[Span], why: &ApplyError) -> Fault {
    let mut index = why.index;
    if index >= ops.len() {
        let fails = |count: usize| {
            base.clone()
                .apply(&ops[..count])
                .is_err_and(|other| other.kind == why.kind && other.object == why.object)
        };
        let (mut low, mut high) = (0, ops.len());
        while low + 1 < high {
            let middle = (low + high) / 2;
            if fails(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        index = high.saturating_sub(1);
    }
    let span = spans.get(index).copied().unwrap_or_default();
    Fault::wrong(span, why.to_string())
}

enum Step {
    Op(Box<Op>),
    List(Listing),
}

pub(crate) struct Checker<'a> {
    env: &'a Env,
    scope: Scope,
    faults: Vec<Fault>,
    /// Elements seen so far.
    elements: usize,
}

impl Checker<'_> {
    fn command(&mut self, command: Command) -> Checked<Step> {
        let span = command.span;
        let op = match command.kind {
            CommandKind::Plain(op) => {
                hooks::check_chain(&op, span)?;
                if let Op::AddObject { object, .. } = &op
                    && let ObjectState::Limit(limit) = &object.state
                {
                    rule::check_limit(limit, span)?;
                }
                op
            }
            CommandKind::List(listing) => return Ok(Step::List(listing)),
            CommandKind::Rule {
                table,
                chain,
                place,
                rule,
            } => {
                let rule = self.rule(&table, &rule)?;
                match place {
                    RulePlace::At(position) => Op::AddRule {
                        table,
                        chain,
                        position,
                        rule,
                    },
                    RulePlace::Instead(handle) => Op::ReplaceRule {
                        table,
                        chain,
                        handle,
                        rule,
                    },
                }
            }
            CommandKind::Set {
                table,
                set,
                exclusive,
            } => {
                let set = self.set(&table, &set, span)?;
                Op::AddSet {
                    table,
                    set,
                    exclusive,
                }
            }
            CommandKind::Elements {
                table,
                set,
                elements,
                verb,
            } => {
                let elements = self.elements(&table, &set, &elements, verb, span)?;
                let op = ElementsOp {
                    table,
                    set,
                    elements,
                    exclusive: verb == ElementsVerb::Create,
                };
                match verb {
                    ElementsVerb::Add | ElementsVerb::Create => Op::AddElements(op),
                    ElementsVerb::Delete => Op::DeleteElements(op),
                }
            }
        };
        Ok(Step::Op(Box::new(op)))
    }
}
