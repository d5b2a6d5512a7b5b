//! Calls everything that the chosen protocols offer, so that the linker keeps it: see
//! `./x features`. Run, it sends and hears nothing.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fordway_netstack::{Cidr, Config, RxChecksum, RxFrame, Stack};

fn main() {
    let mut stack = Stack::new(Config::new(black_box([2, 0, 0, 0, 0, 1]), black_box(7)));
    let own = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    stack.set_addresses(&[Cidr::new(black_box(own), 24)]);
    let mut bytes = vec![black_box(0); 2000];
    for now in 0..black_box(3) {
        let mut frame = RxFrame {
            bytes: &mut bytes[..100],
            checksum: RxChecksum::Unchecked,
        };
        stack.receive(now, &mut frame);
        protocols(&mut stack, now);
        while let Some(event) = stack.event() {
            black_box(event);
        }
        while let Some(frame) = stack.transmit(now, &mut bytes) {
            black_box(frame);
        }
        black_box(stack.poll_at());
    }
    black_box(stack.counters());
}

#[allow(unused_variables)]
fn protocols(stack: &mut Stack, now: u64) {
    let peer: SocketAddr = black_box(SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 80));
    #[cfg(feature = "tcp")]
    {
        let options = fordway_netstack::TcpOptions::default();
        if let Ok(listener) = stack.tcp_listen(None, black_box(80), 8, options)
            && let Ok((id, from)) = stack.tcp_accept(listener)
        {
            black_box(from);
            let mut buffer = [0; 64];
            let _ = black_box(stack.tcp_receive(id, &mut buffer));
            let _ = black_box(stack.tcp_send(id, &buffer));
            let _ = black_box(stack.tcp_shutdown(id));
            let _ = black_box(stack.tcp_close(id));
        }
        if let Ok(id) = stack.tcp_connect(now, peer, None, options) {
            let _ = black_box(stack.tcp_abort(id));
        }
    }
    #[cfg(feature = "udp")]
    if let Ok(id) = stack.udp_bind(None, black_box(53)) {
        let mut buffer = [0; 64];
        let _ = black_box(stack.udp_send(id, peer, &buffer));
        let _ = black_box(stack.udp_receive(id, &mut buffer));
        let _ = black_box(stack.udp_connect(id, Some(peer)));
        let _ = black_box(stack.udp_error(id));
        let group = fordway_netstack::Membership {
            group: Ipv4Addr::new(239, 1, 2, 3).into(),
            is_loopback: false,
        };
        let _ = black_box(stack.join_group(black_box(group)));
        let _ = black_box(stack.udp_set_groups(id, &[group]));
        stack.leave_group(black_box(group));
        let _ = black_box(stack.udp_close(id));
    }
    #[cfg(feature = "icmp")]
    {
        let _ = black_box(stack.ping(peer.ip(), 1, 2, &[0; 56]));
        black_box(stack.ping_reply());
    }
    #[cfg(feature = "autoconf")]
    {
        stack.ipv6_start(now, black_box(Default::default()));
        black_box(stack.ipv6_addresses().count());
    }
    #[cfg(feature = "dhcp")]
    {
        stack.dhcp_start(now);
        black_box(stack.dhcp_lease());
    }
    #[cfg(feature = "dns")]
    {
        let _ = black_box(stack.dns_query(now, "example.org", false));
        black_box(stack.dns_answer());
    }
    #[cfg(feature = "filter")]
    let _ = black_box(stack.set_rules(now, black_box(Default::default())));
}
