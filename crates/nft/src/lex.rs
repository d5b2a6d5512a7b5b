//! Text to tokens.
//!
//! nft's scanner takes the longest match, and so does this one: `fe80::1`, `10.0.0.1` and
//! `1d2h` are one token each, `10/second` is three, `mbytes/second` is one. Whether a word is a
//! keyword is left to the grammar, which knows where it stands. A backslash before the end of a
//! line joins it with the next; `#` begins a comment.
use crate::prelude::*;
use crate::{error::Fault, source::Span};
use core::net::Ipv6Addr;
use winnow::{
    LocatingSlice, ModalResult, Parser,
    combinator::{alt, opt, preceded, repeat},
    error::{ContextError, ErrMode},
    stream::{Location, Stream},
    token::{one_of, take_till, take_while},
};

type Input<'a> = LocatingSlice<&'a str>;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A name, a keyword, an address, a time: whatever nft's scanner calls a string.
    Word(String),
    /// A word that ends in an asterisk, as `eth*`; the asterisk is in it.
    Wild(String),
    /// A decimal, octal or hexadecimal number.
    Number(u64),
    /// A number of more than 64 bits.
    LongNumber(String),
    /// Between double quotes.
    Quoted(String),
    /// An operator or a bracket.
    Sign(&'static str),
    /// End of a line.
    Newline,
    /// End of the text.
    End,
}

impl Token {
    /// How it is said in a message.
    pub fn told(&self) -> String {
        match self {
            Token::Word(word) | Token::Wild(word) | Token::LongNumber(word) => format!("'{word}'"),
            Token::Number(number) => format!("'{number}'"),
            Token::Quoted(text) => format!("\"{text}\""),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::Newline => "the end of the line".to_string(),
            Token::End => "the end of the file".to_string(),
        }
    }
}

/// A token and its place.
#[derive(Clone, Debug)]
pub struct Spanned {
    /// The token.
    pub token: Token,
    /// Its place.
    pub span: Span,
}

/// The tokens of a file; the last one is [`Token::End`].
pub fn tokens(file: u16, text: &str) -> Result<Vec<Spanned>, Fault> {
    let mut input = LocatingSlice::new(text);
    let mut out = Vec::new();
    let mut line_start = true;
    loop {
        // A line of nothing but a comment is no line: nft wants it so inside of sets.
        while line_start && comment_line(&mut input).is_ok() {}
        let blank: ModalResult<()> = blanks(&mut input);
        let start = input.current_token_start();
        let at = |end: usize| Span {
            file,
            start: u32::try_from(start).unwrap_or(u32::MAX),
            end: u32::try_from(end).unwrap_or(u32::MAX),
        };
        if blank.is_ok() && input.is_empty() {
            out.push(Spanned {
                token: Token::End,
                span: at(start),
            });
            return Ok(out);
        }
        let Ok(token) = token(&mut input) else {
            let odd = text[start..].chars().next().unwrap_or(' ');
            return Err(Fault::wrong(
                at(start + odd.len_utf8()),
                if odd == '"' {
                    "the string has no closing quote on its line".to_string()
                } else {
                    format!("unexpected character '{}'", odd.escape_default())
                },
            ));
        };
        line_start = token == Token::Newline;
        out.push(Spanned {
            token,
            span: at(input.current_token_start()),
        });
    }
}

fn blanks(input: &mut Input<'_>) -> ModalResult<()> {
    repeat(
        0..,
        alt((
            take_while(1.., [' ', '\t', '\r']).void(),
            ("\\", opt('\r'), '\n').void(),
            preceded('#', take_till(0.., '\n')).void(),
        )),
    )
    .parse_next(input)
}

fn comment_line(input: &mut Input<'_>) -> ModalResult<()> {
    (
        take_while(0.., [' ', '\t']),
        '#',
        take_till(0.., '\n'),
        '\n',
    )
        .void()
        .parse_next(input)
}

fn token(input: &mut Input<'_>) -> ModalResult<Token> {
    alt((
        '\n'.value(Token::Newline),
        quoted,
        address,
        word,
        number_or_time,
        sign,
    ))
    .parse_next(input)
}

fn quoted(input: &mut Input<'_>) -> ModalResult<Token> {
    ('"', take_till(0.., ['"', '\n', '\r', '\0']), '"')
        .map(|(_, text, _): (char, &str, char)| Token::Quoted(text.to_string()))
        .parse_next(input)
}

