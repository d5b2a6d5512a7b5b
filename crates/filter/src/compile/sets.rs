//! Sets and maps, named and written in place, and the keys that are looked up in them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::rule::{Context, Step, bounds};
use super::{CompileError, Compiler, Why};
use crate::model::{
    DataType, Element as Source, ElementData, Expr, MapData, ObjectKind, SetRef, SetType, Table,
};
use crate::program::KeyCode;
use crate::sets::{DYNAMIC_SIZE, Data, Element, ElementKey, ElementStatement, SetStore, form_of};
use crate::state::SetPlace;

const NS_PER_MS: u64 = 1_000_000;
const TOO_LONG: &str = "the key is longer than 64 bytes, or has more than 8 parts";

impl<'r> Compiler<'r> {
    pub(super) fn named_sets(&mut self) -> Result<(), CompileError> {
        for (at, table) in self.ruleset.tables.iter().enumerate() {
            self.first_set.push(self.state.sets.len() as u32);
            for (set_at, set) in table.sets.iter().enumerate() {
                let place = SetPlace::Named {
                    table: at as u16,
                    set: set_at as u32,
                };
                let store = self.named_set(at, set).map_err(|why| {
                    let object = alloc::format!(
                        "{} {} {} {}",
                        set.word(),
                        table.family,
                        table.name,
                        set.name
                    );
                    CompileError { object, why }
                })?;
                self.state.sets.push((store, place));
            }
        }
        Ok(())
    }

    fn named_set(&self, table_at: usize, set: &crate::model::Set) -> Result<SetStore, Why> {
        let bits = bits_of(&set.key);
        let data_bits = set.data.as_ref().map(|data| match data {
            MapData::Type(t) | MapData::Interval(t) => bits_of(t),
            _ => Vec::new(),
        });
        let kind = match set.data {
            Some(MapData::Object(kind)) => Some(kind),
            _ => None,
        };
        let timeout_ns = set.timeout_ms.unwrap_or(0).saturating_mul(NS_PER_MS);
        let template: Box<[ElementStatement]> = set
            .statements
            .iter()
            .map(|s| ElementStatement::new(s, self.now_ns).ok_or("no such statement in a set"))
            .collect::<Result<_, _>>()?;
        let mut elements = Vec::with_capacity(set.elements.len());
        let mut catch_all = None;
        for (at, source) in set.elements.iter().enumerate() {
            let mut element = self.element(
                table_at,
                source,
                &bits,
                data_bits.as_deref(),
                kind,
                timeout_ns,
            )?;
            element.source = Some(at as u32);
            if element.statements.is_empty() {
                element.statements.clone_from(&template);
            }
            match source.key {
                Expr::Any => catch_all = Some(element),
                _ => elements.push(element),
            }
        }
        let ranges = set.flags.interval;
        if !ranges
            && elements
                .iter()
                .any(|e| e.key.iter().any(|(low, high)| low != high))
        {
            return Err("ranges need `flags interval`".into());
        }
        let mut store =
            SetStore::new(bits, ranges, elements, catch_all, self.seed).ok_or(TOO_LONG)?;
        store.timeout_ns = timeout_ns;
        store.look_at_hits |= !template.is_empty();
        store.template = template;
        store.size_max = match set.size {
            Some(size) => size as usize,
            None if set.flags.dynamic => DYNAMIC_SIZE,
            None => usize::MAX,
        };
        Ok(store)
    }

    fn element(
        &self,
        table_at: usize,
        source: &Source,
        bits: &[u16],
        data_bits: Option<&[u16]>,
        kind: Option<ObjectKind>,
        timeout_ns: u64,
    ) -> Result<Element, Why> {
        let timeout_ns = source
            .timeout_ms
            .map_or(timeout_ns, |ms| ms.saturating_mul(NS_PER_MS));
        let rest_ns = source
            .expires_ms
            .map_or(timeout_ns, |ms| ms.saturating_mul(NS_PER_MS));
        let statements = source.statements.iter();
        let statements = statements
            .map(|s| ElementStatement::new(s, self.now_ns).ok_or("no such statement in a set"))
            .collect::<Result<_, _>>()?;
        Ok(Element {
            key: element_key(&source.key, bits)?,
            data: self.data(table_at, source.data.as_ref(), data_bits, kind)?,
            timeout_ns,
            expires_ns: self.now_ns.saturating_add(rest_ns),
            statements,
            source: None,
        })
    }

