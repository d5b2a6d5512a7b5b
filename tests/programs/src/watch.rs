//! Who saw bytes go through rings. The figures of the ends are those of the lab's watch, and a
//! little low (what went between the last look and the end is missing); the broker's own total, which counts closed connections
//! too, is exact. [`Carried`] has both: the total says how much, the rows say that
//! each end was on the fast path and moved bytes.

use crate::{Bed, CLIENT_LIMIT};
use anyhow::{Context, Result, ensure};
use fordway_lab::{Lab, watch};
use fordwayd::admin::Connection;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Between two looks at the total.
const INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for the broker to have counted what closed connections carried.
const COUNTED_LIMIT: Duration = Duration::from_secs(10);
/// Looks in a row that must show the same count.
const SAME_LOOKS: u32 = 20;
/// A row's protocol, as the listing names it.
const TCP: &str = "tcp";
const UDP: &str = "udp";
const UNIX: &str = "unix";

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    total_before: u64,
    watch: watch::Watch,
}

impl Watch {
    pub(crate) fn start(lab: &Lab) -> Result<Watch> {
        Ok(Watch {
            total_before: lab.ring_bytes()?,
            watch: watch::Watch::start(lab, |_| false),
        })
    }

    /// Returns when both ends of this TCP port were seen to move bytes through rings: of a connection that a test
    /// holds open, because a short one may come and go between two looks.
    pub fn until_rings(&self, bed: &Bed, domains: [&str; 2], port: u16) -> Result<()> {
        self.until(bed, TCP, domains, port, 1)
    }

    /// The same of this UDP port, and of so many bytes.
    pub fn until_datagrams(
        &self,
        bed: &Bed,
        domains: [&str; 2],
        port: u16,
        bytes: u64,
    ) -> Result<()> {
        self.until(bed, UDP, domains, port, bytes)
    }

    fn until(
        &self,
        bed: &Bed,
        protocol: &str,
        domains: [&str; 2],
        port: u16,
        bytes: u64,
    ) -> Result<()> {
        let what = "bytes go through rings at both ends";
        let waited = bed.lab().wait_until(CLIENT_LIMIT, what, || {
            let seen = self.so_far().at_both_ends(protocol, domains, port, bytes);
            Ok(seen.is_ok())
        });
        waited.with_context(|| self.so_far().seen(protocol, domains, port))
    }

    /// The same of the rings between a domain's program and its stack.
    pub fn until_pairs(&self, bed: &Bed, domain: &str) -> Result<()> {
        let what = "bytes go through rings between program and stack";
        bed.lab().wait_until(CLIENT_LIMIT, what, || {
            Ok(self.so_far().between_program_and_stack(domain, 0).is_ok())
        })
    }

    fn so_far(&self) -> Carried {
        Carried {
            ring_bytes: 0,
            rows: self.watch.rows(),
        }
    }

    /// Ends it.
    pub fn end(self, bed: &Bed) -> Result<Carried> {
        let rows = self.watch.end();
        let until = Instant::now() + COUNTED_LIMIT;
        let mut total = bed.lab().ring_bytes()?;
        let mut same = 0;
        // A connection's last bytes are counted when its program has said that it closed it.
        loop {
            std::thread::sleep(INTERVAL);
            let now = bed.lab().ring_bytes()?;
            same = if now == total { same + 1 } else { 0 };
            total = now;
            if same == SAME_LOOKS || Instant::now() > until {
                break;
            }
        }
        Ok(Carried {
            ring_bytes: total - self.total_before,
            rows,
        })
    }
}

/// What a watch saw.
#[derive(Debug)]
pub struct Carried {
    /// Bytes through rings, all connections, each byte counted once.
    pub ring_bytes: u64,
    rows: Vec<Connection>,
}

/// One end's share.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    fast_connections: usize,
    sent: u64,
    received: u64,
}

impl Carried {
    /// Rows of one domain's sockets that have this port at the server's end.
    pub fn rows<'a>(&'a self, domain: &'a str, port: u16) -> impl Iterator<Item = &'a Connection> {
        let suffix = format!(":{port}");
        self.rows.iter().filter(move |row| {
            row.domain == domain && (row.local.ends_with(&suffix) || row.remote.ends_with(&suffix))
        })
    }

