//! A chat of all domains: `native-chat PORT NAME`. Each line goes to all; what others say is printed.
use fordway::{ANY, BROADCAST, Kind, Socket, own_domain};
use std::io::{Result, stdin};
use std::sync::Arc;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port = words[0].parse().expect("a port");
    let socket = Arc::new(Socket::new(Kind::Datagram)?);
    socket.bind((ANY, port))?;
    let (listening, own) = (Arc::clone(&socket), own_domain()?);
    std::thread::spawn(move || listen(&listening, own));
    for line in stdin().lines() {
        let said = format!("{}: {}", words[1], line?);
        socket.send_to(said.as_bytes(), (BROADCAST, port))?;
    }
    Ok(())
}

fn listen(socket: &Socket, own: u32) -> Result<()> {
    let mut said = [0; 1000];
    loop {
        let received = socket.recv_from(&mut said)?;
        if received.from.is_some_and(|from| from.domain != own) {
            println!("{}", String::from_utf8_lossy(&said[..received.bytes]));
        }
    }
}
