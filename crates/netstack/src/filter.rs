//! The packet filter's hooks: prerouting and input for what arrives, output and postrouting for
//! what leaves. Rules are replaced while packets flow; what they have counted, and connections
//! that are tracked, live on.
//!
//! **Beside a fabric** ([`Stack::set_rules_beside`]) the rules are those of a bridge that each packet of the link crosses, before or
//! behind the stack, and that has them too. A packet then meets all hooks that it crosses there, as it does there; what
//! that leaves to the bridge, and what is counted, is in `fordway_filter`'s `live/beside.rs`. Loopback crosses no bridge.
//!
//! Transport checksums are checked before and made behind the filter. A segment that is yet to
//! be cut passes once, whole, as the kernel's own filter sees it.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::net::IpAddr;

use fordway_filter::rules::{Family, Hook, Rules};
use fordway_filter::{
    Beside, Crossing, Environment, FibAnswer, FibQuery, Filter, Iface, Layer, Logged, Meta,
    Outcome, Packet, Reject, Verdict,
};

use crate::Micros;
use crate::counters::Drop;
use crate::frame::{HEADER_BYTES_MAX, Rest};
use crate::hash::Random;
use crate::ip::Origin;
use crate::packet::{self, Ip};
use crate::route::{Class, Routing};
use crate::stack::Stack;

/// PACKET_HOST and so on of linux/if_packet.h.
const TO_HOST: u8 = 0;
const TO_ALL: u8 = 1;
const TO_GROUP: u8 = 2;
const OUTGOING: u8 = 4;

/// Log lines that wait for their reader.
const LOGS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Hooks {
    filter: Option<Box<Filter>>,
    /// No rules: nothing is asked.
    is_active: bool,
    /// Some rule looks behind the headers of a TCP segment.
    pub(crate) looks_behind: bool,
    link: Iface,
    loopback: Iface,
    /// If the rules are a bridge's.
    bridge: Option<Bridge>,
    /// What arrives just now was put together from pieces, which is how the bridge saw it.
    pub(crate) is_whole_of_pieces: bool,
    /// Nanoseconds since 1970 at time zero.
    wall_offset_ns: u64,
    logs: alloc::vec::Vec<Logged>,
}

impl Hooks {
    pub(crate) fn new(flows_max: usize, seed: u64) -> Hooks {
        let config = fordway_filter::Config {
            flows_max,
            verify_checksums: false,
        };
        let mut loopback = Iface::new(1, "lo");
        loopback.kind = 772;
        Hooks {
            filter: Some(Box::new(Filter::new(config, seed))),
            is_active: false,
            looks_behind: false,
            link: Iface::new(2, "eth0"),
            loopback,
            bridge: None,
            is_whole_of_pieces: false,
            wall_offset_ns: 0,
            logs: alloc::vec::Vec::new(),
        }
    }
}

/// Far end's address; whether the packet leaves.
type JudgeBeside = fn(&mut Stack, &mut [u8], &IpAddr, bool) -> Judged;

#[derive(Clone, Copy, Debug)]
struct Bridge {
    /// What a packet crosses there.
    crossings: [Crossing; 5],
    /// By a pointer: a program that has no bridge is linked without it.
    judge: JudgeBeside,
}

struct Surroundings<'a> {
    random: &'a mut Random,
    routing: &'a Routing,
    wall_ns: u64,
}

fn address_of(bits: u128, six: bool) -> IpAddr {
    if six {
        IpAddr::V6(core::net::Ipv6Addr::from_bits(bits))
    } else {
        IpAddr::V4(core::net::Ipv4Addr::from_bits(bits as u32))
    }
}

fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => four.to_bits().into(),
        IpAddr::V6(six) => six.to_bits(),
    }
}

impl Environment for Surroundings<'_> {
    fn random(&mut self) -> u32 {
        self.random.next() as u32
    }

    fn wall_ns(&self) -> u64 {
        self.wall_ns
    }

    fn fib(&self, query: &FibQuery) -> FibAnswer {
        let address = address_of(query.address, query.six);
        // RTN_UNICAST, RTN_LOCAL, RTN_BROADCAST, RTN_MULTICAST, RTN_UNREACHABLE.
        let kind = match self.routing.classify(&address) {
            Class::Own => 2,
            Class::Broadcast => 3,
            Class::Multicast => 5,
            Class::Other if self.routing.hop(&address).is_some() => 1,
            Class::Other => 7,
        };
        FibAnswer {
            interface: query.iif.or(query.oif),
            kind,
        }
    }

    fn local_address(&self, _interface: Option<&Iface>, six: bool, towards: u128) -> Option<u128> {
        self.routing
            .source_for(&address_of(towards, six))
            .map(bits_of)
    }
}

