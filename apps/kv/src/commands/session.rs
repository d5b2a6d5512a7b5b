//! The connection and the server: who one is, what there is, how it goes.

use super::{COMMANDS, Call, Command, SYNTAX, find, integer, text};
use crate::conn::Session;
use crate::reply::Reply;
use alloc::format;
use alloc::string::{String, ToString};

/// The version of Redis whose answers these are, for clients that look.
const REDIS_VERSION: &str = "7.0.15";

pub(super) fn ping(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    match call.arguments.len() {
        1 => reply.simple("PONG"),
        2 => reply.bulk(call.arguments.at(1)),
        _ => {
            call.server.stats.errors += 1;
            text::wrong_count(reply, call.command.name);
        }
    }
}

pub(super) fn echo(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    reply.bulk(call.arguments.at(1));
}

pub(super) fn quit(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    call.session.is_closing = true;
    reply.ok();
}

pub(super) fn select(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    const NO_NUMBER_OF_A_DATABASE: &str =
        "ERR value is out of range, value must between -2147483648 and 2147483647";
    match integer(call.arguments.at(1)) {
        Some(0) => reply.ok(),
        Some(number) if i32::try_from(number).is_err() => {
            call.fail(reply, NO_NUMBER_OF_A_DATABASE);
        }
        Some(_) => call.fail(reply, "ERR DB index is out of range"),
        None => call.fail(reply, "ERR value is not an integer or out of range"),
    }
}

/// There are no passwords.
pub(super) fn auth(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let error = match call.arguments.len() {
        2 => {
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?"
        }
        3 if call.arguments.at(1) == b"default" => return reply.ok(),
        3 => "WRONGPASS invalid username-password pair or user is disabled.",
        _ => SYNTAX,
    };
    call.fail(reply, error);
}

/// There are no replicas.
pub(super) fn wait(_: &mut Call<'_>, reply: &mut Reply<'_>) {
    reply.integer(0);
}

pub(super) fn time(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let ms = call.wall_ms(call.now_ms);
    reply.array(2);
    reply.bulk((ms / 1000).to_string().as_bytes());
    reply.bulk((ms % 1000 * 1000).to_string().as_bytes());
}

pub(super) fn reset(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let id = call.session.id;
    *call.session = Session {
        id,
        ..Session::of_datagram()
    };
    reply.is_resp3 = false;
    reply.simple("RESET");
}

