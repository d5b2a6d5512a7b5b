//! The Range header (RFC 9110 section 14): byte ranges of a file.

use alloc::vec::Vec;
use core::ops::Range;

/// Ranges in one request; more are taken for an attempt to make work, and the whole file is sent.
const RANGES_MAX: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// No range that is understood: the whole file.
    Whole,
    One(Range<usize>),
    Many(Vec<Range<usize>>),
    /// None of them lies in the file.
    Unsatisfiable,
}

/// What `text` asks of a file of `length` bytes.
pub(crate) fn read(text: &[u8], length: usize) -> Ranges {
    let Some((unit, list)) = text.split_at_checked(6) else {
        return Ranges::Whole;
    };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return Ranges::Whole;
    }
    // One range, as clients ask, needs no list.
    if !list.contains(&b',') {
        return match one(list, length) {
            None => Ranges::Whole,
            Some(range) if range.is_empty() => Ranges::Unsatisfiable,
            Some(range) => Ranges::One(range),
        };
    }
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, part) in list.split(|byte| *byte == b',').enumerate() {
        if at == RANGES_MAX {
            return Ranges::Whole;
        }
        let part = part.trim_ascii();
        if part.is_empty() {
            continue;
        }
        match one(part, length) {
            None => return Ranges::Whole,
            Some(range) if range.is_empty() => {}
            Some(range) => ranges.push(range),
        }
    }
    let overlap = ranges.iter().enumerate().any(|(at, a)| {
        ranges[..at]
            .iter()
            .any(|b| a.start < b.end && b.start < a.end)
    });
    match ranges.len() {
        0 => Ranges::Unsatisfiable,
        1 => Ranges::One(ranges.remove(0)),
        // More bytes than the file has.
        _ if overlap => Ranges::Whole,
        _ => Ranges::Many(ranges),
    }
}

/// `FIRST-LAST`, `FIRST-` or `-COUNT`; empty if it lies outside.
fn one(text: &[u8], length: usize) -> Option<Range<usize>> {
    let dash = text.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (&text[..dash], &text[dash + 1..]);
    if first.is_empty() {
        return Some(length.saturating_sub(number(last)?)..length);
    }
    let first = number(first)?;
    let end = match last {
        [] => length,
        last => {
            let last = number(last)?;
            if last < first {
                return None;
            }
            last.saturating_add(1).min(length)
        }
    };
    Some(first.min(end)..end)
}

/// Decimal; what is larger than any file counts as the largest number.
pub(crate) fn number(text: &[u8]) -> Option<usize> {
    let digits = |sum: usize, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| usize::from(digit - b'0'))?;
        Some(sum.saturating_mul(10).saturating_add(digit))
    };
    (!text.is_empty()).then(|| text.iter().try_fold(0, digits))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn ranges_as_the_rfc_has_them() {
        let many = |ranges: &[Range<usize>]| Ranges::Many(ranges.to_vec());
        for (text, expected) in [
            ("bytes=0-499", Ranges::One(0..500)),
            ("bytes=500-", Ranges::One(500..10000)),
            ("bytes=-500", Ranges::One(9500..10000)),
            ("bytes=-20000", Ranges::One(0..10000)),
            (
                "bytes=9999-99999999999999999999999",
                Ranges::One(9999..10000),
            ),
            ("Bytes=0-0,-1", many(&[0..1, 9999..10000])),
            ("bytes= 0-0 , 5-6 ,", many(&[0..1, 5..7])),
            ("bytes=0-0,20000-", Ranges::One(0..1)),
            ("bytes=0-10,5-20", Ranges::Whole),
            ("bytes=10000-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=20000-,-0", Ranges::Unsatisfiable),
            ("bytes=5-4", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("lines=0-4", Ranges::Whole),
            ("", Ranges::Whole),
        ] {
            assert_eq!(read(text.as_bytes(), 10000), expected, "{text}");
        }
        let asked = "bytes=0-0,2-2,4-4,6-6,8-8,10-10,12-12,14-14,16-16,18-18,20-20,22-22,24-24,26-26,28-28,30-30,32-32";
        assert_eq!(read(asked.as_bytes(), 10000), Ranges::Whole);
        assert_eq!(read(b"bytes=0-0", 0), Ranges::Unsatisfiable);
        assert_eq!(read(b"bytes=0-0,2-2", 3), Ranges::Many(vec![0..1, 2..3]));
    }
}
