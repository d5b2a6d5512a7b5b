//! After a flow was touched: what it tells its owner, when it wants to be touched again, and
//! whether it is over.

use smoltcp::socket::tcp::State;

use super::flow::Flow;
use super::{Slot, instant};
use crate::route::Hop;
use crate::stack::{Error, Source, Stack};
use crate::{Micros, SECOND_US};

/// A connection that its owner has closed waits so long for the peer's FIN (Linux's
/// tcp_fin_timeout).
const ORPHAN_US: Micros = 60 * SECOND_US;
/// A connection that is being made: as long as six SYNs take.
const CONNECT_US: Micros = 64 * SECOND_US;
/// Probes without an answer before a silent connection ends.
const KEEPALIVE_PROBES: u64 = 3;
/// smoltcp keeps TIME-WAIT with a timer further away than anything else it waits for there.
const CLOSE_TIMER_US: Micros = SECOND_US;

impl Flow {
    /// When this flow is to be given up if nothing changes.
    fn gives_up_at(&mut self, now: Micros) -> Option<Micros> {
        let socket = self.socket_ref();
        let state = socket.state();
        let waits = match state {
            State::SynSent | State::SynReceived => true,
            State::FinWait1 | State::Closing | State::LastAck => true,
            State::FinWait2 => self.is_orphan,
            State::Established | State::CloseWait => socket.send_queue() > 0,
            _ => false,
        };
        if !waits {
            self.waits_since = None;
            let silence = self.options.keepalive_us? * (KEEPALIVE_PROBES + 1);
            let is_open = matches!(state, State::Established | State::CloseWait);
            return is_open.then_some(self.heard_at + silence);
        }
        let since = *self.waits_since.get_or_insert(now);
        let patience = match state {
            State::SynSent | State::SynReceived => CONNECT_US,
            State::FinWait2 => ORPHAN_US,
            _ => self.options.user_timeout_us,
        };
        let from = if state == State::SynSent {
            since
        } else {
            since.max(self.heard_at)
        };
        Some(from + patience)
    }

    /// For an open connection whose last segment carried all that there is to send.
    fn quiet_until(&self) -> Option<Micros> {
        let socket = self.socket_ref();
        let is_open = socket.state() == State::Established && self.seen_state == State::Established;
        self.recovery
            .quiet_until(socket.send_queue(), self.seq_next)
            .filter(|_| is_open && !self.is_orphan)
    }

    /// Notes what has changed since the last look; true if the owner is to be told.
    fn look(&mut self) -> bool {
        let socket = self.socket_ref();
        let (state, unread) = (socket.state(), socket.recv_queue());
        let before = self.seen_state;
        if state == before && unread <= self.seen_unread && !self.wants_room {
            self.seen_unread = unread;
            return false;
        }
        let (may_recv, has_room) = (socket.may_recv(), socket.can_send());
        let mut ready = self.ready;
        if before == State::SynSent && matches!(state, State::Established | State::CloseWait) {
            ready.is_connected = true;
            ready.is_writable = true;
        }
        let ends = before != state && !may_recv && before != State::SynSent;
        ready.is_readable |= unread > self.seen_unread || ends;
        if self.wants_room && has_room {
            self.wants_room = false;
            ready.is_writable = true;
        }
        if state == State::Closed && before != State::Closed {
            ready.is_closed = true;
            ready.is_readable = true;
            // Nobody here has ended it: a RST came.
            let is_reset = !matches!(before, State::LastAck | State::Closing | State::TimeWait);
            if self.error.is_none() && is_reset && !self.is_orphan {
                let refused = before == State::SynSent;
                self.error = Some(if refused {
                    Error::Refused
                } else {
                    Error::Reset
                });
            }
        }
        self.seen_state = state;
        self.seen_unread = unread;
        let is_news = ready != self.ready;
        self.ready = ready;
        is_news
    }
}

impl Stack {
    /// Looks at a flow that a segment has come for. An open connection's timer waits for the next
    /// `transmit`: what its owner answers until then moves it anyway.
    pub(super) fn settle_heard(&mut self, index: u32) {
        match self.tell(index) {
            Some(State::Established) => self.tcp.mark_heard(index),
            Some(_) => self.settle(index),
            None => {}
        }
    }

    /// Looks at a flow that smoltcp has just written a segment for. With all that there
    /// was on its way, it wants nothing for longer than most connections are silent.
    pub(super) fn settle_sent(&mut self, index: u32) {
        match self.tcp.flow(index).and_then(|flow| flow.quiet_until()) {
            Some(at) => self.tcp.timers.set(index, Some(at)),
            None => self.settle(index),
        }
    }

    /// Looks at a flow after smoltcp or its owner has touched it.
    pub(super) fn settle(&mut self, index: u32) {
        if let Some(state) = self.tell(index) {
            self.set_timer(index, state);
        }
    }

    /// Tells a flow's owner what is new; the state that it is in while it is attached.
    #[inline]
    fn tell(&mut self, index: u32) -> Option<State> {
        let flow = self.tcp.flows[index as usize].flow.as_deref_mut()?;
        if !flow.is_attached {
            return None;
        }
        flow.note_loss();
        let is_news = flow.look();
        if is_news && !flow.is_queued && !flow.is_orphan {
            flow.is_queued = true;
            self.sources.push_back(Source::Flow(index));
        }
        // Whoever has closed it will not read (RFC 9293 section 3.10.4, as Linux does).
        if flow.is_orphan && flow.seen_unread > 0 && flow.seen_state != State::Closed {
            flow.socket().abort();
            flow.seen_state = State::Closed;
        }
        Some(flow.seen_state)
    }