    /// Why rows of this port were on the kernel path when they were last seen.
    fn reasons(&self, protocol: &str, port: u16) -> BTreeSet<String> {
        let suffix = format!(":{port}");
        self.rows
            .iter()
            .filter(|row| row.local.ends_with(&suffix) || row.remote.ends_with(&suffix))
            .filter(|row| row.protocol == protocol)
            .filter_map(|row| row.reason.clone())
            .collect()
    }

    /// Rings carried at least `bytes` in all, and at this TCP port both ends moved bytes through them.
    pub fn rings_at_both_ends(&self, domains: [&str; 2], port: u16, bytes: u64) -> Result<String> {
        ensure!(
            self.ring_bytes >= bytes,
            "{} bytes went through rings, {bytes} were expected; {}",
            self.ring_bytes,
            self.seen(TCP, domains, port)
        );
        self.at_both_ends(TCP, domains, port, 1)
    }

    /// At least `bytes` went through rings, and both programs of a domain and their stack were seen to move some.
    pub fn between_program_and_stack(&self, domain: &str, bytes: u64) -> Result<String> {
        let pairs = self
            .rows
            .iter()
            .filter(|row| row.protocol == UNIX && row.domain == domain);
        let (mut ends, mut sent, mut received) = (0, 0, 0);
        let mut reasons = BTreeSet::new();
        for row in pairs {
            ends += usize::from(row.channel.is_some());
            sent += row.ring_bytes_tx;
            received += row.ring_bytes_rx;
            reasons.extend(row.reason.clone());
        }
        // Each byte is sent at one end and received at the other.
        ensure!(
            ends >= 2 && sent != 0 && received != 0 && self.ring_bytes >= bytes,
            "{ends} ends, {sent} bytes sent and {received} received by rings, {} in all, {bytes} were expected; reasons for the kernel path: {reasons:?}",
            self.ring_bytes
        );
        Ok(format!(
            "{:.1} MB through rings between program and stack (seen: {:.1} sent, {:.1} received, at {ends} ends)",
            self.ring_bytes as f64 / 1e6,
            sent as f64 / 1e6,
            received as f64 / 1e6
        ))
    }

    /// At this UDP port each end was seen to move at least `bytes` through rings.
    pub fn datagrams_at_both_ends(
        &self,
        domains: [&str; 2],
        port: u16,
        bytes: u64,
    ) -> Result<String> {
        self.at_both_ends(UDP, domains, port, bytes)
    }

    /// At this UDP port no end was seen to move a byte through rings.
    pub fn datagrams_at_no_end(&self, domains: [&str; 2], port: u16) -> Result<String> {
        let ends = domains.map(|domain| self.end(UDP, domain, port));
        ensure!(
            ends.iter().all(|end| end.fast_connections == 0),
            "datagrams went through rings; {}",
            self.seen(UDP, domains, port)
        );
        Ok(format!("{UDP} port {port} by the kernel"))
    }

    fn at_both_ends(
        &self,
        protocol: &str,
        domains: [&str; 2],
        port: u16,
        bytes: u64,
    ) -> Result<String> {
        let ends = domains.map(|domain| self.end(protocol, domain, port));
        for (end, domain) in ends.iter().zip(domains) {
            ensure!(
                end.fast_connections != 0 && end.sent + end.received >= bytes,
                "at {domain}'s end too few bytes through rings were seen ({bytes} were expected); {}",
                self.seen(protocol, domains, port)
            );
        }
        let [near, far] = ends;
        let mega = |bytes: u64| bytes as f64 / 1e6;
        Ok(format!(
            "{:.1} MB through rings (seen at {protocol} port {port}: {} sent {:.1} received {:.1}, {} sent {:.1} received {:.1})",
            mega(self.ring_bytes),
            domains[0],
            mega(near.sent),
            mega(near.received),
            domains[1],
            mega(far.sent),
            mega(far.received)
        ))
    }

    /// For a failure.
    fn seen(&self, protocol: &str, domains: [&str; 2], port: u16) -> String {
        let ends = domains.map(|domain| self.end(protocol, domain, port));
        format!(
            "{protocol} port {port}: {ends:?}, reasons for the kernel path: {:?}",
            self.reasons(protocol, port)
        )
    }

    fn end(&self, protocol: &str, domain: &str, port: u16) -> End {
        let mut end = End::default();
        let rows = self.rows(domain, port).filter(|row| row.channel.is_some());
        for row in rows.filter(|row| row.protocol == protocol) {
            end.fast_connections += 1;
            end.sent += row.ring_bytes_tx;
            end.received += row.ring_bytes_rx;
        }
        end
    }
}
