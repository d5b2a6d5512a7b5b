//! Netlink's attributes (linux: include/uapi/linux/netlink.h, struct nlattr): a length, a type, bytes,
//! each filled up to a multiple of four. Numbers of nf_tables are in network order.
//!
//! The bytes may be anybody's: a guest reads them from its ramdisk. What does not fit is an error,
//! and nothing here depends on more bytes than are there.

/// The bytes are not what they should be: what was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

impl core::fmt::Display for Damaged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for Damaged {}

const HEADER_BYTES: usize = 4;
/// NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const FLAGS: u16 = 0xc000;

/// The attributes of a message or of another attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'b>(&'b [u8]);

impl<'b> Attributes<'b> {
    pub fn new(bytes: &'b [u8]) -> Attributes<'b> {
        Attributes(bytes)
    }

    /// Each with its type.
    pub fn iter(self) -> impl Iterator<Item = Result<(u16, Attribute<'b>), Damaged>> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let taken = take(rest);
            rest = taken.map_or(&[], |(_, _, rest)| rest);
            Some(match taken {
                Some((kind, bytes, _)) => Ok((kind, Attribute(bytes))),
                None => Err(Damaged("an attribute is cut off")),
            })
        })
    }

    /// The last of this type, as the kernel reads them.
    pub fn get(self, wanted: u16) -> Result<Option<Attribute<'b>>, Damaged> {
        let mut found = None;
        for attribute in self.iter() {
            let (kind, attribute) = attribute?;
            if kind == wanted {
                found = Some(attribute);
            }
        }
        Ok(found)
    }

    /// The same, which must be there.
    pub fn need(self, wanted: u16, what: &'static str) -> Result<Attribute<'b>, Damaged> {
        self.get(wanted)?.ok_or(Damaged(what))
    }

    pub fn number(self, wanted: u16) -> Result<Option<u32>, Damaged> {
        self.get(wanted)?.map(Attribute::number).transpose()
    }

    pub fn wide(self, wanted: u16) -> Result<Option<u64>, Damaged> {
        self.get(wanted)?.map(Attribute::wide).transpose()
    }

    pub fn text(self, wanted: u16) -> Result<Option<&'b str>, Damaged> {
        self.get(wanted)?.map(Attribute::text).transpose()
    }
}

fn take(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let header = bytes.get(..HEADER_BYTES)?;
    let length = usize::from(u16::from_le_bytes([header[0], header[1]]));
    let kind = u16::from_le_bytes([header[2], header[3]]) & !FLAGS;
    let value = bytes.get(HEADER_BYTES..length)?;
    // The last one need not be filled up.
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, value, rest))
}

/// The bytes of one attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'b>(&'b [u8]);

impl<'b> Attribute<'b> {
    pub fn bytes(self) -> &'b [u8] {
        self.0
    }

    pub fn inner(self) -> Attributes<'b> {
        Attributes(self.0)
    }

    /// Of one, two or four bytes.
    pub fn number(self) -> Result<u32, Damaged> {
        match *self.0 {
            [a] => Ok(a.into()),
            [a, b] => Ok(u16::from_be_bytes([a, b]).into()),
            [a, b, c, d] => Ok(u32::from_be_bytes([a, b, c, d])),
            _ => Err(Damaged("a number has one, two or four bytes")),
        }
    }

    /// Of eight bytes.
    pub fn wide(self) -> Result<u64, Damaged> {
        let bytes = self.0.try_into();
        bytes
            .map(u64::from_be_bytes)
            .map_err(|_| Damaged("a number has eight bytes"))
    }

    /// A text that ends with a zero.
    pub fn text(self) -> Result<&'b str, Damaged> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let text = &self.0[..end.unwrap_or(self.0.len())];
        core::str::from_utf8(text).map_err(|_| Damaged("a text is not UTF-8"))
    }
}
