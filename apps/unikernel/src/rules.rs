//! The packet filter's rules, as `fordway filter compile` makes them: out of the application's reach.
//!
//! dom0 writes them below the domain's own directory in XenStore, which the guest may read and
//! not write (the toolstack makes it so), and which no application sees:
//!
//! ```text
//!   fordway/rules/0, /1, ...    the bytes in hexadecimal digits, in parts of at most 4096 digits
//!   fordway/rules/commit        how many parts there are; written last, in the same transaction
//!   data/fordway-rules          the guest's answer: "2 tables in force", or what is wrong
//! ```
//! All of them are taken or none: a fault leaves the rules as they were, and so does a rule of which
//! something is not known here. Rules that are there before the domain is unpaused are in force before
//! the first frame; without any, a file `rules.fwnf` of the ramdisk is taken. What nft calls
//! interfaces are `lo` and `eth0`.

use crate::net::Net;
use crate::xen::Xen;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use fordway_filter::rules::{Damaged, Rules, read, unpacked};
use fordway_httpd::Archive;
use fordway_xen_guest::console_line;

pub const COMMIT: &str = "fordway/rules/commit";
const ANSWER: &str = "data/fordway-rules";
const RAMDISK_FILE: &str = "rules.fwnf";
/// More than any administrator writes.
const PARTS_MAX: u32 = 256;

/// Begins to listen, and puts what is there in force.
pub fn start(xen: &mut Xen, net: &Net, ramdisk: &'static [u8], now_us: u64) {
    listen(xen);
    if xen.read(COMMIT).is_some() {
        look(xen, net, now_us);
        return;
    }
    let mut files = Archive::new(ramdisk).flatten();
    if let Some(file) = files.find(|file| file.name == RAMDISK_FILE) {
        let answer = apply(net, file.body, now_us);
        tell(xen, &answer);
    }
}

/// Hears of rules that dom0 writes.
pub fn listen(xen: &mut Xen) {
    xen.watch_as(COMMIT, COMMIT);
}

/// Reads what dom0 has written and puts it in force.
pub fn look(xen: &mut Xen, net: &Net, now_us: u64) {
    let Some(parts) = xen.read(COMMIT) else {
        return;
    };
    let answer = match parts.trim().parse() {
        Ok(parts) if parts <= PARTS_MAX => {
            let read = (0..parts).map(|part| xen.read(&format!("fordway/rules/{part}")));
            match read.collect::<Option<String>>() {
                Some(digits) => match bytes_of(&digits) {
                    Some(bytes) => apply(net, &bytes, now_us),
                    None => "these are no hexadecimal digits".into(),
                },
                None => "a part is missing".into(),
            }
        }
        _ => format!("{COMMIT}: the number of parts, at most {PARTS_MAX}"),
    };
    tell(xen, &answer);
}

/// Two digits are a byte.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.trim().as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    let whole = digits.len().is_multiple_of(2);
    whole.then(|| digits.chunks_exact(2).map(byte).collect())?
}

fn apply(net: &Net, bytes: &[u8], now_us: u64) -> String {
    let rules: Result<Rules, Damaged> = unpacked(bytes).and_then(read);
    let rules = match rules {
        Ok(rules) => rules,
        Err(what) => return format!("refused: {what}"),
    };
    let tables = rules.tables.len();
    match net.stack().set_rules(now_us, rules) {
        Ok(()) => format!("{tables} tables in force"),
        Err(what) => format!("refused: {what}"),
    }
}

fn tell(xen: &mut Xen, answer: &str) {
    console_line!("fordway: rules: {answer}");
    xen.write(ANSWER, answer);
}