/// The hooks of IP that packets cross at a bridge, where the bridge itself is the interface, both ways.
fn crossings(bridge: &str) -> [Crossing; 5] {
    let bridge = Iface::new(0, bridge);
    [
        Hook::Prerouting,
        Hook::Output,
        Hook::Forward,
        Hook::Input,
        Hook::Postrouting,
    ]
    .map(|hook| Crossing {
        layer: None,
        hook,
        iif: (hook != Hook::Postrouting).then_some(bridge),
        oif: (hook != Hook::Prerouting).then_some(bridge),
    })
}

/// What a filter's answer means for the packet.
pub(crate) enum Judged {
    Pass,
    Drop,
    Reject(Reject),
}

impl Stack {
    /// Puts rules in force in place of those before. Rules of which something is not known here
    /// leave all as it was: no kernel decides behind this one. `Err`: what is not known.
    pub fn set_rules(&mut self, now: Micros, rules: Rules) -> Result<(), String> {
        let Some(filter) = &mut self.hooks.filter else {
            return Err("the stack has no filter".to_owned());
        };
        for table in &rules.tables {
            let layer_of_ip = matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet);
            let others = table.chains.iter().find(|chain| {
                let hook = chain.base.as_ref().map(|base| base.hook);
                hook.is_some_and(|hook| {
                    !layer_of_ip || matches!(hook, Hook::Ingress | Hook::Egress)
                })
            });
            if let Some(chain) = others {
                return Err(format!(
                    "chain {} {} {}: the stack has hooks of IP alone, without ingress and egress",
                    table.family, table.name, chain.name
                ));
            }
        }
        let unknown = fordway_filter::unknown_in(&rules);
        if let Some(what) = unknown.first() {
            return Err(what.clone());
        }
        self.hooks.is_active = !rules.tables.is_empty();
        self.hooks.looks_behind = rules.look_behind(HEADER_BYTES_MAX);
        self.hooks.bridge = None;
        let epoch = filter.epoch() + 1;
        filter.replace(rules, epoch, now.saturating_mul(1000));
        Ok(())
    }

    /// Puts rules in force in place of those before, which are those of a bridge, of this name, that all packets of the link
    /// cross. What is not known here, the bridge decides, so none are refused.
    pub fn set_rules_beside(&mut self, now: Micros, mut rules: Rules, epoch: u64, bridge: &str) {
        let Some(filter) = &mut self.hooks.filter else {
            return;
        };
        rules.forget_counts();
        self.hooks.is_active = !rules.tables.is_empty();
        self.hooks.looks_behind = rules.look_behind(HEADER_BYTES_MAX);
        self.hooks.bridge = Some(Bridge {
            crossings: crossings(bridge),
            judge: Stack::judge_beside,
        });
        filter.replace(rules, epoch, now.saturating_mul(1000));
    }

    /// The filter itself: listing with counts, tracked connections.
    pub fn filter(&self) -> Option<&Filter> {
        self.hooks.filter.as_deref()
    }

    /// The same, to take its counts.
    pub fn filter_mut(&mut self) -> Option<&mut Filter> {
        self.hooks.filter.as_deref_mut()
    }

    /// What time it is outside, for rules that ask.
    pub fn set_wall_clock(&mut self, now: Micros, wall_ns: u64) {
        self.hooks.wall_offset_ns = wall_ns.saturating_sub(now.saturating_mul(1000));
    }

    /// What rules with `log` have said since the last call; beyond a bound they are lost.
    pub fn filter_logs(&mut self) -> alloc::vec::Vec<Logged> {
        core::mem::take(&mut self.hooks.logs)
    }

    pub(crate) fn has_rules(&self) -> bool {
        self.hooks.is_active
    }

    fn judge(&mut self, bytes: &mut [u8], meta: Meta, hooks: [Hook; 2]) -> Judged {
        let Some(mut filter) = self.hooks.filter.take() else {
            return Judged::Pass;
        };
        let now_ns = self.now.saturating_mul(1000);
        let layer = if bytes[0] >> 4 == 6 {
            Layer::Ip6
        } else {
            Layer::Ip
        };
        let mut judged = Judged::Pass;
        let acts = hooks.map(|hook| filter.acts_at(layer, hook));
        if acts.contains(&true)
            && let Some(mut packet) = Packet::ip(bytes, meta)
        {
            let mut around = Surroundings {
                random: &mut self.random,
                routing: &self.routing,
                wall_ns: self.hooks.wall_offset_ns.saturating_add(now_ns),
            };
            for (hook, _) in hooks.into_iter().zip(acts).filter(|(_, acts)| *acts) {
                let Outcome { verdict, logs, .. } =
                    filter.hook(layer, hook, &mut packet, now_ns, &mut around);
                let room = LOGS_MAX.saturating_sub(self.hooks.logs.len());
                self.hooks.logs.extend(logs.into_iter().take(room));
                judged = match verdict {
                    Verdict::Accept => continue,
                    Verdict::Drop => Judged::Drop,
                    Verdict::Reject(reject) => Judged::Reject(reject),
                };
                break;
            }
        }
        self.hooks.filter = Some(filter);
        judged
    }

    /// What the bridge's rules say of a packet that crosses it, with the far end's address.
    fn judge_beside(&mut self, bytes: &mut [u8], far: &IpAddr, leaves: bool) -> Judged {
        let Some(Bridge { crossings, .. }) = self.hooks.bridge else {
            return Judged::Pass;
        };
        let Some(mut filter) = self.hooks.filter.take() else {
            return Judged::Pass;
        };
        let (layer, protocol) = match bytes[0] >> 4 {
            6 => (Layer::Ip6, bytes.get(6)),
            _ => (Layer::Ip, bytes.get(9)),
        };
        let now_ns = self.now.saturating_mul(1000);
        let mut judged = Judged::Pass;
        let acts = |crossing: &Crossing| filter.acts_at(layer, crossing.hook);
        if crossings.iter().any(acts) {
            // A train of TCP's segments crosses whole, a datagram of ours in pieces.
            let is_cut = match leaves {
                true => protocol != Some(&packet::TCP) && bytes.len() > self.path_mtu(far),
                false => self.hooks.is_whole_of_pieces,
            };
            let look = Beside {
                crossings: &crossings,
                leaves,
                is_other: is_cut,
            };
            let mut around = Surroundings {
                random: &mut self.random,
                routing: &self.routing,
                wall_ns: 0,
            };
            if let Some(mut packet) = Packet::ip(bytes, Meta::default()) {
                judged = match filter.beside(&look, &mut packet, now_ns, &mut around) {
                    Verdict::Accept => Judged::Pass,
                    Verdict::Drop => Judged::Drop,
                    Verdict::Reject(reject) => Judged::Reject(reject),
                };
            }
        }
        self.hooks.filter = Some(filter);
        judged
    }

    /// An arriving packet; `Err` if it goes no further.
    pub(crate) fn filter_input(
        &mut self,
        bytes: &mut [u8],
        ip: &Ip,
        class: Class,
        origin: Origin,
        rest: Option<Rest<'_>>,
    ) -> Result<(), Drop> {
        let interface = match origin {
            Origin::Link(_) => self.hooks.link,
            Origin::Loopback => self.hooks.loopback,
        };
        let meta = Meta {
            iif: Some(interface),
            pkttype: match class {
                Class::Broadcast => TO_ALL,
                Class::Multicast => TO_GROUP,
                Class::Own | Class::Other => TO_HOST,
            },
            ..Meta::default()
        };
        let judged = match (self.hooks.bridge, origin) {
            (None, _) => self.judge(bytes, meta, [Hook::Prerouting, Hook::Input]),
            (Some(bridge), Origin::Link(_)) => (bridge.judge)(self, bytes, &ip.src, false),
            (Some(_), Origin::Loopback) => Judged::Pass,
        };
        match judged {
            Judged::Pass => Ok(()),
            Judged::Drop => Err(Drop::Filter),
            Judged::Reject(reject) => {
                // The answer quotes it.
                if let Some(rest) = rest {
                    rest.fill(bytes);
                }
                self.answer_reject(bytes, ip, class, reject);
                Err(Drop::Filter)
            }
        }
    }

    fn answer_reject(&mut self, bytes: &[u8], ip: &Ip, class: Class, reject: Reject) {
        if class == Class::Own {
            self.tell_rejected(bytes, ip, reject);
        }
    }

    /// Tells the sender of a packet, who may be ourselves.
    fn tell_rejected(&mut self, bytes: &[u8], ip: &Ip, reject: Reject) {
        match reject {
            #[cfg(feature = "icmp")]
            Reject::Icmp(code) => self.send_icmp_error(bytes, ip, packet::ICMP, 3, code),
            #[cfg(feature = "icmp")]
            Reject::Icmpv6(code) => self.send_icmp_error(bytes, ip, packet::ICMPV6, 1, code),
            #[cfg(feature = "tcp")]
            Reject::TcpReset => self.reset_for(bytes, ip),
            #[allow(unreachable_patterns)]
            _ => {}
        }
        let _ = (bytes, ip);
    }

    /// A packet of ours, from its IP header on, before its transport checksum is made.
    pub(crate) fn filter_output(&mut self, bytes: &mut [u8], is_loopback: bool) -> Judged {
        if let Some(bridge) = self.hooks.bridge {
            let Some(ip) = packet::parse(bytes).filter(|_| !is_loopback) else {
                return Judged::Pass;
            };
            let judged = (bridge.judge)(self, bytes, &ip.dst, true);
            if let Judged::Reject(reject) = judged {
                // As the bridge would, by loopback.
                self.tell_rejected(bytes, &ip, reject);
                return Judged::Drop;
            }
            return judged;
        }
        let interface = if is_loopback {
            self.hooks.loopback
        } else {
            self.hooks.link
        };
        let meta = Meta {
            oif: Some(interface),
            pkttype: OUTGOING,
            ..Meta::default()
        };
        self.judge(bytes, meta, [Hook::Output, Hook::Postrouting])
    }
}
