//! A service that is asked: `native-ask serve PORT`, and `native-ask DOMAIN PORT WORD...`, which prints an answer to
//! each word. Messages are whole, and in order.
use fordway::{ANY, Kind, Socket};
use std::io::Result;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port = words[1].parse().expect("a port");
    let socket = Socket::new(Kind::SeqPacket)?;
    if words[0] == "serve" {
        socket.bind((ANY, port))?;
        socket.listen(16)?;
        loop {
            let (asker, _) = socket.accept()?;
            std::thread::spawn(move || answer(&asker));
        }
    }
    socket.connect((words[0].as_str(), port))?;
    for word in &words[2..] {
        socket.send(word.as_bytes())?;
        let mut reply = [0; 1000];
        let length = socket.recv(&mut reply)?;
        println!("{}", String::from_utf8_lossy(&reply[..length]));
    }
    Ok(())
}

fn answer(asker: &Socket) -> Result<()> {
    let mut word = [0; 1000];
    loop {
        let length = asker.recv(&mut word)?;
        if length == 0 {
            return Ok(());
        }
        let reply = String::from_utf8_lossy(&word[..length]).to_uppercase();
        asker.send(reply.as_bytes())?;
    }
}
