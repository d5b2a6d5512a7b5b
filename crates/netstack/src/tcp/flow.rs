//! One connection: smoltcp's socket in a set of its own, and what we know besides.

use alloc::vec;
use core::net::SocketAddr;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use super::recovery::Recovery;
use super::{Key, ListenerId};
use crate::config::{Congestion, TcpOptions};
use crate::stack::Error;
use crate::{Mac, Micros};

/// What a connection is ready for since its last event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ready {
    /// The handshake is done.
    pub is_connected: bool,
    /// There is something to read, or the end of it.
    pub is_readable: bool,
    /// There is room again after a send that was cut short.
    pub is_writable: bool,
    /// It is over: reads give what is left, then the reason.
    pub is_closed: bool,
}

/// Where a connection stands (RFC 9293 section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl From<State> for TcpState {
    fn from(state: State) -> TcpState {
        match state {
            State::SynSent => TcpState::SynSent,
            State::Listen | State::SynReceived => TcpState::SynReceived,
            State::Established => TcpState::Established,
            State::FinWait1 => TcpState::FinWait1,
            State::FinWait2 => TcpState::FinWait2,
            State::CloseWait => TcpState::CloseWait,
            State::Closing => TcpState::Closing,
            State::LastAck => TcpState::LastAck,
            State::TimeWait => TcpState::TimeWait,
            State::Closed => TcpState::Closed,
        }
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    pub set: SocketSet<'static>,
    pub handle: SocketHandle,
    pub key: Key,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub options: TcpOptions,
    /// Our sequence numbers on the wire less smoltcp's.
    pub delta: u32,
    /// The initial sequence number of a connection that we begin, until its SYN is written.
    pub initial_seq: Option<u32>,
    /// Payload of one segment on the wire.
    pub mss: u16,
    /// The listener that has not given it away yet.
    pub listener: Option<ListenerId>,
    /// The owner has closed it.
    pub is_orphan: bool,
    /// The table leads here.
    pub is_attached: bool,
    pub is_dirty: bool,
    /// It is dirty only because a segment came: whether smoltcp wants to send is to be asked.
    pub is_heard: bool,
    /// Stands among a neighbor's waiters.
    pub is_parked: bool,
    pub is_queued: bool,
    pub ready: Ready,
    pub error: Option<Error>,
    /// A send was cut short.
    pub wants_room: bool,
    pub seen_state: State,
    pub seen_unread: usize,
    /// Bytes that were read since the window was last looked at.
    pub taken: usize,
    pub heard_at: Micros,
    /// Since when we have waited for an acknowledgement, a FIN, an answer.
    pub waits_since: Option<Micros>,
    pub hop: CachedHop,
    pub confirmed_at: Micros,
    pub recovery: Recovery,
    /// Congestion control begins with the first loss.
    is_unhurt: bool,
    /// What the last segment of ours said, for TIME_WAIT.
    pub seq_next: u32,
    pub ack_next: u32,
}

/// The neighbor's address, kept while the neighbor table has not changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CachedHop {
    pub epoch: u32,
    pub checked_at: Micros,
    pub mac: Mac,
}

/// smoltcp's socket without a connection. One that was used before saves the time of filling
/// its buffers with zeros: what is read of a buffer is only what was written into it since.
#[derive(Debug)]
pub(super) struct Idle {
    set: SocketSet<'static>,
    handle: SocketHandle,
    /// Of receiving and of sending.
    buffers_bytes: [usize; 2],
}

impl Idle {
    pub(super) fn new(options: &TcpOptions) -> Idle {
        let buffers_bytes = [options.receive_bytes(), options.send_bytes()];
        let [receive, send] = buffers_bytes.map(|len| SocketBuffer::new(vec![0; len]));
        let mut set = SocketSet::new(alloc::vec::Vec::with_capacity(1));
        let handle = set.add(Socket::new(receive, send));
        Idle {
            set,
            handle,
            buffers_bytes,
        }
    }

    pub(super) fn fits(&self, options: &TcpOptions) -> bool {
        self.buffers_bytes == [options.receive_bytes(), options.send_bytes()]
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffers_bytes.iter().sum()
    }
}

impl Flow {
    /// The socket has to connect or to listen next, which makes it forget what it was used for.
    pub(super) fn new(
        local: SocketAddr,
        remote: SocketAddr,
        options: &TcpOptions,
        idle: Idle,
        now: Micros,
    ) -> Flow {
        let Idle {
            mut set, handle, ..
        } = idle;
        let socket = set.get_mut::<Socket>(handle);
        socket.set_nagle_enabled(options.is_nagle);
        socket.set_ack_delay(options.ack_delay_us.map(Duration::from_micros));
        socket.set_keep_alive(options.keepalive_us.map(Duration::from_micros));
        socket.set_hop_limit(Some(options.hop_limit.max(1)));
        socket.set_congestion_control(match options.congestion {
            Congestion::Reno | Congestion::UntilLoss => CongestionControl::Reno,
            Congestion::None => CongestionControl::None,
        });
        Flow {
            set,
            handle,
            key: Key::new(&local, &remote),
            local,
            remote,
            options: *options,
            delta: 0,
            initial_seq: None,
            mss: mss_default(&remote),
            listener: None,
            is_orphan: false,
            is_attached: true,
            is_dirty: false,
            is_heard: false,
            is_parked: false,
            is_queued: false,
            ready: Ready::default(),
            error: None,
            wants_room: false,
            seen_state: State::Closed,
            seen_unread: 0,
            taken: 0,
            heard_at: now,
            waits_since: None,
            hop: CachedHop::default(),
            confirmed_at: 0,
            recovery: Recovery::default(),
            is_unhurt: false,
            seq_next: 0,
            ack_next: 0,
        }
    }

    /// The peer is a neighbor: no router's queue is between us.
    pub(super) fn begin_near(&mut self) {
        if self.options.congestion == Congestion::UntilLoss {
            self.is_unhurt = true;
            self.socket()
                .set_congestion_control(CongestionControl::None);
        }
    }

    /// A loss begins what [`Flow::begin_near`] put off.
    pub(super) fn note_loss(&mut self) {
        if self.is_unhurt && self.recovery.is_repairing() {
            self.is_unhurt = false;
            self.socket()
                .set_congestion_control(CongestionControl::Reno);
        }
    }

    /// What another connection may use.
    pub(super) fn into_idle(mut self) -> Idle {
        self.socket().abort();
        Idle {
            set: self.set,
            handle: self.handle,
            buffers_bytes: [self.options.receive_bytes(), self.options.send_bytes()],
        }
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.set.get_mut(self.handle)
    }

    pub(super) fn socket_ref(&self) -> &Socket<'static> {
        self.set.get(self.handle)
    }
}

/// Of a peer that names none (RFC 9293 section 3.7.1).
pub(super) fn mss_default(remote: &SocketAddr) -> u16 {
    if remote.is_ipv4() { 536 } else { 1220 }
}

/// The shift that smoltcp uses for a receive buffer of this size.
pub(super) fn window_shift(options: &TcpOptions) -> u8 {
    let bits = usize::BITS - options.receive_bytes().leading_zeros();
    bits.saturating_sub(16) as u8
}
