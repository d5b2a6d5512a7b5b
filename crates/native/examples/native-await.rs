//! The service and the asker of `native-ask`, in one task for each connection (tokio).
use fordway::awaited::AsyncSocket;
use fordway::{ANY, Kind};
use std::io::Result;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port: u16 = words[1].parse().expect("a port");
    let socket = AsyncSocket::new(Kind::SeqPacket)?;
    if words[0] == "serve" {
        socket.get().bind((ANY, port))?;
        socket.get().listen(16)?;
        loop {
            let (asker, _) = socket.accept().await?;
            tokio::spawn(answer(asker));
        }
    }
    socket.connect((words[0].as_str(), port)).await?;
    for word in &words[2..] {
        socket.send(word.as_bytes()).await?;
        let mut reply = [0; 1000];
        let length = socket.recv(&mut reply).await?;
        println!("{}", String::from_utf8_lossy(&reply[..length]));
    }
    Ok(())
}

async fn answer(asker: AsyncSocket) -> Result<()> {
    let mut word = [0; 1000];
    loop {
        let length = asker.recv(&mut word).await?;
        if length == 0 {
            return Ok(());
        }
        let reply = String::from_utf8_lossy(&word[..length]).to_uppercase();
        asker.send(reply.as_bytes()).await?;
    }
}