    fn data(
        &self,
        table_at: usize,
        data: Option<&ElementData>,
        bits: Option<&[u16]>,
        kind: Option<ObjectKind>,
    ) -> Result<Data, Why> {
        Ok(match data {
            None => Data::None,
            Some(ElementData::Verdict(verdict)) => Data::Verdict(self.verdict(table_at, verdict)?),
            Some(ElementData::Object(name)) => {
                let kind = kind.ok_or("the map does not lead to objects")?;
                Data::Object(self.object(table_at, kind, name)?)
            }
            Some(ElementData::Value(value)) => {
                let parts = match bits {
                    Some(bits) if !bits.is_empty() => element_key(value, bits)?,
                    _ => own_bounds(value)?,
                };
                match parts[..] {
                    [(low, high)] if low == high => Data::Number(low),
                    _ => Data::Value(parts.into()),
                }
            }
        })
    }

    /// A key and the set to look it up in. `kind` is of the objects that a map leads to.
    pub(super) fn key_and_set(
        &mut self,
        context: &mut Context<'r>,
        key: &'r Expr,
        set: &'r SetRef,
        kind: Option<ObjectKind>,
    ) -> Result<(KeyCode, u32), Why> {
        let terms = self.parts(context, key)?;
        let number = match set {
            SetRef::Named(name) => {
                let at = context.table.sets.iter().position(|s| s.name == *name);
                let at = at.ok_or_else(|| alloc::format!("no set {name} in the table"))?;
                self.first_set[context.table_at] + at as u32
            }
            SetRef::Anonymous(_) => {
                let bits: Vec<u16> = terms.iter().map(|t| t.bits).collect();
                self.anonymous(context, set, bits, kind)?
            }
        };
        let key = self.key_for(terms, number)?;
        Ok((key, number))
    }

    pub(super) fn named_set_number(&self, context: &Context, name: &str) -> Result<u32, Why> {
        let at = context.table.sets.iter().position(|s| s.name == *name);
        let at = at.ok_or_else(|| alloc::format!("no set {name} in the table"))?;
        Ok(self.first_set[context.table_at] + at as u32)
    }

    /// The terms put together as the set wants its keys.
    pub(super) fn key_for(
        &self,
        terms: Box<[crate::program::Term]>,
        set: u32,
    ) -> Result<KeyCode, Why> {
        let store = &self.state.sets[set as usize].0;
        if store.bits.len() != terms.len() {
            return Err("the key has more or fewer parts than the set's".into());
        }
        let too_wide = |(t, bits): (&crate::program::Term, &u16)| t.bits > *bits;
        if terms.iter().zip(&store.bits).any(too_wide) {
            return Err("the key is wider than the set's type".into());
        }
        let form = store.form();
        let parts = terms.into_iter().zip(store.bits.iter().copied()).collect();
        Ok(KeyCode::new(parts, form))
    }

    /// A concatenation compared with one: a set of one element.
    pub(super) fn key_and_single(
        &mut self,
        context: &mut Context<'r>,
        key: &'r Expr,
        right: &'r Expr,
    ) -> Result<(KeyCode, u32), Why> {
        let terms = self.parts(context, key)?;
        let bits: Vec<u16> = terms.iter().map(|t| t.bits).collect();
        let set = SetRef::Anonymous(alloc::vec![Source::new(right.clone())]);
        let number = self.anonymous(context, &set, bits, None)?;
        Ok((self.key_for(terms, number)?, number))
    }

