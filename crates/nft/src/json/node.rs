//! JSON with places: a small reader, because faults in a ruleset are told with line and column,
//! and serde_json's values do not say where they came from.
use crate::prelude::*;
use crate::{error::Fault, source::Span};
use winnow::{
    LocatingSlice, ModalResult, Parser,
    ascii::multispace0,
    combinator::{alt, delimited, opt, separated, terminated},
    error::{ContextError, ErrMode},
    stream::{Location, Stream},
    token::{any, one_of, take_while},
};

/// Arrays in objects in arrays; nft's own schema needs about twelve.
const DEPTH_MAX: usize = 64;

type Input<'a> = LocatingSlice<&'a str>;

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub value: Json,
    /// Its place.
    pub span: Span,
}

/// See [`Node`].
#[derive(Clone, Debug)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A whole number.
    Number(i128),
    /// A text.
    Text(String),
    /// `[ ... ]`
    Array(Vec<Node>),
    /// `{ ... }`, in the order of the text.
    Object(Vec<(String, Node)>),
}

/// Reads a whole text.
pub fn read(file: u16, text: &str) -> Result<Node, Fault> {
    let mut input = LocatingSlice::new(text);
    let read = terminated(|input: &mut Input<'_>| node(input, file, 0), multispace0)
        .parse_next(&mut input);
    let at = |offset: usize| {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        Span {
            file,
            start: offset,
            end: offset,
        }
    };
    match read {
        Ok(node) if input.is_empty() => Ok(node),
        Ok(_) => Err(Fault::wrong(
            at(input.current_token_start()),
            "there is more text behind the JSON value",
        )),
        Err(ErrMode::Cut(_)) => Err(Fault::wrong(
            at(input.current_token_start()),
            format!("JSON nested more than {DEPTH_MAX} deep"),
        )),
        Err(_) => Err(Fault::wrong(
            at(input.current_token_start()),
            "this is not JSON",
        )),
    }
}

fn node(input: &mut Input<'_>, file: u16, depth: usize) -> ModalResult<Node> {
    multispace0.parse_next(input)?;
    if depth > DEPTH_MAX {
        return Err(ErrMode::Cut(ContextError::new()));
    }
    let start = input.current_token_start();
    let head: char = {
        let before = input.checkpoint();
        let head = any.parse_next(input)?;
        input.reset(&before);
        head
    };
    let inner = |input: &mut Input<'_>| node(input, file, depth + 1);
    let value = match head {
        '{' => delimited(
            ('{', multispace0),
            separated(0.., member(file, depth), comma),
            (multispace0, '}'),
        )
        .map(Json::Object)
        .parse_next(input)?,
        '[' => delimited(
            ('[', multispace0),
            separated(0.., inner, comma),
            (multispace0, ']'),
        )
        .map(Json::Array)
        .parse_next(input)?,
        '"' => string.map(Json::Text).parse_next(input)?,
        _ => alt((
            "null".value(Json::Null),
            "true".value(Json::Bool(true)),
            "false".value(Json::Bool(false)),
            number,
        ))
        .parse_next(input)?,
    };
    Ok(Node {
        value,
        span: Span {
            file,
            start: u32::try_from(start).unwrap_or(u32::MAX),
            end: u32::try_from(input.current_token_start()).unwrap_or(u32::MAX),
        },
    })
}

fn comma(input: &mut Input<'_>) -> ModalResult<()> {
    (multispace0, ',').void().parse_next(input)
}

fn member(file: u16, depth: usize) -> impl FnMut(&mut Input<'_>) -> ModalResult<(String, Node)> {
    move |input| {
        multispace0.parse_next(input)?;
        let name = string.parse_next(input)?;
        (multispace0, ':').parse_next(input)?;
        let value = node(input, file, depth + 1)?;
        Ok((name, value))
    }
}

/// Numbers with a fraction or an exponent mean nothing here.
fn number(input: &mut Input<'_>) -> ModalResult<Json> {
    (opt('-'), take_while(1..=38, |c: char| c.is_ascii_digit()))
        .take()
        .verify_map(|text: &str| text.parse().ok())
        .map(Json::Number)
        .parse_next(input)
}

fn string(input: &mut Input<'_>) -> ModalResult<String> {
    '"'.parse_next(input)?;
    let mut out = String::new();
    loop {
        let plain: &str =
            take_while(0.., |c: char| c != '"' && c != '\\' && c >= ' ').parse_next(input)?;
        out.push_str(plain);
        match one_of(['"', '\\']).parse_next(input)? {
            '"' => return Ok(out),
            _ => out.push(escape(input)?),
        }
    }
}

fn escape(input: &mut Input<'_>) -> ModalResult<char> {
    Ok(match any.parse_next(input)? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'u' => {
            let first = hex4(input)?;
            // A character beyond 16 bits comes in two halves.
            let code = if (0xd800..0xdc00).contains(&first) {
                "\\u".parse_next(input)?;
                let second = hex4(input)?;
                0x10000 + ((first - 0xd800) << 10) + (second.wrapping_sub(0xdc00) & 0x3ff)
            } else {
                first
            };
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        plain @ ('"' | '\\' | '/') => plain,
        _ => return Err(ErrMode::Backtrack(ContextError::new())),
    })
}

fn hex4(input: &mut Input<'_>) -> ModalResult<u32> {
    take_while(4..=4, |c: char| c.is_ascii_hexdigit())
        .verify_map(|text: &str| u32::from_str_radix(text, 16).ok())
        .parse_next(input)
}

impl Node {
    /// A property of an object.
    pub fn get(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Json::Object(members) => members
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, node)| node),
            _ => None,
        }
    }

    /// A property that has to be there.
    pub fn need(&self, name: &str) -> Result<&Node, Fault> {
        self.get(name)
            .ok_or_else(|| Fault::wrong(self.span, format!("property \"{name}\" is missing")))
    }

    /// A text.
    pub fn text(&self) -> Result<&str, Fault> {
        match &self.value {
            Json::Text(text) => Ok(text),
            _ => Err(Fault::wrong(self.span, "expected a text")),
        }
    }

    /// A number that is not negative.
    pub fn number(&self) -> Result<u64, Fault> {
        match &self.value {
            Json::Number(number) => u64::try_from(*number)
                .map_err(|_| Fault::wrong(self.span, "the number is out of range")),
            _ => Err(Fault::wrong(self.span, "expected a number")),
        }
    }

    /// The number of a property, if it is there.
    pub fn number_of(&self, name: &str) -> Result<Option<u64>, Fault> {
        self.get(name).map(Node::number).transpose()
    }

    /// The text of a property, if it is there.
    pub fn text_of(&self, name: &str) -> Result<Option<&str>, Fault> {
        self.get(name).map(Node::text).transpose()
    }

    /// A yes or no, no if it is not there.
    pub fn flag(&self, name: &str) -> Result<bool, Fault> {
        match self.get(name).map(|node| (&node.value, node.span)) {
            None => Ok(false),
            Some((Json::Bool(yes), _)) => Ok(*yes),
            Some((_, span)) => Err(Fault::wrong(span, "expected true or false")),
        }
    }

    /// An array, or the value alone.
    pub fn many(&self) -> &[Node] {
        match &self.value {
            Json::Array(items) => items,
            _ => core::slice::from_ref(self),
        }
    }

    /// The single property of an object: its name and its value.
    pub fn only(&self) -> Result<(&str, &Node), Fault> {
        match &self.value {
            Json::Object(members) if members.len() == 1 => Ok((&members[0].0, &members[0].1)),
            _ => Err(Fault::wrong(
                self.span,
                "expected an object with one property",
            )),
        }
    }
}
