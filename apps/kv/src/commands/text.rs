//! Error texts with parts, and patterns as Redis has them.

use super::Arguments;
use crate::reply::Reply;
use alloc::format;
use alloc::vec::Vec;

/// Bytes of a client's own words that an error repeats.
pub(super) const REPEATED_BYTES_MAX: usize = 128;

pub(super) fn wrong_count(reply: &mut Reply<'_>, name: &str) {
    reply.error(&format!(
        "ERR wrong number of arguments for '{name}' command"
    ));
}

pub(super) fn unknown(reply: &mut Reply<'_>, arguments: Arguments<'_>) {
    let mut text = Vec::from(&b"ERR unknown command '"[..]);
    text.extend_from_slice(beginning(arguments.at(0), REPEATED_BYTES_MAX));
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for argument in arguments.from(1) {
        let left = (start + REPEATED_BYTES_MAX).saturating_sub(text.len());
        if left == 0 {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(beginning(argument, left));
        text.extend_from_slice(b"' ");
    }
    reply.error_bytes(&text);
}

/// What an error repeats of a word: up to a zero byte, as Redis has it.
pub(super) fn beginning(word: &[u8], bytes_max: usize) -> &[u8] {
    let end = word.iter().take(bytes_max).position(|byte| *byte == 0);
    &word[..end.unwrap_or(word.len().min(bytes_max))]
}

/// Whether `text` is of the pattern: `*`, `?`, `[a-z]`, `[^a]`, `\` before a sign that means
/// itself. Takes at most the product of both lengths.
pub(super) fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to try again with one byte more for the last star.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        if let Some(&byte) = text.get(t)
            && let Some(next) = matches_one(pattern, p, byte)
        {
            (p, t) = (next, t + 1);
            continue;
        }
        match retry {
            Some((after_star, from)) if from < text.len() => {
                retry = Some((after_star, from + 1));
                (p, t) = (after_star, from + 1);
            }
            _ => return false,
        }
    }
}

/// The end of the pattern's item at `p` if it is of this byte.
fn matches_one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        b'[' => {
            let (mut at, negated) = match pattern.get(p + 1) {
                Some(b'^') => (p + 2, true),
                _ => (p + 1, false),
            };
            let mut found = false;
            while let Some(&item) = pattern.get(at) {
                match (item, pattern.get(at + 1), pattern.get(at + 2)) {
                    (b']', _, _) => break,
                    (b'\\', Some(&next), _) => {
                        found |= next == byte;
                        at += 2;
                    }
                    (_, Some(b'-'), Some(&end)) => {
                        found |= (item.min(end)..=item.max(end)).contains(&byte);
                        at += 3;
                    }
                    _ => {
                        found |= item == byte;
                        at += 1;
                    }
                }
            }
            (found != negated).then_some((at + 1).min(pattern.len()))
        }
        sign => (sign == byte).then_some(p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c*", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("?", "", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[", "a", false),
            ("maxmemory*", "maxmemory-policy", true),
            ("", "", true),
            ("", "a", false),
        ] {
            let found = is_like(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern} {text}");
        }
    }
}
