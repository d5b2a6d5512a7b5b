//! Records on a stream: how SOCK_SEQPACKET goes over a TCP connection, of AF_VSOCK and of the native API.
//!
//! A record is its head, which is [`HEAD_BYTES`] long, and its bytes. The head stands in the stream itself, so that
//! kernel path and rings carry the same, and nobody has to keep where a record begins who takes whole ones only.

/// Bytes of a record's head.
pub const HEAD_BYTES: usize = 4;
/// Whether the sender has marked the record as the last one of a message (MSG_EOR).
const END: u32 = 1 << 31;

/// The head of a record of so many bytes: the length, the lowest byte first, and the mark.
pub const fn head(bytes: usize, is_end: bool) -> [u8; HEAD_BYTES] {
    let mark = if is_end { END } else { 0 };
    (bytes as u32 | mark).to_le_bytes()
}

/// What a head says: length and mark. The length is a peer's word.
pub const fn read(head: [u8; HEAD_BYTES]) -> (usize, bool) {
    let word = u32::from_le_bytes(head);
    ((word & !END) as usize, word & END != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for bytes in [0, 1, 255, 256, 131_072, 1 << 20] {
            for is_end in [false, true] {
                assert_eq!(read(head(bytes, is_end)), (bytes, is_end));
            }
        }
        assert_eq!(head(0x010203, false), [3, 2, 1, 0]);
    }
}
