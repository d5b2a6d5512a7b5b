//! TCP as somebody in the middle sees it: which state a connection is in after a segment.
//!
//! The states and what leads from one to the other are those of RFC 9293 section 3.3.2
//! as Linux's connection tracking observes them, so that `ct state` says the same. What is
//! not looked at are sequence numbers: a segment outside the window counts like one inside
//! (Linux: `nf_conntrack_tcp_be_liberal`). A connection may be picked up in its middle
//! (Linux: `nf_conntrack_tcp_loose`).
//!
//! ```text
//!   None ─SYN─► SynSent ─SYN+ACK◄─► SynReceived ─ACK─► Established ─FIN─► FinWait ─ACK─►
//!     CloseWait ─FIN─► LastAck ─ACK─► TimeWait            any ─RST─► Close
//! ```

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub enum TcpState {
    #[default]
    None,
    SynSent,
    SynReceived,
    Established,
    FinWait,
    CloseWait,
    LastAck,
    TimeWait,
    Close,
    /// Both ends opened at once.
    SynSentBoth,
}

/// What a segment is, by its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;
const URG: u8 = 32;

/// What a segment does to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    To(TcpState),
    /// Belongs to the connection and changes nothing.
    Same,
    /// Cannot belong to a connection in this state.
    Invalid,
    /// The connection is over and this begins another one with the same names.
    Again,
}

/// `None` for flags that no segment has (PSH, ECE and CWR say nothing here).
fn segment(flags: u8) -> Option<Segment> {
    Some(match flags & (FIN | SYN | RST | ACK | URG) {
        f if f == SYN || f == SYN | URG => Segment::Syn,
        f if f == SYN | ACK => Segment::SynAck,
        f if f == RST || f == RST | ACK => Segment::Rst,
        f if f == FIN | ACK || f == FIN | ACK | URG => Segment::Fin,
        f if f == ACK || f == ACK | URG => Segment::Ack,
        _ => return None,
    })
}

pub(super) fn step(state: TcpState, flags: u8, reply: bool) -> Step {
    use Segment::*;
    use TcpState::*;
    let Some(segment) = segment(flags) else {
        return Step::Invalid;
    };
    match (segment, reply, state) {
        (Syn, false, None | SynSent) => Step::To(SynSent),
        (Syn, _, SynSentBoth) => Step::To(SynSentBoth),
        (Syn, true, SynSent) => Step::To(SynSentBoth),
        (Syn, false, TimeWait | Close) | (Syn, true, TimeWait) => Step::Again,
        (Syn, false, _) => Step::Same,
        (Syn, true, _) => Step::Invalid,

        (SynAck, false, SynReceived | SynSentBoth) => Step::To(SynReceived),
        (SynAck, false, _) => Step::Invalid,
        (SynAck, true, SynSent | SynSentBoth) => Step::To(SynReceived),
        (SynAck, true, None) => Step::Invalid,
        (SynAck, true, _) => Step::Same,

        (Fin, _, SynReceived | Established) => Step::To(FinWait),
        (Fin, _, FinWait | CloseWait | LastAck) => Step::To(LastAck),
        (Fin, _, TimeWait) => Step::To(TimeWait),
        (Fin, _, Close) => Step::To(Close),
        (Fin, _, None | SynSent | SynSentBoth) => Step::Invalid,

        (Ack, false, None) => Step::To(Established),
        (Ack, true, None) => Step::Invalid,
        (Ack, false, SynSent | SynSentBoth) => Step::Invalid,
        (Ack, true, SynSent | SynSentBoth) => Step::Same,
        (Ack, false, SynReceived) => Step::To(Established),
        (Ack, true, SynReceived) => Step::To(SynReceived),
        (Ack, _, Established) => Step::To(Established),
        (Ack, _, FinWait | CloseWait) => Step::To(CloseWait),
        (Ack, _, LastAck | TimeWait) => Step::To(TimeWait),
        (Ack, _, Close) => Step::To(Close),

        (Rst, _, None) => Step::Invalid,
        (Rst, ..) => Step::To(Close),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_from_handshake_to_time_wait() {
        let mut state = TcpState::None;
        for (flags, reply, want) in [
            (SYN, false, TcpState::SynSent),
            (SYN | ACK, true, TcpState::SynReceived),
            (ACK, false, TcpState::Established),
            (ACK | 8, true, TcpState::Established),
            (FIN | ACK, false, TcpState::FinWait),
            (ACK, true, TcpState::CloseWait),
            (FIN | ACK, true, TcpState::LastAck),
            (ACK, false, TcpState::TimeWait),
        ] {
            assert_eq!(step(state, flags, reply), Step::To(want));
            state = want;
        }
        assert_eq!(step(state, SYN, false), Step::Again);
    }

    #[test]
    fn flags_that_no_segment_has_are_invalid() {
        for flags in [0, FIN, SYN | FIN, SYN | RST, FIN | URG | 8, 63] {
            assert_eq!(
                step(TcpState::Established, flags, false),
                Step::Invalid,
                "{flags:#x}"
            );
        }
    }
}
