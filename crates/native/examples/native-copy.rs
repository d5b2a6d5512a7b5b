//! A file to another domain, by loans: `native-copy take PORT FILE` there, `native-copy DOMAIN PORT FILE` here.
use fordway::{ANY, Kind, Socket};
use std::fs::File;
use std::io::{Read, Result, Write};

const PIECE_BYTES: usize = 64 * 1024;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port = words[1].parse().expect("a port");
    let socket = Socket::new(Kind::Stream)?;
    if words[0] == "take" {
        socket.bind((ANY, port))?;
        socket.listen(1)?;
        return take(&socket.accept()?.0, File::create(&words[2])?);
    }
    socket.connect((words[0].as_str(), port))?;
    let mut file = File::open(&words[2])?;
    loop {
        // The file is read right into what the far end reads.
        let mut room = socket.reserve(PIECE_BYTES)?;
        let count = file.read(&mut room)?;
        room.commit(count)?;
        if count == 0 {
            return Ok(());
        }
    }
}

fn take(socket: &Socket, mut file: File) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    while let Some(shown) = socket.peek()? {
        // Once: a far end that cheats could change the bytes between two looks.
        let count = shown.copy_to(0, &mut piece);
        file.write_all(&piece[..count])?;
        shown.release(count);
    }
    Ok(())
}
