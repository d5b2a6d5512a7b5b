//! Changes to a ruleset: all of a list, or none.
//!
//! A list is tried on a copy; the copy takes the ruleset's place when every change went
//! through and what came out is sound (names that rules use exist, see `check`).

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::check::check_tables;
use super::elements::Index;
use super::{
    Chain, Family, ObjectKind, ObjectState, Op, Position, Rule, Ruleset, Set, Statement, Table,
    TableId,
};

/// By a set's table and name.
type Indexes = BTreeMap<(TableId, String), Index>;

/// Why a change was refused, and which.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ApplyError {
    /// Which of the list; the list's length if what came out as a whole is unsound.
    pub index: usize,
    pub kind: ApplyErrorKind,
    /// The object that the change was about: `table inet filter`, `chain inet filter input`.
    pub object: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ApplyErrorKind {
    /// ENOENT
    NoSuchObject,
    /// EEXIST
    Exists,
    /// EBUSY: something still refers to it
    InUse,
    /// What is there already is of another type or kind.
    Different,
    /// The chains call each other in a circle, or deeper than 16.
    JumpLoop,
    JumpTooDeep,
    /// A rule or set cannot be; says why.
    Unsound(&'static str),
    /// A set is full.
    Full,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ApplyErrorKind::NoSuchObject => write!(f, "{} does not exist", self.object),
            ApplyErrorKind::Exists => write!(f, "{} exists already", self.object),
            ApplyErrorKind::InUse => write!(f, "{} is still in use", self.object),
            ApplyErrorKind::Different => {
                write!(f, "{} exists already and is something else", self.object)
            }
            ApplyErrorKind::JumpLoop => write!(f, "{} is in a circle of jumps", self.object),
            ApplyErrorKind::JumpTooDeep => {
                write!(
                    f,
                    "{} is reached by more than {} jumps",
                    self.object,
                    super::JUMP_DEPTH_MAX
                )
            }
            ApplyErrorKind::Unsound(why) => write!(f, "{}: {why}", self.object),
            ApplyErrorKind::Full => write!(f, "{} is full", self.object),
        }
    }
}

impl core::error::Error for ApplyError {}

pub(super) type Done = Result<(), (ApplyErrorKind, String)>;

impl Ruleset {
    /// Carries out all of `ops` in order, or none of them.
    pub fn apply(&mut self, ops: &[Op]) -> Result<(), ApplyError> {
        let mut next = self.clone();
        let mut indexes = Indexes::new();
        for (index, op) in ops.iter().enumerate() {
            next.apply_one(op, &mut indexes)
                .map_err(|(kind, object)| ApplyError {
                    index,
                    kind,
                    object,
                })?;
        }
        check_tables(&next.tables).map_err(|(kind, object)| ApplyError {
            index: ops.len(),
            kind,
            object,
        })?;
        if next.tables != self.tables {
            next.epoch += 1;
        }
        *self = next;
        Ok(())
    }

