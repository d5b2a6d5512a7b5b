//! Rules for who has no kernel to ask: the kernel's messages behind a header, little end first.
//!
//! | bytes | |
//! |---|---|
//! | 4 | `FWNF` |
//! | 4 | version of this form |
//! | 4 | length of what follows the header |
//! | 4 | its sum (FNV-1a, of 32 bits) |

use super::Damaged;
use alloc::vec::Vec;

const MAGIC: [u8; 4] = *b"FWNF";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;

/// What the kernel said, with a header.
pub fn packed(messages: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + messages.len());
    bytes.extend(MAGIC);
    for word in [VERSION, messages.len() as u32, sum(messages)] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(messages);
    bytes
}

/// What stands behind the header.
pub fn unpacked(bytes: &[u8]) -> Result<&[u8], Damaged> {
    let (header, messages) = bytes
        .split_at_checked(HEADER_BYTES)
        .filter(|(header, _)| header[..4] == MAGIC)
        .ok_or(Damaged(
            "these are no rules that fordway filter compile has made",
        ))?;
    let mut words = header[4..].chunks_exact(4);
    let mut word = || {
        let bytes = words.next().and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    if word() != VERSION {
        return Err(Damaged(
            "the rules are of another version: compile them anew",
        ));
    }
    if (word() as usize, word()) != (messages.len(), sum(messages)) {
        return Err(Damaged("the rules are cut off or damaged"));
    }
    Ok(messages)
}

fn sum(bytes: &[u8]) -> u32 {
    let add = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_no_other_thing() {
        let bytes = packed(b"some messages");
        assert_eq!(unpacked(&bytes), Ok(&b"some messages"[..]));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(unpacked(&other).is_err(), "{at}");
            assert!(unpacked(&bytes[..at]).is_err(), "{at}");
        }
        assert_eq!(unpacked(&packed(b"")), Ok(&b""[..]));
    }
}
