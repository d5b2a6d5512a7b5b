//! Tables for people: columns as wide as their widest cell.

/// A table under construction.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns whose cells end at one line, as numbers do.
    right: &'static [usize],
}

impl Table {
    /// A table with these headings; the columns in `right` are aligned to the right.
    pub fn new(headings: &[&str], right: &'static [usize]) -> Table {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        Table {
            rows: vec![headings],
            right,
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, one line a row.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns)
            .map(|column| width(column).unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line += gap;
                line += &match self.right.contains(&column) {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// A count of bytes in at most six characters.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if count < 10_000 {
        return count.to_string();
    }
    let mut value = count as f64;
    let mut unit = "";
    for next in UNITS {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if value < 99.95 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "BYTES"], &[1]);
        table.row(["db".into(), "7".into()]);
        table.row(["longer".into(), "12345".into()]);
        assert_eq!(
            table.render(),
            "NAME    BYTES\ndb          7\nlonger  12345\n"
        );
    }

    #[test]
    fn byte_counts_are_short() {
        let text: Vec<String> = [0, 9_999, 10_000, 123_456, 999_999, 1_500_000_000]
            .map(bytes)
            .into();
        assert_eq!(text, ["0", "9999", "10.0K", "123K", "1000K", "1.5G"]);
    }
}
