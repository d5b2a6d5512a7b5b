//! What the user sees and has chosen: no terminal and no broker in it.
//!
//! Rows are put in order when figures or a choice come; only those in the window are written out. A row that
//! the user has marked stays marked wherever it goes; the first is marked until then.

use super::columns::{Column, Row, lines};
use super::figures::{DomainFigures, End, Figures};
use crate::cli::Top;
use crate::table::{Table, fold};
use crate::why::text_of;
use serde_json::Value;
use std::ops::Range;

/// What a user may press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Press {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Tab,
    Letter(char),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
}

/// What a press asks for that is not done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    Nothing,
    Leave,
    Suspend,
}

/// Which table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Domains,
    Connections,
}

/// What the keys are about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    List,
    /// The filter is typed.
    Filter,
    /// One end, by its key.
    Detail(String),
    Help,
}

/// What belongs to one of the tables.
#[derive(Clone, Debug)]
struct View {
    /// Index of the column to sort by.
    column: usize,
    is_reversed: bool,
    /// Rows that are shown, in order: places in the figures.
    order: Vec<usize>,
    /// Place of the marked row in `order`.
    at: usize,
    /// Its key, once the user has chosen it.
    marked: Option<String>,
    /// First row of the window.
    top: usize,
}

impl View {
    fn by<R: Row>(heading: &str) -> View {
        let column = R::COLUMNS.iter().position(|one| one.heading == heading);
        View {
            column: column.unwrap_or(0),
            is_reversed: false,
            order: Vec::new(),
            at: 0,
            marked: None,
            top: 0,
        }
    }

    /// Puts the rows that are wanted in order.
    fn arrange<R: Row>(&mut self, rows: &[R], wanted: impl Fn(&R) -> bool) {
        let Column { order, .. } = &R::COLUMNS[self.column];
        let places = 0..rows.len();
        self.order = places.filter(|place| wanted(&rows[*place])).collect();
        self.order.sort_by_cached_key(|place| order(&rows[*place]));
        if self.is_reversed {
            self.order.reverse();
        }
        let is_marked = |place: &usize| self.marked.as_deref() == Some(rows[*place].key());
        let at = self.order.iter().position(is_marked);
        let last = self.order.len().saturating_sub(1);
        self.at = at.unwrap_or(self.at).min(last);
    }

    fn mark<R: Row>(&mut self, rows: &[R], at: usize) {
        self.at = at.min(self.order.len().saturating_sub(1));
        self.marked = self.marked_row(rows).map(|row| row.key().to_owned());
    }

    fn marked_row<'r, R: Row>(&self, rows: &'r [R]) -> Option<&'r R> {
        rows.get(*self.order.get(self.at)?)
    }

    /// The part of `order` that so many lines have room for, with the marked row in it.
    fn window(&mut self, height: usize) -> Range<usize> {
        let most = self.order.len().saturating_sub(height);
        let least = (self.at + 1).saturating_sub(height);
        self.top = self.top.min(self.at).max(least).min(most);
        self.top..(self.top + height).min(self.order.len())
    }
}

/// A line of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    pub tone: Tone,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// Headings, and what must be seen.
    Strong,
    /// The marked row.
    Marked,
    /// A row of another path than rings.
    Slow,
}

