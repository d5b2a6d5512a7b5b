//! The rules as the fabric's nf_tables gets them, and as they are listed again.
//!
//! The fabric lies between the domains: there a packet is neither sent nor received. So chains on hook
//! output (of the sending domain) and input (of the receiving one) are put on hook forward, before and
//! behind those that are there already. In nft's listing of them one line differs, and is put back when
//! the fabric's rules are listed.
//!
//! The kernel counts its packets in the counters as they are written; what rings carried is added to
//! the lines when they are listed.

use super::listing::{Chain, Line, lines, with_counts};
use fordway_filter::rules::{self, Base, ChainKind, Expr, Family, Hook, Rules, Table};
use fordway_filter::{Counter, Filter, RuleId};
use fordway_platform::fabric::OWN_TABLE;
use std::collections::BTreeMap;

/// Far enough from every priority that has a name, and from overflow.
const STAGE: i32 = 1 << 20;

/// A device of the fabric by which nothing comes or goes.
const NOWHERE: &str = "lo";

/// Lines of chains that the kernel has on another hook, as they were written: by table and name.
pub(super) type Moved = BTreeMap<(String, String), String>;

/// What nft is given.
#[derive(Debug)]
pub(super) struct ForKernel {
    pub(super) text: String,
    pub(super) moved: Moved,
    /// There are base chains of families that see bridged packets by br_netfilter only.
    pub(super) sees_ip: bool,
}

/// Translates nft's listing of these rules; an error says what cannot be in force between domains,
/// and what to write.
pub(super) fn translate(listing: &str, rules: &Rules) -> Result<ForKernel, String> {
    if rules.tables.iter().any(is_own) {
        return Err(format!(
            "table bridge {OWN_TABLE} is the broker's own; give it another name"
        ));
    }
    let ip = |table: &&Table| matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet);
    let mut tables = rules.tables.iter().filter(ip);
    let sees_ip = tables.any(|table| table.chains.iter().any(|chain| chain.base.is_some()));
    let mut moved = Moved::new();
    let mut text = String::new();
    for (line, what) in lines(listing) {
        let base = match what {
            Line::Base(chain) => placed(rules, chain)?,
            _ => None,
        };
        if let (Line::Base(chain), Some(_)) = (what, &base) {
            let name = (chain.table.to_owned(), chain.name.to_owned());
            moved.insert(name, line.to_owned());
        }
        text += base.as_deref().unwrap_or(line);
        text.push('\n');
    }
    Ok(ForKernel {
        text,
        moved,
        sees_ip,
    })
}

/// Whether it is the broker's.
pub(super) fn is_own(table: &Table) -> bool {
    table.family == Family::Bridge && table.name == OWN_TABLE
}

/// The base chain that a line belongs to.
fn base_chain<'r>(
    rules: &'r Rules,
    named: Chain<'_>,
) -> Option<(&'r Table, &'r rules::Chain, &'r Base)> {
    let mut tables = rules.tables.iter();
    let table = tables.find(|table| named.table == format!("{} {}", table.family, table.name))?;
    let chain = table.chains.iter().find(|chain| chain.name == named.name)?;
    Some((table, chain, chain.base.as_ref()?))
}

/// The line of a chain of an end's hook, where the fabric sees its packets; `None`: it stays.
fn placed(rules: &Rules, named: Chain<'_>) -> Result<Option<String>, String> {
    // A text of several lines can look like a chain.
    let Some((table, chain, base)) = base_chain(rules, named) else {
        return Err(format!(
            "chain {} {}: nft lists it where the kernel has none; write comments in one line",
            named.table, named.name
        ));
    };
    if !matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet) {
        return Ok(None);
    }
    let (stage, hook) = match base.hook {
        Hook::Output => (-STAGE, "output"),
        Hook::Input => (STAGE, "input"),
        _ => return Ok(None),
    };
    let refuse = |what: &str, instead: &str| {
        Err(format!(
            "chain {} {}: {what} on hook {hook} cannot be in force between domains; {instead}",
            named.table, named.name
        ))
    };
    if base.kind == ChainKind::Nat {
        return refuse("type nat", "use hook prerouting or postrouting");
    }
    let mut exprs = chain.rules.iter().flat_map(|rule| &rule.exprs);
    if exprs.any(|expr| *expr == Expr::Notrack) {
        return refuse("notrack", "write it on hook prerouting");
    }
    let priority = base.priority.saturating_add(stage);
    let policy = if base.drops { "drop" } else { "accept" };
    Ok(Some(format!(
        "\t\ttype filter hook forward priority {priority}; policy {policy};"
    )))
}

