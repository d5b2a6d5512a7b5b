//! Whole numbers: reading them as Redis does, counting with them.

use super::{Call, NO_INTEGER, OUT_OF_MEMORY};
use crate::reply::{Reply, push_decimal};

/// Decimal without plus, leading zeros or spaces, as Redis wants it.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    // Below zero, where there is one number more.
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_sub(i64::from(digit - b'0'))?;
    }
    if negative {
        Some(value)
    } else {
        value.checked_neg()
    }
}

pub(super) fn incr(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    add(call, reply, 1);
}

pub(super) fn decr(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    add(call, reply, -1);
}

pub(super) fn incrby(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    match integer(call.arguments.at(2)) {
        Some(by) => add(call, reply, by),
        None => call.fail(reply, NO_INTEGER),
    }
}

pub(super) fn decrby(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    match integer(call.arguments.at(2)).map(i64::checked_neg) {
        Some(Some(by)) => add(call, reply, by),
        Some(None) => call.fail(reply, "ERR decrement would overflow"),
        None => call.fail(reply, NO_INTEGER),
    }
}

fn add(call: &mut Call<'_>, reply: &mut Reply<'_>, by: i64) {
    let (key, now_ms) = (call.arguments.at(1), call.now_ms);
    let before = match call.server.store.get(key, now_ms) {
        None => Some(0),
        Some(text) => integer(text),
    };
    let Some(before) = before else {
        return call.fail(reply, NO_INTEGER);
    };
    let Some(after) = before.checked_add(by) else {
        return call.fail(reply, "ERR increment or decrement would overflow");
    };
    const DIGITS_MAX: usize = 20;
    let written = call.server.store.edit(key, now_ms, DIGITS_MAX, |value| {
        value.clear();
        push_decimal(value, after);
    });
    match written {
        Ok(_) => reply.integer(after),
        Err(_) => call.fail(reply, OUT_OF_MEMORY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_as_redis_reads_them() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("+1", None),
            ("01", None),
            (" 1", None),
            ("1 ", None),
            ("1x", None),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text}");
        }
    }
}
