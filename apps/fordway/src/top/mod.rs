//! `fordway top`: a live view of domains and connections.
//!
//! ```text
//!   keys ────┐
//!   signals ─┼─► one channel ─► model ─► screen
//!   looker ──┘ ◄── asked at most once an interval
//! ```
//! A thread of its own looks at the broker, so that a slow answer holds no key up. The model knows neither
//! terminal nor broker. With `--batch` there is no terminal: each interval has its page or its document.
//!
//! A broker that goes away is looked for again; what was listed stays, without rates.

mod columns;
mod draw;
mod figures;
mod model;
mod screen;

use crate::broker::Broker;
use crate::cli::Top;
use crate::exit::{Exit, Failure, Outcome};
use crate::show::print;
use crate::table::terminal_width;
use figures::{Figures, Looker};
use model::{Asks, Model};
use screen::{Input, Screen};
use signal_hook::consts::{SIGCONT, SIGTSTP};
use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A broker that takes longer is said not to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the loop waits for.
enum Event {
    Input(Input),
    Figures(Box<Result<Figures, Failure>>),
}

impl From<Input> for Event {
    fn from(input: Input) -> Event {
        Event::Input(input)
    }
}

/// `fordway top`.
pub fn top(broker: Broker, options: &Top) -> Outcome {
    if options.batch {
        return batch(&mut Looker::new(broker, options), options);
    }
    if !io::stdout().is_terminal() {
        let text = "the standard output is no terminal; give --batch";
        return Err(Failure::new(Exit::Usage, text));
    }
    live(Looker::new(broker.within(PATIENCE), options), options)
}

/// A page or a document after each interval.
fn batch(looker: &mut Looker, options: &Top) -> Outcome {
    let mut model = Model::new(looker.look()?, options);
    let mut left = options.count;
    while left != Some(0) {
        thread::sleep(options.interval);
        let figures = looker.look()?;
        print(&match options.json {
            true => format!("{}\n", figures.document(options.all)),
            false => {
                model.take(Ok(figures));
                model.page(terminal_width().unwrap_or(usize::MAX)) + "\n"
            }
        })?;
        left = left.map(|left| left - 1);
    }
    Ok(Exit::Done)
}