    fn anonymous(
        &mut self,
        context: &Context<'r>,
        set: &SetRef,
        bits: Vec<u16>,
        kind: Option<ObjectKind>,
    ) -> Result<u32, Why> {
        let SetRef::Anonymous(sources) = set else {
            return Err("a set was expected".into());
        };
        // Verdicts and objects are names of the table, so only plain sets are shared.
        let plain = sources
            .iter()
            .all(|e| e.data.is_none() && e.statements.is_empty());
        if plain
            && let Some((.., number)) = self
                .anonymous
                .iter()
                .find(|(other, b, _)| *b == bits && other == set)
        {
            return Ok(*number);
        }
        let mut elements = Vec::with_capacity(sources.len());
        let mut catch_all = None;
        for source in sources {
            let element = self.element(context.table_at, source, &bits, None, kind, 0)?;
            match source.key {
                Expr::Any => catch_all = Some(element),
                _ => elements.push(element),
            }
        }
        let ranges = elements
            .iter()
            .any(|e| e.key.iter().any(|(low, high)| low != high));
        let store =
            SetStore::new(bits.clone(), ranges, elements, catch_all, self.seed).ok_or(TOO_LONG)?;
        let number = self.state.sets.len() as u32;
        self.state.sets.push((store, SetPlace::Anonymous));
        if plain {
            self.anonymous.push((set.clone(), bits, number));
        }
        Ok(number)
    }

    /// How wide the values are that a map yields; of a concatenation the first part.
    pub(super) fn data_bits(&self, context: &Context, map: &SetRef) -> Result<u16, Why> {
        if let SetRef::Named(name) = map {
            let found: &Table = context.table;
            return match found.set(name).and_then(|s| s.data.as_ref()) {
                Some(MapData::Type(t) | MapData::Interval(t)) => {
                    Ok(bits_of(t).first().copied().unwrap_or(0))
                }
                _ => Err(alloc::format!("map {name} does not yield values")),
            };
        }
        let SetRef::Anonymous(sources) = map else {
            return Ok(0);
        };
        let bits = sources.iter().find_map(|s| match &s.data {
            Some(ElementData::Value(value)) => value.data_type().map(DataType::bits),
            _ => None,
        });
        bits.ok_or_else(|| String::from("the map does not yield values"))
    }

    pub(super) fn intern_key(&mut self, key: KeyCode) -> u32 {
        match self.program.keys.iter().rposition(|k| *k == key) {
            Some(at) => at as u32,
            None => {
                self.program.keys.push(key);
                self.program.keys.len() as u32 - 1
            }
        }
    }

    /// A lookup that has no effect besides its answer.
    pub(super) fn is_pure_lookup(&self, step: &Step) -> bool {
        match step {
            Step::Lookup { set, .. } => {
                let store = &self.state.sets[*set as usize].0;
                store.template.is_empty()
                    && store
                        .elements
                        .iter()
                        .flatten()
                        .all(|e| e.statements.is_empty())
            }
            _ => true,
        }
    }
}

fn bits_of(set: &SetType) -> Vec<u16> {
    set.parts().iter().map(|t| t.bits()).collect()
}

/// A range for each part of the key.
pub(super) fn element_key(key: &Expr, bits: &[u16]) -> Result<ElementKey, Why> {
    if form_of(bits, false).is_none() {
        return Err(TOO_LONG.into());
    }
    match key {
        Expr::Any => Ok(bits
            .iter()
            .map(|b| (0, crate::program::low_bits(*b)))
            .collect()),
        Expr::Concat(parts) if parts.len() == bits.len() => parts
            .iter()
            .zip(bits)
            .map(|(part, bits)| bounds(part, *bits))
            .collect(),
        Expr::Concat(_) => Err("the element has more or fewer parts than the set's type".into()),
        other if bits.len() == 1 => Ok(alloc::vec![bounds(other, bits[0])?]),
        _ => Err("the element has fewer parts than the set's type".into()),
    }
}

/// The same, where only the value itself says how wide it is.
pub(super) fn own_bounds(value: &Expr) -> Result<ElementKey, Why> {
    let one = |part: &Expr| bounds(part, part.data_type().map_or(128, |t| t.bits().max(1)));
    match value {
        Expr::Concat(parts) => parts.iter().map(one).collect(),
        other => Ok(alloc::vec![one(other)?]),
    }
}
