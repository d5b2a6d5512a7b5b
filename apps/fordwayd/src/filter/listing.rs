//! nft's listing, line by line: which rule, chain or counter a line is.
//!
//! nft begins each rule with a line and writes one command a block, whatever wrote the rules:
//! ```text
//!   table inet shop {
//!       counter hits {
//!           packets 3 bytes 180
//!       }
//!       chain forward {
//!           type filter hook forward priority filter; policy drop;
//!           tcp dport 6379 counter packets 1 bytes 60 accept
//! ```
//! Rules stand in their chain's order, and chains under their names: so a line is known by its place,
//! and nobody reads what it says but for its counters. What stands in braces or quotes that a line before
//! has opened belongs to that line (chains without a name, texts with an end of line).

use fordway_filter::Counter;

/// A line of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'l> {
    /// `type ... hook ...` of a chain.
    Base(Chain<'l>),
    /// Number `at` of a chain's rules.
    Rule {
        /// Where it stands.
        chain: Chain<'l>,
        /// From 0.
        at: usize,
    },
    /// What an object with a name has counted.
    Object {
        /// `inet shop`.
        table: &'l str,
        /// Its name.
        name: &'l str,
    },
    /// Anything else.
    Other,
}

/// A chain by its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chain<'l> {
    /// `inet shop`.
    pub table: &'l str,
    /// Its name.
    pub name: &'l str,
}

/// Each line, and what it is.
pub fn lines(listing: &str) -> impl Iterator<Item = (&str, Line<'_>)> {
    let mut table = "";
    let mut block = None;
    let mut rules = 0;
    let mut open = Open::default();
    listing.lines().map(move |line| {
        let said = line.trim();
        let inside = open != Open::default();
        let is_edge = match block {
            Some(_) => line.starts_with("\t}"),
            None => !said.starts_with("comment "),
        };
        if inside || !is_edge {
            open.read(line);
        }
        let what = match (block, said) {
            _ if inside => Line::Other,
            (_, "") => Line::Other,
            (None, _) if !line.starts_with('\t') => {
                table = said
                    .trim_end_matches('{')
                    .trim()
                    .trim_start_matches("table ");
                Line::Other
            }
            (None, _) if said.starts_with("comment ") => Line::Other,
            (None, _) if said.ends_with('{') => {
                block = said.trim_end_matches('{').trim().split_once(' ');
                rules = 0;
                Line::Other
            }
            (Some(_), "}") if line.starts_with("\t}") => {
                block = None;
                Line::Other
            }
            (Some(("chain", name)), _) => {
                let chain = Chain { table, name };
                match said {
                    _ if said.starts_with("type ") => Line::Base(chain),
                    _ if said.starts_with("comment ") => Line::Other,
                    _ => {
                        rules += 1;
                        Line::Rule {
                            chain,
                            at: rules - 1,
                        }
                    }
                }
            }
            (Some(("counter", name)), _) if said.starts_with("packets ") => {
                Line::Object { table, name }
            }
            _ => Line::Other,
        };
        (line, what)
    })
}

/// What a line leaves open for the next ones.
#[derive(Clone, Copy, Default, PartialEq)]
struct Open {
    braces: u32,
    quotes: bool,
}

impl Open {
    fn read(&mut self, text: &str) {
        for byte in text.bytes() {
            match (byte, self.quotes) {
                (b'"', _) => self.quotes = !self.quotes,
                (b'{', false) => self.braces += 1,
                (b'}', false) => self.braces = self.braces.saturating_sub(1),
                _ => {}
            }
        }
    }
}

/// The line with its counters higher by these, one after the other.
pub(super) fn with_counts(line: &str, more: impl Iterator<Item = Counter>) -> String {
    const MARK: &str = "packets ";
    let (mut out, mut rest) = (String::new(), line);
    let mut open = Open::default();
    for more in more {
        loop {
            let Some((before, counter)) = rest.split_once(MARK) else {
                return out + rest;
            };
            open.read(before);
            out += before;
            out += MARK;
            rest = counter;
            if !open.quotes
                && let Some((packets, bytes, behind)) = counted(counter)
            {
                let packets = packets.saturating_add(more.packets);
                out += &format!("{packets} bytes {}", bytes.saturating_add(more.bytes));
                rest = behind;
                break;
            }
        }
    }
    out + rest
}

