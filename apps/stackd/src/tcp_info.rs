//! `struct tcp_info` (linux/tcp.h), as getsockopt(2) gives it (TCP_INFO): what the stack knows of a connection.
//!
//! Counts in segments are bytes by the length of a segment, rounded up. What only Linux keeps is 0: rates, how long a connection was
//! busy or held back, what was delivered, ECN. A window without a limit is the peer's. Rings past the stack are not counted.

use crate::pair::Pair;
use crate::server::{EINVAL, Server};
use crate::table::{Body, Place};
use fordway_netstack::{TcpInfo, TcpState};

const ENOTCONN: i32 = 107;

/// As far as Linux 6.7 has it. Who gives less room gets less.
const BYTES: usize = 248;
/// What stands for no threshold (linux: TCP_INFINITE_SSTHRESH).
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// What a segment is said to take before there is a connection (linux: TCP_MSS_DEFAULT).
const UNCONNECTED_MSS_BYTES: u32 = 536;

/// Numbers of linux/tcp_states.h.
const CLOSED: u8 = 7;
const LISTEN: u8 = 10;

/// TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK, TCPI_OPT_WSCALE.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WSCALE: u8 = 4;

struct Written([u8; BYTES]);

impl Written {
    fn put(&mut self, at: usize, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn put_long(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// What each has that is no connection.
    fn of(state: u8, mtu_bytes: usize) -> Written {
        let mut written = Written([0; BYTES]);
        written.0[0] = state;
        written.put(8, 204_000); // tcpi_rto
        written.put(12, 40_000); // tcpi_ato
        for at in [16, 20, 84] {
            written.put(at, UNCONNECTED_MSS_BYTES.into()); // tcpi_snd_mss, tcpi_rcv_mss, tcpi_advmss
        }
        written.put(60, mtu_bytes as u64); // tcpi_pmtu
        written.put(76, NO_THRESHOLD.into()); // tcpi_snd_ssthresh
        written.put(80, 10); // tcpi_snd_cwnd
        written.put(88, 3); // tcpi_reordering
        // tcpi_pacing_rate, tcpi_max_pacing_rate: no limit.
        written.put_long(104, u64::MAX);
        written.put_long(112, u64::MAX);
        written
    }

    fn add(&mut self, info: &TcpInfo, in_pair: usize, now: u64) {
        let mss = info.mss_bytes.max(1);
        let segments = |bytes: u64| bytes.div_ceil(mss);
        let since_ms = |at: u64| now.saturating_sub(at) / 1000;
        let (their_shift, own_shift) = info.window_shifts;
        let has = |is_so: bool, option: u8| if is_so { option } else { 0 };
        self.0[3] = info.probes.min(255) as u8; // tcpi_probes
        self.0[5] = has(info.has_timestamps, TIMESTAMPS)
            | has(info.is_sack, SACK)
            | has(info.window_shifts != (0, 0), WSCALE);
        self.0[6] = their_shift | own_shift << 4;
        let counts = &info.counts;
        let window = info.cwnd_bytes.min(info.send_window_bytes.max(mss));
        let threshold = info.ssthresh_bytes / mss;
        for (at, value) in [
            (8, info.rto_us),
            (16, mss),
            (20, info.heard_mss_bytes.max(UNCONNECTED_MSS_BYTES.into())),
            (24, segments(info.out_bytes)),
            (28, segments(info.sacked_bytes)),
            (32, segments(info.lost_bytes)),
            (44, since_ms(counts.sent_at)),
            (52, since_ms(counts.heard_at)),
            (56, since_ms(counts.acked_at)),
            (64, info.receive_window_bytes), // tcpi_rcv_ssthresh
            (68, info.rtt_us),
            (72, info.rttvar_us),
            (76, threshold.min(NO_THRESHOLD.into())),
            (80, window / mss),
            (84, mss),
            (96, info.receive_window_bytes), // tcpi_rcv_space
            (100, info.retransmits),
            (136, counts.segments_out),
            (140, counts.segments_in),
            (144, (in_pair + info.unsent_bytes) as u64),
            (148, info.min_rtt_us),
            (152, counts.texts_in),
            (156, counts.texts_out),
            (228, info.send_window_bytes),
            (232, info.receive_window_bytes),
        ] {
            self.put(at, value);
        }
        self.put_long(120, info.acked_bytes);
        self.put_long(128, info.received_bytes);
        self.put_long(200, info.sent_bytes);
        self.put_long(208, info.sent_again_bytes);
    }
}

impl Server {
    /// See the module.
    pub(crate) fn tcp_info(&mut self, place: Place) -> Result<Vec<u8>, i32> {
        // What the program has sent before it asks counts as sent. A port that fails says so to the loop, too.
        self.pump(place);
        let _ = self.send_frames();
        // What that has brought goes to the pair before its state is told: who hears of CLOSE_WAIT finds the end by poll.
        self.pump(place);
        let socket = self.table.look(place).ok_or(EINVAL)?;
        let id = match &socket.body {
            Body::Datagrams => return Err(ENOTCONN),
            body => body.flow(),
        };
        let is_listening = matches!(socket.body, Body::Listening(_));
        let in_pair = match &socket.body {
            Body::Connected(_) => socket.pair.as_ref().map_or(0, Pair::unread_bytes),
            _ => 0,
        };
        let mtu_bytes = match socket.remote {
            Some(remote) => self.stack.path_mtu(&remote.ip().to_canonical()),
            None => self.stack.link().mtu_bytes,
        };
        let known = id.and_then(|id| self.stack.tcp_info(id).ok());
        let state = match &known {
            Some(known) => number_of(known.state),
            None if is_listening => LISTEN,
            None => CLOSED,
        };
        let mut written = Written::of(state, mtu_bytes);
        if let Some(known) = &known {
            written.add(known, in_pair, self.now());
        }
        Ok(written.0.to_vec())
    }
}

fn number_of(state: TcpState) -> u8 {
    match state {
        TcpState::Established => 1,
        TcpState::SynSent => 2,
        TcpState::SynReceived => 3,
        TcpState::FinWait1 => 4,
        TcpState::FinWait2 => 5,
        TcpState::TimeWait => 6,
        TcpState::Closed => CLOSED,
        TcpState::CloseWait => 8,
        TcpState::LastAck => 9,
        TcpState::Closing => 11,
    }
}
