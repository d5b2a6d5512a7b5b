//! One connection in the table: its TCP, its names, and what the stack around it must know.

use core::net::SocketAddr;

use super::connection::Connection;
use super::{Key, ListenerId};
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

/// How a connection fares, as Linux's TCP_INFO says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    pub state: TcpState,
    /// The smoothed round trip, zero before it was measured, and how much it varies.
    pub rtt_us: Micros,
    pub rttvar_us: Micros,
    pub rto_us: Micros,
    /// The least round trip of the last minutes, zero before one was measured.
    pub min_rtt_us: Micros,
    /// `u64::MAX / 4` stands for no limit, here and in the threshold.
    pub cwnd_bytes: u64,
    pub ssthresh_bytes: u64,
    /// Payload of one segment, and of the longest one that came.
    pub mss_bytes: u64,
    pub heard_mss_bytes: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
    /// With what was sent again, and that alone.
    pub sent_bytes: u64,
    pub sent_again_bytes: u64,
    pub acked_bytes: u64,
    pub received_bytes: u64,
    /// Written by the owner and not acknowledged yet; of these, not sent yet.
    pub unacked_bytes: usize,
    pub unsent_bytes: usize,
    /// Sent and not acknowledged: all, what the peer has beyond holes, what is lost.
    pub out_bytes: u64,
    pub sacked_bytes: u64,
    pub lost_bytes: u64,
    /// What the peer's window takes, and ours.
    pub send_window_bytes: u64,
    pub receive_window_bytes: u64,
    /// By how much both are shifted.
    pub window_shifts: (u8, u8),
    pub is_sack: bool,
    pub has_timestamps: bool,
    /// Questions of keepalive that are not answered.
    pub probes: u32,
    pub counts: TcpCounts,
    /// Both buffers as they are now.
    pub buffer_bytes: usize,
}

/// Segments of a connection, and when there was one last. A long one counts as those that it is cut to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpCounts {
    pub segments_in: u64,
    pub segments_out: u64,
    /// Of these, with payload.
    pub texts_in: u64,
    pub texts_out: u64,
    /// When payload was sent last, when some came that was new, when an acknowledgement came; before that, when the connection began.
    pub sent_at: Micros,
    pub heard_at: Micros,
    pub acked_at: Micros,
}

impl TcpCounts {
    /// All is quiet since now.
    pub(super) fn begin(&mut self, now: Micros) {
        (self.sent_at, self.heard_at, self.acked_at) = (now, now, now);
    }

    pub(super) fn comes(&mut self, bytes: u64, mss: u64) {
        let count = bytes.div_ceil(mss.max(1));
        self.segments_in += count.max(1);
        self.texts_in += count;
    }

    pub(super) fn goes(&mut self, bytes: u64, mss: u64, now: Micros) {
        let count = bytes.div_ceil(mss.max(1));
        self.segments_out += count.max(1);
        self.texts_out += count;
        if count > 0 {
            self.sent_at = now;
        }
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    pub tcp: Connection,
    pub key: Key,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The listener that has not given it away yet.
    pub listener: Option<ListenerId>,
    /// The table leads here.
    pub is_attached: bool,
    pub is_dirty: bool,
    /// Stands among a neighbor's waiters.
    pub is_parked: bool,
    pub is_queued: bool,
    pub hop: CachedHop,
}

/// The neighbor's address, kept while the neighbor table has not changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CachedHop {
    pub epoch: u32,
    pub checked_at: Micros,
    pub mac: Mac,
}

impl Flow {
    pub(super) fn new(local: SocketAddr, remote: SocketAddr, tcp: Connection) -> Flow {
        Flow {
            tcp,
            key: Key::new(&local, &remote),
            local,
            remote,
            listener: None,
            is_attached: true,
            is_dirty: false,
            is_parked: false,
            is_queued: false,
            hop: CachedHop::default(),
        }
    }
}
