//! What two plain programs can talk over: TCP, TCP that is polled, a UNIX stream or packet socket, a pair of
//! named pipes, UDP, UNIX datagram sockets, the native API. TCP, UDP and UNIX streams go through libc, as any program's do;
//! packet sockets and the openings of pipes need not, for no library takes them over.
//!
//! Who drives a conversation of datagrams sends an empty one until it is answered: the serving end is there
//! then, and knows whom to answer. A datagram that does not come within [`COMES_LIMIT`] is an error.
//!
//! A sockmap is TCP whose ends put themselves into a map of the bench's, which it names
//! by number behind the address: ADDRESS:PORT/SERVER'S/DRIVER'S.

use anyhow::{Context, Result, bail};
use fordway_capi::{ANY, Kind, Socket};
use fordway_platform::sockmap;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the driving end tries to reach the serving one.
const REACH_LIMIT: Duration = Duration::from_secs(10);
/// How long the driving end waits for a datagram.
const COMES_LIMIT: Duration = Duration::from_millis(250);
/// Between two tries.
const REACH_AGAIN: Duration = Duration::from_millis(2);

/// One end of a conversation of messages.
pub trait Talker {
    /// Sends all of it; as one packet where the wire has packets.
    fn send(&mut self, bytes: &[u8]) -> Result<()>;

    /// Receives some; 0 at the end.
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize>;

    /// Announces the end of what this side sends.
    fn finish(&mut self) -> Result<()>;

    /// Whether an end is announced: an empty datagram is none.
    fn has_end(&self) -> bool {
        true
    }

    /// Fills the buffer; false if the end, or an empty datagram, came instead.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut done = 0;
        while done < buffer.len() {
            match self.receive_some(&mut buffer[done..])? {
                0 if done == 0 => return Ok(false),
                0 => bail!("the end came in the middle of a message"),
                count => done += count,
            }
        }
        Ok(true)
    }
}

/// A kind of wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    /// TCP with TCP_NODELAY; `at` is ADDRESS:PORT.
    Tcp,
    /// The same, nonblocking: asked again and again; `at` is ADDRESS:PORT.
    Polling,
    /// TCP whose bytes a BPF program moves; `at` is ADDRESS:PORT/MAP/MAP.
    Sockmap,
    /// SOCK_STREAM of AF_UNIX; `at` is a path.
    Unix,
    /// SOCK_SEQPACKET of AF_UNIX; `at` is a path.
    Seqpacket,
    /// Two FIFOs, one each way; `at` is the start of their paths.
    Pipe,
    /// UDP; `at` is ADDRESS:PORT. The driving end's socket is connected, the serving end's is not.
    Udp,
    /// SOCK_DGRAM of AF_UNIX, both ends connected; `at` is a path.
    UnixDatagram,
    /// Messages of the native API, by loans of ring memory; `at` is ADDRESS:PORT.
    Native,
}

impl Wire {
    /// Whether a serving end has one conversation only.
    pub fn is_single(self) -> bool {
        matches!(self, Wire::Pipe | Wire::Udp | Wire::UnixDatagram)
    }
}

/// A serving end that others reach.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// TCP whose connections are polled.
    Polling(TcpListener),
    /// TCP, and the number of the serving end's map.
    Sockmap(TcpListener, u32),
    /// UNIX stream.
    Unix(UnixListener),
    /// UNIX packets.
    Seqpacket(OwnedFd),
    /// FIFOs, which are made.
    Pipe(PathBuf),
    /// UDP, until it has its conversation.
    Udp(Option<UdpSocket>),
    /// UNIX datagrams, until it has its conversation.
    UnixDatagram(Option<UnixDatagram>),
    /// The native API.
    Native(Socket),
}

/// One end of a conversation.
#[derive(Debug)]
pub enum Conn {
    /// TCP.
    Tcp(TcpStream),
    /// TCP that is polled.
    Polling(TcpStream),
    /// TCP in a sockmap.
    Sockmap(TcpStream),
    /// UNIX stream.
    Unix(UnixStream),
    /// UNIX packets.
    Seqpacket(OwnedFd),
    /// From, to.
    Pipe(File, Option<File>),
    /// UDP, and whom to answer, unless it is connected.
    Udp(UdpSocket, Option<SocketAddr>),
    /// UNIX datagrams.
    UnixDatagram(UnixDatagram),
    /// The native API.
    Native(Socket),
}