impl Tone {
    fn of(self, text: impl Into<String>) -> Line {
        Line {
            text: text.into(),
            tone: self,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Model {
    figures: Figures,
    /// Why no newer figures came.
    trouble: Option<String>,
    shown: Shown,
    domains: View,
    connections: View,
    mode: Mode,
    filter: String,
    /// Also ends that no program with the library holds.
    all: bool,
    pub is_paused: bool,
    /// First line of a text that is longer than the screen.
    scrolled: usize,
    /// Rows that a page has.
    page: usize,
}

impl Model {
    /// With the first figures.
    pub fn new(figures: Figures, options: &Top) -> Model {
        let mut model = Model {
            figures,
            trouble: None,
            shown: Shown::Connections,
            domains: View::by::<DomainFigures>("TX/s"),
            connections: View::by::<End>("TX/s"),
            mode: Mode::List,
            filter: String::new(),
            all: options.all,
            is_paused: false,
            scrolled: 0,
            page: 1,
        };
        model.arrange();
        model
    }

    /// The next figures, or why there are none: those before stay, but nothing is said to move.
    pub fn take(&mut self, figures: Result<Figures, String>) {
        match figures {
            Ok(figures) => {
                self.figures = figures;
                self.trouble = None;
            }
            Err(trouble) => {
                self.figures.forget_rates();
                self.trouble = Some(trouble);
            }
        }
        self.arrange();
    }

    fn arrange(&mut self) {
        let filter = &self.filter.to_lowercase();
        let (figures, all) = (&self.figures, self.all);
        self.domains.arrange(&figures.domains, |row| {
            figures.is_wanted(&row.domain.name) && row.has(filter)
        });
        self.connections.arrange(&figures.ends, |end| {
            figures.is_shown(end, all) && end.has(filter)
        });
    }

    fn view(&self) -> &View {
        match self.shown {
            Shown::Domains => &self.domains,
            Shown::Connections => &self.connections,
        }
    }

    fn view_mut(&mut self) -> &mut View {
        match self.shown {
            Shown::Domains => &mut self.domains,
            Shown::Connections => &mut self.connections,
        }
    }

    /// Does what a key is for.
    pub fn press(&mut self, press: Press) -> Asks {
        match press {
            Press::Interrupt => return Asks::Leave,
            Press::Suspend => return Asks::Suspend,
            _ => {}
        }
        match self.mode {
            Mode::Filter => self.type_filter(press),
            Mode::List => return self.press_in_list(press),
            Mode::Detail(_) | Mode::Help => match press {
                Press::Letter('q') => return Asks::Leave,
                Press::Escape | Press::Enter | Press::Backspace => self.mode = Mode::List,
                Press::Letter(' ') => self.is_paused ^= true,
                _ => self.scrolled = moved(self.scrolled, press, self.page, usize::MAX),
            },
        }
        Asks::Nothing
    }

    fn type_filter(&mut self, press: Press) {
        match press {
            Press::Letter(letter) => self.filter.push(letter),
            Press::Backspace => drop(self.filter.pop()),
            Press::Enter => self.mode = Mode::List,
            Press::Escape => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            _ => {}
        }
        self.arrange();
    }

    fn press_in_list(&mut self, press: Press) -> Asks {
        match press {
            Press::Letter('q') | Press::Escape => return Asks::Leave,
            Press::Letter('?') => self.read(Mode::Help),
            Press::Letter('/') => self.mode = Mode::Filter,
            Press::Letter(' ') => self.is_paused ^= true,
            Press::Letter('a') => self.all ^= true,
            Press::Letter('d') => self.shown = Shown::Domains,
            Press::Letter('c') => self.shown = Shown::Connections,
            Press::Letter('r') => self.view_mut().is_reversed ^= true,
            Press::Letter('s' | '>') => self.sort_by_next(1),
            Press::Letter('<') => self.sort_by_next(self.headings().len() - 1),
            Press::Tab => {
                self.shown = match self.shown {
                    Shown::Domains => Shown::Connections,
                    Shown::Connections => Shown::Domains,
                }
            }
            Press::Enter => self.enter(),
            _ => self.go(press),
        }
        self.arrange();
        Asks::Nothing
    }

    fn sort_by_next(&mut self, steps: usize) {
        let columns = self.headings().len();
        let view = self.view_mut();
        view.column = (view.column + steps) % columns;
        view.is_reversed = false;
    }

    fn headings(&self) -> Vec<&'static str> {
        match self.shown {
            Shown::Domains => DomainFigures::COLUMNS
                .iter()
                .map(|one| one.heading)
                .collect(),
            Shown::Connections => End::COLUMNS.iter().map(|one| one.heading).collect(),
        }
    }

    fn go(&mut self, press: Press) {
        let page = self.page;
        let at = |view: &View| moved(view.at, press, page, view.order.len());
        match self.shown {
            Shown::Domains => {
                let at = at(&self.domains);
                self.domains.mark(&self.figures.domains, at);
            }
            Shown::Connections => {
                let at = at(&self.connections);
                self.connections.mark(&self.figures.ends, at);
            }
        }
    }

    /// From a domain to its connections, from a connection to all that is known of it.
    fn enter(&mut self) {
        match self.shown {
            Shown::Domains => {
                if let Some(row) = self.domains.marked_row(&self.figures.domains) {
                    self.filter = row.domain.name.clone();
                    self.shown = Shown::Connections;
                }
            }
            Shown::Connections => {
                if let Some(end) = self.connections.marked_row(&self.figures.ends) {
                    let key = end.key.clone();
                    self.read(Mode::Detail(key));
                }
            }
        }
    }

    fn read(&mut self, mode: Mode) {
        self.mode = mode;
        self.scrolled = 0;
    }

    /// The totals and the whole table of connections: what a pipe gets.
    pub fn page(&self, width: usize) -> String {
        let [_, totals, _] = self.figures.headings();
        let order = self.connections.order.iter();
        let ends: Vec<&End> = order.map(|place| &self.figures.ends[*place]).collect();
        format!("{totals}\n{}", lines(&ends, width))
    }

    /// What a screen of this size shows: one line at most for each of its lines.
    pub fn screen(&mut self, width: usize, height: usize) -> Vec<Line> {
        let headings = match height {
            0..5 => 0,
            5..10 => 1,
            _ => 3,
        };
        let room = height.saturating_sub(headings + 1);
        let [broker, totals, so_far] = self.figures.headings();
        let mut screen: Vec<Line> = match headings {
            3 => [broker, totals, so_far]
                .map(|text| Tone::Plain.of(text))
                .into(),
            1 => vec![Tone::Plain.of(totals)],
            _ => Vec::new(),
        };
        let text = match &self.mode {
            Mode::Detail(key) => Some(detail(&self.figures, key)),
            Mode::Help => Some(HELP.to_owned()),
            Mode::List | Mode::Filter => None,
        };
        screen.extend(match text {
            Some(text) => self.text(&text, width, room),
            None => self.table(width, room),
        });
        screen.truncate(height.saturating_sub(1));
        screen.resize(height.saturating_sub(1), Tone::Plain.of(""));
        screen.push(self.status());
        screen
    }

    fn table(&mut self, width: usize, room: usize) -> Vec<Line> {
        let height = room.saturating_sub(1);
        self.page = height.max(1);
        let figures = &self.figures;
        match self.shown {
            Shown::Domains => window(&mut self.domains, &figures.domains, width, height),
            Shown::Connections => window(&mut self.connections, &figures.ends, width, height),
        }
    }

    fn text(&mut self, text: &str, width: usize, room: usize) -> Vec<Line> {
        let text = fold(text, width, "  ", "");
        let count = text.lines().count();
        self.page = room.max(1);
        self.scrolled = self.scrolled.min(count.saturating_sub(room));
        let lines = text.lines().skip(self.scrolled).take(room);
        lines.map(|line| Tone::Plain.of(line)).collect()
    }

    fn status(&self) -> Line {
        if self.mode == Mode::Filter {
            return Tone::Strong.of(format!("filter: {}_", self.filter));
        }
        if let Some(trouble) = &self.trouble {
            return Tone::Strong.of(format!("trying again: {trouble}"));
        }
        let mut text = match self.is_paused {
            true => "paused, ".to_owned(),
            false => String::new(),
        };
        if self.mode != Mode::List {
            return Tone::Strong.of(text + "Up, Down scroll, Esc back, q leave");
        }
        let by = self.headings()[self.view().column];
        text += match self.shown {
            Shown::Domains => "domains",
            Shown::Connections => "connections",
        };
        text += &format!(" by {by}");
        if self.view().is_reversed {
            text += " reversed";
        }
        if !self.filter.is_empty() {
            text += &format!(" with \"{}\"", self.filter);
        }
        text += "; ? help, q leave";
        let figures = &self.figures;
        let is_left_out =
            |end: &&End| figures.is_shown(end, true) && !figures.is_shown(end, self.all);
        if let count @ 1.. = figures.ends.iter().filter(is_left_out).count() {
            text += &format!(", a {count} outside Fordway");
        }
        Tone::Strong.of(text)
    }
}

/// Where a key leads from one of so many lines.
fn moved(at: usize, press: Press, page: usize, count: usize) -> usize {
    let to = match press {
        Press::Up => at.saturating_sub(1),
        Press::Down => at.saturating_add(1),
        Press::PageUp => at.saturating_sub(page),
        Press::PageDown => at.saturating_add(page),
        Press::Home => 0,
        Press::End => usize::MAX,
        _ => at,
    };
    to.min(count.saturating_sub(1))
}

fn window<R: Row>(view: &mut View, rows: &[R], width: usize, height: usize) -> Vec<Line> {
    let range = view.window(height);
    let marked = view.at.wrapping_sub(range.start);
    let shown: Vec<&R> = view.order[range]
        .iter()
        .map(|place| &rows[*place])
        .collect();
    let text = lines(&shown, width);
    let mut lines = text.lines();
    let heading = lines.next().map(|line| Tone::Strong.of(line));
    let rows = lines.zip(&shown).enumerate().map(|(at, (line, row))| {
        let tone = match row.is_slow() {
            _ if at == marked => Tone::Marked,
            true => Tone::Slow,
            false => Tone::Plain,
        };
        tone.of(line)
    });
    heading.into_iter().chain(rows).collect()
}

/// What `fordway why` and `fordway ss --json` say of an end.
fn detail(figures: &Figures, key: &str) -> String {
    let Some(end) = figures.ends.iter().find(|end| end.key == key) else {
        return "this connection has ended\n".to_owned();
    };
    let mut table = Table::new(&["process", &end.process], &[]);
    let fields = serde_json::to_value(&end.connection).unwrap_or_default();
    for (name, value) in fields.as_object().into_iter().flatten() {
        let value = match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        table.row([name.clone(), value]);
    }
    let is_more = |one: &&Column<End>| one.heading.ends_with("/s") || one.heading == "FILL";
    for column in End::COLUMNS.iter().filter(is_more) {
        table.row([column.heading.to_owned(), (column.cell)(end)]);
    }
    let ends = figures.ends.iter().map(|end| &end.connection);
    let domains = figures.domains.iter().map(|row| row.domain.clone());
    let why = text_of(&end.connection, ends, &domains.collect::<Vec<_>>());
    format!("{why}\n{}", table.render())
}

const HELP: &str = "\
Up, Down, PgUp, PgDn, Home, End   choose a row
Enter   a connection: all that is known of it; a domain: its connections
d, c, Tab   domains, connections, the other ones
/   show rows with a text only (Esc: all of them)
s or >, <   sort by the next column, by the one before
r   sort the other way round
a   also ends that no program with the library holds
Space   pause, and go on
q, Esc, Ctrl-C   leave

TX/s, RX/s   bytes in a second that an end sends and receives through rings
KERN/s   both directions through the kernel, or the domain's own stack
FILL   bytes in the ring that the far end has not taken yet
LOST   datagrams for which the ring had no room
-   two looks do not tell
";
