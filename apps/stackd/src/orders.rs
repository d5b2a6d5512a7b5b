//! What the broker orders: rules, and reports. See `fordway_driver::orders`.
//!
//! Rules come into force between two packets, whole: one thread takes orders and packets. Orders are taken when a round begins, and what
//! the round before had for others is theirs then. Those that lie in the queue when the stack
//! is started are taken before its first frame. They are the rules of the fabric's bridge, which each packet crosses as well; what
//! this copy of them decides is in crates/filter (`live/beside.rs`). A stack without the feature `filter` leaves all to the bridge.

use crate::config::Config;
use crate::server::Server;
use crate::table::{Body, Place, Socket};
use anyhow::{Context, Result};
use fordway_driver::orders::{
    self, CONNECTIONS_MAX, COUNTS_MAX, Connection, Order, Report, Said, What,
};
#[cfg(feature = "filter")]
use fordway_netstack::fordway_filter::{Counter, rules};
#[cfg(feature = "filter")]
use fordway_platform::fabric::RULES_DEVICE;
use fordway_platform::ipc::ReceiveError;
use fordway_platform::launch;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// Orders that are taken in one round.
const ORDERS_MAX: usize = 16;

/// The way to the broker.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) own: OwnedFd,
    /// Its own end, for the one that comes after it.
    _brokers: OwnedFd,
    /// What of a listing is still to be told, once there is room.
    telling: Option<Telling>,
    /// The answer to rules, for which there was no room yet.
    owed: Option<Report>,
}

/// A listing that is under way.
#[derive(Debug)]
struct Telling {
    number: u64,
    places: VecDeque<Place>,
}

impl Broker {
    pub(crate) fn of(config: &Config) -> Result<Option<Broker>> {
        let Some(ends) = &config.orders else {
            return Ok(None);
        };
        let inherited = |fd| launch::inherited(fd).context("an end of the way to the broker");
        Ok(Some(Broker {
            own: inherited(ends.own)?,
            _brokers: inherited(ends.brokers)?,
            telling: None,
            owed: None,
        }))
    }
}

impl Server {
    /// Does what the broker has ordered.
    pub(crate) fn take_orders(&mut self) {
        self.answer_broker();
        self.tell_on();
        for _ in 0..ORDERS_MAX {
            let Some(broker) = &self.broker else {
                return;
            };
            let (order, beside) = match orders::receive::<Order>(&broker.own) {
                Ok(received) => received,
                Err(ReceiveError::Empty) => return,
                // The broker gives up who does not answer.
                Err(ReceiveError::Malformed(..)) => continue,
                Err(ReceiveError::Closed | ReceiveError::System(_)) => return,
            };
            // The broker hears one listing at a time. An answer to rules that is owed stays so until there are others.
            if let Some(broker) = &mut self.broker {
                broker.telling = None;
            }
            let said = match order.what {
                What::Rules { epoch, bytes } => match self.set_rules(epoch, bytes, beside) {
                    Ok(()) => Said::InForce,
                    Err(why) => Said::Refused(format!("{why:#}")),
                },
                What::Counts => {
                    self.tell_counts(order.number);
                    continue;
                }
                What::Connections => {
                    self.tell_connections(order.number);
                    continue;
                }
            };
            let answer = Report {
                number: order.number,
                is_last: true,
                said,
            };
            if let Some(broker) = &mut self.broker {
                broker.owed = Some(answer);
            }
            self.answer_broker();
        }
        self.has_orders = true;
    }

    /// What is owed, if there is room for it.
    fn answer_broker(&mut self) {
        if let Some(broker) = &mut self.broker
            && let Some(owed) = &broker.owed
            && orders::send(&broker.own, owed, &[]).is_ok()
        {
            broker.owed = None;
        }
    }

    /// False if there is no room: the broker does not read.
    fn report(&self, number: u64, is_last: bool, said: Said) -> bool {
        let report = Report {
            number,
            is_last,
            said,
        };
        let broker = self.broker.as_ref();
        broker.is_some_and(|broker| orders::send(&broker.own, &report, &[]).is_ok())
    }

    #[cfg(not(feature = "filter"))]
    fn set_rules(&mut self, _: u64, _: usize, _: Vec<OwnedFd>) -> Result<()> {
        Ok(())
    }

    #[cfg(not(feature = "filter"))]
    fn tell_counts(&mut self, number: u64) {
        let said = Said::Counts {
            epoch: 0,
            counters: 0,
            of: Vec::new(),
        };
        self.report(number, true, said);
    }

