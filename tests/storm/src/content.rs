//! Bytes that say where they belong: each is a function of a seed and its place in the
//! stream, so that a lost, doubled or misplaced one is seen where it is read.

/// A number that looks random (xorshift with a multiplication before and after).
pub fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^= word >> 32;
    word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

/// Fills `bytes` with the stream's from `at` on.
pub fn fill(seed: u64, at: u64, bytes: &mut [u8]) {
    let mut index = at / 8;
    let mut skip = (at % 8) as usize;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = mix(seed ^ mix(index)).to_le_bytes();
        let count = rest.len().min(8 - skip);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&word[skip..skip + count]);
        (rest, skip, index) = (later, 0, index + 1);
    }
}

/// Whether `bytes` are the stream's from `at` on; else the first place that is wrong.
pub fn check(seed: u64, at: u64, bytes: &[u8]) -> Result<(), u64> {
    let mut expected = vec![0; bytes.len()];
    fill(seed, at, &mut expected);
    match bytes.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(place) => Err(at + place as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_a_byte_that_is_lost_or_doubled() {
        let mut whole = vec![0; 1000];
        fill(7, 0, &mut whole);
        for at in [0, 1, 7, 8, 9, 500] {
            assert_eq!(check(7, at, &whole[at as usize..]), Ok(()));
        }
        let lost = [&whole[..100], &whole[101..]].concat();
        assert!(check(7, 0, &lost).is_err_and(|place| (100..110).contains(&place)));
        let doubled = [&whole[..100], &whole[99..]].concat();
        assert!(check(7, 0, &doubled).is_err());
        assert!(check(8, 0, &whole).is_err());
    }
}
