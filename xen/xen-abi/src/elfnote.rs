//! elfnote.h: what the domain builder reads out of a guest's image before it starts.

/// The name that each of Xen's notes carries.
pub const NAME: &[u8; 4] = b"Xen\0";

pub const ENTRY: u32 = 1;
pub const HYPERCALL_PAGE: u32 = 2;
pub const VIRT_BASE: u32 = 3;
pub const PADDR_OFFSET: u32 = 4;
pub const XEN_VERSION: u32 = 5;
pub const GUEST_OS: u32 = 6;
pub const LOADER: u32 = 8;
pub const PAE_MODE: u32 = 9;
pub const FEATURES: u32 = 10;
/// Entry in 32-bit mode without paging: its presence makes the image a PVH one as well.
pub const PHYS32_ENTRY: u32 = 18;

/// One note of `N` bytes of payload, as it lies in a `PT_NOTE` segment.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
pub struct Note<const N: usize> {
    name_len: u32,
    payload_len: u32,
    kind: u32,
    name: [u8; 4],
    payload: [u8; N],
}

impl<const N: usize> Note<N> {
    /// A note whose payload is bytes: a string with its zero byte.
    pub const fn bytes(kind: u32, payload: [u8; N]) -> Self {
        Note {
            name_len: NAME.len() as u32,
            payload_len: N as u32,
            kind,
            name: *NAME,
            payload,
        }
    }
}

impl Note<8> {
    /// A note whose payload is a number.
    pub const fn number(kind: u32, value: u64) -> Self {
        Self::bytes(kind, value.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn a_note_lies_as_the_elf_specification_says() {
        assert_eq!(size_of::<Note<8>>(), 24);
        assert_eq!(offset_of!(Note<8>, kind), 8);
        assert_eq!(offset_of!(Note<8>, payload), 16);
        // An odd payload is padded to four bytes, so that the next note is aligned.
        assert_eq!(size_of::<Note<5>>(), 24);
        let note = Note::bytes(LOADER, *b"generic\0");
        assert_eq!((note.name_len, note.payload_len, note.kind), (4, 8, 8));
        assert_eq!(
            Note::number(VIRT_BASE, 0x1234).payload,
            [0x34, 0x12, 0, 0, 0, 0, 0, 0]
        );
    }
}
