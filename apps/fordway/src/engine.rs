//! A container engine's REST API on its UNIX socket, in the form that Docker documents
//! (<https://docs.docker.com/reference/api/engine/>) and Podman serves too.
//!
//! Questions are of HTTP/1.0: to those a server sends no chunks (RFC 9112, section 6.1), so an
//! answer ends with its connection. An answer to [`Engine::get`] is read whole, up to a limit;
//! events come a line each, for as long as the engine lives.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An engine that does not go on within this time is stuck, not slow.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// Longer than the longest answer: a list of some thousand containers.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Longer than any event.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// `{"type":["container"]}`, in a URL.
const CONTAINERS_ONLY: &str = "%7B%22type%22%3A%5B%22container%22%5D%7D";

/// An engine, whether it runs or not.
#[derive(Debug)]
pub struct Engine {
    socket: PathBuf,
}

impl Engine {
    /// The one that serves this socket.
    pub fn at(socket: &Path) -> Engine {
        Engine {
            socket: socket.into(),
        }
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The document at this path; `None` if there is none.
    pub fn get(&self, path: &str) -> io::Result<Option<Value>> {
        let (status, reader) = self.ask(path)?;
        let mut text = Vec::new();
        reader.take(ANSWER_BYTES_MAX).read_to_end(&mut text)?;
        match status {
            200 => Ok(Some(serde_json::from_slice(&text)?)),
            404 => Ok(None),
            _ => Err(io::Error::other(format!("{path}: HTTP status {status}"))),
        }
    }

    /// What happens to containers from this time on, in seconds since 1970.
    pub fn events(&self, since: u64) -> io::Result<Events> {
        let path = format!("/events?since={since}&filters={CONTAINERS_ONLY}");
        let (status, reader) = self.ask(&path)?;
        if status != 200 {
            return Err(io::Error::other(format!("/events: HTTP status {status}")));
        }
        Ok(Events {
            reader,
            line: Vec::new(),
        })
    }

    /// Asks and reads the answer's head.
    fn ask(&self, path: &str) -> io::Result<(u16, BufReader<UnixStream>)> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut status = None;
        loop {
            let mut line = String::new();
            let limited = &mut reader.by_ref().take(EVENT_BYTES_MAX as u64);
            if limited.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match (status, line.trim_end()) {
                (None, first) => {
                    let word = first
                        .strip_prefix("HTTP/1.")
                        .and_then(|rest| rest.get(2..5));
                    let number = word.and_then(|word| word.parse().ok());
                    status = Some(number.ok_or_else(|| io::Error::other("not HTTP"))?);
                }
                (Some(status), "") => return Ok((status, reader)),
                _ => {}
            }
        }
    }
}

/// What happens to containers.
#[derive(Debug)]
pub struct Events {
    reader: BufReader<UnixStream>,
    /// What has come of the next one.
    line: Vec<u8>,
}

impl Events {
    /// Waits for the next event. `None` if the engine ended, or `other` became readable.
    pub fn next(&mut self, other: impl AsFd) -> io::Result<Option<Value>> {
        loop {
            if self.reader.buffer().is_empty() {
                let mut fds = [
                    PollFd::new(self.reader.get_ref(), PollFlags::IN),
                    PollFd::new(&other, PollFlags::IN),
                ];
                retry_on_intr(|| poll(&mut fds, None))?;
                if !fds[1].revents().is_empty() {
                    return Ok(None);
                }
            }
            let come = self.reader.fill_buf()?;
            if come.is_empty() {
                return Ok(None);
            }
            let end = come.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(come.len(), |end| end + 1);
            self.line.extend_from_slice(&come[..taken]);
            self.reader.consume(taken);
            if end.is_some() {
                let event = serde_json::from_slice(&self.line)?;
                self.line.clear();
                return Ok(Some(event));
            }
            if self.line.len() > EVENT_BYTES_MAX {
                return Err(io::Error::other("an event without an end"));
            }
        }
    }
}