    /// `indexes`: of sets that nothing has changed since but additions to them.
    fn apply_one(&mut self, op: &Op, indexes: &mut Indexes) -> Done {
        if !matches!(op, Op::AddElements(_)) {
            indexes.clear();
        }
        match op {
            Op::AddTable {
                table,
                dormant,
                comment,
                exclusive,
            } => {
                match self.table_mut(table) {
                    Ok(_) if *exclusive => return Err((ApplyErrorKind::Exists, table_name(table))),
                    Ok(found) => found.dormant = *dormant,
                    Err(_) => {
                        self.last_table_handle += 1;
                        let mut made = Table::new(table.family, &table.name);
                        made.handle = self.last_table_handle;
                        made.dormant = *dormant;
                        made.comment.clone_from(comment);
                        self.tables.push(made);
                    }
                }
                Ok(())
            }
            Op::DeleteTable { table, missing_ok } => {
                let is = |t: &Table| t.family == table.family && t.name == table.name;
                remove_one(&mut self.tables, is, *missing_ok, || table_name(table))
            }
            Op::DeleteTableHandle { family, handle } => {
                let is = |t: &Table| t.family == *family && t.handle == *handle;
                remove_one(&mut self.tables, is, false, || {
                    alloc::format!("table {family} handle {handle}")
                })
            }
            Op::FlushTable { table } => {
                self.table_mut(table)?
                    .chains
                    .iter_mut()
                    .for_each(|c| c.rules.clear());
                Ok(())
            }
            Op::FlushRuleset { family } => {
                self.tables
                    .retain(|t| family.is_some_and(|f| f != t.family));
                Ok(())
            }
            Op::ResetObjects {
                kind,
                family,
                table,
                name,
            } => self.reset_objects(*kind, *family, table.as_ref(), name.as_deref()),
            Op::ResetRules {
                family,
                table,
                chain,
            } => {
                for t in self.tables_of(*family, table.as_ref()) {
                    for c in &mut t.chains {
                        if chain.as_ref().is_none_or(|name| *name == c.name) {
                            c.rules.iter_mut().for_each(reset_rule);
                        }
                    }
                }
                Ok(())
            }
            Op::AddChain { table, .. }
            | Op::DeleteChain { table, .. }
            | Op::DeleteChainHandle { table, .. }
            | Op::FlushChain { table, .. }
            | Op::RenameChain { table, .. } => self.table_mut(table)?.apply_chain(op),
            Op::AddRule { table, chain, .. }
            | Op::ReplaceRule { table, chain, .. }
            | Op::DeleteRule { table, chain, .. } => self.table_mut(table)?.apply_rule(op, chain),
            Op::AddSet { table, .. }
            | Op::DeleteSet { table, .. }
            | Op::DeleteSetHandle { table, .. }
            | Op::FlushSet { table, .. } => self.table_mut(table)?.apply_set(op),
            Op::AddElements(e) => {
                let set = self.table_mut(&e.table)?.set_mut(&e.set)?;
                let name = (e.table.clone(), e.set.clone());
                let index = indexes
                    .entry(name)
                    .or_insert_with(|| Index::of(&set.elements));
                set.add(&e.elements, e.exclusive, index)
            }
            Op::DeleteElements(e) => {
                let set = self.table_mut(&e.table)?.set_mut(&e.set)?;
                set.remove(&e.elements)
            }
            Op::AddObject { table, .. }
            | Op::DeleteObject { table, .. }
            | Op::DeleteObjectHandle { table, .. } => self.table_mut(table)?.apply_object(op),
        }
    }

    fn table_mut(&mut self, id: &TableId) -> Result<&mut Table, (ApplyErrorKind, String)> {
        self.tables
            .iter_mut()
            .find(|t| t.family == id.family && t.name == id.name)
            .ok_or_else(|| (ApplyErrorKind::NoSuchObject, table_name(id)))
    }

    fn tables_of<'a>(
        &'a mut self,
        family: Option<Family>,
        table: Option<&'a TableId>,
    ) -> impl Iterator<Item = &'a mut Table> {
        self.tables.iter_mut().filter(move |t| {
            family.is_none_or(|f| f == t.family)
                && table.is_none_or(|id| id.family == t.family && id.name == t.name)
        })
    }

    fn reset_objects(
        &mut self,
        kind: ObjectKind,
        family: Option<Family>,
        table: Option<&TableId>,
        name: Option<&str>,
    ) -> Done {
        let mut found = false;
        for t in self.tables_of(family, table) {
            for object in &mut t.objects {
                if object.state.kind() == kind && name.is_none_or(|n| n == object.name) {
                    found = true;
                    match &mut object.state {
                        ObjectState::Counter(counter) => *counter = Default::default(),
                        ObjectState::Quota(quota) => quota.used = 0,
                        ObjectState::Limit(_) => {}
                    }
                }
            }
        }
        match name {
            Some(name) if !found => Err((
                ApplyErrorKind::NoSuchObject,
                alloc::format!("{} {name}", kind.name()),
            )),
            _ => Ok(()),
        }
    }
}

fn reset_rule(rule: &mut Rule) {
    for statement in &mut rule.statements {
        match statement {
            Statement::Counter(counter) => *counter = Default::default(),
            Statement::Quota(quota) => quota.used = 0,
            _ => {}
        }
    }
}

