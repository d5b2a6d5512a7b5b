//! Single statements and what rules end with.

use fordway_filter::rules::{Family, Hook};

use super::{COUNTER, Maker, PORTS};

/// `ip` or `ip6`.
pub(super) fn own(six: bool) -> &'static str {
    if six { "ip6" } else { "ip" }
}

pub(super) fn set(elements: &[String]) -> String {
    format!("{{ {} }}", elements.join(", "))
}

fn strings<T: ToString>(of: &[T]) -> Vec<String> {
    of.iter().map(T::to_string).collect()
}

impl Maker {
    pub(super) fn is_six(&mut self) -> bool {
        match self.family {
            Family::Ip => false,
            Family::Ip6 => true,
            _ => self.dice.one_in(3),
        }
    }

    /// The sign of a comparison, with a blank behind it.
    pub(super) fn equal_or_not(&mut self) -> &'static str {
        if self.dice.one_in(4) { "!= " } else { "" }
    }

    fn ports(&mut self) -> String {
        let pick = self.dice.pick(&PORTS);
        let (sign, right) = match self.dice.below(6) {
            0 => (self.equal_or_not(), format!("{pick}-{}", pick + 500)),
            1 => (self.equal_or_not(), set(&strings(&[22, pick.max(23)]))),
            2 => (
                self.equal_or_not(),
                set(&strings(&["20-25", "53", "400-6000"])),
            ),
            3 => (
                self.dice.pick(&["< ", "> ", "<= ", ">= "]),
                pick.to_string(),
            ),
            _ => (self.equal_or_not(), pick.to_string()),
        };
        format!("{sign}{right}")
    }

    pub(super) fn addresses(&mut self, six: bool) -> String {
        let (a, b) = self.net;
        let one = self.address(six);
        match (self.dice.below(6), six) {
            (0, false) => format!("10.{a}.{b}.0/24"),
            (0, true) => format!("fd00:0:{a:x}::/48"),
            (1, false) => "10.192.0.0/11".into(),
            (1, true) => "fd01::/126".into(),
            (2, false) => format!("10.{a}.{b}.2-10.201.0.2"),
            (2, true) => "fd01::2-fd01::3".into(),
            (3, false) => set(&["10.201.0.0/31".into(), format!("10.{a}.{b}.1")]),
            (3, true) => set(&strings(&["fd01::1", "fd01::2", "fd02::1"])),
            _ => one,
        }
    }

    /// A statement that may stand in the middle of a rule; `None` if it does not fit there.
    pub(super) fn atom(&mut self, hook: Option<Hook>, before: &[String]) -> Option<String> {
        let six = self.is_six();
        let used = |word: &str| before.iter().any(|text| text.contains(word));
        let other = if six { "ip " } else { "ip6 " };
        // Two protocols in one rule contradict each other; nft refuses that.
        let network_fits = ![other, "exthdr", "nfproto", "icmp"]
            .iter()
            .any(|word| used(word));
        let transport_fits = !["tcp", "udp", "icmp", "l4proto", "protocol", "nexthdr"]
            .iter()
            .any(|word| used(word));
        Some(match self.dice.below(27) {
            0..3 if network_fits => {
                let name = self.dice.pick(&["saddr", "daddr"]);
                let (sign, right) = (self.equal_or_not(), self.addresses(six));
                format!("{} {name} {sign}{right}", own(six))
            }
            3..6 if transport_fits => {
                let protocol = self.dice.pick(&["tcp", "udp"]);
                let name = self.dice.pick(&["sport", "dport"]);
                format!("{protocol} {name} {}", self.ports())
            }
            6 if transport_fits && network_fits => {
                let protocol = if six { "icmpv6" } else { "icmp" };
                let (name, numbers): (_, &[u8]) = match (self.dice.below(3), six) {
                    (0, _) => ("id", &[7, 8]),
                    (_, true) => ("type", &[128, 129]),
                    (_, false) => ("type", &[8, 0, 13]),
                };
                format!("{protocol} {name} {}", self.dice.pick(numbers))
            }
            7 if transport_fits => {
                let flags = [
                    "syn",
                    "syn,ack",
                    "== syn",
                    "!= syn",
                    "! syn,ack",
                    "& (fin | syn | rst | ack) == syn",
                ];
                format!("tcp flags {}", self.dice.pick(&flags))
            }
            8 if network_fits => {
                let (name, numbers): (_, &[u16]) = match (self.dice.below(3), six) {
                    (0, false) => ("ttl", &[64, 63, 1]),
                    (0, true) => ("hoplimit", &[64, 63, 1]),
                    (1, _) => ("length", &[28, 36, 100]),
                    _ => ("dscp", &[0, 4, 46]),
                };
                let number = self.dice.pick(numbers);
                let sign = self.dice.pick(&["", "!= ", "< ", ">= "]);
                // Below nothing there is nothing: nft refuses the question.
                let sign = if number == 0 { "" } else { sign };
                format!("{} {name} {sign}{number}", own(six))
            }
            9 => {
                let sign = self.dice.pick(&[">", "<=", "!="]);
                format!("meta length {sign} {}", self.dice.pick(&[28, 60, 128]))
            }
            10 => {
                let name = self.dice.pick(&["b0", "c0", "b", "x"]);
                let star = if name.len() == 1 && self.dice.one_in(2) {
                    "*"
                } else {
                    ""
                };
                let arrives = matches!(hook, Some(Hook::Prerouting | Hook::Input | Hook::Ingress));
                let key = if !arrives && self.dice.one_in(2) {
                    "oifname"
                } else {
                    "iifname"
                };
                format!("{key} {}\"{name}{star}\"", self.equal_or_not())
            }
            11 if transport_fits => {
                let protocols = [6, 17, 1, 58, 47];
                let right = match self.dice.below(3) {
                    0 => set(&strings(&protocols[..3])),
                    _ => self.dice.pick(&protocols).to_string(),
                };
                format!("meta l4proto != {right}")
            }
            12 => {
                let (bits, mark) = (self.dice.pick(&[0xff, 0x0f]), self.dice.pick(&[0, 1, 5]));
                format!("meta mark & {bits:#x} == {mark}")
            }
            13 => {
                let mark = self.dice.pick(&[1, 5]);
                match self.dice.below(3) {
                    0 if self.with_ct => format!("ct mark set {mark:#x}"),
                    1 => format!("meta mark set {mark:#x}"),
                    _ => format!("meta mark set meta mark | {:#x}", 0x10 | mark),
                }
            }
            14 | 15 if self.with_ct => self.ct(six, network_fits),
            16 => {
                let (field, number) = self.dice.pick(&[
                    // The protocol of IPv4, a port.
                    ("@nh,72,8", 17),
                    ("@th,16,16", 80),
                    ("@nh,400,8", 5),
                    ("@th,100,4", 0),
                ]);
                format!("{field} {}{number}", self.equal_or_not())
            }
            17 if transport_fits && network_fits => self.concatenation(six),
            18 if !self.sets.is_empty() && network_fits => return self.use_set(),
            19 => self.limit(used("ct state new")),
            20 if network_fits && six => {
                let header = self.dice.pick(&["frag", "dst"]);
                format!("exthdr {header} {}", self.dice.pick(&["exists", "missing"]))
            }
            20 => {
                let size = self.dice.pick(&[1460, 1400]);
                format!("tcp option maxseg size {}{size}", self.equal_or_not())
            }
            21 => format!("numgen inc mod {} 1", 2 + self.dice.below(2)),
            22 if network_fits && transport_fits => {
                format!("jhash {} saddr . udp dport mod 3 seed 0x7 1", own(six))
            }
            23 if network_fits => return self.mangle(hook, six),
            24 if matches!(self.family, Family::Bridge | Family::Netdev) => {
                // Behind a network match a link match would come too late for nft.
                if !before.iter().all(|text| text == COUNTER) {
                    return None;
                }
                match self.dice.below(3) {
                    0 => format!("vlan id {}", self.dice.pick(&[5, 7])),
                    1 => {
                        let mac = self.dice.pick(&["02:00:00:00:00:0a", "02:00:00:00:00:0d"]);
                        format!("ether saddr {}{mac}", self.equal_or_not())
                    }
                    _ => format!("meta protocol != {}", self.dice.pick(&["ip", "ip6"])),
                }
            }
            25 if self.family == Family::Inet && network_fits && transport_fits => {
                format!("meta nfproto {}", self.dice.pick(&["ipv4", "ipv6"]))
            }
            _ => COUNTER.into(),
        })
    }

    fn ct(&mut self, six: bool, network_fits: bool) -> String {
        match self.dice.below(8) {
            0 => "ct state new".into(),
            1 => "ct state established,related".into(),
            2 => "ct state invalid".into(),
            3 => "ct state != new".into(),
            4 => "ct direction reply".into(),
            5 => "ct mark 5".into(),
            6 if network_fits => {
                let (sign, right) = (self.equal_or_not(), self.address(six));
                format!("ct original {} saddr {sign}{right}", own(six))
            }
            _ => "ct status assured".into(),
        }
    }

    fn limit(&mut self, is_new: bool) -> String {
        let burst = 1 + self.dice.below(5);
        let over = if self.dice.one_in(2) { "over " } else { "" };
        match self.dice.below(4) {
            0 => format!("limit rate {over}1 bytes/day burst {} bytes", burst * 100),
            1 => format!("quota {over}{} bytes", burst * 150),
            // Packets of no flow are counted for a while that depends on the clock.
            2 if is_new => format!("ct count {over}{burst}"),
            _ => format!("limit rate {over}1/day burst {burst} packets"),
        }
    }

    fn mangle(&mut self, hook: Option<Hook>, six: bool) -> Option<String> {
        let (name, value) = match self.dice.below(3) {
            0 if six => ("hoplimit", "33"),
            0 => ("ttl", "33"),
            1 => ("dscp", "10"),
            // Before routing the destination would decide where the packet goes.
            _ if hook != Some(Hook::Postrouting) || self.with_ct => return None,
            _ => {
                let name = self.dice.pick(&["saddr", "daddr"]);
                (name, if six { "fd03::9" } else { "10.203.0.9" })
            }
        };
        Some(format!("{} {name} set {value}", own(six)))
    }

    /// What a rule does at its end; nothing, if it only counts.
    pub(super) fn ending(&mut self, hook: Option<Hook>) -> Option<String> {
        let rejects = matches!(hook, Some(Hook::Input | Hook::Forward));
        Some(match self.dice.below(9) {
            0 | 1 => "accept".into(),
            2 | 3 => "drop".into(),
            4 => "return".into(),
            5 if !self.chain_names.is_empty() => {
                let name = &self.chain_names[self.dice.below(self.chain_names.len())];
                format!("{} {name}", self.dice.pick(&["jump", "goto"]))
            }
            6 if rejects && self.family != Family::Bridge => "reject".into(),
            // «th» needs no protocol, so that it fits behind everything.
            7 => "th dport vmap { 22 : drop, 80 : accept, 53 : continue }".into(),
            _ => return None,
        })
    }
}
