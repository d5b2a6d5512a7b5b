//! Internet checksums, changed as the bytes under them change (RFC 1624, equation 3).

/// The checksum after `old` became `new`; both have the same, even length, and begin at
/// an even place of what is summed.
pub(crate) fn update(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let mut sum = u32::from(!checksum);
    for (old, new) in words(old).zip(words(new)) {
        sum += u32::from(!old) + u32::from(new);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !fold(sum)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of these bytes, with a sum to begin with.
pub(crate) fn of(bytes: &[u8], start: u32) -> u16 {
    !fold(words(bytes).fold(start, |sum, word| {
        let sum = sum + u32::from(word);
        (sum & 0xffff) + (sum >> 16)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_updated_checksum_is_the_new_checksum(
            mut bytes in prop::collection::vec(any::<u8>(), 20..60),
            at in 0..4usize,
            new in prop::collection::vec(any::<u8>(), 4),
        ) {
            let at = at * 2;
            bytes[19] |= 1; // all zeros has two checksums
            let before = of(&bytes, 0);
            let old = bytes[at..at + 4].to_vec();
            bytes[at..at + 4].copy_from_slice(&new);
            prop_assert_eq!(update(before, &old, &new), of(&bytes, 0));
        }
    }
}