pub(super) fn hello(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let mut words = call.arguments.from(1);
    let mut is_resp3 = call.session.is_resp3;
    if let Some(version) = words.next() {
        is_resp3 = match integer(version) {
            Some(2) => false,
            Some(3) => true,
            Some(_) => return call.fail(reply, "NOPROTO unsupported protocol version"),
            None => {
                let error = "ERR Protocol version is not an integer or out of range";
                return call.fail(reply, error);
            }
        };
    }
    let mut name = None;
    while let Some(option) = words.next() {
        if option.eq_ignore_ascii_case(b"auth") {
            if words.next() != Some(b"default") || words.next().is_none() {
                let error = "WRONGPASS invalid username-password pair or user is disabled.";
                return call.fail(reply, error);
            }
        } else if option.eq_ignore_ascii_case(b"setname")
            && let Some(value) = words.next()
        {
            match client_name(value) {
                Some(value) => name = Some(value),
                None => return call.fail(reply, BAD_NAME),
            }
        } else {
            let mut error = b"ERR Syntax error in HELLO option '".to_vec();
            error.extend_from_slice(option);
            error.push(b'\'');
            call.server.stats.errors += 1;
            return reply.error_bytes(&error);
        }
    }
    if let Some(name) = name {
        call.session.name = name;
    }
    call.session.is_resp3 = is_resp3;
    reply.is_resp3 = is_resp3;
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(if is_resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(call.session.id as i64);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
const NAME_BYTES_MAX: usize = 64;

fn client_name(name: &[u8]) -> Option<String> {
    let is_plain = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
    is_plain.then(|| String::from_utf8_lossy(name).into_owned())
}

pub(super) fn client(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let sub = call.arguments.at(1);
    let count = call.arguments.len();
    let is = |name: &[u8], wanted: usize| sub.eq_ignore_ascii_case(name) && count == wanted;
    match () {
        () if is(b"id", 2) => reply.integer(call.session.id as i64),
        () if is(b"getname", 2) => match call.session.name.is_empty() {
            true => reply.null(),
            false => reply.bulk(call.session.name.as_bytes()),
        },
        () if is(b"setname", 3) => match client_name(call.arguments.at(2)) {
            Some(name) => {
                call.session.name = name;
                reply.ok();
            }
            None => call.fail(reply, BAD_NAME),
        },
        () if is(b"info", 2) || is(b"list", 2) => {
            let Session {
                id, name, is_resp3, ..
            } = &*call.session;
            let version = if *is_resp3 { 3 } else { 2 };
            let line = format!("id={id} name={name} db=0 resp={version}\n");
            reply.verbatim(line.as_bytes());
        }
        () if is(b"setinfo", 4) || is(b"no-evict", 3) || is(b"no-touch", 3) => reply.ok(),
        () => unknown_sub(call, reply),
    }
}

fn unknown_sub(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let name = call.command.name.to_ascii_uppercase();
    let sub = String::from_utf8_lossy(call.arguments.at(1)).into_owned();
    let sub: String = sub.chars().take(128).collect();
    let error = format!(
        "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {name} HELP."
    );
    call.fail(reply, &error);
}

pub(super) fn command(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    if call.arguments.len() == 1 {
        reply.array(COMMANDS.len());
        return COMMANDS.iter().for_each(|command| describe(command, reply));
    }
    let sub = call.arguments.at(1);
    let is = |name: &[u8]| sub.eq_ignore_ascii_case(name);
    match () {
        () if is(b"count") => reply.integer(COMMANDS.len() as i64),
        // redis-cli makes its hints of it, and lives without.
        () if is(b"docs") => reply.map(0),
        () if is(b"list") => {
            reply.array(COMMANDS.len());
            COMMANDS
                .iter()
                .for_each(|command| reply.bulk(command.name.as_bytes()));
        }
        () if is(b"info") => {
            reply.array(call.arguments.len() - 2);
            for name in call.arguments.from(2) {
                match find(name) {
                    Some(command) => describe(command, reply),
                    None => reply.null(),
                }
            }
        }
        () => unknown_sub(call, reply),
    }
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    let (first, last, step) = command.keys;
    reply.array(6);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    reply.array(command.flags.len());
    command.flags.iter().for_each(|flag| reply.simple(flag));
    for number in [first, last, step] {
        reply.integer(i64::from(number));
    }
}

pub(super) fn config(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let sub = call.arguments.at(1);
    if sub.eq_ignore_ascii_case(b"resetstat") && call.arguments.len() == 2 {
        call.server.stats = Default::default();
        return reply.ok();
    }
    if !sub.eq_ignore_ascii_case(b"get") || call.arguments.len() < 3 {
        return unknown_sub(call, reply);
    }
    let config = &call.server.config;
    let settings = [
        ("appendonly", "no".to_string()),
        ("databases", "1".to_string()),
        ("maxclients", config.clients_max.to_string()),
        ("maxmemory", config.memory_bytes_max.to_string()),
        ("maxmemory-policy", "allkeys-lru".to_string()),
        ("proto-max-bulk-len", config.argument_bytes_max.to_string()),
        ("save", String::new()),
        ("timeout", (config.idle_us_max / 1_000_000).to_string()),
    ];
    let is_asked = |name: &str| {
        let mut patterns = call.arguments.from(2);
        patterns.any(|pattern| text::is_like(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let asked = settings.iter().filter(|(name, _)| is_asked(name));
    reply.map(asked.clone().count());
    for (name, value) in asked {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

pub(super) fn info(call: &mut Call<'_>, reply: &mut Reply<'_>) {
    let server = &call.server;
    let (stats, store) = (&server.stats, &server.store);
    let uptime_s = (call.now_ms - server.started_ms.min(call.now_ms)) / 1000;
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nserver_name:fordway-kv\r\nfordway_version:{}\r\n\
                 redis_mode:standalone\r\nuptime_in_seconds:{uptime_s}\r\n",
                env!("CARGO_PKG_VERSION")
            ),
        ),
        (
            "Clients",
            format!(
                "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:0\r\n",
                server.clients, server.config.clients_max
            ),
        ),
        (
            "Memory",
            format!(
                "used_memory:{}\r\nused_memory_human:{}\r\nmaxmemory:{}\r\nmaxmemory_human:{}\r\n\
                 maxmemory_policy:allkeys-lru\r\n",
                store.bytes(),
                for_people(store.bytes()),
                store.bytes_max(),
                for_people(store.bytes_max())
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
                 rejected_connections:{}\r\nexpired_keys:{}\r\nevicted_keys:{}\r\n\
                 keyspace_hits:{}\r\nkeyspace_misses:{}\r\ntotal_error_replies:{}\r\n",
                stats.accepted,
                stats.commands,
                stats.refused,
                store.expired,
                store.evicted,
                stats.hits,
                stats.misses,
                stats.errors
            ),
        ),
        (
            "Replication",
            "role:master\r\nconnected_slaves:0\r\n".into(),
        ),
        (
            "Keyspace",
            match store.len() {
                0 => String::new(),
                keys => format!("db0:keys={keys},expires={},avg_ttl=0\r\n", store.volatile()),
            },
        ),
    ];
    let is_asked = |section: &str| {
        let mut asked = call.arguments.from(1).peekable();
        asked.peek().is_none()
            || asked.any(|name| {
                let all = [section.as_bytes(), b"all", b"default", b"everything"];
                all.iter().any(|one| name.eq_ignore_ascii_case(one))
            })
    };
    let mut page = String::new();
    for (name, lines) in sections.iter().filter(|(name, _)| is_asked(name)) {
        if !page.is_empty() {
            page.push_str("\r\n");
        }
        page.push_str(&format!("# {name}\r\n{lines}"));
    }
    reply.verbatim(page.as_bytes());
}

fn for_people(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => in_hundredths(bytes, 1024, 'K'),
        _ => in_hundredths(bytes, 0x10_0000, 'M'),
    }
}

/// Two digits behind the point, rounded as printf does. (Numbers with a point of their own would
/// bring 13 KB of code for this alone.)
fn in_hundredths(bytes: usize, unit: u128, letter: char) -> String {
    let scaled = bytes as u128 * 100;
    let (below, rest) = (scaled / unit, 2 * (scaled % unit));
    let rounded = below + u128::from(rest > unit || (rest == unit && below % 2 == 1));
    format!("{}.{:02}{letter}", rounded / 100, rounded % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people_are_rounded_to_two_digits() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (1152, "1.12K"),
            (1408, "1.38K"),
            (2047, "2.00K"),
            (0x10_0000 - 1, "1024.00K"),
            (64 << 20, "64.00M"),
            ((5 << 30) + 12_345_678, "5131.77M"),
        ] {
            assert_eq!(for_people(bytes), text);
        }
    }
}
