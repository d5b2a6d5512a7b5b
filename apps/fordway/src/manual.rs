//! Manual pages, made from the command line's definition, from the closed lists of exit statuses
//! and reasons, and from the table of [`crate::pages`].

use crate::cli::Cli;
use crate::exit::{Exit, Failure, Outcome};
use crate::pages::{CONFIGURATION, ENVIRONMENT, FILES, PAGES, Page};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use fordway_abi::reason::Reason;
use std::fs;
use std::io;
use std::path::Path;

/// What every command may end with.
const COMMON: [Exit; 3] = [Exit::Done, Exit::Internal, Exit::Usage];

/// `fordway man DIR`: a page for the command and one for each subcommand.
pub fn write(dir: &Path) -> Outcome {
    let made = fs::create_dir_all(dir).and_then(|()| write_below(&definition(), dir));
    made.map_err(|error| Failure::io(dir.display(), &error))?;
    Ok(Exit::Done)
}

/// The definition. A page for each way to ask for help would say nothing.
fn definition() -> Command {
    let mut command = Cli::command()
        .bin_name("fordway")
        .disable_help_subcommand(true);
    command.build();
    command
}

fn write_below(command: &Command, dir: &Path) -> io::Result<()> {
    let shown = |one: &&Command| !one.is_hide_set();
    for below in command.get_subcommands().filter(shown) {
        write_below(below, dir)?;
    }
    let man = Man::new(command.clone());
    let file = man.get_filename();
    let title = file.trim_end_matches(".1");
    let version = env!("CARGO_PKG_VERSION");
    // Without a date, which clap_mangen would leave out, and move what follows to its place.
    let mut text =
        format!(".TH \"{title}\" 1 \"\" \"fordway {version}\" \"Fordway\"\n").into_bytes();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    sections(command).to_writer(&mut text)?;
    fs::write(dir.join(file), text)
}

/// A command's name behind `fordway`.
fn name_of(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_default();
    let (_, below) = name.split_once(' ').unwrap_or_default();
    below.to_owned()
}

fn page_of(command: &Command) -> Option<&'static Page> {
    let name = name_of(command);
    PAGES.iter().find(|page| page.command == name)
}

fn sections(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let Some(page) = page_of(command) else {
        return roff;
    };
    if !page.columns.is_empty() {
        list(&mut roff, "OUTPUT", page.columns.iter().map(owned));
    }
    exit_status(&mut roff, page);
    if page.command.is_empty() {
        overview(&mut roff);
    }
    roff.control("SH", ["EXAMPLES"]);
    for (at, (line, what)) in page.examples.iter().enumerate() {
        if at != 0 {
            roff.control("PP", []);
        }
        roff.text([roman(format!("{what}:"))]);
        roff.control("PP", []).control("RS", ["4"]);
        roff.control("nf", []).text([bold(*line)]);
        roff.control("fi", []).control("RE", []);
    }
    see_also(&mut roff, command, page);
    roff
}

fn exit_status(roff: &mut Roff, page: &Page) {
    let statuses: Vec<Exit> = match page.command {
        "" => Exit::ALL.to_vec(),
        "run" => {
            let text = "The program's own. Before the program is executed:";
            roff.control("SH", ["EXIT STATUS"]).text([roman(text)]);
            let own = [Exit::Launcher, Exit::NotExecutable, Exit::NoProgram];
            return items(roff, own.iter().map(status));
        }
        _ => [&COMMON, page.exits].concat(),
    };
    list(roff, "EXIT STATUS", statuses.iter().map(status));
}

fn status(exit: &Exit) -> (String, String) {
    ((*exit as u8).to_string(), exit.text().to_owned())
}

fn overview(roff: &mut Roff) {
    let text = "Every connection that is not on the fast path has one of these words in the REASON column of fordway ss:";
    roff.control("SH", ["REASONS"]).text([roman(text)]);
    let reasons = Reason::ALL.iter();
    items(
        roff,
        reasons.map(|reason| (reason.word().to_owned(), reason.text().to_owned())),
    );
    list(roff, "CONFIGURATION", CONFIGURATION.iter().map(owned));
    list(roff, "ENVIRONMENT", ENVIRONMENT.iter().map(owned));
    list(roff, "FILES", FILES.iter().map(owned));
}

/// Pages above and below, and those that the table names.
fn see_also(roff: &mut Roff, command: &Command, page: &Page) {
    let page_name = |words: &str| format!("{}(1)", words.replace(' ', "-"));
    let mut pages: Vec<String> = Vec::new();
    let name = command.get_bin_name().unwrap_or_default();
    let mut above = name;
    while let Some((rest, _)) = above.rsplit_once(' ') {
        pages.insert(0, page_name(rest));
        above = rest;
    }
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    pages.extend(below.filter_map(|one| Some(page_name(one.get_bin_name()?))));
    pages.extend(page.see.iter().map(|&other| other.to_owned()));
    let mut text: Vec<Inline> = Vec::new();
    for page in pages {
        let (name, section) = page.split_once('(').unwrap_or((&page, ""));
        if !text.is_empty() {
            text.push(roman(", "));
        }
        text.extend([bold(name), roman(format!("({section}"))]);
    }
    roff.control("SH", ["SEE ALSO"]).text(text);
}

fn list(roff: &mut Roff, title: &str, entries: impl Iterator<Item = (String, String)>) {
    roff.control("SH", [title]);
    items(roff, entries);
}

fn items(roff: &mut Roff, entries: impl Iterator<Item = (String, String)>) {
    for (name, text) in entries {
        let term: Vec<Inline> = vec![bold(name)];
        roff.control("TP", []).text(term).text([roman(text)]);
    }
}

fn owned((name, text): &(&str, &str)) -> (String, String) {
    ((*name).to_owned(), (*text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use clap::Parser;

    /// Words as a shell splits a plain line, up to a redirection.
    fn words(line: &str) -> Vec<&str> {
        let words = line
            .split(' ')
            .take_while(|word| !matches!(*word, ">" | "|" | "&"));
        words.map(|word| word.trim_matches('\'')).collect()
    }

    fn commands(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().filter(|one| !one.is_hide_set());
        let below = below.flat_map(commands);
        std::iter::once(command.clone()).chain(below).collect()
    }

    #[test]
    fn every_command_has_a_page_with_examples_that_parse() {
        let commands = commands(&definition());
        for command in &commands {
            let name = command.get_bin_name().expect("name");
            let page = page_of(command).unwrap_or_else(|| panic!("no page for {name}"));
            assert!(!page.examples.is_empty(), "{name} has no example");
            for (line, what) in page.examples {
                if let Err(error) = Cli::try_parse_from(words(line)) {
                    panic!("{line}: {error}");
                }
                assert!(
                    page.command.is_empty() || line.starts_with(name) || command.has_subcommands()
                );
                assert!(!what.is_empty() && !what.ends_with('.'), "{what}");
            }
        }
        assert_eq!(commands.len(), PAGES.len(), "a page is of no command");
    }

    #[test]
    fn every_key_of_the_configuration_is_there() {
        let refused = toml::from_str::<config::File>("not_a_key = 1").expect_err("unknown");
        let known = refused.to_string();
        let keys = known.matches('`').count() / 2 - 1;
        let mut text = String::new();
        for (line, _) in CONFIGURATION {
            let key = line.split(' ').next().expect("key");
            assert!(known.contains(&format!("`{key}`")), "{key}: {known}");
            text += &format!("{line}\n");
        }
        assert_eq!(keys, CONFIGURATION.len(), "{known}");
        toml::from_str::<config::File>(&text).expect("what the manual shows is right");
    }
}