/// `3 bytes 180`, and what stands behind.
fn counted(text: &str) -> Option<(u64, u64, &str)> {
    let (packets, rest) = text.split_once(" bytes ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (bytes, behind) = rest.split_at(digits);
    Some((packets.parse().ok()?, bytes.parse().ok()?, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "table inet shop {\n\tcounter hits {\n\t\tpackets 3 bytes 180\n\t}\n\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 1.2.3.4,\n\t\t\t     1.2.3.5 }\n\t}\n\n\tchain forward {\n\t\tcomment \"all\"\n\t\ttype filter hook forward priority filter; policy drop;\n\t\ttcp dport 1 counter packets 1 bytes 60 accept\n\t\tdrop\n\t}\n}\ntable ip b {\n\tchain c {\n\t\taccept\n\t}\n}\n";

    #[test]
    fn each_line_is_known_by_its_place() {
        let known: Vec<_> = lines(LISTING)
            .map(|(_, what)| what)
            .filter(|what| *what != Line::Other)
            .collect();
        let forward = Chain {
            table: "inet shop",
            name: "forward",
        };
        let other = Chain {
            table: "ip b",
            name: "c",
        };
        assert_eq!(
            known,
            [
                Line::Object {
                    table: "inet shop",
                    name: "hits"
                },
                Line::Base(forward),
                Line::Rule {
                    chain: forward,
                    at: 0
                },
                Line::Rule {
                    chain: forward,
                    at: 1
                },
                Line::Rule {
                    chain: other,
                    at: 0
                },
            ]
        );
    }

    #[test]
    fn counters_go_up_in_their_order() {
        let line = "\t\ttcp dport 1 counter packets 1 bytes 60 counter packets 0 bytes 0 accept";
        let more = [(2, 40), (u64::MAX, 7)].map(Counter::from);
        assert_eq!(
            with_counts(line, more.into_iter()),
            format!(
                "\t\ttcp dport 1 counter packets 3 bytes 100 counter packets {} bytes 7 accept",
                u64::MAX
            )
        );
        let odd = "ip saddr @packets log prefix \"packets 1 bytes 2\" counter packets 5 bytes 6";
        let more = [(1, 1)].map(Counter::from);
        assert_eq!(
            with_counts(odd, more.into_iter()),
            "ip saddr @packets log prefix \"packets 1 bytes 2\" counter packets 6 bytes 7",
            "a name or a text is no counter"
        );
    }

    #[test]
    fn what_a_line_opens_belongs_to_it() {
        let listing = "table inet t {\n\tchain c {\n\t\ttcp dport 1 jump {\n\t\t\tcounter packets 0 bytes 0 accept\n\t\t}\n\t\tlog prefix \"a\ntype b\n}\"\n\t\tdrop\n\t}\n\tchain d {\n\t\taccept\n\t}\n}\n";
        let chain = |name| Chain {
            table: "inet t",
            name,
        };
        let known: Vec<_> = lines(listing)
            .filter(|(_, what)| *what != Line::Other)
            .collect();
        assert_eq!(
            known,
            [
                (
                    "\t\ttcp dport 1 jump {",
                    Line::Rule {
                        chain: chain("c"),
                        at: 0
                    }
                ),
                (
                    "\t\tlog prefix \"a",
                    Line::Rule {
                        chain: chain("c"),
                        at: 1
                    }
                ),
                (
                    "\t\tdrop",
                    Line::Rule {
                        chain: chain("c"),
                        at: 2
                    }
                ),
                (
                    "\t\taccept",
                    Line::Rule {
                        chain: chain("d"),
                        at: 0
                    }
                ),
            ]
        );
    }
}
