//! The calls of a script.
//!
//! | call | what it does |
//! |---|---|
//! | `listen NAME PORT [backlog]` | a TCP listener |
//! | `accept LISTENER NAME` | the next connection |
//! | `connect NAME PORT` | begins a TCP connection to the peer's port |
//! | `udp NAME PORT` | a bound UDP socket |
//! | `peer NAME PORT` | connects it |
//! | `sendto NAME PORT BYTES`, `send NAME BYTES` | BYTES is a number or `"bytes"` |
//! | `urgent NAME BYTES` | the last of them is an urgent one |
//! | `recv NAME [MAX]` | what is there |
//! | `ping SEQ BYTES` | an echo request |
//! | `pong` | the sequence number of an answer to it |
//! | `shutdown NAME` | the sending side |
//! | `close NAME`, `abort NAME` | the latter with a linger time of zero |
//! | `error NAME` | SO_ERROR of a UDP socket |
//! | `state NAME` | as RFC 9293 has it, `ESTABLISHED` |

use anyhow::{Context, Result, bail};

/// A call with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Listen(String, u16, u32),
    Accept(String, String),
    Connect(String, u16),
    Udp(String, u16),
    Peer(String, u16),
    Send(String, Vec<u8>),
    Urgent(String, Vec<u8>),
    SendTo(String, u16, Vec<u8>),
    Receive(String, usize),
    Ping(u16, Vec<u8>),
    Pong,
    Shutdown(String),
    Close(String),
    Abort(String),
    Error(String),
    State(String),
}

/// What a call gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Number(usize),
    Bytes(Vec<u8>),
    End,
    /// An errno's or a state's name.
    Word(&'static str),
}

/// A number of bytes, or bytes in quotes.
pub(crate) fn bytes(word: &str) -> Result<Vec<u8>> {
    if let Some(text) = word.strip_prefix('"') {
        return Ok(text.trim_end_matches('"').as_bytes().to_vec());
    }
    let len: usize = word.parse().with_context(|| format!("{word}: bytes"))?;
    Ok((0..len).map(|at| (at * 7 + at / 253) as u8).collect())
}

impl Call {
    pub(crate) fn parse(words: &[String]) -> Result<Call> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let port = |word: &str| {
            word.parse::<u16>()
                .with_context(|| format!("{word}: a port"))
        };
        let name = |word: &str| word.to_owned();
        Ok(match words[..] {
            ["listen", s, p] => Call::Listen(name(s), port(p)?, 8),
            ["listen", s, p, backlog] => Call::Listen(name(s), port(p)?, backlog.parse()?),
            ["accept", s, c] => Call::Accept(name(s), name(c)),
            ["connect", c, p] => Call::Connect(name(c), port(p)?),
            ["udp", s, p] => Call::Udp(name(s), port(p)?),
            ["peer", s, p] => Call::Peer(name(s), port(p)?),
            ["send", s, b] => Call::Send(name(s), bytes(b)?),
            ["urgent", s, b] => Call::Urgent(name(s), bytes(b)?),
            ["sendto", s, p, b] => Call::SendTo(name(s), port(p)?, bytes(b)?),
            ["recv", s] => Call::Receive(name(s), 65_536),
            ["recv", s, max] => Call::Receive(name(s), max.parse()?),
            ["ping", seq, b] => Call::Ping(seq.parse()?, bytes(b)?),
            ["pong"] => Call::Pong,
            ["shutdown", s] => Call::Shutdown(name(s)),
            ["close", s] => Call::Close(name(s)),
            ["abort", s] => Call::Abort(name(s)),
            ["error", s] => Call::Error(name(s)),
            ["state", s] => Call::State(name(s)),
            _ => bail!("no such call: {}", words.join(" ")),
        })
    }
}

impl Answer {
    /// Whether it is what a script wants.
    pub(crate) fn is(&self, wanted: &str) -> bool {
        match (self, wanted) {
            (Answer::Done | Answer::Number(_), "ok") => true,
            (Answer::End, "eof") => true,
            (Answer::Bytes(got), wanted) if wanted.starts_with('"') => {
                bytes(wanted).is_ok_and(|bytes| bytes == *got)
            }
            (Answer::Bytes(got), wanted) => wanted.parse() == Ok(got.len()),
            (Answer::Number(got), wanted) => wanted.parse() == Ok(*got),
            (Answer::Word(got), wanted) => *got == wanted,
            _ => false,
        }
    }
}
