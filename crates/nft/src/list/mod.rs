//! Rulesets back to nft's two languages.
//!
//! What is listed can be loaded again, by nft as by us, and comes out the same. Sets are listed
//! in order, as nft does it, so that two listings can be compared.
use crate::prelude::*;
mod expr;
mod json;
mod json_expr;
mod statement;
mod text;
mod value;

use crate::{
    Env,
    ast::Listed,
    ast::Listing,
    check::{any_order, order},
};
use fordway_filter::model::{Element, Rule, Ruleset, Table};

/// How rulesets are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// With handles, as `nft -a`.
    pub handles: bool,
    /// Without what counters, quotas and timeouts have come to, as `nft -s`.
    pub stateless: bool,
}

/// The whole ruleset as nft's text.
pub fn text(ruleset: &Ruleset, env: &Env, style: Style) -> String {
    let everything = Listing {
        what: Listed::Ruleset,
        family: None,
        table: None,
        name: None,
    };
    text_of(ruleset, env, style, &everything)
}

/// What a `list` command asked for, as nft's text.
pub fn text_of(ruleset: &Ruleset, env: &Env, style: Style, listing: &Listing) -> String {
    text::listing(ruleset, env, style, listing)
}

/// One rule in one line, without what it has counted.
pub fn rule(rule: &Rule, env: &Env) -> String {
    text::rule(rule, env)
}

/// The whole ruleset as libnftables' JSON.
pub fn json(ruleset: &Ruleset, env: &Env) -> serde_json::Value {
    json::ruleset(ruleset, env)
}

fn tables<'a>(ruleset: &'a Ruleset, listing: &'a Listing) -> impl Iterator<Item = &'a Table> {
    ruleset.tables.iter().filter(move |table| {
        listing.family.is_none_or(|family| family == table.family)
            && listing
                .table
                .as_ref()
                .is_none_or(|name| *name == table.name)
    })
}

/// Elements in the order in which they are listed.
fn sorted(elements: &[Element]) -> Vec<&Element> {
    let mut sorted: Vec<&Element> = elements.iter().collect();
    if any_order(elements) {
        sorted.sort_by_cached_key(|element| order(&element.key));
    }
    sorted
}
