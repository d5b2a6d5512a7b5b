//! Values: reading and writing them.

use super::{Call, NO_INTEGER, OUT_OF_MEMORY, SYNTAX, TOO_LARGE, integer, text};
use crate::reply::Reply;
use crate::store::NEVER;

pub(super) fn get(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let found = call.server.store.get(call.arguments.at(1), call.now_ms);
    reply.bulk_or_null(found);
    let is_there = found.is_some();
    call.hit(is_there);
}

pub(super) fn strlen(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let found = call.server.store.get(call.arguments.at(1), call.now_ms);
    reply.integer(found.map_or(0, <[u8]>::len) as i64);
    let is_there = found.is_some();
    call.hit(is_there);
}

pub(super) fn mget(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    reply.array(call.arguments.len() - 1);
    for key in call.arguments.from(1) {
        let found = call.server.store.get(key, call.now_ms);
        reply.bulk_or_null(found);
        let is_there = found.is_some();
        call.hit(is_there);
        if reply.is_cut {
            return;
        }
    }
}

/// Conditions and times of SET and GETEX.
#[derive(Default)]
struct Options<'c> {
    only_new: bool,
    only_there: bool,
    keeps_time: bool,
    gives_old: bool,
    persists: bool,
    time: Option<Time<'c>>,
}

/// A time as the client wrote it, the unit's milliseconds, and whether it is one of day.
type Time<'c> = (&'c [u8], i64, bool);

/// Why options cannot be taken.
enum Refused {
    Syntax,
    Integer,
    Time,
}

impl<'c> Call<'c> {
    fn refuse(&mut self, reply: &mut Reply<'_>, why: Refused) {
        match why {
            Refused::Syntax => self.fail(reply, SYNTAX),
            Refused::Integer => self.fail(reply, NO_INTEGER),
            Refused::Time => self.fail_time(reply),
        }
    }

    pub(super) fn fail_time(&mut self, reply: &mut Reply<'_>) {
        let name = self.command.name;
        self.fail(
            reply,
            &alloc::format!("ERR invalid expire time in '{name}' command"),
        );
    }

    /// The end, on the server's clock, of a time given in seconds or milliseconds, from now on
    /// or of day.
    fn end_ms(&self, (text, unit_ms, is_of_day): Time<'_>) -> Result<u64, Refused> {
        let value = integer(text).ok_or(Refused::Integer)?;
        if value <= 0 {
            return Err(Refused::Time);
        }
        let ms = value.checked_mul(unit_ms).ok_or(Refused::Time)? as u64;
        match is_of_day {
            true => Ok(ms.saturating_sub(self.server.wall_offset_ms)),
            // No later than what a date of Redis' can be.
            false => match self.wall_ms(self.now_ms).checked_add(ms) {
                Some(date) if date <= i64::MAX as u64 => Ok(self.now_ms + ms),
                _ => Err(Refused::Time),
            },
        }
    }

    fn options(&self, from: usize, is_set: bool) -> Result<Options<'c>, Refused> {
        let mut options = Options::default();
        let mut words = self.arguments.from(from);
        while let Some(option) = words.next() {
            let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
            let unit = match () {
                () if is(b"ex") => Some((1000, false)),
                () if is(b"px") => Some((1, false)),
                () if is(b"exat") => Some((1000, true)),
                () if is(b"pxat") => Some((1, true)),
                () => None,
            };
            if let Some((unit_ms, is_of_day)) = unit {
                // The same option again is taken, and the last one counts.
                let is_other = options
                    .time
                    .is_some_and(|(_, ms, day)| (ms, day) != (unit_ms, is_of_day));
                if is_other || options.keeps_time || options.persists {
                    return Err(Refused::Syntax);
                }
                let value = words.next().ok_or(Refused::Syntax)?;
                options.time = Some((value, unit_ms, is_of_day));
            } else if is_set && is(b"nx") && !options.only_there {
                options.only_new = true;
            } else if is_set && is(b"xx") && !options.only_new {
                options.only_there = true;
            } else if is_set && is(b"get") {
                options.gives_old = true;
            } else if is_set && is(b"keepttl") && options.time.is_none() {
                options.keeps_time = true;
            } else if !is_set && is(b"persist") && options.time.is_none() {
                options.persists = true;
            } else {
                return Err(Refused::Syntax);
            }
        }
        Ok(options)
    }

    /// Gives a key a value; false if there is no room for it, and the client has been told.
    fn put(&mut self, reply: &mut Reply<'_>, key: &[u8], value: &[u8], expires_ms: u64) -> bool {
        let put = self.server.store.set(key, value, expires_ms);
        if put.is_err() {
            self.fail(reply, OUT_OF_MEMORY);
        }
        put.is_ok()
    }
}