impl Wire {
    /// Listens.
    pub fn listen(self, at: &str) -> Result<Listener> {
        let path = Path::new(at);
        Ok(match self {
            Wire::Tcp => Listener::Tcp(TcpListener::bind(at)?),
            Wire::Polling => Listener::Polling(TcpListener::bind(at)?),
            Wire::Sockmap => {
                let (address, [map, _]) = with_maps(at).context("an address and two maps")?;
                Listener::Sockmap(TcpListener::bind(address)?, map)
            }
            Wire::Unix => Listener::Unix(UnixListener::bind(path)?),
            Wire::Seqpacket => {
                let socket = seqpacket()?;
                rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
                rustix::net::listen(&socket, 16)?;
                Listener::Seqpacket(socket)
            }
            Wire::Pipe => {
                for path in fifos(path) {
                    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into())?;
                }
                Listener::Pipe(path.to_owned())
            }
            Wire::Udp => Listener::Udp(Some(UdpSocket::bind(at)?)),
            Wire::UnixDatagram => Listener::UnixDatagram(Some(UnixDatagram::bind(path)?)),
            Wire::Native => {
                let socket = Socket::new(Kind::SeqPacket)?;
                socket.bind((ANY, named(at)?.1))?;
                socket.listen(16)?;
                Listener::Native(socket)
            }
        })
    }

    /// Reaches a serving end, which may not listen yet.
    pub fn reach(self, at: &str) -> Result<Conn> {
        let until = Instant::now() + REACH_LIMIT;
        loop {
            match self.connect(at) {
                Ok(conn) => return Ok(conn),
                Err(error) if Instant::now() > until => {
                    return Err(error).with_context(|| format!("reach {at}"));
                }
                Err(_) => std::thread::sleep(REACH_AGAIN),
            }
        }
    }

    fn connect(self, at: &str) -> io::Result<Conn> {
        let path = Path::new(at);
        Ok(match self {
            Wire::Tcp => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                Conn::Tcp(stream)
            }
            Wire::Polling => polled(TcpStream::connect(at)?)?,
            Wire::Sockmap => {
                let (address, [_, map]) = with_maps(at).ok_or(io::ErrorKind::InvalidInput)?;
                let mut stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                sockmap::join(map, &stream)?;
                // The serving end has joined, too.
                patiently(|| stream.read(&mut [0]))?;
                Conn::Sockmap(stream)
            }
            Wire::Unix => Conn::Unix(UnixStream::connect(path)?),
            Wire::Seqpacket => {
                let socket = seqpacket()?;
                rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
                Conn::Seqpacket(socket)
            }
            Wire::Pipe => {
                let [there, back] = fifos(path);
                // The order in which the serving end opens them, too.
                let to = OpenOptions::new().write(true).open(there)?;
                Conn::Pipe(File::open(back)?, Some(to))
            }
            Wire::Udp => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(at)?;
                socket.set_read_timeout(Some(COMES_LIMIT))?;
                socket.send(&[])?;
                socket.recv(&mut [0])?;
                Conn::Udp(socket, None)
            }
            Wire::UnixDatagram => {
                let own = path.with_extension("driver");
                // Of a try that has failed.
                let _ = std::fs::remove_file(&own);
                let socket = UnixDatagram::bind(own)?;
                socket.connect(path)?;
                socket.set_read_timeout(Some(COMES_LIMIT))?;
                socket.send(&[])?;
                socket.recv(&mut [0])?;
                Conn::UnixDatagram(socket)
            }
            Wire::Native => {
                let socket = Socket::new(Kind::SeqPacket)?;
                socket.connect(named(at)?)?;
                Conn::Native(socket)
            }
        })
    }
}

/// The number of an address of IPv4 in the native API, and the port.
fn named(at: &str) -> io::Result<(u32, u16)> {
    let address: SocketAddrV4 = at.parse().map_err(io::Error::other)?;
    Ok((u32::from(*address.ip()), address.port()))
}

fn with_maps(at: &str) -> Option<(&str, [u32; 2])> {
    let mut parts = at.split('/');
    let address = parts.next()?;
    let mut map = || parts.next()?.parse().ok();
    Some((address, [map()?, map()?]))
}

fn seqpacket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn fifos(path: &Path) -> [PathBuf; 2] {
    ["there", "back"].map(|suffix| path.with_extension(suffix))
}

impl Listener {
    /// The next conversation.
    pub fn accept(&mut self) -> Result<Conn> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Conn::Tcp(stream)
            }
            Listener::Polling(listener) => polled(listener.accept()?.0)?,
            Listener::Sockmap(listener, map) => {
                let (mut stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                sockmap::join(*map, &stream).context("join a sockmap")?;
                stream.write_all(&[0])?;
                Conn::Sockmap(stream)
            }
            Listener::Unix(listener) => Conn::Unix(listener.accept()?.0),
            Listener::Seqpacket(listener) => {
                Conn::Seqpacket(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?)
            }
            Listener::Pipe(path) => {
                let [there, back] = fifos(path);
                let from = File::open(there)?;
                Conn::Pipe(from, Some(OpenOptions::new().write(true).open(back)?))
            }
            Listener::Udp(socket) => {
                let socket = socket.take().context(SINGLE)?;
                let (_, driver) = socket.recv_from(&mut [0])?;
                socket.send_to(&[], driver)?;
                Conn::Udp(socket, Some(driver))
            }
            Listener::UnixDatagram(socket) => {
                let socket = socket.take().context(SINGLE)?;
                let (_, driver) = socket.recv_from(&mut [0])?;
                socket.connect(driver.as_pathname().context("a driver without a name")?)?;
                socket.send(&[])?;
                Conn::UnixDatagram(socket)
            }
            Listener::Native(socket) => Conn::Native(socket.accept()?.0),
        })
    }
}

