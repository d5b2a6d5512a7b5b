//! Keys: whether they are there, how long, under which name.

use super::{Call, NO_INTEGER, OUT_OF_MEMORY, SYNTAX, integer, text};
use crate::reply::Reply;
use crate::store::NEVER;
use alloc::vec::Vec;

pub(super) fn del(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (store, now_ms) = (&mut call.server.store, call.now_ms);
    let removed = call
        .arguments
        .from(1)
        .filter(|key| store.remove(key, now_ms))
        .count();
    reply.integer(removed as i64);
}

/// Also TOUCH: asking for a key is using it.
pub(super) fn exists(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let mut count = 0;
    for key in call.arguments.from(1) {
        let is_there = call.server.store.get(key, call.now_ms).is_some();
        count += i64::from(is_there);
        call.hit(is_there);
    }
    reply.integer(count);
}

pub(super) fn kind(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let found = call.server.store.get(call.arguments.at(1), call.now_ms);
    reply.simple(if found.is_some() { "string" } else { "none" });
}

pub(super) fn dbsize(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    reply.integer(call.server.store.len() as i64);
}

pub(super) fn flush(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let how = call.arguments.from(1).next();
    let is_known =
        |how: &[u8]| how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async");
    if call.arguments.len() > 2 || !how.is_none_or(is_known) {
        return call.fail(reply, SYNTAX);
    }
    call.server.store.clear();
    reply.ok();
}

pub(super) fn expire(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    set_time(call, reply, 1000, false);
}

pub(super) fn pexpire(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    set_time(call, reply, 1, false);
}

pub(super) fn expireat(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    set_time(call, reply, 1000, true);
}

pub(super) fn pexpireat(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    set_time(call, reply, 1, true);
}

fn set_time(call: &mut Call<'_>, reply: &mut Reply<'_>, unit_ms: i64, is_of_day: bool) {
    let [mut nx, mut xx, mut gt, mut lt] = [false; 4];
    for option in call.arguments.from(3) {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        match () {
            () if is(b"nx") => nx = true,
            () if is(b"xx") => xx = true,
            () if is(b"gt") => gt = true,
            () if is(b"lt") => lt = true,
            () => {
                let mut error = Vec::from(&b"ERR Unsupported option "[..]);
                error.extend_from_slice(text::beginning(option, text::REPEATED_BYTES_MAX));
                call.server.stats.errors += 1;
                return reply.error_bytes(&error);
            }
        }
    }
    if nx && (xx || gt || lt) {
        let error = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return call.fail(reply, error);
    }
    if gt && lt {
        let error = "ERR GT and LT options at the same time are not compatible";
        return call.fail(reply, error);
    }
    let Some(value) = integer(call.arguments.at(2)) else {
        return call.fail(reply, NO_INTEGER);
    };
    // As a date, as Redis reckons; it may lie in the past.
    let date_ms = value.checked_mul(unit_ms).and_then(|ms| match is_of_day {
        true => Some(ms),
        false => ms.checked_add(call.wall_ms(call.now_ms) as i64),
    });
    let Some(date_ms) = date_ms else {
        return call.fail_time(reply);
    };
    let expires_ms =
        u64::try_from(date_ms).map_or(0, |ms| ms.saturating_sub(call.server.wall_offset_ms));
    let (key, now_ms) = (call.arguments.at(1), call.now_ms);
    let Some(before_ms) = call.server.store.expires_ms(key, now_ms) else {
        return reply.integer(0);
    };
    // Without a time a key lives for ever, which nothing is greater than.
    let is_refused = (nx && before_ms != NEVER)
        || (xx && before_ms == NEVER)
        || (gt && expires_ms <= before_ms)
        || (lt && expires_ms >= before_ms);
    if is_refused {
        return reply.integer(0);
    }
    if expires_ms <= now_ms {
        call.server.store.remove(key, now_ms);
    } else {
        call.server.store.set_expires_ms(key, now_ms, expires_ms);
    }
    reply.integer(1);
}

pub(super) fn persist(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (key, now_ms) = (call.arguments.at(1), call.now_ms);
    let before = call.server.store.expires_ms(key, now_ms);
    let has_time = before.is_some_and(|expires_ms| expires_ms != NEVER);
    if has_time {
        call.server.store.set_expires_ms(key, now_ms, NEVER);
    }
    reply.integer(i64::from(has_time));
}

pub(super) fn ttl(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let now_ms = call.now_ms;
    time_left(call, reply, |expires_ms| (expires_ms - now_ms + 500) / 1000);
}

