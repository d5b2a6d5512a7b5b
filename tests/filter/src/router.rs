//! Our side: a router and a bridge of a few lines around the filter, alike to the
//! namespace of [`crate::kernel`].

use fordway_filter::rules::Hook;
use fordway_filter::{Config, Environment, Filter, Iface, Layer, Meta, Packet, Verdict};

use crate::generate::Side;
use crate::kernel::Arrivals;

pub struct Router {
    pub filter: Filter,
    bridged: bool,
    now_ns: u64,
}

/// Where a packet leaves.
enum Out {
    Local,
    By(Side),
    Nowhere,
}

#[derive(Debug, Default)]
pub struct Nothing(u32);

impl Environment for Nothing {
    fn random(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0
    }
}

fn iface(side: Side) -> Iface {
    match side {
        Side::Left => Iface::new(3, "b0"),
        Side::Right => Iface::new(5, "c0"),
    }
}

impl Router {
    pub fn new(bridged: bool) -> Router {
        Router {
            filter: Filter::new(Config::default(), 42),
            bridged,
            now_ns: 1,
        }
    }

    /// Takes a frame in, and writes down what becomes of it.
    pub fn take(&mut self, side: Side, id: u16, frame: &[u8], arrivals: &mut Arrivals) {
        self.now_ns += 1_000;
        let mut bytes = frame.to_vec();
        let out = if self.bridged {
            self.bridge(side, &mut bytes)
        } else {
            self.route(side, &mut bytes)
        };
        let packet = || {
            // As the capture sees it: without the link header and one VLAN tag.
            let network = if bytes[12..14] == [0x81, 0] { 18 } else { 14 };
            let network = if bytes[network - 2..network] == [0x81, 0] {
                network + 4
            } else {
                network
            };
            bytes[network..].to_vec()
        };
        match out {
            Out::Local => {
                arrivals.local.insert(id);
            }
            Out::By(Side::Left) => {
                arrivals.left.insert(id, packet());
            }
            Out::By(Side::Right) => {
                arrivals.right.insert(id, packet());
            }
            Out::Nowhere => {}
        }
    }

    fn passes(&mut self, layer: Layer, hook: Hook, packet: &mut Packet) -> bool {
        let outcome = self
            .filter
            .hook(layer, hook, packet, self.now_ns, &mut Nothing::default());
        outcome.verdict == Verdict::Accept
    }

    fn bridge(&mut self, side: Side, bytes: &mut [u8]) -> Out {
        let to = if side == Side::Left {
            Side::Right
        } else {
            Side::Left
        };
        let meta = Meta {
            iif: Some(iface(side)),
            ..Meta::default()
        };
        let Some(mut packet) = Packet::ethernet(bytes, meta) else {
            return Out::Nowhere;
        };
        if !self.passes(Layer::Bridge, Hook::Prerouting, &mut packet) {
            return Out::Nowhere;
        }
        packet.meta.oif = Some(iface(to));
        if !self.passes(Layer::Bridge, Hook::Forward, &mut packet) {
            return Out::Nowhere;
        }
        packet.meta.iif = None;
        match self.passes(Layer::Bridge, Hook::Postrouting, &mut packet) {
            true => Out::By(to),
            false => Out::Nowhere,
        }
    }

    fn route(&mut self, side: Side, bytes: &mut [u8]) -> Out {
        let meta = Meta {
            iif: Some(iface(side)),
            ..Meta::default()
        };
        let Some(mut packet) = Packet::ethernet(bytes, meta) else {
            return Out::Nowhere;
        };
        if !self.passes(Layer::Netdev, Hook::Ingress, &mut packet) {
            return Out::Nowhere;
        }
        // A tagged frame belongs to a VLAN that the namespace has not.
        if packet.bytes()[12..14] == [0x81, 0] {
            return Out::Nowhere;
        }
        let Some(layer) = packet.ip_layer() else {
            return Out::Nowhere;
        };
        if !self.passes(layer, Hook::Prerouting, &mut packet) {
            return Out::Nowhere;
        }
        let to = match destination(&packet, layer) {
            Out::By(to) => to,
            Out::Local => {
                return match self.passes(layer, Hook::Input, &mut packet) {
                    true => Out::Local,
                    false => Out::Nowhere,
                };
            }
            Out::Nowhere => return Out::Nowhere,
        };
        if !count_hop(&mut packet, layer) {
            return Out::Nowhere;
        }
        packet.meta.oif = Some(iface(to));
        if !self.passes(layer, Hook::Forward, &mut packet) {
            return Out::Nowhere;
        }
        match self.passes(layer, Hook::Postrouting, &mut packet) {
            true => Out::By(to),
            false => Out::Nowhere,
        }
    }
}

fn destination(packet: &Packet, layer: Layer) -> Out {
    let bytes = &packet.bytes()[14..];
    match layer {
        Layer::Ip => match bytes[16..20] {
            [10, 200, 0, 1] => Out::Local,
            [10, 0..=127, ..] => Out::By(Side::Left),
            [10, 201, ..] => Out::By(Side::Right),
            _ => Out::Nowhere,
        },
        _ => match bytes[24..40] {
            [0xfd, 0, 0, 0, ..] => Out::By(Side::Left),
            [0xfd, 1, 0, 0, ..] => Out::By(Side::Right),
            [0xfd, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] => Out::Local,
            _ => Out::Nowhere,
        },
    }
}

/// One hop less to live; false if there is none left.
fn count_hop(packet: &mut Packet, layer: Layer) -> bool {
    let bytes = &mut packet.bytes_mut()[14..];
    match layer {
        Layer::Ip => {
            if bytes[8] <= 1 {
                return false;
            }
            bytes[8] -= 1;
            let header = usize::from(bytes[0] & 15) * 4;
            bytes[10..12].fill(0);
            let sum = crate::packets::checksum(&bytes[..header], 0);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            if bytes[7] <= 1 {
                return false;
            }
            bytes[7] -= 1;
        }
    }
    true
}