pub(super) fn set(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (key, value) = (call.arguments.at(1), call.arguments.at(2));
    if call.arguments.len() == 3 {
        if call.put(reply, key, value, NEVER) {
            reply.ok();
        }
        return;
    }
    let options = match call.options(3, true) {
        Ok(options) => options,
        Err(why) => return call.refuse(reply, why),
    };
    let asked_ms = match options.time.map(|time| call.end_ms(time)).transpose() {
        Ok(expires_ms) => expires_ms.unwrap_or(NEVER),
        Err(why) => return call.refuse(reply, why),
    };
    let start = reply.out.len();
    let old = call.server.store.get(key, call.now_ms);
    let is_there = old.is_some();
    if options.gives_old {
        reply.bulk_or_null(old);
        call.hit(is_there);
    }
    if (options.only_new && is_there) || (options.only_there && !is_there) {
        if !options.gives_old {
            reply.null();
        }
        return;
    }
    let kept = options.keeps_time && is_there;
    let expires_ms = match kept {
        true => call
            .server
            .store
            .expires_ms(key, call.now_ms)
            .unwrap_or(NEVER),
        false => asked_ms,
    };
    let put = call.server.store.set(key, value, expires_ms);
    if put.is_err() {
        reply.out.truncate(start);
        return call.fail(reply, OUT_OF_MEMORY);
    }
    if !options.gives_old {
        reply.ok();
    }
}

pub(super) fn setnx(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (key, value) = (call.arguments.at(1), call.arguments.at(2));
    if call.server.store.get(key, call.now_ms).is_some() {
        return reply.integer(0);
    }
    if call.put(reply, key, value, NEVER) {
        reply.integer(1);
    }
}

pub(super) fn setex(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    set_for(call, reply, 1000);
}

pub(super) fn psetex(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    set_for(call, reply, 1);
}

fn set_for(call: &mut Call<'_>, reply: &mut Reply<'_>, unit_ms: i64) {
    let (key, value) = (call.arguments.at(1), call.arguments.at(3));
    match call.end_ms((call.arguments.at(2), unit_ms, false)) {
        Err(why) => call.refuse(reply, why),
        Ok(expires_ms) => {
            if call.put(reply, key, value, expires_ms) {
                reply.ok();
            }
        }
    }
}

pub(super) fn getset(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (key, value) = (call.arguments.at(1), call.arguments.at(2));
    let start = reply.out.len();
    get(call, reply);
    if call.server.store.set(key, value, NEVER).is_err() {
        reply.out.truncate(start);
        call.fail(reply, OUT_OF_MEMORY);
    }
}

pub(super) fn getdel(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    get(call, reply);
    call.server.store.remove(call.arguments.at(1), call.now_ms);
}

pub(super) fn getex(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let options = match call.options(2, false) {
        Ok(options) => options,
        Err(why) => return call.refuse(reply, why),
    };
    let (key, now_ms) = (call.arguments.at(1), call.now_ms);
    // Of a key that is not there no time is too bad.
    if call.server.store.get(key, now_ms).is_some() {
        let expires_ms = match options.time.map(|time| call.end_ms(time)).transpose() {
            Ok(_) if options.persists => Some(NEVER),
            Ok(expires_ms) => expires_ms,
            Err(why) => return call.refuse(reply, why),
        };
        get(call, reply);
        if let Some(expires_ms) = expires_ms {
            call.server.store.set_expires_ms(key, now_ms, expires_ms);
        }
        return;
    }
    get(call, reply);
}