const SIGNS: &[&str] = &[
    "==", "!=", "<=", ">=", "<<", ">>", "{", "}", "[", "]", "(", ")", ";", ",", ":", ".", "/", "-",
    "+", "*", "@", "$", "=", "<", ">", "!", "&", "|", "^",
];

fn sign(input: &mut Input<'_>) -> ModalResult<Token> {
    for sign in SIGNS {
        if input.starts_with(sign) {
            input.next_slice(sign.len());
            return Ok(Token::Sign(sign));
        }
    }
    Err(ErrMode::Backtrack(ContextError::new()))
}

fn is_word_byte(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/')
}

/// A name. `.` alone is the sign of concatenation, `eq` and the like are operators.
fn word(input: &mut Input<'_>) -> ModalResult<Token> {
    let start = input.checkpoint();
    let text: &str = (
        one_of(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '.' || c == '\\'),
        take_while(0.., is_word_byte),
    )
        .take()
        .parse_next(input)?;
    if text == "." || (text.starts_with('\\') && !input.starts_with('*')) {
        input.reset(&start);
        return Err(ErrMode::Backtrack(ContextError::new()));
    }
    if input.starts_with('*') || input.starts_with("\\*") {
        let (mark, rest): (&str, &str) =
            (alt(("\\*", "*")), take_while(0.., is_word_byte)).parse_next(input)?;
        // `\*` is an asterisk that stands for itself.
        return Ok(
            if mark == "*" && rest.is_empty() && !text.starts_with('\\') {
                Token::Wild(format!("{text}*"))
            } else {
                Token::Quoted(format!("{}\\*{rest}", text.trim_start_matches('\\')))
            },
        );
    }
    Ok(match text {
        "eq" => Token::Sign("=="),
        "ne" => Token::Sign("!="),
        "lt" => Token::Sign("<"),
        "gt" => Token::Sign(">"),
        "le" => Token::Sign("<="),
        "ge" => Token::Sign(">="),
        "and" => Token::Sign("&"),
        "or" => Token::Sign("|"),
        "xor" => Token::Sign("^"),
        "not" => Token::Sign("!"),
        "lshift" => Token::Sign("<<"),
        "rshift" => Token::Sign(">>"),
        _ => Token::Word(text.to_string()),
    })
}

/// IPv4, IPv6 (bare or in brackets), link layer addresses and tc's class ids, if they are
/// longer than any other reading of the same text.
fn address(input: &mut Input<'_>) -> ModalResult<Token> {
    let text: &str = input.as_ref();
    let head = text.as_bytes().first().copied().unwrap_or(0);
    let backtrack = || Err(ErrMode::Backtrack(ContextError::new()));
    if !(head.is_ascii_hexdigit() || head == b':' || head == b'[') {
        return backtrack();
    }
    let (open, body) = match text.strip_prefix('[') {
        Some(body) => (1, body),
        None => (0, text),
    };
    let run = body
        .bytes()
        .take(64)
        .take_while(|b| b.is_ascii_hexdigit() || *b == b':' || *b == b'.')
        .count();
    let run = &body[..run];
    let mut long = longest(run, is_ipv6);
    if open == 1 {
        if long == 0 || body.as_bytes().get(long) != Some(&b']') {
            return backtrack();
        }
        let address = body[..long].to_string();
        input.next_slice(long + 2);
        return Ok(Token::Word(address));
    }
    for test in [is_ipv4 as fn(&str) -> bool, is_lladdr] {
        long = long.max(longest(run, test));
    }
    // `1:10` is a handle of tc if nothing that could be a word follows.
    let class = longest(run, is_classid);
    let after = body.as_bytes().get(class).copied();
    if class > long
        && matches!(
            after,
            Some(b' ' | b'\t' | b'\n' | b':' | b'-' | b'}' | b',')
        )
    {
        long = class;
    }
    // Looked at no further than that: the rest of a line may be one long word.
    let is_longer_word = || {
        text.chars()
            .take(long + 1)
            .filter(|c| is_word_byte(*c))
            .count()
            > long
    };
    if long == 0 || (head.is_ascii_alphabetic() && is_longer_word()) {
        return backtrack();
    }
    let address = run[..long].to_string();
    input.next_slice(long);
    Ok(Token::Word(address))
}

fn longest(run: &str, test: impl Fn(&str) -> bool) -> usize {
    (3..=run.len())
        .rev()
        .find(|end| test(&run[..*end]))
        .unwrap_or_else(|| {
            if run.starts_with("::") && test("::") {
                2
            } else {
                0
            }
        })
}

