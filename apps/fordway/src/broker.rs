//! The command line's end of the administrator's protocol.

use crate::exit::{Exit, Failure};
use fordwayd::admin::{ADMIN_SOCKET, CONTROL_SOCKET, Connection, Domain, Info, Reply, Request};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A broker that does not answer within this time is stuck, not slow.
const REPLY_LIMIT: Duration = Duration::from_secs(30);

/// The broker of a runtime directory. Nothing is held between two questions.
#[derive(Debug)]
pub struct Broker {
    runtime_dir: PathBuf,
    /// How long one answer may take.
    patience: Duration,
}

impl Broker {
    /// The broker that serves `runtime_dir`, whether it runs or not.
    pub fn at(runtime_dir: &Path) -> Broker {
        Broker {
            runtime_dir: runtime_dir.into(),
            patience: REPLY_LIMIT,
        }
    }

    /// For who would rather have no answer than a late one.
    pub fn within(self, patience: Duration) -> Broker {
        Broker { patience, ..self }
    }

    /// The socket that shims speak to.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join(CONTROL_SOCKET)
    }

    /// Its runtime directory.
    pub fn runtime_dir(&self) -> &Path {
        &self.runtime_dir
    }

    /// Asks; a refusal becomes a [`Failure`] with its own status.
    pub fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        match self.exchange(request)? {
            Reply::Error { kind, message } => Err(Failure::new(kind.into(), message)),
            reply => Ok(reply),
        }
    }

    /// Asks who it is.
    pub fn info(&self) -> Result<Info, Failure> {
        match self.ask(&Request::Info)? {
            Reply::Info(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks for all domains.
    pub fn domains(&self) -> Result<Vec<Domain>, Failure> {
        match self.ask(&Request::DomainList)? {
            Reply::Domains { domains } => Ok(domains),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks for all connections.
    pub fn connections(&self) -> Result<Vec<Connection>, Failure> {
        match self.ask(&Request::Connections)? {
            Reply::Connections { connections } => Ok(connections),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks, and gives each answer to `heard` until the broker ends or `heard` fails.
    pub fn listen(
        &self,
        request: &Request,
        mut heard: impl FnMut(Reply) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let stream = self.connect()?;
        let mut reader = BufReader::new(&stream);
        let mut line = self.said(&stream, &mut reader, request)?;
        // What follows comes when it comes.
        let patient = stream.set_read_timeout(None);
        patient.map_err(silent)?;
        loop {
            match understood(&line)? {
                Reply::Error { kind, message } => return Err(Failure::new(kind.into(), message)),
                reply => heard(reply)?,
            }
            line.clear();
            if reader.read_line(&mut line).map_err(silent)? == 0 {
                return Ok(());
            }
        }
    }

    fn exchange(&self, request: &Request) -> Result<Reply, Failure> {
        let stream = self.connect()?;
        understood(&self.said(&stream, &mut BufReader::new(&stream), request)?)
    }

    fn connect(&self) -> Result<UnixStream, Failure> {
        let socket = self.runtime_dir.join(ADMIN_SOCKET);
        UnixStream::connect(&socket).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let text = format!(
                    "{}: not permitted; the broker answers its own user, root and who is in group fordway",
                    socket.display()
                );
                Failure::new(Exit::Privilege, text)
            }
            _ => absent(&self.runtime_dir),
        })
    }

    /// Asks and reads the first line of the answer.
    fn said(
        &self,
        mut stream: &UnixStream,
        reader: &mut BufReader<&UnixStream>,
        request: &Request,
    ) -> Result<String, Failure> {
        let answer = (|| {
            stream.set_read_timeout(Some(self.patience))?;
            let mut line = serde_json::to_string(request)?;
            line.push('\n');
            match stream.write_all(line.as_bytes()) {
                // A broker that has no place for us says so before it hears us.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                written => written?,
            }
            line.clear();
            reader.read_line(&mut line)?;
            Ok::<String, io::Error>(line)
        })();
        let line = answer.map_err(silent)?;
        if line.is_empty() {
            let text = "the broker closed the connection: only its own user, root and group fordway are answered";
            return Err(Failure::new(Exit::Privilege, text));
        }
        Ok(line)
    }
}

fn understood(line: &str) -> Result<Reply, Failure> {
    serde_json::from_str(line).map_err(|_| {
        let text = "the broker's answer is not understood; it may be of another version, see: fordway doctor";
        Failure::new(Exit::NoBroker, text)
    })
}

fn silent(error: io::Error) -> Failure {
    let text = format!("the broker does not answer ({error}); see its log, or end it");
    Failure::new(Exit::NoBroker, text)
}

/// What is said when nobody answers.
fn absent(runtime_dir: &Path) -> Failure {
    let text = format!(
        "no broker answers in {}; start it with: fordway up",
        runtime_dir.display()
    );
    Failure::new(Exit::NoBroker, text)
}

/// An answer of another kind than the question.
pub fn unexpected(reply: &Reply) -> Failure {
    let said = serde_json::to_value(reply).unwrap_or_default();
    let kind = &said["reply"];
    Failure::internal(format!(
        "the broker answered something else ({kind}); it may be of another version, see: fordway doctor"
    ))
}
