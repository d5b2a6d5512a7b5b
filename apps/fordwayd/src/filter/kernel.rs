//! The rules as the fabric's nf_tables gets them, and its counts back.
//!
//! The text is the ruleset's listing with five changes:
//! - chains on hook output (of the sending domain) and input (of the receiving one) are put
//!   on hook forward, before and behind those that are there already: the fabric lies
//!   between the domains, and there a packet is neither sent nor received;
//! - counters and quotas begin at what the kernel is to count on from;
//! - nothing of family bridge may be called like the fabric's own table;
//! - nft 1.0.6 makes one comparison of two neighbours, `tcp sport != 1 tcp dport != 2`, which
//!   then holds where only one of them does; as ranges they stay two ([`keep_apart`]);
//! - long runs of like rules are one lookup ([`compact`]).

use fordway_filter::model::{
    Chain, ChainKind, Counter, DataType, Element, Expr, Family, Hook, ObjectState, RelOp, Rule,
    Ruleset, Set, Statement, Table, Value,
};
use fordway_nft::{Env, compact, list};
use fordway_platform::fabric::OWN_TABLE;

/// Far enough from every priority that has a name, and from overflow.
const STAGE: i32 = 1 << 20;

/// What nft is given.
#[derive(Debug)]
pub(super) struct ForKernel {
    pub(super) text: String,
    /// The same rule by rule, if there are runs: should nft not take them as lookups, and for its
    /// word about what it does not take.
    pub(super) long: Option<String>,
    /// There are base chains of families that see bridged packets by br_netfilter only.
    pub(super) sees_ip: bool,
}

/// Translates; an error says what cannot be in force between domains, and what to write.
pub(super) fn translate(ruleset: &Ruleset, env: &Env) -> Result<ForKernel, String> {
    let mut ruleset = ruleset.clone();
    let mut sees_ip = false;
    for table in &mut ruleset.tables {
        if table.family == Family::Bridge && table.name == OWN_TABLE {
            return Err(format!(
                "table bridge {OWN_TABLE} is the broker's own; give it another name"
            ));
        }
        let ip = matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet);
        for chain in &mut table.chains {
            chain.rules.iter_mut().for_each(keep_apart);
            sees_ip |= ip && chain.base.is_some();
            if ip {
                place(table.family, &table.name, chain)?;
            }
        }
        forget_counts(table);
    }
    let listed = |ruleset: &Ruleset| list::text(ruleset, env, list::Style::default());
    let mut short = ruleset.clone();
    compact::compact(&mut short, compact::RUN_MIN);
    Ok(ForKernel {
        text: listed(&short),
        long: (short != ruleset).then(|| listed(&ruleset)),
        sees_ip,
    })
}

/// Puts a chain of an end's hook where the fabric sees its packets.
fn place(family: Family, table: &str, chain: &mut Chain) -> Result<(), String> {
    let notrack = chain.rules.iter().flat_map(|rule| &rule.statements);
    let notrack = notrack.into_iter().any(|s| *s == Statement::Notrack);
    let Some(base) = &mut chain.base else {
        return Ok(());
    };
    let stage = match base.hook {
        Hook::Output => -STAGE,
        Hook::Input => STAGE,
        _ => return Ok(()),
    };
    let hook = base.hook.name();
    let refuse = |what: &str, instead: &str| {
        let name = &chain.name;
        Err(format!(
            "chain {family} {table} {name}: {what} on hook {hook} cannot be in force between domains; {instead}"
        ))
    };
    if base.kind == ChainKind::Nat {
        return refuse("type nat", "use hook prerouting or postrouting");
    }
    if notrack {
        return refuse("notrack", "write it on hook prerouting");
    }
    base.kind = ChainKind::Filter;
    base.hook = Hook::Forward;
    base.priority = base.priority.saturating_add(stage);
    Ok(())
}

/// Two and more comparisons of the packet's bytes with `!=` become ranges of one number.
fn keep_apart(rule: &mut Rule) {
    let compared: Vec<(&mut Expr, Value)> = rule
        .statements
        .iter_mut()
        .filter_map(|statement| match statement {
            Statement::Match {
                op: RelOp::Ne,
                left: Expr::Payload(_) | Expr::PayloadRaw { .. },
                right,
            } => number(right).map(|number| (right, number)),
            _ => None,
        })
        .collect();
    if compared.len() > 1 {
        for (right, number) in compared {
            let end = || Box::new(Expr::Value(number));
            *right = Expr::Range(end(), end());
        }
    }
}

