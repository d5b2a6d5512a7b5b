//! A flood of datagrams and of new clients holds nobody up.

use fordway_serve::{Loop, Service};
use signal_hook::consts::SIGTERM;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};

/// Sends back what comes. From the first byte on each datagram brings another one, and each
/// new client another one, so that neither queue is ever empty.
struct Flooded {
    address: SocketAddr,
    datagrams: UdpSocket,
    flows: bool,
}

impl Flooded {
    fn send(&self) {
        let sent = self.datagrams.send_to(b"x", self.address);
        sent.expect("a datagram");
    }

    fn connect(&self) {
        TcpStream::connect(self.address).expect("one place in the backlog");
    }
}

impl Service for Flooded {
    type Conn = Vec<u8>;
    const REFUSAL: &'static [u8] = b"";

    fn accept(&mut self, _: u64) -> Option<Vec<u8>> {
        if self.flows {
            self.connect();
            return None;
        }
        Some(Vec::new())
    }

    fn receive(&mut self, conn: &mut Vec<u8>, _: u64, bytes: &[u8]) -> usize {
        if !std::mem::replace(&mut self.flows, true) {
            self.send();
            self.connect();
        }
        conn.extend_from_slice(bytes);
        bytes.len()
    }

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn outputs<'c>(&self, conn: &'c Vec<u8>) -> impl Iterator<Item = &'c [u8]> {
        (!conn.is_empty()).then_some(&conn[..]).into_iter()
    }

    fn advance(&mut self, conn: &mut Vec<u8>, _: u64, bytes: usize) {
        conn.drain(..bytes);
    }

    fn is_over(&self, _: &Vec<u8>) -> bool {
        false
    }

    fn deadline(&self, _: &Vec<u8>) -> u64 {
        u64::MAX
    }

    fn expire(&mut self, _: &mut Vec<u8>, _: u64) {}

    fn closed(&mut self, _: Vec<u8>) {}

    fn datagram(&mut self, _: u64, _: &[u8], _: &mut Vec<u8>) {
        self.send();
    }
}

#[test]
fn a_flood_holds_no_client_up() {
    let sockets = Loop::new((Ipv4Addr::LOCALHOST, 0).into(), true).expect("bound");
    let address = sockets.address().expect("an address");
    let mut flooded = Flooded {
        address,
        datagrams: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound"),
        flows: false,
    };
    let server = std::thread::spawn(move || sockets.run(&mut flooded));
    let mut client = TcpStream::connect(address).expect("connected");
    for word in [b"first", b"again", b"third"] {
        client.write_all(word).expect("sent");
        let mut echo = [0; 5];
        client.read_exact(&mut echo).expect("received");
        assert_eq!(&echo, word);
    }
    signal_hook::low_level::raise(SIGTERM).expect("raised");
    let ended = server.join();
    assert!(ended.is_ok_and(|ended| ended.is_ok()));
}
