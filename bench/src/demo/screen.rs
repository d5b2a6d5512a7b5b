//! What the demo shows as it goes: 80 columns, a line at a time. On a terminal a line that does not
//! stay says what happens just now; colours come where there is a terminal and no NO_COLOR
//! (no-color.org). With `--json` all of this goes to standard error.

use anyhow::Result;
use std::io::{IsTerminal, Write};

/// Columns of a terminal that nobody has made wider.
pub const COLUMNS: usize = 80;
/// In what colour a line is, as "Select Graphic Rendition" numbers it (ECMA-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As the terminal has it.
    Plain,
    /// A part begins.
    Heading,
    /// A command that a user could type.
    Command,
    /// What was to be shown.
    Good,
    /// What was not.
    Bad,
}

impl Style {
    fn number(self) -> &'static str {
        match self {
            Style::Plain => "0",
            Style::Heading => "1",
            Style::Command => "36",
            Style::Good => "32",
            Style::Bad => "31",
        }
    }
}

/// Where it goes.
pub struct Screen {
    out: Box<dyn Write>,
    is_live: bool,
    is_coloured: bool,
    /// A line that does not stay stands there.
    is_dirty: bool,
}

impl Screen {
    /// Standard output, or standard error where that is a document's.
    pub fn new(json: bool) -> Screen {
        let (out, is_terminal): (Box<dyn Write>, bool) = match json {
            true => (Box::new(std::io::stderr()), std::io::stderr().is_terminal()),
            false => (Box::new(std::io::stdout()), std::io::stdout().is_terminal()),
        };
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_live = is_terminal && set("TERM").is_some_and(|term| term != "dumb");
        Screen {
            out,
            is_live,
            is_coloured: is_live && set("NO_COLOR").is_none(),
            is_dirty: false,
        }
    }

    /// What happens just now.
    pub fn status(&mut self, text: &str) -> Result<()> {
        if self.is_live {
            let text: String = text.chars().take(COLUMNS - 1).collect();
            write!(self.out, "\r\x1b[K{text}")?;
            self.out.flush()?;
            self.is_dirty = true;
        }
        Ok(())
    }

    /// A text that stays, broken at blanks where it is too wide; further lines are indented as the
    /// first is.
    pub fn line(&mut self, style: Style, text: &str) -> Result<()> {
        self.clear()?;
        for line in wrapped(text) {
            match self.is_coloured && style != Style::Plain {
                true => writeln!(self.out, "\x1b[{}m{line}\x1b[0m", style.number())?,
                false => writeln!(self.out, "{line}")?,
            }
        }
        self.out.flush()?;
        Ok(())
    }

    fn clear(&mut self) -> std::io::Result<()> {
        if self.is_dirty {
            self.is_dirty = false;
            write!(self.out, "\r\x1b[K")?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A reader that is gone needs no clear line.
        let _ = self.clear().and_then(|()| self.out.flush());
    }
}

fn wrapped(text: &str) -> Vec<String> {
    if text.chars().count() <= COLUMNS {
        return vec![text.to_owned()];
    }
    let indent = &text[..text.len() - text.trim_start().len()];
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        let is_empty = last.len() == indent.len();
        if !is_empty && last.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("{indent}{word}"));
        } else {
            last.push_str(if is_empty { "" } else { " " });
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_is_broken_and_stays_indented() {
        let text = format!("    {}", "word ".repeat(40));
        let lines = wrapped(&text);
        assert_eq!(lines.len(), 3);
        for line in &lines {
            assert!(line.starts_with("    word") && line.chars().count() <= COLUMNS);
        }
        let words: usize = lines
            .iter()
            .map(|line| line.split(' ').filter(|w| !w.is_empty()).count())
            .sum();
        assert_eq!(words, 40);
        assert_eq!(wrapped("a  b"), ["a  b"]);
    }
}