/// A literal as it can be the end of a range: what has names, as the number that it is. None of a
/// field that fills no whole bytes, which nft leaves alone.
fn number(expr: &Expr) -> Option<Value> {
    use DataType::{
        ArpOp, EtherAddr, EtherType, IcmpCode, IcmpType, Icmpv6Code, Icmpv6Type, InetProto,
        InetService, Integer, Ipv4Addr, Ipv6Addr, TcpFlag,
    };
    let Expr::Value(value) = expr else {
        return None;
    };
    match value.data_type {
        InetService | Ipv4Addr | Ipv6Addr | EtherAddr | Integer(8 | 16 | 32) => Some(*value),
        InetProto | IcmpType | IcmpCode | Icmpv6Type | Icmpv6Code | TcpFlag => {
            Value::new(Integer(8), value.bytes())
        }
        EtherType | ArpOp => Value::new(Integer(16), value.bytes()),
        _ => None,
    }
}

fn forget_counts(table: &mut Table) {
    let zero = Counter::default();
    for rule in table.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
        for counter in counters(&mut rule.statements) {
            *counter = zero;
        }
    }
    for object in &mut table.objects {
        if let ObjectState::Counter(counter) = &mut object.state {
            *counter = zero;
        }
    }
    for element in table.sets.iter_mut().flat_map(|set| &mut set.elements) {
        for counter in counters(&mut element.statements) {
            *counter = zero;
        }
    }
}

fn counters(statements: &mut [Statement]) -> impl Iterator<Item = &mut Counter> {
    statements.iter_mut().filter_map(|s| match s {
        Statement::Counter(counter) => Some(counter),
        _ => None,
    })
}

/// Adds what the kernel has counted, and what packets have added to its sets.
pub(super) fn add_counts(ruleset: &mut Ruleset, kernel: &Ruleset) {
    for table in &mut ruleset.tables {
        let Some(counted) = kernel.table(table.family, &table.name) else {
            continue;
        };
        for at in 0..table.chains.len() {
            let chain = &table.chains[at];
            let Some(counted) = counted.chain(&chain.name) else {
                continue;
            };
            let counters = compact::counters(table, chain, counted, compact::RUN_MIN);
            let rules = &mut table.chains[at].rules;
            for (rule, counted) in counters {
                if let Some(rule) = rules.get_mut(rule) {
                    add_statements(&mut rule.statements, counted);
                }
            }
        }
        for object in &mut table.objects {
            let counted = counted.object(object.state.kind(), &object.name);
            match (&mut object.state, counted.map(|counted| counted.state)) {
                (ObjectState::Counter(sum), Some(ObjectState::Counter(more))) => add(sum, more),
                (ObjectState::Quota(quota), Some(ObjectState::Quota(now))) => *quota = now,
                _ => {}
            }
        }
        for set in &mut table.sets {
            if let Some(counted) = counted.set(&set.name) {
                add_elements(set, &counted.elements);
            }
        }
    }
}

/// Counters are told apart by their order; what else a rule has may be listed otherwise.
fn add_statements(statements: &mut [Statement], counted: &[Statement]) {
    let mut counted_quotas = counted.iter().filter_map(|s| match s {
        Statement::Quota(quota) => Some(*quota),
        _ => None,
    });
    let mut counted = counted.iter().filter_map(|s| match s {
        Statement::Counter(counter) => Some(*counter),
        _ => None,
    });
    for statement in statements {
        match statement {
            Statement::Counter(sum) => add(sum, counted.next().unwrap_or_default()),
            Statement::Quota(quota) => *quota = counted_quotas.next().unwrap_or(*quota),
            _ => {}
        }
    }
}