fn live(mut looker: Looker, options: &Top) -> Outcome {
    let mut model = Model::new(looker.look()?, options);
    let (events, heard) = channel();
    let (asks, asked) = channel();
    screen::survive_panics();
    screen::listen(&events).map_err(terminal)?;
    thread::spawn(move || {
        for () in asked {
            let figures = Event::Figures(Box::new(looker.look()));
            if events.send(figures).is_err() {
                return;
            }
        }
    });
    let take = || Screen::take().map_err(terminal);
    // None while others have the terminal.
    let mut screen = Some(take()?);
    let mut next = Instant::now() + options.interval;
    let mut is_looking = false;
    loop {
        if let Some(screen) = &mut screen {
            screen.draw(&mut model).map_err(terminal)?;
        }
        let event = match is_looking || model.is_paused {
            true => heard.recv().map_err(RecvTimeoutError::from),
            false => heard.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match event {
            Err(RecvTimeoutError::Timeout) => {
                asks.send(()).map_err(Failure::internal)?;
                is_looking = true;
                next = Instant::now() + options.interval;
            }
            Err(error @ RecvTimeoutError::Disconnected) => return Err(Failure::internal(error)),
            Ok(Event::Figures(figures)) => {
                is_looking = false;
                model.take((*figures).map_err(|failure| failure.message));
            }
            Ok(Event::Input(Input::Resized)) => {}
            Ok(Event::Input(Input::Gone(error))) => return Err(terminal(error)),
            Ok(Event::Input(Input::Signal(SIGCONT))) => {
                // Others may have set it in their way meanwhile: it is taken anew.
                drop(screen.take());
                screen = Some(take()?);
            }
            Ok(Event::Input(Input::Signal(SIGTSTP))) => {
                screen = None;
                screen::stop().map_err(terminal)?;
            }
            Ok(Event::Input(Input::Signal(signal))) => {
                drop(screen);
                screen::end_by(signal).map_err(terminal)?;
                return Ok(Exit::Done);
            }
            Ok(Event::Input(Input::Press(press))) => match model.press(press) {
                Asks::Nothing => {}
                Asks::Leave => return Ok(Exit::Done),
                Asks::Suspend => {
                    screen = None;
                    screen::stop().map_err(terminal)?;
                }
            },
        }
    }
}

fn terminal(error: io::Error) -> Failure {
    Failure::io("the terminal", &error)
}

#[cfg(test)]
mod tests {
    use super::figures::tests::{far, figures, look};
    use super::model::Press;
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::ss::tests::end;
    use clap::Parser;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn options(line: &str) -> Top {
        let words = ["fordway", "top"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words).expect(line).command {
            Command::Top(top) => top,
            other => panic!("{other:?}"),
        }
    }

    fn model() -> Model {
        Model::new(figures(), &options(""))
    }

    fn presses(model: &mut Model, letters: &str) {
        for letter in letters.chars() {
            let press = match letter {
                '\n' => Press::Enter,
                '\t' => Press::Tab,
                letter => Press::Letter(letter),
            };
            assert_eq!(model.press(press), Asks::Nothing, "{letter}");
        }
    }

    /// What stands on a screen, and its rows that are reversed and coloured.
    fn drawn(
        model: &mut Model,
        (width, height): (u16, u16),
        has_colors: bool,
    ) -> (String, Vec<u16>, Vec<u16>) {
        use ratatui::style::{Color, Modifier};
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let draws = |frame: &mut ratatui::Frame<'_>| draw::draw(frame, model, has_colors);
        terminal.draw(draws).expect("drawn");
        let buffer = terminal.backend().buffer();
        let rows = || 0..if width == 0 { 0 } else { height };
        let row = |y: u16| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        let text: Vec<String> = rows().map(|y| row(y).trim_end().to_owned()).collect();
        let first = |y: u16| &buffer[(0, y)];
        let marked = rows().filter(|y| first(*y).modifier.contains(Modifier::REVERSED));
        let coloured = rows().filter(|y| first(*y).fg != Color::Reset);
        (text.join("\n"), marked.collect(), coloured.collect())
    }

    #[test]
    fn the_screen_has_totals_a_table_and_a_status() {
        let mut model = model();
        let (text, marked, coloured) = drawn(&mut model, (80, 10), true);
        assert_eq!(
            text,
            "\
fordway 1.2.3, broker 42; processes 2, channels 1, ring memory 0
ends: 2 fast, 1 kernel; rings tx 1.0M/s rx 995K/s; kernel tx 0/s rx 500/s
so far: pairs 0, of them used 0, bytes by rings 0, errors 0
 CONN  LOCAL        REMOTE       PATH    REASON      TX/s    RX/s  KERN/s
40000  web:40000    db:6379      fast    -           1.0M       0       0
40000  db:6379      web:40000    fast    -              0    995K       0
    -  web:39000    db:6379      kernel  no-peer        0       0     500


connections by TX/s; ? help, q leave"
        );
        assert_eq!((marked, coloured), (vec![4], vec![6]));
        let (_, _, coloured) = drawn(&mut model, (80, 10), false);
        assert!(coloured.is_empty(), "NO_COLOR");
        let (text, marked, _) = drawn(&mut model, (20, 5), true);
        assert_eq!(
            text,
            "\
ends: 2 fast, 1 kern
LOCAL          TX/s
web:40000      1.0M
db:6379           0
connections by TX/s;"
        );
        assert_eq!(marked, [2]);
        presses(&mut model, "d");
        let (text, _, _) = drawn(&mut model, (130, 8), true);
        assert!(text.contains("NAME         ADDRESS     PROCS"), "{text}");
        assert!(
            text.contains("web          10.77.0.4       1     1     1"),
            "{text}"
        );
    }

    #[test]
    fn no_size_is_too_small_for_any_view() {
        for keys in ["", "d", "\n", "?", "/web", "/nobody\n"] {
            let mut model = model();
            presses(&mut model, keys);
            for width in [0, 1, 5, 20, 40, 80, 300] {
                for height in [0, 1, 2, 3, 5, 10, 24, 100] {
                    drawn(&mut model, (width, height), true);
                    model.press(Press::PageDown);
                    model.press(Press::Up);
                }
            }
        }
    }

    #[test]
    fn a_key_sorts_filters_and_chooses() {
        let mut model = model();
        let mut first = |keys: &str| {
            presses(&mut model, keys);
            let (text, _, _) = drawn(&mut model, (80, 24), true);
            let row = text.lines().nth(4).unwrap_or_default();
            row.split_whitespace().nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(first(""), "web:40000");
        // By RX/s, by KERN/s, and the other way round.
        assert_eq!(first("s"), "db:6379");
        assert_eq!(first(">"), "web:39000");
        assert_eq!(first("r"), "web:40000");
        assert_eq!(first("<"), "db:6379");
        assert_eq!(first("/NO-PEER\n"), "web:39000");
        assert_eq!(first("/\u{7f}"), "", "nobody has that");
        assert_eq!(model.press(Press::Escape), Asks::Nothing);
        assert_eq!(model.press(Press::End), Asks::Nothing);
        let (_, marked, _) = drawn(&mut model, (80, 24), true);
        assert_eq!(marked, [6]);
        for press in [Press::Escape, Press::Interrupt, Press::Letter('q')] {
            assert_eq!(model.press(press), Asks::Leave);
        }
        assert_eq!(model.press(Press::Suspend), Asks::Suspend);
    }

    #[test]
    fn ends_outside_are_counted_until_they_are_asked_for() {
        let mut outside = end("web", 39_000, "kernel", Some("no-peer"));
        outside.joined = false;
        let figures = Figures::new(look(Instant::now(), vec![outside]), None, &[]);
        let mut model = Model::new(figures, &options(""));
        let (text, _, _) = drawn(&mut model, (80, 10), true);
        let left_out = !text.contains("web:39000") && text.ends_with("a 1 outside Fordway");
        assert!(left_out, "{text}");
        presses(&mut model, "a");
        let (text, _, _) = drawn(&mut model, (80, 10), true);
        assert!(
            text.contains("web:39000") && !text.contains("outside"),
            "{text}"
        );
    }

    #[test]
    fn a_marked_row_stays_marked_where_it_goes() {
        let mut model = model();
        model.press(Press::End);
        let marked = |model: &mut Model| {
            let (text, marked, _) = drawn(model, (80, 24), true);
            let row = text.lines().nth(marked[0].into()).unwrap_or_default();
            row.split_whitespace().nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(marked(&mut model), "web:39000");
        presses(&mut model, "r");
        assert_eq!(marked(&mut model), "web:39000");
        // It ends: what stands in its place is marked.
        let near = end("web", 40_000, "fast", None);
        let left = Figures::new(look(Instant::now(), vec![near]), None, &[]);
        model.take(Ok(left));
        assert_eq!(marked(&mut model), "web:40000");
    }

    #[test]
    fn without_a_broker_the_rows_stay_and_nothing_moves() {
        let mut model = model();
        model.take(Err("no broker answers".to_owned()));
        let (text, _, _) = drawn(&mut model, (80, 24), true);
        assert!(text.ends_with("trying again: no broker answers"), "{text}");
        assert!(
            text.contains("web:40000") && !text.contains("1.0M"),
            "{text}"
        );
    }

    #[test]
    fn a_thousand_rows_scroll_with_the_mark() {
        let near = |port| end("web", port, "fast", None);
        let ends: Vec<_> = (1000..2000).map(near).collect();
        let figures = Figures::new(look(Instant::now(), ends), None, &[]);
        let mut model = Model::new(figures, &options(""));
        let seen = |model: &mut Model, press: Press| {
            model.press(press);
            let (text, marked, _) = drawn(model, (80, 14), true);
            let row = text.lines().nth(marked[0].into()).unwrap_or_default();
            let port = row.split_whitespace().next().unwrap_or_default().to_owned();
            (port, marked[0])
        };
        drawn(&mut model, (80, 14), true);
        // Below three headings and the table's own, nine rows.
        assert_eq!(seen(&mut model, Press::Down), ("1001".into(), 5));
        assert_eq!(seen(&mut model, Press::PageDown), ("1010".into(), 12));
        assert_eq!(seen(&mut model, Press::Up), ("1009".into(), 11));
        assert_eq!(seen(&mut model, Press::End), ("1999".into(), 12));
        assert_eq!(seen(&mut model, Press::PageUp), ("1990".into(), 4));
        assert_eq!(seen(&mut model, Press::Home), ("1000".into(), 4));
    }

    #[test]
    fn a_connection_is_shown_in_detail_as_ss_and_why_know_it() {
        let mut model = model();
        presses(&mut model, "/no-peer\n\n");
        let (text, _, _) = drawn(&mut model, (80, 60), true);
        for said in [
            "cookie           39000",
            "kernel_bytes_rx  1001",
            "KERN/s           500",
            "web:39000 -- db:6379: kernel",
            "what changes it: ",
            "Esc back, q leave",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        // The domains' own names also where these are not wanted.
        let near = end("web", 40_000, "fast", None);
        let both = look(Instant::now(), vec![far(&near), near]);
        let of_web = Figures::new(both, None, &["web".to_owned()]);
        let mut model = Model::new(of_web, &options("--domain web"));
        presses(&mut model, "\n");
        let (text, _, _) = drawn(&mut model, (80, 60), true);
        assert!(text.contains("  db:6379: process 1"), "{text}");
        model.take(Ok(Figures::new(
            look(Instant::now(), Vec::new()),
            None,
            &[],
        )));
        let (text, _, _) = drawn(&mut model, (80, 60), true);
        assert!(text.contains("has ended"), "{text}");
    }

    #[test]
    fn a_page_for_a_pipe_is_whole() {
        let page = model().page(usize::MAX);
        assert_eq!(page.lines().count(), 5, "{page}");
        assert!(page.starts_with("ends: 2 fast, 1 kernel; rings"), "{page}");
        assert_eq!(
            options("--interval 0.5").interval,
            Duration::from_millis(500)
        );
    }
}