    /// Asks smoltcp when it wants to be asked again; a connection that is over leaves the table.
    fn set_timer(&mut self, index: u32, state: State) {
        let now = self.now;
        let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
            return;
        };
        let at = self.tcp.interface.poll_at(instant(now), &flow.set);
        let at = at.map(|at| Micros::try_from(at.total_micros()).unwrap_or(0));
        match at {
            Some(at) if at <= now => self.tcp.mark_dirty(index),
            None if state == State::Closed => return self.detach(index),
            Some(at) if state == State::TimeWait && at > now + CLOSE_TIMER_US => {
                return self.enter_time_wait(index);
            }
            _ => {}
        }
        if let Some(flow) = self.tcp.flow(index) {
            let later = at.filter(|at| *at > now);
            let limit = flow.gives_up_at(now);
            let probe = flow.recovery.probe_at(flow.seq_next);
            let deadline = later.into_iter().chain(limit).chain(probe).min();
            let deadline = deadline.map(|at| at.max(now + 1));
            self.tcp.timers.set(index, deadline);
        }
    }

    pub(super) fn flow_timer(&mut self, index: u32) {
        if self.give_up_if_due(index) {
            return;
        }
        let now = self.now;
        if let Some(flow) = self.tcp.flow(index)
            && flow
                .recovery
                .probe_at(flow.seq_next)
                .is_some_and(|at| at <= now)
        {
            let (ack, window) = flow.recovery.probe(flow.seq_next, now);
            let seq = flow.ack_next;
            self.feign_duplicates(index, seq, ack, window);
        }
        self.tcp.mark_dirty(index);
    }

    /// Ends a flow whose peer has been silent for too long.
    pub(super) fn give_up_if_due(&mut self, index: u32) -> bool {
        let now = self.now;
        let Some(flow) = self.tcp.flow(index) else {
            return true;
        };
        if flow.gives_up_at(now).is_none_or(|at| now < at) {
            return false;
        }
        let is_connecting = flow.socket_ref().state() == State::SynSent;
        flow.error.get_or_insert(Error::TimedOut);
        if is_connecting {
            flow.socket().close();
        } else {
            flow.socket().abort();
        }
        self.settle(index);
        true
    }

    /// The table leads to what answers late segments, the flow to what its owner may still read.
    fn enter_time_wait(&mut self, index: u32) {
        let now = self.now;
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        let (key, seq, ack) = (flow.key, flow.seq_next, flow.ack_next);
        self.detach(index);
        let (number, gone) = self.tcp.time_waits.push(key, seq, ack, now);
        if let Some(gone) = gone {
            self.tcp.table.remove(&gone);
        }
        self.tcp.table.insert(key, Slot::TimeWait(number));
    }

    /// The table no longer leads here. Freed when its owner has closed it.
    pub(super) fn detach(&mut self, index: u32) {
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        flow.is_attached = false;
        let (key, is_orphan) = (flow.key, flow.is_orphan);
        if self.tcp.table.get(&key) == Some(&Slot::Flow(index)) {
            self.tcp.table.remove(&key);
        }
        self.tcp.timers.set(index, None);
        if is_orphan {
            self.free_flow(index);
        }
    }

    /// Ends connections whose own address is no longer ours.
    pub(crate) fn tcp_end_foreign(&mut self) {
        for index in 0..self.tcp.flows.len() as u32 {
            let routing = &self.routing;
            let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
                continue;
            };
            if !flow.is_attached || routing.is_own(&flow.local.ip()) {
                continue;
            }
            flow.error.get_or_insert(Error::AddressNotAvailable);
            flow.socket().abort();
            let is_news = flow.look();
            if is_news && !flow.is_queued && !flow.is_orphan {
                flow.is_queued = true;
                self.sources.push_back(Source::Flow(index));
            }
            self.detach(index);
        }
    }

    pub(super) fn free_flow(&mut self, index: u32) {
        let slot = &mut self.tcp.flows[index as usize];
        if let Some(flow) = slot.flow.take() {
            self.tcp.buffer_bytes -= flow.options.buffer_bytes();
            slot.generation = slot.generation.wrapping_add(1);
            self.tcp.free_flows.push(index);
            self.tcp.keep_idle(flow.into_idle());
        }
    }

    pub(super) fn add_flow(&mut self, mut flow: Flow) -> u32 {
        flow.seen_state = flow.socket_ref().state();
        let remote = flow.remote.ip();
        if matches!(self.routing.hop(&remote), Some(Hop::Neighbor(hop)) if hop == remote) {
            flow.begin_near();
        }
        let key = flow.key;
        self.tcp.buffer_bytes += flow.options.buffer_bytes();
        let index = match self.tcp.free_flows.pop() {
            Some(index) => index,
            None => {
                self.tcp.flows.push(super::FlowSlot::default());
                self.tcp.flows.len() as u32 - 1
            }
        };
        self.tcp.flows[index as usize].flow = Some(alloc::boxed::Box::new(flow));
        self.tcp.table.insert(key, Slot::Flow(index));
        index
    }
}
