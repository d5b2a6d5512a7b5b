//! The table of cases. A case is a shell script in `cases/`, run in dom0; guests that it
//! starts by name may be found running by the next one on the same machine.

use std::path::Path;

/// What a case needs beside dom0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The Linux guest.
    Linux,
    /// The unikernel's image with the web server.
    Httpd,
    /// The same with the ticks of procedures compiled in.
    Profile,
    /// The image with the web server and the packet filter.
    Filter,
    /// The unikernel's image with the key-value server.
    Kv,
    /// The image with the web server and the broker.
    HttpdGuests,
    /// The image with the key-value server and the broker.
    KvGuests,
    /// The program with which two Linux guests try grants and event channels.
    Pair,
    /// The command, with the broker in it, and the library beside it.
    Fordway,
    /// The program of a hostile guest.
    Hostile,
}

impl Needs {
    /// The file of an image or a program of ours.
    pub fn image(self) -> Option<&'static str> {
        match self {
            Needs::Linux => None,
            Needs::Httpd => Some("httpd"),
            Needs::Profile => Some("profile"),
            Needs::Filter => Some("httpd-filter"),
            Needs::Kv => Some("kv"),
            Needs::HttpdGuests => Some("httpd-guests"),
            Needs::KvGuests => Some("kv-guests"),
            Needs::Pair => Some("pair"),
            Needs::Fordway => Some("fordway"),
            Needs::Hostile => Some("hostile"),
        }
    }

    /// Whether it can be had.
    pub fn is_there(self, images: &Path) -> bool {
        self.image().is_none_or(|name| images.join(name).is_file())
    }
}

/// One case.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    pub what: &'static str,
    pub needs: &'static [Needs],
    /// Whether the short form has it.
    pub short: bool,
    /// Emulated seconds after which it has failed.
    pub limit_s: u32,
    /// About how long it keeps the host, for spreading them.
    pub weight_s: u32,
    pub script: &'static str,
}

/// Functions of the cases.
pub const FUNCTIONS: &str = include_str!("../cases/library.sh");

/// Programs for dom0, in /job.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("clients.py", include_str!("../programs/clients.py")),
    ("crowd.py", include_str!("../programs/crowd.py")),
    ("clock.py", include_str!("../programs/clock.py")),
    ("malformed.py", include_str!("../programs/malformed.py")),
    ("wire.py", include_str!("../programs/wire.py")),
];

#[expect(non_camel_case_types, reason = "words of the table")]
#[derive(PartialEq)]
enum Form {
    short,
    long,
}

macro_rules! cases {
    ($($name:literal, [$($need:ident),*], $form:ident, $limit_s:literal, $weight_s:literal, $what:literal;)+) => {
        /// Every case, in the order in which they run.
        pub const ALL: &[Case] = &[$(Case {
            name: $name,
            what: $what,
            needs: &[$(Needs::$need),*],
            short: matches!(Form::$form, Form::short),
            limit_s: $limit_s,
            weight_s: $weight_s,
            script: include_str!(concat!("../cases/", $name, ".sh")),
        },)+];
    };
}