const SINGLE: &str = "the one conversation is over";

fn polled(stream: TcpStream) -> io::Result<Conn> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Conn::Polling(stream))
}

/// Asks until there is an answer.
fn polling(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            result => return result,
        }
    }
}

/// What blocks on other sockets may say EAGAIN in a sockmap.
fn patiently(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut since = None;
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if since.get_or_insert_with(Instant::now).elapsed() > REACH_LIMIT {
                    return Err(error);
                }
                std::thread::yield_now();
            }
            result => return result,
        }
    }
}

impl Talker for Conn {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let polls = matches!(self, Conn::Polling(_));
        match self {
            Conn::Tcp(stream) => stream.write_all(bytes)?,
            Conn::Polling(stream) | Conn::Sockmap(stream) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let write = || stream.write(rest);
                    let count = if polls {
                        polling(write)
                    } else {
                        patiently(write)
                    }?;
                    rest = &rest[count..];
                }
            }
            Conn::Unix(stream) => stream.write_all(bytes)?,
            Conn::Seqpacket(socket) => {
                let send = || rustix::net::send(&*socket, bytes, SendFlags::NOSIGNAL);
                let sent = match send() {
                    // Larger than the buffer is by default.
                    Err(Errno::MSGSIZE) => {
                        set_socket_send_buffer_size_force(&*socket, 2 * bytes.len())?;
                        send()
                    }
                    sent => sent,
                };
                sent?;
            }
            Conn::Pipe(_, Some(to)) => to.write_all(bytes)?,
            Conn::Udp(socket, None) => drop(socket.send(bytes)?),
            Conn::Udp(socket, Some(driver)) => drop(socket.send_to(bytes, *driver)?),
            Conn::UnixDatagram(socket) => drop(socket.send(bytes)?),
            Conn::Native(socket) => {
                let mut room = socket.reserve(bytes.len())?;
                room.copy_from_slice(bytes);
                room.commit(bytes.len())?;
            }
            Conn::Pipe(_, None) => bail!("the end was announced already"),
        }
        Ok(())
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        Ok(match self {
            Conn::Tcp(stream) => stream.read(buffer)?,
            Conn::Polling(stream) => polling(|| stream.read(buffer))?,
            Conn::Sockmap(stream) => patiently(|| stream.read(buffer))?,
            Conn::Unix(stream) => stream.read(buffer)?,
            Conn::Seqpacket(socket) => rustix::net::recv(&*socket, buffer, RecvFlags::empty())?.0,
            Conn::Pipe(from, _) => from.read(buffer)?,
            Conn::Udp(socket, None) => socket.recv(buffer)?,
            Conn::Udp(socket, Some(driver)) => {
                let (count, from) = socket.recv_from(buffer)?;
                *driver = from;
                count
            }
            Conn::UnixDatagram(socket) => socket.recv(buffer)?,
            Conn::Native(socket) => match socket.peek()? {
                Some(message) => {
                    let count = message.copy_to(0, buffer);
                    message.release(count);
                    count
                }
                None => 0,
            },
        })
    }

    fn has_end(&self) -> bool {
        !matches!(self, Conn::Udp(..) | Conn::UnixDatagram(_))
    }

    fn finish(&mut self) -> Result<()> {
        match self {
            Conn::Tcp(stream) | Conn::Polling(stream) | Conn::Sockmap(stream) => {
                stream.shutdown(std::net::Shutdown::Write)?;
            }
            Conn::Unix(stream) => stream.shutdown(std::net::Shutdown::Write)?,
            Conn::Seqpacket(socket) => rustix::net::shutdown(&*socket, Shutdown::Write)?,
            Conn::Pipe(_, to) => *to = None,
            Conn::Native(socket) => socket.shutdown(std::net::Shutdown::Write)?,
            Conn::Udp(..) | Conn::UnixDatagram(_) => bail!("datagrams have no end"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::end;

    #[test]
    fn a_driver_that_has_missed_its_answer_asks_again() {
        let local = (Ipv4Addr::LOCALHOST, 0);
        let free = UdpSocket::bind(local).and_then(|socket| socket.local_addr());
        let at = free.expect("a port").to_string();
        let mut listener = Wire::Udp.listen(&at).expect("it is free");
        let missed = UdpSocket::bind(local).expect("a port");
        missed.send_to(&[], &at).expect("it listens");
        drop(missed);
        // It serves until the test ends.
        std::thread::spawn(move || end::echo(&mut listener.accept()?, &mut [0; 4]));
        let mut conn = Wire::Udp.reach(&at).expect("it serves");
        conn.send(b"ping").expect("it serves");
        let mut back = [0; 4];
        assert!(conn.receive(&mut back).expect("it answers"));
        assert_eq!(&back, b"ping");
    }
}