    #[cfg(feature = "filter")]
    fn set_rules(&mut self, epoch: u64, bytes: usize, beside: Vec<OwnedFd>) -> Result<()> {
        let file = beside.first().context("no rules beside the order")?;
        let packed = read_whole(file, bytes)?;
        let damaged = |what: rules::Damaged| anyhow::anyhow!("{what}");
        let rules = rules::unpacked(&packed).and_then(rules::read);
        let rules = rules.map_err(damaged)?;
        let now = self.now();
        self.stack.set_rules_beside(now, rules, epoch, RULES_DEVICE);
        Ok(())
    }

    /// What found no room is told the next time.
    #[cfg(feature = "filter")]
    fn tell_counts(&mut self, number: u64) {
        let Some(filter) = self.stack.filter_mut() else {
            return;
        };
        let (epoch, counters) = (filter.epoch(), filter.counter_count());
        let counts = filter.take_counts();
        let counts: Vec<_> = counts
            .iter()
            .map(|(at, count)| (*at, count.packets, count.bytes))
            .collect();
        let mut parts = counts.chunks(COUNTS_MAX).peekable();
        let mut is_read = true;
        loop {
            let part = parts.next().unwrap_or_default();
            let is_last = parts.peek().is_none();
            let of = part.to_vec();
            let said = Said::Counts {
                epoch,
                counters,
                of,
            };
            is_read = is_read && self.report(number, is_last, said);
            if !is_read && let Some(filter) = self.stack.filter_mut() {
                for (at, packets, bytes) in part {
                    filter.add_count(*at, Counter::from((*packets, *bytes)));
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn tell_connections(&mut self, number: u64) {
        let connected = |socket: &Socket| socket.remote.is_some();
        let places = self.table.places(connected).into();
        if let Some(broker) = &mut self.broker {
            // Who asks anew does not hear the rest of the one before.
            broker.telling = Some(Telling { number, places });
        }
        self.tell_on();
    }

    /// As much of a listing as there is room for. The rest goes when the broker has read some.
    fn tell_on(&mut self) {
        let broker = self.broker.as_mut();
        let Some(mut telling) = broker.and_then(|broker| broker.telling.take()) else {
            return;
        };
        loop {
            let count = telling.places.len().min(CONNECTIONS_MAX);
            let is_last = count == telling.places.len();
            let part = telling.places.range(..count);
            let of = part.filter_map(|place| self.connection(*place)).collect();
            if !self.report(telling.number, is_last, Said::Connections(of)) {
                break;
            }
            telling.places.drain(..count);
            if is_last {
                return;
            }
        }
        if let Some(broker) = &mut self.broker {
            broker.telling = Some(telling);
        }
    }

    fn connection(&mut self, place: Place) -> Option<Connection> {
        let socket = self.table.look(place)?;
        let (local, remote) = (socket.local, socket.remote?);
        let bound = socket.bound.map(|bound| (bound.address, bound.port).into());
        let local = local.or(bound)?;
        let cookie = rustix::net::sockopt::socket_cookie(socket.pair.as_ref()?).ok()?;
        let (protocol, state, bytes) = match &socket.body {
            Body::Datagrams => ("udp", "ESTAB", [0; 2]),
            #[cfg(feature = "tcp")]
            body => {
                let info = self.stack.tcp_info(body.flow()?).ok()?;
                let bytes = [info.acked_bytes, info.received_bytes];
                ("tcp", state_name(info.state), bytes)
            }
            #[cfg(not(feature = "tcp"))]
            _ => return None,
        };
        Some(Connection {
            protocol: protocol.to_owned(),
            local,
            remote,
            cookie,
            state: state.to_owned(),
            bytes_tx: bytes[0],
            bytes_rx: bytes[1],
        })
    }
}

/// As ss(8) calls it.
#[cfg(feature = "tcp")]
fn state_name(state: fordway_netstack::TcpState) -> &'static str {
    use fordway_netstack::TcpState;
    match state {
        TcpState::SynSent => "SYN-SENT",
        TcpState::SynReceived => "SYN-RECV",
        TcpState::Established => "ESTAB",
        TcpState::FinWait1 => "FIN-WAIT-1",
        TcpState::FinWait2 => "FIN-WAIT-2",
        TcpState::CloseWait => "CLOSE-WAIT",
        TcpState::Closing => "CLOSING",
        TcpState::LastAck => "LAST-ACK",
        TcpState::TimeWait => "TIME-WAIT",
        TcpState::Closed => "UNCONN",
    }
}

#[cfg(feature = "filter")]
fn read_whole(file: &OwnedFd, bytes: usize) -> Result<Vec<u8>> {
    let mut all = vec![0; bytes];
    let mut at = 0;
    while at < bytes {
        match rustix::io::pread(file.as_fd(), &mut all[at..], at as u64)? {
            0 => anyhow::bail!("the rules end early"),
            count => at += count,
        }
    }
    Ok(all)
}
