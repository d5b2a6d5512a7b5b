//! The terminal: how it is taken and given back, and what comes from it.
//!
//! It is given back when the [`Screen`] goes, and before a panic says what it has to say. Keys and signals
//! come by one channel, from a thread each, so that nobody waits for two things.

use super::draw::draw;
use super::model::{Model, Press};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, Stdout, stdout};
use std::sync::mpsc::Sender;
use std::thread;

/// What comes from the terminal.
#[derive(Debug)]
pub enum Input {
    Press(Press),
    Resized,
    Signal(i32),
    /// It cannot be read any more.
    Gone(io::Error),
}

/// The terminal, while it is ours.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    has_colors: bool,
}

impl Screen {
    /// Takes the terminal.
    pub fn take() -> io::Result<Screen> {
        let screen = Screen {
            terminal: fitting(room()?)?,
            // https://no-color.org: set to anything.
            has_colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws the model. ratatui would ask the terminal for its cursor when the size has changed, and wait for an
    /// answer that the thread of the keys reads; so a new size has a new [`Terminal`].
    pub fn draw(&mut self, model: &mut Model) -> io::Result<()> {
        let (width, height) = room()?;
        let has_colors = self.has_colors;
        let draws = |frame: &mut ratatui::Frame<'_>| draw(frame, model, has_colors);
        let area = self.terminal.get_frame().area();
        if (area.width, area.height) != (width, height) {
            execute!(stdout(), Clear(ClearType::All))?;
            self.terminal = fitting((width, height))?;
        }
        self.terminal.draw(draws).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Columns and lines. A terminal that nobody has told its size has none.
fn room() -> io::Result<(u16, u16)> {
    Ok(match size()? {
        (0, _) | (_, 0) => (80, 24),
        size => size,
    })
}

fn fitting((width, height): (u16, u16)) -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
    Terminal::with_options(
        CrosstermBackend::new(stdout()),
        TerminalOptions { viewport },
    )
}

/// A terminal that is gone needs nothing back.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

/// Gives the terminal back before a panic is told of.
pub fn survive_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        give_back();
        tell(info);
    }));
}

/// Has everything that comes sent by `inputs`, until nobody hears it.
pub fn listen<E: From<Input> + Send + 'static>(inputs: &Sender<E>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT])?;
    let heard = inputs.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if heard.send(Input::Signal(signal).into()).is_err() {
                return;
            }
        }
    });
    let heard = inputs.clone();
    thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(event::Event::Key(key)) => press(key).map(Input::Press),
                Ok(event::Event::Resize(..)) => Some(Input::Resized),
                Ok(_) => None,
                Err(error) => Some(Input::Gone(error)),
            };
            let is_gone = matches!(input, Some(Input::Gone(_)));
            let sent = input.is_none_or(|input| heard.send(input.into()).is_ok());
            if is_gone || !sent {
                return;
            }
        }
    });
    Ok(())
}

fn press(key: KeyEvent) -> Option<Press> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if with_control => Press::Interrupt,
        KeyCode::Char('z') if with_control => Press::Suspend,
        KeyCode::Char(_) if with_control => return None,
        KeyCode::Char(letter) => Press::Letter(letter),
        KeyCode::Up => Press::Up,
        KeyCode::Down => Press::Down,
        KeyCode::PageUp => Press::PageUp,
        KeyCode::PageDown => Press::PageDown,
        KeyCode::Home => Press::Home,
        KeyCode::End => Press::End,
        KeyCode::Enter => Press::Enter,
        KeyCode::Esc => Press::Escape,
        KeyCode::Backspace => Press::Backspace,
        KeyCode::Tab => Press::Tab,
        _ => return None,
    })
}

/// Stops this process, as the signal would if nobody caught it: SIGCONT comes when it goes on. The first process
/// of a session has no shell that would let it go on.
pub fn stop() -> io::Result<()> {
    match rustix::process::getsid(None)? == rustix::process::getpid() {
        true => signal_hook::low_level::raise(SIGCONT),
        false => emulate_default_handler(SIGTSTP),
    }
}

/// Ends this process as the signal would.
pub fn end_by(signal: i32) -> io::Result<()> {
    emulate_default_handler(signal)
}
