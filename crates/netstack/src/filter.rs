//! The packet filter's hooks: prerouting and input for what arrives, output and postrouting for
//! what leaves. Rules are replaced while packets flow; what they have counted, and connections
//! that are tracked, live on.
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
    Environment, FibAnswer, FibQuery, Filter, Iface, Layer, Logged, Meta, Outcome, Packet, Reject,
    Verdict,
};

use crate::Micros;
use crate::counters::Drop;
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
    link: Iface,
    loopback: Iface,
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
            link: Iface::new(2, "eth0"),
            loopback,
            wall_offset_ns: 0,
            logs: alloc::vec::Vec::new(),
        }
    }
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
        let epoch = filter.epoch() + 1;
        filter.replace(rules, epoch, now.saturating_mul(1000));
        Ok(())
    }

    /// The filter itself: listing with counts, tracked connections.
    pub fn filter(&self) -> Option<&Filter> {
        self.hooks.filter.as_deref()
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

    /// An arriving packet; `Err` if it goes no further.
    pub(crate) fn filter_input(
        &mut self,
        bytes: &mut [u8],
        ip: &Ip,
        class: Class,
        origin: Origin,
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
        match self.judge(bytes, meta, [Hook::Prerouting, Hook::Input]) {
            Judged::Pass => Ok(()),
            Judged::Drop => Err(Drop::Filter),
            Judged::Reject(reject) => {
                self.answer_reject(bytes, ip, class, reject);
                Err(Drop::Filter)
            }
        }
    }

    fn answer_reject(&mut self, bytes: &[u8], ip: &Ip, class: Class, reject: Reject) {
        if class != Class::Own {
            return;
        }
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
