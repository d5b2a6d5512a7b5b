//! The command table: names, arity, flags and functions, in one place. COMMAND shows it, and
//! [`run`] looks a command up in it, the most frequent first.

mod keys;
mod numbers;
mod session;
mod strings;
mod text;

use crate::conn::Session;
use crate::parser::Arguments;
use crate::reply::Reply;
use crate::server::Server;
use alloc::vec::Vec;
pub(crate) use numbers::integer;

/// A command being carried out.
pub(crate) struct Call<'c> {
    pub server: &'c mut Server,
    pub session: &'c mut Session,
    pub now_ms: u64,
    pub arguments: Arguments<'c>,
    pub command: &'static Command,
}

pub(crate) struct Command {
    pub name: &'static str,
    word: u64,
    /// Number of arguments with the name; if negative, at least so many.
    pub arity: i32,
    pub flags: &'static [&'static str],
    /// First key, last key (negative: counted from the end), step; 0: none.
    pub keys: (i32, i32, i32),
    run: fn(&mut Call<'_>, &mut Reply<'_>),
}

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const KEYS: &[&str] = &["write", "fast"];
const OTHER: &[&str] = &["loading", "stale", "fast"];
const NO_KEY: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
    keys: (i32, i32, i32),
    run: fn(&mut Call<'_>, &mut Reply<'_>),
) -> Command {
    Command {
        name,
        word: word(name.as_bytes()),
        arity,
        flags,
        keys,
        run,
    }
}

pub(crate) static COMMANDS: [Command; 55] = [
    command("get", 2, READ, ONE_KEY, strings::get),
    command("set", -3, WRITE, ONE_KEY, strings::set),
    command("incr", 2, WRITE, ONE_KEY, numbers::incr),
    command("mget", -2, READ, ALL_KEYS, strings::mget),
    command("mset", -3, WRITE, PAIRS, strings::mset),
    command("del", -2, KEYS, ALL_KEYS, keys::del),
    command("exists", -2, READ, ALL_KEYS, keys::exists),
    command("ping", -1, OTHER, NO_KEY, session::ping),
    command("append", 3, WRITE, ONE_KEY, strings::append),
    command("auth", -2, OTHER, NO_KEY, session::auth),
    command("client", -2, OTHER, NO_KEY, session::client),
    command("command", -1, OTHER, NO_KEY, session::command),
    command("config", -2, OTHER, NO_KEY, session::config),
    command("dbsize", 1, READ, NO_KEY, keys::dbsize),
    command("decr", 2, WRITE, ONE_KEY, numbers::decr),
    command("decrby", 3, WRITE, ONE_KEY, numbers::decrby),
    command("echo", 2, OTHER, NO_KEY, session::echo),
    command("expire", -3, KEYS, ONE_KEY, keys::expire),
    command("expireat", -3, KEYS, ONE_KEY, keys::expireat),
    command("expiretime", 2, READ, ONE_KEY, keys::expiretime),
    command("flushall", -1, KEYS, NO_KEY, keys::flush),
    command("flushdb", -1, KEYS, NO_KEY, keys::flush),
    command("getdel", 2, KEYS, ONE_KEY, strings::getdel),
    command("getex", -2, KEYS, ONE_KEY, strings::getex),
    command("getrange", 4, READ, ONE_KEY, strings::getrange),
    command("getset", 3, WRITE, ONE_KEY, strings::getset),
    command("hello", -1, OTHER, NO_KEY, session::hello),
    command("incrby", 3, WRITE, ONE_KEY, numbers::incrby),
    command("info", -1, OTHER, NO_KEY, session::info),
    command("keys", 2, READ, NO_KEY, keys::keys),
    command("msetnx", -3, WRITE, PAIRS, strings::msetnx),
    command("persist", 2, KEYS, ONE_KEY, keys::persist),
    command("pexpire", -3, KEYS, ONE_KEY, keys::pexpire),
    command("pexpireat", -3, KEYS, ONE_KEY, keys::pexpireat),
    command("pexpiretime", 2, READ, ONE_KEY, keys::pexpiretime),
    command("psetex", 4, WRITE, ONE_KEY, strings::psetex),
    command("pttl", 2, READ, ONE_KEY, keys::pttl),
    command("quit", -1, OTHER, NO_KEY, session::quit),
    command("randomkey", 1, READ, NO_KEY, keys::randomkey),
    command("rename", 3, KEYS, (1, 2, 1), keys::rename),
    command("renamenx", 3, KEYS, (1, 2, 1), keys::renamenx),
    command("reset", 1, OTHER, NO_KEY, session::reset),
    command("scan", -2, READ, NO_KEY, keys::scan),
    command("select", 2, OTHER, NO_KEY, session::select),
    command("setex", 4, WRITE, ONE_KEY, strings::setex),
    command("setnx", 3, WRITE, ONE_KEY, strings::setnx),
    command("setrange", 4, WRITE, ONE_KEY, strings::setrange),
    command("strlen", 2, READ, ONE_KEY, strings::strlen),
    command("substr", 4, READ, ONE_KEY, strings::getrange),
    command("time", 1, OTHER, NO_KEY, session::time),
    command("touch", -2, READ, ALL_KEYS, keys::exists),
    command("ttl", 2, READ, ONE_KEY, keys::ttl),
    command("type", 2, READ, ONE_KEY, keys::kind),
    command("unlink", -2, KEYS, ALL_KEYS, keys::del),
    command("wait", 3, OTHER, NO_KEY, session::wait),
];