impl Table {
    fn apply_chain(&mut self, op: &Op) -> Done {
        match op {
            Op::AddChain {
                chain, exclusive, ..
            } => {
                let name = self.name_of("chain", &chain.name);
                if let Some(found) = self.chains.iter_mut().find(|c| c.name == chain.name) {
                    if *exclusive {
                        return Err((ApplyErrorKind::Exists, name));
                    }
                    return match (&mut found.base, &chain.base) {
                        (_, None) => Ok(()),
                        (Some(old), Some(new))
                            if old.kind == new.kind
                                && old.hook == new.hook
                                && old.priority == new.priority =>
                        {
                            old.policy = new.policy;
                            for device in &new.devices {
                                if !old.devices.contains(device) {
                                    old.devices.push(device.clone());
                                }
                            }
                            Ok(())
                        }
                        _ => Err((ApplyErrorKind::Different, name)),
                    };
                }
                let mut made = Chain {
                    rules: Vec::new(),
                    ..chain.clone()
                };
                made.handle = self.next_handle();
                self.chains.push(made);
                Ok(())
            }
            Op::DeleteChain {
                chain, missing_ok, ..
            } => {
                let name = self.name_of("chain", chain);
                remove_one(&mut self.chains, |c| c.name == *chain, *missing_ok, || name)
            }
            Op::DeleteChainHandle { handle, .. } => {
                let name = self.name_of("chain handle", &handle.to_string());
                remove_one(&mut self.chains, |c| c.handle == *handle, false, || name)
            }
            Op::FlushChain { chain, .. } => {
                self.chain_mut(chain)?.rules.clear();
                Ok(())
            }
            Op::RenameChain { chain, to, .. } => {
                if self.chain(to).is_some() {
                    return Err((ApplyErrorKind::Exists, self.name_of("chain", to)));
                }
                self.chain_mut(chain)?.name.clone_from(to);
                self.rename_jumps(chain, to);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn apply_rule(&mut self, op: &Op, chain_name: &str) -> Done {
        let handle_new = self.last_handle + 1;
        let rule_name = |what: &str, number: &str, table: &Table| {
            let chain = table.name_of("chain", chain_name);
            alloc::format!("rule with {what} {number} in {chain}")
        };
        let missing = |table: &Table, handle: u64| {
            (
                ApplyErrorKind::NoSuchObject,
                rule_name("handle", &handle.to_string(), table),
            )
        };
        let rules = &mut self.chain_mut(chain_name)?.rules;
        let at_handle = |rules: &[Rule], handle| rules.iter().position(|r| r.handle == handle);
        match op {
            Op::AddRule { position, rule, .. } => {
                let len = rules.len();
                let at = match *position {
                    Position::First => Some(0),
                    Position::Last => Some(len),
                    Position::BeforeHandle(handle) => at_handle(rules, handle),
                    Position::AfterHandle(handle) => at_handle(rules, handle).map(|at| at + 1),
                    Position::BeforeIndex(index) => Some(index).filter(|i| *i < len),
                    Position::AfterIndex(index) => Some(index + 1).filter(|i| *i <= len),
                };
                match (at, position) {
                    (Some(at), _) => rules.insert(
                        at,
                        Rule {
                            handle: handle_new,
                            ..rule.clone()
                        },
                    ),
                    (None, Position::BeforeHandle(handle) | Position::AfterHandle(handle)) => {
                        return Err(missing(self, *handle));
                    }
                    (None, Position::BeforeIndex(index) | Position::AfterIndex(index)) => {
                        let name = rule_name("index", &index.to_string(), self);
                        return Err((ApplyErrorKind::NoSuchObject, name));
                    }
                    (None, Position::First | Position::Last) => {}
                }
                self.last_handle = handle_new;
            }
            Op::ReplaceRule { handle, rule, .. } => {
                let Some(at) = at_handle(rules, *handle) else {
                    return Err(missing(self, *handle));
                };
                rules[at] = Rule {
                    handle: handle_new,
                    ..rule.clone()
                };
                self.last_handle = handle_new;
            }
            Op::DeleteRule { handle, .. } => {
                let Some(at) = at_handle(rules, *handle) else {
                    return Err(missing(self, *handle));
                };
                rules.remove(at);
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_set(&mut self, op: &Op) -> Done {
        match op {
            Op::AddSet { set, exclusive, .. } => {
                let name = self.name_of(set.word(), &set.name);
                if let Some(found) = self.sets.iter_mut().find(|s| s.name == set.name) {
                    if *exclusive {
                        return Err((ApplyErrorKind::Exists, name));
                    }
                    let same = found.key.parts() == set.key.parts()
                        && found.data == set.data
                        && found.flags == set.flags;
                    return match same {
                        true => {
                            let mut index = Index::of(&found.elements);
                            found.add(&set.elements, false, &mut index)
                        }
                        false => Err((ApplyErrorKind::Different, name)),
                    };
                }
                let mut made = Set {
                    elements: Vec::new(),
                    ..set.clone()
                };
                made.handle = self.next_handle();
                made.add(&set.elements, false, &mut Index::of(&[]))?;
                self.sets.push(made);
                Ok(())
            }
            Op::DeleteSet {
                set, missing_ok, ..
            } => {
                let name = self.name_of("set", set);
                remove_one(&mut self.sets, |s| s.name == *set, *missing_ok, || name)
            }
            Op::DeleteSetHandle { handle, .. } => {
                let name = self.name_of("set handle", &handle.to_string());
                remove_one(&mut self.sets, |s| s.handle == *handle, false, || name)
            }
            Op::FlushSet { set, .. } => {
                self.set_mut(set)?.elements.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn apply_object(&mut self, op: &Op) -> Done {
        match op {
            Op::AddObject {
                object, exclusive, ..
            } => {
                let kind = object.state.kind();
                let name = self.name_of(kind.name(), &object.name);
                if self.object(kind, &object.name).is_some() {
                    return match exclusive {
                        true => Err((ApplyErrorKind::Exists, name)),
                        false => Ok(()),
                    };
                }
                let mut made = object.clone();
                made.handle = self.next_handle();
                self.objects.push(made);
                Ok(())
            }
            Op::DeleteObject {
                kind,
                name,
                missing_ok,
                ..
            } => {
                let full = self.name_of(kind.name(), name);
                let is = |o: &super::Object| o.state.kind() == *kind && o.name == *name;
                remove_one(&mut self.objects, is, *missing_ok, || full)
            }
            Op::DeleteObjectHandle { kind, handle, .. } => {
                let name = self.name_of(kind.name(), &alloc::format!("handle {handle}"));
                let is = |o: &super::Object| o.state.kind() == *kind && o.handle == *handle;
                remove_one(&mut self.objects, is, false, || name)
            }
            _ => Ok(()),
        }
    }

    fn next_handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    /// `chain inet filter input`
    pub(super) fn name_of(&self, what: &str, name: &str) -> String {
        alloc::format!("{what} {} {} {name}", self.family, self.name)
    }

    fn chain_mut(&mut self, name: &str) -> Result<&mut Chain, (ApplyErrorKind, String)> {
        let missing = (ApplyErrorKind::NoSuchObject, self.name_of("chain", name));
        self.chains
            .iter_mut()
            .find(|c| c.name == name)
            .ok_or(missing)
    }

    fn set_mut(&mut self, name: &str) -> Result<&mut Set, (ApplyErrorKind, String)> {
        let missing = (ApplyErrorKind::NoSuchObject, self.name_of("set", name));
        self.sets.iter_mut().find(|s| s.name == name).ok_or(missing)
    }
}

impl Set {
    /// The word of nft for it.
    pub fn word(&self) -> &'static str {
        if self.data.is_some() { "map" } else { "set" }
    }
}

pub(super) fn remove_one<T>(
    from: &mut Vec<T>,
    is: impl Fn(&T) -> bool,
    missing_ok: bool,
    name: impl FnOnce() -> String,
) -> Done {
    match from.iter().position(is) {
        Some(at) => {
            from.remove(at);
            Ok(())
        }
        None if missing_ok => Ok(()),
        None => Err((ApplyErrorKind::NoSuchObject, name())),
    }
}

fn table_name(id: &TableId) -> String {
    alloc::format!("table {} {}", id.family, id.name)
}
