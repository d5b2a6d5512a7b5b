//! The programs of the tests: an echo, a talker that holds connections and says when
//! they break, the same for datagrams, and senders of packets that were made by hand. None of them knows of Fordway.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use std::net::{IpAddr, SocketAddr};

mod craft;
mod datagrams;
mod echo;
mod talk;

use talk::Far;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["echo", port] => echo::run(port.parse()?),
        ["talk", server, count] => talk::run(Far::Echo, server.parse()?, count.parse()?),
        ["ask", server] => talk::run(Far::Redis, server.parse()?, 1),
        ["connect", server, source] => connect(server.parse()?, source.parse()?),
        ["try", server] => attempt(server.parse()?),
        ["craft", from, server, open_port] => {
            craft::craft(from.parse()?, server.parse()?, open_port.parse()?)
        }
        ["forge", from, server, stolen] => {
            craft::forge(from.parse()?, server.parse()?, stolen.parse()?)
        }
        ["forge6", from, victim, stolen] => {
            craft::forge6(from.parse()?, victim.parse()?, stolen.parse()?)
        }
        ["datagram-echo", port] => datagrams::echo(port.parse()?),
        ["datagram-ask", server] => datagrams::ask(server.parse()?, None),
        ["datagram-ask", server, ttl] => datagrams::ask(server.parse()?, Some(ttl.parse()?)),
        ["datagram-stream", server] => datagrams::stream(server.parse()?),
        ["datagram-take", port] => datagrams::take(port.parse()?),
        _ => bail!(
            "echo PORT, datagram-echo PORT, datagram-ask SERVER [TTL], datagram-stream SERVER, datagram-take PORT, talk SERVER COUNT, ask SERVER, connect SERVER SOURCE, try SERVER, craft FROM SERVER PORT, forge FROM SERVER STOLEN, forge6 FROM VICTIM STOLEN"
        ),
    }
}

/// Tries one connection by the C library, for as long as the first two SYNs take. The third one is due behind two seconds or three:
/// Linux doubles its first timeouts or does not (net.ipv4.tcp_syn_linear_timeouts).
fn attempt(server: SocketAddr) -> Result<()> {
    let limit = std::time::Duration::from_millis(1500);
    match std::net::TcpStream::connect_timeout(&server, limit) {
        Ok(_) => println!("connected"),
        Err(error) => println!("{}", error.kind()),
    }
    Ok(())
}

/// Tries one connection from a source address of choice; fails if it is not made.
fn connect(server: SocketAddr, source: IpAddr) -> Result<()> {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(source, 0)).context("the source is not there")?;
    // connect(2) gives up with it too (socket(7)).
    let limit = Some(std::time::Duration::from_secs(2));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, limit)?;
    match rustix::net::connect(&socket, &server) {
        Ok(()) => println!("connected"),
        Err(error) => println!("refused {error}"),
    }
    Ok(())
}
