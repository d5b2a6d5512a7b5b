//! The two tables: what stands in their columns, what these are sorted by, and which of them a narrow
//! terminal has room for.

use super::figures::{DomainFigures, End};
use crate::rates::Moved;
use crate::table::{Table, bytes};
use std::cmp::Reverse;

/// What a column is sorted by: the largest number first, then texts, then ports.
pub type Order = (Reverse<u64>, String, u16);

/// A column of a table of `R`.
#[derive(Debug)]
pub struct Column<R: 'static> {
    pub heading: &'static str,
    /// Letters that it has at least.
    pub width: usize,
    /// Where there is little room, the highest rank goes first.
    rank: u8,
    pub kind: Kind,
    pub cell: fn(&R) -> String,
    pub order: fn(&R) -> Order,
}

/// How cells are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May lose its middle.
    Name,
    Word,
    Number,
}

/// What a table has in its rows.
pub trait Row: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];

    /// By what it is known again.
    fn key(&self) -> &str;

    /// Whether its path is another one than rings.
    fn is_slow(&self) -> bool;

    /// Whether one of its words has this in it, which is in small letters.
    fn has(&self, text: &str) -> bool {
        if text.is_empty() {
            return true;
        }
        let words = Self::COLUMNS.iter();
        let mut words = words.filter(|column| column.kind != Kind::Number);
        words.any(|column| (column.cell)(self).to_lowercase().contains(text))
    }
}

/// These rows below their headings, a line each, with the columns that so much room is enough for.
pub fn lines<R: Row>(rows: &[&R], width: usize) -> String {
    let mut shown: Vec<&Column<R>> = R::COLUMNS.iter().collect();
    let needed =
        |shown: &[&Column<R>]| shown.iter().map(|column| column.width + 2).sum::<usize>() - 2;
    while shown.len() > 1 && needed(&shown) > width {
        let least = shown.iter().map(|column| column.rank).max();
        shown.retain(|column| Some(column.rank) != least);
    }
    let of_kind = |kind| {
        let columns = shown.iter().enumerate();
        let columns = columns.filter(move |(_, column)| column.kind == kind);
        columns.map(|(at, _)| at).collect::<Vec<usize>>()
    };
    // As wide as they are at least: rates that change do not move what stands beside them.
    let headings = shown.iter().map(|column| match column.kind {
        Kind::Number => format!("{:>1$}", column.heading, column.width),
        _ => format!("{:<1$}", column.heading, column.width),
    });
    let headings: Vec<String> = headings.collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let numbers = of_kind(Kind::Number);
    let mut table = Table::new(&headings, &numbers);
    for row in rows {
        table.row(shown.iter().map(|column| (column.cell)(row)));
    }
    table.render_within(width, &of_kind(Kind::Name))
}

macro_rules! columns {
    ($row:ident; $($heading:literal, $width:literal, $rank:literal, $kind:ident: $cell:expr, $order:expr;)+) => {
        &[$(Column {
            heading: $heading,
            width: $width,
            rank: $rank,
            kind: Kind::$kind,
            cell: |$row| $cell,
            order: |$row| $order,
        },)+]
    };
}

fn by_number(number: u64) -> Order {
    (Reverse(number), String::new(), 0)
}

fn by_text(text: &str) -> Order {
    (Reverse(0), text.to_owned(), 0)
}

