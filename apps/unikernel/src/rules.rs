//! The packet filter's rules: nftables' text, out of the application's reach.
//!
//! dom0 writes them below the domain's own directory in XenStore, which the guest may read and
//! not write (the toolstack makes it so), and which no application sees:
//!
//! ```text
//!   fordway/rules/0, /1, ...    the text, in parts of at most 4096 bytes
//!   fordway/rules/commit        how many parts there are; written last, in the same transaction
//!   data/fordway-rules          the guest's answer: "2 tables in force", or what is wrong where
//! ```
//! The whole text is taken or none of it: a fault leaves the rules as they were. Rules that are there
//! before the domain is unpaused are in force before the first frame; without any, a file
//! `rules.nft` of the ramdisk is taken. What nft calls interfaces are `lo` and `eth0`.

use crate::net::Net;
use crate::xen::Xen;
use alloc::format;
use alloc::string::String;
use fordway_httpd::Archive;
use fordway_nft::{Env, NoFiles};
use fordway_xen_guest::console_line;

pub const COMMIT: &str = "fordway/rules/commit";
const ANSWER: &str = "data/fordway-rules";
const RAMDISK_FILE: &str = "rules.nft";
/// More text than any administrator writes.
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
        let text = String::from_utf8_lossy(file.body);
        let answer = apply(net, RAMDISK_FILE, &text, now_us);
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
                Some(text) => apply(net, "xenstore", &text, now_us),
                None => "a part is missing".into(),
            }
        }
        _ => format!("{COMMIT}: the number of parts, at most {PARTS_MAX}"),
    };
    tell(xen, &answer);
}

fn apply(net: &Net, name: &str, text: &str, now_us: u64) -> String {
    let env = Env {
        interfaces: [("lo".into(), 1), ("eth0".into(), 2)].into(),
        ..Env::default()
    };
    let loaded = fordway_nft::load_text(&Default::default(), &env, &NoFiles, name, text, &[]);
    let ruleset = match loaded {
        Ok(outcome) => outcome.ruleset,
        Err(faults) => return format!("refused: {faults}"),
    };
    let tables = ruleset.tables.len();
    match net.stack().set_rules(now_us, ruleset) {
        Ok(()) => format!("{tables} tables in force"),
        Err(error) => format!("refused: {error}"),
    }
}

fn tell(xen: &mut Xen, answer: &str) {
    console_line!("fordway: rules: {answer}");
    xen.write(ANSWER, answer);
}