/// A name in lower case as a number, to look it up by: that of the last eight letters, with the
/// ones before folded in. Names in the table are letters, so that up to eight bytes with the number
/// of one are that name: the bit that is set here tells a capital from a small letter and nothing else.
const fn word(name: &[u8]) -> u64 {
    let mut word = 0u64;
    let mut at = 0;
    while at < name.len() {
        word = word.rotate_left(8) ^ (name[at] | 0x20) as u64;
        at += 1;
    }
    word
}

/// The command of a name.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    let wanted = word(name);
    let is_short = name.len() <= 8;
    let named = |command: &&Command| {
        command.word == wanted && (is_short || command.name.as_bytes().eq_ignore_ascii_case(name))
    };
    COMMANDS.iter().find(named)
}

/// Carries out one command and appends its reply, of at most `room` bytes. Without arguments
/// there is nothing to do.
pub(crate) fn run(
    server: &mut Server,
    session: &mut Session,
    now_ms: u64,
    arguments: Arguments<'_>,
    out: &mut Vec<u8>,
    room: usize,
) {
    if arguments.len() == 0 {
        return;
    }
    server.stats.commands += 1;
    let start = out.len();
    let room = room.min(server.config.reply_bytes_max);
    let mut reply = Reply::new(out, session.is_resp3, room);
    carry_out(server, session, now_ms, arguments, &mut reply);
    if reply.is_cut {
        server.stats.errors += 1;
        reply.out.truncate(start);
        reply.error(REPLY_TOO_LARGE);
        // What was too large may have made it grow a good deal.
        reply.out.shrink_to(2 * start);
    }
}

fn carry_out(
    server: &mut Server,
    session: &mut Session,
    now_ms: u64,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
) {
    let Some(command) = find(arguments.at(0)) else {
        server.stats.errors += 1;
        return text::unknown(reply, arguments);
    };
    let count = arguments.len() as i64;
    let arity = i64::from(command.arity);
    if (arity > 0 && count != arity) || count < -arity {
        server.stats.errors += 1;
        return text::wrong_count(reply, command.name);
    }
    let mut call = Call {
        server,
        session,
        now_ms,
        arguments,
        command,
    };
    (command.run)(&mut call, reply);
}

impl Call<'_> {
    /// An error of this command.
    fn fail(&mut self, reply: &mut Reply<'_>, text: &str) {
        self.server.stats.errors += 1;
        reply.error(text);
    }

    /// The time of day that belongs to a time of the server's clock, and the other way round.
    fn wall_ms(&self, ms: u64) -> u64 {
        ms.saturating_add(self.server.wall_offset_ms)
    }

    fn hit(&mut self, is_there: bool) {
        match is_there {
            true => self.server.stats.hits += 1,
            false => self.server.stats.misses += 1,
        }
    }
}

const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const TOO_LARGE: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
const REPLY_TOO_LARGE: &str = "ERR the reply would exceed the maximum allowed size";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name_alone() {
        for command in &COMMANDS {
            let upper = command.name.to_ascii_uppercase();
            let found = find(upper.as_bytes()).expect("in the table");
            assert_eq!(found.name, command.name);
            assert!(command.name.bytes().all(|byte| byte.is_ascii_lowercase()));
            // Longer names fold into the same number, and are others.
            let folded = [b"zzzzzzzz", upper.as_bytes()].concat();
            assert!(find(&folded).is_none());
        }
        assert!(find(b"G\x05T").is_none() && find(b"\0GET").is_none());
        assert!(find(b"").is_none() && find(&[b'g'; 1000]).is_none());
    }
}