cases! {
    "ping", [Httpd], short, 60, 5, "pings of three sizes and ARP requests are answered";
    "http-files", [Httpd], short, 120, 15, "every file by curl and by wget, all bytes right";
    "http-protocol", [Httpd], long, 200, 15, "statuses, ranges, pipelining; bad and slow clients";
    "httperf", [Httpd], long, 30, 10, "500 connections of 4 requests";
    "ab", [Httpd], short, 60, 15, "1 to 50 connections, with keep-alive and without";
    "siege", [Httpd], long, 120, 60, "1, 10, 20 and 40 users";
    "ping-flood", [Httpd], long, 120, 60, "100,000 pings as fast as they are answered, none lost";
    "many-connections", [Httpd], long, 120, 20, "1000 connections at a time";
    "wire", [Httpd], long, 60, 10, "handshake, options, order and end of TCP in a capture";
    "profile", [Profile], long, 30, 5, "the procedures' ticks at /profile";
    "filter", [Filter], long, 60, 20, "rules of the ramdisk, and of dom0 before the start and while it runs; their clock after xl restore";
    "dhcp-dns", [Httpd], long, 60, 10, "an address by DHCP, a name by DNS, both of dnsmasq";
    "ipv6", [Httpd], long, 60, 10, "pings and files over IPv6";
    "queues", [Httpd], long, 60, 10, "four queues, where dom0 offers them";
    "plain-device", [Httpd], long, 60, 10, "all optimisations of the driver off";
    "cannot-run", [Httpd], long, 30, 5, "a command line that is not understood: one line, and the end";
    "console", [Httpd], long, 30, 5, "what is typed on the console is answered";
    "pause-unpause", [Httpd], long, 120, 15, "a transfer goes on after xl pause";
    "bridge-down-up", [Httpd], long, 120, 15, "a transfer goes on after dom0's bridge was down";
    "malformed", [Httpd], long, 120, 30, "9000 malformed frames, and it serves as before";
    "kv-cli", [Kv], short, 60, 10, "what redis-cli is answered";
    "kv-udp", [Kv], long, 30, 5, "commands in datagrams";
    "kv-eviction", [Kv], long, 60, 10, "more values than memory: the oldest go";
    "kv-benchmark", [Kv], long, 120, 20, "redis-benchmark, 50 connections, 1 and 16 in flight";
    "two-unikernels", [Httpd], long, 60, 10, "one unikernel pings another over the bridge";
    "memory", [Httpd], long, 120, 30, "8, 16, 64 and 512 MB";
    "large-file", [Httpd], long, 120, 30, "a file of 100 MB from a ramdisk";
    "detach-attach", [Httpd], long, 60, 15, "the device goes and comes, three times";
    "shutdown-reboot", [Httpd], long, 60, 15, "xl shutdown and xl reboot are answered";
    "save-restore", [Httpd], long, 150, 15, "xl save and xl restore in the middle of a transfer; xl save -c";
    "pvh", [Httpd], long, 60, 15, "the same image as PVH: it serves, or says why not";
    "create-destroy", [Httpd], long, 200, 120, "50 times created and destroyed";
    "linux-ping", [Linux], short, 60, 15, "the Linux guest is reached";
    "linux-servers", [Linux], long, 120, 40, "nginx and redis-server in the Linux guest";
    "guests", [Linux, Pair], long, 300, 60, "two Linux guests carry messages over granted pages; wrong grants, deaths, the limit";
    "guests-programs", [Linux, Fordway], short, 600, 80, "redis, its benchmark and its client in two Linux guests, each with a broker";
    "guests-programs-early", [Linux, Fordway], long, 900, 100, "the same with offers at the first call, and a redis that forks seven times beside clients";
    "guests-namespaces", [Linux, Fordway], long, 700, 100, "redis in a namespace of a guest, clients in the other one and in a namespace of its";
    "guests-others", [Linux, Fordway], long, 900, 100, "nginx with ab, and iperf3, in two Linux guests";
    "guests-brokers", [Linux, Fordway], long, 900, 120, "brokers killed at each step of a meeting, and started anew; a connection's bytes are right";
    "guests-dying", [Linux, Fordway], long, 1500, 550, "a Linux guest destroyed in the middle of transfers, 51 times; the others are none the worse";
    "guests-four", [Linux, Fordway], long, 900, 120, "two pairs of Linux guests at once, and a server with three clients";
    "guests-unikernel", [Linux, Fordway, HttpdGuests, KvGuests], long, 900, 100, "redis-benchmark and curl in a Linux guest reach the unikernel's kv and httpd by rings";
    "guests-unikernel-hostile", [Linux, Fordway, Hostile, KvGuests], long, 900, 200, "the unikernel's kv against a guest that lies, floods, rings and keeps what it is granted";
    "guests-hostile", [Linux, Fordway, Hostile], long, 900, 300, "a broker against guests that lie, flood, ring and keep what they are granted";
    "linux-client", [Linux, Httpd], long, 120, 60, "a Linux guest fetches from the unikernel";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_short_form_is_short() {
        for (number, case) in ALL.iter().enumerate() {
            assert!(ALL[..number].iter().all(|other| other.name != case.name));
        }
        let short: u32 = ALL
            .iter()
            .filter(|case| case.short)
            .map(|case| case.weight_s)
            .sum();
        assert!((20..160).contains(&short), "{short} s");
    }
}