/// `db:80` before `db:443`.
fn by_place(place: &str) -> Order {
    let parts = place.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.unwrap_or((place, 0));
    (Reverse(0), host.to_owned(), port)
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn rate(moved: Option<Moved>, part: fn(Moved) -> u64) -> String {
    or_dash(moved.map(|moved| bytes(part(moved))))
}

fn by_rate(moved: Option<Moved>, part: fn(Moved) -> u64) -> Order {
    by_number(moved.map_or(0, part))
}

const TX: fn(Moved) -> u64 = |moved| moved.tx;
const RX: fn(Moved) -> u64 = |moved| moved.rx;

impl Row for End {
    // Heading, width, rank, kind: cell, order.
    const COLUMNS: &'static [Column<End>] = columns! { end;
        "CONN", 4, 7, Number: or_dash(end.connection.channel), by_number(end.connection.channel.unwrap_or(0));
        "LOCAL", 11, 0, Name: end.local.clone(), by_place(&end.local);
        "REMOTE", 11, 2, Name: end.remote.clone(), by_place(&end.remote);
        "DOMAIN", 11, 11, Name: end.connection.domain.clone(), by_text(&end.connection.domain);
        "PROCESS", 11, 8, Name: end.process.clone(), by_text(&end.process);
        "PATH", 6, 4, Word: end.connection.path.clone(), by_text(&end.connection.path);
        "REASON", 8, 6, Word: or_dash(end.connection.reason.as_ref()), by_text(end.connection.reason.as_deref().unwrap_or(""));
        "TX/s", 6, 1, Number: rate(end.rates.rings, TX), by_rate(end.rates.rings, TX);
        "RX/s", 6, 3, Number: rate(end.rates.rings, RX), by_rate(end.rates.rings, RX);
        "KERN/s", 6, 5, Number: rate(end.rates.kernel, Moved::total), by_rate(end.rates.kernel, Moved::total);
        "FILL", 6, 9, Number: or_dash(end.fill_bytes.map(bytes)), by_number(end.fill_bytes.unwrap_or(0));
        "LOST", 4, 10, Number: end.connection.lost_tx.to_string(), by_number(end.connection.lost_tx);
    };

    fn key(&self) -> &str {
        &self.key
    }

    fn is_slow(&self) -> bool {
        self.connection.path != "fast"
    }
}

impl Row for DomainFigures {
    const COLUMNS: &'static [Column<DomainFigures>] = columns! { row;
        "NAME", 11, 0, Name: row.domain.name.clone(), by_text(&row.domain.name);
        "ADDRESS", 10, 6, Word: or_dash(row.domain.ip), by_number(row.domain.ip.map_or(0, |ip| u64::MAX - u64::from(ip.to_bits())));
        "PROCS", 5, 9, Number: row.domain.processes.to_string(), by_number(row.domain.processes.into());
        "FAST", 4, 4, Number: row.sums.fast_ends.to_string(), by_number(row.sums.fast_ends);
        "KERN", 4, 5, Number: row.sums.kernel_ends.to_string(), by_number(row.sums.kernel_ends);
        "STACK", 5, 8, Number: row.sums.stack_ends.to_string(), by_number(row.sums.stack_ends);
        "TX/s", 6, 1, Number: bytes(row.sums.rings.tx), by_number(row.sums.rings.tx);
        "RX/s", 6, 2, Number: bytes(row.sums.rings.rx), by_number(row.sums.rings.rx);
        "KERN/s", 6, 3, Number: bytes(row.sums.kernel.total()), by_number(row.sums.kernel.total());
        "STACK/s", 7, 10, Number: bytes(row.sums.stack.total()), by_number(row.sums.stack.total());
        "MEMORY", 6, 7, Number: bytes(row.domain.ring_memory_bytes), by_number(row.domain.ring_memory_bytes);
    };

    fn key(&self) -> &str {
        &self.domain.name
    }

    fn is_slow(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::figures;
    use super::*;

    #[test]
    fn a_narrow_table_has_fewer_columns_and_fits() {
        let figures = figures();
        let ends: Vec<&End> = figures.ends.iter().collect();
        let headings = |width| {
            let text = lines(&ends, width);
            let fits = text.lines().all(|line| line.chars().count() <= width);
            assert!(fits, "{width}: {text}");
            let heading = text.lines().next().unwrap_or_default();
            heading.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(headings(20), "LOCAL TX/s");
        assert_eq!(headings(40), "LOCAL REMOTE TX/s RX/s");
        assert_eq!(
            headings(80),
            "CONN LOCAL REMOTE PATH REASON TX/s RX/s KERN/s"
        );
        assert_eq!(headings(130).split(' ').count(), End::COLUMNS.len());
        assert_eq!(
            lines(&ends, usize::MAX),
            "\x20CONN  LOCAL        REMOTE       DOMAIN       PROCESS      PATH    REASON      TX/s    RX/s  KERN/s    FILL  LOST
40000  db:6379      web:40000    db           1/redis      fast    -              0    995K       0       0     0
    -  web:39000    db:6379      web          1/redis      kernel  no-peer        0       0     500       -     0
40000  web:40000    db:6379      web          1/redis      fast    -           1.0M       0       0   50.0K     0
"
        );
        let domains: Vec<&DomainFigures> = figures.domains.iter().collect();
        for width in 1..100 {
            lines(&domains, width);
        }
        let text = lines(&domains, 80);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn places_are_in_the_order_of_their_ports() {
        assert!(by_place("db:80") < by_place("db:443") && by_place("a:9") < by_place("b:1"));
        assert!(by_number(7) < by_number(3), "the largest first");
    }
}
