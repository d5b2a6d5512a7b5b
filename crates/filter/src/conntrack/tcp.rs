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
pub(super) enum TcpState {
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
    /// Belongs to the connection, which is left as it is: not counted, not kept longer.
    Ignored,
    /// Cannot belong to a connection in this state.
    Invalid,
    /// The connection is over and this begins another one with the same names.
    Again,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tcp {
    pub state: TcpState,
    /// The last segment that belonged, and whether the answering end sent it.
    last: Option<(Segment, bool)>,
    /// An end has begun to close: the same names may begin anew when it is over.
    closing: bool,
    /// Both ends sent a SYN before they saw the other's.
    opened_at_once: bool,
    /// A SYN came in the last moment of a connection. The other end asks with an ACK whether
    /// it was meant (RFC 5961 section 4), which is not the ACK of its own FIN.
    is_asked: bool,
}

impl Tcp {
    /// Takes in a segment.
    pub(super) fn take(&mut self, flags: u8, reply: bool) -> Step {
        let Some(segment) = segment(flags) else {
            return Step::Invalid;
        };
        let step = match step(self.state, segment, reply) {
            Step::Again if !self.closing && self.last != Some((Segment::Rst, false)) => {
                Step::Ignored
            }
            step => step,
        };
        match step {
            Step::Ignored => {
                self.last = Some((segment, reply));
                if (segment, reply) == (Segment::Syn, false) {
                    self.opened_at_once = false;
                    self.is_asked = self.state == TcpState::LastAck;
                }
                Step::Ignored
            }
            Step::To(TcpState::TimeWait)
                if self.state == TcpState::LastAck
                    && self.is_asked
                    && segment == Segment::Ack
                    && self.last == Some((Segment::Syn, !reply)) =>
            {
                self.is_asked = false;
                Step::Ignored
            }
            Step::To(next) => {
                let next = match (next, segment) {
                    // The answer to the second SYN, where both had sent one.
                    (TcpState::SynReceived, Segment::Ack) if reply && self.opened_at_once => {
                        TcpState::Established
                    }
                    (next, _) => next,
                };
                self.opened_at_once |= next == TcpState::SynSentBoth;
                self.closing |= next == TcpState::FinWait && self.state != next;
                self.last = Some((segment, reply));
                self.state = next;
                Step::To(next)
            }
            other => other,
        }
    }
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

fn step(state: TcpState, segment: Segment, reply: bool) -> Step {
    use Segment::*;
    use TcpState::*;
    match (segment, reply, state) {
        (Syn, false, None | SynSent) => Step::To(SynSent),
        (Syn, _, SynSentBoth) => Step::To(SynSentBoth),
        (Syn, true, SynSent) => Step::To(SynSentBoth),
        (Syn, false, TimeWait | Close) | (Syn, true, TimeWait) => Step::Again,
        (Syn, false, _) => Step::Ignored,
        (Syn, true, _) => Step::Invalid,

        (SynAck, false, SynReceived | SynSentBoth) => Step::To(SynReceived),
        (SynAck, false, _) => Step::Invalid,
        (SynAck, true, SynSent | SynSentBoth) => Step::To(SynReceived),
        (SynAck, true, None) => Step::Invalid,
        (SynAck, true, _) => Step::Ignored,

        (Fin, _, SynReceived | Established) => Step::To(FinWait),
        (Fin, _, FinWait | CloseWait | LastAck) => Step::To(LastAck),
        (Fin, _, TimeWait) => Step::To(TimeWait),
        (Fin, _, Close) => Step::To(Close),
        (Fin, _, None | SynSent | SynSentBoth) => Step::Invalid,

        (Ack, false, None) => Step::To(Established),
        (Ack, true, None) => Step::Invalid,
        (Ack, false, SynSent | SynSentBoth) => Step::Invalid,
        (Ack, true, SynSent | SynSentBoth) => Step::Ignored,
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
        let mut tcp = Tcp::default();
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
            assert_eq!(tcp.take(flags, reply), Step::To(want));
        }
        assert_eq!(tcp.take(SYN, false), Step::Again);
    }

    fn after(segments: &[(u8, bool)]) -> Tcp {
        let mut tcp = Tcp::default();
        for (flags, reply) in segments {
            tcp.take(*flags, *reply);
        }
        tcp
    }

    #[test]
    fn names_of_a_reset_connection_begin_anew_only_for_the_end_that_reset_it() {
        let reset = |by: bool| after(&[(SYN, false), (SYN | ACK, true), (ACK, false), (RST, by)]);
        assert_eq!(reset(false).take(SYN, false), Step::Again);
        assert_eq!(reset(true).take(SYN, false), Step::Ignored);
    }

    #[test]
    fn both_ends_may_open() {
        let mut tcp = after(&[(SYN, false), (SYN, true), (SYN | ACK, true)]);
        assert_eq!(tcp.take(ACK, true), Step::To(TcpState::Established));
    }

    #[test]
    fn an_ack_that_asks_about_a_syn_is_not_the_last_one() {
        let closed = [
            (ACK, false),
            (ACK, true),
            (FIN | ACK, false),
            (FIN | ACK, true),
        ];
        let mut tcp = after(&closed);
        assert_eq!(tcp.take(SYN, false), Step::Ignored);
        assert_eq!(tcp.take(ACK, true), Step::Ignored);
        assert_eq!(tcp.take(ACK, true), Step::To(TcpState::TimeWait));
    }

    #[test]
    fn flags_that_no_segment_has_are_invalid() {
        for flags in [0, FIN, SYN | FIN, SYN | RST, FIN | URG | 8, 63] {
            assert_eq!(
                after(&[(ACK, false)]).take(flags, false),
                Step::Invalid,
                "{flags:#x}"
            );
        }
    }
}