/// The lines of [`placed`] as they were written: for who knows nothing but the fabric's listing.
pub(super) fn written(fabric: &str) -> Moved {
    let line_before = |line: &str| {
        let rest = line
            .trim()
            .strip_prefix("type filter hook forward priority ")?;
        let (priority, policy) = rest.split_once(';')?;
        let priority: i32 = priority.parse().ok()?;
        let (stage, hook) = match priority {
            _ if priority < -STAGE / 2 => (-STAGE, "output"),
            _ if priority > STAGE / 2 => (STAGE, "input"),
            _ => return None,
        };
        let priority = priority.saturating_sub(stage);
        Some(format!(
            "\t\ttype filter hook {hook} priority {priority};{policy}"
        ))
    };
    let moved = lines(fabric).filter_map(|(line, what)| match what {
        Line::Base(chain) => {
            let name = (chain.table.to_owned(), chain.name.to_owned());
            Some((name, line_before(line)?))
        }
        _ => None,
    });
    moved.collect()
}

impl ForKernel {
    /// Has no chain name a device that is not there; the chains of which that is so. One that is
    /// left without any gets [`NOWHERE`].
    pub(super) fn without_absent(
        &mut self,
        rules: &Rules,
        is_there: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut waiting = Vec::new();
        let mut text = String::new();
        for (line, what) in lines(&self.text) {
            let absent = match what {
                Line::Base(chain) => base_chain(rules, chain)
                    .filter(|(_, _, base)| !base.devices.iter().all(|device| is_there(device)))
                    .map(|(_, _, base)| (chain, base)),
                _ => None,
            };
            match absent {
                None => text += line,
                Some((chain, base)) => {
                    let devices = base.devices.iter().map(String::as_str);
                    let mut there: Vec<&str> = devices.filter(|device| is_there(device)).collect();
                    if there.is_empty() {
                        there.push(NOWHERE);
                    }
                    let policy = if base.drops { "drop" } else { "accept" };
                    text += &format!(
                        "\t\ttype filter hook {} devices = {{ {} }} priority {}; policy {policy};",
                        base.hook.name(),
                        there.join(", "),
                        base.priority
                    );
                    waiting.push(format!("{} {}", chain.table, chain.name));
                    let name = (chain.table.to_owned(), chain.name.to_owned());
                    self.moved.insert(name, line.to_owned());
                }
            }
            text.push('\n');
        }
        self.text = text;
        waiting
    }
}

/// The fabric's listing as it was written, with what rings have carried as the filter counts it.
pub(super) fn listed(fabric: &str, moved: &Moved, counts: Option<&Filter>) -> String {
    let numbers = counts.map(numbers).unwrap_or_default();
    let mut objects: BTreeMap<(String, &str), Counter> = BTreeMap::new();
    for (filter, (table, object, counter)) in counts
        .into_iter()
        .flat_map(|filter| filter.object_counts().map(move |counts| (filter, counts)))
    {
        if let Some(table) = filter.rules().tables.get(usize::from(table))
            && let Some(object) = table.objects.get(object as usize)
        {
            let table = format!("{} {}", table.family, table.name);
            objects.insert((table, &object.name), counter);
        }
    }
    let mut text = String::new();
    for (line, what) in lines(fabric) {
        match what {
            Line::Base(chain) => {
                let name = (chain.table.to_owned(), chain.name.to_owned());
                text += moved.get(&name).map_or(line, String::as_str);
            }
            Line::Rule { chain, at } => {
                let number = numbers.get(&(chain.table.to_owned(), chain.name.to_owned()));
                let id = number.map(|(table, chain)| RuleId {
                    table: *table,
                    chain: *chain,
                    rule: Some(at as u32),
                });
                let more = counts.zip(id).into_iter();
                text += &with_counts(line, more.flat_map(|(filter, id)| filter.counts(id)));
            }
            Line::Object { table, name } => {
                let more = objects.get(&(table.to_owned(), name));
                text += &with_counts(line, more.into_iter().copied());
            }
            Line::Other => text += line,
        }
        text.push('\n');
    }
    text
}

/// Positions of table and chain by their names.
fn numbers(filter: &Filter) -> BTreeMap<(String, String), (u16, u16)> {
    let tables = filter.rules().tables.iter().enumerate();
    let chains = tables.flat_map(|(table_at, table)| {
        let name = format!("{} {}", table.family, table.name);
        let chains = table.chains.iter().enumerate();
        chains.map(move |(at, chain)| {
            (
                (name.clone(), chain.name.clone()),
                (table_at as u16, at as u16),
            )
        })
    });
    chains.collect()
}