fn is_ipv6(text: &str) -> bool {
    text.matches(':').count() >= 2 && text.parse::<Ipv6Addr>().is_ok()
}

fn is_ipv4(text: &str) -> bool {
    let mut parts = 0;
    text.split('.').all(|part| {
        parts += 1;
        (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
    }) && parts == 4
}

fn is_lladdr(text: &str) -> bool {
    let mut parts = 0;
    text.split(':').all(|part| {
        parts += 1;
        (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    }) && parts == 6
}

fn is_classid(text: &str) -> bool {
    let mut parts = 0;
    text.split(':').all(|part| {
        parts += 1;
        (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    }) && parts == 2
}

/// `0x1f`, `017`, `42`, or a time such as `1d2h30m`, which nft's scanner calls a string.
fn number_or_time(input: &mut Input<'_>) -> ModalResult<Token> {
    let text: &str = input.as_ref();
    // IEEE's names of VLAN tags are the only keywords that begin with a digit.
    for tag in ["8021ad", "8021q"] {
        if text.starts_with(tag) && !text[tag.len()..].starts_with(is_word_byte) {
            input.next_slice(tag.len());
            return Ok(Token::Word(tag.to_string()));
        }
    }
    let time = time_len(text);
    if time > text.bytes().take_while(u8::is_ascii_digit).count() {
        let word = text[..time].to_string();
        input.next_slice(time);
        return Ok(Token::Word(word));
    }
    let digits: &str = alt((
        (
            alt(("0x", "0X")),
            take_while(1.., |c: char| c.is_ascii_hexdigit()),
        )
            .take(),
        take_while(1.., |c: char| c.is_ascii_digit()),
    ))
    .parse_next(input)?;
    let parsed = match digits.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&digits[2..], 16),
        _ if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
        _ => digits.parse(),
    };
    Ok(match parsed {
        Ok(number) => Token::Number(number),
        Err(_) => Token::LongNumber(digits.to_string()),
    })
}

/// How long the time at the beginning of a text is: numbers with d, h, m, s and ms, in order.
fn time_len(text: &str) -> usize {
    let mut at = 0;
    for unit in ["d", "h", "m", "s", "ms"] {
        let rest = &text[at..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && rest[digits..].starts_with(unit) {
            // `5ms` is not `5m` and an `s`.
            if unit == "m" && rest[digits..].starts_with("ms") {
                continue;
            }
            at += digits + unit.len();
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        tokens(0, text)
            .expect("lexes")
            .iter()
            .filter(|spanned| spanned.token != Token::End)
            .map(|spanned| spanned.token.told())
            .collect()
    }

    #[test]
    fn the_longest_reading_wins() {
        assert_eq!(words("fe80::1 ::"), ["'fe80::1'", "'::'"]);
        assert_eq!(words("[::1]:22"), ["'::1'", "':'", "'22'"]);
        assert_eq!(
            words("10.0.0.1-10.0.0.9"),
            ["'10.0.0.1'", "'-'", "'10.0.0.9'"]
        );
        assert_eq!(words("10.0.0.0/8"), ["'10.0.0.0'", "'/'", "'8'"]);
        assert_eq!(words("aa:bb:cc:dd:ee:ff"), ["'aa:bb:cc:dd:ee:ff'"]);
        assert_eq!(words("22 : accept"), ["'22'", "':'", "'accept'"]);
        assert_eq!(words("22:accept"), ["'22'", "':'", "'accept'"]);
        assert_eq!(
            words("1d2h 5m 10/second"),
            ["'1d2h'", "'5m'", "'10'", "'/'", "'second'"]
        );
        assert_eq!(words("10 mbytes/second"), ["'10'", "'mbytes/second'"]);
        assert_eq!(
            words("add accept dead-beef"),
            ["'add'", "'accept'", "'dead-beef'"]
        );
        assert_eq!(
            words("a \\\n b # c\n"),
            ["'a'", "'b'", "the end of the line"]
        );
        assert_eq!(words("eth* \"a b\""), ["'eth*'", "\"a b\""]);
        assert_eq!(
            words("0x1F 010 22-80"),
            ["'31'", "'8'", "'22'", "'-'", "'80'"]
        );
        assert_eq!(words("ip saddr . tcp dport").len(), 5);
    }

    #[test]
    fn what_no_token_begins_with_is_said_with_its_place() {
        let fault = tokens(0, "accept ä").expect_err("refused");
        assert_eq!(fault.span.start, 7);
        assert!(tokens(0, "log prefix \"x").is_err());
    }
}
