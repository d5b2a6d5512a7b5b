//! From the model's lines to a terminal's cells.

use super::model::{Model, Tone};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// Draws what the model shows.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model, has_colors: bool) {
    let area = frame.area();
    let width = usize::from(area.width);
    let lines = model.screen(width, area.height.into()).into_iter();
    let lines = lines.map(|line| {
        let style = match line.tone {
            Tone::Plain => Style::new(),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
            Tone::Marked => Style::new().add_modifier(Modifier::REVERSED),
            Tone::Slow if has_colors => Style::new().fg(Color::Yellow),
            Tone::Slow => Style::new(),
        };
        // To the edge: a marked row is marked there, too.
        Line::styled(format!("{:<width$}", line.text), style)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}
