//! A script's text as lines: when, which way, what.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::call::Call;
use crate::packet::Packet;

/// What happens in a line.
#[derive(Clone, Debug)]
pub enum Act {
    Arrives(Box<Packet>),
    Leaves(Box<Packet>),
    /// It leaves, or nothing does.
    MayLeave(Box<Packet>),
    Nothing,
    Call(Call, String),
}

#[derive(Clone, Debug)]
pub struct Line {
    pub number: usize,
    pub text: String,
    /// Microseconds after the line before: at least, at most.
    pub time: (u64, u64),
    pub act: Act,
}

/// A script, read.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub name: String,
    pub is_ipv6: bool,
    pub options: Vec<(String, String)>,
    pub linux: Vec<(String, String)>,
    pub stack: Vec<(String, String)>,
    pub lines: Vec<Line>,
}

/// `%begin passive`, `%begin active`: what most scripts begin with.
const PASSIVE: &str = ". listen s 80
. < tcp S seq 0 win 65535 <mss 1460,sackOK,wscale 0>
. > tcp SA seq 0 ack 1
. < tcp A seq 1 ack 1 win 65535
. accept s c
";
const ACTIVE: &str = ". connect c 9000
. > tcp S seq 0 p=9000
. < tcp SA seq 0 ack 1 win 65535 <mss 1460,sackOK,wscale 0>
. > tcp A seq 1 ack 1
";

/// "Soon".
const SOON_US: u64 = 300_000;

/// Words, with what is in quotes or in angle brackets as one.
fn words(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let end = match rest.as_bytes()[0] {
            b'"' => rest[1..].find('"').map(|at| at + 2),
            // A lone bracket is a direction.
            b'<' if !rest.starts_with("< ") => rest.find('>').map(|at| at + 1),
            _ => Some(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        let end = end.context("something is not closed")?;
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

fn micros(word: &str) -> Result<u64> {
    let at = word.find(char::is_alphabetic).unwrap_or(word.len());
    let unit = match &word[at..] {
        "" if word == "0" => 0,
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => bail!("{word}: a time"),
    };
    let count: u64 = word[..at]
        .parse()
        .with_context(|| format!("{word}: a time"))?;
    Ok(count * unit)
}

fn time(word: &str) -> Result<(u64, u64)> {
    Ok(match word.split_once("..") {
        _ if word == "." => (0, SOON_US),
        Some((least, most)) => (micros(least)?, micros(most)?),
        None => (micros(word)?, micros(word)?),
    })
}

fn setting(words: &[String]) -> Result<(String, String)> {
    let joined = words.join(" ");
    let (name, value) = joined.split_once('=').context("NAME=VALUE is missing")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// All of them, or those whose names have `FORDWAY_WIRE` in them.
pub fn scripts() -> Vec<Script> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = std::fs::read_dir(&directory).expect("the scripts are there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let wanted = std::env::var("FORDWAY_WIRE").unwrap_or_default();
    let scripts = files.iter().map(|file| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(file).expect("a script");
        Script::parse(&name, &text).unwrap_or_else(|error| panic!("{error:#}"))
    });
    scripts
        .filter(|script| script.name.contains(&wanted))
        .collect()
}

impl Script {
    pub fn parse(name: &str, text: &str) -> Result<Script> {
        let mut script = Script {
            name: name.to_owned(),
            ..Script::default()
        };
        for (at, text) in text.lines().enumerate() {
            script
                .line(at + 1, text)
                .with_context(|| format!("{name}:{}: {text}", at + 1))?;
        }
        Ok(script)
    }

    fn line(&mut self, number: usize, text: &str) -> Result<()> {
        let words = words(text)?;
        let Some((first, rest)) = words.split_first() else {
            return Ok(());
        };
        match first.as_str() {
            "%family" => self.is_ipv6 = rest == ["6"],
            "%begin" => {
                let begin = if rest == ["active"] { ACTIVE } else { PASSIVE };
                for text in begin.lines() {
                    self.line(number, text)?;
                }
            }
            "%option" => self.options.push(setting(rest)?),
            "%linux" => self.linux.push(setting(rest)?),
            "%stack" => self.stack.push(setting(rest)?),
            _ => {
                let time = time(first)?;
                let (what, arguments) = rest.split_first().context("a time and nothing")?;
                let act = match what.as_str() {
                    "<" => Act::Arrives(Box::new(Packet::parse(arguments)?)),
                    ">" => Act::Leaves(Box::new(Packet::parse(arguments)?)),
                    "may" => Act::MayLeave(Box::new(Packet::parse(arguments)?)),
                    "nothing" => Act::Nothing,
                    _ => {
                        let equals = rest.iter().position(|word| word == "=");
                        let end = equals.unwrap_or(rest.len());
                        let wanted = rest.get(end + 1).map_or("ok", String::as_str);
                        Act::Call(Call::parse(&rest[..end])?, wanted.to_owned())
                    }
                };
                self.lines.push(Line {
                    number,
                    text: text.trim().to_owned(),
                    time,
                    act,
                });
            }
        }
        Ok(())
    }
}