pub(super) fn mset(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    if call.arguments.len().is_multiple_of(2) {
        call.server.stats.errors += 1;
        return text::wrong_count(reply, call.command.name);
    }
    for at in (1..call.arguments.len()).step_by(2) {
        let (key, value) = (call.arguments.at(at), call.arguments.at(at + 1));
        if !call.put(reply, key, value, NEVER) {
            return;
        }
    }
    reply.ok();
}

pub(super) fn msetnx(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    if call.arguments.len().is_multiple_of(2) {
        call.server.stats.errors += 1;
        return text::wrong_count(reply, call.command.name);
    }
    for key in call.arguments.from(1).step_by(2) {
        if call.server.store.get(key, call.now_ms).is_some() {
            return reply.integer(0);
        }
    }
    let start = reply.out.len();
    mset(call, reply);
    if reply.out[start..] == *b"+OK\r\n" {
        reply.out.truncate(start);
        reply.integer(1);
    }
}

pub(super) fn append(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (key, more) = (call.arguments.at(1), call.arguments.at(2));
    let before = call
        .server
        .store
        .get(key, call.now_ms)
        .map_or(0, <[u8]>::len);
    let after = before + more.len();
    if after > call.server.config.argument_bytes_max {
        return call.fail(reply, TOO_LARGE);
    }
    let add = |value: &mut alloc::vec::Vec<u8>| value.extend_from_slice(more);
    match call.server.store.edit(key, call.now_ms, after, add) {
        Ok(length) => reply.integer(length as i64),
        Err(_) => call.fail(reply, OUT_OF_MEMORY),
    }
}

pub(super) fn setrange(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (key, piece) = (call.arguments.at(1), call.arguments.at(3));
    let Some(offset) = integer(call.arguments.at(2)) else {
        return call.fail(reply, NO_INTEGER);
    };
    let Ok(offset) = usize::try_from(offset) else {
        return call.fail(reply, "ERR offset is out of range");
    };
    let before = call
        .server
        .store
        .get(key, call.now_ms)
        .map_or(0, <[u8]>::len);
    if piece.is_empty() {
        return reply.integer(before as i64);
    }
    let end = offset.saturating_add(piece.len());
    if end > call.server.config.argument_bytes_max {
        return call.fail(reply, TOO_LARGE);
    }
    let write = |value: &mut alloc::vec::Vec<u8>| {
        value.resize(end.max(value.len()), 0);
        value[offset..end].copy_from_slice(piece);
    };
    match call
        .server
        .store
        .edit(key, call.now_ms, end.max(before), write)
    {
        Ok(length) => reply.integer(length as i64),
        Err(_) => call.fail(reply, OUT_OF_MEMORY),
    }
}

pub(super) fn getrange(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let (first, last) = (integer(call.arguments.at(2)), integer(call.arguments.at(3)));
    let (Some(first), Some(last)) = (first, last) else {
        return call.fail(reply, NO_INTEGER);
    };
    let found = call.server.store.get(call.arguments.at(1), call.now_ms);
    let value = found.unwrap_or(&[]);
    let length = value.len() as i64;
    // Negative places count from the end.
    let place = |at: i64| {
        if at < 0 {
            (length.saturating_add(at)).max(0)
        } else {
            at
        }
    };
    let is_empty = (first < 0 && last < 0 && first > last) || length == 0;
    let (first, last) = (place(first), place(last).min(length - 1));
    reply.bulk(match is_empty || first > last {
        true => &[],
        false => &value[first as usize..=last as usize],
    });
    let is_there = found.is_some();
    call.hit(is_there);
}
