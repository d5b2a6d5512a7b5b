//! Files whose every byte is compared: made of random bytes, compared in pieces.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

const PIECE_BYTES: usize = 1 << 20;

/// Makes a file of this many random bytes.
pub fn random(file: &Path, length_bytes: u64) -> Result<()> {
    let mut source = File::open("/dev/urandom")?.take(length_bytes);
    let mut target = File::create(file).with_context(|| file.display().to_string())?;
    io::copy(&mut source, &mut target)?;
    Ok(())
}

/// This many random bytes.
pub fn random_bytes(length_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length_bytes];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// An error that says where, unless both files are the same.
pub fn same(got: &Path, expected: &Path) -> Result<()> {
    let open = |file: &Path| File::open(file).with_context(|| file.display().to_string());
    let (mut got_file, mut expected_file) = (open(got)?, open(expected)?);
    let (mut got_piece, mut expected_piece) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut offset = 0;
    loop {
        let got_count = fill(&mut got_file, &mut got_piece)?;
        let expected_count = fill(&mut expected_file, &mut expected_piece)?;
        if got_piece[..got_count] != expected_piece[..expected_count] {
            let at = got_piece[..got_count]
                .iter()
                .zip(&expected_piece[..expected_count])
                .position(|(got, expected)| got != expected)
                .unwrap_or(got_count.min(expected_count));
            bail!(
                "{} ({} bytes) differs from {} ({} bytes) from byte {} on",
                got.display(),
                got_file.metadata()?.len(),
                expected.display(),
                expected_file.metadata()?.len(),
                offset + at
            );
        }
        if got_count == 0 {
            return Ok(());
        }
        offset += got_count;
    }
}

fn fill(file: &mut File, piece: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < piece.len() {
        match file.read(&mut piece[count..])? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_files_apart() {
        let dir = std::env::temp_dir().join(format!("fordway-files-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (one, two) = (dir.join("one"), dir.join("two"));
        random(&one, 3_000_000).unwrap();
        let mut bytes = std::fs::read(&one).unwrap();
        std::fs::write(&two, &bytes).unwrap();
        same(&two, &one).unwrap();
        bytes[2_500_000] ^= 1;
        std::fs::write(&two, &bytes).unwrap();
        let error = same(&two, &one).unwrap_err().to_string();
        assert!(error.ends_with("from byte 2500000 on"), "{error}");
        std::fs::write(&two, &bytes[..2_000_000]).unwrap();
        let error = same(&two, &one).unwrap_err().to_string();
        assert!(error.ends_with("from byte 2000000 on"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