pub(super) fn pttl(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let now_ms = call.now_ms;
    time_left(call, reply, |expires_ms| expires_ms - now_ms);
}

pub(super) fn expiretime(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let offset_ms = call.server.wall_offset_ms;
    time_left(call, reply, |expires_ms| {
        (expires_ms + offset_ms + 500) / 1000
    });
}

pub(super) fn pexpiretime(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let offset_ms = call.server.wall_offset_ms;
    time_left(call, reply, |expires_ms| expires_ms + offset_ms);
}

fn time_left(call: &mut Call<'_>, reply: &mut Reply<'_>, show: impl FnOnce(u64) -> u64) {
    match call
        .server
        .store
        .expires_ms(call.arguments.at(1), call.now_ms)
    {
        None => reply.integer(-2),
        Some(NEVER) => reply.integer(-1),
        Some(expires_ms) => reply.integer(show(expires_ms) as i64),
    }
}

pub(super) fn rename(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    if let Some(true) = change_name(call, reply, false) {
        reply.ok();
    }
}

pub(super) fn renamenx(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    if let Some(is_changed) = change_name(call, reply, true) {
        reply.integer(i64::from(is_changed));
    }
}

/// None if the client has been told an error.
fn change_name(call: &mut Call<'_>, reply: &mut Reply<'_>, only_new: bool) -> Option<bool> {
    let (from, to, now_ms) = (call.arguments.at(1), call.arguments.at(2), call.now_ms);
    let store = &mut call.server.store;
    let Some(value) = store.get(from, now_ms).map(<[u8]>::to_vec) else {
        call.fail(reply, "ERR no such key");
        return None;
    };
    if only_new && store.get(to, now_ms).is_some() {
        return Some(false);
    }
    let expires_ms = store.expires_ms(from, now_ms).unwrap_or(NEVER);
    store.remove(from, now_ms);
    if store.set(to, &value, expires_ms).is_err() {
        call.fail(reply, OUT_OF_MEMORY);
        return None;
    }
    Some(true)
}

pub(super) fn randomkey(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    reply.bulk_or_null(call.server.store.some_key(call.now_ms));
}

pub(super) fn keys(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let pattern = call.arguments.at(1);
    // Counted first: a list of them all would take memory of its own.
    let mut count = 0;
    each_like(call, pattern, |_| {
        count += 1;
        true
    });
    reply.array(count);
    each_like(call, pattern, |key| {
        reply.bulk(key);
        !reply.is_cut
    });
}

/// Shows every key of a pattern, until told to stop.
fn each_like(call: &Call<'_>, pattern: &[u8], mut show: impl FnMut(&[u8]) -> bool) {
    let mut cursor = 0;
    while let Some((at, key)) = call.server.store.key_from(cursor, call.now_ms) {
        cursor = at + 1;
        if text::is_like(pattern, key) && !show(key) {
            break;
        }
    }
}

/// A cursor is the place of the next entry; entries keep their places as long as they live.
pub(super) fn scan(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    const COUNT: i64 = 10;
    let cursor = integer(call.arguments.at(1)).and_then(|c| usize::try_from(c).ok());
    let Some(mut cursor) = cursor else {
        return call.fail(reply, "ERR invalid cursor");
    };
    let (mut pattern, mut count, mut only_kind) = (&b"*"[..], COUNT, None);
    let mut options = call.arguments.from(2);
    while let Some(option) = options.next() {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        let Some(value) = options.next() else {
            return call.fail(reply, SYNTAX);
        };
        match () {
            () if is(b"match") => pattern = value,
            () if is(b"type") => only_kind = Some(value),
            () if is(b"count") => match integer(value) {
                None => return call.fail(reply, NO_INTEGER),
                Some(value) if value < 1 => return call.fail(reply, SYNTAX),
                Some(value) => count = value,
            },
            () => return call.fail(reply, SYNTAX),
        }
    }
    let is_kind = only_kind.is_none_or(|kind| kind.eq_ignore_ascii_case(b"string"));
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut next = 0;
    for looked in 0.. {
        let Some((at, key)) = call.server.store.key_from(cursor, call.now_ms) else {
            break;
        };
        if looked == count || bytes > reply.room() / 4 {
            next = at;
            break;
        }
        cursor = at + 1;
        if is_kind && text::is_like(pattern, key) {
            bytes += key.len() + size_of::<&[u8]>();
            found.push(key);
        }
    }
    let mut digits = Vec::new();
    crate::reply::push_decimal(&mut digits, next as i64);
    reply.array(2);
    reply.bulk(&digits);
    reply.array(found.len());
    found.iter().for_each(|key| reply.bulk(key));
}