fn add_elements(set: &mut Set, counted: &[Element]) {
    if set.flags.dynamic || set.flags.timeout {
        let timed = |element: &Element| {
            set.flags.dynamic || element.timeout_ms.or(set.timeout_ms).is_some()
        };
        // What the kernel let go is gone; what packets have added is there.
        let kept: Vec<Element> = std::mem::take(&mut set.elements)
            .into_iter()
            .filter(|element| !timed(element) || counted.iter().any(|c| c.key == element.key))
            .collect();
        set.elements = kept;
    }
    for more in counted {
        match set.elements.iter_mut().find(|e| e.key == more.key) {
            Some(element) => add_statements(&mut element.statements, &more.statements),
            None if set.flags.dynamic => set.elements.push(more.clone()),
            None => {}
        }
    }
}

fn add(sum: &mut Counter, more: Counter) {
    sum.packets = sum.packets.saturating_add(more.packets);
    sum.bytes = sum.bytes.saturating_add(more.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fordway_nft::{NoFiles, load};

    fn ruleset(text: &str) -> Ruleset {
        let env = Env::default();
        // A block ends with its line.
        let text = text.replace("} }", "}\n}");
        load(&Ruleset::default(), &env, &NoFiles, "test", &text)
            .expect("rules")
            .ruleset
    }

    fn translated(text: &str) -> Result<ForKernel, String> {
        translate(&ruleset(text), &Env::default())
    }

    #[test]
    fn hooks_of_the_ends_lie_around_forward() {
        let rules = "table inet t {
            chain out { type filter hook output priority raw; tcp dport 1 drop; }
            chain in { type filter hook input priority filter; policy drop; counter packets 3 bytes 4; }
            chain pre { type filter hook prerouting priority raw; notrack; } }";
        let text = translated(rules).expect("translated").text;
        assert!(text.contains("hook forward priority -1048876;"), "{text}");
        assert!(
            text.contains("hook forward priority 1048576; policy drop"),
            "{text}"
        );
        assert!(text.contains("hook prerouting priority raw;"), "{text}");
        assert!(text.contains("counter packets 0 bytes 0"), "{text}");
    }

    #[test]
    fn neighbours_that_are_unequal_stay_two_comparisons() {
        let rules = "table inet t { chain c { type filter hook forward priority 0;
            tcp sport != 22 tcp dport != 80 drop
            ip ttl != 1 @nh,72,8 != 17 drop
            icmp type != echo-request icmp code != 1 drop
            ether saddr != 00:00:00:00:00:01 ether type != ip drop
            tcp flags != syn tcp window != 5 drop
            tcp dport != 443 drop; } }";
        let text = translated(rules).expect("translated").text;
        assert!(
            text.contains("tcp sport != 22-22 tcp dport != 80-80 drop"),
            "{text}"
        );
        assert!(
            text.contains("ip ttl != 1-1 @nh,72,8 != 0x11-0x11 drop"),
            "{text}"
        );
        let named = [
            "icmp type != 8-8 icmp code != 1-1 drop",
            "ether type != 2048-2048 drop",
            "tcp flags != 2-2 tcp window != 5-5 drop",
        ];
        for rule in named {
            assert!(text.contains(rule), "{rule}: {text}");
        }
        assert!(text.contains("tcp dport != 443 drop"), "{text}");
    }

    #[test]
    fn what_cannot_be_in_force_between_domains_is_refused() {
        let own = translated("table bridge fordway { }");
        assert!(own.expect_err("refused").contains("another name"));
        let nat = "table ip t { chain o { type nat hook output priority 0; } }";
        assert!(
            translated(nat)
                .expect_err("refused")
                .contains("type nat on hook output")
        );
        let raw = "table ip t { chain o { type filter hook output priority 0; notrack; } }";
        assert!(translated(raw).expect_err("refused").contains("notrack"));
    }

    #[test]
    fn counts_of_both_paths_are_one_sum() {
        let text = |rule: u64, named: u64| {
            format!(
                "table inet t {{ counter c {{ packets {named} bytes 10; }}
                 chain f {{ type filter hook forward priority 0;
                 tcp dport 1 counter packets {rule} bytes 100 counter name \"c\" accept; }} }}"
            )
        };
        let mut sum = ruleset(&text(1, 2));
        add_counts(&mut sum, &ruleset(&text(10, 20)));
        let listed = list::text(&sum, &Env::default(), list::Style::default());
        assert!(listed.contains("counter packets 11 bytes 200"), "{listed}");
        assert!(listed.contains("packets 22 bytes 20"), "{listed}");
    }
}
