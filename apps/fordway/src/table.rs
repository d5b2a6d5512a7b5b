//! Tables for people: columns as wide as their widest cell.

/// Columns of a terminal that nobody has made wider.
const WIDTH: usize = 80;
/// Fewest letters that are left of a cell.
const CELL_MIN: usize = 9;

/// A table under construction.
#[derive(Debug)]
pub struct Table<'r> {
    rows: Vec<Vec<String>>,
    /// Columns whose cells end at one line, as numbers do.
    right: &'r [usize],
}

impl<'r> Table<'r> {
    /// A table with these headings; the columns in `right` are aligned to the right.
    pub fn new(headings: &[&str], right: &'r [usize]) -> Table<'r> {
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
        self.render_within(usize::MAX, &[])
    }

    /// The same, as wide as the terminal, if it is written to one: cells of the columns in
    /// `cut` lose their middle for that.
    pub fn render_cut(&self, cut: &[usize]) -> String {
        self.render_within(terminal_width().unwrap_or(usize::MAX), cut)
    }

    /// The same in so many columns.
    pub fn render_within(&self, width_max: usize, cut: &[usize]) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let mut widths: Vec<usize> = (0..columns)
            .map(|column| width(column).unwrap_or(0))
            .collect();
        let gaps = 2 * columns.saturating_sub(1);
        let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(width_max);
        // One column of the widest at a time, as long as a few letters are left.
        while over != 0
            && let Some(&widest) = cut.iter().max_by_key(|column| widths[**column])
            && widths[widest] > CELL_MIN
        {
            widths[widest] -= 1;
            over -= 1;
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line += gap;
                let cell = shortened(cell, *width);
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

/// How wide the terminal is, if we write to one; what is read by a program is left as it is.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(match size.ws_col {
        0 => WIDTH,
        columns => columns.into(),
    })
}

/// A text of which each line that is wider than the terminal goes on below, indented by what it
/// is indented itself and by `indent`; `mark` ends what is to be read as one line.
pub fn folded(text: &str, indent: &str, mark: &str) -> String {
    match terminal_width() {
        Some(width) => fold(text, width, indent, mark),
        None => text.to_owned(),
    }
}

/// The same in so many columns.
pub fn fold(text: &str, width: usize, indent: &str, mark: &str) -> String {
    let mut folded = String::new();
    for line in text.lines() {
        let letters = line.trim_start();
        let indent = format!("{}{indent}", &line[..line.len() - letters.len()]);
        let mut at = 0;
        let mut rest = line;
        loop {
            let whole = columns(rest, at) <= width;
            let room = width.saturating_sub(mark.len());
            let broken = (!whole).then(|| last_blank(rest, at, room)).flatten();
            let Some(blank) = broken else {
                folded += rest;
                folded.push('\n');
                break;
            };
            folded += &rest[..blank];
            folded += mark;
            folded.push('\n');
            folded += &indent;
            at = columns(&indent, 0);
            rest = &rest[blank + 1..];
        }
    }
    folded
}

/// The column after `text` that begins at the column `from`; a tab goes on to the next eighth.
fn columns(text: &str, from: usize) -> usize {
    text.chars().fold(from, |at, letter| match letter {
        '\t' => at / 8 * 8 + 8,
        _ => at + 1,
    })
}

/// The last blank outside of quotes that lies before the column `room`, or else the first one
/// after it; none in the line's own indentation.
fn last_blank(line: &str, from: usize, room: usize) -> Option<usize> {
    let mut quoted = false;
    let mut begun = false;
    let mut best = None;
    for (index, letter) in line.char_indices() {
        quoted ^= letter == '"';
        if letter == ' ' && begun && !quoted {
            let fits = columns(&line[..index], from) <= room;
            if best.is_none() || fits {
                best = Some(index);
            }
            if !fits {
                break;
            }
        }
        begun |= !letter.is_whitespace();
    }
    best
}

/// A cell of at most `width` letters: the middle goes, as a port stands at the end.
pub fn shortened(cell: &str, width: usize) -> String {
    let letters = cell.chars().count();
    if letters <= width {
        return cell.to_owned();
    }
    let front = (width - 1) / 2;
    let back = letters - (width - 1 - front);
    let front = cell.chars().take(front);
    front.chain(['~']).chain(cell.chars().skip(back)).collect()
}

/// A line broken at blanks, as wide as people's terminals are; `indent` goes before every
/// line but the first.
pub fn wrap(line: &str, indent: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in line.split_inclusive(' ') {
        let letters = word.trim_end().chars().count();
        if width + letters > WIDTH && width > indent.len() {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text += indent;
            width = indent.len();
        }
        text += word;
        width += word.chars().count();
    }
    text
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
    fn what_is_too_wide_loses_its_middle() {
        let mut table = Table::new(&["A", "NAME"], &[]);
        table.row(["x".into(), "a-very-long-name:6379".into()]);
        table.row(["y".into(), "db:6379".into()]);
        let text = table.render_within(16, &[1]);
        assert_eq!(text, "A  NAME\nx  a-very~e:6379\ny  db:6379\n");
        // Not to nothing.
        let text = table.render_within(1, &[1]);
        assert!(text.contains("a-ve~6379"), "{text}");
    }

    #[test]
    fn long_lines_are_broken_at_blanks() {
        let line = format!("ok    name    {}", "word ".repeat(20));
        let text = wrap(line.trim_end(), "      ");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 20);
        assert!(
            text.lines()
                .skip(1)
                .all(|line| line.starts_with("      word"))
        );
        assert_eq!(wrap("short", "  "), "short");
    }

    #[test]
    fn long_lines_are_folded_at_blanks_outside_of_quotes() {
        let rule =
            "\t\tip saddr { 10.0.0.1, 10.0.0.2, 10.0.0.3 } comment \"as it is, long\" accept\n";
        let text = fold(rule, 40, "    ", " \\");
        let expected = "\t\tip saddr { 10.0.0.1, \\
\t\t    10.0.0.2, 10.0.0.3 \\
\t\t    } comment \\
\t\t    \"as it is, long\" \\
\t\t    accept
";
        assert_eq!(text, expected);
        assert_eq!(fold("short\n", 40, "  ", " \\"), "short\n");
        let word = "w".repeat(50);
        assert_eq!(fold(&word, 40, "  ", ""), format!("{word}\n"));
        assert_eq!(fold("a bc def", 4, "", ""), "a bc\ndef\n");
    }

    #[test]
    fn byte_counts_are_short() {
        let text: Vec<String> = [0, 9_999, 10_000, 123_456, 999_999, 1_500_000_000]
            .map(bytes)
            .into();
        assert_eq!(text, ["0", "9999", "10.0K", "123K", "1000K", "1.5G"]);
    }
}
